"""Whole run directories with a known truth, through Spark to summary.json."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest
from pyspark.sql import SparkSession

from analysis import schema
from analysis.errors import AnalysisError
from analysis.expression import Names, summary_names
from analysis.independent.compare import compare_run
from analysis.inputs import IDLE_NS, LIVED_NS, read_run
from analysis.run import Run
from analysis.summary import analyze
from collector.records import Notice, PortDirection
from node.trace import MAX_RECORDS, Event, encode_trace
from testbed.console import Console
from testbed.run.perform import analyze_and_report
from tests.analysis.runs import (
    GROUP,
    START_NS,
    Flag,
    Kind,
    MadeRun,
    Sighting,
    Truth,
    igmp_frame,
    ordered,
    trace_frame,
)
from tests.testbed.orderbed_command import ORDERBED, PATIENCE_S, wait_for

pytestmark = pytest.mark.spark

NAMES = ("p1/n1", "p1/n2", "p1/n3", "p1/n4")
EVERY_NS = 2_500_000
MESSAGES = 1600

TOPOLOGY = """
name: four
partitions:
  p1: {nodes: 4}
impairments:
  p1/n2: {to-node: {delay: 5 ms, loss: 10 %}}
"""


def delay_ns(sender: int, receiver: int) -> int:
    return 5_100_000 if receiver == 1 else 100_000


class Lossy(NamedTuple):
    path: Path
    truth: Truth
    run: MadeRun
    summary: dict[str, Any]


said: list[str] = []


def contents(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def lossy(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lossy:
    """Four members; n2 behind 5 ms and 10 % loss; some dummies, control, retransmissions and foreign frames."""
    run = MadeRun(TOPOLOGY)
    truth = ordered(run, messages=MESSAGES, every_ns=EVERY_NS, delay_ns=delay_ns, loss={1: 0.1}, seed=7)
    for turn in range(30):
        at_ns = START_NS + 1_000_000 + turn * 100_000_000
        run.datagram(at_ns, 0, {m: [at_ns + 100_000] for m in (2, 3)}, flags=Flag.DUMMY, payload=b"")
        nack: dict[str, Any] = {"kind": Kind.RELIABLE_NACK, "flags": Flag.CONTROL, "payload": b""}
        run.datagram(at_ns + 100, 1, {3: [at_ns + 90_000]}, to=3, **nack)
        run.datagram(at_ns + 200, 2, {m: [at_ns + 100_200] for m in (0, 3)}, flags=Flag.RETRANSMISSION)
    for member, node in enumerate(run.nodes):
        run.sightings.append(Sighting(START_NS - 500_000, member, PortDirection.INBOUND, igmp_frame(node)))
    run.manifest["expect"] = ["latency.max_ms < 6", "latency.p50_ms <= 0.01", "latency.p50_sm <= 1"]
    counters = {"sent_frames": truth.arrivals[1], "delay_line_dropped_frames": truth.lost[1] + 64}
    run.manifest["counters"] = [{"node": "p1/n2", "direction": "to-node", **counters}]
    path = run.write(tmp_path_factory.mktemp("lossy") / "run")
    summary = analyze(path, spark=spark, on_progress=said.append)
    assert said[-3:-1] == ["looking through the capture", f"reading {summary['capture']['frames']:,} frames"]
    return Lossy(path, truth, run, summary)


@pytest.fixture
def copy(lossy: Lossy, tmp_path: Path) -> Path:
    return Path(shutil.copytree(lossy.path, tmp_path / "run"))


def test_the_summary_is_what_is_on_disk(lossy: Lossy) -> None:
    assert json.loads((lossy.path / "summary.json").read_text()) == lossy.summary
    assert (lossy.summary["format"], lossy.summary["run"]) == (1, "made/1")


def unnamed(value: object, names: Names, path: str = "") -> list[str]:
    """Paths of the value that `names` lack."""
    if isinstance(value, list):
        return [one for item in value for one in unnamed(item, names, path)]
    if not isinstance(value, dict) or "**" in names:
        return []
    found = []
    for key, item in value.items():
        below = names.get(key, names.get("*"))
        found += [f"{path}.{key}"] if below is None else unnamed(item, below, f"{path}.{key}")
    return found


def test_a_condition_may_name_all_that_a_summary_has(lossy: Lossy) -> None:
    """For this summary, and for the one on the page."""
    page = (Path(__file__).parents[2] / "docs" / "run-directory.md").read_text(encoding="utf-8")
    block = re.search(r"^## summary.json\n\n```json\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert block is not None
    for summary in (lossy.summary, json.loads(block[1].replace(', "…": 0', ""))):
        shown = {key: value for key, value in summary.items() if key in summary_names()}
        assert len(shown) > 15
        assert unnamed(shown, summary_names()) == []


def test_every_table_keeps_its_contract(lossy: Lossy) -> None:
    run = Run(lossy.path)

    assert run.tables == sorted(schema.TABLES)
    for name, contract in schema.TABLES.items():
        assert list(run.table(name).columns) == contract.names, name
    assert not list(lossy.path.glob(".tables*"))


def test_all_properties_pass_and_say_how_much_was_checked(lossy: Lossy) -> None:
    properties = lossy.summary["properties"]

    assert {entry["verdict"] for entry in properties.values()} == {"pass"}
    assert properties["validity"]["checked"] == MESSAGES
    assert properties["integrity"]["checked"] == 4 * MESSAGES
    assert [name for name, entry in properties.items() if not entry["promised"]] == ["uniform_agreement", "causal"]


def test_the_latency_is_the_truth(lossy: Lossy) -> None:
    truth, found = lossy.truth, lossy.summary["latency"]
    latency_ms = np.array(list(truth.latency_ns.values())) / 1e6

    assert found["count"] == 4 * MESSAGES
    assert found["mean_ms"] == pytest.approx(latency_ms.mean())
    assert found["variance_ms2"] == pytest.approx(latency_ms.var())
    for name, quantile in (("p50_ms", 50), ("p90_ms", 90), ("p99_ms", 99), ("p999_ms", 99.9), ("max_ms", 100)):
        assert found[name] == pytest.approx(np.percentile(latency_ms, quantile)), name
    phases = json.loads((lossy.path / "manifest.json").read_text())["phases"]
    requested_ns = {
        key: ((key[2] - 1) * len(NAMES) + key[1]) * EVERY_NS for key in truth.latency_ns if key[0] != key[1]
    }
    half_ns = (phases["load_end_ns"] - phases["start_ns"]) / 2
    others_ms = np.array([truth.latency_ns[key] for key, at_ns in requested_ns.items() if at_ns < half_ns]) / 1e6
    assert found["others"]["count"] == len(others_ms) > MESSAGES
    assert found["normalised_mean"] == pytest.approx(others_ms.mean() / (EVERY_NS / 1e6))
    assert found["variance_over_mean"] == pytest.approx(others_ms.var() / others_ms.mean())
    for member, entry in enumerate(found["by_member"]):
        own = np.array([value for key, value in truth.latency_ns.items() if key[0] == member]) / 1e6
        assert (entry["member"], entry["count"]) == (NAMES[member], MESSAGES)
        assert entry["p99_ms"] == pytest.approx(np.percentile(own, 99))


def test_the_traffic_is_the_truth(lossy: Lossy) -> None:
    found = lossy.summary["traffic"]

    assert (found["application"], found["dummy"], found["control"], found["retransmission"]) == (MESSAGES, 30, 30, 30)
    assert found["datagrams"] == MESSAGES + 90
    assert found["wire_bytes"] == sum(length for _, length in lossy.run.traffic)
    assert found["dummy_rate"] == pytest.approx(30 / (MESSAGES + 30))
    assert found["control_ratio"] == pytest.approx(30 / (MESSAGES + 90))
    assert found["wire_bytes_per_delivery"] == pytest.approx(found["wire_bytes"] / (4 * MESSAGES))
    assert found["datagrams_per_message"] == pytest.approx((MESSAGES + 90) / MESSAGES)
    carried = sum(entry["datagrams"] for entry in found["by_inner"] if entry["inner"] != "APPLICATION")
    assert found["inner_per_message"] == pytest.approx(carried / MESSAGES)
    assert [(entry["kind"], entry["datagrams"]) for entry in found["by_kind"]] == [
        ("RELIABLE_DATA", MESSAGES + 60), ("RELIABLE_NACK", 30)
    ]  # fmt: skip
    assert found["other_frames"] == 4


def test_the_tables_are_the_truth(lossy: Lossy) -> None:
    deliveries, frames = (Run(lossy.path).table(name) for name in ("deliveries", "frames"))
    by_message = deliveries.set_index(["member", "origin", "number"])
    sent = frames[(frames["direction"] == "from-node") & ~frames["class"].isin(["trace", "other"])]
    seen = frames[(frames["direction"] == "to-node") & (frames["node"] == "p1/n3")]
    paired = seen.merge(sent[sent["sender"] == sent["node_index"]], on=["sender", "transmission"])

    assert by_message["latency_ns"].to_dict() == lossy.truth.latency_ns
    assert len(deliveries) == len(lossy.truth.latency_ns)
    assert set(deliveries["level"]) == {1}
    assert not deliveries[["is_undone", "is_repeat"]].any(axis=None)
    assert sorted(sent["length"]) == sorted(length for _, length in lossy.run.traffic)
    assert len(paired) == 1200 + 30
    assert set(paired["time_ns_x"] - paired["time_ns_y"]) == {100_000}


def test_the_series_add_up(lossy: Lossy) -> None:
    truth, summary = lossy.truth, lossy.summary
    names = ("latency_series", "traffic_series", "latency_cdf")
    latency, traffic, cdf = (Run(lossy.path).table(name) for name in names)

    assert latency["count"].sum() == 4 * MESSAGES
    assert latency["t_s"].tolist() == [round(0.2 * place, 3) for place in range(20)]
    first_bin = [value for (_, origin, number), value in truth.latency_ns.items() if (number - 1) * 4 + origin < 80]
    assert latency["p50_ms"][0] == pytest.approx(np.percentile(first_bin, 50) / 1e6)
    assert latency["max_ms"].max() == pytest.approx(summary["latency"]["max_ms"])
    assert traffic["datagrams"].sum() == summary["traffic"]["datagrams"] + 4
    assert set(traffic["class"]) == {"application", "control", "dummy", "retransmission", "other"}
    assert cdf.groupby("member_name").size().tolist() == [200] * 4
    assert cdf["ratio"].min() == 0.0
    assert cdf["latency_ms"].max() == pytest.approx(summary["latency"]["max_ms"])


def test_the_certificate_is_the_truth(lossy: Lossy) -> None:
    truth, summary = lossy.truth, lossy.summary
    links = {(row["node"], row["direction"]): row for row in summary["links"]}
    slow = links["p1/n2", "to-node"]

    assert len(links) == 8
    assert slow["asked"] == {"delay_ns": 5_000_000, "loss_ratio": 0.1}
    assert slow["frames"] == 1200 + 60
    assert slow["loss_ratio"] == pytest.approx((truth.lost[1] + 60) / 1260)
    assert slow["delay_p50_ms"] == pytest.approx(5.1)
    clear = links["p1/n3", "to-node"]
    assert (clear["frames"], clear["loss_ratio"], clear["delay_p50_ms"]) == (1200 + 30, 0.0, 0.1)
    assert clear["verdict"] == "pass"
    assert links["p1/n1", "from-node"]["frames"] == 400 + 30
    assert links["p1/n1", "from-node"]["loss_ratio"] == 0.0
    assert summary["accuracy"]["pass"] + summary["accuracy"]["fail"] + summary["accuracy"]["unknown"] == 8


def test_frames_are_conserved(lossy: Lossy) -> None:
    truth = lossy.truth
    entries = {(entry["node"], entry["direction"]): entry for entry in lossy.summary["conservation"]}
    to_n2 = entries["p1/n2", "to-node"]

    # 1200 multicasts of the others, 30 dummies, 30 copies, 3 IGMP reports; the NACKs are n2's own.
    assert to_n2["offered"] == 1200 + 60 + 3
    assert to_n2["arrived"] == truth.arrivals[1]
    assert to_n2["dropped_delay_line"] == truth.lost[1] + 64
    assert to_n2["unexplained"] == -1  # the made-up counter is one too high
    assert entries["p1/n1", "from-node"]["offered"] == 400 + 30 + 1
    assert entries["p1/n1", "from-node"]["unexplained"] is None


def test_what_is_expected_is_judged_with_its_value(lossy: Lossy) -> None:
    below, above, misspelt = lossy.summary["expect"]

    assert (below["verdict"], below["value"]) == ("pass", lossy.summary["latency"]["max_ms"])
    assert above["verdict"] == "fail"
    assert (misspelt["verdict"], misspelt["value"]) == ("unknown", None)
    assert "did you mean p50_ms" in misspelt["reason"]
    assert lossy.summary["verdict"] == "fail"
    assert any(reason.startswith("latency.p50_ms <= 0.01: ") for reason in lossy.summary["reasons"])


def test_a_run_loads_as_a_value(lossy: Lossy) -> None:
    run = Run(lossy.path)

    assert run.summary["run"] == run.manifest["run"] == "made/1"
    assert len(run.topology) == 4
    assert run.table("deliveries", ["latency_ns"]).columns.tolist() == ["latency_ns"]
    with pytest.raises(AnalysisError, match="there is no table 'framse'; there are: conversations, deliveries, faults"):
        run.table("framse")


# --- broken orders


@pytest.fixture(scope="module")
def disordered(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two adjacent deliveries of n3 are swapped."""
    run = MadeRun()
    ordered(run, messages=100)
    records = run.records[2, 1]
    first, second = [at for at, record in enumerate(records) if record.event is Event.DELIVER][40:42]
    one, other = records[first], records[second]
    records[first] = dataclasses.replace(other, at_ns=other.at_ns - 1, value=one.value)
    records[second] = dataclasses.replace(one, at_ns=other.at_ns, value=other.value)
    return analyze(run.write(tmp_path_factory.mktemp("disordered") / "run"), spark=spark, on_progress=said.append)


