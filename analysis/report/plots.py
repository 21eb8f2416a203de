"""Plots of the report as SVG, which classes style and which need no script.

Every picture over time has a wide and a narrow form, because a scaled-down one cannot be read on a phone; the style
sheet shows the one that fits. Times are seconds since the workload began, latencies milliseconds. Windows are those of
lasting faults.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd
from markupsafe import Markup

from analysis import formatting as words
from analysis import svg
from analysis.report.time_axis import CLASSES, FaultWindow, Floats, Phases, Series
from analysis.svg import Scale

LOGARITHMIC_FROM: Final = 20.0
"""A latency axis is logarithmic when its values span more than this factor."""

MAX_TOLD_WINDOWS: Final = 24
"""With more faults the bars have only numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Drawing surface of a plot over time."""

    width: float
    height: float
    left: float
    right: float
    x: Scale
    narrow: bool
    top: float = 26.0
    bottom: float = 24.0

    @property
    def floor(self) -> float:
        return self.height - self.bottom

    def name(self, plot: str) -> str:
        """Id of the picture in the document."""
        return f"{plot}-{'narrow' if self.narrow else 'wide'}"


def frame(end_s: float, height: float, *, narrow: bool) -> Frame:
    """Surface for 0..`end_s`; equal `end_s` and `narrow` give a time the same position."""
    width, left, right = (400.0, 46.0, 8.0) if narrow else (1080.0, 58.0, 14.0)
    x = svg.linear(0.0, end_s, left, width - right)
    return Frame(width=width, height=height, left=left, right=right, x=x, narrow=narrow)


def latency_over_time(series: Series, windows: Sequence[FaultWindow], phases: Phases, surface: Frame) -> Markup:
    """p50 and p99 as lines, the slowest delivery of each bin as dots."""
    lines = series.lines
    y = latency_scale([*lines["p50_ms"], *lines["max_ms"]], surface.floor, surface.top)
    marks = [_dot(surface.x(t), y(value)) for t, value in _points(series, "max_ms")]
    low, high = series.range("p50_ms")
    description = (
        f"Latency from request to delivery in bins of {words.significant(series.step_s)} s. "
        f"p50 lies between {words.milliseconds(low)} and {words.milliseconds(high)}; "
        f"the largest p99 is {words.milliseconds(series.range('p99_ms')[1])}, "
        f"the slowest delivery {words.milliseconds(series.range('max_ms')[1])}. {_windows_in_words(windows)}"
    )
    return over_time(
        surface,
        "latency",
        "Latency over time",
        description,
        shades(surface, windows, phases),
        y_axis(surface, y, "ms"),
        svg.path("".join(marks), "line-max"),
        line_of(series, "p99_ms", surface, y, "line-p99"),
        line_of(series, "p50_ms", surface, y, "line-p50"),
    )


def traffic_over_time(series: Series, windows: Sequence[FaultWindow], phases: Phases, surface: Frame) -> Markup:
    """Datagrams per second, the classes stacked in the order of CLASSES."""
    tops = np.cumsum([series.lines[name] for name in CLASSES], axis=0)
    y = svg.linear(0.0, svg.nice_ceiling(float(tops[-1].max(initial=0.0))), surface.floor, surface.top)
    floor: Floats = np.zeros(len(series))
    layers = []
    for name, top in zip(CLASSES, tops, strict=True):
        data = svg.area(_steps(series, top, surface.x, y), _steps(series, floor, surface.x, y))
        layers.append(svg.path(data, f"area area-{name}"))
        floor = top
    means = [f"{name} {words.significant(float(series.lines[name].mean()))}" for name in CLASSES]
    return over_time(
        surface,
        "traffic",
        "Traffic by class over time",
        f"Datagrams per second, stacked. Means: {', '.join(means)}. {_windows_in_words(windows)}",
        shades(surface, windows, phases),
        y_axis(surface, y, "datagrams/s"),
        *layers,
    )


def bytes_over_time(series: Series, windows: Sequence[FaultWindow], phases: Phases, surface: Frame) -> Markup:
    """Bytes per second, one line for each node."""
    highest = max((series.range(name)[1] for name in series.lines), default=0.0)
    highest = highest if math.isfinite(highest) else 0.0
    y = svg.linear(0.0, svg.nice_ceiling(highest / 1000), surface.floor, surface.top)
    scaled = replace(series, lines={name: values / 1000 for name, values in series.lines.items()})
    means = [f"{name} {words.size(float(values.mean()))}/s" for name, values in series.lines.items()]
    return over_time(
        surface,
        "bytes",
        "Bytes put on the wire by each node",
        f"Means: {', '.join(means)}.",
        shades(surface, windows, phases),
        y_axis(surface, y, "kB/s"),
        *(line_of(scaled, name, surface, y, f"cdf c{place}") for place, name in enumerate(scaled.lines)),
    )


def fault_lanes(windows: Sequence[FaultWindow], phases: Phases, end_s: float, *, narrow: bool, ticks: bool) -> Markup:
    """One bar per fault, from its effect to its end; a ring at its requested time, with a line to its effect.

    `ticks`: no plot with a time axis follows.
    """
    surface = frame(end_s, 0.0, narrow=narrow)
    placed = [window for window in windows if window.effective_s is not None]
    labels = [_label(window, surface, brief=len(placed) > MAX_TOLD_WINDOWS) for window in placed]
    rows = _packed([_extent(*both, surface) for both in zip(placed, labels, strict=True)])
    pitch = 26.0
    height = pitch * (max(rows, default=0) + 1) + 10
    surface = replace(surface, height=height + (20 if ticks else 0), top=0.0, bottom=24.0 if ticks else 4.0)
    bars = [
        _lane(window, label, row * pitch + 6, surface) for window, label, row in zip(placed, labels, rows, strict=True)
    ]
    return over_time(
        surface,
        "faults",
        "Faults over time",
        _windows_in_words(windows),
        *phase_lines(surface, phases, labelled=False),
        *bars,
        ticks=ticks,
    )


def latency_scale(values: Iterable[float], start: float, end: float) -> Scale:
    """An axis for latencies: from 0 when linear; logarithmic when the values span more than LOGARITHMIC_FROM."""
    known = [float(value) for value in values if math.isfinite(value) and value > 0]
    low, high = min(known, default=0.0), max(known, default=1.0)
    if low > 0 and high / low > LOGARITHMIC_FROM:
        return svg.logarithmic(low * 0.9, high * 1.1, start, end)
    return svg.linear(0.0, svg.nice_ceiling(high), start, end)


def x_tick(x: float, floor: float, label: str, top: float | None) -> Markup:
    """A tick below `floor` with its label, or a line of the grid from `top` down to it."""
    line = svg.line(x, floor, x, floor + 4, "axis") if top is None else svg.line(x, top, x, floor, "grid")
    return svg.group(line, svg.text(x, floor + 17, label, "tick", "middle"))


def over_time(surface: Frame, name: str, title: str, description: str, *children: str, ticks: bool = True) -> Markup:
    """Picture of these children; the data attributes of its group let the script turn a pointer position into a
    time.
    """
    return svg.drawing(
        surface.width,
        surface.height,
        *children,
        *(_time_axis(surface) if ticks else []),
        svg.group(
            svg.rect(surface.left, 0, surface.x.end - surface.left, surface.height, "pointer"),
            class_="over-time",
            data_left=surface.left,
            data_right=surface.x.end,
            data_end=repr(surface.x.high),
        ),
        title=title,
        description=description,
        id_=surface.name(name),
        class_="narrow" if surface.narrow else "wide",
    )


def _time_axis(surface: Frame) -> list[Markup]:
    """Ticks of the time axis; the last one has the unit, within the picture."""
    *times, last = surface.x.ticks(6 if surface.narrow else 11)
    label = f"{svg.tick_label(last)} s"
    label_x = min(surface.x(last), surface.width - 4 * len(label))
    return [
        *(x_tick(surface.x(t), surface.floor, svg.tick_label(t), None) for t in times),
        svg.line(surface.x(last), surface.floor, surface.x(last), surface.floor + 4, "axis"),
        svg.text(label_x, surface.floor + 17, label, "tick", "middle"),
    ]


def y_axis(surface: Frame, y: Scale, unit: str) -> Markup:
    """Grid lines with their values, and the unit above them."""
    right = surface.x.end
    ticks = [
        svg.group(
            svg.line(surface.left, y(tick), right, y(tick), "grid"),
            svg.text(surface.left - 7, y(tick) + 4, svg.tick_label(tick), "tick", "end"),
        )
        for tick in y.ticks(6)
    ]
    return svg.group(*ticks, svg.text(0, 11, f"{unit} (log)" if y.logarithmic else unit, "unit"))


def shades(surface: Frame, windows: Sequence[FaultWindow], phases: Phases) -> Markup:
    """Fault windows behind a plot, and lines at the end of the workload and of the drain."""
    parts = []
    for window in windows:
        if window.effective_s is None:
            continue
        left, right = _span(window, surface)
        parts.append(svg.rect(left, 0, max(right - left, 1.5), surface.floor, f"shade {svg.kind_class(window.kind)}"))
        parts.append(svg.line(left, 0, left, surface.floor, f"edge {svg.kind_class(window.kind)}"))
        parts.append(svg.text(left + 4, 11, f"#{window.number}", "window-number"))
    return svg.group(*parts, *phase_lines(surface, phases, labelled=True))


def phase_lines(surface: Frame, phases: Phases, *, labelled: bool) -> Iterable[Markup]:
    """Lines at the end of the load and of the drain."""
    for at_s, label in ((phases.load_end_s, "load ends"), (phases.drained_s, "drained")):
        if at_s is None or not 0 < at_s <= surface.x.high:
            continue
        x = surface.x(at_s)
        yield svg.line(x, 0, x, surface.floor, "phase")
        if labelled and not surface.narrow and label == "load ends":
            yield svg.text(x - 4, 11, label, "phase-label", "end")


def _lane(window: FaultWindow, label: tuple[float, str], top: float, surface: Frame) -> Markup:
    left, right = _span(window, surface)
    label_left, text = label
    asked = window.asked_s if window.asked_s is not None else window.effective_s
    x_asked = surface.x(asked or 0.0)
    return svg.group(
        svg.element("title", f"#{window.number} {window.what} {window.where}"),
        svg.rect(left, top, max(right - left, 2), 18, f"bar {svg.kind_class(window.kind)}", radius=3),
        svg.rect(left, top, 3, 18, f"bar-start {svg.kind_class(window.kind)}"),
        svg.line(x_asked, top + 9, left, top + 9, f"asked-line {svg.kind_class(window.kind)}"),
        svg.circle(x_asked, top + 9, 3.5, f"asked {svg.kind_class(window.kind)}"),
        svg.text(label_left, top + 13, text, f"lane-label{' moved' if label_left < left else ''}"),
        class_="lane",
    )


def _label(window: FaultWindow, surface: Frame, *, brief: bool) -> tuple[float, str]:
    """Position and text of a label: right of the bar's start; left of the ring if it would leave the picture; as far
    right as possible if there is no room either.
    """
    label = f"#{window.number}" if brief else f"#{window.number} {window.what}"
    if not surface.narrow and not brief:
        late = window.late_ms
        label += f" · {window.where}" if window.where else ""
        label += f" · in effect {late:+.0f} ms" if late is not None else ""
    room = int((surface.x.end - surface.left) / _CHARACTER)
    label = label if len(label) <= room else label[: room - 1] + "…"
    effective_s = window.effective_s or 0.0
    start, width = surface.x(effective_s) + 10, len(label) * _CHARACTER
    if start + width <= surface.x.end:
        return start, label
    asked_s = effective_s if window.asked_s is None else window.asked_s
    before = surface.x(min(asked_s, effective_s)) - 10 - width
    return before if before >= surface.left else max(surface.left, surface.x.end - width), label


_CHARACTER = 7.0
"""Room for one character of a lane's label."""


