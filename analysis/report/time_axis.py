"""Time axis of the report, in seconds since the nodes started their workload.

Faults become windows (from their effect to their end). Series become evenly spaced points, with gaps where there are no
values, thinned to the resolution of a plot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis import formatting as words
from analysis.report.files import RunFiles

MAX_POINTS: Final = 400
"""Most points of a line: more than a screen can distinguish."""

MAX_WINDOWS: Final = 100
"""Most fault windows that the plots show."""

COLOURS: Final = 8
"""Distinct line colours in the style sheet: `c0` to `c7`."""

CLASSES: Final = ("application", "dummy", "control", "retransmission")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Ends of the parts of the run, in seconds since its start; None: not reached, or not known."""

    load_end_s: float | None
    drained_s: float | None
    start_ns: float | None
    """Origin of the axis on the monotonic clock. None: the run never started, so there are no times on the axis."""

    def seconds(self, at_ns: object) -> float | None:
        """A monotonic time as seconds on the axis."""
        given = words.number(at_ns)
        return None if given is None or not given or self.start_ns is None else (given - self.start_ns) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultWindow:
    """One fault in time. `until_s` is None when it lasts to the end of the run."""

    number: str
    kind: str
    what: str
    where: str
    asked_s: float | None
    issued_s: float | None
    effective_s: float | None
    until_s: float | None
    lasts: bool
    """Whether it lasts; False for an event such as a join."""

    @property
    def late_ms(self) -> float | None:
        """Time from the requested to the actual effect, in ms."""
        if self.asked_s is None or self.effective_s is None:
            return None
        return (self.effective_s - self.asked_s) * 1000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """Named lines over one time axis; NaN where there is no value. `merged` bins of the table give one point."""

    t_s: Floats
    step_s: float
    lines: Mapping[str, Floats]
    merged: int = 1

    def __len__(self) -> int:
        return len(self.t_s)

    def range(self, name: str) -> tuple[float, float]:
        """Smallest and largest value of a line; NaN when it has none."""
        known = self.lines[name][np.isfinite(self.lines[name])]
        return (float(known.min()), float(known.max())) if len(known) else (math.nan, math.nan)


def phases_of(manifest: Mapping[str, Any]) -> Phases:
    phases = words.mapping(manifest.get("phases"))
    start_ns = words.number(phases.get("start_ns")) or None
    bare = Phases(load_end_s=None, drained_s=None, start_ns=start_ns)
    return Phases(
        load_end_s=bare.seconds(phases.get("load_end_ns")),
        drained_s=bare.seconds(phases.get("drained_ns")),
        start_ns=start_ns,
    )


def windows_of(run: RunFiles, phases: Phases) -> list[FaultWindow]:
    """Windows of the faults from `begun`. A fault ends when the line named by its `until_id` took effect."""
    everybody = node_names(run)
    effective = {_id(fault): phases.seconds(fault.get("effective_ns")) for fault in run.faults}
    return [
        FaultWindow(
            number=str(place),
            kind=words.clean(fault.get("kind"), 24) or "fault",
            what=words.fault(fault),
            where=_where(fault, everybody),
            asked_s=_asked_s(fault),
            issued_s=phases.seconds(fault.get("issued_ns")),
            effective_s=effective[_id(fault)],
            until_s=effective.get(_number(fault.get("until_id"))),
            lasts=fault.get("kind") in words.LASTING,
        )
        for place, fault in enumerate(begun(run))
    ]


def begun(run: RunFiles) -> list[Mapping[str, Any]]:
    """Faults of the log that do not only end others."""
    return [fault for fault in run.faults if not words.is_end(fault)]


def node_names(run: RunFiles) -> set[str]:
    return set() if run.topology is None else {str(node.name) for node in run.topology.nodes()}


def axis_end_s(phases: Phases, series: Sequence[Series], windows: Sequence[FaultWindow]) -> float:
    """End of the time axis: the drain, or the last known time."""
    known = [phases.load_end_s, phases.drained_s]
    known += [float(one.t_s[-1]) + one.step_s for one in series if len(one)]
    # The window of the last fault needs room after its start.
    known += [window.effective_s * 1.25 for window in windows if window.effective_s is not None and window.lasts]
    return max((value for value in known if value is not None and value > 0), default=1.0)


def latency_series(table: pd.DataFrame) -> Series:
    """p50, p99 and max over time. Where bins are merged: the median p50, the largest p99 and max, the sum of counts."""
    t_s, count = _column(table, "t_s"), _column(table, "count")
    is_counted = np.isfinite(t_s) & (count > 0)
    # A bin with a count of 0 has a place on the axis but no value.
    columns = {
        name: np.where(is_counted, _column(table, name), math.nan) for name in ("p50_ms", "p99_ms", "max_ms", "count")
    }
    return series_of(t_s if is_counted.any() else t_s[:0], columns, {"p50_ms": np.nanmedian, "count": np.nansum})


