"""Total order by a sequence server: paper 002's first protocol, sentence by sentence, and what it leaves open."""

from __future__ import annotations

from collections import Counter

import pytest

from node.core import Core, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report, Send, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.protocols import PROTOCOLS
from node.protocols.sequencer import Phase, SequencerCore, SequencerParameters, SequencerReport
from node.trace import Level
from node.wire import Flag, Kind, Message, decode_message
from tests.node.cluster import (
    MILLISECOND,
    SECOND,
    Cluster,
    Host,
    check_agreement,
    check_fifo,
    check_integrity,
    check_silence,
    check_total_order,
    check_validity,
)

MEMBERS = (0, 1, 2)
PARAMETERS = {"outstanding": 4, "reliable": {"window": 64, "suspect_after_ns": 2 * SECOND}}


def build(membership: Membership, seed: int) -> Core:
    return PROTOCOLS["sequencer"].build(membership=membership, parameters=PARAMETERS, seed=seed)


def group(count: int = 3) -> Cluster:
    return Cluster(count, build)


def upper_kinds(cluster: Cluster) -> Counter[Kind]:
    return Counter(message.inner for _, message in cluster.sent if not message.flags & Flag.RETRANSMISSION)


def check_all(cluster: Cluster, members: list[int]) -> None:
    check_silence(cluster)
    check_integrity(cluster)
    check_fifo(cluster)
    check_agreement(cluster, members)
    check_validity(cluster, members)
    check_total_order(cluster)


def reports(host: Host, code: SequencerReport) -> list[int]:
    return [report.value for report in host.reports if report.code == code]


# The core alone.


def core(member: int, incarnation: int = 1, outstanding: int = 4) -> SequencerCore:
    made = SequencerCore(
        membership=Membership(member=member, members=MEMBERS, incarnation=incarnation),
        parameters=SequencerParameters(outstanding=outstanding),
    )
    made.on_start(0)
    return made


def request(origin: int, number: int) -> Message:
    return Message(kind=Kind.SEQUENCER_REQUEST, origin=origin, incarnation=1, seq=number, flags=Flag.CONTROL.value)


def answer(number: int, to_request: int, incarnation: int = 1) -> Message:
    return Message(
        kind=Kind.SEQUENCER_NUMBER, origin=0, incarnation=incarnation, seq=to_request, flags=4, words=(number,)
    )


def data(origin: int, number: int, payload: bytes = b"") -> Message:
    return Message(kind=Kind.SEQUENCER_DATA, origin=origin, incarnation=1, seq=number, payload=payload)


def void(*numbers: int) -> Message:
    return Message(kind=Kind.SEQUENCER_ORDER, origin=0, incarnation=1, flags=4, words=numbers)


def news(kind: Kind, member: int, incarnation: int = 1) -> Message:
    return Message(kind=kind, origin=member, incarnation=incarnation)


def delivered(effects: list[Effect]) -> list[int]:
    return [effect.seq for effect in effects if isinstance(effect, Deliver)]


def test_the_sender_asks_a_sequence_server_for_a_number() -> None:
    (effect,) = core(1).on_submit(Submission(payload=b"x"), 0)
    assert effect == Send(target=0, message=request(1, 1))


def test_the_sequence_server_is_the_member_with_the_lowest_index_and_answers_in_order() -> None:
    server = core(0)
    answers = [server.on_message(request(origin, number), origin, 0) for origin, number in ((1, 1), (2, 1), (1, 2))]
    assert answers == [
        [Send(target=1, message=answer(1, 1))],
        [Send(target=2, message=answer(2, 1))],
        [Send(target=1, message=answer(3, 2))],
    ]


def test_then_it_multicasts_with_the_number() -> None:
    sender = core(1)
    sender.on_submit(Submission(payload=b"x", flags=Flag.DUMMY.value), 0)
    (effect,) = sender.on_message(answer(7, 1), 0, 0)
    assert effect == Multicast(
        message=Message(kind=Kind.SEQUENCER_DATA, origin=1, incarnation=1, seq=7, flags=1, payload=b"x")
    )


def test_delivery_is_by_number() -> None:
    receiver = core(2)
    assert delivered(receiver.on_message(data(1, 3), 1, 0)) == []
    assert delivered(receiver.on_message(data(0, 2), 0, 0)) == []
    assert receiver.held == 2
    effects = receiver.on_message(data(1, 1, b"first"), 1, 0)
    assert delivered(effects) == [1, 2, 3]
    assert effects[0] == Deliver(payload=b"first", origin=1, incarnation=1, seq=1, level=Level.AGREED)


def test_the_server_gives_its_own_messages_a_number_without_a_message() -> None:
    server = core(0)
    server.on_message(request(1, 1), 1, 0)
    (effect,) = server.on_submit(Submission(payload=b"x"), 0)
    assert isinstance(effect, Multicast)
    assert (effect.message.kind, effect.message.seq) == (Kind.SEQUENCER_DATA, 2)


