"""Is a long history in order? The properties over NumPy columns: a few machine operations per delivery.

This shows that nothing is wrong, or that something is; what exactly, `analysis.checks.linear` says, which is slower
and has
names for everything. So each test here may be the simplest one that is true exactly when the property holds:

- every message has a dense number, those of one origin in a row, so that tables take the place of dictionaries;
- FIFO: whatever is delivered, its origin's number before it was delivered earlier (a joiner may begin anywhere, once);
- total order: one predecessor per message (groupcomm 3.3); causal: direct causes first (3.4), and once for all members
  that deliver the same sequence;
- agreement: all full members deliver as many messages as there are.

Linear in the records when they come in order of their numbers, one incarnation after the other; else they are sorted
first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.checks import causes
from analysis.checks.properties import (
    ADDRESSED_TO_OBJECTS,
    Evidence,
    Incarnation,
    Property,
    Tally,
    gap_reason,
    undrained_reason,
)
from collector.records import Event, Level, Notice

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

NEVER = np.iinfo(np.int32).max
NEVER_NS = np.iinfo(np.int64).max
UNKNOWN, NOTHING = -2, -1
"""As a predecessor: not seen yet; the delivery was the first."""


class Columns(NamedTuple):
    """The records of one run, integers of any width; names as in schema.TRACE."""

    member: Ints
    member_incarnation: Ints
    record: Ints
    event: Ints
    detail: Ints
    origin: Ints
    incarnation: Ints
    number: Ints
    at_ns: Ints

    def select(self, rows: slice | npt.NDArray[np.intp] | Mask) -> Columns:
        return Columns(*(column[rows] for column in self))

    @property
    def size(self) -> int:
        return len(self.record)


class Answer(NamedTuple):
    """What was counted for each property that holds; those that do not hold are in `violated`."""

    tallies: Mapping[Property, Tally]
    violated: Collection[Property]
    evidence: Evidence


@dataclass(slots=True, eq=False)
class _IncarnationRows:
    """One incarnation: its rows, then what follows from them."""

    name: Incarnation
    records: Columns
    message: Numbers
    """Of each row; -1 where it speaks of no message."""
    has_ended: bool
    is_stopped: bool
    is_cut_short: bool
    is_full: bool
    own: npt.NDArray[np.intp] = field(default_factory=lambda: np.empty(0, np.intp))
    """Rows of the own submissions, first ones."""
    rows: npt.NDArray[np.intp] = field(default_factory=lambda: np.empty(0, np.intp))
    """Rows of the first deliveries."""
    sequence: Numbers = field(default_factory=lambda: np.empty(0, np.int32))
    """Their messages."""


def grouped(columns: Columns) -> tuple[Columns, list[tuple[Incarnation, slice]]]:
    """The records incarnation by incarnation, each in the order of their numbers."""
    incarnation = columns.member.astype(np.int64) << 16 | columns.member_incarnation
    is_new = np.flatnonzero(incarnation[1:] != incarnation[:-1]) + 1
    is_back = columns.record[1:] < columns.record[:-1]
    starts = [0, *is_new.tolist()] if columns.size else []
    names = [(int(columns.member[at]), int(columns.member_incarnation[at])) for at in starts]
    if len(set(names)) < len(names) or np.any(is_back & (incarnation[1:] == incarnation[:-1])):
        return grouped(columns.select(np.lexsort((columns.record, incarnation))))
    ends = [*starts[1:], columns.size]
    return columns, [(Incarnation(*name), slice(*ends_of)) for name, *ends_of in zip(names, starts, ends, strict=True)]


def look(columns: Columns, *, members: Iterable[int], names: Mapping[int, str], wanted: Collection[Property]) -> Answer:
    """Which of the properties hold. `members`, `names`: as in analysis.checks.linear."""
    columns, parts = grouped(columns)
    incarnations, first_message = _incarnations(columns._replace(number=np.maximum(columns.number, 0)), parts)
    evidence = _evidence(incarnations, set(members), names)
    if np.any((columns.event == Event.REPORT) & (columns.detail == Notice.ADDRESSED)):
        evidence = replace(evidence, addressed=ADDRESSED_TO_OBJECTS)
    delivered = columns.event == Event.DELIVER
    has_views = bool(np.any(columns.event == Event.VIEW))
    level = int(columns.detail[delivered].max(initial=-1)) if delivered.any() else int(Level.AGREED)
    level = max(level, int(Level.AGREED)) if has_views else level
    is_undone = columns.event == Event.UNDO
    is_optimistic = delivered & (columns.detail == Level.OPTIMISTIC) & (level > Level.OPTIMISTIC)
    if (
        is_undone.any() or is_optimistic.any() or columns.number.min(initial=0) < 0
    ):  # numbers beyond 63 bits: only an enemy writes them
        return Answer({}, wanted, evidence)
    look_at = _Look(incarnations, first_message, level)
    if has_views:  # it is judged view by view, elsewhere
        look_at.violated.add(Property.TOTAL_ORDER)
    tallies, violated = look_at.tallies(wanted)
    return Answer(tallies, violated, evidence)


class _Look:
    """One look at all incarnations; tables by dense message number."""

    def __init__(self, incarnations: list[_IncarnationRows], first_message: Mask, level: int) -> None:
        count = len(first_message)
        self.incarnations = incarnations
        self.level = level
        self.begins = first_message
        """True for the message number that no origin gives: the one before its first."""
        self.place = np.full(count, NEVER, np.int32)
        """Where the incarnation at hand delivers each message."""
        self.submit_ns = np.full(count, NEVER_NS, np.int64)
        self.in_full = np.zeros(count, np.bool_)
        self.in_any = np.zeros(count, np.bool_)
        self.predecessor = np.full(count, UNKNOWN, np.int32)
        self.owed = 0
        self.deliveries = 0
        self.firsts = 0
        self.violated: set[Property] = set()

    def tallies(self, wanted: Collection[Property]) -> tuple[dict[Property, Tally], set[Property]]:
        for incarnation in self.incarnations:
            self._submissions(incarnation)
        for incarnation in self.incarnations:
            self._deliveries(incarnation)
        for incarnation in self.incarnations:
            self._sequence(incarnation, wanted)
        full = int(self.in_full.sum())
        everything = int(self.in_any.sum())
        if any(len(incarnation.rows) < full for incarnation in self.incarnations if incarnation.is_full):
            self.violated.add(Property.AGREEMENT)
        if any(len(incarnation.rows) < everything for incarnation in self.incarnations if incarnation.is_full):
            self.violated.add(Property.UNIFORM_AGREEMENT)
        if Property.CAUSAL in wanted:
            self._causal()
        checked = {
            Property.VALIDITY: self.owed,
            Property.AGREEMENT: full,
            Property.UNIFORM_AGREEMENT: everything,
            Property.INTEGRITY: self.deliveries,
            Property.TOTAL_ORDER: sum(
                len(incarnation.rows) for incarnation in self.incarnations if not incarnation.has_ended
            ),
        }
        violated = self.violated & set(wanted)
        return {kind: Tally(checked.get(kind, self.firsts), 0) for kind in wanted if kind not in violated}, violated

    def _submissions(self, incarnation: _IncarnationRows) -> None:
        records = incarnation.records
        is_own = (records.event == Event.SUBMIT) & (records.origin == incarnation.name.member)
        rows = np.flatnonzero(is_own & (records.incarnation == incarnation.name.incarnation))
        incarnation.own = rows[self._first_of_each(incarnation.message[rows])]
        self.submit_ns[incarnation.message[incarnation.own]] = records.at_ns[incarnation.own]
        self.owed += len(incarnation.own) if incarnation.is_full else 0

    def _deliveries(self, incarnation: _IncarnationRows) -> None:
        records = incarnation.records
        rows = np.flatnonzero((records.event == Event.DELIVER) & (records.detail == self.level))
        message = incarnation.message[rows]
        self.deliveries += len(rows)
        if np.any(records.at_ns[rows] < self.submit_ns[message]):
            self.violated.add(Property.INTEGRITY)
        is_first = self._first_of_each(message)
        if not is_first.all():
            self.violated.add(Property.INTEGRITY)
            rows, message = rows[is_first], message[is_first]
        incarnation.rows, incarnation.sequence = rows, message
        self.firsts += len(incarnation.rows)

    def _first_of_each(self, message: Numbers) -> Mask:
        """True at the first row of each message. Of several values given to one place, NumPy keeps the last."""
        order = np.arange(len(message), dtype=np.int32)
        self.place[message[::-1]] = order[::-1]
        is_first = np.asarray(self.place[message] == order)
        self.place[message] = NEVER
        return is_first

    def _sequence(self, incarnation: _IncarnationRows, wanted: Collection[Property]) -> None:
        sequence = incarnation.sequence
        self.in_any[sequence] = True
        here = np.arange(len(sequence), dtype=np.int32)
        self.place[sequence] = here
        if incarnation.is_full:
            self.in_full[sequence] = True
            if np.any(self.place[incarnation.message[incarnation.own]] == NEVER):
                self.violated.add(Property.VALIDITY)
        if Property.FIFO in wanted and not self._is_fifo(incarnation, sequence, here):
            self.violated.add(Property.FIFO)
        if Property.TOTAL_ORDER in wanted and Property.TOTAL_ORDER not in self.violated and not incarnation.has_ended:
            self._compare_predecessors(incarnation, sequence)
        self.place[sequence] = NEVER

    def _is_fifo(self, incarnation: _IncarnationRows, sequence: Numbers, here: Numbers) -> bool:
        """Numbers 1 have nothing before them, and number 0, which no host gives, never has."""
        before = np.maximum(sequence - 1, 0)
        begins = np.flatnonzero((self.place[before] >= here) | self.begins[sequence])
        if incarnation.name.is_joiner:
            rows = incarnation.rows[begins]
            origins = incarnation.records.origin[rows].astype(np.int64) << 16 | incarnation.records.incarnation[rows]
            return len(np.unique(origins)) == len(origins)
        return bool(np.all(self.begins[before[begins]])) and not self.begins[sequence[begins]].any()

    def _compare_predecessors(self, incarnation: _IncarnationRows, sequence: Numbers) -> None:
        before = np.empty_like(sequence)
        before[1:] = sequence[:-1]
        before[:1] = NOTHING
        if incarnation.name.is_joiner:
            sequence, before = sequence[1:], before[1:]
        known = self.predecessor[sequence]
        if np.all((known == before) | (known == UNKNOWN)):
            self.predecessor[sequence] = before
        else:
            self.violated.add(Property.TOTAL_ORDER)

    def _causal(self) -> None:
        cause, effect = self._direct_causes()
        incarnations = sorted(
            self.incarnations, key=lambda incarnation: (incarnation.name.is_joiner, -len(incarnation.rows))
        )
        approved: Numbers | None = None
        for incarnation in incarnations:
            sequence = incarnation.sequence
            if approved is not None and np.array_equal(sequence, approved[: len(sequence)]):
                continue
            if not self._has_causes_first(incarnation, sequence, cause, effect):
                self.violated.add(Property.CAUSAL)
                return
            if approved is None and not incarnation.name.is_joiner:
                approved = sequence

    def _direct_causes(self) -> tuple[Numbers, Numbers]:
        """All pairs (cause, effect), the effect being the member's next submission after the cause."""
        pairs: list[tuple[Numbers, Numbers]] = []
        for incarnation in self.incarnations:
            own = incarnation.message[incarnation.own]
            is_own = np.zeros(incarnation.records.size, np.int32)
            is_own[incarnation.own] = 1
            following = np.cumsum(is_own)[incarnation.rows]
            is_cause = following < len(own)
            pairs.append((incarnation.sequence[is_cause], own[following[is_cause]]))
            pairs.append((own[:-1], own[1:]))
        if not pairs:
            return np.empty(0, np.int32), np.empty(0, np.int32)
        return np.concatenate([cause for cause, _ in pairs]), np.concatenate([effect for _, effect in pairs])

    def _has_causes_first(
        self, incarnation: _IncarnationRows, sequence: Numbers, cause: Numbers, effect: Numbers
    ) -> bool:
        self.place[sequence] = np.arange(len(sequence), dtype=np.int32)
        at = self.place[effect]
        late = np.flatnonzero(self.place[cause] >= at)
        late = late[at[late] != NEVER]
        if len(late) and incarnation.name.is_joiner:
            late = late[self._is_due(sequence)[cause[late]]]
        self.place[sequence] = NEVER
        return not len(late)

    def _is_due(self, sequence: Numbers) -> Mask:
        """Messages that a joiner cannot have got before its time: its oldest of the same origin or younger ones."""
        origin = np.cumsum(self.begins)
        oldest = np.full(int(origin.max(initial=0)) + 1, NEVER, np.int64)
        np.minimum.at(oldest, origin[sequence], sequence)
        return np.asarray(np.arange(len(origin)) >= oldest[origin])


