"""CBCAST: the delay rule sentence by sentence, joiners, crashes, and random histories under the oracle."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.verdict import Verdict
from node.core import Core, Membership, Submission
from node.effects import CancelTimer, Deliver, Effect, Multicast, Report, Send, SetTimer, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.protocols import PROTOCOLS
from node.protocols.cbcast import ASK, CbcastCore, CbcastParameters, CbcastReport, Phase
from node.protocols.joining import ASK_AGAIN_NS
from node.protocols.words import MAX_NUMBER, pack, unpack
from node.wire import Flag, Kind, Message, encode_message
from tests.mutants.recorded import Recorded, verdicts
from tests.node import scenarios
from tests.node.cluster import MILLISECOND, Network, check_silence
from tests.node.scenarios import SUSPECT_AFTER_NS

MEMBERS = (0, 1, 2)
PROMISES = PROTOCOLS["cbcast"].promises
RELIABLE = {"window": 64, "suspect_after_ns": SUSPECT_AFTER_NS}


def build(membership: Membership, seed: int) -> Core:
    return PROTOCOLS["cbcast"].build(membership=membership, parameters={"reliable": RELIABLE}, seed=seed)


def group(count: int = 3, *, seed: int = 1, network: Network | None = None) -> Recorded:
    return Recorded(count, build, seed=seed, network=network)


# The core alone.


def core(member: int, incarnation: int = 1, waiting: int = 8) -> CbcastCore:
    made = CbcastCore(
        membership=Membership(member=member, members=MEMBERS, incarnation=incarnation),
        parameters=CbcastParameters(waiting=waiting),
    )
    assert made.on_start(0) == []
    return made


def sent_by(one: CbcastCore, payload: bytes = b"") -> Message:
    """What it multicasts when it is asked to."""
    multicast, _ = one.on_submit(Submission(payload=payload), 0)
    assert isinstance(multicast, Multicast)
    return multicast.message


def data(origin: int, seq: int, *causes: int, incarnation: int = 1) -> Message:
    """`causes`: per member, the number of its last message that the sender has delivered."""
    words = tuple(pack(member, 1 if member != origin else incarnation, number) for member, number in enumerate(causes))
    return Message(kind=Kind.CBCAST_DATA, origin=origin, incarnation=incarnation, seq=seq, words=words)


def ended(member: int, last: int, incarnation: int = 1) -> Message:
    return Message(kind=Kind.RELIABLE_ENDED, origin=member, incarnation=incarnation, seq=last)


def welcome(origin: int, *listed: tuple[int, int]) -> Message:
    """To member 2 in its second life. `listed`: member and incarnation of lives whose end it has not heard of."""
    words = tuple(pack(*life, 0) for life in ((2, 2), *listed))
    return Message(kind=Kind.CBCAST_WELCOME, origin=origin, incarnation=1, flags=Flag.CONTROL.value, words=words)


def joined(member: int, start: int, incarnation: int) -> Message:
    return Message(kind=Kind.RELIABLE_JOINED, origin=member, incarnation=incarnation, seq=start)


def delivered(effects: list[Effect]) -> list[tuple[int, int]]:
    return [(effect.origin, effect.seq) for effect in effects if isinstance(effect, Deliver)]


def give(one: CbcastCore, *messages: Message) -> list[tuple[int, int]]:
    """What is delivered of these, and in which order."""
    return [found for message in messages for found in delivered(one.on_message(message, message.origin, 0))]


def test_a_sender_delivers_its_own_message_as_it_sends_it() -> None:
    effects = core(1).on_submit(Submission(payload=b"x", flags=Flag.DUMMY.value), 0)
    multicast, delivery = effects
    assert isinstance(multicast, Multicast)
    assert delivery == Deliver(payload=b"x", origin=1, incarnation=1, seq=1)
    assert (multicast.message.seq, multicast.message.flags) == (1, Flag.DUMMY)


def test_its_own_message_that_comes_back_from_below_is_not_delivered_again() -> None:
    one = core(1)
    assert one.on_message(sent_by(one), 1, 0) == []


def test_the_vector_says_what_the_sender_had_delivered() -> None:
    one = core(1)
    give(one, data(0, 1, 0, 0, 0), data(0, 2, 1, 0, 0))
    sent_by(one)
    assert [unpack(word) for word in sent_by(one).words] == [(0, 1, 2), (1, 1, 1), (2, 0, 0)]


def test_a_message_is_delayed_until_its_causes_are_delivered() -> None:
    one = core(2)
    assert give(one, data(1, 1, 1, 0, 0)) == []
    assert (one.held, one.is_idle) == (1, False)
    assert give(one, data(0, 1, 0, 0, 0)) == [(0, 1), (1, 1)]
    assert (one.held, one.is_idle) == (0, True)


def test_concurrent_messages_are_delivered_as_they_come() -> None:
    one, other = core(2), core(2)
    assert give(one, data(1, 1, 0, 0, 0), data(0, 1, 0, 0, 0)) == [(1, 1), (0, 1)]
    assert give(other, data(0, 1, 0, 0, 0), data(1, 1, 0, 0, 0)) == [(0, 1), (1, 1)]


def test_what_was_received_and_not_delivered_is_no_cause() -> None:
    """The mistake of counting receipts: c has message 1 of b, which waits, and must not claim it."""
    one = core(2)
    give(one, data(1, 1, 1, 0, 0))
    assert [unpack(word).number for word in sent_by(one).words] == [0, 0, 0]


def test_one_release_sets_off_the_next() -> None:
    one = core(2)
    waiting = [data(1, 1, 1, 0, 0), data(1, 2, 2, 1, 0), data(1, 3, 2, 2, 0)]
    assert give(one, *waiting) == []
    assert give(one, data(0, 1, 0, 0, 0)) == [(0, 1), (1, 1)]
    assert give(one, data(0, 2, 1, 1, 0)) == [(0, 2), (1, 2), (1, 3)]


def test_numbers_do_not_repeat_and_have_no_gaps() -> None:
    one = core(2)
    give(one, data(0, 1, 0, 0, 0))
    assert one.on_message(data(0, 1, 0, 0, 0), 0, 0) == [Report(code=DropReason.DUPLICATE, member=0)]
    assert one.on_message(data(0, 3, 2, 0, 0), 0, 0) == [Report(code=DropReason.UNEXPECTED, member=0)]
    assert one.on_message(data(0, 2, 0, 0, 0), 0, 0) == [Report(code=DropReason.UNEXPECTED, member=0)]
    assert give(one, data(0, 2, 1, 0, 0)) == [(0, 2)]


def test_a_vector_that_cannot_be_is_refused_and_changes_nothing() -> None:
    one = core(2)
    short = Message(kind=Kind.CBCAST_DATA, origin=0, incarnation=1, seq=1, words=(0, 0))
    assert one.on_message(short, 0, 0) == [Report(code=DropReason.MALFORMED, member=0)]
    for words in ((pack(0, 1, 0), pack(2, 1, 0), pack(2, 1, 0)), (pack(0, 1, 0), pack(1, 1, 0), pack(2, 1, 1))):
        with pytest.raises(RemoteError) as caught:
            one.on_message(Message(kind=Kind.CBCAST_DATA, origin=0, incarnation=1, seq=1, words=words), 0, 0)
        assert caught.value.reason is DropReason.MALFORMED
    assert give(one, data(0, 1, 0, 0, 0)) == [(0, 1)]


def test_a_life_that_we_know_nothing_of_is_refused() -> None:
    assert core(2).on_message(data(0, 1, 0, 0, 0, incarnation=2), 0, 0) == [
        Report(code=DropReason.UNEXPECTED, member=0)
    ]


def test_who_lets_too_much_wait_is_heard_no_more() -> None:
    one = core(2, waiting=4)
    for seq in range(1, 5):
        one.on_message(data(1, seq, 9, seq - 1, 0), 1, 0)
    assert one.on_message(data(1, 5, 9, 4, 0), 1, 0) == [Report(code=DropReason.OUT_OF_WINDOW, member=1)]
    assert one.held == 4
    assert give(one, data(0, 1, 0, 0, 0)) == [(0, 1)]


# Lives.


def joiner() -> CbcastCore:
    """Member 2 in its second life: takes part in the stream of 0 after 5, of 1 after 3."""
    one = core(2, incarnation=2)
    assert (one.phase, one.can_submit, one.is_idle) == (Phase.JOINING, False, False)
    for message in (joined(0, 5, 1), joined(1, 3, 1), joined(2, 2, 2), welcome(0, (1, 1)), welcome(1, (0, 1))):
        assert one.phase is Phase.JOINING
        assert delivered(one.on_message(message, message.origin, 0)) == []
    assert (one.phase, one.can_submit, one.is_idle) == (Phase.MEMBER, True, True)
    return one


def test_a_joiner_waits_for_the_welcome_of_everybody_and_for_the_ends_that_they_lack() -> None:
    """Member 0 has not heard of the end of our first life: what it sends may depend on what only it has of that."""
    one = core(2, incarnation=2)
    give(one, joined(0, 5, 1), joined(1, 3, 1), joined(2, 2, 2), welcome(0, (1, 1), (2, 1)), welcome(1, (0, 1)))
    assert (one.phase, give(one, data(0, 6, 5, 3, 9))) == (Phase.JOINING, [])
    assert give(one, welcome(0, (1, 1))) == [(0, 6)]
    assert one.phase is Phase.MEMBER


def test_what_ends_while_we_join_counts_as_missed() -> None:
    one = core(2, incarnation=2)
    give(one, joined(0, 5, 1), joined(1, 3, 1), joined(2, 2, 2), welcome(1, (0, 1)), data(0, 6, 5, 3, 9))
    assert give(one, joined(0, 0, 2), ended(0, 6), data(0, 1, 0, 3, 9, incarnation=2)) == []
    assert one.phase is Phase.JOINING
    later = Message(kind=Kind.CBCAST_WELCOME, origin=0, incarnation=2, words=(pack(2, 2, 0), pack(1, 1, 0)))
    assert give(one, welcome(1), later) == [(0, 1)]
    assert one.is_idle


def test_a_member_welcomes_a_joiner_and_again_at_every_end_until_it_speaks() -> None:
    one = core(0)
    assert one.on_message(joined(2, 0, 2), 2, 0) == [Send(target=2, message=welcome(0, (1, 1), (2, 1)))]
    assert one.on_message(ended(2, 0), 2, 0) == [Send(target=2, message=welcome(0, (1, 1)))]
    assert give(one, data(2, 1, 0, 0, 0, incarnation=2)) == [(2, 1)]
    assert one.on_message(ended(1, 0), 1, 0) == []


def test_a_joiner_that_waits_for_long_asks_each_that_takes_part() -> None:
    """Each alone: a multicast that is no data would have a number in the layer below, and none here."""
    one = core(2, incarnation=2)
    give(one, joined(0, 5, 1), joined(1, 3, 1))
    assert one.on_message(joined(2, 2, 2), 2, 0) == [SetTimer(timer=ASK, at_ns=ASK_AGAIN_NS)]
    give(one, welcome(0, (1, 1)))
    join = Message(kind=Kind.CBCAST_JOIN, origin=2, incarnation=2, flags=Flag.CONTROL.value)
    again = SetTimer(timer=ASK, at_ns=3 * ASK_AGAIN_NS)
    assert one.on_timer(ASK, ASK_AGAIN_NS) == [Send(target=0, message=join), Send(target=1, message=join), again]
    assert one.on_message(welcome(1, (0, 1)), 1, 0) == [CancelTimer(timer=ASK)]
    other = core(0)
    assert other.on_message(join, 2, 0) == [Report(code=DropReason.UNEXPECTED, member=2)], "it has not joined here"
    other.on_message(joined(2, 0, 2), 2, 0)
    assert other.on_message(join, 2, 0) == [Send(target=2, message=welcome(0, (1, 1), (2, 1)))]


def test_a_welcome_that_cannot_be_is_refused() -> None:
    one = core(2, incarnation=2)
    give(one, joined(0, 5, 1), joined(1, 3, 1), joined(2, 2, 2))
    for words in ((), (pack(2, 2, 0), pack(7, 1, 0)), (pack(2, 2, 0), pack(1, 1, 3)), (pack(1, 2, 0),)):
        with pytest.raises(RemoteError, match="MALFORMED"):
            one.on_message(Message(kind=Kind.CBCAST_WELCOME, origin=0, incarnation=1, words=words), 0, 0)
    stranger = Message(kind=Kind.CBCAST_WELCOME, origin=0, incarnation=3)
    assert one.on_message(stranger, 0, 0) == [Report(code=DropReason.UNEXPECTED, member=0)]
    late = Message(kind=Kind.CBCAST_WELCOME, origin=0, incarnation=1, words=(pack(1, 1, 0),))
    assert core(1).on_message(late, 0, 0) == [], "who has joined needs no welcome"


def test_what_a_joiner_missed_counts_as_delivered() -> None:
    one = joiner()
    assert give(one, data(1, 4, 5, 3, 9)) == [(1, 4)], "message 5 of 0, and all of its own first life, were before"
    assert give(one, data(1, 5, 6, 4, 9)) == []
    assert give(one, data(0, 6, 5, 4, 9)) == [(0, 6), (1, 5)]


def test_a_joiner_claims_nothing_that_it_has_not_delivered() -> None:
    """Others may still wait for what it missed; its messages must not."""
    one = joiner()
    assert [unpack(word) for word in sent_by(one).words] == [(0, 0, 0), (1, 0, 0), (2, 2, 0)]
    other = core(0)
    assert give(other, joined(2, 0, 2), ended(2, 0), sent_by(joiner())) == [(2, 1)]


def test_a_later_life_waits_for_the_end_of_the_earlier_one() -> None:
    one = core(0)
    give(one, data(2, 1, 0, 0, 0), joined(2, 0, 2))
    first = data(2, 1, 0, 0, 0, incarnation=2)
    assert give(one, first) == []
    assert give(one, ended(2, 1)) == [(2, 1)]
    assert give(one, data(1, 1, 0, 0, 1)) == [(1, 1)], "and what names the earlier life is satisfied"


def test_who_names_a_later_life_waits_for_it() -> None:
    one = core(0)
    give(one, ended(2, 0), joined(2, 0, 2))
    words = (pack(0, 1, 0), pack(1, 1, 0), pack(2, 2, 1))
    assert give(one, Message(kind=Kind.CBCAST_DATA, origin=1, incarnation=1, seq=1, words=words)) == []
    assert give(one, data(2, 1, 0, 0, 0, incarnation=2)) == [(2, 1), (1, 1)]


def test_a_life_without_us_counts_as_delivered() -> None:
    one = joiner()
    assert give(one, ended(1, 3)) == []
    assert give(one, ended(1, 0, incarnation=2)) == []
    words = (pack(0, 1, 5), pack(1, 2, 77), pack(2, 0, 0))
    assert give(one, Message(kind=Kind.CBCAST_DATA, origin=0, incarnation=1, seq=6, words=words)) == [(0, 6)]


# Ends.


def erased(effects: list[Effect]) -> list[tuple[int, int]]:
    return [(effect.member, effect.value) for effect in effects if isinstance(effect, Report)]


@pytest.mark.parametrize("order", ["cause first", "effect first"])
def test_what_died_with_its_cause_is_erased_whichever_end_comes_first(order: str) -> None:
    """0 sent a message that only 1 received; 1 sent three after it; both are gone."""
    one = core(2)
    assert give(one, data(1, 1, 0, 0, 0)) == [(1, 1)]
    assert give(one, *(data(1, seq, 1, seq - 1, 0) for seq in (2, 3, 4))) == []
    ends = (ended(0, 0), ended(1, 4)) if order == "cause first" else (ended(1, 4), ended(0, 0))
    assert erased(one.on_message(ends[0], ends[0].origin, 0)) == []
    effects = one.on_message(ends[1], ends[1].origin, 0)
    assert effects == [Report(code=CbcastReport.ERASED, member=1, value=2)]
    assert (one.held, one.is_idle) == (0, True)


def test_what_a_survivor_received_of_the_dead_is_delivered_and_nothing_is_erased() -> None:
    one = core(2)
    give(one, data(1, 1, 1, 0, 0))
    assert give(one, ended(1, 1)) == []
    assert give(one, data(0, 1, 0, 0, 0)) == [(0, 1), (1, 1)], "the reliable layer got it from another survivor"
    assert give(one, ended(0, 1)) == []


def test_erasure_spreads_to_who_depends_on_the_erased() -> None:
    members = (0, 1, 2, 3)
    one = CbcastCore(membership=Membership(member=3, members=members), parameters=CbcastParameters())

    def from_(origin: int, *numbers: int) -> Message:
        words = tuple(pack(member, 1, number) for member, number in enumerate(numbers))
        return Message(kind=Kind.CBCAST_DATA, origin=origin, incarnation=1, seq=numbers[origin] + 1, words=words)

    assert give(one, from_(1, 1, 0, 0, 0), from_(2, 0, 1, 0, 0)) == []
    effects = [effect for news in (ended(2, 1), ended(1, 1), ended(0, 0)) for effect in one.on_message(news, 0, 0)]
    assert erased(effects) == [(1, 1), (2, 1)]
    assert one.is_idle


def test_the_doomed_message_of_one_who_still_lives_waits_for_his_end() -> None:
    one = core(2)
    give(one, data(1, 1, 1, 0, 0))
    assert erased(one.on_message(ended(0, 0), 0, 0)) == []
    assert one.held == 1
    assert erased(one.on_message(ended(1, 1), 1, 0)) == [(1, 1)]


def test_doom_is_not_forgotten_when_the_dead_comes_back() -> None:
    one = core(2)
    give(one, ended(0, 0), joined(0, 0, 2), data(0, 1, 0, 0, 0, incarnation=2))
    assert give(one, data(1, 1, 1, 0, 0)) == [], "message 1 of the first life of 0, not of the second"
    assert erased(one.on_message(ended(1, 1), 1, 0)) == [(1, 1)]


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(
    "kind", [kind for kind in Kind if kind >> 4 == 4 or kind >> 4 == 2], ids=lambda kind: kind.name
)
def test_every_phase_takes_or_refuses_every_message(phase: Phase, kind: Kind) -> None:
    for words in ((), (0, 0, 0), (pack(0, 1, 0), pack(1, 1, 0), pack(2, 1, 0)), (2**64 - 1,) * 3):
        for seq in (0, 1, 2, MAX_NUMBER, 2**64 - 1):
            for origin in (0, 1, 2, 7):
                for incarnation in (0, 1, 2):
                    one = core(2, incarnation=1 if phase is Phase.MEMBER else 2)
                    message = Message(kind=kind, origin=origin, incarnation=incarnation, seq=seq, words=words)
                    try:
                        effects = one.on_message(message, origin, 0)
                    except RemoteError as error:
                        assert error.reason is DropReason.MALFORMED
                        continue
                    if phase is Phase.JOINING or kind is not Kind.CBCAST_DATA or origin == 7 or incarnation == 0:
                        assert all(isinstance(effect, Report) for effect in effects), (message, effects)


def test_what_it_cannot_do_is_our_callers_mistake() -> None:
    with pytest.raises(LocalError, match="orders multicasts"):
        core(1).on_submit(Submission(payload=b"", target=2), 0)
    with pytest.raises(LocalError, match="no timer"):
        core(1).on_timer(Timer("tick"), 0)
    with pytest.raises(LocalError, match="takes no submission now"):
        core(1, incarnation=2).on_submit(Submission(payload=b""), 0)
    with pytest.raises(LocalError, match="waiting must lie between"):
        CbcastParameters(waiting=0)


# Over the reliable layer.


def check_all(cluster: Recorded) -> None:
    check_silence(cluster)
    assert set(verdicts(cluster.history(), cluster.members, PROMISES).values()) == {Verdict.PASS}


def test_an_idle_group_is_silent_and_a_multicast_is_one_message() -> None:
    cluster = group()
    cluster.run()
    assert cluster.sent == []
    cluster.submit(1)
    check_all(cluster)
    assert [message.inner for message in cluster.kinds(Kind.RELIABLE_DATA)] == [Kind.CBCAST_DATA]


def test_an_answer_that_overtakes_its_question_waits_for_it() -> None:
    cluster = group()
    cluster.lose = lambda source, target, message: (
        (source, target, message.seq, message.flags) == (0, 2, 1, 0) and message.kind is Kind.RELIABLE_DATA
    )
    cluster.submit(0)
    cluster.submit_later(1, 5 * MILLISECOND)
    cluster.run(for_ns=10 * MILLISECOND)
    assert (cluster.hosts[2].delivered, cluster.core(2).held >= 1) == ([], True)
    check_all(cluster)
    assert cluster.hosts[2].delivered == [(0, 1, 1), (1, 1, 1)]


def test_all_survivors_erase_what_died_with_its_cause() -> None:
    """5 reaches only 4, and 4 answers to all, then both crash: nobody can ever deliver the answer."""
    cluster = group(6)
    cluster.lose = lambda source, target, message: source == 5 and target != 4
    cluster.submit(4)
    cluster.submit_later(5, 5 * MILLISECOND)
    cluster.submit_later(4, 10 * MILLISECOND, count=2)
    for member in (4, 5):
        cluster.at(15 * MILLISECOND, lambda member=member: cluster.crash(member))  # type: ignore[misc]
    cluster.submit_later(0, 20 * MILLISECOND)
    check_all(cluster)
    for member in range(4):
        host = cluster.hosts[member]
        assert host.delivered == [(4, 1, 1), (0, 1, 1)]
        assert [(r.member, r.value) for r in host.reports if r.code == CbcastReport.ERASED] == [(4, 2)]
        assert host.core.held == 0


def test_a_restarted_member_takes_part_again() -> None:
    cluster = group(4)
    cluster.submit(1, 5)
    cluster.submit_later(3, 5 * MILLISECOND, count=2)
    cluster.run()
    cluster.restart(3)
    cluster.submit_later(1, cluster.now_ns + 1 * MILLISECOND, count=5)
    cluster.submit_later(3, cluster.now_ns + 200 * MILLISECOND, count=2)
    cluster.submit_later(0, cluster.now_ns + 400 * MILLISECOND)
    check_all(cluster)
    assert cluster.hosts[3].delivered[-3:] == [(3, 2, 1), (3, 2, 2), (0, 1, 1)]
    assert [cluster.core(member).held for member in range(4)] == [0] * 4


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", DropReason.TRUNCATED),
        (encode_message(data(1, 1, 0, 0, 0)) + b"x", DropReason.BAD_LENGTH),
        (encode_message(data(2, 1, 0, 0, 0)), DropReason.MALFORMED),
        (encode_message(data(1, 1, 0, 0)), DropReason.MALFORMED),
        (encode_message(data(1, 5, 0, 4, 0)), DropReason.UNEXPECTED),
    ],
)
def test_a_wrong_message_inside_a_right_one_is_refused_by_the_core_alone(payload: bytes, reason: DropReason) -> None:
    """The layer below takes it: it is a multicast like any other."""
    wrong = PROTOCOLS["reliable"].build(membership=Membership(member=1, members=MEMBERS), parameters=RELIABLE, seed=1)
    receiver = build(Membership(member=0, members=MEMBERS), 1)
    multicast = wrong.on_submit(Submission(payload=payload, inner=Kind.CBCAST_DATA), 0)[0]
    assert isinstance(multicast, Multicast)
    effects = receiver.on_message(multicast.message, 1, 0)
    assert [effect.code for effect in effects if isinstance(effect, Report)] == [reason]
    assert delivered(effects) == []


seeds = st.integers(0, 2**32 - 1)


def run_random(seed: int) -> str:
    made = scenarios.scenario(seed, build, cluster_type=Recorded)
    try:
        scenarios.check(made)
        assert isinstance(made.cluster, Recorded)
        assert Verdict.FAIL not in verdicts(made.cluster.history(), made.cluster.members, PROMISES).values()
    except AssertionError as error:
        error.add_note(f"{made}; replay: python -m tests.node.test_cbcast {seed}")
        raise
    return made.cluster.transcript()


@settings(max_examples=10, deadline=None)
@given(seed=seeds)
def test_random_histories_keep_all_promises(seed: int) -> None:
    run_random(seed)


def half_multicasts(seed: int) -> tuple[Recorded, int]:
    """Two of six crash while each datagram of theirs reaches only some: the best chance to lose a cause."""
    rng = Random(f"{seed}/half")
    cluster = group(6, seed=seed, network=Network(jitter_ns=rng.choice((0, 3)) * MILLISECOND))
    fault_ns = 100 * MILLISECOND
    reach = rng.random()
    victims = (4, 5)
    cluster.lose = lambda source, target, message: (
        source in victims
        and cluster.now_ns >= fault_ns
        and target not in (victims if rng.random() < 0.8 else ())
        and rng.random() > reach
    )
    for member in cluster.members:
        for _ in range(rng.randint(5, 15)):
            cluster.submit_later(member, rng.randint(0, 200) * MILLISECOND)
    for victim in victims:
        at_ns = fault_ns + rng.randint(0, 60) * MILLISECOND
        cluster.at(at_ns, lambda victim=victim: cluster.crash(victim))  # type: ignore[misc]
        if rng.random() < 0.5:
            again_ns = at_ns + rng.randint(0, 3000) * MILLISECOND
            cluster.at(again_ns, lambda victim=victim: cluster.restart(victim))  # type: ignore[misc]
            cluster.submit_later(victim, again_ns + 200 * MILLISECOND, count=3)
    check_silence(cluster)
    found = verdicts(cluster.history(), cluster.members, PROMISES)
    assert set(found.values()) == {Verdict.PASS}, f"seed {seed}: {found}"
    return cluster, sum(report.code == CbcastReport.ERASED for host in cluster.up() for report in host.reports)


def test_survivors_agree_when_causes_die_with_their_senders() -> None:
    total = sum(half_multicasts(seed)[1] for seed in range(40))
    assert total >= 10, "the scenario must bring about what it is there for"


def test_a_seed_repeats_its_history_under_any_hash_seed() -> None:
    here = run_random(7)
    for hash_seed in ("0", "4711"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.node.test_cbcast", "7"],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == here


def cost_us(members: int, messages: int) -> float:
    """CPU time of the core alone per received message that can be delivered."""
    everybody = tuple(range(members))
    cores = [
        CbcastCore(membership=Membership(member=member, members=everybody), parameters=CbcastParameters())
        for member in everybody
    ]
    made = [sent_by(cores[number % (members - 1)]) for number in range(messages)]
    receiver = cores[-1]
    began = time.process_time_ns()
    for message in made:
        receiver.on_message(message, message.origin, 0)
    return (time.process_time_ns() - began) / messages / 1000


def test_the_cost_of_a_receipt_is_small_and_linear_in_the_members() -> None:
    assert min(cost_us(8, 2000) for _ in range(5)) <= 25
    assert min(cost_us(64, 1000) for _ in range(5)) <= 8 * 25


if __name__ == "__main__":
    sys.stdout.write(run_random(int(sys.argv[1])) + "\n")
