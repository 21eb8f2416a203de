"""What the words of the reliable layer's messages mean.

Nearly every word is an entry: member (16 bits), incarnation (16), number (32). Two words are otherwise: the head of a
data message, and the range of a negative acknowledgement (first number, last number, 32 bits each).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from node.errors import DropReason, RemoteError

MAX_NUMBER = 0xFFFF_FFFE
NOT_PARTY = 0xFFFF_FFFF
"""Instead of a position: this member never took part in the stream; do not wait for it, do not ask it."""

MAX_RANGES = 128
MAX_FENCES = 0x3FF
MAX_PIGGYBACK = 0x3F


class Entry(NamedTuple):
    """One word: something numbered about one incarnation of one member."""

    member: int
    incarnation: int
    number: int


def pack(member: int, incarnation: int, number: int) -> int:
    return member << 48 | incarnation << 32 | number


def unpack(word: int) -> Entry:
    return Entry(word >> 48, word >> 32 & 0xFFFF, word & 0xFFFF_FFFF)


class DataHead(NamedTuple):
    """The first word of a data message (view 16 bits, fences 10, positions 6, floor 32), and what it counts.

    `view` is the digest of the sender's view, `floor` its stable floor; then come `fences` (entry: target, incarnation
    of the target, number of unicasts that precede this message) and `positions` (entry: what the sender has of others'
    streams).
    """

    view: int
    floor: int
    fences: tuple[int, ...]
    positions: tuple[int, ...]


def pack_data(view: int, floor: int, fences: tuple[int, ...] = (), positions: tuple[int, ...] = ()) -> tuple[int, ...]:
    return (view << 48 | len(fences) << 38 | len(positions) << 32 | floor, *fences, *positions)


def unpack_data(words: tuple[int, ...]) -> DataHead:
    """RemoteError MALFORMED when the counts do not fit the words."""
    if not words:
        raise RemoteError(DropReason.MALFORMED, "a data message without its first word")
    head = words[0]
    fences = head >> 38 & MAX_FENCES
    positions = head >> 32 & MAX_PIGGYBACK
    if len(words) != 1 + fences + positions:
        raise RemoteError(DropReason.MALFORMED, f"{len(words)} words for {fences} fences and {positions} positions")
    return DataHead(head >> 48, head & 0xFFFF_FFFF, words[1 : 1 + fences], words[1 + fences :])


def view_digest(over: Mapping[int, int]) -> int:
    """16 bits for a set of (member, incarnation up to which it is over); 0 for the empty set only."""
    if not over:
        return 0
    text = ",".join(f"{member}:{over[member]}" for member in sorted(over))
    return zlib.crc32(text.encode()) % 0xFFFF + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What one member tells others about where it stands.

    `positions`: its own stream (number: the last it sent), and streams of others (number: received without gap).
    `closed`: the same for streams that are ending. `awaited`: whose answer it wants. `suspects`: who has been silent
    for too long. `over`: entry (member, incarnation up to which it is over, highest incarnation known).
    """

    positions: tuple[Entry, ...] = ()
    closed: tuple[Entry, ...] = ()
    awaited: tuple[int, ...] = ()
    suspects: tuple[Entry, ...] = ()
    over: tuple[Entry, ...] = ()

    def to_words(self) -> tuple[int, ...]:
        """Five counts of 12 bits in one word, then the entries."""
        counts = 0
        words: list[int] = [0]
        awaited = tuple(Entry(member, 0, 0) for member in self.awaited)
        for section in (self.positions, self.closed, awaited, self.suspects, self.over):
            counts = counts << 12 | len(section)
            words.extend(pack(*entry) for entry in section)
        words[0] = counts
        return tuple(words)

    @staticmethod
    def from_words(words: tuple[int, ...]) -> Heartbeat:
        """RemoteError MALFORMED when the counts do not fit the words."""
        counts = [words[0] >> shift & 0xFFF for shift in (48, 36, 24, 12, 0)] if words else []
        if not words or 1 + sum(counts) != len(words) or words[0] >> 60:
            raise RemoteError(DropReason.MALFORMED, f"{len(words)} words for a heartbeat that announces {counts}")
        entries = tuple(map(unpack, words[1:]))
        ends = [0]
        for count in counts:
            ends.append(ends[-1] + count)
        positions, closed, awaited, suspects, over = (entries[start:end] for start, end in pairwise(ends))
        return Heartbeat(
            positions=positions,
            closed=closed,
            awaited=tuple(entry.member for entry in awaited),
            suspects=suspects,
            over=over,
        )


def ranges_of(numbers: Iterable[int]) -> tuple[int, ...]:
    """Ascending numbers as words (first, last) of at most MAX_RANGES runs; what exceeds them is left for the next
    time."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        elif len(runs) == MAX_RANGES:
            break
        else:
            runs.append([number, number])
    return tuple(first << 32 | last for first, last in runs)


def numbers_of(ranges: tuple[int, ...], limit: int) -> list[int]:
    """The first `limit` numbers in the words of `ranges_of`. RemoteError MALFORMED when they do not ascend."""
    numbers: list[int] = []
    previous = 0
    for word in ranges:
        first, last = word >> 32, word & 0xFFFF_FFFF
        if not previous < first <= last:
            raise RemoteError(DropReason.MALFORMED, f"range {first} to {last} after {previous}")
        previous = last
        numbers.extend(range(first, min(last, first + limit - len(numbers) - 1) + 1))
    return numbers
