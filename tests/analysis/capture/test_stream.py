"""A capture that is still being written: an incomplete block is read later, and a restart neither loses nor repeats a
row.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812

from analysis.capture import source
from analysis.capture.source import Pieces
from analysis.capture.stream import BYTE, CaptureStream, Follower
from analysis.errors import AnalysisError
from tests.collector.captures import block, interface, packet, pcap, pcapng, section, traffic, udp_frame
from tests.waiting import wait_until

EVERYTHING = 1 << 40
SCHEMA = T.StructType([source.table_schema("frames")[name] for name in ("offset", "length")])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.pcapng"


def offsets(follower: Follower, start: int, end: int, parts: int = 1) -> list[int]:
    """Offsets of the frames between two boundaries, as a query reads them."""
    reader = CaptureStream(str(follower.path), SCHEMA, "frames", parts=parts)
    batches = [batch for piece in follower.pieces(start, end, parts) for batch in reader.read(Pieces([piece]))]
    return [row for batch in batches for row in batch["offset"].to_pylist()]


def boundary(path: Path) -> int:
    return Follower(path).boundary(0, EVERYTHING)


@pytest.mark.parametrize("make", [pcapng, pcap])
@pytest.mark.parametrize("order", ["<", ">"])
def test_a_file_that_grows_by_any_number_of_bytes_gives_each_frame_once(
    path: Path, make: Callable[..., bytes], order: str
) -> None:
    frames, rng = traffic(60), random.Random(7)
    whole = make(frames, order=order)
    follower, at, written, seen = Follower(path), 0, 0, list[int]()
    with path.open("wb", buffering=0) as file:
        while written < len(whole):
            step = rng.choice([1, 2, 3, 7, 50, 400])
            file.write(whole[written : written + step])
            written += step
            after = follower.boundary(at, EVERYTHING)
            seen += offsets(follower, at, after)
            at = after

    assert at == len(whole)
    assert len(seen) == len(set(seen)) == 60
    assert [whole[offset : offset + len(frame)] for offset, frame in zip(seen, frames, strict=True)] == frames


def test_a_batch_has_no_more_room_than_it_is_given_but_holds_one_block(path: Path) -> None:
    path.write_bytes(pcapng(traffic(200)))
    follower, at, batches = Follower(path), 0, list[int]()
    while (after := follower.boundary(at, 1)) > at:
        batches.append(len(offsets(follower, at, after)))
        at = after

    assert at == path.stat().st_size
    assert (sum(batches), max(batches)) == (200, 1)


def test_a_query_that_goes_on_elsewhere_knows_the_interfaces_that_came_before(path: Path) -> None:
    head = section() + interface(name="a") + packet(b"x" * 20)
    late = interface(name="b", resolution=6) + packet(b"y" * 24, port=1)
    path.write_bytes(head + late)
    (piece,) = Follower(path).pieces(len(head), len(head + late), parts=4)

    assert piece.interfaces.names == ("a", "b")
    assert offsets(Follower(path), len(head), len(head + late)) == [len(head + late) - 24 - 16]


def test_parts_hold_the_same_rows_as_the_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analysis.capture.stream.LEAST_PART_BYTES", 1000)
    path.write_bytes(pcapng(traffic(300)))
    follower, size = Follower(path), path.stat().st_size

    assert len(follower.pieces(0, size, 7)) == 7
    assert offsets(follower, 0, size, parts=7) == offsets(follower, 0, size)


def test_a_file_that_is_not_there_yet_is_waited_for(path: Path) -> None:
    follower = Follower(path)
    assert follower.boundary(0, EVERYTHING) == 0
    for data in (b"", section()[:10]):
        path.write_bytes(data)
        assert follower.boundary(0, EVERYTHING) == 0
    path.write_bytes(pcapng(traffic(3)))
    assert follower.boundary(0, EVERYTHING) == path.stat().st_size


def test_a_file_that_became_shorter_is_one_sentence(path: Path) -> None:
    path.write_bytes(pcapng(traffic(30)))
    follower = Follower(path)
    at = follower.boundary(0, EVERYTHING)
    path.write_bytes(pcapng(traffic(3)))

    with pytest.raises(AnalysisError, match="has become shorter while it was followed"):
        follower.boundary(at, EVERYTHING)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            section() + interface() + packet(b"x" * 20) + bytes(40) + packet(b"y" * 20),
            r"is damaged: block at byte \d+ has the impossible length 0",
        ),
        (b"\x1f\x8b\x08\x00" + bytes(30), r"is compressed \(gzip\); unpack it first: gunzip --keep a.pcapng"),
        (b"Dear reader, this is none.", "is neither pcapng nor pcap"),
    ],
    ids=["damage in the middle", "compressed", "no capture"],
)
def test_what_cannot_be_followed_is_one_sentence(path: Path, data: bytes, sentence: str) -> None:
    path.write_bytes(data)
    with pytest.raises(AnalysisError, match=sentence):
        boundary(path)


def test_a_second_section_is_where_following_ends(path: Path) -> None:
    one = pcapng(traffic(5))
    path.write_bytes(one + one)
    assert boundary(path) == len(one)


def test_one_capture_at_a_time(tmp_path: Path) -> None:
    for path in (str(tmp_path), str(tmp_path / "*.pcapng")):
        with pytest.raises(AnalysisError, match="one capture can be followed at a time"):
            CaptureStream(path, SCHEMA, "frames", parts=1)


def test_unknown_blocks_are_passed_over(path: Path) -> None:
    path.write_bytes(section() + interface() + block("<", 0xBAD, bytes(80)) + packet(udp_frame(b"hello")))
    assert len(offsets(Follower(path), 0, boundary(path))) == 1


def test_offsets_are_plain(path: Path) -> None:
    path.write_bytes(pcapng(traffic(10)))
    reader = CaptureStream(str(path), SCHEMA, "frames", parts=2)
    first = reader.initialOffset()
    last = reader.latestOffset(first, reader.getDefaultReadLimit())

    assert (first, last) == ({BYTE: 0}, {BYTE: path.stat().st_size})
    assert reader.partitions(last, last) == []


class Writer(threading.Thread):
    """Appends frames until it is stopped, in pieces that end at any byte."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path = path
        self.frames = 0
        self._is_asked = threading.Event()
        path.write_bytes(section() + interface())

    def run(self) -> None:
        rng = random.Random(3)
        with self.path.open("ab", buffering=0) as file:
            rest = b""
            while not self._is_asked.wait(0.1):
                rest += b"".join(packet(udp_frame(bytes(rng.randrange(200)))) for _ in range(40))
                self.frames += 40
                cut = rng.randrange(len(rest))
                file.write(rest[:cut])
                rest = rest[cut:]
            file.write(rest)

    def stop(self) -> None:
        self._is_asked.set()
        self.join()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    thread = Writer(tmp_path / "growing.pcapng")
    thread.start()
    yield thread
    thread.stop()


