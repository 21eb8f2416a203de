"""Commands inside nodes, on the side of the client: poll, wait, signal, output; and a command on the client's terminal,
which is raw meanwhile and passes its size on."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import socket
import struct
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import IO, Any

from netem.errors import FabricError
from netem.kernel.framing import readable
from testbed.live import rpc

CHUNK_BYTES = 1 << 16
_SIZE = struct.Struct("HHHH")
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)
"""Signals that are passed to a command without a terminal of its own."""
KILL_CODE = -int(signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A command that has ended. `code` is negative when a signal ended it."""

    argv: tuple[str, ...]
    code: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Standard output as text; bytes that are not UTF-8 become U+FFFD."""
        return self.stdout.decode("utf-8", errors="replace")


class Running:
    """A command in a node. It is killed at the end of its `with` block, by `close`, or when the client ends."""

    def __init__(
        self,
        connection: socket.socket,
        argv: Sequence[str],
        *,
        stdin: IO[bytes] | None = None,
        stdout: IO[bytes] | None = None,
        stderr: IO[bytes] | None = None,
    ) -> None:
        self.argv = tuple(argv)
        self.stdin = stdin
        """Standard input of the command, if it is a pipe."""
        self.stdout = stdout
        self.stderr = stderr
        self._connection = connection
        self._code: int | None = None
        self._reading = threading.Lock()
        self._sending = threading.Lock()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def poll(self) -> int | None:
        """Exit code after its end (negative: the signal), else None. Raises FabricError when its testbed is gone."""
        return self._take(0.0)

    def wait(self, timeout_s: float | None = None) -> int:
        """Its exit code. Raises TimeoutError, or FabricError when its testbed is gone."""
        code = self._take(timeout_s)
        if code is None:
            raise TimeoutError(f"{self.argv[0]} is still running after {timeout_s} s")
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command and its process group; a command that has ended gets none."""
        self._say({"signal": int(number)})

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def resize(self, rows: int, columns: int) -> None:
        """Tell the command the new size of its terminal."""
        self._say({"resize": [rows, columns]})

    def close(self) -> None:
        """Kill it if it still runs, wait for its end, and close its pipes."""
        try:
            if self._code is None:
                self.kill()
                self.wait()
        except FabricError:
            self._code = KILL_CODE  # it was killed with its testbed
        finally:
            self._connection.close()
            for pipe in (self.stdin, self.stdout, self.stderr):
                if pipe is not None:
                    _close_quietly(pipe)

    def fileno(self) -> int:
        """A descriptor that is readable after its end."""
        return self._connection.fileno()

    def _say(self, word: dict[str, Any]) -> None:
        with self._sending:
            if self._code is None:
                rpc.tell(self._connection, word)

    def _take(self, timeout_s: float | None) -> int | None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._reading:
            while self._code is None:
                left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not readable([self._connection], left_s):
                    return None
                self._code = int(rpc.raise_refusal(rpc.hear(self._connection))["ended"])
            return self._code


def _close_quietly(pipe: IO[bytes]) -> None:
    try:
        pipe.close()
    except BrokenPipeError:
        return  # its buffered input has no reader any more


def run_on_terminal(
    start: Callable[..., Running],
    node: str,
    argv: Sequence[str],
    streams: tuple[int, int, int],
    environment: dict[str, str],
) -> int:
    """Start a command with `start` (Testbed.start) on these streams and return its exit code."""
    if not (os.isatty(streams[0]) and os.isatty(streams[1])):
        stdin, stdout, stderr = streams
        with start(node, argv, stdin=stdin, stdout=stdout, stderr=stderr, environment=environment) as command:
            return _wait_passing_signals(command)
    with ExitStack() as stack:
        outer, inner = pty.openpty()
        stack.callback(os.close, outer)
        closing_inner = stack.enter_context(ExitStack())
        closing_inner.callback(os.close, inner)
        size = _copy_size(streams[1], outer)
        environment = {"TERM": os.environ.get("TERM", "xterm"), **environment}
        command = stack.enter_context(
            start(node, argv, stdin=inner, stdout=inner, stderr=inner, environment=environment, is_terminal=True)
        )
        closing_inner.close()  # the command has its own copy; only without this one is its end visible
        command.resize(*size)  # a command in a container has a terminal of its own
        stack.enter_context(_raw(streams[0]))
        resized = stack.enter_context(_wakeups((signal.SIGWINCH,)))
        return _converse(command, outer, streams[0], streams[1], resized)


def _wait_passing_signals(command: Running) -> int:
    """Pass Ctrl-C and other signals to the command and wait for its end."""
    with _wakeups(PASSED_ON) as wake:
        while True:
            sources: list[Any] = [command, wake]
            ready = readable(sources)
            if wake in ready:
                for number in os.read(wake, CHUNK_BYTES):
                    command.signal(signal.Signals(number))
            if command in ready:
                return command.wait()


def _converse(command: Running, outer: int, stdin: int, stdout: int, resized: int) -> int:
    """Carry bytes both ways until the command has ended and all its output is written."""
    sources: list[Any] = [outer, stdin, resized, command]
    code: int | None = None
    while True:
        # After its end, only output that is already in the terminal is read, without waiting.
        ready = readable(sources, None if code is None else 0)
        if outer in ready:
            if piece := _read_terminal(outer):
                _write_all(stdout, piece)
                continue
            sources.remove(outer)
        if code is not None:
            return code
        if stdin in ready:
            piece = os.read(stdin, CHUNK_BYTES)
            if piece:
                _write_all(outer, piece)
            else:
                sources.remove(stdin)
        if resized in ready:
            os.read(resized, CHUNK_BYTES)
            command.resize(*_copy_size(stdout, outer))
        if command in ready:
            code = command.wait()
            sources = [outer] if outer in sources else []
            if not sources:
                return code


def _read_terminal(descriptor: int) -> bytes:
    """Next bytes; empty at the end, where a terminal whose other side is closed everywhere reports an error."""
    try:
        return os.read(descriptor, CHUNK_BYTES)
    except OSError:
        return b""


def _write_all(descriptor: int, piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _copy_size(source: int, target: int) -> tuple[int, int]:
    """Give `target` the size of `source`; its rows and columns."""
    packed = fcntl.ioctl(source, termios.TIOCGWINSZ, bytes(_SIZE.size))
    fcntl.ioctl(target, termios.TIOCSWINSZ, packed)
    rows, columns, _width, _height = _SIZE.unpack(packed)
    return rows, columns


@contextmanager
def _raw(descriptor: int) -> Iterator[None]:
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextmanager
def _wakeups(numbers: Sequence[signal.Signals]) -> Iterator[int]:
    """A descriptor from which each of these signals can be read as one byte. Python delivers signals to the main thread
    only; in other threads nothing arrives.
    """
    wake, told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def note(number: int, _frame: FrameType | None) -> None:
        os.write(told, bytes([number]))

    with ExitStack() as stack:
        stack.callback(os.close, told)
        stack.callback(os.close, wake)
        if threading.current_thread() is threading.main_thread():
            for number in numbers:
                stack.callback(signal.signal, number, signal.signal(number, note))
        yield wake
