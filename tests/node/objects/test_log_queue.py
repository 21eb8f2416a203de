"""Entries of the log that two machines must store before any other machine acts on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from node.core import Membership, Submission
from node.effects import Deliver, Multicast, Report, Send
from node.errors import DropReason
from node.objects.addresses import Addressing, GroupId, NewsKind, Operation, Reference
from node.objects.log.entries import (
    Call,
    Called,
    CallId,
    ClockAdvance,
    Entry,
    GivenUp,
    LinkHeader,
    NewEpoch,
    Outcome,
    ProposalRequest,
    Proposed,
    Settled,
    Stored,
    Voted,
)
from node.objects.manager.context import RESILIENT, Context
from node.objects.manager.machine import LogCore
from node.objects.parameters import ObjectsParameters
from node.protocols.amoeba import AmoebaParameters
from node.wire import Kind, Message
from tests.node.cluster import MILLISECOND
from tests.node.objects.machines import World

PLACES = ((0, 1), (2, 3))
HERE, ELSEWHERE = 0, 1
GROUP = GroupId(HERE, 0, 1, 1)
LINK = LinkHeader(ELSEWHERE, 1, 1)
NAME = CallId(1, 1, 1)


def call_of(caller: int, *objects: int, **words: object) -> Call:
    references = tuple(Reference(member, 1, 1) for member in objects)
    addressing = Addressing(caller=Reference(caller, 1, 1), objects=references, **words)  # type: ignore[arg-type]
    return Call(id=CallId(caller, 1, 1), addressing=addressing, payload=b"12345678body")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        # Nothing is decided together about a call to a list before a proposal or a vote follows it.
        (Called(call=call_of(1, 0, 1)), ()),
        (Called(call=call_of(1, 0, 1, is_atomic=True)), ()),
        (Called(call=call_of(1, 0, 2)), ()),
        (Called(call=call_of(1, 0, operation=Operation.BIND)), RESILIENT),
        (Called(call=call_of(1, group=GROUP)), RESILIENT),
        (Called(call=call_of(1, 1, group=GROUP, operation=Operation.JOIN)), RESILIENT),
        (Voted(id=NAME, is_yes=True), RESILIENT),
        (Settled(link=LINK, numbers=(1,)), ()),
        (ClockAdvance(timestamp=1), ()),
        (ProposalRequest(link=LINK, number=1, after=0, call=call_of(2, 0)), RESILIENT),
        (Proposed(link=LINK, number=1, id=NAME, timestamp=1, is_yes=True), RESILIENT),
        (Outcome(link=LINK, number=1, id=NAME, timestamp=1), ()),
        (Outcome(link=LINK, number=1, id=NAME, timestamp=0), RESILIENT),
        (GivenUp(id=NAME, place=1), RESILIENT),
        (NewEpoch(place=1, epoch=2), RESILIENT),
        (Stored(), RESILIENT),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_others_act_on_is_resilient(entry: Entry, words: tuple[int, ...]) -> None:
    us = Membership(member=0, members=(0, 1, 2, 3), incarnation=1, partitions=PLACES)
    context = Context(membership=us, parameters=ObjectsParameters())
    context.append(entry)
    (submission,) = context.log_queue
    assert submission.words == words


@pytest.mark.parametrize(("is_urgent", "has_multicast"), [(False, True), (True, True), (True, False)])
def test_the_storer_acts_at_once_and_tells_all_what_they_must_have_now(is_urgent: bool, has_multicast: bool) -> None:
    """Without multicast the sequencer tells them."""
    applied: dict[int, list[int]] = {0: [], 1: [], 2: []}

    def apply_at(member: int) -> Callable[[Deliver], bool]:
        return lambda delivery: applied[member].append(delivery.seq) or is_urgent  # type: ignore[func-returns-value]

    def log_at(member: int) -> LogCore:
        us = Membership(member=member, members=(0, 1, 2), has_multicast=has_multicast)
        parts = {"begin": lambda: None, "apply": apply_at(member), "snapshot": bytes}
        return LogCore(membership=us, parameters=AmoebaParameters(), **parts)  # type: ignore[arg-type]

    sequencer, storer, third = map(log_at, applied)
    (numbered,) = sequencer.on_submit(Submission(payload=b"", words=RESILIENT), 0)
    assert isinstance(numbered, Multicast)
    data = numbered.message
    (told,) = storer.on_message(data, 0, 0)
    tells_all = is_urgent and has_multicast
    assert applied[1] == [1] and isinstance(told, Multicast if tells_all else Send)
    sequencer.on_message(data, 0, 0)
    assert applied[0] == []
    accepted = sequencer.on_message(told.message, 1, 0)
    assert applied[0] == [1] and len(accepted) == (is_urgent and not tells_all)
    if tells_all:
        stranger = replace(told.message, origin=2)
        assert storer.on_message(stranger, 2, 0) == [Report.refusal(DropReason.UNEXPECTED, stranger, 2)]
        third.on_message(told.message, 1, 0)
    third.on_message(data, 0, 0)
    assert applied[2] == ([1] if tells_all else [])


def test_a_counter_of_votes_whose_sum_nobody_else_has_delivers_nothing_and_the_others_abort() -> None:
    """Its own object, too, gets the call only when a second machine has the votes."""
    world = World(3)
    objects = tuple(world.object(member) for member in world.members)
    votes: list[int] = []

    def is_lost(source: int, target: int, message: Message) -> bool:
        if message.kind is Kind.OBJECTS_VOTE:
            votes.append(source)
        return source == 0 and len(set(votes)) == 2

    world.lose = is_lost
    call = world.call(objects[1], *objects, is_atomic=True)
    world.run(for_ns=20 * MILLISECOND)
    assert world.receivers(call) == []
    world.crash(0)
    world.check_rest()
    assert world.receivers(call) == []
    assert world.kinds_told(call) == [NewsKind.ABORTED]
