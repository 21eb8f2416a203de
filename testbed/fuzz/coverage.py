"""What the faults met: for each phase of a core and each input, how often it came, and how often under a fault; and
what the views met (testbed.fuzz.views).

A fault meets an input when the member is touched by it while it is in force: cut off, worsened, frozen (what waited is
taken in at the moment of thawing) or just started again. A message that a cut keeps from a member counts as an input
that was met, in the phase that the member is in then. Inputs are messages by kind, and `-` for timers and requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from node.group.core import Phase
from node.wire import Kind
from testbed.fuzz.scenario import Crash, Scenario
from testbed.fuzz.views import Freeze, IncarnationId, Views
from testbed.sim.simulation import START_NS, IncarnationRun

NO_MESSAGE = "-"

Pair = tuple[str, str]
"""(phase, kind)"""


@dataclass(slots=True)
class Coverage:
    """Counts by (phase, kind), and of views. Sums with `add`."""

    occurred: Counter[Pair] = field(default_factory=Counter)
    met: Counter[Pair] = field(default_factory=Counter)
    views: Views = field(default_factory=Counter)

    def add(self, other: Coverage) -> None:
        self.occurred.update(other.occurred)
        self.met.update(other.met)
        self.views.update(other.views)

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """All that occurred, sorted."""
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
        """By reason, then what was met."""
        found: dict[str, dict[str, int]] = {}
        for reason, what, count in self.view_rows():
            found.setdefault(reason, {})[what] = count
        return found

    def as_dict(self) -> dict[str, dict[str, dict[str, int]]]:
        """By phase, then kind."""
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
    """The simulator's observer for one scenario: counts inputs, which faults met an input at all, and when cores froze
    for a change of views. `held` says how many messages the core of an incarnation holds.
    """

    def __init__(self, scenario: Scenario, held: Callable[[IncarnationRun], int]) -> None:
        self.coverage = Coverage()
        self.met: set[int] = set()
        """Positions of the scenario's faults that met a message, a timer or a request."""
        self.freezes: dict[IncarnationId, list[Freeze]] = {}
        self._held = held
        self._phases: list[str] = [""] * len(scenario.members)
        """The last that was seen, by member."""
        self._by_member = _intervals(scenario)
        self._occurred = self.coverage.occurred
        self._kind_names = _KIND_NAMES

    def input(self, incarnation: IncarnationRun, kind: Kind | None, phase: str, at_ns: int) -> None:
        """Before each call of a core."""
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
        """A cut keeps a message from the member."""
        pair = (phase, self._kind_names[kind])
        self._occurred[pair] += 1
        self.coverage.met[pair] += 1
        self.met.update(
            fault for start_ns, end_ns, fault in self._by_member[incarnation.member] if start_ns <= at_ns <= end_ns
        )

    def _note_freeze(self, incarnation: IncarnationRun, phase: str, at_ns: int) -> None:
        """The phase has changed."""
        before, self._phases[incarnation.member] = self._phases[incarnation.member], phase
        if phase.startswith(Phase.CHANGING) and not before.startswith(Phase.CHANGING):
            freeze = Freeze(at_ns, self._held(incarnation))
            self.freezes.setdefault((incarnation.member, incarnation.incarnation), []).append(freeze)

    def fault(self, line: Mapping[str, object]) -> None:
        """The scenario says already what strikes when; in virtual time it strikes at that time."""


def _intervals(scenario: Scenario) -> tuple[tuple[tuple[int, int, int], ...], ...]:
    """By member: (from, until, position of the fault)."""
    found: list[list[tuple[int, int, int]]] = [[] for _ in scenario.members]
    for position, fault in enumerate(scenario.faults):
        end_ns = fault.end_ns
        if isinstance(fault, Crash):
            end_ns += scenario.transit_ns
        for member in fault.members:
            found[member].append((START_NS + fault.at_ns, START_NS + end_ns, position))
    return tuple(map(tuple, found))


_KIND_NAMES: dict[Kind | None, str] = {None: NO_MESSAGE, **{kind: kind.name.lower() for kind in Kind}}
