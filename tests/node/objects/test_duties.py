"""Duties and questions to other sub-networks: sent at once, then with growing pauses, to one machine after another."""

from __future__ import annotations

import pytest

from node.core import Membership
from node.effects import CancelTimer, Effect, Send, SetTimer
from node.objects.addresses import Addressing, GroupId, Operation, Reference
from node.objects.log.entries import (
    Call,
    CallId,
    Duty,
    GivenUp,
    LinkHeader,
    Outcome,
    ProposalRequest,
    Proposed,
    entry_of,
)
from node.objects.manager.duties import DUTIES, QUESTIONS, Duties, Questions
from node.transport import Timers
from node.wire import Flag

US = Membership(member=0, members=(0, 1, 4, 5, 6), partitions=((0, 1), (4, 5, 6)))
CALL, LINK = CallId(0, 1, 9), LinkHeader(place=0, epoch=1, toward=1)


def owed(number: int, timestamp: int = 3, settled: int = 0) -> Duty:
    entry = Proposed(link=LINK, number=number, id=CALL, timestamp=timestamp, settled=settled)
    return Duty(place=1, entry=entry)


def duties(timers: Timers | None = None, first_ns: int = 10) -> Duties:
    timers = Timers() if timers is None else timers
    return Duties(membership=US, first_ns=first_ns, most_ns=40, patience_ns=100, timers=timers)


def timer_ns(out: list[Effect]) -> int | None:
    return next((effect.at_ns for effect in out if isinstance(effect, SetTimer)), None)


def sent(out: list[Effect]) -> list[tuple[int, int, bool]]:
    messages = [(effect.target, effect.message) for effect in out if isinstance(effect, Send)]
    return [(target, message.seq, bool(message.flags & Flag.RETRANSMISSION)) for target, message in messages]


def test_a_duty_is_told_at_once_and_then_to_one_machine_after_the_other_with_growing_pauses() -> None:
    timers = Timers()
    ours = duties(timers)
    out: list[Effect] = []
    ours.owe([owed(1)], 0, out)
    now_ns = timer_ns(out)
    told = [(0, *sent(out)[0])]
    for _ in range(3):
        assert now_ns is not None
        out = []
        timers.fired(DUTIES)
        assert ours.on_timer(now_ns, out) == ()
        told += [(now_ns, *one) for one in sent(out)]
        now_ns = timer_ns(out)
    assert told == [(0, 4, 1, False), (10, 5, 1, True), (30, 6, 1, True), (70, 4, 1, True)]


@pytest.mark.parametrize(("first_ns", "again_ns"), [(5, 20), (10, 40), (30, 40)])
def test_an_outcome_is_told_again_after_four_first_pauses_or_the_longest_one(first_ns: int, again_ns: int) -> None:
    outcome = Outcome(link=LINK, number=1, id=CALL, timestamp=3)
    out: list[Effect] = []
    duties(first_ns=first_ns).owe([Duty(place=1, entry=outcome)], 0, out)
    assert len(sent(out)) == 1 and timer_ns(out) == again_ns


def test_who_was_heard_is_asked_first() -> None:
    ours = duties()
    ours.heard(6)
    out: list[Effect] = []
    ours.owe([owed(1)], 0, out)
    assert sent(out) == [(6, 1, False)]
    assert ours.machine_of(1) == 6


def test_a_duty_that_is_still_owed_is_not_told_anew_and_one_that_changes_is() -> None:
    ours = duties()
    ours.owe([owed(1), owed(2)], 0, [])
    out: list[Effect] = []
    ours.owe([owed(1), owed(2, timestamp=8)], 5, out)
    assert sent(out) == [(4, 2, False)]
    assert len(ours) == 2


def test_a_supplement_that_changes_is_told_with_the_repetition() -> None:
    timers = Timers()
    ours = duties(timers)
    ours.owe([owed(1)], 0, [])
    out: list[Effect] = []
    ours.owe([owed(1, settled=4)], 5, out)
    assert sent(out) == []
    timers.fired(DUTIES)
    ours.on_timer(10, out)
    (again,) = [entry_of(effect.message) for effect in out if isinstance(effect, Send)]
    assert isinstance(again, Proposed) and again.settled == 4


def question(number: int) -> Duty:
    addressing = Addressing(caller=Reference(0, 1, 1), objects=(Reference(4, 1, 1),))
    entry = ProposalRequest(link=LINK, number=number, after=0, call=Call(id=CALL, addressing=addressing))
    return Duty(place=1, entry=entry)


def test_the_storer_tells_a_new_proposal_once_and_the_master_repeats_it() -> None:
    timers = Timers()
    master, storer = duties(timers), duties()
    out: list[Effect] = []
    storer.see([owed(1)], out)
    storer.see([owed(1), owed(2), question(3)], out)
    storer.see([owed(1), owed(2)], out)
    assert sent(out) == [(4, 2, False)], "one is old, and the master asks"
    out = []
    master.owe([owed(2), question(3)], 0, out, has_storer=True)
    assert sent(out) == [(4, 3, False)] and timer_ns(out) == 10
    timers.fired(DUTIES)
    out = []
    master.on_timer(10, out)
    assert sent(out) == [(5, 2, True), (5, 3, True)]


