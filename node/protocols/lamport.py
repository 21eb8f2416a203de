"""Total order by Lamport's timestamps: the core of one view, over reliable FIFO streams.

Lamport, "Time, Clocks, and the Ordering of Events in a Distributed System", CACM 21(7), 1978 (paper 001). Sections in
brackets. Messages, argument and parameters: docs/protocols/lamport.md.

1. [Logical Clocks, IR1 and IR2(a)] A sender increments its clock and puts the new value T on the message.
2. [Logical Clocks, IR2(b)] A receiver sets its clock beyond T.
3. [Ordering the Events Totally] Messages are ordered by (timestamp, precedence among members). `tie` chooses the
   precedence: `member` is the lower member first, `fair` is the order of note 3, which rotates with the timestamp.
4. [the same section, state machines] "A process can execute a command timestamped T when it has learned of all
   commands issued by all other processes with timestamps less than or equal to T": a member delivers a message when
   something at T or later has come from each other member (note 6, which holds for all members here).
5. [the same section, rule 2 and note 5] A member that receives data at T and has sent nothing at T or later multicasts
   a NULL, within `null_after_ns`. A NULL calls for no NULL.
6. [Anomalous Behavior] `Submission.not_before` is a timestamp that the user was told outside the system: the message
   gets a later one. `clock` chooses what timestamps are made of: `logical` (a counter), `physical` (the node's clock,
   right or wrong), or `synchronised` [Physical Clocks, IR1' and IR2'].
7. [not in the paper] `close` delivers all of the cut in the order of rule 3. Of an excluded sender it drops each
   message that may lack a cause, and all later ones of that sender (node/protocols/prefix.py).

Deviations. The paper acknowledges each request to its sender; here a NULL is multicast, and one NULL serves several
messages. The timestamps of one member rise strictly, in all kinds of clock. A member orders its own message from its
submission on, because flow control below may return it later than what others sent after it.

Invariants. The timestamps of one stream rise. The buffer holds nothing at or before the last delivered place. What two
members of a view deliver before its end are prefixes of one sequence. The cut holds all that a survivor has multicast,
so `close` delivers its submissions and hands none back. Timestamps rise from view to view: `memory` is the greatest
timestamp of all cuts so far.

Not here. Delivery is agreed, not uniform. Nothing is delivered while a member of the view is silent; the group layer
ends such a view. A clock that has reached MAX_TIMESTAMP stops the order for good.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from struct import Struct
from typing import NamedTuple

from node.clocks import MAX_TIMESTAMP, ClockKind, EventClock, clock_of
from node.core import Closing, Membership, Submission, ViewCore
from node.effects import Deliver, Effect, Multicast, Report, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.parameters import require
from node.protocols.prefix import Prefix, Walk
from node.reliable.parameters import ReliableParameters
from node.trace import Notice
from node.transport import Timers
from node.wire import Flag, Kind, Message

MILLISECOND = 1_000_000
DUMMY = Flag.DUMMY.value
NULL = Timer("null")
WORDS = {Kind.LAMPORT_DATA: 1, Kind.LAMPORT_NULL: 0}
"""Of each kind of message, how many words it has: data carries its sender's prefix (node/protocols/prefix.py)."""

_MEMORY = Struct(">Q")


class Tie(enum.StrEnum):
    """The precedence among equal timestamps."""

    MEMBER = "member"
    FAIR = "fair"


@dataclass(frozen=True, slots=True, kw_only=True)
class LamportParameters:
    """Of the order and of the reliable layer under it. Times in ns."""

    tie: str = "member"
    """`member` or `fair`: the precedence among equal timestamps."""
    clock: str = "logical"
    """`logical`, `physical` or `synchronised`."""
    mu_ns: int = 0
    """The least delay of a message, for `synchronised`."""
    null_after_ns: int = 2 * MILLISECOND
    """How long a null waits for a message of our own that makes it needless; 0: not at all."""
    report_clock: bool = False
    """Report the clock after every submission and receipt (Notice.TIMESTAMP)."""
    reliable: ReliableParameters = field(default_factory=ReliableParameters)

    def __post_init__(self) -> None:
        require(self.tie in tuple(Tie), f"tie must be one of {', '.join(Tie)}, not {self.tie!r}")
        require(self.clock in tuple(ClockKind), f"clock must be one of {', '.join(ClockKind)}, not {self.clock!r}")
        require(self.mu_ns >= 0, f"mu_ns must not be negative, not {self.mu_ns}")
        require(0 <= self.null_after_ns <= 2**62, f"null_after_ns must not be negative, not {self.null_after_ns}")

    def new_clock(self) -> EventClock:
        """A clock for one incarnation of a member."""
        return clock_of(ClockKind(self.clock), minimum_delay_ns=self.mu_ns)