def test_a_broken_order_fails_with_a_witness(disordered: dict[str, Any]) -> None:
    finding = disordered["properties"]["total_order"]
    places = finding["witness"]["places"]

    assert (disordered["verdict"], finding["verdict"], finding["violations"]) == ("fail", "fail", 3)
    assert [place["member"] for place in places].count("p1/n3") == 2
    assert {(p["message"]["origin"], p["message"]["number"]) for p in places} == {("p1/n1", 11), ("p1/n2", 11)}
    assert {place["position"] for place in places} == {41, 42}
    assert "delivered in different orders" in finding["witness"]["sentence"]
    assert "total_order: 3 violations in 400 checked" in disordered["reasons"]
    # n1's message was delivered to n2 between the two submissions, so their order is causal, too.
    broken = [name for name, entry in disordered["properties"].items() if entry["verdict"] != "pass"]
    assert broken == ["causal", "total_order"]


# --- incomplete runs


def test_a_lost_trace_datagram_makes_everything_unknown(spark: SparkSession, tmp_path: Path) -> None:
    run = MadeRun()
    ordered(run, messages=80)
    run.missing_trace = {(1, 1)}
    summary = analyze(run.write(tmp_path / "run"), spark=spark, on_progress=said.append)

    assert {entry["verdict"] for entry in summary["properties"].values()} == {"unknown"}
    assert summary["properties"]["fifo"]["reason"] == "trace records of p1/n2 are missing"
    assert summary["verdict"] == "unknown"
    assert summary["capture"]["trace_gaps"] == 5


