"""Shrinking: a deliberate bug shrinks to a few messages, the same ones each time, and can be replayed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from node.registry import PROTOCOLS
from testbed.fuzz.draw import draw, is_fair
from testbed.fuzz.failure import Shown, show
from testbed.fuzz.judge import Build, judge
from testbed.fuzz.scenario import Cut, LinkCut, Member, OneWayCut, Scenario, Segment, experiment_of
from testbed.fuzz.shrink import shrink, with_submissions, without_member
from testbed.spec.experiment import load
from testbed.spec.raw import Parameter
from tests.testbed.fuzz.broken import forgetful, hasty_sequencer

SEEDS = range(60)


def first_failure(protocol: str, build: Build, keep: Path) -> Shown:
    """Failure of the broken core at the first seed that shows it, shrunk."""
    for seed in SEEDS:
        shown = show(draw(protocol, seed), keep=keep, build=build)
        if shown is not None:
            return shown
    raise AssertionError("no seed shows the bug")


@pytest.mark.parametrize(
    ("protocol", "build", "kinds"),
    [("sequencer", hasty_sequencer, {"causal", "total_order"}), ("reliable", forgetful, {"integrity"})],
)
def test_a_bug_on_purpose_shrinks_to_a_handful_of_messages(
    protocol: str, build: Build, kinds: set[str], tmp_path: Path
) -> None:
    shown = first_failure(protocol, build, tmp_path)
    small = shown.scenario
    assert shown.failure.kind in kinds
    assert shown.shrunk.is_complete
    assert max(len(small.submissions), len(small.members)) <= 3
    assert len(small.faults) <= 1
    assert small.parameters == {}
    assert is_fair(small)
    assert "submit" in shown.picture
    assert shown.path is not None
    assert shown.failure.sentence in shown.path.read_text(encoding="utf-8")
    assert load(shown.path, protocols=PROTOCOLS).protocol.name == protocol
    assert shown.replay == (
        f"orderbed run {shown.path} --world sim",
        f"orderbed fuzz {protocol} --seed {shown.seed}",
    )
    assert first_failure(protocol, build, tmp_path) == shown, "each time the same"
    again = show(small, keep=None, build=build)
    assert again is not None, "the smaller scenario fails by itself"
    assert again.failure.kind == shown.failure.kind
    assert judge(small).is_good, "with the correct core"


def test_a_smaller_scenario_that_contradicts_itself_is_left_out() -> None:
    def fails(scenario: Scenario) -> bool:
        experiment_of(scenario)
        return "first" in scenario.parameters

    parameters: dict[str, Parameter] = {"candidates": "sequencer, atop", "first": "atop", "dwell_ns": 0}
    shrunk = shrink(replace(draw("adaptive", 0), parameters=parameters), fails)
    assert set(shrunk.scenario.parameters) == {"candidates", "first"}


def test_a_good_seed_has_nothing_to_show() -> None:
    assert show(draw("reliable", 1), keep=None) is None


def test_the_budget_ends_the_search() -> None:
    scenario = draw("reliable", 1)
    asked = 0

    def fails(_: Scenario) -> bool:
        nonlocal asked
        asked += 1
        return True

    shrunk = shrink(scenario, fails, budget=7)
    assert (asked, shrunk.simulations, shrunk.is_complete) == (7, 7, False)


def test_what_always_fails_becomes_as_small_as_can_be_and_what_never_fails_stays() -> None:
    scenario = draw("reliable", 3)
    assert shrink(scenario, lambda _: False).scenario == scenario
    small = shrink(scenario, lambda _: True).scenario
    assert (len(small.members), len(small.submissions), len(small.faults), len(small.segments)) == (2, 1, 0, 1)
    assert small.submissions[0][0] == 0
    assert all(member == Member(submissions_ns=member.submissions_ns) for member in small.members)


def test_a_member_that_goes_takes_its_faults_along_and_the_others_move_up() -> None:
    members = tuple(Member(submissions_ns=(number,)) for number in range(4))
    scenario = Scenario(
        protocol="reliable",
        seed=1,
        segments=(Segment(members=members[:1]), Segment(members=members[1:])),
        faults=(
            Cut(at_ns=0, for_ns=1, sides=((0,), (1, 3))),
            OneWayCut(at_ns=0, for_ns=1, source=1, target=2),
            OneWayCut(at_ns=0, for_ns=1, source=3, target=2),
            LinkCut(at_ns=0, for_ns=1, segment=1, behind=(1, 2, 3)),
        ),
    )
    smaller = without_member(scenario, 1)
    assert [member.submissions_ns for member in smaller.members] == [(0,), (2,), (3,)]
    assert smaller.faults == (
        Cut(at_ns=0, for_ns=1, sides=((0,), (2,))),
        OneWayCut(at_ns=0, for_ns=1, source=2, target=1),
        LinkCut(at_ns=0, for_ns=1, segment=1, behind=(1, 2)),
    )
    only_second = without_member(scenario, 0)
    assert len(only_second.segments) == 1
    assert [type(fault) for fault in only_second.faults] == [OneWayCut, OneWayCut]


def test_submissions_are_dealt_to_their_members() -> None:
    scenario = draw("reliable", 2)
    assert with_submissions(scenario, scenario.submissions) == scenario
    assert with_submissions(scenario, scenario.submissions[:1]).submissions == scenario.submissions[:1]
