"""The measurement of paper 004, figures 9 to 12: the time until all replies to a call of n objects are there.

A client calls n = 1, 2, ..., `members` objects in four ways: point to point, one after the other (synchronous); point
to point, all at once (asynchronous); as a group; as a group, all or none. The objects are spread in turn over at most
six places, which `locality` selects (section 6.2 of the paper):

    space      in the client's own address space                                             figure 9
    machine    in other address spaces of the client's machine                               figure 10
    network    in one address space of other machines of the client's sub-network            figure 11
    networks   in one address space of other machines, in turn from three sub-networks       figure 12

The client is in space 0 of the first machine. Each measurement is done `rounds` times; the four ways take turns, so
that other activity disturbs them alike, with `pause_ns` between two of them. The argument has `size_bytes`; with the
addresses and headers around it the request has some 100 bytes more.

Reports: CallReport.TIMED, once for each measurement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import zip_longest
from typing import NamedTuple

from node.objects.api.export import Remote, export
from node.objects.api.groups import ObjectList
from node.objects.api.space import Space
from node.objects.programs import Program, Setting
from node.parameters import require
from node.trace import Timed

MOST_PLACES = 6
MOST_NETWORKS = 3
REGISTRATION = "figures"
"""The name of the object at which places register their objects with the client."""


class Place(NamedTuple):
    """An address space with objects."""

    member: int
    space: int


class Target(Remote):
    """An object that is called."""

    @export
    def serve(self, argument: bytes) -> int:
        """A method that takes no time; the reply is small, as in the paper."""
        return len(argument)


class Registration(Remote):
    """The client's object at which places register their objects."""

    def __init__(self, places: tuple[Place, ...]) -> None:
        self._places = places
        self._targets: dict[Place, list[Target]] = {}
        self._are_here = asyncio.Event()

    @export
    def enroll(self, member: int, space: int, targets: list[Target]) -> None:
        """Register the objects of one place."""
        self._targets[Place(member, space)] = targets
        if set(self._targets) >= set(self._places):
            self._are_here.set()

    async def targets(self) -> list[Target]:
        """All objects, when all places have registered: the first of each place, then the second of each, and so on."""
        await self._are_here.wait()
        rows = zip_longest(*(self._targets[place] for place in self._places))
        return [target for row in rows for target in row if target is not None]


async def main(space: Space, setting: Setting) -> None:
    """The program of each space: a host of objects, the client, or neither."""
    places = places_of(setting)
    here = Place(setting.membership.member, setting.space)
    client = Place(setting.membership.members[0], 0)
    if here == client:
        registration = Registration(places)
        proxy = space.create(registration)
        await space.names.bind(REGISTRATION, proxy)
        if here in places:
            await proxy.enroll(here.member, here.space, _targets(space, setting, places))
        await measure(await registration.targets(), setting)
    elif here in places:
        registration = await space.names.wait_for(REGISTRATION, Registration)
        await registration.enroll(here.member, here.space, _targets(space, setting, places))


async def measure(targets: list[Target], setting: Setting) -> None:
    """Measure all four ways, for each number of objects, `rounds` times."""
    argument = bytes(setting.options.size_bytes)
    for _ in range(setting.options.rounds):
        for count in range(1, setting.options.members + 1):
            for timed, way in WAYS.items():
                began_ns = setting.now_ns()
                await way(targets[:count], argument)
                setting.report_time(timed, count, setting.now_ns() - began_ns)
                await asyncio.sleep(setting.options.pause_ns / 1e9)


async def call_synchronously(targets: list[Target], argument: bytes) -> None:
    for target in targets:
        await target.serve(argument)


async def call_asynchronously(targets: list[Target], argument: bytes) -> None:
    for call in [target.serve.send(argument) for target in targets]:
        await call


async def call_group(targets: list[Target], argument: bytes) -> None:
    await ObjectList(targets).serve.all(argument)


async def call_group_atomically(targets: list[Target], argument: bytes) -> None:
    await ObjectList(targets).serve.options(atomic=True).all(argument)


WAYS: dict[Timed, Callable[[list[Target], bytes], Awaitable[None]]] = {
    Timed.SYNC: call_synchronously,
    Timed.ASYNC: call_asynchronously,
    Timed.GROUP: call_group,
    Timed.ATOMIC: call_group_atomically,
}


def places_of(setting: Setting) -> tuple[Place, ...]:
    """The places of the objects, the same at all machines."""
    client, *others = setting.networks[0]
    match setting.options.locality:
        case "space":
            return (Place(client, 0),)
        case "machine":
            return tuple(Place(client, space) for space in range(1, setting.spaces))[:MOST_PLACES]
        case "network":
            return tuple(Place(member, 0) for member in others)[:MOST_PLACES]
        case _:
            networks = [tuple(others), *setting.networks[1:MOST_NETWORKS]]
            turns = (member for row in zip_longest(*networks) for member in row if member is not None)
            return tuple(Place(member, 0) for member in turns)[:MOST_PLACES]


def check(setting: Setting) -> None:
    """LocalError when there is no place for the objects."""
    where = setting.options.locality
    require(bool(places_of(setting)), f"locality {where} needs another space, or machine, than the client's")


def _targets(space: Space, setting: Setting, places: tuple[Place, ...]) -> list[Target]:
    """The objects of one place, created here."""
    count = -(-setting.options.members // len(places))
    return [space.create(Target()) for _ in range(count)]


FIGURES = Program(name="figures", main=main, require=check)
