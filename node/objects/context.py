"""What the parts of a machine's manager share: who we are, the time, the work of this turn, and what it has them say.

A turn is what follows from one input of the host. Whatever a part learns that concerns others becomes work, done in
order; whatever is to leave the machine becomes effects, in order. Effects of the parts wait in `own`, because their
timers do not have the machine's layer yet; `flush` moves them behind what has already left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from node.core import Membership
from node.effects import CancelTimer, Effect, SetTimer, Timer
from node.objects.addresses import Operation, Reference
from node.objects.direct import Direct, DirectChannels, Incarnation
from node.objects.entries import Call, Entry
from node.objects.parameters import ObjectsParameters
from node.reliable.rtt import Timers
from node.wire import Message, encode_message

T = TypeVar("T")

Enter = Callable[[Entry], None]
"""Into the log of the sub-network."""


class Context:
    """Of one machine. `membership` names the sub-networks. `layer`: of the parts' timers."""

    def __init__(self, *, membership: Membership, parameters: ObjectsParameters, layer: int) -> None:
        self.us = membership
        self.incarnation = Incarnation(membership.member, membership.incarnation)
        self.place = membership.partition
        self.place_of = {member: at for at, members in enumerate(membership.partitions) for member in members}
        self.now_ns = 0
        self.heard = 0
        """The highest timestamp that anything here knows of."""
        self.timers = Timers()
        self.channels = DirectChannels(
            membership=membership,
            parameters=parameters.reliable,
            patience_ns=parameters.patience_ns,
            timers=self.timers,
        )
        """To the managers of other machines."""
        self.own: list[Effect] = []
        """Effects of our parts, whose timers do not have our layer yet."""
        self.out: list[Effect] = []
        """What the host is to do, in order."""
        self._work: deque[Callable[[], None]] = deque()
        self._layer = layer

    def is_mine(self, one: Reference) -> bool:
        """Whether it lies in this incarnation of this machine."""
        return one[:2] == self.incarnation

    def mine(self, objects: Iterable[Reference]) -> tuple[Reference, ...]:
        return tuple(filter(self.is_mine, objects))

    def stays_here(self, call: Call) -> bool:
        """Whether it is a call of this sub-network to a list within it: nobody elsewhere hears of it."""
        addressing = call.addressing
        if addressing.operation is not Operation.CALL or addressing.group is not None:
            return False
        members = (call.id.member, *(one.member for one in addressing.objects))
        return all(self.place_of.get(member) == self.place for member in members)

    def send(self, target: Incarnation, message: Message, *, after: int = 0) -> int:
        """To the manager of another machine, behind what it was sent before and when it has given out everything up to
        the timestamp `after`. Returns the channels' number of it."""
        direct = Direct(
            payload=encode_message(message), inner=message.kind, after=after, heard=self.heard, flags=message.flags
        )
        return self.channels.send(target, direct, self.now_ns, self.own)

    # The turn.

    @property
    def is_worked_off(self) -> bool:
        return not self._work

    def later(self, items: Iterable[T], act: Callable[[T], None]) -> None:
        """Behind all work there is."""
        self._work.extend(partial(act, item) for item in items)

    def first(self, items: list[T], act: Callable[[T], None]) -> None:
        """Before all work there is, in their order."""
        self._work.extendleft(partial(act, item) for item in reversed(items))

    def work(self) -> None:
        """The next piece."""
        self._work.popleft()()

    def drop_work(self) -> None:
        self._work.clear()

    def flush(self) -> None:
        """Effects of our parts leave, with their timers in our layer."""
        for effect in self.own:
            match effect:
                case SetTimer(timer=timer, at_ns=at_ns):
                    self.out.append(SetTimer(timer=self._raised(timer), at_ns=at_ns))
                case CancelTimer(timer=timer):
                    self.out.append(CancelTimer(timer=self._raised(timer)))
                case _:
                    self.out.append(effect)
        self.own.clear()

    def take_out(self) -> list[Effect]:
        """Everything that the host is to do now."""
        self.flush()
        out, self.out = self.out, []
        return out

    def _raised(self, timer: Timer) -> Timer:
        return timer._replace(layer=self._layer)
