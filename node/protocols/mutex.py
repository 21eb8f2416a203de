"""Mutual exclusion by logical time, over reliable FIFO channels.

Paper 001 (Lamport 1978), "Ordering the Events Totally": processes share one resource. (I) Who has been granted it must
release it before it can be granted to another. (II) Different requests must be granted in the order in which they are
made. (III) If everybody who is granted it eventually releases it, then every request is eventually granted.

The five rules, and where they are:
  1. request: send "T_m:P_i requests" to all others, and put it on the own queue              on_submit
  2. on such a request: put it on the queue, send a timestamped acknowledgement               _on_request
  3. release: take the request from the queue, send a timestamped release to all others       _leave
  4. on such a release: take the request from the queue                                       _on_release
  5. the resource is granted when (i) the own request is before all others in the queue and
     (ii) something later than T_m has come from every other process                          _enter_if_granted

A submission is one request. Deliver, at the requester only, is the grant; it holds the resource for `hold_ns` (that is
the using process), then reports LEFT and releases. Requests of one member are made at once, each with its timestamp,
and wait in everybody's queue like all others: so condition II holds from submission to submission. A release therefore
names its request (note 7 speaks of processes that do not alternate strictly).

Messages. `acknowledge: always` is the rules as they stand: n - 1 requests, acknowledgements and releases, 3(n - 1) an
entry. `when_needed` adds the notes: 5, no acknowledgement to whom something later than T_m has been sent already; 6, if
P_i precedes P_j then P_j's timestamp T_m itself will do: the test becomes (timestamp, member) against (T_m, P_i). Under
contention that saves up to n - 1 messages an entry; a lone request costs 3(n - 1) as before.

`initially_granted`: the paper's beginning. Every queue begins with a request T_0 of P_0, the lowest member, T_0 earlier
than everything: P_0 holds the resource from its start and releases it after `hold_ns`. It was not asked for, so it is
neither delivered nor reported. The default is a resource that nobody holds.

What happened before what. The timestamps, and so condition II, follow the messages of this protocol, not the datagrams
below: an acknowledgement or heartbeat of the reliable layer carries no timestamp. To this protocol it is a telephone
call (see the paper's "Anomalous Behavior").

Invariants: queues hold each request once; the timestamps of one member rise; the resource is ours only while our
request is the first of our queue.

The end of a member stops it, safely, as in the paper ("if one process fails, the others cannot go on"): nothing is
submitted any more; what can still be granted by the rules is. A later life takes no part.
"""

from __future__ import annotations

import enum
from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from node.clocks import MAX_TIMESTAMP, ClockKind, clock_of
from node.core import Core, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report, Send, SetTimer, Timer
from node.errors import DropReason, LocalError
from node.parameters import require
from node.protocols.reliable import ReliableParameters
from node.trace import Level, Notice
from node.wire import Flag, Kind, Message

MILLISECOND = 1_000_000
CONTROL = Flag.CONTROL.value
HOLD = Timer("hold")
FIRST_TIMESTAMP = 0
"""T_0: earlier than every timestamp."""


class Acknowledge(enum.StrEnum):
    """Which requests are acknowledged."""

    ALWAYS = "always"
    WHEN_NEEDED = "when_needed"


@dataclass(frozen=True, slots=True, kw_only=True)
class MutexParameters:
    """Of the exclusion and of the reliable layer under it. Times in ns."""

    acknowledge: str = "always"
    """`always` (the five rules) or `when_needed` (with the notes 5 and 6)."""
    hold_ns: int = 5 * MILLISECOND
    """How long a member keeps the resource."""
    outstanding: int = 64
    """Requests of one member that wait; more submissions wait in the host."""
    clock: str = "logical"
    """`logical`, `physical` or `synchronised` (see lamport)."""
    mu_ns: int = 0
    """What every message takes at least, for `synchronised`."""
    initially_granted: bool = False
    """Whether the lowest member holds the resource from its start."""
    reliable: ReliableParameters = field(default_factory=ReliableParameters)

    def __post_init__(self) -> None:
        choices = tuple(Acknowledge)
        require(
            self.acknowledge in choices, f"acknowledge must be one of {', '.join(choices)}, not {self.acknowledge!r}"
        )
        require(self.clock in tuple(ClockKind), f"clock must be one of {', '.join(ClockKind)}, not {self.clock!r}")
        require(0 <= self.hold_ns <= 2**62, f"hold_ns must not be negative, not {self.hold_ns}")
        require(self.mu_ns >= 0, f"mu_ns must not be negative, not {self.mu_ns}")
        require(1 <= self.outstanding <= 65536, f"outstanding must lie between 1 and 65536, not {self.outstanding}")


