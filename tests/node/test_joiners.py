"""Later incarnations over the whole stack, for every order of the group layer: effects of the layers together."""

from __future__ import annotations

from itertools import product

import pytest

from node.group.core import GroupCore, Phase
from node.wire import Kind, Message
from tests.node.cluster import (
    MILLISECOND,
    SECOND,
    Cluster,
    Network,
    check_pairwise_order,
    check_reliable,
    check_views,
    stack,
)
from tests.node.grouped import SUSPECT_AFTER_NS

WINDOW = 4
RELIABLE = {"window": WINDOW, "suspect_after_ns": SUSPECT_AFTER_NS}
NAMES = ("sequencer", "lamport", "cbcast", "allack", "atop", "atop_mbs", "abcast", "amoeba")


@pytest.mark.parametrize("name", (*NAMES, "mutex", "timewarp"))
def test_a_group_at_rest_is_silent_without_heartbeats(name: str) -> None:
    cluster = Cluster(4, stack(name, reliable={"heartbeat_at_rest": False}))
    cluster.submit(0, 3)
    cluster.run()
    assert all(host.is_idle for host in cluster.up())
    sent = len(cluster.sent)
    cluster.run(for_ns=3600 * SECOND)
    assert len(cluster.sent) == sent > 0


def standing(cluster: Cluster, member: int) -> Phase:
    core = cluster.core(member)
    assert isinstance(core, GroupCore)
    return core.standing


def check_all(cluster: Cluster, members: list[int], name: str) -> None:
    """All promises, also to later incarnations: each has all messages since the view whose state it took."""
    incarnations = {member: cluster.hosts[member].membership.incarnation for member in members}
    check_reliable(cluster, [member for member, incarnation in incarnations.items() if incarnation == 1])
    for member, incarnation in incarnations.items():
        assert standing(cluster, member) is Phase.MEMBER
        own = {one for one in cluster.submissions if one[:2] == (member, incarnation)}
        assert own <= set(cluster.hosts[member].delivered), f"member {member} lacks messages of its own"
    if name != "cbcast":
        check_pairwise_order(cluster)


@pytest.mark.parametrize("name", NAMES)
def test_what_was_said_to_an_incarnation_that_did_not_finish_joining_is_not_for_the_next(name: str) -> None:
    """The decision that admits the second incarnation and the state arrive too late: the third runs by then."""
    cluster = Cluster(3, stack(name, reliable=RELIABLE))
    cluster.submit(0, 2 * WINDOW)
    cluster.run(for_ns=200 * MILLISECOND)
    late: list[Message] = []

    def lose(source: int, target: int, message: Message) -> bool:
        is_late = target == 2 and message.kind in (Kind.GROUP_DECIDED, Kind.GROUP_STATE)
        late.extend([message] if is_late else [])
        return is_late

    cluster.restart(2)
    cluster.lose = lose
    cluster.run(for_ns=200 * MILLISECOND)
    assert late
    assert standing(cluster, 2) is Phase.JOINING
    cluster.restart(2)
    cluster.lose = lambda source, target, message: False
    for message in late:
        cluster._transmit(cluster.hosts[message.origin], (2,), message)
    cluster.run(for_ns=10 * SECOND)
    for member in cluster.members:
        cluster.submit(member, 3)
    check_all(cluster, [0, 1, 2], name)
    assert cluster.hosts[2].membership.incarnation == 3
    assert all({(0, 1, 2 * WINDOW + 3), (1, 1, 3), (2, 3, 3)} <= set(host.delivered) for host in cluster.up())


@pytest.mark.parametrize("name", NAMES)
def test_a_joiner_gets_the_state_from_another_member_when_its_donor_crashes(name: str) -> None:
    cluster = Cluster(4, stack(name, reliable=RELIABLE))
    cluster.submit(1, 3)
    cluster.run(for_ns=200 * MILLISECOND)
    cluster.lose = lambda source, target, message: message.kind is Kind.GROUP_STATE and source == 0
    cluster.restart(3)
    cluster.at(cluster.now_ns + 100 * MILLISECOND, lambda: cluster.crash(0))
    cluster.run(for_ns=20 * SECOND)
    cluster.submit(1, 3)
    cluster.submit(3, 3)
    check_all(cluster, [1, 2, 3], name)
    assert {(1, 1, 6), (3, 2, 3)} <= set(cluster.hosts[3].delivered) & set(cluster.hosts[1].delivered)


@pytest.mark.parametrize("name", NAMES)
def test_a_joiner_asks_until_it_is_admitted_and_no_longer(name: str) -> None:
    cluster = Cluster(3, stack(name, reliable=RELIABLE))
    cluster.restart(2)
    cluster.run(for_ns=1 * SECOND)
    asked = len(cluster.kinds(Kind.GROUP_JOIN))
    assert 1 <= asked <= 8
    assert [view.number for view, _ in cluster.hosts[2].views] == [2]
    check_all(cluster, [0, 1, 2], name)
    cluster.run(for_ns=10 * SECOND)
    assert len(cluster.kinds(Kind.GROUP_JOIN)) == asked


@pytest.mark.parametrize("seed", range(3))
def test_a_joiner_does_not_wait_until_traffic_ceases(seed: int) -> None:
    """The incarnation ended by a restart is replaced while all others send."""
    cluster = Cluster(5, stack("reliable"), seed=seed, network=Network(jitter_ns=20 * MILLISECOND, loss_ratio=0.1))
    for number, member in product(range(250), cluster.members):
        cluster.submit_later(member, number * 20 * MILLISECOND)
    cluster.at(500 * MILLISECOND, lambda: cluster.restart(2))
    cluster.run(for_ns=2 * SECOND)
    assert all((2, 2) in host.views[-1][0].incarnations for host in cluster.hosts.values())
    check_views(cluster)


@pytest.mark.parametrize("name", NAMES)
def test_a_member_that_leaves_is_gone_for_good_and_the_others_go_on(name: str) -> None:
    cluster = Cluster(4, stack(name, reliable=RELIABLE))
    cluster.submit(0, 3)
    cluster.run(for_ns=500 * MILLISECOND)
    cluster.leave(0)
    cluster.run(for_ns=2 * SECOND)
    lost = cluster.hosts[0]
    assert (lost.core.has_ended, lost.core.has_left, lost.membership.incarnation) == (True, True, 1)
    cluster.submit(1, 3)
    check_all(cluster, [1, 2, 3], name)
    assert cluster.hosts[1].members == (1, 2, 3)


@pytest.mark.parametrize("name", NAMES)
def test_no_messages_are_delivered_on_a_side_without_a_quorum(name: str) -> None:
    """Equal halves: the one with the first member by rank goes on, the other waits and then joins it."""
    cluster = Cluster(4, stack(name, reliable=RELIABLE))
    cluster.submit(3)
    cluster.run(for_ns=500 * MILLISECOND)
    cluster.cut((0, 1), (2, 3))
    cluster.run(for_ns=10 * SECOND)
    before = list(cluster.hosts[3].delivered)
    assert standing(cluster, 3) is Phase.MINORITY
    cluster.submit(1, 3)
    cluster.submit(3, 2)
    cluster.run(for_ns=5 * SECOND)
    assert cluster.hosts[3].delivered == before
    assert (1, 1, 3) in cluster.hosts[0].delivered
    cluster.heal()
    cluster.run(for_ns=20 * SECOND)
    cluster.submit(2, 2)
    check_all(cluster, [0, 1, 2, 3], name)
    assert [cluster.hosts[member].membership.incarnation for member in cluster.members] == [1, 1, 2, 2]
