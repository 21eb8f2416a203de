"""Entries and ranges as words, in both directions."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.effects import Deliver
from node.errors import RemoteError
from node.packing import MAX_RANGES, Entry, fast_init, numbers_of, pack, ranges_of, unpack
from node.wire import Message

u16 = st.integers(0, 2**16 - 1)
entries = st.builds(Entry, u16, u16, st.integers(0, 2**32 - 1))


@given(entries)
def test_an_entry_is_one_word(entry: Entry) -> None:
    word = pack(*entry)
    assert 0 <= word < 2**64
    assert unpack(word) == entry


@given(
    st.sets(st.integers(1, 300), max_size=80) | st.sets(st.integers(1, 2**32 - 1), max_size=MAX_RANGES),
    st.integers(1, 200),
)
def test_ranges_round_trip(numbers: set[int], limit: int) -> None:
    assert numbers_of(ranges_of(sorted(numbers)), limit) == sorted(numbers)[:limit]


def test_no_more_ranges_than_fit_and_no_more_numbers_than_asked() -> None:
    scattered = range(1, 4 * MAX_RANGES, 2)
    assert numbers_of(ranges_of(scattered), limit=10_000) == list(scattered)[:MAX_RANGES]
    # An attacker may announce four thousand million numbers in one word.
    assert numbers_of(((1 << 32) | 0xFFFF_FFFF,), limit=64) == list(range(1, 65))


@pytest.mark.parametrize("bad", [(0,), (5 << 32 | 4,), (1 << 32 | 3, 3 << 32 | 4), (3 << 32 | 4, 4 << 32 | 9)])
def test_ranges_that_do_not_ascend_are_malformed(bad: tuple[int, ...]) -> None:
    with pytest.raises(RemoteError, match="MALFORMED"):
        numbers_of(bad, limit=10)


@fast_init
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
    with pytest.raises(FrozenInstanceError):
        Point(x=1).x = 2  # type: ignore[misc]
    for value in (Message, Deliver):
        assert "_set_origin" in value.__init__.__globals__, "values of every datagram have it"


@pytest.mark.parametrize("arguments", [{}, {"y": 1}, {"x": 1, "z": 2}])
def test_wrong_arguments_are_refused_as_by_the_dataclass(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"Point\.__init__\(\)"):
        Point(**arguments)
    with pytest.raises(TypeError):
        Point(1, 2)  # type: ignore[call-arg]


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
            fast_init(refused)
