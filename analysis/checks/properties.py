"""The properties by name, and what a check of one of them says. Both checkers (`oracle`, `order`) speak in these words.

The history of a run is, per incarnation of each member, the ordered list of its trace records (node.trace).

- *Judged sequence.* What an incarnation delivered for good, at level AGREED or FINAL. In a run without views in which
  nobody delivered anything for good, what was delivered optimistically. A delivery is left out when the next record of
  the same message and level in the same incarnation is an UNDO.
- *Repeats.* The second delivery of a message in one judged sequence, at whatever level, violates integrity; the other
  properties look at the first only.
- *End.* The first STOP or ENDED of an incarnation; one without either crashed.
- *Full member.* One that ran from start to end: its one and only incarnation is the first, and ends with STOP.
- *Ended.* An incarnation that the others have ended while it was alive (cut off or frozen for too long), or that has
  left, ends with ENDED. It counts as crashed: it owes nothing and nobody owes it anything. But its records are whole,
  so what it is said to have submitted is on record or invented. Without views, total order does not look at it: what it
  delivered while nobody heard it may come elsewhere in the order of those that live on, or nowhere.
- *Joiner.* An incarnation that is not the first. What it got from before its time, no record tells. So the
  predecessor of its first delivery is not compared; FIFO counts from the first number that it delivers of each
  origin; and a message with an earlier number, or of an origin that it delivers nothing of, is not held missing from
  the causal past, of which only the direct causes are asked.

The properties (after Hadzilacos and Toueg; Défago et al. for the uniform total order):

- validity: a full member delivers what it submits;
- agreement: what one full member delivers, every full member delivers; uniform agreement: what anybody delivers. An
  optimistic delivery at a full member that is never undone counts here, too: it became final nowhere else than in the
  judged sequence, or it ought to have been taken back. (An own message that does not become final breaks validity.)
- integrity: nobody delivers a message twice, or one that its origin did not submit before, or, at any level, other
  bytes than its origin submitted (length or check sum of the payload differ); a promised (agreed or final) delivery is
  not undone, and neither is an optimistic delivery of what the same incarnation has promised already.
  A promise without an optimistic delivery before it is fine: so deliver all that take no risks. A crash excuses no
  unknown submission: its record is on the wire before the message is (node.trace);
- FIFO: of one incarnation of an origin, everybody delivers 1, 2, 3 … without a gap;
- causal: what a member submitted or delivered before it submits m, and what went before that in turn, is delivered
  before m everywhere;
- total order: if anybody delivers m before m', then everybody delivers m' only after m (incarnations that are over
  apart). Equivalent, and what is tested: a message has the same immediate predecessor in every sequence that contains
  it. In a run with views it is judged view by view, see below.

Views (Chockler, Keidar, Vitenberg 2001). A run *has views* when any incarnation records a VIEW; in other runs nothing
of this section is asked. `analysis.checks.views` reads the records.

- *In view n* is what an incarnation does from its installation of n to its next one; view 0: before its first.
- *Survivor* of view n: an incarnation that installs n and later a view of a greater number. It has closed n: it has
  delivered everything of n that it ever will.
- *State.* A founder (the reason of its first view is FIRST: a group begins, perhaps anew) has the state from that view
  on; any other incarnation, a *joiner*, from its first STATE record. It *has the state all through n* when it has it
  before it installs n.
- *Void* is a delivery below level FINAL that an incarnation makes in view n, which it does not survive though others
  do, of a message that no survivor of n delivers in n or before. The group went on without it; the message may be
  submitted again and be delivered in a later view. A delivery *for good* is one that is judged and not void.

An incarnation that crashed, was excluded or left is held to everything below as far as its records go. In its last view
n this means: its views agree with the others'; it delivers no ghosts; it delivers in the order of the others, to before
its first void delivery; and what it delivers for good, nobody delivers in another view. Virtual synchrony, and the
last sentence of state transfer, bind it only in the views that it survives.

- view agreement: incarnations that install view n name the same members in the same order; the numbers of one
  incarnation's views ascend; it is a member of each; no view after its first one has the reason FIRST. (Of an
  installation that a crash cut off, as far as it goes.)
- same view: all incarnations that deliver a message for good deliver it in the view of the same number;
- virtual synchrony: incarnations that go from n to the same next view (n + 1, or after a lost quorum a later one) and
  have the state all through n deliver the same messages in n;
- no ghost: a message is delivered only in views of which the incarnation that submitted it is a member;
- state transfer: a joiner delivers nothing before it has the state. If it gets the state in n, it delivers nothing that
  an incarnation that came to n from another view had delivered before n: that was in the state. If it goes on, it
  delivers the same messages in n as those that came to n from another view, have the state all through n and go on to
  the same view. A founder that records a STATE all the same is held to this like a joiner;
- total order in views. Before a view is closed, what any two members have delivered are prefixes of one sequence; a
  survivor goes on from there when it closes the view. So in each view n: (1) Of what any two incarnations deliver
  there, each to before its first void delivery, one is a prefix of the other. (2) The same holds for all of what they
  deliver there, void or not, of any two incarnations that have certainly not closed n: those that end in n with ENDED
  or STOP, and those that crash there after a void delivery. (Another crash may have lost the record of the next view.)
  (3) At level FINAL nothing is void, and nobody delivers more in n than a survivor that has the state: then an excluded
  incarnation has a full prefix. The order of messages of different views is that of the views: same view asks for it.

Mutual exclusion (Lamport 1978). A submission is a request, the delivery of it at its own member the grant, and the next
report LEFT of that incarnation the end of the section; a crash ends it, too. The end of its view ends the section of an
excluded incarnation, when the first member installs the next view: a grant after that has a lower fence than all grants
of the next view and does not count.

- mutual exclusion: sections do not overlap in true time;
- grant order: a request that happened before another is granted before it. A request that was transmitted at once (the
  next record after SUBMIT is the SEND of a new message that carries something) has happened when it was; it is known
  wherever a *told* member has it in its past. Member q is told what p did up to SEND j when q has received every
  carrying message of p up to j that it ever receives: only then a FIFO layer can have handed all of them up, so a loss
  that is not repaired yet makes nobody guilty. Carrying: a kind that takes messages of a core above along;
- service: a full member is granted what it requests, and leaves it.

Clocks.

- clock condition: what happened before an event has a smaller timestamp (reports TIMESTAMP). Happened-before is local
  order and, from a submission (and the first report after it, which is that of sending it or of something earlier) to
  each delivery of it;
- clock monotone: what a synchronised clock shows (reports CLOCK) never decreases in one incarnation.

Committed state (paper 003). Each report STATE of an incarnation counts the commands that it has committed, host's
messages and the machines' own follow-ups alike, and shows a digest of the state after them.

- state: the k-th report of one full member shows what the k-th of every other shows, as far as both came. Nobody else
  is compared: a joiner does not begin with the first command, and what a crashed member committed last nobody else may
  have got, nor do reports tell which it was.

Calls between objects (paper 004). A submission is a *call* of the object that asked (`extra` of its SUBMIT; 0: of the
member itself), and each DELIVER with an `extra` is to one object of that incarnation: its *sequence* is what it got, in
the order of the records, repeats apart. Whom a call is for stand in its ADDRESSED reports. Without them (an operation;
a caller that crashed before it knew) it is for *nobody knows whom*: integrity and overtaking apart, nothing is asked of
it. A call is *loose* that is point to point or has indivisibility off; the others are *ordered*.

- call integrity: no object gets a call twice, one that is not for it, or one that its caller did not submit before;
- no overtaking: of the calls of one asking object, loose or not, every object gets a later one only after the earlier
  ones that it gets at all. (Indivisibility off or not: calls of one sender never overtake.)
- indivisibility: the sequences of all objects, of ordered calls, fit into one order: the relation "some object gets m
  immediately before m'" has no cycle, however many objects it goes through. No call is compared with a loose
  one: it has its place at each of its objects alone. Objects of incarnations that crashed or are over are not looked
  at: what they got last, the others may have ordered otherwise;
- call causality: an ordered call has in its *past* the ordered calls that its object submitted or got before it, and
  their pasts; and of each loose call that its object got, what the sender of that had got, but not what it had only
  submitted: a loose call does not wait until a call that goes elsewhere has its place. An object that gets a call and
  one of its past gets that of the past first. The process is the object;
- call agreement: a call that is not atomic and whose caller lives on (its incarnation, also a joiner, ends with STOP),
  or (an ordered one) that an object of a full member gets, all objects that it is for get, at full members. *Excused*:
  a machine that says that it MISSED the call, or of which its caller says UNREACHABLE (of a call that was REFUSED:
  everybody). Section `calls` counts them;
- atomicity: of an atomic call all objects that it is for get it, at full members, or none does; and none does if its
  caller says ABORTED. If the caller lives on and says neither ABORTED, REFUSED nor UNREACHABLE, all get it. A call that
  is not atomic has what it asks for.

In a run with ADDRESSED reports the properties of deliveries (validity to total order), virtual synchrony and state
transfer are unknown: a member is no receiver there.

Validity, agreement, service, call agreement and atomicity speak of what happens eventually: they are judged only when
every incarnation that stopped had drained, and none of them in a minority; grant order likewise, for only then it is
known what everybody received.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Verdict(enum.Enum):
    """What a check says of a run."""

    PASS = "pass"  # noqa: S105  (a verdict, not a password)
    FAIL = "fail"
    UNKNOWN = "unknown"


SECTIONS = (
    *("properties", "expect", "messages", "latency", "ordering", "calls", "views", "load", "traffic", "processing"),
    *("clocks", "stages", "resident", "anomalies", "accuracy"),
    *("links", "conservation", "faults", "capture", "health"),
)
"""Of summary.json, behind its head: what is known of a run."""
EXPECTABLE = tuple(name for name in SECTIONS if name != "expect")
"""What a condition of an experiment may speak of."""

_BADNESS = {Verdict.PASS: 0, Verdict.UNKNOWN: 1, Verdict.FAIL: 2}


def merge(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of them: a violation that was seen outweighs what could not be told. PASS when there are none."""
    return max(verdicts, key=_BADNESS.__getitem__, default=Verdict.PASS)


