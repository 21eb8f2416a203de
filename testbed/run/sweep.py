"""A sweep: one run per combination of values.

Either each is a whole run with a directory of its own (`run_points`), or all are simulated in memory as a Spark job,
and one table keeps a row of each (`simulate_points`): for hundreds of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from analysis.checks.properties import Verdict
from analysis.files import replace_json
from node.registry import PROTOCOLS
from testbed.console import Console
from testbed.run.perform import Overrides, apply_overrides, load_experiment, perform
from testbed.rundir import store
from testbed.spec.experiment import expand_sweep
from testbed.spec.given import given
from testbed.spec.raw import World
from testbed.spec.sweeps import setting
from testbed.spec.values import Experiment
from topologies.formats.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANY_POINTS = 6
"""Number of runs from which on optimisation by the Java machine pays off."""

HEADLINES = {
    "p50_ms": ("latency", "p50_ms"),
    "p99_ms": ("latency", "p99_ms"),
    "deliveries": ("messages", "deliveries"),
    "normalised_mean": ("latency", "normalised_mean"),
    "dummy_rate": ("load", "dummy_rate"),
    "lan_load": ("load", "lan_load"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run of a sweep: the values set by the sweep, all given values, its summary, and its directory."""

    variant: dict[str, Any]
    given: dict[str, Any]
    summary: dict[str, Any]
    world: str
    doubts: tuple[str, ...] = ()
    """Reasons why its numbers must not be trusted."""
    directory: Path | None = None
    """Its run directory; None: simulated in memory."""

    @property
    def has_frames(self) -> bool:
        """Whether it has a capture: a run in memory has none."""
        return self.directory is not None or self.world != World.SIM.value

    @property
    def label(self) -> str:
        return label(self.variant)

    @property
    def verdict(self) -> str:
        return str(self.summary["verdict"])

    def as_dict(self) -> dict[str, Any]:
        """Fields for the table and `--json`."""
        headlines = {name: (self.summary.get(section) or {}).get(key) for name, (section, key) in HEADLINES.items()}
        return {
            "variant": self.variant,
            "given": self.given,
            "verdict": self.verdict,
            **headlines,
            "directory": None if self.directory is None else str(self.directory),
        }

    def results(self) -> dict[str, Any]:
        """Values that a claim's expressions see."""
        return {**self.summary, "variant": self.variant, "given": self.given}


def label(variant: Mapping[str, Any]) -> str:
    """The values set by the sweep, as text."""
    return ", ".join(f"{key} = {setting(value)}" for key, value in variant.items()) or "no variation"


def run_sweep(
    name: str,
    console: Console,
    on_point: Callable[[Point], None],
    *,
    overrides: Overrides,
    spark: SparkSession | None = None,
    is_job: bool = False,
) -> list[Point]:
    """Run every combination of the sweep of the experiment called `name`, in file order; `spark`: a session to work
    with; `is_job`: simulated in memory.

    Raises InputError, FabricError, AnalysisError.
    """
    experiment = load_experiment(name, overrides)
    console.title(f"orderbed sweep {experiment.name}", experiment.question)
    if is_job:
        return simulate_points(experiment, overrides, console, store.stamp(), spark=spark)
    points: list[Point] = []
    for point in run_points(experiment, overrides, console, store.stamp(), spark=spark):
        points.append(point)
        on_point(point)
    return points


def run_points(
    experiment: Experiment, overrides: Overrides, console: Console, stamp: str, *, spark: SparkSession | None = None
) -> Iterator[Point]:
    """Run every combination, in file order; without a sweep the experiment itself.

    The overrides of the command line are applied again on top of the sweep's values. After each run
    `<runs>/<experiment>/sweep-<stamp>.json` lists the points so far (analysis.run.Sweep reads it), so that a sweep
    that ends early keeps them.
    """
    points: list[dict[str, Any]] = []
    variants = _variants(experiment, overrides)
    if experiment.seeds and all(variant.world is World.SIM for variant in variants):
        console.warn("sweep", f"{len(variants)} whole runs, each with its capture; --spark simulates them in memory")
    with nullcontext(spark) if spark is not None else _session_for(variants) as session:
        for position, variant in enumerate(variants):
            console.title(label(variant.variant))
            outcome = perform(variant, overrides.named(f"{variant.seed}-{stamp}-{position}"), console, spark=session)
            assert outcome.summary is not None, "a point of a sweep is always analysed"
            manifest = store.read_manifest(outcome.directory)
            point = Point(
                variant=dict(variant.variant),
                given=given(variant),
                summary=outcome.summary,
                world=str(manifest["world"]),
                doubts=tuple(outcome.summary["doubts"]),
                directory=outcome.directory,
            )
            points.append(point.as_dict())
            replace_json(overrides.runs / experiment.name / f"sweep-{stamp}.json", points)
            yield point


