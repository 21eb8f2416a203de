"""The end of a view under Lamport's order: one order at all survivors, no effect without its cause, and clocks that do
not go back.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from node.clocks import MAX_TIMESTAMP, EventClock
from node.core import Membership, Submission
from node.effects import Multicast, Report
from node.errors import DropReason, RemoteError
from node.protocols.base import Phase
from node.protocols.lamport import LamportCore, LamportParameters, LamportReport
from node.trace import Notice
from node.wire import Kind, Message
from tests.node.by_hand import after, delivered, give, multicasts
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
    """The clock of an incarnation never goes back, through all its views."""
    for place in group.places.values():
        shown = [report.value for report in place.reports if report.code == Notice.TIMESTAMP]
        assert all(one < other for one, other in pairwise(shown)), f"the clock of member {place.member} goes back"


def test_the_same_seed_gives_the_same_history() -> None:
    one, other = (run(Members(LamportParameters()), 7) for _ in range(2))
    assert one.streams == other.streams
    assert one.places[0].delivered == other.places[0].delivered


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


def timestamp_in(memory: bytes) -> int:
    return int.from_bytes(memory, "big")


def test_the_cut_is_delivered_in_the_order_of_timestamps_whatever_is_missing() -> None:
    one = core()
    give(one, data(1, 9), data(3, 4))
    closing = one.close({1: [data(1, 12)], 2: [data(2, 4), null(2, 30)]}, SURVIVORS, 0)
    assert delivered(closing.effects) == [(2, 4), (3, 4), (1, 9), (1, 12)]
    assert timestamp_in(closing.memory) == 30


def test_two_survivors_that_stand_at_different_places_end_with_the_same_order() -> None:
    """Member 1 has delivered two messages that member 0 has not, and has sent a message after that."""
    of_two = [data(2, 1), null(2, 9)]
    of_three = [data(3, 2), null(3, 8)]
    late, early = core(0), core(1)
    assert delivered(give(early, *of_two, *of_three, null(0, 7))) == [(2, 1), (3, 2)]
    (message,) = multicasts(early.on_submit(Submission(payload=b""), 0))
    assert message.words == (after((2, 1), (3, 2)),)
    of_one = [message]
    at_early = early.close({0: []}, SURVIVORS, 0)
    at_late = late.close({1: of_one, 2: of_two, 3: of_three}, SURVIVORS, 0)
    assert delivered(at_late.effects) == [(2, 1), (3, 2), *delivered(at_early.effects)]
    assert len(delivered(at_early.effects)) == 1


def test_what_is_dropped_counts_for_the_clock() -> None:
    closing = core().close({3: [data(3, 8, after((2, 1)))]}, SURVIVORS, 0)
    assert (delivered(closing.effects), timestamp_in(closing.memory)) == ([], 8)


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