def at_best(verdict: Verdict, bound: Verdict) -> Verdict:
    """`verdict`, but not better than `bound`."""
    return merge((verdict, bound))


FIRST_INCARNATION = 1


class Property(enum.Enum):
    """Names as in an experiment's `promises` and in summary.json."""

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
        """True when a finite history can only show the violation after a drain."""
        return self in _NEED_A_DRAIN

    @property
    def is_of_deliveries(self) -> bool:
        """True when every protocol can be asked about it; the others need reports that few cores make, or views."""
        return self not in _OF_REPORTS and self not in VIEW_PROPERTIES


CALL_PROPERTIES = (
    Property.CALL_INTEGRITY,
    Property.NO_OVERTAKING,
    Property.INDIVISIBILITY,
    Property.CALL_CAUSALITY,
    Property.CALL_AGREEMENT,
    Property.ATOMICITY,
)
"""Of calls between objects."""

VIEW_PROPERTIES = (
    Property.VIEW_AGREEMENT,
    Property.SAME_VIEW,
    Property.VIRTUAL_SYNCHRONY,
    Property.NO_GHOST,
    Property.STATE_TRANSFER,
)
"""Of runs with views."""

_NEED_A_DRAIN = frozenset(
    (
        *(Property.VALIDITY, Property.AGREEMENT, Property.UNIFORM_AGREEMENT),
        *(Property.GRANT_ORDER, Property.SERVICE, Property.CALL_AGREEMENT, Property.ATOMICITY),
    )
)
_OF_REPORTS = frozenset(
    (
        Property.MUTUAL_EXCLUSION,
        Property.GRANT_ORDER,
        Property.SERVICE,
        Property.CLOCK_CONDITION,
        Property.CLOCK_MONOTONE,
        Property.STATE,
        *CALL_PROPERTIES,
    )
)
DELIVERY_PROPERTIES = tuple(kind for kind in Property if kind.is_of_deliveries)
REPORT_PROPERTIES = tuple(kind for kind in Property if kind in _OF_REPORTS)
_OF_RECEIVERS = frozenset((*DELIVERY_PROPERTIES, Property.VIRTUAL_SYNCHRONY, Property.STATE_TRANSFER))
"""They compare what members deliver, so a member must be one that messages are for."""


