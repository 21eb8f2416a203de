"""The dry run: what would be built and when each fault would strike, without touching anything."""

from __future__ import annotations

from pathlib import Path

from netem import plan
from netem.steps import Kernel
from testbed import spec
from testbed.manifest import programs_said
from testbed.paths import TOPOLOGIES, is_file
from testbed.run import Wishes, check_world, load_experiment, untolerated
from testbed.spec import Experiment, World
from topologies import load as topology_files
from topologies.dump import changed_fields, spelled
from topologies.errors import InputError
from topologies.model import Direction, Impairment, Topology
from topologies.units import format_duration, format_frames, format_rate


def describe(name: str, kernel: str | None, world: str | None = None) -> dict[str, list[str]]:
    """Headings and lines for the experiment or topology called `name`. Raises InputError.

    Without a kernel the plan is the one for `host`; nothing is probed. In the simulated world nothing is built: the
    lines say what is simulated.
    """
    if _is_topology(name):
        topology = topology_files.load(topology_files.find(name))
        check_world(world)
        return _simulated(topology) if world == World.SIM.value else _network(topology, _kernel(kernel or "host"))
    experiment = load_experiment(name, Wishes(kernel=kernel, world=world))
    if experiment.world is World.SIM:
        return {**_simulated(experiment.topology), **_schedule(experiment)}
    return {**_network(experiment.topology, _kernel(experiment.kernel.value)), **_schedule(experiment)}


def _kernel(name: str) -> Kernel:
    if name not in ("auto", "host", "uml"):
        raise InputError(f"--kernel: {name!r} is none of auto, host, uml")
    return Kernel.UML if name == "uml" else Kernel.HOST


def _is_topology(name: str) -> bool:
    if name in spec.names():
        return False
    if is_file(TOPOLOGIES / f"{name}.yaml"):
        return True
    path = Path(name)
    return is_file(path) and path.read_text(encoding="utf-8", errors="replace").find("\npartitions:") >= 0


def _network(topology: Topology, kernel: Kernel) -> dict[str, list[str]]:
    steps = [plan.describe(step) for step in plan.plan(topology, kernel)]
    return {f"network {topology.name}: {len(topology)} nodes, kernel {kernel.value}": steps}


def _simulated(topology: Topology) -> dict[str, list[str]]:
    lines = [
        f"port {node.name} ({node.ip}) {direction.value}: {_asked(node.impairment(direction))}"
        for node in topology.nodes()
        for direction in Direction
    ]
    for link in topology.links:
        lines += [f"link {link.name} there: {_asked(link.a_to_b)}", f"link {link.name} back: {_asked(link.b_to_a)}"]
    for partition in topology.partitions:
        if partition.bus is not None:
            bus = partition.bus
            lines.append(f"bus {partition.name}: {format_rate(bus.rate_bps)}, {format_frames(bus.queue_frames)}")
    return {f"network {topology.name}: {len(topology)} nodes, simulated": lines}


def _asked(impairment: Impairment) -> str:
    return ", ".join(f"{key} {value}" for key, value in spelled(changed_fields(impairment)).items()) or "clear"


def _begins(experiment: Experiment) -> str:
    """What begins with the load; programs of others have been started before."""
    parts = [f"{len(experiment.workloads)} workloads start"] if experiment.has_protocol else []
    return "; ".join([*parts, *([programs_said(experiment)] if experiment.programs else [])])


def _schedule(experiment: Experiment) -> dict[str, list[str]]:
    lines = [f"{format_duration(0)}  {_begins(experiment)}"]
    lines += [f"{format_duration(fault.at_ns)}  {fault}" for fault in experiment.faults]
    end = f"workloads end; at most {format_duration(experiment.drain_ns)} to drain"
    lines.append(f"{format_duration(experiment.duration_ns)}  {end}")
    if warning := untolerated(experiment):
        lines.append(f"note: {warning}")
    return {f"schedule of {experiment.name}": lines}
