"""Requests of the objects of a machine to others than their own space: the route, the start and the end of each.

No request overtakes an earlier one of its machine (Holds; paper 004, end of section 4): a message that a lower manager
could deliver by itself waits for an earlier one that had to go higher. The routes, which request waits for which, and
why: docs/protocols/objects.md. A request is done when it is an acknowledged direct message, a LOG request that is final
and delivered here (or not for us), or a delivered MACHINE request. The machines that a call to a group covers are not
known before its place in the order: as the earlier request it covers all of them, as the later one only its home.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from node.errors import DropReason, LocalError, RemoteError
from node.group.view import Incarnation
from node.objects.addresses import NAMING, OBJECTS_IN_SPACE, News, NewsKind, Operation, Reference, decode_news
from node.objects.log.entries import Answer, Call, Called, CallId, Verdict, message_of
from node.objects.manager.context import Context
from node.objects.manager.direct import Failed
from node.objects.manager.duties import Questions
from node.objects.manager.service import ASKED_OF_ANY, Service, news_of, no_group, refused, resolved, unreachable
from node.objects.manager.votes import Preparations
from node.wire import Message


class Route(enum.Enum):
    """The route of a request to its objects."""

    MACHINE = enum.auto()
    DIRECT = enum.auto()
    LOG = enum.auto()
    MEMBERS = enum.auto()


NUMBERED = frozenset({Route.LOG, Route.MEMBERS})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """One request of ours. `objects`: of a DIRECT, its objects, all on one machine."""

    key: int
    call: Call
    route: Route
    home: int = 0
    objects: tuple[Reference, ...] = ()


class Requests:
    """The requests of one machine."""

    def __init__(
        self,
        *,
        context: Context,
        preparations: Preparations,
        service: Service,
        machine_of: Callable[[int, int], int],
        is_current: Callable[[], bool],
    ) -> None:
        """`machine_of` (sub-network, turn): its machine to ask first, or after `turn` others. `is_current`: whether
        the log goes on, and our objects have got all that it has for them."""
        parameters = context.parameters
        self._context = context
        self._managers = context.managers
        self._preparations = preparations
        self._service = service
        self._machine_of = machine_of
        self._is_current = is_current
        self.directs = Directs(context)
        self._holds = Holds(member=context.us.member, partition=context.place)
        self._questions = Questions(
            first_ns=4 * parameters.retry_ns,
            most_ns=2 * parameters.retry_most_ns,
            # The group's sub-network answers after it has given up a silent one: the caller waits longer.
            patience_ns=2 * parameters.patience_ns,
            timers=context.timers,
            ask=self._ask_place,
        )
        self._key = 0
        self._requests: dict[int, _Request] = {}
        self._numbered: dict[int, _Request] = {}
        """Requests on NUMBERED routes, by the number of the call: a log state decides their result."""

    @property
    def under_way(self) -> int:
        return len(self._requests) + len(self._questions)

    @property
    def waiting(self) -> int:
        """Requests that may not start yet."""
        return self._holds.waiting

    # Requests of our objects.

    def add(self, call: Call) -> None:
        """Add a call that a local manager passes on."""
        addressing = call.addressing
        if addressing.operation in ASKED_OF_ANY:
            self._look_up(call)
        elif addressing.operation is not Operation.CALL or addressing.group is not None:
            self._add_for_group(call)
        elif not call.is_in_order:
            for member in sorted({one.member for one in addressing.objects}):
                objects = tuple(one for one in addressing.objects if one.member == member)
                self._add(call, Route.DIRECT, machines=frozenset({member}), objects=objects)
        else:
            machines = frozenset(one.member for one in addressing.objects)
            if machines == {self._context.incarnation.member}:
                self._add(call, Route.MACHINE, machines=machines)
            else:
                self._add(call, Route.LOG, machines=machines, home=self._context.place)

    def _add_for_group(self, call: Call) -> None:
        """Add a call or operation of a group, or about a name: its receivers are not known yet, or it has none."""
        addressing = call.addressing
        is_naming = addressing.operation in NAMING or addressing.group is None
        home = self._context.place if is_naming or addressing.group is None else addressing.group.partition
        if home >= len(self._context.us.partitions):
            self._managers.tell_caller(call, refused(call))
            return
        if self._members_here(call):
            self._add(call, Route.MACHINE, machines=frozenset({self._context.incarnation.member}))
            return
        is_call = addressing.operation is Operation.CALL
        reaches = is_call or addressing.operation is Operation.JOIN
        route = Route.MEMBERS if is_call and not call.is_in_order else Route.LOG
        self._add(call, route, machines=None if reaches else frozenset(), home=home)

    def _members_here(self, call: Call) -> tuple[Reference, ...]:
        """The members of the group of an ordered call that is not atomic, if all live here, the log goes on, they have
        got what it has for them (a JOIN above all), and no earlier request of ours to the group is under way; else
        none."""
        group = call.addressing.group
        if call.addressing.operation is not Operation.CALL or group is None or not call.is_in_order:
            return ()
        members = self._service.members(group)
        if call.addressing.is_atomic or members != self._context.mine(members) or not self._is_current():
            return ()
        before = (one.call for one in self._numbered.values() if one.call.id < call.id)
        return () if any(one.addressing.group == group for one in before) else members

    def _add(
        self,
        call: Call,
        route: Route,
        *,
        machines: frozenset[int] | None,
        home: int = 0,
        objects: tuple[Reference, ...] = (),
    ) -> None:
        self._key += 1
        place_of = self._context.place_of
        covers = {home} | {place_of[member] for member in machines or () if member in place_of}
        self._holds.add(Hold(key=self._key, route=route, machines=machines, home=home, covers=frozenset(covers)))
        request = _Request(key=self._key, call=call, route=route, home=home, objects=objects)
        self._requests[request.key] = request
        if route in NUMBERED:
            self._numbered[call.id.number] = request

    def start(self) -> None:
        """Start all requests that may start now."""
        while keys := self._holds.take():
            for key in keys:
                self._start(self._requests[key])

    def _start(self, request: _Request) -> None:
        if request.route is Route.DIRECT:
            self._send(request, request.objects)
        elif request.route is Route.MACHINE:
            self._start_here(request)
        elif request.route is Route.MEMBERS:
            self._look_up(request.call)
        else:
            call = replace(request.call, heard=max(request.call.heard, self._context.heard))
            if request.home == self._context.place:
                self._context.append(Called(call=call))
            else:
                self._ask(call, (request.home,))

    def _send(self, request: _Request, objects: tuple[Reference, ...]) -> None:
        self.directs.send(request.call, objects, lambda: self._finish(request))

    def _finish(self, request: _Request) -> None:
        """End a request of which nothing is under way any more."""
        self._holds.done(request.key)
        if self._requests.pop(request.key, None) is not None and request.route in NUMBERED:
            self._numbered.pop(request.call.id.number, None)

    # Calls for this machine alone.

    def _start_here(self, request: _Request) -> None:
        call, context = request.call, self._context
        if call.addressing.group is not None:
            self._start_group_here(request)
            return
        objects = context.mine(call.addressing.objects)
        missing = tuple(one for one in call.addressing.objects if one not in objects)
        if call.addressing.is_atomic and missing:
            self._abort_here(request, missing)
        elif call.addressing.is_atomic:
            self._preparations.ask(call, objects, lambda is_yes: self._decide_here(request, is_yes))
        else:
            if missing:
                self._managers.tell_caller(call, unreachable(missing))
            self._managers.dispatch(call, objects)
            self._finish(request)

    def _start_group_here(self, request: _Request) -> None:
        call = request.call
        members = self._members_here(call)
        if members:
            self._managers.tell_caller(call, resolved(call, members))
            self._managers.dispatch(call, members)
            self._finish(request)
        else:  # the group has changed since the request was added
            self._requests[request.key] = self._numbered[call.id.number] = replace(
                request, route=Route.LOG, home=self._context.place
            )
            self._holds.climbs(request.key)

    def _decide_here(self, request: _Request, is_yes: bool) -> None:
        if is_yes:
            self._managers.dispatch(request.call, request.call.addressing.objects)
            self._finish(request)
        else:
            self._abort_here(request, ())

    def _abort_here(self, request: _Request, missing: tuple[Reference, ...]) -> None:
        self._managers.drop(request.call, self._context.mine(request.call.addressing.objects))
        self._managers.tell_caller(request.call, News(kind=NewsKind.ABORTED, objects=missing))
        self._finish(request)

    # Results in the log.

    def answered(self, answer: Answer) -> None:
        """Take the answer of our sub-network's log state to a request of ours."""
        request = self._numbered.get(answer.id.number)
        if request is None or request.home != self._context.place:
            return
        self._managers.tell_caller(request.call, *news_of(answer, request.call))
        self._learn(request, answer.objects if answer.verdict is Verdict.ORDERED else None, answer.timestamp)

    def delivered(self, name: CallId) -> None:
        """End a request that our objects have got in the order: later ones are behind it."""
        request = self._numbered.get(name.number)
        if request is not None:
            self._finish(request)

    def dropped(self, name: CallId) -> None:
        """End a request of another log that our objects will not get. (Our own log answers its requests.)"""
        request = self._numbered.get(name.number)
        if request is not None and request.home != self._context.place:
            self._finish(request)

    def _learn(self, request: _Request, objects: tuple[Reference, ...] | None, timestamp: int) -> None:
        """Take the result of a request of ours: it goes to `objects`, at that place in the order; None: to no
        object."""
        self._context.heard = max(self._context.heard, timestamp)
        if objects is None or request.call.addressing.operation is not Operation.CALL:
            self._finish(request)
            return
        context = self._context
        machines = frozenset(one.member for one in objects)
        covers = frozenset(context.place_of[member] for member in machines if member in context.place_of)
        self._holds.resolved(request.key, machines=machines, covers=covers | {request.home})
        if context.mine(objects):
            self._holds.final(request.key)
        else:
            self._finish(request)

    # Questions.

    def _look_up(self, call: Call) -> None:
        """Answer a question of ours from a log state as it is, our own first."""
        addressing, context = call.addressing, self._context
        is_name = addressing.operation is Operation.LOOKUP
        home = context.place if is_name or addressing.group is None else addressing.group.partition
        if home == context.place:
            news = self._service.look(call)
            others = tuple(place for place in range(len(context.us.partitions)) if place != context.place)
            if is_name and others and not (news.group or news.objects):
                self._ask(call, others)
            else:
                self._on_looked_up(call, news)
        elif home < len(context.us.partitions):
            self._ask(call, (home,))
        else:
            self._on_looked_up(call, no_group(call))

    def _on_looked_up(self, call: Call, news: News) -> None:
        self._managers.tell_caller(call, news)
        request = self._numbered.get(call.id.number)
        if request is None:
            return
        if news.kind is NewsKind.RESOLVED:
            self._send(request, news.objects)
        else:
            self._finish(request)

    def _ask(self, call: Call, places: tuple[int, ...]) -> None:
        self._questions.ask(call, places, self._context.now_ns, self._context.out)

    def _ask_place(self, place: int, turn: int, call: Call) -> None:
        member = self._machine_of(place, turn)
        self._context.send(Incarnation(member, 0), message_of(Called(call=call), self._context.us))

    def on_news(self, message: Message) -> None:
        """Another machine answers, or reports about a call of ours. RemoteError before any change."""
        news = decode_news(message.payload)
        place = message.words[0] if len(message.words) == 1 else 0
        if not place < len(self._managers) * OBJECTS_IN_SPACE or not place % OBJECTS_IN_SPACE:
            raise RemoteError(DropReason.MALFORMED, "news for an object that cannot be")
        if news.kind is NewsKind.UNREACHABLE and news.objects:
            self._managers.tell(place, message)
            return
        is_unknown = news.operation is Operation.LOOKUP and not (news.group or news.objects)
        if is_unknown and self._questions.next_place(message.seq, self._context.now_ns, self._context.out):
            return
        call = self._questions.answered(message.seq)
        if call is not None:
            self._on_answer_of_others(call, news)

    def _on_answer_of_others(self, call: Call, news: News) -> None:
        if call.addressing.operation in ASKED_OF_ANY or not call.is_in_order:
            self._on_looked_up(call, news)
            return
        self._managers.tell_caller(call, news)
        request = self._numbered.get(call.id.number)
        if request is not None:
            self._learn(request, news.objects if news.kind is NewsKind.RESOLVED else None, news.timestamp)

    def on_timer(self) -> None:
        """QUESTIONS is due: repeat open questions, and end unanswered ones."""
        for call in self._questions.on_timer(self._context.now_ns, self._context.out):
            is_call = call.addressing.operation is Operation.CALL
            self._managers.tell_caller(call, unreachable() if is_call else refused(call))
            request = self._numbered.get(call.id.number)
            if request is not None:
                self._finish(request)


