"""Costs of views in time and datagrams, in virtual time on links without delay and loss."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from analysis.checks.properties import Incarnation
from collector.records import Event
from node.wire import Kind
from tests.node.cluster import MILLISECOND
from tests.node.group.scripted import Scripted, ledger

DELAY_NS = 2 * MILLISECOND
ROUND_TRIP_NS = 2 * DELAY_NS
LIMIT_NS = 400 * MILLISECOND
TIMES: dict[str, int | bool] = {
    "suspect_after_ns": LIMIT_NS,
    "heartbeat_ns": LIMIT_NS // 16,
    "retry_first_ns": 40 * MILLISECOND,
    "retry_most_ns": LIMIT_NS,
}
EVERY_NS = 20 * MILLISECOND
"""Interval between two submissions of one member under load."""


class Timed(Scripted):
    def __init__(self, count: int, **options: Any) -> None:
        super().__init__(count, delay_ns=DELAY_NS, parameters=TIMES, **options)

    def installed_ns(self) -> list[int]:
        """The times at which members have installed view 2."""
        records = (record for records in self.history().values() for record in records)
        return [one.at_ns for one in records if one.event == Event.VIEW and one.message.number == 2 and not one.extra]

    def stall_ns(self, member: int) -> int:
        """The longest time without a delivery."""
        times = [one.at_ns for one in self.history()[Incarnation(member, 1)] if one.event == Event.DELIVER]
        return max(later - earlier for earlier, later in pairwise(times))

    def load(self, for_ns: int) -> None:
        for member in self.members:
            for at_ns in range(self.now_ns + member * MILLISECOND, self.now_ns + for_ns, EVERY_NS):
                self.submit_later(member, at_ns)


@pytest.mark.parametrize(
    ("order", "victim"), [("reliable", 0), ("reliable", 3), ("reliable", 7), ("lamport", 0), ("sequencer", 0)]
)
def test_under_load_a_crash_stops_a_group_of_eight_for_its_patience_and_five_round_trips(
    order: str, victim: int
) -> None:
    group = Timed(8, order=order)
    group.load(3 * LIMIT_NS)
    group.run(LIMIT_NS + 7 * MILLISECOND)
    crashed_ns = group.now_ns
    group.crash(victim)
    group.run(2 * LIMIT_NS)
    assert len(group.installed_ns()) == 7
    most_ns = LIMIT_NS + 5 * ROUND_TRIP_NS
    assert max(group.installed_ns()) - crashed_ns <= most_ns
    assert max(group.stall_ns(member) for member in group.members if member != victim) <= most_ns
    group.run(LIMIT_NS)
    group.check()


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_join_takes_five_round_trips(is_loaded: bool) -> None:
    group = Timed(8, founders=range(7), make=ledger(1000))
    if is_loaded:
        group.load(LIMIT_NS)
    group.run(LIMIT_NS // 2)
    asked_ns = group.now_ns
    group.restart(7)
    group.until(lambda: group.has_state(7))
    assert group.now_ns - asked_ns <= 5 * ROUND_TRIP_NS
    group.run(5 * MILLISECOND)
    assert len(group.installed_ns()) == 8
    assert max(group.installed_ns()) - asked_ns <= 5 * ROUND_TRIP_NS


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("leaver", [0, 5])
def test_a_leave_takes_five_round_trips(is_loaded: bool, leaver: int) -> None:
    group = Timed(8)
    if is_loaded:
        group.load(LIMIT_NS)
    group.run(LIMIT_NS // 2)
    asked_ns = group.now_ns
    group.leave(leaver)
    group.until(lambda: group.hosts[leaver].core.has_ended)
    assert max(group.installed_ns()) - asked_ns <= 5 * ROUND_TRIP_NS
    assert group.now_ns - asked_ns <= 5 * ROUND_TRIP_NS + LIMIT_NS // 4, "then it is free to go"
    assert len(group.installed_ns()) == 7


def test_a_group_of_thirty_at_rest_sends_thirty_datagrams_in_a_period() -> None:
    group = Timed(30)
    group.submit(3, 5)
    group.run(3 * LIMIT_NS)
    period_ns, periods = LIMIT_NS // 4, 20
    before = group.datagrams
    sent = len(group.sent)
    group.run(periods * period_ns)
    assert group.datagrams - before <= 30 * periods
    assert {message.kind for _, message in group.sent[sent:]} == {Kind.GROUP_STATUS}


@pytest.mark.parametrize("phase", range(4))
def test_without_loss_one_member_tells_the_decision_though_late_words_of_the_old_view_cross_it(phase: int) -> None:
    group = Timed(30, founders=range(29))
    group.run(LIMIT_NS // 4 + phase * MILLISECOND)
    sent = len(group.sent)
    group.restart(29)
    group.until(lambda: group.has_state(29))
    group.run(LIMIT_NS)
    kinds = [message.kind for _, message in group.sent[sent:]]
    assert len(group.installed_ns()) == 30
    assert kinds.count(Kind.GROUP_DECIDED) == 1
    assert len(kinds) <= 10 * 30


@pytest.mark.parametrize("count", [2, 3, 8, 30])
@pytest.mark.parametrize("which", ["first", "last"])
def test_a_group_at_rest_finds_a_crash_within_twice_its_patience(count: int, which: str) -> None:
    group = Timed(count)
    group.run(2 * LIMIT_NS + 77 * MILLISECOND)
    victim = 0 if which == "first" else count - 1
    crashed_ns = group.now_ns
    group.crash(victim)
    group.run(2 * LIMIT_NS)
    if count == 2 and victim == 0:
        assert group.is_minority(1)
    else:
        assert len(group.installed_ns()) == count - 1
        assert max(group.installed_ns()) - crashed_ns <= 2 * LIMIT_NS
