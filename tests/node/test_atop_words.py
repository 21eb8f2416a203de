"""Words of ATOP: what fits comes back, what cannot be is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import DropReason, RemoteError
from node.protocols.atop_words import (
    FIRST,
    MAX_NUMBER,
    MOST_MEMBERS,
    number_of,
    pack_closes,
    pack_weights,
    publisher_of,
    split,
    stamp_of,
    unpack_weights,
    weight_words,
)
from node.wire import MAX_DATAGRAM, Kind, Message, encode_datagram, encode_message

numbers = st.integers(0, MAX_NUMBER)
halves = st.integers(0, 0xFFFF)


@given(numbers, halves, halves, numbers, halves, halves)
def test_stamps_compare_as_number_member_incarnation(a: int, b: int, c: int, d: int, e: int, f: int) -> None:
    assert (stamp_of(a, b, c) < stamp_of(d, e, f)) is ((a, b, c) < (d, e, f))
    assert (number_of(stamp_of(a, b, c)), publisher_of(stamp_of(a, b, c))) == (a, (b, c))


def test_the_first_stamp_is_before_all_and_of_nobody() -> None:
    assert stamp_of(1, 0, 1) > FIRST
    assert (number_of(FIRST), publisher_of(FIRST)) == (0, (0, 0))


@given(st.lists(numbers, min_size=1, max_size=9).filter(any))
def test_weights_come_back(weights: list[int]) -> None:
    words = pack_weights(tuple(weights))
    assert len(words) == weight_words(len(weights))
    assert unpack_weights(words, len(weights)) == tuple(weights)


@pytest.mark.parametrize(
    ("words", "members"),
    [((), 2), ((1, 1), 2), ((0,), 2), ((0, 0), 3), ((1 << 32 | 1, 1), 3), ((1 << 32, 1), 3)],
)
def test_weights_that_cannot_be_are_refused(words: tuple[int, ...], members: int) -> None:
    with pytest.raises(RemoteError) as raised:
        unpack_weights(words, members)
    assert raised.value.reason is DropReason.MALFORMED


def message(*words: int) -> Message:
    return Message(kind=Kind.ATOP_DUMMY, origin=1, incarnation=1, seq=1, words=words)


def test_a_message_splits_into_stamp_own_words_and_closes() -> None:
    assert split(message(9, 3), 1) == (9, (3,), ())
    assert split(message(9, *pack_closes(((4, 7), (5, 0)))), 0) == (9, (), ((4, 7), (5, 0)))


@pytest.mark.parametrize(
    "words", [(), (9,), (9, 3, 4), (9, 3, 5, 1, 4, 1), (9, 3, 4, 1, 4, 1), (9, 3, 9, 1), (9, 3, 10, 1)]
)
def test_words_that_cannot_be_are_refused(words: tuple[int, ...]) -> None:
    with pytest.raises(RemoteError) as raised:
        split(message(*words), 1)
    assert raised.value.reason is DropReason.MALFORMED


def test_the_largest_group_fits_a_datagram() -> None:
    """The words of a welcome, of a distribution with many closes, and the fullest message of the reliable layer."""
    closes = tuple((stamp, 1) for stamp in range(64))
    distribution = (99 << 32, *pack_weights((MAX_NUMBER,) * MOST_MEMBERS), *pack_closes(closes))
    for words in (distribution, (0,) * MOST_MEMBERS):
        inner = Message(kind=Kind.ATOP_DISTRIBUTION, origin=0, incarnation=1, words=words)
        outer = Message(
            kind=Kind.RELIABLE_DATA,
            origin=0,
            incarnation=1,
            inner=inner.kind,
            words=(0,) * (1 + 0x3FF + 0x3F),
            payload=encode_message(inner),
        )
        data = encode_datagram(group=1, sender=0, sender_incarnation=1, transmission=1, message=outer)
        assert len(data) <= MAX_DATAGRAM
