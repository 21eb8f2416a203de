"""A restarted member must have the last view and the state at the end of a run."""

from __future__ import annotations

import pytest

from analysis.checks.oracle import raw
from analysis.checks.properties import Incarnation
from node.effects import Deliver, Effect, Installed
from node.group.core import GroupCore
from node.reliable import ReliableParameters
from node.trace import Event, ViewReason
from node.wire import Message
from testbed.fuzz.joiners import owed_in_last_view
from testbed.fuzz.judge import judge
from testbed.fuzz.scenario import Crash, Member, Scenario, Segment
from tests.analysis import histories
from tests.analysis.checks.view_histories import C2, NAMES, A, B, C, HistoryBuilder
from tests.mutants.cores import over_group

MILLISECOND = 1_000_000


class DeafJoiner(GroupCore):
    """Its later incarnations deliver nothing."""

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        effects = super().on_message(message, source, now_ns)
        return [e for e in effects if not (isinstance(e, Deliver) and self._us.incarnation > 1)]


class LoneJoiner(GroupCore):
    """Its later incarnations begin groups of their own, and hear and say nothing."""

    @property
    def is_idle(self) -> bool:
        return super().is_idle or self._us.incarnation > 1

    def on_start(self, now_ns: int) -> list[Effect]:
        return super().on_start(now_ns) if self._us.incarnation == 1 else self.begun()

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        return super().on_message(message, source, now_ns) if self._us.incarnation == 1 else []

    def begun(self) -> list[Effect]:
        own = (self._me, self._us.incarnation)
        return [Installed(number=99, incarnations=(own,), reason=ViewReason.FIRST)]


class IdleJoiner(LoneJoiner):
    """Its later incarnations are in no view."""

    def begun(self) -> list[Effect]:
        return []


@pytest.mark.parametrize(
    ("core", "failures"),
    [
        (GroupCore, set()),
        (DeafJoiner, {("agreement", "")}),
        (LoneJoiner, {("quorum", ""), ("view_agreement", "joiner")}),
        (IdleJoiner, {("view_agreement", "joiner")}),
    ],
)
def test_a_joiner_that_does_not_take_part_is_found(core: type[GroupCore], failures: set[tuple[str, str]]) -> None:
    build = over_group(None, core, ReliableParameters(suspect_after_ns=1000 * MILLISECOND))
    sends = Member(submissions_ns=tuple(at * 1000 * MILLISECOND for at in range(6)))
    down = Crash(at_ns=500 * MILLISECOND, for_ns=200 * MILLISECOND, member=2)
    segment = Segment(members=(sends, sends, Member(submissions_ns=(0,))))
    scenario = Scenario(protocol="reliable", seed=1, segments=(segment,), faults=(down,))
    assert {(failure.kind, failure.where) for failure in judge(scenario, build=build).failures} == failures


# Last view.


def lacking(builder: HistoryBuilder, *ended: Incarnation) -> list[str]:
    """Missing deliveries of the incarnations that ended in order."""
    history = raw(builder.stop(*ended))
    return [
        one.sentence(NAMES)
        for one in owed_in_last_view({incarnation: history[incarnation] for incarnation in ended}, ())
    ]


def founded() -> HistoryBuilder:
    return HistoryBuilder().install(1, A, B, C)


def joined() -> HistoryBuilder:
    """A history in which c is back in view 2; a1 was delivered before."""
    return HistoryBuilder(A, B, C, C2).install(1, A, B, C).deliver((A, B), "a1").install(2, A, B, C2)


def test_correct_runs_with_views_owe_nothing() -> None:
    for seed in range(40):
        history = raw(histories.in_views(seed))
        ended = {incarnation: records for incarnation, records in history.items() if records[-1][0] == Event.STOP}
        assert not list(owed_in_last_view(ended, ())), seed


def test_a_joiner_needs_the_state() -> None:
    assert lacking(joined(), A, B, C2) == ["p1/c (incarnation 2) lacks the state"]
    assert lacking(joined().state(C2, 2), A, B, C2) == []


def test_a_member_must_install_the_last_view() -> None:
    builder = founded()
    for incarnation in (A, B):
        builder.author.install(incarnation, 2, [A, B, C])

    assert lacking(builder, A, B, C) == ["p1/c (incarnation 1) lacks the last view, of which it is a member"]


def test_who_comes_back_must_be_in_a_view() -> None:
    builder = HistoryBuilder(A, B, C, C2).install(1, A, B, C).install(2, A, B)
    assert lacking(builder, A, B, C2) == ["p1/c (incarnation 2) lacks any view"]


def test_a_minority_owes_nothing() -> None:
    builder = founded().note(C, Event.MINORITY, 1)
    for incarnation in (A, B):
        builder.author.install(incarnation, 2, [A, B, C])

    assert lacking(builder, A, B, C) == []
