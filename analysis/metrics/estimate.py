"""Mean with its two-sided 95 % confidence interval by Student's t, over independent runs.

The quantile is computed: for a whole number of degrees of freedom the distribution has a closed form (Abramowitz and
Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4), which a test compares with a printed table. The interval
is exact for the mean of normal values, and close for the mean of any values with a finite variance.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import nan
from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes


CONFIDENCE = 0.95
LEAST_RUNS = 2
"""Fewest runs with an interval: one value has no variance."""

_HALVINGS = 200
"""Most halvings of an interval of floats: far more than a float has bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Estimate of a mean: it lies within `mean` ± `half_width` with a confidence of 95 %."""

    mean: float
    half_width: float
    runs: int

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width

    def __str__(self) -> str:
        return f"{self.mean:.4g} ± {self.half_width:.2g}"

    def as_dict(self) -> dict[str, float | int]:
        """Fields for expressions and claims."""
        return {
            "mean": self.mean,
            "half_width": self.half_width,
            "low": self.low,
            "high": self.high,
            "runs": self.runs,
        }


def estimate(values: Sequence[float]) -> Estimate:
    """Mean of at least LEAST_RUNS values, one of each independent run, with its interval."""
    count = len(values)
    assert count >= LEAST_RUNS
    error = statistics.stdev(values) / math.sqrt(count)
    return Estimate(mean=statistics.fmean(values), half_width=t_quantile(count - 1) * error, runs=count)


def estimate_text(value: object) -> str | None:
    """Text of an estimate in the form of Estimate.as_dict, after its `at` if it has one; None for any other value."""
    if not isinstance(value, dict) or not {"mean", "half_width", "runs"} <= value.keys():
        return None
    interval = str(Estimate(mean=value["mean"], half_width=value["half_width"], runs=value["runs"]))
    at = value.get("at")
    if at is None:
        return interval
    return f"{at:.4g}: {interval}" if isinstance(at, float) else f"{at}: {interval}"


@cache
def t_quantile(degrees: int, confidence: float = CONFIDENCE) -> float:
    """Two-sided quantile: the t with P(|T| <= t) = `confidence`."""
    low, high = 0.0, math.pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if _within(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def _within(theta: float, degrees: int) -> float:
    """P(|T| <= t), with t = sqrt(degrees) * tan(theta)."""
    cosine, sine = math.cos(theta), math.sin(theta)
    is_odd = degrees % 2 == 1
    term = cosine if is_odd else 1.0
    total = 0.0 if degrees == 1 else term
    for factor in range(3 if is_odd else 2, degrees - 1, 2):
        term *= cosine * cosine * (factor - 1) / factor
        total += term
    return (theta + sine * total) * 2 / math.pi if is_odd else sine * total


def means(table: pd.DataFrame, column: str, by: str) -> pd.DataFrame:
    """Columns `by`, `mean` and `half_width`: the mean of `column` for each value of `by`, ascending, and half of its
    95 % interval. One run alone has no interval; missing values are left out.
    """
    rows = []
    for at, values in table.groupby(by)[column]:
        known = values.dropna().tolist()
        found = estimate(known) if len(known) >= LEAST_RUNS else None
        rows.append((at, sum(known) / len(known) if known else nan, found.half_width if found else nan))
    return pd.DataFrame(rows, columns=[by, "mean", "half_width"])


def curve(axes: Axes, table: pd.DataFrame, column: str, by: str, *, colour: str, label: str, form: str = "o-") -> None:
    """One line with its intervals. `form`: matplotlib's marker and line."""
    found = means(table, column, by)
    axes.errorbar(found[by], found["mean"], found["half_width"], fmt=form, capsize=3, color=colour, label=label)


def protocol_curves(
    axes: Axes,
    table: pd.DataFrame,
    column: str,
    by: str,
    *,
    colours: Mapping[str, str],
    names: Mapping[str, str],
    form: str = "o-",
) -> None:
    """One line for each value of the table's column `protocol`, in order of appearance, and a legend."""
    for protocol in table["protocol"].unique():
        part = table[table["protocol"] == protocol]
        curve(axes, part, column, by, colour=colours[protocol], label=names[protocol], form=form)
    axes.legend()
