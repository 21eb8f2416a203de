"""The words of the reliable streams, in both directions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import RemoteError
from node.packing import Entry
from node.reliable.codec import (
    MAX_FENCES,
    MAX_LAG,
    MAX_PIGGYBACK,
    entry,
    fence_of,
    pack_data,
    pack_heartbeat,
    unpack_data,
    unpack_heartbeat,
    view_of,
)
from node.wire import Kind, Message, decode_message, encode_message

VIEWS = st.integers(0, 2**31 - 1)
ENTRIES = st.builds(Entry, st.integers(0, 0xFFFE), st.just(0), st.integers(0, 2**32 - 1))


def data(words: tuple[int, ...]) -> Message:
    message = Message(kind=Kind.RELIABLE_DATA, origin=1, incarnation=1, seq=MAX_LAG, words=words)
    assert decode_message(encode_message(message)) == message
    return message


def packed_of(entries: list[Entry]) -> tuple[int, ...]:
    return tuple(entry(one.member, one.number) for one in entries)


@given(VIEWS, st.integers(0, MAX_LAG), st.lists(ENTRIES, max_size=20), st.lists(ENTRIES, max_size=MAX_PIGGYBACK))
def test_a_data_head_comes_back(view: int, lag: int, fences: list[Entry], positions: list[Entry]) -> None:
    packed = packed_of(fences), packed_of(positions)
    message = data(pack_data(view, lag, *packed))
    assert view_of(message) == view
    assert unpack_data(message) == (lag, *packed)
    for target in range(3):
        assert fence_of(message, target) == next((one.number for one in fences if one.member == target), 0)


def test_the_largest_data_head_fits() -> None:
    fences, positions = (entry(1, 1),) * MAX_FENCES, (entry(2, 2),) * MAX_PIGGYBACK
    message = data(pack_data(2**31 - 1, MAX_LAG, fences, positions))
    assert (view_of(message), unpack_data(message)) == (2**31 - 1, (MAX_LAG, fences, positions))


@given(VIEWS, st.lists(ENTRIES, max_size=200), st.lists(st.integers(0, 0xFFFE), max_size=200))
def test_a_heartbeat_comes_back(view: int, positions: list[Entry], awaited: list[int]) -> None:
    words = pack_heartbeat(view, packed_of(positions), tuple(awaited))
    assert unpack_heartbeat(words) == (positions, awaited)
    with pytest.raises(RemoteError, match="MALFORMED"):
        unpack_heartbeat((*words, 0))
