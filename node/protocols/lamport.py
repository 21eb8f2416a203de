"""Total order by logical time, over reliable FIFO channels.

Paper 001 (Lamport 1978), its general method: "each process orders the commands by their timestamps ... a process can
execute a command timestamped T when it has learned of all commands issued by all other processes with timestamps less
than or equal to T". There is no server: everybody decides alone, from the same timestamps.

    sender             everybody else
    DATA T ----------> holds it, and must let all know that it will send nothing at or before T any more:
           <---------- DATA or NULL, later than T
                       delivers it as soon as something at T or later has come from everybody

The order is (timestamp, precedence among members). Timestamps of one member rise strictly and its channel is FIFO: who
has received T or later from it has received all of its messages up to T. So the test is "the least of the latest is at
least T"; the paper's note 6 says it for half of the members, and with strictly rising timestamps it holds for all. The
order extends happened-before (the clock condition), so it is causal and FIFO.

Precedence (`tie`). `member`: the lower member first. `fair`, the paper's note 3: "C_i<a> = C_j<b> and j < i: a => b if
j < C_i<a> mod N <= i, otherwise b => a", with members numbered from 0 by their place among the N of the group: at time
C the member at place C mod N goes first, then upwards and round.

Clocks (`clock`). `logical` counts. `physical` reads the node's clock, right or wrong. `synchronised` sets that clock
forward by IR1' and IR2' with the timestamps that come anyway; every message takes `mu_ns` at least. In all of them an
event's timestamp exceeds those of all events before it. A user who was told a timestamp outside the group hands it
along with his submission (`Submission.not_before`): the paper's first remedy of its anomaly; synchronised clocks are
the second.

Nulls. A silent member blocks everybody. Who receives data later than all it has sent, and sends nothing for
`null_after_ns` (at random between half and all of it; 0: at once), sends a NULL (flag DUMMY). Nulls ask for no nulls,
so a group at rest is silent; a lone message costs n - 1 of them. Who crashes owing nothing but a null is missed by
nobody: whoever stands still for a second prods with a null (`standstill.py`).

A member that ends. The reliable layer's news of an end comes when all survivors have received the same of its stream,
and nobody takes more of it: so it is not awaited any more, and nobody misses a timestamp of it. All survivors order the
same messages by the same keys.

A member that joins (a later life): node/protocols/joining.py, with timestamps for numbers. Others await it as soon as
the layer below says that it takes part in their streams. Every WELCOME has its own timestamp, later than all that its
sender has received. The joiner sends and delivers what is later than all of them. It begins with a NULL, for those who
await it. While it joins it has a timer, to ask again; nobody else has one for it.

Invariants: the queue holds nothing at or before the last delivered key; timestamps of one life rise; what was delivered
is a prefix (of a joiner: a middle part) of one sequence, the same for all who live on.

Delivery is AGREED, not uniform (see the reliable layer). While one member is silent, nothing is delivered: that is the
algorithm. Not here: a clock that has reached MAX_TIMESTAMP stops the order, safely.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from node.clocks import MAX_TIMESTAMP, ClockKind, EventClock, clock_of
from node.core import Core, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report, Send, Timer
from node.errors import DropReason, LocalError
from node.parameters import require
from node.protocols.joining import Joining, Life
from node.protocols.reliable import ReliableParameters
from node.protocols.standstill import PROD, StandStill
from node.protocols.timers import Timers
from node.trace import Notice
from node.wire import Flag, Kind, Message

MILLISECOND = 1_000_000
CONTROL = Flag.CONTROL.value
DUMMY = Flag.DUMMY.value
NULL = Timer("null")
ASK = Timer("ask")


class Tie(enum.StrEnum):
    """Who goes first among equal timestamps."""

    MEMBER = "member"
    FAIR = "fair"


@dataclass(frozen=True, slots=True, kw_only=True)
class LamportParameters:
    """Of the order and of the reliable layer under it. Times in ns."""

    tie: str = "member"
    """`member` or `fair`: who goes first among equal timestamps."""
    clock: str = "logical"
    """`logical`, `physical` or `synchronised`."""
    mu_ns: int = 0
    """What every message takes at least, for `synchronised`."""
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


class Phase(enum.StrEnum):
    """JOINING until everybody has welcomed us; EXHAUSTED when the clock has no timestamp left."""

    JOINING = "joining"
    RUNNING = "running"
    EXHAUSTED = "exhausted"


class LamportReport(enum.IntEnum):
    """Codes of our reports."""

    EXHAUSTED = 0x51
    """The clock has reached its end: this member sends nothing any more, and the order stops."""
    WELCOMED = 0x52
    """This later life takes part; `value`: it delivers what is later than this timestamp."""


class _Held(NamedTuple):
    """One message in the queue; the first three fields are its place in the order and differ between any two."""

    timestamp: int
    precedence: int
    incarnation: int
    message: Message


class LamportCore(Core):
    """See the module's text."""

    def __init__(self, *, membership: Membership, parameters: LamportParameters, rng: Random) -> None:
        self._us = membership
        self._me = membership.member
        self._places = {member: place for place, member in enumerate(membership.members)}
        self._is_fair = parameters.tie == Tie.FAIR
        self._clock = clock_of(ClockKind(parameters.clock), minimum_delay_ns=parameters.mu_ns)
        self._null_after_ns = parameters.null_after_ns
        self._reports_clock = parameters.report_clock
        self._rng = rng
        self._timers = Timers()
        self._standstill = StandStill(self._timers)
        self._joining = Joining(membership)
        self._phase = Phase.JOINING if self._joining.is_joining else Phase.RUNNING
        self._latest: dict[Life, int] = dict.fromkeys(self._joining.lives, 0)
        """Whom we await: the timestamp up to which we have everything of it."""
        self._queue: list[_Held] = []
        """A heap of what is not delivered, ours included."""
        self._sent = 0
        """The timestamp of our last multicast."""
        self._wanted = 0
        """The last timestamp that others need something later of ours for."""
        self._handlers: dict[Kind, Callable[[Message, int, list[Effect]], None]] = {
            Kind.LAMPORT_DATA: self._on_data,
            Kind.LAMPORT_NULL: self._on_null,
            Kind.LAMPORT_JOIN: self._on_join,
            Kind.LAMPORT_WELCOME: self._on_welcome,
            Kind.RELIABLE_ENDED: self._on_ended,
            Kind.RELIABLE_JOINED: self._on_joined,
        }

    @property
    def can_submit(self) -> bool:
        return self._phase is Phase.RUNNING and self._clock.value < MAX_TIMESTAMP

    @property
    def is_idle(self) -> bool:
        return not self._queue and not self._is_awaited and self._phase is not Phase.JOINING

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def held(self) -> int:
        """Messages that wait for later timestamps of others, ours included."""
        return len(self._queue)

    @property
    def timestamp(self) -> int:
        """That of the last event here, for users who hand it along."""
        return self._clock.value

    @property
    def clock(self) -> EventClock:
        return self._clock

    def on_start(self, now_ns: int) -> list[Effect]:
        return []

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
            inner=submission.inner,
            payload=submission.payload,
        )
        # Not when it comes back from the layer below: flow control may hold it there while we deliver what is later.
        self._hold(message)
        self._multicast(message, out)
        self._tell_clock(out)
        self._deliver(out)
        self._see_to_prod(now_ns, out)
        return out

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        reason = self._ignore(message)
        if reason is not None:
            return [Report(code=reason, member=source, value=len(message.payload))]
        out: list[Effect] = []
        is_ours = message.origin == self._me and message.kind not in (Kind.RELIABLE_ENDED, Kind.RELIABLE_JOINED)
        if not is_ours:
            self._handlers[message.kind](message, now_ns, out)
            self._see_to_prod(now_ns, out)
        return out

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        if timer not in (NULL, ASK, PROD):
            raise LocalError(f"{timer} is no timer of this core")
        out: list[Effect] = []
        self._timers.fired(timer)
        if timer == ASK and self._joining.is_joining:
            self._ask(now_ns, out)
        elif (timer == NULL and self._is_awaited) or (timer == PROD and self._standstill.is_due(self._first)):
            self._send_null(now_ns, out)
        self._see_to_prod(now_ns, out)
        return out

    def _ignore(self, message: Message) -> DropReason | None:
        if message.kind not in self._handlers:
            return DropReason.UNEXPECTED
        if message.kind in (Kind.RELIABLE_ENDED, Kind.RELIABLE_JOINED) or message.origin == self._me:
            return None
        latest = self._latest.get((message.origin, message.incarnation))
        if latest is None:
            return DropReason.UNEXPECTED
        # What a joiner says before it has been welcomed may be earlier than what it is awaited from.
        least = 0 if message.kind in (Kind.LAMPORT_JOIN, Kind.LAMPORT_WELCOME) else latest
        return None if least < message.seq <= MAX_TIMESTAMP else DropReason.MALFORMED

    # What comes.

    def _on_data(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        latest = self._take(message, now_ns, out)
        # A joiner gets some that are before its beginning, some of them late.
        if message.seq > self._joining.start:
            self._hold(message)
        self._wanted = max(self._wanted, message.seq)
        self._see_to_null(now_ns, out)
        self._deliver_unless_blocked(latest, out)

    def _on_null(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        latest = self._take(message, now_ns, out)
        self._deliver_unless_blocked(latest, out)

    def _deliver_unless_blocked(self, latest: int, out: list[Effect]) -> None:
        """`latest` of a message's origin before it: if that did not block the head, then whoever does still does."""
        if self._queue and latest < self._queue[0].timestamp:
            self._deliver(out)

    def _take(self, message: Message, now_ns: int, out: list[Effect]) -> int:
        """Its timestamp counts. Returns the latest before it."""
        life = (message.origin, message.incarnation)
        latest = self._latest[life]
        self._latest[life] = message.seq
        self._joining.spoke(life)
        self._clock.receive(message.seq, now_ns)
        self._tell_clock(out)
        return latest

    def _hold(self, message: Message) -> None:
        place = self._places[message.origin]
        precedence = (place - message.seq) % len(self._places) if self._is_fair else place
        heapq.heappush(self._queue, _Held(message.seq, precedence, message.incarnation, message))

    def _deliver(self, out: list[Effect]) -> None:
        """All for which at least their own timestamp has come from everybody."""
        if self._phase is Phase.JOINING:
            return
        complete = min(self._latest.values(), default=MAX_TIMESTAMP)
        while self._queue and self._queue[0].timestamp <= complete:
            out.append(Deliver.of(heapq.heappop(self._queue).message))

    # What we say.

    @property
    def _is_awaited(self) -> bool:
        return self._wanted > self._sent and self._phase is Phase.RUNNING

    def _see_to_null(self, now_ns: int, out: list[Effect]) -> None:
        if not self._is_awaited:
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
        null = self._us.message(Kind.LAMPORT_NULL, seq=self._clock.tick(now_ns), flags=DUMMY)
        self._multicast(null, out)
        self._tell_clock(out)

    def _see_to_prod(self, now_ns: int, out: list[Effect]) -> None:
        self._standstill.watch(self._first, now_ns, out)

    @property
    def _first(self) -> tuple[int, ...] | None:
        """The place of the first message that waits."""
        return self._queue[0][:3] if self._queue and self._phase is Phase.RUNNING else None

    def _multicast(self, message: Message, out: list[Effect]) -> None:
        self._sent = message.seq
        self._timers.disarm(NULL, out)
        out.append(Multicast(message=message))

    def _tell_clock(self, out: list[Effect]) -> None:
        if self._reports_clock:
            out.append(Report(code=Notice.TIMESTAMP, member=1, value=self._clock.value))

    def _enter_exhausted(self, out: list[Effect]) -> None:
        self._phase = Phase.EXHAUSTED
        out.append(Report(code=LamportReport.EXHAUSTED, member=self._me, value=self._clock.value))

    # Who ends and who joins.

    def _on_ended(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        life = (message.origin, message.incarnation)
        self._latest.pop(life, None)
        self._joining.ended(life)
        for joiner in sorted(self._joining.waiting):
            self._welcome(joiner, now_ns, out)
        self._deliver(out)
        self._enter_running_if_welcome(now_ns, out)

    def _on_joined(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        life = (message.origin, message.incarnation)
        if self._joining.joined(life):
            self._ask(now_ns, out)
        elif message.origin != self._me:
            # If we have been here before it: it will send later than our welcome, and that is later than now.
            self._latest.setdefault(life, self._clock.value if self._joining.is_member else 0)
        self._enter_running_if_welcome(now_ns, out)

    def _ask(self, now_ns: int, out: list[Effect]) -> None:
        join = self._us.message(Kind.LAMPORT_JOIN, seq=self._clock.tick(now_ns), flags=CONTROL)
        out.append(Multicast(message=join))
        self._timers.arm(ASK, self._joining.asks(now_ns), out)

    def _on_join(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        joiner = (message.origin, message.incarnation)
        self._clock.receive(message.seq, now_ns)
        self._joining.asked(joiner)
        self._welcome(joiner, now_ns, out)

    def _welcome(self, joiner: Life, now_ns: int, out: list[Effect]) -> None:
        words = self._joining.words(joiner)
        message = self._us.message(Kind.LAMPORT_WELCOME, seq=self._clock.tick(now_ns), flags=CONTROL, words=words)
        out.append(Send(target=joiner[0], message=message))

    def _on_welcome(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        life = (message.origin, message.incarnation)
        self._joining.answered(life, message.seq, message.words)
        self._latest[life] = max(self._latest[life], message.seq)
        self._clock.receive(message.seq, now_ns)
        self._enter_running_if_welcome(now_ns, out)

    def _enter_running_if_welcome(self, now_ns: int, out: list[Effect]) -> None:
        if not self._joining.has_everything:
            return
        self._phase = Phase.RUNNING
        start = self._joining.begin()
        self._timers.disarm(ASK, out)
        self._queue = [held for held in self._queue if held.timestamp > start]
        heapq.heapify(self._queue)
        out.append(Report(code=LamportReport.WELCOMED, member=self._me, value=start))
        self._send_null(now_ns, out)
        self._deliver(out)
