"""Sweeps of simulations: the tables of the job, its report of a run that breaks a promise, and the same numbers as a
whole run with capture and analysis.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from analysis.metrics import sweep_rows
from analysis.run import Sweep
from node.registry import PROTOCOLS
from testbed.console import Console
from testbed.run.claims import Selection, run_claims
from testbed.run.perform import Overrides, load_experiment, perform
from testbed.run.sweep import Point, run_sweep
from testbed.sim.point import measure
from testbed.spec import experiment as spec
from topologies.formats.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXT = """\
name: curves
question: Which is faster?
topology: {partitions: {p1: {nodes: 3, bus: {rate: 10 Mbit/s}}, p2: {nodes: 2}}, links: [{between: [p1, p2]}]}
impairments: {"*": {to-node: {delay: 1 ms}}}
protocol: {name: sequencer}
dissemination: unicast
workload: {kind: poisson, rate: 20 /s, size: 392 B, rate_churn: {share: 20 %, length: 1 s, rise: 40 %}}
duration: 1 s
world: sim
"""
SWEEP = """\
sweep:
  protocol: [{name: sequencer}, {name: lamport}]
  seeds: 3
claims:
  - id: faster
    paper: "002"
    statement: The sequencer is faster than Lamport's order.
    value: less
    ours: >-
      estimate(where(runs, given.protocol == 'sequencer').latency.normalised_mean
      - where(runs, given.protocol == 'lamport').latency.normalised_mean)
    accept: ours.high < 0
"""

pytestmark = pytest.mark.spark


def write(folder: Path, text: str) -> str:
    path = folder / "curves.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def job(name: str, folder: Path, spark: SparkSession, *, quiet: bool = True) -> list[Point]:
    def never(point: Point) -> None:
        pytest.fail(f"{point.label} was a whole run")

    overrides = Overrides(runs=folder / "runs")
    return run_sweep(name, Console(quiet=quiet), never, overrides=overrides, spark=spark, is_job=True)


TIMEWARP = """timewarp, parameters: {gvt_every: 10 ms, service: {
  application: counter, processing: 3 ms, report_costs: true, report_state: true}}"""


@pytest.mark.parametrize(
    ("protocol", "dissemination"),
    [("sequencer", "unicast"), ("lamport", "multicast"), pytest.param(TIMEWARP, "multicast", id="timewarp")],
)
def test_a_run_in_memory_and_through_its_capture_are_measured_alike(
    protocol: str, dissemination: str, tmp_path: Path, spark: SparkSession
) -> None:
    text = TEXT.replace("unicast", dissemination).replace("sequencer", protocol)
    experiment = spec.loads(text, protocols=PROTOCOLS)
    summary = perform(experiment, Overrides(runs=tmp_path), Console(quiet=True), spark=spark).summary
    assert summary is not None
    result = measure(experiment)
    for section in ("messages", "latency", "load"):
        assert _rounded(result[section]) == {name: summary[section][name] for name in result[section]}, section
    assert (result["ordering"] is None) == (protocol is not TIMEWARP)
    assert _rounded(result["ordering"]) == summary["ordering"]
    promised = {name: entry for name, entry in summary["properties"].items() if entry["promised"]}
    assert result["properties"] == promised
    assert (result["verdict"], result["doubts"]) == (summary["verdict"], [])


def test_a_job_keeps_a_row_for_each_run(tmp_path: Path, spark: SparkSession) -> None:
    name = write(tmp_path, TEXT + SWEEP)
    points = job(name, tmp_path, spark)
    (kept,) = (tmp_path / "runs" / "curves").iterdir()
    rows = sweep_rows.read(kept)
    assert [point.variant for point in points] == [row["variant"] for row in rows]
    assert [(row["given"]["protocol"], row["point"]) for row in rows] == [
        (protocol, 3 * number + seed) for number, protocol in enumerate(("sequencer", "lamport")) for seed in range(3)
    ]
    assert len({row["seed"] for row in rows}) == 3
    assert {row["verdict"] for row in rows} == {"pass"}
    frame = Sweep.newest("curves", tmp_path / "runs").frame(seed="variant.seed", delay="latency.normalised_mean")
    assert list(frame["seed"]) == [row["seed"] for row in rows]
    assert list(frame["delay"]) == [row["latency"]["normalised_mean"] for row in rows]


def test_a_run_that_fails_is_named_and_can_be_run_alone(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its file depends on no other, and gives exactly the same run."""
    name = write(tmp_path, TEXT + "expect: latency.p99_ms < 3\nsweep: {workload.rate: [1 /s, 90 /s], seeds: 2}\n")
    points = job(name, tmp_path, spark, quiet=False)
    failed = [point for point in points if point.verdict == "fail"]
    assert failed
    said = capsys.readouterr().err
    for point in failed:
        assert (
            f"workload.rate = {point.variant['workload.rate']}, seed = {point.variant['seed']}: latency.p99_ms" in said
        )
        assert f"--world sim --seed {point.variant['seed']}" in said
    files = sorted((tmp_path / "runs" / "curves").glob("*.yaml"))
    assert len(files) == len(failed)
    alone = measure(load_experiment(str(files[0]), Overrides(world="sim")))
    assert alone["latency"] == failed[0].summary["latency"]
    assert alone["verdict"] == "fail"


def test_a_claim_holds_over_the_rows_of_a_job(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("testbed.run.sweep._session", lambda: nullcontext(spark))
    selection = Selection(experiment=write(tmp_path, TEXT + SWEEP))
    overrides = Overrides(runs=tmp_path / "runs")
    (row,) = run_claims(selection, Console(quiet=True), overrides=overrides, is_job=True)
    assert (row.verdict, row.world) == ("pass", "sim")
    assert row.ours["high"] < 0
    assert row.ours["runs"] == 3


def test_a_job_simulates_and_nothing_else(tmp_path: Path, spark: SparkSession) -> None:
    name = write(tmp_path, TEXT.replace("world: sim", "world: netns") + SWEEP)
    with pytest.raises(InputError, match="--spark simulates every run in memory; say --world sim, too"):
        job(name, tmp_path, spark)
    assert not (tmp_path / "runs").exists()


def _rounded(value: Any) -> Any:
    """A value rounded like the summary's numbers."""
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value
