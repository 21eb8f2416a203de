"""The end of a view in CBCAST: the rest of the cut, and messages that are erased because a cause is lost."""

from __future__ import annotations

import pytest

from node.protocols.cbcast import CbcastParameters, CbcastReport, begin
from node.wire import Kind, Message
from tests.node.by_hand import delivered, reported
from tests.node.group.views import Group, Order, begun, ends
from tests.node.protocols.test_cbcast import core, data, give

SURVIVORS = frozenset({0, 3})
ERASED = CbcastReport.ERASED


def test_the_rest_of_the_cut_is_delivered_by_the_same_rules() -> None:
    one = core(2)
    assert give(one, data(1, 1, 1, 0, 0)) == []
    closing = one.close({0: [data(0, 1, 0, 0, 0), data(0, 2, 1, 2, 0)], 1: [data(1, 2, 1, 1, 0)]}, SURVIVORS, 0)
    assert delivered(closing.effects) == [(0, 1), (1, 1), (1, 2), (0, 2)]
    assert (closing.handed_back, closing.memory, one.buffered) == ((), b"", 0)


def test_what_lacks_a_cause_is_erased_with_all_that_follows_in_its_stream() -> None:
    """Member 0 sent a message that only 1 received; 1 sent three after it; both are excluded."""
    one = core(2)
    assert give(one, data(1, 1, 0, 0, 0), data(1, 2, 1, 1, 0)) == [(1, 1)]
    closing = one.close({0: [], 1: [data(1, 3, 1, 2, 0), data(1, 4, 1, 3, 0)]}, frozenset({2}), 0)
    assert reported(closing.effects) == [(ERASED, 1, 2)]


@pytest.mark.parametrize("is_heard", [False, True], ids=["only excluded members have it", "one survivor has it"])
def test_a_message_that_only_excluded_members_have_takes_what_depends_on_it_along(is_heard: bool) -> None:
    """Member 0 sends to 1, and perhaps to 3; then 1 sends to all, and 2 to itself; 0 and 1 are excluded."""
    group = Group(begun(begin, CbcastParameters()), 4, 1, order=Order.CAUSAL)
    group.slow = {(0, 2), (0, 3)}
    group.submit(0)
    assert group.step(0, 1)
    assert not is_heard or group.step(0, 3)
    group.submit(1)
    assert group.step(1, 2) and group.step(1, 3)
    group.submit(2)
    group.change(frozenset({2, 3}))
    for member in (2, 3):
        place = group.places[member]
        assert len(place.delivered) == (3 if is_heard else 1), "that of 2 alone"
        assert reported(place.reports) == ([] if is_heard else [(ERASED, 1, 1)])


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
    assert ends(lambda: core(2), stream, SURVIVORS) == {(((1, 1), (1, 2)), b"")}
