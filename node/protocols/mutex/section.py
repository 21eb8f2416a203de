"""The critical section of one member in one view: the common part of the algorithms of mutual exclusion.

A submission is one request. Deliver, at the requester only, is the grant. The requester holds the resource for
`hold_ns` (that is the using process), then it reports LEFT. The algorithm decides when a member may enter:
`_enter_if_granted` and `_leave`.

Fence: Deliver.seq, (ordinal of the view << 32) + an ordinal in it, rises with every grant. An excluded holder may still
run and believe that it holds the resource; a resource that has seen a higher fence must refuse it.

Invariants. The timestamps of one member rise in a view; those of multicasts rise over views.
"""

from __future__ import annotations

import enum
from abc import abstractmethod
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from node.clocks import MAX_TIMESTAMP, ClockKind, Tie, clock_of
from node.core import Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report, SetTimer, Timer
from node.errors import LocalError, check
from node.group.view import MAX_VIEW
from node.parameters import require, require_one_of, require_range
from node.protocols.base import CONTROL, MILLISECOND, OrderCore
from node.reliable.parameters import ReliableParameters
from node.trace import Level, MutexReport, Notice
from node.wire import Kind, Message

HOLD = Timer("hold")
FIRST_TIMESTAMP = 0
"""T_0: earlier than every timestamp."""
MOST_OUTSTANDING = 65536
"""Most requests of one member that are not released; more of them are refused."""
MOST_GRANTS = 2**32 - 1
"""The last ordinal of a grant in one view."""
MEMORY = Struct(">IQ")
"""The ordinal of the view, the last timestamp of a multicast before it."""


class Algorithm(enum.StrEnum):
    """The algorithm that decides when a member may enter."""

    LAMPORT = "lamport"
    RICART_AGRAWALA = "ricart_agrawala"
    CENTRAL = "central"
    MAEKAWA = "maekawa"


class Acknowledge(enum.StrEnum):
    """The requests that are acknowledged."""

    ALWAYS = "always"
    WHEN_NEEDED = "when_needed"


@dataclass(frozen=True, slots=True, kw_only=True)
class MutexParameters:
    """Parameters of the exclusion and of the reliable layer below it. Times in ns."""

    algorithm: str = "lamport"
    """`lamport`: requests, acknowledgements and releases; `ricart_agrawala`: requests and replies; `maekawa`: votes of
    quorums; `central`: requests in the order of their receipt by the first member. The last two do not promise the
    order of grants."""
    acknowledge: str = "always"
    """Of `lamport`: `always` (the five rules) or `when_needed` (with the notes 5 and 6)."""
    hold_ns: int = 5 * MILLISECOND
    """Time for which a member keeps the resource."""
    outstanding: int = 64
    """Of `lamport` and `central`: most waiting requests of one member; more submissions wait in the host.
    `ricart_agrawala` and `maekawa` have one."""
    tie: str = "member"
    """The precedence among equal timestamps: `member` or `fair` (see lamport)."""
    clock: str = "logical"
    """`logical`, `physical` or `synchronised` (see lamport)."""
    mu_ns: int = 0
    """The minimum delay of a message, for `synchronised`."""
    initially_granted: bool = False
    """Whether the lowest member of the first view holds the resource from its start."""
    reliable: ReliableParameters = field(default_factory=ReliableParameters)

    def __post_init__(self) -> None:
        choices_of = (("algorithm", Algorithm), ("acknowledge", Acknowledge), ("tie", Tie), ("clock", ClockKind))
        for name, choices in choices_of:
            require_one_of(name, getattr(self, name), choices)
        require(0 <= self.hold_ns <= 2**62, f"hold_ns must not be negative, not {self.hold_ns}")
        require(self.mu_ns >= 0, f"mu_ns must not be negative, not {self.mu_ns}")
        require_range("outstanding", self.outstanding, 1, MOST_OUTSTANDING)
        # The stack holds back a uniform delivery, but neither our timer of the section nor the reports FENCE and LEFT.
        require(not self.reliable.uniform, "reliable.uniform must be false: a grant must not wait for other members")


class Phase(enum.StrEnum):
    """The phase: this member holds the resource, waits for it, or neither."""

    RELEASED = "released"
    WAITING = "waiting"
    HOLDING = "holding"


class Request(NamedTuple):
    """T_m:P_i."""

    timestamp: int
    member: int


@dataclass(slots=True, kw_only=True)
class Kept:
    """The private state of an incarnation, passed from the core of one view to the core of the next. `lamport` needs
    none: its requests are in the memory of the view."""

    holding: Request | None = None
    """Our request for which we are inside."""
    wanted: Request | None = None
    """Of `ricart_agrawala`: our request that is not granted; the host has its submission."""
    left: int = 0
    """Number of times that we have left the section."""


def decode_memory(layout: Struct, memory: bytes) -> tuple[int, ...]:
    """The fields of a donor's memory, which begin with the ordinal of the view and the last timestamp before it.
    RemoteError MALFORMED: no view can begin with it."""
    check(len(memory) == layout.size, f"a memory of {len(memory)} bytes")
    fields: tuple[int, ...] = layout.unpack(memory)
    check(1 < fields[0] <= MAX_VIEW and fields[1] <= MAX_TIMESTAMP, "a memory that no view has ended with")
    return fields


