"""Delay tables for netem: the shape of a jitter as 4,096 signed 16-bit values, in units of 1/8192 of the jitter.

netem picks an entry at random for each frame: delay = delay_ns + jitter_ns * entry / 8192. The tables are computed, not
read from files of a package that slim images lack. The formulas are those of iproute2 (netem/normal.c, pareto.c,
paretonormal.c). A uniform jitter gets a table, too: netem keeps the table of an earlier change when none is sent, and
there is no message that takes one away.
"""

from __future__ import annotations

import struct
from functools import cache
from statistics import NormalDist

from topologies.model import Distribution

SIZE = 4096
SCALE = 8192
_MIN, _MAX = -32768, 32767
_PARETO_SHAPE = 3.0


@cache
def delay_table(distribution: Distribution) -> bytes:
    """The table as netem wants it: native 16-bit integers."""
    make = {
        Distribution.UNIFORM: _uniform,
        Distribution.NORMAL: _normal,
        Distribution.PARETO: _pareto,
        Distribution.PARETONORMAL: _pareto_normal,
    }[distribution]
    values = [max(_MIN, min(_MAX, round(make((i + 0.5) / SIZE) * SCALE))) for i in range(SIZE)]
    return struct.pack(f"={SIZE}h", *values)


def _uniform(quantile: float) -> float:
    return 2 * quantile - 1


def _normal(quantile: float) -> float:
    return NormalDist().inv_cdf(quantile)


def _pareto(quantile: float) -> float:
    """Mean about 0; shape 3, scaled by 4/3, cut at 4 jitters as in iproute2."""
    value: float = ((1 - quantile) ** (-1 / _PARETO_SHAPE) - 1.5) * 4 / 3
    return min(value, _MAX / SCALE)


def _pareto_normal(quantile: float) -> float:
    """One part normal, three parts Pareto."""
    return (_normal(quantile) + 3 * _pareto(quantile)) / 4
