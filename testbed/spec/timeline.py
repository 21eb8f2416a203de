"""From the faults of a file, or the changes of a testbed that stays up, to the events of `testbed.spec.faults`:
selectors, order, and what is not allowed.

Each block of the file becomes plans. The starts and ends of all plans are sorted by time and played through a Timeline.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import NoReturn

from node.host.node_clock import MAX_DRIFT_PPM
from testbed.spec.faults import ClockShift, Cut, Deaf, Fault, Join, LinkDirection, Slow, bridged, halves, ring, ways
from testbed.spec.generators import Drawn, TooManyError, chaos, churn, flap
from testbed.spec.nodes import derive_seed
from testbed.spec.plans import (
    NODE_FAULTS,
    ConditionPlan,
    CutPlan,
    Healing,
    Layer,
    NodePlan,
    Plan,
    Restoring,
    Strike,
    Timeline,
)
from testbed.spec.raw import (
    FAULT_KINDS,
    ChaosKind,
    CutShape,
    FaultDirection,
    RawChaos,
    RawChurn,
    RawCut,
    RawExperiment,
    RawFault,
    RawFlap,
    RawImpair,
    RawRestore,
)
from testbed.spec.values import Experiment
from topologies.formats.errors import InputError
from topologies.formats.schema import validated
from topologies.formats.units import format_drift, format_duration
from topologies.formats.yaml_source import Document, KeyPath, key_text
from topologies.model import Direction, NodeName, SelectError, Topology, select, select_link

CPU_MIN_RATIO = 0.001
"""Least share of a core that the kernel can set (netem.runtimes.cgroups)."""
BUFFER_MIN_BYTES = 2304
"""Least receive buffer of the kernel (SOCK_MIN_RCVBUF)."""
BUFFER_MAX_BYTES = 8 * 2**20
"""Receive buffer that node.host.endpoint requests without a fault."""


def timeline(
    raw: Sequence[RawFault],
    topology: Topology,
    duration_ns: int,
    document: Document,
    *,
    seed: int = 1,
    programs: Collection[NodeName] = (),
    absent: Sequence[NodeName] = (),
) -> tuple[Fault, ...]:
    """The events in time order. `seed`: seed of the generators; `programs`: nodes that run a user's program; `absent`:
    members that are absent at the start. Raises InputError for a fault without targets, outside the run, or impossible.
    """
    strikes: list[Strike] = []
    for position, block in enumerate(raw):
        path = document.item(("faults",), position)
        # A seed of its own, so that the draws of a block do not depend on other blocks.
        rng = Random(derive_seed(seed, "faults", position))  # noqa: S311 (repeatable, not secret)
        reader = _Reader(topology, document, path, duration_ns, rng, programs)
        strikes += reader.strikes(block)
    return play(strikes, topology, document, absent=absent)


def replay(experiment: Experiment, seed: int) -> tuple[Fault, ...]:
    """The events of the experiment's faults under another seed."""
    raw = validated(RawExperiment, experiment.document)
    return timeline(
        raw.faults,
        experiment.topology,
        experiment.duration_ns,
        experiment.document,
        seed=seed,
        programs=experiment.programs,
        absent=experiment.absent,
    )


def play(
    strikes: Sequence[Strike], topology: Topology, document: Document, *, absent: Sequence[NodeName] = ()
) -> tuple[Fault, ...]:
    """The events of these starts and ends, in time order. Raises InputError for an impossible one."""
    # At the same time, ends come first: `for: 3 s` at 4 s and the next at 7 s do not overlap.
    ordered = sorted(strikes, key=lambda strike: (strike.at_ns, not strike.is_end))
    timeline = Timeline(topology, document, absent)
    events: list[Fault] = []
    for strike in ordered:
        event = timeline.perform(strike, len(events))
        if event is not None:
            events.append(event)
    joined = {name for event in events if isinstance(event, Join) for name in event.targets}
    for name in absent:
        if name not in joined:
            raise document.error(("absent",), f"{name} never joins: add a fault join, or leave it out of the topology")
    return tuple(replace(event, until_id=timeline.until.get(event.id)) for event in events)


