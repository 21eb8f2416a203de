"""Quantiles of the delays that a path was asked to make, with its jitter, reordering and duplicates.

netem and the simulator draw each delay from the table of its distribution (`topologies.jitter`), so the quantiles are
known, and those of a sample must lie about them. A negative delay counts as zero, as in netem.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from analysis.requested_network import Path
from topologies.jitter import SCALE, SIZE, table
from topologies.model import Impairment

Floats = npt.NDArray[np.float64]

DEVIATIONS = 4.0
"""One correct network in 16,000 lies outside, as in the tests of netem on wires: a run has many rows, and a row several
quantiles."""
_SUMS = 8 * SIZE
"""Draws for a sum of several delays."""


def least_ns(asked: Impairment) -> int:
    """Shortest delay of a frame that passes the delay line."""
    return asked.delay_ns if not asked.jitter_ns else int(_draws(asked)[0])


def quantile_ns(own: Impairment, rest: Path, level: float) -> float:
    """Quantile of one element's delay plus the jitter of the rest of the path. For frames that skip no delay line and
    come once."""
    others = tuple(one for _, one in rest.elements if one.jitter_ns)
    drawn = _sums(own, others)
    return float(drawn[min(len(drawn) - 1, max(0, math.ceil(level * len(drawn)) - 1))])


def at_least_ns(own: Impairment, rest: Path, level: float, frames: int) -> float | None:
    """Least value that this quantile of a sample has by chance; None: frames that skip a delay line may be so many.

    The first of several copies counts, which is the fastest: F becomes F + d F (1 - F) where the part d is doubled.
    """
    part = max(0.0, level - _chance(level, frames))
    elements = (own, *(one for _, one in rest.elements))
    if any(one.reorder_ratio and one.rate_bps for one in elements):
        return None  # Frames that skip the delay line skip its queue, which may drop most of the others.
    for doubled in (one.duplicate_ratio for one in elements if one.duplicate_ratio):
        part = ((1 + doubled) - math.sqrt((1 + doubled) ** 2 - 4 * doubled * part)) / (2 * doubled)
    for skipping in (one.reorder_ratio for one in elements if one.reorder_ratio):
        if part <= skipping:
            return None
        part = (part - skipping) / (1 - skipping)
    return quantile_ns(own, rest, part)


def at_most_ns(own: Impairment, rest: Path, level: float, frames: int) -> float:
    """Greatest value that this quantile of a sample has by chance. Skipped delays and copies only make it less."""
    return quantile_ns(own, rest, min(1.0, level + _chance(level, frames)))


def _chance(level: float, frames: int) -> float:
    return DEVIATIONS * math.sqrt(level * (1 - level) / frames)


@lru_cache(maxsize=1024)
def _sums(own: Impairment, others: tuple[Impairment, ...]) -> Floats:
    """Delays in order: own, plus what the jitter of the others adds."""
    jittered = [one for one in (own, *others) if one.jitter_ns]
    if len(jittered) <= 1:
        return np.array([own.delay_ns], np.float64) + _centred(jittered)
    return np.sort(own.delay_ns + sum(_shuffled(one, place) for place, one in enumerate(jittered)))


def _centred(jittered: Iterable[Impairment]) -> Floats:
    return next((_draws(one) - one.delay_ns for one in jittered), np.zeros(1))


def _shuffled(one: Impairment, place: int) -> Floats:
    drawn = np.tile(_draws(one) - one.delay_ns, _SUMS // SIZE)
    return np.asarray(np.random.default_rng(place).permutation(drawn))


@lru_cache(maxsize=1024)
def _draws(one: Impairment) -> Floats:
    entries = np.array(table(one.distribution), np.float64)
    return np.maximum(0.0, one.delay_ns + one.jitter_ns * entries / SCALE)
