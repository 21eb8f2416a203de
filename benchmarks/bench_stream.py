"""Delay until a growing capture is counted, and loss of rows by a restart.

A generated capture is appended to a file in pieces that end anywhere, at a steady rate, while `analysis.live.query`
follows it as `orderbed watch` does. The first batches start Python workers and compile, and are left out of the bar.
The restart is a query into Parquet that is stopped in mid-file and continues from its checkpoint; its rows are compared
with the offsets of the frames that the parser finds.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from analysis.capture.source import FORMAT, inspect
from analysis.engine import session
from analysis.live.counts import Live, ports_of_capture
from analysis.live.query import follow
from benchmarks.bench_analysis import made_run
from benchmarks.rows import Row, Watch, at_most
from collector.parse import frames_in, read_interfaces

BAR_S = 0.5
WARM_BATCHES = 5
FRAMES_PER_S = 20_000
PIECE_S = 0.02
TIMEOUT_S = 300.0


def measure(*, quick: bool) -> Iterator[Row]:
    seconds = 15 if quick else 30
    with tempfile.TemporaryDirectory(prefix="bench-stream-") as directory:
        run, _ = made_run(Path(directory) / "run", seconds * FRAMES_PER_S)
        capture = run / "capture.pcapng"
        with session.open_session() as spark:
            yield from _batches(spark, capture, Path(directory), seconds)
            yield _restart(spark, capture, Path(directory))


class _Writer(threading.Thread):
    """Thread that appends a capture to a file over `seconds`."""

    def __init__(self, whole: bytes, path: Path, seconds: float) -> None:
        super().__init__(daemon=True)
        self._whole = whole
        self._path = path
        self._step = max(1, int(len(whole) * PIECE_S / seconds))

    def run(self) -> None:
        began, written = time.monotonic(), 0
        with self._path.open("wb", buffering=0) as file:
            for number, at in enumerate(range(0, len(self._whole), self._step)):
                written += file.write(self._whole[at : at + self._step])
                time.sleep(max(0.0, began + number * PIECE_S - time.monotonic()))


def _batches(spark: SparkSession, capture: Path, directory: Path, seconds: int) -> Iterator[Row]:
    growing, whole = directory / "growing.pcapng", capture.read_bytes()
    ports = ports_of_capture(read_interfaces(capture).interfaces.names)
    watch, writer = Watch(), _Writer(whole, growing, seconds)
    writer.start()
    with follow(spark, growing, Live(ports)) as following:
        deadline = time.monotonic() + TIMEOUT_S
        while following.byte < len(whole):
            following.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"at byte {following.byte:,} of {len(whole):,} after {TIMEOUT_S:.0f} s")
            time.sleep(PIECE_S)
        (query,) = spark.streams.active
        took = [progress for progress in query.recentProgress if progress.numInputRows]
        snapshot = following.snapshot(has_ended=True)
    writer.join()
    seconds_of = [progress.batchDuration / 1000 for progress in took]
    warm = seconds_of[WARM_BATCHES:] or seconds_of
    what = f"one micro-batch of a capture that grows by {FRAMES_PER_S:,} frames/s"
    note = f"{len(warm)} batches behind the first {WARM_BATCHES}; median of each part: {_parts(took[WARM_BATCHES:])}"
    yield watch.row("stream.batch", f"{what}, median", "s", float(np.median(warm)), bar=at_most(BAR_S), note=note)
    yield watch.row("stream.batch_max", f"{what}, slowest", "s", max(warm))
    yield watch.row("stream.first", "the first micro-batch of a look", "s", seconds_of[0])
    lost = abs(snapshot.frames - inspect(capture).frames)
    yield watch.row("stream.uncounted", "frames that a look did not count", "frames", lost, bar=at_most(0))


def _parts(taken: Sequence[StreamingQueryProgress]) -> str:
    """Median duration of each phase of a batch, by Spark's names."""
    phases: dict[str, list[int]] = {}
    for progress in taken:
        for name, took_ms in progress.durationMs.items():
            phases.setdefault(name, []).append(took_ms)
    medians = {name: float(np.median(took_ms)) for name, took_ms in phases.items()}
    return ", ".join(f"{name} {value:.0f} ms" for name, value in sorted(medians.items(), key=lambda one: -one[1]))


def _restart(spark: SparkSession, capture: Path, directory: Path) -> Row:
    watch, out = Watch(), directory / "out"

    def start(**trigger: str | bool) -> StreamingQuery:
        rows = spark.readStream.format(FORMAT).schema("offset long").option("batchBytes", 4 << 20).load(str(capture))
        sink = rows.writeStream.format("parquet").option("checkpointLocation", str(directory / "checkpoint"))
        return sink.option("path", str(out)).trigger(**trigger).start()  # type: ignore[arg-type]

    query = start(processingTime="0 seconds")
    deadline = time.monotonic() + TIMEOUT_S
    while (progress := query.lastProgress) is None or progress.batchId < 2:
        if query.exception() is not None or time.monotonic() > deadline:
            raise TimeoutError("the query did not come to its third batch")
        time.sleep(PIECE_S)
    query.stop()
    start(availableNow=True).awaitTermination()
    found = Counter(row["offset"] for row in spark.read.parquet(str(out)).collect())
    truth = _offsets(capture)
    wrong = len(truth - found.keys()) + len(found.keys() - truth) + sum(count - 1 for count in found.values())
    what = "rows lost or repeated by a query that was stopped and went on from its checkpoint"
    return watch.row("stream.restart", what, "rows", wrong, bar=at_most(0), note=f"{len(truth):,} frames")


def _offsets(capture: Path) -> set[int]:
    return {offset for _, frames in frames_in(capture, read_interfaces(capture)) for offset in frames.offset.tolist()}
