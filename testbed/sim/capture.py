"""Capture of a simulated network: the same file, with the same frames, as the collector's of an emulated one.

Frames are written in batches while the simulation runs, so that memory does not grow with the run. Their time stamps
are virtual time after a fixed EPOCH; nothing in the file depends on this machine, this hour or this run's name, so the
same experiment gives the same bytes. Each datagram becomes the frame that the nodes' kernels and the routers would have
sent, byte for byte:

    Ethernet (14)  MACs of the segment at which the frame is seen: a router puts in its own as the source
    IPv4 (20)      TTL less one for each router passed; "don't fragment" with identification 0 (RFC 6864: an atomic
                   datagram's identification has no meaning)
    UDP (8)        with its checksum

Nothing is fragmented: the simulated segments take any datagram that IPv4 can hold. The frame of a datagram depends on
the datagram alone: no counter and no clock goes into it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collector.pcapng import PcapngWriter, Port
from collector.records import Frames, PortDirection
from node.host.endpoint import NEAR_TTL
from testbed.sim.network import UNICAST_TTL, Datagram
from testbed.spec.nodes import MULTICAST_TTL
from topologies.model import (
    MULTICAST_GROUP,
    PROTOCOL_PORT,
    TRACE_MAC,
    TRACE_PORT,
    Node,
    Partition,
    PartitionName,
    Topology,
    next_hop,
)

EPOCH_NS = 946_684_800 * 10**9
"""CLOCK_REALTIME at virtual time 0: 2000-01-01 00:00:00 UTC."""

BATCH_FRAMES = 4096


class SimulatedCapture:
    """A tap on every port. `frame` raises CaptureError when the file cannot be written."""

    def __init__(self, path: Path, topology: Topology, comment: Mapping[str, Any]) -> None:
        self._framer = Framer(topology)
        ports = [Port(ifindex=node.port_ifindex, name=node.name, mac=node.mac) for node in topology.nodes()]
        clock = {"clock": {"monotonic_ns": 0, "realtime_ns": EPOCH_NS}}
        self._writer = PcapngWriter(path, ports, comment=json.dumps(clock | dict(comment)), names_machine=False)
        self._frames: list[bytes] = []
        self._times_ns: list[int] = []
        self._ports: list[int] = []
        self._directions: list[int] = []
        self._last_ns = 0
        self._closing: dict[str, Any] | None = None

    @property
    def frames(self) -> int:
        """Number of frames recorded so far."""
        return self._writer.frames + len(self._frames)

    def frame(self, port: Node, inbound: bool, at_ns: int, datagram: Datagram) -> None:
        """`datagram` passed `port`: inbound as the node sent it, outbound as it reaches the node."""
        assert at_ns >= self._last_ns, "a capture is in the order of time"
        self._last_ns = at_ns
        if datagram.is_trace:
            data = self._framer.trace_frame(datagram.source, datagram.payload)
        else:
            data = self._framer.frame(
                datagram.source,
                datagram.destination,
                datagram.payload,
                seen_at=port,
                is_near=datagram.is_near,
                router=datagram.router,
            )
        for bit in datagram.flipped_bits:
            data = flipped(data, bit)
        self._frames.append(data)
        self._times_ns.append(at_ns)
        self._ports.append(port.index)
        self._directions.append(PortDirection.INBOUND if inbound else PortDirection.OUTBOUND)
        if len(self._frames) == BATCH_FRAMES:
            self._write()

    def close(self) -> dict[str, Any]:
        """Complete the file. Returns the manifest's entry of the capture. Idempotent."""
        if self._closing is None:
            if not self._writer.problem:
                self._write()
            is_complete = self._writer.close()
            self._closing = {
                "frames": self._writer.frames,
                "bytes": self._writer.bytes,
                "kernel_dropped_frames": 0,
                "complete": is_complete,
            }
        return self._closing

    def _write(self) -> None:
        lengths = np.array([len(frame) for frame in self._frames], np.int64)
        columns = Frames(
            time_ns=np.array(self._times_ns, np.int64) + EPOCH_NS,
            interface=np.array(self._ports, np.int32),
            direction=np.array(self._directions, np.int8),
            length=lengths.astype(np.int32),
            captured=lengths.astype(np.int32),
            offset=np.cumsum(lengths) - lengths,
            stop=0,
        )
        joined = np.frombuffer(b"".join(self._frames), np.uint8)
        for column in (self._frames, self._times_ns, self._ports, self._directions):
            column.clear()
        self._writer.write(joined, columns)


def flipped(frame: bytes, bit: int) -> bytes:
    """The frame with one bit inverted, counted from its first."""
    return (int.from_bytes(frame, "big") ^ 1 << (8 * len(frame) - 1 - bit)).to_bytes(len(frame), "big")


