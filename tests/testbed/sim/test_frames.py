"""Frames of simulated datagrams, compared with scapy's decoding and the addresses of the topology."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from testbed.sim.capture import Framer
from testbed.sim.network import UNICAST_TTL
from testbed.spec.nodes import MULTICAST_TTL
from tests.collector.captures import checksum
from tests.topologies.shapes import ring
from topologies.model import MULTICAST_GROUP, PROTOCOL_PORT, TRACE_MAC, TRACE_PORT, Node, Topology
from topologies.shapes import one_partition

RING = ring(5, 2)


def node(topology: Topology, index: int) -> Node:
    return list(topology.nodes())[index]


def routers(frame: bytes) -> int:
    packet = Ether(frame)
    return (MULTICAST_TTL if packet[IP].dst == MULTICAST_GROUP else UNICAST_TTL) - int(packet[IP].ttl)


def test_a_unicast_datagram_in_its_partition() -> None:
    topology = one_partition(3)
    source, target = node(topology, 0), node(topology, 2)
    frame = Framer(topology).frame(source, target, b"hello", seen_at=source)
    assert frame == Framer(topology).frame(source, target, b"hello", seen_at=target)
    packet = Ether(frame)
    assert (packet.src, packet.dst, packet.type) == (source.mac, target.mac, 0x0800)
    ip, udp = packet[IP], packet[UDP]
    assert (ip.src, ip.dst, ip.ttl, ip.flags, ip.id, ip.len) == (source.ip, target.ip, UNICAST_TTL, "DF", 0, 33)
    assert (udp.sport, udp.dport, udp.len, bytes(udp.payload)) == (PROTOCOL_PORT, PROTOCOL_PORT, 13, b"hello")
    assert len(frame) == 14 + 20 + 8 + 5


def test_a_multicast_datagram_has_the_group_s_address() -> None:
    topology = one_partition(2)
    packet = Ether(Framer(topology).frame(node(topology, 1), None, b"x", seen_at=node(topology, 0)))
    assert (packet.dst, packet.src) == ("01:00:5e:4d:00:01", node(topology, 1).mac)
    assert (packet[IP].dst, packet[IP].ttl) == (MULTICAST_GROUP, MULTICAST_TTL)


@pytest.mark.parametrize(("index", "group", "mac"), [(0, "239.77.1.1", "01"), (9, "239.77.1.5", "05")])
def test_a_near_multicast_has_its_partition_s_address_and_one_hop(index: int, group: str, mac: str) -> None:
    framer, source = Framer(RING), node(RING, index)
    wide = framer.frame(source, None, b"x", seen_at=source)
    frame = framer.frame(source, None, b"x", seen_at=node(RING, index ^ 1), is_near=True)
    packet = Ether(frame)
    assert (packet.dst, packet.src) == (f"01:00:5e:4d:01:{mac}", source.mac)
    assert (packet[IP].src, packet[IP].dst, packet[IP].ttl, packet[IP].flags) == (source.ip, group, 1, "DF")
    assert (packet[UDP].sport, packet[UDP].dport) == (PROTOCOL_PORT, PROTOCOL_PORT)
    assert checksum(frame[14:34]) == 0
    assert checksum(frame[26:34] + struct.pack(">BBH", 0, 17, 9) + frame[34:43]) == 0
    assert framer.frame(source, None, b"x", seen_at=source) == wide, "the other group's frames are as before"


def test_a_trace_datagram_goes_where_no_bridge_forwards() -> None:
    topology = one_partition(2)
    packet = Ether(Framer(topology).trace_frame(node(topology, 1), b"records"))
    assert (packet.dst, packet.src) == (TRACE_MAC, node(topology, 1).mac)
    assert (packet[IP].dst, packet[UDP].dport) == (topology.partitions[0].monitor_ip, TRACE_PORT)


def test_routers_put_in_their_addresses_and_take_from_the_ttl() -> None:
    framer = Framer(RING)
    source, target = node(RING, 0), node(RING, 4)
    home, there = RING.partition(source.partition), RING.partition(target.partition)
    sent = Ether(framer.frame(source, target, b"x", seen_at=source))
    assert (sent.src, sent.dst, sent[IP].ttl) == (source.mac, home.router_mac, UNICAST_TTL)
    arrived = Ether(framer.frame(source, target, b"x", seen_at=target))
    assert (arrived.src, arrived.dst, arrived[IP].ttl) == (there.router_mac, target.mac, UNICAST_TTL - 3)
    assert (arrived[IP].src, arrived[IP].dst) == (source.ip, target.ip)


@pytest.mark.parametrize(("target", "passed"), [(1, 0), (2, 2), (4, 3), (6, 3), (8, 2)])
def test_multicast_over_the_ring_takes_the_shorter_way(target: int, passed: int) -> None:
    frame = Framer(RING).frame(node(RING, 0), None, b"x", seen_at=node(RING, target))
    assert routers(frame) == passed
    assert Ether(frame).dst == "01:00:5e:4d:00:01"


@given(payload=st.binary(max_size=300) | st.sampled_from([b"", b"\0" * 9, b"\xff" * 65507]), at=st.integers(0, 9))
def test_both_checksums_are_right(payload: bytes, at: int) -> None:
    frame = Framer(RING).frame(node(RING, 0), None, payload, seen_at=node(RING, at))
    ip, udp = frame[14:34], frame[34:]
    assert checksum(ip) == 0
    assert checksum(ip[12:20] + struct.pack(">BBH", 0, 17, len(udp)) + udp) == 0
    assert udp[6:8] != b"\0\0", "0 would say that there is no checksum"
    assert udp[8:] == payload


def test_a_checksum_that_would_be_zero_is_sent_as_ones() -> None:
    framer, topology = Framer(one_partition(2)), one_partition(2)
    source, target = topology.nodes()
    plain = framer.frame(source, target, b"\0\0", seen_at=source)
    rest = struct.unpack(">H", plain[40:42])[0]
    frame = framer.frame(source, target, struct.pack(">H", rest), seen_at=source)
    assert frame[40:42] == b"\xff\xff"
