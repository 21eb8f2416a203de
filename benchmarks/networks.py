"""Networks for benchmarks: wires on any host's kernel, and detection of the moment at which the kernel has removed a
whole network.
"""

from __future__ import annotations

import base64
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from netem.kernel.supervised import SupervisorLink
from netem.network import EmulatedNetwork
from netem.probe import KernelChoice
from netem.wiring import netlink, plan
from netem.wiring.executor import Executor
from netem.wiring.steps import BuildBus, BuildTree, Kernel, Side, Step
from topologies import shapes
from topologies.model import Topology

_SENTINEL = 900_000
_GONE_TIMEOUT_S = 60.0


class WiresOnly(Executor):
    """Executor that skips the queueing disciplines, so that a plan for kernel `host` works without `sch_netem`."""

    def run(self, steps: Iterable[Step]) -> None:
        super().run(step for step in steps if not isinstance(step, BuildTree | BuildBus))


def open_wires(topology: Topology, log_dir: Path) -> EmulatedNetwork:
    """A network of kernel `host` with all namespaces, cables, bridges, routers, filters and addresses, but no
    impairment. Raises FabricError.
    """
    log_dir.mkdir(parents=True, exist_ok=True)
    supervisor = SupervisorLink.start(log_dir / "supervisor.log")
    choice = KernelChoice(picked=Kernel.HOST, why="wires only", probes=(), guest_linux=None)
    network = EmulatedNetwork(topology, choice, supervisor)
    network.executor = WiresOnly(Kernel.HOST, {Side.HOST: supervisor, Side.CARRIER: supervisor}, seed=0)
    try:
        network.executor.run(plan.plan_carrier(topology, Kernel.HOST))
    except BaseException:
        supervisor.close()
        raise
    return network


@dataclass(frozen=True, slots=True, kw_only=True)
class UpAndDown:
    """Times of one network, in seconds. `closed_s`: until close() returned. `gone_s`: until the kernel had also removed
    every namespace and device, which it does later.
    """

    up_s: float
    closed_s: float
    gone_s: float


def up_and_down(
    topology: Topology, log_dir: Path, *, open_network: Callable[[Topology, Path], EmulatedNetwork] = open_wires
) -> UpAndDown:
    """Create a network with all its nodes' namespaces, wired and addressed, and close it."""
    with removal_watch(log_dir / "removal-watch") as watch:
        began = time.perf_counter()
        network = open_network(topology, log_dir)
        try:
            network.own_namespaces(topology.nodes())
            up = time.perf_counter()
            watch.observe(network)
            watched = time.perf_counter()
        finally:
            network.close()
        closed = time.perf_counter()
        watch.await_end()
        return UpAndDown(up_s=up - began, closed_s=closed - watched, gone_s=time.perf_counter() - watched)


class RemovalWatch:
    """A namespace outside the network, with one end of a cable whose other end is in the network. A network's
    namespaces are removed together: when this end vanishes, they are gone.
    """

    def __init__(self, supervisor: SupervisorLink) -> None:
        self._supervisor = supervisor

    def observe(self, network: EmulatedNetwork) -> None:
        inside = network.fabric_namespace()
        reply, _received = self._supervisor.ask("adopt", [inside], name="network")
        os.close(inside)
        message = netlink.add_veth("here", _SENTINEL, "there", _SENTINEL, peer_namespace=reply["descriptor"])
        self._converse(message)
        self._supervisor.ask("forget", name="network")

    def await_end(self) -> None:
        """Wait until the network is gone. Raises TimeoutError when the kernel does not remove it."""
        deadline = time.monotonic() + _GONE_TIMEOUT_S
        while any(found.index == _SENTINEL for found in netlink.links_in(self._converse(netlink.get_links()))):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the kernel holds the network's namespaces after {_GONE_TIMEOUT_S:.0f} s")
            time.sleep(0.001)

    def _converse(self, message: bytes) -> bytes:
        batch = base64.b64encode(netlink.numbered([message])).decode("ascii")
        reply, _received = self._supervisor.ask("netlink", namespace="", batch=batch)
        return base64.b64decode(reply["replies"])


@contextmanager
def removal_watch(log_dir: Path) -> Iterator[RemovalWatch]:
    log_dir.mkdir(parents=True, exist_ok=True)
    supervisor = SupervisorLink.start(log_dir / "supervisor.log")
    try:
        yield RemovalWatch(supervisor)
    finally:
        supervisor.close()


def partitions_in_a_row(nodes: int, partitions: int) -> Topology:
    """Topology of nodes spread over partitions that are linked in a row."""
    sizes = [nodes // partitions + (number < nodes % partitions) for number in range(partitions)]
    members = {f"p{at}": [f"n{number + 1}" for number in range(size)] for at, size in enumerate(sizes, start=1)}
    return shapes.network(
        "benchmark", members, links=[shapes.link(f"p{at}", f"p{at + 1}") for at in range(1, partitions)]
    )


@contextmanager
def directory() -> Iterator[Path]:
    """Temporary directory for logs and captures of a benchmark."""
    with tempfile.TemporaryDirectory(prefix="orderbed-bench-") as made:
        yield Path(made)
