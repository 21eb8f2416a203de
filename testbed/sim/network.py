"""A topology as a simulated network: ports, bridges, shared buses, routers and links, with the fabric's meaning.

    node -> port's line (from node) -> [bus] -> bridge -> cut -> port's line (to node) -> node
                                                  └-> router -> cut -> link's line -> router -> [bus] -> bridge -> …

Multicast floods a segment and follows the tree of routers (topologies.model), a near multicast only floods its own
segment, unicast is switched and routed. What is for a router is routed to it, and copied for each node of its segment.
One datagram is one frame, however large: nothing is fragmented. A frame whose bits were flipped on the way is seen at
the port, and its node's kernel throws it away: UDP's, IP's or Ethernet's check fails whichever bit it was, but for
those of the source's MAC address, which nobody checks. No frame reaches a node sooner than LEAST_TRAVEL_NS after it was
sent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Protocol, TypeAlias

from node.wire import Message
from testbed.sim.csma import CollisionBus
from testbed.sim.engine import Engine
from testbed.sim.line import Line, Server
from testbed.spec.nodes import MULTICAST_TTL
from topologies.model import (
    Access,
    Bus,
    Direction,
    Impairment,
    Link,
    Node,
    Partition,
    PartitionName,
    Topology,
    multicast_children,
    next_hop,
)

LEAST_TRAVEL_NS = 20_000
"""What a frame takes on unimpaired real wires, from one node's socket to another's. Without it, members that answer
each other over clear wires would do so for ever at one instant. A path with a delay of this or more has its delay."""

UNICAST_TTL = 64
"""Linux's default."""

HEADER_BYTES = 14 + 20 + 8
LEAST_FRAME_BYTES = 60

Counters: TypeAlias = dict[str, Any]
"""Of one direction of a port or a link, or of a bus, as the manifest has them (docs/run-directory.md)."""

_SOURCE_MAC = range(6 * 8, 12 * 8)
_PAYLOAD_OF_IP = 34 * 8
"""Bits of a frame, counted from its first."""


@dataclass(slots=True, kw_only=True, eq=False)
class Datagram:
    """A UDP datagram under way; nobody changes it. `payload` is b"" when nobody looks (no tap).

    `flipped_bits`: damage done on the way, counted from the frame's first bit; `payload` is what was sent.
    """

    source: Node
    destination: Node | None
    """None: a multicast group, or a `router`; of a trace datagram, the segment's monitor."""
    payload: bytes
    size_bytes: int
    """Of the frame."""
    sent_ns: int
    message: Message | None = None
    incarnation: int = 0
    """Of the source."""
    transmission: int = 0
    is_trace: bool = False
    is_near: bool = False
    """Without a destination: to the group of the source's own segment, and to no router's."""
    router: PartitionName | None = None
    """Without a destination: to the router of this partition, which copies it for each node there."""
    flipped_bits: tuple[int, ...] = ()

    def damaged(self, bit: int) -> Datagram:
        """A copy with one more flipped bit."""
        return replace(self, flipped_bits=(*self.flipped_bits, bit))

    @property
    def is_intact(self) -> bool:
        """Whether the receiver's kernel finds nothing wrong with it."""
        return all(bit in _SOURCE_MAC for bit in self.flipped_bits)

    @property
    def is_routable(self) -> bool:
        """Whether a router finds nothing wrong with it: it does not look at UDP."""
        return all(bit in _SOURCE_MAC or bit >= _PAYLOAD_OF_IP for bit in self.flipped_bits)


class Tap(Protocol):
    """Sees every frame at every port: inbound as the node sent it, before any impairment; outbound as it reaches it."""

    def frame(self, port: Node, inbound: bool, at_ns: int, datagram: Datagram) -> None:
        """Called in the order of time."""


def frame_bytes(payload_bytes: int) -> int:
    """Size of the Ethernet frame around a UDP payload, without its check sequence."""
    return max(LEAST_FRAME_BYTES, HEADER_BYTES + payload_bytes)


