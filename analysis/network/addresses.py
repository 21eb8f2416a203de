"""Addresses as numbers, as in the table of frames, and the receivers of a frame."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

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
