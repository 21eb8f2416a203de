"""The shared byte vectors, read once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

DIRECTORY = Path(__file__).parent.parent / "vectors"


def read_vectors(name: str) -> list[dict[str, Any]]:
    """The `vectors` of tests/vectors/<name>.json."""
    vectors: list[dict[str, Any]] = json.loads((DIRECTORY / f"{name}.json").read_text())["vectors"]
    assert vectors, f"{name}.json holds no vector"
    return vectors


def each_vector(name: str) -> pytest.MarkDecorator:
    """Runs a test with each of these vectors as `vector`."""
    return pytest.mark.parametrize("vector", read_vectors(name), ids=lambda vector: str(vector["name"]))


def levels_of(vector: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of one datagram, the outermost first."""
    levels, inner = [vector["message"]], vector["nested"]
    while inner is not None:
        levels.append(inner)
        inner = inner.get("nested")
    return levels
