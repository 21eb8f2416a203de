"""Values that exist are valid; addresses and names derive from positions."""

from __future__ import annotations

import re
from ipaddress import IPv4Address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topologies.shapes import ring, star
from topologies.model import CLEAR, MAX_NODES_PER_PARTITION, MAX_PARTITIONS, MULTICAST_GROUP, Bus, Direction, Impairment


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"loss_ratio": 1.5}, "loss_ratio must lie between 0 and 1, not 1.5"),
        ({"delay_ns": -1}, "delay and jitter must not be negative"),
        ({"jitter_ns": 1}, "jitter must not exceed the delay: a frame cannot arrive before it was sent"),
        ({"reorder_ratio": 0.1}, "reorder needs a delay: reordered frames are those that skip it"),
        ({"loss_burst_frames": 0.5}, "a loss burst has at least 1 frame"),
        ({"loss_ratio": 1.0, "loss_burst_frames": 2.0}, "bursty loss needs a loss below 100 %"),
        (
            {"loss_ratio": 0.9, "loss_burst_frames": 2.0},
            "this loss needs longer bursts: bursts of n frames lose at most n / (n + 1) of the frames",
        ),
        ({"rate_bps": 0}, "rate must be positive"),
        ({"queue_frames": 5}, "a queue limit needs a rate: without one the queue never fills"),
        ({"rate_bps": 9, "queue_frames": 0}, "a queue holds at least 1 frame"),
        ({"rate_bps": 9, "queue_bytes": 0}, "a queue holds at least 1 byte"),
        ({"rate_bps": 9, "queue_bytes": 9, "queue_frames": 9}, "give the queue in frames or in bytes, not both"),
    ],
)
def test_an_impossible_impairment_does_not_exist(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        Impairment(**fields)


def test_the_longest_loss_that_bursts_allow_exists() -> None:
    assert not Impairment(loss_ratio=0.8, loss_burst_frames=4.0).is_clear
    assert Impairment() == CLEAR


@pytest.mark.parametrize(("rate_bps", "queue_frames"), [(0, 1), (-5, 1), (1, 0)])
def test_an_impossible_bus_does_not_exist(rate_bps: int, queue_frames: int) -> None:
    with pytest.raises(ValueError, match=r"rate must be positive|a queue holds at least 1 frame"):
        Bus(rate_bps=rate_bps, queue_frames=queue_frames)


@given(st.integers(min_value=1, max_value=3), st.integers(min_value=1, max_value=MAX_NODES_PER_PARTITION))
def test_addresses_are_unique(partitions: int, nodes: int) -> None:
    topology = star(partitions, nodes)
    found = list(topology.nodes())
    routers = [partition.router_ip for partition in topology.partitions]
    monitors = [partition.monitor_ip for partition in topology.partitions]
    assert len({node.ip for node in found} | {*routers} | {*monitors}) == len(found) + 2 * partitions
    assert (
        len({node.mac for node in found} | {one.router_mac for one in topology.partitions}) == len(found) + partitions
    )
    assert len({node.port_ifindex for node in found}) == len(found)
    assert all(len(node.port_device) <= 15 for node in found)
    assert [node.index for node in found] == list(range(len(found)))


def test_each_partition_has_a_multicast_group_of_its_own() -> None:
    groups = [partition.multicast_group for partition in star(MAX_PARTITIONS, 1).partitions]
    assert (groups[0], groups[-1]) == ("239.77.1.1", f"239.77.1.{MAX_PARTITIONS}")
    assert len({*groups, MULTICAST_GROUP}) == MAX_PARTITIONS + 1
    assert all(IPv4Address(group).is_multicast for group in groups)


def test_looks_up_by_name() -> None:
    topology = ring(3, 2)
    assert topology.node("p2/n1").index == 2
    assert topology.partition("p3").index == 3
    assert (topology.link("p1--p2").a, topology.link("p1--p2").b) == ("p1", "p2")
    assert topology.node("p1/n1").impairment(Direction.TO_NODE) is CLEAR
    for look_up in (topology.node, topology.partition, topology.link):
        with pytest.raises(KeyError):
            look_up("nobody")
