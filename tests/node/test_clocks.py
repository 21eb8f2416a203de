"""Clocks alone: the implementation rules of Lamport 1978, sentence by sentence."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.clocks import ClockKind, EventClock, LamportClock, PhysicalClock, clock_of
from node.errors import LocalError

makers = pytest.mark.parametrize(
    "make",
    [LamportClock, PhysicalClock, lambda: PhysicalClock(minimum_delay_ns=0), lambda: PhysicalClock(minimum_delay_ns=7)],
    ids=["logical", "physical", "synchronised, mu 0", "synchronised, mu 7"],
)


# Logical clocks.


def test_ir1_each_process_increments_its_clock_between_any_two_successive_events() -> None:
    clock = LamportClock()
    assert [clock.tick(), clock.tick(), clock.value] == [1, 2, 2]


def test_ir2_the_receiver_sets_its_clock_at_least_to_its_present_value_and_past_the_timestamp() -> None:
    """`if clock <= estimate: clock = estimate++` loses the increment (a bug on record): the next event would be dated
    as the message."""
    clock = LamportClock(10)
    assert clock.receive(3) == 11, "an event of its own, although the message is old"
    assert [clock.receive(50), clock.tick()] == [51, 52]


@makers
def test_an_event_can_be_dated_later_than_a_timestamp_that_was_handed_along(make: type[LamportClock]) -> None:
    clock = make()
    assert [clock.tick(10, after=1000), clock.tick(10, after=3)] == [1001, 1002]


@makers
@given(seed=st.integers(0, 10**6))
def test_clock_condition_if_a_happened_before_b_then_a_has_the_lower_date(make: type[LamportClock], seed: int) -> None:
    """The events that a process knows of represent happened-before exactly: `known < its` is the proper subset."""
    rng = Random(seed)
    count = 4
    clocks: list[EventClock] = [make() for _ in range(count)]
    knowledge: list[frozenset[int]] = [frozenset()] * count
    nows = [rng.randrange(-100, 100) for _ in range(count)]
    flying: list[tuple[int, frozenset[int]]] = []
    events: list[tuple[int, frozenset[int]]] = []
    for event in range(60):
        index = rng.randrange(count)
        nows[index] += rng.choice((0, 0, 1, 20))
        knowledge[index] |= {event}
        if flying and rng.random() < 0.5:
            timestamp, known = flying.pop(rng.randrange(len(flying)))
            date = clocks[index].receive(timestamp, nows[index])
            knowledge[index] |= known
        else:
            date = clocks[index].tick(nows[index])
            flying.append((date, knowledge[index]))
        assert date == clocks[index].value
        events.append((date, knowledge[index]))
    for date, known in events:
        assert all(date < other for other, its in events if known < its), f"seed {seed}"


def test_the_three_kinds_of_clock() -> None:
    made = {kind: clock_of(kind, minimum_delay_ns=5) for kind in ClockKind}
    dates = {kind: (clock.tick(100), clock.receive(200, 100), clock.tick(150)) for kind, clock in made.items()}
    assert dates == {
        ClockKind.LOGICAL: (1, 201, 202),
        ClockKind.PHYSICAL: (100, 201, 202),
        ClockKind.SYNCHRONISED: (100, 205, 255),
    }


# Physical clocks.


def test_ir1_prime_between_messages_the_clock_runs_like_that_of_the_node() -> None:
    clock = PhysicalClock(minimum_delay_ns=5)
    clock.adjust(1000, 900)
    assert [clock.read(now) for now in (900, 901, 950)] == [1005, 1006, 1055]


def test_ir2_prime_the_receiver_takes_the_larger_of_its_clock_and_timestamp_plus_minimum_delay() -> None:
    clock = PhysicalClock(minimum_delay_ns=5)
    for timestamp, moves, shown in ((90, False, 100), (95, False, 100), (98, True, 103)):
        assert (clock.adjust(timestamp, 100), clock.read(100)) == (moves, shown)
    with pytest.raises(LocalError, match="at least 0 ns"):
        PhysicalClock(minimum_delay_ns=-1)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.one_of(st.none(), st.integers(0, 2000))), max_size=40),
    st.integers(-1000, 1000),
    st.integers(0, 30),
)
def test_a_clock_is_never_set_backwards(steps: list[tuple[int, int | None]], start: int, delay_ns: int) -> None:
    clock = PhysicalClock(minimum_delay_ns=delay_ns)
    now_ns, shown = start, clock.read(start)
    for elapsed_ns, timestamp in steps:
        now_ns += elapsed_ns
        if timestamp is not None:
            clock.adjust(timestamp, now_ns)
            assert clock.read(now_ns) >= timestamp + delay_ns
        assert clock.read(now_ns) >= shown
        shown = clock.read(now_ns)


def test_without_a_minimum_delay_the_reading_stays_that_of_the_node_and_only_dates_obey() -> None:
    clock = PhysicalClock()
    assert clock.receive(500, 100) == 501
    assert clock.read(100) == 100
    assert clock.tick(100) == 502
    assert clock.tick(700) == 700


def test_a_clock_that_begins_below_zero_shows_zero_and_can_still_be_set() -> None:
    clock = PhysicalClock(minimum_delay_ns=1)
    assert clock.read(-50) == 0
    assert clock.tick(-50) == 1
    assert clock.adjust(10, -50)
    assert [clock.read(now) for now in (-50, -49)] == [11, 12]
