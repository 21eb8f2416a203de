"""etcd and corosync, as the distribution ships them, in a cluster on the emulated network, short: a cut, and what the
capture alone says of it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from analysis.summary import analyze
from tests.testbed.orderbed_command import orderbed

pytestmark = [pytest.mark.foreign, pytest.mark.root, pytest.mark.uml, pytest.mark.spark]

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


def run_short(name: str, tmp_path: Path, spark: SparkSession, **changes: Any) -> tuple[Path, dict[str, Any]]:
    """The shipped experiment with these keys changed, without its expectations: its run directory and `traffic`."""
    shutil.copy(EXPERIMENTS / "etcd-client.py", tmp_path)
    text = yaml.safe_load((EXPERIMENTS / f"{name}.yaml").read_text()) | {"expect": []} | changes
    file = tmp_path / f"{name}.yaml"
    file.write_text(yaml.safe_dump(text))
    done = orderbed("run", str(file), "--world", "netns", "--runs", str(tmp_path / "runs"), "--no-analyze", "--json")
    run_dir = next((tmp_path / "runs" / name).iterdir())
    manifest = json.loads((run_dir / "manifest.json").read_text())
    assert manifest["status"] == "complete", done.err
    return run_dir, analyze(run_dir, spark=spark, on_progress=lambda _: None)["traffic"]


def test_etcd_elects_another_leader_when_the_cut_takes_its_own(tmp_path: Path, spark: SparkSession) -> None:
    cut = {"at": "3 s", "for": "5 s", "cut": {"groups": [["p1/n1..n2"], ["p1/n3..n6"]]}}
    run_dir, traffic = run_short("etcd-cut", tmp_path, spark, duration="9 s", faults=[cut])
    fault = traffic["faults"][0]
    silences = [row for row in traffic["silences"] if row["port"] == 2380]
    assert silences, fault
    assert min(row["silent_s"] for row in silences) >= 4.5, "nothing passes a cut"
    majority = [row for row in traffic["sides"] if row["nodes"] == 4 and row["port"] == 2380]
    assert majority, traffic["sides"]
    assert majority[0]["silent_s"] is None or majority[0]["silent_s"] < 5, "the majority goes on while it lasts"
    assert traffic["tcp"]["segments"] > 500
    assert json.loads((run_dir / "nodes" / "p1.n6.log").read_text().splitlines()[-1])["written"] > 0


def test_corosync_forms_a_ring_on_each_side_and_one_again_after_the_heal(tmp_path: Path, spark: SparkSession) -> None:
    cut = {"at": "2 s", "for": "4 s", "cut": {"groups": [["p1/n1..n2"], ["p1/n3..n5"]]}}
    _, traffic = run_short("corosync-cut", tmp_path, spark, duration="9 s", faults=[cut])
    fault = traffic["faults"][0]
    assert fault["touched"] >= 2, "the token crosses the cut twice a rotation"
    assert fault["silent_s"] >= 3.9
    assert fault["back"] == fault["silent"], "all are heard again after the heal"
    rings = [row for row in traffic["sides"] if row["cast"] == "unicast" and row["protocol"] == "udp"]
    assert sorted(row["nodes"] for row in rings) == [2, 3]
    # A token that is lost is missed for a second; then the ring is formed anew.
    assert all(0.5 < row["silent_s"] < 4 for row in rings), rings
    assert all(row["silent_until_s"] < fault["until_s"] + 1 for row in rings), rings
