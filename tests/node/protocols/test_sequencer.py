"""Total order by a sequence server: paper 002's first protocol, sentence by sentence, and the end of its views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from random import Random

import pytest

from node.core import Closing, Core, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report, Send
from node.errors import DropReason, LocalError, RemoteError
from node.protocols.prefix import Prefix
from node.protocols.sequencer import Phase, SequencerCore, SequencerParameters, SequencerReport
from node.registry import PROTOCOLS
from node.trace import Level
from node.wire import Flag, Kind, Message, decode_message
from tests.node.by_hand import give, reported
from tests.node.cluster import MILLISECOND, SECOND, Cluster, check_ordered, kinds_above
from tests.node.group.views import Group, run

MEMBERS = (0, 1, 2, 3)


# Core alone.


def core(
    member: int,
    *,
    members: tuple[int, ...] = MEMBERS,
    ranks: tuple[int, ...] = (),
    outstanding: int = 4,
    replace_server: bool = True,
    memory: bytes = b"",
) -> SequencerCore:
    return SequencerCore(
        membership=Membership(member=member, members=members, ranks=ranks),
        parameters=SequencerParameters(outstanding=outstanding, replace_server=replace_server),
        memory=memory,
    )


def request(origin: int, number: int) -> Message:
    return Message(kind=Kind.SEQUENCER_REQUEST, origin=origin, incarnation=1, seq=number, flags=4)


def answer(number: int, to_request: int, *, server: int = 0) -> Message:
    return Message(kind=Kind.SEQUENCER_NUMBER, origin=server, incarnation=1, seq=to_request, flags=4, words=(number,))


def data(origin: int, number: int, payload: bytes = b"", *, after: Sequence[tuple[int, int]] = ()) -> Message:
    """A data message. `after`: origin and number of each earlier delivery of its sender."""
    prefix = Prefix()
    for delivered_origin, delivered_number in after:
        prefix.delivered(delivered_origin, delivered_number)
    return Message(
        kind=Kind.SEQUENCER_DATA,
        origin=origin,
        incarnation=1,
        seq=number,
        words=(prefix.word,),
        payload=payload,
    )


def delivered(effects: Iterable[Effect]) -> list[int]:
    return [effect.seq for effect in effects if isinstance(effect, Deliver)]


def close(one: SequencerCore, *rest: Message, survivors: Iterable[int] = MEMBERS) -> Closing:
    """End its view, with these messages of the cut that it has not received."""
    streams: Mapping[int, list[Message]] = {
        member: [message for message in rest if message.origin == member] for member in MEMBERS
    }
    return one.close(streams, frozenset(survivors), 0)


def test_the_sender_asks_a_sequence_server_for_a_number() -> None:
    (effect,) = core(1).on_submit(Submission(payload=b"x"), 0)
    assert effect == Send(target=0, message=request(1, 1))


def test_the_sequence_server_is_the_first_member_of_the_view() -> None:
    (effect,) = core(1, ranks=(2, 0, 3, 1)).on_submit(Submission(payload=b"x"), 0)
    assert effect == Send(target=2, message=request(1, 1))
    (effect,) = core(2, ranks=(2, 0, 3, 1)).on_submit(Submission(payload=b"x"), 0)
    assert isinstance(effect, Multicast)


def test_the_server_gives_consecutive_numbers_in_the_order_of_the_requests() -> None:
    server = core(0)
    answers = [server.on_message(request(origin, number), origin, 0) for origin, number in ((1, 1), (2, 1), (1, 2))]
    assert answers == [
        [Send(target=1, message=answer(1, 1))],
        [Send(target=2, message=answer(2, 1))],
        [Send(target=1, message=answer(3, 2))],
    ]


def test_then_the_sender_multicasts_with_the_number() -> None:
    sender = core(1)
    sender.on_submit(Submission(payload=b"x", flags=Flag.DUMMY.value), 0)
    (effect,) = sender.on_message(answer(7, 1), 0, 0)
    assert effect == Multicast(message=replace(data(1, 7, b"x"), flags=1))


def test_a_message_says_what_its_sender_had_delivered_when_it_took_the_submission() -> None:
    """Not its deliveries when the number arrives: the message does not depend on them."""
    sender = core(1)
    give(sender, data(2, 1))
    sender.on_submit(Submission(payload=b"x"), 0)
    give(sender, data(3, 2))
    (effect,) = sender.on_message(answer(3, 1), 0, 0)
    assert effect == Multicast(message=data(1, 3, b"x", after=[(2, 1)]))
    server = core(0)
    give(server, data(2, 1))
    (effect,) = server.on_submit(Submission(payload=b"x"), 0)
    assert effect == Multicast(message=data(0, 1, b"x", after=[(2, 1)]))


def test_delivery_is_by_number() -> None:
    receiver = core(2)
    assert delivered(give(receiver, data(1, 3), data(0, 2))) == []
    assert (receiver.buffered, receiver.is_idle) == (2, False)
    effects = give(receiver, data(1, 1, b"first"))
    assert delivered(effects) == [1, 2, 3]
    assert effects[0] == Deliver(payload=b"first", origin=1, incarnation=1, seq=1, level=Level.AGREED)
    assert (receiver.buffered, receiver.is_idle) == (0, True)


def test_the_server_gives_its_own_messages_a_number_without_a_message() -> None:
    server = core(0)
    give(server, request(1, 1))
    (effect,) = server.on_submit(Submission(payload=b"x"), 0)
    assert isinstance(effect, Multicast)
    assert (effect.message.kind, effect.message.seq) == (Kind.SEQUENCER_DATA, 2)


def test_the_server_is_idle_when_the_numbers_that_it_gave_are_delivered() -> None:
    server = core(0)
    idle = []
    for message in (request(1, 1), request(2, 1), data(1, 1), data(2, 2)):
        give(server, message)
        idle.append(server.is_idle)
    assert idle == [False, False, False, True]


def test_only_so_many_requests_are_under_way() -> None:
    sender = core(1, outstanding=2)
    sender.on_submit(Submission(payload=b"a"), 0)
    sender.on_submit(Submission(payload=b"b"), 0)
    with pytest.raises(LocalError, match="can_submit"):
        sender.on_submit(Submission(payload=b"c"), 0)
    give(sender, answer(1, 1))
    assert sender.can_submit
    assert not sender.is_idle, "one request has no answer"


def test_a_second_message_for_one_number_is_refused() -> None:
    receiver = core(2)
    give(receiver, data(1, 1), data(1, 3))
    for number in (1, 3):
        assert give(receiver, data(0, number)) == [Report(code=DropReason.DUPLICATE, member=0)]


@pytest.mark.parametrize(
    ("member", "wrong"),
    [
        (1, data(2, 0)),
        (1, replace(data(2, 1), words=())),
        (1, replace(data(2, 1), words=(1, 1))),
        (1, replace(answer(1, 1), words=())),
        (1, replace(answer(1, 1), words=(1, 1))),
        (1, answer(0, 1)),
        (0, request(2, 0)),
        (0, replace(request(2, 1), words=(1,))),
    ],
    ids=repr,
)
def test_a_malformed_message_is_refused_before_anything_has_changed(member: int, wrong: Message) -> None:
    one = core(member)
    one.on_submit(Submission(payload=b"x"), 0)
    assert give(one, wrong) == [Report(code=DropReason.MALFORMED, member=wrong.origin, value=len(wrong.payload))]
    assert delivered(give(one, data(2, 1), data(2, 2))) == [1, 2]
    expected: Effect = Multicast(message=data(1, 3, b"x")) if member else Send(target=1, message=answer(2, 1))
    assert give(one, answer(3, 1) if member else request(1, 1)) == [expected]


@pytest.mark.parametrize(
    ("member", "unexpected"),
    [
        (1, answer(1, 2)),
        (1, answer(1, 1, server=2)),
        (1, request(2, 1)),
        (0, request(0, 1)),
        (0, answer(1, 1)),
        (1, data(9, 1)),
        (0, request(9, 1)),
    ],
    ids=repr,
)
def test_what_does_not_belong_here_is_refused(member: int, unexpected: Message) -> None:
    one = core(member)
    one.on_submit(Submission(payload=b"x"), 0)
    assert give(one, unexpected) == [Report(code=DropReason.UNEXPECTED, member=unexpected.origin)]


def test_a_number_far_away_costs_no_time() -> None:
    member = core(1)
    give(member, data(2, 2**64 - 1))
    assert delivered(close(member).effects) == [2**64 - 1]


def test_what_it_cannot_do_is_our_callers_mistake() -> None:
    with pytest.raises(LocalError, match="outstanding"):
        SequencerParameters(outstanding=0)


# End of a view.


def test_the_rest_is_delivered_by_number_and_gaps_are_passed_over() -> None:
    member = core(2)
    give(member, data(1, 1), data(1, 4))
    closing = close(member, data(3, 3), data(0, 9))
    assert delivered(closing.effects) == [3, 4, 9]
    assert reported(closing.effects) == [(SequencerReport.VOID, 0, 2), (SequencerReport.VOID, 0, 5)]
    assert (closing.handed_back, closing.memory) == ((), b"")
    assert member.buffered == 0


def test_submissions_without_a_number_are_handed_back_in_their_order() -> None:
    sender = core(1)
    submissions = [Submission(payload=payload, not_before=7, place=2, words=(3,)) for payload in (b"a", b"b", b"c")]
    for submission in submissions:
        sender.on_submit(submission, 0)
    (effect,) = give(sender, answer(1, 1))
    assert isinstance(effect, Multicast)
    closing = close(sender, effect.message)
    assert delivered(closing.effects) == [1]
    assert closing.handed_back == tuple(submissions[1:])


def test_a_message_of_an_excluded_sender_is_delivered_if_all_that_it_had_delivered_is() -> None:
    member = core(2)
    give(member, data(0, 1))
    closing = close(member, data(3, 2), data(1, 4, after=[(0, 1), (3, 2)]), survivors={0, 2})
    assert delivered(closing.effects) == [2, 4], "3 is void, and 1 had not delivered it"


def test_no_effect_without_its_cause_when_two_members_crash() -> None:
    """Member 3 multicasts x (number 2), which only 1 receives; 1 delivers x and submits m (number 3); both crash. The
    survivors have m and not x, and each has received another part of the cut.
    """
    cut = [data(0, 1), data(1, 3, b"m", after=[(0, 1), (3, 2)]), data(1, 4, b"m2", after=[(0, 1)]), data(2, 5, b"own")]
    for handed in range(len(cut) + 1):
        for member in (0, 2):
            one = core(member)
            before = give(one, *cut[:handed])
            closing = close(one, *cut[handed:], survivors={0, 2})
            assert delivered([*before, *closing.effects]) == [1, 5], "a later message of 1 is dropped, too"
            assert [item for item in reported(closing.effects) if item[0] == SequencerReport.DROPPED] == [
                (SequencerReport.DROPPED, 1, 3),
                (SequencerReport.DROPPED, 1, 4),
            ]


def test_an_effect_of_a_dropped_message_is_dropped() -> None:
    """Member 1 has delivered a message of 3 that depends on number 1, which no survivor has."""
    closing = close(
        core(2),
        data(3, 2, after=[(0, 1)]),
        data(1, 3, after=[(0, 1), (3, 2)]),
        survivors={0, 2},
    )
    assert delivered(closing.effects) == []


def test_the_crash_of_server_and_sender_blocks_no_survivor() -> None:
    """The server gave 3 the number 1 and 2 the number 3; both messages are lost, and so are both crashed members."""
    member = core(2)
    member.on_submit(Submission(payload=b"x"), 0)
    give(member, data(1, 2))
    closing = close(member, survivors={1, 2})
    assert delivered(closing.effects) == [2]
    assert closing.handed_back == (Submission(payload=b"x"),)
    successor = core(1, members=(1, 2), ranks=(1, 2))
    assert give(successor, request(2, 1)) == [Send(target=2, message=answer(1, 1, server=1))]


def test_what_was_delivered_before_is_a_prefix_of_one_sequence_whatever_was_received() -> None:
    """Each order in which four streams may arrive, cut off at each place."""
    cut = [data(0, 2), data(1, 1), data(2, 4, after=[(1, 1), (0, 2), (3, 3)]), data(2, 6)]
    for arrival in permutations(cut):
        for handed in range(len(cut) + 1):
            one = core(0)
            if arrival.index(cut[2]) > arrival.index(cut[3]):
                continue
            before = give(one, *arrival[:handed])
            after = close(one, *arrival[handed:], survivors={0, 1}).effects
            assert delivered([*before, *after]) == [1, 2], "2 had delivered number 3"


@pytest.mark.parametrize(
    "wrong",
    [
        data(3, 0),
        replace(data(3, 2), words=()),
        data(3, 1),
        request(3, 1),
        answer(2, 1),
        Message(kind=Kind.LAMPORT_DATA, origin=3, incarnation=1, seq=2),
    ],
    ids=repr,
)
def test_what_on_message_would_refuse_is_passed_over_in_the_rest(wrong: Message) -> None:
    member = core(2)
    give(member, data(1, 1))
    assert delivered(close(member, wrong, data(3, 5)).effects) == [5]


# A server that is not replaced.


def test_the_order_stops_without_the_server_if_nobody_replaces_it() -> None:
    member = core(1, replace_server=False)
    member.on_submit(Submission(payload=b"x"), 0)
    closing = close(member, survivors={1, 2})
    assert closing.memory == b"\x00\x00"
    assert closing.handed_back == (Submission(payload=b"x"),)
    stopped = core(1, members=(1, 2), replace_server=False, memory=closing.memory)
    assert stopped.on_start(0) == [Report(code=SequencerReport.STOPPED, member=0)]
    assert (stopped.phase, stopped.can_submit, stopped.is_idle) == (Phase.STOPPED, False, True)
    with pytest.raises(LocalError, match="can_submit"):
        stopped.on_submit(Submission(payload=b"x"), 0)
    assert give(stopped, data(2, 1)) == [Report(code=DropReason.UNEXPECTED, member=2)]
    again = close(stopped, data(2, 1))
    assert again == Closing(memory=closing.memory)
    resumed = core(1, members=(0, 1, 2), ranks=(1, 2, 0), replace_server=False, memory=again.memory)
    assert resumed.on_start(0) == []
    assert resumed.on_submit(Submission(payload=b"x"), 0) == [Send(target=0, message=request(1, 1))]


@pytest.mark.parametrize("memory", [b"\x00", b"\x00\x00\x00", b"\xff\xff", b"x" * 1000])
def test_a_memory_that_names_no_server_is_refused(memory: bytes) -> None:
    with pytest.raises(RemoteError, match="MALFORMED"):
        core(1, replace_server=False, memory=memory)
    assert core(1, memory=memory).can_submit, "the core that replaces its server has no memory, and reads none"


# Groups through views.


def make(membership: Membership, rng: Random, memory: bytes) -> SequencerCore:
    return SequencerCore(membership=membership, parameters=SequencerParameters(outstanding=3), memory=memory)


def make_dedicated(membership: Membership, rng: Random, memory: bytes) -> SequencerCore:
    parameters = SequencerParameters(outstanding=3, replace_server=False)
    return SequencerCore(membership=membership, parameters=parameters, memory=memory)


@pytest.mark.parametrize("seed", range(400))
def test_a_group_keeps_one_causal_order_through_its_views(seed: int) -> None:
    run(make, seed, lags=seed % 2 == 0, skewed=seed % 4 < 2)


def test_some_of_these_groups_pass_numbers_over_and_drop_messages() -> None:
    groups = [run(make, seed, members=5, skewed=True) for seed in range(40)]
    codes = {report.code for group in groups for place in group.places.values() for report in place.reports}
    assert codes >= {SequencerReport.VOID, SequencerReport.DROPPED}
    assert not codes & set(DropReason), "no honest message is refused"


@pytest.mark.parametrize("seed", range(60))
def test_a_group_with_a_dedicated_server_loses_nothing_while_it_is_away(seed: int) -> None:
    rng = Random(f"dedicated/{seed}")
    group = Group(make_dedicated, 4, seed, skewed=seed % 2 == 0)
    for _ in range(4):
        group.play(rng.randrange(100))
        two = rng.sample([member for member in group.view.members if member], 2)
        group.change((group.lucky if group.skewed else group.draw_survivors(rng)) | set(two))
        if 0 not in group.view.members:
            before = [list(place.delivered) for place in group.places.values()]
            group.play(20, load=0.5)
            assert [place.delivered for place in group.places.values()] == before
            assert {group.places[member].core.phase for member in group.view.members} == {Phase.STOPPED}  # type: ignore[union-attr]
    while 0 not in group.view.members:
        group.change(frozenset(group.view.members))
    group.settle()
    final = [group.places[member] for member in group.view.members]
    for place in final:
        group.check_own(place)
        group.check_order(place)
        assert set(place.submitted) <= set(place.delivered)
        assert place.delivered == final[0].delivered


# Over the reliable layer.


def build(membership: Membership, seed: int) -> Core:
    parameters = {"outstanding": 4, "reliable": {"window": 64, "suspect_after_ns": 2 * SECOND}}
    return PROTOCOLS["sequencer"].build(membership=membership, parameters=parameters, seed=seed)


def test_a_multicast_costs_a_request_an_answer_and_the_message() -> None:
    cluster = Cluster(3, build)
    cluster.submit(1)
    check_ordered(cluster, [0, 1, 2])
    counted = kinds_above(cluster)
    assert (counted[Kind.SEQUENCER_REQUEST], counted[Kind.SEQUENCER_NUMBER], counted[Kind.SEQUENCER_DATA]) == (1, 1, 1)


def test_control_of_the_upper_core_is_control_on_the_wire() -> None:
    cluster = Cluster(3, build)
    cluster.submit(1)
    cluster.run()
    for _, message in cluster.sent:
        is_control = message.inner in (Kind.SEQUENCER_REQUEST, Kind.SEQUENCER_NUMBER)
        if message.inner is not Kind.APPLICATION:
            assert bool(message.flags & Flag.CONTROL) is is_control
            assert decode_message(message.payload).kind is message.inner


def test_all_deliver_the_same_order_under_load() -> None:
    cluster = Cluster(5, build)
    for number in range(50):
        for member in range(5):
            cluster.submit_later(member, number * 5 * MILLISECOND)
    check_ordered(cluster, [0, 1, 2, 3, 4])
    assert len(cluster.hosts[0].delivered) == 250
