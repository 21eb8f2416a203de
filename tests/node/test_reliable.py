"""The reliable layer, rule by rule, in a network where each test decides what is lost."""

from __future__ import annotations

from collections import Counter

import pytest

from node.core import Membership, Submission, random_for
from node.effects import Deliver, Effect, Multicast, Report, Send, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.protocols.reliable import Phase, ReliableCore, ReliableParameters, ReliableReport
from node.protocols.words import Entry, Heartbeat, pack, unpack, view_digest
from node.wire import LOCAL_KINDS, Flag, Kind, Message
from tests.node.cluster import (
    MILLISECOND,
    SECOND,
    Cluster,
    Host,
    Network,
    check_agreement,
    check_fifo,
    check_integrity,
    check_reliable,
    check_silence,
    retransmissions,
)

PARAMETERS = ReliableParameters(window=64, suspect_after_ns=2 * SECOND)


def build(membership: Membership, seed: int) -> ReliableCore:
    return ReliableCore(membership=membership, parameters=PARAMETERS, rng=random_for(seed, membership, "reliable"))


def group(count: int, *, network: Network | None = None, seed: int = 1) -> Cluster:
    return Cluster(count, build, seed=seed, network=network)


def core_of(cluster: Cluster, member: int) -> ReliableCore:
    core = cluster.core(member)
    assert isinstance(core, ReliableCore)
    return core


def check_all(cluster: Cluster, members: range | list[int]) -> None:
    check_reliable(cluster, members)
    assert [core_of(cluster, member).held for member in members] == [0] * len(members), "everything stable is let go"


def kinds(cluster: Cluster) -> Counter[Kind]:
    return Counter(message.kind for _, message in cluster.sent)


def reports(host: Host) -> list[int]:
    return [report.code for report in host.reports if not isinstance(report.code, DropReason)]


# Multicast without faults.


def test_a_group_with_nothing_to_do_is_silent() -> None:
    cluster = group(4)
    cluster.run()
    assert (cluster.sent, cluster.now_ns) == ([], 0)
    assert all(host.is_idle for host in cluster.up())


def test_one_multicast_reaches_all_and_the_group_falls_silent() -> None:
    cluster = group(4)
    cluster.submit(0)
    check_all(cluster, range(4))
    traffic = kinds(cluster)
    assert traffic[Kind.RELIABLE_DATA] == 1
    # The announcement of the tail, three positions, and the floor that lets all forget.
    assert traffic[Kind.RELIABLE_HEARTBEAT] <= 6
    assert cluster.now_ns < 300 * MILLISECOND


def test_a_tail_that_nobody_lost_is_announced_once_however_large_the_group() -> None:
    """Positions take longer in large groups; a second announcement would come before anybody was late."""
    cluster = group(20)
    cluster.submit(0)
    check_all(cluster, range(20))
    own = [message for member, message in cluster.sent if member == 0 and message.kind is Kind.RELIABLE_HEARTBEAT]
    assert len(own) == 2, "the announcement, and the floor that lets all forget"


def test_the_sender_delivers_its_own_message_at_once() -> None:
    cluster = group(3)
    cluster.submit(1)
    assert cluster.hosts[1].delivered == [(1, 1, 1)]
    assert cluster.hosts[0].delivered == []


def test_a_group_of_one_delivers_to_itself_and_keeps_nothing() -> None:
    cluster = group(1)
    cluster.submit(0, 200)
    check_all(cluster, range(1))
    assert len(cluster.hosts[0].delivered) == 200


def test_what_is_stable_is_forgotten_while_traffic_goes_on() -> None:
    cluster = group(4)
    for number in range(400):
        cluster.submit_later(0, number * 5 * MILLISECOND)
    most = 0
    for _ in range(100):
        cluster.run(for_ns=20 * MILLISECOND)
        most = max(most, *(core_of(cluster, member).held for member in range(4)))
    assert most <= 40, "two or three heartbeats' worth of messages, at 200 a second"
    check_all(cluster, range(4))


def test_who_multicasts_tells_its_positions_on_the_way() -> None:
    cluster = group(4)
    for number in range(200):
        for member in range(4):
            cluster.submit_later(member, number * 10 * MILLISECOND + member * MILLISECOND)
    cluster.run(for_ns=2 * SECOND)
    assert kinds(cluster)[Kind.RELIABLE_HEARTBEAT] < 40, "no heartbeats of their own while there is traffic"
    check_all(cluster, range(4))


def test_piggybacked_positions_leave_room_for_the_payload() -> None:
    cluster = group(4)
    for number in range(50):
        for member in range(4):
            cluster.at(number * 10 * MILLISECOND, lambda member=member: cluster.submit(member, size=1390))  # type: ignore[misc]
    cluster.run()
    data = cluster.kinds(Kind.RELIABLE_DATA)
    assert max(8 * len(message.words) + len(message.payload) for message in data) <= 1408
    assert max(len(message.words) for message in data) == 2
    check_all(cluster, range(4))


# Loss.


