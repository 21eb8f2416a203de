"""Questions to other sub-networks: asked again with growing pauses, of one sub-network after the other."""

from __future__ import annotations

from node.effects import CancelTimer, Effect, SetTimer
from node.objects.addresses import Addressing, GroupId, Operation, Reference
from node.objects.answers import QUESTIONS, Questions
from node.objects.entries import Call, CallId
from node.reliable.rtt import Timers

CALLER = Reference(0, 1, 1)
FIRST_NS, MOST_NS, PATIENCE_NS = 10, 40, 100


def call(number: int) -> Call:
    addressing = Addressing(caller=CALLER, group=GroupId(1, 4, 1, 1), operation=Operation.MEMBERS)
    return Call(id=CallId(0, 1, number), addressing=addressing)


class Asker:
    """Questions with a clock and a timer."""

    def __init__(self) -> None:
        self.timers = Timers()
        self.asked: list[tuple[int, int, int, int]] = []
        """When, which place, for the how manieth time, which call."""
        self.now_ns = 0
        self.due_ns: int | None = None
        self.questions = Questions(
            first_ns=FIRST_NS,
            most_ns=MOST_NS,
            patience_ns=PATIENCE_NS,
            timers=self.timers,
            ask=lambda place, turn, call: self.asked.append((self.now_ns, place, turn, call.id.number)),
        )

    def ask(self, number: int, *places: int) -> None:
        out: list[Effect] = []
        self.questions.ask(call(number), places, self.now_ns, out)
        self._carry_out(out)

    def run(self, until_ns: int) -> list[Call]:
        """What nobody answers until then."""
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
