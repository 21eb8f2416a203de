"""The properties, and the result of a check. docs/properties.md defines the properties and their terms."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Verdict(enum.Enum):
    """Result of a check."""

    PASS = "pass"  # noqa: S105  (a verdict, not a password)
    FAIL = "fail"
    UNKNOWN = "unknown"


SECTIONS = (
    *("properties", "expect", "messages", "latency", "ordering", "calls", "views", "load", "traffic", "processing"),
    *("clocks", "stages", "resident", "anomalies", "accuracy"),
    *("links", "conservation", "faults", "capture", "health"),
)
"""Sections of summary.json, after its head."""
EXPECTABLE = tuple(name for name in SECTIONS if name != "expect")
"""Sections that a condition of an experiment may use."""

_BADNESS = {Verdict.PASS: 0, Verdict.UNKNOWN: 1, Verdict.FAIL: 2}


def merge(verdicts: Iterable[Verdict]) -> Verdict:
    """Worst of the verdicts: FAIL outweighs UNKNOWN, UNKNOWN outweighs PASS. PASS when there are none."""
    return max(verdicts, key=_BADNESS.__getitem__, default=Verdict.PASS)


FIRST_INCARNATION = 1


class Property(enum.Enum):
    """A property; its value is its name in an experiment's `promises` and in summary.json."""

    VALIDITY = "validity"
    AGREEMENT = "agreement"
    UNIFORM_AGREEMENT = "uniform_agreement"
    INTEGRITY = "integrity"
    FIFO = "fifo"
    CAUSAL = "causal"
    TOTAL_ORDER = "total_order"
    MUTUAL_EXCLUSION = "mutual_exclusion"
    FENCE_ORDER = "fence_order"
    GRANT_ORDER = "grant_order"
    SERVICE = "service"
    CLOCK_CONDITION = "clock_condition"
    CLOCK_MONOTONE = "clock_monotone"
    STATE = "state"
    CALL_INTEGRITY = "call_integrity"
    NO_OVERTAKING = "no_overtaking"
    INDIVISIBILITY = "indivisibility"
    CALL_CAUSALITY = "call_causality"
    CALL_AGREEMENT = "call_agreement"
    ATOMICITY = "atomicity"
    VIEW_AGREEMENT = "view_agreement"
    SAME_VIEW = "same_view"
    VIRTUAL_SYNCHRONY = "virtual_synchrony"
    NO_GHOST = "no_ghost"
    STATE_TRANSFER = "state_transfer"

    @property
    def is_liveness(self) -> bool:
        """True when a finite history can show a violation only after a drain."""
        return self in _NEED_A_DRAIN

    @property
    def needs_receivers(self) -> bool:
        """Whether it compares the deliveries of members, so messages must be addressed to members."""
        return self in _NEED_RECEIVERS


CALL_PROPERTIES = (
    Property.CALL_INTEGRITY,
    Property.NO_OVERTAKING,
    Property.INDIVISIBILITY,
    Property.CALL_CAUSALITY,
    Property.CALL_AGREEMENT,
    Property.ATOMICITY,
)
"""Properties of calls between objects."""

VIEW_PROPERTIES = (
    Property.VIEW_AGREEMENT,
    Property.SAME_VIEW,
    Property.VIRTUAL_SYNCHRONY,
    Property.NO_GHOST,
    Property.STATE_TRANSFER,
)
"""Properties of runs with views."""

_NEED_A_DRAIN = frozenset(
    (
        *(Property.VALIDITY, Property.AGREEMENT, Property.UNIFORM_AGREEMENT),
        *(Property.GRANT_ORDER, Property.SERVICE, Property.CALL_AGREEMENT, Property.ATOMICITY),
    )
)

REPORT_PROPERTIES = (
    Property.MUTUAL_EXCLUSION,
    Property.FENCE_ORDER,
    Property.GRANT_ORDER,
    Property.SERVICE,
    Property.CLOCK_CONDITION,
    Property.CLOCK_MONOTONE,
    Property.STATE,
    *CALL_PROPERTIES,
)
"""Properties that need reports, which few cores make."""

