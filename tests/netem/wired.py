"""Small topologies, and members whose sockets live in this process: one clock, no start-up, exact bookkeeping."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import socket
import struct
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from netem.kernel.supervised import Process
from netem.network import EmulatedNetwork, KernelOption
from topologies import shapes
from topologies.model import (
    CLEAR,
    MULTICAST_GROUP,
    PROTOCOL_PORT,
    Bus,
    Direction,
    Impairment,
    Node,
    NodeName,
    Topology,
)  # fmt: skip

CLONE_NEWNET = 0x40000000
SO_RCVBUFFORCE = 33
SO_TIMESTAMPNS = 35
ETH_P_ALL = 3
RAW_ETHERTYPE = 0x88B5
PROBE = struct.Struct("!4sHHI")
MARK = b"obPB"
libc = ctypes.CDLL(None, use_errno=True)


def topology(
    *sizes: int, links: Sequence[tuple[int, int]] = (), to_node: Impairment = CLEAR, bus: Bus | None = None
) -> Topology:
    """Partitions p1, p2, … of the given sizes; links by partition number."""
    members = {f"p{number}": [f"n{n}" for n in range(1, size + 1)] for number, size in enumerate(sizes, start=1)}
    made = shapes.network(
        "test",
        members,
        links=[shapes.link(f"p{a}", f"p{b}") for a, b in links],
        buses=dict.fromkeys(members, bus) if bus else None,
    )
    return shapes.with_ports(made, to_node=to_node)


@contextlib.contextmanager
def inside(namespace: int) -> Iterator[None]:
    """This thread in another network namespace; sockets made there stay there."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        assert libc.setns(namespace, CLONE_NEWNET) == 0
        yield
    finally:
        assert libc.setns(home, CLONE_NEWNET) == 0
        os.close(home)


