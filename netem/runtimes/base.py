"""What the conductor needs from whatever carries the nodes: start, talk, kill, pause. One small door for all."""

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

if TYPE_CHECKING:  # the world sim needs the values here, and no kernel
    from netem.kernel.supervised import ExecRequest

FOREIGN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where programs of others are looked for that have no PATH of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A command to run in a node.

    The first word `python3` means the runtime's own interpreter, with our packages importable.
    """

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    work: Path | None = None
    """The node's own directory on the host, at the same path in the node: its working directory, writable.

    With it the node has, too, an init that passes signals on and collects orphans, and its name as host name; without
    it the program is our own, and process 1.
    """
    private: Mapping[str, Path] = field(default_factory=dict)
    """Absolute directory in the node -> directory on the host that stands there, writable; needs `work`."""
    readable: Sequence[Path] = ()
    """Netns: absolute paths of the machine that the node reads beside the system's. A container has its image."""
    hosts: Path | None = None
    """A file on the host that the node reads as its /etc/hosts."""
    image: str | None = None
    """Docker: the image to run in; None: ours."""
    limits: Limits | None = None
    """What the node may use; None: what the runtime gives to our own programs."""


def hand_over(program: Program, user: int) -> None:
    """Make the node's own directories the property of the user that it runs as. One that is that already holds only
    what is the node's own, whatever an earlier incarnation has made of it.
    """
    if program.work is None:
        return
    for source in (program.work, *program.private.values()):
        if source.stat().st_uid != user:
            for path in (*source.rglob("*"), source):
                os.chown(path, user, user, follow_symlinks=False)


def node_code() -> Path:
    """Our `node` package; found at run time, beside this one.

    Raises FabricError when the user that nodes run as could not read it (a clone under umask 077).
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
        """Exit code once it has ended (negative: the signal), else None. Does not block."""

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for its end; its exit code. Raises TimeoutError."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and its process group; none is sent to one that has ended."""

    def resize(self, rows: int, columns: int) -> None:
        """Its terminal has another size from now on."""

    def close(self) -> None:
        """Give back what is held for it, after its end."""


class NodeHandle(Protocol):
    """One incarnation of one node."""

    def enter(self, request: ExecRequest) -> Command:
        """Run a command in the network and PID namespaces of the node, with the operator's rights and not those of the
        node's program. Any thread may ask. In a container it sees the container's files, in netns the machine's.

        A node that has ended has its network left at most. Raises FabricError, also when there is no such program.
        """

    def send(self, line: str) -> None:
        """Write one line to the node's standard input. A node that is gone is a FabricError."""

    def poll(self) -> int | None:
        """Exit code once it has ended (negative: the signal), else None. Does not block."""

    def cause(self) -> str:
        """Once `poll` has told its end: who else ended it, as a sentence without a stop (the kernel at its memory
        limit, somebody at another terminal). Empty: it ended by itself, or as it was asked to.
        """

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its program; none is sent to one that has ended."""

    def pid(self) -> int:
        """Its first process, as this machine counts; 0 once it has ended."""

    def kill(self) -> None:
        """Crash it: SIGKILL to everything in it; returns when it is gone and its last line has been handed on.

        Its wires stay (or come back at the next start).
        """

    def pause(self) -> None:
        """Freeze it; returns when the freeze is observable, not when it was asked for."""

    def resume(self) -> None:
        """Thaw it; returns when it runs."""


class Runtime(Protocol):
    """Carries the nodes of one run. Used by one thread, but for `start`; `on_line` is called from a reader thread per
    node.
    """

    @property
    def at_once(self) -> int:
        """How many calls of `start` may be under way, each in a thread of its own, and are worth while."""

    def start(self, node: Node, program: Program, *, on_line: Callable[[str], None], log_path: Path) -> NodeHandle:
        """Start one incarnation, its wires attached and addresses set before its first instruction.

        Each line of standard output goes to `on_line` (without the newline; over-long lines are cut at 64 KiB);
        standard error is appended to `log_path`.
        """

    def gathered(self) -> AbstractContextManager[None]:
        """Nodes that are started inside begin when all of them are wired, at its end at the latest. What one sends to a
        port whose node is not there yet would be lost without a cause that anybody counts. Raises FabricError.
        """

    def close(self) -> None:
        """End every node that is left and give back everything that start took."""


LINE_BYTES_MAX = 64 * 1024
"""Longer lines are cut here; the rest up to the newline is dropped."""


class LineSplitter:
    """Feed it chunks as they come; it never holds more than LINE_BYTES_MAX and one chunk."""

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
    """What each gives, in their order; at most `at_once` are under way. `on_done` hears in our thread how many are
    done. What the first that fails raises is raised when those under way have ended; others are not begun then.
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
