"""`spark.read.format("orderbed-pcapng")`: captures as DataFrames, parsed by NumPy in whole blocks, as Arrow.

    spark.dataSource.register(CaptureSource)                  # analysis.engine.session has done it
    spark.read.format("orderbed-pcapng").load("capture.pcapng")
    spark.read.format("orderbed-pcapng").schema("time_ns long, sender int").option("table", "frames").load(path)

docs/analysis.md has the options. Files are cut at block boundaries; small files share a partition. Only the columns of
the schema are made. Spark does not tell a Python source which columns a query needs, so a narrow schema makes it fast.

A capture that was cut off gives the rows before the cut; `inspect` reports the cut. A file that is no capture is an
error, and so is a capture of another link type than Ethernet.

`spark.readStream.format("orderbed-pcapng")` follows a capture that is still being written (`analysis.capture.stream`).
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812  (the usual name)
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from analysis.capture.decode import decode_frames, decode_trace
from analysis.errors import AnalysisError
from analysis.tasks import keep_imports
from collector import index
from collector.blocks import CutOffError, Interfaces
from collector.parse import CaptureHead, batches, count, map_capture, read_sections, split_section
from collector.records import DECODED_ROW, ETHERNET_LINK_TYPE, FRAME_ROW, TRACE_ROW, CaptureError, Column, Frames
from collector.walk import Buffer

FORMAT = "orderbed-pcapng"
ROWS_PER_BATCH = 1 << 16
LEAST_PART_BYTES = 8 << 20
"""A smaller piece costs more to start (30 ms) than to parse."""
MAGIC_BYTES = 4
"""A shorter file cannot be recognised as a capture."""
SUFFIXES = (".pcapng", ".pcap")

FILE_COLUMN = "file"
_CARRIER = tuple(column for column in FRAME_ROW if column.name in ("time_ns", "interface", "direction"))
"""Columns of the carrying frame that a trace row keeps."""

_OF_FRAMES = {column.name for column in (*FRAME_ROW, *DECODED_ROW)}
_ONLY_OF_RECORDS = tuple(column for column in TRACE_ROW if column.name not in _OF_FRAMES and column.name != "frame")

TABLES: dict[str, tuple[Column, ...]] = {
    "frames": (*FRAME_ROW, *DECODED_ROW),
    "trace": (*_CARRIER, *(column for column in TRACE_ROW if column.name != "frame")),
    "live": (*FRAME_ROW, *DECODED_ROW, *_ONLY_OF_RECORDS),
}
_SPARK_TYPES: dict[type[np.generic], T.DataType] = {
    np.int8: T.ByteType(),
    np.int16: T.ShortType(),
    np.int32: T.IntegerType(),
    np.int64: T.LongType(),
    np.bool_: T.BooleanType(),
}


LINK_TYPES = {
    0: "BSD loopback",
    1: "Ethernet",
    101: "raw IP",
    105: "IEEE 802.11",
    113: "Linux cooked",
    127: "IEEE 802.11 with radiotap",
    220: "USB",
    239: "Netfilter log",
    253: "Netlink",
    276: "Linux cooked, version 2",
}
"""Common link types; others are shown by number."""


class Piece(NamedTuple):
    """Part of one section of one file: the blocks that begin in [start, end)."""

    path: str
    start: int
    end: int
    interfaces: Interfaces
    is_last: bool = True
    """The section ends with this piece; any other piece must end exactly where the next one begins."""


class Pieces(InputPartition):
    """Pieces that one task reads."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(tuple(pieces))
        self.pieces = tuple(pieces)


