"""What each kind of fault does as time goes on. `testbed.spec.timeline` makes the plans and plays them in order.

A plan has a start and may have an end (`for:`). A Timeline knows what is impaired, cut, crashed or paused by then; a
plan's start or end changes that and returns the event which says so.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
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
    Pause,
    Recover,
    Restart,
    Resume,
    Slow,
)
from topologies.formats.units import format_duration
from topologies.formats.yaml_source import Document, KeyPath
from topologies.model import Direction, Impairment, NodeName, Topology


class Status(enum.Enum):
    RUNNING = "running"
    CRASHED = "crashed"
    PAUSED = "paused"
    ABSENT = "absent"
    """Not there yet, or it has left."""


TRANSITIONS: dict[type[NodeFault], tuple[Status, Status]] = {
    Crash: (Status.RUNNING, Status.CRASHED),
    Restart: (Status.CRASHED, Status.RUNNING),
    Pause: (Status.RUNNING, Status.PAUSED),
    Resume: (Status.PAUSED, Status.RUNNING),
    Join: (Status.ABSENT, Status.RUNNING),
    Leave: (Status.RUNNING, Status.ABSENT),
}
_ENDS: dict[type[NodeFault], type[NodeFault]] = {Crash: Restart, Pause: Resume, Leave: Join}
NODE_FAULTS: dict[str, type[NodeFault]] = {one.kind: one for one in TRANSITIONS}


class Plan(Protocol):
    """What a block asks for."""

    def start(self, timeline: Timeline, now: Now) -> Fault: ...

    def end(self, timeline: Timeline, now: Now) -> Fault | None:
        """None: something else has ended it before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """The start or the end of a plan at its time; `path` is the block that asked for it."""

    at_ns: int
    is_end: bool
    path: KeyPath
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """The event that is being made: its id, its time, and whom to blame."""

    id: int
    at_ns: int
    path: KeyPath


class Timeline:
    """What holds at the moment that the play has reached."""

    def __init__(self, topology: Topology, document: Document, absent: Sequence[NodeName] = ()) -> None:
        self.topology = topology
        self.document = document
        self.layers: list[Layer] = []
        self.cuts: list[CutPlan] = []
        self.open_faults: dict[int, set[NodeName]] = {}
        """Crashes, pauses and leaves by id, with the nodes that they still hold."""
        self.status: dict[NodeName, tuple[Status, int]] = dict.fromkeys(absent, (Status.ABSENT, 0))
        """Of nodes that something happened to, with the time since when."""
        self.conditions: dict[tuple[str, NodeName], int] = {}
        """Who is slow, deaf or has a wrong clock until an end, and the id of the fault that made it so."""
        self.until: dict[int, int] = {}

    def perform(self, strike: Strike, number: int) -> Fault | None:
        now = Now(id=number, at_ns=strike.at_ns, path=strike.path)
        return strike.plan.end(self, now) if strike.is_end else strike.plan.start(self, now)

    def forget(self, nodes: Iterable[NodeName], now: Now) -> None:
        """A node that crashes takes along that it was slow, deaf or mistimed: what starts again is a new process."""
        for key, number in list(self.conditions.items()):
            if key[1] in nodes:
                del self.conditions[key]
                if number not in self.conditions.values():
                    self.until[number] = now.id

    def has_members(self) -> bool:
        """Whether anybody is in the group who has not crashed."""
        away = (Status.CRASHED, Status.ABSENT)
        return any(self.status.get(node.name, (Status.RUNNING, 0))[0] not in away for node in self.topology.nodes())

    def fail(self, now: Now, sentence: str) -> NoReturn:
        raise self.document.error(now.path, sentence)

    def impairments(self, layer: Layer, now: Now) -> Iterator[tuple[str, Impairment]]:
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
class Layer:
    """An impair: what it changes, and (`left`) where it still does."""

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
        """It no longer holds at these targets; without any it has ended."""
        if self.left and not self.left - targets:
            timeline.until[self.id] = now.id
        self.left -= targets

    def _event(self, timeline: Timeline, now: Now, *, restores: bool = False) -> Impair | ImpairLink:
        settings = tuple(timeline.impairments(self, now))
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


class Restoring(Layer):
    """A restore: a layer that changes nothing and lifts all others."""

    __slots__ = ()

    def start(self, timeline: Timeline, now: Now) -> Fault:
        for layer in timeline.layers:
            if layer.direction is self.direction:
                layer.lift(set(self.targets), timeline, now)
        return self._event(timeline, now, restores=True)


