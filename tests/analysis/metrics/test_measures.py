"""Sections `messages` and `latency` from made histories, and latency around faults."""

from __future__ import annotations

import pyarrow as pa
import pytest

from analysis.checks.linear import judged_run
from analysis.checks.oracle import raw
from analysis.checks.properties import Incarnation, MessageId
from analysis.metrics import cost, measures
from analysis.metrics.figures import others_until_ns
from analysis.network.fault_overlap import Around
from collector.records import Event, Level
from tests.analysis.histories import Author

A, B = Incarnation(0, 1), Incarnation(1, 1)
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


def test_a_late_delivery_of_an_early_request_is_a_latency_and_a_late_request_is_not() -> None:
    """The load ends at 20 ms, so requests count until 10 ms; the first is delivered after its end."""
    author = Author()
    for member in (A, B):
        author.start(member)
    for at_ms, by, event, number in (
        (5, A, Event.SUBMIT, 1), (16, A, Event.SUBMIT, 2), (17, B, Event.DELIVER, 2), (45, B, Event.DELIVER, 1),
    ):  # fmt: skip
        author.now_ns = at_ms * MS
        author.note(by, event, MessageId(*A, number), Level.FINAL if event is Event.DELIVER else 0)
    run = judged_run(raw(author.stop(A, B)), members=[0, 1])
    table = pa.table({
        "member": [1, 1], "origin": [0, 0], "member_name": pa.array(["b", "b"]).dictionary_encode(),
        "submit_ns": [5 * MS, 16 * MS], "latency_ns": [40 * MS, MS],
    })  # fmt: skip
    until_ns = others_until_ns(0, 20 * MS)

    in_memory = measures.latency(run, between_ms=None, until_ns=until_ns)
    of_tables, _cdf = cost.latency(table, between_ms=None, until_ns=until_ns)
    assert in_memory["others"] == of_tables["others"] == {"count": 1, "mean_ms": 40, "variance_ms2": 0}
    assert in_memory["count"] == of_tables["count"] == 2
    assert cost.latency(table, between_ms=None, until_ns=others_until_ns(0, None))[0]["others"]["count"] == 2


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
