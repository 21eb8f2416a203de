"""Total order by Lamport's timestamps: paper 001 sentence by sentence, and the cases that it leaves open. The end of a
view: tests/node/group/test_close_numbered.py; what both orders by numbers have in common: test_numbered.py.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from random import Random

import pytest

from node.clocks import MAX_TIMESTAMP, PhysicalClock
from node.core import Core, Membership, Submission
from node.effects import Deliver, Multicast, Report
from node.errors import LocalError
from node.group.core import GroupCore
from node.host.node_clock import NodeClock
from node.protocols.base import Phase
from node.protocols.lamport import LamportCore, LamportParameters, LamportReport
from node.trace import Notice
from node.wire import Flag, Kind, Message, decode_message
from tests.node.by_hand import give, kinds_and_numbers, ordered
from tests.node.cluster import (
    MILLISECOND,
    SECOND,
    Cluster,
    Network,
    check_ordered,
)
from tests.node.numbered import LAMPORT
from tests.node.protocols.drifting import Drifting

CLOCKS = ("logical", "physical", "synchronised")
core, data, null, build = LAMPORT.core, LAMPORT.data, LAMPORT.null, LAMPORT.build


# Core alone.


def test_a_message_carries_the_time_at_which_it_is_sent() -> None:
    one = core()
    first = one.on_submit(Submission(payload=b"x", flags=Flag.DUMMY.value), 0)
    message = Message(
        kind=Kind.LAMPORT_DATA, origin=0, incarnation=1, seq=1, flags=Flag.DUMMY.value, words=(0,), payload=b"x"
    )
    assert first == [Multicast(message=message)]
    assert kinds_and_numbers(one.on_submit(Submission(payload=b"y"), 0)) == [(Kind.LAMPORT_DATA, 2)]


def test_the_receiver_advances_its_clock_past_the_timestamp() -> None:
    one = core()
    give(one, data(1, 40))
    assert one.timestamp == 41
    assert kinds_and_numbers(one.on_submit(Submission(payload=b""), 0)) == [(Kind.LAMPORT_DATA, 42)]


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
    assert kinds_and_numbers(one.on_submit(Submission(payload=b""), 0)) == [(Kind.LAMPORT_DATA, 1)]
    assert ordered(give(one, data(2, 1), data(0, 1))) == [(1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_note_3_a_more_equitable_order_is_a_function_of_the_clock(count: int) -> None:
    """ "If C_i<a> = C_j<b> and j < i, then a => b if j < C_i<a> mod N <= i, and b => a otherwise." """
    for i, j, time in product(range(count), range(count), range(1, 3 * count)):
        if j >= i:
            continue
        is_i_first = j < time % count <= i
        watcher = core(count, members=tuple(range(count + 1)), tie="fair")
        # The group has one more member, a watcher: N is count + 1 here, also in the formula.
        is_i_first = j < time % (count + 1) <= i
        rest = [null(member, time) for member in range(count) if member not in (i, j)]
        order = [origin for _, origin in ordered(give(watcher, *rest, data(j, time), data(i, time)))]
        assert order == ([i, j] if is_i_first else [j, i])


def test_the_fair_order_lets_each_member_go_first_in_turn() -> None:
    watcher = core(3, members=(0, 1, 2, 3), tie="fair")
    rounds = [ordered(give(watcher, *(data(member, time) for member in (0, 1, 2)))) for time in range(1, 9)]
    assert Counter(first[1] for first, *_ in rounds) == {0: 4, 1: 2, 2: 2}, (
        "the watcher's turn goes to the next, member 0"
    )


def test_an_application_that_was_told_a_timestamp_hands_it_along() -> None:
    one = core(0)
    assert kinds_and_numbers(one.on_submit(Submission(payload=b"", not_before=70), 0)) == [(Kind.LAMPORT_DATA, 71)]
    for impossible in (-1, MAX_TIMESTAMP):
        with pytest.raises(LocalError, match="no timestamp"):
            one.on_submit(Submission(payload=b"", not_before=impossible), 0)


# Nulls.


def test_note_5_a_member_that_has_sent_something_later_owes_nothing() -> None:
    one = core(0, null_after_ns=0)
    one.on_submit(Submission(payload=b"", not_before=10), 0)
    assert kinds_and_numbers(give(one, data(1, 5), data(2, 11))) == []
    assert kinds_and_numbers(give(one, data(1, 12))) == [(Kind.LAMPORT_NULL, 15)]


def test_a_message_of_ours_makes_the_null_needless() -> None:
    one = core(0)
    give(one, data(1, 5), null(2, 6))
    assert not one.is_idle, "the others wait for us, though we wait for nobody"
    effects = one.on_submit(Submission(payload=b""), 0)
    assert [type(effect).__name__ for effect in effects] == ["Multicast", "CancelTimer"]


# Refusals.


def test_a_clock_at_its_end_stops_the_order_safely() -> None:
    one = core(0, null_after_ns=0)
    effects = give(one, data(1, MAX_TIMESTAMP))
    assert Report(code=LamportReport.EXHAUSTED, member=0, value=MAX_TIMESTAMP + 1) in effects
    assert (one.phase, one.can_submit, kinds_and_numbers(effects)) == (Phase.EXHAUSTED, False, [])
    with pytest.raises(LocalError, match="can_submit"):
        one.on_submit(Submission(payload=b""), 0)


def test_the_last_timestamps_work() -> None:
    one = core(0, null_after_ns=0)
    one.on_submit(Submission(payload=b"", not_before=MAX_TIMESTAMP - 1), 0)
    assert not one.can_submit
    assert ordered(give(one, null(1, MAX_TIMESTAMP), null(2, MAX_TIMESTAMP))) == [(MAX_TIMESTAMP, 0)]


def test_a_call_that_cannot_be_is_a_local_error() -> None:
    for wrong in ({"tie": "x"}, {"clock": "x"}, {"mu_ns": -1}, {"null_after_ns": -1}):
        with pytest.raises(LocalError, match=next(iter(wrong))):
            LamportParameters(**wrong)


def test_the_clock_is_reported_on_demand() -> None:
    one = core(0, report_clock=True, null_after_ns=0)
    said = [effect.value for effect in give(one, data(1, 5)) if isinstance(effect, Report)]
    assert said == [6, 7], "the receipt, and the null"
    assert Report(code=Notice.TIMESTAMP, member=1, value=8) in one.on_submit(Submission(payload=b""), 0)


# Over the reliable layer.


@pytest.mark.parametrize(("clock", "tie"), list(product(CLOCKS, ("member", "fair"))))
def test_all_deliver_the_same_order_under_loss_with_wrong_clocks(clock: str, tie: str) -> None:
    make = build(clock=clock, tie=tie, mu_ns=MILLISECOND)

    def drifting(membership: Membership, seed: int) -> Core:
        rng = Random(f"{seed}/{membership.member}")
        wrong = NodeClock(origin_ns=0, offset_ns=rng.randint(-SECOND, SECOND), drift_ppm=rng.uniform(-10_000, 10_000))
        return Drifting(make(membership, seed), wrong)

    cluster = Cluster(5, drifting, network=Network(loss_ratio=0.1, jitter_ns=5 * MILLISECOND, duplicate_ratio=0.05))
    for number, member in product(range(30), range(5)):
        cluster.submit_later(member, number * 7 * MILLISECOND)
    check_ordered(cluster, [0, 1, 2, 3, 4])
    assert len(cluster.hosts[0].delivered) == 150
    check_clock_condition(cluster)


def check_clock_condition(cluster: Cluster) -> None:
    """C1 and C2 in the sent messages: each member's timestamps rise, and exceed those of its earlier deliveries."""
    last: dict[int, int] = {}
    for source, message in cluster.sent:
        if message.inner in (Kind.LAMPORT_DATA, Kind.LAMPORT_NULL) and not message.flags & Flag.RETRANSMISSION:
            timestamp = decode_message(message.payload).seq
            assert timestamp > last.get(source, 0), f"seed {cluster.seed}"
            last[source] = timestamp


