"""Verdicts and reasons, from findings and from doubts about the records. No Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from analysis import judgement
from analysis.capture.source import CaptureState
from analysis.checks.properties import (
    DELIVERY_PROPERTIES,
    Finding,
    Incarnation,
    MessageId,
    Place,
    Property,
    Verdict,
    Witness,
)
from analysis.expression import ALLOWED, FUNCTIONS
from analysis.inputs import RunInputs, read_run
from analysis.judgement import Staged
from tests.analysis.runs import START_NS, MadeRun

GOOD = CaptureState(interface_names=("p1/n1",), metadata={}, frames=0, bytes=900, truncated=False, problem="",
                    damaged=0, first_ns=1, last_ns=2)  # fmt: skip


def inputs(tmp_path: Path, **changes: Any) -> RunInputs:
    run = MadeRun()
    run.manifest |= changes
    return read_run(run.write(tmp_path / "run"))


LOST = {"capture": {"frames": 0, "kernel_dropped_frames": 3, "complete": True}}
CUT_OFF = {"capture": {"frames": 2, "kernel_dropped_frames": None, "complete": False}}
NO_CLOCK = "the manifest has no clock readings, so the capture cannot be set against the faults"


@pytest.mark.parametrize(
    ("changes", "capture", "staged", "doubts"),
    [
        ({}, GOOD, Staged(), []),
        ({"status": "interrupted"}, GOOD, Staged(), ["the run is interrupted"]),
        ({"status": "failed", "error": "p1: no"}, GOOD, Staged(), ["the run is failed: p1: no"]),
        ({"invalid": ["the machine was busy"]}, GOOD, Staged(), ["the machine was busy"]),
        ({}, None, Staged(), ["there is no capture"]),
        (LOST, GOOD, Staged(), ["the collector lost 3 frames"]),
        (LOST | {"invalid": ["the collector lost 3 frames"]}, GOOD, Staged(), ["the collector lost 3 frames"]),
        (
            CUT_OFF | {"invalid": ["the capture is not complete"]},
            GOOD,
            Staged(),
            [
                "the capture is not complete",
                "the collector has not counted the frames that it lost",
                "the capture has 0 frames, and the collector recorded 2",
            ],
        ),
        ({"capture": {}, "status": "failed"}, GOOD, Staged(), ["the run is failed"]),
        ({}, GOOD, Staged(foreign_records=2), ["2 trace records came from another port than their member's"]),
        (
            {},
            GOOD,
            Staged(strange_datagrams=2),
            ["2 trace datagrams cannot be decoded or are of another group"],
        ),
        (
            {},
            GOOD,
            Staged(idle_records=2),
            ["2 trace records tell of times at which a fault had stopped their nodes"],
        ),
        (
            {},
            GOOD,
            Staged(future_records=2),
            ["2 trace records tell of a time after the frame that carried them"],
        ),
        ({"clock": None}, GOOD, Staged(), [NO_CLOCK]),
    ],
)
def test_what_casts_doubt(
    tmp_path: Path, changes: dict[str, Any], capture: CaptureState | None, staged: Staged, doubts: list[str]
) -> None:
    assert judgement.doubts(inputs(tmp_path, **changes), capture, staged) == doubts


def test_submissions_that_do_not_count_cast_doubt(tmp_path: Path) -> None:
    doubts = judgement.doubts(
        inputs(tmp_path), GOOD, Staged(), {Incarnation(1, 2): "gives its submission 2 the number 1"}
    )
    assert doubts == ["p1/n2 (incarnation 2) gives its submission 2 the number 1"]


def test_a_torn_faults_file_casts_doubt(tmp_path: Path) -> None:
    path = MadeRun(manifest={"faults": 1}).write(tmp_path / "run")
    (path / "faults.jsonl").write_text('{"id": 0, "ki')

    assert judgement.doubts(read_run(path), GOOD, Staged()) == ["1 lines of faults.jsonl cannot be read"]


@pytest.mark.parametrize(
    ("told", "lines", "doubt"),
    [
        (2, 2, ""),
        (2, 1, "faults.jsonl has 1 lines, and 2 were recorded"),
        (0, 2, "faults.jsonl has 2 lines, and 0 were recorded"),
        (2, None, "faults.jsonl has 0 lines, and 2 were recorded"),
        (0, None, ""),
        (None, None, "the manifest does not tell the number of faults"),
        (None, 2, "the manifest does not tell the number of faults"),
    ],
)
def test_another_number_of_faults_than_were_recorded_casts_doubt(
    tmp_path: Path, told: int | None, lines: int | None, doubt: str
) -> None:
    line = {"id": 0, "kind": "crash", "targets": ["p1/n1"], "issued_ns": START_NS, "effective_ns": START_NS}
    path = MadeRun(faults=[line] * (lines or 0), manifest={"faults": told}).write(tmp_path / "run")
    if lines is None:
        (path / "faults.jsonl").unlink()
    assert judgement.doubts(read_run(path), GOOD, Staged()) == ([doubt] if doubt else [])


def undrained(run: RunInputs) -> str:
    return judgement.undrained(run.manifest.phases.drained_ns, run.faults, run.network)


def test_a_run_that_did_not_drain_or_was_cut_then_says_nothing_of_liveness(tmp_path: Path) -> None:
    cut = {"id": 0, "kind": "cut", "targets": [], "parameters": {"groups": [["p1/n1"], ["p1/n2"]]}, "until_id": None}
    times = {"asked_ns": 0, "issued_ns": START_NS - 9, "effective_ns": START_NS - 5}
    is_cut = read_run(MadeRun(faults=[cut | times]).write(tmp_path / "cut"))

    assert undrained(inputs(tmp_path / "drained")) == ""
    assert undrained(inputs(tmp_path / "not", phases={"start_ns": 5})) == "the run did not drain"
    assert undrained(is_cut) == "the network was still cut when the run drained"


@pytest.mark.parametrize(
    ("ratios", "is_losing"), [((1.0,), True), ((0.99,), False), ((1.0, 0.0), False), ((0.0, 1.0), True)]
)
def test_a_port_that_loses_every_frame_is_cut_off(ratios: Sequence[float], is_losing: bool, tmp_path: Path) -> None:
    faults = [
        {"id": number, "kind": "impair", "targets": ["p1/n1"], "direction": "to-node"}
        | {"asked": {"p1/n1": {"loss_ratio": ratio}}, "issued_ns": START_NS - 9, "effective_ns": START_NS - 9 + number}
        for number, ratio in enumerate(ratios)
    ]
    reason = judgement.STILL_LOSING if is_losing else ""
    run = MadeRun(faults=faults)
    assert undrained(read_run(run.write(tmp_path / "drained"))) == reason


ONE, TWO = Incarnation(0, 1), Incarnation(1, 1)
CRASHED = {"exit": -9, "crashed": True}


def end(node: int, incarnation: int = 1, **given: Any) -> dict[str, Any]:
    return {"node": f"p1/n{node}", "incarnation": incarnation, "exit": -15} | given


@pytest.mark.parametrize(
    ("nodes", "ended", "crashed", "reason"),
    [
        ([end(1), end(2)], [ONE, TWO], [], ""),
        ([end(1, exit=0), end(2, exit=0)], [ONE], [TWO], "the last trace records of p1/n2 (incarnation 1) are missing"),
        ([end(1), end(2)], [ONE], [TWO], ""),
        ([end(1), end(2)], [ONE], [], "p1/n2 (incarnation 1) left no trace records"),
        ([end(1), end(2, **CRASHED)], [ONE], [], ""),
        ([end(1), end(1, 2), end(2)], [ONE, TWO], [], "p1/n1 (incarnation 2) left no trace records"),
        ([end(1)], [ONE], [TWO], "there are trace records of p1/n2 (incarnation 1), never started"),
        (
            [end(1), end(2)],
            [ONE, Incarnation(1, 0)],
            [],
            "p1/n2 (incarnation 1) left no trace records; "
            "there are trace records of p1/n2 (incarnation 0), never started",
        ),
        ([end(1), end(2), end(4)], [ONE, TWO], [], ""),
        ([], [ONE, TWO], [], ""),
    ],
)
def test_what_was_started_and_what_is_on_record_are_the_same(
    tmp_path: Path, nodes: list[dict[str, Any]], ended: list[Incarnation], crashed: list[Incarnation], reason: str
) -> None:
    """n4's program is in no group."""
    run = inputs(tmp_path, nodes=nodes, members=["p1/n1", "p1/n2", "p1/n3"])

    assert judgement.unrecorded(run, ended=ended, crashed=crashed) == reason


