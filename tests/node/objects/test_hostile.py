"""Lies of a machine that knows the rules: well-formed in every layer, and never sent by a correct manager."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from node.core import Membership
from node.effects import Deliver
from node.errors import DropReason, LocalError
from node.objects.addresses import MAX_TIMESTAMP, Addressing, GroupId, News, NewsKind, Operation, Reference, encode_news
from node.objects.api.calls import CallBody, ReplyBody, encode_body
from node.objects.api.calls import CallId as BodyId
from node.objects.api.calls import Outcome as ReplyOutcome
from node.objects.api.errors import CallError
from node.objects.api.groups import RGroup
from node.objects.api.space import Space
from node.objects.application import ProgramApplication
from node.objects.log.entries import (
    MAX_EPOCH,
    MAX_NUMBER,
    Call,
    Called,
    CallId,
    Crossing,
    LinkHeader,
    Outcome,
    ProposalRequest,
    Proposed,
    Settled,
    message_of,
)
from node.objects.manager.machine import MachineCore
from node.objects.parameters import ObjectsParameters
from node.objects.programs import Program, Setting
from node.registry import PROTOCOLS
from node.trace import Stamp, encode_stamp
from node.wire import Kind, Message, encode_message
from tests.node.cluster import MILLISECOND, SECOND
from tests.node.hostile import LIAR, VICTIM, Busy, busy, envelope_of, load
from tests.node.objects.configurations import machine
from tests.node.objects.samples import Counter
from tests.node.test_hostile import check_true_messages

NEIGHBOUR, STRANGER = ((0, 1, 2, 3),), ((0, 1, 2), (3,))
SESSION = 7000
LIES = 1500
MOST_HELD = 600


class Liar:
    """Sends to the victim over a direct channel, and for its sub-network. `most`: the highest number it uses."""

    def __init__(self, cluster: Busy, rng: Random, most: int) -> None:
        self._cluster = cluster
        self._rng = rng
        self._most = most
        self._said = 0
        self._us: Membership = cluster.hosts[LIAR].membership

    def lie(self) -> None:
        ways = (self._call, self._news, self._garbage, self._cross, self._vote)
        self._rng.choice(ways)()

    def _tell(self, message: Message) -> None:
        self._cluster._arrive(self._cluster.hosts[VICTIM], envelope_of(message, sender=LIAR))

    def _direct(self, payload: bytes, inner: Kind) -> None:
        rng = self._rng
        self._said += 1
        after, heard = (self._number(), self._number()) if rng.random() < 0.3 else (0, 0)
        words = (1 << 32 | SESSION, 0, 0, after, heard)
        self._tell(self._us.message(Kind.OBJECTS_DIRECT, seq=self._said, words=words, inner=inner, payload=payload))

    # Messages.

    def _call(self) -> None:
        message = message_of(Called(call=self._a_call(LIAR)), self._us)
        self._direct(encode_message(message), message.kind)

    def _news(self) -> None:
        rng = self._rng
        place = rng.choice((1, 1, 1, 2, 4097, 99999, 0))
        payload = encode_news(self.some_news())
        message = self._us.message(Kind.OBJECTS_NEWS, seq=rng.randint(0, 60), words=(place,), payload=payload)
        self._direct(encode_message(message), message.kind)

    def _garbage(self) -> None:
        kinds = (Kind.OBJECTS_CALL, Kind.OBJECTS_NEWS, Kind.APPLICATION)
        self._direct(self._rng.randbytes(30), self._rng.choice(kinds))

    def _cross(self) -> None:
        self._tell(message_of(self._crossing(), self._us))

    def _vote(self) -> None:
        words = (self._rng.randrange(4) << 16 | 1, self._rng.randint(0, 60), self._rng.randrange(3))
        self._tell(self._us.message(Kind.OBJECTS_VOTE, words=words))

    # Parts of messages.

    def _number(self) -> int:
        rng = self._rng
        return rng.choice((rng.randint(0, 60), rng.randint(0, 60), self._most, self._most - 1, 2**16, 2**32))

    def _reference(self) -> Reference:
        rng = self._rng
        return Reference(rng.randrange(5), rng.choice((1, 1, 1, 2)), rng.choice((1, 1, 1, 2, 77, 4097, 8193, 60000)))

    def _references(self, most: int) -> tuple[Reference, ...]:
        return tuple({self._reference(): None for _ in range(self._rng.randint(0, most))})

    def _group(self) -> GroupId:
        rng = self._rng
        return GroupId(rng.choice((0, 0, 1, 3)), rng.choice((0, 0, 1, 3)), 1, rng.choice((1, 1, 2, 7)))

    def _a_call(self, member: int) -> Call:
        rng = self._rng
        addressing = self._addressing(Reference(member, 1, rng.choice((1, 2, 4097))))
        name = CallId(member, 1, max(1, min(self._number(), MAX_NUMBER)))
        payload = rng.randbytes(rng.choice((0, 8, 20, 100)))
        is_atomic = addressing.is_atomic
        return Call(id=name, addressing=addressing, heard=self._number(), payload=payload, is_atomic=is_atomic)

    def _addressing(self, caller: Reference) -> Addressing:
        rng = self._rng
        while True:
            with suppress(LocalError):
                return Addressing(
                    caller=caller,
                    objects=self._references(3),
                    group=rng.choice((None, None, self._group())),
                    operation=rng.choice((Operation.CALL, *Operation)),
                    is_atomic=rng.random() < 0.3,
                    is_ordered=rng.random() < 0.6,
                    is_direct=rng.random() < 0.2,
                )

    def some_news(self) -> News:
        """News of any kind."""
        rng = self._rng
        while True:
            with suppress(LocalError):
                return News(
                    kind=rng.choice(list(NewsKind)),
                    operation=rng.choice(list(Operation)),
                    objects=self._references(3),
                    group=rng.choice((None, self._group())),
                    is_atomic=rng.random() < 0.5,
                    timestamp=self._number(),
                )

    def _crossing(self) -> Crossing:
        rng = self._rng
        place = self._us.partition
        link = LinkHeader(rng.choice((place, place, place, 0, 2)), *rng.choices((1, 2, MAX_EPOCH), (18, 1, 1), k=2))
        number, name = max(1, min(self._number(), MAX_NUMBER)), CallId(rng.randrange(4), 1, rng.randint(1, 60))
        timestamp = self._number()
        match rng.randrange(4):
            case 0:
                call = self._a_call(rng.randrange(4))
                if call.addressing.group is not None and rng.random() < 0.7:
                    call = replace(call, members=self._references(3))
                return ProposalRequest(link=link, number=number, after=rng.choice((0, number - 1)), call=call)
            case 1:
                is_yes, missing = rng.random() < 0.6, self._references(2)
                return Proposed(link=link, number=number, id=name, timestamp=timestamp, is_yes=is_yes, missing=missing)
            case 2:
                return Outcome(link=link, number=number, id=name, timestamp=rng.choice((0, timestamp)))
            case _:
                return Settled(link=link, numbers=tuple(sorted({rng.randint(1, 60) for _ in range(3)})))


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("most", [64, 4096, MAX_TIMESTAMP])
@pytest.mark.parametrize("partitions", [NEIGHBOUR, STRANGER])
def test_a_machine_that_lies_ends_nobody_and_changes_no_order(
    partitions: tuple[tuple[int, ...], ...], most: int, seed: int
) -> None:
    entry = PROTOCOLS["objects"]
    cluster = busy(entry, seed=seed, partitions=partitions)
    cluster.crash(LIAR)
    liar = Liar(cluster, Random(f"{seed}/{most}/objects"), most)
    held = 0
    for number in range(LIES):
        liar.lie()
        if number % 10 == 0:
            cluster.run(for_ns=MILLISECOND)
            held = max(held, cluster.core(VICTIM).buffered)
    assert held <= MOST_HELD
    load(cluster, entry, members=(0, 1, 2))
    cluster.run(for_ns=60 * SECOND)
    check_true_messages(cluster, entry.name)
    # 22 is a list of all: it is delivered, unless an atomic call without a decision is before it.
    assert (0, 1, 22) in cluster.true[VICTIM]


def test_a_timestamp_that_nobody_can_have_heard_of_is_refused() -> None:
    entry = PROTOCOLS["objects"]
    cluster = busy(entry, partitions=NEIGHBOUR)
    core = cluster.core(VICTIM)
    assert isinstance(core, MachineCore)
    us = cluster.hosts[LIAR].membership
    for number in range(1, 4):
        words = (1 << 32 | SESSION, 0, 0, MAX_TIMESTAMP, MAX_TIMESTAMP)
        news = us.message(Kind.OBJECTS_NEWS, words=(1,), payload=encode_news(News(kind=NewsKind.UNREACHABLE)))
        message = us.message(
            Kind.OBJECTS_DIRECT, seq=number, words=words, inner=Kind.OBJECTS_NEWS, payload=encode_message(news)
        )
        cluster._arrive(cluster.hosts[VICTIM], envelope_of(message, sender=LIAR))
    cluster.run(for_ns=60 * SECOND)
    assert core.log_state.clock < 1000
    assert core.is_idle


async def _busy_program(space: Space, setting: Setting) -> None:
    """Calls and operations that are open while the lies arrive, which may end them with their errors only."""
    here, other = space.create(Counter()), space.proxy(Reference(1, 1, 2), Counter)

    async def in_a_group() -> None:
        group = await RGroup.create(space, Counter)
        await group.join(here)
        await group.proxy.add(1)

    asked = (other.add(1), in_a_group(), space.names.lookup("x", Counter))
    for found in await asyncio.gather(*asked, return_exceptions=True):
        assert not isinstance(found, BaseException) or isinstance(found, CallError)
    await asyncio.sleep(3600)


def _body(rng: Random, numbers: list[int]) -> bytes:
    """Body of a call, or of a reply to one of the victim's; whole, with flipped bits, cut short, or noise."""
    value = rng.choice((1, "x", None, b"q", [1], {"a": [1, 2]}, 2**40))
    called = CallBody(call=BodyId(Reference(1, 1, 1), rng.randint(1, 9)), name="add", arguments=(value,))
    member = Reference(rng.randrange(2), 1, rng.randint(1, 3))
    replied = ReplyBody(number=rng.choice(numbers), member=member, outcome=rng.choice(list(ReplyOutcome)), value=value)
    body = bytearray(encode_body(rng.choice((called, replied))))
    for _ in range(rng.choice((0, 0, 1, 5))):
        body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
    return rng.choice((bytes(body), bytes(body), bytes(body[: rng.randrange(len(body))]), rng.randbytes(20)))


