"""Duties between sub-networks: told at once, repeated with growing pauses, to one machine after the other."""

from __future__ import annotations

from node.core import Membership
from node.effects import CancelTimer, Effect, Send, SetTimer
from node.objects.between import BETWEEN, Between, Owed
from node.wire import Flag, Kind

MILLISECOND = 1_000_000
US = Membership(member=0, members=(0, 1, 4, 5, 6), partitions=((0, 1), (4, 5, 6)))


def owed(number: int, text: bytes = b"") -> Owed:
    return Owed(key=("ask", number), partition=1, message=US.message(Kind.OBJECTS_ASK, seq=number, payload=text))


def between() -> Between:
    return Between(membership=US, first_ns=10 * MILLISECOND, most_ns=40 * MILLISECOND)


def timer_ns(out: list[Effect]) -> int | None:
    return next((effect.at_ns for effect in out if isinstance(effect, SetTimer)), None)


def sent(out: list[Effect]) -> list[tuple[int, int, bool]]:
    return [
        (effect.target, effect.message.seq, bool(effect.message.flags & Flag.RETRANSMISSION))
        for effect in out
        if isinstance(effect, Send)
    ]


def test_a_duty_is_told_at_once_and_then_to_one_machine_after_the_other_with_growing_pauses() -> None:
    ours = between()
    out: list[Effect] = []
    ours.owe([owed(1)], 0, out)
    now_ns = timer_ns(out)
    told = [(0, *sent(out)[0])]
    for _ in range(4):
        assert now_ns is not None
        out = []
        ours.on_timer(now_ns, out)
        told += [(now_ns // MILLISECOND, *one) for one in sent(out)]
        now_ns = timer_ns(out)
    assert told == [(0, 4, 1, False), (10, 5, 1, True), (30, 6, 1, True), (70, 4, 1, True), (110, 5, 1, True)]


def test_who_was_heard_is_asked_first() -> None:
    ours = between()
    ours.heard(6)
    out: list[Effect] = []
    ours.owe([owed(1)], 0, out)
    assert sent(out) == [(6, 1, False)]


def test_a_duty_that_is_still_owed_is_not_told_anew_and_one_that_changes_is() -> None:
    ours = between()
    ours.owe([owed(1), owed(2)], 0, [])
    out: list[Effect] = []
    ours.owe([owed(1), owed(2, b"other")], 5, out)
    assert sent(out) == [(4, 2, False)]
    assert len(ours) == 2


def test_without_duties_no_timer_is_armed() -> None:
    ours = between()
    ours.owe([owed(1)], 0, [])
    out: list[Effect] = []
    ours.owe([], 5, out)
    assert out == [CancelTimer(timer=BETWEEN)]
    assert not len(ours)


def test_who_asks_is_told_again() -> None:
    ours = between()
    ours.owe([owed(1)], 0, [])
    out: list[Effect] = []
    ours.again(("ask", 1), 3, out)
    ours.again(("ask", 9), 3, out)
    assert [one[1:] for one in sent(out)] == [(1, True)]


def test_a_duty_knows_its_age() -> None:
    ours = between()
    ours.owe([owed(1)], 100, [])
    ours.owe([owed(1)], 250, [])
    assert ours.age_ns(("ask", 1), 300) == 200
    assert ours.age_ns(("ask", 2), 300) == 0
