"""How fast a history is judged: `python benchmarks/bench_oracle.py [members] [largest power of two]`.

Deliveries a second of the plain oracle, of the linear checker over Python records and over NumPy columns, and of Spark,
over histories of 2^k deliveries: in one total order, and in causal order only (each member delivers what is concurrent
in an order of its own). Times are processor time of one thread, Spark's is wall-clock time. The exponent of growth (1:
linear) is the slope of a line through the logarithms of the larger half of the sizes. The goal of step 2 is 2 million
deliveries a second, linear, on one core.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from analysis import schema
from analysis.checks import linear, oracle, order
from analysis.checks.columns import Columns
from analysis.checks.properties import DELIVERY_PROPERTIES, Finding, Property, Verdict, merge
from analysis.engine import session
from analysis.engine.tasks import OfSpark
from collector.records import Event, Level

Findings = dict[Property, Finding]
Prepare = Callable[[Columns, int], Callable[[], Findings]]
ROUND_NS = 1_000_000


def main() -> None:
    members = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    largest = int(sys.argv[2]) if len(sys.argv) > 2 else 22
    for is_total in (True, False):
        print(f"{'total' if is_total else 'causal'} order, {members} members")
        measure("plain oracle", plain, members, range(8, 12), is_total=is_total)
        measure("linear, Python records", records, members, range(10, min(largest, 18) + 1, 2), is_total=is_total)
        measure("linear, columns", columns, members, range(12, largest + 1), is_total=is_total)
    measure_spark(members, range(16, min(largest, 20) + 1, 2))


def measure(name: str, prepare: Prepare, members: int, powers: Sequence[int], *, is_total: bool) -> None:
    """Time each size and print it."""
    took = []
    for power in powers:
        run = prepare(history(members, 2**power // members, is_total=is_total), members)
        seconds = min(timed(run, time.thread_time, is_total=is_total) for _ in range(3))
        took.append(seconds)
        row(name, power, seconds)
    slope(name, powers, took)


def measure_spark(members: int, powers: Sequence[int]) -> None:
    print(f"total order, {members} members")
    took = []
    with session.open_session(long_run=True) as spark:
        for power in powers:
            made = history(members, 2**power // members, is_total=True)
            seconds = min(_with_spark(spark, made, members) for _ in range(2))
            took.append(seconds)
            row("Spark", power, seconds)
    slope("Spark", powers, took)


def _with_spark(spark: SparkSession, made: Columns, members: int) -> float:
    with tempfile.TemporaryDirectory(prefix="bench-oracle-") as directory:
        trace, scratch = Path(directory, "trace.parquet"), Path(directory, "scratch")
        scratch.mkdir()
        _write_trace(made, trace)
        workers = OfSpark(spark)
        run = lambda: order.check(trace, members=range(members), scratch=scratch, workers=workers)  # noqa: E731
        return timed(run, time.perf_counter, is_total=True)


def plain(made: Columns, members: int) -> Callable[[], Findings]:
    told = linear.history_of(made)
    return lambda: oracle.check(told, members=range(members))


def records(made: Columns, members: int) -> Callable[[], Findings]:
    told = linear.history_of(made)
    return lambda: linear.check(told, members=range(members))


def columns(made: Columns, members: int) -> Callable[[], Findings]:
    kinds = [kind for kind in DELIVERY_PROPERTIES if kind is not Property.TOTAL_ORDER or _is_total(made, members)]
    return lambda: linear.check_columns(made, members=range(members), kinds=kinds)


def history(members: int, rounds: int, *, is_total: bool) -> Columns:
    """In each round everybody submits one message and delivers those of all, in one order or each in his own."""
    rounds = max(1, rounds // members)
    one = members + 1
    size = rounds * one + 2
    parts = []
    for member in range(members):
        event = np.full(size, int(Event.DELIVER), np.int64)
        event[1:-1:one] = Event.SUBMIT
        event[[0, -1]] = Event.START, Event.STOP
        detail = np.where(event == Event.DELIVER, int(Level.AGREED), event == Event.STOP).astype(np.int64)
        origins = np.arange(members) if is_total else (np.arange(members) + member) % members
        origin, number, at_ns = (np.zeros(size, np.int64) for _ in range(3))
        origin[1:-1] = np.tile(np.concatenate(([member], origins)), rounds)
        number[1:-1] = np.repeat(np.arange(1, rounds + 1), one)
        at_ns[1:-1] = number[1:-1] * ROUND_NS + np.tile(np.arange(one), rounds) * 1000
        at_ns[-1] = (rounds + 1) * ROUND_NS
        whole = np.ones(size, np.int64)
        parts.append(
            Columns(
                whole * member, whole, np.arange(1, size + 1), event, detail, origin, np.sign(number), number, at_ns
            )
        )
    return Columns(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def timed(run: Callable[[], Findings], clock: Callable[[], float], *, is_total: bool) -> float:
    began = clock()
    found = run()
    took = clock() - began
    exempt = () if is_total else (Property.TOTAL_ORDER,)
    verdict = merge(finding.verdict for kind, finding in found.items() if kind not in exempt)
    if verdict is not Verdict.PASS:
        raise SystemExit(f"a correct history was judged {verdict.value}")
    return took


def row(name: str, power: int, seconds: float) -> None:
    print(f"  {name:24} 2^{power:<3} {seconds:10.4f} s {2**power / seconds:14,.0f} deliveries/s", flush=True)


def slope(name: str, powers: Sequence[int], took: Sequence[float]) -> None:
    half = len(took) // 2
    exponent = float(np.polyfit(np.array(powers[half:]) * np.log(2), np.log(took[half:]), 1)[0])
    print(f"  {name:24} grows with exponent {exponent:.2f}", flush=True)


def _is_total(made: Columns, members: int) -> bool:
    firsts = made.origin[(made.event == Event.DELIVER) & (made.number == 1)]
    return bool(np.all(firsts.reshape(members, -1) == firsts[:members]))


def _write_trace(made: Columns, path: Path) -> None:
    rows, nothing = to_arrow_schema(schema.TRACE), np.zeros(made.size, np.int64)
    columns = made._asdict()
    arrays = [pa.array(columns.get(field.name, nothing)).cast(field.type) for field in rows]
    pq.write_table(pa.table(arrays, schema=rows), path)


if __name__ == "__main__":
    main()
