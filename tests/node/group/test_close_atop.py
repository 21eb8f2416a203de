"""The end of a view in ATOP and ATOP/MBS: random views, and single cuts by hand."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, TypeAlias

import pytest

from node.core import Closing, Membership, Submission
from node.effects import Multicast, Report
from node.errors import RemoteError
from node.protocols.atop import AtopCore, AtopMbsCore, AtopMbsParameters, AtopParameters, AtopReport
from node.protocols.atop.core import WINDOW
from node.protocols.atop.policy import first_weights
from node.protocols.prefix import Prefix
from node.wire import Kind, Message
from tests.node.by_hand import delivered, dummy, publication
from tests.node.group.views import Group, Make, run

MILLISECOND = 1_000_000
MEMBERS = (0, 1, 2, 3)
Rest: TypeAlias = dict[int, list[Message]]


def make_of(seed: int, *, brokered: bool) -> Make:
    """Builder with parameters under which much happens in a view: windows shorter than it, few or many dummies."""
    rng = Random(f"parameters/{seed}")
    common: dict[str, Any] = {
        "window_ns": rng.choice((3, 10, 50)) * MILLISECOND,
        "sub_window_ns": rng.choice((1, 3, 10)) * MILLISECOND,
        "dummy_after_ns": rng.choice((1, 3, 20)) * MILLISECOND,
        "threshold": rng.choice((0, 100)),
        "outstanding": rng.choice((2, 64)),
        "draws": rng.choice(("random", "smooth")),
        "ahead": rng.random() < 0.6,
    }
    if brokered:
        mbs = AtopMbsParameters(dm_ns=rng.choice((0, 1, 20)) * MILLISECOND, **common)
        return lambda us, _, memory: AtopMbsCore(membership=us, parameters=mbs, memory=memory)
    plain = AtopParameters(least_dummies=rng.choice((0, 1, 3)), **common)
    return lambda us, _, memory: AtopCore(membership=us, parameters=plain, memory=memory)


def play(seed: int, *, brokered: bool) -> Group:
    try:
        make = make_of(seed, brokered=brokered)
        return run(make, seed, lags=seed % 2 == 0, skewed=seed % 4 < 2, holds_excluded=not brokered)
    except Exception as error:
        error.add_note(f"to see it again: play({seed}, brokered={brokered})")
        raise


@pytest.mark.parametrize("brokered", [False, True], ids=["atop", "atop_mbs"])
def test_a_view_may_end_anywhere(brokered: bool) -> None:
    reported: Counter[int] = Counter()
    sent: Counter[Kind] = Counter()
    for seed in range(160):
        group = play(seed, brokered=brokered)
        reported.update(report.code for place in group.places.values() for report in place.reports)
        sent.update(message.kind for stream in group.streams.values() for message in stream)
    assert reported[AtopReport.DROPPED] > 10
    assert reported[AtopReport.ADOPTED] > 300
    if brokered:
        assert min(sent[kind] for kind in (Kind.MBS_BROKERED, Kind.MBS_FILL)) > 10, sent


# Cuts by hand. Draws are round-robin: 0, 1, 2, 3.


def core(member: int, *, brokered: bool = False, memory: bytes = b"") -> AtopCore:
    us = Membership(member=member, members=MEMBERS)
    if brokered:
        return AtopMbsCore(membership=us, parameters=AtopMbsParameters(draws="smooth"), memory=memory)
    return AtopCore(membership=us, parameters=AtopParameters(draws="smooth"), memory=memory)


def data(origin: int, number: int, prefix: Prefix | None = None, *, distribution: int = 0) -> Message:
    words = (distribution, prefix.word if prefix is not None else 0)
    return Message(kind=Kind.ATOP_DATA, origin=origin, incarnation=1, seq=number, words=words)


def brokered_data(origin: int, number: int, donor: int, slot: int) -> Message:
    words = (0, 0, donor, slot)
    return Message(kind=Kind.MBS_BROKERED, origin=origin, incarnation=1, seq=number, words=words)


def having_delivered(*origins: int) -> Prefix:
    prefix = Prefix()
    for place, origin in enumerate(origins):
        prefix.delivered(origin, place)
    return prefix


def give(one: AtopCore, *messages: Message) -> list[tuple[int, int]]:
    return delivered([effect for message in messages for effect in one.on_message(message, message.origin, 0)])


def dropped(closing: Closing) -> list[tuple[int, int]]:
    codes = [effect for effect in closing.effects if isinstance(effect, Report)]
    assert all(report.code == AtopReport.DROPPED for report in codes)
    return [(report.member, report.value) for report in codes]


def close(one: AtopCore, survivors: tuple[int, ...], *rest: Message) -> Closing:
    streams: Rest = {member: [] for member in MEMBERS}
    for message in rest:
        streams[message.origin].append(message)
    return one.close(streams, frozenset(survivors), 0)


def test_all_streams_end_at_the_cut() -> None:
    """No member waits for a draw of a stream that has ended, not even of a survivor's."""
    one = core(3)
    assert give(one, data(1, 1), data(1, 2), data(2, 1)) == []
    closing = close(one, (1, 2, 3), data(2, 2), dummy(0, 1))
    assert delivered(closing.effects) == [(1, 1), (2, 1), (1, 2), (2, 2)]


