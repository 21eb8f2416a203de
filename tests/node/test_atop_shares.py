"""Formula (2) of paper 002: delta, its whole part, and that the deltas of all sum to 0."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import LocalError
from node.protocols.atop_shares import Shares

weights_of_a_group = st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=12).filter(any).map(tuple)


def group(weights: tuple[int, ...]) -> list[Shares]:
    return [Shares(weights, place) for place in range(len(weights))]


def test_who_sends_at_its_weight_has_a_delta_of_0() -> None:
    shares = group((3, 1))
    for owner in (0, 0, 1, 0):
        for one in shares:
            one.count(owner)
    assert [one.close() for one in shares] == [0, 0]
    assert [one.delta for one in shares] == [0, 0]


def test_who_sends_less_has_numbers_to_give_and_who_sends_more_wants_them() -> None:
    silent, busy = group((1, 1))
    for one in (silent, busy):
        one.count(1, 10)
    assert (silent.close(), busy.close()) == (5, -5)


def test_the_whole_part_is_truncated_towards_zero() -> None:
    silent, busy = group((1, 1))
    for one in (silent, busy):
        one.count(1, 3)
    assert (silent.close(), busy.close()) == (1, -1)
    assert (silent.delta, busy.delta) == (3, -3), "in halves"


def test_delta_is_the_former_delta_and_what_the_last_sub_window_adds() -> None:
    one = Shares((1, 1), 0)
    one.count(1, 2)
    assert one.close() == 1
    assert one.close() == 1, "nothing was received in this one"
    one.count(0, 4)
    assert one.close() == -1


def test_a_number_that_was_given_away_counts_for_who_gave_it() -> None:
    donor = Shares((1, 1), 0)
    donor.count(1, 4)
    assert donor.close() == 2
    donor.count(0, 2)  # filled by member 1: bkN(0), or by a dummy: dmN(0)
    donor.count(1, 2)
    assert donor.close() == 2, "both have used one half of these"


def test_a_new_distribution_resets_everything() -> None:
    one = Shares((1, 1), 0)
    one.count(1, 9)
    assert one.is_open
    one.close()
    one.count(1)
    one.reset((3, 1))
    assert (one.whole, one.delta, one.counted, one.is_open) == (0, 0, 0, False)
    one.count(1, 4)
    assert one.close() == 3


@pytest.mark.parametrize("weights", [(0, 0), (-1, 2)])
def test_weights_that_cannot_be_are_refused(weights: tuple[int, ...]) -> None:
    with pytest.raises(LocalError, match="weights"):
        Shares(weights, 0)


def test_a_place_that_is_none_is_refused() -> None:
    with pytest.raises(LocalError, match="place"):
        Shares((1, 1), 2)


@given(
    weights_of_a_group, st.lists(st.lists(st.tuples(st.integers(0, 11), st.integers(1, 50)), max_size=8), max_size=8)
)
def test_it_is_formula_2_in_fractions(weights: tuple[int, ...], windows: list[list[tuple[int, int]]]) -> None:
    shares = group(weights)
    deltas = [Fraction(0)] * len(weights)
    for window in windows:
        received = [0] * len(weights)
        for owner, numbers in window:
            received[owner % len(weights)] += numbers
            for one in shares:
                one.count(owner % len(weights), numbers)
        for place, weight in enumerate(weights):
            deltas[place] += Fraction(weight, sum(weights)) * sum(received) - received[place]
            assert shares[place].close() == int(deltas[place])
        assert sum(one.delta for one in shares) == 0
        assert [Fraction(one.delta, sum(weights)) for one in shares] == deltas
