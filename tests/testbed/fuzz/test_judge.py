"""Kinds of failure: each is found in a core that has it, and in no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from analysis.checks import linear
from analysis.checks.calls import Call, Calls
from analysis.checks.oracle import raw
from analysis.checks.properties import Finding, MessageId, Property, Tally, Verdict
from node.core import Core, Membership
from node.effects import Effect, Minority, Multicast, SetTimer, Timer
from node.group.detector import Accusations
from node.group.view import View
from node.host.host import Host
from node.registry import PROTOCOLS
from node.trace import EndReason, Event, GroupReport, Level
from node.wire import Kind, Message
from testbed.fuzz.coverage import Coverage, Met, from_rows
from testbed.fuzz.draw import FUZZED, draw
from testbed.fuzz.judge import (
    COMPARED_EVERY,
    GROUP,
    WITHOUT_A_QUORUM,
    Failure,
    _after_the_end,
    _excluded_without_fault,
    _given_up,
    _left,
    _owed,
    _without_a_quorum,
    findings_of,
    is_excluded,
    judge,
    unknown_safety,
)
from testbed.fuzz.scenario import (
    ClockShift,
    Crash,
    Cut,
    Freeze,
    Leave,
    Member,
    OneWayCut,
    Scenario,
    Segment,
    Worsening,
    experiment_of,
)
from testbed.sim.member import IncarnationRun
from testbed.sim.simulation import START_NS, Ending, Simulation, simulate
from testbed.spec.raw import Parameter
from tests.analysis.checks.view_histories import C2, A, B, C, HistoryBuilder
from tests.analysis.histories import PlainHistory
from tests.testbed.fuzz.broken import PlainCore, RaisingCore
from topologies.model import Bus, Direction, Impairment

MILLISECOND = 1_000_000


def small(protocol: str = "reliable", members: int = 3) -> Scenario:
    """A scenario in which each member sends two messages."""
    sender = Member(submissions_ns=(0, 5 * MILLISECOND))
    return Scenario(protocol=protocol, seed=1, segments=(Segment(members=(sender,) * members),))


class TalkativeCore(PlainCore):
    """Idle, and sends for ever."""

    def on_start(self, now_ns: int) -> list[Effect]:
        return self.on_timer(Timer("again"), now_ns)

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        again = SetTimer(timer=timer, at_ns=now_ns + 1000 * MILLISECOND)
        return [Multicast(message=self._us.message(Kind.CBCAST_DATA, payload=b"")), again]


class RestlessCore(TalkativeCore):
    """Never idle, and sends for ever."""

    is_idle = False


class HoardingCore(PlainCore):
    """Idle, and keeps its messages."""

    @property
    def buffered(self) -> int:
        return self._last


class EndingCore(PlainCore):
    """Reports that it is excluded as soon as it receives a message."""

    has_ended = False

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        self.has_ended = True
        return super().on_message(message, source, now_ns)


class LeavingCore(EndingCore):
    """Reports that it has left."""

    @property
    def has_left(self) -> bool:
        return self.has_ended


class StrandedCore(PlainCore):
    """Idle, and in a minority for ever, in which it delivers."""

    def on_start(self, now_ns: int) -> list[Effect]:
        return [Minority(view=1, begins=True, heard=1)]


@pytest.mark.parametrize("protocol", FUZZED)
def test_a_right_core_in_a_quiet_network_is_good(protocol: str) -> None:
    judged = judge(small(protocol))
    assert judged.failures == ()
    assert judged.deliveries > 0


def failures_of(core: type[PlainCore]) -> tuple[Failure, ...]:
    return judge(small(), build=lambda membership, seed: core(membership)).failures


@pytest.mark.parametrize(
    ("core", "kinds"),
    [
        (RestlessCore, {"rest"}),
        (StrandedCore, {"rest", "quorum"}),
        (TalkativeCore, {"silence"}),
        (HoardingCore, {"buffered"}),
        (RaisingCore, {"exception"}),
    ],
)
def test_each_kind_of_failure(core: type[PlainCore], kinds: set[str]) -> None:
    assert {failure.kind for failure in failures_of(core)} == kinds


@pytest.mark.parametrize(("refused", "is_good"), [(2, True), (3, False)])
def test_more_refused_calls_than_others_are_a_failure(refused: int, is_good: bool) -> None:
    """A group may be empty, so that one refused call is none."""
    calls = Calls()
    for number in range(1, 3 + refused):
        call = Call(message=(*A, number), caller=(A, 1), at_ns=5, record=number, payload=(0, 0))
        call.addressed, call.is_refused = ({(1, 1)}, False) if number < 3 else (set(), True)
        calls.by_message[call.message] = call
    assert (not list(_given_up(calls))) is is_good


def test_an_exception_is_named_by_its_place() -> None:
    failure = failures_of(RaisingCore)[0]
    assert "AssertionError" in failure.sentence
    assert "a second message" in failure.sentence
    assert failure.where.endswith(":on_message")


@pytest.mark.parametrize(
    ("core", "sentence"),
    [
        (EndingCore, "member 0 was excluded, but no view leaves it out"),
        (LeavingCore, "member 0 left although nobody asked it to"),
    ],
)
def test_an_end_that_no_fault_explains_is_a_failure(core: type[PlainCore], sentence: str) -> None:
    assert sentence in {failure.sentence for failure in failures_of(core)}


def test_an_excluded_member_may_be_the_only_one_that_counts_the_votes() -> None:
    """Frames of member 0 get lost. The others vote to leave it out, and member 1 crashes before 2 and 3 hear all votes;
    then member 0 crashes, and 2 and 3 are no quorum.
    """
    lossy = Impairment(delay_ns=MILLISECOND // 10, loss_ratio=0.12)
    members = (
        Member(),
        Member(to_node=Impairment(delay_ns=MILLISECOND, loss_ratio=0.05, duplicate_ratio=0.05)),
        Member(
            submissions_ns=(1_822_116_679, 2500 * MILLISECOND),
            from_node=Impairment(delay_ns=MILLISECOND, reorder_ratio=0.5),
        ),
        Member(
            to_node=Impairment(delay_ns=MILLISECOND // 10, duplicate_ratio=0.3, corrupt_ratio=0.02), from_node=lossy
        ),
    )
    mute = (("loss_ratio", 1.0), ("loss_burst_frames", 1.0))
    scenario = Scenario(
        protocol="lo",
        seed=1,
        segments=(Segment(members=members, bus=Bus(rate_bps=10_000_000, queue_frames=100)),),
        faults=(
            Worsening(at_ns=1_347_339_886, for_ns=3_679_992_057, member=0, direction=Direction.FROM_NODE, changes=mute),
            OneWayCut(at_ns=4_383_364_776, for_ns=195_312, source=1, target=3),
            Crash(at_ns=4_383_364_777, for_ns=MILLISECOND, member=1, is_final=True),
            Crash(at_ns=4_939_742_434, for_ns=MILLISECOND, member=0, is_final=True),
        ),
        parameters={"retry_first_ns": 50 * MILLISECOND, "suspect_after_ns": 2500 * MILLISECOND},
        size_bytes=8,
    )
    judged = judge(scenario)
    assert judged.failures == ()
    assert ("excluded", "group_accepted") in judged.coverage.pairs


def test_a_cut_excuses_no_end_that_no_view_shows() -> None:
    cut = Cut(at_ns=0, for_ns=1000 * MILLISECOND, sides=((2,), (0, 1)))
    judged = judge(replace(small(), faults=(cut,)), build=lambda membership, seed: EndingCore(membership))
    assert "expelled" in {failure.kind for failure in judged.failures}


@pytest.mark.parametrize(
    ("fault", "at_ms", "is_excused"),
    [
        (Freeze, 7_190, True),
        (Freeze, 7_300, False),
        (Crash, 7_190, True),
        (Crash, 7_300, False),
        (partial(Crash, is_final=True), 7_300, True),
        (partial(ClockShift, step_ns=600 * MILLISECOND), 7_190, True),
        (partial(ClockShift, step_ns=600 * MILLISECOND), 7_300, False),
    ],
)
def test_a_fault_excuses_no_exclusion_long_after_it(
    fault: Callable[..., Freeze | Crash | ClockShift], at_ms: int, is_excused: bool
) -> None:
    """c is away or has a wrong clock for 1.2 s, and is given up after a silence of 1.2 s."""
    away = fault(at_ns=0, for_ns=1200 * MILLISECOND, member=2)
    parameters: dict[str, Parameter] = {"reliable": {"suspect_after_ns": 1200 * MILLISECOND}}
    scenario = replace(small("sequencer"), faults=(away,), parameters=parameters)
    assert kinds_at_an_exclusion(scenario, at_ms * MILLISECOND) == ([] if is_excused else ["expelled"])


def kinds_at_an_exclusion(scenario: Scenario, at_ns: int) -> list[str]:
    """Kinds of failures where a and b leave c out at this time, and c learns it."""
    builder = HistoryBuilder(A, B, C).install(1, A, B, C)
    builder.author.now_ns = START_NS + at_ns
    history = builder.install(2, A, B).note(C, Event.ENDED).stop(A, B)
    return [failure.kind for failure in _excluded_without_fault(scenario, simulation_of(scenario, history))]


def test_a_core_that_repairs_nothing_loses_what_a_cut_took() -> None:
    cut = replace(small(), faults=(Cut(at_ns=0, for_ns=MILLISECOND, sides=((0,), (1, 2))),))
    broken = judge(cut, build=lambda membership, seed: PlainCore(membership))
    assert [failure.kind for failure in broken.failures] == ["agreement", "fifo"]
    assert "p1/n1 #1" in broken.failures[0].sentence
    assert judge(cut).failures == ()


PATIENT_FOR_A_SECOND = {"suspect_after_ns": 1000 * MILLISECOND}


def test_who_was_silent_for_too_long_counts_as_crashed() -> None:
    """The others exclude it, which is no failure."""
    away = Freeze(at_ns=MILLISECOND, for_ns=5000 * MILLISECOND, member=2)
    judged = judge(replace(small(), parameters=PATIENT_FOR_A_SECOND, faults=(away,)))
    assert judged.failures == ()
    assert ("excluded", "group_decided") in judged.coverage.pairs


@pytest.mark.parametrize("later", [(), (Freeze(at_ns=60_000 * MILLISECOND, for_ns=20_000 * MILLISECOND, member=2),)])
def test_who_is_given_up_without_need_is_a_failure(later: tuple[Freeze, ...]) -> None:
    """Each silence is short; together they exceed the patience of the group. A later fault does not excuse it."""
    away = Freeze(at_ns=MILLISECOND, for_ns=199 * MILLISECOND, member=2)
    cuts = [Cut(at_ns=200 * n * MILLISECOND, for_ns=200 * MILLISECOND, sides=((2,), (0, 1))) for n in range(25)]
    judged = judge(replace(small(), parameters=PATIENT_FOR_A_SECOND, faults=(away, *cuts, *later)))
    assert "expelled" in [failure.kind for failure in judged.failures]


def losing(member: int, direction: Direction, *, at_ms: int, for_ms: int, ratio: float = 1.0) -> Worsening:
    """A port that loses this part of the frames, each by itself."""
    changes = (("loss_ratio", ratio), ("loss_burst_frames", 1.0))
    at_ns, for_ns = at_ms * MILLISECOND, for_ms * MILLISECOND
    return Worsening(at_ns=at_ns, for_ns=for_ns, member=member, direction=direction, changes=changes)


def bad_pair(member: int, seed: int) -> Scenario:
    """The member hears one frame in 16: for a while it hears one of the others, and not the other one."""
    noise = losing(member, Direction.TO_NODE, at_ms=1, for_ms=6000, ratio=0.94)
    return replace(small(), seed=seed, parameters=PATIENT_FOR_A_SECOND, faults=(noise,))


def test_the_lower_ranked_of_a_bad_pair_may_leave_for_the_other_one() -> None:
    judged = judge(bad_pair(0, seed=39))
    assert judged.failures == ()
    assert ("excluded", "group_decided") in judged.coverage.pairs


def test_the_higher_ranked_of_a_bad_pair_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that takes the ranks the wrong way round."""
    victims = Accusations.victims

    def turned(self: Accusations, ranks: Mapping[int, int], *given: Any) -> frozenset[int]:
        return victims(self, {member: -rank for member, rank in ranks.items()}, *given)

    assert judge(bad_pair(1, seed=37)).is_good
    monkeypatch.setattr(Accusations, "victims", turned)
    assert [failure.kind for failure in judge(bad_pair(1, seed=37)).failures] == ["expelled"]