def new_namespace() -> int:
    """A new network namespace, held by the returned descriptor."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        assert libc.unshare(CLONE_NEWNET) == 0
        made = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        assert libc.setns(home, CLONE_NEWNET) == 0
    finally:
        os.close(home)
    return made


@dataclass
class Member:
    """A node of the network whose sockets this process holds."""

    node: Node
    namespace: int
    udp: socket.socket
    frames: socket.socket
    port: socket.socket
    """Receives the frames that pass the switch port, in both directions, as a capture does."""

    def close(self) -> None:
        self.udp.close()
        self.frames.close()
        self.port.close()
        os.close(self.namespace)


@dataclass
class Group:
    """All members of a network."""

    network: EmulatedNetwork
    members: dict[NodeName, Member] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Member:
        return self.members[NodeName(name)]

    def close(self) -> None:
        for member in self.members.values():
            member.close()


@contextlib.contextmanager
def gathered(network: EmulatedNetwork) -> Iterator[Group]:
    """Attach every node of the network with a namespace of this process, as a container's would be. However the test
    ends, the sockets are closed.
    """
    with contextlib.closing(Group(network)) as group:
        for node in network.topology.nodes():
            gather_one(network, group, node.name)
        yield group


@contextlib.contextmanager
def opened(topology: Topology, log_dir: Path) -> Iterator[Group]:
    """A network in a guest, with all nodes attached."""
    with (
        EmulatedNetwork.open(topology, kernel=KernelOption.UML, log_dir=log_dir) as network,
        gathered(network) as group,
    ):
        yield group


def gather_one(network: EmulatedNetwork, group: Group, name: str) -> None:
    """Attach one node; a member that was there before must have been closed."""
    node = network.topology.node(name)
    namespace = new_namespace()
    network.attach(node, namespace)
    fabric = network.fabric_namespace()
    with inside(fabric):
        port = _frames(node.port_device)
    os.close(fabric)
    with inside(namespace):
        group.members[node.name] = Member(node, namespace, _udp(node), _frames("eth0"), port)


def _udp(node: Node) -> socket.socket:
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 256 << 20)
    udp.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    udp.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 8)
    udp.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
    udp.bind(("", PROTOCOL_PORT))
    membership = socket.inet_aton(MULTICAST_GROUP) + socket.inet_aton(node.ip)
    udp.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
    return udp


def _frames(device: str) -> socket.socket:
    frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    frames.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 512 << 20)
    frames.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    frames.bind((device, ETH_P_ALL))
    return frames


def run_in_fabric(network: EmulatedNetwork, *argv: str) -> tuple[TextIO, Process]:
    """A program in the fabric namespace: its output and its process. It inherits the environment, because in a guest
    that may name registers that programs must not use."""
    read, write = os.pipe()
    with Path(os.devnull).open("rb") as nothing:
        process = network.spawn_in_fabric(
            argv, environment=os.environ, stdin_fd=nothing.fileno(), stdout_fd=write, stderr_fd=2
        )
    os.close(write)
    return os.fdopen(read), process


# Streams: numbered datagrams, timed by the kernel as they pass the switch ports.


@dataclass(frozen=True)
class Arrival:
    number: int
    delay_ns: int
    """From the sender's switch port to the receiver's: the delay of the wire, however busy this process was."""


def stream(
    sender: Member,
    target: str,
    receivers: Sequence[Member],
    *,
    count: int,
    rate: float,
    size: int = 64,
    catch_up: bool = False,
) -> list[list[Arrival]]:
    """Send `count` datagrams at `rate` per second; returns the arrivals at each receiver's port, in order.

    A late sender does not catch up unless told so: a burst would be an overrun of its own making. A frame whose number
    was corrupted on the way is left out.
    """
    for member in (sender, *receivers):
        _drain(member.udp)
        _drain(member.port)
    padding = bytes(size - 8)
    gap_ns = int(1e9 / rate)
    due = time.monotonic_ns()
    for number in range(count):
        due = max(due + gap_ns, 0 if catch_up else time.monotonic_ns() + gap_ns // 4)
        while (left := due - time.monotonic_ns()) > 0:
            if left > 300_000:
                time.sleep((left - 200_000) / 1e9)
        sender.udp.sendto(STREAM.pack(STREAM_MARK, number) + padding, (target, PROTOCOL_PORT))
    passed = {receiver.node.name: _passed(receiver.port, outgoing=True) for receiver in receivers}
    sent = dict(_passed(sender.port, outgoing=False, quiet_s=0))
    return [
        [Arrival(number, at_ns - sent[number]) for number, at_ns in passed[receiver.node.name] if number in sent]
        for receiver in receivers
    ]


def behind_full(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Arrivals whose predecessor was dropped: they got the last place in a queue that had just been full."""
    arrived = {arrival.number for arrival in arrivals}
    return [arrival for arrival in arrivals if arrival.number and arrival.number - 1 not in arrived]


def datagrams(member: Member) -> int:
    """Number of datagrams that a member's program could read until now."""
    found = 0
    while select.select([member.udp], [], [], 0)[0]:
        member.udp.recv(65536)
        found += 1
    return found


STREAM = struct.Struct("!4sI")
STREAM_MARK = b"obST"
_UDP_PAYLOAD = 14 + 20 + 8


def _drain(one: socket.socket) -> None:
    while select.select([one], [], [], 0)[0]:
        one.recv(65536)


def _passed(port: socket.socket, *, outgoing: bool, quiet_s: float = 0.4) -> list[tuple[int, int]]:
    """Number and time of each frame of a stream that passed a port in one direction, until none has for `quiet_s`."""
    found = []
    while select.select([port], [], [], quiet_s)[0]:
        data, ancillary, _flags, address = port.recvmsg(2048, 64)
        if (address[2] == socket.PACKET_OUTGOING) is not outgoing or STREAM_MARK not in data:
            continue
        seconds, nanoseconds = struct.unpack("qq", ancillary[0][2])
        number = STREAM.unpack_from(data, _UDP_PAYLOAD)[1]
        found.append((number, seconds * 1_000_000_000 + nanoseconds))
    return found


def quantile_ms(arrivals: Sequence[Arrival], share: float) -> float:
    delays = sorted(arrival.delay_ns for arrival in arrivals)
    return delays[min(len(delays) - 1, int(share * len(delays)))] / 1e6


