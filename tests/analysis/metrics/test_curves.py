"""Curves of the notebooks: means by a column, with intervals for more than one run."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from matplotlib.figure import Figure

from analysis.metrics.estimate import estimate, means, protocol_curves


def table() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "protocol": ["b", "b", "b", "a"],
            "load": [2, 1, 2, 1],
            "cost": [3.0, 1.0, 5.0, 7.0],
        }
    )


def test_means_ascend_and_have_the_intervals_of_claims() -> None:
    found = means(table().query("protocol == 'b'"), "cost", "load")
    assert found["load"].tolist() == [1, 2]
    assert found["mean"].tolist() == [1.0, 4.0]
    assert math.isnan(found["half_width"][0]), "one run has no interval"
    assert found["half_width"][1] == pytest.approx(estimate([3.0, 5.0]).half_width)


def test_missing_values_are_left_out() -> None:
    found = means(pd.DataFrame({"load": [1, 1, 2], "cost": [2.0, math.nan, math.nan]}), "cost", "load")
    assert found["mean"][0] == 2.0
    assert math.isnan(found["mean"][1])


def test_there_is_one_line_for_each_protocol() -> None:
    axes = Figure().subplots()
    protocol_curves(axes, table(), "cost", "load", colours={"a": "C0", "b": "C1"}, names={"a": "A", "b": "B"})
    _, labels = axes.get_legend_handles_labels()
    assert labels == ["B", "A"]
