"""Topologies by shape: one partition, or partitions in a ring, star, tree or mesh. Pure functions; partitions are p1,
p2, …
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from topologies.model import (
    CLEAR,
    Bus,
    Impairment,
    Link,
    Node,
    NodeName,
    Partition,
    PartitionName,
    Topology,
)


def one_partition(nodes: int, *, name: str = "one-partition") -> Topology:
    """`nodes` nodes on one switch."""
    return _shape(name, 1, nodes, [])


def ring(partitions: int, nodes: int, *, name: str = "ring") -> Topology:
    """Each partition is joined to the next and the last to the first; two partitions share a single link."""
    edges = [(at, at % partitions + 1) for at in range(1, partitions + 1)]
    return _shape(name, partitions, nodes, edges[: partitions if partitions > 2 else partitions - 1])


def star(partitions: int, nodes: int, *, name: str = "star") -> Topology:
    """All partitions are joined to the first."""
    return _shape(name, partitions, nodes, [(1, at) for at in range(2, partitions + 1)])


def tree(partitions: int, nodes: int, *, name: str = "tree") -> Topology:
    """A binary tree in breadth-first order: partition k is joined to k // 2."""
    return _shape(name, partitions, nodes, [(at // 2, at) for at in range(2, partitions + 1)])


def mesh(partitions: int, nodes: int, *, name: str = "mesh") -> Topology:
    """Each partition is joined to each other."""
    return _shape(name, partitions, nodes, itertools.combinations(range(1, partitions + 1), 2))


def network(
    name: str,
    members: Mapping[str, Sequence[str]],
    *,
    links: Iterable[Link] = (),
    buses: Mapping[str, Bus] | None = None,
    description: str = "",
) -> Topology:
    """A topology of clear ports from the names of partitions and their nodes, numbered in the order given."""
    partitions = []
    index = 0
    for position, (partition, names) in enumerate(members.items(), start=1):
        nodes = _nodes(partition, position, names, index)
        index += len(nodes)
        bus = (buses or {}).get(partition)
        partitions.append(Partition(name=PartitionName(partition), index=position, nodes=nodes, bus=bus))
    return Topology(name=name, partitions=tuple(partitions), links=tuple(links), description=description)


def link(a: str, b: str, *, a_to_b: Impairment = CLEAR, b_to_a: Impairment = CLEAR) -> Link:
    """Link between two partitions, with its standard name."""
    return Link(name=f"{a}--{b}", a=PartitionName(a), b=PartitionName(b), a_to_b=a_to_b, b_to_a=b_to_a)


def with_ports(topology: Topology, to_node: Impairment = CLEAR, from_node: Impairment = CLEAR) -> Topology:
    """The topology with these impairments at every port."""
    partitions = (
        replace(
            partition,
            nodes=tuple(replace(node, to_node=to_node, from_node=from_node) for node in partition.nodes),
        )
        for partition in topology.partitions
    )
    return replace(topology, partitions=tuple(partitions))


def _shape(name: str, partitions: int, nodes: int, edges: Iterable[tuple[int, int]]) -> Topology:
    if partitions < 1 or nodes < 1:
        raise ValueError(f"a topology needs at least one partition and one node in each, not {partitions} and {nodes}")
    members = {f"p{at}": [f"n{number}" for number in range(1, nodes + 1)] for at in range(1, partitions + 1)}
    return network(name, members, links=[link(f"p{a}", f"p{b}") for a, b in edges])


def _nodes(partition: str, position: int, names: Sequence[str], first_index: int) -> tuple[Node, ...]:
    return tuple(
        Node(
            name=NodeName(f"{partition}/{name}"),
            index=first_index + number - 1,
            partition=PartitionName(partition),
            partition_index=position,
            number=number,
        )
        for number, name in enumerate(names, start=1)
    )
