"""Duties between sub-networks: told at once, repeated with growing pauses, to one machine after the other."""

from __future__ import annotations

from node.core import Membership
from node.effects import CancelTimer, Effect, Send, SetTimer
from node.objects.between import BETWEEN, Between
from node.objects.entries import CallId, Duty, GivenUp, Outcome, Road
from node.reliable.rtt import Timers
from node.wire import Flag

MILLISECOND = 1_000_000
US = Membership(member=0, members=(0, 1, 4, 5, 6), partitions=((0, 1), (4, 5, 6)))
CALL = CallId(0, 1, 9)


def owed(number: int, timestamp: int = 3) -> Duty:
    road = Road(place=0, epoch=1, toward=1)
    return Duty(place=1, entry=Outcome(road=road, number=number, id=CALL, timestamp=timestamp))


def between(timers: Timers | None = None) -> Between:
    return Between(
        membership=US,
        first_ns=10 * MILLISECOND,
        most_ns=40 * MILLISECOND,
        patience_ns=100 * MILLISECOND,
        timers=Timers() if timers is None else timers,
    )


def timer_ns(out: list[Effect]) -> int | None:
    return next((effect.at_ns for effect in out if isinstance(effect, SetTimer)), None)


def sent(out: list[Effect]) -> list[tuple[int, int, bool]]:
    return [
        (effect.target, effect.message.seq, bool(effect.message.flags & Flag.RETRANSMISSION))
        for effect in out
        if isinstance(effect, Send)
    ]


def test_a_duty_is_told_at_once_and_then_to_one_machine_after_the_other_with_growing_pauses() -> None:
    timers = Timers()
    ours = between(timers)
    out: list[Effect] = []
    ours.owe([owed(1)], 0, out)
    now_ns = timer_ns(out)
    told = [(0, *sent(out)[0])]
    for _ in range(3):
        assert now_ns is not None
        out = []
        timers.fired(BETWEEN)
        assert ours.on_timer(now_ns, out) == ()
        told += [(now_ns // MILLISECOND, *one) for one in sent(out)]
        now_ns = timer_ns(out)
    assert told == [(0, 4, 1, False), (10, 5, 1, True), (30, 6, 1, True), (70, 4, 1, True)]


def test_who_was_heard_is_asked_first() -> None:
    ours = between()
    ours.heard(6)
    out: list[Effect] = []
    ours.owe([owed(1)], 0, out)
    assert sent(out) == [(6, 1, False)]
    assert ours.machine_of(1) == 6


def test_a_duty_that_is_still_owed_is_not_told_anew_and_one_that_changes_is() -> None:
    ours = between()
    ours.owe([owed(1), owed(2)], 0, [])
    out: list[Effect] = []
    ours.owe([owed(1), owed(2, timestamp=8)], 5, out)
    assert sent(out) == [(4, 2, False)]
    assert len(ours) == 2


def test_without_duties_no_timer_is_armed() -> None:
    ours = between()
    ours.owe([owed(1)], 0, [])
    out: list[Effect] = []
    ours.owe([], 5, out)
    assert out == [CancelTimer(timer=BETWEEN)]
    assert not len(ours)


def test_what_lasts_too_long_is_named_once_in_each_patience() -> None:
    timers = Timers()
    ours = between(timers)
    ours.owe([owed(1)], 0, [])
    timers.fired(BETWEEN)
    (duty,) = ours.on_timer(100 * MILLISECOND, [])
    assert duty.given_up(us=0) == GivenUp(id=CALL, place=1)
    timers.fired(BETWEEN)
    assert ours.on_timer(150 * MILLISECOND, []) == ()
    timers.fired(BETWEEN)
    assert ours.on_timer(200 * MILLISECOND, []) == (duty,)
