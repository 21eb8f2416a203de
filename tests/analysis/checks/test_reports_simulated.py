"""Protocols with reports, simulated under loss: the checks find no violation in them, and violations in clocks that
ignore received timestamps.
"""

from __future__ import annotations

import pytest

from analysis.checks import linear
from analysis.checks.properties import Finding, Incarnations, Property, Verdict
from analysis.checks.stages import breaches
from node.clocks import LamportClock
from testbed.sim.simulation import simulate
from tests.testbed.sim.made import MILLISECOND, SECOND, experiment, periodic, topology
from topologies.model import Impairment

MUTEX = (Property.INTEGRITY, Property.MUTUAL_EXCLUSION, Property.GRANT_ORDER, Property.SERVICE)


def simulated(protocol: str, seed: int, **parameters: object) -> Incarnations:
    """Three members behind jitter and 10 % loss."""
    impairment = Impairment(delay_ns=2 * MILLISECOND, jitter_ns=MILLISECOND, loss_ratio=0.1)
    made = experiment(
        topology(3, to_node=impairment),
        protocol=protocol,
        parameters=parameters,
        workload=periodic(40.0),
        duration_ns=SECOND // 2,
        drain_ns=30 * SECOND,
        seed=seed,
    )
    return simulate(made, group=7).records


def judged(protocol: str, seed: int, kinds: tuple[Property, ...], **parameters: object) -> dict[Property, Finding]:
    return linear.check_incarnations(simulated(protocol, seed, **parameters), members=range(3), kinds=kinds)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("acknowledge", ["always", "when_needed"])
def test_mutual_exclusion_keeps_its_promises_while_messages_get_lost(seed: int, acknowledge: str) -> None:
    findings = judged("mutex", seed, MUTEX, hold_ns=MILLISECOND, acknowledge=acknowledge)

    assert {kind: finding.verdict for kind, finding in findings.items()} == dict.fromkeys(MUTEX, Verdict.PASS)
    assert findings[Property.GRANT_ORDER].checked == 60


@pytest.mark.parametrize("seed", range(3))
def test_logical_clocks_keep_the_clock_condition(seed: int) -> None:
    finding = judged("lamport", seed, (Property.CLOCK_CONDITION,), report_clock=True)[Property.CLOCK_CONDITION]

    assert (finding.verdict, finding.violations) == (Verdict.PASS, 0)
    assert finding.checked > 100


def test_clocks_that_do_not_listen_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without IR2 (b) timestamps are still a total order, but one that is not consistent with happened-before."""
    monkeypatch.setattr(LamportClock, "receive", lambda self, *_: self.value)

    condition = judged("lamport", 1, (Property.CLOCK_CONDITION,), report_clock=True)[Property.CLOCK_CONDITION]
    order = judged("mutex", 1, MUTEX, hold_ns=MILLISECOND)[Property.GRANT_ORDER]

    assert condition.verdict is Verdict.FAIL
    assert order.violations > 0


def test_only_strict_acceptance_keeps_the_order_of_what_entities_accept() -> None:
    names = {member: f"n{member + 1}" for member in range(3)}
    found = {
        acceptance: [
            breach.stage
            for seed in range(4)
            for breach in breaches(simulated("co", seed, acceptance=acceptance, trace_stages=True), names)
        ]
        for acceptance in ("literal", "strict")
    }

    assert found["strict"] == []
    assert found["literal"], "in some of the four runs"
    assert set(found["literal"]) == {""}