@dataclass(slots=True)
class _Open:
    """A call under way. `parts`: number of its direct messages under way, and one more while it is being sent."""

    call: Call
    objects: tuple[Reference, ...]
    then: Callable[[], None]
    parts: int = 1


class Directs:
    """The calls of one machine in direct messages."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._managers = context.managers
        self._sent: dict[int, tuple[Incarnation, _Open]] = {}
        """By the channels' number: the target and the call."""

    def send(self, call: Call, objects: tuple[Reference, ...], then: Callable[[], None]) -> None:
        """Send `call` to these objects; `then` is called when no message of it is under way any more."""
        one = _Open(call, objects, then)
        for target in sorted({Incarnation(*object_[:2]) for object_ in objects}):
            self._send_part(one, target)
        self._part_done(one)

    def failed(self, event: Failed) -> None:
        """Messages to that incarnation have failed."""
        for number, _ in event.messages:
            found = self._sent.pop(number, None)
            if found is not None:
                target, one = found
                self._managers.tell_caller(one.call, unreachable(_at(one.objects, target)))
                self._part_done(one)
        self.acknowledged(event.target.member)

    def acknowledged(self, member: int) -> None:
        """`member` has received all messages before the channels' first open one."""
        first = self._context.channels.first_open(member)
        for number, (target, one) in list(self._sent.items()):
            if first is not None and number >= first:
                break
            if target.member == member:
                del self._sent[number]
                self._part_done(one)

    def _send_part(self, one: _Open, target: Incarnation) -> None:
        some = _at(one.objects, target)
        if target == self._context.incarnation:
            self._managers.dispatch(one.call, some)
        elif target.member not in self._context.us.peers:
            self._managers.tell_caller(one.call, unreachable(some))
        else:
            one.parts += 1
            # A group's members are looked up here, not again at the target.
            addressing = replace(one.call.addressing, objects=some, group=None)
            heard = max(one.call.heard, self._context.heard)
            message = message_of(Called(call=replace(one.call, heard=heard, addressing=addressing)), self._context.us)
            number = self._context.send(target, message, after=self._context.heard)
            self._sent[number] = (target, one)

    def _part_done(self, one: _Open) -> None:
        one.parts -= 1
        if not one.parts:
            one.then()


