"""Captures of other programs: the rows do not depend on the number of parts or on an index, and an unreadable file is
reported in one sentence.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import types as T  # noqa: N812

from analysis.capture import source
from analysis.capture.totals import totals
from analysis.errors import AnalysisError
from collector import index
from collector.index import IndexKind, Mark
from collector.parse import map_capture, read_interfaces, read_sections
from collector.walk import walk
from tests.collector.captures import (
    START_NS,
    block,
    interface,
    option,
    packet,
    pcap,
    pcapng,
    section,
    traffic,
    udp_frame,
)

SCHEMA = T.StructType([source.table_schema("frames")[name] for name in ("offset", "time_ns", "interface")])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.pcap"


def rows(path: Path, parts: int) -> list[tuple[int, int, int]]:
    """Offset, time and interface of every frame, as Spark's tasks read them."""
    reader = source.CaptureReader(str(path), SCHEMA, "frames", parts)
    batches = [batch for group in reader.partitions() for batch in reader.read(group)]
    return sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())


def write_index(path: Path) -> None:
    """The index that our collector would have written, with a mark every 50 blocks."""
    head, buffer = read_interfaces(path), map_capture(path)
    found = walk(buffer, start=head.first_offset, end=len(buffer), layout=head.interfaces.layout, byte_order="<")
    marks = [Mark(int(offset), 50 * place, 0) for place, offset in enumerate(found.offsets[::50].tolist())][1:]
    data = index.pack_head(head.first_offset) + b"".join(index.pack(IndexKind.MARK, mark) for mark in marks)
    end = Mark(len(buffer), len(found.offsets), 0)
    index.path_of(path).write_bytes(data + index.pack(IndexKind.END, end))


def adversarial(make: Callable[[list[bytes]], bytes], inner: Callable[[bytes], bytes]) -> bytes:
    """Frames whose payload holds records up to the end of the frame: a search that starts inside a frame finds a chain
    of records that does not end.
    """
    rng = random.Random(5)
    return make([bytes(rng.randrange(4) * 4) + inner(bytes(60)) * rng.randrange(1, 20) for _ in range(600)])


def bare(frames: list[bytes]) -> bytes:
    """Blocks without options, so that only the repeated length follows the payload in a block."""
    return section() + interface() + b"".join(packet(frame, direction=None) for frame in frames)


def record(data: bytes) -> bytes:
    return struct.pack("<IIII", 5, 5, len(data), len(data)) + data


HOSTILE = {
    "pcapng": adversarial(bare, lambda data: packet(data, direction=None)),
    "pcapng with options": adversarial(pcapng, packet),
    "pcap": adversarial(pcap, record),
    "mixed": pcapng(traffic(900)),
}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "LEAST_PART_BYTES", 4_000)


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("parts", [2, 7, 40])
def test_parts_hold_the_rows_of_the_whole_with_an_index_and_without(path: Path, name: str, parts: int) -> None:
    path.write_bytes(HOSTILE[name])
    whole = rows(path, 1)
    assert len(whole) in (600, 900)

    assert rows(path, parts) == whole
    write_index(path)
    assert rows(path, parts) == whole
    reader = source.CaptureReader(str(path), SCHEMA, "frames", parts)
    assert sum(len(group.pieces) for group in reader.partitions() if isinstance(group, source.Pieces)) > 1


