"""Runs the SQL of this package in DuckDB.

All tables have a column `run`, so that one pass judges any number of histories. The inputs:

- `trace`: the records (TRACE);
- `member`: run, member, name, is_expected (it should have records);
- `drained`: run, at_ns (NULL: it did not drain); no row where the trace alone decides;
- `cut`: run, healed_ns (NULL: never) of each cut of the network;
- `impaired`: run, element (a direction of a port or link), from_ns, loss_ratio of each change by a fault;
- `started`: run, member, incarnation, ended_in_order (exit code 0), may_be_silent (a fault crashed it early); no row
  where the trace alone decides;
- `lost_frames`: runs in which the collector lost frames.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources

import duckdb
import numpy as np
import pyarrow as pa

from analysis.checks.properties import UNDER_THE_ORDER, Incarnations, Property, Verdict
from analysis.errors import AnalysisError
from analysis.inputs import RunInputs, may_lack_records
from analysis.tables import table_at

INT, LONG, TEXT = pa.int32(), pa.int64(), pa.string()

TRACE = pa.schema(
    [
        *((name, INT) for name in ("member", "member_incarnation")),
        ("record", LONG),
        *((name, INT) for name in ("event", "detail", "origin", "incarnation", "extra")),
        *((name, LONG) for name in ("number", "at_ns", "clock_ns", "value", "size_bytes", "checksum")),
    ]
)
"""The columns of analysis.schema.TRACE, which needs Spark, that the records themselves have."""
MEMBER = pa.schema([("run", INT), ("member", INT), ("name", TEXT), ("is_expected", pa.bool_())])
DRAINED = pa.schema([("run", INT), ("at_ns", LONG)])
CUT = pa.schema([("run", INT), ("healed_ns", LONG)])
IMPAIRED = pa.schema([("run", INT), ("element", TEXT), ("from_ns", LONG), ("loss_ratio", pa.float64())])
STARTED = pa.schema(
    [
        *((name, INT) for name in ("run", "member", "incarnation")),
        *((name, pa.bool_()) for name in ("ended_in_order", "may_be_silent")),
    ]
)
LOST_FRAMES = pa.schema([("run", INT)])

_THREADS = 2
"""Few threads: other runs may be judged at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """Verdict of the SQL on one property of one run. `checked` counts the cases, `violations` the wrong ones. `reason`:
    why it is unknown; `witness`: a sentence about the earliest violation. Empty where there is none.
    """

    verdict: Verdict
    checked: int
    violations: int
    reason: str
    witness: str


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """One run in memory. `trace`: as in TRACE. `members`: all that should have left records."""

    trace: pa.Table
    members: Collection[int]
    names: Mapping[int, str]


def judge_histories(histories: Sequence[History], kinds: Iterable[Property]) -> list[dict[Property, Opinion]]:
    """Judge these properties of every history, all histories together."""
    trace = pa.concat_tables(
        [
            history.trace.append_column("run", pa.array(np.full(history.trace.num_rows, run, np.int32)))
            for run, history in enumerate(histories)
        ]
    )
    members = [
        (run, member, history.names.get(member), member in history.members)
        for run, history in enumerate(histories)
        for member in sorted({*history.members, *history.names})
    ]
    with _opened() as database:
        database.register("trace", trace)
        database.register("member", _table(members, MEMBER))
        nothing = {"drained": DRAINED, "cut": CUT, "impaired": IMPAIRED, "started": STARTED, "lost_frames": LOST_FRAMES}
        for name, schema in nothing.items():
            database.register(name, _table([], schema))
        answers = dict(_opinions(database, kinds))
    return [{kind: of_runs[run] for kind, of_runs in answers.items()} for run in range(len(histories))]


