"""One incarnation's records to steps, in NumPy: codes of messages, undone deliveries, repeats, neighbours, whole
traces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from analysis.checks import sequences
from analysis.checks.properties import Incarnation, MessageId
from analysis.checks.sequences import NO_MESSAGE, NOT_COMPARED, Step, compact, decode, encode, steps_of_incarnation
from collector.records import Event, Level

START, SUBMIT, DELIVER, UNDO, STOP = Event.START, Event.SUBMIT, Event.DELIVER, Event.UNDO, Event.STOP
ENDED, VIEW = Event.ENDED, Event.VIEW
Noted = tuple[Event, int, int]
"""Event, message number (of origin 7) and value, detail."""


def facts_and_steps(
    *noted: Noted, incarnation: int = 1, records: Sequence[int] = ()
) -> tuple[sequences.IncarnationFacts, list[dict[str, Any]]]:
    events, messages, details = zip(*noted, strict=True)
    numbers = list(records) or list(range(1, len(noted) + 1))
    table = pa.table(
        {
            "record": numbers,
            "event": pa.array(map(int, events), pa.int32()),
            "detail": pa.array(details, pa.int32()),
            "origin": pa.array([7] * len(noted), pa.int32()),
            "incarnation": pa.array([1] * len(noted), pa.int32()),
            "number": messages,
            "at_ns": [100 * number for number in numbers],
            "value": messages,
            **{name: [0] * len(noted) for name in ("extra", "size_bytes", "checksum")},
        }
    )
    chunks = [compact(batch) for batch in table.to_batches(max_chunksize=3)]
    found, steps = steps_of_incarnation(Incarnation(7, incarnation), chunks)
    return found, [row for part in steps for row in part.to_pylist()]


def rows_of(step: Step, *noted: Noted, **options: Any) -> list[dict[str, Any]]:
    return [row for row in facts_and_steps((START, 0, 0), *noted, **options)[1] if row["step"] == step]


def number(code: int) -> int | None:
    """None: there is no such message; 0: it is not compared."""
    return {NO_MESSAGE: None, NOT_COMPARED: 0}[code] if code in (NO_MESSAGE, NOT_COMPARED) else decode(code).number


@pytest.mark.parametrize("identity", [(0, 1, 1), (65535, 65535, 2**32 - 1), (40000, 1, 5), (1, 2, 3)])
def test_a_message_is_one_number_and_back(identity: tuple[int, int, int]) -> None:
    codes = encode(*(np.array([value], np.int64) for value in identity))
    assert decode(int(codes[0])) == MessageId(*identity)


DELIVERIES: dict[str, tuple[tuple[Noted, ...], dict[str, Any], dict[str, list[object]]]] = {
    "position, and what came before": (
        ((DELIVER, 1, 1), (DELIVER, 2, 1), (DELIVER, 3, 1)),
        {},
        {"position": [1, 2, 3], "predecessor": [None, 1, 2], "is_out_of_order": [False] * 3},
    ),
    "records in any order": (
        ((DELIVER, 2, 1), (DELIVER, 1, 1)),
        {"records": [1, 3, 2]},
        {"message": [1, 2], "position": [1, 2]},
    ),
    "an undone delivery leaves no place": (
        ((DELIVER, 1, 0), (DELIVER, 2, 0), (UNDO, 1, 0), (DELIVER, 3, 0)),
        {},
        {
            "message": [1, 2, 3],
            "is_undone": [True, False, False],
            "position": [0, 1, 2],
            "predecessor": [0, None, 2],
        },
    ),
    "an undone delivery that comes again is no repeat": (
        ((DELIVER, 1, 0), (UNDO, 1, 0), (DELIVER, 1, 0)),
        {},
        {"is_undone": [True, False], "is_repeat": [False, False]},
    ),
    "a repeat counts for nothing else": (
        ((DELIVER, 1, 1), (DELIVER, 1, 1), (DELIVER, 2, 1)),
        {},
        {
            "is_repeat": [False, True, False],
            "position": [1, 1, 2],
            "is_out_of_order": [False] * 3,
            "predecessor": [None, 0, 1],
        },
    ),
    "levels are sequences of their own": (
        ((DELIVER, 1, 0), (DELIVER, 2, 0), (DELIVER, 1, 2)),
        {},
        {"level": [0, 0, 2], "position": [1, 2, 1], "is_repeat": [False] * 3, "predecessor": [None, 1, None]},
    ),
    "a gap in the numbers of an origin is out of order": (
        ((DELIVER, 2, 1), (DELIVER, 4, 1)),
        {},
        {"is_out_of_order": [True, True], "previous": [None, 2]},
    ),
    "a joiner begins anywhere": (
        ((DELIVER, 5, 1), (DELIVER, 6, 1), (DELIVER, 8, 1)),
        {"incarnation": 2},
        {"is_out_of_order": [False, False, True], "predecessor": [0, 5, 6]},
    ),
}


@pytest.mark.parametrize("case", DELIVERIES)
def test_a_delivery_knows_its_place(case: str) -> None:
    noted, options, expected = DELIVERIES[case]
    rows = rows_of(Step.DELIVERY, *noted, **options)
    for name, values in expected.items():
        read = number if name in ("message", "predecessor", "previous") else lambda value: value
        assert [read(row[name]) for row in rows] == values, name


def test_a_promise_is_broken_by_undoing_more_than_optimism() -> None:
    broken = rows_of(Step.BROKEN_PROMISE, (DELIVER, 1, 1), (UNDO, 1, 1), (DELIVER, 2, 0), (UNDO, 2, 0))
    assert [(number(row["message"]), row["level"]) for row in broken] == [(1, Level.AGREED)]


def test_only_own_submissions_count_and_each_once() -> None:
    rows = rows_of(Step.SUBMISSION, (SUBMIT, 1, 0), (SUBMIT, 1, 0), (SUBMIT, 2, 0))
    assert [number(row["message"]) for row in rows] == [1, 2]
    assert not rows_of(Step.SUBMISSION, (SUBMIT, 1, 0), incarnation=2)
    facts, _ = facts_and_steps((START, 0, 0), (SUBMIT, 1, 0), incarnation=2)
    assert facts.mistake == "records submissions in another's name"


SUBMISSIONS: tuple[Noted, ...] = ((SUBMIT, 1, 0), (SUBMIT, 2, 0))
CRASHED = {"has_ended": False, "stop_detail": -1, "level": -1}
WHOLE, NOT_WHOLE = {"is_gapless": True, "missing_records": 0}, {"is_gapless": False, "missing_records": 0}

FACTS: dict[str, tuple[tuple[Noted, ...], Sequence[int], Mapping[str, object]]] = {
    "whole": (((START, 0, 0), *SUBMISSIONS, (DELIVER, 1, 1), (STOP, 0, 1)), (), WHOLE | {"level": Level.AGREED}),
    "a gap": (((START, 0, 0), (STOP, 0, 1)), (1, 3), {"is_gapless": False, "missing_records": 1}),
    "a repeat": (((START, 0, 0), (STOP, 0, 1), (STOP, 0, 1)), (1, 2, 2), NOT_WHOLE),
    "no start": (((SUBMIT, 1, 0), (STOP, 0, 1)), (2, 3), NOT_WHOLE | {"missing_records": 1}),
    "numbers from 2 on": (((START, 0, 0), (STOP, 0, 1)), (2, 3), NOT_WHOLE | {"missing_records": 1}),
    "a first record that is no start": (((SUBMIT, 1, 0), (STOP, 0, 1)), (1, 2), NOT_WHOLE),
    "number 0": (((START, 0, 0), (DELIVER, 0, 1)), (1, 2), NOT_WHOLE),
    "a number too large": (((START, 0, 0), (DELIVER, 2**32, 1)), (1, 2), NOT_WHOLE),
    "a view with a number too large": (((START, 0, 0), (VIEW, 2**32, 1)), (1, 2), NOT_WHOLE),
    "a level that does not exist": (((START, 0, 0), (DELIVER, 1, 3)), (1, 2), NOT_WHOLE),
    "a view of number 0": (((START, 0, 0), (VIEW, 0, 1)), (1, 2), WHOLE),
    "a crash, without an end": (((START, 0, 0),), (), CRASHED),
    "a stop": (((START, 0, 0), (STOP, 0, 1)), (), CRASHED | {"stop_detail": 1}),
    "an exclusion": (((START, 0, 0), (ENDED, 0, 0)), (), CRASHED | {"has_ended": True}),
    "of two ends the first": (((START, 0, 0), (ENDED, 0, 0), (STOP, 0, 1)), (), CRASHED | {"has_ended": True}),
    "a stop first": (((START, 0, 0), (STOP, 0, 0), (ENDED, 0, 0)), (), CRASHED | {"stop_detail": 0}),
    "a count": (((START, 0, 0), *SUBMISSIONS, (STOP, 2, 1)), (), {"mistake": ""}),
    "a crash tells no count": (((START, 0, 0), *SUBMISSIONS), (), {"mistake": ""}),
    "a count with a gap": (((START, 0, 0), (SUBMIT, 2, 0)), (1, 3), {"mistake": ""}),
    "a number twice": (
        ((START, 0, 0), *SUBMISSIONS, (SUBMIT, 2, 0), (STOP, 3, 1)),
        (),
        {"mistake": "gives its submission 3 the number 2"},
    ),
    "a number left out": (((START, 0, 0), (SUBMIT, 2, 0)), (), {"mistake": "gives its submission 1 the number 2"}),
    "more at the end": (
        ((START, 0, 0), *SUBMISSIONS, (STOP, 5, 1)),
        (),
        {"mistake": "tells of 5 submissions at its end, and recorded 2"},
    ),
    "a delivery after the end": (
        ((START, 0, 0), (STOP, 0, 1), (DELIVER, 1, 1)),
        (),
        {"mistake": "has records after its end"},
    ),
    "two ends": (((START, 0, 0), (ENDED, 0, 0), (STOP, 0, 1)), (), {"mistake": "has records after its end"}),
    "less at the end": (
        ((START, 0, 0), *SUBMISSIONS, (ENDED, 0, 0)),
        (),
        {"mistake": "tells of 0 submissions at its end, and recorded 2"},
    ),
}


@pytest.mark.parametrize("case", FACTS)
def test_an_incarnation_says_how_whole_it_is_and_how_it_ended(case: str) -> None:
    noted, records, expected = FACTS[case]
    found, _ = facts_and_steps(*noted, records=records)
    assert {name: getattr(found, name) for name in expected} == expected
