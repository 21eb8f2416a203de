"""Calls past the order: to each machine of their objects one direct message, over its channel.

These are calls of one object, and lists and groups without indivisibility. They carry the highest timestamp that we
know of (`after`): they overtake no ordered call of ours, and none that we have got (node/objects/agenda.py). A call is
done when every machine has acknowledged its message, or will not get it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from node.objects.addresses import Reference
from node.objects.answers import unreachable
from node.objects.context import Context
from node.objects.direct import Failed, Life
from node.objects.entries import Call, Called, message_of
from node.objects.managers import LocalManagers


@dataclass(slots=True)
class _Open:
    """A call under way. `parts`: direct messages of it that are, and one more while it is being sent."""

    call: Call
    objects: tuple[Reference, ...]
    then: Callable[[], None]
    parts: int = 1


class Directs:
    """Of one machine."""

    def __init__(self, *, context: Context, managers: LocalManagers) -> None:
        self._context = context
        self._managers = managers
        self._sent: dict[int, tuple[Life, _Open]] = {}
        """By the channels' number: to whom, and of what."""

    def send(self, call: Call, objects: tuple[Reference, ...], then: Callable[[], None]) -> None:
        """`call` to these objects; `then` when no message of it is under way any more."""
        one = _Open(call, objects, then)
        for target in sorted({Life(*object_[:2]) for object_ in objects}):
            self._send_part(one, target)
        self._part_done(one)

    def failed(self, event: Failed) -> None:
        """Nothing reaches that life."""
        for number, _ in event.messages:
            found = self._sent.pop(number, None)
            if found is not None:
                target, one = found
                self._managers.tell_caller(one.call, unreachable(_at(one.objects, target)))
                self._part_done(one)
        self.acknowledged(event.target.member)

    def acknowledged(self, member: int) -> None:
        """It has got more than before: all before the channels' first open message."""
        first = self._context.channels.first_open(member)
        for number, (target, one) in list(self._sent.items()):
            if first is not None and number >= first:
                break
            if target.member == member:
                del self._sent[number]
                self._part_done(one)

    def _send_part(self, one: _Open, target: Life) -> None:
        some = _at(one.objects, target)
        if target == self._context.life:
            self._managers.hand_out(one.call, some)
        elif target.member not in self._context.us.peers:
            self._managers.tell_caller(one.call, unreachable(some))
        else:
            one.parts += 1
            # A group's members are looked up here, nobody does it again there.
            addressing = replace(one.call.addressing, objects=some, group=None)
            heard = max(one.call.heard, self._context.heard)
            message = message_of(Called(call=replace(one.call, heard=heard, addressing=addressing)), self._context.us)
            number = self._context.send(target, message, after=self._context.heard)
            self._sent[number] = (target, one)

    def _part_done(self, one: _Open) -> None:
        one.parts -= 1
        if not one.parts:
            one.then()


def _at(objects: Iterable[Reference], target: Life) -> tuple[Reference, ...]:
    return tuple(one for one in objects if one[:2] == target)
