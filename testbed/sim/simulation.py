"""One experiment in virtual time: same file, cores and host code as on an emulated network, without a kernel.

The same experiment gives the same result, on every machine and under every PYTHONHASHSEED: each use of random numbers
has a generator of its own, seeded by the experiment and by its purpose, and events of one instant happen in the order
in which they were caused. Faults strike at their exact time and take no time.

The phases are the conductor's: nodes start, the load lasts `duration_ns` while faults strike, nodes are told to drain,
and when all are quiet and no frame is in transit (checked each DRAIN_CHECK_NS), or after `drain_ns`, members that a
fault left paused are resumed and all nodes are stopped.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from analysis.checks.properties import Incarnations
from node.core import Core, Membership, Submission
from node.errors import LocalError
from node.host.application import Application, WorkloadApplication
from node.host.config import NodeConfig, parse
from node.registry import PROTOCOLS
from node.trace import Stamp
from testbed.sim.engine import Engine
from testbed.sim.member import Ending, IncarnationRun, Member, Observer
from testbed.sim.network import Counters, Datagram, Network, Tap
from testbed.spec import faults
from testbed.spec.faults import Cut, Fault, Heal, LinkDirection, NodeFault, blocked_after, blocked_links_after
from testbed.spec.nodes import FIRST_JOINER, configuration
from testbed.spec.raw import Dissemination
from testbed.spec.values import Experiment
from topologies.model import Node, NodeName

__all__ = [
    "START_NS",
    "Build",
    "Datagram",
    "Ending",
    "IncarnationRun",
    "Observer",
    "Phases",
    "Simulation",
    "Tap",
    "simulate",
]

START_NS = 1_000_000_000_000
"""Virtual true time at which nodes and load start; late enough that a slow clock does not show negative time."""

DRAIN_CHECK_NS = 10_000_000
PROGRESS_STEPS = 100
COLLECT_AFTER = 200_000
"""New objects between two searches of Python's collector for cycles."""

Build: TypeAlias = Callable[[Membership, int], Core]
"""Makes a core of a membership and a seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Virtual true times in ns. `drained_ns` None: not everything became quiet in time."""

    start_ns: int
    load_end_ns: int
    drained_ns: int | None
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """Result of a simulation; equal for equal experiments, except `core_ns` of incarnations."""

    incarnations: tuple[IncarnationRun, ...]
    """In the order of their starts: all first incarnations by member, then later ones."""
    phases: Phases
    faults: tuple[Mapping[str, Any], ...]
    """Lines as in faults.jsonl."""
    counters: list[Counters]
    link_counters: list[Counters]
    bus_counters: list[Counters]
    is_silent: bool
    """Whether no event would ever follow: no timer is armed and no frame in transit."""
    events: int
    """Number of events of the engine."""
    now_ns: int

    @property
    def records(self) -> Incarnations:
        """Records of all incarnations, as input of checks."""
        return {incarnation.name: incarnation.records for incarnation in self.incarnations}


def simulate(
    experiment: Experiment,
    *,
    group: int,
    tap: Tap | None = None,
    build: Build | None = None,
    observer: Observer | None = None,
    on_progress: Callable[[int], None] | None = None,
    on_fault: Callable[[Mapping[str, Any]], None] | None = None,
    keeps_records: bool = True,
    encodes: bool = True,
    linger_ns: int = 0,
) -> Simulation:
    """Run an experiment to its end.

    It reads only topology, protocol, dissemination, workloads, clocks, duration_ns, drain_ns, seed and faults. `build`
    replaces the protocol's own core. `on_progress` gets the virtual time now and then, `on_fault` each line of
    faults.jsonl when the fault has struck. Without `keeps_records` the incarnations have no records. Without `encodes`
    the tap sees datagrams without their bytes (`payload` is empty) and no trace: for taps that count. `linger_ns`: time
    from quiet to the stop of the nodes, to check that a quiet group is silent. Raises LocalError for an invalid
    experiment; exceptions of a core other than RemoteError are passed on.
    """
    with _patient_collector() as cpu_ns:
        world = _World(experiment, group, tap, build, observer, on_fault, keeps_records, encodes, cpu_ns)
        return world.run(on_progress, linger_ns)


