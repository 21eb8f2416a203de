"""Netlink messages as bytes: links, addresses, routes and neighbours here; traffic control in `netem.wiring.qdisc`.

Encoding is separate from sending, so that one code path serves both kernels: the bytes go to the agent that holds the
namespace (in the supervisor, or in the guest), which sends them. Interface indexes are chosen by the plan, so a whole
network can be encoded before the first device exists, and sent in a few batches.

A network of 300 nodes takes 100,000 messages, so these are packed by hand, each in 2 us; pyroute2's codec takes 200.
`message` encodes rare messages with many attributes (a netem) with pyroute2.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

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
_TABLE_MAIN, _PROTOCOL_STATIC, _TYPE_UNICAST, _NEXT_HOP_ON_LINK = 254, 4, 1, 4
_OPERSTATE_UP = 6

_ATTRIBUTE = struct.Struct("=HH")
_KIND_MASK = 0x3FFF
"""Kind of an attribute, without the flags for nested and for network order."""
_LINK = struct.Struct("=BxHiII")
"""struct ifinfomsg: family, type, index, flags, change."""
_ADDRESS = struct.Struct("=BBBBi")
"""struct ifaddrmsg: family, prefix length, flags, scope, index."""
_ROUTE = struct.Struct("=8BI")
"""struct rtmsg: family, destination and source lengths, tos, table, protocol, scope, type, flags."""
_NEIGHBOUR = struct.Struct("=BxxxiHBB")
"""struct ndmsg: family, index, state, flags, type."""

# Attributes, named as in the kernel's headers.
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MASTER, _IFLA_TXQLEN, _IFLA_OPERSTATE, _IFLA_LINKINFO = 1, 3, 10, 13, 16, 18
_IFLA_STATS64, _IFLA_NET_NS_FD, _IFLA_NUM_TX_QUEUES, _IFLA_NUM_RX_QUEUES = 23, 28, 31, 32
_IFLA_INFO_KIND, _IFLA_INFO_DATA, _IFLA_INFO_SLAVE_KIND, _IFLA_INFO_SLAVE_DATA = 1, 2, 4, 5
_VETH_INFO_PEER = 1
_IFLA_BR_FORWARD_DELAY, _IFLA_BR_STP_STATE, _IFLA_BR_MCAST_SNOOPING = 1, 5, 23
_IFLA_BR_NF_CALL_IPTABLES, _IFLA_BR_NF_CALL_IP6TABLES, _IFLA_BR_NF_CALL_ARPTABLES = 36, 37, 38
_IFLA_BRPORT_STATE, _IFLA_BRPORT_LEARNING = 1, 8
_IFA_ADDRESS, _IFA_LOCAL, _IFA_BROADCAST = 1, 2, 4
_RTA_DST, _RTA_OIF, _RTA_GATEWAY = 1, 4, 5
_NDA_DST, _NDA_LLADDR = 1, 2
_WHEREABOUTS_BYTES = 20
_STATS64_FAULTS = struct.Struct("=32x4Q")
"""Part of struct rtnl_link_stats64: rx_errors, tx_errors, rx_dropped, tx_dropped."""


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


def attribute(kind: int, *parts: bytes) -> bytes:
    """One attribute of a message; nested ones are its parts."""
    payload = b"".join(parts)
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(payload), kind) + payload + bytes(-len(payload) % 4)


def pack(command: int, flags: int, *parts: bytes) -> bytes:
    """One message from its parts: the fixed structure, then attributes."""
    body = b"".join(parts)
    return _HEADER.pack(_HEADER.size + len(body), command, REQUEST | flags, 0, 0) + body


def attributes_in(data: bytes, start: int) -> dict[int, bytes]:
    """The attributes from `start` on, by kind."""
    found = {}
    while start + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, start)
        if length < _ATTRIBUTE.size:
            break
        found[kind & _KIND_MASK] = data[start + _ATTRIBUTE.size : start + length]
        start += (length + 3) & ~3
    return found


def numbered(messages: Sequence[bytes]) -> bytes:
    """A batch with sequence numbers from 1, by which a refusal identifies its message."""
    batch = bytearray()
    for number, single in enumerate(messages, start=1):
        batch += single[:_SEQUENCE_OFFSET]
        batch += number.to_bytes(4, sys.byteorder)
        batch += single[_SEQUENCE_OFFSET + 4 :]
        if len(single) & 3:
            batch += bytes(-len(single) % 4)
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
    """A veth pair with one queue each; the peer may be made in another namespace (descriptor of the agent's
    process)."""
    far = [_LINK.pack(0, 0, peer_index, 0, 0), _name(peer), _ONE_QUEUE]
    if peer_mac is not None:
        far.append(attribute(_IFLA_ADDRESS, _mac(peer_mac)))
    if peer_namespace is not None:
        far.append(_number(_IFLA_NET_NS_FD, peer_namespace))
    return _add_link(name, index, "veth", attribute(_VETH_INFO_PEER, *far), mac)


def add_bridge(name: str, index: int) -> bytes:
    """A bridge without spanning tree, multicast snooping and firewall."""
    settings = (
        _number(_IFLA_BR_FORWARD_DELAY, 0),
        _number(_IFLA_BR_STP_STATE, 0),
        attribute(_IFLA_BR_MCAST_SNOOPING, b"\0"),
        attribute(_IFLA_BR_NF_CALL_IPTABLES, b"\0"),
        attribute(_IFLA_BR_NF_CALL_IP6TABLES, b"\0"),
        attribute(_IFLA_BR_NF_CALL_ARPTABLES, b"\0"),
    )
    return _add_link(name, index, "bridge", b"".join(settings))


def add_ifb(name: str, index: int) -> bytes:
    return _add_link(name, index, "ifb")


def delete_link(index: int) -> bytes:
    return pack(RTM_DELLINK, ACKNOWLEDGE, _LINK.pack(0, 0, index, 0, 0))


def bring_up(index: int) -> bytes:
    return pack(RTM_NEWLINK, ACKNOWLEDGE, _LINK.pack(0, 0, index, _IFF_UP, _IFF_UP))


def enslave(index: int, bridge: int) -> bytes:
    return _set_link(index, _number(_IFLA_MASTER, bridge))


def set_queue_length(index: int, frames: int) -> bytes:
    return _set_link(index, _number(_IFLA_TXQLEN, frames))


def set_bridge_port(index: int) -> bytes:
    """A bridge port without learning: frames follow static forwarding entries, or are flooded."""
    kind = attribute(_IFLA_INFO_SLAVE_KIND, b"bridge\0")
    data = attribute(_IFLA_INFO_SLAVE_DATA, attribute(_IFLA_BRPORT_LEARNING, b"\0"))
    return _set_link(index, attribute(_IFLA_LINKINFO, kind, data))


def get_links() -> bytes:
    """Query for every link of a namespace."""
    return pack(RTM_GETLINK, DUMP, _LINK.pack(0, 0, 0, 0, 0))


def get_link(index: int) -> bytes:
    """Query for one link."""
    return pack(RTM_GETLINK, ACKNOWLEDGE, _LINK.pack(0, 0, index, 0, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkState:
    """State of a link in the kernel; drops and errors since it was made, both directions together. `ready`: it carries
    frames (up is not enough: carrier and bridge port follow later, from a queue of the kernel).
    """

    name: str
    index: int
    ready: bool
    dropped_frames: int


def links_in(data: bytes) -> list[LinkState]:
    """The links in a reply to get_links()."""
    return [_link_in(raw) for command, raw in messages_in(data) if command == RTM_NEWLINK]


# Addresses, routes, neighbours.


def add_address(index: int, ip: str, prefix_length: int, broadcast: str) -> bytes:
    address = socket.inet_aton(ip)
    return pack(
        _RTM_NEWADDR, ACKNOWLEDGE | CREATE | EXCLUSIVE,
        _ADDRESS.pack(_AF_INET, prefix_length, 0, _SCOPE_UNIVERSE, index),
        attribute(_IFA_LOCAL, address), attribute(_IFA_ADDRESS, address),
        attribute(_IFA_BROADCAST, socket.inet_aton(broadcast)),
    )  # fmt: skip


def add_route(destination: str, prefix_length: int, index: int, gateway: str | None = None) -> bytes:
    """A route through a device, or through a gateway behind it (which need not be on the device's own network)."""
    scope, flags = (_SCOPE_LINK, 0) if gateway is None else (_SCOPE_UNIVERSE, _NEXT_HOP_ON_LINK)
    parts = [
        _ROUTE.pack(_AF_INET, prefix_length, 0, 0, _TABLE_MAIN, _PROTOCOL_STATIC, scope, _TYPE_UNICAST, flags),
        attribute(_RTA_DST, socket.inet_aton(destination)),
        _number(_RTA_OIF, index),
    ]
    if gateway is not None:
        parts.append(attribute(_RTA_GATEWAY, socket.inet_aton(gateway)))
    return pack(_RTM_NEWROUTE, ACKNOWLEDGE | CREATE | EXCLUSIVE, *parts)


def add_neighbours(index: int, known: Iterable[tuple[str, str]]) -> list[bytes]:
    """Permanent entries (address, MAC), so that no node sends an ARP request."""
    # All bytes but the end are the same: a segment of 300 nodes has 90,000 entries.
    empty = pack(
        _RTM_NEWNEIGH, ACKNOWLEDGE | CREATE | REPLACE,
        _NEIGHBOUR.pack(_AF_INET, index, _NUD_PERMANENT, 0, 0), bytes(_WHEREABOUTS_BYTES),
    )  # fmt: skip
    start = empty[: _HEADER.size + _NEIGHBOUR.size]
    return [start + _whereabouts(ip, mac) for ip, mac in known]


def add_forwarding(index: int, mac: str) -> bytes:
    """A static entry in the bridge of port `index`: frames to `mac` leave by this port."""
    fixed = _NEIGHBOUR.pack(_AF_BRIDGE, index, _NUD_NOARP, _NTF_MASTER, 0)
    return pack(_RTM_NEWNEIGH, ACKNOWLEDGE | CREATE | EXCLUSIVE, fixed, attribute(_NDA_LLADDR, _mac(mac)))


# Helpers.


@cache
def _whereabouts(ip: str, mac: str) -> bytes:
    """The attributes of one neighbour, of the same length for all. The n nodes of a segment share n kinds of entries,
    n² in all.
    """
    return attribute(_NDA_DST, socket.inet_aton(ip)) + attribute(_NDA_LLADDR, _mac(mac))


def _link_in(raw: bytes) -> LinkState:
    _family, _type, index, flags, _change = _LINK.unpack_from(raw, _HEADER.size)
    attributes = attributes_in(raw, _HEADER.size + _LINK.size)
    info = attributes_in(attributes.get(_IFLA_LINKINFO, b""), 0)
    counters = attributes.get(_IFLA_STATS64)
    return LinkState(
        name=attributes[_IFLA_IFNAME].rstrip(b"\0").decode("ascii", "replace"),
        index=index,
        ready=_carries(flags, attributes, info) and _forwards(info),
        dropped_frames=sum(_STATS64_FAULTS.unpack_from(counters)) if counters else 0,
    )


def _carries(flags: int, attributes: dict[int, bytes], info: dict[int, bytes]) -> bool:
    """Whether a device carries frames. A veth does when its state is UP: in UNKNOWN, its first state, it has no carrier
    yet. Other devices may stay in UNKNOWN.
    """
    wanted = _IFF_UP | _IFF_RUNNING | _IFF_LOWER_UP
    is_veth = info.get(_IFLA_INFO_KIND, b"").rstrip(b"\0") == b"veth"
    return flags & wanted == wanted and (not is_veth or attributes[_IFLA_OPERSTATE][0] == _OPERSTATE_UP)


def _forwards(info: dict[int, bytes]) -> bool:
    """Whether a bridge port forwards frames; True for other devices."""
    if info.get(_IFLA_INFO_SLAVE_KIND, b"").rstrip(b"\0") != b"bridge":
        return True
    return attributes_in(info[_IFLA_INFO_SLAVE_DATA], 0)[_IFLA_BRPORT_STATE][0] == _BRIDGE_PORT_FORWARDING


def _add_link(name: str, index: int, kind: str, data: bytes | None = None, mac: str | None = None) -> bytes:
    info = [attribute(_IFLA_INFO_KIND, kind.encode("ascii") + b"\0")]
    if data is not None:
        info.append(attribute(_IFLA_INFO_DATA, data))
    parts = [_LINK.pack(0, 0, index, 0, 0), _name(name), _ONE_QUEUE, attribute(_IFLA_LINKINFO, *info)]
    if mac is not None:
        parts.append(attribute(_IFLA_ADDRESS, _mac(mac)))
    return pack(RTM_NEWLINK, ACKNOWLEDGE | CREATE | EXCLUSIVE, *parts)


def _set_link(index: int, *attributes: bytes) -> bytes:
    return pack(RTM_NEWLINK, ACKNOWLEDGE, _LINK.pack(0, 0, index, 0, 0), *attributes)


def _name(name: str) -> bytes:
    return attribute(_IFLA_IFNAME, name.encode("ascii") + b"\0")


def _mac(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


def _number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


_ONE_QUEUE = _number(_IFLA_NUM_TX_QUEUES, 1) + _number(_IFLA_NUM_RX_QUEUES, 1)
"""One queue per device: with several, the root qdisc would be one per queue and impairments would not share a line."""
