"""Writer of captures: pcapng with nanoseconds, one interface per switch port, directions, drop counters, and the index.

Frames are columns (records.Frames) over a buffer and are written as whole packet blocks in one write, so that the file
of a killed writer can be read up to its last write. When the disk is full the file is cut back to its last whole block,
so no recorded frame is lost.

    section header          comment: one JSON object; hardware, operating system, program
    interface description   one per port: name, MAC, filter, 10**-9 s
    enhanced packet ...     with the flags option that holds the direction
    interface statistics    one per port: frames seen and recorded; the drops of the whole ring are in the first
"""

from __future__ import annotations

import errno
import os
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from collector import index
from collector.blocks import (
    BYTE_ORDER_MAGIC,
    ENHANCED_PACKET,
    INTERFACE_DESCRIPTION,
    INTERFACE_FILTER,
    INTERFACE_MAC,
    INTERFACE_NAME,
    INTERFACE_RESOLUTION,
    INTERFACE_STATISTICS,
    OPTION_COMMENT,
    OPTION_END,
    PACKET_FLAGS,
    SECTION_APPLICATION,
    SECTION_HARDWARE,
    SECTION_HEADER,
    SECTION_OS,
    STATISTICS_DELIVERED,
    STATISTICS_DROPPED,
    STATISTICS_END,
    STATISTICS_RECEIVED,
    STATISTICS_START,
)
from collector.index import IndexKind, Mark
from collector.records import ETHERNET_LINK_TYPE, NANOSECOND_RESOLUTION, CaptureError, Frames
from collector.walk import Buffer, Offsets, overlapping

MARK_BYTES = 1 << 20
"""Approximate distance of the marks of the index."""
PROGRAM = "Orderbed collector"
MAX_OPTION_BYTES = 0xFFFF

_HEAD_WORDS = 7
_HEAD_BYTES = 4 * _HEAD_WORDS
_TAIL_WORDS = 4
_FLAGS_OPTION = PACKET_FLAGS | 4 << 16
_AROUND_BYTES = _HEAD_BYTES + 4 * _TAIL_WORDS
_COMMON_FRAMES = 24
"""Least number of frames of one size that are copied together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One captured switch port: its interface index, the node's name (`p1/n3`), and the node's MAC address if known."""

    ifindex: int
    name: str
    mac: str = ""


