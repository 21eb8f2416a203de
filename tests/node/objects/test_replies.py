"""Replies of several members: first, matched, in order of arrival, the first n, through a handler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from node.errors import LocalError
from node.objects.addresses import Reference
from node.objects.api.errors import (
    Aborted,
    CallTimeout,
    DeadObject,
    EmptyGroup,
    NoReply,
    RemoteException,
    TooFewMembers,
    Unreachable,
)
from node.objects.api.loop import VirtualLoop
from node.objects.api.replies import Answer, Awaited, Replies, ReplyHandler, every_answer, every_value, first, first_of

A, B, C = (Reference(member, 1, 2) for member in (1, 2, 3))
WRONG = RemoteException("ValueError", "no")
GONE = Unreachable("gone")


def awaited(judge: Callable[[Replies[Any]], Any], *members: Reference) -> Awaited[Any, Any]:
    replies: Awaited[Any, Any] = Awaited(judge, VirtualLoop())
    replies.members = members or None
    return replies


def feed(replies: Replies[Any], *answers: tuple[Reference, object]) -> None:
    for member, given in answers:
        if replies.wants(member):
            is_error = isinstance(given, RemoteException | NoReply)
            replies.take(Answer(member, None if is_error else given, given if is_error else None))  # type: ignore[arg-type]


def outcome(replies: Awaited[Any, Any]) -> object:
    if not replies.call.done():
        return "pending"
    return replies.call.exception() or replies.call.result()


@pytest.mark.parametrize(
    ("judge", "answers", "expected"),
    [
        (first, [], "pending"),
        (first, [(B, 2)], 2),
        (first, [(B, WRONG), (A, 1)], WRONG),
        (first, [(B, GONE), (A, 1)], 1),
        (first, [(B, GONE), (A, GONE)], "pending"),
        (first, [(B, GONE), (A, DeadObject()), (C, GONE)], GONE),
        (every_value, [(C, 3), (A, 1)], "pending"),
        (every_value, [(C, 3), (A, 1), (B, 2)], [1, 2, 3]),
        (every_value, [(C, GONE), (A, 1), (B, WRONG)], WRONG),
        (every_answer, [(C, 3), (B, WRONG), (A, GONE)], [Answer(A, error=GONE), Answer(B, error=WRONG), Answer(C, 3)]),
        (first_of(2), [(C, 3)], "pending"),
        (first_of(2), [(C, 3), (A, 1)], [3, 1]),
        (first_of(2), [(C, 3), (A, GONE), (B, 2)], [3, 2]),
        (first_of(2), [(C, 3), (A, GONE), (B, GONE)], GONE),
        (first_of(2), [(C, WRONG), (A, 1)], WRONG),
    ],
)
def test_what_a_caller_wants_of_three(judge: Any, answers: Any, expected: object) -> None:
    replies = awaited(judge, A, B, C)
    feed(replies, *answers)
    assert outcome(replies) == expected
    assert replies.has_ended == (expected != "pending")


@pytest.mark.parametrize(("members", "there"), [((A, B), "2 members"), ((A,), "1 member")])
def test_more_than_there_are_never_come(members: tuple[Reference, ...], there: str) -> None:
    sentence = f"the first 4 replies were asked for, but the call has {there}: ask for fewer"
    for answer in (1, WRONG, GONE):
        replies = awaited(first_of(4), *members)
        feed(replies, (A, answer))
        assert repr(replies.call.exception()) == repr(TooFewMembers(sentence)), "it is known with the first answer"
    unknown: Any = awaited(first_of(4), A)
    unknown.members = None
    unknown.resolve(members)
    assert isinstance(unknown.call.exception(), TooFewMembers)


@pytest.mark.parametrize("judge", [first, every_value, every_answer, first_of(2)])
def test_what_fails_as_a_whole_fails_for_all(judge: Any) -> None:
    for members in ((A, B, C), ()):
        replies = awaited(judge, *members)
        error = Aborted("not all")
        replies.fail(error)
        assert outcome(replies) is error
        feed(replies, (A, 1))
        replies.fail(EmptyGroup())
        assert outcome(replies) is error


@pytest.mark.parametrize("judge", [first, every_value, every_answer, first_of(1)])
def test_when_the_time_is_up(judge: Any) -> None:
    known, unknown = awaited(judge, A, B), awaited(judge)
    feed(known, (B, GONE))
    for replies in (known, unknown):
        replies.expire()
    assert isinstance(unknown.call.exception(), CallTimeout)
    if judge is every_answer:
        assert [type(answer.error) for answer in known.call.result()] == [CallTimeout, Unreachable]
    else:
        assert isinstance(known.call.exception(), CallTimeout)


def test_members_are_learnt_once_and_strangers_forgotten() -> None:
    replies = awaited(every_value)
    feed(replies, (C, 3), (A, 1))
    replies.resolve((A, B))
    assert set(replies.arrived) == {A}
    with pytest.raises(LocalError, match="known already"):
        replies.resolve((A,))
    assert not replies.wants(C)
    feed(replies, (A, 9), (B, 2))
    assert outcome(replies) == [1, 2]


class Recorded:
    """An owner that records calls."""

    def __init__(self) -> None:
        self.ended = self.waited = 0

    def end(self) -> None:
        self.ended += 1

    def wait(self) -> None:
        self.waited += 1


def test_an_owner_hears_once_that_it_is_over_and_that_somebody_waits() -> None:
    replies, owner = awaited(first, A), Recorded()
    replies.owner = owner
    feed(replies, (A, 1))
    replies.call.add_done_callback(print)
    assert (owner.ended, owner.waited) == (1, 0)
    replies, owner = awaited(first, A), Recorded()
    replies.owner = owner
    replies.call.add_done_callback(lambda _: None)
    replies.call.cancel()
    replies.call.cancel()
    assert (owner.ended, owner.waited) == (1, 1)


def test_an_answer_is_its_value_or_raises() -> None:
    assert Answer(A, 1).value == 1
    with pytest.raises(RemoteException):
        _ = Answer(A, error=WRONG).value


def with_handler(
    steps: Callable[[ReplyHandler[int]], Any], *members: Reference
) -> tuple[ReplyHandler[int], asyncio.Task[Any], VirtualLoop]:
    loop = VirtualLoop()
    handler: ReplyHandler[int] = ReplyHandler()
    handler.members = members or None
    task = loop.create_task(steps(handler))
    loop.run_ready(0)
    return handler, task, loop


async def drain(handler: ReplyHandler[int]) -> list[object]:
    found: list[object] = []
    while await handler.remain():
        try:
            found.append(await handler.receive())
        except (RemoteException, NoReply) as error:
            found.append(type(error))
    return found


async def all_values(handler: ReplyHandler[int]) -> list[object]:
    return [answer.value async for answer in handler]


async def first_value(handler: ReplyHandler[int]) -> list[object]:
    async for answer in handler:
        return [answer.value]
    raise AssertionError("there was none")


async def three(handler: ReplyHandler[int]) -> list[object]:
    found = await asyncio.gather(*(handler.receive() for _ in range(3)), return_exceptions=True)
    return [type(one) if isinstance(one, Exception) else one for one in found]


@pytest.mark.parametrize(("steps", "expected"), [(all_values, [2, 1]), (first_value, [2]), (three, [2, 1, LocalError])])
def test_a_handler_is_iterated_need_not_be_emptied_and_has_no_more_than_all(
    steps: Callable[[ReplyHandler[int]], Any], expected: list[object]
) -> None:
    handler, task, loop = with_handler(steps, A, B)
    feed(handler, (B, 2), (A, 1))
    loop.run_ready(0)
    assert task.result() == expected


def test_a_handler_gives_what_comes_in_order_of_arrival_or_says_why_nothing_comes() -> None:
    handler, task, loop = with_handler(drain)
    feed(handler, (C, 3), (A, WRONG))
    loop.run_ready(0)
    assert not task.done()
    handler.resolve((A, B, C))
    loop.run_ready(0)
    handler.lose((A, B), GONE)
    loop.run_ready(0)
    assert task.result() == [3, RemoteException, Unreachable]
    handler, task, loop = with_handler(drain)
    handler.fail(EmptyGroup("nobody"))
    loop.run_ready(0)
    assert isinstance(task.exception(), EmptyGroup)