@pytest.mark.parametrize("seed", range(8))
def test_bodies_and_news_that_nobody_honest_sends_end_no_program(seed: int) -> None:
    rng = Random(f"{seed}/application")
    program = Program(name="test", main=_busy_program, require=lambda setting: None)
    application = ProgramApplication(machine(0, (2,)), ObjectsParameters(spaces=1), program)
    application.begin()
    numbers = [1]
    cluster = busy(PROTOCOLS["objects"])
    liar = Liar(cluster, rng, 64)
    for number in range(60):
        place, origin = rng.choice((1, 2, 3, 77, 4000)), rng.choice((0, 1, 5))
        if rng.random() < 0.5:
            payload = encode_stamp(Stamp(origin=origin, incarnation=1, number=number + 1)) + _body(rng, numbers)
            told = Deliver(payload=payload, origin=origin, incarnation=1, place=place)
        else:
            # News of a creation come from the victim's own sub-network, with the name.
            news = next(one for one in iter(liar.some_news, None) if one.kind is not NewsKind.DONE or one.group)
            payload = encode_news(news)
            seq = rng.choice((0, 99, *numbers))
            told = Deliver(payload=payload, origin=0, incarnation=1, seq=seq, inner=Kind.OBJECTS_NEWS, place=place)
        application.take(told, 0)
        while (stamp := application.request(number * SECOND // 10, can_submit=True)) is not None:
            numbers.append(stamp.number)
            application.queue.clear()
        application.queue.clear()
    reasons = {report.code for report in application.reports() if isinstance(report.code, DropReason)}
    assert reasons, "some of it was refused"
    application.end()