def test_a_crash_takes_records_along_and_that_is_said_and_bounded(tmp_path: Path) -> None:
    crashed = {Incarnation(1, 1)}
    findings = dict.fromkeys(Property, PASS)
    real, simulated = inputs(tmp_path / "real", world="netns"), inputs(tmp_path / "simulated", world="sim")

    noted = judgement.noted(findings, real, crashed)
    assert {finding.verdict for finding in noted.values()} == {Verdict.PASS}
    assert noted[Property.TOTAL_ORDER].reason == (
        "as far as is on record: the last 10 ms of p1/n2 (incarnation 1) before the crash may be missing"
    )
    unnoted = {Property.VALIDITY, Property.AGREEMENT, Property.SERVICE, Property.STATE}
    assert {kind for kind, finding in noted.items() if not finding.reason} == unnoted
    many = judgement.noted(findings, real, {Incarnation(1, number) for number in range(1, 6)})
    assert "10 ms of 5 incarnations before" in many[Property.TOTAL_ORDER].reason
    assert judgement.noted(findings, real, ()) == judgement.noted(findings, simulated, crashed) == findings


def test_an_exclusion_that_passes_in_views_without_a_quorum_says_so(tmp_path: Path) -> None:
    findings = dict.fromkeys((Property.MUTUAL_EXCLUSION, Property.FENCE_ORDER, Property.SERVICE), PASS)
    changes = [{"view": 3}, {"view": 2}, {"view": 3}]

    noted = judgement.noted(findings, inputs(tmp_path, world="sim"), (), {"without_quorum": changes})

    note = "as far as the views are right: views 2, 3 began without a quorum"
    assert [(finding.verdict, finding.reason) for finding in noted.values()] == [
        (Verdict.PASS, note),
        (Verdict.PASS, note),
        (Verdict.PASS, ""),
    ]
    both = judgement.noted(findings, inputs(tmp_path / "real"), {Incarnation(1, 1)}, {"without_quorum": changes})
    assert both[Property.FENCE_ORDER].reason.endswith(f"before the crash may be missing; {note}")


