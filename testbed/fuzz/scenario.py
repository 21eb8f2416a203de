"""A scenario: one small experiment as a value that can be varied, shrunk and written to a file.

Members are numbered as in the topology: partition by partition, from 0. All times are in ns from the start of the load.
A scenario is complete: network, load, faults, parameters, and the seed of random events (which frame is lost).
`testbed.fuzz.draw` makes one from a seed, `testbed.fuzz.shrink` a smaller one; `experiment_of` and `yaml_of` make an
experiment and its file.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

import yaml

from node.host.workload import WorkloadKind
from node.registry import PROTOCOLS
from testbed.spec import experiment
from testbed.spec.raw import Dissemination, Parameter, World
from testbed.spec.values import Experiment
from topologies import dump
from topologies.formats import units
from topologies.model import (
    CLEAR,
    Bus,
    Direction,
    Impairment,
    Link,
    Node,
    NodeName,
    Partition,
    PartitionName,
    Topology,
)

SETTLE_NS = 1_000_000
"""The load goes on for this long after the last submission and the last end of a fault."""

DRAIN_NS = 600 * 10**9
"""Virtual time. A protocol that has not come to rest by then never will: its longest time-outs are some seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member: submissions of its application, impairments of its port, and error of its clock."""

    submissions_ns: tuple[int, ...] = ()
    """Instants of its submissions, ascending; one may occur twice."""
    joins_ns: int | None = None
    """When it first starts, and joins; None: it is a founder of the group."""
    to_node: Impairment = CLEAR
    from_node: Impairment = CLEAR
    offset_ns: int = 0
    drift_ppm: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One partition. All but the first are linked to the first, with this impairment both ways."""

    members: tuple[Member, ...]
    bus: Bus | None = None
    link: Impairment = CLEAR


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """One fault, from `at_ns` for `for_ns`."""

    at_ns: int
    for_ns: int

    @property
    def end_ns(self) -> int:
        return self.at_ns + self.for_ns

    @property
    def is_final(self) -> bool:
        """Whether its members never come back."""
        return False

    @property
    def members(self) -> frozenset[int]:
        """Members that it affects."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut(Disturbance):
    """Two or more sides no longer reach each other. A member on no side still reaches all others: a bridge."""

    sides: tuple[tuple[int, ...], ...]

    @property
    def members(self) -> frozenset[int]:
        return frozenset(member for side in self.sides for member in side)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneWayCut(Disturbance):
    """Frames from `source` do not reach `target`."""

    source: int
    target: int

    @property
    def members(self) -> frozenset[int]:
        return frozenset((self.source, self.target))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCut(Disturbance):
    """The link of a segment (not the first) carries nothing. `behind` are the segment's members."""

    segment: int
    behind: tuple[int, ...]

    @property
    def members(self) -> frozenset[int]:
        return frozenset(self.behind)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberFault(Disturbance):
    """A fault of one member; `kind` is its name in experiment files."""

    kind: ClassVar[str]
    member: int

    @property
    def members(self) -> frozenset[int]:
        return frozenset((self.member,))

    def block(self) -> dict[str, str]:
        """Its keys in an experiment file beside its target."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze(MemberFault):
    """A member is paused."""

    kind: ClassVar[str] = "pause"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash(MemberFault):
    """A member is killed; after `for_ns` it starts again, or never does (`is_final`)."""

    kind: ClassVar[str] = "crash"
    is_final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(MemberFault):
    """A member leaves the group; after `for_ns` its process joins again."""

    kind: ClassVar[str] = "leave"


@dataclass(frozen=True, slots=True, kw_only=True)
class Worsening(MemberFault):
    """The named fields of the impairment of a member's port change."""

    kind: ClassVar[str] = "impair"
    direction: Direction
    changes: tuple[tuple[str, Any], ...]

    def block(self) -> dict[str, str]:
        return {"direction": self.direction.value} | dump.spelled(dict(self.changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow(MemberFault):
    """A member has only this share of one core."""

    kind: ClassVar[str] = "slow"
    cpu_ratio: float

    def block(self) -> dict[str, str]:
        return {"cpu": units.format_ratio(self.cpu_ratio)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deaf(MemberFault):
    """The receive buffers of a member hold only `buffer_bytes`."""

    kind: ClassVar[str] = "deaf"
    buffer_bytes: int

    def block(self) -> dict[str, str]:
        return {"buffer": units.format_size(self.buffer_bytes)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockShift(MemberFault):
    """The clock of a member jumps and drifts; the end of the fault undoes both."""

    kind: ClassVar[str] = "clock"
    step_ns: int = 0
    drift_ppm: int = 0

    def block(self) -> dict[str, str]:
        return _clock_block(self.drift_ppm, step=self.step_ns)


Fault: TypeAlias = Cut | OneWayCut | LinkCut | Freeze | Crash | Leave | Worsening | Slow | Deaf | ClockShift
Fall: TypeAlias = Freeze | Crash | Leave
Condition: TypeAlias = Slow | Deaf | ClockShift


def clash(one: Fault, other: Fault, *, gap_ns: int = 0) -> bool:
    """Whether both faults affect the same node at once. A node that is down, paused or away cannot fall again, and its
    condition cannot change; no node has one condition twice. A crash may strike within a condition, which ends with it.
    `gap_ns`: least time between two faults of a node. A crash without a restart lasts for ever.
    """
    kinds = Fall | Condition
    if not isinstance(one, kinds) or not isinstance(other, kinds) or one.member != other.member:
        return False
    first, second = sorted((one, other), key=lambda fault: fault.at_ns)
    if isinstance(first, Condition):
        if isinstance(second, Condition) and type(first) is not type(second):
            return False
        if isinstance(second, Crash) and second.at_ns > first.at_ns:
            return False
    if first.is_final:
        return True
    return second.at_ns <= first.end_ns + gap_ns


def is_too_early(fault: Fault, joins_ns: Mapping[int, int], *, gap_ns: int = 0) -> bool:
    """Whether a fault strikes a member that has not joined yet; or is a leave before all have joined, at which the
    member may be the last one."""
    if isinstance(fault, Leave) and joins_ns:
        return fault.at_ns <= max(joins_ns.values()) + gap_ns
    return isinstance(fault, Fall | Condition) and fault.at_ns <= joins_ns.get(fault.member, -1 - gap_ns) + gap_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A complete small experiment. `seed`: seed of the experiment's random events."""

    protocol: str
    seed: int
    segments: tuple[Segment, ...]
    faults: tuple[Fault, ...] = ()
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    dissemination: Dissemination = Dissemination.MULTICAST
    size_bytes: int = 16

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(member for segment in self.segments for member in segment.members)

    @property
    def submissions(self) -> tuple[tuple[int, int], ...]:
        """All submissions as (instant, member), ascending."""
        found = ((at_ns, index) for index, member in enumerate(self.members) for at_ns in member.submissions_ns)
        return tuple(sorted(found))

    @property
    def duration_ns(self) -> int:
        """Length of the load: it ends after all submissions, all faults and all joins."""
        last = [at_ns for at_ns, _ in self.submissions] + [fault.end_ns for fault in self.faults]
        return max((*last, *self.joins_ns.values()), default=0) + SETTLE_NS

    @property
    def joins_ns(self) -> dict[int, int]:
        """By member that is absent at first, when it joins."""
        instants = (member.joins_ns for member in self.members)
        return {index: at_ns for index, at_ns in enumerate(instants) if at_ns is not None}

    @property
    def transit_ns(self) -> int:
        """Approximate upper bound on the transit time of a message between any two members."""
        ports = [member.to_node.delay_ns + member.from_node.delay_ns for member in self.members]
        return 1_000_000 + max(ports) + sum(segment.link.delay_ns for segment in self.segments)

    def __str__(self) -> str:
        sizes = "+".join(str(len(segment.members)) for segment in self.segments)
        return f"{sizes} members, {len(self.submissions)} submissions, {len(self.faults)} faults"


def experiment_of(scenario: Scenario) -> Experiment:
    """The experiment of the scenario, without the text of a file."""
    return experiment.from_block(_block(scenario), "scenario", protocols=PROTOCOLS)


def yaml_of(scenario: Scenario) -> str:
    """Text of an experiment file: `orderbed run FILE --world sim` repeats the simulation of the search."""
    text: str = yaml.safe_dump(
        _block(scenario), sort_keys=False, default_flow_style=None, allow_unicode=True, width=120
    )
    return text


def each_member(scenario: Scenario, change: Callable[[Member], Member]) -> Scenario:
    """The scenario with each member changed, in their order."""
    segments = (replace(segment, members=tuple(map(change, segment.members))) for segment in scenario.segments)
    return replace(scenario, segments=tuple(segments))


def names_of(scenario: Scenario) -> dict[int, str]:
    """Names of the nodes by member."""
    sizes = enumerate((len(segment.members) for segment in scenario.segments), start=1)
    return dict(enumerate(f"p{position}/n{number}" for position, size in sizes for number in range(1, size + 1)))


def spelled_parameters(parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """Parameters as in files: `heartbeat_ns` becomes `heartbeat: 50 ms`."""
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


def _block(scenario: Scenario) -> dict[str, Any]:
    names = names_of(scenario)
    topology = _topology_of(scenario)
    block: dict[str, Any] = {
        "name": topology.name,
        "question": f"Does {scenario.protocol} keep its promises in the scenario that grew from seed {scenario.seed}?",
        "topology": dump.as_block(topology),
        "protocol": {"name": scenario.protocol, "parameters": spelled_parameters(scenario.parameters)},
        "dissemination": scenario.dissemination.value,
        "workload": [
            {
                "kind": WorkloadKind.SCHEDULED.value,
                "at": [units.format_duration(at_ns) for at_ns in member.submissions_ns],
                "size": units.format_size(scenario.size_bytes),
                "senders": [name],
            }
            for name, member in zip(names.values(), scenario.members, strict=True)
            if member.submissions_ns
        ]
        or [{"kind": WorkloadKind.SILENT.value}],
        "clocks": {
            name: _clock_block(member.drift_ppm, offset=member.offset_ns)
            for name, member in zip(names.values(), scenario.members, strict=True)
            if member.offset_ns or member.drift_ppm
        },
        "duration": units.format_duration(scenario.duration_ns),
        "drain": units.format_duration(DRAIN_NS),
        "seed": scenario.seed,
        "world": World.SIM.value,
        "absent": [names[member] for member in scenario.joins_ns],
        "faults": [_fault_block(fault, names) for fault in scenario.faults]
        + [
            {"at": units.format_duration(at_ns), "join": {"targets": [names[member]]}}
            for member, at_ns in scenario.joins_ns.items()
        ],
    }
    return {key: value for key, value in block.items() if value not in ({}, [])}


def _topology_of(scenario: Scenario) -> Topology:
    """Partitions p1, p2 … of nodes n1, n2 …; each partition but the first is linked to the first."""
    places = itertools.count()
    partitions = tuple(
        Partition(
            name=PartitionName(f"p{position}"),
            index=position,
            nodes=tuple(
                Node(
                    name=NodeName(f"p{position}/n{number}"),
                    index=next(places),
                    partition=PartitionName(f"p{position}"),
                    partition_index=position,
                    number=number,
                    to_node=member.to_node,
                    from_node=member.from_node,
                )
                for number, member in enumerate(segment.members, start=1)
            ),
            bus=segment.bus,
        )
        for position, segment in enumerate(scenario.segments, start=1)
    )
    first, *others = partitions
    links = tuple(
        Link(name=_link(one.index), a=first.name, b=one.name, a_to_b=segment.link, b_to_a=segment.link)
        for one, segment in zip(others, scenario.segments[1:], strict=True)
    )
    name = f"fuzz-{scenario.protocol.replace('_', '-')}-{scenario.seed}"
    return Topology(name=name, partitions=partitions, links=links)


def _link(position: int) -> str:
    return f"p1--p{position}"


def _fault_block(fault: Fault, names: Mapping[int, str]) -> dict[str, Any]:
    block: dict[str, Any] = {"at": units.format_duration(fault.at_ns)}
    if not fault.is_final:
        block["for"] = units.format_duration(fault.for_ns)
    match fault:
        case Cut(sides=sides):
            block["cut"] = {"groups": [[names[member] for member in side] for side in sides]}
        case OneWayCut(source=source, target=target):
            block["cut"] = {"pairs": [[names[source], names[target]]]}
        case LinkCut(segment=segment):
            block["cut"] = {"links": [_link(segment + 1)]}
        case _:
            block[fault.kind] = {"targets": [names[fault.member]]} | fault.block()
    return block


def _clock_block(drift_ppm: int, **jumps_ns: int) -> dict[str, str]:
    """Fields of a clock that differ from those of a correct one."""
    found = {name: units.format_duration(jump_ns) for name, jump_ns in jumps_ns.items() if jump_ns}
    return found | ({"drift": units.format_drift(float(drift_ppm))} if drift_ppm else {})
