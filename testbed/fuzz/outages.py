"""Faults of protocols with views: outages about as long as the group's patience, and torn fan-outs.

Outages end views. Half of the scenarios of a protocol with views have them: cuts into halves, minorities and more
sides, pairs that do not hear each other in one direction or in both, members that receive nothing or from which nothing
arrives, pauses, slow members, members with small buffers, clocks that jump, crashes with and without a restart, of one
member or of several at once, and again of a restarted one; members that leave, one or several at once, and join again.
They last 0.2 to 5 times the group's patience; the load is stretched over all of it. A group may lose its quorum by
that: then only the promises to a minority are judged.

Torn fan-outs are crashes and pauses between the copies of one multicast. With unicast dissemination a multicast leaves
its sender as one datagram for each member, in ascending order; a process that is killed or stopped between two of them
has reached the first ones only. In the simulator all copies leave at one instant, so cuts stand for the copies that are
not sent: from the instant of the multicast on, frames of the sender do not pass to the last members, and 1 ns later the
sender crashes or pauses. It sends nothing afterwards, so nothing else is lost, except frames to them that are still in
transit. After a pause the copies stay lost, as if the kernel had refused them; a real process would send them late. The
instant is taken from a run of the scenario with the faults that it has already: a new fault does not change the run
before it, so that it strikes the chosen multicast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import NamedTuple

from node.host.host import TRANSMISSION_MASK
from node.protocols.adaptive.codec import AdaptiveReport
from node.registry import PROTOCOLS
from node.trace import Event, Notice
from node.wire import Kind
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
    experiment_of,
    is_too_early,
)
from testbed.sim.simulation import START_NS, IncarnationRun, Simulation, simulate
from testbed.spec.raw import Dissemination
from topologies.model import Direction

MILLISECOND = 1_000_000
OUTAGES = (1, 1, 2, 2, 3, 4, 5)
LENGTHS = (0.2, 0.5, 0.9, 1.1, 1.5, 2.0, 3.0, 5.0)
"""Lengths of outages, as multiples of the group's patience."""
WHAT = (
    *("halves", "minority", "sides", "pair", "one way"),
    *("pause", "crash", "crash", "crashes", "again", "leave"),
)
BURDENS = ("hears nobody", "nobody hears", "slow", "deaf", "clock")
"""Faults of one member that goes on running."""
NOTHING_PASSES = (("loss_ratio", 1.0), ("loss_burst_frames", 1.0))
DRIFTS = (0, 0, -50_000, 50_000)
"""Drifts of a clock in ppm."""
GAP_NS = 50 * MILLISECOND
"""Least time between two faults of one node: a restart takes some time."""


def stretched(scenario: Scenario, patience_ns: int, rng: Random) -> Scenario:
    """The same load, spread over 1 to 6 times the group's patience. Submissions at one single instant are spread, too,
    or the faults would come before it.
    """
    if len({at_ns for at_ns, _ in scenario.submissions}) == 1:
        scenario = _with_loads(scenario, lambda instants_ns: tuple(range(1, len(instants_ns) + 1)))
    last_ns = max(at_ns for at_ns, _ in scenario.submissions) or 1
    factor = rng.choice((1, 2, 4, 6)) * patience_ns / last_ns
    return _with_loads(scenario, lambda instants_ns: tuple(round(at_ns * factor) for at_ns in instants_ns))


