"""One pass over a capture, in NumPy, by a Spark task for each part: the tables `frames` and `trace`, and the sums from
which the sections of the summary are made.

Each task parses its part once and writes its part of both tables itself: rows that pass through the JVM cost ten times
as much. The driver receives only counts by key. `analysis.schema` describes the columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from analysis import schema
from analysis.capture.decode import CLASSES, class_of, decode_frames, decode_trace
from analysis.capture.source import CaptureReader, Pieces, checked_batches, table_schema
from analysis.checks import incarnations
from analysis.checks.properties import Incarnation
from analysis.metrics.cost import BIN_NS
from analysis.network.addresses import mac_number
from analysis.tasks import OfSpark, PartWriter, Staging, as_written, conformed, detached
from analysis.traffic import source as traffic_source
from collector.records import TRACE_MAC, Event, Frames, Notice, PortDirection
from collector.walk import Buffer
from topologies.model import Direction

TO_NODE, FROM_NODE = Direction.TO_NODE.value, Direction.FROM_NODE.value
DIRECTIONS = (None, FROM_NODE, TO_NODE)
"""Directions by collector.records.PortDirection."""
FRAME_CLASSES = (*CLASSES, "trace", "other")
"""Classes of frames, by code."""

MAX_FLOWS = 100_000
"""Most flows that are kept, the greatest: more than any run has, but a hostile capture may hold millions."""

SENT_KEYS = ("bin", "class", "kind", "inner")
FLOW_KEYS = ("node_index", "direction", "eth_dst", "ip_dst")

_FRAMES, _TRACE = as_written(to_arrow_schema(schema.FRAMES)), as_written(to_arrow_schema(schema.TRACE))
_DECODED = (
    *traffic_source.DECODED,
    *("payload_length", "is_protocol", "is_trace", "is_undecodable", "group", "sender"),
    *("sender_incarnation", "transmission", "kind", "flags", "inner", "origin", "incarnation", "words", "seq"),
)
_OF_PROTOCOL = (
    *("sender", "sender_incarnation", "transmission", "kind", "flags", "inner"),
    *("origin", "incarnation", "seq", "words"),
)

Columns = dict[str, npt.NDArray[Any]]
Mask = npt.NDArray[np.bool_]
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Input of a task. Plain data: it is sent to the workers. Times are CLOCK_MONOTONIC."""

    ports: tuple[tuple[str, int] | None, ...]
    """Node and member number of each interface of the capture; None: no node's port."""
    group: int
    clock_offset_ns: int
    start_ns: int
    """Start of the workload: bins count from here."""
    load_end_ns: int | None
    notices: tuple[Notice, ...] = ()
    """Reports to be counted."""
    idle_ns: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """By member: times at which its node was stopped, let go on, stopped again …"""
    talk: traffic_source.Plan = field(default_factory=lambda: traffic_source.Plan(edges_ns=(), ports=()))
    max_talk: int = 0
    """Most rows of `talk`."""


class IngestCounts(NamedTuple):
    """Counts of the pass."""

    undecodable: int
    foreign_records: int
    """Records of this group that did not come from their member's own port."""
    strange_datagrams: int
    """Trace datagrams of nodes that cannot be decoded or are of another group."""
    idle_records: int
    """Other records of this group with a time at which their node was stopped."""
    future_records: int
    """Other records of this group with a time after the frame that carried them."""
    records: Mapping[Incarnation, int]
    """Number of records of each incarnation."""
    notices: dict[Notice, int]
    sent: Rows
    """Frames that nodes sent, without trace, by SENT_KEYS: `datagrams`, `wire_bytes`, `payload_bytes`."""
    flows: Rows
    """All frames, by FLOW_KEYS: `frames`; within the load, without trace: `datagrams` of the run's group,
    `wire_bytes`.
    """
    talk: pa.Table
    """Rows of traffic_source.SPANS; all, or more than `max_talk`."""


