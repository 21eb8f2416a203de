"""Checks of the properties over histories of any size: tasks in NumPy read each record a fixed number of times.

docs/properties.md defines the properties, `analysis.checks.oracle` judges them by definition, and a test
compares the two. All records of an incarnation are brought together once (`analysis.checks.incarnations`), then all
steps of a message (`analysis.checks.by_message`); sums and the earliest violation remain. Causal order compares pairs,
in one task (`analysis.checks.causes`). Views, and total order in a run with views, are judged in another task
(`analysis.checks.synchrony`). The places of a witness are looked up only when there is a violation (`Lookup`).
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from analysis.checks import by_message, causes, chains, synchrony
from analysis.checks.by_message import BY_MESSAGE, NEVER, PropertyCounts, RunFacts, Span, judged, merged
from analysis.checks.incarnations import Walk, Walked, number_of
from analysis.checks.properties import (
    ADDRESSED_TO_OBJECTS,
    DELIVERY_PROPERTIES,
    INVENTED,
    STANDING,
    TOO_EARLY,
    VIEW_PROPERTIES,
    Evidence,
    Finding,
    Incarnation,
    Place,
    Property,
    Tally,
    Witness,
    altered,
    gap_reason,
    judge,
    order_witness,
    undrained_reason,
)
from analysis.checks.sequences import NO_MESSAGE, NOT_COMPARED, STEPS, IncarnationFacts, Step, decode, decode_payload
from analysis.checks.views import present_at_the_end
from collector.records import Level


def run_facts(
    incarnations: Collection[IncarnationFacts], *, members: Collection[int], names: Mapping[int, str]
) -> RunFacts:
    """Judged level, full members and completeness of the records of a run. `members`: all that it should have."""
    seen = [one.incarnation.member for one in incarnations]
    stops = {one.incarnation: one.stop_detail for one in incarnations if one.stop_detail >= 0}
    departed = frozenset(one.incarnation for one in incarnations if one.has_ended)
    full = sorted(
        incarnation for incarnation in stops if not incarnation.is_joiner and seen.count(incarnation.member) == 1
    )
    gaps = [one.incarnation for one in incarnations if not one.is_gapless]
    cut_short = [incarnation for incarnation, detail in stops.items() if detail == 0]
    in_minority = [one.incarnation for one in incarnations if one.incarnation in stops and one.views.is_in_minority]
    silent = sorted(set(members) - set(seen))
    is_for_objects = any(one.is_for_objects for one in incarnations)
    mistakes = {one.incarnation: one.mistake or ("" if is_for_objects else one.turn) for one in incarnations}
    return RunFacts(
        level=_judged_level(incarnations),
        full=tuple(full),
        present={
            name: one.record
            for name, one in present_at_the_end(
                {one.incarnation: one.views for one in incarnations if one.incarnation in stops}
            ).items()
        },
        ended=departed.union(stops),
        departed=departed,
        has_views=any(one.views.installations for one in incarnations),
        crashed=frozenset(one.incarnation for one in incarnations if one.end_detail < 0),
        missing_records=sum(one.missing_records for one in incarnations),
        mistakes={incarnation: mistake for incarnation, mistake in mistakes.items() if mistake},
        evidence=Evidence(
            gap=gap_reason(gaps, silent, names),
            undrained=undrained_reason(cut_short, len(full), names, in_minority),
            addressed=ADDRESSED_TO_OBJECTS if is_for_objects else "",
        ),
    )


def no_findings(facts: RunFacts) -> dict[Property, Finding]:
    """Findings of a run without any record."""
    return {kind: judge(kind, Tally(0, 0), facts.evidence) for kind in DELIVERY_PROPERTIES}


def check_with(walk: Walk, facts: RunFacts) -> dict[Property, Finding]:
    """Judge every property of deliveries of a run whose facts are known, and of views if there are any."""
    # Causal order takes longest, so it starts first.
    views = [_Task.VIEWS] if facts.has_views else []
    tasks: list[_Task | Span] = [_Task.CAUSAL, *views, *by_message.spans(walk.incarnations, walk.workers.parallel)]
    found = walk.workers.run(partial(_run_task, walk.incarnations, facts), tasks)
    totals = by_message.together(one for one in found if not isinstance(one, _Causal | dict))
    early = next(one for one in found if isinstance(one, _Causal))
    tallies = _tallies(totals, early, Lookup(walk.incarnations, facts))
    tallies |= next((one for one in found if isinstance(one, dict)), {})
    kinds = (*DELIVERY_PROPERTIES, *(VIEW_PROPERTIES if facts.has_views else ()))
    return {kind: judge(kind, tallies[kind], facts.evidence) for kind in kinds}


def without_views(facts: RunFacts) -> dict[Property, Finding]:
    """Findings on the properties of views in a run without views."""
    return {kind: judge(kind, tally, facts.evidence) for kind, tally in synchrony.without_views().items()}


def _judged_level(incarnations: Collection[IncarnationFacts]) -> int:
    """Highest level of any delivery, at least AGREED in a run with views. So optimistic deliveries are judged only in a
    run that has no others.
    """
    level = max((one.level for one in incarnations if one.level >= 0), default=int(Level.AGREED))
    has_views = any(one.views.installations for one in incarnations)
    return max(level, int(Level.AGREED)) if has_views else level


class _Task(enum.Enum):
    """Checks that are one task each."""

    CAUSAL = "causal"
    VIEWS = "views"


class _Causal(NamedTuple):
    """Number of deliveries before a cause, and the earliest of them."""

    violations: int
    incarnation: Incarnation
    cause: int
    message: int


_NONE_EARLY = _Causal(0, Incarnation(0, 0), 0, 0)


def _run_task(
    incarnations: Sequence[Walked], facts: RunFacts, task: _Task | Span
) -> PropertyCounts | _Causal | dict[Property, Tally] | None:
    """Result of one task: of the messages of a span, or of a check that is not divided."""
    if task is _Task.CAUSAL:
        return _causal(incarnations, facts)
    return _of_views(incarnations, facts) if task is _Task.VIEWS else by_message.totals(incarnations, facts, task)


def _of_views(incarnations: Sequence[Walked], facts: RunFacts) -> dict[Property, Tally]:
    """Tallies of the properties of views; takes 24 bytes for each first delivery."""
    run = synchrony.Run(
        incarnations=[_by_view(incarnation, facts) for incarnation in incarnations],
        origins=lambda messages: messages >> 32 & 0xFFFFFFFF,
        decode=decode,
        is_uniform=facts.level == Level.FINAL,
    )
    return synchrony.tallies(run)


def _by_view(incarnation: Walked, facts: RunFacts) -> synchrony.IncarnationDeliveries:
    columns = incarnation.columns("step", "level", "message", "record", "at_ns", "is_undone", "is_repeat")
    wanted = judged(columns, incarnation.name, facts)
    firsts = wanted.deliveries[~columns["is_repeat"][wanted.deliveries]]
    return synchrony.IncarnationDeliveries(
        name=incarnation.name,
        views=incarnation.facts.views,
        ends_in_order=incarnation.name in facts.ended,
        record=columns["record"][firsts],
        message=columns["message"][firsts],
        at_ns=columns["at_ns"][firsts],
    )


def _causal(incarnations: Sequence[Walked], facts: RunFacts) -> _Causal:
    """Causal order of the whole run: 25 bytes for each submission and first delivery, and 8 for each pair of
    messages.
    """
    history = _history(incarnations, facts)
    joiners = [number for number, incarnation in enumerate(incarnations) if incarnation.name.is_joiner]
    found = causes.check(history, history.codes[joiners].tolist())
    if (early := found.earliest) is None:
        return _NONE_EARLY
    message, cause = (int(history.messages[number]) for number in (early.message, early.cause))
    return _Causal(found.violations, incarnations[early.incarnation].name, cause, message)


def _history(incarnations: Sequence[Walked], facts: RunFacts) -> causes.History:
    chunks = [_chunk(incarnation, facts) for incarnation in incarnations]
    messages = merged(chunk.message for chunk in chunks)
    codes = np.array([number_of(incarnation.name) for incarnation in incarnations], np.int64)
    return causes.History([causes.in_order(chunk, messages) for chunk in chunks], codes, messages)


def _chunk(incarnation: Walked, facts: RunFacts) -> causes.Chunk:
    columns = incarnation.columns("step", "level", "message", "record", "at_ns", "is_undone", "is_repeat")
    wanted = judged(columns, incarnation.name, facts)
    firsts = wanted.deliveries[~columns["is_repeat"][wanted.deliveries]]
    rows = np.concatenate([wanted.submissions, firsts])
    return causes.Chunk(
        record=columns["record"][rows],
        message=columns["message"][rows],
        is_submission=np.arange(len(rows)) < len(wanted.submissions),
        at_ns=columns["at_ns"][rows],
    )


def _tallies(totals: PropertyCounts | None, early: _Causal, lookup: Lookup) -> dict[Property, Tally]:
    """Tallies with witnesses. `totals` is None for a run without submissions and deliveries."""
    if totals is None:
        return dict.fromkeys(DELIVERY_PROPERTIES, Tally(0, 0))
    first = {kind: count.first.message for kind, count in totals.counts.items() if count.first is not None}
    causal = (early.message, early.cause) if early.violations else ()
    lookup.fetch({*first.values(), *causal})
    lookup.fetch_neighbours(first.get(Property.FIFO), first.get(Property.TOTAL_ORDER))
    tallies: dict[Property, Tally] = {}
    for kind in BY_MESSAGE:
        count = totals.counts[kind]
        witness = lookup.witness(kind, first[kind]) if kind in first else None
        tallies[kind] = Tally(count.checked, count.violations, witness)
    witness = lookup.causal_witness(early.incarnation, early.cause, early.message) if early.violations else None
    order = tallies[Property.TOTAL_ORDER]
    tallies[Property.TOTAL_ORDER] = order if order.violations else lookup.chains(order.checked)
    tallies[Property.CAUSAL] = Tally(totals.counts[Property.FIFO].checked, early.violations, witness)
    return tallies


class Seen(NamedTuple):
    """One judged step; columns as in sequences.STEPS."""

    incarnation: Incarnation
    is_full: bool
    step: Step
    message: int
    record: int
    at_ns: int
    position: int
    predecessor: int | None
    """None: not compared."""
    previous: int
    is_repeat: bool
    is_out_of_order: bool
    payload: int


class Lookup:
    """Steps by message code (sequences.encode), fetched in bulk."""

    def __init__(self, incarnations: Sequence[Walked], facts: RunFacts) -> None:
        self._incarnations = incarnations
        self._facts = facts
        self._found: dict[int, list[Seen]] = defaultdict(list)
        self._known: set[int] = set()

    def fetch(self, wanted: Iterable[int]) -> None:
        """Look up these messages in one pass."""
        asked = sorted(set(wanted) - self._known)
        if not asked:
            return
        self._known |= set(asked)
        for incarnation in self._incarnations:
            for row in _seen(incarnation, self._facts, asked):
                self._found[row.message].append(row)

    def fetch_neighbours(self, unordered: int | None, disputed: int | None) -> None:
        """Look up the messages before `unordered`, which is out of its origin's order, and the predecessors of
        `disputed`, which has two (None: no such message).
        """
        neighbours: set[int] = set()
        if unordered is not None:
            neighbours.add(self._out_of_order(unordered).previous)
        if disputed is not None:
            neighbours |= {row.predecessor for row in self._sides(disputed) if row.predecessor is not None}
        self.fetch(neighbours - {NO_MESSAGE})

    def chains(self, checked: int) -> Tally:
        """Tally of total order where each message has one predecessor."""
        names = {one.name for one in self._incarnations} - self._facts.departed
        if self._facts.has_views or not any(one.is_joiner for one in names):
            return Tally(checked, 0)
        first = {one.name: code for one in self._incarnations if one.name in names for code in self._first(one)}
        self.fetch(first.values())
        codes = {decode(code): code for code in first.values()}
        named = {one: decode(code) for one, code in first.items()}
        return chains.endless(checked, named, lambda one, message: self._place(one, codes[message]))

    def _first(self, incarnation: Walked) -> list[int]:
        """The first delivery of the incarnation, if there is one."""
        columns = incarnation.columns("step", "level", "message", "is_undone")
        rows = judged(columns, incarnation.name, self._facts).deliveries[:1]
        return [int(code) for code in columns["message"][rows]]

    def witness(self, kind: Property, message: int) -> Witness:
        """Witness of this message's violation of the property."""
        tellers: dict[Property, Callable[[int], Witness]] = {
            Property.VALIDITY: self._validity,
            Property.AGREEMENT: lambda message: self._agreement(message, uniform=False),
            Property.UNIFORM_AGREEMENT: lambda message: self._agreement(message, uniform=True),
            Property.INTEGRITY: self._integrity,
            Property.FIFO: self._fifo,
            Property.TOTAL_ORDER: self._total_order,
        }
        return tellers[kind](message)

    def causal_witness(self, incarnation: Incarnation, cause: int, message: int) -> Witness:
        """Witness of a member that delivers `message` without having delivered `cause`."""
        places = (self._place(incarnation, cause), self._place(incarnation, message))
        return Witness(what="delivered before its cause", places=places)

    def _validity(self, message: int) -> Witness:
        identity = decode(message)
        home = Incarnation(identity.origin, identity.incarnation)
        return Witness(what="its own submission is not delivered", places=(Place(home, identity, None, None),))

    def _agreement(self, message: int, *, uniform: bool) -> Witness:
        rows, present = self._deliveries(message), self._facts.present
        late = [row for row in rows if row.record > present.get(row.incarnation, NEVER)]
        obliging = [row for row in rows if uniform or row.is_full]
        shown = [row for row in self._found[message] if row.step == Step.STANDING]
        standing = [row for row in sorted(shown, key=_when) if self._place(row.incarnation, message).position is None]
        if not obliging and not late:
            return Witness(what=STANDING, places=(self._place(standing[0].incarnation, message),))
        lacking = []
        if obliging:
            lacking += [one for one in self._facts.full if self._place(one, message).position is None]
        if late:
            lacking += sorted(present.keys() - {row.incarnation for row in late})
        lacking += [row.incarnation for row in standing]
        first = min((*obliging, *late), key=_when)
        return Witness(what="not everybody delivers it", places=(_place(first), self._place(lacking[0], message)))

    def _integrity(self, message: int) -> Witness:
        rows = sorted(self._found[message], key=_when)
        submission = next((row for row in rows if row.step == Step.SUBMISSION), None)
        in_judged = {(row.incarnation, row.record) for row in rows if row.step == Step.DELIVERY}
        found: list[tuple[Seen, str]] = []
        for row in rows:
            is_other = row.step == Step.HANDED and (row.incarnation, row.record) not in in_judged
            if row.step == Step.BROKEN_PROMISE:
                found.append((row, "undone although its delivery was promised"))
            elif row.step == Step.DELIVERY and row.is_repeat:
                found.append((row, "delivered twice"))
            elif (row.step == Step.DELIVERY or is_other) and submission is None:
                found.append((row, INVENTED))
            elif (row.step == Step.DELIVERY or is_other) and submission is not None and row.at_ns < submission.at_ns:
                found.append((row, TOO_EARLY))
            elif row.step == Step.HANDED and submission is not None and row.payload != submission.payload:
                found.append((row, altered(decode_payload(submission.payload), decode_payload(row.payload))))
        row, what = found[0]
        return Witness(what=what, places=(_place(row),))

    def _fifo(self, message: int) -> Witness:
        row = self._out_of_order(message)
        places = [_place(row)]
        if row.previous != NO_MESSAGE:
            places.insert(0, self._place(row.incarnation, row.previous))
        return Witness(what="delivered out of its origin's order", places=tuple(places))

    def _total_order(self, message: int) -> Witness:
        one, other = self._sides(message)
        sides = [(row.incarnation, None if row.predecessor == NO_MESSAGE else row.predecessor) for row in (one, other)]
        codes = {decode(code): code for _, code in sides if code is not None} | {decode(message): message}
        (here, x), (there, y) = sides
        return order_witness(
            decode(message),
            (here, None if x is None else decode(x)),
            (there, None if y is None else decode(y)),
            lambda incarnation, identity: self._place(incarnation, codes[identity]),
        )

    def _deliveries(self, message: int) -> list[Seen]:
        """First deliveries, by time."""
        rows = [row for row in self._found[message] if row.step == Step.DELIVERY and not row.is_repeat]
        return sorted(rows, key=_when)

    def _out_of_order(self, message: int) -> Seen:
        return next(row for row in self._deliveries(message) if row.is_out_of_order)

    def _sides(self, message: int) -> tuple[Seen, Seen]:
        """Two deliveries of one message with different predecessors."""
        compared = [row for row in self._deliveries(message) if row.predecessor is not None]
        other = next(row for row in compared if row.predecessor != compared[0].predecessor)
        return compared[0], other

    def _place(self, incarnation: Incarnation, message: int) -> Place:
        for row in self._deliveries(message):
            if row.incarnation == incarnation:
                return _place(row)
        return Place(incarnation, decode(message), None, None)


def _seen(incarnation: Walked, facts: RunFacts, asked: Sequence[int]) -> Iterator[Seen]:
    """Judged steps of an incarnation about these messages."""
    columns = incarnation.columns(*STEPS.names)
    kinds = (Step.SUBMISSION, Step.DELIVERY, Step.STANDING, Step.BROKEN_PROMISE, Step.HANDED)
    has_order = incarnation.name not in facts.departed
    for kind, rows in zip(kinds, judged(columns, incarnation.name, facts), strict=True):
        for row in rows[np.isin(columns["message"][rows], asked)].tolist():
            fields = {name: columns[name][row].item() for name in Seen._fields if name in columns}
            compared = has_order and kind is Step.DELIVERY and fields["predecessor"] != NOT_COMPARED
            fields |= {"step": kind, "predecessor": fields["predecessor"] if compared else None}
            yield Seen(incarnation=incarnation.name, is_full=incarnation.name in facts.full, **fields)


def _when(row: Seen) -> tuple[int, Incarnation, int]:
    return row.at_ns, row.incarnation, row.record


def _place(row: Seen) -> Place:
    return Place(row.incarnation, decode(row.message), row.position, row.at_ns)
