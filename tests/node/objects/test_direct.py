"""Direct channels: FIFO, no duplicates, and no missing message that was not reported as failed."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.core import Membership
from node.effects import Effect, Send, Timer
from node.errors import DropReason, LocalError
from node.group.view import Incarnation
from node.objects.manager.direct import (
    ACKNOWLEDGE,
    MOST_INCARNATIONS,
    MOST_WAITING,
    Direct,
    DirectChannels,
    Failure,
)
from node.reliable.parameters import ReliableParameters
from node.transport import Timers
from node.wire import Flag, Kind, Message, decode_message
from tests.node.objects.direct_world import MILLISECOND, PARAMETERS, PATIENCE_NS, SECOND, World

BOTH = ((1, 2), (2, 1))


def kinds(world: World) -> list[Kind]:
    return [decode_message(one.data).kind for one in world.wire]


def acquainted() -> World:
    """Machine 2 has acknowledged a message of machine 1."""
    world = World()
    world.send(1, 2)
    world.settle()
    return world


def ahead_of_a_gap() -> World:
    """Machine 2 has received the second message of machine 1; the first is lost."""
    world = World()
    world.send_many(1, 2, 2)
    world.lose()
    world.pass_on()
    assert world.machines[2].channels.buffered == 1
    return world


def test_the_window_bounds_what_is_under_way_and_all_arrives_in_order() -> None:
    world = World()
    count = PARAMETERS.window + 3
    world.send_many(1, 2, count)
    assert len(world.wire) == PARAMETERS.window
    world.settle()
    assert world.machines[2].received[Incarnation(1, 1)] == list(range(1, count + 1))
    assert world.machines[1].acknowledged == dict.fromkeys(range(1, count + 1), Incarnation(2, 1))


def test_a_burst_costs_one_acknowledgement() -> None:
    world = World()
    world.send_many(1, 2, 4)
    world.pass_all()
    world.tick()
    assert kinds(world) == [Kind.OBJECTS_RECEIVED]


def test_a_gap_is_told_at_once_and_what_is_in_order_a_little_later() -> None:
    with_a_gap, in_order = ahead_of_a_gap(), acquainted()
    in_order.send(1, 2)
    in_order.pass_on()
    waits_ns = [world.machines[2].armed[Timer(ACKNOWLEDGE, 1)] - world.now_ns for world in (with_a_gap, in_order)]
    assert waits_ns == [0, PARAMETERS.acknowledge_ns]


def test_an_answer_takes_the_acknowledgement_along() -> None:
    world = World()
    world.send(1, 2)
    world.pass_on()
    world.send(2, 1)
    world.pass_on()
    assert world.machines[1].acknowledged == {1: Incarnation(2, 1)}
    assert Timer(ACKNOWLEDGE, 1) not in world.machines[2].armed
    world.tick()
    assert kinds(world) == [Kind.OBJECTS_RECEIVED]
    assert world.wire[0].source == 1


def test_what_is_lost_comes_again_as_soon_as_an_acknowledgement_shows_the_gap() -> None:
    world = World()
    world.send_many(1, 2, 3)
    world.lose()
    world.pass_all()
    world.tick()
    world.pass_on()
    again = decode_message(world.wire[0].data)
    assert (again.kind, again.seq, again.flags) == (Kind.OBJECTS_DIRECT, 1, Flag.RETRANSMISSION)
    assert world.now_ns < PARAMETERS.retry_first_ns
    world.settle()
    assert world.machines[2].received[Incarnation(1, 1)] == [1, 2, 3]


def test_the_retry_times_of_the_reliable_layer_hold_here() -> None:
    world = World(parameters=ReliableParameters(retry_first_ns=40 * MILLISECOND))
    world.send(1, 2)
    world.wire.clear()
    assert world.next_ns == 40 * MILLISECOND
    world.tick()
    assert [decode_message(one.data).flags for one in world.wire] == [Flag.RETRANSMISSION]
    world.settle()


def test_messages_that_cross_do_not_seem_to_show_a_gap() -> None:
    world = World()
    for _ in range(4):
        world.send(1, 2)
        world.send(2, 1)
    for _ in range(len(world.wire)):
        world.pass_on()
    assert not any(decode_message(one.data).flags & Flag.RETRANSMISSION for one in world.wire)
    world.settle()


@pytest.mark.parametrize(("pairs", "arrived"), [(BOTH, [1, 8]), ([(2, 1)], [1, 2, 3, 4, 5, 8])])
def test_silence_fails_what_is_open_which_may_have_arrived_and_the_next_message_begins_a_stream_without_a_gap(
    pairs: list[tuple[int, int]], arrived: list[int]
) -> None:
    world = acquainted()
    lost = [world.send(1, 2) for _ in range(6)]
    world.silence(PATIENCE_NS + 1, pairs)
    assert world.machines[1].failed == dict.fromkeys(lost, Failure.SILENT)
    assert world.machines[1].armed == {}
    later = world.send(1, 2)
    world.settle()
    assert world.machines[2].received[Incarnation(1, 1)] == arrived
    assert world.machines[1].acknowledged == {1: Incarnation(2, 1), later: Incarnation(2, 1)}


def test_a_stream_that_goes_on_does_not_fail_though_each_message_takes_long() -> None:
    """All are open from the begin on; from time to time one arrives and is acknowledged."""
    world = World()
    world.send_many(1, 2, PARAMETERS.window)
    for datagram in list(world.wire):
        world.silence(PATIENCE_NS * 3 // 4, BOTH)
        world.wire = [datagram]
        world.pass_on()
        world.silence(PATIENCE_NS // 8, [(1, 2)])
    assert world.machines[1].acknowledged == dict.fromkeys(range(1, PARAMETERS.window + 1), Incarnation(2, 1))
    assert not world.machines[1].failed
    world.settle()


def test_a_sender_that_was_paused_asks_once_more_before_it_gives_up() -> None:
    world = World()
    world.send(1, 2)
    world.pass_on()
    world.now_ns += 10 * PATIENCE_NS
    while not world.wire:
        world.tick()
    world.settle()
    assert world.machines[1].acknowledged == {1: Incarnation(2, 1)}
    lost = world.send(1, 2)
    world.wire.clear()
    world.now_ns += 10 * PATIENCE_NS
    world.silence(2 * SECOND, BOTH)
    assert world.machines[1].failed == {lost: Failure.SILENT}


def test_replays_of_an_old_session_change_nothing() -> None:
    world = World()
    world.send_many(1, 2, 3)
    old = list(world.wire)
    world.wire.clear()
    world.silence(PATIENCE_NS + 1, BOTH)
    world.send(1, 2)
    world.settle()
    world.wire = old
    world.settle()
    assert world.machines[2].received[Incarnation(1, 1)] == [4]
    assert world.machines[2].dropped.count(DropReason.DUPLICATE) == 3


# Incarnations.


@pytest.mark.parametrize("speaks_first", [False, True])
def test_a_later_incarnation_of_the_target_ends_the_channel_to_the_old_one(speaks_first: bool) -> None:
    """With its first message, or with its answer to what was for the old one."""
    world = acquainted()
    world.restart(2)
    world.send_many(1, 2, 2)
    if speaks_first:
        world.wire.clear()
        world.send(2, 1)
    world.pass_all()
    assert world.machines[1].failed == {2: Failure.ENDED, 3: Failure.ENDED}
    world.send(1, 2, 1)
    assert world.machines[1].failed[4] is Failure.ENDED, "at once"
    world.send(1, 2)
    world.settle()
    assert world.machines[2].received == {Incarnation(1, 1): [5]}


def test_whoever_lives_gets_what_is_for_whoever_lives() -> None:
    world = World()
    world.send(1, 2)
    world.lose()
    world.restart(2)
    world.settle()
    assert world.machines[1].acknowledged == {1: Incarnation(2, 2)}
    assert world.machines[2].received == {Incarnation(1, 1): [1]}


def test_what_was_for_whoever_lives_is_for_the_first_incarnation_that_speaks() -> None:
    world = World()
    world.send(1, 2)
    world.wire.clear()
    world.send(2, 1)
    world.pass_on()
    world.wire.clear()
    world.restart(2)
    world.settle()
    assert world.machines[1].failed == {1: Failure.ENDED}
    assert world.machines[2].received == {}


@pytest.mark.parametrize("seemed_over", [False, True])
def test_what_one_incarnation_has_begun_to_acknowledge_is_not_sent_to_the_next(seemed_over: bool) -> None:
    """Not even if that one had seemed over before it answered."""
    world = World()
    if seemed_over:
        world.send(2, 1)
        world.settle()
        world.tell_ended(1, Incarnation(2, 1))
    world.send_many(1, 2, 3)
    world.lose(2)
    world.pass_all()
    world.tick()
    world.pass_on()
    assert world.machines[1].acknowledged == {1: Incarnation(2, 1), 2: Incarnation(2, 1)}
    world.restart(2)
    world.settle()
    assert world.machines[1].failed == {3: Failure.ENDED}
    assert world.machines[2].received == {}


def test_the_owner_may_know_first_that_an_incarnation_is_over() -> None:
    world = acquainted()
    world.send(1, 2)
    machine = world.machines[1]
    world.tell_ended(1, Incarnation(2, 1))
    assert machine.failed == {2: Failure.ENDED}
    assert machine.armed == {}
    world.restart(2)
    world.send(1, 2, 1)
    assert machine.failed[3] is Failure.ENDED
    world.send(1, 2)
    world.wire = world.wire[-1:]
    world.settle()
    assert world.machines[2].received == {Incarnation(1, 1): [4]}


def test_an_incarnation_that_nobody_has_heard_of_takes_nothing_from_the_one_that_lives() -> None:
    world = acquainted()
    nobody = world.send(1, 2, 9)
    after = world.send(1, 2)
    world.settle()
    assert world.machines[2].received[Incarnation(1, 1)] == [1, after]
    assert world.machines[1].failed == {nobody: Failure.SILENT}


def test_a_restarted_sender_is_taken_up_at_its_first_message_and_its_past_is_not_heard_any_more() -> None:
    world = World()
    world.send(1, 2)
    late = list(world.wire)
    world.settle()
    world.restart(1)
    world.send(1, 2)
    world.settle()
    world.wire = late
    world.settle()
    assert world.machines[2].received == {Incarnation(1, 1): [1], Incarnation(1, 2): [1]}
    assert world.machines[2].dropped == [DropReason.STALE_INCARNATION]


# Bounds.


def test_what_exceeds_the_bounds_fails_at_once() -> None:
    world = World()
    world.send(2, 1)
    world.settle()
    incarnations = [world.send(1, 2, incarnation) for incarnation in range(2, 2 + MOST_INCARNATIONS + 3)]
    assert world.machines[1].failed == dict.fromkeys(incarnations[MOST_INCARNATIONS:], Failure.FULL)
    world.settle()


def test_a_target_that_does_not_answer_fills_no_memory() -> None:
    channels = _channels()
    out: list[Effect] = []
    for _ in range(MOST_WAITING + 5):
        channels.send(Incarnation(2, 1), Direct(payload=b""), 0, out)
    assert channels.buffered == MOST_WAITING
    assert len(channels.drain()) == 5
    assert sum(isinstance(effect, Send) for effect in out) == PARAMETERS.window


def test_only_what_is_near_is_held_ahead_of_a_gap() -> None:
    world = World()
    world.send(1, 2)
    first = decode_message(world.wire.pop().data)
    for seq in range(2, 100):
        world.arrive(2, 1, replace(first, seq=seq))
    machine = world.machines[2]
    assert machine.channels.buffered == PARAMETERS.window - 1
    assert machine.dropped.count(DropReason.OUT_OF_WINDOW) == 98 - (PARAMETERS.window - 1)
    assert not machine.channels.is_idle


def test_what_an_incarnation_left_ahead_of_a_gap_is_forgotten_when_patience_ends() -> None:
    world = ahead_of_a_gap()
    world.restart(1)
    begun_ns = world.now_ns
    world.settle()
    assert world.now_ns >= begun_ns + PATIENCE_NS
    assert world.machines[2].received == {}


def test_what_an_ended_incarnation_left_ahead_of_a_gap_is_forgotten_at_once() -> None:
    world = ahead_of_a_gap()
    world.tell_ended(2, Incarnation(1, 1))
    assert world.machines[2].channels.is_idle
    assert world.machines[2].armed == {}


def test_what_waits_ahead_of_a_gap_is_kept_while_its_sender_speaks() -> None:
    world = World()
    world.send_many(1, 2, 2)
    second = world.wire[1]
    for _ in range(4):
        world.wire = [second]
        world.pass_on()
        world.silence(PATIENCE_NS * 2 // 3, BOTH)
        assert world.machines[2].channels.buffered == 1
    world.settle()


# Hostile messages.


def _channels() -> DirectChannels:
    membership = Membership(member=1, members=(1, 2, 3))
    return DirectChannels(membership=membership, parameters=PARAMETERS, patience_ns=PATIENCE_NS, timers=Timers())


def _direct(*words: int, seq: int = 1, origin: int = 2, incarnation: int = 1) -> Message:
    return Message(kind=Kind.OBJECTS_DIRECT, origin=origin, incarnation=incarnation, seq=seq, words=words)


def _received(*words: int, seq: int = 1, payload: bytes = b"") -> Message:
    return Message(kind=Kind.OBJECTS_RECEIVED, origin=2, incarnation=1, seq=seq, words=words, payload=payload)


STREAM = 1 << 32 | 1


@pytest.mark.parametrize(
    "message",
    [
        _direct(1, 0, 0, 0),
        _direct(1, 0, 0, 0, 0, 0),
        _direct(1, 0, 0, 0, 0, seq=0),
        _direct(1 << 32, 0, 0, 0, 0),
        _direct(1 << 48, 0, 0, 0, 0),
        _direct(1, 1 << 48, 0, 0, 0),
        _direct(1, 0, 1, 0, 0),
        _direct(1, STREAM, 2, 0, 0),
        _direct(1, STREAM + 1, 0, 0, 0),
        _direct(1, 2 << 32 | 1, 0, 0, 0),
        _direct(1, 0, 0, 2**63, 0),
        _direct(1, 0, 0, 0, 2**63),
        _direct(1, 0, 0, 0, 0, incarnation=0),
        _direct(1, 0, 0, 0, 0, origin=3),
        _received(),
        _received(STREAM, 0),
        _received(STREAM, payload=b"x"),
        _received(STREAM, seq=2),
        _received(STREAM + 1),
        _received(2 << 32 | 1),
        _received(1 << 48),
        Message(kind=Kind.OBJECTS_VOTE, origin=2, incarnation=1),
    ],
)
def test_words_that_cannot_be_change_nothing(message: Message) -> None:
    world = World(3)
    world.send(1, 2)
    datagrams = list(world.wire)
    world.arrive(1, 2, message)
    machine = world.machines[1]
    assert machine.dropped[0] in (DropReason.MALFORMED, DropReason.UNEXPECTED)
    assert 2 not in machine.channels._incarnations
    assert world.wire == datagrams
    world.settle()
    assert machine.acknowledged == {1: Incarnation(2, 1)}


def test_who_is_no_peer_is_not_heard_and_cannot_be_sent_to() -> None:
    world = World()
    world.arrive(1, 7, _direct(1, 0, 0, 0, 0, origin=7))
    assert world.machines[1].dropped == [DropReason.UNEXPECTED]
    for member in (1, 7):
        with pytest.raises(LocalError, match="no peer"):
            world.machines[1].channels.send(Incarnation(member, 0), Direct(payload=b""), 0, [])


words = st.one_of(
    st.integers(0, 2**64 - 1),
    st.integers(0, 3),
    st.builds(lambda incarnation, session: incarnation << 32 | session, st.integers(0, 3), st.integers(0, 3)),
)
hostile = st.builds(
    Message,
    kind=st.sampled_from([Kind.OBJECTS_DIRECT, Kind.OBJECTS_RECEIVED]),
    origin=st.integers(1, 3),
    incarnation=st.integers(0, 3),
    seq=st.one_of(st.integers(0, 8), st.integers(0, 2**64 - 1)),
    words=st.one_of(st.tuples(words), st.tuples(words, words, words, words, words)),
)


@settings(max_examples=200, deadline=None)
@given(messages=st.lists(st.tuples(st.booleans(), hostile), max_size=30))
def test_no_lie_stops_us_or_fills_our_memory(messages: list[tuple[bool, Message]]) -> None:
    channels = _channels()
    timers: list[Effect] = []
    sent = 0
    for sends, message in messages:
        if sends:
            sent += 1
            channels.send(Incarnation(2, 0), Direct(payload=b""), 0, timers)
        try:
            channels.receive(message, message.origin, 0, timers)
        except Exception as error:
            assert type(error).__name__ == "RemoteError"
        channels.drain()
    assert channels.buffered <= sent + 2 * PARAMETERS.window


# Random worlds.

VERBS = ("send", "send known", "pass", "pass", "repeat", "lose", "tick", "restart", "told", "silence")
moves = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 29), st.integers(0, 29)), max_size=60)


def _move(world: World, verb: str, first: int, second: int) -> None:
    """The numbers mean members; the first means a datagram where one is passed or lost."""
    one, other = (1 + number % len(world.members) for number in (first, second))
    index = first % len(world.wire) if world.wire else None
    present = world.machines[other].incarnation.incarnation
    match verb:
        case "send" if one != other:
            world.send(one, other)
        case "send known" if one != other:
            world.send(one, other, present)
        case "pass" | "repeat" if index is not None:
            world.pass_on(index, keeps=verb == "repeat")
        case "lose" if index is not None:
            world.lose(index)
        case "tick":
            world.tick()
        case "restart":
            world.restart(one)
        case "told" if one != other and present > 1:
            world.tell_ended(one, Incarnation(other, present - 1))
        case "silence" if one != other:
            world.silence(PATIENCE_NS, [(one, other)])


@settings(max_examples=300, deadline=None)
@given(moves=moves)
def test_everything_is_acknowledged_or_failed_and_then_all_is_silent(moves: list[tuple[str, int, int]]) -> None:
    world = World(3)
    for move in moves:
        _move(world, *move)
    world.settle()
    for source, target in permutations(world.members, 2):
        number = world.send(source, target)
        world.settle()
        machine = world.machines[source]
        if number in machine.failed:
            assert machine.failed[number] is Failure.ENDED, "it had not heard of this incarnation yet"
            number = world.send(source, target)
            world.settle()
        assert machine.acknowledged[number] == world.machines[target].incarnation, "all can still reach all others"