def _incarnations(
    columns: Columns, parts: Collection[tuple[Incarnation, slice]]
) -> tuple[list[_IncarnationRows], Mask]:
    message, begins = _dense_messages(columns)
    count = Counter(name.member for name, _ in parts)
    incarnations = []
    for name, rows in parts:
        records = columns.select(rows)
        ends = np.flatnonzero((records.event == Event.STOP) | (records.event == Event.ENDED))[:1]
        is_stopped = bool(np.any(records.event[ends] == Event.STOP))
        is_cut_short = is_stopped and not records.detail[ends].any()
        is_full = is_stopped and not name.is_joiner and count[name.member] == 1
        has_ended = len(ends) > 0 and not is_stopped
        incarnations.append(
            _IncarnationRows(name, records, message[rows], has_ended, is_stopped, is_cut_short, is_full)
        )
    return incarnations, begins


def _dense_messages(columns: Columns) -> tuple[Numbers, Mask]:
    """A number for each record's message, those of one origin in a row; and for each number whether it is the place
    before an origin's first message, which stays free.
    """
    event = columns.event
    rows = np.flatnonzero((event == Event.SUBMIT) | (event == Event.DELIVER) | (event == Event.UNDO))
    origin = columns.origin[rows].astype(np.int64) << 16 | columns.incarnation[rows]
    number = columns.number[rows].astype(np.int64)
    dense_origin, count = _dense(origin)
    highest = np.zeros(count, np.int64)
    np.maximum.at(highest, dense_origin, number)
    if highest.sum() > 16 * len(rows) + 65536:
        number = _ranks(dense_origin, number)
        highest = np.zeros(count, np.int64)
        np.maximum.at(highest, dense_origin, number)
    base = np.concatenate(([0], np.cumsum(highest + 1)))
    message = np.full(columns.size, -1, np.int32)
    message[rows] = base[dense_origin] + number
    begins = np.zeros(int(base[-1]), np.bool_)
    begins[base[:-1]] = True
    return message, begins


