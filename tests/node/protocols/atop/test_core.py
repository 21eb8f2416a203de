"""ATOP: section 2.1 of paper 002 sentence by sentence, and the cases that it leaves open.

Ends of views: group/test_close_atop.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from node.core import Core, Membership, Submission
from node.effects import Effect, Report, SetTimer, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.protocols.atop import AtopCore, AtopParameters, AtopReport, WeightedOrderParameters
from node.protocols.atop.core import MOST_MEMBERS, SUB_WINDOW, TURN, WINDOW
from node.protocols.atop.order import MAX_NUMBER
from node.wire import Kind, Message
from tests.node.by_hand import after, delivered, dummy, give, multicasts, publication, reported
from tests.node.cluster import MILLISECOND, SECOND, Cluster, check_ordered

MEMBERS = (0, 1, 2)
AFTER_NS = 5 * MILLISECOND


# Core alone. Member 0 is the bookkeeper.


def core(member: int = 0, *, members: tuple[int, ...] = MEMBERS, memory: bytes = b"", **parameters: Any) -> AtopCore:
    made = AtopCore(
        membership=Membership(member=member, members=members),
        parameters=AtopParameters(dummy_after_ns=AFTER_NS, **parameters),
        memory=memory,
    )
    made.on_start(0)
    return made


def data(origin: int, number: int, distribution: int = 0, *final: int, word: int = 0) -> Message:
    """A data message. `word`: earlier deliveries of its sender."""
    words = (distribution, word, *final)
    return Message(kind=Kind.ATOP_DATA, origin=origin, incarnation=1, seq=number, words=words)


def submit(one: AtopCore, count: int = 1, now_ns: int = 0) -> list[Effect]:
    return [effect for _ in range(count) for effect in one.on_submit(Submission(payload=b""), now_ns)]


FULL = [message for number in range(1, 21) for message in (data(1, number), data(2, number))]
"""Forty messages of two members, and none of the third."""


def test_a_message_carries_sender_distribution_and_number_and_what_its_sender_had_delivered() -> None:
    one = core(draws="smooth")
    submission = Submission(payload=b"x", flags=1, inner=Kind.MUTEX_REQUEST)
    (first,) = multicasts(one.on_submit(submission, 0))
    assert first == replace(data(0, 1), payload=b"x", flags=1, inner=Kind.MUTEX_REQUEST)
    assert delivered(give(one, data(1, 1))) == [(1, 1)]
    assert multicasts(submit(one)) == [data(0, 2, word=after((0, 0), (1, 1)))]


def test_numbers_start_again_with_each_distribution() -> None:
    one = core(1)
    submit(one, 3)
    effects = give(one, publication(1, 5, 5, 1))
    assert (AtopReport.ADOPTED, 0, 1) in reported(effects)
    (message,) = multicasts(submit(one))
    assert (message.seq, message.words[0]) == (1, 1)


# Bookkeeper.


def test_the_bookkeeper_is_the_first_member_of_the_view() -> None:
    ranked = Membership(member=2, members=MEMBERS, ranks=(2, 0, 1))
    assert AtopCore(membership=ranked, parameters=AtopParameters()).is_bookkeeper
    assert core(0).is_bookkeeper
    assert not core(1).is_bookkeeper


def test_the_bookkeeper_publishes_what_it_counted_when_the_window_ends_and_nobody_else() -> None:
    for member, published in ((0, [publication(1, 1, 3, 0)]), (2, [])):
        one = core(member, least_dummies=0)
        give(one, *(data(1, number) for number in (1, 2, 3)))
        submit(one)
        assert multicasts(one.on_timer(WINDOW, SECOND)) == published
        assert one.distribution == len(published)


def test_nothing_is_published_below_the_threshold() -> None:
    for threshold, expected in ((333, 1), (334, 0)):
        one = core(0, threshold=threshold, least_dummies=0)
        submit(one, 2)
        give(one, data(1, 1))
        assert len(multicasts(one.on_timer(WINDOW, SECOND))) == expected, "a third of the draws would go to others"


def test_fewer_messages_than_members_say_nothing_and_the_window_goes_on() -> None:
    one = core(0)
    submit(one, 2)
    assert one.on_timer(WINDOW, SECOND) == []
    effects = submit(one, now_ns=2 * SECOND)
    assert SetTimer(timer=WINDOW, at_ns=3 * SECOND) in effects
    assert [message.kind for message in multicasts(one.on_timer(WINDOW, 3 * SECOND))] == [Kind.ATOP_DISTRIBUTION]


@pytest.mark.parametrize("timer", [SUB_WINDOW, WINDOW])
def test_a_sender_that_is_never_drawn_gets_a_weight(timer: Timer) -> None:
    memory = bytes.fromhex("0000 00000005 0001 00000005 0002 00000000")
    one = core(0, threshold=1000, memory=memory)
    give(one, *(data(1, number) for number in (1, 2)), data(2, 1))
    assert multicasts(one.on_timer(timer, SECOND))[-1] == publication(1, 5, 5, 1)


# Dummies.


def test_a_member_that_is_waited_for_sends_a_dummy_after_a_while() -> None:
    one = core(0)
    (timer,) = [effect for effect in give(one, *FULL, now_ns=100) if getattr(effect, "timer", None) == TURN]
    assert timer == SetTimer(timer=TURN, at_ns=100 + AFTER_NS)
    effects = one.on_timer(TURN, timer.at_ns)
    (count,) = [value for code, _, value in reported(effects) if code == AtopReport.TURN_DUMMY]
    assert multicasts(effects) == [dummy(0, 1, count)]


def test_ahead_fills_all_draws_with_one_dummy() -> None:
    one = core(0)
    give(one, *FULL[:20])
    one.on_timer(TURN, AFTER_NS)
    assert multicasts(one.on_timer(TURN, 2 * AFTER_NS)) == [], "others are missing now"


def test_the_paper_fills_one_draw_at_a_time() -> None:
    one = core(0, ahead=False)
    give(one, *FULL)
    for number in (1, 2, 3):
        assert multicasts(one.on_timer(TURN, number * SECOND)) == [dummy(0, number)]


def test_what_is_delivered_puts_the_dummy_off() -> None:
    one = core(0)
    give(one, *FULL)
    assert delivered(submit(one, now_ns=AFTER_NS - 1))
    assert one.on_timer(TURN, AFTER_NS) == [SetTimer(timer=TURN, at_ns=2 * AFTER_NS - 1)]


def test_a_member_that_has_not_passed_the_distribution_in_force_says_a_word_under_its_own() -> None:
    one = core(1)
    give(one, publication(1, 1, 1, 1), data(0, 1, 1))
    (word,) = multicasts(one.on_timer(TURN, AFTER_NS))
    assert word == dummy(1, 1, 1, 1)
    assert multicasts(one.on_timer(TURN, 3 * AFTER_NS)) == [], "one is enough"


def test_a_member_that_knows_no_later_distribution_waits_for_it() -> None:
    """Others have moved on; a dummy under the distribution that all leave would help no member."""
    one = core(2)
    give(one, data(1, 1, 1))
    assert multicasts(one.on_timer(TURN, AFTER_NS)) == []
    assert one.buffered == 1


def test_a_member_that_sends_less_than_its_share_fills_one_number_per_sub_window() -> None:
    """ "One delta is computed at a member, and one adjustment message made" (3.1.1)."""
    silent, busy = core(0), core(0)
    submit(busy, 20)
    for one in (silent, busy):
        give(one, *FULL)
    effects = silent.on_timer(SUB_WINDOW, SECOND)
    assert multicasts(effects) == [dummy(0, 1)]
    assert (AtopReport.GAP_DUMMY, 0, 1) in reported(effects)
    assert multicasts(busy.on_timer(SUB_WINDOW, SECOND)) == []


@pytest.mark.parametrize("least", [0, 1, 3])
def test_a_least_number_of_dummies_keeps_the_weight_above_0(least: int) -> None:
    one = core(2, least_dummies=least)
    give(one, *(data(origin, number) for number in (1, 2) for origin in (0, 1)))
    effects = one.on_timer(WINDOW, SECOND)
    assert multicasts(effects) == ([dummy(2, 1, least)] if least else [])
    assert reported(effects) == ([(AtopReport.WEIGHT_DUMMY, 2, least)] if least else [])


def test_dummies_ask_for_no_dummies() -> None:
    one = core(0)
    assert give(one, dummy(1, 1, 20), dummy(2, 1, 20)) == []
    assert one.is_idle


def test_at_most_so_many_of_our_own_are_undelivered() -> None:
    one = core(0, outstanding=2, draws="smooth")
    submit(one, 3)
    assert not one.can_submit, "one has been drawn; the others wait for members 1 and 2"
    with pytest.raises(LocalError, match="can_submit"):
        submit(one)
    give(one, dummy(1, 1, 2), dummy(2, 1, 2))
    assert one.can_submit


def test_what_waits_in_the_layer_below_is_in_our_order_already() -> None:
    one = core(0, draws="smooth")
    assert delivered(submit(one)) == [(0, 1)]
    assert give(one, data(0, 1)) == [], "it has come back"
    assert one.buffered == 0


# Refusals.


def reason_of(one: AtopCore, message: Message, source: int | None = None) -> DropReason | None:
    """Reason why the core refuses a message; None: it takes it."""
    try:
        effects = one.on_message(message, message.origin if source is None else source, 0)
    except RemoteError as error:
        return error.reason
    return next(
        (DropReason(one.code) for one in effects if isinstance(one, Report) and one.code in set(DropReason)), None
    )


def bare(kind: Kind, *words: int, origin: int = 1) -> Message:
    """A message with these words, as many as there may be."""
    return Message(kind=kind, origin=origin, incarnation=1, seq=1, words=words)


def id_of(message: Message) -> str:
    return f"{message.kind.name}-{message.seq}-{message.words}"


MALFORMED = [
    *(data(1, number) for number in (0, 2, MAX_NUMBER + 1)),
    *(dummy(1, number, count) for number, count in ((1, 0), (2, 1), (1, 2**63))),
    data(1, 2, 7),
    publication(1, 1, 1, 1, origin=1),
    *(bare(Kind.ATOP_DATA, *words) for words in ((), (0,), (0, 0, 0, 0), (0, 0, 7))),
    bare(Kind.ATOP_DUMMY, 0),
    bare(Kind.MBS_BROKERED, 0, 0, 2, 1),
    data(2, 1),
    data(9, 1),
]


@pytest.mark.parametrize("message", MALFORMED, ids=id_of)
def test_what_cannot_be_is_refused_before_anything_changes(message: Message) -> None:
    one = core(0)
    assert reason_of(one, message, 1) in (DropReason.MALFORMED, DropReason.UNEXPECTED)
    assert (one.buffered, one.is_idle, one.distribution) == (0, True, 0)
    assert not reported(give(one, data(1, 1)))


@pytest.mark.parametrize(
    "message",
    [
        publication(2, 1, 1, 1),
        publication(0, 1, 1, 1),
        publication(1, 0, 0, 0),
        publication(1, 1, 1),
        data(0, 1, 1),
        replace(publication(1, 1, 1, 1), seq=1),
        replace(publication(1, 1, 1, 1), words=()),
    ],
    ids=id_of,
)
def test_what_a_bookkeeper_cannot_say_is_refused(message: Message) -> None:
    one = core(1)
    assert reason_of(one, message) is DropReason.MALFORMED
    assert (one.distribution, one.is_idle) == (0, True)


def test_a_stream_that_goes_back_is_refused() -> None:
    one = core(1)
    give(one, publication(1, 1, 1, 1), data(2, 1, 1))
    for message in (data(2, 1), data(2, 1, 1), dummy(2, 1, 5, 1), publication(1, 1, 1, 1)):
        assert reason_of(one, message) is DropReason.MALFORMED


@pytest.mark.parametrize(
    "wrong",
    [
        {"window_ns": 0},
        {"sub_window_ns": 0},
        {"dummy_after_ns": -1},
        {"threshold": 1001},
        {"threshold": -1},
        {"draws": "fair"},
        {"outstanding": 0},
        {"least_dummies": -1},
        {"least_dummies": 1025},
    ],
    ids=str,
)
def test_parameters_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(LocalError, match=next(iter(wrong))):
        AtopParameters(**wrong)


def test_a_group_whose_weights_fit_no_message_is_refused() -> None:
    WeightedOrderParameters().require_members(MOST_MEMBERS)
    with pytest.raises(LocalError, match=f"{MOST_MEMBERS + 1} members"):
        WeightedOrderParameters().require_members(MOST_MEMBERS + 1)


# A running view, over streams without loss.


def build(**parameters: Any) -> Callable[[Membership, int], Core]:
    return lambda membership, _: AtopCore(membership=membership, parameters=AtopParameters(**parameters))


def told(cluster: Cluster, code: AtopReport) -> int:
    """Number of reports with this code."""
    return sum(report.code == code for host in cluster.hosts.values() for report in host.reports)


def atop_of(cluster: Cluster, member: int) -> AtopCore:
    one = cluster.core(member)
    assert isinstance(one, AtopCore)
    return one


def test_alone_everything_is_delivered_at_once() -> None:
    one = core(0, members=(0,))
    assert len(delivered(submit(one, 3))) == 3


@pytest.mark.parametrize(("count", "ahead"), list(product((2, 3, 8), (True, False))))
def test_a_lone_message_among_the_silent_is_delivered(count: int, ahead: bool) -> None:
    cluster = Cluster(count, build(ahead=ahead))
    cluster.submit(1)
    cluster.run(for_ns=50 * MILLISECOND if ahead else SECOND)
    assert all(host.delivered for host in cluster.up())
    check_ordered(cluster, list(range(count)))
    if ahead:
        assert len(cluster.kinds(Kind.ATOP_DUMMY)) <= count - 1, "a round of dummies at most"


@pytest.mark.parametrize("draws", ["random", "smooth"])
def test_distributions_follow_the_senders(draws: str) -> None:
    """One member sends ten times as often as the others: after a window its weight and the draws follow."""
    cluster = Cluster(4, build(draws=draws, window_ns=500 * MILLISECOND))
    for number in range(1000):
        cluster.submit_later(2, number * 2 * MILLISECOND)
    for number, member in product(range(100), (0, 1, 3)):
        cluster.submit_later(member, number * 20 * MILLISECOND + member * MILLISECOND)
    cluster.run(for_ns=1900 * MILLISECOND)
    for member in cluster.members:
        weights = atop_of(cluster, member).weights
        assert weights == atop_of(cluster, 0).weights
        assert 8 <= weights[2] / weights[0] <= 12
    assert told(cluster, AtopReport.ADOPTED) <= 4 * 2, "one change, and perhaps a correction"
    turns = told(cluster, AtopReport.TURN_DUMMY)
    check_ordered(cluster, [0, 1, 2, 3])
    assert len(cluster.hosts[1].delivered) == 1300
    assert turns <= 250, "most of them in the first window"


def test_members_that_send_alike_need_hardly_a_dummy_between() -> None:
    cluster = Cluster(4, build(draws="smooth", dummy_after_ns=50 * MILLISECOND))
    for number, member in product(range(200), range(4)):
        cluster.submit_later(member, number * 10 * MILLISECOND + member * MILLISECOND)
    check_ordered(cluster, [0, 1, 2, 3])
    assert len(cluster.kinds(Kind.ATOP_DUMMY)) <= 8, "only the end, where everybody falls silent"
