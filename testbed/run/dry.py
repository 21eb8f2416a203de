"""The dry run: what would be built and when each fault would strike, without building it."""

from __future__ import annotations

import shlex

from netem.errors import FabricError
from netem.kernel import probe as kernels
from netem.wiring import plan
from netem.wiring.steps import Kernel
from testbed.run.manifest import programs_said
from testbed.run.perform import Overrides, check_world, is_topology, load_experiment, untolerated
from testbed.spec.experiment import Experiment, World
from topologies import load as topology_files
from topologies.dump import changed_fields, spelled
from topologies.formats.errors import InputError
from topologies.formats.units import format_duration, format_frames, format_rate
from topologies.model import Direction, Impairment, Topology


def describe(name: str, kernel: str | None, world: str | None = None) -> dict[str, list[str]]:
    """Headings and lines for the experiment or topology called `name`. Raises InputError.

    What happens comes first, the wiring last. With kernel auto the kernel is the one that a run here would take:
    it is tried out in namespaces that are thrown away at once. In the simulated world nothing is built: the lines say
    what is simulated.
    """
    if is_topology(name):
        topology = topology_files.load(topology_files.find(name))
        check_world(world)
        return _simulated(topology) if world == World.SIM.value else _network(topology, kernel or "auto")
    experiment = load_experiment(name, Overrides(kernel=kernel, world=world))
    if experiment.world is World.SIM:
        return {**_schedule(experiment), **_programs(experiment), **_simulated(experiment.topology)}
    wiring = _network(experiment.topology, experiment.kernel.value)
    return {**_schedule(experiment), **_programs(experiment), **wiring}


def _kernel(name: str) -> tuple[Kernel, str]:
    """The kernel, and how it was picked, in words."""
    if name not in ("auto", "host", "uml"):
        raise InputError(f"--kernel: {name!r} is none of auto, host, uml")
    if name != "auto":
        return (Kernel.UML if name == "uml" else Kernel.HOST), f"kernel {name}"
    try:
        choice = kernels.pick(kernels.KernelOption.AUTO, kernels.probe())
    except FabricError as error:
        return Kernel.HOST, f"as kernel host has it; none runs here: {error}"
    return choice.picked, f"kernel {choice.picked.value} ({choice.why})"


def _network(topology: Topology, override: str) -> dict[str, list[str]]:
    kernel, said = _kernel(override)
    steps = [plan.describe(step) for step in plan.plan(topology, kernel)]
    return {f"network {topology.name}: {len(topology)} nodes, {said}": steps}


def _programs(experiment: Experiment) -> dict[str, list[str]]:
    """Who runs which command; one line for all nodes with the same one."""
    nodes: dict[str, list[str]] = {}
    for node, program in experiment.programs.items():
        command = shlex.join(program.command) or f"what {program.title} runs by itself"
        nodes.setdefault(command, []).append(str(node))
    return {"programs": [f"{', '.join(names)}: {command}" for command, names in nodes.items()]} if nodes else {}


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
    who = "workloads" if experiment.has_protocol else "programs"
    end = f"{who} end; at most {format_duration(experiment.drain_ns)} to drain"
    lines.append(f"{format_duration(experiment.duration_ns)}  {end}")
    if warning := untolerated(experiment):
        lines.append(f"note: {warning}")
    return {f"schedule of {experiment.name}": lines}