class SectionCore(OrderCore):
    """See the module's docstring."""

    ordered_by = "requests"
    last_timestamp = MAX_TIMESTAMP

    def __init__(
        self,
        *,
        membership: Membership,
        parameters: MutexParameters,
        view: int,
        floor: int,
        holding: Request | None,
        left: int = 0,
    ) -> None:
        super().__init__(membership)
        self._parameters = parameters
        self._tie = Tie(parameters.tie)
        self._rank_of = {member: rank for rank, member in enumerate(membership.members)}
        self._clock = clock_of(ClockKind(parameters.clock), minimum_delay_ns=parameters.mu_ns)
        self._view = view
        """The ordinal of the view, counted here: cores do not know the group's number."""
        self._floor = floor
        """All requests of earlier views are at or before it; all timestamps of this view are later."""
        self._holding = holding
        """Our request for which we are inside."""
        self._left = left
        """Number of times that we have left the section; `lamport` counts for all members itself."""
        self._highest = floor
        """The last timestamp of a multicast, ours or another's."""
        self._latest = dict.fromkeys(membership.peers, floor)
        """By peer: its last timestamp."""
        self._multicast_at = dict(self._latest)
        """By peer: the timestamp of its last multicast."""
        self._due = {HOLD: self._on_held}

    @property
    @abstractmethod
    def _is_waiting(self) -> bool:
        """Whether an own submission is here that is not granted."""

    @abstractmethod
    def _enter_if_granted(self, now_ns: int, out: list[Effect]) -> None:
        """Enter for our first request, unless we are inside or the algorithm does not grant it."""

    @abstractmethod
    def _leave(self, request: Request, now_ns: int, out: list[Effect]) -> None:
        """The section that was entered for this request was left: report LEFT, and let the others know."""

    @property
    def phase(self) -> Phase:
        if self._holding is not None:
            return Phase.HOLDING
        return Phase.WAITING if self._is_waiting else Phase.RELEASED

    @property
    def timestamp(self) -> int:
        return max(self._clock.value, self._floor)

    def on_start(self, now_ns: int) -> list[Effect]:
        if self._holding is None:
            return []
        is_without_request = self._holding.timestamp == FIRST_TIMESTAMP and self._view == 1
        told = [Report(code=MutexReport.HOLDS, member=self._me)] if is_without_request else []
        return [*told, self._hold(self._holding, now_ns)]

    def _on_held(self, now_ns: int, out: list[Effect]) -> None:
        if self._holding is None:
            raise LocalError("the timer of a holder is due, and we hold nothing: it is no timer that is armed here")
        request, self._holding = self._holding, None
        self._leave(request, now_ns, out)
        self._enter_if_granted(now_ns, out)

    def _report_left(self, request: Request, out: list[Effect]) -> None:
        self._left += request.timestamp != FIRST_TIMESTAMP
        out.append(Report(code=Notice.LEFT, member=self._me, value=self._left))

    def _on_accepted(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._latest[message.origin] = max(self._latest[message.origin], message.seq)
        self._clock.receive(message.seq, now_ns)
        super()._on_accepted(message, now_ns, out)
        self._enter_if_granted(now_ns, out)

    def _hold(self, request: Request, now_ns: int) -> SetTimer:
        self._holding = request
        return SetTimer(timer=HOLD, at_ns=now_ns + self._parameters.hold_ns)

    def _deliver(self, submission: Submission, fence: int, out: list[Effect]) -> None:
        grant = Deliver(
            payload=submission.payload,
            origin=self._me,
            incarnation=self._us.incarnation,
            seq=fence,
            level=Level.AGREED,
            inner=submission.inner,
        )
        out += [grant, Report(code=MutexReport.FENCE, member=self._me, value=fence)]

    def _is_timely(self, message: Message, *, is_multicast: bool) -> bool:
        """Whether its timestamp follows those of its origin's messages. For a multicast this depends on its stream
        alone."""
        last = (self._multicast_at if is_multicast else self._latest)[message.origin]
        return last < message.seq <= MAX_TIMESTAMP

    def _order(self, request: Request) -> tuple[int, int]:
        """The place of a request in the relation =>, for comparison."""
        timestamp, member = request
        return timestamp, self._tie.precedence(timestamp, self._rank_of[member], len(self._rank_of))

    def _note_multicast(self, message: Message) -> None:
        self._multicast_at[message.origin] = message.seq
        self._highest = max(self._highest, message.seq)

    def _tick(self, now_ns: int, after: int = 0) -> int:
        return self._clock.tick(now_ns, max(after, self._floor))

    def _multicast(self, kind: Kind, timestamp: int, words: tuple[int, ...], out: list[Effect]) -> None:
        self._highest = max(self._highest, timestamp)
        out.append(Multicast(message=self._us.message(kind, seq=timestamp, flags=CONTROL, words=words)))
