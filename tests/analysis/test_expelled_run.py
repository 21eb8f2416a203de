"""A whole run whose last member was frozen for too long: simulated, recorded, analysed, shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from analysis.checks.properties import Incarnation
from analysis.independent.compare import compare_run
from analysis.inputs import read_run
from analysis.report.page import write_report
from analysis.spacetime.compose import compose
from analysis.spacetime.model import What, Window
from analysis.spacetime.read import Reader
from analysis.spacetime.svg import spacetime_drawing
from analysis.summary import analyze
from collector.records import Event
from node.registry import PROTOCOLS
from testbed.console import Console
from testbed.run.perform import Overrides, apply_overrides, perform
from testbed.spec import experiment as spec
from tests.testbed.orderbed_command import manifest_of, write_experiment

pytestmark = pytest.mark.spark

FAULTS = "\n  - {at: 500 ms, for: 3 s, pause: {targets: [p1/n3]}}\n"
IMPATIENT = "protocol: {name: sequencer, parameters: {reliable: {suspect_after: 1 s}}}"


def test_the_manifest_the_verdicts_the_report_and_the_diagram_say_it(spark: SparkSession, tmp_path: Path) -> None:
    path = write_experiment(tmp_path, world="sim", duration="5 s", faults=FAULTS)
    path.write_text(path.read_text().replace("protocol: {name: sequencer}", IMPATIENT))
    overrides = Overrides(world="sim", runs=tmp_path / "runs", name="a", analyze=False)
    run = perform(
        apply_overrides(spec.load(path, protocols=PROTOCOLS), overrides), overrides, Console(quiet=True)
    ).directory
    manifest = manifest_of(run)
    summary = analyze(run, spark=spark, on_progress=lambda text: None)

    ends = {node["node"]: (node["exit"], node["ended"], node["drained"]) for node in manifest["nodes"]}
    assert ends == {"p1/n1": (0, False, True), "p1/n2": (0, False, True), "p1/n3": (0, False, True)}, (
        "its process went on as the next incarnation"
    )
    assert manifest["phases"]["drained_ns"] is not None
    promised = {name: entry["verdict"] for name, entry in summary["properties"].items() if entry["promised"]}
    assert promised == dict.fromkeys(PROTOCOLS["sequencer"].promises, "pass"), summary["reasons"]
    assert all(row.agrees for row in compare_run(read_run(run), summary))
    assert "ended by the others: counts as crashed" in write_report(run).read_text()
    reader = Reader(run)
    ended_ns = reader.first_event(Event.ENDED)
    assert ended_ns is not None
    diagram = compose(reader.scene(window := Window(ended_ns - 5_000_000, ended_ns + 5_000_000)), window)
    (mark,) = [mark for mark in diagram.marks if mark.what is What.ENDED]
    assert (mark.recorder, mark.at_ns) == (Incarnation(2, 1), ended_ns)
    assert "counts as crashed" in mark.words
    assert (diagram.rows[2].incarnations[0].end, diagram.rows[2].incarnations[0].until_ns) == ("ended", ended_ns)
    assert "p1/n3" in spacetime_drawing(diagram, "d")
