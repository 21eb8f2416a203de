"""Near multicasts on real wires, sent by the sockets of nodes: all nodes of the segment receive them, no router
forwards them, and they equal those of the simulator.
"""

from __future__ import annotations

import select
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from node.host.config import Address
from node.host.endpoint import Endpoint
from testbed.sim.capture import Framer
from testbed.spec.nodes import MULTICAST_TTL
from tests.netem.wired import Group, counts, inside, opened, topology
from topologies.model import MULTICAST_GROUP, PROTOCOL_PORT, Bus, Direction, NodeName

pytestmark = [pytest.mark.root, pytest.mark.uml]

NETWORK = topology(3, 2, links=[(1, 2)], bus=Bus(rate_bps=10_000_000))
NAMES = tuple(str(node.name) for node in NETWORK.nodes())
P1, P2 = NAMES[:3], NAMES[3:]


class Nodes:
    """An endpoint in each node's namespace."""

    def __init__(self, group: Group, stack: ExitStack, *, has_multicast: bool = True) -> None:
        self.group = group
        self.ends: dict[str, Endpoint] = {}
        addresses = {node.index: Address(ip=node.ip, port=PROTOCOL_PORT) for node in NETWORK.nodes()}
        for node in NETWORK.nodes():
            partition = NETWORK.partition(node.partition)
            with inside(group[node.name].namespace):
                made = Endpoint(
                    addresses[node.index],
                    {index: address for index, address in addresses.items() if index != node.index},
                    multicast=Address(ip=MULTICAST_GROUP, port=PROTOCOL_PORT) if has_multicast else None,
                    ttl=MULTICAST_TTL,
                    near=Address(ip=partition.multicast_group, port=PROTOCOL_PORT) if has_multicast else None,
                    neighbours=[other.index for other in partition.nodes if other is not node],
                )
            self.ends[node.name] = stack.enter_context(closing(made))

    def near(self, name: str, payload: bytes) -> None:
        end = self.ends[name]
        for target in end.near_targets():
            end.transmit(payload, target, is_near=True)

    def received(self, expected: int) -> Counter[tuple[str, bytes]]:
        """Number of receipts of each payload by each node's program: waits for `expected` (3 s), then for
        further ones.
        """
        owner = {one: name for name, end in self.ends.items() for one in end.sockets}
        found: Counter[tuple[str, bytes]] = Counter()
        deadline = time.monotonic() + 3.0
        while ready := select.select(list(owner), [], [], 0.3 if found.total() >= expected else 1.0)[0]:
            found.update((owner[one], data) for one in ready for data, _ in self.ends[owner[one]].receive(one))
            if time.monotonic() > deadline:
                break
        return found

    def passed(self, payload: bytes) -> dict[str, list[bytes]]:
        """The frames with this payload at each switch port, in either direction."""
        found: dict[str, list[bytes]] = {name: [] for name in self.ends}
        for name in self.ends:
            port = self.group[name].port
            while select.select([port], [], [], 0)[0]:
                frame = port.recv(2048)
                if frame.endswith(payload):
                    found[name].append(frame)
        return found


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with opened(NETWORK, tmp_path_factory.mktemp("network")) as made:
        for member in made.members.values():
            member.udp.close()  # its port is used by the endpoint
        yield made


@pytest.fixture
def nodes(group: Group) -> Iterator[Nodes]:
    with ExitStack() as stack:
        yield Nodes(group, stack)
    group.network.block(frozenset())
    assert group.network.infrastructure_drops() == {}, "what a router refuses is no loss"


def of_link(group: Group) -> int:
    return sum(one.sent_frames + one.backlog_frames for one in group.network.link_counters())


def others(names: tuple[str, ...], sender: str, payload: bytes) -> Counter[tuple[str, bytes]]:
    return Counter((name, payload) for name in names if name != sender)


