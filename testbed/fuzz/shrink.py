"""Shrinking: a failing scenario is made smaller while it fails in the same way.

Delta debugging (Zeller and Hildebrandt 2002) over lists (faults, submissions), then one change at a time: a member
less, one partition instead of several, an impairment, a parameter or a clock less, shorter faults, rounder times. The
passes repeat until none of them finds anything, or the budget of simulations is used up. The result is deterministic.

Any change before a frame changes the random draw of its loss. So a smaller scenario that does not fail is tried again
with other seeds of the network before it is rejected.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from testbed.fuzz.draw import is_fair
from testbed.fuzz.scenario import (
    ClockShift,
    Crash,
    Cut,
    Fault,
    LinkCut,
    Member,
    OneWayCut,
    Scenario,
    Segment,
    clash,
    each_member,
)
from testbed.spec.raw import Dissemination, Parameter
from topologies.formats.errors import InputError
from topologies.model import CLEAR, Impairment

Item = TypeVar("Item")

DEFAULT_BUDGET = 2000
OTHER_SEEDS = (1, 2)
MILLISECOND = 1_000_000
SIZE_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """The smallest scenario found, and the number of simulations."""

    scenario: Scenario
    simulations: int
    is_complete: bool
    """No pass finds a smaller scenario that fails in the same way; False when the budget ended the search."""


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool], *, budget: int = DEFAULT_BUDGET) -> Shrunk:
    """Shrink a scenario. `fails`: whether one fails as the given one does; it is called at most `budget` times, and
    raises InputError for a scenario that no experiment file may hold."""
    search = _Search(scenario, fails, budget)
    try:
        while search.round():
            pass
    except _BudgetSpentError:
        return Shrunk(scenario=search.best, simulations=budget, is_complete=False)
    return Shrunk(scenario=search.best, simulations=search.asked, is_complete=True)


class _BudgetSpentError(Exception):
    """Raised to end the search."""


class _Search:
    """A search: the smallest failing scenario so far, and the rest of the budget."""

    def __init__(self, scenario: Scenario, fails: Callable[[Scenario], bool], budget: int) -> None:
        self.best = scenario
        self.asked = 0
        self._fails = fails
        self._budget = budget

    def round(self) -> bool:
        """Run all passes once. Returns whether any made it smaller."""
        before = self.best
        self._list(lambda scenario: scenario.faults, lambda scenario, faults: replace(scenario, faults=tuple(faults)))
        self._list(lambda scenario: scenario.submissions, with_submissions)
        for candidates in (
            _fewer_members, _fewer_segments, _clearer, _plainer, _shorter, _earlier, _rounder,
        ):  # fmt: skip
            self._one_by_one(candidates)
        return self.best != before

    def _one_by_one(self, candidates: Callable[[Scenario], Iterable[Scenario]]) -> None:
        """Take the first candidate that fails, and make candidates of it again, until none fails."""
        while any(self._take(candidate) for candidate in candidates(self.best)):
            pass

    def _list(
        self, read: Callable[[Scenario], Sequence[Item]], write: Callable[[Scenario, Sequence[Item]], Scenario]
    ) -> None:
        """Delta debugging: leave out halves, then quarters, and so on to single items."""
        size = max(1, len(read(self.best)) // 2)
        while read(self.best):
            items = read(self.best)
            parts = range(0, len(items), size)
            if any(self._take(write(self.best, [*items[:at], *items[at + size :]])) for at in parts):
                size = max(1, min(size, len(read(self.best)) // 2))
            elif size == 1:
                return
            else:
                size //= 2

    def _take(self, candidate: Scenario) -> bool:
        """Whether it fails, with its own seed or another; if so it becomes the best."""
        if candidate == self.best or _collide(candidate.faults) or not is_fair(candidate):
            return False
        for seed in dict.fromkeys((candidate.seed, *OTHER_SEEDS)):
            tried = replace(candidate, seed=seed)
            if self.asked >= self._budget:
                raise _BudgetSpentError
            self.asked += 1
            try:
                fails = self._fails(tried)
            except InputError:  # a parameter less may be a contradiction: `first` without the `candidates` it is one of
                return False
            if fails:
                self.best = tried
                return True
        return False


def with_submissions(scenario: Scenario, submissions: Sequence[tuple[int, int]]) -> Scenario:
    """The scenario with other submissions (instant, member)."""
    instants: list[list[int]] = [[] for _ in scenario.members]
    for at_ns, member in sorted(submissions):
        instants[member].append(at_ns)
    parts = iter(instants)
    return each_member(scenario, lambda member: replace(member, submissions_ns=tuple(next(parts))))


def without_member(scenario: Scenario, gone: int) -> Scenario:
    """The scenario without one member: later ones move up, faults that need it are dropped, sides of cuts lose it."""
    first = 0
    segments: list[Segment] = []
    places: list[int | None] = []
    for segment in scenario.segments:
        members = tuple(one for number, one in enumerate(segment.members, start=first) if number != gone)
        first += len(segment.members)
        places.append(len(segments) if members else None)
        if members:
            segments.append(replace(segment, members=members))
    if segments[0].link != CLEAR:
        segments[0] = replace(segments[0], link=CLEAR)
    faults = (_fault_without(fault, gone, places) for fault in scenario.faults)
    return replace(scenario, segments=tuple(segments), faults=tuple(fault for fault in faults if fault is not None))


def _fault_without(fault: Fault, gone: int, places: Sequence[int | None]) -> Fault | None:
    def moved(member: int) -> int:
        return member - (member > gone)

    match fault:
        case Cut(sides=sides):
            left = (tuple(moved(member) for member in side if member != gone) for side in sides)
            sides = tuple(side for side in left if side)
            return replace(fault, sides=sides) if len(sides) > 1 else None
        case OneWayCut(source=source, target=target):
            is_gone = gone in (source, target)
            return None if is_gone else replace(fault, source=moved(source), target=moved(target))
        case LinkCut(segment=segment, behind=behind):
            place = places[segment]
            # The first segment has no link; a segment that moved up to be the first has none any more.
            left_behind = tuple(moved(member) for member in behind if member != gone)
            return replace(fault, segment=place, behind=left_behind) if place else None
        case _:
            return None if fault.member == gone else replace(fault, member=moved(fault.member))


# Passes: each yields scenarios that are one step smaller.


def _fewer_members(scenario: Scenario) -> Iterator[Scenario]:
    if len(scenario.members) > 2:
        for member in reversed(range(len(scenario.members))):
            yield without_member(scenario, member)


def _fewer_segments(scenario: Scenario) -> Iterator[Scenario]:
    if len(scenario.segments) > 1:
        faults = tuple(fault for fault in scenario.faults if not isinstance(fault, LinkCut))
        yield replace(scenario, segments=(Segment(members=scenario.members),), faults=faults)
    for position, segment in enumerate(scenario.segments):
        for simpler in (replace(segment, bus=None), replace(segment, link=CLEAR)):
            if simpler != segment:
                yield _with_segment(scenario, position, simpler)


def _clearer(scenario: Scenario) -> Iterator[Scenario]:
    """Ports with fewer impairments: none at all, none of one member, one field less everywhere; or a plain delay."""
    yield each_member(
        scenario, lambda member: replace(member, to_node=CLEAR, from_node=CLEAR, offset_ns=0, drift_ppm=0)
    )
    delay = Impairment(delay_ns=MILLISECOND)
    if any(member.to_node not in (CLEAR, delay) for member in scenario.members):
        yield each_member(scenario, lambda member: replace(member, to_node=delay, from_node=CLEAR))
    for position, member in enumerate(scenario.members):
        for simpler in (
            replace(member, to_node=CLEAR), replace(member, from_node=CLEAR),
            replace(member, offset_ns=0), replace(member, drift_ppm=0), replace(member, joins_ns=None),
        ):  # fmt: skip
            if simpler != member:
                yield _with_member(scenario, position, simpler)
    for names in _FIELDS:
        yield each_member(scenario, lambda member, names=names: _cleared(member, names))  # type: ignore[misc]


_FIELDS = (
    ("rate_bps", "queue_frames", "queue_bytes"),
    ("corrupt_ratio",),
    ("duplicate_ratio",),
    ("reorder_ratio",),
    ("loss_burst_frames",),
    ("loss_ratio", "loss_burst_frames"),
    ("jitter_ns", "distribution"),
)


def _cleared(member: Member, names: Iterable[str]) -> Member:
    clear = {name: getattr(CLEAR, name) for name in names}
    return replace(member, to_node=replace(member.to_node, **clear), from_node=replace(member.from_node, **clear))


def _plainer(scenario: Scenario) -> Iterator[Scenario]:
    """Defaults in place of parameters, the usual dissemination, the smallest messages."""
    if scenario.parameters:
        yield replace(scenario, parameters={})
    for parameters in _fewer_parameters(scenario.parameters):
        yield replace(scenario, parameters=parameters)
    if scenario.dissemination is not Dissemination.MULTICAST:
        yield replace(scenario, dissemination=Dissemination.MULTICAST)
    if scenario.size_bytes != SIZE_BYTES:
        yield replace(scenario, size_bytes=SIZE_BYTES)


def _fewer_parameters(parameters: Mapping[str, Parameter]) -> Iterator[dict[str, Parameter]]:
    for name, value in parameters.items():
        yield {key: kept for key, kept in parameters.items() if key != name}
        if isinstance(value, Mapping):
            for inner in _fewer_parameters(value):
                yield {**parameters, name: inner}


def _shorter(scenario: Scenario) -> Iterator[Scenario]:
    """A fault half as long; a crash for good instead of a restart; a clock that only jumps, half as far."""
    for position, fault in enumerate(scenario.faults):
        if fault.for_ns > MILLISECOND // 4 and not fault.is_final:
            yield _with_fault(scenario, position, replace(fault, for_ns=fault.for_ns // 2))
        if isinstance(fault, Crash) and not fault.is_final:
            yield _with_fault(scenario, position, replace(fault, is_final=True, for_ns=MILLISECOND))
        if isinstance(fault, ClockShift) and fault.step_ns and fault.drift_ppm:
            yield _with_fault(scenario, position, replace(fault, drift_ppm=0))
        if isinstance(fault, ClockShift) and abs(fault.step_ns) > MILLISECOND:
            yield _with_fault(scenario, position, replace(fault, step_ns=fault.step_ns // 2))


def _earlier(scenario: Scenario) -> Iterator[Scenario]:
    """Shorter intervals in which no message is submitted and no fault begins or ends."""
    yield _moved(scenario, lambda at_ns: at_ns // 2)
    moments = sorted({0, *(at_ns for at_ns, _ in scenario.submissions), *_ends(scenario.faults)})
    for before, after in itertools.pairwise(moments):
        for gap_ns in (0, (after - before) // 2):
            if after - before > max(gap_ns, MILLISECOND // 4):
                less_ns = after - before - gap_ns
                yield _moved(scenario, lambda at_ns, after=after, less=less_ns: at_ns - less * (at_ns >= after))  # type: ignore[misc]


def _rounder(scenario: Scenario) -> Iterator[Scenario]:
    for step_ns in (10 * MILLISECOND, MILLISECOND, MILLISECOND // 10):
        yield _moved(scenario, lambda at_ns, step=step_ns: at_ns // step * step)  # type: ignore[misc]


def _ends(faults: Iterable[Fault]) -> Iterator[int]:
    for fault in faults:
        yield fault.at_ns
        yield fault.end_ns


def _moved(scenario: Scenario, move: Callable[[int], int]) -> Scenario:
    """The scenario with every instant moved; a fault keeps a minimal length."""
    faults: list[Fault] = []
    for fault in scenario.faults:
        at_ns = move(fault.at_ns)
        for_ns = fault.for_ns if fault.is_final else max(move(fault.end_ns) - at_ns, MILLISECOND // 10)
        faults.append(replace(fault, at_ns=at_ns, for_ns=for_ns))
    if _collide(faults):
        return scenario
    moved = each_member(
        scenario,
        lambda member: replace(
            member,
            submissions_ns=tuple(move(at_ns) for at_ns in member.submissions_ns),
            joins_ns=None if member.joins_ns is None else move(member.joins_ns),
        ),
    )
    return replace(moved, faults=tuple(faults))


def _collide(faults: Sequence[Fault]) -> bool:
    """Whether two of them clash."""
    return any(clash(one, other) for one, other in itertools.combinations(faults, 2))


def _with_member(scenario: Scenario, position: int, member: Member) -> Scenario:
    places = iter(range(len(scenario.members)))
    return each_member(scenario, lambda one: member if next(places) == position else one)


def _with_segment(scenario: Scenario, position: int, segment: Segment) -> Scenario:
    segments = scenario.segments
    return replace(scenario, segments=(*segments[:position], segment, *segments[position + 1 :]))


def _with_fault(scenario: Scenario, position: int, fault: Fault) -> Scenario:
    faults = scenario.faults
    return replace(scenario, faults=(*faults[:position], fault, *faults[position + 1 :]))
