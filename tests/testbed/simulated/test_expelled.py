"""A member that is frozen for longer than the group's patience: it counts as crashed, and the run comes to rest."""

from __future__ import annotations

import pytest

from analysis.linear import check_lives
from analysis.properties import Incarnation, Property, Raw
from analysis.verdict import Verdict
from node.protocols import PROTOCOLS
from node.trace import Event
from testbed.simulated.simulation import START_NS, Ending, Simulation, simulate
from testbed.spec_faults import Crash, Pause, Restart, Resume
from tests.testbed.simulated.made import MILLISECOND, SECOND, experiment, periodic, topology
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
    return {Incarnation(life.member, life.incarnation): life.records for life in simulation.lives}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("protocol", ["reliable", "sequencer", "cbcast", "lamport"])
def test_who_was_away_for_too_long_counts_as_crashed_and_the_run_drains(protocol: str, seed: int) -> None:
    simulation = run(protocol, seed=seed)
    lost = simulation.lives[3]

    assert simulation.phases.drained_ns is not None
    assert [life.is_over for life in simulation.lives] == [False, False, False, True]
    assert [life.ending for life in simulation.lives] == [Ending.DRAINED] * 4
    assert [life.records[-1][0] for life in simulation.lives] == [Event.STOP] * 3 + [Event.OVER]
    over_ns, submitted = lost.records[-1][6], lost.records[-1][8]
    assert AWAY[1].at_ns <= over_ns - START_NS <= AWAY[1].at_ns + SECOND, "as soon as it hears of it"
    assert submitted == lost.submitted < simulation.lives[0].submitted, "it asks for nothing more"
    promised = [Property(name) for name in PROTOCOLS[protocol].promises]
    findings = check_lives(records_of(simulation), members=range(4), kinds=promised)
    assert {kind: finding.verdict for kind, finding in findings.items()} == dict.fromkeys(promised, Verdict.PASS)


def test_if_it_had_stopped_like_the_others_it_would_owe_what_they_have() -> None:
    simulation = run("reliable")
    records = records_of(simulation)
    *before, over = records[Incarnation(3, 1)]
    records[Incarnation(3, 1)] = [*before, (Event.STOP, 1, *over[2:])]

    assert check_lives(records, members=range(4))[Property.AGREEMENT].verdict is Verdict.FAIL


def test_a_later_life_that_takes_no_part_is_over_at_once() -> None:
    faults = (Crash(id=0, at_ns=100 * MILLISECOND, targets=(LAST,)), Restart(id=1, at_ns=SECOND, targets=(LAST,)))
    made = experiment(NETWORK, protocol="co", workload=periodic(20), duration_ns=2 * SECOND, faults=faults)
    *_, old, new = sorted(simulate(made, group=7).lives, key=lambda life: (life.member, life.incarnation))

    assert (old.is_over, old.ending) == (False, Ending.CRASHED)
    assert (new.is_over, new.ending, new.submitted) == (True, Ending.DRAINED, 0)
    assert [row[0] for row in new.records] == [Event.START, Event.REPORT, Event.OVER]