def counts(group: Group, name: str, direction: Direction) -> dict[str, int]:
    """The counters of one direction of one port."""
    found = next(c for c in group.network.counters() if c.node == name and c.direction is direction)
    return {
        "sent": found.sent_frames,
        "delay_line": found.delay_line_dropped_frames,
        "queue": found.queue_dropped_frames,
        "cut": found.cut_dropped_frames,
        "backlog": found.backlog_frames,
    }


def since(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in before}


# Probes: one frame of each kind from each to all.

NEAR_KINDS = ("unicast", "multicast", "broadcast", "arp", "raw")
FAR_KINDS = ("unicast", "multicast")
"""Only IP crosses a router."""


def possible(topology: Topology) -> set[tuple[str, str, str]]:
    """Every (from, to, kind) that must arrive when nothing is cut."""
    nodes = list(topology.nodes())
    return {
        (one.name, other.name, kind)
        for one in nodes
        for other in nodes
        if one is not other
        for kind in (NEAR_KINDS if one.partition == other.partition else FAR_KINDS)
    }


def without(everything: set[tuple[str, str, str]], pairs: Collection[tuple[str, str]]) -> set[tuple[str, str, str]]:
    return {(one, other, kind) for one, other, kind in everything if (one, other) not in pairs}


def probe_all(group: Group, expected: set[tuple[str, str, str]], *, nonce: int) -> set[tuple[str, str, str]]:
    """Each node sends one frame of each kind to each other; returns the (from, to, kind) that arrived. Waits until all
    expected frames are there (at most 3 s), then a little longer for unexpected ones.
    """
    for member in group.members.values():
        _drain(member.frames)
    for member in group.members.values():
        _send_probes(group, member, nonce)
    found: set[tuple[str, str, str]] = set()
    deadline = time.monotonic() + 3.0
    while not expected <= found and time.monotonic() < deadline:
        found |= _collect_probes(group, nonce, 0.05)
    return found | _collect_probes(group, nonce, 0.1)


def _send_probes(group: Group, member: Member, nonce: int) -> None:
    sender = member.node
    for number, kind in enumerate(NEAR_KINDS):
        payload = PROBE.pack(MARK, number, sender.index, nonce)
        if kind == "multicast":
            member.udp.sendto(payload, (MULTICAST_GROUP, PROTOCOL_PORT))
        elif kind == "broadcast":
            member.udp.sendto(payload, (f"10.{sender.partition_index}.255.255", PROTOCOL_PORT))
        elif kind == "arp":
            member.frames.send(_arp(sender, payload))
        for other in group.members.values():
            if other is member:
                continue
            if kind == "unicast":
                member.udp.sendto(payload, (other.node.ip, PROTOCOL_PORT))
            elif kind == "raw" and other.node.partition == sender.partition:
                head = mac(other.node.mac) + mac(sender.mac) + struct.pack("!H", RAW_ETHERTYPE)
                member.frames.send(head + payload + bytes(40))


def _arp(sender: Node, payload: bytes) -> bytes:
    """A request for an address that no node has, followed by the probe."""
    request = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + mac(sender.mac) + socket.inet_aton(sender.ip)
    request += bytes(6) + socket.inet_aton(f"10.{sender.partition_index}.200.1")
    return b"\xff" * 6 + mac(sender.mac) + b"\x08\x06" + request + payload


def _collect_probes(group: Group, nonce: int, quiet_s: float) -> set[tuple[str, str, str]]:
    names: dict[int, str] = {member.node.index: name for name, member in group.members.items()}
    by_socket: dict[socket.socket, str] = {member.frames: name for name, member in group.members.items()}
    found: set[tuple[str, str, str]] = set()
    while ready := select.select(list(by_socket), [], [], quiet_s)[0]:
        for frames in ready:
            data, address = frames.recvfrom(2048)
            place = data.find(MARK)
            if address[2] == socket.PACKET_OUTGOING or place < 0:
                continue
            _mark, kind, sender, got = PROBE.unpack_from(data, place)
            if got == nonce:
                found.add((names[sender], by_socket[frames], NEAR_KINDS[kind]))
    return found


def mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))