class Phase(enum.StrEnum):
    """Whether this member holds the resource, wants it, or neither; STOPPED once a member has ended."""

    RELEASED = "released"
    WAITING = "waiting"
    HOLDING = "holding"
    STOPPED = "stopped"


class MutexReport(enum.IntEnum):
    """Codes of our reports."""

    STOPPED = 0x61
    """`member` has ended, or is a later life (our own): nothing can be requested any more."""


class Request(NamedTuple):
    """T_m:P_i. Requests compare as the relation => does."""

    timestamp: int
    member: int


class MutexCore(Core):
    """See the module's text."""

    def __init__(self, *, membership: Membership, parameters: MutexParameters) -> None:
        self._us = membership
        self._me = membership.member
        self._parameters = parameters
        self._saves = parameters.acknowledge == Acknowledge.WHEN_NEEDED
        self._clock = clock_of(ClockKind(parameters.clock), minimum_delay_ns=parameters.mu_ns)
        self._is_stopped = membership.incarnation > 1
        self._queue: list[Request] = []
        """Sorted."""
        if parameters.initially_granted and not self._is_stopped:
            self._queue.append(Request(FIRST_TIMESTAMP, membership.members[0]))
        self._wanted: deque[tuple[Request, Submission]] = deque()
        """Our requests that are not granted, in their order."""
        self._holding: Request | None = None
        self._left = 0
        self._latest = dict.fromkeys(membership.peers, FIRST_TIMESTAMP)
        """Per peer: its last timestamp."""
        self._sent = FIRST_TIMESTAMP
        """The timestamp of our last multicast."""
        self._acknowledged = dict.fromkeys(membership.peers, FIRST_TIMESTAMP)
        """Per peer: the timestamp of our last acknowledgement."""
        self._handlers: dict[Kind, Callable[[Message, int, list[Effect]], None]] = {
            Kind.MUTEX_REQUEST: self._on_request,
            Kind.MUTEX_ACKNOWLEDGE: self._on_acknowledge,
            Kind.MUTEX_RELEASE: self._on_release,
        }

    @property
    def can_submit(self) -> bool:
        is_open = len(self._wanted) < self._parameters.outstanding and self._clock.value < MAX_TIMESTAMP
        return is_open and not self._is_stopped

    @property
    def is_idle(self) -> bool:
        return not self._queue

    @property
    def phase(self) -> Phase:
        if self._is_stopped:
            return Phase.STOPPED
        if self._holding is not None:
            return Phase.HOLDING
        return Phase.WAITING if self._wanted else Phase.RELEASED

    @property
    def held(self) -> int:
        """Requests in the queue, ours and others'."""
        return len(self._queue)

    @property
    def timestamp(self) -> int:
        """That of the last event here, for users who hand it along."""
        return self._clock.value

    def on_start(self, now_ns: int) -> list[Effect]:
        if self._is_stopped:
            return [Report(code=MutexReport.STOPPED, member=self._me)]
        first = Request(FIRST_TIMESTAMP, self._me)
        return [self._hold(first, now_ns)] if first in self._queue else []

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        if not self.can_submit:
            raise LocalError(f"member {self._me} takes no submission now: ask can_submit before")
        if submission.target is not None:
            raise LocalError("the resource is requested from everybody; send to one member through the layer below")
        if not 0 <= submission.not_before < MAX_TIMESTAMP:
            raise LocalError(f"{submission.not_before} is no timestamp that another can follow")
        out: list[Effect] = []
        request = Request(self._clock.tick(now_ns, submission.not_before), self._me)
        self._multicast(Kind.MUTEX_REQUEST, request.timestamp, (), out)
        insort(self._queue, request)
        self._wanted.append((request, submission))
        self._enter_if_granted(now_ns, out)
        return out

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        if message.kind is Kind.RELIABLE_ENDED:
            return self._on_ended(message)
        is_ours = message.origin == self._me and message.kind in self._handlers
        if is_ours or message.kind is Kind.RELIABLE_JOINED:
            return []
        reason = self._ignore(message)
        if reason is not None:
            return [Report(code=reason, member=source, value=len(message.payload))]
        out: list[Effect] = []
        self._latest[message.origin] = message.seq
        self._clock.receive(message.seq, now_ns)
        self._handlers[message.kind](message, now_ns, out)
        self._enter_if_granted(now_ns, out)
        return out

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        if timer != HOLD or self._holding is None:
            raise LocalError(f"{timer} is no timer that is armed here")
        out: list[Effect] = []
        self._leave(self._holding, now_ns, out)
        self._enter_if_granted(now_ns, out)
        return out

    def _ignore(self, message: Message) -> DropReason | None:
        latest = self._latest.get(message.origin)
        if message.kind not in self._handlers or latest is None:
            return DropReason.UNEXPECTED
        if message.incarnation != 1 or self._us.incarnation != 1:
            return DropReason.UNEXPECTED
        if not latest < message.seq <= MAX_TIMESTAMP:
            return DropReason.MALFORMED
        is_release = message.kind is Kind.MUTEX_RELEASE
        if len(message.words) != is_release:
            return DropReason.MALFORMED
        if is_release and Request(message.words[0], message.origin) not in self._queue:
            return DropReason.UNEXPECTED
        return None

    # The rules.

    def _on_request(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        request = Request(message.seq, message.origin)
        insort(self._queue, request)
        told = max(self._sent, self._acknowledged[request.member])
        if self._saves and (told, self._me) > request:
            return
        timestamp = self._acknowledged[request.member] = self._clock.tick(now_ns)
        message = self._us.message(Kind.MUTEX_ACKNOWLEDGE, seq=timestamp, flags=CONTROL)
        out.append(Send(target=request.member, message=message))

    def _on_acknowledge(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        """Its timestamp is all."""

    def _on_release(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._queue.remove(Request(message.words[0], message.origin))

    def _enter_if_granted(self, now_ns: int, out: list[Effect]) -> None:
        if self._holding is not None or not self._wanted or self._queue[0] != self._wanted[0][0]:
            return
        request = self._queue[0]
        if not all(self._is_past(request, peer) for peer in self._latest):
            return
        _, submission = self._wanted.popleft()
        out.append(self._grant(request, submission))
        out.append(self._hold(request, now_ns))

    def _is_past(self, request: Request, peer: int) -> bool:
        """Whether nothing before `request` can come from `peer` any more."""
        latest = self._latest[peer]
        return (latest, peer) > request if self._saves else latest > request.timestamp

    def _grant(self, request: Request, submission: Submission) -> Deliver:
        return Deliver(
            payload=submission.payload,
            origin=self._me,
            incarnation=self._us.incarnation,
            seq=request.timestamp,
            level=Level.AGREED,
            inner=submission.inner,
        )

    def _hold(self, request: Request, now_ns: int) -> SetTimer:
        self._holding = request
        return SetTimer(timer=HOLD, at_ns=now_ns + self._parameters.hold_ns)

    def _leave(self, request: Request, now_ns: int, out: list[Effect]) -> None:
        self._holding = None
        self._queue.remove(request)
        if request.timestamp != FIRST_TIMESTAMP:
            self._left += 1
            out.append(Report(code=Notice.LEFT, member=self._me, value=self._left))
        self._multicast(Kind.MUTEX_RELEASE, self._clock.tick(now_ns), (request.timestamp,), out)

    def _multicast(self, kind: Kind, timestamp: int, words: tuple[int, ...], out: list[Effect]) -> None:
        self._sent = timestamp
        out.append(Multicast(message=self._us.message(kind, seq=timestamp, flags=CONTROL, words=words)))

    def _on_ended(self, message: Message) -> list[Effect]:
        self._is_stopped = True
        return [Report(code=MutexReport.STOPPED, member=message.origin)]
