"""The shipped experiments about views: which members go on, which are in a minority, which come back, and how."""

from __future__ import annotations

from functools import cache

import pytest

from analysis.checks.linear import check_lives
from analysis.checks.properties import Incarnation, Property, Verdict
from node.registry import PROTOCOLS
from node.trace import Event, ViewReason
from testbed.sim.simulation import Ending, Life, Simulation, simulate
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


def last_view(life: Life) -> tuple[int, ...]:
    """Its members by rank."""
    views = [row for row in life.records if row[0] == Event.VIEW]
    return tuple(row[2] for row in views if row[5] == views[-1][5])


def reasons(life: Life) -> list[int]:
    """Why each view that it installed began."""
    return [row[1] for row in life.records if row[0] == Event.VIEW and row[4] == 0]


def was_in_a_minority(life: Life) -> bool:
    return any(row[0] == Event.MINORITY and row[1] == 1 for row in life.records)


def incarnations(simulation: Simulation) -> list[tuple[int, int]]:
    return sorted((life.member, life.incarnation) for life in simulation.lives)


@pytest.mark.parametrize("name", ["equal-halves", "minority-returns", "bad-pair", "churn"])
def test_what_views_promise_holds(name: str) -> None:
    simulation = run(name)
    assert simulation.phases.drained_ns is not None
    lives = {Incarnation(life.member, life.incarnation): life.records for life in simulation.lives}
    promised = [*VIEWS, *(Property(one) for one in PROTOCOLS["reliable"].promises)]
    found = check_lives(lives, members=sorted({life.member for life in simulation.lives}), kinds=promised)
    assert {kind: finding.verdict for kind, finding in found.items()} == dict.fromkeys(promised, Verdict.PASS)


def test_of_equal_halves_that_with_the_first_ranked_member_goes_on() -> None:
    simulation = run("equal-halves")
    assert incarnations(simulation) == [(0, 1), (1, 1), (2, 1), (2, 2), (3, 1), (3, 2)]
    for life in simulation.lives:
        assert was_in_a_minority(life) == (life.member >= 2 and life.incarnation == 1)
        assert (life.ending is Ending.EXCLUDED) == (life.member >= 2 and life.incarnation == 1)
        if life.ending is Ending.DRAINED:
            assert last_view(life)[:2] == (0, 1)
            assert len(last_view(life)) == 4


def test_a_minority_returns_behind_those_that_went_on() -> None:
    simulation = run("minority-returns")
    assert incarnations(simulation) == [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (3, 1), (4, 1)]
    assert [life.member for life in simulation.lives if was_in_a_minority(life)] == [0, 1]
    assert {last_view(life)[:3] for life in simulation.lives if life.ending is Ending.DRAINED} == {(2, 3, 4)}


def test_of_a_bad_pair_the_later_in_rank_is_left_out_until_all_hear_it() -> None:
    simulation = run("bad-pair")
    assert incarnations(simulation) == [(0, 1), (1, 1), (2, 1), (3, 1), (3, 2), (4, 1)]
    assert not any(was_in_a_minority(life) for life in simulation.lives)
    assert reasons(simulation.lives[0]) == [ViewReason.FIRST, ViewReason.BAD_PAIR, ViewReason.JOIN]
    assert last_view(simulation.lives[0]) == (0, 1, 2, 4, 3)


def test_churn_has_members_that_join_leave_crash_and_are_started_again() -> None:
    simulation = run("churn")
    endings = {life.ending for life in simulation.lives}
    assert endings == {Ending.DRAINED, Ending.CRASHED, Ending.LEFT}
    assert [life.incarnation for life in simulation.lives if life.member == 3] == [1], (
        "one member is there all the time"
    )
    assert len(reasons(next(life for life in simulation.lives if life.member == 3))) > 50
