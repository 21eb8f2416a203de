"""Stock and wishes: first come first served, nothing twice, nothing lost."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.protocols.atop_broker import Broker, Grant, Numbers, Stock

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
    assert (len(stock), stock.clear(), len(stock)) == (1, 1, 0)


def test_an_empty_range_is_nothing() -> None:
    stock = Stock()
    stock.put(Numbers(1, 1, 0), 5)
    assert stock.oldest_ns is None


# Broker.


def test_wishes_are_served_in_the_order_in_which_they_came() -> None:
    broker = Broker()
    assert broker.wish(4, 2) == broker.wish(3, 2) == ()
    assert broker.wished == 4
    assert broker.offer(Numbers(1, 10, 3), 0) == (
        Grant(member=4, numbers=(Numbers(1, 10, 2),)),
        Grant(member=3, numbers=(Numbers(1, 12, 1),)),
    )
    assert (broker.wished, broker.in_stock) == (1, 0)


def test_what_is_in_stock_is_granted_at_once() -> None:
    broker = Broker()
    assert broker.offer(Numbers(1, 10, 3), 7) == ()
    assert (broker.in_stock, broker.oldest_ns) == (3, 7)
    (grant,) = broker.wish(2, 9)
    assert (grant.member, grant.count) == (2, 3)
    assert (broker.wished, broker.in_stock) == (6, 0)


def test_a_later_wish_replaces_the_earlier_one_and_keeps_its_place() -> None:
    broker = Broker()
    broker.wish(4, 2)
    broker.wish(3, 5)
    broker.wish(4, 1)
    assert [grant.member for grant in broker.offer(Numbers(1, 1, 2), 0)] == [4, 3]


def test_a_wish_of_0_cancels() -> None:
    broker = Broker()
    broker.wish(4, 2)
    broker.wish(4, 0)
    assert broker.offer(Numbers(1, 1, 2), 0) == ()
    assert broker.in_stock == 2


def test_a_wish_is_a_total_so_what_is_on_its_way_is_not_granted_again() -> None:
    broker = Broker()
    broker.offer(Numbers(1, 1, 10), 0)
    broker.wish(2, 4)
    assert broker.wish(2, 4) == (), "it says the same again: the grant has not come yet"
    (grant,) = broker.wish(2, 6)
    assert grant.numbers == (Numbers(1, 5, 2),)
    assert broker.wish(2, 3) == (), "what was granted is granted"


def test_donors_give_away_ascending() -> None:
    broker = Broker()
    broker.offer(Numbers(1, 4, 3), 0)
    assert [broker.has_been_offered(Numbers(1, first, 9)) for first in (1, 4, 6, 7)] == [True, True, True, False]
    assert not broker.has_been_offered(Numbers(2, 1, 1))
    with pytest.raises(AssertionError, match="given away once"):
        broker.offer(Numbers(1, 6, 1), 0)
    broker.reset()
    assert not broker.has_been_offered(Numbers(1, 1, 1))


def test_the_wish_of_a_member_that_has_ended_is_not_served() -> None:
    broker = Broker()
    broker.wish(2, 4)
    broker.forget(2)
    assert broker.offer(Numbers(1, 1, 10), 0) == ()


def test_leftovers_are_what_nobody_wanted_for_long_enough() -> None:
    broker = Broker()
    broker.offer(Numbers(1, 1, 2), 100)
    broker.offer(Numbers(3, 1, 2), 200)
    broker.wish(2, 1)
    assert broker.leftovers(150) == (Numbers(1, 2, 1),)
    assert (broker.in_stock, broker.oldest_ns) == (2, 200)


def test_a_new_distribution_forgets_everything() -> None:
    broker = Broker()
    broker.offer(Numbers(1, 1, 2), 100)
    broker.wish(2, 1)
    broker.wish(4, 9)
    assert (broker.reset(), broker.in_stock, broker.wished) == (0, 0, 0)
    broker.offer(Numbers(1, 1, 2), 200)
    assert broker.reset() == 2
    assert broker.wish(2, 1) == ()


offers = st.tuples(st.just("offer"), st.integers(0, 3), st.integers(1, 5))
wishes = st.tuples(st.just("wish"), st.integers(0, 3), st.integers(0, 8))
leftovers = st.tuples(st.just("leftovers"), st.integers(0, 20), st.just(0))
arrivals = st.tuples(st.just("arrive"), st.integers(0, 3), st.just(0))
ends = st.tuples(st.just("forget"), st.integers(0, 3), st.just(0))


@given(st.lists(st.one_of(offers, wishes, leftovers, arrivals, ends), max_size=60))
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
        grants: tuple[Grant, ...] = ()
        if what == "offer":
            numbers = Numbers(who, next_number[who] + 1, amount)
            next_number[who] += amount
            offered += each((numbers,))
            grants = broker.offer(numbers, now_ns)
        elif what == "wish":
            open_wish[who] = max(0, amount - on_the_way[who])
            grants = broker.wish(who, received[who] + amount)
        elif what == "leftovers":
            left_over += each(broker.leftovers(now_ns - who))
        elif what == "arrive":
            received[who] += on_the_way.pop(who, 0)
        else:
            broker.forget(who)
            for counter in (on_the_way, received, open_wish):
                counter.pop(who, None)
        for grant in grants:
            assert 0 < grant.count <= open_wish[grant.member], "more than was wanted"
            open_wish[grant.member] -= grant.count
            on_the_way[grant.member] += grant.count
            granted += each(grant.numbers)
        assert len(set(granted)) == len(granted), "granted twice"
        assert not set(granted) & set(left_over), "granted and left over"
        assert broker.in_stock == len(offered) - len(granted) - len(left_over), "offered = granted + stock + left over"
        assert not (broker.in_stock and broker.wished), "somebody waits for what is there"
        assert broker.wished == open_wish.total()
    assert sorted(offered) == sorted(granted + left_over + each(broker.leftovers(len(steps))))