class Network:
    """All wires of one topology. `seed` feeds a generator of its own for each direction of each port and link."""

    def __init__(self, topology: Topology, engine: Engine, *, seed: int, tap: Tap | None = None) -> None:
        self._segments = {
            partition.name: _Segment(partition, engine, seed=seed, tap=tap) for partition in topology.partitions
        }
        self.ports = tuple(port for segment in self._segments.values() for port in segment.ports)
        """By member index."""
        self._links: dict[tuple[str, str], _LinkEnd] = {}
        if len(topology.partitions) > 1:
            self._connect_routers(topology, engine, seed)

    def port(self, node: Node) -> Port:
        return self.ports[node.index]

    def impair(self, node: Node, direction: Direction, impairment: Impairment) -> None:
        """One direction of one port, from now on."""
        self.port(node).line(direction).change(impairment)

    def impair_link(self, link: Link, *, from_partition: str, impairment: Impairment) -> None:
        """One direction of one link, from now on."""
        self._links[link.name, from_partition].line.change(impairment)

    def block(self, pairs: Collection[tuple[Node, Node]]) -> None:
        """From now on, what the first of a pair sends does not reach the second; all other ways are open."""
        blocked: dict[int, set[int]] = {}
        for sender, receiver in pairs:
            blocked.setdefault(receiver.index, set()).add(sender.index)
        for port in self.ports:
            port.blocked = frozenset(blocked.get(port.node.index, ()))

    def block_links(self, names: Collection[str]) -> None:
        """From now on these links are cut both ways, and no other."""
        for (name, _), end in self._links.items():
            end.is_blocked = name in names

    @property
    def in_flight(self) -> int:
        """Frames under way."""
        lines = sum(port.in_flight for port in self.ports)
        links = sum(end.line.backlog for end in self._links.values())
        return lines + links + sum(segment.in_flight for segment in self._segments.values())

    def port_counters(self) -> list[Counters]:
        """Of each direction of each port: offered frames = sent - duplicated + all three drops + backlog."""
        return [port.counters(direction) for port in self.ports for direction in Direction]

    def link_counters(self) -> list[Counters]:
        return [end.counters() for end in self._links.values()]

    def bus_counters(self) -> list[Counters]:
        found = (segment.bus_counters() for segment in self._segments.values())
        return [counters for counters in found if counters]

    def _connect_routers(self, topology: Topology, engine: Engine, seed: int) -> None:
        routers = {name: _Router(topology, segment, self._links) for name, segment in self._segments.items()}
        for link in topology.links:
            for here, there, impairment in ((link.a, link.b, link.a_to_b), (link.b, link.a, link.b_to_a)):
                rng = Random(f"{seed}/{link.name}/{here}")  # noqa: S311 (repeatable, not secret)
                self._links[link.name, here] = _LinkEnd(link, here, impairment, engine, rng, routers[there])


