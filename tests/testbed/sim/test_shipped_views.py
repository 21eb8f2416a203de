"""The shipped experiments on views: members that go on, members in a minority, and members that return."""

from __future__ import annotations

from functools import cache

import pytest

from analysis.checks.linear import check_incarnations
from analysis.checks.properties import Property, Verdict
from node.registry import PROTOCOLS
from node.trace import Event, ViewReason
from testbed.sim.simulation import Ending, IncarnationRun, Simulation, simulate
from testbed.spec import experiment as spec

VIEWS = (
    Property.VIEW_AGREEMENT,
    Property.SAME_VIEW,
    Property.VIRTUAL_SYNCHRONY,
    Property.NO_GHOST,
    Property.STATE_TRANSFER,
)


@cache
def run(name: str) -> Simulation:
    return simulate(spec.load(spec.find(name), protocols=PROTOCOLS), group=7)


def last_view(incarnation: IncarnationRun) -> tuple[int, ...]:
    """Members of its last view by rank."""
    views = [row for row in incarnation.records if row[0] == Event.VIEW]
    return tuple(row[2] for row in views if row[5] == views[-1][5])


def reasons(incarnation: IncarnationRun) -> list[int]:
    """Reason of each view that it installed."""
    return [row[1] for row in incarnation.records if row[0] == Event.VIEW and row[4] == 0]


def was_in_a_minority(incarnation: IncarnationRun) -> bool:
    return any(row[0] == Event.MINORITY and row[1] == 1 for row in incarnation.records)


def incarnations(simulation: Simulation) -> list[tuple[int, int]]:
    return sorted((incarnation.member, incarnation.incarnation) for incarnation in simulation.incarnations)


@pytest.mark.parametrize("name", ["equal-halves", "minority-returns", "bad-pair", "churn"])
def test_what_views_promise_holds(name: str) -> None:
    simulation = run(name)
    assert simulation.phases.drained_ns is not None
    promised = [*VIEWS, *(Property(one) for one in PROTOCOLS["reliable"].promises)]
    found = check_incarnations(
        simulation.records,
        members=sorted({incarnation.member for incarnation in simulation.incarnations}),
        kinds=promised,
    )
    assert {kind: finding.verdict for kind, finding in found.items()} == dict.fromkeys(promised, Verdict.PASS)


def test_of_equal_halves_that_with_the_first_ranked_member_goes_on() -> None:
    simulation = run("equal-halves")
    assert incarnations(simulation) == [(0, 1), (1, 1), (2, 1), (2, 2), (3, 1), (3, 2)]
    for incarnation in simulation.incarnations:
        assert was_in_a_minority(incarnation) == (incarnation.member >= 2 and incarnation.incarnation == 1)
        assert (incarnation.ending is Ending.EXCLUDED) == (incarnation.member >= 2 and incarnation.incarnation == 1)
        if incarnation.ending is Ending.DRAINED:
            assert last_view(incarnation)[:2] == (0, 1)
            assert len(last_view(incarnation)) == 4


def test_a_minority_returns_behind_those_that_went_on() -> None:
    simulation = run("minority-returns")
    assert incarnations(simulation) == [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (3, 1), (4, 1)]
    assert [incarnation.member for incarnation in simulation.incarnations if was_in_a_minority(incarnation)] == [0, 1]
    assert {
        last_view(incarnation)[:3] for incarnation in simulation.incarnations if incarnation.ending is Ending.DRAINED
    } == {(2, 3, 4)}


def test_of_a_bad_pair_the_later_in_rank_is_left_out_until_all_hear_it() -> None:
    simulation = run("bad-pair")
    assert incarnations(simulation) == [(0, 1), (1, 1), (2, 1), (3, 1), (3, 2), (4, 1)]
    assert not any(was_in_a_minority(incarnation) for incarnation in simulation.incarnations)
    assert reasons(simulation.incarnations[0]) == [ViewReason.FIRST, ViewReason.BAD_PAIR, ViewReason.JOIN]
    assert last_view(simulation.incarnations[0]) == (0, 1, 2, 4, 3)


def test_churn_has_members_that_join_leave_crash_and_are_started_again() -> None:
    simulation = run("churn")
    endings = {incarnation.ending for incarnation in simulation.incarnations}
    assert endings == {Ending.DRAINED, Ending.CRASHED, Ending.LEFT}
    assert [incarnation.incarnation for incarnation in simulation.incarnations if incarnation.member == 3] == [1], (
        "one member is there all the time"
    )
    assert len(reasons(next(incarnation for incarnation in simulation.incarnations if incarnation.member == 3))) > 50
