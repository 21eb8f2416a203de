"""Parser of captures to NumPy columns: millions of frames a second on one core, also safe for hostile files.

    head = read_interfaces(path)                      # interfaces, section, byte of the first packet block
    buffer = map_capture(path)
    for start, end in split(path, parts=4):           # exact: every part begins and ends at a block boundary
        for frames in batches(buffer, start=start, end=end, interfaces=head.interfaces):
            ...                                       # records.FRAME_ROW; analysis.capture.decode goes on

It reads pcapng (of the collector, dumpcap, tcpdump; any resolution, both byte orders, several sections) and pcap
(micro- and nanosecond, both byte orders). A file that was cut off at any byte gives the whole frames before the cut,
and sets `Frames.truncated` and `Frames.problem`; reading can continue from `Frames.stop` when the file has grown.
Memory is proportional to the frames that are really in the buffer.
"""

from __future__ import annotations

import dataclasses
import itertools
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collector import index
from collector.blocks import (
    BINARY_RESOLUTION,
    BYTE_ORDER_MAGIC,
    ENHANCED_PACKET,
    INTERFACE_DESCRIPTION,
    INTERFACE_STATISTICS,
    MAX_FRAME_BYTES,
    MAX_INTERFACES,
    OBSOLETE_PACKET,
    PACKET_FLAGS,
    PCAP_HEADER_BYTES,
    PCAP_MAGICS,
    PCAP_RECORD_BYTES,
    SECTION_HEADER,
    SIMPLE_PACKET,
    CutOffError,
    Interface,
    Interfaces,
    InterfaceStatistics,
    Layout,
    Section,
    interface_of,
    section_of,
    statistics_of,
    what_else,
)
from collector.records import FRAME_ROW, CaptureError, Frames, PortDirection
from collector.walk import MIN_BLOCK_BYTES, Buffer, Mask, Offsets, Walk, gather, overlapping, walk

FRAMES_PER_BATCH = 1 << 14
"""Length of columns that fit in the cache of one core."""
WALK_BYTES = 1 << 26
"""Most bytes of a walk, which bounds its memory for a hostile file."""

FIRST_WALK_BYTES = 1 << 20
MAX_SECTIONS = 1000
MARK_BYTES = 1 << 20
LEAST_MARKS = 256
"""Least number of boundaries that a survey of a small file records; else it records one per MiB, as an index does."""

LEAST_STATISTICS_BYTES = 12
_PACKET_HEAD_BYTES = 28
_OPTION_BYTES = 8
MAX_PACKET_OPTIONS = 64
"""Most options of a packet block in which the flags are sought: programs write a few, a hostile file millions."""


class CaptureHead(NamedTuple):
    """Head of one section, which is needed to read any part of it. Plain data."""

    interfaces: Interfaces
    section: Section
    first_offset: int
    """Byte of the first packet block."""
    end: int
    """Byte of the next section, or of the end of the part of the file that was read."""
    marks: tuple[int, ...] = ()
    """Block boundaries in between, ascending: from the index, else from a survey."""


def read_sections(path: Path | str) -> tuple[CaptureHead, ...]:
    """Sections of a capture: usually one; several in concatenated files.

    Files without an index are surveyed whole (10 million frames a second), because payloads may look like blocks.
    Raises CutOffError when the first head is not whole, CaptureError (one sentence) when the file is no capture.
    """
    path = Path(path)
    buffer = map_capture(path)
    head = read_head(path, buffer)
    marks = _marks(path, head)
    if marks or head.end >= len(buffer):
        return (head._replace(end=len(buffer), marks=tuple(marks)),)
    heads = [_surveyed(path, buffer, head)]
    while (begin := heads[-1].end) < len(buffer) and _is_section(buffer, begin):
        if len(heads) == MAX_SECTIONS:
            raise CaptureError(
                f"{path}: has more than {MAX_SECTIONS} sections; "
                f"merge them into one with: mergecap -w new.pcapng {path.name}"
            )
        try:
            heads.append(_surveyed(path, buffer, read_head(path, buffer, begin, _behind(heads[-1].interfaces))))
        except CutOffError:
            break
        if _behind(heads[-1].interfaces) > MAX_INTERFACES:
            raise CaptureError(f"{path}: has more than {MAX_INTERFACES} interfaces")
    return (*heads[:-1], heads[-1]._replace(end=len(buffer)))


