"""The words of the reliable layer, in both directions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import DropReason, RemoteError
from node.packing import (
    MAX_RANGES,
    Entry,
    Heartbeat,
    numbers_of,
    pack,
    pack_data,
    ranges_of,
    unpack,
    unpack_data,
    view_digest,
)

u16 = st.integers(0, 2**16 - 1)
entries = st.builds(Entry, u16, u16, st.integers(0, 2**32 - 1))
words = st.lists(st.integers(0, 2**64 - 1), max_size=20).map(tuple)
heartbeats = st.builds(
    Heartbeat,
    positions=st.lists(entries, max_size=5).map(tuple),
    closed=st.lists(entries, max_size=5).map(tuple),
    awaited=st.lists(u16, max_size=5).map(tuple),
    suspects=st.lists(entries, max_size=5).map(tuple),
    over=st.lists(entries, max_size=5).map(tuple),
)


@given(entries)
def test_an_entry_is_one_word(entry: Entry) -> None:
    word = pack(*entry)
    assert 0 <= word < 2**64
    assert unpack(word) == entry


@given(heartbeats)
def test_heartbeat_round_trip(heartbeat: Heartbeat) -> None:
    assert Heartbeat.from_words(heartbeat.to_words()) == heartbeat


@given(words)
def test_random_words_are_a_heartbeat_or_malformed(some: tuple[int, ...]) -> None:
    try:
        heartbeat = Heartbeat.from_words(some)
    except RemoteError as error:
        assert error.reason is DropReason.MALFORMED
    else:
        assert len(heartbeat.to_words()) == len(some)


@given(words, words, st.integers(0, 2**32 - 1), u16)
def test_data_head_round_trip(fences: tuple[int, ...], positions: tuple[int, ...], floor: int, view: int) -> None:
    head = unpack_data(pack_data(view, floor, fences, positions))
    assert head == (view, floor, fences, positions)


def test_in_the_first_view_the_head_without_fences_and_positions_is_the_floor() -> None:
    assert pack_data(0, 40) == (40,)


@pytest.mark.parametrize("bad", [(), (1 << 38,), (1 << 32,), (0, 0)])
def test_a_data_head_that_does_not_fit_is_malformed(bad: tuple[int, ...]) -> None:
    with pytest.raises(RemoteError) as caught:
        unpack_data(bad)
    assert caught.value.reason is DropReason.MALFORMED


@given(st.sets(st.integers(1, 300), max_size=80))
def test_ranges_round_trip(numbers: set[int]) -> None:
    assert numbers_of(ranges_of(sorted(numbers)), limit=1000) == sorted(numbers)


def test_no_more_ranges_than_fit_and_no_more_numbers_than_asked() -> None:
    scattered = range(1, 4 * MAX_RANGES, 2)
    assert numbers_of(ranges_of(scattered), limit=10_000) == list(scattered)[:MAX_RANGES]
    # An enemy may announce four thousand million numbers in one word.
    assert numbers_of(((1 << 32) | 0xFFFF_FFFF,), limit=64) == list(range(1, 65))
    assert numbers_of((1 << 32 | 3, 5 << 32 | 9), limit=4) == [1, 2, 3, 5]


@pytest.mark.parametrize("bad", [(0,), (5 << 32 | 4,), (1 << 32 | 3, 3 << 32 | 4)])
def test_ranges_that_do_not_ascend_are_malformed(bad: tuple[int, ...]) -> None:
    with pytest.raises(RemoteError):
        numbers_of(bad, limit=10)


def test_the_digest_of_a_view_does_not_depend_on_the_order_of_discovery() -> None:
    assert view_digest({}) == 0
    assert view_digest({3: 1, 4: 2}) == view_digest({4: 2, 3: 1}) != view_digest({3: 2, 4: 1})
    assert 0 < view_digest({0: 1}) < 2**16