class Port:
    """Where a node is plugged in. `receiver` takes what arrives; None: there is no node, while its wire stays, as in
    the world `netns`: what arrives there is seen and comes to nothing.
    """

    def __init__(self, node: Node, segment: _Segment, engine: Engine, *, seed: int, tap: Tap | None) -> None:
        self.node = node
        self.blocked: frozenset[int] = frozenset()
        """Members whose frames do not pass towards this node."""
        self.receiver: Callable[[Datagram], object] | None = None
        self.on_cut: Callable[[Datagram], object] | None = None
        """Told of each frame that a cut keeps from this node, for those who measure coverage."""
        self._segment = segment
        self._engine = engine
        self._tap = tap
        self._cut_dropped = 0
        self._arriving = 0
        self._from_node = self._make_line(Direction.FROM_NODE, seed, self._has_left)
        self._to_node = self._make_line(Direction.TO_NODE, seed, self._has_come)

    @property
    def in_flight(self) -> int:
        return self._from_node.backlog + self._to_node.backlog + self._arriving

    def line(self, direction: Direction) -> Line[Datagram]:
        return self._to_node if direction is Direction.TO_NODE else self._from_node

    def send(self, datagram: Datagram) -> None:
        """The node puts a datagram on the wire."""
        if self._tap is not None:
            self._tap.frame(self.node, True, self._engine.now_ns, datagram)
        if not datagram.is_trace:
            self._from_node.enter(datagram)

    def offer(self, datagram: Datagram) -> None:
        """The bridge has a frame for this port."""
        if self.blocked and datagram.source.index in self.blocked:
            self._cut_dropped += 1
            if self.on_cut is not None:
                self.on_cut(datagram)
        else:
            self._to_node.enter(datagram)

    def counters(self, direction: Direction) -> Counters:
        cut_dropped = self._cut_dropped if direction is Direction.TO_NODE else 0
        return {"node": self.node.name, "direction": direction.value} | self.line(direction).counters(cut_dropped)

    def _make_line(self, direction: Direction, seed: int, forward: Callable[[Datagram], object]) -> Line[Datagram]:
        rng = Random(f"{seed}/{self.node.name}/{direction.value}")  # noqa: S311 (repeatable, not secret)
        impairment = self.node.impairment(direction)
        return Line(self._engine, impairment, rng, forward=forward, damage=Datagram.damaged)

    def _has_left(self, datagram: Datagram) -> None:
        self._segment.enter(datagram, self)

    def _has_come(self, datagram: Datagram) -> None:
        engine = self._engine
        if engine.now_ns < datagram.sent_ns + LEAST_TRAVEL_NS:
            self._arriving += 1
            engine.at(datagram.sent_ns + LEAST_TRAVEL_NS, self._arrive, datagram)
            return
        if self._tap is not None:
            self._tap.frame(self.node, False, engine.now_ns, datagram)
        if self.receiver is not None and (not datagram.flipped_bits or datagram.is_intact):
            self.receiver(datagram)

    def _arrive(self, datagram: Datagram) -> None:
        self._arriving -= 1
        self._has_come(datagram)


class _Passage:
    """A frame on the shared bus, and the port by which it came (None: the router)."""

    __slots__ = ("datagram", "origin", "size_bytes", "station")

    def __init__(self, datagram: Datagram, origin: Port | None) -> None:
        self.datagram = datagram
        self.origin = origin
        self.size_bytes = datagram.size_bytes
        self.station = _ROUTER if origin is None else origin.node.index


_ROUTER = -1
"""As a station of a bus."""


class _Segment:
    """One partition: its bridge and, if it has one, the bus before it."""

    def __init__(self, partition: Partition, engine: Engine, *, seed: int, tap: Tap | None) -> None:
        self.partition = partition
        self.ports = tuple(Port(node, self, engine, seed=seed, tap=tap) for node in partition.nodes)
        self.router: _Router | None = None
        self._port_of = {port.node.index: port for port in self.ports}
        self._bus = None if partition.bus is None else self._make_bus(partition.bus, engine, seed)

    @property
    def in_flight(self) -> int:
        return 0 if self._bus is None else self._bus.backlog

    def has(self, node: Node) -> bool:
        return node.index in self._port_of

    def enter(self, datagram: Datagram, origin: Port | None) -> None:
        if self._bus is not None:
            self._bus.enter(_Passage(datagram, origin))
        else:
            self._switch(datagram, origin)

    def bus_counters(self) -> Counters:
        """Empty without a bus."""
        bus = self._bus
        if bus is None:
            return {}
        counters = {
            "partition": self.partition.name,
            "sent_frames": bus.sent,
            "sent_bytes": bus.sent_bytes,
            "queue_dropped_frames": bus.queue_dropped,
            "backlog_frames": bus.backlog,
        }
        if isinstance(bus, CollisionBus):
            counters |= {"collisions": bus.collisions, "collision_dropped_frames": bus.collision_dropped}
        return counters

    def _make_bus(self, bus: Bus, engine: Engine, seed: int) -> Server[_Passage] | CollisionBus[_Passage]:
        rate_bps, queue_frames, forward = bus.rate_bps, bus.queue_frames, self._has_passed
        if bus.access is Access.QUEUE:
            return Server(engine, rate_bps=rate_bps, queue_frames=queue_frames, forward=forward)
        rng = Random(f"{seed}/{self.partition.name}/bus")  # noqa: S311 (repeatable, not secret)
        return CollisionBus(engine, rng, rate_bps=rate_bps, queue_frames=queue_frames, forward=forward)

    def _has_passed(self, passage: _Passage) -> None:
        self._switch(passage.datagram, passage.origin)

    def _switch(self, datagram: Datagram, origin: Port | None) -> None:
        target = datagram.destination
        if target is not None:
            if (neighbour := self._port_of.get(target.index)) is not None:
                neighbour.offer(datagram)
                return
        elif datagram.router is None:
            for port in self.ports:
                if port is not origin:
                    port.offer(datagram)
            if datagram.is_near:
                return
        if origin is not None and self.router is not None:
            self.router.route(datagram)


