"""Captures of the writer are read by all readers: the project's parser, tshark, capinfos; and a full disk loses no
recorded frame.
"""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector import index
from collector.parse import map_capture, parse_blocks, read_interfaces, read_sections, read_statistics
from collector.pcapng import MARK_BYTES, PcapngWriter, Port
from collector.records import CaptureError, Frames
from tests.collector import strict
from tests.collector.captures import START_NS, traffic, tshark

PORTS = (
    Port(ifindex=100_000, name="p1/n1", mac="02:0b:00:01:00:01"),
    Port(ifindex=100_001, name="p1/n2"),
    Port(ifindex=100_002, name="p2/n1"),
)


def _batch(frames: list[bytes], first: int = 0) -> tuple[np.ndarray, Frames]:
    """Frames one after the other with odd gaps, numbered from `first` in port, direction and time."""
    data, offsets = bytearray(), []
    for frame in frames:
        data += b"gap"
        offsets.append(len(data))
        data += frame
    numbers = np.arange(first, first + len(frames))
    sizes = np.array([len(frame) for frame in frames], np.int32)
    return np.frombuffer(bytes(data), np.uint8), Frames(
        time_ns=START_NS + 1000 * numbers.astype(np.int64),
        interface=(numbers % len(PORTS)).astype(np.int32),
        direction=(1 + numbers % 2).astype(np.int8),
        length=sizes + 5,
        captured=sizes,
        offset=np.array(offsets, np.int64),
        stop=0,
    )


def _write(path: Path, *batches: list[bytes], comment: str = '{"run": "test"}') -> PcapngWriter:
    writer = PcapngWriter(path, PORTS, comment=comment, capture_filter="ifindex >= 100000")
    first = 0
    for frames in batches:
        writer.write(*_batch(frames, first))
        first += len(frames)
    return writer