class PcapngWriter:
    """One capture file and its index. `write` takes frames whose `interface` is a position in `ports`.

    Raises CaptureError with one sentence: the file exists, cannot be created, or (from `write`) cannot be extended.
    After that `close` still completes the file. `names_machine` puts hardware and operating system into the section
    header; a simulated capture, which is the same on every machine, leaves them out.
    """

    def __init__(
        self,
        path: Path,
        ports: Sequence[Port],
        *,
        comment: str = "",
        capture_filter: str = "",
        names_machine: bool = True,
    ) -> None:
        self.path = path
        self.frames = 0
        self.bytes = 0
        """Size of the capture file."""
        self.problem = ""
        """Reason why recording ended early; empty if it did not."""
        self.recorded = np.zeros(len(ports), np.int64)
        """Frames per port."""
        self._first_ns = self._last_ns = 0
        self._blocks = np.empty(MARK_BYTES, np.uint8)
        head = _head(ports, comment, capture_filter, names_machine)
        self._file = _create(path)
        try:
            self._append(head, np.empty(0, np.int64))
            self._index: int | None = _open_index(index.path_of(path))
            self._append_index(index.pack_head(self.bytes))
        except OSError as error:
            os.close(self._file)
            raise CaptureError(f"{path}: cannot be written: {error.strerror}") from error
        self._marked = self.bytes

    def write(self, buffer: Buffer, frames: Frames) -> None:
        """Record these frames with one write."""
        if self.problem:
            raise CaptureError(self.problem)
        if not len(frames):
            return
        size, starts = self._fill(buffer, frames)
        mark = Mark(self.bytes, self.frames, int(frames.time_ns[0]))
        try:
            self._append(self._blocks.data[:size], starts)
        except OSError as error:
            whole = int(np.searchsorted(starts + self._append_base, self.bytes))
            self._count(frames.select(slice(whole)))
            self.problem = _why_it_stopped(self.path, self.frames, error)
            raise CaptureError(self.problem) from error
        self._count(frames)
        self._mark(mark)

    def close(self, *, received: npt.NDArray[np.int64] | None = None, dropped_frames: int = 0) -> bool:
        """Write the statistics (frames seen per port, drops of the ring), sync the file, and complete the index.

        Returns False when recording ended early or there was no room for the statistics; `problem` holds the reason.
        """
        data_end = self.bytes
        seen = self.recorded if received is None else received
        closing = b"".join(
            _statistics(port, int(seen[port]), int(self.recorded[port]), self._first_ns, self._last_ns, dropped_frames)
            for port in range(len(self.recorded))
        )
        try:
            self._append(closing, np.zeros(1, np.int64))
            os.fsync(self._file)
        except OSError as error:
            self.problem = self.problem or _why_it_stopped(self.path, self.frames, error)
        os.close(self._file)
        self._append_index(index.pack(IndexKind.END, Mark(data_end, self.frames, self._last_ns)))
        if self._index is not None:
            os.close(self._index)
            self._index = None
        return not self.problem

    def _count(self, frames: Frames) -> None:
        if not len(frames):
            return
        self.frames += len(frames)
        self.recorded += np.bincount(frames.interface, minlength=len(self.recorded))
        self._first_ns = self._first_ns or int(frames.time_ns[0])
        self._last_ns = int(frames.time_ns[-1])

    def _fill(self, buffer: Buffer, frames: Frames) -> tuple[int, Offsets]:
        """Make the packet blocks of these frames in `_blocks`; returns their size and their offsets."""
        captured = frames.captured.astype(np.int64)
        total = ((captured + 3) & ~3) + _AROUND_BYTES
        ends = np.cumsum(total)
        starts, size = ends - total, int(ends[-1])
        if size > len(self._blocks):
            self._blocks = np.empty(2 * size, np.uint8)
        blocks = self._blocks
        heads = np.empty((len(frames), _HEAD_WORDS), "<u4")
        heads[:, 0], heads[:, 1], heads[:, 2] = ENHANCED_PACKET, total, frames.interface
        heads[:, 3], heads[:, 4] = frames.time_ns >> 32, frames.time_ns & 0xFFFFFFFF
        heads[:, 5], heads[:, 6] = captured, frames.length
        tails = np.zeros((len(frames), _TAIL_WORDS), "<u4")
        tails[:, 0], tails[:, 1], tails[:, 3] = _FLAGS_OPTION, frames.direction, total
        # Clear the last word of the data first, for the padding; the data then overwrite the rest of it.
        overlapping(blocks, "<u4")[ends - 4 * _TAIL_WORDS - 4] = 0
        overlapping(blocks, f"V{_HEAD_BYTES}")[starts] = _opaque(heads)
        overlapping(blocks, f"V{4 * _TAIL_WORDS}")[ends - 4 * _TAIL_WORDS] = _opaque(tails)
        copy_frames(buffer, frames.offset, blocks, starts + _HEAD_BYTES, captured)
        return size, starts

    def _append(self, data: bytes | memoryview, starts: Offsets) -> None:
        """Write all data, or cut the file back to the last whole block (`starts`: offsets of the blocks) and raise
        OSError.
        """
        self._append_base = self.bytes
        done, size = 0, len(data)
        try:
            while done < size:
                done += os.write(self._file, data[done:])
        except OSError:
            whole = starts[starts <= done]
            done = int(whole[-1]) if len(whole) else 0
            os.ftruncate(self._file, self._append_base + done)
            os.lseek(self._file, 0, os.SEEK_END)
            raise
        finally:
            self.bytes = self._append_base + done

    def _mark(self, mark: Mark) -> None:
        if mark.offset - self._marked >= MARK_BYTES or self._marked == mark.offset:
            self._marked = mark.offset
            self._append_index(index.pack(IndexKind.MARK, mark))

    def _append_index(self, record: bytes) -> None:
        """Append a record to the index, which is optional: if it cannot grow, the capture goes on, and readers see that
        the index is not complete.
        """
        if self._index is None:
            return
        try:
            is_whole = os.write(self._index, record) == len(record)
        except OSError:
            is_whole = False
        if not is_whole:
            os.close(self._index)
            self._index = None


