"""The report's time axis: fault windows and series."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.report import plots
from analysis.report.files import RunFiles, read_run, usable
from analysis.report.time_axis import (
    CLASSES,
    MAX_POINTS,
    FaultWindow,
    Phases,
    axis_end_s,
    latency_series,
    node_lines,
    phases_of,
    traffic_series,
    windows_of,
)
from tests import report_runs

NO_PHASES = Phases(load_end_s=None, drained_s=None, start_ns=None)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    return read_run(report_runs.quickstart(tmp_path_factory.mktemp("run") / "quickstart"))


@pytest.fixture(scope="module")
def windows(run: RunFiles) -> list[FaultWindow]:
    return windows_of(run, phases_of(run.manifest))


def latency_table(t_s: Any, p50: Any) -> pd.DataFrame:
    values = np.asarray(p50, dtype=float)
    return pd.DataFrame({"t_s": t_s, "count": 1.0, "p50_ms": values, "p99_ms": values * 2, "max_ms": values * 3})


def test_times_count_from_the_start_of_the_workload(run: RunFiles) -> None:
    phases = phases_of(run.manifest)
    assert phases.load_end_s == pytest.approx(20.0)
    assert phases.drained_s == pytest.approx(20.412)


def test_a_run_that_never_started_has_no_times() -> None:
    phases = phases_of({"phases": {"start_ns": None, "end_ns": 5_000_000_000}})
    assert phases == NO_PHASES
    assert phases.seconds(7_000_000_000) is None


def test_a_window_lasts_from_its_effect_to_the_effect_of_its_end(windows: list[FaultWindow]) -> None:
    loss = windows[0]
    assert loss.lasts
    times = (loss.asked_s, loss.effective_s, loss.until_s, loss.late_ms)
    assert times == pytest.approx((4.0, 4.0027, 9.003, 2.7))


def test_what_only_ends_another_fault_is_no_window(windows: list[FaultWindow]) -> None:
    """Lines 2 and 3 restore ports, and 5 resumes: faults are numbered without them."""
    assert [(window.number, window.kind) for window in windows] == [("0", "impair"), ("1", "impair"), ("2", "pause")]


def edited(path: Path, before: str, after: str) -> list[FaultWindow]:
    """Windows of a run whose faults are edited."""
    file = report_runs.quickstart(path) / "faults.jsonl"
    file.write_text(file.read_text().replace(before, after))
    run = read_run(path)
    return windows_of(run, phases_of(run.manifest))


def test_an_impairment_that_replaces_another_is_a_window(tmp_path: Path) -> None:
    assert edited(tmp_path / "run", '"restores": true', '"restores": false')[2].lasts


def test_windows_say_what_and_where(windows: list[FaultWindow]) -> None:
    assert (windows[0].what, windows[0].where) == ("5 ms ± 1 ms, 10 % loss", "to p1/n3")
    assert (windows[1].what, windows[1].where) == ("5 ms, 500 kbit/s, queue 20 frames", "to p1/n2")
    assert (windows[2].what, windows[2].where) == ("pause", "p1/n4")


def test_a_fault_at_all_nodes_is_at_every_node(tmp_path: Path) -> None:
    everyone = '["p1/n1", "p1/n2", "p1/n3", "p1/n4"]'
    assert edited(tmp_path / "run", '["p1/n4"]', everyone)[2].where == "every node"


def test_a_cut_names_its_sides(tmp_path: Path) -> None:
    run = read_run(report_runs.three_partitions(tmp_path / "run"))
    cut = windows_of(run, phases_of(run.manifest))[0]
    assert (cut.what, cut.where) == ("cut p1 (10) | p2, p3 (20)", "")


def test_the_axis_ends_with_the_drain_or_the_last_point(run: RunFiles, windows: list[FaultWindow]) -> None:
    series = latency_series(run.latency)
    assert axis_end_s(phases_of(run.manifest), [series], windows) == pytest.approx(20.412)
    assert axis_end_s(NO_PHASES, [series], []) == pytest.approx(20.4)
    assert axis_end_s(NO_PHASES, [], []) == 1.0


def test_a_bin_without_deliveries_is_a_gap() -> None:
    series = latency_series(latency_table([0.0, 0.2, 0.4, 1.0, 1.2], [5, 5, 5, 7, 7]))
    assert series.step_s == pytest.approx(0.2)
    assert np.isnan(series.lines["p50_ms"]).tolist() == [False, False, False, True, True, False, False]
    counts_nothing = latency_table([0.0, 0.2, 0.4], [5, 5, 5]).assign(count=[1, 0, 1])
    assert np.isnan(latency_series(counts_nothing).lines["p50_ms"]).tolist() == [False, True, False]


def test_a_long_run_is_thinned_and_keeps_its_worst() -> None:
    p50 = np.full(5 * MAX_POINTS, 5.0)
    p50[777] = 900.0
    series = latency_series(latency_table(np.arange(len(p50)) * 0.2, p50))
    assert (len(series), series.merged) == (MAX_POINTS, 5)
    assert series.step_s == pytest.approx(1.0)
    assert series.lines["max_ms"].max() == 2700.0
    assert series.lines["p50_ms"].max() == 5.0
    assert series.lines["count"].sum() == len(p50)


def test_traffic_is_told_per_second_and_classes_without_rows_are_zero() -> None:
    rows = [(0.0, "application", 10, 5000), (0.2, "application", 20, 9000), (0.2, "dummy", 1, 60)]
    series = traffic_series(pd.DataFrame(rows, columns=["t_s", "class", "datagrams", "wire_bytes"]))
    assert series.lines["application"].tolist() == pytest.approx([50.0, 100.0])
    assert series.lines["dummy"].tolist() == pytest.approx([0.0, 5.0])
    assert set(CLASSES) == set(series.lines)


def test_a_node_that_sends_nothing_for_a_while_counts_in_the_mean_of_merged_bins() -> None:
    bins = [number for number in range(2 * MAX_POINTS) if number % 4 != 3]
    table = pd.DataFrame({"t_s": np.array(bins) * 0.2, "node": "p1/n1", "sent_bytes": 100.0})
    series = node_lines(table)
    assert (len(series), series.merged) == (MAX_POINTS, 2)
    assert series.lines["p1/n1"][:6].tolist() == pytest.approx([500.0, 250.0] * 3)


def test_no_rows_make_an_empty_series() -> None:
    assert len(latency_series(latency_table([], []))) == 0
    empty = pd.DataFrame({"t_s": [], "class": [], "datagrams": [], "wire_bytes": []})
    assert len(traffic_series(empty)) == 0


ANY_FLOAT = st.floats(width=64) | st.floats(-1, 100) | st.sampled_from([0.0, 0.2, 0.4, 1e300, -5.0, math.inf])


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(ANY_FLOAT, ANY_FLOAT, ANY_FLOAT, ANY_FLOAT, ANY_FLOAT), min_size=1, max_size=12),
    narrow=st.booleans(),
)
def test_no_numbers_in_a_table_stop_a_plot(rows: list[tuple[float, ...]], narrow: bool) -> None:
    """A value that cannot be drawn is left out; every drawn coordinate is a number."""
    latency_table = pd.DataFrame(rows, columns=["t_s", "count", "p50_ms", "p99_ms", "max_ms"])
    latency = latency_series(usable("latency_series", latency_table))
    traffic_rows = [(row[0], CLASSES[i % 4], row[1], row[2]) for i, row in enumerate(rows)]
    traffic_table = pd.DataFrame(traffic_rows, columns=["t_s", "class", "datagrams", "wire_bytes"])
    traffic = traffic_series(usable("traffic_series", traffic_table))
    surface = plots.frame(axis_end_s(NO_PHASES, (latency, traffic), ()), 200, narrow=narrow)
    cdf = pd.DataFrame([("n", row[0], row[1]) for row in rows], columns=["member_name", "latency_ms", "ratio"])
    pictures = [
        plots.latency_over_time(latency, (), NO_PHASES, surface) if len(latency) else "",
        plots.traffic_over_time(traffic, (), NO_PHASES, surface) if len(traffic) else "",
        plots.latency_cdf(usable("latency_cdf", cdf), lambda _: 0),
    ]
    for picture in pictures:
        assert "nan" not in picture.replace("nanosecond", "")
        assert "inf" not in picture


@pytest.mark.parametrize("asked_s", [0.5, 5.0, 9.0, 9.9])
def test_the_label_of_a_fault_covers_neither_its_bar_nor_its_ring(asked_s: float) -> None:
    phases = Phases(load_end_s=10.0, drained_s=10.0, start_ns=0.0)
    window = FaultWindow(
        number="4", kind="impair", what="50 % loss", where="to p1/n2", asked_s=asked_s, issued_s=asked_s,
        effective_s=asked_s + 0.005, until_s=None, lasts=True,
    )  # fmt: skip
    drawn = str(plots.fault_lanes([window], phases, 10.0, narrow=False, ticks=False))
    (ring,) = (float(x) for x in re.findall(r'<circle[^>]*cx="([\d.]+)"', drawn))
    found = re.search(r'<text[^>]*x="([\d.]+)"[^>]*lane-label[^>]*>([^<]+)<', drawn) or re.search(
        r'<text[^>]*lane-label[^>]*x="([\d.]+)"[^>]*>([^<]+)<', drawn
    )
    assert found is not None, drawn
    left, right = float(found[1]), float(found[1]) + 7 * len(found[2])
    assert left > ring + 3.5 or right < ring - 3.5
    assert left >= 0
