"""Plots of how latency spreads over the members; `plot` has those over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
from markupsafe import Markup

from analysis.report import formatting as words
from analysis.report import svg
from analysis.report.plots import latency_scale, x_tick
from analysis.report.svg import Scale

COLOURS: Final = 8
"""Distinct line colours in the style sheet: `c0` to `c7`."""

MAX_CDF_POINTS: Final = 6000
"""In one picture, over all members."""


def latency_cdf(table: pd.DataFrame, colour_of: Callable[[str], int]) -> Markup:
    """Share of deliveries at most so slow, one line per member."""
    width, height, left, floor, top = 440.0, 300.0, 44.0, 260.0, 14.0
    rows = table[np.isfinite(table["latency_ms"]) & np.isfinite(table["ratio"])]
    x = latency_scale(rows["latency_ms"], left, width - 14)
    y = svg.linear(0.0, 1.0, floor, top)
    members = list(dict.fromkeys(rows["member_name"]))
    most = max(MAX_CDF_POINTS // max(len(members), 1), 20)
    lines = []
    for member in members[:200]:
        points = _thin(rows[rows["member_name"] == member].sort_values("ratio"), most)
        data = svg.polyline((x(ms), y(min(max(ratio, 0.0), 1.0))) for ms, ratio in points)
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


def _thin(rows: pd.DataFrame, most: int) -> list[tuple[float, float]]:
    """At most so many points of a line, its first and last among them."""
    keep = np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(int))
    return [(float(ms), float(ratio)) for ms, ratio in rows[["latency_ms", "ratio"]].to_numpy()[keep]]


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
