"""Levels of delivery: optimistic, undone and final. Both checkers must give the same finding."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from analysis.checks import oracle
from analysis.checks.properties import (
    DELIVERY_PROPERTIES,
    STANDING,
    Finding,
    Incarnation,
    MessageId,
    Property,
    Verdict,
    is_judged,
)
from analysis.metrics import cost
from collector.records import Event, Level
from tests.analysis.histories import Author, PlainHistory, check_linear

A, B = Incarnation(0, 1), Incarnation(1, 1)
NAMES = {0: "p1/a", 1: "p1/b"}
Step = tuple[Incarnation, str, str]
WORDS = {
    "submits": (Event.SUBMIT, 0),
    "shows": (Event.DELIVER, Level.OPTIMISTIC),
    "hides": (Event.UNDO, Level.OPTIMISTIC),
    "promises": (Event.DELIVER, Level.AGREED),
    "delivers": (Event.DELIVER, Level.FINAL),
    "denies": (Event.UNDO, Level.FINAL),
}


def written(*steps: Step, stop: tuple[Incarnation, ...] = (A, B)) -> PlainHistory:
    """`(A, "shows", "b2")`: a delivers the second message of b optimistically."""
    author = Author()
    for incarnation in (A, B):
        author.note(incarnation, Event.START)
    for incarnation, word, text in steps:
        event, level = WORDS[word]
        author.note(incarnation, event, MessageId("ab".index(text[0]), 1, int(text[1:])), level)
    for incarnation in stop:
        author.note(incarnation, Event.STOP, detail=1)
    return author.history


def judge(history: PlainHistory) -> dict[Property, Finding]:
    findings = oracle.check(history, members=(0, 1), names=NAMES)
    for kind, finding in check_linear(history, members=(0, 1), names=NAMES).items():
        expected = findings[kind]
        assert (finding.verdict, finding.checked) == (expected.verdict, expected.checked), kind
        assert (finding.violations, finding.witness) == (expected.violations, expected.witness), kind
    return findings


def failed(findings: dict[Property, Finding]) -> set[Property]:
    return {kind for kind in DELIVERY_PROPERTIES if findings[kind].verdict is Verdict.FAIL}


FINAL = ((A, "submits", "a1"), (A, "delivers", "a1"), (B, "delivers", "a1"))


def test_a_final_delivery_needs_no_optimistic_one_before_it() -> None:
    assert not failed(judge(written(*FINAL)))


def test_what_is_shown_in_the_wrong_order_and_taken_back_harms_nothing() -> None:
    """B delivers b1 optimistically first, then the straggler a1."""
    history = written(
        *((A, "submits", "a1"), (B, "submits", "b1"), (B, "shows", "b1"), (B, "hides", "b1"), (B, "shows", "a1")),
        *((B, "shows", "b1"), (A, "shows", "a1"), (A, "shows", "b1")),
        *((incarnation, "delivers", message) for incarnation in (A, B) for message in ("a1", "b1")),
    )

    assert not failed(judge(history))


def test_a_final_message_is_not_taken_back_at_any_level() -> None:
    for word in ("hides", "denies"):
        findings = judge(written(*FINAL, (B, word, "a1")))

        assert Property.INTEGRITY in failed(findings)
        witness = findings[Property.INTEGRITY].witness
        assert witness is not None
        assert witness.what == "undone although its delivery was promised"
        assert witness.places[0].incarnation == B


def test_an_agreed_message_is_not_taken_back_either() -> None:
    findings = judge(
        written((A, "submits", "a1"), *((incarnation, "promises", "a1") for incarnation in (A, B)), (B, "hides", "a1"))
    )

    assert failed(findings) == {Property.INTEGRITY}
    assert findings[Property.INTEGRITY].violations == 1


def test_what_one_incarnation_has_promised_another_may_still_take_back() -> None:
    history = written(*FINAL[:2], (B, "shows", "a1"), (B, "hides", "a1"), (B, "delivers", "a1"))

    assert not failed(judge(history))


def test_an_own_message_that_stays_optimistic_is_neither_valid_nor_agreed() -> None:
    history = written(*FINAL, (A, "submits", "a2"), (A, "shows", "a2"), (B, "shows", "a2"))
    findings = judge(history)

    assert failed(findings) == {Property.VALIDITY, Property.AGREEMENT, Property.UNIFORM_AGREEMENT}
    assert (findings[Property.AGREEMENT].checked, findings[Property.AGREEMENT].violations) == (2, 1)


def test_what_stays_optimistic_of_the_dead_is_not_agreed() -> None:
    """B has crashed; A should have undone b1, or made it final."""
    history = written((B, "submits", "b1"), (A, "shows", "b1"), *FINAL, stop=(A,))
    findings = judge(history)

    assert failed(findings) == {Property.AGREEMENT, Property.UNIFORM_AGREEMENT}
    witness = findings[Property.AGREEMENT].witness
    assert witness is not None
    assert witness.sentence(NAMES) == f"{STANDING}: p1/b #1: p1/a does not deliver it"


def test_what_a_crashed_member_last_showed_obliges_nobody() -> None:
    assert not failed(judge(written(*FINAL, (B, "submits", "b1"), (B, "shows", "b1"), stop=(A,))))


def test_what_was_taken_back_obliges_nobody() -> None:
    assert not failed(judge(written((B, "submits", "b1"), (A, "shows", "b1"), (A, "hides", "b1"), *FINAL, stop=(A,))))


@pytest.mark.parametrize("again", [1, 2])
def test_each_showing_is_taken_back_by_itself(again: int) -> None:
    """Delivered twice and undone once: one delivery stands."""
    shown = [(A, "shows", "b1")] * again
    findings = judge(written((B, "submits", "b1"), *shown, (A, "hides", "b1"), *FINAL, stop=(A,)))

    assert (Property.AGREEMENT in failed(findings)) == (again > 1)


@pytest.mark.parametrize(
    ("levels", "kept"), [((0, 0), (0, 0)), ((0, 1), (1,)), ((1, 2), (1, 2)), ((0, 1, 2), (1, 2)), ((2, 0), (2,))]
)
def test_figures_speak_of_the_sequence_that_is_judged(levels: tuple[int, ...], kept: tuple[int, ...]) -> None:
    """Agreed and final deliveries are one sequence, in every check of levels."""
    rows = pa.table({"level": levels, "is_undone": [False] * len(levels), "is_repeat": [False] * len(levels)})
    highest = max(levels)
    assert tuple(rows.filter(cost.is_judged_delivery(highest))["level"].to_pylist()) == kept
    assert tuple(np.array(levels)[is_judged(np.array(levels), highest)].tolist()) == kept
    assert tuple(level for level in levels if is_judged(level, highest)) == kept


def test_where_nothing_is_promised_the_optimistic_order_is_judged() -> None:
    history = written((A, "submits", "a1"), (A, "shows", "a1"))

    assert failed(judge(history)) == {Property.AGREEMENT, Property.UNIFORM_AGREEMENT}
