"""Synchronisation of physical clocks that are never set backwards, directly over datagrams. Paper 001 (Lamport 1978),
"Physical Clocks".

  IR1'  between messages, a clock runs like that of its node;
  IR2'  (a) a message m that is sent at t carries T_m = C_i(t);
        (b) its receiver at t' sets its clock to max(C_j(t' - 0), T_m + mu_m).

Every member sends its time to its neighbours each `tau_ns` of its own clock. With `start: relay` each member first
sends a message that is relayed to all others, as in the proof of the paper's theorem. Clocks drift as long as they run,
so a member is busy for `run_ns` of its own clock, then silent and idle. The graphs are at the end;
docs/protocols/clocks.md has the theorem, the messages and the limits. A forged timestamp is not detected.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from node.clocks import MAX_TIMESTAMP, PhysicalClock
from node.core import Core, Membership, Submission
from node.effects import Effect, Multicast, Report, Send, Timer
from node.errors import DropReason, LocalError
from node.packing import Entry, pack, unpack
from node.parameters import require, require_one_of
from node.trace import Notice
from node.transport import Timers
from node.wire import Flag, Kind, Message

MILLISECOND = 1_000_000
SECOND = 1_000 * MILLISECOND
LEAST_PERIOD_NS = 10_000
CONTROL = Flag.CONTROL.value

TELL = Timer("tell")
SAMPLE = Timer("sample")
INITIATE = Timer("initiate")
END = Timer("end")


class Start(enum.StrEnum):
    """The first synchronisation of clocks that may be far apart."""

    PERIODIC = "periodic"
    """By the periodic exchange."""
    RELAY = "relay"
    """At once, by messages that all members relay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClocksParameters:
    """Parameters of the clock synchronisation. Times in ns of the node's clock."""

    graph: str = "complete"
    """`complete`, `ring`, `line` or `star`."""
    tau_ns: int = 100 * MILLISECOND
    """Period of the messages on every arc."""
    mu_ns: int = 0
    """The minimum delay of a message."""
    start: str = "periodic"
    """`periodic` or `relay`."""
    start_after_ns: int = 100 * MILLISECOND
    """Time from its start until the lowest member initiates the relay."""
    sample_ns: int = 50 * MILLISECOND
    """Period of the reports between adjustments."""
    run_ns: int = 10 * SECOND
    """Time from its start for which a member takes part."""

    def __post_init__(self) -> None:
        require_one_of("graph", self.graph, Graph)
        require_one_of("start", self.start, Start)
        for name in ("tau_ns", "sample_ns"):
            value = getattr(self, name)
            require(LEAST_PERIOD_NS <= value <= 2**62, f"{name} must be at least {LEAST_PERIOD_NS} ns, not {value}")
        for name in ("mu_ns", "start_after_ns"):
            require(0 <= getattr(self, name) <= 2**62, f"{name} must not be negative, not {getattr(self, name)}")
        require(0 < self.run_ns <= 2**62, f"run_ns must be positive, not {self.run_ns}")
        require(self.mu_ns < self.tau_ns, "mu_ns must be less than tau_ns: the theorem wants it much less")


class Phase(enum.StrEnum):
    """SILENT before the start and from `run_ns` after it."""

    RUNNING = "running"
    SILENT = "silent"


class ClocksReport(enum.IntEnum):
    """Codes of our reports."""

    INITIATED = 0x71
    """This member began a round of relayed messages; `value`: its number."""


class _Round:
    """A relay, named by `Entry(initiator, its incarnation, number)`, and the members whose messages in it were
    relayed."""

    __slots__ = ("entry", "seen")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.seen: set[int] = set()


