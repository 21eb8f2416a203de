"""`orderbed run` on an emulated network: a whole run in each world, and the clean-up after failures."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from analysis.capture.source import inspect
from tests import guard, proof
from tests.testbed.live.testbeds import processes_with
from tests.testbed.orderbed_command import (
    alive,
    assert_good,
    command_line,
    descendants,
    interrupt,
    manifest_of,
    only_run,
    orderbed,
    start,
    wait_for,
    write_experiment,
)
from tests.waiting import in_time

pytestmark = [pytest.mark.root, pytest.mark.uml]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def assert_readable(capture: Path) -> None:
    """Check for whole frames up to the end of the file, or up to the place where it was cut off."""
    assert inspect(capture).frames > 0


@pytest.mark.spark
@pytest.mark.parametrize("world", ["netns", pytest.param("docker", marks=pytest.mark.docker)])
def test_a_whole_run(world: str, runs: Path, tmp_path: Path) -> None:
    expect = "[messages.deliveries == messages.deliveries_expected, sum(conservation.unexplained) == 0]"
    experiment = write_experiment(tmp_path, world=world, expect=expect)
    done = orderbed("run", str(experiment), "--runs", str(runs), "--json")
    run = only_run(runs)
    assert_good(done, run)
    summary = done.json()
    assert summary["properties"]["total_order"]["verdict"] == "pass"
    assert summary["messages"]["deliveries"] == 3 * summary["messages"]["submitted"] > 200
    assert summary["capture"]["kernel_dropped_frames"] == 0
    names = {entry.name for entry in run.iterdir()}
    assert {"experiment.yaml", "topology.yaml", "manifest.json", "faults.jsonl", "capture.pcapng"} <= names
    assert {"summary.json", "report.html", "tables", "nodes", "capture.pcapng.index"} <= names
    manifest = manifest_of(run)
    assert manifest["world"] == world
    assert [node["exit"] for node in manifest["nodes"]] == [0, 0, 0]
    assert len((run / "faults.jsonl").read_text().splitlines()) == 4
    assert processes_with(str(runs)) == []

    again = orderbed("check", str(run), "--json")
    assert (again.code, again.json()["verdict"]) == (done.code, summary["verdict"])
    report = orderbed("report", str(run), "--json")
    assert report.code == 0
    assert Path(report.json()["report"]).stat().st_size > 10_000


def test_a_run_from_another_folder_is_kept_there(tmp_path: Path) -> None:
    write_experiment(tmp_path, duration="1 s", faults="[]")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    done = orderbed("run", "../small.yaml", "--runs", "runs", "--no-analyze", "--kernel", "uml", folder=folder)
    run = only_run(folder / "runs")
    assert manifest_of(run)["status"] == "complete", done.err
    assert_readable(run / "capture.pcapng")


@pytest.mark.spark
def test_a_failed_expectation_is_exit_code_1_unless_the_run_is_invalid(runs: Path, tmp_path: Path) -> None:
    experiment = write_experiment(tmp_path, duration="1 s", faults="[]", expect="[latency.p50_ms <= 0.001]")
    done = orderbed("run", str(experiment), "--runs", str(runs))
    invalid = manifest_of(only_run(runs))["invalid"]
    proof.tell("runs on wires", invalid)
    assert done.code == (3 if invalid else 1), done.err
    assert "latency.p50_ms <= 0.001" in done.out


def test_what_is_asked_is_read_back(runs: Path, tmp_path: Path) -> None:
    experiment = write_experiment(tmp_path, duration="1 s", faults="[]")
    done = orderbed("run", str(experiment), "--runs", str(runs), "--no-analyze", "--name", "here")
    manifest = manifest_of(runs / "small" / "here")
    assert done.code == (3 if manifest["invalid"] else 0), done.err
    assert manifest["asked"]["p1/n1"] == {"to-node": {"delay_ns": 3_000_000}, "from-node": {}}
    assert manifest["readback"]
    second = orderbed("run", str(experiment), "--runs", str(runs), "--no-analyze", "--name", "here")
    assert second.code == 2
    assert "this run directory exists and a run is written once" in second.err


@pytest.mark.parametrize("stage", ["network", "nodes", "load"])
def test_ctrl_c_ends_in_under_3_s_and_keeps_the_run(stage: str, runs: Path, tmp_path: Path) -> None:
    experiment = write_experiment(tmp_path, duration="30 s", faults="[]")
    process = start("run", str(experiment), "--runs", str(runs))
    log = {"network": "network/supervisor.log", "nodes": "nodes/p1.n1.log", "load": "capture.pcapng"}[stage]

    def reached() -> bool:
        found = list(runs.glob(f"small/*/{log}"))
        started = stage != "load" or (bool(found) and manifest_of(only_run(runs))["phases"]["start_ns"] is not None)
        return bool(found) and started

    wait_for(reached, what=stage)
    seconds, done = interrupt(process)
    assert in_time(seconds, 3.0)
    assert done.code == 3
    assert "interrupted; what was recorded is kept in" in done.err
    assert "Traceback" not in done.err
    assert manifest_of(only_run(runs))["status"] == "interrupted"
    wait_for(lambda: processes_with(str(runs)) == [], what="nothing left", within_s=3)
    if stage == "load":
        assert_readable(only_run(runs) / "capture.pcapng")


@pytest.mark.parametrize("victim", ["conductor", "collector", "guest"])
def test_sigkill_of_anything_leaves_nothing(victim: str, runs: Path, tmp_path: Path) -> None:
    experiment = write_experiment(tmp_path, duration="30 s", faults="[]")
    process = start("run", str(experiment), "--runs", str(runs))
    wait_for(lambda: recorded_bytes(runs) > 20_000, what="a capture that grows")
    family = descendants(process.pid)
    assert len(family) >= 6  # supervisor, collector, guest, three nodes
    os.kill(_pid_of(victim, family), signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    if victim == "conductor":
        assert process.returncode == -signal.SIGKILL
        assert manifest_of(only_run(runs))["status"] == "interrupted"
    else:
        assert process.returncode == 3, err
        assert "Traceback" not in err
        assert manifest_of(only_run(runs))["status"] == "failed"
    wait_for(lambda: not any(alive(pid) for pid in family), what="nothing left", within_s=4)
    assert_readable(only_run(runs) / "capture.pcapng")


def recorded_bytes(runs: Path) -> int:
    return sum(path.stat().st_size for path in runs.glob("small/*/capture.pcapng"))


def _pid_of(victim: str, family: list[int]) -> int:
    """Pid of one of this test's own processes."""
    word = {"conductor": "orderbed run", "collector": "-m collector", "guest": "linux.uml"}[victim]
    return next(pid for pid in family if word in command_line(pid))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 80 MiB: enough to start, not enough to finish a saturating run."""
    mount = tmp_path / "disk"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m", os.environ[guard.VARIABLE], str(mount)], check=True)
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_a_disk_that_fills_up_keeps_what_was_recorded(small_disk: Path, tmp_path: Path) -> None:
    experiment = write_experiment(tmp_path, duration="20 s", faults="[]")
    # Opened first: on a busy machine the run itself fills the disk before its recording is noticed.
    with (small_disk / "filler").open("wb", buffering=0) as filler:
        process = start("run", str(experiment), "--runs", str(small_disk))
        try:
            wait_for(lambda: recorded_bytes(small_disk) > 20_000, what="a capture that grows")
            with suppress(OSError):
                while filler.write(b"\0" * 65536):
                    pass
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 3, err
    assert re.search(r"No space left|no space is left|disk is full", err), err
    assert "Traceback" not in err
    assert manifest_of(only_run(small_disk))["status"] == "failed"
    assert_readable(only_run(small_disk) / "capture.pcapng")


def test_without_java_nothing_is_started(runs: Path, tmp_path: Path) -> None:
    experiment = write_experiment(tmp_path, duration="1 s", faults="[]")
    path = os.pathsep.join([str(Path(sys.executable).parent), str(tmp_path)])
    done = orderbed(
        "run", str(experiment), "--runs", str(runs), environment={"PATH": path, "JAVA_HOME": str(tmp_path / "none")}
    )
    assert done.code in (2, 3), done.err
    assert re.search(r"[Jj]ava", done.err)
    assert "Traceback" not in done.err
    assert not runs.exists()
