"""How `orderbed info` shows the totals of a capture."""

from __future__ import annotations

from datetime import UTC, datetime

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from analysis.capture.totals import InterfaceTotals, Totals

NOTHING = "–"
MOST_ROWS = 40


def info_tables(found: Totals) -> RenderableType:
    """What it is, its interfaces, its protocols."""
    parts: list[RenderableType] = [_facts(found)]
    if found.interfaces:
        parts.append(_interfaces(found))
    if found.protocols:
        parts.append(_protocols(found))
    return Group(*parts)


def _facts(found: Totals) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in _rows(found):
        table.add_row(name, Text(_printable(value)))
    if found.problem or found.damaged:
        damaged = f"{found.damaged:,} damaged blocks left out" if found.damaged else ""
        table.add_row("problem", Text("; ".join(filter(None, (found.problem, damaged))), "red"))
    return table


def _rows(found: Totals) -> list[tuple[str, str]]:
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


def _interfaces(found: Totals) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column("interface", overflow="fold")
    table.add_column("link")
    has_directions = any(one.inbound or one.outbound for one in found.interfaces)
    for heading in (*(("in", "out") if has_directions else ("frames",)), "bytes", "dropped"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("stamps")
    for one in found.interfaces[:MOST_ROWS]:
        table.add_row(*_cells(one, has_directions=has_directions))
    if len(found.interfaces) > MOST_ROWS:
        table.add_row(Text(f"and {len(found.interfaces) - MOST_ROWS} more (--json has all)", "dim"))
    return table


def _cells(one: InterfaceTotals, *, has_directions: bool) -> list[Text]:
    dropped = Text(NOTHING, "dim") if one.dropped is None else Text(f"{one.dropped:,}", "red" if one.dropped else "")
    directed = (one.inbound, one.outbound) if has_directions else (one.frames,)
    counts = [Text(f"{count:,}" if count else NOTHING) for count in directed]
    name, link = Text(_printable(one.name)), Text(one.link_type)
    return [name, link, *counts, Text(f"{one.bytes:,}"), dropped, Text(one.resolution)]


def _protocols(found: Totals) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column("protocol")
    for heading in ("frames", "bytes", "part"):
        table.add_column(heading, justify="right")
    for one in found.protocols[:MOST_ROWS]:
        part = f"{100 * one.frames / found.frames:.1f} %"
        table.add_row(one.name, f"{one.frames:,}", f"{one.bytes:,}", part)
    if len(found.protocols) > MOST_ROWS:
        table.add_row(Text(f"and {len(found.protocols) - MOST_ROWS} more (--json has all)", "dim"))
    return table


def date(time_ns: int) -> str:
    """A time stamp of a stranger's file."""
    try:
        whole = datetime.fromtimestamp(time_ns // 10**9, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time_ns} ns, beyond any calendar"
    return f"{whole:%Y-%m-%d %H:%M:%S}.{time_ns % 10**9:09d} UTC"


def _printable(text: str) -> str:
    """Texts of a file are a stranger's: no control characters to the terminal."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
