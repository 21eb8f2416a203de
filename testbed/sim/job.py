"""Many simulated runs as Spark jobs: each task is one run in memory, judged and measured; a row each comes back.

    with open_session() as spark:
        results = simulate_all(spark, experiments, path, on_progress=print)

`path` (analysis.metrics.sweep_rows) grows with every batch, so that a long sweep that is ended early keeps what it
has. A run
is the same on every machine; a worker needs what the simulator needs, and our own packages go along
(analysis.engine.session).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from analysis.metrics import sweep_rows
from testbed.spec.values import Experiment

RUNS_PER_CORE = 8
"""In one batch: so few that something is heard of a long sweep, and so many that the last run of a batch, which may be
alone on all cores, costs little."""

Results = list[dict[str, Any]]


def simulate_all(
    spark: SparkSession, experiments: Sequence[Experiment], path: Path, *, on_progress: Callable[[Results], None]
) -> Results:
    """Every experiment, in the order given; `on_progress` gets the new results of each batch. `path` is replaced."""
    size = RUNS_PER_CORE * spark.sparkContext.defaultParallelism
    tables: list[pa.Table] = []
    results: Results = []
    for first in range(0, len(experiments), size):
        tables.append(_batch(spark, first, experiments[first : first + size]))
        sweep_rows.write(path, tables)
        fresh = sweep_rows.from_table(tables[-1])
        results += fresh
        on_progress(fresh)
    return results


def _batch(spark: SparkSession, first: int, experiments: Sequence[Experiment]) -> pa.Table:
    packed = {point: pickle.dumps(experiment) for point, experiment in enumerate(experiments, start=first)}

    def simulated(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for point in batch.column("id").to_pylist():
                yield _row(point, packed[point])

    points = spark.range(first, first + len(experiments), numPartitions=len(experiments))
    rows = points.mapInArrow(simulated, from_arrow_schema(sweep_rows.SCHEMA)).toArrow()
    return rows.cast(sweep_rows.SCHEMA)


def _row(point: int, packed: bytes) -> pa.RecordBatch:
    # Imported where it runs: a worker that has it in its process already pays nothing.
    from testbed.sim.point import measure

    return sweep_rows.to_batch([measure(pickle.loads(packed)) | {"point": point}])  # noqa: S301 (we packed it)