class CaptureReader(DataSourceReader):
    """Plans partitions and reads them. All its fields are plain data: it is sent to the workers."""

    def __init__(self, path: str, schema: T.StructType, table: str, parts: int) -> None:
        self.path = path
        self.schema = schema
        self.table = table
        self.parts = parts

    def partitions(self) -> Sequence[InputPartition]:
        # A cluster's worker has a different working directory.
        pieces = [piece for file in _files(str(Path(self.path).absolute())) for piece in _pieces(file, self.parts)]
        return [Pieces(group) for group in _grouped(pieces)] or [Pieces(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_pieces(partition, self.schema, self.table)


def read_pieces(partition: InputPartition, schema: T.StructType, table: str) -> Iterator[pa.RecordBatch]:
    """Rows of one task."""
    keep_imports()
    assert isinstance(partition, Pieces)
    for piece in partition.pieces:
        yield from read_piece(piece, schema, table)


def read_piece(piece: Piece, schema: T.StructType, table: str) -> Iterator[pa.RecordBatch]:
    """Rows of one piece. Raises AnalysisError when it does not end where the next one begins."""
    make = _MAKERS[table]
    arrow = to_arrow_schema(schema)
    for buffer, frames in checked_batches(piece):
        columns = make(buffer, frames, schema.names)
        rows = len(next(iter(columns.values()), ()))
        if FILE_COLUMN in schema.names:
            columns[FILE_COLUMN] = pa.repeat(piece.path, rows)
        batch = pa.RecordBatch.from_arrays([pa.array(columns[name]) for name in arrow.names], schema=arrow)
        for at in range(0, rows, ROWS_PER_BATCH):
            yield batch.slice(at, ROWS_PER_BATCH)


def checked_batches(piece: Piece) -> Iterator[tuple[Buffer, Frames]]:
    """Frames of one piece, batch by batch. Raises AnalysisError when it does not end where the next one begins."""
    buffer = map_capture(piece.path)
    for frames in batches(buffer, start=piece.start, end=piece.end, interfaces=piece.interfaces):
        yield buffer, frames
        if not piece.is_last and not frames.problem and frames.stop > piece.end:
            beside = index.path_of(Path(piece.path)).name
            raise AnalysisError(f"{piece.path}: its index does not fit it; remove {beside} and try again")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureState:
    """Summary of one capture from one pass over its blocks. `problem` is empty when every block is whole."""

    interface_names: tuple[str, ...]
    """Of all sections."""
    metadata: dict[str, Any]
    """JSON object of the section header: run, group, clock; empty for captures of other programs."""
    frames: int
    bytes: int
    truncated: bool
    """The file ends inside a block: it was cut off, or is still being written."""
    problem: str
    damaged: int
    """Blocks left out because they contradict themselves."""
    first_ns: int | None
    last_ns: int | None


def inspect(path: Path) -> CaptureState:
    """Scan a capture once (5 million frames a second).

    Raises AnalysisError when it is no capture or cannot be read. A capture that was cut off, at any byte, is no error.
    """
    try:
        size = path.stat().st_size
        heads = heads_of(path)
        seen = count(path, heads)
    except CaptureError as error:
        raise AnalysisError(str(error)) from error
    except OSError as error:
        raise AnalysisError(f"{path}: the capture cannot be read ({error.strerror})") from error
    return CaptureState(
        interface_names=tuple(name for head in heads for name in head.interfaces.names),
        metadata=heads[0].section.metadata if heads else {},
        frames=seen.frames,
        bytes=size,
        truncated=not heads or seen.is_truncated,
        problem=seen.problem if heads else "cut off in its head",
        damaged=seen.damaged,
        first_ns=seen.first_ns,
        last_ns=seen.last_ns,
    )


def sections_of(path: Path) -> tuple[CaptureHead, ...]:
    """Sections of a capture; none when it was cut off in its head or is still empty."""
    if path.stat().st_size < MAGIC_BYTES:
        return ()
    try:
        return read_sections(path)
    except CutOffError:
        return ()


def heads_of(path: Path) -> tuple[CaptureHead, ...]:
    """Sections of a capture of Ethernet frames; none when it was cut off in its head or is still empty.

    Raises CaptureError, AnalysisError or OSError.
    """
    heads = sections_of(path)
    for head in heads:
        require_ethernet(path, head.interfaces)
    return heads


def require_ethernet(path: Path, interfaces: Interfaces) -> None:
    """Raises AnalysisError for an interface of another link type, whose bytes would be misread as Ethernet."""
    for port in interfaces.ports:
        if port.link_type != ETHERNET_LINK_TYPE:
            kind = LINK_TYPES.get(port.link_type, f"link type {port.link_type}")
            raise AnalysisError(
                f"{path}: interface {port.name!r} was captured as {kind}, and only Ethernet can be read; "
                "capture at one Ethernet interface (not `any`), or keep the frames of such a one: "
                "tshark -r old -Y frame.interface_id==0 -w new"
            )


def table_schema(table: str) -> T.StructType:
    """All columns of a table, with their meanings as comments."""
    fields = [
        T.StructField(column.name, _SPARK_TYPES[column.dtype], nullable=False, metadata={"comment": column.meaning})
        for column in TABLES[table]
    ]
    fields.append(T.StructField(FILE_COLUMN, T.StringType(), nullable=False, metadata={"comment": "the capture"}))
    return T.StructType(fields)


def checked_schema(schema: T.StructType, table: str) -> T.StructType:
    """A user's schema, checked: columns of the table, with their types."""
    known = {field.name: field.dataType for field in table_schema(table).fields}
    for field in schema.fields:
        if field.name not in known:
            raise AnalysisError(f"{FORMAT}: {table} has no column {field.name!r}; it has {', '.join(sorted(known))}")
        if field.dataType != known[field.name]:
            kind = known[field.name].simpleString()
            raise AnalysisError(f"{FORMAT}: column {field.name!r} is {kind}, not {field.dataType.simpleString()}")
    return schema


def _files(path: str) -> list[Path]:
    """Captures that a path names, sorted."""
    if Path(path).is_file():
        return [Path(path)]
    if Path(path).is_dir():
        found = [file for file in Path(path).iterdir() if file.suffix in SUFFIXES]
    else:
        found = [Path(file) for file in glob.glob(path)]  # noqa: PTH207  (Path.glob takes no absolute pattern)
    if not found:
        raise AnalysisError(
            f"{path}: there is no capture; give a pcapng or pcap file, a directory of them, or a pattern"
        )
    return sorted(found)


def _pieces(file: Path, parts: int) -> list[Piece]:
    try:
        heads = heads_of(file)
    except CaptureError as error:
        raise AnalysisError(str(error)) from error
    pieces: list[Piece] = []
    for head in heads:
        wanted = max(1, min(parts, (head.end - head.first_offset) // LEAST_PART_BYTES))
        cuts = split_section(file, head, wanted)
        pieces += [Piece(str(file), *cut, head.interfaces, cut is cuts[-1]) for cut in cuts]
    return pieces


def _grouped(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Groups of pieces, each large enough to be worth starting a task."""
    groups: list[list[Piece]] = []
    room = 0
    for piece in pieces:
        size = piece.end - piece.start
        if not groups or size > room:
            groups.append([])
            room = LEAST_PART_BYTES
        groups[-1].append(piece)
        room -= size
    return groups


def number_option(text: str | None, option: str) -> int | None:
    """Value of an option that is a positive number; None: not given."""
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:19]) < 1 << 62:
        raise AnalysisError(f"{FORMAT}: {option} must be a number from 1 on, not {text!r}")
    return int(text)


_NUMPY_COLUMNS = {column.name for column in FRAME_ROW}


def _frame_columns(buffer: Buffer, frames: Frames, names: Sequence[str]) -> dict[str, Any]:
    decoded = [column.name for column in DECODED_ROW if column.name in names]
    columns: dict[str, Any] = {name: getattr(frames, name) for name in _NUMPY_COLUMNS}
    if decoded:
        columns |= decode_frames(buffer, frames, decoded)
    return columns


def _trace_columns(buffer: Buffer, frames: Frames, names: Sequence[str]) -> dict[str, Any]:
    columns: dict[str, Any] = dict(decode_trace(buffer, frames))
    carrier: npt.NDArray[np.int64] = columns["frame"]
    return columns | {column.name: getattr(frames, column.name)[carrier] for column in _CARRIER if column.name in names}


def _live_columns(buffer: Buffer, frames: Frames, names: Sequence[str]) -> dict[str, Any]:
    """Rows of the frames of a batch, then rows of the trace records in them. A column that does not apply is 0."""
    wanted = [name for name in (*_OF_FRAMES, "is_trace") if name in names or name == "is_trace"]
    seen = _frame_columns(buffer, frames, wanted)
    carriers = frames.select(seen["is_trace"])
    traced = _trace_columns(buffer, carriers, names)
    count, records = len(frames), len(traced["event"])
    columns: dict[str, Any] = {}
    for name in names:
        if name == FILE_COLUMN:
            continue
        parts = [seen[name] if name in seen else np.zeros(count, traced[name].dtype)]
        parts.append(traced[name] if name in traced else np.zeros(records, parts[0].dtype))
        columns[name] = np.concatenate(parts).astype(parts[0].dtype)
    return columns


_MAKERS = {"frames": _frame_columns, "trace": _trace_columns, "live": _live_columns}
