"""Total order by Lamport's timestamps: paper 001 sentence by sentence, and the cases that it leaves open. The end of a
view: tests/node/group/test_close_numbered.py; what both orders by numbers have in common: test_numbered.py.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from random import Random

import pytest

from node.clocks import MAX_TIMESTAMP, PhysicalClock
from node.effects import Deliver, Multicast, Report
from node.group.core import GroupCore
from node.host.node_clock import NodeClock
from node.protocols.base import Phase
from node.protocols.lamport import LamportCore, LamportReport
from node.trace import Notice
from node.wire import Flag, Kind
from tests.node.by_hand import give, kinds_and_numbers, ordered, submit
from tests.node.cluster import MILLISECOND, Cluster, Network, check_ordered, stack
from tests.node.numbered import LAMPORT
from tests.node.protocols.drifting import behind_clocks, drifting

CLOCKS = ("logical", "physical", "synchronised")
core, data, null = LAMPORT.core, LAMPORT.data, LAMPORT.null


# Core alone.


def test_a_message_carries_the_time_at_which_it_is_sent() -> None:
    one = core()
    message = replace(data(0, 1, b"x"), flags=Flag.DUMMY)
    assert submit(one, b"x", flags=Flag.DUMMY) == [Multicast(message=message)]
    assert kinds_and_numbers(submit(one)) == [(Kind.LAMPORT_DATA, 2)]


def test_the_receiver_advances_its_clock_past_the_timestamp() -> None:
    one = core()
    give(one, data(1, 40))
    assert one.timestamp == 41
    assert kinds_and_numbers(submit(one)) == [(Kind.LAMPORT_DATA, 42)]


def test_a_command_is_executed_when_all_up_to_its_timestamp_has_been_learned_from_everybody() -> None:
    one = core(0)
    assert ordered(give(one, data(1, 5, b"five"))) == []
    assert ordered(give(one, null(2, 4))) == [], "member 2 may still send something at 5 that precedes"
    effects = give(one, null(2, 5))
    assert ordered(effects) == [(5, 1)]
    assert Deliver(payload=b"five", origin=1, incarnation=1, seq=5) in effects


def test_commands_are_ordered_by_their_timestamps() -> None:
    one = core(0)
    assert ordered(give(one, data(1, 9), data(1, 12), data(2, 3), data(2, 11))) == [(3, 2), (9, 1), (11, 2)]
    assert one.buffered == 1
    assert ordered(give(one, null(2, 20))) == [(12, 1)]


def test_equal_timestamps_are_ordered_by_an_arbitrary_order_of_the_processes() -> None:
    one = core(1)
    assert kinds_and_numbers(submit(one)) == [(Kind.LAMPORT_DATA, 1)]
    assert ordered(give(one, data(2, 1), data(0, 1))) == [(1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_note_3_a_more_equitable_order_is_a_function_of_the_clock(count: int) -> None:
    """ "If C_i<a> = C_j<b> and j < i, then a => b if j < C_i<a> mod N <= i, and b => a otherwise." The member that
    delivers here is the last of N = count + 1."""
    for (j, i), time in product(combinations(range(count), 2), range(1, 3 * count)):
        watcher = core(count, members=range(count + 1), tie="fair")
        rest = [null(member, time) for member in range(count) if member not in (i, j)]
        order = [origin for _, origin in ordered(give(watcher, *rest, data(j, time), data(i, time)))]
        assert order == ([i, j] if j < time % (count + 1) <= i else [j, i])


def test_an_application_that_was_told_a_timestamp_hands_it_along() -> None:
    assert kinds_and_numbers(submit(core(), not_before=70)) == [(Kind.LAMPORT_DATA, 71)]


# Refusals.


def test_a_clock_at_its_end_stops_the_order_safely() -> None:
    one = core(0, null_after_ns=0)
    effects = give(one, data(1, MAX_TIMESTAMP))
    assert Report(code=LamportReport.EXHAUSTED, member=0, value=MAX_TIMESTAMP + 1) in effects
    assert (one.phase, one.can_submit, kinds_and_numbers(effects)) == (Phase.EXHAUSTED, False, [])


def test_the_last_timestamps_work() -> None:
    one = core(0, null_after_ns=0)
    submit(one, not_before=MAX_TIMESTAMP - 1)
    assert not one.can_submit
    assert ordered(give(one, null(1, MAX_TIMESTAMP), null(2, MAX_TIMESTAMP))) == [(MAX_TIMESTAMP, 0)]


def test_the_clock_is_reported_on_demand() -> None:
    one = core(0, report_clock=True, null_after_ns=0)
    said = [effect.value for effect in give(one, data(1, 5)) if isinstance(effect, Report)]
    assert said == [6, 7], "the receipt, and the null"
    assert Report(code=Notice.TIMESTAMP, member=1, value=8) in submit(one)


# Over the reliable layer.


# Anomalous behaviour, and its remedies.

CALL_NS = 20 * MILLISECOND
"""Time of a telephone call: no message of the system is as slow, unless its path is cut."""
AHEAD_NS = 50 * MILLISECOND
DRIFT_PPM = 100.0
CALLER, FRIEND = 2, 1


def computers(clock: str) -> Cluster:
    """Three computers; the caller's clock is ahead by more than a call and too fast. They have exchanged messages, then
    come to rest."""

    def clock_of(member: int, _: Random) -> NodeClock:
        if member == CALLER:
            return NodeClock(origin_ns=0, offset_ns=AHEAD_NS, drift_ppm=DRIFT_PPM)
        return NodeClock(origin_ns=0, drift_ppm=-DRIFT_PPM)

    build = behind_clocks(stack("lamport", clock=clock, mu_ns=1 * MILLISECOND), clock_of)
    cluster = Cluster(3, build, network=Network(delay_ns=1 * MILLISECOND, jitter_ns=200_000))
    for number, member in product(range(20), range(3)):
        cluster.submit_later(member, number * 5 * MILLISECOND)
    cluster.run(for_ns=400 * MILLISECOND)
    return cluster


def order_after_a_call(cluster: Cluster, *, hands_along: bool = False) -> str:
    """A person issues request A on a computer, and telephones a friend who issues request B on another. The message
    of A takes longer than the call, and so do all messages that it causes.
    """
    cluster.cut_path(CALLER, FRIEND)
    cluster.cut_path(0, FRIEND)
    cluster.submit(CALLER)
    told = lamport_of(cluster, CALLER).timestamp
    cluster.run(for_ns=CALL_NS)
    cluster.submit_after(FRIEND, told if hands_along else 0)
    cluster.run(for_ns=5 * MILLISECOND)
    cluster.heal()
    check_ordered(cluster, [0, 1, 2])
    *_, (first, _, _), _ = cluster.hosts[0].delivered
    return "A before B" if first == CALLER else "B before A"


def lamport_of(cluster: Cluster, member: int) -> LamportCore:
    group = drifting(cluster, member).core
    assert isinstance(group, GroupCore)
    assert group.here is not None
    assert isinstance(group.here.stack.core, LamportCore)
    return group.here.stack.core


def reading_ns(cluster: Cluster, member: int) -> int:
    clock = lamport_of(cluster, member).clock
    assert isinstance(clock, PhysicalClock)
    return clock.read(drifting(cluster, member).clock.read_ns(cluster.now_ns))


@pytest.mark.parametrize("clock", ["logical", "physical"])
def test_anomalous_behaviour_request_b_can_be_ordered_before_request_a(clock: str) -> None:
    assert order_after_a_call(computers(clock)) == "B before A"


@pytest.mark.parametrize("clock", CLOCKS)
def test_first_remedy_the_friend_specifies_that_b_be_given_a_later_timestamp(clock: str) -> None:
    assert order_after_a_call(computers(clock), hands_along=True) == "A before B"


def test_second_remedy_clocks_within_the_strong_clock_condition() -> None:
    """epsilon/(1 - kappa) <= mu, mu being the least time of the call."""
    cluster = computers("synchronised")
    readings = [reading_ns(cluster, member) for member in range(3)]
    epsilon_ns = max(readings) - min(readings)
    assert 0 < epsilon_ns / (1 - DRIFT_PPM * 1e-6) <= CALL_NS < AHEAD_NS
    assert order_after_a_call(cluster) == "A before B"
