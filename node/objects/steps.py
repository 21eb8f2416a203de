"""What the Book says, carried out at one machine: who gets a call, who votes on one, who hears what became of it.

Every machine of the sub-network has the same steps in the same order. Each does what concerns its own objects; what
other sub-networks and their callers are to hear says the master (MMM) alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from node.effects import Report, Timer
from node.objects.addresses import Operation, Reference
from node.objects.agenda import Agenda, IsComplete, Item
from node.objects.answers import joins_of, unreachable
from node.objects.context import Context
from node.objects.direct import Incarnation
from node.objects.entries import Answer, Call, CallId, Drop, Entry, Hand, Missed, Prepare, Step, Tell
from node.objects.managers import LocalManagers
from node.objects.news import News, NewsKind
from node.objects.preparing import Preparations
from node.objects.requests import Requests
from node.objects.service import Service
from node.objects.votes import Votes
from node.trace import CallReport


class Steps:
    """Of one machine. `cross`: to the sub-network at this place. `is_master`: whether we have the duties now."""

    def __init__(
        self,
        *,
        context: Context,
        managers: LocalManagers,
        handing: Handing,
        votes: Votes,
        preparations: Preparations,
        requests: Requests,
        service: Service,
        cross: Callable[[int, Entry], None],
        is_master: Callable[[], bool],
    ) -> None:
        self._context = context
        self._managers = managers
        self._handing = handing
        self._votes = votes
        self._preparations = preparations
        self._requests = requests
        self._service = service
        self._cross = cross
        self._is_master = is_master

    def carry_out(self, step: Step) -> None:
        """The steps of an entry come one after another, and nothing between."""
        match step:
            case Hand():
                self._on_hand(step)
            case Prepare():
                self._on_prepare(step)
            case Drop(call=call, objects=objects):
                self._on_drop(call, self._context.mine(objects))
            case Answer():
                self._on_answer(step)
            case Missed(id=name, caller=caller, objects=objects):
                if self._context.mine(objects):
                    self._report_missed(name)
                self._on_missed(name, caller, unreachable(objects))
            case Tell(place=place, entry=entry):
                if self._is_master():
                    self._cross(place, entry)

    def _on_hand(self, hand: Hand) -> None:
        self._decided(hand.call)
        objects = self._context.mine(hand.objects)
        if objects:
            self._context.heard = max(self._context.heard, hand.timestamp)
            self._handing.put(Item(call=hand.call, objects=objects, timestamp=hand.timestamp))

    def _on_prepare(self, prepare: Prepare) -> None:
        name = prepare.call.id
        incarnations = {Incarnation(*one[:2]) for one in prepare.objects}
        self._votes.open(name, incarnations, self._context.now_ns, is_ours=self._context.stays_here(prepare.call))
        objects = self._context.mine(prepare.objects)
        if objects:
            self._preparations.ask(prepare.call, objects)

    def _tell_expelled(self, call: Call, objects: tuple[Reference, ...]) -> None:
        """Who misses a call to its group is no member of it any more; of an aborted one nobody has missed anything."""
        addressing = call.addressing
        if addressing.group is not None and addressing.operation is Operation.CALL and not call.is_atomic:
            for one in objects:
                news = News(kind=NewsKind.EXPELLED, group=addressing.group, objects=(one,))
                self._managers.tell_object(one.number, 0, news)

    def _on_drop(self, call: Call, objects: tuple[Reference, ...]) -> None:
        self._decided(call)
        if objects:
            self._managers.drop(call, objects)
            self._report_missed(call.id)
            self._tell_expelled(call, objects)
        if call.id[:2] == self._context.incarnation:
            self._requests.dropped(call.id)

    def _report_missed(self, name: CallId) -> None:
        word = name.member << 48 | name.incarnation << 32 | name.number
        self._context.own.append(Report(code=CallReport.MISSED, value=word))

    def _decided(self, call: Call) -> None:
        self._votes.close(call.id)
        self._preparations.close(call.id)

    def _on_answer(self, answer: Answer) -> None:
        if answer.id[:2] == self._context.incarnation:
            self._requests.answered(answer)
        else:
            self._service.answered(answer)

    def _on_missed(self, name: CallId, caller: Reference, news: News) -> None:
        """Somebody will not get a call that is ordered: tell its caller; one elsewhere hears it of the master alone."""
        if name[:2] == self._context.incarnation:
            self._managers.tell_object(caller.number, name.number, news)
        elif self._is_master() and self._context.place_of.get(caller.member) != self._context.place:
            self._service.send_news(caller, name.number, news)


AGENDA = Timer("agenda")


class Handing:
    """Of one machine. `delivered` hears of each ordered call of ours that has been handed to objects of ours."""

    def __init__(
        self,
        *,
        context: Context,
        managers: LocalManagers,
        patience_ns: int,
        is_complete: IsComplete,
        delivered: Callable[[CallId], None],
    ) -> None:
        self._context = context
        self._managers = managers
        self._agenda = Agenda(patience_ns=patience_ns)
        self._is_complete = is_complete
        self._delivered = delivered

    def __len__(self) -> int:
        """What waits."""
        return len(self._agenda)

    @property
    def awaited(self) -> int:
        """The timestamp that our Book's clock must reach before everything that waits can be handed out; 0: any."""
        return self._agenda.awaited

    def put(self, item: Item) -> None:
        """The log gives it, and may give more at this moment: `take` when it has given all."""
        self._agenda.put(item, self._context.now_ns)

    def add(self, item: Item) -> None:
        """It is next, and nothing else comes now."""
        self._do(self._agenda.add(item, self._is_complete, self._context.now_ns))

    def take(self) -> None:
        """Hand out what can be."""
        self._do(self._agenda.take(self._is_complete, self._context.now_ns))

    def see_to(self) -> None:
        """At the end of a turn."""
        context = self._context
        if len(self._agenda):
            self.take()
            due_ns = self._agenda.next_ns
            if due_ns is not None:
                context.timers.arm(AGENDA, max(context.now_ns + 1, due_ns), context.own)
        if self._agenda.next_ns is None:
            context.timers.disarm(AGENDA, context.own)

    def _do(self, items: Iterable[Item]) -> None:
        for item in items:
            if item.call.addressing.operation is Operation.JOIN:
                self._join(item)
            else:
                self._managers.hand_out(item.call, item.objects)
            if item.source is None and item.call.id[:2] == self._context.incarnation:
                self._delivered(item.call.id)

    def _join(self, item: Item) -> None:
        """Here in the order the donor's state is taken, and the joiner waits for it."""
        self._managers.drop(item.call, item.objects)
        hand = Hand(call=item.call, timestamp=item.timestamp, objects=item.objects)
        for one, news in joins_of(hand):
            if one in item.objects:
                self._managers.tell_object(one.number, 0, news)
