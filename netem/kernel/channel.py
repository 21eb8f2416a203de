"""Client side of the channels: requests to the supervisor over a Unix socket, to the guest over its serial line
(`netem.kernel.framing`)."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar, TypeAlias

from netem.kernel.framing import (
    ACKNOWLEDGED,
    LENGTH,
    LINE_PIECE,
    ChannelClosedError,
    checked_length,
    pack,
    receive_exactly,
    receive_frame,
    send_frame,
    unpack,
)

_Answer: TypeAlias = tuple[dict[str, Any], list[int]]
_Job: TypeAlias = Callable[[], _Answer]


class _Exchange:
    """Carries out one exchange at a time on a thread of its own, for callers in any thread.

    So Ctrl-C, which interrupts the waiting caller, leaves no half-read answer: the exchange goes on to its end, and the
    next request (an orderly close) finds the channel in step.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[_Answer], _Job] | None] = queue.SimpleQueue()
        self._open = True
        self._lock = threading.Lock()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def run(self, job: _Job) -> _Answer:
        """Run a job and wait for its answer. Raises the job's exception, or ChannelClosedError after `end`."""
        answer: Future[_Answer] = Future()
        with self._lock:
            if not self._open:
                raise ChannelClosedError("it was closed on this side")
            self._jobs.put((answer, job))
        try:
            return answer.result()
        except BaseException:
            answer.add_done_callback(_discard)
            raise

    def end(self) -> None:
        """Accept no more jobs; waiting ones are still run."""
        with self._lock:
            self._open = False
            self._jobs.put(None)

    def _work(self) -> None:
        while (next_job := self._jobs.get()) is not None:
            answer, job = next_job
            try:
                answer.set_result(job())
            except OSError as error:  # a socket that was closed meanwhile raises any of them
                answer.set_exception(error if self._open else ChannelClosedError("it was closed on this side"))
            except BaseException as error:
                answer.set_exception(error)


def _discard(answer: Future[_Answer]) -> None:
    """Close the descriptors of an answer for which no caller waits any more."""
    if answer.exception() is None:
        for descriptor in answer.result()[1]:
            os.close(descriptor)


class _Client:
    """Client of a channel. Any thread may send a request; one is in progress at a time."""

    name: ClassVar[str]

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._exchange = _Exchange(self.name)

    def close(self) -> None:
        """End it; an exchange that is under way ends with ChannelClosedError."""
        self._exchange.end()
        with contextlib.suppress(OSError):  # the other side may have gone first
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


class Channel(_Client):
    """Client over a Unix socket."""

    name = "supervisor channel"

    def request(self, do: str, descriptors: Sequence[int] = (), **arguments: Any) -> _Answer:
        """Send a request; wait for the answer and its descriptors. Raises ChannelClosedError, TimeoutError."""
        held = [os.dup(descriptor) for descriptor in descriptors]  # the caller may be gone before they are sent
        return self._exchange.run(lambda: self._request({"do": do, **arguments}, held))

    def _request(self, values: dict[str, Any], descriptors: Sequence[int]) -> _Answer:
        try:
            send_frame(self._connection, values, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return receive_frame(self._connection)


class LineChannel(_Client):
    """Client over the guest's serial line, without descriptors."""

    name = "guest channel"

    def await_hello(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the guest's first frame; nothing may be sent before it. Raises ChannelClosedError, TimeoutError."""
        self._connection.settimeout(timeout_s)
        return self._receive()

    def set_timeout(self, timeout_s: float) -> None:
        self._connection.settimeout(timeout_s)

    def request(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send a request and wait for the answer. Raises ChannelClosedError, TimeoutError."""
        frame = pack({"do": do, **arguments})
        return self._exchange.run(lambda: self._request(frame))[0]

    def _request(self, frame: bytes) -> _Answer:
        try:
            for start in range(0, len(frame), LINE_PIECE):
                self._connection.sendall(frame[start : start + LINE_PIECE])
                if receive_exactly(self._connection, 1) != ACKNOWLEDGED:
                    raise ChannelClosedError("the guest's line is out of step")
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosedError(str(error)) from error
        return self._receive(), []

    def _receive(self) -> dict[str, Any]:
        try:
            head = receive_exactly(self._connection, LENGTH.size)
            return unpack(receive_exactly(self._connection, checked_length(head)))
        except ConnectionResetError as error:
            raise ChannelClosedError(str(error)) from error
