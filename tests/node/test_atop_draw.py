"""Draws: the right shares, the same on every run, and nobody's turns depend on who else takes part."""

from __future__ import annotations

import math
from collections import Counter
from itertools import islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.protocols.atop_draw import Draws, Turns, exponential, turns_of

weights_of_some = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=12).filter(any).map(tuple)
stamps = st.integers(0, 2**64 - 1)
kinds = st.sampled_from(tuple(Draws))

GOLDEN = {
    Draws.RANDOM: "0341441143431413311433013033341004341333",
    Draws.SMOOTH: "0134314334013431433401343143340134314334",
}
"""The first 40 turns under stamp 0x3_0002_0001 with weights (1, 2, 0, 4, 3)."""


def some(turns: Turns, count: int) -> list[int]:
    places = []
    for _ in range(count):
        places.append(turns.first)
        turns.use()
    return places


@pytest.mark.parametrize("draws", tuple(Draws))
def test_the_same_turns_on_every_run_and_platform(draws: Draws) -> None:
    turns = turns_of(draws, 0x3_0002_0001, (1, 2, 0, 4, 3))
    assert "".join(map(str, some(turns, 40))) == GOLDEN[draws]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("weights", [(1, 1), (1, 2, 3, 4), (5, 0, 1, 994), tuple(range(1, 31))])
def test_shares_follow_the_weights(seed: int, weights: tuple[int, ...]) -> None:
    """Chi-square, at one in ten thousand for each; the seeds are fixed."""
    count = 20_000
    seen = Counter(some(turns_of(Draws.RANDOM, seed << 32, weights), count))
    expected = {place: count * weight / sum(weights) for place, weight in enumerate(weights) if weight}
    assert seen.keys() <= expected.keys()
    chi_square = sum((seen[place] - share) ** 2 / share for place, share in expected.items())
    freedom = len(expected) - 1
    # Wilson and Hilferty's approximation of the quantile.
    bound = freedom * (1 - 2 / (9 * freedom) + 3.72 * math.sqrt(2 / (9 * freedom))) ** 3
    assert chi_square < bound


@pytest.mark.parametrize("seed", range(4))
def test_a_turn_does_not_depend_on_the_one_before(seed: int) -> None:
    """A lottery has no memory: pairs of successive turns are as frequent as the product of shares."""
    weights = (1, 2, 3)
    places = some(turns_of(Draws.RANDOM, seed << 32, weights), 30_000)
    pairs = Counter(zip(places[::2], places[1::2], strict=True))
    expected = {(a, b): 15_000 * weights[a] * weights[b] / 36 for a in range(3) for b in range(3)}
    chi_square = sum((pairs[pair] - share) ** 2 / share for pair, share in expected.items())
    assert chi_square < 31.83, "8 degrees of freedom, one in ten thousand"


@given(draws=kinds, stamp=stamps, weights=weights_of_some, seed=st.integers(0, 999))
def test_who_leaves_moves_nobody_else(draws: Draws, stamp: int, weights: tuple[int, ...], seed: int) -> None:
    rng = Random(seed)
    staying = {place for place in range(len(weights)) if rng.random() < 0.5}
    all_of_them = some(turns_of(draws, stamp, weights), 60)
    turns = turns_of(draws, stamp, weights)
    left: list[int] = []
    while not turns.is_over and len(left) < len([place for place in all_of_them if place in staying]):
        if turns.first in staying:
            left.append(turns.first)
            turns.use()
        else:
            turns.leave()
    assert left == [place for place in all_of_them if place in staying]


@given(draws=kinds, stamp=stamps, weights=weights_of_some)
def test_who_has_no_weight_has_no_turn_and_all_others_leave(draws: Draws, stamp: int, weights: tuple[int, ...]) -> None:
    turns = turns_of(draws, stamp, weights)
    left = []
    while not turns.is_over:
        left.append(turns.first)
        turns.leave()
    assert sorted(left) == [place for place, weight in enumerate(weights) if weight]


@given(draws=kinds, stamp=stamps, weights=weights_of_some, ahead=st.integers(0, 30))
def test_a_copy_comes_out_the_same_and_moves_nothing(
    draws: Draws, stamp: int, weights: tuple[int, ...], ahead: int
) -> None:
    turns = turns_of(draws, stamp, weights)
    some(turns, ahead)
    copied = some(turns.copy(), 40)
    assert some(turns, 40) == copied


def test_stamps_that_differ_draw_differently() -> None:
    drawn = {tuple(some(turns_of(Draws.RANDOM, stamp, (1,) * 4), 30)) for stamp in range(200)}
    assert len(drawn) == 200


def test_equal_weights_make_a_round_when_smooth() -> None:
    assert some(turns_of(Draws.SMOOTH, 7, (5, 5, 5)), 9) == [0, 1, 2] * 3


@given(weights=st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(any).map(tuple), rounds=st.integers(1, 4))
def test_smooth_turns_keep_everybody_near_his_share(weights: tuple[int, ...], rounds: int) -> None:
    total = sum(weights)
    seen = [0] * len(weights)
    for drawn, place in enumerate(some(turns_of(Draws.SMOOTH, 1, weights), rounds * total), start=1):
        seen[place] += 1
        for had, weight in zip(seen, weights, strict=True):
            # One turn at a time of the race, and the number of turns is that time within one turn of each.
            assert abs(had - drawn * weight / total) < 1 + weight * len(weights) / total
    assert seen == [rounds * weight for weight in weights]


def test_smooth_turns_do_not_bunch() -> None:
    """A thousand members of weight 1 come between the turns of one with weight 1000, not after them."""
    places = some(turns_of(Draws.SMOOTH, 1, (1000, *(1,) * 1000)), 2000)
    assert all(0 in pair for pair in zip(places, islice(places, 1, None)))  # noqa: B905 (shifted by one)


@given(uniform=st.integers(1, 2**64 - 1))
def test_the_logarithm_in_integers_is_a_logarithm(uniform: int) -> None:
    assert exponential(uniform) / 2**30 == pytest.approx(-math.log(uniform / 2**64), abs=3e-6)


def test_the_least_and_the_most_of_a_gap() -> None:
    assert exponential(0) == exponential(1) > exponential(2)
    assert 0 <= exponential(2**64 - 1) < 4
