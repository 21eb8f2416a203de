"""Whose turn it is: weighted draws that come out the same at every member.

Paper 002, section 2.4: all members own the same generator of pseudo-random numbers; a draw in [0, 1) is mapped through
the distribution to the next source. Here everything is an integer: weights are counts, a draw is r in [0, total) by
multiply and shift, and r falls to the member where the running sum of the weights exceeds it. Who can have no further
turn is removed; the others keep their shares among themselves, and the next draw is made from their total.

RANDOM: SplitMix64 (Steele, Lea, Flood 2014), seeded with the distribution's stamp; nobody needs to tell anybody a seed.
The sums lie in a binary indexed tree (Fenwick 1994): a draw and a removal take O(log n) steps, a new table O(n). A
share is wrong by less than total / 2^64 of itself, which nobody will see: totals stay below 2^48.

SMOOTH, which the paper does not have: no chance at all. Slot number k of a member with weight w of W may be taken from
time floor(k W / w) on and has its deadline at ceil((k + 1) W / w); of those that may be taken, the one with the
earliest deadline is (Tijdeman 1980: everybody is within one turn of his exact share at any time). O(log n), spread
over the draws.
"""

from __future__ import annotations

import enum
import heapq
from typing import Protocol, Self

_MASK = 2**64 - 1
_GOLDEN = 0x9E37_79B9_7F4A_7C15


class Draws(enum.StrEnum):
    """How the next source is chosen."""

    RANDOM = "random"
    SMOOTH = "smooth"


class Turns(Protocol):
    """The draws of one distribution. Members are places 0 to n - 1."""

    @property
    def total(self) -> int:
        """The weight of all that have not been removed."""

    def draw(self) -> int:
        """The next place; only while `total` is above 0. Places of weight 0 never come."""

    def remove(self, place: int) -> None:
        """It comes no more. One that cannot come: nothing happens."""

    def copy(self) -> Self:
        """Draws what this one would draw, without moving it."""


def turns_of(draws: Draws, stamp: int, weights: tuple[int, ...]) -> Turns:
    """The draws of the distribution `stamp` (64 bits) with these weights, none negative."""
    return SmoothTurns(weights) if draws is Draws.SMOOTH else RandomTurns(stamp, weights)


class RandomTurns:
    """See the module's text."""

    __slots__ = ("_state", "_sums", "_top", "_weights", "total")

    def __init__(self, seed: int, weights: tuple[int, ...]) -> None:
        self.total = sum(weights)
        self._state = seed
        self._weights = list(weights)
        self._sums = _tree(weights)
        """One-based: place i + 1 holds the sum of the last (lowest set bit of i + 1) weights up to i."""
        self._top = 1 << (len(weights).bit_length() - 1)

    def draw(self) -> int:
        self._state = state = (self._state + _GOLDEN) & _MASK
        state = ((state ^ state >> 30) * 0xBF58_476D_1CE4_E5B9) & _MASK
        state = ((state ^ state >> 27) * 0x94D0_49BB_1331_11EB) & _MASK
        rest = ((state ^ state >> 31) * self.total) >> 64
        sums = self._sums
        size = len(sums)
        place, step = 0, self._top
        while step:
            further = place + step
            if further < size and sums[further] <= rest:
                rest -= sums[further]
                place = further
            step >>= 1
        return place

    def remove(self, place: int) -> None:
        weight = self._weights[place]
        self._weights[place] = 0
        self.total -= weight
        at = place + 1
        while at < len(self._sums):
            self._sums[at] -= weight
            at += at & -at

    def copy(self) -> RandomTurns:
        other = RandomTurns.__new__(RandomTurns)
        other.total = self.total
        other._state = self._state
        other._weights = self._weights.copy()
        other._sums = self._sums.copy()
        other._top = self._top
        return other


def _tree(weights: tuple[int, ...]) -> list[int]:
    sums = [0, *weights]
    for at in range(1, len(sums)):
        parent = at + (at & -at)
        if parent < len(sums):
            sums[parent] += sums[at]
    return sums


class SmoothTurns:
    """See the module's text. The removal of one member leaves the others where they are and the time jumps to the next
    that may be taken."""

    __slots__ = ("_now", "_ready", "_waiting", "_weights", "_whole", "total")

    def __init__(self, weights: tuple[int, ...]) -> None:
        self.total = self._whole = sum(weights)
        self._weights = list(weights)
        self._now = 0
        self._waiting = [(0, place, 0) for place, weight in enumerate(weights) if weight]
        """A heap of (from when, place, which of its slots)."""
        self._ready: list[tuple[int, int, int]] = []
        """A heap of (deadline, place, which of its slots)."""

    def draw(self) -> int:
        while True:
            self._let_in()
            _, place, slot = heapq.heappop(self._ready)
            weight = self._weights[place]
            # Who was removed goes when its slot comes up.
            if weight:
                heapq.heappush(self._waiting, ((slot + 1) * self._whole // weight, place, slot + 1))
                self._now += 1
                return place

    def remove(self, place: int) -> None:
        self.total -= self._weights[place]
        self._weights[place] = 0

    def copy(self) -> SmoothTurns:
        other = SmoothTurns.__new__(SmoothTurns)
        other.total, other._whole, other._now = self.total, self._whole, self._now
        other._weights = self._weights.copy()
        other._waiting = self._waiting.copy()
        other._ready = self._ready.copy()
        return other

    def _let_in(self) -> None:
        waiting, ready = self._waiting, self._ready
        while waiting and (waiting[0][0] <= self._now or not ready):
            since, place, slot = heapq.heappop(waiting)
            weight = self._weights[place]
            if weight:
                self._now = max(self._now, since)
                heapq.heappush(ready, (-(-(slot + 1) * self._whole // weight), place, slot))