def _assert_frames(packets: list[strict.Packet], frames: list[bytes]) -> None:
    assert [p.data for p in packets] == frames
    for number, p in enumerate(packets):
        expected = (START_NS + 1000 * number, number % len(PORTS), 1 + number % 2, len(frames[number]) + 5)
        assert (p.time_ns, p.interface, p.direction, p.length) == expected


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(0, 90), max_size=40), max_size=4),
    equal=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1500)), max_size=4),
)
def test_what_goes_in_comes_out(
    sizes: list[list[int]], equal: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    groups = sizes + [[size] * count for count, size in equal]
    batches = [[bytes((place + size) % 251 for place in range(size)) for size in group] for group in groups]
    path = tmp_path_factory.mktemp("write") / "a.pcapng"
    assert _write(path, *batches).close()
    frames = [frame for batch in batches for frame in batch]
    _assert_frames(strict.read(path), frames)
    known = index.read(path)
    assert known.end is not None
    assert (known.end.frames, bool(known.marks)) == (len(frames), bool(frames))


def test_head_and_statistics(tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    writer = _write(path, traffic(31))
    assert writer.frames == 31
    assert writer.recorded.tolist() == [11, 10, 10]
    assert writer.close(received=np.array([12, 10, 10]), dropped_frames=7)
    (head,) = read_sections(path)
    statistics = read_statistics(path, head)
    assert head.section.metadata == {"run": "test"}
    assert head.section.application == "Orderbed collector"
    assert list(head.interfaces.names) == [port.name for port in PORTS]
    assert {port.resolution for port in head.interfaces.ports} == {9}
    assert [item.received for item in statistics.values()] == [12, 10, 10]
    assert [item.delivered for item in statistics.values()] == [11, 10, 10]
    assert [item.dropped for item in statistics.values()] == [7, None, None]
    assert b"all ports together" in path.read_bytes()
    frames = parse_blocks(map_capture(path), start=head.first_offset, end=head.end, interfaces=head.interfaces)
    assert (len(frames), frames.problem) == (31, "")


def test_file_is_whole_after_every_write_and_before_close(tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    writer = PcapngWriter(path, PORTS)
    for round_ in range(5):
        assert len(strict.read(path)) == 10 * round_
        assert path.stat().st_size == writer.bytes
        writer.write(*_batch(traffic(10)))
    assert writer.close()


def test_a_capture_that_cannot_be_made_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "old.pcapng").write_text("precious")
    for name, comment, sentence in (
        ("old.pcapng", "", "exists already; a capture is written once, so name another file"),
        ("missing/a.pcapng", "", "cannot be made: No such file or directory"),
        ("new.pcapng", "x" * 70_000, "too long for pcapng, which takes 65535"),
    ):
        with pytest.raises(CaptureError, match=sentence):
            PcapngWriter(tmp_path / name, PORTS, comment=comment)
    assert (tmp_path / "old.pcapng").read_text() == "precious"
    assert not (tmp_path / "new.pcapng").exists()


def test_index_marks_are_block_boundaries_and_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    batch = [bytes(1200)] * 100
    writer = _write(path, *[batch] * 40)
    before_close = index.read(path)
    assert before_close.end is None
    assert writer.close()
    known = index.read(path)
    packets = strict.read(path)
    assert known.first_offset == packets[0].block
    assert before_close.marks == known.marks
    assert [packets[mark.frames].block for mark in known.marks] == [mark.offset for mark in known.marks]
    assert [packets[mark.frames].time_ns for mark in known.marks] == [mark.time_ns for mark in known.marks]
    assert known.marks[0].frames == 0
    gaps = np.diff([mark.offset for mark in known.marks])
    assert (gaps >= MARK_BYTES).all()
    assert (gaps < 1.2 * MARK_BYTES).all()
    assert known.end is not None
    assert (known.end.frames, known.end.time_ns) == (4000, packets[-1].time_ns)
    assert known.end.offset < path.stat().st_size  # the statistics follow it


def test_index_cut_at_any_byte_or_with_flipped_bits_gives_only_true_marks(tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    assert _write(path, *[[bytes(1200)] * 100] * 30).close()
    whole, marks = index.path_of(path).read_bytes(), index.read(path).marks
    assert len(marks) > 2
    for cut in range(len(whole)):
        index.path_of(path).write_bytes(whole[:cut])
        known = index.read(path)
        assert known.marks == marks[: max(cut // index.RECORD_BYTES - 1, 0)]
        assert known.end is None
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0x10
        index.path_of(path).write_bytes(bytes(changed))
        known = index.read(path)
        assert set(known.marks) <= set(marks)
        assert known.end is None
    index.path_of(path).unlink()
    assert index.read(path) == index.NO_INDEX


@pytest.mark.parametrize("target", ["capture.pcapng.index", "x" * 300, ".", None])
def test_an_index_that_is_no_file_is_none(tmp_path: Path, target: str | None) -> None:
    """None: a pipe, which nobody writes to."""
    beside = index.path_of(tmp_path / "capture.pcapng")
    os.mkfifo(beside) if target is None else beside.symlink_to(target)
    assert index.read(tmp_path / "capture.pcapng") == index.NO_INDEX


@contextmanager
def _file_size_limit(limit: int) -> Iterator[None]:
    """The kernel refuses to let any file grow beyond this limit, as on a full disk, to the byte."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_no_room_at_any_byte_keeps_every_whole_frame(tmp_path: Path) -> None:
    frames = traffic(12)
    reference = tmp_path / "reference.pcapng"
    assert _write(reference, frames).close()
    starts = [p.block for p in strict.read(reference)]
    ends = [*starts[1:], index.read(reference).end.offset]  # type: ignore[union-attr]
    for limit in range(starts[0], ends[-1], 7):
        path = tmp_path / f"{limit}.pcapng"
        writer = PcapngWriter(path, PORTS, comment='{"run": "test"}', capture_filter="ifindex >= 100000")
        with _file_size_limit(limit), pytest.raises(CaptureError, match="recording stopped after") as caught:
            writer.write(*_batch(frames))
        kept = sum(end <= limit for end in ends)
        assert f"{path}: recording stopped after {kept} frames, which are kept: File too large" == str(caught.value)
        with pytest.raises(CaptureError, match="recording stopped"):
            writer.write(*_batch(frames))
        assert writer.frames == kept
        assert not writer.close()
        _assert_frames(strict.read(path), frames[:kept])
        statistics = read_statistics(path, read_interfaces(path)).values()
        assert sum(item.delivered or 0 for item in statistics) == kept


def test_no_room_for_the_statistics_leaves_the_frames(tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    writer = _write(path, traffic(12))
    with _file_size_limit(writer.bytes + 20):
        assert not writer.close()
    assert "recording stopped after 12 frames" in writer.problem
    _assert_frames(strict.read(path), traffic(12))


def test_index_that_cannot_grow_does_not_stop_the_capture(tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    index.path_of(path).symlink_to("/dev/full")
    writer = _write(path, traffic(12))
    assert writer.close()
    _assert_frames(strict.read(path), traffic(12))


def test_tshark_reads_nanoseconds_directions_and_names(tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    assert _write(path, traffic(30)).close()
    rows = tshark(
        path, "frame.time_epoch", "frame.interface_name", "frame.packet_flags_direction", "frame.len", "frame.cap_len"
    )
    assert len(rows) == 30
    for number, (row, frame) in enumerate(zip(rows, traffic(30), strict=True)):
        time_ns = START_NS + 1000 * number
        assert row[0] == f"{time_ns // 10**9}.{time_ns % 10**9:09d}"
        assert row[1] == PORTS[number % 3].name
        assert int(row[2], 16) == 1 + number % 2
        assert (int(row[3]), int(row[4])) == (len(frame) + 5, len(frame))


def test_other_programs_read_comment_precision_interfaces_and_statistics(tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    assert _write(path, traffic(30)).close(received=np.array([40, 50, 60]), dropped_frames=3)
    text = subprocess.run(["capinfos", str(path)], check=True, capture_output=True, text=True).stdout
    assert "nanoseconds (9)" in text
    assert '{"run": "test"}' in text
    assert "Number of interfaces in file: 3" in text
    assert text.count("Number of stat entries = 1") == 3
    assert "Name = p2/n1" in text
    command = ["tshark", "-n", "-r", str(path), "-X", "read_format:MIME Files Format", "-T", "json"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    # Compared as text: the objects have many members of the same name.
    assert '"pcapng.options.option.data.interface.dropped": "3"' in text
    for received in (40, 50, 60):
        assert f'"pcapng.options.option.data.interface.received": "{received}"' in text