def read_head(path: Path, buffer: Buffer, begin: int = 0, number: int = 0) -> CaptureHead:
    """Section header at a byte and the interfaces that follow it directly, without reading further; `number` is that of
    its first interface. Raises CutOffError when the section header is not whole.
    """
    start = buffer[begin : begin + PCAP_HEADER_BYTES].tobytes()
    if start[:4] in PCAP_MAGICS:
        return _pcap_head(path, start)
    if start[:4] != SECTION_HEADER.to_bytes(4, "big"):
        raise CaptureError(f"{path}: {what_else(start, path.name)}")
    if len(start) < MIN_BLOCK_BYTES:
        raise CutOffError(path, begin)
    order = next((order for order in "<>" if struct.unpack(order + "I", start[8:12])[0] == BYTE_ORDER_MAGIC), "")
    if not order:
        raise CaptureError(f"{path}: section header at byte {begin} has no byte-order magic")
    blocks: list[int] = []
    at = begin
    while at + MIN_BLOCK_BYTES <= len(buffer) and len(blocks) <= MAX_INTERFACES + 1:
        kind, length = struct.unpack_from(order + "II", buffer.data, at)
        if kind != (INTERFACE_DESCRIPTION if blocks else SECTION_HEADER):
            break
        found = walk(buffer, start=at, end=at + 1, layout=Layout.PCAPNG, byte_order=order)
        if found.truncated:
            break
        if found.problem:
            raise CaptureError(f"{path}: {found.problem}")
        blocks.append(at)
        at += length
    if not blocks:
        raise CutOffError(path, begin)
    interfaces = Interfaces(layout=Layout.PCAPNG, byte_order=order, ports=(), first=number)
    section = section_of(_body(buffer, begin, order), order)
    return CaptureHead(add_interfaces(path, buffer, interfaces, blocks[1:]), section, at, at)


def _pcap_head(path: Path, start: bytes) -> CaptureHead:
    order, digits = PCAP_MAGICS[start[:4]]
    if len(start) < PCAP_HEADER_BYTES:
        raise CutOffError(path, 0)
    *_, snap_length, link_type = struct.unpack(order + "4xHHiIII", start)
    port = Interface(name=path.stem, link_type=link_type & 0xFFFF, snap_length=snap_length, resolution=digits)
    interfaces = Interfaces(layout=Layout.PCAP, byte_order=order, ports=(port,))
    return CaptureHead(interfaces, Section(), PCAP_HEADER_BYTES, PCAP_HEADER_BYTES)


def add_interfaces(path: Path, buffer: Buffer, known: Interfaces, blocks: Iterable[int]) -> Interfaces:
    """Interfaces of a section, with those described by the blocks at these bytes."""
    ports = list(known.ports)
    for at in blocks:
        if len(ports) >= MAX_INTERFACES:
            raise CaptureError(f"{path}: has more than {MAX_INTERFACES} interfaces")
        try:
            ports.append(interface_of(_body(buffer, at, known.byte_order), known.byte_order, len(ports)))
        except struct.error:
            raise CaptureError(f"{path}: block at byte {at} is too short for its kind") from None
    return dataclasses.replace(known, ports=tuple(ports))


def _body(buffer: Buffer, at: int, order: str) -> bytes:
    """Body of the whole block at this byte."""
    (length,) = struct.unpack_from(order + "I", buffer.data, at + 4)
    return buffer[at + 8 : at + length - 4].tobytes()


def _behind(interfaces: Interfaces) -> int:
    """Number of the next interface of the capture."""
    return interfaces.first + len(interfaces.ports)


def read_interfaces(path: Path | str) -> CaptureHead:
    """Head of a capture of one section. Raises as `read_sections`, and CaptureError for several sections."""
    heads = read_sections(path)
    if len(heads) > 1:
        raise CaptureError(
            f"{path}: has a second section at byte {heads[0].end}; "
            f"merge it into one with: mergecap -w new.pcapng {Path(path).name}"
        )
    return heads[0]


