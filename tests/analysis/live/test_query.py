"""Live figures over made captures whose figures are known, for any division of the rows into batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as T  # noqa: N812

from analysis.capture import source
from analysis.live import counts as stream_live
from analysis.live.counts import COLUMNS, Live, Snapshot, ports_of_capture, ports_of_run
from node.trace import Event, Level
from node.wire import Flag, Kind
from tests.analysis.runs import GROUP, START_NS, MadeRun, ordered

MS = 1_000_000
SECOND = 10**9


def rows_of(path: Path) -> pa.Table:
    known = source.table_schema("live")
    schema = T.StructType([known[name] for name in COLUMNS])
    reader = source.CaptureReader(str(path), schema, "live", parts=1)
    return pa.Table.from_batches([batch for group in reader.partitions() for batch in reader.read(group)])


def live_of(run: MadeRun, *, is_bare: bool = False, **options: int) -> Live:
    names = [str(node.name) for node in run.nodes]
    return Live(ports_of_capture(names) if is_bare else ports_of_run(run.topology, names, GROUP), **options)


def watched(run: MadeRun, path: Path, *, batch_rows: int = 1 << 20, is_bare: bool = False, **options: int) -> Snapshot:
    """The last snapshot of a capture that arrived in batches."""
    live, table = live_of(run, is_bare=is_bare, **options), rows_of(run.write(path) / "capture.pcapng")
    for at in range(0, table.num_rows, batch_rows):
        live.take(table.slice(at, batch_rows))
    live.finish()
    return live.snapshot()


@pytest.mark.parametrize(("batch_rows", "is_bare"), [(1 << 20, True), (1 << 20, False), (97, True), (7, False)])
def test_rates_latencies_and_losses_are_those_of_the_capture(tmp_path: Path, batch_rows: int, is_bare: bool) -> None:
    run = MadeRun()
    truth = ordered(run, messages=200, delay_ns=lambda _, receiver: (5 + receiver) * MS, loss={2: 0.25})
    snapshot = watched(run, tmp_path / "run", batch_rows=batch_rows, is_bare=is_bare, window_s=60)

    assert snapshot.lost == sum(truth.lost.values()) > 10
    assert snapshot.late == snapshot.unpaired == 0
    for member, figures in enumerate(snapshot.nodes):
        settled = truth.lost[member] + truth.arrivals[member]
        assert figures.loss_ratio == pytest.approx(truth.lost[member] / settled)
        assert figures.network.p50_ms == pytest.approx(5 + member, rel=0.02)
        latencies = [ns / MS for (who, _, _), ns in truth.latency_ns.items() if who == member]
        assert figures.delivery.p50_ms == pytest.approx(np.percentile(latencies, 50), rel=0.03)
        assert figures.delivery.p99_ms == pytest.approx(np.percentile(latencies, 99), rel=0.03)
        assert figures.received_per_s * snapshot.window_s == pytest.approx(truth.arrivals[member])
        assert figures.delivered_per_s * snapshot.window_s == pytest.approx(200)
    assert snapshot.total.submitted_per_s * snapshot.window_s == pytest.approx(200)


def test_dummies_control_and_copies_are_told_apart(tmp_path: Path) -> None:
    run = MadeRun()
    for number in range(100):
        kinds = {0: Flag.DUMMY, 1: Flag.CONTROL, 2: Flag.RETRANSMISSION | Flag.DUMMY}
        run.datagram(START_NS + number * MS, 0, {1: [START_NS + number * MS + 9]}, flags=int(kinds.get(number % 5, 0)))
    figures = watched(run, tmp_path / "run").nodes[0]

    assert figures.dummy_rate == pytest.approx(20 / 60)
    assert figures.control_ratio == pytest.approx(20 / 100)
    assert figures.retransmission_ratio == pytest.approx(20 / 100)


@pytest.mark.parametrize("batch_rows", [1 << 20, 1])
def test_the_newest_view_of_each_node_and_the_nodes_in_a_minority(tmp_path: Path, batch_rows: int) -> None:
    run = MadeRun()
    for member in range(3):
        run.note(member, Event.START, START_NS + member)
        for rank in range(3):
            run.note(member, Event.VIEW, START_NS + 9, origin=rank, incarnation=1, number=1, extra=rank, value=3)
    run.note(2, Event.MINORITY, START_NS + 2 * MS, detail=1, number=1, value=1)
    run.note(1, Event.MINORITY, START_NS + 2 * MS, detail=1, number=1, value=1)
    run.note(1, Event.MINORITY, START_NS + 3 * MS, detail=0, number=1, value=2)
    for rank in range(2):
        run.note(1, Event.VIEW, START_NS + 4 * MS, origin=rank, incarnation=1, number=2, extra=rank, value=2)
    snapshot = watched(run, tmp_path / "run", batch_rows=batch_rows)

    assert [(node.view, node.is_minority) for node in snapshot.nodes][:3] == [(1, False), (2, False), (1, True)]
    assert snapshot.total.view == 2


def test_who_is_not_meant_has_lost_nothing(tmp_path: Path) -> None:
    run = MadeRun("name: two\npartitions:\n  p1: {nodes: 2}\n  p2: {nodes: 2}\nlinks:\n  - {between: [p1, p2]}\n")
    for number in range(20):
        at_ns = START_NS + number * MS
        run.datagram(at_ns, 0, {}, is_near=True)
        run.datagram(at_ns, 1, {0: [at_ns + 5]}, to=0)
    snapshot = watched(run, tmp_path / "run")

    assert [figures.loss_ratio for figures in snapshot.nodes] == [0.0, 1.0, None, None]


def test_what_comes_after_the_horizon_is_late_and_lost(tmp_path: Path) -> None:
    run = MadeRun()
    run.datagram(START_NS, 0, {1: [START_NS + 5 * MS], 2: [START_NS + 3 * SECOND], 3: [START_NS + 6 * MS]})
    later_ns = START_NS + 2 * SECOND + 500 * MS
    run.datagram(later_ns, 0, {member: [later_ns + 100 * MS] for member in (1, 2, 3)})
    snapshot = watched(run, tmp_path / "run", batch_rows=1)

    assert (snapshot.late, snapshot.lost) == (1, 1)


def test_a_copy_of_the_wire_counts_once(tmp_path: Path) -> None:
    run = MadeRun()
    run.datagram(START_NS, 0, {1: [START_NS + 5 * MS, START_NS + 90 * MS], 2: [START_NS + 1 * MS], 3: [START_NS + MS]})
    snapshot = watched(run, tmp_path / "run")

    assert snapshot.lost == 0
    assert snapshot.nodes[1].network.p99_ms == pytest.approx(5, rel=0.02)


def test_a_delivery_may_be_told_before_its_request(tmp_path: Path) -> None:
    """Each node sends its records at times of its own."""
    run = MadeRun()
    run.note(1, Event.DELIVER, START_NS + 8 * MS, detail=Level.AGREED, origin=0, incarnation=1, number=1, value=1)
    for number in range(2, 40):
        run.note(0, Event.SUBMIT, START_NS + number, origin=0, incarnation=1, number=number)
    run.note(0, Event.SUBMIT, START_NS, origin=0, incarnation=1, number=1)
    run.note(0, Event.STOP, START_NS + SECOND, detail=1)
    snapshot = watched(run, tmp_path / "run", batch_rows=1)

    assert snapshot.nodes[1].delivery.p50_ms == pytest.approx(8, rel=0.02)
    assert snapshot.unpaired == 0


def test_only_the_highest_level_counts(tmp_path: Path) -> None:
    run = MadeRun()
    run.submit(0, 1, START_NS)
    run.note(1, Event.START, START_NS)
    run.deliver(1, 0, 1, START_NS + 1 * MS, level=Level.OPTIMISTIC)
    run.deliver(1, 0, 1, START_NS + 7 * MS, level=Level.FINAL)
    snapshot = watched(run, tmp_path / "run", batch_rows=1)

    assert snapshot.nodes[1].delivery.p50_ms == pytest.approx(7, rel=0.02)
    assert snapshot.total.delivered_per_s * snapshot.window_s == pytest.approx(1)


def test_rates_sink_when_a_group_falls_silent(tmp_path: Path) -> None:
    run = MadeRun()
    ordered(run, messages=100)
    live = live_of(run)
    live.take(rows_of(run.write(tmp_path / "run") / "capture.pcapng"))

    assert live.snapshot().total.sent_per_s > 0
    assert live.snapshot(idle_ns=20 * SECOND).total.sent_per_s == 0


def test_what_is_kept_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_live, "MAX_PENDING", 50)
    run = MadeRun()
    for number in range(1, 1000):
        at_ns = START_NS + number
        run.datagram(at_ns, 0, {})
        run.submit(0, number, at_ns)
        run.note(1, Event.DELIVER, at_ns, detail=1, origin=3, incarnation=1, number=number)
    table = rows_of(run.write(tmp_path / "run") / "capture.pcapng")
    live = live_of(run)
    for at in range(0, table.num_rows, 100):
        live.take(table.slice(at, 100))
        assert len(live._datagrams.key) <= 50
        assert live._messages._submits.shape[1] <= 50
        assert live._messages._delivers.shape[1] <= 50
    snapshot = live.snapshot()
    assert snapshot.lost == 3 * (999 - len(live._datagrams.key))
    assert snapshot.unpaired == 999 - live._messages._delivers.shape[1]


def test_a_capture_of_nobody_of_ours_shows_its_frames(tmp_path: Path) -> None:
    run = MadeRun()
    run.datagram(START_NS, 0, {}, kind=Kind.RELIABLE_DATA)
    live = Live(ports_of_capture(["eth0"]))
    live.take(rows_of(run.write(tmp_path / "run") / "capture.pcapng"))

    assert (live.snapshot().frames, live.snapshot().total.network.p50_ms) == (1, None)