def test_all_of_the_segment_get_it_and_nobody_else(nodes: Nodes) -> None:
    before = of_link(nodes.group)
    nodes.near(P1[1], b"near of p1")
    nodes.near(P2[0], b"near of p2")
    assert nodes.received(3) == others(P1, P1[1], b"near of p1") + others(P2, P2[0], b"near of p2")
    assert of_link(nodes.group) == before, "no router has put it on the link"
    end = nodes.ends[P1[1]]
    for target in end.multicast_targets():
        end.transmit(b"for everybody", target)
    assert nodes.received(4) == others(NAMES, P1[1], b"for everybody")
    assert of_link(nodes.group) == before + 1


def test_no_router_passes_it_on_even_if_it_could_live_longer(nodes: Nodes) -> None:
    """Two guards: the time to live, and that routers have no route for the group."""
    before = of_link(nodes.group)
    end = nodes.ends[P1[0]]
    for _ in range(40):
        end.transmit(b"far-reaching", end.near_targets()[0])
    found = nodes.received(80)
    assert found == Counter({(name, b"far-reaching"): 40 for name in P1[1:]})
    assert all(frame[22] == MULTICAST_TTL for frame in nodes.passed(b"far-reaching")[P1[1]])
    assert of_link(nodes.group) == before


def test_who_joins_the_group_of_another_segment_gets_nothing_of_it(nodes: Nodes) -> None:
    spy = NETWORK.node(P2[1])
    with inside(nodes.group[spy.name].namespace), closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as ear:
        foreign = NETWORK.partition("p1").multicast_group
        ear.bind((foreign, PROTOCOL_PORT))
        membership = socket.inet_aton(foreign) + socket.inet_aton(spy.ip)
        ear.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        nodes.near(P1[0], b"ours")
        assert nodes.received(2) == others(P1, P1[0], b"ours")
        assert not select.select([ear], [], [], 0)[0]


def test_a_cut_stops_it_between_neighbours_and_is_counted(nodes: Nodes) -> None:
    nodes.group.network.block(frozenset({(NodeName(P1[0]), NodeName(P1[1]))}))
    before = counts(nodes.group, P1[1], Direction.TO_NODE)["cut"]
    for _ in range(25):
        nodes.near(P1[0], b"cut")
    nodes.near(P1[1], b"back")
    assert nodes.received(27) == Counter({(P1[2], b"cut"): 25, (P1[0], b"back"): 1, (P1[2], b"back"): 1})
    # The cut also stops IGMP reports of the sender's kernel about its groups, if they are late.
    assert 25 <= counts(nodes.group, P1[1], Direction.TO_NODE)["cut"] - before <= 27


def test_its_frames_are_those_of_the_simulator(nodes: Nodes) -> None:
    """Byte for byte, but for the identification that Linux draws and the checksum over it, as in tests.parity."""
    nodes.passed(b"")
    nodes.near(P1[2], b"a near multicast")
    nodes.received(2)
    source = NETWORK.node(P1[2])
    seen = nodes.passed(b"a near multicast")
    assert {name: len(frames) for name, frames in seen.items()} == dict.fromkeys(P1, 1) | dict.fromkeys(P2, 0)
    for name in P1:
        made = Framer(NETWORK).frame(source, None, b"a near multicast", seen_at=NETWORK.node(name), is_near=True)
        (real,) = seen[name]
        assert made[:18] + made[20:24] + made[26:] == real[:18] + real[20:24] + real[26:]
        assert (real[:6].hex(":"), real[22]) == ("01:00:5e:4d:01:01", 1)


def test_without_multicast_each_neighbour_gets_its_own_datagram(group: Group) -> None:
    with ExitStack() as stack:
        nodes = Nodes(group, stack, has_multicast=False)
        nodes.passed(b"")
        nodes.near(P1[0], b"one each")
        assert nodes.received(2) == others(P1, P1[0], b"one each")
        targets = [NETWORK.node(name).mac for name in P1[1:]]
        assert [frame[:6].hex(":") for frame in nodes.passed(b"one each")[P1[0]]] == targets
