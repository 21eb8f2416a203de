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


AT_NS = START_NS + 20
EXCLUDED, LEFT, CRASHED = {"excluded": {N2: AT_NS}}, {"left": {N2: AT_NS}}, {"crashed": [N2]}
WAS_EXCLUDED = "p1/n2 (incarnation 1) was excluded, which no fault of the run explains"
HAS_LEFT = "p1/n2 (incarnation 1) left, which no fault of the run explains"
NO_END = "p1/n2 (incarnation 1) has no record of its end, which no fault of the run explains"
NO_QUORUM = "p1/n2 (incarnation 1) went from view 1 to view 3 without a quorum of the first"
GIVEN_UP = "3 calls were reported as given up, which no fault of the run explains"
NOT_TOLD = "of 2 calls the caller was told neither objects nor end, or a weaker guarantee than it asked for"


def calls(**outcomes: int) -> dict[str, Any]:
    return {"calls": {"outcomes": {"given_up": 0, "not_as_asked": 0} | outcomes}}


GONE = {"member": "p1/n2", "incarnation": 1, "before": 1, "view": 3, "reason": "leave"}
WITHOUT_QUORUM = {"views": {"without_quorum": [GONE]}}


@pytest.mark.parametrize(
    ("events", "faults", "doubts"),
    [
        (EXCLUDED, [], [WAS_EXCLUDED]),
        (EXCLUDED, [fault("pause", "p1/n2", at_ns=SOON)], []),
        (EXCLUDED, [fault("pause", "p1/n1", at_ns=SOON)], [WAS_EXCLUDED]),
        (EXCLUDED, [fault("pause", "p1/n2", at_ns=LATE)], [WAS_EXCLUDED]),
        (EXCLUDED, [fault("cut", at_ns=SOON)], []),
        (EXCLUDED, healed(51 * SECOND), [WAS_EXCLUDED]),
        (EXCLUDED, healed(49 * SECOND), []),
        (EXCLUDED, [impaired("p1/n1", loss_ratio=0.5)], []),
        (EXCLUDED, [impaired("p1/n1", loss_ratio=0.01)], [WAS_EXCLUDED]),
        (EXCLUDED, [impaired("p1/n1", loss_ratio=0.01, loss_burst_frames=4.0)], []),
        (EXCLUDED, [impaired("p1/n1", delay_ns=2_000_000_000)], []),
        (EXCLUDED, [impaired("p1/n2", delay_ns=5_000_000)], [WAS_EXCLUDED]),
        (LEFT, [fault("leave", "p1/n2", at_ns=SOON)], []),
        (LEFT, [fault("leave", "p1/n1", at_ns=SOON)], [HAS_LEFT]),
        (LEFT, [fault("leave", "p1/n2", at_ns=LATE)], [HAS_LEFT]),
        (LEFT, [fault("cut", at_ns=SOON)], [HAS_LEFT]),
        (CRASHED, [fault("crash", "p1/n2", at_ns=SOON)], []),
        (CRASHED, [fault("crash", "p1/n1", at_ns=SOON)], [NO_END]),
        (WITHOUT_QUORUM, [fault("cut", at_ns=SOON)], [NO_QUORUM]),
        (WITHOUT_QUORUM, [fault("leave", "p1/n1", at_ns=SOON)], []),
        (calls(given_up=3), [], [GIVEN_UP]),
        (calls(given_up=3), [fault("pause", "p1/n2", at_ns=SOON)], []),
        (calls(aborted=3, refused=1), [], []),
        (calls(not_as_asked=2), [fault("pause", "p1/n2", at_ns=SOON)], [NOT_TOLD]),
    ],
)
def test_an_event_that_no_fault_explains_casts_doubt(
    tmp_path: Path, events: dict[str, Any], faults: list[dict[str, Any]], doubts: list[str]
) -> None:
    run = read_run(MadeRun(faults=faults).write(tmp_path / "run"))
    assert unexplained(circumstances_of(run), **NOTHING | events) == doubts


def test_the_patience_of_a_run_that_does_not_give_it_is_the_default_of_the_protocols() -> None:
    assert ReliableParameters().suspect_after_ns == SUSPECT_AFTER_NS
