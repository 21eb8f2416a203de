"""The house: the nodes of a testbed as processes or containers, through crash and restart. Used by the desk's thread.

What a node says on either stream goes to its log, line by line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from netem.errors import CannotStartError, FabricError
from netem.runtimes.base import NodeHandle, Program, Runtime
from netem.runtimes.together import together
from topologies.model import Node, NodeName, Topology

REST = Program(argv=("/bin/sh", "-c", "trap '' CHLD; exec cat > /dev/null"))
"""A main process that only rests, so that a crash, a pause and a restart mean something. It ends with its standard
input, and as process 1 it leaves the collecting of orphans to the kernel.
"""


class House:
    """All nodes. `log_path` names the log of a node; `rooms`: where each gets a directory of its own, None: nowhere;
    `hosts`: what all read as /etc/hosts.
    """

    def __init__(
        self,
        runtime: Runtime,
        topology: Topology,
        program: Program,
        *,
        log_path: Callable[[str], Path],
        rooms: Path | None,
        hosts: Path,
    ) -> None:
        self._runtime = runtime
        self._topology = topology
        self._program = dataclasses.replace(program, hosts=hosts)
        self._rooms = rooms
        self._handles: dict[NodeName, NodeHandle] = {}
        self._alive: set[NodeName] = set()
        self._log_paths = {node.name: log_path(node.name) for node in topology.nodes()}
        self._logs: dict[NodeName, BinaryIO] = {}

    def start_all(self, on_progress: Callable[[str], None]) -> None:
        """Start every node. Raises FabricError."""
        with self._runtime.gathered():
            together(
                [partial(self.start, node.name) for node in self._topology.nodes()],
                at_once=self._runtime.at_once,
                on_done=lambda count: on_progress(f"{count} of {len(self._topology)} nodes started"),
            )

    def start(self, name: NodeName) -> None:
        """Start the next incarnation of a node, its wires attached. Raises FabricError."""
        node = self._topology.node(name)
        log = self._logs.setdefault(name, self._log_paths[name].open("ab", buffering=0))

        def on_line(line: str) -> None:
            log.write(line.encode("utf-8") + b"\n")

        try:
            self._handles[name] = self._runtime.start(
                node, self._program_of(node), on_line=on_line, log_path=self._log_paths[name]
            )
        except CannotStartError as error:
            raise CannotStartError(f"{name}: {error}", is_there=error.is_there) from error
        self._alive.add(name)

    def handle(self, name: NodeName) -> NodeHandle:
        """The latest incarnation. Any thread may ask, and enter it."""
        return self._handles[name]

    def crash(self, name: NodeName) -> int | None:
        """SIGKILL to all of it; how its main process ended. Raises FabricError."""
        self._alive.discard(name)
        self._handles[name].kill()
        return self._handles[name].poll()

    def pause(self, name: NodeName) -> None:
        self._handles[name].pause()

    def resume(self, name: NodeName) -> None:
        self._handles[name].resume()

    def ended(self) -> Iterator[tuple[NodeName, int]]:
        """Nodes that have ended by themselves since last asked, with their exit codes. Raises FabricError when the bed
        is gone.
        """
        for name in sorted(self._alive):
            code = self._handles[name].poll()
            if code is not None:
                self._alive.discard(name)
                yield name, code

    def log_path(self, name: NodeName) -> Path:
        return self._log_paths[name]

    def close(self) -> None:
        """End every node. Raises FabricError when one stays."""
        try:
            self._runtime.close()
        finally:
            for log in self._logs.values():
                log.close()

    def _program_of(self, node: Node) -> Program:
        """In a directory of its own, where nodes have rooms: with an init, and its name as host name."""
        if self._rooms is None or self._program.work is not None:
            return self._program
        work = self._rooms / node.name.replace("/", ".")
        try:
            work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FabricError(f"the directory of {node.name} cannot be made: {error}") from error
        return dataclasses.replace(self._program, work=work)
