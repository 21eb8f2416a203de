"""The words of the reliable streams' messages; docs/protocols/reliable.md has the table.

The first word of every message begins with the number of the view (31 bits). A fence is an entry (target, number of
unicasts to it that precede this message); a position is an entry (origin, number up to which its stream has been
received); an acknowledgement among the positions of a data message is an entry with 1 between the two (source, number
up to which its unicasts have been received).
"""

from __future__ import annotations

from node.errors import DropReason, RemoteError
from node.packing import Entry, pack, unpack
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


def entry(member: int, number: int) -> int:
    """One word: a number about one member of the view."""
    return pack(member, 0, number)


def acknowledged(member: int, number: int) -> int:
    """One word: all unicasts of one member up to a number have been received."""
    return pack(member, 1, number)


def pack_data(view: int, lag: int, fences: tuple[int, ...] = (), positions: tuple[int, ...] = ()) -> tuple[int, ...]:
    assert lag <= MAX_LAG
    return (view << VIEW_SHIFT | len(fences) << 23 | len(positions) << 17 | lag, *fences, *positions)


def unpack_data(message: Message) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Lag, fences and positions of a data message. RemoteError MALFORMED when the counts do not fit the words, or the
    lag does not fit the number."""
    words = message.words
    head = words[0]
    fences = head >> 23 & MAX_FENCES
    positions = head >> 17 & MAX_PIGGYBACK
    lag = head & MAX_LAG
    if len(words) != 1 + fences + positions:
        raise RemoteError(DropReason.MALFORMED, f"{len(words)} words for {fences} fences and {positions} positions")
    if not lag <= message.seq or not message.seq:
        raise RemoteError(DropReason.MALFORMED, f"message {message.seq} with a watermark {lag} before it")
    return lag, words[1 : 1 + fences], words[1 + fences :]


def fence_of(message: Message, target: int) -> int:
    """The number of unicasts to `target` that precede a data message. The message has passed `unpack_data`."""
    count = message.words[0] >> 23 & MAX_FENCES
    fences = map(unpack, message.words[1 : 1 + count]) if count else ()
    return next((fence.number for fence in fences if fence.member == target), 0)


def pack_heartbeat(view: int, positions: tuple[int, ...], awaited: tuple[int, ...] = ()) -> tuple[int, ...]:
    """`positions`: entries of the sender's own stream (the last number sent) and of the streams of others (received
    without a gap). `awaited`: the members that are asked for a heartbeat."""
    head = view << VIEW_SHIFT | len(positions) << 16 | len(awaited)
    return (head, *positions, *(entry(member, 0) for member in awaited))


def unpack_heartbeat(words: tuple[int, ...]) -> tuple[list[Entry], list[int]]:
    """RemoteError MALFORMED when the counts do not fit the words."""
    positions, awaited = (words[0] >> 16 & 0xFFFF, words[0] & 0xFFFF) if words else (0, 0)
    if len(words) != 1 + positions + awaited:
        raise RemoteError(DropReason.MALFORMED, f"{len(words)} words for {positions} positions, {awaited} questions")
    entries = list(map(unpack, words[1:]))
    return entries[:positions], [one.member for one in entries[positions:]]
