"""A cluster of machines with objects, over the small deterministic network of `tests.node.cluster`."""

from __future__ import annotations

from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any

from node.core import Membership, Submission, random_for
from node.effects import Deliver
from node.objects.addresses import (
    OBJECTS_IN_SPACE,
    Addressing,
    GroupId,
    News,
    NewsKind,
    Operation,
    Reference,
    decode_news,
)
from node.objects.manager.machine import MachineCore
from node.objects.parameters import ObjectsParameters
from node.reliable.parameters import ReliableParameters
from node.trace import Stamp, decode_stamp, encode_stamp
from node.wire import Kind
from tests.node.cluster import HEARTBEATS, MILLISECOND, SECOND, Cluster, Host, Identity, Network

PARAMETERS = ObjectsParameters(
    patience_ns=4 * SECOND,
    vote_ns=2 * SECOND,
    reliable=ReliableParameters(suspect_after_ns=1 * SECOND, heartbeat_ns=20 * MILLISECOND),
)
OBJECTS = 2
"""Number of objects of each space."""


@dataclass(frozen=True, slots=True)
class Got:
    """One delivery to an object."""

    object: Reference
    call: Identity


class World(Cluster):
    """Cluster of machines. `partitions`: number of machines of each sub-network."""

    def __init__(self, *partitions: int, seed: int = 1, network: Network | None = None) -> None:
        self.got: list[Got] = []
        """All deliveries, in the order of time."""
        self.told: dict[Identity, list[News]] = {}
        """News by request."""
        self.heard: list[tuple[Reference, News]] = []
        """News without a request."""
        self.asked: dict[Identity, Addressing] = {}
        places: list[tuple[int, ...]] = []
        for count in partitions:
            first = sum(map(len, places))
            places.append(tuple(range(first, first + count)))
        super().__init__(sum(partitions), _build, seed=seed, network=network, partitions=tuple(places))
        self.run(for_ns=0)
        for member in self.members:
            self.appear(member)

    def appear(self, member: int) -> None:
        for space in range(PARAMETERS.spaces):
            objects = tuple(self.object(member, space, index) for index in range(1, OBJECTS + 1))
            words = Addressing(caller=objects[0], objects=objects, operation=Operation.APPEAR).words
            self._put(member, Submission(payload=b"", words=words, place=objects[0].number))

    def _return(self, host: Host) -> None:
        super()._return(host)
        member = host.membership.member
        self.at(self.now_ns, lambda: self.appear(member))

    def machine(self, member: int) -> MachineCore:
        core = self.core(member)
        assert isinstance(core, MachineCore)
        return core

    def object(self, member: int, space: int = 0, index: int = 1) -> Reference:
        """Reference of an object of the present incarnation."""
        return Reference(member, self.hosts[member].membership.incarnation, space * OBJECTS_IN_SPACE + index)

    def call(
        self,
        caller: Reference,
        *objects: Reference,
        group: GroupId | None = None,
        operation: Operation = Operation.CALL,
        body: bytes = b"",
        **flags: bool,
    ) -> Identity:
        """Make a call or an operation. `flags`: those of its addressing."""
        addressing = Addressing(caller=caller, objects=objects, group=group, operation=operation, **flags)
        host = self.hosts[caller.member]
        host.submitted += 1
        stamp = Stamp(origin=caller.member, incarnation=caller.incarnation, number=host.submitted)
        name = (stamp.origin, stamp.incarnation, stamp.number)
        self.asked[name] = addressing
        payload = encode_stamp(stamp) + body
        self._put(caller.member, Submission(payload=payload, words=addressing.words, place=caller.number))
        return name

    def finish(self, caller: Reference, *objects: Reference, **words: Any) -> Identity:
        """Make a call, and run until all machines are at rest."""
        name = self.call(caller, *objects, **words)
        self.check_rest()
        return name

    def kinds_told(self, request: Identity) -> list[NewsKind]:
        """Kinds of the news about a request."""
        return [news.kind for news in self.told[request]]

    def calls_of(self, one: Reference) -> list[Identity]:
        """Calls of this object, in the order of delivery."""
        return [got.call for got in self.got if got.object == one]

    def receivers(self, call: Identity) -> list[Reference]:
        return sorted(got.object for got in self.got if got.call == call)

    def check_rest(self) -> None:
        """All machines are idle, nothing is held, and only timers of heartbeats are armed."""
        self.run(limit=500_000)
        for host in self.survivors():
            core = host.core
            timers = {timer: at_ns for timer, at_ns in host.timers.items() if timer.name not in HEARTBEATS}
            assert not host.queue and core.is_idle and not timers and core.buffered == 0, (
                f"machine {host.membership.member} is not at rest: {len(host.queue)} wait, idle {core.is_idle}, "
                f"held {core.buffered}, timers {timers} (seed {self.seed})"
            )

    def _put(self, member: int, submission: Submission) -> None:
        host = self.hosts[member]
        host.queue.append(submission)
        self._push(host)

    def _deliver(self, host: Host, delivery: Deliver) -> None:
        us = host.membership
        if delivery.inner is Kind.OBJECTS_NEWS:
            news = decode_news(delivery.payload)
            if delivery.seq:
                self.told.setdefault((us.member, us.incarnation, delivery.seq), []).append(news)
            else:
                self.heard.append((Reference(us.member, us.incarnation, delivery.place), news))
            return
        assert delivery.inner is Kind.APPLICATION
        stamp = decode_stamp(delivery.payload)
        call = (stamp.origin, stamp.incarnation, stamp.number)
        self.got.append(Got(Reference(us.member, us.incarnation, delivery.place), call))
        host.delivered.append(call)


def _build(membership: Membership, seed: int) -> MachineCore:
    return MachineCore(membership=membership, parameters=PARAMETERS, rng=random_for(seed, membership, "objects"))


def check_calls(world: World) -> None:
    """Integrity, no overtaking, and one order of all ordered calls."""
    sequences: dict[Reference, list[Identity]] = {}
    for got in world.got:
        sequences.setdefault(got.object, []).append(got.call)
    after: dict[Identity, set[Identity]] = {}
    for one, calls in sorted(sequences.items()):
        assert len(calls) == len(set(calls)), f"{one} got a call twice (seed {world.seed})"
        last: dict[Reference, Identity] = {}
        for call in calls:
            caller = world.asked[call].caller
            assert last.get(caller, call) <= call, f"at {one} {call} came after a later one (seed {world.seed})"
            last[caller] = call
        ordered = [call for call in calls if world.asked[call].is_ordered and not world.asked[call].is_direct]
        for first, second in pairwise(ordered):
            after.setdefault(first, set()).add(second)
    try:
        TopologicalSorter(after).prepare()
    except CycleError as error:
        raise AssertionError(f"the calls of all objects do not fit into one order (seed {world.seed})") from error
