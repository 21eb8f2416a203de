"""The network as values, from a topology file that was read and checked.

All values are frozen and valid, with units in their names. `topologies.load` makes them from YAML, `netem.wiring.plan`
turns them into kernel steps, `analysis` reads requested values from them. Addresses, MAC addresses and names derive
from positions in the topology, so that two runs of one file are the same network.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import NewType, TypeAlias

from topologies.formats.errors import did_you_mean
from topologies.formats.units import shown

NodeName = NewType("NodeName", str)
"""`partition/node`, for example `p1/n3`; unique in a topology."""

PartitionName = NewType("PartitionName", str)

MAX_NODES_PER_PARTITION = 1000
"""A Linux bridge has at most 1024 ports; some are needed for the router and as a reserve."""

MAX_PARTITIONS = 200
MAX_NODES = 2**16 - 1
"""Member numbers have 16 bits on the wire and in trace records."""

NETWORK_PREFIX_LENGTH = 16
MULTICAST_GROUP = "239.77.0.1"
"""Multicast group of all members; each partition has one of its own, too: Partition.multicast_group."""

PROTOCOL_PORT = 7700
TRACE_PORT = 7701
TRACE_MAC = "01:80:c2:00:00:0e"
"""Link-local group address that no bridge forwards: a frame sent there reaches the switch port and never the wire."""


class Distribution(enum.Enum):
    """Shape of a jitter; the tables of all but UNIFORM are netem's."""

    UNIFORM = "uniform"
    NORMAL = "normal"
    PARETO = "pareto"
    PARETONORMAL = "paretonormal"


class Direction(enum.Enum):
    """Direction seen from the node: it receives TO_NODE, and sends FROM_NODE."""

    TO_NODE = "to-node"
    FROM_NODE = "from-node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Impairment:
    """Impairment of one direction of a wire: a delay line, then a queue that drains at `rate_bps`.

    `loss_burst_frames` is the mean length of a loss burst: 1.0 means independent losses, more means Gilbert-Elliott
    with the stationary ratio `loss_ratio`. `reorder_ratio` of the frames skip the delay line (needs a delay). The queue
    limit is in frames or in bytes, not both; without a rate the queue never fills.
    """

    delay_ns: int = 0
    jitter_ns: int = 0
    distribution: Distribution = Distribution.UNIFORM
    loss_ratio: float = 0.0
    loss_burst_frames: float = 1.0
    duplicate_ratio: float = 0.0
    reorder_ratio: float = 0.0
    corrupt_ratio: float = 0.0
    rate_bps: int | None = None
    queue_frames: int | None = None
    queue_bytes: int | None = None

    def __post_init__(self) -> None:
        self._check_delay_line()
        self._check_loss()
        self._check_queue()

    def _check_delay_line(self) -> None:
        for name in ("loss_ratio", "duplicate_ratio", "reorder_ratio", "corrupt_ratio"):
            ratio = getattr(self, name)
            if not 0.0 <= ratio <= 1.0:
                raise ValueError(f"{name} must lie between 0 and 1, not {ratio}")
        if self.delay_ns < 0 or self.jitter_ns < 0:
            raise ValueError("delay and jitter must not be negative")
        if self.jitter_ns > self.delay_ns:
            raise ValueError("jitter must not exceed the delay: a frame cannot arrive before it was sent")
        if self.reorder_ratio > 0 and self.delay_ns == 0:
            raise ValueError("reorder needs a delay: reordered frames are those that skip it")

    def _check_loss(self) -> None:
        if self.loss_burst_frames < 1.0:
            raise ValueError("a loss burst has at least 1 frame")
        if self.loss_burst_frames > 1.0 and self.loss_ratio >= 1.0:
            raise ValueError("bursty loss needs a loss below 100 %")
        if self.loss_burst_frames > 1.0 and self.loss_ratio > self.loss_burst_frames / (self.loss_burst_frames + 1.0):
            # Gilbert-Elliott: a gap has at least one frame, so bursts of mean n lose at most n of n + 1 frames.
            raise ValueError("this loss needs longer bursts: bursts of n frames lose at most n / (n + 1) of the frames")

    def _check_queue(self) -> None:
        if self.rate_bps is not None and self.rate_bps <= 0:
            raise ValueError("rate must be positive")
        if self.queue_frames is not None and self.queue_bytes is not None:
            raise ValueError("give the queue in frames or in bytes, not both")
        if (self.queue_frames is not None or self.queue_bytes is not None) and self.rate_bps is None:
            raise ValueError("a queue limit needs a rate: without one the queue never fills")
        if self.queue_frames is not None and self.queue_frames < 1:
            raise ValueError("a queue holds at least 1 frame")
        if self.queue_bytes is not None and self.queue_bytes < 1:
            raise ValueError("a queue holds at least 1 byte")

    @property
    def is_clear(self) -> bool:
        """True when frames pass unchanged."""
        return self == CLEAR


