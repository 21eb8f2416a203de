"""A command in a node on the terminal of whoever asks: a terminal of its own, ours raw meanwhile, sizes kept alike."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import termios
import threading
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, Protocol

from netem.kernel.framing import readable
from testbed.live.commands import Running

CHUNK_BYTES = 1 << 16
_SIZE = struct.Struct("HHHH")
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)
"""Signals that are meant for the command when it has no terminal of its own."""


class Starter(Protocol):
    """`Testbed.start`."""

    def __call__(
        self,
        node: str,
        argv: Sequence[str],
        *,
        stdin: int | None,
        stdout: int | None,
        stderr: int | None,
        environment: Mapping[str, str] | None,
        is_terminal: bool = ...,
    ) -> Running: ...


def run(
    start: Starter, node: str, argv: Sequence[str], streams: tuple[int, int, int], environment: dict[str, str]
) -> int:
    """Run it on these streams and return its exit code."""
    if not (os.isatty(streams[0]) and os.isatty(streams[1])):
        stdin, stdout, stderr = streams
        with start(node, argv, stdin=stdin, stdout=stdout, stderr=stderr, environment=environment) as command:
            return _wait_passing_signals(command)
    with ExitStack() as stack:
        outer, inner = pty.openpty()
        stack.callback(os.close, outer)
        closing_inner = stack.enter_context(ExitStack())
        closing_inner.callback(os.close, inner)
        _copy_size(streams[1], outer)
        environment = {"TERM": os.environ.get("TERM", "xterm"), **environment}
        command = stack.enter_context(
            start(node, argv, stdin=inner, stdout=inner, stderr=inner, environment=environment, is_terminal=True)
        )
        closing_inner.close()  # the command has its own by now, and its end shall be seen
        stack.enter_context(_raw(streams[0]))
        resized = stack.enter_context(_resizing())
        return _converse(command, outer, streams[0], streams[1], resized)


def _wait_passing_signals(command: Running) -> int:
    """Ctrl-C is for the command, which may take it in its own way; we wait for its end."""
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
    """Carry bytes both ways until the command has ended and everything that it said is out."""
    sources: list[Any] = [outer, stdin, resized, command]
    code: int | None = None
    while True:
        # Once it has ended, only what is left in the terminal is waited for, and nothing comes after that.
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
    """Empty at the end, which a terminal tells by an error once nobody holds its other side."""
    try:
        return os.read(descriptor, CHUNK_BYTES)
    except OSError:
        return b""


def _write_all(descriptor: int, piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _copy_size(source: int, target: int) -> tuple[int, int]:
    """Rows and columns that `target` has from now on."""
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


def _resizing() -> Any:
    return _wakeups((signal.SIGWINCH,))


@contextmanager
def _wakeups(numbers: Sequence[signal.Signals]) -> Iterator[int]:
    """A descriptor from which each of these signals can be read as one byte. Only the main thread can have signals;
    elsewhere nothing ever comes.
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
