"""The two ends of one member's multicast stream, as values without timers and effects.

    1 ............ floor ............ delivered ..... position ..... known
    everybody has    |  held, may be asked for          |  gaps and held messages beyond them

`position` <= `known`, `floor` <= `delivered` <= `position`, and nothing is ever held above `position` + window.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

from node.errors import DropReason
from node.protocols.roundtrip import RoundTrip
from node.wire import Message


class Answer(enum.Enum):
    """Whom to transmit a message to that somebody misses."""

    NONE = "none"
    ONE = "one"
    ALL = "all"


class OutgoingStream:
    """What we have sent and not everybody has received."""

    __slots__ = ("_acks", "_answered", "announced", "floor", "held", "last")

    def __init__(self) -> None:
        self.last = 0
        self.floor = 0
        """Everybody that counts has received all up to here."""
        self.announced = 0
        """The highest floor that we have told everybody."""
        self.held: dict[int, Message] = {}
        self._acks: dict[int, int] = {}
        self._answered: dict[int, tuple[int, int | None]] = {}
        """Per number: when last transmitted again, and to whom (None: to everybody)."""

    def append(self, message: Message) -> None:
        """The next message of ours."""
        assert message.seq == self.last + 1
        self.last = message.seq
        self.held[message.seq] = message
        if not self._acks:
            self._raise_floor()

    def register(self, member: int) -> int:
        """From now on `member` counts; returns its position, at first the number after which its part of our stream
        starts."""
        return self._acks.setdefault(member, self.last)

    def forget(self, member: int) -> None:
        """`member` counts no more."""
        if self._acks.pop(member, None) is not None:
            self._raise_floor()

    def acknowledge(self, member: int, number: int) -> None:
        """`member` has received all up to `number`. What is behind, beyond or from a stranger changes nothing."""
        before = self._acks.get(member)
        if before is None or not before < number <= self.last:
            return
        self._acks[member] = number
        if before == self.floor:
            self._raise_floor()

    def lacking(self) -> Iterator[tuple[int, int]]:
        """(member, its position) of everybody who lacks something."""
        return ((member, ack) for member, ack in self._acks.items() if ack < self.last)

    def answer(self, number: int, asker: int, now_ns: int, hold_ns: int) -> Answer:
        """`asker` misses `number`. Within `hold_ns` of an answer nobody gets a second one, but a second asker shows
        that many may miss it: then one answer to all keeps the others from asking.
        """
        if number not in self.held:
            return Answer.NONE
        when_ns, whom = self._answered.get(number, (now_ns - hold_ns, asker))
        if now_ns - when_ns >= hold_ns:
            self._answered[number] = (now_ns, asker)
            return Answer.ONE
        if whom is not None and whom != asker:
            self._answered[number] = (now_ns, None)
            return Answer.ALL
        return Answer.NONE

    def _raise_floor(self) -> None:
        floor = min(self._acks.values(), default=self.last)
        for number in range(self.floor + 1, floor + 1):
            del self.held[number]
            self._answered.pop(number, None)
        self.floor = max(self.floor, floor)


class IncomingStream:
    """What we have received of one incarnation of one member."""

    __slots__ = (
        "_asked",
        "delivered",
        "floor",
        "held",
        "is_asking",
        "known",
        "position",
        "start",
        "told",
        "viewed",
        "window",
    )

    def __init__(self, *, start: int, window: int) -> None:
        self.window = window
        self.start = start
        """Our part begins after this."""
        self.position = start
        self.delivered = start
        self.floor = start
        self.known = start
        self.told = start
        """The position that we last told the origin."""
        self.viewed = start
        """Up to here the origin sent under views that we know."""
        self.held: dict[int, Message] = {}
        self.is_asking = False
        """Whether somebody (the core, with a timer) sees to the gaps."""
        self._asked: dict[int, tuple[int, int, int]] = {}
        """Per missing number: when first asked, when to ask again, how often asked."""

    @property
    def has_gap(self) -> bool:
        return self.known > self.position

    @property
    def is_settled(self) -> bool:
        """Everything known is received, delivered, and known to be everywhere."""
        return self.floor == self.known

    def accept(self, message: Message) -> DropReason | None:
        """Take a message in, or say why not."""
        seq = message.seq
        held = self.held
        if seq == self.position + 1:
            held[seq] = message
            while seq + 1 in held:
                seq += 1
            self.position = seq
            if seq > self.known:
                self.known = seq
            return None
        if seq <= self.position or seq in held:
            return DropReason.DUPLICATE
        if seq > self.position + self.window:
            return DropReason.OUT_OF_WINDOW
        held[seq] = message
        self.known = max(self.known, seq)
        return None

    def learn(self, last: int) -> None:
        """Messages up to `last` exist, sent under views that we know. Nobody can honestly be a window ahead of us."""
        self.viewed = max(self.viewed, last)
        if self.known < last <= self.position + self.window:
            self.known = last

    def raise_floor(self, floor: int) -> None:
        """All up to `floor` are everywhere: let them go. Never beyond what we have delivered, whatever we are told."""
        floor = min(floor, self.delivered)
        for number in range(self.floor + 1, floor + 1):
            del self.held[number]
        self.floor = max(self.floor, floor)

    def missing(self) -> Iterator[int]:
        """The numbers of the gaps, ascending."""
        return (number for number in range(self.position + 1, self.known + 1) if number not in self.held)

    def ask(self, now_ns: int, round_trip: RoundTrip, *, burst: int, pause_ns: int) -> tuple[list[int], int]:
        """Which missing numbers to ask for now, at most `burst`; and when to look again, after `pause_ns` at least."""
        wanted: list[int] = []
        next_ns = now_ns + round_trip.timeout_ns()
        for number in self.missing():
            first_ns, again_ns, tries = self._asked.get(number, (now_ns, now_ns, 0))
            if again_ns <= now_ns:
                if len(wanted) == burst:
                    next_ns = now_ns
                    break
                wanted.append(number)
                again_ns = now_ns + round_trip.timeout_ns(tries + 1)
                self._asked[number] = (first_ns, again_ns, tries + 1)
            next_ns = min(next_ns, again_ns)
        return wanted, max(next_ns, now_ns + pause_ns)

    def answered(self, number: int, now_ns: int) -> int | None:
        """`number` has come: the time since it was asked for, if it was asked for once (Karn's rule)."""
        if not self._asked:
            return None
        first_ns, _, tries = self._asked.pop(number, (now_ns, 0, 0))
        return now_ns - first_ns if tries == 1 else None

    def close(self) -> None:
        """The origin is over: what lies beyond a gap counts as never received, until `limit` says otherwise."""
        self.limit(self.position)

    def limit(self, final: int) -> None:
        """Nothing beyond `final` exists for us."""
        assert self.position <= final
        for number in [number for number in self.held if number > final]:
            del self.held[number]
        self.known = final
        self._asked.clear()
