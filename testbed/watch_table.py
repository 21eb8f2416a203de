"""The live table of `orderbed watch`: one row per node, calm: columns keep their places, and only figures change."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from analysis.stream_live import Figures, View
from testbed.watch import Look

NOTHING = "–"
FEW_ROWS = 3
"""What stands around the rows of nodes."""
LOSS_SHOWN = 0.0005


def look_table(look: Look, title: str, *, height: int | None = None) -> RenderableType:
    """The table of one look; `height` lines at most, and then the nodes with the most traffic are shown."""
    view = look.view
    nodes = view.nodes if height is None else _busiest(view.nodes, max(height - 9, FEW_ROWS))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column("node", min_width=8, no_wrap=True)
    for heading in ("sent/s", "Mbit/s", "got/s", "delivered/s"):
        table.add_column(heading, justify="right", min_width=max(len(heading), 7), no_wrap=True)
    for heading in ("network p50", "p99 ms", "delivery p50", "p99 ms"):
        table.add_column(heading, justify="right", min_width=len(heading), no_wrap=True)
    for heading in ("dummies", "copies", "lost"):
        table.add_column(heading, justify="right", min_width=7, no_wrap=True)
    for figures in nodes:
        table.add_row(figures.name, *_cells(figures))
    table.add_section()
    table.add_row("all", *_cells(view.total), style="bold")
    parts: list[RenderableType] = [_head(look, title), table]
    if len(nodes) < len(view.nodes):
        parts.append(Text(f"  and {len(view.nodes) - len(nodes)} nodes with less traffic", "dim"))
    parts.append(_foot(view))
    return Group(*parts)


def _head(look: Look, title: str) -> Text:
    view = look.view
    state = ("ended", "bold") if look.is_over else ("live", "bold green")
    parts: list[str | tuple[str, str]] = [state, "  ", (title, "bold")]
    parts.append((f"  {view.since_s:,.1f} s, {view.frames:,} frames, {view.records:,} records", "dim"))
    if look.behind_bytes > 1 << 20:
        parts.append((f"  catching up: {look.behind_bytes / 2**20:,.0f} MiB to go", "yellow"))
    elif look.batch_s is not None and not look.is_over:
        parts.append((f"  batch {look.batch_s:.2f} s", "dim"))
    return Text.assemble(*parts)


def _foot(view: View) -> Text:
    said = [f"rates and latencies over the last {view.window_s:.0f} s of capture time"]
    if view.lost:
        said.append(f"{view.lost:,} lost in all")
    if view.late:
        said.append(f"{view.late:,} arrived too late to be paired, counted as lost")
    if view.unpaired:
        said.append(f"{view.unpaired:,} deliveries without their request")
    return Text("  " + "; ".join(said), "dim")


def _cells(figures: Figures) -> list[Text]:
    return [
        _number(figures.sent_per_s),
        _number(figures.sent_bps / 1e6, digits=2),
        _number(figures.received_per_s),
        _number(figures.delivered_per_s),
        _number(figures.network.p50_ms, digits=2),
        _number(figures.network.p99_ms, digits=2),
        _number(figures.delivery.p50_ms, digits=2),
        _number(figures.delivery.p99_ms, digits=2),
        _percent(figures.dummy_rate),
        _percent(figures.retransmission_ratio),
        _percent(figures.loss_ratio, alarm=True),
    ]


def _number(value: float | None, *, digits: int = 0) -> Text:
    return Text(NOTHING, "dim") if value is None else Text(f"{value:,.{digits}f}")


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
