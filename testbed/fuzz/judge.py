"""Verdict on one scenario: it is simulated and checked against all promises of its protocol.

Promises hold for all incarnations as far as docs/properties.md defines: crashed and excluded ones, too, must
keep the order and the submitted bytes. Liveness is judged because all faults have ended and the run has come to rest; a
run that does not come to rest fails for that.

A simulation loses no record, so that missing records excuse nothing: a property that was checked and is `unknown` is a
failure. A property is unjudged only without deliveries, with a lost quorum, or in a run without a full member.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import TypeAlias

from analysis.checks import oracle
from analysis.checks.calls import Calls, Id, read_calls
from analysis.checks.linear import check_incarnations
from analysis.checks.oracle_views import Record
from analysis.checks.properties import (
    GIVEN_BUT_NOT_SENT,
    UNDER_THE_ORDER,
    Finding,
    Incarnation,
    Incarnations,
    MessageId,
    Property,
    Raw,
    Verdict,
    no_order_of_views,
)
from analysis.checks.stages import breaches
from analysis.checks.views import Lack, predicate
from analysis.independent.compare import disagreements
from analysis.independent.judge import History, judge_histories, table_of
from analysis.inputs import Protocol
from analysis.metrics import membership
from analysis.unexplained import AFTERMATH, left_out_without_state
from node.core import Core, Membership
from node.group.view import Incarnation as Member
from node.group.view import View
from node.registry import PROTOCOLS
from node.trace import CallReport, EndReason, Event, GroupReport, Level, MutexReport, Notice, ViewReason
from node.wire import Kind
from testbed.fuzz.coverage import Coverage, Watcher, views_met
from testbed.fuzz.draw import victims_of
from testbed.fuzz.joiners import owed_calls
from testbed.fuzz.losses import Losses
from testbed.fuzz.scenario import DRAIN_NS, Crash, Scenario, experiment_of, names_of
from testbed.sim.simulation import START_NS, Ending, IncarnationRun, Simulation, simulate

GROUP = 1

Build: TypeAlias = Callable[[Membership, int], Core]
"""Makes a core of a membership and a seed, in place of the protocol's own."""

OWED_WITH_A_QUORUM = frozenset((Property.VALIDITY, Property.AGREEMENT, Property.SERVICE))
"""Properties that are not promised by a group that has lost its quorum."""

WITHOUT_A_QUORUM = "progress without a quorum"
"""Entry of the unjudged properties for a group that has lost its quorum."""

_AT_THE_END = frozenset((Ending.DRAINED, Ending.CUT_SHORT))

COMPARED_EVERY = 100
"""Worlds whose seed this number divides are judged by two more implementations, which cost half a second of processor
time, most of it to plan the queries."""

PATIENCE_NS = 60 * 10**9
"""Time after the load for a group to come to rest. If it has not, and has its quorum, it is simulated again with
`DRAIN_NS`. A group without a quorum never comes to rest, and ten minutes of its messages cost as much as all other
worlds together."""

LINGER_NS = 60 * 10**9
"""Time for which an idle group is watched: its longest time-outs are some seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failure. `kind` is a property's name, `rest`, `silence`, `expelled`, `left`, `quorum`, `given up`, `asked`,
    `untold`, `after the end`, `buffered`, `stages`, `opinions` or `exception`; failures are alike when kind and `where`
    are.
    """

    kind: str
    sentence: str
    where: str = ""

    def is_like(self, other: Failure) -> bool:
        return (self.kind, self.where) == (other.kind, other.where)

    def __str__(self) -> str:
        return f"{self.kind}: {self.sentence}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Verdict on one scenario."""

    scenario: Scenario
    failures: tuple[Failure, ...]
    coverage: Coverage
    unjudged: tuple[str, ...]
    """Promised properties that could not be judged."""
    faults_met: int
    """Faults that struck while a message was sent or in transit."""
    deliveries: int
    events: int

    @property
    def is_good(self) -> bool:
        return not self.failures


