"""The end of a view in ATOP and ATOP/MBS, by hand. Draws are round-robin: 0, 1, 2, 3."""

from __future__ import annotations

import pytest

from node.core import Closing, Membership
from node.errors import RemoteError
from node.protocols.atop import AtopCore, AtopMbsCore, AtopMbsParameters, AtopParameters, AtopReport
from node.protocols.atop.core import WINDOW
from node.protocols.atop.policy import first_weights
from node.wire import Kind, Message
from tests.node import by_hand
from tests.node.by_hand import after, delivered, dummy, publication

MEMBERS = (0, 1, 2, 3)
BROKERED = pytest.mark.parametrize("brokered", [False, True], ids=["atop", "atop_mbs"])


def core(member: int, *, members: tuple[int, ...] = MEMBERS, brokered: bool = False, memory: bytes = b"") -> AtopCore:
    us = Membership(member=member, members=members)
    if brokered:
        return AtopMbsCore(membership=us, parameters=AtopMbsParameters(draws="smooth"), memory=memory)
    return AtopCore(membership=us, parameters=AtopParameters(draws="smooth"), memory=memory)


def data(origin: int, number: int, *had: tuple[int, int], distribution: int = 0) -> Message:
    """A data message. `had`: earlier deliveries of its sender."""
    words = (distribution, after(*had) if had else 0)
    return Message(kind=Kind.ATOP_DATA, origin=origin, incarnation=1, seq=number, words=words)


def brokered_data(origin: int, number: int, donor: int, slot: int) -> Message:
    words = (0, 0, donor, slot)
    return Message(kind=Kind.MBS_BROKERED, origin=origin, incarnation=1, seq=number, words=words)


def give(one: AtopCore, *messages: Message) -> list[tuple[int, int]]:
    return delivered(by_hand.give(one, *messages))


def dropped(closing: Closing) -> list[tuple[int, int]]:
    return by_hand.dropped(closing, AtopReport.DROPPED)


def close(one: AtopCore, survivors: tuple[int, ...], *rest: Message) -> Closing:
    return by_hand.close(one, *rest, survivors=survivors)


def test_all_streams_end_at_the_cut() -> None:
    """No member waits for a draw of a stream that has ended, not even of a survivor's."""
    one = core(3)
    assert give(one, data(1, 1), data(1, 2), data(2, 1)) == []
    closing = close(one, (1, 2, 3), data(2, 2), dummy(0, 1))
    assert delivered(closing.effects) == [(1, 1), (2, 1), (1, 2), (2, 2)]


def test_a_message_whose_cause_died_with_its_sender_is_dropped() -> None:
    """Members 0 and 1 have ended. 1 had delivered 0's message, which no survivor has, when it sent its own."""
    lost = data(1, 1, (0, 0))
    for member, other in ((2, 3), (3, 2)):
        one = core(member)
        give(one, data(other, 1))
        closing = close(one, (2, 3), lost, data(1, 2), data(2, 1), data(3, 1))
        assert dropped(closing) == [(1, 1), (1, 2)], "what comes later in its stream, too"
        assert delivered(closing.effects) == [(other, 1)], "our own stream is what we have submitted"


def test_a_message_of_an_excluded_sender_whose_causes_are_there_is_delivered() -> None:
    one = core(2)
    assert give(one, data(0, 1), data(1, 1, (0, 0))) == [(0, 1), (1, 1)]
    later = data(1, 2, (0, 0), (1, 1), (3, 2))
    closing = close(one, (2, 3), data(3, 1), later)
    assert delivered(closing.effects) == [(3, 1), (1, 2)]


def test_a_survivor_is_believed() -> None:
    """All its deliveries are delivered."""
    closing = close(core(2), (2, 3), data(3, 1, (0, 0), (1, 1)))
    assert delivered(closing.effects) == [(3, 1)]


def test_what_cannot_be_is_passed_over() -> None:
    one = core(2)
    wrong = [
        data(1, 7),
        data(1, 0),
        Message(kind=Kind.RELIABLE_DATA, origin=1, incarnation=1, seq=1),
        Message(kind=Kind.ATOP_DATA, origin=1, incarnation=1, seq=1),
    ]
    closing = close(one, (1, 2), *wrong, data(1, 1))
    assert delivered(closing.effects) == [(1, 1)]


# Distributions.