@dataclass(slots=True, kw_only=True, eq=False)
class CutPlan:
    """A cut, in one of its three forms. `shape`: what they make together, for people."""

    groups: tuple[tuple[NodeName, ...], ...] = ()
    pairs: tuple[tuple[NodeName, NodeName], ...] = ()
    links: tuple[str, ...] = ()
    shape: str = ""
    id: int = -1

    def start(self, timeline: Timeline, now: Now) -> Fault:
        self.id = now.id
        timeline.cuts.append(self)
        return Cut(
            id=now.id,
            at_ns=now.at_ns,
            groups=self.groups,
            pairs=self.pairs,
            links=self.links,
            shape=self.shape,
            in_force=tuple(cut.id for cut in timeline.cuts),
        )

    def end(self, timeline: Timeline, now: Now) -> Fault:
        return _heal(timeline, now, [self] if self in timeline.cuts else [])


class Healing:
    """A heal of everything."""

    def start(self, timeline: Timeline, now: Now) -> Fault:
        return _heal(timeline, now, list(timeline.cuts))

    end = start
    """Never asked for: heal takes no `for`."""


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
        needed, status = TRANSITIONS[kind]
        for target in self.targets:
            found, since_ns = timeline.status.get(target, (Status.RUNNING, 0))
            if found is not needed:
                since = f"{found.value} since {format_duration(since_ns)}" if since_ns else found.value
                timeline.fail(
                    now,
                    f"{target} cannot {kind.kind} at {format_duration(now.at_ns)}: "
                    f"it must be {needed.value} and is {since}",
                )
            timeline.status[target] = (status, now.at_ns)
        if kind is Leave and not timeline.has_members():
            timeline.fail(
                now, f"{self.targets[-1]} cannot leave at {format_duration(now.at_ns)}: it is the last member"
            )
        if status is Status.CRASHED:
            timeline.forget(self.targets, now)
        if status is Status.RUNNING:
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
    """A slow or deaf node, or one whose clock is wrong. `lasts`: it has an end of its own, a clock that is put right.

    A clock and a buffer are changed by the node itself, which must be awake to do it.
    """

    targets: tuple[NodeName, ...]
    cpu_ratio: float | None = None
    buffer_bytes: int | None = None
    step_ns: int = 0
    drift_ppm: float = 0.0
    lasts: bool = False
    id: int = -1

    @property
    def what(self) -> str:
        if self.cpu_ratio is not None:
            return Slow.kind
        return ClockShift.kind if self.buffer_bytes is None else Deaf.kind

    def start(self, timeline: Timeline, now: Now) -> Fault:
        self.id = now.id
        for target in self.targets:
            self._check(target, timeline, now)
        if self.lasts or self.what != ClockShift.kind:
            timeline.conditions |= {(self.what, target): now.id for target in self.targets}
        common: dict[str, Any] = {"id": now.id, "at_ns": now.at_ns, "targets": self.targets}
        if self.cpu_ratio is not None:
            return Slow(**common, cpu_ratio=self.cpu_ratio)
        if self.buffer_bytes is not None:
            return Deaf(**common, buffer_bytes=self.buffer_bytes)
        return ClockShift(**common, step_ns=self.step_ns, drift_ppm=self.drift_ppm)

    def end(self, timeline: Timeline, now: Now) -> Fault | None:
        left = tuple(target for target in self.targets if timeline.conditions.get((self.what, target)) == self.id)
        for target in left:
            self._check_awake(target, timeline, now, f"recover from {self.what}")
            del timeline.conditions[self.what, target]
        if not left:
            return None
        timeline.until[self.id] = now.id
        return Recover(id=now.id, at_ns=now.at_ns, targets=left, what=self.what, ends=self.id)

    def _check(self, target: NodeName, timeline: Timeline, now: Now) -> None:
        doing = f"become {self.what}" if self.what != ClockShift.kind else "have its clock changed"
        if timeline.status.get(target, (Status.RUNNING, 0))[0] is Status.ABSENT:
            timeline.fail(now, f"{target} cannot {doing} at {format_duration(now.at_ns)}: it is absent")
        self._check_awake(target, timeline, now, doing)
        if (self.what, target) in timeline.conditions:
            earlier = timeline.conditions[self.what, target]
            timeline.fail(
                now, f"{target} cannot {doing} at {format_duration(now.at_ns)}: fault {earlier} still does that"
            )

    def _check_awake(self, target: NodeName, timeline: Timeline, now: Now, doing: str) -> None:
        found, since_ns = timeline.status.get(target, (Status.RUNNING, 0))
        if found is Status.CRASHED or (found is Status.PAUSED and self.what != Slow.kind):
            since = f"{found.value} since {format_duration(since_ns)}"
            timeline.fail(
                now, f"{target} cannot {doing} at {format_duration(now.at_ns)}: it must be running and is {since}"
            )
