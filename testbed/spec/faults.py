"""Faults as typed events in time order, made from an experiment file, each with its whole effect.

A fault with `for:` becomes two events, its start and its end; the start's `until_id` names the event that ends it. An
impairment is a layer: it changes only the fields that it names, and when it ends, the values of the topology and the
other layers return. Every event carries the full impairment that each port has from then on, so that its performer
computes nothing. A cut is in force until its own end or a heal.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias

from topologies.dump import as_json, changed_fields, spelled
from topologies.formats.units import format_drift, format_duration, format_ratio, format_size
from topologies.model import Direction, Impairment, NodeName

Changes: TypeAlias = Mapping[str, Any]
"""Fields of Impairment with their new values."""

MAX_GROUPS_SHOWN = 4
"""Most groups of a cut with a shape that are listed; one with more is named by its shape."""


class NodeState(enum.Enum):
    """State of the main process of a node."""

    RUNNING = "running"
    PAUSED = "paused"
    CRASHED = "crashed"
    """Killed by `crash`."""
    ENDED = "ended"
    """It ended by itself: only in a testbed that stays up, where that is no failure."""
    ABSENT = "absent"
    """No member of the group: it has not joined yet, or has left."""


class LinkDirection(enum.Enum):
    """Along a link: THERE is from its first partition to its second."""

    THERE = "there"
    BACK = "back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One event. `at_ns` counts from the start of the workload; `until_id` None: it lasts to the end of the run.

    Ids count from 0 in the order in which the events happen; -1: it has no time yet.
    """

    kind: ClassVar[str]
    id: int = -1
    at_ns: int = 0
    until_id: int | None = None

    @property
    def is_end(self) -> bool:
        """Whether it only ends earlier ones."""
        return isinstance(self, Heal | Restart | Resume | Recover) or getattr(self, "restores", False)

    def record(self) -> dict[str, Any]:
        """Its fields in `faults.jsonl` that are known before it is performed."""
        return {
            "id": self.id,
            "kind": self.kind,
            "targets": [],
            "parameters": {},
            "asked_ns": self.at_ns,
            "until_id": self.until_id,
        }

    def __str__(self) -> str:
        return self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class _Impairment(Fault):
    """Ports or links change. `settings` holds the full impairment of each target from now on.

    `restores`: this ends an earlier one; `changes` is then empty.
    """

    kind: ClassVar[str] = "impair"
    targets: tuple[str, ...]
    direction: Direction | LinkDirection
    changes: Changes
    settings: tuple[tuple[str, Impairment], ...] = field(repr=False)
    restores: bool = False

    def record(self) -> dict[str, Any]:
        """`asked`: the full impairment of each target from now on. The parameters of an end are what all targets
        share.
        """
        asked = {target: as_json(changed_fields(impairment)) for target, impairment in self.settings}
        parameters = as_json(self.changes)
        if self.restores:
            first, *others = asked.values()
            parameters = {name: value for name, value in first.items() if all(one.get(name) == value for one in others)}
        return Fault.record(self) | {
            "targets": list(self.targets),
            "direction": self.direction.value,
            "parameters": parameters,
            "asked": asked,
            "restores": self.restores,
        }

    def __str__(self) -> str:
        where = f"{_listed(self.targets)} {self.direction.value}"
        if self.restores:
            return f"restore {where}"
        return f"impair {where}: {', '.join(f'{key} {text}' for key, text in spelled(self.changes).items())}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Impair(_Impairment):
    """Ports of nodes change."""

    targets: tuple[NodeName, ...]
    direction: Direction
    settings: tuple[tuple[NodeName, Impairment], ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImpairLink(_Impairment):
    """One direction of links between routers changes."""

    direction: LinkDirection


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut(Fault):
    """Frames stop passing: between nodes that share no group, from each pair's first to its second, over the links.

    Nodes that are in no group are not cut off. `in_force`: ids of all cuts from now on, this one included. `shape`:
    name of the pattern of its groups or pairs.
    """

    kind: ClassVar[str] = "cut"
    groups: tuple[tuple[NodeName, ...], ...] = ()
    pairs: tuple[tuple[NodeName, NodeName], ...] = ()
    links: tuple[str, ...] = ()
    shape: str = ""
    in_force: tuple[int, ...] = ()

    def blocked_pairs(self) -> frozenset[tuple[NodeName, NodeName]]:
        """All one-way pairs of nodes between which this cut lets nothing pass."""
        blocked = set(self.pairs)
        together = {(a, b) for group in self.groups for a in group for b in group}
        members = {node for group in self.groups for node in group}
        blocked |= {(a, b) for a in members for b in members if (a, b) not in together}
        return frozenset(blocked)

    def record(self) -> dict[str, Any]:
        parts = {
            "groups": [list(group) for group in self.groups],
            "pairs": [list(pair) for pair in self.pairs],
            "links": list(self.links),
        }
        ends = dict.fromkeys(node for group in (*self.groups, *self.pairs) for node in group)
        parameters: dict[str, Any] = {name: part for name, part in parts.items() if part}
        if self.shape:
            parameters["shape"] = self.shape
        return Fault.record(self) | {"targets": [*ends, *self.links], "parameters": parameters}

    def __str__(self) -> str:
        if self.shape and (self.pairs or len(self.groups) > MAX_GROUPS_SHOWN):
            return f"cut {self.shape}"
        if self.groups:
            return "cut " + " | ".join(_listed(group) for group in self.groups)
        if self.links:
            return f"cut {_listed(self.links)}"
        return "cut " + _listed([f"{sender} -> {receiver}" for sender, receiver in self.pairs])


@dataclass(frozen=True, slots=True, kw_only=True)
class Heal(Fault):
    """Cuts end: those called `cuts`; `in_force` are the ids of those that stay."""

    kind: ClassVar[str] = "heal"
    cuts: tuple[int, ...] = ()
    in_force: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFault(Fault):
    """A fault of whole nodes. The fields of a kind beside `targets` are its parameters."""

    targets: tuple[NodeName, ...]

    def record(self) -> dict[str, Any]:
        common = {one.name for one in fields(NodeFault)}
        parameters = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in common}
        return Fault.record(self) | {"targets": list(self.targets), "parameters": parameters}

    def __str__(self) -> str:
        return f"{self.kind} {_listed(self.targets)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash(NodeFault):
    """SIGKILL; data that the node had not sent is lost."""

    kind: ClassVar[str] = "crash"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart(NodeFault):
    """A crashed node starts again as its next incarnation, with nothing remembered."""

    kind: ClassVar[str] = "restart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(NodeFault):
    """The node's processes freeze; its kernel goes on receiving."""

    kind: ClassVar[str] = "pause"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(NodeFault):
    """A paused node goes on."""

    kind: ClassVar[str] = "resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(NodeFault):
    """A node that was absent is started, as its incarnation 2; one that has left goes on as its next one."""

    kind: ClassVar[str] = "join"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(NodeFault):
    """A node asks the others to go on without it. Its process idles until it joins again, or to the end."""

    kind: ClassVar[str] = "leave"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow(NodeFault):
    """The kernel gives each target no more than this much of one core."""

    kind: ClassVar[str] = "slow"
    cpu_ratio: float

    def __str__(self) -> str:
        return f"{NodeFault.__str__(self)}: {format_ratio(self.cpu_ratio)} of a core"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deaf(NodeFault):
    """Limit of each receive buffer of the targets' sockets; datagrams that arrive at a full buffer are lost."""

    kind: ClassVar[str] = "deaf"
    buffer_bytes: int

    def __str__(self) -> str:
        return f"{NodeFault.__str__(self)}: a receive buffer of {format_size(self.buffer_bytes)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockShift(NodeFault):
    """The targets' own clocks jump by `step_ns`, and run faster by `drift_ppm` from then on."""

    kind: ClassVar[str] = "clock"
    step_ns: int = 0
    drift_ppm: float = 0.0

    def record(self) -> dict[str, Any]:
        record = NodeFault.record(self)
        return record | {"parameters": {name: value for name, value in record["parameters"].items() if value}}

    def __str__(self) -> str:
        step = f"a step of {format_duration(self.step_ns)}" if self.step_ns else ""
        drift = f"a drift of {format_drift(self.drift_ppm)}" if self.drift_ppm else ""
        return f"{NodeFault.__str__(self)}: {' and '.join(part for part in (step, drift) if part)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recover(NodeFault):
    """End of fault `ends` (slow, deaf or clock) at its targets. A clock is set to its value without the fault."""

    kind: ClassVar[str] = "recover"
    what: str
    ends: int

    def __str__(self) -> str:
        return f"{NodeFault.__str__(self)} from {self.what}"


