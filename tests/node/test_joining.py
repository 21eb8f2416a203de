"""Who takes part, and from where on a later life has everything: the part alone."""

from __future__ import annotations

import pytest

from node.core import Membership
from node.errors import RemoteError
from node.protocols.joining import ASK_AGAIN_NS, Joining, Life
from node.protocols.words import pack

MEMBERS = (0, 1, 2, 3)


def founder(member: int = 0) -> Joining:
    return Joining(Membership(member=member, members=MEMBERS))


def joiner(*others: Life, answers_news: bool = False) -> Joining:
    """Member 3 in its second life, told by the layer below that `others` and itself take part."""
    made = Joining(Membership(member=3, members=MEMBERS, incarnation=2), answers_news=answers_news)
    for life in others:
        assert not made.joined(life)
    assert made.joined((3, 2)), "now it asks"
    return made


def listing(*lives: Life, to: Life = (3, 2)) -> tuple[int, ...]:
    """The words of an answer to `to`."""
    return tuple(pack(*life, 0) for life in (to, *lives))


def has_everything(one: Joining) -> bool:
    """By a call, so that no type checker takes it for settled."""
    return one.has_everything


def test_the_first_lives_take_part_from_the_beginning() -> None:
    one = founder(1)
    assert list(one.lives) == [(0, 1), (2, 1), (3, 1)]
    assert (one.is_member, one.is_joining, one.start, one.has_everything) == (True, False, 0, False)
    assert (2, 1) in one
    assert (2, 2) not in one


def test_who_has_ended_takes_part_no_more() -> None:
    one = founder()
    one.ended((3, 1))
    assert list(one.lives) == [(1, 1), (2, 1)]
    one.joined((3, 2))
    assert list(one.lives) == [(1, 1), (2, 1), (3, 2)]


def test_an_answer_lists_the_lives_whose_end_has_not_been_heard_of() -> None:
    one = founder()
    one.ended((3, 1))
    one.joined((3, 2))
    assert one.words((3, 2)) == listing((1, 1), (2, 1)), "the first one is the life that it is for"


def test_joiners_are_answered_anew_until_they_speak_or_end() -> None:
    one = founder()
    for life in ((3, 2), (2, 2), (1, 2)):
        one.ended((life[0], 1))
        one.joined(life)
        one.asked(life)
    assert list(one.waiting) == [(3, 2), (2, 2), (1, 2)]
    one.spoke((2, 2))
    one.ended((1, 2))
    assert list(one.waiting) == [(3, 2)]


def test_a_joiner_has_everything_when_all_have_answered() -> None:
    one = joiner((0, 1), (1, 1))
    assert one.is_member
    assert not has_everything(one)
    one.answered((0, 1), 7, listing((1, 1), (3, 2)))
    assert not has_everything(one)
    one.answered((1, 1), 5, listing((0, 1)))
    assert has_everything(one)
    assert one.begin() == 7, "the greatest number"
    assert (one.is_joining, one.has_everything, one.start) == (False, False, 7)


def test_it_waits_while_a_life_is_listed_in_which_it_has_no_part() -> None:
    one = joiner((0, 1), (1, 1))
    one.answered((0, 1), 7, listing((1, 1), (2, 1)))
    one.answered((1, 1), 9, listing())
    assert not has_everything(one), "member 0 has not all of member 2 yet"
    one.answered((0, 1), 30, listing((1, 1)))
    assert has_everything(one)
    assert one.begin() == 30


def test_a_life_that_ends_while_we_join_counts_as_one_in_which_we_have_no_part() -> None:
    one = joiner((0, 1), (1, 1), (2, 1))
    one.answered((0, 1), 7, listing((1, 1), (2, 1)))
    one.answered((1, 1), 7, listing((0, 1)))
    one.ended((2, 1))
    assert not has_everything(one)
    one.answered((0, 1), 8, listing((1, 1)))
    assert has_everything(one)


def test_an_end_takes_one_answer_less_to_wait_for() -> None:
    one = joiner((0, 1), (1, 1))
    one.answered((0, 1), 7, listing())
    one.ended((1, 1))
    assert has_everything(one)


def test_who_joins_after_we_asked_need_not_answer() -> None:
    one = joiner((0, 1))
    one.joined((1, 2))
    one.answered((0, 1), 7, listing())
    assert has_everything(one)


def test_where_the_news_is_answered_who_joins_after_us_answers_too() -> None:
    one = joiner((0, 1), answers_news=True)
    one.joined((1, 2))
    one.answered((0, 1), 0, listing())
    assert not has_everything(one)
    one.answered((1, 2), 0, listing((0, 1)))
    assert has_everything(one)


def test_nothing_is_complete_before_the_layer_below_says_that_we_are_a_member() -> None:
    one = Joining(Membership(member=3, members=MEMBERS, incarnation=2))
    assert not has_everything(one)
    one.joined((3, 2))
    assert has_everything(one), "all others have ended"
    assert one.begin() == 0


def test_answers_that_come_late_or_of_the_dead_change_nothing() -> None:
    one = joiner((0, 1), (1, 1))
    one.ended((1, 1))
    one.answered((1, 1), 99, listing((2, 1)))
    one.answered((0, 1), 7, listing())
    assert one.begin() == 7
    one.answered((0, 1), 50, listing())
    assert one.start == 7


@pytest.mark.parametrize("number", [0, 1, 21])
def test_a_joiner_asks_again_more_and_more_rarely(number: int) -> None:
    one = joiner((0, 1))
    for _ in range(number):
        one.asks(0)
    assert one.asks(5) == 5 + (ASK_AGAIN_NS << min(number, 20))


@pytest.mark.parametrize("incarnation", [1, 3])
def test_an_answer_to_another_life_of_ours_changes_nothing(incarnation: int) -> None:
    """It was held back below until that life had ended, and says a number from before we were awaited."""
    one = joiner((0, 1))
    with pytest.raises(RemoteError, match="UNEXPECTED"):
        one.answered((0, 1), 7, listing((1, 1), to=(3, incarnation)))
    assert one.start == 0
    assert not has_everything(one)
    one.answered((0, 1), 9, listing())
    assert one.begin() == 9


WRONG = [
    (),
    (1,),
    listing((9, 1)),
    (*listing(), pack(1, 1, 7)),
    listing(to=(1, 2)),
    listing(to=(3, 0)),
    (pack(3, 2, 1),),
]


@pytest.mark.parametrize("words", WRONG)
def test_an_answer_that_lists_something_else_is_refused_before_anything_changes(words: tuple[int, ...]) -> None:
    one = joiner((0, 1))
    with pytest.raises(RemoteError, match="MALFORMED"):
        one.answered((0, 1), 7, words)
    assert one.start == 0
    assert not has_everything(one)


def test_the_news_of_ourselves_asks_once() -> None:
    one = joiner((0, 1))
    assert not one.joined((3, 2))
    assert not founder().joined((0, 1))
