"""Cuts as sets: who no longer hears whom. Pure; `EmulatedNetwork.block` puts the union of all cuts of a moment in
force.

A cut is a set of ordered pairs (from, to): what `from` sends does not reach `to`. One-way cuts are therefore no special
case, and several cuts at once are a union.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import TypeAlias

from topologies.model import NodeName

Pairs: TypeAlias = frozenset[tuple[NodeName, NodeName]]


def split(groups: Sequence[Collection[NodeName]]) -> Pairs:
    """Groups that hear nothing of each other. A node in several groups hears all of them; one in no group is not cut.

    Raises ValueError for fewer than two groups.
    """
    if len(groups) < 2:
        raise ValueError("a split needs at least two groups")
    homes = _homes(groups)
    return frozenset((one, other) for one in homes for other in homes if not homes[one] & homes[other])


def one_way(senders: Collection[NodeName], receivers: Collection[NodeName]) -> Pairs:
    """Nothing that `senders` send reaches `receivers`; the way back is open."""
    return frozenset((one, other) for one in senders for other in receivers if one != other)


def isolate(nodes: Collection[NodeName], everyone: Collection[NodeName]) -> Pairs:
    """Each of `nodes` alone, both ways."""
    pairs = ((one, other) for one in nodes for other in everyone if one != other)
    return frozenset(pair for one, other in pairs for pair in ((one, other), (other, one)))


def halves(nodes: Sequence[NodeName]) -> tuple[tuple[NodeName, ...], tuple[NodeName, ...]]:
    """Two groups; the first is the greater one when the number is odd. Raises ValueError for fewer than two nodes."""
    if len(nodes) < 2:
        raise ValueError("halves need at least two nodes")
    middle = (len(nodes) + 1) // 2
    return tuple(nodes[:middle]), tuple(nodes[middle:])


def ways(nodes: Sequence[NodeName], count: int) -> tuple[tuple[NodeName, ...], ...]:
    """`count` groups of consecutive nodes, sizes as equal as can be. Raises ValueError when a group would be empty."""
    if not 2 <= count <= len(nodes):
        raise ValueError(f"{len(nodes)} nodes cannot be cut into {count} groups: give 2 to {len(nodes)}")
    size, more = divmod(len(nodes), count)
    starts = [number * size + min(number, more) for number in range(count + 1)]
    return tuple(tuple(nodes[start:end]) for start, end in pairwise(starts))


def bridged(nodes: Sequence[NodeName]) -> tuple[tuple[NodeName, ...], tuple[NodeName, ...]]:
    """Two groups that share the node in the middle: it hears all of them. Raises ValueError for fewer than three."""
    if len(nodes) < 3:
        raise ValueError("a bridge needs at least three nodes")
    middle = len(nodes) // 2
    return tuple(nodes[: middle + 1]), tuple(nodes[middle:])


def bridge(nodes: Sequence[NodeName]) -> Pairs:
    """Two halves that hear nothing of each other, and one node between them that hears both. Needs three nodes."""
    return split(bridged(nodes))


def ring(nodes: Sequence[NodeName], reach: int = 1) -> Pairs:
    """Each node hears only the `reach` nodes on either side of it, in the order given, the ends joined."""
    if reach < 1:
        raise ValueError("in a ring a node hears at least its neighbours: reach must be 1 or more")
    count = len(nodes)
    return frozenset(
        (nodes[one], nodes[other])
        for one in range(count)
        for other in range(count)
        if min((one - other) % count, (other - one) % count) > reach
    )


def _homes(groups: Sequence[Collection[NodeName]]) -> dict[NodeName, set[int]]:
    """The numbers of the groups that each node is in."""
    homes: dict[NodeName, set[int]] = {}
    for number, group in enumerate(groups):
        for name in group:
            homes.setdefault(name, set()).add(number)
    return homes