def halves(nodes: Sequence[NodeName]) -> tuple[tuple[NodeName, ...], tuple[NodeName, ...]]:
    """Two groups; the first is the greater one when the number is odd. Raises ValueError for fewer than two nodes."""
    if len(nodes) < 2:
        raise ValueError("halves need at least two nodes")
    middle = (len(nodes) + 1) // 2
    return tuple(nodes[:middle]), tuple(nodes[middle:])


def ways(nodes: Sequence[NodeName], count: int) -> tuple[tuple[NodeName, ...], ...]:
    """`count` groups of consecutive nodes, sizes as equal as can be. Raises ValueError when a group would be empty."""
    if not 2 <= count <= len(nodes):
        raise ValueError(f"{len(nodes)} nodes cannot be cut into {count} groups: give 2 to {len(nodes)}")
    size, more = divmod(len(nodes), count)
    starts = [number * size + min(number, more) for number in range(count + 1)]
    return tuple(tuple(nodes[start:end]) for start, end in pairwise(starts))


def bridged(nodes: Sequence[NodeName]) -> tuple[tuple[NodeName, ...], tuple[NodeName, ...]]:
    """Two groups that share the node in the middle: it hears all of them. Raises ValueError for fewer than three."""
    if len(nodes) < 3:
        raise ValueError("a bridge needs at least three nodes")
    middle = len(nodes) // 2
    return tuple(nodes[: middle + 1]), tuple(nodes[middle:])


def ring(nodes: Sequence[NodeName], reach: int = 1) -> frozenset[tuple[NodeName, NodeName]]:
    """Each node hears only the `reach` nodes on either side of it, in the order given, the ends joined."""
    if reach < 1:
        raise ValueError("in a ring a node hears at least its neighbours: reach must be 1 or more")
    count = len(nodes)
    return frozenset(
        (nodes[one], nodes[other])
        for one in range(count)
        for other in range(count)
        if min((one - other) % count, (other - one) % count) > reach
    )


def blocked_after(faults: Sequence[Fault], fault: Cut | Heal) -> frozenset[tuple[NodeName, NodeName]]:
    """All one-way pairs of nodes that are cut from `fault` on, by it and by earlier cuts."""
    return frozenset[tuple[NodeName, NodeName]]().union(*(cut.blocked_pairs() for cut in _cuts(faults, fault)))


def blocked_links_after(faults: Sequence[Fault], fault: Cut | Heal) -> frozenset[str]:
    """All links that are cut (both ways) from `fault` on."""
    return frozenset(link for cut in _cuts(faults, fault) for link in cut.links)


def _cuts(faults: Sequence[Fault], fault: Cut | Heal) -> list[Cut]:
    return [one for one in faults if isinstance(one, Cut) and one.id in fault.in_force]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"