def read_statistics(path: Path | str, head: CaptureHead) -> dict[int, InterfaceStatistics]:
    """Last statistics of each interface of a section, if any, by the interface's number in the capture."""
    path, interfaces = Path(path), head.interfaces
    found: dict[int, InterfaceStatistics] = {}
    if interfaces.layout is not Layout.PCAPNG or head.first_offset >= head.end:
        return found
    buffer = map_capture(path)[: head.end]
    kinds = overlapping(buffer, interfaces.byte_order + "u4")
    for walked in _walks(buffer, head.first_offset, interfaces):
        for offset in walked.offsets[kinds[walked.offsets] == INTERFACE_STATISTICS].tolist():
            body = _body(buffer, offset, interfaces.byte_order)
            if len(body) < LEAST_STATISTICS_BYTES:
                continue
            statistics = statistics_of(body, interfaces.byte_order)
            if statistics.interface < len(interfaces.ports):
                found[interfaces.first + statistics.interface] = statistics
    return found


def map_capture(path: Path | str) -> Buffer:
    """The file as a buffer, mapped read-only. The file may grow (map it again to read more) but must not shrink."""
    path = Path(path)
    if not path.stat().st_size:
        raise CaptureError(f"{path}: is empty; a capture begins with a section header")
    return np.asarray(np.memmap(path, np.uint8, "r"))


def split(path: Path | str, parts: int) -> list[tuple[int, int]]:
    """`split_section` of a capture of one section."""
    if parts < 1:
        raise ValueError("a file has at least 1 part")
    return split_section(path, read_interfaces(path), parts)


def split_section(path: Path | str, head: CaptureHead, parts: int) -> list[tuple[int, int]]:
    """At most `parts` ranges of about equal size that together hold every block after the head, cut at block
    boundaries. The last range ends with the section.

    Boundaries from an index are checked; if one is wrong, the section is one part.
    """
    first, end = head.first_offset, head.end
    if first >= end:
        return []
    wanted = first + (end - first) * np.arange(1, parts) // parts
    cuts = _cuts_from(head.marks, wanted)
    if not _are_boundaries(Path(path), cuts, head.interfaces):
        cuts = []
    return list(itertools.pairwise([first, *sorted(set(cuts) - {first}), end]))


def batches(
    buffer: memoryview | Buffer,
    *,
    start: int,
    end: int,
    interfaces: Interfaces,
    frames_per_batch: int = FRAMES_PER_BATCH,
) -> Iterator[Frames]:
    """Frames of `parse_blocks` for [start, end), in pieces that stay in the cache until they are decoded.

    Ends after the piece that has a problem.
    """
    view = np.frombuffer(buffer, np.uint8)
    at = start
    while at < end:
        found = _walked(view, interfaces, at, min(at + WALK_BYTES, end))
        for first in range(0, max(len(found.offsets), 1), frames_per_batch):
            yield _frames_of(view, found, slice(first, first + frames_per_batch), interfaces)
        if found.problem:
            return
        at = found.stop


def parse_blocks(buffer: memoryview | Buffer, *, start: int, end: int, interfaces: Interfaces) -> Frames:
    """Frames of all blocks that begin in [start, end). `start` must be a block boundary of this buffer.

    The last block may reach past `end`, but not past the buffer: if it does, or if a length is impossible, `problem`
    says so and `stop` is the byte of that block. Blocks other than packets are skipped.
    """
    view = np.frombuffer(buffer, np.uint8)
    return _frames_of(view, _walked(view, interfaces, start, end), slice(None), interfaces)


def frames_in(path: Path | str, head: CaptureHead) -> Iterator[tuple[Buffer, Frames]]:
    """All frames of a section in pieces, each with the buffer of its offsets."""
    if head.first_offset < head.end:
        buffer = map_capture(path)
        for frames in batches(buffer, start=head.first_offset, end=head.end, interfaces=head.interfaces):
            yield buffer, frames


