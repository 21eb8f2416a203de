"""Bugs on record as edits of the simulator, of its hosts and of the checks. Each docstring describes the edit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from analysis.checks import linear
from analysis.checks.linear import JudgedRun
from analysis.checks.properties import Property, Raw, Tally
from node.effects import Effect
from node.group.member import ViewMember
from node.host.host import Host
from testbed.fuzz import judge as fuzz_judge
from testbed.fuzz.scenario import Scenario
from testbed.sim.member import Member
from testbed.sim.network import Datagram
from testbed.spec.values import Experiment
from tests.mutants.edits import Shipped, replaces
from tests.mutants.edits_orders import number_for_the_last_request
from tests.mutants.known import CLOCK_AHEAD, deaf_to, known, leave, pause, world


@known(7, "opinions total_order", world("sequencer", (10, 20), (12, 22), (14,), seed=100))
def numbers_must_ascend(patch: pytest.MonkeyPatch) -> None:
    """The check of total order also requires that all members deliver by ascending origin and number."""
    total_order = linear._CHECKS[Property.TOTAL_ORDER]

    def monotone(run: JudgedRun) -> Tally:
        tally = total_order(run)
        pairs = [pair for incarnation in run.incarnations for pair in pairwise(incarnation.firsts)]
        return tally._replace(violations=tally.violations + sum(before[1] > after[1] for before, after in pairs))

    patch.setitem(linear._CHECKS, Property.TOTAL_ORDER, monotone)


@known(54, "causal opinions", world("sequencer", (10,), (12, 12, 12), (14,), seed=100))
def content_without_order(patch: pytest.MonkeyPatch) -> None:
    """A sequencer with misplaced numbers, and a check of FIFO order that only looks for missing messages."""
    number_for_the_last_request(patch)
    patch.setitem(linear._CHECKS, Property.FIFO, lambda run: Tally(run.deliveries, 0))


@known(39, "exception", world("reliable", (10, 20, 600), (12, 22), (14,), (15,), faults=(leave(3, 400),)))
def stability_must_grow(patch: pytest.MonkeyPatch) -> None:
    """An assertion that the number of a member's messages acknowledged by all never decreases."""
    on_beat = ViewMember.on_beat
    before: dict[tuple[int, int], dict[int, int]] = {}

    def asserting(member: ViewMember, now_ns: int, out: list[Effect]) -> None:
        known = before.setdefault((member._us.member, member._us.incarnation), {})
        for origin, number in member.stack.streams.acknowledged().items():
            assert number >= known.get(origin, 0), f"member {origin} had {known[origin]} stable messages"
            known[origin] = number
        on_beat(member, now_ns, out)

    patch.setattr(ViewMember, "on_beat", asserting)


@known(45, "opinions validity", world("sequencer", (10, 20), (12, 22), (14,), seed=100))
@replaces(linear, "_incarnation_of_records")
def lost_records_are_not_noticed(shipped: Shipped, name: tuple[int, int], records: Sequence[Raw]) -> Any:
    """A record in the middle of each incarnation is lost, and the check takes the others for all records."""
    rows = list(records)
    deliveries = [place for place, row in enumerate(rows) if row[0] == linear._DELIVER]
    if len(deliveries) > 2:
        del rows[deliveries[len(deliveries) // 2]]
    return shipped(name, rows)


@known(50, "unmet", world("reliable", (10, 20, 30), (12, 22), (14, 40, 200), faults=(deaf_to(1, 0, 19, 5),)))
@replaces(fuzz_judge, "experiment_of")
def faults_after_the_end(shipped: Shipped, scenario: Scenario) -> Experiment:
    """Each fault of the plan is delayed by the duration of the load, to the time after it."""
    experiment: Experiment = shipped(scenario)
    later = (replace(fault, at_ns=fault.at_ns + experiment.duration_ns) for fault in experiment.faults)
    return replace(experiment, faults=tuple(later))


@known(51, "integrity", CLOCK_AHEAD)
@replaces(Host, "__init__")
def records_by_the_nodes_clock(shipped: Shipped, host: Host, *given: Any, **named: Any) -> None:
    """A host stamps its records by the clock of its node, which differs from the others'."""
    shipped(host, *given, **named)
    record = host._record
    host._record = lambda row: record((*row[:6], row[7], *row[7:]))


@known(53, "integrity", world("reliable", (10, 20, 30), (12, 22), (14, 40, 200), faults=(pause(1, 25, 100),)))
def held_datagrams_turn_time_back(patch: pytest.MonkeyPatch) -> None:
    """Datagrams held for a frozen process are handled with the clock set back to the beginning of the freeze."""
    handle, pause = Member._handle, Member.pause
    frozen_ns: dict[int, int] = {}

    def pausing(member: Member) -> None:
        frozen_ns[id(member)] = member._engine.now_ns
        pause(member)

    def at_its_time(member: Member, datagram: Datagram) -> None:
        member._engine.now_ns = frozen_ns.get(id(member), member._engine.now_ns)
        handle(member, datagram)

    patch.setattr(Member, "pause", pausing)
    patch.setattr(Member, "_handle", at_its_time)
