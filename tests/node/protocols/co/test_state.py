"""The variables and rules of paper 000, with its examples: figure 6 and table 1, and the words of messages."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import DropReason, RemoteError
from node.packing import MAX_NUMBER
from node.protocols.co.codec import Layout
from node.protocols.co.state import Acceptance, CoState, Holding, Matrix, Pdu, Service, precedes
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


def entity(
    me: int = 0, *, count: int = 3, window: int = 64, buffer_bytes: int = 1 << 20, longest_bytes: int = 1
) -> CoState:
    return CoState(count=count, me=me, window=window, buffer_bytes=buffer_bytes, longest_bytes=longest_bytes)


def names(log: list[Pdu]) -> str:
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
def test_example_1_after_d_only_a_is_pre_acknowledged(me: int) -> None:
    state = entity(me)
    assert accept(state, "abcd") == "a"
    assert state.req == [3, 2, 2]
    assert columns(state.al) == [[2, 3, 2], [1, 1, 1], [1, 2, 1]]
    assert names(list(state.prl)) == "a"
    assert [names(list(log)) for log in state.rrl] == ["c", "d", "b"]


@pytest.mark.parametrize("me", range(3))
def test_example_1_after_h_b_c_d_e_join_prl_in_causal_order(me: int) -> None:
    state = entity(me)
    accept(state, "abcd")
    assert accept(state, "efgh") == "cedb", "the procedure goes through E_1, E_2, E_3"
    assert state.req == [5, 3, 3]
    assert columns(state.al) == [[4, 4, 5], [2, 2, 3], [2, 2, 2]]
    assert names(list(state.prl)) == "acbde", "b and c are concurrent; b is put between c and d"
    assert [names(list(log)) for log in state.rrl] == ["f", "g", "h"]


@pytest.mark.parametrize("me", range(3))
def test_example_2_when_h_is_pre_acknowledged_a_b_c_d_e_are_acknowledged(me: int) -> None:
    state = entity(me)
    accept(state, "abcdefgh")
    assert accept(state, "ikl") == "fgh"
    assert columns(state.pal) == [[4, 4, 5], [2, 2, 3], [2, 2, 2]]
    assert state.pal.least == [4, 2, 2]
    assert names(state.acknowledge()) == "acbde"
    assert names(list(state.prl)) == "fgh"


def test_example_1_says_b_and_c_are_concurrent_and_all_else_is_a_chain() -> None:
    chain = ["a", "c", "d", "e"]
    for earlier, later in pairwise(chain):
        assert precedes(MESSAGES[earlier], MESSAGES[later])
        assert not precedes(MESSAGES[later], MESSAGES[earlier])
    b, c, d = (MESSAGES[name] for name in "bcd")
    assert not precedes(b, c)
    assert not precedes(c, b)
    assert precedes(b, d)


def test_a_message_is_acknowledged_by_what_everybody_pre_acknowledged_not_by_what_everybody_accepted() -> None:
    state = entity()
    accept(state, "abcd")
    assert state.acknowledge() == []
    accept(state, "efgh")
    assert names(state.acknowledge()) == "a"


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


def test_our_own_buffers_count_in_min_buf() -> None:
    state = entity(buffer_bytes=60, longest_bytes=10)
    for seq in range(1, 5):
        state.accept(pdu(1, seq, (1, seq, 1), buf=60, size=10))
    assert (state.free, state.min_buf) == (20, 20)
    assert not state.is_flow_open


def test_the_holding_buffer_counts_too_or_an_overrun_would_never_slow_the_sender_down() -> None:
    state = entity(buffer_bytes=60, longest_bytes=10)
    holding = Holding(state)
    held = pdu(1, 3, (1, 3, 1), size=10)
    holding.put(held, (1, 2))
    assert (state.resident, state.free) == (1, 50)


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


def test_acceptance_condition_seq_is_req() -> None:
    state = entity()
    assert state.lacks(pdu(1, 1, (1, 1, 1))) is None
    assert state.lacks(pdu(1, 3, (1, 3, 1))) == (1, 2)


def test_strict_acceptance_waits_for_all_that_ack_covers_and_literal_does_not() -> None:
    q = pdu(2, 1, (4, 1, 1))
    assert entity(1).lacks(q) == (0, 3)
    literal = CoState(count=3, me=1, window=64, buffer_bytes=1 << 20, longest_bytes=1, acceptance=Acceptance.LITERAL)
    assert literal.lacks(q) is None
    lo = CoState(count=3, me=1, window=64, buffer_bytes=1 << 20, longest_bytes=1, service=Service.LO)
    assert lo.lacks(q) is None


def test_what_is_learnt_only_moves_forward() -> None:
    state = entity()
    state.al.learn(1, (3, 2, 2))
    assert state.al.learn(1, (2, 1, 2)) == []
    assert state.al.rows[1] == (3, 2, 2)


@given(st.lists(st.tuples(st.integers(0, 3), st.tuples(*[st.integers(1, 9)] * 4)), max_size=40))
def test_the_least_of_every_column_is_kept_up_to_date(lessons: list[tuple[int, tuple[int, ...]]]) -> None:
    matrix = Matrix(4)
    for j, vector in lessons:
        before = list(matrix.least)
        risen = matrix.learn(j, vector)
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


@pytest.mark.parametrize("words", [(), (1,), (1, 2, 3, 4 << 32, 5), (1 << 33, 1 << 32 | 2, 3 << 32 | 1)])
def test_words_that_do_not_fit_are_malformed(words: tuple[int, ...]) -> None:
    layout = Layout(2)
    for unpack in (layout.unpack_data, layout.unpack_state, layout.unpack_ret):
        if unpack == layout.unpack_state and len(words) == 3:
            continue  # the length of a state
        if unpack == layout.unpack_ret and len(words) == 5:
            continue  # a request with two ranges
        with pytest.raises(RemoteError) as caught:
            unpack(words)
        assert caught.value.reason is DropReason.MALFORMED


def test_a_state_that_asks_members_that_do_not_exist_is_malformed() -> None:
    layout = Layout(2)
    with pytest.raises(RemoteError):
        layout.unpack_state((*layout.pack_state((1, 1), (1, 1), 0), 0b100))


def test_the_header_grows_by_four_bytes_a_member_and_is_shorter_than_the_papers() -> None:
    """The paper: O(n), 84 bytes at n = 8. Here: 20 bytes of message header, and the words."""
    sizes = {n: 20 + 8 * len(Layout(n).pack_data((1,) * n, 1)) for n in (2, 8, 64, 256)}
    assert sizes == {2: 36, 8: 60, 64: 284, 256: 1052}
