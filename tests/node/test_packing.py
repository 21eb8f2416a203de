"""Entries and ranges as words, in both directions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import RemoteError
from node.packing import MAX_RANGES, Entry, numbers_of, pack, ranges_of, unpack

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
    # An enemy may announce four thousand million numbers in one word.
    assert numbers_of(((1 << 32) | 0xFFFF_FFFF,), limit=64) == list(range(1, 65))
    assert numbers_of((1 << 32 | 3, 5 << 32 | 9), limit=4) == [1, 2, 3, 5]


@pytest.mark.parametrize("bad", [(0,), (5 << 32 | 4,), (1 << 32 | 3, 3 << 32 | 4), (3 << 32 | 4, 4 << 32 | 9)])
def test_ranges_that_do_not_ascend_are_malformed(bad: tuple[int, ...]) -> None:
    with pytest.raises(RemoteError, match="MALFORMED"):
        numbers_of(bad, limit=10)
