"""Section `views` of summary.json: the views of a run, its minorities, state transfers and exclusions. Pure functions
over the records of each incarnation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from analysis import formatting as words
from analysis.checks.properties import Incarnation, Incarnations, Raw
from analysis.checks.views import Absent, Installation, ViewRecords, absent_at_the_end, last_view, views_of
from analysis.metrics.figures import greatest
from collector.records import EndReason, Event, ViewReason


class Timeline(NamedTuple):
    """Records of one incarnation about views. `end_detail`: detail of its STOP or ENDED; -1: it has neither."""

    incarnation: Incarnation
    views: ViewRecords
    first_ns: int
    last_ns: int
    has_ended: bool
    end_detail: int


class _View(NamedTuple):
    """One view: members by its most complete record, and the time of its installation at each incarnation."""

    number: int
    reason: int
    members: tuple[Incarnation, ...]
    installed_ns: Mapping[Incarnation, int]

    @property
    def first_ns(self) -> int:
        return min(self.installed_ns.values())

    @property
    def last_ns(self) -> int:
        return max(self.installed_ns.values())


def section(
    incarnations: Sequence[Timeline],
    *,
    names: Mapping[int, str],
    start_ns: int,
    struck_ns: Mapping[int, Collection[int]],
    asked_to_leave: Mapping[Incarnation, int],
) -> dict[str, Any] | None:
    """The section; None for a run without views. `struck_ns`: times at which faults killed, paused or cut off each
    member; `asked_to_leave`: see there. Times in the section count from `start_ns`.
    """
    views = _views(incarnations)
    if not views:
        return None
    rows = _Rows(names, start_ns)
    by_name = {timeline.incarnation: timeline for timeline in incarnations}
    changes = [(_View(0, 0, (), {}), views[0]), *pairwise(views)]
    listed = [rows.view(before, view, _began_ns(before, view, by_name, struck_ns)) for before, view in changes]
    minorities = [one for timeline in incarnations for one in rows.minorities(timeline)]
    transfers = [one for timeline in incarnations for one in rows.transfers(timeline)]
    ended = [rows.end(timeline) for timeline in incarnations if timeline.has_ended]
    return {
        "installed": len(views),
        "last": views[-1].number,
        "change_max_ms": greatest(one["change_ms"] for one in listed),
        "spread_max_ms": greatest(one["last_ms"] - one["first_ms"] for one in listed),
        "minority_max_ms": greatest(one["for_ms"] for one in minorities),
        "transfer_max_ms": greatest(one["took_ms"] for one in transfers),
        "excluded": sum(one["how"] == EndReason.EXCLUDED.name.lower() for one in ended),
        "left": sum(one["how"] == EndReason.LEFT.name.lower() for one in ended),
        "views": listed,
        "minorities": sorted(minorities, key=lambda one: one["from_ms"]),
        "transfers": sorted(transfers, key=lambda one: one["at_ms"]),
        "ended": sorted(ended, key=lambda one: one["at_ms"]),
        "without_quorum": [
            rows.incarnation(incarnation) | {"before": before.number, "view": after.number, "reason": _reason_of(after)}
            for incarnation, before, after in without_quorum(incarnations, asked_to_leave)
        ],
        "absent": [
            rows.incarnation(one.incarnation) | {"view": one.view, "lacks": one.lacks.value}
            for one in absent(incarnations, asked_to_leave)
        ],
    }


def absent(incarnations: Sequence[Timeline], asked_to_leave: Collection[Incarnation]) -> Iterator[Absent]:
    """Incarnations that stopped at rest and are not where they belong. None in a run that did not come to rest, nor in
    a group that has lost its quorum: no incarnation that stopped has the last view, and they are no quorum of it.
    """
    stopped = {one.incarnation: one.views for one in incarnations if one.end_detail >= 0 and not one.has_ended}
    last = last_view(one.views for one in incarnations)
    if last is None or not all(one.end_detail for one in incarnations if one.incarnation in stopped):
        return
    has_last = any(one.number == last.number for views in stopped.values() for one in views.installations)
    has_quorum = has_last or (last.is_whole and _is_quorum(stopped.keys() & set(last.members), last))
    if has_quorum and not any(views.is_in_minority for views in stopped.values()):
        yield from absent_at_the_end(stopped, last, asked_to_leave)


def _is_quorum(part: Collection[Incarnation], view: Installation) -> bool:
    return 2 * len(part) + any(first in part for first in view.members[:1]) > len(view.members)


def without_quorum(
    incarnations: Sequence[Timeline], asked_to_leave: Mapping[Incarnation, int]
) -> Iterator[tuple[Incarnation, Installation, Installation]]:
    """Incarnations that go from one view to another without a quorum of the first: of more than half of it, or of half
    with its member of rank 0. Besides the members that stay, those count that may have promised and been left out
    (docs/protocols/group.md, R2): they had been asked to leave, or a later incarnation was there, or they had not got
    the state, or they were victims of bad pairs. A view that goes on after a lost quorum needs none, but only if fewer
    members than a quorum were still alive.

    Incarnations whose first view is the beginning of another group, too, with the view that goes on or was before.
    """
    by_name = {one.incarnation: one for one in incarnations}

    def may_have_promised(gone: Incarnation, after: Installation) -> bool:
        own = by_name.get(gone)
        if own is None:
            return False
        later = (one for one in incarnations if one.incarnation.member == gone.member and one.incarnation > gone)
        return (
            (gone in asked_to_leave and asked_to_leave[gone] <= after.at_ns)
            or any(one.first_ns <= after.at_ns for one in later)
            or not own.views.has_state_at(after.at_ns)
            or (after.reason == ViewReason.BAD_PAIR and own.last_ns >= after.at_ns)
        )

    def is_by_less(before: Installation, after: Installation) -> bool:
        if not before.is_whole or not after.is_whole:
            return False
        if after.reason == ViewReason.RESTORED:
            alive = {one for one in before.members if one in by_name and by_name[one].last_ns >= after.at_ns}
            return _is_quorum(alive, before) and not _is_quorum(alive & set(after.members), before)
        return not _is_quorum(
            {one for one in before.members if one in after.members or may_have_promised(one, after)}, before
        )

    for timeline in incarnations:
        for before, after in pairwise(timeline.views.installations):
            if is_by_less(before, after):
                yield timeline.incarnation, before, after
    for incarnation, before, after in _other_beginnings(incarnations):
        if after.is_anew or is_by_less(before, after):
            yield incarnation, before, after


def _other_beginnings(incarnations: Sequence[Timeline]) -> Iterator[tuple[Incarnation, Installation, Installation]]:
    """Incarnations that begin a group of their own, with the last view before it and their own. No member comes from
    another view to their first one; or that needs no quorum, although a member of a view before goes on.
    """
    begun_ns = {view.number: view.first_ns for view in _views(incarnations)}
    come_to = {one.number for timeline in incarnations for one in timeline.views.installations[1:]}
    for timeline in incarnations:
        for own in timeline.views.installations[:1]:
            from_ns = begun_ns[own.number]
            if own.is_anew:
                others = [other for other in incarnations if other.last_ns > from_ns]
            else:
                others = [] if own.number in come_to else list(incarnations)
            former = [one for other in others for one in other.views.installations if one.at_ns < from_ns]
            if former:
                yield timeline.incarnation, max(former, key=lambda one: one.number), own


def timelines(incarnations: Incarnations) -> list[Timeline]:
    """Timelines from the hosts' own records."""
    return [
        _timeline(incarnation, incarnations[incarnation])
        for incarnation in sorted(incarnations)
        if incarnations[incarnation]
    ]


