"""Means with their intervals: the quantiles against a printed table, the comparisons of claims, and curves."""

from __future__ import annotations

import math
import statistics
from random import Random
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from analysis.expression import Unknown, evaluate, parse
from analysis.metrics.estimate import estimate, estimate_text, means, protocol_curves, t_quantile

TABLE = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228,
    15: 2.131, 20: 2.086, 25: 2.060, 30: 2.042, 40: 2.021, 60: 2.000, 120: 1.980,
}  # fmt: skip
"""Two-sided, 95 %; Abramowitz and Stegun, table 26.10."""

ONE_PERCENT = {1: 63.657, 2: 9.925, 5: 4.032, 10: 3.169, 30: 2.750}


@pytest.mark.parametrize(
    ("degrees", "confidence", "quantile"),
    [(key, at, value) for at, table in ((0.95, TABLE), (0.99, ONE_PERCENT)) for key, value in table.items()],
)
def test_the_quantiles_are_those_of_the_printed_table(degrees: int, confidence: float, quantile: float) -> None:
    assert t_quantile(degrees, confidence) == pytest.approx(quantile, abs=0.0005)


def test_many_degrees_are_the_normal_distribution() -> None:
    assert t_quantile(100_000) == pytest.approx(statistics.NormalDist().inv_cdf(0.975), abs=1e-4)


def test_nineteen_of_twenty_intervals_hold_the_mean() -> None:
    """Of 2000 samples of ten normal values; five standard deviations of that count are 49."""
    rng = Random(1)
    found = [estimate([rng.gauss(3.0, 2.0) for _ in range(10)]) for _ in range(2000)]
    assert sum(one.low <= 3.0 <= one.high for one in found) == pytest.approx(1900, abs=49)


@given(st.lists(st.floats(min_value=-1e6, max_value=1e6), min_size=2, max_size=20))
def test_an_interval_surrounds_its_mean(values: list[float]) -> None:
    found = estimate(values)
    assert found.low <= found.mean <= found.high
    assert found.runs == len(values)
    assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-6)


def run(protocol: str, rate: float, delay: float, *, window: int | None = None) -> dict[str, Any]:
    parameters = {} if window is None else {"window": window}
    given = {"protocol": protocol, "rate_per_s": rate, "parameters": parameters}
    return {"given": given, "latency": {"mean_ms": delay}}


RUNS = {
    "runs": [
        *(run("atop", 1.0, 10.0), run("atop", 1.0, 12.0), run("atop", 2.0, 20.0), run("atop", 2.0, 24.0)),
        *(run("mbs", 1.0, 9.0, window=4), run("mbs", 1.0, 11.5, window=4)),
        *(run("mbs", 2.0, 21.0, window=8), run("mbs", 2.0, 24.5, window=8)),
    ]
}
for seed, one in enumerate(RUNS["runs"]):
    one["variant"] = {"seed": seed}