class _LinkEnd:
    """One direction of a link, as its first router has it."""

    def __init__(
        self, link: Link, here: PartitionName, impairment: Impairment, engine: Engine, rng: Random, far: _Router
    ) -> None:
        self.is_blocked = False
        self._link = link
        self._here = here
        self._cut_dropped = 0
        self.line: Line[Datagram] = Line(engine, impairment, rng, forward=far.arrive, damage=Datagram.damaged)

    def offer(self, datagram: Datagram) -> None:
        if self.is_blocked:
            self._cut_dropped += 1
        else:
            self.line.enter(datagram)

    def counters(self) -> Counters:
        return {"link": self._link.name, "from_partition": self._here} | self.line.counters(self._cut_dropped)


class _Router:
    """Of one partition. Routes are static; each is worked out when it is first taken."""

    def __init__(self, topology: Topology, segment: _Segment, links: dict[tuple[str, str], _LinkEnd]) -> None:
        self._topology = topology
        self._segment = segment
        self._here = segment.partition.name
        self._links = links
        self._towards: dict[PartitionName, tuple[_LinkEnd, ...]] = {}
        self._away_from: dict[PartitionName, tuple[_LinkEnd, ...]] = {}
        self._far: dict[PartitionName, int] = {}
        segment.router = self

    def route(self, datagram: Datagram) -> None:
        """A frame from our own segment that concerns others."""
        if datagram.flipped_bits and not datagram.is_routable:
            return
        for end in self._onward(datagram):
            end.offer(datagram)

    def arrive(self, datagram: Datagram) -> None:
        """A frame from another router."""
        if datagram.flipped_bits and not datagram.is_routable:
            return
        target = datagram.destination
        is_group = target is None and datagram.router is None
        ttl = MULTICAST_TTL if is_group else UNICAST_TTL
        if ttl - self._distance(datagram.source.partition) <= 1:
            return
        if datagram.router == self._here:
            for node in self._segment.partition.nodes:
                self._segment.enter(replace(datagram, destination=node, router=None), None)
            return
        is_here = target is not None and self._segment.has(target)
        if is_group or is_here:
            self._segment.enter(datagram, None)
        if not is_here:
            for end in self._onward(datagram):
                end.offer(datagram)

    def _onward(self, datagram: Datagram) -> Iterable[_LinkEnd]:
        target = datagram.destination
        to = datagram.router if target is None else target.partition
        table, name = (self._away_from, datagram.source.partition) if to is None else (self._towards, to)
        if name not in table:
            table[name] = self._tree_of(name) if to is None else self._way_to(name)
        return table[name]

    def _tree_of(self, source: PartitionName) -> tuple[_LinkEnd, ...]:
        return tuple(self._link_to(child) for child in multicast_children(self._topology, source, self._here))

    def _way_to(self, partition: PartitionName) -> tuple[_LinkEnd, ...]:
        try:
            return (self._link_to(next_hop(self._topology, self._here, partition)),)
        except ValueError:
            return ()  # no path of links leads there: such partitions are apart, as the file says

    def _link_to(self, neighbour: PartitionName) -> _LinkEnd:
        """The first link between the two, as in netem.wiring.plan."""
        pair = {self._here, neighbour}
        link = next(link for link in self._topology.links if {link.a, link.b} == pair)
        return self._links[link.name, self._here]

    def _distance(self, source: PartitionName) -> int:
        """Links between us and a partition from which something has come."""
        if source not in self._far:
            count, at = 0, self._here
            while at != source:
                count, at = count + 1, next_hop(self._topology, at, source)
            self._far[source] = count
        return self._far[source]
