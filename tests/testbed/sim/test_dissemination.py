"""Near multicasts, and multicasts that routers copy for their partition, as in paper 002: receivers and paths, frames
on the buses, in captures and in diagrams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP
from scapy.layers.l2 import Ether

from analysis.capture.decode import decode_frames
from analysis.metrics.offered import FROM_NODE, lan_loads
from analysis.network.addresses import ip_number
from analysis.spacetime.compose import compose
from analysis.spacetime.model import Arrow, Window
from collector.parse import map_capture, parse_blocks, read_interfaces
from node.trace import Event
from testbed.sim.capture import SimulatedCapture
from testbed.sim.network import Datagram, Tap
from testbed.sim.point import LoadMeter
from testbed.sim.simulation import START_NS, Simulation, simulate
from testbed.spec.faults import Fault, Pause, Resume
from testbed.spec.raw import Dissemination
from tests.node.near import NearCore
from tests.testbed.fuzz.broken import PlainCore
from tests.testbed.sim.made import MILLISECOND, SECOND, Lan, at_instants, experiment, of, topology
from tests.testbed.sim.scenes import SightingTap, scene_of
from topologies.model import Bus, Impairment, Node, NodeName, Topology
from topologies.shapes import link

LAN = Impairment(delay_ns=MILLISECOND)
BUS = Bus(rate_bps=10_000_000)


def neighbours(network: Topology, member: int) -> list[int]:
    home = list(network.nodes())[member].partition
    return [node.index for node in network.nodes() if node.partition == home and node.index != member]


def run_near(
    network: Topology, dissemination: Dissemination, tap: Tap | None = None, faults: Sequence[Fault] = ()
) -> Simulation:
    """Each member sends two messages to its neighbours."""
    workload = at_instants(10 * MILLISECOND, 300 * MILLISECOND)
    words = experiment(network, workload=workload, dissemination=dissemination, faults=faults)
    return simulate(words, group=7, tap=tap, build=lambda us, _seed: NearCore(us))


def run_far(network: Topology, dissemination: Dissemination, tap: Tap | None = None, senders: int = 1) -> Simulation:
    """The first members send one message of 512 bytes each, on the wire."""
    workload = at_instants(10 * MILLISECOND, size_bytes=398)
    words = experiment(network, workload=workload, senders=range(senders), dissemination=dissemination)
    return simulate(words, group=7, tap=tap, build=lambda us, _seed: PlainCore(us))


def captured(path: Path) -> list[tuple[str, Ether, dict[str, int]]]:
    """Port, packet and decoded fields of each protocol frame in a capture."""
    head, buffer = read_interfaces(path), map_capture(path)
    frames = parse_blocks(buffer, start=head.first_offset, end=len(buffer), interfaces=head.interfaces)
    decoded = decode_frames(buffer.data, frames)
    found = []
    for row in decoded["is_protocol"].nonzero()[0].tolist():
        offset, size = int(frames.offset[row]), int(frames.captured[row])
        port = head.interfaces.names[int(frames.interface[row])]
        fields = {name: int(decoded[name][row]) for name in ("ip_dst", "transmission")}
        found.append((port, Ether(bytes(buffer[offset : offset + size])), fields))
    return found


def arrows_of(network: Topology, simulation: Simulation, tap: SightingTap) -> list[Arrow]:
    scene = scene_of(network, simulation, tap)
    return list(compose(scene, Window(scene.first_ns, scene.last_ns)).arrows)


# Near multicasts.


@pytest.mark.parametrize("bus", [None, BUS])
def test_a_near_multicast_floods_its_own_segment_and_no_other(bus: Bus | None) -> None:
    lan = Lan(topology(3, 2, bus=bus))
    first, second = lan.send(1, is_near=True), lan.send(3, is_near=True)
    lan.run()
    assert (lan.receivers(first), lan.receivers(second)) == ([0, 2], [4])
    assert all(one["sent_frames"] + one["backlog_frames"] == 0 for one in lan.network.link_counters())
    assert [one["sent_frames"] for one in lan.network.bus_counters()] == ([1, 1] if bus else [])


def test_a_cut_stops_a_near_multicast_and_is_counted() -> None:
    lan = Lan(topology(3, 2))
    lan.network.block([(lan.nodes[0], lan.nodes[1]), (lan.nodes[0], lan.nodes[3])])
    number = lan.send(0, is_near=True)
    assert lan.run().receivers(number) == [2]
    ports = lan.network.port_counters()
    cut = {one["node"]: one["cut_dropped_frames"] for one in ports if one["direction"] == "to-node"}
    assert cut == {"p1/n1": 0, "p1/n2": 1, "p1/n3": 0, "p2/n1": 0, "p2/n2": 0}, "what goes nowhere meets no cut"


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    has_bus=st.booleans(),
    is_ring=st.booleans(),
    data=st.data(),
)
def test_all_neighbours_that_no_cut_parts_get_a_near_multicast_once(
    sizes: list[int], has_bus: bool, is_ring: bool, data: st.DataObject
) -> None:
    ring = [link("p1", "p2"), link("p2", "p3"), link("p3", "p1")] if is_ring and len(sizes) == 3 else []
    lan = Lan(topology(*sizes, bus=BUS if has_bus else None, links=ring))
    members = st.integers(0, len(lan.nodes) - 1)
    cut = data.draw(st.sets(st.tuples(members, members), max_size=6))
    lan.network.block([(lan.nodes[one], lan.nodes[other]) for one, other in cut])
    senders = data.draw(st.lists(members, min_size=1, max_size=6))
    numbers = [(sender, lan.send(sender, is_near=True), lan.send(sender)) for sender in senders]
    lan.run()
    for sender, near, wide in numbers:
        expected = [member for member in neighbours(lan.topology, sender) if (sender, member) not in cut]
        assert lan.receivers(near) == expected
        assert set(lan.receivers(near)) <= set(lan.receivers(wide))


@pytest.mark.parametrize("dissemination", Dissemination)
@pytest.mark.parametrize("sizes", [(3,), (3, 2), (1, 2, 3)])
def test_members_deliver_what_comes_from_their_own_partition(
    sizes: tuple[int, ...], dissemination: Dissemination
) -> None:
    network = topology(*sizes, to_node=LAN)
    for incarnation in run_near(network, dissemination).incarnations:
        others = neighbours(network, incarnation.member)
        origins = {row[2] for row in incarnation.records if row[0] == Event.DELIVER}
        assert (origins, incarnation.received) == ({incarnation.member, *others}, 2 * len(others))


@dataclass
class Kept:
    """A tap that keeps the datagrams of nodes."""

    sent: list[Datagram] = field(default_factory=list)

    def frame(self, port: Node, inbound: bool, at_ns: int, datagram: Datagram) -> None:
        if inbound and not datagram.is_trace:
            self.sent.append(datagram)


@pytest.mark.parametrize("dissemination", Dissemination)
def test_transmissions_are_numbered_by_the_datagram(dissemination: Dissemination) -> None:
    tap = Kept()
    simulation = run_near(topology(3, 1, to_node=LAN), dissemination, tap)
    is_unicast = dissemination is not Dissemination.MULTICAST
    sent = [(d.destination.index if d.destination else None, d.transmission) for d in tap.sent if d.source.index == 1]
    assert sent == ([(0, 1), (2, 2), (0, 3), (2, 4)] if is_unicast else [(None, 1), (None, 2)])
    assert [d.is_near for d in tap.sent] == [not is_unicast] * len(tap.sent)
    records: list[Any] = [[row[8] for row in one.records if row[0] == Event.SEND] for one in simulation.incarnations]
    assert records[1] == ([1, 3] if is_unicast else [1, 2])
    assert records[3] == [], "whoever has no neighbours sends nothing"


def test_what_a_frozen_member_s_kernel_received_is_handled_when_it_is_thawed() -> None:
    second = NodeName("p1/n2")
    faults = [Pause(id=0, at_ns=0, targets=(second,)), Resume(id=1, at_ns=200 * MILLISECOND, targets=(second,))]
    incarnations = run_near(topology(2, 1, to_node=LAN), Dissemination.MULTICAST, faults=faults).incarnations
    times_ns = [row[6] for row in of(incarnations[1], Event.DELIVER) if row[2] == 0]
    assert times_ns == [START_NS + 200 * MILLISECOND, START_NS + 301 * MILLISECOND]


def test_the_capture_shows_the_group_of_the_segment_and_one_hop(tmp_path: Path) -> None:
    network, path = topology(2, 2, to_node=LAN), tmp_path / "capture.pcapng"
    capture = SimulatedCapture(path, network, {"group": 7})
    run_near(network, Dissemination.MULTICAST, capture)
    capture.close()
    nodes = {node.ip: node for node in network.nodes()}
    seen = []
    for port, packet, _ in captured(path):
        node = nodes[packet[IP].src]
        group = network.partition(node.partition).multicast_group
        assert (packet[IP].dst, packet[IP].ttl, packet.src) == (group, 1, node.mac)
        assert packet.dst == f"01:00:5e:4d:01:{node.partition_index:02x}"
        seen.append((node.name, port))
    pairs = [(a.name, b.name) for part in network.partitions for a in part.nodes for b in part.nodes]
    assert sorted(seen) == sorted(2 * pairs), "each at both ports"


def test_the_load_of_near_multicasts_is_that_of_their_own_medium() -> None:
    network = topology(3, 2, bus=BUS)
    meter = LoadMeter(network, until_ns=START_NS + SECOND)
    load = meter.load(run_near(network, Dissemination.MULTICAST, meter).incarnations)
    sent = [flow for flow in load.flows if flow.direction == FROM_NODE]
    groups = [ip_number(part.multicast_group) for part in network.partitions]
    assert [(flow.node_index, flow.ip_dst, flow.datagrams) for flow in sent] == [
        (member, groups[member > 2], 2) for member in range(5)
    ]
    assert [(one.datagrams, one.messages) for one in load.sent] == [(10, 10)]
    shares = {row["partition"]: row["load"] for row in lan_loads(load.flows, network, 1.0)}
    bits = [8 * sum(flow.wire_bytes for flow in sent if flow.ip_dst == group) for group in groups]
    assert shares == pytest.approx({f"p{place}": own / BUS.rate_bps for place, own in enumerate(bits, start=1)})


# Copies of routers.


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
    simulation = run_far(network, dissemination, meter)
    assert [one["sent_frames"] for one in simulation.bus_counters] == frames
    assert [one.received for one in simulation.incarnations] == [0] + [1] * 29
    loads = lan_loads(meter.load(simulation.incarnations).flows, network, 1.0)
    carried = [one["sent_bytes"] * 8 / BUS.rate_bps for one in simulation.bus_counters]
    assert [one["load"] for one in loads] == pytest.approx(carried)


def test_a_router_far_away_is_reached_over_those_between() -> None:
    simulation = run_far(topology(1, 1, 3, bus=BUS), Dissemination.ROUTERS)
    assert [one.received for one in simulation.incarnations] == [0, 1, 1, 1, 1]
    assert [one["sent_frames"] for one in simulation.bus_counters] == [2, 1, 3]


def test_the_capture_shows_the_router_s_address_and_then_that_of_each_member(tmp_path: Path) -> None:
    network, path = topology(2, 2), tmp_path / "capture.pcapng"
    capture = SimulatedCapture(path, network, {"group": 7})
    run_far(network, Dissemination.ROUTERS, capture)
    capture.close()
    near, *far = list(network.nodes())[1:]
    router = network.partition("p2").router_ip
    expected = [(near.ip, "p1/n1"), (near.ip, near.name), (router, "p1/n1"), *((node.ip, node.name) for node in far)]
    seen = captured(path)
    assert sorted((fields["ip_dst"], port) for port, _, fields in seen) == sorted(
        (ip_number(ip), name) for ip, name in expected
    )
    assert {fields["transmission"] for *_, fields in seen} == {1, 2}, "copies have the number of what was copied"


def test_a_diagram_shows_one_arrow_to_each_member_that_a_datagram_is_for() -> None:
    """Here all are lost."""
    lossy = topology(2, 2, to_node=Impairment(delay_ns=MILLISECOND, loss_ratio=1.0))
    tap = SightingTap()
    near = arrows_of(lossy, run_near(lossy, Dissemination.MULTICAST, tap), tap)
    assert sorted({(arrow.sender, arrow.receiver) for arrow in near}) == [(0, 1), (1, 0), (2, 3), (3, 2)]
    tap = SightingTap()
    copied = arrows_of(lossy, run_far(lossy, Dissemination.ROUTERS, tap, senders=3), tap)
    assert sorted((arrow.sender, arrow.receiver) for arrow in copied) == [
        (sender, receiver) for sender in range(3) for receiver in range(4) if receiver != sender
    ]
    assert all(arrow.head is None for arrow in (*near, *copied))
