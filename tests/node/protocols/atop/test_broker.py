"""Stock and wishes: first come, first served, no number twice, none lost."""

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


# Stock.


def test_the_oldest_numbers_go_first_and_a_range_is_split() -> None:
    stock = Stock()
    stock.put(Numbers(1, 10, 3), 100)
    stock.put(Numbers(2, 5, 2), 200)
    assert (len(stock), stock.oldest_ns) == (5, 100)
    assert stock.take(2) == (Numbers(1, 10, 2),)
    assert stock.oldest_ns == 100
    assert stock.take(2) == (Numbers(1, 12, 1), Numbers(2, 5, 1))
    assert stock.take(9) == (Numbers(2, 6, 1),)
    assert (stock.take(1), len(stock)) == ((), 0)


def test_what_came_until_an_instant_is_taken_by_age() -> None:
    stock = Stock()
    for came_ns, first in ((100, 1), (200, 2), (300, 3)):
        stock.put(Numbers(7, first, 1), came_ns)
    assert stock.take_until(99) == ()
    assert stock.take_until(200) == (Numbers(7, 1, 1), Numbers(7, 2, 1))
    assert len(stock) == 1


# Broker.


def test_wishes_are_served_in_the_order_in_which_they_came() -> None:
    broker = Broker()
    assert broker.wish(4, 2) == broker.wish(3, 2) == []
    assert broker.wished == 4
    assert broker.offer(Numbers(1, 10, 3), 0) == [(4, (Numbers(1, 10, 2),)), (3, (Numbers(1, 12, 1),))]
    assert (broker.wished, len(broker.stock)) == (1, 0)


def test_what_is_in_stock_is_granted_at_once() -> None:
    broker = Broker()
    assert broker.offer(Numbers(1, 10, 3), 7) == []
    assert (len(broker.stock), broker.stock.oldest_ns) == (3, 7)
    assert broker.wish(2, 9) == [(2, (Numbers(1, 10, 3),))]
    assert (broker.wished, len(broker.stock)) == (6, 0)


def test_a_later_wish_replaces_the_earlier_one_and_keeps_its_place() -> None:
    broker = Broker()
    broker.wish(4, 2)
    broker.wish(3, 5)
    broker.wish(4, 1)
    assert [member for member, _ in broker.offer(Numbers(1, 1, 2), 0)] == [4, 3]


def test_a_wish_of_0_cancels() -> None:
    broker = Broker()
    broker.wish(4, 2)
    broker.wish(4, 0)
    assert broker.offer(Numbers(1, 1, 2), 0) == []
    assert len(broker.stock) == 2


def test_a_wish_is_a_total_so_what_is_on_its_way_is_not_granted_again() -> None:
    broker = Broker()
    broker.offer(Numbers(1, 1, 10), 0)
    broker.wish(2, 4)
    assert broker.wish(2, 4) == [], "it says the same again: the grant has not come yet"
    assert broker.wish(2, 6) == [(2, (Numbers(1, 5, 2),))]
    assert broker.wish(2, 3) == [], "what was granted is granted"


def test_donors_give_away_ascending() -> None:
    broker = Broker()
    broker.offer(Numbers(1, 4, 3), 0)
    assert [broker.knows(Numbers(1, first, 9)) for first in (1, 4, 6, 7)] == [True, True, True, False]
    assert not broker.knows(Numbers(2, 1, 1))
    with pytest.raises(AssertionError, match="given away once"):
        broker.offer(Numbers(1, 6, 1), 0)


def test_leftovers_are_numbers_that_nobody_wanted_for_long_enough() -> None:
    broker = Broker()
    broker.offer(Numbers(1, 1, 2), 100)
    broker.offer(Numbers(3, 1, 2), 200)
    broker.wish(2, 1)
    assert broker.stock.take_until(150) == (Numbers(1, 2, 1),)
    assert (len(broker.stock), broker.stock.oldest_ns) == (2, 200)


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
        assert len(broker.stock) == len(offered) - len(granted) - len(left_over), (
            "offered = granted + stock + left over"
        )
        assert not (len(broker.stock) and broker.wished), "somebody waits for what is there"
        assert broker.wished == open_wish.total()
    assert sorted(offered) == sorted(granted + left_over + each(broker.stock.take_until(len(steps))))
