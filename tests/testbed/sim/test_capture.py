"""The simulated capture, read by the parser of emulated ones."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from analysis.capture.decode import decode_frames
from collector import index
from collector.parse import map_capture, parse_blocks, read_interfaces
from collector.records import Frames, PortDirection
from testbed.sim.capture import BATCH_FRAMES, EPOCH_NS, SimulatedCapture
from testbed.sim.network import Datagram
from tests.collector.captures import datagram, trace_datagram
from topologies.shapes import one_partition

TOPOLOGY = one_partition(2)
ONE, TWO = TOPOLOGY.nodes()


def sent(payload: bytes = datagram(), *, is_trace: bool = False, flipped_bits: tuple[int, ...] = ()) -> Datagram:
    """A datagram to all, sent by the first node."""
    return Datagram(
        source=ONE,
        destination=None,
        payload=payload,
        size_bytes=42 + len(payload),
        sent_ns=0,
        is_trace=is_trace,
        flipped_bits=flipped_bits,
    )


def recorded(path: Path, count: int) -> SimulatedCapture:
    capture = SimulatedCapture(path, TOPOLOGY, {"group": 7})
    for number in range(count):
        is_back = number % 2 == 1
        one = sent(datagram(number)) if number % 3 else sent(trace_datagram(1), is_trace=True)
        capture.frame(TWO if is_back else ONE, not is_back, 1000 * number, one)
    return capture


def read(path: Path) -> tuple[memoryview, Frames]:
    head, buffer = read_interfaces(path), map_capture(path)
    return buffer.data, parse_blocks(buffer, start=head.first_offset, end=len(buffer), interfaces=head.interfaces)


def test_frames_come_back_with_port_direction_and_time(tmp_path: Path) -> None:
    path = tmp_path / "capture.pcapng"
    count = 2 * BATCH_FRAMES + 5
    capture = recorded(path, count)
    assert capture.frames == count
    assert capture.close() == {
        "frames": count, "bytes": path.stat().st_size, "kernel_dropped_frames": 0, "complete": True,
    }  # fmt: skip
    assert index.read(path).end is not None
    data, frames = read(path)
    assert frames.time_ns.tolist() == [EPOCH_NS + 1000 * number for number in range(count)]
    assert frames.interface.tolist() == [number % 2 for number in range(count)]
    assert set(frames.direction[::2].tolist()) == {PortDirection.INBOUND}
    assert set(frames.direction[1::2].tolist()) == {PortDirection.OUTBOUND}
    decoded = decode_frames(data, frames)
    assert int(decoded["is_trace"].sum()) == len(range(0, count, 3))
    assert int(decoded["is_protocol"].sum()) == count - len(range(0, count, 3))
    assert not decoded["is_undecodable"].any()


def test_the_head_names_ports_and_nothing_of_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "capture.pcapng"
    recorded(path, 1).close()
    head = read_interfaces(path)
    assert head.interfaces.names == ("p1/n1", "p1/n2")
    assert head.section.metadata == {"clock": {"monotonic_ns": 0, "realtime_ns": EPOCH_NS}, "group": 7}
    assert platform.release().encode() not in path.read_bytes()


def test_memory_holds_one_batch_at_most(tmp_path: Path) -> None:
    capture = recorded(tmp_path / "capture.pcapng", BATCH_FRAMES)
    assert read(tmp_path / "capture.pcapng")[1].time_ns.size == BATCH_FRAMES
    capture.frame(ONE, True, 10**12, sent())
    assert capture.frames == BATCH_FRAMES + 1
    assert capture.close() is capture.close()


def test_a_capture_without_frames_is_one(tmp_path: Path) -> None:
    assert SimulatedCapture(tmp_path / "capture.pcapng", TOPOLOGY, {}).close()["complete"]
    assert read(tmp_path / "capture.pcapng")[1].time_ns.size == 0


@pytest.mark.parametrize("bits", [(0,), (7, 336), (336 + 8 * 30,), (400, 400)])
def test_a_damaged_frame_has_exactly_its_bits_flipped(bits: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "capture.pcapng"
    capture = SimulatedCapture(path, TOPOLOGY, {})
    for flips in ((), bits):
        capture.frame(TWO, False, 5, sent(flipped_bits=flips))
    capture.close()
    data, frames = read(path)
    whole, damaged = (
        int.from_bytes(data[start : start + size], "big")
        for start, size in zip(frames.offset.tolist(), frames.captured.tolist(), strict=True)
    )
    last = 8 * int(frames.length[0]) - 1
    expected = 0
    for bit in bits:
        expected ^= 1 << (last - bit)
    assert whole ^ damaged == expected


def test_time_that_runs_back_is_our_mistake(tmp_path: Path) -> None:
    capture = SimulatedCapture(tmp_path / "capture.pcapng", TOPOLOGY, {})
    capture.frame(ONE, True, 5, sent())
    with pytest.raises(AssertionError, match="order of time"):
        capture.frame(ONE, True, 4, sent())
    assert capture.frames == 1