def test_a_restarted_member_is_judged_as_a_joiner() -> None:
    down = Crash(at_ns=2 * MILLISECOND, for_ns=50 * MILLISECOND, member=1)
    judged = judge(replace(small(), parameters=PATIENT_FOR_A_SECOND, faults=(down,)))
    assert judged.failures == ()
    assert ("joining", "group_decided") in judged.coverage.pairs


@pytest.mark.parametrize("is_quorum_left", [True, False])
def test_only_a_group_with_a_quorum_is_simulated_for_longer_than_its_patience(is_quorum_left: bool) -> None:
    """Each run makes the cores anew."""
    made: list[int] = []
    gone = tuple(Crash(at_ns=0, for_ns=1, member=member, is_final=True) for member in (1, 2))
    scenario = small() if is_quorum_left else replace(small(), faults=gone)

    def build(membership: Membership, seed: int) -> Core:
        made.append(membership.member)
        if is_quorum_left:
            return RestlessCore(membership)
        return PROTOCOLS["reliable"].build(membership=membership, parameters={}, seed=seed)

    judged = judge(scenario, build=build)
    assert (WITHOUT_A_QUORUM in judged.unjudged) is not is_quorum_left
    assert [failure.kind for failure in judged.failures] == (["rest"] if is_quorum_left else [])
    assert made == [0, 1, 2] * (2 if is_quorum_left else 1)