class Counts:
    """Totals over the frames of a capture. `problem` is empty when every block is whole."""

    def __init__(self, heads: Sequence[CaptureHead]) -> None:
        interfaces = sum(len(head.interfaces.ports) for head in heads)
        self.by_direction = np.zeros((interfaces, len(PortDirection)), np.int64)
        """Frames of each interface and direction, over all sections."""
        self.wire_bytes = np.zeros(interfaces, np.int64)
        self.cut = self.damaged = 0
        self.is_truncated = False
        self.problem = ""
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.is_in_order = True
        """Whether no frame has an earlier time stamp than the one before it."""
        self._before_ns: int | None = None

    @property
    def frames(self) -> int:
        return int(self.by_direction.sum())

    def add(self, frames: Frames) -> None:
        self.damaged += frames.damaged
        self.is_truncated |= frames.truncated
        self.problem = self.problem or frames.problem
        if not len(frames):
            return
        interfaces, directions = self.by_direction.shape
        codes = frames.interface.astype(np.int64) * directions + frames.direction
        self.by_direction += np.bincount(codes, minlength=interfaces * directions).reshape(interfaces, directions)
        wire_bytes = np.bincount(frames.interface, weights=frames.length, minlength=interfaces)
        self.wire_bytes += wire_bytes.astype(np.int64)
        self.cut += int((frames.captured < frames.length).sum())
        time_ns = frames.time_ns
        first_ns, last_ns = int(time_ns.min()), int(time_ns.max())
        self.first_ns = first_ns if self.first_ns is None else min(self.first_ns, first_ns)
        self.last_ns = last_ns if self.last_ns is None else max(self.last_ns, last_ns)
        follows = self._before_ns is None or int(time_ns[0]) >= self._before_ns
        self.is_in_order &= follows and bool((time_ns[1:] >= time_ns[:-1]).all())
        self._before_ns = int(time_ns[-1])


def count(path: Path | str, heads: Sequence[CaptureHead]) -> Counts:
    """Counts of a capture, in one pass (5 million frames a second)."""
    counts = Counts(heads)
    for head in heads:
        for _, frames in frames_in(path, head):
            counts.add(frames)
    return counts


def _frames_of(view: Buffer, found: Walk, part: slice, interfaces: Interfaces) -> Frames:
    """Frames of some of the blocks that a walk found. A problem after them belongs to the last part."""
    parse = _packet_blocks if interfaces.layout is Layout.PCAPNG else _records
    offsets = found.offsets[part]
    frames = parse(view, offsets, interfaces)
    following = found.offsets[part.stop : part.stop + 1] if part.stop is not None else found.offsets[:0]
    if len(following):
        return dataclasses.replace(frames, stop=int(following[0]))
    return dataclasses.replace(frames, stop=found.stop, problem=found.problem, truncated=found.truncated)


def _marks(path: Path, head: CaptureHead) -> list[int]:
    """Boundaries from the index, if it fits this file: that of another capture does not.

    Only the first and the last mark are checked here; `split_section` checks each mark at which it cuts.
    """
    known = index.read(path)
    if known.first_offset != head.first_offset or head.interfaces.layout is not Layout.PCAPNG:
        return []
    size = path.stat().st_size
    marks = [mark.offset for mark in known.marks if head.first_offset < mark.offset < size]
    return marks if _are_boundaries(path, [*marks[:1], *marks[-1:]], head.interfaces) else []


def _are_boundaries(path: Path, offsets: list[int], interfaces: Interfaces) -> bool:
    """Whether whole blocks begin at all of these bytes."""
    if not offsets:
        return True
    buffer = map_capture(path)
    return all(len(_walked(buffer, interfaces, at, at + 1).offsets) == 1 for at in offsets)