class ClocksCore(Core):
    """See the module's docstring."""

    def __init__(self, *, membership: Membership, parameters: ClocksParameters, rng: Random) -> None:
        self._us = membership
        self._me = membership.member
        self._parameters = parameters
        self._rng = rng
        self._clock = PhysicalClock(minimum_delay_ns=parameters.mu_ns)
        self._neighbours = neighbours(Graph(parameters.graph), membership.members, membership.member)
        self._sends_to_all = self._neighbours == membership.peers
        self._phase = Phase.SILENT
        self._timers = Timers()
        self._sent = 0
        self._rounds: dict[int, _Round] = {}
        """The last round of each initiator."""

    @property
    def can_submit(self) -> bool:
        return False

    @property
    def is_idle(self) -> bool:
        return self._phase is Phase.SILENT

    @property
    def phase(self) -> Phase:
        return self._phase

    def on_start(self, now_ns: int) -> list[Effect]:
        out: list[Effect] = []
        self._phase = Phase.RUNNING
        parameters = self._parameters
        self._timers.arm(END, now_ns + parameters.run_ns, out)
        self._timers.arm(TELL, now_ns + self._rng.randint(0, parameters.tau_ns), out)
        self._on_sample(now_ns, out)
        if parameters.start == Start.RELAY:
            is_late = self._us.incarnation > 1
            if is_late or self._me == self._us.members[0]:
                self._timers.arm(INITIATE, now_ns + (0 if is_late else parameters.start_after_ns), out)
        return out

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        raise LocalError("clock synchronisation sends nothing for an application")

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        reason = self._ignore(message, source)
        if reason is not None:
            return [Report(code=reason, member=source, value=len(message.payload))]
        out: list[Effect] = []
        if self._clock.adjust(message.words[0], now_ns):
            self._report_clock(now_ns, out)
        if len(message.words) == 3 and self._phase is Phase.RUNNING:
            self._relay(unpack(message.words[1]), message.words[2], now_ns, out)
        return out

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        out: list[Effect] = []
        self._timers.fired(timer)
        if timer == TELL:
            self._tell((), now_ns, out)
            self._timers.arm(TELL, now_ns + self._parameters.tau_ns, out)
        elif timer == SAMPLE:
            self._on_sample(now_ns, out)
        elif timer == INITIATE:
            self._on_initiate(now_ns, out)
        elif timer == END:
            self._enter_silent(now_ns, out)
        else:
            raise LocalError(f"{timer} is no timer of this core")
        return out

    def _ignore(self, message: Message, source: int) -> DropReason | None:
        if message.kind is not Kind.CLOCKS_TIME or message.origin != source:
            return DropReason.UNEXPECTED
        if source not in self._us.members:
            return DropReason.UNKNOWN_MEMBER
        if source not in self._neighbours:
            return DropReason.UNEXPECTED
        if len(message.words) not in (1, 3) or message.words[0] > MAX_TIMESTAMP:
            return DropReason.MALFORMED
        if len(message.words) == 3:
            is_round = unpack(message.words[1]).member in self._us.members
            if not is_round or message.words[2] not in self._us.members:
                return DropReason.MALFORMED
        return None

    def _on_sample(self, now_ns: int, out: list[Effect]) -> None:
        self._report_clock(now_ns, out)
        self._timers.arm(SAMPLE, now_ns + self._parameters.sample_ns, out)

    def _report_clock(self, now_ns: int, out: list[Effect]) -> None:
        out.append(Report(code=Notice.CLOCK, member=self._me, value=self._clock.read(now_ns)))

    def _tell(self, relayed: tuple[int, ...], now_ns: int, out: list[Effect]) -> None:
        """Send our time on every arc of ours."""
        self._sent += 1
        words = (self._clock.read(now_ns), *relayed)
        message = self._us.message(Kind.CLOCKS_TIME, seq=self._sent, flags=CONTROL, words=words)
        if self._sends_to_all:
            out.append(Multicast(message=message))
        else:
            out.extend(Send(target=neighbour, message=message) for neighbour in self._neighbours)

    # Fast start.

    def _on_initiate(self, now_ns: int, out: list[Effect]) -> None:
        entry = Entry(self._me, self._us.incarnation, 1)
        out.append(Report(code=ClocksReport.INITIATED, member=self._me, value=entry.number))
        self._relay(entry, self._me, now_ns, out)

    def _relay(self, entry: Entry, sender: int, now_ns: int, out: list[Effect]) -> None:
        """Relay the message of `sender` in a round at its first receipt, with our own if the round is new."""
        known = self._rounds.get(entry.member)
        if known is None or entry > known.entry:
            known = self._rounds[entry.member] = _Round(entry)
        if entry < known.entry:
            return
        for member in (sender, self._me):
            if member not in known.seen:
                known.seen.add(member)
                self._tell((pack(*entry), member), now_ns, out)

    def _enter_silent(self, now_ns: int, out: list[Effect]) -> None:
        self._phase = Phase.SILENT
        self._report_clock(now_ns, out)
        out += self._timers.disarm_all()


class Graph(enum.StrEnum):
    """The arcs. STAR: between the lowest member and each other one. LINE and RING: between neighbours in ascending
    order."""

    COMPLETE = "complete"
    RING = "ring"
    LINE = "line"
    STAR = "star"


def neighbours(graph: Graph, members: Sequence[int], member: int) -> tuple[int, ...]:
    """The members to which `member` has an arc, ascending."""
    count = len(members)
    place = members.index(member)
    match graph:
        case Graph.COMPLETE:
            places = set(range(count))
        case Graph.RING:
            places = {(place - 1) % count, (place + 1) % count}
        case Graph.LINE:
            places = {place - 1, place + 1} & set(range(count))
        case Graph.STAR:
            places = set(range(count)) if place == 0 else {0}
    return tuple(members[other] for other in sorted(places - {place}))
