"""An object in its space: it handles its deliveries one after another, in the order of delivery.

A waiting method blocks its object: the next call begins when the method has returned, so no later call overtakes it.
(Reentrancy, a call back into a waiting object, was rejected: it would run ahead of calls delivered before it, and
between two lines of a method that does not expect it.) A call back that could never begin is refused: each call names
the calls that it comes from, and one that comes from a call that our running method waits for gets Deadlock, at once or
when the method begins to wait. So a cycle of calls ends with an exception where it closes. Two objects that call each
other for different reasons at one time are no such cycle; there time-outs help.

A method that only sends and goes on (`send`) does not wait: calls back stay in the queue and run after it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import Context, ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from node.errors import DropReason, RemoteError
from node.objects.addresses import GroupId, Reference
from node.objects.api.calls import MAX_CHAIN, MAX_TEXT, CallBody, CallId, Outcome, ReplyBody, StateBody
from node.objects.api.errors import BadArguments, NotAValue, RemoteException, Unreachable
from node.objects.api.export import Method, Remote


@dataclass(frozen=True, slots=True)
class StateWanted:
    """News to a donor: hand over your state now, to `joiner`."""

    group: GroupId
    timestamp: int
    joiner: Reference


@dataclass(frozen=True, slots=True)
class StateComes:
    """News to a joiner: go on when the state of `donor` is here; None: your own state is the group's."""

    group: GroupId
    timestamp: int
    donor: Reference | None


MAX_STATES = 16
"""Most states that may come before the news of their joins."""

Item = CallBody | StateWanted | StateComes


class Activity:
    """The work of an object on a call, or of the program of a space."""

    __slots__ = ("chain", "home", "reference")

    def __init__(self, home: object, reference: Reference, chain: tuple[CallId, ...] = ()) -> None:
        self.home = home
        self.reference = reference
        self.chain = tuple(call for call in chain if call.caller != reference)[1 - MAX_CHAIN :]
        """The calls that this work comes from, except those of the object itself."""


ACTIVITY: ContextVar[Activity | None] = ContextVar("activity", default=None)
"""The current work. Tasks that a method starts inherit it, so their calls are its object's calls."""


class HostingSpace(Protocol):
    """The interface of a space for its residents."""

    loop: asyncio.AbstractEventLoop
    context: Context

    def reply(self, resident: Resident, call: CallBody, reply: ReplyBody) -> None:
        """Send `reply` to the caller of `call`."""

    def hand_over(self, resident: Resident, joiner: Reference, state: StateBody) -> None:
        """Send `state` to a joiner."""

    def is_awaited_in(self, call: CallId, activity: Activity) -> bool:
        """Whether `call`, made in `activity`, is under way and awaited."""


