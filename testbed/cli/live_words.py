"""What people type to name nodes and links of a testbed, and what tables say in return. Pure, but for one look at
files.

Selectors are those of files (`topologies.model`), with two liberties that a command line needs: the name of a
partition alone stands for its nodes, and commas join several words into one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from topologies.formats.errors import InputError
from topologies.model import Node, NodeName, Partition, SelectError, Topology, select, select_link

EVERYBODY = "*"
LINK_MARK = "--"
"""Names of partitions and nodes have single hyphens only, so this tells a link from a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Either selectors of nodes, or names of links; never both."""

    nodes: tuple[str, ...] = ()
    links: tuple[str, ...] = ()

    @property
    def is_links(self) -> bool:
        return bool(self.links)


def named(words: Sequence[str], topology: Topology) -> Named:
    """What the words of a command name in `topology`. Raises InputError for an unknown name, or for both kinds."""
    parts = split(words)
    links = tuple(word for word in parts if LINK_MARK in word)
    nodes = tuple(selector(word, topology) for word in parts if LINK_MARK not in word)
    if links and nodes:
        raise InputError(f"{nodes[0]} names nodes and {links[0]} a link; give either nodes or links")
    try:
        select(topology, nodes)
        for link in links:
            select_link(topology, link)
    except SelectError as error:
        raise InputError(f"{error}{_shell_hint(words)}") from None
    return Named(nodes=nodes, links=links)


def nodes_named(words: Sequence[str], topology: Topology) -> tuple[str, ...]:
    """As `named`, where links will not do. Raises InputError."""
    found = named(words, topology)
    if found.links:
        raise InputError(f"{found.links[0]} is a link; this is done to nodes only, such as {_example(topology)}")
    return found.nodes


def one_node(word: str, topology: Topology) -> Node:
    """The one node that a word names. Raises InputError when it names several."""
    nodes = select(topology, nodes_named([word], topology))
    if len(nodes) != 1:
        raise InputError(f"{word} names {len(nodes)} nodes; one is needed, such as {nodes[0].name}")
    return nodes[0]


def groups_named(words: Sequence[str], topology: Topology) -> tuple[tuple[str, ...], ...]:
    """Each word a group of nodes: `p1 p2/n1,p2/n2`. Raises InputError."""
    return tuple(nodes_named([word], topology) for word in words)


def rest_of(group: Sequence[str], topology: Topology) -> tuple[str, ...]:
    """All nodes that a group does not name. Raises InputError when there are none."""
    inside = {node.name for node in select(topology, group)}
    rest = tuple(node.name for node in topology.nodes() if node.name not in inside)
    if not rest:
        raise InputError(f"{', '.join(group)} names every node; there is nobody to be cut off from")
    return rest


def selector(word: str, topology: Topology) -> str:
    """The selector that a word stands for: a partition's name alone is all its nodes."""
    return f"{word}/*" if any(partition.name == word for partition in topology.partitions) else word


def split(words: Sequence[str]) -> list[str]:
    """Words, and what commas separate in them."""
    return [part.strip() for word in words for part in word.split(",") if part.strip()]


def shortened(names: Collection[NodeName], topology: Topology) -> str:
    """Nodes in as few words as selectors allow: `p1/*, p2/n1..n3, p3/n2`; empty for none."""
    if len(names) == len(topology):
        return EVERYBODY
    return ", ".join(shortened_by_partition(names, topology))


def shortened_by_partition(names: Collection[NodeName], topology: Topology) -> Iterator[str]:
    """The same, word by word, and all nodes of the only partition as `p1/*`."""
    return (word for partition in topology.partitions for word in _shortened(set(names), partition))


def _shortened(names: set[NodeName], partition: Partition) -> list[str]:
    members = [node.name in names for node in partition.nodes]
    if all(members):
        return [f"{partition.name}/*"]
    words, position = [], 0
    for is_named, run in groupby(members):
        length = len(list(run))
        if is_named:
            words += _run(partition.nodes[position : position + length])
        position += length
    return words


def _run(nodes: Sequence[Node]) -> list[str]:
    """Neighbours in the order of the file: a range where it is shorter than a list."""
    if len(nodes) < 3:
        return [node.name for node in nodes]
    return [f"{nodes[0].name}..{nodes[-1].name.partition('/')[2]}"]


def _example(topology: Topology) -> str:
    return next(topology.nodes()).name


def _shell_hint(words: Sequence[str]) -> str:
    """Where a shell has put file names in the place of an asterisk, say so: the sentence alone would be a riddle."""
    if len(words) > 1 and all(Path(word).exists() for word in words):
        return f"; these are files: write '{EVERYBODY}' in quotes, so that the shell leaves it alone"
    return ""
