"""Amoeba's broadcast: sentences of its header, by hand and over the reliable layer; what an enemy can say.

Random histories are in test_random.py, random orders of news in test_amoeba_contract.py.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from node.core import Core, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report, Send
from node.errors import DropReason, LocalError, RemoteError
from node.protocols.amoeba import ASK, AmoebaCore, AmoebaParameters, AmoebaReport, Phase
from node.protocols.reliable import ReliableCore, ReliableParameters
from node.protocols.standstill import PROD
from node.protocols.words import pack
from node.stack import Stack
from node.wire import Flag, Kind, Message
from tests.node.cluster import (
    MILLISECOND,
    SECOND,
    Cluster,
    Network,
    check_integrity,
    check_ordered,
    check_silence,
    check_validity,
    kinds_above,
)
from tests.node.scenarios import RELIABLE

MEMBERS = (0, 1, 2)
CONTROL = Flag.CONTROL.value
LARGE_BYTES = 100
LARGE = bytes(LARGE_BYTES)


def core(member: int = 0, *, members: tuple[int, ...] = MEMBERS, incarnation: int = 1, **parameters: Any) -> AmoebaCore:
    made = AmoebaCore(
        membership=Membership(member=member, members=members, incarnation=incarnation),
        parameters=AmoebaParameters(**{"large_bytes": LARGE_BYTES, "resilience": 0, **parameters}),
        tells_news=True,
    )
    assert made.on_start(0) == []
    return made


def request(origin: int, number: int, *, epoch: int = 1, resilience: int = 0, payload: bytes = b"") -> Message:
    words = (epoch, resilience)
    return Message(kind=Kind.AMOEBA_REQUEST, origin=origin, incarnation=1, seq=number, words=words, payload=payload)


def body(origin: int, number: int, *, known: int = 0, epoch: int = 1, payload: bytes = LARGE) -> Message:
    words = (epoch, 0, known)
    return Message(kind=Kind.AMOEBA_BODY, origin=origin, incarnation=1, seq=number, words=words, payload=payload)


def data(author: int, index: int, origin: int, number: int, resilience: int = 0) -> Message:
    words = (pack(origin, 1, number), resilience)
    return Message(kind=Kind.AMOEBA_DATA, origin=author, incarnation=1, seq=index, words=words)


def accept(author: int, index: int, origin: int, number: int) -> Message:
    return control(Kind.AMOEBA_ACCEPT, author, index, pack(origin, 1, number), 0)


def stored(origin: int, index: int, epoch: int = 1) -> Message:
    return control(Kind.AMOEBA_STORED, origin, index, epoch)


def control(kind: Kind, origin: int, seq: int = 0, *words: int, incarnation: int = 1) -> Message:
    return Message(kind=kind, origin=origin, incarnation=incarnation, seq=seq, flags=CONTROL, words=words)


def ended(member: int, incarnation: int = 1) -> Message:
    return Message(kind=Kind.RELIABLE_ENDED, origin=member, incarnation=incarnation)


def joined(member: int, incarnation: int = 1) -> Message:
    return Message(kind=Kind.RELIABLE_JOINED, origin=member, incarnation=incarnation)


def give(one: AmoebaCore, *messages: Message) -> list[Effect]:
    return [effect for message in messages for effect in one.on_message(message, message.origin, 0)]


def give_back(one: AmoebaCore, effects: list[Effect]) -> list[Effect]:
    """What it multicast comes back to it from the layer below, with all that follows; all effects of that."""
    out: list[Effect] = []
    work = list(effects)
    while work:
        effect = work.pop(0)
        if isinstance(effect, Multicast):
            more = one.on_message(effect.message, effect.message.origin, 0)
            out += more
            work += more
    return out


def delivered(effects: list[Effect]) -> list[tuple[int, Kind, int]]:
    """(number, what, whose) of what goes up."""
    return [(effect.seq, effect.inner, effect.origin) for effect in effects if isinstance(effect, Deliver)]


def said(effects: list[Effect]) -> list[tuple[int | None, Kind, int]]:
    """(to whom, kind, number) of what goes out."""
    return [
        (effect.target if isinstance(effect, Send) else None, effect.message.kind, effect.message.seq)
        for effect in effects
        if isinstance(effect, Send | Multicast)
    ]


# The sender and the sequencer.


def test_a_short_message_goes_to_the_sequencer_which_multicasts_it() -> None:
    sender, sequencer = core(1), core(0)
    (sent, _) = sender.on_submit(Submission(payload=b"x"), 0)
    assert isinstance(sent, Send)
    assert (sent.target, sent.message.kind) == (0, Kind.AMOEBA_REQUEST)
    out = give(sequencer, sent.message)
    assert said(out) == [(None, Kind.AMOEBA_DATA, 1)]
    assert delivered(give_back(sequencer, out)) == [(1, Kind.APPLICATION, 1)]


def test_a_long_message_is_multicast_by_its_sender_and_numbered_by_the_sequencer() -> None:
    sender, sequencer, third = core(1), core(0), core(2)
    (sent, _) = sender.on_submit(Submission(payload=LARGE), 0)
    assert isinstance(sent, Multicast)
    out = give(sequencer, sent.message)
    assert said(out) == [(None, Kind.AMOEBA_ACCEPT, 1)]
    assert delivered(give(third, accept(0, 1, 1, 1))) == [], "its number came first"
    assert delivered(give(third, sent.message)) == [(1, Kind.APPLICATION, 1)]


def test_a_request_that_is_repeated_gets_no_second_number() -> None:
    one = core(0)
    assert said(give(one, request(1, 1), request(1, 1))) == [(None, Kind.AMOEBA_DATA, 1)]


def test_numbers_follow_the_order_of_the_sender() -> None:
    one = core(0)
    assert said(give(one, body(1, 2))) == []
    assert said(give(one, request(1, 1))) == [(None, Kind.AMOEBA_DATA, 1), (None, Kind.AMOEBA_ACCEPT, 2)]


def test_a_resilient_message_waits_for_the_lowest_others() -> None:
    one = core(0, members=(0, 1, 2, 3))
    out = give(one, request(3, 1, resilience=2), request(1, 1))
    assert delivered(give_back(one, out)) == []
    assert said(give(one, stored(1, 1), stored(3, 1))) == [], "3 is not asked: 1 and 2 are lower"
    out = give(one, stored(2, 1))
    assert said(out) == [(None, Kind.AMOEBA_ACCEPT, 2)], "2 wants nobody to store it"
    assert delivered(give_back(one, out)) == [(1, Kind.APPLICATION, 3), (2, Kind.APPLICATION, 1)]


def test_who_must_store_says_so_and_delivers_when_it_is_accepted() -> None:
    one, other = core(1), core(2)
    assert said(give(one, data(0, 1, 2, 1, resilience=1))) == [(0, Kind.AMOEBA_STORED, 1)]
    assert said(give(other, data(0, 1, 2, 1, resilience=1))) == []
    assert delivered(give(one, control(Kind.AMOEBA_ACCEPT, 0, 1))) == [(1, Kind.APPLICATION, 2)]


def test_with_fewer_others_than_asked_for_all_of_them_must_store() -> None:
    one = core(0, members=(0, 1))
    give_back(one, give(one, request(1, 1, resilience=9)))
    assert said(give(one, stored(1, 1))) == [(None, Kind.AMOEBA_ACCEPT, 1)]


def test_a_group_of_one_delivers_at_once() -> None:
    for incarnation in (1, 2):
        one = core(4, members=(4,), incarnation=incarnation)
        out = one.on_submit(Submission(payload=LARGE, words=(3,)), 0)
        assert delivered(give_back(one, out)) == [(1, Kind.APPLICATION, 4)]
        assert one.is_idle and one.sequencer == 4


def test_flow_control_counts_what_has_no_number() -> None:
    one = core(1, outstanding=2)
    one.on_submit(Submission(payload=b""), 0)
    one.on_submit(Submission(payload=LARGE), 0)
    assert not one.can_submit
    with pytest.raises(LocalError, match="ask can_submit before"):
        one.on_submit(Submission(payload=b""), 0)
    give(one, data(0, 1, 1, 1))
    assert one.can_submit


@pytest.mark.parametrize("words", [(1, 1), (-1,), (1 << 16,)])
def test_words_that_are_no_resilience_are_refused(words: tuple[int, ...]) -> None:
    one = core(1)
    with pytest.raises(LocalError, match="is no resilience"):
        one.on_submit(Submission(payload=b"", words=words), 0)
    assert one.is_idle


# Take-over.


def test_the_lowest_that_lives_takes_over_and_says_who_has_ended() -> None:
    one = core(1)
    out = give(one, data(0, 1, 2, 1), ended(0))
    assert Report(code=AmoebaReport.TAKEN_OVER, member=1, value=2) in out
    assert said(out) == [(None, Kind.AMOEBA_ENDED, 2)]
    assert delivered(give_back(one, out)) == [(2, Kind.RELIABLE_ENDED, 0)]
    assert (one.sequencer, one.lives) == (1, ((1, 1), (2, 1)))


def test_a_candidate_that_has_ended_is_passed_over() -> None:
    one = core(2)
    assert said(give(one, ended(1))) == []
    assert said(give(one, ended(0))) == [(None, Kind.AMOEBA_ENDED, 1), (None, Kind.AMOEBA_ENDED, 2)]


def test_what_has_no_number_is_asked_for_again() -> None:
    one = core(2)
    one.on_submit(Submission(payload=b""), 0)
    one.on_submit(Submission(payload=LARGE), 0)
    out = give(one, data(0, 1, 2, 1), ended(0))
    assert said(out) == [(1, Kind.AMOEBA_REQUEST, 2)], "also what was multicast before"


def test_a_request_may_come_before_the_end_that_makes_us_the_sequencer() -> None:
    one = core(1)
    assert said(give(one, request(2, 1, epoch=2))) == []
    assert said(give(one, ended(0))) == [(None, Kind.AMOEBA_ENDED, 1), (None, Kind.AMOEBA_DATA, 2)]


def test_entries_of_the_next_sequencer_wait_for_the_end_of_the_former() -> None:
    one = core(2)
    early = (control(Kind.AMOEBA_ENDED, 1, 2, pack(0, 1, 0)), data(1, 3, 1, 1))
    assert delivered(give(one, *early)) == []
    assert delivered(give(one, data(0, 1, 1, 1))) == [(1, Kind.APPLICATION, 1)]
    assert delivered(give(one, ended(0))) == [(2, Kind.RELIABLE_ENDED, 0)], "3 repeats what has a number"


def test_what_is_tentative_counts_when_the_sequencer_ends() -> None:
    one = core(2)
    assert delivered(give(one, data(0, 1, 1, 1, resilience=2), ended(0))) == [(1, Kind.APPLICATION, 1)]


def test_a_number_whose_message_nobody_has_cuts_the_log_of_a_dead_sequencer() -> None:
    one = core(2, members=(0, 1, 2))
    one.on_submit(Submission(payload=b""), 0)
    out = give(one, accept(0, 1, 1, 1), data(0, 2, 2, 1), ended(0))
    assert delivered(out) == [], "member 1 may still send it"
    out = give(one, ended(1))
    assert Report(code=AmoebaReport.CUT, member=0, value=2) in out
    assert [word for word in said(out) if word[0] is None] == [
        (None, Kind.AMOEBA_ENDED, 1),
        (None, Kind.AMOEBA_ENDED, 2),
        (None, Kind.AMOEBA_DATA, 3),
    ], "our own gets another number"


# Joiners.


def joiner() -> AmoebaCore:
    one = core(0, incarnation=2)
    assert not one.can_submit
    out = give(one, joined(1), joined(2), joined(0, 2))
    assert [kind for _, kind, _ in said(out)] == [Kind.AMOEBA_JOIN]
    return one


def welcome(author: int, index: int, *, epoch: int = 2, last: int = 4) -> Message:
    words = (pack(0, 2, 0), epoch, pack(1, 1, last), 0, pack(2, 1, 0), 0)
    return control(Kind.AMOEBA_WELCOME, author, index, *words)


def test_a_joiner_begins_with_its_welcome_when_all_have_stored_it() -> None:
    one = joiner()
    out = give(one, data(1, 9, 1, 4), welcome(1, 10), data(1, 11, 1, 5))
    assert (delivered(out), one.phase) == ([], Phase.WELCOMED)
    out = give(one, control(Kind.AMOEBA_ACCEPT, 1, 10))
    assert delivered(out) == [(10, Kind.RELIABLE_JOINED, 0), (11, Kind.APPLICATION, 1)]
    assert one.can_submit and one.is_idle
    assert (one.sequencer, one.lives) == (1, ((0, 2), (1, 1), (2, 1)))


def test_a_welcome_is_void_when_its_author_ends_before_all_have_stored_it() -> None:
    one = joiner()
    give(one, welcome(1, 10), welcome(2, 12, epoch=3))
    out = give(one, ended(1))
    assert [kind for _, kind, _ in said(out)] == [Kind.AMOEBA_JOIN]
    assert one.phase is Phase.WELCOMED, "by the next"
    assert delivered(give(one, control(Kind.AMOEBA_ACCEPT, 2, 12))) == [(12, Kind.RELIABLE_JOINED, 0)]


def test_the_sequencer_welcomes_a_joiner_after_the_end_of_its_former_life() -> None:
    one = core(0)
    asks = control(Kind.AMOEBA_JOIN, 2, 0, pack(0, 1, 0), pack(1, 1, 0), pack(2, 2, 0), incarnation=2)
    assert said(give(one, joined(2, 2), asks)) == [], "its former life is in the log"
    out = give(one, ended(2))
    assert said(out) == [(None, Kind.AMOEBA_ENDED, 1), (None, Kind.AMOEBA_WELCOME, 2)]
    out = give_back(one, out)
    assert delivered(out) == [(1, Kind.RELIABLE_ENDED, 2)]
    assert delivered(give_back(one, give(one, stored(1, 2)))) == [(2, Kind.RELIABLE_JOINED, 2)]


def test_a_body_that_a_joiner_may_lack_is_repeated_by_the_sequencer() -> None:
    one = core(0)
    asks = control(Kind.AMOEBA_JOIN, 2, 0, pack(0, 1, 0), pack(1, 1, 0), pack(2, 2, 0), incarnation=2)
    give(one, ended(2), joined(2, 2), asks)
    assert said(give(one, body(1, 1, known=0))) == [(None, Kind.AMOEBA_DATA, 3)]
    assert said(give(one, body(1, 2, known=2))) == [(None, Kind.AMOEBA_ACCEPT, 4)]


def test_joiners_that_are_left_alone_begin_a_log_when_all_say_the_same() -> None:
    one = core(0, members=(0, 1), incarnation=2)
    give(one, joined(1, 2), joined(0, 2))
    alone = control(Kind.AMOEBA_JOIN, 1, 0, pack(1, 2, 0), incarnation=2)
    assert said(give(one, alone)) == [], "it had not met us when it said that"
    both = control(Kind.AMOEBA_JOIN, 1, 0, pack(0, 2, 0), pack(1, 2, 0), incarnation=2)
    out = give(one, both)
    assert Report(code=AmoebaReport.FOUNDED, member=0) in out
    assert delivered(give_back(one, out))[:1] == [(1, Kind.RELIABLE_JOINED, 0)]


def test_who_waits_for_long_says_something() -> None:
    sender, late = core(1), joiner()
    sender.on_submit(Submission(payload=b""), 0)
    assert said(sender.on_timer(PROD, SECOND)) == [(None, Kind.AMOEBA_STORED, 0)]
    assert [kind for _, kind, _ in said(late.on_timer(ASK, SECOND))] == [Kind.AMOEBA_JOIN]


def test_without_news_only_messages_are_delivered() -> None:
    one = AmoebaCore(membership=Membership(member=1, members=MEMBERS), parameters=AmoebaParameters())
    out = give(one, ended(0), request(2, 1, epoch=2))
    assert delivered(give_back(one, out)) == [(2, Kind.APPLICATION, 2)]


# What an enemy can say.


@pytest.mark.parametrize(
    "message",
    [
        request(1, 0),
        request(1, 1, epoch=0),
        request(1, 1, resilience=1 << 16),
        control(Kind.AMOEBA_REQUEST, 1, 1, 1),
        control(Kind.AMOEBA_BODY, 1, 1, 1, 0),
        body(1, 0),
        data(1, 0, 1, 1),
        data(1, 1, 7, 1),
        data(1, 1, 1, 0),
        control(Kind.AMOEBA_ENDED, 1, 1, pack(2, 1, 5)),
        control(Kind.AMOEBA_ENDED, 1, 1),
        control(Kind.AMOEBA_WELCOME, 1, 1, pack(2, 2, 0)),
        control(Kind.AMOEBA_WELCOME, 1, 5, pack(2, 2, 0), 1, pack(2, 1, 0), 0),
        control(Kind.AMOEBA_WELCOME, 1, 5, pack(2, 2, 0), 1, pack(1, 1, 0), 5),
        control(Kind.AMOEBA_JOIN, 1, 0, pack(2, 1, 0), pack(1, 1, 0)),
        control(Kind.AMOEBA_JOIN, 1, 0, pack(1, 0, 0)),
        control(Kind.AMOEBA_STORED, 1, 1),
        stored(1, 1),
    ],
)
def test_words_that_cannot_be_are_refused_before_anything_has_changed(message: Message) -> None:
    one = core(0)
    with pytest.raises(RemoteError) as caught:
        one.on_message(message, message.origin, 0)
    assert caught.value.reason is DropReason.MALFORMED
    assert one.is_idle and one.held == 0


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message(kind=Kind.LAMPORT_NULL, origin=0, incarnation=1), DropReason.UNEXPECTED),
        (Message(kind=Kind.AMOEBA_JOIN, origin=0, incarnation=2), DropReason.UNEXPECTED),
        (request(2, 1), DropReason.UNEXPECTED),
        (data(0, 1, 2, 5), DropReason.MALFORMED),
        (control(Kind.AMOEBA_ENDED, 0, 1, pack(1, 1, 0)), DropReason.MALFORMED),
        (control(Kind.AMOEBA_WELCOME, 0, 1, pack(2, 2, 0), 1), DropReason.MALFORMED),
    ],
)
def test_lies_of_others_and_of_the_sequencer_are_refused(message: Message, reason: DropReason) -> None:
    one = core(1)
    out = give(one, message)
    assert [effect.code for effect in out if isinstance(effect, Report)] == [reason]
    assert delivered(out) == [] and one.held == 0


def test_whatever_comes_raises_nothing_but_remote_errors() -> None:
    """Random words of everybody in every phase: most are nonsense, some take the core somewhere."""
    kinds = [kind for kind in Kind if kind >> 4 == 0xE]
    for seed in range(300):
        rng = Random(seed)
        one = rng.choice((lambda: core(0), lambda: core(1), joiner))()
        for _ in range(150):
            words = tuple(_word(rng) for _ in range(rng.choice((0, 1, 2, 2, 3, 4, 6))))
            origin = rng.choice(MEMBERS)
            message = control(rng.choice(kinds), origin, rng.randrange(6), *words, incarnation=rng.choice((1, 1, 2)))
            if rng.random() < 0.05:
                message = rng.choice((ended, joined))(rng.choice(one._us.peers), rng.choice((1, 2)))
            try:
                give_back(one, give(one, message))
            except RemoteError:
                continue
            except Exception as error:
                error.add_note(f"seed {seed}: {message}")
                raise
            assert one.held <= 10_000


def _word(rng: Random) -> int:
    life = pack(rng.choice((0, 1, 2, 2, 9)), rng.choice((1, 1, 2)), rng.choice((0, 0, 1, 2)))
    return rng.choice((0, 1, 1, 2, life, life, life))


# Over the reliable layer.


def build(**parameters: Any) -> Callable[[Membership, int], Core]:
    def made(membership: Membership, seed: int) -> Core:
        told = AmoebaParameters(**{"large_bytes": LARGE_BYTES, "resilience": 0, **parameters})
        lower = ReliableCore(membership=membership, parameters=ReliableParameters(**RELIABLE), rng=Random(seed))
        return Stack(lower=lower, upper=AmoebaCore(membership=membership, parameters=told))

    return made


@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_broadcast_costs_two_messages_and_one_of_the_sequencer(count: int) -> None:
    """Kaashoek et al. 1989: without loss, with r = 0, PB and BB alike."""
    cluster = Cluster(count, build())
    cluster.submit(1, 5)
    cluster.submit(1, 5, size=LARGE_BYTES)
    cluster.submit(0, 5)
    check_ordered(cluster, list(range(count)))
    above = kinds_above(cluster)
    assert (above[Kind.AMOEBA_REQUEST], above[Kind.AMOEBA_DATA]) == (5, 5 + 5)
    assert (above[Kind.AMOEBA_BODY], above[Kind.AMOEBA_ACCEPT]) == (5, 5)
    assert sum(amount for kind, amount in above.items() if kind >> 4 == 0xE) == 2 * 5 + 2 * 5 + 5


def test_a_group_at_rest_is_silent() -> None:
    cluster = Cluster(4, build(resilience=2))
    cluster.submit(3, 3)
    check_silence(cluster)
    transmitted = len(cluster.sent)
    cluster.run(for_ns=3600 * SECOND)
    assert len(cluster.sent) == transmitted


def test_a_group_of_one_over_the_reliable_layer() -> None:
    cluster = Cluster(1, build(resilience=3))
    cluster.submit(0, 3)
    check_ordered(cluster, [0])
    cluster.restart(0)
    cluster.submit(0, 2)
    cluster.run()
    assert [number for _, _, number in cluster.hosts[0].delivered] == [1, 2]


@pytest.mark.parametrize("size", [24, LARGE_BYTES])
def test_all_deliver_the_same_order_under_loss_while_the_sequencer_crashes(size: int) -> None:
    cluster = Cluster(5, build(), network=Network(loss_ratio=0.1, jitter_ns=5 * MILLISECOND, duplicate_ratio=0.05))
    for member in range(5):
        cluster.submit(member, 30, size=size)
    cluster.run(for_ns=12 * MILLISECOND)
    cluster.crash(0)
    check_silence(cluster)
    check_survivors(cluster, [1, 2, 3, 4])
    assert {member for member, _, _ in cluster.hosts[1].delivered} >= {1, 2, 3, 4}
    assert [amoeba_of(cluster, member).sequencer for member in (1, 2, 3, 4)] == [1] * 4


def check_survivors(cluster: Cluster, members: list[int]) -> None:
    """Without resilience a sequencer that crashes may have delivered in an order of its own."""
    check_integrity(cluster)
    check_validity(cluster, members)
    first, *others = (cluster.hosts[member].delivered for member in members)
    assert all(other == first for other in others), f"different orders (seed {cluster.seed})"


def test_with_resilience_one_no_crash_of_one_loses_what_anybody_has_delivered() -> None:
    """The sequencer's own messages: without resilience it delivers them before anybody else has them."""
    lost = {resilience: _lost_with(resilience) for resilience in (0, 1)}
    assert lost == {0: 1, 1: 0}


def _lost_with(resilience: int) -> int:
    """How much the sequencer has delivered that no survivor delivers."""
    cluster = Cluster(3, build(resilience=resilience))
    cluster.cut([0], [1, 2])
    cluster.submit(0)
    cluster.run(for_ns=100 * MILLISECOND)
    cluster.crash(0)
    cluster.submit(1)
    cluster.run()
    return len(set(cluster.hosts[0].delivered) - set(cluster.hosts[1].delivered))


def test_a_sequencer_that_crashes_with_all_acknowledged_is_missed() -> None:
    """It has acknowledged the request and multicasts nothing: only the order waits for it."""
    cluster = Cluster(3, build())
    cluster.lose = lambda source, target, message: source == 0 and message.kind is Kind.RELIABLE_DATA
    cluster.submit(1)
    cluster.run(for_ns=100 * MILLISECOND)
    cluster.crash(0)
    check_silence(cluster)
    assert [len(cluster.hosts[member].delivered) for member in (1, 2)] == [1, 1]


def amoeba_of(cluster: Cluster, member: int) -> AmoebaCore:
    stack = cluster.core(member)
    assert isinstance(stack, Stack)
    assert isinstance(stack.upper, AmoebaCore)
    return stack.upper
