"""Skeen's order: one round word for word, the edge cases and the bugs on record, who ends and who joins.

Random histories are in test_random.py, random orders of news in test_abcast_contract.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from node.clocks import MAX_TIMESTAMP
from node.core import Core, Membership, Submission
from node.effects import CancelTimer, Deliver, Effect, Multicast, Report, Send, SetTimer, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.protocols import PROTOCOLS
from node.protocols.abcast import (
    ASK,
    MOST_OUTSTANDING,
    MOST_WHILE_JOINING,
    AbcastCore,
    AbcastParameters,
    AbcastReport,
    Phase,
)
from node.protocols.joining import ASK_AGAIN_NS
from node.protocols.standstill import PROD, PROD_AFTER_NS
from node.protocols.words import pack
from node.trace import Notice
from node.wire import LOCAL_KINDS, Flag, Kind, Message, decode_message
from tests.node.cluster import (
    MILLISECOND,
    SECOND,
    Cluster,
    Network,
    check_ordered,
)
from tests.node.scenarios import RELIABLE

MEMBERS = (0, 1, 2)
CONTROL = Flag.CONTROL.value


# The core alone.


def core(member: int = 0, *, members: tuple[int, ...] = MEMBERS, incarnation: int = 1, **parameters: Any) -> AbcastCore:
    made = AbcastCore(
        membership=Membership(member=member, members=members, incarnation=incarnation),
        parameters=AbcastParameters(**parameters),
    )
    assert made.on_start(0) == []
    return made


def data(origin: int, number: int, payload: bytes = b"", incarnation: int = 1) -> Message:
    return Message(kind=Kind.ABCAST_DATA, origin=origin, incarnation=incarnation, seq=number, payload=payload)


def proposal(origin: int, number: int, timestamp: int, *, incarnation: int = 1, to: int = 1) -> Message:
    return Message(
        kind=Kind.ABCAST_PROPOSAL,
        origin=origin,
        incarnation=incarnation,
        seq=number,
        flags=CONTROL,
        words=(timestamp, to),
    )


def final(origin: int, number: int, *timestamps: int, incarnation: int = 1) -> Message:
    return Message(
        kind=Kind.ABCAST_FINAL, origin=origin, incarnation=incarnation, seq=number, flags=CONTROL, words=timestamps
    )


def join(origin: int, incarnation: int = 2) -> Message:
    return Message(kind=Kind.ABCAST_JOIN, origin=origin, incarnation=incarnation, flags=CONTROL)


def welcome(
    origin: int, timestamp: int, *listed: tuple[int, int], incarnation: int = 1, to: tuple[int, int] = (2, 2)
) -> Message:
    words = tuple(pack(*life, 0) for life in (to, *listed))
    return Message(
        kind=Kind.ABCAST_WELCOME, origin=origin, incarnation=incarnation, seq=timestamp, flags=CONTROL, words=words
    )


def ended(member: int, incarnation: int = 1) -> Message:
    return Message(kind=Kind.RELIABLE_ENDED, origin=member, incarnation=incarnation)


def joined(member: int, incarnation: int = 1) -> Message:
    return Message(kind=Kind.RELIABLE_JOINED, origin=member, incarnation=incarnation)


def give(one: AbcastCore, *messages: Message, now_ns: int = 0) -> list[Effect]:
    return [effect for message in messages for effect in one.on_message(message, message.origin, now_ns)]


def submit(one: AbcastCore, payload: bytes = b"", now_ns: int = 0) -> list[Effect]:
    return one.on_submit(Submission(payload=payload), now_ns)


def delivered(effects: list[Effect]) -> list[tuple[int, int]]:
    """(origin, number) of what was delivered."""
    return [(effect.origin, effect.seq) for effect in effects if isinstance(effect, Deliver)]


def multicast(effects: list[Effect]) -> list[tuple[Kind, int, tuple[int, ...]]]:
    said = (effect.message for effect in effects if isinstance(effect, Multicast))
    return [(message.kind, message.seq, message.words) for message in said]


def sent(effects: list[Effect]) -> list[tuple[int, Kind, int, int]]:
    """(target, kind, seq, first word)."""
    said = ((effect.target, effect.message) for effect in effects if isinstance(effect, Send))
    return [(target, message.kind, message.seq, message.words[0]) for target, message in said]


def refused(effects: list[Effect]) -> list[DropReason]:
    return [
        DropReason(effect.code) for effect in effects if isinstance(effect, Report) and effect.code in set(DropReason)
    ]


def joiner(*, members: tuple[int, ...] = MEMBERS) -> AbcastCore:
    """Member 2, in its second life; members 0 and 1 live, others have ended."""
    made = core(2, members=members, incarnation=2)
    gone = [ended(member) for member in members[3:]]
    give(made, *gone, joined(0), joined(1), joined(2, 2))
    return made


# The paper's sentences.


def test_the_initiator_multicasts_its_message_and_proposes_for_it_itself() -> None:
    one = core()
    effects = one.on_submit(Submission(payload=b"x", flags=Flag.DUMMY.value), 0)
    assert effects == [
        Multicast(message=Message(kind=Kind.ABCAST_DATA, origin=0, incarnation=1, seq=1, flags=1, payload=b"x")),
        SetTimer(timer=PROD, at_ns=PROD_AFTER_NS),
    ]
    assert (one.timestamp, one.held, one.is_idle) == (1, 1, False)


def test_the_receiver_returns_a_timestamp_of_its_logical_clock() -> None:
    one = core()
    (effect, _) = give(one, data(1, 1, b"x"))
    message = Message(kind=Kind.ABCAST_PROPOSAL, origin=0, incarnation=1, seq=1, flags=CONTROL, words=(1, 1))
    assert effect == Send(target=1, message=message)
    assert sent(give(one, data(2, 1))) == [(2, Kind.ABCAST_PROPOSAL, 1, 2)], "the clock counts"


def test_the_sender_sends_the_latest_of_all_timestamps_when_it_has_them_all() -> None:
    one = core()
    submit(one)
    assert give(one, proposal(1, 1, 9)) == []
    effects = give(one, proposal(2, 1, 4))
    assert multicast(effects) == [(Kind.ABCAST_FINAL, 1, (9,))]
    assert delivered(effects) == [(0, 1)]
    assert (one.timestamp, one.held, one.is_idle) == (9, 0, True)
    assert effects[-1] == CancelTimer(timer=PROD), "nothing waits any more"


def test_the_receivers_decide_the_order_of_delivery_by_it() -> None:
    one = core()
    assert delivered(give(one, data(1, 1, b"one"), data(2, 1))) == []
    assert delivered(give(one, final(1, 1, 7))) == [], "that of 2 may be earlier"
    effects = give(one, final(2, 1, 5))
    assert delivered(effects) == [(2, 1), (1, 1)]
    assert Deliver(payload=b"one", origin=1, incarnation=1, seq=1) in effects


def test_one_round_word_for_word() -> None:
    """Three members, one message of member 1, with nothing else under way."""
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
        (1, "ABCAST_DATA", 1, ()),
        (0, "ABCAST_PROPOSAL", 1, (1, 1)),
        (2, "ABCAST_PROPOSAL", 1, (1, 1)),
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
    """Else m, final at 10, is delivered with the clock at 1; m2 gets 2 here and 9 elsewhere, is final at 9, and others
    deliver it before m.
    """
    one = core()
    assert delivered(give(one, data(1, 1), final(1, 1, 10))) == [(1, 1)]
    assert sent(give(one, data(2, 1))) == [(2, Kind.ABCAST_PROPOSAL, 1, 11)]
    assert refused_by_error(one, final(2, 1, 9)) is DropReason.MALFORMED, "nobody who asked us can say that"


def test_the_initiators_own_clock_jumps_too() -> None:
    one = core()
    submit(one)
    give(one, proposal(1, 1, 10), proposal(2, 1, 3))
    assert sent(give(one, data(1, 1))) == [(1, Kind.ABCAST_PROPOSAL, 1, 11)]


def test_ties_are_broken_in_one_way_for_what_is_tentative_and_what_is_final() -> None:
    """By who initiates, not by who proposes."""
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
    assert (one.timestamp, one.held) == (5, 0)


def test_data_that_comes_twice_gets_no_second_proposal() -> None:
    one = core()
    give(one, data(1, 1))
    assert refused_by_error(one, data(1, 1)) is DropReason.MALFORMED
    assert (one.timestamp, one.held) == (1, 1)


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


def test_messages_of_one_initiator_keep_their_order_when_who_proposed_most_has_ended() -> None:
    """2 proposes 100 for the first; it ends before it has seen the second, for which the others propose less."""
    one = core()
    submit(one)
    submit(one)
    give(one, proposal(2, 1, 100), proposal(1, 1, 1), proposal(1, 2, 2))
    effects = give(one, ended(2))
    assert multicast(effects) == [(Kind.ABCAST_FINAL, 2, (101,))]
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


# Who may speak.


def test_bug_10_who_is_no_member_is_not_heard() -> None:
    one = core()
    submit(one)
    for stranger in (data(2, 1, incarnation=2), final(1, 1, 3, incarnation=2), proposal(2, 1, 3, incarnation=2)):
        assert refused(give(one, stranger)) == [DropReason.UNEXPECTED]
    give(one, ended(2))
    assert refused(give(one, data(2, 1))) == [DropReason.UNEXPECTED], "its end has been agreed"
    assert one.held == 1


def test_bug_10_over_corrected_who_has_joined_is_heard() -> None:
    one = core()
    give(one, ended(2), joined(2, 2), join(2))
    assert sent(give(one, data(2, 1, incarnation=2))) == [(2, Kind.ABCAST_PROPOSAL, 1, 1)]
    submit(one)
    give(one, proposal(1, 1, 3))
    effects = give(one, proposal(2, 1, 8, incarnation=2))
    assert multicast(effects) == [(Kind.ABCAST_FINAL, 1, (8,))]


def test_bug_10_over_corrected_what_was_sent_before_an_end_is_heard_until_then() -> None:
    """The news of the end comes after all of the stream."""
    one = core()
    assert delivered(give(one, data(2, 1), data(2, 2), final(2, 1, 1), ended(1), final(2, 2, 2))) == [(2, 1), (2, 2)]


def test_a_proposal_to_an_earlier_life_of_ours_does_not_count() -> None:
    """Flow control may hold it back until we have joined."""
    one = joiner()
    give(one, welcome(0, 4), welcome(1, 4))
    submit(one)
    effects = give(one, proposal(0, 1, 50, to=1), proposal(0, 1, 6, to=2), proposal(1, 1, 7, to=2))
    assert refused(effects) == [DropReason.STALE_INCARNATION]
    assert multicast(effects) == [(Kind.ABCAST_FINAL, 1, (7,))]


def refused_by_error(one: AbcastCore, message: Message) -> DropReason:
    before = (one.timestamp, one.held, one.is_idle, one.phase)
    with pytest.raises(RemoteError) as caught:
        one.on_message(message, message.origin, 0)
    assert (one.timestamp, one.held, one.is_idle, one.phase) == before
    return caught.value.reason


@pytest.mark.parametrize(
    "wrong",
    [
        data(1, 0),
        data(1, 2),
        data(1, 5),
        final(1, 3, 9),
        final(1, 2, 5),
        final(1, 1, 1, 1),
        final(1, 1, 0),
        final(1, 1, MAX_TIMESTAMP + 1),
        final(1, 1, 4, 3),
        final(1, 1, 4, 5, 6, 7),
        welcome(1, MAX_TIMESTAMP + 1, to=(0, 1)),
        welcome(1, 5),
        Message(kind=Kind.ABCAST_WELCOME, origin=1, incarnation=1, seq=5),
    ],
    ids=lambda message: f"{message.kind.name} {message.seq} {message.words}",
)
def test_what_nobody_says_is_refused_before_anything_changes(wrong: Message) -> None:
    one = core()
    give(one, data(1, 1), data(2, 1), data(1, 2), data(1, 3))
    if (wrong.kind, wrong.seq) == (Kind.ABCAST_FINAL, 2):
        give(one, ended(2))
    reason = refused_by_error(one, wrong)
    assert reason is DropReason.MALFORMED


@pytest.mark.parametrize("words", [(), (1,), (0, 1), (MAX_TIMESTAMP + 1, 1), (1, 1, 1)])
def test_a_proposal_that_cannot_be_is_ignored(words: tuple[int, ...]) -> None:
    one = core()
    submit(one)
    message = Message(kind=Kind.ABCAST_PROPOSAL, origin=1, incarnation=1, seq=1, words=words)
    assert refused(give(one, message)) == [DropReason.MALFORMED]


def test_a_final_timestamp_below_our_own_proposal_is_refused() -> None:
    one = core()
    give(one, data(2, 1), data(2, 2), data(1, 1))
    assert refused_by_error(one, final(1, 1, 2)) is DropReason.MALFORMED
    assert delivered(give(one, final(2, 1, 1, 2), final(1, 1, 3))) == [(2, 1), (2, 2), (1, 1)]


def test_nobody_fills_our_memory_with_what_never_becomes_final() -> None:
    one = core()
    give(one, *(data(1, number) for number in range(1, MOST_OUTSTANDING + 1)))
    assert refused_by_error(one, data(1, MOST_OUTSTANDING + 1)) is DropReason.MALFORMED
    assert one.held == MOST_OUTSTANDING


def test_nobody_fills_our_memory_with_what_is_final_while_we_join() -> None:
    one = joiner()
    for first in range(1, MOST_WHILE_JOINING + 1, MOST_OUTSTANDING):
        numbers = range(first, first + MOST_OUTSTANDING)
        give(one, *(data(0, number) for number in numbers), final(0, first, *numbers))
    assert refused_by_error(one, data(0, MOST_WHILE_JOINING + 1)) is DropReason.MALFORMED
    assert one.held == MOST_WHILE_JOINING
    give(one, data(1, 1))
    assert one.held == MOST_WHILE_JOINING + 1


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("kind", Kind, ids=lambda kind: str(kind.name))
def test_every_phase_takes_or_refuses_every_message(phase: Phase, kind: Kind) -> None:
    for words, seq, origin in product(((), (1, 1), (pack(1, 1, 0),)), (0, 1, MAX_TIMESTAMP, 2**64 - 1), MEMBERS):
        one = in_phase(phase)
        message = Message(kind=kind, origin=origin, incarnation=1, seq=seq, words=words)
        try:
            effects = one.on_message(message, origin, 0)
        except RemoteError as error:
            assert error.reason in (DropReason.MALFORMED, DropReason.UNEXPECTED)
            continue
        if kind >> 4 != 0xB and (kind not in LOCAL_KINDS or kind is Kind.APPLICATION):
            assert effects == [Report(code=DropReason.UNEXPECTED, member=origin)]


def in_phase(phase: Phase) -> AbcastCore:
    if phase is Phase.JOINING:
        return core(0, incarnation=2)
    one = core(0)
    if phase is Phase.EXHAUSTED:
        give(one, data(1, 1), final(1, 1, MAX_TIMESTAMP), data(1, 2))
    assert one.phase is phase
    return one


def test_a_clock_at_its_end_stops_the_order_safely() -> None:
    one = core()
    submit(one)
    effects = give(one, data(1, 1), final(1, 1, MAX_TIMESTAMP), data(2, 1))
    assert Report(code=AbcastReport.EXHAUSTED, member=0, value=MAX_TIMESTAMP) in effects
    assert (one.phase, one.can_submit, delivered(effects)) == (Phase.EXHAUSTED, False, [])
    with pytest.raises(LocalError, match="can_submit"):
        submit(one)


def test_no_final_timestamp_is_beyond_the_last() -> None:
    one = core()
    submit(one)
    submit(one)
    effects = give(one, proposal(1, 1, MAX_TIMESTAMP), proposal(2, 1, 1), proposal(1, 2, 2), proposal(2, 2, 2))
    assert multicast(effects) == [(Kind.ABCAST_FINAL, 1, (MAX_TIMESTAMP,))]
    assert (one.phase, one.held) == (Phase.EXHAUSTED, 2), "the first waits for the second, which was tentative before"


def test_what_it_cannot_do_is_our_callers_mistake() -> None:
    with pytest.raises(LocalError, match="order multicasts"):
        core().on_submit(Submission(payload=b"", target=2), 0)
    with pytest.raises(LocalError, match="no timer"):
        core().on_timer(Timer("tick"), 0)
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


# Ends.


def test_who_has_ended_is_not_awaited_any_more() -> None:
    one = core()
    submit(one)
    give(one, proposal(1, 1, 4))
    assert multicast(give(one, ended(2))) == [(Kind.ABCAST_FINAL, 1, (4,))]
    give(one, ended(1))
    effects = submit(one)
    assert [kind for kind, _, _ in multicast(effects)] == [Kind.ABCAST_DATA, Kind.ABCAST_FINAL]
    assert delivered(effects) == [(0, 2)], "alone"


def test_what_was_not_final_when_its_initiator_ended_is_dropped() -> None:
    """Its stream is complete: no survivor has the final timestamp."""
    one = core()
    give(one, data(1, 1), data(1, 2), data(2, 1), final(2, 1, 3))
    effects = give(one, final(1, 1, 4), ended(1))
    assert Report(code=AbcastReport.LOST, member=1, value=1) in effects
    assert delivered(effects) == [(2, 1), (1, 1)]
    assert one.is_idle


def test_bug_11_what_is_final_when_its_initiator_has_ended_is_delivered_in_its_turn() -> None:
    """All survivors have it, and some have delivered it."""
    one = core()
    give(one, data(2, 1), data(1, 1), final(1, 1, 5))
    assert delivered(give(one, ended(1))) == []
    assert delivered(give(one, final(2, 1, 3))) == [(2, 1), (1, 1)]


def test_who_stands_still_says_something_that_must_be_acknowledged() -> None:
    one = core()
    give(one, data(1, 1))
    effects = one.on_timer(PROD, PROD_AFTER_NS)
    assert multicast(effects) == [(Kind.ABCAST_FINAL, 1, ())]
    assert effects[-1] == SetTimer(timer=PROD, at_ns=3 * PROD_AFTER_NS)
    assert give(core(1), final(0, 1)) == [], "it says nothing else"


# Joins.


def test_a_member_answers_a_joiner_with_its_clock() -> None:
    one = core()
    give(one, data(1, 1), final(1, 1, 11), ended(2))
    assert give(one, joined(2, 2)) == []
    assert give(one, join(2)) == [Send(target=2, message=welcome(0, 11, (1, 1)))]


def test_it_answers_when_all_that_it_sent_before_is_final() -> None:
    one = core()
    give(one, ended(2))
    submit(one)
    give(one, joined(2, 2))
    assert sent(give(one, join(2))) == []
    submit(one)
    effects = give(one, proposal(1, 1, 30))
    assert multicast(effects) == [(Kind.ABCAST_FINAL, 1, (30,))], "without the joiner"
    assert [(target, kind, clock) for target, kind, clock, _ in sent(effects)] == [(2, Kind.ABCAST_WELCOME, 30)]
    assert multicast(give(one, proposal(1, 2, 31))) == [], "the second needs the joiner"
    assert multicast(give(one, proposal(2, 2, 7, incarnation=2))) == [(Kind.ABCAST_FINAL, 2, (31,))]


def test_a_joiner_that_proposes_unasked_is_not_counted_nor_blamed() -> None:
    """It cannot know which messages it is not awaited for."""
    one = core()
    give(one, ended(2))
    submit(one)
    give(one, joined(2, 2), join(2))
    assert give(one, proposal(2, 1, 99, incarnation=2)) == []
    assert multicast(give(one, proposal(1, 1, 3))) == [(Kind.ABCAST_FINAL, 1, (3,))]


def test_after_an_end_joiners_that_have_not_spoken_are_answered_anew() -> None:
    one = core()
    give(one, ended(2), joined(2, 2), join(2))
    assert [kind for _, kind, _, _ in sent(give(one, ended(1)))] == [Kind.ABCAST_WELCOME]
    give(one, final(2, 1, incarnation=2), joined(1, 2), join(1))
    assert sent(give(one, ended(1, 2))) == [], "member 2 has spoken, and member 1 is gone"


def test_a_joiner_asks_everybody_when_it_is_a_member_and_again() -> None:
    one = core(2, incarnation=2)
    assert (one.phase, one.can_submit, one.is_idle) == (Phase.JOINING, False, False)
    effects = give(one, joined(0), joined(1), joined(2, 2))
    assert effects == [Multicast(message=join(2)), SetTimer(timer=ASK, at_ns=ASK_AGAIN_NS)]
    again = SetTimer(timer=ASK, at_ns=3 * ASK_AGAIN_NS)
    assert one.on_timer(ASK, ASK_AGAIN_NS) == [Multicast(message=join(2)), again], "who answered nobody may be gone"
    effects = give(one, welcome(0, 4), welcome(1, 10))
    assert CancelTimer(timer=ASK) in effects
    assert Report(code=AbcastReport.WELCOMED, member=2, value=10) in effects
    assert multicast(effects) == [(Kind.ABCAST_FINAL, 1, ())], "so that nobody answers it any more"
    assert one.is_idle


def test_a_joiner_proposes_and_delivers_what_is_later_than_the_last_welcome() -> None:
    one = joiner()
    assert sent(give(one, data(0, 7))) == [(0, Kind.ABCAST_PROPOSAL, 7, 1)]
    assert delivered(give(one, final(0, 7, 3), welcome(0, 4), data(0, 8), welcome(1, 10))) == []
    assert delivered(give(one, final(0, 8, 10), data(0, 9), final(0, 9, 12))) == [(0, 9)]
    submit(one)
    assert multicast(give(one, proposal(0, 1, 4, to=2), proposal(1, 1, 5, to=2))) == [(Kind.ABCAST_FINAL, 1, (13,))]


def test_what_a_joiner_holds_keeps_its_turn_when_it_begins() -> None:
    one = joiner()
    give(one, welcome(0, 4), data(0, 8), welcome(1, 4))
    assert delivered(give(one, data(1, 3), final(1, 3, 9))) == []
    assert delivered(give(one, final(0, 8, 6))) == [(0, 8), (1, 3)]


def test_a_joiner_bears_finals_of_what_it_was_not_awaited_for() -> None:
    """Less than its own proposal, or of messages whose DATA was before its part of the stream."""
    one = joiner()
    give(one, data(1, 5), data(0, 8))
    assert give(one, final(0, 6, 1, 1 + 1, 3)) == []
    assert delivered(give(one, final(1, 4, 3, 4), welcome(0, 4), welcome(1, 4))) == []
    assert (one.held, one.phase) == (0, Phase.RUNNING)
    assert refused_by_error(one, final(1, 7, 5)) is DropReason.MALFORMED


def test_a_joiner_waits_while_a_life_is_listed_in_whose_stream_it_has_no_part() -> None:
    one = joiner(members=(0, 1, 2, 3))
    give(one, welcome(0, 4, (1, 1), (3, 1)), welcome(1, 10))
    assert not one.can_submit, "member 0 has not received all of member 3 yet"
    give(one, data(0, 1), welcome(0, 30, (1, 1)))
    assert one.phase is Phase.RUNNING
    assert delivered(give(one, final(0, 1, 30), data(0, 2), final(0, 2, 31))) == [(0, 2)]


def test_an_end_while_joining_takes_one_less_to_wait_for() -> None:
    one = joiner()
    give(one, data(1, 3), welcome(0, 4))
    effects = give(one, ended(1))
    assert Report(code=AbcastReport.LOST, member=1, value=1) in effects
    assert (one.phase, one.held) == (Phase.RUNNING, 0)


def test_joiners_answer_and_await_each_other() -> None:
    one = core(1, incarnation=2)
    give(one, joined(0), joined(2, 2), joined(1, 2))
    assert sent(give(one, join(2)))[0][:2] == (2, Kind.ABCAST_WELCOME)
    give(one, welcome(0, 9, to=(1, 2)), welcome(2, 3, (0, 1), incarnation=2, to=(1, 2)))
    assert one.phase is Phase.RUNNING
    submit(one)
    give(one, proposal(0, 1, 4, to=2))
    assert multicast(give(one, proposal(2, 1, 12, to=2, incarnation=2))) == [(Kind.ABCAST_FINAL, 1, (12,))]


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
    assert not any(host.core.held for host in cluster.survivors())


def test_a_group_at_rest_is_silent() -> None:
    cluster = Cluster(4, build())
    cluster.submit(0, 3)
    cluster.run()
    transmitted = len(cluster.sent)
    cluster.run(for_ns=3600 * SECOND)
    assert len(cluster.sent) == transmitted


def test_all_deliver_the_same_order_under_loss() -> None:
    network = Network(loss_ratio=0.1, jitter_ns=5 * MILLISECOND, duplicate_ratio=0.05)
    cluster = Cluster(5, build(outstanding=4), network=network)
    for number, member in product(range(30), range(5)):
        cluster.submit_later(member, number * 7 * MILLISECOND)
    check_all(cluster, [0, 1, 2, 3, 4])
    assert len(cluster.hosts[0].delivered) == 150


def test_the_convoy_effect_one_slow_member_delays_messages_of_others() -> None:
    """Whatever is initiated needs its proposal; that is the algorithm's cost of 2d, d the largest delay."""
    quick, slow = Cluster(3, build()), Cluster(3, build())
    slow.lose = lambda source, target, message: target == 2 and slow.now_ns < 40 * MILLISECOND
    for cluster in (quick, slow):
        cluster.submit(0)
        cluster.run(for_ns=10 * MILLISECOND)
    assert [len(cluster.hosts[1].delivered) for cluster in (quick, slow)] == [1, 0]
    check_all(slow, [0, 1, 2])


