"""The order of ATOP and ATOP/MBS: rule by rule, and in random worlds."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.errors import RemoteError
from node.protocols.atop.order import MAX_COUNT, MAX_NUMBER, Draws, Item, Numbers, Order
from node.wire import Kind, Message

Key = tuple[int, int]
"""(member, number of a message)."""


def order_of(*weights: int, brokered: bool = False, draws: Draws = Draws.SMOOTH) -> Order:
    """Order of members 0, 1, 2 ...; 0 is the bookkeeper. Draws are round-robin, so that tests know the next one."""
    return Order(dict(enumerate(weights)), bookkeeper=0, brokered=brokered, draws=draws)


def message_of(member: int, name: int) -> Message:
    return Message(kind=Kind.ATOP_DATA, origin=member, incarnation=1, payload=name.to_bytes(8, "big"))


def key_of(message: Message) -> Key:
    return message.origin, int.from_bytes(message.payload, "big")


def own(member: int, number: int, distribution: int = 0, slot: tuple[int, int] | None = None, final: int = 0) -> Item:
    """A message, identified by its number."""
    return Item(distribution, number, 1, message_of(member, number), slot, final=final)


def dummy(number: int, count: int = 1, distribution: int = 0, final: int = 0) -> Item:
    return Item(distribution, number, count, final=final)


def leftover(number: int, *fills: tuple[int, int, int], distribution: int = 0) -> Item:
    return Item(distribution, number, fills=tuple(Numbers(*one) for one in fills))


def publication(distribution: int, *weights: int, final: int = 0) -> Item:
    return Item(distribution, weights=dict(enumerate(weights)), final=final)


def tell(order: Order, member: int, *items: Item) -> list[Key]:
    """Take items of a member; the messages delivered."""
    for item in items:
        order.check(member, item)
        order.take(member, item)
    return [key_of(message) for message in order.advance()]


# Draws.


def test_a_message_is_delivered_when_its_sender_is_drawn() -> None:
    order = order_of(1, 1, 1)
    assert tell(order, 1, own(1, 1), own(1, 2)) == []
    assert order.buffered == 2
    assert tell(order, 0, own(0, 1)) == [(0, 1), (1, 1)]
    assert tell(order, 2, own(2, 1)) == [(2, 1)]
    assert order.buffered == 1


def test_a_dummy_uses_up_draws_and_delivers_nothing() -> None:
    order = order_of(1, 1)
    assert tell(order, 0, dummy(1, 3), own(0, 4)) == []
    assert tell(order, 1, *(own(1, number) for number in range(1, 5))) == [(1, 1), (1, 2), (1, 3), (0, 4), (1, 4)]


@pytest.mark.parametrize("draws", tuple(Draws))
def test_a_draw_selects_a_source_and_its_next_seqno_is_delivered(draws: Draws) -> None:
    weights = {4: 2, 7: 1, 9: 3}
    order = Order(weights, bookkeeper=4, brokered=False, draws=draws)
    delivered = []
    for number in range(1, 61):
        for member in (9, 7, 4):
            delivered += tell(order, member, own(member, number))
    turns = draws.under(0, weights, 1)
    assert len(delivered) > 60
    for member, _ in delivered:
        assert member == turns.first
        turns.use()


# From one distribution to the next.


def test_a_member_that_has_passed_leaves_the_draws() -> None:
    order = order_of(1, 1, 1)
    assert tell(order, 0, own(0, 1), publication(1, 1, 1, 1)) == [(0, 1)]
    assert tell(order, 1, own(1, 1), own(1, 2)) == [(1, 1)]
    assert tell(order, 2, own(2, 1), own(2, 2)) == [(2, 1), (1, 2), (2, 2)]
    assert order.current == 0


def test_the_next_distribution_is_in_force_when_all_have_passed() -> None:
    """Conditions 1 and 2 of section 2.1."""
    order = order_of(1, 1, 1)
    tell(order, 0, publication(1, 0, 1, 5))
    assert tell(order, 2, own(2, 1), own(2, 1, 1)) == []
    assert tell(order, 1, dummy(1, 1, 1)) == [(2, 1), (2, 1)], "under 0; then the first one under 1"
    assert order.current == 1
    assert tell(order, 2, own(2, 2, 1), own(2, 3, 1)) == [(2, 2), (2, 3)], "drawn five times as often as 1"


def test_a_member_may_skip_distributions() -> None:
    order = order_of(1, 1)
    tell(order, 0, publication(1, 1, 1), own(0, 1, 1), publication(2, 1, 1), own(0, 1, 2))
    assert tell(order, 1, own(1, 1, 2)) == [(0, 1), (0, 1), (1, 1)]
    assert order.current == 2


def test_a_message_may_come_before_the_weights_of_its_distribution() -> None:
    order = order_of(1, 1)
    assert tell(order, 1, own(1, 1, 1)) == []
    assert tell(order, 0, publication(1, 0, 1)) == [(1, 1)]


def test_members_of_weight_0_follow_at_the_end_ascending() -> None:
    order = order_of(1, 0, 0)
    tell(order, 2, own(2, 1))
    tell(order, 1, own(1, 1), own(1, 2))
    assert tell(order, 0, own(0, 1)) == [(0, 1)]
    assert tell(order, 0, own(0, 2), publication(1, 1, 1, 1)) == [(0, 2)]
    assert tell(order, 2, dummy(1, 1, 1)) == [], "1 comes first, and may send more"
    assert tell(order, 1, own(1, 3), dummy(1, 1, 1)) == [(1, 1), (1, 2), (1, 3), (2, 1)]


# Donated numbers.


def test_numbers_that_went_in_forced_draws_are_passed_over() -> None:
    order = order_of(1, 1, brokered=True)
    items = [own(1, 1), own(1, 2, slot=(0, 1)), own(1, 3), own(1, 4)]
    # Draws: 0, 1, 0, 1, ...: the slot takes message 1, the draw of 1 takes 2, that of 0 its own, that of 1 number 3.
    assert tell(order, 1, *items) == [(1, 1), (1, 2)]
    assert tell(order, 0, own(0, 2), own(0, 3)) == [(0, 2), (1, 3), (0, 3), (1, 4)]


def test_a_forced_draw_takes_nothing_later_than_its_message() -> None:
    order = order_of(1, 1, brokered=True)
    tell(order, 1, own(1, 1, slot=(0, 2)), own(1, 2), own(1, 3))
    assert tell(order, 0, own(0, 1)) == [(0, 1), (1, 1), (1, 2)], "the slot is used up, for message 1 has gone"
    assert tell(order, 0, own(0, 3)) == [(0, 3), (1, 3)]


def test_a_slot_is_used_after_its_donor_has_moved_on() -> None:
    order = order_of(1, 1, brokered=True)
    tell(order, 0, publication(1, 1, 1, final=2))
    assert order.awaits(1)
    assert tell(order, 1, own(1, 1, slot=(0, 2))) == [], "number 1 of 0 may still come"
    assert tell(order, 1, own(1, 2, slot=(0, 1))) == [(1, 1), (1, 2)]
    assert order.current == 0


def test_a_number_that_nobody_filled_uses_up_its_draw_when_all_have_passed() -> None:
    order = order_of(1, 1, 1, brokered=True)
    tell(order, 0, own(0, 3), publication(1, 1, 1, 1))
    tell(order, 1, own(1, 1), dummy(1, 1, 1))
    assert order.buffered == 2
    assert tell(order, 2, own(2, 1), dummy(1, 1, 1)) == [(1, 1), (2, 1), (0, 3)]
    assert order.current == 1


def test_a_leftover_uses_up_the_donors_draws() -> None:
    order = order_of(1, 1, 1, brokered=True)
    tell(order, 0, own(0, 3))
    assert tell(order, 1, own(1, 1), own(1, 2), own(1, 3)) == []
    assert tell(order, 2, leftover(1, (0, 1, 2)), dummy(1, 2)) == [(1, 1), (1, 2), (0, 3), (1, 3)]


def test_what_a_donor_gave_away_last_is_told_when_it_moves_on() -> None:
    order = order_of(1, 1, brokered=True)
    tell(order, 0, own(0, 1), publication(1, 1, 1))
    assert tell(order, 1, own(1, 1), own(1, 2)) == [(1, 1), (1, 2)], "0 gave out one number"
    order = order_of(1, 1, brokered=True)
    tell(order, 0, own(0, 1), publication(1, 1, 1, final=2))
    assert tell(order, 1, own(1, 1), own(1, 2)) == [(1, 1)], "0 gave out two"


def test_numbers_far_away_cost_nothing() -> None:
    order = order_of(1, 1, brokered=True)
    tell(order, 0, own(0, MAX_NUMBER - 1), publication(1, 1, 1, final=MAX_NUMBER))
    tell(order, 1, own(1, 1, slot=(0, MAX_NUMBER)), leftover(9, (0, MAX_NUMBER // 2, 1)))
    assert tell(order, 1, dummy(1, 1, 1)) == [(1, 1), (0, MAX_NUMBER - 1)]
    assert order.current == 1


# End of the view.


def test_messages_under_a_distribution_whose_weights_are_not_in_the_cut_are_lost() -> None:
    order = order_of(1, 5, 1)
    for member in (1, 2):
        tell(order, member, own(member, 1), *(own(member, number, 4) for number in (1, 2)))
    assert [key_of(message) for message in order.close()] == [(1, 1), (2, 1)]
    assert order.lost() == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert order.published == {0: 1, 1: 5, 2: 1}


# Awaited messages.


def test_members_that_are_awaited() -> None:
    order = order_of(1, 1, 1)
    tell(order, 2, own(2, 1))
    assert [order.awaits(member) for member in (0, 1, 2)] == [True, False, False]
    tell(order, 0, dummy(1))
    assert [order.awaits(member) for member in (0, 1, 2)] == [False, True, False]
    tell(order, 1, dummy(1))
    tell(order, 0, publication(1, 1, 1, 1))
    assert [order.awaits(member) for member in (0, 1, 2)] == [False, True, False], "0 has passed; 1 is drawn next"
    tell(order, 1, dummy(1, 1, 1))
    tell(order, 2, dummy(1, 1, 1))
    assert order.current == 1


def test_a_number_given_away_is_waited_for_by_all_that_have_not_passed() -> None:
    order = order_of(1, 1, 1, brokered=True)
    tell(order, 0, own(0, 2))
    assert [order.awaits(member) for member in (0, 1, 2)] == [True] * 3


def test_how_many_draws_stand_before_what_is_held() -> None:
    order = order_of(1, 1, 1)
    tell(order, 2, own(2, 1), own(2, 2), own(2, 3))
    assert [order.draws_ahead(member, after=0, most=100) for member in (0, 1)] == [3, 3]
    assert order.draws_ahead(2, after=3, most=100) == 0
    assert order.draws_ahead(0, after=0, most=3) == 2, "of three missing numbers, two were its"
    assert [order.draws_ahead(member, after=0, most=1) for member in (0, 1)] == [1, 0], "the paper: who is drawn"
    tell(order, 0, dummy(1, 3))
    assert order.draws_ahead(0, after=3, most=100) == 0
    assert tell(order, 1, dummy(1, 3)) == [(2, 1), (2, 2), (2, 3)]
    assert order.draws_ahead(1, after=3, most=100) == 0


def test_numbers_that_we_gave_away_are_not_for_us_to_fill() -> None:
    order = order_of(1, 1, brokered=True)
    tell(order, 1, own(1, 1), own(1, 2), own(1, 3))
    assert order.draws_ahead(0, after=2, most=100) == 1


def test_looking_ahead_moves_nothing() -> None:
    one, two = (order_of(1, 1, 1, 1, draws=Draws.RANDOM) for _ in range(2))
    for number in range(1, 30):
        for member in (0, 1, 2):
            one.draws_ahead(number % 4, after=0, most=20)
            assert tell(one, member, own(member, number)) == tell(two, member, own(member, number))


def test_what_no_draw_can_bring_asks_for_nothing() -> None:
    order = order_of(1, 0)
    tell(order, 1, own(1, 1))
    assert order.buffered == 1
    assert order.draws_ahead(0, after=0, most=100) == 0


def test_a_slot_can_bring_what_has_no_weight() -> None:
    order = order_of(1, 0, brokered=True)
    tell(order, 1, own(1, 1, slot=(0, 3)))
    assert order.draws_ahead(0, after=0, most=100) == 2
    assert tell(order, 0, dummy(1, 2)) == [(1, 1)]


@given(seed=st.integers(0, 2**32), draws=st.sampled_from(tuple(Draws)))
def test_a_dummy_for_all_draws_ahead_of_each_orders_everything(seed: int, draws: Draws) -> None:
    rng = Random(seed)
    members = range(rng.randint(2, 6))
    order = order_of(*(1 for _ in members), draws=draws)
    said = dict.fromkeys(members, 0)
    for _ in range(rng.randint(1, 20)):
        member = rng.choice(members)
        said[member] += 1
        tell(order, member, own(member, said[member]))
    ahead = {member: order.draws_ahead(member, after=said[member], most=10_000) for member in members}
    for member in members:
        if ahead[member]:
            tell(order, member, dummy(said[member] + 1, ahead[member]))
    assert order.buffered == 0


# Refusals: they depend on the member's own stream alone, and change nothing.

POSSIBLE = {
    False: [own(1, 3), own(1, 1, 1), own(1, 1, 2**60), dummy(3, MAX_COUNT)],
    True: [
        *(own(1, number) for number in (9, 70_000, MAX_NUMBER)),
        leftover(5, (0, 1, 1)),
        own(1, 7, 3, final=9),
    ],
}
"""Whether there is a broker: items that may follow two numbers of member 1."""
IMPOSSIBLE = {
    False: [
        *(own(1, number) for number in (2, 4, 0)),
        own(1, 2, 1),
        Item(-5, 1, 1),
        dummy(3, MAX_COUNT + 1),
        dummy(3, -1),
        dummy(MAX_NUMBER + 1),
        own(1, 1, 1, final=3),
        publication(1, 1, 1, 1),
    ],
    True: [
        own(1, MAX_NUMBER + 1),
        leftover(2, (0, 1, 1)),
        leftover(0, (0, 1, 1)),
        own(1, 7, 3, final=2),
        own(1, 7, 3, final=MAX_NUMBER + 1),
        own(1, 3, final=9),
    ],
}


@pytest.mark.parametrize("brokered", [False, True])
def test_what_cannot_be_is_refused(brokered: bool) -> None:
    order = order_of(1, 1, 1, brokered=brokered)
    tell(order, 1, dummy(1, 2))
    for item in POSSIBLE[brokered]:
        order.check(1, item)
    for item in IMPOSSIBLE[brokered]:
        with pytest.raises(RemoteError, match="MALFORMED"):
            order.check(1, item)


def test_only_the_bookkeeper_publishes_and_only_the_next_distribution() -> None:
    order = order_of(1, 1)
    order.check(0, publication(1, 1, 1))
    for item in (publication(2, 1, 1), publication(0, 1, 1), own(0, 1, 1)):
        with pytest.raises(RemoteError, match="MALFORMED"):
            order.check(0, item)


# Random worlds: allowed items of members, in any interleaving and with any cut.


@dataclass
class Speaker:
    """Items of one member, and its position."""

    member: int
    stream: list[Item] = field(default_factory=list)
    distribution: int = 0
    spoken: int = 0
    """The distribution of its last item."""
    given: int = 0
    shown: int = 0
    final: int = 0
    sent: int = 0

    def adopt(self, distribution: int) -> None:
        if self.given > self.shown:
            self.final = self.given
        self.distribution, self.given, self.shown = distribution, 0, 0

    def say(self, item: Item) -> None:
        self.stream.append(item)
        self.spoken, self.final = self.distribution, 0
        if item.number:
            self.given = self.shown = item.number + item.count - 1

    def send(self, slot: tuple[int, int] | None = None) -> None:
        self.sent += 1
        message = message_of(self.member, self.sent)
        self.say(Item(self.distribution, self.given + 1, 1, message, slot, final=self.final))


class World:
    """Some members that send random items allowed by the rules. Member 0 is the bookkeeper."""

    def __init__(self, seed: int, *, brokered: bool) -> None:
        self.rng = Random(f"{seed}/streams")
        self.brokered = brokered
        self.speakers = [Speaker(member) for member in range(self.rng.randint(2, 5))]
        self.published = 0
        self.pool: list[tuple[int, int, int]] = []
        """(distribution, donor, number) given away and not used yet."""

    def run(self) -> list[list[Item]]:
        """Run; returns the streams. At the end all members are under a last distribution."""
        actions = [Speaker.send] * 3 + [self.fill_own, self.publish, self.adopt]
        if self.brokered:
            actions += [self.give_away] * 2 + [self.use_granted] * 3
        for _ in range(self.rng.choice((20, 60, 150))):
            self.rng.choice(actions)(self.rng.choice(self.speakers))
        self.publish(self.speakers[0])
        for one in self.speakers[1:]:
            one.adopt(self.published)
            self.fill_own(one)
        return [one.stream for one in self.speakers]

    def fill_own(self, one: Speaker) -> None:
        one.say(dummy(one.given + 1, self.rng.choice((1, 1, 3, 8)), one.distribution, one.final))

    def publish(self, one: Speaker) -> None:
        if one.member:
            return
        self.published += 1
        one.adopt(self.published)
        weights = [self.rng.choice((0, 1, 1, 2, 5)) for _ in self.speakers]
        weights[self.rng.randrange(len(weights))] += not any(weights)
        one.say(publication(self.published, *weights, final=one.final))

    def adopt(self, one: Speaker) -> None:
        if one.member and one.distribution < self.published:
            one.adopt(self.rng.randint(one.distribution + 1, self.published))

    def give_away(self, one: Speaker) -> None:
        if one.spoken == one.distribution:
            for _ in range(self.rng.choice((1, 2, 5))):
                one.given += 1
                if self.rng.random() < 0.9:
                    self.pool.append((one.distribution, one.member, one.given))

    def use_granted(self, one: Speaker) -> None:
        """Use a donated number for a message, or fill it with nothing."""
        granted = [entry for entry in self.pool if entry[0] == one.distribution]
        if not granted:
            return
        entry = self.rng.choice(granted)
        self.pool.remove(entry)
        _, donor, number = entry
        if self.rng.random() < 2 / 3:
            one.send((donor, number))
        else:
            one.say(Item(one.distribution, one.given + 1, fills=(Numbers(donor, number, 1),), final=one.final))


def hold(seed: int) -> list[Key]:
    """Check one world; returns its sequence."""
    rng = Random(f"{seed}/replay")
    brokered = rng.random() < 0.6
    draws = rng.choice(tuple(Draws))
    said = World(seed, brokered=brokered).run()
    lengths = [len(stream) for stream in said]

    def replay(upto: list[int], order: Order, heard: list[int]) -> list[Key]:
        """Take the streams up to these positions, in any interleaving."""
        delivered = []
        while members := [member for member, place in enumerate(heard) if place < upto[member]]:
            member = rng.choice(members)
            delivered += tell(order, member, said[member][heard[member]])
            heard[member] += 1
        return delivered

    def new() -> Order:
        return order_of(*(1 for _ in said), brokered=brokered, draws=draws)

    try:
        sequences = [replay(lengths, new(), [0] * len(said)) for _ in range(3)]
        assert sequences[0] == sequences[1] == sequences[2], "the order depends on what was heard first"
        sent = {key_of(item.message) for stream in said for item in stream if item.message is not None}
        assert len(sequences[0]) == len(set(sequences[0]))
        assert set(sequences[0]) == sent, "all have passed, and not everything was delivered"
        cut = [rng.randint(0, length) for length in lengths]
        closed = []
        for _ in range(3):
            order, heard = new(), [0] * len(said)
            before = replay([rng.randint(0, place) for place in cut], order, heard)
            assert before == sequences[0][: len(before)]
            for member, place in enumerate(cut):
                for item in said[member][heard[member] : place]:
                    order.take(member, item)
            closed.append(before + [key_of(message) for message in order.close()])
            assert order.buffered == len(order.lost())
        assert closed[0] == closed[1] == closed[2], "the close depends on what was delivered before"
        published = sum(item.weights is not None for item in said[0][: cut[0]])
        ordered = [
            key_of(item.message)
            for stream, place in zip(said, cut, strict=True)
            for item in stream[:place]
            if item.message is not None and item.distribution <= published
        ]
        assert sorted(closed[0], key=itemgetter(0)) == ordered, "each stream in its order, without unknown weights"
    except AssertionError as error:
        error.add_note(f"to see it again: hold({seed})")
        raise
    return sequences[0]


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_all_members_deliver_the_same_sequence(seed: int) -> None:
    hold(seed)
