"""Events that no fault explains cast doubt on the run; explained ones do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.checks.properties import Incarnation
from analysis.inputs import SUSPECT_AFTER_NS, read_run
from analysis.unexplained import circumstances_of, unexplained
from node.reliable.parameters import ReliableParameters
from tests.analysis.runs import START_NS, MadeRun

NOTHING: dict[str, Any] = {"excluded": {}, "left": {}, "crashed": (), "views": None, "calls": None}
N2 = Incarnation(1, 1)


def doubts(tmp_path: Path, faults: list[dict[str, Any]], **events: Any) -> list[str]:
    """Sentences about these events of a run with these faults."""
    run = read_run(MadeRun(faults=faults).write(tmp_path / f"run{len(list(tmp_path.iterdir()))}"))
    return unexplained(circumstances_of(run), **NOTHING | events)


def fault(kind: str, *targets: str, at_ns: int) -> dict[str, Any]:
    given = {"id": 0, "kind": kind, "targets": list(targets), "parameters": {}, "until_id": None}
    return given | {"asked_ns": 0, "issued_ns": at_ns, "effective_ns": at_ns}


SOON, LATE, SECOND = START_NS + 5, START_NS + 50, 10**9


def healed(ago_ns: int) -> list[dict[str, Any]]:
    """A cut that was healed so long before the exclusion. Members are suspected after ten seconds."""
    cut, heal = fault("cut", at_ns=SOON - 2 * ago_ns), fault("heal", at_ns=START_NS + 20 - ago_ns)
    return [cut | {"until_id": 1}, heal | {"id": 1}]


def impaired(target: str, **asked: float) -> dict[str, Any]:
    return fault("impair", target, at_ns=SOON) | {"asked": {target: asked}}


@pytest.mark.parametrize(
    ("what", "faults", "is_explained"),
    [
        ("was excluded", [], False),
        ("was excluded", [fault("pause", "p1/n2", at_ns=SOON)], True),
        ("was excluded", [fault("pause", "p1/n1", at_ns=SOON)], False),
        ("was excluded", [fault("pause", "p1/n2", at_ns=LATE)], False),
        ("was excluded", [fault("cut", at_ns=SOON)], True),
        ("was excluded", healed(51 * SECOND), False),
        ("was excluded", healed(49 * SECOND), True),
        ("was excluded", [impaired("p1/n1", loss_ratio=0.5)], True),
        ("was excluded", [impaired("p1/n1", loss_ratio=0.01)], False),
        ("was excluded", [impaired("p1/n1", loss_ratio=0.01, loss_burst_frames=4.0)], True),
        ("was excluded", [impaired("p1/n1", delay_ns=2_000_000_000)], True),
        ("was excluded", [impaired("p1/n2", delay_ns=5_000_000)], False),
        ("left", [fault("leave", "p1/n2", at_ns=SOON)], True),
        ("left", [fault("leave", "p1/n1", at_ns=SOON)], False),
        ("left", [fault("leave", "p1/n2", at_ns=LATE)], False),
        ("left", [fault("cut", at_ns=SOON)], False),
    ],
)
def test_an_end_of_membership_that_no_fault_explains_casts_doubt(
    tmp_path: Path, what: str, faults: list[dict[str, Any]], *, is_explained: bool
) -> None:
    kind = "left" if what == "left" else "excluded"
    found = doubts(tmp_path, faults, **{kind: {N2: START_NS + 20}})
    assert found == ([] if is_explained else [f"p1/n2 (incarnation 1) {what}, which no fault of the run explains"])


def test_the_patience_of_a_run_that_does_not_give_it_is_the_default_of_the_protocols() -> None:
    assert ReliableParameters().suspect_after_ns == SUSPECT_AFTER_NS


@pytest.mark.parametrize(("target", "count"), [("p1/n2", 0), ("p1/n1", 1)])
def test_so_does_a_missing_end(tmp_path: Path, target: str, count: int) -> None:
    found = doubts(tmp_path, [fault("crash", target, at_ns=SOON)], crashed=[N2])
    sentence = "p1/n2 (incarnation 1) has no record of its end, which no fault of the run explains"
    assert found == [sentence] * count


@pytest.mark.parametrize(
    ("outcomes", "faults", "count"),
    [
        ({"given_up": 3, "not_as_asked": 0}, [], 1),
        ({"given_up": 3, "not_as_asked": 0}, [fault("pause", "p1/n2", at_ns=SOON)], 0),
        ({"given_up": 0, "not_as_asked": 0, "aborted": 3, "refused": 1}, [], 0),
        ({"given_up": 0, "not_as_asked": 2}, [fault("pause", "p1/n2", at_ns=SOON)], 1),
    ],
)
def test_so_do_calls_that_are_given_up_without_a_fault_or_not_told_as_asked(
    tmp_path: Path, outcomes: dict[str, int], faults: list[dict[str, Any]], count: int
) -> None:
    assert len(doubts(tmp_path, faults, calls={"outcomes": outcomes})) == count


def test_so_does_a_view_without_a_quorum_of_the_one_before(tmp_path: Path) -> None:
    gone = {"member": "p1/n2", "incarnation": 1, "before": 1, "view": 3, "reason": "leave"}
    found = doubts(tmp_path, [fault("cut", at_ns=SOON)], views={"without_quorum": [gone]})
    assert found == ["p1/n2 (incarnation 1) went from view 1 to view 3 without a quorum of the first"]
    assert doubts(tmp_path, [fault("leave", "p1/n1", at_ns=SOON)], views={"without_quorum": [gone]}) == []
