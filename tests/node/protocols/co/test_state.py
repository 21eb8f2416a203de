"""The variables and rules of paper 000, with its examples: figure 6 and table 1, and the words of messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import RemoteError
from node.packing import MAX_NUMBER
from node.protocols.co.codec import Layout
from node.protocols.co.state import Acceptance, CoState, Holding, Matrix, Pdu, Service
from node.wire import Kind, Message

TABLE_1 = {
    "a": (1, 1, (1, 1, 1)),
    "b": (3, 1, (2, 1, 1)),
    "c": (1, 2, (2, 1, 1)),
    "d": (2, 1, (3, 1, 2)),
    "e": (1, 3, (3, 2, 2)),
    "f": (1, 4, (4, 2, 2)),
    "g": (2, 2, (4, 2, 2)),
    "h": (3, 2, (5, 3, 2)),
}
"""E_j, SEQ and ACK of each message."""

AFTERWARDS = {"i": (1, 5, (5, 3, 3)), "k": (2, 3, (6, 3, 3)), "l": (3, 3, (6, 4, 3))}
"""Not in the paper: one more message of every entity, so that f, g and h are pre-acknowledged."""


def pdu(src: int, seq: int, ack: tuple[int, ...], *, buf: int = 1 << 20, size: int = 1) -> Pdu:
    """A PDU of E_(src+1)."""
    message = Message(kind=Kind.CO_DATA, origin=src, incarnation=1, seq=seq)
    return Pdu(src, seq, ack, buf, size, message)


MESSAGES = {name: pdu(j - 1, seq, ack) for name, (j, seq, ack) in {**TABLE_1, **AFTERWARDS}.items()}
NAME_OF = {(p.src, p.seq): name for name, p in MESSAGES.items()}


def entity(me: int = 0, **given: Any) -> CoState:
    return CoState(**{"count": 3, "me": me, "window": 64, "buffer_bytes": 1 << 20, "longest_bytes": 1, **given})


def names(log: Iterable[Pdu]) -> str:
    return "".join(NAME_OF[p.src, p.seq] for p in log)


def columns(matrix: Matrix) -> list[list[int]]:
    """The matrix as in the paper: AL[k][j] in row k, column j."""
    return [list(row) for row in zip(*matrix.rows, strict=True)]


def accept(state: CoState, letters: str) -> str:
    """Accept messages; those that are pre-acknowledged by that. None is acknowledged."""
    moved: list[Pdu] = []
    for letter in letters:
        p = MESSAGES[letter]
        assert state.lacks(p) is None
        moved += state.preacknowledge(state.accept(p))
    return names(moved)


# Examples 1 and 2.


@pytest.mark.parametrize("me", range(3))
def test_examples_1_and_2_step_by_step(me: int) -> None:
    state = entity(me)
    assert accept(state, "abcd") == "a"
    assert state.req == [3, 2, 2]
    assert columns(state.al) == [[2, 3, 2], [1, 1, 1], [1, 2, 1]]
    assert [names(log) for log in (state.prl, *state.rrl)] == ["a", "c", "d", "b"]
    assert state.acknowledge() == [], "all have accepted a, and not all have pre-acknowledged it"
    assert accept(state, "efgh") == "cedb", "the procedure goes through E_1, E_2, E_3"
    assert state.req == [5, 3, 3]
    assert columns(state.al) == [[4, 4, 5], [2, 2, 3], [2, 2, 2]]
    assert names(state.prl) == "acbde", "b and c are concurrent; b is put between c and d"
    assert [names(log) for log in state.rrl] == ["f", "g", "h"]
    assert accept(state, "ikl") == "fgh"
    assert columns(state.pal) == [[4, 4, 5], [2, 2, 3], [2, 2, 2]]
    assert state.pal.least == [4, 2, 2]
    assert names(state.acknowledge()) == "acbde"
    assert names(state.prl) == "fgh"


# The CPI operation.


def test_cpi_puts_a_message_before_the_first_that_it_precedes_and_behind_the_concurrent_ones() -> None:
    state = entity()
    p, q, r = pdu(0, 1, (1, 1, 1)), pdu(1, 1, (1, 1, 1)), pdu(2, 1, (2, 1, 1))
    for one in (r, q, p):
        state._insert(one)
    assert list(state.prl) == [p, r, q]


# Sending and the flow condition.


def test_flow_condition_min_al_at_most_seq_below_min_al_plus_w() -> None:
    state = entity(window=2)
    is_open = [state.is_flow_open]
    for p in (pdu(0, 1, (1, 1, 1)), pdu(0, 2, (2, 1, 1)), pdu(1, 1, (3, 1, 1)), pdu(2, 1, (3, 1, 1))):
        state.accept(p)
        is_open.append(state.is_flow_open)
    assert is_open == [True, True, False, False, True], "SEQ 3 and W 2: closed while minAL is 1"
    assert state.al.least[0] == 2, "our own column says what our last message said"


def test_flow_condition_min_buf_over_h_times_n() -> None:
    state = entity(buffer_bytes=300, longest_bytes=10)
    assert state.share(state.min_buf) == 10
    state.accept(pdu(1, 1, (1, 1, 1), buf=89, size=10))
    assert state.min_buf == 89, "E_2 says so"
    assert state.share(state.min_buf) == 2
    state.accept(pdu(1, 2, (1, 2, 1), buf=29, size=10))
    assert not state.is_flow_open, "no room for one message of each"


def test_our_own_buffers_count_in_min_buf_and_the_holding_buffer_too() -> None:
    """Else an overrun would never slow the sender down."""
    state = entity(buffer_bytes=60, longest_bytes=10)
    for seq in range(1, 4):
        state.accept(pdu(1, seq, (1, seq, 1), buf=60, size=10))
    assert (state.resident, state.min_buf, state.is_flow_open) == (3, 30, True)
    Holding(state).put(pdu(1, 5, (1, 5, 1), size=10), (4, 4))
    assert (state.resident, state.free, state.min_buf, state.is_flow_open) == (4, 20, 20, False)


def test_buf_is_that_of_the_latest_statement_not_of_the_latest_arrival() -> None:
    state = entity()
    state.hear_buf(1, (2, 5), 500)
    state.accept(pdu(1, 1, (1, 1, 1), buf=7))
    assert state.buf[1] == 500, "the message was sent before that statement, and came late"
    state.hear_buf(1, (2, 4), 9)
    assert state.buf[1] == 500
    state.hear_buf(1, (2, 6), 400)
    assert (state.buf[1], state.min_buf) == (400, 400)


def test_a_long_message_takes_up_several_buffers() -> None:
    state = entity(longest_bytes=100)
    assert [state.size_of(bytes(size)) for size in (0, 1, 100, 101, 1000)] == [100, 100, 100, 200, 1000]


# Acceptance.


def test_acceptance_waits_for_seq_and_strict_for_all_that_ack_covers() -> None:
    assert entity().lacks(pdu(1, 1, (1, 1, 1))) is None
    assert entity().lacks(pdu(1, 3, (1, 3, 1))) == (1, 2)
    q = pdu(2, 1, (4, 1, 1))
    assert entity(1).lacks(q) == (0, 3)
    assert entity(1, acceptance=Acceptance.LITERAL).lacks(q) is None
    assert entity(1, service=Service.LO).lacks(q) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.tuples(*[st.integers(1, 9)] * 4)), max_size=40))
def test_what_is_learnt_only_moves_forward_and_the_least_of_every_column_is_kept_up_to_date(
    lessons: list[tuple[int, tuple[int, ...]]],
) -> None:
    matrix = Matrix(4)
    for j, vector in lessons:
        before, row = list(matrix.least), matrix.rows[j]
        risen = matrix.learn(j, vector)
        assert matrix.rows[j] == tuple(map(max, row, vector))
        assert matrix.least == [min(column) for column in zip(*matrix.rows, strict=True)]
        assert risen == [k for k in range(4) if matrix.least[k] > before[k]]


# Words.

numbers = st.integers(0, MAX_NUMBER)


@given(
    st.integers(1, 70).flatmap(lambda n: st.tuples(*[st.tuples(*[numbers] * n)] * 2, st.sets(st.integers(0, n - 1))))
)
def test_words_say_what_was_put_in(case: tuple[tuple[int, ...], tuple[int, ...], set[int]]) -> None:
    ack, min_al, asked = case
    layout = Layout(len(ack))
    assert layout.unpack_data(layout.pack_data(ack, 7)) == (ack, 7)
    state = layout.unpack_state(layout.pack_state(ack, min_al, 9, sorted(asked)))
    assert state == (ack, min_al, 9, tuple(sorted(asked)))
    ret = layout.unpack_ret(layout.pack_ret(5, 8, ack, (1 << 32 | 3,)))
    assert ret == (5, 8, ack, (1 << 32 | 3,))


def test_two_numbers_lie_in_a_word_the_first_in_the_high_half() -> None:
    assert Layout(2, view=5).pack_data((1, 2), 3) == (5 << 33 | 3, 1 << 32 | 2)
    assert Layout(3, view=5).pack_data((1, 2, 3), 4) == (5 << 33 | 4, 1 << 32 | 2, 3 << 32)


def test_words_that_do_not_fit_are_malformed() -> None:
    layout = Layout(2)
    odd = ((), (1,), (1 << 33, 1 << 32 | 2, 3 << 32 | 1), (1, 2, 3, 4 << 32, 5))
    malformed = [
        *((layout.unpack_data, words) for words in odd),
        *((layout.unpack_state, words) for words in odd if len(words) != 3),
        *((layout.unpack_ret, words) for words in odd if len(words) != 5),
        (layout.unpack_state, (*layout.pack_state((1, 1), (1, 1), 0), 0b100)),  # It asks members that do not exist.
    ]
    for unpack, words in malformed:
        with pytest.raises(RemoteError, match="MALFORMED"):
            unpack(words)


def test_the_header_grows_by_four_bytes_a_member_and_is_shorter_than_the_papers() -> None:
    """The paper: O(n), 84 bytes at n = 8. Here: 20 bytes of message header, and the words."""
    sizes = {n: 20 + 8 * len(Layout(n).pack_data((1,) * n, 1)) for n in (2, 8, 64, 256)}
    assert sizes == {2: 36, 8: 60, 64: 284, 256: 1052}