def needs_receivers(kind: Property) -> bool:
    """True where members must be what messages are for."""
    return kind in _OF_RECEIVERS


class Incarnation(NamedTuple):
    """One incarnation of one member; `member` is its index in the topology."""

    member: int
    incarnation: int

    @property
    def is_joiner(self) -> bool:
        return self.incarnation != FIRST_INCARNATION

    @property
    def code(self) -> int:
        """As one number: the upper half of the codes of its messages (analysis.checks.sequences)."""
        return (self.member & 0xFFFF) << 16 | self.incarnation & 0xFFFF


class MessageId(NamedTuple):
    """Identity that the host of the origin gave (node.trace)."""

    origin: int
    incarnation: int
    number: int


Raw = tuple[int, int, int, int, int, int, int, int, int, int, int]
"""One record as the hosts make it, in the order of node.trace.RECORD: event, detail, origin, incarnation, extra,
number, at_ns, clock_ns, value, size_bytes, checksum. Records of an incarnation are numbered by their place, from 1."""

Incarnations = Mapping[Incarnation, Sequence[Raw]]


class Place(NamedTuple):
    """One message at one member: its 1-based position in the judged sequence, and when; None where it is not
    delivered. With `shows`, what a clock or a digest showed instead: then there is no message, and the position is that
    among the reports, where it matters. With `taker`, which of the member's objects, and the position is that in its
    sequence. With `view`, in which view; with `members` besides, the installation of that view, without a message.
    """

    incarnation: Incarnation
    message: MessageId | None
    position: int | None
    at_ns: int | None
    shows: int | None = None
    taker: int = 0
    view: int | None = None
    members: tuple[Incarnation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """One violation to look at: `what` in a few words; `places`: the deliveries, or their absence, that make it one."""

    what: str
    places: tuple[Place, ...]

    def sentence(self, names: Mapping[int, str]) -> str:
        """For people, with the members' names."""
        parts = [_say(place, names) for place in self.places]
        return f"{self.what}: " + "; ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check says: `checked` counts what was looked at, `violations` what was wrong, `reason` explains
    unknown.
    """

    verdict: Verdict
    checked: int
    violations: int
    reason: str = ""
    witness: Witness | None = None


class Tally(NamedTuple):
    """What a checker counted, before it is known whether to trust it. `excuse`: why some of it cannot be told."""

    checked: int
    violations: int
    witness: Witness | None = None
    excuse: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """How far the records of a run can be trusted. Empty texts: entirely.

    `gap` says which records are missing (nothing can then be judged); `undrained` why what should happen eventually may
    not have happened yet; `addressed` why members are no receivers.
    """

    gap: str = ""
    undrained: str = ""
    addressed: str = ""


def judge(kind: Property, tally: Tally, evidence: Evidence) -> Finding:
    """Turn counts into a verdict. Missing evidence outweighs all: an incomplete history shows violations that never
    were.
    """
    unknown = evidence.gap or (evidence.addressed if kind in _OF_RECEIVERS else "")
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
"""The excuse of VIEW_PROPERTIES in a run without views."""

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
    """Say which members' records are incomplete, or missing altogether; empty when none are."""
    parts = [f"trace records of {_name(incarnation, names)} are missing" for incarnation in sorted(gaps)]
    parts += [f"{names.get(member, f'member {member}')} left no trace records" for member in sorted(silent)]
    return "; ".join(parts)


def undrained_reason(
    cut_short: Sequence[Incarnation],
    full_members: int,
    names: Mapping[int, str],
    in_minority: Sequence[Incarnation] = (),
) -> str:
    """Say why liveness cannot be judged; empty when it can. `in_minority`: incarnations that stopped there."""
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
    """Two messages that two members do not deliver in one order, found from one message with two predecessors.

    Each pair is a member and what it delivers immediately before `message` (None: nothing). `place` says where a member
    delivers a message. Let x and y be the predecessors. Either x does not come before the message at the other member,
    or y does not at the one; or both do, and then the members disagree about x and y.
    """
    disputes: list[Witness] = []
    for (here, before), (there, _) in ((one, other), (other, one)):
        if before is not None and not _is_ordered(place(there, before), place(there, message)):
            places = (place(here, before), place(here, message), place(there, message), place(there, before))
            disputes.append(Witness(what="delivered in different orders", places=places))
    if disputes:
        # A joiner may have got the missing message with the state; nobody else can have.
        return min(disputes, key=lambda witness: witness.places[2].incarnation.is_joiner)
    (here, x), (there, y) = one, other
    assert x is not None
    assert y is not None
    places = (place(here, y), place(here, x), place(there, x), place(there, y))
    return Witness(what="delivered in different orders", places=places)


def _is_ordered(before: Place, after: Place) -> bool:
    return before.position is not None and after.position is not None and before.position < after.position


Payload = tuple[int, int]
"""Of a payload: its length in bytes, and its check sum."""


def altered(submitted: Payload, delivered: Payload) -> str:
    """A sentence about a delivery of other bytes than were submitted; empty when they are the same."""
    if submitted == delivered:
        return ""
    here, there = (
        f"{size_bytes} bytes with check sum {checksum:08x}" for size_bytes, checksum in (delivered, submitted)
    )
    return f"delivered as {here}, submitted as {there}"


def is_judged(level: Any, highest: int) -> Any:
    """Whether deliveries at `level` are in the judged sequence; `highest`: the highest level in the run. `level` may be
    a number, an array of NumPy or an expression of Arrow, and the answer is of that kind.
    """
    return (level >= _AGREED) == (highest >= _AGREED)


_AGREED = 1

STANDING = "delivered optimistically, and neither undone nor final"
"""Of what a full member shows as if it were in the order, though nobody has it there."""

ADDRESSED_TO_OBJECTS = "messages are for objects here, not for members: see call_integrity, call_agreement and the like"
"""Of the properties of deliveries, where there are ADDRESSED reports."""

ANYBODY = 0xFFFF
"""The member of a report UNREACHABLE that means all."""


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
    taker = f" object {place.taker}" if place.taker else ""
    view = "" if place.view is None else f" in view {place.view}" if place.view else " before its first view"
    return f"{message}: {_name(place.incarnation, names)}{taker} {where}{view}"
