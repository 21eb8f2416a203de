"""Several things at a time: results in order, no more than allowed, and a failure is told."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from netem.runtimes.together import together


def test_results_come_in_the_order_of_what_was_asked() -> None:
    second_is_done = threading.Event()

    def first() -> str:
        assert second_is_done.wait(10)
        return "first"

    def second() -> str:
        second_is_done.set()
        return "second"

    counts: list[int] = []
    assert together([first, second], at_once=2, on_done=counts.append) == ["first", "second"]
    assert counts == [1, 2]


def test_one_at_a_time_is_one_after_the_other() -> None:
    under_way: list[int] = []
    most: list[int] = []

    def act(number: int) -> Callable[[], int]:
        def acting() -> int:
            under_way.append(number)
            most.append(len(under_way))
            under_way.remove(number)
            return number

        return acting

    assert together([act(number) for number in range(20)], at_once=1, on_done=lambda _: None) == list(range(20))
    assert most == [1] * 20


def test_after_a_failure_what_was_under_way_has_ended() -> None:
    ended = threading.Event()
    failing = threading.Event()

    def fails() -> None:
        failing.set()
        raise OSError("no room")

    def under_way() -> None:
        assert failing.wait(10)
        ended.set()

    with pytest.raises(OSError, match="no room"):
        together([under_way, fails], at_once=2, on_done=lambda _: None)
    assert ended.is_set()


def test_nothing_to_do_gives_nothing() -> None:
    assert together([], at_once=3, on_done=lambda _: pytest.fail("nothing was done")) == []
