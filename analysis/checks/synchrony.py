"""Checks of the properties of views, and of total order view by view, for the simulator's records
(`analysis.checks.linear`) and the steps of a trace (`analysis.checks.order`). docs/properties.md defines the
properties, `analysis.checks.oracle_views` judges them by definition, and tests compare the two.

In NumPy. Without violations, each incarnation's deliveries in a view are compared once with those of another, and
sorted at most once; sets are counted only where they differ. Messages delivered in several views are found by sorting
the messages of all views together; only among them can a joiner have delivered messages of its state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.checks.properties import (
    NO_VIEW,
    UNDER_THE_ORDER,
    VIEW_PROPERTIES,
    Incarnation,
    MessageId,
    Place,
    Property,
    Tally,
    Witness,
    no_order_of_views,
)
from analysis.checks.views import Installation, ViewRecords

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

BEFORE = 0
"""Number for the time before the first view."""

_NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class IncarnationDeliveries:
    """First deliveries of one incarnation at the judged level, in order: record number, code of the message, and time.
    Equal messages have equal codes in a run; `Run.decode` decodes them.
    """

    name: Incarnation
    views: ViewRecords
    ends_in_order: bool
    """Whether it ends with STOP or ENDED."""
    record: Ints
    message: Ints
    at_ns: Ints

    @property
    def count(self) -> int:
        return len(self.message)

    @cached_property
    def numbers(self) -> frozenset[int]:
        """Numbers of the views that it installs."""
        return frozenset(one.number for one in self.views.installations)

    @cached_property
    def last_view(self) -> int:
        return max(self.numbers, default=BEFORE)

    @cached_property
    def has_ascending_views(self) -> bool:
        return all(one.number < other.number for one, other in pairwise(self.views.installations))

    @cached_property
    def parts(self) -> tuple[tuple[Installation | None, slice], ...]:
        """Its deliveries by installation; None: before the first."""
        first = np.searchsorted(self.record, [one.record for one in self.views.installations])
        cuts = [0, *first.tolist(), self.count]
        return tuple(
            (one, slice(begin, end))
            for one, (begin, end) in zip((None, *self.views.installations), pairwise(cuts), strict=True)
        )

    @cached_property
    def state_view(self) -> int | None:
        """View in which it got the state; None: never."""
        if not self.views.state_record:
            return None
        before = [one.number for one in self.views.installations if one.record <= self.views.state_record]
        return before[-1] if before else BEFORE

    def had_state_all_through(self, view: int) -> bool:
        return self.views.is_founder or (self.state_view is not None and self.state_view < view)

    def survives(self, view: int) -> bool:
        return view in self.numbers and self.last_view > view

    def ways_through(self, view: int) -> tuple[int, ...]:
        """Views to which it goes from this one, if it has the state all through this one."""
        return self.views.ways_from(view) if self.had_state_all_through(view) else ()

    def ways_with_state(self, view: int) -> tuple[int, ...]:
        """Views to which it goes from this one, if it comes to this one with the state, or gets the state of its
        beginning here.
        """
        if self.state_view == view:
            return self.views.ways_from(view)
        return self.ways_through(view) if self.views.comes_to(view) else ()

    def rows(self, view: int) -> Rows:
        """Rows of its deliveries in a view."""
        found = [part for one, part in self.parts if (BEFORE if one is None else one.number) == view]
        return np.concatenate([np.empty(0, np.intp), *(np.arange(part.start, part.stop) for part in found)])

    def messages(self, view: int) -> Ints:
        found = [part for one, part in self.parts if (BEFORE if one is None else one.number) == view]
        return self.message[found[0]] if len(found) == 1 else self.message[self.rows(view)]


@dataclass(frozen=True, kw_only=True)
class Run:
    """Deliveries of a run that are judged. `origins`: codes of the submitting incarnations, from codes of messages;
    `decode`: message of a code; `is_uniform`: deliveries at level FINAL are judged.
    """

    incarnations: Sequence[IncarnationDeliveries]
    origins: Callable[[Ints], Ints]
    decode: Callable[[int], MessageId]
    is_uniform: bool


def tallies(run: Run) -> dict[Property, Tally]:
    """Tallies of VIEW_PROPERTIES and total order."""
    judge = _Judge(run)
    found = {
        Property.VIEW_AGREEMENT: judge.view_agreement(),
        Property.SAME_VIEW: judge.same_view(),
        Property.VIRTUAL_SYNCHRONY: judge.virtual_synchrony(),
        Property.NO_GHOST: judge.no_ghost(),
        Property.STATE_TRANSFER: judge.state_transfer(),
        Property.TOTAL_ORDER: judge.total_order(),
    }
    for kind in UNDER_THE_ORDER:
        if found[kind].violations:
            found[Property.TOTAL_ORDER] = found[Property.TOTAL_ORDER]._replace(excuse=no_order_of_views(kind))
    return found


def without_views() -> dict[Property, Tally]:
    """Tallies of a run without views: nothing is judged."""
    return dict.fromkeys(VIEW_PROPERTIES, Tally(0, 0, excuse=NO_VIEW))


class _Delivery(NamedTuple):
    """One delivery; sorts by time."""

    at_ns: int
    incarnation: Incarnation
    row: int
    view: int
    message: int


class _Found(NamedTuple):
    """Violations by one incarnation: their number, and the earliest with its description and places."""

    violations: int
    earliest: tuple[_Delivery, str, tuple[Place, ...]] | None


_FINE = _Found(0, None)


class _Dispute(NamedTuple):
    """Positions in a view at which two incarnations deliver different messages; with `what`, at which only `one`
    delivers a message.
    """

    positions: Rows
    one: IncarnationDeliveries
    other: IncarnationDeliveries
    what: str = ""


class _View(NamedTuple):
    """One view: its survivors, and a mask of the void deliveries of each incarnation in it."""

    number: int
    survivors: Sequence[IncarnationDeliveries]
    void: Mapping[Incarnation, Mask]

    def good(self, incarnation: IncarnationDeliveries) -> Ints:
        """Messages of its deliveries for good."""
        messages = incarnation.messages(self.number)
        return messages[~self.void[incarnation.name]] if incarnation.name in self.void else messages

    def prefix(self, incarnation: IncarnationDeliveries) -> Ints:
        """Messages of its deliveries before the first void one."""
        messages = incarnation.messages(self.number)
        return messages[: int(self.void[incarnation.name].argmax())] if incarnation.name in self.void else messages

    def has_certainly_not_closed(self, incarnation: IncarnationDeliveries) -> bool:
        return not incarnation.survives(self.number) and (incarnation.ends_in_order or incarnation.name in self.void)


class _Judge:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._incarnations = sorted(run.incarnations, key=lambda incarnation: incarnation.name)
        self._by_name = {incarnation.name: incarnation for incarnation in run.incarnations}
        numbers = sorted({BEFORE}.union(*(incarnation.numbers for incarnation in run.incarnations)))
        unions = [_union(incarnation.messages(number) for incarnation in self._incarnations) for number in numbers]
        _, self._repeated = _distinct_and_repeated(unions)
        """Messages delivered in several views, by any incarnations, void or not."""
        self._views = [self._view(number, numbers) for number in numbers]
        self._following = dict(pairwise(numbers))
        """For each view, the one of the next number that any incarnation installs."""
        self._deliveries = sum(incarnation.count for incarnation in run.incarnations)
        self._installations = sum(len(incarnation.views.installations) for incarnation in run.incarnations)

    def _view(self, number: int, numbers: Sequence[int]) -> _View:
        survivors = [incarnation for incarnation in self._incarnations if incarnation.survives(number)]
        void: dict[Incarnation, Mask] = {}
        if survivors and not self._run.is_uniform:
            known = _union([incarnation.messages(number) for incarnation in survivors])
            for incarnation in self._incarnations:
                messages = (
                    incarnation.messages(number) if incarnation.count and not incarnation.survives(number) else _NOTHING
                )
                is_void = ~is_in(messages, known)
                if is_in(messages[is_void], self._repeated).any():
                    earlier = [one.messages(before) for one in survivors for before in numbers if before < number]
                    is_void &= ~is_in(messages, _union(earlier))
                if is_void.any():
                    void[incarnation.name] = is_void
        return _View(number, survivors, void)

    def view_agreement(self) -> Tally:
        found: list[tuple[str, tuple[Place, ...]]] = []
        by_number: dict[int, list[tuple[IncarnationDeliveries, Installation]]] = {}
        for incarnation in self._incarnations:
            installations = incarnation.views.installations
            for before, after in pairwise(installations):
                places = (_installed(incarnation, before), _installed(incarnation, after))
                found += [(what, places) for what in self._wrong_in_a_change(before, after)]
            for one in installations:
                by_number.setdefault(one.number, []).append((incarnation, one))
                is_cut = incarnation.views.is_cut and one is installations[-1]
                if not one.is_whole and not is_cut:
                    found.append(("a view with fewer members than it says", (_installed(incarnation, one),)))
                if one.is_whole and incarnation.name not in one.members:
                    found.append(("a view without the incarnation that installs it", (_installed(incarnation, one),)))
                if not one.is_distinct:
                    found.append(("a view that names a member twice", (_installed(incarnation, one),)))
                if not one.has_ranks:
                    found.append(("a view with ranks other than its order", (_installed(incarnation, one),)))
        for installed in by_number.values():
            # Installations that agree with the longest one agree with each other.
            longest = max(installed, key=lambda pair: len(pair[1].members))
            other = next((pair for pair in installed if not longest[1].agrees(pair[1])), None)
            if other is not None:
                found.append(("one view with different members", (_installed(*longest), _installed(*other))))
        first = min(found, key=lambda one: max(place.at_ns or 0 for place in one[1]), default=None)
        return Tally(
            self._installations, len(found), None if first is None else Witness(what=first[0], places=first[1])
        )

    def _wrong_in_a_change(self, before: Installation, after: Installation) -> Iterator[str]:
        if after.number <= before.number:
            yield "the numbers of its views do not ascend"
        if after.is_beginning:
            yield "a first view after another one"
        if not after.is_anew and self._following.get(before.number, after.number) < after.number:
            yield "a view is passed over"

    def same_view(self) -> Tally:
        delivered, wrong = _distinct_and_repeated([_union(map(view.good, self._incarnations)) for view in self._views])
        if not len(wrong):
            return Tally(delivered, 0)
        one = min(self._for_good(wrong))
        other = min(delivery for delivery in self._for_good(np.array([one.message])) if delivery.view != one.view)
        places = (
            self._place(one.incarnation, one.message, one.view),
            self._place(other.incarnation, other.message, other.view),
        )
        return Tally(delivered, len(wrong), Witness(what="delivered in different views", places=places))

    def virtual_synchrony(self) -> Tally:
        violations = 0
        earliest: list[tuple[_Delivery, int]] = []
        for view in self._views:
            for following, through in self._ways_through(view.number).items():
                disputed = _not_in_all([incarnation.messages(view.number) for incarnation in through])
                violations += len(disputed)
                deliveries = (one for incarnation in through for one in _earliest(incarnation, view.number, disputed))
                earliest += [(one, following) for one in deliveries] if len(disputed) else []
        if not earliest:
            return Tally(self._installations, 0)
        one, following = min(earliest)
        together = self._ways_through(one.view)[following]
        lacking = next(incarnation for incarnation in together if one.message not in incarnation.messages(one.view))
        places = (self._place(one.incarnation, one.message, one.view), self._place(lacking.name, one.message, one.view))
        what = "not all that go on to the next view deliver it"
        return Tally(self._installations, violations, Witness(what=what, places=places))

    def no_ghost(self) -> Tally:
        violations = 0
        earliest: list[tuple[_Delivery, tuple[Place, ...]]] = []
        for incarnation in self._incarnations:
            for one, part in incarnation.parts:
                if part.start == part.stop:
                    continue
                members = [] if one is None else sorted(member.code for member in one.members)
                is_member = is_in(self._run.origins(incarnation.message[part]), np.array(members, np.int64))
                wrong = part.start + np.flatnonzero(~is_member)
                if len(wrong):
                    violations += len(wrong)
                    first = _first_of(incarnation, wrong, BEFORE if one is None else one.number)
                    earliest.append((first, () if one is None else (_installed(incarnation, one),)))
        if not earliest:
            return Tally(self._deliveries, 0)
        first, more = min(earliest, key=lambda found: found[0])
        places = (self._place(first.incarnation, first.message, first.view), *more)
        return Tally(
            self._deliveries, violations, Witness(what="delivered in a view that its sender is not in", places=places)
        )

    def state_transfer(self) -> Tally:
        checked = sum(bool(incarnation.numbers) for incarnation in self._incarnations)
        joiners = [
            incarnation
            for incarnation in self._incarnations
            if incarnation.numbers and not (incarnation.views.is_founder and incarnation.state_view is None)
        ]
        found = [
            one
            for incarnation in joiners
            for one in (self._too_early(incarnation), self._known_before(incarnation), self._different(incarnation))
        ]
        earliest = [one.earliest for one in found if one.earliest is not None]
        if not earliest:
            return Tally(checked, 0)
        _, what, places = min(earliest, key=lambda one: one[0])
        return Tally(checked, sum(one.violations for one in found), Witness(what=what, places=places))

    def total_order(self) -> Tally:
        violations = 0
        witness = None
        for view in self._views:
            whole = [
                (incarnation, incarnation.messages(view.number))
                for incarnation in self._incarnations
                if incarnation.count
            ]
            never_closed = [
                (incarnation, messages) for incarnation, messages in whole if view.has_certainly_not_closed(incarnation)
            ]
            disputes = [
                *_disputes([(incarnation, view.prefix(incarnation)) for incarnation, _ in whole]),
                *_disputes(never_closed),
            ]
            if self._run.is_uniform:
                disputes += _beyond(whole, view)
            if disputes:
                violations += len(_union(dispute.positions.astype(np.int64) for dispute in disputes))
                first = min(disputes, key=lambda dispute: int(dispute.positions[0]))
                witness = witness or self._crossed(view.number, first)
        return Tally(self._deliveries, violations, witness)

    def _ways_through(self, view: int) -> dict[int, list[IncarnationDeliveries]]:
        """Incarnations that go from this view to a later one and have the state all through this view, by the later
        view.
        """
        ways: dict[int, list[IncarnationDeliveries]] = {}
        for incarnation in self._incarnations:
            for following in incarnation.ways_through(view):
                ways.setdefault(following, []).append(incarnation)
        return ways

    def _for_good(self, messages: Ints) -> Iterator[_Delivery]:
        """Earliest delivery for good of any of these messages, by each incarnation in each view."""
        for view in self._views:
            for incarnation in self._incarnations:
                yield from _earliest(incarnation, view.number, messages, view.void.get(incarnation.name))

    def _too_early(self, incarnation: IncarnationDeliveries) -> _Found:
        """Deliveries of a joiner before it has the state."""
        rows = (
            np.flatnonzero(incarnation.record < incarnation.views.state_record)
            if incarnation.views.state_record
            else None
        )
        rows = np.arange(incarnation.count) if rows is None else rows
        if not len(rows):
            return _FINE
        first = self._first_anywhere(incarnation, rows)
        places = (self._place(incarnation.name, first.message, first.view),)
        return _Found(len(rows), (first, "delivered before it has the state", places))

    def _known_before(self, incarnation: IncarnationDeliveries) -> _Found:
        """Deliveries of a joiner that its state contained."""
        state = incarnation.state_view
        if state is None or (not len(self._repeated) and incarnation.has_ascending_views):
            return _FINE
        elders = [one for one in self._incarnations if one is not incarnation and one.views.comes_to(state)]
        before = [(one, view.number) for one in elders for view in self._views if view.number < state]
        had = [one.messages(number) for one, number in before]
        if incarnation.has_ascending_views:  # it delivers from this view on, they delivered before
            had = [messages[is_in(messages, self._repeated)] for messages in had]
        known = _union(had)
        rows = np.flatnonzero(
            is_in(incarnation.message, known) & (incarnation.record >= incarnation.views.state_record)
        )
        if not len(rows):
            return _FINE
        first = self._first_anywhere(incarnation, rows)
        wanted = np.array([first.message])
        other = min(delivery for one, number in before for delivery in _earliest(one, number, wanted))
        places = tuple(self._place(one.incarnation, one.message, one.view) for one in (other, first))
        return _Found(len(rows), (first, "delivered though it was in the state", places))

    def _different(self, incarnation: IncarnationDeliveries) -> _Found:
        """Messages that only the joiner, or only an earlier incarnation or another joiner, delivers in the view in
        which it gets the state.
        """
        state = incarnation.state_view
        if state is None:
            return _FINE
        following = set(incarnation.views.ways_from(state))
        elders = [
            one
            for one in self._incarnations
            if one is not incarnation and following.intersection(one.ways_with_state(state))
        ]
        own = incarnation.messages(state)
        wrong = _union(_not_in_all([own, one.messages(state)]) for one in elders)
        if not len(wrong):
            return _FINE
        first = min(delivery for one in (incarnation, *elders) for delivery in _earliest(one, state, wrong))
        is_own = first.message in own
        other = next(one for one in elders if (first.message in one.messages(state)) is not is_own)
        places = (self._place(incarnation.name, first.message, state), self._place(other.name, first.message, state))
        return _Found(len(wrong), (first, "a joiner and those before it differ in a view", places))

    def _first_anywhere(self, incarnation: IncarnationDeliveries, rows: Rows) -> _Delivery:
        row = _first_of(incarnation, rows, BEFORE).row
        one = next(one for one, part in incarnation.parts if part.start <= row < part.stop)
        return _first_of(incarnation, np.array([row]), BEFORE if one is None else one.number)

    def _crossed(self, view: int, dispute: _Dispute) -> Witness:
        one, other, place = dispute.one.name, dispute.other.name, dispute.positions[0]
        here = int(dispute.one.messages(view)[place])
        if dispute.what:
            return Witness(what=dispute.what, places=(self._place(one, here, view), self._place(other, here, view)))
        there = int(dispute.other.messages(view)[place])
        pairs = ((one, here), (one, there), (other, there), (other, here))
        places = tuple(self._place(name, message, view) for name, message in pairs)
        return Witness(what="delivered in different orders", places=places)

    def _place(self, name: Incarnation, message: int, view: int) -> Place:
        """Place of the message in this view here; no position if it is not delivered."""
        incarnation = self._by_name[name]
        rows = incarnation.rows(view)
        found = rows[incarnation.message[rows] == message].tolist()
        position, at_ns = (found[0] + 1, int(incarnation.at_ns[found[0]])) if found else (None, None)
        return Place(name, self._run.decode(message), position, at_ns, view=view)


def _installed(incarnation: IncarnationDeliveries, one: Installation) -> Place:
    return Place(incarnation.name, None, None, one.at_ns, view=one.number, members=one.members)


def _first_of(incarnation: IncarnationDeliveries, rows: Rows, view: int) -> _Delivery:
    """Earliest of these deliveries in a view; at least one is given."""
    row = int(rows[incarnation.at_ns[rows].argmin()])
    return _Delivery(int(incarnation.at_ns[row]), incarnation.name, row, view, int(incarnation.message[row]))


def _earliest(
    incarnation: IncarnationDeliveries, view: int, messages: Ints, void: Mask | None = None
) -> Iterator[_Delivery]:
    """Earliest delivery, not void, of any of these messages (ascending) in a view, if there is one."""
    rows = incarnation.rows(view)
    is_wanted = is_in(incarnation.message[rows], messages)
    rows = rows[is_wanted if void is None else is_wanted & ~void]
    if len(rows):
        yield _first_of(incarnation, rows, view)


def _disputes(table: Sequence[tuple[IncarnationDeliveries, Ints]]) -> list[_Dispute]:
    """Differences from prefixes of one sequence: each list of messages is compared with the longest."""
    if len(table) < 2:
        return []
    one, longest = max(table, key=lambda pair: len(pair[1]))
    found = []
    for incarnation, messages in table:
        start = longest[: len(messages)]
        if not np.array_equal(messages, start):
            found.append(_Dispute(np.flatnonzero(messages != start), one, incarnation))
    return found


def _beyond(whole: Iterable[tuple[IncarnationDeliveries, Ints]], view: _View) -> list[_Dispute]:
    """Deliveries of incarnations that did not close the view, beyond the last delivery of a survivor."""
    stateful = [incarnation for incarnation in view.survivors if incarnation.had_state_all_through(view.number + 1)]
    if not stateful:
        return []
    shortest = min(stateful, key=lambda incarnation: len(incarnation.messages(view.number)))
    end = len(shortest.messages(view.number))
    what = "delivered beyond what a survivor of the view has"
    return [
        _Dispute(np.arange(end, len(messages)), incarnation, shortest, what)
        for incarnation, messages in whole
        if len(messages) > end and not incarnation.survives(view.number)
    ]


def _union(parts: Iterable[Ints]) -> Ints:
    """Distinct values, ascending. A part equal to the one before is skipped."""
    kept: list[Ints] = []
    for part in parts:
        if len(part) and not (kept and np.array_equal(part, kept[-1])):
            kept.append(part)
    return np.unique(np.concatenate(kept)) if kept else _NOTHING


def _distinct_and_repeated(unions: Sequence[Ints]) -> tuple[int, Ints]:
    """Number of distinct values in these sets, and the values in more than one set, ascending."""
    merged = np.sort(np.concatenate([_NOTHING, *unions]))
    is_repeat = merged[1:] == merged[:-1]
    return len(merged) - int(is_repeat.sum()), np.unique(merged[1:][is_repeat])


def _not_in_all(lists: Sequence[Ints]) -> Ints:
    """Values in at least one list but not in all, ascending. No list has a value twice."""
    if all(np.array_equal(one, lists[0]) for one in lists[1:]):
        return _NOTHING
    values, counts = np.unique(np.concatenate(lists), return_counts=True)
    return np.asarray(values[counts < len(lists)])


def is_in(values: Ints, known: Ints) -> Mask:
    """Mask of the values that are in `known`, which is ascending."""
    if not len(known):
        return np.zeros(len(values), np.bool_)
    place = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.asarray(known[place] == values)
