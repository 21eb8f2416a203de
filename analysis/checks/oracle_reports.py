"""Checks by definition of the properties that are judged from reports: sections, grants, clocks, states. A part of
`analysis.checks.oracle`.

Knowledge is a set, and every pair is compared. `analysis.checks.sections` must agree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import combinations, pairwise
from typing import NamedTuple

from analysis.checks.oracle_views import Installed, Record, installations_of
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
from collector.records import Event, GroupReport, MutexReport, Notice

Key = tuple[int, Incarnation, int]
"""Time of a record: true time, incarnation, record number."""


class Happening(NamedTuple):
    """One record, and its place in the run."""

    key: Key
    record: Raw

    @property
    def incarnation(self) -> Incarnation:
        return self.key[1]

    @property
    def event(self) -> int:
        return self.record[0]

    @property
    def message(self) -> MessageId:
        return MessageId(self.record[2], self.record[3], self.record[5])

    @property
    def is_own(self) -> bool:
        return self.message[:2] == self.incarnation

    def is_report(self, code: Notice | MutexReport | GroupReport) -> bool:
        return self.event == Event.REPORT and self.record[1] == code


def mutual_exclusion(incarnations: Incarnations) -> Tally:
    stays = list(_stays(incarnations))
    wrong = [
        (one, other)
        for other, _ in stays
        for one, end in stays
        if one.key < other.key and (end is None or end.key[0] > other.key[0])
    ]
    late = {other.key for _, other in wrong}
    found = min(wrong, key=lambda pair: pair[1].key, default=())
    places = [_place(grant, stays) for grant in found]
    return Tally(len(stays), len(late), Witness.of("entered while another was inside", places))


def fence_order(incarnations: Incarnations) -> Tally:
    counting = {grant.key for grant, _ in _stays(incarnations)}
    grants = [
        (grant, following.record[8])
        for grant in _own(incarnations, Event.DELIVER)
        if (following := next(_after(incarnations, grant), None)) and following.is_report(MutexReport.FENCE)
    ]
    others = [one for one in grants if one[0].key in counting]
    wrong = []
    for grant, fence in grants:
        if grant.key in counting:
            against = [one for one in others if one[0].key < grant.key and one[1] >= fence]
            against.sort(key=lambda one: (-one[1], one[0].key))
        else:
            exclusion = _exclusion(incarnations, grant.incarnation)
            assert exclusion is not None
            against = [one for one in others if one[0].key[0] >= exclusion.key[0] and one[1] <= fence]
            against.sort(key=lambda one: (one[1], one[0].key))
        wrong += [((grant, fence), one) for one in against[:1]]
    pair = min(wrong, key=lambda pair: pair[0][0].key, default=())
    places = [Place(grant.incarnation, None, None, grant.key[0], fence) for grant, fence in pair]
    return Tally(len(grants), len(wrong), Witness.of("a fence is out of order", places))


def service(incarnations: Incarnations, owing: Collection[Incarnation]) -> Tally:
    asked = {h.message: h for h in reversed(_own(incarnations, Event.SUBMIT)) if h.incarnation in owing}
    stays = [(grant, end) for grant, end in _stays(incarnations) if grant.incarnation in owing]
    granted = {grant.message for grant, _ in stays}
    missing = sorted((h.key[0], message) for message, h in asked.items() if message not in granted)
    unleft = [grant for grant, end in stays if end is None]
    if missing:
        message = missing[0][1]
        place = Place(Incarnation(*message[:2]), message, None, None)
        return Tally(len(asked), len(missing) + len(unleft), Witness.of("a request is never granted", [place]))
    places = [_place(grant, stays) for grant in sorted(unleft, key=lambda grant: grant.key)[:1]]
    return Tally(len(asked), len(unleft), Witness.of("a section is never left", places))


def grant_order(incarnations: Incarnations) -> Tally:
    """Grants against the order of the requests; a member's knowledge is a set of requests."""
    stays = list(_stays(incarnations))
    grant_of = {grant.message: grant.key for grant, _ in reversed(stays)}
    requests = {h.message: h for h in reversed(_own(incarnations, Event.SUBMIT))}
    crashed = {incarnation for incarnation, records in incarnations.items() if all(r[0] != Event.STOP for r in records)}
    mattering = {m for m in requests if m in grant_of or Incarnation(*m[:2]) not in crashed}
    checked, wrong = 0, list[tuple[MessageId, MessageId]]()
    for message, known in _known_at_requests(incarnations, requests).items():
        if message in grant_of:
            checked += 1
            late = [m for m in known & mattering if grant_of.get(m, _NEVER) > grant_of[message]]
            wrong += [(max(late, key=lambda m: grant_of.get(m, _NEVER)), message)] if late else []
    found = min(wrong, key=lambda pair: grant_of[pair[1]], default=())
    places = [_granted_place(message, stays) for message in found]
    witness = Witness.of("the later request is granted first", places)
    return Tally(checked, len(wrong), witness, _why_the_order_is_unknown(incarnations))


