"""Netlink messages as bytes, made and read with pyroute2's codecs.

Encoding is apart from sending, so that one code path serves both kernels: the bytes go to the hand that holds the
namespace (in the keeper, or in the guest), which sends them. Interface indexes are chosen by the plan, so a whole
network can be encoded before the first device exists, and sent in a few batches.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyroute2.netlink.rtnl import ifaddrmsg, ndmsg, rtmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

REQUEST, ACKNOWLEDGE, ECHO = 0x1, 0x4, 0x8
REPLACE, EXCLUSIVE, CREATE = 0x100, 0x200, 0x400
DUMP = 0x300

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
_RTM_NEWADDR, _RTM_NEWROUTE, _RTM_NEWNEIGH = 20, 24, 28

_IFF_UP, _IFF_RUNNING, _IFF_LOWER_UP = 0x1, 0x40, 0x10000
_BRIDGE_PORT_FORWARDING = 3
_AF_BRIDGE, _AF_INET = 7, 2
_NUD_NOARP, _NUD_PERMANENT = 0x40, 0x80
_NTF_MASTER = 0x04
_SEQUENCE_OFFSET = 8
_HEADER = struct.Struct("=IHHII")
_SCOPE_UNIVERSE, _SCOPE_LINK = 0, 253


def message(kind: type[Any], command: int, flags: int, fields: dict[str, Any], attributes: Sequence[Any] = ()) -> bytes:
    """One encoded message; `numbered` gives it its sequence number."""
    made = kind()
    for name, value in fields.items():
        made[name] = value
    made["attrs"] = list(attributes)
    made["header"]["type"] = command
    made["header"]["flags"] = REQUEST | flags
    made.encode()
    return bytes(made.data)


def numbered(messages: Sequence[bytes]) -> bytes:
    """A batch: sequence numbers from 1, so that a refusal names its message."""
    batch = bytearray()
    for number, single in enumerate(messages, start=1):
        start = len(batch)
        batch += single
        struct.pack_into("=I", batch, start + _SEQUENCE_OFFSET, number)
        batch += bytes(-len(batch) % 4)
    return bytes(batch)


def messages_in(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(message type, message) of each message in a reply."""
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, _flags, _number, _port = _HEADER.unpack_from(data, offset)
        yield kind, data[offset : offset + length]
        offset += (length + 3) & ~3


# Links.


def add_veth(
    name: str,
    index: int,
    peer: str,
    peer_index: int,
    *,
    peer_namespace: int | None = None,
    mac: str | None = None,
    peer_mac: str | None = None,
) -> bytes:
    """A veth pair with one queue each; the peer may be born in another namespace (a descriptor of the hand's
    process).
    """
    peer_attributes: list[Any] = [("IFLA_IFNAME", peer), *_one_queue()]
    if peer_mac is not None:
        peer_attributes.append(("IFLA_ADDRESS", peer_mac))
    if peer_namespace is not None:
        peer_attributes.append(("IFLA_NET_NS_FD", peer_namespace))
    peer_message = {"index": peer_index, "attrs": peer_attributes}
    return _add_link(name, index, "veth", {"attrs": [("VETH_INFO_PEER", peer_message)]}, mac)


def add_bridge(name: str, index: int) -> bytes:
    """A silent bridge: no spanning tree, no multicast snooping, no firewall in between."""
    settings = [
        ("IFLA_BR_FORWARD_DELAY", 0),
        ("IFLA_BR_STP_STATE", 0),
        ("IFLA_BR_MCAST_SNOOPING", 0),
        ("IFLA_BR_NF_CALL_IPTABLES", 0),
        ("IFLA_BR_NF_CALL_IP6TABLES", 0),
        ("IFLA_BR_NF_CALL_ARPTABLES", 0),
    ]
    return _add_link(name, index, "bridge", {"attrs": settings})


def add_ifb(name: str, index: int) -> bytes:
    return _add_link(name, index, "ifb", None)


def delete_link(index: int) -> bytes:
    return message(ifinfmsg, RTM_DELLINK, ACKNOWLEDGE, {"index": index})


def bring_up(index: int) -> bytes:
    return _set_link(index, up=True)


def enslave(index: int, bridge: int) -> bytes:
    return _set_link(index, [("IFLA_MASTER", bridge)])


def set_queue_length(index: int, frames: int) -> bytes:
    return _set_link(index, [("IFLA_TXQLEN", frames)])


def set_bridge_port(index: int) -> bytes:
    """A port that learns nothing: what a port may receive is set by forwarding entries, or floods."""
    data = {"attrs": [("IFLA_BRPORT_LEARNING", 0)]}
    info = {"attrs": [("IFLA_INFO_SLAVE_KIND", "bridge"), ("IFLA_INFO_SLAVE_DATA", data)]}
    return _set_link(index, [("IFLA_LINKINFO", info)])


def get_links() -> bytes:
    """Ask for every link of a namespace."""
    return message(ifinfmsg, RTM_GETLINK, DUMP, {})


def get_link(index: int) -> bytes:
    """Ask for one link."""
    return message(ifinfmsg, RTM_GETLINK, ACKNOWLEDGE, {"index": index})


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkState:
    """A link as the kernel has it; drops and errors since it was made, both directions together. `ready`: it carries
    frames (up is not enough: carrier and bridge port follow later, from a queue of the kernel).
    """

    name: str
    index: int
    ready: bool
    dropped_frames: int