def test_lost_frames_may_be_the_last_records_of_a_crashed_member(tmp_path: Path) -> None:
    run = inputs(tmp_path, capture={"kernel_dropped_frames": 3})

    assert judgement.lost_tails(run, ()) == ""
    assert judgement.lost_tails(run, {Incarnation(1, 1)}) == (
        "the collector lost 3 frames, which may be the last trace records of p1/n2 (incarnation 1)"
    )


PASS = Finding(verdict=Verdict.PASS, checked=10, violations=0)
WITNESS = Witness(
    what="delivered twice",
    places=(
        Place(Incarnation(1, 2), MessageId(0, 1, 7), 3, 99),
        Place(Incarnation(7, 1), MessageId(0, 1, 7), None, None),
    ),
)
FAIL = Finding(verdict=Verdict.FAIL, checked=10, violations=2, witness=WITNESS)


def test_liveness_is_bounded_by_the_drain_and_everything_by_a_gap() -> None:
    findings = {kind: FAIL if kind is Property.VALIDITY else PASS for kind in DELIVERY_PROPERTIES}
    live = judgement.bounded(findings, undrained="the run did not drain")
    gap = judgement.bounded(findings, gap="records are missing", undrained="the run did not drain")

    bounded = {kind for kind, finding in live.items() if finding.verdict is Verdict.UNKNOWN}
    assert bounded == {Property.VALIDITY, Property.AGREEMENT, Property.UNIFORM_AGREEMENT}
    assert live[Property.VALIDITY].witness is None
    assert {finding.reason for finding in gap.values()} == {"records are missing"}


def entries(**findings: Finding) -> dict[str, dict[str, Any]]:
    given = {Property(name): finding for name, finding in findings.items()}
    return judgement.property_entries(given, findings, {0: "p1/a", 1: "p1/b"})


