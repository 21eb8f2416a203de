"""`spark.read.format("orderbed-traffic")`: traffic by sender and receiver, for any protocol. NumPy counts it in the
workers, so that Spark gets a row for each conversation and span of time instead of one for each frame.

Options: `table` is `spans` (counts) or `segments` (one row for each TCP segment); `plan` is a `Plan` as JSON. `port` is
that of the service: the smaller of a frame's two port numbers, because clients get ports from 32768 on. Every frame is
*heard*, except for TCP segments without payload (acknowledgements, handshakes).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812  (the usual name)
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from analysis.capture.decode import decode_frames, decode_tcp
from analysis.capture.source import CaptureReader, Pieces, checked_batches
from analysis.errors import AnalysisError
from analysis.tasks import keep_imports
from collector.records import TRACE_MAC, Frames, PortDirection
from collector.walk import Buffer

FORMAT: Final = "orderbed-traffic"
MAC: Final = 1 << 48
"""An address with this bit is a MAC; without it, IPv4."""
TCP: Final = 6
NOT_IP: Final = 1 << 16
"""A protocol number with this bit is an ethertype; without it, one of IPv4."""

_LONG, _INT, _BOOL = T.LongType(), T.IntegerType(), T.BooleanType()


def _struct(*columns: tuple[str, T.DataType]) -> T.StructType:
    return T.StructType([T.StructField(name, kind, nullable=False) for name, kind in columns])


SPANS: Final = _struct(
    ("interface", _INT),
    ("arrived", _BOOL),
    ("source", _LONG),
    ("target", _LONG),
    ("protocol", _INT),
    ("port", _INT),
    ("is_cast", _BOOL),
    ("is_answer", _BOOL),
    ("span", _INT),
    ("frames", _LONG),
    ("wire_bytes", _LONG),
    ("first_ns", _LONG),
    ("last_ns", _LONG),
)
"""Columns of the counts. `interface`: of the capture, at which the frame was captured. `arrived`: at a node (`target`),
else sent by one. `is_cast`: multicast or broadcast. `is_answer`: from the service's port. `first_ns`, `last_ns`: of the
frames that are heard, on the capture's clock; first_ns > last_ns when none is.
"""

SEGMENTS: Final = _struct(
    ("arrived", _BOOL),
    ("source", _LONG),
    ("target", _LONG),
    ("source_port", _INT),
    ("target_port", _INT),
    ("time_ns", _LONG),
    ("offset", _LONG),
    ("number", _LONG),
    ("acknowledged", _LONG),
    ("flags", _INT),
    ("payload", _INT),
)
"""Columns of the segments. `number`: of the segment's first byte; `payload`: its bytes, without SYN and FIN."""

TABLES: Final = {"spans": SPANS, "segments": SEGMENTS}
ROWS_WAITING: Final = 1 << 16
"""Most rows that wait to be added up."""
_NEVER_NS: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Input of the workers. `edges_ns`: beginnings of spans, ascending, on the capture's clock. `ports`: IPv4 and MAC
    address of the node at each interface of the capture, 0 for no node's port.
    """

    edges_ns: tuple[int, ...]
    ports: tuple[tuple[int, int], ...]

    def encoded(self) -> str:
        """Value of the option `plan`."""
        return json.dumps(asdict(self))


class TrafficSource(DataSource):
    """Data source registered with Spark."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> T.StructType:
        table = self.options.get("table", "spans")
        if table not in TABLES:
            raise AnalysisError(f"{FORMAT}: there is no table {table!r}; choose one of {', '.join(sorted(TABLES))}")
        return TABLES[table]

    def reader(self, schema: T.StructType) -> TrafficReader:
        given = json.loads(self.options["plan"])
        plan = Plan(edges_ns=tuple(given["edges_ns"]), ports=tuple((ip, mac) for ip, mac in given["ports"]))
        parts = int(self.options.get("parts", "1"))
        return TrafficReader(self.options["path"], schema, self.options.get("table", "spans"), parts, plan)