def traffic_series(table: pd.DataFrame) -> Series:
    """Datagrams per second of each class."""
    t_s, datagrams = _column(table, "t_s"), _column(table, "datagrams")
    is_known = np.isfinite(t_s) & np.isfinite(datagrams)
    times, places = np.unique(t_s[is_known], return_inverse=True)
    classes, datagrams = table["class"].to_numpy()[is_known], datagrams[is_known]
    columns = {}
    for name in CLASSES:
        columns[name] = np.zeros(len(times))
        columns[name][places[classes == name]] = datagrams[classes == name]
    return _per_second(series_of(times, columns, dict.fromkeys(CLASSES, np.nanmean), gap=0.0))


def node_lines(table: pd.DataFrame) -> Series:
    """Bytes per second that each node sent; with more nodes than colours, each partition."""
    t_s, nodes = _column(table, "t_s"), table["node"].to_numpy()
    is_placed = np.isfinite(t_s)
    times, places = np.unique(t_s[is_placed], return_inverse=True)
    sent_bytes, nodes = np.nan_to_num(_column(table, "sent_bytes")[is_placed]), nodes[is_placed]
    if len(set(nodes)) > COLOURS:
        nodes = np.array([node.partition("/")[0] for node in nodes], dtype=object)
    names = sorted(set(nodes))[:COLOURS]
    columns = {}
    for name in names:
        columns[name] = np.zeros(len(times))
        np.add.at(columns[name], places[nodes == name], sent_bytes[nodes == name])
    return _per_second(series_of(times, columns, dict.fromkeys(names, np.nanmean), gap=0.0))


def _column(table: pd.DataFrame, name: str) -> Floats:
    return table[name].to_numpy(dtype=np.float64)


def _per_second(series: Series) -> Series:
    bin_s = series.step_s / series.merged
    return replace(series, lines={name: np.nan_to_num(values) / bin_s for name, values in series.lines.items()})


def series_of(
    t_s: Floats, columns: Mapping[str, Floats], merge: Mapping[str, Callable[..., Floats]], *, gap: float = math.nan
) -> Series:
    """Columns over the even grid of their times, thinned to MAX_POINTS; of equal times the last one counts.

    `merge`: NumPy's function for the known values of merged bins, by column (default: the largest); `gap`: value where
    there is no time.
    """
    placed = np.flatnonzero(np.isfinite(t_s))
    start, step, length = _grid(t_s[placed])
    if length == 0:
        return Series(t_s=np.empty(0), step_s=step, lines={})
    places = np.clip(np.rint((t_s[placed] - start) / step).astype(int), 0, length - 1)
    merged = math.ceil(length / MAX_POINTS)
    points = math.ceil(length / merged)
    lines = {}
    for name, values in columns.items():
        even = np.full(points * merged, math.nan)
        even[:length] = gap
        even[places] = values[placed]
        lines[name] = _merged(even.reshape(points, merged), merge.get(name, np.nanmax))
    t_s = start + np.arange(points, dtype=np.float64) * (step * merged)
    return Series(t_s=t_s, step_s=step * merged, lines=lines, merged=merged)


def _merged(bins: Floats, merge: Callable[..., Floats]) -> Floats:
    """One value for each row; NaN where a row has no value."""
    if bins.shape[1] == 1:
        return bins[:, 0]
    points = np.full(len(bins), math.nan)
    is_known = ~np.isnan(bins).all(axis=1)
    points[is_known] = merge(bins[is_known], axis=1)
    return points


def _grid(t_s: Floats) -> tuple[float, float, int]:
    """Start, step and length of the even grid of these times (the step is the median of the differences)."""
    times = np.unique(t_s)
    if len(times) == 0:
        return 0.0, 1.0, 0
    step = float(np.median(np.diff(times))) if len(times) > 1 else 0.2
    step = max(step, float(times[-1] - times[0]) / 1e6, 1e-3)
    return float(times[0]), step, round(float(times[-1] - times[0]) / step) + 1


def _number(value: object) -> str:
    given = words.number(value)
    return "" if given is None else f"{given:.0f}"


def _id(fault: Mapping[str, Any]) -> str:
    return _number(fault.get("id")) or "?"


def _asked_s(fault: Mapping[str, Any]) -> float | None:
    asked_ns = words.number(fault.get("asked_ns"))
    return None if asked_ns is None else asked_ns / 1e9


def _where(fault: Mapping[str, Any], everybody: set[str]) -> str:
    """Targets of a fault; empty for a cut into groups, whose text names them."""
    if fault.get("kind") == "cut" and words.mapping(fault.get("parameters")).get("groups"):
        return ""
    targets = words.texts(fault.get("targets"), 60)
    names = "every node" if is_everybody(targets, everybody) else words.listed(targets)
    ways = {"to-node": "to ", "from-node": "from "}
    return ways.get(words.clean(fault.get("direction"), 24), "") + names


def is_everybody(targets: Sequence[str], everybody: set[str]) -> bool:
    """True for a fault that hits all nodes of a network that has more than one."""
    return len(everybody) > 1 and everybody <= set(targets)
