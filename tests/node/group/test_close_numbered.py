"""The end of a view under All-Ack and under Lamport's order: one order at all survivors, and no effect without its
cause.

Both order messages by a number that each carries (round, timestamp), then by origin. Four members, of which members 0
and 1 survive.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from node.clocks import MAX_TIMESTAMP, EventClock
from node.core import Membership, Submission, ViewCore
from node.effects import Report
from node.errors import DropReason, RemoteError
from node.protocols.allack import MAX_ROUND
from node.protocols.base import Phase
from node.protocols.lamport import LamportCore, LamportParameters, LamportReport
from node.wire import Kind, Message
from tests.node.by_hand import after, delivered, dropped, give, multicasts
from tests.node.group.views import ends
from tests.node.numbered import ALLACK, BOTH, LAMPORT, Order

MEMBERS = range(4)
SURVIVORS = frozenset({0, 1})

Sent = tuple[int, int, tuple[tuple[int, int], ...]]
"""Origin, number, and the sender's earlier deliveries."""
LOST = (4, 1)


@BOTH
@pytest.mark.parametrize(
    ("rest", "expected", "expected_drops"),
    [
        pytest.param([(3, 7, (LOST,)), (3, 8, (LOST,))], [], [(3, 7), (3, 8)], id="its cause was lost"),
        pytest.param([(2, 1, ()), (3, 7, ((2, 1),))], [(2, 1), (3, 7)], [], id="its cause is in the cut"),
        pytest.param(
            [(1, 5, ()), (2, 9, ()), (3, 4, (LOST,)), (3, 10, ())],
            [(1, 5), (2, 9)],
            [(3, 4), (3, 10)],
            id="the later message of a dropped one, which alone would agree",
        ),
        pytest.param([(2, 20, (LOST, (3, 7))), (3, 7, (LOST,))], [], [(3, 7), (2, 20)], id="its cause is dropped, too"),
    ],
)
def test_an_effect_is_delivered_with_its_cause_or_dropped(
    order: Order[ViewCore], rest: list[Sent], expected: list[tuple[int, int]], expected_drops: list[tuple[int, int]]
) -> None:
    """Five members; a message of member 4 was received by excluded members alone."""
    streams: dict[int, list[Message]] = {origin: [] for origin in range(4)}
    for origin, number, had in rest:
        streams[origin].append(order.data(origin, number, word=after(*had)))
    closing = order.core(members=range(5)).close(streams, SURVIVORS, 0)
    assert (delivered(closing.effects), dropped(closing, order.code)) == (expected, expected_drops)
    assert order is ALLACK or timestamp_in(closing.memory) == max(number for _, number, _ in rest), "dropped ones count"


@BOTH
def test_the_cut_is_delivered_by_numbers_whatever_is_missing(order: Order[ViewCore]) -> None:
    one = order.core(members=MEMBERS)
    give(one, order.data(1, 9), order.data(3, 4))
    closing = one.close({1: [order.data(1, 12)], 2: [order.data(2, 4), order.null(2, 30)]}, SURVIVORS, 0)
    assert delivered(closing.effects) == [(2, 4), (3, 4), (1, 9), (1, 12)]
    assert order is ALLACK or timestamp_in(closing.memory) == 30


@BOTH
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda order: Message(kind=Kind.APPLICATION, origin=3, incarnation=1, seq=9), DropReason.UNEXPECTED),
        (lambda order: (LAMPORT if order is ALLACK else ALLACK).data(3, 9), DropReason.UNEXPECTED),
        (lambda order: order.data(2, 9), DropReason.UNEXPECTED),
        (lambda order: order.data(3, 5), DropReason.MALFORMED),
        (lambda order: order.data(3, order.most + 1), DropReason.MALFORMED),
        (lambda order: Message(kind=order.data_kind, origin=3, incarnation=1, seq=9), DropReason.MALFORMED),
    ],
)
def test_what_would_be_refused_is_passed_over_at_all_survivors(
    order: Order[ViewCore], wrong: Callable[[Order[ViewCore]], Message], reason: DropReason
) -> None:
    stream = [order.data(3, 5), wrong(order), order.data(3, 6)]
    ((told, _),) = ends(lambda: order.core(members=MEMBERS), stream, SURVIVORS)
    assert told == ((3, 5), (3, 6))
    closing = order.core(members=MEMBERS).close({3: stream}, SURVIVORS, 0)
    assert Report(code=reason, member=3) in closing.effects


def test_a_member_whose_rounds_are_exhausted_delivers_the_cut() -> None:
    one = ALLACK.core(members=MEMBERS, null_after_ns=0)
    one.on_submit(Submission(payload=b""), 0)
    give(one, ALLACK.data(1, MAX_ROUND))
    assert one.phase is Phase.EXHAUSTED
    closing = one.close({2: [ALLACK.data(2, 1)]}, SURVIVORS, 0)
    assert delivered(closing.effects) == [(0, 1), (2, 1), (1, MAX_ROUND)]


# Lamport's clock, from view to view.


def timestamp_in(memory: bytes) -> int:
    return int.from_bytes(memory, "big")


def lamport(memory: bytes = b"", clock: EventClock | None = None, **parameters: int) -> LamportCore:
    return LamportCore(
        membership=Membership(member=0, members=tuple(MEMBERS)),
        parameters=LamportParameters(**parameters),  # type: ignore[arg-type]  # those with a number
        rng=Random(1),
        memory=memory,
        clock=clock,
    )


def test_timestamps_of_the_next_view_exceed_those_of_all_views_before() -> None:
    first = lamport()
    give(first, LAMPORT.data(1, 40))
    memory = first.close({2: [LAMPORT.null(2, 70)]}, SURVIVORS, 0).memory
    assert lamport(memory).close({}, SURVIVORS, 0).memory == memory, "a view in which nothing is sent keeps it"
    second = lamport(memory)
    second.on_start(0)
    assert second.timestamp > 70
    (message,) = multicasts(second.on_submit(Submission(payload=b""), 0))
    assert message.seq == 72
    assert give(second, LAMPORT.data(1, 70)) == [Report(code=DropReason.MALFORMED, member=1)]
    assert timestamp_in(second.close({}, SURVIVORS, 0).memory) == 72


def test_a_member_keeps_its_clock_which_may_be_ahead_of_the_cut() -> None:
    first = lamport()
    give(first, *(LAMPORT.null(member, 1) for member in (1, 2, 3)), LAMPORT.null(1, 2))
    told = first.timestamp
    closing = first.close({}, SURVIVORS, 0)
    assert told > timestamp_in(closing.memory)
    second = lamport(closing.memory, first.clock)
    second.on_start(0)
    assert second.timestamp > told


@pytest.mark.parametrize("memory", [b"\0", bytes(7), bytes(9), b"\xff" * 8, (MAX_TIMESTAMP + 1).to_bytes(8, "big")])
def test_a_memory_that_holds_no_timestamp_is_refused(memory: bytes) -> None:
    with pytest.raises(RemoteError, match="MALFORMED"):
        lamport(memory)


def test_a_clock_that_is_exhausted_stays_so_in_the_next_view() -> None:
    first = lamport(null_after_ns=0)
    give(first, LAMPORT.data(1, MAX_TIMESTAMP))
    assert first.phase is Phase.EXHAUSTED
    second = lamport(first.close({}, SURVIVORS, 0).memory)
    report = Report(code=LamportReport.EXHAUSTED, member=0, value=MAX_TIMESTAMP + 1)
    assert second.on_start(0) == [report]
    assert (second.can_submit, second.is_idle) == (False, True)
