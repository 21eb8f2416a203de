"""Tables of jitter: 4096 entries each, in 8192ths of the jitter. netem and the simulator draw from them."""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

from topologies.model import Distribution

SIZE = 4096
SCALE = 8192
_MIN, _MAX = -32768, 32767
_PARETO_SHAPE = 3.0


@cache
def table(distribution: Distribution) -> tuple[int, ...]:
    """The table of a shape, in the order of its quantiles."""
    make = _MAKE[distribution]
    return tuple(max(_MIN, min(_MAX, round(make((i + 0.5) / SIZE) * SCALE))) for i in range(SIZE))


def _uniform(quantile: float) -> float:
    return 2 * quantile - 1


def _normal(quantile: float) -> float:
    return NormalDist().inv_cdf(quantile)


def _pareto(quantile: float) -> float:
    """Pareto quantile: mean about 0; shape 3, scaled by 4/3, cut at 4 jitters as in iproute2."""
    value: float = ((1 - quantile) ** (-1 / _PARETO_SHAPE) - 1.5) * 4 / 3
    return min(value, _MAX / SCALE)


def _pareto_normal(quantile: float) -> float:
    """One part normal, three parts Pareto."""
    return (_normal(quantile) + 3 * _pareto(quantile)) / 4


_MAKE = {
    Distribution.UNIFORM: _uniform,
    Distribution.NORMAL: _normal,
    Distribution.PARETO: _pareto,
    Distribution.PARETONORMAL: _pareto_normal,
}