def clock_condition(incarnations: Incarnations) -> Tally:
    """Timestamps against the order of events; the past of an event is a set of reports."""
    past: dict[Incarnation, set[Happening]] = {incarnation: set() for incarnation in incarnations}
    before_sending: dict[MessageId, set[Happening]] = {}
    unsent: dict[Incarnation, list[MessageId]] = {incarnation: [] for incarnation in incarnations}
    checked, wrong = 0, list[tuple[Happening, Happening]]()
    for h in _in_time(incarnations):
        if h.event == Event.SUBMIT and h.is_own:
            before_sending.setdefault(h.message, set(past[h.incarnation]))
            unsent[h.incarnation].append(h.message)
        elif h.event == Event.DELIVER:
            past[h.incarnation] |= before_sending.get(h.message, set())
        elif h.is_report(Notice.TIMESTAMP):
            checked += 1
            larger = [(before.record[8], before.incarnation, before) for before in past[h.incarnation]]
            wrong += [(max(larger)[2], h)] if larger and max(larger)[0] >= h.record[8] else []
            past[h.incarnation].add(h)
            before_sending |= {message: set(past[h.incarnation]) for message in unsent[h.incarnation]}
            unsent[h.incarnation] = []
    places = [_shows(h) for h in wrong[0]] if wrong else []
    return Tally(checked, len(wrong), Witness.of("what happened later has no larger timestamp", places))


def clock_monotone(incarnations: Incarnations) -> Tally:
    readings = [h for h in _in_time(incarnations) if h.is_report(Notice.CLOCK)]
    wrong = []
    for index, reading in enumerate(readings):
        before = [other for other in readings[:index] if other.incarnation == reading.incarnation][-1:]
        wrong += [(other, reading) for other in before if reading.record[8] < other.record[8]]
    places = [_shows(h) for h in wrong[0]] if wrong else []
    return Tally(len(readings), len(wrong), Witness.of("set backwards", places))


def state(incarnations: Incarnations, full: Collection[Incarnation], *, has_drained: bool) -> Tally:
    """States of every pair of members, command by command, and their numbers if the run drained."""
    shown = {
        incarnation: [h for h in _of_incarnation(incarnations, incarnation) if h.is_report(Notice.STATE)]
        for incarnation in sorted(full)
    }
    compared: set[tuple[Incarnation, int]] = set()
    wrong: list[tuple[int, Incarnation, Incarnation]] = []
    for one, other in combinations(shown, 2):
        for k, (here, there) in enumerate(zip(shown[one], shown[other], strict=False), start=1):
            compared |= {(one, k), (other, k)}
            wrong += [(k, one, other)] if here.record[8] != there.record[8] else []
    k, *pair = min(wrong, default=(0,))
    places = [_shows(shown[incarnation][k - 1])._replace(position=k) for incarnation in pair]
    violations, what = len({command for command, *_ in wrong}), "committed states differ"
    if has_drained and any(len(shown[one]) != len(shown[other]) for one, other in combinations(shown, 2)):
        violations += 1
        if not wrong:
            what = "the last committed states differ in number"
            ends = [(len(made), incarnation) for incarnation, made in shown.items()]
            places = [
                _shows(shown[one][-1])._replace(position=count) for count, one in (min(ends), max(ends)) if shown[one]
            ]
    return Tally(len(compared), violations, Witness.of(what, places))


_NEVER: Key = (1 << 70, Incarnation(0, 0), 0)


def _known_at_requests(
    incarnations: Incarnations, requests: dict[MessageId, Happening]
) -> dict[MessageId, set[MessageId]]:
    """For each request, the requests that happened before it."""
    knows: dict[Incarnation, set[MessageId]] = {incarnation: set() for incarnation in incarnations}
    sent: list[tuple[Happening, set[MessageId]]] = []
    found: dict[MessageId, set[MessageId]] = {}
    for h in _in_time(incarnations):
        if h.is_report(GroupReport.SENT):
            sent.append((h, set(knows[h.incarnation])))
        elif h.is_report(GroupReport.GIVEN):
            past = [known for one, known in sent if _is_the_message(one, h)]
            knows[h.incarnation] |= past[-1] if past else set()
        elif h.is_report(GroupReport.TAKEN):
            message = MessageId(*h.incarnation, h.record[8])
            if message in requests and message not in found:
                found[message] = knows[h.incarnation] - {message}
                knows[h.incarnation].add(message)
    return found


