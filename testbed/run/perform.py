"""From an experiment's name to a judged run: perform, analyse, report, each from the files of the one before."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.engine.session import require_java
from analysis.network import fault_overlap
from netem.errors import FabricError
from netem.wiring.steps import KernelOption
from node.registry import CRASHES, PROTOCOLS
from testbed.console import Console
from testbed.paths import TOPOLOGIES, is_file
from testbed.run.program import refusal_of, require_runnable, unlimited, without_limits
from testbed.rundir import store
from testbed.rundir.manifest import WorldChoice, first_manifest, pick, require_privilege
from testbed.rundir.store import StoreError
from testbed.sim.world import SimulatedWorld
from testbed.spec import experiment as spec
from testbed.spec.rate_churn import reseeded
from testbed.spec.raw import MAX_SEED, World
from testbed.spec.values import Experiment
from topologies.formats.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOM_BYTES_PER_FRAME = 2.2
"""Factor on the offered bytes: a frame is recorded where it is sent and where it arrives; the rest is headroom for
control traffic."""

ROOM_BYTES_AT_LEAST = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Settings of the command line that override the experiment file; None: as in the file."""

    world: str | None = None
    kernel: str | None = None
    seed: int | None = None
    name: str | None = None
    runs: Path = Path("runs")
    analyze: bool = True

    def named(self, name: str) -> Overrides:
        """The same overrides for one run of several."""
        return dataclasses.replace(self, name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Directory and summary of a run; `summary` is None when it was not analysed."""

    directory: Path
    summary: dict[str, Any] | None


def is_topology(name: str) -> bool:
    """Whether `name` is a topology, shipped or a file, and no experiment."""
    if name in spec.names():
        return False
    if is_file(TOPOLOGIES / f"{name}.yaml"):
        return True
    path = Path(name)
    return is_file(path) and path.read_text(encoding="utf-8", errors="replace").find("\npartitions:") >= 0


def load_experiment(name: str, overrides: Overrides) -> Experiment:
    """The experiment that `name` selects, with the overrides of the command line.

    Raises InputError.
    """
    if is_topology(name):
        raise InputError(
            f"{name} is a topology, no experiment: an experiment names it under `topology`, and `orderbed up {name}` "
            "brings it up"
        )
    return apply_overrides(spec.load(spec.find(name), protocols=PROTOCOLS), overrides)


def check_option(
    option: str, enumeration: type[World | KernelOption], given: str | None
) -> World | KernelOption | None:
    """Value of an option of the command line. Raises InputError when it is none of `enumeration`."""
    allowed = [member.value for member in enumeration]
    if given is not None and given not in allowed:
        raise InputError(f"--{option}: {given!r} is none of {', '.join(allowed)}")
    return enumeration(given) if given is not None else None


def apply_overrides(experiment: Experiment, overrides: Overrides) -> Experiment:
    changes: dict[str, Any] = {}
    if overrides.seed is not None:
        if not 0 <= overrides.seed <= MAX_SEED:
            raise InputError(f"--seed must lie between 0 and {MAX_SEED}, not {overrides.seed}")
        # A seed that a sweep has set stays: it was derived from the override.
        if "seed" not in experiment.variant:
            experiment = reseeded(experiment, overrides.seed)
    for option, enumeration in (("world", World), ("kernel", KernelOption)):
        given = check_option(option, enumeration, getattr(overrides, option))
        if given is not None:
            changes[option] = given
    world = changes.get("world", experiment.world)
    if sentence := refusal_of(experiment, world):
        raise InputError(f"--world: {sentence}")
    return dataclasses.replace(experiment, **changes)


def run_experiment(name: str, overrides: Overrides, console: Console) -> Outcome:
    """Perform, analyse and report the experiment called `name`.

    Raises InputError before anything has started, FabricError and KeyboardInterrupt after the run was marked.
    """
    experiment = load_experiment(name, overrides)
    console.title(f"orderbed {experiment.name}", experiment.question)
    return perform(experiment, overrides, console)


def perform(
    experiment: Experiment, overrides: Overrides, console: Console, *, spark: SparkSession | None = None
) -> Outcome:
    """Like `run_experiment`, from a loaded experiment; `spark`: a session to analyse with."""
    if overrides.analyze:
        require_java()
    store.require_space(overrides.runs, needed_bytes(experiment))
    world = pick(experiment.world)
    can_be_simulated = not refusal_of(experiment, World.SIM)
    require_privilege(world.world, can_be_simulated=can_be_simulated)
    require_faults(experiment, world)
    require_runnable(experiment, world.world)
    directory = store.create(
        overrides.runs,
        experiment.name,
        experiment.seed,
        name=overrides.name,
        is_repeatable=world.world is World.SIM,
    )
    if warning := untolerated(experiment):
        console.warn("protocol", warning)
    if warning := unlimited(experiment, world.world):
        console.warn("limits", warning)
        experiment = without_limits(experiment)
    (directory.path / "experiment.yaml").write_text(experiment.text, encoding="utf-8")
    (directory.path / "topology.yaml").write_text(experiment.topology_text, encoding="utf-8")
    directory.manifest = first_manifest(experiment, world, directory)
    directory.save()
    try:
        if world.world is World.SIM:
            SimulatedWorld(experiment, directory, console).perform()
        else:
            from testbed.run.conductor import Conductor  # here: its import takes a third of a second

            Conductor(experiment, world, directory, console).perform()
    except KeyboardInterrupt:
        console.warn("stopped", f"interrupted; what was recorded is kept in {directory.path}")
        raise
    except (FabricError, StoreError) as error:
        directory.manifest |= {"status": "failed", "error": str(error)}
        console.warn("failed", f"what was recorded is kept in {directory.path}")
        raise
    finally:
        directory.close()
    summary = analyze_and_report(directory.path, console, spark=spark) if overrides.analyze else None
    return Outcome(directory=directory.path, summary=summary)


def analyze_and_report(directory: Path, console: Console, *, spark: SparkSession | None = None) -> dict[str, Any]:
    """Tables, summary and report of a run directory, with a session of its own unless one is given.

    Raises AnalysisError.
    """
    # Imported here: they import Spark and the plots.
    from analysis.report.page import write_report
    from analysis.summary import analyze

    with console.stage("analysis", "beginning") as stage:
        try:
            summary = analyze(directory, spark=spark, on_progress=stage.say)
        except KeyboardInterrupt:
            console.warn(
                "stopped", f"interrupted; the capture is whole: `orderbed analyze {directory}` goes on from it"
            )
            raise
        frames = summary.get("capture", {}).get("frames", 0)
        stage.result = f"{frames:,} frames, {summary['messages']['deliveries']:,} deliveries judged"
    with console.stage("report", "drawing") as stage:
        path = write_report(directory)
        stage.result = f"{path} ({path.stat().st_size / 1000:.0f} kB)"
    for sentence in fault_overlap.warnings(summary["faults"]):
        console.warn("fault", sentence)
    return summary


def require_faults(experiment: Experiment, world: WorldChoice) -> None:
    """Raise FabricError, before anything has started, when this world does not support a fault."""
    if world.world is World.SIM or not experiment.faults:
        return
    from testbed.run import schedule  # here, as the conductor

    entry = PROTOCOLS.get(experiment.protocol.name)
    schedule.require(experiment, several_processes=entry is not None and entry.parts is not None)


def untolerated(experiment: Experiment) -> str:
    """Warning that the protocol does not tolerate the experiment's crashes; else empty."""
    name = experiment.protocol.name
    if not experiment.has_protocol:
        return ""
    missing = {fault.kind for fault in experiment.faults} & CRASHES - PROTOCOLS[name].tolerates
    return f"{name} does not live through a crash: the group may stand still from then on" if missing else ""


def needed_bytes(experiment: Experiment) -> int:
    """Estimated size of the capture, from the offered load and the number of members."""
    members = len(experiment.topology)
    seconds = (experiment.duration_ns + experiment.drain_ns) / 1e9
    offered = sum(w.rate_per_s * (w.size_bytes + 200) for w in experiment.workloads.values())
    return ROOM_BYTES_AT_LEAST + int(offered * seconds * members * ROOM_BYTES_PER_FRAME)