def test_only_so_many_requests_are_under_way() -> None:
    sender = core(1, outstanding=2)
    sender.on_submit(Submission(payload=b"a"), 0)
    sender.on_submit(Submission(payload=b"b"), 0)
    assert not sender.can_submit
    with pytest.raises(LocalError, match="can_submit"):
        sender.on_submit(Submission(payload=b"c"), 0)
    sender.on_message(answer(1, 1), 0, 0)
    assert sender.can_submit


def test_numbers_of_the_ended_whose_message_did_not_come_are_void() -> None:
    server = core(0)
    for number in (1, 2, 3):
        server.on_message(request(1, number), 1, 0)
    server.on_message(data(1, 2), 1, 0)
    effects = server.on_message(news(Kind.RELIABLE_ENDED, 1), 1, 0)
    assert effects == [Multicast(message=void(1, 3))]
    assert not server.is_idle, "its own word has to come back to it first"
    assert delivered(server.on_message(void(1, 3), 0, 0)) == [2]
    assert server.is_idle


def test_many_void_numbers_take_several_messages() -> None:
    server = core(0)
    for number in range(1, 301):
        server.on_message(request(1, number), 1, 0)
    effects = server.on_message(news(Kind.RELIABLE_ENDED, 1), 1, 0)
    sizes = [len(effect.message.words) for effect in effects if isinstance(effect, Multicast)]
    assert sizes == [128, 128, 44]


def test_another_life_of_the_same_member_keeps_its_numbers() -> None:
    server = core(0)
    server.on_message(request(1, 1), 1, 0)
    later = Message(kind=Kind.SEQUENCER_REQUEST, origin=1, incarnation=2, seq=1)
    server.on_message(later, 1, 0)
    (effect,) = server.on_message(news(Kind.RELIABLE_ENDED, 1, incarnation=1), 1, 0)
    assert effect == Multicast(message=void(1))


def test_void_numbers_are_passed_over_and_reported() -> None:
    receiver = core(2)
    receiver.on_message(data(1, 2), 1, 0)
    effects = receiver.on_message(void(1), 0, 0)
    assert delivered(effects) == [2]
    assert Report(code=SequencerReport.VOID, member=0, value=1) in effects


def test_a_second_message_for_one_number_is_refused() -> None:
    receiver = core(2)
    receiver.on_message(data(1, 1), 1, 0)
    receiver.on_message(data(1, 3), 1, 0)
    for number in (1, 3):
        assert receiver.on_message(data(0, number), 0, 0) == [Report(code=DropReason.DUPLICATE, member=0)]


def test_the_end_of_the_server_stops_the_order_safely() -> None:
    member = core(1)
    member.on_submit(Submission(payload=b"x"), 0)
    member.on_message(data(2, 2), 2, 0)
    effects = member.on_message(news(Kind.RELIABLE_ENDED, 0), 0, 0)
    assert effects == [Report(code=SequencerReport.STOPPED, member=0)]
    assert (member.phase, member.can_submit, member.is_idle) == (Phase.STOPPED, False, False)
    assert delivered(member.on_message(data(2, 1), 2, 0)) == [1, 2], "what has a number is still delivered"


def test_a_restarted_server_does_not_resume() -> None:
    server = core(0, incarnation=2)
    assert server.phase is Phase.STOPPED
    assert server.on_message(request(1, 1), 1, 0) == [Report(code=DropReason.UNEXPECTED, member=1)]
    member = core(1)
    member.on_submit(Submission(payload=b"x"), 0)
    refused = member.on_message(answer(1, 1, incarnation=2), 0, 0)
    assert refused == [Report(code=DropReason.UNEXPECTED, member=0)]


def test_a_joiner_asks_where_the_order_stands_and_delivers_from_there() -> None:
    joiner = core(2, incarnation=2)
    assert (joiner.phase, joiner.can_submit, joiner.is_idle) == (Phase.JOINING, False, False)
    (effect,) = joiner.on_message(news(Kind.RELIABLE_JOINED, 2, 2), 2, 0)
    assert isinstance(effect, Send)
    assert (effect.target, effect.message.kind, effect.message.seq) == (0, Kind.SEQUENCER_REQUEST, 0)
    for number in (4, 5, 7):
        assert joiner.on_message(data(1, number), 1, 0) == []
    assert delivered(joiner.on_message(answer(5, 0), 0, 0)) == [5]
    assert delivered(joiner.on_message(data(1, 6), 1, 0)) == [6, 7]
    assert joiner.can_submit


def test_asking_where_the_order_stands_takes_no_number() -> None:
    server = core(0)
    for _ in range(2):
        assert server.on_message(request(1, 0), 1, 0) == [Send(target=1, message=answer(1, 0))]
    assert server.is_idle


def test_news_of_others_joining_change_nothing() -> None:
    assert core(1).on_message(news(Kind.RELIABLE_JOINED, 2, 2), 2, 0) == []


