"""`spark.read.format("orderbed-pcapng")`: captures as DataFrames, parsed by NumPy in whole blocks and handed over as
Arrow.

    spark.dataSource.register(CaptureSource)                  # analysis.session has done it
    spark.read.format("orderbed-pcapng").load("capture.pcapng")
    spark.read.format("orderbed-pcapng").schema("time_ns long, sender int").option("table", "frames").load(path)

Options: `path` (a file, a directory, or a pattern; pcapng and pcap, ours or anybody's), `table` (`frames`: one row
per frame; `trace`: one row per trace record), `parts` (how many pieces one file may be cut into; the default suits
one machine). Files are cut at block boundaries; small files share a partition. Only the columns of the schema are
made: Spark tells a Python source nothing of the columns a query needs, so a narrow schema is what makes it fast.

A capture that was cut off gives the rows before the cut; `inspect` says so. One that is no capture is an error.
"""

from __future__ import annotations

import gc
import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812  (the name that everybody knows)
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from analysis.errors import AnalysisError
from collector.blocks import CutOffError
from collector.parse import CaptureHead, batches, decode_frames, decode_trace, map_capture, read_interfaces, split
from collector.records import DECODED_ROW, FRAME_ROW, TRACE_ROW, CaptureError, Column, Frames
from collector.walk import Buffer

FORMAT = "orderbed-pcapng"
ROWS_PER_BATCH = 1 << 16
LEAST_PART_BYTES = 8 << 20
"""A smaller piece costs more to start (30 ms) than to parse."""
MAGIC_BYTES = 4
"""With fewer nobody can say whether this was going to be a capture."""
SUFFIXES = (".pcapng", ".pcap")

FILE_COLUMN = "file"
_CARRIER = tuple(column for column in FRAME_ROW if column.name in ("time_ns", "interface", "direction"))
"""What a trace row keeps of the frame that carried it."""

_TABLES: dict[str, tuple[Column, ...]] = {
    "frames": (*FRAME_ROW, *DECODED_ROW),
    "trace": (*_CARRIER, *(column for column in TRACE_ROW if column.name != "frame")),
}
_SPARK_TYPES: dict[type[np.generic], T.DataType] = {
    np.int8: T.ByteType(),
    np.int16: T.ShortType(),
    np.int32: T.IntegerType(),
    np.int64: T.LongType(),
    np.bool_: T.BooleanType(),
}


class Piece(NamedTuple):
    """Part of one file: the blocks that begin in [start, end)."""

    path: str
    start: int
    end: int


class Pieces(InputPartition):
    """What one task reads."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(tuple(pieces))
        self.pieces = tuple(pieces)


class CaptureSource(DataSource):
    """The entry that Spark knows."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> T.StructType:
        return table_schema(self._table)

    def reader(self, schema: T.StructType) -> DataSourceReader:
        path = self.options.get("path")
        if path is None:
            raise AnalysisError(f"{FORMAT}: give the capture, for example .load('capture.pcapng')")
        parts = int(self.options.get("parts") or os.cpu_count() or 1)
        return CaptureReader(path, _checked(schema, self._table), self._table, parts)

    @property
    def _table(self) -> str:
        table = self.options.get("table", "frames")
        if table not in _TABLES:
            raise AnalysisError(f"{FORMAT}: there is no table {table!r}; choose one of {', '.join(sorted(_TABLES))}")
        return table


