"""The properties over histories of any size: each record looked at a fixed number of times, by tasks in NumPy.

`analysis.checks.properties` defines what is judged and `analysis.checks.oracle` judges the same by definition; a
test holds the two
together. All records of one incarnation meet once (`analysis.checks.incarnations`), all steps of one message meet once
(`analysis.checks.by_message`); what is left are sums and the earliest violation. Causal order alone looks at pairs;
it goes
to `analysis.checks.causes`, in one task. So do views, and with them total order in a run that has any, to
`analysis.checks.synchrony`. What a witness shows is looked up only when there is one (`analysis.checks.evidence`).
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from analysis.checks import by_message, causes, synchrony
from analysis.checks.by_message import BY_MESSAGE, RunFacts, Span, Totals, judged, merged
from analysis.checks.evidence import Lookup
from analysis.checks.incarnations import Life, Walk, number_of, walked
from analysis.checks.properties import (
    ADDRESSED_TO_OBJECTS,
    DELIVERY_PROPERTIES,
    LOST_SUBMISSION,
    VIEW_PROPERTIES,
    Evidence,
    Finding,
    Incarnation,
    Property,
    Tally,
    gap_reason,
    judge,
    undrained_reason,
)
from analysis.checks.sequences import Told, decode
from analysis.engine.staging import Staging
from analysis.engine.tasks import Here, Workers
from collector.records import Level, OverReason


def check(
    trace: Path,
    *,
    members: Collection[int],
    names: Mapping[int, str] | None = None,
    scratch: Path,
    workers: Workers | None = None,
) -> dict[Property, Finding]:
    """Judge every property of deliveries, and of views if there are any, of the run whose records are the table
    `trace` (schema.TRACE). `members`: all that it should have. `scratch`: an empty directory, which is left with the
    tables `messages` and `deliveries`.
    """
    with walked(trace, Staging(scratch), workers or Here(), ()) as walk:
        return check_with(walk, run_facts(walk.lives, members=members, names=names))


def run_facts(lives: Collection[Life], *, members: Collection[int], names: Mapping[int, str] | None = None) -> RunFacts:
    """Judged level, full members and completeness of the records of a run."""
    return _facts([life.told for life in lives], members, names or {})


def no_facts(members: Collection[int], names: Mapping[int, str]) -> RunFacts:
    """Of a run without any record."""
    return _facts([], members, names)


def no_findings(facts: RunFacts) -> dict[Property, Finding]:
    """Of a run without any record."""
    return {kind: judge(kind, Tally(0, 0), facts.evidence) for kind in DELIVERY_PROPERTIES}


def check_with(walk: Walk, facts: RunFacts) -> dict[Property, Finding]:
    """Judge every property of deliveries of a run whose facts are known, and of views if there are any."""
    # Causal order takes longest, so it begins first.
    views = [_Task.VIEWS] if facts.has_views else []
    tasks: list[_Task | Span] = [_Task.CAUSAL, *views, *by_message.spans(walk.lives, walk.workers.parallel)]
    found = walk.workers.run(partial(_weigh, walk.lives, facts), tasks)
    totals = by_message.together(one for one in found if not isinstance(one, _Causal | dict))
    early = next(one for one in found if isinstance(one, _Causal))
    tallies = _tallies(totals, early, Lookup(walk.lives, facts))
    tallies |= next((one for one in found if isinstance(one, dict)), {})
    kinds = (*DELIVERY_PROPERTIES, *(VIEW_PROPERTIES if facts.has_views else ()))
    return {kind: judge(kind, tallies[kind], facts.evidence) for kind in kinds}


def without_views(facts: RunFacts) -> dict[Property, Finding]:
    """What there is to say of the properties of views where there are none."""
    return {kind: judge(kind, tally, facts.evidence) for kind, tally in synchrony.without_views().items()}


def _facts(lives: Collection[Told], expected: Collection[int], names: Mapping[int, str]) -> RunFacts:
    seen = [told.life.member for told in lives]
    stops = {told.life: told.stop_detail for told in lives if told.stop_detail >= 0}
    over = frozenset(told.life for told in lives if told.is_over)
    full = sorted(life for life in stops if not life.is_joiner and seen.count(life.member) == 1)
    gaps = [told.life for told in lives if not told.is_gapless]
    cut_short = [life for life, detail in stops.items() if detail == 0]
    in_minority = [told.life for told in lives if told.life in stops and told.views.is_in_minority]
    silent = sorted(set(expected) - set(seen))
    return RunFacts(
        level=_judged_level(lives),
        full=tuple(full),
        ended=over.union(stops),
        over=over,
        excluded={told.life: told.last_ns for told in lives if told.is_over and told.end_detail != OverReason.LEFT},
        has_views=any(told.views.installations for told in lives),
        last_numbers={told.life: told.last_number for told in lives},
        missing_records=sum(told.missing_records for told in lives),
        evidence=Evidence(
            gap=gap_reason(gaps, silent, names),
            undrained=undrained_reason(cut_short, len(full), names, in_minority),
            addressed=ADDRESSED_TO_OBJECTS if any(told.is_for_objects for told in lives) else "",
        ),
    )


def _judged_level(lives: Collection[Told]) -> int:
    """Optimistic deliveries alone are judged where there are no views: a program that knows nothing else."""
    level = max((told.level for told in lives if told.level >= 0), default=int(Level.AGREED))
    has_views = any(told.views.installations for told in lives)
    return max(level, int(Level.AGREED)) if has_views else level


class _Task(enum.Enum):
    """What is done in one piece."""

    CAUSAL = "causal"
    VIEWS = "views"


class _Causal(NamedTuple):
    """How many deliveries come before a cause, and the earliest of them."""

    violations: int
    life: Incarnation
    cause: int
    message: int


_NONE_EARLY = _Causal(0, Incarnation(0, 0), 0, 0)


def _weigh(
    lives: Sequence[Life], facts: RunFacts, task: _Task | Span
) -> Totals | _Causal | dict[Property, Tally] | None:
    """One task: the messages of a span, or what is done in one piece."""
    if task is _Task.CAUSAL:
        return _causal(lives, facts)
    return _of_views(lives, facts) if task is _Task.VIEWS else by_message.totals(lives, facts, task)


def _of_views(lives: Sequence[Life], facts: RunFacts) -> dict[Property, Tally]:
    """24 bytes for each first delivery."""
    run = synchrony.Run(
        lives=[_by_view(life, facts) for life in lives],
        origins=lambda messages: messages >> 32 & 0xFFFFFFFF,
        decode=decode,
        is_uniform=facts.level == Level.FINAL,
    )
    return synchrony.tallies(run)


def _by_view(life: Life, facts: RunFacts) -> synchrony.Life:
    columns = life.columns("step", "level", "message", "record", "at_ns", "is_undone", "is_repeat")
    wanted = judged(columns, life.name, facts)
    firsts = wanted.deliveries[~columns["is_repeat"][wanted.deliveries]]
    return synchrony.Life(
        name=life.name,
        views=life.told.views,
        ends_in_order=life.name in facts.ended,
        record=columns["record"][firsts],
        message=columns["message"][firsts],
        at_ns=columns["at_ns"][firsts],
    )


def _causal(lives: Sequence[Life], facts: RunFacts) -> _Causal:
    """All of a run: 25 bytes for each submission and first delivery, and 8 for each pair of messages."""
    history = _history(lives, facts)
    joiners = [number for number, life in enumerate(lives) if life.name.is_joiner]
    found = causes.check(history, history.codes[joiners].tolist())
    if (early := found.earliest) is None:
        return _NONE_EARLY
    message, cause = (int(history.messages[number]) for number in (early.message, early.cause))
    return _Causal(found.violations, lives[early.life].name, cause, message)


def _history(lives: Sequence[Life], facts: RunFacts) -> causes.History:
    chunks = [_chunk(life, facts) for life in lives]
    messages = merged(chunk.message for chunk in chunks)
    codes = np.array([number_of(life.name) for life in lives], np.int64)
    return causes.History([causes.in_order([chunk], messages) for chunk in chunks], codes, messages)


def _chunk(life: Life, facts: RunFacts) -> causes.Chunk:
    columns = life.columns("step", "level", "message", "record", "at_ns", "is_undone", "is_repeat")
    wanted = judged(columns, life.name, facts)
    firsts = wanted.deliveries[~columns["is_repeat"][wanted.deliveries]]
    rows = np.concatenate([wanted.submissions, firsts])
    return causes.Chunk(
        life=np.empty(0, np.int64),
        record=columns["record"][rows],
        message=columns["message"][rows],
        is_submission=np.arange(len(rows)) < len(wanted.submissions),
        at_ns=columns["at_ns"][rows],
    )


def _tallies(totals: Totals | None, early: _Causal, lookup: Lookup) -> dict[Property, Tally]:
    """`totals` is None for a run in which nobody submitted or delivered anything."""
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
    if totals.lost:
        lost = LOST_SUBMISSION.format(count=totals.lost)
        tallies[Property.INTEGRITY] = tallies[Property.INTEGRITY]._replace(excuse=lost)
    witness = lookup.causal_witness(early.life, early.cause, early.message) if early.violations else None
    tallies[Property.CAUSAL] = Tally(totals.counts[Property.FIFO].checked, early.violations, witness)
    return tallies
