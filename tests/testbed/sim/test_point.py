"""One run in memory: its verdict, its counts, and the same result read back from its table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.errors import AnalysisError
from analysis.expression import Unknown, evaluate, parse
from analysis.judgement import STILL_LOSING
from analysis.metrics import sweep_rows
from node.host.host import Host
from node.protocols.sequencer import SequencerCore
from node.registry import PROTOCOLS
from testbed.sim.point import measure
from testbed.spec.faults import Impair
from testbed.spec.raw import Dissemination
from testbed.spec.values import Experiment
from tests import report_runs
from tests.testbed.sim.made import MILLISECOND, SECOND, at_instants, experiment, periodic, topology
from topologies.model import Bus, Direction, Impairment

BUS = Bus(rate_bps=10_000_000, queue_frames=1000)


def small(protocol: str = "sequencer", *, dissemination: Dissemination = Dissemination.UNICAST) -> Experiment:
    network = topology(3, 2, bus=BUS, to_node=Impairment(delay_ns=MILLISECOND))
    return experiment(network, protocol=protocol, workload=periodic(20.0, 392), dissemination=dissemination)


@cache
def measured(protocol: str = "sequencer") -> dict[str, Any]:
    return measure(rolling_back() if protocol == "timewarp" else small(protocol))


def test_a_good_run_passes_with_all_that_it_promises() -> None:
    result = measured()
    assert (result["verdict"], result["reasons"], result["doubts"]) == ("pass", [], [])
    promised = {name for name, entry in result["properties"].items() if entry["promised"]}
    assert promised == set(PROTOCOLS["sequencer"].promises)
    messages = result["messages"]
    assert messages["deliveries"] == messages["deliveries_expected"] == 5 * messages["submitted"] == 500
    assert result["given"]["members"] == 5
    assert result["events"] > 0


@pytest.mark.parametrize(("dissemination", "copies"), [(Dissemination.UNICAST, 3), (Dissemination.MULTICAST, 0)])
def test_a_multicast_is_one_message_and_its_datagrams_are_copies(dissemination: Dissemination, copies: int) -> None:
    """One message of the reliable layer, over an unimpaired network to four others."""
    workload = at_instants(100 * MILLISECOND, size_bytes=392)
    network = topology(3, 2, bus=BUS)
    lone = experiment(network, workload=workload, senders=[0], dissemination=dissemination)
    load = measure(lone)["load"]
    assert (load["messages_by_kind"]["RELIABLE_DATA"], load["copies_by_kind"]["RELIABLE_DATA"]) == (1, copies)


def test_delays_are_those_at_the_others_of_what_was_requested_in_the_first_half_of_the_load() -> None:
    """With a delay of 1 ms only the sender itself can have it sooner."""
    network = topology(4, to_node=Impairment(delay_ns=MILLISECOND))
    latency = measure(experiment(network, workload=periodic(20.0)))["latency"]
    assert (latency["count"], latency["others"]["count"]) == (4 * 80, 3 * 40)
    assert latency["others"]["mean_ms"] >= 1
    assert latency["mean_ms"] < latency["others"]["mean_ms"]
    assert latency["normalised_mean"] == pytest.approx(latency["others"]["mean_ms"] / 12.5, rel=0.1)
    assert latency["variance_over_mean"] == latency["others"]["variance_ms2"] / latency["others"]["mean_ms"]


def test_expectations_are_judged_and_one_about_frames_is_unknown() -> None:
    result = measure(replace(small(), expect=(parse("latency.p99_ms < 0"), parse("traffic.dummy_rate <= 1"))))
    assert [entry["verdict"] for entry in result["expect"]] == ["fail", "unknown"]
    assert result["verdict"] == "fail"


def test_nothing_sent_is_nothing_measured() -> None:
    result = measure(experiment(topology(3), duration_ns=SECOND // 10))
    assert (result["messages"]["submitted"], result["latency"]["mean_ms"]) == (0, None)
    assert result["load"]["lan_load"] is None
    assert row_of(result)["load"]["lan_load"] is None


def test_a_run_that_does_not_come_to_rest_is_unknown_where_it_matters() -> None:
    result = measure(replace(small(), drain_ns=0))
    assert "had become quiet" in result["properties"]["agreement"]["reason"]
    assert (result["properties"]["total_order"]["verdict"], result["verdict"]) == ("pass", "unknown")


def test_records_after_the_end_are_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Host.stop

    def stop_twice(host: Host) -> bool:
        return stop(host) and stop(host)

    monkeypatch.setattr(Host, "stop", stop_twice)
    result = measure(small())
    assert result["verdict"] == "unknown"
    assert result["doubts"][0] == "p1/n1 (incarnation 1) has records after its end"


@pytest.mark.parametrize(("ratios", "reason"), [((1.0,), STILL_LOSING), ((1.0, 0.0), ""), ((0.0, 1.0), STILL_LOSING)])
def test_a_port_that_loses_every_frame_at_the_end_leaves_liveness_open(ratios: Sequence[float], reason: str) -> None:
    """All messages have been delivered by then, so the group comes to rest."""
    one = replace(small(), workloads=dict.fromkeys(small().workloads, at_instants(MILLISECOND, size_bytes=392)))
    target = next(iter(one.topology.nodes())).name
    common: dict[str, Any] = {"targets": (target,), "direction": Direction.TO_NODE, "changes": {}}
    faults = tuple(
        Impair(id=number, at_ns=SECOND // 2 + number, settings=((target, Impairment(loss_ratio=ratio)),), **common)
        for number, ratio in enumerate(ratios)
    )
    agreement = measure(replace(one, faults=faults))["properties"]["agreement"]
    assert (agreement["verdict"], agreement["reason"]) == ("unknown" if reason else "pass", reason)


def test_what_a_core_raises_is_the_failure_of_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(SequencerCore, "on_submit", broken)
    result = measure(small())
    assert (result["verdict"], result["reasons"]) == ("fail", ["ZeroDivisionError in broken: division by zero"])
    assert result["doubts"] == result["reasons"]
    assert row_of(result)["latency"] is None


def rolling_back() -> Experiment:
    """Time Warp with a slow application that reports the costs of the order."""
    service = {"processing_ns": 5 * MILLISECOND, "report_costs": True}
    network = topology(5, to_node=Impairment(delay_ns=2 * MILLISECOND))
    return experiment(network, protocol="timewarp", parameters={"service": service}, workload=periodic(20.0))


def test_what_the_order_costs_is_measured_where_cores_report_it() -> None:
    assert measured()["ordering"] is None
    found = measured("timewarp")
    ordering = found["ordering"]
    assert 0 < ordering["messages"] <= found["messages"]["deliveries"] == 500
    assert ordering["roll_backs"] == sum(entry["roll_backs"] for entry in ordering["by_member"]) > 0
    assert ordering["cost_per_s"] == pytest.approx(ordering["cost_mean_ms"] * 1e6 * ordering["messages"] / 5)
    assert ordering["finality_p50_ms"] > 0
    assert list(ordering["by_protocol"]) == ["timewarp"]
    assert ordering["implausible"] == 0


def test_a_claim_may_speak_of_what_the_order_costs() -> None:
    rows = [row_of(measured("timewarp")), row_of(measured())]
    cost = evaluate(parse("where(runs, given.protocol == 'timewarp').ordering.cost_mean_ms"), {"runs": rows})
    assert cost == [rows[0]["ordering"]["cost_mean_ms"]]
    assert isinstance(evaluate(parse("runs[1].ordering.cost_mean_ms < 1"), {"runs": rows}), Unknown)


def test_a_row_keeps_all_that_was_measured_and_what_there_is_to_say_of_views(tmp_path: Path) -> None:
    run = report_runs.with_views(tmp_path / "run", changes=2)
    views = json.loads((run / "summary.json").read_text())["views"]
    for result in (measured(), measured("lamport"), measured("timewarp"), measured() | {"views": views}):
        assert row_of(result | {"point": 7}) == json.loads(json.dumps(result | {"point": 7}))


def test_rows_are_kept_in_the_order_of_their_points(tmp_path: Path) -> None:
    path = tmp_path / "sweep-1.parquet"
    sweep_rows.write(path, [table(measured() | {"point": point}) for point in (2, 0, 1)])
    assert [row["point"] for row in sweep_rows.read(path)] == [0, 1, 2]
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_table_of_a_sweep_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="is missing; make it with"):
        sweep_rows.read(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("no")
    with pytest.raises(AnalysisError, match="cannot be read"):
        sweep_rows.read(tmp_path / "text.parquet")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(AnalysisError, match="is no table of a simulated sweep"):
        sweep_rows.read(tmp_path / "other.parquet")


def table(result: dict[str, Any]) -> pa.Table:
    return pa.Table.from_batches([sweep_rows.to_batch([{"point": 0} | result])])


def row_of(result: dict[str, Any]) -> dict[str, Any]:
    """The result read back from its table."""
    (row,) = sweep_rows.from_table(table(result))
    return row
