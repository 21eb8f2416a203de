"""Sections `messages` and `latency` from made histories, and latency around faults."""

from __future__ import annotations

import pyarrow as pa
import pytest

from analysis.checks.linear import judged_run
from analysis.checks.oracle import raw
from analysis.checks.properties import Incarnation, MessageId
from analysis.metrics import cost, measures
from analysis.network.fault_overlap import Around
from collector.records import Event, Level
from tests.analysis.histories import Author

A = Incarnation(0, 1)
MS = 1_000_000
MESSAGE = MessageId(*A, 1)


@pytest.mark.parametrize(
    ("views", "level", "judged", "deliveries"),
    [
        (0, Level.OPTIMISTIC, "optimistic", 1),
        (1, Level.OPTIMISTIC, "agreed", 0),
        (1, Level.FINAL, "final", 1),
    ],
)
def test_optimistic_deliveries_are_not_judged_in_a_run_with_views(
    views: int, level: Level, judged: str, deliveries: int
) -> None:
    author = Author()
    author.start(A)
    for number in range(views):
        author.install(A, number + 1, [A])
    author.note(A, Event.SUBMIT, MESSAGE)
    author.note(A, Event.DELIVER, MESSAGE, level)
    run = judged_run(raw(author.stop(A)), members=[0])
    found = measures.messages(run, promises=[])

    assert (found["level"], found["deliveries"]) == (judged, deliveries)


def test_latency_around_a_fault_is_that_of_what_was_requested_then() -> None:
    """Requests at 1, 3, 5 and 9 ms, the later ones first in the table; one lies on an edge, one after the last."""
    rows = pa.table({"submit_ns": [9 * MS, 5 * MS, 3 * MS, 1 * MS], "latency_ns": [90 * MS, 7 * MS, 5 * MS, 2 * MS]})
    assert cost.latency_around(rows, {4: Around(0, 3 * MS, 6 * MS, 8 * MS)}) == {
        4: {
            "before": {"count": 1, "p50_ms": 2, "p99_ms": 2, "max_ms": 2},
            "during": {"count": 2, "p50_ms": 6, "p99_ms": 6.98, "max_ms": 7},
            "after": {"count": 0, "p50_ms": None, "p99_ms": None, "max_ms": None},
        }
    }
