"""Captures as NumPy columns: millions of frames a second on one core, and nothing an enemy writes can break it.

    head = read_interfaces(path)                      # interfaces, section, byte of the first packet block
    buffer = map_capture(path)
    for start, end in split(path, parts=4):           # exact: every part begins and ends at a block boundary
        for frames in batches(buffer, start=start, end=end, interfaces=head.interfaces):
            columns = decode_frames(buffer, frames)   # records.DECODED_ROW
            trace = decode_trace(buffer, frames.select(columns["is_trace"]))   # records.TRACE_ROW

Reads pcapng (ours, dumpcap's, tcpdump's; any resolution, both byte orders, one section) and pcap (micro- and
nanosecond, both byte orders). A file that was cut off at any byte gives the whole frames before the cut, and says so
in `Frames.truncated` and `Frames.problem`; reading can go on from `Frames.stop` when the file has grown. Nothing here
needs more than the buffer and memory in proportion to the frames that are really in it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collector import index
from collector.blocks import (
    BINARY_RESOLUTION,
    ENHANCED_PACKET,
    INTERFACE_DESCRIPTION,
    MAX_FRAME_BYTES,
    OBSOLETE_PACKET,
    PACKET_FLAGS,
    PCAP_RECORD_BYTES,
    SECTION_HEADER,
    SIMPLE_PACKET,
    Interfaces,
    Layout,
    Reader,
    Section,
)
from collector.decode import decode_frames, decode_inner, decode_stamp, decode_trace, udp_checksum_is_good
from collector.records import CaptureError, Frames, PortDirection
from collector.walk import Buffer, Mask, Offsets, Walk, gather, overlapping, walk

__all__ = [
    "FRAMES_PER_BATCH",
    "CaptureHead",
    "batches",
    "decode_frames",
    "decode_inner",
    "decode_stamp",
    "decode_trace",
    "map_capture",
    "parse_blocks",
    "read_interfaces",
    "split",
    "udp_checksum_is_good",
]

FRAMES_PER_BATCH = 1 << 14
"""Columns of this length stay in the cache of one core."""
WALK_BYTES = 1 << 26
"""Enough for a thousand lanes, and it bounds what a walk over a hostile file may hold."""

_PACKET_HEAD_BYTES = 28
_OPTION_BYTES = 8


class CaptureHead(NamedTuple):
    """What must be known of a file before any part of it can be read. All of it can be pickled."""

    interfaces: Interfaces
    section: Section
    first_offset: int
    """The byte at which the first packet block begins."""


def read_interfaces(path: Path | str) -> CaptureHead:
    """The head of a capture. Foreign files (those without our index) are surveyed whole for interfaces that appear
    later.

    Raises CaptureError (one sentence) when this is no capture or has several sections.
    """
    path = Path(path)
    with Reader(path) as reader:
        first = reader.read_head()
        if reader.layout is Layout.PCAPNG and not _marks(path, first, reader.interfaces):
            for offset in _late_interfaces(path, first, reader.interfaces):
                reader.add_interface(reader.read_block(offset))
        return CaptureHead(reader.interfaces, reader.section, first)


def map_capture(path: Path | str) -> Buffer:
    """The file as a buffer, mapped read-only. It may grow meanwhile (map it again to see more); it must not shrink."""
    path = Path(path)
    if not path.stat().st_size:
        raise CaptureError(f"{path}: is empty; a capture begins with a section header")
    return np.asarray(np.memmap(path, np.uint8, "r"))


def split(path: Path | str, parts: int) -> list[tuple[int, int]]:
    """At most `parts` ranges of about equal size that together hold every block behind the head, cut at block
    boundaries.

    With an index the boundaries come from there; without one from a survey of the whole file, which reads each
    block's length once (the only way to be sure: payloads may look like blocks). The last range ends with the file.
    """
    path = Path(path)
    if parts < 1:
        raise ValueError("a file has at least 1 part")
    with Reader(path) as reader:
        first, interfaces = reader.read_head(), reader.interfaces
    size = path.stat().st_size
    if first >= size:
        return []
    wanted = first + (size - first) * np.arange(1, parts) // parts
    cuts = _cuts_from(_marks(path, first, interfaces), wanted)
    if not len(cuts) or not _are_boundaries(path, cuts, interfaces):
        cuts = _survey(path, first, interfaces, wanted)
    return list(itertools.pairwise([first, *sorted(set(cuts) - {first}), size]))


def batches(
    buffer: memoryview | Buffer,
    *,
    start: int,
    end: int,
    interfaces: Interfaces,
    frames_per_batch: int = FRAMES_PER_BATCH,
) -> Iterator[Frames]:
    """What `parse_blocks` gives for [start, end), in pieces that stay in the cache until they are decoded.

    Ends after the piece that has a problem.
    """
    view = np.frombuffer(buffer, np.uint8)
    at = start
    while at < end:
        stop = min(at + WALK_BYTES, end)
        found = walk(view, start=at, end=stop, layout=interfaces.layout, byte_order=interfaces.byte_order)
        for first in range(0, max(len(found.offsets), 1), frames_per_batch):
            yield _frames_of(view, found, slice(first, first + frames_per_batch), interfaces)
        if found.problem:
            return
        at = found.stop


def parse_blocks(buffer: memoryview | Buffer, *, start: int, end: int, interfaces: Interfaces) -> Frames:
    """The frames of all blocks that begin in [start, end). `start` must be a block boundary of this buffer.

    The last block may reach past `end`, though not past the buffer: then, or where a length is impossible, `problem`
    says so and `stop` is the byte of that block. Blocks that are no packets are passed over.
    """
    view = np.frombuffer(buffer, np.uint8)
    found = walk(view, start=start, end=end, layout=interfaces.layout, byte_order=interfaces.byte_order)
    return _frames_of(view, found, slice(None), interfaces)


def _frames_of(view: Buffer, found: Walk, part: slice, interfaces: Interfaces) -> Frames:
    """Frames of some of the blocks that a walk found. What was wrong behind them belongs to the last part."""
    parse = _packet_blocks if interfaces.layout is Layout.PCAPNG else _records
    offsets = found.offsets[part]
    frames = parse(view, offsets, interfaces)
    following = found.offsets[part.stop : part.stop + 1] if part.stop is not None else found.offsets[:0]
    if len(following):
        return dataclasses.replace(frames, stop=int(following[0]))
    return dataclasses.replace(frames, stop=found.stop, problem=found.problem, truncated=found.truncated)


def _marks(path: Path, first: int, interfaces: Interfaces) -> list[int]:
    """Boundaries that the index names, if it fits this file: one that was left over from another capture does not.

    Looks at the file only at the outermost marks; whoever cuts at a mark looks there, too.
    """
    known = index.read(path)
    if known.first_offset != first or interfaces.layout is not Layout.PCAPNG:
        return []
    size = path.stat().st_size
    marks = [mark.offset for mark in known.marks if first < mark.offset < size]
    return marks if _are_boundaries(path, [*marks[:1], *marks[-1:]], interfaces) else []


def _are_boundaries(path: Path, offsets: list[int], interfaces: Interfaces) -> bool:
    """Whether whole blocks begin at all of these bytes."""
    if not offsets:
        return True
    buffer = map_capture(path)
    found = (
        walk(buffer, start=at, end=at + 1, layout=interfaces.layout, byte_order=interfaces.byte_order) for at in offsets
    )
    return all(len(walked.offsets) == 1 for walked in found)


def _late_interfaces(path: Path, first: int, interfaces: Interfaces) -> list[int]:
    """Where interface descriptions stand behind the first packet. A second section is an error."""
    late: list[int] = []
    if first >= path.stat().st_size:
        return late
    buffer = map_capture(path)
    kinds = overlapping(buffer, interfaces.byte_order + "u4")
    for offsets in _boundaries(buffer, first, interfaces):
        kind = kinds[offsets]
        if bool((kind == SECTION_HEADER).any()):
            byte = int(offsets[kind == SECTION_HEADER][0])
            raise CaptureError(
                f"{path}: has a second section at byte {byte}; "
                f"merge it into one with: mergecap -w new.pcapng {path.name}"
            )
        late.extend(offsets[kind == INTERFACE_DESCRIPTION].tolist())
    return late


def _cuts_from(bounds: list[int], wanted: Offsets) -> list[int]:
    """For each wanted byte the first of these boundaries at or behind it, as far as there is one."""
    places = np.searchsorted(np.array(bounds, np.int64), wanted)
    return [bounds[place] for place in places.tolist() if place < len(bounds)]


def _survey(path: Path, first: int, interfaces: Interfaces, wanted: Offsets) -> list[int]:
    """For each wanted byte the first true boundary at or behind it, as far as the file is whole."""
    cuts: list[int] = []
    for offsets in _boundaries(map_capture(path), first, interfaces):
        while len(cuts) < len(wanted) and len(offsets) and wanted[len(cuts)] <= offsets[-1]:
            cuts.append(int(offsets[np.searchsorted(offsets, wanted[len(cuts)])]))
    return cuts


def _boundaries(buffer: Buffer, first: int, interfaces: Interfaces) -> Iterator[Offsets]:
    at = first
    while at < len(buffer):
        found = walk(
            buffer,
            start=at,
            end=min(at + WALK_BYTES, len(buffer)),
            layout=interfaces.layout,
            byte_order=interfaces.byte_order,
        )
        yield found.offsets
        at = found.stop
        if found.problem:
            return


class _Heads(NamedTuple):
    """The fixed part of packet blocks or records."""

    interface: Offsets
    ticks: npt.NDArray[np.uint64]
    captured: Offsets
    length: Offsets
    data: Offsets
    """Where the bytes of the frame begin."""
    options: Offsets
    """Where the options would begin, and where they must have ended."""
    options_end: Offsets

    def select(self, rows: Mask) -> _Heads:
        return _Heads(
            interface=self.interface[rows],
            ticks=self.ticks[rows],
            captured=self.captured[rows],
            length=self.length[rows],
            data=self.data[rows],
            options=self.options[rows],
            options_end=self.options_end[rows],
        )


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
    """Frames of packet blocks; those that hold less than they claim, or name no interface, are left out and counted."""
    is_good = (heads.options <= heads.options_end) & (heads.interface < len(interfaces.ports))
    damaged = int(len(is_good) - is_good.sum())
    if damaged:
        heads = heads.select(is_good)
    return _frames(
        heads,
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
    """Captures with simple or obsolete packet blocks, which few programs write: kind by kind, then back in order."""
    parts = (
        _packet_blocks(buffer, blocks[~np.isin(kind, (SIMPLE_PACKET, OBSOLETE_PACKET))], interfaces),
        _obsolete_packet_blocks(buffer, blocks[kind == OBSOLETE_PACKET], interfaces),
        _simple_packet_blocks(buffer, blocks[kind == SIMPLE_PACKET], interfaces),
    )
    by_offset = np.argsort(np.concatenate([part.offset for part in parts]))
    return Frames(
        time_ns=np.concatenate([part.time_ns for part in parts])[by_offset],
        interface=np.concatenate([part.interface for part in parts])[by_offset],
        direction=np.concatenate([part.direction for part in parts])[by_offset],
        length=np.concatenate([part.length for part in parts])[by_offset],
        captured=np.concatenate([part.captured for part in parts])[by_offset],
        offset=np.concatenate([part.offset for part in parts])[by_offset],
        stop=0,
        damaged=sum(part.damaged for part in parts),
    )


def _obsolete_packet_blocks(buffer: Buffer, blocks: Offsets, interfaces: Interfaces) -> Frames:
    """As an enhanced packet block, but with 16 bits of interface and 16 of drop count in the first word."""
    raw = gather(buffer, blocks, _packet_head(interfaces.byte_order))
    interface = gather(buffer, blocks + 8, interfaces.byte_order + "u2").astype(np.int64)
    return _enhanced_frames(buffer, _heads(raw, blocks)._replace(interface=interface), interfaces)


def _simple_packet_blocks(buffer: Buffer, blocks: Offsets, interfaces: Interfaces) -> Frames:
    """Only an original length: no time, no direction, and always the first interface, whose snap length cut it."""
    raw = gather(buffer, blocks, _packet_head(interfaces.byte_order))
    room, length = raw["total"].astype(np.int64) - 16, raw["interface"].astype(np.int64)
    snap_length = (interfaces.ports[0].snap_length if interfaces.ports else 0) or MAX_FRAME_BYTES
    captured = np.minimum(np.minimum(length, room), snap_length)
    zeros = np.zeros(len(blocks), np.int64)
    heads = _Heads(zeros, zeros.astype(np.uint64), captured, length, blocks + 12, zeros, zeros)
    is_good = (room >= 0) & (len(interfaces.ports) > 0)
    heads = heads.select(is_good)
    nothing = np.zeros(len(heads.data), np.int64)
    return _frames(heads, time_ns=nothing, direction=nothing.astype(np.int8), damaged=int((~is_good).sum()))


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


def _frames(heads: _Heads, *, time_ns: Offsets, direction: npt.NDArray[np.int8], damaged: int) -> Frames:
    return Frames(
        time_ns=time_ns,
        interface=heads.interface.astype(np.int32),
        direction=direction,
        length=_clipped(heads.length),
        captured=heads.captured.astype(np.int32),
        offset=heads.data,
        stop=0,
        damaged=damaged,
    )


def _clipped(length: Offsets) -> npt.NDArray[np.int32]:
    """A hostile original length of 4 GiB must not turn negative."""
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
    """Ticks to nanoseconds since 1970, modulo 2**64 as a hostile file may ask for."""
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
    """Whole seconds apart from the fraction, whose low bits go first where the product would not fit 64 bits."""
    seconds = ticks >> np.uint64(power) if power < 64 else np.zeros_like(ticks)
    fraction = ticks & np.uint64(2 ** min(power, 64) - 1)
    surplus = max(min(power, 64) - 34, 0)
    rest = power - surplus
    nanoseconds = (fraction >> np.uint64(surplus)) * np.uint64(10**9)
    return seconds * np.uint64(10**9) + (nanoseconds >> np.uint64(rest) if rest < 64 else np.zeros_like(ticks))


def _directions(buffer: Buffer, options: Offsets, end: Offsets, order: str) -> npt.NDArray[np.int8]:
    """Direction bits of the flags option; UNKNOWN where there is none. Options are searched in lock step."""
    direction = np.full(len(options), PortDirection.UNKNOWN, np.int8)
    layout = np.dtype([("code", order + "u2"), ("length", order + "u2"), ("value", order + "u4")])
    rows: npt.NDArray[np.intp] | None = None
    at, limit = options, end - _OPTION_BYTES
    has_more: Mask = at <= limit
    while has_more.any():
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
