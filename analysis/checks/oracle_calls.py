"""Checks of the properties of calls between objects (docs/properties.md) by definition; a part of
`analysis.checks.oracle`.

Everything is a set, and every pair is compared. `analysis.checks.calls` and `analysis.checks.call_orders` must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import pairwise
from typing import NamedTuple

from analysis.checks.properties import (
    ANY_MEMBER,
    Incarnation,
    Incarnations,
    MessageId,
    Payload,
    Place,
    Raw,
    Tally,
    Witness,
    altered,
)
from collector.records import CallReport, Event, Notice


class Object(NamedTuple):
    """One object of one incarnation. Number 0: the member itself, as a caller."""

    incarnation: Incarnation
    number: int


class Delivery(NamedTuple):
    """One delivery to one object, at its 1-based place in the object's sequence."""

    at_ns: int
    object: Object
    record: int
    message: MessageId
    position: int
    payload: Payload

    @property
    def place(self) -> Place:
        return Place(self.object.incarnation, self.message, self.position, self.at_ns, object_number=self.object.number)


class Call(NamedTuple):
    """One call."""

    at_ns: int
    object: Object
    """The caller."""
    record: int
    message: MessageId
    payload: Payload


class CallRecords:
    """Calls of a run, from its records."""

    def __init__(self, incarnations: Incarnations, full: Collection[Incarnation] = ()) -> None:
        self.incarnations = incarnations
        self.full = sorted(full)
        self.living = {incarnation for incarnation, records in incarnations.items() if _end(records) == Event.STOP}
        self.calls = {one.message: one for one in sorted(_calls(incarnations), reverse=True)}
        self.repeated = {one: list(_deliveries(incarnations, one)) for one in sorted(_receivers(incarnations))}
        self.sequences = {one: list(_firsts(delivery)) for one, delivery in self.repeated.items()}
        self.addressed = {message: _addressed(incarnations, message) for message in self.calls}
        self.known = {message for message, masks in self.addressed.items() if masks}
        self.atomic = {m for m in self.known if any(mask >> 62 & 1 for _, mask in self.addressed[m])}
        self.loose = {m for m in self.known if any(mask >> 63 & 1 or mask >> 60 & 1 for _, mask in self.addressed[m])}
        self.ordered = self.known - self.loose

    def is_for(self, message: MessageId, member: int, number: int) -> bool:
        return any(member == machine and number in _objects(mask) for machine, mask in self.addressed[message])

    def is_operation(self, call: Call) -> bool:
        return self.incarnations[call.object.incarnation][call.record - 1][8] % 256 != 0

    def owed(self, message: MessageId) -> list[Object]:
        """Objects at full members that the call is addressed to."""
        incarnations = {incarnation.member: incarnation for incarnation in self.full}
        found = {(machine, number) for machine, mask in self.addressed[message] for number in _objects(mask)}
        return [Object(incarnations[machine], number) for machine, number in sorted(found) if machine in incarnations]

    def place(self, one: Object, message: MessageId) -> Place:
        found = (delivery.place for delivery in self.sequences.get(one, []) if delivery.message == message)
        return next(found, Place(one.incarnation, message, None, None, object_number=one.number))

    def ordered_of(self, one: Object) -> list[Delivery]:
        return [delivery for delivery in self.sequences[one] if delivery.message in self.ordered]

    def reports(self, message: MessageId, *codes: CallReport) -> list[Raw]:
        """The caller's reports about its call."""
        records = self.incarnations[Incarnation(*message[:2])]
        return [r for r in records if r[0] == Event.REPORT and r[1] in codes and r[8] == message.number]

    def is_excused(self, message: MessageId, one: Object) -> bool:
        word = message.origin << 48 | message.incarnation << 32 | message.number
        missed = any(
            r[0] == Event.REPORT and r[1] == CallReport.MISSED and _unsigned(r[8]) == word
            for r in self.incarnations[one.incarnation]
        )
        unreachable = [r[4] for r in self.reports(message, CallReport.UNREACHABLE)]
        refused = self.reports(message, CallReport.REFUSED)
        return missed or bool(refused) or one.incarnation.member in unreachable or ANY_MEMBER in unreachable


