"""The end of a view in CBCAST: random histories of views, erased messages, and the need for each rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import pytest

from node.core import Closing, Membership, Submission, ViewCore
from node.effects import Deliver, Effect, Report
from node.protocols.cbcast import CbcastCore, CbcastParameters, CbcastReport
from node.wire import Kind, Message
from tests.mutants.cores import CountsReceipts, NoRelease, NoVector, OnlyItsSender
from tests.node.by_hand import delivered
from tests.node.group.views import Group, Make, Order, run
from tests.node.protocols.test_cbcast import core, data, give, sent_by

Rest = Mapping[int, Sequence[Message]]
SURVIVORS = frozenset({0, 3})


def make(kind: type[CbcastCore] = CbcastCore) -> Make:
    def made(membership: Membership, _: Random, memory: bytes) -> ViewCore:
        assert memory == b""
        return kind(membership=membership, parameters=CbcastParameters())

    return made


def erased(effects: Sequence[Effect]) -> list[tuple[int, int]]:
    return [(effect.member, effect.value) for effect in effects if isinstance(effect, Report)]


# Random histories.


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_views_end_as_they_must(first: int) -> None:
    for seed in range(first, first + 50):
        run(make(), seed, order=Order.CAUSAL, lags=seed % 2 == 0)


@pytest.mark.parametrize("first", range(0, 150, 50))
def test_views_end_as_they_must_when_causes_are_lost_with_their_senders(first: int) -> None:
    found = 0
    for seed in range(first, first + 50):
        group = run(make(), seed, order=Order.CAUSAL, skewed=True)
        reports = [report for place in group.places.values() for report in place.reports]
        found += sum(report.code == CbcastReport.ERASED for report in reports)
    assert found >= 3, "the scenario must bring about what it is there for"


class SkipsTheCut(CbcastCore):
    """Ends its view without the rest of the cut."""

    def close(self, rest: Rest, survivors: frozenset[int], now_ns: int) -> Closing:
        return super().close({}, survivors, now_ns)


class DeliversTheErased(CbcastCore):
    """Delivers messages without their cause at the end."""

    def close(self, rest: Rest, survivors: frozenset[int], now_ns: int) -> Closing:
        closing = super().close(rest, survivors, now_ns)
        late = [Deliver.of(message) for waiting in self._waiting for message in waiting]
        return Closing(effects=(*closing.effects, *late))


@pytest.mark.parametrize("kind", [NoVector, OnlyItsSender, NoRelease, SkipsTheCut, DeliversTheErased])
def test_each_rule_is_missed_by_some_history(kind: type[CbcastCore]) -> None:
    with pytest.raises(AssertionError):
        for seed in range(60):
            run(make(kind), seed, order=Order.CAUSAL, skewed=True)


def test_receipts_as_causes_are_slower_and_not_wrong() -> None:
    for seed in range(20):
        run(make(CountsReceipts), seed, order=Order.CAUSAL)


# One view.


def test_the_rest_of_the_cut_is_delivered_by_the_same_rules() -> None:
    one = core(2)
    assert give(one, data(1, 1, 1, 0, 0)) == []
    closing = one.close({0: [data(0, 1, 0, 0, 0), data(0, 2, 1, 2, 0)], 1: [data(1, 2, 1, 1, 0)]}, SURVIVORS, 0)
    assert delivered(list(closing.effects)) == [(0, 1), (1, 1), (1, 2), (0, 2)]
    assert (closing.handed_back, closing.memory, one.buffered) == ((), b"", 0)


def test_an_own_message_in_the_rest_was_delivered_when_it_was_sent() -> None:
    one = core(2)
    message = sent_by(one)
    assert one.close({2: [message]}, SURVIVORS, 0) == Closing()


def test_what_lacks_a_cause_is_erased_with_all_that_follows_in_its_stream() -> None:
    """Member 0 sent a message that only 1 received; 1 sent three after it; both are excluded."""
    one = core(2)
    assert give(one, data(1, 1, 0, 0, 0), data(1, 2, 1, 1, 0)) == [(1, 1)]
    closing = one.close({0: [], 1: [data(1, 3, 1, 2, 0), data(1, 4, 1, 3, 0)]}, frozenset({2}), 0)
    assert closing.effects == (Report(code=CbcastReport.ERASED, member=1, value=2),)


def test_erasure_spreads_to_what_depends_on_the_erased() -> None:
    one = core(3, members=(0, 1, 2, 3))
    assert give(one, data(1, 1, 1, 0, 0, 0), data(2, 1, 0, 1, 0, 0)) == []
    closing = one.close({}, SURVIVORS, 0)
    assert erased(closing.effects) == [(1, 1), (2, 1)]


def test_a_message_that_only_excluded_members_have_takes_what_depends_on_it_along() -> None:
    group = Group(make(), 4, 1, order=Order.CAUSAL)
    group.slow = {(0, 2), (0, 3)}
    group.submit(0)
    assert group.step(0, 1)
    group.submit(1)
    for target in (2, 3):
        assert group.step(1, target)
    group.submit(2)
    group.change(frozenset({2, 3}))
    assert [len(group.places[member].delivered) for member in (2, 3)] == [1, 1], "that of 2 alone"
    assert [erased(group.places[member].reports) for member in (2, 3)] == [[(1, 1)]] * 2


def test_it_is_kept_if_one_survivor_has_received_it() -> None:
    group = Group(make(), 4, 1, order=Order.CAUSAL)
    group.slow = {(0, 2), (0, 3)}
    group.submit(0)
    for source, target in ((0, 1), (0, 3)):
        assert group.step(source, target)
    group.submit(1)
    assert group.step(1, 2)
    group.change(frozenset({2, 3}))
    assert [len(group.places[member].delivered) for member in (2, 3)] == [2, 2]


@pytest.mark.parametrize(
    "wrong",
    [
        data(1, 3, 0, 2, 0),
        data(7, 1, 0, 0, 0),
        data(1, 2, 0, 0, 0),
        data(1, 2, 0, 1),
        Message(kind=Kind.LAMPORT_DATA, origin=1, incarnation=1, seq=2, words=(0, 1, 0)),
    ],
    ids=lambda message: f"{message.kind.name} {message.origin} {message.seq} {message.words}",
)
def test_what_would_be_refused_is_passed_over_alike_by_those_that_have_received_it_and_others(wrong: Message) -> None:
    stream = [data(1, 1, 0, 0, 0), wrong, data(1, 2, 0, 1, 0)]
    for received in range(len(stream) + 1):
        one = core(2)
        before = give(one, *stream[:received])
        closing = one.close({1: stream[received:]}, SURVIVORS, 0)
        assert before + delivered(list(closing.effects)) == [(1, 1), (1, 2)]


def test_a_submission_keeps_nothing_for_the_next_view() -> None:
    one = core(0)
    one.on_submit(Submission(payload=b"x"), 0)
    assert one.close({}, frozenset({0}), 0).handed_back == ()
