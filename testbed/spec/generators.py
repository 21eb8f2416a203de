"""Faults that a seed draws: when something flaps, which nodes churn, and chaos, faults of several kinds.

All of it is drawn when the experiment is loaded and becomes plain events: `orderbed plan` shows each of them, the same
seed gives the same ones in every world, and whoever performs or judges them knows of no generator. Times are drawn
first and clipped to [start, end]: all that a generator took away is back when it ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from testbed.spec.faults import Changes, Crash, Pause
from testbed.spec.plans import ConditionPlan, CutPlan, Layer, NodePlan, Plan
from testbed.spec.raw import ChaosKind
from topologies.model import Direction, NodeName

MAX_INTERVALS = 20_000
"""Of one generator; each is performed, recorded and shown by itself."""
SHORTEST_NS = 1_000_000
"""Nothing that is drawn lasts shorter."""
GRAIN_NS = 100_000
"""What is drawn is rounded to this: nobody strikes more exactly, and people read the times."""

LOSS_RATIO = (0.02, 0.3)
DELAY_NS = (5_000_000, 100_000_000)
CPU_RATIO = (0.02, 0.3)
BUFFER_BYTES = (4 * 1024, 64 * 1024)
STEP_NS = (1_000_000, 100_000_000)
DRIFT_PPM = (10.0, 1000.0)
"""From what chaos draws how strong a fault is; the sign of a step or drift is drawn, too."""


class TooManyError(Exception):
    """A generator would draw more than MAX_INTERVALS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """From when to when, and to whom it happens (churn)."""

    from_ns: int
    until_ns: int
    node: NodeName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flap:
    """Away for `down_ns`, there for `up_ns`, each time longer or shorter by at most `jitter_ratio`."""

    down_ns: int
    up_ns: int
    jitter_ratio: float

    def draw(self, start_ns: int, end_ns: int, rng: Random) -> list[Interval]:
        """When it is away, in order, the first time from the start on. Raises TooManyError."""
        found: list[Interval] = []
        at_ns = start_ns
        while at_ns < end_ns:
            until_ns = min(end_ns, at_ns + self._length_ns(self.down_ns, rng))
            found.append(Interval(from_ns=at_ns, until_ns=until_ns))
            _check(len(found))
            at_ns = until_ns + self._length_ns(self.up_ns, rng)
        return found

    def _length_ns(self, usual_ns: int, rng: Random) -> int:
        return _rounded(usual_ns * (1 + self.jitter_ratio * rng.uniform(-1, 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Churn:
    """Each node runs for a while (exponential, `up_ns` on average), is gone for a while (`down_ns`), and so on.

    Who would go while `at_most` others are gone stays, and draws anew how long it runs.
    """

    nodes: Sequence[NodeName]
    up_ns: int
    down_ns: int
    at_most: int

    def draw(self, start_ns: int, end_ns: int, rng: Random) -> list[Interval]:
        """When which node is gone, in order. Raises TooManyError."""
        found: list[Interval] = []
        gone: list[int] = []
        crashes = [(start_ns + _exponential_ns(self.up_ns, rng), place) for place in range(len(self.nodes))]
        heapq.heapify(crashes)
        draws = 0
        while crashes and crashes[0][0] < end_ns:
            at_ns, place = heapq.heappop(crashes)
            gone = [until_ns for until_ns in gone if until_ns > at_ns]
            back_ns = at_ns
            if len(gone) < self.at_most:
                back_ns = min(end_ns, at_ns + _exponential_ns(self.down_ns, rng))
                gone.append(back_ns)
                found.append(Interval(from_ns=at_ns, until_ns=back_ns, node=self.nodes[place]))
            draws += 1
            _check(draws)
            heapq.heappush(crashes, (back_ns + _exponential_ns(self.up_ns, rng), place))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Chaos:
    """Faults of `kinds`, each equally likely, `every_ns` apart on average (exponential), lasting `lasts_ns` (uniform).

    One that would come while `at_most` are in force does not come. No node is hit by two at once.
    """

    kinds: Sequence[ChaosKind]
    nodes: Sequence[NodeName]
    every_ns: int
    lasts_ns: tuple[int, int]
    at_most: int

    def draw(self, start_ns: int, end_ns: int, rng: Random) -> Iterator[tuple[Interval, Plan]]:
        """Plans with the times of their starts and ends. Raises TooManyError."""
        active: list[_Active] = []
        at_ns = start_ns
        draws = 0
        while (at_ns := at_ns + _exponential_ns(self.every_ns, rng)) < end_ns:
            draws += 1
            _check(draws)
            active = [one for one in active if one.until_ns > at_ns]
            until_ns = min(end_ns, at_ns + _rounded(rng.uniform(*self.lasts_ns)))
            kind = self.kinds[rng.randrange(len(self.kinds))]
            busy = {node for one in active for node in one.nodes}
            free = [node for node in self.nodes if node not in busy]
            if len(active) >= self.at_most or not free:
                continue
            plan, hit = self._plan(kind, free, rng)
            active.append(_Active(until_ns=until_ns, nodes=hit))
            yield Interval(from_ns=at_ns, until_ns=until_ns), plan

    def _plan(self, kind: ChaosKind, free: Sequence[NodeName], rng: Random) -> tuple[Plan, tuple[NodeName, ...]]:
        one = free[rng.randrange(len(free))]
        others = tuple(node for node in self.nodes if node != one)
        if kind in (ChaosKind.CUT, ChaosKind.ONE_WAY) and others:
            return self._cut(kind, free, rng)
        if kind in (ChaosKind.CRASH, ChaosKind.PAUSE):
            return NodePlan(kind=Crash if kind is ChaosKind.CRASH else Pause, targets=(one,)), (one,)
        if kind is ChaosKind.SLOW:
            return ConditionPlan(targets=(one,), cpu_ratio=round(rng.uniform(*CPU_RATIO), 2), lasts=True), (one,)
        if kind is ChaosKind.DEAF:
            return ConditionPlan(targets=(one,), buffer_bytes=rng.randint(*BUFFER_BYTES), lasts=True), (one,)
        if kind is ChaosKind.CLOCK:
            sign = rng.choice((-1, 1))
            step_ns, drift_ppm = _rounded(rng.uniform(*STEP_NS)), round(rng.uniform(*DRIFT_PPM), 1)
            plan = ConditionPlan(targets=(one,), step_ns=sign * step_ns, drift_ppm=sign * drift_ppm, lasts=True)
            return plan, (one,)
        return Layer(direction=Direction.TO_NODE, targets=(one,), changes=_impairment(rng)), (one,)

    def _cut(self, kind: ChaosKind, free: Sequence[NodeName], rng: Random) -> tuple[Plan, tuple[NodeName, ...]]:
        """A smaller part of the nodes, drawn from those that are free, from all others; both ways or only outwards."""
        most = max(1, min(len(free), len(self.nodes) // 2))
        part = tuple(sorted(rng.sample(list(free), rng.randint(1, most)), key=list(self.nodes).index))
        rest = tuple(node for node in self.nodes if node not in part)
        if kind is ChaosKind.ONE_WAY:
            return CutPlan(pairs=tuple((a, b) for a in part for b in rest)), part
        return CutPlan(groups=(part, rest)), part


@dataclass(frozen=True, slots=True, kw_only=True)
class _Active:
    """A fault of chaos in force, and the nodes that no other may hit meanwhile."""

    until_ns: int
    nodes: tuple[NodeName, ...] = field(default=())


def _impairment(rng: Random) -> Changes:
    """Loss, delay, or both."""
    which = rng.randrange(3)
    changes: dict[str, float | int] = {}
    if which != 0:
        changes["loss_ratio"] = round(rng.uniform(*LOSS_RATIO), 3)
    if which != 1:
        changes["delay_ns"] = _rounded(rng.uniform(*DELAY_NS))
    return changes


def _exponential_ns(mean_ns: int, rng: Random) -> int:
    return _rounded(rng.expovariate(1.0) * mean_ns)


def _rounded(length_ns: float) -> int:
    return max(SHORTEST_NS, round(length_ns / GRAIN_NS) * GRAIN_NS)


def _check(count: int) -> None:
    if count > MAX_INTERVALS:
        raise TooManyError(f"this would draw more than {MAX_INTERVALS:,} faults: give longer times")
