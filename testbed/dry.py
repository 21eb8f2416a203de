"""The dry run: what would be built and when each fault would strike, without touching anything."""

from __future__ import annotations

from pathlib import Path

from netem import plan
from netem.steps import Kernel
from testbed import spec
from testbed.paths import TOPOLOGIES
from testbed.run import Wishes, load_experiment
from testbed.spec import Experiment
from topologies import load as topology_files
from topologies.errors import InputError
from topologies.model import Topology
from topologies.units import format_duration


def describe(name: str, kernel: str | None) -> dict[str, list[str]]:
    """Headings and lines for the experiment or topology called `name`. Raises InputError.

    Without a kernel the plan is the one for `host`; nothing is probed.
    """
    if _is_topology(name):
        return _network(topology_files.load(topology_files.find(name)), _kernel(kernel or "host"))
    experiment = load_experiment(name, Wishes(kernel=kernel))
    return {**_network(experiment.topology, _kernel(experiment.kernel.value)), **_schedule(experiment)}


def _kernel(name: str) -> Kernel:
    if name not in ("auto", "host", "uml"):
        raise InputError(f"--kernel: {name!r} is none of auto, host, uml")
    return Kernel.UML if name == "uml" else Kernel.HOST


def _is_topology(name: str) -> bool:
    if name in spec.names():
        return False
    if (TOPOLOGIES / f"{name}.yaml").is_file():
        return True
    path = Path(name)
    return path.is_file() and path.read_text(encoding="utf-8", errors="replace").find("\npartitions:") >= 0


def _network(topology: Topology, kernel: Kernel) -> dict[str, list[str]]:
    steps = [plan.describe(step) for step in plan.plan(topology, kernel)]
    return {f"network {topology.name}: {len(topology)} nodes, kernel {kernel.value}": steps}


def _schedule(experiment: Experiment) -> dict[str, list[str]]:
    lines = [f"{format_duration(0)}  {len(experiment.workloads)} workloads start"]
    lines += [f"{format_duration(fault.at_ns)}  {fault}" for fault in experiment.faults]
    end = f"workloads end; at most {format_duration(experiment.drain_ns)} to drain"
    return {f"schedule of {experiment.name}": [*lines, f"{format_duration(experiment.duration_ns)}  {end}"]}
