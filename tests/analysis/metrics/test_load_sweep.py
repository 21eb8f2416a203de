"""A sweep as a table: one row per run, columns by expression."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.errors import AnalysisError
from analysis.run import Sweep


def write_run(folder: Path, name: str, summary: dict[str, Any]) -> str:
    directory = folder / name
    directory.mkdir(parents=True)
    (directory / "manifest.json").write_text("{}")
    (directory / "summary.json").write_text(json.dumps(summary))
    return str(directory)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "figure"
    points = [
        {
            "variant": {"workload.rate": f"{n} /s"},
            "given": {"members": n},
            "verdict": "pass",
            "directory": write_run(folder, f"1-x-{n}", {"latency": {"p50_ms": 2.5 * n, "jitter_ms": None}}),
        }
        for n in (2, 4)
    ]
    (folder / "sweep-20260101T000000Z.json").write_text("[]")
    (folder / "sweep-20260101T000001Z.json").write_text(json.dumps(points))
    return tmp_path / "runs"


def test_columns_are_expressions_over_summary_variant_and_given(runs: Path) -> None:
    frame = Sweep.newest("figure", runs).frame(
        n="given.members", half="latency.p50_ms / 2", rate="variant['workload.rate']", missing="latency.jitter_ms * 2"
    )
    assert list(frame["n"]) == [2, 4]
    assert list(frame["half"]) == [2.5, 5.0]
    assert list(frame["rate"]) == ["2 /s", "4 /s"]
    assert frame["missing"].isna().all()


def test_a_sweep_that_was_moved_finds_its_runs_beside_it(runs: Path, tmp_path: Path) -> None:
    moved = (runs / "figure").rename(tmp_path / "elsewhere")
    assert list(Sweep(moved / "sweep-20260101T000001Z.json").frame(n="given.members")["n"]) == [2, 4]


def test_a_sweep_refuses_the_summary_of_another_run(runs: Path) -> None:
    (runs / "figure" / "1-x-4" / "summary.json").write_text('{"run": "figure/other", "verdict": "pass"}')
    with pytest.raises(AnalysisError, match="not made of the manifest beside it"):
        Sweep.newest("figure", runs).frame(verdict="verdict")


def test_what_is_not_there_or_no_sweep_is_one_sentence(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="there is no sweep of other yet; make one with: orderbed sweep other"):
        Sweep.newest("other", runs)
    with pytest.raises(AnalysisError, match="is no expression"):
        Sweep.newest("figure", runs).frame(n="given.")
    damaged = tmp_path / "sweep-1.json"
    damaged.write_text("{}")
    with pytest.raises(AnalysisError, match="is not the list of a sweep's points"):
        Sweep(damaged)
