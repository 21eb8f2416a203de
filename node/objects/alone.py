"""A space without a network: all objects in one address space, on any asyncio loop.

    async def main(space: Space) -> None: ...
    asyncio.run(alone(main))

The order of delivery is the order in which calls are made, so that every call is indivisible, atomic and causal. What
is passed is copied (node.objects.values.copy_value): a callee cannot change its caller's list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from node.objects.addresses import Addressing, GroupId, News, NewsKind, Operation, Reference
from node.objects.api.calls import Body, CallBody, NameBody, Origin, Receiver, ReplyBody, StateBody
from node.objects.api.space import Space
from node.objects.api.values import copy_value

T = TypeVar("T")


async def alone(main: Callable[[Space], Awaitable[T]]) -> T:
    """Run a program in a space of its own on the running loop, and return its result."""
    space = Space(Alone(), asyncio.get_running_loop())
    return await space.start(_started(main, space))


async def _started(main: Callable[[Space], Awaitable[T]], space: Space) -> T:
    return await main(space)


class Alone:
    """The Transport of such a space, with what managers do for groups and names."""

    def __init__(self) -> None:
        self._receiver: Receiver | None = None
        self._submitted = 0
        self._alive: set[Reference] = set()
        self._groups: dict[GroupId, _Group] = {}
        self._names: dict[str, Reference | GroupId] = {}

    def attach(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def submit(self, addressing: Addressing, body: Body) -> int:
        self._submitted += 1
        number = self._submitted
        if addressing.operation is Operation.CALL:
            self._call(addressing, body, number)
        elif addressing.operation is Operation.APPEAR:
            self._alive.update(addressing.objects)
        elif addressing.operation is Operation.VANISH:
            self._vanish(addressing.objects[0])
        else:
            name = body.name if isinstance(body, NameBody) else ""
            self._tell(addressing.caller, number, self._operate(addressing, name, number))
        return number

    def _call(self, addressing: Addressing, body: Body, number: int) -> None:
        if addressing.group is None:
            self._deliver(addressing, addressing.objects, addressing.is_atomic, body, number)
            return
        group = self._groups.get(addressing.group)
        if group is None or not group.members:
            self._tell(addressing.caller, number, News(kind=NewsKind.NO_GROUP, group=addressing.group))
            return
        members, is_atomic = tuple(group.members), group.is_atomic or addressing.is_atomic
        resolved = News(kind=NewsKind.RESOLVED, group=addressing.group, objects=members, is_atomic=is_atomic)
        self._tell(addressing.caller, number, resolved)
        self._deliver(addressing, members, is_atomic, body, number)

    def _deliver(
        self, addressing: Addressing, members: tuple[Reference, ...], is_atomic: bool, body: Body, number: int
    ) -> None:
        assert self._receiver is not None
        if is_atomic and (dead := tuple(one for one in members if one not in self._alive)):
            self._tell(addressing.caller, number, News(kind=NewsKind.ABORTED, objects=dead))
            return
        origin = Origin(addressing.caller.member, addressing.caller.incarnation)
        for copied in [(one.number, _copied(body)) for one in members]:
            self._receiver.on_deliver(*copied, origin)

    def _operate(self, addressing: Addressing, name: str, number: int) -> News:
        operation = addressing.operation
        done = News(kind=NewsKind.DONE, operation=operation, timestamp=number)
        refused = News(kind=NewsKind.REFUSED, operation=operation)
        if operation is Operation.CREATE:
            made = GroupId(0, addressing.caller.member, addressing.caller.incarnation, len(self._groups) + 1)
            self._groups[made] = _Group()
            return replace(done, group=made)
        if operation is Operation.BIND:
            self._names[name] = addressing.group or addressing.objects[0]
            return done
        if operation is Operation.UNBIND:
            return refused if self._names.pop(name, None) is None else done
        if operation is Operation.LOOKUP:
            found = self._names.get(name)
            if isinstance(found, GroupId):
                return replace(done, group=found)
            return done if found is None else replace(done, objects=(found,))
        assert addressing.group is not None
        group = self._groups.get(addressing.group)
        if group is None:
            return News(kind=NewsKind.NO_GROUP, group=addressing.group)
        return self._change(addressing, group, done, refused)

    def _change(self, addressing: Addressing, group: _Group, done: News, refused: News) -> News:
        match addressing.operation:
            case Operation.MEMBERS:
                return replace(done, objects=tuple(group.members), is_atomic=group.is_atomic)
            case Operation.JOIN if addressing.objects[0] not in group.members:
                self._join(addressing, group, done.timestamp)
            case Operation.LEAVE if addressing.objects[0] in group.members:
                group.members.remove(addressing.objects[0])
            case Operation.ATOMIC | Operation.NONATOMIC:
                group.is_atomic = addressing.operation is Operation.ATOMIC
            case _:
                return refused
        return done

    def _join(self, addressing: Addressing, group: _Group, timestamp: int) -> None:
        assert self._receiver is not None
        joiner, donors = addressing.objects[0], tuple(group.members[:1])
        group.members.append(joiner)
        for donor in donors:
            wanted = News(
                kind=NewsKind.STATE_WANTED, group=addressing.group, objects=(donor, joiner), timestamp=timestamp
            )
            self._receiver.on_news(donor.number, 0, wanted)
        joined = News(kind=NewsKind.JOINED, group=addressing.group, objects=(joiner, *donors), timestamp=timestamp)
        self._receiver.on_news(joiner.number, 0, joined)

    def _vanish(self, reference: Reference) -> None:
        self._alive.discard(reference)
        for group in self._groups.values():
            if reference in group.members:
                group.members.remove(reference)

    def _tell(self, caller: Reference, number: int, news: News) -> None:
        """After `submit` has said which number it is."""
        assert self._receiver is not None
        asyncio.get_running_loop().call_soon(self._receiver.on_news, caller.number, number, news)


@dataclass(slots=True)
class _Group:
    """A group as its managers keep it."""

    members: list[Reference] = field(default_factory=list)
    is_atomic: bool = False


def _copied(body: Body) -> Body:
    match body:
        case CallBody():
            arguments = copy_value(body.arguments) if body.arguments else ()
            keywords = copy_value(body.keywords) if body.keywords else {}
            if arguments is body.arguments and not keywords:
                return body
            return CallBody(
                call=body.call,
                name=body.name,
                arguments=arguments,  # type: ignore[arg-type]  # a copy is of the same type
                keywords=keywords,  # type: ignore[arg-type]
                chain=body.chain,
            )
        case ReplyBody(value=None):
            return body
        case ReplyBody():
            value = copy_value(body.value)
            if value is body.value:
                return body
            return ReplyBody(number=body.number, member=body.member, value=value)
        case StateBody():
            return StateBody(
                group=body.group, timestamp=body.timestamp, state=copy_value(body.state), problem=body.problem
            )
    return body
