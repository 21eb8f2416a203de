"""The record of one call in the log state of a sub-network, its encoding, and the queues of objects."""

from __future__ import annotations

import enum
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from struct import Struct
from typing import TypeVar

from node.errors import DropReason, RemoteError, check
from node.objects.addresses import MAX_TIMESTAMP, Reference
from node.objects.log.entries import MAX_NUMBER, MAX_PLACE, Call, CallId, Key

SpaceOf = tuple[int, int, int]
"""A space, whose calls must not overtake each other: member, incarnation, space."""


class Stage(enum.IntEnum):
    """The stage of a call. OPEN: its timestamp is not final. FINAL: it is. DROPPED: another sub-network coordinates it,
    and our objects do not get it; the coordinator does not know yet."""

    OPEN = 0
    FINAL = 1
    DROPPED = 2


class Vote(enum.IntEnum):
    """The vote of this sub-network on an atomic call. Other calls have YES."""

    NONE = 0
    YES = 1


@dataclass(slots=True)
class LinkState:
    """The state of the links between us and another sub-network: its epoch as we know it, the number of our last
    request to it (`sent`), and of its last request that we took (`taken`)."""

    epoch: int = 1
    sent: int = 0
    taken: int = 0


@dataclass(slots=True)
class Party:
    """Another sub-network that the call covers, and that has not settled it: the call's `number` on the link there, and
    its proposal `timestamp` (0: none yet)."""

    number: int
    timestamp: int = 0


@dataclass(slots=True)
class Record:
    """A call. `coordinator`: a place; if it is another one, `number` is the call's number on the link from there to us.
    `objects`: ours that are alive; `missing`: covered ones that will not get it, as far as we know; at the coordinator,
    of all places. `least`: a lower bound of the final timestamp (no overtaking); `is_short`: some sub-network was left
    out."""

    call: Call
    coordinator: int
    number: int
    proposal: int
    objects: tuple[Reference, ...]
    missing: tuple[Reference, ...] = ()
    stage: Stage = Stage.OPEN
    vote: Vote = Vote.YES
    least: int = 0
    is_short: bool = False
    final: int = 0
    is_dispatched: bool = False
    parties: dict[int, Party] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return Key(self.final or self.proposal, self.call.id)

    @property
    def space(self) -> SpaceOf:
        return (self.call.id.member, self.call.id.incarnation, self.call.caller.space)

    @property
    def is_complete(self) -> bool:
        """Whether all have proposed, and voted yes."""
        return self.vote is Vote.YES and all(party.timestamp for party in self.parties.values())

    @property
    def is_bound(self) -> bool:
        """Whether we have voted yes on an atomic call, and so may not drop it any more."""
        return self.call.is_atomic and self.vote is Vote.YES

    @property
    def highest(self) -> int:
        """The final timestamp when all have proposed."""
        return max(self.proposal, self.least, *(party.timestamp for party in self.parties.values()))

    @property
    def places(self) -> frozenset[int]:
        return frozenset(self.parties)

    def write(self, writer: Writer) -> None:
        writer.list(self.call.words)
        writer.text(self.call.payload)
        writer.words(self.coordinator, self.number, self.proposal, self.stage, self.vote, self.least)
        writer.words(self.is_short, self.final, self.is_dispatched)
        writer.list(one.word for one in self.objects)
        writer.list(one.word for one in self.missing)
        writer.words(len(self.parties))
        for place, party in sorted(self.parties.items()):
            writer.words(place, party.number, party.timestamp)

    @classmethod
    def read(cls, reader: Reader) -> Record:
        """The inverse of `write`. RemoteError MALFORMED for anything that `write` never gives."""
        call = Call.of_words(reader.list(), reader.text())
        coordinator, number, proposal, stage, vote, least, is_short, final, is_dispatched = (
            reader.word() for _ in range(9)
        )
        limits = (MAX_PLACE, MAX_NUMBER, MAX_TIMESTAMP, max(Stage), max(Vote), MAX_TIMESTAMP, 1, MAX_TIMESTAMP, 1)
        found = (coordinator, number, proposal, stage, vote, least, is_short, final, is_dispatched)
        if any(value > limit for value, limit in zip(found, limits, strict=True)):
            raise RemoteError(DropReason.MALFORMED, "a record of a call that cannot be")
        return cls(
            call=call,
            coordinator=coordinator,
            number=number,
            proposal=proposal,
            objects=tuple(map(Reference.of_word, reader.list())),
            missing=tuple(map(Reference.of_word, reader.list())),
            stage=Stage(stage),
            vote=Vote(vote),
            least=least,
            is_short=bool(is_short),
            final=final,
            is_dispatched=bool(is_dispatched),
            parties=dict(reader.many(lambda: (reader.word(), Party(reader.word(), reader.word())))),
        )


