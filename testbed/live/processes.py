"""The processes: the nodes of a testbed as processes or containers, through crash and restart. Used by the state's
thread.

What a node says on either stream goes to its log, line by line. Nodes that run our own program, the members of a group,
say how they stand instead (node/host/driver.py); what they write on standard error goes to their logs.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from netem.errors import CannotStartError, FabricError
from netem.runtimes.base import NodeHandle, Program, Runtime, together
from testbed.run.conductor import NODE_PROGRAM
from testbed.run.fleet import Fleet, State
from testbed.run.nodes import configuration
from testbed.spec.values import Experiment
from topologies.model import Node, NodeName, Topology

REST = Program(argv=("/bin/sh", "-c", "trap '' CHLD; exec cat > /dev/null"))
"""A main process that only rests, so that a crash, a pause and a restart mean something. It ends with its standard
input, and as process 1 it leaves the collecting of orphans to the kernel.
"""


class NodeProcesses:
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

    def is_there(self, name: NodeName) -> bool:
        """Whether it was ever started."""
        return name in self._handles

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
        """Nodes that have ended by themselves since last asked, with their exit codes. Raises FabricError when the
        network is gone.
        """
        for name in sorted(self._alive):
            code = self._handles[name].poll()
            if code is not None:
                self._alive.discard(name)
                yield name, code

    def standing(self) -> Iterator[tuple[NodeName, int, Mapping[str, Any]]]:
        """Of members of a group: the incarnation, and what it has said of itself last."""
        yield from ()

    def join(self, name: NodeName) -> Mapping[str, Any]:
        raise FabricError(f"{name} is no member of a group")

    def leave(self, name: NodeName) -> Mapping[str, Any]:
        raise FabricError(f"{name} is no member of a group")

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


READY_TIMEOUT_S = 60.0
FOR_EVER_NS = 100 * 365 * 86_400 * 10**9


class Group(NodeProcesses):
    """Nodes that are the members of a group, as an experiment has them: its protocol, its workload, its wrong clocks,
    and the members that are absent at first. Its faults and its end are left out. `group`: the number in its datagrams.
    """

    def __init__(
        self,
        runtime: Runtime,
        experiment: Experiment,
        *,
        group: int,
        log_path: Callable[[str], Path],
        hosts: Path,
    ) -> None:
        topology = experiment.topology
        super().__init__(runtime, topology, NODE_PROGRAM, log_path=log_path, rooms=None, hosts=hosts)
        self._experiment = dataclasses.replace(experiment, duration_ns=FOR_EVER_NS)
        self._group = group
        self._start_ns: int | None = None
        self._fleet = Fleet(
            runtime,
            topology.nodes(),
            configure=self._configure,
            log_path=log_path,
            program=NODE_PROGRAM,
            absent=experiment.absent,
        )

    def start_all(self, on_progress: Callable[[str], None]) -> None:
        """Start every member that is not absent, and set them to work together. Raises FabricError."""
        fleet = self._fleet
        fleet.start_all(lambda count: on_progress(f"{count} nodes started"))
        fleet.wait_all((State.READY,), timeout_s=READY_TIMEOUT_S, doing="ready")
        self._start_ns = time.monotonic_ns()
        fleet.broadcast(f'start {{"at_ns": {self._start_ns}}}')
        fleet.wait_all((State.RUNNING,), timeout_s=READY_TIMEOUT_S, doing="running")
        self._alive = {member.node.name for member in fleet.alive()}

    def start(self, name: NodeName) -> None:
        self._fleet.restart([name])
        self._alive.add(name)

    def join(self, name: NodeName) -> Mapping[str, Any]:
        """Start a member that was absent, or tell one that has left to go on; what it says. Raises FabricError."""
        said = self._fleet.join([name])
        self._alive.add(name)
        return said.get(name, {})

    def leave(self, name: NodeName) -> Mapping[str, Any]:
        """What it says of it: `refused`, and why, when it cannot. Raises FabricError."""
        return self._fleet.leave([name])[name]

    def handle(self, name: NodeName) -> NodeHandle:
        return self._fleet.member(name).handle

    def is_there(self, name: NodeName) -> bool:
        return any(member.node.name == name for member in self._fleet.history)

    def crash(self, name: NodeName) -> int | None:
        self._alive.discard(name)
        self._fleet.crash(name)
        return self._fleet.member(name).exit_code

    def pause(self, name: NodeName) -> None:
        self._fleet.pause(name)

    def resume(self, name: NodeName) -> None:
        self._fleet.resume(name)

    def ended(self) -> Iterator[tuple[NodeName, int]]:
        # That one has ended unasked the fleet tells by raising it; here it is told to whoever looks.
        with suppress(FabricError):
            self._fleet.pump(time.monotonic())
        for name in sorted(self._alive):
            code = self._fleet.member(name).exit_code
            if code is not None:
                self._alive.discard(name)
                yield name, code

    def standing(self) -> Iterator[tuple[NodeName, int, Mapping[str, Any]]]:
        for name in sorted(self._alive):
            member = self._fleet.member(name)
            yield name, member.incarnation, member.last

    def _configure(self, node: Node, incarnation: int) -> dict[str, Any]:
        elapsed_ns = 0 if self._start_ns is None else time.monotonic_ns() - self._start_ns
        return configuration(self._experiment, node, incarnation=incarnation, group=self._group, elapsed_ns=elapsed_ns)