def test_a_minority_that_goes_on_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two views of one number would break an agreement; the only member that is left breaks none."""
    gone = tuple(Crash(at_ns=0, for_ns=1, member=member, is_final=True) for member in (1, 2))
    scenario = replace(small(), faults=gone)
    assert judge(scenario).is_good
    monkeypatch.setattr(View, "is_quorum", lambda *_: True)
    assert "quorum" in {failure.kind for failure in judge(scenario).failures}


def test_of_two_members_either_may_be_given_up_when_one_of_them_hears_nobody() -> None:
    members = (Member(submissions_ns=(0, 8000 * MILLISECOND)),) * 2
    deaf = losing(0, Direction.TO_NODE, at_ms=1000, for_ms=5000)
    parameters = {"suspect_after_ns": 1200 * MILLISECOND}
    scenario = replace(small(), segments=(Segment(members=members),), parameters=parameters, faults=(deaf,))
    incarnations = simulate(experiment_of(scenario), group=GROUP).incarnations
    assert [incarnation.member for incarnation in incarnations if is_excluded(incarnation)] == [1]
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
    for seed in range(8):
        total.add(judge(draw("reliable", seed)).coverage)
    again = from_rows(total.rows(), total.view_rows())
    assert (again.occurred, again.met, again.views) == (total.occurred, +total.met, total.views)
    assert total.views_as_dict()["join"]["views"] == total.views["join", Met.VIEWS]
    assert total.as_dict()["member"]["reliable_data"]["occurred"] == total.occurred["member", "reliable_data"]


def simulation_of(scenario: Scenario, history: PlainHistory, *faults: dict[str, Any]) -> Simulation:
    """A run with these records, and these lines of faults.jsonl."""
    incarnations = tuple(
        IncarnationRun(
            member=name[0],
            incarnation=name[1],
            records=list(rows),
            ending=Ending.DRAINED if rows[-1][0] == Event.STOP else None,
        )
        for name, rows in raw(history).items()
    )
    simulated = simulate(experiment_of(scenario), group=GROUP)
    return replace(simulated, incarnations=incarnations, faults=faults)


def findings_in(history: PlainHistory) -> dict[Property, Finding]:
    """Verdicts on this history, as of a run of the sequencer."""
    scenario = small("sequencer")
    return findings_of(scenario, simulation_of(scenario, history))


@pytest.mark.parametrize(("at_ns", "is_excused"), [(0, True), (20, True), (21, False), (24, False)])
def test_a_fault_that_begins_after_an_exclusion_does_not_excuse_it(at_ns: int, is_excused: bool) -> None:
    """a goes on to the next view at 20; c learns it at 24."""
    pause = Freeze(at_ns=at_ns, for_ns=1000 * MILLISECOND, member=2)
    scenario = replace(small("sequencer"), faults=(pause,))
    assert kinds_at_an_exclusion(scenario, 19) == ([] if is_excused else ["expelled"])


def test_who_joined_and_lacks_the_state_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the two with the state crashes before the two others have it, and its next incarnation joins at once."""
    way = Impairment(delay_ns=10 * MILLISECOND)
    founder = Member(submissions_ns=(10 * MILLISECOND, 3000 * MILLISECOND), to_node=way)
    late = Member(joins_ns=20 * MILLISECOND, to_node=way)
    crash = Crash(at_ns=65 * MILLISECOND, for_ns=20 * MILLISECOND, member=0)
    members = (founder, late, founder, late)
    scenario = replace(small("sequencer"), segments=(Segment(members=members),), faults=(crash,))
    assert judge(scenario).is_good
    monkeypatch.setattr("testbed.fuzz.judge.left_out_without_state", lambda _: ())
    assert [failure.kind for failure in judge(scenario).failures] == ["expelled"] * 2


