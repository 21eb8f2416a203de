"""Plans of faults: the effect of each kind over time. `testbed.spec.timeline` makes the plans and plays them in order.

A plan has a start and may have an end (`for:`). A Timeline holds what is impaired, cut, crashed or paused at one
moment; the start or end of a plan changes it and returns the event.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Protocol

from testbed.spec.faults import (
    Changes,
    ClockShift,
    Crash,
    Cut,
    Deaf,
    Fault,
    Heal,
    Impair,
    ImpairLink,
    Join,
    Leave,
    LinkDirection,
    NodeFault,
    NodeState,
    Pause,
    Recover,
    Restart,
    Resume,
    Slow,
)
from topologies.formats.units import format_duration
from topologies.formats.yaml_source import Document, KeyPath
from topologies.model import Direction, Impairment, NodeName, Topology

TRANSITIONS: dict[type[NodeFault], tuple[tuple[NodeState, ...], NodeState]] = {
    Crash: ((NodeState.RUNNING,), NodeState.CRASHED),
    Restart: ((NodeState.CRASHED, NodeState.ENDED), NodeState.RUNNING),
    Pause: ((NodeState.RUNNING,), NodeState.PAUSED),
    Resume: ((NodeState.PAUSED,), NodeState.RUNNING),
    Join: ((NodeState.ABSENT,), NodeState.RUNNING),
    Leave: ((NodeState.RUNNING,), NodeState.ABSENT),
}
"""States in which a node may get a fault, and its state afterwards."""
_ENDS: dict[type[NodeFault], type[NodeFault]] = {Crash: Restart, Pause: Resume, Leave: Join}
NODE_FAULTS: dict[str, type[NodeFault]] = {one.kind: one for one in TRANSITIONS}


class Plan(Protocol):
    """Plan of a block of the file."""

    def start(self, timeline: Timeline, now: Now) -> Fault: ...

    def end(self, timeline: Timeline, now: Now) -> Fault | None:
        """The event of its end; None if another event has ended it before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """The start or the end of a plan at its time; `path` is its block in the file."""

    at_ns: int
    is_end: bool
    path: KeyPath
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """The event that is being made: its id, its time, and its block in the file."""

    id: int
    at_ns: int
    path: KeyPath


class Timeline:
    """State of the network and the nodes at one moment of the plan. Errors refer to `document`."""

    def __init__(self, topology: Topology, document: Document | None = None, absent: Collection[NodeName] = ()) -> None:
        self.topology = topology
        self.document = document
        self.layers: list[Layer] = []
        """Impairments in force."""
        self.cuts: list[CutPlan] = []
        self.open_faults: dict[int, set[NodeName]] = {}
        """Nodes still affected by a crash, pause or leave, by id of the fault."""
        self.states: dict[NodeName, tuple[NodeState, int]] = dict.fromkeys(absent, (NodeState.ABSENT, 0))
        """State of each node that had a fault, and the time of its last change."""
        self.conditions: dict[tuple[str, NodeName], int] = {}
        """Id of the fault in force, by condition (slow, deaf, clock) and node."""
        self.until: dict[int, int] = {}
        """Id of the event that ended a fault, by id of the fault."""

    def perform(self, strike: Strike, number: int) -> Fault | None:
        now = Now(id=number, at_ns=strike.at_ns, path=strike.path)
        return strike.plan.end(self, now) if strike.is_end else strike.plan.start(self, now)

    def forget(self, nodes: Iterable[NodeName], now: Now) -> None:
        """End the conditions (slow, deaf, clock) of crashed nodes: the next incarnation is a new process."""
        for key, number in list(self.conditions.items()):
            if key[1] in nodes:
                del self.conditions[key]
                if number not in self.conditions.values():
                    self.until[number] = now.id

    def state(self, node: NodeName) -> NodeState:
        return self.states.get(node, (NodeState.RUNNING, 0))[0]

    def has_members(self) -> bool:
        """Whether any node is running or paused."""
        return any(self.state(node.name) in (NodeState.RUNNING, NodeState.PAUSED) for node in self.topology.nodes())

    def fail(self, now: Now, sentence: str) -> NoReturn:
        assert self.document is not None, "a plan is read from a document"
        raise self.document.error(now.path, sentence)

    def refuse(self, target: NodeName, doing: str, why: str, now: Now) -> NoReturn:
        self.fail(now, f"{target} cannot {doing}{self.when(now)}: {why}")

    def when(self, now: Now) -> str:
        """The time of an event, in the middle of a sentence."""
        return f" at {format_duration(now.at_ns)}"

    def standing(self, node: NodeName) -> str:
        """The state of a node and since when, at the end of a sentence."""
        state, since_ns = self.states.get(node, (NodeState.RUNNING, 0))
        return f"{state.value} since {format_duration(since_ns)}" if since_ns else state.value

    def impairment(self, target: str, direction: Direction | LinkDirection) -> Impairment:
        """Present impairment of a port: that of the topology, changed by all layers in their order. ValueError when
        these are not compatible.
        """
        changes: dict[str, Any] = {}
        for one in self.layers:
            if one.direction is direction and target in one.left:
                changes |= one.changes
        return replace(self._asked(target, direction), **changes)

    def _asked(self, target: str, direction: Direction | LinkDirection) -> Impairment:
        if isinstance(direction, Direction):
            return self.topology.node(target).impairment(direction)
        link = self.topology.link(target)
        return link.a_to_b if direction is LinkDirection.THERE else link.b_to_a


