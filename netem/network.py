"""The emulated network of one run, as the conductor uses it.

    with EmulatedNetwork.open(topology, log_dir=run / "network") as network:
        network.attach(node, netns_fd)
        network.impair(node.name, Direction.TO_NODE, Impairment(delay_ns=5_000_000))
        network.block({(left, right)})  # frames from left do not arrive at right

Everything lives in private namespaces whose init is the supervisor, and ends with it: at close(), when this process
ends in any way, or when the supervisor is killed. Nothing is left behind, and the host's own network is not changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from netem import probe as kernels
from netem.errors import FabricError
from netem.fabric import BusCounters, Change, Fabric, LinkCounters, PortCounters
from netem.kernel.agent import FABRIC
from netem.kernel.supervised import ExecRequest, Process, Sandbox, SupervisorLink
from netem.kernel.uml import Guest, find_guest_kernel
from netem.probe import KernelChoice
from netem.wiring import plan
from netem.wiring.steps import Kernel, KernelOption, MakeNamespaces, Side
from topologies.model import Node, NodeName, Topology

__all__ = [
    "BusCounters",
    "Change",
    "EmulatedNetwork",
    "FabricError",
    "Kernel",
    "KernelChoice",
    "KernelOption",
    "LinkCounters",
    "PortCounters",
]


class EmulatedNetwork(Fabric):
    """Emulated network of one run. Methods may be called from any thread and wait for the kernel's answer."""

    choice: KernelChoice
    """The carrier kernel, the reason for it, and all probes."""

    def __init__(self, topology: Topology, choice: KernelChoice, supervisor: SupervisorLink, *, seed: int = 0) -> None:
        super().__init__(topology, choice.picked, {Side.HOST: supervisor, Side.CARRIER: supervisor}, seed=seed)
        self.choice = choice
        self._supervisor = supervisor
        self._guest: Guest | None = None
        self._wired: set[NodeName] = set()
        self._owned: set[NodeName] = set()
        self._closed = False

    @classmethod
    def open(
        cls,
        topology: Topology,
        *,
        kernel: KernelOption = KernelOption.AUTO,
        log_dir: Path,
        seed: int = 0,
        on_progress: Callable[[str], None] = lambda _line: None,
    ) -> EmulatedNetwork:
        """Make the network of `topology`, without nodes. netem's seeds are derived from `seed` if the kernel has them.

        Logs go to `log_dir` (supervisor.log, guest.log). Raises FabricError, one sentence with the remedy.
        """
        log_dir.mkdir(parents=True, exist_ok=True)
        supervisor = SupervisorLink.start(log_dir / "supervisor.log")
        try:
            choice = kernels.pick(kernel, kernels.probe_with(supervisor))
            on_progress(f"kernel {choice.picked.value}: {choice.why}")
            network = cls(topology, choice, supervisor, seed=seed)
            network._build(log_dir, on_progress)
        except ValueError as error:
            supervisor.close()
            raise FabricError(f"topology {topology.name}: {error}") from error
        except BaseException:
            supervisor.close()
            raise
        return network

    def __enter__(self) -> EmulatedNetwork:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the network and all its processes; returns when they are gone. May be called again."""
        if not self._closed:
            self._closed = True
            if self._guest is not None:
                self._guest.close()
            self._supervisor.close()

    # Nodes.

    def attach(self, node: Node, netns_fd: int) -> None:
        """Connect a node's network namespace, or connect a new one after the old one has gone: eth0 with MAC and
        address, neighbours and routes, up. The caller keeps the descriptor. Raises FabricError.
        """
        self._owned.discard(node.name)
        reply, _received = self._supervisor.ask(
            "adopt", [netns_fd], step=f"adopting the namespace of {node.name}", name=plan.node_namespace(node)
        )
        self.executor.hold_namespace(Side.HOST, plan.node_namespace(node), reply["descriptor"])
        self._wire((node,))

    def own_namespace(self, node: Node) -> str:
        """Name, for `spawn`, of a namespace that the network itself holds for a node; made and connected at the first
        call. It outlives the node's processes, so that the next incarnation has its network at once.
        """
        self.own_namespaces((node,))
        return plan.node_namespace(node)

    def own_namespaces(self, nodes: Iterable[Node]) -> None:
        """Make and connect the namespaces of many nodes at once, as `own_namespace` does for one: 30 in a tenth of the
        time. Existing ones are not changed. Raises FabricError; then none of the new ones is kept.
        """
        new = [node for node in nodes if node.name not in self._owned]
        if not new:
            return
        names = tuple(plan.node_namespace(node) for node in new)
        self.executor.run([MakeNamespaces(side=Side.HOST, names=names)])
        try:
            self._wire(new)
        except FabricError:
            for name in names:
                self._supervisor.ask("forget", step=f"giving up {name}", name=name)
            raise
        self._owned.update(node.name for node in new)

    def spawn(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        descriptors: Sequence[int],
        *,
        namespace: str,
        sandbox: Sandbox,
        directory: Path,
    ) -> Process:
        """Start a program as a node: in a network namespace of `own_namespace`, in PID and mount namespaces of its own,
        without privileges. `descriptors` become its 0, 1, 2; `directory` is its working directory, a path in its mount
        namespace. Raises FabricError.
        """
        return self._supervisor.spawn(
            argv, environment, descriptors, namespace=namespace, directory=directory, sandbox=sandbox
        )

    def enter(self, node: Node, process: Process | None, request: ExecRequest, *, hosts: Path | None) -> Process:
        """Start a command beside a node's process, in its network and PID namespaces, with the machine's files, `hosts`
        as /etc/hosts, and the privileges of this process. Without a process: in the network namespace of the node only.
        Raises FabricError.
        """
        return self._supervisor.spawn(
            request.argv, request.environment, request.descriptors,
            namespace=self.own_namespace(node), inside=process, hosts=hosts, is_terminal=request.is_terminal,
            directory=request.directory, step=node.name,
        )  # fmt: skip

    def spawn_in_fabric(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdin_fd: int,
        stdout_fd: int,
        stderr_fd: int,
        directory: Path | None = None,
    ) -> Process:
        """Start a helper (the collector) with all privileges in the fabric namespace, which has the switch ports."""
        return self._supervisor.spawn(argv, environment, [stdin_fd, stdout_fd, stderr_fd], directory=directory)

    def fabric_namespace(self) -> int:
        """A descriptor of the network namespace of the switch ports, which the caller must close."""
        _reply, received = self._supervisor.ask("lend", step="lending the fabric's namespace", name=FABRIC)
        return received[0]

    def readback(self) -> dict[str, Any]:
        """Every queueing discipline of this network as the kernel has it now, and the scheduling of a guest kernel."""
        found = super().readback()
        return found if self._guest is None else found | {"guest_scheduling": self._guest.scheduling}

    def failure(self) -> FabricError | None:
        """Error if the network is gone (supervisor or guest died), or None. Cheap enough for polling."""
        if self._closed:
            return None
        return self._supervisor.failure() or (self._guest.failure() if self._guest is not None else None)

    # Helpers.

    def _wire(self, nodes: Sequence[Node]) -> None:
        again = frozenset(self._wired)
        self._wired.update(node.name for node in nodes)  # before: a failure may leave parts of a connection
        for node in nodes:
            if node.name in again:
                self._remove_port(node)
        self.executor.run(plan.plan_nodes(self.topology, nodes, self._kernel))

    def _build(self, log_dir: Path, on_progress: Callable[[str], None]) -> None:
        started = time.monotonic()
        carrier_steps = plan.plan_carrier(self.topology, self._kernel)  # before anything boots: it may be refused
        if self._kernel is Kernel.UML:
            on_progress(f"booting User-Mode Linux {self.choice.guest_linux}")
            self._guest = Guest.boot(self._supervisor, find_guest_kernel(), log_dir / "guest.log")
            self.executor.run(plan.plan_host(self.topology))  # while the guest boots
            self._guest.await_ready(len(self.topology))
            self.executor.set_link(Side.CARRIER, self._guest)
        on_progress(f"building {len(self.topology.partitions)} partitions with {len(self.topology)} ports")
        self.executor.run(carrier_steps)
        self.start_counting()
        on_progress(f"network ready after {time.monotonic() - started:.1f} s")