def judge(scenario: Scenario, *, build: Build | None = None) -> Judged:
    """Simulate and judge. `build` replaces the protocol's own core."""
    for drain_ns in (PATIENCE_NS, DRAIN_NS):
        cores = _Cores(builder_of(scenario, build))
        watcher = Watcher(scenario, cores.buffered_by)
        experiment = replace(experiment_of(scenario), drain_ns=drain_ns)
        try:
            simulation = simulate(experiment, group=GROUP, build=cores.make, observer=watcher, linger_ns=LINGER_NS)
        except Exception as error:  # any exception of a core is a failure
            return _judged(scenario, watcher, None, (_exception(error),), ())
        if simulation.phases.drained_ns is not None or _is_without_quorum(scenario, simulation):
            break
    promises_agreement = Property.AGREEMENT.value in PROTOCOLS[scenario.protocol].promises
    met = views_met(simulation.incarnations, watcher.freezes, promises_agreement=promises_agreement)
    watcher.coverage.views.update(met)
    findings = findings_of(scenario, simulation)
    disputed = tuple(_disputed(scenario, simulation, findings))
    unjudged: set[str] = set()
    progress: tuple[Failure, ...] = ()
    if _is_without_quorum(scenario, simulation):
        # Liveness is not promised any more; safety still is.
        findings = {kind: finding for kind, finding in findings.items() if kind not in OWED_WITH_A_QUORUM}
        unjudged.add(WITHOUT_A_QUORUM)
    else:
        progress = (*_restless(simulation), *_loud(scenario, simulation), *_owed(scenario, simulation))
    blamed = (*_excluded_without_fault(scenario, simulation), *_calls(scenario, simulation))
    if any(one.kind in _MAY_BE_CHANCE for one in blamed):
        losses = Losses()
        again = _Cores(builder_of(scenario, build))
        simulate(experiment, group=GROUP, build=again.make, tap=losses, encodes=False, linger_ns=LINGER_NS)
        blamed = (*_excluded_without_fault(scenario, simulation, losses), *_calls(scenario, simulation, losses))
    failures = (
        *progress,
        *blamed,
        *_left(scenario, simulation),
        *_without_a_quorum(scenario, simulation),
        *unknown_safety(findings),
        *_unreported(scenario, simulation, findings),
        *_after_the_end(simulation),
        *cores.buffered(simulation),
        *_broken(findings, names_of(scenario)),
        *_stages(scenario, simulation),
        *disputed,
    )
    unjudged.update(kind.value for kind, finding in findings.items() if finding.verdict is Verdict.UNKNOWN)
    return _judged(scenario, watcher, simulation, failures, tuple(sorted(unjudged)))


def findings_of(scenario: Scenario, simulation: Simulation) -> dict[Property, Finding]:
    """Findings on the promised properties. Witnesses name members as `names_of` does."""
    records = _records_of(simulation)
    lost = sum(not _is_there_at_the_end(incarnation) for incarnation in simulation.incarnations)
    promised = [Property(name) for name in PROTOCOLS[scenario.protocol].promised(scenario.parameters, lost=lost)]
    members = {incarnation.member for incarnation in records}
    return check_incarnations(records, members=members, names=names_of(scenario), kinds=promised)


def _records_of(simulation: Simulation) -> Incarnations:
    return {incarnation.name: _records(incarnation) for incarnation in simulation.incarnations}


def _is_without_quorum(scenario: Scenario, simulation: Simulation) -> bool:
    return PROTOCOLS[scenario.protocol].has_views and has_lost_quorum(simulation)


