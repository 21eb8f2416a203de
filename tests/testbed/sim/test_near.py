"""Near multicasts in virtual time: their receivers and paths, their frames in captures and counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP
from scapy.layers.l2 import Ether

from analysis.capture.decode import decode_frames
from analysis.metrics.offered import FROM_NODE, lan_loads
from analysis.network.addresses import ip_number
from analysis.spacetime.compose import compose
from analysis.spacetime.model import Window
from collector.parse import map_capture, parse_blocks, read_interfaces
from node.trace import Event
from testbed.sim.capture import SimulatedCapture
from testbed.sim.member import IncarnationRun
from testbed.sim.network import Datagram, Tap
from testbed.sim.point import LoadMeter
from testbed.sim.simulation import START_NS, Simulation, simulate
from testbed.spec.faults import Fault, Pause, Resume
from testbed.spec.raw import Dissemination
from tests.node.near import NearCore
from tests.testbed.sim.made import MILLISECOND, SECOND, Lan, at_instants, experiment, link, topology
from tests.testbed.sim.scenes import SightingTap, scene_of
from topologies.model import Bus, Impairment, Node, NodeName, Topology

LAN = Impairment(delay_ns=MILLISECOND)
BUS = Bus(rate_bps=10_000_000)


def neighbours(network: Topology, member: int) -> list[int]:
    home = list(network.nodes())[member].partition
    return [node.index for node in network.nodes() if node.partition == home and node.index != member]


# Network.


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


# Whole runs.


def run(
    network: Topology, dissemination: Dissemination, tap: Tap | None = None, faults: Sequence[Fault] = ()
) -> Simulation:
    """A run in which each member sends two messages to its neighbours."""
    workload = at_instants(10 * MILLISECOND, 300 * MILLISECOND)
    words = experiment(network, workload=workload, dissemination=dissemination, faults=faults)
    return simulate(words, group=7, tap=tap, build=lambda us, _seed: NearCore(us))


def origins(incarnation: IncarnationRun) -> set[int]:
    return {row[2] for row in incarnation.records if row[0] == Event.DELIVER}


@pytest.mark.parametrize("dissemination", Dissemination)
@pytest.mark.parametrize("sizes", [(3,), (3, 2), (1, 2, 3)])
def test_members_deliver_what_comes_from_their_own_partition(
    sizes: tuple[int, ...], dissemination: Dissemination
) -> None:
    network = topology(*sizes, to_node=LAN)
    for incarnation in run(network, dissemination).incarnations:
        assert origins(incarnation) == {incarnation.member, *neighbours(network, incarnation.member)}
        assert incarnation.received == 2 * len(neighbours(network, incarnation.member))


@pytest.mark.parametrize("dissemination", Dissemination)
def test_transmissions_are_numbered_by_the_datagram(dissemination: Dissemination) -> None:
    tap = _Kept()
    simulation = run(topology(3, 1, to_node=LAN), dissemination, tap)
    is_unicast = dissemination is not Dissemination.MULTICAST
    sent = [(d.destination.index if d.destination else None, d.transmission) for d in tap.sent if d.source.index == 1]
    assert sent == ([(0, 1), (2, 2), (0, 3), (2, 4)] if is_unicast else [(None, 1), (None, 2)])
    assert [d.is_near for d in tap.sent] == [not is_unicast] * len(tap.sent)
    records = {
        incarnation.member: [row[8] for row in incarnation.records if row[0] == Event.SEND]
        for incarnation in simulation.incarnations
    }
    assert records[1] == ([1, 3] if is_unicast else [1, 2])
    assert records[3] == [], "whoever has no neighbours sends nothing"


def test_what_a_frozen_member_s_kernel_received_is_handled_when_it_is_thawed() -> None:
    second = NodeName("p1/n2")
    faults = [Pause(id=0, at_ns=0, targets=(second,)), Resume(id=1, at_ns=200 * MILLISECOND, targets=(second,))]
    incarnations = run(topology(2, 1, to_node=LAN), Dissemination.MULTICAST, faults=faults).incarnations
    times_ns = [row[6] for row in incarnations[1].records if row[0] == Event.DELIVER and row[2] == 0]
    assert times_ns == [START_NS + 200 * MILLISECOND, START_NS + 301 * MILLISECOND]


def test_the_capture_shows_the_group_of_the_segment_and_one_hop(tmp_path: Path) -> None:
    network = topology(2, 2, to_node=LAN)
    path = tmp_path / "capture.pcapng"
    capture = SimulatedCapture(path, network, {"group": 7})
    run(network, Dissemination.MULTICAST, capture)
    capture.close()
    head, buffer = read_interfaces(path), map_capture(path)
    frames = parse_blocks(buffer, start=head.first_offset, end=len(buffer), interfaces=head.interfaces)
    nodes = {node.ip: node for node in network.nodes()}
    seen = []
    for row in decode_frames(buffer.data, frames)["is_protocol"].nonzero()[0].tolist():
        offset, size = int(frames.offset[row]), int(frames.captured[row])
        packet = Ether(bytes(buffer[offset : offset + size]))
        node = nodes[packet[IP].src]
        group = network.partition(node.partition).multicast_group
        assert (packet[IP].dst, packet[IP].ttl, packet.src) == (group, 1, node.mac)
        assert packet.dst == f"01:00:5e:4d:01:{node.partition_index:02x}"
        seen.append((node.name, head.interfaces.names[int(frames.interface[row])]))
    pairs = [(a, b) for part in network.partitions for a in part.nodes for b in part.nodes]
    assert sorted(seen) == sorted((a.name, b.name) for a, b in pairs for _ in range(2)), "each at both ports"


def test_the_load_of_near_multicasts_is_that_of_their_own_medium() -> None:
    network = topology(3, 2, bus=BUS)
    meter = LoadMeter(network, until_ns=START_NS + SECOND)
    load = meter.load(run(network, Dissemination.MULTICAST, meter).incarnations)
    sent = [flow for flow in load.flows if flow.direction == FROM_NODE]
    groups = [ip_number(part.multicast_group) for part in network.partitions]
    assert [(flow.node_index, flow.ip_dst, flow.datagrams) for flow in sent] == [
        *((member, groups[0], 2) for member in (0, 1, 2)),
        *((member, groups[1], 2) for member in (3, 4)),
    ]
    assert [(one.datagrams, one.messages) for one in load.sent] == [(10, 10)]
    shares = {row["partition"]: row["load"] for row in lan_loads(load.flows, network, 1.0)}
    bits = [8 * sum(flow.wire_bytes for flow in sent if flow.ip_dst == group) for group in groups]
    assert shares == pytest.approx({f"p{place}": own / BUS.rate_bps for place, own in enumerate(bits, start=1)})


def test_a_diagram_shows_arrows_to_neighbours_and_losses_only_there() -> None:
    lossy = topology(2, 2, to_node=Impairment(delay_ns=MILLISECOND, loss_ratio=1.0))
    tap = SightingTap()
    scene = scene_of(lossy, run(lossy, Dissemination.MULTICAST, tap), tap)
    arrows = compose(scene, Window(scene.first_ns, scene.last_ns)).arrows
    assert sorted({(arrow.sender, arrow.receiver) for arrow in arrows}) == [(0, 1), (1, 0), (2, 3), (3, 2)]
    assert all(arrow.head is None for arrow in arrows)


@dataclass
class _Kept:
    """A tap that keeps the datagrams of nodes."""

    sent: list[Datagram] = field(default_factory=list)

    def frame(self, port: Node, inbound: bool, at_ns: int, datagram: Datagram) -> None:
        if inbound and not datagram.is_trace:
            self.sent.append(datagram)
