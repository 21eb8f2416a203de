"""Traffic met by each fault, from a table of frames made by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.inputs import read_run
from analysis.network import fault_overlap
from analysis.network.addresses import ip_number, mac_number
from tests.topologies.shapes import ring
from topologies import dump
from topologies.model import MULTICAST_GROUP

SECOND = 10**9
START_NS = 100 * SECOND
TOPOLOGY = ring(3, 2)
NODES = {str(node.name): node for node in TOPOLOGY.nodes()}
GROUP_MAC = 0x01005E4D0001
TRACE_MAC = 0x0180C200000E


def line(number: int, kind: str, at_s: float, until: int | None = None, late_s: float = 0.0, **more: Any) -> Any:
    effective_ns = START_NS + round((at_s + late_s) * SECOND)
    return {
        "id": number, "kind": kind, "targets": [], "parameters": {}, "asked_ns": round(at_s * SECOND),
        "until_id": until, "issued_ns": effective_ns, "effective_ns": effective_ns, "readback": {}, **more,
    }  # fmt: skip


def frame(at_s: float, sender: str, receiver: str | None = None, direction: str = "from-node") -> dict[str, Any]:
    to = None if receiver is None else NODES[receiver]
    return {
        "time_ns": START_NS + round(at_s * SECOND),
        "node_index": NODES[sender].index,
        "direction": direction,
        "eth_dst": GROUP_MAC if to is None else mac_number(to.mac),
        "ip_dst": ip_number(MULTICAST_GROUP if to is None else to.ip),
    }


def judged(
    tmp_path: Path, faults: Sequence[Mapping[str, Any]], frames: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    (tmp_path / "topology.yaml").write_text(dump.dumps(TOPOLOGY), encoding="utf-8")
    manifest = {"format": 1, "run": "r", "status": "complete", "group": 1}
    manifest |= {"phases": {"start_ns": START_NS, "end_ns": START_NS + 10 * SECOND}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (tmp_path / "faults.jsonl").write_text("".join(json.dumps(one) + "\n" for one in faults), encoding="utf-8")
    (tmp_path / "frames").mkdir()
    kinds = {name: pa.string() if name == "direction" else pa.int64() for name in frame(0, "p1/n1")}
    pq.write_table(pa.Table.from_pylist(list(frames), pa.schema(kinds)), tmp_path / "frames" / "part.parquet")
    inputs = read_run(tmp_path)
    assert not inputs.unread_faults
    return fault_overlap.section(inputs, tmp_path / "frames")


CUT = {"groups": [["p1/n1"], ["p1/n2", "p2/n1"]]}


@pytest.mark.parametrize(
    ("kind", "target", "end", "fields", "met"),
    [
        ("cut", "p1/n1", "heal", {"parameters": CUT}, 5),
        ("cut", "p1/n1", "heal", {"parameters": {"pairs": [["p2/n2", "p1/n1"]]}}, 0),
        ("cut", "p1--p2", "heal", {"parameters": {"links": ["p1--p2"]}}, 3),
        ("cut", "p2--p3", "heal", {"parameters": {"links": ["p2--p3"]}}, 0),
        ("impair", "p1/n2", "recover", {"direction": "to-node", "asked": {"p1/n2": {}}}, 3),
        ("impair", "p1/n2", "recover", {"direction": "from-node", "asked": {"p1/n2": {}}}, 0),
        ("impair", "p1--p2", "recover", {"direction": "there", "asked": {"p1--p2": {}}}, 2),
        ("impair", "p1--p2", "recover", {"direction": "back", "asked": {"p1--p2": {}}}, 1),
        ("crash", "p3/n1", "restart", {}, 1),
        ("pause", "p1/n1", "resume", {}, 1),
        ("slow", "p1/n2", "recover", {"parameters": {"cpu_ratio": 0.1}}, 3),
        ("deaf", "p2/n2", "recover", {"parameters": {"buffer_bytes": 4096}}, 1),
        ("clock", "p1/n1", "recover", {"parameters": {"step_ns": 5}}, 5),
    ],
)
def test_frames_over_what_a_fault_acts_on_are_counted(
    tmp_path: Path, kind: str, target: str, end: str, fields: dict[str, Any], met: int
) -> None:
    """In force from 2 s to 4 s, with two frames from p1/n1 to p1/n2, one to all, one to p2/n1, one back."""
    sent = [
        *(frame(3, "p1/n1", "p1/n2"), frame(3.5, "p1/n1", "p1/n2"), frame(3, "p1/n1")),
        *(frame(2.5, "p1/n1", "p2/n1"), frame(3.9, "p2/n1", "p1/n1")),
        *(frame(1.9, "p1/n1"), frame(4.1, "p1/n1"), frame(3, "p1/n2", direction="to-node")),
        frame(3, "p1/n1") | {"eth_dst": TRACE_MAC},
    ]
    (entry,) = judged(tmp_path, [line(0, kind, 2, 1, targets=[target], **fields), line(1, end, 4)], sent)
    assert entry["frames"] == met
    assert ("met no traffic" in entry["warning"]) == (met == 0)


def test_a_fault_without_an_end_is_in_force_to_the_end_of_the_run(tmp_path: Path) -> None:
    (entry,) = judged(
        tmp_path, [line(0, "slow", 2, targets=["p1/n2"], late_s=0.5)], [frame(2.2, "p1/n1"), frame(9, "p1/n1")]
    )
    assert (entry["frames"], entry["effective_s"], entry["lag_ms"], entry["until_s"]) == (1, 2.5, 500.0, None)


def test_one_that_met_nothing_is_told_in_a_sentence(tmp_path: Path) -> None:
    faults = [
        line(0, "cut", 4, 1, targets=["p1/n1"], parameters={"groups": [["p1/n1"], ["p1/n2"]]}),
        line(1, "heal", 6),
    ]
    entries = judged(tmp_path, faults, [frame(3, "p1/n1")])
    assert fault_overlap.warnings(entries) == ["fault 0 (cut p1/n1 | p1/n2, 4 s to 6 s) met no traffic"]


def test_one_that_was_over_before_it_took_effect_is_told(tmp_path: Path) -> None:
    faults = [line(0, "pause", 4, 1, late_s=0.05, targets=["p1/n2"]), line(1, "resume", 4.01, late_s=0.06)]
    entries = judged(tmp_path, faults, [frame(4.06, "p1/n1")])
    assert fault_overlap.warnings(entries) == [
        "fault 0 (pause p1/n2, 4 s to 4.01 s) was to be over before it took effect, 50 ms late: give it more time"
    ]


def test_without_a_capture_nobody_knows(tmp_path: Path) -> None:
    judged(tmp_path, [line(0, "crash", 1, targets=["p1/n1"])], [])
    (entry,) = fault_overlap.section(read_run(tmp_path), None)
    assert (entry["frames"], entry["warning"]) == (None, "")


def test_many_warnings_are_counted_not_listed(tmp_path: Path) -> None:
    faults = [line(number, "pause", 1, targets=["p1/n1"]) for number in range(fault_overlap.MAX_WARNED + 5)]
    warned = fault_overlap.warnings(judged(tmp_path, faults, []))
    assert len(warned) == fault_overlap.MAX_WARNED + 1
    assert warned[-1] == "5 more faults met no traffic or were over too early"


def around(tmp_path: Path, faults: Sequence[Mapping[str, Any]], *, load_s: float | None = 9) -> dict[int, list[float]]:
    """Span around each fault, by fault number, in seconds after the start of the load."""
    judged(tmp_path, faults, [])
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["phases"]["load_end_ns"] = None if load_s is None else START_NS + round(load_s * SECOND)
    path.write_text(json.dumps(manifest), encoding="utf-8")
    found = fault_overlap.around(read_run(tmp_path))
    return {number: [(at_ns - START_NS) / SECOND for at_ns in span] for number, span in found.items()}


def test_a_fault_lies_between_the_changes_beside_it(tmp_path: Path) -> None:
    faults = [
        line(0, "crash", 2, 2, targets=["p1/n1"]),
        line(1, "slow", 3, targets=["p1/n2"]),
        line(2, "restart", 5, late_s=0.25),
        line(3, "join", 7, targets=["p1/n2"]),
    ]
    assert around(tmp_path, faults) == {0: [0, 2, 5.25, 7], 1: [2, 3, 9, 9]}


def test_faults_of_one_instant_are_one_change_however_long_they_take(tmp_path: Path) -> None:
    faults = [
        line(0, "slow", 2, 2, late_s=0.01, targets=["p1/n1"]),
        line(1, "slow", 2, 3, late_s=0.02, targets=["p1/n2"]),
        *(line(2, "recover", 4, late_s=0.01), line(3, "recover", 4, late_s=0.02)),
    ]
    assert around(tmp_path, faults) == {0: [0, 2.01, 4.01, 9], 1: [0, 2.02, 4.02, 9]}


def test_without_an_end_of_the_load_there_is_no_time_after_a_fault(tmp_path: Path) -> None:
    assert around(tmp_path, [line(0, "crash", 2, targets=["p1/n1"])], load_s=None) == {}


def test_what_only_ends_a_fault_is_no_entry(tmp_path: Path) -> None:
    ports: dict[str, Any] = {"targets": ["p1/n2"], "direction": "to-node"}
    faults = [
        line(0, "impair", 2, 1, **ports, asked={"p1/n2": {"loss_ratio": 0.5}}),
        line(1, "impair", 4, **ports, asked={"p1/n2": {}}, restores=True),
        line(2, "pause", 5, 3, targets=["p1/n1"]),
        line(3, "resume", 6),
    ]
    entries = judged(tmp_path, faults, [frame(3, "p1/n1")])
    assert [(entry["id"], entry["until_s"], entry["frames"]) for entry in entries] == [(0, 4, 1), (2, 6, 0)]
    assert fault_overlap.warnings(entries) == ["fault 1 (pause p1/n1, 5 s to 6 s) met no traffic"]
