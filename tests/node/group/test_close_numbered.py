"""The end of a view under All-Ack and under Lamport's order: no effect without its cause.

Both order messages by a number that each carries (round, timestamp), then by origin. Four members, of which members 0
and 1 survive.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from node.core import Submission, ViewCore
from node.effects import Deliver, Report
from node.errors import DropReason
from node.wire import Kind, Message
from tests.node.by_hand import after, delivered, dropped, give
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


@BOTH
def test_what_a_survivor_submits_is_delivered_at_the_end_of_the_view_and_not_handed_back(
    order: Order[ViewCore],
) -> None:
    one = order.core(members=MEMBERS)
    for payload in (b"a", b"b"):
        one.on_submit(Submission(payload=payload), 0)
    assert one.buffered == 2
    closing = one.close({0: [order.data(0, 1), order.data(0, 2)]}, SURVIVORS, 0)
    assert [effect.payload for effect in closing.effects if isinstance(effect, Deliver)] == [b"a", b"b"]
    assert closing.handed_back == ()
    assert order is LAMPORT or closing.memory == b""


@BOTH
def test_messages_of_an_excluded_member_are_delivered_when_nothing_is_missing(order: Order[ViewCore]) -> None:
    one = order.core(members=MEMBERS)
    give(one, order.data(3, 5))
    assert delivered(one.close({}, SURVIVORS, 0).effects) == [(3, 5)]


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
    """Both when it was handed over before the end and when it is in the rest."""
    message = wrong(order)
    before, rest = (order.core(member, members=MEMBERS) for member in (0, 1))
    give(before, order.data(3, 5))
    assert before.on_message(message, 3, 0) == [Report(code=reason, member=3)]
    at_before = before.close({3: [order.data(3, 6)]}, SURVIVORS, 0)
    at_rest = rest.close({3: [order.data(3, 5), message, order.data(3, 6)]}, SURVIVORS, 0)
    assert Report(code=reason, member=3) in at_rest.effects
    assert delivered(at_rest.effects) == delivered(at_before.effects) == [(3, 5), (3, 6)]
    assert at_before.memory == at_rest.memory
