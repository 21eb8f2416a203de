"""Views and their quorums."""

from __future__ import annotations

from itertools import combinations

import pytest

from node.core import Membership
from node.errors import LocalError
from node.group.view import Incarnation, View, first_view


@pytest.mark.parametrize("count", range(1, 8))
def test_any_two_quorums_of_a_view_meet(count: int) -> None:
    view = first_view(range(count))
    sets = [set(some) for size in range(count + 1) for some in combinations(range(count), size)]
    quorums = [some for some in sets if view.is_quorum(some)]
    assert all(one & other for one in quorums for other in quorums)
    assert [some for some in sets if not view.is_quorum(some) and not view.is_quorum(set(range(count)) - some)] == []


def test_of_equal_halves_the_one_with_the_first_ranked_member_is_a_quorum() -> None:
    view = View(number=3, incarnations=(Incarnation(2, 1), Incarnation(0, 4), Incarnation(1, 1), Incarnation(5, 1)))
    assert view.is_quorum({2, 5})
    assert not view.is_quorum({0, 1})
    assert not view.is_quorum({2, 7, 8, 9}), "members of no view count for nothing"


def test_a_core_of_a_view_is_told_its_members_and_their_ranks() -> None:
    everybody = Membership(member=1, members=(0, 1, 2, 3), incarnation=2, partitions=((0, 1), (2, 3)))
    view = View(number=2, incarnations=(Incarnation(2, 1), Incarnation(1, 2)))
    narrowed = view.membership(everybody)
    assert narrowed.members == (1, 2)
    assert narrowed.first == 2
    assert narrowed.partitions == ((1,), (2,))
    assert narrowed.incarnation == 2


@pytest.mark.parametrize(
    ("number", "incarnations"),
    [(0, ((0, 1),)), (2**31, ((0, 1),)), (1, ()), (1, ((0, 1), (0, 2))), (1, ((0, 0),)), (1, ((70000, 1),))],
)
def test_what_is_no_view_is_refused(number: int, incarnations: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(LocalError):
        View(number=number, incarnations=tuple(Incarnation(*one) for one in incarnations))
