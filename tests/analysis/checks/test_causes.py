"""The pairs of causes and effects in NumPy, against small histories worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.checks import causes
from analysis.checks.causes import Chunk, Early, History, check, direct_causes, in_order

MESSAGE = 1 << 32
Row = tuple[int, int, int, bool]
"""Incarnation, record, message, is_submission. Messages are of incarnation 0, numbered from 0."""


def steps(*rows: Row) -> History:
    columns = np.array(rows, np.int64).reshape(-1, 4)
    codes, messages = np.unique(columns[:, 0]), MESSAGE + np.unique(columns[:, 2])
    chunks = [
        Chunk(
            record=part[:, 1],
            message=MESSAGE + part[:, 2],
            is_submission=part[:, 3].astype(np.bool_),
            at_ns=part[:, 1] * 10,
        )
        for part in (columns[columns[:, 0] == code] for code in codes)
    ]
    return History([in_order(chunk, messages) for chunk in chunks], codes, messages)


@pytest.mark.parametrize(
    ("rows", "pairs"),
    [
        ([(0, 1, 0, True), (0, 2, 1, False), (0, 3, 2, False), (0, 4, 3, True)], {(0, 3), (1, 3), (2, 3)}),
        ([(0, 1, 0, True), (0, 2, 1, False)], set()),
        ([(1, 2, 1, True), (0, 2, 2, False), (1, 1, 0, False), (0, 1, 3, True)], {(0, 1)}),
        ([(0, 1, 0, True), (0, 2, 1, False), (0, 3, 0, True), (0, 4, 2, True)], {(0, 2), (1, 2)}),
    ],
    ids=[
        "what a member did since its last submission",
        "nothing after the last submission",
        "members apart, rows in any order",
        "a second record of a submission is no other one",
    ],
)
def test_direct_causes_of_a_submission(rows: list[Row], pairs: set[tuple[int, int]]) -> None:
    given_ = steps(*rows)
    numbers = given_.messages - MESSAGE
    cause, effect = direct_causes(given_.incarnations)
    assert set(zip(numbers[cause].tolist(), numbers[effect].tolist(), strict=True)) == pairs


SUBMITTED: list[Row] = [(0, 1, 0, True), (0, 2, 1, True)]


@pytest.mark.parametrize(
    ("rows", "joiners", "violations"),
    [
        ([*SUBMITTED, (1, 1, 1, False), (1, 2, 0, False)], (), 1),
        ([*SUBMITTED, (1, 1, 1, False)], (), 1),
        ([*SUBMITTED, (1, 1, 1, False)], (1,), 0),
        ([*SUBMITTED, (1, 1, 1, False), (1, 2, 0, False)], (1,), 1),
        ([], (), 0),
    ],
    ids=[
        "an effect before its cause",
        "an effect whose cause never comes",
        "a joiner may have got older messages before its time",
        "a joiner delivers backwards",
        "nothing",
    ],
)
def test_effects_without_their_causes_are_found(rows: list[Row], joiners: tuple[int, ...], violations: int) -> None:
    answer = check(steps(*rows), joiners=joiners)
    assert answer.violations == violations
    assert answer.earliest == (Early(at_ns=10, incarnation=1, message=1, cause=0) if violations else None)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 5), st.booleans()), max_size=30))
def test_in_small_pieces_the_answer_is_the_same(rows: list[Row]) -> None:
    known = steps(*rows)
    whole = check(known, joiners=(2,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(causes, "PAIRS_AT_ONCE", 1)
        assert check(known, joiners=(2,)) == whole
