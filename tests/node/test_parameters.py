"""Reading dataclasses of parameters: one sentence for every mistake."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from node.errors import LocalError
from node.parameters import from_mapping, require


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int = 3

    def __post_init__(self) -> None:
        require(self.size > 0, f"size must be positive, not {self.size}")


@dataclass(frozen=True, kw_only=True)
class Outer:
    count: int
    ratio: float = 0.5
    is_fast: bool = False
    name: str = "x"
    inner: Inner = field(default_factory=Inner)


def test_defaults_nesting_and_whole_numbers_for_floats() -> None:
    read = from_mapping(Outer, {"count": 2, "ratio": 1, "inner": {"size": 9}}, "parameters")
    assert read == Outer(count=2, ratio=1.0, inner=Inner(size=9))
    assert isinstance(read.ratio, float)


@pytest.mark.parametrize(
    ("mapping", "sentence"),
    [
        ({}, "parameters needs 'count'"),
        ([], r"parameters must be a mapping of names to values, not \[\]"),
        ({"count": 1, "cuont": 2}, "parameters has no 'cuont'; it takes count, ratio, is_fast, name, inner"),
        ({"count": True}, "parameters.count must be a whole number, not True"),
        ({"count": 1.5}, "parameters.count must be a whole number, not 1.5"),
        ({"count": 1, "ratio": "much"}, "parameters.ratio must be a number, not 'much'"),
        ({"count": 1, "is_fast": 1}, "parameters.is_fast must be true or false, not 1"),
        ({"count": 1, "name": 1}, "parameters.name must be a text, not 1"),
        ({"count": 1, "inner": {"size": 0}}, "parameters.inner: size must be positive, not 0"),
        ({"count": 1, "inner": {"seize": 0}}, "parameters.inner has no 'seize'; it takes size"),
        ({"count": "a" * 100}, "not 'a{56}[.]{3}$"),
    ],
)
def test_every_mistake_gets_its_sentence(mapping: object, sentence: str) -> None:
    with pytest.raises(LocalError, match=sentence):
        from_mapping(Outer, mapping, "parameters")
