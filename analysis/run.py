"""Runs as values, for notebooks: `run = Run("runs/quickstart/1-…")`, then `run.summary`, `run.table("deliveries")`;
`sweep = Sweep.newest("co-figure7")`, then `sweep.frame(n="given.members", t_ap_ms="latency.mean_ms")`.

Reads the files of the analysis; needs neither Spark nor the capture.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from analysis.errors import AnalysisError
from analysis.expression import ExpressionError, Unknown, evaluate, parse
from analysis.files import MAX_BYTES, is_of, is_there, read_bytes, read_json
from analysis.metrics import sweep_rows
from analysis.tables import table_at
from topologies import load
from topologies.formats.errors import InputError
from topologies.model import Topology


class Run:
    """One run directory. Each file is read at its first use."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not (self.path / "manifest.json").is_file():
            raise AnalysisError(f"{self.path}: is no run directory; it has no manifest.json")

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Contents of manifest.json (docs/run-directory.md)."""
        return self._json("manifest.json")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Results and verdicts. Raises AnalysisError for those of another run or manifest."""
        summary = self._json("summary.json")
        if not is_of(summary, self.path, self.manifest):
            again = f"make it again with: orderbed analyze {self.path}"
            raise AnalysisError(f"{self.path / 'summary.json'}: not made of the manifest beside it; {again}")
        return summary

    @cached_property
    def topology(self) -> Topology:
        """The network. Raises AnalysisError."""
        path = self.path / "topology.yaml"
        try:
            return load.loads(read_bytes(path), str(path))
        except InputError as error:
            raise AnalysisError(str(error)) from error
        except (OSError, ValueError) as error:
            raise AnalysisError(f"{path}: cannot be read ({error})") from error

    @cached_property
    def faults(self) -> pd.DataFrame:
        """Faults that took effect; `issued_s` and `effective_s` count from the start of the workload."""
        table = self.table("faults")
        start_ns = self.manifest.get("phases", {}).get("start_ns") or 0
        for name in ("issued", "effective"):
            table[f"{name}_s"] = (table[f"{name}_ns"] - start_ns) / 1e9
        return table

    @property
    def tables(self) -> list[str]:
        """Names of the existing tables."""
        return sorted(path.stem for path in (self.path / "tables").glob("*.parquet"))

    def table(self, name: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """A table (`analysis.schema`), or some of its columns. Raises AnalysisError when there is none of that name."""
        path = self.path / "tables" / f"{name}.parquet"
        if not is_there(path):
            known = ", ".join(self.tables) or f"none yet; make them with: orderbed analyze {self.path}"
            raise AnalysisError(f"{self.path}: there is no table {name!r}; there are: {known}")
        # One file, or a directory of parts when the table is large.
        try:
            table = table_at(path).to_table(columns=None if columns is None else list(columns))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise AnalysisError(f"{path}: cannot be read ({error})") from error
        frame: pd.DataFrame = table.to_pandas()
        return frame

    def _json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        value = _read_json(path, f"make it with: orderbed analyze {self.path}")
        if not isinstance(value, dict):
            raise AnalysisError(f"{path}: is not a JSON object")
        return value


class Sweep:
    """Runs of one sweep, in its order: `sweep-<stamp>.json` beside their directories, or `sweep-<stamp>.parquet` for
    runs simulated in memory.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.is_simulated = self.path.suffix == ".parquet"
        """Simulated in memory: its runs have no directories, only rows."""
        points = sweep_rows.read(self.path) if self.is_simulated else _read_points(self.path)
        self.points: list[dict[str, Any]] = points
        """Points, each with its `variant` (the settings), its `given` numbers and its verdict; and with its directory,
        or with all its measures.
        """

    @classmethod
    def newest(cls, experiment: str, runs: Path | str = "runs") -> Sweep:
        """Latest sweep of an experiment. Raises AnalysisError when there is none."""
        folder = Path(runs) / experiment
        found = sorted([*folder.glob("sweep-*.json"), *folder.glob("sweep-*.parquet")])
        if not found:
            raise AnalysisError(
                f"{runs}: there is no sweep of {experiment} yet; make one with: orderbed sweep {experiment}"
            )
        return cls(found[-1])

    @cached_property
    def runs(self) -> list[Run]:
        """Run of each point; a run directory that was moved with its sweep file is found beside it."""
        if self.is_simulated:
            raise AnalysisError(f"{self.path}: was simulated in memory; its runs have no directories")
        return [Run(self._directory(str(point.get("directory", "")))) for point in self.points]

    @cached_property
    def results(self) -> list[dict[str, Any]]:
        """Values of each run for expressions: its summary, its `variant` and its `given` numbers."""
        if self.is_simulated:
            return self.points
        settings = [{"variant": point.get("variant", {}), "given": point.get("given", {})} for point in self.points]
        return [{**run.summary, **one} for run, one in zip(self.runs, settings, strict=True)]

    def frame(self, **columns: str) -> pd.DataFrame:
        """Table with one row for each run. Each column is an expression (`analysis.expression`) over the run's summary,
        its `variant` and its `given` numbers; an unknown value is missing (NaN). Raises AnalysisError for a text that
        is no expression.
        """
        try:
            parsed = {name: parse(text) for name, text in columns.items()}
        except ExpressionError as error:
            raise AnalysisError(str(error)) from None
        rows = []
        for results in self.results:
            values = {name: evaluate(expression, results) for name, expression in parsed.items()}
            rows.append({name: None if isinstance(value, Unknown) else value for name, value in values.items()})
        return pd.DataFrame(rows, columns=list(columns))

    def _directory(self, recorded: str) -> Path:
        return found if (found := Path(recorded)).is_dir() else self.path.parent / Path(recorded).name


MAX_POINTS_BYTES = 64 << 20
"""Largest file of points: a sweep has a point for each of its runs, which may be thousands."""


def _read_points(path: Path) -> list[dict[str, Any]]:
    points = _read_json(path, "make it with: orderbed sweep", max_bytes=MAX_POINTS_BYTES)
    if not isinstance(points, list) or not all(isinstance(point, dict) for point in points):
        raise AnalysisError(f"{path}: is not the list of a sweep's points")
    return points


def _read_json(path: Path, remedy: str, *, max_bytes: int = MAX_BYTES) -> Any:
    try:
        return read_json(path, max_bytes=max_bytes)
    except FileNotFoundError:
        raise AnalysisError(f"{path}: is missing; {remedy}") from None
    except (ValueError, OSError) as error:
        raise AnalysisError(f"{path}: cannot be read ({error})") from error
