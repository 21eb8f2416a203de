"""Runs of packet blocks are found as by a serial walk, also with payloads that look like blocks."""

from __future__ import annotations

import gc
import random
import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector import walk as walk_module
from collector.blocks import Layout
from collector.parse import batches, map_capture, read_sections
from collector.walk import walk
from tests.collector.captures import block, packet, pcap, pcapng, traffic


def _captured(frames: Iterable[bytes], layout: Layout) -> bytes:
    """The blocks of these frames, without a head."""
    return b"".join(map(packet, frames)) if layout is Layout.PCAPNG else pcap(frames)[24:]


def _serially(data: bytes, layout: Layout) -> list[int]:
    """The plain loop that `walk` must agree with."""
    offsets, at = [], 0
    while at < len(data):
        offsets.append(at)
        place, head = (4, 0) if layout is Layout.PCAPNG else (8, 16)
        at += head + int.from_bytes(data[at + place : at + place + 4], "little")
    return offsets


def _assert_walked(data: bytes, layout: Layout) -> None:
    found = walk(np.frombuffer(data, np.uint8), start=0, end=len(data), layout=layout, byte_order="<")
    assert (found.problem, found.stop) == ("", len(data))
    assert found.offsets.tolist() == _serially(data, layout)


@pytest.fixture
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many pieces of little data."""
    monkeypatch.setattr(walk_module, "PIECE_BYTES", 1 << 10)


pytestmark = pytest.mark.usefixtures("short_pieces")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("layout", [Layout.PCAPNG, Layout.PCAP])
def test_random_sizes(layout: Layout, seed: int) -> None:
    rng = random.Random(seed)
    frames = [rng.randbytes(rng.choice([20, 64, 300, 1500])) for _ in range(400)]
    _assert_walked(_captured(frames, layout), layout)


@pytest.mark.parametrize("shift", range(4))
@pytest.mark.parametrize("layout", [Layout.PCAPNG, Layout.PCAP])
def test_payloads_that_are_captures_do_not_deceive(layout: Layout, shift: int) -> None:
    frame = bytes(shift) + _captured([bytes(100)], layout) * 9
    _assert_walked(_captured([frame] * 200, layout), layout)


@pytest.mark.parametrize(
    "data",
    [
        block("<", 0xBAD, bytes(60_000)) * 3 + block("<", 10, bytes(8)) * 900 + packet(bytes(40)) * 500,
        (block("<", 10, b"") * 50 + packet(b"")) * 100,
    ],
    ids=["blocks of many pieces", "smallest blocks"],
)
def test_blocks_that_are_no_packets(data: bytes) -> None:
    _assert_walked(data, Layout.PCAPNG)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damage_anywhere_stops_at_the_same_block_as_a_serial_walk(data: st.DataObject) -> None:
    blocks = [packet(bytes(60 + 4 * (n % 9))) for n in range(600)]
    broken = data.draw(st.integers(0, 599))
    field = data.draw(st.sampled_from([4, -4]))
    value = data.draw(st.sampled_from([0, 4, 13, 1 << 20, 1 << 31]))
    body = bytearray(blocks[broken])
    body[field : field + 4 or None] = struct.pack("<I", value)
    blocks[broken] = bytes(body)
    offsets = np.cumsum([0, *(len(b) for b in blocks)])
    raw = np.frombuffer(b"".join(blocks), np.uint8)
    found = walk(raw, start=0, end=len(raw), layout=Layout.PCAPNG, byte_order="<")
    assert found.offsets.tolist() == offsets[:broken].tolist()
    assert found.stop == offsets[broken]
    assert found.problem


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(1, 50_000))
def test_cut_off_file_stops_at_the_last_whole_block(cut: int) -> None:
    whole = b"".join(packet(bytes(60 + 4 * (n % 9))) for n in range(600))
    raw = np.frombuffer(whole[:cut], np.uint8)
    found = walk(raw, start=0, end=len(raw), layout=Layout.PCAPNG, byte_order="<")
    offsets = [*_serially(whole, Layout.PCAPNG), len(whole)]
    count = sum(offset <= cut for offset in offsets) - 1
    assert found.offsets.tolist() == offsets[:count]
    assert found.stop == offsets[count]
    assert found.truncated == (cut != offsets[count])
    assert found.problem == ("" if cut == offsets[count] else f"cut off at byte {offsets[count]}")


def test_blocks_may_reach_past_the_end_of_the_range() -> None:
    data = packet(bytes(60)) * 100
    size = len(data) // 100
    raw = np.frombuffer(data, np.uint8)
    found = walk(raw, start=0, end=size * 3 + 1, layout=Layout.PCAPNG, byte_order="<")
    assert found.offsets.tolist() == [0, size, 2 * size, 3 * size]
    assert found.stop == 4 * size


def test_a_range_outside_the_buffer_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="does not lie in a buffer of 10 bytes"):
        walk(np.zeros(10, np.uint8), start=0, end=11, layout=Layout.PCAPNG, byte_order="<")


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_file_that_was_walked_is_closed_at_once(tmp_path: Path) -> None:
    """Without garbage collection: a process that follows a capture for hours keeps the number of its open files."""
    path = tmp_path / "a.pcapng"
    path.write_bytes(pcapng(traffic(20)))
    (head,) = read_sections(path)
    gc.disable()
    try:
        before = open_files()
        for _ in range(20):
            assert read_sections(path) == (head,)
            list(batches(map_capture(path), start=head.first_offset, end=head.end, interfaces=head.interfaces))
        assert open_files() == before
    finally:
        gc.enable()
