"""Windows (formula 1), shares (formula 2), weights as words, and the memory for the next view."""

from __future__ import annotations

from fractions import Fraction
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import RemoteError
from node.protocols.atop.policy import (
    MAX_WEIGHT,
    Shares,
    Window,
    first_weights,
    has_changed,
    memory_of,
    pack_weights,
    unpack_weights,
)


def window(*messages: int, least_dummies: int = 1, dummies: tuple[int, ...] = ()) -> Window:
    made = Window(range(len(messages)), least_dummies=least_dummies)
    for member, count in enumerate(messages):
        for _ in range(count):
            made.count_message(member)
    for member, count in enumerate(dummies):
        made.count_dummies(member, count)
    return made


def of(*weights: int) -> dict[int, int]:
    return dict(enumerate(weights))


# Formula (1).


@pytest.mark.parametrize(
    ("made", "weights"),
    [
        (window(3, 0, 5), (3, 0, 5)),
        (window(3, 0, 5, least_dummies=2, dummies=(9, 1, 0)), (5, 1, 5)),
        (window(3, 0, 5, least_dummies=0, dummies=(9, 9, 9)), (3, 0, 5)),
        (window(1, 1, least_dummies=2**40, dummies=(2**40, 0)), (MAX_WEIGHT, 1)),
    ],
    ids=["messages", "some dummies", "no dummies", "32 bits"],
)
def test_a_weight_is_the_number_of_messages_and_of_the_dummies_a_least_number_counts(
    made: Window, weights: tuple[int, ...]
) -> None:
    """ "w[p] = messages of p / messages received", with the same denominator for all."""
    assert made.weights() == of(*weights)


def test_as_many_messages_as_members_say_something() -> None:
    assert not window(1, 1, 0, dummies=(9, 9, 9)).is_complete
    assert window(3, 0, 0).is_complete


def test_a_member_that_sent_nothing_lacks_dummies() -> None:
    made = window(2, 0, 0, least_dummies=3, dummies=(0, 1, 5))
    assert [made.lacks(member) for member in range(3)] == [0, 2, 0]


def test_a_sender_without_weight_gets_one() -> None:
    assert window(2, 7, 0).lifted(of(5, 0, 0)) == of(5, 7, 0)
    assert window(2, 0, 0).lifted(of(5, 0, 3)) == of(5, 0, 3)


def test_a_new_window_has_counted_nothing() -> None:
    made = window(2, 3, dummies=(1, 1))
    made.restart()
    assert (made.weights(), made.is_complete, made.lacks(0)) == (of(0, 0), False, 1)


def test_a_change_is_the_share_of_draws_that_go_to_others() -> None:
    """Of 10 draws 1 goes to another member: 100 per mille, which is not more than 100."""
    assert not has_changed(of(5, 5), of(6, 4), 100)
    assert has_changed(of(5, 5), of(6, 4), 99)
    assert has_changed(of(1, 0), of(0, 1), 999)
    assert not has_changed(of(1, 0), of(0, 1), 1000)


weights = st.lists(st.integers(0, MAX_WEIGHT), min_size=3, max_size=3).filter(any).map(lambda some: of(*some))


@given(weights, weights, st.integers(1, 1000), st.integers(0, 1000))
def test_scale_is_no_change_and_there_and_back_are_alike(
    before: dict[int, int], after: dict[int, int], factor: int, threshold: int
) -> None:
    assert not has_changed(before, {member: factor * weight for member, weight in before.items()}, threshold)
    assert has_changed(before, after, threshold) is has_changed(after, before, threshold)


# Formula (2).


def group(*weights: int) -> list[Shares]:
    return [Shares(of(*weights), member) for member in range(len(weights))]


def test_a_member_that_sends_less_has_numbers_to_give_and_one_that_sends_more_wants_them() -> None:
    silent, busy = group(1, 1)
    for messages, deltas in ((3, (1, -1)), (1, (2, -2)), (0, (2, -2))):
        for one in (silent, busy):
            one.count(1, messages)
        assert (silent.close(), busy.close()) == deltas, "what the sub-window adds, truncated towards zero"
    assert (silent.delta, busy.delta) == (4, -4), "in halves"


@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=12).filter(any),
    st.lists(st.lists(st.tuples(st.integers(0, 11), st.integers(1, 50)), max_size=8), max_size=8),
)
def test_it_is_formula_2_in_fractions(weights: list[int], windows: list[list[tuple[int, int]]]) -> None:
    shares = group(*weights)
    deltas = [Fraction(0)] * len(weights)
    for one_window in windows:
        received = [0] * len(weights)
        for owner, numbers in one_window:
            received[owner % len(weights)] += numbers
            for one in shares:
                one.count(owner % len(weights), numbers)
        for member, weight in enumerate(weights):
            deltas[member] += Fraction(weight, sum(weights)) * sum(received) - received[member]
            assert shares[member].close() == int(deltas[member])
        assert sum(one.delta for one in shares) == 0
        assert [Fraction(one.delta, sum(weights)) for one in shares] == deltas


# Words.


@given(st.lists(st.integers(0, MAX_WEIGHT), min_size=1, max_size=9).filter(any))
def test_weights_survive_the_wire(some: list[int]) -> None:
    words = pack_weights(of(*some))
    assert all(0 <= word < 2**64 for word in words)
    assert unpack_weights(words, range(len(some))) == of(*some)


@pytest.mark.parametrize("words", [(), (1 << 32 | 1,), (1, 1), (0, 0), (1 << 32, 1 << 32, 0)])
def test_words_that_are_no_weights_are_refused(words: tuple[int, ...]) -> None:
    """For three members: too few or too many words, a weight of no member, all 0."""
    with pytest.raises(RemoteError, match="MALFORMED"):
        unpack_weights(words, (0, 1, 2))


# From view to view.


@pytest.mark.parametrize(
    ("memory", "weights"),
    [
        (b"", {1: 1, 4: 1}),
        (memory_of({1: 7, 2: 5, 3: 0}, {1, 3}), {1: 7, 3: 0}),
        (memory_of({1: 7, 2: 4, 3: 0}, {1, 2, 3}), {1: 7, 2: 4, 3: 0, 9: 6}),
        (memory_of({1: 7, 2: 0, 3: 0}, {2, 3}), {2: 1, 3: 1}),
    ],
    ids=["no memory: equal", "members that go on keep theirs", "a joiner gets the mean", "no weight goes on: equal"],
)
def test_the_first_weights_of_a_view(memory: bytes, weights: dict[int, int]) -> None:
    assert first_weights(memory, tuple(weights)) == weights


@pytest.mark.parametrize(
    "memory", [b"\0", bytes(7), pack(">HIHI", 1, 1, 1, 1), pack(">HIHI", 3, 1, 1, 1)], ids=bytes.hex
)
def test_a_memory_that_cannot_be_is_refused(memory: bytes) -> None:
    with pytest.raises(RemoteError, match="MALFORMED"):
        first_weights(memory, (1, 2, 3))


@given(st.binary(max_size=60))
def test_any_memory_gives_weights_that_can_be_or_is_refused(memory: bytes) -> None:
    try:
        found = first_weights(memory, (0, 1, 7))
    except RemoteError:
        return
    assert list(found) == [0, 1, 7]
    assert all(0 <= weight <= MAX_WEIGHT for weight in found.values())
    assert any(found.values())
