"""Checks of the properties of calls between objects (analysis.checks.properties) by definition; a part of
`analysis.checks.oracle`.

Everything is a set, and every pair is compared. `analysis.checks.calls` and `analysis.checks.call_orders` must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import pairwise
from typing import NamedTuple

from analysis.checks.properties import (
    ANYBODY,
    Incarnation,
    Incarnations,
    MessageId,
    Place,
    Raw,
    Tally,
    Witness,
)
from collector.records import CallReport, Event, Notice


class Object(NamedTuple):
    """One object of one incarnation. Number 0: the member itself, as a caller."""

    incarnation: Incarnation
    number: int


class Handed(NamedTuple):
    """One delivery to one object, at its 1-based place in the object's sequence."""

    at_ns: int
    object: Object
    record: int
    message: MessageId
    position: int

    @property
    def place(self) -> Place:
        return Place(self.object.incarnation, self.message, self.position, self.at_ns, taker=self.object.number)


class Asked(NamedTuple):
    """One call."""

    at_ns: int
    object: Object
    """The caller."""
    record: int
    message: MessageId


class CallView:
    """Calls of a run, from its records."""

    def __init__(self, incarnations: Incarnations, full: Collection[Incarnation] = ()) -> None:
        self.incarnations = incarnations
        self.full = sorted(full)
        self.living = {incarnation for incarnation, records in incarnations.items() if _end(records) == Event.STOP}
        self.asked = {one.message: one for one in sorted(_asked(incarnations), reverse=True)}
        self.repeated = {one: list(_handed(incarnations, one)) for one in sorted(_takers(incarnations))}
        self.sequences = {one: list(_firsts(handed)) for one, handed in self.repeated.items()}
        self.addressed = {message: _addressed(incarnations, message) for message in self.asked}
        self.known = {message for message, masks in self.addressed.items() if masks}
        self.atomic = {m for m in self.known if any(mask >> 62 & 1 for _, mask in self.addressed[m])}
        self.loose = {m for m in self.known if any(mask >> 63 & 1 or mask >> 60 & 1 for _, mask in self.addressed[m])}
        self.ordered = self.known - self.loose

    def is_for(self, message: MessageId, member: int, number: int) -> bool:
        return any(member == machine and number in _objects(mask) for machine, mask in self.addressed[message])

    def owed(self, message: MessageId) -> list[Object]:
        """Objects at full members that the call is addressed to."""
        incarnations = {incarnation.member: incarnation for incarnation in self.full}
        found = {(machine, number) for machine, mask in self.addressed[message] for number in _objects(mask)}
        return [Object(incarnations[machine], number) for machine, number in sorted(found) if machine in incarnations]

    def place(self, one: Object, message: MessageId) -> Place:
        found = (handed.place for handed in self.sequences.get(one, []) if handed.message == message)
        return next(found, Place(one.incarnation, message, None, None, taker=one.number))

    def ordered_of(self, one: Object) -> list[Handed]:
        return [handed for handed in self.sequences[one] if handed.message in self.ordered]

    def said(self, message: MessageId, *codes: CallReport) -> list[Raw]:
        """The caller's reports about its call."""
        records = self.incarnations[Incarnation(*message[:2])]
        return [r for r in records if r[0] == Event.REPORT and r[1] in codes and r[8] == message.number]

    def is_excused(self, message: MessageId, one: Object) -> bool:
        word = message.origin << 48 | message.incarnation << 32 | message.number
        missed = any(
            r[0] == Event.REPORT and r[1] == CallReport.MISSED and _unsigned(r[8]) == word
            for r in self.incarnations[one.incarnation]
        )
        unreachable = [r[4] for r in self.said(message, CallReport.UNREACHABLE)]
        refused = self.said(message, CallReport.REFUSED)
        return missed or bool(refused) or one.incarnation.member in unreachable or ANYBODY in unreachable


