"""An emulated segment carries no frames but those of its nodes: watched by a real capture on every device of the
fabric.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from netem.network import EmulatedNetwork, KernelOption
from tests.netem.wired import Group, counts, gathered, inside, new_namespace, run_in_fabric, topology
from topologies.model import MULTICAST_GROUP, PORT_IFINDEX_BASE, TRACE_PORT, Bus, Direction

pytestmark = [pytest.mark.root, pytest.mark.uml]

WATCH = """
import json, select, socket, sys, time
frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
print("watching", flush=True)
seen, end = [], time.monotonic() + float(sys.argv[1])
while (left := end - time.monotonic()) > 0:
    if select.select([frames], [], [], left)[0]:
        data, (device, _protocol, direction, *_rest) = frames.recvfrom(2048)
        seen.append([device, direction == socket.PACKET_OUTGOING, data[:64].hex()])
print(json.dumps(seen), flush=True)
"""


class Seen(NamedTuple):
    device: str
    outgoing: bool
    frame: bytes


Watched = tuple[Group, list[Seen]]


class Watch:
    """Records every frame on every device of the fabric namespace for some seconds."""

    def __init__(self, network: EmulatedNetwork, seconds: float) -> None:
        self._output, self._process = run_in_fabric(network, sys.executable, "-ISc", WATCH, str(seconds))
        assert self._output.readline() == "watching\n"

    def result(self) -> list[Seen]:
        with self._output as output:
            seen = json.loads(output.readline())
        assert self._process.wait(5) == 0
        return [Seen(device, outgoing, bytes.fromhex(frame)) for device, outgoing, frame in seen]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedNetwork]:
    network = topology(3, 2, links=[(1, 2)], bus=Bus(rate_bps=10_000_000))
    with EmulatedNetwork.open(network, kernel=KernelOption.UML, log_dir=tmp_path_factory.mktemp("network")) as opened:
        yield opened


@pytest.fixture(scope="module")
def watched(network: EmulatedNetwork) -> Iterator[Watched]:
    """All nodes attached, and all frames since before the first attachment."""
    watch = Watch(network, 2.5)
    with gathered(network) as group:
        yield group, watch.result()


def test_from_the_first_wire_on_only_the_nodes_own_joins_are_seen(watched: Watched) -> None:
    """Each node joined one group: one IGMP report each at its own port, none repeated; no other frame."""
    _group, seen = watched
    assert {one.frame[:6].hex() for one in seen} == {"01005e000016"}
    at_own_port = Counter(one.frame[6:12].hex() for one in seen if one.device.startswith("ob") and not one.outgoing)
    assert at_own_port == {f"020b0001000{n}": 1 for n in (1, 2, 3)} | {f"020b0002000{n}": 1 for n in (1, 2)}


def test_an_idle_segment_shows_no_frame(network: EmulatedNetwork, watched: Watched) -> None:
    assert Watch(network, 2.0).result() == []


def test_a_node_without_a_program_says_nothing_at_all(network: EmulatedNetwork, watched: Watched) -> None:
    """Wired again into a fresh namespace: link, address, neighbours, routes; and no frame."""
    group, _seen = watched
    watch = Watch(network, 1.0)
    namespace = new_namespace()
    network.attach(group["p2/n2"].node, namespace)
    assert watch.result() == []
    os.close(namespace)


def test_a_trace_frame_reaches_the_capture_and_never_the_emulated_wire(
    network: EmulatedNetwork, watched: Watched
) -> None:
    group, _seen = watched
    member = group["p1/n1"]
    monitor = network.topology.partition("p1").monitor_ip
    before = counts(group, "p1/n1", Direction.FROM_NODE)
    watch = Watch(network, 1.0)
    for _ in range(5):
        member.udp.sendto(b"trace", (monitor, TRACE_PORT))
    seen = watch.result()
    assert [one.device for one in seen if one.frame[:6].hex() == "0180c200000e"] == [member.node.port_device] * 5
    assert len(seen) == 5
    assert counts(group, "p1/n1", Direction.FROM_NODE) == before


def test_ports_have_the_indexes_that_the_capture_looks_for(network: EmulatedNetwork) -> None:
    script = "import socket\nprint(sorted(i for i, n in socket.if_nameindex() if n.startswith('ob')))"
    output, process = run_in_fabric(network, sys.executable, "-ISc", script)
    with output:
        assert json.loads(output.read()) == [PORT_IFINDEX_BASE + index for index in range(5)]
    assert process.wait(5) == 0


def test_a_node_finds_its_network_complete(network: EmulatedNetwork, watched: Watched) -> None:
    """No unresolved neighbours, no IPv6, offloads off: read in the node's own namespace."""
    group, _seen = watched
    with inside(group["p1/n2"].namespace), Path("/proc/thread-self/net/if_inet6").open() as addresses:
        assert addresses.read() == ""
    with inside(group["p1/n2"].namespace):
        probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    probe.connect((MULTICAST_GROUP, 9))
    assert probe.getsockname()[0] == "10.1.0.2"
    probe.connect(("10.2.0.1", 9))
    assert probe.getsockname()[0] == "10.1.0.2"
    probe.close()
