"""Virtual time: order, ties, events in the past, standstill."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.sim import engine as engines
from testbed.sim.engine import Engine, StandstillError


@given(st.lists(st.integers(0, 50), max_size=60))
def test_events_come_by_time_and_at_one_instant_in_the_order_of_asking(times_ns: list[int]) -> None:
    engine = Engine(start_ns=0)
    done: list[tuple[int, int]] = []
    for number, at_ns in enumerate(times_ns):
        engine.at(at_ns, done.append, (at_ns, number))
    engine.run(100)
    assert done == sorted(done)
    assert len(done) == len(times_ns) == engine.worked_off
    assert engine.now_ns == 100


def test_an_event_sees_its_own_instant() -> None:
    engine = Engine(start_ns=5)
    seen: list[int] = []
    for at_ns in (9, 7, 7):
        engine.at(at_ns, lambda _: seen.append(engine.read_ns()))
    engine.run(8)
    assert (seen, engine.now_ns, engine.next_ns) == ([7, 7], 8, 9)


def test_what_lies_in_the_past_happens_now_and_after_what_was_asked_before() -> None:
    engine = Engine(start_ns=100)
    done: list[str] = []
    engine.at(100, done.append, "first")
    engine.at(3, done.append, "late")
    engine.run(100)
    assert done == ["first", "late"]


def test_an_event_may_cause_another_at_its_own_instant() -> None:
    engine = Engine(start_ns=0)
    done: list[int] = []

    def act(depth: int) -> None:
        done.append(engine.now_ns)
        if depth:
            engine.at(engine.now_ns, act, depth - 1)

    engine.at(4, act, 3)
    engine.run(4)
    assert done == [4, 4, 4, 4]


def test_events_that_go_round_in_circles_without_time_passing_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "STANDSTILL_EVENTS", 1000)
    engine = Engine(start_ns=7)

    def again(_: None) -> None:
        engine.at(engine.now_ns, again)

    engine.at(7, again)
    with pytest.raises(StandstillError, match="more than 1000 events at 7 ns"):
        engine.run(8)


def test_many_events_that_were_asked_for_before_their_instant_are_no_standstill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engines, "STANDSTILL_EVENTS", 1000)
    engine = Engine(start_ns=0)
    done: list[int] = []
    for at_ns in (0, 7):
        for number in range(3000):
            engine.at(at_ns, done.append, number)
    engine.run(8)
    assert len(done) == 6000
