"""Claims of the papers: the paper's value, the measured value, and the verdict. A claim that fails is a result.

Their page is a Markdown table in a repository, with the rows it was made from beside it:

claims.json   the measurements, one row for each claim and world; measuring again replaces it. A row of a claim that has
              changed since, or whose experiment asks for something else now, is stale.
claims.md     every claim of the shipped experiments: the statement and the value expected, ours in each world with
              commit, date and number of runs and seeds, and the verdict; or that it has not been run, or is stale
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from analysis.checks.properties import Verdict
from analysis.expression import RUNS, Unknown, parse
from analysis.files import read_json, replace_json
from analysis.metrics.estimate import estimate_text
from node.registry import PROTOCOLS
from testbed.console import Console
from testbed.run.perform import Overrides, apply_overrides
from testbed.run.sweep import Point, run_points, simulate_points
from testbed.rundir import store
from testbed.rundir.manifest import git_revision
from testbed.spec import experiment as spec
from testbed.spec.raw import Claim, World
from testbed.spec.values import Experiment
from topologies import dump
from topologies.formats.errors import InputError

TITLES = {
    "000": "Paper 000: CO, causally ordered broadcast",
    "beyond 000": "Beyond paper 000",
    "001": "Paper 001: time, clocks, and the ordering of events",
    "beyond 001": "Beyond paper 001",
    "002": "Paper 002: ATOP and ATOP/MBS",
    "beyond 002": "Beyond paper 002",
    "003": "Paper 003: adaptive selection of total-order protocols",
    "beyond 003": "Beyond paper 003",
    "004": "Paper 004: object groups",
    "beyond 004": "Beyond paper 004",
    "views": "The group layer: views and uniform delivery",
}
MARKS = {"pass": "✔", "fail": "✘", "unknown": "?"}
BY_CONSTRUCTION = "="
HEAD = """# Claims

Statements of the papers, and the numbers that come out here. Each row is a claim of an experiment under `experiments/`.
`orderbed claims --page docs/claims.md` runs them and writes this page. ✔ it holds, ✘ it does not, ? it cannot be told,
= it holds by construction, or nearly so: only its value is a result.
`a ± b`: the mean over runs with different seeds, and the half-width of its 95 % interval. Below each value stand the
commit and the date of its measurement, and over how many runs, with how many seeds, it was taken.
A measurement that was taken with another statement, expected value, formula, accepted range or experiment (its network,
load, protocol, faults, sweep and expectations) is stale: it tells nothing about the claim.