def has_lost_quorum(simulation: Simulation) -> bool:
    """Whether no view can follow the newest view that a living member has installed, because too many of its members
    are gone for good, or lack messages of an earlier view that only such members held, or no living one of them has its
    state.
    """
    views: dict[int, dict[int, Incarnation]] = {}
    installed: dict[int, set[Incarnation]] = {}
    latest: dict[Incarnation, int] = {}
    ended = [incarnation for incarnation in simulation.incarnations if _is_there_at_the_end(incarnation)]
    living = {incarnation.name for incarnation in ended}
    for incarnation in simulation.incarnations:
        for row in incarnation.records:
            if row[0] == Event.VIEW:
                views.setdefault(row[5], {})[row[4]] = Incarnation(row[2], row[3])
                installed.setdefault(row[5], set()).add(incarnation.name)
                latest[incarnation.name] = row[5]
    if not views:
        return False  # without views, all promises hold
    newest = max((number for number in views if installed[number] & living), default=None)
    if newest is None:
        return True
    # Members without the state cannot go on if all that have it crashed before another could fetch it.
    if not any(_has_state(incarnation) for incarnation in ended if incarnation.name in installed[newest]):
        return True

    def has_quorum(number: int, able: set[Incarnation]) -> bool:
        ranked = [views[number][rank] for rank in sorted(views[number])]
        view = View(number=number, incarnations=tuple(Member(*one) for one in ranked))
        return view.is_quorum({one.member for one in ranked if one in able})

    # A quorum of a view holds all its messages when the next one is decided. A member that has not installed the next
    # one yet may fetch them in vain if that quorum is gone.
    behind = {one for one in living if latest.get(one, newest) < newest}
    stuck = {one for one in behind if not has_quorum(latest[one], living)}
    return not has_quorum(newest, living - stuck)


def _has_state(incarnation: IncarnationRun) -> bool:
    """Whether it was a member of the first view, or has taken the state."""
    first = next(row for row in incarnation.records if row[0] == Event.VIEW)
    return first[1] == ViewReason.FIRST or any(row[0] == Event.STATE for row in incarnation.records)


def _is_there_at_the_end(incarnation: IncarnationRun) -> bool:
    """Whether it neither crashed nor left, and has not learnt that it is excluded."""
    return incarnation.ending in _AT_THE_END and not _knows_its_end(incarnation)


def _knows_its_end(incarnation: IncarnationRun) -> bool:
    """Whether it has learnt that it is excluded, and only answers requests."""
    return any(row[0] == Event.REPORT and row[1] == GroupReport.EXCLUDED for row in incarnation.records)


def is_excluded(incarnation: IncarnationRun) -> bool:
    """Whether it was excluded while it was alive."""
    last = incarnation.records[-1]
    return (last[0] == Event.ENDED and last[1] == EndReason.EXCLUDED) or _knows_its_end(incarnation)


def _judged(
    scenario: Scenario,
    watcher: Watcher,
    simulation: Simulation | None,
    failures: tuple[Failure, ...],
    unjudged: tuple[str, ...],
) -> Judged:
    return Judged(
        scenario=scenario,
        failures=failures,
        coverage=watcher.coverage,
        unjudged=unjudged,
        faults_met=_faults_met(scenario, watcher, simulation),
        deliveries=sum(incarnation.delivered for incarnation in simulation.incarnations) if simulation else 0,
        events=simulation.events if simulation else 0,
    )


def _records(incarnation: IncarnationRun) -> Sequence[Raw]:
    """Its records; those of an excluded incarnation end without a STOP, as if it had crashed."""
    if is_excluded(incarnation) and incarnation.records[-1][0] == Event.STOP:
        return incarnation.records[:-1]
    return incarnation.records


def _broken(findings: Mapping[Property, Finding], names: Mapping[int, str]) -> Iterator[Failure]:
    for kind, finding in findings.items():
        if finding.verdict is Verdict.FAIL:
            yield Failure(kind=kind.value, sentence=finding.sentence(names))


def _disputed(scenario: Scenario, simulation: Simulation, findings: Mapping[Property, Finding]) -> Iterator[Failure]:
    """Properties on which the three implementations disagree; checked in a sample of the worlds."""
    if scenario.seed % COMPARED_EVERY == 0:
        for sentence in _disputes(_records_of(simulation), findings, names_of(scenario)):
            yield Failure(kind="opinions", sentence=sentence, where=sentence.partition(":")[0])


