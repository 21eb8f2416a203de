"""Generators of random faults: flapping, churn of nodes, and chaos (faults of several kinds).

All of it is drawn when the experiment is loaded and becomes plain events: `orderbed plan` shows each of them, the same
seed gives the same ones in every world, and nothing else depends on generators. Times are drawn first and clipped to
[start, end]: every fault of a generator has ended when the generator ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import TypeAlias

from testbed.spec.faults import Changes, ClockShift, Crash, Cut, Deaf, Pause, Slow
from testbed.spec.plans import ConditionPlan, CutPlan, Layer, NodePlan, Plan
from testbed.spec.raw import ChaosKind, RawChaos, RawChurn, RawFlap
from topologies.model import Direction, NodeName

MAX_INTERVALS = 20_000
"""Most faults of one generator; each is performed, recorded and shown by itself."""
SHORTEST_NS = 1_000_000
"""Shortest drawn length."""
GRAIN_NS = 100_000
"""Unit to which drawn times are rounded: no fault strikes more exactly, and rounded times are readable."""

LOSS_RATIO = (0.02, 0.3)
DELAY_NS = (5_000_000, 100_000_000)
CPU_RATIO = (0.02, 0.3)
BUFFER_BYTES = (4 * 1024, 64 * 1024)
STEP_NS = (1_000_000, 100_000_000)
DRIFT_PPM = (10.0, 1000.0)
"""Ranges of the strengths that chaos draws; the sign of a step or drift is drawn, too."""


class TooManyError(Exception):
    """A generator would draw more than MAX_INTERVALS."""


Drawn: TypeAlias = tuple[int, int, Plan]
"""Start and end (ns), and the plan."""


def flap(
    block: RawFlap, plans: Callable[[], Sequence[Plan]], start_ns: int, end_ns: int, rng: Random
) -> Iterator[Drawn]:
    """Alternate between away for `down` and back for `up`, each length varied by at most the share `jitter`; away
    first. Each time is a fault of its own, made by `plans`.
    """

    def length_ns(usual_ns: int) -> int:
        return _rounded(usual_ns * (1 + block.jitter * rng.uniform(-1, 1)))

    at_ns, count = start_ns, 0
    while at_ns < end_ns:
        until_ns = min(end_ns, at_ns + length_ns(block.down))
        count += 1
        _check(count)
        yield from ((at_ns, until_ns, plan) for plan in plans())
        at_ns = until_ns + length_ns(block.up)


def churn(block: RawChurn, nodes: Sequence[NodeName], start_ns: int, end_ns: int, rng: Random) -> Iterator[Drawn]:
    """Each node runs for a while (exponential, `up` on average), is down for a while (`down`), and so on.

    A node whose crash is due while `at_most` others are down stays up, and its next running time is drawn.
    """
    gone: list[int] = []
    crashes = [(start_ns + _exponential_ns(block.up, rng), place) for place in range(len(nodes))]
    heapq.heapify(crashes)
    draws = 0
    while crashes and crashes[0][0] < end_ns:
        at_ns, place = heapq.heappop(crashes)
        gone = [until_ns for until_ns in gone if until_ns > at_ns]
        back_ns = at_ns
        if len(gone) < block.at_most:
            back_ns = min(end_ns, at_ns + _exponential_ns(block.down, rng))
            gone.append(back_ns)
            yield at_ns, back_ns, NodePlan(kind=Crash, targets=(nodes[place],))
        draws += 1
        _check(draws)
        heapq.heappush(crashes, (back_ns + _exponential_ns(block.up, rng), place))


def chaos(block: RawChaos, nodes: Sequence[NodeName], start_ns: int, end_ns: int, rng: Random) -> Iterator[Drawn]:
    """Faults of `kinds`, each equally likely, `every` apart on average (exponential), lasting `lasts` (uniform).

    A fault that is due while `at_most` are in force is dropped. No node has two at once.
    """
    kinds = tuple(dict.fromkeys(block.kinds))
    active: list[tuple[int, tuple[NodeName, ...]]] = []
    """End of each fault in force, and its nodes."""
    at_ns, draws = start_ns, 0
    while (at_ns := at_ns + _exponential_ns(block.every, rng)) < end_ns:
        draws += 1
        _check(draws)
        active = [one for one in active if one[0] > at_ns]
        until_ns = min(end_ns, at_ns + _rounded(rng.uniform(*block.lasts)))
        kind = kinds[rng.randrange(len(kinds))]
        busy = {node for _, hit in active for node in hit}
        free = [node for node in nodes if node not in busy]
        if len(active) < block.at_most and free:
            plan, hit = _of_chaos(kind, nodes, free, rng)
            active.append((until_ns, hit))
            yield at_ns, until_ns, plan


def _of_chaos(
    kind: ChaosKind, nodes: Sequence[NodeName], free: Sequence[NodeName], rng: Random
) -> tuple[Plan, tuple[NodeName, ...]]:
    """A plan, and the nodes that it hits."""
    one = (free[rng.randrange(len(free))],)
    if kind in (ChaosKind.CUT, ChaosKind.ONE_WAY) and len(nodes) > 1:
        return _cut(kind, nodes, free, rng)
    if kind in (ChaosKind.CRASH, ChaosKind.PAUSE):
        return NodePlan(kind=Crash if kind is ChaosKind.CRASH else Pause, targets=one), one
    if kind is ChaosKind.SLOW:
        return ConditionPlan(fault=Slow(targets=one, cpu_ratio=round(rng.uniform(*CPU_RATIO), 2)), lasts=True), one
    if kind is ChaosKind.DEAF:
        return ConditionPlan(fault=Deaf(targets=one, buffer_bytes=rng.randint(*BUFFER_BYTES)), lasts=True), one
    if kind is ChaosKind.CLOCK:
        sign = rng.choice((-1, 1))
        step_ns, drift_ppm = _rounded(rng.uniform(*STEP_NS)), round(rng.uniform(*DRIFT_PPM), 1)
        fault = ClockShift(targets=one, step_ns=sign * step_ns, drift_ppm=sign * drift_ppm)
        return ConditionPlan(fault=fault, lasts=True), one
    return Layer(direction=Direction.TO_NODE, targets=one, changes=_impairment(rng)), one


def _cut(
    kind: ChaosKind, nodes: Sequence[NodeName], free: Sequence[NodeName], rng: Random
) -> tuple[Plan, tuple[NodeName, ...]]:
    """A smaller part of the nodes, drawn from those that are free, from all others; both ways or only outwards."""
    most = max(1, min(len(free), len(nodes) // 2))
    part = tuple(sorted(rng.sample(list(free), rng.randint(1, most)), key=list(nodes).index))
    rest = tuple(node for node in nodes if node not in part)
    if kind is ChaosKind.ONE_WAY:
        return CutPlan(cut=Cut(pairs=tuple((a, b) for a in part for b in rest))), part
    return CutPlan(cut=Cut(groups=(part, rest))), part


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