def rows_of(directory: Path) -> list[int]:
    """Offsets of the rows that the sink has committed."""
    log = directory / "_spark_metadata"
    names = {name for file in log.iterdir() if file.name.isdigit() for name in _named_in(file.read_text())}
    return [row for name in names for row in pq.read_table(directory / name)["offset"].to_pylist()]


def _named_in(text: str) -> list[str]:
    return [part.partition('"')[0] for part in text.split("/out/")[1:]]


def wait_until_grown(directory: Path, rows: int) -> None:
    log = directory / "_spark_metadata"
    wait_until(lambda: log.exists() and len(rows_of(directory)) > rows, "rows of the query", 60, every_s=0.1)


@pytest.mark.spark
def test_no_row_is_lost_or_repeated_when_the_whole_process_is_killed(
    spark: SparkSession, tmp_path: Path, writer: Writer
) -> None:
    """The process ends by SIGKILL in the middle of a batch; another process continues the query, stops it and continues
    it.
    """
    out = tmp_path / "out"
    script = f"""
        from analysis.engine import session
        with session.open_session() as spark:
            rows = spark.readStream.format("orderbed-pcapng").schema("offset long, length int")
            query = rows.load({str(writer.path)!r}).writeStream.format("parquet")
            query = query.option("checkpointLocation", {str(tmp_path / "checkpoint")!r}).option("path", {str(out)!r})
            query.trigger(processingTime="100 milliseconds").start().awaitTermination()
    """
    command, elsewhere = [sys.executable, "-c", textwrap.dedent(script)], os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, start_new_session=True, env=elsewhere) as process:
        try:
            wait_until_grown(out, 0)
        finally:
            process.send_signal(signal.SIGKILL)
    before = len(rows_of(out))

    def start(**trigger: str | bool) -> object:
        rows = spark.readStream.format(source.FORMAT).schema("offset long, length int").load(str(writer.path))
        sink = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        return sink.option("path", str(out)).trigger(**trigger).start()  # type: ignore[arg-type]

    query = start(processingTime="100 milliseconds")
    try:
        wait_until_grown(out, before)
    finally:
        query.stop()  # type: ignore[attr-defined]
    writer.stop()
    rest = start(availableNow=True)
    rest.awaitTermination()  # type: ignore[attr-defined]

    found = rows_of(out)
    assert len(found) == len(set(found)) == writer.frames