def _disputes(
    incarnations: Incarnations, findings: Mapping[Property, Finding], names: Mapping[int, str]
) -> Iterator[str]:
    """A sentence for each property on which `findings` disagree with the plain oracle or with SQL. The three share no
    code, so that one of them is wrong.
    """
    members = {incarnation.member for incarnation in incarnations}
    history = History(trace=table_of(incarnations), members=members, names=names)
    yield from disagreements(findings, judge_histories([history], findings)[0])
    plain = oracle.check(_plain_history(incarnations), members=members, names=names, kinds=findings)
    for kind, finding in findings.items():
        found, expected = (f"{one.verdict.value} ({one.checked} checked)" for one in (finding, plain[kind]))
        if found != expected:
            yield f"{kind.value}: {found} by the product, {expected} by the oracle"


def _plain_history(incarnations: Incarnations) -> dict[Incarnation, list[Record]]:
    """The records in the form of the plain oracle."""
    return {
        incarnation: [
            Record(place, Event(event), detail, MessageId(origin, of, number), at_ns, extra, value, clock_ns, *payload)
            for place, (event, detail, origin, of, extra, number, at_ns, clock_ns, value, *payload) in enumerate(
                records, start=1
            )
        ]
        for incarnation, records in incarnations.items()
    }


def _restless(simulation: Simulation) -> Iterator[Failure]:
    """A failure if members that were not excluded still have work at the end, or stay in a minority. The group has a
    quorum."""
    busy = [
        incarnation
        for incarnation in simulation.incarnations
        if incarnation.ending is Ending.CUT_SHORT and not is_excluded(incarnation)
    ]
    if busy:
        who = ", ".join(f"member {incarnation.member}" for incarnation in busy)
        passed_s = (simulation.phases.end_ns - simulation.phases.load_end_ns) / 1e9
        yield Failure(kind="rest", sentence=f"{who} did not come to rest within {passed_s:.0f} s after the load")
    for incarnation in simulation.incarnations:
        said = [row[1] for row in incarnation.records if row[0] == Event.MINORITY]
        if incarnation.ending is Ending.DRAINED and said[-1:] == [1] and not is_excluded(incarnation):
            yield Failure(kind="rest", sentence=f"member {incarnation.member} stays in a minority of its group")


def _loud(scenario: Scenario, simulation: Simulation) -> Iterator[Failure]:
    """A failure if a group at rest is not silent: no timer may be armed and no message sent; over the group layer, only
    heartbeats."""
    drained_ns = simulation.phases.drained_ns
    if drained_ns is None:
        return
    if PROTOCOLS[scenario.protocol].returns:
        # A cut may end shortly before: in the first half of the time, the group may find its members again.
        from_ns = drained_ns + LINGER_NS // 2
        late = [
            row
            for incarnation in simulation.incarnations
            for row in incarnation.records
            if row[0] == Event.SEND and row[6] > from_ns
        ]
        loud = sorted({Kind(row[1]).name for row in late} - {Kind.GROUP_STATUS.name})
        if loud:
            yield Failure(
                kind="silence", sentence=f"everybody is idle, and afterwards somebody sends {', '.join(loud)}"
            )
    elif not simulation.is_silent:
        yield Failure(kind="silence", sentence=f"everybody is idle, and {LINGER_NS / 1e9:.0f} s later a timer is armed")


def _stages(scenario: Scenario, simulation: Simulation) -> Iterator[Failure]:
    """Violations of the stages that CO reports, on which it promises more than deliveries show."""
    for stage, sentence in breaches(simulation.records, names_of(scenario)):
        yield Failure(kind="stages", sentence=sentence, where=stage)


