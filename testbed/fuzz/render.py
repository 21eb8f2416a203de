"""A scenario as an experiment: as a value, for the simulator, and as a file, to be replayed.

Both say the same: `orderbed run FILE --world sim` does what the search has seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from node.host.workload import WorkloadKind
from testbed.fuzz.scenario import (
    DRAIN_NS,
    ClockShift,
    Crash,
    Cut,
    Deaf,
    Fault,
    Freeze,
    Leave,
    LinkCut,
    Member,
    OneWayCut,
    Scenario,
    Slow,
    Worsening,
)
from testbed.spec.faults import Crash as CrashEvent
from testbed.spec.faults import Leave as LeaveEvent
from testbed.spec.faults import Pause
from testbed.spec.plans import ConditionPlan, CutPlan, Layer, NodePlan, Plan, Strike
from testbed.spec.raw import KernelOption, Parameter, World
from testbed.spec.timeline import play
from testbed.spec.values import Experiment, ProtocolChoice, Workload, WrongClock
from topologies import dump
from topologies.formats import units
from topologies.formats.yaml_source import Document
from topologies.model import Link, Node, NodeName, Partition, PartitionName, Topology

_SOURCE = Document(source="scenario", text="", value={}, lines={(): 1})


def experiment_of(scenario: Scenario) -> Experiment:
    """The experiment, without its text."""
    topology = topology_of(scenario)
    nodes = list(topology.nodes())
    members = list(zip(nodes, scenario.members, strict=True))
    return Experiment(
        name=_name(scenario),
        question=_question(scenario),
        topology=topology,
        protocol=ProtocolChoice(name=scenario.protocol, parameters=scenario.parameters),
        dissemination=scenario.dissemination,
        workloads={node.name: _workload(scenario, member) for node, member in members if member.submissions_ns},
        clocks={
            node.name: WrongClock(offset_ns=one.offset_ns, drift_ppm=float(one.drift_ppm))
            for node, one in members
            if one.offset_ns or one.drift_ppm
        },
        duration_ns=scenario.duration_ns,
        drain_ns=DRAIN_NS,
        seed=scenario.seed,
        world=World.SIM,
        kernel=KernelOption.AUTO,
        faults=play(list(_strikes(scenario, nodes)), topology, _SOURCE),
        expect=(),
        sweep=(),
        claims=(),
        text="",
        topology_text="",
        document=_SOURCE,
    )


def yaml_of(scenario: Scenario) -> str:
    """An experiment file that loads to the same."""
    topology = topology_of(scenario)
    names = [node.name for node in topology.nodes()]
    block: dict[str, Any] = {
        "name": _name(scenario),
        "question": _question(scenario),
        "topology": yaml.safe_load(dump.dumps(topology)),
        "protocol": {"name": scenario.protocol, "parameters": spelled_parameters(scenario.parameters)},
        "dissemination": scenario.dissemination.value,
        "workload": _workload_blocks(scenario, names),
        "clocks": {
            str(name): _clock_block(member.drift_ppm, offset=member.offset_ns)
            for name, member in zip(names, scenario.members, strict=True)
            if member.offset_ns or member.drift_ppm
        },
        "duration": units.format_duration(scenario.duration_ns),
        "drain": units.format_duration(DRAIN_NS),
        "seed": scenario.seed,
        "world": World.SIM.value,
        "faults": [_fault_block(fault, names) for fault in scenario.faults],
    }
    text: str = yaml.safe_dump(
        {key: value for key, value in block.items() if value not in ({}, [])},
        sort_keys=False,
        default_flow_style=None,
        allow_unicode=True,
        width=120,
    )
    return text


def topology_of(scenario: Scenario) -> Topology:
    """Partitions p1, p2 … of nodes n1, n2 …; each partition but the first is linked to the first."""
    partitions: list[Partition] = []
    links: list[Link] = []
    index = 0
    for position, segment in enumerate(scenario.segments, start=1):
        name = PartitionName(f"p{position}")
        nodes = tuple(
            Node(
                name=NodeName(f"{name}/n{number}"),
                index=index + number - 1,
                partition=name,
                partition_index=position,
                number=number,
                to_node=member.to_node,
                from_node=member.from_node,
            )
            for number, member in enumerate(segment.members, start=1)
        )
        index += len(nodes)
        partitions.append(Partition(name=name, index=position, nodes=nodes, bus=segment.bus))
        if position > 1:
            first = PartitionName("p1")
            links.append(Link(name=_link(position), a=first, b=name, a_to_b=segment.link, b_to_a=segment.link))
    return Topology(name=_name(scenario), partitions=tuple(partitions), links=tuple(links))


def spelled_parameters(parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """As files write them: `heartbeat_ns` is `heartbeat: 50 ms`."""
    found: dict[str, Any] = {}
    for name, value in parameters.items():
        if isinstance(value, Mapping):
            found[name] = spelled_parameters(value)
            continue
        for suffix, spell in _SPELLING.items():
            if name.endswith(suffix):
                found[name.removesuffix(suffix)] = spell(value)
                break
        else:
            found[name] = value
    return found


_SPELLING: Mapping[str, Any] = {
    "_per_s": units.format_event_rate,
    "_ns": units.format_duration,
    "_bytes": units.format_size,
    "_bps": units.format_rate,
    "_ratio": units.format_ratio,
    "_ppm": units.format_drift,
}


def _name(scenario: Scenario) -> str:
    return f"fuzz-{scenario.protocol.replace('_', '-')}-{scenario.seed}"


def _question(scenario: Scenario) -> str:
    return f"Does {scenario.protocol} keep its promises in the scenario that grew from seed {scenario.seed}?"


def _link(position: int) -> str:
    return f"p1--p{position}"


def _workload(scenario: Scenario, member: Member) -> Workload:
    return Workload(
        kind=WorkloadKind.SCHEDULED,
        rate_per_s=0.0,
        size_bytes=scenario.size_bytes,
        instants_ns=member.submissions_ns,
    )


def _workload_blocks(scenario: Scenario, names: list[NodeName]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = [
        {
            "kind": WorkloadKind.SCHEDULED.value,
            "at": [units.format_duration(at_ns) for at_ns in member.submissions_ns],
            "size": units.format_size(scenario.size_bytes),
            "senders": [str(name)],
        }
        for name, member in zip(names, scenario.members, strict=True)
        if member.submissions_ns
    ]
    return blocks or [{"kind": WorkloadKind.SILENT.value}]


def _strikes(scenario: Scenario, nodes: list[Node]) -> Iterator[Strike]:
    for number, fault in enumerate(scenario.faults):
        plan = _plan(fault, [node.name for node in nodes])
        yield Strike(at_ns=fault.at_ns, is_end=False, path=("faults", number), plan=plan)
        if not (isinstance(fault, Crash) and fault.is_final):
            yield Strike(at_ns=fault.end_ns, is_end=True, path=("faults", number), plan=plan)


def _plan(fault: Fault, names: list[NodeName]) -> Plan:
    match fault:
        case Cut(sides=sides):
            return CutPlan(groups=tuple(tuple(names[member] for member in side) for side in sides))
        case OneWayCut(source=source, target=target):
            return CutPlan(pairs=((names[source], names[target]),))
        case LinkCut(segment=segment):
            return CutPlan(links=(_link(segment + 1),))
        case Freeze(member=member):
            return NodePlan(kind=Pause, targets=(names[member],))
        case Crash(member=member):
            return NodePlan(kind=CrashEvent, targets=(names[member],))
        case Leave(member=member):
            return NodePlan(kind=LeaveEvent, targets=(names[member],))
        case Worsening(member=member, direction=direction, changes=changes):
            return Layer(direction=direction, targets=(names[member],), changes=dict(changes))
        case Slow(member=member, cpu_ratio=cpu_ratio):
            return ConditionPlan(targets=(names[member],), cpu_ratio=cpu_ratio, lasts=True)
        case Deaf(member=member, buffer_bytes=buffer_bytes):
            return ConditionPlan(targets=(names[member],), buffer_bytes=buffer_bytes, lasts=True)
        case ClockShift(member=member, step_ns=step_ns, drift_ppm=drift_ppm):
            return ConditionPlan(targets=(names[member],), step_ns=step_ns, drift_ppm=float(drift_ppm), lasts=True)


def _fault_block(fault: Fault, names: list[NodeName]) -> dict[str, Any]:
    block: dict[str, Any] = {"at": units.format_duration(fault.at_ns)}
    if not (isinstance(fault, Crash) and fault.is_final):
        block["for"] = units.format_duration(fault.for_ns)
    match fault:
        case Cut(sides=sides):
            block["cut"] = {"groups": [[str(names[member]) for member in side] for side in sides]}
        case OneWayCut(source=source, target=target):
            block["cut"] = {"pairs": [[str(names[source]), str(names[target])]]}
        case LinkCut(segment=segment):
            block["cut"] = {"links": [_link(segment + 1)]}
        case Freeze(member=member):
            block["pause"] = {"targets": [str(names[member])]}
        case Crash(member=member):
            block["crash"] = {"targets": [str(names[member])]}
        case Leave(member=member):
            block["leave"] = {"targets": [str(names[member])]}
        case Worsening(member=member, direction=direction, changes=changes):
            where = {"targets": [str(names[member])], "direction": direction.value}
            block["impair"] = where | dump.spelled(dict(changes))
        case Slow(member=member, cpu_ratio=cpu_ratio):
            block["slow"] = {"targets": [str(names[member])], "cpu": units.format_ratio(cpu_ratio)}
        case Deaf(member=member, buffer_bytes=buffer_bytes):
            block["deaf"] = {"targets": [str(names[member])], "buffer": units.format_size(buffer_bytes)}
        case ClockShift(member=member, step_ns=step_ns, drift_ppm=drift_ppm):
            block["clock"] = {"targets": [str(names[member])]} | _clock_block(drift_ppm, step=step_ns)
    return block


def _clock_block(drift_ppm: int, **jumps_ns: int) -> dict[str, str]:
    """What differs from a right clock."""
    found = {name: units.format_duration(jump_ns) for name, jump_ns in jumps_ns.items() if jump_ns}
    return found | ({"drift": units.format_drift(float(drift_ppm))} if drift_ppm else {})
