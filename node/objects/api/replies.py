"""Replies in the form that the caller chooses (paper 004, 2.4): the first one, a list matched to the members, in order
of arrival, the first n, or through a reply handler.

Every member of a call gives exactly one answer: a value, the exception of its method, or a NoReply with the reason why
there is none (dead, unreachable, too late). A call as a whole fails when it was aborted or its group has no member.
Exceptions of methods are replies (the first reply may be one); a NoReply is not: a caller that wants
the first reply gets a NoReply only when all members gave one.

The members of a group are known when the call has its place in the order, which may be after the first replies have
come: `resolve` sets them. Until then answers of any object are kept, and nothing is concluded from their number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar

from node.errors import LocalError
from node.objects.addresses import MAX_ADDRESSED, Reference
from node.objects.api.errors import CallError, CallTimeout, DeadObject, EmptyGroup, NoReply, TooFewMembers

R = TypeVar("R")
V = TypeVar("V")


class Owner(Protocol):
    """The owner of a Call or of Replies, which is notified of their events."""

    def end(self) -> None:
        """The result is there, or no longer wanted."""

    def wait(self) -> None:
        """A caller begins to wait for the result."""


class Call(asyncio.Future[V]):
    """A call that is under way. It can be awaited several times for its result. `cancel` forgets the reply, not the
    call, which the callee may still carry out.
    """

    def __init__(self, owner: Owner, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._owner = owner
        number = getattr(loop, "next_number", None)
        self._hash: int = id(self) >> 4 if number is None else number()

    def __hash__(self) -> int:
        """A hash that is the same in every run on a virtual loop: asyncio keeps futures in sets."""
        return self._hash

    def cancel(self, msg: Any = None) -> bool:
        is_cancelled = super().cancel(msg)
        if is_cancelled:
            self._owner.end()
        return is_cancelled

    def add_done_callback(self, fn: Callable[[Self], object], /, *, context: Context | None = None) -> None:
        if not self.done():
            self._owner.wait()
        super().add_done_callback(fn, context=context)


@dataclass(frozen=True, slots=True)
class Answer(Generic[R]):
    """The answer of one member to a call: `result`, or an `error`, the reason why there is no value."""

    member: Reference
    result: R | None = None
    error: CallError | None = None

    @property
    def value(self) -> R:
        """The reply; raises `error` when there is none."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # without an error it is the method's result


class Replies(Generic[R]):
    """The answers to one call in order of arrival. `members` None: not known yet.

    Subclasses handle them in `_changed`, and call `end` when they want no more.
    """

    def __init__(self) -> None:
        self.members: tuple[Reference, ...] | None = None
        self.arrived: dict[Reference, Answer[R]] = {}
        """The answers by member, in order of arrival."""
        self.failure: CallError | None = None
        self.has_ended = False
        """Whether no further answer is taken."""
        self.owner: Owner | None = None
        """The call in its space, which owns these."""
        self.on_dead: Callable[[Reference], None] | None = None
        """Called with each member whose answer is DeadObject."""

    @property
    def is_complete(self) -> bool:
        """Whether every member has answered, or the call has failed."""
        return self.failure is not None or (self.members is not None and len(self.arrived) == len(self.members))

    def wants(self, member: Reference) -> bool:
        """Whether an answer of `member` would be taken: it is a member of the call, as far as is known, and has not
        answered."""
        if self.has_ended or member in self.arrived:
            return False
        return len(self.arrived) < MAX_ADDRESSED if self.members is None else member in self.members

    def take(self, answer: Answer[R]) -> None:
        """Take an answer of a member that `wants` accepts."""
        self.arrived[answer.member] = answer
        if self.on_dead is not None and isinstance(answer.error, DeadObject):
            self.on_dead(answer.member)
        self._note()

    def resolve(self, members: tuple[Reference, ...]) -> None:
        """Set the members of the call. LocalError when they were known already."""
        if self.members is not None:
            raise LocalError("the members of this call are known already")
        self.members = members
        self.arrived = {member: answer for member, answer in self.arrived.items() if member in members}
        if not self.has_ended:
            self._note()

    def lose(self, members: Iterable[Reference], error: NoReply) -> None:
        """Set `error` as the answer of those of `members` that have not answered."""
        for member in members:
            if self.wants(member):
                self.take(Answer(member, error=error))

    def fail(self, error: CallError) -> None:
        """The call as a whole fails."""
        if not self.has_ended and not self.is_complete:
            self.failure = error
            self._note()

    def expire(self) -> None:
        """The time-out has passed: missing answers become CallTimeout."""
        error = CallTimeout("the reply did not come in time")
        if self.members is None:
            self.fail(error)
        else:
            self.lose(self.members, error)

    def end(self) -> None:
        """End the call: no further answer is wanted."""
        if not self.has_ended:
            self.has_ended = True
            if self.owner is not None:
                self.owner.end()

    def wait(self) -> None:
        """A caller begins to wait."""
        if self.owner is not None:
            self.owner.wait()

    def _note(self) -> None:
        self._changed()
        if self.is_complete:
            self.end()

    def _changed(self) -> None:
        raise NotImplementedError

    def in_order(self) -> list[Answer[R]]:
        """One answer of each member, in the order of the members; raises `failure` if the call as a whole failed."""
        if self.failure is not None:
            raise self.failure
        assert self.members is not None
        return [self.arrived[member] for member in self.members]


