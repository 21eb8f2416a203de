"""The machine's manager (SMM) of object groups, with everything that a machine needs: protocol `objects`.

Paper 004 (DOOCE), sections 4 and 5: a hierarchy of multicast managers, one for each address space (LMM), machine (SMM)
and sub-network (MMM). A message climbs to the lowest manager that covers all of its objects, gets its place there, and
goes down; managers deliver strictly one after another; inside a sub-network the MMM uses Amoeba's reliable broadcast;
the MMMs order among themselves by a distributed total order; atomic calls run two-phase commit down the hierarchy.

    objects                 Submission (node/objects/addresses.py)             Deliver: calls and news
    LMM  local.py           what its own space covers it delivers itself
    SMM  here               what the machine covers; direct messages; nothing overtakes (holds.py)
    log  protocols/amoeba   one order of all that the sub-network is asked, over the reliable layer, near multicasts
    Book book.py            what the log means: proposals, votes, final timestamps, groups, names
    MMM  between.py         the sequencer of the log: says what the Book owes other sub-networks (votes.py, too)

The ways of a request. All objects in one space: its LMM. All on this machine: here, past everybody else. Others: into
the log of the own sub-network (a list) or of the group's (a group; machines elsewhere ask one there, questions.py). In
the Book each covered sub-network proposes a timestamp, the greatest is final, and every machine hands its objects their
calls in this order (Skeen's algorithm among sub-networks, each of them a replicated state machine; the proof is in
node/objects/book.py). Direct messages (calls of one object, replies, calls without indivisibility) go over channels
(direct.py); each carries the timestamp after which its target may look at it (agenda.py).

Why orders of different heights agree. A machine hands its spaces one thing after another, and whatever it decides
itself it puts between two of these at one place; so do LMMs. Wide calls have one order everywhere. The union of the
sequences of all objects is therefore acyclic: every narrower call has its place in the sequence of its one manager.

No overtaking, and causes. holds.py says what waits for what at the sender. Everything a machine says carries the
highest timestamp that it knows of (`heard`): what it asks for afterwards gets a later one. A direct message waits for
the earlier calls of its machine that reach its target, not for those that go elsewhere: a chain of direct messages
through a third machine can be faster than a call that its first sender made before. The paper asks for no more.

Dead managers (beyond the paper, which names it as future work). Everything that the MMM does follows from the Book, and
the Book from the log: whoever is the sequencer next carries on. Entries that others are told about, and all that
concerns groups, are resilient (CAREFUL): delivered when another machine has stored them, so that one crash makes nobody
forget what a sub-network has said, or what was acknowledged. A later life of a machine gets the Book from a neighbour
(transfer.py). A sub-network that was alone or died as a whole begins a new Book with a new epoch, and others drop what
was between them. A minority of a sub-network stands still: its log does.

Liars. What comes from outside is checked before anything changes; crossing messages only from machines of the
sub-network that they speak for, votes only from our own. Nothing is signed: a machine can speak for its sub-network.

Invariants. The Book has exactly the log up to `applied`. Steps are carried out in its order, before anything else
comes from below. At rest there is no timer, no duty, no request. Over (the others have ended us): nothing is done.

Not here: state of objects for joining members (the application's, at the JOIN's place in the order), time-outs of calls
(the caller's), a new Book when several machines of a sub-network all come back and none of them has it, except when one
is alone: they wait for one that has.
"""

from __future__ import annotations

import enum
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from random import Random
from typing import TypeVar

from node.core import Core, Membership, Submission
from node.effects import CancelTimer, Deliver, Effect, Multicast, Report, Send, SetTimer, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.objects.addresses import OBJECTS_IN_SPACE, Operation, Reference
from node.objects.agenda import Agenda, Item
from node.objects.answers import found, joins_of, news_of, no_group, refused, reports_of, resolved, unreachable
from node.objects.between import BETWEEN, Between
from node.objects.book import Book
from node.objects.direct import TIMERS as DIRECT_TIMERS
from node.objects.direct import Acknowledged, Arrival, Direct, DirectChannels, Event, Failed, Life
from node.objects.distant import DistantCore
from node.objects.entries import (
    Answer,
    Asked,
    Call,
    Called,
    CallId,
    Drop,
    Entry,
    Hand,
    Missed,
    Outcome,
    Prepare,
    Proposed,
    Settled,
    Step,
    Tell,
    Verdict,
    Voted,
    entry_of,
    message_of,
)
from node.objects.holds import Hold, Holds, Route
from node.objects.local import (
    MACHINE,
    SPACE_BASE,
    LocalCore,
    Vote,
    drop_message,
    hand_message,
    news_message,
    prepare_message,
)
from node.objects.news import News, NewsKind, decode_news
from node.objects.parameters import ObjectsParameters
from node.objects.questions import QUESTIONS, Questions
from node.objects.transfer import Collection, pieces_of, place_asked, question
from node.objects.votes import VOTES, Votes
from node.protocols.amoeba import AmoebaCore
from node.protocols.reliable import ReliableCore
from node.protocols.timers import Timers
from node.stack import Stack
from node.trace import STAMP_SIZE, CallReport
from node.wire import Kind, Message, decode_message, encode_message

T = TypeVar("T")

