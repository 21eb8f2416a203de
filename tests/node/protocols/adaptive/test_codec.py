"""Words of the adaptive core: round trips, and refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import DropReason, RemoteError
from node.protocols.adaptive.codec import (
    MAX_EPOCH,
    MAX_TIMESTAMP,
    Memory,
    number_of,
    read_ballot,
    read_decision,
    split_tail,
    with_tail,
)
from node.protocols.adaptive.vote import encode_ranking
from node.wire import Kind, Message

CODES = (0xB, 0xC)


def message(kind: Kind, *words: int, seq: int = 3) -> Message:
    return Message(kind=kind, origin=1, incarnation=1, seq=seq, words=words)


@given(st.binary(max_size=40), st.integers(0, MAX_TIMESTAMP))
def test_a_tail_comes_off_as_it_was_put_on(payload: bytes, timestamp: int) -> None:
    assert split_tail(with_tail(payload, timestamp)) == (timestamp, payload)


@pytest.mark.parametrize("payload", [b"", b"1234567", b"\xff" * 8])
def test_a_payload_without_a_tail_is_refused(payload: bytes) -> None:
    with pytest.raises(RemoteError, match="MALFORMED"):
        split_tail(payload)


@given(st.integers(1, MAX_EPOCH), st.sampled_from(CODES), st.binary(max_size=600), st.binary(max_size=600))
def test_a_memory_is_read_as_it_was_written(epoch: int, code: int, execution: bytes, instance: bytes) -> None:
    memory = Memory(epoch, code, execution, instance)
    assert Memory.from_bytes(memory.to_bytes(), CODES) == memory


@given(st.binary(max_size=60))
def test_bytes_that_are_no_memory_are_refused_as_malformed(data: bytes) -> None:
    try:
        memory = Memory.from_bytes(data, CODES)
    except RemoteError as error:
        assert error.reason is DropReason.MALFORMED
    else:
        assert memory.to_bytes() == data


def test_a_decision_names_a_candidate() -> None:
    assert read_decision(message(Kind.ADAPTIVE_DECISION, 0xC), CODES, has_time=False) == (0xC, 0)
    assert read_decision(message(Kind.ADAPTIVE_DECISION, 0xC, 9), CODES, has_time=True) == (0xC, 9)
    for words in ((), (0x1,), (0,), (0xC, 0xB)):
        with pytest.raises(RemoteError, match="MALFORMED"):
            read_decision(message(Kind.ADAPTIVE_DECISION, *words), CODES, has_time=False)
    for timed in ((0xC,), (0x1, 9), (0xC, 0), (0xC, 2**63 - 1), (0xC, 9, 9)):
        with pytest.raises(RemoteError, match="MALFORMED"):
            read_decision(message(Kind.ADAPTIVE_DECISION, *timed), CODES, has_time=True)


def test_epochs_count_to_their_last() -> None:
    assert number_of(message(Kind.ADAPTIVE_LAST, seq=MAX_EPOCH)) == MAX_EPOCH
    with pytest.raises(RemoteError, match="there is no epoch"):
        number_of(message(Kind.ADAPTIVE_LAST, seq=MAX_EPOCH + 1))
    with pytest.raises(RemoteError, match="LAST with 1 words"):
        number_of(message(Kind.ADAPTIVE_LAST, 7))


def test_a_ballot_is_a_ranking_of_candidates() -> None:
    word = encode_ranking((0xC, 0xB))
    assert read_ballot(message(Kind.ADAPTIVE_BALLOT, word), CODES, has_time=False) == ((0xC, 0xB), 0)
    assert read_ballot(message(Kind.ADAPTIVE_BALLOT, word, 9), CODES, has_time=True) == ((0xC, 0xB), 9)
    for words in ((), (0xCC,), (0x8,), (0xB0,), (0,)):
        with pytest.raises(RemoteError):
            read_ballot(message(Kind.ADAPTIVE_BALLOT, *words), CODES, has_time=False)
