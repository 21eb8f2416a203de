"""Messages that died with a cause of theirs: the part alone."""

from __future__ import annotations

import pytest

from node.core import Membership
from node.errors import RemoteError
from node.protocols.causes import Causes
from node.protocols.words import pack

MEMBERS = (0, 1, 2, 3)


def view(member: int, incarnation: int, *, ended: int = 0, last: int = 0, counts: bool = False) -> tuple[int, int]:
    """The two words about a member: this life counts, or has ended; the last ended life that counts, and its number."""
    return pack(member, incarnation, ended << 1 | counts), last


def causes(incarnation: int = 1) -> Causes:
    return Causes(Membership(member=0, members=MEMBERS, incarnation=incarnation))


def test_one_word_while_nobody_crashes() -> None:
    assert causes().words(7) == (7,)


def test_a_sender_says_which_lives_have_ended_for_it_and_with_what() -> None:
    one = causes()
    one.ended((3, 1), 5)
    one.ended((1, 1), 6)
    assert one.words(7) == (7, *view(1, 1, ended=1, last=6), *view(3, 1, ended=1, last=5))


def test_a_later_life_counts_from_its_first_number_on() -> None:
    one = causes()
    one.ended((3, 1), 5)
    one.joined((3, 2))
    one.spoke((3, 2), 9)
    one.spoke((3, 2), 10)
    assert one.words(8) == (8, *view(3, 1, ended=1, last=5))
    assert one.words(9) == (9, *view(3, 2, counts=True, ended=1, last=5))
    one.ended((3, 2), 20)
    assert one.words(8) == (8, *view(3, 2, ended=1, last=5))
    assert one.words(9) == (9, *view(3, 2, ended=2, last=20))


def test_a_later_life_that_never_spoke_does_not_count() -> None:
    one = causes()
    one.ended((3, 1), 5)
    one.ended((3, 2), 9)
    assert one.words(30) == (30, *view(3, 2, ended=1, last=5))


def test_the_end_of_an_earlier_life_may_be_heard_of_late() -> None:
    """Random histories found this: until then it takes part, and nothing of it is lost."""
    one = causes()
    one.ended((3, 2), 0)
    one.joined((3, 3))
    assert one.words(9) == (9,)
    assert not one.is_lost((1, 1), (9,))
    one.ended((3, 1), 5)
    assert one.words(9) == (9, *view(3, 2, ended=1, last=5))
    assert one.is_lost((1, 1), (9,))


def test_a_message_is_lost_when_its_sender_had_delivered_more_than_there_is_of_the_dead() -> None:
    one = causes()
    one.ended((3, 1), 5)
    assert one.is_lost((1, 1), (6,))
    assert not one.is_lost((1, 1), (5,))
    assert not one.is_lost((1, 1), (6, *view(3, 1, ended=1, last=5))), "its sender knew of the end"
    assert not one.is_lost((1, 1), (6, *view(3, 2, counts=True, ended=1, last=5)))
    assert one.is_lost((1, 1), (6, *view(2, 1, ended=1, last=5))), "of another's"


def test_the_dying_may_know_of_another_end() -> None:
    """Found by random histories: it had settled that end with the dead, and died before anybody else did."""
    one = causes()
    one.ended((3, 1), 5)
    assert one.is_lost((1, 1), (7, *view(3, 1, ended=1, last=7)))
    assert one.is_lost((1, 1), (7, *view(3, 3, ended=1, last=7))), "the lives between never spoke"
    assert one.is_lost((1, 1), (9, *view(3, 2, counts=True, ended=1, last=7)))
    assert not one.is_lost((1, 1), (5, *view(3, 1, ended=1, last=7))), "it had delivered nothing of that yet"


def test_a_sender_may_know_an_end_before_we_do() -> None:
    """Found by random histories: the end of an earlier life of the same member says nothing about it."""
    one = causes()
    one.ended((3, 1), 2)
    one.joined((3, 2))
    one.spoke((3, 2), 4)
    later = (12, *view(3, 2, ended=2, last=15))
    assert not one.is_lost((1, 1), later)
    one.ended((3, 2), 15)
    assert not one.is_lost((1, 1), later)


