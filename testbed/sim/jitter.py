"""The shapes of a jitter, as netem draws them: one of 4,096 table entries for each frame, in 1/8192 of the jitter.

The values are those that the fabric gives to netem (a test holds the two together): the formulas of iproute2's
normal.c, pareto.c and paretonormal.c. So a simulated delay has netem's distribution exactly, its cut tails and its
steps included; only which entry a frame gets is another generator's choice.
"""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

SIZE = 4096
SCALE = 8192
_MIN, _MAX = -32768, 32767
_PARETO_SHAPE = 3.0


@cache
def table(distribution: str) -> tuple[int, ...]:
    """The entries of `uniform`, `normal`, `pareto` or `paretonormal`. KeyError for another word."""
    make = _MAKE[distribution]
    return tuple(max(_MIN, min(_MAX, round(make((i + 0.5) / SIZE) * SCALE))) for i in range(SIZE))


def delay_ns(mean_ns: int, jitter_ns: int, entry: int) -> int:
    """netem's tabledist(): rounded in two steps, half away from zero. It may be negative."""
    product = (jitter_ns % SCALE) * entry
    rounded = (abs(product) + SCALE // 2) // SCALE
    return (rounded if product >= 0 else -rounded) + (jitter_ns // SCALE) * entry + mean_ns


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


_MAKE = {"uniform": _uniform, "normal": _normal, "pareto": _pareto, "paretonormal": _pareto_normal}