UDP_PROTOCOL = 17
DONT_FRAGMENT = 0x4000
_IP_BYTES, _UDP_BYTES = 20, 8
_ONES = 0xFFFF
_HEADERS = struct.Struct(">16s H 6s H 12s H H")
"""All 42 bytes; the lengths and checksums (H) differ from datagram to datagram, the rest is constant in a flow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flow:
    """Header fields common to all datagrams from one node to one address at one segment."""

    ethernet: bytes
    """The Ethernet header and the first two bytes of the IP header."""
    fate: bytes
    """Identification, fragment, TTL and protocol."""
    addresses: bytes
    """IP addresses and UDP ports."""
    ip_sum: int
    udp_sum: int
    """Sums of the 16-bit words that do not change."""


class Framer:
    """Makes frames of one network's datagrams."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._partitions = {partition.name: partition for partition in topology.partitions}
        self._flows: dict[tuple[int, int | None, bool, PartitionName | None, int], _Flow] = {}
        self._trace_flows: dict[int, _Flow] = {}

    def frame(
        self,
        source: Node,
        destination: Node | None,
        payload: bytes,
        *,
        seen_at: Node,
        is_near: bool = False,
        router: PartitionName | None = None,
    ) -> bytes:
        """A protocol datagram as it passes the port of `seen_at`. `destination` None: to the multicast group of all
        or, `is_near`, to that of the source's partition, or to the `router` of another one.
        """
        target = None if destination is None else destination.index
        key = (source.index, target, is_near, router, seen_at.partition_index)
        flow = self._flows.get(key)
        if flow is None:
            if router is not None:
                flow = self._router_flow(source, seen_at, self._partitions[router])
            elif destination is None:
                flow = self._group_flow(source, seen_at, is_near=is_near)
            else:
                flow = self._unicast_flow(source, destination, seen_at)
            self._flows[key] = flow
        return _framed(flow, payload)

    def trace_frame(self, source: Node, payload: bytes) -> bytes:
        """A trace datagram as it passes the port of its sender, the only one that it reaches."""
        flow = self._trace_flows.get(source.index)
        if flow is None:
            flow = self._trace_flows[source.index] = _flow(
                macs=_mac(TRACE_MAC) + _mac(source.mac),
                ttl=UNICAST_TTL,
                addresses=_ip(source.ip) + _ip(self._partitions[source.partition].monitor_ip),
                port=TRACE_PORT,
            )
        return _framed(flow, payload)

    def _group_flow(self, source: Node, seen_at: Node, *, is_near: bool) -> _Flow:
        if is_near:
            group = self._partitions[source.partition].multicast_group
            return self._protocol_flow(source, seen_at, to_mac=_group_mac(group), to_ip=group, ttl=NEAR_TTL)
        to_mac = _group_mac(MULTICAST_GROUP)
        return self._protocol_flow(source, seen_at, to_mac=to_mac, to_ip=MULTICAST_GROUP, ttl=MULTICAST_TTL)

    def _router_flow(self, source: Node, seen_at: Node, far: Partition) -> _Flow:
        to_mac = _mac(self._partitions[seen_at.partition].router_mac)
        return self._protocol_flow(source, seen_at, to_mac=to_mac, to_ip=far.router_ip, ttl=UNICAST_TTL)

    def _unicast_flow(self, source: Node, destination: Node, seen_at: Node) -> _Flow:
        to_mac = self._hop_mac(destination, self._partitions[seen_at.partition])
        return self._protocol_flow(source, seen_at, to_mac=to_mac, to_ip=destination.ip, ttl=UNICAST_TTL)

    def _protocol_flow(self, source: Node, seen_at: Node, *, to_mac: bytes, to_ip: str, ttl: int) -> _Flow:
        here, home = self._partitions[seen_at.partition], self._partitions[source.partition]
        return _flow(
            macs=to_mac + _mac(source.mac if here is home else here.router_mac),
            ttl=max(1, ttl - self._routers_between(home, here)),
            addresses=_ip(source.ip) + _ip(to_ip),
            port=PROTOCOL_PORT,
        )

    def _hop_mac(self, destination: Node, here: Partition) -> bytes:
        return _mac(destination.mac if destination.partition == here.name else here.router_mac)

    def _routers_between(self, home: Partition, here: Partition) -> int:
        """Number of routers: one in each partition of the path, the first and the last included."""
        if home is here:
            return 0
        passed, at = 1, home.name
        while at != here.name:
            at = next_hop(self._topology, at, here.name)
            passed += 1
        return passed


def _framed(flow: _Flow, payload: bytes) -> bytes:
    udp_bytes = _UDP_BYTES + len(payload)
    ip_bytes = _IP_BYTES + udp_bytes
    words = int.from_bytes(payload, "big") << (8 * (len(payload) & 1))
    # The length is in the UDP header and in the pseudo-header. A checksum of 0 would mean that there is none.
    udp_checksum = -(flow.udp_sum + 2 * udp_bytes + words) % _ONES or _ONES
    ip_checksum = -(flow.ip_sum + ip_bytes) % _ONES
    headers = _HEADERS.pack(flow.ethernet, ip_bytes, flow.fate, ip_checksum, flow.addresses, udp_bytes, udp_checksum)
    return headers + payload


def _flow(*, macs: bytes, ttl: int, addresses: bytes, port: int) -> _Flow:
    start = b"\x45\x00"
    fate = struct.pack(">HHBB", 0, DONT_FRAGMENT, ttl, UDP_PROTOCOL)
    ports = struct.pack(">HH", port, port)
    return _Flow(
        ethernet=macs + b"\x08\x00" + start,
        fate=fate,
        addresses=addresses + ports,
        ip_sum=_sum(start + fate + addresses),
        udp_sum=_sum(addresses + ports) + UDP_PROTOCOL,
    )


def _sum(words: bytes) -> int:
    """Sum of 16-bit words modulo 2**16 - 1: equal to the bytes as one big number, because 2**16 is 1 there."""
    return int.from_bytes(words, "big") % _ONES


def _group_mac(ip: str) -> bytes:
    """Multicast MAC of a group (RFC 1112): its low 23 bits under 01:00:5e."""
    group = _ip(ip)
    return b"\x01\x00\x5e" + bytes([group[1] & 0x7F]) + group[2:]


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def _ip(text: str) -> bytes:
    return bytes(int(part) for part in text.split("."))
