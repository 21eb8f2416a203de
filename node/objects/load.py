"""The program `load`: each request of the workload becomes one call between objects.

Every machine has the same objects, `objects_per_space` in each address space, from its start to its end. Caller,
receivers and kind of each call are drawn by each incarnation for itself, except the lists, which all machines draw
alike in all their incarnations (NodeConfig.shared_seed), so that calls of many callers overlap. A call's height bounds
the distance of its members: in the caller's space, on its machine, in its sub-network, anywhere.

Each sub-network keeps one replicated group under a name (`load/0`, `load/1`, ...). Its lowest machine makes it; others
look it up. These are operations, and a request that is drawn for a group becomes the operation that has to come first:
look up, and if nothing is found make, then bind. Later requests call the group, or join or leave it.

A call names the incarnations of the machines on which its objects live. Other machines learn of a restarted one with
its first call; until then they call objects that are dead, as callers in the field do.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

from node.core import Membership, Submission, random_for
from node.effects import Deliver
from node.host.application import WorkloadApplication
from node.host.config import NodeConfig
from node.host.workload import Workload
from node.objects.addresses import (
    MAX_ADDRESSED,
    OBJECTS_IN_SPACE,
    Addressing,
    GroupId,
    News,
    NewsKind,
    Operation,
    Reference,
    decode_news,
)
from node.objects.parameters import LoadParameters, ObjectsParameters
from node.trace import Stamp, encode_stamp
from node.wire import Kind


class Height(enum.Enum):
    """The greatest distance of the members of a call."""

    SPACE = enum.auto()
    MACHINE = enum.auto()
    NETWORK = enum.auto()
    NETWORKS = enum.auto()


class Spot(NamedTuple):
    """An object in any incarnation of its machine."""

    member: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The objects to draw from: on these machines, in these spaces of each."""

    members: tuple[int, ...]
    first_space: int
    spaces: int
    objects: int
    """Number of objects of each space."""

    @property
    def size(self) -> int:
        return len(self.members) * self.spaces * self.objects

    def at(self, index: int) -> Spot:
        rest, place = divmod(index, self.objects)
        machine, space = divmod(rest, self.spaces)
        return Spot(self.members[machine], (self.first_space + space) * OBJECTS_IN_SPACE + place + 1)

    def draw(self, rng: Random, count: int) -> tuple[Spot, ...]:
        """`count` different objects, or all if there are fewer."""
        return tuple(map(self.at, rng.sample(range(self.size), min(count, self.size))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """The places of all objects, the same for all machines."""

    membership: Membership
    spaces: int
    objects: int

    def pool(self, height: Height, around: Spot) -> Pool:
        """The objects within `height` of `around`, itself included."""
        if height is Height.SPACE:
            return Pool(
                members=(around.member,), first_space=around.number // OBJECTS_IN_SPACE, spaces=1, objects=self.objects
            )
        return Pool(
            members=self._machines(height, around.member), first_space=0, spaces=self.spaces, objects=self.objects
        )

    def _machines(self, height: Height, member: int) -> tuple[int, ...]:
        if height is Height.MACHINE:
            return (member,)
        if height is Height.NETWORK:
            return next((one for one in self.membership.partitions if member in one), self.membership.members)
        return self.membership.members


@dataclass(slots=True)
class _Known:
    """This machine's knowledge of the group of one sub-network."""

    group: GroupId | None = None
    next: Operation | None = Operation.LOOKUP
    """The operation that has to come before the group can be called; None: none, or its answer is still to come."""
    joined: set[int] = field(default_factory=set)
    """Our objects for which we have asked to join."""


class LoadApplication(WorkloadApplication):
    """The load of one incarnation of one machine; `space`: of this address space alone, with its share of the workload.
    Deterministic in its inputs and their times."""

    hears = True

    def __init__(self, config: NodeConfig, parameters: ObjectsParameters, space: int | None = None) -> None:
        us = config.membership
        part = "" if space is None else f"/{space}"
        workload = config.workload if space is None else _share(config.workload, space, parameters.spaces)
        super().__init__(workload, us, seed=config.seed, part=part)
        self._load = parameters.load
        self._rng = random_for(config.seed, us, f"calls{part}")
        self._field = Field(membership=us, spaces=parameters.spaces, objects=parameters.objects_per_space)
        self.lists = draw_lists(self._field, parameters.load, config.shared_seed)
        """The lists that all machines know."""
        self._own = Pool(
            members=(us.member,),
            first_space=space or 0,
            spaces=parameters.spaces if space is None else 1,
            objects=parameters.objects_per_space,
        )
        """The calling objects."""
        self._incarnations = dict.fromkeys(us.members, 1) | {us.member: us.incarnation}
        self._known = [_Known() for _ in us.partitions or (us.members,)]
        self._groups = group_numbers(parameters, space)
        self._asked: dict[int, tuple[Operation, int]] = {}
        """Operations that await news, by our number: the operation, and the sub-network of the group."""

    def begin(self) -> None:
        super().begin()
        for space in range(self._own.spaces):
            spots = [self._own.at(space * self._own.objects + index) for index in range(self._own.objects)]
            self._appear(tuple(map(self._reference, spots)))

    def submission(self, stamp: Stamp) -> Submission:
        """Draw one call or operation."""
        (asker,) = self._own.draw(self._rng, 1)
        words, body = self._call(asker, stamp.number)
        return Submission(payload=encode_stamp(stamp) + body, words=words.words, place=asker.number)

    def take(self, effect: Deliver, elapsed_ns: int) -> None:
        del elapsed_ns  # a delivery only changes our knowledge
        if effect.inner is Kind.OBJECTS_NEWS:
            self._hear(decode_news(effect.payload), effect.seq)
        else:
            self._incarnations[effect.origin] = max(self._incarnations[effect.origin], effect.incarnation)

    # Receivers.

    def _appear(self, objects: tuple[Reference, ...]) -> None:
        for first in range(0, len(objects), MAX_ADDRESSED):
            some = objects[first : first + MAX_ADDRESSED]
            words = Addressing(caller=some[0], objects=some, operation=Operation.APPEAR).words
            self.queue.append(Submission(payload=b"", words=words, place=some[0].number))

    def _reference(self, spot: Spot) -> Reference:
        return Reference(spot.member, self._incarnations[spot.member], spot.number)

    def _call(self, asker: Spot, number: int) -> tuple[Addressing, bytes]:
        load, rng = self._load, self._rng
        way, whom = rng.randrange(1000), rng.randrange(1000)
        is_atomic = way < load.atomic_permille
        is_unordered = not is_atomic and way < load.atomic_permille + load.unordered_permille
        is_direct = not (is_atomic or is_unordered) and (
            way < load.atomic_permille + load.unordered_permille + load.direct_permille
        )
        caller = self._reference(asker)
        if is_direct:
            (target,) = self._field.pool(draw_height(rng, load), asker).draw(rng, 1)
            return Addressing(caller=caller, objects=(self._reference(target),), is_direct=True), next(self._filler)
        if whom < load.grouped_permille:
            about_group = self._group_call(asker, number, is_atomic=is_atomic, is_ordered=not is_unordered)
            if about_group is not None:
                return about_group
        if whom < load.grouped_permille + load.listed_permille:
            spots = rng.choice(self.lists)
        else:
            spots = _draw_members(rng, self._field, load, asker)
        objects = tuple(map(self._reference, spots))
        return Addressing(caller=caller, objects=objects, is_atomic=is_atomic, is_ordered=not is_unordered), next(
            self._filler
        )

    # Groups.

    def _group_call(
        self, asker: Spot, number: int, *, is_atomic: bool, is_ordered: bool
    ) -> tuple[Addressing, bytes] | None:
        """A call to a group, or the operation that has to come first; None while that is under way."""
        partition = self._rng.randrange(len(self._known))
        known = self._known[partition]
        caller = self._reference(asker)
        if known.next is not None:
            operation, known.next = known.next, None
            self._asked[number] = (operation, partition)
            group = known.group if operation is Operation.BIND else None
            if operation is Operation.CREATE:
                group = GroupId(self._us.partition, self._us.member, self._us.incarnation, next(self._groups))
            return Addressing(caller=caller, group=group, operation=operation), _name(partition)
        if known.group is None:
            return None
        if self._rng.randrange(1000) < self._load.changes_permille:
            return self._change(known, caller), next(self._filler)
        return Addressing(caller=caller, group=known.group, is_atomic=is_atomic, is_ordered=is_ordered), next(
            self._filler
        )

    def _change(self, known: _Known, caller: Reference) -> Addressing:
        """The caller joins the group, or leaves it."""
        has_joined = caller.number in known.joined
        known.joined ^= {caller.number}
        operation = Operation.LEAVE if has_joined else Operation.JOIN
        return Addressing(caller=caller, objects=(caller,), group=known.group, operation=operation)

    def _hear(self, news: News, number: int) -> None:
        operation, partition = self._asked.pop(number, (None, 0))
        if operation is not None:
            self._hear_answer(self._known[partition], operation, news, partition)
        elif news.kind is NewsKind.NO_GROUP:
            for known in self._known:
                if known.group == news.group and not known.joined:
                    known.group, known.next = None, Operation.LOOKUP

    def _hear_answer(self, known: _Known, operation: Operation, news: News, partition: int) -> None:
        is_done = news.kind is NewsKind.DONE
        if operation is not Operation.BIND:
            known.group = news.group if is_done else None
        if operation is Operation.CREATE and is_done:
            known.next = Operation.BIND
        elif known.group is None:
            is_maker = partition == self._us.partition and self._us.member < min(self._us.neighbours, default=0xFFFF)
            is_maker &= not self._own.first_space
            is_missing = operation is Operation.LOOKUP and is_done
            known.next = Operation.CREATE if is_maker and is_missing else Operation.LOOKUP


def group_numbers(parameters: ObjectsParameters, space: int | None) -> Iterator[int]:
    """Numbers for the groups that an incarnation makes; with `space`, in this address space: no two spaces use the same
    numbers."""
    return itertools.count(1) if space is None else itertools.count(1 + space, parameters.spaces)


def _share(workload: Workload, space: int, spaces: int) -> Workload:
    """The share of one address space in the workload of a machine."""
    return replace(
        workload,
        rate_per_s=workload.rate_per_s / spaces,
        events=tuple(replace(event, rate_per_s=event.rate_per_s / spaces) for event in workload.events),
        instants_ns=workload.instants_ns[space::spaces],
    )


def draw_height(rng: Random, load: LoadParameters) -> Height:
    weights = (load.space_weight, load.machine_weight, load.network_weight, load.networks_weight)
    return rng.choices(tuple(Height), weights)[0]


def draw_lists(where: Field, load: LoadParameters, shared_seed: int) -> tuple[tuple[Spot, ...], ...]:
    """The lists, the same for all members and all their incarnations: drawn around objects anywhere."""
    rng = Random(f"{shared_seed}/lists")  # noqa: S311 (repeatable, not secret)
    everything = where.pool(Height.NETWORKS, Spot(where.membership.members[0], 1))
    around = (everything.at(rng.randrange(everything.size)) for _ in range(load.lists))
    return tuple(_draw_members(rng, where, load, spot) for spot in around)


def _draw_members(rng: Random, where: Field, load: LoadParameters, around: Spot) -> tuple[Spot, ...]:
    pool = where.pool(draw_height(rng, load), around)
    return pool.draw(rng, rng.randint(1, load.members))


def _name(partition: int) -> bytes:
    return f"load/{partition}".encode()
