"""Near multicasts of the test hosts, the driver and the explorer."""

from __future__ import annotations

import json

from node.host.config import NodeConfig, parse
from node.host.driver import _Wires
from node.host.endpoint import Endpoint
from node.host.host import TRANSMISSION_MASK
from node.wire import Kind, Message, decode_datagram
from testbed.fuzz.local import SUBMIT, LocalStates
from tests.node.cluster import Cluster
from tests.node.host.test_config import changed
from tests.node.near import NearCore

GROUP = 7
WORD = Message(kind=Kind.RELIABLE_DATA, origin=1, incarnation=2, seq=4, payload=b"near")


class Kept(Endpoint):
    """An endpoint that keeps the datagrams to send."""

    def __init__(self, config: NodeConfig) -> None:
        neighbours = config.membership.neighbours
        super().__init__(
            config.address, config.peers, multicast=config.multicast, ttl=1, near=config.near, neighbours=neighbours
        )
        self.sent: list[tuple[str, int]] = []
        """(IP address, transmission number)."""

    def transmit(self, datagram: bytes, target: tuple[str, int], *, is_near: bool = False) -> None:
        assert is_near
        envelope, message = decode_datagram(datagram, group=GROUP)
        assert message == WORD
        self.sent.append((target[0], envelope.transmission))


def sent(dissemination: str, transmission: int) -> tuple[int, list[tuple[str, int]]]:
    """The fan-out, and the datagrams of one near multicast of member 1, whose neighbours are 0 and 3."""
    words = json.loads(changed("dissemination", dissemination))
    words["members"] = [
        {"index": index, "ip": f"127.0.0.{index + 1}", "partition": 2 if index == 2 else 1} for index in range(4)
    ]
    config = parse(json.dumps(words | {"ip": "127.0.0.2"}))
    endpoint = Kept(config)
    try:
        wires = _Wires(config, endpoint)
        wires.multicast(WORD, transmission, is_near=True)
        return wires.near_fan_out, endpoint.sent
    finally:
        endpoint.close()


def test_the_driver_sends_one_datagram_to_the_group_or_one_to_each_neighbour() -> None:
    assert sent("multicast", 5) == (1, [("239.77.1.1", 5)])
    assert sent("unicast", TRANSMISSION_MASK) == (2, [("127.0.0.1", TRANSMISSION_MASK), ("127.0.0.4", 0)])


def test_a_cluster_of_sub_networks_keeps_them_apart() -> None:
    cluster = Cluster(5, lambda us, _seed: NearCore(us), partitions=((0, 2, 4), (1, 3)))
    cluster.submit(4)
    cluster.submit(1)
    cluster.run(1_000_000_000)
    heard = {member: {origin for origin, _, _ in host.delivered} for member, host in cluster.hosts.items()}
    assert heard == {0: {4}, 2: {4}, 4: {4}, 1: {1}, 3: {1}}


def test_the_explorer_has_one_sub_network() -> None:
    states = LocalStates(NearCore, (0, 1, 0))
    turn = states.turn(states.first[1].state, SUBMIT)
    assert [target for target, _ in turn.sent] == [0, 2]
