"""The nodes of a testbed as processes or containers, through crash and restart. Used by the state's thread.

What a node says on either stream goes to its log, line by line. Nodes that run our own program, the members of a group,
say how they stand instead (node/host/driver.py); what they write on standard error goes to their logs.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from netem.errors import FabricError
from netem.runtimes.base import NodeHandle, Program, Runtime
from testbed.run.conductor import NODE_PROGRAM
from testbed.run.fleet import Fleet, State
from testbed.run.nodes import configuration
from testbed.spec.values import Experiment
from topologies.model import Node, NodeName, Topology

REST = Program(argv=("/bin/sh", "-c", "trap '' CHLD; exec cat > /dev/null"))
"""A main process that only rests, so that a crash, a pause and a restart mean something. It ends with its standard
input, and as process 1 it leaves the collecting of orphans to the kernel.
"""

READY_TIMEOUT_S = 60.0
FOR_EVER_NS = 100 * 365 * 86_400 * 10**9


class NodeProcesses:
    """All nodes. `experiment`: they are the members of its group, with its protocol, its workload, its wrong clocks and
    the members that are absent at first, without its faults and its end; `group`: the number in its datagrams. None:
    they run `program`, None: they rest. `rooms`: where each gets a directory of its own, None: nowhere; `hosts`: what
    all read as /etc/hosts.
    """

    def __init__(
        self,
        runtime: Runtime,
        topology: Topology,
        *,
        experiment: Experiment | None,
        group: int,
        program: Program | None,
        log_path: Callable[[str], Path],
        rooms: Path | None,
        hosts: Path,
    ) -> None:
        self._runtime = runtime
        self._topology = topology
        self._experiment = None if experiment is None else dataclasses.replace(experiment, duration_ns=FOR_EVER_NS)
        self._group = group
        self._rooms = rooms
        self._start_ns: int | None = None
        self._alive: set[NodeName] = set()
        self.log_path = log_path
        self._fleet = Fleet(
            runtime,
            topology.nodes(),
            configure=None if experiment is None else self._configure,
            log_path=log_path,
            program=dataclasses.replace(program or REST, hosts=hosts) if experiment is None else NODE_PROGRAM,
            prepare=self._prepare,
            absent=() if experiment is None else experiment.absent,
        )
        self.pause = self._fleet.pause
        self.resume = self._fleet.resume

    def start_all(self, on_progress: Callable[[str], None]) -> None:
        """Start every node that is not absent; members of a group begin together. Raises FabricError."""
        fleet = self._fleet
        fleet.start_all(lambda count: on_progress(f"{count} of {len(self._topology)} nodes started"))
        if self._experiment is not None:
            fleet.wait_all((State.READY,), timeout_s=READY_TIMEOUT_S, doing="ready")
            self._start_ns = time.monotonic_ns()
            fleet.broadcast(f'start {{"at_ns": {self._start_ns}}}')
            fleet.wait_all((State.RUNNING,), timeout_s=READY_TIMEOUT_S, doing="running")
        self._alive = {member.node.name for member in fleet.alive()}

    def start(self, name: NodeName) -> None:
        """Start the next incarnation of a node, its wires attached. Raises FabricError."""
        if self._experiment is None:
            self._fleet.start(self._topology.node(name))
        else:
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
        """The latest incarnation. Any thread may ask, and enter it."""
        return self._fleet.member(name).handle

    def is_there(self, name: NodeName) -> bool:
        return self._fleet.has(name)

    def crash(self, name: NodeName) -> None:
        """SIGKILL to all of it. Raises FabricError."""
        self._alive.discard(name)
        self._fleet.crash(name)

    def ended(self) -> Iterator[tuple[NodeName, int]]:
        """Nodes that have ended by themselves since last asked, with their exit codes. Raises FabricError when the
        network is gone.
        """
        if self._experiment is not None:
            # That one has ended unasked the fleet tells by raising it; here it is told to whoever looks.
            with suppress(FabricError):
                self._fleet.pump(time.monotonic())
        for name in sorted(self._alive):
            member = self._fleet.member(name)
            if self._experiment is None:
                member.exit_code = member.handle.poll()
            if member.exit_code is not None:
                self._alive.discard(name)
                yield name, member.exit_code

    def standing(self) -> Iterator[tuple[NodeName, int, Mapping[str, Any]]]:
        """Of members of a group: the incarnation, and what it has said of itself last."""
        if self._experiment is not None:
            for name in sorted(self._alive):
                member = self._fleet.member(name)
                yield name, member.incarnation, member.last

    def close(self) -> None:
        """End every node. Raises FabricError when one stays."""
        self._runtime.close()

    def _prepare(self, node: Node, program: Program) -> Program:
        """In a directory of its own, where nodes have rooms: with an init, and its name as host name."""
        if self._rooms is None or program.work is not None:
            return program
        work = self._rooms / node.name.replace("/", ".")
        try:
            work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FabricError(f"the directory of {node.name} cannot be made: {error}") from error
        return dataclasses.replace(program, work=work)

    def _configure(self, node: Node, incarnation: int) -> dict[str, Any]:
        assert self._experiment is not None
        elapsed_ns = 0 if self._start_ns is None else time.monotonic_ns() - self._start_ns
        return configuration(self._experiment, node, incarnation=incarnation, group=self._group, elapsed_ns=elapsed_ns)