def write_tables(spark: SparkSession, capture: Path, plan: Plan, stage: Staging) -> IngestCounts:
    """Write the tables `frames` and `trace` of a capture."""
    reader = CaptureReader(str(capture), table_schema("frames"), "frames", spark.sparkContext.defaultParallelism)
    parts = [part for part in reader.partitions() if isinstance(part, Pieces)]
    directories = [stage.parts(name) for name in ("frames", "trace")]
    counts = OfSpark(spark).run(lambda part: write_part(*part, plan, directories), list(enumerate(parts)))
    for name in ("frames", "trace"):
        stage.gather(name)
    return together(counts, plan)


class _PartCounts(NamedTuple):
    """Result of one task."""

    undecodable: int
    foreign_records: int
    strange_datagrams: int
    idle_records: int
    future_records: int
    records: Counter[Incarnation]
    notices: dict[Notice, int]
    sent: pa.Table
    flows: pa.Table
    talk: pa.Table


def write_part(number: int, part: Pieces, plan: Plan, directories: Sequence[Path]) -> _PartCounts:
    """Run one task. `directories`: those of the parts of `frames` and of `trace`."""
    task = _Task(plan)
    with (
        PartWriter(directories[0] / f"part-{number:05d}.parquet", _FRAMES) as frames,
        PartWriter(directories[1] / f"part-{number:05d}.parquet", _TRACE) as trace,
    ):
        for piece in part.pieces:
            for buffer, batch in checked_batches(piece):
                rows, carriers = task.frames(buffer, batch)
                frames.write(rows)
                if len(carriers):
                    trace.write(task.trace(buffer, carriers))
    return task.counts()


