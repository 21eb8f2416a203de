"""A space without a network: all objects in one address space, on any asyncio loop.

    async def main(space: Space) -> None: ...
    asyncio.run(alone(main))

The order of delivery is the order in which calls are made, so that every call is indivisible, atomic and causal.
Arguments are copied (node.objects.api.values.copy_value): a callee cannot change its caller's list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from node.objects.addresses import BINDS, Addressing, GroupId, News, NewsKind, Operation, Reference
from node.objects.api.calls import Body, CallBody, NameBody, Origin, Receiver, ReplyBody, StateBody
from node.objects.api.space import Space
from node.objects.api.values import copy_value
from node.objects.log.state import Group, Registry

T = TypeVar("T")


async def alone(main: Callable[[Space], Awaitable[T]]) -> T:
    """Run a program in a space of its own on the running loop, and return its result."""
    space = Space(SingleSpaceTransport(), asyncio.get_running_loop())
    return await space.start(_started(main, space))


async def _started(main: Callable[[Space], Awaitable[T]], space: Space) -> T:
    return await main(space)


class SingleSpaceTransport:
    """The Transport of such a space, which also does the managers' work for groups and names."""

    def __init__(self) -> None:
        self._receiver: Receiver | None = None
        self._submitted = 0
        self._alive: set[Reference] = set()
        self._registry = Registry()

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
            name = body.name.encode() if isinstance(body, NameBody) else b""
            self._tell(addressing.caller, number, self._operate(addressing, name, number))
        return number

    def _call(self, addressing: Addressing, body: Body, number: int) -> None:
        if addressing.group is None:
            self._deliver(addressing, addressing.objects, addressing.is_atomic, body, number)
            return
        group = self._registry.groups.get(addressing.group)
        if group is None or not group.members:
            self._tell(addressing.caller, number, News(kind=NewsKind.NO_GROUP, group=addressing.group))
            return
        members, is_atomic = group.members, group.is_atomic or addressing.is_atomic
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

    def _operate(self, addressing: Addressing, name: bytes, number: int) -> News:
        operation = addressing.operation
        done = News(kind=NewsKind.DONE, operation=operation, timestamp=number)
        refused = News(kind=NewsKind.REFUSED, operation=operation)
        if operation is Operation.CREATE:
            made = GroupId(0, *addressing.caller[:2], len(self._registry.groups) + 1)
            self._registry.create(made)
            return replace(done, group=made)
        if operation in BINDS:
            target = addressing.group or addressing.objects[0]
            return done if self._registry.bind(name, target, operation) else refused
        if operation is Operation.UNBIND:
            return done if self._registry.unbind(name) else refused
        if operation is Operation.LOOKUP:
            found = self._registry.names.get(name.decode())
            if isinstance(found, GroupId):
                return replace(done, group=found)
            return done if found is None else replace(done, objects=(found,))
        assert addressing.group is not None
        group = self._registry.groups.get(addressing.group)
        if group is None:
            return News(kind=NewsKind.NO_GROUP, group=addressing.group)
        return self._change(addressing, group, done, refused)

    def _change(self, addressing: Addressing, group: Group, done: News, refused: News) -> News:
        match addressing.operation:
            case Operation.MEMBERS:
                return replace(done, objects=group.members, is_atomic=group.is_atomic)
            case Operation.JOIN if addressing.objects[0] not in group.members:
                self._join(addressing, group, done.timestamp)
            case Operation.LEAVE if addressing.objects[0] in group.members:
                group.leave(lambda one: one == addressing.objects[0])
            case Operation.ATOMIC | Operation.NONATOMIC:
                group.is_atomic = addressing.operation is Operation.ATOMIC
            case _:
                return refused
        return done

    def _join(self, addressing: Addressing, group: Group, timestamp: int) -> None:
        assert self._receiver is not None
        joiner, donors = addressing.objects[0], group.members[:1]
        group.members += (joiner,)
        for donor in donors:
            wanted = News(
                kind=NewsKind.STATE_WANTED, group=addressing.group, objects=(donor, joiner), timestamp=timestamp
            )
            self._receiver.on_news(donor.number, 0, wanted)
        joined = News(kind=NewsKind.JOINED, group=addressing.group, objects=(joiner, *donors), timestamp=timestamp)
        self._receiver.on_news(joiner.number, 0, joined)

    def _vanish(self, reference: Reference) -> None:
        self._alive.discard(reference)
        for group in self._registry.groups.values():
            group.leave(lambda one: one == reference)

    def _tell(self, caller: Reference, number: int, news: News) -> None:
        """Tell news after `submit` has returned their number."""
        assert self._receiver is not None
        asyncio.get_running_loop().call_soon(self._receiver.on_news, caller.number, number, news)


def _copied(body: Body) -> Body:
    match body:
        case CallBody() if body.arguments or body.keywords:
            arguments, keywords = copy_value(body.arguments), copy_value(body.keywords)
            if arguments is body.arguments and not body.keywords:
                return body
            return replace(body, arguments=arguments, keywords=keywords)  # type: ignore[arg-type]  # as they were
        case ReplyBody() if body.value is not None:
            value = copy_value(body.value)
            return body if value is body.value else replace(body, value=value)
        case StateBody():
            return replace(body, state=copy_value(body.state))
    return body
