"""A quick constructor is the constructor that the dataclass had."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Any

import pytest

from node.effects import Deliver
from node.trace import Level
from node.values import quick
from node.wire import Kind, Message


@quick
@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    x: int
    y: int = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    x: int
    y: int = 7


def test_defaults_comparison_hash_and_text_are_those_of_the_dataclass() -> None:
    assert Point(x=1) == Point(x=1, y=7) != Point(x=1, y=8)
    assert len({Point(x=1), Point(x=1, y=7)}) == 1
    assert repr(Point(x=1)) == repr(Slow(x=1)).replace("Slow", "Point")
    assert replace(Point(x=1), y=2) == Point(x=1, y=2)


def test_it_stays_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Point(x=1).x = 2  # type: ignore[misc]


@pytest.mark.parametrize("arguments", [{}, {"y": 1}, {"x": 1, "z": 2}])
def test_wrong_arguments_are_refused_as_by_the_dataclass(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"Point\.__init__\(\)"):
        Point(**arguments)
    with pytest.raises(TypeError):
        Point(1, 2)  # type: ignore[call-arg]


def test_values_of_every_datagram_have_it() -> None:
    message = Message(kind=Kind.RELIABLE_DATA, origin=1, incarnation=2, seq=3)
    assert (message.flags, message.inner, message.words, message.payload) == (0, Kind.APPLICATION, (), b"")
    assert Deliver.of(message) == Deliver(payload=b"", origin=1, incarnation=2, seq=3, level=Level.AGREED)
    for value in (Message, Deliver):
        assert "_set_origin" in value.__init__.__globals__


def test_a_class_that_checks_itself_is_refused() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Checked:
        x: int

        def __post_init__(self) -> None:
            assert self.x

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Made:
        x: list[int] = field(default_factory=list)

    for refused in (Checked, Made):
        with pytest.raises(AssertionError):
            quick(refused)
