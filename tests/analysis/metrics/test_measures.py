"""Sections `messages` and `latency` from made histories."""

from __future__ import annotations

import pytest

from analysis.checks.linear import judged_run
from analysis.checks.oracle import raw
from analysis.checks.properties import Incarnation, MessageId
from analysis.metrics import measures
from collector.records import Event, Level
from tests.analysis.histories import Author

A = Incarnation(0, 1)
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
    author.note(A, Event.START)
    for number in range(views):
        author.install(A, number + 1, [A])
    author.note(A, Event.SUBMIT, MESSAGE)
    author.note(A, Event.DELIVER, MESSAGE, level)
    author.note(A, Event.STOP, detail=1)
    run = judged_run(raw(author.history), members=[0])

    found = measures.messages(run, promises=[])

    assert (found["level"], found["deliveries"]) == (judged, deliveries)
