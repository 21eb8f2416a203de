"""Checks in linear time of the properties from reports: mutual exclusion, grant order, service, clocks, states (defined
in docs/properties.md).

One pass over the records in the order of true time. A member's knowledge is one value, the latest grant among the
requests in its past: a request that is granted before that one violates the order. So no sets of requests are kept, and
each report is read once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise, zip_longest
from typing import NamedTuple

from analysis.checks.properties import (
    GIVEN_BUT_NOT_SENT,
    NO_MESSAGE_GIVEN,
    Incarnation,
    Incarnations,
    MessageId,
    Place,
    Raw,
    Tally,
    Witness,
)
from analysis.checks.views import views_of
from collector.records import Event, GroupReport, MutexReport, Notice

NEVER_NS = 1 << 63
SUBMIT, DELIVER, STOP, REPORT, ENDED, VIEW = (
    int(event) for event in (Event.SUBMIT, Event.DELIVER, Event.STOP, Event.REPORT, Event.ENDED, Event.VIEW)
)
LEFT, FENCE, HOLDS = int(Notice.LEFT), int(MutexReport.FENCE), int(MutexReport.HOLDS)
SENT, GIVEN, TAKEN = int(GroupReport.SENT), int(GroupReport.GIVEN), int(GroupReport.TAKEN)
EVENTS = (SUBMIT, DELIVER, STOP, REPORT, VIEW)
"""Events that these checks read, besides the first and the last record of an incarnation."""


class Section(NamedTuple):
    """One stay in the critical section; times are true times in ns."""

    begin_ns: int
    incarnation: Incarnation
    record: int
    message: MessageId | None
    """None: it was inside without a request."""
    position: int
    end_ns: int
    """NEVER_NS: not left at the orderly end of its incarnation."""
    fence: int | None = None
    """None: not reported with the grant."""

    @property
    def place(self) -> Place:
        return Place(self.incarnation, self.message, self.position or None, self.begin_ns)


def sections(incarnations: Incarnations) -> list[Section]:
    """All sections that count, in the order in which they begin."""
    return sorted(
        section._replace(end_ns=min(section.end_ns, until_ns))
        for section, until_ns in _every_section(incarnations)
        if section.begin_ns < until_ns
    )


def _every_section(incarnations: Incarnations) -> Iterator[tuple[Section, int]]:
    """Each section, and when its incarnation was excluded (NEVER_NS: it was not)."""
    excluded_ns = _excluded_ns(incarnations)
    for incarnation, records in incarnations.items():
        for section in _of_incarnation(incarnation, records):
            yield section, excluded_ns.get(incarnation, NEVER_NS)


def fence_order(incarnations: Incarnations) -> Tally:
    """Compare each section with the earlier one of the highest fence, and each grant after an exclusion with the later
    section of the lowest one.
    """
    fenced = [(section, until_ns) for section, until_ns in _every_section(incarnations) if section.fence is not None]
    found = sorted(section for section, until_ns in fenced if section.begin_ns < until_ns)
    late = [(grant, until_ns) for grant, until_ns in fenced if grant.begin_ns >= until_ns]
    wrong: list[tuple[Section, Section]] = []
    highest: Section | None = None
    for section in found:
        if highest is not None and _fence(section) <= _fence(highest):
            wrong.append((section, highest))
        else:
            highest = section
    lowest: list[Section] = list(accumulate(reversed(found), _lower))
    for grant, until_ns in late:
        after = len(found) - bisect_left(found, until_ns, key=lambda section: section.begin_ns)
        if after and _fence(grant) >= _fence(lowest[after - 1]):
            wrong.append((grant, lowest[after - 1]))
    pair: tuple[Section, ...] = min(wrong, default=())
    places = [Place(one.incarnation, None, None, one.begin_ns, one.fence) for one in pair]
    return Tally(len(found) + len(late), len(wrong), Witness.of("a fence is out of order", places))


def _lower(later: Section, earlier: Section) -> Section:
    return min(earlier, later, key=_fence)


def _fence(section: Section) -> int:
    assert section.fence is not None
    return section.fence


def _excluded_ns(incarnations: Incarnations) -> dict[Incarnation, int]:
    """Time at which each incarnation was excluded: a member goes for the first time from a view that names it to one
    that does not and has a greater number than its last own one. A group that others begin excludes nobody.
    """
    views = {incarnation: views_of(records).installations for incarnation, records in incarnations.items()}
    changes = [
        (after.at_ns, after.number, set(before.members) - set(after.members))
        for installed in views.values()
        for before, after in pairwise(installed)
        if after.is_whole
    ]
    found: dict[Incarnation, int] = {}
    for at_ns, number, gone in sorted(changes, key=lambda change: change[:2]):
        for incarnation in gone & views.keys():
            if views[incarnation] and number > views[incarnation][-1].number:
                found.setdefault(incarnation, at_ns)
    return found


def mutual_exclusion(incarnations: Incarnations) -> Tally:
    """Compare each section with the earlier one that ends last."""
    found = sections(incarnations)
    wrong: list[tuple[Section, Section]] = []
    latest: Section | None = None
    for section in found:
        if latest is not None and latest.end_ns > section.begin_ns:
            wrong.append((latest, section))
        latest = section if latest is None or section.end_ns > latest.end_ns else latest
    places = [section.place for pair in wrong[:1] for section in pair]
    return Tally(len(found), len(wrong), Witness.of("entered while another was inside", places))


def service(incarnations: Incarnations, owing: Iterable[Incarnation]) -> Tally:
    """Check that each request is granted, and each section left, of `owing`: full members, and incarnations that are
    present at the end.
    """
    obliged = set(owing)
    asked = {message: at_ns for message, at_ns in _requests(incarnations).items() if _origin(message) in obliged}
    own = [section for section in sections(incarnations) if section.incarnation in obliged]
    granted = {section.message for section in own}
    missing = sorted((at_ns, message) for message, at_ns in asked.items() if message not in granted)
    open_ = [section for section in own if section.end_ns == NEVER_NS]
    witness = None
    if missing:
        _, message = missing[0]
        witness = Witness.of("a request is never granted", [Place(_origin(message), message, None, None)])
    elif open_:
        witness = Witness.of("a section is never left", [open_[0].place])
    return Tally(len(asked), len(missing) + len(open_), witness)


class Granted(NamedTuple):
    """Grant of a request; a larger one is later. `at_ns` is NEVER_NS for a request that was not granted."""

    at_ns: int
    incarnation: Incarnation
    record: int
    message: MessageId
    position: int = 0


NO_GRANT = Granted(-1, Incarnation(0, 0), 0, MessageId(0, 0, 0))


def grant_order(incarnations: Incarnations) -> Tally:
    """Compare each granted request with the latest grant in its past."""
    grants = granted(incarnations)
    knows: dict[Incarnation, Granted] = defaultdict(lambda: NO_GRANT)
    told: dict[tuple[int, ...], Granted] = {}
    crashed = {one.member for one, records in incarnations.items() if all(r[0] not in (STOP, ENDED) for r in records)}
    askers: set[int] = set()
    is_any_given, is_any_unsent = False, False
    checked = 0
    wrong: list[tuple[Granted, Granted]] = []
    for _, incarnation, _, record in in_time(incarnations, (REPORT,)):
        if record[1] == SENT:
            told[message_of(incarnation.member, record[4], record)] = knows[incarnation]
        elif record[1] == GIVEN:
            given = told.get(message_of(record[4], incarnation.member, record))
            knows[incarnation] = max(knows[incarnation], given or NO_GRANT)
            is_any_given = True
            is_any_unsent |= given is None and record[4] not in crashed
        elif record[1] == TAKEN:
            askers.add(incarnation.member)
            grant = grants.pop(MessageId(*incarnation, record[8]), None)
            if grant is None:
                continue
            if grant.at_ns != NEVER_NS:
                checked += 1
                if knows[incarnation] > grant:
                    wrong.append((grant, knows[incarnation]))
            knows[incarnation] = max(knows[incarnation], grant)
    excuse = GIVEN_BUT_NOT_SENT if is_any_unsent else ""
    if len(askers) > 1 and not is_any_given:
        excuse = NO_MESSAGE_GIVEN
    return Tally(checked, len(wrong), grant_witness(min(wrong, default=None)), excuse)


def message_of(sender: int, target: int, record: Raw) -> tuple[int, ...]:
    """Identity of the message of a report SENT or GIVEN: sender, name, and target if it is for one member."""
    is_unicast = record[8] >> 32 & 1
    return (sender, record[8], target) if is_unicast else (sender, record[8])


def granted(incarnations: Incarnations) -> dict[MessageId, Granted]:
    """Grants of all requests, without the requests of a crashed incarnation that were not granted: those need no
    grant.
    """
    grants = {section.message: section for section in reversed(sections(incarnations)) if section.message}
    found = {}
    for message in _requests(incarnations):
        incarnation = _origin(message)
        section = grants.get(message)
        if section is not None:
            found[message] = Granted(section.begin_ns, incarnation, section.record, message, section.position)
        elif any(record[0] == STOP for record in incarnations[incarnation]):
            found[message] = Granted(NEVER_NS, incarnation, 0, message)
    return found


def in_time(incarnations: Incarnations, events: Collection[int]) -> list[tuple[int, Incarnation, int, Raw]]:
    """Records of these events, by true time: time, incarnation, number, record."""
    return sorted(
        (record[6], incarnation, number, record)
        for incarnation, records in incarnations.items()
        for number, record in enumerate(records, start=1)
        if record[0] in events
    )


def grant_witness(found: tuple[Granted, Granted] | None) -> Witness | None:
    """Witness of a request and one in its past that is granted later or never."""
    if found is None:
        return None
    places = []
    for grant in reversed(found):
        at_ns = None if grant.at_ns == NEVER_NS else grant.at_ns
        places.append(Place(grant.incarnation, grant.message, None if at_ns is None else grant.position, at_ns))
    return Witness(what="the later request is granted first", places=tuple(places))


def _of_incarnation(incarnation: Incarnation, records: Sequence[Raw]) -> Iterator[Section]:
    inside: list[Section] = []
    grants = 0
    has_entered = is_stopped = False
    for number, record in enumerate(records, start=1):
        if record[0] == DELIVER and record[2] == incarnation.member and record[3] == incarnation.incarnation:
            following = records[number] if number < len(records) else record
            fence = following[8] if following[:2] == (REPORT, FENCE) else None
            has_entered = True
            grants += 1
            message = MessageId(record[2], record[3], record[5])
            inside.append(Section(record[6], incarnation, number, message, grants, NEVER_NS, fence))
        elif record[0] == REPORT and record[1] in (LEFT, HOLDS):
            if not has_entered:
                has_entered = True
                begin = number if record[1] == HOLDS else 1
                inside.append(Section(records[begin - 1][6], incarnation, begin, None, 0, NEVER_NS))
            if record[1] == LEFT:
                yield from (section._replace(end_ns=record[6]) for section in inside)
                inside = []
        is_stopped = is_stopped or record[0] == STOP
    end_ns = NEVER_NS if is_stopped else records[-1][6]
    yield from (section._replace(end_ns=end_ns) for section in inside)


def _requests(incarnations: Incarnations) -> dict[MessageId, int]:
    """Time of the first record of each own submission."""
    asked: dict[MessageId, int] = {}
    for incarnation, records in incarnations.items():
        for record in records:
            if record[0] == SUBMIT and record[2] == incarnation.member and record[3] == incarnation.incarnation:
                asked.setdefault(MessageId(record[2], record[3], record[5]), record[6])
    return asked


def _origin(message: MessageId) -> Incarnation:
    return Incarnation(message.origin, message.incarnation)


CLOCK, TIMESTAMP = int(Notice.CLOCK), int(Notice.TIMESTAMP)


class Shown(NamedTuple):
    """Reading of a clock."""

    value: int
    incarnation: Incarnation
    at_ns: int

    @property
    def place(self) -> Place:
        return Place(self.incarnation, None, None, self.at_ns, self.value)


def clock_condition(incarnations: Incarnations) -> Tally:
    """Compare each reported timestamp with the largest one in its past."""
    past: dict[Incarnation, Shown] = {}
    carried: dict[tuple[int, ...], Shown] = {}
    waiting: dict[Incarnation, list[tuple[int, ...]]] = defaultdict(list)
    checked, violations, witness = 0, 0, None
    for at_ns, incarnation, _, record in in_time(incarnations, (SUBMIT, DELIVER, REPORT)):
        message = (*record[2:4], record[5])
        if record[0] == SUBMIT and message[:2] != incarnation:
            continue
        if record[0] == SUBMIT:
            waiting[incarnation].append(message)
            if incarnation in past and message not in carried:
                carried[message] = past[incarnation]
        elif record[0] == DELIVER:
            if message in carried:
                past[incarnation] = max(past.get(incarnation, carried[message]), carried[message])
        elif record[1] == TIMESTAMP:
            shown = Shown(record[8], incarnation, at_ns)
            checked += 1
            if incarnation in past and shown.value <= past[incarnation].value:
                violations += 1
                witness = witness or clock_witness(past[incarnation], shown)
            past[incarnation] = max(past.get(incarnation, shown), shown)
            carried |= dict.fromkeys(waiting.pop(incarnation, ()), past[incarnation])
    return Tally(checked, violations, witness)


def clock_witness(before: Shown, after: Shown) -> Witness:
    return Witness(what="what happened later has no larger timestamp", places=(before.place, after.place))


def clock_monotone(incarnations: Incarnations) -> Tally:
    """Compare each reading with the one before it in the same incarnation."""
    checked = 0
    wrong: list[tuple[Shown, Shown]] = []
    for incarnation, records in incarnations.items():
        readings = [Shown(r[8], incarnation, r[6]) for r in records if r[0] == REPORT and r[1] == CLOCK]
        checked += len(readings)
        wrong += [(one, two) for one, two in pairwise(readings) if two.value < one.value]
    found = min(wrong, key=lambda pair: (pair[1].at_ns, pair[1].incarnation), default=None)
    witness = None if found is None else Witness(what="set backwards", places=(found[0].place, found[1].place))
    return Tally(checked, len(wrong), witness)


STATE = int(Notice.STATE)


def state(incarnations: Incarnations, full: Collection[Incarnation], *, has_drained: bool) -> Tally:
    """Compare the reports of the full members, command by command, and their numbers if the run drained."""
    names = sorted(full)
    reports = [
        [record for record in incarnations[incarnation] if record[0] == REPORT and record[1] == STATE]
        for incarnation in names
    ]
    checked, violations, witness = 0, 0, None
    for k, row in enumerate(zip_longest(*reports), start=1):
        shown = [(incarnation, record) for incarnation, record in zip(names, row, strict=True) if record is not None]
        if len(shown) < 2:  # no two members have a report from here on
            break
        checked += len(shown)
        first = shown[0]
        other = next((one for one in shown if one[1][8] != first[1][8]), None)
        if other is not None:
            violations += 1
            places = tuple(_shown(incarnation, k, record) for incarnation, record in (first, other))
            witness = witness or Witness(what="committed states differ", places=places)
    if has_drained and len(set(map(len, reports))) > 1:
        violations += 1
        made = sorted(zip(names, reports, strict=True), key=lambda pair: len(pair[1]))
        places = tuple(_shown(one, len(records), records[-1]) for one, records in (made[0], made[-1]) if records)
        witness = witness or Witness(what="the last committed states differ in number", places=places)
    return Tally(checked, violations, witness)


def _shown(incarnation: Incarnation, k: int, record: Raw) -> Place:
    return Place(incarnation, None, k, record[6], record[8])