def _surveyed(path: Path, buffer: Buffer, head: CaptureHead) -> CaptureHead:
    """The section with its later interfaces, marks and end, from a pass from its first packet block on."""
    first, interfaces = head.first_offset, head.interfaces
    kinds = overlapping(buffer, interfaces.byte_order + "u4")
    step = max(1, min(MARK_BYTES, (len(buffer) - first) // LEAST_MARKS))
    late: list[int] = []
    marks: list[int] = []
    end = first
    for found in _walks(buffer, first, interfaces):
        offsets, end = found.offsets, found.stop
        if interfaces.layout is Layout.PCAPNG:
            kind = kinds[offsets]
            if bool((is_section := kind == SECTION_HEADER).any()):
                end = int(offsets[is_section][0])
                offsets, kind = offsets[offsets < end], kind[offsets < end]
            late += offsets[kind == INTERFACE_DESCRIPTION].tolist()
        marks += offsets[np.flatnonzero(np.diff(offsets // step, prepend=-1))].tolist()
        if end < found.stop:
            break
    return CaptureHead(add_interfaces(path, buffer, interfaces, late), head.section, first, end, tuple(marks))


def _is_section(buffer: Buffer, offset: int) -> bool:
    """Whether a section header begins at `offset`. Its type is the same in both byte orders."""
    return buffer[offset : offset + 4].tobytes() == SECTION_HEADER.to_bytes(4, "big")


def _cuts_from(bounds: Sequence[int], wanted: Offsets) -> list[int]:
    """For each wanted byte, the first of these boundaries at or after it, if there is one."""
    places = np.searchsorted(np.array(bounds, np.int64), wanted)
    return [bounds[place] for place in places.tolist() if place < len(bounds)]


def _walked(buffer: Buffer, interfaces: Interfaces, start: int, end: int) -> Walk:
    return walk(buffer, start=start, end=end, layout=interfaces.layout, byte_order=interfaces.byte_order)


def _walks(buffer: Buffer, first: int, interfaces: Interfaces) -> Iterator[Walk]:
    """Walks over the file, piece by piece; the first pieces are small, because a section may end soon."""
    at, reach = first, FIRST_WALK_BYTES
    while at < len(buffer):
        found = _walked(buffer, interfaces, at, min(at + reach, len(buffer)))
        yield found
        at, reach = found.stop, min(2 * reach, WALK_BYTES)
        if found.problem:
            return


class _Heads(NamedTuple):
    """The fixed part of packet blocks or records."""

    interface: Offsets
    ticks: npt.NDArray[np.uint64]
    captured: Offsets
    length: Offsets
    data: Offsets
    """Offset of the bytes of each frame."""
    options: Offsets
    """Beginning of the options; `options_end`: their latest end."""
    options_end: Offsets

    def select(self, rows: Mask) -> _Heads:
        return _Heads._make(column[rows] for column in self)


def _packet_blocks(buffer: Buffer, blocks: Offsets, interfaces: Interfaces) -> Frames:
    order = interfaces.byte_order
    # The last blocks of a file may be shorter than the head of a packet block; then they are not packets.
    blocks = blocks[: np.searchsorted(blocks, len(buffer) - _PACKET_HEAD_BYTES, "right")]
    raw = gather(buffer, blocks, _packet_head(order))
    is_packet = raw["kind"] == ENHANCED_PACKET
    if not is_packet.all():
        if bool(np.isin(raw["kind"], (SIMPLE_PACKET, OBSOLETE_PACKET)).any()):
            return _rare_packet_blocks(buffer, blocks, raw["kind"], interfaces)
        blocks, raw = blocks[is_packet], raw[is_packet]
    return _enhanced_frames(buffer, _heads(raw, blocks), interfaces)


def _enhanced_frames(buffer: Buffer, heads: _Heads, interfaces: Interfaces) -> Frames:
    """Frames of packet blocks. Blocks with fewer bytes than they declare, or of an unknown interface, are left out and
    counted.
    """
    is_good = (heads.options <= heads.options_end) & (heads.interface < len(interfaces.ports))
    damaged = int(len(is_good) - is_good.sum())
    if damaged:
        heads = heads.select(is_good)
    return _frames(
        heads,
        first=interfaces.first,
        time_ns=_times_ns(heads.ticks, heads.interface, interfaces),
        direction=_directions(buffer, heads.options, heads.options_end, interfaces.byte_order),
        damaged=damaged,
    )


def _packet_head(order: str) -> np.dtype[np.void]:
    names = ("kind", "total", "interface", "high", "low", "captured", "length")
    return np.dtype([(name, order + "u4") for name in names])


def _heads(raw: npt.NDArray[Any], blocks: Offsets) -> _Heads:
    captured = raw["captured"].astype(np.int64)
    data = blocks + _PACKET_HEAD_BYTES
    return _Heads(
        interface=raw["interface"].astype(np.int64),
        ticks=raw["high"].astype(np.uint64) << np.uint64(32) | raw["low"],
        captured=captured,
        length=raw["length"].astype(np.int64),
        data=data,
        options=data + ((captured + 3) & ~3),
        options_end=blocks + raw["total"].astype(np.int64) - 4,
    )


def _rare_packet_blocks(buffer: Buffer, blocks: Offsets, kind: npt.NDArray[Any], interfaces: Interfaces) -> Frames:
    """Frames of captures with simple or obsolete packet blocks, which few programs write: kind by kind, then in
    order.
    """
    parts = (
        _packet_blocks(buffer, blocks[~np.isin(kind, (SIMPLE_PACKET, OBSOLETE_PACKET))], interfaces),
        _obsolete_packet_blocks(buffer, blocks[kind == OBSOLETE_PACKET], interfaces),
        _simple_packet_blocks(buffer, blocks[kind == SIMPLE_PACKET], interfaces),
    )
    by_offset = np.argsort(np.concatenate([part.offset for part in parts]))
    columns: dict[str, Any] = {
        column.name: np.concatenate([getattr(part, column.name) for part in parts])[by_offset] for column in FRAME_ROW
    }
    return Frames(**columns, stop=0, damaged=sum(part.damaged for part in parts))


def _obsolete_packet_blocks(buffer: Buffer, blocks: Offsets, interfaces: Interfaces) -> Frames:
    """Frames of obsolete packet blocks: as enhanced ones, but with 16 bits of interface and 16 of drop count in the
    first word.
    """
    raw = gather(buffer, blocks, _packet_head(interfaces.byte_order))
    interface = gather(buffer, blocks + 8, interfaces.byte_order + "u2").astype(np.int64)
    return _enhanced_frames(buffer, _heads(raw, blocks)._replace(interface=interface), interfaces)


def _simple_packet_blocks(buffer: Buffer, blocks: Offsets, interfaces: Interfaces) -> Frames:
    """Frames of simple packet blocks, which hold only an original length: no time, no direction, and always the first
    interface, whose snap length cut them.
    """
    raw = gather(buffer, blocks, _packet_head(interfaces.byte_order))
    room, length = raw["total"].astype(np.int64) - 16, raw["interface"].astype(np.int64)
    snap_length = (interfaces.ports[0].snap_length if interfaces.ports else 0) or MAX_FRAME_BYTES
    captured = np.minimum(np.minimum(length, room), snap_length)
    zeros = np.zeros(len(blocks), np.int64)
    heads = _Heads(zeros, zeros.astype(np.uint64), captured, length, blocks + 12, zeros, zeros)
    is_good = (room >= 0) & (len(interfaces.ports) > 0)
    heads = heads.select(is_good)
    nothing = np.zeros(len(heads.data), np.int64)
    return _frames(
        heads,
        first=interfaces.first,
        time_ns=nothing,
        direction=nothing.astype(np.int8),
        damaged=int((~is_good).sum()),
    )


def _records(buffer: Buffer, records: Offsets, interfaces: Interfaces) -> Frames:
    layout = np.dtype([(name, interfaces.byte_order + "u4") for name in ("seconds", "fraction", "captured", "length")])
    heads = gather(buffer, records, layout)
    scale = 10 ** (9 - interfaces.ports[0].resolution)
    return Frames(
        time_ns=heads["seconds"].astype(np.int64) * 10**9 + heads["fraction"].astype(np.int64) * scale,
        interface=np.zeros(len(records), np.int32),
        direction=np.zeros(len(records), np.int8),
        length=_clipped(heads["length"].astype(np.int64)),
        captured=heads["captured"].astype(np.int32),
        offset=records + PCAP_RECORD_BYTES,
        stop=0,
    )


def _frames(heads: _Heads, *, first: int, time_ns: Offsets, direction: npt.NDArray[np.int8], damaged: int) -> Frames:
    return Frames(
        time_ns=time_ns,
        interface=(heads.interface + first).astype(np.int32),
        direction=direction,
        length=_clipped(heads.length),
        captured=heads.captured.astype(np.int32),
        offset=heads.data,
        stop=0,
        damaged=damaged,
    )


def _clipped(length: Offsets) -> npt.NDArray[np.int32]:
    """Length within 32 signed bits: a hostile original length of 4 GiB must not become negative."""
    return np.minimum(length, np.iinfo(np.int32).max).astype(np.int32)


def _times_ns(ticks: npt.NDArray[np.uint64], interface: Offsets, interfaces: Interfaces) -> npt.NDArray[np.int64]:
    clocks = {(port.resolution, port.offset_s) for port in interfaces.ports}
    if len(clocks) <= 1:
        return _scaled(ticks, *next(iter(clocks), (9, 0)))
    time_ns = np.zeros(len(ticks), np.int64)
    number = {clock: code for code, clock in enumerate(sorted(clocks))}
    codes = np.array([number[port.resolution, port.offset_s] for port in interfaces.ports])[interface]
    for clock, code in number.items():
        rows = codes == code
        time_ns[rows] = _scaled(ticks[rows], *clock)
    return time_ns


def _scaled(ticks: npt.NDArray[np.uint64], resolution: int, offset_s: int) -> npt.NDArray[np.int64]:
    """Nanoseconds since 1970 from ticks, modulo 2**64, which a hostile file may exceed."""
    power = resolution & ~BINARY_RESOLUTION
    if resolution & BINARY_RESOLUTION:
        scaled = _binary_ticks_ns(ticks, power)
    elif power <= 9:
        scaled = ticks * np.uint64(10 ** (9 - power)) if power < 9 else ticks
    else:
        scaled = ticks // np.uint64(10 ** (power - 9)) if power < 29 else np.zeros_like(ticks)
    offset_ns = offset_s * 10**9 % 2**64
    return (scaled + np.uint64(offset_ns)).view(np.int64) if offset_ns else scaled.view(np.int64)


def _binary_ticks_ns(ticks: npt.NDArray[np.uint64], power: int) -> npt.NDArray[np.uint64]:
    """Nanoseconds from binary ticks: whole seconds and fraction separately, without the fraction's low bits if the
    product would not fit 64 bits.
    """
    seconds = ticks >> np.uint64(power) if power < 64 else np.zeros_like(ticks)
    fraction = ticks & np.uint64(2 ** min(power, 64) - 1)
    surplus = max(min(power, 64) - 34, 0)
    rest = power - surplus
    nanoseconds = (fraction >> np.uint64(surplus)) * np.uint64(10**9)
    return seconds * np.uint64(10**9) + (nanoseconds >> np.uint64(rest) if rest < 64 else np.zeros_like(ticks))


def _directions(buffer: Buffer, options: Offsets, end: Offsets, order: str) -> npt.NDArray[np.int8]:
    """Direction bits of the flags option; UNKNOWN where there is none among the first MAX_PACKET_OPTIONS. Options are
    searched in lock step.
    """
    direction = np.full(len(options), PortDirection.UNKNOWN, np.int8)
    layout = np.dtype([("code", order + "u2"), ("length", order + "u2"), ("value", order + "u4")])
    rows: npt.NDArray[np.intp] | None = None
    at, limit = options, end - _OPTION_BYTES
    has_more: Mask = at <= limit
    for _ in range(MAX_PACKET_OPTIONS):
        if not has_more.any():
            break
        if not has_more.all():
            rows = np.flatnonzero(has_more) if rows is None else rows[has_more]
            at, limit = at[has_more], limit[has_more]
        item = gather(buffer, at, layout)
        code, length = item["code"], item["length"]
        is_flags = (code == PACKET_FLAGS) & (length == 4)
        bits = np.where(is_flags, item["value"] & 3, 0).astype(np.int8)
        bits[bits > PortDirection.OUTBOUND] = PortDirection.UNKNOWN
        if rows is None:
            direction = bits
        else:
            direction[rows] = bits
        at = at + 4 + ((length.astype(np.int64) + 3) & ~3)
        has_more = ~is_flags & (code != 0) & (at <= limit)
    return direction
