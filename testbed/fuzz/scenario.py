"""A scenario: one small experiment as a value, made to be varied, made smaller and written down.

Members are numbered as in the topology: partition by partition, from 0. All times are in ns from the start of the load.
A scenario says everything: network, load, faults, parameters, and the seed of what is left to chance (which frame is
lost). `testbed.fuzz.draw` makes one from a seed, `testbed.fuzz.render` an experiment or a file from one,
`testbed.fuzz.shrink` a smaller one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from testbed.spec.raw import Dissemination, Parameter
from topologies.model import CLEAR, Bus, Direction, Impairment

SETTLE_NS = 1_000_000
"""The load goes on for this long after the last submission and the last end of a fault."""

DRAIN_NS = 600 * 10**9
"""Virtual. A protocol that has not come to rest by then never will: its longest time-outs are some seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member: when its application sends, what its port does to frames, and how wrong its clock is."""

    submissions_ns: tuple[int, ...] = ()
    """Ascending; an instant may stand twice."""
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
    def members(self) -> frozenset[int]:
        """Whom it touches."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut(Disturbance):
    """Two or more sides no longer reach each other. Who is on no side keeps all wires: a bridge."""

    sides: tuple[tuple[int, ...], ...]

    @property
    def members(self) -> frozenset[int]:
        return frozenset(member for side in self.sides for member in side)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneWayCut(Disturbance):
    """What `source` sends does not reach `target`."""

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
class Freeze(Disturbance):
    """A member is paused."""

    member: int

    @property
    def members(self) -> frozenset[int]:
        return frozenset((self.member,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash(Disturbance):
    """A member is killed; after `for_ns` it starts again, or never does (`is_final`)."""

    member: int
    is_final: bool = False

    @property
    def members(self) -> frozenset[int]:
        return frozenset((self.member,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(Disturbance):
    """A member leaves the group; after `for_ns` its process joins again."""

    member: int

    @property
    def members(self) -> frozenset[int]:
        return frozenset((self.member,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Worsening(Disturbance):
    """The port of a member changes: the named fields of its impairment."""

    member: int
    direction: Direction
    changes: tuple[tuple[str, Any], ...]

    @property
    def members(self) -> frozenset[int]:
        return frozenset((self.member,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow(Disturbance):
    """A member has only this share of one core."""

    member: int
    cpu_ratio: float

    @property
    def members(self) -> frozenset[int]:
        return frozenset((self.member,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Deaf(Disturbance):
    """The receive buffers of a member hold only so much."""

    member: int
    buffer_bytes: int

    @property
    def members(self) -> frozenset[int]:
        return frozenset((self.member,))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockShift(Disturbance):
    """The clock of a member jumps and drifts; at the end it shows what it would show without that."""

    member: int
    step_ns: int = 0
    drift_ppm: int = 0

    @property
    def members(self) -> frozenset[int]:
        return frozenset((self.member,))


Fault: TypeAlias = Cut | OneWayCut | LinkCut | Freeze | Crash | Leave | Worsening | Slow | Deaf | ClockShift
Fall: TypeAlias = Freeze | Crash | Leave
Condition: TypeAlias = Slow | Deaf | ClockShift


def clash(one: Fault, other: Fault, *, gap_ns: int = 0) -> bool:
    """Whether both want the same node at once. A node that is down, paused or away cannot fall again, and its condition
    cannot change; nobody has one condition twice. A crash may strike within a condition, which ends with it. `gap_ns`:
    what a node needs between two faults. A crash without a restart lasts for ever.
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
    if isinstance(first, Crash) and first.is_final:
        return True
    return second.at_ns <= first.end_ns + gap_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """See the module. `seed` is where the experiment's own chance comes from."""

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
        """(instant, member), ascending."""
        found = ((at_ns, index) for index, member in enumerate(self.members) for at_ns in member.submissions_ns)
        return tuple(sorted(found))

    @property
    def duration_ns(self) -> int:
        """So that all submissions lie before its end, and no fault reaches beyond it."""
        last = [at_ns for at_ns, _ in self.submissions] + [fault.end_ns for fault in self.faults]
        return max(last, default=0) + SETTLE_NS

    @property
    def transit_ns(self) -> int:
        """About how long a message can be under way between any two members."""
        ports = [member.to_node.delay_ns + member.from_node.delay_ns for member in self.members]
        return 1_000_000 + max(ports) + sum(segment.link.delay_ns for segment in self.segments)

    def __str__(self) -> str:
        sizes = "+".join(str(len(segment.members)) for segment in self.segments)
        return f"{sizes} members, {len(self.submissions)} submissions, {len(self.faults)} faults"
