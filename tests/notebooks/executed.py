"""Notebooks executed as notebooks, and what their cells show."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import jupytext
import nbclient
import numpy as np
from PIL import Image

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def execute(name: str, folder: Path) -> Any:
    """The notebook after its execution in `folder`. Raises CellExecutionError when a cell fails."""
    notebook = jupytext.read(NOTEBOOKS / f"{name}.py")
    nbclient.NotebookClient(notebook, timeout=180, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def printed(notebook: Any) -> str:
    return "".join(output.get("text", "") for output in _outputs(notebook))


def displayed(notebook: Any) -> str:
    """Markdown that cells display."""
    return "".join(output.get("data", {}).get("text/markdown", "") for output in _outputs(notebook))


def assert_figures(notebook: Any, count: int, *, wider_than: int = 600) -> None:
    """So many pictures, none of them empty."""
    pictures = [output["data"]["image/png"] for output in _outputs(notebook) if "image/png" in output.get("data", {})]
    assert len(pictures) == count
    for picture in pictures:
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB"))
        assert pixels.shape[1] > wider_than
        assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50, "an empty picture"


def _outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]