def _dense(values: Ints) -> tuple[Ints, int]:
    """Values numbered 0, 1, … in their order, through a table when they are small enough for one."""
    top = int(values.max(initial=0)) + 1
    if top > 1 << 24:
        numbers, rows = causes.dense(values)
        return numbers, len(rows)
    is_there = np.zeros(top, np.bool_)
    is_there[values] = True
    table = np.cumsum(is_there) - 1
    return table[values], int(is_there.sum())


def _ranks(origin: Ints, number: Ints) -> Ints:
    """Numbers so far apart that a table of them would be empty: a gap between two becomes a gap of one, for no test
    asks how wide a gap is.
    """
    numbers, rows = causes.dense(origin, number)
    first_origin, first_number = origin[rows], number[rows]
    follows = (first_origin[1:] == first_origin[:-1]) & (first_number[1:] == first_number[:-1] + 1)
    step = np.where(follows, 1, 2)
    is_new = np.ones(len(rows), np.bool_)
    is_new[1:] = first_origin[1:] != first_origin[:-1]
    total = np.concatenate(([0], np.cumsum(step)))
    first = np.minimum(first_number[is_new], 2)
    rank = total - np.repeat(total[is_new] - first, np.diff(np.append(np.flatnonzero(is_new), len(rows))))
    return np.asarray(rank[numbers])


def _evidence(incarnations: Collection[_IncarnationRows], members: set[int], names: Mapping[int, str]) -> Evidence:
    gaps = [incarnation.name for incarnation in incarnations if not _is_gapless(incarnation.records)]
    cut_short = [incarnation.name for incarnation in incarnations if incarnation.is_cut_short]
    full = sum(incarnation.is_full for incarnation in incarnations)
    silent = sorted(members - {incarnation.name.member for incarnation in incarnations})
    in_minority = [
        incarnation.name
        for incarnation in incarnations
        if incarnation.is_stopped and _is_in_minority(incarnation.records)
    ]
    undrained = undrained_reason(cut_short, full, names, in_minority)
    return Evidence(gap=gap_reason(gaps, silent, names), undrained=undrained)


def _is_in_minority(records: Columns) -> bool:
    """Whether its last word about that says so."""
    told = records.detail[records.event == Event.MINORITY]
    return len(told) > 0 and bool(told[-1] == 1)


def _is_gapless(records: Columns) -> bool:
    return bool(records.event[0] == Event.START and np.all(np.diff(records.record) == 1))
