"""Objects in a space of their own: calls, their order, their ends, and cycles of calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from node.errors import DropReason, LocalError, RemoteError
from node.objects.addresses import OBJECTS_IN_SPACE, Addressing, GroupId, News, NewsKind, Operation, Reference
from node.objects.api.calls import Body, CallBody, CallId, NameBody, Origin, Outcome, Receiver, ReplyBody, StateBody
from node.objects.api.errors import (
    Aborted,
    BadArguments,
    CallTimeout,
    DeadObject,
    EmptyGroup,
    NoSuchGroup,
    NotAValue,
    Overrun,
    Refused,
    RemoteException,
    Unreachable,
)
from node.objects.api.export import DEFAULT, Remote, Request, export
from node.objects.api.loop import VirtualLoop
from node.objects.api.replies import ReplyHandler
from node.objects.api.space import MAX_UNDER_WAY, Space
from node.objects.api.values import Pointer
from tests.node.objects.samples import Counter, in_space

US = Origin(0, 1)
THERE = Reference(1, 1, 2)
ELSEWHERE = Reference(2, 1, 2)
GROUP = GroupId(0, 1, 1, 1)
DEAD = "the object is dead, or never was"


class Relay(Remote):
    """Calls others, and can be called back."""

    def __init__(self) -> None:
        self.log: list[str] = []

    @export
    async def through(self, other: Relay, back: Relay) -> str:
        """Waits for `other`, which calls `back`."""
        return await other.touch(back)

    @export
    async def touch(self, other: Relay) -> str:
        return await other.name()

    @export
    async def through_and_wait_late(self, other: Relay, back: Relay) -> str:
        call = other.touch.send(back)
        await asyncio.sleep(1)
        return await call

    @export
    async def send_only(self, other: Relay, back: Relay) -> str:
        other.touch.send(back)
        await asyncio.sleep(1)
        self.log.append("sent")
        return "sent"

    @export
    async def name(self) -> str:
        self.log.append("named")
        return "a relay"

    @export
    async def with_time_out(self, other: Relay, back: Relay) -> str:
        return await other.touch.options(timeout=1.0)(back)

    @export
    async def by_children(self, other: Counter) -> list[int]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_add(other, amount)) for amount in (1, 2, 3)]
        return [task.result() for task in tasks]


async def _add(counter: Counter, amount: int) -> int:
    return await counter.add(amount)


# Calls and their ends.


@in_space
async def test_calls_of_one_sender_never_overtake(space: Space) -> None:
    counter = Counter()
    proxy = space.create(counter)
    calls = [proxy.slowly.send(1, seconds=3.0), proxy.add.send(2), proxy.plain.send(3), proxy.slowly.send(4)]
    assert await asyncio.gather(*calls) == [1, 3, 6, 10]
    assert counter.seen == [1, 2, 3, 4]


@in_space
async def test_objects_work_side_by_side(space: Space) -> None:
    objects = [space.create(Counter()) for _ in range(10)]
    await asyncio.gather(*(one.slowly(1, seconds=2.0) for one in objects))
    assert space.loop.time() == 2.0


@in_space
async def test_a_callee_cannot_change_its_callers_list_nor_the_caller_its_result(space: Space) -> None:
    kept: list[int] = []

    class Keeper(Remote):
        @export
        def keep(self) -> list[int]:
            return kept

    mine = [1, 2]
    assert await space.create(Counter()).append_to(mine) == [1, 2, 0]
    assert mine == [1, 2]
    got = await space.create(Keeper()).keep()
    got.append(7)
    assert kept == []


@in_space
async def test_exceptions_are_replies(space: Space) -> None:
    counter = space.create(Counter())
    with pytest.raises(RemoteException, match="ValueError: too bad") as caught:
        await counter.fail("too bad")
    assert (caught.value.type_name, caught.value.text) == ("ValueError", "too bad")
    with pytest.raises(RemoteException, match="NotAValue: a set is no value"):
        await counter.as_set()
    with pytest.raises(RemoteException) as long:
        await counter.fail("x" * 5000)
    assert long.value.text == "x" * 1000


@in_space
async def test_an_exception_that_goes_through_several_objects_stays_what_it_was(space: Space) -> None:
    class Between(Remote):
        @export
        async def ask(self, counter: Counter, others: list[Between]) -> None:
            if others:
                await others[0].ask(counter, others[1:])
            await counter.fail("too bad")

    counter = space.create(Counter())
    one, *others = (space.create(Between()) for _ in range(3))
    with pytest.raises(RemoteException, match=r"^ValueError: too bad$") as caught:
        await one.ask(counter, others)
    assert (caught.value.type_name, caught.value.text) == ("ValueError", "too bad")


@in_space
async def test_arguments_that_do_not_fit_are_refused_by_the_callee(space: Space) -> None:
    counter = Counter()
    proxy: Any = space.create(counter)
    for call in (lambda: proxy.add("2"), proxy.add, lambda: proxy.add(1, 2), lambda: proxy.add(much=1)):
        with pytest.raises(BadArguments, match="add"):
            await call()
    with pytest.raises(NotAValue):
        proxy.add({1})
    assert space.is_idle
    assert counter.seen == []


@in_space
async def test_dead_objects_say_so(space: Space) -> None:
    counter = Counter()
    proxy = space.create(counter)
    working = proxy.slowly.send(1)
    waiting = proxy.add.send(1)
    await asyncio.sleep(0.5)
    space.destroy(proxy)
    for call in (working, waiting, proxy.add.send(1)):
        with pytest.raises(DeadObject):
            await call
    with pytest.raises(LocalError, match="cannot be destroyed"):
        space.destroy(proxy)
    assert await space.create(counter).add(5) == 5
    assert space.is_idle


@in_space
async def test_an_object_destroyed_before_its_methods_first_line(space: Space) -> None:
    for kind in ("add", "plain"):
        counter = Counter()
        proxy = space.create(counter)
        call = getattr(proxy, kind).send(1)
        space.destroy(counter)
        with pytest.raises(DeadObject):
            await call
        await asyncio.sleep(1)
        assert counter.seen == []


@in_space
async def test_an_object_that_destroys_itself_still_answers(space: Space) -> None:
    class Mortal(Remote):
        def __init__(self, space: Space) -> None:
            self.space = space

        @export
        async def die(self) -> str:
            self.space.destroy(self)
            await asyncio.sleep(1)
            return "dead now"

    mortal = space.create(Mortal(space))
    assert await mortal.die() == "dead now"
    with pytest.raises(DeadObject):
        await mortal.die()


@in_space
async def test_an_object_is_created_once(space: Space) -> None:
    counter = Counter()
    space.create(counter)
    with pytest.raises(LocalError, match="created already"):
        space.create(counter)
    with pytest.raises(LocalError, match="is no object of a space"):
        space.reference_of(3)


@in_space
async def test_all_numbers_of_a_space_are_given_once(space: Space) -> None:
    for _ in range(OBJECTS_IN_SPACE - 2):
        space.destroy(space.create(Counter()))
    with pytest.raises(LocalError, match="at most 4094 objects"):
        space.create(Counter())


@in_space
async def test_time_outs_and_cancellation_forget_the_reply_not_the_call(space: Space) -> None:
    counter = Counter()
    proxy = space.create(counter)
    with pytest.raises(CallTimeout):
        await proxy.slowly.options(timeout=0.5)(1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await proxy.slowly(2)
    cancelled = proxy.slowly.send(3)
    cancelled.cancel()
    assert space.under_way == 0
    await asyncio.sleep(10)
    assert space.late == 3
    assert space.is_idle
    assert counter.seen == [1, 2, 3]


@in_space
async def test_too_many_calls_are_refused_until_some_are_answered(space: Space) -> None:
    proxy = space.create(Counter())
    calls = [proxy.add.send(1) for _ in range(MAX_UNDER_WAY)]
    with pytest.raises(Overrun):
        proxy.add.send(1)
    await calls[0]
    calls.append(proxy.add.send(1))
    assert (await asyncio.gather(*calls))[-1] == MAX_UNDER_WAY + 1


@in_space
async def test_references_travel(space: Space) -> None:
    counter, other = space.create(Counter()), space.create(Counter())
    assert await counter.ask(other, 5) == 5
    again = await counter.itself()
    assert again == counter
    assert hash(again) == hash(counter)
    assert again != other
    assert repr(again) == "<Counter 2 of member 0, incarnation 1>"


@in_space
async def test_tasks_of_a_method_call_as_its_object(space: Space) -> None:
    relay, counter = space.create(Relay()), space.create(Counter())
    assert await relay.by_children(counter) == [1, 3, 6]
    assert space._activity().reference == space.program


# Cycles.


@in_space
async def test_a_call_back_into_an_object_that_waits_is_refused_where_the_cycle_closes(space: Space) -> None:
    one, two = space.create(Relay()), space.create(Relay())
    with pytest.raises(RemoteException, match=r"^Deadlock: the callee"):
        await one.through(two, one)
    with pytest.raises(RemoteException, match="Deadlock: the callee waits for this very call"):
        await one.touch(one)
    with pytest.raises(RemoteException, match="Deadlock"):
        await one.through_and_wait_late(two, one)
    assert await one.name() == "a relay"
    assert space.is_idle


@in_space
async def test_a_method_that_does_not_wait_can_be_called_back_after_it(space: Space) -> None:
    relay = Relay()
    one, two = space.create(relay), space.create(Relay())
    assert await one.send_only(two, one) == "sent"
    await asyncio.sleep(1)
    assert relay.log == ["sent", "named"]


@in_space
async def test_two_that_wait_for_each_other_for_different_reasons_are_parted_by_a_time_out(space: Space) -> None:
    one, two = space.create(Relay()), space.create(Relay())
    first, second = one.with_time_out.send(two, two), two.with_time_out.send(one, one)
    results = await asyncio.gather(first, second, return_exceptions=True)
    assert all("CallTimeout" in str(result) or "Deadlock" in str(result) for result in results)


# Below the space.


class Recorder:
    """A transport that keeps the messages to send."""

    def __init__(self) -> None:
        self.sent: list[tuple[Addressing, Body]] = []
        self.loop = VirtualLoop()

    def attach(self, receiver: Receiver) -> None:
        pass

    def submit(self, addressing: Addressing, body: Body) -> int:
        self.sent.append((addressing, body))
        return len(self.sent)


def recorded() -> tuple[Recorder, Space]:
    transport = Recorder()
    return transport, Space(transport, transport.loop)


def begin(space: Space, members: tuple[Reference, ...] | None) -> ReplyHandler[Any]:
    replies: ReplyHandler[Any] = ReplyHandler()
    replies.members = members
    space.begin(Request("add", (1,), {}, DEFAULT), replies, GROUP if members is None else None)
    return replies


def reply(member: Reference, value: object = 7) -> ReplyBody:
    return ReplyBody(number=1, member=member, value=value)


def test_objects_are_announced_and_calls_are_addressed() -> None:
    transport, space = recorded()
    proxy = space.create(Counter())
    reference = space.reference_of(proxy)
    begin(space, (THERE,))
    begin(space, (THERE, ELSEWHERE))
    begin(space, None)
    space.destroy(proxy)
    addressed = [addressing for addressing, _ in transport.sent]
    assert [one.operation for one in addressed] == [Operation.APPEAR, *[Operation.CALL] * 3, Operation.VANISH]
    assert {one.caller for one in addressed} == {space.program} == {Reference(0, 1, 1)}
    assert addressed[0].objects == addressed[4].objects == (reference,)
    assert [one.is_direct for one in addressed] == [False, True, False, False, False]
    assert [one.group for one in addressed[1:4]] == [None, None, GROUP]
    body = transport.sent[1][1]
    assert body == CallBody(call=CallId(space.program, 1), name="add", arguments=(1,))


def test_a_reply_is_taken_once_and_from_its_member_only() -> None:
    _, space = recorded()
    replies = begin(space, (THERE, ELSEWHERE))
    with pytest.raises(RemoteError, match="speaks for an object of"):
        space.on_deliver(1, reply(THERE), Origin(3, 1))
    with pytest.raises(RemoteError, match="speaks for an object of"):
        space.on_deliver(1, reply(THERE), Origin(1, 2))
    stranger = Reference(3, 1, 2)
    space.on_deliver(1, reply(stranger), Origin(3, 1))
    space.on_deliver(2, reply(THERE), Origin(1, 1))
    assert replies.arrived == {}
    space.on_deliver(1, reply(THERE, 7), Origin(1, 1))
    space.on_deliver(1, reply(THERE, 8), Origin(1, 1))
    assert replies.arrived[THERE].value == 7
    assert space.late == 3
    space.on_deliver(1, reply(ELSEWHERE), Origin(2, 1))
    assert replies.has_ended
    assert space.under_way == 0


def test_a_call_names_a_caller_of_the_incarnation_that_sent_it() -> None:
    transport, space = recorded()
    space.create(Counter())
    forged = CallBody(call=CallId(THERE, 1), name="add", arguments=(1,))
    with pytest.raises(RemoteError, match="MALFORMED"):
        space.on_deliver(2, forged, Origin(2, 1))
    assert len(transport.sent) == 1
    space.on_deliver(9, forged, Origin(1, 1))
    assert transport.sent[1] == (
        Addressing(caller=Reference(0, 1, 9), objects=(THERE,), is_direct=True),
        ReplyBody(number=1, member=Reference(0, 1, 9), outcome=Outcome.DEAD_OBJECT, text=DEAD),
    )
    with pytest.raises(RemoteError) as caught:
        space.on_deliver(2, NameBody(name="x"), Origin(1, 1))
    assert caught.value.reason is DropReason.UNEXPECTED


@pytest.mark.parametrize(
    ("what", "error"),
    [
        (News(kind=NewsKind.ABORTED, objects=(THERE,)), Aborted),
        (News(kind=NewsKind.UNREACHABLE), Unreachable),
        (News(kind=NewsKind.NO_GROUP, group=GROUP), EmptyGroup),
        (News(kind=NewsKind.REFUSED), Refused),
    ],
)
def test_news_end_a_call_to_a_group(what: News, error: type[Exception]) -> None:
    _, space = recorded()
    replies = begin(space, None)
    space.on_news(1, 1, what)
    assert type(replies.failure) is error
    assert space.under_way == 0
    space.on_news(1, 1, what)


def test_replies_may_come_before_the_members_are_known() -> None:
    _, space = recorded()
    replies = begin(space, None)
    space.on_deliver(1, reply(THERE), Origin(1, 1))
    space.on_deliver(1, reply(Reference(3, 1, 2)), Origin(3, 1))
    assert space.under_way == 1
    space.on_news(1, 1, News(kind=NewsKind.RESOLVED, group=GROUP, objects=(ELSEWHERE, THERE)))
    assert space.under_way == 1
    space.on_news(1, 1, News(kind=NewsKind.UNREACHABLE, objects=(ELSEWHERE,)))
    assert replies.has_ended
    assert [type(answer.error) for answer in replies.in_order()] == [Unreachable, type(None)]


def test_operations_end_with_their_news() -> None:
    transport, space = recorded()
    kinds: list[tuple[News, type[Exception] | None]] = [
        (News(kind=NewsKind.DONE, operation=Operation.CREATE, group=GROUP), None),
        (News(kind=NewsKind.NO_GROUP, group=GROUP), NoSuchGroup),
        (News(kind=NewsKind.REFUSED, operation=Operation.JOIN), Refused),
        (News(kind=NewsKind.UNREACHABLE), Unreachable),
    ]
    for number, (what, error) in enumerate(kinds, start=1):
        call = space.operate(Operation.MEMBERS, group=GROUP)
        space.on_news(1, number, what)
        if error is None:
            assert call.result() is what
        else:
            assert type(call.exception()) is error
    late = space.operate(Operation.MEMBERS, group=GROUP, timeout=1.0)
    cancelled = space.operate(Operation.MEMBERS, group=GROUP)
    cancelled.cancel()
    transport.loop.run_ready(2_000_000_000)
    assert type(late.exception()) is CallTimeout
    assert space.under_way == 0


def test_a_joiner_takes_the_state_over_before_later_calls() -> None:
    transport, space = recorded()
    donor, joiner = Counter(), Counter()
    giver, taker = space.reference_of(space.create(donor)), space.reference_of(space.create(joiner))
    donor.count = 40
    joined = space.joined(joiner, GROUP)
    space.on_news(giver.number, 0, News(kind=NewsKind.STATE_WANTED, objects=(giver, taker), group=GROUP, timestamp=9))
    space.on_news(taker.number, 0, News(kind=NewsKind.JOINED, objects=(taker, giver), group=GROUP, timestamp=9))
    call = CallBody(call=CallId(THERE, 1), name="add", arguments=(2,))
    for reference in (giver, taker):
        space.on_deliver(reference.number, call, Origin(1, 1))
    transport.loop.run_ready(0)
    assert (donor.count, joiner.count, joined.done()) == (42, 0, False)
    state = next(body for _, body in transport.sent if isinstance(body, StateBody))
    assert state.state == 40
    space.on_deliver(taker.number, state, US)
    transport.loop.run_ready(0)
    assert (joiner.count, joined.done()) == (42, True)


def test_a_join_fails_when_its_donor_is_gone_or_has_no_state() -> None:
    transport, space = recorded()
    counter = Counter()
    reference = space.reference_of(space.create(counter))
    ends: list[tuple[News | StateBody, type[Exception]]] = [
        (News(kind=NewsKind.UNREACHABLE, objects=(THERE,)), Unreachable),
        (StateBody(group=GROUP, timestamp=1, state=None, problem="no state"), RemoteException),
        (News(kind=NewsKind.EXPELLED, objects=(reference,), group=GROUP), Unreachable),
    ]
    for timestamp, (end, error) in enumerate(ends):
        joined = space.joined(counter, GROUP)
        news = News(kind=NewsKind.JOINED, objects=(reference, THERE), group=GROUP, timestamp=timestamp)
        space.on_news(reference.number, 0, news)
        transport.loop.run_ready(0)
        if isinstance(end, News):
            space.on_news(reference.number, 0, end)
        else:
            space.on_deliver(reference.number, end, US)
        assert type(joined.exception()) is error
        space.forget_join(reference, GROUP)


def test_states_that_nobody_waits_for_are_bounded() -> None:
    _, space = recorded()
    reference = space.reference_of(space.create(Counter()))
    for timestamp in range(16):
        space.on_deliver(reference.number, StateBody(group=GROUP, timestamp=timestamp, state=1), US)
    with pytest.raises(RemoteError, match="OUT_OF_WINDOW"):
        space.on_deliver(reference.number, StateBody(group=GROUP, timestamp=99, state=1), US)


def test_pointers_that_no_proxy_has_are_refused() -> None:
    _, space = recorded()
    for shape, words in ((200, (1,)), (0, ()), (0, (THERE.word,) * 2), (0, (0,))):
        with pytest.raises(RemoteError, match="MALFORMED"):
            space.bind(Pointer(shape, words, "k"))
