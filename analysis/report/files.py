"""Reader of a run directory for the report: every file may be missing, cut off or hostile.

A file that cannot be used gives a sentence in `problems` and an empty value; the report then says so in its place. No
content of a file raises an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

from analysis import formatting as words
from analysis.files import parse_json, read_bytes, read_json, read_text
from analysis.tables import table_at
from analysis.traffic.flows import is_foreign
from collector.records import Event, Notice
from topologies import load
from topologies.formats.errors import InputError
from topologies.model import Topology

MAX_FAULTS: Final = 5000
MAX_SERIES_ROWS: Final = 2_000_000
MAX_NUMBER: Final = 1e12
"""Greatest number of any unit that is drawn: 30,000 years in seconds, 30 years in milliseconds."""

TEXT: Final = "text"
NUMBER: Final = "number"
SERIES: Final[Mapping[str, Mapping[str, str]]] = {
    "latency_series": {"t_s": NUMBER, "count": NUMBER, "p50_ms": NUMBER, "p99_ms": NUMBER, "max_ms": NUMBER},
    "traffic_series": {"t_s": NUMBER, "class": TEXT, "datagrams": NUMBER, "wire_bytes": NUMBER},
    "latency_cdf": {"member_name": TEXT, "latency_ms": NUMBER, "ratio": NUMBER},
    "node_series": {"t_s": NUMBER, "node": TEXT, "sent_bytes": NUMBER},
}
"""Tables under `tables/` for the plots, and their required columns."""

ROLLBACKS: Final = "tables/trace.parquet"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunFiles:
    """Contents of the files of a run."""

    path: Path
    manifest: Mapping[str, Any]
    summary: Mapping[str, Any]
    faults: Sequence[Mapping[str, Any]]
    topology: Topology | None
    latency: pd.DataFrame
    traffic: pd.DataFrame
    cdf: pd.DataFrame
    rollbacks: pd.DataFrame
    """`at_ns` and `extra` of each report of a roll-back; empty when the summary has no section `ordering`."""
    nodes: pd.DataFrame
    """`node_series`; empty when Orderbed's protocols made the traffic."""
    problems: Sequence[str]
    """One sentence per file that is missing or cannot be used, in the order of the run's stages."""


def read_run(path: Path) -> RunFiles:
    """Read a run directory. Raises InputError only when `path` is no directory."""
    if not path.is_dir():
        raise InputError(f"{path}: there is no such run directory")
    problems: list[str] = []

    def attempt(name: str, read: Callable[[Path], T], otherwise: T, remedy: str) -> T:
        try:
            return read(path / name)
        except FileNotFoundError:
            problems.append(f"{name} is missing: {remedy}")
        except InputError as error:
            problems.append(f"{name} cannot be used: {words.clean(error.sentence)}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            problems.append(f"{name} cannot be used: {words.clean(str(error), 160) or type(error).__name__}")
        return otherwise

    nothing: Mapping[str, Any] = {}
    no_faults: tuple[list[Mapping[str, Any]], int] = ([], 0)
    manifest = attempt("manifest.json", _read_object, nothing, "the run ended before anything was recorded")
    summary = attempt("summary.json", _read_object, nothing, "the capture has not been analysed")
    topology = attempt("topology.yaml", _read_topology, None, "the network cannot be drawn")
    faults, unread = attempt("faults.jsonl", _read_faults, no_faults, "the plots show no faults")
    if unread:
        problems.append(f"faults.jsonl: {words.plural(unread, 'line')} cannot be read or are too many")
    tables = {
        name: attempt(f"tables/{name}.parquet", _table_reader(name), _empty(name), "its plot is left out")
        for name in SERIES
        if name != "node_series" or is_foreign(summary)
    }
    # Only a run with a section `ordering` has reports of roll-backs, so the trace is read only for it.
    rollbacks = (
        attempt(ROLLBACKS, _read_rollbacks, _no_rollbacks(), "roll-backs are not marked")
        if words.mapping(summary.get("ordering"))
        else _no_rollbacks()
    )
    return RunFiles(
        path=path,
        manifest=manifest,
        summary=summary,
        faults=faults,
        topology=topology,
        latency=tables["latency_series"],
        traffic=tables["traffic_series"],
        cdf=tables["latency_cdf"],
        rollbacks=rollbacks,
        nodes=tables.get("node_series", _empty("node_series")),
        problems=tuple(problems),
    )


def _read_object(path: Path) -> Mapping[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def _read_topology(path: Path) -> Topology | None:
    return load.loads(read_bytes(path), str(path))


def _read_faults(path: Path) -> tuple[list[Mapping[str, Any]], int]:
    """Faults, and the number of lines that are not faults. A run without faults has an empty file."""
    faults: list[Mapping[str, Any]] = []
    unread = 0
    for line in read_text(path).splitlines():
        if not line.strip():
            continue
        try:
            fault = parse_json(line)
        except ValueError:
            fault = None
        if isinstance(fault, dict) and len(faults) < MAX_FAULTS:
            faults.append(fault)
        else:
            unread += 1
    return faults, unread


def usable(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """The table with clean texts and drawable numbers: NaN for a value beyond MAX_NUMBER or no number.

    Raises KeyError when a column is missing.
    """
    columns = SERIES[name]
    return pd.DataFrame(
        {
            column: list(map(words.clean, table[column])) if kind == TEXT else _drawable(table[column])
            for column, kind in columns.items()
        }
    )


def _drawable(values: pd.Series[Any]) -> npt.NDArray[np.float64]:
    numbers = pd.to_numeric(values, errors="coerce").astype("float64").to_numpy()
    return np.where(np.abs(numbers) <= MAX_NUMBER, numbers, np.nan)


def _table_reader(name: str) -> Callable[[Path], pd.DataFrame]:
    def read(path: Path) -> pd.DataFrame:
        try:
            written = table_at(path, MAX_SERIES_ROWS)
            table = written.to_table(columns=list(SERIES[name]), use_threads=False).to_pandas()
        except pa.ArrowException as error:  # some of them are neither OSError nor ValueError
            raise ValueError(str(error)) from error
        return usable(name, table)

    return read


def _read_rollbacks(path: Path) -> pd.DataFrame:
    wanted = (ds.field("event") == int(Event.REPORT)) & (ds.field("detail") == int(Notice.ROLLED_BACK))
    try:
        written = table_at(path).scanner(columns=list(_ROLLBACK_COLUMNS), filter=wanted)
        table = written.head(MAX_SERIES_ROWS + 1).to_pandas()
    except pa.ArrowException as error:  # some of them are neither OSError nor ValueError
        raise ValueError(str(error)) from error
    if len(table) > MAX_SERIES_ROWS:
        raise ValueError(f"it has more than {MAX_SERIES_ROWS:,} roll-backs")
    numbers = table.apply(pd.to_numeric, errors="coerce").astype("float64")
    known: pd.DataFrame = numbers[numbers.notna().all(axis=1)]
    return known.reset_index(drop=True)


@cache
def _no_rollbacks() -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series(dtype="float64") for name in _ROLLBACK_COLUMNS})


_ROLLBACK_COLUMNS: Final = ("at_ns", "extra")


@cache
def _empty(name: str) -> pd.DataFrame:
    return pd.DataFrame(
        {column: pd.Series(dtype="float64" if kind == NUMBER else "object") for column, kind in SERIES[name].items()}
    )
