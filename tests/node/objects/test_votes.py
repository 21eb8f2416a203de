"""Votes of the machines of a sub-network: sent until the log has them, counted at the sequencer."""

from __future__ import annotations

import pytest

from node.core import Membership
from node.effects import CancelTimer, Effect, Send, SetTimer
from node.errors import RemoteError
from node.group.view import Incarnation
from node.objects.log.entries import CallId, Voted
from node.objects.manager.votes import MOST_EARLY, VOTES, Votes
from node.transport import Timers
from node.wire import Kind, Message

CALL, OTHER = CallId(4, 1, 9), CallId(4, 1, 10)
ALL = [Incarnation(0, 1), Incarnation(1, 1), Incarnation(2, 1)]
FIRST_NS, MOST_NS, VOTE_NS = 10, 40, 1000
MEMBERS = (0, 1, 2, 3)


def votes_of(member: int) -> tuple[Votes, Timers]:
    timers = Timers()
    us = Membership(member=member, members=MEMBERS)
    return Votes(membership=us, first_ns=FIRST_NS, most_ns=MOST_NS, vote_ns=VOTE_NS, timers=timers), timers


def voting(member: int, *, is_yes: bool = True) -> tuple[Votes, Timers]:
    """All are asked about the call; this machine has cast its vote."""
    ours, timers = votes_of(member)
    ours.open(CALL, ALL, 0)
    ours.cast(CALL, is_yes=is_yes, now_ns=0)
    return ours, timers


def vote(member: int, word: int, *, incarnation: int = 1, name: CallId = CALL) -> Message:
    us = Membership(member=member, members=MEMBERS, incarnation=incarnation)
    return us.message(Kind.OBJECTS_VOTE, words=(*name.words, word))


def sent(out: list[Effect]) -> list[tuple[int, tuple[int, ...]]]:
    return [(effect.target, effect.message.words) for effect in out if isinstance(effect, Send)]


def due_ns(out: list[Effect]) -> int | None:
    return next((effect.at_ns for effect in out if isinstance(effect, SetTimer)), None)


@pytest.mark.parametrize(
    ("events", "decision"),
    [
        ([vote(1, 1)], None),
        ([vote(1, 1), vote(2, 1)], True),
        ([vote(2, 0)], False),
        ([Incarnation(2, 1)], False),
        ([vote(1, 1), Incarnation(1, 1), vote(2, 1)], True),
        ([vote(1, 1), vote(1, 0), vote(2, 1)], True),
        ([Incarnation(2, 2), vote(2, 0, incarnation=2), vote(2, 0, name=OTHER), vote(3, 0)], None),
    ],
    ids=[
        "a vote is missing",
        "all say yes",
        "one no is enough",
        "an incarnation that has ended votes no",
        "who has voted and then ends has voted",
        "the first word counts",
        "other incarnations, other calls and strangers do not count",
    ],
)
def test_the_sequencer_counts_the_votes_and_logs_the_sum_once(
    events: list[Message | Incarnation], decision: bool | None
) -> None:
    ours, _ = voting(0)
    for event in events:
        if isinstance(event, Incarnation):
            ours.ended(event)
        else:
            ours.receive(event)
    assert ours.advance(0, 1, []) == ([] if decision is None else [Voted(id=CALL, is_yes=decision)])
    assert ours.advance(0, 2, []) == []
    ours.close(CALL)
    assert len(ours) == 0


def test_votes_that_come_before_the_call_count_at_its_opening() -> None:
    ours, _ = votes_of(0)
    for member, name in ((1, CALL), (2, CALL), (1, OTHER)):
        ours.receive(vote(member, 1, name=name))
    assert len(ours) == 0
    ours.open(CALL, ALL, 0)
    assert ours.advance(0, 0, []) == []
    ours.cast(CALL, is_yes=True, now_ns=0)
    assert ours.advance(0, 0, []) == [Voted(id=CALL, is_yes=True)]
    for number in range(MOST_EARLY):
        ours.receive(vote(2, 0, name=CallId(4, 1, 100 + number)))
    ours.open(OTHER, ALL[1:2], 0)
    assert ours.advance(0, 0, []) == [], "the oldest is forgotten"


def test_who_is_silent_for_too_long_votes_no() -> None:
    ours, _ = votes_of(0)
    ours.open(CALL, ALL, 5)
    out: list[Effect] = []
    assert ours.advance(0, 5, out) == []
    assert due_ns(out) == 5 + VOTE_NS
    assert ours.advance(0, 4 + VOTE_NS, []) == []
    assert ours.advance(0, 5 + VOTE_NS, []) == [Voted(id=CALL, is_yes=False)]


@pytest.mark.parametrize("words", [(), CALL.words, (*CALL.words, 2), (*CALL.words, 1, 1), (4 << 16, 9, 1), (0, 0, 0)])
def test_words_that_are_no_vote_are_refused(words: tuple[int, ...]) -> None:
    ours, _ = votes_of(0)
    ours.open(CALL, ALL, 0)
    us = Membership(member=1, members=MEMBERS)
    with pytest.raises(RemoteError):
        ours.receive(us.message(Kind.OBJECTS_VOTE, words=words))
    assert ours.advance(0, 1, []) == []


def test_a_machine_tells_the_sequencer_with_pauses_that_double_until_the_log_says_so() -> None:
    ours, timers = voting(1)
    told: list[int] = []
    now_ns: int | None = 0
    while now_ns is not None and now_ns < 120:
        out: list[Effect] = []
        timers.fired(VOTES)
        assert ours.advance(0, now_ns, out) == []
        assert sent(out) == [(0, (*CALL.words, 1))]
        told.append(now_ns)
        now_ns = due_ns(out)
    assert told == [0, 10, 30, 70, 110]
    ours.close(CALL)
    out = []
    timers.arm(VOTES, 1, [])
    assert ours.advance(0, 200, out) == []
    assert out == [CancelTimer(timer=VOTES)]


def test_a_machine_casts_one_vote_only_on_an_open_call_and_tells_another_sequencer_at_once() -> None:
    ours, _ = voting(2, is_yes=False)
    for name in (CALL, OTHER):
        ours.cast(name, is_yes=True, now_ns=0)
    for sequencer in (0, 1):
        out: list[Effect] = []
        ours.advance(sequencer, sequencer, out)
        assert sent(out) == [(sequencer, (*CALL.words, 0))]


def test_who_becomes_the_sequencer_counts_what_it_has_heard_and_says_nothing() -> None:
    ours, _ = voting(1)
    ours.advance(0, 0, [])
    out: list[Effect] = []
    ours.receive(vote(0, 1))
    assert ours.advance(1, 1, out) == []
    ours.receive(vote(2, 1))
    assert ours.advance(1, 2, out) == [Voted(id=CALL, is_yes=True)]
    assert sent(out) == []


def test_a_new_vote_waits_for_no_other_s_long_pause() -> None:
    ours, timers = voting(1)
    for now_ns in (0, 10, 30):
        timers.fired(VOTES)
        ours.advance(0, now_ns, [])
    ours.open(OTHER, ALL, 35)
    ours.cast(OTHER, is_yes=True, now_ns=35)
    out: list[Effect] = []
    ours.advance(0, 35, out)
    assert sent(out) == [(0, (*OTHER.words, 1))]
    assert due_ns(out) == 45


def test_with_nothing_open_no_timer_is_armed() -> None:
    ours, timers = votes_of(0)
    out: list[Effect] = []
    assert ours.advance(0, 0, out) == []
    assert not out and VOTES not in timers
