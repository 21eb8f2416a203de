"""The worlds whose nodes are programs: what holds in one has to hold in the other."""

from __future__ import annotations

import pytest

WORLDS = ("netns", pytest.param("docker", marks=pytest.mark.docker))
"""For `pytest.mark.parametrize` and `params` of fixtures."""
