"""Mutation test of the checks: single edits of their source, each killed by a disagreement with the oracle.

An edit replaces one text, which must occur once in a function. The cases are correct histories, each changed by the
known mutations; without an edit both checkers agree on all of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from functools import cache

import pytest

from analysis.checks import call_orders, calls, chains, linear, oracle, sections, synchrony
from analysis.checks.linear import IncarnationRecord, JudgedRun
from analysis.checks.properties import (
    CALL_PROPERTIES,
    DELIVERY_PROPERTIES,
    REPORT_PROPERTIES,
    VIEW_PROPERTIES,
    Finding,
    Property,
)
from analysis.checks.synchrony import IncarnationDeliveries, _Judge, _View
from tests.analysis import histories
from tests.analysis.checks import call_histories, test_reports
from tests.analysis.checks.comparisons import assert_same
from tests.analysis.edits import Edit
from tests.analysis.histories import PlainHistory, check_linear, made, members_of

SEEDS = 2
MIXED = 400
"""Histories with several mutations at once."""
WILD = 100
KINDS = (*DELIVERY_PROPERTIES, *VIEW_PROPERTIES)


# Cases.


Cases = tuple[tuple[PlainHistory, Mapping[Property, Finding]], ...]
"""Histories with the findings of the oracle."""


@cache
def delivery_cases() -> Cases:
    """Correct histories and their mutations."""
    runs = []
    for name in histories.CORRECT:
        ways = [[], *([one] for one in histories.MUTATIONS if histories.suits(one, name))]
        runs += [made(name, seed, mutations) for mutations in ways for seed in range(SEEDS)]
    draw = random.Random(1)
    for seed in range(MIXED):
        name = draw.choice(sorted(histories.CORRECT))
        runs.append(made(name, seed, draw.choices(histories.MUTATIONS, k=draw.choice((2, 3)))))
    found = [(history, oracle.check(history, members=members_of(history), kinds=KINDS)) for history in runs]
    draw.shuffle(found)
    return tuple(found)


@cache
def wild_cases() -> Cases:
    """Arbitrary reports and calls, and reports by hand."""
    reports = [history for history, _ in test_reports.CASES.values()]
    reports += [test_reports.wild(seed, events=60) for seed in range(WILD)]
    of_calls = [call_histories.wild(seed, events=60) for seed in range(WILD)]
    return tuple(
        (history, oracle.check(history, members=members_of(history), kinds=kinds))
        for histories_, kinds in ((reports, REPORT_PROPERTIES), (of_calls, CALL_PROPERTIES))
        for history in histories_
    )


def disputes(cases: Cases) -> Iterator[Exception]:
    """Disagreements of the linear checker with the oracle; an exception in a check is one."""
    for history, expected in cases:
        try:
            found = check_linear(history, members=members_of(history), kinds=expected)
            for kind, finding in found.items():
                assert_same(expected[kind], finding, kind)
        except Exception as error:
            yield error


DELIVERIES = (
    # Deliveries.
    Edit(linear.validity, "not in owing", "in owing"),
    Edit(linear.validity, "if m[:2] in owing]", "if True]"),
    Edit(linear.validity, "for name in run.at_the_end", "for name in ()"),
    Edit(linear.agreement, "run.full", "run.incarnations"),
    Edit(linear.uniform_agreement, "run.incarnations", "run.full"),
    Edit(linear._agreement, "delivered | late | standing.keys()", "delivered | late"),
    Edit(linear._agreement, "common | standing.keys()", "common"),
    Edit(linear._agreement, "delivered - common", "common - delivered"),
    Edit(linear._standing, " | run.at_the_end.keys()", ""),
    Edit(linear._standing, "{one.name for one in run.full} | ", ""),
    Edit(linear._standing, "if message not in incarnation.position", "if True"),
    Edit(linear._agreement, "common = set.intersection(", "common = set.union("),
    Edit(linear._agreement, "late - frozenset", "late & frozenset"),
    Edit(linear._agreement, "frozenset.intersection(", "frozenset.union("),
    Edit(JudgedRun._at_the_end, "if record > installed.record", ""),
    Edit(JudgedRun._at_the_end, "and not one.has_ended", ""),
    Edit(linear.integrity, "message in seen", "False"),
    Edit(linear.integrity, "at_ns < submitted_ns", "at_ns > submitted_ns"),
    Edit(linear.integrity, "wrong += early.values()", "pass"),
    Edit(linear.integrity, "wrong += _handed_wrongly(run, incarnation)", "pass"),
    Edit(linear.integrity, "wrong += _broken_promises(incarnation)", "pass"),
    Edit(linear._broken_promises, "detail != _OPTIMISTIC or message in promised", "message in promised"),
    Edit(linear._broken_promises, "and detail != _OPTIMISTIC", ""),
    Edit(linear._handed_wrongly, "!= payload", "== b''"),
    Edit(linear._handed_wrongly, "record not in judged and ", "False and "),
    Edit(linear._handed_wrongly, "record not in judged and ", ""),
    Edit(linear.fifo, "(before or 0) + 1", "(before or 0) + 2"),
    Edit(linear.fifo, "before is None and ", ""),
    Edit(linear.fifo, "last[origin] = number", "last.setdefault(origin, number)"),
    Edit(linear.fifo, "and not (before is None and incarnation.name.is_joiner)", ""),
    Edit(linear.causal, "needs <= seen", "needs & seen"),
    Edit(linear.causal, "seen.add(message)", "pass"),
    Edit(linear._direct_causes, "recent = {message}", "recent = set()"),
    Edit(linear._direct_causes, "recent.add(message)", "pass"),
    Edit(linear._oldest_numbers, "min(", "max("),
    Edit(linear.total_order, "!= before", "== before"),
    Edit(linear.total_order, "for incarnation in run.in_order", "for incarnation in run.full"),
    Edit(chains.endless, "or 0) > 1", "or 0) > 0"),
    Edit(chains.endless, "if other not in leads_to", ""),
    Edit(linear._predecessors, "if incarnation.name.is_joiner else None", "if True else None"),
    Edit(linear._not_undone, "reversed(rows)", "rows"),
    Edit(IncarnationRecord.judge_at, "step[1] != _SUBMIT and ", ""),
    Edit(JudgedRun.__init__, "and not incarnation.has_ended\n", "\n"),
    Edit(JudgedRun.__init__, "max(at, default", "min(at, default"),
    # Views.
    Edit(synchrony._disputes, "not np.array_equal(messages, start)", "len(messages) == len(start) == 0"),
    Edit(synchrony._beyond, "len(messages) > end", "len(messages) >= end"),
    Edit(synchrony._not_in_all, "counts < len(lists)", "counts > len(lists)"),
    Edit(synchrony.is_in, "known[place] == values", "known[place] >= values"),
    Edit(_View.prefix, "[: int(self.void[incarnation.name].argmax())]", ""),
    Edit(_View.good, "~self.void", "self.void"),
    Edit(_View.has_certainly_not_closed, "not incarnation.survives(self.number) and ", ""),
    Edit(_Judge._view, "and not self._run.is_uniform", ""),
    Edit(_Judge._wrong_in_a_change, "after.number <= before.number", "after.number < before.number - 9"),
    Edit(_Judge._wrong_in_a_change, "if after.is_beginning:", "if False:"),
    Edit(_Judge._wrong_in_a_change, ") < after.number:", ") <= after.number:"),
    Edit(_Judge.view_agreement, "if not one.is_whole and not is_cut:", "if False:"),
    Edit(_Judge.view_agreement, "if not one.is_distinct:", "if False:"),
    Edit(_Judge.view_agreement, "if not one.has_ranks:", "if False:"),
    Edit(_Judge.view_agreement, "if other is not None:", "if False:"),
    Edit(_Judge.virtual_synchrony, "violations += len(disputed)", "violations += 0"),
    Edit(_Judge.no_ghost, "~is_member", "is_member"),
    Edit(
        _Judge.same_view,
        "map(view.good, self._incarnations)",
        "(one.messages(view.number) for one in self._incarnations)",
    ),
    Edit(_Judge._too_early, "incarnation.record < ", "incarnation.record > "),
    Edit(_Judge._different, "_union(_not_in_all([own, one.messages(state)]) for one in elders)", "own[:0]"),
    Edit(_Judge._known_before, "view.number < state", "view.number > state"),
    Edit(IncarnationDeliveries.survives, "self.last_view > view", "self.last_view >= view"),
    Edit(IncarnationDeliveries.had_state_all_through, "self.state_view < view", "self.state_view <= view"),
)


REPORTS = (
    # Critical sections, grants, clocks, states.
    Edit(sections.mutual_exclusion, "latest.end_ns > section.begin_ns", "latest.begin_ns > section.begin_ns"),
    Edit(sections.mutual_exclusion, "section.end_ns > latest.end_ns", "section.end_ns < latest.end_ns"),
    Edit(sections.mutual_exclusion, "latest.end_ns > section.begin_ns", "latest.end_ns >= section.begin_ns"),
    Edit(sections.sections, "section.begin_ns < until_ns", "section.begin_ns <= until_ns"),
    Edit(sections._of_incarnation, "records[number] if number < len(records) else record", "records[number]"),
    Edit(sections.fence_order, "_fence(section) <= _fence(highest)", "_fence(section) < _fence(highest)"),
    Edit(sections.fence_order, "else:\n            highest = section", "highest = section"),
    Edit(sections.fence_order, "grant.begin_ns >= until_ns", "grant.begin_ns < until_ns"),
    Edit(sections.fence_order, "_fence(grant) >= _fence(lowest", "_fence(grant) > _fence(lowest"),
    Edit(sections.fence_order, "lowest[after - 1]):", "lowest[0]):"),
    Edit(sections._excluded_ns, "set(before.members) - set(after.members)", "views.keys() - set(after.members)"),
    Edit(sections._excluded_ns, "if after.is_whole", ""),
    Edit(sections._excluded_ns, "number > views[incarnation][-1].number", "number >= views[incarnation][0].number"),
    Edit(sections._of_incarnation, "if not has_entered:", "if False:"),
    Edit(sections._of_incarnation, "            has_entered = True\n            grants", "            grants"),
    Edit(sections._of_incarnation, "record[1] in (LEFT, HOLDS)", "record[1] == LEFT"),
    Edit(sections.service, "message not in granted", "message in granted"),
    Edit(sections.service, "section.end_ns == NEVER_NS", "section.end_ns != NEVER_NS"),
    Edit(sections.grant_order, "knows[incarnation] > grant:", "knows[incarnation] < grant:"),
    Edit(sections.grant_order, "max(knows[incarnation], given or NO_GRANT)", "knows[incarnation]"),
    Edit(sections.grant_order, " and record[4] not in crashed", ""),
    Edit(sections.grant_order, "given is None and record[4] not in crashed", "False"),
    Edit(sections.grant_order, "if len(askers) > 1 and not is_any_given", "if False"),
    Edit(sections.grant_order, "if len(askers) > 1 and not", "if not"),
    Edit(sections.grant_order, "grants.pop", "grants.get"),
    Edit(sections.message_of, "if is_unicast else (sender, record[8])", ""),
    Edit(sections.granted, "record[0] == STOP", "record[0] != STOP"),
    Edit(sections.clock_condition, "shown.value <= past", "shown.value < past"),
    Edit(sections.clock_monotone, "two.value < one.value", "two.value <= one.value"),
    Edit(sections.state, "one[1][8] != first[1][8]", "one[1][8] == first[1][8]"),
    Edit(sections.state, "len(shown) < 2", "len(shown) < 3"),
    Edit(sections.state, "if has_drained and", "if False and"),
    Edit(sections.state, "if has_drained and", "if"),
    # Calls.
    Edit(call_orders.call_integrity, "if calls.is_for_objects else []", "if False else []"),
    Edit(call_orders.call_integrity, "if calls.is_for_objects else []", ""),
    Edit(call_orders.call_integrity, "what := altered(call.payload, delivery.payload)", "what := ''"),
    Edit(calls._read_incarnation, "incarnation not in calls.ends and records", "False and records"),
    Edit(call_orders.indivisibility, "len(part) > 1", "len(part) > 2"),
    Edit(call_orders.indivisibility, "after.setdefault(one.message, set()).add(other.message)", "pass"),
    Edit(call_orders.call_causality, ">= still", "> still"),
    Edit(call_orders.call_agreement, "one not in has and ", ""),
    Edit(call_orders.call_agreement, "or call.is_atomic", ""),
    Edit(call_orders._torn, "if has and call.is_aborted:", "if False:"),
    Edit(call_orders._torn, "if has and lacks:", "if has or lacks:"),
    Edit(call_orders._ordered, "and call.is_ordered", ""),
    Edit(call_orders._parts, "low[message] = min(low[message], index[following])", "pass"),
    Edit(call_orders._pasts, "carried if delivered.is_loose else past", "past"),
    Edit(call_orders._pasts, "vector[own] = max(vector[own], submitted.get(event.caller, 0))", "pass"),
)


@pytest.mark.parametrize("cases", [delivery_cases, wild_cases])
def test_without_an_edit_both_opinions_agree(cases: Callable[[], Cases]) -> None:
    assert not list(disputes(cases()))


@pytest.mark.parametrize(
    ("edit", "cases"),
    [*((edit, delivery_cases) for edit in DELIVERIES), *((edit, wild_cases) for edit in REPORTS)],
    ids=[edit.name for edit in (*DELIVERIES, *REPORTS)],
)
def test_the_oracle_does_not_agree_with_an_edited_check(
    edit: Edit, cases: Callable[[], Cases], monkeypatch: pytest.MonkeyPatch
) -> None:
    edit.apply(monkeypatch)
    assert next(disputes(cases()), None) is not None


def test_there_are_enough_edits() -> None:
    assert len({edit.name for edit in (*DELIVERIES, *REPORTS)}) == len(DELIVERIES) + len(REPORTS) >= 40
