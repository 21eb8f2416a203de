"""The end of a view in Skeen's order: random histories of views, each case of `close`, and the need for each rule."""

from __future__ import annotations

from random import Random

import pytest

from node.core import Membership, Submission, ViewCore
from node.effects import Deliver, Report
from node.protocols.abcast import AbcastCore, AbcastParameters, AbcastReport
from node.wire import Flag, Kind, Message
from tests.mutants import agreed
from tests.node.by_hand import delivered, give
from tests.node.group.views import Group, Make, run
from tests.node.protocols.test_abcast import core, data, final, proposal, submit

SURVIVORS = frozenset({0, 1})
"""Member 2 is excluded."""
MANY = {"members": 5, "steps": 300, "skewed": True, "slow": (Kind.ABCAST_FINAL,)}
"""Final timestamps of excluded members often reach none of the survivors."""


def make(kind: type[AbcastCore] = AbcastCore, outstanding: int = 3) -> Make:
    def made(membership: Membership, _: Random, memory: bytes) -> ViewCore:
        assert memory == b""
        return kind(membership=membership, parameters=AbcastParameters(outstanding=outstanding))

    return made


# Random histories.


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_views_end_as_they_must(first: int) -> None:
    for seed in range(first, first + 50):
        run(make(), seed, lags=seed % 2 == 0)


@pytest.mark.parametrize("first", range(0, 100, 20))
def test_views_end_as_they_must_when_final_timestamps_are_lost_with_their_initiators(first: int) -> None:
    lost = 0
    for seed in range(first, first + 20):
        group = run(make(), seed, **MANY)  # type: ignore[arg-type]
        reports = [report for place in group.places.values() for report in place.reports]
        lost += sum(report.value for report in reports if report.code == AbcastReport.LOST)
    assert lost > 50


@pytest.mark.parametrize(
    ("kind", "seed", "more"),
    [
        (agreed.OvertakesPending, 1, {}),
        (agreed.DropsLeavers, 1, {}),
        (agreed.NeverJumps, 214, {}),
        (agreed.MixesTies, 1, {}),
        (agreed.SkipsTheCut, 1, {}),
        (agreed.HandsNothingBack, 0, {}),
        (agreed.TrustsTheExcluded, 15, MANY),
        (agreed.TellsNoCauses, 15, MANY),
    ],
)
def test_each_rule_is_missed_by_some_history(kind: type[AbcastCore], seed: int, more: dict[str, object]) -> None:
    run(make(), seed, **more)  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        run(make(kind), seed, **more)  # type: ignore[arg-type]


# The three cases.


def test_a_message_whose_final_is_in_the_cut_is_delivered_in_its_place() -> None:
    one = core()
    give(one, data(1, 1), data(2, 1), final(2, 1, 5))
    closing = one.close({1: [data(1, 2), final(1, 1, 4, 7)], 2: []}, SURVIVORS, 0)
    assert delivered(list(closing.effects)) == [(1, 1), (2, 1), (1, 2)]
    assert (closing.handed_back, closing.memory) == ((), b"")


def test_ties_are_broken_at_the_end_as_before() -> None:
    one = core()
    give(one, data(2, 1), data(1, 1))
    closing = one.close({1: [final(1, 1, 5)], 2: [final(2, 1, 5)]}, SURVIVORS, 0)
    assert delivered(list(closing.effects)) == [(1, 1), (2, 1)]


def test_an_own_message_without_final_is_handed_back_as_it_was_submitted() -> None:
    one = core()
    submission = Submission(
        payload=b"x", inner=Kind.TRIAL_1, flags=Flag.DUMMY.value, not_before=7, words=(1, 2), place=3
    )
    one.on_submit(submission, 0)
    submit(one, b"y")
    give(one, proposal(1, 1, 9), proposal(1, 2, 10))
    closing = one.close({}, SURVIVORS, 0)
    assert (closing.effects, closing.handed_back) == ((), (submission, Submission(payload=b"y")))


def test_a_message_of_another_survivor_without_final_is_left_to_its_initiator() -> None:
    one = core()
    give(one, data(1, 1), data(2, 1), final(2, 1, 9))
    closing = one.close({1: [], 2: []}, SURVIVORS, 0)
    assert delivered(list(closing.effects)) == [(2, 1)], "it is not in the way of what is final"
    assert closing.handed_back == ()


def test_a_message_of_an_excluded_member_without_final_is_dropped() -> None:
    one = core()
    give(one, data(2, 1), data(2, 2), data(1, 1), final(1, 1, 6))
    closing = one.close({2: [final(2, 1, 5), data(2, 3)]}, SURVIVORS, 0)
    assert delivered(list(closing.effects)) == [(2, 1), (1, 1)]
    assert closing.effects[-1] == Report(code=AbcastReport.LOST, member=2, value=2)


