"""The page of benchmarks, with its rows in a JSON file beside it; each row is replaced when it is measured again.

benchmarks.json   the latest of every row ever measured, with its date and conditions
benchmarks.md     made from it, one table for each subject
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from analysis.files import replace_json
from benchmarks.rows import Row, shown
from topologies.formats.errors import InputError

Rows = dict[str, dict[str, Any]]
"""Rows by id, as JSON objects."""

MARKS = {True: "✔", False: "✘", None: ""}
HEAD = """# Benchmarks

How fast Orderbed is, beside other tools on the same machine in the same run. `make bench` measures all of it and
writes this page; `python -m benchmarks SUBJECT --page docs/benchmarks.md` measures one subject again and leaves the
other rows, with their dates, as they are. Raw numbers: [benchmarks.json](benchmarks.json).

Each number is the median of its rounds, with least and greatest behind it. Ours and the peer take turns; the ratio is
ours / peer, the median of the rounds' own ratios. ✔ the bar holds, ✘ it does not. *Stolen*: processor time that the
hypervisor gave to others while the row was measured: where it is more than a few percent, trust ratios only.

The absolute bars were set on a machine of two processors where tshark reads 55,000 frames/s and a Python loop with
`struct` 1.1 million: what these two do below says how this machine compares.
"""


def check(page: Path) -> None:
    """Check the page before the measurements. Raises InputError when `page` cannot be written, or its rows cannot be
    read.
    """
    if page.suffix != ".md":
        raise InputError(f"{page}: the page of benchmarks is a Markdown file, such as docs/benchmarks.md")
    if not page.absolute().parent.is_dir():
        raise InputError(f"{page}: the page of benchmarks cannot be written (there is no directory {page.parent})")
    _read(page.with_suffix(".json"))


def update(page: Path, rows: Iterable[Row], titles: Mapping[str, str]) -> None:
    """Put measured rows into the page. `titles`: heading of each subject, in the page's order. Raises InputError."""
    data = page.with_suffix(".json")
    known = _read(data) | {row.id: row.as_json() for row in rows}
    order = list(titles)
    subjects = sorted({_subject(row) for row in known.values()}, key=lambda one: (_place(order, one), one))
    ordered = [row for subject in subjects for row in known.values() if _subject(row) == subject]
    try:
        replace_json(data, ordered)
        page.write_text(render(ordered, titles), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{page}: the page of benchmarks cannot be written ({error.strerror})") from error


def render(rows: Iterable[Mapping[str, Any]], titles: Mapping[str, str]) -> str:
    """Text of the page; rows of one subject are consecutive."""
    parts = [HEAD]
    for subject, group in groupby(rows, _subject):
        parts.append(f"## {titles.get(subject, subject)}\n")
        parts.append("| what | ours | peer | ours / peer | bar | | measured |\n|---|---|---|---|---|---|---|")
        parts += [_line(row) for row in group]
        parts.append("")
    return "\n".join(parts)


def line_for_terminal(row: Row) -> str:
    """Line of one row, for the terminal."""
    beside = f"  {row.peer_name} {_number(asdict(row.peer))}" if row.peer else ""
    ratio = f"  × {shown(row.ratio.median)}" if row.ratio else ""
    bar = f"  {MARKS[row.holds]} {row.bar}" if row.bar else ""
    note = f"\n{'':8}{row.note}" if row.note else ""
    return f"  {row.what:58} {_number(asdict(row.ours))} {row.unit}{beside}{ratio}{bar}{note}"


# Helpers.


def _line(row: Mapping[str, Any]) -> str:
    note = f"<br>{row['note']}" if row["note"] else ""
    peer = f"{row['peer_name']}: {_number(row['peer'])} {row['unit']}" if row["peer"] else "–"
    ratio = _number(row["ratio"]) if row["ratio"] else "–"
    ours = f"{_number(row['ours'])} {row['unit']}"
    cells = (f"{row['what']}{note}", ours, peer, ratio, row["bar"] or "reported", MARKS[row["holds"]], _measured(row))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _number(spread: Mapping[str, float]) -> str:
    median, least, greatest = (shown(spread[key]) for key in ("median", "least", "greatest"))
    return median if least == greatest else f"{median} ({least} … {greatest})"


def _measured(row: Mapping[str, Any]) -> str:
    conditions = row["conditions"]
    when = conditions["measured_at"].partition(" ")[0]
    rounds = f"{row['rounds']} round{'' if row['rounds'] == 1 else 's'}"
    return f"{when}, {rounds}, {100 * conditions['stolen_ratio']:.0f} % stolen, load {conditions['load']:.1f}"


def _subject(row: Mapping[str, Any]) -> str:
    return str(row["id"]).partition(".")[0]


def _place(order: list[str], subject: str) -> int:
    return order.index(subject) if subject in order else len(order)


def _read(data: Path) -> Rows:
    if not data.exists():
        return {}
    try:
        rows = json.loads(data.read_text(encoding="utf-8"))
        return {str(row["id"]): dict(row) for row in rows if row["ours"]["median"] is not None and row["conditions"]}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{data}: not the rows of a page of benchmarks ({error}); remove it or give another --page"
        ) from None
