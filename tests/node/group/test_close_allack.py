"""The end of a view under All-Ack: one order at all survivors, and no effect without its cause."""

from __future__ import annotations

from random import Random

import pytest

from node.core import Closing, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report
from node.errors import DropReason
from node.protocols.allack import MAX_ROUND, AllAckCore, AllAckParameters, AllAckReport, Phase
from node.protocols.prefix import Prefix
from node.wire import Kind, Message
from tests.node.group.views import Group, Make, run

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


def test_a_group_at_rest_is_silent() -> None:
    group = Group(making(AllAckParameters()), 4, 1)
    for _ in range(3):
        group.submit(0)
    group.settle()
    assert [place.timers for place in group.places.values()] == [{}] * 4
    assert sum(map(len, group.streams.values())) == 3 + 3, "three messages, and a null of each other member"


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


def give(one: AllAckCore, *messages: Message) -> list[Effect]:
    return [effect for message in messages for effect in one.on_message(message, message.origin, 0)]


def submit(one: AllAckCore) -> list[Effect]:
    return one.on_submit(Submission(payload=b""), 0)


def after(*deliveries: tuple[int, int]) -> int:
    """The word of a member that has delivered these: (round, origin)."""
    prefix = Prefix()
    for round_, origin in deliveries:
        prefix.delivered(origin, round_)
    return prefix.word


def delivered(effects: list[Effect]) -> list[tuple[int, int]]:
    """(round, origin)."""
    return [(effect.seq, effect.origin) for effect in effects if isinstance(effect, Deliver)]


def at_end(closing: Closing) -> list[tuple[int, int]]:
    return delivered(list(closing.effects))


def dropped(closing: Closing) -> list[tuple[int, int]]:
    return [
        (effect.value, effect.member)
        for effect in closing.effects
        if isinstance(effect, Report) and effect.code == AllAckReport.DROPPED
    ]


def test_the_cut_is_delivered_by_rounds_whatever_is_missing() -> None:
    one = core()
    give(one, data(1, 2), data(3, 1))
    closing = one.close({1: [data(1, 5)], 2: [data(2, 1), null(2, 9), data(2, 10)]}, SURVIVORS, 0)
    assert at_end(closing) == [(1, 2), (1, 3), (2, 1), (5, 1), (10, 2)]


def test_two_survivors_that_stand_at_different_places_end_with_the_same_order() -> None:
    """Member 1 has delivered round 1, which member 0 has not, and has sent something after that."""
    of_two, of_three = [data(2, 1), null(2, 4)], [data(3, 1)]
    late, early = core(0), core(1)
    of_zero = [effect.message for effect in submit(late) if isinstance(effect, Multicast)]
    of_one = [effect.message for effect in submit(early) if isinstance(effect, Multicast)]
    round_1 = [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert delivered(give(early, *of_zero, *of_two, *of_three)) == round_1
    (effect,) = [effect for effect in submit(early) if isinstance(effect, Multicast)]
    assert effect.message.words == (after(*round_1),)
    of_one.append(effect.message)
    at_early = early.close({1: of_one}, SURVIVORS, 0)
    at_late = late.close({0: of_zero, 1: of_one, 2: of_two, 3: of_three}, SURVIVORS, 0)
    assert at_end(at_early) == [(2, 1)]
    assert at_end(at_late) == [*round_1, (2, 1)]


def test_an_effect_is_dropped_whose_cause_was_lost_with_an_excluded_member() -> None:
    """Member 3 delivered a message of member 2 that no survivor has received, sent, and crashed with member 2."""
    lost = after((1, 2))
    closing = core().close({3: [null(3, 1), data(3, 2, lost), data(3, 3, lost)]}, SURVIVORS, 0)
    assert (at_end(closing), dropped(closing)) == ([], [(2, 3), (3, 3)])


def test_an_effect_is_delivered_whose_cause_is_in_the_cut() -> None:
    closing = core().close({2: [data(2, 1)], 3: [null(3, 1), data(3, 2, after((1, 2)))]}, SURVIVORS, 0)
    assert at_end(closing) == [(1, 2), (2, 3)]


def test_all_later_messages_of_a_dropped_one_are_dropped_too_and_only_those() -> None:
    """The later one alone would agree."""
    rest = {1: [data(1, 1)], 2: [null(2, 3), data(2, 4)], 3: [data(3, 2, after((1, 2))), data(3, 3, 0)]}
    closing = core().close(rest, SURVIVORS, 0)
    assert (at_end(closing), dropped(closing)) == ([(1, 1), (4, 2)], [(2, 3), (3, 3)])


def test_an_effect_of_an_effect_is_dropped_with_it() -> None:
    """Member 3 lost the cause; member 2 had delivered the message of member 3."""
    lost = (1, 4)
    rest = {2: [null(2, 2), data(2, 3, after(lost, (2, 3)))], 3: [data(3, 2, after(lost))]}
    closing = core(members=5).close(rest, SURVIVORS, 0)
    assert (at_end(closing), dropped(closing)) == ([], [(2, 3), (3, 2)])


def test_what_a_survivor_submits_is_delivered_at_the_end_of_the_view_and_not_handed_back() -> None:
    one = core()
    for payload in (b"a", b"b"):
        one.on_submit(Submission(payload=payload), 0)
    assert one.buffered == 2
    closing = one.close({0: [data(0, 1), data(0, 2)]}, SURVIVORS, 0)
    assert [effect.payload for effect in closing.effects if isinstance(effect, Deliver)] == [b"a", b"b"]
    assert (closing.handed_back, closing.memory) == ((), b"")


def test_messages_of_an_excluded_member_are_delivered_when_nothing_is_missing() -> None:
    one = core()
    give(one, data(3, 5))
    assert at_end(one.close({}, SURVIVORS, 0)) == [(5, 3)]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message(kind=Kind.APPLICATION, origin=3, incarnation=1, seq=9), DropReason.UNEXPECTED),
        (Message(kind=Kind.LAMPORT_DATA, origin=3, incarnation=1, seq=9, words=(0,)), DropReason.UNEXPECTED),
        (data(2, 9), DropReason.UNEXPECTED),
        (data(3, 5), DropReason.MALFORMED),
        (data(3, MAX_ROUND + 1), DropReason.MALFORMED),
        (Message(kind=Kind.ALLACK_DATA, origin=3, incarnation=1, seq=9), DropReason.MALFORMED),
    ],
)
def test_what_would_be_refused_is_passed_over_at_all_survivors(message: Message, reason: DropReason) -> None:
    """Whether it was handed over before the end or is in the rest."""
    before, rest = core(0), core(1)
    give(before, data(3, 5))
    assert before.on_message(message, 3, 0) == [Report(code=reason, member=3)]
    at_rest = rest.close({3: [data(3, 5), message, data(3, 6)]}, SURVIVORS, 0)
    assert Report(code=reason, member=3) in at_rest.effects
    assert at_end(at_rest) == [(5, 3), (6, 3)]
    assert at_end(before.close({3: [data(3, 6)]}, SURVIVORS, 0)) == [(5, 3), (6, 3)]


def test_a_member_whose_rounds_are_exhausted_delivers_the_cut() -> None:
    one = core(null_after_ns=0)
    submit(one)
    give(one, data(1, MAX_ROUND))
    assert one.phase is Phase.EXHAUSTED
    assert at_end(one.close({2: [data(2, 1)]}, SURVIVORS, 0)) == [(1, 0), (1, 2), (MAX_ROUND, 1)]
