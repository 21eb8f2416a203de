"""The checks that take one pass over the messages: deliveries, predecessors and violations of each, in NumPy.

A member has at most one first delivery of a message. So the columns of a table of messages are updated incarnation by
incarnation, without any grouping. Messages are processed in spans, in sequence or in parallel; a span needs 152 bytes
for each message, and the steps of one incarnation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.checks.incarnations import Walked
from analysis.checks.properties import DELIVERY_PROPERTIES, Evidence, Incarnation, Property, is_judged
from analysis.checks.sequences import NOT_COMPARED, Step
from analysis.checks.synchrony import is_in
from collector.records import Level

BY_MESSAGE = tuple(kind for kind in DELIVERY_PROPERTIES if kind is not Property.CAUSAL)
"""Properties decided by one pass over the messages."""
MESSAGES_AT_ONCE = 1 << 20

Ints = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]

NEVER = np.iinfo(np.int64).max
_LEAST, _GREATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Facts of a run that are known before its deliveries are read."""

    level: int
    """The judged level: the highest of all deliveries, at least AGREED in a run with views."""
    full: tuple[Incarnation, ...]
    """Members that ran from start to end."""
    present: Mapping[Incarnation, int]
    """Incarnations that are present at the end, and the record number of the last installation of each."""
    ended: frozenset[Incarnation]
    """Incarnations whose end is on record."""
    departed: frozenset[Incarnation]
    """Those of them that the others excluded, or that left."""
    has_views: bool
    """Whether any incarnation records a view: then total order is judged view by view, not here."""
    crashed: frozenset[Incarnation]
    """Incarnations whose end is not on record."""
    missing_records: int
    mistakes: Mapping[Incarnation, str]
    """Mistakes in records, by incarnation."""
    evidence: Evidence


class Span(NamedTuple):
    """Messages whose code is at least `low` and below `high`; None: no limit."""

    low: int | None
    high: int | None

    def mask(self, message: Ints) -> Mask:
        within = np.ones(len(message), np.bool_)
        if self.low is not None:
            within &= message >= self.low
        if self.high is not None:
            within &= message < self.high
        return within


class First(NamedTuple):
    """Earliest violation: its time and message."""

    at_ns: int
    message: int


class Count(NamedTuple):
    """Counts of one property. `first` is None without violations."""

    checked: int
    violations: int
    first: First | None


class PropertyCounts(NamedTuple):
    """Counts of each property in BY_MESSAGE. A class, because results of other tasks are mappings."""

    counts: Mapping[Property, Count]


class Judged(NamedTuple):
    """Steps of an incarnation that count at the judged level, as rows of its steps."""

    submissions: Rows
    deliveries: Rows
    """Deliveries that were not undone."""
    standing: Rows
    """Optimistic deliveries, never undone, of a full member or an incarnation that is present at the end, where a
    higher level is judged.
    """
    promises: Rows
    """Broken promises."""
    all_deliveries: Rows
    """All deliveries, at any level, undone or not."""


def judged(columns: Mapping[str, npt.NDArray[np.generic]], incarnation: Incarnation, facts: RunFacts) -> Judged:
    """`columns`: `step`, `level`, `is_undone` and maybe more."""
    step, level, none = columns["step"], columns["level"], np.empty(0, np.intp)
    is_delivery = np.asarray(step == Step.DELIVERY)
    is_kept = is_delivery & ~columns["is_undone"].astype(np.bool_)
    is_wanted = np.asarray(is_judged(level, facts.level))
    is_bound = incarnation in facts.full or incarnation in facts.present
    has_standing = is_bound and facts.level > Level.OPTIMISTIC
    return Judged(
        submissions=np.flatnonzero(step == Step.SUBMISSION),
        deliveries=np.flatnonzero(is_kept & is_wanted),
        standing=np.flatnonzero(is_kept & (level == Level.OPTIMISTIC)) if has_standing else none,
        promises=np.flatnonzero(step == Step.BROKEN_PROMISE),
        all_deliveries=np.flatnonzero(is_delivery),
    )


