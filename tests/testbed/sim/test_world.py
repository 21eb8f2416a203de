"""`orderbed run --world sim`: the same run directory, byte-equal for a seed, without privileges or a kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analysis.capture.source import inspect
from netem.errors import FabricError
from node.core import Core
from node.registry import PROTOCOLS
from testbed.console import Console
from testbed.run.perform import Overrides, run_experiment
from testbed.sim.capture import EPOCH_NS
from testbed.sim.simulation import START_NS
from testbed.spec import experiment as spec
from tests import guard
from tests.testbed.orderbed_command import (
    POWERLESS,
    assert_good,
    interrupt,
    manifest_of,
    only_run,
    orderbed,
    start,
    wait_for,
    write_experiment,
)
from tests.waiting import in_time

FAULTS = """
  - {at: 200 ms, for: 300 ms, impair: {targets: [p1/n2], loss: 20 %, corrupt: 5 %}}
  - {at: 600 ms, for: 300 ms, crash: {targets: [p1/n3]}}
  - {at: 1 s, for: 300 ms, cut: {groups: [[p1/n1], [p1/n2, p1/n3]]}}
  - {at: 1400 ms, for: 300 ms, pause: {targets: [p1/n2]}}
"""


def small(folder: Path, *, name: str = "a", seed: int | None = None) -> Path:
    """A run of the small experiment in the simulated world, not analysed."""
    path = write_experiment(folder, world="sim", duration="2 s", faults=FAULTS)
    return run_experiment(
        str(path), Overrides(runs=folder / "runs", name=name, seed=seed, analyze=False), Console(quiet=True)
    ).directory


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(tmp_path_factory.mktemp("world"))


def lines(run_directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_directory / "faults.jsonl").read_text().splitlines()]


def test_the_run_directory_is_that_of_real_wires(found: Path) -> None:
    assert {entry.name for entry in found.iterdir()} == {
        "experiment.yaml", "topology.yaml", "manifest.json", "faults.jsonl", "nodes",
        "capture.pcapng", "capture.pcapng.index",
    }  # fmt: skip
    assert list((found / "nodes").iterdir()) == []
    manifest = manifest_of(found)
    assert (manifest["status"], manifest["world"], manifest["invalid"]) == ("complete", "sim", [])
    assert manifest["kernel"] == {"picked": "none", "why": "the simulated world has no kernel", "probes": []}
    assert manifest["clock"] == {"monotonic_ns": 0, "realtime_ns": EPOCH_NS}
    assert manifest["faults"] == len(lines(found)) > 0
    assert manifest["health"]["cpu_busy_ratio"] is None
    phases = manifest["phases"]
    assert phases["start_ns"] == START_NS
    assert phases["load_end_ns"] == START_NS + 2 * 10**9
    assert phases["load_end_ns"] <= phases["drained_ns"] <= phases["end_ns"]
    assert spec.load(found / "experiment.yaml", protocols=PROTOCOLS).name == "small"


def test_faults_strike_at_their_time_and_take_none(found: Path) -> None:
    struck = lines(found)
    kinds = ["impair", "impair", "crash", "restart", "cut", "heal", "pause", "resume"]
    assert [line["kind"] for line in struck] == kinds
    assert [line["id"] for line in struck] == list(range(8))
    assert all(line["issued_ns"] == line["effective_ns"] == START_NS + line["asked_ns"] for line in struck)


def test_the_capture_holds_what_the_manifest_says(found: Path) -> None:
    manifest, capture = manifest_of(found), inspect(found / "capture.pcapng")
    assert capture.problem == ""
    assert capture.frames == manifest["capture"]["frames"] > 1000
    assert capture.metadata == {
        "clock": manifest["clock"], "experiment": "small", "seed": 5, "group": manifest["group"], "world": "sim",
    }  # fmt: skip
    assert capture.interface_names == ("p1/n1", "p1/n2", "p1/n3")
    assert not manifest["capture"]["kernel_dropped_frames"]


def test_every_incarnation_is_in_the_manifest(found: Path) -> None:
    nodes = manifest_of(found)["nodes"]
    assert [(node["node"], node["incarnation"], node["exit"], node["crashed"]) for node in nodes] == [
        ("p1/n1", 1, 0, False), ("p1/n2", 1, 0, False), ("p1/n3", 1, -9, True), ("p1/n3", 2, 0, False),
    ]  # fmt: skip
    assert all(node["drained"] for node in nodes if not node["crashed"])
    assert all(node["handled"] > 0 and node["core_ns"] > 0 and node["delivered"] > 0 for node in nodes)


def test_counters_account_for_losses_of_every_kind(found: Path) -> None:
    manifest = manifest_of(found)
    by_port = {(entry["node"], entry["direction"]): entry for entry in manifest["counters"]}
    assert len(by_port) == 6
    assert by_port["p1/n2", "to-node"]["delay_line_dropped_frames"] > 0
    assert by_port["p1/n2", "to-node"]["cut_dropped_frames"] > 0
    assert by_port["p1/n2", "from-node"]["delay_line_dropped_frames"] == 0
    assert manifest["infrastructure_drops"] == {}


BYTES = ("capture.pcapng", "capture.pcapng.index", "faults.jsonl")


def test_names_and_places_of_runs_leave_no_trace_in_them_but_another_seed_does(found: Path, tmp_path: Path) -> None:
    again, other = small(tmp_path, name="another"), small(tmp_path, name="seed", seed=6)
    assert [(again / name).read_bytes() == (found / name).read_bytes() for name in BYTES] == [True] * 3
    assert (other / "capture.pcapng").read_bytes() != (found / "capture.pcapng").read_bytes()
    assert manifest_of(other)["seed"] == 6


RUN_ALL = """
import sys
from pathlib import Path
from testbed.console import Console
from testbed.run.perform import Overrides, run_experiment
runs, *files = map(Path, sys.argv[1:])
for file in files:
    run_experiment(str(file), Overrides(runs=runs, name=file.stem, analyze=False), Console(quiet=True))
