"""A view: a number, and the incarnations that are its members, in order of rank.

A view is named by (group, number); the group is in every datagram's envelope. The member of rank 0 acts first: it
coordinates, gives numbers, donates state. Members that stay keep their order; joiners come last, ascending.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from node.core import MAX_INCARNATION, MAX_MEMBER, Membership
from node.errors import LocalError

MAX_VIEW = 2**31 - 1


class Incarnation(NamedTuple):
    """One start of one member."""

    member: int
    incarnation: int


@dataclass(frozen=True, kw_only=True)
class View:
    """`incarnations` by rank, each member once. `gone`: the last incarnation of each member of earlier views that is
    not in this one; it is never admitted again. `probation`: members of `gone` that were excluded as one of a bad pair;
    they come back only when every member hears them. LocalError: the values are no view.
    """

    number: int
    incarnations: tuple[Incarnation, ...]
    gone: frozenset[Incarnation] = frozenset()
    probation: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if not 1 <= self.number <= MAX_VIEW:
            raise LocalError(f"views count from 1 to {MAX_VIEW}, not {self.number}")
        if not self.incarnations:
            raise LocalError("a view has at least one member")
        if len(set(self.members)) != len(self.members):
            raise LocalError(f"each member stands once in a view, not as in {self.members}")
        absent = {member for member, _ in self.gone}
        if len(absent) != len(self.gone) or absent & set(self.members) or not self.probation <= absent:
            raise LocalError("a member is in a view, or gone, not both")
        for member, incarnation in (*self.incarnations, *self.gone):
            if not 0 <= member <= MAX_MEMBER or not 1 <= incarnation <= MAX_INCARNATION:
                raise LocalError(f"no incarnation {incarnation} of member {member} can be in a view")

    @cached_property
    def members(self) -> tuple[int, ...]:
        """The members by rank."""
        return tuple(member for member, _ in self.incarnations)

    @cached_property
    def incarnation_of(self) -> dict[int, int]:
        """By member, its incarnation in this view."""
        return dict(self.incarnations)

    def __contains__(self, one: object) -> bool:
        return one in self.incarnations

    @cached_property
    def last_of(self) -> dict[int, int]:
        """By member, its last incarnation that was ever in a view."""
        return dict(self.gone) | self.incarnation_of

    def rank(self, member: int) -> int:
        return self.members.index(member)

    def is_quorum(self, members: Collection[int]) -> bool:
        """Whether `members` are more than half of this view, or exactly half with the member of rank 0 among them."""
        count = sum(member in members for member in self.members)
        twice = 2 * count
        return twice > len(self.members) or (twice == len(self.members) and self.members[0] in members)

    def followed_by(
        self, number: int, incarnations: tuple[Incarnation, ...], probation: Collection[int] = frozenset()
    ) -> View:
        """The view of these incarnations that follows this one."""
        present = {member for member, _ in incarnations}
        gone = frozenset(Incarnation(*one) for one in self.last_of.items() if one[0] not in present)
        suspicious = frozenset(member for member, _ in gone if member in probation)
        return View(number=number, incarnations=incarnations, gone=gone, probation=suspicious)

    def membership(self, us: Membership) -> Membership:
        """The membership for a core of this view: `us` (of the whole group) narrowed to the members of the view."""
        partitions = (tuple(one for one in part if one in self.incarnation_of) for part in us.partitions)
        parts, members = tuple(part for part in partitions if part), tuple(sorted(self.members))
        return replace(us, members=members, partitions=parts, ranks=self.members, founders=())


def first_view(founders: Collection[int]) -> View:
    """The view with which a group begins: the first incarnations of its founders, in ascending order."""
    return View(number=1, incarnations=tuple(Incarnation(member, 1) for member in sorted(founders)))
