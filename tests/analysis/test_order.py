"""The Spark checks against the oracle: correct histories, and each broken in every way we know. Many histories to a
job.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from analysis import oracle, order
from analysis.properties import DELIVERY_PROPERTIES, Finding, Property, Witness
from analysis.sequences import EVENTS
from analysis.verdict import Verdict
from tests.analysis import histories
from tests.analysis.histories import PlainHistory

pytestmark = pytest.mark.spark


def judge(spark: SparkSession, runs: Sequence[PlainHistory]) -> list[dict[Property, Finding]]:
    events = event_table(spark, runs)
    findings = order.check(events, members={run: _members(history) for run, history in enumerate(runs)})
    return [findings[run] for run in range(len(runs))]


def event_table(spark: SparkSession, runs: Sequence[PlainHistory]) -> DataFrame:
    rows = [row for run, history in enumerate(runs) for row in histories.rows(run, history)]
    columns = zip(*rows, strict=True)
    return spark.createDataFrame(pa.table(dict(zip(EVENTS.names, map(pa.array, columns), strict=True))), EVENTS)


def _members(history: PlainHistory) -> range:
    """All that left a trace, and all below them."""
    return range(max(life.member for life in history) + 1)


def assert_agreement(spark: SparkSession, runs: Sequence[PlainHistory], notes: Sequence[str]) -> None:
    for history, found, note in zip(runs, judge(spark, runs), notes, strict=True):
        expected = oracle.check(history, members=_members(history))
        for kind in DELIVERY_PROPERTIES:
            _compare(expected[kind], found[kind], f"{note}: {kind.value}", exact=kind is not Property.CAUSAL)
            if found[kind].witness is not None:
                assert_witness(history, kind, found[kind].witness, note)


def _compare(expected: Finding, found: Finding, note: str, *, exact: bool) -> None:
    assert found.verdict is expected.verdict, note
    assert found.reason == expected.reason, note
    if "missing" in expected.reason:
        return  # what is counted in a history with gaps and repeats means nothing
    assert found.checked == expected.checked, note
    if exact:
        assert found.violations == expected.violations, note
    else:
        # The oracle counts what lacks any cause, Spark what lacks a direct one.
        assert 0 < found.violations <= expected.violations or found.violations == expected.violations == 0, note


def assert_witness(history: PlainHistory, kind: Property, witness: Witness | None, note: str) -> None:
    """Each place that a witness names is what the history says."""
    assert witness is not None
    if "missing" in note:
        return
    view = oracle.View(history, _members(history), {})
    for place in witness.places:
        if kind is not Property.INTEGRITY:
            assert place.message is not None
            assert place == view.position(place.incarnation, place.message), (note, kind)


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
def test_spark_and_oracle_agree(spark: SparkSession, cases: list[tuple[str, int, list[histories.Mutation]]]) -> None:
    runs, notes = [], []
    for name, seed, mutations in cases:
        history, rng = histories.CORRECT[name](seed), random.Random(seed)
        for mutate in mutations:
            history = mutate(history, rng)
        runs.append(history)
        notes.append(f"{name} {seed} {[mutate.__name__ for mutate in mutations]}")

    assert_agreement(spark, runs, notes)


def test_each_mutation_of_each_kind_of_history(spark: SparkSession) -> None:
    runs, notes = [], []
    for name, make in histories.CORRECT.items():
        for mutate in histories.MUTATIONS:
            for seed in range(2):
                runs.append(mutate(make(seed), random.Random(seed)))
                notes.append(f"{name} {seed} {mutate.__name__}")

    assert_agreement(spark, runs, notes)


def test_no_events_at_all(spark: SparkSession) -> None:
    findings = order.check(spark.createDataFrame([], EVENTS), members={0: [0, 1]}, names={0: "p1/a", 1: "p1/b"})[0]

    assert {f.verdict for f in findings.values()} == {Verdict.UNKNOWN}
    assert findings[Property.FIFO].reason == "p1/a left no trace records; p1/b left no trace records"
