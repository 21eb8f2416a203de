"""Multicasts that routers copy for their partition, as in paper 002: frames on the buses, addresses, diagrams."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.capture.decode import decode_frames
from analysis.metrics.offered import lan_loads
from analysis.network.addresses import ip_number
from analysis.spacetime.compose import compose
from analysis.spacetime.model import Window
from collector.parse import map_capture, parse_blocks, read_interfaces
from node.core import Submission
from node.effects import Deliver, Effect, Multicast
from node.wire import Kind
from testbed.sim.capture import SimulatedCapture
from testbed.sim.network import Tap
from testbed.sim.point import LoadMeter
from testbed.sim.simulation import START_NS, Simulation, simulate
from testbed.spec.raw import Dissemination
from tests.node.near import NearCore
from tests.testbed.sim.made import MILLISECOND, SECOND, at_instants, experiment, topology
from tests.testbed.sim.scenes import SightingTap, scene_of
from topologies.model import Bus, Impairment, Topology

BUS = Bus(rate_bps=10_000_000)


class FarCore(NearCore):
    """Tells everybody, and nothing else goes over the wires."""

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        self._last += 1
        message = self._us.message(Kind.RELIABLE_DATA, seq=self._last, payload=submission.payload)
        return [Multicast(message=message), Deliver.of(message)]


def run(network: Topology, dissemination: Dissemination, tap: Tap | None = None, senders: int = 1) -> Simulation:
    """The first members send one message of 512 bytes each, on the wire."""
    workload = at_instants(10 * MILLISECOND, size_bytes=398)
    words = experiment(network, workload=workload, senders=range(senders), dissemination=dissemination)
    return simulate(words, group=7, tap=tap, build=lambda us, _seed: FarCore(us))


@pytest.mark.parametrize(
    ("dissemination", "frames"),
    [
        (Dissemination.MULTICAST, [1, 1, 1]),
        (Dissemination.UNICAST, [29, 10, 10]),
        (Dissemination.ROUTERS, [11, 10, 10]),
    ],
)
def test_a_message_takes_so_many_frames_of_each_bus(dissemination: Dissemination, frames: list[int]) -> None:
    network = topology(10, 10, 10, bus=BUS)
    meter = LoadMeter(network, until_ns=START_NS + SECOND)
    simulation = run(network, dissemination, meter)
    assert [one["sent_frames"] for one in simulation.bus_counters] == frames
    assert [one.received for one in simulation.incarnations] == [0] + [1] * 29
    loads = lan_loads(meter.load(simulation.incarnations).flows, network, 1.0)
    carried = [one["sent_bytes"] * 8 / BUS.rate_bps for one in simulation.bus_counters]
    assert [one["load"] for one in loads] == pytest.approx(carried)


def test_a_router_far_away_is_reached_over_those_between() -> None:
    network = topology(1, 1, 3, bus=BUS)
    simulation = run(network, Dissemination.ROUTERS)
    assert [one.received for one in simulation.incarnations] == [0, 1, 1, 1, 1]
    assert [one["sent_frames"] for one in simulation.bus_counters] == [2, 1, 3]


def test_the_capture_shows_the_router_s_address_and_then_that_of_each_member(tmp_path: Path) -> None:
    network, path = topology(2, 2), tmp_path / "capture.pcapng"
    capture = SimulatedCapture(path, network, {"group": 7})
    run(network, Dissemination.ROUTERS, capture)
    capture.close()
    head, buffer = read_interfaces(path), map_capture(path)
    frames = parse_blocks(buffer, start=head.first_offset, end=len(buffer), interfaces=head.interfaces)
    decoded = decode_frames(buffer.data, frames)
    rows = decoded["is_protocol"].nonzero()[0].tolist()
    seen = sorted((int(decoded["ip_dst"][row]), head.interfaces.names[int(frames.interface[row])]) for row in rows)
    near, *far = list(network.nodes())[1:]
    router = network.partition("p2").router_ip
    expected = [(near.ip, "p1/n1"), (near.ip, near.name), (router, "p1/n1"), *((node.ip, node.name) for node in far)]
    assert seen == sorted((ip_number(ip), name) for ip, name in expected)
    assert {int(decoded["transmission"][row]) for row in rows} == {1, 2}, "copies have the number of what was copied"


def test_a_diagram_shows_an_arrow_to_each_member_once() -> None:
    lossy = topology(2, 2, to_node=Impairment(delay_ns=MILLISECOND, loss_ratio=1.0))
    tap = SightingTap()
    scene = scene_of(lossy, run(lossy, Dissemination.ROUTERS, tap, senders=3), tap)
    arrows = compose(scene, Window(scene.first_ns, scene.last_ns)).arrows
    assert sorted((arrow.sender, arrow.receiver) for arrow in arrows) == [
        (sender, receiver) for sender in range(3) for receiver in range(4) if receiver != sender
    ]
    assert all(arrow.head is None for arrow in arrows)