CLEAR = Impairment()


class Access(enum.Enum):
    """How frames get onto a bus: in the order in which they come, or by CSMA/CD (world sim alone)."""

    QUEUE = "queue"
    CSMA_CD = "csma-cd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bus:
    """A medium that all frames of a partition share, as on bus Ethernet: serialised at `rate_bps`, limit in frames (of
    each station, with CSMA/CD)."""

    rate_bps: int
    queue_frames: int = 1000
    access: Access = Access.QUEUE

    def __post_init__(self) -> None:
        if self.rate_bps <= 0:
            raise ValueError("rate must be positive")
        if self.queue_frames < 1:
            raise ValueError("a queue holds at least 1 frame")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One member. `index` is its member number in the whole topology (0-based, in file order)."""

    name: NodeName
    index: int
    partition: PartitionName
    partition_index: int
    """1-based position of the partition in the topology."""
    number: int
    """1-based position of the node in its partition."""
    to_node: Impairment = CLEAR
    from_node: Impairment = CLEAR

    @property
    def ip(self) -> str:
        """IPv4 address: `10.<partition>.<high>.<low>`, never .0 or .255 in the last place."""
        return f"10.{self.partition_index}.{(self.number - 1) // 250}.{(self.number - 1) % 250 + 1}"

    @property
    def mac(self) -> str:
        return f"02:0b:00:{self.partition_index:02x}:{self.number >> 8:02x}:{self.number & 0xFF:02x}"

    @property
    def port_device(self) -> str:
        """Name of the switch port's device in the fabric namespace (at most 15 characters)."""
        return f"ob{self.index}"

    @property
    def port_ifindex(self) -> int:
        """Interface index of the switch port. Ports have a range of their own, so that one filter captures them all."""
        return PORT_IFINDEX_BASE + self.index

    def impairment(self, direction: Direction) -> Impairment:
        return self.to_node if direction is Direction.TO_NODE else self.from_node


