"""What the report shows of how messages were ordered: the protocol in force over time, roll-backs, and what it cost.

Epochs and costs stand in section `ordering` of the summary, roll-backs in the trace. An epoch begins when the first
member sends in it; until the last one does (`settled_s`), members differ. Pure but for the table that is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from analysis.report import formatting as words
from analysis.report.svg import colour_of
from analysis.report.time_axis import Phases, Series, series_of

MAX_EPOCHS: Final = 400
"""That the band shows: more is no band any more."""

MAX_ESTIMATES: Final = 8
"""Protocols whose estimated costs are drawn."""

MEASURED: Final = "measured cost"
"""Name of the line of what it really cost; no protocol has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One protocol in force, in seconds since the workload began. `until_s` None: to the end of the run."""

    number: str
    protocol: str
    """Its name as in the summary; `title` is for people."""
    from_s: float
    settled_s: float
    until_s: float | None

    @property
    def title(self) -> str:
        return words.protocol(self.protocol)

    @property
    def colour(self) -> str:
        """Class of its colour."""
        return colour_of(self.protocol)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rollbacks:
    """Moments (seconds since the workload began) and how many executions each undid."""

    at_s: np.ndarray[Any, np.dtype[np.float64]]
    undone: np.ndarray[Any, np.dtype[np.float64]]

    def __len__(self) -> int:
        return len(self.at_s)

    def binned(self, end_s: float, bins: int) -> Series:
        """Roll-backs (`rollbacks`) and executions that they undid (`undone`) in even bins of 0..`end_s`, as counts."""
        edges = np.linspace(0.0, end_s, bins + 1)
        counted, _ = np.histogram(self.at_s, edges)
        undone, _ = np.histogram(self.at_s, edges, weights=self.undone)
        lines = {"rollbacks": counted.astype(np.float64), "undone": undone.astype(np.float64)}
        return Series(t_s=edges[:-1], step_s=end_s / bins, lines=lines)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Costs:
    """Cost over time: line MEASURED, and one per protocol with its estimate, in ms per second."""

    series: Series
    estimated: Sequence[str]


def epochs_of(summary: Mapping[str, Any]) -> list[Epoch]:
    """In the order of their numbers; what has no begin or no protocol cannot be placed and is left out."""
    found = []
    for given in words.objects(words.mapping(summary.get("ordering")).get("epochs")):
        from_ms, protocol = words.number(given.get("from_ms")), words.clean(given.get("protocol"), 40)
        if from_ms is None or abs(from_ms) > _LONGEST_MS or not protocol:
            continue
        from_s = max(from_ms / 1000, 0.0)
        found.append((from_s, from_s + _settling_s(given), words.count(given.get("number")), protocol))
    found = sorted(found)[:MAX_EPOCHS]
    ends = [*(one[0] for one in found[1:]), None][: len(found)]
    return [
        Epoch(
            number=number, protocol=protocol, from_s=from_s, settled_s=min(settled_s, end_s or settled_s), until_s=end_s
        )
        for (from_s, settled_s, number, protocol), end_s in zip(found, ends, strict=True)
    ]


_LONGEST_MS: Final = 1e12
"""30 years: beyond it nothing can be drawn."""

_MOST: Final = 1e18
"""ns of cost per second, of a thousand million messages that wait at once."""


def _settling_s(given: Mapping[str, Any]) -> float:
    switch_ms = words.number(given.get("switch_ms")) or 0.0
    return min(max(switch_ms, 0.0), _LONGEST_MS) / 1000


def costs_of(summary: Mapping[str, Any]) -> Costs:
    """Cost over time as the summary has it."""
    rows: list[dict[str, float | None]] = []
    names: dict[str, None] = {}
    for given in words.objects(words.mapping(summary.get("ordering")).get("series")):
        estimates = {words.clean(name, 40): words.number(cost) for name, cost in _estimates(given).items()}
        names |= dict.fromkeys(estimates)
        rows.append(
            estimates | {"t_s": words.number(given.get("t_s")), MEASURED: words.number(given.get("cost_per_s"))}
        )
    estimated = [name for name in names if name not in ("", "t_s", MEASURED)][:MAX_ESTIMATES]
    table = pd.DataFrame(rows, columns=["t_s", MEASURED, *estimated], dtype="float64")
    table = table.where(table.abs() <= _MOST)
    table[[MEASURED, *estimated]] /= 1e6
    return Costs(series=series_of(table, [MEASURED, *estimated], np.nanmean), estimated=estimated)


def _estimates(given: Mapping[str, Any]) -> Mapping[str, Any]:
    return words.mapping(given.get("estimates"))


def rollbacks_of(table: pd.DataFrame, phases: Phases) -> Rollbacks:
    """From rows of `at_ns` and `extra` (node.trace.Notice.ROLLED_BACK); none when the run never started."""
    if phases.start_ns is None or not len(table):
        return Rollbacks(at_s=np.empty(0), undone=np.empty(0))
    at_s = (table["at_ns"].to_numpy(dtype=np.float64) - phases.start_ns) / 1e9
    return Rollbacks(at_s=at_s, undone=np.maximum(table["extra"].to_numpy(dtype=np.float64), 1.0))


class KeyEntry(NamedTuple):
    """A protocol in the plots' key."""

    name: str
    colour: str
    is_in_force: bool
    is_estimated: bool


def key(epochs: Sequence[Epoch], costs: Costs) -> list[KeyEntry]:
    """The protocols of the plots, those first that were in force."""
    in_force = dict.fromkeys(epoch.protocol for epoch in epochs)
    names = dict.fromkeys([*in_force, *costs.estimated])
    return [
        KeyEntry(words.protocol(name), colour_of(name), name in in_force, name in costs.estimated) for name in names
    ]
