"""Levels of delivery: optimistic, undone and final. Both checkers must give the same finding."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from analysis.checks import oracle
from analysis.checks.properties import STANDING, Finding, Property, Verdict, is_judged
from analysis.metrics import cost
from tests.analysis.checks.view_histories import NAMES
from tests.analysis.histories import PlainHistory, check_linear, written


def judge(history: PlainHistory) -> dict[Property, Finding]:
    findings = oracle.check(history, members=(0, 1), names=NAMES)
    for kind, finding in check_linear(history, members=(0, 1), names=NAMES).items():
        expected = findings[kind]
        assert (finding.verdict, finding.checked) == (expected.verdict, expected.checked), kind
        assert (finding.violations, finding.witness) == (expected.violations, expected.witness), kind
    return findings


FINAL = ("a submits a1", "a finalizes a1", "b finalizes a1")
TAKEN_BACK = written(*FINAL, "b hides a1")
STANDS = written("b submits b1", "a shows b1", *FINAL, stop="a")
AGREEMENTS = {Property.AGREEMENT, Property.UNIFORM_AGREEMENT}


CASES: dict[str, tuple[PlainHistory, set[Property]]] = {
    "a final delivery needs no optimistic one before it": (written(*FINAL), set()),
    "b1 is shown in the wrong order and taken back when a1 arrives": (
        written(
            *("a submits a1", "b submits b1", "b shows b1", "b hides b1", "b shows a1", "b shows b1"),
            *("a shows a1", "a shows b1", "a finalizes a1", "a finalizes b1", "b finalizes a1", "b finalizes b1"),
        ),
        set(),
    ),
    "a final message is taken back": (TAKEN_BACK, {Property.INTEGRITY}),
    "a final delivery is taken back": (written(*FINAL, "b withdraws a1"), {Property.INTEGRITY, *AGREEMENTS}),
    "an agreed message is taken back": (
        written("a submits a1", "a delivers a1", "b delivers a1", "b hides a1"),
        {Property.INTEGRITY},
    ),
    "what one incarnation has promised another may still take back": (
        written("a submits a1", "a finalizes a1", "b shows a1", "b hides a1", "b finalizes a1"),
        set(),
    ),
    "an own message that stays optimistic is neither valid nor agreed": (
        written(*FINAL, "a submits a2", "a shows a2", "b shows a2"),
        {Property.VALIDITY, *AGREEMENTS},
    ),
    "b has crashed: a should have undone b1, or made it final": (STANDS, AGREEMENTS),
    "what a crashed member last showed obliges nobody": (
        written(*FINAL, "b submits b1", "b shows b1", stop="a"),
        set(),
    ),
    "what was taken back obliges nobody": (
        written("b submits b1", "a shows b1", "a hides b1", *FINAL, stop="a"),
        set(),
    ),
    "shown twice and taken back once: one delivery stands": (
        written("b submits b1", "a shows b1", "a shows b1", "a hides b1", *FINAL, stop="a"),
        AGREEMENTS,
    ),
    "where nothing is promised the optimistic order is judged": (written("a submits a1", "a shows a1"), AGREEMENTS),
}


@pytest.mark.parametrize("case", CASES)
def test_only_what_was_promised_binds(case: str) -> None:
    history, failed = CASES[case]
    assert {kind for kind, finding in judge(history).items() if finding.verdict is Verdict.FAIL} == failed


@pytest.mark.parametrize(
    ("history", "kind", "told"),
    [
        (
            TAKEN_BACK,
            Property.INTEGRITY,
            "undone although its delivery was promised: p1/a #1: p1/b delivers it at position 0",
        ),
        (STANDS, Property.AGREEMENT, f"{STANDING}: p1/b #1: p1/a does not deliver it"),
    ],
)
def test_a_witness_tells_who_broke_a_promise(history: PlainHistory, kind: Property, told: str) -> None:
    finding = judge(history)[kind]
    assert finding.witness is not None
    assert (finding.violations, finding.witness.sentence(NAMES)) == (1, told)


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
