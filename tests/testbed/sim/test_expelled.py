"""A member that is frozen for longer than the group's patience: it counts as crashed, and the run comes to rest."""

from __future__ import annotations

import pytest

from analysis.checks.linear import check_incarnations
from analysis.checks.properties import Incarnation, Property, Raw, Verdict
from node.registry import PROTOCOLS
from node.trace import Event
from testbed.sim.simulation import START_NS, Ending, Simulation, simulate
from testbed.spec.faults import Pause, Resume
from tests.testbed.sim.made import MILLISECOND, SECOND, experiment, periodic, topology
from topologies.model import Impairment, NodeName

LAST = NodeName("p1/n4")
NETWORK = topology(4, to_node=Impairment(delay_ns=5 * MILLISECOND, jitter_ns=2 * MILLISECOND))
AWAY = (
    Pause(id=0, at_ns=500 * MILLISECOND, targets=(LAST,), until_id=1),
    Resume(id=1, at_ns=3500 * MILLISECOND, targets=(LAST,)),
)


def run(protocol: str, *, seed: int = 1) -> Simulation:
    patience = {"suspect_after_ns": SECOND}
    made = experiment(
        NETWORK,
        protocol=protocol,
        parameters=patience if protocol == "reliable" else {"reliable": patience},
        workload=periodic(40),
        duration_ns=5 * SECOND,
        seed=seed,
        faults=AWAY,
    )
    return simulate(made, group=7)


def records_of(simulation: Simulation) -> dict[Incarnation, list[Raw]]:
    return {
        Incarnation(incarnation.member, incarnation.incarnation): incarnation.records
        for incarnation in simulation.incarnations
    }


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("protocol", ["reliable", "sequencer", "cbcast", "lamport"])
def test_a_member_that_was_away_for_too_long_is_excluded_and_its_process_goes_on_as_the_next_incarnation(
    protocol: str, seed: int
) -> None:
    simulation = run(protocol, seed=seed)
    excluded, again = simulation.incarnations[3:]

    assert simulation.phases.drained_ns is not None
    assert [incarnation.has_ended for incarnation in simulation.incarnations] == [False, False, False, True, False]
    assert [incarnation.ending for incarnation in simulation.incarnations] == [Ending.DRAINED] * 3 + [
        Ending.EXCLUDED,
        Ending.DRAINED,
    ]
    assert [incarnation.records[-1][0] for incarnation in simulation.incarnations] == [Event.STOP] * 3 + [
        Event.ENDED,
        Event.STOP,
    ]
    assert (again.member, again.incarnation, again.records[0][0]) == (3, 2, Event.START)
    ended_ns, submitted = excluded.records[-1][6], excluded.records[-1][8]
    assert AWAY[1].at_ns <= ended_ns - START_NS <= AWAY[1].at_ns + SECOND, "as soon as it hears of it"
    assert submitted == excluded.submitted < simulation.incarnations[0].submitted, "it asks for nothing more"
    assert again.submitted > 0
    promised = [Property(name) for name in PROTOCOLS[protocol].promises]
    findings = check_incarnations(records_of(simulation), members=range(4), kinds=promised)
    assert {kind: finding.verdict for kind, finding in findings.items()} == dict.fromkeys(promised, Verdict.PASS)


def test_one_that_is_excluded_while_it_drains_drains_as_the_next_incarnation() -> None:
    away = (
        Pause(id=0, at_ns=500 * MILLISECOND, targets=(LAST,), until_id=1),
        Resume(id=1, at_ns=2000 * MILLISECOND, targets=(LAST,)),
    )
    patience = {"suspect_after_ns": SECOND}
    made = experiment(
        NETWORK,
        protocol="reliable",
        parameters=patience,
        workload=periodic(40),
        duration_ns=2000 * MILLISECOND,
        faults=away,
    )
    *_, excluded, again = simulate(made, group=7).incarnations
    assert [excluded.ending, again.ending] == [Ending.EXCLUDED, Ending.DRAINED]
    told = [row[0] for row in again.records if row[0] in (Event.START, Event.DRAIN, Event.STOP)]
    assert told == [Event.START, Event.DRAIN, Event.STOP]