def test_a_gap_is_asked_for_at_the_origin_and_filled() -> None:
    cluster = group(3)
    cluster.lose = lambda source, target, message: (
        target == 2 and message.kind is Kind.RELIABLE_DATA and message.seq == 2 and not message.flags
    )
    cluster.submit(0, 3)
    check_all(cluster, range(3))
    (nack,) = cluster.kinds(Kind.RELIABLE_NACK)
    assert unpack(nack.words[0]) == (0, 1, 1), "whose stream, and how far we are"
    assert nack.words[1:] == (2 << 32 | 2,)
    (again,) = [message for message in cluster.kinds(Kind.RELIABLE_DATA) if message.flags]
    assert (again.flags, again.origin, again.incarnation, again.seq) == (Flag.RETRANSMISSION, 0, 1, 2)


def test_a_mere_reordering_is_not_asked_for() -> None:
    cluster = group(3, network=Network(jitter_ns=1 * MILLISECOND))
    for number in range(100):
        cluster.submit_later(0, number * MILLISECOND // 2)
    check_all(cluster, range(3))
    assert kinds(cluster)[Kind.RELIABLE_NACK] == 0


def test_the_loss_of_the_last_message_is_announced() -> None:
    cluster = group(3)
    cluster.lose = lambda source, target, message: message.kind is Kind.RELIABLE_DATA and not message.flags
    cluster.submit(0)
    cluster.run(for_ns=100 * MILLISECOND)
    assert cluster.hosts[2].delivered == [(0, 1, 1)], "announced after 30 ms, asked for and answered at once"
    check_all(cluster, range(3))


def test_a_question_that_is_lost_is_asked_again() -> None:
    cluster = group(2)
    lost: list[Message] = []

    def lose(source: int, target: int, message: Message) -> bool:
        is_first = message.kind is Kind.RELIABLE_NACK and len(lost) < 2
        if is_first:
            lost.append(message)
        return is_first or (message.kind is Kind.RELIABLE_DATA and message.seq == 1 and not message.flags)

    cluster.lose = lose
    cluster.submit(0, 2)
    check_all(cluster, range(2))
    assert len(cluster.kinds(Kind.RELIABLE_NACK)) == 3


def test_one_who_misses_a_message_is_answered_alone() -> None:
    cluster = group(8)
    cluster.lose = lambda source, target, message: (
        message.kind is Kind.RELIABLE_DATA and message.seq == 2 and not message.flags and target == 3
    )
    cluster.submit(0, 4)
    before = cluster.datagrams
    check_all(cluster, range(8))
    assert retransmissions(cluster) == 1
    assert cluster.datagrams - before < 60


def test_many_who_miss_a_message_get_one_answer_together() -> None:
    """A loss next to the sender hits all at once: the questions are spread, the second one is answered to all."""
    cluster = group(30)
    cluster.lose = lambda source, target, message: (
        message.kind is Kind.RELIABLE_DATA and message.seq == 2 and not message.flags
    )
    cluster.submit(0, 4)
    check_all(cluster, range(30))
    assert retransmissions(cluster) <= 3
    assert kinds(cluster)[Kind.RELIABLE_NACK] <= 29


def test_duplicates_are_dropped_with_a_reason() -> None:
    cluster = group(3, network=Network(duplicate_ratio=1.0))
    cluster.submit(0, 5)
    check_all(cluster, range(3))
    assert cluster.hosts[1].dropped(DropReason.DUPLICATE) == 5


def test_a_pause_of_seconds_is_made_good() -> None:
    cluster = group(4)
    for number in range(60):
        cluster.submit_later(0, number * 20 * MILLISECOND)
    cluster.at(100 * MILLISECOND, lambda: cluster.pause(2))
    cluster.at(1800 * MILLISECOND, lambda: cluster.resume(2))
    check_all(cluster, range(4))
    assert len(cluster.hosts[2].delivered) == 60


@pytest.mark.parametrize("groups", [((0, 1), (2, 3)), ((0,), (1, 2, 3)), ((0, 1, 2), (3,)), ((0,), (1,), (2,), (3,))])
def test_a_partition_that_heals_in_time_is_made_good(groups: tuple[tuple[int, ...], ...]) -> None:
    cluster = group(4)
    for number in range(40):
        for member in range(4):
            cluster.submit_later(member, number * 40 * MILLISECOND)
    cluster.at(200 * MILLISECOND, lambda: cluster.cut(*groups))
    cluster.at(1500 * MILLISECOND, cluster.heal)
    check_all(cluster, range(4))
    assert not any(reports(host) for host in cluster.up())


# Flow control.


def test_the_window_bounds_what_is_unstable_and_opens_again() -> None:
    cluster = group(3)
    cluster.pause(2)
    cluster.submit(0, 200)
    cluster.run(for_ns=1 * SECOND)
    assert not core_of(cluster, 0).can_submit
    assert len(cluster.hosts[0].queue) == 200 - PARAMETERS.window
    assert core_of(cluster, 0).held == core_of(cluster, 1).held == PARAMETERS.window
    cluster.resume(2)
    check_all(cluster, range(3))
    assert len(cluster.hosts[2].delivered) == 200


def test_a_submission_while_shut_is_our_callers_mistake() -> None:
    cluster = group(2)
    cluster.pause(1)
    cluster.submit(0, PARAMETERS.window)
    with pytest.raises(LocalError, match="can_submit"):
        core_of(cluster, 0).on_submit(Submission(payload=b""), 0)


def test_a_saturating_sender_is_not_slowed_by_rare_heartbeats() -> None:
    """Who has received a good part of the window says so at once."""
    cluster = group(5)
    cluster.submit(0, 2000)
    cluster.run(for_ns=1 * SECOND)
    assert len(cluster.hosts[4].delivered) == 2000
    check_all(cluster, range(5))


# The end of an incarnation.


def test_who_is_silent_for_too_long_is_over_and_the_window_opens() -> None:
    cluster = group(4)
    cluster.crash(3)
    cluster.submit(0, 200)
    cluster.run(for_ns=1500 * MILLISECOND)
    assert len(cluster.hosts[1].delivered) == PARAMETERS.window
    check_all(cluster, [0, 1, 2])
    assert len(cluster.hosts[1].delivered) == 200
    assert cluster.now_ns < 5 * SECOND
    for member in (0, 1, 2):
        assert (Kind.RELIABLE_ENDED, 3, 1) in cluster.hosts[member].news
        assert ReliableReport.OVER in reports(cluster.hosts[member])


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_what_one_survivor_has_all_survivors_get(count: int) -> None:
    """The sender crashes after its message reached one member only."""
    cluster = group(count)
    cluster.lose = lambda source, target, message: source == 0 and target != count - 1
    cluster.submit(0, 3)
    cluster.at(10 * MILLISECOND, lambda: cluster.crash(0))
    check_all(cluster, list(range(1, count)))
    assert cluster.hosts[1].delivered == [(0, 1, 1), (0, 1, 2), (0, 1, 3)]
    assert {(Kind.RELIABLE_ENDED, 0, 1)} == set(cluster.hosts[1].news)


def test_the_holder_of_a_message_crashes_too_before_it_could_hand_it_on() -> None:
    """Then nobody has it; the end is agreed without it, under the newer view."""
    cluster = group(5)
    cluster.lose = lambda source, target, message: source == 0 and target != 4
    cluster.submit(0, 3)
    cluster.at(5 * MILLISECOND, lambda: cluster.crash(0))
    cluster.at(10 * MILLISECOND, lambda: cluster.crash(4))
    cluster.submit_later(1, 20 * MILLISECOND)
    check_all(cluster, [1, 2, 3])
    assert cluster.hosts[1].delivered == [(1, 1, 1)]
    assert {(Kind.RELIABLE_ENDED, 0, 1), (Kind.RELIABLE_ENDED, 4, 1)} == set(cluster.hosts[1].news)


def test_messages_beyond_a_gap_that_nobody_can_fill_are_delivered_by_nobody() -> None:
    cluster = group(4)
    cluster.lose = lambda source, target, message: source == 0 and message.seq == 2
    cluster.submit(0, 3)
    cluster.at(2 * MILLISECOND, lambda: cluster.crash(0))
    check_all(cluster, [1, 2, 3])
    assert cluster.hosts[1].delivered == [(0, 1, 1)]


def test_news_of_an_end_come_after_the_last_message() -> None:
    cluster = group(3)
    order: list[object] = []
    deliver = cluster._deliver

    def watch(host: Host, delivery: Deliver) -> None:
        if host.membership.member == 2:
            order.append(delivery.inner)
        deliver(host, delivery)

    cluster._deliver = watch  # type: ignore[method-assign]
    cluster.lose = lambda source, target, message: source == 0 and target == 2
    cluster.submit(0, 2)
    cluster.at(5 * MILLISECOND, lambda: cluster.crash(0))
    cluster.run()
    assert order == [Kind.APPLICATION, Kind.APPLICATION, Kind.RELIABLE_ENDED]


def test_a_minority_ends_nobody_and_waits() -> None:
    cluster = group(5)
    for member in (2, 3, 4):
        cluster.crash(member)
    cluster.submit(0, 100)
    cluster.run(for_ns=20 * SECOND)
    assert len(cluster.hosts[1].delivered) == PARAMETERS.window
    assert not core_of(cluster, 0).is_idle
    assert ReliableReport.OVER not in reports(cluster.hosts[0])
    assert ReliableReport.SUSPECTED in reports(cluster.hosts[0])


def test_who_is_cut_off_for_too_long_is_expelled_and_mute_after_the_heal() -> None:
    cluster = group(5)
    for number in range(100):
        for member in range(5):
            cluster.submit_later(member, number * 50 * MILLISECOND)
    cluster.at(100 * MILLISECOND, lambda: cluster.cut((0, 1), (2, 3, 4)))
    cluster.at(9 * SECOND, cluster.heal)
    cluster.run(for_ns=8 * SECOND)
    stuck = list(cluster.hosts[0].delivered)
    check_all(cluster, [2, 3, 4])
    for member in (0, 1):
        assert core_of(cluster, member).phase is Phase.EXPELLED
        assert ReliableReport.EXPELLED in reports(cluster.hosts[member])
        assert not core_of(cluster, member).can_submit
    assert cluster.hosts[0].delivered[: len(stuck)] == stuck
    assert set(cluster.hosts[0].delivered) - set(stuck) <= set(cluster.hosts[2].delivered)


def test_one_who_hears_nobody_does_not_expel_those_who_hear_each_other() -> None:
    cluster = group(4)
    for source in (1, 2, 3):
        cluster.cut_path(source, 0)
    for number in range(30):
        cluster.submit_later(0, number * 100 * MILLISECOND)
        cluster.submit_later(1, number * 100 * MILLISECOND)
    cluster.run(for_ns=10 * SECOND)
    assert all(core_of(cluster, member).phase is Phase.MEMBER for member in (1, 2, 3))
    over = {report.member for host in cluster.up() for report in host.reports if report.code == ReliableReport.OVER}
    assert over <= {0}
    cluster.heal()
    check_all(cluster, [1, 2, 3])


def test_a_pause_of_ours_makes_nobody_else_a_suspect() -> None:
    cluster = group(3)
    for number in range(20):
        cluster.submit_later(0, number * 200 * MILLISECOND)
    cluster.at(500 * MILLISECOND, lambda: cluster.pause(0))
    cluster.at(500 * MILLISECOND + 1900 * MILLISECOND, lambda: cluster.resume(0))
    check_all(cluster, range(3))
    assert reports(cluster.hosts[0]) == []


# Restart.


def test_a_restarted_member_starts_at_the_present_position() -> None:
    cluster = group(3)
    cluster.submit(0, 10)
    cluster.run()
    cluster.restart(2)
    cluster.run()
    assert cluster.hosts[2].delivered == []
    assert core_of(cluster, 2).phase is Phase.MEMBER
    cluster.submit(0, 5)
    cluster.submit(2, 5)
    check_silence(cluster)
    check_fifo(cluster)
    expected = [(0, 1, number) for number in range(11, 16)]
    assert [one for one in cluster.hosts[2].delivered if one[0] == 0] == expected
    assert [one for one in cluster.hosts[1].delivered if one[0] == 2] == [(2, 2, number) for number in range(1, 6)]
    check_agreement(cluster, [0, 1])


def test_news_of_a_restart_are_the_end_and_the_new_life() -> None:
    cluster = group(3)
    cluster.submit(2)
    cluster.run()
    cluster.restart(2)
    cluster.run()
    for member in (0, 1):
        assert set(cluster.hosts[member].news) == {(Kind.RELIABLE_ENDED, 2, 1), (Kind.RELIABLE_JOINED, 2, 2)}
    lives = [(Kind.RELIABLE_JOINED, 0, 1), (Kind.RELIABLE_JOINED, 1, 1), (Kind.RELIABLE_JOINED, 2, 2)]
    assert cluster.hosts[2].news == lives, "the streams that the joiner takes part in, then itself"
    assert reports(cluster.hosts[2]) == [ReliableReport.JOINED]


def test_who_restarts_takes_no_submission_before_it_has_joined() -> None:
    cluster = group(3)
    cluster.restart(2)
    assert (core_of(cluster, 2).phase, core_of(cluster, 2).can_submit) == (Phase.JOINING, False)
    cluster.submit(2, 3)
    assert len(cluster.hosts[2].queue) == 3
    check_silence(cluster)
    assert cluster.hosts[0].delivered == [(2, 2, 1), (2, 2, 2), (2, 2, 3)]


def test_a_join_that_is_lost_is_repeated() -> None:
    cluster = group(3)
    cluster.restart(2)
    cluster.lose = lambda source, target, message: cluster.now_ns < 300 * MILLISECOND
    check_silence(cluster)
    assert core_of(cluster, 2).phase is Phase.MEMBER
    assert len(cluster.kinds(Kind.RELIABLE_JOIN)) > 1


def test_traffic_of_an_earlier_life_is_dropped_with_a_reason_and_its_sender_told() -> None:
    cluster = group(3)
    cluster.restart(2)
    cluster.run()
    late = Message(kind=Kind.RELIABLE_DATA, origin=2, incarnation=1, seq=1, words=(0,), payload=b"late")
    effects = core_of(cluster, 0).on_message(late, 2, cluster.now_ns)
    assert Report(code=DropReason.STALE_INCARNATION, member=2, value=4) in effects
    (warning,) = [effect for effect in effects if not isinstance(effect, Report)]
    assert Heartbeat.from_words(warning.message.words).over == ((2, 1, 2),)  # type: ignore[union-attr]


def test_a_joiner_delivers_only_after_what_was_before_it_is_stable() -> None:
    """Otherwise the origin could crash and take with it what comes before, and the joiner would have a message that
    nobody else can deliver.
    """
    cluster = group(4)
    cluster.restart(3)
    cluster.lose = lambda source, target, message: (
        source == 0
        and target in (1, 2)
        and message.kind
        in (
            Kind.RELIABLE_DATA,
            Kind.RELIABLE_HEARTBEAT,
        )
    )
    cluster.submit(0, 5)
    cluster.run(for_ns=30 * MILLISECOND)
    cluster.submit(0, 5)
    cluster.run(for_ns=200 * MILLISECOND)
    assert cluster.hosts[3].delivered == []
    cluster.crash(0)
    check_silence(cluster)
    assert [cluster.hosts[member].delivered for member in (1, 2, 3)] == [[], [], []]


def test_all_restart_at_once() -> None:
    cluster = group(4)
    cluster.submit(0, 3)
    cluster.run()
    for member in range(4):
        cluster.restart(member)
    cluster.run()
    assert all(core_of(cluster, member).phase is Phase.MEMBER for member in range(4))
    for member in range(4):
        cluster.submit(member)
    check_silence(cluster)
    assert [len(host.delivered) for host in cluster.up()] == [4, 4, 4, 4]


def test_many_lives_of_one_member_leave_bounded_memory() -> None:
    cluster = group(3)
    for _ in range(30):
        cluster.submit(2)
        cluster.run()
        cluster.restart(2)
        cluster.run()
    told = [Heartbeat.from_words(message.words) for message in cluster.kinds(Kind.RELIABLE_HEARTBEAT)]
    assert 2 <= max(len(heartbeat.closed) for heartbeat in told) <= 9
    cluster.submit(0)
    check_silence(cluster)
    assert cluster.hosts[2].delivered == [(0, 1, 1)]


# Views, seen by one core.


def five() -> ReliableCore:
    core = build(Membership(member=0, members=(0, 1, 2, 3, 4)), 1)
    core.on_start(0)
    return core


def data_of(member: int, seq: int, *, view: int = 0, floor: int = 0, incarnation: int = 1) -> Message:
    words = (view << 48 | floor,)
    payload = bytes([member, seq])
    return Message(
        kind=Kind.RELIABLE_DATA, origin=member, incarnation=incarnation, seq=seq, words=words, payload=payload
    )


def heartbeat_of(
    member: int,
    *,
    over: tuple[tuple[int, int, int], ...] = (),
    closed: tuple[tuple[int, int, int], ...] = (),
    position: int | None = None,
    floor: int = 0,
    incarnation: int = 1,
) -> Message:
    positions = () if position is None else (Entry(member, incarnation, position),)
    heartbeat = Heartbeat(
        positions=positions,
        closed=tuple(Entry(*entry) for entry in closed),
        over=tuple(Entry(*entry) for entry in over),
    )
    return Message(
        kind=Kind.RELIABLE_HEARTBEAT, origin=member, incarnation=incarnation, seq=floor, words=heartbeat.to_words()
    )


def payloads(effects: list[Effect]) -> list[bytes]:
    return [effect.payload for effect in effects if isinstance(effect, Deliver) and effect.inner is Kind.APPLICATION]


def news_in(effects: list[Effect]) -> list[tuple[Kind, int, int]]:
    return [
        (effect.inner, effect.origin, effect.incarnation)
        for effect in effects
        if isinstance(effect, Deliver) and effect.inner is not Kind.APPLICATION
    ]


def test_a_multicast_of_an_unknown_view_waits_until_the_view_is_known() -> None:
    core = five()
    view = view_digest({4: 1})
    effects = core.on_message(data_of(1, 1, view=view), 1, 0)
    assert payloads(effects) == []
    (question,) = [effect for effect in effects if isinstance(effect, Send)]
    assert (question.target, Heartbeat.from_words(question.message.words).awaited) == (1, (1,))
    assert payloads(core.on_message(data_of(1, 2, view=view), 1, 0)) == [], "and is asked about once"
    assert not core.is_idle
    effects = core.on_message(heartbeat_of(1, over=((4, 1, 1),), position=2), 1, 0)
    assert payloads(effects) == [b"\x01\x01", b"\x01\x02"]


def test_a_view_that_is_part_of_ours_is_known_by_what_its_member_says() -> None:
    """Members 3 and 4 end; we hear of both, in the other order than member 1 did."""
    core = five()
    core.on_message(heartbeat_of(2, over=((3, 1, 1),)), 2, 0)
    core.on_message(heartbeat_of(2, over=((3, 1, 1), (4, 1, 1))), 2, 0)
    first = view_digest({4: 1})
    assert payloads(core.on_message(data_of(1, 1, view=first), 1, 0)) == [], "we never were in that view"
    effects = core.on_message(heartbeat_of(1, over=((3, 1, 1), (4, 1, 1)), position=1), 1, 0)
    assert payloads(effects) == [b"\x01\x01"], "what it sent before it said so was sent under parts of this view"


def test_who_learns_from_the_answer_that_it_is_over_delivers_nothing_more() -> None:
    core = five()
    core.on_message(data_of(1, 1, view=view_digest({0: 1})), 1, 0)
    effects = core.on_message(heartbeat_of(1, over=((0, 1, 1),), position=1), 1, 0)
    assert payloads(effects) == []
    assert core.phase is Phase.EXPELLED
    assert core.on_timer(Timer("tick"), 10**9) == []


def test_a_suspicion_that_was_wrong_is_taken_back_before_all() -> None:
    """Otherwise it would lie in wait until a second one, as wrong, makes a majority of the two."""
    core = five()
    core.on_submit(Submission(payload=b"x"), 0)
    now_ns = 0
    while not any(Heartbeat.from_words(message.words).suspects for message in multicasts_at(core, now_ns)):
        now_ns += 50 * MILLISECOND
        assert now_ns < 10 * SECOND
    (taken_back, *_) = [
        effect.message for effect in core.on_message(heartbeat_of(1), 1, now_ns) if isinstance(effect, Multicast)
    ]
    assert [entry.member for entry in Heartbeat.from_words(taken_back.words).suspects] == [2, 3, 4]


def multicasts_at(core: ReliableCore, now_ns: int) -> list[Message]:
    effects = core.on_timer(Timer("tick"), now_ns)
    return [effect.message for effect in effects if isinstance(effect, Multicast)]


def test_positions_of_an_ending_stream_count_under_one_view_only() -> None:
    core = five()
    core.on_message(data_of(4, 1), 4, 0)
    core.on_message(heartbeat_of(1, over=((3, 1, 1), (4, 1, 1))), 1, 0)
    for member in (1, 2):
        effects = core.on_message(heartbeat_of(member, over=((4, 1, 1),), closed=((4, 1, 1),)), member, 0)
        assert (Kind.RELIABLE_ENDED, 4, 1) not in news_in(effects), "told without knowing that member 3 is over, too"
    both = ((3, 1, 1), (4, 1, 1))
    core.on_message(heartbeat_of(1, over=both, closed=((4, 1, 1),)), 1, 0)
    effects = core.on_message(heartbeat_of(2, over=both, closed=((4, 1, 1),)), 2, 0)
    assert (Kind.RELIABLE_ENDED, 4, 1) in news_in(effects)


def test_positions_told_under_an_older_view_are_void() -> None:
    """Member 3 had more of the stream and handed it to member 1 just before it crashed, too."""
    core = five()
    core.on_message(data_of(4, 1), 4, 0)
    one = ((4, 1, 1),)
    for member in (1, 2):
        core.on_message(heartbeat_of(member, over=one, closed=((4, 1, 1),)), member, 0)
    both = ((3, 1, 1), (4, 1, 1))
    effects = core.on_message(heartbeat_of(2, over=both, closed=((4, 1, 1),)), 2, 0)
    assert (Kind.RELIABLE_ENDED, 4, 1) not in news_in(effects), "member 1 has to tell again"
    effects = core.on_message(heartbeat_of(1, over=both, closed=((4, 1, 2),)), 1, 0)
    assert (Kind.RELIABLE_ENDED, 4, 1) not in news_in(effects), "and has got number 2 meanwhile"
    effects = core.on_message(data_of(4, 2), 1, 0)
    assert payloads(effects) == [b"\x04\x02"]
    assert (Kind.RELIABLE_ENDED, 4, 1) in news_in(effects)


def test_a_stranger_is_asked_and_heard_only_from_where_all_is_stable() -> None:
    """Its JOIN was lost; we meet it by other words when it is in full swing."""
    core = five()
    core.on_message(heartbeat_of(1, incarnation=2), 1, 0)
    welcome = Message(kind=Kind.RELIABLE_WELCOME, origin=1, incarnation=2, seq=5, words=(1, 3))
    assert news_in(core.on_message(welcome, 1, 0)) == []
    assert payloads(core.on_message(data_of(1, 6, floor=3, incarnation=2), 1, 0)) == []
    assert not core.is_idle
    effects = core.on_message(heartbeat_of(1, incarnation=2, floor=5), 1, 0)
    assert payloads(effects) == [b"\x01\x06"]
    assert news_in(effects) == [(Kind.RELIABLE_JOINED, 1, 2)]
    assert [effect.seq for effect in effects if isinstance(effect, Deliver)] == [5, 6], "where our part begins"


# Unicast.


def unicasts(host: Host, origin: int) -> list[int]:
    return [number for source, _, number in host.delivered if source == origin]


@pytest.mark.parametrize("seed", range(8))
def test_multicasts_and_unicasts_of_a_pair_are_one_fifo(seed: int) -> None:
    network = Network(loss_ratio=0.2, duplicate_ratio=0.1, jitter_ns=10 * MILLISECOND)
    cluster = group(3, network=network, seed=seed)
    for number in range(60):
        for member in range(3):
            target = None if (number * 7 + member) % 3 == 0 else (member + 1 + number % 2) % 3
            act = lambda member=member, target=target: cluster.submit(member, target=target)  # noqa: E731
            cluster.at(number * 5 * MILLISECOND, act)
    check_silence(cluster)
    check_integrity(cluster)
    for host in cluster.up():
        for origin in range(3):
            numbers = unicasts(host, origin)
            assert numbers == sorted(numbers), f"seed {seed}"
    delivered = [set(host.delivered) for host in cluster.up()]
    for identity in cluster.submissions:
        assert any(identity in one for one in delivered), f"seed {seed}"
    assert [core_of(cluster, member).held for member in range(3)] == [0, 0, 0]


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
    cluster.lose = lambda source, target, message: message.kind is Kind.RELIABLE_DATA and not message.flags
    cluster.submit(0)
    cluster.submit(0, target=1)
    cluster.run(for_ns=5 * MILLISECOND)
    assert cluster.hosts[1].delivered == []
    check_silence(cluster)
    assert cluster.hosts[1].delivered == [(0, 1, 1), (0, 1, 2)]


def test_a_multicast_waits_for_the_unicasts_before_it_at_their_target_only() -> None:
    cluster = group(3)
    cluster.lose = lambda source, target, message: message.kind is Kind.RELIABLE_UNICAST and not message.flags
    cluster.submit(0, target=1)
    cluster.submit(0)
    cluster.run(for_ns=5 * MILLISECOND)
    assert [host.delivered for host in cluster.up()[1:]] == [[], [(0, 1, 2)]]
    check_silence(cluster)
    assert cluster.hosts[1].delivered == [(0, 1, 1), (0, 1, 2)]


def test_an_answer_takes_the_acknowledgement_along() -> None:
    cluster = group(2)
    for number in range(10):
        cluster.at(number * 20 * MILLISECOND, lambda: cluster.submit(0, target=1))
        cluster.at(number * 20 * MILLISECOND + 2 * MILLISECOND, lambda: cluster.submit(1, target=0))
    check_silence(cluster)
    traffic = kinds(cluster)
    assert (traffic[Kind.RELIABLE_UNICAST], retransmissions(cluster)) == (20, 0)
    assert traffic[Kind.RELIABLE_ACKNOWLEDGEMENT] <= 11, "one for each last word"


def test_a_fence_of_a_dead_sender_does_not_hold_what_others_deliver() -> None:
    cluster = group(3)
    cluster.lose = lambda source, target, message: message.kind is Kind.RELIABLE_UNICAST
    cluster.submit(0, target=1)
    cluster.submit(0)
    cluster.at(5 * MILLISECOND, lambda: cluster.crash(0))
    cluster.run()
    assert [cluster.hosts[member].delivered for member in (1, 2)] == [[(0, 1, 2)], [(0, 1, 2)]]
    assert all(cluster.hosts[member].is_idle for member in (1, 2))


def test_a_unicast_to_the_dead_is_given_up() -> None:
    cluster = group(3)
    cluster.crash(1)
    cluster.submit(0, target=1)
    check_silence(cluster)
    cluster.submit(0, target=1)
    check_silence(cluster)
    assert core_of(cluster, 0).held == 0


def test_a_unicast_to_nobody_is_our_callers_mistake() -> None:
    with pytest.raises(LocalError, match="member 9 does not exist"):
        core_of(group(2), 0).on_submit(Submission(payload=b"", target=9), 0)


# Refusals.


def test_messages_that_cannot_be_for_us_are_refused_with_their_reason() -> None:
    cases = {
        DropReason.OWN: Message(kind=Kind.RELIABLE_DATA, origin=0, incarnation=1, seq=1, words=(0,)),
        DropReason.UNKNOWN_MEMBER: Message(kind=Kind.RELIABLE_DATA, origin=7, incarnation=1, seq=1, words=(0,)),
        DropReason.MALFORMED: Message(kind=Kind.RELIABLE_DATA, origin=1, incarnation=0, seq=1, words=(0,)),
        DropReason.UNEXPECTED: Message(kind=Kind.SEQUENCER_DATA, origin=1, incarnation=1, seq=1),
        DropReason.OUT_OF_WINDOW: Message(kind=Kind.RELIABLE_DATA, origin=1, incarnation=1, seq=65, words=(0,)),
    }
    for reason, message in cases.items():
        effects = core_of(group(2), 0).on_message(message, 1, 0)
        assert Report(code=reason, member=1, value=0) in effects


def test_nobody_speaks_for_another_except_for_the_dead() -> None:
    core = core_of(group(3), 0)
    for kind in (Kind.RELIABLE_HEARTBEAT, Kind.RELIABLE_NACK, Kind.RELIABLE_JOIN, Kind.RELIABLE_UNICAST):
        effects = core.on_message(Message(kind=kind, origin=1, incarnation=1, words=(0,)), 2, 0)
        assert effects == [Report(code=DropReason.UNEXPECTED, member=2, value=0)]
    relayed = Message(kind=Kind.RELIABLE_DATA, origin=1, incarnation=1, seq=1, words=(0,))
    assert core.on_message(relayed, 2, 0) == [Report(code=DropReason.UNEXPECTED, member=2, value=0)]


def test_a_floor_that_is_a_lie_harms_nobody() -> None:
    cluster = group(3)
    cluster.submit(1, 3)
    cluster.run(for_ns=2 * MILLISECOND)
    lie = Message(
        kind=Kind.RELIABLE_HEARTBEAT,
        origin=1,
        incarnation=1,
        seq=4_000_000,
        words=Heartbeat(positions=(unpack(pack(1, 1, 4_000_000)),)).to_words(),
    )
    core_of(cluster, 0).on_message(lie, 1, cluster.now_ns)
    cluster.submit(1, 3)
    check_all(cluster, range(3))


SHAPES: list[tuple[int, ...]] = [
    (),
    (0,),
    (1,),
    (2**64 - 1,),
    (pack(0, 1, 0), 1 << 32 | 3),
    (pack(1, 1, 9), 3 << 32 | 1),
    (1, 0, 0),
    (2, 5, 7, 9),
    Heartbeat(awaited=(0, 9), over=(unpack(pack(2, 3, 7)),), suspects=(unpack(pack(2, 1, 0)),)).to_words(),
    Heartbeat(closed=(unpack(pack(1, 1, 3)), unpack(pack(9, 9, 9)))).to_words(),
    Heartbeat(over=(unpack(pack(0, 1, 1)),)).to_words(),
]


def core_in(phase: Phase) -> ReliableCore:
    membership = Membership(member=0, members=(0, 1, 2), incarnation=2 if phase is Phase.JOINING else 1)
    core = build(membership, 1)
    core.on_start(0)
    if phase is Phase.EXPELLED:
        words = Heartbeat(over=(unpack(pack(0, 1, 1)),)).to_words()
        core.on_message(Message(kind=Kind.RELIABLE_HEARTBEAT, origin=1, incarnation=1, words=words), 1, 0)
    assert core.phase is phase
    return core


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in LOCAL_KINDS], ids=lambda kind: str(kind.name))
def test_every_phase_takes_or_refuses_every_message(phase: Phase, kind: Kind) -> None:
    """Whatever comes: effects or a RemoteError, never another exception; and who is expelled says nothing."""
    for words in SHAPES:
        for seq in (0, 1, 2, 65, 2**32, 2**64 - 1):
            for incarnation in (0, 1, 2, 65535):
                for origin, source in ((1, 1), (0, 1), (1, 2), (9, 1)):
                    core = core_in(phase)
                    message = Message(kind=kind, origin=origin, incarnation=incarnation, seq=seq, words=words)
                    try:
                        effects = core.on_message(message, source, 1000)
                    except RemoteError as error:
                        assert error.reason is DropReason.MALFORMED
                        continue
                    if phase is Phase.EXPELLED:
                        assert effects == [Report(code=DropReason.UNEXPECTED, member=source, value=0)]
                    assert not (
                        phase is Phase.JOINING and any(isinstance(one, Deliver) and one.payload for one in effects)
                    )


