"""Claims: what a paper's figure says, what comes out here, and whether it holds. A claim that fails is a result.

Their page is a Markdown table that stands in a repository, with the rows it was made from beside it:

claims.json   every row ever measured, one for each claim and world; measuring again replaces it
claims.md     made from it: the papers' statements, their values, ours in each world, and the verdicts
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from analysis.expression import Unknown
from analysis.metrics.estimate import told
from node.registry import PROTOCOLS
from testbed.cli.console import Console
from testbed.run import store
from testbed.run.perform import Overrides, apply_overrides
from testbed.run.sweep import Point, run_points, simulate_points
from testbed.spec import experiment as spec
from testbed.spec.experiment import Claim, Experiment, World
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One claim of one experiment; `ours`, `verdict` and `world` are empty until it was run."""

    experiment: str
    id: str
    paper: str
    statement: str
    value: Any
    accept: str
    ours: Any = None
    verdict: str = ""
    reason: str = ""
    world: str = ""
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which claims: of one paper, of one experiment; None is all."""

    paper: str | None = None
    experiment: str | None = None


def list_claims(selection: Selection) -> list[Row]:
    """The claims of the shipped experiments."""
    found = _experiments(selection)
    return [_row(experiment, claim) for experiment in found for claim in _claims(experiment, selection)]


def run_claims(selection: Selection, console: Console, *, overrides: Overrides, is_job: bool = False) -> Iterator[Row]:
    """Run every experiment that makes such a claim and judge its claims; each row comes as soon as it is known.
    `is_job`: sweeps with many seeds in the simulated world are simulated in memory, as a Spark job.

    A claim's expressions see the summary of the run and what it was `given` (testbed.spec.given); of a sweep they see
    `runs`, the list of all summaries, each with its `variant` and `given`.
    Raises InputError, FabricError, AnalysisError.
    """
    for experiment in _experiments(selection):
        overridden = apply_overrides(experiment, overrides)
        if is_job and overridden.seeds and overridden.world is World.SIM:
            points = simulate_points(overridden, overrides, console, store.stamp())
        else:
            points = list(run_points(overridden, overrides, console, store.stamp()))
        for claim in _claims(experiment, selection):
            row = _judged(experiment, claim, points)
            console.done("claim", f"{claim.id}: {row.verdict}")
            yield row


def _experiments(selection: Selection) -> Iterator[Experiment]:
    """Raises InputError when the named experiment does not exist or makes no such claim."""
    papers: set[str] = set()
    for name in spec.names() if selection.experiment is None else (selection.experiment,):
        experiment = spec.load(spec.find(name), protocols=PROTOCOLS)
        papers |= {claim.paper for claim in experiment.claims}
        if _claims(experiment, selection):
            yield experiment
        elif selection.experiment is not None:
            raise InputError(f"{name} makes no claim" + (f" of paper {selection.paper}" if selection.paper else ""))
    if selection.paper is not None and selection.paper not in papers:
        raise InputError(
            f"no experiment makes a claim of paper {selection.paper}; there are {', '.join(sorted(papers))}"
        )


def _claims(experiment: Experiment, selection: Selection) -> list[Claim]:
    return [claim for claim in experiment.claims if selection.paper in (None, claim.paper)]


def _judged(experiment: Experiment, claim: Claim, points: list[Point]) -> Row:
    """A run whose numbers must not be trusted decides nothing: the claim is `unknown`."""
    world = points[0].world
    doubts = list(dict.fromkeys(doubt for point in points for doubt in point.doubts))
    if doubts:
        return _row(experiment, claim, verdict="unknown", reason="; ".join(doubts), world=world)
    results = [point.results() for point in points]
    ours, holds = claim.judge({"runs": results} if experiment.sweep or experiment.seeds else results[0])
    if isinstance(holds, Unknown):
        return _row(experiment, claim, verdict="unknown", reason=holds.reason, world=world)
    return _row(experiment, claim, ours=ours, verdict="pass" if holds else "fail", world=world)


def _row(experiment: Experiment, claim: Claim, **judged: Any) -> Row:
    accept = claim.accept
    return Row(
        experiment=experiment.name,
        id=claim.id,
        paper=claim.paper,
        statement=claim.statement,
        value=claim.value,
        accept=f"{accept[0]:g} to {accept[1]:g}" if isinstance(accept, tuple) else str(accept),
        note=claim.note,
        **judged,
    )


# The page.


def check_page(page: Path) -> None:
    """Before hours of runs. Raises InputError when `page` is no place for the page, or its rows cannot be read."""
    if page.suffix != ".md":
        raise InputError(f"{page}: the page of claims is a Markdown file, such as claims.md")
    if not page.absolute().parent.is_dir():
        raise InputError(f"{page}: the page of claims cannot be written (there is no directory {page.parent})")
    _read(page.with_suffix(".json"))


def update_page(page: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Put measured rows into the page at `page` (a .md file). Raises InputError when it cannot be written or read."""
    check_page(page)
    data = page.with_suffix(".json")
    known = {(row["id"], row["world"]): row for row in _read(data)}
    known |= {(row["id"], row["world"]): dict(row) for row in rows}
    ordered = [known[key] for key in sorted(known)]
    try:
        store.write_json(data, ordered)
        page.write_text(render_page(ordered), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{page}: the page of claims cannot be written ({error.strerror})") from error


def render_page(rows: Sequence[Mapping[str, Any]]) -> str:
    """The page's text."""
    parts = [HEAD]
    ordered = sorted(rows, key=lambda row: (row["paper"], row["id"], row["world"]))
    for paper, claims in groupby(ordered, lambda row: str(row["paper"])):
        parts.append(f"## {TITLES.get(paper, f'Paper {paper}')}\n")
        parts.append("| claim | the paper says | paper | accepted | ours |\n|---|---|---|---|---|")
        parts += [_line(list(worlds)) for _, worlds in groupby(claims, lambda row: row["id"])]
        parts.append("")
    return "\n".join(parts)


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
