"""What the conductor needs from whatever carries the nodes: start, talk, kill, pause. One small door for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from topologies.model import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A command to run in a node.

    The first word `python3` means the runtime's own interpreter, with our packages importable.
    """

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


class NodeHandle(Protocol):
    """One incarnation of one node."""

    def send(self, line: str) -> None:
        """Write one line to the node's standard input. A node that is gone is a FabricError."""

    def poll(self) -> int | None:
        """Exit code once it has ended (negative: the signal), else None. Does not block."""

    def kill(self) -> None:
        """Crash it: SIGKILL to everything in it; returns when it is gone.

        Its wires stay (or come back at the next start).
        """

    def pause(self) -> None:
        """Freeze it; returns when the freeze is observable, not when it was asked for."""

    def resume(self) -> None:
        """Thaw it; returns when it runs."""


class Runtime(Protocol):
    """Carries the nodes of one run. Used by one thread; `on_line` is called from a reader thread per node."""

    def start(self, node: Node, program: Program, *, on_line: Callable[[str], None], log_path: Path) -> NodeHandle:
        """Start one incarnation, its wires attached and addresses set before its first instruction.

        Each line of standard output goes to `on_line` (without the newline; over-long lines are cut at 64 KiB);
        standard error is appended to `log_path`.
        """

    def close(self) -> None:
        """End every node that is left and give back everything that start took."""