def test_a_joiner_that_did_not_hear_of_its_view_was_in_that_view() -> None:
    """Nothing that the only founder sends arrives. The third member is not there yet."""
    founder = Member(submissions_ns=(0, 5000 * MILLISECOND))
    members = (founder, Member(joins_ns=1000 * MILLISECOND), Member(joins_ns=8000 * MILLISECOND))
    mute = losing(0, Direction.FROM_NODE, at_ms=900, for_ms=3000)
    parameters = {"suspect_after_ns": 1200 * MILLISECOND}
    scenario = replace(small(), segments=(Segment(members=members),), parameters=parameters, faults=(mute,))
    simulation = simulate(experiment_of(scenario), group=GROUP)
    excluded = [incarnation for incarnation in simulation.incarnations if is_excluded(incarnation)]
    assert {(one.member, any(row[0] == Event.VIEW for row in one.records)) for one in excluded} == {(1, False)}
    assert judge(scenario).is_good


@pytest.mark.parametrize("protocol", ["reliable", "co"])
def test_who_leaves_as_asked_may_know_it_alone(protocol: str) -> None:
    """The other member crashes while the decision is under way to it."""
    way = Impairment(delay_ns=5 * MILLISECOND)
    leave = Leave(at_ns=10 * MILLISECOND, for_ns=900 * MILLISECOND, member=0)
    crash = Crash(at_ns=22 * MILLISECOND, for_ns=MILLISECOND, member=1, is_final=True)
    members = (Member(submissions_ns=(MILLISECOND,), to_node=way),) * 2
    scenario = replace(small(protocol), segments=(Segment(members=members),), faults=(leave, crash))
    leaver, other = simulate(experiment_of(scenario), group=GROUP).incarnations
    assert is_excluded(leaver)
    assert {row[5] for row in other.records if row[0] == Event.VIEW} == {1}
    assert judge(scenario).is_good