# Crashes in every phase of a round.

PHASES = {
    "before anything leaves": 0,
    "with the data under way": 500_000,
    "with the proposals under way": 1_500_000,
    "with the final timestamp under way": 2_500_000,
    "when all is delivered": 3_500_000,
}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("victim", [0, 1], ids=["initiator", "member"])
@pytest.mark.parametrize("returns", [False, True], ids=["for good", "and comes back"])
def test_a_crash_in_each_phase_neither_blocks_nor_splits_the_group(phase: str, victim: int, returns: bool) -> None:
    cluster = Cluster(4, build())
    cluster.submit(0)
    cluster.submit(3)
    cluster.at(PHASES[phase], lambda: cluster.crash(victim))
    if returns:
        cluster.at(PHASES[phase] + 300 * MILLISECOND, lambda: cluster.restart(victim))
    survivors = [member for member in cluster.members if member != victim]
    for member in survivors:
        cluster.submit_later(member, 100 * MILLISECOND)
    if returns:
        cluster.submit_later(victim, 10 * SECOND)
    check_all(cluster, survivors)
    has_final = phase in ("with the final timestamp under way", "when all is delivered")
    for member in survivors:
        found = cluster.hosts[member].delivered
        assert (0, 1, 1) in found or (victim == 0 and not has_final)
        assert (victim, 2, 1) in found or not returns


