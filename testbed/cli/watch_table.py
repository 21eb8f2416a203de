"""The live table of `orderbed watch`: one row per node, calm: columns keep their places, and only figures change."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from analysis.live.counts import Figures, View
from testbed.run.watch import Look

NOTHING = "–"
FEW_ROWS = 3
"""What stands around the rows of nodes."""
LOSS_SHOWN = 0.0005
MOST_NAMED = 8
"""Nodes in a minority that are named."""


DUMMY = "dummy"
"""Its column makes room for that of views in a narrow terminal."""


class _Column(NamedTuple):
    """One column. Those that a narrow terminal can spare are left out there."""

    heading: str
    cell: Callable[[Figures], Text]
    width: int
    is_spared: bool = False


COLUMNS = (
    _Column("sent/s", lambda one: _number(one.sent_per_s), 7),
    _Column("Mbit/s", lambda one: _number(one.sent_bps / 1e6, digits=2), 7, is_spared=True),
    _Column("got/s", lambda one: _number(one.received_per_s), 6),
    _Column("network\np50 ms", lambda one: _time(one.network.p50_ms), 7),
    _Column("\np99 ms", lambda one: _time(one.network.p99_ms), 7),
    _Column("deliv-\nered/s", lambda one: _number(one.delivered_per_s), 6),
    _Column("delivery\np50 ms", lambda one: _time(one.delivery.p50_ms), 8),
    _Column("\np99 ms", lambda one: _time(one.delivery.p99_ms), 7),
    _Column(DUMMY, lambda one: _percent(one.dummy_rate), 6),
    _Column("copies", lambda one: _percent(one.retransmission_ratio), 7, is_spared=True),
    _Column("lost", lambda one: _percent(one.loss_ratio, alarm=True), 6),
)
VIEW_COLUMN = _Column("view", lambda one: _view(one), 5)
"""Only where a node tells of views."""
WIDE = 104
"""Columns of a terminal that has room for all of them."""


def look_table(look: Look, title: str, *, width: int = WIDE, height: int | None = None) -> RenderableType:
    """The table of one look; `height` lines at most, and then the nodes with the most traffic are shown."""
    view = look.view
    nodes = view.nodes if height is None else _busiest(view.nodes, max(height - 10, FEW_ROWS))
    columns = [column for column in COLUMNS if width >= WIDE or not column.is_spared]
    if any(figures.view for figures in view.nodes):
        columns = [column for column in columns if width >= WIDE or column.heading != DUMMY] + [VIEW_COLUMN]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, int(width >= WIDE), 0, 0), header_style="dim")
    table.add_column("\nnode", min_width=6, overflow="ellipsis", no_wrap=True)
    for column in columns:
        heading = column.heading if "\n" in column.heading else f"\n{column.heading}"
        table.add_column(heading, justify="right", min_width=column.width)
    for figures in nodes:
        table.add_row(Text(figures.name), *(column.cell(figures) for column in columns))
    table.add_section()
    table.add_row("all", *(column.cell(view.total) for column in columns), style="bold")
    parts: list[RenderableType] = [_head(look, title), table]
    if len(nodes) < len(view.nodes):
        parts.append(Text(f"  and {len(view.nodes) - len(nodes)} nodes with less traffic", "dim"))
    parts.append(_foot(view))
    return Group(*parts)


def _head(look: Look, title: str) -> Text:
    view = look.view
    is_starting = not view.frames and look.behind_bytes
    state = ("ended", "bold") if look.is_over else ("starting", "yellow") if is_starting else ("live", "bold green")
    parts: list[str | tuple[str, str]] = [state, "  ", (title, "bold")]
    parts.append((f"  {view.since_s:,.1f} s, {view.frames:,} frames, {view.records:,} records", "dim"))
    if look.behind_bytes > 1 << 20:
        parts.append((f"  catching up: {look.behind_bytes / 2**20:,.0f} MiB to go", "yellow"))
    elif look.batch_s is not None and not look.is_over:
        parts.append((f"  batch {look.batch_s:.2f} s", "dim"))
    return Text.assemble(*parts)


def _foot(view: View) -> Text:
    said = [f"rates and latencies: the last {view.window_s:.0f} s"]
    if view.lost:
        said.append(f"{view.lost:,} lost in all")
    if view.late:
        said.append(f"{view.late:,} came too late, counted as lost")
    if view.unpaired:
        said.append(f"{view.unpaired:,} deliveries without their request")
    foot = Text("  " + "; ".join(said), "dim")
    minority = [one.name for one in view.nodes if one.is_minority]
    if minority:
        rest = len(minority) - MOST_NAMED
        named = ", ".join(minority[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
        foot.append(f"\n  in a minority: {named}", "red")
    return foot


def _view(one: Figures) -> Text:
    return Text(str(one.view) if one.view else NOTHING, "red" if one.is_minority else "" if one.view else "dim")


def _number(value: float | None, *, digits: int = 0) -> Text:
    return Text(NOTHING, "dim") if value is None else Text(f"{value:,.{digits}f}")


def _time(value_ms: float | None) -> Text:
    """Three figures or more, in the room of six."""
    return _number(value_ms, digits=2 if value_ms is None or value_ms < 100 else 0)


def _percent(value: float | None, *, alarm: bool = False) -> Text:
    if value is None:
        return Text(NOTHING, "dim")
    return Text(f"{100 * value:.1f} %", "red" if alarm and value > LOSS_SHOWN else "")


def _busiest(nodes: tuple[Figures, ...], rows: int) -> tuple[Figures, ...]:
    """The nodes with the most traffic, in their usual order."""
    if len(nodes) <= rows:
        return nodes
    ranked = sorted(nodes, key=lambda one: -(one.sent_per_s + one.received_per_s))[:rows]
    names = {one.name for one in ranked}
    return tuple(one for one in nodes if one.name in names)