class CaptureReader(DataSourceReader):
    """Plans partitions and reads them. Everything in it is plain data: it travels to the workers."""

    def __init__(self, path: str, schema: T.StructType, table: str, parts: int) -> None:
        self.path = path
        self.schema = schema
        self.table = table
        self.parts = parts

    def partitions(self) -> Sequence[InputPartition]:
        pieces = [Piece(str(file), *bounds) for file in _files(self.path) for bounds in _cuts(file, self.parts)]
        return [Pieces(group) for group in _grouped(pieces)] or [Pieces(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # A worker runs a full collection after each task; what it imported need not be looked at again.
        gc.freeze()
        assert isinstance(partition, Pieces)
        for piece in partition.pieces:
            yield from self._read(piece)

    def _read(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        interfaces = read_interfaces(piece.path).interfaces
        buffer = map_capture(piece.path)
        make = _frame_columns if self.table == "frames" else _trace_columns
        arrow = _arrow_schema(self.schema)
        for frames in batches(buffer, start=piece.start, end=piece.end, interfaces=interfaces):
            columns = make(buffer, frames, self.schema.names)
            rows = len(next(iter(columns.values()), ()))
            if FILE_COLUMN in self.schema.names:
                columns[FILE_COLUMN] = pa.repeat(piece.path, rows)
            batch = pa.RecordBatch.from_arrays([pa.array(columns[name]) for name in arrow.names], schema=arrow)
            for at in range(0, rows, ROWS_PER_BATCH):
                yield batch.slice(at, ROWS_PER_BATCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureState:
    """What can be said of one capture before its rows are looked at. `problem` is empty when every block is whole."""

    interface_names: tuple[str, ...]
    metadata: dict[str, Any]
    """The section header's JSON object: run, group, clock; empty for foreign captures."""
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
    """Look through a capture once (10 million frames a second).

    Raises AnalysisError when it is no capture or cannot be read. One that was cut off is a capture, at whatever byte.
    """
    try:
        size = path.stat().st_size
        head = _head(path)
        found = [] if head is None else _survey(path, head, size)
    except CaptureError as error:
        raise AnalysisError(str(error)) from error
    except OSError as error:
        raise AnalysisError(f"{path}: the capture cannot be read ({error.strerror})") from error
    first_ns = [int(part.time_ns.min()) for part in found if len(part)]
    last_ns = [int(part.time_ns.max()) for part in found if len(part)]
    problem = next((part.problem for part in found if part.problem), "")
    return CaptureState(
        interface_names=() if head is None else head.interfaces.names,
        metadata={} if head is None else head.section.metadata,
        frames=sum(len(part) for part in found),
        bytes=size,
        truncated=head is None or any(part.truncated for part in found),
        problem="cut off in its head" if head is None else problem,
        damaged=sum(part.damaged for part in found),
        first_ns=min(first_ns, default=None),
        last_ns=max(last_ns, default=None),
    )


def table_schema(table: str) -> T.StructType:
    """All columns that the source has for this table, with what they mean as comment."""
    fields = [
        T.StructField(column.name, _SPARK_TYPES[column.dtype], nullable=False, metadata={"comment": column.meaning})
        for column in _TABLES[table]
    ]
    fields.append(T.StructField(FILE_COLUMN, T.StringType(), nullable=False, metadata={"comment": "the capture"}))
    return T.StructType(fields)


def _checked(schema: T.StructType, table: str) -> T.StructType:
    """A schema that a user gave: a choice of our columns, with our types."""
    known = {field.name: field.dataType for field in table_schema(table).fields}
    for field in schema.fields:
        if field.name not in known:
            raise AnalysisError(f"{FORMAT}: {table} has no column {field.name!r}; it has {', '.join(sorted(known))}")
        if field.dataType != known[field.name]:
            kind = known[field.name].simpleString()
            raise AnalysisError(f"{FORMAT}: column {field.name!r} is {kind}, not {field.dataType.simpleString()}")
    return schema


def _arrow_schema(schema: T.StructType) -> pa.Schema:
    types: dict[T.DataType, pa.DataType] = {
        T.ByteType(): pa.int8(),
        T.ShortType(): pa.int16(),
        T.IntegerType(): pa.int32(),
        T.LongType(): pa.int64(),
        T.BooleanType(): pa.bool_(),
        T.StringType(): pa.string(),
    }
    return pa.schema([pa.field(field.name, types[field.dataType], field.nullable) for field in schema.fields])


def _files(path: str) -> list[Path]:
    """The captures that a path means, sorted."""
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


def _head(path: Path) -> CaptureHead | None:
    """What stands before the frames; None when the file was cut off in there, or is still empty."""
    if path.stat().st_size < MAGIC_BYTES:
        return None
    try:
        return read_interfaces(path)
    except CutOffError:
        return None


def _cuts(file: Path, parts: int) -> list[tuple[int, int]]:
    if _head(file) is None:
        return []
    return split(file, max(1, min(parts, file.stat().st_size // LEAST_PART_BYTES)))


def _grouped(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Pieces together until they make a task worth its start."""
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


def _survey(path: Path, head: CaptureHead, size: int) -> list[Frames]:
    if head.first_offset >= size:
        return []
    return list(batches(map_capture(path), start=head.first_offset, end=size, interfaces=head.interfaces))


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
