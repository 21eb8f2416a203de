"""From the faults of a file to the events of `testbed.spec_faults`: selectors, order, layers, and what cannot be.

Each block of the file becomes plans; a plan has a start and may have an end (`for:`). The starts and ends of all plans
are sorted by time and then played through a `_Course`, which knows what is impaired, cut, crashed or paused by then.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Protocol

from testbed.spec_faults import (
    Changes,
    Crash,
    Cut,
    Fault,
    Heal,
    Impair,
    ImpairLink,
    LinkDirection,
    NodeFault,
    Pause,
    Restart,
    Resume,
)
from testbed.spec_raw import FaultDirection, RawCut, RawFault, RawImpair, RawRestore
from topologies.model import Direction, Impairment, NodeName, Topology
from topologies.select import SelectError, select, select_link
from topologies.units import format_duration
from topologies.yaml_source import Document, KeyPath


def timeline(raw: Sequence[RawFault], topology: Topology, duration_ns: int, document: Document) -> tuple[Fault, ...]:
    """The events in time order. Raises InputError for what names nothing, lies outside the run, or cannot happen."""
    strikes: list[_Strike] = []
    for position, block in enumerate(raw):
        strikes += _Reader(topology, document, document.item(("faults",), position), duration_ns).strikes(block)
    # Of what happens at the same time, ends come first: `for: 3 s` at 4 s and the next at 7 s do not overlap.
    strikes.sort(key=lambda strike: (strike.at_ns, not strike.is_end))
    course = _Course(topology, document)
    events = [course.perform(strike, number) for number, strike in enumerate(strikes)]
    return tuple(replace(event, until_id=course.until.get(event.id)) for event in events)


class _Status(enum.Enum):
    RUNNING = "running"
    CRASHED = "crashed"
    PAUSED = "paused"


_TRANSITIONS: dict[type[NodeFault], tuple[_Status, _Status]] = {
    Crash: (_Status.RUNNING, _Status.CRASHED),
    Restart: (_Status.CRASHED, _Status.RUNNING),
    Pause: (_Status.RUNNING, _Status.PAUSED),
    Resume: (_Status.PAUSED, _Status.RUNNING),
}
_ENDS: dict[type[NodeFault], type[NodeFault]] = {Crash: Restart, Pause: Resume}
_NODE_FAULTS: dict[str, type[NodeFault]] = {one.kind: one for one in _TRANSITIONS}


class _Plan(Protocol):
    """What a block asks for."""

    def start(self, course: _Course, now: _Now) -> Fault: ...

    def end(self, course: _Course, now: _Now) -> Fault: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Strike:
    """The start or the end of a plan at its time; `path` is the block that asked for it."""

    at_ns: int
    is_end: bool
    path: KeyPath
    plan: _Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class _Now:
    """The event that is being made: its id, its time, and whom to blame."""

    id: int
    at_ns: int
    path: KeyPath


class _Course:
    """What holds at the moment that the play has reached."""

    def __init__(self, topology: Topology, document: Document) -> None:
        self.topology = topology
        self.document = document
        self.layers: list[_Layer] = []
        self.cuts: list[_CutPlan] = []
        self.open_faults: dict[int, set[NodeName]] = {}
        """Crashes and pauses by id, with the nodes that they still hold."""
        self.status: dict[NodeName, tuple[_Status, int]] = {}
        """Of nodes that something happened to, with the time since when."""
        self.until: dict[int, int] = {}

    def perform(self, strike: _Strike, number: int) -> Fault:
        now = _Now(id=number, at_ns=strike.at_ns, path=strike.path)
        return strike.plan.end(self, now) if strike.is_end else strike.plan.start(self, now)

    def fail(self, now: _Now, sentence: str) -> NoReturn:
        raise self.document.error(now.path, sentence)

    def impairments(self, layer: _Layer, now: _Now) -> Iterator[tuple[str, Impairment]]:
        """What each target of `layer` has now: what the topology asks for, under all layers in the order they came."""
        for target in layer.targets:
            changes: dict[str, Any] = {}
            for one in self.layers:
                if one.direction is layer.direction and target in one.left:
                    changes |= one.changes
            try:
                yield target, replace(self._asked(target, layer.direction), **changes)
            except ValueError as error:
                self.fail(now, f"at {format_duration(now.at_ns)}, {target} {layer.direction.value}: {error}")

    def _asked(self, target: str, direction: Direction | LinkDirection) -> Impairment:
        if isinstance(direction, Direction):
            return self.topology.node(target).impairment(direction)
        link = self.topology.link(target)
        return link.a_to_b if direction is LinkDirection.THERE else link.b_to_a


@dataclass(slots=True, kw_only=True, eq=False)
class _Layer:
    """An impair: what it changes, and (`left`) where it still does."""

    direction: Direction | LinkDirection
    targets: tuple[str, ...]
    changes: Changes = field(default_factory=dict)
    id: int = -1
    left: set[str] = field(default_factory=set)

    def start(self, course: _Course, now: _Now) -> Fault:
        self.id = now.id
        self.left = set(self.targets)
        course.layers.append(self)
        return self._event(course, now)

    def end(self, course: _Course, now: _Now) -> Fault:
        self.lift(set(self.targets), course, now)
        return self._event(course, now, restores=True)

    def lift(self, targets: set[str], course: _Course, now: _Now) -> None:
        """It no longer holds at these targets; without any it has ended."""
        if self.left and not self.left - targets:
            course.until[self.id] = now.id
        self.left -= targets

    def _event(self, course: _Course, now: _Now, *, restores: bool = False) -> Impair | ImpairLink:
        settings = tuple(course.impairments(self, now))
        changes: Changes = {} if restores else self.changes
        if isinstance(self.direction, Direction):
            return Impair(
                id=now.id,
                at_ns=now.at_ns,
                targets=tuple(NodeName(target) for target in self.targets),
                direction=self.direction,
                changes=changes,
                settings=tuple((NodeName(target), impairment) for target, impairment in settings),
                restores=restores,
            )
        return ImpairLink(
            id=now.id,
            at_ns=now.at_ns,
            targets=self.targets,
            direction=self.direction,
            changes=changes,
            settings=settings,
            restores=restores,
        )


class _Restoring(_Layer):
    """A restore: a layer that changes nothing and lifts all others."""

    __slots__ = ()

    def start(self, course: _Course, now: _Now) -> Fault:
        for layer in course.layers:
            if layer.direction is self.direction:
                layer.lift(set(self.targets), course, now)
        return self._event(course, now, restores=True)


@dataclass(slots=True, kw_only=True, eq=False)
class _CutPlan:
    """A cut, in one of its three forms."""

    groups: tuple[tuple[NodeName, ...], ...] = ()
    pairs: tuple[tuple[NodeName, NodeName], ...] = ()
    links: tuple[str, ...] = ()
    id: int = -1

    def start(self, course: _Course, now: _Now) -> Fault:
        self.id = now.id
        course.cuts.append(self)
        return Cut(
            id=now.id,
            at_ns=now.at_ns,
            groups=self.groups,
            pairs=self.pairs,
            links=self.links,
            in_force=tuple(cut.id for cut in course.cuts),
        )

    def end(self, course: _Course, now: _Now) -> Fault:
        return _heal(course, now, [self] if self in course.cuts else [])


class _Healing:
    """A heal of everything."""

    def start(self, course: _Course, now: _Now) -> Fault:
        return _heal(course, now, list(course.cuts))

    end = start
    """Never asked for: heal takes no `for`."""


def _heal(course: _Course, now: _Now, healed: list[_CutPlan]) -> Heal:
    for cut in healed:
        course.cuts.remove(cut)
        course.until[cut.id] = now.id
    return Heal(
        id=now.id,
        at_ns=now.at_ns,
        cuts=tuple(cut.id for cut in healed),
        in_force=tuple(cut.id for cut in course.cuts),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodePlan:
    """A crash, restart, pause or resume."""

    kind: type[NodeFault]
    targets: tuple[NodeName, ...]

    def start(self, course: _Course, now: _Now) -> Fault:
        return self._happen(self.kind, course, now)

    def end(self, course: _Course, now: _Now) -> Fault:
        return self._happen(_ENDS[self.kind], course, now)

    def _happen(self, kind: type[NodeFault], course: _Course, now: _Now) -> Fault:
        needed, status = _TRANSITIONS[kind]
        for target in self.targets:
            found, since_ns = course.status.get(target, (_Status.RUNNING, 0))
            if found is not needed:
                since = f"{found.value} since {format_duration(since_ns)}" if since_ns else found.value
                course.fail(
                    now,
                    f"{target} cannot {kind.kind} at {format_duration(now.at_ns)}: "
                    f"it must be {needed.value} and is {since}",
                )
            course.status[target] = (status, now.at_ns)
        if status is _Status.RUNNING:
            self._close(course, now)
        else:
            course.open_faults[now.id] = set(self.targets)
        return kind(id=now.id, at_ns=now.at_ns, targets=self.targets)

    def _close(self, course: _Course, now: _Now) -> None:
        for number, held in list(course.open_faults.items()):
            held -= set(self.targets)
            if not held:
                course.until[number] = now.id
                del course.open_faults[number]


class _Reader:
    """One block of the file to its plans: what is allowed, and names to nodes and links."""

    def __init__(self, topology: Topology, document: Document, path: KeyPath, duration_ns: int) -> None:
        self._topology = topology
        self._document = document
        self._path = path
        self._duration_ns = duration_ns

    def strikes(self, block: RawFault) -> Iterator[_Strike]:
        kinds = block.kinds
        if len(kinds) != 1:
            self._fail(f"expected exactly one of {', '.join(RawFault.KINDS)}, got {' and '.join(kinds) or 'none'}")
        kind = kinds[0]
        self._check_times(block, kind)
        path = (*self._path, kind)
        for plan in self._plans(block, kind):
            yield _Strike(at_ns=block.at, is_end=False, path=path, plan=plan)
            if block.for_ is not None:
                yield _Strike(at_ns=block.at + block.for_, is_end=True, path=path, plan=plan)

    def _plans(self, block: RawFault, kind: str) -> list[_Plan]:
        if block.impair is not None:
            return self._impair(block.impair)
        if block.restore is not None:
            return self._restore(block.restore)
        if block.cut is not None:
            return [self._cut(block.cut)]
        if kind == "heal":
            return [_Healing()]
        targets = self._nodes(getattr(block, kind).targets, kind, "targets")
        return [_NodePlan(kind=_NODE_FAULTS[kind], targets=targets)]

    def _check_times(self, block: RawFault, kind: str) -> None:
        duration = format_duration(self._duration_ns)
        if block.at > self._duration_ns:
            self._fail(f"{format_duration(block.at)} lies after the end of the workload at {duration}", "at")
        if block.for_ is None:
            return
        if kind not in RawFault.LASTING:
            self._fail(f"{kind} has no end; only {', '.join(RawFault.LASTING)} take for", "for")
        if block.for_ == 0:
            self._fail("expected a duration above 0", "for")
        end_ns = block.at + block.for_
        if end_ns > self._duration_ns:
            self._fail(
                f"the fault would end at {format_duration(end_ns)}, after the end of the workload at {duration}; "
                "without for it lasts to the end of the run",
                "for",
            )

    def _impair(self, block: RawImpair) -> list[_Plan]:
        changes = block.changes()
        if not changes:
            self._fail("nothing is changed; name what, such as loss: 10 % or delay: 20 ms", "impair")
        ports = self._ports("impair", block.targets, block.links, block.direction)
        return [_Layer(direction=direction, targets=targets, changes=changes) for direction, targets in ports]

    def _restore(self, block: RawRestore) -> list[_Plan]:
        ports = self._ports("restore", block.targets, block.links, FaultDirection.BOTH)
        return [_Restoring(direction=direction, targets=targets) for direction, targets in ports]

    def _ports(
        self, kind: str, targets: list[str] | None, links: list[str] | None, direction: FaultDirection | None
    ) -> Iterator[tuple[Direction | LinkDirection, tuple[str, ...]]]:
        if (targets is None) == (links is None):
            self._fail("expected either targets (nodes) or links", kind)
        names: tuple[str, ...]
        directions: type[Direction] | type[LinkDirection]
        if targets is not None:
            names, directions = self._nodes(targets, kind, "targets"), Direction
            wanted = direction or FaultDirection.TO_NODE
        else:
            names, directions = self._links(links or [], kind), LinkDirection
            wanted = direction or FaultDirection.BOTH
        allowed = [one.value for one in directions]
        if wanted is not FaultDirection.BOTH and wanted.value not in allowed:
            self._fail(f"expected {', '.join(allowed)} or both, got {wanted.value}", kind, "direction")
        for one in directions:
            if wanted is FaultDirection.BOTH or wanted.value == one.value:
                yield one, names

    def _cut(self, block: RawCut) -> _Plan:
        forms = {
            "groups": block.groups is not None,
            "from and to": block.from_ is not None or block.to is not None,
            "pairs": block.pairs is not None,
            "links": block.links is not None,
        }
        given = [name for name, present in forms.items() if present]
        if len(given) != 1:
            self._fail(f"expected exactly one of {', '.join(forms)}, got {' and '.join(given) or 'none'}", "cut")
        plan = self._cut_plan(block)
        event = Cut(id=0, at_ns=0, groups=plan.groups, pairs=plan.pairs)
        if not plan.links and not event.blocked_pairs():
            self._fail("this separates nobody: name nodes on two different sides", "cut")
        return plan

    def _cut_plan(self, block: RawCut) -> _CutPlan:
        if block.groups is not None:
            groups = (self._nodes(group, "cut", "groups", number) for number, group in enumerate(block.groups))
            return _CutPlan(groups=tuple(groups))
        if block.pairs is not None:
            pairs = (self._pair(pair, number) for number, pair in enumerate(block.pairs))
            return _CutPlan(pairs=tuple(pairs))
        if block.links is not None:
            return _CutPlan(links=self._links(block.links, "cut"))
        if block.from_ is None or block.to is None:
            self._fail("from and to stand together: whose frames no longer arrive, and where", "cut")
        senders, receivers = self._nodes(block.from_, "cut", "from"), self._nodes(block.to, "cut", "to")
        return _CutPlan(pairs=tuple((a, b) for a in senders for b in receivers if a != b))

    def _pair(self, pair: list[str], number: int) -> tuple[NodeName, NodeName]:
        nodes = [self._nodes([name], "cut", "pairs", number) for name in pair]
        if len(nodes) != 2 or any(len(one) != 1 for one in nodes) or nodes[0] == nodes[1]:
            self._fail("expected two different nodes [from, to]; for more use from and to", "cut", "pairs", number)
        return nodes[0][0], nodes[1][0]

    def _nodes(self, selectors: list[str], *key: str | int) -> tuple[NodeName, ...]:
        try:
            nodes = select(self._topology, selectors)
        except SelectError as error:
            self._fail(str(error), *key)
        if not nodes:
            self._fail("expected at least one node", *key)
        return tuple(node.name for node in nodes)

    def _links(self, names: list[str], kind: str) -> tuple[str, ...]:
        try:
            links = tuple(dict.fromkeys(select_link(self._topology, name).name for name in names))
        except SelectError as error:
            self._fail(str(error), kind, "links")
        if not links:
            self._fail("expected at least one link", kind, "links")
        return links

    def _fail(self, sentence: str, *key: str | int) -> NoReturn:
        raise self._document.error((*self._path, *key), sentence)
