"""The end of a view under All-Ack: one order at all survivors, and no effect without its cause."""

from __future__ import annotations

from random import Random

import pytest

from node.core import Membership, Submission
from node.effects import Effect
from node.protocols.allack import MAX_ROUND, AllAckCore, AllAckParameters
from node.protocols.base import Phase
from node.wire import Kind, Message
from tests.node.by_hand import after, delivered, give, multicasts
from tests.node.group.views import Make, run

MILLISECOND = 1_000_000
SEEDS = 30
BATCHES = 10


def making(parameters: AllAckParameters) -> Make:
    def make(membership: Membership, rng: Random, memory: bytes) -> AllAckCore:
        assert memory == b"", "nothing outlives a view"
        return AllAckCore(membership=membership, parameters=parameters, rng=rng)

    return make


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_views_keep_all_promises(batch: int) -> None:
    for seed in range(batch * SEEDS, (batch + 1) * SEEDS):
        rng = Random(f"allack/{seed}")
        parameters = AllAckParameters(
            ahead=rng.random() < 0.5,
            null_after_ns=rng.choice((0, 2 * MILLISECOND, 30 * MILLISECOND)),
            outstanding=rng.choice((1, 4, 64)),
        )
        run(making(parameters), seed, lags=rng.random() < 0.5, skewed=rng.random() < 0.5)


def test_the_same_seed_gives_the_same_history() -> None:
    one, other = (run(making(AllAckParameters()), 7) for _ in range(2))
    assert one.streams == other.streams
    assert one.places[0].delivered == other.places[0].delivered


# Cases by hand: four members, of which members 0 and 1 survive.

SURVIVORS = frozenset({0, 1})


def core(member: int = 0, members: int = 4, null_after_ns: int = 2 * MILLISECOND) -> AllAckCore:
    made = AllAckCore(
        membership=Membership(member=member, members=tuple(range(members))),
        parameters=AllAckParameters(null_after_ns=null_after_ns),
        rng=Random(1),
    )
    made.on_start(0)
    return made


def data(origin: int, round_: int, word: int = 0) -> Message:
    return Message(kind=Kind.ALLACK_DATA, origin=origin, incarnation=1, seq=round_, words=(word,))


def null(origin: int, round_: int) -> Message:
    return Message(kind=Kind.ALLACK_NULL, origin=origin, incarnation=1, seq=round_)


def submit(one: AllAckCore) -> list[Effect]:
    return one.on_submit(Submission(payload=b""), 0)


def test_the_cut_is_delivered_by_rounds_whatever_is_missing() -> None:
    one = core()
    give(one, data(1, 2), data(3, 1))
    closing = one.close({1: [data(1, 5)], 2: [data(2, 1), null(2, 9), data(2, 10)]}, SURVIVORS, 0)
    assert delivered(closing.effects) == [(2, 1), (3, 1), (1, 2), (1, 5), (2, 10)]


def test_two_survivors_that_stand_at_different_places_end_with_the_same_order() -> None:
    """Member 1 has delivered round 1, which member 0 has not, and has sent a message after that."""
    of_two, of_three = [data(2, 1), null(2, 4)], [data(3, 1)]
    late, early = core(0), core(1)
    of_zero = multicasts(submit(late))
    of_one = multicasts(submit(early))
    round_1 = [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert delivered(give(early, *of_zero, *of_two, *of_three)) == round_1
    (message,) = multicasts(submit(early))
    assert message.words == (after(*round_1),)
    of_one.append(message)
    at_early = early.close({1: of_one}, SURVIVORS, 0)
    at_late = late.close({0: of_zero, 1: of_one, 2: of_two, 3: of_three}, SURVIVORS, 0)
    assert delivered(at_early.effects) == [(1, 2)]
    assert delivered(at_late.effects) == [*round_1, (1, 2)]


def test_a_member_whose_rounds_are_exhausted_delivers_the_cut() -> None:
    one = core(null_after_ns=0)
    submit(one)
    give(one, data(1, MAX_ROUND))
    assert one.phase is Phase.EXHAUSTED
    assert delivered(one.close({2: [data(2, 1)]}, SURVIVORS, 0).effects) == [(0, 1), (2, 1), (1, MAX_ROUND)]