def _timeline(incarnation: Incarnation, records: Sequence[Raw]) -> Timeline:
    end = next((record for record in records if record[0] in (Event.STOP, Event.ENDED)), None)
    has_ended, detail = (False, -1) if end is None else (end[0] == Event.ENDED, end[1])
    return Timeline(incarnation, views_of(records), records[0][6], records[-1][6], has_ended, detail)


def asked_to_leave(
    faults: Iterable[Mapping[str, Any]], names: Mapping[int, str], incarnations: Iterable[Timeline]
) -> dict[Incarnation, int]:
    """Time at which a fault first asked each incarnation to leave, and was not refused; `faults`: lines as in
    faults.jsonl. A fault asks the last incarnation of a member that had begun when it was effective, unless that one
    had ended when it was issued.
    """
    lives: dict[str, list[Timeline]] = {}
    for one in sorted(incarnations):
        lives.setdefault(names.get(one.incarnation.member, ""), []).append(one)
    found: dict[Incarnation, int] = {}
    for fault in faults:
        at_ns, until_ns = fault.get("issued_ns"), fault.get("effective_ns")
        if fault.get("kind") != "leave" or not isinstance(at_ns, int) or not isinstance(until_ns, int):
            continue
        answers = words.mapping(fault.get("readback"))
        for name in words.texts(fault.get("targets")):
            if "refused" in words.mapping(answers.get(name)):
                continue
            begun = [one for one in lives.get(name, ()) if one.first_ns <= until_ns]
            if begun and begun[-1].last_ns >= at_ns:
                asked = begun[-1].incarnation
                found[asked] = min(found.get(asked, at_ns), at_ns)
    return found


def struck_ns(faults: Iterable[Mapping[str, Any]], names: Mapping[int, str]) -> dict[int, list[int]]:
    """Times at which faults killed or paused each member, or cut the network; `faults`: lines as in faults.jsonl."""
    found: dict[int, list[int]] = {index: [] for index in names}
    for fault in faults:
        kind, at_ns = fault.get("kind"), fault.get("effective_ns")
        targets = words.texts(fault.get("targets"))
        if not isinstance(at_ns, int):
            continue
        for index, name in names.items():
            if kind == "cut" or (kind in ("crash", "pause") and name in targets):
                found[index].append(at_ns)
    return found


