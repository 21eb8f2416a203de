"""What the records of one incarnation say of its views: which it installed, when it had the state, whether it ended in
a minority. `analysis.checks.properties` says what is asked of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from analysis.checks.properties import Incarnation, Raw
from collector.records import Event, ViewReason

VIEW_EVENTS = frozenset((int(Event.VIEW), int(Event.MINORITY), int(Event.STATE)))


class Installation(NamedTuple):
    """One view as one incarnation installed it. `record`: the number of its first record; `size`: how many members it
    announces; `members`: those that it names, by rank."""

    record: int
    at_ns: int
    number: int
    reason: int
    size: int
    members: tuple[Incarnation, ...]

    @property
    def is_whole(self) -> bool:
        return len(self.members) >= self.size

    @property
    def is_beginning(self) -> bool:
        """A group begins with it, perhaps anew: its members need no state."""
        return self.reason == ViewReason.FIRST

    def agrees(self, other: Installation) -> bool:
        """With another of the same number: as far as both go."""
        pairs = zip(self.members, other.members, strict=False)
        return self.size == other.size and all(one == another for one, another in pairs)


class Taken(NamedTuple):
    """A STATE record: from whom, how much, in which view."""

    record: int
    at_ns: int
    number: int
    donor: Incarnation
    size_bytes: int


class Minority(NamedTuple):
    """One time without a quorum; `until_ns` None: it never said that it was over. `heard`: how many members it heard
    when it began, itself included."""

    from_ns: int
    until_ns: int | None
    number: int
    heard: int


class ViewRecords(NamedTuple):
    """Of one incarnation."""

    installations: tuple[Installation, ...] = ()
    taken: tuple[Taken, ...] = ()
    minorities: tuple[Minority, ...] = ()
    is_cut: bool = False
    """Its last record is of a view that is not whole: a crash lost the others."""

    @property
    def state_record(self) -> int:
        """The number of its first STATE; 0: none."""
        return self.taken[0].record if self.taken else 0

    @property
    def is_founder(self) -> bool:
        """It has the state from its first view on."""
        return bool(self.installations) and self.installations[0].is_beginning

    def ways_from(self, number: int) -> tuple[int, ...]:
        """The views to which it goes from view `number`: none or one, unless the records make no sense."""
        ways = (after.number for before, after in pairwise(self.installations) if before.number == number)
        return tuple(dict.fromkeys(ways))

    def comes_to(self, number: int) -> bool:
        """Whether it installs this view after another one."""
        return any(one.number == number for one in self.installations[1:])

    @property
    def is_in_minority(self) -> bool:
        """So its last MINORITY record says."""
        return bool(self.minorities) and self.minorities[-1].until_ns is None


NO_VIEWS = ViewRecords()

Row = tuple[int, int, int, int, int, int, int, int]
"""Record number, event, detail, origin, incarnation, message number, time, value."""


def read_views(rows: Iterable[Row], *, last_record: int) -> ViewRecords:
    """From the VIEW, MINORITY and STATE records of one incarnation, in their order. `last_record`: the number of the
    last record that it has of any kind.

    The records of one installation follow each other: a VIEW begins another one when the record before it is none of
    the same view, or when that one is whole.
    """
    installations: list[Installation] = []
    taken: list[Taken] = []
    minorities: list[Minority] = []
    before = 0
    for record, event, detail, origin, incarnation, number, at_ns, value in rows:
        member = Incarnation(origin, incarnation)
        if event == Event.VIEW:
            last = installations[-1] if installations and before == record - 1 else None
            if last is not None and last.number == number and not last.is_whole:
                installations[-1] = last._replace(members=(*last.members, member))
            else:
                installations.append(Installation(record, at_ns, number, detail, value, (member,)))
            before = record
        elif event == Event.STATE:
            taken.append(Taken(record, at_ns, number, member, value))
        elif event == Event.MINORITY:
            is_open = bool(minorities) and minorities[-1].until_ns is None
            if detail == 1 and not is_open:
                minorities.append(Minority(at_ns, None, number, value))
            elif detail != 1 and is_open:
                minorities[-1] = minorities[-1]._replace(until_ns=at_ns)
    is_cut = bool(installations) and not installations[-1].is_whole and before == last_record
    return ViewRecords(tuple(installations), tuple(taken), tuple(minorities), is_cut)


def views_of(records: Sequence[Raw]) -> ViewRecords:
    """From all records of one incarnation, as hosts make them."""
    rows = (
        (number, r[0], r[1], r[2], r[3], r[5], r[6], r[8])
        for number, r in enumerate(records, start=1)
        if r[0] in VIEW_EVENTS
    )
    return read_views(rows, last_record=len(records))
