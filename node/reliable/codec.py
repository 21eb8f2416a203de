"""The words of the reliable streams' messages; docs/protocols/reliable.md has the table.

The first word of every message begins with the number of the view (31 bits). An entry is one word: member (16 bits),
number (48). A fence is an entry (target, unicasts to it that precede this message), a position, too (origin, what has
been received of its stream without a gap).
"""

from __future__ import annotations

from typing import NamedTuple

from node.errors import DropReason, RemoteError
from node.wire import Flag, Kind, Message

MAX_FENCES = 0x3FF
MAX_PIGGYBACK = 0x3F
MAX_LAG = 0x1FFFF
POSITIONS_PER_HEARTBEAT = 150  # so that a heartbeat fits an Ethernet frame
CONTROL = Flag.CONTROL.value

VIEW_SHIFT = 33
KINDS = frozenset(kind for kind in Kind if Kind.RELIABLE_DATA <= kind <= Kind.RELIABLE_ACKNOWLEDGEMENT)


def view_of(message: Message) -> int:
    """The number of the view in which a message was sent. RemoteError MALFORMED when the message names none."""
    if not message.words:
        raise RemoteError(DropReason.MALFORMED, f"a message of kind {message.kind.name} that names no view")
    return message.words[0] >> VIEW_SHIFT


class Entry(NamedTuple):
    """One word: a number about one member."""

    member: int
    number: int


def pack(member: int, number: int) -> int:
    return member << 48 | number


def unpack(word: int) -> Entry:
    return Entry(word >> 48, word & 0xFFFF_FFFF_FFFF)


class DataHead(NamedTuple):
    """The words of a data message."""

    lag: int
    fences: tuple[int, ...]
    positions: tuple[int, ...]


def pack_data(view: int, lag: int, fences: tuple[int, ...] = (), positions: tuple[int, ...] = ()) -> tuple[int, ...]:
    assert lag <= MAX_LAG
    return (view << VIEW_SHIFT | len(fences) << 23 | len(positions) << 17 | lag, *fences, *positions)


def unpack_data(message: Message) -> DataHead:
    """RemoteError MALFORMED when the counts do not fit the words, or the lag does not fit the number."""
    words = message.words
    head = words[0]
    fences = head >> 23 & MAX_FENCES
    positions = head >> 17 & MAX_PIGGYBACK
    lag = head & MAX_LAG
    if len(words) != 1 + fences + positions:
        raise RemoteError(DropReason.MALFORMED, f"{len(words)} words for {fences} fences and {positions} positions")
    if not lag <= message.seq or not message.seq:
        raise RemoteError(DropReason.MALFORMED, f"message {message.seq} with a watermark {lag} before it")
    return DataHead(lag, words[1 : 1 + fences], words[1 + fences :])


def fence_of(message: Message, target: int) -> int:
    """How many unicasts to `target` precede a data message that has passed `unpack_data`."""
    count = message.words[0] >> 23 & MAX_FENCES
    fences = map(unpack, message.words[1 : 1 + count]) if count else ()
    return next((number for member, number in fences if member == target), 0)


class Heartbeat(NamedTuple):
    """The state of its sender. `positions`: its own stream (the last number sent) and the streams of others (received
    without a gap). `awaited`: the members that are asked for a heartbeat.
    """

    positions: tuple[Entry, ...] = ()
    awaited: tuple[int, ...] = ()

    def to_words(self, view: int) -> tuple[int, ...]:
        head = view << VIEW_SHIFT | len(self.positions) << 16 | len(self.awaited)
        return (head, *(pack(*entry) for entry in self.positions), *(pack(member, 0) for member in self.awaited))

    @staticmethod
    def from_words(words: tuple[int, ...]) -> Heartbeat:
        """RemoteError MALFORMED when the counts do not fit the words."""
        positions, awaited = (words[0] >> 16 & 0xFFFF, words[0] & 0xFFFF) if words else (0, 0)
        if len(words) != 1 + positions + awaited:
            raise RemoteError(
                DropReason.MALFORMED, f"{len(words)} words for {positions} positions, {awaited} questions"
            )
        entries = tuple(map(unpack, words[1:]))
        return Heartbeat(entries[:positions], tuple(entry.member for entry in entries[positions:]))