def _owed(scenario: Scenario, simulation: Simulation) -> Iterator[Failure]:
    """The first call that an object of a joiner lacks; the first members that lack the last view, and the state."""
    entry, names = PROTOCOLS[scenario.protocol], names_of(scenario)
    if Property.CALL_AGREEMENT.value in entry.promises:
        calm = [
            one
            for one in simulation.incarnations
            if one.ending is Ending.DRAINED and not is_excluded(one) and one.records[-1][0] == Event.STOP
        ]
        for owed in islice(owed_calls({one.name: one.records for one in calm}), 1):
            yield Failure(kind=Property.CALL_AGREEMENT.value, sentence=owed.sentence(names), where="joiner")
    if not entry.has_views:
        return
    reported: set[Property] = set()
    for one in membership.absent(membership.timelines(_records_of(simulation)), _asked_to_leave(scenario, simulation)):
        kind = Property.STATE_TRANSFER if one.lacks is Lack.STATE else Property.VIEW_AGREEMENT
        if kind not in reported and kind.value in entry.promises:
            reported.add(kind)
            sentence = f"member {one.incarnation.member} {predicate(one.lacks, one.view)}"
            yield Failure(kind=kind.value, sentence=sentence, where="joiner")


_MAY_BE_CHANCE = frozenset(("expelled", "given up"))
"""Kinds of failures that lost frames may explain."""


def _excluded_without_fault(
    scenario: Scenario, simulation: Simulation, losses: Losses | None = None
) -> Iterator[Failure]:
    """Members that were excluded although no view leaves them out, or although no fault that had begun, and had not
    ended long before (analysis.unexplained), justified it.

    No view need leave out a member that left as asked, as the others may have crashed before they installed the next
    one; or if the group lost its quorum, as the others may not know the decision.

    A fault is not needed if no other member of their view was free of such faults: in a view of two, a member that
    receives nothing excludes the other one. Nor is it needed by members without the state when one with it goes
    (analysis.unexplained), or by the lower-ranked member of a bad pair whose other member has such a fault: nobody can
    tell which of them it is. `losses`, after all faults of a member, may have silenced it.
    """
    excluded = list(filter(is_excluded, simulation.incarnations))
    timelines = membership.timelines(_records_of(simulation)) if excluded else []
    asked = _asked_to_leave(scenario, simulation) if excluded else {}
    stateless = _without_state(timelines)
    protocol = Protocol(name=scenario.protocol, parameters=scenario.parameters)
    for incarnation in excluded:
        changes_ns = _left_out_ns(incarnation, timelines)
        is_unseen = PROTOCOLS[scenario.protocol].has_views and not changes_ns and incarnation.name not in asked
        if is_unseen and not _is_without_quorum(scenario, simulation):
            sentence = f"member {incarnation.member} was excluded, but no view leaves it out"
            yield Failure(kind="expelled", sentence=sentence)
            continue
        at_ns = _excluded_ns(incarnation, changes_ns) - START_NS
        since_ns = at_ns - AFTERMATH * protocol.suspect_after_ns
        fallen = victims_of(scenario, since_ns=since_ns, until_ns=at_ns)
        witnesses = _last_view(incarnation, timelines, len(scenario.members)) - fallen - {incarnation.member}
        if incarnation.member in fallen or not witnesses or incarnation.name in stateless:
            continue
        own = (one for one in scenario.faults if incarnation.member in one.members and one.at_ns <= at_ns)
        is_silenced = losses is not None and losses.has_silenced(
            incarnation.member,
            least_ns=protocol.suspect_after_ns // 2,
            after_ns=START_NS + max((one.end_ns for one in own), default=0),
            since_ns=START_NS + since_ns,
            until_ns=START_NS + at_ns,
        )
        if not is_silenced and not _leaves_a_bad_pair(incarnation, simulation, fallen):
            yield Failure(
                kind="expelled", sentence=f"member {incarnation.member} was given up although it was never away long"
            )