def _views(incarnations: Sequence[Timeline]) -> list[_View]:
    """Views by number."""
    found: dict[int, _View] = {}
    for timeline in incarnations:
        for one in timeline.views.installations:
            view = found.setdefault(one.number, _View(one.number, one.reason, (), {}))
            members = view.members if len(view.members) >= len(one.members) else one.members
            installed_ns = {timeline.incarnation: one.at_ns, **view.installed_ns}
            found[one.number] = view._replace(members=members, installed_ns=installed_ns)
    return [found[number] for number in sorted(found)]


def _began_ns(
    before: _View, view: _View, by_name: Mapping[Incarnation, Timeline], struck_ns: Mapping[int, Collection[int]]
) -> int | None:
    """Earliest sign of the change: for a member that is gone, the fault that struck it (its last record if it crashed
    without a fault), or its ENDED; a minority in the view before; the first record of a member that joined. None: there
    is no sign.
    """
    if not before.installed_ns:
        return None
    signs = [
        timeline.first_ns
        for incarnation in view.members
        if incarnation not in before.members and (timeline := by_name.get(incarnation))
    ]
    signs += [
        one.from_ns for timeline in by_name.values() for one in timeline.views.minorities if one.number == before.number
    ]
    for incarnation in before.members:
        if incarnation not in view.members and (timeline := by_name.get(incarnation)):
            earliest_ns = timeline.last_ns if timeline.end_detail < 0 else before.first_ns
            struck = [at_ns for at_ns in struck_ns.get(incarnation.member, ()) if earliest_ns <= at_ns <= view.first_ns]
            signs.append(max(struck, default=timeline.last_ns))
    return min((max(sign, before.first_ns) for sign in signs if sign <= view.first_ns), default=None)


def _reason_of(view: _View | Installation) -> str:
    return ViewReason(view.reason).name.lower() if view.reason in _REASONS else str(view.reason)


class _Rows(NamedTuple):
    """Writer of entries with member names and times in ms."""

    names: Mapping[int, str]
    start_ns: int

    def view(self, before: _View, view: _View, began_ns: int | None) -> dict[str, Any]:
        return {
            "number": view.number,
            "reason": _reason_of(view),
            "members": self.incarnations(view.members),
            "joined": self.incarnations(
                incarnation for incarnation in view.members if before.members and incarnation not in before.members
            ),
            "gone": self.incarnations(incarnation for incarnation in before.members if incarnation not in view.members),
            "installations": len(view.installed_ns),
            "first_ms": self.ms(view.first_ns),
            "last_ms": self.ms(view.last_ns),
            "change_ms": None if began_ns is None else (view.last_ns - began_ns) / 1e6,
        }

    def minorities(self, timeline: Timeline) -> Iterator[dict[str, Any]]:
        for one in timeline.views.minorities:
            until_ns = timeline.last_ns if one.until_ns is None else one.until_ns
            yield self.incarnation(timeline.incarnation) | {
                "view": one.number,
                "heard": one.heard,
                "from_ms": self.ms(one.from_ns),
                "for_ms": (until_ns - one.from_ns) / 1e6,
                "ended": one.until_ns is not None,
                "delivered": one.delivered,
            }

    def transfers(self, timeline: Timeline) -> Iterator[dict[str, Any]]:
        for one in timeline.views.taken:
            before_ns = [view.at_ns for view in timeline.views.installations if view.record <= one.record]
            yield self.incarnation(timeline.incarnation) | {
                "view": one.number,
                "donor": self.incarnation(one.donor),
                "bytes": one.size_bytes,
                "at_ms": self.ms(one.at_ns),
                "took_ms": (one.at_ns - before_ns[-1]) / 1e6 if before_ns else None,
            }

    def end(self, timeline: Timeline) -> dict[str, Any]:
        how = EndReason.LEFT if timeline.end_detail == EndReason.LEFT else EndReason.EXCLUDED
        return self.incarnation(timeline.incarnation) | {"how": how.name.lower(), "at_ms": self.ms(timeline.last_ns)}

    def incarnations(self, incarnations: Iterable[Incarnation]) -> list[dict[str, Any]]:
        return [self.incarnation(incarnation) for incarnation in incarnations]

    def incarnation(self, incarnation: Incarnation) -> dict[str, Any]:
        return {
            "member": self.names.get(incarnation.member, f"member {incarnation.member}"),
            "incarnation": incarnation.incarnation,
        }

    def ms(self, at_ns: int) -> float:
        return (at_ns - self.start_ns) / 1e6


_REASONS = frozenset(reason.value for reason in ViewReason)