def links_in(data: bytes) -> list[LinkState]:
    """The links in a reply to get_links()."""
    found = []
    for command, raw in messages_in(data):
        if command != RTM_NEWLINK:
            continue
        link = ifinfmsg(raw)
        link.decode()
        counters = link.get_attr("IFLA_STATS64") or {}
        dropped = sum(counters.get(name, 0) for name in ("rx_dropped", "tx_dropped", "rx_errors", "tx_errors"))
        ready = _carries(link) and _forwards(link)
        name = link.get_attr("IFLA_IFNAME")
        found.append(LinkState(name=name, index=link["index"], ready=ready, dropped_frames=dropped))
    return found


# Addresses, routes, neighbours.


def add_address(index: int, ip: str, prefix_length: int, broadcast: str) -> bytes:
    fields = {"family": _AF_INET, "prefixlen": prefix_length, "index": index, "scope": _SCOPE_UNIVERSE}
    attributes = [("IFA_LOCAL", ip), ("IFA_ADDRESS", ip), ("IFA_BROADCAST", broadcast)]
    return message(ifaddrmsg.ifaddrmsg, _RTM_NEWADDR, ACKNOWLEDGE | CREATE | EXCLUSIVE, fields, attributes)


def add_route(destination: str, prefix_length: int, index: int, gateway: str | None = None) -> bytes:
    """A route by a device, or by a gateway behind it (which need not be on the device's own network)."""
    fields = {
        "family": _AF_INET, "dst_len": prefix_length, "table": 254, "proto": 4, "type": 1,
        "scope": _SCOPE_LINK if gateway is None else _SCOPE_UNIVERSE, "flags": 0 if gateway is None else 4,
    }  # fmt: skip
    attributes: list[Any] = [("RTA_DST", destination), ("RTA_OIF", index)]
    if gateway is not None:
        attributes.append(("RTA_GATEWAY", gateway))
    return message(rtmsg.rtmsg, _RTM_NEWROUTE, ACKNOWLEDGE | CREATE | EXCLUSIVE, fields, attributes)


def add_neighbour(index: int, ip: str, mac: str) -> bytes:
    """A permanent entry, so that nobody ever has to ask."""
    fields = {"family": _AF_INET, "ifindex": index, "state": _NUD_PERMANENT, "flags": 0, "ndm_type": 0}
    attributes = [("NDA_DST", ip), ("NDA_LLADDR", mac)]
    return message(ndmsg.ndmsg, _RTM_NEWNEIGH, ACKNOWLEDGE | CREATE | REPLACE, fields, attributes)


def add_forwarding(index: int, mac: str) -> bytes:
    """A static entry in the bridge that `index` is a port of: frames to `mac` leave by this port."""
    fields = {"family": _AF_BRIDGE, "ifindex": index, "state": _NUD_NOARP, "flags": _NTF_MASTER, "ndm_type": 0}
    return message(ndmsg.ndmsg, _RTM_NEWNEIGH, ACKNOWLEDGE | CREATE | EXCLUSIVE, fields, [("NDA_LLADDR", mac)])


# Helpers.


def _carries(link: Any) -> bool:
    """A veth is known to carry frames once its state is UP: in UNKNOWN, where it begins, its carrier is still to come.
    Other devices may stay in UNKNOWN for good.
    """
    flags = _IFF_UP | _IFF_RUNNING | _IFF_LOWER_UP
    info = link.get_attr("IFLA_LINKINFO")
    is_veth = info is not None and info.get_attr("IFLA_INFO_KIND") == "veth"
    return link["flags"] & flags == flags and (not is_veth or link.get_attr("IFLA_OPERSTATE") == "UP")


def _forwards(link: Any) -> bool:
    """A bridge port has its state; what is no bridge port needs none."""
    info = link.get_attr("IFLA_LINKINFO")
    if info is None or info.get_attr("IFLA_INFO_SLAVE_KIND") != "bridge":
        return True
    state: int = info.get_attr("IFLA_INFO_SLAVE_DATA").get_attr("IFLA_BRPORT_STATE")
    return state == _BRIDGE_PORT_FORWARDING


def _one_queue() -> list[Any]:
    """One queue per device: with several, the root qdisc would be one per queue and impairments would not share a
    line.
    """
    return [("IFLA_NUM_TX_QUEUES", 1), ("IFLA_NUM_RX_QUEUES", 1)]


def _add_link(name: str, index: int, kind: str, data: dict[str, Any] | None, mac: str | None = None) -> bytes:
    info: list[Any] = [("IFLA_INFO_KIND", kind)]
    if data is not None:
        info.append(("IFLA_INFO_DATA", data))
    attributes = [("IFLA_IFNAME", name), *_one_queue(), ("IFLA_LINKINFO", {"attrs": info})]
    if mac is not None:
        attributes.append(("IFLA_ADDRESS", mac))
    return message(ifinfmsg, RTM_NEWLINK, ACKNOWLEDGE | CREATE | EXCLUSIVE, {"index": index}, attributes)


def _set_link(index: int, attributes: Sequence[Any] = (), *, up: bool = False) -> bytes:
    fields = {"index": index}
    if up:
        fields |= {"flags": _IFF_UP, "change": _IFF_UP}
    return message(ifinfmsg, RTM_NEWLINK, ACKNOWLEDGE, fields, attributes)