class _Task:
    """Rows and sums of one part, batch by batch."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._undecodable = self._foreign = self._strange = self._idle = self._future = 0
        self._records: Counter[Incarnation] = Counter()
        self._notices = dict.fromkeys(plan.notices, 0)
        self._sent = _Sums(SENT_KEYS, ("datagrams", "wire_bytes", "payload_bytes"))
        self._flows = _Sums(FLOW_KEYS, ("frames", "datagrams", "wire_bytes"))
        self._talk = traffic_source.Sums(plan.talk, plan.max_talk)
        self._names = tuple(None if port is None else port[0] for port in plan.ports) or (None,)
        self._indexes = np.array([-1 if port is None else port[1] for port in plan.ports] or [-1], np.int32)

    def counts(self) -> _PartCounts:
        counts = (self._undecodable, self._foreign, self._strange, self._idle, self._future)
        found = (self._records, self._notices)
        sums = (self._sent.table(), self._flows.table(MAX_FLOWS), self._talk.table())
        return _PartCounts(*counts, *found, *map(detached, sums))

    def frames(self, buffer: Buffer, frames: Frames) -> tuple[pa.RecordBatch, Frames]:
        """Rows of schema.FRAMES, and the frames that carry trace records."""
        seen = decode_frames(buffer, frames, _DECODED)
        is_ours = seen["is_protocol"] & (seen["group"] == self.plan.group)
        time_ns, has_time = incarnations.minus(frames.time_ns, np.int64(self.plan.clock_offset_ns))
        node_index = self._indexes[frames.interface]
        klass = _frame_class(seen["is_trace"], is_ours, seen["flags"])
        made: dict[str, Any] = {
            "time_ns": pa.array(time_ns, mask=~has_time),
            "node": _words(frames.interface, self._names),
            "node_index": pa.array(node_index, mask=node_index < 0),
            "direction": _words(frames.direction, DIRECTIONS),
            "length": pa.array(frames.length),
            "class": _words(klass, FRAME_CLASSES),
            "offset": pa.array(frames.offset),
            **{name: pa.array(seen[name], mask=~is_ours) for name in _OF_PROTOCOL},
            **{name: pa.array(seen[name]) for name in ("payload_length", "eth_dst", "ip_dst", "is_undecodable")},
        }
        rows = conformed(made, _FRAMES)
        self._talk.add(buffer, frames, seen)
        self._undecodable += int(seen["is_undecodable"].sum())
        self._count(seen, frames, node_index, klass, time_ns, has_time)
        return rows, frames.select(seen["is_trace"])

    def _count(
        self,
        seen: Columns,
        frames: Frames,
        node_index: npt.NDArray[np.int32],
        klass: npt.NDArray[np.int8],
        time_ns: npt.NDArray[np.int64],
        has_time: Mask,
    ) -> None:
        is_trace = klass == FRAME_CLASSES.index("trace")
        # A frame from a node is captured before all impairments, so that none of them has damaged it.
        is_sent = (frames.direction == PortDirection.INBOUND) & (node_index >= 0)
        self._strange += int((seen["is_undecodable"] & is_sent & (seen["eth_dst"] == mac_number(TRACE_MAC))).sum())
        if len(sent := np.flatnonzero((frames.direction == PortDirection.INBOUND) & ~is_trace)):
            within, has_bin = incarnations.minus(time_ns[sent], np.int64(self.plan.start_ns))
            is_ours = klass[sent] < len(CLASSES)
            self._sent.add(
                {
                    "bin": pa.array(within // BIN_NS, mask=~(has_bin & has_time[sent])),
                    "class": klass[sent],
                    "kind": pa.array(seen["kind"][sent], mask=~is_ours),
                    "inner": pa.array(seen["inner"][sent], mask=~is_ours),
                    "datagrams": np.ones(len(sent), np.int64),
                    "wire_bytes": frames.length[sent].astype(np.int64),
                    "payload_bytes": seen["payload_length"][sent].astype(np.int64),
                }
            )
        if len(known := np.flatnonzero(node_index >= 0)):
            is_loaded = (~is_trace & self._is_within_load(time_ns, has_time))[known]
            self._flows.add(
                {
                    "node_index": node_index[known],
                    "direction": frames.direction[known],
                    "eth_dst": seen["eth_dst"][known],
                    "ip_dst": seen["ip_dst"][known],
                    "frames": np.ones(len(known), np.int64),
                    "datagrams": (is_loaded & (klass[known] < len(CLASSES))).astype(np.int64),
                    "wire_bytes": np.where(is_loaded, frames.length[known], 0).astype(np.int64),
                }
            )

    def _is_within_load(self, time_ns: npt.NDArray[np.int64], has_time: Mask) -> Mask:
        end_ns = self.plan.load_end_ns
        if end_ns is None:
            return np.zeros(len(time_ns), np.bool_)
        return np.asarray(has_time & (time_ns >= self.plan.start_ns) & (time_ns < end_ns))

    def trace(self, buffer: Buffer, carriers: Frames) -> pa.RecordBatch:
        """Rows of schema.TRACE: records of this group that came from their member's own port."""
        records = decode_trace(buffer, carriers)
        carrier = records["frame"]
        is_ours = records["group"] == self.plan.group
        is_sent = carriers.direction[carrier] == PortDirection.INBOUND
        is_own = is_sent & (self._indexes[carriers.interface[carrier]] == records["node"])
        self._foreign += int((is_ours & ~is_own).sum())
        is_of_a_node = is_sent & (self._indexes[carriers.interface[carrier]] >= 0)
        self._strange += len(np.unique(carrier[~is_ours & is_of_a_node]))
        reports = records["detail"][is_ours & (records["event"] == Event.REPORT)]
        for notice in self._notices:
            self._notices[notice] += int((reports == int(notice)).sum())
        keep = is_ours & is_own
        seen_ns, has_time = incarnations.minus(carriers.time_ns[carrier], np.int64(self.plan.clock_offset_ns))
        self._future += int((has_time & _is_future(records["at_ns"], seen_ns))[keep].sum())
        for member, edges_ns in self.plan.idle_ns.items():
            at_ns = records["at_ns"][keep & (records["node"] == member)]
            self._idle += int((np.searchsorted(edges_ns, at_ns, "right") % 2).sum())
        self._records += incarnations.counted(
            incarnations.codes_of(records["node"][keep], records["node_incarnation"][keep])
        )
        renamed = {"member": "node", "member_incarnation": "node_incarnation"}
        made = {name: records[renamed.get(name, name)][keep] for name in _TRACE.names if name != "seen_ns"}
        return conformed(made | {"seen_ns": pa.array(seen_ns[keep], mask=~has_time[keep])}, _TRACE)