def spans(incarnations: Collection[Walked], parallel: int) -> list[Span]:
    """Spans of all messages with about equal numbers of steps: at least `parallel` spans, more if needed to keep the
    table small.
    """
    rows = sum(incarnation.rows for incarnation in incarnations)
    most = max((incarnation.rows for incarnation in incarnations), default=0)
    count = max(parallel, -(-most // MESSAGES_AT_ONCE))
    sample = np.sort(np.array([code for incarnation in incarnations for code in incarnation.sample], np.int64))
    if not rows or count == 1:
        return [Span(None, None)]
    cuts = sorted({int(sample[len(sample) * place // count]) for place in range(1, count)})
    return [Span(low, high) for low, high in zip([None, *cuts], [*cuts, None], strict=True)]


def totals(incarnations: Sequence[Walked], facts: RunFacts, span: Span) -> PropertyCounts | None:
    """Counts of each check over the messages of a span; None: there are no messages."""
    table = _Table(merged(_messages(incarnation, facts, span) for incarnation in incarnations))
    if not len(table.message):
        return None
    for incarnation in incarnations:
        table.submit(incarnation.name, _Submitted.of(incarnation, span), facts)
    for incarnation in incarnations:
        table.add(incarnation.name, _Seen.of(incarnation, facts, span), facts)
    return table.totals(facts)


def together(parts: Iterable[PropertyCounts | None]) -> PropertyCounts | None:
    """Sum of the totals of several spans; None: there are no messages."""
    found = [part for part in parts if part is not None]
    if not found:
        return None
    return PropertyCounts({kind: _added([part.counts[kind] for part in found]) for kind in BY_MESSAGE})


def merged(parts: Iterable[Ints]) -> Ints:
    """Distinct values, ascending. Most parts have nothing new, so each is looked up in those before."""
    known = np.empty(0, np.int64)
    for part in parts:
        fresh = part[~is_in(part, known)]
        if len(fresh):
            known = np.union1d(known, fresh)
    return known


class _Submitted(NamedTuple):
    """The messages of a span that an incarnation submitted."""

    submissions: tuple[Ints, Ints]
    """Messages and times."""
    payload: Ints

    @classmethod
    def of(cls, incarnation: Walked, span: Span) -> _Submitted:
        columns = incarnation.columns("step", "message", "at_ns", "payload")
        rows = np.flatnonzero((columns["step"] == Step.SUBMISSION) & span.mask(columns["message"]))
        return cls(submissions=(columns["message"][rows], columns["at_ns"][rows]), payload=columns["payload"][rows])


class _Seen(NamedTuple):
    """The messages of a span that an incarnation delivered."""

    firsts: tuple[Ints, Ints]
    """Messages and times."""
    predecessor: Ints
    """Predecessors of the first deliveries."""
    is_at_the_end: Mask
    """First deliveries after the last installation, if the incarnation is present at the end."""
    is_out_of_order: Mask
    repeats: tuple[Ints, Ints]
    standing: tuple[Ints, Ints]
    promises: tuple[Ints, Ints]
    all_deliveries: tuple[Ints, Ints]
    payload: Ints
    """Payloads of `all_deliveries`."""
    is_judged: Mask
    """Those of `all_deliveries` that are judged."""

    @classmethod
    def of(cls, incarnation: Walked, facts: RunFacts, span: Span) -> _Seen:
        names = ("step", "level", "message", "at_ns", "predecessor", "is_undone", "is_repeat", "is_out_of_order")
        columns = incarnation.columns(*names, "payload", "record")
        message, at_ns = columns["message"], columns["at_ns"]
        wanted = Judged(*(rows[span.mask(message[rows])] for rows in judged(columns, incarnation.name, facts)))
        is_repeat = columns["is_repeat"][wanted.deliveries]
        firsts, repeats = wanted.deliveries[~is_repeat], wanted.deliveries[is_repeat]
        return cls(
            firsts=(message[firsts], at_ns[firsts]),
            predecessor=columns["predecessor"][firsts],
            is_at_the_end=columns["record"][firsts] > facts.present.get(incarnation.name, NEVER),
            is_out_of_order=columns["is_out_of_order"][firsts],
            repeats=(message[repeats], at_ns[repeats]),
            standing=(message[wanted.standing], at_ns[wanted.standing]),
            promises=(message[wanted.promises], at_ns[wanted.promises]),
            all_deliveries=(message[wanted.all_deliveries], at_ns[wanted.all_deliveries]),
            payload=columns["payload"][wanted.all_deliveries],
            is_judged=np.isin(wanted.all_deliveries, wanted.deliveries),
        )


def _messages(incarnation: Walked, facts: RunFacts, span: Span) -> Ints:
    """Messages of a span with a step of this incarnation that counts."""
    columns = incarnation.columns("step", "level", "message", "is_undone")
    message = columns["message"][np.concatenate(judged(columns, incarnation.name, facts))]
    return np.asarray(message[span.mask(message)])


class _Table:
    """Table of all messages of a span. Times are NEVER where there is none."""

    def __init__(self, message: Ints) -> None:
        count = len(message)
        self.message = message
        self.submit_ns, self.first_ns, self.full_ns, self.standing_ns = (np.full(count, NEVER) for _ in range(4))
        self.late_ns = np.full(count, NEVER)
        self.late = np.zeros(count, np.int32)
        self.repeat_ns, self.promise_ns, self.unordered_ns, self.altered_ns = (np.full(count, NEVER) for _ in range(4))
        self.payload = np.zeros(count, np.int64)
        self.is_owed, self.is_at_home = (np.zeros(count, np.bool_) for _ in range(2))
        self.firsts, self.firsts_in_order, self.full_deliveries = (np.zeros(count, np.int32) for _ in range(3))
        self.repeats, self.promises, self.unordered, self.altered = (np.zeros(count, np.int32) for _ in range(4))
        self.least, self.greatest = np.full(count, _GREATEST), np.full(count, _LEAST)

    def submit(self, incarnation: Incarnation, submitted: _Submitted, facts: RunFacts) -> None:
        """Add the submissions of one incarnation. Those of all incarnations come before any delivery."""
        rows, at_ns = self._rows(submitted.submissions)
        self.submit_ns[rows] = at_ns
        self.payload[rows] = submitted.payload
        self.is_owed[rows] = incarnation in facts.full or incarnation in facts.present

    def add(self, incarnation: Incarnation, seen: _Seen, facts: RunFacts) -> None:
        """Add the deliveries of one incarnation."""
        is_full = incarnation in facts.full
        rows, at_ns = self._rows(seen.firsts)
        self._note_standing(seen.standing, rows)
        self.firsts[rows] += 1
        self.first_ns[rows] = np.minimum(self.first_ns[rows], at_ns)
        self.is_at_home[rows] |= seen.firsts[0] >> 32 & 0xFFFFFFFF == incarnation.code
        if is_full:
            self.full_deliveries[rows] += 1
            self.full_ns[rows] = np.minimum(self.full_ns[rows], at_ns)
        late, late_ns = rows[seen.is_at_the_end], at_ns[seen.is_at_the_end]
        self.late[late] += 1
        self.late_ns[late] = np.minimum(self.late_ns[late], late_ns)
        if incarnation not in facts.departed and not facts.has_views:
            self.firsts_in_order[rows] += 1
            self._compare(rows, seen.predecessor)
        _note(self.unordered, self.unordered_ns, rows[seen.is_out_of_order], at_ns[seen.is_out_of_order])
        _note(self.repeats, self.repeat_ns, *self._rows(seen.repeats))
        _note(self.promises, self.promise_ns, *self._rows(seen.promises))
        rows, at_ns = self._rows(seen.all_deliveries)
        is_altered = (self.submit_ns[rows] != NEVER) & (self.payload[rows] != seen.payload)
        is_altered |= ~seen.is_judged & (at_ns < self.submit_ns[rows])
        _note(self.altered, self.altered_ns, rows[is_altered], at_ns[is_altered])

    def _note_standing(self, standing: tuple[Ints, Ints], delivered: Rows) -> None:
        """Keep the earliest of the standing optimistic deliveries of messages that the incarnation does not deliver for
        good.
        """
        if len(standing[0]):
            rows, at_ns = self._rows(standing)
            is_final = np.zeros(len(self.message), np.bool_)
            is_final[delivered] = True
            np.minimum.at(self.standing_ns, rows[~is_final[rows]], at_ns[~is_final[rows]])

    def totals(self, facts: RunFacts) -> PropertyCounts:
        firsts, first_ns = self.firsts.astype(np.int64), self.first_ns
        is_delivered, is_submitted = first_ns != NEVER, self.submit_ns != NEVER
        obliged_ns = np.where(is_delivered, first_ns, self.standing_ns)
        by_peers_ns = np.minimum(self.full_ns, self.late_ns)
        obliged_by_peers_ns = np.where(by_peers_ns != NEVER, by_peers_ns, self.standing_ns)
        is_missed = self.full_deliveries < len(facts.full)
        is_invented = is_delivered & ~is_submitted
        is_early = is_delivered & is_submitted & (first_ns < self.submit_ns)
        wrong = self.repeats + self.promises + self.altered + is_early + np.where(is_invented, firsts, 0)
        wrong_ns = np.where(is_invented | is_early, first_ns, NEVER)
        for when in (self.repeat_ns, self.promise_ns, self.altered_ns):
            wrong_ns = np.minimum(wrong_ns, when)
        is_unmet, is_disputed = self.is_owed & ~self.is_at_home, self.least < self.greatest
        is_uneven = (self.late > 0) & (self.late < len(facts.present)) | (self.standing_ns != NEVER)
        is_missed_by_peers = is_missed & (self.full_ns != NEVER) | is_uneven
        is_missed_by_some = is_missed & is_delivered | is_uneven
        counts = {
            Property.VALIDITY: self._count(self.is_owed.sum(), is_unmet, self.submit_ns),
            Property.AGREEMENT: self._count(
                (obliged_by_peers_ns != NEVER).sum(), is_missed_by_peers, obliged_by_peers_ns
            ),
            Property.UNIFORM_AGREEMENT: self._count((obliged_ns != NEVER).sum(), is_missed_by_some, obliged_ns),
            Property.INTEGRITY: self._count(firsts.sum() + self.repeats.sum(), wrong, wrong_ns),
            Property.FIFO: self._count(firsts.sum(), self.unordered, self.unordered_ns),
            Property.TOTAL_ORDER: self._count(self.firsts_in_order.sum(), is_disputed, first_ns),
        }
        return PropertyCounts(counts)

    def _rows(self, deliveries: tuple[Ints, Ints]) -> tuple[Rows, Ints]:
        """Rows of these messages, and their times."""
        return np.searchsorted(self.message, deliveries[0]), deliveries[1]

    def _compare(self, rows: Rows, predecessor: Ints) -> None:
        is_compared = predecessor != NOT_COMPARED
        if not is_compared.all():
            rows, predecessor = rows[is_compared], predecessor[is_compared]
        self.least[rows] = np.minimum(self.least[rows], predecessor)
        self.greatest[rows] = np.maximum(self.greatest[rows], predecessor)

    def _count(self, checked: int, violations: npt.NDArray[np.generic], when: Ints) -> Count:
        """Sum of the violations, and the earliest. `violations` and `when` hold a value for each message."""
        wrong = np.flatnonzero(violations)
        if not len(wrong):
            return Count(int(checked), 0, None)
        first = wrong[np.lexsort((self.message[wrong], when[wrong]))[0]]
        amount = int(violations[wrong].astype(np.int64).sum())
        return Count(int(checked), amount, First(int(when[first]), int(self.message[first])))


def _note(counts: Counts, times: Ints, rows: Rows, at_ns: Ints) -> None:
    """Count violations at rows, and keep the earliest time of each. A row may occur more than once."""
    if len(rows):
        np.add.at(counts, rows, 1)
        np.minimum.at(times, rows, at_ns)


def _added(parts: Sequence[Count]) -> Count:
    first = [part.first for part in parts if part.first is not None]
    return Count(sum(part.checked for part in parts), sum(part.violations for part in parts), min(first, default=None))
