"""Total order by a sequence server: paper 002's first protocol, sentence by sentence, what it leaves open, and how
it resumes after a crash of the server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from node.core import Core, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report, Send, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.protocols import PROTOCOLS
from node.protocols.sequencer import Phase, SequencerCore, SequencerParameters, SequencerReport
from node.protocols.words import pack
from node.trace import Level
from node.wire import Flag, Kind, Message, decode_message
from tests.node.cluster import (
    MILLISECOND,
    SECOND,
    Cluster,
    Host,
    check_agreement,
    check_fifo,
    check_ordered,
    check_silence,
    check_total_order,
    kinds_above,
)

MEMBERS = (0, 1, 2)
PARAMETERS = {"outstanding": 4, "reliable": {"window": 64, "suspect_after_ns": 2 * SECOND}}


def build(membership: Membership, seed: int) -> Core:
    return PROTOCOLS["sequencer"].build(membership=membership, parameters=PARAMETERS, seed=seed)


def group(count: int = 3) -> Cluster:
    return Cluster(count, build)


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


def request(origin: int, number: int, epoch: int = 1, incarnation: int = 1) -> Message:
    return Message(
        kind=Kind.SEQUENCER_REQUEST, origin=origin, incarnation=incarnation, seq=number, flags=4, words=(epoch,)
    )


def question(origin: int, *parts: tuple[int, int], epoch: int = 1, incarnation: int = 2) -> Message:
    """Where does the order stand? `parts`: (member, the first of its lives in whose stream the joiner takes part)."""
    words = (epoch, *(pack(member, first, 0) for member, first in parts))
    return Message(kind=Kind.SEQUENCER_REQUEST, origin=origin, incarnation=incarnation, seq=0, flags=4, words=words)


def answer(number: int, to_request: int, epoch: int = 1, life: int = 1) -> Message:
    """From the server's life `epoch` to the asker's `life`."""
    return Message(
        kind=Kind.SEQUENCER_NUMBER, origin=0, incarnation=epoch, seq=to_request, flags=4, words=(number, life)
    )


def data(origin: int, number: int, payload: bytes = b"", *, epoch: int = 1, incarnation: int = 1) -> Message:
    return Message(
        kind=Kind.SEQUENCER_DATA,
        origin=origin,
        incarnation=incarnation,
        seq=number,
        words=(epoch,),
        payload=payload,
    )


def void(*numbers: int, epoch: int = 1) -> Message:
    return Message(kind=Kind.SEQUENCER_ORDER, origin=0, incarnation=epoch, flags=4, words=numbers)


def closed(origin: int, epoch: int = 1, incarnation: int = 1) -> Message:
    return Message(kind=Kind.SEQUENCER_CLOSED, origin=origin, incarnation=incarnation, seq=epoch, flags=4)


def news(kind: Kind, member: int, incarnation: int = 1) -> Message:
    return Message(kind=kind, origin=member, incarnation=incarnation)


def delivered(effects: list[Effect]) -> list[int]:
    return [effect.seq for effect in effects if isinstance(effect, Deliver)]


def told(effects: list[Effect]) -> list[tuple[SequencerReport, int]]:
    return [(e.code, e.value) for e in effects if isinstance(e, Report) and isinstance(e.code, SequencerReport)]


def said(effects: list[Effect]) -> list[Message]:
    return [effect.message for effect in effects if isinstance(effect, Multicast | Send)]


def hear(one: SequencerCore, *messages: Message) -> list[Effect]:
    """All effects of these messages, one after the other."""
    return [effect for message in messages for effect in one.on_message(message, message.origin, 0)]


ENDED, JOINED = Kind.RELIABLE_ENDED, Kind.RELIABLE_JOINED


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
        message=Message(kind=Kind.SEQUENCER_DATA, origin=1, incarnation=1, seq=7, flags=1, words=(1,), payload=b"x")
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
    hear(server, news(JOINED, 1, 2), request(1, 1, incarnation=2))
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


def test_a_joiner_asks_where_the_order_stands_and_delivers_from_there() -> None:
    joiner = joining(2, news(JOINED, 0), news(JOINED, 1))
    assert (joiner.phase, joiner.can_submit, joiner.is_idle) == (Phase.JOINING, False, False)
    for number in (4, 5, 7):
        assert joiner.on_message(data(1, number), 1, 0) == []
    assert delivered(joiner.on_message(answer(5, 0, life=2), 0, 0)) == [5]
    assert joiner.on_message(data(1, 3), 1, 0) == [], "before its beginning, and no duplicate"
    assert delivered(joiner.on_message(data(1, 6), 1, 0)) == [6, 7]
    assert joiner.can_submit


def test_a_joiner_says_in_whose_streams_it_takes_part() -> None:
    one = core(2, incarnation=3)
    assert hear(one, news(ENDED, 1, 4), news(JOINED, 0, 1)) == []
    assert hear(one, news(JOINED, 2, 3)) == [Send(target=0, message=question(2, (0, 1), (1, 5), incarnation=3))]


def test_asking_where_the_order_stands_takes_no_number() -> None:
    server = core(0)
    hear(server, news(ENDED, 1), news(JOINED, 1, 2))
    for _ in range(2):
        effects = server.on_message(question(1, (0, 1), (2, 1)), 1, 0)
        assert effects == [Send(target=1, message=answer(1, 0, life=2))]
    assert server.is_idle


def test_a_joiner_is_answered_when_nobody_gets_a_number_in_whose_stream_it_takes_no_part() -> None:
    """For the joiner 2 is over, for the server not yet: it gives 2 a number, and the joiner would miss its message."""
    server = core(0)
    hear(server, news(ENDED, 1), news(JOINED, 1, 2))
    assert server.on_message(question(1, (0, 1), (2, 2)), 1, 0) == []
    assert not server.is_idle
    assert said(hear(server, request(2, 1))) == [answer(1, 1)]
    assert said(hear(server, news(ENDED, 2))) == [void(1), answer(2, 0, life=2)]


def test_who_joined_after_the_joiner_does_not_delay_its_answer() -> None:
    server = core(0)
    hear(server, news(ENDED, 1), news(JOINED, 1, 2), news(ENDED, 2), news(JOINED, 2, 2))
    assert said(hear(server, question(1, (0, 1), (2, 2)))) == [answer(1, 0, life=2)]
    assert said(hear(server, question(1, (0, 1), (2, 1)))) == [answer(1, 0, life=2)]


def test_a_joiner_that_ends_gets_no_answer() -> None:
    server = core(0)
    hear(server, news(ENDED, 1), news(JOINED, 1, 2), question(1, (0, 1), (2, 2)), news(ENDED, 1, 2))
    assert said(hear(server, news(ENDED, 2))) == []
    assert server.is_idle


def test_news_of_others_joining_change_nothing() -> None:
    assert core(1).on_message(news(JOINED, 2, 2), 2, 0) == []


# The server ends, and is started again.


def joining(member: int, *what: Message, incarnation: int = 2) -> SequencerCore:
    """A later life that has become a member, after these news."""
    one = core(member, incarnation)
    hear(one, *what, news(JOINED, member, incarnation))
    return one


def test_the_end_of_the_server_stops_the_order_safely() -> None:
    member = core(1)
    member.on_submit(Submission(payload=b"x"), 0)
    hear(member, data(2, 2))
    effects = hear(member, news(ENDED, 0))
    assert (said(effects), told(effects)) == ([closed(1)], [(SequencerReport.STOPPED, 1)])
    assert (member.phase, member.can_submit, member.is_idle) == (Phase.STOPPED, False, False)
    assert delivered(hear(member, data(2, 1))) == [1, 2], "what has a number is still delivered"


def test_what_is_missing_is_void_when_everybody_has_closed_the_epoch() -> None:
    member = core(1)
    hear(member, data(2, 3), data(2, 4), data(2, 9), news(ENDED, 0))
    assert hear(member, closed(1)) == [], "2 may still send number 1"
    effects = hear(member, closed(2))
    assert delivered(effects) == [3, 4, 9]
    void_ones = [(SequencerReport.VOID, 1), (SequencerReport.VOID, 5)]
    assert told(effects) == [*void_ones, (SequencerReport.CLOSED, 1)]
    assert member.is_idle


def test_its_own_stream_is_waited_for_like_any_other() -> None:
    """Flow control may hold our own message below us, before our own word of closing."""
    member = core(1)
    member.on_submit(Submission(payload=b"x"), 0)
    hear(member, answer(1, 1), data(2, 2), news(ENDED, 0))
    assert delivered(hear(member, closed(2))) == []
    assert delivered(hear(member, data(1, 1), closed(1))) == [1, 2]


def test_a_member_that_ends_while_all_close_has_closed() -> None:
    member = core(1)
    hear(member, data(1, 2), news(ENDED, 0), closed(1))
    assert delivered(hear(member, news(ENDED, 2))) == [2]


def test_server_and_sender_end_together() -> None:
    member = core(1)
    member.on_submit(Submission(payload=b"x"), 0)
    hear(member, answer(2, 1), data(1, 2), news(ENDED, 2), news(ENDED, 0))
    effects = hear(member, closed(1))
    assert delivered(effects) == [2]
    assert (SequencerReport.VOID, 1) in told(effects), "2 had number 1, and nobody has its message"


def test_what_has_no_number_is_asked_for_again_in_its_order() -> None:
    member = core(1)
    for payload in (b"a", b"b", b"c"):
        member.on_submit(Submission(payload=payload), 0)
    hear(member, answer(1, 1), news(ENDED, 0))
    effects = hear(member, news(JOINED, 0, 2))
    assert said(effects) == [request(1, 2, epoch=2), request(1, 3, epoch=2)]
    assert told(effects) == [(SequencerReport.RESUMED, 2)]
    assert member.can_submit
    (sent,) = said(hear(member, answer(7, 2, epoch=2)))
    assert (sent.seq, sent.words, sent.payload) == (7, (2,), b"b")


def test_a_request_that_came_too_late_for_its_server_takes_no_number_of_the_next() -> None:
    """Flow control held it back below; the layer below hands it to the server that lives then."""
    server = joining(0, news(JOINED, 1), news(JOINED, 2))
    assert hear(server, request(1, 1, epoch=1)) == [Report(code=DropReason.STALE_INCARNATION, member=1)]
    assert said(hear(server, request(1, 1, epoch=2))) == [answer(1, 1, epoch=2)]
    assert hear(server, question(2, (0, 1), (1, 1), epoch=1, incarnation=1)) == [
        Report(code=DropReason.STALE_INCARNATION, member=2)
    ]


def test_a_number_for_an_earlier_life_of_ours_is_not_ours() -> None:
    """The same in the other direction: its message would take a number that the server holds for void."""
    joiner = joining(1, news(JOINED, 0), news(JOINED, 2))
    refused = [Report(code=DropReason.STALE_INCARNATION, member=0)]
    assert hear(joiner, answer(3, 0, life=1)) == refused
    hear(joiner, answer(5, 0, life=2))
    joiner.on_submit(Submission(payload=b"x"), 0)
    assert hear(joiner, answer(4, 1, life=1)) == refused
    assert [message.seq for message in said(hear(joiner, answer(6, 1, life=2)))] == [6]


def test_a_number_of_an_epoch_that_is_over_is_not_used() -> None:
    member = core(1)
    member.on_submit(Submission(payload=b"x"), 0)
    hear(member, news(JOINED, 0, 2))
    assert hear(member, answer(1, 1)) == [Report(code=DropReason.STALE_INCARNATION, member=0)]
    assert len(said(hear(member, answer(1, 1, epoch=2)))) == 1


def test_messages_of_the_next_epoch_wait_until_this_one_is_closed() -> None:
    member = core(1)
    hear(member, data(2, 2), news(ENDED, 0), closed(2), news(JOINED, 0, 2))
    assert delivered(hear(member, data(2, 1, epoch=2), data(0, 2, epoch=2, incarnation=2))) == []
    assert member.held == 3
    effects = hear(member, closed(1))
    assert delivered(effects) == [2, 1, 2]
    assert told(effects) == [(SequencerReport.VOID, 1), (SequencerReport.CLOSED, 1)]


def test_the_next_life_of_the_server_may_join_before_the_end_of_the_last_is_known() -> None:
    """Then its stream may still bring messages and void numbers."""
    member = core(1)
    member.on_submit(Submission(payload=b"x"), 0)
    assert said(hear(member, news(JOINED, 0, 2))) == [closed(1), request(1, 1, epoch=2)]
    assert delivered(hear(member, data(2, 3), closed(2), closed(1), data(2, 1, epoch=2))) == []
    assert delivered(hear(member, data(0, 2), void(1))) == [2, 3]
    assert delivered(hear(member, news(ENDED, 0))) == [1]
    assert member.phase is Phase.RUNNING


def test_the_server_crashes_again_before_it_has_given_a_number() -> None:
    member = core(1)
    member.on_submit(Submission(payload=b"x"), 0)
    hear(member, data(2, 2), news(ENDED, 0), closed(2), news(JOINED, 0, 2))
    effects = hear(member, news(ENDED, 0, 2))
    assert (said(effects), told(effects)) == ([closed(1, 2)], [(SequencerReport.STOPPED, 2)])
    assert said(hear(member, news(JOINED, 0, 3))) == [request(1, 1, epoch=3)]
    assert delivered(hear(member, closed(1, 1), closed(1, 2), data(2, 1, epoch=3))) == [2]
    assert delivered(hear(member, closed(2, 2))) == [1]


def test_a_life_of_the_server_that_nobody_here_has_met_is_over_too() -> None:
    member = core(1)
    assert said(hear(member, news(ENDED, 0), news(JOINED, 0, 3))) == [closed(1, 1), closed(1, 2)]


def test_a_restarted_server_gives_numbers_from_1_on() -> None:
    server = core(0, incarnation=2)
    assert (server.phase, server.can_submit, server.is_idle) == (Phase.JOINING, False, False)
    assert hear(server, news(JOINED, 1), news(JOINED, 2)) == []
    effects = hear(server, news(JOINED, 0, 2))
    assert (said(effects), told(effects)) == ([], [(SequencerReport.RESUMED, 2)])
    assert said(hear(server, request(2, 5, epoch=2))) == [answer(1, 5, epoch=2)]
    (own,) = said(server.on_submit(Submission(payload=b"x"), 0))
    assert (own.seq, own.words) == (2, (2,))
    assert delivered(hear(server, closed(2), own, data(2, 1, epoch=2))) == [1, 2]


def test_a_restarted_server_voids_its_own_numbers_only() -> None:
    server = joining(0, news(JOINED, 1), news(JOINED, 2))
    hear(server, request(2, 1, epoch=2), request(2, 2, epoch=2), data(2, 1))
    assert said(hear(server, news(ENDED, 2))) == [void(1, 2, epoch=2)], "the message had a number of epoch 1"


def test_who_joins_while_there_is_no_server_closes_asks_the_next_one_and_begins_there() -> None:
    joiner = core(2, incarnation=2)
    hear(joiner, news(ENDED, 0), news(JOINED, 1))
    effects = hear(joiner, news(JOINED, 2, 2))
    assert (said(effects), told(effects)) == ([closed(2, 1, 2)], [(SequencerReport.STOPPED, 1)])
    assert hear(joiner, data(1, 4)) == []
    assert joiner.is_idle, "it holds nothing, and nobody owes it anything"
    assert said(hear(joiner, news(JOINED, 0, 2))) == [question(2, (0, 2), (1, 1), epoch=2)]
    assert joiner.phase is Phase.JOINING
    hear(joiner, data(1, 1, epoch=2), data(1, 2, epoch=2))
    assert delivered(hear(joiner, answer(2, 0, epoch=2, life=2))) == [2]


def test_who_joins_when_the_server_is_back_says_that_it_has_no_number_of_before() -> None:
    """The others cannot tell when it came, and wait for its word."""
    joiner = core(2, incarnation=2)
    hear(joiner, news(JOINED, 0, 2), news(JOINED, 1))
    assert said(hear(joiner, news(JOINED, 2, 2))) == [closed(2, 1, 2), question(2, (0, 2), (1, 1), epoch=2)]
    member = core(1)
    hear(member, data(1, 2), news(ENDED, 2), news(ENDED, 0), news(JOINED, 2, 2), news(JOINED, 0, 2), closed(1))
    assert member.held == 1
    assert delivered(hear(member, closed(2, 1, 2))) == [2]


def test_a_joiner_that_has_numbers_of_the_old_epoch_is_not_passed_over() -> None:
    member = core(1)
    hear(member, news(ENDED, 2), news(JOINED, 2, 2), data(1, 2), news(ENDED, 0), closed(1))
    assert delivered(hear(member, data(2, 1, incarnation=2), closed(2, 1, 2))) == [1, 2]


def test_the_server_crashes_before_it_has_answered_a_joiner() -> None:
    joiner = joining(2, news(JOINED, 0), news(JOINED, 1))
    hear(joiner, data(1, 4))
    assert said(hear(joiner, news(ENDED, 0))) == [closed(2, 1, 2)]
    assert (joiner.phase, joiner.held, joiner.is_idle) == (Phase.STOPPED, 0, True)
    assert said(hear(joiner, news(JOINED, 0, 2))) == [question(2, (0, 1), (1, 1), epoch=2)]
    assert hear(joiner, data(1, 5)) == [], "of an epoch that it never was in"
    assert delivered(hear(joiner, answer(1, 0, epoch=2, life=2), data(1, 1, epoch=2))) == [1]


def test_a_member_that_was_asked_nothing_resumes_without_a_request() -> None:
    member = core(1)
    hear(member, news(ENDED, 0), closed(1), closed(2))
    assert member.is_idle
    assert said(hear(member, news(JOINED, 0, 2))) == []
    assert said(member.on_submit(Submission(payload=b"x"), 0)) == [request(1, 1, epoch=2)]


def test_stopped_owes_what_it_has_taken_and_nothing_else() -> None:
    member = core(1)
    hear(member, news(ENDED, 0))
    assert (member.phase, member.is_idle) == (Phase.STOPPED, True)
    hear(member, data(2, 2))
    assert not member.is_idle
    hear(member, closed(1), closed(2))
    assert member.is_idle


@pytest.mark.parametrize(
    "wrong",
    [
        data(2, 1, epoch=0),
        data(2, 1, epoch=2**16),
        data(2, 0),
        data(0, 1, epoch=2, incarnation=1),
        replace(data(2, 1), words=()),
        replace(data(2, 1), words=(1, 1)),
        closed(2, 0),
        closed(2, 2**16),
        replace(closed(2), words=(1,)),
        void(0),
        replace(answer(1, 1), words=(1,)),
        answer(0, 1),
    ],
    ids=repr,
)
def test_what_cannot_be_is_refused_before_anything_has_changed(wrong: Message) -> None:
    member = core(1)
    member.on_submit(Submission(payload=b"x"), 0)
    with pytest.raises(RemoteError, match="MALFORMED"):
        hear(member, wrong)
    assert delivered(hear(member, data(2, 1), data(2, 2))) == [1, 2]
    assert len(said(hear(member, answer(3, 1)))) == 1


def test_a_number_of_a_life_of_the_server_that_we_have_not_met_is_not_for_us() -> None:
    """It was welcomed by all who live on before it gave a number."""
    member = core(1)
    assert hear(member, data(2, 1, epoch=2)) == [Report(code=DropReason.UNEXPECTED, member=2)]
    assert member.is_idle


def test_who_has_closed_an_epoch_can_send_no_message_of_it() -> None:
    member = core(1)
    hear(member, news(ENDED, 0), closed(2))
    with pytest.raises(RemoteError, match="MALFORMED"):
        hear(member, data(2, 1))
    with pytest.raises(RemoteError, match="MALFORMED"):
        hear(member, closed(2))


def test_a_number_far_away_costs_no_time() -> None:
    member = core(1)
    hear(member, data(2, 2**64 - 1), news(ENDED, 0), news(JOINED, 0, 65535), closed(1, 1), closed(2, 1))
    assert delivered(hear(member, data(2, 2**64 - 1, epoch=65535))) == []
    effects = hear(member, closed(1, 65534), closed(2, 65534))
    assert told(effects) == [(SequencerReport.CLOSED, 65534)]
    assert member.held == 1


@pytest.mark.parametrize("words", [(), (1,), (1, pack(0, 1, 0)), (1, pack(0, 1, 0), pack(2, 1, 7))])
def test_a_question_names_each_peer_of_the_joiner(words: tuple[int, ...]) -> None:
    server = core(0)
    with pytest.raises(RemoteError, match="MALFORMED"):
        hear(server, replace(question(1, incarnation=1), words=words))
    assert server.is_idle


@pytest.mark.parametrize("member", [0, 1])
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("kind", Kind, ids=lambda kind: str(kind.name))
def test_every_phase_takes_or_refuses_every_message(phase: Phase, kind: Kind, member: int) -> None:
    for words in ((), (0,), (1,), (1, 2), (2**64 - 1,), (1, pack(0, 1, 0), pack(2, 1, 0))):
        for seq in (0, 1, 2**64 - 1):
            for origin in (0, 1, 2):
                one = core(member, incarnation=2 if phase is Phase.JOINING else 1)
                if phase is Phase.STOPPED:
                    hear(one, news(ENDED, 0))
                message = Message(kind=kind, origin=origin, incarnation=1, seq=seq, words=words)
                try:
                    effects = one.on_message(message, origin, 0)
                except RemoteError as error:
                    assert error.reason is DropReason.MALFORMED
                    continue
                if kind >> 4 != 2 and kind not in (ENDED, JOINED):
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
    check_ordered(cluster, [0, 1, 2])
    counted = kinds_above(cluster)
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
    check_ordered(cluster, [0, 1, 2, 3, 4])
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
    check_ordered(cluster, [0, 1, 2])
    assert len(cluster.hosts[1].delivered) == 3
    assert [reports(cluster.hosts[member], SequencerReport.VOID) for member in (0, 1, 2)] == [[1], [1], [1]]


def test_a_number_whose_message_reached_one_survivor_is_not_void() -> None:
    cluster = group(4)
    cluster.lose = lambda source, target, message: source == 3 and message.inner is Kind.SEQUENCER_DATA and target != 2
    cluster.submit(3)
    cluster.at(20 * MILLISECOND, lambda: cluster.crash(3))
    cluster.submit_later(1, 30 * MILLISECOND)
    check_ordered(cluster, [0, 1, 2])
    assert cluster.hosts[0].delivered == [(3, 1, 1), (1, 1, 1)]
    assert not reports(cluster.hosts[0], SequencerReport.VOID)


def test_the_crash_of_the_server_stops_the_order_with_all_alike() -> None:
    cluster = group(4)
    load(cluster, members=range(4), until_ns=200 * MILLISECOND)
    cluster.at(95 * MILLISECOND, lambda: cluster.crash(0))
    cluster.run()
    check_total_order(cluster)
    check_agreement(cluster, [1, 2, 3])
    for member in (1, 2, 3):
        assert not cluster.core(member).can_submit
        assert reports(cluster.hosts[member], SequencerReport.STOPPED) == [1]
        assert reports(cluster.hosts[member], SequencerReport.CLOSED) == [1]


def load(cluster: Cluster, members: Iterable[int], until_ns: int, step_ns: int = 10 * MILLISECOND) -> None:
    """Each of `members` sends one message per step, from now on."""
    begin_ns = cluster.now_ns
    for at_ns in range(begin_ns, begin_ns + until_ns, step_ns):
        for member in members:
            cluster.submit_later(member, at_ns)


@pytest.mark.parametrize("away_ns", [1 * MILLISECOND, 500 * MILLISECOND, 5 * SECOND])
def test_the_order_resumes_when_the_server_is_started_again(away_ns: int) -> None:
    """Before and after the others have given it up: nothing of those who live on is lost or doubled."""
    cluster = group(4)
    load(cluster, members=range(4), until_ns=1 * SECOND)
    cluster.at(95 * MILLISECOND, lambda: cluster.crash(0))
    cluster.at(95 * MILLISECOND + away_ns, lambda: cluster.restart(0))
    cluster.submit_later(0, 10 * SECOND, count=3)
    check_ordered(cluster, [1, 2, 3])
    assert {(0, 2, 1), (0, 2, 2), (0, 2, 3)} <= set(cluster.hosts[1].delivered)
    assert {(member, 1, 100) for member in (1, 2, 3)} <= set(cluster.hosts[1].delivered)
    server = cluster.hosts[0].delivered
    assert server == cluster.hosts[1].delivered[-len(server) :]
    for member in (1, 2, 3):
        assert reports(cluster.hosts[member], SequencerReport.RESUMED) == [2]
        assert reports(cluster.hosts[member], SequencerReport.CLOSED) == [1]


@pytest.mark.parametrize("life_ns", [100_000, 1_500_000, 2_500_000, 5 * MILLISECOND, 50 * MILLISECOND])
def test_the_server_crashes_again_while_it_comes_back(life_ns: int) -> None:
    cluster = group(4)
    load(cluster, members=(1, 2, 3), until_ns=1 * SECOND)
    cluster.at(95 * MILLISECOND, lambda: cluster.crash(0))
    for number in range(4):
        cluster.at(200 * MILLISECOND + number * (life_ns + 1), lambda: cluster.restart(0))
    check_ordered(cluster, [1, 2, 3])
    assert cluster.hosts[0].membership.incarnation == 5
    assert reports(cluster.hosts[1], SequencerReport.RESUMED)[-1] == 5
    assert reports(cluster.hosts[1], SequencerReport.CLOSED)[-1] == 4


def test_server_and_sender_crash_together_and_come_back_together() -> None:
    cluster = group(5)
    cluster.lose = lambda source, target, message: (
        source == 4 and message.inner is Kind.SEQUENCER_DATA and target != 2 and cluster.now_ns < 500 * MILLISECOND
    )
    load(cluster, members=range(5), until_ns=1 * SECOND)
    for member in (0, 4):
        cluster.at(95 * MILLISECOND, lambda member=member: cluster.crash(member))  # type: ignore[misc]
        cluster.at(700 * MILLISECOND, lambda member=member: cluster.restart(member))  # type: ignore[misc]
    check_ordered(cluster, [1, 2, 3])
    joiner = cluster.hosts[4].delivered
    assert joiner == cluster.hosts[1].delivered[-len(joiner) :]
    assert {origin for origin, incarnation, _ in cluster.hosts[1].delivered if incarnation == 2} == {0, 4}


def test_a_member_that_joins_while_the_server_is_away_begins_with_the_next_epoch() -> None:
    cluster = group(4)
    load(cluster, members=(1, 2), until_ns=8 * SECOND, step_ns=50 * MILLISECOND)
    cluster.at(95 * MILLISECOND, lambda: cluster.crash(0))
    cluster.at(4 * SECOND, lambda: cluster.restart(3))
    cluster.at(6 * SECOND, lambda: cluster.restart(0))
    cluster.submit_later(3, 7 * SECOND)
    check_ordered(cluster, [1, 2])
    joiner = cluster.hosts[3].delivered
    assert joiner == cluster.hosts[1].delivered[-len(joiner) :]
    assert (3, 2, 1) in joiner
    assert reports(cluster.hosts[3], SequencerReport.STOPPED) == [1]


def test_a_member_crashes_while_all_close() -> None:
    """Its number is neither used nor closed; its end closes it."""
    cluster = group(5)
    cluster.lose = lambda source, target, message: source == 4 and 95 * MILLISECOND < cluster.now_ns < 20 * SECOND
    load(cluster, members=range(5), until_ns=300 * MILLISECOND)
    cluster.at(100 * MILLISECOND, lambda: cluster.crash(0))
    cluster.at(150 * MILLISECOND, lambda: cluster.restart(0))
    cluster.at(200 * MILLISECOND, lambda: cluster.crash(4))
    cluster.run(for_ns=1 * SECOND)
    assert reports(cluster.hosts[1], SequencerReport.CLOSED) == [], "4 has not been given up yet"
    check_ordered(cluster, [1, 2, 3])
    assert reports(cluster.hosts[1], SequencerReport.CLOSED) == [1]


def test_requests_that_flow_control_held_back_take_no_second_number() -> None:
    """1 may have 4 messages under way, and 2 is silent. What 1 asks the second life of the server waits below it, and
    reaches the third, which is asked for all of it anew. A number without a message would stop everybody for ever.
    """
    parameters = {"outstanding": 32, "reliable": {"window": 4, "suspect_after_ns": 4 * SECOND}}
    entry = PROTOCOLS["sequencer"]
    cluster = Cluster(4, lambda us, seed: entry.build(membership=us, parameters=parameters, seed=seed))
    cluster.lose = lambda source, target, message: (
        (source, target, message.inner) == (0, 1, Kind.SEQUENCER_NUMBER) and message.seq > 6
    )
    cluster.at(1 * MILLISECOND, lambda: cluster.pause(2))
    cluster.submit_later(1, 2 * MILLISECOND, count=12)
    for at_ns in (200 * MILLISECOND, 400 * MILLISECOND):
        cluster.at(at_ns, lambda: cluster.restart(0))
    cluster.at(1 * SECOND, lambda: cluster.resume(2))
    check_ordered(cluster, [1, 2, 3])
    assert len(cluster.hosts[3].delivered) == 12
    assert cluster.hosts[0].dropped(DropReason.STALE_INCARNATION) >= 6


def test_the_crash_of_a_server_at_rest_is_noticed_by_who_asks_it() -> None:
    cluster = group(3)
    cluster.submit(1)
    cluster.run()
    cluster.crash(0)
    cluster.submit(2)
    cluster.run()
    assert not cluster.core(2).is_idle
    assert cluster.core(1).is_idle
    cluster.restart(0)
    check_ordered(cluster, [1, 2])
    assert cluster.hosts[1].delivered == [(1, 1, 1), (2, 1, 1)]


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