def test_the_first_weights_of_the_next_view_are_those_published_last_in_the_cut() -> None:
    """Not those counted by a member: members have received different messages."""
    survivors = (1, 2)
    first, second = core(1), core(2)
    give(first, publication(1, 5, 3, 2, 0))
    give(second, data(3, 1), data(3, 2))
    second.on_timer(WINDOW, 0)
    one = close(first, survivors, data(3, 1), data(3, 2), publication(2, 9, 7, 0, 4))
    other = close(second, survivors, publication(1, 5, 3, 2, 0), publication(2, 9, 7, 0, 4))
    assert one.memory == other.memory
    assert first_weights(one.memory, (1, 2, 3)) == {1: 7, 2: 0, 3: 7}, "3 is another incarnation: a joiner"


def test_a_view_goes_on_with_the_weights_it_began_with_while_none_are_published() -> None:
    memory = close(core(1), (1, 2), publication(1, 9, 7, 3, 4)).memory
    again = core(1, members=(1, 2), memory=memory)
    assert again.weights == {1: 7, 2: 3}
    assert first_weights(again.close({}, frozenset((1, 2)), 0).memory, (1, 2)) == {1: 7, 2: 3}


def test_the_next_view_has_a_bookkeeper_of_its_own() -> None:
    us = Membership(member=2, members=(1, 2, 3), ranks=(2, 3, 1))
    assert AtopCore(membership=us, parameters=AtopParameters()).is_bookkeeper


def test_distributions_in_the_cut_follow_each_other() -> None:
    one = core(2)
    give(one, data(3, 1), publication(1, 1, 1, 1, 1))
    closing = close(one, (1, 2, 3), data(1, 1, distribution=1), data(0, 1, distribution=1), data(3, 1, distribution=1))
    assert delivered(closing.effects) == [(3, 1), (0, 1), (1, 1), (3, 1)]


def test_messages_under_a_distribution_that_no_survivor_has_heard_of_are_dropped() -> None:
    """The bookkeeper and member 3, which alone have adopted it, are excluded: only they know its order."""
    one, other = core(1), core(2)
    under_it = [data(3, 1), data(3, 1, distribution=1), data(3, 2, distribution=1)]
    give(one, data(2, 1))
    give(other, *under_it)
    first = close(one, (1, 2), *under_it)
    second = close(other, (1, 2), data(1, 1))
    assert delivered(first.effects) == [(2, 1), (3, 1)]
    assert delivered(second.effects) == [(1, 1), (3, 1)]
    assert dropped(first) == dropped(second) == [(3, 1), (3, 2)]
    assert first.memory == second.memory


# Broker.


def test_at_the_end_numbers_that_were_given_away_and_not_used_use_up_their_draws() -> None:
    one = core(1, brokered=True)
    give(one, data(2, 5), data(3, 1))
    assert delivered(close(one, (1, 2, 3)).effects) == [(3, 1), (2, 5)]


def test_a_slot_that_one_survivor_has_used_is_used_by_all() -> None:
    """Member 2 had given its number 1 to 3, whose message is drawn there."""
    said = [dummy(0, 1, 2), dummy(1, 1, 2), brokered_data(3, 1, 2, 1), data(3, 2), data(2, 2)]
    used, unused = core(1, brokered=True), core(1, brokered=True)
    for one in (used, unused):
        assert isinstance(one, AtopMbsCore)
        one._say_dummy(2, AtopReport.GAP_DUMMY, 0, [])
    said.remove(dummy(1, 1, 2))
    before = give(used, *said)
    assert before == [(3, 1), (3, 2), (2, 2)]
    assert before + delivered(close(used, (1, 2, 3)).effects) == delivered(close(unused, (1, 2, 3), *said).effects)


def test_a_core_that_held_numbers_closes_without_sending_them() -> None:
    one = core(1, brokered=True)
    assert isinstance(one, AtopMbsCore)
    give(one, Message(kind=Kind.MBS_GRANT, origin=0, incarnation=1, words=(0, 2 << 16 | 3, 1)))
    assert one.granted == 3
    assert close(one, (1, 2, 3)).effects == ()


# Memory.


@pytest.mark.parametrize("memory", [b"\0", bytes(12), b"\0\1\0\0\0\1" * 2, bytes(5)], ids=bytes.hex)
@BROKERED
def test_a_hostile_memory_is_refused(memory: bytes, brokered: bool) -> None:
    with pytest.raises(RemoteError, match="MALFORMED"):
        core(1, brokered=brokered, memory=memory)