def simulate_points(
    experiment: Experiment, overrides: Overrides, console: Console, stamp: str, *, spark: SparkSession | None = None
) -> list[Point]:
    """Simulate every combination in memory, on the workers of a Spark session: `spark`, or a new one.

    `<runs>/<experiment>/sweep-<stamp>.parquet` (analysis.metrics.sweep_rows) has a row for each run. A run that broke a
    promise or an expectation is named, and its experiment kept beside the table as a file that can be run by itself.
    Raises InputError, AnalysisError.
    """
    variants = _variants(experiment, overrides)
    if any(variant.world is not World.SIM for variant in variants):
        raise InputError("--spark simulates every run in memory; say --world sim, too")
    from testbed.sim.point import simulate_all

    folder = overrides.runs / experiment.name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"sweep-{stamp}.parquet"
    with ExitStack() as stack:
        session = spark if spark is not None else stack.enter_context(_session())
        bar = stack.enter_context(console.bar("runs", "", total_s=len(variants), unit="runs"))
        done: list[dict[str, Any]] = []

        def progress(fresh: list[dict[str, Any]]) -> None:
            done.extend(fresh)
            bar.advance_to(len(done), f"{_failures(done)} failing")

        try:
            results = simulate_all(session, variants, path, on_progress=progress)
        except BaseException:
            console.warn(
                "stopped", f"{len(done)} of {len(variants)} runs are kept in {path}" if done else "no run is kept"
            )
            raise
        bar.result = f"{len(results)} runs, {_failures(results)} failing: {path}"
    for variant, result in zip(variants, results, strict=True):
        if result["verdict"] == Verdict.FAIL.value:
            kept = _keep(variant, path.with_name(f"{path.stem}-{result['point']}.yaml"))
            console.fail("point", f"{label(variant.variant)}: {'; '.join(result['reasons'])}")
            console.warn("again", f"orderbed run {kept} --world sim --seed {variant.seed}")
    return [
        Point(
            variant=result["variant"],
            given=result["given"],
            summary={key: value for key, value in result.items() if key not in ("variant", "given")},
            world=World.SIM.value,
            doubts=tuple(result["doubts"]),
        )
        for result in results
    ]


def _variants(experiment: Experiment, overrides: Overrides) -> list[Experiment]:
    return [apply_overrides(expanded, overrides) for expanded in expand_sweep(experiment, protocols=PROTOCOLS)]


def _failures(results: list[dict[str, Any]]) -> int:
    return sum(result["verdict"] == Verdict.FAIL.value for result in results)


def _keep(variant: Experiment, path: Path) -> Path:
    """Write the experiment as one file that contains its topology and its impairments."""
    value = {key: one for key, one in yaml.safe_load(variant.text).items() if key != "impairments"}
    value["topology"] = yaml.safe_load(variant.topology_text)
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
    path.write_text(str(text), encoding="utf-8")
    return path


def _session(long_run: bool = False) -> AbstractContextManager[SparkSession]:
    from analysis.engine.session import open_session  # imports Spark

    return open_session(long_run=long_run)


def _session_for(variants: list[Experiment]) -> AbstractContextManager[SparkSession | None]:
    """One Spark session for all points of a simulated sweep. On an emulated network each point has its own, opened when
    its capture is closed: a Java machine would share the nodes' CPUs and memory.
    """
    if len(variants) < 2 or any(variant.world is not World.SIM for variant in variants):
        return nullcontext()
    return _session(long_run=len(variants) >= MANY_POINTS)
