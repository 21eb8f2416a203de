"""Curves with intervals, for the notebooks: `means` of a sweep's table, and one line for each protocol."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan
from typing import TYPE_CHECKING

import pandas as pd

from analysis.metrics.estimate import LEAST_RUNS, estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def means(table: pd.DataFrame, column: str, by: str) -> pd.DataFrame:
    """Columns `by`, `mean` and `half_width`: the mean of `column` for each value of `by`, ascending, and half of its
    95 % interval. One run alone has no interval; missing values are left out.
    """
    rows = []
    for at, values in table.groupby(by)[column]:
        known = values.dropna().tolist()
        told = estimate(known) if len(known) >= LEAST_RUNS else None
        rows.append((at, sum(known) / len(known) if known else nan, told.half_width if told else nan))
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
    """One line for each value of the table's column `protocol`, in the order in which they come, and a legend."""
    for protocol in table["protocol"].unique():
        part = table[table["protocol"] == protocol]
        curve(axes, part, column, by, colour=colours[protocol], label=names[protocol], form=form)
    axes.legend()
