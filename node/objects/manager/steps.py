"""The log state's steps, carried out at one machine: calls and votes of its objects, and news to callers.

Every machine of the sub-network has the same steps in the same order. Each carries out the steps for its own objects;
only the master (MMM) sends to other sub-networks and their callers. Calls and direct messages for objects of this
machine go through the agenda: ordered calls in the order of the log, direct messages at their arrival. A direct message
carries the highest timestamp that its sender's machine knew of (`after`). The argument: docs/protocols/objects.md.

    direct message   waits until the log is complete up to `after`, for earlier ones of its source, and for calls up to
                     `after` that wait here; at most `patience_ns`
    ordered call     waits until the log is complete up to its timestamp, for direct messages for one of its objects
                     that came before it and have an earlier `after`, and for earlier calls that wait here
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from node.effects import Report, Send, Timer
from node.group.view import Incarnation
from node.objects.addresses import News, NewsKind, Operation, Reference
from node.objects.log.entries import (
    Answer,
    Call,
    CallId,
    Dispatch,
    Drop,
    Missed,
    Prepare,
    SendCrossing,
    Step,
    message_of,
)
from node.objects.manager.context import Context
from node.objects.manager.duties import Duties
from node.objects.manager.requests import Requests
from node.objects.manager.service import Service, unreachable
from node.objects.manager.votes import Preparations, Votes
from node.trace import CallReport

AGENDA = Timer("agenda")

IsComplete = Callable[[int], bool]
"""Whether the log can give no more calls up to this timestamp to this machine."""


class Steps:
    """The steps at one machine. `is_master`: whether it has the duties now."""

    def __init__(
        self,
        *,
        context: Context,
        votes: Votes,
        preparations: Preparations,
        requests: Requests,
        service: Service,
        duties: Duties,
        is_complete: IsComplete,
        is_master: Callable[[], bool],
    ) -> None:
        self._context = context
        self._votes = votes
        self._preparations = preparations
        self._requests = requests
        self._service = service
        self._duties = duties
        self._is_complete = is_complete
        self._is_master = is_master
        # Items may wait for a call in doubt that is given up after `patience_ns`: the agenda waits longer.
        self._agenda = Agenda(patience_ns=2 * context.parameters.patience_ns)

    @property
    def waiting(self) -> int:
        """Number of calls and direct messages that may not go out to our objects yet."""
        return len(self._agenda)

    @property
    def awaited(self) -> int:
        """The timestamp that our log state's clock must reach before all waiting items can go out; 0: any."""
        return self._agenda.awaited

    def carry_out(self, steps: Iterable[Step]) -> None:
        """Carry out the steps of one entry, in order, without another input between them."""
        for step in steps:
            self._carry_out(step)
        self._dispatch(self._agenda.take(self._is_complete, self._context.now_ns))

    def add(self, item: Item) -> None:
        """Add a direct message for our objects."""
        self._dispatch(self._agenda.add(item, self._is_complete, self._context.now_ns))

    def end_turn(self) -> None:
        """At the end of a turn: dispatch items that may go out, and arm the timer."""
        context = self._context
        if len(self._agenda):
            self._dispatch(self._agenda.take(self._is_complete, context.now_ns))
        due_ns = self._agenda.next_ns
        if due_ns is None:
            context.timers.disarm(AGENDA, context.out)
        else:
            context.timers.arm(AGENDA, max(context.now_ns + 1, due_ns), context.out)

    def open_vote(self, prepare: Prepare) -> None:
        incarnations = {Incarnation(*one[:2]) for one in prepare.objects}
        self._votes.open(prepare.call.id, incarnations, self._context.now_ns)

    def _carry_out(self, step: Step) -> None:
        context = self._context
        match step:
            case Dispatch(call=call, timestamp=timestamp):
                self._decided(call)
                objects = context.mine(step.objects)
                if objects:
                    context.heard = max(context.heard, timestamp)
                    self._agenda.put(Item(call=call, objects=objects, timestamp=timestamp), context.now_ns)
            case Prepare(call=call):
                self.open_vote(step)
                objects = context.mine(step.objects)
                if objects:
                    self._preparations.ask(call, objects)
            case Drop(call=call):
                self._on_drop(call, context.mine(step.objects))
            case Answer(id=name):
                (self._requests if name[:2] == context.incarnation else self._service).answered(step)
            case Missed():
                self._on_missed(step)
            case SendCrossing(place=place, entry=entry):
                if self._is_master():
                    message = message_of(entry, context.us)
                    context.out.append(Send(target=self._duties.machine_of(place), message=message))

    def _on_drop(self, call: Call, objects: tuple[Reference, ...]) -> None:
        """Carry out a Drop. An object that misses a call to its group is no member any more, except for an aborted
        call, which none got."""
        addressing = call.addressing
        self._decided(call)
        if objects:
            self._context.managers.drop(call, objects)
            self._report_missed(call.id)
            if addressing.group is not None and addressing.operation is Operation.CALL and not call.is_atomic:
                for one in objects:
                    news = News(kind=NewsKind.EXPELLED, group=addressing.group, objects=(one,))
                    self._context.managers.tell_object(one.number, 0, news)
        if call.id[:2] == self._context.incarnation:
            self._requests.dropped(call.id)

    def _on_missed(self, step: Missed) -> None:
        """Some objects will not get an ordered call: tell its caller; a caller elsewhere is told only by the master."""
        context, news = self._context, unreachable(step.objects)
        if context.mine(step.objects):
            self._report_missed(step.id)
        if step.id[:2] == context.incarnation:
            context.managers.tell_object(step.caller.number, step.id.number, news)
        elif self._is_master() and context.place_of.get(step.caller.member) != context.place:
            self._service.send_news(step.caller, step.id.number, news)

    def _report_missed(self, name: CallId) -> None:
        word = name.member << 48 | name.incarnation << 32 | name.number
        self._context.out.append(Report(code=CallReport.MISSED, value=word))

    def _decided(self, call: Call) -> None:
        self._votes.close(call.id)
        self._preparations.close(call.id)

    def _dispatch(self, items: Iterable[Item]) -> None:
        for item in items:
            if item.call.addressing.operation is Operation.JOIN:
                self._join(item)
            else:
                self._context.managers.dispatch(item.call, item.objects)
            if item.source is None and item.call.id[:2] == self._context.incarnation:
                self._requests.delivered(item.call.id)

    def _join(self, item: Item) -> None:
        """Dispatch a JOIN: at this place in the order the donor's state is taken, and the joiner waits for it."""
        managers, group = self._context.managers, item.call.addressing.group
        managers.drop(item.call, item.objects)
        *donors, joiner = item.call.members
        for donor in donors:
            if donor in item.objects:
                pair = (donor, joiner)
                news = News(kind=NewsKind.STATE_WANTED, group=group, objects=pair, timestamp=item.timestamp)
                managers.tell_object(donor.number, 0, news)
        if joiner in item.objects:
            news = News(kind=NewsKind.JOINED, group=group, objects=(joiner, *donors), timestamp=item.timestamp)
            managers.tell_object(joiner.number, 0, news)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A `call` for `objects` of ours. `timestamp`: of an ordered call its own; of a direct message its `after`.
    `source`: the sender of a direct message; None: the log."""

    call: Call
    objects: tuple[Reference, ...]
    timestamp: int
    source: Incarnation | None = None


@dataclass(frozen=True, slots=True)
class _Waiting:
    item: Item
    until_ns: int


class Agenda:
    """The items of one machine that wait for their dispatch."""

    def __init__(self, *, patience_ns: int) -> None:
        self._patience_ns = patience_ns
        self._waiting: list[_Waiting] = []

    def __len__(self) -> int:
        """Number of waiting items."""
        return len(self._waiting)

    @property
    def next_ns(self) -> int | None:
        """The earliest time until which a direct message waits; None: none waits."""
        return min((one.until_ns for one in self._waiting if one.item.source is not None), default=None)

    @property
    def awaited(self) -> int:
        """The highest timestamp that a direct message waits for; 0: none waits."""
        return max((one.item.timestamp for one in self._waiting if one.item.source is not None), default=0)

    def put(self, item: Item, now_ns: int) -> None:
        """Add an item. The log may give more now: `take` when it has given all."""
        self._waiting.append(_Waiting(item, now_ns + self._patience_ns))

    def add(self, item: Item, is_complete: IsComplete, now_ns: int) -> list[Item]:
        """Add an item when no other comes now. Returns the items that can be handed out, in order."""
        self.put(item, now_ns)
        return self.take(is_complete, now_ns)

    def take(self, is_complete: IsComplete, now_ns: int) -> list[Item]:
        """The items that can be handed out now, in order."""
        found: list[Item] = []
        while self._waiting:
            left: list[_Waiting] = []
            before = len(found)
            for place, one in enumerate(self._waiting, start=1):
                if self._can_go(one, left, self._waiting[place:], is_complete, now_ns):
                    found.append(one.item)
                else:
                    left.append(one)
            self._waiting = left
            if len(found) == before:
                break
        return found

    def _can_go(
        self,
        one: _Waiting,
        earlier: list[_Waiting],
        later: list[_Waiting],
        is_complete: IsComplete,
        now_ns: int,
    ) -> bool:
        item = one.item
        if item.source is None:
            is_first = not any(_precedes(other.item, item) for other in (*earlier, *later))
            is_free = not any(_is_overtaken(other.item, item) for other in earlier)
            return is_first and is_free and is_complete(item.timestamp)
        if any(other.item.source == item.source for other in earlier):
            return False
        if one.until_ns <= now_ns:
            return True
        # The log may just have given a call that is behind it here, but before it in the order.
        is_blocked = any(
            other.item.source is None and other.item.timestamp <= item.timestamp for other in (*earlier, *later)
        )
        return not is_blocked and is_complete(item.timestamp)


def _precedes(other: Item, call: Item) -> bool:
    """Whether both are ordered calls, `other` the earlier one."""
    return other.source is None and (other.timestamp, other.call.id) < (call.timestamp, call.call.id)


def _is_overtaken(other: Item, call: Item) -> bool:
    """Whether `other` is a direct message that waits and must be handed out before this ordered call."""
    is_direct = other.source is not None and other.timestamp < call.timestamp
    return is_direct and not set(other.objects).isdisjoint(call.objects)
