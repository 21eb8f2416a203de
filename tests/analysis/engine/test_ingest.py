"""The tables and sums of one pass over a capture; pairing does not depend on the distribution of ports over tasks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from analysis import schema
from analysis.capture import source
from analysis.capture.source import CaptureReader, Pieces
from analysis.engine import ingest
from analysis.network import pairing
from tests.analysis.runs import CLOCK_OFFSET_NS, GROUP, START_NS, MadeRun

N1, N2, N3 = range(3)
COUNT = 40
EVERY_NS = 1_000_000
PLAN = ingest.Plan(
    ports=tuple((f"p1/n{index + 1}", index) for index in range(3)),
    group=GROUP,
    clock_offset_ns=CLOCK_OFFSET_NS,
    start_ns=START_NS,
    load_end_ns=START_NS + COUNT // 2 * EVERY_NS,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[MadeRun, Path]:
    """n1 multicasts, every tenth is lost on the way to n2, every fifth arrives twice; n2 sends to n3 alone."""
    run = MadeRun("name: three\npartitions:\n  p1: {nodes: 3}\n")
    for turn in range(COUNT):
        at_ns = START_NS + turn * EVERY_NS
        to_n2 = [] if turn % 10 == 0 else [at_ns + 70_000] * (2 if turn % 5 == 1 else 1)
        run.datagram(at_ns, N1, {N2: to_n2, N3: [at_ns + 50_000]})
        run.datagram(at_ns + 300, N2, {N3: [at_ns + 90_300]}, to=N3)
    run.submit(N1, 1, START_NS)
    return run, run.write(tmp_path_factory.mktemp("made")) / "capture.pcapng"


def _ingested(capture: Path, directory: Path, plan: ingest.Plan) -> ingest.IngestCounts:
    where = [directory / "frames", directory / "trace"]
    for place in where:
        place.mkdir()
    reader = CaptureReader(str(capture), source.table_schema("frames"), "frames", 1)
    parts = [part for part in reader.partitions() if isinstance(part, Pieces)]
    return ingest.together([ingest.write_part(0, part, plan, where) for part in parts], plan)


def test_rows_and_sums_are_those_of_the_capture(made: tuple[MadeRun, Path], tmp_path: Path) -> None:
    run, capture = made
    counts = _ingested(capture, tmp_path, PLAN)
    frames = pq.read_table(tmp_path / "frames")
    assert frames.column_names == schema.FRAMES.names
    assert pq.read_table(tmp_path / "trace").column_names == schema.TRACE.names
    assert set(frames["class"].to_pylist()) == {"application", "trace"}
    assert frames.num_rows == sum(flow["frames"] for flow in counts.flows) > 4 * COUNT
    assert sum(row["datagrams"] for row in counts.sent) == 2 * COUNT
    assert sum(row["wire_bytes"] for row in counts.sent) == sum(length for _, length in run.traffic)
    assert {row["bin"] for row in counts.sent} == {0}
    (unicast,) = (
        flow
        for flow in counts.flows
        if (flow["node_index"], flow["direction"]) == (N3, "to-node") and flow["eth_dst"] & 1 << 40 == 0
    )
    assert (unicast["frames"], unicast["datagrams"]) == (COUNT, COUNT // 2)
    assert (sum(counts.records.values()), counts.foreign_records, counts.undecodable) == (1, 0, 0)


def test_a_stamp_beyond_64_bits_is_null_and_in_no_bin(made: tuple[MadeRun, Path], tmp_path: Path) -> None:
    counts = _ingested(made[1], tmp_path, replace(PLAN, clock_offset_ns=-9 * 10**18))
    assert pq.read_table(tmp_path / "frames")["time_ns"].null_count > 4 * COUNT
    assert {row["bin"] for row in counts.sent} == {None}
    assert sum(flow["datagrams"] for flow in counts.flows) == 0


def test_the_port_of_nobody_has_no_node_and_tells_nothing(made: tuple[MadeRun, Path], tmp_path: Path) -> None:
    counts = _ingested(made[1], tmp_path, replace(PLAN, ports=(None, *PLAN.ports[1:])))
    frames = pq.read_table(tmp_path / "frames")
    assert frames["node"].null_count == frames["node_index"].null_count > COUNT
    assert {flow["node_index"] for flow in counts.flows} == {N2, N3}
    assert (sum(counts.records.values()), counts.foreign_records) == (0, 1)


@pytest.mark.parametrize(
    ("at_ns", "after_ns", "future"),
    [
        (START_NS, 1000, 0),
        (START_NS, -1_000_000, 0),
        (START_NS, -1_000_001, 1),
        (1 << 63, START_NS - (1 << 63), 1),
    ],
)
def test_a_record_is_on_the_wire_after_its_time(tmp_path: Path, at_ns: int, after_ns: int, future: int) -> None:
    run = MadeRun(trace_after_ns=after_ns)
    run.submit(N1, 1, at_ns)
    counts = _ingested(run.write(tmp_path / "run") / "capture.pcapng", tmp_path, PLAN)
    assert (sum(counts.records.values()), counts.future_records) == (1, future)


def test_another_group_is_other_traffic(made: tuple[MadeRun, Path], tmp_path: Path) -> None:
    counts = _ingested(made[1], tmp_path, replace(PLAN, group=GROUP + 1))
    frames = pq.read_table(tmp_path / "frames")
    assert set(frames["class"].to_pylist()) == {"other", "trace"}
    assert frames["sender"].null_count == frames.num_rows
    assert sum(counts.records.values()) == counts.foreign_records == 0


@pytest.mark.parametrize("size", [1, 2])
def test_samples_do_not_depend_on_which_ports_a_task_has(made: tuple[MadeRun, Path], tmp_path: Path, size: int) -> None:
    run, capture = made
    _ingested(capture, tmp_path, PLAN)
    chosen = [(N1, N3), (N2, N3)]
    whole = pairing.samples(tmp_path / "frames", run.topology, chosen, [N1, N2, N3])
    assert len(whole[2 * N2].sent_ns) == COUNT
    assert whole[2 * N2].copies.tolist() == [0 if t % 10 == 0 else 2 if t % 5 == 1 else 1 for t in range(COUNT)]
    assert set(whole[2 * N1 + 1].peer.tolist()) == {N3}
    for start in range(0, 3, size):
        part = pairing.samples(tmp_path / "frames", run.topology, chosen, [N1, N2, N3][start : start + size])
        for port, found in part.items():
            for name in found.__slots__:
                assert np.array_equal(getattr(found, name), getattr(whole[port], name)), (port, name)