class _Pending:
    """The result of a judge that waits for more answers."""


_PENDING = _Pending()


Judge: TypeAlias = Callable[[Replies[R]], V | _Pending]


class Awaited(Replies[R], Generic[R, V]):
    """Replies from which `judge` makes the result of `call`, unless it returns _PENDING; its CallError is the
    call's."""

    def __init__(self, judge: Judge[R, V], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._judge = judge
        self.call: Call[V] = Call(self, loop=loop)

    def _changed(self) -> None:
        if self.call.done():
            return
        try:
            result = self._judge(self)
        except CallError as error:
            self.call.set_exception(error)
        else:
            if isinstance(result, _Pending):
                return
            self.call.set_result(result)
        self.end()


def first(replies: Replies[R]) -> R | _Pending:
    """The first reply; a NoReply only when no member gives a reply."""
    if replies.failure is not None:
        raise replies.failure
    for answer in replies.arrived.values():
        if not isinstance(answer.error, NoReply):
            return answer.value
    return _nobody(replies) if replies.is_complete else _PENDING


def every_value(replies: Replies[R]) -> list[R] | _Pending:
    """The values of all members, in their order; raises the error of the first member that has one."""
    return [answer.value for answer in replies.in_order()] if replies.is_complete else _PENDING


def every_answer(replies: Replies[R]) -> list[Answer[R]] | _Pending:
    """The answers of all members, in their order."""
    return replies.in_order() if replies.is_complete else _PENDING


def first_of(count: int) -> Judge[R, list[R]]:
    """The first `count` replies, in order of arrival; raises a NoReply when fewer come, and TooFewMembers, without
    waiting, when there are fewer members."""

    def judge(replies: Replies[R]) -> list[R] | _Pending:
        if replies.failure is not None:
            raise replies.failure
        if replies.members is not None and len(replies.members) < count:
            there = f"{len(replies.members)} member{'s' if len(replies.members) != 1 else ''}"
            raise TooFewMembers(f"the first {count} replies were asked for, but the call has {there}: ask for fewer")
        came = [answer for answer in replies.arrived.values() if not isinstance(answer.error, NoReply)]
        if len(came) >= count:
            return [answer.value for answer in came[:count]]
        return _nobody(replies) if replies.is_complete else _PENDING

    return judge


def _nobody(replies: Replies[Any]) -> Any:
    """Raise for too few replies: the error of the last member that gave no reply."""
    reasons = [answer.error for answer in replies.arrived.values() if isinstance(answer.error, NoReply)]
    raise reasons[-1] if reasons else EmptyGroup("the call has no member")


class ReplyHandler(Replies[R]):
    """Replies of a group of any size, to be fetched in order of arrival (paper 004, 2.4):

        while await handler.remain():
            value = await handler.receive()

    or `async for answer in handler`. Not all need be fetched.
    """

    def __init__(self) -> None:
        super().__init__()
        self._fetched: set[Reference] = set()
        self._news = asyncio.Event()

    async def receive(self) -> R:
        """The next reply. Raises the exception of a reply that is one, LocalError when none remains."""
        return (await self.answer()).value

    async def answer(self) -> Answer[R]:
        """The next answer, with its member. LocalError when none remains."""
        while (answer := self._next()) is None:
            if not await self.remain():
                raise LocalError("no reply remains: ask `remain` before `receive`")
            if self._next() is None:
                await self._change()
        self._fetched.add(answer.member)
        return answer

    async def remain(self) -> bool:
        """Whether there is, or will be, an answer that was not fetched. Raises `failure` if the call as a whole
        failed."""
        while self._next() is None and not self.is_complete and self.members is None:
            await self._change()
        if self.failure is not None and self._next() is None:
            raise self.failure
        return self._next() is not None or (self.members is not None and len(self._fetched) < len(self.members))

    def __aiter__(self) -> ReplyHandler[R]:
        return self

    async def __anext__(self) -> Answer[R]:
        if not await self.remain():
            raise StopAsyncIteration
        return await self.answer()

    def _next(self) -> Answer[R] | None:
        return next((answer for member, answer in self.arrived.items() if member not in self._fetched), None)

    async def _change(self) -> None:
        self.wait()
        self._news.clear()
        await self._news.wait()

    def _changed(self) -> None:
        self._news.set()