def test_a_final_that_only_its_initiator_has_is_in_the_cut_if_that_survives() -> None:
    """The initiator has delivered it; its own copy has not come back from the layer below, and no other has FINAL."""
    initiator, other = core(0), core(1)
    submit(initiator, b"x")
    give(other, data(0, 1, b"x"))
    assert delivered(give(initiator, proposal(1, 1, 4), proposal(2, 1, 3))) == [(0, 1)]
    cut = [data(0, 1, b"x"), final(0, 1, 4)]
    assert initiator.close({0: cut}, SURVIVORS, 0).effects == (), "not once more"
    assert other.close({0: cut[1:]}, SURVIVORS, 0).effects == (Deliver(payload=b"x", origin=0, incarnation=1, seq=1),)


def test_final_messages_that_waited_for_a_tentative_one_wait_no_longer() -> None:
    one = core(0)
    submit(one)
    give(one, proposal(1, 1, 4))
    give(one, data(1, 1), final(1, 1, 9))
    closing = one.close({}, SURVIVORS, 0)
    assert delivered(list(closing.effects)) == [(1, 1)]
    assert len(closing.handed_back) == 1


# Causes.


def open_group(seed: int = 1) -> Group:
    """Five members; messages of 0 from now on are received by 1 alone unless a test steps."""
    group = Group(make(), 5, seed)
    group.slow = {(0, target) for target in (2, 3, 4)}
    return group


def hand_over(group: Group, source: int, *targets: int) -> None:
    for target in targets:
        while group.step(source, target):
            pass


def finish(group: Group, initiator: int, first: int) -> None:
    """A message of this member gets all proposals; only `first` gets FINAL."""
    others = [member for member in group.view.members if member != initiator]
    group.submit(initiator)
    hand_over(group, initiator, *others)
    for member in others:
        hand_over(group, member, initiator)
    hand_over(group, initiator, first)


def payloads(group: Group, member: int) -> list[bytes]:
    return group.places[member].delivered


def test_a_final_that_only_excluded_members_have_takes_what_depends_on_it_along() -> None:
    """Scenario 7 of the group layer: the FINAL of 0 reaches 1, which delivers and sends; both end."""
    group = open_group()
    finish(group, 0, first=1)
    assert [len(payloads(group, member)) for member in range(5)] == [1, 1, 0, 0, 0]
    finish(group, 1, first=2)
    hand_over(group, 1, 3)
    group.change(frozenset({2, 3, 4}))
    for member in (2, 3, 4):
        place = group.places[member]
        assert place.delivered == []
        assert [(one.member, one.value) for one in place.reports if one.code == AbcastReport.LOST] == [(0, 1), (1, 1)]


def test_what_depends_on_it_is_kept_if_one_survivor_has_that_final() -> None:
    group = open_group()
    finish(group, 0, first=1)
    finish(group, 1, first=2)
    hand_over(group, 0, 4)
    assert [len(payloads(group, member)) for member in (2, 3, 4)] == [0, 0, 1], "it waits for FINAL of 0 or of 1"
    group.change(frozenset({2, 3, 4}))
    assert payloads(group, 2) == payloads(group, 3) == payloads(group, 4) == payloads(group, 1)[:2]


def test_what_depends_on_it_is_kept_if_its_initiator_survives() -> None:
    """Its own FINAL, which no other member has received, is in the cut then."""
    group = open_group()
    finish(group, 0, first=1)
    finish(group, 1, first=2)
    group.change(frozenset({0, 2, 3}))
    assert [len(payloads(group, member)) for member in (0, 2, 3)] == [2, 2, 2]


def test_all_later_messages_of_a_member_whose_message_is_dropped_are_dropped() -> None:
    one = core(0)
    wrong = 3 << 32 | 17
    closing = one.close({2: [data(2, 1, word=wrong), data(2, 2), final(2, 1, 6, 7)]}, SURVIVORS, 0)
    assert closing.effects == (Report(code=AbcastReport.LOST, member=2, value=2),)


# Hostile messages in the rest.


@pytest.mark.parametrize(
    "wrong",
    [
        data(2, 3),
        data(7, 1),
        final(2, 1, 5, 6),
        final(2, 1, 2**63),
        final(2, 1),
        proposal(2, 1, 5),
        Message(kind=Kind.ABCAST_DATA, origin=2, incarnation=1, seq=2),
        Message(kind=Kind.LAMPORT_DATA, origin=2, incarnation=1, seq=2),
    ],
    ids=lambda message: f"{message.kind.name} {message.origin} {message.seq} {message.words}",
)
def test_what_would_be_refused_is_passed_over_alike_by_those_that_have_received_it_and_others(wrong: Message) -> None:
    stream = [data(2, 1), wrong, final(2, 1, 3), data(2, 2), final(2, 2, 4)]
    told = []
    for received in range(len(stream) + 1):
        one = core(0)
        before = delivered(give(one, *stream[:received]))
        closing = one.close({2: stream[received:]}, SURVIVORS, 0)
        told.append(before + delivered(list(closing.effects)))
    assert told == [[(2, 1), (2, 2)]] * len(told)
