"""The CO core, rule by rule, in a network whose losses each test decides; and its refusals."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from node.core import Membership, Submission, random_for
from node.effects import Deliver, Effect, Multicast, Report, Send, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.protocols.co.codec import Layout
from node.protocols.co.core import CoCore, CoParameters, LoParameters, Phase
from node.protocols.co.state import Recovery, Service
from node.registry import PROTOCOLS
from node.trace import Level, Notice
from node.wire import Flag, Kind, Message
from tests.node.by_hand import delivered, give, multicasts, reported
from tests.node.cluster import (
    MILLISECOND,
    SECOND,
    Cluster,
    Network,
    check_reliable,
    check_silence,
    stack,
)
from tests.node.protocols.co.history import SEQ, build_watched

MEMBERS = (10, 20, 30)
LAYOUT = Layout(3, view=1)
FULL = LoParameters().buffer_bytes


def core(*, service: Service = Service.CO, **parameters: Any) -> CoCore:
    membership = Membership(member=MEMBERS[0], members=MEMBERS)
    made = CoCore(
        membership=membership,
        parameters=CoParameters(**parameters) if service is Service.CO else LoParameters(**parameters),
        rng=random_for(1, membership, "co"),
        service=service,
    )
    made.on_start(0)
    return made


def data(rank: int, seq: int, *ack: int, buf: int = FULL) -> Message:
    words = LAYOUT.pack_data(ack, buf)
    return Message(kind=Kind.CO_DATA, origin=MEMBERS[rank], incarnation=1, seq=seq, words=words, payload=b"x")


def state(rank: int, number: int, ack: tuple[int, ...], min_al: tuple[int, ...]) -> Message:
    words = LAYOUT.pack_state(ack, min_al, FULL)
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


def accepted(effects: list[Effect]) -> list[tuple[int, int]]:
    """(member, SEQ) of each message that is reported as accepted."""
    return [(member, value & SEQ) for code, member, value in reported(effects) if code == Notice.ACCEPTED]


def resent(effects: list[Effect]) -> list[Message]:
    """Messages that are sent again to the member that has asked for them."""
    return [effect.message for effect in effects if isinstance(effect, Send) and effect.target == 20]


def group(count: int, *, network: Network | None = None, **parameters: Any) -> Cluster:
    return Cluster(count, build_watched(**parameters), network=network)


def check_all(cluster: Cluster) -> None:
    check_reliable(cluster, cluster.members)
    assert [host.core.buffered for host in cluster.up()] == [0] * len(cluster.members)


def kinds(cluster: Cluster) -> Counter[Kind]:
    return Counter(message.kind for _, message in cluster.sent)


# Without faults.


@pytest.mark.parametrize("count", [2, 3, 8])
def test_one_message_reaches_all_and_the_group_is_silent_before_it_and_two_rounds_after(count: int) -> None:
    cluster = group(count)
    check_silence(cluster)
    assert (cluster.sent, cluster.now_ns) == ([], 0)
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


@pytest.mark.parametrize(
    ("shown_by", "lseq"),
    [(data(1, 3, 1, 3, 1), 3), (data(2, 1, 1, 4, 1), 4), (state(1, 1, (1, 3, 1), (1, 1, 1)), 3)],
    ids=["condition 1: a later number of the source", "condition 2: an ACK of another", "a state of the source"],
)
def test_a_gap_is_asked_for_from_req_to_lseq(shown_by: Message, lseq: int) -> None:
    """ "REQ <= SEQ < LSEQ": LSEQ is p.SEQ or q.ACK; a state shows the loss of the last message ever sent."""
    one = core()
    effects = give(one, shown_by)
    assert one.phase is Phase.REPAIRING
    assert not [effect for effect in effects if isinstance(effect, Deliver)]
    (question,) = asked(one, 1)
    assert LAYOUT.unpack_ret(question.words) == (20, lseq, (1, 1, 1), (1 << 32 | lseq - 1,))


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
    assert accepted(give(one, data(2, 1, 1, 2, 1))) == []
    assert accepted(give(one, data(1, 1, 1, 1, 1))) == [(20, 1), (30, 1)]


def test_the_source_resends_that_range_only_with_the_original_ack() -> None:
    one = core()
    sent = submit(one, 4)
    give(one, data(1, 1, 1, 1, 1))
    again = resent(give(one, ret(1, 10, 4, (2, 2, 1), (2, 3)), now_ns=SECOND))
    assert again == [replace(message, flags=Flag.RETRANSMISSION.value) for message in sent[1:3]]


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
    again = resent(give(one, ret(1, 10, 3, (2, 1, 1), (2, 2)), now_ns=SECOND))
    assert [message.seq for message in again] == [2, 3], "a burst of it"
    again = resent(give(one, ret(1, 10, 5, (4, 1, 1), (4, 4), number=2), now_ns=2 * SECOND))
    assert [message.seq for message in again] == [4, 5]


def test_who_is_asked_by_two_answers_all_and_then_nobody_for_a_while() -> None:
    one = core()
    submit(one, 1)
    effects = give(one, ret(1, 10, 2, (1, 1, 1), (1, 1)), ret(2, 10, 2, (1, 1, 1), (1, 1)), now_ns=SECOND)
    effects += give(one, ret(1, 10, 2, (1, 1, 1), (1, 1), number=2), now_ns=SECOND)
    again = [effect for effect in effects if isinstance(effect, Send | Multicast)]
    assert [type(effect) for effect in again] == [Send, Multicast]


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
        host = cluster.hosts[target]
        take = lambda: host.core.on_message(message, source, cluster.now_ns)  # noqa: E731
        cluster.at(cluster.now_ns + wait_ns, lambda: cluster._call(host, "again", take))
        return moment == "late"

    cluster.lose = lose
    cluster.submit(0, 3)
    cluster.submit(1, 3)
    check_all(cluster)
    assert seen


# Flow.


@pytest.mark.parametrize("window", [1, 2, 64])
@pytest.mark.parametrize("messages", [1, 2, 5])
@pytest.mark.parametrize("retransmission", Recovery)
def test_however_small_the_buffers_everything_arrives(window: int, messages: int, retransmission: str) -> None:
    count = 4
    limits = {"window": window, "buffer_bytes": count * messages * 1400, "retransmission": retransmission}
    cluster = group(count, network=Network(loss_ratio=0.2, jitter_ns=3 * MILLISECOND), **limits)
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
    "relayed": (data(1, 3, 3, 3, 1), "UNEXPECTED"),
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
    with pytest.raises(RemoteError, match=reason):
        one.on_message(message, 30 if name == "relayed" else message.origin, 0)
    assert picture(one) == before


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


@pytest.mark.parametrize("is_traced", [True, False])
def test_stages_are_reported_only_when_asked_for(is_traced: bool) -> None:
    cluster = group(3, trace_stages=is_traced)
    cluster.submit(0)
    check_all(cluster)
    stages = [Notice.ACCEPTED, Notice.RESIDENT, Notice.PREACKNOWLEDGED, Notice.ACKNOWLEDGED]
    for host in cluster.up():
        assert [report.code for report in host.reports] == (stages if is_traced else [])


# LO.


def test_lo_delivers_what_is_next_of_its_sender_whatever_its_ack_covers() -> None:
    one = core(service=Service.LO)
    effects = give(one, data(2, 1, 1, 4, 1), data(1, 2, 1, 2, 1), data(1, 1, 1, 1, 1))
    assert delivered(effects) == [(30, 1), (20, 1), (20, 2)]


def test_lo_delivers_its_own_message_at_once_and_keeps_it_until_all_have_it() -> None:
    cluster = Cluster(3, stack("lo"))
    cluster.run(for_ns=MILLISECOND)
    cluster.submit(1)
    assert cluster.hosts[1].delivered == [(1, 1, 1)]
    assert cluster.core(1).buffered == 1
    check_all(cluster)


def test_lo_may_deliver_an_answer_before_its_question() -> None:
    """The paper's introduction: why CO is needed."""
    cluster = Cluster(3, stack("lo"))
    cluster.lose = lambda source, target, message: (source, target) == (0, 2) and not message.flags
    cluster.submit(0)
    cluster.at(5 * MILLISECOND, lambda: cluster.submit(1))
    check_all(cluster)
    assert cluster.hosts[1].delivered == list(reversed(cluster.hosts[2].delivered)) == [(0, 1, 1), (1, 1, 1)]
