"""The pairs of causes and effects in NumPy, against small histories worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.checks import causes
from analysis.checks.causes import Chunk, Early, History, check, direct_causes, in_order

MESSAGE = 1 << 32


def steps(*rows: tuple[int, int, int, bool]) -> History:
    """Rows (incarnation, record, message, is_submission); messages are of incarnation 0, numbered from 0."""
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


def pairs(given: History) -> set[tuple[int, int]]:
    numbers = given.messages - MESSAGE
    cause, effect = direct_causes(given.incarnations)
    return set(zip(numbers[cause].tolist(), numbers[effect].tolist(), strict=True))


def test_what_a_member_did_since_its_last_submission_is_a_direct_cause_of_the_next() -> None:
    known = steps((0, 1, 0, True), (0, 2, 1, False), (0, 3, 2, False), (0, 4, 3, True))

    assert pairs(known) == {(0, 3), (1, 3), (2, 3)}


def test_what_comes_after_the_last_submission_causes_nothing() -> None:
    assert pairs(steps((0, 1, 0, True), (0, 2, 1, False))) == set()


def test_members_are_not_mixed_up_and_the_order_of_rows_does_not_matter() -> None:
    known = steps((1, 2, 1, True), (0, 2, 2, False), (1, 1, 0, False), (0, 1, 3, True))

    assert pairs(known) == {(0, 1)}


def test_a_second_record_of_a_submission_is_not_another_one() -> None:
    known = steps((0, 1, 0, True), (0, 2, 1, False), (0, 3, 0, True), (0, 4, 2, True))

    assert pairs(known) == {(0, 2), (1, 2)}


def test_an_effect_before_its_cause_is_found_with_its_time() -> None:
    answer = check(steps((0, 1, 0, True), (0, 2, 1, True), (1, 1, 1, False), (1, 2, 0, False)))

    assert answer.violations == 1
    assert answer.earliest == Early(at_ns=10, incarnation=1, message=1, cause=0)


def test_an_effect_whose_cause_never_comes_is_found() -> None:
    assert check(steps((0, 1, 0, True), (0, 2, 1, True), (1, 1, 1, False))).violations == 1


def test_a_joiner_may_have_got_older_messages_before_its_time() -> None:
    known = steps((0, 1, 0, True), (0, 2, 1, True), (1, 1, 1, False))

    assert check(known, joiners=(1,)).violations == 0


def test_a_joiner_that_delivers_backwards_is_found() -> None:
    known = steps((0, 1, 0, True), (0, 2, 1, True), (1, 1, 1, False), (1, 2, 0, False))

    assert check(known, joiners=(1,)).violations == 1


def test_nothing_is_fine() -> None:
    assert check(steps()).violations == 0


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 5), st.booleans()), max_size=30))
def test_in_small_pieces_the_answer_is_the_same(rows: list[tuple[int, int, int, bool]]) -> None:
    known = steps(*rows)
    whole = check(known, joiners=(2,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(causes, "PAIRS_AT_ONCE", 1)

        assert check(known, joiners=(2,)) == whole
