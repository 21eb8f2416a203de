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
AGREEMENTS = {Property.AGREEMENT, Property.UNIFORM_AGREEMENT}


@pytest.mark.parametrize(
    ("history", "failed"),
    [
        pytest.param(written(*FINAL), set(), id="a final delivery needs no optimistic one before it"),
        pytest.param(
            written(
                *("a submits a1", "b submits b1", "b shows b1", "b hides b1", "b shows a1", "b shows b1"),
                *("a shows a1", "a shows b1", "a finalizes a1", "a finalizes b1", "b finalizes a1", "b finalizes b1"),
            ),
            set(),
            id="b1 is shown in the wrong order and taken back when a1 arrives",
        ),
        pytest.param(written(*FINAL, "b hides a1"), {Property.INTEGRITY}, id="a final message is taken back"),
        pytest.param(
            written(*FINAL, "b withdraws a1"),
            {Property.INTEGRITY, *AGREEMENTS},
            id="a final delivery is taken back",
        ),
        pytest.param(
            written("a submits a1", "a delivers a1", "b delivers a1", "b hides a1"),
            {Property.INTEGRITY},
            id="an agreed message is taken back",
        ),
        pytest.param(
            written("a submits a1", "a finalizes a1", "b shows a1", "b hides a1", "b finalizes a1"),
            set(),
            id="what one incarnation has promised another may still take back",
        ),
        pytest.param(
            written(*FINAL, "a submits a2", "a shows a2", "b shows a2"),
            {Property.VALIDITY, *AGREEMENTS},
            id="an own message that stays optimistic is neither valid nor agreed",
        ),
        pytest.param(
            written("b submits b1", "a shows b1", *FINAL, stop="a"),
            AGREEMENTS,
            id="b has crashed: a should have undone b1, or made it final",
        ),
        pytest.param(
            written(*FINAL, "b submits b1", "b shows b1", stop="a"),
            set(),
            id="what a crashed member last showed obliges nobody",
        ),
        pytest.param(
            written("b submits b1", "a shows b1", "a hides b1", *FINAL, stop="a"),
            set(),
            id="what was taken back obliges nobody",
        ),
        pytest.param(
            written("b submits b1", "a shows b1", "a shows b1", "a hides b1", *FINAL, stop="a"),
            AGREEMENTS,
            id="shown twice and taken back once: one delivery stands",
        ),
        pytest.param(
            written("a submits a1", "a shows a1"),
            AGREEMENTS,
            id="where nothing is promised the optimistic order is judged",
        ),
    ],
)
def test_only_what_was_promised_binds(history: PlainHistory, failed: set[Property]) -> None:
    assert {kind for kind, finding in judge(history).items() if finding.verdict is Verdict.FAIL} == failed


@pytest.mark.parametrize(
    ("history", "kind", "told"),
    [
        (
            written(*FINAL, "b hides a1"),
            Property.INTEGRITY,
            "undone although its delivery was promised: p1/a #1: p1/b delivers it at position 0",
        ),
        (
            written("b submits b1", "a shows b1", *FINAL, stop="a"),
            Property.AGREEMENT,
            f"{STANDING}: p1/b #1: p1/a does not deliver it",
        ),
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
