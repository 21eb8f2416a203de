"""Steps of the group layer on reliable cores at the end of a view, by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from node.trace import decode_stamp
from tests.node.cluster import Cluster, Identity
from tests.node.reliable.open_view import core_of

Cut = Mapping[int, int]


def freeze(cluster: Cluster, member: int) -> None:
    """Freeze a member, with all submissions that wait for flow control."""
    host = cluster.hosts[member]
    waiting = list(host.queue)
    host.queue.clear()
    cluster._call(host, "freeze", lambda: core_of(cluster, member).freeze(waiting, cluster.now_ns))


def cut_of(cluster: Cluster, promisers: Iterable[int]) -> dict[int, int]:
    """The cut: the greatest positions of the promisers."""
    told = [core_of(cluster, member).positions() for member in promisers]
    return {origin: max(positions[origin] for positions in told) for origin in cluster.members}


def holders_of(cluster: Cluster, promisers: Iterable[int], cut: Cut) -> dict[int, list[int]]:
    """Promisers at the position of the cut, by origin."""
    told = {member: core_of(cluster, member).positions() for member in promisers}
    return {origin: [one for one, mine in told.items() if mine[origin] == number] for origin, number in cut.items()}


def fetch(cluster: Cluster, member: int, cut: Cut, holders: Mapping[int, list[int]]) -> None:
    host = cluster.hosts[member]
    cluster._call(host, "fetch", lambda: core_of(cluster, member).fetch(cut, holders, cluster.now_ns))


def stop(cluster: Cluster, member: int) -> None:
    host = cluster.hosts[member]
    cluster._call(host, "stop", lambda: core_of(cluster, member).stop(cluster.now_ns))


def rest_of(cluster: Cluster, member: int, cut: Cut) -> dict[int, list[Identity]]:
    """Identities of the application's messages in `rest`, by origin."""
    return {
        origin: [_identity(message.payload) for message in messages]
        for origin, messages in core_of(cluster, member).rest(cut).items()
    }


def delivered_by(cluster: Cluster, member: int, multicasts: set[Identity]) -> dict[int, list[Identity]]:
    """The multicasts that a member has delivered, by origin."""
    delivered = cluster.hosts[member].delivered
    return {
        origin: [identity for identity in delivered if identity in multicasts and identity[0] == origin]
        for origin in cluster.members
    }


def _identity(payload: bytes) -> Identity:
    stamp = decode_stamp(payload)
    return stamp.origin, stamp.incarnation, stamp.number
