"""Static routes between partitions: shortest paths over the links, and one multicast tree per source partition.

Shortest is by number of links; among equals the neighbour whose name sorts first. The multicast tree of a source is
made of the reverse paths to it: a partition's parent is its next hop towards the source. So unicast to a partition and
multicast from it take the same links, and every partition gets each frame exactly once. Faults do not change routes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

from topologies.model import PartitionName, Topology

_Graph: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
"""Each partition with its neighbours, both sorted by name; hashable, so that routes can be remembered."""


def next_hop(topology: Topology, at_partition: str, to_partition: str) -> PartitionName:
    """The neighbour of `at_partition` through which frames for `to_partition` go.

    Raises ValueError when the two are the same, unknown, or not connected.
    """
    towards = _next_hops(_graph(topology), to_partition)
    if at_partition not in towards:
        raise ValueError(f"{topology.name} has no route from {at_partition!r} to {to_partition!r}")
    return PartitionName(towards[at_partition])


def multicast_children(topology: Topology, source_partition: str, at_partition: str) -> tuple[PartitionName, ...]:
    """The neighbours to which the router of `at_partition` forwards multicast that began in `source_partition`."""
    towards = _next_hops(_graph(topology), source_partition)
    return tuple(PartitionName(name) for name in sorted(towards) if towards[name] == at_partition)


def unreachable(topology: Topology) -> tuple[PartitionName, ...]:
    """Partitions to which no path of links leads from the first one, in file order."""
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
    """For every other partition that can reach `to_partition`: its next hop on the way there."""
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
