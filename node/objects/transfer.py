"""How a machine that was started again gets what the log of its sub-network means: the Book, from a neighbour.

The joiner asks when its own JOINED comes out of the log, and keeps everything that comes after. Who is asked takes a
snapshot at any place of the log that is not before that JOINED, and sends it in pieces over its direct channel, with
the place. The joiner restores it and carries on with what it has kept from behind that place: what it has not kept is
before its JOINED, and in the snapshot. Nobody stops meanwhile. Who does not answer, or ends half-way, is followed by
the next neighbour.

Nobody left. It may be that all who take part in the log have come to it without the Book, and nobody who has it is
there any more. Who has waited for long, and everybody without the Book when somebody joins or ends, says in the log
that it lacks it (LACKING), and up to which place it had the log then. When all who take part have said so since the
last that joined or ended, nobody has the Book: there was nobody to get it from since. (What an ended one has sent is
not taken any more.) All see that at the same place of the log, and begin a new Book there together.

Messages (kind OBJECTS_STATE, inside a direct message): seq 0, word: the place of the JOINED in the log: a question;
seq k from 1, words: the place of the snapshot in the log, number of pieces: its k-th piece.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from node.core import Membership
from node.effects import Deliver, Timer
from node.errors import DropReason, RemoteError
from node.objects.book import Book
from node.objects.context import Context
from node.objects.direct import Life
from node.objects.entries import MAX_NUMBER, Lacking, entry_of
from node.wire import Flag, Kind, Message, decode_message

STATE = Timer("state")
PIECE_BYTES = 1200
"""So that a piece fits an Ethernet frame with all headers."""
MOST_PIECES = 2048
CONTROL = Flag.CONTROL.value
NEWS = (Kind.RELIABLE_ENDED, Kind.RELIABLE_JOINED)


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


class Joiner:
    """A later life without its Book. `retry_ns`: after so long the next neighbour is asked."""

    def __init__(self, *, context: Context, retry_ns: int) -> None:
        self._context = context
        self._retry_ns = retry_ns
        self._turn = 0
        self._kept: list[Deliver] = []
        self._collection = Collection()
        self.place = 0
        """Of our JOINED in the log; 0: it has not come out yet."""
        self._lives: frozenset[Life] = frozenset()
        """Who takes part in the log, as far as it has come out."""
        self._changed = 0
        """The place of the last that joined or ended."""
        self._said = 0
        """The place up to which we had the log when we last said that we lack the Book."""
        self._lacking: set[Life] = set()
        """Who has said so since the last that joined or ended."""

    @property
    def held(self) -> int:
        return len(self._kept)

    @property
    def last(self) -> int:
        """The place of what the log has given last."""
        return max([self.place, *(delivery.seq for delivery in self._kept)])

    @property
    def lives(self) -> tuple[Life, ...]:
        """Who takes part in the log after all that has come out of it, ascending."""
        return tuple(sorted(self._lives))

    @property
    def has_nobody(self) -> bool:
        """Whether nobody who takes part has the Book."""
        return bool(self._lives) and self._lives == self._lacking

    def joined(self, place: int, lives: Iterable[Life]) -> None:
        """Our JOINED has come out; with us these take part."""
        self.place = self._changed = place
        self._lives = frozenset(lives)

    def keep(self, delivery: Deliver) -> None:
        """The log gives it, and the Book is not here."""
        self._kept.append(delivery)
        life = Life(delivery.origin, delivery.incarnation)
        if delivery.inner in NEWS:
            self._lives = self._lives - {life} if delivery.inner is Kind.RELIABLE_ENDED else self._lives | {life}
            self._changed = delivery.seq
            self._lacking.clear()
        elif delivery.inner is Kind.OBJECTS_ENTRY and _lacks(delivery, self._changed):
            self._lacking.add(life)

    def lack(self) -> Lacking | None:
        """What to say in the log now, if nothing has been said since the last that joined or ended."""
        if self._said >= self._changed:
            return None
        self._said = self.last
        return Lacking(since=self._said)

    def ask(self, others: list[Life]) -> None:
        """The next of these, in turn."""
        context = self._context
        target = others[self._turn % len(others)]
        self._turn += 1
        context.send(target, question(context.us, self.place))
        context.timers.arm(STATE, context.now_ns + self._retry_ns, context.own)

    def take(self, message: Message, source: Life) -> State | None:
        """A piece, checked by `place_asked`. Returns the state when it is complete."""
        is_wanted = message.words[0] >= self.place > 0 and source in self._lives
        return self._collection.take(message, source) if is_wanted else None

    def end(self, place: int) -> list[Deliver]:
        """The Book is here, with everything up to this place. Returns what comes after it, in order."""
        self._context.timers.disarm(STATE, self._context.own)
        kept, self._kept = self._kept, []
        return [delivery for delivery in kept if delivery.seq > place]


class Donor:
    """A machine that has the Book, for those that have not."""

    def __init__(self, *, context: Context) -> None:
        self._context = context
        self._wanted: dict[Life, int] = {}
        """Who asked, and for a state of which place or later."""

    def want(self, joiner: Life, place: int) -> None:
        self._wanted[joiner] = place

    def ended(self, life: Life) -> None:
        self._wanted.pop(life, None)

    def give(self, place: int, book: Book) -> None:
        """The Book has everything up to this place: to all for whom this is enough."""
        for joiner in sorted(joiner for joiner, wanted in self._wanted.items() if wanted <= place):
            del self._wanted[joiner]
            for piece in pieces_of(self._context.us, place, book.snapshot()):
                self._context.send(joiner, piece)


def _lacks(delivery: Deliver, changed: int) -> bool:
    """Whether this entry says LACKING since this place. Nonsense says nothing; it is reported when the Book is here."""
    try:
        entry = entry_of(decode_message(delivery.payload))
    except RemoteError:
        return False
    return isinstance(entry, Lacking) and entry.since >= changed
