"""Three implementations on the same histories: the oracle, the product's checks and the SQL give the same verdict on
each property, from the same number of checked items.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.checks import linear, oracle, synchrony, views
from analysis.checks.properties import (
    CALL_PROPERTIES,
    DELIVERY_PROPERTIES,
    REPORT_PROPERTIES,
    VIEW_PROPERTIES,
    Finding,
    MessageId,
    Property,
    Verdict,
)
from analysis.independent.compare import agrees, disagreements
from analysis.independent.judge import TRACE, History, Opinion, judge_histories, table_of
from collector.records import CallReport, Event, GroupReport, Level, MutexReport, Notice, ViewReason
from tests.analysis import histories
from tests.analysis.checks import call_histories, test_reports, test_views
from tests.analysis.checks.test_order import judge as judge_run
from tests.analysis.checks.view_histories import A, B, HistoryBuilder
from tests.analysis.edits import Edit
from tests.analysis.histories import PlainHistory, check_linear, made, members_of

OF_ORDERS = (*DELIVERY_PROPERTIES, *VIEW_PROPERTIES)
OF_REPORTS = tuple(kind for kind in REPORT_PROPERTIES if kind not in CALL_PROPERTIES)

Judge = Callable[[PlainHistory], Mapping[Property, Finding]]


def opinions(runs: Iterable[PlainHistory], kinds: Sequence[Property]) -> list[dict[Property, Opinion]]:
    given = [History(trace=histories.trace_of(run), members=members_of(run), names={}) for run in runs]
    return judge_histories(given, kinds)


def by_oracle(kinds: Sequence[Property]) -> Judge:
    return lambda history: oracle.check(history, members=members_of(history), kinds=kinds)


def by_linear(kinds: Sequence[Property]) -> Judge:
    return lambda history: check_linear(history, members=members_of(history), kinds=kinds)


def assert_one_opinion(runs: Sequence[PlainHistory], kinds: Sequence[Property], *judges: Judge) -> None:
    for number, (history, third) in enumerate(zip(runs, opinions(runs, kinds), strict=True)):
        for judge in judges:
            assert not disagreements(judge(history), third), f"history {number}"


def random_orders(count: int, first: int) -> list[PlainHistory]:
    """Correct histories of every kind, with up to three mutations."""
    runs = []
    for seed in range(first, first + count):
        rng = random.Random(seed)
        mutations = [rng.choice(histories.MUTATIONS) for _ in range(rng.randrange(4))]
        runs.append(made(rng.choice(sorted(histories.CORRECT)), seed, mutations))
    return runs


def random_calls(count: int, first: int) -> list[PlainHistory]:
    """Half of them arbitrary, half correct ones with mutations."""
    runs = [call_histories.wild(seed, events=seed % 60) for seed in range(first, first + count // 2)]
    for seed in range(first, first + count // 2):
        history, rng = call_histories.right(seed), random.Random(seed)
        for _ in range(seed % 4):
            history = rng.choice(histories.MUTATIONS)(history, rng)
        runs.append(history)
    return runs


FIRST = st.integers(0, 1 << 40)


def test_every_way_to_break_every_history() -> None:
    runs = [
        made(name, seed, mutations)
        for name in histories.CORRECT
        for mutations in ((), *((mutate,) for mutate in histories.MUTATIONS if histories.suits(mutate, name)))
        for seed in range(3)
    ]

    assert len(runs) > 1_000
    assert_one_opinion(runs, OF_ORDERS, by_oracle(OF_ORDERS), by_linear(OF_ORDERS))


FEW = settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))


@FEW
@given(first=FIRST)
def test_thousands_of_random_orders(first: int) -> None:
    assert_one_opinion(random_orders(1_000, first), OF_ORDERS, by_oracle(OF_ORDERS), by_linear(OF_ORDERS))


@FEW
@given(first=FIRST)
def test_the_tasks_of_the_analysis_on_random_orders(first: int) -> None:
    """The judgement of runs on disk: the walk over Parquet, message by message."""
    assert_one_opinion(random_orders(300, first), OF_ORDERS, judge_run)


def test_optimistic_deliveries_that_stand_at_joiners() -> None:
    mutations = (histories.drop_delivery, histories.drop_tail, histories.undo, histories.deliver_optimistically)
    runs = [made("views, optimistic", seed, (mutate,)) for mutate in mutations for seed in range(50)]

    assert_one_opinion(runs, OF_ORDERS, by_oracle(OF_ORDERS), by_linear(OF_ORDERS), judge_run)
    judged = [oracle.JudgedRun(run, members_of(run), {}) for run in runs]
    assert sum(any(one.incarnation not in of_run.full for one in of_run.standing) for of_run in judged) > 20


def test_views_by_hand() -> None:
    runs = [history for history, _, _ in (*test_views.BROKEN.values(), *test_views.OWED.values())]
    runs += test_views.RIGHT.values()
    assert_one_opinion(runs, OF_ORDERS, by_oracle(OF_ORDERS), by_linear(OF_ORDERS), judge_run)


@FEW
@given(first=FIRST)
def test_random_reports(first: int) -> None:
    runs = [test_reports.wild(seed, events=seed % 60) for seed in range(first, first + 150)]
    assert_one_opinion(runs, OF_REPORTS, by_oracle(OF_REPORTS), by_linear(OF_REPORTS))


def test_reports_by_hand() -> None:
    runs = [history for history, _ in test_reports.CASES.values()]
    assert_one_opinion(runs, OF_REPORTS, by_oracle(OF_REPORTS), by_linear(OF_REPORTS))


@FEW
@given(first=FIRST)
def test_random_calls(first: int) -> None:
    judges = (by_oracle(CALL_PROPERTIES), by_linear(CALL_PROPERTIES))
    assert_one_opinion(random_calls(200, first), CALL_PROPERTIES, *judges)


def test_the_random_ones_hold_and_break_every_property() -> None:
    """The comparisons above meet a pass and a violation of the properties."""
    found: Counter[tuple[Property, Verdict]] = Counter()
    for runs, kinds in (
        (random_orders(400, 0), OF_ORDERS),
        ([test_reports.wild(seed, events=60) for seed in range(100)], OF_REPORTS),
        (random_calls(100, 0), CALL_PROPERTIES),
    ):
        found.update((kind, one.verdict) for of_run in opinions(runs, kinds) for kind, one in of_run.items())

    assert {kind for kind, verdict in found if verdict is Verdict.FAIL} == set(Property)
    assert {kind for kind, verdict in found if verdict is Verdict.PASS} >= set(Property) - {Property.SERVICE}


@pytest.mark.parametrize("mutations", [(histories.take_state,), (histories.drop_state, histories.take_state)])
def test_states_taken_where_none_is_due(mutations: tuple[histories.Mutation, ...]) -> None:
    """A founder that takes a state; a joiner that takes it inside an installation, so that it goes from a view to the
    same view first, and then to the next.
    """
    runs = [made("views", seed, mutations) for seed in range(60)]

    assert_one_opinion(runs, VIEW_PROPERTIES, by_oracle(VIEW_PROPERTIES), by_linear(VIEW_PROPERTIES))
    verdicts = {third[Property.STATE_TRANSFER].verdict for third in opinions(runs, VIEW_PROPERTIES)}
    assert verdicts == {Verdict.PASS, Verdict.FAIL}


@pytest.mark.parametrize(
    ("event", "detail", "number"),
    [
        (Event.DELIVER, Level.AGREED, 0),
        (Event.UNDO, Level.OPTIMISTIC, 1 << 32),
        (Event.SUBMIT, 0, 0),
        (Event.VIEW, ViewReason.JOIN, 1 << 32),
        (Event.MINORITY, 1, 1 << 32),
        (Event.STATE, 0, 1 << 32),
        (Event.DELIVER, 3, 1),
    ],
)
def test_impossible_records_leave_nothing_to_be_judged(event: Event, detail: int, number: int) -> None:
    builder = HistoryBuilder(A, B).install(1, A, B).deliver((A, B), "a1")
    builder.author.note(A, event, MessageId(*A, number), detail=detail)
    history = builder.stop(A, B)
    found = [judge(history) for judge in (by_oracle(OF_ORDERS), by_linear(OF_ORDERS), judge_run)]
    verdicts = {finding.verdict for findings in found for finding in findings.values()}

    assert verdicts == {one.verdict for one in opinions([history], OF_ORDERS)[0].values()} == {Verdict.UNKNOWN}


def test_hosts_records_are_read_as_the_table_has_them() -> None:
    history = call_histories.wild(5, events=40)
    table = table_of(oracle.raw(history))

    assert table.sort_by("at_ns").to_pylist() == histories.trace_of(history).select(TRACE.names).to_pylist()


def test_the_words_are_those_of_the_trace_format() -> None:
    text = (resources.files("analysis.independent") / "sql" / "facts" / "1_records.sql").read_text()
    reports = {**Notice.__members__, **CallReport.__members__, **MutexReport.__members__}

    found = re.findall(r"WHEN (\d+) THEN '(\w+)'", text)
    assert found
    for code, word in found:
        known = Event.__members__ if int(code) < min(MutexReport) else reports
        assert known[word.upper()] == int(code)


def test_the_codes_of_reports_of_messages_are_those_of_the_trace() -> None:
    text = (resources.files("analysis.independent") / "sql" / "properties" / "grant_order.sql").read_text()
    assert f"detail IN ({GroupReport.SENT:d}, {GroupReport.GIVEN:d}, {GroupReport.TAKEN:d})" in text
    assert f"sent.code = {GroupReport.SENT:d} AND given.code = {GroupReport.GIVEN:d}" in text
    assert f"WHERE code = {GroupReport.TAKEN:d} GROUP BY ALL" in text


def test_every_property_has_its_file_and_its_definition() -> None:
    folder = resources.files("analysis.independent") / "sql" / "properties"
    texts = {file.name.removesuffix(".sql"): file.read_text() for file in folder.iterdir()}

    assert texts.keys() == {kind.value for kind in Property}
    assert all(text.startswith("-- ") for text in texts.values())


# Single edits of the product's checks, each noticed by a disagreement.


EDITS = (
    Edit(linear.IncarnationRecord.judge_at, "in rows]", "in rows[:-1]]"),
    Edit(linear._without_repeats, "row[1] not in seen", "True"),
    Edit(linear._not_undone, " and following.get(key) != _UNDO", ""),
    Edit(views.Installation.agrees, " and all(one == another for one, another in pairs)", ""),
    Edit(vars(views.ViewRecords)["is_founder"].fget, "return bool", "return False and bool"),
    Edit(synchrony._beyond, "if not stateful:", "if True:"),
)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_an_edited_check_is_noticed(edit: Edit, monkeypatch: pytest.MonkeyPatch) -> None:
    of_views = (histories.deliver_again, histories.rename_member)
    runs = random_orders(400, 0) + [made("views, uniform", seed, (of_views[seed % 2],)) for seed in range(200)]
    expected = opinions(runs, OF_ORDERS)
    edit.apply(monkeypatch)
    found = [by_linear(OF_ORDERS)(history) for history in runs]

    assert any(disagreements(one, third) for one, third in zip(found, expected, strict=True))


def test_the_same_verdict_from_fewer_deliveries_is_a_disagreement() -> None:
    """On a correct run a check that reads half of it gives the same verdict."""
    (third,) = opinions([histories.total_order(1)], [Property.FIFO])
    opinion = third[Property.FIFO]

    assert opinion.verdict is Verdict.PASS
    assert agrees(Verdict.PASS, opinion.checked, opinion)
    assert not agrees(Verdict.PASS, opinion.checked - 1, opinion)
    assert not agrees(Verdict.UNKNOWN, opinion.checked, opinion)