PORT_IFINDEX_BASE = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One Ethernet segment: a bridge, its nodes, and the medium they may share."""

    name: PartitionName
    index: int
    nodes: tuple[Node, ...]
    bus: Bus | None = None

    @property
    def network(self) -> str:
        return f"10.{self.index}.0.0/{NETWORK_PREFIX_LENGTH}"

    @property
    def router_ip(self) -> str:
        return f"10.{self.index}.255.254"

    @property
    def router_mac(self) -> str:
        return f"02:0b:00:{self.index:02x}:ff:fe"

    @property
    def multicast_group(self) -> str:
        """Group address of near multicasts, which stay in this segment. They have a TTL of 1, and no router has a
        multicast route for the address.
        """
        return f"239.77.1.{self.index}"

    @property
    def monitor_ip(self) -> str:
        """Destination address of trace datagrams; no node has it, and its static neighbour entry is `TRACE_MAC`."""
        return f"10.{self.index}.255.253"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A wire between the routers of two partitions, each direction with its own impairment."""

    name: str
    """`a--b`, partitions in the order of the link in the file."""
    a: PartitionName
    b: PartitionName
    a_to_b: Impairment = CLEAR
    b_to_a: Impairment = CLEAR


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A whole network. Partitions, nodes and links keep the order of the file."""

    name: str
    partitions: tuple[Partition, ...]
    links: tuple[Link, ...] = ()
    description: str = ""
    _by_name: dict[NodeName, Node] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {node.name: node for node in self.nodes()})

    def nodes(self) -> Iterator[Node]:
        """All nodes by member index."""
        for partition in self.partitions:
            yield from partition.nodes

    def node(self, name: str) -> Node:
        return self._by_name[NodeName(name)]

    @property
    def has_collisions(self) -> bool:
        """Whether any bus is CSMA/CD, which wires are not."""
        return any(part.bus is not None and part.bus.access is Access.CSMA_CD for part in self.partitions)

    def partition(self, name: str) -> Partition:
        for partition in self.partitions:
            if partition.name == name:
                return partition
        raise KeyError(name)

    def link(self, name: str) -> Link:
        for link in self.links:
            if link.name == name:
                return link
        raise KeyError(name)

    def __len__(self) -> int:
        return len(self._by_name)


# Static routes: shortest paths by number of links, among equals by the neighbour whose name sorts first. The multicast
# tree of a source is made of the reverse paths to it, so unicast to a partition and multicast from it take the same
# links, and every partition gets each frame exactly once. Faults do not change routes.

_Graph: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
"""Each partition with its neighbours, both sorted by name; hashable, so that routes can be cached."""


def next_hop(topology: Topology, at_partition: str, to_partition: str) -> PartitionName:
    """Neighbour of `at_partition` on the route to `to_partition`.

    Raises ValueError when the two are the same, unknown, or not connected.
    """
    towards = _next_hops(_graph(topology), to_partition)
    if at_partition not in towards:
        raise ValueError(f"{topology.name} has no route from {at_partition!r} to {to_partition!r}")
    return PartitionName(towards[at_partition])


def multicast_children(topology: Topology, source_partition: str, at_partition: str) -> tuple[PartitionName, ...]:
    """Neighbours to which the router of `at_partition` forwards multicasts from `source_partition`."""
    towards = _next_hops(_graph(topology), source_partition)
    return tuple(PartitionName(name) for name in sorted(towards) if towards[name] == at_partition)


def unreachable(topology: Topology) -> tuple[PartitionName, ...]:
    """Partitions without a path of links from the first one, in file order."""
    first, *others = (partition.name for partition in topology.partitions)
    towards = _next_hops(_graph(topology), first)
    return tuple(name for name in others if name not in towards)


def _graph(topology: Topology) -> _Graph:
    neighbours: dict[str, set[str]] = {partition.name: set() for partition in topology.partitions}
    for link in topology.links:
        neighbours[link.a].add(link.b)
        neighbours[link.b].add(link.a)
    return tuple((name, tuple(sorted(neighbours[name]))) for name in sorted(neighbours))


@lru_cache(maxsize=1024)
def _next_hops(graph: _Graph, to_partition: str) -> Mapping[str, str]:
    """Next hop of every other partition that can reach `to_partition`."""
    neighbours = dict(graph)
    if to_partition not in neighbours:
        return {}
    distances = {to_partition: 0}
    queue = deque([to_partition])
    while queue:
        at = queue.popleft()
        for neighbour in neighbours[at]:
            if neighbour not in distances:
                distances[neighbour] = distances[at] + 1
                queue.append(neighbour)
    return {
        name: min(one for one in neighbours[name] if distances[one] == distances[name] - 1)
        for name in distances
        if name != to_partition
    }


# Selectors: `*` all, `p1/*` a partition, `p1/n2..n4` a range in file order, `p1/n3` one node.


ALL_NODES = "*"


class SelectError(ValueError):
    """A selector names nothing in this topology; `str()` names valid ones."""


def select(topology: Topology, selectors: Iterable[str]) -> tuple[Node, ...]:
    """Nodes that any of the selectors names, each once, in member order."""
    chosen = {node.index: node for selector in selectors for node in _matching(topology, selector)}
    return tuple(chosen[index] for index in sorted(chosen))


def shortened(names: Collection[NodeName], topology: Topology) -> str:
    """Nodes as the shortest list of selectors: `p1/*, p2/n1..n3, p3/n2`; empty for none."""
    if len(names) == len(topology):
        return ALL_NODES
    return ", ".join(shortened_by_partition(names, topology))


def shortened_by_partition(names: Collection[NodeName], topology: Topology) -> Iterator[str]:
    """The single selectors of `shortened`, with all nodes of the only partition as `p1/*`."""
    return (word for partition in topology.partitions for word in _shortened(set(names), partition))


def _shortened(names: set[NodeName], partition: Partition) -> list[str]:
    members = [node.name in names for node in partition.nodes]
    if all(members):
        return [f"{partition.name}/*"]
    words, position = [], 0
    for is_named, run in groupby(members):
        length = len(list(run))
        if is_named:
            words += _neighbours(partition.nodes[position : position + length])
        position += length
    return words


def _neighbours(nodes: Sequence[Node]) -> list[str]:
    """Selectors of neighbours in the order of the file: a range if it is shorter than a list."""
    if len(nodes) < 3:
        return [node.name for node in nodes]
    return [f"{nodes[0].name}..{nodes[-1].name.partition('/')[2]}"]


def specificity(selector: str) -> int:
    """Rank of a selector: 0 for `*`, 1 for a partition, 2 for a range, 3 for a node; the greater one wins."""
    if selector == "*":
        return 0
    if selector.endswith("/*"):
        return 1
    return 2 if ".." in selector else 3


def select_link(topology: Topology, name: str) -> Link:
    """Link called `name`."""
    for link in topology.links:
        if link.name == name:
            return link
    names = [link.name for link in topology.links]
    if not names:
        raise SelectError(f"{shown(name)} names no link: the topology {topology.name} has none")
    reverse = "--".join(reversed(name.split("--")))
    hint = f"; did you mean {reverse}?" if reverse in names else did_you_mean(name, names)
    raise SelectError(f"{shown(name)} names no link of {topology.name}{hint or '; its links are ' + _listed(names)}")


def _matching(topology: Topology, selector: str) -> tuple[Node, ...]:
    if selector == "*":
        return tuple(topology.nodes())
    partition_name, _, rest = selector.partition("/")
    nodes = next((one.nodes for one in topology.partitions if one.name == partition_name), ())
    if rest == "*":
        matching = nodes
    else:
        first, dots, last = rest.partition("..")
        matching = _between(nodes, first, last if dots else first)
    if not matching:
        raise _unknown(topology, selector)
    return matching


def _between(nodes: tuple[Node, ...], first: str, last: str) -> tuple[Node, ...]:
    numbers = {node.name.partition("/")[2]: node.number for node in nodes}
    if first not in numbers or last not in numbers:
        return ()
    return nodes[numbers[first] - 1 : numbers[last]]


def _unknown(topology: Topology, selector: str) -> SelectError:
    names = [node.name for node in topology.nodes()]
    selectors = ["*", *(f"{partition.name}/*" for partition in topology.partitions)]
    if selector in {partition.name for partition in topology.partitions}:
        hint = f"; did you mean {selector}/*?"
    else:
        hint = did_you_mean(selector, names)
    allowed = f"use {_listed(selectors)} or nodes such as {names[0]}"
    return SelectError(f"{shown(selector)} names no node of {topology.name}{hint or '; ' + allowed}")


def _listed(names: list[str]) -> str:
    return ", ".join(names if len(names) <= 6 else [*names[:5], "…"])
