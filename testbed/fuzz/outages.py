"""Faults that last about as long as the group is patient, or much longer: what ends views.

Half of the scenarios of a protocol with views are drawn here: cuts into halves, minorities and more sides, pairs that
do not hear each other in one direction or in both, members that hear nobody or that nobody hears, pauses, slow members,
ones whose buffers hold little, clocks that jump, crashes with and without a restart, of one member or of several at
once, and again of one that has come back; members that leave, one or several at once, and join again. They last 0.2 to
5 times as long as a silence that is borne; the load is stretched over all of it. A group may lose its quorum by that:
then only what holds in a minority is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from random import Random

from testbed.fuzz.scenario import (
    ClockShift,
    Crash,
    Cut,
    Deaf,
    Fault,
    Freeze,
    Leave,
    OneWayCut,
    Scenario,
    Slow,
    Worsening,
    clash,
)
from topologies.model import Direction

MILLISECOND = 1_000_000
OUTAGES = (1, 1, 2, 2, 3, 4, 5)
LENGTHS = (0.2, 0.5, 0.9, 1.1, 1.5, 2.0, 3.0, 5.0)
"""In terms of the group's patience."""
WHAT = (
    *("halves", "minority", "sides", "pair", "one way"),
    *("pause", "crash", "crash", "crashes", "again", "leave"),
)
BURDENS = ("hears nobody", "nobody hears", "slow", "deaf", "clock")
"""Of one member, which runs on."""
NOTHING_PASSES = (("loss_ratio", 1.0), ("loss_burst_frames", 1.0))
DRIFTS = (0, 0, -50_000, 50_000)
"""In ppm."""
GAP_NS = 50 * MILLISECOND
"""Between two faults of one node: a restart needs a moment."""


def stretched(scenario: Scenario, patience_ns: int, rng: Random) -> Scenario:
    """The same load, spread over 1 to 6 times the group's patience. If all is submitted at one instant, that is spread,
    too: the faults would come before it.
    """
    if len({at_ns for at_ns, _ in scenario.submissions}) == 1:
        scenario = _with_loads(scenario, lambda instants_ns: tuple(range(1, len(instants_ns) + 1)))
    last_ns = max(at_ns for at_ns, _ in scenario.submissions) or 1
    factor = rng.choice((1, 2, 4, 6)) * patience_ns / last_ns
    return _with_loads(scenario, lambda instants_ns: tuple(round(at_ns * factor) for at_ns in instants_ns))


def _with_loads(scenario: Scenario, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Scenario:
    """The same with other instants of submission for each member."""
    segments = tuple(
        replace(
            segment,
            members=tuple(replace(member, submissions_ns=change(member.submissions_ns)) for member in segment.members),
        )
        for segment in scenario.segments
    )
    return replace(scenario, segments=segments)


def outages(scenario: Scenario, patience_ns: int, rng: Random) -> tuple[Fault, ...]:
    """Faults for a scenario that has none yet, in the order of their beginnings."""
    last_ns = max(at_ns for at_ns, _ in scenario.submissions)
    found: list[Fault] = []
    for _ in range(rng.choice(OUTAGES)):
        at_ns = rng.randrange(last_ns + 1)
        for_ns = round(patience_ns * rng.choice(LENGTHS))
        for fault in _outage(len(scenario.members), at_ns, for_ns, patience_ns, rng):
            if not any(clash(fault, other, gap_ns=GAP_NS) for other in found):
                found.append(fault)
    kept = [fault for fault in found if not (isinstance(fault, Leave) and is_last(fault, found, len(scenario.members)))]
    return tuple(sorted(kept, key=lambda fault: (fault.at_ns, fault.end_ns)))


def is_last(leave: Leave, faults: Iterable[Fault], count: int) -> bool:
    """Whether all others may be away when it leaves: the last member cannot."""
    falls = [fault for fault in faults if isinstance(fault, Crash | Leave)]
    away = {one.member for one in falls if one.at_ns <= leave.at_ns and (_is_final(one) or one.end_ns >= leave.at_ns)}
    return len(away | {leave.member}) == count


def _is_final(fault: Crash | Leave) -> bool:
    return isinstance(fault, Crash) and fault.is_final


def _outage(count: int, at_ns: int, for_ns: int, patience_ns: int, rng: Random) -> Iterator[Fault]:
    members = list(range(count))
    rng.shuffle(members)
    what = rng.choice((*WHAT, *BURDENS))
    if what in BURDENS:
        yield from _burden(what, members[0], at_ns, for_ns, patience_ns, rng)
        return
    if what in ("halves", "minority", "sides") or (what == "pair" and count == 2):
        size = count // 2 if what == "halves" else rng.randint(1, max(1, (count - 1) // 2))
        sides = [members[:size], members[size:]]
        if what == "sides" and len(sides[1]) > 1:
            sides += [[sides[1].pop()]]
        yield Cut(at_ns=at_ns, for_ns=for_ns, sides=tuple(tuple(sorted(side)) for side in sides))
    elif what == "pair":
        yield Cut(at_ns=at_ns, for_ns=for_ns, sides=((members[0],), (members[1],)))
    elif what == "one way":
        yield OneWayCut(at_ns=at_ns, for_ns=for_ns, source=members[0], target=members[1])
    elif what == "leave":
        for member in members[: rng.randint(1, max(1, count // 2))]:
            yield Leave(at_ns=at_ns, for_ns=for_ns, member=member)
    elif what == "pause":
        yield Freeze(at_ns=at_ns, for_ns=for_ns, member=members[0])
    elif what == "again":
        for_ns = max(for_ns // 4, MILLISECOND)
        for number in range(3):
            yield Crash(at_ns=at_ns + 2 * number * (for_ns + GAP_NS), for_ns=for_ns, member=members[0])
    else:
        down = members[:1] if what == "crash" else members[: max(1, (count - 1) // 2)]
        is_final = rng.random() < 0.3
        for member in down:
            yield Crash(at_ns=at_ns, for_ns=for_ns, member=member, is_final=is_final)


def _burden(what: str, member: int, at_ns: int, for_ns: int, patience_ns: int, rng: Random) -> Iterator[Fault]:
    if what in ("hears nobody", "nobody hears"):
        direction = Direction.TO_NODE if what == "hears nobody" else Direction.FROM_NODE
        yield Worsening(at_ns=at_ns, for_ns=for_ns, member=member, direction=direction, changes=NOTHING_PASSES)
    elif what == "clock":
        step_ns = rng.choice((-1, 1)) * patience_ns * rng.choice((1, 5, 11, 30)) // 10
        yield ClockShift(at_ns=at_ns, for_ns=for_ns, member=member, step_ns=step_ns, drift_ppm=rng.choice(DRIFTS))
    else:
        yield Slow(at_ns=at_ns, for_ns=for_ns, member=member, cpu_ratio=rng.choice((0.005, 0.02, 0.1)))
        if what == "deaf":
            yield Deaf(at_ns=at_ns, for_ns=for_ns, member=member, buffer_bytes=rng.choice((2304, 8192)))
