"""The report's plots of how messages were ordered, on the time axis of the other plots: the protocol in force, the
work that roll-backs undid, and the cost of the order, measured and as the members estimated it.

Epochs and costs come from section `ordering` of the summary, roll-backs from the trace. An epoch begins with the first
member that reports it in force; until the last one does (`settled_s`), members differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from analysis import formatting as words
from analysis import svg
from analysis.report.plots import Frame, frame, line_of, over_time, phase_lines, shades, y_axis
from analysis.report.time_axis import FaultWindow, Phases, Series, series_of
from analysis.svg import colour_of

MAX_EPOCHS: Final = 400
"""Most epochs that the band shows."""

MAX_ESTIMATES: Final = 8
"""Protocols whose estimated costs are drawn."""

MEASURED: Final = "measured cost"
"""Name of the line of the measured cost; no protocol has this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One protocol in force, in seconds since the workload began. `until_s` None: to the end of the run."""

    number: str
    protocol: str
    """Name as in the summary; `title` is for display."""
    from_s: float
    settled_s: float
    until_s: float | None

    @property
    def title(self) -> str:
        return words.protocol(self.protocol)

    @property
    def colour(self) -> str:
        """Class of the epoch's colour."""
        return colour_of(self.protocol)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rollbacks:
    """Times of roll-backs (seconds since the workload began), and the number of executions that each undid."""

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
    """Epochs by beginning; one without a beginning or a protocol is left out."""
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
"""Longest time that is drawn: 30 years."""

_MOST: Final = 1e18
"""Greatest cost that is drawn, in ns per second: that of 10**9 messages waiting at once."""


def _settling_s(given: Mapping[str, Any]) -> float:
    switch_ms = words.number(given.get("switch_ms")) or 0.0
    return min(max(switch_ms, 0.0), _LONGEST_MS) / 1000


def costs_of(summary: Mapping[str, Any]) -> Costs:
    """Cost over time from the summary; empty if no cost is known."""
    rows: list[dict[str, float | None]] = []
    protocols: dict[str, None] = {}
    for given in words.objects(words.mapping(summary.get("ordering")).get("series")):
        estimates = {words.clean(name, 40): words.number(cost) for name, cost in _estimates(given).items()}
        protocols |= dict.fromkeys(estimates)
        rows.append(
            estimates | {"t_s": words.number(given.get("t_s")), MEASURED: words.number(given.get("cost_per_s"))}
        )
    estimated = [name for name in protocols if name not in ("", "t_s", MEASURED)][:MAX_ESTIMATES]
    names = [MEASURED, *estimated]
    table = np.array([[row.get(name) for name in ("t_s", *names)] for row in rows], dtype=np.float64)
    table = table.reshape(len(rows), len(names) + 1)
    table[~(np.abs(table) <= _MOST)] = math.nan
    if np.isnan(table[:, 1:]).all():
        table = table[:0]
    columns = {name: table[:, place] / 1e6 for place, name in enumerate(names, start=1)}
    return Costs(series=series_of(table[:, 0], columns, dict.fromkeys(names, np.nanmean)), estimated=estimated)


def _estimates(given: Mapping[str, Any]) -> Mapping[str, Any]:
    return words.mapping(given.get("estimates"))


def rollbacks_of(table: pd.DataFrame, phases: Phases) -> Rollbacks:
    """Roll-backs from rows of `at_ns` and `extra` (node.trace.Notice.ROLLED_BACK); none when the run never started."""
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
    """Protocols of the plots, those in force first."""
    in_force = dict.fromkeys(epoch.protocol for epoch in epochs)
    names = dict.fromkeys([*in_force, *costs.estimated])
    return [
        KeyEntry(words.protocol(name), colour_of(name), name in in_force, name in costs.estimated) for name in names
    ]


# --- pictures

BAND: Final = 26.0
"""Height of the band."""

MARKS: Final = 46.0
"""Height of the largest mark of roll-backs."""

BIN: Final = 3.0
"""Width of a bin of roll-backs: finer ones cannot be distinguished, and the drawing stays small for thousands of
them.
"""

