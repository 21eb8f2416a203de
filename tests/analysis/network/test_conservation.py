"""Frames counted by destination, compared with the kernel's counters."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.inputs import Manifest
from analysis.network.addresses import Flow
from analysis.network.conservation import balance
from topologies import load
from topologies.model import TRACE_MAC, Topology

GROUP_MAC, GROUP_IP = 0x01005E4D0001, 0xEF4D0001
IGMP_MAC, IGMP_IP = 0x01005E000016, 0xE0000016

ONE = "name: one\npartitions:\n  p1: {nodes: 3}\n"
TWO = "name: two\npartitions:\n  p1: {nodes: 2}\n  p2: {nodes: 1}\nlinks:\n  - {between: [p1, p2]}\n"
APART = "name: apart\npartitions:\n  p1: {nodes: 2}\n"


def mac(text: str) -> int:
    return int(text.replace(":", ""), 16)


def ip(text: str) -> int:
    return int.from_bytes(bytes(int(part) for part in text.split(".")), "big")


def manifest(*counters: dict[str, Any], **more: Any) -> Manifest:
    known = {"format": 1, "run": "x", "status": "complete", "group": 1, "counters": tuple(counters)}
    return Manifest.model_validate(known | more)


def counted(node: str, direction: str, sent: int, **dropped: int) -> dict[str, Any]:
    return {"node": node, "direction": direction, "sent_frames": sent, **dropped}


def entries(
    flows: list[Flow], topology: Topology, known: Manifest, **extra: int
) -> dict[tuple[str, str], dict[str, Any]]:
    copies = {("to-node", "p1/n2"): extra.get("copies", 0)}
    return {(e["node"], e["direction"]): e for e in balance(flows, topology, known, copies)}


MULTICAST = [Flow(0, "from-node", GROUP_MAC, GROUP_IP, 100), Flow(2, "from-node", GROUP_MAC, GROUP_IP, 10)]


def test_a_multicast_is_offered_to_all_others() -> None:
    found = entries(MULTICAST, load.loads(ONE), manifest())

    assert [found[f"p1/n{n}", "to-node"]["offered"] for n in (1, 2, 3)] == [10, 110, 100]
    assert found["p1/n1", "from-node"]["offered"] == 100


def test_a_unicast_is_offered_to_its_address_only() -> None:
    topology = load.loads(ONE)
    third = topology.node("p1/n3")
    found = entries([Flow(0, "from-node", mac(third.mac), ip(third.ip), 7)], topology, manifest())

    assert [found[f"p1/n{n}", "to-node"]["offered"] for n in (1, 2, 3)] == [0, 0, 7]


def test_what_arrived_and_what_was_dropped_add_up() -> None:
    flows = [*MULTICAST, Flow(1, "to-node", GROUP_MAC, GROUP_IP, 85)]
    drops = {"delay_line_dropped_frames": 12, "queue_dropped_frames": 9, "cut_dropped_frames": 4, "backlog_frames": 3}
    found = entries(flows, load.loads(ONE), manifest(counted("p1/n2", "to-node", 85, **drops)), copies=3)[
        "p1/n2", "to-node"
    ]

    assert (found["offered"], found["arrived"], found["unexplained"]) == (110, 82, 0)
    assert (found["dropped_delay_line"], found["dropped_queue"], found["dropped_cut"]) == (12, 9, 4)


def test_a_frame_that_nobody_dropped_and_nobody_got_is_unexplained() -> None:
    flows = [*MULTICAST, Flow(1, "to-node", GROUP_MAC, GROUP_IP, 109)]
    found = entries(flows, load.loads(ONE), manifest(counted("p1/n2", "to-node", 109)))

    assert found["p1/n2", "to-node"]["unexplained"] == 1


def test_without_counters_nothing_is_explained() -> None:
    found = entries(MULTICAST, load.loads(ONE), manifest())["p1/n2", "to-node"]

    assert (found["dropped_queue"], found["unexplained"]) == (None, None)


def test_what_senders_lost_of_their_multicasts_never_came_near() -> None:
    flows = [*MULTICAST, Flow(1, "to-node", GROUP_MAC, GROUP_IP, 70)]
    lost = counted("p1/n1", "from-node", 60, delay_line_dropped_frames=40)
    found = entries(flows, load.loads(ONE), manifest(lost, counted("p1/n2", "to-node", 70)))

    assert (found["p1/n2", "to-node"]["dropped_before"], found["p1/n2", "to-node"]["unexplained"]) == (40, 0)
    assert (found["p1/n1", "from-node"]["arrived"], found["p1/n1", "from-node"]["unexplained"]) == (60, 0)


def test_what_senders_lost_cannot_be_told_apart_when_they_also_sent_to_one() -> None:
    topology = load.loads(ONE)
    to_third = Flow(0, "from-node", mac(topology.node("p1/n3").mac), ip(topology.node("p1/n3").ip), 5)
    lost = counted("p1/n1", "from-node", 60, delay_line_dropped_frames=40)
    found = entries([*MULTICAST, to_third], topology, manifest(lost, counted("p1/n2", "to-node", 70)))

    assert found["p1/n2", "to-node"]["dropped_before"] is None
    assert found["p1/n2", "to-node"]["unexplained"] is None


def test_routers_hand_on_multicasts_of_the_group_and_unicasts_but_nothing_else() -> None:
    topology = load.loads(TWO)
    far, router = topology.node("p2/n1"), topology.partition("p1").router_mac
    flows = [
        Flow(0, "from-node", GROUP_MAC, GROUP_IP, 100),
        Flow(0, "from-node", IGMP_MAC, IGMP_IP, 3),
        Flow(0, "from-node", mac(router), ip(far.ip), 5),
    ]
    found = entries(flows, topology, manifest())

    assert found["p1/n2", "to-node"]["offered"] == 103
    assert found["p2/n1", "to-node"]["offered"] == 105


def test_a_near_multicast_is_offered_to_the_neighbours_only() -> None:
    topology = load.loads(TWO)
    near = [
        Flow(0, "from-node", 0x01005E4D0101, ip("239.77.1.1"), 30),
        Flow(2, "from-node", 0x01005E4D0102, ip("239.77.1.2"), 4),
    ]
    lost = counted("p1/n1", "from-node", 20, delay_line_dropped_frames=10)
    flows = [*near, Flow(1, "to-node", 0x01005E4D0101, ip("239.77.1.1"), 15)]
    found = entries(flows, topology, manifest(lost, counted("p1/n2", "to-node", 15, queue_dropped_frames=5)))

    assert [found[name, "to-node"]["offered"] for name in ("p1/n1", "p1/n2", "p2/n1")] == [0, 30, 0]
    assert (found["p1/n2", "to-node"]["dropped_before"], found["p1/n2", "to-node"]["unexplained"]) == (10, 0)
    assert found["p1/n1", "from-node"]["unexplained"] == 0
    assert found["p2/n1", "to-node"]["dropped_before"] is None, "what of it was lost there was not all for everybody"


def test_losses_on_links_leave_the_rest_unexplained_rather_than_wrong() -> None:
    lost = manifest(counted("p1/n2", "to-node", 100), link_counters=({"queue_dropped_frames": 4},))
    found = entries([Flow(0, "from-node", GROUP_MAC, GROUP_IP, 100)], load.loads(TWO), lost)

    assert found["p1/n2", "to-node"]["unexplained"] is None


def test_a_port_that_was_gone_says_so() -> None:
    found = balance(MULTICAST, load.loads(ONE), manifest(), {}, crashed={"p1/n2"})

    assert [bool(entry["reason"]) for entry in found] == [False, False, True, False, False, False]


@pytest.mark.parametrize("address", [TRACE_MAC, "01:80:c2:00:00:00"])
def test_trace_frames_are_not_forwarded(address: str) -> None:
    assert not Flow(0, "from-node", mac(address), 0, 5).is_forwarded


def test_multicasts_are() -> None:
    assert Flow(0, "from-node", GROUP_MAC, GROUP_IP, 5).is_forwarded
