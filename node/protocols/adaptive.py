"""Total order by whichever protocol is the cheapest now, over reliable FIFO channels: adaptive selection.

Paper 003: an optimistic order is cheap when messages come in the order of their timestamps, a pessimistic one when they
do not. Each member estimates what both would cost; if a change is worthwhile for more than half, the group changes,
"at a time T of the logical clock: before T the old protocol, after T the new one".

Here logical time is (epoch, time within the epoch), and an epoch has one protocol. T is the end of an epoch: whoever
hears of the decision is past it at once, and sends in the next epoch from then on. So protocols without timestamps fit,
too, and any number of them. What was sent before its sender knew T belongs to the old epoch, and is ordered there.

    everybody                          who
    LAST e: no more of me in e         all, when they have adopted e + 1
    CARRIED e+1 (from then on)         waits until e is complete where it arrives

Parts. adaptive_epoch.py: one epoch, in which an instance of a protocol runs as if alone over `reliable`.
adaptive_switch.py: the votes, and why an epoch has one decision. adaptive_opinion.py: what one member estimates and
prefers. execution.py: the processor and the application, one for all epochs. Here: how epochs follow each other.

Order. All of e is delivered before anything of e + 1, by everybody; within an epoch its protocol orders. So there is
one total order. It is causal and FIFO: who sends in e + 1 after a delivery of e is behind it by epoch; nobody sends in
e after a delivery of e + 1, for nobody delivers in e + 1 before LAST e of everybody.

Complete. Epoch e is complete for a member when from every founder of e + 1 that takes part LAST e has come, and its
instance holds nothing (Time Warp: all have closed and GVT is the greatest value). LAST stands in its sender's stream
behind all that the sender has submitted in e: at once where a submission is in the stream at once and cannot be lost,
else when the sender has delivered all of its own. So nothing of e can come afterwards, and held nothing means delivered
all: nothing is lost, nothing is doubled.
  Then the instance is dropped, though others may still need it to finish theirs? They need no more of us. What we had
when we completed e were prefixes of the streams of all, our own included. All survivors get these, too; the orders
inside are functions of the streams, and what completed e here completes it there. (Words to one member matter only
where somebody has submissions under way, and he has not said LAST then.)

No global stop. Nobody waits for a switch before he may submit: e + 1 takes submissions at the decision. Both instances
run at once. Only deliveries of e + 1 wait, for LAST of all and what is left of e: for the slowest way, and for e's own
delay.
Deviation: the paper stops a member at T until GVT has reached T (its alpha).

Who loses. A member that crashes may take a message of e with it (of abcast: what it had not made final), and leave one
of e + 1 that it sent later. So what a life sends in e + 1 counts only if its LAST e has come; if it has ended without,
or if the old instance has erased something of it, nothing of it is delivered in e + 1 (report ERASED). All survivors
have the same of its stream, so all do the same. That is why LAST waits for the own deliveries where they may be lost.
Erased is a life, and it has ended with the cause that is lost; e + 1 waits until that is heard, too. What counts of the
next life of that member, or of who has lost nothing, does not depend on when its end comes.

Lives. DECISION names the founders of the epoch: all that took part for the coordinator, each of which has given a
ballot and was running. Who joins later, joins the epoch by the joining of its protocol. A joiner first asks everybody
which epoch that is (node/protocols/joining.py, with epochs for numbers) and takes the highest answer.
  Let j begin with epoch s. Then no decision about an epoch after s was made without a ballot of j: who decided such a
one would have said so to j's question, or was asked before it decided, and then knows j; if it has ended, somebody who
has heard of its end, and so of the decision, has answered anew. And j has said nothing in epochs before s. So when
e + 1 is decided, whoever takes part and is no founder has said nothing in e, and the instance of e is told that it has
ended; that is true at the same place of its stream everywhere: the beginning.
  What comes of an epoch before its decision does, waits, together with the news: the instance hears of both in the
order in which they came. j opens its first epoch when the founders have said LAST of the one before, as all do; what
they said before it came, they tell in their answers.

Flow. Each protocol bounds what is on its way, but a pessimistic one does not know how slow the processor is. So own
submissions wait while `most_held` commands are before it. Nothing else does: neither follow-ups nor any word of ours.

Applications start anew in a joiner, in the initial state: what was before, nobody tells it.

Silence. Timers of the busy (estimates, probes, forced changes) are armed by submissions and deliveries only, and while
a sequencer has no server: then nobody can submit, whoever wants to, and every other candidate is better. Who stands
still, with an epoch that does not open or a vote of his own that nobody finishes, repeats his last word, so that who is
gone is missed (`standstill.py`).

Invariants: at most two epochs here, and they follow each other; what we submit goes into the newer; what is delivered
is of the older; a founder of e + 1 has completed e - 1; an epoch has one decision.

A sequencer whose server is gone places nothing any more, and no later life of it takes part in an epoch that is being
left. So who has submissions without a number there takes them back and multicasts them as they are, before his LAST:
they come at the very end of the epoch, by life and in their order. Nobody has delivered anything after them in e, and
they were their sender's last in e, so the order stays causal and FIFO.
  Who joined e when its server was gone delivers nothing that was placed there, and can help to leave e all the same.
When he has promised his ballot and then hears that a later life s of the server has joined, is his promise still good?
Yes: a decision of the vote that has it was made by somebody who did not know s. For s is the lowest member: who knows
it opens no vote of his own, and calls off an open one. So s begins with e + 1 or later (Lives), places nothing in e,
and has ended for the instances of e at the decision. (Nor has s ended for the decider before: then his CALL stood
behind the view without s, and s did not join here after that.)

FINAL here is what the protocol in force promises as AGREED: not uniform, except in Time Warp's epochs. Not here: what
died with a cause that was sent in an older epoch (its receiver and its sender crash together, at a switch) is delivered
without it; within an epoch its protocol sees to that, as far as it does.
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from node.core import Core, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report, Send, Timer, Undo
from node.errors import DropReason, LocalError, RemoteError
from node.parameters import require
from node.protocols.abcast import AbcastParameters
from node.protocols.adaptive_candidates import CANDIDATES, Candidate, Making, candidates_in
from node.protocols.adaptive_epoch import NEWS, Epoch, Handed, OptimisticEpoch
from node.protocols.adaptive_opinion import Opinion, Threshold
from node.protocols.adaptive_switch import Promise, Standing, Votes
from node.protocols.adaptive_words import (
    AdaptiveReport,
    Ruling,
    Tail,
    ballot_words,
    bases_of,
    epoch_of,
    read_ballot,
    read_decision,
    read_state,
)
from node.protocols.allack import AllAckParameters
from node.protocols.atop import AtopParameters
from node.protocols.costs import SEQUENCER, TIMEWARP, CostParameters
from node.protocols.execution import Command, Execution, Outcome, ServiceParameters
from node.protocols.joining import Joining, Life
from node.protocols.reliable import ReliableParameters
from node.protocols.sequencer import SequencerParameters
from node.protocols.standstill import PROD, StandStill
from node.protocols.timers import Timers
from node.protocols.timewarp import TimeWarpParameters
from node.protocols.vote import Ranking, tally
from node.trace import Notice
from node.wire import Flag, Kind, Message

MILLISECOND = 1_000_000
SECOND = 1_000 * MILLISECOND
CONTROL = Flag.CONTROL.value
ASK = Timer("ask")
PROCESS = Timer("process")
FORCE = Timer("force")
ESTIMATE = Timer("estimate")
PROBE = Timer("probe")
BUSY = (FORCE, ESTIMATE, PROBE)
"""Armed while something is submitted or delivered; the first two also while a sequencer has no server."""
MOST_EARLY = 65536
"""Of one life, messages that come before what they are about: more than flow control lets through while a decision is
on its way, or while a life joins."""
ECHO_REST_NS = 1 * MILLISECOND
"""At least, and half of the time between two probes: to one life no two echoes follow each other sooner."""
COSTS = (Notice.COST, Notice.REDONE, Notice.ROLLED_BACK)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionParameters:
    """Of the selection, of the application, of the candidates, and of the reliable layer under all of them. Times in
    ns. The blocks of the candidates take no `reliable`, `service` or `report_costs` of their own.
    """

    candidates: str = "timewarp, abcast"
    """Names with commas between: timewarp, abcast, allack, atop, sequencer."""
    first: str = ""
    """The one in force at the start; empty: the first of the candidates."""
    switch_cost_ns: int = 1 * MILLISECOND
    """The paper's s: what a change must save at least, in ns of cost per second ..."""
    margin_permille: int = 100
    """... and of the present cost."""
    dwell_ns: int = 1 * SECOND
    """No vote is opened so soon after a switch."""
    estimate_every_ns: int = 250 * MILLISECOND
    """How often a busy member estimates, and asks for a change that is worthwhile; 0: never."""
    probe_every_ns: int = 500 * MILLISECOND
    """How often a busy member measures the way to the others; 0: never."""
    force_every_ns: int = 0
    """For campaigns and experiments: not 0: costs do not count. A busy member asks for a change so long after the last
    one, and every ballot prefers the next of the candidates in turn."""
    most_held: int = 256
    """Submissions wait while the processor has so many commands, of pessimistic epochs above all: these know nothing of
    it. Deliveries that wait for an older epoch, and follow-ups that no epoch has taken, count with them."""
    costs: CostParameters = field(default_factory=CostParameters)
    """`save_every`, `null_after_ns` and `dummy_after_ns` are those of the blocks that have them."""
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
        for name in ("dwell_ns", "estimate_every_ns", "probe_every_ns", "force_every_ns"):
            value = getattr(self, name)
            require(0 <= value <= 2**62, f"{name} must not be negative, not {value}")
        require(1 <= self.most_held <= 1 << 20, f"most_held must lie between 1 and {1 << 20}, not {self.most_held}")
        self.threshold  # noqa: B018 (it checks itself)
        for name in (candidate.name for candidate in CANDIDATES.values()):
            block = getattr(self, name)
            require(
                block.reliable == ReliableParameters(), f"{name} runs over the reliable layer of all: no block here"
            )
        require(self.timewarp.service == ServiceParameters(), "timewarp has the service of all: no block here")
        require(not self.abcast.report_costs, "costs are reported for all candidates: service.report_costs")

    @property
    def of(self) -> tuple[Candidate, ...]:
        """The candidates. LocalError when the text does not name any."""
        return candidates_in(self.candidates)

    @property
    def threshold(self) -> Threshold:
        return Threshold(switch_cost_ns=self.switch_cost_ns, margin_permille=self.margin_permille)

    def block(self, candidate: Candidate) -> Any:
        """What an instance of that candidate takes."""
        return (
            replace(self.timewarp, service=self.service)
            if candidate.code == TIMEWARP
            else getattr(self, candidate.name)
        )

    @property
    def estimation(self) -> CostParameters:
        """`costs`, with what it repeats of other blocks."""
        return replace(
            self.costs,
            save_every=self.service.save_every,
            null_after_ns=self.allack.null_after_ns,
            dummy_after_ns=self.atop.dummy_after_ns,
        )


