"""Words of the adaptive core: round trips, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import DropReason, RemoteError
from node.protocols.adaptive_words import (
    MAX_EPOCH,
    MAX_TIMESTAMP,
    Ruling,
    Tail,
    ballot_words,
    bases_of,
    epoch_of,
    read_ballot,
    read_decision,
    read_ruling,
    read_state,
    split_tail,
    tail_of,
    with_tail,
)
from node.protocols.words import pack
from node.wire import Kind, Message

MEMBERS = (0, 1, 2)
CODES = (0xB, 0xC)
RULING = Ruling(epoch=3, code=0xC, bases={0: 2, 1: 1, 2: 1})


def message(kind: Kind, *words: int, seq: int = 3) -> Message:
    return Message(kind=kind, origin=1, incarnation=1, seq=seq, words=words)


@given(st.binary(max_size=40), st.integers(0, MAX_TIMESTAMP), st.booleans())
def test_a_tail_comes_off_as_it_was_put_on(payload: bytes, timestamp: int, is_follow_up: bool) -> None:
    tail = Tail(timestamp, is_follow_up)
    assert split_tail(with_tail(payload, tail)) == (tail, payload)
    assert tail_of(b"") == (Tail(0, False), b"")


@pytest.mark.parametrize("payload", [b"", b"1234567", b"\xff" * 8])
def test_a_payload_without_a_tail_is_refused(payload: bytes) -> None:
    with pytest.raises(RemoteError) as caught:
        split_tail(payload)
    assert caught.value.reason is DropReason.MALFORMED


def test_a_decision_says_epoch_protocol_and_founders_or_that_nothing_changes() -> None:
    assert read_decision(message(Kind.ADAPTIVE_DECISION, 5, *RULING.words), MEMBERS, CODES) == (5, RULING)
    assert read_decision(message(Kind.ADAPTIVE_DECISION, 5, 0), MEMBERS, CODES) == (5, None)


@pytest.mark.parametrize(
    "words",
    [
        (),
        (5,),
        (5, 0xC),
        (5, 0x1, *RULING.words[1:]),
        (5, *RULING.words[:-1]),
        (5, *RULING.words, 0),
        (5, 0xC, pack(1, 1, 0), pack(0, 2, 0), pack(2, 1, 0)),
        (5, 0xC, pack(0, 0, 0), pack(1, 1, 0), pack(2, 1, 0)),
        (5, 0xC, pack(0, 2, 7), pack(1, 1, 0), pack(2, 1, 0)),
    ],
)
def test_a_decision_that_nobody_makes_is_refused(words: tuple[int, ...]) -> None:
    with pytest.raises(RemoteError) as caught:
        read_decision(message(Kind.ADAPTIVE_DECISION, *words), MEMBERS, CODES)
    assert caught.value.reason is DropReason.MALFORMED


def test_epochs_count_from_1_to_their_last() -> None:
    assert epoch_of(message(Kind.ADAPTIVE_LAST, seq=MAX_EPOCH), words=0) == MAX_EPOCH
    with pytest.raises(RemoteError, match="there is no epoch"):
        epoch_of(message(Kind.ADAPTIVE_LAST, seq=MAX_EPOCH + 1), words=0)
    with pytest.raises(RemoteError, match="LAST with 1 words"):
        epoch_of(message(Kind.ADAPTIVE_LAST, 7), words=0)
    with pytest.raises(RemoteError, match="epoch 0"):
        read_ruling(0, RULING.words, MEMBERS, CODES)


def test_a_ballot_is_a_ranking_of_candidates_or_not_now() -> None:
    assert read_ballot(message(Kind.ADAPTIVE_BALLOT, *ballot_words(5, (0xC, 0xB))), CODES) == (5, (0xC, 0xB))
    assert read_ballot(message(Kind.ADAPTIVE_BALLOT, *ballot_words(5, None)), CODES) == (5, None)
    for words in ((5,), (5, 0xCC), (5, 0x8), (5, 0xB0)):
        with pytest.raises(RemoteError):
            read_ballot(message(Kind.ADAPTIVE_BALLOT, *words), CODES)


def test_a_state_says_what_is_in_force_or_that_its_sender_does_not_know() -> None:
    welcome = (pack(2, 3, 0),)
    state = read_state(message(Kind.ADAPTIVE_STATE, *RULING.words, 2, *welcome), MEMBERS, CODES)
    assert (state.ruling, state.last, state.welcome) == (RULING, 2, welcome)
    assert read_state(message(Kind.ADAPTIVE_STATE, *welcome, seq=0), MEMBERS, CODES).welcome == welcome
    for words in (RULING.words, (*RULING.words, 3)):
        with pytest.raises(RemoteError, match="left behind"):
            read_state(message(Kind.ADAPTIVE_STATE, *words), MEMBERS, CODES)


def test_a_base_is_who_takes_part_or_the_last_that_ended() -> None:
    assert bases_of(MEMBERS, [(0, 3), (2, 1)], {1: 4}) == {0: 3, 1: 4, 2: 1}
