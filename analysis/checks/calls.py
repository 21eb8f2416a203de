"""Calls between objects (paper 004), from the records of a run: caller, addressed objects, deliveries and reports of
each. One pass over the records; docs/properties.md defines the terms.

    SUBMIT (extra: caller)   CALLED (own number), ADDRESSED (member, mask) ...   DELIVER (extra: object)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from analysis.checks.properties import ANY_MEMBER, Incarnation, Incarnations, MessageId, Payload, Place, Raw
from collector.records import CallReport, Event, Notice

Id = tuple[int, int, int]
"""A MessageId without the cost of a class."""

Object = tuple[Incarnation, int]
"""One object of one incarnation. Number 0: the member itself, as a caller."""

Spot = tuple[int, int]
"""Member and number of an object, in any incarnation of the member."""

MASK_BITS: Final = 48
"""Most objects that one ADDRESSED report names."""

_SUBMIT, _DELIVER, _REPORT = int(Event.SUBMIT), int(Event.DELIVER), int(Event.REPORT)
_ENDS: Final = (int(Event.STOP), int(Event.ENDED))
_CALLED, _ADDRESSED, _MISSED = int(Notice.CALLED), int(Notice.ADDRESSED), int(CallReport.MISSED)
_OUTCOMES: Final = frozenset((int(CallReport.ABORTED), int(CallReport.UNREACHABLE), int(CallReport.REFUSED)))
_WORD: Final = 2**64 - 1

OPERATION, ASKED_ATOMIC, ASKED_UNORDERED, ASKED_DIRECT = 0xFF, 1 << 8, 1 << 9, 1 << 10
"""Bits of `value` of the SUBMIT of an object (docs/trace.md)."""


class Delivery(NamedTuple):
    """One delivery to one object, at its 1-based place in the object's sequence. Sorts by time."""

    at_ns: int
    object: Object
    record: int
    message: Id
    position: int
    payload: Payload

    @property
    def place(self) -> Place:
        incarnation, number = self.object
        return Place(incarnation, MessageId(*self.message), self.position, self.at_ns, object_number=number)


@dataclass(slots=True)
class Call:
    """One submission by an object, and its caller's reports about it."""

    message: Id
    caller: Object
    at_ns: int
    record: int
    payload: Payload
    addressed: set[Spot] = field(default_factory=set)
    """Empty: the addressed objects are not known."""
    is_atomic: bool = False
    is_unordered: bool = False
    is_direct: bool = False
    is_operation: bool = False
    is_aborted: bool = False
    is_refused: bool = False
    unreachable: set[int] = field(default_factory=set)
    """Members reported as unreachable, or ANY_MEMBER."""

    @property
    def is_known(self) -> bool:
        return bool(self.addressed)

    @property
    def is_loose(self) -> bool:
        return self.is_unordered or self.is_direct

    @property
    def is_ordered(self) -> bool:
        return self.is_known and not self.is_loose

    @property
    def incarnation(self) -> Incarnation:
        return self.caller[0]

    def is_given_up(self, member: int) -> bool:
        """Whether its caller reports that `member` may never get it."""
        return self.is_refused or ANY_MEMBER in self.unreachable or member in self.unreachable


@dataclass(slots=True)
class Calls:
    """All calls of a run."""

    by_message: dict[Id, Call] = field(default_factory=dict)
    """By incarnation, then in the order of its submissions."""
    sequences: dict[Object, list[Delivery]] = field(default_factory=dict)
    """First deliveries to each object."""
    repeats: list[Delivery] = field(default_factory=list)
    """All further deliveries. Their position counts repeats, too."""
    to_members: list[Delivery] = field(default_factory=list)
    """Deliveries to members themselves; in a run with ADDRESSED reports no delivery should be."""
    is_for_objects: bool = False
    """Whether the run has ADDRESSED reports."""
    missed: set[tuple[Id, Incarnation]] = field(default_factory=set)
    """Calls that an incarnation reports as missed by its objects."""
    ends: dict[Incarnation, int] = field(default_factory=dict)
    """STOP or ENDED; no entry: crashed."""
    incarnations: tuple[Incarnation, ...] = ()

    def ends_with_stop(self, incarnation: Incarnation) -> bool:
        """Whether the incarnation ends with STOP."""
        return self.ends.get(incarnation) == Event.STOP

    def place(self, one: Object, message: Id) -> Place:
        """Place of the call in the object's sequence; no position if it does not get it."""
        for delivery in self.sequences.get(one, ()):
            if delivery.message == message:
                return delivery.place
        return Place(one[0], MessageId(*message), None, None, object_number=one[1])

    def owed(self, call: Call, full: Collection[Incarnation]) -> list[Object]:
        """Objects at full members that the call is addressed to."""
        incarnations = {incarnation.member: incarnation for incarnation in full}
        return [(incarnations[member], number) for member, number in sorted(call.addressed) if member in incarnations]

    @property
    def given_up(self) -> set[Id]:
        """Calls of which a machine says that they do not arrive. (A group may have no members: then its calls are
        refused.)
        """
        ended = (
            name
            for name, call in self.by_message.items()
            if call.is_aborted or call.unreachable or (call.is_refused and call.is_known)
        )
        return {*ended, *(name for name, _ in self.missed)}

    def not_as_asked(self, incarnations: Incarnations) -> Iterator[Id]:
        """Calls whose caller is told neither their objects nor their end, or a weaker guarantee than it asked for: the
        checks believe these reports.
        """
        for name, call in self.by_message.items():
            asked = incarnations[call.incarnation][call.record - 1][8]
            if asked & OPERATION:
                continue
            if call.is_known:
                is_less = (
                    bool(asked & ASKED_ATOMIC and not call.is_atomic)
                    or (call.is_unordered and not asked & ASKED_UNORDERED)
                    or (call.is_direct and not asked & ASKED_DIRECT)
                )
            else:
                is_over = call.is_aborted or call.is_refused or bool(call.unreachable)
                is_less = self.ends_with_stop(call.incarnation) and not is_over
            if is_less:
                yield name

    def is_excused(self, call: Call, one: Object) -> bool:
        """Whether this object may lack the call: its caller gave it up, or its member reports it as missed."""
        return call.is_given_up(one[0].member) or (call.message, one[0]) in self.missed


