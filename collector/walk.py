"""Where every block of a capture begins, found fast and proved.

A capture is a chain: only the length of one block says where the next begins. Walking it costs one cache miss per
block, one after the other. So a range is cut into lanes; each lane guesses one block boundary near its begin and all
lanes walk in lock step, one block per step, as a few NumPy operations. *Closure* turns the guesses into a proof: a
lane is accepted only if its guess is exactly where the lane before it ended, and the first lane begins at a true
boundary; so by induction every accepted boundary is the true one. A lane whose guess was wrong (a payload may hold
whole captures) is walked again, serially, from its true begin.

Where blocks of one size follow each other, which is what a load of equal messages leaves, no walk is needed: their
lengths are compared at even distances (`walk_even`). That is exact, too: each block that has the length proves where
the next one begins.

Every length is taken for an enemy's: nothing outside the buffer is read, and the memory used is bounded by a small
multiple of the number of blocks that really fit the range.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collector.blocks import ENHANCED_PACKET, MAX_BLOCK_BYTES, MAX_FRAME_BYTES, PCAP_RECORD_BYTES, Layout

Offsets = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Buffer = npt.NDArray[np.uint8]

LANE_BYTES = 1 << 16
MAX_LANES = 1024
SEARCH_BYTES = 1 << 14
"""How far into a lane its first boundary is looked for; a lane without one joins the lane before it."""
SEARCH_STEP_BYTES = 1 << 10
FEW_LANES = 8
"""With no more lanes left than this, a serial walk beats lock step."""
MIN_BLOCK_BYTES = 12
EVEN_PROBE = 32
"""So many blocks are compared before many are."""


class Walk(NamedTuple):
    """Boundaries found: `offsets` of whole blocks, `stop` behind the last one, `problem` in words or empty, and whether
    the only problem is that the buffer ends."""

    offsets: Offsets
    stop: int
    problem: str
    truncated: bool


class _Lane(NamedTuple):
    """Result of walking one stretch: it halted at `stop`, either behind its last block or at one that is not whole."""

    stop: int
    is_broken: bool


def walk(buffer: Buffer, *, start: int, end: int, layout: Layout, byte_order: str) -> Walk:
    """All blocks that begin in [start, end). `start` must be a boundary; the last block may reach past `end`, not past
    the buffer.
    """
    if not 0 <= start <= end <= len(buffer):
        raise ValueError(f"range {start}..{end} does not lie in a buffer of {len(buffer)} bytes")
    chain = _Chain(buffer, layout, byte_order)
    offsets, stop, is_broken = _walk_lanes(chain, start, end)
    if not is_broken:
        return Walk(offsets, stop, "", False)
    problem, truncated = chain.explain(stop)
    return Walk(offsets, stop, problem, truncated)


def walk_even(buffer: Buffer, *, start: int, end: int, layout: Layout, byte_order: str, most: int) -> Walk:
    """The blocks from `start` on that have the length of the first, at most `most`; stops where another one begins.

    Never finds a problem: where the first block is not whole there are none. `start` must be a boundary.
    """
    if not 0 <= start <= end <= len(buffer):
        raise ValueError(f"range {start}..{end} does not lie in a buffer of {len(buffer)} bytes")
    count, length = _Chain(buffer, layout, byte_order).even_run(start, end, most)
    return Walk(start + length * np.arange(count, dtype=np.int64), start + count * length, "", False)


def overlapping(buffer: Buffer, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A view with one item at *every byte*: indexed with offsets it reads (or writes) items at any alignment."""
    kind = np.dtype(dtype)
    count = max(len(buffer) - kind.itemsize + 1, 0)
    source = buffer if count else np.zeros(kind.itemsize, np.uint8)
    return np.ndarray(shape=(count,), dtype=kind, buffer=source, strides=(1,))