DELIVERY_PROPERTIES = tuple(kind for kind in Property if kind not in (*REPORT_PROPERTIES, *VIEW_PROPERTIES))
"""Properties that can be judged for every protocol."""

_NEED_RECEIVERS = frozenset((*DELIVERY_PROPERTIES, Property.VIRTUAL_SYNCHRONY, Property.STATE_TRANSFER))


class Incarnation(NamedTuple):
    """One incarnation of one member; `member` is its index in the topology."""

    member: int
    incarnation: int

    @property
    def is_joiner(self) -> bool:
        return self.incarnation != FIRST_INCARNATION

    @property
    def code(self) -> int:
        """The incarnation as one number, the upper half of the codes of its messages (analysis.checks.sequences)."""
        return (self.member & 0xFFFF) << 16 | self.incarnation & 0xFFFF


class MessageId(NamedTuple):
    """Identity of a message, given by the host of its origin (node.trace)."""

    origin: int
    incarnation: int
    number: int


Raw = tuple[int, int, int, int, int, int, int, int, int, int, int]
"""One record as hosts make it, in the order of node.trace.RECORD: event, detail, origin, incarnation, extra, number,
at_ns, clock_ns, value, size_bytes, checksum. Records of an incarnation are numbered by their place, from 1.
"""

Incarnations = Mapping[Incarnation, Sequence[Raw]]