def is_for_objects(records: Collection[Raw]) -> bool:
    """Whether these records contain calls between objects."""
    return any(record[0] == _REPORT and record[1] == _ADDRESSED for record in records)


def read_calls(incarnations: Incarnations) -> Calls:
    """Calls of a run. Reports about calls that were not submitted are ignored."""
    calls = Calls(incarnations=tuple(sorted(incarnations)))
    for incarnation in calls.incarnations:
        _read_incarnation(calls, incarnation, incarnations[incarnation])
    return calls


def _read_incarnation(calls: Calls, incarnation: Incarnation, records: Sequence[Raw]) -> None:
    reports: list[tuple[int, int, int]] = []
    taken: dict[int, list[Delivery]] = {}
    for number, row in enumerate(records, start=1):
        event, detail, origin, start, extra, message, at_ns, _, value, *_ = row
        if event == _DELIVER:
            delivery = Delivery(at_ns, (incarnation, extra), number, (origin, start, message), 0, row[-2:])
            taken.setdefault(extra, []).append(delivery)
        elif event == _SUBMIT:
            if (origin, start) == incarnation:
                name = (origin, start, message)
                call = Call(name, (incarnation, extra), at_ns, number, row[-2:], is_operation=bool(value & OPERATION))
                calls.by_message.setdefault(name, call)
        elif event == _REPORT:
            reports.append((detail, extra, value))
        elif event in _ENDS:
            calls.ends.setdefault(incarnation, event)
    calls.to_members += taken.pop(0, [])
    for one, sequence in taken.items():
        _read_sequence(calls, (incarnation, one), sequence)
    calls.is_for_objects |= any(code == _ADDRESSED for code, _, _ in reports)
    is_cut = incarnation not in calls.ends and records[-1][:2] == (_REPORT, _ADDRESSED)
    _read_reports(calls, incarnation, reports, is_cut=is_cut)


def _read_sequence(calls: Calls, one: Object, sequence: list[Delivery]) -> None:
    firsts: dict[Id, Delivery] = {}
    for place, delivery in enumerate(sequence, start=1):
        if delivery.message in firsts:
            calls.repeats.append(delivery._replace(position=place))
        else:
            firsts[delivery.message] = delivery._replace(position=len(firsts) + 1)
    calls.sequences[one] = list(firsts.values())


def _read_reports(calls: Calls, incarnation: Incarnation, reports: list[tuple[int, int, int]], *, is_cut: bool) -> None:
    """`is_cut`: a crash may have taken along reports about the objects of the last call."""
    current: Call | None = None
    for code, member, value in reports:
        if code == _CALLED:
            current = calls.by_message.get((*incarnation, value))
        elif code == _ADDRESSED and current is not None:
            _address(current, member, value & _WORD)
        elif code == _MISSED:
            word = value & _WORD
            calls.missed.add(((word >> 48, word >> 32 & 0xFFFF, word & 0xFFFFFFFF), incarnation))
        elif code in _OUTCOMES:
            call = calls.by_message.get((*incarnation, value))
            if call is not None:
                _tell(call, code, member)
    if is_cut and current is not None:
        current.addressed.clear()
        current.is_atomic = current.is_unordered = current.is_direct = False


def _address(call: Call, member: int, mask: int) -> None:
    first = MASK_BITS * (mask >> MASK_BITS & 0xFFF) + 1
    named = {(member, first + bit) for bit in range(MASK_BITS) if mask >> bit & 1}
    call.addressed |= named
    call.is_atomic |= bool(mask >> 62 & 1)
    call.is_unordered |= bool(mask >> 63 & 1)
    call.is_direct |= bool(mask >> 60 & 1)


def _tell(call: Call, code: int, member: int) -> None:
    if code == CallReport.UNREACHABLE:
        call.unreachable.add(member)
    elif code == CallReport.ABORTED:
        call.is_aborted = True
    else:
        call.is_refused = True
