"""Whose turn it is: weighted draws that come out the same at every member.

Paper 002, 2.4: all members own the same generator of pseudo-random numbers; a draw maps it through the distribution to
the next source. Drawn one after the other from one generator, the places of all later turns would depend on who has
been left out so far, and a member that is expelled while it thinks that it lives would deliver what both have in
another order than the others. So here each member draws for itself, in a race: its turns happen at times of its own,
with gaps that are exponential with mean 1 / weight, and the next source is the one whose next turn is the earliest.
That is the same lottery: whoever's turn comes first in such a race, it is member p with probability w[p] / W, whatever
happened before. But the time of turn k of a member is a function of the distribution's stamp, the member, its weight
and k alone. Who can have no further turn leaves the race, and nobody else's turns move.

RANDOM: one SplitMix64 (Steele, Lea, Flood 2014) for each place, seeded with the stamp and the place; nobody needs to
tell anybody a seed. The gap is -ln(u) / weight in integers: the logarithm from a table of 256 steps, interpolated
(right to 3 parts in a million, and what is wrong is the same for everybody). SMOOTH, which the paper does not have: no
chance at all, gaps of exactly 1 / weight, and of n members the one at place i begins with i / n of a gap. Everybody is
within one turn of his share at any time of the race; equal weights make a round in the members' order.

The next turns lie in a heap: a turn costs O(log n), so does leaving, a new table O(n).
"""

from __future__ import annotations

import enum
import heapq
from abc import ABC, abstractmethod
from typing import Self

_MASK = 2**64 - 1
_GOLDEN = 0x9E37_79B9_7F4A_7C15
_TURN_BITS = 30
"""Of the fraction of a turn at weight 1 ..."""
_TIME_BITS = 20
"""... and what is added so that weights divide it well: a weight of 2^32 still leaves gaps of 18 bits."""
_STEP_BITS = 8
"""Of the steps of the logarithm."""
_LN_2 = 744_261_118
"""Times 2^30, rounded."""


class Draws(enum.StrEnum):
    """How the next source is chosen."""

    RANDOM = "random"
    SMOOTH = "smooth"


class Turns(ABC):
    """The race of one distribution. Members are places 0 to n - 1; those of weight 0 take no part."""

    __slots__ = ("_heap", "_states", "_weights")

    def __init__(self, seed: int, weights: tuple[int, ...]) -> None:
        self._weights = weights
        self._states = self._seeds(seed)
        self._heap = [(self._next(0, place), place) for place, weight in enumerate(weights) if weight]
        heapq.heapify(self._heap)

    @property
    def is_over(self) -> bool:
        """Everybody has left."""
        return not self._heap

    @property
    def first(self) -> int:
        """Whose turn it is, until somebody says that it was used or that he leaves."""
        return self._heap[0][1]

    def use(self) -> None:
        """The first has had his turn."""
        time, place = self._heap[0]
        heapq.heapreplace(self._heap, (self._next(time, place), place))

    def leave(self) -> None:
        """The first has no turn any more, nor this one."""
        heapq.heappop(self._heap)

    def copy(self) -> Self:
        """Comes out as this one would, without moving it."""
        other = type(self).__new__(type(self))
        other._weights = self._weights
        other._states = self._states.copy()
        other._heap = self._heap.copy()
        return other

    @abstractmethod
    def _seeds(self, seed: int) -> list[int]:
        """The state of each place before its first turn."""

    @abstractmethod
    def _next(self, time: int, place: int) -> int:
        """When the turn after the one at `time` is; 0: the first one."""


def turns_of(draws: Draws, stamp: int, weights: tuple[int, ...]) -> Turns:
    """The race of the distribution `stamp` (64 bits) with these weights (at most 32 bits each)."""
    return SmoothTurns(stamp, weights) if draws is Draws.SMOOTH else RandomTurns(stamp, weights)


class RandomTurns(Turns):
    """Exponential gaps; a state is that of the generator."""

    __slots__ = ()

    def _seeds(self, seed: int) -> list[int]:
        mixed = _mixed(seed)
        return [_mixed(mixed + place * _GOLDEN & _MASK) for place in range(len(self._weights))]

    def _next(self, time: int, place: int) -> int:
        self._states[place] = mixed = (self._states[place] + _GOLDEN) & _MASK
        mixed = ((mixed ^ mixed >> 30) * 0xBF58_476D_1CE4_E5B9) & _MASK
        mixed = ((mixed ^ mixed >> 27) * 0x94D0_49BB_1331_11EB) & _MASK
        return time + (exponential(mixed ^ mixed >> 31) << _TIME_BITS) // self._weights[place]


class SmoothTurns(Turns):
    """Equal gaps; a state is the number of turns so far, with the fraction at which they began."""

    __slots__ = ()

    def _seeds(self, seed: int) -> list[int]:
        count = len(self._weights)
        return [((place - count) << _TURN_BITS) // count for place in range(count)]

    def _next(self, time: int, place: int) -> int:
        # From the count, not from the time before: what a division drops does not add up.
        self._states[place] = turns = self._states[place] + (1 << _TURN_BITS)
        return (turns << _TIME_BITS) // self._weights[place]


def exponential(uniform: int) -> int:
    """-ln(uniform / 2^64), times 2^30; of 0 as of 1: the most, about 44.4."""
    uniform = uniform or 1
    whole = uniform.bit_length() - 1
    # The fraction behind the leading 1, 40 bits of it: 8 choose the step, 32 lie in between.
    fraction = (uniform << 40 >> whole) - (1 << 40)
    step, between = fraction >> 32, fraction & 0xFFFF_FFFF
    low = _LOGARITHMS[step]
    logarithm = (whole << _TURN_BITS) + low + ((_LOGARITHMS[step + 1] - low) * between >> 32)
    return ((64 << _TURN_BITS) - logarithm) * _LN_2 >> _TURN_BITS


def _mixed(state: int) -> int:
    state = ((state ^ state >> 30) * 0xBF58_476D_1CE4_E5B9) & _MASK
    state = ((state ^ state >> 27) * 0x94D0_49BB_1331_11EB) & _MASK
    return state ^ state >> 31


def _logarithm(number: int) -> int:
    """log2(number / 2^62) times 2^30 for numbers from 2^62 to 2^63, one bit after the other."""
    result = 0
    for _ in range(_TURN_BITS):
        number = number * number >> 62
        result <<= 1
        if number >> 63:
            number >>= 1
            result += 1
    return result


_LOGARITHMS = [_logarithm((1 << 62) + (step << 62 - _STEP_BITS)) for step in range(1 << _STEP_BITS)] + [1 << _TURN_BITS]
