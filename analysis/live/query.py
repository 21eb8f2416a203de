"""Structured Streaming over one capture into a `Live`: each micro-batch is collected as Arrow and counted here.

The query's checkpoint lives as long as the block: a query begins at the start of the capture, so its totals are those
of the capture.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812  (the usual name)
from pyspark.sql.streaming.query import StreamingQuery

from analysis.capture import source
from analysis.capture.stream import BYTE
from analysis.engine import session
from analysis.live.counts import COLUMNS, Live, Snapshot

TRIGGER = "200 milliseconds"
SECOND_NS = 10**9


class Following:
    """A running query. All methods may be called from other threads than Spark's."""

    def __init__(self, query: StreamingQuery, live: Live, lock: threading.Lock) -> None:
        self._query = query
        self._live = live
        self._lock = lock
        self._rows = 0
        self._batch_s: float | None = None
        self._changed_s = time.monotonic()

    def snapshot(self, *, has_ended: bool = False) -> Snapshot:
        """Current figures; `has_ended`: no more rows will come, so pending datagrams are settled."""
        with self._lock:
            if has_ended:
                self._live.finish()
                return self._live.snapshot()
            now_s = time.monotonic()
            if self._live.rows != self._rows:
                self._rows, self._changed_s = self._live.rows, now_s
            idle_s = now_s - self._changed_s
            return self._live.snapshot(idle_ns=int(idle_s * SECOND_NS) if idle_s > 1 else 0)

    @property
    def byte(self) -> int:
        """End of the part of the capture that was read and counted."""
        progress = self._query.lastProgress
        if progress is None:
            return 0
        offset = progress.sources[0].endOffset
        return int(json.loads(offset)[BYTE]) if offset and offset != "null" else 0

    @property
    def batch_s(self) -> float | None:
        """Duration of the newest micro-batch with rows; None: there was none."""
        progress = self._query.lastProgress
        if progress is not None and progress.numInputRows:
            self._batch_s = progress.batchDuration / 1000
        return self._batch_s

    def check(self) -> None:
        """Raises AnalysisError when the query has failed."""
        error = self._query.exception()
        if error is not None:
            raise session.analysis_error(error)


@contextlib.contextmanager
def follow(spark: SparkSession, path: Path, live: Live) -> Iterator[Following]:
    """Follow a capture while the block lasts. Raises AnalysisError when it cannot be followed."""
    known = source.table_schema("live")
    chosen = T.StructType([known[name] for name in COLUMNS])
    lock = threading.Lock()

    def take(batch: DataFrame, _number: int) -> None:
        table = batch.toArrow()
        with lock:
            live.take(table)

    with tempfile.TemporaryDirectory(prefix="orderbed-watch-", dir=_memory(), ignore_cleanup_errors=True) as checkpoint:
        try:
            rows = spark.readStream.format(source.FORMAT).option("table", "live").schema(chosen).load(str(path))
            writer = rows.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
            query = writer.trigger(processingTime=TRIGGER).start()
        except PySparkException as error:
            raise session.analysis_error(error) from error
        try:
            yield Following(query, live, lock)
        finally:
            query.stop()


def _memory() -> str | None:
    """A file system in memory, if there is one: each batch is written there three times and need not outlive the
    query.
    """
    shared = Path("/dev/shm")  # noqa: S108  (the directory inside is made as by tempfile)
    return str(shared) if os.access(shared, os.W_OK) else None