def test_a_message_that_is_refused_as_malformed_changes_nothing() -> None:
    cluster = group(3)
    for kind in (Kind.RELIABLE_DATA, Kind.RELIABLE_NACK, Kind.RELIABLE_JOIN, Kind.RELIABLE_WELCOME):
        with pytest.raises(RemoteError):
            core_of(cluster, 0).on_message(Message(kind=kind, origin=1, incarnation=9, seq=3), 1, 0)
    cluster.submit(1, 3)
    check_all(cluster, range(3))


# Size.


def test_three_hundred_members_and_one_sender() -> None:
    """Each receiver tells its position once or twice; nothing grows with the square."""
    parameters = ReliableParameters()
    cluster = Cluster(
        300, lambda us, seed: ReliableCore(membership=us, parameters=parameters, rng=random_for(seed, us, "reliable"))
    )
    cluster.submit(0, 20)
    cluster.run()
    assert all(len(host.delivered) == 20 for host in cluster.up())
    assert kinds(cluster)[Kind.RELIABLE_HEARTBEAT] < 3 * 300
    assert all(host.is_idle for host in cluster.up())


def test_the_first_multicast_of_a_core_is_its_only_effect_on_the_wire() -> None:
    core = core_of(group(2), 0)
    effects = core.on_submit(Submission(payload=b"x", flags=Flag.DUMMY), 0)
    sent = [effect.message for effect in effects if isinstance(effect, Multicast)]
    assert [(message.seq, message.flags, message.words) for message in sent] == [(1, Flag.DUMMY, (0,))]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("window", 3),
        ("burst", 0),
        ("heartbeat_ns", 0),
        ("heartbeat_per_member_ns", -1),
        ("acknowledge_ns", 30 * MILLISECOND),
        ("retry_first_ns", 1 * MILLISECOND),
        ("suspect_after_ns", 100 * MILLISECOND),
    ],
)
def test_parameters_that_cannot_work_are_refused_by_name(field: str, value: int) -> None:
    with pytest.raises(LocalError, match=field):
        ReliableParameters(**{field: value})  # type: ignore[arg-type]  # the name is the test's
