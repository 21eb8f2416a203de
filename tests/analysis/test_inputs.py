"""Manifests, faults and topologies that are hostile, or left by a run that ended early."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.errors import AnalysisError
from analysis.inputs import IDLE_NS, LIVED_NS, NodeEnd, idle_ns, may_lack_records, open_cuts, read_run
from tests.analysis.runs import START_NS, MadeRun
from topologies.model import Impairment


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return MadeRun().write(tmp_path / "run")


FAULT = {"id": 0, "kind": "impair", "targets": ["p1/n1"], "direction": "to-node", "parameters": {"loss_ratio": 0.1},
         "asked": {"p1/n1": {"loss_ratio": 0.1, "delay_ns": 5}}, "asked_ns": 0, "issued_ns": 10, "effective_ns": 20,
         "until_id": None, "readback": {}}  # fmt: skip


def test_a_run_is_read_and_a_fault_without_asked_uses_its_parameters(made: Path) -> None:
    without = {key: value for key, value in FAULT.items() if key != "asked"} | {"id": 1, "targets": ["p1/n2"]}
    (made / "faults.jsonl").write_text(json.dumps(FAULT) + "\n" + json.dumps(without) + "\n")
    run = read_run(made)

    assert run.names == {0: "p1/n1", 1: "p1/n2", 2: "p1/n3", 3: "p1/n4"}
    assert run.manifest.clock_offset_ns == 1_700_000_000_123_456_789
    assert run.network.intervals(("to-node", "p1/n1"))[1][2] == Impairment(loss_ratio=0.1, delay_ns=5)
    assert run.network.intervals(("to-node", "p1/n2"))[1][2] == Impairment(loss_ratio=0.1)
    assert run.unread_faults == 0


STOPPED: dict[str, tuple[list[tuple[str, int]], list[int]]] = {
    "killed": ([("crash", 5)], [5, 2**62]),
    "killed and started again": ([("crash", 5), ("restart", 9)], [5, 9]),
    "paused": ([("pause", 5), ("resume", 8)], [5, 8]),
    "paused to the end of the load": ([("pause", 5)], [5, 20]),
    "paused and killed": ([("pause", 5), ("crash", 7), ("restart", 9)], [5, 7, 7, 9]),
    "stopped too shortly to be certain": ([("pause", 5), ("resume", 5)], []),
    "joins": ([("join", 5)], []),
    "slowed down": ([("slow", 5)], []),
}


@pytest.mark.parametrize("case", STOPPED)
def test_a_node_is_idle_from_some_time_after_it_was_stopped(tmp_path: Path, case: str) -> None:
    """Times in seconds; a fault takes effect a millisecond after it was issued."""
    faults, edges = STOPPED[case]
    second, run = 10**9, MadeRun(manifest={"phases": {"load_end_ns": 20 * 10**9}})
    for number, (kind, at_s) in enumerate(faults):
        times = {"issued_ns": at_s * second, "effective_ns": at_s * second + 10**6}
        run.faults.append(FAULT | times | {"id": number, "kind": kind, "targets": ["p1/n2"], "direction": None})
    found = idle_ns(read_run(run.write(tmp_path / "run")))

    ends = [edge if edge == 2**62 else edge * second for edge in edges]
    assert found.get(1, []) == [end + (0 if k % 2 else 10**6 + IDLE_NS) for k, end in enumerate(ends)]
    assert found.keys() <= {1}


EARLY, LATE = START_NS + LIVED_NS - 1, START_NS + LIVED_NS


@pytest.mark.parametrize(
    ("kind", "at_ns", "incarnation", "is_crashed", "may"),
    [
        ("crash", LATE, 1, True, False),
        ("crash", EARLY, 1, True, True),
        ("pause", EARLY, 1, True, True),
        ("impair", EARLY, 1, True, False),
        ("crash", LATE, 2, True, True),
        ("crash", EARLY, 1, False, False),
    ],
)
def test_a_crash_takes_all_records_of_a_short_life(
    tmp_path: Path, kind: str, at_ns: int, incarnation: int, is_crashed: bool, may: bool
) -> None:
    """n1 is crashed at LATE, and one fault strikes it by then."""
    run = MadeRun(faults=[FAULT | {"kind": kind, "issued_ns": at_ns}, FAULT | {"kind": "crash", "issued_ns": LATE}])
    end = NodeEnd(node="p1/n1", incarnation=incarnation, crashed=is_crashed)

    assert may_lack_records(read_run(run.write(tmp_path / "run")), end) is may


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "7", json.dumps(FAULT | {"kind": "explode"}), json.dumps(FAULT | {"targets": ["p9/n9"]}),
     json.dumps(FAULT | {"issued_ns": "now"}), json.dumps(FAULT | {"issued_ns": 10**400}), "[" * 100_000,
     json.dumps(FAULT | {"asked": {"p1/n1": {"delay_ns": -5}}}),
     json.dumps(FAULT | {"kind": "cut", "parameters": {"groups": 7}})],
)  # fmt: skip
def test_a_line_that_is_no_fault_is_counted_and_left_out(made: Path, line: str) -> None:
    (made / "faults.jsonl").write_text(json.dumps(FAULT) + "\n" + line + "\n")
    run = read_run(made)

    assert (len(run.faults), run.unread_faults) == (1, 1)


def test_a_run_without_a_faults_file_has_no_faults(made: Path) -> None:
    (made / "faults.jsonl").unlink()
    assert read_run(made).faults == ()

    (made / "faults.jsonl").symlink_to("x" * 300)
    assert read_run(made).faults == ()


def test_what_an_interrupted_run_leaves_is_enough(made: Path) -> None:
    manifest = json.loads((made / "manifest.json").read_text())
    for name in ("clock", "capture", "health", "asked"):
        del manifest[name]
    nothing = {"start_ns": None, "load_end_ns": None, "drained_ns": None, "end_ns": None}
    (made / "manifest.json").write_text(json.dumps(manifest | {"status": "interrupted", "phases": nothing}))

    run = read_run(made)

    assert (run.manifest.status, run.manifest.clock, run.manifest.phases.start_ns) == ("interrupted", None, None)


@pytest.mark.parametrize(
    ("manifest", "sentence"),
    [
        ("", "invalid JSON"),
        ("{", "invalid JSON"),
        ("[]", "input should be"),
        ("[" * 100_000, "invalid JSON"),
        ('{"format": 2}', "format: input should be 1"),
        ('{"format": 1}', "run: field required"),
        ({"group": -1}, "group"),
        ({"group": "7"}, "group: input should be a valid integer"),
        ({"status": "great"}, "status"),
        ({"phases": {"start_ns": 10**400}}, "phases.start_ns"),
        ({"asked": {"p1/n1": {"sideways": {}}}}, "asked: p1/n1: expected from-node and to-node, got 'sideways'"),
        ({"asked": {"p1/n1": {"to-node": {"delay_ns": "soon"}}}}, "asked: delay_ns must be a whole number"),
        ({"asked": {"p1/n1": {"to-node": {"colour": 1}}}}, "asked: an impairment has no 'colour'"),
        ({"expect": "latency.p99_ms < 5"}, "expect"),
        ({"counters": [{"node": "p1/n1", "direction": "to-node", "sent_frames": -1}]}, "counters.0.sent_frames"),
    ],
)
def test_a_hostile_manifest_is_one_sentence(made: Path, manifest: str | dict[str, Any], sentence: str) -> None:
    """A text in place of the manifest, or a manifest with other fields."""
    path = made / "manifest.json"
    path.write_text(manifest if isinstance(manifest, str) else json.dumps(json.loads(path.read_text()) | manifest))

    with pytest.raises(AnalysisError, match=sentence) as caught:
        read_run(made)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_directory_that_is_no_run_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="there is no such run directory"):
        read_run(tmp_path / "nothing")
    with pytest.raises(AnalysisError, match="is this a run directory"):
        read_run(tmp_path)


def test_a_topology_that_cannot_be_used_is_one_sentence(made: Path) -> None:
    (made / "topology.yaml").write_text("name: [")

    with pytest.raises(AnalysisError, match=r"topology\.yaml"):
        read_run(made)


def test_a_cut_is_open_until_its_end_struck(made: Path) -> None:
    cut = FAULT | {"kind": "cut", "parameters": {"groups": [["p1/n1"], ["p1/n2"]]}, "until_id": 1}
    heal = FAULT | {"id": 1, "kind": "heal", "targets": [], "parameters": {}, "issued_ns": 50, "effective_ns": 60}
    (made / "faults.jsonl").write_text(json.dumps(cut) + "\n" + json.dumps(heal) + "\n")
    faults = read_run(made).faults

    assert [s.id for s in open_cuts(faults, 55)] == [0]
    assert open_cuts(faults, 60) == []
    assert [s.id for s in open_cuts(faults[:1], 10**9)] == [0]
