"""Later lives over the whole stack, for every core that shares `joining.py`: what only the layers together show."""

from __future__ import annotations

import pytest

from node.core import Core, Membership
from node.errors import DropReason
from node.protocols import PROTOCOLS
from node.stack import Stack
from node.wire import Kind, Message
from tests.node.cluster import (
    MILLISECOND,
    SECOND,
    Build,
    Cluster,
    check_agreement,
    check_fifo,
    check_integrity,
    check_pairwise_order,
    check_silence,
    check_validity,
)
from tests.node.scenarios import SUSPECT_AFTER_NS

AT_ONCE = ("lamport", "cbcast", "allack", "atop", "atop_mbs")
"""Who answers a JOIN at once. ABCAST answers when all it sent before is final, so a full window holds no answer."""
SHARING = (*AT_ONCE, "abcast")
WINDOW = 4


def build(name: str) -> Build:
    def made(membership: Membership, seed: int) -> Core:
        reliable = {"window": WINDOW, "suspect_after_ns": SUSPECT_AFTER_NS}
        return PROTOCOLS[name].build(membership=membership, parameters={"reliable": reliable}, seed=seed)

    return made


def stack_of(cluster: Cluster, member: int) -> Stack:
    core = cluster.core(member)
    assert isinstance(core, Stack)
    return core


def is_joining(cluster: Cluster, member: int) -> bool:
    return "joining" in stack_of(cluster, member).phase


def check_all(cluster: Cluster, members: list[int], name: str) -> None:
    """Also of the later lives: who joined has everything from some point on."""
    check_silence(cluster)
    check_integrity(cluster)
    check_fifo(cluster)
    check_agreement(cluster, [member for member in members if cluster.hosts[member].membership.incarnation == 1])
    check_validity(cluster, members)
    if name != "cbcast":
        check_pairwise_order(cluster)


def lose_multicasts(cluster: Cluster, source: int, targets: tuple[int, ...], *, after: int = 0) -> None:
    """From now on what `source` multicasts after its number `after` does not reach `targets`; nothing else is lost."""

    def lose(by: int, to: int, message: Message) -> bool:
        return by == source and to in targets and message.kind is Kind.RELIABLE_DATA and message.seq > after

    cluster.lose = lose


def lose_nothing(cluster: Cluster) -> None:
    cluster.lose = lambda source, target, message: False


def hold_answer_back(cluster: Cluster, *, answers_news: bool) -> int:
    """Member 2 begins its second life, and the answer of 0 stays in the stack of 0: its window is full, for member 1
    gets nothing of it. The number of the last multicast of 0.

    A JOIN is lost until the window is full. The news comes when the layer below hears of the second life.
    """
    if answers_news:
        lose_multicasts(cluster, 0, (1,))
        cluster.submit(0, 2 * WINDOW)
        cluster.run(for_ns=200 * MILLISECOND)
        cluster.restart(2)
    else:
        cluster.restart(2)
        lose_multicasts(cluster, 2, (0,))
        cluster.run(for_ns=200 * MILLISECOND)
        lose_multicasts(cluster, 0, (1,))
        cluster.submit(0, 2 * WINDOW)
        assert stack_of(cluster, 2).phase == "member/joining"
    cluster.run(for_ns=200 * MILLISECOND)
    assert stack_of(cluster, 0).waiting
    return max(message.seq for sender, message in cluster.sent if (sender, message.kind) == (0, Kind.RELIABLE_DATA))


@pytest.mark.parametrize("name", AT_ONCE)
def test_an_answer_held_back_until_the_next_life_has_joined_is_not_for_that_one(name: str) -> None:
    """The third life took it for its own. In ATOP it came there before what 0 multicast next, so the life began with a
    distribution that was too early; 0 refused its messages, and those of the others waited for ever.
    """
    cluster = Cluster(3, build(name))
    last = hold_answer_back(cluster, answers_news=name == "cbcast")
    cluster.restart(2)
    cluster.run(for_ns=200 * MILLISECOND)
    cluster.submit(2, 3)
    lose_multicasts(cluster, 0, (1, 2), after=last)
    cluster.run(for_ns=1 * SECOND)
    lose_nothing(cluster)
    cluster.run(for_ns=10 * SECOND)
    assert not is_joining(cluster, 2)
    assert not any(host.dropped(DropReason.MALFORMED) for host in cluster.up())
    assert cluster.hosts[2].dropped(DropReason.UNEXPECTED), "the answer to its second life"
    for member in cluster.members:
        cluster.submit(member, 3)
    check_all(cluster, [0, 1, 2], name)
    assert all({(0, 1, 2 * WINDOW + 3), (1, 1, 3), (2, 3, 6)} <= set(host.delivered) for host in cluster.up())


@pytest.mark.parametrize("name", SHARING)
def test_who_acknowledges_loses_its_answer_and_crashes_is_missed_by_the_joiner(name: str) -> None:
    """Nobody else has a reason to miss it: the group is at rest."""
    cluster = Cluster(3, build(name))
    cluster.restart(2)

    def is_answer_of_0(source: int, target: int, message: Message) -> bool:
        return (source, target, message.kind) == (0, 2, Kind.RELIABLE_UNICAST)

    cluster.lose = is_answer_of_0
    cluster.run(for_ns=600 * MILLISECOND)
    assert stack_of(cluster, 2).phase == "member/joining"
    cluster.crash(0)
    cluster.run(for_ns=20 * SECOND)
    assert not is_joining(cluster, 2)
    cluster.submit(1, 3)
    cluster.submit(2, 3)
    check_all(cluster, [1, 2], name)
    assert {(1, 1, 3), (2, 2, 3)} <= set(cluster.hosts[2].delivered) & set(cluster.hosts[1].delivered)


@pytest.mark.parametrize("name", SHARING)
def test_a_joiner_asks_once_where_everybody_answers(name: str) -> None:
    """And has no timer left when it has begun."""
    cluster = Cluster(3, build(name))
    cluster.restart(2)
    check_all(cluster, [0, 1, 2], name)
    asked = {message.seq for sender, message in cluster.sent if sender == 2 and message.inner.name.endswith("_JOIN")}
    assert len(asked) == (0 if name == "cbcast" else 1)
