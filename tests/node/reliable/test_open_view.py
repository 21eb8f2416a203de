"""The streams of an open view, rule by rule, in a network whose losses each test decides."""

from __future__ import annotations

import dataclasses
from functools import partial
from itertools import product
from typing import Any

import pytest

from node.core import Submission
from node.effects import Multicast
from node.errors import DropReason, LocalError
from node.reliable import ReliableParameters
from node.reliable.codec import VIEW_SHIFT
from node.wire import Flag, Kind
from tests.node.cluster import (
    MILLISECOND,
    SECOND,
    Cluster,
    Network,
    check_integrity,
    check_silence,
    retransmissions,
)
from tests.node.reliable.open_view import PARAMETERS, VIEW, check_all, core_of, group, kinds, load, lose_first

# Multicast without faults.


def test_a_group_with_nothing_to_do_is_silent() -> None:
    cluster = group(4)
    cluster.run()
    assert (cluster.sent, cluster.now_ns) == ([], 0)
    assert all(host.is_idle for host in cluster.up())


def test_one_multicast_reaches_all_and_the_group_falls_silent() -> None:
    cluster = group(4)
    cluster.submit(0)
    assert [len(host.delivered) for host in cluster.up()] == [1, 0, 0, 0], "the sender delivers its own at once"
    check_all(cluster, range(4))
    traffic = kinds(cluster)
    assert traffic[Kind.RELIABLE_DATA] == 1
    # The announcement of the tail, three positions, and the floor after which all drop their copies.
    assert traffic[Kind.RELIABLE_HEARTBEAT] <= 6
    assert cluster.now_ns < 300 * MILLISECOND


def test_a_tail_that_no_member_lost_is_announced_once_however_large_the_group() -> None:
    """Positions take longer in large groups; a second announcement would come before any member is late."""
    cluster = group(20)
    cluster.submit(0)
    check_all(cluster, range(20))
    own = [message for member, message in cluster.sent if member == 0 and message.kind is Kind.RELIABLE_HEARTBEAT]
    assert len(own) == 2, "the announcement, and the floor that lets all forget"


def test_a_group_of_one_delivers_to_itself_and_keeps_nothing() -> None:
    cluster = group(1)
    cluster.submit(0, 200)
    check_all(cluster, range(1))
    assert len(cluster.hosts[0].delivered) == 200


def test_what_is_stable_is_forgotten_while_traffic_goes_on() -> None:
    cluster = group(4)
    load(cluster, [0], 400, 5 * MILLISECOND)
    most = 0
    for _ in range(100):
        cluster.run(for_ns=20 * MILLISECOND)
        most = max(most, *(core_of(cluster, member).buffered for member in range(4)))
    assert most <= 40, "two or three heartbeats' worth of messages, at 200 a second"
    check_all(cluster, range(4))


def test_a_member_that_multicasts_acknowledges_on_the_way() -> None:
    cluster = group(4)
    load(cluster, range(4), 200, 10 * MILLISECOND)
    cluster.run(for_ns=2 * SECOND)
    assert kinds(cluster)[Kind.RELIABLE_HEARTBEAT] < 40, "no heartbeats of their own while there is traffic"
    check_all(cluster, range(4))


def test_piggybacked_positions_leave_room_for_the_payload() -> None:
    cluster = group(4)
    for number, member in product(range(50), range(4)):
        cluster.at(number * 10 * MILLISECOND, partial(cluster.submit, member, size=1390))
    cluster.run()
    data = cluster.kinds(Kind.RELIABLE_DATA)
    assert max(8 * len(message.words) + len(message.payload) for message in data) <= 1408
    assert max(len(message.words) for message in data) == 2
    check_all(cluster, range(4))


# Loss.