@dataclass(slots=True, kw_only=True, eq=False)
class Layer:
    """An impair: its changes, and (`left`) the targets at which it is still in force."""

    direction: Direction | LinkDirection
    targets: tuple[str, ...]
    changes: Changes = field(default_factory=dict)
    id: int = -1
    left: set[str] = field(default_factory=set)

    def start(self, timeline: Timeline, now: Now) -> Fault:
        self.id = now.id
        self.left = set(self.targets)
        timeline.layers.append(self)
        return self._event(timeline, now)

    def end(self, timeline: Timeline, now: Now) -> Fault:
        self.lift(set(self.targets), timeline, now)
        return self._event(timeline, now, restores=True)

    def lift(self, targets: set[str], timeline: Timeline, now: Now) -> None:
        """End it at these targets; with no target left it has ended."""
        if self.left and not self.left - targets:
            timeline.until[self.id] = now.id
            timeline.layers.remove(self)
        self.left -= targets

    def _event(self, timeline: Timeline, now: Now, *, restores: bool = False) -> Impair | ImpairLink:
        kind: Any = Impair if isinstance(self.direction, Direction) else ImpairLink
        event: Impair | ImpairLink = kind(
            id=now.id,
            at_ns=now.at_ns,
            targets=self.targets,
            direction=self.direction,
            changes={} if restores else self.changes,
            settings=tuple(self._settings(timeline, now)),
            restores=restores,
        )
        return event

    def _settings(self, timeline: Timeline, now: Now) -> Iterator[tuple[str, Impairment]]:
        for target in self.targets:
            try:
                yield target, timeline.impairment(target, self.direction)
            except ValueError as error:
                timeline.fail(now, f"{target} {self.direction.value}{timeline.when(now)}: {error}")


class Restoring(Layer):
    """A restore: a layer that changes nothing and lifts all others."""

    __slots__ = ()

    def start(self, timeline: Timeline, now: Now) -> Fault:
        for layer in list(timeline.layers):
            if layer.direction is self.direction:
                layer.lift(set(self.targets), timeline, now)
        return self._event(timeline, now, restores=True)


@dataclass(slots=True, kw_only=True, eq=False)
class CutPlan:
    """A cut, without its time until it starts."""

    cut: Cut
    id: int = -1

    def start(self, timeline: Timeline, now: Now) -> Fault:
        self.id = now.id
        timeline.cuts.append(self)
        return replace(self.cut, id=now.id, at_ns=now.at_ns, in_force=tuple(one.id for one in timeline.cuts))

    def end(self, timeline: Timeline, now: Now) -> Fault:
        return _heal(timeline, now, [self] if self in timeline.cuts else [])


class Healing:
    """A heal of everything."""

    def start(self, timeline: Timeline, now: Now) -> Fault:
        return _heal(timeline, now, list(timeline.cuts))

    end = start
    """Never called: heal takes no `for`."""