# Anomalous behaviour, and its remedies.

CALL_NS = 20 * MILLISECOND
"""Time of a telephone call: no message of the system is as slow, unless its path is cut."""
AHEAD_NS = 50 * MILLISECOND
DRIFT_PPM = 100.0
CALLER, FRIEND = 2, 1


def computers(clock: str) -> Cluster:
    """Three computers; the caller's clock is ahead by more than a call and too fast. They have exchanged messages, then
    come to rest."""
    make = build(clock=clock, mu_ns=1 * MILLISECOND)

    def drifting(membership: Membership, seed: int) -> Core:
        is_caller = membership.member == CALLER
        wrong = NodeClock(
            origin_ns=0, offset_ns=AHEAD_NS if is_caller else 0, drift_ppm=DRIFT_PPM if is_caller else -DRIFT_PPM
        )
        return Drifting(make(membership, seed), wrong)

    cluster = Cluster(3, drifting, network=Network(delay_ns=1 * MILLISECOND, jitter_ns=200_000))
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
    if hands_along:
        cluster.submit_after(FRIEND, told)
    else:
        cluster.submit(FRIEND)
    cluster.run(for_ns=5 * MILLISECOND)
    cluster.heal()
    check_ordered(cluster, [0, 1, 2])
    *_, first, second = cluster.hosts[0].delivered
    names = {CALLER: "A", FRIEND: "B"}
    return f"{names[first[0]]} before {names[second[0]]}"


def lamport_of(cluster: Cluster, member: int) -> LamportCore:
    drifting = cluster.core(member)
    assert isinstance(drifting, Drifting)
    assert isinstance(drifting.core, GroupCore)
    here = drifting.core.here
    assert here is not None
    assert isinstance(here.stack.core, LamportCore)
    return here.stack.core


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


def reading_ns(cluster: Cluster, member: int) -> int:
    drifting = cluster.core(member)
    assert isinstance(drifting, Drifting)
    clock = lamport_of(cluster, member).clock
    assert isinstance(clock, PhysicalClock)
    return clock.read(drifting.clock.read_ns(cluster.now_ns))
