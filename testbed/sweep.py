"""A sweep: one run per combination of values, each a whole run of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.protocols import PROTOCOLS
from testbed import store
from testbed.console import Console
from testbed.given import given
from testbed.run import Wishes, apply_wishes, load_experiment, perform
from testbed.spec import Experiment, World, expand_sweep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANY_POINTS = 6
"""From so many runs on it pays that the Java machine optimises."""

HEADLINES = {
    "p50_ms": ("latency", "p50_ms"),
    "p99_ms": ("latency", "p99_ms"),
    "deliveries": ("messages", "deliveries"),
    "dummy_rate": ("traffic", "dummy_rate"),
    "control_ratio": ("traffic", "control_ratio"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run of a sweep: what was set, all that it was given, where it is, how it was judged."""

    variant: dict[str, Any]
    given: dict[str, Any]
    directory: Path
    summary: dict[str, Any]

    @property
    def label(self) -> str:
        return ", ".join(f"{key} = {value}" for key, value in self.variant.items()) or "no variation"

    @property
    def verdict(self) -> str:
        return str(self.summary["verdict"])

    def as_dict(self) -> dict[str, Any]:
        """What the table and `--json` show."""
        headlines = {name: self.summary.get(section, {}).get(key) for name, (section, key) in HEADLINES.items()}
        return {
            "variant": self.variant,
            "given": self.given,
            "verdict": self.verdict,
            **headlines,
            "directory": str(self.directory),
        }


def run_sweep(
    name: str,
    console: Console,
    on_point: Callable[[Point], None],
    *,
    wishes: Wishes,
    spark: SparkSession | None = None,
) -> list[Point]:
    """Run every combination of the sweep of the experiment called `name`, in file order; `spark`: a session to analyse
    with.

    Raises InputError, FabricError, AnalysisError.
    """
    experiment = load_experiment(name, wishes)
    console.title(f"orderbed sweep {experiment.name}", experiment.question)
    points: list[Point] = []
    for point in run_points(experiment, wishes, console, store.stamp(), spark=spark):
        points.append(point)
        on_point(point)
    return points


def run_points(
    experiment: Experiment, wishes: Wishes, console: Console, stamp: str, *, spark: SparkSession | None = None
) -> Iterator[Point]:
    """Run every combination, in file order; the experiment itself without a sweep.

    The wishes of the command line are put in again on top of what the sweep sets. After each run
    `<runs>/<experiment>/sweep-<stamp>.json` lists the points so far (analysis.load.Sweep reads it), so that a sweep
    that ends early keeps them.
    """
    points: list[dict[str, Any]] = []
    variants = [apply_wishes(expanded, wishes) for expanded in expand_sweep(experiment, protocols=PROTOCOLS)]
    with nullcontext(spark) if spark is not None else _session_for(variants) as session:
        for position, variant in enumerate(variants):
            console.title(", ".join(f"{key} = {value}" for key, value in variant.variant.items()))
            outcome = perform(variant, wishes.named(f"{variant.seed}-{stamp}-{position}"), console, spark=session)
            assert outcome.summary is not None, "a point of a sweep is always analysed"
            point = Point(
                variant=dict(variant.variant),
                given=given(variant),
                directory=outcome.directory,
                summary=outcome.summary,
            )
            points.append(point.as_dict())
            store.write_json(wishes.runs / experiment.name / f"sweep-{stamp}.json", points)
            yield point


def _session_for(variants: list[Experiment]) -> AbstractContextManager[SparkSession | None]:
    """One Spark session for all points where that disturbs nothing that is measured: in virtual time. Beside real wires
    each point has its own, opened when its capture is closed: a Java machine would share the nodes' CPUs and memory.
    """
    if len(variants) < 2 or any(variant.world is not World.SIM for variant in variants):
        return nullcontext()
    from analysis.session import open_session

    return open_session(long_run=len(variants) >= MANY_POINTS)
