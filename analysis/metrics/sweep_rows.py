"""Rows of a simulated sweep: `sweep-<stamp>.parquet`, one row for each run (docs/experiments.md).

A row is the result of `testbed.sim.point.measure`, with the names of summary.json: `latency.normalised_mean` is the
same in both. A value that is neither a number nor a word is a JSON text here, because runs differ in their fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.errors import AnalysisError
from analysis.files import parse_json, replacing

BLOCKS: Final = (
    *("variant", "given", "reasons", "doubts", "properties", "expect"),
    *("messages", "latency", "ordering", "calls", "views", "load"),
)
"""Columns with JSON texts."""

SCHEMA: Final = pa.schema(
    {"point": pa.int64(), "seed": pa.int64(), "verdict": pa.string()}
    | dict.fromkeys(BLOCKS, pa.string())
    | {"events": pa.int64(), "seconds": pa.float64()}
)
"""Columns of a row. `point`: place in the sweep, from 0 on. `seconds`: real time of the run and its judgement on one
core.
"""


def to_batch(results: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    """Batch of results of `measure`, each with its `point`."""
    rows = [{**one, **{name: json.dumps(one.get(name), ensure_ascii=False) for name in BLOCKS}} for one in results]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def from_table(table: pa.Table) -> list[dict[str, Any]]:
    """Inverse of `to_batch`, in the order of the points. Raises ValueError for a block that is no JSON."""
    rows = table.sort_by("point").to_pylist()
    return [{**row, **{name: parse_json(row[name] or "") for name in BLOCKS}} for row in rows]


def write(path: Path, tables: Sequence[pa.Table]) -> None:
    """Write all rows in the order of the points; an existing file is replaced atomically."""
    ordered = pa.concat_tables(tables).sort_by("point")
    with replacing(path) as file:
        pq.write_table(ordered, file, compression="zstd")


def read(path: Path) -> list[dict[str, Any]]:
    """Rows of a file. Raises AnalysisError when it is no such file."""
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise AnalysisError(f"{path}: is missing; make it with: orderbed sweep --spark") from None
    except (OSError, pa.ArrowException) as error:
        raise AnalysisError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error
    if not table.schema.equals(SCHEMA):
        raise AnalysisError(f"{path}: is no table of a simulated sweep, or of another version of orderbed")
    try:
        return from_table(table)
    except ValueError as error:
        raise AnalysisError(f"{path}: cannot be read ({error})") from error
