"""How a machine that was started again gets what the log of its sub-network means: the Book, from a neighbour.

The joiner asks when its own JOINED comes out of the log, and keeps everything that comes after. Who is asked takes a
snapshot at any place of the log that is not before that JOINED, and sends it in pieces over its direct channel, with
the place. The joiner restores it and carries on with what it has kept from behind that place: what it has not kept is
before its JOINED, and in the snapshot. Nobody stops meanwhile. Who does not answer, or ends half-way, is followed by
the next neighbour.

Messages (kind OBJECTS_STATE, inside a direct message): seq 0, word: the place of the JOINED in the log: a question;
seq k from 1, words: the place of the snapshot in the log, number of pieces: its k-th piece.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from node.core import Membership
from node.errors import DropReason, RemoteError
from node.objects.direct import Life
from node.objects.entries import MAX_NUMBER
from node.wire import Flag, Kind, Message

PIECE_BYTES = 1200
"""So that a piece fits an Ethernet frame with all headers."""
MOST_PIECES = 2048
CONTROL = Flag.CONTROL.value


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A snapshot of the Book, and the place in the log after which it was taken."""

    place: int
    data: bytes


@dataclass(slots=True)
class _Collected:
    source: Life
    place: int
    count: int
    pieces: list[bytes] = field(default_factory=list)


def question(us: Membership, place: int) -> Message:
    """Of a joiner whose JOINED has this place."""
    return us.message(Kind.OBJECTS_STATE, flags=CONTROL, words=(place,))


def pieces_of(us: Membership, place: int, data: bytes) -> list[Message]:
    """All pieces of a snapshot taken after this place in the log, in order. At least one."""
    chunks = [data[first : first + PIECE_BYTES] for first in range(0, len(data), PIECE_BYTES)] or [b""]
    return [
        us.message(Kind.OBJECTS_STATE, seq=number, flags=CONTROL, words=(place, len(chunks)), payload=chunk)
        for number, chunk in enumerate(chunks, start=1)
    ]


def place_asked(message: Message) -> int | None:
    """Of a question: the place; None: it is a piece. RemoteError MALFORMED for what is neither."""
    count = 2 if message.seq else 1
    if message.kind is not Kind.OBJECTS_STATE or len(message.words) != count or message.words[0] > MAX_NUMBER:
        raise RemoteError(DropReason.MALFORMED, "words that are no state")
    if message.seq and not message.seq <= message.words[1] <= MOST_PIECES:
        raise RemoteError(DropReason.MALFORMED, f"piece {message.seq} of {message.words[1]}")
    return None if message.seq else message.words[0]


class Collection:
    """The pieces that a joiner has got. They come in order from each source; a first piece begins anew."""

    def __init__(self) -> None:
        self._collected: _Collected | None = None

    def take(self, message: Message, source: Life) -> State | None:
        """A piece, checked by `place_asked`. Returns the state when it is complete."""
        place, count = message.words
        if message.seq == 1:
            self._collected = _Collected(source, place, count)
        found = self._collected
        if found is None or (found.source, found.place, found.count) != (source, place, count):
            return None
        if message.seq != len(found.pieces) + 1:
            return None
        found.pieces.append(message.payload)
        if len(found.pieces) < count:
            return None
        self._collected = None
        return State(place=place, data=b"".join(found.pieces))
