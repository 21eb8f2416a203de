"""The replicated server of paper 004, section 3: figure 5 (server) and figure 6 (client), with a client that counts.

The first `members` machines of the first sub-network run a server each, in their space 0. A server looks a name up; if
it is not bound, the server on the lowest of these machines makes a group, joins it and binds the name; all others join
the group that they find, and take over the state of its members. A server whose machine starts anew does the same. A
server that learns that the group went on without it joins again.

In the paper two servers that start at the same time may both find nothing and both make a group; that is why one place
alone makes it here.

The client runs in the last space of the last machine of the run: `rounds` times it adds 1 to the counter bound to the
name, and waits `pause_ns`. It does not know that it calls a group; it gets the first reply. When none comes in time it
asks again with the same round, which a server does not count twice: so no round is lost or counted twice, even if the
machine that replied first fails right after.

Reports: CallReport.COUNTED, the counter in the reply, for each round (it must be the round), and at the end for each
server that is a member; CallReport.TIMED for each round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from node.effects import Report
from node.objects.api.errors import CallError
from node.objects.api.export import Remote, export
from node.objects.api.groups import RGroup
from node.objects.api.space import Space
from node.objects.programs import Program, Setting
from node.parameters import require
from node.trace import CallReport, Timed

NAME = "aServer"
"""The name of the server, as in figure 6."""
T = TypeVar("T")

PATIENCE_S = 2.0
RETRY_S = 0.1
REPLY = 0xFFFF
"""The machine number in reports about a round."""


class Server(Remote):
    """A counter. Requests have numbers, so that a repeated one is not carried out twice."""

    def __init__(self) -> None:
        self.count = 0
        self.round = 0

    @export
    def request(self, number: int, amount: int) -> int:
        """Add `amount` as the client's request `number`, counted from 1; returns the sum."""
        if number > self.round:
            self.round = number
            self.count += amount
        return self.count

    @export
    def total(self) -> int:
        """The sum so far."""
        return self.count

    def get_state(self) -> tuple[int, int]:
        """The last round and the sum."""
        return (self.round, self.count)

    def set_state(self, state: object) -> None:
        """Take over the result of another server's get_state."""
        match state:
            case (int(number), int(count)):
                self.round, self.count = number, count
            case _:
                raise ValueError(f"{state!r} is no state of a server")


async def main(space: Space, setting: Setting) -> None:
    """The program of each space: a server, the client, or neither."""
    servers = setting.networks[0][: setting.options.members]
    member = setting.membership.member
    if member in servers and setting.space == 0:
        await serve(space, is_maker=member == servers[0])
    elif member == setting.membership.members[-1] and setting.space == setting.spaces - 1:
        await ask(space, setting)


async def serve(space: Space, *, is_maker: bool) -> None:
    """Figure 5, for as long as the load lasts."""
    here = space.create(Server())
    group = await patiently(partial(found, space, here, is_maker=is_maker))
    while True:
        await group.expelled(here)
        await patiently(partial(group.join, here))


async def found(space: Space, here: Server, *, is_maker: bool) -> RGroup[Server]:
    """The constructor of figure 5: a group with `here` in it, the existing one if there is one."""
    old = await space.names.find(NAME, Server)
    if old is None and is_maker:
        new = await RGroup.create(space, Server)
        await new.join(here)
        await space.names.bind(NAME, new.proxy)
        return new
    group = RGroup.of(old or await space.names.wait_for(NAME, Server))
    await group.join(here)
    return group


async def patiently(attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeat `attempt` until it succeeds: it fails while we are cut off, or if a donor ends in the middle."""
    while True:
        try:
            return await attempt()
        except CallError:
            await asyncio.sleep(RETRY_S)


async def ask(space: Space, setting: Setting) -> None:
    """Figure 6, `rounds` times."""
    server = await space.names.wait_for(NAME, Server)
    for number in range(1, setting.options.rounds + 1):
        began_ns = setting.now_ns()
        count = await patiently(partial(server.request.options(timeout=PATIENCE_S), number, 1))
        setting.report_time(Timed.REQUEST, 1, setting.now_ns() - began_ns)
        setting.report(Report(code=CallReport.COUNTED, member=REPLY, value=count))
        await asyncio.sleep(setting.options.pause_ns / 1e9)
    for answer in await server.total.answers():
        setting.report(Report(code=CallReport.COUNTED, member=answer.member.member, value=answer.value))


def check(setting: Setting) -> None:
    """LocalError when there are too few machines for the servers, or when server and client would share a machine."""
    members, machines = setting.options.members, len(setting.networks[0])
    sentence = f"a replicated server of {members} members needs {members} machines in the first sub-network"
    require(members <= machines, f"{sentence}, not {machines}")
    servers = setting.networks[0][:members]
    client = setting.membership.members[-1]
    require(client not in servers, "the replicated server needs a machine beside its servers, for the client")


REPLICATED = Program(name="replicated", main=main, require=check)
