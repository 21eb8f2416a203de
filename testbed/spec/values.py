"""An experiment as values, made by `testbed.spec.experiment` from a file. A value that exists was checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from analysis.expression import Expression
from netem.wiring.steps import KernelOption
from node.host.workload import Workload
from testbed.spec.faults import Fault
from testbed.spec.program import ProgramChoice
from testbed.spec.raw import Claim, Dissemination, Parameter, World
from topologies import dump
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
    """Senders in member order, all with the same mean rate."""
    share_ratio: float
    length_ns: int
    rise_ratio: float

    @property
    def in_change(self) -> int:
        """Number of senders in a change at any time: their share, to the nearest whole number."""
        return math.floor(self.share_ratio * len(self.senders) + 0.5)

    def expected_changes(self, duration_ns: int) -> float:
        """Mean number of changes that begin within the load: each lasts half of the length on average."""
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
    """A key of the file and its values; or keys that change together, and the rows of their values."""

    key: str
    """As the file spells it: `workload.rate`, or several with commas between."""
    values: tuple[Value, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key.strip() for key in self.key.split(","))

    def settings(self, position: int) -> dict[str, Value]:
        """Values by key at this position."""
        value = self.values[position]
        if len(self.keys) == 1:
            return {self.key: value}
        assert isinstance(value, list)
        return dict(zip(self.keys, value, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A checked experiment. Workloads and clocks are by node, in member order; a node without a workload is silent.

    A run directory keeps `text` and `topology_text`, from which the same experiment and network can be loaded.
    """

    name: str
    question: str
    topology: Topology
    protocol: ProtocolChoice
    """If every node runs a user's program: that program's name, which is no protocol (`has_protocol`)."""
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
    """Members that are absent at the start, in member order; each is started when it joins."""
    expect: tuple[Expression, ...]
    sweep: tuple[SweepAxis, ...]
    claims: tuple[Claim, ...]
    programs: Mapping[NodeName, ProgramChoice] = field(default_factory=dict)
    """Programs of the nodes that run a user's one, in member order."""
    image: str | None = None
    """World docker: image of all nodes whose program names no other; None: the project's own."""
    rate_churn: tuple[RateChurn, ...] = ()
    """Rate churn; its changes, drawn from `seed`, are in `workloads` (redrawn by testbed.spec.rate_churn.reseeded)."""
    calls: tuple[Call, ...] = ()
    """Telephone calls, one at most of each callee, whose instants testbed.spec.nodes draws from `seed`."""
    seeds: int = 0
    """Number of seeds, derived from `seed`, of each combination of a sweep; 0: `seed` itself."""
    text: str = field(repr=False)
    topology_file: str = field(repr=False)
    """Text of the network's own file; empty if the network is defined or changed by the experiment."""
    variant: Mapping[str, Value] = field(default_factory=dict)
    """Values set by a sweep, by key; empty for the experiment of the file."""
    document: Document = field(repr=False, compare=False)
    folder: Path | None = field(default=None, repr=False, compare=False)
    """Folder of the file, in which relative paths are resolved."""

    @property
    def topology_text(self) -> str:
        return self.topology_file or dump.dumps(self.topology)

    @property
    def has_protocol(self) -> bool:
        """Whether any node runs the project's program."""
        return len(self.programs) < len(self.topology)

    @property
    def founders(self) -> tuple[Node, ...]:
        """The members that are present at the start."""
        return tuple(node for node in self.members if node.name not in self.absent)

    @property
    def members(self) -> tuple[Node, ...]:
        """Members of the group, whose traces are judged, in member order: nodes that run the project's program, and
        programs that are members. All nodes if there is none.
        """
        nodes = tuple(self.topology.nodes())
        return tuple(n for n in nodes if n.name not in self.programs or self.programs[n.name].is_member) or nodes