def test_a_message_whose_cause_died_with_its_sender_is_dropped() -> None:
    """Members 0 and 1 have ended. 1 had delivered 0's message, which no survivor has, when it sent its own."""
    lost = data(1, 1, having_delivered(0))
    for member, other in ((2, 3), (3, 2)):
        one = core(member)
        give(one, data(other, 1))
        closing = close(one, (2, 3), lost, data(1, 2), data(2, 1), data(3, 1))
        assert dropped(closing) == [(1, 1), (1, 2)], "what comes later in its stream, too"
        assert delivered(closing.effects) == [(other, 1)], "our own stream is what we have submitted"


def test_a_message_of_an_excluded_sender_whose_causes_are_there_is_delivered() -> None:
    one = core(2)
    assert give(one, data(0, 1), data(1, 1, having_delivered(0))) == [(0, 1), (1, 1)]
    later = data(1, 2, having_delivered(0, 1, 3))
    closing = close(one, (2, 3), data(3, 1), later)
    assert delivered(closing.effects) == [(3, 1), (1, 2)]


def test_a_survivor_is_believed() -> None:
    """All its deliveries are delivered."""
    one = core(2)
    closing = close(one, (2, 3), data(3, 1, having_delivered(0, 1)))
    assert delivered(closing.effects) == [(3, 1)]


def test_all_survivors_go_on_where_they_stand() -> None:
    messages = [data(0, 1), data(1, 1), data(2, 1), dummy(3, 1), data(0, 2), data(1, 2)]
    ahead, behind = core(3), core(3)
    ahead.on_submit(Submission(payload=b""), 0)
    behind.on_submit(Submission(payload=b""), 0)
    messages.remove(dummy(3, 1))
    before = give(ahead, *messages)
    assert before == [(0, 1), (1, 1), (2, 1), (3, 1), (0, 2), (1, 2)]
    closings = [close(ahead, (1, 2, 3)), close(behind, (1, 2, 3), *messages)]
    assert before + delivered(closings[0].effects) == delivered(closings[1].effects)
    assert closings[0].memory == closings[1].memory


@pytest.mark.parametrize("brokered", [False, True])
def test_nothing_is_handed_back_since_the_cut_holds_all_that_a_survivor_has_said(brokered: bool) -> None:
    one = core(2, brokered=brokered)
    said = [
        effect.message
        for _ in range(3)
        for effect in one.on_submit(Submission(payload=b""), 0)
        if isinstance(effect, Multicast)
    ]
    closing = close(one, (1, 2), *said)
    assert delivered(closing.effects) == [(2, 1), (2, 2), (2, 3)]
    assert closing.handed_back == ()


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
    again = AtopCore(
        membership=Membership(member=1, members=(1, 2)), parameters=AtopParameters(draws="smooth"), memory=memory
    )
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
    for closing in (first, second):
        dropped = [one for one in closing.effects if isinstance(one, Report) and one.code == AtopReport.DROPPED]
        assert [(one.member, one.value) for one in dropped] == [(3, 1), (3, 2)]
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
        one._say_dummy(2, AtopReport.GAP_DUMMY, 0, [])
    said.remove(dummy(1, 1, 2))
    before = give(used, *said)
    assert before == [(3, 1), (3, 2), (2, 2)]
    assert before + delivered(close(used, (1, 2, 3)).effects) == delivered(close(unused, (1, 2, 3), *said).effects)


def test_a_core_that_held_numbers_closes_without_sending_them() -> None:
    one = core(1, brokered=True)
    assert isinstance(one, AtopMbsCore)
    grant = Message(kind=Kind.MBS_GRANT, origin=0, incarnation=1, words=(0, 2 << 16 | 3, 1))
    give(one, grant)
    assert one.granted == 3
    assert close(one, (1, 2, 3)).effects == ()


# Memory.


@pytest.mark.parametrize("memory", [b"\0", bytes(12), b"\0\1\0\0\0\1" * 2, bytes(5)], ids=bytes.hex)
@pytest.mark.parametrize("brokered", [False, True])
def test_a_hostile_memory_is_refused(memory: bytes, brokered: bool) -> None:
    with pytest.raises(RemoteError, match="MALFORMED"):
        core(1, brokered=brokered, memory=memory)
