"""Speed of the analysis: Spark's start, queries over a capture, a whole run from capture to summary.

The capture is that of a generated run: a multicast group in total order, one frame at the sender's port and one at each
receiver's, and the trace. Queries are compared with `tshark -T fields` on the first frames of the same file. All times
are wall-clock times, on all processors of the machine.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the usual name)

from analysis.capture.decode import decode_frames
from analysis.capture.source import FORMAT
from analysis.engine import session
from analysis.report.page import write_report
from analysis.summary import analyze
from benchmarks.bench_memory import make_run
from benchmarks.rows import Compared, Row, Watch, at_least, at_most, seconds_of, shown, take_turns
from collector.parse import batches, map_capture, read_interfaces, split

PROGRAMS = ("tshark", "editcap")

MEMBERS = 10
PARTS = 2
TSHARK_FRAMES = 20_000
BYTES_OF_A_FRAME = 670


def measure(*, quick: bool) -> Iterator[Row]:
    yield _start(1 if quick else 3)
    frames = 100_000 if quick else 2_000_000
    with tempfile.TemporaryDirectory(prefix="bench-analysis-") as directory:
        path, frames = made_run(Path(directory) / "run", frames)
        part = Path(directory) / "part.pcapng"
        cut = ["editcap", "-r", str(path / "capture.pcapng"), str(part), f"1-{TSHARK_FRAMES}"]
        subprocess.run(cut, check=True, capture_output=True)
        with session.open_session(long_run=not quick) as spark:
            yield from _queries(spark, path / "capture.pcapng", part, 1 if quick else 3)
            yield from _summary(spark, path, part, frames)
        yield _report(path)


def made_run(path: Path, frames: int) -> tuple[Path, int]:
    """Generated run of about `frames` frames, including trace, and their exact number."""
    return make_run(path, bytes_wanted=frames * BYTES_OF_A_FRAME, members=MEMBERS)


def _start(rounds: int) -> Row:
    """Start of a session as in an analysis, with a new JVM each round."""
    watch, values = Watch(), []
    for _ in range(rounds):
        began = time.perf_counter()
        with session.open_session() as spark:
            spark.range(PARTS).mapInArrow(lambda rows: rows, "id long").count()
            values.append(time.perf_counter() - began)
    return watch.row("analysis.start", "Spark's start and first Python job", "s", values, bar=at_most(5))


def _queries(spark: SparkSession, capture: Path, part: Path, rounds: int) -> Iterator[Row]:
    total = _aggregated(spark, capture)
    contenders: dict[str, Callable[[], int]] = {
        "aggregate": lambda: _aggregated(spark, capture),
        "percentiles": lambda: _percentiles(spark, capture),
        "workers": lambda: _in_workers(spark, capture),
    }
    for contender in contenders.values():
        if contender() != total:
            raise RuntimeError("two queries saw different numbers of frames")
    watch = Watch()
    rates = take_turns(
        rounds,
        {name: _rate(query, total) for name, query in contenders.items()}
        | {"tshark": _rate(lambda: _tshark(part), TSHARK_FRAMES)},
    )
    for name, what, least, factor in (
        ("aggregate", "scan and aggregate", 2.5, 50),
        ("percentiles", "percentiles", 1.5, 28),
        ("workers", "aggregated by the workers", 5, 90),
    ):
        words = f"Spark: {what}, {total:,} frames"
        yield watch.row(f"analysis.{name}", words, "M frames/s", rates[name], bar=at_least(least))
        bar = at_least(factor, of=Compared.RATIO)
        theirs = ("tshark, 4 fields", rates["tshark"])
        yield watch.row(f"analysis.{name}_tshark", words, "M frames/s", rates[name], peer=theirs, bar=bar)


def _rate(query: Callable[[], object], frames: int) -> Callable[[], float]:
    return lambda: frames / seconds_of(query) / 1e6


def _aggregated(spark: SparkSession, capture: Path) -> int:
    rows = spark.read.format(FORMAT).schema("sender int, direction byte, length int").load(str(capture))
    found = rows.groupBy("sender", "direction").agg(F.count("*").alias("frames"), F.sum("length")).collect()
    return sum(int(row["frames"]) for row in found)


def _percentiles(spark: SparkSession, capture: Path) -> int:
    rows = spark.read.format(FORMAT).schema("sender int, time_ns long").load(str(capture))
    within_s = F.percentile_approx(F.col("time_ns") % 10**9, [0.5, 0.9, 0.99], 1000)
    found = rows.groupBy("sender").agg(F.count("*").alias("frames"), within_s).collect()
    return sum(int(row["frames"]) for row in found)


def _in_workers(spark: SparkSession, capture: Path) -> int:
    """Number of frames by tasks that each parse a part and give one small table, which Spark adds up."""
    ranges = split(capture, PARTS)
    counts = spark.sparkContext.parallelize(ranges, len(ranges)).map(lambda part: _counted(capture, part)).collect()
    return int(np.sum(counts, axis=0)[:, 0].sum())


def _counted(capture: Path, part: tuple[int, int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Frames and bytes by sender."""
    head, buffer = read_interfaces(capture), map_capture(capture)
    counted = np.zeros((1 << 16, 2), np.int64)
    for frames in batches(buffer, start=part[0], end=part[1], interfaces=head.interfaces):
        sender = decode_frames(buffer, frames, ("sender",))["sender"]
        here = np.bincount(sender)
        counted[: len(here), 0] += here
        counted[: len(here), 1] += np.bincount(sender, frames.length).astype(np.int64)
    return counted


def _tshark(path: Path) -> None:
    fields = ["-e", "frame.time_epoch", "-e", "ip.src", "-e", "udp.dstport", "-e", "udp.length"]
    subprocess.run(["tshark", "-n", "-r", str(path), "-T", "fields", *fields], check=True, capture_output=True)


def _summary(spark: SparkSession, path: Path, part: Path, frames: int) -> Iterator[Row]:
    """One analysis in an open session whose workers have run the queries but no analysis."""
    watch, marks = Watch(), list[tuple[float, str]]()
    began = time.perf_counter()
    found = analyze(path, spark=spark, on_progress=lambda text: marks.append((time.perf_counter(), text)))
    ended = time.perf_counter()
    if found["verdict"] != "pass":
        raise RuntimeError(f"the made run should pass: {found['reasons']}")
    stages = zip(marks, [*marks[1:], (ended, "")], strict=True)
    note = "; ".join(f"{text} {shown(until - at)} s" for (at, text), (until, _) in stages)
    what = f"capture to summary, {frames:,} frames, session open"
    rate = frames / (ended - began) / 1e6
    yield watch.row("analysis.summary", what, "M frames/s", rate, bar=at_least(0.7), note=note)
    theirs = ("tshark, 4 fields", _rate(lambda: _tshark(part), TSHARK_FRAMES)())
    note = "the bar is 12.7 times what tshark does where it was set"
    yield watch.row("analysis.summary_tshark", what, "M frames/s", rate, peer=theirs, note=note)


def _report(path: Path) -> Row:
    watch = Watch()
    size = write_report(path).stat().st_size
    return watch.row("analysis.report.page", "report, one file to be read offline", "MB", size / 1e6, bar=at_most(1.5))
