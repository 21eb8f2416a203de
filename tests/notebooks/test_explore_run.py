"""The notebook is executed as a notebook, on a small run, and its figures are checked."""

from __future__ import annotations

import ast
from pathlib import Path

import nbclient
import pytest

from tests import report_runs
from tests.notebooks.executed import NOTEBOOKS, assert_figures, execute, printed


@pytest.fixture(autouse=True)
def no_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORDERBED_RUN", raising=False)
    monkeypatch.delenv("ORDERBED_RUNS", raising=False)


def test_it_draws_the_run_that_the_environment_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERBED_RUN", str(report_runs.three_partitions(tmp_path / "elsewhere" / "run")))
    notebook = execute("explore_run", tmp_path)
    assert_figures(notebook, 3)
    assert "three-partitions/1-20260101T120000Z · sequencer · complete" in printed(notebook)
    assert "verdict: fail total_order: 3 violations" in printed(notebook)


def test_without_a_name_it_takes_the_newest_run(tmp_path: Path) -> None:
    report_runs.quickstart(tmp_path / "runs" / "quickstart" / "1-20260101T120000Z")
    notebook = execute("explore_run", tmp_path)
    assert "quickstart/1-20260101T120000Z" in printed(notebook)
    assert_figures(notebook, 3)


def test_without_a_run_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="make one with `orderbed run quickstart`"):
        execute("explore_run", tmp_path)


@pytest.mark.parametrize("name", ["explore_run", "live_testbed"])
def test_a_notebook_defines_nothing_of_its_own(name: str) -> None:
    """The logic is in `analysis`, where it is tested."""
    tree = ast.parse((NOTEBOOKS / f"{name}.py").read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    assert not [node for node in ast.walk(tree) if isinstance(node, kinds)]
