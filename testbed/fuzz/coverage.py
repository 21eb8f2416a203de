"""Coverage of the faults of a run: inputs of cores by phase, and views, that a fault met.

A fault meets an input of a member that it affects while it is in force: cut off, impaired, paused (waiting input is
processed at the moment of resuming) or just restarted. A message that a cut keeps from a member counts as an input that
was met, in the member's phase at that time. Inputs are messages by kind, and `-` for timers and requests.

A view is struck when the first of its survivors freezes (the core's phase is `changing`), or, if no input came in that
phase, when the first of them installs the next view. A survivor is an incarnation that installs the next view after
this one. docs/fuzzing.md lists the conditions of the survivors at that time that are counted.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from node.group.core import Phase
from node.trace import Event, ViewReason
from node.wire import Kind
from testbed.fuzz.scenario import Crash, Scenario
from testbed.sim.simulation import START_NS, IncarnationRun

NO_MESSAGE = "-"

Pair = tuple[str, str]
"""(phase, kind)"""


@dataclass(slots=True)
class Coverage:
    """Counts of inputs by (phase, kind), and of views. `add` sums two."""

    occurred: Counter[Pair] = field(default_factory=Counter)
    met: Counter[Pair] = field(default_factory=Counter)
    views: Views = field(default_factory=Counter)

    def add(self, other: Coverage) -> None:
        self.occurred.update(other.occurred)
        self.met.update(other.met)
        self.views.update(other.views)

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """All pairs that occurred, sorted."""
        return tuple(sorted(self.occurred))

    @property
    def pairs_met(self) -> int:
        return sum(self.met[pair] > 0 for pair in self.occurred)

    def rows(self) -> list[tuple[str, str, int, int]]:
        """(phase, kind, occurred, met), sorted: for tables and files."""
        return [(*pair, self.occurred[pair], self.met[pair]) for pair in self.pairs]

    def view_rows(self) -> list[tuple[str, str, int]]:
        """(reason, what, views), sorted: for files."""
        return sorted((reason, what, count) for (reason, what), count in self.views.items())

    def views_as_dict(self) -> dict[str, dict[str, int]]:
        """Counts by reason, then condition."""
        found: dict[str, dict[str, int]] = {}
        for reason, what, count in self.view_rows():
            found.setdefault(reason, {})[what] = count
        return found

    def as_dict(self) -> dict[str, dict[str, dict[str, int]]]:
        """Counts by phase, then kind."""
        found: dict[str, dict[str, dict[str, int]]] = {}
        for phase, kind, occurred, met in self.rows():
            found.setdefault(phase, {})[kind] = {"occurred": occurred, "met": met}
        return found


def from_rows(rows: Iterable[tuple[str, str, int, int]], views: Iterable[tuple[str, str, int]] = ()) -> Coverage:
    """The inverse of Coverage.rows and view_rows; rows of one pair add up."""
    found = Coverage()
    for reason, what, count in views:
        found.views[reason, what] += count
    for phase, kind, occurred, met in rows:
        found.occurred[phase, kind] += occurred
        if met:
            found.met[phase, kind] += met
    return found


class Watcher:
    """The simulator's observer for one scenario: counts inputs, faults that met an input, and the times at which cores
    froze for a view change. `held` gives the number of messages that the core of an incarnation holds.
    """

    def __init__(self, scenario: Scenario, held: Callable[[IncarnationRun], int]) -> None:
        self.coverage = Coverage()
        self.met: set[int] = set()
        """Positions of the scenario's faults that met a message, a timer or a request."""
        self.struck_ns: set[int] = set()
        """Times at which faults have struck."""
        self.freezes: dict[IncarnationId, list[Freeze]] = {}
        self._held = held
        self._phases: list[str] = [""] * len(scenario.members)
        """Last observed phase, by member."""
        self._by_member = _intervals(scenario)
        self._occurred = self.coverage.occurred
        self._kind_names = _KIND_NAMES

    def input(self, incarnation: IncarnationRun, kind: Kind | None, phase: str, at_ns: int) -> None:
        """Count an input; called before each call of a core."""
        pair = (phase, self._kind_names[kind])
        self._occurred[pair] += 1
        if phase != self._phases[incarnation.member]:
            self._note_freeze(incarnation, phase, at_ns)
        met = False
        for start_ns, end_ns, fault in self._by_member[incarnation.member]:
            if start_ns <= at_ns <= end_ns:
                self.met.add(fault)
                met = True
        if met:
            self.coverage.met[pair] += 1

    def cut(self, incarnation: IncarnationRun, kind: Kind, phase: str, at_ns: int) -> None:
        """Count a message that a cut keeps from the member."""
        pair = (phase, self._kind_names[kind])
        self._occurred[pair] += 1
        self.coverage.met[pair] += 1
        self.met.update(
            fault for start_ns, end_ns, fault in self._by_member[incarnation.member] if start_ns <= at_ns <= end_ns
        )

    def _note_freeze(self, incarnation: IncarnationRun, phase: str, at_ns: int) -> None:
        """Note a change of phase, and a freeze if it is the first of a view change."""
        before, self._phases[incarnation.member] = self._phases[incarnation.member], phase
        if phase.startswith(Phase.CHANGING) and not before.startswith(Phase.CHANGING):
            freeze = Freeze(at_ns, self._held(incarnation))
            self.freezes.setdefault((incarnation.member, incarnation.incarnation), []).append(freeze)

    def fault(self, line: Mapping[str, object]) -> None:
        """Note that a fault has struck. A planned fault that never strikes meets nothing."""
        effective_ns = line["effective_ns"]
        assert isinstance(effective_ns, int)
        self.struck_ns.add(effective_ns)


