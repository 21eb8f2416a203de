"""The Spark data source `orderbed-pcapng`, and its stream over a capture that is still being written.

    frames = spark.readStream.format("orderbed-pcapng").schema("time_ns long, sender int").load("capture.pcapng")

Options as for reading, of one file, and `batchBytes` (docs/analysis.md).

An offset is the byte after the last whole block. So a block that is half written waits for its other half, and a query
that restarts from its checkpoint reads every block once, provided that the file only grew. The file need not exist yet.
A block that contradicts itself is an error, as is a file that became shorter. A capture of several sections is followed
to the end of the first: a capture that is being written has only one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812  (the usual name)
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from analysis.capture import source
from analysis.capture.source import (
    FORMAT,
    LEAST_PART_BYTES,
    TABLES,
    CaptureReader,
    Piece,
    Pieces,
    checked_schema,
    number_option,
    read_pieces,
    require_ethernet,
    table_schema,
)
from analysis.errors import AnalysisError
from collector.blocks import INTERFACE_DESCRIPTION, SECTION_HEADER, CutOffError, Interfaces, Layout
from collector.parse import add_interfaces, map_capture, read_head
from collector.records import CaptureError
from collector.walk import Offsets, overlapping, walk

BATCH_BYTES = 64 << 20
BYTE = "byte"
"""Only key of an offset."""


class Follower:
    """Reader of a growing capture: end of its whole blocks, and the interfaces described up to there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.interfaces: Interfaces | None = None
        """None: the head of the file is not yet written."""
        self.first = 0
        self._known = 0
        """Interface descriptions before this byte have been read."""

    def boundary(self, start: int, room: int) -> int:
        """End of the last whole block within `room` bytes after `start` (at least one block, if it is longer).

        Raises AnalysisError for a file that is no capture, is damaged or has become shorter.
        """
        size = self._size()
        if not self._opens(size):
            return start
        if size < start:
            raise AnalysisError(f"{self.path}: has become shorter while it was followed ({size} bytes after {start})")
        begin = max(start, self.first)
        self._learn(begin)
        offsets, stop = self._blocks(begin, min(begin + room, size))
        self._take_interfaces(offsets)
        self._known = max(self._known, stop)
        return max(start, stop)

    def pieces(self, start: int, end: int, parts: int) -> list[Piece]:
        """Pieces between two block boundaries, cut at block boundaries."""
        if end <= start or not self._opens(self._size()) or self.interfaces is None:
            return []
        begin = max(start, self.first)
        self._learn(end)
        offsets, _ = self._blocks(begin, end)
        wanted = max(1, min(parts, (end - begin) // LEAST_PART_BYTES))
        places = np.searchsorted(offsets, begin + (end - begin) * np.arange(1, wanted) // wanted)
        cuts = sorted({begin, *offsets[places[places < len(offsets)]].tolist()})
        return [
            Piece(str(self.path), cut, after, self.interfaces)
            for cut, after in zip(cuts, [*cuts[1:], end], strict=True)
            if after > cut
        ]

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise AnalysisError(f"{self.path}: the capture cannot be read ({error.strerror})") from error

    def _opens(self, size: int) -> bool:
        """Whether the head of the file can be read by now."""
        if self.interfaces is not None:
            return True
        if size < source.MAGIC_BYTES:
            return False
        try:
            head = read_head(self.path, map_capture(self.path))
        except CutOffError:
            return False
        except CaptureError as error:
            raise AnalysisError(str(error)) from error
        self.first = self._known = head.first_offset
        self.interfaces = head.interfaces
        require_ethernet(self.path, self.interfaces)
        return True

    def _learn(self, end: int) -> None:
        """Read the interfaces before the byte at which a query continues; the query may have been restarted."""
        while self._known < end:
            offsets, stop = self._blocks(self._known, min(self._known + BATCH_BYTES, end))
            if stop <= self._known:
                raise AnalysisError(
                    f"{self.path}: is not the capture that was followed: byte {end} lies behind its end"
                )
            self._take_interfaces(offsets)
            self._known = stop

    def _blocks(self, begin: int, end: int) -> tuple[Offsets, int]:
        assert self.interfaces is not None
        if begin >= end:
            return np.empty(0, np.int64), begin
        buffer = map_capture(self.path)
        order = self.interfaces.byte_order
        found = walk(buffer, start=begin, end=min(end, len(buffer)), layout=self.interfaces.layout, byte_order=order)
        if found.problem and not found.truncated:
            raise AnalysisError(f"{self.path}: is damaged: {found.problem}")
        offsets, stop = found.offsets, found.stop
        if self.interfaces.layout is Layout.PCAPNG:
            sections = offsets[overlapping(buffer, order + "u4")[offsets] == SECTION_HEADER]
            if len(sections):
                stop = int(sections[0])
                offsets = offsets[offsets < stop]
        return offsets, stop

    def _take_interfaces(self, offsets: Offsets) -> None:
        assert self.interfaces is not None
        new = offsets[offsets >= self._known]
        if self.interfaces.layout is not Layout.PCAPNG or not len(new):
            return
        buffer = map_capture(self.path)
        kinds = overlapping(buffer, self.interfaces.byte_order + "u4")[new]
        late = new[kinds == INTERFACE_DESCRIPTION].tolist()
        if late:
            self.interfaces = add_interfaces(self.path, buffer, self.interfaces, late)
            require_ethernet(self.path, self.interfaces)


class CaptureStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches: planned in one process that lives as long as the query, read in workers."""

    def __init__(
        self, path: str, schema: T.StructType, table: str, *, parts: int, batch_bytes: int | None = None
    ) -> None:
        if any(letter in path for letter in "*?[") or Path(path).is_dir():
            raise AnalysisError(f"{path}: one capture can be followed at a time; give its file")
        self.schema = schema
        self.table = table
        self.parts = parts
        self.batch_bytes = batch_bytes or BATCH_BYTES
        self.last: int | None = None
        """End of a query over the bytes available now; None: the query continues."""
        self.follower = Follower(Path(path).absolute())

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (the names in this class are Spark's)
        return {BYTE: 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxBytes(self.batch_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.last = self.follower.path.stat().st_size if self.follower.path.exists() else 0

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = int(start[BYTE])
        room = limit.max_bytes if isinstance(limit, ReadMaxBytes) else 1 << 62
        if self.last is not None:
            room = min(room, max(self.last - begin, 0))
        return {BYTE: self.follower.boundary(begin, room) if room else begin}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        pieces = self.follower.pieces(int(start[BYTE]), int(end[BYTE]), self.parts)
        return [Pieces([piece]) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_pieces(partition, self.schema, self.table)


class CaptureSource(DataSource):
    """Data source registered with Spark."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> T.StructType:
        return table_schema(self._table)

    def reader(self, schema: T.StructType) -> DataSourceReader:
        return CaptureReader(self._path(), checked_schema(schema, self._table), self._table, self._parts)

    def streamReader(self, schema: T.StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        batch = number_option(self.options.get("batchBytes"), "batchBytes")
        schema = checked_schema(schema, self._table)
        return CaptureStream(self._path(" to follow"), schema, self._table, parts=self._parts, batch_bytes=batch)

    def _path(self, what_for: str = "") -> str:
        path = self.options.get("path")
        if path is None:
            raise AnalysisError(f"{FORMAT}: give the capture{what_for}, for example .load('capture.pcapng')")
        return path

    @property
    def _parts(self) -> int:
        return number_option(self.options.get("parts"), "parts") or os.cpu_count() or 1

    @property
    def _table(self) -> str:
        table = self.options.get("table", "frames")
        if table not in TABLES:
            raise AnalysisError(f"{FORMAT}: there is no table {table!r}; choose one of {', '.join(sorted(TABLES))}")
        return table
