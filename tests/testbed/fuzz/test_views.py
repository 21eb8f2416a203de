"""Coverage of views: from records made by hand, and from drawn worlds."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from node.trace import Event, ViewReason
from testbed.fuzz.coverage import Coverage, Freeze, IncarnationId, Met, views_met
from testbed.fuzz.draw import draw
from testbed.fuzz.judge import judge
from testbed.fuzz.listing import coverage_tables, views_table
from testbed.fuzz.scenario import Crash, Member, Scenario, Segment
from testbed.sim.member import IncarnationRun

Row = tuple[int, int, int, int, int, int, int, int, int, int, int]


def view(number: int, at_ns: int, reason: ViewReason = ViewReason.SUSPICION) -> Row:
    """The record of the first member of a view; the others do not matter here."""
    return (Event.VIEW, ViewReason.FIRST if number == 1 else reason, 0, 1, 0, number, at_ns, at_ns, 2, 0, 0)


def submitted(origin: int, number: int, at_ns: int) -> Row:
    return (Event.SUBMIT, 0, origin, 1, 0, number, at_ns, at_ns, 8, 0, 0)


def delivered(origin: int, number: int, at_ns: int) -> Row:
    return (Event.DELIVER, 0, origin, 1, 0, number, at_ns, at_ns, 1, 0, 0)


def state(at_ns: int) -> Row:
    return (Event.STATE, 0, 0, 1, 0, 2, at_ns, at_ns, 8, 0, 0)


def met(
    *incarnations: list[Row], freezes: dict[IncarnationId, list[Freeze]] | None = None, agreement: bool = True
) -> set[str]:
    """Conditions of the only later view, or of the last of several."""
    found = views_met(
        [IncarnationRun(member=member, incarnation=1, records=rows) for member, rows in enumerate(incarnations)],
        freezes or {},
        promises_agreement=agreement,
    )
    return {what for (reason, what), count in found.items() if reason == "suspicion" and what != Met.VIEWS}


def test_a_view_that_nobody_left_is_none() -> None:
    assert met([view(1, 0)], [view(1, 0)]) == set()


def test_a_view_that_is_struck_at_rest_met_nothing() -> None:
    rows = [view(1, 0), delivered(0, 1, 5), view(2, 100)]
    assert met([submitted(0, 1, 1), *rows], rows) == {Met.NOTHING}


def test_a_message_that_its_sender_has_not_delivered_was_under_way() -> None:
    assert met([view(1, 0), submitted(0, 1, 1), view(2, 100)], [view(1, 0), view(2, 100)]) == {Met.UNDELIVERED}


def test_a_message_that_one_survivor_has_and_another_lacks_was_partly_delivered() -> None:
    incarnations = [view(1, 0), delivered(2, 1, 5), view(2, 100)], [view(1, 0), view(2, 100), delivered(2, 1, 101)]
    assert met(*incarnations) == {Met.PARTLY_DELIVERED}
    assert met(*incarnations, agreement=False) == {Met.NOTHING}


def test_the_first_freeze_is_when_it_was_struck() -> None:
    rows = [view(1, 0), delivered(2, 1, 50), view(2, 100)]
    other = [view(1, 0), delivered(2, 1, 40), view(2, 100)]
    assert met(rows, other) == {Met.NOTHING}
    assert met(rows, other, freezes={(1, 1): [Freeze(45, 0)]}) == {Met.PARTLY_DELIVERED}
    assert met(rows, other, freezes={(1, 1): [Freeze(45, 3)]}) == {Met.PARTLY_DELIVERED, Met.HELD}
    assert met(rows, other, freezes={(1, 1): [Freeze(130, 3)]}) == {Met.NOTHING}, "a later change"


def test_a_joiner_without_the_state_left_the_view_unsettled() -> None:
    founder = [view(1, 0), delivered(0, 1, 5), view(2, 50, ViewReason.JOIN), view(3, 100)]
    joiner = [view(2, 60, ViewReason.JOIN), view(3, 100)]
    assert met(founder, joiner) == {Met.UNSETTLED}
    assert met(founder, [joiner[0], state(70), joiner[1]]) == {Met.NOTHING}


@pytest.mark.parametrize("protocol", ["reliable", "mutex"])
def test_views_of_drawn_worlds_are_counted_by_reason(protocol: str) -> None:
    total = Coverage()
    for seed in range(25):
        total.add(judge(draw(protocol, seed)).coverage)
    assert {reason for reason, _ in total.views} >= {"suspicion", "join"}
    assert total.views["suspicion", Met.UNDELIVERED] > 0
    assert all(0 < count <= total.views[reason, Met.VIEWS] for (reason, _), count in total.views.items())


def test_a_crash_at_rest_ends_one_view() -> None:
    members = (Member(submissions_ns=(0,)), Member(), Member(submissions_ns=(20 * 10**9,)))
    scenario = Scenario(
        protocol="reliable",
        seed=1,
        segments=(Segment(members=members),),
        faults=(Crash(at_ns=5 * 10**9, for_ns=1_000_000, member=1, is_final=True),),
    )
    assert judge(scenario).coverage.views_as_dict() == {"suspicion": {"views": 1, "nothing": 1}}


def test_the_tables_fit_the_terminal_and_cut_no_name_short() -> None:
    coverage = Coverage()
    for phase in ("changing", "member", "minority/undecided", "member/voting-timewarp", "joining", "over/undecided"):
        coverage.occurred[phase, "reliable_acknowledgement"] = 1_234_567
        coverage.met[phase, "reliable_acknowledgement"] = 12_345
        coverage.views["bad pair", Met.PARTLY_DELIVERED] += 1
        coverage.views["bad pair", Met.VIEWS] += 2
        coverage.views["join", Met.VIEWS] += 3
    console = Console(file=StringIO(), width=80, highlight=False, record=True)
    for table in (*coverage_tables(coverage, width=80), views_table(coverage)):
        console.print(table)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    assert "12k / 1.2M" in text
    assert "…" not in text
    assert text.count("reliable_acknowledgement") == 2
    assert [line.split() for line in text.splitlines() if line.split()[:1] == ["all"]] == [["all", "30", "6"]]
