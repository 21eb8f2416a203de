"""Tasks of an analysis, run by this process or by Spark's workers, and the tables that they write."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812  (the usual name)
from pyspark.sql.pandas.types import to_arrow_schema

from analysis.errors import MachineError


@cache
def keep_imports() -> None:
    """Exclude the imported modules from the full garbage collection that a worker runs after each task, which takes 40
    % of a small task. Called once: garbage of that moment, with its open files, would stay for ever, so it is collected
    first.
    """
    gc.collect()
    gc.freeze()


Task = TypeVar("Task")
Result = TypeVar("Result")


class Workers(Protocol):
    """Executor of tasks: `run` returns the results of all tasks in order; `parallel` is the number run at once."""

    @property
    def parallel(self) -> int: ...

    def run(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]: ...


class Here:
    """Runs tasks one after the other in this process."""

    parallel = 1

    def run(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        return [work(task) for task in tasks]


class OfSpark:
    """Runs each task as a Spark task. `work`, its argument and its result are sent over the network: small plain
    data.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self.parallel = max(1, self._context.defaultParallelism)

    def run(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        def kept(task: Task) -> Result:
            keep_imports()
            return work(task)

        if not tasks:
            return []
        return self._context.parallelize(list(tasks), len(tasks)).map(kept).collect()


# Tables on disk: written beside the old ones, then put in their place; a small table is one Parquet file.

ONE_FILE_ROWS = 1 << 18
"""A larger table stays a directory of the tasks' parts: merging them would double the cost."""

ROWS_PER_GROUP = 1 << 17


class Staging:
    """A directory for new tables. `path(name)` is the path of a finished table."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, name: str) -> Path:
        return self.directory / f"{name}.parquet"

    def parts(self, name: str) -> Path:
        """A new directory for the parts of a table, which tasks write as `part-00000.parquet` and so on."""
        parts = self.directory / f"{name}.parts"
        parts.mkdir()
        return parts

    def gather(self, name: str) -> None:
        """Make the table from its complete parts."""
        _gather(self.directory / f"{name}.parts", self.path(name))

    def write_rows(self, name: str, rows: Sequence[dict[str, Any]], schema: T.StructType) -> None:
        """Write a table from rows."""
        pq.write_table(pa.Table.from_pylist(list(rows), to_arrow_schema(schema)), self.path(name), compression="zstd")


def unfinished(path: Path) -> Path:
    """Temporary path of a file that gets its name only when it is complete: a task may be tried twice."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def finish(path: Path, *, is_whole: bool) -> None:
    """Give an unfinished file its name, or remove it."""
    if is_whole:
        unfinished(path).replace(path)
    else:
        unfinished(path).unlink()


class PartWriter:
    """Writer of one Parquet file, `unfinished` until the block ends without an error."""

    def __init__(self, path: Path, rows: pa.Schema) -> None:
        self._path = path
        self._schema = as_written(rows)
        self._writer = _writer(unfinished(path), self._schema)
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._flush()
        self._writer.close()
        finish(self._path, is_whole=kind is None)

    def write(self, rows: pa.RecordBatch) -> None:
        """Write rows of the schema, with texts as in `as_written`."""
        self._waiting.append(rows)
        self._rows += rows.num_rows
        if self._rows >= ROWS_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema))
            self._waiting, self._rows = [], 0


TEXT: Final = pa.dictionary(pa.int32(), pa.string())
"""Type of texts: few distinct words are stored once each, not per row. A reader of the table gets strings."""


def as_written(rows: pa.Schema) -> pa.Schema:
    """The schema with TEXT in place of strings."""
    return pa.schema([field.with_type(TEXT) if pa.types.is_string(field.type) else field for field in rows])


def conformed(made: Mapping[str, Any], rows: pa.Schema) -> pa.RecordBatch:
    """Batch with every column of the schema, in order and with its type."""
    arrays = [made[field.name] for field in rows]
    plain = [one if isinstance(one, pa.Array) else pa.array(one) for one in arrays]
    typed = [one if one.type == kind else one.cast(kind) for one, kind in zip(plain, rows.types, strict=True)]
    return pa.RecordBatch.from_arrays(typed, schema=rows)


def detached(table: pa.Table) -> pa.Table:
    """The same rows in memory of their own. Chunks and slices of a buffer are sent with the whole buffer: a table of 56
    MB took 2.6 GB.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table.combine_chunks())
    return pa.ipc.open_stream(sink.getvalue()).read_all()


def _writer(path: Path, rows: pa.Schema) -> pq.ParquetWriter:
    """Parquet writer. Times and numbers grow slowly from row to row: encoded as differences they take half the time and
    half the space of any other encoding.
    """
    texts = [field.name for field in rows if pa.types.is_string(field.type) or field.type == TEXT]
    steps = {field.name: "DELTA_BINARY_PACKED" for field in rows if field.type == pa.int64()}
    return pq.ParquetWriter(
        path, rows, compression="lz4", use_dictionary=texts, column_encoding=steps, store_schema=False
    )


@contextlib.contextmanager
def replace_tables(directory: Path) -> Iterator[Staging]:
    """New tables for a run directory: they replace the old ones when the block ends without an error, else nothing
    changes.

    Raises MachineError when the directory cannot be written.
    """
    fresh = directory / f"{_PREFIX}{os.getpid()}"
    try:  # an interrupt may come as soon as the directory is there
        _begin(fresh)
        yield Staging(fresh)
        _swap(fresh, directory / "tables")
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


_PREFIX = ".tables."


def _begin(fresh: Path) -> None:
    try:
        _sweep(fresh.parent)
        fresh.mkdir()
    except OSError as error:
        raise MachineError(f"{fresh.parent}: tables cannot be written there ({error.strerror})") from error


def _sweep(directory: Path) -> None:
    """Remove the directories of killed analyses, whose processes no longer exist."""
    for left in directory.glob(f"{_PREFIX}*"):
        owner = left.name.removeprefix(_PREFIX).partition(".")[0]
        if owner == str(os.getpid()) or not Path("/proc", owner).exists():
            _remove(left)


def _swap(fresh: Path, place: Path) -> None:
    old = fresh.with_name(fresh.name + ".old")
    with contextlib.suppress(FileNotFoundError):
        place.rename(old)
    fresh.rename(place)
    _remove(old)


def _remove(path: Path) -> None:
    """Remove a directory, or what a stranger has put in its place: rmtree follows no link, but waits for a pipe."""
    if not path.is_symlink() and path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _gather(parts: Path, target: Path) -> None:
    files = sorted(parts.glob("part-*.parquet"))
    if sum(pq.read_metadata(file).num_rows for file in files) > ONE_FILE_ROWS:
        parts.rename(target)
        return
    if len(files) == 1:
        files[0].rename(target)
    else:
        _concatenate(files, target)
    shutil.rmtree(parts)


def _concatenate(files: Sequence[Path], target: Path) -> None:
    schema = pq.read_schema(files[0])
    with _writer(target, schema) as writer:
        for file in files:
            with pq.ParquetFile(file) as part:
                for group in range(part.num_row_groups):
                    writer.write_table(part.read_row_group(group))
