"""The words of the reliable streams, in both directions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import RemoteError
from node.reliable.codec import (
    MAX_FENCES,
    MAX_LAG,
    MAX_PIGGYBACK,
    Entry,
    Heartbeat,
    fence_of,
    pack,
    pack_data,
    unpack_data,
    view_of,
)
from node.wire import Kind, Message, decode_message, encode_message

VIEWS = st.integers(0, 2**31 - 1)
ENTRIES = st.builds(Entry, st.integers(0, 0xFFFE), st.integers(0, 2**48 - 1))


def data(words: tuple[int, ...]) -> Message:
    message = Message(kind=Kind.RELIABLE_DATA, origin=1, incarnation=1, seq=MAX_LAG, words=words)
    assert decode_message(encode_message(message)) == message
    return message


@given(VIEWS, st.integers(0, MAX_LAG), st.lists(ENTRIES, max_size=20), st.lists(ENTRIES, max_size=MAX_PIGGYBACK))
def test_a_data_head_comes_back(view: int, lag: int, fences: list[Entry], positions: list[Entry]) -> None:
    packed = tuple(pack(*one) for one in fences), tuple(pack(*one) for one in positions)
    message = data(pack_data(view, lag, *packed))
    assert view_of(message) == view
    assert unpack_data(message) == (lag, *packed)
    for target in range(3):
        assert fence_of(message, target) == next((number for one, number in fences if one == target), 0)


def test_the_largest_data_head_fits() -> None:
    fences, positions = (pack(1, 1),) * MAX_FENCES, (pack(2, 2),) * MAX_PIGGYBACK
    message = data(pack_data(2**31 - 1, MAX_LAG, fences, positions))
    assert (view_of(message), unpack_data(message)) == (2**31 - 1, (MAX_LAG, fences, positions))


@given(VIEWS, st.lists(ENTRIES, max_size=200), st.lists(st.integers(0, 0xFFFE), max_size=200))
def test_a_heartbeat_comes_back(view: int, positions: list[Entry], awaited: list[int]) -> None:
    heartbeat = Heartbeat(tuple(positions), tuple(awaited))
    words = heartbeat.to_words(view)
    assert Heartbeat.from_words(words) == heartbeat
    with pytest.raises(RemoteError, match="MALFORMED"):
        Heartbeat.from_words((*words, 0))
