"""The order of ATOP and ATOP/MBS: rule by rule, and in random worlds.

To see one world again: `python -m tests.node.test_atop_order SEED`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.errors import LocalError
from node.protocols.atop_draw import Draws, turns_of
from node.protocols.atop_lanes import MAX_COUNT
from node.protocols.atop_order import NOT_STARTED, Order, Own
from node.protocols.atop_words import FIRST, MAX_NUMBER, stamp_of
from node.protocols.joining import Life
from node.wire import Kind, Message
from tests.node.atop_world import Key, Replay, World, key_of

SMOOTH = Draws.SMOOTH
ONE, TWO, THREE = stamp_of(1, 0, 1), stamp_of(2, 0, 1), stamp_of(3, 0, 1)


def own(member: int, number: int, stamp: int = FIRST, *, slot: tuple[int, int] | None = None) -> Own:
    """A message, which is told apart by its number."""
    return Own(stamp, number, 1, message_of(member, number), slot)


def message_of(member: int, name: int, incarnation: int = 1) -> Message:
    payload = name.to_bytes(4, "big")
    return Message(kind=Kind.ATOP_DATA, origin=member, incarnation=incarnation, payload=payload)


def dummy(number: int, count: int = 1, stamp: int = FIRST) -> Own:
    return Own(stamp, number, count)


def tell(order: Order, member: int, *items: Own, incarnation: int = 1) -> list[tuple[int, int]]:
    """(member, name) of what that lets go."""
    life = (member, incarnation)
    for item in items:
        assert order.refusal(life, item) is None, order.refusal(life, item)
        order.take(life, item)
    return [(member, name) for member, _, name in map(key_of, order.advance())]


def publish(
    order: Order, stamp: int, weights: tuple[int, ...], *, member: int = 0, incarnation: int = 1
) -> list[tuple[int, int]]:
    assert order.weights_refusal((member, incarnation), stamp, weights) is None
    order.announce(stamp, weights)
    return tell(order, member, Own(stamp), incarnation=incarnation)


def end(order: Order, *lives: Life) -> list[tuple[int, int]]:
    for life in lives:
        order.ended(life)
    return [(member, name) for member, _, name in map(key_of, order.advance())]


# Turns.


def test_a_message_is_delivered_at_its_senders_turn() -> None:
    order = Order((0, 1, 2), draws=SMOOTH)
    assert tell(order, 1, own(1, 1), own(1, 2)) == []
    assert order.held == 2
    assert tell(order, 0, own(0, 1)) == [(0, 1), (1, 1)]
    assert tell(order, 2, own(2, 1)) == [(2, 1)]
    assert (order.held, order.delivered) == (1, 3)


def test_a_dummy_uses_up_turns_and_delivers_nothing() -> None:
    order = Order((0, 1), draws=SMOOTH)
    assert tell(order, 0, dummy(1, 3), own(0, 4)) == []
    assert tell(order, 1, *(own(1, number) for number in range(1, 5))) == [(1, 1), (1, 2), (1, 3), (0, 4), (1, 4)]


@pytest.mark.parametrize("draws", tuple(Draws))
def test_the_order_is_that_of_the_draws(draws: Draws) -> None:
    order = Order((4, 7, 9), draws=draws)
    place_of = {4: 0, 7: 1, 9: 2}
    delivered = []
    for number in range(1, 41):
        for member in (9, 7, 4):
            delivered += tell(order, member, own(member, number))
    turns = turns_of(draws, FIRST, (1, 1, 1))
    assert len(delivered) > 60
    for member, _ in delivered:
        assert place_of[member] == turns.first
        turns.use()


def test_who_has_passed_has_no_turn_any_more() -> None:
    order = Order((0, 1, 2), draws=SMOOTH)
    order.announce(ONE, (1, 1, 1))
    assert tell(order, 0, own(0, 1), Own(ONE)) == [(0, 1)]
    assert tell(order, 1, own(1, 1), own(1, 2)) == [(1, 1)]
    assert tell(order, 2, own(2, 1), own(2, 2)) == [(2, 1), (1, 2), (2, 2)]
    assert order.stamp == FIRST


def test_the_next_distribution_is_the_least_later_stamp_in_any_stream() -> None:
    order = Order((0, 1), draws=SMOOTH)
    order.announce(TWO, (1, 1))
    order.announce(ONE, (1, 1))
    tell(order, 1, dummy(1, stamp=TWO))
    assert order.stamp == FIRST
    assert tell(order, 0, Own(ONE), own(0, 1, ONE)) == [(0, 1)]
    assert order.stamp == ONE
    assert tell(order, 0, Own(TWO)) == []
    assert order.stamp == TWO
    assert order.highest == 2


def test_weights_that_are_not_known_yet_are_waited_for() -> None:
    order = Order((0, 1, 2), draws=SMOOTH)
    tell(order, 1, own(1, 1, ONE))
    tell(order, 2, own(2, 1, ONE))
    end(order, (1, 1))
    assert order.stamp == FIRST
    assert publish(order, ONE, (0, 1, 5)) == [(2, 1), (1, 1)], "2 has five turns in the time of one of 1"
    assert order.stamp == ONE


@pytest.mark.parametrize("publisher", [0, 1, 2])
def test_weights_are_equal_when_the_publisher_ended_without_telling(publisher: int) -> None:
    stamp = stamp_of(1, publisher, 1)
    one, two = (member for member in (0, 1, 2) if member != publisher)
    lost, equal = (Order((0, 1, 2), draws=SMOOTH) for _ in range(2))
    publish(equal, stamp, (1, 1, 1), member=publisher)
    for order in (lost, equal):
        delivered = []
        for member in (one, two):
            delivered += tell(order, member, *(own(member, number, stamp) for number in range(1, 4)))
        delivered += end(order, (publisher, 1))
        assert delivered == [(one, 1), (two, 1), (one, 2), (two, 2), (one, 3), (two, 3)]


def test_members_of_weight_0_follow_at_the_end_ascending() -> None:
    order = Order((0, 1, 2), draws=SMOOTH)
    publish(order, ONE, (1, 0, 0))
    tell(order, 2, own(2, 1, ONE))
    tell(order, 1, own(1, 1, ONE), own(1, 2, ONE))
    assert tell(order, 0, own(0, 1, ONE)) == [(0, 1)]
    order.announce(TWO, (1, 1, 1))
    assert tell(order, 0, own(0, 2, ONE), Own(TWO)) == [(0, 2)]
    assert tell(order, 2, Own(TWO)) == [], "1 comes first, and may send more"
    assert tell(order, 1, own(1, 3, ONE), Own(TWO)) == [(1, 1), (1, 2), (1, 3), (2, 1)]


def test_all_that_have_ended_have_passed() -> None:
    order = Order((0, 1), brokered=True, draws=SMOOTH)
    tell(order, 1, own(1, 1), own(1, 2))
    assert order.awaits(0)
    assert end(order, (0, 1)) == [], "its numbers may be in the hands of 1"
    assert end(order, (1, 1)) == [(1, 1), (1, 2)]
    assert order.held == 0


# Numbers of others.


def test_a_forced_turn_delivers_the_senders_next_message() -> None:
    order = Order((0, 1), brokered=True, draws=SMOOTH)
    tell(order, 1, own(1, 1), own(1, 2, slot=(0, 1)))
    assert order.delivered == 2, "the slot is 1's first turn; 1's own turn comes after that"
    assert tell(order, 0, own(0, 2)) == [(0, 2)]


def test_numbers_that_went_in_anothers_turn_are_passed_over() -> None:
    order = Order((0, 1), brokered=True, draws=SMOOTH)
    items = [own(1, 1), own(1, 2, slot=(0, 1)), own(1, 3), own(1, 4)]
    # Turns: 0, 1, 0, 1, ...: the slot takes message 1, the turn of 1 takes 2, that of 0 its own, that of 1 number 3.
    assert tell(order, 1, *items) == [(1, 1), (1, 2)]
    assert tell(order, 0, own(0, 2), own(0, 3)) == [(0, 2), (1, 3), (0, 3), (1, 4)]


def test_a_forced_turn_whose_message_has_gone_is_used_up() -> None:
    order = Order((0, 1), brokered=True, draws=SMOOTH)
    tell(order, 0, own(0, 1), own(0, 2))
    # 1's only message goes at its own first turn; the slot, number 3 of 0, comes later.
    assert tell(order, 1, own(1, 1, slot=(0, 3))) == [(1, 1), (0, 2)]
    assert tell(order, 1, own(1, 2), own(1, 3)) == [(1, 2), (1, 3)], (
        "turn 3 of 0 delivered nothing: its message is not later"
    )
    assert tell(order, 0, own(0, 4)) == [(0, 4)]


def test_a_forced_turn_takes_nothing_later_than_its_message() -> None:
    order = Order((0, 1), brokered=True, draws=SMOOTH)
    tell(order, 1, own(1, 1, slot=(0, 2)), own(1, 2), own(1, 3))
    assert tell(order, 0, own(0, 1)) == [(0, 1), (1, 1), (1, 2)], "the slot is used up, for message 1 has gone"
    assert tell(order, 0, own(0, 3)) == [(0, 3), (1, 3)]


def test_a_slot_is_used_after_its_donor_has_moved_on() -> None:
    order = Order((0, 1), brokered=True, draws=SMOOTH)
    order.announce(ONE, (1, 1))
    tell(order, 0, Own(ONE, closes=((FIRST, 2),)))
    assert order.awaits(1)
    assert tell(order, 1, own(1, 1, slot=(0, 2))) == [], "number 1 of 0 may still come"
    assert tell(order, 1, own(1, 2, slot=(0, 1))) == [(1, 1), (1, 2)]
    assert order.stamp == FIRST


def test_a_number_that_nobody_filled_is_void_when_all_have_passed() -> None:
    order = Order((0, 1, 2), brokered=True, draws=SMOOTH)
    order.announce(ONE, (1, 1, 1))
    tell(order, 0, own(0, 3), Own(ONE))
    tell(order, 1, own(1, 1), Own(ONE))
    assert order.held == 2
    assert tell(order, 2, own(2, 1), Own(ONE)) == [(1, 1), (2, 1), (0, 3)]
    assert order.stamp == ONE


def test_a_void_number_takes_its_turn() -> None:
    """So it makes no difference to others whether somebody filled it with nothing."""
    filled, void = (Order((0, 1), brokered=True, draws=SMOOTH) for _ in range(2))
    messages = [own(1, number) for number in range(1, 5)]
    for order in (filled, void):
        order.announce(ONE, (1, 1))
        tell(order, 0, own(0, 3), Own(ONE))
    tell(filled, 1, Own(FIRST, fills=((0, 1, 2),)))
    with_fill = tell(filled, 1, *messages, Own(ONE))
    assert with_fill == tell(void, 1, *messages, Own(ONE)) == [(1, 1), (1, 2), (0, 3), (1, 3), (1, 4)]


def test_a_leftover_uses_up_the_donors_turns() -> None:
    order = Order((0, 1, 2), brokered=True, draws=SMOOTH)
    tell(order, 0, own(0, 3))
    tell(order, 1, own(1, 1), own(1, 2), own(1, 3))
    assert order.delivered == 0
    assert order.awaits_turn(0) is False, "its numbers are in the hands of others"
    assert tell(order, 2, Own(FIRST, fills=((0, 1, 2),)), dummy(1, 2)) == [(1, 1), (1, 2), (0, 3), (1, 3)]


def test_what_a_donor_gave_away_last_is_told_when_it_moves_on() -> None:
    order = Order((0, 1), brokered=True, draws=SMOOTH)
    order.announce(ONE, (1, 1))
    tell(order, 0, own(0, 1), Own(ONE))
    assert tell(order, 1, own(1, 1), own(1, 2)) == [(1, 1), (1, 2)], "0 gave out one number"
    order = Order((0, 1), brokered=True, draws=SMOOTH)
    order.announce(ONE, (1, 1))
    tell(order, 0, own(0, 1), Own(ONE, closes=((FIRST, 2),)))
    assert tell(order, 1, own(1, 1), own(1, 2)) == [(1, 1)], "0 gave out two"


def test_numbers_of_the_dead_wait_until_all_have_passed() -> None:
    order = Order((0, 1, 2), brokered=True, draws=SMOOTH)
    end(order, (0, 1))
    assert tell(order, 1, own(1, 1)) == []
    assert order.awaits(1)
    assert order.awaits(2)
    assert tell(order, 2, own(2, 1, slot=(0, 1))) == [(2, 1), (1, 1)], "one of them was in somebody's hands"
    order.announce(stamp_of(1, 1, 1), (0, 1, 1))
    tell(order, 1, Own(stamp_of(1, 1, 1)))
    tell(order, 2, Own(stamp_of(1, 1, 1)))
    assert order.stamp == stamp_of(1, 1, 1)


def test_without_a_broker_the_dead_are_not_waited_for() -> None:
    order = Order((0, 1), draws=SMOOTH)
    tell(order, 1, own(1, 1), own(1, 2))
    assert end(order, (0, 1)) == [(1, 1), (1, 2)]


# Later lives.


def test_a_joiner_is_awaited_from_the_number_that_it_was_told() -> None:
    order = Order((0, 1), draws=SMOOTH)
    end(order, (1, 1))
    publish(order, ONE, (1, 1))
    order.joined((1, 2), after=1)
    assert tell(order, 0, own(0, 1, ONE)) == [(0, 1)], "it has no part in number 1"
    publish(order, TWO, (1, 1))
    assert tell(order, 0, own(0, 1, TWO)) == []
    assert order.awaits(1), "it may speak before TWO"
    joins = stamp_of(2, 1, 2)
    assert publish(order, joins, (1, 1), member=1, incarnation=2) == [(0, 1)]
    assert order.stamp == TWO, "stamps of equal number follow the members"


def test_a_joiner_may_name_an_earlier_stamp_than_all_others() -> None:
    """Everybody has passed the distribution in force, and the next one seems known: it is not the next."""
    order = Order((0, 1, 2), draws=SMOOTH)
    end(order, (2, 1))
    order.joined((2, 2), after=0)
    order.announce(TWO, (1, 1, 1))
    tell(order, 0, Own(TWO), own(0, 1, TWO))
    assert tell(order, 1, Own(TWO)) == []
    assert order.stamp == FIRST
    assert order.awaits(2)
    joins = stamp_of(1, 2, 2)
    order.announce(joins, (1, 1, 1))
    tell(order, 2, Own(joins), Own(joins, 1, 1, message_of(2, 1, 2)), incarnation=2)
    assert order.delivered == 1
    assert order.stamp == joins
    order.ended((2, 2))
    assert [key_of(message) for message in order.advance()] == [(0, 1, 1)]
    assert order.stamp == TWO


@pytest.mark.parametrize("after", [0, 1])
def test_the_silence_of_a_joiner_closes_nothing_of_its_earlier_life(after: int) -> None:
    """Who had heard of ONE when it welcomed the joiner, and who had not, find the same in ONE."""
    order = Order((0, 1, 2), brokered=True, draws=SMOOTH)
    if after:
        publish(order, ONE, (1, 1, 1))
    order.ended((1, 1))
    order.joined((1, 2), after=after)
    if not after:
        publish(order, ONE, (1, 1, 1))
    tell(order, 0, own(0, 1, ONE), own(0, 2, ONE))
    tell(order, 2, dummy(1, 2, ONE))
    publish(order, stamp_of(2, 1, 2), (1, 1, 1), member=1, incarnation=2)
    assert order.delivered == 1, "number 1 of the earlier life may be in somebody's hands"
    assert tell(order, 2, own(2, 3, ONE, slot=(1, 1))) == [(2, 3), (0, 2)]


def test_a_joiner_begins_at_its_start() -> None:
    order = Order((0, 1), draws=SMOOTH, joining=True)
    assert order.stamp == NOT_STARTED
    order.joined((0, 1), after=FIRST)
    assert tell(order, 0, own(0, 17), own(0, 18)) == [], "in the midst of a stream"
    assert order.held == 2
    assert not order.awaits(0)
    assert order.turns_ahead(0, most=10) == 0
    joins = stamp_of(4, 1, 2)
    order.joined((1, 2), after=3)
    order.announce(joins, (1, 1))
    order.start(joins)
    assert order.held == 0
    order.take((1, 2), Own(joins))
    assert tell(order, 0, own(0, 19), own(0, 20), Own(joins), own(0, 1, joins)) == [(0, 1)]
    assert order.awaits_turn(1)


@pytest.mark.parametrize("is_old", [True, False])
def test_a_joiner_tells_who_spoke_long_before_from_another_joiner(is_old: bool) -> None:
    """Both say nothing but a distribution of their own. An old life has closed what lies between."""
    order = Order((0, 1, 2), brokered=True, draws=SMOOTH, joining=True)
    order.joined((0, 1), after=FIRST)
    order.joined((1, 2), after=FIRST)
    order.joined((2, 2), after=4)
    joins = stamp_of(5, 2, 2)
    order.announce(joins, (1, 1, 1))
    order.start(joins)
    order.take((2, 2), Own(joins))
    tell(order, 0, own(0, 1, joins), own(0, 2, joins))
    later = stamp_of(6, 1, 2)
    order.announce(later, (1, 1, 1))
    tell(order, 1, Own(later, closes=((stamp_of(3, 0, 1), 7),) if is_old else ()), incarnation=2)
    for number in (1, 2):
        order.take((2, 2), Own(joins, number, 1))
    assert tell(order, 0) == ([(0, 2)] if is_old else [])


def test_joining_against_the_rules_is_refused() -> None:
    order = Order((0, 1))
    order.joined((1, 3), after=0)
    order.joined((1, 3), after=0)
    with pytest.raises(LocalError, match="after a later life"):
        order.joined((1, 2), after=0)
    publish(order, ONE, (1, 1))
    end(order, (1, 1), (1, 3))
    assert order.stamp == ONE
    with pytest.raises(LocalError, match="before the distribution in force"):
        order.joined((1, 4), after=0)
    with pytest.raises(LocalError, match="announced"):
        Order((0, 1), joining=True).start(ONE)
    order.ended((1, 9))


# What it waits for.


def test_who_is_awaited() -> None:
    order = Order((0, 1, 2), draws=SMOOTH)
    tell(order, 2, own(2, 1))
    assert [order.awaits(member) for member in (0, 1, 2)] == [True, False, False]
    tell(order, 0, dummy(1))
    assert [order.awaits_turn(member) for member in (0, 1, 2)] == [False, True, False]
    tell(order, 1, dummy(1))
    publish(order, ONE, (1, 1, 1))
    assert [order.awaits(member) for member in (0, 1, 2)] == [False, True, False], "0 has passed; 1 has the next turn"
    tell(order, 1, Own(ONE))
    tell(order, 2, Own(ONE))
    assert order.stamp == ONE


def test_a_number_given_away_is_waited_for_by_all_that_have_not_passed() -> None:
    order = Order((0, 1, 2), brokered=True, draws=SMOOTH)
    tell(order, 0, own(0, 2))
    assert [order.awaits(member) for member in (0, 1, 2)] == [True] * 3
    assert not any(order.awaits_turn(member) for member in (0, 1, 2))


def test_how_many_turns_stand_before_what_is_held() -> None:
    order = Order((0, 1, 2), draws=SMOOTH)
    tell(order, 2, own(2, 1), own(2, 2), own(2, 3))
    assert [order.turns_ahead(member, most=100) for member in (0, 1, 2)] == [3, 3, 0]
    assert order.turns_ahead(0, most=3) == 2, "of three turns of silent members, two were its"
    tell(order, 0, dummy(1, 3))
    assert [order.turns_ahead(member, most=100) for member in (0, 1, 2)] == [0, 3, 0]
    assert tell(order, 1, dummy(1, 3)) == [(2, 1), (2, 2), (2, 3)]
    assert order.turns_ahead(1, most=100) == 0


def test_looking_ahead_moves_nothing() -> None:
    one, two = Order((0, 1, 2, 3)), Order((0, 1, 2, 3))
    for number in range(1, 30):
        for member in (0, 1, 2):
            one.turns_ahead(number % 4, most=20)
            assert tell(one, member, own(member, number)) == tell(two, member, own(member, number))


def test_what_no_turn_can_bring_asks_for_no_turns() -> None:
    order = Order((0, 1), draws=SMOOTH)
    publish(order, ONE, (1, 0))
    tell(order, 1, own(1, 1, ONE))
    assert order.held == 1
    assert order.turns_ahead(0, most=100) == 0


def test_a_slot_can_bring_what_has_no_weight() -> None:
    order = Order((0, 1), brokered=True, draws=SMOOTH)
    publish(order, ONE, (1, 0))
    tell(order, 1, own(1, 1, ONE, slot=(0, 3)))
    assert order.turns_ahead(0, most=100) == 2
    assert tell(order, 0, dummy(1, 2, ONE)) == [(1, 1)]


@given(seed=st.integers(0, 2**32), draws=st.sampled_from(tuple(Draws)))
def test_a_dummy_for_all_turns_ahead_of_each_orders_everything(seed: int, draws: Draws) -> None:
    rng = Random(seed)
    members = tuple(range(rng.randint(2, 6)))
    order = Order(members, draws=draws)
    said = dict.fromkeys(members, 0)
    for _ in range(rng.randint(1, 20)):
        member = rng.choice(members)
        said[member] += 1
        tell(order, member, own(member, said[member]))
    ahead = {member: order.turns_ahead(member, most=10_000) for member in members}
    for member in members:
        if ahead[member]:
            tell(order, member, dummy(said[member] + 1, ahead[member]))
    assert order.held == 0


# Who is expelled.


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), draws=st.sampled_from(tuple(Draws)))
def test_who_is_expelled_and_does_not_know_keeps_the_order_of_the_survivors(seed: int, draws: Draws) -> None:
    """It has said what they never heard, and goes on by that."""
    rng = Random(seed)
    members = (0, 1, 2, 3)
    stamp = stamp_of(1, 1, 1)
    weights = tuple(rng.randint(1, 4) for _ in members)
    expelled, survivor = Order(members, draws=draws), Order(members, draws=draws)
    heard: list[list[tuple[int, int]]] = [[], []]
    for order, delivered in zip((expelled, survivor), heard, strict=True):
        delivered += publish(order, stamp, weights, member=1)
    heard[0] += tell(expelled, 0, dummy(1, 5, stamp), own(0, 6, stamp), dummy(7, 20, stamp))
    for number in range(1, 15):
        for member in rng.sample((1, 2, 3), 3):
            for order, delivered in zip((expelled, survivor), heard, strict=True):
                delivered += tell(order, member, own(member, number, stamp))
    heard[1] += end(survivor, (0, 1))
    both = set(heard[0]) & set(heard[1])
    assert len(both) > 5
    assert [name for name in heard[0] if name in both] == [name for name in heard[1] if name in both]


# Refusals: nothing has changed, whatever is written.

REFUSED = [
    (Own(ONE - 1), "of this group"),
    (Own(stamp_of(1, 7, 1)), "of this group"),
    (Own(stamp_of(0, 0, 1)), "of this group"),
    (Own(stamp_of(1, 0, 0)), "of this group"),
    (Own(stamp_of(MAX_NUMBER + 1, 0, 1)), "of this group"),
    (Own(-5), "goes back"),
    (Own(stamp_of(1, 0, 2)), "never took part"),
    (own(1, 2), "after 2"),
    (own(1, 4), "after 2"),
    (own(1, 1, ONE), None),
    (own(1, 2, ONE), "after 0"),
    (Own(FIRST, 3, -1), "-1 numbers"),
    (Own(FIRST, -3, 1), "from -3"),
    (Own(FIRST, 3, MAX_COUNT), None),
    (Own(FIRST, 3, MAX_COUNT + 1), "numbers from 3"),
    (Own(FIRST, MAX_NUMBER + 1, 1), "numbers from"),
    (Own(FIRST, 0, 1), "number 0 after 2"),
    (Own(FIRST, 3, 2, message_of(1, 1)), "a message with 2"),
    (Own(FIRST, 3, 0, message_of(1, 1)), "a message with 0"),
    (Own(FIRST, 0, 0, message_of(1, 1)), "without a number"),
    (own(1, 3, slot=(0, 1)), "no broker"),
    (Own(FIRST, fills=((0, 1, 1),)), "no broker"),
    (Own(ONE, closes=((FIRST, 2),)), None),
    (Own(ONE, closes=((FIRST, 3),)), "3 numbers, and 2"),
    (Own(ONE, closes=((FIRST, 1),)), "1 numbers, and 2"),
    (Own(ONE, closes=((ONE, 0),)), "closes of"),
    (Own(FIRST, closes=((FIRST, 2),)), "closes of"),
]


@pytest.mark.parametrize(("item", "why"), REFUSED)
def test_what_cannot_be_is_refused(item: Own, why: str | None) -> None:
    order = Order((0, 1, 2))
    tell(order, 1, dummy(1, 2))
    found = order.refusal((1, 1), item)
    assert (found is None) == (why is None), found
    assert why is None or why in str(found)
    assert order.highest == 0


BROKERED = [
    (own(1, 9), None),
    (own(1, MAX_COUNT + 3), None),
    (own(1, MAX_COUNT + 4), "may be given away"),
    (own(1, 9, slot=(0, 4)), None),
    (own(1, 9, slot=(5, 4)), "slot"),
    (own(1, 9, slot=(0, 0)), "slot"),
    (Own(FIRST, 9, 1, None, (0, 4)), "slot"),
    (Own(FIRST, slot=(0, 4)), "without a number"),
    (Own(FIRST, 5), None),
    (Own(FIRST, 2), "after 2"),
    (Own(FIRST, fills=((0, 1, 1), (2, 1, MAX_COUNT))), None),
    (Own(FIRST, fills=((0, 1, 0),)), "fill"),
    (Own(FIRST, fills=((5, 1, 1),)), "fill"),
    (Own(FIRST, fills=((0, 0, 1),)), "fill"),
    (Own(FIRST, fills=((0, 1, MAX_COUNT + 1),)), "fill"),
    (Own(TWO, closes=((FIRST, 9), (ONE, 4))), None),
    (Own(TWO, closes=((ONE, 4), (FIRST, 9))), "closes of"),
    (Own(TWO, closes=((FIRST, MAX_NUMBER + 1),)), "numbers, and 2"),
]


@pytest.mark.parametrize(("item", "why"), BROKERED)
def test_what_cannot_be_with_a_broker_is_refused(item: Own, why: str | None) -> None:
    order = Order((0, 1, 2), brokered=True)
    tell(order, 1, dummy(1, 2))
    found = order.refusal((1, 1), item)
    assert (found is None) == (why is None), found
    assert why is None or why in str(found)


def test_who_does_not_take_part_is_refused() -> None:
    order = Order((0, 1, 2))
    end(order, (1, 1))
    for life in ((1, 1), (1, 2), (7, 1)):
        assert order.refusal(life, own(life[0], 1)) == f"life {life} does not take part"
        assert order.weights_refusal(life, ONE, (1, 1, 1)) == f"life {life} does not take part"
    order.joined((1, 2), after=3)
    assert "has no part" in str(order.refusal((1, 2), Own(stamp_of(3, 1, 2))))
    assert order.refusal((1, 2), Own(stamp_of(4, 1, 2))) is None
    assert order.refusal((1, 2), own(1, 1)) is not None, "a later life does not speak under the first stamp"


@pytest.mark.parametrize(
    ("stamp", "weights", "why"),
    [
        (ONE, (1, 1, 1), None),
        (ONE, (0, 0, MAX_NUMBER), None),
        (ONE, (1, 1), "2 weights"),
        (ONE, (0, 0, 0), "no weights"),
        (ONE, (1, -1, 1), "no weights"),
        (ONE, (1, 1, MAX_NUMBER + 1), "no weights"),
        (stamp_of(1, 1, 1), (1, 1, 1), "publishes a distribution of"),
        (FIRST, (1, 1, 1), "publishes a distribution of"),
        (stamp_of(0, 0, 1), (1, 1, 1), "of this group"),
    ],
)
def test_weights_that_cannot_be_are_refused(stamp: int, weights: tuple[int, ...], why: str | None) -> None:
    order = Order((0, 1, 2))
    found = order.weights_refusal((0, 1), stamp, weights)
    assert (found is None) == (why is None), found
    assert why is None or why in str(found)
    publish(order, ONE, (1, 1, 1))
    assert "not later" in str(order.weights_refusal((0, 1), ONE, (1, 1, 1)))


def test_an_enemys_numbers_far_away_cost_nothing() -> None:
    """A slot of the dead at the other end of all numbers must not be walked up to."""
    order = Order((0, 1), brokered=True, draws=SMOOTH)
    tell(order, 1, own(1, 1, slot=(0, MAX_NUMBER)), Own(FIRST, fills=((0, MAX_NUMBER // 2, 1),)))
    assert end(order, (0, 1), (1, 1)) == [(1, 1)]


# Random worlds.


def hold(seed: int) -> list[Key]:
    """One world, heard in many ways; returns the one sequence."""
    rng = Random(f"{seed}/kind")
    brokered = rng.random() < 0.6
    world = World(seed, brokered=brokered, draws=rng.choice(tuple(Draws)))
    try:
        world.run(rng.choice((40, 120, 300)))
        sequences = [Replay(world, Random(f"{seed}/replay {which}")).run() for which in range(3)]
        check(world, sequences)
    except AssertionError as error:
        error.add_note(f"to see it again: python -m tests.node.test_atop_order {seed}")
        raise
    return sequences[0]


def check(world: World, sequences: list[list[Key]]) -> None:
    sequence = sequences[0]
    assert all(other == sequence for other in sequences), "the order depends on who heard what first"
    stamps = world.stamps()
    assert len(set(sequence)) == len(sequence), "delivered twice"
    assert set(sequence) == set(stamps), "all have passed, and not everything was delivered"
    for being in world.living:
        assert being.order.held == 0
        # A joiner has a suffix.
        assert being.delivered == [key for key in sequence if stamps[key] >= being.began], f"life {being.life}"
    for being in world.beings.values():
        assert is_fifo(being.delivered)
        # Numbers of others and lost weights can change the order of who is expelled; see the header of the order.
        if not world.brokered and not world.lost_stamps():
            place = {key: at for at, key in enumerate(sequence)}
            common = [place[key] for key in being.delivered if key in place]
            assert common == sorted(common), f"life {being.life}, expelled, has an order of its own"


def is_fifo(keys: Iterable[Key]) -> bool:
    last: dict[Life, int] = {}
    for member, incarnation, number in keys:
        if last.get((member, incarnation), number - 1) != number - 1:
            return False
        last[member, incarnation] = number
    return True


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_everybody_delivers_the_same_sequence(seed: int) -> None:
    hold(seed)


@pytest.mark.parametrize("seed", [1686, 79, 284, 190])
def test_worlds_that_once_found_something(seed: int) -> None:
    assert hold(seed)


def digest(seeds: Iterable[int]) -> str:
    return f"{zlib.crc32(repr([hold(seed) for seed in seeds]).encode()):08x}"


def test_a_world_repeats_itself_under_any_hash_seed() -> None:
    here = digest(range(3))
    for hash_seed in ("0", "4711"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.node.test_atop_order", "0", "1", "2"],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == here


if __name__ == "__main__":
    sys.stdout.write(digest(map(int, sys.argv[1:])) + "\n")
