"""Crashes and pauses inside a fan-out: some copies of one multicast are sent, the others are not.

With unicast dissemination a multicast leaves its sender as one datagram for each member, in ascending order. A process
that is killed or stopped between two of them has reached the first ones only. In the simulator all copies leave at one
instant, so nothing can strike between them. Here cuts stand for the copies that are not sent: from the instant of the
multicast on, what the sender transmits does not pass to the last members, and 1 ns later the sender falls. It sends
nothing afterwards, so nothing else is lost, except what it had sent to them before and is still under way. After a
pause the copies stay lost, as if the kernel had refused them; a real process would send them late.

The instant is taken from a run of the scenario with the faults that it has already. All that comes before it is the
same when this fault is added, so it strikes the multicast that was chosen: of any kind that the run has, also those of
a view change and of a joiner's state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import NamedTuple

from node.host.host import TRANSMISSION_MASK
from node.protocols.adaptive.codec import AdaptiveReport
from node.registry import PROTOCOLS
from node.trace import Event, Notice
from node.wire import Kind
from testbed.fuzz.outages import is_last
from testbed.fuzz.scenario import Crash, Fault, Freeze, Leave, OneWayCut, Scenario, clash, experiment_of
from testbed.sim.simulation import START_NS, IncarnationRun, Simulation, simulate
from testbed.spec.raw import Dissemination

MILLISECOND = 1_000_000
LEAST_MEMBERS = 3
LENGTHS = (0.2, 0.5, 0.9, 1.5, 3.0)
"""Of a pause, or until a restart, in terms of the group's patience."""
CUT_NS = (50 * MILLISECOND, 200 * MILLISECOND)
"""Until all that was sent before the fall has arrived or is lost; and for no longer than nobody is given up for."""
GAP_NS = 50 * MILLISECOND


class FanOut(NamedTuple):
    """One multicast in copies. `at_ns`: after the start of the load; `kind`: of its message."""

    at_ns: int
    member: int
    kind: int


def with_torn_fan_outs(scenario: Scenario, patience_ns: int, rng: Random) -> Scenario:
    """The scenario with one or two such falls more; the same one if no multicast of it leaves in several copies."""
    if scenario.dissemination is not Dissemination.UNICAST or len(scenario.members) < LEAST_MEMBERS:
        return scenario
    for _ in range(rng.choice((1, 1, 2))):
        found = fan_outs(scenario)
        if not found:
            break
        # Heartbeats are most of all: each kind is as likely as any other.
        kind = rng.choice(sorted({one.kind for one in found}))
        fan_out = rng.choice([one for one in found if one.kind == kind])
        faults = _torn(fan_out, scenario, patience_ns, rng)
        ordered = sorted((*scenario.faults, *faults), key=lambda fault: (fault.at_ns, fault.end_ns))
        leaves = [fault for fault in ordered if isinstance(fault, Leave)]
        if any(clash(faults[0], other, gap_ns=GAP_NS) for other in scenario.faults):
            continue
        if not any(is_last(leave, ordered, len(scenario.members)) for leave in leaves):
            scenario = replace(scenario, faults=tuple(ordered))
    return scenario


def fan_outs(scenario: Scenario) -> list[FanOut]:
    """Those to all other members in a run of the scenario, until the last fault has ended and all is submitted."""
    simulation = rehearsal(scenario, drains=False)
    if simulation is None:
        return []
    copies = len(scenario.members) - 1
    found = (one for incarnation in simulation.incarnations for one in _of_incarnation(incarnation, copies))
    return sorted(one for one in found if 0 <= one.at_ns < scenario.duration_ns)


def _of_incarnation(incarnation: IncarnationRun, copies: int) -> Iterator[FanOut]:
    """Datagrams of one incarnation are numbered: how many a message took is where the number of the next one begins."""
    sends = [row for row in incarnation.records if row[0] == Event.SEND]
    for row, following in pairwise(sends):
        if (following[8] - row[8]) & TRANSMISSION_MASK == copies:
            yield FanOut(row[6] - START_NS, incarnation.member, row[1])


def _torn(fan_out: FanOut, scenario: Scenario, patience_ns: int, rng: Random) -> list[Fault]:
    """The fall, then the cuts."""
    for_ns = round(patience_ns * rng.choice(LENGTHS))
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
"""A vote is called, a member sends in a new epoch, an old epoch is complete at a member."""


class Moment(NamedTuple):
    """`at_ns`: after the start of the load."""

    at_ns: int
    member: int


def moments(scenario: Scenario) -> tuple[Moment, ...]:
    """All steps of all switches, ascending; none for protocols that do not switch."""
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
    """A run from which instants are taken; without `drains` it ends with its load. None when a core fails in it: the
    judge will see that, and say so.
    """
    experiment = experiment_of(scenario)
    try:
        return simulate(experiment if drains else replace(experiment, drain_ns=0), group=1)
    except Exception:  # whatever a core raises
        return None