UNKNOWN = (
        ("where(runs)", "where takes a list and a condition"),
        ("where(runs.latency.mean_ms, true_ == 1)", "where takes a list of runs, not a list"),
        ("where(3, given == 1)", "where takes a list of runs, not 3"),
        ("where(runs, given.rate_per_s)", "1.0 is neither true nor false"),
        ("where(runs, given.parameters.window == 4)", "given.parameters has no window"),
        ("where(runs, given.protcol == 'atop')", "given has no protcol; did you mean protocol?"),
        ("estimate(3)", "estimate takes a list of values, and perhaps a list that groups them"),
        ("estimate(where(runs, latency.mean_ms == 9).latency.mean_ms)",
         "an interval needs at least 2 runs, and there are 1"),
        ("estimate(runs.latency.mean_ms, where(runs, given.protocol == 'atop').given.rate_per_s)",
         "estimate takes a second list with a number or a text for each value"),
        ("estimate(runs.given.protocol)", "'atop' is not a number"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("len(where(runs, given.protocol == 'atop'))", 4),
        ("where(runs, given.protocol == 'atop' and given.rate_per_s <= 1).latency.mean_ms", [10.0, 12.0]),
        ("where(runs, given.protocol == 'mbs' and given.parameters.window == 8).latency.mean_ms", [21.0, 24.5]),
        ("where(where(runs, latency.mean_ms > 20), given.protocol == 'atop')[0].latency.mean_ms", 24.0),
        ("mean(where(runs, not (given.protocol == 'mbs')).latency.mean_ms)", 16.5),
        ("estimate(where(runs, given.protocol == 'atop').latency.mean_ms).mean", 16.5),
        ("estimate(where(runs, given.protocol == 'atop').latency.mean_ms).runs", 4),
        ("estimate(runs.latency.mean_ms, runs.given.rate_per_s).mean", [10.625, 22.375]),
        ("estimate(runs.latency.mean_ms, runs.given.protocol).at", ["atop", "mbs"]),
        ("max(estimate(runs.latency.mean_ms, runs.given.rate_per_s).high) > 22.4", True),
        ("len(where(runs, given.protocol == 'none'))", 0),
        *((text, Unknown(reason=reason)) for text, reason in UNKNOWN),
    ],
)
def test_claims_choose_runs_and_estimate(text: str, value: Any) -> None:
    assert evaluate(parse(text), RUNS) == value


def test_one_curve_below_another_by_more_than_the_uncertainty() -> None:
    """Differences seed by seed: an effect of the seed that both curves share does not widen the interval."""
    delays = "where(runs, given.protocol == '{}').latency.mean_ms"
    difference = f"{delays.format('mbs')} - {delays.format('atop')}"
    found = evaluate(parse(f"estimate({difference}, where(runs, given.protocol == 'mbs').given.rate_per_s)"), RUNS)
    assert [(one["at"], one["mean"], one["runs"]) for one in found] == [(1.0, -0.75, 2), (2.0, 0.75, 2)]
    assert [one["half_width"] for one in found] == pytest.approx([12.7062 * 0.25] * 2, rel=1e-4)


def test_estimates_are_shown_with_their_intervals() -> None:
    assert estimate_text(estimate([0.0160, 0.0165, 0.0170]).as_dict()) == "0.0165 ± 0.0012"
    assert estimate_text({**estimate([1.0, 3.0]).as_dict(), "at": 60.0}) == "60: 2 ± 13"
    assert estimate_text({**estimate([1.0, 1.0]).as_dict(), "at": "atop"}) == "atop: 1 ± 0"
    assert estimate_text({"mean": 3}) is None
    assert estimate_text([1, 2]) is None


TABLE_OF_RUNS = pd.DataFrame({"protocol": ["b", "b", "b", "a"], "load": [2, 1, 2, 1], "cost": [3.0, 1.0, 5.0, 7.0]})


def test_means_of_curves_ascend_and_have_the_intervals_of_claims() -> None:
    found = means(TABLE_OF_RUNS.query("protocol == 'b'"), "cost", "load")
    assert found["load"].tolist() == [1, 2]
    assert found["mean"].tolist() == [1.0, 4.0]
    assert math.isnan(found["half_width"][0]), "one run has no interval"
    assert found["half_width"][1] == pytest.approx(estimate([3.0, 5.0]).half_width)


def test_missing_values_are_left_out_of_a_curve() -> None:
    found = means(pd.DataFrame({"load": [1, 1, 2], "cost": [2.0, math.nan, math.nan]}), "cost", "load")
    assert found["mean"][0] == 2.0
    assert math.isnan(found["mean"][1])


def test_there_is_one_line_for_each_protocol() -> None:
    axes = Figure().subplots()
    protocol_curves(axes, TABLE_OF_RUNS, "cost", "load", colours={"a": "C0", "b": "C1"}, names={"a": "A", "b": "B"})
    assert axes.get_legend_handles_labels()[1] == ["B", "A"]