@pytest.mark.parametrize(
    ("later", "is_asked_again", "kinds"),
    [
        ("leaves", True, set()),
        ("leaves", False, {"left"}),
        ("is absent", True, set()),
        ("is absent", False, {"view_agreement"}),
        ("is of the quorum", True, set()),
        ("is of the quorum", False, {"quorum"}),
    ],
)
def test_a_request_to_leave_excuses_one_departure(later: str, is_asked_again: bool, kinds: set[str]) -> None:
    """c left and is back. a alone is no quorum of the view of a, b and c."""
    builder = HistoryBuilder(A, B, C).install(1, A, B, C)
    faults = [leave(builder)]
    builder.note(C, Event.ENDED, EndReason.LEFT).install(2, A, B).note(C2, Event.START).install(3, A, B, C2)
    builder.state(C2, 3)
    if is_asked_again:
        faults.append(leave(builder))
    if later == "leaves":
        history = builder.note(C2, Event.ENDED, EndReason.LEFT).install(4, A, B).stop(A, B)
    elif later == "is absent":
        history = builder.install(4, A, B).stop(A, B, C2)
    else:
        builder.note(C2, Event.DROP)
        history = builder.install(4, A).stop(A)
    scenario = small("sequencer")
    simulation = simulation_of(scenario, history, *faults)
    checks = (_owed, _left, _without_a_quorum)
    assert {failure.kind for check in checks for failure in check(scenario, simulation)} == kinds