def test_an_index_that_points_into_payloads_is_found_out_and_told(path: Path) -> None:
    """Each mark is a whole block, but inside a frame: the marks are refused because the blocks do not close."""
    path.write_bytes(HOSTILE["pcapng"])
    head, data = read_interfaces(path), path.read_bytes()
    inner = packet(bytes(60), direction=None)
    forged = [data.index(inner, len(data) * part // 8) for part in range(1, 8)]
    marks = b"".join(index.pack(IndexKind.MARK, Mark(offset, 0, 0)) for offset in forged)
    index.path_of(path).write_bytes(index.pack_head(head.first_offset) + marks)

    with pytest.raises(AnalysisError, match=r"its index does not fit it; remove a.pcap.index and try again"):
        rows(path, 8)


def test_sections_are_read_each_with_its_own_interfaces_and_byte_order(path: Path) -> None:
    frames = [udp_frame(bytes(n)) for n in range(40)]
    little = section("<") + interface("<", "a", 6) + b"".join(packet(f, 7_000_000) for f in frames)
    big = section(">") + interface(">", "b", 9) + interface(">", "c", 3)
    big += b"".join(packet(f, 9_000, order=">", port=1) for f in frames)
    path.write_bytes(little + section("<") + big + little)

    heads = read_sections(path)
    assert [head.interfaces.names for head in heads] == [("a",), (), ("b", "c"), ("a",)]
    assert [head.interfaces.first for head in heads] == [0, 1, 1, 3]
    for parts in (1, 6):
        found = rows(path, parts)
        assert [number for _, _, number in found] == [0] * 40 + [2] * 40 + [3] * 40
        assert {time_ns for _, time_ns, _ in found} == {7 * 10**9, 9 * 10**9}
    state = source.inspect(path)
    assert (state.frames, state.interface_names, state.problem) == (120, ("a", "b", "c", "a"), "")


def test_more_sections_than_anybody_writes_are_refused(path: Path) -> None:
    path.write_bytes(section() * 1200)
    with pytest.raises(AnalysisError, match="has more than 1000 sections; merge them into one with: mergecap"):
        source.inspect(path)


@pytest.mark.parametrize(("link_type", "kind"), [(113, "Linux cooked"), (101, "raw IP"), (999, "link type 999")])
def test_a_foreign_link_type_is_one_sentence(path: Path, link_type: int, kind: str) -> None:
    data = bytearray(pcap(traffic(3)))
    data[20:24] = struct.pack("<I", link_type)
    path.write_bytes(bytes(data))

    for read in (source.inspect, lambda one: rows(one, 2)):
        with pytest.raises(AnalysisError, match=f"interface 'a' was captured as {kind}, and only Ethernet can be"):
            read(path)
    assert totals(path).interfaces[0].link_type == kind
    assert totals(path).frames == 3


@pytest.mark.parametrize(
    ("magic", "sentence"),
    [
        (b"\x1f\x8b\x08\x00", r"is compressed \(gzip\); unpack it first: gunzip --keep a.pcap"),
        (b"\x28\xb5\x2f\xfd", r"is compressed \(zstd\); unpack it first: unzstd --keep a.pcap"),
        (b"\xfd7zXZ\x00", r"is compressed \(xz\)"),
        (b"BZh9", r"is compressed \(bzip2\)"),
        (b"\x04\x22\x4d\x18", r"is compressed \(lz4\)"),
        (b"PK\x03\x04", r"is compressed \(zip\); unpack it first: unzip a.pcap"),
        (b"GIF89a", "is neither pcapng nor pcap"),
    ],
)
def test_packed_files_and_others_are_one_sentence(path: Path, magic: bytes, sentence: str) -> None:
    path.write_bytes(magic + bytes(100))
    for read in (source.inspect, totals, lambda one: rows(one, 2)):
        with pytest.raises(AnalysisError, match=sentence):
            read(path)


@pytest.mark.parametrize("size", [0, 3, 10, 27, 60])
def test_a_file_that_ends_in_its_head_has_no_rows(path: Path, size: int) -> None:
    path.write_bytes(pcapng(traffic(3))[:size])

    assert rows(path, 3) == []
    found = totals(path)
    assert (found.frames, found.truncated, bool(found.problem)) == (0, True, True)


def test_damage_in_the_middle_keeps_what_stands_before_it(path: Path) -> None:
    good, bad = pcapng(traffic(50)), bytearray(pcapng(traffic(100)))
    bad[len(good) + 4 : len(good) + 8] = struct.pack("<I", 13)
    path.write_bytes(bytes(bad))

    assert len(rows(path, 1)) == len(rows(path, 9)) == 50
    found = totals(path)
    assert (found.frames, found.truncated) == (50, False)
    assert found.problem == f"block at byte {len(good)} has the impossible length 13"


def test_totals_add_up(path: Path) -> None:
    frames = traffic(100)
    counters = option("<", 4, struct.pack("<Q", 99)) + option("<", 5, struct.pack("<Q", 7))
    statistics = block("<", 5, struct.pack("<III", 1, 0, 0) + counters)
    path.write_bytes(pcapng(frames) + statistics)
    found = totals(path)

    assert (found.frames, found.bytes, found.sections) == (100, sum(map(len, frames)), 1)
    assert (found.first_ns, found.last_ns, found.is_in_order) == (START_NS, START_NS + 99_000, True)
    assert [(one.inbound, one.outbound, one.undirected) for one in found.interfaces] == [(50, 0, 0), (0, 50, 0)]
    assert [(one.received, one.dropped) for one in found.interfaces] == [(None, None), (99, 7)]
    assert sum(one.frames for one in found.protocols) == 100
    protocols = {one.name: one.frames for one in found.protocols}
    assert protocols == {"orderbed messages": 78, "orderbed trace": 14, "experimental": 8}
