"""The commands `watch` and `info`: live figures of a capture that is being written, and the contents of any capture.

The live table has one row per node; columns keep their places, and only figures change.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console as RichConsole
from rich.console import Group, RenderableType
from rich.live import Live as LiveDisplay
from rich.table import Table
from rich.text import Text

from analysis.files import is_there
from testbed.cli import lazy
from testbed.console import DEFAULT_RUNS, Console, Json, Panel, Runs, one_line, plain_table, print_json, table
from testbed.paths import is_directory
from testbed.rundir import store
from topologies.formats.errors import InputError

if TYPE_CHECKING:
    from analysis.capture.totals import CaptureTotals, InterfaceTotals
    from analysis.live.counts import Figures, Snapshot
    from testbed.run.watch import Update

LONGEST_IDLE_S = 30.0


def watch(
    what: Annotated[
        str | None, typer.Argument(metavar="run|capture", help="A running run, or a capture. Default: the newest run.")
    ] = None,
    runs: Runs = DEFAULT_RUNS,
    idle: Annotated[float, typer.Option("--idle", help="End after so many seconds without new data.")] = LONGEST_IDLE_S,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line, twice a second.")] = False,
) -> None:
    """Show live figures of a run: rates, latency, dummies and losses of each node. It ends with the run, or by Ctrl-C.

    The exit code is 3 if the run has ended and is not complete.
    """
    if not 0 < idle < 86_400:
        raise InputError(f"--idle must lie between 0 and 86400 seconds, not {idle:g}")
    target = lazy.watch.find(runs, what)
    console = Console(quiet=as_json)
    # Ctrl-C is the normal end of `watch`: no error, and nothing is lost.
    with contextlib.suppress(KeyboardInterrupt):
        out = RichConsole(highlight=False)
        if as_json:
            lazy.watch.watch(target, lazy.watch.json_line, console, idle_s=idle)
        elif not out.is_terminal:
            last = lazy.watch.watch(target, lambda _: None, console, idle_s=idle)
            out.print(update_table(last, target.name, width=out.width))
        else:
            with contextlib.ExitStack() as stack:
                display = LiveDisplay(console=out, auto_refresh=False, vertical_overflow="crop")

                def show(update: Update) -> None:
                    if not display.is_started:
                        stack.enter_context(display)
                    display.update(update_table(update, target.name, width=out.width, height=out.height), refresh=True)

                lazy.watch.watch(target, show, console, idle_s=idle)
        target.require_whole()


def info(
    capture: Annotated[
        Path, typer.Argument(metavar="capture|run", help="A pcapng or pcap file of any program, or a run.")
    ],
    runs: Runs = DEFAULT_RUNS,
    as_json: Json = False,
) -> None:
    """Print the contents of a capture: interfaces, times, frames, drops and protocols, at 5 million frames a second."""
    is_run = is_directory(capture) or not (capture.suffix or is_there(capture))
    found = lazy.totals.totals(store.find(runs, str(capture)) / "capture.pcapng" if is_run else capture)
    if as_json:
        print_json(dataclasses.asdict(found))
        return
    RichConsole(highlight=False, soft_wrap=True).print(info_tables(found))


def register(app: typer.Typer) -> None:
    """Add the commands to `orderbed`."""
    for verb in (watch, info):
        app.command(rich_help_panel=Panel.RUNS)(verb)


NOTHING = "–"
FEW_ROWS = 3
"""Nodes that are shown however low the terminal is."""
LOSS_SHOWN = 0.0005
MOST_NAMED = 8
"""Most nodes in a minority that are listed by name."""


DUMMY = "dummy"
"""Heading of the column that a narrow terminal replaces by that of views."""


class _Column(NamedTuple):
    """One column; a narrow terminal leaves it out if `is_spared`."""

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
"""Shown only if a node reports views."""
WIDE = 104
"""Width in characters of a terminal that has room for all columns."""


def update_table(update: Update, title: str, *, width: int = WIDE, height: int | None = None) -> RenderableType:
    """The table of one update; within `height` lines, the nodes with the most traffic are shown."""
    snapshot = update.snapshot
    nodes = snapshot.nodes if height is None else _busiest(snapshot.nodes, max(height - 10, FEW_ROWS))
    columns = [column for column in COLUMNS if width >= WIDE or not column.is_spared]
    if any(figures.view for figures in snapshot.nodes):
        columns = [column for column in columns if width >= WIDE or column.heading != DUMMY] + [VIEW_COLUMN]
    made = table(padding=(0, int(width >= WIDE), 0, 0))
    made.header_style = "dim"
    made.add_column("\nnode", min_width=6, overflow="ellipsis", no_wrap=True)
    for column in columns:
        heading = column.heading if "\n" in column.heading else f"\n{column.heading}"
        made.add_column(heading, justify="right", min_width=column.width)
    for figures in nodes:
        made.add_row(Text(one_line(figures.name)), *(column.cell(figures) for column in columns))
    made.add_section()
    made.add_row("all", *(column.cell(snapshot.total) for column in columns), style="bold")
    parts: list[RenderableType] = [_head(update, title), made]
    if len(nodes) < len(snapshot.nodes):
        parts.append(Text(f"  and {len(snapshot.nodes) - len(nodes)} nodes with less traffic", "dim"))
    parts.append(_foot(snapshot))
    return Group(*parts)


def _head(update: Update, title: str) -> Text:
    snapshot = update.snapshot
    is_starting = not snapshot.frames and update.behind_bytes
    state = ("ended", "bold") if update.has_ended else ("starting", "yellow") if is_starting else ("live", "bold green")
    parts: list[str | tuple[str, str]] = [state, "  ", (one_line(title), "bold")]
    parts.append((f"  {snapshot.since_s:,.1f} s, {snapshot.frames:,} frames, {snapshot.records:,} records", "dim"))
    if update.behind_bytes > 1 << 20:
        parts.append((f"  catching up: {update.behind_bytes / 2**20:,.0f} MiB to go", "yellow"))
    elif update.batch_s is not None and not update.has_ended:
        parts.append((f"  batch {update.batch_s:.2f} s", "dim"))
    return Text.assemble(*parts)


def _foot(snapshot: Snapshot) -> Text:
    said = [f"rates and latencies: the last {snapshot.window_s:.0f} s"]
    if snapshot.lost:
        said.append(f"{snapshot.lost:,} lost in all")
    if snapshot.late:
        said.append(f"{snapshot.late:,} came too late, counted as lost")
    if snapshot.unpaired:
        said.append(f"{snapshot.unpaired:,} deliveries without their request")
    foot = Text("  " + "; ".join(said), "dim")
    minority = [one_line(one.name) for one in snapshot.nodes if one.is_minority]
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
    """At least three digits, in six columns."""
    return _number(value_ms, digits=2 if value_ms is None or value_ms < 100 else 0)


def _percent(value: float | None, *, alarm: bool = False) -> Text:
    if value is None:
        return Text(NOTHING, "dim")
    return Text(f"{100 * value:.1f} %", "red" if alarm and value > LOSS_SHOWN else "")


def _busiest(nodes: tuple[Figures, ...], rows: int) -> tuple[Figures, ...]:
    if len(nodes) <= rows:
        return nodes
    ranked = sorted(nodes, key=lambda one: -(one.sent_per_s + one.received_per_s))[:rows]
    names = {one.name for one in ranked}
    return tuple(one for one in nodes if one.name in names)


MOST_ROWS = 40


def info_tables(found: CaptureTotals) -> RenderableType:
    """Facts, interfaces and protocols of a capture."""
    parts: list[RenderableType] = [_facts(found)]
    if found.interfaces:
        parts.append(_interfaces(found))
    if found.protocols:
        parts.append(_protocols(found))
    return Group(*parts)


def _facts(found: CaptureTotals) -> Table:
    made = plain_table()
    made.add_column(style="bold")
    made.add_column(overflow="fold")
    for name, value in _rows(found):
        made.add_row(name, Text(one_line(value)))
    if found.problem or found.damaged:
        damaged = f"{found.damaged:,} damaged blocks left out" if found.damaged else ""
        made.add_row("problem", Text("; ".join(filter(None, (found.problem, damaged))), "red"))
    return made


def _rows(found: CaptureTotals) -> list[tuple[str, str]]:
    sections = f", {found.sections} sections" if found.sections > 1 else ""
    with_index = ", with an index" if found.has_index else ""
    rows = [
        ("capture", found.path),
        ("format", f"{found.layout}, {found.byte_order}-endian{sections}{with_index}, {found.file_bytes:,} bytes"),
    ]
    if found.application:
        rows.append(("written by", found.application))
    if found.comment:
        rows.append(("comment", found.comment))
    cut = f", {found.cut_frames:,} of them cut by a snap length" if found.cut_frames else ""
    rows.append(("frames", f"{found.frames:,}, {found.bytes:,} bytes on the wire{cut}"))
    if found.first_ns is not None and found.last_ns is not None:
        seconds = (found.last_ns - found.first_ns) / 1e9
        rate = f", {found.frames / seconds:,.0f} frames/s" if seconds > 0 else ""
        order = "" if found.is_in_order else "; not in order of time"
        rows += [("first", date(found.first_ns)), ("last", date(found.last_ns))]
        rows.append(("span", f"{seconds:,.6f} s{rate}{order}"))
    return rows


def _interfaces(found: CaptureTotals) -> Table:
    has_directions = any(one.inbound or one.outbound for one in found.interfaces)
    counts = ("in>", "out>") if has_directions else ("frames>",)
    numbers = ("in", "out", "frames", "bytes", "dropped")
    made = table("interface", "link", *counts, "bytes>", "dropped>", "stamps", narrow=numbers)
    made.header_style, made.columns[0].overflow = "dim", "fold"
    for one in found.interfaces[:MOST_ROWS]:
        made.add_row(*_cells(one, has_directions=has_directions))
    if len(found.interfaces) > MOST_ROWS:
        made.add_row(Text(f"and {len(found.interfaces) - MOST_ROWS} more (--json has all)", "dim"))
    return made


def _cells(one: InterfaceTotals, *, has_directions: bool) -> list[Text]:
    dropped = Text(NOTHING, "dim") if one.dropped is None else Text(f"{one.dropped:,}", "red" if one.dropped else "")
    directed = (one.inbound, one.outbound) if has_directions else (one.frames,)
    counts = [Text(f"{count:,}" if count else NOTHING) for count in directed]
    name, link = Text(one_line(one.name)), Text(one.link_type)
    return [name, link, *counts, Text(f"{one.bytes:,}"), dropped, Text(one.resolution)]


def _protocols(found: CaptureTotals) -> Table:
    made = table("protocol", "frames>", "bytes>", "part>")
    made.header_style = "dim"
    for one in found.protocols[:MOST_ROWS]:
        part = f"{100 * one.frames / found.frames:.1f} %"
        made.add_row(one.name, f"{one.frames:,}", f"{one.bytes:,}", part)
    if len(found.protocols) > MOST_ROWS:
        made.add_row(Text(f"and {len(found.protocols) - MOST_ROWS} more (--json has all)", "dim"))
    return made


def date(time_ns: int) -> str:
    """A time stamp of a foreign file, which may be out of range."""
    try:
        whole = datetime.fromtimestamp(time_ns // 10**9, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time_ns} ns, beyond any calendar"
    return f"{whole:%Y-%m-%d %H:%M:%S}.{time_ns % 10**9:09d} UTC"
