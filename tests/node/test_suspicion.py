"""Patience, suspicion and the view: who lives, as far as one member can know."""

from __future__ import annotations

import pytest

from node.core import Membership
from node.protocols.suspicion import Patience, Suspicion
from node.protocols.view import View
from node.protocols.words import Entry

LIVE = (1, 2, 3, 4)


def suspicious() -> Suspicion:
    return Suspicion(me=0, first_ns=100, most_ns=400, suspect_after_ns=1000)


def test_pauses_between_questions_double_up_to_the_most() -> None:
    patience = Patience(first_ns=100, most_ns=400)
    asked = [tick for tick in range(1, 21) if patience.is_due(100)]
    assert asked == [1, 3, 7, 11, 15, 19]


def test_progress_is_a_reason_not_to_ask() -> None:
    patience = Patience(first_ns=100, most_ns=400)
    assert [patience.is_due(60, progress) for progress in (0, 0, 1, 1, 1, 2)] == [
        False,
        True,
        False,
        False,
        True,
        False,
    ]


def test_silence_counts_only_while_we_wait() -> None:
    suspicion = suspicious()
    for _ in range(20):
        assert suspicion.tick({}, 100) == ([], [])
    suspects = [tick for tick in range(1, 12) if suspicion.tick({1: 0}, 100)[1]]
    assert suspects == [10]
    assert suspicion.suspects() == [1]


def test_a_long_pause_of_ours_is_one_tick_of_silence() -> None:
    """The core gives at most two intervals per tick, however late it comes."""
    suspicion = suspicious()
    for _ in range(3):
        suspicion.tick({1: 0}, 200)
        suspicion.hear(1)
    assert suspicion.tick({1: 0}, 200)[1] == []
    assert suspicion.suspects() == []


def test_who_speaks_is_no_suspect_and_we_take_it_back() -> None:
    suspicion = suspicious()
    for _ in range(10):
        suspicion.tick({1: 0}, 100)
    assert suspicion.hear(1), "we suspected it: all must hear that we do not"
    assert suspicion.suspects() == []
    assert not suspicion.hear(1)
    suspicion.tick({1: 0}, 100)
    assert suspicion.doubts == {}


def test_a_doubt_of_others_makes_us_ask_at_each_tick_and_judge_sooner() -> None:
    suspicion = suspicious()
    suspicion.take([1], source=2)
    ticks = [suspicion.tick({1: 0}, 100) for _ in range(3)]
    assert [questions for questions, _ in ticks] == [[1], [1], [1]]
    assert [suspects for _, suspects in ticks] == [[], [], [1]]


def test_whom_we_just_heard_is_no_suspect_for_us() -> None:
    suspicion = suspicious()
    suspicion.hear(1)
    suspicion.take([1], source=2)
    assert suspicion.doubts == {}


def test_a_suspicion_that_is_no_longer_told_is_void() -> None:
    suspicion = suspicious()
    suspicion.take([1], source=2)
    suspicion.take([], source=2)
    assert suspicion.doubts == {1: set()}


@pytest.mark.parametrize(
    ("doubters", "convicted"),
    [((), []), ((2,), []), ((2, 3), [1]), ((2, 3, 4), [1]), ((2, 9), [])],
)
def test_more_than_half_of_the_others_convict(doubters: tuple[int, ...], convicted: list[int]) -> None:
    """Five members: four others judge, we among them; who is not live does not."""
    suspicion = suspicious()
    for doubter in doubters:
        suspicion.take([1], source=doubter)
    for _ in range(10):
        suspicion.tick({1: 0}, 100)
    assert suspicion.convicted(LIVE) == convicted


def test_nobody_is_convicted_by_hearsay() -> None:
    suspicion = suspicious()
    for doubter in (2, 3, 4):
        suspicion.take([1], source=doubter)
    assert suspicion.convicted(LIVE) == []


def test_of_two_each_convicts_alone() -> None:
    suspicion = suspicious()
    for _ in range(10):
        suspicion.tick({1: 0}, 100)
    assert suspicion.convicted((1,)) == [1]


def test_the_opinion_of_the_dead_is_void() -> None:
    suspicion = suspicious()
    suspicion.take([1, 3], source=2)
    suspicion.forget(2)
    suspicion.forget(3)
    assert suspicion.doubts == {1: set()}


# The view.


def viewing(incarnation: int = 1) -> View:
    return View(Membership(member=0, members=(0, 1, 2), incarnation=incarnation))


def test_in_the_beginning_all_live_in_their_first_life() -> None:
    view = viewing()
    assert (view.live, view.over, view.digest, view.entries()) == ((1, 2), {}, 0, ())


def test_what_is_over_stays_over() -> None:
    view = viewing()
    assert view.end(1, 2)
    assert not view.end(1, 1)
    assert (view.live, view.is_stale(1, 2), view.is_stale(1, 3)) == ((2,), True, False)
    view.meet(1, 3)
    assert (view.live, view.entries()) == ((1, 2), (Entry(1, 2, 3),))


def test_a_member_knows_that_its_own_earlier_lives_are_over() -> None:
    view = viewing(incarnation=3)
    assert view.entries() == (Entry(0, 2, 3),)
    assert view.is_same((Entry(0, 2, 3),))
    assert not view.is_same(())


def test_every_view_that_we_were_in_is_known() -> None:
    view = viewing()
    view.end(1, 1)
    first = view.digest
    view.end(2, 1)
    other = viewing()
    other.end(2, 1)
    assert view.knows(0)
    assert view.knows(first)
    assert not view.knows(other.digest), "we never were in the view where only member 2 is over"
