"""Members that join and leave in the simulator: absent at first, joining later, leaving, rejoining; and a member paused
for longer than the group's patience counts as crashed, and the run comes to rest."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from analysis.checks.linear import check_incarnations
from analysis.checks.properties import Property, Verdict
from node.registry import PROTOCOLS
from node.trace import EndReason, Event
from testbed.sim.member import INPUT_NS
from testbed.sim.simulation import START_NS, Ending, IncarnationRun, Simulation, simulate
from testbed.spec.faults import Crash, Fault, Join, Leave
from tests.testbed.sim.made import MILLISECOND, SECOND, delivered, experiment, periodic, topology
from tests.testbed.spec.test_timeline import planned
from topologies.model import Impairment, NodeName

NETWORK = topology(4, to_node=Impairment(delay_ns=5 * MILLISECOND, jitter_ns=2 * MILLISECOND))
FIRST, SECOND_NODE, THIRD, LAST = (node.name for node in NETWORK.nodes())


def run(
    *faults: Fault,
    protocol: str = "sequencer",
    absent: Sequence[NodeName] = (),
    patience_ns: int = 500 * MILLISECOND,
    duration_ns: int = 5 * SECOND,
    seed: int = 1,
) -> Simulation:
    patience = {"suspect_after_ns": patience_ns}
    made = experiment(
        NETWORK,
        protocol=protocol,
        parameters=patience if protocol == "reliable" else {"reliable": patience},
        workload=periodic(40),
        duration_ns=duration_ns,
        seed=seed,
        faults=faults,
        absent=absent,
    )
    return simulate(made, group=7)


def views(incarnation: IncarnationRun) -> dict[int, tuple[int, ...]]:
    """The members of each view that this incarnation installed, by rank."""
    found: dict[int, tuple[int, ...]] = {}
    for event, _, member, _, _, number, *_ in incarnation.records:
        if event == Event.VIEW:
            found[number] = (*found.get(number, ()), member)
    return found


def endings(simulation: Simulation) -> list[Ending | None]:
    return [incarnation.ending for incarnation in simulation.incarnations]


@pytest.mark.parametrize("protocol", ["sequencer", "lamport", "reliable"])
def test_an_absent_member_joins_as_a_later_incarnation_than_those_of_founders(protocol: str) -> None:
    simulation = run(Join(id=0, at_ns=2 * SECOND, targets=(LAST,)), protocol=protocol, absent=(LAST,))
    *founders, joiner = simulation.incarnations

    assert simulation.phases.drained_ns is not None
    assert [(one.member, one.incarnation) for one in simulation.incarnations] == [(0, 1), (1, 1), (2, 1), (3, 2)]
    assert endings(simulation) == [Ending.DRAINED] * 4
    assert joiner.records[0][0] == Event.START
    assert joiner.records[0][6] == START_NS + 2 * SECOND
    assert all(views(incarnation)[1] == (0, 1, 2) for incarnation in founders)
    assert views(joiner) == {2: (0, 1, 2, 3)}
    assert 100 < joiner.submitted < 125, "three seconds of five"
    assert delivered(joiner)
    if protocol != "reliable":
        assert delivered(joiner) == delivered(founders[0])[-len(delivered(joiner)) :]


def test_one_founder_is_enough() -> None:
    others = (SECOND_NODE, THIRD, LAST)
    simulation = run(Join(id=0, at_ns=SECOND, targets=others), absent=others)
    assert views(simulation.incarnations[0])[1] == (0,)
    last = {tuple(sorted(list(views(incarnation).values())[-1])) for incarnation in simulation.incarnations}
    assert last == {(0, 1, 2, 3)}


def test_a_member_that_leaves_rests_and_the_others_go_on() -> None:
    simulation = run(Leave(id=0, at_ns=2 * SECOND, targets=(FIRST,)))
    left, *others = simulation.incarnations

    assert (left.has_ended, left.has_left, left.ending) == (True, True, Ending.DRAINED)
    over = left.records[-1]
    assert (over[0], over[1]) == (Event.ENDED, EndReason.LEFT)
    assert 0 < over[6] - START_NS - 2 * SECOND < SECOND
    assert [incarnation.ending for incarnation in others] == [Ending.DRAINED] * 3
    assert all(list(views(incarnation).values())[-1] == (1, 2, 3) for incarnation in others)
    assert left.submitted < 90 < 190 < others[0].submitted
    assert simulation.faults[0]["readback"] == {}
    assert simulation.phases.drained_ns is not None


def test_one_that_is_told_to_join_before_it_has_left_joins_when_it_has() -> None:
    simulation = run(Leave(id=0, at_ns=SECOND, targets=(LAST,), until_id=1), Join(id=1, at_ns=SECOND, targets=(LAST,)))
    left, again = simulation.incarnations[3:]
    assert (left.incarnation, left.ending, left.has_left) == (1, Ending.LEFT, True)
    assert (again.incarnation, again.ending, again.has_ended) == (2, Ending.DRAINED, False)
    assert list(views(again).values())[-1] == (0, 1, 2, 3)
    assert again.records[0][6] == left.records[-1][6]


def test_a_leave_that_cannot_be_is_told_and_changes_nothing() -> None:
    """Two members crash and are excluded one after the other; the last member cannot leave."""
    others = (SECOND_NODE, THIRD, LAST)
    crashes = [Crash(id=at, at_ns=at * SECOND, targets=(name,)) for at, name in enumerate(reversed(others), start=1)]
    simulation = run(*crashes, Leave(id=3, at_ns=4900 * MILLISECOND, targets=(FIRST,)))
    told = simulation.faults[-1]["readback"]
    assert told == {FIRST: {"refused": "member 0 is the last one of its group: stop it instead"}}
    assert (simulation.incarnations[0].has_ended, simulation.incarnations[0].ending) == (False, Ending.DRAINED)


# Excluded.

AWAY = planned("{at: 500 ms, for: 3 s, pause: {targets: p1/n4}}")


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("protocol", ["reliable", "sequencer", "cbcast", "lamport"])
def test_a_member_that_was_away_for_too_long_is_excluded_and_its_process_goes_on_as_the_next_incarnation(
    protocol: str, seed: int
) -> None:
    simulation = run(*AWAY, protocol=protocol, patience_ns=SECOND, seed=seed)
    excluded, again = simulation.incarnations[3:]

    assert simulation.phases.drained_ns is not None
    assert [one.has_ended for one in simulation.incarnations] == [False, False, False, True, False]
    assert endings(simulation) == [Ending.DRAINED] * 3 + [Ending.EXCLUDED, Ending.DRAINED]
    assert [one.records[-1][0] for one in simulation.incarnations] == [Event.STOP] * 3 + [Event.ENDED, Event.STOP]
    assert (again.member, again.incarnation, again.records[0][0]) == (3, 2, Event.START)
    ended_ns, submitted = excluded.records[-1][6], excluded.records[-1][8]
    assert AWAY[1].at_ns <= ended_ns - START_NS <= AWAY[1].at_ns + SECOND, "as soon as it hears of it"
    assert submitted == excluded.submitted < simulation.incarnations[0].submitted, "it asks for nothing more"
    assert again.submitted > 0
    promised = [Property(name) for name in PROTOCOLS[protocol].promises]
    findings = check_incarnations(simulation.records, members=range(4), kinds=promised)
    assert {kind: finding.verdict for kind, finding in findings.items()} == dict.fromkeys(promised, Verdict.PASS)


def test_the_faults_of_its_machine_go_on_for_the_next_incarnation() -> None:
    faults = planned(
        "{at: 400 ms, slow: {targets: p1/n4, cpu: 1 %}}",
        "{at: 400 ms, deaf: {targets: p1/n4, buffer: 2304 B}}",
        "{at: 400 ms, for: 4 s, clock: {targets: p1/n4, step: 50 ms}}",
        "{at: 500 ms, for: 3 s, pause: {targets: p1/n4}}",
    )
    again = run(*faults, protocol="reliable", patience_ns=SECOND, duration_ns=6 * SECOND).incarnations[4]
    assert (again.member, again.incarnation) == (3, 2)
    wrong = {row[6] - START_NS < 4400 * MILLISECOND: row[7] - row[6] for row in again.records}
    assert wrong == {True: 50 * MILLISECOND, False: 0}
    times = sorted({row[6] for row in again.records if row[0] == Event.DELIVER and row[2] != again.member})
    assert min(b - a for a, b in pairwise(times)) >= round(INPUT_NS / 0.01)
    assert again.overrun > 0
    assert again.was_paused, "its lag is no sign that this machine is too slow"


def test_one_that_is_excluded_while_it_drains_drains_as_the_next_incarnation() -> None:
    away = planned("{at: 500 ms, for: 1500 ms, pause: {targets: p1/n4}}")
    simulation = run(*away, protocol="reliable", patience_ns=SECOND, duration_ns=2 * SECOND)
    *_, excluded, again = simulation.incarnations
    assert [excluded.ending, again.ending] == [Ending.EXCLUDED, Ending.DRAINED]
    told = [row[0] for row in again.records if row[0] in (Event.START, Event.DRAIN, Event.STOP)]
    assert told == [Event.START, Event.DRAIN, Event.STOP]
