"""etcd and corosync, as the distribution ships them, in a cluster on the emulated network, in short runs: a cut, and
its analysis from the capture alone.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from analysis.capture import source
from analysis.inputs import read_run
from analysis.traffic import section as traffic
from tests.analysis.traffic.counted import traffic_of
from tests.testbed.orderbed_command import orderbed, wait_for

pytestmark = [pytest.mark.foreign, pytest.mark.root, pytest.mark.uml]

ROOT = Path(__file__).resolve().parents[3]
EXPERIMENTS = ROOT / "experiments"
PAGE = ROOT / "docs" / "foreign.md"


def run_short(
    name: str, tmp_path: Path, cut: dict[str, Any], *, duration: str, spark: SparkSession | None = None
) -> tuple[Path, dict[str, Any]]:
    """The shipped experiment with this cut alone: run directory and section `traffic`. TCP is measured with `spark`."""
    client = (EXPERIMENTS / "etcd-client.py").read_text()
    (tmp_path / "etcd-client.py").write_text(client)
    text = yaml.safe_load((EXPERIMENTS / f"{name}.yaml").read_text())
    text |= {"expect": [], "duration": duration, "faults": [cut]}
    file = tmp_path / f"{name}.yaml"
    file.write_text(yaml.safe_dump(text).replace(" 10.1.0.1 10 ", " 10.1.0.1 0.3 "))
    done = orderbed("run", str(file), "--runs", str(tmp_path / "runs"), "--no-analyze", "--json")
    run_dir = next((tmp_path / "runs" / name).iterdir())
    inputs = read_run(run_dir)
    assert inputs.manifest.status == "complete", done.err
    start_ns = inputs.manifest.phases.start_ns
    assert start_ns is not None
    capture = source.inspect(inputs.capture_path)
    return run_dir, traffic_of(traffic.Measurement(inputs, capture, start_ns=start_ns, spark=spark)).summary


@pytest.mark.spark
def test_etcd_elects_another_leader_when_the_cut_takes_its_own(tmp_path: Path, spark: SparkSession) -> None:
    cut = {"at": "2 s", "for": "4 s", "cut": {"groups": [["p1/n1..n2"], ["p1/n3..n6"]]}}
    run_dir, told = run_short("etcd-cut", tmp_path, cut, duration="7 s", spark=spark)
    fault = told["faults"][0]
    silences = [row for row in told["silences"] if row["port"] == 2380]
    assert silences, fault
    assert min(row["silent_s"] for row in silences) >= 3.5, "nothing passes a cut"
    (majority,) = [row for row in told["sides"] if row["nodes"] == 4 and row["port"] == 2380]
    assert (majority["silent_s"] or 0) < 3.5, "the majority goes on while it lasts"
    assert most_frequent_ends(told, fault["from_s"] - 0.5) == {"p1/n1"}, told["middles"]
    later = most_frequent_ends(told, fault["until_s"] - 0.5) | most_frequent_ends(told, fault["until_s"] - 1.5)
    assert later & {"p1/n3", "p1/n4", "p1/n5"}, told["middles"]
    assert told["tcp"]["segments"] > 500
    assert json.loads((run_dir / "nodes" / "p1.n6.log").read_text().splitlines()[-1])["written"] > 0


def most_frequent_ends(told: dict[str, Any], at_s: float) -> set[str]:
    """Centres of the connections between members at a time, which are the leaders."""
    rows = (row for row in told["middles"] if row["port"] == 2380)
    return {row["node"] for row in rows if row["from_s"] <= at_s < row["until_s"]}


def test_corosync_forms_a_ring_on_each_side_and_one_again_after_the_heal(tmp_path: Path) -> None:
    # Its port answers before its first ring is formed.
    cut = {"at": "4 s", "for": "4 s", "cut": {"groups": [["p1/n1..n2"], ["p1/n3..n5"]]}}
    _, told = run_short("corosync-cut", tmp_path, cut, duration="10 s")
    fault = told["faults"][0]
    assert fault["touched"] >= 2, "the token crosses the cut twice a rotation"
    assert fault["silent_s"] >= 3.9
    assert fault["back"] == fault["silent"], "all are heard again after the heal"
    rings = [row for row in told["sides"] if row["cast"] == "unicast" and row["protocol"] == "udp"]
    assert sorted(row["nodes"] for row in rings) == [2, 3]
    # The loss of a token is noticed after a second; then the ring is formed again.
    assert all(0.5 < row["silent_s"] < 4 for row in rings), rings
    assert all(row["silent_until_s"] < fault["until_s"] + 1 for row in rings), rings


def test_etcd_is_played_with_by_hand(tmp_path: Path) -> None:
    """Run the commands of the page, in their order."""
    block = re.search(r"^## By hand$.*?^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert block is not None
    up, status, cut, down = block[1].splitlines()
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "ORDERBED_RUNS": str(tmp_path / "runs")}

    def perform(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )

    def leader(command: str) -> str:
        """Address of the leader; empty without one."""
        rows = [row.split(", ") for row in perform(command).stdout.splitlines()]
        return next((row[0].partition(":")[0] for row in rows if "true" in row), "")

    ran = perform(up)
    assert ran.returncode == 0, ran.stderr
    try:
        wait_for(lambda: bool(leader(status)), what="a leader")
        first = leader(status)
        ran = perform(cut.replace("p1/n1", f"p1/n{first[-1]}"))
        assert ran.returncode == 0, ran.stderr
        others = re.sub(rf"{re.escape(first)}:2379,|,{re.escape(first)}:2379", "", status)
        wait_for(lambda: leader(others) not in ("", first), what="another leader")
    finally:
        ran = perform(down)
    assert ran.returncode == 0, ran.stderr