def judge_run(inputs: RunInputs, kinds: Iterable[Property]) -> dict[Property, Opinion]:
    """Judge these properties of an analysed run, over its table `trace`. Raises AnalysisError when the table cannot be
    read.
    """
    path = inputs.path / "tables" / "trace.parquet"
    manifest, index = inputs.manifest, {name: member for member, name in inputs.names.items()}
    effective_ns = {fault.id: fault.effective_ns for fault in inputs.faults}
    cuts = [
        (0, None if fault.until_id is None else effective_ns.get(fault.until_id))
        for fault in inputs.faults
        if fault.kind == "cut"
    ]
    impaired = [
        (0, f"{direction} {name}", 0, impairment.loss_ratio)
        for (direction, name), impairment in inputs.network.start.items()
    ] + [
        (0, f"{fault.direction} {target}", fault.effective_ns, impairment.loss_ratio)
        for fault in inputs.faults
        for target, impairment in fault.asked.items()
    ]
    members = [(0, member, name, member in inputs.members) for member, name in inputs.names.items()]
    started = [
        (0, index[one.node], one.incarnation, one.exit == 0, may_lack_records(inputs, one))
        for one in manifest.nodes
        if one.node in index
    ]
    try:
        with _opened() as database:
            database.register("of_run", table_at(path))
            database.execute("CREATE VIEW trace AS SELECT 0 AS run, * FROM of_run")
            database.register("member", _table(members, MEMBER))
            database.register("drained", _table([(0, manifest.phases.drained_ns)], DRAINED))
            database.register("cut", _table(cuts, CUT))
            database.register("impaired", _table(impaired, IMPAIRED))
            database.register("started", _table(started, STARTED))
            database.register(
                "lost_frames", _table([(0,)] if manifest.capture.kernel_dropped_frames else [], LOST_FRAMES)
            )
            return {kind: of_runs[0] for kind, of_runs in _opinions(database, kinds)}
    except (OSError, ValueError, pa.ArrowException, duckdb.Error) as error:
        what = " ".join(str(error).split())[:200]
        raise AnalysisError(f"{path}: cannot be read ({what}); make it with: orderbed analyze {inputs.path}") from error


@contextmanager
def _opened() -> Iterator[duckdb.DuckDBPyConnection]:
    with (
        tempfile.TemporaryDirectory(prefix="orderbed-") as scratch,
        duckdb.connect(
            config={"threads": _THREADS, "temp_directory": scratch, "autoinstall_known_extensions": False}
        ) as database,
    ):
        yield database


def _opinions(
    database: duckdb.DuckDBPyConnection, kinds: Iterable[Property]
) -> Iterator[tuple[Property, dict[int, Opinion]]]:
    """Opinions by run, for each property."""
    for name in _facts():
        database.execute(_text(name))
    for kind in kinds:
        for under in UNDER_THE_ORDER if kind is Property.TOTAL_ORDER else ():
            database.execute(_text(f"properties/{under.value}.sql"))
            database.execute(_NO_ORDER_OF_VIEWS, {"reason": f"{under.value} is violated"})
        database.execute(_text(f"properties/{kind.value}.sql"))
        given = {
            "property": kind.value,
            "liveness": kind.is_liveness,
            "of_receivers": kind.needs_receivers,
        }
        rows = database.execute(_text("verdict.sql"), given).fetchall()
        yield (
            kind,
            {
                run: Opinion(
                    verdict=Verdict(verdict), checked=checked, violations=violations, reason=reason, witness=witness
                )
                for run, verdict, checked, violations, reason, witness in rows
            },
        )


_NO_ORDER_OF_VIEWS = """
INSERT INTO excuse SELECT DISTINCT run, 'total_order', $reason FROM violation
WHERE run NOT IN (SELECT run FROM excuse WHERE property = 'total_order')
"""
"""The orders in the views of these runs are no order of all messages."""


def table_of(incarnations: Incarnations) -> pa.Table:
    """The hosts' own records as the table `trace`, with signed 64-bit values."""
    rows = [
        (*incarnation, place, *record)
        for incarnation, records in incarnations.items()
        for place, record in enumerate(records, start=1)
    ]
    columns = list(zip(*rows, strict=True)) or [()] * len(TRACE)
    return pa.table([_column(column, field.type) for column, field in zip(columns, TRACE, strict=True)], schema=TRACE)


def _column(values: Sequence[int], kind: pa.DataType) -> pa.Array:
    return pa.array([(value + (1 << 63)) % (1 << 64) - (1 << 63) for value in values], kind)


def _table(rows: Sequence[Sequence[object]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


@cache
def _facts() -> tuple[str, ...]:
    folder = resources.files(__package__) / "sql" / "facts"
    return tuple(sorted(f"facts/{file.name}" for file in folder.iterdir()))


@cache
def _text(name: str) -> str:
    return (resources.files(__package__) / "sql" / name).read_text(encoding="utf-8")
