"""What an experiment file may say under `faults:`, word for word. `testbed.spec.timeline` turns it into events."""

from __future__ import annotations

import enum
from typing import Annotated, ClassVar, TypeAlias

from pydantic import Field

from topologies.formats.schema import Drift, Duration, Offset, OneOrMany, Ratio, RawBlock, Size, Text, choice, whole
from topologies.load import RawImpairment

MAX_GROUPS = 1000

Selectors: TypeAlias = Annotated[list[Text], OneOrMany()]


class FaultDirection(enum.Enum):
    """`to-node`, `from-node` for ports of nodes, `there`, `back` for links, `both` for either."""

    TO_NODE = "to-node"
    FROM_NODE = "from-node"
    THERE = "there"
    BACK = "back"
    BOTH = "both"


class CutShape(enum.Enum):
    """Well-known cuts (testbed.spec.faults)."""

    HALVES = "halves"
    RING = "ring"
    BRIDGE = "bridge"
    ISOLATE = "isolate"
    WAYS = "ways"


class ChaosKind(enum.Enum):
    """What a generator of mixed faults may draw."""

    CUT = "cut"
    ONE_WAY = "one-way"
    CRASH = "crash"
    PAUSE = "pause"
    IMPAIR = "impair"
    SLOW = "slow"
    DEAF = "deaf"
    CLOCK = "clock"


class RawTargets(RawBlock):
    """Some nodes."""

    targets: Selectors = Field(description="the nodes, by selector, such as p1/n2")


class RawImpair(RawImpairment):
    """Changes at ports or links; what is not named stays as it is."""

    targets: Selectors | None = Field(None, description="the nodes whose ports change, by selector, such as p1/*")
    links: Selectors | None = Field(None, description="the links that change, by name, such as p1--p2")
    direction: choice(FaultDirection) | None = Field(  # type: ignore[valid-type]
        None, description="to-node (default), from-node or both; for links there, back or both (default)"
    )


class RawRestore(RawBlock):
    """Ports or links go back to what the topology asks for."""

    targets: Selectors | None = Field(None, description="the nodes whose ports are restored, by selector")
    links: Selectors | None = Field(None, description="the links that are restored, by name")


class RawCut(RawBlock):
    """Who can no longer reach whom."""

    groups: list[Selectors] | None = Field(
        None, description="nodes in different groups are cut off from each other, such as [[p1/n1], [p1/n2, p1/n3]]"
    )
    from_: Selectors | None = Field(None, alias="from", description="with to: these nodes' frames no longer arrive")
    to: Selectors | None = Field(None, description="with from: where those frames no longer arrive")
    pairs: list[list[Text]] | None = Field(None, description="one-way cuts [from, to], such as [[p1/n1, p1/n2]]")
    links: Selectors | None = Field(None, description="links that carry nothing, by name, such as p1--p2")
    shape: choice(CutShape) | None = Field(  # type: ignore[valid-type]
        None, description="with of: halves, ways, bridge (one node hears both halves), ring, isolate (each alone)"
    )
    of: Selectors | None = Field(None, description="the nodes of the shape, by selector; without it all")
    count: whole(2, MAX_GROUPS) | None = Field(None, description="of ways: how many groups")  # type: ignore[valid-type]
    reach: whole(1, MAX_GROUPS) | None = Field(  # type: ignore[valid-type]
        None, description="of ring: how many nodes on either side a node still hears; without it 1"
    )


class RawHeal(RawBlock):
    """All cuts end."""


class RawSlow(RawTargets):
    """Nodes that get less of a processor."""

    cpu: Ratio = Field(description="how much of one core is left to each, such as 10 %")


class RawDeaf(RawTargets):
    """Nodes whose receive buffers hold little."""

    buffer: Size = Field(description="what each socket's receive buffer holds, such as 4 KiB")


class RawClockFault(RawTargets):
    """Nodes whose own clocks go wrong in mid-run."""

    step: Offset = Field(0, description="how far the clock jumps, such as 50 ms or -50 ms")
    drift: Drift = Field(0.0, description="how much faster it runs from then on, such as 100 ppm")


