"""Groups of reliable cores in one open view."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable

from node.core import Membership, random_for
from node.reliable import ReliableCore, ReliableParameters
from node.wire import Flag, Kind
from tests.node.cluster import SECOND, Cluster, Network, check_reliable

VIEW = 3
PARAMETERS = ReliableParameters(window=64, suspect_after_ns=2 * SECOND)


def build(membership: Membership, seed: int, parameters: ReliableParameters = PARAMETERS) -> ReliableCore:
    return ReliableCore(
        membership=membership,
        incarnations=dict.fromkeys(membership.members, 1),
        view=VIEW,
        parameters=parameters,
        rng=random_for(seed, membership, "reliable"),
    )


def group(
    count: int,
    *,
    network: Network | None = None,
    seed: int = 1,
    parameters: ReliableParameters = PARAMETERS,
    has_multicast: bool = True,
) -> Cluster:
    def make(membership: Membership, seed: int) -> ReliableCore:
        return build(dataclasses.replace(membership, has_multicast=has_multicast), seed, parameters)

    return Cluster(count, make, seed=seed, network=network)


def core_of(cluster: Cluster, member: int) -> ReliableCore:
    core = cluster.core(member)
    assert isinstance(core, ReliableCore)
    return core


def check_all(cluster: Cluster, members: Iterable[int]) -> None:
    """All promises of reliable streams, at rest, and empty buffers."""
    members = list(members)
    check_reliable(cluster, members)
    assert [core_of(cluster, member).buffered for member in members] == [0] * len(members), (
        "everything stable is let go"
    )


def kinds(cluster: Cluster) -> Counter[Kind]:
    return Counter(message.kind for _, message in cluster.sent)


def load(cluster: Cluster, members: Iterable[int], count: int, every_ns: int) -> None:
    """Each member submits `count` messages, one in each period."""
    for number in range(count):
        for member in members:
            cluster.submit_later(member, number * every_ns)


def lose_first(
    cluster: Cluster, kind: Kind = Kind.RELIABLE_DATA, *, seq: int | None = None, targets: Iterable[int] | None = None
) -> None:
    """The first transmissions of these messages to these members are lost, but no retransmission. None: of all."""
    cluster.lose = lambda _, target, message: (
        message.kind is kind
        and not message.flags & Flag.RETRANSMISSION
        and seq in (None, message.seq)
        and (targets is None or target in targets)
    )