class Resolver:
    """Resolves blocks of faults: selectors to nodes and links, and impairments and cuts to plans."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology

    def fail(self, sentence: str, *key: str | int) -> NoReturn:
        """Raise InputError for a mistake at `key`, which begins with the block's."""
        raise InputError(sentence, key=key_text(key[1:]) or None)

    def impair(self, block: RawImpair, *key: str) -> list[Plan]:
        key = key or ("impair",)
        changes = block.changes()
        if not changes:
            self.fail("nothing is changed; name what, such as loss: 10 % or delay: 20 ms", *key)
        ports = self._ports(key, block.targets, block.links, block.direction)
        return [Layer(direction=direction, targets=targets, changes=changes) for direction, targets in ports]

    def restore(self, block: RawRestore) -> list[Plan]:
        ports = self._ports(("restore",), block.targets, block.links, FaultDirection.BOTH)
        return [Restoring(direction=direction, targets=targets) for direction, targets in ports]

    def _ports(
        self,
        key: tuple[str, ...],
        targets: list[str] | None,
        links: list[str] | None,
        direction: FaultDirection | None,
    ) -> Iterator[tuple[Direction | LinkDirection, tuple[str, ...]]]:
        if (targets is None) == (links is None):
            self.fail("expected either targets (nodes) or links", *key)
        names: tuple[str, ...]
        directions: type[Direction] | type[LinkDirection]
        if targets is not None:
            names, directions = self.nodes(targets, *key, "targets"), Direction
            wanted = direction or FaultDirection.TO_NODE
        else:
            names, directions = self.links(links or [], *key), LinkDirection
            wanted = direction or FaultDirection.BOTH
        allowed = [one.value for one in directions]
        if wanted is not FaultDirection.BOTH and wanted.value not in allowed:
            self.fail(f"expected {', '.join(allowed)} or both, got {wanted.value}", *key, "direction")
        for one in directions:
            if wanted is FaultDirection.BOTH or wanted.value == one.value:
                yield one, names

    def cut(self, block: RawCut, *key: str) -> Plan:
        key = key or ("cut",)
        forms = {
            "groups": block.groups is not None,
            "from and to": block.from_ is not None or block.to is not None,
            "pairs": block.pairs is not None,
            "links": block.links is not None,
            "shape": block.shape is not None,
        }
        given = [name for name, present in forms.items() if present]
        if len(given) != 1:
            self.fail(f"expected exactly one of {', '.join(forms)}, got {' and '.join(given) or 'none'}", *key)
        if block.shape is None and (block.of is not None or block.count is not None or block.reach is not None):
            self.fail("of, count and reach belong to a shape, such as {shape: halves, of: p1/*}", *key)
        found = self._cut(block, key)
        if not found.links and not found.blocked_pairs():
            self.fail("this separates nobody: name nodes on two different sides", *key)
        return CutPlan(cut=found)

    def _cut(self, block: RawCut, key: tuple[str, ...]) -> Cut:
        if block.shape is not None:
            return self._shape(block, block.shape, key)
        if block.groups is not None:
            groups = (self.nodes(group, *key, "groups", number) for number, group in enumerate(block.groups))
            return Cut(groups=tuple(groups))
        if block.pairs is not None:
            pairs = (self._pair(pair, key, number) for number, pair in enumerate(block.pairs))
            return Cut(pairs=tuple(pairs))
        if block.links is not None:
            return Cut(links=self.links(block.links, *key))
        if block.from_ is None or block.to is None:
            self.fail("from and to stand together: whose frames no longer arrive, and where", *key)
        senders, receivers = self.nodes(block.from_, *key, "from"), self.nodes(block.to, *key, "to")
        return Cut(pairs=tuple((a, b) for a in senders for b in receivers if a != b))

    def _shape(self, block: RawCut, shape: CutShape, key: tuple[str, ...]) -> Cut:
        """The cut of a shape: of groups, which are then printed and drawn, or for a ring of pairs."""
        if (block.count is not None) != (shape is CutShape.WAYS):
            self.fail("count belongs to ways, and ways needs it: into how many groups", *key)
        if block.reach is not None and shape is not CutShape.RING:
            self.fail("reach belongs to ring", *key, "reach")
        nodes = self.nodes(block.of or ["*"], *key, "of")
        named = f"{shape.value} of {len(nodes)} node{'s' if len(nodes) > 1 else ''}"
        try:
            if shape is CutShape.RING:
                return Cut(pairs=tuple(sorted(ring(nodes, block.reach or 1))), shape=named)
            return Cut(groups=self._groups(shape, nodes, block.count), shape=named)
        except ValueError as error:
            self.fail(str(error), *key)

    def _groups(
        self, shape: CutShape, nodes: tuple[NodeName, ...], count: int | None
    ) -> tuple[tuple[NodeName, ...], ...]:
        """The groups of a shape. Raises ValueError when there are too few nodes."""
        if shape is CutShape.HALVES:
            return halves(nodes)
        if shape is CutShape.WAYS:
            return ways(nodes, count or 0)
        if shape is CutShape.BRIDGE:
            return bridged(nodes)
        others = tuple(node.name for node in self.topology.nodes() if node.name not in nodes)
        return (*((node,) for node in nodes), *((others,) if others else ()))

    def _pair(self, pair: list[str], key: tuple[str, ...], number: int) -> tuple[NodeName, NodeName]:
        nodes = [self.nodes([name], *key, "pairs", number) for name in pair]
        if len(nodes) != 2 or any(len(one) != 1 for one in nodes) or nodes[0] == nodes[1]:
            self.fail("expected two different nodes [from, to]; for more use from and to", *key, "pairs", number)
        return nodes[0][0], nodes[1][0]

    def nodes(self, selectors: Sequence[str], *key: str | int) -> tuple[NodeName, ...]:
        try:
            nodes = select(self.topology, selectors)
        except SelectError as error:
            self.fail(str(error), *key)
        if not nodes:
            self.fail("expected at least one node", *key)
        return tuple(node.name for node in nodes)

    def links(self, names: Sequence[str], *key: str) -> tuple[str, ...]:
        try:
            links = tuple(dict.fromkeys(select_link(self.topology, name).name for name in names))
        except SelectError as error:
            self.fail(str(error), *key, "links")
        if not links:
            self.fail("expected at least one link", *key, "links")
        return links


