"""The emulated network of a run or a live testbed: opened, changed by faults, and recorded by the collector."""

from __future__ import annotations

import json
import os
import queue
import secrets
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from netem.errors import FabricError
from netem.network import Change, EmulatedNetwork
from netem.runtimes.base import Runtime
from netem.runtimes.netns import NetnsRuntime
from netem.wiring.steps import KernelOption
from testbed.paths import ROOT
from testbed.rundir.manifest import collect
from testbed.spec.faults import Fault, Impair, ImpairLink, LinkDirection
from testbed.spec.raw import World
from topologies.model import PORT_IFINDEX_BASE, NodeName, Topology

READY_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.05


def open_network(
    topology: Topology, kernel: KernelOption, log_dir: Path, on_progress: Callable[[str], None], *, seed: int = 0
) -> tuple[EmulatedNetwork, dict[str, Any]]:
    """The network, and its entries of the manifest. Raises FabricError."""
    network = EmulatedNetwork.open(topology, kernel=kernel, log_dir=log_dir, seed=seed, on_progress=on_progress)
    choice = network.choice
    return network, {
        "kernel": {
            "picked": choice.picked.value,
            "why": choice.why,
            "probes": [{"name": probe.name, "ok": probe.ok, "detail": probe.detail} for probe in choice.probes],
        },
        "versions": collect(guest_linux=choice.guest_linux),
        "readback": network.readback(),
    }


def open_runtime(
    network: EmulatedNetwork,
    topology: Topology,
    world: World,
    *,
    run_id: str,
    image: str | None,
    on_progress: Callable[[str], None],
) -> tuple[Runtime, dict[str, Any]]:
    """The runtime of the nodes, and its entries of the manifest. World docker builds a missing image first.

    Containers are removed by their label. `run_id` alone could be that of a run of the same name in another `--runs`.
    """
    if world is World.NETNS:
        network.own_namespaces(topology.nodes())
        return NetnsRuntime(network), {}
    from netem.runtimes.docker import DockerRuntime  # only for Docker: its client is slow to import

    label = f"{run_id}-{secrets.token_hex(8)}"
    runtime = DockerRuntime(network, run_id=label, image=image, on_progress=on_progress)
    return runtime, {"containers": runtime.facts()}


def plain(counters: Any) -> dict[str, Any]:
    """One of the network's counters as a JSON value of the manifest."""
    return {name: getattr(value, "value", value) for name, value in asdict(counters).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Times at which a fault was issued and took effect (CLOCK_MONOTONIC), and the values read back from the kernel."""

    issued_ns: int
    effective_ns: int
    readback: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_changes(cls, changes: Mapping[str, Change]) -> Effect:
        """Effect of several kernel changes: from the first that was issued to the last that took effect."""
        return cls(
            issued_ns=min(change.issued_ns for change in changes.values()),
            effective_ns=max(change.effective_ns for change in changes.values()),
            readback={target: change.readback for target, change in changes.items()},
        )

    @classmethod
    def of_each(cls, action: Callable[[NodeName], object], targets: Collection[NodeName]) -> Effect:
        """Effect of `action` on each target; the action returns when it has taken effect."""
        issued_ns = time.monotonic_ns()
        for target in targets:
            action(target)
        return cls(issued_ns=issued_ns, effective_ns=time.monotonic_ns())

    def line(self, fault: Fault) -> dict[str, Any]:
        """The fault's line in faults.jsonl."""
        return fault.record() | asdict(self)


def impair(network: EmulatedNetwork, topology: Topology, fault: Impair | ImpairLink) -> Effect:
    if isinstance(fault, Impair):
        changes = {str(node): network.impair(node, fault.direction, asked) for node, asked in fault.settings}
        return Effect.of_changes(changes)
    origins = {link.name: link.a if fault.direction is LinkDirection.THERE else link.b for link in topology.links}
    changes = {
        link: network.impair_link(link, from_partition=origins[link], impairment=asked)
        for link, asked in fault.settings
    }
    return Effect.of_changes(changes)


def block(
    network: EmulatedNetwork,
    topology: Topology,
    pairs: frozenset[tuple[NodeName, NodeName]],
    links: frozenset[str],
) -> Effect:
    """From now on drop frames from the first to the second node of each pair, and all frames on these links."""
    changes = {"pairs": network.block(pairs)}
    if topology.links:
        changes["links"] = network.block_links(links)
    return Effect.of_changes(changes)


class Capture:
    """`python -m collector` in the fabric namespace. It sends status lines on a pipe; `latest` holds the newest."""

    def __init__(
        self, network: EmulatedNetwork, topology: Topology, path: Path, comment: Mapping[str, Any], log_path: Path
    ) -> None:
        self.latest: dict[str, Any] = {}
        self._inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        ports = [{"ifindex": n.port_ifindex, "name": n.name, "mac": n.mac} for n in topology.nodes()]
        # The collector's working directory is not the user's, so its paths are absolute.
        argv = [sys.executable, "-m", "collector", "--output", str(path.absolute()), "--ports", json.dumps(ports)]
        argv += ["--ifindex-base", str(PORT_IFINDEX_BASE), "--comment", json.dumps(dict(comment))]
        said_read, said_write = os.pipe()
        # The collector ends in order at the end of its standard input, also when this process is killed.
        told_read, self._told = os.pipe()
        with log_path.open("ab") as log:
            try:
                self._process = network.spawn_in_fabric(
                    argv,
                    environment=dict(os.environ),
                    stdin_fd=told_read,
                    stdout_fd=said_write,
                    stderr_fd=log.fileno(),
                    directory=ROOT,
                )
            finally:
                os.close(said_write)
                os.close(told_read)
        threading.Thread(target=self._read, args=(said_read,), name="capture", daemon=True).start()
        self._wait("ready", READY_TIMEOUT_S)

    def check(self) -> None:
        """Process the collector's status lines; FabricError when it has ended or reports an error."""
        self._drain_inbox()
        code = self._process.poll()
        if code is not None:
            raise FabricError(f"the collector ended in mid-run (exit {code}); what it had recorded is kept")

    def stop(self) -> dict[str, Any]:
        """End the capture in order. Returns its entry of the manifest. FabricError when the last status is missing."""
        if self._told >= 0:
            os.close(self._told)
            self._told = -1
        closing = self._wait("stopped", STOP_TIMEOUT_S)
        names = ("frames", "bytes", "kernel_dropped_frames", "complete", "clock_step_ns")
        return {name: closing.get(name) for name in names}

    def _wait(self, event: str, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            ended = self._process.poll() is not None
            self._drain_inbox()
            if self.latest.get("event") == event:
                return self.latest
            if ended:
                raise FabricError(f"the collector ended before it was {event}; what it had recorded is kept")
            time.sleep(POLL_S)
        raise FabricError(f"the collector was not {event} within {timeout_s:.0f} s")

    def _drain_inbox(self) -> None:
        while True:
            try:
                said = self._inbox.get_nowait()
            except queue.Empty:
                return
            if said.get("event") == "error":
                raise FabricError(f"the collector cannot record: {said.get('message', 'no reason given')}")
            self.latest = said

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    said = json.loads(line)
                except ValueError:
                    said = {"event": "error", "message": f"it wrote {line[:120]!r}"}
                self._inbox.put(said)