class Phase(enum.StrEnum):
    """JOINING until a later life knows which epoch it joins; SWITCHING while an old epoch is incomplete here."""

    JOINING = "joining"
    RUNNING = "running"
    SWITCHING = "switching"


class AdaptiveCore(Core):
    """See the module's text."""

    def __init__(self, *, membership: Membership, parameters: SelectionParameters, rng: Random) -> None:
        self._us = membership
        self._me: Life = (membership.member, membership.incarnation)
        self._parameters = parameters
        periods = (
            (FORCE, parameters.force_every_ns),
            (ESTIMATE, parameters.estimate_every_ns),
            (PROBE, parameters.probe_every_ns),
        )
        self._every_ns = tuple((timer, every_ns) for timer, every_ns in periods if every_ns)
        self._candidates = {candidate.code: candidate for candidate in parameters.of}
        self._rng = rng
        self._timers = Timers()
        self._standstill = StandStill(self._timers)
        self._joining = Joining(membership)
        self._votes = Votes()
        self._epochs: deque[Epoch] = deque()
        """At most two, ascending: what we submit goes into the last."""
        self._told: Ruling | None = None
        """The last epoch that we have heard of."""
        self._log: list[Message] = []
        """News and early messages of the epoch to come, in their order, ..."""
        self._early: Counter[Life] = Counter()
        """... how many of them are of each life, ..."""
        self._before: tuple[Life, ...] = self._joining.lives
        """... and the others that took part before all of these."""
        self._over: dict[int, int] = {}
        """Per member: the last of its lives that has ended."""
        self._last: dict[Life, int] = {}
        """Per life, ours too: all that it sent in the epochs up to this one is delivered at itself, or cannot be lost;
        and nothing more comes of it."""
        self._erased: frozenset[Life] = frozenset()
        """Nothing of these counts in the older of our epochs."""
        self._switched_ns = 0
        self._execution = Execution(
            membership=membership, parameters=replace(parameters.service, report_costs=True), seed=rng.getrandbits(64)
        )
        """Of all epochs. It tells us its costs; whether the host is told is another question."""
        self._process_ns: int | None = None
        """When PROCESS is due."""
        self._executed = (0, 0)
        """Executions that the opinion knows of: how many, and their time in ns."""
        self._appended = 0
        """Commands of pessimistic epochs."""
        self._follow_ups: deque[bytes] = deque()
        """What executions of pessimistic commands have sent, and no epoch has taken yet."""
        self._opinion = Opinion(
            us=membership,
            codes=tuple(self._candidates),
            parameters=parameters.estimation,
            threshold=parameters.threshold,
        )
        self._echo_ns: dict[Life, int] = {}
        """Per life: when it may have the next echo. Who does not acknowledge them shall not fill our memory."""
        self._activity = 0
        """Counts submissions and deliveries ..."""
        self._seen: dict[Timer, int] = {}
        """... and how far it was when a timer of the busy was due last."""
        self._handlers: dict[Kind, Callable[[Message, int, list[Effect]], None]] = {
            Kind.ADAPTIVE_CARRIED: self._on_carried,
            Kind.ADAPTIVE_LAST: self._on_last,
            Kind.ADAPTIVE_REQUEST: self._on_request,
            Kind.ADAPTIVE_CALL: self._on_call,
            Kind.ADAPTIVE_BALLOT: self._on_ballot,
            Kind.ADAPTIVE_DECISION: self._on_decision,
            Kind.ADAPTIVE_PROBE: self._on_probe,
            Kind.ADAPTIVE_ECHO: self._on_echo,
            Kind.ADAPTIVE_STATE: self._on_state,
            Kind.ADAPTIVE_JOIN: self._on_join,
            Kind.RELIABLE_ENDED: self._on_ended,
            Kind.RELIABLE_JOINED: self._on_joined,
        }

    @property
    def depth(self) -> int:
        """Our own timers, and those of two epochs."""
        return 3

    @property
    def can_submit(self) -> bool:
        return self._takes_follow_ups and self._backlog < self._parameters.most_held

    @property
    def _takes_follow_ups(self) -> bool:
        """They are part of the backlog: it does not hold them up, or it would never end."""
        return bool(self._epochs) and self._epochs[-1].can_submit

    @property
    def _backlog(self) -> int:
        """What the processor has before it: commands, deliveries that wait for an older epoch, follow-ups."""
        return self._execution.held + sum(epoch.waiting for epoch in self._epochs) + len(self._follow_ups)

    @property
    def is_idle(self) -> bool:
        is_working = self._execution.held or self._follow_ups or self._votes.is_open
        return len(self._epochs) == 1 and self._epochs[0].is_idle and not is_working

    @property
    def phase(self) -> str:
        """Where the switch stands, and the protocol that we send in."""
        if not self._epochs:
            return Phase.JOINING
        phase = Phase.RUNNING if len(self._epochs) == 1 else Phase.SWITCHING
        return f"{phase}-{self._candidates[self._epochs[-1].code].name}"

    @property
    def held(self) -> int:
        """Undelivered messages of all epochs, also of one that we have not heard the decision about."""
        early = sum(message.kind is Kind.ADAPTIVE_CARRIED for message in self._log)
        # What an open epoch of Time Warp holds, the processor holds.
        epochs = sum(epoch.held for epoch in self._epochs if epoch.code != TIMEWARP or not epoch.is_open)
        return early + epochs + self._execution.held + len(self._follow_ups)

    @property
    def epoch(self) -> int:
        """The one that we send in; 0 while joining."""
        return self._epochs[-1].number if self._epochs else 0

    @property
    def in_force(self) -> str:
        """The protocol of that epoch; empty while joining."""
        return self._candidates[self._epochs[-1].code].name if self._epochs else ""

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """Those that are not complete here, ascending."""
        return tuple(self._epochs)

    def on_start(self, now_ns: int) -> list[Effect]:
        out: list[Effect] = []
        if not self._joining.is_joining:
            self._begin(self._initial(), now_ns, out)
        return out

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        if not self.can_submit:
            raise LocalError(f"member {self._us.member} takes no submission now: ask can_submit before")
        if submission.target is not None:
            raise LocalError("epochs order multicasts; send to one member through the layer below")
        out: list[Effect] = []
        self._submit(submission, False, now_ns, out)
        self._after(now_ns, out)
        return out

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        reason = self._ignore(message)
        if reason is not None:
            return [Report(code=reason, member=source, value=len(message.payload))]
        out: list[Effect] = []
        is_ours = message.origin == self._us.member and message.kind not in NEWS
        if not is_ours or message.kind is Kind.ADAPTIVE_CARRIED:
            self._handlers[message.kind](message, now_ns, out)
            self._after(now_ns, out)
        return out

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        out: list[Effect] = []
        if timer.layer:
            for epoch in tuple(self._epochs):
                if timer.layer == epoch.layer_of(epoch.number):
                    self._carry(epoch, epoch.fired(timer, now_ns), now_ns, out)
        elif timer not in (ASK, PROD, PROCESS, *BUSY):
            raise LocalError(f"{timer} is no timer of this core")
        else:
            self._timers.fired(timer)
            self._on_due(timer, now_ns, out)
        self._after(now_ns, out)
        return out

    def _ignore(self, message: Message) -> DropReason | None:
        if message.kind not in self._handlers:
            return DropReason.UNEXPECTED
        if message.kind in NEWS or message.origin == self._us.member:
            return None
        return None if (message.origin, message.incarnation) in self._joining else DropReason.UNEXPECTED

    def _on_due(self, timer: Timer, now_ns: int, out: list[Effect]) -> None:
        if timer == ASK and self._joining.is_joining:
            self._ask(now_ns, out)
        elif timer == PROD and self._standstill.is_due(self._stands_at):
            self._prod(out)
        elif timer == PROCESS:
            self._process_ns = None
        elif timer in BUSY and self._epochs:
            self._seen[timer] = self._activity
            {FORCE: self._force, ESTIMATE: self._estimate, PROBE: self._probe}[timer](now_ns, out)

    # What epochs and the processor do.

    def _submit(self, submission: Submission, is_follow_up: bool, now_ns: int, out: list[Effect]) -> None:
        epoch = self._epochs[-1]
        tail = Tail(self._opinion.stamp(now_ns), is_follow_up)
        self._activity += 1
        self._carry(epoch, epoch.submit(submission, tail, now_ns), now_ns, out)

    def _carry(self, epoch: Epoch, effects: list[Effect], now_ns: int, out: list[Effect]) -> None:
        """What an input of that epoch has led to."""
        for arrival in epoch.take_arrivals():
            self._opinion.arrived(arrival, now_ns, is_own=arrival.life == self._me)
        if epoch.code == TIMEWARP:
            self._sift(effects, now_ns, out)
        else:
            out += effects

    def _sift(self, effects: list[Effect], now_ns: int, out: list[Effect]) -> None:
        """Effects that may come from the processor: it tells us more than the host wants to know."""
        costs = self._opinion.costs
        for effect in effects:
            if isinstance(effect, Deliver | Undo):
                self._activity += 1
            elif isinstance(effect, Report) and effect.code in COSTS:
                if effect.code == Notice.COST:
                    costs.finished(TIMEWARP, effect.value, now_ns)
                elif effect.code == Notice.ROLLED_BACK:
                    costs.rolled_back(effect.value, now_ns)
                if not self._parameters.service.report_costs:
                    continue
            out.append(effect)

    def _hand_over(self, handed: Handed, code: int, now_ns: int, out: list[Effect]) -> None:
        """A message of a pessimistic epoch: to the application, and to the processor, from where it never returns."""
        self._activity += 1
        delivery = handed.delivery
        if (delivery.origin, delivery.incarnation) in self._erased:
            out.append(Report(code=AdaptiveReport.ERASED, member=delivery.origin, value=self._epochs[0].number))
            return
        self._opinion.costs.finished(code, handed.cost_ns, now_ns)
        if not handed.tail.is_follow_up:
            out.append(delivery)
        if self._parameters.service.report_costs:
            out.append(Report(code=Notice.COST, member=delivery.origin, value=handed.cost_ns))
        self._appended += 1
        # As long as Time Warp's keys, which begin with the epoch, too.
        key = (self._epochs[0].number, self._appended, 0, 0, 0)
        message = Message(
            kind=Kind.ADAPTIVE_CARRIED,
            origin=delivery.origin,
            incarnation=delivery.incarnation,
            seq=delivery.seq,
            inner=delivery.inner,
            payload=delivery.payload,
        )
        command = Command(key, message, now_ns, handed.tail.is_follow_up)
        effects: list[Effect] = []
        self._execution.append(command, handed.tail.timestamp, now_ns, effects)
        self._sift(effects, now_ns, out)

    def _process(self, now_ns: int, out: list[Effect]) -> None:
        """Drive the processor; what executions send goes out."""
        while self._epochs:
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
        if not outcomes and not self._follow_ups:
            return
        optimistic = [epoch for epoch in self._epochs if isinstance(epoch, OptimisticEpoch)]
        for epoch in optimistic:
            self._carry(epoch, epoch.take_outcomes(outcomes, now_ns), now_ns, out)
        numbers = {epoch.number for epoch in optimistic}
        self._follow_ups.extend(
            payload for outcome in outcomes if outcome.key[0] not in numbers for payload in outcome.outputs
        )
        while self._follow_ups and self._takes_follow_ups:
            self._submit(Submission(payload=self._follow_ups.popleft()), True, now_ns, out)

    def _count_executions(self, now_ns: int) -> None:
        """Their mean time is all that the opinion needs."""
        count, spent_ns = self._execution.ended, self._execution.ended_ns
        new = count - self._executed[0]
        if not new:
            return
        for _ in range(new):
            self._opinion.costs.executed((spent_ns - self._executed[1]) // new, now_ns)
        self._executed = (count, spent_ns)

    # Epochs.

    def _on_carried(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        number = epoch_of(message, words=0)
        found = next((epoch for epoch in self._epochs if epoch.number == number), None)
        if found is not None:
            self._carry(found, found.receive(message, now_ns), now_ns, out)
            self._joining.spoke((message.origin, message.incarnation))
        elif not self._epochs or number == self._epochs[-1].number + 1:
            self._keep(message)
        elif number > self._epochs[-1].number:
            raise RemoteError(DropReason.UNEXPECTED, f"epoch {number} cannot have begun")
        # Else it is of an epoch that is complete here, and others may still have something to say in it.

    def _keep(self, early: Message) -> None:
        life = (early.origin, early.incarnation)
        if self._early[life] >= MOST_EARLY:
            raise RemoteError(DropReason.UNEXPECTED, f"{MOST_EARLY} messages of an epoch that nobody has decided")
        self._early[life] += 1
        self._log.append(early)

    def _after(self, now_ns: int, out: list[Effect]) -> None:
        """What can be handed over now, and whether an old epoch is complete."""
        while self._epochs:
            oldest = self._epochs[0]
            for handed in oldest.take(now_ns):
                self._hand_over(handed, oldest.code, now_ns, out)
            self._process(now_ns, out)
            if self._epochs[-1].is_open or not self._is_preceded(out):
                break
            self._open_newest(now_ns, out)
        self._see_to_vote(now_ns, out)
        self._standstill.watch(self._stands_at, now_ns, out)
        for timer, every_ns in self._every_ns:
            if self._activity > self._seen.get(timer, 0) or (self._is_stranded and timer != PROBE):
                self._timers.arm(timer, now_ns + every_ns, out)

    def _is_preceded(self, out: list[Effect]) -> bool:
        """Whether all that stands before the newest epoch has come and is delivered. Says LAST when it is time to."""
        new = self._epochs[-1]
        older = [epoch for epoch in self._epochs if epoch is not new]
        for old in older:
            self._see_to_last(old, out)
        founders = [life for life in self._joining.lives if new.local(life) <= 1]
        if older:
            founders.append(self._me)
        is_said = all(self._last.get(life, 0) >= new.number - 1 for life in founders)
        # Who lost something ended with the cause of it, though its end may be heard late: it is the same for all then.
        has_losers = any(life in self._joining and new.local(life) == 1 for old in older for life in old.losers)
        return is_said and not has_losers and all(old.is_spent for old in older)

    def _see_to_last(self, old: Epoch, out: list[Effect]) -> None:
        is_said = self._last.get(self._me, 0) >= old.number
        if not is_said:
            out += old.take_back()
        if not is_said and (old.ours == 0 or not self._candidates[old.code].may_lose):
            self._last[self._me] = old.number
            out.append(self._word_of_last())

    def _open_newest(self, now_ns: int, out: list[Effect]) -> None:
        """What came of it early is delivered now, and the older epoch is complete."""
        new = self._epochs[-1]
        if len(self._epochs) == 2:
            for handed in self._epochs[0].take_left(now_ns):
                self._hand_over(handed, self._epochs[0].code, now_ns, out)
        self._erased = self._lost(new)
        if len(self._epochs) == 2:
            old = self._epochs.popleft()
            out += old.end()
            out.append(Report(code=AdaptiveReport.COMPLETE, member=self._us.member, value=old.number))
        self._carry(new, new.open(self._erased, now_ns), now_ns, out)

    def _lost(self, new: Epoch) -> frozenset[Life]:
        """Founders that have ended without LAST, or of which something was erased: see the module's text."""
        losers = self._epochs[0].losers if len(self._epochs) == 2 else frozenset()
        bases = ((member, base) for member, base in new.ruling.bases.items() if member != self._us.member)
        return frozenset(
            life
            for life in bases
            if life not in self._joining and (life in losers or self._last.get(life, 0) < new.number - 1)
        )

    def _word_of_last(self) -> Effect:
        seq = self._last.get(self._me, 0)
        return Multicast(message=self._us.message(Kind.ADAPTIVE_LAST, seq=seq, flags=CONTROL))

    def _on_last(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        number = epoch_of(message, words=0)
        if self._epochs and number > self._epochs[-1].number:
            raise RemoteError(DropReason.UNEXPECTED, f"epoch {number} cannot have begun")
        life = (message.origin, message.incarnation)
        self._last[life] = max(self._last.get(life, 0), number)

    def _initial(self) -> Ruling:
        """The first epoch: all first lives are its founders."""
        names = {candidate.name: candidate.code for candidate in self._candidates.values()}
        first = self._parameters.first or next(iter(names))
        return Ruling(epoch=1, code=names[first], bases=dict.fromkeys(self._us.members, 1))

    def _adopt(self, ruling: Ruling, now_ns: int, out: list[Effect]) -> None:
        """The group has decided: from now on we submit in the next epoch."""
        old = self._epochs[-1]
        assert len(self._epochs) == 1 and old.is_open, "a promise, or a vote of ours, with an older epoch incomplete"
        self._carry(old, old.close(now_ns), now_ns, out)
        self._votes.adopted(ruling.epoch)
        for life in self._joining.lives:
            if ruling.bases[life[0]] < life[1]:
                # It joins the next epoch and has said nothing in this one.
                self._carry(old, old.news(Kind.RELIABLE_ENDED, life, now_ns), now_ns, out)
        self._begin(ruling, now_ns, out)

    def _begin(self, ruling: Ruling, now_ns: int, out: list[Effect]) -> None:
        """We send in this epoch now. Replay what has come of it, and the news that concern it."""
        candidate = self._candidates[ruling.code]
        making = Making(
            us=self._us,
            ruling=ruling,
            block=self._parameters.block(candidate),
            rng=Random(f"{self._rng.random()}/{ruling.epoch}"),  # noqa: S311 (repeatable, not secret)
            execution=self._execution,
            is_open=ruling.epoch == 1,
        )
        epoch = candidate.make(making)
        self._epochs.append(epoch)
        self._told = ruling
        self._switched_ns = now_ns
        out.append(Report(code=Notice.IN_FORCE, member=ruling.code, value=ruling.epoch))
        self._carry(epoch, epoch.start(self._present(epoch), self._over, now_ns), now_ns, out)
        # Who has ended, and said LAST before we heard of the new epoch, is one of its bases.
        self._last = {life: last for life, last in self._last.items() if life[1] >= ruling.bases[life[0]]}
        log, self._log, self._before = self._log, [], self._joining.lives
        self._early.clear()
        for message in log:
            self._replay(epoch, message, now_ns, out)

    def _present(self, epoch: Epoch) -> tuple[Life, ...]:
        """Who takes part when the log begins. A founder's log has the rest; a later life needs those of now."""
        if not epoch.is_founder:
            return self._joining.lives
        joined = {(one.origin, one.incarnation) for one in self._log if one.kind is Kind.RELIABLE_JOINED}
        return tuple(sorted({*self._before, *(life for life in joined if epoch.local(life) == 1)}))

    def _replay(self, epoch: Epoch, message: Message, now_ns: int, out: list[Effect]) -> None:
        life = (message.origin, message.incarnation)
        if message.kind in NEWS:
            if epoch.is_founder:
                self._carry(epoch, epoch.news(message.kind, life, now_ns), now_ns, out)
        elif message.seq == epoch.number and (epoch.is_founder or life in self._joining):
            try:
                self._carry(epoch, epoch.receive(message, now_ns), now_ns, out)
            except RemoteError as error:
                out.append(Report(code=error.reason, member=message.origin, value=len(message.payload)))

    # Votes.

    @property
    def _is_ready(self) -> bool:
        """Whether we can promise to found another epoch, or ask for it: no older one is incomplete, and we deliver in
        this one. Who joined a sequencer after its server had ended never does: but nothing is placed there any more,
        and what its members take back comes to us, too. That may change when a later life of the server joins; a
        promise stays.
        """
        if len(self._epochs) != 1 or not self._epochs[0].is_open:
            return False
        return self._epochs[0].has_begun or self._is_stranded

    @property
    def _coordinator(self) -> Life:
        """The lowest member that takes part."""
        return min((*self._joining.lives, self._me))

    def _request(self, now_ns: int, out: list[Effect]) -> None:
        """We want a change."""
        coordinator = self._coordinator
        if coordinator == self._me:
            self._open_vote(now_ns, out)
        elif self._is_ready and self._votes.is_free:
            request = self._us.message(Kind.ADAPTIVE_REQUEST, seq=self.epoch + 1, flags=CONTROL)
            out.append(Send(target=coordinator[0], message=request))

    def _on_request(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        if epoch_of(message, words=0) == self.epoch + 1 and self._coordinator == self._me:
            self._open_vote(now_ns, out)

    def _open_vote(self, now_ns: int, out: list[Effect]) -> None:
        is_early = now_ns < self._switched_ns + self._parameters.dwell_ns
        if is_early or not self._is_ready or not self._votes.is_free:
            return
        self._votes.open(epoch=self.epoch + 1, us=self._me, ranking=self._ranking(now_ns), others=self._joining.lives)
        out.append(Report(code=AdaptiveReport.CALLED, member=self._us.member, value=self._votes.epoch))
        out.append(self._call())

    def _call(self) -> Effect:
        words = (self._votes.number,)
        return Multicast(
            message=self._us.message(Kind.ADAPTIVE_CALL, seq=self._votes.epoch, flags=CONTROL, words=words)
        )

    def _on_call(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        epoch = epoch_of(message, words=1)
        (number,) = message.words
        if self._epochs and epoch > self.epoch + 1:
            raise RemoteError(DropReason.UNEXPECTED, f"a vote about epoch {epoch}, when ours is {self.epoch}")
        coordinator = (message.origin, message.incarnation)
        can_promise = self._is_ready and epoch == self.epoch + 1
        ranking = None
        if can_promise and self._votes.called(coordinator, number=number, epoch=epoch):
            ranking = self._ranking(now_ns)
        words = ballot_words(number, ranking)
        ballot = self._us.message(Kind.ADAPTIVE_BALLOT, seq=epoch, flags=CONTROL, words=words)
        out.append(Send(target=coordinator[0], message=ballot))

    def _ranking(self, now_ns: int) -> Ranking:
        """Our ballot."""
        present = self._epochs[-1].code
        if not self._parameters.force_every_ns:
            return self._opinion.ranking(present, now_ns, has_server=self._has_server)
        codes = tuple(self._candidates)
        place = codes.index(present) + 1
        turn = (*codes[place:], *codes[:place])
        return tuple(sorted(turn, key=lambda code: code == SEQUENCER and not self._has_server))

    @property
    def _has_server(self) -> bool:
        """Whether the sequence server takes part: without it that protocol stands still."""
        server = self._us.members[0]
        return any(member == server for member, _ in (*self._joining.lives, self._me))

    @property
    def _is_stranded(self) -> bool:
        """Whether we send in a sequencer's epoch without its server, and could go elsewhere."""
        is_sequencer = bool(self._epochs) and self._epochs[-1].code == SEQUENCER
        return is_sequencer and not self._has_server and len(self._candidates) > 1

    def _on_ballot(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        number, ranking = read_ballot(message, tuple(self._candidates))
        life = (message.origin, message.incarnation)
        self._votes.balloted(life, number=number, epoch=message.seq, ranking=ranking)

    def _see_to_vote(self, now_ns: int, out: list[Effect]) -> None:
        """Whether our open vote can be decided, or must be called off."""
        if not self._votes.is_open or self._votes.standing is Standing.OPEN:
            return
        present = self._epochs[-1].code
        winner = present
        if self._votes.standing is Standing.COMPLETE:
            winner = tally(self._votes.rankings, present=present)
        number, epoch = self._votes.number, self._votes.epoch
        self._votes.close()
        if winner == present:
            out.append(Report(code=AdaptiveReport.CALLED_OFF, member=self._us.member, value=epoch))
            self._decide(epoch, (number, 0), out)
            return
        bases = bases_of(self._us.members, (*self._joining.lives, self._me), self._over)
        ruling = Ruling(epoch=epoch, code=winner, bases=bases)
        self._decide(epoch, (number, *ruling.words), out)
        self._adopt(ruling, now_ns, out)
        self._after(now_ns, out)

    def _decide(self, epoch: int, words: tuple[int, ...], out: list[Effect]) -> None:
        message = self._us.message(Kind.ADAPTIVE_DECISION, seq=epoch, flags=CONTROL, words=words)
        out.append(Multicast(message=message))

    def _on_decision(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        number, ruling = read_decision(message, self._us.members, tuple(self._candidates))
        vote = Promise((message.origin, message.incarnation), number, message.seq)
        if ruling is not None:
            self._check(ruling, vote)
        self._votes.settled(vote.coordinator, number=number)
        if ruling is None:
            return
        if self._epochs:
            self._adopt(ruling, now_ns, out)
        else:
            self._hear(ruling)

    def _check(self, ruling: Ruling, vote: Promise) -> None:
        """RemoteError when the group cannot have decided that: it needs our ballot in that very vote, which we have
        promised to nobody else since. While we join, it had none of ours.

        Whether we are ready is not asked again. We were when we promised, and of the epoch that comes next, for a new
        epoch voids promises; and who was stranded then need not be now (see the module's text).
        """
        if not self._epochs:
            self._check_is_before_us(ruling)
            return
        is_change = ruling.code != self._epochs[-1].code
        is_ours = ruling.bases[self._us.member] == self._us.incarnation and self._votes.promise == vote
        if not (is_change and is_ours):
            raise RemoteError(DropReason.UNEXPECTED, f"a decision about epoch {ruling.epoch} that we had no part in")

    def _check_is_before_us(self, ruling: Ruling) -> None:
        """RemoteError when a life that joins is told of an epoch with itself, or a later one, as a founder."""
        if ruling.bases[self._us.member] >= self._us.incarnation:
            raise RemoteError(DropReason.MALFORMED, "an epoch that this life is said to have founded before it joined")

    # Standing still, and wanting a change.

    @property
    def _stands_at(self) -> tuple[int, ...] | None:
        if self._epochs and not self._epochs[-1].is_open:
            return (self._epochs[-1].number, 0)
        return (self._votes.epoch, self._votes.number) if self._votes.is_open else None

    def _prod(self, out: list[Effect]) -> None:
        """Say something whose acknowledgement is missed when somebody is gone."""
        out.append(self._call() if self._votes.is_open else self._word_of_last())

    def _force(self, now_ns: int, out: list[Effect]) -> None:
        is_due = now_ns >= self._switched_ns + self._parameters.force_every_ns
        if is_due and self._ranking(now_ns)[0] != self._epochs[-1].code:
            self._request(now_ns, out)

    def _estimate(self, now_ns: int, out: list[Effect]) -> None:
        if self._parameters.service.report_costs:
            estimates = self._opinion.estimates(now_ns).items()
            out.extend(Report(code=Notice.ESTIMATE, member=code, value=value) for code, value in estimates)
        if self._parameters.force_every_ns:
            return
        if self._opinion.better(self._epochs[-1].code, now_ns, has_server=self._has_server):
            self._request(now_ns, out)

    def _probe(self, now_ns: int, out: list[Effect]) -> None:
        number = self._opinion.probe(self._joining.lives, now_ns)
        out.append(Multicast(message=self._us.message(Kind.ADAPTIVE_PROBE, seq=number, flags=CONTROL)))

    def _on_probe(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        epoch_of(message, words=0)
        life = (message.origin, message.incarnation)
        if now_ns < self._echo_ns.get(life, 0):
            return
        self._echo_ns[life] = now_ns + max(self._parameters.probe_every_ns // 2, ECHO_REST_NS)
        words = (message.incarnation,)
        echo = self._us.message(Kind.ADAPTIVE_ECHO, seq=message.seq, flags=CONTROL, words=words)
        out.append(Send(target=message.origin, message=echo))

    def _on_echo(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        epoch_of(message, words=1)
        if message.words[0] == self._us.incarnation:
            self._opinion.echoed((message.origin, message.incarnation), message.seq, now_ns)

    # Who ends and who joins.

    def _on_ended(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        life = (message.origin, message.incarnation)
        self._over[life[0]] = max(self._over.get(life[0], 0), life[1])
        self._joining.ended(life)
        self._votes.ended(life)
        self._opinion.ended(life, now_ns)
        self._echo_ns.pop(life, None)
        self._log.append(message)
        for epoch in self._epochs:
            if self._epochs[-1].local(life) <= 1 or epoch is self._epochs[-1]:
                # An older epoch has heard of the end of who is later than its founders when the new one began.
                self._carry(epoch, epoch.news(message.kind, life, now_ns), now_ns, out)
        for joiner in self._joining.waiting:
            self._welcome(joiner, out)
        self._begin_if_welcome(now_ns, out)

    def _on_joined(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        life = (message.origin, message.incarnation)
        if self._joining.joined(life):
            self._ask(now_ns, out)
        elif life != self._me:
            self._votes.joined()
            self._log.append(message)
            self._tell_joined(life, now_ns, out)
        self._begin_if_welcome(now_ns, out)

    def _tell_joined(self, life: Life, now_ns: int, out: list[Effect]) -> None:
        """To the epoch that we send in: in an older one it takes no part."""
        if self._epochs:
            newest = self._epochs[-1]
            self._carry(newest, newest.news(Kind.RELIABLE_JOINED, life, now_ns), now_ns, out)

    def _ask(self, now_ns: int, out: list[Effect]) -> None:
        out.append(Multicast(message=self._us.message(Kind.ADAPTIVE_JOIN, flags=CONTROL)))
        self._timers.arm(ASK, self._joining.asks(now_ns), out)

    def _on_join(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        joiner = (message.origin, message.incarnation)
        self._joining.asked(joiner)
        self._welcome(joiner, out)

    def _welcome(self, joiner: Life, out: list[Effect]) -> None:
        told = self._told
        words = (*told.words, self._last.get(self._me, 0)) if told is not None else ()
        words += self._joining.words(joiner)
        seq = told.epoch if told is not None else 0
        state = self._us.message(Kind.ADAPTIVE_STATE, seq=seq, flags=CONTROL, words=words)
        out.append(Send(target=joiner[0], message=state))

    def _on_state(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        state = read_state(message, self._us.members, tuple(self._candidates))
        life = (message.origin, message.incarnation)
        ruling = state.ruling
        if ruling is not None and self._joining.is_joining:
            self._check_is_before_us(ruling)
        self._joining.answered(life, message.seq, state.welcome)
        if ruling is not None and not self._epochs:
            self._hear(ruling)
            self._last[life] = max(self._last.get(life, 0), state.last)
        self._begin_if_welcome(now_ns, out)

    def _hear(self, ruling: Ruling) -> None:
        """While we join: what others know."""
        if self._told is None or ruling.epoch > self._told.epoch:
            self._told = ruling

    def _begin_if_welcome(self, now_ns: int, out: list[Effect]) -> None:
        if not self._joining.has_everything:
            return
        self._joining.begin()
        self._timers.disarm(ASK, out)
        # Nobody who lives knows of an epoch: all are later lives, which begin anew.
        ruling = self._told or self._initial()
        out.append(Report(code=AdaptiveReport.WELCOMED, member=self._us.member, value=ruling.epoch))
        self._begin(ruling, now_ns, out)