SETTLING: Final = 3.0
"""Least width of the stretch in which members differ: it lasts milliseconds and must be visible."""

_CHARACTER: Final = 7.6


def rollback_bins(surface: Frame) -> int:
    """Number of bins of roll-backs on the axis."""
    return round((surface.x.end - surface.left) / BIN)


def order_over_time(
    epochs: Sequence[Epoch], rollbacks: Rollbacks, phases: Phases, end_s: float, *, narrow: bool, ticks: bool
) -> Markup:
    """Band of the protocol in force, and below it the executions that roll-backs undid. Either may be missing.

    `ticks`: no plot with a time axis follows.
    """
    surface = frame(end_s, 0.0, narrow=narrow)
    top = BAND + 24 if epochs else 18.0
    floor = top + MARKS if len(rollbacks) else BAND + 4
    bottom = 24.0 if ticks else 6.0
    surface = replace(surface, height=floor + bottom, top=top, bottom=bottom)
    binned = rollbacks.binned(end_s, rollback_bins(surface))
    parts = [*_marks(binned, surface, phases)] if len(rollbacks) else []
    parts += _band(epochs, surface)
    description = f"{_epochs_in_words(epochs)} {_rollbacks_in_words(rollbacks)}"
    return over_time(surface, "order", "Protocol in force and roll-backs over time", description, *parts, ticks=ticks)


def cost_over_time(
    costs: Costs, epochs: Sequence[Epoch], windows: Sequence[FaultWindow], phases: Phases, surface: Frame
) -> Markup:
    """The measured cost as a line; each protocol's estimated cost as a dashed line of its colour."""
    series = costs.series
    largest = [series.range(name)[1] for name in series.lines]
    most = max((value for value in largest if math.isfinite(value)), default=0.0)
    y = svg.linear(0.0, svg.nice_ceiling(most), surface.floor, surface.top)
    estimated = [line_of(series, name, surface, y, f"line-estimate {colour_of(name)}") for name in costs.estimated]
    low, high = series.range(MEASURED)
    description = (
        f"Cost of the order per second of time in bins of {words.significant(series.step_s)} s, "
        f"from {words.milliseconds(low)} to {words.milliseconds(high)}. {_epochs_in_words(epochs)}"
    )
    return over_time(
        surface,
        "cost",
        "Cost of the order over time",
        description,
        shades(surface, windows, phases),
        *_changes(epochs, surface, tinted=not any(window.effective_s is not None for window in windows)),
        y_axis(surface, y, "ms/s"),
        *estimated,
        line_of(series, MEASURED, surface, y, "line-cost"),
    )


def _band(epochs: Sequence[Epoch], surface: Frame) -> Iterator[Markup]:
    """One segment per epoch, hatched over the previous one until the epoch has begun at all members."""
    hatched: dict[str, Markup] = {}
    segments = []
    for before, epoch in zip([None, *epochs][: len(epochs)], epochs, strict=True):
        left, right = _span(epoch, surface)
        segments.append(svg.rect(left, 0, max(right - left, 0.6), BAND, f"epoch {epoch.colour}"))
        if before is not None:
            until = max(surface.x(epoch.settled_s), left + SETTLING)
            hatched.setdefault(epoch.colour, _hatch(epoch, surface))
            segments.append(svg.rect(left, 0, until - left, BAND, f"epoch {before.colour}"))
            segments.append(
                svg.element(
                    "rect",
                    x=left,
                    y=0.0,
                    width=until - left,
                    height=BAND,
                    class_="settling",
                    fill=f"url(#{_hatch_id(epoch, surface)})",
                )
            )
        segments.append(_label(epoch, left, right))
    if hatched:
        yield svg.element("defs", *hatched.values())
    yield from segments