def _at(objects: Iterable[Reference], target: Incarnation) -> tuple[Reference, ...]:
    return tuple(one for one in objects if one[:2] == target)


class _Progress(enum.IntEnum):
    WAITING = 0
    STARTED = 1
    FINAL = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """The bounds that one request sets to later ones. `machines`: the members that it covers, None while unknown;
    `home`: the sub-network that numbers it (LOG), `covers`: the sub-networks that it covers at least.
    """

    key: int
    route: Route
    machines: frozenset[int] | None
    home: int = 0
    covers: frozenset[int] = frozenset()

    def reaches(self, member: int) -> bool:
        """Whether it may be for an object on machine `member`."""
        return self.machines is None or member in self.machines


@dataclass(slots=True)
class _Held:
    hold: Hold
    progress: _Progress = _Progress.WAITING


class Holds:
    """The open requests of one machine. Keys rise in the order of the requests."""

    def __init__(self, *, member: int, partition: int) -> None:
        self._me = member
        self._partition = partition
        self._open: dict[int, _Held] = {}
        self._last = 0
        self.waiting = 0
        """Requests that may not start yet."""

    def __len__(self) -> int:
        return len(self._open)

    def add(self, hold: Hold) -> None:
        """A request that waits until `take` names it. LocalError for a key that does not rise, or for a direct message
        that is not for one machine."""
        if hold.key <= self._last:
            raise LocalError(f"request {hold.key} follows {self._last}")
        if hold.route is Route.DIRECT and (hold.machines is None or len(hold.machines) != 1):
            raise LocalError("a direct message is for one machine")
        self._last = hold.key
        self._open[hold.key] = _Held(hold)
        self.waiting += 1

    def take(self) -> tuple[int, ...]:
        """The requests that may start now, in their order; they have started."""
        found: list[int] = []
        if self.waiting:
            before: list[_Held] = []
            for one in tuple(self._open.values()):
                if one.progress is _Progress.WAITING and all(self._passes(earlier, one.hold) for earlier in before):
                    self._start(one)
                    found.append(one.hold.key)
                before.append(one)
        return tuple(found)

    def resolved(self, key: int, *, machines: frozenset[int], covers: frozenset[int]) -> None:
        """The members of a group are known now."""
        one = self._open.get(key)
        if one is not None:
            old = one.hold
            one.hold = Hold(key=key, route=old.route, machines=machines, home=old.home, covers=covers)

    def climbs(self, key: int) -> None:
        """A started MACHINE request must wait again, as a LOG request whose members are not known."""
        home = self._partition
        self._open[key] = _Held(Hold(key=key, route=Route.LOG, machines=None, home=home, covers=frozenset({home})))
        self.waiting += 1

    def final(self, key: int) -> None:
        """A LOG request has its timestamp, or will be delivered nowhere else."""
        one = self._open.get(key)
        if one is not None and one.progress is _Progress.STARTED:
            one.progress = _Progress.FINAL
            if not one.hold.reaches(self._me):
                self.done(key)

    def done(self, key: int) -> None:
        """A request is acknowledged, delivered here, or dropped: no other waits for it any more."""
        one = self._open.pop(key, None)
        if one is not None and one.progress is _Progress.WAITING:
            self.waiting -= 1

    def _start(self, one: _Held) -> None:
        one.progress = _Progress.STARTED
        self.waiting -= 1

    def _passes(self, earlier: _Held, later: Hold) -> bool:
        """Whether `later` may start while `earlier` is open: the table of docs/protocols/objects.md."""
        route = earlier.hold.route
        if route in (Route.MACHINE, Route.MEMBERS):
            return False
        if route is Route.DIRECT:
            return self._passes_direct(earlier, later)
        if later.route is Route.MEMBERS:
            return False
        if later.route is Route.LOG:
            return earlier.progress is _Progress.FINAL or self._follows(earlier, later)
        if later.route is Route.DIRECT and not later.reaches(self._me):
            return earlier.progress is _Progress.FINAL
        return not any(earlier.hold.reaches(member) for member in later.machines or (self._me,))

    def _passes_direct(self, earlier: _Held, later: Hold) -> bool:
        (target,) = earlier.hold.machines or (self._me,)
        has_started = earlier.progress is not _Progress.WAITING
        return not later.reaches(target) or (has_started and later.route is not Route.LOG)

    def _follows(self, earlier: _Held, later: Hold) -> bool:
        """Whether the order of the log alone gives `later` the later timestamp."""
        first = earlier.hold
        return (
            earlier.progress is _Progress.STARTED
            and first.machines is not None
            and first.home == later.home == self._partition
            and first.covers <= later.covers
        )
