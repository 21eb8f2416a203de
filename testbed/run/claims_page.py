"""The page of claims: a Markdown table that stands in a repository, with the rows it was made from beside it.

claims.json   every row ever measured, one for each claim and world; measuring again replaces it
claims.md     made from it: the papers' statements, their values, ours in each world, and the verdicts
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from analysis.metrics.estimate import told
from testbed.run.store import write_json
from topologies.formats.errors import InputError

TITLES = {
    "000": "Paper 000: CO, causally ordered broadcast",
    "001": "Paper 001: time, clocks, and the ordering of events",
    "002": "Paper 002: ATOP and ATOP/MBS",
    "beyond 002": "Beyond paper 002",
    "003": "Paper 003: adaptive selection of total-order protocols",
    "beyond 003": "Beyond paper 003",
    "004": "Paper 004: object groups",
    "beyond 004": "Beyond paper 004",
    "views": "The group layer: views and uniform delivery",
}
MARKS = {"pass": "✔", "fail": "✘", "unknown": "?"}
HEAD = """# Claims

What the papers say, and what comes out here. Each row is a claim of an experiment under `experiments/`.
`orderbed claims --page docs/claims.md` runs them and writes this page. ✔ it holds, ✘ it does not, ? it cannot be told.
`a ± b`: the mean over runs with different seeds, and the half-width of its 95 % interval.
"""


def check(page: Path) -> None:
    """Before hours of runs. Raises InputError when `page` is no place for the page, or its rows cannot be read."""
    if page.suffix != ".md":
        raise InputError(f"{page}: the page of claims is a Markdown file, such as claims.md")
    if not page.absolute().parent.is_dir():
        raise InputError(f"{page}: the page of claims cannot be written (there is no directory {page.parent})")
    _read(page.with_suffix(".json"))


def update(page: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Put measured rows into the page at `page` (a .md file). Raises InputError when it cannot be written or read."""
    check(page)
    data = page.with_suffix(".json")
    known = {(row["id"], row["world"]): row for row in _read(data)}
    known |= {(row["id"], row["world"]): dict(row) for row in rows}
    ordered = [known[key] for key in sorted(known)]
    try:
        write_json(data, ordered)
        page.write_text(render(ordered), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{page}: the page of claims cannot be written ({error.strerror})") from error


def render(rows: Sequence[Mapping[str, Any]]) -> str:
    """The page's text."""
    parts = [HEAD]
    for paper, claims in groupby(sorted(rows, key=lambda row: (row["paper"], row["id"], row["world"])), _paper):
        parts.append(f"## {TITLES.get(paper, f'Paper {paper}')}\n")
        parts.append("| claim | the paper says | paper | accepted | ours |\n|---|---|---|---|---|")
        parts += [_line(list(worlds)) for _, worlds in groupby(claims, lambda row: row["id"])]
        parts.append("")
    return "\n".join(parts)


def _paper(row: Mapping[str, Any]) -> str:
    return str(row["paper"])


def _line(worlds: Sequence[Mapping[str, Any]]) -> str:
    first = worlds[0]
    ours = "<br>".join(_ours(row) for row in worlds)
    if note := first.get("note"):
        ours += f"<br>{_cell(note)}"
    cells = (f"`{first['id']}`<br>{first['experiment']}", first["statement"], _shown(first["value"]), first["accept"])
    return "| " + " | ".join((*map(_cell, cells), ours)) + " |"


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|")


def _ours(row: Mapping[str, Any]) -> str:
    reason = f" ({_cell(row['reason'])})" if row["reason"] else ""
    return f"{MARKS[row['verdict']]} {row['world']}: {_shown(row['ours'])}{reason}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if (interval := told(value)) is not None:
        return interval
    if isinstance(value, list):
        return ", ".join(_shown(one) for one in value)
    return f"{value:.4g}" if isinstance(value, float) else "–" if value is None else str(value)


def _read(data: Path) -> list[dict[str, Any]]:
    if not data.exists():
        return []
    try:
        rows = json.loads(data.read_text(encoding="utf-8"))
        return [dict(row) for row in rows if row["id"] and row["world"] and row["verdict"] in MARKS]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{data}: not the rows of a page of claims ({error}); remove it or give another --page"
        ) from None
