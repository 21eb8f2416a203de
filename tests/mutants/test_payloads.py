"""Altered payloads are reported by the judge of simulated worlds and by the explorer. (The checkers of runs on wires
are tested with altered payloads in tests/analysis/histories.py.)
"""

from __future__ import annotations

import pytest

from analysis.checks.properties import Property
from node.core import Core, Membership
from node.effects import Effect
from node.registry import PROTOCOLS
from testbed.fuzz.draw import FUZZED
from testbed.fuzz.explore import OverIdealChannels, Scope, explore, over_ideal_channels
from testbed.fuzz.judge import judge
from testbed.fuzz.scenario import Member, Scenario, Segment
from tests.mutants.payloads import ALTERATIONS, Alteration, altering, handed_over, noise

MILLISECOND = 1_000_000


def scenario(protocol: str) -> Scenario:
    sender = Member(submissions_ns=(0, 5 * MILLISECOND))
    return Scenario(protocol=protocol, seed=1, segments=(Segment(members=(sender,) * 3),))


@pytest.mark.parametrize("alter", ALTERATIONS, ids=lambda alter: alter.__name__)
@pytest.mark.parametrize("protocol", sorted(set(FUZZED) - {"objects"}))
def test_altered_payloads_break_integrity_and_nothing_else(protocol: str, alter: Alteration) -> None:
    (failure,) = judge(scenario(protocol), build=altering(protocol, alter)).failures

    assert failure.kind == "integrity"
    assert failure.sentence.startswith("delivered as ")
    assert "submitted as" in failure.sentence
    assert "p1/n2 delivers it" in failure.sentence


class Noisy(OverIdealChannels):
    """Delivers noise."""

    def _run(self, effects: list[Effect], now_ns: int) -> list[Effect]:
        return [handed_over(effect, noise, [b""]) for effect in super()._run(effects, now_ns)]


def test_the_explorer_sees_altered_payloads() -> None:
    def build(membership: Membership) -> Core:
        core = over_ideal_channels(
            PROTOCOLS["sequencer"].build(membership=membership, parameters={}, seed=1), membership
        )
        if membership.member == 1:
            core.__class__ = Noisy
        return core

    found = explore(build, scope=Scope(submissions=(1, 1)), promises=[Property.INTEGRITY])
    assert found.violation is not None
    assert found.violation.kind == "integrity"
