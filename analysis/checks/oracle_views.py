"""Checks of the properties of views by definition: every pair of incarnations, every delivery, every set. A part of
`analysis.checks.oracle`; `analysis.checks.synchrony` must agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise, takewhile
from typing import NamedTuple

from analysis.checks.properties import NO_VIEW, Incarnation, MessageId, Place, Tally, Witness
from collector.records import Event, Level, ViewReason

BEFORE = 0
"""Number for the time before the first view."""


class Record(NamedTuple):
    """Fields of one trace record that the checks need."""

    record: int
    event: Event
    detail: int
    message: MessageId
    at_ns: int
    extra: int = 0
    value: int = 0
    clock_ns: int = 0
    size_bytes: int = 0
    checksum: int = 0


History = Mapping[Incarnation, Sequence[Record]]
"""Records of each incarnation, by number."""


class Delivery(NamedTuple):
    """One place of a judged sequence."""

    incarnation: Incarnation
    position: int
    message: MessageId
    record: int
    at_ns: int

    @property
    def place(self) -> Place:
        return Place(self.incarnation, self.message, self.position, self.at_ns)


class Installed(NamedTuple):
    """One installation: consecutive records of one view, at most one for each of its members."""

    incarnation: Incarnation
    records: tuple[Record, ...]
    is_cut: bool

    @property
    def number(self) -> int:
        return self.records[0].message.number

    @property
    def size(self) -> int:
        return self.records[0].value

    @property
    def members(self) -> tuple[Incarnation, ...]:
        return tuple(Incarnation(*record.message[:2]) for record in self.records)

    @property
    def is_whole(self) -> bool:
        return len(self.records) >= self.size

    @property
    def is_beginning(self) -> bool:
        return bool(self.records[0].detail == ViewReason.FIRST)

    @property
    def is_anew(self) -> bool:
        return self.records[0].detail in (ViewReason.FIRST, ViewReason.RESTORED)

    @property
    def place(self) -> Place:
        at_ns = self.records[0].at_ns
        return Place(self.incarnation, None, None, at_ns, view=self.number, members=self.members)


class DeliveryInView(NamedTuple):
    """One first delivery, and the last installation before it; None: there is none."""

    delivery: Delivery
    installed: Installed | None

    @property
    def message(self) -> MessageId:
        return self.delivery.message

    @property
    def view(self) -> int:
        return BEFORE if self.installed is None else self.installed.number

    @property
    def place(self) -> Place:
        return self.delivery.place._replace(view=self.view)


class Synchrony:
    """A history, view by view. `first`: the judged sequences without repeats."""

    def __init__(self, history: History, first: Mapping[Incarnation, Sequence[Delivery]], level: int) -> None:
        self.incarnations = sorted(history)
        self.history = history
        self.is_uniform = level == Level.FINAL
        self.installed = {
            incarnation: list(installations_of(incarnation, records)) for incarnation, records in history.items()
        }
        self.deliveries = {
            incarnation: [self._in_last_view(delivery) for delivery in first[incarnation]] for incarnation in history
        }
        self._survivors: dict[int, list[Incarnation]] = {}
        self._messages: dict[tuple[Incarnation, int], set[MessageId]] = {}

    @property
    def has_views(self) -> bool:
        return any(self.installed.values())

    @property
    def everything(self) -> list[DeliveryInView]:
        return [delivered for incarnation in self.incarnations for delivered in self.deliveries[incarnation]]

    @property
    def installations(self) -> list[Installed]:
        return [installed for incarnation in self.incarnations for installed in self.installed[incarnation]]

    @property
    def present(self) -> list[Incarnation]:
        """Incarnations that are present at the end."""
        last: dict[Incarnation, int] = {}
        for one in self.incarnations:
            ends = [record.event for record in self.history[one] if record.event in (Event.STOP, Event.ENDED)]
            if ends[:1] == [Event.STOP] and self.installed[one]:
                last[one] = self.installed[one][-1].number
        return [
            one
            for one, number in last.items()
            if number == max(last.values()) and (self.is_founder(one) or self.first_state(one) is not None)
        ]

    @property
    def at_the_end(self) -> list[Delivery]:
        """Deliveries of those incarnations after their last installations."""
        return [
            delivered.delivery
            for one in self.present
            for delivered in self.deliveries[one]
            if delivered.installed == self.installed[one][-1]
        ]

    def _in_last_view(self, delivery: Delivery) -> DeliveryInView:
        before = [one for one in self.installed[delivery.incarnation] if one.records[0].record <= delivery.record]
        return DeliveryInView(delivery, before[-1] if before else None)

    def first_state(self, incarnation: Incarnation) -> Record | None:
        """First STATE record; None: the incarnation never got a state, or needed none."""
        return next((record for record in self.history[incarnation] if record.event is Event.STATE), None)

    def numbers(self, incarnation: Incarnation) -> set[int]:
        return {one.number for one in self.installed[incarnation]}

    def is_founder(self, incarnation: Incarnation) -> bool:
        return any(one.is_beginning for one in self.installed[incarnation][:1])

    def steps(self, incarnation: Incarnation) -> list[tuple[int, int]]:
        """Pairs of consecutive views of the incarnation."""
        return [(before.number, after.number) for before, after in pairwise(self.installed[incarnation])]

    def state_view(self, incarnation: Incarnation) -> int | None:
        """View in which the incarnation got the state; None: never."""
        state = self.first_state(incarnation)
        if state is None:
            return None
        before = [one.number for one in self.installed[incarnation] if one.records[0].record <= state.record]
        return before[-1] if before else BEFORE

    def had_state_all_through(self, incarnation: Incarnation, view: int) -> bool:
        state = self.state_view(incarnation)
        return self.is_founder(incarnation) or (state is not None and state < view)

    def survives(self, incarnation: Incarnation, view: int) -> bool:
        numbers = self.numbers(incarnation)
        return view in numbers and max(numbers) > view

    def survivors(self, view: int) -> list[Incarnation]:
        if view not in self._survivors:
            self._survivors[view] = [
                incarnation for incarnation in self.incarnations if self.survives(incarnation, view)
            ]
        return self._survivors[view]

    def in_view(self, incarnation: Incarnation, view: int) -> list[DeliveryInView]:
        return [delivered for delivered in self.deliveries[incarnation] if delivered.view == view]

    def messages(self, incarnation: Incarnation, view: int) -> set[MessageId]:
        if (incarnation, view) not in self._messages:
            self._messages[incarnation, view] = {delivered.message for delivered in self.in_view(incarnation, view)}
        return self._messages[incarnation, view]

    def is_void(self, delivered: DeliveryInView) -> bool:
        survivors = self.survivors(delivered.view)
        if self.is_uniform or not survivors or delivered.delivery.incarnation in survivors:
            return False
        known = [
            other for incarnation in survivors for other in self.deliveries[incarnation] if other.view <= delivered.view
        ]
        return all(other.message != delivered.message for other in known)

    def ends_in_order(self, incarnation: Incarnation) -> bool:
        return any(record.event in (Event.STOP, Event.ENDED) for record in self.history[incarnation])

    def place(self, incarnation: Incarnation, message: MessageId, view: int) -> Place:
        """Place of the message in this view here; no position if it is not delivered."""
        for delivered in self.in_view(incarnation, view):
            if delivered.message == message:
                return delivered.place
        return Place(incarnation, message, None, None, view=view)


def view_agreement(run: Synchrony) -> Tally:
    wrong: list[tuple[str, tuple[Installed, ...]]] = []
    for incarnation in run.incarnations:
        for before, after in pairwise(run.installed[incarnation]):
            if after.number <= before.number:
                wrong.append(("the numbers of its views do not ascend", (before, after)))
            if after.is_beginning:
                wrong.append(("a first view after another one", (before, after)))
            if not after.is_anew and any(before.number < one.number < after.number for one in run.installations):
                wrong.append(("a view is passed over", (before, after)))
    wrong += [(what, (one,)) for one in run.installations for what in _wrong_members(one)]
    disputed: set[int] = set()
    for one, other in combinations(run.installations, 2):
        if one.number == other.number and one.number not in disputed and not _is_same(one, other):
            disputed.add(one.number)
            wrong.append(("one view with different members", (one, other)))
    witness = None
    if wrong:
        what, places = min(wrong, key=lambda found: max(one.records[0].at_ns for one in found[1]))
        witness = Witness(what=what, places=tuple(one.place for one in places))
    return _tally(run, len(run.installations), len(wrong), witness)


def _wrong_members(one: Installed) -> Iterator[str]:
    if not one.is_whole and not one.is_cut:
        yield "a view with fewer members than it says"
    if one.is_whole and one.incarnation not in one.members:
        yield "a view without the incarnation that installs it"
    if any(a.member == b.member for a, b in combinations(one.members, 2)):
        yield "a view that names a member twice"
    if [record.extra for record in one.records] != list(range(len(one.records))):
        yield "a view with ranks other than its order"


def same_view(run: Synchrony) -> Tally:
    good = [delivered for delivered in run.everything if not run.is_void(delivered)]
    views = {delivered.message: {one.view for one in good if one.message == delivered.message} for delivered in good}
    wrong = [delivered for delivered in good if len(views[delivered.message]) > 1]
    witness = None
    if wrong:
        one = min(wrong, key=_when)
        other = min((o for o in wrong if o.message == one.message and o.view != one.view), key=_when)
        witness = Witness(what="delivered in different views", places=(one.place, other.place))
    return _tally(run, len(views), sum(len(found) > 1 for found in views.values()), witness)


def virtual_synchrony(run: Synchrony) -> Tally:
    wrong: list[tuple[DeliveryInView, Incarnation]] = []
    for step in {step for incarnation in run.incarnations for step in run.steps(incarnation)}:
        view = step[0]
        through = [incarnation for incarnation in run.incarnations if _takes(run, incarnation, step)]
        for message in {message for incarnation in through for message in run.messages(incarnation, view)}:
            lacking = [incarnation for incarnation in through if message not in run.messages(incarnation, view)]
            has = [
                delivered
                for incarnation in through
                for delivered in run.in_view(incarnation, view)
                if delivered.message == message
            ]
            if lacking:
                wrong.append((min(has, key=_when), lacking[0]))
    witness = None
    if wrong:
        delivered, incarnation = min(wrong, key=lambda found: _when(found[0]))
        places = (delivered.place, run.place(incarnation, delivered.message, delivered.view))
        witness = Witness(what="not all that go on to the next view deliver it", places=places)
    return _tally(run, len(run.installations), len(wrong), witness)


def no_ghost(run: Synchrony) -> Tally:
    wrong = [
        delivered
        for delivered in run.everything
        if delivered.installed is None or Incarnation(*delivered.message[:2]) not in delivered.installed.members
    ]
    witness = None
    if wrong:
        delivered = min(wrong, key=_when)
        places = [delivered.place, *([] if delivered.installed is None else [delivered.installed.place])]
        witness = Witness(what="delivered in a view that its sender is not in", places=tuple(places))
    return _tally(run, len(run.everything), len(wrong), witness)


def state_transfer(run: Synchrony) -> Tally:
    wrong: list[tuple[int, Incarnation, MessageId, Witness]] = []
    for incarnation in run.incarnations:
        wrong += [
            (*_when(delivered)[:2], delivered.message, found)
            for delivered, found in _wrongly_delivered(run, incarnation)
        ]
        wrong += list(_wrong_sets(run, incarnation))
    witness = min(wrong, key=lambda found: found[:3])[3] if wrong else None
    return _tally(run, sum(bool(installed) for installed in run.installed.values()), len(wrong), witness)


def total_order(run: Synchrony) -> Tally:
    disputed: dict[tuple[int, int], Witness] = {}
    for view in {delivered.view for delivered in run.everything}:
        whole = {incarnation: run.in_view(incarnation, view) for incarnation in run.incarnations}
        good = {
            incarnation: list(takewhile(lambda h: not run.is_void(h), whole[incarnation]))
            for incarnation in run.incarnations
        }
        never_closed = [incarnation for incarnation in run.incarnations if _never_closed(run, incarnation, view)]
        pairs = [(good[incarnation], good[other]) for incarnation, other in combinations(run.incarnations, 2)]
        pairs += [(whole[incarnation], whole[other]) for incarnation, other in combinations(never_closed, 2)]
        for one, another in pairs:
            for place, (here, there) in enumerate(zip(one, another, strict=False)):
                if here.message != there.message:
                    disputed.setdefault((view, place), _crossed(run, here, there))
        if run.is_uniform:
            for place, found in _beyond(run, view, whole):
                disputed.setdefault((view, place), found)
    witness = disputed[min(disputed)] if disputed else None
    return Tally(len(run.everything), len(disputed), witness)


def _beyond(
    run: Synchrony, view: int, whole: Mapping[Incarnation, Sequence[DeliveryInView]]
) -> Iterator[tuple[int, Witness]]:
    """Deliveries of members that did not close the view, beyond the last delivery of a survivor."""
    stateful = [incarnation for incarnation in run.survivors(view) if run.had_state_all_through(incarnation, view + 1)]
    for incarnation in stateful:
        for other in run.incarnations:
            for place, delivered in enumerate(whole[other]):
                if place >= len(whole[incarnation]) and not run.survives(other, view):
                    places = (delivered.place, run.place(incarnation, delivered.message, view))
                    yield place, Witness(what="delivered beyond what a survivor of the view has", places=places)


def _takes(run: Synchrony, incarnation: Incarnation, step: tuple[int, int]) -> bool:
    """Whether the incarnation goes from the first view to the second and had the state throughout the first."""
    return step in run.steps(incarnation) and run.had_state_all_through(incarnation, step[0])


def _never_closed(run: Synchrony, incarnation: Incarnation, view: int) -> bool:
    if run.survives(incarnation, view):
        return False
    return run.ends_in_order(incarnation) or any(run.is_void(delivered) for delivered in run.in_view(incarnation, view))


def _wrongly_delivered(run: Synchrony, incarnation: Incarnation) -> Iterator[tuple[DeliveryInView, Witness]]:
    state, numbers = run.state_view(incarnation), run.numbers(incarnation)
    if not numbers or (run.is_founder(incarnation) and state is None):
        return
    elders = [one for one in run.incarnations if any(after == state for _, after in run.steps(one))]
    known = [
        delivered
        for one in elders
        if one != incarnation
        for delivered in run.deliveries[one]
        if delivered.view < (state or 0)
    ]
    after = run.first_state(incarnation)
    for delivered in run.deliveries[incarnation]:
        had = [other for other in known if other.message == delivered.message]
        if after is None or delivered.delivery.record < after.record:
            yield delivered, Witness(what="delivered before it has the state", places=(delivered.place,))
        elif had:
            places = (min(had, key=_when).place, delivered.place)
            yield delivered, Witness(what="delivered though it was in the state", places=places)


def _wrong_sets(run: Synchrony, incarnation: Incarnation) -> Iterator[tuple[int, Incarnation, MessageId, Witness]]:
    state = run.state_view(incarnation)
    if state is None:
        return
    steps = [step for step in run.steps(incarnation) if step[0] == state]
    elders = [one for one in run.incarnations if one != incarnation and any(_takes(run, one, step) for step in steps)]
    elders = [one for one in elders if any(after == state for _, after in run.steps(one))]
    elders += [
        one
        for one in run.incarnations
        if one not in (incarnation, *elders) and run.state_view(one) == state and set(steps) & set(run.steps(one))
    ]
    own = run.messages(incarnation, state)
    for message in own.union(*(run.messages(one, state) for one in elders)):
        different = [one for one in elders if (message in run.messages(one, state)) != (message in own)]
        if different:
            places = (run.place(incarnation, message, state), run.place(different[0], message, state))
            at_ns = min(place.at_ns for place in places if place.at_ns is not None)
            yield (
                at_ns,
                incarnation,
                message,
                Witness(what="a joiner and those before it differ in a view", places=places),
            )


def _crossed(run: Synchrony, here: DeliveryInView, there: DeliveryInView) -> Witness:
    places = (
        *(here.place, run.place(here.delivery.incarnation, there.message, here.view)),
        *(there.place, run.place(there.delivery.incarnation, here.message, here.view)),
    )
    return Witness(what="delivered in different orders", places=places)


def installations_of(incarnation: Incarnation, records: Sequence[Record]) -> Iterator[Installed]:
    """Installations in the order of the records: a VIEW begins another one if the record before it does not belong to
    the same view, or if the installation is complete.
    """
    found: list[list[Record]] = []
    for record in records:
        if record.event is not Event.VIEW:
            continue
        last = found[-1] if found else []
        follows = bool(last) and last[-1].record == record.record - 1
        if follows and last[0].message.number == record.message.number and len(last) < last[0].value:
            last.append(record)
        else:
            found.append([record])
    for one in found:
        is_cut = len(one) < one[0].value and one[-1].record == records[-1].record
        yield Installed(incarnation, tuple(one), is_cut)


def _is_same(one: Installed, other: Installed) -> bool:
    return one.size == other.size and all(a == b for a, b in zip(one.members, other.members, strict=False))


def _when(delivered: DeliveryInView) -> tuple[int, Incarnation, int]:
    return delivered.delivery.at_ns, delivered.delivery.incarnation, delivered.delivery.record


def _tally(run: Synchrony, checked: int, violations: int, witness: Witness | None) -> Tally:
    return Tally(checked, violations, witness) if run.has_views else Tally(0, 0, excuse=NO_VIEW)
