"""Interface of the runtimes that run the nodes: start, send, kill, pause."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from netem.errors import FabricError
from netem.runtimes.cgroups import Limits
from topologies.model import Node

if TYPE_CHECKING:  # the simulated world needs the values of this module, and no kernel
    from netem.kernel.supervised import ExecRequest

FOREIGN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH of users' programs that set none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A command to run in a node.

    The first word `python3` means the runtime's own interpreter, with the project's packages importable.
    """

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    work: Path | None = None
    """The node's own directory on the host, at the same path in the node: its working directory, writable.

    With it the node also has an init that passes signals on and reaps orphans, and its name as host name; without it
    the program is the project's own, and process 1.
    """
    private: Mapping[str, Path] = field(default_factory=dict)
    """Absolute directory in the node -> directory on the host that is mounted there, writable; needs `work`."""
    readable: Sequence[Path] = ()
    """Netns: absolute paths of the machine that the node may read in addition to the system's. A container has its
    image."""
    hosts: Path | None = None
    """File on the host that is the node's /etc/hosts."""
    image: str | None = None
    """Docker: the image to run in; None: the runtime's."""
    limits: Limits | None = None
    """Limits of the node; None: the runtime's defaults."""


def hand_over(program: Program, user: int) -> None:
    """Give the node's own directories to the user that it runs as. A directory that this user owns already is skipped:
    an earlier incarnation made its contents.
    """
    if program.work is None:
        return
    for source in (program.work, *program.private.values()):
        if source.stat().st_uid != user:
            for path in (*source.rglob("*"), source):
                os.chown(path, user, user, follow_symlinks=False)


def node_code() -> Path:
    """Path of the `node` package, beside this one.

    Raises FabricError when the user that nodes run as cannot read it (a clone under umask 077).
    """
    code = Path(__file__).resolve().parents[2] / "node"
    for path in (code, *code.rglob("*")):
        with suppress(FileNotFoundError):
            needed = 0o005 if path.is_dir() else 0o004
            if path.stat().st_mode & needed != needed:
                raise FabricError(f"nodes, which are not root, cannot read {path}: run `chmod -R a+rX {code}`")
    return code


class Command(Protocol):
    """A command that an operator runs in a node, beside its program. Any thread may use it."""

    def poll(self) -> int | None:
        """Exit code after its end (negative: the signal), else None. Does not block."""

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for its end and return the exit code. Raises TimeoutError."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and its process group; not after its end."""

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of its terminal."""

    def close(self) -> None:
        """Release its resources, after its end."""


class NodeHandle(Protocol):
    """One incarnation of one node."""

    def enter(self, request: ExecRequest) -> Command:
        """Run a command in the network and PID namespaces of the node, with the operator's rights and not those of the
        node's program. Any thread may call. In a container it sees the container's files, in netns the machine's.

        Of a node that has ended, at most the network is left. Raises FabricError, also when there is no such program.
        """

    def send(self, line: str) -> None:
        """Write one line to the node's standard input. Raises FabricError when the node is gone."""

    def poll(self) -> int | None:
        """Exit code after its end (negative: the signal), else None. Does not block."""

    def cause(self) -> str:
        """After `poll` has reported its end: other cause of it, as a sentence without a stop (the kernel at its memory
        limit, a signal through Docker). Empty: it ended by itself, or as requested.
        """

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its program; not after its end."""

    def pid(self) -> int:
        """Pid of its first process on this machine; 0 after its end."""

    def kill(self) -> None:
        """Crash it: SIGKILL to all its processes; returns when they are gone and its last line was passed to `on_line`.

        Its network stays (or is made again at the next start).
        """

    def pause(self) -> None:
        """Freeze it; returns when the freeze is observable."""

    def resume(self) -> None:
        """Thaw it; returns when it runs."""


class Runtime(Protocol):
    """Runs the nodes of one run. Used by one thread, except `start`; each node has a reader thread, which calls
    `on_line`.
    """

    @property
    def at_once(self) -> int:
        """Useful number of concurrent calls of `start`, each in a thread of its own."""

    def start(self, node: Node, program: Program, *, on_line: Callable[[str], None], log_path: Path) -> NodeHandle:
        """Start one incarnation; its network is connected and its addresses are set before its first instruction.

        Each line of standard output goes to `on_line` (without the newline; over-long lines are cut at 64 KiB);
        standard error is appended to `log_path`.
        """

    def gathered(self) -> AbstractContextManager[None]:
        """Nodes that are started inside the block begin when all of them are connected, at its end at the latest.
        Otherwise a frame to a port without its node would be lost, and no counter would show it. Raises FabricError.
        """

    def close(self) -> None:
        """End every node that is left and release all resources of `start`."""


_SIGNAL_EXIT_BASE = 128


def code_of(status: int) -> int:
    """Exit code of a program (negative: the signal) from that of its init or container, which is 128 plus the signal. A
    greater one is the program's own: no signal has its number.
    """
    return _SIGNAL_EXIT_BASE - status if 0 < status - _SIGNAL_EXIT_BASE < signal.NSIG else status


def told(code: int) -> str:
    """The exit code as text. Signals have their numbers: real-time signals have no names in Python."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"


LINE_BYTES_MAX = 64 * 1024
"""Most bytes of a line; the rest up to the newline is dropped."""


class LineSplitter:
    """Splits chunks of output into lines; it never holds more than LINE_BYTES_MAX and one chunk."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Every line that `chunk` completes, without its newline; bytes that are not UTF-8 become U+FFFD."""
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._keep(end)
            yield self._take()
        self._keep(rest)

    def close(self) -> Iterator[str]:
        """The last line, if the output ended without a newline."""
        if self._pending:
            yield self._take()

    def _keep(self, piece: bytes) -> None:
        self._pending += piece[: LINE_BYTES_MAX - len(self._pending)]

    def _take(self) -> str:
        line = self._pending.decode("utf-8", errors="replace")
        self._pending.clear()
        return line


T = TypeVar("T")


def together(acts: Sequence[Callable[[], T]], *, at_once: int, on_done: Callable[[int], None]) -> list[T]:
    """Run `acts` in threads, at most `at_once` at a time, and return their results in order. `on_done` is called in the
    caller's thread with the number done. After a failure no other act is begun; the first exception is raised when the
    running ones have ended.
    """
    pool = ThreadPoolExecutor(at_once, thread_name_prefix="together")
    try:
        futures = [pool.submit(act) for act in acts]
        for count, future in enumerate(as_completed(futures), start=1):
            future.result()
            on_done(count)
        return [future.result() for future in futures]
    finally:
        pool.shutdown(cancel_futures=True)