def gather(buffer: Buffer, offsets: Offsets, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """One item at each offset, copied as opaque bytes: seven times as fast as indexing a view of structured items."""
    kind = np.dtype(dtype)
    return np.asarray(overlapping(buffer, f"V{kind.itemsize}")[offsets].view(kind))


class _Chain:
    """One buffer as a chain of blocks of one layout."""

    def __init__(self, buffer: Buffer, layout: Layout, byte_order: str) -> None:
        self.buffer = buffer
        self.size = len(buffer)
        self.layout = layout
        self.words = overlapping(buffer, byte_order + "u4")
        self._bytes = buffer.data
        self._word = struct.Struct(byte_order + "I")
        self.head = MIN_BLOCK_BYTES if layout is Layout.PCAPNG else PCAP_RECORD_BYTES

    # Not kept as attributes: an object that holds its own methods is alive until a collection, and its file stays
    # open.

    @property
    def step(self) -> Callable[[Offsets], tuple[Offsets, Mask]]:
        """`_step_blocks` or `_step_records`, as the layout says."""
        return self._step_blocks if self.layout is Layout.PCAPNG else self._step_records

    @property
    def next(self) -> Callable[[int], int]:
        """`_next_block` or `_next_record`."""
        return self._next_block if self.layout is Layout.PCAPNG else self._next_record

    def _step_blocks(self, at: Offsets) -> tuple[Offsets, Mask]:
        """Where the next blocks begin, and which of these are not whole blocks. Needs at + 12 <= size."""
        length = self.words[at + 4].astype(np.int64)
        after = at + length
        is_bad = (length < MIN_BLOCK_BYTES) | (length > MAX_BLOCK_BYTES) | ((length & 3) != 0) | (after > self.size)
        if is_bad.any():
            after[is_bad] = at[is_bad] + MIN_BLOCK_BYTES
        is_bad |= self.words[after - 4] != length
        return after, is_bad

    def _next_block(self, at: int) -> int:
        """The same for one block; -1 when it is not whole."""
        if at + MIN_BLOCK_BYTES > self.size:
            return -1
        (length,) = self._word.unpack_from(self._bytes, at + 4)
        after: int = at + length
        if length < MIN_BLOCK_BYTES or length > MAX_BLOCK_BYTES or length & 3 or after > self.size:
            return -1
        return after if self._word.unpack_from(self._bytes, after - 4)[0] == length else -1

    def _step_records(self, at: Offsets) -> tuple[Offsets, Mask]:
        captured = self.words[at + 8].astype(np.int64)
        after = at + captured + PCAP_RECORD_BYTES
        return after, (captured > MAX_FRAME_BYTES) | (after > self.size)

    def _next_record(self, at: int) -> int:
        if at + PCAP_RECORD_BYTES > self.size:
            return -1
        (captured,) = self._word.unpack_from(self._bytes, at + 8)
        after: int = at + captured + PCAP_RECORD_BYTES
        return after if captured <= MAX_FRAME_BYTES and after <= self.size else -1

    def even_run(self, start: int, end: int, most: int) -> tuple[int, int]:
        """How many blocks that begin in [start, end) are as long as the first, and that length."""
        length = self.next(start) - start if start < end else 0
        if length <= 0:
            return 0, 0
        count = min(most, -((start - end) // length), (self.size - start) // length)
        run = self._evenly(start, length, min(count, EVEN_PROBE))
        return (self._evenly(start, length, count) if run == EVEN_PROBE else run), length

    def _evenly(self, start: int, length: int, count: int) -> int:
        """How many of `count` blocks have this length where they would stand if all had it."""
        claims, said = ((4, length - 4), length) if self.layout is Layout.PCAPNG else ((8,), length - PCAP_RECORD_BYTES)
        is_even = np.ones(count, np.bool_)
        for place in claims:
            is_even &= self.words[start + place :: length][:count] == said
        return count if is_even.all() else int(is_even.argmin())

    def explain(self, at: int) -> tuple[str, bool]:
        """Why there is no whole block at this place, and whether the buffer merely ends too early."""
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

    def guess(self, places: Offsets) -> Mask:
        """A cheap look, only to place lanes; closure finds out what it is worth. Needs places + head <= size."""
        if self.layout is Layout.PCAPNG:
            return np.asarray(self.words[places] == ENHANCED_PACKET)
        captured, original = self.words[places + 8], self.words[places + 12]
        is_sane = (captured >= 14) & (captured <= original) & (original <= MAX_FRAME_BYTES)
        return np.asarray(is_sane & (self.words[places + 4] < 10**9))


def _walk_lanes(chain: _Chain, start: int, end: int) -> tuple[Offsets, int, bool]:
    starts = _lane_starts(chain, start, end)
    if len(starts) <= FEW_LANES:
        found, lane = _walk_serially(chain, start, end)
        return found, lane.stop, lane.is_broken
    ends = np.append(starts[1:], end)
    offsets, stops, is_broken = _lock_step(chain, starts, ends)
    if not is_broken.any() and bool((stops[:-1] == starts[1:]).all()):
        return offsets, int(stops[-1]), False
    return _repair(chain, offsets, starts, ends, stops, is_broken)


def _lane_starts(chain: _Chain, start: int, end: int) -> Offsets:
    """`start`, and one guessed boundary in each further lane that shows one."""
    count = min(MAX_LANES, (end - start) // LANE_BYTES)
    if count <= FEW_LANES:
        return np.array([start], np.int64)
    grid = 4 if chain.layout is Layout.PCAPNG else 1
    lane_bytes = (end - start) // count // grid * grid
    nominal = start + lane_bytes * np.arange(1, count, dtype=np.int64)
    guesses = _first_boundaries(chain, nominal, grid)
    return np.concatenate(([start], guesses)).astype(np.int64)


def _first_boundaries(chain: _Chain, nominal: Offsets, grid: int) -> Offsets:
    """For each of these places the first boundary at or behind it, as far as one shows within SEARCH_BYTES.

    LANE_BYTES > SEARCH_BYTES, so the search behind the last place stays inside the range.
    """
    found = np.full(len(nominal), -1, np.int64)
    window = np.arange(0, SEARCH_STEP_BYTES, grid)
    for begin in range(0, SEARCH_BYTES, SEARCH_STEP_BYTES):
        missing = np.flatnonzero(found < 0)
        if not len(missing):
            break
        places = (nominal[missing] + begin)[:, None] + window
        rows, columns = np.nonzero(chain.guess(places))
        proved = _continues(chain, places[rows, columns])
        hit, first = np.unique(rows[proved], return_index=True)
        found[missing[hit]] = places[hit, columns[proved][first]]
    return found[found >= 0]


def _continues(chain: _Chain, places: Offsets) -> Mask:
    """True where a whole block begins, and behind it another one (or the end of the buffer)."""
    after, is_bad = chain.step(places)
    is_last = after + chain.head > chain.size
    _, is_next_bad = chain.step(np.minimum(after, chain.size - chain.head))
    return np.asarray(~is_bad & (is_last | ~is_next_bad))


def _lock_step(chain: _Chain, starts: Offsets, ends: Offsets) -> tuple[Offsets, Offsets, Mask]:
    """Walk all lanes together; the boundaries found (ascending), where each lane halted, and whether at a broken
    block.
    """
    stops, is_broken = starts.copy(), np.zeros(len(starts), np.bool_)
    found = _Found(len(starts))
    active, at = np.arange(len(starts)), starts
    while len(active) > FEW_LANES:
        after, is_bad = _step_inside(chain, at)
        is_done = is_bad | (after >= ends[active])
        if not is_done.any():
            found.row(active, at)
            at = after
            continue
        found.row(active[~is_bad], at[~is_bad])
        stops[active[is_done]] = np.where(is_bad, at, after)[is_done]
        is_broken[active] = is_bad
        active, at = active[~is_done], after[~is_done]
    for lane, place in zip(active.tolist(), at.tolist(), strict=True):
        more, (stops[lane], is_broken[lane]) = _walk_serially(chain, place, int(ends[lane]))
        found.tail(lane, more)
    return found.in_order(), stops, is_broken


def _step_inside(chain: _Chain, at: Offsets) -> tuple[Offsets, Mask]:
    """One step for boundaries that may stand too close to the end of the buffer to hold even a head."""
    last = chain.size - chain.head
    if int(at.max()) <= last:
        return chain.step(at)
    after, is_bad = chain.step(np.minimum(at, last))
    return after, is_bad | (at > last)


class _Found:
    """Boundaries as they come, step by step across the lanes; handed out lane by lane, which is ascending order."""

    def __init__(self, lanes: int) -> None:
        self._counts = np.zeros(lanes, np.int64)
        self._parts: list[tuple[npt.NDArray[np.intp], list[Offsets]]] = []
        self._tails: dict[int, Offsets] = {}

    def row(self, active: npt.NDArray[np.intp], at: Offsets) -> None:
        if not self._parts or self._parts[-1][0] is not active:
            self._parts.append((active, []))
        self._parts[-1][1].append(at)

    def tail(self, lane: int, at: Offsets) -> None:
        self._tails[lane] = at

    def in_order(self) -> Offsets:
        for active, rows in self._parts:
            self._counts[active] += len(rows)
        totals = self._counts.copy()
        for lane, at in self._tails.items():
            totals[lane] += len(at)
        cursor = np.cumsum(totals) - totals
        out = np.empty(int(totals.sum()), np.int64)
        for lane, at in self._tails.items():
            begin = int(cursor[lane] + self._counts[lane])
            out[begin : begin + len(at)] = at
        for active, rows in self._parts:
            out[cursor[active] + np.arange(len(rows))[:, None]] = np.stack(rows)
            cursor[active] += len(rows)
        return out


def _walk_serially(chain: _Chain, start: int, end: int) -> tuple[Offsets, _Lane]:
    found = array("q")  # 8 bytes a boundary; a list of ints would take 40, and the file may be all boundaries
    at, following = start, chain.next
    while at < end:
        after = following(at)
        if after < 0:
            return np.frombuffer(found, np.int64), _Lane(at, True)
        found.append(at)
        at = after
    return np.frombuffer(found, np.int64), _Lane(at, False)


def _repair(
    chain: _Chain, offsets: Offsets, starts: Offsets, ends: Offsets, stops: Offsets, is_broken: Mask
) -> tuple[Offsets, int, bool]:
    """Accept lanes whose guess is proved by the lane before; walk the others again from where they truly begin."""
    cuts = np.searchsorted(offsets, np.append(starts, ends[-1]))
    accepted: list[Offsets] = []
    at = int(starts[0])
    for lane in range(len(starts)):
        if at == starts[lane]:
            accepted.append(offsets[cuts[lane] : cuts[lane + 1]])
            result = _Lane(int(stops[lane]), bool(is_broken[lane]))
        elif at < ends[lane]:
            found, result = _walk_serially(chain, at, int(ends[lane]))
            accepted.append(found)
        else:
            continue
        at = result.stop
        if result.is_broken:
            return np.concatenate(accepted), at, True
    return np.concatenate(accepted), at, False
