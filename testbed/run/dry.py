"""Dry run: the network that would be built and the times of the faults, without building anything."""

from __future__ import annotations

import shlex

from analysis.formatting import listed
from netem import probe as kernels
from netem.errors import FabricError
from netem.wiring import plan
from netem.wiring.steps import Kernel, KernelOption
from netem.wiring.steps import describe as describe_step
from node.host.workload import Workload, WorkloadKind
from testbed.run.perform import Overrides, check_option, is_topology, load_experiment, untolerated
from testbed.rundir.manifest import counted, programs_said
from testbed.spec.program import require_simulator
from testbed.spec.raw import World
from testbed.spec.values import Experiment
from topologies import load as topology_files
from topologies.dump import changed_fields, spelled
from topologies.formats.errors import InputError
from topologies.formats.units import format_duration, format_event_rate, format_frames, format_rate, format_size
from topologies.model import Access, Direction, Impairment, Topology


def describe(name: str, kernel: str | None, world: str | None = None, *, in_full: bool = False) -> dict[str, list[str]]:
    """Headings and lines for the experiment or topology called `name`. Raises InputError.

    Faults and load come first, the network last: the impairments of its ports, links and buses, or with `in_full` each
    step that would build it. With kernel auto the kernel is the one that a run here would take: it is probed in
    temporary namespaces.
    """
    if is_topology(name):
        topology = topology_files.load(topology_files.find(name))
        check_option("world", World, world)
        return _network(topology, kernel or "auto", world == World.SIM.value, in_full=in_full)
    experiment = load_experiment(name, Overrides(kernel=kernel, world=world))
    is_simulated = experiment.world is World.SIM
    network = _network(experiment.topology, experiment.kernel.value, is_simulated, in_full=in_full)
    return {**_schedule(experiment), **_load(experiment), **_programs(experiment), **network}


def _kernel(name: str) -> tuple[Kernel, str]:
    if name not in ("auto", "host", "uml"):
        raise InputError(f"--kernel: {name!r} is none of auto, host, uml")
    if name != "auto":
        return (Kernel.UML if name == "uml" else Kernel.HOST), f"kernel {name}"
    try:
        choice = kernels.pick(KernelOption.AUTO, kernels.probe())
    except FabricError as error:
        return Kernel.HOST, f"as kernel host has it; none runs here: {error}"
    return choice.picked, f"kernel {choice.picked.value} ({choice.why})"


def _network(topology: Topology, override: str, is_simulated: bool, *, in_full: bool) -> dict[str, list[str]]:
    if is_simulated:
        said, lines = "simulated", _asked_of(topology)
    else:
        if sentence := require_simulator(World.NETNS, topology):
            raise InputError(sentence)
        kernel, said = _kernel(override)
        steps = [describe_step(step) for step in plan.plan(topology, kernel)]
        lines = steps if in_full else [*_asked_of(topology), f"built in {len(steps)} steps: --verbose shows them"]
    return {f"network {topology.name}: {counted(len(topology), 'node')}, {said}": lines}


def _load(experiment: Experiment) -> dict[str, list[str]]:
    """One line for all nodes with the same workload; the heading has their total rate."""
    if not experiment.has_protocol:
        return {}
    senders: dict[str, list[str]] = {}
    for node, workload in experiment.workloads.items():
        senders.setdefault(_workload(workload), []).append(str(node))
    rate_per_s = round(sum(workload.rate_per_s for workload in experiment.workloads.values()), 6)
    heading = f"load of {experiment.protocol.name}: {format_event_rate(rate_per_s)} in all"
    return {heading: [f"{listed(names)}: {text}" for text, names in senders.items()]}


def _workload(workload: Workload) -> str:
    if workload.kind is WorkloadKind.SILENT:
        return "silent"
    changes = counted(len(workload.events), "rate change") if workload.events else ""
    instants = counted(len(workload.instants_ns), "message") if workload.instants_ns else ""
    rate = format_event_rate(workload.rate_per_s) if workload.rate_per_s else ""
    parts = (workload.kind.value, rate, instants, format_size(workload.size_bytes), changes)
    return ", ".join(part for part in parts if part)


def _programs(experiment: Experiment) -> dict[str, list[str]]:
    """Commands of nodes that run a program of the user's, one line for all nodes with the same one."""
    nodes: dict[str, list[str]] = {}
    for node, program in experiment.programs.items():
        command = shlex.join(program.command) or f"what {program.title} runs by itself"
        nodes.setdefault(command, []).append(str(node))
    return {"programs": [f"{', '.join(names)}: {command}" for command, names in nodes.items()]} if nodes else {}


def _asked_of(topology: Topology) -> list[str]:
    """The impairments of ports, one line for all with the same, then those of links, then buses."""
    ports: dict[str, list[str]] = {}
    for direction in Direction:
        for node in topology.nodes():
            ports.setdefault(f"{direction.value}: {_asked(node.impairment(direction))}", []).append(str(node.name))
    lines = [f"{listed(names)} {text}" for text, names in ports.items()]
    for link in topology.links:
        lines += [f"link {link.name} there: {_asked(link.a_to_b)}", f"link {link.name} back: {_asked(link.b_to_a)}"]
    for partition in topology.partitions:
        if partition.bus is not None:
            bus = partition.bus
            words = [format_rate(bus.rate_bps), format_frames(bus.queue_frames)]
            words += [bus.access.value] if bus.access is not Access.QUEUE else []
            lines.append(f"bus {partition.name}: {', '.join(words)}")
    return lines


def _asked(impairment: Impairment) -> str:
    return ", ".join(f"{key} {value}" for key, value in spelled(changed_fields(impairment)).items()) or "clear"


def _begins(experiment: Experiment) -> str:
    parts = [f"{counted(len(experiment.workloads), 'workload')} start"] if experiment.has_protocol else []
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
