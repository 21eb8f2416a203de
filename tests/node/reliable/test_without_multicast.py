"""The streams if a multicast takes a datagram for each member: less control traffic, and no loss."""

from __future__ import annotations

from node.reliable import ReliableParameters
from node.wire import Flag, Kind, Message
from tests.node.cluster import MILLISECOND, SECOND, Cluster, Network
from tests.node.reliable import open_view
from tests.node.reliable.open_view import check_all, kinds

PARAMETERS = ReliableParameters(window=64, suspect_after_ns=30 * SECOND)


def group(count: int, *, network: Network | None = None, seed: int = 1) -> Cluster:
    return open_view.group(count, network=network, seed=seed, parameters=PARAMETERS, has_multicast=False)


def control_datagrams(cluster: Cluster, data: int) -> int:
    """Number of datagrams without those of `data` multicasts, each of which takes one for each peer."""
    return cluster.datagrams - data * (len(cluster.members) - 1)


def test_one_message_costs_a_position_and_a_floor_for_each_member() -> None:
    cluster = group(10)
    cluster.submit(0)
    check_all(cluster, list(cluster.members))
    assert control_datagrams(cluster, 1) == 9 + 9


def test_under_load_control_stays_below_half_of_the_copies() -> None:
    """Thirty members, two messages a second each: load 0.4 of paper 002."""
    cluster = group(30)
    for number in range(20):
        for member in cluster.members:
            cluster.submit_later(member, number * 500 * MILLISECOND + member * 17 * MILLISECOND)
    cluster.run(for_ns=12 * SECOND)
    assert kinds(cluster)[Kind.RELIABLE_DATA] == 600
    assert control_datagrams(cluster, 600) < 600 * 29 / 4
    check_all(cluster, list(cluster.members))


def test_positions_do_not_ride_on_many_copies() -> None:
    few, many = group(4), group(20)
    for cluster in (few, many):
        for number in range(30):
            for member in cluster.members:
                cluster.submit_later(member, number * 20 * MILLISECOND)
        check_all(cluster, list(cluster.members))
    data = [[m.words for _, m in c.sent if m.kind is Kind.RELIABLE_DATA] for c in (few, many)]
    assert max(map(len, data[0])) > 1
    assert max(map(len, data[1])) == 1


def test_the_loss_of_a_tail_is_announced_to_those_who_lack_it() -> None:
    cluster = group(6)

    def lose(_source: int, target: int, message: Message) -> bool:
        return message.kind is Kind.RELIABLE_DATA and target == 4 and not message.flags & Flag.RETRANSMISSION

    cluster.lose = lose
    cluster.submit(0)
    check_all(cluster, list(cluster.members))
    answers = [message for _, message in cluster.sent if message.flags & Flag.RETRANSMISSION]
    assert len(answers) == 1
    assert control_datagrams(cluster, 1) < 6 * 5, "nobody is told what he knows"


def test_a_gap_that_two_have_is_answered_to_each_of_them() -> None:
    """With multicast the second request would be answered to all."""
    cluster = group(6)

    def lose(_source: int, target: int, message: Message) -> bool:
        is_second = message.kind is Kind.RELIABLE_DATA and message.seq == 2
        return is_second and target in (3, 4) and not message.flags & Flag.RETRANSMISSION

    cluster.lose = lose
    cluster.submit(0, 3)
    check_all(cluster, list(cluster.members))
    answers = [message for _, message in cluster.sent if message.flags & Flag.RETRANSMISSION]
    assert len(answers) == 2