def _without_state(timelines: Sequence[membership.Timeline]) -> set[Incarnation]:
    """Incarnations that were left out because they had not got the state."""
    members = {one.incarnation.member for one in timelines}
    numbers = {str(member): member for member in members}
    names = {member: name for name, member in numbers.items()}
    views = membership.section(timelines, names=names, start_ns=START_NS, struck_ns={}, asked_to_leave={})
    found = () if views is None else left_out_without_state(views)
    return {Incarnation(numbers[name], incarnation) for name, incarnation in found if name in numbers}


def _left_out_ns(excluded: IncarnationRun, timelines: Sequence[membership.Timeline]) -> list[int]:
    """When members went from a view with it to one without it."""
    return [
        after.at_ns
        for one in timelines
        for before, after in pairwise(one.views.installations)
        if after.is_whole and excluded.name in before.members and excluded.name not in after.members
    ]


def _excluded_ns(excluded: IncarnationRun, changes_ns: Sequence[int]) -> int:
    """When the view first changed without it; if no record shows that, when it learnt it."""
    own = (row[6] for row in excluded.records if row[:2] == (Event.REPORT, GroupReport.EXCLUDED))
    return min((*changes_ns, *own), default=excluded.records[-1][6])


def _leaves_a_bad_pair(incarnation: IncarnationRun, simulation: Simulation, fallen: frozenset[int]) -> bool:
    """Whether the view after its last one has the reason BAD_PAIR, and one of `fallen` that was before it by rank. With
    two of `fallen` it may have stood in more pairs than each of them."""
    own = [row for row in incarnation.records if row[0] == Event.VIEW]
    last = max((row[5] for row in own), default=0)
    ranks = {row[2]: row[4] for row in own if row[5] == last}
    rows = (row for other in simulation.incarnations for row in other.records if row[0] == Event.VIEW)
    kept = {row[2] for row in rows if row[1] == ViewReason.BAD_PAIR and row[5] == last + 1} & fallen & ranks.keys()
    return len(kept) > 1 or any(ranks[one] < ranks[incarnation.member] for one in kept)


def _asked_to_leave(scenario: Scenario, simulation: Simulation) -> dict[Incarnation, int]:
    if all(fault["kind"] != "leave" for fault in simulation.faults):  # most worlds; reading all records takes long
        return {}
    timelines = membership.timelines(_records_of(simulation))
    return membership.asked_to_leave(simulation.faults, names_of(scenario), timelines)


def _left(scenario: Scenario, simulation: Simulation) -> Iterator[Failure]:
    """Incarnations that left without a fault that asked them to."""
    asked = _asked_to_leave(scenario, simulation)
    for incarnation in simulation.incarnations:
        last = incarnation.records[-1]
        if incarnation.name not in asked and (last[0], last[1]) == (Event.ENDED, EndReason.LEFT):
            yield Failure(kind="left", sentence=f"member {incarnation.member} left although nobody asked it to")


def _after_the_end(simulation: Simulation) -> Iterator[Failure]:
    for incarnation in simulation.incarnations:
        if incarnation.has_records_after_its_end:
            yield Failure(kind="after the end", sentence=f"member {incarnation.member} has records after its end")


def _without_a_quorum(scenario: Scenario, simulation: Simulation) -> Iterator[Failure]:
    """The first change of view by less than a quorum, or beginning of another group; deliveries in a minority."""
    timelines = membership.timelines(_records_of(simulation))
    changes = membership.without_quorum(timelines, _asked_to_leave(scenario, simulation))
    for name, before, after in islice(changes, 1):
        how = f"began a group of its own with view {after.number}, after view {before.number}"
        if not after.is_beginning:
            how = f"went from view {before.number} to view {after.number} without a quorum"
        yield Failure(kind="quorum", sentence=f"member {name.member} {how}")
    delivered = [(sum(time.delivered for time in one.views.minorities), one.incarnation) for one in timelines]
    for count, name in [one for one in delivered if one[0]][:1]:
        yield Failure(kind="quorum", sentence=f"member {name.member} delivered {count} messages in a minority")


