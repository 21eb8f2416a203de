"""The end of a view in Skeen's order: each case of `close`, and causes that are lost."""

from __future__ import annotations

import pytest

from node.core import Submission
from node.effects import Report
from node.protocols.abcast import AbcastParameters, AbcastReport, begin
from node.wire import Flag, Kind, Message
from tests.node.by_hand import delivered, give, reported, submit
from tests.node.group.views import Group, begun, ends
from tests.node.protocols.test_abcast import core, data, final, proposal

SURVIVORS = frozenset({0, 1})
"""Member 2 is excluded."""


# The three cases.


def test_a_message_whose_final_is_in_the_cut_is_delivered_in_its_place() -> None:
    one = core()
    give(one, data(1, 1), data(2, 1), final(2, 1, 5))
    closing = one.close({1: [data(1, 2), final(1, 1, 4, 7)], 2: []}, SURVIVORS, 0)
    assert delivered(closing.effects) == [(1, 1), (2, 1), (1, 2)]
    assert (closing.handed_back, closing.memory) == ((), b"")


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


def test_a_message_of_an_excluded_member_without_final_is_dropped() -> None:
    one = core()
    give(one, data(2, 1), data(2, 2), data(1, 1), final(1, 1, 6))
    closing = one.close({2: [final(2, 1, 5), data(2, 3)]}, SURVIVORS, 0)
    assert delivered(closing.effects) == [(2, 1), (1, 1)]
    assert closing.effects[-1] == Report(code=AbcastReport.LOST, member=2, value=2)


# Causes.


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


@pytest.mark.parametrize(
    ("heard", "survivors", "expected"),
    [
        pytest.param((), (2, 3, 4), 0, id="only excluded members have the FINAL of 0"),
        pytest.param((4,), (2, 3, 4), 2, id="one survivor has it"),
        pytest.param((), (0, 2, 3), 2, id="its initiator survives: it is in the cut"),
    ],
)
def test_a_final_that_only_excluded_members_have_takes_what_depends_on_it_along(
    heard: tuple[int, ...], survivors: tuple[int, ...], expected: int
) -> None:
    """Scenario 7 of the group layer: the FINAL of 0 reaches 1, which delivers and sends; both end."""
    group = Group(begun(begin, AbcastParameters(outstanding=3)), 5, 1)
    group.slow = {(0, target) for target in (2, 3, 4)}
    finish(group, 0, first=1)
    assert [len(group.places[member].delivered) for member in range(5)] == [1, 1, 0, 0, 0]
    finish(group, 1, first=2)
    hand_over(group, 1, 3)
    hand_over(group, 0, *heard)
    group.change(frozenset(survivors))
    lost = [] if expected else [(0, 1), (1, 1)]
    for member in survivors:
        place = group.places[member]
        assert place.delivered == group.places[1].delivered[:expected]
        assert [
            (member, number) for code, member, number in reported(place.reports) if code == AbcastReport.LOST
        ] == lost


def test_all_later_messages_of_a_member_whose_message_is_dropped_are_dropped() -> None:
    wrong = 3 << 32 | 17
    closing = core().close({2: [data(2, 1, word=wrong), data(2, 2), final(2, 1, 6, 7)]}, SURVIVORS, 0)
    assert closing.effects == (Report(code=AbcastReport.LOST, member=2, value=2),)


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
    assert ends(core, stream, SURVIVORS) == {(((2, 1), (2, 2)), b"")}
