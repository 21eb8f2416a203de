"""A topology as a simulated network: ports, bridges, shared buses, routers and links, with the fabric's semantics.

    node -> port's line (from node) -> [bus] -> bridge -> cut -> port's line (to node) -> node
                                                  └-> router -> cut -> link's line -> router -> [bus] -> bridge -> …

Multicast floods a segment and follows the tree of routers (topologies.model), a near multicast only floods its own
segment, unicast is switched and routed. A datagram to a router is copied there for each node of its segment.
One datagram is one frame, however large: nothing is fragmented. A frame with flipped bits is seen at the port, and its
node's kernel drops it: UDP's, IP's or Ethernet's check fails for any bit but those of the source's MAC address, which
is not checked. A frame travels for at least LEAST_TRAVEL_NS to a node.
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
"""Travel time of a frame on an unimpaired emulated network, from one node's socket to another's. Without it, members
that answer each other without delay would do so for ever at one instant. A path with a delay of this or more has its
delay."""

UNICAST_TTL = 64
"""Linux's default."""

HEADER_BYTES = 14 + 20 + 8
LEAST_FRAME_BYTES = 60

Counters: TypeAlias = dict[str, Any]
"""Counters of one direction of a port or a link, or of a bus, as in the manifest (docs/run-directory.md)."""

_SOURCE_MAC = range(6 * 8, 12 * 8)
_PAYLOAD_OF_IP = 34 * 8
"""First bit of the payload of IP, counted from the frame's first."""


@dataclass(slots=True, kw_only=True, eq=False)
class Datagram:
    """A UDP datagram in transit, immutable. `payload` is b"" if there is no tap.

    `flipped_bits`: corrupted bits, counted from the frame's first bit; `payload` is as it was sent.
    """

    source: Node
    destination: Node | None
    """None: a multicast group, or a `router`; of a trace datagram, the segment's monitor."""
    payload: bytes
    size_bytes: int
    """Size of the frame."""
    sent_ns: int
    message: Message | None = None
    incarnation: int = 0
    """Incarnation of the source."""
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
        """Whether the receiver's kernel accepts it."""
        return all(bit in _SOURCE_MAC for bit in self.flipped_bits)

    @property
    def is_routable(self) -> bool:
        """Whether a router accepts it: a router does not check UDP."""
        return all(bit in _SOURCE_MAC or bit >= _PAYLOAD_OF_IP for bit in self.flipped_bits)


class Tap(Protocol):
    """Sees every frame at every port: inbound as the node sent it, before any impairment; outbound as it reaches it."""

    def frame(self, port: Node, inbound: bool, at_ns: int, datagram: Datagram) -> None:
        """Called in the order of time."""


def frame_bytes(payload_bytes: int) -> int:
    """Size of the Ethernet frame around a UDP payload, without its check sequence."""
    return max(LEAST_FRAME_BYTES, HEADER_BYTES + payload_bytes)


class Network:
    """Network of one topology. Each direction of each port and link has a random generator derived from `seed`."""

    def __init__(self, topology: Topology, engine: Engine, *, seed: int, tap: Tap | None = None) -> None:
        self._segments = {
            partition.name: _Segment(partition, engine, seed=seed, tap=tap) for partition in topology.partitions
        }
        self.ports = tuple(port for segment in self._segments.values() for port in segment.ports)
        """Ports by member index."""
        self._links: dict[tuple[str, str], _LinkEnd] = {}
        if len(topology.partitions) > 1:
            self._connect_routers(topology, engine, seed)

    def port(self, node: Node) -> Port:
        return self.ports[node.index]

    def impair(self, node: Node, direction: Direction, impairment: Impairment) -> None:
        """Set the impairment of one direction of one port, from now on."""
        self.port(node).line(direction).change(impairment)

    def impair_link(self, link: Link, *, from_partition: str, impairment: Impairment) -> None:
        """Set the impairment of one direction of one link, from now on."""
        self._links[link.name, from_partition].line.change(impairment)

    def block(self, pairs: Collection[tuple[Node, Node]]) -> None:
        """From now on, drop frames from the first to the second node of each pair, and of no other pair."""
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
        """Number of frames in transit."""
        lines = sum(port.in_flight for port in self.ports)
        links = sum(end.line.backlog for end in self._links.values())
        return lines + links + sum(segment.in_flight for segment in self._segments.values())

    def port_counters(self) -> list[Counters]:
        """Counters of each direction of each port: offered frames = sent - duplicated + all three drops + backlog."""
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
    """Port of a node. `receiver` takes arriving datagrams; None: there is no node, while its network stays, as in the
    world `netns`: arriving frames are seen by the tap and dropped.
    """

    def __init__(self, node: Node, segment: _Segment, engine: Engine, *, seed: int, tap: Tap | None) -> None:
        self.node = node
        self.blocked: frozenset[int] = frozenset()
        """Members whose frames do not pass towards this node."""
        self.receiver: Callable[[Datagram], object] | None = None
        self.on_cut: Callable[[Datagram], object] | None = None
        """Called for each frame that a cut keeps from this node, to measure coverage."""
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
        """Send a datagram of the node."""
        if self._tap is not None:
            self._tap.frame(self.node, True, self._engine.now_ns, datagram)
        if not datagram.is_trace:
            self._from_node.enter(datagram)

    def offer(self, datagram: Datagram) -> None:
        """Take a frame from the bridge for this port."""
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
        """Counters of the bus; empty without one."""
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
    """One direction of a link, at its first router."""

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
    """Router of one partition. Routes are static; each is computed at its first use."""

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
        """Forward a frame from this segment to other segments."""
        if datagram.flipped_bits and not datagram.is_routable:
            return
        for end in self._onward(datagram):
            end.offer(datagram)

    def arrive(self, datagram: Datagram) -> None:
        """Take a frame from another router."""
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
        return (self._link_to(next_hop(self._topology, self._here, partition)),)

    def _link_to(self, neighbour: PartitionName) -> _LinkEnd:
        """The first link between the two, as in netem.wiring.plan."""
        pair = {self._here, neighbour}
        link = next(link for link in self._topology.links if {link.a, link.b} == pair)
        return self._links[link.name, self._here]

    def _distance(self, source: PartitionName) -> int:
        """Number of links between this partition and the source of a frame."""
        if source not in self._far:
            count, at = 0, self._here
            while at != source:
                count, at = count + 1, next_hop(self._topology, at, source)
            self._far[source] = count
        return self._far[source]
