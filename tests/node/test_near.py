"""Near multicasts of the test hosts, the driver and the explorer."""

from __future__ import annotations

import json
from typing import cast

from node.host.config import parse
from node.host.driver import _Wires
from node.host.endpoint import Endpoint
from node.host.host import TRANSMISSION_MASK
from node.wire import Kind, Message, decode_datagram
from testbed.fuzz.local import SUBMIT, LocalStates
from tests.node.cluster import Cluster
from tests.node.host.test_config import GOOD
from tests.node.near import NearCore

WORD = Message(kind=Kind.RELIABLE_DATA, origin=1, incarnation=2, seq=4, payload=b"near")


class Kept:
    """An endpoint with two neighbours that keeps the datagrams to send."""

    fan_out = near_fan_out = 2

    def __init__(self) -> None:
        self.sent: list[tuple[str, int]] = []
        """(IP address, transmission number)."""

    def near_targets(self) -> tuple[tuple[str, int], ...]:
        return ("127.0.0.1", 7700), ("127.0.0.4", 7700)

    def transmit(self, datagram: bytes, target: tuple[str, int], *, is_near: bool) -> None:
        envelope, message = decode_datagram(datagram, group=GOOD["group"])
        assert (message, is_near) == (WORD, True)
        self.sent.append((target[0], envelope.transmission))


def test_the_driver_numbers_each_datagram_of_a_near_multicast() -> None:
    endpoint = Kept()
    wires = _Wires(parse(json.dumps(GOOD)), cast(Endpoint, endpoint))
    wires.multicast(WORD, TRANSMISSION_MASK, is_near=True)
    assert (wires.near_fan_out, endpoint.sent) == (2, [("127.0.0.1", TRANSMISSION_MASK), ("127.0.0.4", 0)])


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
