"""The machine's manager (SMM) of object groups, with everything that a machine needs: protocol `objects`.

Paper 004 (DOOCE), sections 4 and 5: a hierarchy of multicast managers, one for each address space (LMM), machine (SMM)
and sub-network (MMM). A message climbs to the lowest manager that covers all of its objects, gets its place there, and
goes down; managers deliver strictly one after another; inside a sub-network the MMM uses Amoeba's reliable broadcast;
the MMMs order among themselves by a distributed total order; atomic calls run two-phase commit down the hierarchy.

    objects                 Submission (node/objects/addresses.py)             Deliver: calls and news
    LMM  local.py           what its own space covers it delivers itself
    SMM  here               what the machine covers; direct messages; nothing overtakes
    log  log.py             one order of all that the sub-network is asked: Amoeba over the group layer, near multicasts
    Book book.py            what the log means: proposals, votes, final timestamps, groups, names
    MMM  between.py         the sequencer of the log: says what the Book owes other sub-networks (votes.py, too)

The ways of a request. All objects in one space: its LMM. All on this machine: here, past everybody else. Others: into
the log of the own sub-network (a list) or of the group's (a group; machines elsewhere ask one there, questions.py). In
the Book each covered sub-network proposes a timestamp, the greatest is final, and every machine hands its objects their
calls in this order (Skeen's algorithm among sub-networks, each of them a replicated state machine; the proof is in
node/objects/book.py). Direct messages (calls of one object, replies, calls without indivisibility) go over channels
(direct.py); each carries the timestamp after which its target may look at it (agenda.py).

The parts, all of which share context.py. In this module: the log, the phases, the duties.

    requests.py     what our objects ask: the ways of it, holds.py (nothing overtakes), directs.py, questions.py
    service.py      what callers elsewhere ask of our Book, and are told
    preparing.py    two-phase commit: the votes of our spaces; votes.py: those of the machines
    handing.py      what comes to our objects, after agenda.py
    steps.py        what the Book says, carried out
    log.py          a view of the log, which applies each delivery at once
    managers.py     what goes to the LMMs, and comes from them

Why orders of different heights agree. A machine hands its spaces one thing after another, and whatever it decides
itself it puts between two of these at one place; so do LMMs. Wide calls have one order everywhere. The union of the
sequences of all objects is therefore acyclic: every narrower call has its place in the sequence of its one manager.

No overtaking, and causes. holds.py says what waits for what at the sender. Everything a machine says carries the
highest timestamp that it knows of (`heard`): what it asks for afterwards gets a later one, and a direct message waits
at its target until all up to there is handed out; where the target's sub-network is behind, its clock is pushed
(HEARD).

Dead managers (beyond the paper, which names it as future work). Everything that the MMM does follows from the Book, and
the Book from the log: whoever is the sequencer next carries on. Entries that others are told about, and all that
concerns groups, are resilient: delivered when another machine has stored them, so that one crash makes nobody forget
what a sub-network has said, or what was acknowledged (entering.py).
The group layer of the sub-network agrees on its machines; a machine that joins takes the Book as the group's state. A
minority of a sub-network stands still: its log does. When a quorum has died, the machines that have the Book go on as
soon as all machines of the sub-network are there again; if none has it, they begin a new one, in a new epoch, and
others drop what was between them (R13 of docs/protocols/group.md). What dead machines did in a view of their own is
forgotten: resilience 1 stands for one machine.

Liars. What comes from outside is checked before anything changes; crossing messages only from machines of the
sub-network that they speak for, votes only from our own. Nothing is signed: a machine can speak for its sub-network.

Invariants. The Book has exactly what the log has delivered. Steps are carried out in its order, before anything else
comes from below. At rest there is no timer, no duty, no request. Ended (the others have ended us): nothing is done.
Not here: state of joining objects (the application's, at the JOIN's place in the order), time-outs (the caller's).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random

from node.core import Core, Membership, Submission, ViewCore
from node.effects import Deliver, Effect, Installed, Minority, Multicast, Report, Send, StateTaken, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.group.core import GROUP_KINDS, GroupCore
from node.group.core import Phase as Standing
from node.objects.addresses import Operation
from node.objects.agenda import Item
from node.objects.answers import QUESTIONS
from node.objects.between import BETWEEN, Between
from node.objects.book import Book, epoch_of
from node.objects.context import Context
from node.objects.direct import TIMERS as DIRECT_TIMERS
from node.objects.direct import Acknowledged, Arrival, Direct, DirectChannels, Event, Failed, Incarnation
from node.objects.entries import (
    MOST_AHEAD,
    Asked,
    Call,
    Called,
    Entry,
    Heard,
    Outcome,
    Proposed,
    Settled,
    Step,
    Voted,
    entry_of,
    message_of,
    timestamp_of,
)
from node.objects.local import SPACE_BASE, Vote
from node.objects.log import Entering, LogCore
from node.objects.managers import LocalManagers
from node.objects.news import decode_news
from node.objects.parameters import ObjectsParameters
from node.objects.preparing import Preparations
from node.objects.requests import Requests
from node.objects.service import Service
from node.objects.steps import AGENDA, Handing, Steps
from node.objects.votes import VOTES, Votes
from node.reliable.codec import KINDS as STREAM_KINDS
from node.trace import CallReport, ViewReason
from node.wire import Kind, Message, decode_message

LOG_KINDS = GROUP_KINDS | STREAM_KINDS
"""What the log of a sub-network says; its own kinds come inside messages of the streams."""
CROSSINGS = frozenset({Kind.OBJECTS_ASK, Kind.OBJECTS_PROPOSAL, Kind.OBJECTS_OUTCOME, Kind.OBJECTS_SETTLED})


class Phase(enum.StrEnum):
    """JOINING until a later incarnation has the Book; ENDED when the others of the sub-network have ended us."""

    JOINING = "joining"
    RUNNING = "running"
    ENDED = "ended"


class MachineCore(Core):
    """See the module's text. `is_alone`: its address spaces are processes of their own. What is for them goes out as
    Send(target=SPACE_BASE + space), and what they say comes in from there."""

    def __init__(
        self, *, membership: Membership, parameters: ObjectsParameters, rng: Random, is_alone: bool = False
    ) -> None:
        self._us = membership if membership.partitions else replace(membership, partitions=(membership.members,))
        self._me = membership.member
        self._incarnation = Incarnation(membership.member, membership.incarnation)
        self._parameters = parameters
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
        self._context = Context(membership=self._us, parameters=parameters, layer=self._log.depth)
        self._place, self._place_of = self._context.place, self._context.place_of
        self._make_parts(is_alone=is_alone)
        self._phase = Phase.JOINING
        self._book = self._new_book({})
        """Of nobody, until we are in a view and have the state."""

        self._crossing: set[tuple[int, int, int]] = set()
        """What other sub-networks said that is on its way into the log: kind, place, number."""
        self._pushed = 0
        """The timestamp that we have had the clock of our Book pushed to."""
        self._was_master = False
        self._ended: tuple[int, int] | None = None
        """The last machine here of which we have heard that it ended, and when."""

    def _make_parts(self, *, is_alone: bool) -> None:
        parameters, context = self._parameters, self._context
        first_ns, most_ns, patience_ns = parameters.retry_ns, parameters.retry_most_ns, parameters.patience_ns
        self._channels = context.channels
        self._managers = LocalManagers(
            context=context, count=parameters.spaces, is_alone=is_alone, take=self._on_passed_on
        )
        self._between = Between(
            membership=self._us, first_ns=first_ns, most_ns=most_ns, patience_ns=patience_ns, timers=context.timers
        )
        self._votes = Votes(
            membership=self._us,
            first_ns=first_ns,
            most_ns=most_ns,
            vote_ns=parameters.vote_ns,
            timers=context.timers,
        )
        self._entering = Entering(context=context, votes=self._votes)
        self._enter = self._entering.enter
        self._preparations = Preparations(context=context, managers=self._managers, votes=self._votes)
        self._service = Service(context=context, book=lambda: self._book, enter=self._enter)
        self._requests = Requests(
            context=context,
            parameters=parameters,
            managers=self._managers,
            preparations=self._preparations,
            look=self._service.look,
            machine_of=self._between.machine_of,
            enter=self._enter,
        )
        self._handing = Handing(
            context=context,
            managers=self._managers,
            # A call in doubt that they wait for may be given up after `patience_ns`: not before that.
            patience_ns=2 * patience_ns,
            is_complete=self._has_everything,
            delivered=self._requests.delivered,
        )
        self._steps = Steps(
            context=context,
            managers=self._managers,
            handing=self._handing,
            votes=self._votes,
            preparations=self._preparations,
            requests=self._requests,
            service=self._service,
            cross=self._cross,
            is_master=lambda: self._is_master,
        )

    def _new_book(self, incarnations: Mapping[int, int]) -> Book:
        """Of machines that begin the log together."""
        epoch = epoch_of(self._near.members, incarnations.items()) if incarnations else 1
        return Book(place=self._place, partitions=self._us.partitions, epoch=epoch, incarnations=incarnations)

    # What the host asks.

    @property
    def depth(self) -> int:
        return self._log.depth + 1

    @property
    def phase(self) -> str:
        return f"{self._log.phase}/{self._phase}"

    @property
    def book(self) -> Book:
        return self._book

    @property
    def sequencer(self) -> int:
        """The machine that has the duties of the sub-network (MMM): the first-ranked member of the view."""
        return self._log.view.members[0] if self._log.view is not None else self._near.members[0]

    @property
    def buffered(self) -> int:
        if self._is_out:
            return 0
        parts = (len(self._entering), len(self._handing), self._channels.buffered, self._book.buffered)
        return self._log.buffered + sum(parts) + self._requests.waiting + self._managers.buffered

    @property
    def can_submit(self) -> bool:
        if self._phase is not Phase.RUNNING or self._is_out:
            return False
        under_way = self._requests.under_way + self._managers.buffered
        return under_way < self._parameters.outstanding and self._managers.can_submit

    @property
    def is_idle(self) -> bool:
        if self._is_out:
            return True
        if self._phase is Phase.JOINING or len(self._entering) or self._requests.under_way or self._crossing:
            return False
        if len(self._preparations) or len(self._handing) or len(self._between) or len(self._votes):
            return False
        parts: tuple[Book | DirectChannels | Core | LocalManagers, ...] = (
            self._book,
            self._channels,
            self._log,
            self._managers,
        )
        return all(part.is_idle for part in parts)

    @property
    def has_ended(self) -> bool:
        return self._log.has_ended

    @property
    def _is_out(self) -> bool:
        """The others go on without us; our log may still be there for those that fetch from it."""
        return self._log.standing in (Standing.EXCLUDED, Standing.ENDED)

    # What the host calls.

    def on_start(self, now_ns: int) -> list[Effect]:
        self._context.now_ns = now_ns
        self._from_log(self._log.on_start(now_ns))
        return self._settle()

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        if not self.can_submit:
            raise LocalError(f"machine {self._me} takes no request now: ask can_submit before")
        self._context.now_ns = now_ns
        self._managers.submit(submission)
        return self._settle()

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        self._context.now_ns = now_ns
        if source >= SPACE_BASE:
            if not self._is_out:
                self._managers.said(source - SPACE_BASE, message)
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

    @property
    def _own(self) -> list[Effect]:
        return self._context.own

    def _on_objects(self, message: Message, source: int) -> None:
        """A datagram of another machine's manager. RemoteError before anything has changed."""
        if message.origin != source or source not in self._us.peers:
            raise RemoteError(DropReason.UNEXPECTED, f"a message of {message.origin} from {source}")
        if message.kind in (Kind.OBJECTS_DIRECT, Kind.OBJECTS_RECEIVED):
            self._channels.receive(message, source, self._now_ns, self._own)
        elif message.kind is Kind.OBJECTS_VOTE and source in self._near.members:
            self._votes.receive(message)
        elif message.kind in CROSSINGS:
            self._on_crossing(message, source)
        else:
            raise RemoteError(DropReason.UNEXPECTED, f"{message.kind.name} is nothing that this machine says")
        self._between.heard(source)

    def _on_own_timer(self, timer: Timer) -> None:
        if timer.name in DIRECT_TIMERS:
            self._channels.on_timer(timer, self._now_ns, self._own)
        elif timer == BETWEEN:
            self._give_up_duties()
        elif timer == QUESTIONS:
            self._requests.on_timer()
        elif timer not in (VOTES, AGENDA):
            raise LocalError(f"{timer} is no timer of this core")

    def _settle(self) -> list[Effect]:
        """Work off everything that follows; then see to what is owed. Returns what the host is to do."""
        context = self._context
        while not self._is_out:
            context.later(self._channels.drain(), self._on_event)
            if not context.is_worked_off:
                context.work()
                continue
            self._handing.see_to()
            self._requests.start()
            self._see_to_duties()
            self._push_clock()
            # The sequencer's own entries are applied at once: what they bring about is to be seen to.
            is_fed = self._feed_log()
            # What was started just now may have failed at once, without an effect.
            context.later(self._channels.drain(), self._on_event)
            if context.is_worked_off and not is_fed:
                break
        if self._is_out:
            self._enter_ended()
        return context.take_out()

    def _enter_ended(self) -> None:
        if self._phase is not Phase.ENDED:
            self._phase = Phase.ENDED
            self._context.drop_work()
            self._own.extend(self._context.timers.disarm_all())

    def _on_passed_on(self, space: int, message: Message) -> None:
        """What a local manager says: calls that it passes on, and votes."""
        if message.kind is Kind.OBJECTS_VOTE:
            self._preparations.take(space, Vote.of(message))
            return
        entry = entry_of(message)
        assert isinstance(entry, Called), "local managers pass calls on, and votes"
        self._requests.add(entry.call)

    # What other machines' managers say to ours.

    def _on_event(self, event: Event) -> None:
        match event:
            case Arrival(source=source, direct=direct):
                try:
                    self._on_arrival(source, direct)
                except RemoteError as error:
                    self._own.append(Report(code=error.reason, member=source.member, value=len(direct.payload)))
            case Failed():
                self._requests.directs.failed(event)
            case Acknowledged(target=target):
                self._requests.directs.acknowledged(target.member)

    def _on_arrival(self, source: Incarnation, direct: Direct) -> None:
        """RemoteError before anything has changed."""
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
        """RemoteError for one that nobody can have heard of."""
        if timestamp > max(self._context.heard, self._book.clock) + MOST_AHEAD:
            raise RemoteError(DropReason.MALFORMED, f"a timestamp of {timestamp}")

    def _on_call(self, source: Incarnation, call: Call, direct: Direct) -> None:
        addressing = call.addressing
        is_for_objects = addressing.operation is Operation.CALL and addressing.group is None and not call.is_in_order
        if is_for_objects:
            objects = self._context.mine(addressing.objects)
            self._handing.add(Item(call=call, objects=objects, timestamp=direct.after, source=source))
        elif self._phase is Phase.RUNNING:
            self._service.serve(call)

    def _has_everything(self, timestamp: int) -> bool:
        if not timestamp:
            return True
        return self._phase is Phase.RUNNING and self._book.has_everything(self._me, timestamp)

    # The log and the Book.

    def _feed_log(self) -> bool:
        """Whether it has taken anything."""
        is_fed = False
        while len(self._entering) and self._log.can_submit:
            self._from_log(self._log.on_submit(self._entering.pop(), self._now_ns))
            is_fed = True
        return is_fed

    def _from_log(self, effects: Iterable[Effect]) -> None:
        """Views of a sub-network are no views of the whole group: the host does not hear of them."""
        self._context.flush()
        for effect in effects:
            if isinstance(effect, Multicast):
                self._context.out.append(Multicast(message=effect.message, is_near=True))
            elif not isinstance(effect, Installed | Minority | StateTaken):
                self._context.out.append(effect)

    def _new_log(self, us: Membership, _: Random, memory: bytes) -> ViewCore:
        """RemoteError: no view can have left this memory."""
        if self._phase is Phase.JOINING and memory:
            self._book = Book.restore(memory, place=self._place, partitions=self._us.partitions)
        return LogCore(
            membership=us,
            parameters=self._parameters.amoeba,
            begin=self._begin_view,
            apply=self._apply,
            snapshot=lambda: self._book.snapshot(),
        )

    def _begin_view(self) -> None:
        """The Book hears which machines of ours have ended and which have joined since the view before."""
        view = self._log.view
        assert view is not None, "a log is that of a view"
        if self._phase is Phase.JOINING:
            self._phase = Phase.RUNNING
            if self._log.reason is ViewReason.FIRST:
                self._book = self._new_book(view.incarnation_of)
        for incarnation in sorted(self._book.incarnations.items()):
            if incarnation not in view:
                self._channels.end(Incarnation(*incarnation), self._own)
                self._votes.ended(Incarnation(*incarnation))
                self._ended = (incarnation[0], self._now_ns)
                self._carry_out(self._book.ended(*incarnation))
        for incarnation in sorted(view.incarnations):
            if incarnation.member not in self._book.incarnations:
                self._carry_out(self._book.joined(*incarnation))

    def _apply(self, delivery: Deliver) -> None:
        self._carry_out(self._apply_entry(delivery))

    def _carry_out(self, steps: Iterable[Step]) -> None:
        """At once: what the Book has given away, it has no more, and nothing else may come between."""
        for step in steps:
            self._steps.carry_out(step)
        self._handing.take()

    def _apply_entry(self, delivery: Deliver) -> list[Step]:
        """What does not decode is the same nonsense at all machines: reported and left out."""
        try:
            message = decode_message(delivery.payload)
            entry = entry_of(message)
        except RemoteError as error:
            self._own.append(Report(code=error.reason, member=delivery.origin, value=len(delivery.payload)))
            return []
        if isinstance(entry, Asked | Proposed | Outcome | Settled):
            self._crossing.discard((message.kind, entry.road.place, message.seq))
        elif isinstance(entry, Voted):
            self._votes.close(entry.id)
        return self._book.apply(entry)

    # Between sub-networks.

    @property
    def _is_master(self) -> bool:
        return self._phase is Phase.RUNNING and self.sequencer == self._me

    def _cross(self, place: int, entry: Entry) -> None:
        """To a machine of the sub-network at `place`."""
        self._own.append(Send(target=self._between.machine_of(place), message=message_of(entry, self._us)))

    def _on_crossing(self, message: Message, source: int) -> None:
        """Another sub-network's master says something: what is news goes into the log. RemoteError as ever."""
        entry = entry_of(message)
        assert isinstance(entry, Asked | Proposed | Outcome | Settled), "these are what crosses"
        if self._place_of[source] != entry.road.place or entry.road.place == self._place:
            raise RemoteError(DropReason.MALFORMED, f"machine {source} speaks for sub-network {entry.road.place}")
        self._check_timestamp(timestamp_of(entry))
        if self._phase is not Phase.RUNNING:
            return
        reply = self._book.reply(entry)
        if reply is not None:
            self._own.append(Send(target=source, message=message_of(reply, self._us)))
        key = (message.kind, entry.road.place, message.seq)
        if key not in self._crossing:
            for new in self._book.news(entry):
                if new is entry:
                    self._crossing.add(key)
                self._enter(new)

    def _see_to_duties(self) -> None:
        if self._phase is not Phase.RUNNING:
            return
        is_master = self._is_master
        duties = self._book.duties() if is_master else ()
        if is_master != self._was_master:
            self._was_master = is_master
            if is_master:
                self._take_over()
        self._between.owe(duties, self._now_ns, self._own)
        for vote in self._votes.see_to(self.sequencer, self._now_ns, self._own):
            self._enter(vote)

    def _push_clock(self) -> None:
        """What waits for a timestamp that our sub-network may not give for long must not wait so long."""
        awaited = self._handing.awaited if self._phase is Phase.RUNNING else 0
        if awaited > max(self._pushed, self._book.clock):
            self._pushed = awaited
            self._enter(Heard(timestamp=awaited))

    def _take_over(self) -> None:
        if self._ended is not None:
            member, ended_ns = self._ended
            self._own.append(Report(code=CallReport.TAKEN_OVER, member=member, value=self._now_ns - ended_ns))
        for prepare in self._book.open_votes():
            incarnations = {Incarnation(*one[:2]) for one in prepare.objects}
            self._votes.open(
                prepare.call.id, incarnations, self._now_ns, is_ours=self._context.stays_here(prepare.call)
            )

    def _give_up_duties(self) -> None:
        for duty in self._between.on_timer(self._now_ns, self._own):
            self._enter(duty.given_up(self._place))
