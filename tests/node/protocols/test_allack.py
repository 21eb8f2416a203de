"""Total order by rounds: All-Ack as in paper 002, and the cases that it leaves open. The end of a view:
tests/node/group/test_close_allack.py.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from random import Random
from typing import Any

import pytest

from node.core import Core, Membership, Submission
from node.effects import Effect, Multicast, Report, SetTimer, Timer
from node.errors import DropReason, LocalError
from node.protocols.allack import MAX_ROUND, AllAckCore, AllAckParameters, AllAckReport
from node.protocols.base import Phase
from node.protocols.prefix import Prefix
from node.registry import PROTOCOLS
from node.wire import Flag, Kind, Message, decode_message
from tests.node.by_hand import give, kinds_and_numbers, multicasts, ordered
from tests.node.cluster import (
    MILLISECOND,
    SECOND,
    Cluster,
    Network,
    check_ordered,
    kinds_above,
)

MEMBERS = (0, 1, 2)
NULL_AFTER_NS = (0, 2 * MILLISECOND, 30 * MILLISECOND)


# Core alone.


def core(member: int = 0, *, members: tuple[int, ...] = MEMBERS, **parameters: Any) -> AllAckCore:
    made = AllAckCore(
        membership=Membership(member=member, members=members),
        parameters=AllAckParameters(**parameters),
        rng=Random(1),
    )
    made.on_start(0)
    return made


def data(origin: int, round_: int) -> Message:
    return Message(kind=Kind.ALLACK_DATA, origin=origin, incarnation=1, seq=round_, words=(0,))


def null(origin: int, round_: int) -> Message:
    return Message(kind=Kind.ALLACK_NULL, origin=origin, incarnation=1, seq=round_, flags=Flag.DUMMY.value)


def submit(one: AllAckCore, times: int = 1) -> list[Effect]:
    return [effect for _ in range(times) for effect in one.on_submit(Submission(payload=b""), 0)]


def timers(effects: list[Effect]) -> list[SetTimer]:
    return [effect for effect in effects if isinstance(effect, SetTimer)]


def test_a_members_kth_message_belongs_to_its_round_k() -> None:
    one = core()
    message = Message(
        kind=Kind.ALLACK_DATA, origin=0, incarnation=1, seq=1, flags=Flag.DUMMY.value, words=(0,), payload=b"x"
    )
    assert one.on_submit(Submission(payload=b"x", flags=Flag.DUMMY.value), 0) == [Multicast(message=message)]
    assert kinds_and_numbers(submit(one)) == [(Kind.ALLACK_DATA, 2)]


def test_a_member_waits_until_it_has_a_message_of_each_other_member() -> None:
    one = core(0)
    submit(one)
    assert ordered(give(one, data(2, 1))) == []
    assert ordered(give(one, data(1, 1))) == [(1, 0), (1, 1), (1, 2)], "in an order of members decided beforehand"


def test_it_delivers_one_message_of_each_at_a_time() -> None:
    one = core(0)
    give(one, data(1, 1), data(1, 2), data(1, 3), data(2, 1), data(2, 2))
    assert ordered(submit(one)) == [(1, 0), (1, 1), (1, 2)]
    assert ordered(submit(one)) == [(2, 0), (2, 1), (2, 2)]
    assert one.buffered == 1


def test_our_own_message_of_the_round_must_be_sent_too() -> None:
    """Otherwise it could be sent after the delivery of a message behind it: this rule makes the order causal."""
    one = core(0)
    assert ordered(give(one, data(1, 1), data(2, 1))) == []
    assert ordered(submit(one)) == [(1, 0), (1, 1), (1, 2)]


def test_a_round_number_that_jumps_says_that_the_rounds_between_are_empty() -> None:
    one = core(0)
    submit(one, 5)
    assert ordered(give(one, data(1, 4))) == []
    assert ordered(give(one, data(2, 3))) == [(1, 0), (2, 0), (3, 0), (3, 2)]
    assert ordered(give(one, null(2, 9))) == [(4, 0), (4, 1)]


def test_an_own_message_is_not_overtaken_while_the_layer_below_holds_it() -> None:
    """It has its round from its submission on."""
    one = core(0)
    submit(one)
    assert ordered(give(one, null(1, 1), null(2, 1))) == [(1, 0)]
    assert give(one, data(0, 1)) == [], "it has come back"


def test_a_sender_waits_with_as_many_undelivered_as_it_may_have() -> None:
    one = core(0, outstanding=2)
    submit(one, 2)
    with pytest.raises(LocalError, match="can_submit"):
        submit(one)
    give(one, null(1, 5), null(2, 1))
    assert one.can_submit


def test_a_member_that_is_alone_in_its_view_delivers_at_once() -> None:
    one = core(1, members=(1,))
    assert ordered(submit(one)) == [(1, 1)]
    assert one.is_idle


def test_a_message_carries_the_number_and_a_digest_of_what_its_sender_had_delivered() -> None:
    one = core(0)
    prefix = Prefix()
    submit(one)
    for round_, origin in ordered(give(one, data(1, 1), data(2, 1))):
        prefix.delivered(origin, round_)
    assert prefix.count == 3
    (message,) = multicasts(submit(one))
    assert message.words == (prefix.word,)


# Nulls.


def test_a_member_that_blocks_others_sends_a_null_after_a_while() -> None:
    one = core(0, null_after_ns=1000)
    (timer,) = timers(give(one, data(1, 1), now_ns=100))
    assert 600 <= timer.at_ns <= 1100
    assert one.on_timer(timer.timer, timer.at_ns) == [Multicast(message=null(0, 1))]


def test_one_null_ahead_is_for_all_rounds_in_which_others_have_data() -> None:
    one = core(0)
    (timer,) = timers(give(one, *(data(1, number) for number in range(1, 8)), null(2, 7)))
    effects = one.on_timer(timer.timer, timer.at_ns)
    assert kinds_and_numbers(effects) == [(Kind.ALLACK_NULL, 7)]
    assert ordered(effects) == [(number, 1) for number in range(1, 8)]
    assert timers(effects) == []


def test_the_classical_form_is_one_null_a_round() -> None:
    one = core(0, ahead=False)
    (timer,) = timers(give(one, data(1, 1), data(1, 2), null(2, 2)))
    effects = one.on_timer(timer.timer, timer.at_ns)
    assert (kinds_and_numbers(effects), ordered(effects)) == ([(Kind.ALLACK_NULL, 1)], [(1, 1)])
    (timer,) = timers(effects)
    effects = one.on_timer(timer.timer, timer.at_ns)
    assert (kinds_and_numbers(effects), ordered(effects), timers(effects)) == ([(Kind.ALLACK_NULL, 2)], [(2, 1)], [])


@pytest.mark.parametrize("is_ahead", [True, False])
def test_a_null_at_once(is_ahead: bool) -> None:
    one = core(0, null_after_ns=0, ahead=is_ahead)
    assert kinds_and_numbers(give(one, data(1, 1))) == [(Kind.ALLACK_NULL, 1)]


def test_a_jump_in_the_classical_form_is_made_good_one_null_per_call() -> None:
    """A peer that jumps far must not keep this member in one call."""
    one = core(0, null_after_ns=0, ahead=False)
    effects = give(one, data(1, MAX_ROUND - 1))
    assert kinds_and_numbers(effects) == [(Kind.ALLACK_NULL, 1)]
    assert [effect.at_ns for effect in timers(effects)] == [0]


def test_a_member_that_has_sent_the_round_owes_nothing() -> None:
    one = core(0, null_after_ns=0)
    submit(one, 2)
    assert kinds_and_numbers(give(one, data(1, 1), data(1, 2))) == []
    assert kinds_and_numbers(give(one, data(1, 3))) == [(Kind.ALLACK_NULL, 3)]


def test_a_message_of_ours_makes_the_null_needless_when_it_reaches_the_round() -> None:
    one = core(0)
    give(one, data(1, 1), data(1, 2))
    assert not one.is_idle
    assert [type(effect).__name__ for effect in submit(one)] == ["Multicast"]
    assert [type(effect).__name__ for effect in submit(one)] == ["Multicast", "CancelTimer"]


def test_a_timer_that_comes_too_late_says_nothing() -> None:
    one = core(0)
    give(one, data(1, 1))
    submit(one)
    assert one.on_timer(Timer("null"), 0) == []


def test_nulls_call_for_no_nulls() -> None:
    one = core(0, null_after_ns=0)
    assert give(one, null(1, 5), null(2, 9)) == []
    assert one.is_idle


# Refusals.


@pytest.mark.parametrize("make", [data, null])
def test_rounds_of_one_member_rise_and_are_not_beyond_the_last(make: Callable[[int, int], Message]) -> None:
    one = core(0)
    give(one, null(1, 5))
    for round_ in (0, 4, 5, MAX_ROUND + 1, 2**64 - 1):
        assert give(one, make(1, round_)) == [Report(code=DropReason.MALFORMED, member=1)]
    assert (one.buffered, one.is_idle) == (0, True)


def test_only_a_member_of_the_view_is_heard_and_for_itself_alone() -> None:
    one = core(0)
    assert give(one, data(7, 5)) == [Report(code=DropReason.UNEXPECTED, member=7)]
    assert one.on_message(data(2, 5), 1, 0) == [Report(code=DropReason.UNEXPECTED, member=1)]
    assert (one.buffered, one.is_idle) == (0, True)


def test_the_last_round_stops_the_order_safely() -> None:
    one = core(0, null_after_ns=0)
    effects = give(one, data(1, MAX_ROUND))
    assert kinds_and_numbers(effects) == [(Kind.ALLACK_NULL, MAX_ROUND)]
    assert Report(code=AllAckReport.EXHAUSTED, member=0, value=MAX_ROUND) in effects
    assert (one.phase, one.can_submit) == (Phase.EXHAUSTED, False)
    assert ordered(give(one, null(2, MAX_ROUND))) == [(MAX_ROUND, 1)]
    assert one.is_idle


def test_a_call_that_cannot_be_is_a_local_error() -> None:
    with pytest.raises(LocalError, match="null_after_ns"):
        AllAckParameters(null_after_ns=-1)
    with pytest.raises(LocalError, match="outstanding"):
        AllAckParameters(outstanding=0)


# Over the reliable layer.


def build(**parameters: Any) -> Callable[[Membership, int], Core]:
    def made(membership: Membership, seed: int) -> Core:
        return PROTOCOLS["allack"].build(membership=membership, parameters=parameters, seed=seed)

    return made


@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_lone_message_costs_one_null_of_each_other_member(count: int) -> None:
    cluster = Cluster(count, build())
    cluster.submit(1)
    check_ordered(cluster, list(range(count)))
    assert (kinds_above(cluster)[Kind.ALLACK_DATA], kinds_above(cluster)[Kind.ALLACK_NULL]) == (1, count - 1)


@pytest.mark.parametrize(("is_ahead", "nulls"), [(True, 3), (False, 60)])
def test_a_burst_of_one_sender_costs_one_null_of_each_other_member_or_one_a_round(is_ahead: bool, nulls: int) -> None:
    cluster = Cluster(4, build(ahead=is_ahead))
    cluster.submit(1, 20)
    check_ordered(cluster, [0, 1, 2, 3])
    assert kinds_above(cluster)[Kind.ALLACK_NULL] == nulls


def test_a_null_is_a_dummy_on_the_wire_and_data_is_not() -> None:
    cluster = Cluster(3, build())
    cluster.submit(1)
    cluster.run()
    for _, message in cluster.sent:
        if message.inner >> 4 == 8:
            assert bool(message.flags & Flag.DUMMY) is (message.inner is Kind.ALLACK_NULL)
            assert decode_message(message.payload).kind is message.inner


def test_members_that_send_equally_often_need_hardly_a_null() -> None:
    cluster = Cluster(4, build(null_after_ns=30 * MILLISECOND))
    for number, member in product(range(100), range(4)):
        cluster.submit_later(member, number * 10 * MILLISECOND + member * MILLISECOND)
    check_ordered(cluster, [0, 1, 2, 3])
    assert kinds_above(cluster)[Kind.ALLACK_NULL] <= 4


FAST, SLOW = 0, 1
SLOW_GAP_NS = 20 * MILLISECOND


def fast_and_slow(**parameters: Any) -> Cluster:
    """For a second the fast member sends every 2 ms and the slow one every 20 ms; neither rests long enough for a null
    unless it has fallen behind."""
    cluster = Cluster(2, build(outstanding=64, **parameters))
    for at_ns in range(0, SECOND, 2 * MILLISECOND):
        cluster.submit_later(FAST, at_ns)
    for at_ns in range(0, SECOND, SLOW_GAP_NS):
        cluster.submit_later(SLOW, at_ns)
    return cluster


def backlog(cluster: Cluster) -> int:
    """Number of messages of the fast member that are not delivered at the slow one, after a second."""
    cluster.run(for_ns=SECOND)
    found = cluster.hosts[FAST].submitted - sum(1 for origin, *_ in cluster.hosts[SLOW].delivered if origin == FAST)
    check_ordered(cluster, [FAST, SLOW])
    return found


def test_the_papers_weakness_messages_of_a_fast_member_wait_for_the_slowest() -> None:
    """ "When a member sends more often, the delivery of its messages is delayed." Each waits for a message of the slow
    one, or for a null a round: most messages of the fast one are not delivered. Nulls ahead avoid that.
    """
    classical = backlog(fast_and_slow(ahead=False, null_after_ns=SLOW_GAP_NS))
    ahead = backlog(fast_and_slow(ahead=True, null_after_ns=SLOW_GAP_NS))
    assert classical > 300, "of 500"
    assert ahead < 30


def test_a_fast_member_is_slowed_down_to_what_it_may_have_undelivered() -> None:
    cluster = fast_and_slow(ahead=False, null_after_ns=SLOW_GAP_NS)
    cluster.run(for_ns=SECOND)
    held = max(host.core.buffered for host in cluster.up())
    assert 32 < held <= 2 * 64
    assert len(cluster.hosts[FAST].queue) > 200, "the rest waits at the application"
    check_ordered(cluster, [FAST, SLOW])


@pytest.mark.parametrize(("is_ahead", "null_after_ns"), list(product((True, False), NULL_AFTER_NS)))
def test_all_deliver_the_same_order_under_loss_and_duplication(is_ahead: bool, null_after_ns: int) -> None:
    network = Network(loss_ratio=0.1, jitter_ns=5 * MILLISECOND, duplicate_ratio=0.05)
    cluster = Cluster(5, build(ahead=is_ahead, null_after_ns=null_after_ns), network=network)
    for number, member in product(range(30), range(5)):
        cluster.submit_later(member, number * (member + 1) * 5 * MILLISECOND)
    check_ordered(cluster, [0, 1, 2, 3, 4])
    assert len(cluster.hosts[0].delivered) == 150
    check_no_round_after_a_delivery(cluster)


def check_no_round_after_a_delivery(cluster: Cluster) -> None:
    """A member's message is ordered after all its deliveries: rounds rise in the sent messages."""
    last: dict[int, int] = {}
    for source, message in cluster.sent:
        if message.inner in (Kind.ALLACK_DATA, Kind.ALLACK_NULL) and not message.flags & Flag.RETRANSMISSION:
            round_ = decode_message(message.payload).seq
            assert round_ > last.get(source, 0), f"seed {cluster.seed}"
            last[source] = round_