def call_integrity(run: CallRecords) -> Tally:
    wrong: list[tuple[Delivery, str]] = []
    for delivery in (delivery for sequence in run.repeated.values() for delivery in sequence):
        message, call = delivery.message, run.calls.get(delivery.message)
        earlier = run.repeated[delivery.object][: delivery.position - 1]
        if any(other.message == message for other in earlier):
            wrong.append((delivery, "an object gets it twice"))
        elif call is None:
            wrong.append((delivery, "an object gets what nobody asked for"))
        elif message in run.known and not run.is_for(
            message, delivery.object.incarnation.member, delivery.object.number
        ):
            wrong.append((delivery, "an object gets what is not for it"))
        elif not run.is_operation(call) and run.reports(message, CallReport.REFUSED):
            wrong.append((delivery, "an object gets what was refused"))
        elif delivery.at_ns < call.at_ns:
            wrong.append((delivery, "an object gets it before it was asked for"))
        elif what := altered(call.payload, delivery.payload):
            wrong.append((delivery, what))
    members = [Object(incarnation, 0) for incarnation in run.incarnations]
    is_for_objects = any(r[:2] == (Event.REPORT, Notice.ADDRESSED) for rs in run.incarnations.values() for r in rs)
    to_members = [h for one in members for h in _deliveries(run.incarnations, one)] if is_for_objects else []
    wrong += [(h._replace(position=0), "it is delivered to no object") for h in to_members]
    checked = sum(len(sequence) for sequence in run.repeated.values()) + len(to_members)
    first = min(wrong, default=None)
    witness = Witness.of(first[1], [first[0].place]) if first else None
    return Tally(checked, len(wrong), witness)


def no_overtaking(run: CallRecords) -> Tally:
    checked = 0
    wrong: list[tuple[Delivery, Delivery]] = []
    for sequence in run.sequences.values():
        for index, delivery in enumerate(sequence):
            call = run.calls.get(delivery.message)
            if call is None:
                continue
            checked += 1
            before = [h for h in sequence[:index] if (a := run.calls.get(h.message)) and a.object == call.object]
            later = [h for h in before if h.message.number > delivery.message.number]
            if later:
                wrong.append((delivery, max(later, key=lambda h: h.message.number)))
    places = [h.place for h in reversed(min(wrong, default=()))]
    return Tally(checked, len(wrong), Witness.of("a call overtakes an earlier one of its sender", places))


def indivisibility(run: CallRecords) -> Tally:
    """By closure: a call that comes after itself is wrong."""
    sequences = [run.ordered_of(one) for one in run.sequences if one.incarnation in run.living]
    after: dict[MessageId, set[MessageId]] = {h.message: set() for sequence in sequences for h in sequence}
    for sequence in sequences:
        for one, other in pairwise(sequence):
            after[one.message].add(other.message)
    wrong = [message for message in after if message in _closure(message, lambda m: after[m])]
    places = next(_disagreements(sequences), None) if wrong else []
    if places is None:
        places = [h.place for sequence in sequences for h in sequence if h.message in wrong]
    witness = Witness.of("no one order agrees with what objects get", places)
    return Tally(sum(map(len, sequences)), len(wrong), witness)


def call_causality(run: CallRecords) -> Tally:
    """By true time, with sets: the past of each call, and the calls that each object got."""
    past: dict[MessageId, set[MessageId]] = {}
    carried: dict[MessageId, set[MessageId]] = {}
    got: dict[Object, set[MessageId]] = {}
    submitted: dict[Object, set[MessageId]] = {}
    events: list[Call | Delivery] = [*run.calls.values(), *(h for delivery in run.sequences.values() for h in delivery)]
    for event in sorted(events, key=lambda e: (e.at_ns, e.object.incarnation, e.record)):
        one, message = event.object, event.message
        mine = got.setdefault(one, set())
        if isinstance(event, Delivery):
            mine |= carried.get(message, set()) if message in run.loose else past.get(message, set())
            mine |= {message} & past.keys()
        elif message in run.loose:
            carried[message] = set(mine)
        elif message in run.ordered:
            past[message] = mine | submitted.get(one, set())
            submitted.setdefault(one, set()).add(message)
    checked = 0
    wrong: list[tuple[Delivery, Delivery]] = []
    for sequence in map(run.ordered_of, run.sequences):
        checked += len(sequence)
        for index, delivery in enumerate(sequence):
            late = [other for other in sequence[index + 1 :] if other.message in past[delivery.message]]
            wrong += [(delivery, late[0])] if late else []
    places = [h.place for h in min(wrong, default=())]
    return Tally(checked, len(wrong), Witness.of("an object gets a call before one of its past", places))


def call_agreement(run: CallRecords) -> Tally:
    owed: list[MessageId] = []
    wrong: list[tuple[Call, Object]] = []
    for message in run.known - run.atomic:
        objects = run.owed(message)
        is_got = any(run.place(one, message).position for one in objects)
        if (is_got and message in run.ordered) or Incarnation(*message[:2]) in run.living:
            owed.append(message)
            lacking = [one for one in objects if run.place(one, message).position is None]
            unexcused = [one for one in lacking if not run.is_excused(message, one)]
            wrong += [(run.calls[message], unexcused[0])] if unexcused else []
    places = [run.place(one, call.message) for call, one in sorted(wrong)[:1]]
    return Tally(len(owed), len(wrong), Witness.of("an object does not get what is for it", places))


