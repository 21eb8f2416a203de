"""Who does the tasks of an analysis: this process, or the workers of Spark."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol, TypeVar

from pyspark.sql import SparkSession


@cache
def keep_imports() -> None:
    """What this process has imported is not looked at any more by the full collection that a worker runs after each
    task: 40 % of what a small task takes. Once: whatever is garbage at that moment, and its open files, stays for ever.
    """
    gc.collect()
    gc.freeze()


Task = TypeVar("Task")
Result = TypeVar("Result")


class Workers(Protocol):
    """`run` does all tasks and gives their results in order. `parallel`: so many are done at once."""

    @property
    def parallel(self) -> int: ...

    def run(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]: ...


class Here:
    """One after the other, in this process."""

    parallel = 1

    def run(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        return [work(task) for task in tasks]


class OfSpark:
    """One Spark task each. `work` and what it takes and gives travel: plain data, and not much of it."""

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
