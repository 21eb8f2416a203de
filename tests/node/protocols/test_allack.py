"""Total order by rounds: All-Ack as in paper 002, and the cases that it leaves open. The end of a view:
tests/node/group/test_close_numbered.py; what both orders by numbers have in common: test_numbered.py.
"""

from __future__ import annotations

from dataclasses import replace

from node.effects import Effect, Multicast, Report, SetTimer
from node.protocols.allack import MAX_ROUND, AllAckCore, AllAckReport
from node.protocols.base import Phase
from node.wire import Flag, Kind
from tests.node import by_hand
from tests.node.by_hand import give, kinds_and_numbers, ordered
from tests.node.cluster import MILLISECOND, SECOND, Cluster, check_ordered, kinds_above, stack
from tests.node.numbered import ALLACK

core, data, null = ALLACK.core, ALLACK.data, ALLACK.null


# Core alone.


def submit(one: AllAckCore, times: int = 1) -> list[Effect]:
    return [effect for _ in range(times) for effect in by_hand.submit(one)]


def timers(effects: list[Effect]) -> list[SetTimer]:
    return [effect for effect in effects if isinstance(effect, SetTimer)]


def test_a_members_kth_message_belongs_to_its_round_k() -> None:
    one = core()
    message = replace(data(0, 1, b"x"), flags=Flag.DUMMY)
    assert by_hand.submit(one, b"x", flags=Flag.DUMMY) == [Multicast(message=message)]
    assert kinds_and_numbers(submit(one)) == [(Kind.ALLACK_DATA, 2)]


def test_a_member_waits_until_it_has_a_message_of_each_other_member() -> None:
    one = core(0)
    submit(one)
    assert ordered(give(one, data(2, 1))) == []
    assert ordered(give(one, data(1, 1))) == [(1, 0), (1, 1), (1, 2)], "in an order of members decided beforehand"


def test_it_delivers_one_message_of_each_at_a_time() -> None:
    """Its own message of the round must be sent, too: else it could be sent after the delivery of a message behind it.
    This rule makes the order causal."""
    one = core(0)
    assert ordered(give(one, data(1, 1), data(1, 2), data(1, 3), data(2, 1), data(2, 2))) == []
    assert ordered(submit(one)) == [(1, 0), (1, 1), (1, 2)]
    assert ordered(submit(one)) == [(2, 0), (2, 1), (2, 2)]
    assert one.buffered == 1


def test_a_round_number_that_jumps_says_that_the_rounds_between_are_empty() -> None:
    one = core(0)
    submit(one, 5)
    assert ordered(give(one, data(1, 4))) == []
    assert ordered(give(one, data(2, 3))) == [(1, 0), (2, 0), (3, 0), (3, 2)]
    assert ordered(give(one, null(2, 9))) == [(4, 0), (4, 1)]


def test_a_sender_waits_with_as_many_undelivered_as_it_may_have() -> None:
    one = core(0, outstanding=2)
    submit(one, 2)
    assert not one.can_submit
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


# Refusals.


def test_the_last_round_stops_the_order_safely() -> None:
    one = core(0, null_after_ns=0)
    effects = give(one, data(1, MAX_ROUND))
    assert kinds_and_numbers(effects) == [(Kind.ALLACK_NULL, MAX_ROUND)]
    assert Report(code=AllAckReport.EXHAUSTED, member=0, value=MAX_ROUND) in effects
    assert (one.phase, one.can_submit) == (Phase.EXHAUSTED, False)
    assert ordered(give(one, null(2, MAX_ROUND))) == [(MAX_ROUND, 1)]
    assert one.is_idle


# Over the reliable layer.


def test_a_burst_in_the_classical_form_costs_one_null_of_each_other_member_a_round() -> None:
    cluster = Cluster(4, stack("allack", ahead=False))
    cluster.submit(1, 20)
    check_ordered(cluster, [0, 1, 2, 3])
    assert kinds_above(cluster)[Kind.ALLACK_NULL] == 3 * 20


FAST, SLOW = 0, 1
SLOW_GAP_NS = 20 * MILLISECOND


def fast_and_slow(*, ahead: bool) -> tuple[Cluster, int]:
    """For a second the fast member sends every 2 ms and the slow one every 20 ms; neither rests long enough for a null
    unless it has fallen behind. Returns the number of messages of the fast one that the slow one has not delivered."""
    cluster = Cluster(2, stack("allack", outstanding=64, ahead=ahead, null_after_ns=SLOW_GAP_NS))
    for member, gap_ns in ((FAST, 2 * MILLISECOND), (SLOW, SLOW_GAP_NS)):
        for at_ns in range(0, SECOND, gap_ns):
            cluster.submit_later(member, at_ns)
    cluster.run(for_ns=SECOND)
    delivered = [origin for origin, *_ in cluster.hosts[SLOW].delivered].count(FAST)
    return cluster, cluster.hosts[FAST].submitted - delivered


def test_the_papers_weakness_messages_of_a_fast_member_wait_for_the_slowest() -> None:
    """ "When a member sends more often, the delivery of its messages is delayed." Each waits for a message of the slow
    one, or for a null a round: most messages of the fast one are not delivered, and it is slowed down to what it may
    have undelivered. Nulls ahead avoid that.
    """
    (classical, classical_backlog), (ahead, ahead_backlog) = (fast_and_slow(ahead=ahead) for ahead in (False, True))
    assert classical_backlog > 300, "of 500"
    assert 32 < max(host.core.buffered for host in classical.up()) <= 2 * 64
    assert len(classical.hosts[FAST].queue) > 200, "the rest waits at the application"
    assert ahead_backlog < 30
    for cluster in (classical, ahead):
        check_ordered(cluster, [FAST, SLOW])
