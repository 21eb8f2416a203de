"""The parts of the reliable core: both ends of a stream and of a channel, the round trip, the words of messages."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from node.core import Membership, Submission
from node.effects import Effect, Send, SetTimer
from node.errors import DropReason, RemoteError
from node.packing import Entry
from node.reliable import ReliableParameters, view_of
from node.reliable.channel import Channels
from node.reliable.codec import (
    MAX_FENCES,
    MAX_LAG,
    MAX_PIGGYBACK,
    entry,
    fence_of,
    pack_data,
    pack_heartbeat,
    unpack_data,
    unpack_heartbeat,
)
from node.reliable.stream import IncomingStream, OutgoingStream, Receiver
from node.transport import AMBIGUOUS_IN_A_ROW, GRANULARITY_NS, Outbox, RoundTrip, Timers, retransmission
from node.wire import Kind, Message, decode_message, encode_message
from tests.node.cluster import MILLISECOND, SECOND


def message(seq: int) -> Message:
    return Message(kind=Kind.RELIABLE_DATA, origin=1, incarnation=1, seq=seq)


def round_trip() -> RoundTrip:
    return RoundTrip(ReliableParameters())


# Outgoing stream.


def sending(*members: int, count: int = 0) -> OutgoingStream:
    stream = OutgoingStream(members)
    for seq in range(1, count + 1):
        stream.append(message(seq), is_sent=True)
    return stream


def test_the_floor_is_the_least_position_and_what_is_below_is_forgotten() -> None:
    stream = sending(1, 2, count=5)
    stream.acknowledge(1, 4)
    assert (stream.floor, sorted(stream.buffered)) == (0, [1, 2, 3, 4, 5])
    stream.acknowledge(2, 3)
    assert (stream.floor, sorted(stream.buffered)) == (3, [4, 5])
    assert sorted(stream.lacking()) == [(1, 4), (2, 3)]


def test_old_and_false_acknowledgements_change_nothing() -> None:
    stream = sending(1, 2, count=5)
    stream.acknowledge(1, 4)
    stream.acknowledge(1, 2)
    stream.acknowledge(2, 6)
    assert dict(stream.lacking()) == {1: 4, 2: 0}


def test_one_asker_gets_one_answer_and_a_second_asker_one_for_all() -> None:
    stream = sending(1, 2, 3, count=2)
    hold = 10

    def answer(number: int, asker: int, now_ns: int) -> int | str | None:
        effect = stream.answer(number, asker, now_ns, hold)
        return None if effect is None else effect.target if isinstance(effect, Send) else "all"

    assert answer(1, 1, 100) == 1
    assert answer(1, 1, 105) is None
    assert answer(1, 2, 106) == "all"
    assert answer(1, 3, 107) is None, "the answer for all is under way"
    assert answer(1, 3, 116) == 3, "and was lost, it seems"
    assert answer(2, 3, 107) == 3, "each number for itself"
    assert answer(9, 3, 107) is None, "never sent"


# Incoming stream.


@given(st.permutations(range(1, 9)), st.lists(st.integers(1, 8), max_size=8))
def test_any_order_with_duplicates_ends_in_the_same_position(order: list[int], again: list[int]) -> None:
    stream = IncomingStream(window=16)
    reasons = [stream.accept(message(seq)) for seq in order]
    assert reasons == [None] * 8
    assert [stream.accept(message(seq)) for seq in again] == [DropReason.DUPLICATE] * len(again)
    assert (stream.position, stream.known) == (8, 8)
    assert sorted(stream.buffered) == list(range(1, 9))


def test_gaps_are_known_numbers_that_are_not_held() -> None:
    stream = IncomingStream(window=16)
    for seq in (1, 3, 6):
        stream.accept(message(seq))
    stream.learn(8)
    assert (stream.position, list(stream.missing())) == (1, [2, 4, 5, 7, 8])
    assert stream.accept(message(2)) is None
    assert stream.position == 3


def test_nothing_is_held_or_believed_beyond_the_window() -> None:
    stream = IncomingStream(window=4)
    assert stream.accept(message(1)) is None
    assert stream.accept(message(6)) is DropReason.OUT_OF_WINDOW
    assert stream.accept(message(5)) is None
    stream.learn(6)
    assert stream.known == 5
    assert stream.accept(message(1)) is DropReason.DUPLICATE


def test_only_what_is_delivered_is_let_go() -> None:
    stream = IncomingStream(window=16)
    for seq in (1, 2, 3):
        stream.accept(message(seq))
    stream.delivered = 2
    stream.learn_stable(3)
    assert (stream.stable, stream.floor, sorted(stream.buffered), stream.is_settled) == (3, 2, [3], False)
    stream.delivered = 3
    stream.release()
    stream.learn_stable(1)
    assert (stream.floor, stream.buffered, stream.is_settled) == (3, {}, True)
    stream.learn_stable(9)
    assert stream.stable == 3, "nothing is everywhere that has not come here"


def test_asking_again_waits_for_the_time_out_of_each_number() -> None:
    stream = IncomingStream(window=16)
    trip = round_trip()
    stream.accept(message(3))

    def ask(now_ms: int) -> tuple[list[int], int, bool]:
        return stream.requests.ask(stream.missing(), now_ms * MILLISECOND, trip, burst=8, pause_ns=MILLISECOND)

    assert ask(0) == ([1, 2], 100 * MILLISECOND, False)
    stream.accept(message(5))
    assert ask(10) == ([4], 100 * MILLISECOND, False)
    assert ask(100) == ([1, 2], 110 * MILLISECOND, True)
    for seq, now_ms in ((1, 120), (9, 500)):
        stream.requests.answered(retransmission(message(seq)), now_ms * MILLISECOND, trip)
        assert trip.timeout_ns() == 100 * MILLISECOND, "asked twice, or never: no sample"
    stream.requests.answered(retransmission(message(4)), 20 * MILLISECOND, trip)
    assert trip.timeout_ns() == 30 * MILLISECOND


def test_at_most_a_burst_is_asked_for_at_a_time() -> None:
    stream = IncomingStream(window=64)
    stream.learn(50)
    first, again_ns, _ = stream.requests.ask(stream.missing(), 0, round_trip(), burst=8, pause_ns=MILLISECOND)
    second, _, _ = stream.requests.ask(stream.missing(), again_ns, round_trip(), burst=8, pause_ns=MILLISECOND)
    assert (first, second, again_ns) == (list(range(1, 9)), list(range(9, 17)), MILLISECOND)


# Channels.


def channel_with(count: int) -> tuple[Channels, list[int]]:
    """Channels to member 1, with a window of 4 unicasts and a time-out of 100 ms; numbers of `count` sent ones."""
    us = Membership(member=0, members=(0, 1))
    parameters = ReliableParameters(window=4)
    channels = Channels(us, 1, parameters, {1: RoundTrip(parameters)}, Timers())
    out: list[Effect] = []
    for _ in range(count):
        channels.send(Submission(payload=b""), 1, 0, 0, out)
    return channels, sent_in(out)


def sent_in(effects: list[Effect]) -> list[int]:
    return [effect.message.seq for effect in effects if isinstance(effect, Send)]


def told(channels: Channels, position: int, now_ns: int) -> list[Effect]:
    out: list[Effect] = []
    channels.acknowledge(1, position, now_ns, out)
    return out


def test_an_acknowledgement_covers_all_before_it_and_measures_the_round_trip() -> None:
    channels, sent = channel_with(6)
    assert sent == [1, 2, 3, 4], "the window is four"
    assert not told(channels, 5, 5), "number 5 was not sent: nobody can have it"
    out = told(channels, 3, 40 * MILLISECOND)
    assert sent_in(out) == [5, 6]
    due = next(effect.at_ns for effect in out if isinstance(effect, SetTimer))
    assert due == (40 + 40 + 4 * 20) * MILLISECOND, "the time-out follows the round trip"
    assert not told(channels, 2, 50 * MILLISECOND)
    assert list(channels.lacking()) == [(1, 3)]
    told(channels, 6, 60 * MILLISECOND)
    assert not channels.buffered
    assert channels.is_settled


def test_the_same_position_again_shows_what_is_lost_once() -> None:
    channels, _ = channel_with(3)
    assert sent_in(told(channels, 0, 1)) == [1]
    assert not told(channels, 0, 2), "it was retransmitted already"
    told(channels, 1, 3)
    assert not told(channels, 0, 4), "not the position that we know"
    assert sent_in(told(channels, 1, 5)) == [2]
    told(channels, 2, 6)
    assert not told(channels, 2, 7), "nothing later is under way that could have come"


def test_unicasts_are_taken_once_and_within_bounds() -> None:
    channel = Receiver(window=4)
    reasons = [channel.accept(message(seq)) for seq in (2, 1, 4, 3, 2, 9)]
    assert reasons == [None, None, None, None, DropReason.DUPLICATE, DropReason.OUT_OF_WINDOW]
    assert sorted(channel.buffered) == [1, 2, 3, 4]


def test_what_is_received_and_not_delivered_is_bounded_too() -> None:
    channel = Receiver(window=4)
    accepted = [seq for seq in range(1, 20) if channel.accept(message(seq)) is None]
    assert accepted == list(range(1, 9))


# Round trips.


def test_time_out_follows_the_samples_within_its_bounds() -> None:
    trip = round_trip()
    first = [trip.timeout_ns(tries) for tries in (1, 2, 3, 9)]
    assert first == [ms * MILLISECOND for ms in (100, 200, 400, 400)]
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


def test_what_is_transmitted_twice_counts_from_its_first_transmission() -> None:
    outbox, expected = Outbox[int](round_trip(), window=1), round_trip()
    for number in range(1, AMBIGUOUS_IN_A_ROW + 1):
        outbox.add(number)
        assert [sent.tries for sent in outbox.start(number * SECOND)] == [1]
        assert [sent.tries for sent in outbox.late(number * SECOND + 300 * MILLISECOND, burst=1)] == [2]
        assert outbox.acknowledge(number, number * SECOND + 400 * MILLISECOND) == [number]
        expected.ambiguous(400 * MILLISECOND)
    assert outbox.round_trip.timeout_ns() == expected.timeout_ns() > round_trip().timeout_ns()


# The words of messages, in both directions.

VIEWS = st.integers(0, 2**31 - 1)
ENTRIES = st.builds(Entry, st.integers(0, 0xFFFE), st.just(0), st.integers(0, 2**32 - 1))


def data(words: tuple[int, ...]) -> Message:
    message = Message(kind=Kind.RELIABLE_DATA, origin=1, incarnation=1, seq=MAX_LAG, words=words)
    assert decode_message(encode_message(message)) == message
    return message


def packed_of(entries: list[Entry]) -> tuple[int, ...]:
    return tuple(entry(one.member, one.number) for one in entries)


@given(VIEWS, st.integers(0, MAX_LAG), st.lists(ENTRIES, max_size=20), st.lists(ENTRIES, max_size=MAX_PIGGYBACK))
@example(2**31 - 1, MAX_LAG, [Entry(1, 0, 1)] * MAX_FENCES, [Entry(2, 0, 2)] * MAX_PIGGYBACK)
def test_a_data_head_comes_back(view: int, lag: int, fences: list[Entry], positions: list[Entry]) -> None:
    packed = packed_of(fences), packed_of(positions)
    message = data(pack_data(view, lag, *packed))
    assert view_of(message) == view
    assert unpack_data(message) == (lag, *packed)
    for target in range(3):
        assert fence_of(message, target) == next((one.number for one in fences if one.member == target), 0)


@given(VIEWS, st.lists(ENTRIES, max_size=200), st.lists(st.integers(0, 0xFFFE), max_size=200))
def test_a_heartbeat_comes_back(view: int, positions: list[Entry], awaited: list[int]) -> None:
    words = pack_heartbeat(view, packed_of(positions), tuple(awaited))
    assert unpack_heartbeat(words) == (positions, awaited)
    with pytest.raises(RemoteError, match="MALFORMED"):
        unpack_heartbeat((*words, 0))