def _intervals(scenario: Scenario) -> tuple[tuple[tuple[int, int, int], ...], ...]:
    """Intervals by member: (from, until, position of the fault)."""
    found: list[list[tuple[int, int, int]]] = [[] for _ in scenario.members]
    for position, fault in enumerate(scenario.faults):
        end_ns = fault.end_ns
        if isinstance(fault, Crash):
            end_ns += scenario.transit_ns
        for member in fault.members:
            found[member].append((START_NS + fault.at_ns, START_NS + end_ns, position))
    return tuple(map(tuple, found))


_KIND_NAMES: dict[Kind | None, str] = {None: NO_MESSAGE, **{kind: kind.name.lower() for kind in Kind}}


FIRST_VIEW = 1

MessageId = tuple[int, int, int]
IncarnationId = tuple[int, int]
"""(member, incarnation)"""

Views = Counter[tuple[str, str]]
"""Number of views by (reason, condition). `Met.VIEWS` counts all views of a reason."""


class Met(enum.StrEnum):
    """Condition of the survivors of a view when it was struck."""

    VIEWS = "views"
    HELD = "held"
    UNDELIVERED = "undelivered"
    PARTLY_DELIVERED = "partly delivered"
    UNSETTLED = "unsettled"
    NOTHING = "nothing"


class Freeze(NamedTuple):
    """First observation of a frozen core in one view change; `buffered`: messages in its buffers then."""

    at_ns: int
    buffered: int


def views_met(
    incarnations: Iterable[IncarnationRun],
    freezes: Mapping[IncarnationId, Sequence[Freeze]],
    *,
    promises_agreement: bool,
) -> Views:
    """Conditions of the views of one run. Without `promises_agreement`, *partly delivered* is not counted: a message
    may be for one member alone."""
    histories = [_History.of(incarnation) for incarnation in incarnations]
    found: Views = Counter()
    for number, reason in sorted({pair for history in histories for pair in history.reasons.items()}):
        if number == FIRST_VIEW:
            continue
        survivors = [one for one in histories if number in one.installed_ns and one.began_before(number)]
        what = _met(survivors, number - 1, freezes) if survivors else set()
        if not promises_agreement:
            what.discard(Met.PARTLY_DELIVERED)
        found[reason, Met.VIEWS] += 1
        found.update((reason, one) for one in what or {Met.NOTHING})
    return found


