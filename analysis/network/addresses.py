"""Addresses as numbers, as in the table of frames, the receivers of a frame, and counts of frames by destination."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from topologies.model import MULTICAST_GROUP, Node, Topology

MULTICAST_BIT: Final = 1 << 40
"""Lowest bit of the first byte of a MAC address as a number."""
LINK_LOCAL: Final = 0x0180C2000000
"""01:80:c2:00:00:00 to 0f, the trace address among them: no bridge forwards them."""


def ip_number(ip: str) -> int:
    """An IPv4 address as a number."""
    return int.from_bytes(bytes(int(part) for part in ip.split(".")), "big")


def mac_number(mac: str) -> int:
    return int(mac.replace(":", ""), 16)


class Flow(NamedTuple):
    """Frames with one destination at one port in one direction; fields as in analysis.engine.ingest."""

    node_index: int
    direction: str
    eth_dst: int
    ip_dst: int
    frames: int = 0
    datagrams: int = 0
    """Those of the run's group, within the load."""
    wire_bytes: int = 0
    """Within the load."""

    @property
    def is_forwarded(self) -> bool:
        return self.eth_dst >> 4 != LINK_LOCAL >> 4


def flows(counted: Iterable[Mapping[str, Any]]) -> list[Flow]:
    """Flows from the counts of all frames by port, direction and destination (analysis.engine.ingest)."""
    seen = [Flow(*(row[name] for name in Flow._fields)) for row in counted if row["direction"] is not None]
    return [flow for flow in seen if flow.is_forwarded]


class Receivers:
    """Receivers of frames: nodes, by the sender's member number and the destination addresses. Results are cached,
    because few destinations have many frames.
    """

    def __init__(self, topology: Topology) -> None:
        self._nodes = {node.index: node for node in topology.nodes()}
        self._by_ip = {ip_number(node.ip): node for node in topology.nodes()}
        self._by_mac = {mac_number(node.mac): node for node in topology.nodes()}
        self._by_router = {ip_number(partition.router_ip): partition.nodes for partition in topology.partitions}
        self.of = lru_cache(maxsize=100_000)(self._of)

    def is_copied(self, ip_dst: int) -> bool:
        """Whether each of the receivers gets a frame of its own, made by a router."""
        return ip_dst in self._by_router

    def _of(self, sender_index: int, eth_dst: int, ip_dst: int) -> tuple[Node, ...]:
        sender = self._nodes.get(sender_index)
        if sender is None:
            return ()
        if eth_dst & MULTICAST_BIT:
            is_for_all = ip_dst == _GROUP
            found = [node for node in self._nodes.values() if is_for_all or node.partition == sender.partition]
        else:
            # A frame that goes through a router has the router's MAC.
            one = self._by_mac.get(eth_dst) or self._by_ip.get(ip_dst)
            # A router copies a datagram addressed to it for each of its nodes.
            found = list(self._by_router.get(ip_dst, ())) if one is None else [one]
        return tuple(node for node in found if node.index != sender_index)


_GROUP: Final = ip_number(MULTICAST_GROUP)
