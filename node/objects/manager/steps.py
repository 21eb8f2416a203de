"""What the Book says, carried out at one machine: which objects get a call, which vote on one, what callers are told.

Every machine of the sub-network has the same steps in the same order. Each does what concerns its own objects; the
master (MMM) alone says what other sub-networks and their callers are to hear. Calls and direct messages for objects of
this machine go through the agenda.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from node.effects import Report, Send, Timer
from node.objects.addresses import News, NewsKind, Operation, Reference
from node.objects.log.entries import Answer, Call, CallId, Dispatch, Drop, Missed, Prepare, Step, Tell, message_of
from node.objects.manager.agenda import Agenda, IsComplete, Item
from node.objects.manager.context import Context
from node.objects.manager.direct import Incarnation
from node.objects.manager.duties import Duties
from node.objects.manager.requests import Requests
from node.objects.manager.service import Service, unreachable
from node.objects.manager.votes import Preparations, Votes
from node.trace import CallReport

AGENDA = Timer("agenda")


class Steps:
    """Of one machine. `is_master`: whether we have the duties now."""

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
        # A call in doubt that items wait for may be given up after `patience_ns`: not before that.
        self._agenda = Agenda(patience_ns=2 * context.parameters.patience_ns)

    @property
    def waiting(self) -> int:
        """Calls and direct messages that may not go out to our objects yet."""
        return len(self._agenda)

    @property
    def awaited(self) -> int:
        """The timestamp that our Book's clock must reach before everything that waits can go out; 0: any."""
        return self._agenda.awaited

    def carry_out(self, steps: Iterable[Step]) -> None:
        """Of one entry, in their order, and nothing between."""
        for step in steps:
            self._carry_out(step)
        self._dispatch(self._agenda.take(self._is_complete, self._context.now_ns))

    def add(self, item: Item) -> None:
        """A direct message for our objects."""
        self._dispatch(self._agenda.add(item, self._is_complete, self._context.now_ns))

    def see_to(self) -> None:
        """At the end of a turn."""
        context = self._context
        if len(self._agenda):
            self._dispatch(self._agenda.take(self._is_complete, context.now_ns))
        due_ns = self._agenda.next_ns
        if due_ns is None:
            context.timers.disarm(AGENDA, context.own)
        else:
            context.timers.arm(AGENDA, max(context.now_ns + 1, due_ns), context.own)

    def open_vote(self, prepare: Prepare) -> None:
        incarnations = {Incarnation(*one[:2]) for one in prepare.objects}
        is_ours = self._context.stays_here(prepare.call)
        self._votes.open(prepare.call.id, incarnations, self._context.now_ns, is_ours=is_ours)

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
            case Tell(place=place, entry=entry):
                if self._is_master():
                    message = message_of(entry, context.us)
                    context.own.append(Send(target=self._duties.machine_of(place), message=message))

    def _on_drop(self, call: Call, objects: tuple[Reference, ...]) -> None:
        """An object that misses a call to its group is no member of it any more; of an aborted one nobody has missed
        anything."""
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
        """Some will not get a call that is ordered: tell its caller; one elsewhere hears it of the master alone."""
        context, news = self._context, unreachable(step.objects)
        if context.mine(step.objects):
            self._report_missed(step.id)
        if step.id[:2] == context.incarnation:
            context.managers.tell_object(step.caller.number, step.id.number, news)
        elif self._is_master() and context.place_of.get(step.caller.member) != context.place:
            self._service.send_news(step.caller, step.id.number, news)

    def _report_missed(self, name: CallId) -> None:
        word = name.member << 48 | name.incarnation << 32 | name.number
        self._context.own.append(Report(code=CallReport.MISSED, value=word))

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
        """Here in the order the donor's state is taken, and the joiner waits for it."""
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