class TrafficReader(CaptureReader):
    """Reader that cuts captures as CaptureReader does, and counts."""

    def __init__(self, path: str, schema: T.StructType, table: str, parts: int, plan: Plan) -> None:
        super().__init__(path, schema, table, parts)
        self.plan = plan

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        keep_imports()
        yield from self.batches_of(partition)

    def batches_of(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one partition, in any process."""
        assert isinstance(partition, Pieces)
        make = spans if self.table == "spans" else segments
        schema = to_arrow_schema(self.schema)
        for piece in partition.pieces:
            for buffer, frames in checked_batches(piece):
                columns = make(buffer, frames, decode_frames(buffer, frames, DECODED), self.plan)
                yield pa.RecordBatch.from_arrays([pa.array(columns[name]) for name in schema.names], schema=schema)


def added(rows: pa.Table) -> pa.Table:
    """SPANS with one row for each key."""
    sums = [(name, "sum") for name in ("frames", "wire_bytes")]
    table = rows.group_by(list(KEYS), use_threads=False).aggregate([*sums, ("first_ns", "min"), ("last_ns", "max")])
    figures = ("frames_sum", "wire_bytes_sum", "first_ns_min", "last_ns_max")
    return table.select([*KEYS, *figures]).rename_columns(SPANS.names).cast(to_arrow_schema(SPANS))


class Sums:
    """SPANS of a part of a capture, added up during another pass over it: a query would cost more than the counting. It
    stops when there are more than `max_rows`.
    """

    def __init__(self, plan: Plan, max_rows: int) -> None:
        self._plan, self._max_rows = plan, max_rows
        self._table = to_arrow_schema(SPANS).empty_table()
        self._waiting: list[pa.Table] = []
        self._has_given_up = False

    def add(self, buffer: Buffer, frames: Frames, decoded: Columns) -> None:
        """Add frames. `decoded`: result of `decode_frames`, with at least the columns DECODED."""
        if self._has_given_up:
            return
        found = spans(buffer, frames, decoded, self._plan)
        self._waiting.append(pa.table([pa.array(found[name]) for name in SPANS.names], schema=to_arrow_schema(SPANS)))
        if sum(table.num_rows for table in self._waiting) > ROWS_WAITING:
            self._table, self._waiting = self.table(), []
            self._has_given_up = self._table.num_rows > self._max_rows

    def table(self) -> pa.Table:
        """All rows, or `max_rows` + 1 of them."""
        return added(pa.concat_tables([self._table, *self._waiting])).slice(0, self._max_rows + 1)


Columns = dict[str, npt.NDArray[Any]]
KEYS: Final = ("interface", "arrived", "source", "target", "protocol", "port", "is_cast", "is_answer", "span")


DECODED: Final = ("eth_dst", "eth_src", "ethertype", "ip_src", "ip_dst", "ip_proto", "udp_src", "udp_dst")
"""Decoded columns that are needed of a frame."""


def spans(buffer: Buffer, frames: Frames, decoded: Columns, plan: Plan) -> Columns:
    """Columns of SPANS, one row for each key in these frames."""
    found = _fields(buffer, frames, decoded, plan)
    found["span"] = np.searchsorted(np.array(plan.edges_ns, np.int64), found["time_ns"], side="right").astype(np.int32)
    first, inverse = grouped([found[name] for name in KEYS])
    rows = len(first)
    is_heard = (found["protocol"] != TCP) | (found["payload"] > 0)
    earliest, latest = np.full(rows, _NEVER_NS), np.full(rows, -_NEVER_NS)
    np.minimum.at(earliest, inverse[is_heard], found["time_ns"][is_heard])
    np.maximum.at(latest, inverse[is_heard], found["time_ns"][is_heard])
    return {
        **{name: found[name][first] for name in KEYS},
        "frames": np.bincount(inverse, minlength=rows).astype(np.int64),
        "wire_bytes": np.bincount(inverse, weights=found["length"], minlength=rows).astype(np.int64),
        "first_ns": earliest,
        "last_ns": latest,
    }


def segments(buffer: Buffer, frames: Frames, decoded: Columns, plan: Plan) -> Columns:
    """Columns of SEGMENTS, one row for each TCP segment whose header was captured."""
    found = _fields(buffer, frames, decoded, plan)
    rows = (found["protocol"] == TCP) & found["has_header"]
    return {name: found[name][rows] for name in SEGMENTS.names}


def _fields(buffer: Buffer, frames: Frames, decoded: Columns, plan: Plan) -> Columns:
    """Fields of each frame, without trace datagrams."""
    is_kept = decoded["eth_dst"] != _TRACE_MAC
    if not is_kept.all():
        decoded = {name: decoded[name][is_kept] for name in DECODED}
        frames = frames.select(is_kept)
    is_ip = decoded["ip_proto"] >= 0
    found: Columns = {
        "time_ns": frames.time_ns,
        "offset": frames.offset,
        "interface": frames.interface,
        "length": frames.length,
        "is_cast": (decoded["eth_dst"] >> 40) & 1 == 1,
        "source": np.where(is_ip, decoded["ip_src"], decoded["eth_src"] | MAC),
        "protocol": np.where(is_ip, decoded["ip_proto"], NOT_IP | (decoded["ethertype"] & 0xFFFF)).astype(np.int32),
        "source_port": decoded["udp_src"].astype(np.int32),
        "target_port": decoded["udp_dst"].astype(np.int32),
    }
    found["arrived"] = frames.direction != PortDirection.INBOUND
    found["target"] = _targets(frames, decoded, is_ip, found["is_cast"], plan)
    found |= _tcp(buffer, frames, found)
    found["port"] = np.minimum(found["source_port"], found["target_port"])
    found["is_answer"] = found["source_port"] == found["port"]
    return found


def _targets(
    frames: Frames, decoded: Columns, is_ip: npt.NDArray[np.bool_], is_cast: npt.NDArray[np.bool_], plan: Plan
) -> npt.NDArray[np.int64]:
    """Address of the receiver of each frame; of a multicast that arrived at a port, that of the port's node."""
    target = np.where(is_ip, decoded["ip_dst"], decoded["eth_dst"] | MAC)
    owners = np.array([*plan.ports, (0, 0)], np.int64)
    place = np.where((frames.interface >= 0) & (frames.interface < len(plan.ports)), frames.interface, len(plan.ports))
    owner = np.where(is_ip, owners[place, 0], owners[place, 1] | MAC)
    at_port = is_cast & (owners[place, 1] != 0) & (frames.direction == PortDirection.OUTBOUND)
    return np.asarray(np.where(at_port, owner, target))


def _tcp(buffer: Buffer, frames: Frames, found: Columns) -> Columns:
    """Ports, numbers, flags and payload of TCP segments; other frames keep their ports and have zeros."""
    count = len(frames)
    columns: Columns = {name: found[name].copy() for name in ("source_port", "target_port")}
    columns |= {name: np.zeros(count, np.int64) for name in ("number", "acknowledged")}
    columns |= {name: np.zeros(count, np.int32) for name in ("flags", "payload")}
    columns["has_header"] = np.zeros(count, np.bool_)
    rows = np.flatnonzero(found["protocol"] == TCP)
    if len(rows):
        whole, tcp = decode_tcp(buffer, frames.select(rows))
        for name, field in {"source_port": "source", "target_port": "target"}.items():
            columns[name][rows[whole]] = tcp[field]
        for name in ("number", "acknowledged", "flags", "payload"):
            columns[name][rows[whole]] = tcp[name]
        columns["has_header"][rows[whole]] = True
    return columns


def grouped(columns: Sequence[npt.NDArray[Any]]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Groups of rows that agree in all columns: first row of each group, and group of each row.

    Rows are grouped by a hash; if a hostile capture makes two of them collide, by a sort of all columns.
    """
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        mixed = (mixed ^ column.astype(np.int64).view(np.uint64)) * _MIX
        mixed ^= mixed >> np.uint64(29)
    _, first, inverse = np.unique(mixed, return_index=True, return_inverse=True)
    if not all(np.array_equal(column[first][inverse], column) for column in columns):
        table = np.stack([column.astype(np.int64) for column in columns], axis=1)
        _, first, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)


_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_TRACE_MAC: Final = int(TRACE_MAC.replace(":", ""), 16)
