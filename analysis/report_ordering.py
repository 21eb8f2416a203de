"""What the report shows of how messages were ordered: the protocol in force over time, roll-backs, and what it cost.

Epochs and costs stand in section `ordering` of the summary, roll-backs in the trace. An epoch begins when the first
member sends in it; until the last one does (`settled_s`), members differ. Pure but for the table that is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from analysis import words
from analysis.report_rows import Fact
from analysis.report_time import Phases, Series, series_of

MAX_EPOCHS: Final = 400
"""That the band shows: more is no band any more."""

MAX_ESTIMATES: Final = 8
"""Protocols whose estimated costs are drawn."""

COLOURS: Final[Mapping[str, int]] = {
    "abcast": 0,
    "timewarp": 1,
    "sequencer": 2,
    "atop": 4,
    "allack": 5,
    "lamport": 7,
}
"""Of the protocols that can be candidates, by number of the report's palette; 3 is that of roll-backs."""

OTHER_COLOUR: Final = 6

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
    """Cost over time: line MEASURED, and one per protocol with its estimate."""

    series: Series
    estimated: Sequence[str]


def colour_of(protocol: str) -> str:
    """The same protocol has the same colour in every report."""
    return f"c{COLOURS.get(protocol.lower(), OTHER_COLOUR)}"


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
            estimates | {"t_s": words.number(given.get("at_s")), MEASURED: words.number(given.get("cost_per_s"))}
        )
    estimated = [name for name in names if name not in ("", "t_s", MEASURED)][:MAX_ESTIMATES]
    table = pd.DataFrame(rows, columns=["t_s", MEASURED, *estimated], dtype="float64")
    table = table.where(table.abs() <= _LONGEST_MS)
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
    """What one protocol did while it was in force, in words."""

    name: str
    colour: str
    share: str
    epochs: str
    cost: str
    estimated: str
    messages: str
    rollbacks: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRow:
    """One epoch in words."""

    number: str
    name: str
    colour: str
    from_: str
    until: str
    differ: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Section `Ordering cost`."""

    facts: Sequence[Fact]
    protocols: Sequence[ProtocolRow]
    epochs: Sequence[EpochRow]


class KeyEntry(NamedTuple):
    """A protocol in the plots' key; `is_in_force`: it has a segment of the band, else only an estimate."""

    name: str
    colour: str
    is_in_force: bool


def told(summary: Mapping[str, Any]) -> Told | None:
    """The numbers of the section; None when the summary has none."""
    given = words.mapping(summary.get("ordering"))
    if not given:
        return None
    epochs = epochs_of(summary)
    bins = _bins(given, epochs)
    return Told(
        facts=list(_facts(bins, epochs)),
        protocols=[_protocol_row(name, bins, epochs) for name in dict.fromkeys(epoch.protocol for epoch in epochs)],
        epochs=[_epoch_row(epoch) for epoch in epochs],
    )


def key(epochs: Sequence[Epoch], costs: Costs) -> list[KeyEntry]:
    """The protocols of the plots, those first that were in force."""
    in_force = dict.fromkeys(epoch.protocol for epoch in epochs)
    names = dict.fromkeys([*in_force, *costs.estimated])
    return [KeyEntry(words.protocol(name), colour_of(name), name in in_force) for name in names]


class _Bin(NamedTuple):
    """One bin of the summary's series, with the protocol that was in force at its middle."""

    protocol: str
    cost: float | None
    estimated: float | None
    messages: float
    rollbacks: float


def _bins(given: Mapping[str, Any], epochs: Sequence[Epoch]) -> list[_Bin]:
    series = words.objects(given.get("series"))
    times = [words.number(one.get("at_s")) for one in series]
    step_s = _step([at_s for at_s in times if at_s is not None])
    found = []
    for at_s, one in zip(times, series, strict=True):
        name = "" if at_s is None else _in_force(at_s + step_s / 2, epochs)
        estimated = words.number(_estimates(one).get(name))
        messages, rollbacks = (words.number(one.get(field)) or 0.0 for field in ("messages", "rollbacks"))
        found.append(_Bin(name, words.number(one.get("cost_per_s")), estimated, messages, rollbacks))
    return found


def _step(times: Sequence[float]) -> float:
    return min((later - at for at, later in pairwise(sorted(set(times)))), default=0.0)


def _in_force(at_s: float, epochs: Sequence[Epoch]) -> str:
    return next((epoch.protocol for epoch in reversed(epochs) if epoch.from_s <= at_s), "")


def _facts(bins: Sequence[_Bin], epochs: Sequence[Epoch]) -> Iterator[Fact]:
    costs = [one.cost for one in bins if one.cost is not None]
    if costs:
        note = f"mean over {words.plural(len(costs), 'bin')}; in the worst {words.cost_rate(max(costs))}"
        yield Fact("Cost of the order per second", words.cost_rate(_mean(costs)), note)
    rollbacks, messages = sum(one.rollbacks for one in bins), sum(one.messages for one in bins)
    if messages:
        yield Fact("Messages that it was measured for", words.count(messages), "")
        note = f"{words.significant(rollbacks / messages)} for each message"
        yield Fact("Roll-backs", words.count(rollbacks), note)
    both = [(one.cost, one.estimated) for one in bins if one.cost and one.estimated is not None]
    if both:
        error = _mean([abs(estimated - cost) / cost for cost, estimated in both])
        yield Fact(
            "Estimates off by", words.percent(error), "of the protocol in force, mean of the bins that cost anything"
        )
    if len(epochs) > 1:
        differ = [(epoch.settled_s - epoch.from_s) * 1000 for epoch in epochs[1:]]
        mean, most = words.milliseconds(_mean(differ)), words.milliseconds(max(differ))
        note = f"members differed for {mean} on average, {most} at most"
        yield Fact("Changes of the protocol", words.count(len(epochs) - 1), note)


def _protocol_row(name: str, bins: Sequence[_Bin], epochs: Sequence[Epoch]) -> ProtocolRow:
    own = [one for one in bins if one.protocol == name]
    costs = [one.cost for one in own if one.cost is not None]
    estimates = [one.estimated for one in own if one.estimated is not None]
    return ProtocolRow(
        name=words.protocol(name),
        colour=colour_of(name),
        share=words.percent(len(own) / len(bins)) if bins else words.MISSING,
        epochs=words.count(sum(epoch.protocol == name for epoch in epochs)),
        cost=words.cost_rate(_mean(costs) if costs else None),
        estimated=words.cost_rate(_mean(estimates) if estimates else None),
        messages=words.count(sum(one.messages for one in own)),
        rollbacks=words.count(sum(one.rollbacks for one in own)),
    )


def _epoch_row(epoch: Epoch) -> EpochRow:
    return EpochRow(
        number=epoch.number,
        name=epoch.title,
        colour=epoch.colour,
        from_=words.seconds(epoch.from_s),
        until="the end" if epoch.until_s is None else words.seconds(epoch.until_s),
        differ=words.milliseconds((epoch.settled_s - epoch.from_s) * 1000)
        if epoch.settled_s > epoch.from_s
        else words.MISSING,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