def submits_again(run: MadeRun) -> None:
    run.submit(0, 1, START_NS - 5)


def tells_of_more(run: MadeRun) -> None:
    run.records[0, 1][-1] = dataclasses.replace(run.records[0, 1][-1], value=50)


def miscounts_its_starts(run: MadeRun) -> None:
    run.records[3, 2] = run.records.pop((3, 1))


def foresees(run: MadeRun) -> None:
    run.trace_after_ns = -(10**10)


def garbles(run: MadeRun) -> None:
    """Its last datagrams: one is a byte too long, one is of another group."""
    for group, more in ((GROUP, b"\0"), (GROUP + 1, b"")):
        body = encode_trace(group=group, node=3, node_incarnation=1, first=99, records=run.records[3, 1][-2:]) + more
        run.sightings.append(Sighting(START_NS, 3, PortDirection.INBOUND, trace_frame(run.nodes[3], body)))


def goes_back_in_time(run: MadeRun) -> None:
    records = run.records[0, 1]
    left = dataclasses.replace(records[-1], event=Event.REPORT, detail=Notice.LEFT, at_ns=records[-2].at_ns - 1_000_001)
    records.insert(len(records) - 1, left)


def tells_of_its_submissions_late(run: MadeRun) -> None:
    """n1's times are before all deliveries, and its records on the wire after the last."""
    records = run.records.pop((0, 1))
    for at in range(0, len(records), MAX_RECORDS):
        part = records[at : at + MAX_RECORDS]
        body = encode_trace(group=GROUP, node=0, node_incarnation=1, first=at + 1, records=part)
        run.sightings.append(Sighting(records[-1].at_ns, 0, PortDirection.INBOUND, trace_frame(run.nodes[0], body)))


