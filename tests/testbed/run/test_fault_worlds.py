"""Slow and deaf nodes, wrong clocks, joins and leaves: the same behaviour in every world."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from node.registry import PROTOCOLS
from testbed.console import Console
from testbed.run import perform as run
from testbed.run.perform import Overrides
from testbed.spec import experiment as spec

TEXT = """
name: machine-faults
question: q
topology: one-partition
protocol: {name: reliable}
workload: {kind: periodic, rate: 400 /s, size: 256 B, senders: [p1/n1, p1/n3]}
duration: 2 s
drain: 20 s
faults:
  - {at: 500 ms, for: 1 s, slow: {targets: p1/n2, cpu: 1 %}}
  - {at: 500 ms, for: 1200 ms, deaf: {targets: p1/n2, buffer: 4 KiB}}
  - {at: 600 ms, for: 1 s, clock: {targets: p1/n4, step: 50 ms}}
"""


MEMBERS = """
name: members
question: q
topology: one-partition
protocol: {name: sequencer, parameters: {reliable: {suspect_after: 500 ms}}}
workload: {kind: periodic, rate: 50 /s, size: 64 B}
duration: 8 s
drain: 20 s
absent: p1/n4
faults:
  - {at: 500 ms, join: {targets: p1/n4}}
  - {at: 3 s, for: 1 s, leave: {targets: p1/n3}}
  - {at: 5 s, for: 2 s, cut: {shape: isolate, of: p1/n2}}
  - {at: 7500 ms, leave: {targets: p1/n4}}
"""


def performed(world: str, runs: Path, text: str = TEXT) -> tuple[dict[str, Any], dict[tuple[str, str], Any]]:
    """The manifest, and the lines of faults.jsonl by kind and by the kind that they end."""
    experiment = run.apply_overrides(spec.loads(text, "x.yaml", protocols=PROTOCOLS), Overrides(world=world))
    outcome = run.perform(experiment, Overrides(runs=runs, analyze=False), Console(quiet=True))
    lines = [json.loads(line) for line in (outcome.directory / "faults.jsonl").read_text(encoding="utf-8").splitlines()]
    manifest = json.loads((outcome.directory / "manifest.json").read_text(encoding="utf-8"))
    return manifest, {(line["kind"], line["parameters"].get("what", "")): line for line in lines}


def assert_the_deaf_node_lost_and_all_was_repaired(manifest: dict[str, Any]) -> None:
    overrun = {node["node"]: node["overrun"] for node in manifest["nodes"]}
    assert overrun["p1/n2"] > 20
    assert sum(overrun.values()) == overrun["p1/n2"]
    assert len({node["delivered"] for node in manifest["nodes"]}) == 1


def test_in_the_simulator(tmp_path: Path) -> None:
    manifest, lines = performed("sim", tmp_path)
    assert_the_deaf_node_lost_and_all_was_repaired(manifest)
    assert len(lines) == 6


@pytest.mark.root
@pytest.mark.cgroups
@pytest.mark.uml
def test_on_wires(tmp_path: Path) -> None:
    manifest, lines = performed("netns", tmp_path)
    assert_the_deaf_node_lost_and_all_was_repaired(manifest)
    assert lines["slow", ""]["readback"] == {"p1/n2": {"cpu_ratio": 0.01}}
    assert lines["deaf", ""]["readback"]["p1/n2"]["bytes"] == [4096, 4096, 4096]
    clock, right = lines["clock", ""], lines["recover", "clock"]
    assert clock["issued_ns"] <= clock["effective_ns"] == clock["readback"]["p1/n4"]["at_ns"]
    assert clock["readback"]["p1/n4"]["offset_ns"] == 50_000_000
    assert right["readback"]["p1/n4"]["offset_ns"] == 0


@pytest.mark.parametrize("world", ["sim", pytest.param("netns", marks=[pytest.mark.root, pytest.mark.uml])])
def test_members_come_and_go_in_every_world(tmp_path: Path, world: str) -> None:
    """A member joins later, one leaves and rejoins, one is excluded and its process rejoins, one leaves for good."""
    manifest, lines = performed(world, tmp_path, MEMBERS)
    assert manifest["absent"] == ["p1/n4"]
    ends = {(node["node"], node["incarnation"]): (node["ended"], node.get("left", False)) for node in manifest["nodes"]}
    assert ends == {
        ("p1/n1", 1): (False, False),
        ("p1/n2", 1): (True, False),
        ("p1/n2", 2): (False, False),
        ("p1/n3", 1): (True, True),
        ("p1/n3", 2): (False, False),
        ("p1/n4", 2): (True, True),
    }
    assert {node["exit"] for node in manifest["nodes"]} == {0}
    assert manifest["phases"]["drained_ns"] is not None
    assert lines["leave", ""]["issued_ns"] <= lines["leave", ""]["effective_ns"]
    assert not any("refused" in told for told in lines["leave", ""]["readback"].values())
