"""The pairs of causes and effects in NumPy, against histories small enough to see through."""

from __future__ import annotations

import numpy as np

from analysis.causes import Early, Steps, check, dense, direct_causes


def steps(*rows: tuple[int, int, int, bool], joiners: tuple[int, ...] = (), lives: int = 2) -> Steps:
    """Rows (life, record, message, is_submission); messages 0 … 3 are of life 0, numbered from 1."""
    columns = np.array(rows, np.int64).T if rows else np.empty((4, 0), np.int64)
    return Steps(
        life=columns[0],
        record=columns[1],
        message=columns[2],
        is_submission=columns[3].astype(np.bool_),
        at_ns=columns[1] * 10,
        is_joiner=np.array([life in joiners for life in range(lives)]),
        origin=np.zeros(4, np.int64),
        number=np.arange(1, 5, dtype=np.int64),
    )


def pairs(given: Steps) -> set[tuple[int, int]]:
    cause, effect = direct_causes(given)
    return set(zip(cause.tolist(), effect.tolist(), strict=True))


def test_what_a_member_did_since_its_last_submission_is_a_direct_cause_of_the_next() -> None:
    given = steps((0, 1, 0, True), (0, 2, 1, False), (0, 3, 2, False), (0, 4, 3, True))

    assert pairs(given) == {(0, 3), (1, 3), (2, 3)}


def test_what_comes_after_the_last_submission_causes_nothing() -> None:
    assert pairs(steps((0, 1, 0, True), (0, 2, 1, False))) == set()


def test_members_are_not_mixed_up_and_the_order_of_rows_does_not_matter() -> None:
    given = steps((1, 2, 1, True), (0, 2, 2, False), (1, 1, 0, False), (0, 1, 3, True))

    assert pairs(given) == {(0, 1)}


def test_a_second_record_of_a_submission_is_not_another_one() -> None:
    given = steps((0, 1, 0, True), (0, 2, 1, False), (0, 3, 0, True), (0, 4, 2, True))

    assert pairs(given) == {(0, 2), (1, 2)}


def test_an_effect_before_its_cause_is_found_with_its_time() -> None:
    answer = check(steps((0, 1, 0, True), (0, 2, 1, True), (1, 1, 1, False), (1, 2, 0, False)))

    assert answer.violations == 1
    assert answer.earliest == Early(at_ns=10, life=1, message=1, cause=0)


def test_an_effect_whose_cause_never_comes_is_found() -> None:
    assert check(steps((0, 1, 0, True), (0, 2, 1, True), (1, 1, 1, False))).violations == 1


def test_a_joiner_may_have_got_older_messages_before_its_time() -> None:
    given = steps((0, 1, 0, True), (0, 2, 1, True), (1, 1, 1, False), joiners=(1,))

    assert check(given).violations == 0


def test_a_joiner_that_delivers_backwards_is_found() -> None:
    given = steps((0, 1, 0, True), (0, 2, 1, True), (1, 1, 1, False), (1, 2, 0, False), joiners=(1,))

    assert check(given).violations == 1


def test_nothing_is_fine() -> None:
    assert check(steps()).violations == 0


def test_dense_numbers_rows_in_sorted_order() -> None:
    numbers, first = dense(np.array([5, 1, 5, 1]), np.array([0, 2, 0, 3]))

    assert numbers.tolist() == [2, 0, 2, 1]
    assert [(int(i) in (0, 2)) for i in first] == [False, False, True]
    assert dense(np.empty(0, np.int64))[0].tolist() == []
