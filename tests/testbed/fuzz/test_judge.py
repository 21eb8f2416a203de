"""What counts as a failure: each kind is shown by a core that has it, and by none that has not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analysis.checks.oracle import raw
from analysis.checks.properties import Property, Verdict
from node.core import Core, Membership
from node.effects import Effect, Multicast, SetTimer, Timer
from node.trace import Event
from node.wire import Kind
from testbed.fuzz.coverage import Coverage, from_rows
from testbed.fuzz.draw import FUZZED, draw
from testbed.fuzz.judge import GROUP, Failure, findings_of, is_expelled, judge
from testbed.fuzz.scenario import Crash, Cut, Freeze, Member, Scenario, Segment, Worsening, experiment_of
from testbed.sim.member import IncarnationRun
from testbed.sim.simulation import simulate
from tests.analysis.checks.view_histories import A, B, C, Story
from tests.analysis.histories import PlainHistory
from tests.testbed.fuzz.broken import PlainCore, RaisingCore
from topologies.model import Direction

MILLISECOND = 1_000_000


def small(protocol: str = "reliable", members: int = 3) -> Scenario:
    """Each member sends two messages."""
    sender = Member(submissions_ns=(0, 5 * MILLISECOND))
    return Scenario(protocol=protocol, seed=1, segments=(Segment(members=(sender,) * members),))


class TalkativeCore(PlainCore):
    """Idle, and for ever about something."""

    def on_start(self, now_ns: int) -> list[Effect]:
        return self.on_timer(Timer("again"), now_ns)

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        again = SetTimer(timer=timer, at_ns=now_ns + 1000 * MILLISECOND)
        return [Multicast(message=self._us.message(Kind.CBCAST_DATA, payload=b"")), again]


class RestlessCore(TalkativeCore):
    """Never idle, and for ever at it."""

    @property
    def is_idle(self) -> bool:
        return False


class HoardingCore(PlainCore):
    """Idle, and keeps what it had."""

    @property
    def buffered(self) -> int:
        return self._number


@pytest.mark.parametrize("protocol", FUZZED)
def test_a_right_core_in_a_quiet_network_is_good(protocol: str) -> None:
    judged = judge(small(protocol))
    assert judged.failures == ()
    assert judged.deliveries > 0


@pytest.mark.parametrize(
    ("core", "kind"),
    [(RestlessCore, "rest"), (TalkativeCore, "silence"), (HoardingCore, "buffered"), (RaisingCore, "exception")],
)
def test_each_kind_of_failure(core: type[PlainCore], kind: str) -> None:
    def build(membership: Membership, seed: int) -> Core:
        return core(membership)

    kinds = {failure.kind for failure in judge(small(), build=build).failures}
    assert kinds == {kind}


def test_an_exception_is_named_by_its_place() -> None:
    failure = judge(small(), build=lambda membership, seed: RaisingCore(membership)).failures[0]
    assert "AssertionError" in failure.sentence
    assert "a second message" in failure.sentence
    assert failure.where.endswith(":on_message")


def test_a_core_that_repairs_nothing_loses_what_a_cut_took() -> None:
    cut = replace(small(), faults=(Cut(at_ns=0, for_ns=MILLISECOND, sides=((0,), (1, 2))),))
    broken = judge(cut, build=lambda membership, seed: PlainCore(membership))
    assert [failure.kind for failure in broken.failures] == ["agreement", "fifo"]
    assert "p1/n1 #1" in broken.failures[0].sentence
    assert judge(cut).failures == ()


def test_who_was_silent_for_too_long_counts_as_crashed() -> None:
    """The others exclude it, and nothing of that is a failure."""
    parameters = {"suspect_after_ns": 1000 * MILLISECOND}
    away = Freeze(at_ns=MILLISECOND, for_ns=5000 * MILLISECOND, member=2)
    judged = judge(replace(small("reliable"), parameters=parameters, faults=(away,)))
    assert judged.failures == ()
    assert ("excluded", "group_decided") in judged.coverage.pairs


def test_who_is_given_up_without_need_is_a_failure() -> None:
    """Each of many short silences is short; together they use up the patience of the group."""
    parameters = {"suspect_after_ns": 1000 * MILLISECOND}
    away = [Freeze(at_ns=(1 + 200 * n) * MILLISECOND, for_ns=199 * MILLISECOND, member=2) for n in range(1)]
    cut = [Cut(at_ns=200 * n * MILLISECOND, for_ns=200 * MILLISECOND, sides=((2,), (0, 1))) for n in range(25)]
    judged = judge(replace(small("reliable"), parameters=parameters, faults=(*away, *cut)))
    assert "expelled" in [failure.kind for failure in judged.failures]


def test_a_restarted_member_is_judged_as_a_joiner() -> None:
    down = Crash(at_ns=2 * MILLISECOND, for_ns=50 * MILLISECOND, member=1)
    judged = judge(replace(small("reliable"), faults=(down,), parameters={"suspect_after_ns": 1000 * MILLISECOND}))
    assert judged.failures == ()
    assert ("joining", "group_decided") in judged.coverage.pairs


def test_of_two_members_either_may_be_given_up_when_one_of_them_hears_nobody() -> None:
    members = tuple(Member(submissions_ns=(0, 8000 * MILLISECOND)) for _ in range(2))
    scenario = Scenario(
        protocol="reliable",
        seed=1,
        segments=(Segment(members=members),),
        parameters={"suspect_after_ns": 1200 * MILLISECOND},
        faults=(
            Worsening(
                at_ns=1000 * MILLISECOND,
                for_ns=5000 * MILLISECOND,
                member=0,
                direction=Direction.TO_NODE,
                changes=(("loss_ratio", 1.0), ("loss_burst_frames", 1.0)),
            ),
        ),
    )
    incarnations = simulate(experiment_of(scenario), group=GROUP).incarnations
    assert [incarnation.member for incarnation in incarnations if is_expelled(incarnation)] == [1]
    assert judge(scenario).is_good


def test_failures_are_alike_by_kind_and_place() -> None:
    one = Failure(kind="exception", sentence="a", where="co.py:_on_data")
    assert one.is_like(replace(one, sentence="b"))
    assert not one.is_like(replace(one, where="co.py:_on_ret"))
    assert not one.is_like(replace(one, kind="rest"))


def test_coverage_counts_inputs_under_a_fault() -> None:
    quiet = judge(small()).coverage
    assert quiet.pairs_met == 0
    assert ("member", "reliable_data") in quiet.pairs
    frozen = judge(replace(small(), faults=(Freeze(at_ns=0, for_ns=MILLISECOND, member=0),))).coverage
    assert frozen.met["member", "reliable_data"] > 0
    assert frozen.met["member", "reliable_data"] < frozen.occurred["member", "reliable_data"]


def test_a_message_that_a_cut_keeps_away_counts_as_met() -> None:
    scenario = small(members=2)
    cut = judge(replace(scenario, faults=(Cut(at_ns=0, for_ns=MILLISECOND, sides=((0,), (1,))),)))
    assert cut.faults_met == 1
    assert cut.coverage.met["member", "reliable_data"] == 2
    assert (
        cut.coverage.occurred["member", "reliable_data"] > judge(scenario).coverage.occurred["member", "reliable_data"]
    )


def test_coverage_adds_up_and_survives_its_rows() -> None:
    total = Coverage()
    for seed in range(5):
        total.add(judge(draw("reliable", seed)).coverage)
    again = from_rows(total.rows())
    assert (again.occurred, again.met) == (total.occurred, +total.met)
    assert total.as_dict()["member"]["reliable_data"]["occurred"] == total.occurred["member", "reliable_data"]


def order_of(history: PlainHistory) -> Verdict:
    """As if a run of the sequencer had left this history."""
    scenario = small("sequencer")
    incarnations = tuple(
        IncarnationRun(member=m, incarnation=i, records=list(rows)) for (m, i), rows in raw(history).items()
    )
    simulation = replace(simulate(experiment_of(scenario), group=GROUP), incarnations=incarnations)
    return findings_of(scenario, simulation)[Property.TOTAL_ORDER].verdict


@pytest.mark.parametrize("end", [None, Event.ENDED])
def test_with_views_crashed_and_excluded_incarnations_are_held_to_the_order(end: Event | None) -> None:
    def story(*, has_views: bool) -> PlainHistory:
        told = Story(A, B, C)
        if has_views:
            told.install(1, A, B, C)
        told.deliver((A, B), "a1", "b1").deliver(C, "b1", "a1")
        if has_views:
            told.install(2, A, B)
        return (told if end is None else told.note(C, end)).stop(A, B)

    assert order_of(story(has_views=False)) is Verdict.PASS
    assert order_of(story(has_views=True)) is Verdict.FAIL


def test_an_excluded_incarnation_counts_as_expelled_and_one_that_left_does_not() -> None:
    records = raw(Story(A, B).note(A, Event.ENDED, 0).note(B, Event.ENDED, 1).author.history)

    assert is_expelled(IncarnationRun(member=0, incarnation=1, records=list(records[A])))
    assert not is_expelled(IncarnationRun(member=1, incarnation=1, records=list(records[B])))