The figures of the papers were not available as data: only numbers in their text can be compared. The tables "Beyond
paper ..." and that of the group layer have statements that no paper makes.
"""
HEADINGS = ("the paper says", "paper")
OWN_HEADINGS = ("statement", "expected")
NOT_RUN = "not run yet"
MATTERS = {
    "asked": "experiment",
    "statement": "statement",
    "value": "expected value",
    "formula": "formula",
    "accept": "accepted range",
}
"""Fields of a claim with which it must have been measured, and their names on the page."""
PROSE = ("question", "claims", "world")
"""Keys of an experiment that do not change its runs in one world."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One claim of one experiment. Fields from `ours` on are its result, empty until it was run."""

    experiment: str
    id: str
    paper: str
    statement: str
    value: Any
    formula: str
    accept: str
    note: str = ""
    by_construction: bool = False
    asked: str = ""
    """Digest of what its experiment asks for; empty in a row from before there was one."""
    ours: Any = None
    verdict: str = ""
    reason: str = ""
    world: str = ""
    runs: int = 0
    seeds: int = 0
    commit: str = ""
    date: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selection of claims by paper and by experiment; None is all."""

    paper: str | None = None
    experiment: str | None = None


def list_claims(selection: Selection) -> list[Row]:
    """The selected claims of the shipped experiments."""
    found = _experiments(selection)
    return [_row(experiment, claim) for experiment in found for claim in _claims(experiment, selection)]


def run_claims(selection: Selection, console: Console, *, overrides: Overrides, is_job: bool = False) -> Iterator[Row]:
    """Run every experiment with a selected claim and judge its claims; each row is yielded as soon as it is known.
    `is_job`: sweeps with many seeds in the simulated world are simulated in memory, as a Spark job.

    A claim's expressions see the summary of the run and its `given` values (testbed.spec.given); of a sweep they see
    `runs`, the list of all summaries, each with its `variant` and `given`.
    Raises InputError, FabricError, AnalysisError.
    """
    for experiment in _experiments(selection):
        origin = {"commit": git_revision() or "", "date": f"{datetime.now(UTC):%Y-%m-%d}"}
        origin["asked"] = _digest(experiment)  # before the runs: a file may change during them
        overridden = apply_overrides(experiment, overrides)
        in_memory = is_job and overridden.seeds > 0 and overridden.world is World.SIM
        if in_memory:
            points = simulate_points(overridden, overrides, console, store.stamp())
        else:
            points = list(run_points(overridden, overrides, console, store.stamp()))
        if git_revision() not in (None, origin["commit"]):
            origin["commit"] = f"{origin['commit'].removesuffix('-dirty')}-dirty"  # the runs saw other code, too
        for claim in _claims(experiment, selection):
            row = judged_row(experiment, claim, points, origin)
            if row.reason and in_memory:
                row = replace(row, reason=f"{row.reason} (simulated in memory: without --spark a run has all results)")
            console.done("claim", f"{claim.id}: {row.verdict}")
            yield row


def _experiments(selection: Selection) -> Iterator[Experiment]:
    """Experiments with a selected claim. Raises InputError when the named one does not exist or has none."""
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


def judged_row(experiment: Experiment, claim: Claim, points: list[Point], origin: Mapping[str, str]) -> Row:
    """The row of a claim with its result. `origin`: commit and date of the runs, and `asked` as it was before them. A
    claim is `unknown` if the numbers of a run say nothing about it.
    """
    taken = {"world": points[0].world, "runs": len(points), "seeds": _seeds(points), **origin}
    measured = _row(experiment, claim, verdict="unknown", **taken)
    judged = {one.id: _judge(experiment, one, points) for one in experiment.claims}
    ours, holds, read = judged[claim.id]
    stated = [set[str]().union(*reads) for reads in zip(*(reads for _, _, reads in judged.values()), strict=True)]
    reservations = dict.fromkeys(_reservations(points, read, stated))
    if reservations:
        return replace(measured, reason="; ".join(reservations))
    if isinstance(holds, Unknown):
        return replace(measured, reason=holds.reason)
    return replace(measured, ours=ours, verdict="pass" if holds else "fail")


def _judge(experiment: Experiment, claim: Claim, points: Sequence[Point]) -> tuple[Any, bool | Unknown, list[set[str]]]:
    """The measured value, whether the claim holds, and what it reads of each run: names of sections, and of properties
    whose verdict or violations it reads.
    """
    results = [_Noted(point.results()) for point in points]
    for one in results:
        one["properties"] = {name: _Noted(entry) for name, entry in (one.get("properties") or {}).items()}
    seen: dict[str, Any] = {RUNS: results} if experiment.sweep or experiment.seeds else results[0]
    ours, holds = claim.judge(seen)
    return ours, holds, [_names_read(one) for one in results]


def _seeds(points: Sequence[Point]) -> int:
    return len({point.variant.get("seed") for point in points})


def _names_read(results: _Noted) -> set[str]:
    return results.read | {name for name, one in results["properties"].items() if one.read & {"verdict", "violations"}}


class _Noted(dict[str, Any]):
    """Results that note which names an expression reads."""

    def __init__(self, results: Mapping[str, Any]) -> None:
        super().__init__(results)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)


def _reservations(points: Sequence[Point], read: Sequence[set[str]], stated: Sequence[set[str]]) -> Iterator[str]:
    """Doubts about the runs, and what a run broke or does not tell: promises and expectations, unless the claim reads
    the verdict on the run; its network, unless the claim reads its measurements. `read`: what the claim reads of each
    run; `stated`: what any claim of the experiment does. That a run broke a property is the matter of a claim that
    states it of this run; that it does not tell one is a doubt about all. A run in memory has no frames to tell of.
    """
    for point, own, known in zip(points, read, stated, strict=True):
        yield from point.doubts
        if "verdict" not in own:
            for name, one in (point.summary.get("properties") or {}).items():
                if one["promised"] and one["verdict"] == Verdict.UNKNOWN.value:
                    yield f"a run does not tell {name}"
                elif one["promised"] and one["verdict"] == Verdict.FAIL.value and name not in known:
                    yield f"a run violates {name}"
            for one in point.summary.get("expect") or ():
                about = _OF_A_PROPERTY.fullmatch(one["condition"])
                if one["verdict"] == Verdict.FAIL.value and not (about and about[1] in known):
                    yield f"a run does not meet {one['condition']}"
                elif one["verdict"] == Verdict.UNKNOWN.value and (
                    point.has_frames or parse(one["condition"]).names.isdisjoint(OF_FRAMES)
                ):
                    yield f"a run does not tell whether {one['condition']}"
        accuracy = point.summary.get("accuracy") or {}
        if own.isdisjoint(("accuracy", "links")):
            if accuracy.get("verdict") == Verdict.FAIL.value:
                yield "the network of a run was not as asked"
            elif accuracy and not accuracy["pass"] and point.world != World.SIM.value:
                yield "no port of a run could be certified"


OF_FRAMES = ("traffic", "conservation", "accuracy", "links", "faults")
"""Sections of a summary that a run in memory does not have."""
_OF_A_PROPERTY = re.compile(r"properties\.(\w+)\.(verdict == 'pass'|violations == 0)")


def _row(experiment: Experiment, claim: Claim, **judged: Any) -> Row:
    accept = claim.accept
    if "asked" not in judged:
        judged["asked"] = _digest(experiment)
    return Row(
        experiment=experiment.name,
        id=claim.id,
        paper=claim.paper,
        statement=claim.statement,
        value=claim.value,
        formula=str(claim.ours),
        accept=f"{accept[0]:g} to {accept[1]:g}" if isinstance(accept, tuple) else str(accept),
        note=claim.note,
        by_construction=claim.by_construction,
        **judged,
    )


def _digest(experiment: Experiment) -> str:
    """Digest of what an experiment asks for, without its prose, but with the networks that its sweep names and with the
    contents of the files that its programs are given. The order of a sweep counts: claims number its runs.
    """
    assert isinstance(experiment.document.value, dict)
    asked = {key: value for key, value in sorted(experiment.document.value.items()) if key not in PROSE}
    asked["topology"] = _network(experiment)
    variants = [experiment]
    if any(key == "topology" or key.startswith("program") for axis in experiment.sweep for key in axis.keys):
        variants = spec.expand_sweep(replace(experiment, seeds=0), protocols=PROTOCOLS)
        asked["topologies"] = [_network(one) for one in variants]
    programs = [program for one in variants for program in one.programs.values()]
    if copied := dict.fromkeys(given for one in programs for given in one.files.values() if isinstance(given, Path)):
        asked["files"] = [hashlib.sha256(path.read_bytes()).hexdigest() for path in copied]
    return hashlib.sha256(json.dumps(asked, default=str).encode()).hexdigest()[:16]


def _network(experiment: Experiment) -> dict[str, Any]:
    return dump.as_block(experiment.topology) | {"description": ""}


# Page.


def check_page(page: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise InputError when these rows cannot be put into the page at `page`; before hours of runs."""
    if page.suffix != ".md":
        raise InputError(f"{page}: the page of claims is a Markdown file, such as claims.md")
    if not page.absolute().parent.is_dir():
        raise InputError(f"{page}: the page of claims cannot be written (there is no directory {page.parent})")
    _read(page.with_suffix(".json"))
    for row in rows:
        claim = next((claim.as_dict() for claim in _all_claims() if claim.id == row["id"]), row)
        if row["experiment"] != claim["experiment"] or _changed(row, claim):
            raise InputError(
                f"{row['experiment']}: claim {row['id']} is not that of the shipped experiment {claim['experiment']}, "
                "whose record it would replace; give it another id"
            )


