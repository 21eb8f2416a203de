"""Transfer of the group's state to a joiner, from donors that are correct, slow, inconsistent, or lying."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.errors import RemoteError
from node.group.transfer import (
    CHUNK_BYTES,
    CHUNKS_PER_ANSWER,
    MAX_STATE_BYTES,
    Chunk,
    Collector,
    chunks,
    digest_of,
)

SIZES = (0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, CHUNK_BYTES * CHUNKS_PER_ANSWER, 100_000)
STATE = bytes(range(256)) * 400


def answer(state: bytes, offset: int) -> list[Chunk]:
    return list(chunks(state, digest_of(state), offset))


def collect(collector: Collector, state: bytes, donor: int) -> bytes | None:
    """Let the donor answer every request."""
    for _ in range(1000):
        for chunk in answer(state, collector.ask()):
            found = collector.take(donor, Chunk.of(chunk.to_words(), chunk.data))
            if found is not None:
                return found
        if collector.donor != donor or not collector.is_answered:
            return None
    raise AssertionError("it never ends")


@pytest.mark.parametrize("size", SIZES)
def test_a_state_of_any_size_arrives(size: int) -> None:
    state = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    assert collect(Collector((4, 2)), state, 4) == state


@settings(max_examples=50)
@given(st.binary(max_size=9 * CHUNK_BYTES), st.data())
def test_chunks_may_come_in_any_order_and_twice(state: bytes, data: st.DataObject) -> None:
    collector = Collector((4,))
    collector.ask()
    sent = data.draw(st.permutations(answer(state, 0) * 2))
    found = None
    for chunk in sent:
        found = found if found is not None else collector.take(4, chunk)
    assert found == state


def test_an_answer_is_bounded_whatever_is_asked_for() -> None:
    assert len(answer(STATE, 0)) == CHUNKS_PER_ANSWER
    assert all(len(chunk.data) <= CHUNK_BYTES for chunk in answer(STATE, 0))
    for offset in (1, CHUNK_BYTES - 1, len(STATE) * CHUNK_BYTES, 2**63 // CHUNK_BYTES * CHUNK_BYTES):
        assert answer(STATE, offset) == []


@pytest.mark.parametrize(
    ("words", "size", "why"),
    [
        ((), 0, "no words"),
        ((100, 1), 100, "no offset"),
        ((100, 1, 0, 0), 100, "too many words"),
        ((100, 1, 0), 99, "truncated"),
        ((100, 1, 0), 101, "more than it says"),
        ((2 * CHUNK_BYTES, 1, 0), CHUNK_BYTES - 1, "a truncated chunk in the middle"),
        ((2 * CHUNK_BYTES, 1, 1), CHUNK_BYTES, "an offset between chunks"),
        ((CHUNK_BYTES, 1, 2 * CHUNK_BYTES), 0, "an offset behind the end"),
        ((MAX_STATE_BYTES + 1, 1, 0), CHUNK_BYTES, "a state that no memory should hold"),
        ((2**64 - 1, 1, 0), CHUNK_BYTES, "a state that no memory can hold"),
    ],
)
def test_what_is_no_chunk_of_any_state_is_refused(words: tuple[int, ...], size: int, why: str) -> None:
    with pytest.raises(RemoteError):
        pytest.fail(f"{why}: {Chunk.of(words, bytes(size))}")


LONG = b"x" * 2000


@pytest.mark.parametrize(
    "lies",
    [
        pytest.param([one._replace(digest=one.digest ^ 1) for one in answer(LONG, 0)], id="another digest"),
        pytest.param([Chunk(1000, digest_of(STATE), 0, STATE[:1000])], id="a shorter state"),
    ],
)
def test_a_state_with_another_digest_than_it_says_is_refused_and_the_next_donor_asked(lies: list[Chunk]) -> None:
    collector = Collector((4, 2))
    collector.ask()
    *early, last = lies
    assert [collector.take(4, chunk) for chunk in early] == [None] * len(early)
    with pytest.raises(RemoteError):
        collector.take(4, last)
    assert collector.donor == 2
    assert collect(collector, STATE, 2) == STATE


def test_a_donor_that_tells_another_state_in_between_starts_again() -> None:
    collector = Collector((4,))
    other = bytes(reversed(STATE))
    assert not any(collector.take(4, chunk) for chunk in answer(STATE, collector.ask())[:-1])
    assert collector.take(4, answer(other, 0)[3]) is None
    assert collector.ask() == 0, "from the start"
    assert collect(collector, other, 4) == other, "nothing of the first one is left in it"


def test_only_donors_are_listened_to_and_another_one_only_while_it_tells_the_same() -> None:
    collector = Collector((4, 2))
    collector.ask()
    assert collector.take(9, answer(b"forged", 0)[0]) is None
    assert collector.take(4, answer(STATE, 0)[0]) is None
    assert collector.take(2, answer(b"forged", 0)[0]) is None
    assert collector.take(2, answer(STATE, 0)[1]) is None, "it was asked before, and its answer is late"
    assert collect(collector, STATE, 4) == STATE


def test_the_next_donor_goes_on_where_the_one_before_stopped() -> None:
    collector = Collector((4, 2))
    for chunk in answer(STATE, collector.ask()):
        collector.take(4, chunk)
    collector.tries += 1
    assert collector.donor == 2
    assert collector.ask() == CHUNKS_PER_ANSWER * CHUNK_BYTES
    assert collect(collector, STATE, 2) == STATE


def test_a_donor_that_never_ends_fills_no_memory() -> None:
    """Each of its chunks is of another state: earlier chunks are dropped."""
    collector = Collector((4,))
    collector.ask()
    for number in range(500):
        chunk = Chunk(MAX_STATE_BYTES, number, number * CHUNK_BYTES, bytes(CHUNK_BYTES))
        assert collector.take(4, chunk) is None
    assert sum(map(len, collector._chunks.values())) <= CHUNK_BYTES