def atomicity(run: CallRecords) -> Tally:
    wrong: list[tuple[Call, str, list[Place]]] = []
    for message in run.atomic:
        places = [run.place(one, message) for one in run.owed(message)]
        has, lacks = [p for p in places if p.position], [p for p in places if not p.position]
        outcomes = run.reports(message, CallReport.ABORTED, CallReport.REFUSED, CallReport.UNREACHABLE)
        anywhere = [
            run.place(one, message) for one in run.sequences if run.is_for(message, one.incarnation.member, one.number)
        ]
        executed = [place for place in anywhere if place.position]
        if executed and run.reports(message, CallReport.ABORTED):
            wrong.append((run.calls[message], "an object gets what was aborted", executed[:1]))
        elif has and lacks:
            wrong.append((run.calls[message], "some objects get it and others do not", [has[0], lacks[0]]))
        elif lacks and not outcomes and Incarnation(*message[:2]) in run.living:
            wrong.append((run.calls[message], "nobody gets it, and its caller was not told", lacks[:1]))
    first = min(wrong, default=None)
    return Tally(len(run.known), len(wrong), Witness.of(*first[1:]) if first else None)


CHECKS: dict[str, Callable[[CallRecords], Tally]] = {
    check.__name__: check
    for check in (call_integrity, no_overtaking, indivisibility, call_causality, call_agreement, atomicity)
}


def _calls(incarnations: Incarnations) -> Iterator[Call]:
    for incarnation, records in incarnations.items():
        for number, r in enumerate(records, start=1):
            if r[0] == Event.SUBMIT and (r[2], r[3]) == incarnation:
                yield Call(r[6], Object(incarnation, r[4]), number, MessageId(r[2], r[3], r[5]), (r[9], r[10]))


def _receivers(incarnations: Incarnations) -> set[Object]:
    return {
        Object(incarnation, r[4])
        for incarnation, records in incarnations.items()
        for r in records
        if r[0] == Event.DELIVER and r[4]
    }


def _deliveries(incarnations: Incarnations, one: Object) -> Iterator[Delivery]:
    position = 0
    for number, r in enumerate(incarnations[one.incarnation], start=1):
        if r[0] == Event.DELIVER and r[4] == one.number:
            position += 1
            yield Delivery(r[6], one, number, MessageId(r[2], r[3], r[5]), position, (r[9], r[10]))


def _firsts(sequence: list[Delivery]) -> Iterator[Delivery]:
    seen: list[MessageId] = []
    for delivery in sequence:
        if delivery.message not in seen:
            seen.append(delivery.message)
            yield delivery._replace(position=len(seen))


def _addressed(incarnations: Incarnations, message: MessageId) -> list[tuple[int, int]]:
    """Member and mask of each ADDRESSED report that follows the call's CALLED; none if they are the last records before
    a crash.
    """
    current, found = None, []
    records = incarnations[Incarnation(*message[:2])]
    for r in records:
        if r[0] == Event.REPORT and r[1] == Notice.CALLED:
            current = r[8]
        elif r[0] == Event.REPORT and r[1] == Notice.ADDRESSED and current == message.number:
            found.append((r[4], _unsigned(r[8])))
    is_last = current == message.number and (records[-1][0], records[-1][1]) == (Event.REPORT, Notice.ADDRESSED)
    return [] if is_last and _end(records) is None else found


def _objects(mask: int) -> set[int]:
    return {48 * (mask >> 48 & 0xFFF) + 1 + bit for bit in range(48) if mask >> bit & 1}


def _unsigned(value: int) -> int:
    """Value as 64 unsigned bits; tables hold signed ones."""
    return value % (1 << 64)


def _end(records: Collection[Raw]) -> int | None:
    return next((r[0] for r in records if r[0] in (Event.STOP, Event.ENDED)), None)


def _closure(message: MessageId, after: Callable[[MessageId], set[MessageId]]) -> set[MessageId]:
    found: set[MessageId] = set()
    front = set(after(message))
    while front:
        found |= front
        front = {other for m in front for other in after(m)} - found
    return found


def _disagreements(sequences: list[list[Delivery]]) -> Iterator[list[Place]]:
    """Two calls in one order, and the same two in the other order."""
    for here in sequences:
        pairs = [(x, y) for at, x in enumerate(here) for y in here[at + 1 :]]
        for there in sequences:
            for y, x in ((y, x) for at, y in enumerate(there) for x in there[at + 1 :]):
                for one, other in pairs:
                    if (one.message, other.message) == (x.message, y.message):
                        yield [one.place, other.place, y.place, x.place]
