"""What All-Ack and Lamport's order have in common. The rest: test_allack.py, test_lamport.py."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from node.core import ViewCore
from node.effects import CancelTimer, Multicast, Report, SetTimer, Timer
from node.errors import DropReason
from node.wire import Message
from tests.node.by_hand import after, give, multicasts, ordered, submit
from tests.node.cluster import MILLISECOND, Cluster, check_ordered, kinds_above, stack
from tests.node.numbered import BOTH, Order

# Core alone.


@BOTH
def test_an_own_message_is_not_overtaken_while_the_layer_below_holds_it(order: Order[ViewCore]) -> None:
    """It has its number and its place in the order from its submission on."""
    one = order.core()
    submit(one)
    assert ordered(give(one, order.data(1, 1), order.null(2, 1))) == [(1, 0), (1, 1)]
    assert give(one, order.data(0, 1)) == [], "it has come back"


@BOTH
def test_a_member_that_is_alone_in_its_view_delivers_at_once(order: Order[ViewCore]) -> None:
    one = order.core(1, members=(1,))
    assert ordered(submit(one)) == [(1, 1)]
    assert one.is_idle


@BOTH
def test_a_message_carries_the_number_and_a_digest_of_what_its_sender_had_delivered(order: Order[ViewCore]) -> None:
    one = order.core()
    submit(one)
    assert ordered(give(one, order.data(1, 1), order.data(2, 1))) == [(1, 0), (1, 1), (1, 2)]
    (message,) = multicasts(submit(one))
    assert message.words == (after((0, 1), (1, 1), (2, 1)),)


@BOTH
def test_a_member_that_blocks_others_sends_a_null_after_a_while(order: Order[ViewCore]) -> None:
    one = order.core(null_after_ns=1000)
    (timer,) = [effect for effect in give(one, order.data(1, 5), now_ns=100) if isinstance(effect, SetTimer)]
    assert 600 <= timer.at_ns <= 1100
    null = Multicast(message=order.null(0, 5 + order.null_after))
    assert one.on_timer(timer.timer, timer.at_ns) == [null]
    assert give(order.core(null_after_ns=0), order.data(1, 5)) == [null], "or at once"


@BOTH
def test_a_message_of_ours_makes_the_null_needless(order: Order[ViewCore]) -> None:
    one = order.core()
    give(one, order.data(1, 1))
    assert not one.is_idle, "the others wait for us"
    assert [type(effect) for effect in submit(one)] == [Multicast, CancelTimer]
    assert one.on_timer(Timer("null"), 0) == [], "it comes too late"


@BOTH
def test_a_member_that_has_sent_the_number_or_a_later_one_owes_nothing(order: Order[ViewCore]) -> None:
    """Paper 001, note 5."""
    one = order.core(null_after_ns=0)
    submit(one)
    assert give(one, order.data(1, 1)) == []
    assert give(one, order.data(1, 3)) == [Multicast(message=order.null(0, 3 + order.null_after))]


@BOTH
def test_nulls_call_for_no_nulls(order: Order[ViewCore]) -> None:
    one = order.core(null_after_ns=0)
    assert give(one, order.null(1, 5), order.null(2, 9)) == []
    assert one.is_idle


# Refusals.


def check_refused(order: Order[ViewCore], message: Message, source: int, reason: DropReason) -> None:
    """It is refused, and the core goes on as one that never received it."""
    one, other = order.core(), order.core()
    for each in (one, other):
        give(each, order.null(1, 5))
    assert one.on_message(message, source, 0) == [Report(code=reason, member=source)]
    assert (one.buffered, one.is_idle) == (0, True)
    assert submit(one) == submit(other), "the next number is the same"


@BOTH
def test_numbers_of_one_member_rise_and_are_not_beyond_the_last(order: Order[ViewCore]) -> None:
    for make, number in product((order.data, order.null), (0, 4, 5, order.most + 1, 2**64 - 1)):
        check_refused(order, make(1, number), 1, DropReason.MALFORMED)


@BOTH
def test_data_has_one_word_and_a_null_none(order: Order[ViewCore]) -> None:
    for wrong in (order.data(1, 6), order.null(1, 6)):
        for words in {(), (0,), (0, 0)} - {wrong.words}:
            check_refused(order, replace(wrong, words=words), 1, DropReason.MALFORMED)


@BOTH
def test_only_a_member_of_the_view_is_heard_and_for_itself_alone(order: Order[ViewCore]) -> None:
    check_refused(order, order.data(7, 6), 7, DropReason.UNEXPECTED)
    check_refused(order, order.data(2, 6), 1, DropReason.UNEXPECTED)


# Over the reliable layer.


@BOTH
def test_a_burst_of_one_sender_costs_one_null_of_each_other_member(order: Order[ViewCore]) -> None:
    cluster = Cluster(4, stack(order.name))
    cluster.submit(1, 20)
    check_ordered(cluster, [0, 1, 2, 3])
    assert kinds_above(cluster) == {order.data_kind: 20, order.null_kind: 3}


@BOTH
def test_members_that_send_equally_often_need_hardly_a_null(order: Order[ViewCore]) -> None:
    cluster = Cluster(4, stack(order.name, null_after_ns=30 * MILLISECOND))
    for number, member in product(range(100), range(4)):
        cluster.submit_later(member, number * 10 * MILLISECOND + member * MILLISECOND)
    check_ordered(cluster, [0, 1, 2, 3])
    assert kinds_above(cluster)[order.null_kind] <= 4, "only the end, where somebody falls silent"