def copy_frames(source: Buffer, offsets: Offsets, target: Buffer, places: Offsets, sizes: Offsets) -> None:
    """Copy frames from one buffer to another: those of a common size together, as opaque items; the others one by
    one.
    """
    count = np.bincount(sizes)
    for size in np.flatnonzero(count >= _COMMON_FRAMES).tolist():
        if size:
            rows = np.flatnonzero(sizes == size)
            opaque = f"V{size}"
            overlapping(target, opaque)[places[rows]] = overlapping(source, opaque)[offsets[rows]]
    rare = np.flatnonzero(count[sizes] < _COMMON_FRAMES)
    from_bytes, to_bytes = source.data, target.data
    for offset, place, size in zip(offsets[rare].tolist(), places[rare].tolist(), sizes[rare].tolist(), strict=True):
        to_bytes[place : place + size] = from_bytes[offset : offset + size]


def _why_it_stopped(path: Path, frames: int, error: OSError) -> str:
    remedy = "; free some space and run again" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return f"{path}: recording stopped after {frames} frames, which are kept: {error.strerror}{remedy}"


def _opaque(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.void]:
    return words.view(f"V{words.shape[1] * 4}")[:, 0]


def _create(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        raise CaptureError(f"{path}: exists already; a capture is written once, so name another file") from None
    except OSError as error:
        raise CaptureError(f"{path}: cannot be made: {error.strerror}") from error


def _open_index(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)


def _head(ports: Sequence[Port], comment: str, capture_filter: str, names_machine: bool) -> bytes:
    options = _option(OPTION_COMMENT, comment.encode()) if comment else b""
    if names_machine:
        options += _option(SECTION_HARDWARE, platform.machine().encode())
        options += _option(SECTION_OS, f"{platform.system()} {platform.release()}".encode())
    options += _option(SECTION_APPLICATION, PROGRAM.encode()) + _option(OPTION_END, b"")
    section = _block(SECTION_HEADER, struct.pack("<IHHq", BYTE_ORDER_MAGIC, 1, 0, -1) + options)
    return section + b"".join(_interface(port, capture_filter) for port in ports)


def _interface(port: Port, capture_filter: str) -> bytes:
    options = _option(INTERFACE_NAME, port.name.encode())
    if port.mac:
        options += _option(INTERFACE_MAC, bytes.fromhex(port.mac.replace(":", "")))
    options += _option(INTERFACE_RESOLUTION, bytes([NANOSECOND_RESOLUTION]))
    if capture_filter:
        options += _option(INTERFACE_FILTER, b"\0" + capture_filter.encode())
    return _block(
        INTERFACE_DESCRIPTION, struct.pack("<HHI", ETHERNET_LINK_TYPE, 0, 0) + options + _option(OPTION_END, b"")
    )


def _statistics(port: int, seen: int, recorded: int, first_ns: int, last_ns: int, dropped_frames: int) -> bytes:
    """Statistics block of a port. The kernel counts drops per ring, not per port: they are in the first port's block,
    whose comment says so.
    """
    options = b""
    if port == 0:
        options = _option(OPTION_COMMENT, b"isb_ifdrop counts the drops of all ports together")
        options += _option(STATISTICS_DROPPED, struct.pack("<Q", dropped_frames))
    options += _option(STATISTICS_START, _time(first_ns)) + _option(STATISTICS_END, _time(last_ns))
    options += _option(STATISTICS_RECEIVED, struct.pack("<Q", seen))
    options += _option(STATISTICS_DELIVERED, struct.pack("<Q", recorded)) + _option(OPTION_END, b"")
    return _block(INTERFACE_STATISTICS, struct.pack("<I", port) + _time(last_ns) + options)


def _time(time_ns: int) -> bytes:
    return struct.pack("<II", time_ns >> 32, time_ns & 0xFFFFFFFF)


def _option(code: int, value: bytes) -> bytes:
    if len(value) > MAX_OPTION_BYTES:
        raise CaptureError(f"a text of {len(value)} bytes is too long for pcapng, which takes {MAX_OPTION_BYTES}")
    return struct.pack("<HH", code, len(value)) + value + b"\0" * (-len(value) % 4)


def _block(kind: int, body: bytes) -> bytes:
    length = struct.pack("<I", 12 + len(body))
    return struct.pack("<I", kind) + length + body + length