class Place(NamedTuple):
    """One message at one member: its 1-based position in the judged sequence, and its time; None where it is not
    delivered. With `shows`: a reading of a clock or a digest, without a message; the position is that among the
    reports, where it matters. With neither reading nor message: a critical section that began with the incarnation.
    With `object_number`: the position in the sequence of that object of the member. With `view`: the view of the
    delivery, or, with `members` too, the installation of that view, without a message.
    """

    incarnation: Incarnation
    message: MessageId | None
    position: int | None
    at_ns: int | None
    shows: int | None = None
    object_number: int = 0
    view: int | None = None
    members: tuple[Incarnation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """Example of a violation. `what`: the violation in a few words; `places`: the deliveries, or their absence, that
    show it.
    """

    what: str
    places: tuple[Place, ...]

    @classmethod
    def of(cls, what: str, places: Sequence[Place]) -> Witness | None:
        """None without places: there is no violation."""
        return cls(what=what, places=tuple(places)) if places else None

    def sentence(self, names: Mapping[int, str]) -> str:
        """Sentence for a user, with the members' names."""
        parts = [_say(place, names) for place in self.places]
        return f"{self.what}: " + "; ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check: number of items checked, number of violations, and the reason of an unknown verdict."""

    verdict: Verdict
    checked: int
    violations: int
    reason: str = ""
    witness: Witness | None = None

    def sentence(self, names: Mapping[int, str]) -> str:
        """Sentence about its violations, with the members' names."""
        return self.witness.sentence(names) if self.witness is not None else f"{self.violations} violations"


class Tally(NamedTuple):
    """Counts of a checker, before the evidence is considered. `excuse`: why some items cannot be judged."""

    checked: int
    violations: int
    witness: Witness | None = None
    excuse: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Completeness of the records of a run. Empty texts: complete.

    `gap`: the records that are missing (then nothing can be judged); `undrained`: why liveness cannot be judged;
    `addressed`: why the deliveries of members cannot be compared.
    """

    gap: str = ""
    undrained: str = ""
    addressed: str = ""


def judge(kind: Property, tally: Tally, evidence: Evidence) -> Finding:
    """Finding from counts and evidence. Missing evidence comes first: an incomplete history shows false violations."""
    unknown = evidence.gap or (evidence.addressed if kind.needs_receivers else "")
    unknown = unknown or (evidence.undrained if kind.is_liveness else "")
    if unknown:
        return Finding(verdict=Verdict.UNKNOWN, checked=tally.checked, violations=tally.violations, reason=unknown)
    if tally.violations:
        return Finding(verdict=Verdict.FAIL, checked=tally.checked, violations=tally.violations, witness=tally.witness)
    if tally.excuse:
        return Finding(verdict=Verdict.UNKNOWN, checked=tally.checked, violations=0, reason=tally.excuse)
    if tally.checked == 0:
        return Finding(verdict=Verdict.UNKNOWN, checked=0, violations=0, reason=_NOTHING[kind])
    return Finding(verdict=Verdict.PASS, checked=tally.checked, violations=0)


NO_VIEW = "no view was installed"
"""Excuse of VIEW_PROPERTIES in a run without views."""

NO_MESSAGE_GIVEN = "several members took requests, but no core is on record to have been given a message"
GIVEN_BUT_NOT_SENT = "a core was given a message that its sender has no record of, although it did not crash"
"""Excuses of grant order: the order of the requests is not on record."""

UNDER_THE_ORDER = (Property.VIEW_AGREEMENT, Property.SAME_VIEW, Property.VIRTUAL_SYNCHRONY)
"""The properties that make one order of the orders in views."""


def no_order_of_views(kind: Property) -> str:
    """Excuse of a total order that holds in each view, where one of UNDER_THE_ORDER is violated."""
    return f"it holds in each view, but {kind.value} is violated"


_NOTHING = dict.fromkeys(Property, "no message was delivered") | {
    Property.VALIDITY: "no message was submitted",
    Property.MUTUAL_EXCLUSION: "nobody entered a critical section",
    Property.FENCE_ORDER: "no fence was reported",
    Property.GRANT_ORDER: "no request was granted that a core is known to have taken",
    Property.SERVICE: "nothing was requested",
    Property.CLOCK_CONDITION: "no logical clock was reported",
    Property.CLOCK_MONOTONE: "no synchronised clock was reported",
    Property.STATE: "no two members reported a committed state",
    Property.CALL_INTEGRITY: "no object got a call",
    Property.NO_OVERTAKING: "no object got a call",
    Property.INDIVISIBILITY: "no object got an ordered call",
    Property.CALL_CAUSALITY: "no object got an ordered call",
    Property.CALL_AGREEMENT: "nothing is known to have been called that had to arrive",
    Property.ATOMICITY: "no call is known",
}


def is_possible(event: Any, detail: Any, number: Any) -> Any:
    """Whether the message, level or view that a record names can exist: numbers have 32 bits, and those of messages
    count from 1. Other records name none. Arguments are numbers or NumPy arrays.
    """
    is_of_message = (event == _SUBMIT) | (event == _DELIVER) | (event == _UNDO)
    is_of_view = (event == _VIEW) | (event == _MINORITY) | (event == _STATE)
    is_named = ((number >> 32) == 0) & ((number > 0) | is_of_view)
    is_level = (detail <= _FINAL) | (event == _SUBMIT) | is_of_view
    return (is_named & is_level) | (is_of_message | is_of_view) ^ True


_SUBMIT, _DELIVER, _UNDO, _VIEW, _MINORITY, _STATE = 2, 4, 5, 15, 16, 17
_FINAL = 2
"""Of collector.records, which would load NumPy for every command."""


def gap_reason(gaps: Sequence[Incarnation], silent: Sequence[int], names: Mapping[int, str]) -> str:
    """Text naming the members whose records are incomplete or missing; empty when there are none."""
    parts = [f"trace records of {_name(incarnation, names)} are missing" for incarnation in sorted(gaps)]
    parts += [f"{names.get(member, f'member {member}')} left no trace records" for member in sorted(silent)]
    return "; ".join(parts)


def undrained_reason(
    cut_short: Sequence[Incarnation],
    full_members: int,
    names: Mapping[int, str],
    in_minority: Sequence[Incarnation] = (),
) -> str:
    """Reason why liveness cannot be judged; empty when it can. `in_minority`: incarnations that stopped in a
    minority.
    """
    if cut_short:
        return f"the run ended before {_listed(cut_short, names)} had become quiet"
    if in_minority:
        return f"the run ended while {_listed(in_minority, names)} had no quorum"
    return "" if full_members else "no member ran from start to end"


def order_witness(
    message: MessageId,
    one: tuple[Incarnation, MessageId | None],
    other: tuple[Incarnation, MessageId | None],
    place: Callable[[Incarnation, MessageId], Place],
) -> Witness:
    """Witness of two messages that two members do not deliver in one order, from a message with two predecessors.

    Each pair is an incarnation and the message that it delivers immediately before `message` (None: none). `place`
    gives the place of a message at an incarnation. Let x and y be the predecessors. Either x does not precede the
    message at the other incarnation, or y does not at the first, or both do, and then the incarnations disagree about x
    and y.
    """
    disputes: list[Witness] = []
    for (here, before), (there, _) in ((one, other), (other, one)):
        if before is not None and not _is_ordered(place(there, before), place(there, message)):
            places = (place(here, before), place(here, message), place(there, message), place(there, before))
            disputes.append(Witness(what="delivered in different orders", places=places))
    if disputes:
        # Only a joiner may have got the missing message with the state.
        return min(disputes, key=lambda witness: witness.places[2].incarnation.is_joiner)
    (here, x), (there, y) = one, other
    assert x is not None
    assert y is not None
    places = (place(here, y), place(here, x), place(there, x), place(there, y))
    return Witness(what="delivered in different orders", places=places)


def _is_ordered(before: Place, after: Place) -> bool:
    return before.position is not None and after.position is not None and before.position < after.position


Payload = tuple[int, int]
"""Length of a payload in bytes, and its check sum."""


def altered(submitted: Payload, delivered: Payload) -> str:
    """Text about a delivery whose payload differs from the submitted one; empty when they are equal."""
    if submitted == delivered:
        return ""
    here, there = (
        f"{size_bytes} bytes with check sum {checksum:08x}" for size_bytes, checksum in (delivered, submitted)
    )
    return f"delivered as {here}, submitted as {there}"


def is_judged(level: Any, highest: int) -> Any:
    """Whether deliveries at `level` are in the judged sequence; `highest`: the highest level in the run. `level` may be
    a number, a NumPy array or an Arrow expression; the result has the same type.
    """
    return (level >= _AGREED) == (highest >= _AGREED)


_AGREED = 1

INVENTED, TOO_EARLY = "delivered but never submitted", "delivered before it was submitted"
"""Witness texts for deliveries of messages that their origins had not submitted."""

STANDING = "delivered optimistically, and neither undone nor final"
"""Witness text for an optimistic delivery of a message that its incarnation does not deliver for good."""

ADDRESSED_TO_OBJECTS = "messages are for objects here, not for members: see call_integrity, call_agreement and the like"
"""Reason of unknown for the properties of deliveries in a run with ADDRESSED reports."""

ANY_MEMBER = 0xFFFF
"""Member number in a report UNREACHABLE that means all members."""


def _name(incarnation: Incarnation, names: Mapping[int, str]) -> str:
    name = names.get(incarnation.member, f"member {incarnation.member}")
    return f"{name} (incarnation {incarnation.incarnation})" if incarnation.is_joiner else name


def _listed(incarnations: Sequence[Incarnation], names: Mapping[int, str]) -> str:
    return ", ".join(_name(incarnation, names) for incarnation in sorted(incarnations))


def _say(place: Place, names: Mapping[int, str]) -> str:
    if place.message is None and place.view is not None:
        members = ", ".join(_name(incarnation, names) for incarnation in place.members)
        return f"{_name(place.incarnation, names)} installs view {place.view} of {members}"
    if place.message is None and place.shows is None:
        return f"{_name(place.incarnation, names)} is inside without a request"
    if place.message is None:
        which = "" if place.position is None else f" at position {place.position}"
        return f"{_name(place.incarnation, names)} shows {place.shows}{which}"
    message = f"{_name(Incarnation(place.message.origin, place.message.incarnation), names)} #{place.message.number}"
    where = "does not deliver it" if place.position is None else f"delivers it at position {place.position}"
    which_object = f" object {place.object_number}" if place.object_number else ""
    view = "" if place.view is None else f" in view {place.view}" if place.view else " before its first view"
    return f"{message}: {_name(place.incarnation, names)}{which_object} {where}{view}"
