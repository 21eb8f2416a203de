"""Skeen's order within one view: one round message by message, the edge cases and the bugs on record.

The end of a view is in tests/node/group/test_close_abcast.py, random histories of views in test_histories.py there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from node.clocks import MAX_TIMESTAMP
from node.core import Membership
from node.effects import Deliver, Multicast, Report, Send
from node.errors import DropReason
from node.protocols.abcast import MOST_OUTSTANDING, AbcastCore, AbcastParameters, AbcastReport
from node.trace import Notice
from node.wire import Flag, Kind, Message
from tests.node.by_hand import after, delivered, give, said, submit
from tests.node.cluster import SECOND, Cluster, check_ordered, stack
from tests.node.grouped import SUSPECT_AFTER_NS

MEMBERS = (0, 1, 2)
CONTROL = Flag.CONTROL.value


# Core alone.


def core(member: int = 0, *, members: tuple[int, ...] = MEMBERS, **parameters: Any) -> AbcastCore:
    made = AbcastCore(membership=Membership(member=member, members=members), parameters=AbcastParameters(**parameters))
    assert made.on_start(0) == []
    return made


def data(origin: int, number: int, payload: bytes = b"", word: int = 0) -> Message:
    """A data message. `word`: earlier deliveries of its initiator; 0: none."""
    return Message(kind=Kind.ABCAST_DATA, origin=origin, incarnation=1, seq=number, words=(word,), payload=payload)


def proposal(origin: int, number: int, *words: int) -> Message:
    return Message(kind=Kind.ABCAST_PROPOSAL, origin=origin, incarnation=1, seq=number, flags=CONTROL, words=words)


def final(origin: int, number: int, *timestamps: int) -> Message:
    return Message(kind=Kind.ABCAST_FINAL, origin=origin, incarnation=1, seq=number, flags=CONTROL, words=timestamps)


# The paper's sentences.


def test_the_initiator_multicasts_its_message_and_proposes_for_it_itself() -> None:
    one = core()
    effects = submit(one, b"x", flags=Flag.DUMMY)
    assert effects == [Multicast(message=replace(data(0, 1, b"x"), flags=Flag.DUMMY))]
    assert (one.timestamp, one.buffered, one.is_idle) == (1, 1, False)


def test_the_receiver_returns_a_timestamp_of_its_logical_clock() -> None:
    one = core()
    assert give(one, data(1, 1, b"x")) == [Send(target=1, message=proposal(0, 1, 1))]
    assert give(one, data(2, 1)) == [Send(target=2, message=proposal(0, 1, 2))], "the clock counts"


def test_the_sender_sends_the_latest_of_all_timestamps_when_it_has_them_all() -> None:
    one = core()
    submit(one)
    assert give(one, proposal(1, 1, 9)) == []
    effects = give(one, proposal(2, 1, 4))
    assert said(effects) == [(Kind.ABCAST_FINAL, 1, (9,))]
    assert delivered(effects) == [(0, 1)]
    assert (one.timestamp, one.buffered, one.is_idle) == (9, 0, True)


def test_a_message_says_what_its_initiator_had_delivered() -> None:
    one = core()
    give(one, data(1, 1), final(1, 1, 1), data(2, 1))
    assert said(submit(one)) == [(Kind.ABCAST_DATA, 1, (after((1, 1)),))]


def test_a_member_alone_delivers_at_once() -> None:
    assert delivered(submit(core(members=(0,)))) == [(0, 1)]


# Edge cases of the algorithm.


def test_bug_12_the_clock_jumps_to_a_final_timestamp() -> None:
    """Otherwise m, final at 10, is delivered with the clock at 1; m2 gets 2 here and 9 elsewhere, is final at 9, and
    others deliver it before m.
    """
    one = core()
    assert delivered(give(one, data(1, 1), final(1, 1, 10))) == [(1, 1)]
    assert give(one, data(2, 1)) == [Send(target=2, message=proposal(0, 1, 11))]


def test_ties_are_broken_in_one_way_for_what_is_tentative_and_what_is_final() -> None:
    """By the initiator, not by the proposer."""
    one = core(1)
    give(one, data(0, 1), data(2, 1))
    assert delivered(give(one, final(2, 1, 5))) == []
    assert delivered(give(one, final(0, 1, 5))) == [(0, 1), (2, 1)]


def test_a_tie_with_what_is_tentative_waits_for_what_may_come_first() -> None:
    one, other = core(1), core(1)
    assert delivered(give(one, data(2, 1), data(0, 1), final(2, 1, 2))) == [], (
        "0 has 2, too, and goes first if it stays"
    )
    assert delivered(give(other, data(0, 1), data(2, 1), final(0, 1, 2))) == [(0, 1)], "2 goes last in any case"


def test_bug_9_the_receivers_deliver_by_it_and_a_smaller_timestamp_that_is_pending_is_not_overtaken() -> None:
    one = core()
    give(one, data(1, 1, b"one"), data(2, 1))
    assert delivered(give(one, final(2, 1, 2))) == []
    effects = give(one, final(1, 1, 3))
    assert delivered(effects) == [(2, 1), (1, 1)]
    assert effects[1] == Deliver(payload=b"one", origin=1, incarnation=1, seq=1)


def test_our_own_message_in_the_layer_below_is_not_overtaken() -> None:
    """Flow control may hold it there: it has its place in the order already."""
    one = core()
    submit(one, b"ours")
    assert delivered(give(one, data(1, 1), final(1, 1, 7))) == []
    assert give(one, data(0, 1, b"ours")) == [], "it has come back"
    assert delivered(give(one, proposal(1, 1, 2), proposal(2, 1, 3))) == [(0, 1), (1, 1)]


def test_messages_of_one_initiator_keep_their_order_when_a_member_proposes_less_than_before() -> None:
    """No correct member does; others would refuse a decreasing final timestamp."""
    one = core()
    submit(one)
    submit(one)
    effects = give(one, proposal(2, 1, 100), proposal(1, 1, 1), proposal(1, 2, 2), proposal(2, 2, 2))
    assert said(effects) == [(Kind.ABCAST_FINAL, 1, (100,)), (Kind.ABCAST_FINAL, 2, (101,))]
    assert delivered(effects) == [(0, 1), (0, 2)]


def test_finals_that_are_ready_together_travel_together_and_in_order() -> None:
    one = core()
    submit(one)
    submit(one)
    assert give(one, proposal(1, 2, 7), proposal(2, 2, 5), proposal(1, 1, 6)) == [], "the first is not ready"
    effects = give(one, proposal(2, 1, 7))
    assert said(effects) == [(Kind.ABCAST_FINAL, 1, (7, 8))]
    assert delivered(effects) == [(0, 1), (0, 2)]
    other = core(1)
    assert delivered(give(other, data(0, 1), data(0, 2), final(0, 1, 7, 8))) == [(0, 1), (0, 2)]


# Refusals.


@pytest.mark.parametrize(
    ("reason", "wrong"),
    [
        (DropReason.DUPLICATE, data(1, 1)),
        (DropReason.DUPLICATE, final(1, 1, 5)),
        (DropReason.DUPLICATE, final(1, 1, 9)),
        (DropReason.DUPLICATE, proposal(1, 1, 8)),
        (DropReason.DUPLICATE, proposal(1, 2, 8)),
        (DropReason.UNEXPECTED, proposal(1, 0, 4)),
        (DropReason.UNEXPECTED, proposal(1, 3, 4)),
        (DropReason.UNEXPECTED, proposal(1, 2**64 - 1, 4)),
        (DropReason.MALFORMED, proposal(2, 2)),
        (DropReason.MALFORMED, proposal(2, 2, 0)),
        (DropReason.MALFORMED, proposal(2, 2, MAX_TIMESTAMP + 1)),
        (DropReason.MALFORMED, proposal(2, 2, 1, 1)),
        (DropReason.MALFORMED, data(1, 6)),
        (DropReason.MALFORMED, replace(data(1, 5), words=())),
        (DropReason.MALFORMED, replace(data(1, 5), words=(0, 0))),
        (DropReason.MALFORMED, final(1, 2)),
        (DropReason.MALFORMED, final(1, 4, 9)),
        (DropReason.MALFORMED, final(1, 3, 9)),
        (DropReason.MALFORMED, final(1, 2, 6, 6)),
        (DropReason.MALFORMED, final(1, 2, 5)),
        (DropReason.MALFORMED, final(1, 2, 0)),
        (DropReason.MALFORMED, final(1, 2, MAX_TIMESTAMP + 1)),
        (DropReason.MALFORMED, final(1, 2, 7, 6)),
        (DropReason.MALFORMED, final(1, 2, 7, 8, 9, 10)),
    ],
    ids=lambda it: it.name if isinstance(it, DropReason) else f"{it.kind.name} {it.seq} {it.words}",
)
def test_what_is_wrong_is_refused_before_anything_changes(reason: DropReason, wrong: Message) -> None:
    """Member 1 has sent four messages, of which the first is final; our first is final, our second has one proposal."""
    one = core()
    submit(one)
    submit(one)
    give(one, data(2, 1), data(1, 1), final(1, 1, 5), *(data(1, number) for number in (2, 3, 4)))
    give(one, proposal(1, 1, 1), proposal(2, 1, 1), proposal(1, 2, 2))
    before = (one.timestamp, one.buffered)
    assert give(one, wrong) == [Report(code=reason, member=wrong.origin)]
    assert (one.timestamp, one.buffered) == before
    effects = give(one, proposal(2, 2, 3), final(2, 1, 4), final(1, 2, 6, 7, 8))
    assert delivered(effects) == [(0, 2), (2, 1), (1, 1), (1, 2), (1, 3), (1, 4)]


def test_a_lie_about_a_final_timestamp_moves_only_the_liars_message() -> None:
    """Members that proposed less cannot detect it, and all must take the same messages."""
    one = core(3, members=(0, 1, 2, 3))
    give(one, data(2, 1), data(0, 1), data(1, 1))
    assert delivered(give(one, final(1, 1, 1))) == [(1, 1)], "it was the last"
    assert delivered(give(one, final(2, 1, 4), final(0, 1, 5))) == [(2, 1), (0, 1)]


def test_nobody_fills_our_memory_with_what_never_becomes_final() -> None:
    one = core()
    give(one, *(data(1, number) for number in range(1, MOST_OUTSTANDING + 1)))
    assert give(one, data(1, MOST_OUTSTANDING + 1)) == [Report(code=DropReason.MALFORMED, member=1)]
    assert one.buffered == MOST_OUTSTANDING


def test_a_clock_at_its_end_stops_the_order_safely() -> None:
    one = core()
    submit(one)
    effects = give(one, data(1, 1), final(1, 1, MAX_TIMESTAMP), data(2, 1))
    assert Report(code=AbcastReport.EXHAUSTED, member=0, value=MAX_TIMESTAMP) in effects
    sent = [effect.target for effect in effects if isinstance(effect, Send)]
    assert sent == [1], "no timestamp is left for that of 2"
    assert (one.can_submit, delivered(effects)) == (False, [])


def test_no_final_timestamp_is_beyond_the_last() -> None:
    one = core()
    submit(one)
    submit(one)
    effects = give(one, proposal(1, 1, MAX_TIMESTAMP), proposal(2, 1, 1), proposal(1, 2, 2), proposal(2, 2, 2))
    assert said(effects) == [(Kind.ABCAST_FINAL, 1, (MAX_TIMESTAMP,))]
    assert one.buffered == 2, "the first waits for the second, which was tentative before"


def test_an_application_that_was_told_a_timestamp_hands_it_along() -> None:
    one = core()
    submit(one, not_before=70)
    assert said(give(one, proposal(1, 1, 3), proposal(2, 1, 4))) == [(Kind.ABCAST_FINAL, 1, (71,))]


@pytest.mark.parametrize("time", [10, 1_000_000])
def test_a_message_sent_before_the_group_has_agreed_on_a_time_is_final_beyond_it(time: int) -> None:
    """Paper 003, equation 2: however late the time T lies. So an epoch ends with a cut (docs/protocols/adaptive.md)."""
    initiator, other = core(0, members=(0, 1)), core(1, members=(0, 1))
    assert said(submit(initiator)) == [(Kind.ABCAST_DATA, 1, (0,))]
    submit(other, not_before=time)
    beyond = time + 2
    assert give(other, data(0, 1)) == [Send(target=0, message=proposal(1, 1, beyond))], (
        "it has gone to T, as in the paper"
    )
    assert said(give(initiator, proposal(1, 1, beyond))) == [(Kind.ABCAST_FINAL, 1, (beyond,))]


def test_a_sender_waits_while_too_much_of_it_is_undelivered() -> None:
    one = core(outstanding=1)
    give(one, data(1, 1))
    submit(one)
    assert not one.can_submit
    give(one, proposal(1, 1, 9), proposal(2, 1, 9))
    assert not one.can_submit, "it is final, and waits for that of 1"
    give(one, final(1, 1, 3))
    assert one.can_submit


def test_costs_are_from_receipt_to_delivery_and_reported_on_demand() -> None:
    one = core(report_costs=True)
    give(one, data(1, 1), now_ns=100)
    submit(one, now_ns=150)
    give(one, proposal(1, 1, 4), proposal(2, 1, 3), now_ns=300)
    assert give(one, final(1, 1, 3), now_ns=420) == [
        Deliver(payload=b"", origin=1, incarnation=1, seq=1),
        Report(code=Notice.COST, member=1, value=320),
        Deliver(payload=b"", origin=0, incarnation=1, seq=1),
        Report(code=Notice.COST, member=0, value=270),
    ]
    assert [type(effect) for effect in give(core(), data(1, 1), final(1, 1, 1))] == [Send, Deliver]


# Over the reliable layer.


def test_the_convoy_effect_one_slow_member_delays_messages_of_others() -> None:
    """Every message needs its proposal; that is the algorithm's cost of 2d, d the largest delay."""
    cluster = Cluster(3, stack("abcast", reliable={"suspect_after_ns": SUSPECT_AFTER_NS}))
    cluster.submit(0)
    cluster.at(500_000, lambda: cluster.pause(1))
    cluster.run(for_ns=SECOND)
    assert [host.delivered for host in cluster.up()] == [[], [], []]
    cluster.resume(1)
    check_ordered(cluster, [0, 1, 2])
    assert cluster.hosts[1].delivered == [(0, 1, 1)]