AGENDA = Timer("agenda")
STATE = Timer("state")
MOST_REMEMBERED = 4096
"""Calls of other sub-networks that are remembered, for their answers."""
LOG_LAYERS = frozenset({Kind.RELIABLE_DATA >> 4, Kind.AMOEBA_DATA >> 4})
CROSSINGS = frozenset({Kind.OBJECTS_ASK, Kind.OBJECTS_PROPOSAL, Kind.OBJECTS_OUTCOME, Kind.OBJECTS_SETTLED})
ASKED_OF_ANY = frozenset({Operation.MEMBERS, Operation.LOOKUP})
"""What a machine answers from its Book as it is."""
NAMING = frozenset({Operation.BIND, Operation.UNBIND, Operation.LOOKUP})
CAREFUL = (1,)
"""Resilience of entries that others are told about: the crash of one machine must not make the log forget them."""


class Phase(enum.StrEnum):
    """JOINING until a later life has the Book; OVER when the others of the sub-network have ended us."""

    JOINING = "joining"
    RUNNING = "running"
    OVER = "over"


@dataclass(slots=True, kw_only=True)
class _Request:
    """One request of ours. `objects`: of a DIRECT, those on its one machine; `parts`: direct messages of it under
    way."""

    key: int
    call: Call
    route: Route
    home: int = 0
    objects: tuple[Reference, ...] = ()
    parts: int = 0


@dataclass(slots=True)
class _Asking:
    """Spaces of ours that have not voted on a call yet. `request`: of a call for this machine alone, which no log
    decides."""

    missing: set[int]
    since_ns: int
    request: _Request | None = None
    is_yes: bool = True