@cache
def _all_claims() -> tuple[Row, ...]:
    """All claims, read once: the page is written after each claim, and reading all experiments takes seconds."""
    return tuple(list_claims(Selection()))


def update_page(page: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Put measured rows into the page at `page` (a .md file). Raises InputError when it cannot be written or read."""
    check_page(page, rows)
    data = page.with_suffix(".json")
    known = {(row["id"], row["world"]): row for row in _read(data)}
    known |= {(row["id"], row["world"]): dict(row) for row in rows}
    claims, shipped = {row.id: row.as_dict() for row in _all_claims()}, spec.names()
    claims = {row["id"]: row for row in known.values() if row["experiment"] not in shipped} | claims
    ordered = [known[key] for key in sorted(known) if key[0] in claims]
    try:
        replace_json(data, ordered)
        page.write_text(render_page(list(claims.values()), ordered), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{page}: the page of claims cannot be written ({error.strerror})") from error


def render_page(claims: Sequence[Mapping[str, Any]], measured: Sequence[Mapping[str, Any]]) -> str:
    """Text of the page. `claims`: rows of the claims that it lists; a row of `measured` is stale unless it has all that
    MATTERS in common with its claim.
    """
    parts = [HEAD]
    ordered = sorted(claims, key=lambda row: (row["paper"].removeprefix("beyond "), row["paper"], row["id"]))
    for paper, rows in groupby(ordered, lambda row: str(row["paper"])):
        parts.append(f"## {TITLES.get(paper, f'Paper {paper}')}\n")
        statement, value = HEADINGS if paper.isdecimal() else OWN_HEADINGS
        parts.append(f"| claim | {statement} | {value} | accepted | ours |\n|---|---|---|---|---|")
        parts += [_line(claim, [row for row in measured if _is_of(row, claim)]) for claim in rows]
        parts.append("")
    return "\n".join(parts)


def tables_of(paper: str, page: Path) -> str:
    """Tables of one paper ("000") and of what goes beyond it, from the rows measured for the page at `page`. Raises
    InputError when they cannot be read."""
    claims = [row.as_dict() for row in _all_claims() if row.paper.removeprefix("beyond ") == paper]
    return render_page(claims, _read(page.with_suffix(".json"))).removeprefix(HEAD)


def _is_of(row: Mapping[str, Any], claim: Mapping[str, Any]) -> bool:
    return all(row[key] == claim[key] for key in ("id", "experiment"))


def _changed(row: Mapping[str, Any], claim: Mapping[str, Any]) -> list[str]:
    return [name for key, name in MATTERS.items() if row[key] != claim[key]]


def _line(claim: Mapping[str, Any], worlds: Sequence[Mapping[str, Any]]) -> str:
    ours = "<br>".join(_ours(claim, row) for row in sorted(worlds, key=lambda row: str(row["world"]))) or NOT_RUN
    if worlds and claim["note"]:
        ours += f"<br>{_cell(claim['note'])}"
    cells = (f"`{claim['id']}`<br>{claim['experiment']}", claim["statement"], _shown(claim["value"]), claim["accept"])
    return "| " + " | ".join((*map(_cell, cells), ours)) + " |"


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|")


def _ours(claim: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    mark = BY_CONSTRUCTION if claim["by_construction"] and row["verdict"] == "pass" else MARKS[row["verdict"]]
    reason = f" ({_cell(row['reason'])})" if row["reason"] else ""
    counts = [_count(row["runs"], "run")] + [_count(row["seeds"], "seed")] * (row["runs"] > 1 and row["seeds"] > 0)
    origin = f"<br><sub>{_cell(row['commit'])}, {_cell(row['date'])}, {', '.join(counts)}</sub>"
    if changed := _changed(row, claim):
        return f"stale {row['world']}: not measured with this {' and this '.join(changed)}{origin}"
    return f"{mark} {row['world']}: {_shown(row['ours'])}{reason}{origin}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if (interval := estimate_text(value)) is not None:
        return interval
    if isinstance(value, list):
        return ", ".join(_shown(one) for one in value)
    return f"{value:.4g}" if isinstance(value, float) else "–" if value is None else str(value)


def _read(data: Path) -> list[dict[str, Any]]:
    if not data.exists():
        return []
    try:
        rows = read_json(data)
        return [asdict(Row(**row)) for row in rows if row["id"] and row["world"] and row["verdict"] in MARKS]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(
            f"{data}: not the rows of a page of claims ({error}); remove it or give another --page"
        ) from None
