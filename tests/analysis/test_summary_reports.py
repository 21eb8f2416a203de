"""Runs whose cores report: mutual exclusion, clocks, stages; from made run directories to summary.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from analysis.checks.properties import NO_MESSAGE_GIVEN
from analysis.report.page import section, write_report
from analysis.summary import analyze
from node.trace import Event, GroupReport, Level, Notice
from tests.analysis.report.tables import facts
from tests.analysis.runs import START_NS, Flag, Kind, MadeRun

pytestmark = pytest.mark.spark

MILLISECOND = 1_000_000


def finish(run: MadeRun, at_ns: int) -> None:
    for member in range(len(run.nodes)):
        run.note(member, Event.STOP, at_ns, detail=1)


def mutual_exclusion(run: MadeRun, *, turns: int, overlap: bool) -> None:
    """Members take turns, 10 ms each; requests are made long before. With `overlap`, the last one enters too early."""
    for member in range(len(run.nodes)):
        run.note(member, Event.START, START_NS - MILLISECOND)
    for turn in range(turns):
        member, number = turn % len(run.nodes), turn // len(run.nodes) + 1
        at_ns = START_NS + 10 * turn * MILLISECOND
        run.submit(member, number, at_ns - 1_000 * (turn % 2), size=8)
        run.note(member, Event.REPORT, at_ns - 1_000 * (turn % 2), detail=GroupReport.TAKEN, value=number)
        enter_ns = at_ns + 3 * MILLISECOND - (8 * MILLISECOND if overlap and turn == turns - 1 else 0)
        run.deliver(member, member, number, max(enter_ns, at_ns))
        run.note(member, Event.REPORT, at_ns + 12 * MILLISECOND, detail=Notice.LEFT, value=number)
        run.datagram(at_ns, member, {}, kind=Kind.RELIABLE_DATA, inner=Kind.MUTEX_REQUEST, flags=Flag.CONTROL)
    finish(run, START_NS + 10 * (turns + 10) * MILLISECOND)


@pytest.fixture(scope="module")
def exclusive(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    run = MadeRun()
    run.manifest["promises"] = ["integrity", "mutual_exclusion", "grant_order", "service", "indivisible"]
    run.manifest["nodes"] = [
        {"node": "p1/n1", "incarnation": 1, "exit": 0, "handled": 100, "core_ns": 2_000_000, "delivered": 40},
        {"node": "p1/n2", "incarnation": 1, "exit": 0, "handled": 50, "core_ns": 2_000_000},
        {"node": "p1/n3", "incarnation": 1, "exit": 0},
        {"node": "p1/n4", "incarnation": 1, "exit": 0},
    ]
    run.manifest["calls"] = [{"caller": "p1/n1", "callee": "p1/n2", "after_ns": 10 * MILLISECOND, "every": 1}]
    mutual_exclusion(run, turns=20, overlap=True)
    path = run.write(tmp_path_factory.mktemp("mutex") / "run")
    return path, analyze(path, spark=spark, on_progress=lambda text: None)


def test_a_section_inside_another_fails_with_both_in_the_witness(exclusive: tuple[Path, dict[str, Any]]) -> None:
    properties = exclusive[1]["properties"]
    entry = properties["mutual_exclusion"]

    assert (entry["verdict"], entry["checked"], entry["violations"]) == ("fail", 20, 1)
    assert [place["position"] for place in entry["witness"]["places"]] == [5, 5]
    assert entry["witness"]["sentence"].startswith("entered while another was inside: p1/n3 #5")
    assert exclusive[1]["verdict"] == "fail"
    assert (properties["service"]["verdict"], properties["service"]["checked"]) == ("pass", 20)
    grants = properties["grant_order"]  # its requests are sent, but nobody reports that it was given one
    assert (grants["verdict"], grants["checked"], grants["reason"]) == ("unknown", 20, NO_MESSAGE_GIVEN)
    assert "clock_monotone" not in properties
    unchecked = properties["indivisible"]
    assert (unchecked["verdict"], unchecked["promised"]) == ("unknown", True)
    assert unchecked["reason"].startswith("the analysis knows no property 'indivisible'")


def test_nothing_is_expected_of_those_who_promise_no_agreement(exclusive: tuple[Path, dict[str, Any]]) -> None:
    path, summary = exclusive
    page = write_report(path).read_text()

    assert summary["messages"]["deliveries_expected"] is None
    assert summary["properties"]["agreement"]["verdict"] == "fail"
    assert not summary["properties"]["agreement"]["promised"]
    assert '<span class="verdict aside">does not hold</span>' in page
    assert "Served against real time" in page


def test_inner_kinds_and_processing_are_counted(exclusive: tuple[Path, dict[str, Any]]) -> None:
    processing = exclusive[1]["processing"]

    assert exclusive[1]["traffic"]["by_inner"] == [
        {"kind": "RELIABLE_DATA", "inner": "MUTEX_REQUEST", "datagrams": 20, "copies": 0}
    ]
    assert processing["per_message_us"] == pytest.approx(30)
    assert processing["per_delivery_us"] == pytest.approx(50)
    assert [entry["member"] for entry in processing["by_member"]] == ["p1/n1", "p1/n2"]


def test_the_order_of_grants_is_set_against_real_time(exclusive: tuple[Path, dict[str, Any]]) -> None:
    anomalies = exclusive[1]["anomalies"]

    assert (anomalies["order"], anomalies["messages"], anomalies["every"]) == ("grants", 20, 1)
    assert anomalies["by_gap"][0]["opposite"] == 0
    assert anomalies["by_gap"][0]["pairs"] == 150
    assert anomalies["calls"] == {"pairs": 5, "opposite": 0, "share": 0.0}


@pytest.fixture(scope="module")
def clocks(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """No submissions. Two clocks 2 ms apart, later 1 ms; messages in stages at a third member."""
    run = MadeRun("name: three\npartitions:\n  p1: {nodes: 3}\n")
    run.manifest["promises"] = ["clock_monotone"]
    end_ns = START_NS + 1000 * MILLISECOND
    for member in range(3):
        run.note(member, Event.START, START_NS - MILLISECOND)
    for at_ms in (0, 50, 600, 1000):
        at_ns = START_NS + at_ms * MILLISECOND
        ahead_ns = 2 * MILLISECOND if at_ms < 50 else MILLISECOND
        for member, shown_ns in ((0, at_ns), (1, at_ns + ahead_ns)):
            run.note(member, Event.REPORT, at_ns, detail=Notice.CLOCK, value=shown_ns)
    for seq, (preacknowledged_ms, acknowledged_ms) in enumerate(((5, 10), (5, 11), (6, 13)), start=1):
        at_ns = START_NS + seq * MILLISECOND
        for notice, later_ms in (
            *((Notice.ACCEPTED, 0), (Notice.PREACKNOWLEDGED, preacknowledged_ms)),
            (Notice.ACKNOWLEDGED, acknowledged_ms),
        ):
            run.note(2, Event.REPORT, at_ns + later_ms * MILLISECOND, detail=notice, extra=0, value=seq)
    run.records[2, 1].sort(key=lambda record: record.at_ns)
    for most in (3, 7):
        run.note(2, Event.REPORT, end_ns, detail=Notice.RESIDENT, extra=2, value=most)
    run.datagram(START_NS, 0, {1: [START_NS + 100_000]}, kind=Kind.CLOCKS_TIME, flags=Flag.CONTROL)
    finish(run, end_ns + MILLISECOND)
    path = run.write(tmp_path_factory.mktemp("clocks") / "run")
    return path, analyze(path, spark=spark, on_progress=lambda text: None)


def test_a_run_without_submissions_passes_on_its_clocks(clocks: tuple[Path, dict[str, Any]]) -> None:
    _, summary = clocks

    assert (summary["verdict"], summary["reasons"]) == ("pass", [])
    assert summary["properties"]["clock_monotone"]["checked"] == 8
    assert (summary["messages"]["submitted"], summary["latency"]["p50_ms"]) == (0, None)


def test_skew_stages_and_the_fullest_buffer_are_the_truth(clocks: tuple[Path, dict[str, Any]]) -> None:
    skew, stages = clocks[1]["clocks"], clocks[1]["stages"]

    assert (skew["skew_max_ns"], skew["skew_max_after_ns"]) == (2 * MILLISECOND, MILLISECOND)
    assert skew["within"][9] == {"bound_ns": MILLISECOND, "after_ns": 50 * MILLISECOND}
    assert stages["accepted"] == 3
    assert stages["preacknowledged"] == {"count": 3, "p50_ms": 5.0, "p90_ms": pytest.approx(5.8), "max_ms": 6.0}
    assert stages["acknowledged"]["p50_ms"] == 11.0
    assert clocks[1]["resident"] == {"max": 7, "by_member": [{"member": "p1/n3", "messages": 7}]}


def test_the_report_tells_of_clocks_and_stages(clocks: tuple[Path, dict[str, Any]]) -> None:
    path, summary = clocks
    told = facts(section("reported", summary))

    assert told["Largest difference of two synchronised clocks"][0] == "2.00 ms"
    assert told["Once settled"][0] == "1.00 ms"
    assert told["Accepted until pre-acknowledged"][0] == "5.00 ms"
    assert told["Most messages in one member's buffers"][0] == "7"
    assert "What the protocol reported and cost" in write_report(path).read_text()


def test_who_comes_back_owes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """n2 crashes and returns: its deliveries are counted, but only those of n1 are expected."""
    run = MadeRun("name: two\npartitions:\n  p1: {nodes: 2}\n")
    for member, incarnation in ((0, 1), (1, 1), (1, 2)):
        run.note(member, Event.START, START_NS + incarnation, recorder=incarnation)
    for number in (1, 2):
        at_ns = START_NS + number * MILLISECOND
        run.submit(0, number, at_ns)
        for member, incarnation in ((0, 1), (1, number)):
            fields = {"detail": Level.AGREED, "origin": 0, "incarnation": 1, "number": number, "value": 1}
            run.note(member, Event.DELIVER, at_ns + 1000 * incarnation, recorder=incarnation, **fields)
    run.datagram(START_NS, 0, {1: [START_NS + 100_000]}, payload=b"x" * 160)
    for member, incarnation in ((0, 1), (1, 2)):
        run.note(member, Event.STOP, START_NS + 10 * MILLISECOND, recorder=incarnation, detail=1)
    summary = analyze(run.write(tmp_path / "run"), spark=spark, on_progress=lambda text: None)
    messages = summary["messages"]

    assert (messages["deliveries"], messages["deliveries_full"], messages["deliveries_expected"]) == (4, 2, 2)
    # 36 bytes of envelope and message; the application submitted 100 of the 160.
    assert summary["traffic"]["header_bytes_mean"] == 96
