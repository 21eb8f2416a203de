"""Stock and wishes: first come, first served, no number twice, none lost; a wish counts what is on its way."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.protocols.atop.mbs import Broker, Stock
from node.protocols.atop.order import Numbers

Number = tuple[int, int]
"""(donor, number)."""


def each(ranges: tuple[Numbers, ...]) -> list[Number]:
    return [(donor, first + index) for donor, first, size in ranges for index in range(size)]


def test_the_oldest_numbers_go_first_and_a_range_is_split() -> None:
    stock = Stock()
    for numbers, came_ns in ((Numbers(1, 10, 3), 100), (Numbers(2, 5, 2), 200), (Numbers(3, 7, 1), 300)):
        stock.put(numbers, came_ns)
    assert (len(stock), stock.oldest_ns) == (6, 100)
    assert stock.take(2) == (Numbers(1, 10, 2),)
    assert stock.take(2) == (Numbers(1, 12, 1), Numbers(2, 5, 1))
    assert stock.oldest_ns == 200
    assert stock.take_until(199) == ()
    assert stock.take_until(200) == (Numbers(2, 6, 1),)
    assert stock.take(9) == (Numbers(3, 7, 1),)
    assert (stock.take(1), len(stock)) == ((), 0)


def test_wishes_are_served_in_the_order_in_which_they_came_and_a_later_one_keeps_its_place() -> None:
    broker = Broker()
    for member, wanted in ((4, 7), (5, 9), (3, 2), (4, 2), (5, 0)):
        assert broker.wish(member, wanted) == []
    assert sum(broker._wishes.values()) == 4, "a wish of 0 cancels"
    assert broker.offer(Numbers(1, 10, 3), 0) == [(4, (Numbers(1, 10, 2),)), (3, (Numbers(1, 12, 1),))]
    assert (sum(broker._wishes.values()), len(broker.stock)) == (1, 0)


def test_donors_give_away_ascending() -> None:
    broker = Broker()
    broker.offer(Numbers(1, 4, 3), 0)
    assert [broker.knows(Numbers(1, first, 9)) for first in (1, 4, 6, 7)] == [True, True, True, False]
    assert not broker.knows(Numbers(2, 1, 1))
    with pytest.raises(AssertionError, match="given away once"):
        broker.offer(Numbers(1, 6, 1), 0)


offers = st.tuples(st.just("offer"), st.integers(0, 3), st.integers(1, 5))
wishes = st.tuples(st.just("wish"), st.integers(0, 3), st.integers(0, 8))
leftovers = st.tuples(st.just("leftovers"), st.integers(0, 20), st.just(0))
arrivals = st.tuples(st.just("arrive"), st.integers(0, 3), st.just(0))


@given(st.lists(st.one_of(offers, wishes, leftovers, arrivals), max_size=60))
def test_nothing_is_granted_twice_and_nothing_is_lost(steps: list[tuple[str, int, int]]) -> None:
    broker = Broker()
    next_number = Counter[int]()
    offered: list[Number] = []
    granted: list[Number] = []
    left_over: list[Number] = []
    on_the_way: Counter[int] = Counter()
    received: Counter[int] = Counter()
    open_wish: Counter[int] = Counter()
    for now_ns, (what, who, amount) in enumerate(steps):
        grants: list[tuple[int, tuple[Numbers, ...]]] = []
        if what == "offer":
            numbers = Numbers(who, next_number[who] + 1, amount)
            next_number[who] += amount
            offered += each((numbers,))
            grants = broker.offer(numbers, now_ns)
        elif what == "wish":
            open_wish[who] = max(0, amount - on_the_way[who])
            grants = broker.wish(who, received[who] + amount)
        elif what == "leftovers":
            left_over += each(broker.stock.take_until(now_ns - who))
        else:
            received[who] += on_the_way.pop(who, 0)
        for member, ranges in grants:
            count = len(each(ranges))
            assert 0 < count <= open_wish[member], "more than was wanted"
            open_wish[member] -= count
            on_the_way[member] += count
            granted += each(ranges)
        assert len(set(granted)) == len(granted), "granted twice"
        assert not set(granted) & set(left_over), "granted and left over"
        assert len(offered) == len(granted) + len(left_over) + len(broker.stock)
        assert not (len(broker.stock) and broker._wishes), "somebody waits for what is there"
        assert sum(broker._wishes.values()) == open_wish.total()
    assert sorted(offered) == sorted(granted + left_over + each(broker.stock.take_until(len(steps))))
