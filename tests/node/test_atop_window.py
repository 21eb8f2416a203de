"""What the bookkeeper counts, and when that calls for a new distribution."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from node.protocols.atop_window import Window, has_changed, without
from node.protocols.atop_words import MAX_NUMBER


def window(*messages: int, least_dummies: int = 1, dummies: tuple[int, ...] = ()) -> Window:
    made = Window(len(messages), least_dummies=least_dummies)
    for place, count in enumerate(messages):
        for _ in range(count):
            made.count_message(place)
    for place, count in enumerate(dummies):
        made.count_dummies(place, count)
    return made


def test_a_weight_is_the_number_of_messages() -> None:
    """ "w[p] = messages of p / messages received", with the same denominator for all."""
    assert window(3, 0, 5).weights() == (3, 0, 5)


def test_of_the_dummies_a_least_number_counts() -> None:
    assert window(3, 0, 5, least_dummies=2, dummies=(9, 1, 0)).weights() == (5, 1, 5)
    assert window(3, 0, 5, least_dummies=0, dummies=(9, 9, 9)).weights() == (3, 0, 5)


def test_weights_have_32_bits() -> None:
    assert window(1, 1, least_dummies=2**40, dummies=(2**40, 0)).weights() == (MAX_NUMBER, 1)


def test_as_many_messages_as_members_say_something() -> None:
    assert not window(1, 1, 0, dummies=(9, 9, 9)).is_complete
    assert window(3, 0, 0).is_complete


def test_who_sent_nothing_lacks_dummies() -> None:
    made = window(2, 0, 0, least_dummies=3, dummies=(0, 1, 5))
    assert [made.lacks(place) for place in range(3)] == [0, 2, 0]


def test_who_was_heard_and_has_no_weight_gets_one() -> None:
    assert window(2, 7, 0).lifted((5, 0, 0)) == (5, 7, 0)
    assert window(2, 0, 0).lifted((5, 0, 3)) == (5, 0, 3)


def test_a_new_window_has_counted_nothing() -> None:
    made = window(2, 3, dummies=(1, 1))
    made.restart()
    assert (made.weights(), made.is_complete, made.lacks(0)) == ((0, 0), False, 1)


def test_a_change_is_the_share_of_turns_that_go_to_others() -> None:
    """Of 10 turns 1 goes to somebody else: 100 per mille, and that is not more than 100."""
    assert not has_changed((5, 5), (6, 4), 100)
    assert has_changed((5, 5), (6, 4), 99)
    assert has_changed((1, 0), (0, 1), 999)
    assert not has_changed((1, 0), (0, 1), 1000)


weights = st.lists(st.integers(0, MAX_NUMBER), min_size=3, max_size=3).map(tuple).filter(any)


@given(weights, st.integers(1, 1000), st.integers(0, 1000))
def test_scale_is_no_change(before: tuple[int, ...], factor: int, threshold: int) -> None:
    assert not has_changed(before, tuple(factor * weight for weight in before), threshold)


@given(weights, weights, st.integers(0, 1000))
def test_there_and_back_are_alike(before: tuple[int, ...], after: tuple[int, ...], threshold: int) -> None:
    assert has_changed(before, after, threshold) is has_changed(after, before, threshold)


def test_without_the_dead_the_others_keep_their_weights() -> None:
    assert without((3, 4, 5), {1}) == (3, 0, 5)
    assert without((0, 4, 0), {1}) == (1, 0, 1)
