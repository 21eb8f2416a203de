"""The order checks against the oracle: correct histories, and each broken by every known mutation; in one piece, and
cut into as many pieces as possible.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from analysis.checks import by_message, incarnations, oracle
from analysis.checks.properties import (
    DELIVERY_PROPERTIES,
    VIEW_PROPERTIES,
    Finding,
    Incarnation,
    Property,
    Verdict,
)
from analysis.tasks import Here, OfSpark, Result, Task, Workers
from collector.records import Event
from tests.analysis import histories
from tests.analysis.checks.comparisons import assert_same, assert_witness
from tests.analysis.histories import PlainHistory, made, members_of

IN_MEMORY = Path("/dev/shm")
"""Twice as fast as a disk, for short-lived files."""


class Several(Here):
    """Three workers in name; the tasks run one after the other, the last first."""

    parallel = 3

    def run(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        return super().run(work, tasks[::-1])[::-1]


def judge(history: PlainHistory, workers: Workers | None = None) -> dict[Property, Finding]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as directory:
        return histories.check_by_tasks(history, Path(directory), workers)


def in_many_pieces(history: PlainHistory) -> dict[Property, Finding]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(incarnations, "SMALL_ROWS", 0)
        patch.setattr(incarnations, "SAMPLED", 1)
        patch.setattr("analysis.checks.sequences.ROWS_AT_ONCE", 2)
        return judge(history, Several())


def assert_agreement(runs: Sequence[PlainHistory], notes: Sequence[str]) -> None:
    for number, (history, note) in enumerate(zip(runs, notes, strict=True)):
        found = in_many_pieces(history) if number % 2 else judge(history)
        has_views = any(record.event is Event.VIEW for records in history.values() for record in records)
        assert tuple(found) == (*DELIVERY_PROPERTIES, *(VIEW_PROPERTIES if has_views else ()))
        expected = oracle.check(history, members=members_of(history), kinds=found)
        for kind in found:
            assert_same(expected[kind], found[kind], kind, note)
            assert_witness(history, kind, found[kind].witness, note)


CASES = st.lists(
    st.tuples(
        st.sampled_from(sorted(histories.CORRECT)),
        st.integers(0, 10_000),
        st.lists(st.sampled_from(histories.MUTATIONS), max_size=2),
    ),
    min_size=60,
    max_size=120,
)


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases=CASES)
def test_tasks_and_oracle_agree(cases: list[tuple[str, int, list[histories.Mutation]]]) -> None:
    runs, notes = [], []
    for name, seed, mutations in cases:
        runs.append(made(name, seed, mutations))
        notes.append(f"{name} {seed} {[mutate.__name__ for mutate in mutations]}")

    assert_agreement(runs, notes)


@pytest.mark.parametrize("name", histories.CORRECT)
def test_each_mutation_of_each_kind_of_history(name: str) -> None:
    runs, notes = [], []
    for mutate in histories.MUTATIONS:
        for seed in range(2 if histories.suits(mutate, name) else 0):
            runs.append(made(name, seed, [mutate]))
            notes.append(f"{name} {seed} {mutate.__name__}")

    assert_agreement(runs, notes)


@pytest.mark.spark
def test_in_workers_of_spark_it_is_the_same(spark: SparkSession) -> None:
    history = histories.MUTATIONS[0](histories.total_order(1), random.Random(1))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(incarnations, "SMALL_ROWS", 0)
        assert judge(history, OfSpark(spark)) == judge(history)


def test_no_events_at_all(tmp_path: Path) -> None:
    findings = histories.check_by_tasks({}, tmp_path, names={0: "p1/a", 1: "p1/b"})

    assert {f.verdict for f in findings.values()} == {Verdict.UNKNOWN}
    assert findings[Property.FIFO].reason == "p1/a left no trace records; p1/b left no trace records"
    assert not list(tmp_path.glob("steps*"))


def test_incarnations_are_shared_out_by_their_records() -> None:
    rows = {Incarnation(member, 1): count for member, count in enumerate((5, 1, 1, 1, 1, 1))}

    groups = incarnations.grouped(rows, 2)

    assert [sum(rows[incarnation] for incarnation in group) for group in groups] == [5, 5]
    assert incarnations.grouped({}, 2) == [[]]
    assert len(incarnations.grouped(dict.fromkeys(rows, incarnations.ROWS_PER_TASK), 2)) == 6


def test_distinct_values_of_many_parts() -> None:
    parts = [np.array(part, np.int64) for part in ([5, 3, 3], [], [3, 9, 1], [5], [2**62, -(2**62)])]

    assert by_message.merged(parts).tolist() == [-(2**62), 1, 3, 5, 9, 2**62]
    assert by_message.merged([]).tolist() == []
