"""Frames in the simulated network: their receivers, times, paths and losses."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.sim.network import LEAST_TRAVEL_NS, Datagram, frame_bytes
from tests.testbed.sim.made import MILLISECOND, SECOND, Lan, topology
from topologies.model import Access, Bus, Direction, Impairment, Topology
from topologies.shapes import link

DELAY = Impairment(delay_ns=MILLISECOND)


# One segment.


def test_a_multicast_floods_the_segment_and_does_not_come_back() -> None:
    lan = Lan(topology(4))
    number = lan.send(1)
    assert lan.run().receivers(number) == [0, 2, 3]


def test_a_unicast_is_switched_to_its_target_alone() -> None:
    lan = Lan(topology(4))
    number = lan.send(1, 3)
    lan.run()
    assert lan.receivers(number) == [3]
    assert [port for _, port, inbound, _ in lan.seen if not inbound] == ["p1/n4"], "no other port saw it"


@pytest.mark.parametrize(
    ("network", "sends", "arrived"),
    [
        pytest.param(topology(3), [(0, None)], [(LEAST_TRAVEL_NS, 1, 1), (LEAST_TRAVEL_NS, 2, 1)], id="least travel"),
        pytest.param(
            topology(2, to_node=DELAY, from_node=Impairment(delay_ns=300_000)),
            [(0, None)],
            [(1_300_000, 1, 1)],
            id="delays of both ports add up",
        ),
        pytest.param(
            topology(1, 1, links=[link("p1", "p2", a_to_b=DELAY, b_to_a=Impairment(delay_ns=3 * MILLISECOND))]),
            [(0, None), (1, None)],
            [(MILLISECOND, 1, 1), (3 * MILLISECOND, 0, 2)],
            id="each direction of a link has its own impairment",
        ),
        pytest.param(
            topology(1, 1, bus=Bus(rate_bps=8_000_000)), [(0, None)], [(1_000_000, 1, 1)], id="the buses of both ends"
        ),
    ],
)
def test_frames_arrive_at_exactly_this_time(
    network: Topology, sends: list[tuple[int, int | None]], arrived: list[tuple[int, int, int]]
) -> None:
    lan = Lan(network)
    for source, target in sends:
        lan.send(source, target)
    assert lan.run().arrived == arrived


def test_a_tap_sees_frames_before_and_after_what_the_wires_do() -> None:
    lan = Lan(topology(2, to_node=DELAY, from_node=Impairment(loss_ratio=1.0)))
    lan.send(0)
    assert lan.run().seen == [(0, "p1/n1", True, 1)]
    lan.network.impair(lan.nodes[0], Direction.FROM_NODE, Impairment())
    lan.send(0)
    lan.run()
    assert lan.seen[1:] == [(10 * SECOND, "p1/n1", True, 2), (10 * SECOND + MILLISECOND, "p1/n2", False, 2)]


def test_each_port_loses_by_itself() -> None:
    lan = Lan(topology(3, to_node=Impairment(loss_ratio=0.5)))
    for _ in range(200):
        lan.send(0)
    lan.run()
    got = [{number for _, receiver, number in lan.arrived if receiver == member} for member in (1, 2)]
    assert got[0] != got[1]
    assert all(60 < len(one) < 140 for one in got)


def test_a_frame_elsewhere_does_not_change_the_draws_here() -> None:
    def fates(*, with_noise: bool) -> list[tuple[int, int, int]]:
        lan = Lan(topology(4, to_node=Impairment(loss_ratio=0.5)))
        for _ in range(100):
            lan.send(0, 1)
            if with_noise:
                lan.send(2, 3)
                lan.sent -= 1
        lan.run()
        return [one for one in lan.arrived if one[1] == 1]

    assert fates(with_noise=False) == fates(with_noise=True)


def test_a_queue_towards_a_node_overruns_for_that_node_alone() -> None:
    lan = Lan(topology(3))
    lan.network.impair(lan.nodes[1], Direction.TO_NODE, Impairment(rate_bps=8_000_000, queue_frames=5))
    for _ in range(50):
        lan.send(0)
    lan.run()
    counters = lan.network.port_counters()[2 * 1]
    assert (counters["node"], counters["direction"]) == ("p1/n2", "to-node")
    assert (counters["sent_frames"], counters["queue_dropped_frames"]) == (8, 42)
    assert len([one for one in lan.arrived if one[1] == 2]) == 50


# Shared bus.


def test_a_bus_carries_one_frame_of_the_whole_segment_at_a_time() -> None:
    lan = Lan(topology(4, bus=Bus(rate_bps=8_000_000)))
    for source in (0, 1, 2, 3):
        lan.send(source)
    lan.run()
    times_ns = sorted({at_ns for at_ns, _, _ in lan.arrived})
    assert times_ns == [500_000 * count for count in (1, 2, 3, 4)]
    assert [lan.receivers(number) for number in (1, 2, 3, 4)] == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]


def test_a_bus_overruns_by_frames_and_counts() -> None:
    lan = Lan(topology(2, bus=Bus(rate_bps=8_000_000, queue_frames=3)))
    for _ in range(10):
        lan.send(0)
    (before,) = lan.network.bus_counters()
    lan.run()
    (after,) = lan.network.bus_counters()
    assert (before["backlog_frames"], before["queue_dropped_frames"]) == (3, 7)
    assert (after["backlog_frames"], after["sent_frames"], len(lan.arrived)) == (0, 3, 3)


# Partitions.


def test_a_multicast_reaches_every_partition_once_and_by_the_tree() -> None:
    ring = [link("p1", "p2"), link("p2", "p3"), link("p3", "p4"), link("p4", "p1")]
    lan = Lan(topology(2, 1, 1, 1, links=ring))
    numbers = [lan.send(source) for source in range(5)]
    lan.run()
    for source, number in enumerate(numbers):
        assert lan.receivers(number) == [member for member in range(5) if member != source]


def test_a_unicast_takes_the_links_of_its_way_and_their_delays() -> None:
    row = [link("p1", "p2", a_to_b=DELAY), link("p2", "p3", a_to_b=Impairment(delay_ns=5 * MILLISECOND))]
    lan = Lan(topology(1, 1, 1, links=row))
    lan.send(0, 2)
    lan.run()
    assert lan.arrived == [(6 * MILLISECOND, 2, 1)]
    sent = {(one["link"], one["from_partition"]): one["sent_frames"] for one in lan.network.link_counters()}
    assert sent == {("p1--p2", "p1"): 1, ("p1--p2", "p2"): 0, ("p2--p3", "p2"): 1, ("p2--p3", "p3"): 0}


def test_a_link_can_be_impaired_in_one_direction_while_it_runs() -> None:
    lan = Lan(topology(1, 1))
    (only,) = lan.topology.links
    lan.network.impair_link(only, from_partition="p2", impairment=Impairment(loss_ratio=1.0))
    lan.send(0)
    lan.send(1)
    lan.run()
    assert [receiver for _, receiver, _ in lan.arrived] == [1]


def test_a_multicast_dies_of_its_age_after_thirty_links() -> None:
    lan = Lan(topology(*[1] * 40))
    number = lan.send(0)
    assert lan.run().receivers(number) == list(range(1, 31))
    number = lan.send(0, 39)
    assert lan.run().receivers(number) == [39], "unicast incarnations twice as long"


# Cuts.


def test_a_cut_is_one_way_and_counted_at_the_port_of_the_receiver() -> None:
    lan = Lan(topology(2, 2))
    lan.network.block([(lan.nodes[0], lan.nodes[1]), (lan.nodes[0], lan.nodes[2])])
    numbers = [lan.send(0), lan.send(1), lan.send(0, 2), lan.send(0, 3)]
    lan.run()
    assert [lan.receivers(number) for number in numbers] == [[3], [0, 2, 3], [], [3]]
    cut = {(str(one["node"]), one["direction"]): one["cut_dropped_frames"] for one in lan.network.port_counters()}
    assert (cut.pop(("p1/n2", "to-node")), cut.pop(("p2/n1", "to-node"))) == (1, 2)
    assert set(cut.values()) == {0}


def test_a_cut_does_not_stop_what_is_in_the_line_already() -> None:
    lan = Lan(topology(2, to_node=DELAY))
    first = lan.send(0)
    lan.run(1)
    lan.network.block([(lan.nodes[0], lan.nodes[1])])
    second = lan.send(0)
    lan.run()
    assert (lan.receivers(first), lan.receivers(second)) == ([1], [])


def test_the_latest_cut_says_all() -> None:
    lan = Lan(topology(3))
    lan.network.block([(lan.nodes[0], lan.nodes[1])])
    lan.network.block([(lan.nodes[0], lan.nodes[2])])
    first = lan.send(0)
    lan.network.block([])
    second = lan.send(0)
    lan.run()
    assert (lan.receivers(first), lan.receivers(second)) == ([1], [1, 2])


def test_a_cut_link_is_cut_both_ways_and_counted() -> None:
    lan = Lan(topology(1, 1))
    lan.network.block_links({"p1--p2"})
    lan.send(0)
    lan.send(1)
    lan.run()
    assert lan.arrived == []
    assert [one["cut_dropped_frames"] for one in lan.network.link_counters()] == [1, 1]
    lan.network.block_links(())
    lan.send(0)
    assert lan.run().arrived[0][1:] == (1, 3)


# Corruption.


@pytest.mark.parametrize(
    ("byte", "is_intact", "is_routable"),
    [(0, False, False), (5, False, False), (6, True, True), (11, True, True), (12, False, False), (14, False, False),
     (33, False, False), (34, False, True), (41, False, True), (599, False, True)],
)  # fmt: skip
def test_what_notices_a_flipped_bit(byte: int, is_intact: bool, is_routable: bool) -> None:
    """Source MAC: not noticed. Rest of Ethernet and IP: by receiver and router. UDP and payload: by the receiver."""
    (source,) = topology(1).nodes()
    whole = Datagram(source=source, destination=None, payload=b"", size_bytes=600, sent_ns=0)
    for damaged in (whole.damaged(8 * byte), whole.damaged(8 * byte + 7)):
        assert (damaged.is_intact, damaged.is_routable) == (is_intact, is_routable)


def test_a_damaged_frame_is_seen_at_the_port_and_given_to_nobody() -> None:
    lan = Lan(topology(2, to_node=Impairment(corrupt_ratio=1.0)))
    for _ in range(300):
        lan.send(0)
    lan.run()
    assert sum(1 for one in lan.seen if not one[2]) == 300
    assert 0 < len(lan.arrived) < 20, "all but those whose source address was hit: 6 bytes of 500"


# No node.


def test_at_a_port_without_a_node_frames_come_to_nothing() -> None:
    lan = Lan(topology(3))
    lan.network.ports[1].receiver = None
    number = lan.send(0)
    lan.run()
    assert lan.receivers(number) == [2]
    assert lan.network.in_flight == 0


# All together.


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 5))), max_size=60),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from(
        [None, Bus(rate_bps=10**6, queue_frames=4), Bus(rate_bps=10**6, queue_frames=4, access=Access.CSMA_CD)]
    ),
    st.sampled_from([None, 10**6]),
    st.integers(0, 9),
)
def test_every_frame_is_somewhere(
    sendings: list[tuple[int, int | None]], ratio: float, bus: Bus | None, rate_bps: int | None, seed: int
) -> None:
    """At each port: offered = sent - duplicated + dropped + backlog; and no frame is left when the network is quiet."""
    impairment = Impairment(
        delay_ns=MILLISECOND, loss_ratio=ratio, duplicate_ratio=ratio, rate_bps=rate_bps,
        queue_frames=3 if rate_bps else None,
    )  # fmt: skip
    lan = Lan(topology(2, 2, 2, to_node=impairment, from_node=impairment, bus=bus), seed)
    offered = [0] * 6
    for source, target in sendings:
        if source != target:
            lan.send(source, target)
            offered[source] += 1
            lan.run(200_000)
    assert lan.network.in_flight >= 0
    lan.run()
    assert lan.network.in_flight == 0
    for counters in lan.network.port_counters():
        if counters["direction"] == "from-node":
            dropped = counters["delay_line_dropped_frames"] + counters["queue_dropped_frames"]
            member = lan.topology.node(counters["node"]).index
            assert counters["sent_frames"] - counters["duplicated_frames"] + dropped == offered[member]
    to_nodes = sum(one["sent_frames"] for one in lan.network.port_counters() if one["direction"] == "to-node")
    assert to_nodes == len(lan.arrived) == sum(1 for one in lan.seen if not one[2])
    assert all(earlier[0] <= later[0] for earlier, later in pairwise(lan.seen))


def test_a_frame_has_its_headers_and_is_never_too_short() -> None:
    assert (frame_bytes(500), frame_bytes(18), frame_bytes(0)) == (542, 60, 60)