def _is_future(at_ns: npt.NDArray[np.int64], seen_ns: npt.NDArray[np.int64]) -> Mask:
    """Whether a record tells of a time after its frame was seen. Negative: a number of 64 bits, unsigned."""
    later_ns, fits = incarnations.minus(at_ns, seen_ns)
    return np.asarray((at_ns < 0) | ~fits | (later_ns > incarnations.CLOCK_ERROR_NS))


class _Sums:
    """Sums by key, merged whenever many parts are waiting."""

    def __init__(self, keys: Sequence[str], values: Sequence[str]) -> None:
        self._keys, self._values = list(keys), list(values)
        self._parts: list[pa.Table] = []

    def add(self, rows: Mapping[str, Any]) -> None:
        self._parts.append(_summed(pa.table(dict(rows)), self._keys, self._values))
        if len(self._parts) >= 64:
            self._parts = [_greatest(self.table(), 10 * MAX_FLOWS)] if "frames" in self._values else [self.table()]

    def table(self, most: int | None = None) -> pa.Table:
        if not self._parts:
            return pa.table({})
        table = _summed(pa.concat_tables(self._parts), self._keys, self._values)
        return table if most is None else _greatest(table, most)


def _summed(rows: pa.Table, keys: Sequence[str], values: Sequence[str]) -> pa.Table:
    summed = rows.group_by(list(keys), use_threads=False).aggregate([(name, "sum") for name in values])
    return summed.rename_columns([name.removesuffix("_sum") for name in summed.column_names])


def _greatest(flows: pa.Table, most: int) -> pa.Table:
    return flows if flows.num_rows <= most else flows.sort_by([("frames", "descending")]).slice(0, most)


def together(counts: Iterable[_PartCounts], plan: Plan) -> IngestCounts:
    """Sums of all tasks."""
    parts = list(counts)
    return IngestCounts(
        undecodable=sum(part.undecodable for part in parts),
        foreign_records=sum(part.foreign_records for part in parts),
        strange_datagrams=sum(part.strange_datagrams for part in parts),
        idle_records=sum(part.idle_records for part in parts),
        future_records=sum(part.future_records for part in parts),
        records=sum((part.records for part in parts), Counter()),
        notices={code: sum(part.notices[code] for part in parts) for code in plan.notices},
        sent=[
            row | {"class": FRAME_CLASSES[row["class"]]} for row in _merged([part.sent for part in parts], SENT_KEYS)
        ],
        flows=[
            row | {"direction": DIRECTIONS[row["direction"]]}
            for row in _merged([part.flows for part in parts], FLOW_KEYS, MAX_FLOWS)
        ],
        talk=traffic_source.added(pa.concat_tables([part.talk for part in parts])),
    )


def _merged(parts: Sequence[pa.Table], keys: Sequence[str], most: int | None = None) -> Rows:
    filled = [part for part in parts if part.num_rows]
    if not filled:
        return []
    values = [name for name in filled[0].column_names if name not in keys]
    table = _summed(pa.concat_tables(filled), keys, values)
    rows: Rows = (table if most is None else _greatest(table, most)).to_pylist()
    return rows


def _frame_class(is_trace: Mask, is_ours: Mask, flags: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
    """Code of each frame's class; a frame has one class."""
    klass = class_of(flags)
    klass[~is_ours] = FRAME_CLASSES.index("other")
    klass[is_trace] = FRAME_CLASSES.index("trace")
    return klass


def _words(codes: npt.NDArray[np.integer[Any]], words: Sequence[str | None]) -> pa.DictionaryArray:
    """Word of each code; null where it is None."""
    known = list(dict.fromkeys(word for word in words if word is not None))
    number = np.array([-1 if word is None else known.index(word) for word in words], np.int32)[codes]
    return pa.DictionaryArray.from_arrays(pa.array(number, mask=number < 0), pa.array(known, pa.string()))