T = TypeVar("T")

_WORD = Struct(">Q")
MAX_COUNT = 2**20
"""Most elements of one list in a state."""


class Writer:
    """Writer of a state; `data`: the bytes so far."""

    def __init__(self) -> None:
        self.data = bytearray()

    def words(self, *words: int) -> None:
        for word in words:
            self.data += _WORD.pack(word)

    def text(self, text: bytes) -> None:
        """Write bytes, after their length."""
        self.words(len(text))
        self.data += text

    def list(self, words: Iterable[int]) -> None:
        """Write words, after their number."""
        found = tuple(words)
        self.words(len(found), *found)


class Reader:
    """Reader of a state, in the order in which it was written. RemoteError MALFORMED where it does not fit."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def word(self) -> int:
        return int(_WORD.unpack(self._bytes(_WORD.size))[0])

    def text(self) -> bytes:
        return self._bytes(self.word())

    def list(self) -> tuple[int, ...]:
        return self.many(self.word)

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The pairs of words in a list."""
        words = self.list()
        check(not len(words) % 2, "half a pair in a state")
        return tuple(zip(words[::2], words[1::2], strict=True))

    def many(self, read: Callable[[], T]) -> tuple[T, ...]:
        """Elements read by `read`, as many as the next word says."""
        count = self.word()
        check(count <= MAX_COUNT, f"a state with {count} of one thing")
        return tuple(read() for _ in range(count))

    def end(self) -> None:
        """RemoteError MALFORMED unless everything has been read."""
        check(self._at == len(self._data), f"{len(self._data) - self._at} bytes after the end of a state")

    def _bytes(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise RemoteError(DropReason.MALFORMED, "a state that ends too early")
        self._at += count
        return self._data[self._at - count : self._at]


class Order:
    """The queues of the objects of one sub-network."""

    def __init__(self) -> None:
        self._queues: dict[Reference, list[Key]] = {}
        self._finals: dict[CallId, tuple[Key, tuple[Reference, ...]]] = {}

    def add(self, key: Key, objects: Iterable[Reference]) -> None:
        """Add a call that is not final."""
        for one in objects:
            insort(self._queues.setdefault(one, []), key)

    def finish(self, key: Key, final: Key, objects: tuple[Reference, ...]) -> list[CallId]:
        """A call becomes final, at a key that is not less. Returns the calls that may go out now, in the order of
        keys."""
        assert key <= final, "a final timestamp is at least every proposal"
        self._finals[final.id] = (final, objects)
        touched = {final.id: final}
        for one in objects:
            self._remove(one, key, touched)
            insort(self._queues.setdefault(one, []), final)
            self._first(one, touched)
        return self._take(touched)

    def drop(self, key: Key, objects: Iterable[Reference]) -> list[CallId]:
        """Remove a call that is not final. Returns the calls that may go out because of it."""
        touched: dict[CallId, Key] = {}
        for one in objects:
            self._remove(one, key, touched)
        return self._take(touched)

    def forget(self, objects: Iterable[Reference]) -> list[CallId]:
        """Remove objects that exist no more; no call waits because of them. Returns the calls that may go out now."""
        gone = frozenset(objects)
        touched: dict[CallId, Key] = {}
        for one in sorted(gone):
            for key in self._queues.pop(one, ()):
                if key.id in self._finals:
                    final, rest = self._finals[key.id]
                    self._finals[key.id] = (final, tuple(each for each in rest if each not in gone))
                    touched[key.id] = final
        return self._take(touched)

    def _take(self, touched: dict[CallId, Key]) -> list[CallId]:
        """Calls among the `touched` that may go out, and those that may go out because of them; least key first."""
        gone: list[CallId] = []
        while touched:
            name = min(touched, key=touched.__getitem__)
            key = touched.pop(name)
            if name in self._finals and all(self._queues[one][0] == key for one in self._finals[name][1]):
                for one in self._finals.pop(name)[1]:
                    self._remove(one, key, touched)
                gone.append(name)
        return gone

    def _remove(self, one: Reference, key: Key, touched: dict[CallId, Key]) -> None:
        queue = self._queues[one]
        place = bisect_left(queue, key)
        assert queue[place] == key, "a call waits in the queue of each of its objects"
        del queue[place]
        if not queue:
            del self._queues[one]
        elif place == 0:
            self._first(one, touched)

    def _first(self, one: Reference, touched: dict[CallId, Key]) -> None:
        key = self._queues[one][0]
        if key.id in self._finals:
            touched[key.id] = key