def delivers_in_another_order_than_it_tells(run: MadeRun, *, tells_places: bool = True) -> None:
    """n3 takes two messages the other way round. It numbers the two records as the others do, and gives them the true
    places or times.
    """
    records = run.records[2, 1]
    first, second = [at for at, record in enumerate(records) if record.event is Event.DELIVER][20:22]
    one, other = records[first], records[second]
    if tells_places:
        records[first], records[second] = (
            dataclasses.replace(one, value=other.value),
            dataclasses.replace(other, value=one.value),
        )
    else:
        records[first] = dataclasses.replace(one, at_ns=other.at_ns + 1_000_001)


def delivers_earlier_than_it_tells(run: MadeRun) -> None:
    delivers_in_another_order_than_it_tells(run, tells_places=False)


def acts_while_it_is_stopped(run: MadeRun) -> None:
    """n1 is paused, n2 is killed, and neither stops: of their last records one is of that time."""
    for number, (kind, node) in enumerate((("pause", "p1/n1"), ("crash", "p1/n2"))):
        at_ns = run.records[number, 1][-2].at_ns - IDLE_NS
        line = {"id": number, "kind": kind, "targets": [node], "issued_ns": at_ns, "effective_ns": at_ns}
        run.faults.append(line | {"until_id": 2 if kind == "pause" else None})
    at_ns = run.records[0, 1][-1].at_ns
    times = {"issued_ns": at_ns, "effective_ns": at_ns}
    run.faults.append({"id": 2, "kind": "resume", "targets": ["p1/n1"], **times})