"""


@pytest.fixture(scope="module")
def under_hash_seeds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Runs of all protocols under two hash seeds, each in a process of its own."""
    folder = tmp_path_factory.mktemp("hash-seeds")
    faults = FAULTS[: FAULTS.index("  - {at: 1 s")]
    text = write_experiment(folder, world="sim", duration="1 s", faults=faults).read_text()
    for name, entry in PROTOCOLS.items():
        mine = text.replace("name: sequencer", f"name: {name}")
        if not entry.takes_submissions:
            mine = mine.replace("kind: poisson, rate: 40 /s, size: 128 B", "kind: silent")
        if "crash" not in entry.tolerates:
            mine = "\n".join(line for line in mine.splitlines() if "crash" not in line)
        (folder / f"{name}.yaml").write_text(mine)
    files = [str(folder / f"{name}.yaml") for name in PROTOCOLS]
    for hash_seed in ("0", "4711"):
        argv = [sys.executable, "-c", RUN_ALL, str(folder / hash_seed), *files]
        subprocess.run(argv, env=os.environ | {"PYTHONHASHSEED": hash_seed}, check=True)
    return folder / "0" / "small", folder / "4711" / "small"


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_the_same_seed_gives_the_same_bytes_under_any_hash_seed(
    protocol: str, under_hash_seeds: tuple[Path, Path]
) -> None:
    one, other = under_hash_seeds
    for name in BYTES:
        assert (one / protocol / name).read_bytes() == (other / protocol / name).read_bytes(), name