def test_a_gap_is_asked_for_at_the_origin_and_filled() -> None:
    cluster = group(3)
    lose_first(cluster, seq=2, targets=[2])
    cluster.submit(0, 3)
    check_all(cluster, range(3))
    (nack,) = cluster.kinds(Kind.RELIABLE_NACK)
    assert (nack.words[0], nack.seq) == (VIEW << VIEW_SHIFT | 0, 1), "whose stream, and the cumulative acknowledgement"
    assert nack.words[1:] == (2 << 32 | 2,)
    (again,) = [message for message in cluster.kinds(Kind.RELIABLE_DATA) if message.flags]
    assert (again.flags, again.origin, again.incarnation, again.seq) == (Flag.RETRANSMISSION, 0, 1, 2)


def test_a_mere_reordering_is_hardly_asked_for() -> None:
    cluster = group(3, network=Network(jitter_ns=1 * MILLISECOND))
    load(cluster, [0], 100, MILLISECOND // 2)
    check_all(cluster, range(3))
    assert kinds(cluster)[Kind.RELIABLE_NACK] <= 2, "a gap is new when the timer of an earlier one is due"


def test_the_loss_of_the_last_message_is_announced() -> None:
    cluster = group(3)
    lose_first(cluster)
    cluster.submit(0)
    cluster.run(for_ns=100 * MILLISECOND)
    assert cluster.hosts[2].delivered == [(0, 1, 1)], "announced after 30 ms, asked for and answered at once"
    check_all(cluster, range(3))


def test_a_question_that_is_lost_is_asked_again() -> None:
    cluster = group(2)
    cluster.lose = lambda source, target, message: (
        (message.kind is Kind.RELIABLE_DATA and message.seq == 1 and not message.flags)
        or (message.kind is Kind.RELIABLE_NACK and len(cluster.kinds(Kind.RELIABLE_NACK)) <= 2)
    )
    cluster.submit(0, 2)
    check_all(cluster, range(2))
    assert len(cluster.kinds(Kind.RELIABLE_NACK)) == 3


def test_one_member_that_misses_a_message_is_answered_alone() -> None:
    cluster = group(8)
    lose_first(cluster, seq=2, targets=[3])
    cluster.submit(0, 4)
    before = cluster.datagrams
    check_all(cluster, range(8))
    assert retransmissions(cluster) == 1
    assert cluster.datagrams - before < 60


def test_many_members_that_miss_a_message_get_one_answer_together() -> None:
    """A loss near the sender affects all at once: the requests are spread, the second one is answered to all."""
    cluster = group(30)
    lose_first(cluster, seq=2)
    cluster.submit(0, 4)
    check_all(cluster, range(30))
    assert retransmissions(cluster) <= 3
    assert kinds(cluster)[Kind.RELIABLE_NACK] <= 29


def test_duplicates_are_dropped_with_a_reason() -> None:
    cluster = group(3, network=Network(duplicate_ratio=1.0))
    cluster.submit(0, 5)
    check_all(cluster, range(3))
    assert cluster.hosts[1].dropped(DropReason.DUPLICATE) == 5


# Flow control.


def test_the_window_bounds_what_is_unstable_and_opens_again() -> None:
    cluster = group(3)
    cluster.pause(2)
    cluster.submit(0, 200)
    cluster.run(for_ns=1 * SECOND)
    assert not core_of(cluster, 0).can_submit
    with pytest.raises(LocalError, match="can_submit"):
        core_of(cluster, 0).on_submit(Submission(payload=b""), 0)
    assert len(cluster.hosts[0].queue) == 200 - PARAMETERS.window
    assert core_of(cluster, 0).buffered == core_of(cluster, 1).buffered == PARAMETERS.window
    cluster.resume(2)
    check_all(cluster, range(3))
    assert len(cluster.hosts[2].delivered) == 200


def test_a_saturating_sender_is_not_slowed_by_rare_heartbeats() -> None:
    """A member that has received a large part of the window acknowledges at once."""
    cluster = group(5)
    cluster.submit(0, 2000)
    cluster.run(for_ns=1 * SECOND)
    assert len(cluster.hosts[4].delivered) == 2000
    check_all(cluster, range(5))


# Unicast.


@pytest.mark.parametrize("seed", range(8))
def test_multicasts_and_unicasts_of_a_pair_are_one_fifo(seed: int) -> None:
    network = Network(loss_ratio=0.2, duplicate_ratio=0.1, jitter_ns=10 * MILLISECOND)
    cluster = group(3, network=network, seed=seed)
    for number, member in product(range(60), range(3)):
        target = None if (number * 7 + member) % 3 == 0 else (member + 1 + number % 2) % 3
        cluster.at(number * 5 * MILLISECOND, partial(cluster.submit, member, target=target))
    check_silence(cluster)
    check_integrity(cluster)
    for host, origin in product(cluster.up(), range(3)):
        numbers = [number for source, _, number in host.delivered if source == origin]
        assert numbers == sorted(numbers), f"seed {seed}"
    assert set(cluster.submissions) == {one for host in cluster.up() for one in host.delivered}, f"seed {seed}"
    assert [core_of(cluster, member).buffered for member in range(3)] == [0, 0, 0]


def test_a_unicast_reaches_its_target_alone() -> None:
    cluster = group(3)
    cluster.submit(0, target=2)
    check_silence(cluster)
    assert [host.delivered for host in cluster.up()] == [[], [], [(0, 1, 1)]]
    assert kinds(cluster) == {Kind.RELIABLE_UNICAST: 1, Kind.RELIABLE_ACKNOWLEDGEMENT: 1}


def test_a_unicast_to_ourselves_needs_no_network() -> None:
    cluster = group(2)
    cluster.submit(0, target=0)
    check_silence(cluster)
    assert (cluster.hosts[0].delivered, cluster.sent) == ([(0, 1, 1)], [])


def test_a_unicast_waits_for_the_multicasts_before_it() -> None:
    cluster = group(2)
    lose_first(cluster)
    cluster.submit(0)
    cluster.submit(0, target=1)
    cluster.run(for_ns=5 * MILLISECOND)
    assert cluster.hosts[1].delivered == []
    check_silence(cluster)
    assert cluster.hosts[1].delivered == [(0, 1, 1), (0, 1, 2)]


def test_a_multicast_waits_for_the_unicasts_before_it_at_their_target_only() -> None:
    cluster = group(3)
    lose_first(cluster, Kind.RELIABLE_UNICAST)
    cluster.submit(0, target=1)
    cluster.submit(0)
    cluster.run(for_ns=5 * MILLISECOND)
    assert [host.delivered for host in cluster.up()[1:]] == [[], [(0, 1, 2)]]
    check_silence(cluster)
    assert cluster.hosts[1].delivered == [(0, 1, 1), (0, 1, 2)]


@pytest.mark.parametrize("target", [1, None])
def test_an_answer_takes_the_acknowledgement_along(target: int | None) -> None:
    """A unicast acknowledges unicasts and multicasts, a multicast unicasts."""
    cluster = group(2)
    for number in range(10):
        cluster.at(number * 20 * MILLISECOND, lambda: cluster.submit(0, target=target))
        cluster.at(number * 20 * MILLISECOND + 12 * MILLISECOND, lambda: cluster.submit(1, target=0))
    check_silence(cluster)
    traffic = kinds(cluster)
    assert (traffic[Kind.RELIABLE_UNICAST], retransmissions(cluster)) == (20 if target else 10, 0)
    assert traffic[Kind.RELIABLE_ACKNOWLEDGEMENT] <= (11 if target else 1), "one for each last word"
    assert traffic[Kind.RELIABLE_HEARTBEAT] <= (0 if target else 3), "and of the watermark"


def test_a_unicast_to_a_stranger_is_our_callers_mistake() -> None:
    with pytest.raises(LocalError, match="member 9 is not in the view"):
        core_of(group(2), 0).on_submit(Submission(payload=b"", target=9), 0)


# Without multicast: a multicast takes a datagram for each member.

PATIENT = dataclasses.replace(PARAMETERS, suspect_after_ns=30 * SECOND)


def copying(count: int) -> Cluster:
    return group(count, parameters=PATIENT, has_multicast=False)


def control_datagrams(cluster: Cluster, data: int) -> int:
    """Number of datagrams without those of `data` multicasts, each of which takes one for each peer."""
    return cluster.datagrams - data * (len(cluster.members) - 1)


def test_one_copied_message_costs_a_position_and_a_floor_for_each_member() -> None:
    cluster = copying(10)
    cluster.submit(0)
    check_all(cluster, cluster.members)
    assert control_datagrams(cluster, 1) == 9 + 9


def test_under_load_control_stays_below_half_of_the_copies() -> None:
    """Thirty members, two messages a second each: load 0.4 of paper 002."""
    cluster = copying(30)
    for number in range(20):
        for member in cluster.members:
            cluster.submit_later(member, number * 500 * MILLISECOND + member * 17 * MILLISECOND)
    cluster.run(for_ns=12 * SECOND)
    assert kinds(cluster)[Kind.RELIABLE_DATA] == 600
    assert control_datagrams(cluster, 600) < 600 * 29 / 4
    check_all(cluster, cluster.members)


@pytest.mark.parametrize(("count", "rides"), [(4, True), (20, False)])
def test_positions_do_not_ride_on_many_copies(count: int, rides: bool) -> None:
    cluster = copying(count)
    load(cluster, cluster.members, 30, 20 * MILLISECOND)
    check_all(cluster, cluster.members)
    assert (max(len(message.words) for message in cluster.kinds(Kind.RELIABLE_DATA)) > 1) is rides


def test_the_loss_of_a_copied_tail_is_announced_to_those_that_lack_it() -> None:
    cluster = copying(6)
    lose_first(cluster, targets=[4])
    cluster.submit(0)
    check_all(cluster, cluster.members)
    assert retransmissions(cluster) == 1
    assert control_datagrams(cluster, 1) < 6 * 5, "no member is told what it knows"


def test_a_gap_that_two_have_is_answered_to_each_of_them() -> None:
    """With multicast the second request would be answered to all."""
    cluster = copying(6)
    lose_first(cluster, seq=2, targets=[3, 4])
    cluster.submit(0, 3)
    check_all(cluster, cluster.members)
    assert retransmissions(cluster) == 2


# Size.


def test_three_hundred_members_and_one_sender() -> None:
    """Each receiver acknowledges once or twice; no traffic grows with the square."""
    cluster = group(300, parameters=ReliableParameters())
    cluster.submit(0, 20)
    cluster.run()
    assert all(len(host.delivered) == 20 for host in cluster.up())
    assert kinds(cluster)[Kind.RELIABLE_HEARTBEAT] < 3 * 300
    assert all(host.is_idle for host in cluster.up())


def test_the_first_multicast_of_a_core_is_its_only_effect_on_the_wire() -> None:
    core = core_of(group(2), 0)
    effects = core.on_submit(Submission(payload=b"x", flags=Flag.DUMMY), 0)
    sent = [effect.message for effect in effects if isinstance(effect, Multicast)]
    assert [(message.seq, message.flags, message.words) for message in sent] == [
        (1, Flag.DUMMY, (VIEW << VIEW_SHIFT | 1,))
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("window", 3),
        ("burst", 0),
        ("heartbeat_ns", 0),
        ("stability_ns", 0),
        ("heartbeat_per_member_ns", -1),
        ("acknowledge_ns", 30 * MILLISECOND),
        ("retry_first_ns", 1 * MILLISECOND),
        ("suspect_after_ns", 100 * MILLISECOND),
    ],
)
def test_parameters_that_cannot_work_are_refused_by_name(field: str, value: int) -> None:
    changed: dict[str, Any] = {field: value}
    with pytest.raises(LocalError, match=field):
        dataclasses.replace(PARAMETERS, **changed)
