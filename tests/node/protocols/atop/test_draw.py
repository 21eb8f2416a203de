"""Draws: correct shares, and the same on every run and platform."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.protocols.atop.order import Draws, RandomDraws, TimedDraws

weights_of_some = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=12).filter(any)
distributions = st.integers(0, 2**64 - 1)
kinds = st.sampled_from(tuple(Draws))

GOLDEN = {
    Draws.RANDOM: "1430131434343344311344313411343414313333",
    Draws.BOUNDED: "4430313034134314334431413431034304431333",
    Draws.SMOOTH: "0134314334013431433401343143340134314334",
}
"""The first 40 draws under distribution 3 with weights (1, 2, 0, 4, 3)."""


def draws_of(draws: Draws, distribution: int, *weights: int, lag: int = 3) -> RandomDraws | TimedDraws:
    """Draws for members 0, 1, 2, ..."""
    return draws.under(distribution, dict(enumerate(weights)), lag)


def some(draws: RandomDraws | TimedDraws, count: int) -> list[int]:
    drawn = []
    for _ in range(count):
        assert draws.first is not None
        drawn.append(draws.first)
        draws.use()
    return drawn


@pytest.mark.parametrize("draws", tuple(Draws))
def test_all_members_own_the_same_generator(draws: Draws) -> None:
    assert "".join(map(str, some(draws_of(draws, 3, 1, 2, 0, 4, 3), 40))) == GOLDEN[draws]


def chi_square(seen: Counter[Any], shares: dict[Any, float]) -> float:
    assert seen.keys() <= shares.keys()
    return sum((seen[drawn] - share) ** 2 / share for drawn, share in shares.items())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("weights", [(1, 1), (1, 2, 3, 4), (5, 0, 1, 994), tuple(range(1, 31))])
def test_shares_follow_the_weights(seed: int, weights: tuple[int, ...]) -> None:
    """Chi-square test at one in ten thousand for each; the seeds are fixed."""
    count = 20_000
    shares = {member: count * weight / sum(weights) for member, weight in enumerate(weights) if weight}
    freedom = len(shares) - 1
    # Wilson and Hilferty's approximation of the quantile.
    bound = freedom * (1 - 2 / (9 * freedom) + 3.72 * math.sqrt(2 / (9 * freedom))) ** 3
    assert chi_square(Counter(some(draws_of(Draws.RANDOM, seed, *weights), count)), shares) < bound


@pytest.mark.parametrize("seed", range(4))
def test_a_draw_does_not_depend_on_the_one_before(seed: int) -> None:
    """A lottery has no memory: pairs of successive draws are as frequent as the product of shares."""
    drawn = some(draws_of(Draws.RANDOM, seed, 1, 2, 3), 30_000)
    shares = {(a, b): 15_000 * (a + 1) * (b + 1) / 36 for a in range(3) for b in range(3)}
    pairs = Counter(zip(drawn[::2], drawn[1::2], strict=True))
    assert chi_square(pairs, shares) < 31.83, "8 degrees of freedom, one in ten thousand"


def test_the_others_keep_their_proportions_when_one_leaves() -> None:
    draws = draws_of(Draws.RANDOM, 1, 5, 1, 3)
    while draws.first != 0:
        draws.use()
    draws.leave()
    seen = Counter(some(draws, 20_000))
    assert 0 not in seen
    assert 2.8 < seen[2] / seen[1] < 3.2


@given(draws=kinds, distribution=distributions, weights=weights_of_some)
def test_a_member_without_weight_is_never_drawn_and_all_others_leave(
    draws: Draws, distribution: int, weights: list[int]
) -> None:
    turns = draws_of(draws, distribution, *weights)
    left = []
    while turns.first is not None:
        left.append(turns.first)
        turns.leave()
    assert sorted(left) == [member for member, weight in enumerate(weights) if weight]


@given(draws=kinds, distribution=distributions, weights=weights_of_some, ahead=st.integers(0, 30), leave=st.booleans())
def test_a_copy_comes_out_the_same_and_moves_nothing(
    draws: Draws, distribution: int, weights: list[int], ahead: int, leave: bool
) -> None:
    turns, other = draws_of(draws, distribution, *weights, 1), draws_of(draws, distribution, *weights, 1)
    for one in (turns, other):
        some(one, ahead)
        if leave:
            one.leave()
    copied = turns.copy()
    some(copied, 20)
    copied.leave()
    assert some(turns, 40) == some(other, 40)


@pytest.mark.parametrize("draws", [Draws.RANDOM, Draws.BOUNDED])
def test_distributions_draw_differently(draws: Draws) -> None:
    drawn = {tuple(some(draws_of(draws, distribution, 1, 1, 1, 1), 30)) for distribution in range(200)}
    assert len(drawn) == 200


@given(weights=st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(any), rounds=st.integers(1, 4))
def test_smooth_draws_keep_everybody_near_its_share(weights: list[int], rounds: int) -> None:
    total = sum(weights)
    seen = [0] * len(weights)
    for count, member in enumerate(some(draws_of(Draws.SMOOTH, 1, *weights), rounds * total), start=1):
        seen[member] += 1
        for had, weight in zip(seen, weights, strict=True):
            # At each time, the number of draws of a member differs from its share by at most one turn of each.
            assert abs(had - count * weight / total) < 1 + weight * len(weights) / total
    assert seen == [rounds * weight for weight in weights]


@given(
    distribution=distributions,
    weights=st.lists(st.integers(1, 50), min_size=1, max_size=8),
    lag=st.integers(1, 20),
    rounds=st.integers(1, 4),
)
def test_bounded_draws_keep_everybody_within_the_lag(
    distribution: int, weights: list[int], lag: int, rounds: int
) -> None:
    """Each block of `lag` turns has its own span of time, and the draws follow time."""
    seen = [0] * len(weights)
    for member in some(draws_of(Draws.BOUNDED, distribution, *weights, lag=lag), rounds * lag * len(weights)):
        seen[member] += 1
        latest = max(max(had - 1, 0) // lag * lag / weight for had, weight in zip(seen, weights, strict=True))
        earliest = min((had // lag + 1) * lag / weight for had, weight in zip(seen, weights, strict=True))
        assert latest <= earliest, "the last turn of one is in a block that begins after the next turn of another"


@pytest.mark.parametrize("lag", [1, 4])
def test_bounded_draws_are_a_lottery_inside_a_block(lag: int) -> None:
    """Each of two equal members has the first turn in half of 400 distributions: 5.5 sigma."""
    firsts = [draws_of(Draws.BOUNDED, distribution, 1, 1, lag=lag).first for distribution in range(400)]
    assert 145 < firsts.count(0) < 255


def test_smooth_draws_do_not_bunch() -> None:
    """A thousand members of weight 1 come between the turns of one with weight 1000, not after them."""
    drawn = some(draws_of(Draws.SMOOTH, 1, 1000, *(1,) * 1000), 2000)
    assert all(0 in pair for pair in pairwise(drawn))