@contextmanager
def _patient_collector() -> Iterator[Callable[[], int]]:
    """Fewer searches of Python's collector inside the block: a run makes hundreds of thousands of objects that live to
    its end, and hardly a cycle; at its usual pace the collector would search all of them repeatedly.

    Gives a clock of this thread's processor time, in ns, that stands still during these searches. They concern the
    objects of all members and of the simulator, so they are no work of the core in whose call they happen to begin.
    """
    usual = gc.get_threshold()
    began_ns = searching_ns = 0

    def note(phase: str, _: Mapping[str, int]) -> None:
        nonlocal began_ns, searching_ns
        if phase == "start":
            began_ns = time.thread_time_ns()
        else:
            searching_ns += time.thread_time_ns() - began_ns

    gc.set_threshold(COLLECT_AFTER, *usual[1:])
    gc.callbacks.append(note)
    try:
        yield lambda: time.thread_time_ns() - searching_ns
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*usual)


class _World:
    """Nodes, network and faults of one run."""

    def __init__(
        self,
        experiment: Experiment,
        group: int,
        tap: Tap | None,
        build: Build | None,
        observer: Observer | None,
        on_fault: Callable[[Mapping[str, Any]], None] | None,
        keeps_records: bool,
        encodes: bool,
        cpu_ns: Callable[[], int],
    ) -> None:
        self._experiment = experiment
        self._cpu_ns = cpu_ns
        self._on_fault = on_fault
        self._encodes = encodes and tap is not None
        self._observer = observer
        self._keeps_records = keeps_records
        self._engine = Engine(start_ns=START_NS)
        self._network = Network(experiment.topology, self._engine, seed=experiment.seed, tap=tap)
        self._nodes = tuple(experiment.topology.nodes())
        self._configurations = _Configurations(experiment, group)
        self._entry = PROTOCOLS.get(experiment.protocol.name)
        if self._entry is None and build is None:
            raise LocalError(f"no protocol is called {experiment.protocol.name!r}")
        self._build = build
        self._members: dict[NodeName, Member] = {}
        self._joins_again: set[NodeName] = set()
        """Nodes that have been told to join since they were told to leave."""
        self._told: dict[NodeName, list[int]] = {}
        """Per caller that tells them: the timestamps of its messages, in their order."""
        self._incarnations: list[IncarnationRun] = []
        self._faults: list[Mapping[str, Any]] = []
        self._perform: dict[type[Fault], Callable[[Any], Mapping[str, Any] | None]] = {
            faults.Impair: self._impair,
            faults.ImpairLink: self._impair_link,
            Cut: self._block,
            Heal: self._block,
            faults.Crash: self._each(Member.crash),
            faults.Restart: self._restart,
            faults.Pause: self._each(Member.pause),
            faults.Resume: self._each(_resume),
            faults.Join: self._join,
            faults.Leave: self._leave,
            faults.Slow: lambda fault: self._each(lambda one: one.slow(fault.cpu_ratio))(fault),
            faults.Deaf: lambda fault: self._each(lambda one: one.deafen(fault.buffer_bytes))(fault),
            faults.ClockShift: self._shift_clock,
            faults.Recover: self._recover,
        }

    def run(self, on_progress: Callable[[int], None] | None, linger_ns: int) -> Simulation:
        for fault in self._experiment.faults:
            if fault.at_ns <= self._experiment.duration_ns:
                self._engine.at(START_NS + fault.at_ns, self._strike, fault)
        founders = [node for node in self._nodes if node.name not in self._experiment.absent]
        for node in founders:
            self._begin(node, incarnation=1)
        for node in founders:
            self._members[node.name].start(START_NS)
        load_end_ns = START_NS + self._experiment.duration_ns
        self._load(load_end_ns, on_progress)
        drained_ns = self._drain(load_end_ns + self._experiment.drain_ns, on_progress)
        if drained_ns is not None:
            self._engine.run(drained_ns + linger_ns)
        is_silent = self._engine.next_ns is None
        self._stop()
        return Simulation(
            incarnations=tuple(self._incarnations),
            phases=Phases(
                start_ns=START_NS, load_end_ns=load_end_ns, drained_ns=drained_ns, end_ns=self._engine.now_ns
            ),
            faults=tuple(self._faults),
            counters=self._network.port_counters(),
            link_counters=self._network.link_counters(),
            bus_counters=self._network.bus_counters(),
            is_silent=is_silent,
            events=self._engine.worked_off,
            now_ns=self._engine.now_ns,
        )

    # Phases.

    def _load(self, end_ns: int, on_progress: Callable[[int], None] | None) -> None:
        step_ns = max(1, self._experiment.duration_ns // PROGRESS_STEPS)
        while self._engine.now_ns < end_ns:
            self._engine.run(min(end_ns, self._engine.now_ns + step_ns))
            if on_progress is not None:
                on_progress(self._engine.now_ns)

    def _drain(self, end_ns: int, on_progress: Callable[[int], None] | None) -> int | None:
        for member in self._alive():
            member.drain()
        while True:
            if self._is_quiet():
                return self._engine.now_ns
            if self._engine.now_ns >= end_ns:
                return None
            self._engine.run(self._next_check_ns(end_ns))
            if on_progress is not None:
                on_progress(self._engine.now_ns)

    def _next_check_ns(self, end_ns: int) -> int:
        """Time of the next check for quiet: every DRAIN_CHECK_NS, but not while no event happens."""
        now_ns, next_ns = self._engine.now_ns, self._engine.next_ns
        if next_ns is None:
            return end_ns
        steps = max(1, -((now_ns - next_ns) // DRAIN_CHECK_NS))
        return min(end_ns, now_ns + steps * DRAIN_CHECK_NS)

    def _is_quiet(self) -> bool:
        return all(member.is_drained for member in self._alive()) and self._network.in_flight == 0

    def _stop(self) -> None:
        for member in self._alive():
            member.slow(None)
            _resume(member)
        for member in self._alive():
            member.stop()

    def _alive(self) -> list[Member]:
        members = (self._members[node.name] for node in self._nodes if node.name in self._members)
        return [member for member in members if member.incarnation.ending is None]

    # Nodes.

    def _return(self, node: Node) -> None:
        """Let the process of an excluded member, or of one that has left, go on as its next incarnation."""
        before = self._members[node.name]
        self._joins_again.discard(node.name)
        if before.incarnation.ending is None:
            before.give_way()
            member = self._begin(node, incarnation=before.incarnation.incarnation + 1, before=before)
            member.start(self._engine.now_ns)
            if before.host.is_draining:
                member.drain()

    def _on_end(self, node: Node, core: Core) -> None:
        if not core.has_left or node.name in self._joins_again:
            self._engine.at(self._engine.now_ns, self._return, node)

    def _begin(self, node: Node, *, incarnation: int, before: Member | None = None) -> Member:
        config = self._configurations.of(node, incarnation, elapsed_ns=self._engine.now_ns - START_NS)
        core = self._make_core(config)
        returns = self._entry is not None and self._entry.returns
        member = Member(
            config,
            core,
            self._network.port(node),
            self._nodes,
            self._engine,
            cpu_ns=self._cpu_ns,
            tells_tap=self._encodes,
            routers_copy=self._experiment.dissemination is Dissemination.ROUTERS,
            keeps_records=self._keeps_records,
            traces_receipts=self._entry is not None and self._entry.traces_receipts,
            observer=self._observer,
            application=self._application(node, config),
            before=before,
            on_end=partial(self._on_end, node, core) if returns else None,
        )
        self._members[node.name] = member
        self._incarnations.append(member.incarnation)
        return member

    def _application(self, node: Node, config: NodeConfig) -> Application | None:
        """Of one incarnation; None: one that sends what the workload says. Only first incarnations telephone."""
        if config.membership.incarnation == 1:
            for call in self._experiment.calls:
                if call.tells_timestamp and node.name in (call.caller, call.callee):
                    told = self._told.setdefault(call.caller, [])
                    return _Caller(config, told) if node.name == call.caller else _Callee(config, told, call.every)
        return None if self._entry is None else self._entry.application_for(config)

    def _make_core(self, config: NodeConfig) -> Core:
        if self._build is not None:
            return self._build(config.membership, config.seed)
        assert self._entry is not None
        return self._entry.build(membership=config.membership, parameters=config.parameters, seed=config.seed)

    # Faults.

    def _strike(self, fault: Fault) -> None:
        readback = self._perform[type(fault)](fault) or {}
        now_ns = self._engine.now_ns
        line = fault.record() | {"issued_ns": now_ns, "effective_ns": now_ns, "readback": readback}
        self._faults.append(line)
        if self._observer is not None:
            self._observer.fault(line)
        if self._on_fault is not None:
            self._on_fault(line)

    def _impair(self, fault: faults.Impair) -> None:
        for name, impairment in fault.settings:
            self._network.impair(self._experiment.topology.node(name), fault.direction, impairment)

    def _impair_link(self, fault: faults.ImpairLink) -> None:
        for name, impairment in fault.settings:
            link = self._experiment.topology.link(name)
            origin = link.a if fault.direction is LinkDirection.THERE else link.b
            self._network.impair_link(link, from_partition=origin, impairment=impairment)

    def _block(self, fault: Cut | Heal) -> None:
        plan, node = self._experiment.faults, self._experiment.topology.node
        pairs = blocked_after(plan, fault)
        self._network.block([(node(sender), node(receiver)) for sender, receiver in pairs])
        self._network.block_links(blocked_links_after(plan, fault))

    def _each(self, act: Callable[[Member], object]) -> Callable[[NodeFault], None]:
        def perform(fault: NodeFault) -> None:
            for member in self._targets(fault):
                act(member)

        return perform

    def _restart(self, fault: faults.Restart) -> None:
        """Restart nodes that are down; a plan restarts no others."""
        nodes = [self._experiment.topology.node(name) for name in fault.targets]
        incarnations = [self._members[node.name].incarnation for node in nodes]
        down = [
            (node, incarnation)
            for node, incarnation in zip(nodes, incarnations, strict=True)
            if incarnation.ending is not None
        ]
        started = [self._begin(node, incarnation=incarnation.incarnation + 1) for node, incarnation in down]
        for member in started:
            member.start(self._engine.now_ns)

    def _join(self, fault: faults.Join) -> None:
        for name in fault.targets:
            node, member = self._experiment.topology.node(name), self._members.get(name)
            if member is None:
                self._begin(node, incarnation=FIRST_JOINER).start(self._engine.now_ns)
                continue
            self._joins_again.add(name)
            if member.host.has_left:
                self._return(node)

    def _leave(self, fault: faults.Leave) -> dict[str, Any]:
        """Let members leave. Returns the reasons of those that cannot."""
        refused: dict[str, Any] = {}
        for member in self._targets(fault):
            try:
                member.leave()
            except LocalError as error:
                refused[self._nodes[member.incarnation.member].name] = {"refused": str(error)}
        return refused

    def _shift_clock(self, fault: faults.ClockShift) -> None:
        for member in self._targets(fault):
            member.shift_clock(fault.id, step_ns=fault.step_ns, drift_ppm=fault.drift_ppm)

    def _recover(self, fault: faults.Recover) -> None:
        for member in self._targets(fault):
            if fault.what == faults.Slow.kind:
                member.slow(None)
            elif fault.what == faults.Deaf.kind:
                member.deafen(None)
            else:
                member.right_clock(fault.ends)

    def _targets(self, fault: NodeFault) -> list[Member]:
        """The living targets of a fault; it has no effect on others."""
        members = [self._members[name] for name in fault.targets]
        return [member for member in members if member.incarnation.ending is None]


def _resume(member: Member) -> None:
    if member.is_paused:
        member.resume()


class _Telephoning(WorkloadApplication):
    """One of the two applications of a telephone call. `told`: timestamps of the caller's messages, in their order."""

    def __init__(self, config: NodeConfig, told: list[int]) -> None:
        super().__init__(config.workload, config.membership, seed=config.seed)
        self._told = told


class _Caller(_Telephoning):
    """Tells the timestamp of each of its messages."""

    tells = True

    def note_timestamp(self, timestamp: int) -> None:
        self._told.append(timestamp)


class _Callee(_Telephoning):
    """Its messages have later timestamps than those of the caller that they follow from. Of one that the caller's core
    has not taken yet there is none to tell.
    """

    def __init__(self, config: NodeConfig, told: list[int], every: int) -> None:
        super().__init__(config, told)
        self._every = every

    def submission(self, stamp: Stamp) -> Submission:
        place = stamp.number * self._every - 1
        not_before = self._told[place] if place < len(self._told) else 0
        return dataclasses.replace(super().submission(stamp), not_before=not_before)


class _Configurations:
    """Configuration of each incarnation, parsed from the same line that a real node reads.

    The list of all members is the same for all nodes and is parsed once: in a group of a thousand, a million entries.
    """

    def __init__(self, experiment: Experiment, group: int) -> None:
        self._experiment = experiment
        self._group = group
        self._first: NodeConfig | None = None

    def of(self, node: Node, incarnation: int, *, elapsed_ns: int) -> NodeConfig:
        """The configuration of an incarnation. Raises LocalError, one sentence, for an invalid one."""
        words = configuration(self._experiment, node, incarnation=incarnation, group=self._group, elapsed_ns=elapsed_ns)
        if self._first is None:
            self._first = parse(json.dumps(words))
            return self._first
        own = [entry for entry in words["members"] if entry["index"] == node.index]
        config = parse(json.dumps(words | {"members": own, "founders": []}))
        everybody = self._first.membership
        membership = dataclasses.replace(everybody, member=node.index, incarnation=incarnation)
        return dataclasses.replace(config, membership=membership)