def test_a_machine_that_answers_after_a_silent_one_is_asked_first() -> None:
    timers = Timers()
    ours = duties(timers)
    ours.owe([question(1)], 0, [])
    timers.fired(DUTIES)
    ours.on_timer(10, [])
    ours.owe([], 12, [])
    assert ours.machine_of(1) == 5


def test_without_duties_no_timer_is_armed() -> None:
    ours = duties()
    ours.owe([owed(1)], 0, [])
    out: list[Effect] = []
    ours.owe([], 5, out)
    assert out == [CancelTimer(timer=DUTIES)]
    assert not len(ours)


def test_what_lasts_too_long_is_named_once_in_each_patience() -> None:
    timers = Timers()
    ours = duties(timers)
    ours.owe([owed(1)], 0, [])
    named = []
    for now_ns in (100, 150, 200):
        timers.fired(DUTIES)
        named.append([duty.given_up(us=0) for duty in ours.on_timer(now_ns, [])])
    assert named == [[GivenUp(id=CALL, place=0)], [], [GivenUp(id=CALL, place=0)]]


# Questions.

PATIENCE_NS = 100


def call(number: int) -> Call:
    addressing = Addressing(caller=Reference(0, 1, 1), group=GroupId(1, 4, 1, 1), operation=Operation.MEMBERS)
    return Call(id=CallId(0, 1, number), addressing=addressing)


class Asker:
    """Questions with a clock and a timer."""

    def __init__(self) -> None:
        self.timers = Timers()
        self.asked: list[tuple[int, int, int, int]] = []
        """(time, place, number of the attempt, call)"""
        self.now_ns = 0
        self.due_ns: int | None = None
        self.questions = Questions(
            first_ns=10,
            most_ns=40,
            patience_ns=PATIENCE_NS,
            timers=self.timers,
            ask=lambda place, turn, call: self.asked.append((self.now_ns, place, turn, call.id.number)),
        )

    def ask(self, number: int, *places: int) -> None:
        out: list[Effect] = []
        self.questions.ask(call(number), places, self.now_ns, out)
        self._carry_out(out)

    def run(self, until_ns: int) -> list[Call]:
        """Run until then; the calls without an answer."""
        silent: list[Call] = []
        while self.due_ns is not None and self.due_ns <= until_ns:
            self.now_ns, self.due_ns = self.due_ns, None
            self.timers.fired(QUESTIONS)
            out: list[Effect] = []
            silent += self.questions.on_timer(self.now_ns, out)
            self._carry_out(out)
        self.now_ns = until_ns
        return silent

    def next_place(self, number: int) -> bool:
        out: list[Effect] = []
        found = self.questions.next_place(number, self.now_ns, out)
        self._carry_out(out)
        return found

    def _carry_out(self, out: list[Effect]) -> None:
        for effect in out:
            if isinstance(effect, SetTimer):
                self.due_ns = effect.at_ns
            elif isinstance(effect, CancelTimer):
                self.due_ns = None


def test_a_question_is_asked_again_with_pauses_that_double_until_patience_ends() -> None:
    ours = Asker()
    ours.ask(1, 1)
    assert ours.run(PATIENCE_NS - 1) == []
    assert ours.asked == [(0, 1, 0, 1), (10, 1, 1, 1), (30, 1, 2, 1), (70, 1, 3, 1)]
    assert ours.run(PATIENCE_NS) == [call(1)]
    assert len(ours.questions) == 0 and ours.due_ns is None


def test_who_does_not_answer_is_followed_by_the_next_sub_network() -> None:
    ours = Asker()
    ours.ask(1, 1, 2)
    assert ours.run(2 * PATIENCE_NS) == [call(1)]
    assert [one[:3] for one in ours.asked if one[1] == 2][:2] == [(PATIENCE_NS, 2, 0), (PATIENCE_NS + 10, 2, 1)]


def test_who_does_not_know_is_followed_at_once_by_the_next_sub_network() -> None:
    ours = Asker()
    ours.ask(1, 1, 2)
    assert ours.next_place(1)
    assert ours.asked == [(0, 1, 0, 1), (0, 2, 0, 1)]
    assert not ours.next_place(1), "there is no third one"
    assert len(ours.questions) == 1


def test_an_answer_counts_once() -> None:
    ours = Asker()
    ours.ask(1, 1)
    assert ours.questions.answered(1) == call(1)
    assert ours.questions.answered(1) is None
    assert not ours.next_place(1)
    assert ours.run(PATIENCE_NS) == [] and ours.due_ns is None
    assert len(ours.asked) == 1


def test_a_new_question_waits_for_no_other_s_long_pause() -> None:
    ours = Asker()
    ours.ask(1, 1)
    ours.run(35)
    ours.ask(2, 1)
    ours.run(60)
    assert [one[0] for one in ours.asked if one[3] == 2] == [35, 45]
