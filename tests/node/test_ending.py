"""The stream of an incarnation that is over, while the group is busy."""

from __future__ import annotations

import pytest

from node.core import Core, Membership
from node.protocols import PROTOCOLS
from node.wire import Kind
from tests.node.cluster import MILLISECOND, SECOND, Cluster, Network


def build(membership: Membership, seed: int) -> Core:
    return PROTOCOLS["reliable"].build(membership=membership, parameters={"window": 64}, seed=seed)


@pytest.mark.parametrize("seed", range(5))
def test_an_ending_does_not_wait_until_traffic_ceases(seed: int) -> None:
    """Its first life ends with a restart. Whoever joins has no part in it and must say so; as long as there was
    traffic, nobody asked it: progress anywhere put off the question, for as long as the load lasted.
    """
    cluster = Cluster(5, build, seed=seed, network=Network(jitter_ns=20 * MILLISECOND, loss_ratio=0.1))
    for number in range(250):
        for member in range(5):
            cluster.submit_later(member, number * 20 * MILLISECOND)
    cluster.at(500 * MILLISECOND, lambda: cluster.restart(2))
    cluster.run(for_ns=2 * SECOND)
    for member in (0, 1, 3, 4):
        assert (Kind.RELIABLE_ENDED, 2, 1) in cluster.hosts[member].news
