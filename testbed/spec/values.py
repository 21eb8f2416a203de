"""An experiment as values: what `testbed.spec.experiment` makes of a file. A value that exists was checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from analysis.expression import Expression
from node.host.workload import Workload
from testbed.spec.faults import Fault
from testbed.spec.program import ProgramChoice
from testbed.spec.raw import Claim, Dissemination, KernelOption, Parameter, World
from topologies.formats.yaml_source import Document, Value
from topologies.model import Node, NodeName, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolChoice:
    """The protocol under test and the parameters that the file sets."""

    name: str
    parameters: Mapping[str, Parameter]


@dataclass(frozen=True, slots=True, kw_only=True)
class RateChurn:
    """Rates that change all the time (testbed.spec.rate_churn): at any time `share_ratio` of the senders are in a
    change, which lasts at most `length_ns` and raises the rate by at most `rise_ratio` of its mean.
    """

    senders: tuple[NodeName, ...]
    """In member order, all with the same mean rate."""
    share_ratio: float
    length_ns: int
    rise_ratio: float

    @property
    def in_change(self) -> int:
        """How many senders are in a change at any time: the share of them, to the nearest whole number."""
        return math.floor(self.share_ratio * len(self.senders) + 0.5)

    def expected_changes(self, duration_ns: int) -> float:
        """How many changes begin within the load, on average: each lasts half of the length."""
        return self.in_change * (1 + 2 * duration_ns / self.length_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A telephone call: `after_ns` after each `every`-th message of the caller the callee sends its next one. No node
    sees that the one follows from the other.
    """

    caller: NodeName
    callee: NodeName
    after_ns: int
    every: int
    tells_timestamp: bool = False
    """The caller tells the timestamp of its message, and the callee's gets a later one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongClock:
    """A node's clock is ahead by `offset_ns` at the start and gains `drift_ppm` parts per million."""

    offset_ns: int = 0
    drift_ppm: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepAxis:
    """A key of the file and the values that it is to have; or keys that go together, and the rows of their values."""

    key: str
    """As the file spells it: `workload.rate`, or several with commas between."""
    values: tuple[Value, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key.strip() for key in self.key.split(","))

    def settings(self, position: int) -> dict[str, Value]:
        """What the value at this position sets."""
        value = self.values[position]
        if len(self.keys) == 1:
            return {self.key: value}
        assert isinstance(value, list)
        return dict(zip(self.keys, value, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A checked experiment. Workloads and clocks are by node, in member order; a node without a workload is silent.

    `text` and `topology_text` are what a run directory keeps: loaded again they give this very experiment and network.
    """

    name: str
    question: str
    topology: Topology
    protocol: ProtocolChoice
    """When every node has a program of its own: that program's name, which is none of ours (`has_protocol`)."""
    dissemination: Dissemination
    workloads: Mapping[NodeName, Workload]
    clocks: Mapping[NodeName, WrongClock]
    duration_ns: int
    drain_ns: int
    seed: int
    world: World
    kernel: KernelOption
    faults: tuple[Fault, ...]
    absent: tuple[NodeName, ...] = ()
    """Members that are not there from the start, in member order; each is started when it joins."""
    expect: tuple[Expression, ...]
    sweep: tuple[SweepAxis, ...]
    claims: tuple[Claim, ...]
    programs: Mapping[NodeName, ProgramChoice] = field(default_factory=dict)
    """What the nodes run that do not run ours, in member order."""
    image: str | None = None
    """World docker: of all nodes whose program names no other; None: the one that is made for it."""
    rate_churn: tuple[RateChurn, ...] = ()
    """Whose rate changes are in `workloads` already, drawn from `seed`; testbed.spec.rate_churn.reseeded draws
    them anew."""
    calls: tuple[Call, ...] = ()
    """Each callee stands in one, its workload without instants; testbed.spec.nodes draws them, from `seed`."""
    seeds: int = 0
    """How many seeds a sweep runs each combination with, derived from `seed`; 0: with this one."""
    text: str = field(repr=False)
    topology_text: str = field(repr=False)
    variant: Mapping[str, Value] = field(default_factory=dict)
    """What a sweep has set, by key; empty for the experiment of the file."""
    document: Document = field(repr=False, compare=False)
    folder: Path | None = field(default=None, repr=False, compare=False)
    """Where relative paths begin: the folder of the file."""

    @property
    def has_protocol(self) -> bool:
        """Whether any node runs our program."""
        return len(self.programs) < len(self.topology)

    @property
    def founders(self) -> tuple[Node, ...]:
        """The members that are there from the start."""
        return tuple(node for node in self.members if node.name not in self.absent)

    @property
    def members(self) -> tuple[Node, ...]:
        """Whose traces are judged, and to whom our nodes send: our nodes and the programs that are members; in member
        order. Everybody where nobody is one.
        """
        nodes = tuple(self.topology.nodes())
        return tuple(n for n in nodes if n.name not in self.programs or self.programs[n.name].is_member) or nodes