def _label(epoch: Epoch, left: float, right: float) -> Markup:
    """The protocol's name if the segment has room for it, and always a tooltip."""
    until = "the end" if epoch.until_s is None else f"{epoch.until_s:.3f} s"
    title = svg.element(
        "title", f"{epoch.title}, epoch {epoch.number}: {epoch.from_s:.3f} s to {until}{_differ(epoch)}"
    )
    room = right - left - 14
    shown = epoch.title if len(epoch.title) * _CHARACTER <= room else ""
    return svg.group(
        title,
        svg.rect(left, 0, max(right - left, 1.0), BAND, "pointer"),
        *([svg.text(left + 9, BAND / 2 + 4.5, shown, "epoch-name")] if shown else []),
        class_="epoch-told",
    )


def _differ(epoch: Epoch) -> str:
    took_s = epoch.settled_s - epoch.from_s
    return f"; members differ for {words.milliseconds(took_s * 1000)}" if took_s > 0 else ""


def _hatch(epoch: Epoch, surface: Frame) -> Markup:
    return svg.element(
        "pattern",
        svg.line(1.5, 0, 1.5, 6, f"hatch {epoch.colour}"),
        id=_hatch_id(epoch, surface),
        width="6",
        height="6",
        patternUnits="userSpaceOnUse",
        patternTransform="rotate(45)",
    )


def _hatch_id(epoch: Epoch, surface: Frame) -> str:
    return f"{surface.name('hatch')}-{epoch.colour}"


def _marks(binned: Series, surface: Frame, phases: Phases) -> Iterator[Markup]:
    """A tick for each bin with a roll-back; its height is the number of executions undone per second."""
    rate = binned.lines["undone"] / binned.step_s
    y = svg.linear(0.0, svg.nice_ceiling(float(rate.max(initial=0.0))), surface.floor, surface.top)
    width = (surface.x.end - surface.left) / len(binned)
    ticks = [
        # The smallest roll-back must be visible.
        f"M{svg.coordinate(surface.x(float(t)))} {svg.coordinate(surface.floor)}"
        f"v{svg.coordinate(min(y(float(value)) - surface.floor, -2.0))}h{svg.coordinate(width * 0.8)}"
        f"V{svg.coordinate(surface.floor)}z"
        for t, value in zip(binned.t_s, rate, strict=True)
        if value > 0
    ]
    yield from phase_lines(surface, phases, labelled=False)
    for tick in (0.0, y.high):
        yield svg.line(surface.left, y(tick), surface.x.end, y(tick), "grid")
        yield svg.text(surface.left - 7, y(tick) + 4, svg.tick_label(tick), "tick", "end")
    yield svg.text(0, surface.top - 10, "undone/s", "unit")
    yield svg.path("".join(ticks), "rollbacks")


def _changes(epochs: Sequence[Epoch], surface: Frame, *, tinted: bool) -> Iterator[Markup]:
    """A line at each change of protocol; `tinted`: with the band's colours behind the plot, if no fault is shaded
    there.
    """
    for epoch in epochs if tinted else ():
        left, right = _span(epoch, surface)
        yield svg.rect(left, surface.top, right - left, surface.floor - surface.top, f"epoch-tint {epoch.colour}")
    for _, epoch in pairwise(epochs):
        x = surface.x(epoch.from_s)
        yield svg.line(x, surface.top, x, surface.floor, f"epoch-edge {epoch.colour}")


def _span(epoch: Epoch, surface: Frame) -> tuple[float, float]:
    until_s = surface.x.high if epoch.until_s is None else epoch.until_s
    return surface.x(epoch.from_s), surface.x(until_s)


def _epochs_in_words(epochs: Sequence[Epoch]) -> str:
    """Text for screen readers."""
    if not epochs:
        return "No epochs were reported."
    parts = [f"{epoch.title} from {words.seconds(epoch.from_s, 1)}" for epoch in epochs[:12]]
    return f"In force: {'; '.join(parts)}{' …' if len(epochs) > 12 else ''}."


def _rollbacks_in_words(rollbacks: Rollbacks) -> str:
    if not len(rollbacks):
        return "No roll-backs."
    undone = words.plural(int(rollbacks.undone.sum()), "execution")
    return f"{words.plural(len(rollbacks), 'roll-back')} undid {undone}."
