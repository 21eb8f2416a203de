"""Checks of the properties over a history in memory, in linear time and without Spark, for every run of the simulator.

docs/properties.md defines the properties, `analysis.checks.oracle` judges them by definition, and tests
compare the two: equal verdicts, reasons and counts. (For causal order the oracle counts the deliveries that lack any
cause, this module and Spark those that lack a direct cause; one count is zero when the other is.)

Records are kept in dictionaries, with a few look-ups per delivery and no set-up, so that a history of a few hundred
deliveries takes less than a millisecond. Long histories are for `analysis.checks.order`.

Why one step per delivery is enough (groupcomm 3.3 and 3.4): a total order holds when each message has the same
immediate predecessor wherever it is delivered, and predecessors do not lead in a circle; causal order holds when every
member delivers the direct causes first, by induction over the causal past; agreement is a comparison of sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial

import numpy as np

from analysis.checks import call_orders, chains, sections, synchrony
from analysis.checks.calls import Calls, is_for_objects, read_calls
from analysis.checks.properties import (
    ADDRESSED_TO_OBJECTS,
    CALL_PROPERTIES,
    DELIVERY_PROPERTIES,
    INVENTED,
    STANDING,
    TOO_EARLY,
    VIEW_PROPERTIES,
    Evidence,
    Finding,
    Incarnation,
    Incarnations,
    MessageId,
    Payload,
    Place,
    Property,
    Raw,
    Tally,
    Witness,
    altered,
    gap_reason,
    is_judged,
    is_possible,
    judge,
    order_witness,
    undrained_reason,
)
from analysis.checks.views import NO_VIEWS, VIEW_EVENTS, ViewRecords, present_at_the_end, views_of
from collector.records import Event, Level

Id = tuple[int, int, int]
"""A MessageId without the cost of a class."""


Step = tuple[int, int, int, Id, int, Payload]
"""A submission, a delivery or an undoing: record number, event, detail, message, at_ns, and the payload."""

Row = tuple[int, Id, int]
"""A delivery: record number, message, at_ns."""

End = tuple[int, int]
"""STOP or ENDED, and its detail."""

_SUBMIT, _DELIVER, _UNDO = int(Event.SUBMIT), int(Event.DELIVER), int(Event.UNDO)
_STOP, _ENDED = int(Event.STOP), int(Event.ENDED)
_ENDS = (_STOP, _ENDED)
_SPEAKING = frozenset((_SUBMIT, _DELIVER, _UNDO))
_NAMING = _SPEAKING | VIEW_EVENTS
_OPTIMISTIC = int(Level.OPTIMISTIC)


def check_incarnations(
    incarnations: Incarnations,
    *,
    members: Iterable[int],
    names: Mapping[int, str] | None = None,
    kinds: Iterable[Property] | None = None,
) -> dict[Property, Finding]:
    """Judge `kinds` (None: all properties of deliveries) of the hosts' own records: all of each incarnation, from the
    first on.

    `members` are all members that the run should have; `names` is for texts only.
    """
    return check_run(judged_run(incarnations, members=members, names=names), kinds)


def judged_run(
    incarnations: Incarnations, *, members: Iterable[int], names: Mapping[int, str] | None = None, undrained: str = ""
) -> JudgedRun:
    """Judged run of the hosts' own records, for callers that need more than a judgement. `undrained`: a reason besides
    the records why liveness cannot be judged.
    """
    read = [_incarnation_of_records(incarnation, records) for incarnation, records in incarnations.items()]
    return JudgedRun(read, members, names or {}, raw=lambda: incarnations, undrained=undrained)


def check_run(run: JudgedRun, kinds: Iterable[Property] | None = None) -> dict[Property, Finding]:
    """Judge `kinds` (None: all properties of deliveries)."""
    wanted = DELIVERY_PROPERTIES if kinds is None else kinds
    return {kind: judge(kind, _CHECKS[kind](run), run.evidence) for kind in wanted}


class IncarnationRecord:
    """One incarnation: its steps and, once the judged level is known, its sequence."""

    def __init__(
        self,
        name: tuple[int, int],
        steps: list[Step],
        *,
        end: End | None,
        is_gapless: bool,
        is_for_objects: bool = False,
        views: ViewRecords = NO_VIEWS,
    ) -> None:
        self.name = Incarnation(*name)
        self.steps = steps
        self.end = end
        """None: crashed."""
        self.is_for_objects = is_for_objects
        """Whether its messages are addressed to objects."""
        self.views = views
        self.has_ended = end is not None and end[0] == _ENDED
        self.is_gapless = is_gapless
        self.is_full = False
        self.judged: list[Row] = []
        """Record number, message and time of the deliveries at the judged level that were not undone."""
        self.firsts: list[Row] = []
        """`judged` without repeats."""
        self.position: dict[Id, int] = {}
        """1-based position of each first delivery, in their order."""

    def judge_at(self, level: int) -> None:
        rows = [step for step in self.steps if step[1] != _SUBMIT and is_judged(step[2], level)]
        if any(step[1] == _UNDO for step in rows):
            rows = list(_not_undone(rows))
        self.judged = [(record, message, at_ns) for record, _, _, message, at_ns, _ in rows]
        position: dict[Id, int] = {}
        for _, message, _ in self.judged:
            position.setdefault(message, len(position) + 1)
        self.position = position
        self.firsts = self.judged
        if len(position) < len(self.judged):
            self.firsts = list(_without_repeats(self.judged))

    def place(self, message: Id) -> Place:
        """Place of the first delivery of the message here; no position if there is none."""
        position = self.position.get(message)
        at_ns = None if position is None else self.firsts[position - 1][2]
        return Place(self.name, MessageId(*message), position, at_ns)


class JudgedRun:
    """A history and what is derived from it: judged sequences, submissions, full members."""

    def __init__(
        self,
        incarnations: Sequence[IncarnationRecord],
        members: Iterable[int],
        names: Mapping[int, str],
        *,
        raw: Callable[[], Incarnations],
        undrained: str = "",
    ) -> None:
        self.incarnations = incarnations
        self.raw = raw
        self.by_name = {incarnation.name: incarnation for incarnation in incarnations}
        at = [step[2] for incarnation in incarnations for step in incarnation.steps if step[1] == _DELIVER]
        level = max(at, default=int(Level.AGREED))
        if any(incarnation.views.installations for incarnation in incarnations):
            level = max(level, int(Level.AGREED))
        self.is_optimistic = level > _OPTIMISTIC and _OPTIMISTIC in at
        """Whether there are optimistic deliveries besides the judged ones."""
        self.submitted_ns: dict[Id, int] = {}
        self.submitted_payload: dict[Id, Payload] = {}
        count = dict[int, int]()
        for incarnation in incarnations:
            incarnation.judge_at(level)
            count[incarnation.name.member] = count.get(incarnation.name.member, 0) + 1
            for _, event, _, message, at_ns, payload in incarnation.steps:
                if event == _SUBMIT and message[0] == incarnation.name[0] and message[1] == incarnation.name[1]:
                    self.submitted_ns.setdefault(message, at_ns)
                    self.submitted_payload.setdefault(message, payload)
        for incarnation in incarnations:
            is_stopped = incarnation.end is not None and not incarnation.has_ended
            incarnation.is_full = is_stopped and not incarnation.name.is_joiner and count[incarnation.name.member] == 1
        self.full = sorted(
            (incarnation for incarnation in incarnations if incarnation.is_full),
            key=lambda incarnation: incarnation.name,
        )
        self.at_the_end = self._at_the_end()
        """Messages that each incarnation which is present at the end delivers after its last installation."""
        self.in_order = [incarnation for incarnation in incarnations if not incarnation.has_ended]
        """Incarnations that total order compares in a run without views."""
        self.deliveries = sum(len(incarnation.firsts) for incarnation in incarnations)
        self.evidence = Evidence(
            gap=gap_reason(
                [incarnation.name for incarnation in incarnations if not incarnation.is_gapless],
                sorted(set(members) - count.keys()),
                names,
            ),
            undrained=undrained_reason(
                [incarnation.name for incarnation in incarnations if incarnation.end == (_STOP, 0)],
                len(self.full),
                names,
                [
                    incarnation.name
                    for incarnation in incarnations
                    if incarnation.end and not incarnation.has_ended and incarnation.views.is_in_minority
                ],
            )
            or undrained,
            addressed=ADDRESSED_TO_OBJECTS if any(incarnation.is_for_objects for incarnation in incarnations) else "",
        )
        self.is_for_objects = bool(self.evidence.addressed)
        """Whether messages are addressed to objects: then `calls` has more facts than the deliveries of members."""
        self.has_views = any(incarnation.views.installations for incarnation in incarnations)
        self.level = level

    def _at_the_end(self) -> dict[Incarnation, frozenset[Id]]:
        stopped = {one.name: one.views for one in self.incarnations if one.end is not None and not one.has_ended}
        return {
            name: frozenset(message for record, message, _ in self.by_name[name].firsts if record > installed.record)
            for name, installed in present_at_the_end(stopped).items()
        }

    @cached_property
    def of_views(self) -> dict[Property, Tally]:
        """Tallies that are counted view by view."""
        return _of_views(self) if self.has_views else synchrony.without_views()

    @cached_property
    def calls(self) -> Calls:
        """Calls between objects."""
        return read_calls(self.raw())

    def place(self, incarnation: Incarnation, message: Id) -> Place:
        return self.by_name[incarnation].place(message)


def validity(run: JudgedRun) -> Tally:
    owing = {incarnation.name: incarnation for incarnation in run.full}
    owing |= {name: run.by_name[name] for name in run.at_the_end}
    owed = [(at_ns, m) for m, at_ns in run.submitted_ns.items() if m[:2] in owing]
    wrong = [(at_ns, m) for at_ns, m in owed if m not in owing[Incarnation(*m[:2])].position]
    places = [run.place(Incarnation(*m[:2]), m) for _, m in [min(wrong)]] if wrong else []
    return Tally(len(owed), len(wrong), Witness.of("its own submission is not delivered", places))


def agreement(run: JudgedRun) -> Tally:
    return _agreement(run, run.full)


def uniform_agreement(run: JudgedRun) -> Tally:
    return _agreement(run, run.incarnations)


def _agreement(run: JudgedRun, obliging: Sequence[IncarnationRecord]) -> Tally:
    delivered = set[Id]().union(*(incarnation.position for incarnation in obliging))
    standing = _standing(run)
    common = set.intersection(*(set(incarnation.position) for incarnation in run.full)) if run.full else delivered
    late = set[Id]().union(*run.at_the_end.values())
    checked, wrong = len(delivered | late | standing.keys()), delivered - common | standing.keys()
    if late:
        wrong |= late - frozenset.intersection(*run.at_the_end.values())
    if not wrong:
        return Tally(checked, 0)

    def first(message: Id) -> tuple[int, Incarnation]:
        present = [run.by_name[name] for name, messages in run.at_the_end.items() if message in messages]
        return min(_deliveries_of(message, [*obliging, *present]), default=None) or standing[message]

    message = min(wrong, key=lambda message: (first(message)[0], message))
    lacking = [one.name for one in run.full if message in delivered and message not in one.position]
    lacking += [name for name, messages in run.at_the_end.items() if message in late and message not in messages]
    lacking += [standing[message][1]] if message in standing else []
    places = [run.place(first(message)[1], message)]
    if message not in delivered | late:
        return Tally(checked, len(wrong), Witness.of(STANDING, places))
    places.append(run.place(lacking[0], message))
    return Tally(checked, len(wrong), Witness.of("not everybody delivers it", places))


def _standing(run: JudgedRun) -> dict[Id, tuple[int, Incarnation]]:
    """Messages that a full member, or an incarnation that is present at the end, delivers optimistically, does not
    undo, and does not deliver for good: time and incarnation of the earliest such delivery.
    """
    if not run.is_optimistic:
        return {}
    found: dict[Id, tuple[int, Incarnation]] = {}
    for name in {one.name for one in run.full} | run.at_the_end.keys():
        incarnation = run.by_name[name]
        rows = [step for step in incarnation.steps if step[2] == _OPTIMISTIC and step[1] != _SUBMIT]
        for _, _, _, message, at_ns, _ in _not_undone(rows):
            if message not in incarnation.position:
                found[message] = min(found.get(message, (at_ns, name)), (at_ns, name))
    return found


def integrity(run: JudgedRun) -> Tally:
    """A repeat, an invented delivery and a broken promise count each time, a message delivered too early once."""
    wrong: list[tuple[_When, str, Place]] = []
    early: dict[Id, tuple[_When, str, Place]] = {}
    for incarnation in run.incarnations:
        seen: set[Id] | None = None if incarnation.firsts is incarnation.judged else set()
        for position, (record, message, at_ns) in enumerate(incarnation.judged, start=1):
            submitted_ns = run.submitted_ns.get(message)
            if seen is not None and message in seen:
                what = "delivered twice"
            elif submitted_ns is None:
                what = INVENTED
            else:
                what = TOO_EARLY if at_ns < submitted_ns else ""
            if what:
                place = Place(incarnation.name, MessageId(*message), position, at_ns)
                complaint = ((at_ns, incarnation.name, record), what, place)
                if submitted_ns is None or what == "delivered twice":
                    wrong.append(complaint)
                else:
                    early[message] = min(complaint, early.get(message, complaint))
            if seen is not None:
                seen.add(message)
        wrong += _broken_promises(incarnation)
        wrong += _handed_wrongly(run, incarnation)
    wrong += early.values()
    found = min(wrong, default=None)
    witness = None if found is None else Witness(what=found[1], places=(found[2],))
    return Tally(sum(len(incarnation.judged) for incarnation in run.incarnations), len(wrong), witness)


def fifo(run: JudgedRun) -> Tally:
    wrong: list[tuple[_When, Id, Id | None]] = []
    for incarnation in run.incarnations:
        last: dict[tuple[int, int], int] = {}
        for record, message, at_ns in incarnation.firsts:
            origin = message[:2]
            number = message[2]
            before = last.get(origin)
            if number != (before or 0) + 1 and not (before is None and incarnation.name.is_joiner):
                previous = None if before is None else (*origin, before)
                wrong.append(((at_ns, incarnation.name, record), message, previous))
            last[origin] = number
    if not wrong:
        return Tally(run.deliveries, 0)
    (_, name, _), message, previous = min(wrong, key=lambda found: found[0])
    places = [run.place(name, m) for m in (previous, message) if m is not None]
    return Tally(run.deliveries, len(wrong), Witness.of("delivered out of its origin's order", places))


def causal(run: JudgedRun) -> Tally:
    """Compare each delivery with the direct causes of its message."""
    direct = _direct_causes(run)
    wrong: list[tuple[_When, Id, set[Id]]] = []
    for incarnation in run.incarnations:
        seen: set[Id] = set()
        oldest = _oldest_numbers(incarnation) if incarnation.name.is_joiner else None
        for record, message, at_ns in incarnation.firsts:
            needs = direct.get(message)
            if needs and not needs <= seen:
                unmet = needs - seen
                if oldest is not None:
                    unmet = {m for m in unmet if m[2] >= oldest.get(m[:2], m[2] + 1)}
                if unmet:
                    wrong.append(((at_ns, incarnation.name, record), message, unmet))
            seen.add(message)
    if not wrong:
        return Tally(run.deliveries, 0)
    (_, name, _), message, unmet = min(wrong, key=lambda found: found[0])
    places = [run.place(name, min(unmet)), run.place(name, message)]
    return Tally(run.deliveries, len(wrong), Witness.of("delivered before its cause", places))


def total_order(run: JudgedRun) -> Tally:
    """Every message must have the same predecessor wherever it is delivered, and predecessors must have an end. In a
    run with views this is judged view by view.
    """
    if run.has_views:
        return run.of_views[Property.TOTAL_ORDER]
    predecessor: dict[Id, Id | None] = {}
    disputed: dict[Id, None] = {}
    deliveries = 0
    for incarnation in run.in_order:
        deliveries += len(incarnation.firsts)
        for message, before in _predecessors(incarnation):
            if predecessor.setdefault(message, before) != before:
                disputed[message] = None
    if disputed:
        return Tally(deliveries, len(disputed), _order_witness(run, disputed))
    first = {one.name: MessageId(*one.firsts[0][1]) for one in run.in_order if one.firsts}
    return chains.endless(deliveries, first, run.place)


def _of_calls(kind: Property, run: JudgedRun) -> Tally:
    return call_orders.CHECKS[kind](run.calls, [incarnation.name for incarnation in run.full])


def _of_view(kind: Property, run: JudgedRun) -> Tally:
    return run.of_views[kind]


def _of_views(run: JudgedRun) -> dict[Property, Tally]:
    """Tallies of the properties of views. Messages are numbered, to be kept in columns."""
    numbers: dict[Id, int] = {}
    incarnations = [
        synchrony.IncarnationDeliveries(
            name=incarnation.name,
            views=incarnation.views,
            ends_in_order=incarnation.end is not None,
            record=np.array([record for record, _, _ in incarnation.firsts], np.int64),
            message=np.array(
                [numbers.setdefault(message, len(numbers)) for _, message, _ in incarnation.firsts], np.int64
            ),
            at_ns=np.array([at_ns for _, _, at_ns in incarnation.firsts], np.int64),
        )
        for incarnation in run.incarnations
    ]
    messages = [MessageId(*message) for message in numbers]
    origins = np.array([Incarnation(*message[:2]).code for message in messages], np.int64)
    by_view = synchrony.Run(
        incarnations=incarnations,
        origins=lambda codes: origins[codes],
        decode=messages.__getitem__,
        is_uniform=run.level == Level.FINAL,
    )
    return synchrony.tallies(by_view)


_CHECKS: Mapping[Property, Callable[[JudgedRun], Tally]] = {
    Property.VALIDITY: validity,
    Property.AGREEMENT: agreement,
    Property.UNIFORM_AGREEMENT: uniform_agreement,
    Property.INTEGRITY: integrity,
    Property.FIFO: fifo,
    Property.CAUSAL: causal,
    Property.TOTAL_ORDER: total_order,
    Property.MUTUAL_EXCLUSION: lambda run: sections.mutual_exclusion(run.raw()),
    Property.FENCE_ORDER: lambda run: sections.fence_order(run.raw()),
    Property.GRANT_ORDER: lambda run: sections.grant_order(run.raw()),
    Property.SERVICE: lambda run: sections.service(
        run.raw(), {*(incarnation.name for incarnation in run.full), *run.at_the_end}
    ),
    Property.CLOCK_CONDITION: lambda run: sections.clock_condition(run.raw()),
    Property.CLOCK_MONOTONE: lambda run: sections.clock_monotone(run.raw()),
    Property.STATE: lambda run: sections.state(
        run.raw(), [incarnation.name for incarnation in run.full], has_drained=not run.evidence.undrained
    ),
    **{kind: partial(_of_calls, kind) for kind in CALL_PROPERTIES},
    **{kind: partial(_of_view, kind) for kind in VIEW_PROPERTIES},
}

_When = tuple[int, Incarnation, int]
"""Time, incarnation, record number: sort key of violations."""


def _incarnation_of_records(name: tuple[int, int], records: Sequence[Raw]) -> IncarnationRecord:
    steps = [
        (number, event, detail, (origin, incarnation, message), at_ns, (size_bytes, checksum))
        for number, (event, detail, origin, incarnation, _, message, at_ns, _, _, size_bytes, checksum) in enumerate(
            records, start=1
        )
        if event in _SPEAKING
    ]
    end = next(((record[0], record[1]) for record in records if record[0] in _ENDS), None)
    is_gapless = bool(records) and records[0][0] == Event.START
    is_gapless &= all(is_possible(record[0], record[1], record[5]) for record in records if record[0] in _NAMING)
    return IncarnationRecord(
        name,
        steps,
        end=end,
        is_gapless=is_gapless,
        is_for_objects=is_for_objects(records),
        views=views_of(records),
    )


def _not_undone(rows: Sequence[Step]) -> Iterator[Step]:
    """Deliveries that are not followed by an UNDO of the same message and level."""
    following: dict[tuple[Id, int], int] = {}
    kept = []
    for row in reversed(rows):
        key = row[3], row[2]
        if row[1] == _DELIVER and following.get(key) != _UNDO:
            kept.append(row)
        following[key] = row[1]
    return reversed(kept)


def _without_repeats(rows: Iterable[Row]) -> Iterator[Row]:
    seen: set[Id] = set()
    for row in rows:
        if row[1] not in seen:
            seen.add(row[1])
            yield row


def _deliveries_of(message: Id, incarnations: Iterable[IncarnationRecord]) -> Iterator[tuple[int, Incarnation]]:
    """Time and incarnation of each first delivery of the message."""
    for incarnation in incarnations:
        position = incarnation.position.get(message)
        if position is not None:
            yield incarnation.firsts[position - 1][2], incarnation.name


def _broken_promises(incarnation: IncarnationRecord) -> Iterator[tuple[_When, str, Place]]:
    promised: set[Id] = set()
    for record, event, detail, message, at_ns, _ in incarnation.steps:
        if event == _DELIVER and detail != _OPTIMISTIC:
            promised.add(message)
        elif event == _UNDO and (detail != _OPTIMISTIC or message in promised):
            place = Place(incarnation.name, MessageId(*message), 0, at_ns)
            yield (at_ns, incarnation.name, record), "undone although its delivery was promised", place


def _handed_wrongly(run: JudgedRun, incarnation: IncarnationRecord) -> Iterator[tuple[_When, str, Place]]:
    """Deliveries at any level, undone or not, whose payload differs from the submitted one; those that are not judged,
    also without a submission or before it.
    """
    submitted, submitted_ns = run.submitted_payload, run.submitted_ns
    judged = {record for record, _, _ in incarnation.judged}
    for record, event, _, message, at_ns, payload in incarnation.steps:
        if event != _DELIVER:
            continue
        what = ""
        if record not in judged and at_ns < submitted_ns.get(message, at_ns + 1):
            what = TOO_EARLY if message in submitted_ns else INVENTED
        elif submitted.get(message, payload) != payload:
            what = altered(submitted[message], payload)
        if what:
            place = Place(incarnation.name, MessageId(*message), incarnation.position.get(message, 0), at_ns)
            yield (at_ns, incarnation.name, record), what, place


def _direct_causes(run: JudgedRun) -> dict[Id, set[Id]]:
    """For each submission, the messages that its member submitted or delivered since its previous submission."""
    causes: dict[Id, set[Id]] = {}
    for incarnation in run.incarnations:
        firsts = iter(incarnation.firsts)
        coming = next(firsts, None)
        recent: set[Id] = set()
        for record, event, _, message, *_ in incarnation.steps:
            if event == _SUBMIT:
                if message not in causes and message[:2] == incarnation.name:
                    causes[message] = recent
                    recent = {message}
            elif coming is not None and coming[0] == record:
                recent.add(message)
                coming = next(firsts, None)
    return causes


def _oldest_numbers(incarnation: IncarnationRecord) -> dict[tuple[int, int], int]:
    """Lowest number of each origin that this incarnation delivers."""
    oldest: dict[tuple[int, int], int] = {}
    for origin, start, number in incarnation.position:
        oldest[origin, start] = min(number, oldest.get((origin, start), number))
    return oldest


def _predecessors(incarnation: IncarnationRecord) -> Iterator[tuple[Id, Id | None]]:
    """Each delivered message and its predecessor, except a joiner's first message: no record holds its predecessor."""
    messages = iter(incarnation.position)
    before = next(messages, None) if incarnation.name.is_joiner else None
    for message in messages:
        yield message, before
        before = message


def _order_witness(run: JudgedRun, disputed: Iterable[Id]) -> Witness:
    wanted = set(disputed)
    sides: dict[Id, list[tuple[int, Incarnation, Id | None]]] = {}
    for incarnation in run.in_order:
        for message, before in _predecessors(incarnation):
            if message in wanted:
                at_ns = incarnation.firsts[incarnation.position[message] - 1][2]
                sides.setdefault(message, []).append((at_ns, incarnation.name, before))
    message = min(sides, key=lambda m: min(side[:2] for side in sides[m]))
    _, here, before = sides[message][0]
    there, other = next((name, other) for _, name, other in sides[message] if other != before)
    return order_witness(MessageId(*message), (here, _named(before)), (there, _named(other)), run.place)


def _named(message: Id | None) -> MessageId | None:
    return None if message is None else MessageId(*message)
