"""Claims: what a paper's figure says, what comes out here, and whether it holds. A claim that fails is a result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from analysis.expression import Unknown
from node.registry import PROTOCOLS
from testbed.cli.console import Console
from testbed.run import store
from testbed.run.perform import Overrides, apply_overrides
from testbed.run.sweep import Point, run_points, simulate_points
from testbed.spec import experiment as spec
from testbed.spec.experiment import Claim, Experiment, World
from topologies.formats.errors import InputError


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
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


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
    """Raises InputError when an experiment is named that is none, or that makes no such claim."""
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
    """A run whose numbers must not be trusted bears nothing out and refutes nothing: the claim is `unknown`."""
    world = points[0].world
    doubts = list(dict.fromkeys(doubt for point in points for doubt in point.doubts))
    if doubts:
        return _row(experiment, claim, verdict="unknown", reason="; ".join(doubts), world=world)
    ours, holds = claim.judge(_results(experiment, points))
    if isinstance(holds, Unknown):
        return _row(experiment, claim, verdict="unknown", reason=holds.reason, world=world)
    return _row(experiment, claim, ours=ours, verdict="pass" if holds else "fail", world=world)


def _results(experiment: Experiment, points: list[Point]) -> dict[str, Any]:
    if experiment.sweep or experiment.seeds:
        return {"runs": [point.results() for point in points]}
    return points[0].results()


def _row(
    experiment: Experiment, claim: Claim, *, ours: Any = None, verdict: str = "", reason: str = "", world: str = ""
) -> Row:
    accept = claim.accept
    return Row(
        experiment=experiment.name,
        id=claim.id,
        paper=claim.paper,
        statement=claim.statement,
        value=claim.value,
        accept=f"{accept[0]:g} to {accept[1]:g}" if isinstance(accept, tuple) else str(accept),
        ours=ours,
        verdict=verdict,
        reason=reason,
        world=world,
        note=claim.note,
    )
