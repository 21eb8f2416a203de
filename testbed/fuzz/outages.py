"""Faults that last about as long as the group is patient, or much longer: what ends views.

Half of the scenarios of a protocol with views are drawn here: cuts into halves, minorities and more sides, pairs that
do not hear each other in one direction or in both, pauses, crashes with and without a restart, of one member or of
several at once, and again of one that has come back; members that leave, one or several at once, and join again. They
last 0.2 to 5 times as long as a silence that is borne; the load is stretched over all of it. A group may lose its
quorum by that: then only what holds in a minority is judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from testbed.fuzz.scenario import Crash, Cut, Fault, Freeze, Leave, OneWayCut, Scenario

MILLISECOND = 1_000_000
OUTAGES = (1, 1, 2, 2, 3, 4, 5)
LENGTHS = (0.2, 0.5, 0.9, 1.1, 1.5, 2.0, 3.0, 5.0)
"""In terms of the group's patience."""
WHAT = (
    *("halves", "minority", "sides", "pair", "one way"),
    *("pause", "crash", "crash", "crashes", "again", "leave"),
)
GAP_NS = 50 * MILLISECOND
"""Between two faults of one node: a restart needs a moment."""


def stretched(scenario: Scenario, patience_ns: int, rng: Random) -> Scenario:
    """The same load, spread over 1 to 6 times the group's patience."""
    last_ns = max(at_ns for at_ns, _ in scenario.submissions) or 1
    factor = rng.choice((1, 2, 4, 6)) * patience_ns / last_ns
    segments = tuple(
        replace(
            segment,
            members=tuple(
                replace(member, submissions_ns=tuple(round(at_ns * factor) for at_ns in member.submissions_ns))
                for member in segment.members
            ),
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
        for fault in _outage(len(scenario.members), at_ns, for_ns, rng):
            if not any(_clash(fault, other) for other in found):
                found.append(fault)
    kept = [fault for fault in found if not (isinstance(fault, Leave) and _is_last(fault, found, scenario))]
    return tuple(sorted(kept, key=lambda fault: (fault.at_ns, fault.end_ns)))


def _is_last(leave: Leave, faults: list[Fault], scenario: Scenario) -> bool:
    """Whether all others may be away when it leaves: the last member cannot."""
    falls = [fault for fault in faults if isinstance(fault, Crash | Leave)]
    away = {one.member for one in falls if one.at_ns <= leave.at_ns and (_is_final(one) or one.end_ns >= leave.at_ns)}
    return len(away | {leave.member}) == len(scenario.members)


def _is_final(fault: Crash | Leave) -> bool:
    return isinstance(fault, Crash) and fault.is_final


def _outage(count: int, at_ns: int, for_ns: int, rng: Random) -> Iterator[Fault]:
    members = list(range(count))
    rng.shuffle(members)
    what = rng.choice(
        ("halves", "minority", "sides", "pair", "one way", "pause", "crash", "crash", "crashes", "again", "leave")
    )
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


def _clash(fault: Fault, other: Fault) -> bool:
    """Whether both want the same node: a crash without a restart wants it for ever."""
    falls = Crash | Freeze | Leave
    if not isinstance(fault, falls) or not isinstance(other, falls) or fault.member != other.member:
        return False
    first, second = sorted((fault, other), key=lambda one: one.at_ns)
    return (isinstance(first, Crash) and first.is_final) or second.at_ns <= first.end_ns + GAP_NS
