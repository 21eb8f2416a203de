"""What All-Ack and Lamport's order have in common. The rest: test_allack.py, test_lamport.py."""

from __future__ import annotations

from itertools import product

import pytest

from node.core import Submission, ViewCore
from node.effects import Effect, Multicast, Report, SetTimer, Timer
from node.errors import DropReason
from node.protocols.prefix import Prefix
from node.wire import Flag, Message, decode_message
from tests.node.by_hand import give, kinds_and_numbers, multicasts, ordered
from tests.node.cluster import MILLISECOND, Cluster, check_ordered, kinds_above
from tests.node.numbered import BOTH, Order


def submit(one: ViewCore) -> list[Effect]:
    return one.on_submit(Submission(payload=b""), 0)


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
    prefix = Prefix()
    submit(one)
    for number, origin in ordered(give(one, order.data(1, 1), order.data(2, 1))):
        prefix.delivered(origin, number)
    assert prefix.count == 3
    (message,) = multicasts(submit(one))
    assert message.words == (prefix.word,)


@BOTH
def test_a_member_that_blocks_others_sends_a_null_after_a_while(order: Order[ViewCore]) -> None:
    one = order.core(null_after_ns=1000)
    (timer,) = [effect for effect in give(one, order.data(1, 5), now_ns=100) if isinstance(effect, SetTimer)]
    assert 600 <= timer.at_ns <= 1100
    null = order.null(0, 5 + order.null_after)
    assert one.on_timer(timer.timer, timer.at_ns) == [Multicast(message=null)]


@BOTH
def test_a_null_at_once(order: Order[ViewCore]) -> None:
    effects = give(order.core(null_after_ns=0), order.data(1, 5))
    assert kinds_and_numbers(effects) == [(order.null_kind, 5 + order.null_after)]


@BOTH
def test_a_timer_that_comes_too_late_says_nothing(order: Order[ViewCore]) -> None:
    one = order.core()
    give(one, order.data(1, 1))
    submit(one)
    assert one.on_timer(Timer("null"), 0) == []


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
    for kind, words in ((order.data_kind, ()), (order.data_kind, (0, 0)), (order.null_kind, (0,))):
        message = Message(kind=kind, origin=1, incarnation=1, seq=6, words=words)
        check_refused(order, message, 1, DropReason.MALFORMED)


@BOTH
def test_only_a_member_of_the_view_is_heard_and_for_itself_alone(order: Order[ViewCore]) -> None:
    check_refused(order, order.data(7, 6), 7, DropReason.UNEXPECTED)
    check_refused(order, order.data(2, 6), 1, DropReason.UNEXPECTED)


# Over the reliable layer.


@BOTH
@pytest.mark.parametrize(("count", "messages"), [(2, 1), (3, 1), (8, 1), (4, 3)])
def test_a_lone_sender_costs_one_null_of_each_other_member(order: Order[ViewCore], count: int, messages: int) -> None:
    cluster = Cluster(count, order.build())
    cluster.submit(1, messages)
    check_ordered(cluster, list(range(count)))
    assert [kinds_above(cluster)[kind] for kind in (order.data_kind, order.null_kind)] == [messages, count - 1]


@BOTH
def test_a_null_is_a_dummy_on_the_wire_and_data_is_not(order: Order[ViewCore]) -> None:
    cluster = Cluster(3, order.build())
    cluster.submit(1)
    cluster.run()
    seen = [message for _, message in cluster.sent if message.inner in (order.data_kind, order.null_kind)]
    assert {message.inner for message in seen} == {order.data_kind, order.null_kind}
    for message in seen:
        assert bool(message.flags & Flag.DUMMY) is (message.inner is order.null_kind)
        assert decode_message(message.payload).kind is message.inner


@BOTH
def test_members_that_send_equally_often_need_hardly_a_null(order: Order[ViewCore]) -> None:
    cluster = Cluster(4, order.build(null_after_ns=30 * MILLISECOND))
    for number, member in product(range(100), range(4)):
        cluster.submit_later(member, number * 10 * MILLISECOND + member * MILLISECOND)
    check_ordered(cluster, [0, 1, 2, 3])
    assert kinds_above(cluster)[order.null_kind] <= 4, "only the end, where somebody falls silent"