def test_a_witness_names_members_and_messages() -> None:
    witness = entries(integrity=FAIL)["integrity"]["witness"]

    assert witness["sentence"] == (
        "delivered twice: p1/a #7: p1/b (incarnation 2) delivers it at position 3; "
        "p1/a #7: member 7 does not deliver it"
    )
    message = {"origin": "p1/a", "incarnation": 1, "number": 7}
    place = {"member": "p1/b", "incarnation": 2, "message": message, "position": 3, "at_ns": 99}
    assert witness["places"][0] == place
    assert json.dumps(witness)


def test_the_verdict_is_the_worst_of_what_was_promised_and_expected() -> None:
    good = {"condition": "x < 1", "verdict": "pass", "value": 0, "reason": ""}
    bad = good | {"verdict": "fail", "value": 5}

    assert judgement.overall(entries(fifo=PASS), [good], []) == (Verdict.PASS, [])
    assert judgement.overall(entries(fifo=FAIL), [good], []) == (Verdict.FAIL, ["fifo: 2 violations in 10 checked"])
    assert judgement.overall(entries(fifo=PASS), [bad], []) == (Verdict.FAIL, ["x < 1: it is 5"])
    assert judgement.overall(entries(fifo=PASS), [], ["it was cold"]) == (Verdict.UNKNOWN, ["it was cold"])
    assert judgement.overall(entries(fifo=FAIL), [], ["it was cold"])[0] is Verdict.FAIL


def test_only_what_was_promised_and_expected_counts() -> None:
    unpromised = judgement.property_entries({Property.FIFO: FAIL, Property.CAUSAL: PASS}, ["causal"], {})
    nothing = (Verdict.UNKNOWN, ["nothing was promised and nothing expected"])

    assert judgement.overall(unpromised, [], []) == (Verdict.PASS, [])
    assert judgement.overall({}, [], []) == nothing


NO_EXPRESSION = f"'latency.p99_ms <=' is no expression: invalid syntax (allowed: {ALLOWED})"


@pytest.mark.parametrize(
    ("text", "is_valid", "verdict", "value", "reason"),
    [
        ("latency.p99_ms <= 80", True, "pass", 61.5, ""),
        ("latency.p99_ms <= 60", True, "fail", 61.5, ""),
        ("latency.p50_ms <= 60", True, "unknown", None, "a value beside <= was not measured"),
        ("traffic.dummies <= 60", True, "unknown", None, "this run has no traffic"),
        ("latency.p99_ms <=", True, "unknown", None, NO_EXPRESSION),
        ("__import__('os')", True, "unknown", None, f"only {FUNCTIONS} can be called, not \"__import__('os')\""),
        ("latency.p99_ms <= 80", False, "pass", 61.5, ""),
        ("latency.p99_ms <= 60", False, "unknown", 61.5, "the run is invalid, and it is 61.5"),
    ],
)
def test_an_expectation_is_judged_over_the_results_and_does_not_fail_in_an_invalid_run(
    text: str, is_valid: bool, verdict: str, value: float | None, reason: str
) -> None:
    entry = judgement.expectation(text, {"latency": {"p99_ms": 61.5, "p50_ms": None}}, is_valid=is_valid)

    assert entry == {"condition": text, "verdict": verdict, "value": value, "reason": reason}


def test_the_certificate_in_short() -> None:
    rows = [{"verdict": text} for text in ("pass", "pass", "unknown")]

    counts = {"pass": 2, "fail": 0, "unknown": 1}
    assert judgement.accuracy(rows, [conserved(0), conserved(None)]) == {
        "verdict": "unknown",
        **counts,
        "unexplained": 0,
    }
    assert judgement.accuracy([], [])["verdict"] == "unknown"


def test_unexplained_frames_fail_the_certificate() -> None:
    passed = [{"verdict": "pass"}]
    assert judgement.accuracy(passed, [conserved(0), conserved(-3)])["verdict"] == "fail"
    assert judgement.accuracy(passed, [conserved(9, reason="p1/n1 crashed")])["verdict"] == "pass"


def conserved(unexplained: int | None, *, reason: str = "") -> dict[str, Any]:
    return {"unexplained": unexplained, "reason": reason}