@pytest.mark.parametrize("member", [0, 1])
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("kind", Kind, ids=lambda kind: str(kind.name))
def test_every_phase_takes_or_refuses_every_message(phase: Phase, kind: Kind, member: int) -> None:
    for words in ((), (0,), (1,), (1, 2), (2**64 - 1,)):
        for seq in (0, 1, 2**64 - 1):
            for origin in (0, 1, 2):
                one = core(member, incarnation=2 if phase is Phase.JOINING else 1)
                if phase is Phase.STOPPED:
                    one.on_message(news(Kind.RELIABLE_ENDED, 0), 0, 0)
                message = Message(kind=kind, origin=origin, incarnation=1, seq=seq, words=words)
                try:
                    effects = one.on_message(message, origin, 0)
                except RemoteError as error:
                    assert error.reason is DropReason.MALFORMED
                    continue
                if kind >> 4 != 2 and kind not in (Kind.RELIABLE_ENDED, Kind.RELIABLE_JOINED):
                    assert effects == [Report(code=DropReason.UNEXPECTED, member=origin)]


def test_what_it_cannot_do_is_our_callers_mistake() -> None:
    with pytest.raises(LocalError, match="orders multicasts"):
        core(1).on_submit(Submission(payload=b"", target=2), 0)
    with pytest.raises(LocalError, match="no timer"):
        core(1).on_timer(Timer("tick"), 0)
    with pytest.raises(LocalError, match="outstanding"):
        SequencerParameters(outstanding=0)


# Over the reliable layer.


def test_a_multicast_costs_a_request_an_answer_and_the_message() -> None:
    cluster = group()
    cluster.submit(1)
    check_all(cluster, [0, 1, 2])
    counted = upper_kinds(cluster)
    assert (counted[Kind.SEQUENCER_REQUEST], counted[Kind.SEQUENCER_NUMBER], counted[Kind.SEQUENCER_DATA]) == (1, 1, 1)


def test_control_of_the_upper_core_is_control_on_the_wire() -> None:
    cluster = group()
    cluster.submit(1)
    cluster.run()
    for _, message in cluster.sent:
        is_control = message.inner in (Kind.SEQUENCER_REQUEST, Kind.SEQUENCER_NUMBER)
        if message.inner is not Kind.APPLICATION:
            assert bool(message.flags & Flag.CONTROL) is is_control
            assert decode_message(message.payload).kind is message.inner


def test_all_deliver_the_same_order_under_load() -> None:
    cluster = group(5)
    for number in range(50):
        for member in range(5):
            cluster.submit_later(member, number * 5 * MILLISECOND)
    check_all(cluster, [0, 1, 2, 3, 4])
    assert len(cluster.hosts[0].delivered) == 250


def test_a_sender_that_crashes_between_asking_and_multicasting_blocks_nobody_for_ever() -> None:
    cluster = group(4)
    cluster.lose = lambda source, target, message: message.inner is Kind.SEQUENCER_NUMBER and target == 3
    cluster.submit(3)
    cluster.at(20 * MILLISECOND, lambda: cluster.crash(3))
    for member in (0, 1, 2):
        cluster.submit_later(member, 30 * MILLISECOND)
    cluster.run(for_ns=1 * SECOND)
    assert cluster.hosts[1].delivered == [], "number 1 is given, and its message may be under way"
    check_all(cluster, [0, 1, 2])
    assert len(cluster.hosts[1].delivered) == 3
    assert [reports(cluster.hosts[member], SequencerReport.VOID) for member in (0, 1, 2)] == [[1], [1], [1]]


def test_a_number_whose_message_reached_one_survivor_is_not_void() -> None:
    cluster = group(4)
    cluster.lose = lambda source, target, message: source == 3 and message.inner is Kind.SEQUENCER_DATA and target != 2
    cluster.submit(3)
    cluster.at(20 * MILLISECOND, lambda: cluster.crash(3))
    cluster.submit_later(1, 30 * MILLISECOND)
    check_all(cluster, [0, 1, 2])
    assert cluster.hosts[0].delivered == [(3, 1, 1), (1, 1, 1)]
    assert not reports(cluster.hosts[0], SequencerReport.VOID)


def test_the_crash_of_the_server_stops_the_order_with_all_alike() -> None:
    cluster = group(4)
    for number in range(20):
        for member in range(4):
            cluster.submit_later(member, number * 10 * MILLISECOND)
    cluster.at(95 * MILLISECOND, lambda: cluster.crash(0))
    cluster.run()
    check_total_order(cluster)
    check_agreement(cluster, [1, 2, 3])
    for member in (1, 2, 3):
        assert not cluster.core(member).can_submit
        assert SequencerReport.STOPPED in [report.code for report in cluster.hosts[member].reports]


def test_a_restarted_member_takes_part_again() -> None:
    cluster = group(4)
    cluster.submit(1, 5)
    cluster.run()
    cluster.restart(3)
    cluster.submit_later(1, cluster.now_ns + 1 * MILLISECOND, count=5)
    cluster.submit_later(3, cluster.now_ns + 2 * MILLISECOND, count=2)
    check_silence(cluster)
    check_total_order(cluster)
    check_fifo(cluster)
    check_agreement(cluster, [0, 1, 2])
    joiner = cluster.hosts[3].delivered
    assert joiner == cluster.hosts[0].delivered[-len(joiner) :]
    assert {(3, 2, 1), (3, 2, 2)} <= set(joiner)