def call_integrity(view: CallView) -> Tally:
    wrong: list[tuple[Handed, str]] = []
    for handed in (handed for sequence in view.repeated.values() for handed in sequence):
        message, asked = handed.message, view.asked.get(handed.message)
        earlier = view.repeated[handed.object][: handed.position - 1]
        if any(other.message == message for other in earlier):
            wrong.append((handed, "an object gets it twice"))
        elif asked is None:
            wrong.append((handed, "an object gets what nobody asked for"))
        elif message in view.known and not view.is_for(message, handed.object.incarnation.member, handed.object.number):
            wrong.append((handed, "an object gets what is not for it"))
        elif handed.at_ns < asked.at_ns:
            wrong.append((handed, "an object gets it before it was asked for"))
    checked = sum(len(sequence) for sequence in view.repeated.values())
    first = min(wrong, default=None)
    witness = _witness(first[1], [first[0].place]) if first else None
    return Tally(checked, len(wrong), witness)


def no_overtaking(view: CallView) -> Tally:
    checked = 0
    wrong: list[tuple[Handed, Handed]] = []
    for sequence in view.sequences.values():
        for index, handed in enumerate(sequence):
            asked = view.asked.get(handed.message)
            if asked is None:
                continue
            checked += 1
            before = [h for h in sequence[:index] if (a := view.asked.get(h.message)) and a.object == asked.object]
            later = [h for h in before if h.message.number > handed.message.number]
            if later:
                wrong.append((handed, max(later, key=lambda h: h.message.number)))
    places = [h.place for h in reversed(min(wrong, default=()))]
    return Tally(checked, len(wrong), _witness("a call overtakes an earlier one of its sender", places))


def indivisibility(view: CallView) -> Tally:
    """By closure: a call that comes after itself is wrong."""
    sequences = [view.ordered_of(one) for one in view.sequences if one.incarnation in view.living]
    after: dict[MessageId, set[MessageId]] = {h.message: set() for sequence in sequences for h in sequence}
    for sequence in sequences:
        for one, other in pairwise(sequence):
            after[one.message].add(other.message)
    wrong = [message for message in after if message in _closure(message, lambda m: after[m])]
    places = next(_disagreements(sequences), None) if wrong else []
    if places is None:
        places = [h.place for sequence in sequences for h in sequence if h.message in wrong]
    witness = _witness("no one order agrees with what objects get", places)
    return Tally(sum(map(len, sequences)), len(wrong), witness)


def call_causality(view: CallView) -> Tally:
    """By true time, with sets: the past of each call, and the calls that each object got."""
    past: dict[MessageId, set[MessageId]] = {}
    carried: dict[MessageId, set[MessageId]] = {}
    got: dict[Object, set[MessageId]] = {}
    submitted: dict[Object, set[MessageId]] = {}
    events: list[Asked | Handed] = [*view.asked.values(), *(h for handed in view.sequences.values() for h in handed)]
    for event in sorted(events, key=lambda e: (e.at_ns, e.object.incarnation, e.record)):
        one, message = event.object, event.message
        mine = got.setdefault(one, set())
        if isinstance(event, Handed):
            mine |= carried.get(message, set()) if message in view.loose else past.get(message, set())
            mine |= {message} & past.keys()
        elif message in view.loose:
            carried[message] = set(mine)
        elif message in view.ordered:
            past[message] = mine | submitted.get(one, set())
            submitted.setdefault(one, set()).add(message)
    checked = 0
    wrong: list[tuple[Handed, Handed]] = []
    for sequence in map(view.ordered_of, view.sequences):
        checked += len(sequence)
        for index, handed in enumerate(sequence):
            late = [other for other in sequence[index + 1 :] if other.message in past[handed.message]]
            wrong += [(handed, late[0])] if late else []
    places = [h.place for h in min(wrong, default=())]
    return Tally(checked, len(wrong), _witness("an object gets a call before one of its past", places))