def is_silent_until_it_is_killed(run: MadeRun) -> None:
    """n4 is killed in the second second, started again, and keeps back all that it did before."""
    at_ns = START_NS + LIVED_NS
    run.records[3, 2] = [dataclasses.replace(r, at_ns=at_ns + 1, value=0) for r in (run.records[3, 1][0],)]
    run.records[3, 2].append(dataclasses.replace(run.records.pop((3, 1))[-1], value=0))
    line = {"id": 0, "kind": "crash", "targets": ["p1/n4"], "issued_ns": at_ns, "effective_ns": at_ns, "until_id": 1}
    run.faults += [line, line | {"id": 1, "kind": "restart", "until_id": None}]
    run.manifest["nodes"][3]["crashed"] = True
    run.manifest["nodes"].append({"node": "p1/n4", "incarnation": 2, "exit": -15})


def is_silent_when_started_again(run: MadeRun) -> None:
    run.manifest["nodes"].append({"node": "p1/n4", "incarnation": 2, "exit": -15})


@pytest.mark.parametrize(
    ("err", "reason"),
    [
        (submits_again, "p1/n1 (incarnation 1) gives its submission 11 the number 1"),
        (tells_of_more, "p1/n1 (incarnation 1) tells of 50 submissions at its end, and recorded 10"),
        (
            miscounts_its_starts,
            "validity: p1/n4 (incarnation 1) left no trace records; "
            "there are trace records of p1/n4 (incarnation 2), never started",
        ),
        (foresees, "212 trace records tell of a time after the frame that carried them"),
        (garbles, "2 trace datagrams cannot be decoded or are of another group"),
        (goes_back_in_time, "p1/n1 (incarnation 1) gives its record 53 an earlier time than the one before"),
        (
            tells_of_its_submissions_late,
            "p1/n2 (incarnation 1) delivers 10 messages before their submissions were on record",
        ),
        (
            delivers_in_another_order_than_it_tells,
            "p1/n3 (incarnation 1) gives its record 28 a place before that of the delivery before",
        ),
        (
            delivers_earlier_than_it_tells,
            "p1/n3 (incarnation 1) gives its record 28 an earlier time than the one before",
        ),
        (acts_while_it_is_stopped, "3 trace records tell of times at which a fault had stopped their nodes"),
        (is_silent_until_it_is_killed, "fifo: p1/n4 (incarnation 1) left no trace records"),
        (is_silent_when_started_again, "validity: p1/n4 (incarnation 2) left no trace records"),
    ],
)
def test_a_program_that_errs_in_its_records_passes_nothing(
    spark: SparkSession, tmp_path: Path, err: Callable[[MadeRun], None], reason: str
) -> None:
    """The programs did not say that they would end: they were ended by a signal."""
    run = MadeRun(manifest={"nodes": [{"node": name, "incarnation": 1, "exit": -15} for name in NAMES]})
    ordered(run, messages=40)
    err(run)
    summary = analyze(run.write(tmp_path / "run"), spark=spark, on_progress=said.append)

    assert summary["verdict"] == "unknown"
    assert reason in summary["reasons"]
    assert all(row.agrees for row in compare_run(read_run(tmp_path / "run"), summary))