@pytest.mark.parametrize("victim", [0, 1], ids=["initiator", "member"])
def test_a_final_timestamp_that_reached_one_reaches_all(victim: int) -> None:
    """Half of the initiator's last multicast is lost with it."""
    cluster = Cluster(4, build())
    cluster.submit(victim)
    cluster.lose = lambda source, target, message: (
        source == victim and target != 3 and message.inner is Kind.ABCAST_FINAL
    )
    cluster.at(2_500_000, lambda: cluster.crash(victim))
    survivors = [member for member in cluster.members if member != victim]
    check_all(cluster, survivors)
    assert [cluster.hosts[member].delivered for member in survivors] == [[(victim, 1, 1)]] * 3


def test_who_crashes_owing_nothing_but_a_proposal_is_missed() -> None:
    """It has acknowledged the data, and its proposal is lost with it: only the order misses it."""
    cluster = Cluster(3, build(reliable={**RELIABLE, "window": 8}))
    cluster.lose = lambda source, target, message: (source, message.kind) == (1, Kind.RELIABLE_UNICAST)
    cluster.submit(0)
    cluster.at(80 * MILLISECOND, lambda: cluster.crash(1))
    check_all(cluster, [0, 2])
    assert [cluster.hosts[member].delivered for member in (0, 2)] == [[(0, 1, 1)]] * 2


