"""A restarted member must have the last view and the state at the end of a run, and its objects their calls."""

from __future__ import annotations

import pytest

from analysis.checks.oracle import raw
from analysis.checks.properties import Incarnation
from collector.records import CallReport
from node.effects import Deliver, Effect, Installed
from node.group.core import GroupCore
from node.reliable import ReliableParameters
from node.trace import ViewReason
from node.wire import Message
from testbed.fuzz.joiners import owed_calls
from testbed.fuzz.judge import judge
from testbed.fuzz.scenario import Crash, Member, Scenario, Segment
from tests.analysis.checks.call_histories import ATOMIC, CallAuthor
from tests.analysis.checks.view_histories import C2, A
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


@pytest.mark.parametrize(
    ("caller", "knows", "then", "is_owed"),
    [
        (C2, "", "", True),
        (C2, "", "gets it", False),
        (A, "before", "", True),
        (A, "after", "", False),
        (A, "", "", False),
        (A, "before", "gets it", False),
        (A, "before", "is aborted", False),
        (A, "before", "misses it", False),
    ],
)
def test_an_object_of_a_joiner_gets_the_calls_of_those_that_know_it(
    caller: Incarnation, knows: str, then: str, is_owed: bool
) -> None:
    """A machine knows the joiner from a call of it that it has got before its own call."""
    author, target = CallAuthor(), (C2, 1)
    author.start(A, C2)
    first = author.submit(target, [(A.member, 1)])
    if knows == "before":
        author.hand(first, (A, 1))
    call = author.submit((caller, 2), [(C2.member, 1)], ATOMIC)
    if knows == "after":
        author.hand(first, (A, 1))
    if then == "gets it":
        author.hand(call, target)
    elif then == "is aborted":
        author.report(caller, CallReport.ABORTED, value=call.number)
    elif then == "misses it":
        author.missed(C2, call)
    found = list(owed_calls(raw(author.stop(A, C2))))
    assert [(one.member, one.lacks) for one in found] == ([(C2, call)] if is_owed else [])
