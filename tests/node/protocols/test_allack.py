"""Total order by rounds: All-Ack as in paper 002, and the cases that it leaves open. The end of a view:
tests/node/group/test_close_numbered.py; what both orders by numbers have in common: test_numbered.py.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from node.core import Submission
from node.effects import Effect, Multicast, Report, SetTimer
from node.errors import LocalError
from node.protocols.allack import MAX_ROUND, AllAckCore, AllAckParameters, AllAckReport
from node.protocols.base import Phase
from node.wire import Flag, Kind, Message, decode_message
from tests.node.by_hand import give, kinds_and_numbers, ordered
from tests.node.cluster import (
    MILLISECOND,
    SECOND,
    Cluster,
    Network,
    check_ordered,
    kinds_above,
)
from tests.node.numbered import ALLACK

NULL_AFTER_NS = (0, 2 * MILLISECOND, 30 * MILLISECOND)
core, data, null, build = ALLACK.core, ALLACK.data, ALLACK.null, ALLACK.build


# Core alone.


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


def test_a_sender_waits_with_as_many_undelivered_as_it_may_have() -> None:
    one = core(0, outstanding=2)
    submit(one, 2)
    with pytest.raises(LocalError, match="can_submit"):
        submit(one)
    give(one, null(1, 5), null(2, 1))
    assert one.can_submit


# Nulls.


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


# Refusals.


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


@pytest.mark.parametrize(("is_ahead", "nulls"), [(True, 3), (False, 60)])
def test_a_burst_of_one_sender_costs_one_null_of_each_other_member_or_one_a_round(is_ahead: bool, nulls: int) -> None:
    cluster = Cluster(4, build(ahead=is_ahead))
    cluster.submit(1, 20)
    check_ordered(cluster, [0, 1, 2, 3])
    assert kinds_above(cluster)[Kind.ALLACK_NULL] == nulls


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
