"""Total order by the protocol that is the cheapest now, over reliable FIFO streams: adaptive selection, for one view.

Paper 003: an optimistic order is cheap when messages come in the order of their timestamps, a pessimistic one when they
do not. Each member estimates the cost of both; if more than half want another protocol, the group changes, "at a time T
of the logical clock: before T the old protocol, after T the new one" (3.4). An epoch has one protocol. T is the end of
an epoch, LAST in each member's stream; or a number, between Time Warp and ABCAST (`switch: time`).

1. An epoch has one instance of its protocol's core (epoch.py), which is a core of one view itself.
2. The coordinator, the view's first member or the elected one, decides when it has the ballot of every member of the
   view. A member gives its ballot only while no older epoch is incomplete at it. So an epoch has one decision, and no
   member has more than two epochs.
3. `switch: epoch`: a member that adopts a decision sends LAST at once, and its instance is mute: no more inputs. When
   LAST of all has come, the epoch is closed as a view is: the messages before LAST are the cut, all members survive.
   Messages that the instance hands back are submitted first in the next epoch, which begins here now.
4. `switch: time`: Time Warp goes on without new submissions, and ends when GVT has reached T. ABCAST goes on without
   new submissions, beside Time Warp, which begins at T at once; ABCAST ends when the GVT of Time Warp has reached T.
5. Close of the view. If the epoch is complete in the cut, it is closed as in 3, and the next one with the view's
   survivors. Else the epoch is closed with the view's survivors, and messages of the next one are void, except those of
   survivors under Time Warp after ABCAST (4). The memory is number and protocol of the last epoch decided in the cut,
   the processor's state, and the instance's memory. The next view goes on in that epoch.
6. The processor (execution.py) and the application are one for all epochs. A submission of an execution (a follow-up)
   has `inner` TIMEWARP_FOLLOW_UP: part of the order and the state, never delivered to the application.
7. Submissions wait while `most_held` messages are undelivered or not executed, and from LAST or T to the next epoch.

Deviations: with `switch: epoch` all wait for LAST of all. The threshold has a margin. Ballots are rankings.
Invariants: all of an epoch is final before anything of the next is; an instance sends nothing behind its LAST.
Final deliveries are AGREED, not uniform. The timers for estimates, probes and forced changes are armed by submissions
and deliveries only. The messages and the arguments are in docs/protocols/adaptive.md.
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from node.core import Closing, MakeCore, Membership, Submission, ViewCore
from node.effects import Deliver, Effect, Multicast, Report, Send, Timer, Undo
from node.errors import DropReason, RemoteError
from node.parameters import require, require_range
from node.protocols.abcast import AbcastParameters
from node.protocols.adaptive.candidates import CANDIDATES, Candidate, candidates_in
from node.protocols.adaptive.codec import (
    AdaptiveReport,
    Ballot,
    Decision,
    Memory,
    number_of,
    read_ballot,
    read_decision,
)
from node.protocols.adaptive.comparison import Comparison, Threshold
from node.protocols.adaptive.costs import ABCAST, TIMEWARP, CostParameters, Costs
from node.protocols.adaptive.epoch import LAYER, MOST_KEPT, Epoch
from node.protocols.adaptive.vote import Ranking, encode_ranking, tally
from node.protocols.allack import AllAckParameters
from node.protocols.atop import AtopParameters
from node.protocols.base import CONTROL, MILLISECOND, OrderCore
from node.protocols.sequencer import SequencerParameters
from node.protocols.timewarp.core import LAST_TIMESTAMP, PLACED, TimeWarpCore, TimeWarpParameters
from node.protocols.timewarp.execution import Command, Execution, Outcome, ServiceParameters
from node.reliable.parameters import ReliableParameters
from node.trace import Level, Notice
from node.wire import Kind, Message

SECOND = 1_000 * MILLISECOND
PROCESS = Timer("process")
FORCE = Timer("force")
ESTIMATE = Timer("estimate")
PROBE = Timer("probe")
ECHO_REST_NS = 1 * MILLISECOND
"""Least time between two echoes to one member; half of the time between two probes, if that is more."""
COSTS = (Notice.COST, Notice.REDONE, Notice.ROLLED_BACK)
FOLLOW_UP = Kind.TIMEWARP_FOLLOW_UP


class Coordinator(enum.StrEnum):
    """The coordinator of a view."""

    FIRST = "first"
    ELECTED = "elected"


class Switch(enum.StrEnum):
    """The border between two epochs."""

    EPOCH = "epoch"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveParameters:
    """Parameters of the selection, of the application, of the candidates, and of the reliable layer below all of them.
    Times in ns. The blocks of the candidates take no `reliable`, `service` or `report_costs` of their own.
    """

    candidates: str = "timewarp, abcast"
    """Comma-separated names: timewarp, abcast, allack, atop, sequencer."""
    first: str = ""
    """The candidate in force at the start; empty: the first of the candidates."""
    switch_cost_ns: int = 1 * MILLISECOND
    """The paper's s: the least gain of a change, in ns of cost per second ..."""
    margin_permille: int = 100
    """... and per mille of the present cost."""
    weigh_wait: bool = False
    """Formula 7: a change from Time Warp must also save alpha, the wait for the end of the old order."""
    coordinator: str = "first"
    """`first`: the first member of the view; `elected`: the view elects one when a member wants a change."""
    switch: str = "epoch"
    """The end of the old order: `epoch`: LAST of all; `time`: a time T, between timewarp and abcast only."""
    time_margin: int = 1 << 32
    """A member proposes its logical clock and this as T. It sends nothing later than its proposal until the vote has
    ended."""
    dwell_ns: int = 1 * SECOND
    """Time after a switch in which no vote is opened."""
    estimate_every_ns: int = 250 * MILLISECOND
    """Period in which a busy member estimates, and asks for a change if that is worthwhile; 0: never."""
    probe_every_ns: int = 500 * MILLISECOND
    """Period in which a busy member measures the delay to the others; 0: never."""
    force_every_ns: int = 0
    """For campaigns and experiments: if not 0, costs do not count. A busy member asks for a change this long after the
    last one, and every ballot prefers the next of the candidates in turn."""
    most_held: int = 256
    """Submissions wait while this many messages are undelivered here or not executed. A protocol without timestamps
    does not bound the processor's queue."""
    costs: CostParameters = field(default_factory=CostParameters)
    service: ServiceParameters = field(default_factory=ServiceParameters)
    timewarp: TimeWarpParameters = field(default_factory=TimeWarpParameters)
    abcast: AbcastParameters = field(default_factory=AbcastParameters)
    allack: AllAckParameters = field(default_factory=AllAckParameters)
    atop: AtopParameters = field(default_factory=AtopParameters)
    sequencer: SequencerParameters = field(default_factory=SequencerParameters)
    reliable: ReliableParameters = field(default_factory=ReliableParameters)

    def __post_init__(self) -> None:
        names = [candidate.name for candidate in self.of]
        require(self.first in ("", *names), f"first must be one of {', '.join(names)}, not {self.first!r}")
        known = tuple(Coordinator)
        require(self.coordinator in known, f"coordinator must be {' or '.join(known)}, not {self.coordinator!r}")
        known_ends = tuple(Switch)
        require(self.switch in known_ends, f"switch must be {' or '.join(known_ends)}, not {self.switch!r}")
        is_fit = self.switch == Switch.EPOCH or set(names) == {"timewarp", "abcast"}
        require(is_fit, f"switch: time needs the candidates timewarp and abcast, not {self.candidates!r}")
        require(1 <= self.time_margin <= 1 << 48, f"time_margin must lie between 1 and 2**48, not {self.time_margin}")
        for name in ("dwell_ns", "estimate_every_ns", "probe_every_ns", "force_every_ns"):
            value = getattr(self, name)
            require(0 <= value <= 2**62, f"{name} must not be negative, not {value}")
        require_range("most_held", self.most_held, 1, 1 << 20)
        self.threshold  # noqa: B018 (it checks itself)
        for name in (candidate.name for candidate in CANDIDATES.values()):
            block = getattr(self, name)
            require(
                block.reliable == ReliableParameters(), f"{name} runs over the reliable layer of all: no block here"
            )
        require(self.sequencer.replace_server, "a sequencer of an epoch is the view's first member: replace_server")
        require(self.timewarp.service == ServiceParameters(), "timewarp has the service of all: no block here")
        require(not self.abcast.report_costs, "costs are reported for all candidates: service.report_costs")

    @property
    def of(self) -> tuple[Candidate, ...]:
        """The candidates. LocalError as `candidates_in`."""
        return candidates_in(self.candidates)

    @property
    def threshold(self) -> Threshold:
        return Threshold(
            switch_cost_ns=self.switch_cost_ns, margin_permille=self.margin_permille, weigh_wait=self.weigh_wait
        )

    def block(self, candidate: Candidate) -> Any:
        """The parameters for an instance of that candidate."""
        return (
            replace(self.timewarp, service=self.service)
            if candidate.code == TIMEWARP
            else getattr(self, candidate.name)
        )