class Resident:
    """One object with its queue."""

    def __init__(self, own: Remote, reference: Reference, space: HostingSpace) -> None:
        self.own = own
        self.reference = reference
        self.activity: Activity | None = None
        """The current work of the object; None: it is free."""
        self._is_gone = False
        self._is_busy = False
        self._space = space
        self._queue: deque[Item] = deque()
        self._call: CallBody | None = None
        self._task: asyncio.Task[None] | None = None
        self._awaits: StateComes | None = None
        self._states: dict[tuple[GroupId, int], StateBody] = {}
        self._joins: dict[GroupId, asyncio.Future[None]] = {}
        self._expulsions: dict[GroupId, asyncio.Future[None]] = {}

    @property
    def waiting(self) -> int:
        """Number of items in the queue."""
        return len(self._queue)

    def take(self, item: Item) -> None:
        """Take an item, in the order of delivery. Nothing of the object runs before the loop's next turn."""
        if isinstance(item, CallBody) and self._closes_cycle(item):
            self._refuse(item, Outcome.DEADLOCK, "the callee waits for this very call")
            return
        self._queue.append(item)
        self._go_on()

    def break_cycles(self) -> None:
        """Our running method has begun to wait: refuse queued calls that come from the call that it waits for."""
        refused = [item for item in self._queue if isinstance(item, CallBody) and self._closes_cycle(item)]
        for call in refused:
            self._queue.remove(call)
            self._refuse(call, Outcome.DEADLOCK, "the callee waits for this very call")

    def take_state(self, state: StateBody) -> None:
        """Take a donor's state. It may come before our turn to join, and then waits for it."""
        if len(self._states) >= MAX_STATES:
            raise RemoteError(DropReason.OUT_OF_WINDOW, f"{len(self._states)} states wait for their joins already")
        self._states[state.group, state.timestamp] = state
        awaited = self._awaits
        if awaited is not None and (awaited.group, awaited.timestamp) == (state.group, state.timestamp):
            self._awaits = None
            self._adopt(awaited)
            self._finish()

    def lose_donor(self, donors: tuple[Reference, ...]) -> None:
        """If we wait for a state from one of these donors, it will not come: the join has failed."""
        awaited = self._awaits
        if awaited is not None and awaited.donor in donors:
            self._awaits = None
            error = Unreachable("the member that was to hand its state over has ended")
            self._settle(self.joined(awaited.group), error)
            self._finish()

    def joined(self, group: GroupId) -> asyncio.Future[None]:
        """Done when the object has become a member, its state included."""
        return self._joins.setdefault(group, self._space.loop.create_future())

    def expelled(self, group: GroupId) -> asyncio.Future[None]:
        """Done when the object learns that the group goes on without it."""
        return self._expulsions.setdefault(group, self._space.loop.create_future())

    def expel(self, group: GroupId) -> None:
        """The group goes on without the object. If it waits for the state of a join, that has failed."""
        awaited = self._awaits
        if awaited is not None and awaited.group == group and awaited.donor is not None:
            self.lose_donor((awaited.donor,))
        self.left(group)
        expelled = self._expulsions.pop(group, None)
        if expelled is not None and not expelled.done():
            expelled.set_result(None)

    def left(self, group: GroupId) -> None:
        """The object is no member (any more): a new join waits again."""
        self._joins.pop(group, None)

    def vanish(self) -> None:
        """The object is destroyed. Queued calls, and a running one, end with DeadObject; a method that destroys its own
        object ends normally."""
        self._is_gone = True
        for item in self._queue:
            if isinstance(item, CallBody):
                self._refuse(item, Outcome.DEAD_OBJECT, "the object was destroyed before the call's turn came")
        self._queue.clear()
        if self._call is not None and ACTIVITY.get() is not self.activity:
            self._refuse(self._call, Outcome.DEAD_OBJECT, "the object was destroyed before the method had ended")
            self._call = None
            if self._task is not None:
                self._task.cancel()

    def _closes_cycle(self, call: CallBody) -> bool:
        activity = self.activity
        return activity is not None and any(
            link.caller == self.reference and self._space.is_awaited_in(link, activity) for link in call.chain
        )

    def _refuse(self, call: CallBody, outcome: Outcome, text: str) -> None:
        reply = ReplyBody(number=call.call.number, member=self.reference, outcome=outcome, text=text[:MAX_TEXT])
        self._space.reply(self, call, reply)

    def _go_on(self) -> None:
        """Take up the next item, if there is one and the object is free. Its code runs in the loop's next turn."""
        if self._is_busy or not self._queue or self._is_gone:
            return
        self._is_busy = True
        item = self._queue.popleft()
        if not isinstance(item, CallBody):
            self._space.loop.call_soon(self._change, item, context=self._space.context)
            return
        method = self._method(item)
        if method is None:
            self._finish()
            return
        self.activity = Activity(self._space, self.reference, item.chain)
        self._call = item
        context = self._space.context.copy()
        context.run(ACTIVITY.set, self.activity)
        if method.is_async:
            self._task = self._space.loop.create_task(self._serve(item, method), context=context)
        else:
            self._space.loop.call_soon(self._run, item, method, context=context)

    def _finish(self) -> None:
        self._is_busy = False
        self.activity = self._task = self._call = None
        self._go_on()

    def _change(self, item: StateWanted | StateComes) -> None:
        if isinstance(item, StateComes):
            self._join(item)
        else:
            self._space.hand_over(self, item.joiner, self._state(item))
            self._finish()

    def _method(self, call: CallBody) -> Method[..., object] | None:
        """The method of `call`; None when it cannot be run, which the caller is told."""
        method = type(self.own).exported.get(call.name)
        if method is None:
            text = f"{type(self.own).__name__} exports no method {call.name!r}"
            self._refuse(call, Outcome.NO_SUCH_METHOD, text)
            return None
        try:
            method.checks.check(call.arguments, call.keywords)
        except BadArguments as error:
            self._refuse(call, Outcome.BAD_ARGUMENTS, str(error))
            return None
        return method

    async def _serve(self, call: CallBody, method: Method[..., Any]) -> None:
        try:
            result = await method.function(self.own, *call.arguments, **call.keywords)
        except (Exception, asyncio.CancelledError) as error:
            self._answer(call, error)
        else:
            self._answer(call, None, result)
        self._finish()

    def _run(self, call: CallBody, method: Method[..., Any]) -> None:
        if self._call is not call:  # the object was destroyed before
            return
        try:
            result = method.function(self.own, *call.arguments, **call.keywords)
        except (Exception, asyncio.CancelledError) as error:
            self._answer(call, error)
        else:
            self._answer(call, None, result)
        self._finish()

    def _answer(self, call: CallBody, error: BaseException | None, result: object = None) -> None:
        if self._call is not call:  # refused when the object was destroyed
            return
        number, member = call.call.number, self.reference
        if error is None:
            try:
                self._space.reply(self, call, ReplyBody(number=number, member=member, value=result))
            except NotAValue as problem:
                error = problem
            else:
                return
        self._space.reply(self, call, _exception(number, member, error))

    def _state(self, wanted: StateWanted) -> StateBody:
        try:
            return StateBody(group=wanted.group, timestamp=wanted.timestamp, state=self.own.get_state())
        except Exception as error:
            problem = _sayable(str(error))
            return StateBody(group=wanted.group, timestamp=wanted.timestamp, state=None, problem=problem)

    def _join(self, comes: StateComes) -> None:
        if comes.donor is not None and (comes.group, comes.timestamp) not in self._states:
            self._awaits = comes
            return
        self._adopt(comes)
        self._finish()

    def _adopt(self, comes: StateComes) -> None:
        joined = self.joined(comes.group)
        state = self._states.pop((comes.group, comes.timestamp), None)
        if state is None:
            self._settle(joined, None)
        elif state.problem:
            self._settle(joined, RemoteException("LocalError", state.problem))
        else:
            try:
                self.own.set_state(state.state)
            except Exception as error:
                self._settle(joined, RemoteException(type(error).__name__, _sayable(str(error))))
            else:
                self._settle(joined, None)

    @staticmethod
    def _settle(joined: asyncio.Future[None], error: Exception | None) -> None:
        if joined.done():
            return
        if error is None:
            joined.set_result(None)
        else:
            joined.set_exception(error)


def _exception(number: int, member: Reference, error: BaseException) -> ReplyBody:
    """The reply for an exception. A RemoteException that the method did not catch keeps its name and text."""
    if isinstance(error, RemoteException):
        name, text = error.type_name, error.text
    else:
        name, text = type(error).__name__, str(error)
    outcome = Outcome.EXCEPTION
    return ReplyBody(number=number, member=member, outcome=outcome, type_name=_sayable(name), text=_sayable(text))


def _sayable(text: str) -> str:
    """The part of a text that can travel (a lone surrogate cannot)."""
    return text[:MAX_TEXT].encode(errors="replace").decode()
