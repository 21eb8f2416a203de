"""The machine's manager (SMM) of object groups, the core of the protocol `objects`.

Paper 004 (DOOCE), sections 4 and 5: a hierarchy of multicast managers, one for each address space (LMM), machine (SMM)
and sub-network (MMM). A message climbs to the lowest manager that covers all of its objects, gets its place there, and
goes down; managers deliver strictly one after another. The argument: docs/protocols/objects.md.

    objects                 Submission (node/objects/addresses.py)             Deliver: calls and news
    LMM  local.py           delivers calls within its own space
    SMM  here               calls within the machine; direct messages; no overtaking
    log                     one order of all requests to the sub-network: Amoeba over the group layer, subnet-local
    state log/state.py      the log's state machine: proposals, votes, final timestamps, groups, names
    MMM  duties.py          the sequencer of the log: sends the log state's duties to other sub-networks (votes.py, too)

The parts, all of which share context.py. In this module: the log, the phases, the duties.

    requests.py     requests of our objects: their routes; no overtaking
    service.py      requests of callers elsewhere to our log state, and the answers
    votes.py        two-phase commit: the votes of our spaces, and of the machines
    steps.py        the steps of the log state, carried out; the dispatch to our objects
    direct.py       channels to the managers of other machines

Every message of a machine carries the highest timestamp that it knows of (`heard`): its later requests get a later one,
and a direct message waits at its target until everything up to there is dispatched.

Messages from outside are checked before anything changes; crossing messages are taken only from machines of the
sub-network that they name, votes only from our own.

Invariants. The log state has exactly the deliveries of the log. Steps are carried out in its order, before any other
input from below. At rest there is no timer, no duty, no request. An ended core (excluded by the others) does nothing.
Not here: state of joining objects (the application's, at the JOIN's place in the order), time-outs (the caller's).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random

from node.core import Closing, Core, Membership, Submission, ViewCore
from node.effects import Deliver, Effect, Installed, Minority, Multicast, Report, Send, StateTaken, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.group.core import GROUP_KINDS, GroupCore
from node.group.core import Phase as Standing
from node.group.view import Incarnation
from node.objects.addresses import Operation, decode_news
from node.objects.log.entries import (
    MOST_AHEAD,
    Call,
    Called,
    CallId,
    ClockAdvance,
    Crossing,
    ProposalRequest,
    Proposals,
    Proposed,
    SendCrossing,
    Voted,
    entry_of,
    message_of,
    timestamp_of,
)
from node.objects.log.state import LogState, epoch_of
from node.objects.manager.context import Context
from node.objects.manager.direct import TIMERS as DIRECT_TIMERS
from node.objects.manager.direct import Acknowledged, Arrival, Direct, Event, Failed
from node.objects.manager.duties import DUTIES, QUESTIONS, Duties
from node.objects.manager.local import SPACE_BASE, Vote
from node.objects.manager.requests import Requests
from node.objects.manager.service import Service
from node.objects.manager.steps import AGENDA, Item, Steps
from node.objects.manager.votes import VOTES, Preparations, Votes
from node.objects.parameters import ObjectsParameters
from node.packing import MAX_NUMBER
from node.protocols.amoeba import AmoebaCore, AmoebaParameters
from node.reliable.codec import KINDS as STREAM_KINDS
from node.trace import CallReport, ViewReason
from node.wire import Flag, Kind, Message, decode_message

LOG_KINDS = GROUP_KINDS | STREAM_KINDS
"""Kinds of the messages of the log's group; the log's own kinds come inside messages of the streams."""
CROSSINGS = frozenset({Kind.OBJECTS_ASK, Kind.OBJECTS_PROPOSAL, Kind.OBJECTS_OUTCOME, Kind.OBJECTS_SETTLED})


class Phase(enum.StrEnum):
    """The phase of the core. JOINING: until it has the log state; ENDED: the other machines of the sub-network have
    excluded it."""

    JOINING = "joining"
    RUNNING = "running"
    ENDED = "ended"


class MachineCore(Core):
    """See the module's docstring. `has_space_processes`: its address spaces are processes of their own. Messages for
    them go out as Send(target=SPACE_BASE + space), and their messages have that source."""

    def __init__(
        self, *, membership: Membership, parameters: ObjectsParameters, rng: Random, has_space_processes: bool = False
    ) -> None:
        self._us = membership if membership.partitions else replace(membership, partitions=(membership.members,))
        self._me = membership.member
        self._near = Membership(
            member=self._me,
            members=self._us.partitions[self._us.partition],
            incarnation=membership.incarnation,
            has_multicast=membership.has_multicast,
        )
        self._log = GroupCore(
            membership=self._near,
            founders=self._near.members,
            parameters=parameters.reliable,
            rng=rng,
            make=self._new_log,
            heals=True,
        )
        self._context = context = Context(
            membership=self._us,
            parameters=parameters,
            layer=self._log.depth,
            take=self._on_passed_on,
            has_space_processes=has_space_processes,
        )
        first_ns, most_ns = parameters.retry_ns, parameters.retry_most_ns
        self._duties = Duties(
            membership=self._us,
            first_ns=first_ns,
            most_ns=most_ns,
            patience_ns=parameters.patience_ns,
            timers=context.timers,
        )
        self._votes = Votes(
            membership=self._us, first_ns=first_ns, most_ns=most_ns, vote_ns=parameters.vote_ns, timers=context.timers
        )
        self._preparations = Preparations(context=context, votes=self._votes)
        self._service = Service(context=context, log_state=lambda: self.log_state)
        self._requests = Requests(
            context=context,
            preparations=self._preparations,
            service=self._service,
            machine_of=self._duties.machine_of,
            is_current=lambda: self._log.standing is Standing.MEMBER and not self._steps.waiting,
        )
        self._steps = Steps(
            context=context,
            votes=self._votes,
            preparations=self._preparations,
            requests=self._requests,
            service=self._service,
            duties=self._duties,
            is_complete=self._has_everything,
            is_master=lambda: self._is_master,
        )
        self._phase = Phase.JOINING
        self.log_state = self._new_log_state({})
        """An empty log state until we are in a view and have the state."""

        self._crossing: set[tuple[int, int, int]] = set()
        """Messages of other sub-networks on their way into the log: kind, place, number."""
        self._gathered: dict[CallId, dict[int, Proposed]] = {}
        """By call and place: proposals that wait for those of the call's other places."""
        self._pushed = 0
        """The timestamp up to which we have asked the log to push the clock of our log state."""
        self._was_master = False
        self._ended: tuple[int, int] | None = None
        """The last machine of our sub-network known to have ended, and the time at which we learnt of it."""

    def _new_log_state(self, incarnations: Mapping[int, int]) -> LogState:
        """A new log state of machines that begin the log together."""
        epoch = epoch_of(self._near.members, incarnations.items()) if incarnations else 1
        return LogState(
            place=self._context.place, partitions=self._us.partitions, epoch=epoch, incarnations=incarnations
        )

    # Properties for the host.

    @property
    def depth(self) -> int:
        return self._log.depth + 1

    @property
    def phase(self) -> str:
        return f"{self._log.phase}/{self._phase}"

    @property
    def sequencer(self) -> int:
        """The machine that has the duties of the sub-network (MMM): the first-ranked member of the view."""
        return self._log.view.members[0] if self._log.view is not None else self._near.members[0]

    @property
    def buffered(self) -> int:
        if self._is_out:
            return 0
        context = self._context
        parts = (self._log, self.log_state, context.channels, context.managers)
        waiting = len(context.log_queue) + self._steps.waiting + self._requests.waiting
        return sum(part.buffered for part in parts) + waiting

    @property
    def can_submit(self) -> bool:
        if self._phase is not Phase.RUNNING or self._is_out:
            return False
        managers = self._context.managers
        under_way = self._requests.under_way + managers.buffered
        return under_way < self._context.parameters.outstanding and managers.can_submit

    @property
    def is_idle(self) -> bool:
        if self._is_out:
            return True
        context = self._context
        if self._phase is Phase.JOINING or context.log_queue or self._requests.under_way or self._crossing:
            return False
        if len(self._preparations) or self._steps.waiting or len(self._duties) or len(self._votes):
            return False
        return all(part.is_idle for part in (self.log_state, context.channels, self._log, context.managers))

    @property
    def has_ended(self) -> bool:
        return self._log.has_ended

    @property
    def _is_out(self) -> bool:
        """Whether the other machines go on without us; our log may still answer those that fetch from it."""
        return self._log.standing in (Standing.EXCLUDED, Standing.ENDED)

    # Calls by the host.

    def on_start(self, now_ns: int) -> list[Effect]:
        self._context.now_ns = now_ns
        self._from_log(self._log.on_start(now_ns))
        return self._settle()

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        if not self.can_submit:
            raise LocalError(f"machine {self._me} takes no request now: ask can_submit before")
        self._context.now_ns = now_ns
        self._context.managers.submit(submission)
        return self._settle()

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        self._context.now_ns = now_ns
        if source >= SPACE_BASE:
            if not self._is_out:
                self._context.managers.said(source - SPACE_BASE, message)
        elif message.kind in LOG_KINDS:
            if source not in self._near.members:
                raise RemoteError(DropReason.UNEXPECTED, f"machine {source} has another log")
            self._from_log(self._log.on_message(message, source, now_ns))
        elif not self._is_out:
            self._on_objects(message, source)
        return self._settle()

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        self._context.now_ns = now_ns
        if timer.layer < self._log.depth:
            self._from_log(self._log.on_timer(timer, now_ns))
        elif not self._is_out:
            mine = timer._replace(layer=0)
            self._context.timers.fired(mine)
            self._on_own_timer(mine)
        return self._settle()

    @property
    def _now_ns(self) -> int:
        return self._context.now_ns

    def _on_objects(self, message: Message, source: int) -> None:
        """Handle a datagram of another machine's manager. RemoteError before anything has changed."""
        if message.origin != source or source not in self._us.peers:
            raise RemoteError(DropReason.UNEXPECTED, f"a message of {message.origin} from {source}")
        if message.kind in (Kind.OBJECTS_DIRECT, Kind.OBJECTS_RECEIVED):
            self._context.channels.receive(message, source, self._now_ns, self._context.out)
        elif message.kind is Kind.OBJECTS_VOTE and source in self._near.members:
            self._votes.receive(message)
        elif message.kind in CROSSINGS:
            self._on_crossing(message, source)
        else:
            raise RemoteError(DropReason.UNEXPECTED, f"{message.kind.name} is nothing that this machine says")

    def _on_own_timer(self, timer: Timer) -> None:
        if timer.name in DIRECT_TIMERS:
            self._context.channels.on_timer(timer, self._now_ns, self._context.out)
        elif timer == DUTIES:
            self._give_up_duties()
        elif timer == QUESTIONS:
            self._requests.on_timer()
        elif timer not in (VOTES, AGENDA):
            raise LocalError(f"{timer} is no timer of this core")

    def _settle(self) -> list[Effect]:
        """Do all work that follows; then update the duties. Returns the effects for the host."""
        context = self._context
        while not self._is_out:
            context.later(self._context.channels.drain(), self._on_event)
            if not context.is_worked_off:
                context.work()
                continue
            self._steps.end_turn()
            self._requests.start()
            self._update_duties()
            self._push_clock()
            # The sequencer's own entries are applied at once: their steps may bring new work.
            is_fed = self._feed_log()
            # A message sent just now may have failed at once, without an effect.
            context.later(self._context.channels.drain(), self._on_event)
            if context.is_worked_off and not is_fed:
                break
        if self._is_out:
            self._enter_ended()
        return context.take_out()

    def _enter_ended(self) -> None:
        if self._phase is not Phase.ENDED:
            self._phase = Phase.ENDED
            self._context.drop_work()
            self._context.out.extend(self._context.timers.disarm_all())

    def _on_passed_on(self, space: int, message: Message) -> None:
        """Handle a message of a local manager: a call that it passes on, or a vote."""
        if message.kind is Kind.OBJECTS_VOTE:
            self._preparations.take(space, Vote.of(message))
            return
        entry = entry_of(message)
        assert isinstance(entry, Called), "local managers pass calls on, and votes"
        self._requests.add(entry.call)

    # Messages of other machines' managers.

    def _on_event(self, event: Event) -> None:
        match event:
            case Arrival(source=source, direct=direct):
                try:
                    self._on_arrival(source, direct)
                except RemoteError as error:
                    self._context.out.append(Report(code=error.reason, member=source.member, value=len(direct.payload)))
            case Failed():
                self._requests.directs.failed(event)
            case Acknowledged(target=target):
                self._requests.directs.acknowledged(target.member)

    def _on_arrival(self, source: Incarnation, direct: Direct) -> None:
        """Handle a direct message. RemoteError before anything has changed."""
        message = decode_message(direct.payload)
        if (message.kind, message.origin, message.incarnation) != (direct.inner, *source):
            raise RemoteError(DropReason.MALFORMED, "the inner message does not agree with the outer one")
        self._check_timestamp(max(direct.after, direct.heard))
        if message.kind is Kind.OBJECTS_CALL:
            entry = entry_of(message)
            if not isinstance(entry, Called) or entry.call.id[:2] != source:
                raise RemoteError(DropReason.MALFORMED, "a call of somebody else")
            self._check_timestamp(entry.call.heard)
            self._on_call(source, entry.call, direct)
        elif message.kind is Kind.OBJECTS_NEWS:
            self._check_timestamp(decode_news(message.payload).timestamp)
            self._requests.on_news(message)
        else:
            raise RemoteError(DropReason.UNEXPECTED, f"{message.kind.name} is nothing that machines send each other")
        self._context.heard = max(self._context.heard, direct.heard)

    def _check_timestamp(self, timestamp: int) -> None:
        """RemoteError for a timestamp that no machine can have heard of."""
        if timestamp > max(self._context.heard, self.log_state.clock) + MOST_AHEAD:
            raise RemoteError(DropReason.MALFORMED, f"a timestamp of {timestamp}")

    def _on_call(self, source: Incarnation, call: Call, direct: Direct) -> None:
        addressing = call.addressing
        is_for_objects = addressing.operation is Operation.CALL and addressing.group is None and not call.is_in_order
        if is_for_objects:
            objects = self._context.mine(addressing.objects)
            self._steps.add(Item(call=call, objects=objects, timestamp=direct.after, source=source))
        elif self._phase is Phase.RUNNING:
            self._service.serve(call)

    def _has_everything(self, timestamp: int) -> bool:
        if not timestamp:
            return True
        return self._phase is Phase.RUNNING and self.log_state.has_everything(self._me, timestamp)

    # The log and the log state.

    def _feed_log(self) -> bool:
        """Submit queued entries to the log. Returns whether it has taken any."""
        is_fed = False
        while self._context.log_queue and self._log.can_submit:
            self._from_log(self._log.on_submit(self._context.log_queue.popleft(), self._now_ns))
            is_fed = True
        return is_fed

    def _from_log(self, effects: Iterable[Effect]) -> None:
        """Pass the log's effects on, without its views: views of a sub-network are no views of the whole group."""
        for effect in effects:
            if isinstance(effect, Multicast):
                self._context.out.append(Multicast(message=effect.message, is_near=True))
            elif not isinstance(effect, Installed | Minority | StateTaken):
                self._context.out.append(effect)

    def _new_log(self, us: Membership, _: Random, memory: bytes) -> ViewCore:
        """The log's core of a view. RemoteError: no view can have left this memory."""
        if self._phase is Phase.JOINING and memory:
            self.log_state = LogState.restore(memory, place=self._context.place, partitions=self._us.partitions)
        return LogCore(
            membership=us,
            parameters=self._context.parameters.amoeba,
            begin=self._begin_view,
            apply=self._apply,
            snapshot=lambda: self.log_state.snapshot(),
        )

    def _begin_view(self) -> None:
        """Tell the log state the machines of ours that have ended or joined since the view before."""
        view = self._log.view
        assert view is not None, "a log is that of a view"
        if self._phase is Phase.JOINING:
            self._phase = Phase.RUNNING
            if self._log.reason is ViewReason.FIRST:
                self.log_state = self._new_log_state(view.incarnation_of)
        self.log_state.begin_view(view.number)
        for incarnation in sorted(self.log_state.incarnations.items()):
            if incarnation not in view:
                self._context.channels.end(Incarnation(*incarnation), self._context.out)
                self._votes.ended(Incarnation(*incarnation))
                self._ended = (incarnation[0], self._now_ns)
                self._steps.carry_out(self.log_state.ended(*incarnation))
        for incarnation in sorted(view.incarnations):
            if incarnation.member not in self.log_state.incarnations:
                self._steps.carry_out(self.log_state.joined(*incarnation))

    def _apply(self, delivery: Deliver) -> bool:
        """Apply a delivery of the log, and carry the steps out at once: the log state does not keep them. A message
        that does not decode, which is the same at all machines, is reported and left out.

        True: other machines must have the delivery now, because their objects or callers have a step to take, one of
        them waits for the clock (CLOCK_ADVANCE), or the log state is idle, so that no later entry needs to come."""
        try:
            message = decode_message(delivery.payload)
            entry = entry_of(message)
        except RemoteError as error:
            self._context.out.append(Report(code=error.reason, member=delivery.origin, value=len(delivery.payload)))
            self._steps.carry_out([])
            return True
        if isinstance(entry, Crossing):
            self._crossing.discard((message.kind, entry.link.place, message.seq))
        elif isinstance(entry, Proposals):
            self._crossing -= {(Kind.OBJECTS_PROPOSAL, one.link.place, one.number) for one in entry.parts}
        elif isinstance(entry, Voted):
            self._votes.close(entry.id)
        steps = self.log_state.apply(entry)
        self._steps.carry_out(steps)
        is_theirs = isinstance(entry, ClockAdvance) or not all(isinstance(step, SendCrossing) for step in steps)
        return is_theirs or self.log_state.is_idle

    # Between sub-networks.

    @property
    def _storer(self) -> int | None:
        """The machine that stores the entries of resilience 1 (LogCore)."""
        view = self._log.view
        return view.members[1] if view is not None and len(view.members) > 1 else None

    @property
    def _is_master(self) -> bool:
        return self._phase is Phase.RUNNING and self.sequencer == self._me

    def _on_crossing(self, message: Message, source: int) -> None:
        """Handle a message of another sub-network's master: news go into the log. RemoteError before anything has
        changed."""
        entry = entry_of(message)
        assert isinstance(entry, Crossing), "these are what crosses"
        if self._context.place_of[source] != entry.link.place or entry.link.place == self._context.place:
            raise RemoteError(DropReason.MALFORMED, f"machine {source} speaks for sub-network {entry.link.place}")
        self._check_timestamp(timestamp_of(entry))
        if self._phase is not Phase.RUNNING:
            return
        reply = self.log_state.reply(entry)
        if reply is not None:
            self._context.out.append(Send(target=source, message=message_of(reply, self._us)))
        if isinstance(entry, ProposalRequest):
            self._duties.heard(source)  # only masters ask
        key = (message.kind, entry.link.place, message.seq)
        if key not in self._crossing:
            numbers = (number for kind, place, number in self._crossing if (kind, place) == key[:2])
            for new in self.log_state.news(entry, under_way=max(numbers, default=0)):
                if isinstance(new, Proposed):
                    self._gather(new, is_repeated=bool(message.flags & Flag.RETRANSMISSION))
                    continue
                if new is entry:
                    self._crossing.add(key)
                self._context.append(new)

    def _gather(self, entry: Proposed, *, is_repeated: bool) -> None:
        """Log a proposal. Unless it is repeated or a no, it waits for those of the call's other places, to be one entry
        with them."""
        awaited = self.log_state.awaited
        self._gathered = {name: parts for name, parts in self._gathered.items() if awaited(name)}
        parts = self._gathered.setdefault(entry.id, {})
        parts[entry.link.place] = entry
        if entry.is_yes and not is_repeated and not awaited(entry.id) <= parts.keys():
            return
        del self._gathered[entry.id]
        found = tuple(one for _, one in sorted(parts.items()))
        self._crossing |= {(Kind.OBJECTS_PROPOSAL, one.link.place, one.number) for one in found}
        self._context.append(found[0] if len(found) == 1 else Proposals(parts=found))

    def _update_duties(self) -> None:
        if self._phase is not Phase.RUNNING:
            return
        is_master, storer = self._is_master, self._storer
        duties = self.log_state.duties() if is_master else ()
        is_new = is_master != self._was_master
        if is_new:
            self._was_master = is_master
            if is_master:
                self._take_over()
        has_storer = storer is not None and not is_new
        self._duties.owe(duties, self._now_ns, self._context.out, has_storer=has_storer)
        self._duties.see(self.log_state.duties() if storer == self._me else None, self._context.out)
        for vote in self._votes.advance(self.sequencer, self._now_ns, self._context.out):
            self._context.append(vote)

    def _push_clock(self) -> None:
        """Push the clock of our log state if a direct message waits for a timestamp that our sub-network may not reach
        for long."""
        awaited = self._steps.awaited if self._phase is Phase.RUNNING else 0
        if awaited > max(self._pushed, self.log_state.clock):
            self._pushed = awaited
            self._context.append(ClockAdvance(timestamp=awaited))

    def _take_over(self) -> None:
        if self._ended is not None:
            member, ended_ns = self._ended
            self._context.out.append(Report(code=CallReport.TAKEN_OVER, member=member, value=self._now_ns - ended_ns))
        for prepare in self.log_state.open_votes():
            self._steps.open_vote(prepare)

    def _give_up_duties(self) -> None:
        for duty in self._duties.on_timer(self._now_ns, self._context.out):
            self._context.append(duty.given_up(self._context.place))


