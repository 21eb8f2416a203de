"""Skeen's order within one view: one round message by message, the edge cases and the bugs on record.

The end of a view is in tests/node/group/test_close_abcast.py, random histories of views in test_histories.py there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from node.clocks import MAX_TIMESTAMP
from node.core import Core, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report, Send
from node.errors import DropReason, LocalError
from node.protocols.abcast import MOST_OUTSTANDING, AbcastCore, AbcastParameters, AbcastReport
from node.protocols.prefix import Prefix
from node.registry import PROTOCOLS
from node.trace import Notice
from node.wire import Flag, Kind, Message, decode_message
from tests.node.by_hand import delivered, give, multicasts
from tests.node.cluster import (
    MILLISECOND,
    SECOND,
    Cluster,
    Network,
    check_ordered,
)
from tests.node.protocols.scenarios import RELIABLE

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


def submit(one: AbcastCore, payload: bytes = b"", now_ns: int = 0) -> list[Effect]:
    return one.on_submit(Submission(payload=payload), now_ns)


def multicast(effects: list[Effect]) -> list[tuple[Kind, int, tuple[int, ...]]]:
    return [(message.kind, message.seq, message.words) for message in multicasts(effects)]


def sent(effects: list[Effect]) -> list[tuple[int, Kind, int, int]]:
    """(target, kind, seq, first word) of each unicast."""
    said = ((effect.target, effect.message) for effect in effects if isinstance(effect, Send))
    return [(target, message.kind, message.seq, message.words[0]) for target, message in said]


def refused(effects: list[Effect]) -> list[DropReason]:
    return [
        DropReason(effect.code) for effect in effects if isinstance(effect, Report) and effect.code in set(DropReason)
    ]


# The paper's sentences.


def test_the_initiator_multicasts_its_message_and_proposes_for_it_itself() -> None:
    one = core()
    effects = one.on_submit(Submission(payload=b"x", flags=Flag.DUMMY.value), 0)
    said = Message(kind=Kind.ABCAST_DATA, origin=0, incarnation=1, seq=1, flags=1, words=(0,), payload=b"x")
    assert effects == [Multicast(message=said)]
    assert (one.timestamp, one.buffered, one.is_idle) == (1, 1, False)


def test_the_receiver_returns_a_timestamp_of_its_logical_clock() -> None:
    one = core()
    message = Message(kind=Kind.ABCAST_PROPOSAL, origin=0, incarnation=1, seq=1, flags=CONTROL, words=(1,))
    assert give(one, data(1, 1, b"x")) == [Send(target=1, message=message)]
    assert sent(give(one, data(2, 1))) == [(2, Kind.ABCAST_PROPOSAL, 1, 2)], "the clock counts"


def test_the_sender_sends_the_latest_of_all_timestamps_when_it_has_them_all() -> None:
    one = core()
    submit(one)
    assert give(one, proposal(1, 1, 9)) == []
    effects = give(one, proposal(2, 1, 4))
    assert multicast(effects) == [(Kind.ABCAST_FINAL, 1, (9,))]
    assert delivered(effects) == [(0, 1)]
    assert (one.timestamp, one.buffered, one.is_idle) == (9, 0, True)


def test_a_member_alone_delivers_at_once() -> None:
    one = core(members=(0,))
    effects = submit(one)
    assert [kind for kind, _, _ in multicast(effects)] == [Kind.ABCAST_DATA, Kind.ABCAST_FINAL]
    assert delivered(effects) == [(0, 1)]


def test_a_message_says_what_its_initiator_had_delivered() -> None:
    one, prefix = core(), Prefix()
    give(one, data(1, 1), final(1, 1, 1), data(2, 1))
    prefix.delivered(1, 1)
    assert multicast(submit(one)) == [(Kind.ABCAST_DATA, 1, (prefix.word,))]


def test_the_receivers_decide_the_order_of_delivery_by_it() -> None:
    one = core()
    assert delivered(give(one, data(1, 1, b"one"), data(2, 1))) == []
    assert delivered(give(one, final(1, 1, 7))) == [], "that of 2 may be earlier"
    effects = give(one, final(2, 1, 5))
    assert delivered(effects) == [(2, 1), (1, 1)]
    assert Deliver(payload=b"one", origin=1, incarnation=1, seq=1) in effects


def test_one_round_word_for_word() -> None:
    """Three members, one message of member 1, with no other message in transit."""
    cluster = Cluster(3, build())
    cluster.submit(1)
    cluster.run(for_ns=4 * MILLISECOND)
    said = [
        (source, inside.kind.name, inside.seq, inside.words)
        for source, message in cluster.sent
        if message.inner is not Kind.APPLICATION
        for inside in [decode_message(message.payload)]
    ]
    assert said == [
        (1, "ABCAST_DATA", 1, (0,)),
        (0, "ABCAST_PROPOSAL", 1, (1,)),
        (2, "ABCAST_PROPOSAL", 1, (1,)),
        (1, "ABCAST_FINAL", 1, (1,)),
    ]
    assert [host.delivered for host in cluster.up()] == [[(1, 1, 1)]] * 3
    check_all(cluster, [0, 1, 2])


@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_message_takes_two_multicasts_and_a_proposal_of_each_other_member(count: int) -> None:
    cluster = Cluster(count, build())
    cluster.submit(1)
    check_all(cluster, list(range(count)))
    assert kinds(cluster) == {Kind.ABCAST_DATA: 1, Kind.ABCAST_PROPOSAL: count - 1, Kind.ABCAST_FINAL: 1}


# Edge cases of the algorithm.


def test_bug_12_the_clock_jumps_to_a_final_timestamp() -> None:
    """Otherwise m, final at 10, is delivered with the clock at 1; m2 gets 2 here and 9 elsewhere, is final at 9, and
    others deliver it before m.
    """
    one = core()
    assert delivered(give(one, data(1, 1), final(1, 1, 10))) == [(1, 1)]
    assert sent(give(one, data(2, 1))) == [(2, Kind.ABCAST_PROPOSAL, 1, 11)]


def test_the_initiators_own_clock_jumps_too() -> None:
    one = core()
    submit(one)
    give(one, proposal(1, 1, 10), proposal(2, 1, 3))
    assert sent(give(one, data(1, 1))) == [(1, Kind.ABCAST_PROPOSAL, 1, 11)]


def test_ties_are_broken_in_one_way_for_what_is_tentative_and_what_is_final() -> None:
    """By the initiator, not by the proposer."""
    one = core(1)
    give(one, data(0, 1), data(2, 1))
    assert delivered(give(one, final(2, 1, 5))) == []
    assert delivered(give(one, final(0, 1, 5))) == [(0, 1), (2, 1)]


def test_a_tie_with_what_is_tentative_waits_for_what_may_come_first() -> None:
    one = core(1)
    give(one, data(2, 1), data(0, 1))
    assert delivered(give(one, final(2, 1, 2))) == [], "0 has 2 here, too, and goes first if it stays"
    other = core(1)
    give(other, data(0, 1), data(2, 1))
    assert delivered(give(other, final(0, 1, 2))) == [(0, 1)], "2 has 2 here, and goes last in any case"


def test_bug_9_a_smaller_timestamp_that_is_pending_is_not_overtaken() -> None:
    one = core()
    give(one, data(1, 1), data(2, 1))
    assert delivered(give(one, final(2, 1, 2))) == []
    assert delivered(give(one, final(1, 1, 3))) == [(2, 1), (1, 1)]


def test_our_own_message_in_the_layer_below_is_not_overtaken() -> None:
    """Flow control may hold it there: it has its place in the order already."""
    one = core()
    submit(one, b"ours")
    assert delivered(give(one, data(1, 1), final(1, 1, 7))) == []
    assert give(one, data(0, 1, b"ours")) == [], "it has come back"
    assert delivered(give(one, proposal(1, 1, 2), proposal(2, 1, 3))) == [(0, 1), (1, 1)]


def test_final_is_idempotent() -> None:
    one = core()
    give(one, data(1, 1), final(1, 1, 5))
    for again in (final(1, 1, 5), final(1, 1, 9)):
        effects = give(one, again)
        assert (refused(effects), len(effects)) == ([DropReason.DUPLICATE], 1)
    assert (one.timestamp, one.buffered) == (5, 0)


def test_data_that_comes_twice_gets_no_second_proposal() -> None:
    one = core()
    give(one, data(1, 1))
    assert give(one, data(1, 1)) == [Report(code=DropReason.DUPLICATE, member=1)]
    assert (one.timestamp, one.buffered) == (1, 1)


def test_a_proposal_counts_once() -> None:
    one = core()
    submit(one)
    assert refused(give(one, proposal(1, 1, 4), proposal(1, 1, 8))) == [DropReason.DUPLICATE]
    assert multicast(give(one, proposal(2, 1, 2))) == [(Kind.ABCAST_FINAL, 1, (4,))]
    assert refused(give(one, proposal(2, 1, 9))) == [DropReason.DUPLICATE], "too late"


def test_a_proposal_for_what_was_never_sent_is_ignored() -> None:
    one = core()
    submit(one)
    for number in (0, 2, 2**64 - 1):
        assert refused(give(one, proposal(1, number, 4))) == [DropReason.UNEXPECTED]


def test_messages_of_one_initiator_keep_their_order_when_a_member_proposes_less_than_before() -> None:
    """No correct member does; others would refuse a decreasing final timestamp."""
    one = core()
    submit(one)
    submit(one)
    effects = give(one, proposal(2, 1, 100), proposal(1, 1, 1), proposal(1, 2, 2), proposal(2, 2, 2))
    assert multicast(effects) == [(Kind.ABCAST_FINAL, 1, (100,)), (Kind.ABCAST_FINAL, 2, (101,))]
    assert delivered(effects) == [(0, 1), (0, 2)]


def test_finals_that_are_ready_together_travel_together_and_in_order() -> None:
    one = core()
    submit(one)
    submit(one)
    assert give(one, proposal(1, 2, 7), proposal(2, 2, 5), proposal(1, 1, 6)) == [], "the first is not ready"
    effects = give(one, proposal(2, 1, 7))
    assert multicast(effects) == [(Kind.ABCAST_FINAL, 1, (7, 8))]
    assert delivered(effects) == [(0, 1), (0, 2)]
    other = core(1)
    assert delivered(give(other, data(0, 1), data(0, 2), final(0, 1, 7, 8))) == [(0, 1), (0, 2)]


# Refusals.


def test_bug_10_a_stranger_is_not_heard() -> None:
    one = core()
    submit(one)
    for stranger in (data(7, 1), final(7, 1, 3), proposal(7, 1, 3)):
        assert give(one, stranger) == [Report(code=DropReason.UNEXPECTED, member=7)]
    assert one.buffered == 1


@pytest.mark.parametrize(
    "wrong",
    [
        data(1, 5),
        Message(kind=Kind.ABCAST_DATA, origin=1, incarnation=1, seq=4),
        Message(kind=Kind.ABCAST_DATA, origin=1, incarnation=1, seq=4, words=(0, 0)),
        final(1, 1),
        final(1, 3, 9),
        final(1, 2, 5),
        final(1, 1, 1, 1),
        final(1, 1, 0),
        final(1, 1, MAX_TIMESTAMP + 1),
        final(1, 1, 4, 3),
        final(1, 1, 4, 5, 6, 7),
    ],
    ids=lambda message: f"{message.kind.name} {message.seq} {message.words}",
)
def test_what_cannot_be_the_next_message_of_its_stream_is_refused_before_anything_changes(wrong: Message) -> None:
    one = core()
    give(one, data(1, 1), data(2, 1), data(1, 2), data(1, 3))
    assert give(one, wrong) == [Report(code=DropReason.MALFORMED, member=1)]
    assert (one.timestamp, one.buffered) == (4, 4)
    assert delivered(give(one, final(2, 1, 2), final(1, 1, 3, 4, 5))) == [(2, 1), (1, 1), (1, 2), (1, 3)]


@pytest.mark.parametrize("words", [(), (0,), (MAX_TIMESTAMP + 1,), (1, 1)])
def test_a_proposal_that_cannot_be_is_ignored(words: tuple[int, ...]) -> None:
    one = core()
    submit(one)
    assert refused(give(one, proposal(1, 1, *words))) == [DropReason.MALFORMED]


def test_a_lie_about_a_final_timestamp_moves_only_the_liars_message() -> None:
    """Members that proposed less cannot detect it, and all must take the same messages."""
    one = core(3, members=(0, 1, 2, 3))
    give(one, data(2, 1), data(0, 1), data(1, 1))
    assert delivered(give(one, final(1, 1, 1))) == [(1, 1)], "it was the last"
    assert delivered(give(one, final(2, 1, 4), final(0, 1, 5))) == [(2, 1), (0, 1)]


def test_nobody_fills_our_memory_with_what_never_becomes_final() -> None:
    one = core()
    give(one, *(data(1, number) for number in range(1, MOST_OUTSTANDING + 1)))
    assert refused(give(one, data(1, MOST_OUTSTANDING + 1))) == [DropReason.MALFORMED]
    assert one.buffered == MOST_OUTSTANDING


def test_a_clock_at_its_end_stops_the_order_safely() -> None:
    one = core()
    submit(one)
    effects = give(one, data(1, 1), final(1, 1, MAX_TIMESTAMP), data(2, 1))
    assert Report(code=AbcastReport.EXHAUSTED, member=0, value=MAX_TIMESTAMP) in effects
    assert [target for target, _, _, _ in sent(effects)] == [1], "no timestamp is left for that of 2"
    assert (one.can_submit, delivered(effects)) == (False, [])
    with pytest.raises(LocalError, match="can_submit"):
        submit(one)


def test_no_final_timestamp_is_beyond_the_last() -> None:
    one = core()
    submit(one)
    submit(one)
    effects = give(one, proposal(1, 1, MAX_TIMESTAMP), proposal(2, 1, 1), proposal(1, 2, 2), proposal(2, 2, 2))
    assert multicast(effects) == [(Kind.ABCAST_FINAL, 1, (MAX_TIMESTAMP,))]
    assert one.buffered == 2, "the first waits for the second, which was tentative before"


def test_what_it_cannot_do_is_our_callers_mistake() -> None:
    for impossible in (-1, MAX_TIMESTAMP):
        with pytest.raises(LocalError, match="no timestamp"):
            core().on_submit(Submission(payload=b"", not_before=impossible), 0)
    for outstanding in (0, MOST_OUTSTANDING + 1):
        with pytest.raises(LocalError, match="outstanding must lie between 1 and 512"):
            AbcastParameters(outstanding=outstanding)


def test_an_application_that_was_told_a_timestamp_hands_it_along() -> None:
    one = core()
    one.on_submit(Submission(payload=b"", not_before=70), 0)
    assert multicast(give(one, proposal(1, 1, 3), proposal(2, 1, 4))) == [(Kind.ABCAST_FINAL, 1, (71,))]


@pytest.mark.parametrize("time", [10, 1_000_000])
def test_a_message_sent_before_the_group_has_agreed_on_a_time_is_final_beyond_it(time: int) -> None:
    """Paper 003, equation 2: however late the time T lies. So an epoch ends with a cut (docs/protocols/adaptive.md)."""
    initiator, other = core(0, members=(0, 1)), core(1, members=(0, 1))
    assert multicast(submit(initiator)) == [(Kind.ABCAST_DATA, 1, (0,))]
    other.on_submit(Submission(payload=b"", not_before=time), 0)
    [(_, kind, number, timestamp)] = sent(give(other, data(0, 1)))
    assert (kind, number) == (Kind.ABCAST_PROPOSAL, 1)
    assert timestamp > time, "the other member has gone to T, as the paper's senders do"
    assert multicast(give(initiator, proposal(1, 1, timestamp))) == [(Kind.ABCAST_FINAL, 1, (timestamp,))]


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
    effects = give(one, final(1, 1, 3), now_ns=420)
    assert [(type(effect), getattr(effect, "value", None)) for effect in effects[:4]] == [
        (Deliver, None),
        (Report, 320),
        (Deliver, None),
        (Report, 270),
    ]
    costs = [effect for effect in effects if isinstance(effect, Report)]
    assert costs == [
        Report(code=Notice.COST, member=1, value=320),
        Report(code=Notice.COST, member=0, value=270),
    ]
    assert not [effect for effect in give(core(), data(1, 1), final(1, 1, 1)) if isinstance(effect, Report)]


# Over the reliable layer.


def build(**parameters: Any) -> Callable[[Membership, int], Core]:
    def made(membership: Membership, seed: int) -> Core:
        return PROTOCOLS["abcast"].build(
            membership=membership, parameters={"reliable": RELIABLE, **parameters}, seed=seed
        )

    return made


def kinds(cluster: Cluster) -> Counter[Kind]:
    found = (message.inner for _, message in cluster.sent if not message.flags & Flag.RETRANSMISSION)
    return Counter(kind for kind in found if kind is not Kind.APPLICATION)


def check_all(cluster: Cluster, members: list[int]) -> None:
    check_ordered(cluster, members)
    assert not any(host.core.buffered for host in cluster.survivors())


def test_all_deliver_the_same_order_under_loss() -> None:
    network = Network(loss_ratio=0.1, jitter_ns=5 * MILLISECOND, duplicate_ratio=0.05)
    cluster = Cluster(5, build(outstanding=4), network=network)
    for number, member in product(range(30), range(5)):
        cluster.submit_later(member, number * 7 * MILLISECOND)
    check_all(cluster, [0, 1, 2, 3, 4])
    assert len(cluster.hosts[0].delivered) == 150


def test_the_convoy_effect_one_slow_member_delays_messages_of_others() -> None:
    """Every message needs its proposal; that is the algorithm's cost of 2d, d the largest delay."""
    fast_init, slow = Cluster(3, build()), Cluster(3, build())
    slow.lose = lambda source, target, message: target == 2 and slow.now_ns < 40 * MILLISECOND
    for cluster in (fast_init, slow):
        cluster.submit(0)
        cluster.run(for_ns=10 * MILLISECOND)
    assert [len(cluster.hosts[1].delivered) for cluster in (fast_init, slow)] == [1, 0]
    check_all(slow, [0, 1, 2])


def test_a_member_that_pauses_in_a_round_is_waited_for() -> None:
    cluster = Cluster(3, build())
    cluster.submit(0)
    cluster.at(500_000, lambda: cluster.pause(1))
    cluster.run(for_ns=SECOND)
    assert not cluster.hosts[0].delivered
    cluster.resume(1)
    check_all(cluster, [0, 1, 2])
    assert cluster.hosts[1].delivered == [(0, 1, 1)]