class Phase(enum.StrEnum):
    """The phase: SWITCHING from our LAST until LAST of all."""

    RUNNING = "running"
    SWITCHING = "switching"


class AdaptiveCore(OrderCore):
    """See the module's docstring. `memory`: of `close`; RemoteError: it is malformed."""

    ordered_by = "epochs"
    returning = (Kind.ADAPTIVE_CARRIED, Kind.ADAPTIVE_LAST)

    def __init__(
        self, *, membership: Membership, parameters: AdaptiveParameters, rng: Random, memory: bytes = b""
    ) -> None:
        super().__init__(membership)
        is_elected = parameters.coordinator == Coordinator.ELECTED
        self._coordinator = None if is_elected else membership.first
        """The coordinator, or the candidate of the lowest rank that we know; None: we know none."""
        self._is_coordinator = self._coordinator == self._me
        self._ring = membership.ranks or membership.members
        """The members by rank."""
        self._parameters = parameters
        periods = (
            (FORCE, parameters.force_every_ns),
            (ESTIMATE, parameters.estimate_every_ns),
            (PROBE, parameters.probe_every_ns),
        )
        self._every_ns = tuple((timer, every_ns) for timer, every_ns in periods if every_ns)
        self._candidates = {candidate.code: candidate for candidate in parameters.of}
        self._rng = rng
        begun = Memory.from_bytes(memory, self._candidates) if memory else self._first_epoch()
        self._execution = Execution(
            membership=membership,
            parameters=replace(parameters.service, report_costs=True),
            seed=rng.getrandbits(64),
            memory=begun.execution,
        )
        """The processor of all epochs. It always reports its costs to us; `_sift` passes them on if `report_costs` is
        set."""
        self._epoch = self._instance(begun.epoch, begun.code, begun.instance)
        """The oldest epoch that is not complete here: its deliveries go to the application."""
        self._next: int | None = None
        """The code of the next epoch, if that is decided: we have sent LAST, or gone to T."""
        self._has_time = parameters.switch == Switch.TIME
        self._time = 0
        """T of our last ballot, and of the decision."""
        self._coming: Epoch | None = None
        """The next epoch, if it is Time Warp's and begins at T before ours is complete."""
        self._is_closing = False
        """Whether the view has ended: nothing is sent any more."""
        self._last: set[int] = set()
        """The members, ourselves included, whose LAST of our epoch has come."""
        self._early: list[Message] = []
        """Messages received of the next epoch, ..."""
        self._early_of: Counter[int] = Counter()
        """... and their number by member."""
        self._returned: deque[Submission] = deque()
        """Submissions that an older epoch has handed back, and that are not submitted again yet."""
        self._is_called = False
        """Whether the coordinator waits for our ballot for the epoch after the decided one."""
        self._promised = 0
        """The epoch of our last ballot."""
        self._ballots: dict[int, Ballot] = {}
        """At the coordinator: the ballots of the open vote."""
        self._switched_ns = 0
        self._process_ns: int | None = None
        """The time at which PROCESS is due."""
        self._executed = (0, 0)
        """Executions that the comparison knows of: their number, and their time in ns."""
        self._appended = 0
        """Number of commands appended for cores without timestamps."""
        self._follow_ups: deque[bytes] = deque()
        """Follow-ups that no epoch has taken yet."""
        self._comparison = Comparison(
            us=membership,
            codes=tuple(self._candidates),
            costs=Costs(
                members=len(membership.members),
                parameters=parameters.costs,
                save_every=parameters.service.save_every,
                null_after_ns=parameters.allack.null_after_ns,
                dummy_after_ns=parameters.atop.dummy_after_ns,
            ),
            threshold=parameters.threshold,
        )
        self._echo_ns: dict[int, int] = {}
        """By member: the time from which it may have the next echo."""
        self._activity = 0
        """Counts submissions and deliveries ..."""
        self._seen: dict[Timer, int] = {}
        """... and its value when each of these timers was last due."""
        self._handlers = {
            Kind.ADAPTIVE_CARRIED: self._on_carried,
            Kind.ADAPTIVE_LAST: self._on_last,
            Kind.ADAPTIVE_CANDIDACY: self._on_candidacy,
            Kind.ADAPTIVE_REQUEST: self._on_request,
            Kind.ADAPTIVE_CALL: self._on_call,
            Kind.ADAPTIVE_BALLOT: self._on_ballot,
            Kind.ADAPTIVE_DECISION: self._on_decision,
            Kind.ADAPTIVE_PROBE: self._on_probe,
            Kind.ADAPTIVE_ECHO: self._on_echo,
        }
        self._due = {
            PROCESS: self._on_process_due,
            FORCE: self._force,
            ESTIMATE: self._estimate,
            PROBE: self._probe,
        }

    @property
    def depth(self) -> int:
        """2: this core and the instance."""
        return 2

    @property
    def can_submit(self) -> bool:
        return self._takes_more and self.buffered < self._parameters.most_held

    @property
    def _takes_more(self) -> bool:
        """Whether a follow-up is taken: it does not wait for held messages, of which it is one itself."""
        return not self._returned and self._entrance.can_submit

    @property
    def is_idle(self) -> bool:
        is_working = self._execution.buffered or self._follow_ups or self._returned or self._ballots
        return self._epoch.is_idle and self._entrance.is_idle and not is_working

    @property
    def phase(self) -> str:
        """The phase of the switch, and the protocol in which we submit next."""
        phase = Phase.RUNNING if self._next is None else Phase.SWITCHING
        return f"{phase}-{self._candidates[self._next or self._epoch.code].name}"

    @property
    def buffered(self) -> int:
        """Messages that are undelivered in both epochs, or not executed."""
        # The messages that Time Warp holds are in the processor.
        inside = self._epoch.core.buffered if self._epoch.code != TIMEWARP else 0
        waiting = len(self._early) + len(self._follow_ups) + len(self._returned)
        return inside + self._epoch.kept + self._execution.buffered + waiting

    @property
    def epoch(self) -> Epoch:
        """The oldest epoch that is not complete here."""
        return self._epoch

    @property
    def _entrance(self) -> Epoch:
        """The epoch in which we submit."""
        return self._coming or self._epoch

    @property
    def in_force(self) -> str:
        """The protocol of that epoch."""
        return self._candidates[self._epoch.code].name

    def on_start(self, now_ns: int) -> list[Effect]:
        out: list[Effect] = []
        self._begin((), now_ns, out)
        self._after(now_ns, out)
        return out

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        if timer.layer == LAYER:
            out: list[Effect] = []
            self._carry(self._entrance, self._entrance.fired(timer, now_ns), now_ns, out)
        else:
            self._seen[timer] = self._activity
            out = super().on_timer(timer, now_ns)
        self._after(now_ns, out)
        return out

    def _on_process_due(self, now_ns: int, out: list[Effect]) -> None:
        self._process_ns = None

    def _on_accepted(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        super()._on_accepted(message, now_ns, out)
        self._after(now_ns, out)

    # The end of the view.

    def close(self, rest: Mapping[int, Sequence[Message]], survivors: frozenset[int], now_ns: int) -> Closing:
        out: list[Effect] = []
        for message in self._acceptable(rest):
            self._take_rest(message)
        self._is_closing = True
        if self._next is not None and self._has_time:
            memory = self._close_at_time(survivors, now_ns, out)
        else:
            if self._is_complete:
                self._close_epoch(frozenset(self._us.members), now_ns, out)
                self._open_next_with_rest()
            memory = self._close_epoch(survivors, now_ns, out)
        effects: list[Effect] = []
        outcomes = self._execution.drain(now_ns, effects)
        self._sift(effects, now_ns, out)
        sent = [*self._follow_ups, *(payload for outcome in outcomes for payload in outcome.outputs)]
        back = [*self._returned, *(Submission(payload=payload, inner=FOLLOW_UP) for payload in sent)]
        last = self._epoch.number + (self._next is not None)
        agreed = Memory(
            last, self._next or self._epoch.code, self._execution.memory, memory if self._next is None else b""
        )
        return Closing(effects=tuple(out), handed_back=tuple(back), memory=agreed.to_bytes())

    def _close_at_time(self, survivors: frozenset[int], now_ns: int, out: list[Effect]) -> bytes:
        """A change at T is decided and not complete here. Returns the memory of the last instance."""
        self._go_to_time()
        memory = self._close_epoch(survivors, now_ns, out)
        if self._next == TIMEWARP or self._is_complete:
            self._open_next_with_rest()
            memory = self._close_epoch(survivors, now_ns, out)
        return memory

    def _open_next_with_rest(self) -> None:
        for message in self._open_next():
            self._take_rest(message)

    def _take_rest(self, message: Message) -> None:
        """As `on_message`, but nothing is sent. PROBE and CALL have no part in the order."""
        with suppress(RemoteError):
            match message.kind:
                case Kind.ADAPTIVE_CARRIED:
                    epoch = self._epoch_of(message)
                    if epoch is not None:
                        epoch.keep_rest(message)
                    else:
                        self._keep_early(message)
                case Kind.ADAPTIVE_LAST:
                    self._on_last(message, 0, [])
                case Kind.ADAPTIVE_DECISION:
                    decision = self._decided(message)
                    if decision.code != self._epoch.code:
                        self._next, self._time = decision

    # Submissions, deliveries and the processor.

    def _submit(self, submission: Submission, now_ns: int, out: list[Effect]) -> None:
        self._submit_inside(submission, now_ns, out)
        self._after(now_ns, out)

    def _submit_inside(self, submission: Submission, now_ns: int, out: list[Effect]) -> None:
        self._activity += 1
        stamp = self._comparison.stamp(now_ns)
        self._carry(self._entrance, self._entrance.submit(submission, stamp, now_ns), now_ns, out)

    def _submit_what_waits(self, now_ns: int, out: list[Effect]) -> None:
        while self._returned and self._entrance.can_submit:
            self._submit_inside(self._returned.popleft(), now_ns, out)
        while self._follow_ups and self._takes_more:
            self._submit_inside(Submission(payload=self._follow_ups.popleft(), inner=FOLLOW_UP), now_ns, out)

    def _carry(self, epoch: Epoch, effects: Sequence[Effect], now_ns: int, out: list[Effect]) -> None:
        """Carry out the effects of an input of the epoch's instance."""
        for arrival in epoch.take_arrivals():
            self._comparison.arrived(arrival, now_ns, is_own=arrival.origin == self._me)
        if epoch.code == TIMEWARP:
            self._sift(effects, now_ns, out)
            return
        for effect in effects:
            if isinstance(effect, Deliver):
                self._hand_over(effect, now_ns, out)
            else:
                out.append(effect)

    def _sift(self, effects: Sequence[Effect], now_ns: int, out: list[Effect]) -> None:
        """Pass on effects that may come from the processor; reports of costs only if the parameters ask for them."""
        costs = self._comparison.costs
        for effect in effects:
            if isinstance(effect, Deliver | Undo):
                self._activity += 1
                if isinstance(effect, Deliver) and effect.level is Level.FINAL:
                    # Deliveries at the end of an epoch are not uniform, and all deliveries have the same level.
                    out.append(replace(effect, level=Level.AGREED))
                    continue
            elif isinstance(effect, Report) and effect.code in COSTS:
                if effect.code == Notice.COST:
                    costs.finished(TIMEWARP, effect.value, now_ns)
                elif effect.code == Notice.ROLLED_BACK:
                    costs.rolled_back(effect.value, now_ns)
                if not self._parameters.service.report_costs:
                    continue
            out.append(effect)

    def _hand_over(self, tailed: Deliver, now_ns: int, out: list[Effect]) -> None:
        """Hand a delivery of a core without timestamps to the application, and to the processor, which never undoes
        it."""
        self._activity += 1
        delivery, timestamp, cost_ns = self._epoch.without_tail(tailed, now_ns)
        is_follow_up = delivery.inner is FOLLOW_UP
        self._comparison.costs.finished(self._epoch.code, cost_ns, now_ns)
        self._appended += 1
        # The same length as Time Warp's keys, which begin with the epoch, too.
        key = (self._epoch.number, self._appended, 0, 0)
        message = Message(
            kind=Kind.ADAPTIVE_CARRIED,
            origin=delivery.origin,
            incarnation=delivery.incarnation,
            seq=delivery.seq,
            inner=delivery.inner,
            payload=delivery.payload,
        )
        effects: list[Effect] = []
        undone = self._execution.append(Command(key, message, now_ns, is_follow_up), timestamp, now_ns, effects)
        self._sift(effects, now_ns, out)
        if not is_follow_up:
            out.append(delivery)
        if self._parameters.service.report_costs:
            out.append(Report(code=Notice.COST, member=delivery.origin, value=cost_ns))
        if undone and not self._is_closing:
            assert self._coming is not None, "only the next epoch is later"
            self._carry(self._coming, self._coming.undo(undone, now_ns), now_ns, out)

    def _process(self, now_ns: int, out: list[Effect]) -> None:
        """Drive the processor, and send the follow-ups of its executions."""
        while True:
            effects: list[Effect] = []
            outcomes = self._execution.advance(now_ns, effects)
            self._sift(effects, now_ns, out)
            self._take(outcomes, now_ns, out)
            if not outcomes:
                break
        self._count_executions(now_ns)
        if self._execution.due_ns != self._process_ns:
            self._process_ns = self._execution.due_ns
            self._timers.disarm(PROCESS, out)
            if self._process_ns is not None:
                self._timers.arm(PROCESS, self._process_ns, out)

    def _take(self, outcomes: list[Outcome], now_ns: int, out: list[Effect]) -> None:
        """Time Warp sends the follow-ups of its messages; we submit all others."""
        epoch = self._entrance
        is_optimistic = epoch.code == TIMEWARP
        if outcomes and is_optimistic:
            self._carry(epoch, epoch.take_outcomes(outcomes, now_ns), now_ns, out)
        others = (one for one in outcomes if not is_optimistic or one.key[0] != epoch.number)
        self._follow_ups.extend(payload for outcome in others for payload in outcome.outputs)
        self._submit_what_waits(now_ns, out)

    def _count_executions(self, now_ns: int) -> None:
        """Add the new executions to the comparison, each with their mean time."""
        count, spent_ns = self._execution.ended, self._execution.ended_ns
        new = count - self._executed[0]
        for _ in range(new):
            self._comparison.costs.executed((spent_ns - self._executed[1]) // new, now_ns)
        self._executed = (count, spent_ns)

    # Epochs.

    def _first_epoch(self) -> Memory:
        names = {candidate.name: candidate.code for candidate in self._candidates.values()}
        return Memory(1, names[self._parameters.first or next(iter(names))], b"", b"")

    def _instance(self, number: int, code: int, memory: bytes = b"") -> Epoch:
        candidate = self._candidates[code]
        block = self._parameters.block(candidate)
        rng = Random(f"{self._rng.random()}/{number}")  # noqa: S311 (repeatable, not secret)
        if candidate.begin is None:
            core: ViewCore = TimeWarpCore(
                membership=self._us, parameters=block, memory=memory, execution=self._execution, epoch=number
            )
        else:
            core = candidate.begin(block)(self._us, rng, memory)
        return Epoch(us=self._us, number=number, code=code, core=core)

    def _begin(self, early: Sequence[Message], now_ns: int, out: list[Effect]) -> None:
        """Begin to submit in an epoch. `early`: the messages received of it."""
        epoch = self._entrance
        self._switched_ns = now_ns
        out.append(Report(code=Notice.IN_FORCE, member=epoch.code, value=epoch.number))
        self._carry(epoch, epoch.start(now_ns), now_ns, out)
        for message in early:
            try:
                self._carry(epoch, epoch.receive(message, now_ns), now_ns, out)
            except RemoteError as error:
                out.append(Report(code=error.reason, member=message.origin, value=len(message.payload)))
        self._submit_what_waits(now_ns, out)

    def _after(self, now_ns: int, out: list[Effect]) -> None:
        """Actions after any input."""
        self._process(now_ns, out)
        if self._coming is not None:
            epoch = self._coming
            self._carry(epoch, epoch.hold(self._epoch.abcast.is_waiting, now_ns), now_ns, out)
        while self._is_complete:
            self._switch(now_ns, out)
            self._process(now_ns, out)
        for timer, every_ns in self._every_ns:
            if self._activity > self._seen.get(timer, 0):
                self._timers.arm(timer, now_ns + every_ns, out)

    @property
    def _is_complete(self) -> bool:
        """Whether no more message of our epoch can come."""
        if self._next is None:
            return False
        if self._has_time:
            return self._entrance.warp.gvt >= self._time
        return len(self._last) == len(self._us.members)

    def _adopt(self, decision: Decision, now_ns: int, out: list[Effect]) -> None:
        """The group has decided: leave the epoch, unless its protocol stays."""
        if decision.code == self._epoch.code:
            self._limit(None, now_ns, out)
            return
        self._next, self._time = decision
        out.append(Report(code=AdaptiveReport.LEFT, member=self._me, value=self._epoch.number))
        if not self._has_time:
            out += self._epoch.mute()
            last = self._us.message(Kind.ADAPTIVE_LAST, seq=self._epoch.number, flags=CONTROL)
            out.append(Multicast(message=last))
            return
        self._go_to_time()
        if self._coming is not None:
            self._carry(self._coming, self._coming.hold(self._epoch.abcast.is_waiting, now_ns), now_ns, out)
            self._begin(self._take_early(), now_ns, out)
        self._carry(self._entrance, self._entrance.take_outcomes([], now_ns), now_ns, out)

    def _go_to_time(self) -> None:
        """Time Warp ends at T. ABCAST goes on without new messages, and Time Warp begins at once."""
        if self._epoch.code == TIMEWARP:
            self._epoch.warp.end_at(self._time)
        elif self._coming is None:
            self._epoch.abcast.hands_back = False
            self._coming = self._instance(self._epoch.number + 1, TIMEWARP)
            self._coming.warp.begin_at(self._time)

    def _switch(self, now_ns: int, out: list[Effect]) -> None:
        """The epoch is complete: end it, and begin the next one."""
        out += self._epoch.mute()
        self._close_epoch(frozenset(self._us.members), now_ns, out)
        out.append(Report(code=AdaptiveReport.COMPLETE, member=self._me, value=self._epoch.number))
        has_begun = self._coming is not None
        early = self._open_next()
        if not has_begun:
            self._begin(early, now_ns, out)
        if self._is_called:
            self._give_ballot(now_ns, out)

    def _close_epoch(self, survivors: frozenset[int], now_ns: int, out: list[Effect]) -> bytes:
        """Deliver the rest. Returns the memory. Submissions that are handed back were made before all that wait
        here."""
        closing = self._epoch.close(survivors, now_ns)
        self._carry(self._epoch, closing.effects, now_ns, out)
        self._returned.extendleft(reversed(closing.handed_back))
        return closing.memory

    def _open_next(self) -> list[Message]:
        """Replace the complete epoch by the decided one. Returns the messages received of it."""
        assert self._next is not None
        self._epoch = self._coming or self._instance(self._epoch.number + 1, self._next)
        if self._has_time and self._epoch.code == ABCAST:
            self._epoch.abcast.begin_at(self._time)
        self._next = self._coming = None
        self._last.clear()
        return self._take_early()

    def _take_early(self) -> list[Message]:
        """The messages received of the next epoch, which begins now."""
        early, self._early = self._early, []
        self._early_of.clear()
        return early

    def _epoch_of(self, carried: Message) -> Epoch | None:
        """The epoch of a message; None: the next one, which has not begun here. RemoteError: of another, or on the
        wrong side of LAST."""
        number = number_of(carried)
        if not self._epoch.number <= number <= self._epoch.number + 1:
            raise RemoteError(DropReason.UNEXPECTED, f"a message of epoch {number}, when ours is {self._epoch.number}")
        if not self._has_time and (number == self._epoch.number) == (carried.origin in self._last):
            raise RemoteError(DropReason.UNEXPECTED, f"a message of epoch {number} on the wrong side of LAST")
        return self._epoch if number == self._epoch.number else self._coming

    def _on_carried(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        if self._has_time and message.origin == self._me:
            return  # Our instance has it already, and its epoch may be complete.
        epoch = self._epoch_of(message)
        if epoch is not None:
            self._carry(epoch, epoch.receive(message, now_ns), now_ns, out)
        else:
            self._keep_early(message)

    def _keep_early(self, carried: Message) -> None:
        if self._early_of[carried.origin] >= MOST_KEPT:
            raise RemoteError(DropReason.UNEXPECTED, f"{MOST_KEPT} messages of an epoch that has not begun")
        self._early_of[carried.origin] += 1
        self._early.append(carried)

    def _on_last(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        if self._has_time or number_of(message) != self._epoch.number or message.origin in self._last:
            raise RemoteError(DropReason.UNEXPECTED, f"the last of epoch {message.seq}, of member {message.origin}")
        self._last.add(message.origin)

    # Votes.

    def _request(self, now_ns: int, out: list[Effect]) -> None:
        """Ask for a change."""
        if self._is_coordinator:
            self._open_vote(now_ns, out)
        elif self._coordinator is None:
            self._coordinator = self._me
            self._pass_on(self._me, now_ns, out)
        elif self._next is None and self._coordinator != self._me:
            request = self._us.message(Kind.ADAPTIVE_REQUEST, seq=self._epoch.number + 1, flags=CONTROL)
            out.append(Send(target=self._coordinator, message=request))

    def _pass_on(self, candidate: int, now_ns: int, out: list[Effect]) -> None:
        """Send a candidacy to the member of the rank before ours, the first member's to the last."""
        target = self._ring[self._ring.index(self._me) - 1]
        if target == self._me:
            self._enter_elected(now_ns, out)
            return
        message = self._us.message(Kind.ADAPTIVE_CANDIDACY, seq=candidate, flags=CONTROL)
        out.append(Send(target=target, message=message))

    def _on_candidacy(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        candidate = number_of(message)
        is_from_ring = message.origin == self._ring[(self._ring.index(self._me) + 1) % len(self._ring)]
        is_ours = candidate == self._me and self._coordinator == self._me and not self._is_coordinator
        is_possible = candidate in self._us.members and (is_ours or candidate != self._me)
        if self._parameters.coordinator != Coordinator.ELECTED or not is_from_ring or not is_possible:
            raise RemoteError(DropReason.UNEXPECTED, f"member {message.origin} says that {candidate} stands")
        if is_ours:
            self._enter_elected(now_ns, out)
        elif self._coordinator is None or self._ring.index(candidate) < self._ring.index(self._coordinator):
            self._coordinator = candidate
            self._pass_on(candidate, now_ns, out)

    def _enter_elected(self, now_ns: int, out: list[Effect]) -> None:
        self._is_coordinator = True
        out.append(Report(code=AdaptiveReport.ELECTED, member=self._me, value=len(self._ring)))
        self._open_vote(now_ns, out)

    def _on_request(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        if number_of(message) == self._epoch.number + 1 and self._is_coordinator:
            self._open_vote(now_ns, out)

    def _open_vote(self, now_ns: int, out: list[Effect]) -> None:
        is_early = now_ns < self._switched_ns + self._parameters.dwell_ns
        if is_early or self._next is not None or self._ballots:
            return
        number = self._epoch.number + 1
        out.append(Report(code=AdaptiveReport.CALLED, member=self._me, value=number))
        out.append(Multicast(message=self._us.message(Kind.ADAPTIVE_CALL, seq=number, flags=CONTROL)))
        self._ballots[self._me] = Ballot(self._ranking(now_ns), self._propose(now_ns, out))
        self._decide_if_complete(now_ns, out)

    def _on_call(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._require_coordinator(message)
        following = self._epoch.number + 1 + (self._next is not None)
        if number_of(message) != following:
            raise RemoteError(DropReason.UNEXPECTED, f"a vote about epoch {message.seq}, not {following}")
        self._is_called = True
        if self._next is None:
            self._give_ballot(now_ns, out)

    def _give_ballot(self, now_ns: int, out: list[Effect]) -> None:
        self._is_called = False
        self._promised = self._epoch.number + 1
        words = (encode_ranking(self._ranking(now_ns)), self._propose(now_ns, out))[: 1 + self._has_time]
        ballot = self._us.message(Kind.ADAPTIVE_BALLOT, seq=self._promised, flags=CONTROL, words=words)
        assert self._coordinator is not None, "it has called us"
        out.append(Send(target=self._coordinator, message=ballot))

    def _propose(self, now_ns: int, out: list[Effect]) -> int:
        """Our proposal of T; 0 without such a time."""
        if self._has_time:
            clock = max(self._epoch.core.timestamp, self._execution.clock)
            self._time = min(clock + PLACED + self._parameters.time_margin, LAST_TIMESTAMP)
            self._limit(self._time, now_ns, out)
        return self._time

    def _limit(self, time: int | None, now_ns: int, out: list[Effect]) -> None:
        if self._epoch.code == TIMEWARP:
            self._epoch.warp.limit(time)
            self._carry(self._epoch, self._epoch.take_outcomes([], now_ns), now_ns, out)

    def _ranking(self, now_ns: int) -> Ranking:
        """Our ballot."""
        present = self._epoch.code
        if not self._parameters.force_every_ns:
            return self._comparison.ranking(present, now_ns)
        codes = tuple(self._candidates)
        place = codes.index(present) + 1
        return (*codes[place:], *codes[:place])

    def _on_ballot(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        ballot = read_ballot(message, self._candidates, has_time=self._has_time)
        if not self._ballots or message.seq != self._epoch.number + 1 or message.origin in self._ballots:
            raise RemoteError(DropReason.UNEXPECTED, f"a ballot of member {message.origin} for epoch {message.seq}")
        self._ballots[message.origin] = ballot
        self._decide_if_complete(now_ns, out)

    def _decide_if_complete(self, now_ns: int, out: list[Effect]) -> None:
        """Decide when all ballots have come."""
        if len(self._ballots) < len(self._us.members):
            return
        ballots = [ballot for _, ballot in sorted(self._ballots.items())]
        winner = tally([ballot.ranking for ballot in ballots], present=self._epoch.code)
        decision = Decision(winner, max(ballot.time for ballot in ballots))
        self._ballots.clear()
        number = self._epoch.number + 1
        if winner == self._epoch.code:
            out.append(Report(code=AdaptiveReport.CALLED_OFF, member=self._me, value=number))
            if not self._has_time:
                return
        words = decision[: 1 + self._has_time]
        message = self._us.message(Kind.ADAPTIVE_DECISION, seq=number, flags=CONTROL, words=words)
        out.append(Multicast(message=message))
        self._adopt(decision, now_ns, out)

    def _on_decision(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._adopt(self._decided(message), now_ns, out)

    def _decided(self, message: Message) -> Decision:
        """The decision. RemoteError: the group cannot have decided it without our ballot, or it is no
        change, and no member waits for it at its proposal."""
        self._require_coordinator(message)
        decision = read_decision(message, self._candidates, has_time=self._has_time)
        is_promised = message.seq == self._promised == self._epoch.number + 1 and decision.time >= self._time
        is_needed = self._has_time or decision.code != self._epoch.code
        if not is_promised or self._next is not None or not is_needed:
            raise RemoteError(DropReason.UNEXPECTED, f"a decision about epoch {message.seq} that we had no part in")
        return decision

    def _require_coordinator(self, message: Message) -> None:
        if message.origin != self._coordinator:
            raise RemoteError(DropReason.UNEXPECTED, f"member {message.origin} is not the coordinator")

    # Requests for a change.

    def _force(self, now_ns: int, out: list[Effect]) -> None:
        is_due = now_ns >= self._switched_ns + self._parameters.force_every_ns
        if is_due and len(self._candidates) > 1:
            self._request(now_ns, out)

    def _estimate(self, now_ns: int, out: list[Effect]) -> None:
        if self._parameters.service.report_costs:
            estimates = self._comparison.estimates(now_ns).items()
            out.extend(Report(code=Notice.ESTIMATE, member=code, value=value) for code, value in estimates)
        if not self._parameters.force_every_ns and self._comparison.better(self._epoch.code, now_ns):
            self._request(now_ns, out)

    def _probe(self, now_ns: int, out: list[Effect]) -> None:
        number = self._comparison.probe(now_ns)
        out.append(Multicast(message=self._us.message(Kind.ADAPTIVE_PROBE, seq=number, flags=CONTROL)))

    def _on_probe(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        number = number_of(message)
        if now_ns < self._echo_ns.get(message.origin, 0):
            return
        self._echo_ns[message.origin] = now_ns + max(self._parameters.probe_every_ns // 2, ECHO_REST_NS)
        echo = self._us.message(Kind.ADAPTIVE_ECHO, seq=number, flags=CONTROL)
        out.append(Send(target=message.origin, message=echo))

    def _on_echo(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._comparison.echoed(message.origin, number_of(message), now_ns)


def begin(parameters: AdaptiveParameters) -> MakeCore:
    """The function that makes the core of each view."""
    return lambda us, rng, memory: AdaptiveCore(membership=us, parameters=parameters, rng=rng, memory=memory)
