"""The fast parser gives the frames of the strict reader, on every file, and no frames beyond the end of the file."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.capture.totals import totals
from collector import index, parse
from collector.blocks import MAX_BLOCK_BYTES, Interface, Interfaces, Layout
from collector.index import IndexKind, Mark
from collector.parse import (
    MAX_PACKET_OPTIONS,
    batches,
    map_capture,
    parse_blocks,
    read_interfaces,
    read_sections,
    split,
)
from collector.records import FRAME_ROW, CaptureError, Frames, PortDirection
from tests.collector import strict
from tests.collector.captures import (
    START_NS,
    block,
    datagram,
    interface,
    option,
    packet,
    pcap,
    pcapng,
    section,
    traffic,
    udp_frame,
)


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def _wrapped(time_ns: int) -> int:
    return (time_ns + 2**63) % 2**64 - 2**63


def _rows(frames: Frames, data: bytes) -> list[tuple[int, int, int, int, bytes]]:
    """Fields of the frames, comparable with the strict reader."""
    fields = (frames.time_ns, frames.interface, frames.direction, frames.length, frames.captured, frames.offset)
    return [
        (time_ns, port, direction, length, data[offset : offset + captured])
        for time_ns, port, direction, length, captured, offset in zip(*(one.tolist() for one in fields), strict=True)
    ]


def _parsed(path: Path) -> Frames:
    """The whole file at once."""
    head, buffer = read_interfaces(path), map_capture(path)
    return parse_blocks(buffer, start=head.first_offset, end=len(buffer), interfaces=head.interfaces)


def _assert_same(path: Path) -> Frames:
    data, frames = path.read_bytes(), _parsed(path)
    expected = [
        (_wrapped(p.time_ns), p.interface, p.direction, min(p.length, 2**31 - 1), p.data) for p in strict.read(path)
    ]
    assert _rows(frames, data) == expected
    assert frames.problem == ""
    return frames


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("count", [0, 1, 2, 50, 3000])
def test_own_layout(tmp_path: Path, order: str, count: int) -> None:
    frames = _assert_same(_write(tmp_path / "a.pcapng", pcapng(traffic(count), order=order)))
    assert len(frames) == count
    assert {column.name: getattr(frames, column.name).dtype for column in FRAME_ROW} == {
        column.name: column.dtype for column in FRAME_ROW
    }


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nanoseconds", [True, False])
@pytest.mark.parametrize("count", [0, 1, 3000])
def test_plain_pcap(tmp_path: Path, order: str, nanoseconds: bool, count: int) -> None:
    path = _write(tmp_path / "a.pcap", pcap(traffic(count), order=order, nanoseconds=nanoseconds))
    frames = _assert_same(path)
    assert len(frames) == count
    if count:
        assert frames.time_ns[0] == START_NS if nanoseconds else START_NS // 1000 * 1000
        assert set(frames.direction.tolist()) == {PortDirection.UNKNOWN}


@pytest.mark.parametrize(
    "resolution", [0, 3, 6, 9, 12, 19, 28, 60, 0x80 | 10, 0x80 | 30, 0x80 | 34, 0x80 | 50, 0x80 | 63, 0x80 | 100]
)
def test_every_time_resolution(tmp_path: Path, resolution: int) -> None:
    head = section() + interface(resolution=resolution) + interface(name="other", resolution=6, offset_s=-5)
    ticks = [0, 1, 999_999_999, 5 * 10**9 + 17, 2**40 + 12345, 2**63 + 5, 2**64 - 1]
    body = b"".join(packet(b"x" * 14, tick, port=n % 2) for n, tick in enumerate(ticks))
    path = _write(tmp_path / "a.pcapng", head + body)
    frames = _parsed(path)
    expected = [_wrapped(p.time_ns) for p in strict.read(path)]
    # Beyond 2**-34 s the lowest bits of a fraction are dropped: at most one nanosecond.
    tolerance = 1 if resolution & 0x80 and resolution & 0x7F > 34 else 0
    assert np.abs(frames.time_ns - np.array(expected)).max() <= tolerance


def test_options_in_front_of_the_flags_are_passed_over(tmp_path: Path) -> None:
    comment = option("<", 1, b"twelve bytes")
    frames = [
        packet(b"x" * 20, before_flags=comment * 3, direction=2),
        packet(b"x" * 21, direction=None),
        packet(b"x" * 22, before_flags=option("<", 2, b"odd"), direction=1),
        packet(b"x" * 23, before_flags=option("<", 0, b""), direction=1),
        packet(b"x" * 24, before_flags=struct.pack("<HH", 1, 65000), direction=1),
        packet(b"x" * 25, direction=3),
    ]
    parsed = _assert_same(_write(tmp_path / "a.pcapng", section() + interface() + b"".join(frames)))
    assert parsed.direction.tolist() == [2, 0, 1, 0, 0, 0]


def test_interfaces_are_bounded_over_all_sections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "MAX_INTERFACES", 100)
    one = section() + interface() * 50 + packet(b"x" * 20)
    assert len(read_sections(_write(tmp_path / "a.pcapng", one * 2))) == 2
    path = _write(tmp_path / "b.pcapng", one * 2 + section() + interface() + packet(b"x" * 20))
    with pytest.raises(CaptureError, match="has more than 100 interfaces"):
        read_sections(path)


def test_a_block_of_options_alone_takes_no_longer_than_a_frame(tmp_path: Path) -> None:
    """Four million options in one block once took two minutes: after so many, flags are not searched for."""
    options = option("<", 1, b"")
    few, many = MAX_PACKET_OPTIONS - 1, MAX_BLOCK_BYTES // len(options) - 100
    data = section() + interface() + packet(b"x" * 20, before_flags=options * few, direction=2)
    path = tmp_path / "a.pcapng"
    path.write_bytes(data + packet(b"x" * 21, before_flags=options * many, direction=2))
    assert totals(path).frames == 2
    assert _assert_same(_write(tmp_path / "b.pcapng", data)).direction.tolist() == [2]


def test_blocks_that_are_no_packets_are_passed_over(tmp_path: Path) -> None:
    other = block("<", 0xBAD, b"custom--") + block("<", 10, b"") + block("<", 5, bytes(12))
    data = section() + interface() + other + packet(b"x" * 30) + other + packet(b"y" * 31) + other
    assert len(_assert_same(_write(tmp_path / "a.pcapng", data))) == 2


@pytest.mark.parametrize("order", ["<", ">"])
def test_simple_and_obsolete_packet_blocks(tmp_path: Path, order: str) -> None:
    simple = block(order, 3, struct.pack(order + "I", 90) + b"s" * 40)
    whole = block(order, 3, struct.pack(order + "I", 5) + b"tiny!\0\0\0")
    ticks = struct.pack(order + "II", START_NS >> 32, START_NS & 0xFFFFFFFF)
    obsolete = block(
        order, 2, struct.pack(order + "HH", 1, 77) + ticks + struct.pack(order + "II", 6, 60) + b"obsole\0\0"
    )
    data = section(order) + interface(order, snap_length=40) + interface(order, "b")
    data += packet(b"x" * 20, order=order) + simple + obsolete + whole + packet(b"y" * 9, order=order, port=1)
    frames = _assert_same(_write(tmp_path / "a.pcapng", data))
    assert frames.captured.tolist() == [20, 40, 6, 5, 9]
    assert frames.length.tolist() == [20, 90, 60, 5, 9]


def test_interfaces_that_appear_later_are_found(tmp_path: Path) -> None:
    data = section() + interface(name="a") + packet(b"x" * 20) + interface(name="b", resolution=6)
    data += packet(b"y" * 21, START_NS // 1000, port=1)
    path = _write(tmp_path / "a.pcapng", data)
    assert read_interfaces(path).interfaces.names == ("a", "b")
    frames = _assert_same(path)
    assert frames.time_ns.tolist() == [START_NS, START_NS // 1000 * 1000]


ONE = pcapng(traffic(3))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (ONE * 2, f"has a second section at byte {len(ONE)}; merge it into one with: mergecap"),
        (b"", "is empty"),
        (b"GIF89a" + bytes(40), "is neither pcapng nor pcap"),
        (section()[:10], "cut off at byte 0 after 0 whole frames"),
        (pcap([])[:20], "cut off at byte 0 after 0 whole frames"),
        (section()[:8] + b"????" + section()[12:], "has no byte-order magic"),
    ],
)
def test_what_is_no_capture_is_refused_in_one_sentence(tmp_path: Path, data: bytes, sentence: str) -> None:
    with pytest.raises(CaptureError, match=sentence):
        read_interfaces(_write(tmp_path / "a.pcapng", data))


@pytest.mark.parametrize("make", [pcapng, pcap])
def test_file_cut_off_at_any_byte_gives_the_whole_frames_before(tmp_path: Path, make) -> None:  # type: ignore[no-untyped-def]
    whole = make(traffic(9))
    path = _write(tmp_path / "a.pcapng", whole)
    head = read_interfaces(path)
    rows = _rows(_parsed(path), whole)
    for cut in range(head.first_offset, len(whole)):
        part = whole[:cut]
        found = parse_blocks(memoryview(part), start=head.first_offset, end=cut, interfaces=head.interfaces)
        expected, stop = strict.packets(part)
        assert _rows(found, part) == rows[: len(expected)]
        assert (found.stop, found.truncated) == (stop, stop < cut)
        assert bool(found.problem) == found.truncated


@settings(max_examples=150, deadline=None)
@given(flips=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 7)), max_size=6), is_pcap=st.booleans())
def test_flipped_bits_never_break_the_parser(flips: list[tuple[int, int]], is_pcap: bool) -> None:
    data = bytearray((pcap if is_pcap else pcapng)(traffic(20)))
    order_of = _interfaces(is_pcap)
    first = 24 if is_pcap else len(pcapng([]))
    for place, bit in flips:
        data[first + place % (len(data) - first)] ^= 1 << bit
    view = memoryview(bytes(data))
    frames = parse_blocks(view, start=first, end=len(data), interfaces=order_of)
    assert (frames.offset + frames.captured <= len(data)).all()
    assert (frames.captured >= 0).all()
    assert first <= frames.stop <= len(data)
    assert frames.problem or frames.stop == len(data)


def _interfaces(is_pcap: bool):  # type: ignore[no-untyped-def]
    ports = (Interface(name="p1/n1", link_type=1, resolution=9), Interface(name="p1/n2", link_type=1, resolution=9))
    layout = Layout.PCAP if is_pcap else Layout.PCAPNG
    return Interfaces(layout=layout, byte_order="<", ports=ports[: 1 if is_pcap else 2])


def test_blocks_that_contradict_themselves_are_left_out_and_counted(tmp_path: Path) -> None:
    liar = bytearray(packet(b"z" * 40))
    liar[20:24] = struct.pack("<I", 4000)
    stranger = packet(b"s" * 40, port=9)
    short = block("<", 6, bytes(8))
    data = section() + interface() + packet(b"x" * 20) + bytes(liar) + stranger + short + packet(b"y" * 20)
    frames = _parsed(_write(tmp_path / "a.pcapng", data))
    assert len(frames) == 2
    assert frames.damaged == 3
    assert not frames.problem


def test_impossible_length_is_a_problem_and_no_truncation(tmp_path: Path) -> None:
    good = section() + interface() + packet(b"x" * 20)
    for length in (0, 8, 13, 2**31, 2**32 - 4):
        data = good + struct.pack("<II", 6, length) + bytes(100)
        frames = _parsed(_write(tmp_path / "a.pcapng", data))
        assert len(frames) == 1
        assert frames.stop == len(good)
        assert frames.problem == f"block at byte {len(good)} has the impossible length {length}"
        assert not frames.truncated


@pytest.mark.parametrize("size", [64, 1024, 1 << 14])
@pytest.mark.parametrize(
    "frames",
    [traffic(1000), [*traffic(50), *traffic(1) * 2500, *traffic(50)]],
    ids=["of many sizes", "equal ones among others"],
)
def test_batches_are_the_whole(tmp_path: Path, frames: list[bytes], size: int) -> None:
    path = _write(tmp_path / "a.pcapng", pcapng(frames)[:-3])
    head, buffer = read_interfaces(path), map_capture(path)
    whole = _parsed(path)
    parts = list(
        batches(buffer, start=head.first_offset, end=len(buffer), interfaces=head.interfaces, frames_per_batch=size)
    )
    assert [len(part) for part in parts] == [*[size] * (len(whole) // size), len(whole) % size]
    assert np.concatenate([part.offset for part in parts]).tolist() == whole.offset.tolist()
    assert np.concatenate([part.time_ns for part in parts]).tolist() == whole.time_ns.tolist()
    assert [part.truncated for part in parts] == [False] * (len(parts) - 1) + [True]
    assert (parts[-1].stop, parts[-1].problem) == (whole.stop, whole.problem)
    for part, following in itertools.pairwise(parts):
        assert part.stop == following.offset[0] - 28


@pytest.mark.parametrize("make", [pcapng, pcap])
@pytest.mark.parametrize("parts", [1, 2, 3, 7, 5000])
def test_split_without_an_index_is_exact(tmp_path: Path, make, parts: int) -> None:  # type: ignore[no-untyped-def]
    path = _write(tmp_path / "a.pcapng", make(_deceivers(400)))
    _assert_split(path, parts)


def _assert_split(path: Path, parts: int) -> None:
    head, buffer = read_interfaces(path), map_capture(path)
    ranges = split(path, parts)
    assert len(ranges) <= parts
    assert ranges[0][0] == head.first_offset
    assert ranges[-1][1] == len(buffer)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges))
    found = [parse_blocks(buffer, start=a, end=b, interfaces=head.interfaces) for a, b in ranges]
    assert [frames.stop for frames in found] == [b for _, b in ranges]
    offsets = np.concatenate([frames.offset for frames in found])
    whole = _parsed(path)
    assert offsets.tolist() == whole.offset.tolist()


def _deceivers(count: int) -> list[bytes]:
    """Frames whose payloads are captures themselves, up to the end of the frame."""
    inside = packet(udp_frame(datagram(1))) * 2
    records = pcap([udp_frame(datagram(1))] * 2)[24:]
    return [udp_frame(bytes(n % 4) + (inside if n % 2 else records)) for n in range(count)]


def _index(path: Path, marks: list[Mark], first: int, end: Mark | None) -> None:
    data = index.pack_head(first) + b"".join(index.pack(IndexKind.MARK, mark) for mark in marks)
    if end is not None:
        data += index.pack(IndexKind.END, end)
    index.path_of(path).write_bytes(data)


def test_split_takes_its_boundaries_from_the_index(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.pcapng", pcapng(traffic(400)))
    packets = strict.read(path)
    marks = [Mark(packets[n].block, n, packets[n].time_ns) for n in range(10, 400, 50)]
    _index(path, marks, packets[0].block, Mark(path.stat().st_size, 400, packets[-1].time_ns))
    assert {start for start, _ in split(path, 5)} <= {packets[0].block, *(mark.offset for mark in marks)}
    _assert_split(path, 5)


def test_an_index_left_over_from_another_capture_is_not_believed(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.pcapng", pcapng(traffic(400)))
    first = read_interfaces(path).first_offset
    _index(path, [Mark(first + 1001, 9, 5), Mark(first + 5002, 19, 5)], first, None)
    _assert_split(path, 5)


def test_split_of_a_capture_without_frames(tmp_path: Path) -> None:
    assert split(_write(tmp_path / "a.pcapng", section()), 4) == []
    path = _write(tmp_path / "b.pcapng", pcapng([]))
    assert split(path, 4) == []


def test_split_of_a_cut_off_capture_keeps_the_tail_in_the_last_part(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.pcapng", pcapng(traffic(400))[:-5])
    head, buffer = read_interfaces(path), map_capture(path)
    ranges = split(path, 4)
    found = [parse_blocks(buffer, start=a, end=b, interfaces=head.interfaces) for a, b in ranges]
    assert sum(len(frames) for frames in found) == 399
    assert [frames.truncated for frames in found] == [False, False, False, True]
