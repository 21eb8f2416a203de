"""Claims: what a paper's figure says, what comes out here, and whether it holds. A claim that fails is a result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from analysis.expression import Unknown
from node.protocols import PROTOCOLS
from testbed import spec, store
from testbed.console import Console
from testbed.run import Wishes, apply_wishes
from testbed.spec import Claim, Experiment
from testbed.sweep import Point, run_points


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One claim of one experiment; `ours` and `verdict` are empty until it was run."""

    experiment: str
    id: str
    paper: str
    statement: str
    value: Any
    accept: str
    ours: Any = None
    verdict: str = ""
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def list_claims(paper: str | None) -> list[Row]:
    """The claims of every shipped experiment, or of one paper."""
    return [_row(experiment, claim) for experiment in _experiments(paper) for claim in _claims(experiment, paper)]


def run_claims(paper: str | None, console: Console, *, wishes: Wishes) -> list[Row]:
    """Run every experiment that makes a claim (of `paper`) and judge its claims.

    A claim's expressions see the summary of the run and what it was `given` (testbed.given); of a sweep they see
    `runs`, the list of all summaries, each with its `variant` and `given`.
    Raises InputError, FabricError, AnalysisError.
    """
    rows: list[Row] = []
    for experiment in _experiments(paper):
        points = list(run_points(apply_wishes(experiment, wishes), wishes, console, store.stamp()))
        for claim in _claims(experiment, paper):
            rows.append(_judged(experiment, claim, points))
            console.done("claim", f"{claim.id}: {rows[-1].verdict}")
    return rows


def _experiments(paper: str | None) -> Iterator[Experiment]:
    for name in spec.names():
        experiment = spec.load(spec.find(name), protocols=PROTOCOLS)
        if _claims(experiment, paper):
            yield experiment


def _claims(experiment: Experiment, paper: str | None) -> list[Claim]:
    return [claim for claim in experiment.claims if paper is None or claim.paper == paper]


def _judged(experiment: Experiment, claim: Claim, points: list[Point]) -> Row:
    """A run whose numbers must not be trusted bears nothing out and refutes nothing: the claim is `unknown`."""
    for point in points:
        doubts = store.read_manifest(point.directory)["invalid"]
        if doubts:
            return _row(experiment, claim, verdict="unknown", reason="; ".join(doubts))
    ours, holds = claim.judge(_results(experiment, points))
    if isinstance(holds, Unknown):
        return _row(experiment, claim, verdict="unknown", reason=holds.reason)
    return _row(experiment, claim, ours=ours, verdict="pass" if holds else "fail")


def _results(experiment: Experiment, points: list[Point]) -> dict[str, Any]:
    if experiment.sweep:
        return {"runs": [_result(point) for point in points]}
    return _result(points[0])


def _result(point: Point) -> dict[str, Any]:
    return {"variant": point.variant, "given": point.given, **point.summary}


def _row(experiment: Experiment, claim: Claim, *, ours: Any = None, verdict: str = "", reason: str = "") -> Row:
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
    )
