"""What the report shows of how messages were ordered: the protocol in force over time, roll-backs, and what it cost.

Epochs and costs stand in section `ordering` of the summary, roll-backs in the trace. An epoch begins when the first
member sends in it; until the last one does (`settled_s`), members differ. Pure but for the table that is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from analysis.report import formatting as words
from analysis.report.rows import Fact
from analysis.report.svg import colour_of
from analysis.report.time_axis import Phases, Series, series_of

MAX_EPOCHS: Final = 400
"""That the band shows: more is no band any more."""

MAX_PROTOCOLS: Final = 20

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


# --- the section's tables


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolRow:
    """What one protocol cost while it was in force, in words."""

    name: str
    colour: str
    in_force: str
    messages: str
    cost: str
    per_second: str
    estimated: str
    roll_backs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRow:
    """One epoch in words."""

    number: str
    name: str
    colour: str
    from_: str
    until: str
    switch: str
    pause: str
    per_second: str
    roll_backs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Section `Ordering cost`."""

    facts: Sequence[Fact]
    protocols: Sequence[ProtocolRow]
    epochs: Sequence[EpochRow]
    epochs_left_out: int


class KeyEntry(NamedTuple):
    """A protocol in the plots' key."""

    name: str
    colour: str
    is_in_force: bool
    is_estimated: bool


def told(summary: Mapping[str, Any]) -> Told | None:
    """The numbers of the section; None when the summary has none."""
    given = words.mapping(summary.get("ordering"))
    if not given:
        return None
    protocols = words.mapping(given.get("by_protocol"))
    epochs = words.objects(given.get("epochs"))
    return Told(
        facts=[*_costs(given), *_roll_backs(given), *_finality(given), *_switches(given)],
        protocols=[_protocol_row(name, words.mapping(one)) for name, one in list(protocols.items())[:MAX_PROTOCOLS]],
        epochs=[_epoch_row(one) for one in epochs[:MAX_EPOCHS]],
        epochs_left_out=max(len(epochs) - MAX_EPOCHS, 0),
    )


def key(epochs: Sequence[Epoch], costs: Costs) -> list[KeyEntry]:
    """The protocols of the plots, those first that were in force."""
    in_force = dict.fromkeys(epoch.protocol for epoch in epochs)
    names = dict.fromkeys([*in_force, *costs.estimated])
    return [
        KeyEntry(words.protocol(name), colour_of(name), name in in_force, name in costs.estimated) for name in names
    ]


def _costs(given: Mapping[str, Any]) -> Iterator[Fact]:
    if words.number(given.get("cost_mean_ms")) is None:
        return
    slow = (words.milliseconds(given.get(f"cost_{quantile}_ms")) for quantile in ("p50", "p99", "max"))
    note = "mean over {} messages; p50 {}, p99 {}, largest {}".format(words.count(given.get("messages")), *slow)
    yield Fact("Cost of a message at a member", words.milliseconds(given.get("cost_mean_ms")), note)
    note = "what a second of load costs at a member"
    yield Fact("Cost per second", words.cost_rate(given.get("cost_per_s")), note)


def _roll_backs(given: Mapping[str, Any]) -> Iterator[Fact]:
    if not words.number(given.get("roll_backs")):
        return
    each = words.significant(given.get("undone_per_roll_back"))
    note = f"{words.significant(given.get('roll_backs_per_message'))} for each message; each undid {each} executions"
    yield Fact("Roll-backs", words.count(given.get("roll_backs")), note)
    yield Fact("Work lost by them", words.milliseconds(given.get("lost_ms")), "of all members together")
    if words.number(given.get("redone")):
        note = f"held up by {words.milliseconds(given.get('redone_mean_ms'))} on average"
        yield Fact("Messages handed over again", words.count(given.get("redone")), note)


def _finality(given: Mapping[str, Any]) -> Iterator[Fact]:
    if words.number(given.get("finality_p50_ms")) is not None:
        slow = (words.milliseconds(given.get(f"finality_{quantile}_ms")) for quantile in ("p99", "max"))
        note = "median; p99 {}, slowest {}".format(*slow)
        yield Fact("From the first delivery to the final one", words.milliseconds(given.get("finality_p50_ms")), note)
    optimistic = words.mapping(given.get("optimistic"))
    if words.number(optimistic.get("in_order")) is not None:
        note = f"of {words.count(optimistic.get('deliveries'))}: the others were stragglers at their member"
        yield Fact(
            "Optimistic deliveries that came in the final order", words.percent(optimistic.get("in_order")), note
        )
    if words.number(given.get("gvt_still_max_ms")) is not None:
        note = "the longest that the global virtual time of a member did not rise while something waited for it"
        yield Fact("Global virtual time stood still", words.milliseconds(given.get("gvt_still_max_ms")), note)


def _switches(given: Mapping[str, Any]) -> Iterator[Fact]:
    if not words.number(given.get("switches")):
        return
    note = f"members differed for {words.milliseconds(given.get('switch_max_ms'))} at most"
    if words.number(given.get("pause_max_ms")) is not None:
        note += f"; submissions waited for {words.milliseconds(given.get('pause_max_ms'))} at most"
    yield Fact("Changes of the protocol", words.count(given.get("switches")), note)


def _protocol_row(name: object, given: Mapping[str, Any]) -> ProtocolRow:
    shown = words.clean(name, 40)
    ratio = words.number(given.get("estimate_ratio"))
    estimated = words.cost_rate(given.get("estimate_per_s"))
    return ProtocolRow(
        name=words.protocol(shown),
        colour=colour_of(shown),
        in_force=words.seconds(given.get("seconds"), 2),
        messages=words.count(given.get("messages")),
        cost=words.milliseconds(given.get("cost_mean_ms")),
        per_second=words.cost_rate(given.get("cost_per_s")),
        estimated=estimated if ratio is None else f"{estimated} ({words.significant(ratio)} ×)",
        roll_backs=words.count(given.get("roll_backs")),
    )


def _epoch_row(given: Mapping[str, Any]) -> EpochRow:
    name = words.clean(given.get("protocol"), 40)
    from_ms, to_ms = words.number(given.get("from_ms")), words.number(given.get("to_ms"))
    return EpochRow(
        number=words.count(given.get("number")),
        name=words.protocol(name),
        colour=colour_of(name),
        from_=words.seconds(None if from_ms is None else from_ms / 1000),
        until=words.seconds(None if to_ms is None else to_ms / 1000),
        switch=words.milliseconds(given.get("switch_ms")),
        pause=words.milliseconds(given.get("pause_ms")),
        per_second=words.cost_rate(given.get("cost_per_s")),
        roll_backs=words.count(given.get("roll_backs")),
    )