def _met(survivors: Sequence[_History], view: int, freezes: Mapping[IncarnationId, Sequence[Freeze]]) -> set[Met]:
    """Conditions of the survivors of `view` when it was struck."""
    frozen = [one for history in survivors if (one := _freeze_of(history, view, freezes)) is not None]
    struck_ns = min([one.at_ns for one in frozen] or [history.installed_ns[view + 1] for history in survivors])
    found: set[Met] = set()
    if any(one.buffered for one in frozen):
        found.add(Met.HELD)
    if any(history.lacks_own(struck_ns) for history in survivors):
        found.add(Met.UNDELIVERED)
    if any(not history.is_settled(view, struck_ns) for history in survivors):
        found.add(Met.UNSETTLED)
    settled = [history for history in survivors if history.is_settled(view, struck_ns)]
    delivered = [history.delivered(struck_ns) for history in settled]
    fresh = set[MessageId]().union(*(history.delivered_in(view, struck_ns) for history in settled))
    if any(fresh - one for one in delivered):
        found.add(Met.PARTLY_DELIVERED)
    return found


def _freeze_of(history: _History, view: int, freezes: Mapping[IncarnationId, Sequence[Freeze]]) -> Freeze | None:
    """The first freeze of an incarnation in this view."""
    from_ns, until_ns = history.installed_ns.get(view, 0), history.installed_ns[view + 1]
    return next((one for one in freezes.get(history.incarnation, ()) if from_ns <= one.at_ns <= until_ns), None)


@dataclass(slots=True)
class _History:
    """Views and messages in the records of one incarnation."""

    incarnation: IncarnationId
    installed_ns: dict[int, int] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    state_ns: int | None = None
    submitted_ns: dict[MessageId, int] = field(default_factory=dict)
    delivered_ns: dict[MessageId, int] = field(default_factory=dict)

    @classmethod
    def of(cls, incarnation: IncarnationRun) -> _History:
        found = cls((incarnation.member, incarnation.incarnation))
        for event, detail, origin, start, _, number, at_ns, *_ in incarnation.records:
            if event == Event.SUBMIT:
                found.submitted_ns[origin, start, number] = at_ns
            elif event == Event.DELIVER:
                found.delivered_ns[origin, start, number] = at_ns
            elif event == Event.VIEW:
                found.installed_ns.setdefault(number, at_ns)
                found.reasons[number] = ViewReason(detail).name.lower().replace("_", " ")
            elif event == Event.STATE:
                found.state_ns = at_ns
        return found

    def began_before(self, view: int) -> bool:
        """Whether it was a member of an earlier view, so that it is no joiner of this one."""
        return min(self.installed_ns) < view

    def is_settled(self, view: int, at_ns: int) -> bool:
        has_state = FIRST_VIEW in self.installed_ns or (self.state_ns is not None and self.state_ns <= at_ns)
        return has_state and self.installed_ns.get(view, at_ns + 1) <= at_ns

    def lacks_own(self, at_ns: int) -> bool:
        return any(
            submitted_ns <= at_ns < self.delivered_ns.get(message, at_ns + 1)
            for message, submitted_ns in self.submitted_ns.items()
        )

    def delivered(self, at_ns: int) -> set[MessageId]:
        return {message for message, delivered_ns in self.delivered_ns.items() if delivered_ns <= at_ns}

    def delivered_in(self, view: int, at_ns: int) -> set[MessageId]:
        from_ns = self.installed_ns[view]
        return {message for message, delivered_ns in self.delivered_ns.items() if from_ns <= delivered_ns <= at_ns}