def call_agreement(view: CallView) -> Tally:
    owed: list[MessageId] = []
    wrong: list[tuple[Asked, Object]] = []
    for message in view.known - view.atomic:
        objects = view.owed(message)
        is_got = any(view.place(one, message).position for one in objects)
        if (is_got and message in view.ordered) or Incarnation(*message[:2]) in view.living:
            owed.append(message)
            lacking = [one for one in objects if view.place(one, message).position is None]
            unexcused = [one for one in lacking if not view.is_excused(message, one)]
            wrong += [(view.asked[message], unexcused[0])] if unexcused else []
    places = [view.place(one, asked.message) for asked, one in sorted(wrong)[:1]]
    return Tally(len(owed), len(wrong), _witness("an object does not get what is for it", places))


def atomicity(view: CallView) -> Tally:
    wrong: list[tuple[Asked, str, list[Place]]] = []
    for message in view.atomic:
        places = [view.place(one, message) for one in view.owed(message)]
        has, lacks = [p for p in places if p.position], [p for p in places if not p.position]
        told = view.said(message, CallReport.ABORTED, CallReport.REFUSED, CallReport.UNREACHABLE)
        if has and view.said(message, CallReport.ABORTED):
            wrong.append((view.asked[message], "an object gets what was aborted", has[:1]))
        elif has and lacks:
            wrong.append((view.asked[message], "some objects get it and others do not", [has[0], lacks[0]]))
        elif lacks and not told and Incarnation(*message[:2]) in view.living:
            wrong.append((view.asked[message], "nobody gets it, and its caller was not told", lacks[:1]))
    first = min(wrong, default=None)
    return Tally(len(view.known), len(wrong), _witness(*first[1:]) if first else None)


CHECKS: dict[str, Callable[[CallView], Tally]] = {
    check.__name__: check
    for check in (call_integrity, no_overtaking, indivisibility, call_causality, call_agreement, atomicity)
}


def _asked(incarnations: Incarnations) -> Iterator[Asked]:
    for incarnation, records in incarnations.items():
        for number, r in enumerate(records, start=1):
            if r[0] == Event.SUBMIT and (r[2], r[3]) == incarnation:
                yield Asked(r[6], Object(incarnation, r[4]), number, MessageId(r[2], r[3], r[5]))


def _takers(incarnations: Incarnations) -> set[Object]:
    return {
        Object(incarnation, r[4])
        for incarnation, records in incarnations.items()
        for r in records
        if r[0] == Event.DELIVER and r[4]
    }


def _handed(incarnations: Incarnations, one: Object) -> Iterator[Handed]:
    position = 0
    for number, r in enumerate(incarnations[one.incarnation], start=1):
        if r[0] == Event.DELIVER and r[4] == one.number:
            position += 1
            yield Handed(r[6], one, number, MessageId(r[2], r[3], r[5]), position)


def _firsts(sequence: list[Handed]) -> Iterator[Handed]:
    seen: list[MessageId] = []
    for handed in sequence:
        if handed.message not in seen:
            seen.append(handed.message)
            yield handed._replace(position=len(seen))


def _addressed(incarnations: Incarnations, message: MessageId) -> list[tuple[int, int]]:
    """Member and mask of each ADDRESSED report that follows the call's CALLED."""
    current, found = None, []
    for r in incarnations[Incarnation(*message[:2])]:
        if r[0] == Event.REPORT and r[1] == Notice.CALLED:
            current = r[8]
        elif r[0] == Event.REPORT and r[1] == Notice.ADDRESSED and current == message.number:
            found.append((r[4], _unsigned(r[8])))
    return found


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


def _disagreements(sequences: list[list[Handed]]) -> Iterator[list[Place]]:
    """Two calls in one order, and the same two in the other order."""
    for here in sequences:
        pairs = [(x, y) for at, x in enumerate(here) for y in here[at + 1 :]]
        for there in sequences:
            for y, x in ((y, x) for at, y in enumerate(there) for x in there[at + 1 :]):
                for one, other in pairs:
                    if (one.message, other.message) == (x.message, y.message):
                        yield [one.place, other.place, y.place, x.place]


def _witness(what: str, places: list[Place]) -> Witness | None:
    return Witness(what=what, places=tuple(places)) if places else None
