"""Topologies by shape: partitions p1, p2, … in a ring, star, tree or mesh."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from topologies.model import Topology
from topologies.shapes import link, network


def ring(partitions: int, nodes: int) -> Topology:
    """Each partition is joined to the next and the last to the first; two partitions share a single link."""
    edges = [(at, at % partitions + 1) for at in range(1, partitions + 1)]
    return _shape("ring", partitions, nodes, edges[: partitions if partitions > 2 else partitions - 1])


def star(partitions: int, nodes: int, *, name: str = "star") -> Topology:
    """All partitions are joined to the first."""
    return _shape(name, partitions, nodes, [(1, at) for at in range(2, partitions + 1)])


def tree(partitions: int, nodes: int) -> Topology:
    """A binary tree in breadth-first order: partition k is joined to k // 2."""
    return _shape("tree", partitions, nodes, [(at // 2, at) for at in range(2, partitions + 1)])


def mesh(partitions: int, nodes: int) -> Topology:
    """Each partition is joined to each other."""
    return _shape("mesh", partitions, nodes, itertools.combinations(range(1, partitions + 1), 2))


def _shape(name: str, partitions: int, nodes: int, edges: Iterable[tuple[int, int]]) -> Topology:
    members = {f"p{at}": [f"n{number}" for number in range(1, nodes + 1)] for at in range(1, partitions + 1)}
    return network(name, members, links=[link(f"p{a}", f"p{b}") for a, b in edges])