def _heal(timeline: Timeline, now: Now, healed: list[CutPlan]) -> Heal:
    for cut in healed:
        timeline.cuts.remove(cut)
        timeline.until[cut.id] = now.id
    return Heal(
        id=now.id,
        at_ns=now.at_ns,
        cuts=tuple(cut.id for cut in healed),
        in_force=tuple(cut.id for cut in timeline.cuts),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """A crash, restart, pause, resume, join or leave."""

    kind: type[NodeFault]
    targets: tuple[NodeName, ...]

    def start(self, timeline: Timeline, now: Now) -> Fault:
        return self._happen(self.kind, timeline, now)

    def end(self, timeline: Timeline, now: Now) -> Fault:
        return self._happen(_ENDS[self.kind], timeline, now)

    def _happen(self, kind: type[NodeFault], timeline: Timeline, now: Now) -> Fault:
        allowed, state = TRANSITIONS[kind]
        for target in self.targets:
            if timeline.state(target) not in allowed:
                needed = " or ".join(one.value for one in allowed)
                timeline.refuse(target, kind.kind, f"it must be {needed} and is {timeline.standing(target)}", now)
            timeline.states[target] = (state, now.at_ns)
        if kind is Leave and not timeline.has_members():
            timeline.refuse(self.targets[-1], kind.kind, "it is the last member", now)
        if state is NodeState.CRASHED:
            timeline.forget(self.targets, now)
        if state is NodeState.RUNNING:
            self._close(timeline, now)
        else:
            timeline.open_faults[now.id] = set(self.targets)
        return kind(id=now.id, at_ns=now.at_ns, targets=self.targets)

    def _close(self, timeline: Timeline, now: Now) -> None:
        for number, held in list(timeline.open_faults.items()):
            held -= set(self.targets)
            if not held:
                timeline.until[number] = now.id
                del timeline.open_faults[number]


@dataclass(slots=True, kw_only=True, eq=False)
class ConditionPlan:
    """A slow or deaf node, or one with a wrong clock. `lasts`: it has an end of its own.

    A clock and a buffer are changed by the node itself, which must not be paused then.
    """

    fault: Slow | Deaf | ClockShift
    """The fault without its time."""
    lasts: bool = False
    id: int = -1

    def start(self, timeline: Timeline, now: Now) -> Fault:
        self.id = now.id
        kind, targets = self.fault.kind, self.fault.targets
        for target in targets:
            self._check(target, timeline, now)
        if self.lasts or kind != ClockShift.kind:
            timeline.conditions |= {(kind, target): now.id for target in targets}
        return replace(self.fault, id=now.id, at_ns=now.at_ns)

    def end(self, timeline: Timeline, now: Now) -> Fault | None:
        kind, held = self.fault.kind, timeline.conditions
        left = tuple(target for target in self.fault.targets if held.get((kind, target)) == self.id)
        for target in left:
            self._check_awake(target, timeline, now, f"recover from {kind}")
            del held[kind, target]
        if not left:
            return None
        timeline.until[self.id] = now.id
        return Recover(id=now.id, at_ns=now.at_ns, targets=left, what=kind, ends=self.id)

    def _check(self, target: NodeName, timeline: Timeline, now: Now) -> None:
        doing = f"become {self.fault.kind}" if self.fault.kind != ClockShift.kind else "have its clock changed"
        if timeline.state(target) is NodeState.ABSENT:
            timeline.refuse(target, doing, "it is absent", now)
        self._check_awake(target, timeline, now, doing)
        if (self.fault.kind, target) in timeline.conditions:
            earlier = timeline.conditions[self.fault.kind, target]
            timeline.refuse(target, doing, f"fault {earlier} still does that", now)

    def _check_awake(self, target: NodeName, timeline: Timeline, now: Now, doing: str) -> None:
        state = timeline.state(target)
        if state is NodeState.CRASHED or (state is NodeState.PAUSED and self.fault.kind != Slow.kind):
            timeline.refuse(target, doing, f"it must be running and is {timeline.standing(target)}", now)