def test_a_quorum_that_a_crashed_member_alone_has_put_into_a_view_lacks_it() -> None:
    builder = HistoryBuilder(A, B, C).install(1, A, B, C)
    builder.author.install(C, 2, [A, B, C])
    scenario = small("sequencer")
    found = list(_owed(scenario, simulation_of(scenario, builder.stop(A, B))))
    assert [(one.kind, one.sentence) for one in found] == [
        ("view_agreement", "member 0 did not install view 2, of which it is a member")
    ]


@pytest.mark.parametrize("end", [Event.STOP, Event.ENDED])
def test_an_incarnation_that_goes_on_after_its_end_is_found(end: Event) -> None:
    history = HistoryBuilder(A, B, C).note(C, end).note(C, Event.DROP).stop(A, B)
    found = list(_after_the_end(simulation_of(small(), history)))
    assert [one.sentence for one in found] == ["member 2 has records after its end"]


def leave(builder: HistoryBuilder) -> dict[str, Any]:
    """A fault that asks c to leave now."""
    now_ns = builder.author.now_ns
    return {"kind": "leave", "targets": ["p1/n3"], "issued_ns": now_ns, "effective_ns": now_ns}


@pytest.mark.parametrize("end", [None, Event.ENDED])
def test_crashed_incarnations_are_held_to_the_order_and_with_views_excluded_ones_too(end: Event | None) -> None:
    def history(*, has_views: bool) -> PlainHistory:
        builder = HistoryBuilder(A, B, C)
        if has_views:
            builder.install(1, A, B, C)
        builder.deliver((A, B), "a1", "b1").deliver(C, "b1", "a1")
        if has_views:
            builder.install(2, A, B)
        return (builder if end is None else builder.note(C, end)).stop(A, B)

    plain, viewed = (findings_in(history(has_views=one))[Property.TOTAL_ORDER].verdict for one in (False, True))
    assert (plain, viewed) == (Verdict.FAIL if end is None else Verdict.PASS, Verdict.FAIL)


def test_what_a_crashed_member_is_not_on_record_to_have_submitted_is_invented() -> None:
    """A simulation loses no record."""
    builder = HistoryBuilder(A, B, C).deliver((A, B, C), "c1")
    builder.author.note(A, Event.DELIVER, MessageId(*C, 2), Level.AGREED)
    assert findings_in(builder.stop(A, B))[Property.INTEGRITY].verdict is Verdict.FAIL


