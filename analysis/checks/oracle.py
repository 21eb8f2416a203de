"""Checks of every property by definition, over a history in memory: short, slow, obviously right.
`analysis.checks.order` must agree with them at any size.

The terms (judged sequence, full member, joiner …) are defined in docs/properties.md. This module shares only
those terms, the step from counts to a verdict and the form of a witness with that checker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise

from analysis.checks import oracle_calls, oracle_reports, oracle_views
from analysis.checks.oracle_views import Delivery, History, Record, Synchrony
from analysis.checks.properties import (
    ADDRESSED_TO_OBJECTS,
    CALL_PROPERTIES,
    DELIVERY_PROPERTIES,
    INVENTED,
    STANDING,
    TOO_EARLY,
    UNDER_THE_ORDER,
    Evidence,
    Finding,
    Incarnation,
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
    no_order_of_views,
    order_witness,
    undrained_reason,
)
from collector.records import Event, Level, Notice


def check(
    history: History,
    *,
    members: Iterable[int],
    names: Mapping[int, str] | None = None,
    kinds: Iterable[Property] = DELIVERY_PROPERTIES,
) -> dict[Property, Finding]:
    """Judge these properties. `members` are all members that the run should have; `names` is for texts only."""
    run = JudgedRun(history, members, names or {})
    return {kind: judge(kind, _CHECKS[kind](run), run.evidence) for kind in kinds}


def raw(history: History) -> dict[Incarnation, list[Raw]]:
    """Records in the form that hosts make."""
    return {
        incarnation: [
            (
                *(int(r.event), r.detail, r.message[0], r.message[1], r.extra, r.message[2]),
                *(r.at_ns, r.clock_ns, r.value, r.size_bytes, r.checksum),
            )
            for r in records
        ]
        for incarnation, records in history.items()
    }


class JudgedRun:
    """A history and what is derived from it: judged sequences, submissions, full members."""

    def __init__(self, history: History, members: Iterable[int], names: Mapping[int, str]) -> None:
        self.history = history
        delivered_at = [r.detail for records in history.values() for r in records if r.event is Event.DELIVER]
        self.level = max(delivered_at, default=int(Level.AGREED))
        if any(r.event is Event.VIEW for records in history.values() for r in records):
            self.level = max(self.level, int(Level.AGREED))
        self.judged = {
            incarnation: list(_judged(incarnation, records, self.level)) for incarnation, records in history.items()
        }
        self.first = {incarnation: list(_without_repeats(sequence)) for incarnation, sequence in self.judged.items()}
        self.submitted_ns: dict[MessageId, int] = {}
        self.submitted_payload: dict[MessageId, Payload] = {}
        for incarnation, records in history.items():
            for record in records:
                if record.event is Event.SUBMIT and record.message[:2] == incarnation:
                    self.submitted_ns.setdefault(record.message, record.at_ns)
                    self.submitted_payload.setdefault(record.message, (record.size_bytes, record.checksum))
        self.ended = {incarnation: _end(records) for incarnation, records in history.items()}
        self.full = sorted(incarnation for incarnation in history if self._is_full(incarnation))
        self.standing = [
            delivery
            for incarnation in sorted({*self.full, *self.synchrony.present})
            for delivery in self._standing(incarnation)
        ]
        self.evidence = self._evidence(set(members), names)

    def _standing(self, incarnation: Incarnation) -> list[Delivery]:
        """Optimistic deliveries, not undone, of messages that its judged sequence lacks."""
        if self.level == Level.OPTIMISTIC:
            return []
        shown = _judged(incarnation, self.history[incarnation], Level.OPTIMISTIC)
        return [delivery for delivery in shown if self.position(incarnation, delivery.message).position is None]

    def _is_full(self, incarnation: Incarnation) -> bool:
        others = [other for other in self.history if other.member == incarnation.member and other != incarnation]
        return not others and not incarnation.is_joiner and self._ends_with(incarnation, Event.STOP)

    def _ends_with(self, incarnation: Incarnation, event: Event, *, detail: int | None = None) -> bool:
        end = self.ended[incarnation]
        return end is not None and end.event is event and detail in (None, end.detail)

    @cached_property
    def synchrony(self) -> Synchrony:
        """The history, view by view."""
        return Synchrony(self.history, self.first, self.level)

    @property
    def in_order(self) -> dict[Incarnation, list[Delivery]]:
        """Sequences that total order compares."""
        return {
            incarnation: sequence
            for incarnation, sequence in self.first.items()
            if not self._ends_with(incarnation, Event.ENDED)
        }

    def _evidence(self, members: set[int], names: Mapping[int, str]) -> Evidence:
        gaps = [incarnation for incarnation, records in self.history.items() if not _is_gapless(records)]
        silent = sorted(members - {incarnation.member for incarnation in self.history})
        cut_short = [incarnation for incarnation in self.history if self._ends_with(incarnation, Event.STOP, detail=0)]
        stopped = [incarnation for incarnation in self.history if self._ends_with(incarnation, Event.STOP)]
        in_minority = [incarnation for incarnation in stopped if _is_in_minority(self.history[incarnation])]
        reports = [r for records in self.history.values() for r in records if r.event is Event.REPORT]
        return Evidence(
            gap=gap_reason(gaps, silent, names),
            undrained=undrained_reason(cut_short, len(self.full), names, in_minority),
            addressed=ADDRESSED_TO_OBJECTS if any(r.detail == Notice.ADDRESSED for r in reports) else "",
        )

    def position(self, incarnation: Incarnation, message: MessageId) -> Place:
        """Place of the first delivery of the message here; no position if there is none."""
        for delivery in self.first[incarnation]:
            if delivery.message == message:
                return delivery.place
        return Place(incarnation, message, None, None)


def validity(run: JudgedRun) -> Tally:
    owing = {*run.full, *run.synchrony.present}
    submitted = sorted((at_ns, m) for m, at_ns in run.submitted_ns.items() if Incarnation(*m[:2]) in owing)
    wrong = [m for _, m in submitted if run.position(Incarnation(*m[:2]), m).position is None]
    places = [run.position(Incarnation(*m[:2]), m) for m in wrong[:1]]
    return Tally(len(submitted), len(wrong), Witness.of("its own submission is not delivered", places))


def agreement(run: JudgedRun, *, uniform: bool) -> Tally:
    """Agreement, or its uniform form, in which the deliveries of crashed members and joiners oblige the others, too."""
    standing: dict[MessageId, list[Delivery]] = {}
    for delivery in sorted(run.standing, key=_when):
        standing.setdefault(delivery.message, []).append(delivery)
    delivered_by: dict[MessageId, list[Delivery]] = {}
    for incarnation, sequence in run.first.items():
        if uniform or incarnation in run.full:
            for delivery in sequence:
                delivered_by.setdefault(delivery.message, []).append(delivery)
    late_by: dict[MessageId, list[Delivery]] = {}
    for delivery in run.synchrony.at_the_end:
        late_by.setdefault(delivery.message, []).append(delivery)
    wrong: list[tuple[Delivery, Incarnation]] = []
    owed = sorted(delivered_by.keys() | late_by.keys() | standing.keys())
    for message in owed:
        deliveries, late = delivered_by.get(message, []), late_by.get(message, [])
        missing: list[Incarnation] = []
        if deliveries:
            missing += [incarnation for incarnation in run.full if run.position(incarnation, message).position is None]
        if late:
            missing += sorted(set(run.synchrony.present) - {delivery.incarnation for delivery in late})
        missing += [delivery.incarnation for delivery in standing.get(message, [])]
        if missing:
            wrong.append((min([*deliveries, *late] or standing[message], key=_when), missing[0]))
    wrong.sort(key=lambda pair: (pair[0].at_ns, pair[0].message))
    for first, _ in wrong[:1]:
        if first.message not in delivered_by and first.message not in late_by:
            places = [run.position(first.incarnation, first.message)]
            return Tally(len(owed), len(wrong), Witness.of(STANDING, places))
    places = [
        place for first, incarnation in wrong[:1] for place in (first.place, run.position(incarnation, first.message))
    ]
    return Tally(len(owed), len(wrong), Witness.of("not everybody delivers it", places))


def integrity(run: JudgedRun) -> Tally:
    """A repeat, an invented delivery and a broken promise count each time, a message delivered too early once."""
    checked, wrong = 0, list[tuple[Delivery, str]]()
    early: dict[MessageId, Delivery] = {}
    for sequence in run.judged.values():
        seen: set[MessageId] = set()
        for delivery in sequence:
            checked += 1
            submitted_ns = run.submitted_ns.get(delivery.message)
            if delivery.message in seen:
                wrong.append((delivery, "delivered twice"))
            elif submitted_ns is None:
                wrong.append((delivery, INVENTED))
            elif delivery.at_ns < submitted_ns:
                early[delivery.message] = min(delivery, early.get(delivery.message, delivery), key=_when)
            seen.add(delivery.message)
    wrong += [(delivery, TOO_EARLY) for delivery in early.values()]
    wrong += [pair for incarnation, records in run.history.items() for pair in _broken_promises(incarnation, records)]
    wrong += [pair for incarnation in run.history for pair in _handed_wrongly(run, incarnation)]
    found = min(wrong, key=lambda pair: (_when(pair[0]), pair[1]), default=None)
    witness = None if found is None else Witness(what=found[1], places=(found[0].place,))
    return Tally(checked, len(wrong), witness)


def fifo(run: JudgedRun) -> Tally:
    wrong: list[tuple[Delivery, Delivery | None]] = []
    for incarnation, sequence in run.first.items():
        before: dict[Incarnation, Delivery] = {}
        for delivery in sequence:
            origin = Incarnation(*delivery.message[:2])
            previous = before.get(origin)
            is_excused = previous is None and incarnation.is_joiner
            expected = 1 if previous is None else previous.message.number + 1
            if delivery.message.number != expected and not is_excused:
                wrong.append((delivery, previous))
            before[origin] = delivery
    found = min(wrong, key=lambda pair: _when(pair[0]), default=None)
    places = [] if found is None else [d.place for d in (found[1], found[0]) if d is not None]
    return Tally(_count(run.first), len(wrong), Witness.of("delivered out of its origin's order", places))


def causal(run: JudgedRun) -> Tally:
    """By definition: the closure of the direct causes is sought before each delivery (at a joiner: the direct
    causes).
    """
    direct = _direct_causes(run)
    past = {message: _closure(message, direct) for message in direct}
    wrong: list[tuple[Delivery, MessageId]] = []
    for incarnation, sequence in run.first.items():
        needs = direct if incarnation.is_joiner else past
        seen: set[MessageId] = set()
        for delivery in sequence:
            unmet = [m for m in needs.get(delivery.message, ()) if m not in seen and _is_due(m, incarnation, sequence)]
            if unmet:
                wrong.append((delivery, min(unmet)))
            seen.add(delivery.message)
    found = min(wrong, key=lambda pair: _when(pair[0]), default=None)
    places = [] if found is None else [run.position(found[0].incarnation, found[1]), found[0].place]
    return Tally(_count(run.first), len(wrong), Witness.of("delivered before its cause", places))


def total_order(run: JudgedRun) -> Tally:
    """Uniform total order by immediate predecessors (groupcomm, Défago et al.): one look-up per delivery, and no
    message comes before itself. In a run with views it is judged view by view.
    """
    if run.synchrony.has_views:
        found = oracle_views.total_order(run.synchrony)
        broken = [kind for kind in UNDER_THE_ORDER if _CHECKS[kind](run).violations]
        return found._replace(excuse=no_order_of_views(broken[-1])) if broken else found
    predecessors: dict[MessageId, list[tuple[MessageId | None, Delivery]]] = {}
    for incarnation, sequence in run.in_order.items():
        if sequence and not incarnation.is_joiner:
            predecessors.setdefault(sequence[0].message, []).append((None, sequence[0]))
        for before, delivery in pairwise(sequence):
            predecessors.setdefault(delivery.message, []).append((before.message, delivery))
    wrong = [found for found in predecessors.values() if len({message for message, _ in found}) > 1]
    earliest = min(wrong, key=lambda found: min(_when(d) for _, d in found), default=[])
    if not wrong:
        return _circles(run, {m: {before for before, _ in found if before} for m, found in predecessors.items()})
    return Tally(_count(run.in_order), len(wrong), _order_witness(run, earliest))


def _circles(run: JudgedRun, before: Mapping[MessageId, set[MessageId]]) -> Tally:
    """Joiners before whose first delivery is a message that comes before itself."""
    joiners = [sequence for one, sequence in run.in_order.items() if sequence and one.is_joiner]
    circular = {message for message in before if joiners and message in _closure(message, before)}
    wrong = [sequence for sequence in joiners if circular & _closure(sequence[0].message, before)]
    what = "delivered in different orders"
    witness = Witness.of(what, [place for sequence in wrong for place in (sequence[0].place, sequence[-1].place)])
    return Tally(_count(run.in_order), len(wrong), witness)


def _of_calls(kind: Property, run: JudgedRun) -> Tally:
    return oracle_calls.CHECKS[kind.value](oracle_calls.CallRecords(raw(run.history), run.full))


_CHECKS: Mapping[Property, Callable[[JudgedRun], Tally]] = {
    Property.VALIDITY: validity,
    Property.AGREEMENT: lambda run: agreement(run, uniform=False),
    Property.UNIFORM_AGREEMENT: lambda run: agreement(run, uniform=True),
    Property.INTEGRITY: integrity,
    Property.FIFO: fifo,
    Property.CAUSAL: causal,
    Property.TOTAL_ORDER: total_order,
    Property.MUTUAL_EXCLUSION: lambda run: oracle_reports.mutual_exclusion(raw(run.history)),
    Property.FENCE_ORDER: lambda run: oracle_reports.fence_order(raw(run.history)),
    Property.GRANT_ORDER: lambda run: oracle_reports.grant_order(raw(run.history)),
    Property.SERVICE: lambda run: oracle_reports.service(raw(run.history), {*run.full, *run.synchrony.present}),
    Property.CLOCK_CONDITION: lambda run: oracle_reports.clock_condition(raw(run.history)),
    Property.CLOCK_MONOTONE: lambda run: oracle_reports.clock_monotone(raw(run.history)),
    Property.STATE: lambda run: oracle_reports.state(
        raw(run.history), run.full, has_drained=not run.evidence.undrained
    ),
    **{kind: partial(_of_calls, kind) for kind in CALL_PROPERTIES},
    Property.VIEW_AGREEMENT: lambda run: oracle_views.view_agreement(run.synchrony),
    Property.SAME_VIEW: lambda run: oracle_views.same_view(run.synchrony),
    Property.VIRTUAL_SYNCHRONY: lambda run: oracle_views.virtual_synchrony(run.synchrony),
    Property.NO_GHOST: lambda run: oracle_views.no_ghost(run.synchrony),
    Property.STATE_TRANSFER: lambda run: oracle_views.state_transfer(run.synchrony),
}


def _order_witness(run: JudgedRun, found: Sequence[tuple[MessageId | None, Delivery]]) -> Witness | None:
    if not found:
        return None
    before, delivery = found[0]
    other_before, other = next(pair for pair in found if pair[0] != before)
    return order_witness(
        delivery.message, (delivery.incarnation, before), (other.incarnation, other_before), run.position
    )


def _judged(incarnation: Incarnation, records: Sequence[Record], level: int) -> Iterator[Delivery]:
    """Deliveries at the judged level that are not undone."""
    at_level = [r for r in records if r.event in (Event.DELIVER, Event.UNDO) and is_judged(r.detail, level)]
    position = 0
    for index, record in enumerate(at_level):
        same = (r for r in at_level[index + 1 :] if (r.message, r.detail) == (record.message, record.detail))
        following = next(same, None)
        is_undone = following is not None and following.event is Event.UNDO
        if record.event is Event.DELIVER and not is_undone:
            position += 1
            yield Delivery(incarnation, position, record.message, record.record, record.at_ns)


def _without_repeats(sequence: Iterable[Delivery]) -> Iterator[Delivery]:
    """First deliveries, with new positions."""
    seen: set[MessageId] = set()
    for delivery in sequence:
        if delivery.message not in seen:
            seen.add(delivery.message)
            yield delivery._replace(position=len(seen))


def _end(records: Sequence[Record]) -> Record | None:
    return next((record for record in records if record.event in (Event.STOP, Event.ENDED)), None)


def _is_in_minority(records: Sequence[Record]) -> bool:
    """Whether its last MINORITY record says so."""
    minority = [record.detail for record in records if record.event is Event.MINORITY]
    return bool(minority) and minority[-1] == 1


def _is_gapless(records: Sequence[Record]) -> bool:
    numbers = [record.record for record in records]
    if not all(is_possible(record.event, record.detail, record.message.number) for record in records):
        return False
    return numbers == list(range(numbers[0], numbers[0] + len(numbers))) and records[0].event is Event.START


def _broken_promises(incarnation: Incarnation, records: Sequence[Record]) -> Iterator[tuple[Delivery, str]]:
    undone = [(index, record) for index, record in enumerate(records) if record.event is Event.UNDO]
    for index, record in undone:
        before = [r.detail for r in records[:index] if r.event is Event.DELIVER and r.message == record.message]
        is_promised = record.detail != Level.OPTIMISTIC or any(level != Level.OPTIMISTIC for level in before)
        if is_promised:
            delivery = Delivery(incarnation, 0, record.message, record.record, record.at_ns)
            yield delivery, "undone although its delivery was promised"


def _handed_wrongly(run: JudgedRun, incarnation: Incarnation) -> Iterator[tuple[Delivery, str]]:
    """Deliveries at any level, undone or not, whose payload differs from the submitted one; those that are not judged,
    also without a submission or before it.
    """
    in_judged = {delivery.record for delivery in run.judged[incarnation]}
    for record in run.history[incarnation]:
        if record.event is not Event.DELIVER:
            continue
        submitted = run.submitted_payload.get(record.message)
        is_early = submitted is not None and record.at_ns < run.submitted_ns[record.message]
        if record.record in in_judged or not (submitted is None or is_early):
            what = "" if submitted is None else altered(submitted, (record.size_bytes, record.checksum))
        else:
            what = TOO_EARLY if is_early else INVENTED
        if what:
            position = run.position(incarnation, record.message).position or 0
            yield Delivery(incarnation, position, record.message, record.record, record.at_ns), what


def _direct_causes(run: JudgedRun) -> dict[MessageId, set[MessageId]]:
    """For each submission, the messages that its member submitted or delivered since its previous submission."""
    causes: dict[MessageId, set[MessageId]] = {}
    for incarnation, records in run.history.items():
        delivered = {delivery.record for delivery in run.first[incarnation]}
        recent: set[MessageId] = set()
        for record in records:
            if record.event is Event.SUBMIT and record.message[:2] == incarnation and record.message not in causes:
                causes[record.message] = recent
                recent = {record.message}
            elif record.record in delivered and record.event is Event.DELIVER:
                recent.add(record.message)
    return causes


def _closure(message: MessageId, direct: Mapping[MessageId, set[MessageId]]) -> set[MessageId]:
    found: set[MessageId] = set()
    front = set(direct.get(message, ()))
    while front:
        found |= front
        front = {cause for m in front for cause in direct.get(m, ())} - found
    return found


def _is_due(message: MessageId, incarnation: Incarnation, sequence: Sequence[Delivery]) -> bool:
    if not incarnation.is_joiner:
        return True
    numbers = [d.message.number for d in sequence if d.message[:2] == message[:2]]
    return bool(numbers) and message.number >= min(numbers)


def _when(delivery: Delivery) -> tuple[int, Incarnation, int]:
    return delivery.at_ns, delivery.incarnation, delivery.record


def _count(sequences: Mapping[Incarnation, Sequence[Delivery]]) -> int:
    return sum(len(sequence) for sequence in sequences.values())
