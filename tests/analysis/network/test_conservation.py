"""Frames counted by destination, compared with the kernel's counters."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from analysis.inputs import Manifest
from analysis.network.addresses import Flow, ip_number, mac_number
from analysis.network.conservation import balance, queue_drops
from analysis.network.realised import ELSEWHERE
from analysis.requested_network import Element
from topologies import load
from topologies.model import TRACE_MAC, Topology

GROUP_MAC, GROUP_IP = 0x01005E4D0001, 0xEF4D0001

ONE = load.loads("name: one\npartitions:\n  p1: {nodes: 3}\n")
TWO = load.loads("name: two\npartitions:\n  p1: {nodes: 2}\n  p2: {nodes: 1}\nlinks:\n  - {between: [p1, p2]}\n")


def manifest(*counters: dict[str, Any], **more: Any) -> Manifest:
    known = {"format": 1, "run": "x", "status": "complete", "group": 1, "counters": tuple(counters)}
    return Manifest.model_validate(known | more)


TO_N2, FROM_N1 = ("p1/n2", "to-node"), ("p1/n1", "from-node")


def counted(port: tuple[str, str], sent: int, **dropped: int) -> dict[str, Any]:
    return {"node": port[0], "direction": port[1], "sent_frames": sent, **dropped}


def entries(
    *flows: Flow,
    topology: Topology = ONE,
    known: Manifest | None = None,
    copies: int = 0,
    copying: Collection[Element] = (),
) -> dict[tuple[str, str], dict[str, Any]]:
    """`copies`: extra ones to p1/n2."""
    found = balance(flows, topology, known or manifest(), {("to-node", "p1/n2"): copies}, copying=copying)
    return {(e["node"], e["direction"]): e for e in found}


def to_group(member: int, frames: int, direction: str = "from-node") -> Flow:
    return Flow(member, direction, GROUP_MAC, GROUP_IP, frames)


MULTICAST = (to_group(0, 100), to_group(2, 10))
THIRD = Flow(0, "from-node", mac_number(ONE.node("p1/n3").mac), ip_number(ONE.node("p1/n3").ip), 7)
LOST = counted(FROM_N1, 60, delay_line_dropped_frames=40)


@pytest.mark.parametrize(("flows", "offered"), [(MULTICAST, [10, 110, 100]), ((THIRD,), [0, 0, 7])])
def test_a_multicast_is_offered_to_all_others_and_a_unicast_to_its_address(
    flows: tuple[Flow, ...], offered: list[int]
) -> None:
    found = entries(*flows)
    assert [found[f"p1/n{n}", "to-node"]["offered"] for n in (1, 2, 3)] == offered
    assert found[FROM_N1]["offered"] == flows[0].frames


def test_what_arrived_and_what_was_dropped_add_up() -> None:
    drops = {"delay_line_dropped_frames": 12, "queue_dropped_frames": 9, "cut_dropped_frames": 4, "backlog_frames": 3}
    known = manifest(counted(TO_N2, 85, **drops))
    found = entries(*MULTICAST, to_group(1, 85, "to-node"), known=known, copies=3)[TO_N2]

    assert (found["offered"], found["arrived"], found["unexplained"]) == (110, 82, 0)
    assert (found["dropped_delay_line"], found["dropped_queue"], found["dropped_cut"]) == (12, 9, 4)


def test_a_frame_that_nobody_dropped_and_nobody_got_is_unexplained() -> None:
    found = entries(*MULTICAST, to_group(1, 109, "to-node"), known=manifest(counted(TO_N2, 109)))
    assert found[TO_N2]["unexplained"] == 1


def test_without_counters_nothing_is_explained() -> None:
    found = entries(*MULTICAST)[TO_N2]
    assert (found["dropped_queue"], found["unexplained"]) == (None, None)


def test_what_senders_lost_of_their_multicasts_never_came_near() -> None:
    known = manifest(LOST, counted(TO_N2, 70))
    found = entries(*MULTICAST, to_group(1, 70, "to-node"), known=known)

    assert (found[TO_N2]["dropped_before"], found[TO_N2]["unexplained"]) == (40, 0)
    assert (found[FROM_N1]["arrived"], found[FROM_N1]["unexplained"]) == (60, 0)
    for flows in ((*MULTICAST, THIRD), (THIRD, *MULTICAST)):
        also_to_one = entries(*flows, known=known)[TO_N2]
        assert (also_to_one["dropped_before"], also_to_one["unexplained"]) == (None, None), "it cannot be told apart"


def test_routers_hand_on_multicasts_of_the_group_and_unicasts_but_nothing_else() -> None:
    igmp = Flow(0, "from-node", 0x01005E000016, 0xE0000016, 3)
    far = Flow(0, "from-node", mac_number(TWO.partition("p1").router_mac), ip_number(TWO.node("p2/n1").ip), 5)
    found = entries(to_group(0, 100), igmp, far, topology=TWO)

    assert (found[TO_N2]["offered"], found["p2/n1", "to-node"]["offered"]) == (103, 105)


def test_a_near_multicast_is_offered_to_the_neighbours_only() -> None:
    flows = [
        Flow(0, "from-node", 0x01005E4D0101, ip_number("239.77.1.1"), 30),
        Flow(2, "from-node", 0x01005E4D0102, ip_number("239.77.1.2"), 4),
        Flow(1, "to-node", 0x01005E4D0101, ip_number("239.77.1.1"), 15),
    ]
    lost = counted(FROM_N1, 20, delay_line_dropped_frames=10)
    found = entries(*flows, topology=TWO, known=manifest(lost, counted(TO_N2, 15, queue_dropped_frames=5)))

    assert [found[name, "to-node"]["offered"] for name in ("p1/n1", "p1/n2", "p2/n1")] == [0, 30, 0]
    assert (found[TO_N2]["dropped_before"], found[TO_N2]["unexplained"]) == (10, 0)
    assert found[FROM_N1]["unexplained"] == 0
    assert found["p2/n1", "to-node"]["dropped_before"] is None, "what of it was lost there was not all for everybody"


def test_losses_on_links_leave_the_rest_unexplained_rather_than_wrong() -> None:
    known = manifest(counted(TO_N2, 100), link_counters=({"queue_dropped_frames": 4},))
    assert entries(to_group(0, 100), topology=TWO, known=known)[TO_N2]["unexplained"] is None


def test_a_link_may_have_dropped_copies_that_nobody_counts() -> None:
    known = manifest(counted(FROM_N1, 105), link_counters=({"queue_dropped_frames": 4},))
    found = balance((to_group(0, 100),), TWO, known, {("from-node", "p1/n1"): 8}, copying=THERE)
    assert [entry["unexplained"] for entry in found if (entry["node"], entry["direction"]) == FROM_N1] == [None]


@pytest.mark.parametrize("place", ["link_counters", "bus_counters"])
def test_frames_that_a_link_or_a_shared_medium_holds_at_the_end_may_be_for_any_node(place: str) -> None:
    known = manifest(counted(TO_N2, 90), **{place: ({"backlog_frames": 10},)})
    found = entries(to_group(0, 100), to_group(1, 90, "to-node"), known=known)
    assert found[TO_N2]["unexplained"] is None


def test_frames_that_a_senders_port_holds_at_the_end_never_came_near() -> None:
    known = manifest(counted(FROM_N1, 60, backlog_frames=40), counted(TO_N2, 60))
    found = entries(to_group(0, 100), to_group(1, 60, "to-node"), known=known)
    assert (found[TO_N2]["dropped_before"], found[TO_N2]["unexplained"], found[FROM_N1]["unexplained"]) == (40, 0, 0)


HERE, THERE, ON_LINK = {("to-node", "p1/n2")}, {("from-node", "p1/n1")}, {("there", "p1-p2")}


@pytest.mark.parametrize(
    ("copying", "here", "there", "flows", "expected"),
    [
        (HERE, {"duplicated_frames": 20, "delay_line_dropped_frames": 12}, {}, (), (98, 0)),
        (HERE, {"delay_line_dropped_frames": 12}, {}, (), (None, None)),
        (HERE, {"backlog_frames": 12}, {}, (), (None, None)),
        (HERE, {}, {}, (), (100, 10)),
        (THERE, {"delay_line_dropped_frames": 12}, {"duplicated_frames": 20}, (), (98, 0)),
        (THERE, {"delay_line_dropped_frames": 12}, {"duplicated_frames": 20}, (THIRD,), (None, None)),
        (THERE, {"delay_line_dropped_frames": 12}, {}, (), (None, None)),
        (ON_LINK, {"delay_line_dropped_frames": 12}, {}, (), (None, None)),
        (HERE | THERE, {"duplicated_frames": 15, "queue_dropped_frames": 12}, {"duplicated_frames": 5}, (), (98, 0)),
        ({("to-node", "p1/n3"), ("from-node", "p1/n2")}, {"delay_line_dropped_frames": 2}, {}, (), (100, 8)),
    ],
    ids=[
        "counted copies, some of them dropped",
        "copies that are not counted, some of them dropped",
        "copies that are not counted, some of them waiting",
        "copies that are not counted, and all arrived",
        "counted copies of a sender",
        "counted copies of a sender, not all for this node",
        "copies of a sender that are not counted",
        "copies of a link",
        "counted copies of both ports",
        "ports elsewhere make copies",
    ],
)
def test_copies_that_were_dropped_are_counted_or_leave_the_rest_unknown(
    copying: set[Element],
    here: dict[str, int],
    there: dict[str, int],
    flows: tuple[Flow, ...],
    expected: tuple[int | None, int | None],
) -> None:
    """Of 110 frames and their copies 118 arrive, 18 of them as second ones."""
    known = manifest(counted(TO_N2, 118, **here), counted(FROM_N1, 120, **there))
    found = entries(*MULTICAST, *flows, to_group(1, 118, "to-node"), known=known, copies=18, copying=copying)[TO_N2]
    assert (found["arrived"], found["unexplained"]) == expected


@pytest.mark.parametrize("port", [TO_N2, FROM_N1])
@pytest.mark.parametrize(
    ("copying", "counts", "arrive", "expected"),
    [
        (True, {}, 108, None),
        (True, {}, 107, 0),
        (True, {}, 106, 1),
        (True, {"duplicated_frames": 5}, 108, -1),
        (False, {}, 108, -1),
    ],
    ids=["a doubled report", "none", "a frame is missing", "copies are counted", "no copies were asked for"],
)
def test_copies_of_frames_of_other_programs_are_not_seen(
    port: tuple[str, str], copying: bool, counts: dict[str, int], arrive: int, expected: int | None
) -> None:
    """Of 100 datagrams five are seen to be doubled; two reports of IGMP have no number."""
    igmp = Flow(0, "from-node", 0x01005E000016, 0xE0000016, 2)
    known = manifest(counted(port, arrive, **counts))
    made = {(port[1], port[0])}
    found = balance(
        (igmp, to_group(0, 100), to_group(1, arrive, "to-node")),
        ONE,
        known,
        dict.fromkeys(made, 5),
        copying=made if copying else (),
    )
    assert [entry["unexplained"] for entry in found if (entry["node"], entry["direction"]) == port] == [expected]


@pytest.mark.parametrize(("kept", "counts", "expected"), [(0, {}, 0), (1, {}, None), (1, {"duplicated_frames": 25}, 0)])
def test_copies_of_a_senders_port_that_are_dropped_further_on(
    kept: int, counts: dict[str, int], expected: int | None
) -> None:
    known = manifest(
        counted(FROM_N1, 100 + (25 if counts else 20), **counts), counted(TO_N2, 9, queue_dropped_frames=kept)
    )
    found = balance((to_group(0, 100),), ONE, known, {("from-node", "p1/n1"): 20}, copying=THERE)
    assert [entry["unexplained"] for entry in found if (entry["node"], entry["direction"]) == FROM_N1] == [expected]


def test_damaged_frames_leave_the_rest_unexplained_where_they_may_be_refused_or_copies() -> None:
    copies = {("from-node", "p1/n1"): 5}
    known = manifest(counted(TO_N2, 100), counted(FROM_N1, 105), counted(("p1/n3", "from-node"), 10))
    found = balance(MULTICAST, ONE, known, copies, copying=THERE, is_corrupting=True)
    assert {entry["unexplained"] for entry in found if entry["direction"] == "to-node"} == {None}
    assert [entry["unexplained"] for entry in found if entry["direction"] == "from-node"] == [None, None, 0]


@pytest.mark.parametrize(("world", "is_gone"), [("docker", True), ("netns", False), ("sim", False)])
def test_a_container_that_was_gone_took_its_port_along(world: str, is_gone: bool) -> None:
    found = balance(MULTICAST, ONE, manifest(world=world), {}, down={"p1/n2"})
    assert [bool(entry["reason"]) for entry in found] == [False, False, is_gone, False, False, False]
    known = manifest(counted(TO_N2, 50, queue_dropped_frames=9), world=world)
    assert queue_drops(known, {"p1/n2"}) == {ELSEWHERE: 0} | ({} if is_gone else {("to-node", "p1/n2"): 9})


@pytest.mark.parametrize(
    ("address", "is_forwarded"),
    [(GROUP_MAC, True), (mac_number(TRACE_MAC), False), (mac_number("01:80:c2:00:00:00"), False)],
)
def test_trace_frames_are_not_forwarded(address: int, is_forwarded: bool) -> None:
    assert Flow(0, "from-node", address, 0, 5).is_forwarded is is_forwarded


def test_what_queues_dropped_or_still_hold_is_known_of_all_ports_that_never_went() -> None:
    known = manifest(
        counted(TO_N2, 50, delay_line_dropped_frames=3, queue_dropped_frames=9, backlog_frames=2),
        counted(FROM_N1, 60, queue_dropped_frames=1),
        link_counters=({"queue_dropped_frames": 4, "cut_dropped_frames": 7}, {"backlog_frames": 1}),
        bus_counters=({"queue_dropped_frames": 5, "collision_dropped_frames": 6},),
    )

    assert queue_drops(known, {"p1/n1"}) == {("to-node", "p1/n2"): 11, ELSEWHERE: 16}
    assert queue_drops(manifest(), ()) == {}