def _calls(scenario: Scenario, simulation: Simulation, losses: Losses | None = None) -> Iterator[Failure]:
    if Property.CALL_AGREEMENT.value not in PROTOCOLS[scenario.protocol].promises:
        return
    records = _records_of(simulation)
    calls = read_calls(records)
    if not victims_of(scenario):
        excused = _excused(records, calls, losses) if losses is not None else ()
        yield from _given_up(calls, excused)
    yield from _not_as_asked(records, calls)


def _excused(records: Incarnations, calls: Calls, losses: Losses) -> set[Id]:
    """Calls that were given up after a member had got none of several frames of another."""
    ends_ns = {name: max(_outcomes_ns(name, records), default=0) for name in calls.given_up}
    return {
        name
        for name, end_ns in ends_ns.items()
        if name in calls.by_message and losses.has_parted(since_ns=calls.by_message[name].at_ns, until_ns=end_ns)
    }


def _outcomes_ns(name: Id, records: Incarnations) -> Iterator[int]:
    """Times of the reports that a call may not arrive."""
    word = name[0] << 48 | name[1] << 32 | name[2]
    for one, rows in records.items():
        for row in rows:
            is_of_caller = one == name[:2] and row[1] in _GIVEN_UP and row[8] == name[2]
            if row[0] == Event.REPORT and (is_of_caller or (row[1] == CallReport.MISSED and row[8] == word)):
                yield row[6]


_GIVEN_UP = (CallReport.ABORTED, CallReport.UNREACHABLE, CallReport.REFUSED)


def _given_up(calls: Calls, excused: Collection[Id] = ()) -> Iterator[Failure]:
    """A call between objects that was given up, or more calls that were refused than have objects, though no member was
    ever away long. Some calls are refused rightly: groups have no members at first.
    """
    for name in sorted(calls.given_up.difference(excused))[:1]:
        sentence = f"call {name[2]} of member {name[0]} was given up although no member was ever away long"
        yield Failure(kind="given up", sentence=sentence)
    every = calls.by_message.values()
    refused, known = sum(call.is_refused for call in every), sum(call.is_known for call in every)
    if refused > known:
        sentence = f"{refused} calls were refused and {known} had objects although no member was ever away long"
        yield Failure(kind="given up", sentence=sentence)


def _not_as_asked(records: Incarnations, calls: Calls) -> Iterator[Failure]:
    for name in islice(calls.not_as_asked(records), 1):
        call = f"call {name[2]} of member {name[0]}"
        yield Failure(kind="asked", sentence=f"{call} is not what was asked for, or its objects are not reported")


def unknown_safety(findings: Mapping[Property, Finding]) -> Iterator[Failure]:
    """Safety properties that are unknown although they were checked, and grant order without reports of messages: no
    record is missing here. A violation that leaves the total order of views open is a failure of its own.
    """
    failing = {kind for kind, finding in findings.items() if finding.verdict is Verdict.FAIL}
    excuses = {no_order_of_views(kind) for kind in failing.intersection(UNDER_THE_ORDER)}
    for kind, finding in findings.items():
        if finding.reason in excuses:
            continue
        is_unreported = not kind.is_liveness or finding.reason == GIVEN_BUT_NOT_SENT
        if finding.verdict is Verdict.UNKNOWN and finding.checked and is_unreported:
            yield Failure(kind="untold", sentence=f"{kind.value}: {finding.reason}", where=kind.value)


_REPORTED: Mapping[Property, Sequence[Notice | MutexReport | GroupReport]] = {
    Property.STATE: (Notice.STATE,),
    Property.CLOCK_CONDITION: (Notice.TIMESTAMP,),
    Property.FENCE_ORDER: (MutexReport.FENCE,),
    Property.GRANT_ORDER: (GroupReport.TAKEN, GroupReport.SENT, GroupReport.GIVEN),
}
"""Properties judged by reports, which are made in every run with deliveries for good."""