def _with_loads(scenario: Scenario, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Scenario:
    """The scenario with changed instants of submission of each member."""
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
    """Whether all other members may be away at this leave, which the last member cannot perform."""
    falls = [fault for fault in faults if isinstance(fault, Crash | Leave)]
    away = {one.member for one in falls if one.at_ns <= leave.at_ns and (one.is_final or one.end_ns >= leave.at_ns)}
    return len(away | {leave.member}) == count


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


LEAST_MEMBERS = 3
FALL_LENGTHS = (0.2, 0.5, 0.9, 1.5, 3.0)
"""Lengths of a pause, or of the time until a restart, as multiples of the group's patience."""
CUT_NS = (50 * MILLISECOND, 200 * MILLISECOND)
"""Lengths of a cut: frames sent before the fall have arrived or are lost, and no member is suspected for it."""


class FanOut(NamedTuple):
    """One multicast in copies. `at_ns`: time after the start of the load; `kind`: kind of its message."""

    at_ns: int
    member: int
    kind: int


def with_torn_fan_outs(scenario: Scenario, patience_ns: int, rng: Random) -> Scenario:
    """The scenario with one or two torn fan-outs more; unchanged if no multicast of it leaves in several copies."""
    if scenario.dissemination is not Dissemination.UNICAST or len(scenario.members) < LEAST_MEMBERS:
        return scenario
    after_ns = -1  # an earlier fall would change the run, so that the later one tears nothing
    for _ in range(rng.choice((1, 1, 2))):
        found = [one for one in fan_outs(scenario) if one.at_ns > after_ns]
        if not found:
            break
        # Most multicasts are heartbeats, so the kind is drawn first: each is equally likely.
        kind = rng.choice(sorted({one.kind for one in found}))
        fan_out = rng.choice([one for one in found if one.kind == kind])
        faults = _torn(fan_out, scenario, patience_ns, rng)
        ordered = sorted((*scenario.faults, *faults), key=lambda fault: (fault.at_ns, fault.end_ns))
        leaves = [fault for fault in ordered if isinstance(fault, Leave)]
        is_early = is_too_early(faults[0], scenario.joins_ns, gap_ns=GAP_NS)
        if is_early or any(clash(faults[0], other, gap_ns=GAP_NS) for other in scenario.faults):
            continue
        if not any(is_last(leave, ordered, len(scenario.members)) for leave in leaves):
            scenario = replace(scenario, faults=tuple(ordered))
            after_ns = fan_out.at_ns
    return scenario


def fan_outs(scenario: Scenario) -> list[FanOut]:
    """Multicasts to all other members in a run of the scenario, until the end of the load and of the last fault."""
    simulation = rehearsal(scenario, drains=False)
    if simulation is None:
        return []
    copies = len(scenario.members) - 1
    found = (one for incarnation in simulation.incarnations for one in _of_incarnation(incarnation, copies))
    return sorted(one for one in found if 0 <= one.at_ns < scenario.duration_ns)


def _of_incarnation(incarnation: IncarnationRun, copies: int) -> Iterator[FanOut]:
    """Fan-outs of `copies` datagrams of one incarnation. A message's datagrams are counted by the number of the next
    message's first datagram."""
    sends = [row for row in incarnation.records if row[0] == Event.SEND]
    for row, following in pairwise(sends):
        if (following[8] - row[8]) & TRANSMISSION_MASK == copies:
            yield FanOut(row[6] - START_NS, incarnation.member, row[1])


def _torn(fan_out: FanOut, scenario: Scenario, patience_ns: int, rng: Random) -> list[Fault]:
    """The crash or pause, then the cuts."""
    for_ns = round(patience_ns * rng.choice(FALL_LENGTHS))
    what = rng.choice(("crash", "restart", "restart", "pause"))
    fall: Fault
    if what == "pause":
        fall = Freeze(at_ns=fan_out.at_ns + 1, for_ns=for_ns, member=fan_out.member)
    elif what == "restart":
        fall = Crash(at_ns=fan_out.at_ns + 1, for_ns=for_ns, member=fan_out.member)
    else:
        fall = Crash(at_ns=fan_out.at_ns + 1, for_ns=MILLISECOND, member=fan_out.member, is_final=True)
    peers = [member for member in range(len(scenario.members)) if member != fan_out.member]
    least_ns, most_ns = CUT_NS
    cut_ns = min(max(4 * scenario.transit_ns, least_ns), most_ns)
    return [
        fall,
        *(
            OneWayCut(at_ns=fan_out.at_ns, for_ns=cut_ns, source=fan_out.member, target=peer)
            for peer in peers[rng.randrange(1, len(peers)) :]
        ),
    ]


CODES = frozenset((Notice.IN_FORCE, AdaptiveReport.CALLED, AdaptiveReport.COMPLETE))
"""Reports of a switch: a vote is called, a member sends in a new epoch, an old epoch is complete at a member."""


class Moment(NamedTuple):
    """One step of a switch by a member. `at_ns`: time after the start of the load."""

    at_ns: int
    member: int


def moments(scenario: Scenario) -> tuple[Moment, ...]:
    """All steps of all switches, ascending; empty for protocols that do not switch."""
    entry = PROTOCOLS[scenario.protocol]
    if Kind.ADAPTIVE_CALL not in entry.kinds:
        return ()
    simulation = rehearsal(replace(scenario, faults=()))
    if simulation is None:
        return ()
    return tuple(
        sorted(
            Moment(row[6] - START_NS, incarnation.member)
            for incarnation in simulation.incarnations
            for row in incarnation.records
            if row[0] == Event.REPORT and row[1] in CODES and row[6] > START_NS
        )
    )


def rehearsal(scenario: Scenario, *, drains: bool = True) -> Simulation | None:
    """A run from which instants are taken; without `drains` it ends with its load. None when a core fails in it, which
    `judge` will report.
    """
    experiment = experiment_of(scenario)
    try:
        return simulate(experiment if drains else replace(experiment, drain_ns=0), group=1)
    except Exception:  # any exception of a core
        return None
