"""Crashes and pauses inside a fan-out: in drawn worlds one multicast reaches some members and others never."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

import pytest

from node.wire import Kind, Message
from testbed.fuzz.draw import draw
from testbed.fuzz.judge import judge
from testbed.fuzz.outages import fan_outs
from testbed.fuzz.scenario import Crash, Freeze, OneWayCut, Scenario, experiment_of
from testbed.sim.network import Datagram
from testbed.sim.simulation import START_NS, simulate
from testbed.spec.raw import Dissemination
from topologies.model import Node

SEEDS = range(60)


@dataclass
class Copies:
    """Tap that keeps, by sender and instant, the receivers of copies and those that were reached."""

    sent: dict[tuple[int, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    arrived: dict[tuple[int, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    messages: dict[tuple[int, int], Message] = field(default_factory=dict)

    def frame(self, port: Node, inbound: bool, at_ns: int, datagram: Datagram) -> None:
        if datagram.message is None or datagram.destination is None:
            return
        fan_out = (datagram.source.index, datagram.sent_ns - START_NS)
        self.messages[fan_out] = datagram.message
        (self.sent if inbound else self.arrived)[fan_out].add(datagram.destination.index)


def torn(scenario: Scenario) -> list[tuple[int, int]]:
    """(member, instant) of each fan-out whose sender falls at once while cuts block copies."""
    cuts = {(fault.source, fault.at_ns) for fault in scenario.faults if isinstance(fault, OneWayCut)}
    falls = [fault for fault in scenario.faults if isinstance(fault, Crash | Freeze)]
    return [(fall.member, fall.at_ns - 1) for fall in falls if (fall.member, fall.at_ns - 1) in cuts]


@pytest.mark.parametrize("protocol", ["reliable", "adaptive"])
def test_drawn_worlds_have_falls_inside_a_fan_out_and_they_strike(protocol: str) -> None:
    drawn = [draw(protocol, seed) for seed in SEEDS]
    aimed = [scenario for scenario in drawn if torn(scenario)]
    assert len(aimed) >= len(drawn) / 8, "they are drawn often"
    del aimed[6:]
    kinds: Counter[Kind] = Counter()
    partly = 0
    for scenario in aimed:
        tap = Copies()
        simulate(experiment_of(scenario), group=1, tap=tap, encodes=False)
        for fan_out in torn(scenario):
            everybody = set(range(len(scenario.members))) - {fan_out[0]}
            assert tap.sent[fan_out] == everybody, "the run is the one that it was taken from"
            kept_back = {
                fault.target
                for fault in scenario.faults
                if isinstance(fault, OneWayCut) and (fault.source, fault.at_ns) == fan_out
            }
            assert set() < kept_back < everybody
            partly += bool(tap.arrived[fan_out]) and not tap.arrived[fan_out] & kept_back
            kinds[tap.messages[fan_out].kind] += 1
    assert partly >= len(aimed) / 2
    assert len(kinds) >= 3


def test_only_unicast_dissemination_has_fan_outs() -> None:
    scenario = next(one for one in (draw("reliable", seed) for seed in SEEDS) if torn(one))
    assert scenario.dissemination is Dissemination.UNICAST
    assert fan_outs(scenario)
    assert not fan_outs(replace(scenario, dissemination=Dissemination.MULTICAST))


def test_a_fall_does_not_make_a_member_that_leaves_the_last_one() -> None:
    """In this world all others were away, which an experiment refuses."""
    assert not judge(draw("lo", 3000622)).failures