class MachineCore(Core):
    """See the module's text. `is_alone`: its address spaces are processes of their own. What is for them goes out as
    Send(target=SPACE_BASE + space), and what they say comes in from there."""

    def __init__(
        self, *, membership: Membership, parameters: ObjectsParameters, rng: Random, is_alone: bool = False
    ) -> None:
        self._us = membership if membership.partitions else replace(membership, partitions=(membership.members,))
        self._me = membership.member
        self._life = Life(membership.member, membership.incarnation)
        self._parameters = parameters
        self._place = self._us.partition
        self._place_of = {member: at for at, members in enumerate(self._us.partitions) for member in members}
        self._near = Membership(
            member=self._me,
            members=self._us.partitions[self._place],
            incarnation=membership.incarnation,
            has_multicast=membership.has_multicast,
        )
        lower = ReliableCore(membership=self._near, parameters=parameters.reliable, rng=rng)
        self._amoeba = AmoebaCore(membership=self._near, parameters=parameters.amoeba, tells_news=True)
        self._log = Stack(lower=lower, upper=self._amoeba)
        self._out: list[Effect] = []
        """What the host is to do, in order."""
        self._own: list[Effect] = []
        """Effects of our parts, whose timers do not have our layer yet."""
        self._work: deque[Callable[[], None]] = deque()
        """What is to be done next, in order."""
        self._now_ns = 0
        self._make_parts(is_alone=is_alone)
        is_first = membership.incarnation == 1 or not self._near.peers
        self._phase = Phase.RUNNING if is_first else Phase.JOINING
        self._book = self._new_book()

        self._key = 0
        self._heard = 0
        """The highest timestamp that anything here knows of."""
        self._after: dict[int, int] = {}
        """Per machine: the highest timestamp of a call of ours that it gets."""
        self._requests: dict[int, _Request] = {}
        self._ordered: dict[int, _Request] = {}
        """Those that a log orders, by the number of the call."""
        self._sent: dict[int, tuple[int, _Request]] = {}
        """Direct messages of requests under way, by the channels' number: to whom, and of what."""
        self._entries: deque[Submission] = deque()
        """For the log, while it takes nothing."""
        self._crossing: set[tuple[int, int, int]] = set()
        """What other sub-networks said that is on its way into the log: kind, place, number."""
        self._asking: dict[CallId, _Asking] = {}
        self._asked: OrderedDict[CallId, Call] = OrderedDict()
        """Calls that machines elsewhere have asked us to log."""
        self._was_master = False
        self._ended: tuple[int, int] | None = None
        """The last machine here of which we have heard that it ended, and when."""

        self._applied = 0
        """The place in the log up to which the Book has everything."""
        self._joined_at = 0
        self._kept: list[Deliver] = []
        """What has come out of the log since then, while the Book is not here."""
        self._collection = Collection()
        self._state_turn = 0
        self._state_wanted: dict[Life, int] = {}
        """Joiners that asked us for a later state than we had."""

    def _make_parts(self, *, is_alone: bool) -> None:
        parameters, timers = self._parameters, Timers()
        first_ns, most_ns, patience_ns = parameters.retry_ns, parameters.retry_most_ns, parameters.patience_ns
        self._timers = timers
        self._channels = DirectChannels(
            membership=self._us, parameters=parameters.reliable, patience_ns=patience_ns, timers=timers
        )
        self._between = Between(
            membership=self._us, first_ns=first_ns, most_ns=most_ns, patience_ns=patience_ns, timers=timers
        )
        self._votes = Votes(
            membership=self._us, first_ns=first_ns, most_ns=most_ns, vote_ns=parameters.vote_ns, timers=timers
        )
        self._questions = Questions(
            first_ns=4 * first_ns, most_ns=2 * most_ns, patience_ns=patience_ns, timers=timers, ask=self._ask_place
        )
        self._agenda = Agenda(patience_ns=patience_ns)
        self._holds = Holds(member=self._me, partition=self._place)
        self._spaces: tuple[Core, ...] = tuple(
            DistantCore(space=space) if is_alone else LocalCore(membership=self._us, space=space)
            for space in range(parameters.spaces)
        )

    def _new_book(self) -> Book:
        """Of a log that begins: with all machines in their first lives, or later with one that founds it."""
        book = Book(place=self._place, partitions=self._us.partitions, epoch=self._us.incarnation)
        if self._us.incarnation > 1:
            for member in self._near.peers:
                book.ended(member, 1)
            book.joined(*self._life)
        return book

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
        """The machine that has the duties of the sub-network (MMM), as the delivered log knows it."""
        return self._amoeba.sequencer

    @property
    def held(self) -> int:
        if self.is_over:
            return 0
        parts = (len(self._entries), len(self._agenda), len(self._kept), self._channels.held, self._book.held)
        return self._log.held + sum(parts) + self._holds.waiting + sum(space.held for space in self._spaces)

    @property
    def can_submit(self) -> bool:
        if self._phase is not Phase.RUNNING or self.is_over:
            return False
        under_way = len(self._requests) + len(self._questions) + sum(space.held for space in self._spaces)
        return under_way < self._parameters.outstanding and all(space.can_submit for space in self._spaces)

    @property
    def is_idle(self) -> bool:
        if self.is_over:
            return True
        if self._phase is Phase.JOINING or self._entries or self._requests or self._asking or self._crossing:
            return False
        if len(self._agenda) or len(self._between) or len(self._votes) or len(self._questions):
            return False
        parts: tuple[Book | DirectChannels | Core, ...] = (self._book, self._channels, self._log, *self._spaces)
        return all(part.is_idle for part in parts)

    @property
    def is_over(self) -> bool:
        return self._log.is_over

    # What the host calls.

    def on_start(self, now_ns: int) -> list[Effect]:
        self._now_ns = now_ns
        self._from_log(self._log.on_start(now_ns))
        return self._settle()

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        if not self.can_submit:
            raise LocalError(f"machine {self._me} takes no request now: ask can_submit before")
        space = submission.place // OBJECTS_IN_SPACE
        if not 0 <= space < len(self._spaces):
            raise LocalError(f"object {submission.place} lies in no address space of this machine")
        self._now_ns = now_ns
        self._from_space(space, self._spaces[space].on_submit(submission, now_ns))
        return self._settle()

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        self._now_ns = now_ns
        if source >= SPACE_BASE:
            if not self.is_over:
                self._later((message,), partial(self._on_request, source - SPACE_BASE))
        elif message.kind >> 4 in LOG_LAYERS:
            if source not in self._near.members:
                raise RemoteError(DropReason.UNEXPECTED, f"machine {source} has another log")
            self._from_log(self._log.on_message(message, source, now_ns))
        elif not self.is_over:
            self._on_objects(message, source)
        return self._settle()

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        self._now_ns = now_ns
        if timer.layer < self._log.depth:
            self._from_log(self._log.on_timer(timer, now_ns))
        elif not self.is_over:
            mine = timer._replace(layer=0)
            self._timers.fired(mine)
            self._on_own_timer(mine)
        return self._settle()

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
            for call in self._questions.on_timer(self._now_ns, self._own):
                self._on_unanswered(call)
        elif timer == STATE:
            self._ask_for_state()
        elif timer not in (VOTES, AGENDA):
            raise LocalError(f"{timer} is no timer of this core")

    # The parts, and what goes from one to the other.

    def _settle(self) -> list[Effect]:
        """Work off everything that follows; then see to what is owed. Returns what the host is to do."""
        while not self.is_over:
            self._later(self._channels.drain(), self._on_event)
            if self._work:
                self._work.popleft()()
                continue
            self._take_agenda()
            self._start_requests()
            self._see_to_duties()
            self._feed_log()
            if not self._work and not self._own:
                break
            self._flush()
        if self.is_over:
            self._enter_over()
        self._flush()
        out, self._out = self._out, []
        return out

    def _later(self, items: Iterable[T], act: Callable[[T], None]) -> None:
        self._work.extend(partial(act, item) for item in items)

    def _flush(self) -> None:
        """Effects of our parts leave with their timers in our layer."""
        for effect in self._own:
            match effect:
                case SetTimer(timer=timer, at_ns=at_ns):
                    self._out.append(SetTimer(timer=self._raised(timer), at_ns=at_ns))
                case CancelTimer(timer=timer):
                    self._out.append(CancelTimer(timer=self._raised(timer)))
                case _:
                    self._out.append(effect)
        self._own.clear()

    def _raised(self, timer: Timer) -> Timer:
        return timer._replace(layer=self._log.depth)

    def _enter_over(self) -> None:
        if self._phase is not Phase.OVER:
            self._phase = Phase.OVER
            self._work.clear()
            self._timers.disarm_all(self._own)

    def _from_log(self, effects: Iterable[Effect]) -> None:
        self._flush()
        for effect in effects:
            if isinstance(effect, Deliver):
                self._later((effect,), self._on_delivery)
            elif isinstance(effect, Multicast):
                self._out.append(Multicast(message=effect.message, is_near=True))
            else:
                self._out.append(effect)

    def _from_space(self, space: int, effects: Iterable[Effect]) -> None:
        self._flush()
        for effect in effects:
            if isinstance(effect, Send) and effect.target == MACHINE:
                self._later((effect.message,), partial(self._on_request, space))
            else:
                self._out.append(effect)
                if isinstance(effect, Deliver) and effect.inner is Kind.OBJECTS_NEWS:
                    self._out += reports_of(decode_news(effect.payload), effect.seq)

    def _to_space(self, place: int, message: Message) -> None:
        """To the local manager of the object at `place`. RemoteError if there is none."""
        space = place // OBJECTS_IN_SPACE
        if not 0 <= space < len(self._spaces):
            raise RemoteError(DropReason.MALFORMED, f"object {place} lies in no address space of this machine")
        self._from_space(space, self._spaces[space].on_message(message, MACHINE, self._now_ns))

    def _by_space(self, objects: Iterable[Reference]) -> list[tuple[int, ...]]:
        """Places of objects of ours, apart for each space, ascending by space."""
        places = sorted((one.number for one in objects), key=lambda place: place // OBJECTS_IN_SPACE)
        known = [place for place in places if place // OBJECTS_IN_SPACE < len(self._spaces)]
        return [tuple(some) for _, some in groupby(known, key=lambda place: place // OBJECTS_IN_SPACE)]

    def _is_mine(self, one: Reference) -> bool:
        return one[:2] == self._life

    def _mine(self, objects: Iterable[Reference]) -> tuple[Reference, ...]:
        return tuple(filter(self._is_mine, objects))

    # What our objects ask.

    def _on_request(self, space: int, message: Message) -> None:
        """A local manager passes something on."""
        if message.kind is Kind.OBJECTS_VOTE:
            vote = Vote.of(message)
            self._on_vote(space, vote)
            return
        entry = entry_of(message)
        assert isinstance(entry, Called), "local managers pass calls on, and votes"
        call = entry.call
        operation, addressing = call.addressing.operation, call.addressing
        if operation in ASKED_OF_ANY:
            self._look_up(call)
        elif operation is Operation.CALL and addressing.group is None and not _is_in_order(call):
            for member in sorted({one.member for one in addressing.objects}):
                objects = tuple(one for one in addressing.objects if one.member == member)
                self._add_request(call, Route.DIRECT, machines=frozenset({member}), objects=objects)
        elif operation is Operation.CALL and addressing.group is None:
            machines = frozenset(one.member for one in addressing.objects)
            if machines == {self._me}:
                self._add_request(call, Route.MACHINE, machines=machines)
            else:
                self._add_request(call, Route.LOG, machines=machines, home=self._place)
        else:
            self._add_for_group(call)

    def _add_for_group(self, call: Call) -> None:
        """A call or operation of a group, or about a name: nobody knows yet whom it reaches, or it reaches nobody."""
        addressing = call.addressing
        is_naming = addressing.operation in NAMING or addressing.group is None
        home = self._place if is_naming or addressing.group is None else addressing.group.partition
        if home >= len(self._us.partitions):
            self._tell(call, refused(call))
            return
        reaches = addressing.operation in (Operation.CALL, Operation.JOIN)
        self._add_request(call, Route.LOG, machines=None if reaches else frozenset(), home=home)

    def _add_request(
        self,
        call: Call,
        route: Route,
        *,
        machines: frozenset[int] | None,
        home: int = 0,
        objects: tuple[Reference, ...] = (),
    ) -> None:
        self._key += 1
        covers = {home} | {self._place_of[member] for member in machines or () if member in self._place_of}
        hold = Hold(key=self._key, route=route, machines=machines, home=home, covers=frozenset(covers))
        request = _Request(key=self._key, call=call, route=route, home=home, objects=objects)
        self._holds.add(hold)
        self._requests[request.key] = request
        if route is Route.LOG:
            self._ordered[call.id.number] = request

    def _start_requests(self) -> None:
        while keys := self._holds.take():
            for key in keys:
                self._start(self._requests[key])

    def _start(self, request: _Request) -> None:
        if request.route is Route.DIRECT:
            self._send_parts(request, request.objects)
        elif request.route is Route.MACHINE:
            self._start_here(request)
        elif request.call.addressing.operation is Operation.CALL and not _is_in_order(request.call):
            self._look_up(request.call)
        elif request.home == self._place:
            self._enter(Called(call=self._told(request.call)))
        else:
            self._questions.ask(self._told(request.call), (request.home,), self._now_ns, self._own)

    def _told(self, call: Call) -> Call:
        return replace(call, heard=max(call.heard, self._heard))

    def _finish(self, request: _Request) -> None:
        """Nothing of it is under way any more."""
        self._holds.done(request.key)
        if self._requests.pop(request.key, None) is not None and request.route is Route.LOG:
            self._ordered.pop(request.call.id.number, None)

    def _tell(self, call: Call, *news: News) -> None:
        """The object that asked; it is ours."""
        for one in news:
            place = call.caller.number
            self._to_space(place, news_message(self._us, call.id.number, place, one))

    # Calls for this machine alone.

    def _start_here(self, request: _Request) -> None:
        call = request.call
        objects = self._mine(call.addressing.objects)
        missing = tuple(one for one in call.addressing.objects if not self._is_mine(one))
        if call.addressing.is_atomic and missing:
            self._abort_here(request, missing)
        elif call.addressing.is_atomic:
            self._ask_spaces(call, objects, request)
        else:
            if missing:
                self._tell(call, unreachable(missing))
            self._hand_out(call, objects)
            self._finish(request)

    def _ask_spaces(self, call: Call, objects: tuple[Reference, ...], request: _Request | None = None) -> None:
        """Two-phase commit, its lowest step."""
        by_space = self._by_space(objects)
        asking = _Asking({places[0] // OBJECTS_IN_SPACE for places in by_space}, self._now_ns, request)
        self._asking[call.id] = asking
        for places in by_space:
            self._to_space(places[0], prepare_message(call.id, places))
        if sum(map(len, by_space)) < len(objects):
            # Objects in spaces that do not exist: nobody can say yes for them.
            asking.is_yes = False
            self._count_spaces(call.id, asking)

    def _on_vote(self, space: int, vote: Vote) -> None:
        asking = self._asking.get(vote.call)
        if asking is not None:
            asking.missing.discard(space)
            asking.is_yes &= vote.is_yes
            self._count_spaces(vote.call, asking)

    def _count_spaces(self, name: CallId, asking: _Asking) -> None:
        if asking.request is None:
            if not asking.missing or not asking.is_yes:
                self._votes.cast(name, is_yes=asking.is_yes, now_ns=self._now_ns)
        elif not asking.missing:
            request = asking.request
            del self._asking[name]
            if asking.is_yes:
                self._hand_out(request.call, request.call.addressing.objects)
                self._finish(request)
            else:
                self._abort_here(request, ())

    def _abort_here(self, request: _Request, missing: tuple[Reference, ...]) -> None:
        self._drop_at_spaces(request.call, self._mine(request.call.addressing.objects))
        self._tell(request.call, News(kind=NewsKind.ABORTED, objects=missing))
        self._finish(request)

    def _drop_at_spaces(self, call: Call, objects: tuple[Reference, ...]) -> None:
        for places in self._by_space(objects):
            self._to_space(places[0], drop_message(call.id))

    def _hand_out(self, call: Call, objects: tuple[Reference, ...]) -> None:
        for places in self._by_space(objects):
            self._to_space(places[0], hand_message(call.id, places, call.payload))

    # Direct messages.

    def _send_parts(self, request: _Request, objects: tuple[Reference, ...]) -> None:
        """To each machine of these objects, past the order. One of them keeps the request open until all are done."""
        request.parts += 1
        for member in sorted({one.member for one in objects}):
            some = tuple(one for one in objects if one.member == member)
            for incarnation in sorted({one.incarnation for one in some}):
                self._send_part(request, Life(member, incarnation), some)
        self._part_done(request)

    def _send_part(self, request: _Request, target: Life, objects: tuple[Reference, ...]) -> None:
        call = request.call
        some = tuple(one for one in objects if one[:2] == target)
        if target == self._life:
            self._hand_out(call, some)
        elif target.member not in self._us.peers:
            self._tell(call, unreachable(some))
        else:
            request.parts += 1
            # A group's members are looked up here, nobody does it again there.
            addressing = replace(call.addressing, objects=some, group=None)
            entry = message_of(Called(call=replace(self._told(call), addressing=addressing)), self._us)
            direct = self._direct(entry, after=self._after.get(target.member, 0))
            number = self._channels.send(target, direct, self._now_ns, self._own)
            self._sent[number] = (target.member, request)

    def _direct(self, message: Message, *, after: int = 0) -> Direct:
        return Direct(
            payload=encode_message(message), inner=message.kind, after=after, heard=self._heard, flags=message.flags
        )

    def _part_done(self, request: _Request) -> None:
        request.parts -= 1
        if not request.parts:
            self._finish(request)

    def _on_event(self, event: Event) -> None:
        match event:
            case Arrival(source=source, direct=direct):
                try:
                    self._on_arrival(source, direct)
                except RemoteError as error:
                    self._own.append(Report(code=error.reason, member=source.member, value=len(direct.payload)))
            case Failed(target=target, messages=messages):
                for number, _ in messages:
                    member, request = self._sent.pop(number, (0, None))
                    if request is not None:
                        some = request.objects or request.call.addressing.objects
                        there = tuple(one for one in some if one.member == member)
                        self._tell(request.call, unreachable(there))
                        self._part_done(request)
                self._see_to_sent(target.member)
            case Acknowledged(target=target):
                self._see_to_sent(target.member)

    def _see_to_sent(self, member: int) -> None:
        """What is acknowledged."""
        first = self._channels.first_open(member)
        for number, (to, request) in list(self._sent.items()):
            if first is not None and number >= first:
                break
            if to == member:
                del self._sent[number]
                self._part_done(request)

    def _on_arrival(self, source: Life, direct: Direct) -> None:
        """RemoteError before anything has changed."""
        message = decode_message(direct.payload)
        if (message.kind, message.origin, message.incarnation) != (direct.inner, *source):
            raise RemoteError(DropReason.MALFORMED, "the inner message does not agree with the outer one")
        if message.kind is Kind.OBJECTS_CALL:
            entry = entry_of(message)
            if not isinstance(entry, Called) or entry.call.id[:2] != source:
                raise RemoteError(DropReason.MALFORMED, "a call of somebody else")
            self._on_call(source, entry.call, direct)
        elif message.kind is Kind.OBJECTS_NEWS:
            self._on_news(message)
        elif message.kind is Kind.OBJECTS_STATE:
            self._on_state(message, source)
        else:
            raise RemoteError(DropReason.UNEXPECTED, f"{message.kind.name} is nothing that machines send each other")
        self._heard = max(self._heard, direct.heard)

    def _on_call(self, source: Life, call: Call, direct: Direct) -> None:
        addressing = call.addressing
        is_for_objects = addressing.operation is Operation.CALL and addressing.group is None and not _is_in_order(call)
        if is_for_objects:
            item = Item(call=call, objects=self._mine(addressing.objects), timestamp=direct.after, source=source)
            self._do(self._agenda.add(item, self._has_everything, self._now_ns))
        elif self._phase is Phase.RUNNING:
            self._serve(call)

    # What is handed out next.

    def _has_everything(self, timestamp: int) -> bool:
        if not timestamp:
            return True
        return self._phase is Phase.RUNNING and self._book.has_everything(self._me, timestamp)

    def _take_agenda(self) -> None:
        if len(self._agenda):
            self._do(self._agenda.take(self._has_everything, self._now_ns))
            due_ns = self._agenda.next_ns
            if due_ns is not None:
                self._timers.arm(AGENDA, max(self._now_ns + 1, due_ns), self._own)
        if self._agenda.next_ns is None:
            self._timers.disarm(AGENDA, self._own)

    def _do(self, items: Iterable[Item]) -> None:
        for item in items:
            if item.call.addressing.operation is Operation.JOIN:
                self._join(item)
            else:
                self._hand_out(item.call, item.objects)
            if item.source is None and item.call.id[:2] == self._life:
                request = self._ordered.get(item.call.id.number)
                if request is not None:
                    self._finish(request)

    def _join(self, item: Item) -> None:
        """Here in the order the donor's state is taken, and the joiner waits for it."""
        self._drop_at_spaces(item.call, item.objects)
        hand = Hand(call=item.call, timestamp=item.timestamp, objects=item.objects)
        for one, news in joins_of(hand):
            if one in item.objects:
                self._to_space(one.number, news_message(self._us, 0, one.number, news))

    # The log and the Book.

    def _enter(self, entry: Entry) -> None:
        """Into the log of the sub-network."""
        message = message_of(entry, self._us)
        self._entries.append(
            Submission(
                payload=encode_message(message),
                inner=message.kind,
                flags=message.flags,
                words=self._resilience_of(entry),
            )
        )

    def _resilience_of(self, entry: Entry) -> tuple[int, ...]:
        if not isinstance(entry, Called):
            return CAREFUL
        addressing = entry.call.addressing
        is_near = all(self._place_of.get(one.member) == self._place for one in addressing.objects)
        is_plain = addressing.operation is Operation.CALL and addressing.group is None
        return () if is_near and is_plain else CAREFUL

    def _feed_log(self) -> None:
        while self._entries and self._log.can_submit:
            self._from_log(self._log.on_submit(self._entries.popleft(), self._now_ns))

    def _on_delivery(self, delivery: Deliver) -> None:
        if self._phase is not Phase.JOINING:
            self._apply(delivery)
        elif self._joined_at:
            self._kept.append(delivery)
            self._found_if_alone()
        elif delivery.inner is Kind.RELIABLE_JOINED and (delivery.origin, delivery.incarnation) == self._life:
            self._joined_at = self._applied = delivery.seq
            if delivery.seq == 1:
                self._enter_running()
            else:
                self._ask_for_state()

    def _apply(self, delivery: Deliver) -> None:
        self._applied = delivery.seq
        life = Life(delivery.origin, delivery.incarnation)
        if delivery.inner is Kind.RELIABLE_ENDED:
            self._channels.end(life, self._own)
            self._votes.ended(life)
            self._state_wanted.pop(life, None)
            self._ended = (life.member, self._now_ns)
            steps = self._book.ended(*life)
        elif delivery.inner is Kind.RELIABLE_JOINED:
            steps = self._book.joined(*life)
        else:
            steps = self._apply_entry(delivery)
        # At once: what the Book has given away, it has no more, and nothing else may come between.
        for step in steps:
            self._on_step(step)
        self._do(self._agenda.take(self._has_everything, self._now_ns))
        for joiner in sorted(self._state_wanted):
            self._give_state(joiner)

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

    def _on_step(self, step: Step) -> None:
        match step:
            case Hand():
                self._on_hand(step)
            case Prepare():
                self._on_prepare(step)
            case Drop(call=call, objects=objects):
                self._on_drop(call, self._mine(objects))
            case Answer():
                self._on_answer(step)
            case Missed(id=name, caller=caller, objects=objects):
                if self._mine(objects):
                    self._report_missed(name)
                self._on_missed(name, caller, unreachable(objects))
            case Tell(place=place, entry=entry):
                if self._is_master:
                    message = message_of(entry, self._us)
                    self._own.append(Send(target=self._between.machine_of(place), message=message))

    def _on_hand(self, hand: Hand) -> None:
        self._decided(hand.call)
        objects = self._mine(hand.objects)
        if objects:
            self._heard = max(self._heard, hand.timestamp)
            self._agenda.put(Item(call=hand.call, objects=objects, timestamp=hand.timestamp), self._now_ns)

    def _on_prepare(self, prepare: Prepare) -> None:
        name = prepare.call.id
        self._votes.open(name, {Life(*one[:2]) for one in prepare.objects}, self._now_ns)
        objects = self._mine(prepare.objects)
        if objects:
            self._ask_spaces(prepare.call, objects)

    def _tell_expelled(self, call: Call, objects: tuple[Reference, ...]) -> None:
        """Who misses a call to its group is no member of it any more; of an aborted one nobody has missed anything."""
        addressing = call.addressing
        if addressing.group is not None and addressing.operation is Operation.CALL and not call.is_atomic:
            for one in objects:
                news = News(kind=NewsKind.EXPELLED, group=addressing.group, objects=(one,))
                self._to_space(one.number, news_message(self._us, 0, one.number, news))

    def _on_drop(self, call: Call, objects: tuple[Reference, ...]) -> None:
        self._decided(call)
        if objects:
            self._drop_at_spaces(call, objects)
            self._report_missed(call.id)
            self._tell_expelled(call, objects)
        request = self._ordered.get(call.id.number) if call.id[:2] == self._life else None
        if request is not None and request.home != self._place:
            self._finish(request)

    def _report_missed(self, name: CallId) -> None:
        word = name.member << 48 | name.incarnation << 32 | name.number
        self._own.append(Report(code=CallReport.MISSED, value=word))

    def _decided(self, call: Call) -> None:
        self._votes.close(call.id)
        asking = self._asking.pop(call.id, None)
        if asking is not None:
            self._own.append(Report(code=CallReport.BLOCKED, value=self._now_ns - asking.since_ns))

    def _on_answer(self, answer: Answer) -> None:
        if answer.id[:2] != self._life:
            call = self._asked.pop(answer.id, None)
            if call is not None:
                for news in news_of(answer, call):
                    self._tell_far(call, news)
            return
        request = self._ordered.get(answer.id.number)
        if request is None or request.home != self._place:
            return
        for news in news_of(answer, request.call):
            self._tell(request.call, news)
        self._learn(request, answer.objects if answer.verdict is Verdict.ORDERED else None, answer.timestamp)

    def _learn(self, request: _Request, objects: tuple[Reference, ...] | None, timestamp: int) -> None:
        """What became of a request of ours: it goes to these, at that place in the order; None: to nobody."""
        if objects is None or request.call.addressing.operation is not Operation.CALL:
            self._finish(request)
            return
        self._heard = max(self._heard, timestamp)
        machines = frozenset(one.member for one in objects)
        for member in machines:
            self._after[member] = max(self._after.get(member, 0), timestamp)
        covers = frozenset(self._place_of[member] for member in machines if member in self._place_of)
        self._holds.resolved(request.key, machines=machines, covers=covers | {request.home})
        if self._mine(objects):
            self._holds.final(request.key)
        else:
            self._finish(request)

    def _on_missed(self, name: CallId, caller: Reference, news: News) -> None:
        """Somebody will not get a call that is ordered: tell its caller; one elsewhere hears it of the master alone."""
        if name[:2] == self._life:
            self._to_space(caller.number, news_message(self._us, name.number, caller.number, news))
        elif self._is_master and self._place_of.get(caller.member) != self._place:
            self._send_news(caller, name.number, news)

    # What others ask us, and answer.

    def _serve(self, call: Call) -> None:
        """A machine elsewhere asks for one of its objects."""
        addressing = call.addressing
        if addressing.operation in ASKED_OF_ANY or not _is_in_order(call):
            self._tell_far(call, self._look(call))
        elif addressing.group is None or addressing.group.partition != self._place:
            self._tell_far(call, refused(call))
        else:
            self._asked[call.id] = call
            if len(self._asked) > MOST_REMEMBERED:
                self._asked.popitem(last=False)
            self._enter(Called(call=call))

    def _tell_far(self, call: Call, news: News) -> None:
        self._send_news(call.caller, call.id.number, news)

    def _send_news(self, caller: Reference, number: int, news: News) -> None:
        if caller.member in self._us.peers:
            message = news_message(self._us, number, caller.number, news)
            self._channels.send(Life(*caller[:2]), self._direct(message), self._now_ns, self._own)

    def _look(self, call: Call) -> News:
        """What our Book says of a group or a name."""
        addressing = call.addressing
        if addressing.operation is Operation.LOOKUP:
            return found(call, self._book.lookup(call.payload[STAMP_SIZE:]))
        members = None if addressing.group is None else self._book.members(addressing.group)
        if addressing.group is None or members is None:
            return no_group(call)
        is_atomic = self._book.is_atomic(addressing.group)
        if addressing.operation is Operation.CALL:
            return resolved(call, members) if members else no_group(call)
        return News(
            kind=NewsKind.DONE,
            operation=addressing.operation,
            group=addressing.group,
            objects=members,
            is_atomic=is_atomic,
        )

    def _look_up(self, call: Call) -> None:
        """A question of ours that a Book can answer as it is: our own first."""
        addressing = call.addressing
        is_name = addressing.operation is Operation.LOOKUP
        home = self._place if is_name or addressing.group is None else addressing.group.partition
        if home == self._place:
            news = self._look(call)
            others = tuple(place for place in range(len(self._us.partitions)) if place != self._place)
            if is_name and others and not (news.group or news.objects):
                self._questions.ask(call, others, self._now_ns, self._own)
            else:
                self._on_looked_up(call, news)
        elif home < len(self._us.partitions):
            self._questions.ask(call, (home,), self._now_ns, self._own)
        else:
            self._on_looked_up(call, no_group(call))

    def _on_looked_up(self, call: Call, news: News) -> None:
        self._tell(call, news)
        request = self._ordered.get(call.id.number)
        if request is None:
            return
        if news.kind is NewsKind.RESOLVED:
            self._send_parts(request, news.objects)
        else:
            self._finish(request)

    def _ask_place(self, place: int, turn: int, call: Call) -> None:
        member = self._between.machine_of(place, turn)
        direct = self._direct(message_of(Called(call=call), self._us))
        self._channels.send(Life(member, 0), direct, self._now_ns, self._own)

    def _on_news(self, message: Message) -> None:
        """Another machine answers, or tells us what became of a call of ours."""
        news = decode_news(message.payload)
        if len(message.words) != 1 or not 1 <= message.words[0] < len(self._spaces) * OBJECTS_IN_SPACE:
            raise RemoteError(DropReason.MALFORMED, "news for an object that cannot be")
        if not message.words[0] % OBJECTS_IN_SPACE:
            raise RemoteError(DropReason.MALFORMED, "news for an object that cannot be")
        if news.kind is NewsKind.UNREACHABLE and news.objects:
            self._to_space(message.words[0], message)
            return
        is_unknown = news.operation is Operation.LOOKUP and not (news.group or news.objects)
        if is_unknown and self._questions.next_place(message.seq, self._now_ns, self._own):
            return
        call = self._questions.answered(message.seq)
        if call is None:
            return
        if call.addressing.operation in ASKED_OF_ANY or not _is_in_order(call):
            self._on_looked_up(call, news)
            return
        self._tell(call, news)
        request = self._ordered.get(call.id.number)
        if request is not None:
            self._learn(request, news.objects if news.kind is NewsKind.RESOLVED else None, news.timestamp)

    def _on_unanswered(self, call: Call) -> None:
        is_call = call.addressing.operation is Operation.CALL
        self._tell(call, unreachable() if is_call else refused(call))
        request = self._ordered.get(call.id.number)
        if request is not None:
            self._finish(request)

    # Between sub-networks.

    @property
    def _is_master(self) -> bool:
        return self._phase is Phase.RUNNING and self.sequencer == self._me

    def _on_crossing(self, message: Message, source: int) -> None:
        """Another sub-network's master says something: what is news goes into the log. RemoteError as ever."""
        entry = entry_of(message)
        assert isinstance(entry, Asked | Proposed | Outcome | Settled), "these are what crosses"
        if self._place_of[source] != entry.road.place or entry.road.place == self._place:
            raise RemoteError(DropReason.MALFORMED, f"machine {source} speaks for sub-network {entry.road.place}")
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

    def _take_over(self) -> None:
        if self._ended is not None:
            member, ended_ns = self._ended
            self._own.append(Report(code=CallReport.TAKEN_OVER, member=member, value=self._now_ns - ended_ns))
        for prepare in self._book.open_votes():
            self._votes.open(prepare.call.id, {Life(*one[:2]) for one in prepare.objects}, self._now_ns)

    def _give_up_duties(self) -> None:
        for duty in self._between.on_timer(self._now_ns, self._own):
            self._enter(duty.given_up(self._place))

    # How a later life gets the Book.

    def _ask_for_state(self) -> None:
        others = [Life(*life) for life in self._amoeba.lives if life[0] != self._me]
        if self._phase is not Phase.JOINING or self._found_if_alone() or not others:
            return
        others.sort(key=lambda life: (life.member != self.sequencer, life))
        target = others[self._state_turn % len(others)]
        self._state_turn += 1
        direct = self._direct(question(self._us, self._joined_at))
        self._channels.send(target, direct, self._now_ns, self._own)
        self._timers.arm(STATE, self._now_ns + 2 * self._parameters.retry_most_ns, self._own)

    def _found_if_alone(self) -> bool:
        """Nobody is left who had the Book: it begins anew."""
        is_alone = self._phase is Phase.JOINING and all(life == self._life for life in self._amoeba.lives)
        if is_alone and self._joined_at:
            self._applied = max([self._joined_at, *(delivery.seq for delivery in self._kept)])
            self._kept.clear()
            self._enter_running()
        return is_alone

    def _on_state(self, message: Message, source: Life) -> None:
        if source.member not in self._near.members:
            raise RemoteError(DropReason.UNEXPECTED, f"machine {source.member} has another log")
        place = place_asked(message)
        if place is not None:
            self._state_wanted[source] = place
            self._give_state(source)
        elif self._phase is Phase.JOINING and message.words[0] >= self._joined_at > 0:
            state = self._collection.take(message, source)
            if state is not None:
                self._book = Book.restore(state.data, place=self._place, partitions=self._us.partitions)
                self._applied = state.place
                self._enter_running()

    def _give_state(self, joiner: Life) -> None:
        place = self._state_wanted.get(joiner)
        if place is None or self._phase is not Phase.RUNNING or self._applied < place:
            return
        del self._state_wanted[joiner]
        for piece in pieces_of(self._us, self._applied, self._book.snapshot()):
            self._channels.send(joiner, self._direct(piece), self._now_ns, self._own)

    def _enter_running(self) -> None:
        self._phase = Phase.RUNNING
        self._timers.disarm(STATE, self._own)
        kept, self._kept = self._kept, []
        # Before anything that the log has given since.
        self._work.extendleft(
            partial(self._apply, delivery) for delivery in reversed(kept) if delivery.seq > self._applied
        )


def _is_in_order(call: Call) -> bool:
    """Whether it has a place in the order: what is atomic has one, whatever it says."""
    addressing = call.addressing
    return not addressing.is_direct and (addressing.is_ordered or addressing.is_atomic)