def test_records_from_another_port_count_for_nothing_and_an_invalid_run_meets_no_expectation(
    spark: SparkSession, tmp_path: Path
) -> None:
    """n4 sends a record of a second delivery in the name of n1."""
    run = MadeRun(manifest={"invalid": ["a node fell 782 ms behind"], "expect": ["latency.p50_ms < 0"]})
    ordered(run, messages=40)
    forged = dataclasses.replace(run.records[0, 1][3], event=Event.DELIVER)
    body = encode_trace(group=GROUP, node=0, node_incarnation=1, first=500, records=[forged])
    run.sightings.append(Sighting(START_NS + 5, 3, PortDirection.INBOUND, trace_frame(run.nodes[3], body)))
    summary = analyze(run.write(tmp_path / "run"), spark=spark, on_progress=said.append)

    (entry,) = summary["expect"]
    assert entry["value"] > 0
    assert entry["verdict"] == "unknown"
    assert entry["reason"].startswith("the run is invalid, and it is ")
    assert summary["properties"]["integrity"]["verdict"] == "pass"
    assert summary["properties"]["total_order"]["verdict"] == "pass"
    assert summary["capture"]["foreign_records"] == 1
    assert summary["verdict"] == "unknown"
    foreign = "1 trace records came from another port than their member's"
    assert {"a node fell 782 ms behind", foreign} <= set(summary["reasons"])


