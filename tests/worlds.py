"""The worlds whose nodes are programs: a property of one must hold in the other."""

from __future__ import annotations

import pytest

WORLDS = ("netns", pytest.param("docker", marks=pytest.mark.docker))
"""For `pytest.mark.parametrize` and `params` of fixtures."""
