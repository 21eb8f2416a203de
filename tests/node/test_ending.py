"""The end of a view while the group is busy."""

from __future__ import annotations

import pytest

from node.core import Core, Membership
from node.registry import PROTOCOLS
from tests.node.cluster import MILLISECOND, SECOND, Cluster, Network, check_views


def build(membership: Membership, seed: int) -> Core:
    return PROTOCOLS["reliable"].build(membership=membership, parameters={"window": 64}, seed=seed)


@pytest.mark.parametrize("seed", range(5))
def test_the_end_of_a_view_does_not_wait_until_traffic_ceases(seed: int) -> None:
    """The incarnation ended by a restart is replaced while all others send."""
    cluster = Cluster(5, build, seed=seed, network=Network(jitter_ns=20 * MILLISECOND, loss_ratio=0.1))
    for number in range(250):
        for member in range(5):
            cluster.submit_later(member, number * 20 * MILLISECOND)
    cluster.at(500 * MILLISECOND, lambda: cluster.restart(2))
    cluster.run(for_ns=2 * SECOND)
    for member in cluster.members:
        assert (2, 2) in cluster.hosts[member].views[-1][0].incarnations
    check_views(cluster)
