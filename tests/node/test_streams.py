"""Both ends of a stream, of a channel, and the round trip: values that the reliable core is built from."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.errors import DropReason
from node.protocols.channel import IncomingChannel, OutgoingChannel, Sent
from node.protocols.ending import Ending
from node.protocols.roundtrip import AMBIGUOUS_IN_A_ROW, GRANULARITY_NS, RoundTrip, RoundTrips
from node.protocols.stream import Answer, IncomingStream, OutgoingStream
from node.protocols.words import NOT_PARTY
from node.wire import Kind, Message

MILLISECOND = 1_000_000


def message(seq: int) -> Message:
    return Message(kind=Kind.RELIABLE_DATA, origin=1, incarnation=1, seq=seq)


def round_trip() -> RoundTrip:
    return RoundTrip(first_ns=100 * MILLISECOND, least_ns=20 * MILLISECOND, most_ns=1000 * MILLISECOND)


# Outgoing stream.


def sending(*members: int, count: int = 0) -> OutgoingStream:
    stream = OutgoingStream()
    for member in members:
        stream.register(member)
    for seq in range(1, count + 1):
        stream.append(message(seq))
    return stream


def test_the_floor_is_the_least_position_and_what_is_below_is_forgotten() -> None:
    stream = sending(1, 2, count=5)
    stream.acknowledge(1, 4)
    assert (stream.floor, sorted(stream.held)) == (0, [1, 2, 3, 4, 5])
    stream.acknowledge(2, 3)
    assert (stream.floor, sorted(stream.held)) == (3, [4, 5])
    assert sorted(stream.lacking()) == [(1, 4), (2, 3)]


def test_old_false_and_foreign_acknowledgements_change_nothing() -> None:
    stream = sending(1, 2, count=5)
    stream.acknowledge(1, 4)
    stream.acknowledge(1, 2)
    stream.acknowledge(2, 6)
    stream.acknowledge(9, 5)
    assert dict(stream.lacking()) == {1: 4, 2: 0}


def test_nobody_waits_for_who_is_forgotten() -> None:
    stream = sending(1, 2, count=5)
    stream.acknowledge(1, 4)
    stream.forget(2)
    assert stream.floor == 4
    stream.forget(1)
    assert (stream.floor, stream.held) == (5, {})
    stream.append(message(6))
    assert (stream.floor, stream.held) == (6, {})


def test_who_registers_late_counts_from_the_last_number_on() -> None:
    stream = sending(1, count=5)
    stream.acknowledge(1, 2)
    assert stream.register(7) == 5
    stream.acknowledge(1, 5)
    assert stream.floor == 5
    stream.append(message(6))
    assert stream.register(7) == 5, "asked again, the answer is the same"


def test_one_asker_gets_one_answer_and_a_second_asker_one_for_all() -> None:
    stream = sending(1, 2, 3, count=2)
    hold = 10
    assert stream.answer(1, 1, 100, hold) is Answer.ONE
    assert stream.answer(1, 1, 105, hold) is Answer.NONE
    assert stream.answer(1, 2, 106, hold) is Answer.ALL
    assert stream.answer(1, 3, 107, hold) is Answer.NONE, "the answer for all is under way"
    assert stream.answer(1, 3, 116, hold) is Answer.ONE, "and was lost, it seems"
    assert stream.answer(2, 3, 107, hold) is Answer.ONE, "each number for itself"
    assert stream.answer(9, 3, 107, hold) is Answer.NONE, "never sent"


# Incoming stream.


@given(st.permutations(range(1, 9)), st.lists(st.integers(1, 8), max_size=8))
def test_any_order_with_duplicates_ends_in_the_same_position(order: list[int], again: list[int]) -> None:
    stream = IncomingStream(start=0, window=16)
    reasons = [stream.accept(message(seq)) for seq in order]
    assert reasons == [None] * 8
    assert [stream.accept(message(seq)) for seq in again] == [DropReason.DUPLICATE] * len(again)
    assert (stream.position, stream.known, stream.has_gap) == (8, 8, False)
    assert sorted(stream.held) == list(range(1, 9))


def test_gaps_are_known_numbers_that_are_not_held() -> None:
    stream = IncomingStream(start=0, window=16)
    for seq in (1, 3, 6):
        stream.accept(message(seq))
    stream.learn(8)
    assert (stream.position, list(stream.missing())) == (1, [2, 4, 5, 7, 8])
    assert stream.accept(message(2)) is None
    assert stream.position == 3


def test_nothing_is_held_or_believed_beyond_the_window() -> None:
    stream = IncomingStream(start=10, window=4)
    assert stream.accept(message(15)) is DropReason.OUT_OF_WINDOW
    assert stream.accept(message(14)) is None
    stream.learn(15)
    assert stream.known == 14
    assert stream.accept(message(10)) is DropReason.DUPLICATE


def test_only_what_is_delivered_is_let_go() -> None:
    stream = IncomingStream(start=0, window=16)
    for seq in (1, 2, 3):
        stream.accept(message(seq))
    stream.delivered = 2
    stream.raise_floor(3)
    assert (stream.floor, sorted(stream.held), stream.is_settled) == (2, [3], False)
    stream.delivered = 3
    stream.raise_floor(3)
    stream.raise_floor(1)
    assert (stream.floor, stream.held, stream.is_settled) == (3, {}, True)


def test_asking_again_waits_for_the_time_out_of_each_number() -> None:
    stream = IncomingStream(start=0, window=16)
    trip = round_trip()
    stream.accept(message(3))

    def ask(now_ms: int) -> tuple[list[int], int]:
        return stream.ask(now_ms * MILLISECOND, trip, burst=8, pause_ns=MILLISECOND)

    assert ask(0) == ([1, 2], 100 * MILLISECOND)
    stream.accept(message(5))
    assert ask(10) == ([4], 100 * MILLISECOND)
    assert ask(100) == ([1, 2], 110 * MILLISECOND)
    assert stream.answered(4, 30 * MILLISECOND) == 20 * MILLISECOND
    assert stream.answered(1, 120 * MILLISECOND) is None, "asked twice: nobody knows which question was answered"
    assert stream.answered(9, 0) is None, "never asked"


def test_at_most_a_burst_is_asked_for_at_a_time() -> None:
    stream = IncomingStream(start=0, window=64)
    stream.learn(50)
    first, again_ns = stream.ask(0, round_trip(), burst=8, pause_ns=MILLISECOND)
    second, _ = stream.ask(again_ns, round_trip(), burst=8, pause_ns=MILLISECOND)
    assert (first, second, again_ns) == (list(range(1, 9)), list(range(9, 17)), MILLISECOND)


def test_closing_forgets_what_lies_beyond_a_gap() -> None:
    stream = IncomingStream(start=0, window=16)
    for seq in (1, 2, 5):
        stream.accept(message(seq))
    stream.close()
    assert (stream.known, sorted(stream.held)) == (2, [1, 2])
    stream.limit(4)
    assert list(stream.missing()) == [3, 4]


# Ending.


def ended_at(position: int) -> Ending:
    stream = IncomingStream(start=0, window=16)
    for seq in range(1, position + 1):
        stream.accept(message(seq))
    return Ending(stream)


def final_of(ending: Ending) -> int | None:
    return ending.final


def test_the_final_number_is_the_highest_that_a_survivor_has() -> None:
    ending = ended_at(3)
    ending.report(1, 2)
    ending.decide((1, 2))
    assert final_of(ending) is None, "member 2 has not told yet"
    ending.report(2, 5)
    ending.decide((1, 2))
    assert (ending.final, ending.holders((1, 2))) == (5, [2])
    assert (ending.progress(1), ending.progress(2)) == (3, None)


def test_who_never_took_part_is_not_waited_for_and_holds_nothing() -> None:
    ending = ended_at(3)
    ending.report(1, NOT_PARTY)
    ending.decide((1,))
    assert (ending.final, ending.holders((1,)), ending.progress(1)) == (3, [], None)
    assert (Ending(None).position, Ending(None).is_settled) == (NOT_PARTY, True)


def test_a_new_view_asks_anew_until_the_end_is_reached() -> None:
    ending = ended_at(3)
    ending.report(1, 4)
    ending.decide((1,))
    ending.restart()
    assert ending.holders((1,)) == []
    ending.decide(())
    assert final_of(ending) == 3
    ending.has_ended = True
    ending.restart()
    assert final_of(ending) == 3, "delivered to the end, that is the end"
    ending.settle(())
    assert ending.is_settled
    assert ending.stream is not None
    assert ending.stream.held == {}


# Channels.


def test_an_acknowledgement_covers_all_before_it_and_measures_the_round_trip() -> None:
    trip = round_trip()
    channel = OutgoingChannel(incarnation=1, window=2, round_trip=trip)
    for seq in (1, 2, 3):
        channel.last = seq
        channel.queue.append(message(seq))
    sent = [channel.send_next(0), channel.send_next(0), channel.send_next(0)]
    assert [one.seq if one else None for one in sent] == [1, 2, None], "the window is two"
    assert not channel.acknowledge(3, 5), "number 3 was not sent: nobody can have it"
    assert channel.acknowledge(2, 40 * MILLISECOND)
    assert not channel.acknowledge(1, 50 * MILLISECOND)
    assert trip.timeout_ns() == 40 * MILLISECOND + 4 * 20 * MILLISECOND
    assert channel.send_next(0) is not None


def test_the_same_position_again_shows_what_is_lost_once() -> None:
    channel = OutgoingChannel(incarnation=1, window=8, round_trip=round_trip())
    channel.unacked = {seq: Sent(message(seq), 0) for seq in (1, 2)}
    lost = channel.lost_before_others(0)
    assert lost is not None
    assert lost.message.seq == 1
    lost.tries += 1
    assert channel.lost_before_others(0) is None
    assert channel.lost_before_others(1) is None, "not the position that we know"
    channel.unacked = {seq: Sent(message(seq), 0) for seq in (2, 3)}
    channel.acked = 1
    lost = channel.lost_before_others(1)
    assert lost is not None
    assert lost.message.seq == 2


def test_unicasts_come_out_in_order_once_and_within_bounds() -> None:
    channel = IncomingChannel(incarnation=1, window=4)
    order = [2, 1, 4, 3, 2]
    reasons = [channel.accept(message(seq)) for seq in order]
    assert reasons == [None, None, None, None, DropReason.DUPLICATE]
    out = []
    while channel.next_to_deliver() is not None:
        out.append(channel.take().seq)
    assert out == [1, 2, 3, 4]
    assert channel.accept(message(9)) is DropReason.OUT_OF_WINDOW


def test_what_is_received_and_not_delivered_is_bounded_too() -> None:
    channel = IncomingChannel(incarnation=1, window=4)
    accepted = [seq for seq in range(1, 20) if channel.accept(message(seq)) is None]
    assert accepted == list(range(1, 9))


# Round trips.


def test_time_out_follows_the_samples_within_its_bounds() -> None:
    trip = round_trip()
    assert [trip.timeout_ns(tries) for tries in (1, 2, 3, 9)] == [
        100 * MILLISECOND,
        200 * MILLISECOND,
        400 * MILLISECOND,
        400 * MILLISECOND,
    ]
    for _ in range(50):
        trip.sample(2 * MILLISECOND)
    assert trip.timeout_ns() == 20 * MILLISECOND
    for _ in range(50):
        trip.sample(900 * MILLISECOND)
    assert 900 * MILLISECOND <= trip.timeout_ns() <= 1000 * MILLISECOND


@pytest.mark.parametrize("seed", range(5))
def test_time_out_exceeds_nearly_every_jittered_round_trip(seed: int) -> None:
    rng = Random(seed)
    trip = round_trip()
    late = 0
    for _ in range(1000):
        elapsed = rng.randint(20 * MILLISECOND, 60 * MILLISECOND)
        late += elapsed > trip.timeout_ns()
        trip.sample(elapsed)
    assert late <= 10


def test_round_trips_are_kept_apart() -> None:
    trips = RoundTrips(first_ns=100 * MILLISECOND, least_ns=10 * MILLISECOND, most_ns=1000 * MILLISECOND)
    trips.of(1).sample(20 * MILLISECOND)
    assert (trips.of(1).timeout_ns(), trips.of(2).timeout_ns()) == (60 * MILLISECOND, 100 * MILLISECOND)


def test_a_round_trip_that_never_varies_is_not_its_own_time_out() -> None:
    trip = round_trip()
    for _ in range(1000):
        trip.sample(30 * MILLISECOND)
    assert trip.timeout_ns() == 30 * MILLISECOND + GRANULARITY_NS


def test_a_round_trip_that_outgrows_the_time_out_is_learnt_all_the_same() -> None:
    trip = round_trip()
    trip.sample(2 * MILLISECOND)
    timeout_ns = trip.timeout_ns()
    for _ in range(AMBIGUOUS_IN_A_ROW - 1):
        trip.ambiguous(150 * MILLISECOND)
    assert trip.timeout_ns() == timeout_ns, "chance losses are no reason yet"
    for _ in range(20):
        trip.ambiguous(150 * MILLISECOND)
    assert trip.timeout_ns() > 150 * MILLISECOND
    trip.sample(2 * MILLISECOND)
    after_ns = trip.timeout_ns()
    trip.ambiguous(900 * MILLISECOND)
    assert trip.timeout_ns() == after_ns, "one clear sample ends the doubt"