def test_an_interrupted_run_with_a_torn_capture_is_analysed_as_far_as_it_goes(
    spark: SparkSession, tmp_path: Path
) -> None:
    run = MadeRun()
    ordered(run, messages=200)
    run.manifest |= {"status": "interrupted", "promises": ["validity", "fifo"], "expect": ["latency.p99_ms < 99"]}
    run.manifest["phases"] = {"start_ns": START_NS}
    path = run.write(tmp_path / "run")
    whole = (path / "capture.pcapng").read_bytes()
    (path / "capture.pcapng").write_bytes(whole[: len(whole) * 2 // 3 + 1])
    summary = analyze(path, spark=spark, on_progress=said.append)

    assert (summary["verdict"], summary["reasons"][0]) == ("unknown", "the run is interrupted")
    assert summary["capture"]["truncated"]
    assert 0 < summary["capture"]["frames"] < 1000
    validity = summary["properties"]["validity"]
    assert (validity["verdict"], validity["reason"]) == ("unknown", "no member ran from start to end")
    assert summary["properties"]["fifo"]["verdict"] == "pass"
    assert summary["latency"]["count"] > 0


@pytest.mark.parametrize("content", [b"", None, "head"], ids=["empty", "missing", "only the head"])
def test_a_run_without_frames_is_unknown_and_needs_no_spark(
    tmp_path: Path, content: bytes | str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    path = MadeRun().write(tmp_path / "run")
    if isinstance(content, bytes):
        (path / "capture.pcapng").write_bytes(content)
    elif content is None:
        (path / "capture.pcapng").unlink()
    summary = analyze(path, on_progress=said.append)

    assert summary["verdict"] == "unknown"
    assert {entry["verdict"] for entry in summary["properties"].values()} == {"unknown"}
    assert summary["properties"]["fifo"]["reason"].startswith("p1/n1 left no trace records; p1/n2")
    assert summary["latency"]["p99_ms"] is None
    assert summary["latency"]["count"] == summary["capture"]["frames"] == 0
    assert Run(path).tables == sorted(schema.TABLES)


# --- faults under way


def test_a_port_that_changes_during_the_run_has_a_row_per_interval(spark: SparkSession, tmp_path: Path) -> None:
    change_ns = START_NS + 2_000_000_000
    run = MadeRun()
    ordered(run, messages=1600, every_ns=EVERY_NS)
    for at, sighting in enumerate(run.sightings):
        if (sighting.direction, sighting.port) == (PortDirection.OUTBOUND, 2) and sighting.time_ns >= change_ns:
            run.sightings[at] = dataclasses.replace(sighting, time_ns=sighting.time_ns + 3_000_000)
    fault = {"id": 0, "kind": "impair", "targets": ["p1/n3"], "direction": "to-node", "until_id": None}
    values = {"delay_ns": 3_000_000}
    times = {"asked_ns": 2_000_000_000, "issued_ns": change_ns - 1000, "effective_ns": change_ns}
    run.faults.append(fault | times | {"parameters": values, "asked": {"p1/n3": values}})
    summary = analyze(run.write(tmp_path / "run"), spark=spark, on_progress=said.append)
    before, after = (row for row in summary["links"] if (row["node"], row["direction"]) == ("p1/n3", "to-node"))

    assert (before["asked"], after["asked"]) == ({}, values)
    assert (before["until_ns"], after["from_ns"]) == (change_ns - 1000, change_ns)
    assert (before["delay_p50_ms"], after["delay_p50_ms"]) == (0.1, 3.1)
    assert before["verdict"] == after["verdict"] == "pass"
    assert summary["accuracy"] == {"verdict": "pass", "pass": 9, "fail": 0, "unknown": 0, "unexplained": 0}


# --- repeated analysis


def test_doing_it_again_replaces_what_was_there(tmp_path: Path) -> None:
    path = MadeRun().write(tmp_path / "run")
    first = analyze(path, on_progress=said.append)
    (path / "tables" / "old.parquet").write_text("left over")
    (path / "summary.json").write_text("{}")

    assert analyze(path, on_progress=said.append) == first
    assert Run(path).summary == first
    assert Run(path).tables == sorted(schema.TABLES)


def test_what_cannot_be_analysed_leaves_everything_as_it_was(spark: SparkSession, copy: Path) -> None:
    (copy / "capture.pcapng").write_bytes(b"this is not a capture, and never was")
    before = contents(copy)

    with pytest.raises(AnalysisError, match="is neither pcapng nor pcap"):
        analyze(copy, spark=spark, on_progress=said.append)
    assert contents(copy) == before


def test_what_a_killed_analysis_left_is_swept_away(tmp_path: Path) -> None:
    path = MadeRun().write(tmp_path / "run")
    (path / ".tables.999999999").mkdir()
    (path / ".tables.999999999" / "frames.parts").write_text("half a table")
    analyze(path, on_progress=said.append)

    assert not list(path.glob(".*"))


def test_the_report_of_another_analysis_is_removed_before_its_summary_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = MadeRun().write(tmp_path / "run")
    (path / "report.html").write_text("drawn before")
    monkeypatch.setattr("analysis.report.page.write_report", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        analyze_and_report(path, Console(quiet=True))

    assert (path / "summary.json").exists()
    assert not (path / "report.html").exists()


def test_a_command_that_is_told_to_end_leaves_no_half_made_tables(copy: Path) -> None:
    with subprocess.Popen([ORDERBED, "analyze", str(copy)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_for(lambda: bool(list(copy.glob(".tables*"))), what="tables that are being made")
        process.terminate()
        _out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err.splitlines()[-1]) == (3, b"orderbed: interrupted")
    assert not list(copy.glob(".*"))


def test_an_interrupt_ends_the_analysis_at_once_and_leaves_everything_as_it_was(copy: Path) -> None:
    before = contents(copy)
    script = f"""
        from pathlib import Path
        from analysis.summary import analyze
        try:
            analyze(Path({str(copy)!r}), on_progress=lambda text: print(text, flush=True))
        except KeyboardInterrupt:
            print("stopped", flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "judging" not in process.stdout.readline():
            pass
        time.sleep(0.5)  # during the queries, at any place
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=3)

    assert (process.returncode, out) == (0, "stopped\n"), err
    assert contents(copy) == before
    assert not list(copy.glob(".*"))