def test_a_later_life_that_nobody_has_heard_of_is_lost_to_those_for_whom_it_counts() -> None:
    one = causes()
    one.ended((3, 1), 5)
    one.ended((3, 2), 9)
    assert one.is_lost((1, 1), (12, *view(3, 2, counts=True, ended=1, last=5)))
    assert one.is_lost((1, 1), (12, *view(3, 2, ended=2, last=11)))
    assert not one.is_lost((1, 1), (12, *view(3, 1, ended=1, last=5))), "its sender had not heard of it either"


def test_nobody_depends_on_an_earlier_life_of_his_own() -> None:
    one = causes()
    one.ended((3, 1), 5)
    assert not one.is_lost((3, 2), (12,))


def test_what_is_long_over_is_forgotten() -> None:
    one = causes()
    for incarnation in range(1, 12):
        one.joined((3, incarnation))
        one.spoke((3, incarnation), 10 * incarnation)
        one.ended((3, incarnation), 10 * incarnation)
    assert not one.is_lost((1, 1), (200, *view(3, 3, ended=3, last=35)))
    assert one.is_lost((1, 1), (200, *view(3, 4, ended=4, last=45)))


def test_for_a_joiner_the_lives_before_those_that_it_meets_have_ended() -> None:
    one = causes(incarnation=2)
    one.ended((1, 1), 0)
    one.begin(((2, 1), (3, 3)))
    assert one.words(7) == (7, *view(1, 1), *view(3, 2))


def test_of_two_lives_of_one_member_the_earlier_one_has_not_ended_yet() -> None:
    one = causes(incarnation=2)
    one.begin(((3, 1), (3, 2)))
    assert one.words(7) == (7,)


def test_a_joiner_learns_the_least_last_number_of_those_who_ended_before() -> None:
    one = causes(incarnation=2)
    one.ended((3, 1), 0)
    one.learned((1, 1), view(3, 1, ended=1, last=7))
    one.learned((2, 1), view(3, 1, ended=1, last=5))
    one.begin(((1, 1), (2, 1)))
    assert one.words(9) == (9, *view(3, 1, ended=1, last=5))
    assert one.is_lost((1, 1), (9, *view(3, 1, ended=1, last=7)))
    assert not one.is_lost((2, 1), (9, *view(3, 1, ended=1, last=5)))


def test_the_last_answer_of_each_counts_and_none_of_the_dead() -> None:
    one = causes(incarnation=2)
    one.ended((3, 1), 0)
    one.learned((1, 1), ())
    one.learned((1, 1), view(3, 1, ended=1, last=5))
    one.learned((2, 1), view(3, 1, ended=1, last=4))
    one.ended((2, 1), 0)
    one.begin(((1, 1),))
    assert one.words(9) == (9, *view(2, 1), *view(3, 1, ended=1, last=5))


def test_what_a_joiner_was_not_told_it_does_not_hold_against_others() -> None:
    one = causes(incarnation=2)
    one.ended((3, 1), 0)
    one.begin(((1, 1),))
    assert not one.is_lost((1, 1), (12,))
    assert not one.is_lost((1, 1), (12, *view(3, 1, ended=1, last=7)))


def test_words_that_can_be_pass() -> None:
    causes().check(8, (7, *view(1, 1, ended=1, last=3), *view(3, 2, counts=True, last=2**64 - 1)))


@pytest.mark.parametrize(
    "words",
    [
        (),
        (8,),
        (7, *view(9, 1)),
        (7, *view(1, 0)),
        (7, *view(1, 1, ended=2)),
        (7, pack(1, 1, 0)),
        (7, *view(1, 1), *view(1, 2)),
        (7, *view(3, 1), *view(1, 1)),
    ],
)
def test_words_that_cannot_be_are_refused(words: tuple[int, ...]) -> None:
    with pytest.raises(RemoteError, match="MALFORMED"):
        causes().check(8, words)
