"""The notebook is executed as a notebook, on a small run, and its figures are checked."""

from __future__ import annotations

import ast
import base64
import io
from pathlib import Path
from typing import Any

import jupytext
import nbclient
import numpy as np
import pytest
from PIL import Image

from tests import report_runs

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "explore_run.py"

FIGURES = ("Latency over time", "Dummy and control rate over time", "Latency by member")


def execute(folder: Path) -> Any:
    """The notebook after its execution in `folder`. Raises CellExecutionError when a cell fails."""
    notebook = jupytext.read(NOTEBOOK)
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def figures(notebook: Any) -> list[Any]:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")) for picture in pictures]


def printed(notebook: Any) -> str:
    return "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The executed notebook, on the run that the environment names."""
    run = report_runs.three_partitions(tmp_path_factory.mktemp("elsewhere") / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORDERBED_RUN", str(run))
        return execute(tmp_path_factory.mktemp("empty"))


def test_every_figure_is_drawn(executed: Any) -> None:
    pictures = figures(executed)
    assert len(pictures) == len(FIGURES)
    for picture in pictures:
        assert picture.shape[1] > 600
        assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 50, "an empty picture"


def test_it_says_which_run_and_its_verdict(executed: Any) -> None:
    assert "three-partitions/1-20260101T120000Z · sequencer · complete" in printed(executed)
    assert "verdict: fail total_order: 3 violations" in printed(executed)


def test_without_a_name_it_takes_the_newest_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORDERBED_RUN", raising=False)
    monkeypatch.delenv("ORDERBED_RUNS", raising=False)
    report_runs.quickstart(tmp_path / "runs" / "quickstart" / "1-20260101T120000Z")
    notebook = execute(tmp_path)
    assert "quickstart/1-20260101T120000Z" in printed(notebook)
    assert len(figures(notebook)) == len(FIGURES)


def test_without_a_run_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORDERBED_RUN", raising=False)
    monkeypatch.delenv("ORDERBED_RUNS", raising=False)
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="make one with `orderbed run quickstart`"):
        execute(tmp_path)


def test_it_defines_nothing_of_its_own() -> None:
    """The logic is in `analysis`, where it is tested."""
    tree = ast.parse(NOTEBOOK.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    assert not [node for node in ast.walk(tree) if isinstance(node, kinds)]