def test_an_initiator_that_crashes_when_it_has_acknowledged_all_proposals_is_missed() -> None:
    """It waits for that of 1, which crashes with it; nobody below misses either of them."""
    cluster = Cluster(5, build())
    cluster.lose = lambda source, target, message: (source, message.kind) == (1, Kind.RELIABLE_UNICAST)
    cluster.submit(0)
    cluster.at(500 * MILLISECOND, lambda: cluster.crash(0))
    cluster.at(500 * MILLISECOND, lambda: cluster.crash(1))
    check_all(cluster, [2, 3, 4])
    assert [cluster.hosts[member].delivered for member in (2, 3, 4)] == [[]] * 3
    lost = [report for report in cluster.hosts[2].reports if report.code == AbcastReport.LOST]
    assert lost == [Report(code=AbcastReport.LOST, member=0, value=1)]


def test_a_member_that_pauses_in_a_round_is_waited_for() -> None:
    cluster = Cluster(3, build())
    cluster.submit(0)
    cluster.at(500_000, lambda: cluster.pause(1))
    cluster.run(for_ns=SECOND)
    assert not cluster.hosts[0].delivered
    cluster.resume(1)
    check_all(cluster, [0, 1, 2])
    assert cluster.hosts[1].delivered == [(0, 1, 1)]


def test_members_that_join_under_load_have_all_from_some_message_on() -> None:
    cluster = Cluster(5, build(outstanding=4), network=Network(jitter_ns=3 * MILLISECOND, loss_ratio=0.05))
    for number, member in product(range(150), range(5)):
        cluster.submit_later(member, number * 20 * MILLISECOND)
    for at, member in enumerate((3, 4, 3), 1):
        cluster.at(at * 400 * MILLISECOND, lambda member=member: cluster.restart(member))  # type: ignore[misc]
    check_all(cluster, [0, 1, 2])
    reference = cluster.hosts[0].delivered
    for member in (3, 4):
        tail = cluster.hosts[member].delivered
        assert len(tail) > 100
        assert reference[-len(tail) :] == tail