def _why_the_order_is_unknown(incarnations: Incarnations) -> str:
    happenings = _in_time(incarnations)
    given = [h for h in happenings if h.is_report(GroupReport.GIVEN)]
    if not given and len({h.incarnation.member for h in happenings if h.is_report(GroupReport.TAKEN)}) > 1:
        return NO_MESSAGE_GIVEN
    for h in given:
        of_sender = [records for one, records in incarnations.items() if one.member == h.record[4]]
        has_crashed = any(not {r[0] for r in records} & {Event.STOP, Event.ENDED} for records in of_sender)
        sent = [one for one in happenings if one.is_report(GroupReport.SENT) and _is_the_message(one, h)]
        if not has_crashed and not any(one.key < h.key for one in sent):
            return GIVEN_BUT_NOT_SENT
    return ""


def _is_the_message(sent: Happening, given: Happening) -> bool:
    """Whether a core was given the message that another sent: to all (bit 32 of the name is 0), or to that member."""
    sender, target = sent.incarnation.member, given.incarnation.member
    is_for_target = sent.record[8] // 2**32 % 2 == 0 or sent.record[4] == target
    return sender == given.record[4] and sent.record[8] == given.record[8] and is_for_target


def _stays(incarnations: Incarnations) -> Iterator[tuple[Happening, Happening | None]]:
    """Each grant that counts, and the record that ends its section; None: none does. The record from which on an
    incarnation was inside without a request stands for a grant.
    """
    for grant in sorted([*_own(incarnations, Event.DELIVER), *_inside_at_first(incarnations)]):
        following = list(_after(incarnations, grant))
        left = next((h for h in following if h.is_report(Notice.LEFT)), None)
        is_stopped = any(h.event == Event.STOP for h in _of_incarnation(incarnations, grant.incarnation))
        end = left or (None if is_stopped else [grant, *following][-1])
        exclusion = _exclusion(incarnations, grant.incarnation)
        if exclusion is None or grant.key[0] < exclusion.key[0]:
            ends = [one for one in (end, exclusion) if one is not None]
            yield grant, min(ends, key=lambda one: one.key[0], default=None)


def _inside_at_first(incarnations: Incarnations) -> Iterator[Happening]:
    for incarnation in incarnations:
        own = _of_incarnation(incarnations, incarnation)
        sign = next((h for h in own if h.is_report(Notice.LEFT) or h.is_report(MutexReport.HOLDS)), None)
        if sign is not None and not any(h.event == Event.DELIVER and h.is_own and h.key < sign.key for h in own):
            yield sign if sign.is_report(MutexReport.HOLDS) else own[0]


def _exclusion(incarnations: Incarnations, incarnation: Incarnation) -> Happening | None:
    """First installation of a view without this incarnation, at any member that comes to it from a view with it. The
    view has a greater number than the incarnation's own last one.
    """
    own = _installed(incarnations, incarnation)
    found = []
    for other in incarnations:
        for before, after in pairwise(_installed(incarnations, other)):
            is_later = bool(own) and after.number > own[-1].number
            if is_later and after.is_whole and incarnation in before.members and incarnation not in after.members:
                found.append(_of_incarnation(incarnations, other)[after.records[0].record - 1])
    return min(found, key=lambda h: h.key, default=None)


def _installed(incarnations: Incarnations, incarnation: Incarnation) -> list[Installed]:
    views = [h for h in _of_incarnation(incarnations, incarnation) if h.event == Event.VIEW]
    records = [Record(h.key[2], Event.VIEW, h.record[1], h.message, h.key[0], value=h.record[8]) for h in views]
    return list(installations_of(incarnation, records))


def _own(incarnations: Incarnations, event: Event) -> list[Happening]:
    return [h for h in _in_time(incarnations) if h.event == event and h.is_own]


def _of_incarnation(incarnations: Incarnations, incarnation: Incarnation) -> list[Happening]:
    return [
        Happening((r[6], incarnation, number), r) for number, r in enumerate(incarnations.get(incarnation, ()), start=1)
    ]


def _after(incarnations: Incarnations, h: Happening) -> Iterator[Happening]:
    return iter(_of_incarnation(incarnations, h.incarnation)[h.key[2] :])


def _in_time(incarnations: Incarnations) -> list[Happening]:
    return sorted(h for incarnation in incarnations for h in _of_incarnation(incarnations, incarnation))


def _place(grant: Happening, stays: list[tuple[Happening, Happening | None]]) -> Place:
    if grant.event != Event.DELIVER:
        return Place(grant.incarnation, None, None, grant.key[0])
    stays = [stay for stay in stays if stay[0].event == Event.DELIVER]
    own = sorted(other.key[2] for other, _ in stays if other.incarnation == grant.incarnation)
    return Place(grant.incarnation, grant.message, own.index(grant.key[2]) + 1, grant.key[0])


def _granted_place(message: MessageId, stays: list[tuple[Happening, Happening | None]]) -> Place:
    grant = next((grant for grant, _ in stays if grant.message == message), None)
    return Place(Incarnation(*message[:2]), message, None, None) if grant is None else _place(grant, stays)


def _shows(h: Happening) -> Place:
    return Place(h.incarnation, None, None, h.key[0], h.record[8])
