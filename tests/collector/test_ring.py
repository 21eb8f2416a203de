"""The ring, and the ring as a scapy socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from scapy.layers.inet import UDP
from scapy.layers.l2 import Ether
from scapy.sendrecv import AsyncSniffer, sniff

from collector.records import CaptureError, PortDirection
from collector.ring import MAX_SNAP_LENGTH, PacketRing, RingStatistics, port_filter
from collector.sniffer import RingSocket
from tests.bpf import run
from tests.collector.captures import datagram, udp_frame
from tests.collector.conftest import IFINDEX_BASE, Wires
from tests.waiting import in_time

PORTS = range(IFINDEX_BASE, IFINDEX_BASE + 2)
TRACE = bytes.fromhex("0180c200000e") + bytes(60)


@pytest.mark.parametrize(("ifindex", "passes"), [(1, False), (99, False), (100, True), (109, True), (110, False)])
def test_filter_lets_only_the_ports_pass(ifindex: int, passes: bool) -> None:
    program = port_filter(range(100, 110), 128)
    assert run(program, udp_frame(datagram()), ifindex=ifindex) == (128 if passes else 0)
    assert run(program, TRACE, ifindex=ifindex) == (MAX_SNAP_LENGTH if passes else 0)


def test_filter_knows_trace_by_its_whole_address() -> None:
    program = port_filter(range(100, 110), 128)
    for place in range(6):
        other = bytearray(TRACE)
        other[place] ^= 1
        assert run(program, bytes(other), ifindex=100) == 128


def test_a_range_with_gaps_is_our_own_mistake() -> None:
    for ifindexes in (range(5, 5), range(1, 9, 2)):
        with pytest.raises(ValueError, match="a range without gaps"):
            PacketRing(ifindexes=ifindexes)


@pytest.fixture
def ring(wires: Wires) -> Iterator[PacketRing]:
    with PacketRing(ifindexes=PORTS, blocks=4, block_bytes=1 << 16) as made:
        yield made


def _take(ring: PacketRing) -> list[tuple[int, bool, bytes]]:
    """Everything in the next block: interface, outgoing, bytes."""
    assert ring.wait(2000)
    frames = ring.frames()
    taken = [
        (int(ifindex), bool(outgoing), ring.buffer[begin : begin + size].tobytes())
        for ifindex, outgoing, begin, size in zip(
            frames.ifindex, frames.is_outgoing, frames.offset, frames.captured, strict=True
        )
    ]
    ring.release()
    return taken


@pytest.mark.root
@pytest.mark.parametrize("sizes", [[100], [100] * 50, [100] * 20 + [101] + [100] * 20, list(range(14, 90))])
def test_frames_of_equal_and_of_mixed_sizes(ring: PacketRing, wires: Wires, sizes: list[int]) -> None:
    frames = [
        (bytes([number]) * 6 + udp_frame(datagram(number)) + bytes(100))[:size] for number, size in enumerate(sizes)
    ]
    wires.send("eth1", frames)
    taken: list[tuple[int, bool, bytes]] = []
    while len(taken) < len(frames):
        taken += _take(ring)
    assert taken == [(IFINDEX_BASE + 1, False, frame) for frame in frames]


@pytest.mark.root
def test_an_idle_ring_has_nothing(ring: PacketRing) -> None:
    assert not ring.wait(50)
    assert ring.is_drained()
    assert ring.statistics() == RingStatistics(0, 0, 0)


@pytest.mark.root
def test_many_turns_around_the_ring(ring: PacketRing, wires: Wires) -> None:
    frame = udp_frame(datagram(payload=bytes(900)))
    for number in range(20):
        wires.send("ob0", [frame] * 40)
        taken: list[tuple[int, bool, bytes]] = []
        while len(taken) < 40:
            taken += _take(ring)
        assert taken == [(IFINDEX_BASE, True, frame)] * 40, number
    assert ring.statistics() == RingStatistics(800, 0, 0)


@pytest.mark.root
def test_a_shut_ring_hands_over_the_open_block_and_no_more(ring: PacketRing, wires: Wires) -> None:
    wires.send("eth0", [udp_frame(datagram(1))] * 3)
    ring.shut()
    wires.send("eth0", [udp_frame(datagram(2))] * 3)
    assert not ring.is_drained()
    taken = _take(ring)
    assert [data for _, _, data in taken] == [udp_frame(datagram(1))] * 3
    assert ring.is_drained()


@pytest.mark.root
def test_a_full_ring_counts_what_it_drops_and_recovers(ring: PacketRing, wires: Wires) -> None:
    frame = udp_frame(datagram(payload=bytes(900)))
    wires.send("eth0", [frame] * 1000)
    counted = ring.statistics()
    assert counted.frames == 1000
    assert counted.dropped_frames > 500
    kept = 0
    while ring.wait(200):
        kept += len(_take(ring))
    assert kept == 1000 - counted.dropped_frames
    wires.send("eth0", [frame] * 10)
    assert len(_take(ring)) == 10
    assert ring.statistics().frames == 1010


@pytest.mark.root
def test_a_ring_that_the_kernel_refuses(wires: Wires) -> None:
    with pytest.raises(CaptureError, match="the kernel refuses a capture ring: Invalid argument"):
        PacketRing(ifindexes=PORTS, block_bytes=1000)


@pytest.fixture
def handle(wires: Wires) -> Iterator[RingSocket]:
    made = RingSocket(ifindexes=PORTS)
    yield made
    made.close()


@pytest.mark.root
def test_scapy_sniffs_on_the_ring(handle: RingSocket, wires: Wires) -> None:
    before = time.time_ns()
    wires.send("eth0", [udp_frame(datagram(number)) for number in range(10)])
    wires.send("ob1", [udp_frame(datagram(number)) for number in range(10)])
    interfaces: list[int] = []
    packets = sniff(
        opened_socket=handle, count=20, timeout=5, prn=lambda packet: interfaces.append(handle.last_ifindex)
    )
    assert len(packets) == 20
    assert [bytes(packet) for packet in packets] == [udp_frame(datagram(number)) for number in range(10)] * 2
    assert {packet[UDP].dport for packet in packets} == {7700}
    assert [packet.direction for packet in packets] == [PortDirection.INBOUND] * 10 + [PortDirection.OUTBOUND] * 10
    assert interfaces == [IFINDEX_BASE] * 10 + [IFINDEX_BASE + 1] * 10
    assert before <= int(packets[0].time * 10**9) <= time.time_ns()


@pytest.mark.root
def test_scapy_sniffing_ends_when_told(handle: RingSocket, wires: Wires) -> None:
    seen = threading.Event()
    sniffer = AsyncSniffer(opened_socket=handle, prn=lambda _: seen.set())
    sniffer.start()
    wires.send("eth0", [udp_frame(datagram(1))])
    assert seen.wait(5)
    packets = sniffer.stop()
    assert packets is not None
    assert [type(packet) for packet in packets] == [Ether]


@pytest.mark.root
def test_scapy_sniffing_times_out(handle: RingSocket) -> None:
    began = time.monotonic()
    assert len(sniff(opened_socket=handle, timeout=0.2)) == 0
    took_s = time.monotonic() - began
    assert took_s > 0.15
    assert in_time(took_s, 2)