def _extent(window: FaultWindow, label: tuple[float, str], surface: Frame) -> tuple[float, float]:
    left, right = _span(window, surface)
    label_left, text = label
    return min(left, label_left) - 4, max(right, label_left + len(text) * _CHARACTER) + 4


def _packed(extents: Sequence[tuple[float, float]]) -> list[int]:
    """Row of each extent: the first in which it overlaps no earlier one."""
    ends: list[float] = []
    rows = []
    for left, right in extents:
        row = next((i for i, end in enumerate(ends) if end <= left), len(ends))
        ends[row:] = [right] if row == len(ends) else [right, *ends[row + 1 :]]
        rows.append(row)
    return rows


def _span(window: FaultWindow, surface: Frame) -> tuple[float, float]:
    until = surface.x.high if window.until_s is None else window.until_s
    return surface.x(window.effective_s or 0.0), surface.x(until)


def _windows_in_words(windows: Sequence[FaultWindow]) -> str:
    """Text for screen readers."""
    if not windows:
        return "No faults."
    parts = [
        f"#{window.number} {window.what} {window.where} from {words.seconds(window.effective_s, 1)} "
        f"to {words.seconds(window.until_s, 1) if window.until_s is not None else 'the end'}"
        for window in windows[:12]
    ]
    return f"Faults: {'; '.join(parts)}{' …' if len(windows) > 12 else ''}."