def test_it_needs_no_rights_and_touches_no_kernel(tmp_path: Path) -> None:
    """It works without capabilities, imports none of netem but its values and the agent's constants, and opens no
    socket."""
    path = write_experiment(tmp_path, world="sim", duration="1 s", faults="[]")
    program = f"""
import sys
opened = []
sys.addaudithook(lambda event, _: opened.append(event) if event.startswith("socket.") else None)
from pathlib import Path
from testbed.run.perform import Overrides, run_experiment
from testbed.console import Console
overrides = Overrides(runs=Path({str(tmp_path / "runs")!r}), analyze=False)
run_experiment({str(path)!r}, overrides, Console(quiet=True))
loaded = [name for name in sys.modules if name.split(".")[0] in ("netem", "pyroute2", "docker")]
values = (
    "", ".errors", ".owner", ".kernel", ".kernel.agent", ".wiring", ".wiring.steps", ".runtimes", ".runtimes.base",
    ".runtimes.cgroups",
)
assert set(loaded) <= {{f"netem{{name}}" for name in values}}, loaded
assert not opened, opened
capabilities = [line for line in open("/proc/self/status") if line.startswith("CapEff")]
assert int(capabilities[0].split()[1], 16) == 0, capabilities
"""
    argv = [*POWERLESS, sys.executable, "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert manifest_of(only_run(tmp_path / "runs"))["status"] == "complete"


def test_ctrl_c_keeps_a_whole_capture_and_the_faults_that_struck(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, world="sim", duration="50 min", faults=FAULTS)
    runs = tmp_path / "runs"
    process = start("run", str(path), "--runs", str(runs))
    wait_for(lambda: any(file.stat().st_size > 2**20 for file in runs.glob("small/*/capture.pcapng")), what="frames")
    seconds, done = interrupt(process)
    assert in_time(seconds, 3.0)
    assert done.code == 3
    assert "interrupted; what was recorded is kept in" in done.err
    assert "Traceback" not in done.err
    found = only_run(runs)
    manifest = manifest_of(found)
    assert manifest["status"] == "interrupted"
    assert manifest["phases"]["start_ns"] == START_NS
    assert manifest["phases"]["load_end_ns"] is None
    capture = inspect(found / "capture.pcapng")
    assert (capture.problem, capture.frames) == ("", manifest["capture"]["frames"])
    assert len(lines(found)) == 8


def test_a_core_that_fails_ends_the_run_with_a_sentence_and_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> Core:
        raise AssertionError("phase idle cannot follow itself")

    monkeypatch.setattr(type(PROTOCOLS["sequencer"]), "build", fails)
    with pytest.raises(FabricError, match=r"ended by itself .*phase idle cannot follow itself"):
        small(tmp_path)
    found = only_run(tmp_path / "runs")
    assert manifest_of(found)["status"] == "failed"
    assert "Traceback" in (found / "nodes" / "simulation.log").read_text()


@pytest.mark.root
def test_a_disk_that_is_full_ends_the_run_and_keeps_it(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, world="sim", duration="4 s", faults="[]")
    path.write_text(path.read_text().replace("kind: poisson, rate: 40 /s, size: 128 B", "kind: saturating, size: 1 kB"))
    runs = tmp_path / "small-disk"
    runs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m", os.environ[guard.VARIABLE], str(runs)], check=True)
    try:
        done = orderbed("run", str(path), "--no-analyze", "--runs", str(runs))
        found = only_run(runs)
        assert done.code == 3, done.err
        assert "free some space and run again" in done.err
        assert manifest_of(found)["status"] == "failed"
        assert inspect(found / "capture.pcapng").frames == manifest_of(found)["capture"]["frames"] > 1000
    finally:
        subprocess.run(["umount", str(runs)], check=True)


@pytest.mark.spark
def test_the_quickstart_in_the_simulated_world(tmp_path: Path) -> None:
    done = orderbed("run", "quickstart", "--world", "sim", "--runs", str(tmp_path / "runs"), "--json")
    found = only_run(tmp_path / "runs")
    assert_good(done, found)
    summary = done.json()
    assert summary["verdict"] == "pass"
    assert all(entry["unexplained"] == 0 for entry in summary["conservation"])
    assert sum(entry["dropped_queue"] for entry in summary["conservation"]) > 0
    assert (summary["accuracy"]["fail"], summary["capture"]["trace_gaps"]) == (0, 0)
    assert (found / "report.html").stat().st_size > 10_000
    compared = orderbed("check", str(found), "--independent", "--json")
    assert (compared.code, compared.json()["agrees"]) == (0, True), compared.out
    assert compared.json()["properties"].keys() == summary["properties"].keys()


@pytest.mark.spark
def test_a_sweep_shares_one_spark_session_and_claims_can_be_run(tmp_path: Path) -> None:
    """In a process of its own, because a process can have only one Spark session at a time."""
    path = write_experiment(tmp_path, duration="1 s", faults="[]")
    path.write_text(path.read_text() + "sweep: {seed: [1, 2]}\n")
    program = f"""
from pathlib import Path
from analysis.engine import session
opened = []
open_session = session.open_session
def counted(**words):
    opened.append(words)
    return open_session(**words)
session.open_session = counted
from testbed.run.claims import Selection, run_claims
from testbed.console import Console
from testbed.run.perform import Overrides
from testbed.run.sweep import run_sweep
overrides = Overrides(world="sim", runs=Path({str(tmp_path / "runs")!r}))
points = run_sweep({str(path)!r}, Console(quiet=True), lambda point: None, overrides=overrides)
assert [point.variant["seed"] for point in points] == [1, 2]
assert [point.verdict for point in points] == ["pass", "pass"]
assert len(opened) == 1, opened
(row,) = run_claims(Selection(experiment="sequencer-steps"), Console(quiet=True), overrides=overrides)
assert (row.world, row.verdict) == ("sim", "pass"), row
"""
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
