"""The run store writes once, finds runs, and is readable at every moment."""

from __future__ import annotations

import json
import os
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from analysis.errors import AnalysisError
from analysis.files import digest, replace_json
from analysis.run import Run
from testbed.rundir import manifest, store
from topologies.formats.errors import InputError


def test_a_run_directory_is_made_once(tmp_path: Path) -> None:
    made = store.create(tmp_path, "quickstart", 1, name="1-a")
    (made.path / "capture.pcapng").write_bytes(b"precious")
    with pytest.raises(InputError, match="this run directory exists and a run is written once"):
        store.create(tmp_path, "quickstart", 1, name="1-a")
    assert (made.path / "capture.pcapng").read_bytes() == b"precious"


def test_a_directory_that_cannot_be_made_names_the_cause(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made"):
        store.create(tmp_path / "file", "quickstart", 1)


@pytest.mark.parametrize("name", ["", ".", "..", "../elsewhere", "a/b", "/elsewhere", "a\nb", "\x1b[2J", "\udcff"])
def test_a_name_is_that_of_one_directory(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a run's name is that of one directory"):
        store.create(tmp_path, "quickstart", 1, name=name)


def test_a_revision_is_marked_when_files_differ_but_not_for_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "ROOT", tmp_path)
    assert manifest.git_revision() is None
    for name in ("docs", "node"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("as committed")
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    clean = manifest.git_revision()
    assert clean
    (tmp_path / "docs" / "file").write_text("a record")
    assert manifest.git_revision() == clean
    (tmp_path / "node" / "file").write_text("another program")
    assert manifest.git_revision() == f"{clean}-dirty"


def test_the_default_name_is_seed_and_stamp(tmp_path: Path) -> None:
    made = store.create(tmp_path, "quickstart", 7)
    assert made.run_id.startswith("quickstart/7-20")
    assert made.path == tmp_path / made.run_id
    assert store.stamp(datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC)) == "20260131T235959Z"


def test_find_takes_a_path_a_name_an_experiment_or_nothing(tmp_path: Path) -> None:
    older = store.create(tmp_path, "quickstart", 1, name="1-a")
    newer = store.create(tmp_path, "quickstart", 1, name="1-b")
    other = store.create(tmp_path, "wan", 1, name="1-a")
    assert len({older.group, newer.group, other.group}) == 3, "of each run its own"
    for age, run in enumerate((other, newer, older)):
        run.manifest = {"format": store.MANIFEST_FORMAT}
        run.save()
        os.utime(run.path / "manifest.json", (1_000_000 - age, 1_000_000 - age))
    asked = (str(older.path), "quickstart/1-a", "quickstart", None)
    assert [store.find(tmp_path, name) for name in asked] == [older.path, older.path, newer.path, other.path]


@pytest.mark.parametrize("target", ["manifest.json", "nowhere", "x" * 300, "/dev/zero", ".", None])
def test_what_is_no_manifest_hides_no_run(tmp_path: Path, target: str | None) -> None:
    """As in a hostile archive. None: a pipe."""
    run = store.create(tmp_path, "quickstart", 1, name="1-a")
    run.save()
    (tmp_path / "quickstart" / "2-b").mkdir()
    odd = tmp_path / "quickstart" / "2-b" / "manifest.json"
    os.mkfifo(odd) if target is None else odd.symlink_to(target)
    (tmp_path / ("y" * 200)).symlink_to("x" * 300)
    assert store.newest(tmp_path, 10) == [run.path]
    assert store.find(tmp_path, "quickstart") == run.path
    with pytest.raises(InputError, match="no such run"):
        store.find(tmp_path, str(odd.parent))


def test_the_record_of_a_testbed_is_no_run(tmp_path: Path) -> None:
    run = store.create(tmp_path, "quickstart", 1, name="1-a")
    record = store.create(tmp_path, store.UP, 0, name="lab-1")
    for made, written in ((run, {"format": 1}), (record, {"format": 1, "kind": store.UP})):
        made.manifest = written
        made.save()
    os.utime(run.path / "manifest.json", (1_000_000, 1_000_000))
    assert store.find(tmp_path, None) == run.path
    for name in ("up", "up/lab-1", str(record.path)):
        with pytest.raises(InputError, match="the record of a testbed, not the run of an experiment"):
            store.find(tmp_path, name)


def test_find_says_what_a_run_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run yet"):
        store.find(tmp_path, None)
    for name in ("nothing", "n" * 5000, ""):
        with pytest.raises(InputError, match="no such run"):
            store.find(tmp_path, name)


def test_faults_are_appended_line_by_line(tmp_path: Path) -> None:
    run = store.create(tmp_path, "quickstart", 1)
    faults = [{"id": 0, "kind": "cut"}, {"id": 1, "path": os.fsdecode(b"no utf-8: capture-\xff.pcapng")}]
    for fault in faults:
        run.append_fault(fault)
    lines = (run.path / "faults.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == faults
    run.close()
    assert store.read_manifest(run.path)["faults"] == 2


@pytest.mark.parametrize("change", [{"run": "quickstart/2"}, {"manifest": "0123456789abcdef"}])
def test_the_summary_of_another_run_is_refused_with_the_remedy(tmp_path: Path, change: dict[str, str]) -> None:
    run = store.create(tmp_path, "quickstart", 1)
    run.note({"run": run.run_id})
    summary = {"run": run.run_id, "manifest": digest(run.path / "manifest.json"), "verdict": "pass"}
    replace_json(run.path / "summary.json", summary)
    assert store.read_summary(run.path) == summary
    replace_json(run.path / "summary.json", summary | change)
    with pytest.raises(InputError, match="not made of the manifest beside it; make it again with `orderbed analyze"):
        store.read_summary(run.path)
    with pytest.raises(AnalysisError, match="not made of the manifest beside it; make it again with: orderbed analyze"):
        _ = Run(run.path).summary
    replace_json(run.path / "summary.json", summary)
    assert Run(run.path).summary == summary
    run.note({"seed": 2})
    with pytest.raises(InputError, match="not made of the manifest beside it"):
        store.read_summary(run.path)
    with pytest.raises(AnalysisError, match="not made of the manifest beside it"):
        _ = Run(run.path).summary


def test_clock_pair_is_taken_together() -> None:
    before = time.time_ns() - time.monotonic_ns()
    pair = store.clock_pair()
    assert abs(pair["realtime_ns"] - pair["monotonic_ns"] - before) < 5_000_000


def test_a_full_disk_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="MiB are free and this run may need"):
        store.require_space(tmp_path / "not" / "yet", 2**62)
    store.require_space(tmp_path, 1)
