"""A space without a network: all objects in one address space, on any asyncio loop.

    async def main(space: Space) -> None: ...
    asyncio.run(alone(main))

The order of delivery is the order in which calls are made, so that every call is indivisible, atomic and causal. What
is passed is copied (node.objects.values.copy_value): a callee cannot change its caller's list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from node.objects.addresses import Addressing, Operation
from node.objects.calls import Body, CallBody, ReplyBody, StateBody
from node.objects.space import Space
from node.objects.transport import Origin, Receiver
from node.objects.values import copy_value

T = TypeVar("T")


async def alone(main: Callable[[Space], Awaitable[T]]) -> T:
    """Run a program in a space of its own on the running loop, and return its result."""
    space = Space(Alone(), asyncio.get_running_loop())
    return await space.start(_started(main, space))


async def _started(main: Callable[[Space], Awaitable[T]], space: Space) -> T:
    return await main(space)


class Alone:
    """The Transport of such a space."""

    def __init__(self) -> None:
        self._receiver: Receiver | None = None
        self._submitted = 0

    def attach(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def submit(self, addressing: Addressing, body: Body) -> int:
        assert self._receiver is not None
        self._submitted += 1
        if addressing.operation is not Operation.CALL:
            return self._submitted
        origin = Origin(addressing.caller.member, addressing.caller.incarnation)
        bodies = [(one.number, _copied(body)) for one in addressing.objects]
        for place, copied in bodies:
            self._receiver.on_deliver(place, copied, origin)
        return self._submitted


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
