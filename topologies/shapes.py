"""Topologies from the names of partitions and nodes."""

from __future__ import annotations

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


def one_partition(nodes: int) -> Topology:
    """`nodes` nodes on one switch."""
    return network("one-partition", {"p1": [f"n{number}" for number in range(1, nodes + 1)]})


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
