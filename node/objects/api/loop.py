"""An asyncio event loop in virtual time: programs of objects run on it, in the simulator and on real networks alike.

    loop = VirtualLoop()
    loop.create_task(main())
    loop.run_ready(now_ns)                  # everything that can run at this instant
    loop.next_timer_ns()                    # the time of the next call; None: only after an input

It has no thread, socket, process or signal, and no clock but the argument `now_ns`: functions that need the outside
world raise LocalError. Task, Future, Event, Queue, timeout(), gather, wait and TaskGroup work on it as usual. Callbacks
run in the order in which they were scheduled; timers go off in the order of their times, equal ones in the order in
which they were set. asyncio keeps tasks and futures in sets: here their hashes are numbers of the loop, so that sets of
them have the same order in every run. The same calls give the same run.

Exceptions that no code awaits (in a callback, or in a forgotten task) are kept in `problems`.

`run_until_complete` and asyncio.Runner(loop_factory=VirtualLoop) run a program without a host: time then jumps from
timer to timer.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import sys
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any, NoReturn, TypeVar, TypeVarTuple, cast

from node.errors import LocalError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MAX_AT_ONCE = 1_000_000
"""Most callbacks at one instant: a program that never waits for time or for others would block all."""
MAX_PROBLEMS = 100
MOST_CANCELLED = 1000
"""Most cancelled timers that are kept."""
SECOND_NS = 1_000_000_000


class NumberedFuture(asyncio.Future[T]):
    """A future whose place in a set does not depend on its address."""

    def __init__(self, *, loop: VirtualLoop) -> None:
        super().__init__(loop=loop)
        self._number = loop.next_number()

    def __hash__(self) -> int:
        return self._number


class NumberedTask(asyncio.Task[T]):
    """A task whose place in a set does not depend on its address."""

    def __init__(
        self, work: Coroutine[Any, Any, T], *, loop: VirtualLoop, name: str | None, context: Context | None
    ) -> None:
        self._number = loop.next_number()
        super().__init__(work, loop=loop, name=name or f"Task-{self._number}", context=context)

    def __hash__(self) -> int:
        return self._number


def _refuse(*_: object, **__: object) -> NoReturn:
    raise LocalError(
        "a program of objects has no sockets, threads, processes, signals or debug mode: it runs in virtual time, and "
        "reaches others by calls only"
    )


class _NoOutside(asyncio.AbstractEventLoop):
    """The methods of an event loop that need the outside world, or would change the order of callbacks: refused."""

    add_reader = add_writer = remove_reader = remove_writer = add_signal_handler = remove_signal_handler = _refuse
    call_soon_threadsafe = run_forever = run_in_executor = set_default_executor = stop = _refuse
    connect_accepted_socket = connect_read_pipe = connect_write_pipe = create_connection = start_tls = _refuse
    create_datagram_endpoint = create_server = create_unix_connection = create_unix_server = _refuse
    get_task_factory = set_task_factory = getaddrinfo = getnameinfo = subprocess_exec = subprocess_shell = _refuse
    sendfile = sock_sendfile = sock_accept = sock_connect = sock_sendall = sock_sendto = _refuse
    sock_recv = sock_recv_into = sock_recvfrom = sock_recvfrom_into = _refuse


class _Timer(asyncio.TimerHandle):
    """A timer handle that knows whether it is among the set timers (a cancelled one may be)."""

    __slots__ = ("is_set",)
    is_set: bool


class VirtualLoop(_NoOutside):
    """See the module's docstring."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.problems: list[str] = []
        """Exceptions that no code awaits, the first MAX_PROBLEMS of them."""
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[int, int, _Timer]] = []
        self._cancelled = 0
        self._timer_numbers = itertools.count()
        self._numbers = itertools.count(1)
        self._is_running = False
        self._is_closed = False
        self._handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None

    # Calls by the host.

    def run_ready(self, now_ns: int) -> None:
        """Run all callbacks that can run at `now_ns`, and those that they schedule for it, until there is none. Time
        never goes back: an earlier `now_ns` counts as the latest. LocalError when the program never waits."""
        self._check()
        self.now_ns = max(self.now_ns, now_ns)
        with self._running():
            for _ in range(MAX_AT_ONCE):
                if not self._ready:
                    self._ripen()
                    if not self._ready:
                        return
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        raise LocalError(f"the program has run {MAX_AT_ONCE} steps without waiting for anything")

    def next_timer_ns(self) -> int | None:
        """The time at which a callback becomes ready without an input: now, or the time of the next timer; None:
        never."""
        if self._ready:
            return self.now_ns
        self._drop_cancelled()
        return self._timers[0][0] if self._timers else None

    def next_number(self) -> int:
        """A number that is unique on this loop."""
        return next(self._numbers)

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Make this the running loop, also within another one, whose current task (a host's) is suspended."""
        outer = asyncio._get_running_loop()
        resting = None if outer is None else asyncio.current_task(outer)
        if outer is not None and resting is not None:
            asyncio.tasks._leave_task(outer, resting)
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=None, finalizer=self._finalize)
        asyncio._set_running_loop(self)
        self._is_running = True
        try:
            yield
        finally:
            self._is_running = False
            asyncio._set_running_loop(outer)
            sys.set_asyncgen_hooks(*hooks)
            if outer is not None and resting is not None:
                asyncio.tasks._enter_task(outer, resting)

    def _check(self) -> None:
        if self._is_closed:
            raise LocalError("the loop is closed")
        if self._is_running:
            raise LocalError("the loop is running already")

    def _ripen(self) -> None:
        """Make due timers ready, all of one instant before any of them runs."""
        self._drop_cancelled()
        while self._timers and self._timers[0][0] <= self.now_ns:
            handle = heapq.heappop(self._timers)[2]
            handle.is_set = False
            if handle.cancelled():
                self._cancelled -= 1
            else:
                self._ready.append(handle)

    def _drop_cancelled(self) -> None:
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)[2].is_set = False
            self._cancelled -= 1

    def _finalize(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not self._is_closed:
            self.create_task(generator.aclose())

    # Calls by asyncio.

    def time(self) -> float:
        """Seconds; exact to the nanosecond for the first hundred days."""
        return self.now_ns / SECOND_NS

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if self._is_closed:
            raise LocalError("the loop is closed")
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self._call_at(self.now_ns + _ns(delay), callback, args, context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self._call_at(_ns(when), callback, args, context)

    def _call_at(
        self, at_ns: int, callback: Callable[..., object], args: Any, context: Context | None
    ) -> asyncio.TimerHandle:
        if self._is_closed:
            raise LocalError("the loop is closed")
        handle = _Timer(at_ns / SECOND_NS, callback, args, self, context)
        handle.is_set = True
        heapq.heappush(self._timers, (at_ns, next(self._timer_numbers), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Count a cancelled timer. It is dropped when its time comes; if most timers are cancelled, all are dropped at
        once."""
        if isinstance(handle, _Timer) and handle.is_set:
            self._cancelled += 1
        if self._cancelled > MOST_CANCELLED and self._cancelled > len(self._timers) // 2:
            self._timers = [one for one in self._timers if not one[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def create_future(self) -> asyncio.Future[Any]:
        return NumberedFuture(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
        **_: Any,
    ) -> asyncio.Task[T]:
        assert asyncio.iscoroutine(coro)
        return NumberedTask(coro, loop=self, name=name, context=context)

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_closed

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        if enabled:
            _refuse()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._handler is not None:
            self._handler(self, context)
        else:
            self.default_exception_handler(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        text = context.get("message", "a problem")
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(text if error is None else f"{text}: {type(error).__name__}: {error}")

    def set_exception_handler(
        self, handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None
    ) -> None:
        self._handler = handler

    def get_exception_handler(self) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None:
        return self._handler

    # Without a host.

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        """Run in virtual time until `future` is done. Returns its result. LocalError when nothing can make it done."""
        self._check()
        awaited = asyncio.ensure_future(cast("Awaitable[T]", future), loop=self)
        while True:
            self.run_ready(self.now_ns)
            if awaited.done():
                return awaited.result()
            next_ns = self.next_timer_ns()
            if next_ns is None:
                raise LocalError("the program waits for something that never comes: nothing is ready, no timer is set")
            self.now_ns = next_ns

    def close(self) -> None:
        """Close the loop: nothing runs on it any more."""
        if self._is_running:
            raise LocalError("a running loop cannot be closed")
        self._is_closed = True
        self._ready.clear()
        self._timers.clear()

    async def shutdown_asyncgens(self) -> None:
        """Nothing to do: generators are closed when they are dropped."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Nothing to do: there is no executor."""


def _ns(seconds: float) -> int:
    return round(seconds * SECOND_NS)
