"""Exact offsets of all blocks of a capture, found fast.

A capture is a chain: only the length of a block gives the beginning of the next. In pcapng, NumPy finds all places
where a packet block could begin: those with its type, and equal lengths at both ends. A place confirms the next one if
it ends where that begins, so a run of such places is one step of the chain. All other blocks, and pcap, are walked one
by one. The walk never guesses: a payload that holds whole captures is skipped like any other.

Every length may be hostile: nothing outside the buffer is read, and memory is bounded by a small multiple of
PIECE_BYTES and of the number of blocks that really fit the range.
"""

from __future__ import annotations

import struct
from array import array
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collector.blocks import ENHANCED_PACKET, MAX_BLOCK_BYTES, MAX_FRAME_BYTES, PCAP_RECORD_BYTES, Layout

Offsets = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Buffer = npt.NDArray[np.uint8]

PIECE_BYTES = 1 << 20
"""Bytes that are searched for packet blocks at once; they stay in the cache of one core."""
MIN_BLOCK_BYTES = 12


class Walk(NamedTuple):
    """Boundaries found: `offsets` of whole blocks, `stop` after the last one, `problem` in words or empty, and whether
    the only problem is the end of the buffer.
    """

    offsets: Offsets
    stop: int
    problem: str
    truncated: bool


def walk(buffer: Buffer, *, start: int, end: int, layout: Layout, byte_order: str) -> Walk:
    """Walk over all blocks that begin in [start, end). `start` must be a boundary; the last block may reach past `end`,
    not past the buffer.
    """
    if not 0 <= start <= end <= len(buffer):
        raise ValueError(f"range {start}..{end} does not lie in a buffer of {len(buffer)} bytes")
    chain = _Chain(buffer, layout, byte_order)
    found = array("q")  # 8 bytes a boundary; a list of ints would take 40, and the file may be all boundaries
    stop = chain.blocks(start, end, found) if layout is Layout.PCAPNG else chain.singly(start, end, found)
    problem, truncated = chain.explain(stop) if stop < end else ("", False)
    return Walk(np.frombuffer(found, np.int64), stop, problem, truncated)


def overlapping(buffer: Buffer, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """View with one item at *every byte*, which reads or writes items at any alignment when indexed with offsets."""
    kind = np.dtype(dtype)
    count = max(len(buffer) - kind.itemsize + 1, 0)
    source = buffer if count else np.zeros(kind.itemsize, np.uint8)
    return np.ndarray(shape=(count,), dtype=kind, buffer=source, strides=(1,))


def gather(buffer: Buffer, offsets: Offsets, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """One item at each offset, copied as opaque bytes: seven times as fast as indexing a view of structured items."""
    kind = np.dtype(dtype)
    return np.asarray(overlapping(buffer, f"V{kind.itemsize}")[offsets].view(kind))


class _Chain:
    """One buffer as a chain of blocks of one layout. The walking methods begin at a boundary, append the boundaries
    found, and return the byte at which they stop: before `end` only if no whole block begins there.
    """

    def __init__(self, buffer: Buffer, layout: Layout, byte_order: str) -> None:
        self.buffer = buffer
        self.size = len(buffer)
        self.layout = layout
        self.words = overlapping(buffer, byte_order + "u4")
        self._bytes = buffer.data
        self._word = struct.Struct(byte_order + "I")

    def blocks(self, start: int, end: int, found: array[int]) -> int:
        """Walk pcapng, by runs of packet blocks."""
        at = start
        while at < end:
            limit = min(at + PIECE_BYTES, end)
            places, after = self._packets(at, limit)
            lasts = np.flatnonzero(np.append(after[:-1] != places[1:], True)[: len(places)])
            while at < limit:
                first = int(np.searchsorted(places, at))
                ahead = int(places[first]) if first < len(places) else limit
                if ahead > at:
                    stop = self.singly(at, ahead, found)
                    if stop < ahead:
                        return stop
                    at = stop
                else:
                    last = int(lasts[np.searchsorted(lasts, first)])
                    found.frombytes(places[first : last + 1].tobytes())
                    at = int(after[last])
        return at

    def _packets(self, start: int, end: int) -> tuple[Offsets, Offsets]:
        """Possible beginnings of whole packet blocks in [start, end), ascending, and their ends."""
        count = max(min(end - start + 3, self.size - MIN_BLOCK_BYTES + 4 - start) // 4, 0)
        kinds = self.buffer[start : start + 4 * count].view(self.words.dtype)
        places = start + 4 * np.flatnonzero(kinds == ENHANCED_PACKET)
        length = self.words[places + 4].astype(np.int64)
        is_sane = (length >= MIN_BLOCK_BYTES) & (length <= MAX_BLOCK_BYTES) & (length & 3 == 0)
        is_sane &= places + length <= self.size
        places, length = places[is_sane], length[is_sane]
        is_whole = self.words[places + length - 4] == length
        return places[is_whole], (places + length)[is_whole]

    def singly(self, start: int, end: int, found: array[int]) -> int:
        """Walk either layout, block by block."""
        at, following = start, self._next_block if self.layout is Layout.PCAPNG else self._next_record
        while at < end:
            after = following(at)
            if after < 0:
                break
            found.append(at)
            at = after
        return at

    def _next_block(self, at: int) -> int:
        """Beginning of the next block; -1 if this one is not whole."""
        if at + MIN_BLOCK_BYTES > self.size:
            return -1
        (length,) = self._word.unpack_from(self._bytes, at + 4)
        after: int = at + length
        if length < MIN_BLOCK_BYTES or length > MAX_BLOCK_BYTES or length & 3 or after > self.size:
            return -1
        return after if self._word.unpack_from(self._bytes, after - 4)[0] == length else -1

    def _next_record(self, at: int) -> int:
        if at + PCAP_RECORD_BYTES > self.size:
            return -1
        (captured,) = self._word.unpack_from(self._bytes, at + 8)
        after: int = at + captured + PCAP_RECORD_BYTES
        return after if captured <= MAX_FRAME_BYTES and after <= self.size else -1

    def explain(self, at: int) -> tuple[str, bool]:
        """Reason why no whole block is at this place, and whether the buffer only ends too early."""
        if at + 8 > self.size or (self.layout is Layout.PCAP and at + PCAP_RECORD_BYTES > self.size):
            return f"cut off at byte {at}", True
        (length,) = self._word.unpack_from(self._bytes, at + (4 if self.layout is Layout.PCAPNG else 8))
        if self.layout is Layout.PCAP:
            if length > MAX_FRAME_BYTES:
                return f"record at byte {at} claims {length} bytes", False
            return f"cut off at byte {at}", True
        if length < MIN_BLOCK_BYTES or length % 4 or length > MAX_BLOCK_BYTES:
            return f"block at byte {at} has the impossible length {length}", False
        if at + length > self.size:
            return f"cut off at byte {at}", True
        return f"block at byte {at} ends with another length than {length}", False
