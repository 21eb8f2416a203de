"""Selectors: how files name nodes. `*` all, `p1/*` a partition, `p1/n2..n4` a range in file order, `p1/n3` one node."""

from __future__ import annotations

from collections.abc import Iterable

from topologies.formats.errors import did_you_mean
from topologies.formats.units import shown
from topologies.model import Link, Node, Topology


class SelectError(ValueError):
    """A selector names nothing in this topology; `str()` says what would."""


def select(topology: Topology, selectors: Iterable[str]) -> tuple[Node, ...]:
    """The nodes that any of the selectors names, each once, in member order."""
    chosen = {node.index: node for selector in selectors for node in _matching(topology, selector)}
    return tuple(chosen[index] for index in sorted(chosen))


def specificity(selector: str) -> int:
    """0 for `*`, 1 for a partition, 2 for a range, 3 for a node: what is said more specifically wins."""
    if selector == "*":
        return 0
    if selector.endswith("/*"):
        return 1
    return 2 if ".." in selector else 3


def select_link(topology: Topology, name: str) -> Link:
    """The link called `name`."""
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
