"""The nodes of a testbed as processes or containers, through crash and restart. Used by the state's thread.

Both output streams of a node go to its log, line by line. Members of a group, which run the project's node program,
report their status on standard output (node/host/driver.py); only their standard error goes to their logs.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from netem.errors import FabricError
from netem.runtimes.base import Program, Runtime
from testbed.run.conductor import NODE_PROGRAM
from testbed.run.fleet import Fleet, Member, State
from testbed.run.program import where
from testbed.spec.nodes import configuration
from testbed.spec.values import Experiment
from topologies.model import Node, Topology

REST = Program(argv=("/bin/sh", "-c", "trap '' CHLD; exec cat > /dev/null"))
"""An idle main process, which gives a crash, a pause and a restart their target. It ends with its standard input, and
as process 1 it leaves the reaping of orphans to the kernel.
"""

READY_TIMEOUT_S = 60.0
FOR_EVER_NS = 100 * 365 * 86_400 * 10**9


class NodeProcesses:
    """All nodes. With `experiment` they are the members of its group, with its protocol, workload, clock errors and
    absent members, without its faults and its end; `group` is the number in its datagrams. Without it they run
    `program`, or `REST` if that is None. `work_root`: folder of the nodes' working directories, None for none;
    `hosts`: their /etc/hosts.
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
        work_root: Path | None,
        hosts: Path,
    ) -> None:
        self._runtime = runtime
        self._topology = topology
        self._experiment = None if experiment is None else dataclasses.replace(experiment, duration_ns=FOR_EVER_NS)
        self._group = group
        self._work_root = work_root
        self._start_ns: int | None = None
        self.log_path = log_path
        self.fleet = Fleet(
            runtime,
            topology.nodes(),
            configure=None if experiment is None else self._configure,
            log_path=log_path,
            program=_shown_what_it_names(program or REST, hosts) if experiment is None else NODE_PROGRAM,
            prepare=self._prepare,
            absent=() if experiment is None else experiment.absent,
        )

    def start_all(self, on_progress: Callable[[str], None]) -> None:
        """Start every node that is not absent; members of a group begin together. Raises FabricError."""
        fleet = self.fleet
        fleet.start_all(lambda count: on_progress(f"{count} of {len(self._topology)} nodes started"))
        if self._experiment is not None:
            fleet.wait_all((State.READY,), timeout_s=READY_TIMEOUT_S, doing="ready")
            self._start_ns = time.monotonic_ns()
            fleet.broadcast(f'start {{"at_ns": {self._start_ns}}}')
            fleet.wait_all((State.RUNNING,), timeout_s=READY_TIMEOUT_S, doing="running")

    def members(self) -> Iterator[Member]:
        """Every node that was ever started, as it is now. Raises FabricError when the network is gone."""
        if self._experiment is not None:
            # The fleet raises an unexpected end; here the member's exit code shows it.
            with suppress(FabricError):
                self.fleet.pump(time.monotonic())
        for node in self._topology.nodes():
            if self.fleet.has(node.name):
                member = self.fleet.member(node.name)
                if self._experiment is None and member.exit_code is None:
                    member.exit_code = member.handle.poll()
                yield member

    def close(self) -> None:
        """End every node. Raises FabricError when one stays."""
        self._runtime.close()

    def _prepare(self, node: Node, program: Program) -> Program:
        """The program with a working directory of the node's own, if there is a `work_root`."""
        if self._work_root is None or program.work is not None:
            return program
        work = self._work_root / node.name.replace("/", ".")
        try:
            work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FabricError(f"the directory of {node.name} cannot be made: {error}") from error
        return dataclasses.replace(program, work=work)

    def _configure(self, node: Node, incarnation: int) -> dict[str, Any]:
        assert self._experiment is not None
        elapsed_ns = 0 if self._start_ns is None else time.monotonic_ns() - self._start_ns
        return configuration(self._experiment, node, incarnation=incarnation, group=self._group, elapsed_ns=elapsed_ns)


def _shown_what_it_names(program: Program, hosts: Path) -> Program:
    """The program with `hosts`, and with read access to its executable and to files that it names by absolute path: the
    owner of the testbed chose them."""
    named = [Path(word) for word in program.argv if word.startswith("/") and Path(word).exists()]
    return dataclasses.replace(program, hosts=hosts, readable=[*where(program.argv[0], program.environment), *named])