def test_an_unknown_safety_property_is_a_failure_if_no_record_was_lost() -> None:
    """Otherwise a core without a START record would make its whole world unknown."""
    history = HistoryBuilder(A, B).deliver((A, B), "a1").stop(A, B)
    history[A] = [record._replace(record=number) for number, record in enumerate(history[A][1:], start=1)]
    failures = list(unknown_safety(findings_in(history)))
    assert {failure.kind for failure in failures} == {"untold"}
    assert "trace records of p1/n1 are missing" in failures[0].sentence


@pytest.mark.parametrize(
    ("protocol", "parameters", "what"),
    [("mutex", {}, "fence_order"), ("co", {"trace_stages": True}, "stages")],
)
def test_members_that_report_nothing_are_found_out(
    protocol: str, parameters: dict[str, Parameter], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = replace(small(protocol), parameters=parameters)
    assert judge(scenario).is_good
    monkeypatch.setattr(Host, "_report", lambda *_: None)
    assert ("untold", what) in {(failure.kind, failure.where) for failure in judge(scenario).failures}


@pytest.mark.parametrize("code", [GroupReport.TAKEN, GroupReport.SENT, GroupReport.GIVEN])
def test_a_group_layer_that_no_longer_makes_one_report_is_found_out(
    code: GroupReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = Host._report
    monkeypatch.setattr(Host, "_report", lambda host, made: None if made.code == code else report(host, made))
    failures = judge(small("mutex")).failures
    assert f"grant_order: no member makes a report {code.name}" in {failure.sentence for failure in failures}
    assert {(failure.kind, failure.where) for failure in failures} == {("untold", "grant_order")}


def test_a_report_that_no_member_makes_is_missed_unless_all_crash_before_it() -> None:
    def unreporting(membership: Membership, seed: int) -> Core:
        return PROTOCOLS["timewarp"].build(membership=membership, parameters={}, seed=seed)

    service: Parameter = {"report_state": True, "processing_ns": MILLISECOND}
    scenario = replace(small("timewarp", members=2), parameters={"service": service})
    assert judge(scenario).is_good
    assert {failure.kind for failure in judge(scenario, build=unreporting).failures} == {"untold"}

    mixed: dict[str, Parameter] = {"candidates": "sequencer, atop", "first": "atop", "service": service}
    crashes = tuple(Crash(at_ns=1, for_ns=MILLISECOND, member=member, is_final=True) for member in (0, 1))
    crashing = replace(small("adaptive", members=2), parameters=mixed, faults=crashes)
    judged = judge(crashing)
    assert judged.deliveries
    assert judged.failures == ()


def test_an_incarnation_that_learnt_its_exclusion_is_excluded_and_one_that_left_is_not() -> None:
    records = raw(HistoryBuilder(A, B).note(A, Event.ENDED, 0).note(B, Event.ENDED, 1).author.history)

    assert is_excluded(IncarnationRun(member=0, incarnation=1, records=list(records[A])))
    assert not is_excluded(IncarnationRun(member=1, incarnation=1, records=list(records[B])))


def test_a_sampled_world_is_judged_by_three_implementations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both other implementations reveal a check that never finds a violation."""

    def never(*_: object) -> Tally:
        return Tally(24, 0)

    scenario = replace(small(), seed=COMPARED_EVERY)
    monkeypatch.setitem(linear._CHECKS, Property.FIFO, never)
    kinds = {failure.kind: failure.sentence for failure in judge(scenario).failures}
    unsampled = judge(replace(scenario, seed=COMPARED_EVERY + 1)).failures

    assert kinds.keys() == {"opinions"}
    assert kinds["opinions"].startswith("fifo: pass (24 checked) by the product, pass (18 checked) by the ")
    assert not unsampled


def test_the_three_implementations_agree_on_a_sampled_world() -> None:
    """test_slice.py has seed 0 of every protocol and this seed of objects."""
    disputed = [one for one in judge(draw("sequencer", COMPARED_EVERY)).failures if one.kind == "opinions"]

    assert not disputed