class Phase(enum.StrEnum):
    """EXHAUSTED: the clock has no timestamp left."""

    RUNNING = "running"
    EXHAUSTED = "exhausted"


class LamportReport(enum.IntEnum):
    """Codes of our reports."""

    EXHAUSTED = 0x51
    """The clock has reached its end: this member sends nothing any more, and the order stops."""
    DROPPED = 0x52
    """At the end of the view, the message of excluded member `member` with timestamp `value` may lack a cause: no
    survivor delivers it."""


class _Buffered(NamedTuple):
    """One message; the first two fields are its place in the order and differ between any two."""

    timestamp: int
    precedence: int
    message: Message


class LamportCore(ViewCore):
    """See the module's text. `clock`: the clock of this incarnation, which outlives its views; None: a new one.
    RemoteError when `memory` is none.
    """

    def __init__(
        self,
        *,
        membership: Membership,
        parameters: LamportParameters,
        rng: Random,
        memory: bytes = b"",
        clock: EventClock | None = None,
    ) -> None:
        self._us = membership
        self._me = membership.member
        self._places = {member: place for place, member in enumerate(membership.members)}
        self._is_fair = parameters.tie == Tie.FAIR
        self._clock = parameters.new_clock() if clock is None else clock
        self._null_after_ns = parameters.null_after_ns
        self._reports_clock = parameters.report_clock
        self._rng = rng
        self._timers = Timers()
        self._prefix = Prefix()
        self._phase = Phase.RUNNING
        self._begin = _timestamp_in(memory)
        """All timestamps of this view are later."""
        self._latest = dict.fromkeys(membership.peers, self._begin)
        """Of each other member, the timestamp up to which we have everything."""
        self._buffer: list[_Buffered] = []
        """A heap of what is not delivered, ours included."""
        self._sent = self._begin
        """The timestamp of our last multicast."""
        self._wanted = self._begin
        """The greatest timestamp of others' data: they wait until we send something later."""

    @property
    def can_submit(self) -> bool:
        return self._phase is Phase.RUNNING and self._clock.value < MAX_TIMESTAMP

    @property
    def is_idle(self) -> bool:
        return not self._buffer and not self._owes_null

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def buffered(self) -> int:
        """Messages that wait for later timestamps of others, ours included."""
        return len(self._buffer)

    @property
    def timestamp(self) -> int:
        """That of the last event here, for users that hand it along."""
        return self._clock.value

    @property
    def clock(self) -> EventClock:
        return self._clock

    def on_start(self, now_ns: int) -> list[Effect]:
        out: list[Effect] = []
        if self._begin:
            self._clock.tick(now_ns, self._begin)
        if not self.can_submit:
            self._enter_exhausted(out)
        return out

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        if not self.can_submit:
            raise LocalError(f"member {self._me} takes no submission now: ask can_submit before")
        if submission.target is not None:
            raise LocalError("timestamps order multicasts; send to one member through the layer below")
        if not 0 <= submission.not_before < MAX_TIMESTAMP:
            raise LocalError(f"{submission.not_before} is no timestamp that another can follow")
        out: list[Effect] = []
        message = self._us.message(
            Kind.LAMPORT_DATA,
            seq=self._clock.tick(now_ns, submission.not_before),
            flags=submission.flags,
            words=(self._prefix.word,),
            inner=submission.inner,
            payload=submission.payload,
        )
        self._buffer_data(message)
        self._multicast(message, out)
        self._deliver(out)
        return out

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        out: list[Effect] = []
        if source == self._me:
            return out
        before = self._receive(message, source, out)
        if before is None:
            return out
        self._clock.receive(message.seq, now_ns)
        self._tell_clock(out)
        if message.kind is Kind.LAMPORT_DATA:
            self._wanted = max(self._wanted, message.seq)
            self._arrange_null(now_ns, out)
        # If this stream did not block the head of the buffer, another one does, and still blocks it.
        if self._buffer and before < self._buffer[0].timestamp:
            self._deliver(out)
        return out

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        if timer != NULL:
            raise LocalError(f"{timer} is no timer of this core")
        out: list[Effect] = []
        self._timers.fired(timer)
        if self._owes_null:
            self._send_null(now_ns, out)
        return out

    def close(self, rest: Mapping[int, Sequence[Message]], survivors: frozenset[int], now_ns: int) -> Closing:
        out: list[Effect] = []
        for origin in self._us.peers:
            for message in rest.get(origin, ()):
                self._receive(message, origin, out)
        walk = Walk(self._prefix, survivors)
        while self._buffer:
            message = heapq.heappop(self._buffer).message
            if walk.admits(message.origin, message.words[0]):
                walk.delivered(message.origin, message.seq)
                out.append(Deliver.of(message))
            else:
                out.append(Report(code=LamportReport.DROPPED, member=message.origin, value=message.seq))
        return Closing(effects=tuple(out), memory=_MEMORY.pack(max((self._sent, *self._latest.values()))))

    # Receiving and delivering.

    def _receive(self, message: Message, source: int, out: list[Effect]) -> int | None:
        """Take the next message of the stream of `source`: returns the timestamp before it. None: refused, which
        depends on the stream alone.
        """
        reason = self._refusal(message, source)
        if reason is not None:
            out.append(Report(code=reason, member=source, value=len(message.payload)))
            return None
        before = self._latest[source]
        self._latest[source] = message.seq
        if message.kind is Kind.LAMPORT_DATA:
            self._buffer_data(message)
        return before

    def _refusal(self, message: Message, source: int) -> DropReason | None:
        if message.kind not in WORDS or message.origin != source or source not in self._latest:
            return DropReason.UNEXPECTED
        if len(message.words) != WORDS[message.kind] or not self._latest[source] < message.seq <= MAX_TIMESTAMP:
            return DropReason.MALFORMED
        return None

    def _buffer_data(self, message: Message) -> None:
        place = self._places[message.origin]
        precedence = (place - message.seq) % len(self._places) if self._is_fair else place
        heapq.heappush(self._buffer, _Buffered(message.seq, precedence, message))

    def _deliver(self, out: list[Effect]) -> None:
        """Rule 4."""
        complete = min(self._latest.values(), default=MAX_TIMESTAMP)
        while self._buffer and self._buffer[0].timestamp <= complete:
            message = heapq.heappop(self._buffer).message
            self._prefix.delivered(message.origin, message.seq)
            out.append(Deliver.of(message))

    # Sending.

    @property
    def _owes_null(self) -> bool:
        return self._wanted > self._sent and self._phase is Phase.RUNNING

    def _arrange_null(self, now_ns: int, out: list[Effect]) -> None:
        """Rule 5. A random part of the wait keeps members from answering all at once."""
        if not self._owes_null:
            return
        if self._null_after_ns == 0:
            self._send_null(now_ns, out)
        elif NULL not in self._timers:
            wait_ns = self._rng.randint(self._null_after_ns // 2, self._null_after_ns)
            self._timers.arm(NULL, now_ns + wait_ns, out)

    def _send_null(self, now_ns: int, out: list[Effect]) -> None:
        if self._clock.value >= MAX_TIMESTAMP:
            self._enter_exhausted(out)
            return
        self._multicast(self._us.message(Kind.LAMPORT_NULL, seq=self._clock.tick(now_ns), flags=DUMMY), out)

    def _multicast(self, message: Message, out: list[Effect]) -> None:
        self._sent = message.seq
        self._timers.disarm(NULL, out)
        out.append(Multicast(message=message))
        self._tell_clock(out)

    def _tell_clock(self, out: list[Effect]) -> None:
        if self._reports_clock:
            out.append(Report(code=Notice.TIMESTAMP, member=1, value=self._clock.value))

    def _enter_exhausted(self, out: list[Effect]) -> None:
        self._phase = Phase.EXHAUSTED
        out.append(Report(code=LamportReport.EXHAUSTED, member=self._me, value=self._clock.value))


def _timestamp_in(memory: bytes) -> int:
    """0 when there is none."""
    if not memory:
        return 0
    timestamp: int = _MEMORY.unpack(memory)[0] if len(memory) == _MEMORY.size else MAX_TIMESTAMP + 1
    if timestamp > MAX_TIMESTAMP:
        raise RemoteError(DropReason.MALFORMED, f"{len(memory)} bytes of memory hold no timestamp")
    return timestamp
