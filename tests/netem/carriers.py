"""The runtimes of both worlds, and a node of either, for tests that run on both."""

from __future__ import annotations

import os
import queue
import time
import uuid
from pathlib import Path
from typing import TypeAlias

from netem.network import EmulatedNetwork
from netem.runtimes.base import NodeHandle, Program
from netem.runtimes.docker import DockerRuntime
from netem.runtimes.netns import NetnsRuntime
from topologies.model import Node

BOUND_S = 15.0
"""A container starts slowly on a busy machine."""

Carrier: TypeAlias = NetnsRuntime | DockerRuntime


def carrier_of(world: str, network: EmulatedNetwork) -> Carrier:
    """A runtime of this world; close it by `with`."""
    if world == "netns":
        return NetnsRuntime(network)
    return DockerRuntime(network, run_id=f"test/{os.getpid()}-{uuid.uuid4().hex[:8]}")


class Incarnation:
    """A started node, and the lines that it prints."""

    def __init__(self, runtime: Carrier, node: Node, program: Program, log: Path) -> None:
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.log = log
        self.handle: NodeHandle = runtime.start(node, program, on_line=self.lines.put, log_path=log)

    def line(self) -> str:
        return self.lines.get(timeout=BOUND_S)

    def end(self) -> int:
        """Wait for the end of the node; its exit code."""
        deadline = time.monotonic() + BOUND_S
        while (code := self.handle.poll()) is None:
            assert time.monotonic() < deadline, "it does not end"
            time.sleep(0.005)
        return code
