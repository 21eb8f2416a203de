"""What the search for bugs (`orderbed fuzz`) has found in the cores, each as small as it became."""

from __future__ import annotations

from node.wire import Kind
from tests.node.cluster import MILLISECOND, SECOND, check_silence
from tests.node.test_reliable import group


def test_a_unicast_that_waits_for_one_that_a_dead_member_can_no_longer_send_is_given_up() -> None:
    """Sequencer, seed 232: the first of two requests was lost and its sender crashed. The server held the second one,
    waited for nobody, was not idle, and asked nobody: for ever."""
    cluster = group(3)
    cluster.lose = lambda source, target, message: message.kind is Kind.RELIABLE_UNICAST and message.seq == 1
    cluster.submit(2, count=2, target=0)
    cluster.at(MILLISECOND, lambda: cluster.crash(2))
    check_silence(cluster)
    server = cluster.hosts[0]
    assert (server.delivered, server.core.held) == ([], 0)
    assert (Kind.RELIABLE_ENDED, 2, 1) in server.news
    assert cluster.now_ns < 10 * SECOND


def test_a_unicast_that_waits_for_a_multicast_of_a_dead_member_is_given_up() -> None:
    """The same where the one that is missing was a multicast that nobody has got."""
    cluster = group(3)
    cluster.lose = lambda source, target, message: message.kind is Kind.RELIABLE_DATA and source == 2
    cluster.submit(2)
    cluster.submit(2, target=0)
    cluster.at(MILLISECOND, lambda: cluster.crash(2))
    check_silence(cluster)
    assert cluster.hosts[0].core.held == 0
    assert (Kind.RELIABLE_ENDED, 2, 1) in cluster.hosts[0].news


def test_a_gap_in_unicasts_of_one_who_lives_costs_no_questions() -> None:
    cluster = group(2)
    lost: list[int] = []

    def lose(source: int, target: int, message: object) -> bool:
        is_first = not lost and getattr(message, "kind", None) is Kind.RELIABLE_UNICAST
        lost.extend([source] if is_first else [])
        return is_first

    cluster.lose = lose
    cluster.submit(1, count=3, target=0)
    check_silence(cluster)
    assert [number for _, _, number in cluster.hosts[0].delivered] == [1, 2, 3]
    assert cluster.kinds(Kind.RELIABLE_HEARTBEAT) == []


def test_a_joiner_is_no_member_before_a_later_life_that_it_hears_of_has_welcomed_it() -> None:
    """Objects, seed 2109: for the moment between the end of a former life and the new one there was no stranger, and
    the joiner was a member without having a part in the stream of anybody. Amoeba then founded a second log."""
    cluster = group(2)
    cluster.restart(1)
    check_silence(cluster)
    cluster.restart(0)
    check_silence(cluster)
    assert cluster.hosts[0].news[-2:] == [(Kind.RELIABLE_JOINED, 1, 2), (Kind.RELIABLE_JOINED, 0, 2)]
