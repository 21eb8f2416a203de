"""View records of one incarnation: installed views, received states, times in a minority. docs/properties.md
defines the properties of views.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from analysis.checks.properties import Incarnation, Raw
from collector.records import Event, ViewReason

VIEW_EVENTS = frozenset((int(Event.VIEW), int(Event.MINORITY), int(Event.STATE)))


class Installation(NamedTuple):
    """One view as one incarnation installed it. `record`: number of its first record; `size`: number of members that it
    announces; `members`: those that its records name, in their order; `has_ranks`: whether the records tell the ranks
    0, 1, 2 …
    """

    record: int
    at_ns: int
    number: int
    reason: int
    size: int
    members: tuple[Incarnation, ...]
    has_ranks: bool = True

    @property
    def is_whole(self) -> bool:
        return len(self.members) >= self.size

    @property
    def is_distinct(self) -> bool:
        """Whether it names each member once at most."""
        return len({one.member for one in self.members}) == len(self.members)

    @property
    def is_beginning(self) -> bool:
        """Whether a group begins with it, perhaps again: its members need no state."""
        return self.reason == ViewReason.FIRST

    @property
    def is_anew(self) -> bool:
        """Whether it needs no quorum of a view before: a group begins, or goes on after it lost its quorum."""
        return self.reason in (ViewReason.FIRST, ViewReason.RESTORED)

    def agrees(self, other: Installation) -> bool:
        """Whether it has the members of another of the same number, as far as both have records."""
        pairs = zip(self.members, other.members, strict=False)
        return self.size == other.size and all(one == another for one, another in pairs)


class Taken(NamedTuple):
    """A STATE record: donor, size, and number of the view."""

    record: int
    at_ns: int
    number: int
    donor: Incarnation
    size_bytes: int


class Minority(NamedTuple):
    """One time without a quorum; `until_ns` None: no record of its end. `heard`: number of members heard at its
    beginning, itself included; `delivered`: number of deliveries during it.
    """

    from_ns: int
    until_ns: int | None
    number: int
    heard: int
    delivered: int


class ViewRecords(NamedTuple):
    """View records of one incarnation."""

    installations: tuple[Installation, ...] = ()
    taken: tuple[Taken, ...] = ()
    minorities: tuple[Minority, ...] = ()
    is_cut: bool = False
    """Whether its last record belongs to an incomplete installation: a crash lost the others."""

    @property
    def state_record(self) -> int:
        """Record number of its first STATE; 0: none."""
        return self.taken[0].record if self.taken else 0

    @property
    def is_founder(self) -> bool:
        """Whether it has the state from its first view on."""
        return bool(self.installations) and self.installations[0].is_beginning

    @property
    def has_state(self) -> bool:
        """Whether it had the state at last."""
        return self.is_founder or bool(self.state_record)

    def has_state_at(self, at_ns: int) -> bool:
        """Whether it had the state at this time."""
        return self.is_founder or any(one.at_ns <= at_ns for one in self.taken)

    def ways_from(self, number: int) -> tuple[int, ...]:
        """Views to which it goes from view `number`: at most one, unless the records are inconsistent."""
        ways = (after.number for before, after in pairwise(self.installations) if before.number == number)
        return tuple(dict.fromkeys(ways))

    def comes_to(self, number: int) -> bool:
        """Whether it installs this view after another."""
        return any(one.number == number for one in self.installations[1:])

    @property
    def is_in_minority(self) -> bool:
        """Whether its last MINORITY record says so."""
        return bool(self.minorities) and self.minorities[-1].until_ns is None


NO_VIEWS = ViewRecords()


def present_at_the_end(stopped: Mapping[Incarnation, ViewRecords]) -> dict[Incarnation, Installation]:
    """Incarnations that are present at the end (docs/properties.md), and their last installations. `stopped`:
    those that end with STOP.
    """
    installed = {name: views.installations[-1] for name, views in stopped.items() if views.installations}
    last = max((one.number for one in installed.values()), default=0)
    return {name: one for name, one in sorted(installed.items()) if one.number == last and stopped[name].has_state}


class Lack(StrEnum):
    """A thing that an incarnation should have at the end, and lacks."""

    VIEWS = "views"
    """It is in no view."""
    VIEW = "view"
    """The last view, of which it is a member."""
    STATE = "state"
    """The state, in the last view."""
    PLACE = "place"
    """A place in the last view: the others excluded it, and it does not know."""


class Absent(NamedTuple):
    """An incarnation that lacks something at the end; `view`: number of the last view."""

    incarnation: Incarnation
    view: int
    lacks: Lack


def predicate(lacks: Lack, view: int) -> str:
    """The rest of a sentence whose subject is an absent member."""
    return {
        Lack.VIEWS: "is in no view",
        Lack.VIEW: f"did not install view {view}, of which it is a member",
        Lack.STATE: f"did not get the state in view {view}",
        Lack.PLACE: f"is not in view {view}, although it was not told that it had been excluded",
    }[lacks]


def last_view(of_all: Iterable[ViewRecords]) -> Installation | None:
    """The view of the greatest number, by its most complete records."""
    installed = (one for views in of_all for one in views.installations)
    return max(installed, key=lambda one: (one.number, len(one.members)), default=None)


def absent_at_the_end(
    stopped: Mapping[Incarnation, ViewRecords], last: Installation, asked_to_leave: Collection[Incarnation] = ()
) -> Iterator[Absent]:
    """Incarnations that should be present at the end, in the view `last`, and are not. `stopped`: those that end with
    STOP and had nothing left to do. A member in a minority cannot know the last view. One that was asked to leave may
    not have learnt that it has left.
    """
    for name, views in sorted(stopped.items()):
        if views.is_in_minority:
            continue
        if name in last.members and all(one.number < last.number for one in views.installations):
            yield Absent(name, last.number, Lack.VIEW)
        elif not views.installations:
            yield Absent(name, last.number, Lack.VIEWS)
        elif name in last.members and not views.has_state:
            yield Absent(name, last.number, Lack.STATE)
        elif name not in last.members and name not in asked_to_leave:
            yield Absent(name, last.number, Lack.PLACE)


Row = tuple[int, int, int, int, int, int, int, int, int]
"""Record number, event, detail, origin, incarnation, message number, time in ns, value, extra."""


def read_views(rows: Iterable[Row], *, deliveries: Sequence[int], last_record: int) -> ViewRecords:
    """View records from the VIEW, MINORITY and STATE records of one incarnation, in their order. `deliveries`: numbers
    of its DELIVER records, ascending; `last_record`: number of its last record of any kind.

    The records of one installation are consecutive: a VIEW begins another one if the record before it does not belong
    to the same view, or if the installation is complete.
    """
    installations: list[Installation] = []
    taken: list[Taken] = []
    minorities: list[Minority] = []
    before = 0
    for record, event, detail, origin, incarnation, number, at_ns, value, extra in rows:
        member = Incarnation(origin, incarnation)
        if event == Event.VIEW:
            last = installations[-1] if installations and before == record - 1 else None
            if last is not None and last.number == number and not last.is_whole:
                has_ranks = last.has_ranks and extra == len(last.members)
                installations[-1] = last._replace(members=(*last.members, member), has_ranks=has_ranks)
            else:
                installations.append(Installation(record, at_ns, number, detail, value, (member,), extra == 0))
            before = record
        elif event == Event.STATE:
            taken.append(Taken(record, at_ns, number, member, value))
        elif event == Event.MINORITY:
            is_open = bool(minorities) and minorities[-1].until_ns is None
            if detail == 1 and not is_open:
                since = len(deliveries) - bisect(deliveries, record)
                minorities.append(Minority(at_ns, None, number, value, since))
            elif detail != 1 and is_open:
                later = len(deliveries) - bisect(deliveries, record)
                minorities[-1] = minorities[-1]._replace(until_ns=at_ns, delivered=minorities[-1].delivered - later)
    is_cut = bool(installations) and not installations[-1].is_whole and before == last_record
    return ViewRecords(tuple(installations), tuple(taken), tuple(minorities), is_cut)


def views_of(records: Sequence[Raw]) -> ViewRecords:
    """View records from all records of one incarnation, in the form that hosts make."""
    rows = (
        (number, r[0], r[1], r[2], r[3], r[5], r[6], r[8], r[4])
        for number, r in enumerate(records, start=1)
        if r[0] in VIEW_EVENTS
    )
    deliveries = [number for number, r in enumerate(records, start=1) if r[0] == Event.DELIVER]
    return read_views(rows, deliveries=deliveries, last_record=len(records))
