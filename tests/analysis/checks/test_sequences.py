"""One incarnation's records to steps, in NumPy: codes of messages, undone deliveries, repeats, neighbours, whole
traces.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from analysis.checks import sequences
from analysis.checks.properties import Incarnation, MessageId
from analysis.checks.sequences import NO_MESSAGE, NOT_COMPARED, Step, compact, decode, encode, steps_of_incarnation
from collector.records import Event, Level

START, SUBMIT, DELIVER, UNDO, STOP = Event.START, Event.SUBMIT, Event.DELIVER, Event.UNDO, Event.STOP
ENDED = Event.ENDED
Noted = tuple[Event, int, int]
"""Event, message number (of origin 7), detail."""


def facts_and_steps(
    *noted: Noted, incarnation: int = 1, records: list[int] | None = None
) -> tuple[sequences.IncarnationFacts, list[dict[str, Any]]]:
    numbers = records or list(range(1, len(noted) + 1))
    table = pa.table(
        {
            "record": numbers,
            "event": pa.array([int(event) for event, _, _ in noted], pa.int32()),
            "detail": pa.array([detail for _, _, detail in noted], pa.int32()),
            "origin": pa.array([7] * len(noted), pa.int32()),
            "incarnation": pa.array([1] * len(noted), pa.int32()),
            "number": [number for _, number, _ in noted],
            "at_ns": [100 * number for number in numbers],
            "value": [0] * len(noted),
            "size_bytes": [0] * len(noted),
            "checksum": [0] * len(noted),
        }
    )
    chunks = [compact(batch) for batch in table.to_batches(max_chunksize=3)]
    found, steps = steps_of_incarnation(Incarnation(7, incarnation), chunks)
    return found, [row for part in steps for row in part.to_pylist()]


def walk(*noted: Noted, **options: Any) -> list[dict[str, Any]]:
    return facts_and_steps(*noted, **options)[1]


def deliveries(*noted: Noted, **options: Any) -> list[dict[str, Any]]:
    return [row for row in walk((START, 0, 0), *noted, **options) if row["step"] == Step.DELIVERY]


def incarnation(*noted: Noted, **options: Any) -> sequences.IncarnationFacts:
    return facts_and_steps(*noted, **options)[0]


def number(code: int) -> int:
    return decode(code).number


@pytest.mark.parametrize("identity", [(0, 1, 1), (65535, 65535, 2**32 - 1), (40000, 1, 5), (1, 2, 3)])
def test_a_message_is_one_number_and_back(identity: tuple[int, int, int]) -> None:
    codes = encode(*(np.array([value], np.int64) for value in identity))

    assert decode(int(codes[0])) == MessageId(*identity)


def test_a_delivery_knows_its_position_and_what_came_before() -> None:
    rows = deliveries((DELIVER, 1, 1), (DELIVER, 2, 1), (DELIVER, 3, 1))

    assert [row["position"] for row in rows] == [1, 2, 3]
    assert rows[0]["predecessor"] == NO_MESSAGE
    assert [number(row["predecessor"]) for row in rows[1:]] == [1, 2]
    assert not any(row["is_out_of_order"] for row in rows)


def test_records_may_come_in_any_order() -> None:
    noted = ((START, 0, 0), (DELIVER, 2, 1), (DELIVER, 1, 1))
    rows = [row for row in walk(*noted, records=[1, 3, 2]) if row["step"] == Step.DELIVERY]

    assert {number(row["message"]): row["position"] for row in rows} == {1: 1, 2: 2}


def test_an_undone_delivery_leaves_no_place() -> None:
    rows = deliveries((DELIVER, 1, 0), (DELIVER, 2, 0), (UNDO, 1, 0), (DELIVER, 3, 0))

    assert [(number(row["message"]), row["is_undone"]) for row in rows] == [(1, True), (2, False), (3, False)]
    assert [row["position"] for row in rows[1:]] == [1, 2]
    assert rows[1]["predecessor"] == NO_MESSAGE


def test_an_undone_delivery_may_be_delivered_again_and_that_is_no_repeat() -> None:
    rows = deliveries((DELIVER, 1, 0), (UNDO, 1, 0), (DELIVER, 1, 0))

    assert [(row["is_undone"], row["is_repeat"]) for row in rows] == [(True, False), (False, False)]


def test_a_repeat_counts_for_nothing_else() -> None:
    rows = deliveries((DELIVER, 1, 1), (DELIVER, 1, 1), (DELIVER, 2, 1))

    assert [row["is_repeat"] for row in rows] == [False, True, False]
    assert [row["position"] for row in rows] == [1, 1, 2]
    assert not rows[2]["is_out_of_order"]
    assert number(rows[2]["predecessor"]) == 1


def test_levels_are_sequences_of_their_own() -> None:
    rows = deliveries((DELIVER, 1, 0), (DELIVER, 2, 0), (DELIVER, 1, 2))

    assert [(row["level"], row["position"], row["is_repeat"]) for row in rows] == [
        (0, 1, False),
        (0, 2, False),
        (2, 1, False),
    ]
    assert rows[2]["predecessor"] == NO_MESSAGE


def test_a_gap_in_the_numbers_of_an_origin_is_out_of_order() -> None:
    rows = deliveries((DELIVER, 2, 1), (DELIVER, 4, 1))

    assert [row["is_out_of_order"] for row in rows] == [True, True]
    assert [row["previous"] == NO_MESSAGE for row in rows] == [True, False]


def test_a_joiner_may_begin_anywhere() -> None:
    rows = deliveries((DELIVER, 5, 1), (DELIVER, 6, 1), (DELIVER, 8, 1), incarnation=2)

    assert [row["is_out_of_order"] for row in rows] == [False, False, True]
    assert [row["predecessor"] == NOT_COMPARED for row in rows] == [True, False, False]


def test_a_promise_is_broken_by_undoing_more_than_optimism() -> None:
    noted = ((START, 0, 0), (DELIVER, 1, 1), (UNDO, 1, 1), (DELIVER, 2, 0), (UNDO, 2, 0))
    broken = [row for row in walk(*noted) if row["step"] == Step.BROKEN_PROMISE]

    assert [(number(row["message"]), row["level"]) for row in broken] == [(1, Level.AGREED)]


def test_only_own_submissions_count_and_each_once() -> None:
    rows = walk((START, 0, 0), (SUBMIT, 1, 0), (SUBMIT, 1, 0), (SUBMIT, 2, 0))
    other = walk((START, 0, 0), (SUBMIT, 1, 0), incarnation=2)

    assert [number(r["message"]) for r in rows if r["step"] == Step.SUBMISSION] == [1, 2]
    assert not [r for r in other if r["step"] == Step.SUBMISSION]


def test_an_incarnation_says_how_whole_it_is_and_how_it_ended() -> None:
    whole = incarnation((START, 0, 0), (SUBMIT, 1, 0), (SUBMIT, 2, 0), (DELIVER, 1, 1), (STOP, 0, 1))

    assert (whole.is_gapless, whole.missing_records, whole.stop_detail) == (True, 0, 1)
    assert whole.level == Level.AGREED


@pytest.mark.parametrize(
    ("noted", "records", "missing"),
    [
        (((START, 0, 0), (STOP, 0, 1)), [1, 3], 1),
        (((START, 0, 0), (STOP, 0, 1), (STOP, 0, 1)), [1, 2, 2], 0),
        (((SUBMIT, 1, 0), (STOP, 0, 1)), [2, 3], 0),
        (((START, 0, 0), (DELIVER, 0, 1)), [1, 2], 0),
        (((START, 0, 0), (DELIVER, 2**32, 1)), [1, 2], 0),
    ],
    ids=["gap", "repeat", "no start", "number 0", "number too large"],
)
def test_what_is_not_whole(noted: tuple[Noted, ...], records: list[int], missing: int) -> None:
    found = incarnation(*noted, records=records)

    assert (found.is_gapless, found.missing_records) == (False, missing)


def test_the_first_end_of_an_incarnation_counts() -> None:
    ends = [
        incarnation((START, 0, 0), *noted)
        for noted in (((ENDED, 0, 0),), ((ENDED, 0, 0), (STOP, 0, 1)), ((STOP, 0, 1),))
    ]
    ends.append(incarnation((START, 0, 0), (STOP, 0, 0), (ENDED, 0, 0)))

    assert [(one.has_ended, one.stop_detail) for one in ends] == [(True, -1), (True, -1), (False, 1), (False, 0)]


def test_an_incarnation_without_an_end_crashed() -> None:
    assert (incarnation((START, 0, 0)).stop_detail, incarnation((START, 0, 0)).has_ended) == (-1, False)
    assert incarnation((START, 0, 0)).level == -1
