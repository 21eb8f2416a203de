"""Total order by a sequence server: paper 002's first protocol, sentence by sentence, and the end of its views."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import pytest

from node.core import Closing, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report, Send
from node.errors import DropReason, RemoteError
from node.protocols.sequencer import Phase, SequencerCore, SequencerParameters, SequencerReport
from node.trace import Level
from node.wire import Flag, Kind, Message
from tests.node.by_hand import after, close, dropped, give, multicasts, ordered, reported, submit
from tests.node.group.views import Group, Make, check_rest, run

MEMBERS = (0, 1, 2, 3)


# Core alone.


def core(
    member: int,
    *,
    members: tuple[int, ...] = MEMBERS,
    ranks: tuple[int, ...] = (),
    memory: bytes = b"",
    **parameters: Any,
) -> SequencerCore:
    membership = Membership(member=member, members=members, ranks=ranks)
    return SequencerCore(membership=membership, parameters=SequencerParameters(**parameters), memory=memory)


def request(origin: int, number: int) -> Message:
    return Message(kind=Kind.SEQUENCER_REQUEST, origin=origin, incarnation=1, seq=number, flags=4)


def answer(number: int, to_request: int, *, server: int = 0) -> Message:
    return Message(kind=Kind.SEQUENCER_NUMBER, origin=server, incarnation=1, seq=to_request, flags=4, words=(number,))


def data(origin: int, number: int, payload: bytes = b"", *, word: int = 0) -> Message:
    """A data message. `word`: earlier deliveries of its sender."""
    return Message(kind=Kind.SEQUENCER_DATA, origin=origin, incarnation=1, seq=number, words=(word,), payload=payload)


def numbers(effects: Iterable[Effect]) -> list[int]:
    """The number of each delivery."""
    return [number for number, _ in ordered(effects)]


def test_the_sender_asks_a_sequence_server_for_a_number() -> None:
    assert submit(core(1), b"x") == [Send(target=0, message=request(1, 1))]


def test_the_sequence_server_is_the_first_member_of_the_view() -> None:
    assert submit(core(1, ranks=(2, 0, 3, 1))) == [Send(target=2, message=request(1, 1))]
    assert submit(core(2, ranks=(2, 0, 3, 1))) == [Multicast(message=data(2, 1))]


def test_the_server_gives_consecutive_numbers_in_the_order_of_the_requests() -> None:
    server = core(0)
    assert give(server, request(1, 1), request(2, 1), request(1, 2)) == [
        Send(target=1, message=answer(1, 1)),
        Send(target=2, message=answer(2, 1)),
        Send(target=1, message=answer(3, 2)),
    ]
    assert submit(server, b"x") == [Multicast(message=data(0, 4, b"x"))], "its own messages need no request"


def test_then_the_sender_multicasts_with_the_number() -> None:
    sender = core(1)
    submit(sender, b"x", flags=Flag.DUMMY)
    assert give(sender, answer(7, 1)) == [Multicast(message=replace(data(1, 7, b"x"), flags=Flag.DUMMY))]


def test_a_message_says_what_its_sender_had_delivered_when_it_took_the_submission() -> None:
    """Not its deliveries when the number arrives: the message does not depend on them."""
    sender, server = core(1), core(0)
    give(sender, data(2, 1))
    submit(sender, b"x")
    give(sender, data(3, 2))
    assert give(sender, answer(3, 1)) == [Multicast(message=data(1, 3, b"x", word=after((2, 1))))]
    give(server, data(2, 1))
    assert submit(server, b"x") == [Multicast(message=data(0, 1, b"x", word=after((2, 1))))]


def test_delivery_is_by_number() -> None:
    receiver = core(2)
    assert numbers(give(receiver, data(1, 3), data(0, 2))) == []
    assert (receiver.buffered, receiver.is_idle) == (2, False)
    effects = give(receiver, data(1, 1, b"first"))
    assert numbers(effects) == [1, 2, 3]
    assert effects[0] == Deliver(payload=b"first", origin=1, incarnation=1, seq=1, level=Level.AGREED)
    assert (receiver.buffered, receiver.is_idle) == (0, True)


def test_the_server_is_idle_when_the_numbers_that_it_gave_are_numbers() -> None:
    server = core(0)
    idle = []
    for message in (request(1, 1), request(2, 1), data(1, 1), data(2, 2)):
        give(server, message)
        idle.append(server.is_idle)
    assert idle == [False, False, False, True]


def test_only_so_many_requests_are_under_way() -> None:
    sender = core(1, outstanding=2)
    can_submit = []
    for _ in range(2):
        submit(sender)
        can_submit.append(sender.can_submit)
    assert can_submit == [True, False]
    give(sender, answer(1, 1))
    assert (sender.can_submit, sender.buffered, sender.is_idle) == (True, 1, False), "one request has no answer"


@pytest.mark.parametrize(
    ("reason", "member", "wrong"),
    [
        (DropReason.MALFORMED, 1, data(2, 0)),
        (DropReason.MALFORMED, 1, replace(data(2, 4), words=())),
        (DropReason.MALFORMED, 1, replace(data(2, 4), words=(1, 1))),
        (DropReason.MALFORMED, 1, replace(answer(1, 1), words=())),
        (DropReason.MALFORMED, 1, replace(answer(1, 1), words=(1, 1))),
        (DropReason.MALFORMED, 1, answer(0, 1)),
        (DropReason.MALFORMED, 0, request(2, 0)),
        (DropReason.MALFORMED, 0, replace(request(2, 1), words=(1,))),
        (DropReason.UNEXPECTED, 1, answer(1, 2)),
        (DropReason.UNEXPECTED, 1, answer(1, 1, server=2)),
        (DropReason.UNEXPECTED, 1, request(2, 1)),
        (DropReason.UNEXPECTED, 0, request(0, 1)),
        (DropReason.UNEXPECTED, 0, answer(1, 1)),
        (DropReason.DUPLICATE, 1, data(0, 1)),
        (DropReason.DUPLICATE, 1, data(0, 3)),
    ],
    ids=repr,
)
def test_what_is_wrong_is_refused_before_anything_has_changed(reason: DropReason, member: int, wrong: Message) -> None:
    """The member has delivered number 1, has number 3, and has submitted a message itself."""
    one = core(member)
    submit(one, b"x")
    give(one, data(2, 1), data(2, 3))
    assert give(one, wrong) == [Report(code=reason, member=wrong.origin)]
    assert numbers(give(one, data(2, 2))) == [2, 3]
    expected = Multicast(message=data(1, 4, b"x")) if member else Send(target=1, message=answer(2, 1))
    assert give(one, answer(4, 1) if member else request(1, 1)) == [expected]


# End of a view.


def test_the_rest_is_delivered_by_number_and_gaps_are_passed_over() -> None:
    member = core(2)
    give(member, data(1, 1), data(1, 4))
    far = 2**64 - 1  # costs no time
    closing = close(member, data(3, 3), data(0, far), survivors=MEMBERS)
    assert numbers(closing.effects) == [3, 4, far]
    assert reported(closing.effects) == [(SequencerReport.VOID, 0, 2), (SequencerReport.VOID, 0, 5)]
    assert (closing.handed_back, closing.memory) == ((), b"")
    assert member.buffered == 0


def test_submissions_without_a_number_are_handed_back_in_their_order() -> None:
    sender = core(1)
    submissions = [Submission(payload=payload, not_before=7, place=2, words=(3,)) for payload in (b"a", b"b", b"c")]
    for submission in submissions:
        sender.on_submit(submission, 0)
    closing = close(sender, *multicasts(give(sender, answer(1, 1))), survivors=MEMBERS)
    assert numbers(closing.effects) == [1]
    assert closing.handed_back == tuple(submissions[1:])


def test_a_message_of_an_excluded_sender_is_delivered_if_all_that_it_had_delivered_is() -> None:
    member = core(2)
    give(member, data(0, 1))
    closing = close(member, data(3, 2), data(1, 4, word=after((0, 1), (3, 2))), survivors={0, 2})
    assert numbers(closing.effects) == [2, 4], "3 is void, and 1 had not delivered it"


def test_no_effect_without_its_cause_when_two_members_crash() -> None:
    """Member 3 multicasts x (number 2), which only 1 receives; 1 delivers x and submits m (number 3); both crash. The
    survivors have m and not x, and each has received another part of the cut. Messages after m that depend on m, or are
    of its sender, are dropped, too.
    """
    cut = [
        data(0, 1),
        data(1, 3, b"m", word=after((0, 1), (3, 2))),
        data(1, 4, b"m2", word=after((0, 1))),
        data(3, 5, b"m3", word=after((0, 1), (3, 2), (1, 3))),
        data(2, 6, b"own"),
    ]
    for handed, member in product(range(len(cut) + 1), (0, 2)):
        one = core(member)
        before = give(one, *cut[:handed])
        closing = close(one, *cut[handed:], survivors={0, 2})
        assert numbers([*before, *closing.effects]) == [1, 6]
        assert dropped(closing, SequencerReport.DROPPED) == [(1, 3), (1, 4), (3, 5)]


def test_what_on_message_would_refuse_is_passed_over_in_the_rest() -> None:
    of_another = [
        data(3, 0),
        replace(data(3, 2), words=()),
        data(3, 1),
        request(3, 1),
        replace(data(3, 2), kind=Kind.CO_DATA),
    ]
    for wrong in (*of_another, answer(2, 1)):
        member = core(2)
        give(member, data(1, 1))
        assert numbers(close(member, wrong, data(3, 5), survivors=MEMBERS).effects) == [5], wrong


# A server that is not replaced.


def test_the_order_stops_without_the_server_if_nobody_replaces_it() -> None:
    member = core(1, replace_server=False)
    submit(member, b"x")
    closing = close(member, survivors={1, 2})
    assert (closing.memory, closing.handed_back) == (b"\x00\x00", (Submission(payload=b"x"),))
    stopped = core(1, members=(1, 2), replace_server=False, memory=closing.memory)
    assert stopped.on_start(0) == [Report(code=SequencerReport.STOPPED, member=0)]
    assert (stopped.phase, stopped.can_submit, stopped.is_idle) == (Phase.STOPPED, False, True)
    assert close(stopped, data(2, 1), survivors={1, 2}) == Closing(memory=closing.memory)
    resumed = core(1, members=(0, 1, 2), ranks=(1, 2, 0), replace_server=False, memory=closing.memory)
    assert resumed.on_start(0) == []
    assert submit(resumed) == [Send(target=0, message=request(1, 1))]


@pytest.mark.parametrize("memory", [b"\x00", b"\x00\x00\x00", b"\xff\xff", b"x" * 1000])
def test_a_memory_that_names_no_server_is_refused(memory: bytes) -> None:
    with pytest.raises(RemoteError, match="MALFORMED"):
        core(1, replace_server=False, memory=memory)
    assert core(1, memory=memory).can_submit, "the core that replaces its server has no memory, and reads none"


# Groups through views.


def maker(**parameters: Any) -> Make:
    def make(membership: Membership, rng: Random, memory: bytes) -> SequencerCore:
        given = SequencerParameters(outstanding=3, **parameters)
        return SequencerCore(membership=membership, parameters=given, memory=memory)

    return make


@pytest.mark.parametrize("seed", range(400))
def test_a_group_keeps_one_causal_order_through_its_views(seed: int) -> None:
    run(maker(), seed, lags=seed % 2 == 0, skewed=seed % 4 < 2)


def test_some_of_these_groups_pass_numbers_over_and_drop_messages() -> None:
    groups = [run(maker(), seed, members=5, skewed=True) for seed in range(40)]
    codes = {report.code for group in groups for place in group.places.values() for report in place.reports}
    assert codes >= {SequencerReport.VOID, SequencerReport.DROPPED}
    assert not codes & set(DropReason), "no honest message is refused"


@pytest.mark.parametrize("seed", range(60))
def test_a_group_with_a_dedicated_server_loses_nothing_while_it_is_away(seed: int) -> None:
    rng = Random(f"dedicated/{seed}")
    group = Group(maker(replace_server=False), 4, seed, skewed=seed % 2 == 0)
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
    check_rest(group)
