"""Containers on real wires: they reach each other through the network, and a restarted one gets its wires back."""

from __future__ import annotations

import json
import os
import queue
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from netem.network import EmulatedNetwork
from netem.runtimes.base import Program
from netem.runtimes.container import ContainerHandle
from netem.runtimes.daemon import connect
from netem.runtimes.docker import DockerRuntime
from netem.runtimes.image import ensure_image
from tests.netem import wired
from topologies.model import Impairment, Node

pytestmark = [pytest.mark.root, pytest.mark.docker, pytest.mark.uml]

DELAY_NS = 20_000_000
BOUND_S = 20.0
SAMPLES = 8

# Joins the group, then answers each line with the round trip to the address in it; all others echo.
MEMBER = """
import json, os, socket, sys, threading, time
echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
echo.bind(("", 7700))
def answer():
    while True:
        data, sender = echo.recvfrom(2048)
        echo.sendto(data, sender)
threading.Thread(target=answer, daemon=True).start()
print(json.dumps({"event": "ready", "devices": sorted(os.listdir("/sys/class/net"))}), flush=True)
for line in sys.stdin:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.settimeout(10)
        began = time.monotonic_ns()
        probe.sendto(b"x", (line.strip(), 7700))
        probe.recv(2048)
        print(json.dumps({"round_trip_ns": time.monotonic_ns() - began}), flush=True)
"""


class Member:
    """A container that answers, and the lines that it prints."""

    def __init__(self, runtime: DockerRuntime, node: Node, log_path: Path) -> None:
        self.said: queue.SimpleQueue[str] = queue.SimpleQueue()
        program = Program(argv=["python3", "-c", MEMBER])
        self.handle: ContainerHandle = runtime.start(node, program, on_line=self.said.put, log_path=log_path)
        self.devices = self.read()["devices"]

    def read(self) -> dict[str, object]:
        answer = json.loads(self.said.get(timeout=BOUND_S))
        assert isinstance(answer, dict)
        return answer

    def round_trip_ns(self, to: Node) -> int:
        """The shortest of some round trips: a busy machine only lengthens them."""
        return min(self._one_round_trip_ns(to) for _ in range(SAMPLES))

    def _one_round_trip_ns(self, to: Node) -> int:
        self.handle.send(to.ip)
        taken = self.read()["round_trip_ns"]
        assert isinstance(taken, int)
        return taken


@pytest.fixture
def network(tmp_path: Path) -> Iterator[EmulatedNetwork]:
    topology = wired.topology(2, to_node=Impairment(delay_ns=DELAY_NS))
    with EmulatedNetwork.open(topology, log_dir=tmp_path / "network") as network:
        yield network


def test_containers_talk_over_impaired_wires_also_after_a_crash(network: EmulatedNetwork, tmp_path: Path) -> None:
    first, second = network.topology.nodes()
    before = set(Path("/sys/class/net").iterdir())
    with closing(connect()) as client:
        image = ensure_image(client)
    with DockerRuntime(network, run_id=f"test/network-{os.getpid()}", image=image) as runtime:
        near, far = (Member(runtime, node, tmp_path / "log") for node in (first, second))
        assert near.devices == far.devices == ["eth0", "lo"]
        assert 2 * DELAY_NS <= near.round_trip_ns(second) <= 3 * DELAY_NS
        far.handle.kill()
        again = Member(runtime, second, tmp_path / "log")
        assert 2 * DELAY_NS <= again.round_trip_ns(first) <= 3 * DELAY_NS
        assert 2 * DELAY_NS <= near.round_trip_ns(second) <= 3 * DELAY_NS
    assert set(Path("/sys/class/net").iterdir()) == before
    assert network.infrastructure_drops() == {}