def _unreported(scenario: Scenario, simulation: Simulation, findings: Mapping[Property, Finding]) -> Iterator[Failure]:
    """Promises of which no member makes a report. A member may crash between a delivery and its report."""
    members = simulation.incarnations
    there = [one for one in members if one.ending in _AT_THE_END]
    if not any(row[0] == Event.DELIVER and row[1] >= Level.AGREED for one in there for row in one.records):
        return
    wanted = [(kind.value, code) for kind, codes in _REPORTED.items() if kind in findings for code in codes]
    if scenario.parameters.get("trace_stages"):
        wanted.append(("stages", Notice.ACCEPTED))
    if scenario.parameters.get("initially_granted"):
        wanted.append((Property.MUTUAL_EXCLUSION.value, MutexReport.HOLDS))
    for what, code in wanted:
        if not any(row[:2] == (Event.REPORT, code) for one in members for row in one.records):
            yield Failure(kind="untold", sentence=f"{what}: no member makes a report {code.name}", where=what)


def _last_view(incarnation: IncarnationRun, timelines: Sequence[membership.Timeline], members: int) -> frozenset[int]:
    """The members of the last view that it installed, or else of the last one that names it; all members, if there are
    no views."""
    views = [row for row in incarnation.records if row[0] == Event.VIEW]
    if views:
        return frozenset(row[2] for row in views if row[5] == views[-1][5])
    naming = [view for one in timelines for view in one.views.installations if incarnation.name in view.members]
    if naming:
        return frozenset(one.member for one in max(naming, key=lambda view: view.number).members)
    return frozenset(range(members))


def _exception(error: Exception) -> Failure:
    """The failure of an exception. `where`: file and function of its innermost frame, because line numbers change."""
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(innermost.filename).name}:{innermost.name}"
    text = " ".join(str(error).split()) or "no text"
    return Failure(kind="exception", sentence=f"{type(error).__name__} in {where}: {text}", where=where)


def _faults_met(scenario: Scenario, watcher: Watcher, simulation: Simulation | None) -> int:
    """Number of faults that struck and met an input, while (or one transit time before) a member sent or submitted."""
    if simulation is None:
        return len(watcher.met)
    sent_ns = [
        row[6] - START_NS
        for incarnation in simulation.incarnations
        for row in incarnation.records
        if row[0] == Event.SEND or row[0] == Event.SUBMIT
    ]
    count = 0
    for position, fault in enumerate(scenario.faults):
        from_ns = fault.at_ns - scenario.transit_ns
        is_met = position in watcher.met or isinstance(fault, Crash)
        has_struck = START_NS + fault.at_ns in watcher.struck_ns
        count += has_struck and is_met and any(from_ns <= at_ns <= fault.end_ns for at_ns in sent_ns)
    return count


def builder_of(scenario: Scenario, build: Build | None = None) -> Build:
    """`build`, or a builder of the protocol's own core with the scenario's parameters."""
    if build is not None:
        return build
    entry = PROTOCOLS[scenario.protocol]
    parameters = scenario.parameters
    return lambda membership, seed: entry.build(membership=membership, parameters=parameters, seed=seed)


class _Cores:
    """Makes the cores of a run and keeps them, to count the messages that they hold at the end."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self._made: dict[tuple[int, int], Core] = {}

    def make(self, membership: Membership, seed: int) -> Core:
        core = self._made[membership.member, membership.incarnation] = self._build(membership, seed)
        return core

    def buffered_by(self, incarnation: IncarnationRun) -> int:
        return self._made[incarnation.member, incarnation.incarnation].buffered

    def buffered(self, simulation: Simulation) -> Iterator[Failure]:
        """Idle cores that hold messages: in time they would hold more and more."""
        for incarnation in simulation.incarnations:
            held = self.buffered_by(incarnation)
            if incarnation.ending is Ending.DRAINED and held and not is_excluded(incarnation):
                yield Failure(
                    kind="buffered", sentence=f"member {incarnation.member} is idle and keeps {held} messages"
                )