class RawFlap(RawBlock):
    """Something that goes away and comes back, again and again. It begins by going away."""

    down: Duration = Field(description="how long it is away, such as 200 ms")
    up: Duration = Field(description="how long it is there in between, such as 800 ms")
    jitter: Ratio = Field(0.0, description="how much each of these times differs at most, drawn by the seed: 20 %")
    targets: Selectors | None = Field(None, description="nodes that are cut off, each from everybody, by selector")
    links: Selectors | None = Field(None, description="links that carry nothing, by name")
    cut: RawCut | None = Field(None, description="a cut that comes and goes")
    impair: RawImpair | None = Field(None, description="an impairment that comes and goes")


class RawChurn(RawTargets):
    """Nodes that crash and come back, each by itself, at times that the seed draws."""

    up: Duration = Field(description="how long a node runs on average until it crashes, such as 5 s")
    down: Duration = Field(description="how long it is gone on average, such as 1 s")
    at_most: whole(1, MAX_GROUPS) = Field(  # type: ignore[valid-type]
        1, alias="at-most", description="how many of them are gone at once at most"
    )


class RawChaos(RawBlock):
    """Faults of several kinds at times, places and strengths that the seed draws."""

    kinds: Annotated[list[choice(ChaosKind)], OneOrMany()] = Field(  # type: ignore[valid-type]
        [ChaosKind.CUT, ChaosKind.ONE_WAY, ChaosKind.CRASH, ChaosKind.PAUSE, ChaosKind.IMPAIR],
        description="cut, one-way, crash, pause, impair, slow, deaf, clock",
    )
    every: Duration = Field(description="how much time lies between two faults on average, such as 2 s")
    lasts: list[Duration] = Field(
        [500_000_000, 2_000_000_000], description="how long a fault lasts, [shortest, longest]"
    )
    within: Selectors = Field(["*"], description="the nodes that it may hit, by selector")
    at_most: whole(1, MAX_GROUPS) = Field(  # type: ignore[valid-type]
        1, alias="at-most", description="how many of its faults are in force at once at most"
    )


class RawFault(RawBlock):
    """One fault at one time, or a generator of faults from one time on."""

    may_be_empty: ClassVar[frozenset[str]] = frozenset({"heal"})
    KINDS: ClassVar[tuple[str, ...]] = (
        *("impair", "restore", "cut", "heal", "crash", "restart", "pause", "resume", "join", "leave"),
        *("slow", "deaf", "clock", "flap", "churn", "chaos"),
    )
    LASTING: ClassVar[tuple[str, ...]] = (
        *("impair", "cut", "crash", "pause", "leave", "slow", "deaf", "clock"),
        *("flap", "churn", "chaos"),
    )
    """What `for` can bring to an end."""

    at: Duration = Field(description="when, from the start of the workload, such as 4 s")
    for_: Duration | None = Field(None, alias="for", description="how long; without it until it is ended, or the end")
    impair: RawImpair | None = Field(None, description="change loss, delay, rate, … at ports or links")
    restore: RawRestore | None = Field(None, description="end what impair did")
    cut: RawCut | None = Field(None, description="let frames no longer pass")
    heal: RawHeal | None = Field(None, description="end all cuts")
    crash: RawTargets | None = Field(None, description="kill nodes")
    restart: RawTargets | None = Field(None, description="start crashed nodes again")
    pause: RawTargets | None = Field(None, description="freeze nodes")
    resume: RawTargets | None = Field(None, description="let paused nodes go on")
    join: RawTargets | None = Field(None, description="let absent nodes, and nodes that have left, join the group")
    leave: RawTargets | None = Field(None, description="let nodes leave the group at their own request")
    slow: RawSlow | None = Field(None, description="leave nodes only a part of a processor")
    deaf: RawDeaf | None = Field(None, description="leave nodes only a small receive buffer")
    clock: RawClockFault | None = Field(None, description="let nodes' own clocks jump or drift")
    flap: RawFlap | None = Field(None, description="cut off and back, again and again")
    churn: RawChurn | None = Field(None, description="crash nodes and start them again, again and again")
    chaos: RawChaos | None = Field(None, description="faults of several kinds, drawn by the seed")

    @property
    def kinds(self) -> list[str]:
        """What the block says is to happen; a valid block says one thing."""
        return [kind for kind in self.KINDS if kind in self.model_fields_set]
