"""Shapes have the nodes and links that their names promise, and the loader accepts them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.topologies.shapes import mesh, ring, star, tree
from topologies import shapes
from topologies.model import Impairment, Topology

Shape = Callable[[int, int], Topology]


@pytest.mark.parametrize(
    ("shape", "links"),
    [
        (ring, ["p1--p2", "p2--p3", "p3--p4", "p4--p1"]),
        (star, ["p1--p2", "p1--p3", "p1--p4"]),
        (tree, ["p1--p2", "p1--p3", "p2--p4"]),
        (mesh, ["p1--p2", "p1--p3", "p1--p4", "p2--p3", "p2--p4", "p3--p4"]),
    ],
)
def test_links_of_four_partitions(shape: Shape, links: list[str]) -> None:
    topology = shape(4, 3)
    assert [link.name for link in topology.links] == links
    assert len(topology) == 12


def test_one_partition_has_no_link() -> None:
    topology = shapes.one_partition(7)
    assert (len(topology), topology.links, topology.name) == (7, (), "one-partition")


def test_impairs_every_port() -> None:
    slow = Impairment(delay_ns=5)
    topology = shapes.with_ports(ring(3, 2), to_node=slow)
    assert {node.to_node for node in topology.nodes()} == {slow}
    assert all(node.from_node.is_clear for node in topology.nodes())
    assert topology.node("p3/n2").to_node is slow
