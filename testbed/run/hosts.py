"""Names inside nodes: what /etc/hosts says there, the same in all of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from topologies.model import Node, Topology

LOCAL = "127.0.0.1 localhost"
"""In IPv4 alone: nodes have no other."""


def write_hosts(path: Path, topology: Topology) -> None:
    """`hosts_file` as a file that nodes can read that are not root."""
    path.write_text(hosts_file(topology), encoding="ascii")
    path.chmod(0o644)


def hosts_file(topology: Topology) -> str:
    """A line for each node. p1/n2 is called `n2.p1`, `p1-n2` (what `hostname` says there) and `n2`; a name that could
    mean two nodes means none.
    """
    names = {node.ip: _names(node) for node in topology.nodes()}
    count = Counter([*LOCAL.split(), *(name for each in names.values() for name in each)])
    lines = [" ".join([ip, *(name for name in each if count[name] == 1)]) for ip, each in names.items()]
    return "\n".join([LOCAL, *lines, ""])


def _names(node: Node) -> tuple[str, ...]:
    """The first is what programs show for an address; no other node can have it, for names have no dots."""
    own = node.name.removeprefix(f"{node.partition}/")
    return f"{own}.{node.partition}", f"{node.partition}-{own}", own
