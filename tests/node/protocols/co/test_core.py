"""The CO core, rule by rule, in a network whose losses each test decides; and its refusals."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from node.core import Membership, Submission, random_for
from node.effects import Deliver, Multicast, Report, Send, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.protocols.co.codec import Layout
from node.protocols.co.core import CoCore, CoParameters, LoParameters, Phase
from node.protocols.co.state import Recovery, Service
from node.registry import PROTOCOLS
from node.trace import Level, Notice
from node.wire import Flag, Kind, Message
from tests.node.by_hand import give, multicasts
from tests.node.cluster import (
    MILLISECOND,
    SECOND,
    Cluster,
    Network,
    check_reliable,
    check_silence,
    retransmissions,
)
from tests.node.protocols.co.history import build_watched

MEMBERS = (10, 20, 30)
LAYOUT = Layout(3, view=1)
FULL = LoParameters().buffer_bytes


def core(rank: int = 0, *, service: Service = Service.CO, incarnation: int = 1, **parameters: Any) -> CoCore:
    membership = Membership(member=MEMBERS[rank], members=MEMBERS, incarnation=incarnation)
    made = CoCore(
        membership=membership,
        parameters=CoParameters(**parameters) if service is Service.CO else LoParameters(**parameters),
        rng=random_for(1, membership, "co"),
        service=service,
    )
    made.on_start(0)
    return made


def data(rank: int, seq: int, *ack: int, buf: int = FULL, flags: int = 0, incarnation: int = 1) -> Message:
    return Message(
        kind=Kind.CO_DATA,
        origin=MEMBERS[rank],
        incarnation=incarnation,
        seq=seq,
        flags=flags,
        words=LAYOUT.pack_data(ack, buf),
        payload=b"x",
    )


def state(
    rank: int, number: int, ack: tuple[int, ...], min_al: tuple[int, ...], *asked: int, buf: int = FULL
) -> Message:
    words = LAYOUT.pack_state(ack, min_al, buf, asked)
    return Message(kind=Kind.CO_STATE, origin=MEMBERS[rank], incarnation=1, seq=number, flags=4, words=words)


def ret(rank: int, lsrc: int, lseq: int, ack: tuple[int, ...], *ranges: tuple[int, int], number: int = 1) -> Message:
    words = LAYOUT.pack_ret(lsrc, lseq, ack, tuple(first << 32 | last for first, last in ranges))
    return Message(kind=Kind.CO_RET, origin=MEMBERS[rank], incarnation=1, seq=number, flags=4, words=words)


def submit(one: CoCore, count: int = 1) -> list[Message]:
    return multicasts(effect for _ in range(count) for effect in one.on_submit(Submission(payload=b"x"), 0))


def asked(one: CoCore, src: int, now_ns: int = 10 * MILLISECOND) -> list[Message]:
    """Requests that the timer of that source causes."""
    effects = one.on_timer(Timer("ret", src), now_ns)
    sends = [effect for effect in effects if isinstance(effect, Send)]
    assert all(effect.target == MEMBERS[src] for effect in sends), "RET goes to the source"
    return [effect.message for effect in sends]


def group(count: int, *, network: Network | None = None, seed: int = 1, **parameters: Any) -> Cluster:
    return Cluster(count, build_watched(**parameters), seed=seed, network=network)


def lo_group(count: int, *, network: Network | None = None) -> Cluster:
    return Cluster(
        count, lambda us, seed: PROTOCOLS["lo"].build(membership=us, parameters={}, seed=seed), network=network
    )


def check_all(cluster: Cluster) -> None:
    check_reliable(cluster, cluster.members)
    assert [host.core.buffered for host in cluster.up()] == [0] * len(cluster.members)


def kinds(cluster: Cluster) -> Counter[Kind]:
    return Counter(message.kind for _, message in cluster.sent)


# Without faults.


def test_a_group_with_nothing_to_do_is_silent() -> None:
    cluster = group(4)
    check_silence(cluster)
    assert (cluster.sent, cluster.now_ns) == ([], 0)


@pytest.mark.parametrize("count", [2, 3, 8])
def test_one_message_reaches_all_and_the_group_falls_silent_after_two_rounds(count: int) -> None:
    cluster = group(count)
    cluster.submit(0)
    check_all(cluster)
    traffic = kinds(cluster)
    assert traffic[Kind.CO_DATA] == 1
    assert traffic[Kind.CO_STATE] <= 2 * count
    assert traffic[Kind.CO_RET] == 0


def test_a_message_is_delivered_by_nobody_before_all_have_accepted_it_and_know_so() -> None:
    cluster = group(3, network=Network(delay_ns=10 * MILLISECOND))
    cluster.lose = lambda source, target, message: target == 2 and cluster.now_ns < SECOND
    cluster.submit(0)
    cluster.run(for_ns=SECOND)
    assert [host.delivered for host in cluster.up()] == [[], [], []]
    check_all(cluster)


def test_while_everybody_sends_data_no_control_messages_are_needed() -> None:
    """ "When at least one message from every entity has come, or a certain time after the last transmission": data
    does."""
    cluster = group(4)
    for number in range(500):
        for member in range(4):
            cluster.submit_later(member, number * 2 * MILLISECOND + member * 100_000)
    cluster.run(for_ns=900 * MILLISECOND)
    assert kinds(cluster)[Kind.CO_STATE] <= 8
    check_all(cluster)


def test_a_single_sender_costs_a_bounded_number_of_control_messages() -> None:
    cluster = group(8)
    for number in range(500):
        cluster.submit_later(0, number * 2 * MILLISECOND)
    cluster.run(for_ns=SECOND)
    assert kinds(cluster)[Kind.CO_STATE] <= 8 * 1000 // 5, "each at most once in a quarter of the interval"
    check_all(cluster)


def test_delivery_is_agreed_and_says_whose_message_it_is() -> None:
    one = core()
    (own,) = submit(one)
    effects = give(one, state(1, 1, (2, 1, 1), (1, 1, 1)), state(2, 1, (2, 1, 1), (1, 1, 1)))
    effects += one.on_timer(Timer("state"), SECOND)
    effects += give(one, state(1, 2, (2, 1, 1), (2, 1, 1)), state(2, 2, (2, 1, 1), (2, 1, 1)))
    (delivery,) = [effect for effect in effects if isinstance(effect, Deliver)]
    assert delivery == Deliver(payload=b"x", origin=10, incarnation=1, seq=own.seq, level=Level.AGREED)


# Section 3.3: detection and recovery of failures.


def test_failure_condition_1_a_later_number_of_the_source_shows_the_gap() -> None:
    one = core()
    effects = give(one, data(1, 3, 1, 3, 1))
    assert one.phase is Phase.REPAIRING
    assert not [effect for effect in effects if isinstance(effect, Deliver)]
    (question,) = asked(one, 1)
    assert LAYOUT.unpack_ret(question.words) == (20, 3, (1, 1, 1), (1 << 32 | 2,)), "REQ <= SEQ < LSEQ = p.SEQ"


def test_failure_condition_2_an_ack_of_another_shows_the_gap() -> None:
    one = core()
    give(one, data(2, 1, 1, 4, 1))
    (question,) = asked(one, 1)
    assert LAYOUT.unpack_ret(question.words) == (20, 4, (1, 1, 1), (1 << 32 | 3,)), "REQ <= SEQ < LSEQ = q.ACK"


def test_a_state_shows_the_loss_of_the_last_message_that_its_sender_ever_sent() -> None:
    one = core()
    give(one, state(1, 1, (1, 3, 1), (1, 1, 1)))
    (question,) = asked(one, 1)
    assert LAYOUT.unpack_ret(question.words).ranges == (1 << 32 | 2,)


def test_ret_names_what_is_missing_and_not_what_is_held() -> None:
    one = core()
    give(one, data(1, 3, 1, 3, 1), data(1, 6, 1, 6, 1))
    (question,) = asked(one, 1)
    assert LAYOUT.unpack_ret(question.words) == (20, 6, (1, 1, 1), (1 << 32 | 2, 4 << 32 | 5))
    give(one, data(1, 1, 1, 1, 1), data(1, 2, 1, 2, 1))
    assert LAYOUT.unpack_ret(asked(one, 1, SECOND)[0].words) == (20, 6, (1, 4, 1), (4 << 32 | 5,))


def test_a_gap_that_fills_by_itself_asks_nobody() -> None:
    one = core()
    give(one, data(1, 2, 1, 2, 1), data(1, 1, 1, 1, 1))
    assert asked(one, 1) == []
    assert one.phase is Phase.FLOWING


def test_strict_holds_a_message_until_all_that_its_ack_covers_is_in() -> None:
    one = core(trace_stages=True)
    early = give(one, data(2, 1, 1, 2, 1))
    late = give(one, data(1, 1, 1, 1, 1))
    accepted = [
        [
            (effect.member, effect.value & 0xFFFF_FFFF)
            for effect in effects
            if isinstance(effect, Report) and effect.code == 0xF4
        ]
        for effects in (early, late)
    ]
    assert accepted == [[], [(20, 1), (30, 1)]]


def test_the_source_resends_that_range_only_with_the_original_ack() -> None:
    one = core()
    sent = submit(one, 4)
    give(one, data(1, 1, 1, 1, 1))
    effects = give(one, ret(1, 10, 4, (2, 2, 1), (2, 3)), now_ns=SECOND)
    again = [effect for effect in effects if isinstance(effect, Send)]
    assert [(effect.target, effect.message.seq) for effect in again] == [(20, 2), (20, 3)]
    assert all(effect.message.flags == Flag.RETRANSMISSION for effect in again)
    assert [effect.message.words for effect in again] == [message.words for message in sent[1:3]]


def test_go_back_n_takes_one_source_in_its_order_and_asks_for_the_first_gap() -> None:
    one = core(retransmission="go-back-n")
    refused = give(one, data(1, 3, 1, 3, 1), data(1, 6, 1, 6, 1))
    assert refused.count(Report(code=DropReason.OUT_OF_WINDOW, member=20, value=1)) == 2
    assert LAYOUT.unpack_ret(asked(one, 1)[0].words) == (20, 2, (1, 1, 1), (1 << 32 | 1,))
    give(one, data(1, 1, 1, 1, 1), data(1, 2, 1, 2, 1))
    assert LAYOUT.unpack_ret(asked(one, 1, SECOND)[0].words) == (20, 4, (1, 3, 1), (3 << 32 | 3,))


def test_go_back_n_keeps_what_is_in_order_and_waits_for_another_source() -> None:
    one = core(retransmission="go-back-n")
    give(one, data(2, 1, 1, 2, 1), data(2, 2, 1, 2, 2), data(2, 4, 1, 2, 4))
    assert sorted(one._holding.buffered[2]) == [1, 2]
    give(one, data(1, 1, 1, 1, 1))
    assert one._state.req == [1, 2, 3]


def test_go_back_n_sends_again_all_from_the_lost_message_on() -> None:
    one = core(retransmission="go-back-n", burst=2)
    submit(one, 5)
    effects = give(one, ret(1, 10, 3, (2, 1, 1), (2, 2)), now_ns=SECOND)
    assert [effect.message.seq for effect in effects if isinstance(effect, Send)] == [2, 3], "a burst of it"
    effects = give(one, ret(1, 10, 5, (4, 1, 1), (4, 4), number=2), now_ns=2 * SECOND)
    assert [effect.message.seq for effect in effects if isinstance(effect, Send)] == [4, 5]


def test_who_is_asked_by_two_answers_all_and_then_nobody_for_a_while() -> None:
    one = core()
    submit(one, 1)
    effects = give(one, ret(1, 10, 2, (1, 1, 1), (1, 1)), ret(2, 10, 2, (1, 1, 1), (1, 1)), now_ns=SECOND)
    effects += give(one, ret(1, 10, 2, (1, 1, 1), (1, 1), number=2), now_ns=SECOND)
    again = [effect for effect in effects if isinstance(effect, Send | Multicast)]
    assert [type(effect) for effect in again] == [Send, Multicast]


@pytest.mark.parametrize("lost", range(1, 6))
@pytest.mark.parametrize("target", [1, 2])
def test_each_single_message_that_one_member_loses_is_recovered(lost: int, target: int) -> None:
    cluster = group(3)
    cluster.lose = lambda source, to, message: (
        message.kind is Kind.CO_DATA and message.seq == lost and to == target and not message.flags
    )
    cluster.submit(0, 5)
    check_all(cluster)
    assert retransmissions(cluster) == 1


@pytest.mark.parametrize("length", range(1, 40))
def test_the_group_ends_quietly_whatever_tail_is_lost(length: int) -> None:
    """The `length`-th and all later datagrams of the first 300 ms are lost."""
    cluster = group(3)
    passed = 0

    def lose(source: int, target: int, message: Message) -> bool:
        nonlocal passed
        passed += 1
        return passed >= length and cluster.now_ns < 300 * MILLISECOND

    cluster.lose = lose
    cluster.submit(0, 2)
    cluster.submit(1, 1)
    check_all(cluster)
    assert all(host.timers == {} for host in cluster.up())


@pytest.mark.parametrize("kind", [Kind.CO_DATA, Kind.CO_STATE, Kind.CO_RET])
@pytest.mark.parametrize("nth", range(1, 9))
@pytest.mark.parametrize("moment", ["lost", "twice", "late"])
def test_whatever_happens_to_the_nth_of_a_kind_all_promises_hold(kind: Kind, nth: int, moment: str) -> None:
    """Each kind of message, with each fault, in each phase in which it occurs."""
    cluster = group(3)
    seen = 0

    def lose(source: int, target: int, message: Message) -> bool:
        nonlocal seen
        if kind is Kind.CO_RET and message.kind is Kind.CO_DATA and message.seq % 2 and not message.flags:
            return target == 2  # without a loss there is no request
        if message.kind is not kind:
            return False
        seen += 1
        if seen != nth or moment == "lost":
            return seen == nth
        wait_ns = 0 if moment == "twice" else 30 * MILLISECOND
        core_of = cluster.hosts[target]
        cluster.at(
            cluster.now_ns + wait_ns,
            lambda: cluster._call(core_of, "again", lambda: core_of.core.on_message(message, source, cluster.now_ns)),
        )
        return moment == "late"

    cluster.lose = lose
    cluster.submit(0, 3)
    cluster.submit(1, 3)
    check_all(cluster)
    assert seen


def test_who_is_silent_gets_what_it_did_not_acknowledge_again_after_a_time_out() -> None:
    cluster = group(2)
    cluster.lose = lambda source, target, message: cluster.now_ns < 5 * MILLISECOND
    cluster.submit(0)
    check_all(cluster)
    again = [message for _, message in cluster.sent if message.flags & Flag.RETRANSMISSION]
    assert [message.seq for message in again] == [1]


# Flow.


@pytest.mark.parametrize("window", [1, 2, 64])
@pytest.mark.parametrize("messages", [1, 2, 5])
@pytest.mark.parametrize("retransmission", Recovery)
def test_however_small_the_buffers_everything_arrives(window: int, messages: int, retransmission: str) -> None:
    count = 4
    cluster = group(
        count,
        network=Network(loss_ratio=0.2, jitter_ns=3 * MILLISECOND),
        window=window,
        buffer_bytes=count * messages * 1400,
        retransmission=retransmission,
    )
    for member in range(count):
        cluster.submit(member, 12)
    check_all(cluster)


def test_the_window_bounds_what_one_sender_has_under_way() -> None:
    one = core(window=3)
    submit(one, 3)
    assert not one.can_submit
    with pytest.raises(LocalError, match="takes no submission now"):
        one.on_submit(Submission(payload=b""), 0)


def test_when_no_buffer_is_free_what_cannot_be_accepted_is_refused_and_what_can_is_taken() -> None:
    one = core(buffer_bytes=3 * 1400)
    give(one, *(data(1, seq, 1, seq, 1, buf=0) for seq in (3, 4, 5)))
    refused = give(one, data(1, 6, 1, 6, 1, buf=0))
    assert Report(code=DropReason.OUT_OF_WINDOW, member=20, value=1) in refused
    give(one, data(1, 1, 1, 1, 1, buf=0), data(1, 2, 1, 2, 1, buf=0))
    assert one._state.req == [1, 6, 1]
    assert LAYOUT.unpack_ret(asked(one, 1, SECOND)[0].words).ranges == (6 << 32 | 6,)


def test_buffers_that_open_are_told() -> None:
    """No member waits for ever for a BUF that is free."""
    cluster = group(2, buffer_bytes=2 * 1400, window=64)
    cluster.submit(0, 5)
    cluster.submit(1, 5)
    check_all(cluster)
    assert all(host.core.can_submit for host in cluster.up())


# Refusals: errors of the caller.


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"window": 0}, "window must lie between 1 and 65536"),
        ({"acceptance": "lax"}, "acceptance must be one of strict, literal, not 'lax'"),
        ({"retransmission": "none"}, "retransmission must be one of selective, go-back-n, not 'none'"),
        ({"buffer_bytes": 1000}, "buffer_bytes must hold"),
        ({"longest_bytes": 0}, "longest_bytes must lie in"),
        ({"burst": 0}, "burst must lie between"),
        ({"state_ns": 1}, "state_ns must be at least"),
        ({"spread_ns": -1}, "spread_ns must not be negative"),
        ({"retry_first_ns": 1}, "must ascend"),
        ({"buffer_bytes": 1 << 33}, "must not exceed"),
    ],
)
def test_impossible_parameters_get_a_sentence(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LocalError, match=sentence):
        PROTOCOLS["co"].check(wrong, members=3)


@pytest.mark.parametrize("protocol", ["co", "lo"])
def test_buffers_too_small_for_a_message_of_each_member_are_refused_before_anything_starts(protocol: str) -> None:
    PROTOCOLS[protocol].check({"buffer_bytes": 14_000}, members=10)
    with pytest.raises(LocalError, match="one message of each of the 11 members, 15400 bytes"):
        PROTOCOLS[protocol].check({"buffer_bytes": 14_000}, members=11)


def test_a_group_of_one_is_refused() -> None:
    with pytest.raises(LocalError, match="at least 2 members"):
        PROTOCOLS["co"].build(membership=Membership(member=1, members=(1,)), parameters={}, seed=1)


def test_co_sends_nothing_to_one_member_alone() -> None:
    with pytest.raises(LocalError, match="nothing to one member alone"):
        core().on_submit(Submission(payload=b"", target=20), 0)


# Refusals: datagrams.


def busy() -> CoCore:
    """A core that has sent two messages and accepted two of member 20; one of member 30 is held."""
    one = core()
    submit(one, 2)
    give(one, data(1, 1, 2, 1, 1), data(1, 2, 3, 2, 1), data(2, 2, 3, 1, 2), state(1, 3, (3, 3, 1), (2, 1, 1)))
    return one


HOSTILE = {
    "too few words": (Message(kind=Kind.CO_DATA, origin=20, incarnation=1, seq=3, words=(1 << 33,)), "MALFORMED"),
    "no words": (Message(kind=Kind.CO_STATE, origin=20, incarnation=1, seq=9), "UNEXPECTED"),
    "another view": (Message(kind=Kind.CO_STATE, origin=20, incarnation=1, seq=9, words=(2 << 33,)), "UNEXPECTED"),
    "a request without ranges": (ret(1, 10, 2, (1, 3, 1)), "MALFORMED"),
    "number 0": (data(1, 0, 1, 0, 1), "MALFORMED"),
    "own entry of ACK is not SEQ": (data(1, 3, 1, 4, 1), "MALFORMED"),
    "ACK 0": (data(1, 3, 0, 3, 1), "MALFORMED"),
    "ACK behind the message before": (data(1, 3, 2, 3, 1), "MALFORMED"),
    "BUF more than there is": (data(1, 3, 3, 3, 1, buf=FULL + 1), "MALFORMED"),
    "accepted before": (data(1, 2, 3, 2, 1), "DUPLICATE"),
    "held already": (data(2, 2, 3, 1, 2), "DUPLICATE"),
    "far ahead": (data(1, 1000, 3, 1000, 1), "OUT_OF_WINDOW"),
    "ACK for what we never sent": (data(1, 3, 4, 3, 1), "OUT_OF_WINDOW"),
    "ACK far ahead of a third": (data(1, 3, 3, 3, 1000), "OUT_OF_WINDOW"),
    "unknown member": (Message(kind=Kind.CO_DATA, origin=25, incarnation=1, seq=1), "UNKNOWN_MEMBER"),
    "our own number": (data(0, 3, 3, 3, 3), "OWN"),
    "another protocol": (Message(kind=Kind.RELIABLE_DATA, origin=20, incarnation=1, seq=1), "UNEXPECTED"),
    "a state that takes ACK back": (state(1, 4, (2, 3, 1), (1, 1, 1)), "MALFORMED"),
    "a state from before": (state(1, 2, (3, 3, 1), (1, 1, 1)), "DUPLICATE"),
    "a state with number 0": (state(1, 0, (3, 3, 1), (1, 1, 1)), "MALFORMED"),
    "pre-acknowledged before accepted": (state(1, 4, (3, 3, 1), (3, 3, 2)), "MALFORMED"),
    "pre-acknowledged what we lack": (state(1, 4, (3, 5, 1), (1, 5, 1)), "OUT_OF_WINDOW"),
    "a state for what we never sent": (state(1, 4, (4, 3, 1), (1, 1, 1)), "OUT_OF_WINDOW"),
    "a request about a stranger": (ret(1, 25, 2, (1, 3, 1), (1, 1)), "MALFORMED"),
    "a request for what it has": (ret(1, 10, 3, (3, 3, 1), (2, 2)), "MALFORMED"),
    "a request beyond its end": (ret(1, 10, 2, (1, 3, 1), (1, 2)), "MALFORMED"),
    "a request for what we never sent": (ret(1, 10, 9, (3, 3, 1), (3, 8)), "OUT_OF_WINDOW"),
    "a request that descends": (ret(1, 10, 3, (1, 3, 1), (2, 2), (1, 1)), "MALFORMED"),
}


def picture(one: CoCore) -> str:
    """Complete state of a core, as text."""
    state, holding = one._state, one._holding
    slots = {name: value for name, value in vars(state).items() if name not in ("al", "pal", "stated")}
    matrices = [(matrix.rows, matrix.least) for matrix in (state.al, state.pal, state.stated)]
    own = {name: value for name, value in vars(one).items() if isinstance(value, int | list | set | tuple)}
    own.pop("_asking")
    return f"{slots} {matrices} {holding.buffered} {holding.known} {holding._waiting} {own} {one._timers._armed}"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_datagram_that_cannot_be_is_refused_and_changes_nothing(name: str) -> None:
    message, reason = HOSTILE[name]
    one = busy()
    before = picture(one)
    with pytest.raises(RemoteError) as caught:
        give(one, message)
    assert caught.value.reason is DropReason[reason]
    assert picture(one) == before


def test_a_message_that_somebody_else_relays_is_refused() -> None:
    with pytest.raises(RemoteError) as caught:
        core().on_message(data(1, 1, 1, 1, 1), 30, 0)
    assert caught.value.reason is DropReason.UNEXPECTED


# Crashes.


def test_a_crash_stops_the_order_and_breaks_nothing() -> None:
    cluster = group(3, window=4)
    cluster.submit(1, 3)
    cluster.run(for_ns=SECOND)
    cluster.crash(2)
    cluster.submit(0, 10)
    cluster.run(for_ns=10 * SECOND)
    assert [len(cluster.hosts[member].delivered) for member in (0, 1)] == [3, 3]
    assert not cluster.core(0).can_submit
    assert not cluster.core(0).is_idle
    cluster.sent.clear()
    cluster.run(for_ns=10 * SECOND)
    traffic = kinds(cluster)
    assert 16 <= traffic[Kind.CO_STATE] <= 22, "both ask once a second"
    assert 28 <= traffic[Kind.CO_DATA] <= 44, "the sender sends again what is not acknowledged"


# Reports.


def test_stages_are_reported_only_when_asked_for() -> None:
    silent = group(3, trace_stages=False)
    silent.submit(0)
    check_all(silent)
    assert [host.reports for host in silent.up()] == [[], [], []]
    loud = group(3)
    loud.submit(0)
    check_all(loud)
    for host in loud.up():
        codes = [report.code for report in host.reports]
        assert codes == [Notice.ACCEPTED, Notice.RESIDENT, Notice.PREACKNOWLEDGED, Notice.ACKNOWLEDGED]


# LO.


def test_lo_delivers_what_is_next_of_its_sender_whatever_its_ack_covers() -> None:
    one = core(service=Service.LO)
    effects = give(one, data(2, 1, 1, 4, 1), data(1, 2, 1, 2, 1), data(1, 1, 1, 1, 1))
    assert [(e.origin, e.seq) for e in effects if isinstance(e, Deliver)] == [(30, 1), (20, 1), (20, 2)]


def test_lo_delivers_its_own_message_at_once_and_keeps_it_until_all_have_it() -> None:
    cluster = lo_group(3)
    cluster.run(for_ns=MILLISECOND)
    cluster.submit(1)
    assert cluster.hosts[1].delivered == [(1, 1, 1)]
    assert cluster.core(1).buffered == 1
    check_all(cluster)


def test_lo_keeps_its_promises_under_loss() -> None:
    cluster = lo_group(4, network=Network(loss_ratio=0.2, jitter_ns=3 * MILLISECOND, duplicate_ratio=0.1))
    for member in range(4):
        for number in range(40):
            cluster.submit_later(member, number * 5 * MILLISECOND)
    check_all(cluster)
    assert retransmissions(cluster)


def test_lo_may_deliver_an_answer_before_its_question() -> None:
    """The paper's introduction: why CO is needed."""
    cluster = lo_group(3)
    cluster.lose = lambda source, target, message: (source, target) == (0, 2) and not message.flags
    cluster.submit(0)
    cluster.at(5 * MILLISECOND, lambda: cluster.submit(1))
    check_all(cluster)
    assert cluster.hosts[1].delivered == [(0, 1, 1), (1, 1, 1)]
    assert cluster.hosts[2].delivered == [(1, 1, 1), (0, 1, 1)]