class _Reader(Resolver):
    """Makes the plans of one block of the file."""

    def __init__(
        self,
        topology: Topology,
        document: Document,
        path: KeyPath,
        duration_ns: int,
        rng: Random,
        programs: Collection[NodeName],
    ) -> None:
        super().__init__(topology)
        self._document = document
        self._path = path
        self._duration_ns = duration_ns
        self._rng = rng
        self._programs = programs

    def strikes(self, block: RawFault) -> Iterator[Strike]:
        kinds = block.kinds
        if len(kinds) != 1:
            self.fail(f"expected exactly one of {', '.join(FAULT_KINDS)}, got {' and '.join(kinds) or 'none'}")
        kind = kinds[0]
        self._check_times(block, kind)
        end_ns = self._duration_ns if block.for_ is None else block.at + block.for_
        path = (*self._path, kind)
        if kind in ("flap", "churn", "chaos"):
            yield from self._generated(block, path, end_ns)
            return
        for plan in self._plans(block, kind):
            yield Strike(at_ns=block.at, is_end=False, path=path, plan=plan)
            if block.for_ is not None:
                yield Strike(at_ns=end_ns, is_end=True, path=path, plan=plan)

    def _plans(self, block: RawFault, kind: str) -> list[Plan]:
        if block.impair is not None:
            return self.impair(block.impair)
        if block.restore is not None:
            return self.restore(block.restore)
        if block.cut is not None:
            return [self.cut(block.cut)]
        if kind == "heal":
            return [Healing()]
        targets = self.nodes(getattr(block, kind).targets, kind, "targets")
        if kind in ("join", "leave"):
            self._refuse_programs(targets, "which no fault can tell to join or to leave", kind, "targets")
        if kind in NODE_FAULTS:
            return [NodePlan(kind=NODE_FAULTS[kind], targets=targets)]
        return [self._condition(block, targets)]

    def _condition(self, block: RawFault, targets: tuple[NodeName, ...]) -> Plan:
        fault: Slow | Deaf | ClockShift
        if block.slow is None:
            kind = "deaf" if block.deaf is not None else "clock"
            self._refuse_programs(targets, "whose clock and sockets only it can change", kind, "targets")
        if block.slow is not None:
            if not CPU_MIN_RATIO <= block.slow.cpu < 1:
                self.fail("expected at least 0.1 % and less than 100 % of a core", "slow", "cpu")
            fault = Slow(targets=targets, cpu_ratio=block.slow.cpu)
        elif block.deaf is not None:
            if not BUFFER_MIN_BYTES <= block.deaf.buffer <= BUFFER_MAX_BYTES:
                self.fail("expected 2304 B (no kernel makes a smaller buffer) to 8 MiB", "deaf", "buffer")
            fault = Deaf(targets=targets, buffer_bytes=block.deaf.buffer)
        else:
            assert block.clock is not None
            step_ns, drift_ppm = block.clock.step, block.clock.drift
            if not step_ns and not drift_ppm:
                self.fail("nothing is changed; give a step such as 50 ms, or a drift such as 100 ppm", "clock")
            if abs(drift_ppm) > MAX_DRIFT_PPM:
                most = format_drift(MAX_DRIFT_PPM)
                self.fail(f"expected at most {most} either way, got {format_drift(drift_ppm)}", "clock", "drift")
            fault = ClockShift(targets=targets, step_ns=step_ns, drift_ppm=drift_ppm)
        return ConditionPlan(fault=fault, lasts=block.for_ is not None)

    def _refuse_programs(self, targets: tuple[NodeName, ...], why: str, *key: str) -> None:
        """Raise InputError if a target runs a user's program; for faults that only the project's program supports."""
        for name in targets:
            if name in self._programs:
                self.fail(f"{name} runs a program of its own, {why}", *key)

    # Generators.

    def _generated(self, block: RawFault, path: KeyPath, end_ns: int) -> Iterator[Strike]:
        try:
            for from_ns, until_ns, plan in self._drawn(block, end_ns):
                yield Strike(at_ns=from_ns, is_end=False, path=path, plan=plan)
                yield Strike(at_ns=until_ns, is_end=True, path=path, plan=plan)
        except TooManyError as error:
            self.fail(str(error), path[-1])

    def _drawn(self, block: RawFault, end_ns: int) -> Iterator[Drawn]:
        if block.flap is not None:
            self._check_positive(block.flap, "flap", "down", "up")
            return flap(block.flap, self._flapping(block.flap), block.at, end_ns, self._rng)
        if block.churn is not None:
            self._check_positive(block.churn, "churn", "up", "down")
            nodes = self.nodes(block.churn.targets, "churn", "targets")
            return churn(block.churn, nodes, block.at, end_ns, self._rng)
        assert block.chaos is not None
        return chaos(block.chaos, self._hit_by(block.chaos), block.at, end_ns, self._rng)

    def _flapping(self, block: RawFlap) -> Callable[[], list[Plan]]:
        """A function that makes the plans for one time that the target is away: each is a fault of its own."""
        given = [name for name in ("targets", "links", "cut", "impair") if getattr(block, name) is not None]
        if len(given) != 1:
            self.fail(
                f"expected exactly one of targets, links, cut, impair, got {' and '.join(given) or 'none'}", "flap"
            )
        cut, impair = block.cut, block.impair
        if block.targets is not None:
            cut = RawCut.model_validate({"shape": "isolate", "of": block.targets})
            self.nodes(block.targets, "flap", "targets")
        if block.links is not None:
            links = self.links(block.links, "flap")
            return lambda: [CutPlan(cut=Cut(links=links))]
        if cut is not None:
            wanted = cut
            return lambda: [self.cut(wanted, "flap", "cut")]
        assert impair is not None
        return lambda: self.impair(impair, "flap", "impair")

    def _hit_by(self, block: RawChaos) -> tuple[NodeName, ...]:
        self._check_positive(block, "chaos", "every")
        if len(block.lasts) != 2 or not 0 < block.lasts[0] <= block.lasts[1]:
            self.fail("expected [shortest, longest], both above 0, such as [500 ms, 2 s]", "chaos", "lasts")
        if not block.kinds:
            self.fail("expected at least one kind", "chaos", "kinds")
        nodes = self.nodes(block.within, "chaos", "within")
        if {ChaosKind.DEAF, ChaosKind.CLOCK} & set(block.kinds):
            self._refuse_programs(nodes, "whose clock and sockets only it can change", "chaos", "within")
        return nodes

    def _check_positive(self, block: RawFlap | RawChurn | RawChaos, kind: str, *names: str) -> None:
        for name in names:
            if getattr(block, name) == 0:
                self.fail("expected a duration above 0", kind, name)

    def _check_times(self, block: RawFault, kind: str) -> None:
        duration = format_duration(self._duration_ns)
        if block.at > self._duration_ns:
            self.fail(f"{format_duration(block.at)} lies after the end of the workload at {duration}", "at")
        if block.for_ is None:
            return
        if kind not in RawFault.LASTING:
            self.fail(f"{kind} has no end; only {', '.join(RawFault.LASTING)} take for", "for")
        if block.for_ == 0:
            self.fail("expected a duration above 0", "for")
        end_ns = block.at + block.for_
        if end_ns > self._duration_ns:
            self.fail(
                f"the fault would end at {format_duration(end_ns)}, after the end of the workload at {duration}; "
                "without for it lasts to the end of the run",
                "for",
            )

    def fail(self, sentence: str, *key: str | int) -> NoReturn:
        raise self._document.error((*self._path, *key), sentence)