class LogCore(AmoebaCore):
    """The log of a sub-network in one view: Amoeba's broadcast. The machine applies each message at its delivery, so
    the snapshot at the end of a view is the state after the log, and the group's state: members that join take it
    before they deliver anything. `begin` is called at the start of the view, `apply` with each delivery; it returns
    whether other members must have it now.

    The first-ranked member besides the sequencer, the storer, delivers a message of resilience 1 as soon as it has
    stored it. It tells all (ACCEPT without words) if they must have it now, else only the sequencer (STORED). Without
    multicast it tells the sequencer alone: ACCEPT would take more datagrams than it saves. The sequencer delivers a
    message when it is stored, and tells the others at once only if they must have it now and the storer has not told
    them. Else its next submission tells them: everything that its sender had delivered is accepted."""

    def __init__(
        self,
        *,
        membership: Membership,
        parameters: AmoebaParameters,
        begin: Callable[[], None],
        apply: Callable[[Deliver], bool],
        snapshot: Callable[[], bytes],
    ) -> None:
        super().__init__(membership=membership, parameters=parameters)
        self._begin = begin
        self._apply = apply
        self._snapshot = snapshot
        self._told = 0
        """At the sequencer: the others know that all up to this number is accepted."""

    def on_start(self, now_ns: int) -> list[Effect]:
        self._begin()
        return super().on_start(now_ns)

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        self._told = max(self._told, self._announced)
        return self._hand_over(super().on_submit(submission, now_ns))

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        return self._hand_over(super().on_message(message, source, now_ns))

    def close(self, rest: Mapping[int, Sequence[Message]], survivors: frozenset[int], now_ns: int) -> Closing:
        closing = super().close(rest, survivors, now_ns)
        self._told = self._announced  # all survivors deliver the cut
        effects = self._hand_over(closing.effects)
        return replace(closing, effects=tuple(effects), memory=self._snapshot())

    def _refusal(self, message: Message) -> DropReason | None:
        is_accept = message.kind is Kind.AMOEBA_ACCEPT and not message.words
        if is_accept and self._others[:1] == [message.origin] and message.seq <= MAX_NUMBER:
            return None
        return super()._refusal(message)

    def _on_numbered(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        super()._on_numbered(message, now_ns, out)
        if self._is_sequencer and message.origin != self._me:
            self._told = max(self._told, message.seq)
            self._on_stored(message, now_ns, out)

    def _accept(self, out: list[Effect]) -> None:
        self._accepted = self._announced
        self._deliver(out)

    def _awaited(self, index: int) -> list[int]:
        return [member for member in super()._awaited(index) if member != self._me]

    def _hand_over(self, effects: Iterable[Effect]) -> list[Effect]:
        """The effects without the deliveries, which the machine applies at once."""
        others: list[Effect] = []
        is_urgent = False
        for effect in effects:
            if isinstance(effect, Deliver):
                is_urgent |= self._apply(effect)
            else:
                others.append(effect)
        if is_urgent and self._is_sequencer and self._told < self._announced:
            self._told = self._announced
            super()._accept(others)
        elif is_urgent and self._us.has_multicast and self._delivered == self._complete:
            others = [self._for_all(effect) for effect in others]
        return others

    def _for_all(self, effect: Effect) -> Effect:
        """STORED for the sequencer becomes ACCEPT for all; the storer has delivered what it has stored."""
        if not isinstance(effect, Send) or effect.message.kind is not Kind.AMOEBA_STORED:
            return effect
        return Multicast(message=replace(effect.message, kind=Kind.AMOEBA_ACCEPT))
