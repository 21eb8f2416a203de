"""The end of a view under Lamport's order: one order at all survivors, no effect without its cause, and clocks that do
not go back.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from node.clocks import MAX_TIMESTAMP, EventClock
from node.core import Closing, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report
from node.errors import DropReason, RemoteError
from node.protocols.lamport import LamportCore, LamportParameters, LamportReport, Phase
from node.protocols.prefix import Prefix
from node.trace import Notice
from node.wire import Kind, Message
from tests.node.group.views import Group, run

MILLISECOND = 1_000_000
SEEDS = 30
BATCHES = 10


class Members:
    """Makes cores; each incarnation keeps its clock through all its views."""

    def __init__(self, parameters: LamportParameters) -> None:
        self._parameters = parameters
        self._clocks: dict[tuple[int, int], EventClock] = {}

    def __call__(self, membership: Membership, rng: Random, memory: bytes) -> LamportCore:
        name = (membership.member, membership.incarnation)
        clock = self._clocks.setdefault(name, self._parameters.new_clock())
        return LamportCore(membership=membership, parameters=self._parameters, rng=rng, memory=memory, clock=clock)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_views_keep_all_promises(batch: int) -> None:
    for seed in range(batch * SEEDS, (batch + 1) * SEEDS):
        rng = Random(f"lamport/{seed}")
        parameters = LamportParameters(
            tie=rng.choice(("member", "fair")),
            clock=rng.choice(("logical", "physical", "synchronised")),
            mu_ns=rng.choice((0, MILLISECOND)),
            null_after_ns=rng.choice((0, 2 * MILLISECOND, 30 * MILLISECOND)),
            report_clock=True,
        )
        group = run(Members(parameters), seed, lags=rng.random() < 0.5, skewed=rng.random() < 0.5)
        check_clocks(group)


def check_clocks(group: Group) -> None:
    """All events of one incarnation, in all its views."""
    for place in group.places.values():
        shown = [report.value for report in place.reports if report.code == Notice.TIMESTAMP]
        assert all(one < other for one, other in pairwise(shown)), f"the clock of member {place.member} goes back"


def test_the_same_seed_gives_the_same_history() -> None:
    one, other = (run(Members(LamportParameters()), 7) for _ in range(2))
    assert one.streams == other.streams
    assert one.places[0].delivered == other.places[0].delivered


def test_a_group_at_rest_is_silent() -> None:
    group = Group(Members(LamportParameters()), 4, 1)
    for _ in range(3):
        group.submit(0)
    group.settle()
    assert [place.timers for place in group.places.values()] == [{}] * 4
    assert sum(map(len, group.streams.values())) == 3 + 3, "three messages, and a null of each other member"


# Cases by hand: four members, of which members 0 and 1 survive.

SURVIVORS = frozenset({0, 1})
Rest = dict[int, list[Message]]


def core(member: int = 0, members: int = 4, memory: bytes = b"", **parameters: int) -> LamportCore:
    made = LamportCore(
        membership=Membership(member=member, members=tuple(range(members))),
        parameters=LamportParameters(**parameters),  # type: ignore[arg-type]  # those with a number
        rng=Random(1),
        memory=memory,
    )
    made.on_start(0)
    return made


def data(origin: int, timestamp: int, word: int = 0) -> Message:
    return Message(kind=Kind.LAMPORT_DATA, origin=origin, incarnation=1, seq=timestamp, words=(word,))


def null(origin: int, timestamp: int) -> Message:
    return Message(kind=Kind.LAMPORT_NULL, origin=origin, incarnation=1, seq=timestamp)


def give(one: LamportCore, *messages: Message) -> list[Effect]:
    return [effect for message in messages for effect in one.on_message(message, message.origin, 0)]


def after(*deliveries: tuple[int, int]) -> int:
    """The word of a member that has delivered these: (origin, timestamp)."""
    prefix = Prefix()
    for origin, timestamp in deliveries:
        prefix.delivered(origin, timestamp)
    return prefix.word


def delivered(closing: Closing) -> list[tuple[int, int]]:
    """(origin, timestamp)."""
    return [(effect.origin, effect.seq) for effect in closing.effects if isinstance(effect, Deliver)]


def dropped(closing: Closing) -> list[tuple[int, int]]:
    return [
        (effect.member, effect.value)
        for effect in closing.effects
        if isinstance(effect, Report) and effect.code == LamportReport.DROPPED
    ]


def timestamp_in(memory: bytes) -> int:
    return int.from_bytes(memory, "big")


def test_the_cut_is_delivered_in_the_order_of_timestamps_whatever_is_missing() -> None:
    one = core()
    give(one, data(1, 9), data(3, 4))
    closing = one.close({1: [data(1, 12)], 2: [data(2, 4), null(2, 30)]}, SURVIVORS, 0)
    assert delivered(closing) == [(2, 4), (3, 4), (1, 9), (1, 12)]
    assert timestamp_in(closing.memory) == 30


def test_two_survivors_that_stand_at_different_places_end_with_the_same_order() -> None:
    """Member 1 has delivered two messages that member 0 has not, and has sent something after that."""
    of_two = [data(2, 1), null(2, 9)]
    of_three = [data(3, 2), null(3, 8)]
    late, early = core(0), core(1)
    by_early = [effect for effect in give(early, *of_two, *of_three, null(0, 7)) if isinstance(effect, Deliver)]
    assert [(effect.origin, effect.seq) for effect in by_early] == [(2, 1), (3, 2)]
    (effect,) = [effect for effect in early.on_submit(Submission(payload=b""), 0) if isinstance(effect, Multicast)]
    assert effect.message.words == (after((2, 1), (3, 2)),)
    of_one = [effect.message]
    at_early = early.close({0: []}, SURVIVORS, 0)
    at_late = late.close({1: of_one, 2: of_two, 3: of_three}, SURVIVORS, 0)
    assert delivered(at_late) == [(2, 1), (3, 2), *delivered(at_early)]
    assert len(delivered(at_early)) == 1


def test_an_effect_is_dropped_whose_cause_was_lost_with_an_excluded_member() -> None:
    """Member 3 delivered a message of member 2 that no survivor has received, sent, and crashed with member 2."""
    one = core()
    closing = one.close({3: [data(3, 7, after((2, 1))), data(3, 8, after((2, 1)))]}, SURVIVORS, 0)
    assert (delivered(closing), dropped(closing)) == ([], [(3, 7), (3, 8)])
    assert timestamp_in(closing.memory) == 8, "what is dropped counts for the clock"


def test_an_effect_is_delivered_whose_cause_is_in_the_cut() -> None:
    closing = core().close({2: [data(2, 1)], 3: [data(3, 7, after((2, 1)))]}, SURVIVORS, 0)
    assert delivered(closing) == [(2, 1), (3, 7)]


def test_all_later_messages_of_a_dropped_one_are_dropped_too_and_only_those() -> None:
    """The later one alone would agree."""
    rest = {1: [data(1, 5)], 2: [data(2, 9)], 3: [data(3, 4, after((2, 1))), data(3, 10, 0)]}
    closing = core().close(rest, SURVIVORS, 0)
    assert delivered(closing) == [(1, 5), (2, 9)]
    assert dropped(closing) == [(3, 4), (3, 10)]


def test_an_effect_of_an_effect_is_dropped_with_it() -> None:
    """Member 3 lost the cause; member 2 had delivered the message of member 3."""
    lost = (2, 1)
    rest = {2: [null(2, 6), data(2, 20, after(lost, (3, 7)))], 3: [data(3, 7, after(lost))]}
    closing = core(members=5).close(rest, SURVIVORS, 0)
    assert (delivered(closing), dropped(closing)) == ([], [(3, 7), (2, 20)])


def test_what_a_survivor_submits_is_delivered_at_the_end_of_the_view_and_not_handed_back() -> None:
    one = core()
    for payload in (b"a", b"b"):
        one.on_submit(Submission(payload=payload), 0)
    assert one.buffered == 2
    closing = one.close({0: [data(0, 1), data(0, 2)]}, SURVIVORS, 0)
    assert [effect.payload for effect in closing.effects if isinstance(effect, Deliver)] == [b"a", b"b"]
    assert closing.handed_back == ()


def test_messages_of_an_excluded_member_are_delivered_when_nothing_is_missing() -> None:
    one = core()
    give(one, data(3, 5))
    assert delivered(one.close({}, SURVIVORS, 0)) == [(3, 5)]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message(kind=Kind.APPLICATION, origin=3, incarnation=1, seq=9), DropReason.UNEXPECTED),
        (Message(kind=Kind.ALLACK_DATA, origin=3, incarnation=1, seq=9, words=(0,)), DropReason.UNEXPECTED),
        (data(2, 9), DropReason.UNEXPECTED),
        (data(3, 5), DropReason.MALFORMED),
        (data(3, MAX_TIMESTAMP + 1), DropReason.MALFORMED),
        (Message(kind=Kind.LAMPORT_DATA, origin=3, incarnation=1, seq=9), DropReason.MALFORMED),
    ],
)
def test_what_would_be_refused_is_passed_over_at_all_survivors(message: Message, reason: DropReason) -> None:
    """Whether it was handed over before the end or is in the rest."""
    before, rest = core(0), core(1)
    give(before, data(3, 5))
    assert before.on_message(message, 3, 0) == [Report(code=reason, member=3)]
    at_before = before.close({3: [data(3, 6)]}, SURVIVORS, 0)
    at_rest = rest.close({3: [data(3, 5), message, data(3, 6)]}, SURVIVORS, 0)
    assert Report(code=reason, member=3) in at_rest.effects
    assert delivered(at_rest) == [(3, 5), (3, 6)]
    assert delivered(at_before) == [(3, 5), (3, 6)]
    assert at_before.memory == at_rest.memory


# From view to view.


def test_timestamps_of_the_next_view_exceed_those_of_all_views_before() -> None:
    first = core()
    give(first, data(1, 40))
    memory = first.close({2: [null(2, 70)]}, SURVIVORS, 0).memory
    second = core(memory=memory)
    assert second.timestamp > 70
    (effect,) = [effect for effect in second.on_submit(Submission(payload=b""), 0) if isinstance(effect, Multicast)]
    assert effect.message.seq == 72
    assert give(second, data(1, 70)) == [Report(code=DropReason.MALFORMED, member=1)]
    assert timestamp_in(second.close({}, SURVIVORS, 0).memory) == 72


def test_a_view_in_which_nothing_was_sent_keeps_the_memory() -> None:
    memory = core().close({1: [null(1, 40)]}, SURVIVORS, 0).memory
    assert core(memory=memory).close({}, SURVIVORS, 0).memory == memory


def test_a_member_keeps_its_clock_which_may_be_ahead_of_the_cut() -> None:
    first = core()
    give(first, null(1, 1), null(2, 1), null(3, 1), null(1, 2))
    told = first.timestamp
    closing = first.close({}, SURVIVORS, 0)
    assert told > timestamp_in(closing.memory)
    second = LamportCore(
        membership=Membership(member=0, members=(0, 1)),
        parameters=LamportParameters(),
        rng=Random(1),
        memory=closing.memory,
        clock=first.clock,
    )
    second.on_start(0)
    assert second.timestamp > told


@pytest.mark.parametrize("memory", [b"\0", bytes(7), bytes(9), b"\xff" * 8, (MAX_TIMESTAMP + 1).to_bytes(8, "big")])
def test_a_memory_that_holds_no_timestamp_is_refused(memory: bytes) -> None:
    with pytest.raises(RemoteError, match="MALFORMED"):
        core(memory=memory)


def test_a_clock_that_is_exhausted_stays_so_in_the_next_view() -> None:
    first = core(null_after_ns=0)
    give(first, data(1, MAX_TIMESTAMP))
    assert first.phase is Phase.EXHAUSTED
    memory = first.close({}, SURVIVORS, 0).memory
    second = LamportCore(
        membership=Membership(member=0, members=(0, 1)),
        parameters=LamportParameters(),
        rng=Random(1),
        memory=memory,
    )
    (report,) = second.on_start(0)
    assert report == Report(code=LamportReport.EXHAUSTED, member=0, value=MAX_TIMESTAMP + 1)
    assert (second.can_submit, second.is_idle) == (False, True)
