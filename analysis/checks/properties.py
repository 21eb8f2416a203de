"""Definitions of the properties, and the result of a check. Both checkers (`oracle`, `order`) use these terms.

The history of a run is the ordered list of the trace records (node.trace) of each incarnation of each member.

- *Judged sequence.* The deliveries of an incarnation at level AGREED or FINAL; in a run without views and without any
  such delivery, the optimistic ones. A delivery is left out when the next record of the same message and level in the
  same incarnation is an UNDO.
- *Repeats.* The second delivery of a message in one judged sequence, at any level, violates integrity; the other
  properties consider the first only.
- *End.* The first STOP or ENDED of an incarnation. An incarnation without either crashed.
- *Full member.* A member that ran from start to end: its only incarnation is the first, and ends with STOP.
- *Ended.* An incarnation that the others excluded while it was alive (cut off or frozen for too long), or that left,
  ends with ENDED. It counts as crashed: it has no obligations, and the others have none towards it. But its records are
  complete, so a message that it did not record as submitted is invented. Without views, total order ignores it: a
  message that it delivered while it was cut off may have another place in the order of the others, or none.
- *Joiner.* An incarnation that is not the first. No record holds the messages that it got with the state. So the
  predecessor of its first delivery is not compared; FIFO counts from the first number that it delivers of each origin;
  only direct causes are required, and none with an earlier number or of an origin that it delivers nothing of.

The properties (after Hadzilacos and Toueg; Défago et al. for the uniform total order):

- validity: a full member, or an incarnation that is present at the end, delivers what it submits;
- agreement: every full member delivers each message that a full member delivers; uniform agreement: each message that
  any member delivers. Both: what one incarnation that is present at the end delivers after its last installation, all
  of them deliver after theirs. An optimistic delivery at a full member that is never undone counts, too: it must become
  final in the judged sequence or be undone. (An own message that does not become final breaks validity.)
- integrity: no member delivers a message twice, or before its origin submitted it, or, at any level, with another
  payload than submitted (length or check sum differ); a promised (agreed or final) delivery is not undone, and neither
  is an optimistic delivery of a message that the incarnation has promised already. A promise needs no optimistic
  delivery before it: protocols that are not optimistic make none. A crash does not excuse an unknown submission: its
  record is on the wire before the message is (node.trace);
- FIFO: every member delivers the messages of one incarnation of an origin as 1, 2, 3 … without a gap;
- causal: the messages that a member submitted or delivered before it submits m, and their causal past, are delivered
  before m everywhere;
- total order: if any member delivers m before m', then every member delivers m' only after m (except incarnations that
  ended). Tested in an equivalent form: a message has the same immediate predecessor in every sequence that contains it.
  In a run with views it is judged view by view, see below.

Views (Chockler, Keidar, Vitenberg 2001). A run *has views* when any incarnation records a VIEW; other runs are not held
to this section. `analysis.checks.views` reads the records.

- An incarnation is *in view n* from its installation of n to its next one; in view 0 before its first.
- *Survivor* of view n: an incarnation that installs n and later a view of a greater number. It has closed n: it
  delivers nothing more in n.
- *State.* A founder (the reason of its first view is FIRST: a group begins, perhaps again) has the state from that view
  on; any other incarnation, a *joiner*, from its first STATE record. It *has the state all through n* if it has the
  state before it installs n.
- *Present at the end.* The last view is the one of the greatest number among the last installations of the
  incarnations that end with STOP. Those of them whose last installation is of it, and that have the state, are present
  at the end, joiners included.
- A delivery below level FINAL in view n is *void* if its incarnation does not survive n, others do, and no survivor of
  n delivers the message in n or before. The group went on without it; the message may be submitted again and be
  delivered in a later view. A delivery *for good* is judged and not void.

An incarnation that crashed, was excluded or left must satisfy everything below in all its records. In its last view n
this means: its views agree with those of the others; it delivers no ghosts; up to its first void delivery it delivers
in the order of the others; and no member delivers in another view a message that it delivers for good. Virtual
synchrony, and the sameness of deliveries in state transfer, bind it only in the views that it survives.

- view agreement: incarnations that install view n name the same members in the same order; the numbers of one
  incarnation's views ascend; it is a member of each; no view after its first one has the reason FIRST. (If a crash cut
  off the records of an installation, the records that exist are compared.)
- same view: all incarnations that deliver a message for good deliver it in the view of the same number;
- virtual synchrony: incarnations that go from n to the same next view (n + 1, or after a lost quorum a later one) and
  have the state all through n deliver the same messages in n;
- no ghost: a message is delivered only in views of which the incarnation that submitted it is a member;
- state transfer: a joiner delivers nothing before it has the state. If it gets the state in n, it delivers no message
  that an incarnation that came to n from another view had delivered before n: the state contained it. If it goes on to
  a later view, it delivers the same messages in n as the incarnations that came to n from another view, have the state
  all through n and go on to the same view. A founder that records a STATE counts as a joiner here;
- total order in views. Before a view is closed, the deliveries of its members are prefixes of one sequence; a survivor
  continues from its prefix when it closes the view. So in each view n: (1) The deliveries of any two incarnations in n,
  each up to its first void one, are prefixes of one sequence. (2) So are all deliveries in n, void or not, of any two
  incarnations that certainly did not close n: those that end in n with ENDED or STOP, and those that crash in n after a
  void delivery. (Another crash may have lost the record of the next view.) (3) At level FINAL no delivery is void, and
  no incarnation delivers more in n than a survivor that has the state: so an excluded incarnation has a full prefix.
  Messages of different views are ordered as their views, by the property same view.

Mutual exclusion (Lamport 1978). A submission is a request, the delivery of it at its own member the grant, and the next
report LEFT of that incarnation the end of the section; a crash ends it, too. The end of its view ends the section of an
excluded incarnation, when the first member installs the next view. A later grant does not count: its fence is lower
than those of the next view.

- mutual exclusion: sections do not overlap in true time;
- grant order: a request that happened before another is granted before it. A request that was transmitted at once (the
  next record after SUBMIT is the SEND of a new carrying message) is known from then on to the members that are *told*
  of it. Member q is told of p's knowledge at SEND j when q has received every carrying message of p up to j that it
  ever receives: only then can a FIFO layer have delivered all of them, so a loss that is not yet repaired is no
  violation. Carrying: of a kind that takes messages of a core above along;
- service: a full member is granted what it requests, and leaves it.

Clocks.

- clock condition: an earlier event, by happened-before, has a smaller timestamp (reports TIMESTAMP). Happened-before is
  local order, and from a submission (and the first report after it, which is that of sending it or of something
  earlier) to each delivery of it;
- clock monotone: the readings of a synchronised clock (reports CLOCK) never decrease in one incarnation.

Committed state (paper 003). Each report STATE of an incarnation counts the commands that it has committed, the host's
messages and the state machines' own follow-ups alike, and holds a digest of the state after them.

- state: the k-th reports of all full members that made so many have the same digest, and when the run drained, all of
  them made equally many. Other members are not compared: a joiner does not begin with the first command, and the last
  commands of a crashed member may have reached no other member, and reports do not identify them.

Calls between objects (paper 004). A submission is a *call* by the calling object (`extra` of its SUBMIT; 0: the member
itself), and each DELIVER with an `extra` is to one object of that incarnation. The *sequence* of an object holds its
deliveries in the order of the records, without repeats. The ADDRESSED reports of a call name its objects. A call
without them (an operation; a caller that crashed before it knew) has *unknown* objects, and only integrity and
overtaking are judged. A call is *loose* if it is point to point or has indivisibility off; the others are *ordered*.

- call integrity: no object gets a call twice, a call that is not addressed to it, one before its caller submitted it,
  or, as in integrity, one with another payload;
- no overtaking: every object gets those calls of one calling object that it gets, loose or not, in the order of their
  submission;
- indivisibility: the ordered calls in the sequences of all objects fit into one order: the relation "some object gets m
  immediately before m'" has no cycle through any number of objects. Loose calls are not compared: each of their objects
  places them independently. Objects of incarnations that crashed or ended are left out: the others may have ordered
  their last calls differently;
- call causality: the *past* of an ordered call holds the ordered calls that its object submitted or got before it, with
  their pasts, and for each loose call that its object got, the calls that the sender of the loose call had got. It does
  not hold those that this sender had only submitted: a loose call does not wait until another call has its place. An
  object that gets a call and a call of its past gets the latter first. The process is the object;
- call agreement: all addressed objects at full members get a call that is not atomic if its caller lives on (its
  incarnation, also a joiner, ends with STOP) or, for an ordered call, if an object of a full member gets it. *Excused*:
  a member that reports that it MISSED the call, one that the caller reports as UNREACHABLE, and all members for a call
  that was REFUSED. Section `calls` counts them;
- atomicity: all addressed objects at full members get an atomic call, or none does; and none does if its caller reports
  ABORTED. If the caller lives on and reports neither ABORTED, REFUSED nor UNREACHABLE, all get it. A call that is not
  atomic satisfies this trivially.

In a run with ADDRESSED reports the properties of deliveries (validity to total order), virtual synchrony and state
transfer are unknown: messages are addressed to objects, not to members.

Validity, agreement, service, call agreement and atomicity are liveness properties: they are judged only when every
incarnation that stopped had drained, and none was in a minority. So is grant order: only then is it known what every
member received.
"""

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
    reports, where it matters. With `object_number`: the position in the sequence of that object of the member. With
    `view`: the view of the delivery, or, with `members` too, the installation of that view, without a message.
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

_NOTHING = dict.fromkeys(Property, "no message was delivered") | {
    Property.VALIDITY: "no message was submitted",
    Property.MUTUAL_EXCLUSION: "nobody entered a critical section",
    Property.GRANT_ORDER: "no request was granted",
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

STANDING = "delivered optimistically, and neither undone nor final"
"""Witness text for a full member's optimistic delivery that is in no judged sequence."""

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
    if place.message is None:
        which = "" if place.position is None else f" at position {place.position}"
        return f"{_name(place.incarnation, names)} shows {place.shows}{which}"
    message = f"{_name(Incarnation(place.message.origin, place.message.incarnation), names)} #{place.message.number}"
    where = "does not deliver it" if place.position is None else f"delivers it at position {place.position}"
    which_object = f" object {place.object_number}" if place.object_number else ""
    view = "" if place.view is None else f" in view {place.view}" if place.view else " before its first view"
    return f"{message}: {_name(place.incarnation, names)}{which_object} {where}{view}"
