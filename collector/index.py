"""The index file of a capture: offsets of blocks, by which the capture can be split and read from the middle.

`capture.pcapng.index` is a chain of records of 32 bytes, little-endian, appended after the capture's own bytes were
written:

    offset u64   a block boundary of the capture
    frames u64   packet blocks before that byte
    time_ns i64  time stamp (CLOCK_REALTIME) of the first frame behind it; in the END record of the last frame (0: none)
    kind u32     HEAD, MARK or END
    check u32    CRC-32 of the 28 bytes before

The file begins with one HEAD record (offset: the first packet block; frames: FORMAT; time_ns: the letters `OBINDEX1`),
continues with a MARK about every MiB of capture, and closes with one END record: `offset` is the byte after the last
packet block and `frames` the total. Without END the capture is still being written, or its writer died; all marks up to
then are valid. A reader stops at the first record that is damaged (short, wrong check, going backwards) and ignores the
rest.
"""

from __future__ import annotations

import enum
import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

from collector.records import INDEX_SUFFIX

FORMAT = 1
LETTERS = int.from_bytes(b"OBINDEX1", "little")
RECORD_BYTES = 32
_RECORD = struct.Struct("<QQqI")
_CHECK = struct.Struct("<I")
MAX_MARKS = 1 << 18
"""Most records that are read: enough for 256 GiB with a mark per MiB."""


class IndexKind(enum.IntEnum):
    HEAD = 1
    MARK = 2
    END = 3


class Mark(NamedTuple):
    """A block boundary: `frames` packet blocks are before byte `offset`; the next one has the time stamp `time_ns`."""

    offset: int
    frames: int
    time_ns: int


class Index(NamedTuple):
    """Contents of an index. No marks: there is no index, or it is invalid. `end` None: not complete."""

    first_offset: int
    marks: tuple[Mark, ...]
    end: Mark | None


NO_INDEX = Index(0, (), None)


def path_of(capture: Path) -> Path:
    """Path of the index of a capture."""
    return capture.with_name(capture.name + INDEX_SUFFIX)


def pack(kind: IndexKind, mark: Mark) -> bytes:
    """Bytes of one record."""
    body = _RECORD.pack(mark.offset, mark.frames, mark.time_ns, kind)
    return body + _CHECK.pack(zlib.crc32(body))


def pack_head(first_offset: int) -> bytes:
    """Bytes of the first record of an index."""
    return pack(IndexKind.HEAD, Mark(first_offset, FORMAT, LETTERS))


def read(capture: Path) -> Index:
    """Valid part of the index of a capture; NO_INDEX when there is none of this format."""
    try:
        with open(path_of(capture), "rb", opener=_without_waiting) as file:
            data = file.read(MAX_MARKS * RECORD_BYTES)
    except OSError:
        return NO_INDEX  # a capture without an index is read whole
    head = _unpack(data, 0)
    if head is None or head[0] is not IndexKind.HEAD or head[1][1:] != (FORMAT, LETTERS):
        return NO_INDEX
    return _read_marks(data, head[1].offset)


def _read_marks(data: bytes, first_offset: int) -> Index:
    marks: list[Mark] = []
    last = Mark(first_offset, 0, 0)
    for at in range(RECORD_BYTES, len(data), RECORD_BYTES):
        record = _unpack(data, at)
        if record is None or record[1].offset < last.offset or record[1].frames < last.frames:
            break
        kind, last = record
        if kind is IndexKind.END:
            return Index(first_offset, tuple(marks), last)
        marks.append(last)
    return Index(first_offset, tuple(marks), None)


def _without_waiting(path: str, flags: int) -> int:
    """Open without blocking: opening a pipe would wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _unpack(data: bytes, at: int) -> tuple[IndexKind, Mark] | None:
    record = data[at : at + RECORD_BYTES]
    if len(record) < RECORD_BYTES or _CHECK.unpack(record[28:])[0] != zlib.crc32(record[:28]):
        return None
    offset, frames, time_ns, kind = _RECORD.unpack(record[:28])
    return (IndexKind(kind), Mark(offset, frames, time_ns)) if kind in set(IndexKind) else None
