"""Messages packed by hand equal those of pyroute2's codecs for the same values, and pyroute2 can read them."""

from __future__ import annotations

from typing import Any

import pytest
from pyroute2.netlink.rtnl import ifaddrmsg, ndmsg, rtmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from netem.wiring import netlink

NEW = netlink.ACKNOWLEDGE | netlink.CREATE | netlink.EXCLUSIVE
QUEUES = [("IFLA_NUM_TX_QUEUES", 1), ("IFLA_NUM_RX_QUEUES", 1)]
MAC = "02:0b:00:01:00:07"


def link(index: int, *attributes: tuple[str, Any], flags: int = netlink.ACKNOWLEDGE) -> bytes:
    return netlink.message(ifinfmsg, netlink.RTM_NEWLINK, flags, {"index": index}, attributes)


def test_a_cable() -> None:
    far = {"index": 6, "attrs": [("IFLA_IFNAME", "eth0"), *QUEUES, ("IFLA_ADDRESS", MAC), ("IFLA_NET_NS_FD", 9)]}
    info = [("IFLA_INFO_KIND", "veth"), ("IFLA_INFO_DATA", {"attrs": [("VETH_INFO_PEER", far)]})]
    asked = link(5, ("IFLA_IFNAME", "ob5"), *QUEUES, ("IFLA_LINKINFO", {"attrs": info}), flags=NEW)
    assert netlink.add_veth("ob5", 5, "eth0", 6, peer_namespace=9, peer_mac=MAC) == asked


def test_a_bridge_and_its_port() -> None:
    zeros = ("FORWARD_DELAY", "STP_STATE", "MCAST_SNOOPING", "NF_CALL_IPTABLES", "NF_CALL_IP6TABLES")
    data = [(f"IFLA_BR_{name}", 0) for name in (*zeros, "NF_CALL_ARPTABLES")]
    info = [("IFLA_INFO_KIND", "bridge"), ("IFLA_INFO_DATA", {"attrs": data})]
    made = link(500, ("IFLA_IFNAME", "br1"), *QUEUES, ("IFLA_LINKINFO", {"attrs": info}), flags=NEW)
    assert netlink.add_bridge("br1", 500) == made
    port = [("IFLA_INFO_SLAVE_KIND", "bridge"), ("IFLA_INFO_SLAVE_DATA", {"attrs": [("IFLA_BRPORT_LEARNING", 0)]})]
    assert netlink.set_bridge_port(5) == link(5, ("IFLA_LINKINFO", {"attrs": port}))
    assert netlink.enslave(5, 500) == link(5, ("IFLA_MASTER", 500))
    assert netlink.set_queue_length(5, 10_000) == link(5, ("IFLA_TXQLEN", 10_000))


def test_addresses_and_neighbours() -> None:
    fields = {"family": 2, "prefixlen": 16, "index": 5, "scope": 0}
    words = [("IFA_LOCAL", "10.1.0.1"), ("IFA_ADDRESS", "10.1.0.1"), ("IFA_BROADCAST", "10.1.255.255")]
    assert netlink.add_address(5, "10.1.0.1", 16, "10.1.255.255") == netlink.message(
        ifaddrmsg.ifaddrmsg, 20, NEW, fields, words
    )
    fields = {"family": 2, "ifindex": 5, "state": 0x80, "flags": 0, "ndm_type": 0}
    flags = netlink.ACKNOWLEDGE | netlink.CREATE | netlink.REPLACE
    known = [("10.1.0.7", MAC), ("10.1.0.8", "02:0b:00:01:00:08")]
    assert netlink.add_neighbours(5, known) == [
        netlink.message(ndmsg.ndmsg, 28, flags, fields, [("NDA_DST", ip), ("NDA_LLADDR", mac)]) for ip, mac in known
    ]
    fields = {"family": 7, "ifindex": 5, "state": 0x40, "flags": 4, "ndm_type": 0}
    assert netlink.add_forwarding(5, MAC) == netlink.message(ndmsg.ndmsg, 28, NEW, fields, [("NDA_LLADDR", MAC)])


@pytest.mark.parametrize(("gateway", "scope", "flags"), [(None, 253, 0), ("10.1.255.253", 0, 4)])
def test_a_route(gateway: str | None, scope: int, flags: int) -> None:
    fields = {"family": 2, "dst_len": 8, "table": 254, "proto": 4, "type": 1, "scope": scope, "flags": flags}
    words: list[tuple[str, Any]] = [("RTA_DST", "10.0.0.0"), ("RTA_OIF", 5)]
    words += [("RTA_GATEWAY", gateway)] if gateway else []
    assert netlink.add_route("10.0.0.0", 8, 5, gateway) == netlink.message(rtmsg.rtmsg, 24, NEW, fields, words)


@pytest.mark.parametrize(("flags", "state", "port", "ready"), [
    (0x10041, "UP", 3, True), (0x10041, "UNKNOWN", 3, False), (0x1, "UP", 3, False), (0x10041, "UP", 1, False),
])  # fmt: skip
def test_a_link_is_ready_when_it_is_up_carries_and_forwards(flags: int, state: str, port: int, ready: bool) -> None:
    info = [
        ("IFLA_INFO_KIND", "veth"),
        ("IFLA_INFO_SLAVE_KIND", "bridge"),
        ("IFLA_INFO_SLAVE_DATA", {"attrs": [("IFLA_BRPORT_STATE", port)]}),
    ]
    counters = {"rx_errors": 1, "tx_errors": 2, "rx_dropped": 4, "tx_dropped": 8, "rx_packets": 99}
    words = [
        ("IFLA_IFNAME", "ob5"),
        ("IFLA_OPERSTATE", state),
        ("IFLA_LINKINFO", {"attrs": info}),
        ("IFLA_STATS64", counters),
    ]
    made = netlink.message(ifinfmsg, netlink.RTM_NEWLINK, 0, {"index": 5, "flags": flags}, words)
    found = netlink.links_in(made + netlink.get_links())
    assert found == [netlink.LinkState(name="ob5", index=5, ready=ready, dropped_frames=15)]