def _points(series: Series, name: str) -> Iterable[tuple[float, float]]:
    """Middle and value of each bin with a value."""
    for t, value in zip(series.t_s, series.lines[name], strict=True):
        if math.isfinite(value):
            yield float(t) + series.step_s / 2, float(value)


def line_of(series: Series, name: str, surface: Frame, y: Scale, class_: str) -> Markup:
    """One line of a series, through the middles of its bins."""
    points = (
        (surface.x(float(t) + series.step_s / 2), y(float(value))) if math.isfinite(value) else None
        for t, value in zip(series.t_s, series.lines[name], strict=True)
    )
    return svg.path(svg.polyline(points), f"line {class_}")


def _steps(series: Series, values: Floats, x: Scale, y: Scale) -> list[svg.Point]:
    return [(x(float(t) + series.step_s / 2), y(float(value))) for t, value in zip(series.t_s, values, strict=True)]


def _dot(x: float, y: float) -> str:
    return f"M{svg.coordinate(x)} {svg.coordinate(y)}h.1"


MAX_CDF_POINTS: Final = 6000
"""Most points of one picture, over all members."""


def latency_cdf(table: pd.DataFrame, colour_of: Callable[[str], int]) -> Markup:
    """Cumulative share of deliveries over latency, one line per member."""
    width, height, left, floor, top = 440.0, 300.0, 44.0, 260.0, 14.0
    values = table[["ratio", "latency_ms"]].to_numpy(dtype=np.float64)
    is_known = np.isfinite(values).all(axis=1)
    values, names = values[is_known], table["member_name"].to_numpy()[is_known]
    x = latency_scale(values[:, 1].tolist(), left, width - 14)
    y = svg.linear(0.0, 1.0, floor, top)
    members = list(dict.fromkeys(names))
    most = max(MAX_CDF_POINTS // max(len(members), 1), 20)
    lines = []
    for member in members[:200]:
        points = values[names == member]
        points = _thin(points[np.argsort(points[:, 0], kind="stable")], most)
        data = svg.polyline((x(ms), y(min(max(ratio, 0.0), 1.0))) for ratio, ms in points.tolist())
        lines.append(svg.path(data, f"cdf c{colour_of(member)}", svg.element("title", member)))
    return svg.drawing(
        width,
        height,
        _ratio_grid(y, left, width - 14),
        *[x_tick(x(tick), floor, svg.tick_label(tick), top) for tick in x.ticks(6)],
        svg.text(width - 14, height - 4, "ms (log)" if x.logarithmic else "ms", "unit", "end"),
        *lines,
        title="Latency distribution by member",
        description=f"Cumulative share of deliveries over latency, {words.plural(len(members), 'member')}.",
        id_="cdf",
    )


def member_latency(members: Sequence[Mapping[str, Any]], colour_of: Callable[[str], int]) -> Markup:
    """p50 to p99 of each member as a bar with two ends, one row each."""
    pitch = 28.0 if len(members) <= 8 else 17.0
    width, left, top = 440.0, 76.0, 8.0
    height = top + pitch * len(members) + 44
    values = [words.number(member.get(name)) for member in members for name in ("p50_ms", "p99_ms")]
    x = latency_scale([value for value in values if value], left, width - 18)
    rows = [_member_row(member, top + pitch * (i + 0.5), x, colour_of) for i, member in enumerate(members)]
    return svg.drawing(
        width,
        height,
        *[x_tick(x(tick), height - 40, svg.tick_label(tick), top) for tick in x.ticks(6)],
        svg.text(width - 18, height - 4, "ms (log)" if x.logarithmic else "ms", "unit", "end"),
        *rows,
        title="Latency of each member",
        description="From p50 (filled) to p99 (ring) of the latency at each receiving member.",
        id_="members",
    )


def _ratio_grid(y: Scale, left: float, right: float) -> Markup:
    parts = []
    for ratio in (0.0, 0.25, 0.5, 0.75, 0.9, 0.99):
        parts.append(svg.line(left, y(ratio), right, y(ratio), "grid"))
        parts.append(svg.text(left - 7, y(ratio) + 4, f"{ratio * 100:.0f} %", "tick", "end"))
    return svg.group(*parts)


def _thin(points: Floats, most: int) -> Floats:
    """At most `most` points of a line, with its first and last."""
    keep = np.unique(np.linspace(0, len(points) - 1, min(most, len(points))).round().astype(int))
    return np.take(points, keep, axis=0)


def _member_row(member: Mapping[str, Any], y: float, x: Scale, colour_of: Callable[[str], int]) -> Markup:
    name = words.clean(member.get("member"), 40)
    p50, p99 = words.number(member.get("p50_ms")), words.number(member.get("p99_ms"))
    label = svg.text(68, y + 4, name if len(name) <= 11 else name[:10] + "…", "tick", "end")
    if not p50 or not p99:
        return svg.group(label, svg.text(x.start + 4, y + 4, "no deliveries", "unit"))
    return svg.group(
        svg.element("title", f"{name}: p50 {words.milliseconds(p50)}, p99 {words.milliseconds(p99)}"),
        label,
        svg.line(x(p50), y, x(p99), y, f"dumbbell c{colour_of(name)}"),
        svg.circle(x(p50), y, 4, f"dot c{colour_of(name)}"),
        svg.circle(x(p99), y, 4, f"ring c{colour_of(name)}"),
    )
