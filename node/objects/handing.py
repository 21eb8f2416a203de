"""What comes to the objects of a machine from outside, in the order of its agenda (agenda.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from node.effects import Timer
from node.objects.addresses import Operation
from node.objects.agenda import Agenda, IsComplete, Item
from node.objects.answers import joins_of
from node.objects.context import Context
from node.objects.entries import CallId, Hand
from node.objects.managers import LocalManagers

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
            if item.source is None and item.call.id[:2] == self._context.life:
                self._delivered(item.call.id)

    def _join(self, item: Item) -> None:
        """Here in the order the donor's state is taken, and the joiner waits for it."""
        self._managers.drop(item.call, item.objects)
        hand = Hand(call=item.call, timestamp=item.timestamp, objects=item.objects)
        for one, news in joins_of(hand):
            if one in item.objects:
                self._managers.tell_object(one.number, 0, news)
