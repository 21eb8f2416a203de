"""Mutual exclusion by Ricart and Agrawala in one view: the rules of the paper, and its count of messages.

Random histories of views are in tests/node/group/test_close_mutex.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from analysis.checks.properties import Property
from node.clocks import MAX_TIMESTAMP
from node.core import Core, Membership, Submission
from node.effects import Deliver, Multicast, Report, Send, SetTimer
from node.errors import DropReason, RemoteError
from node.group.view import MAX_VIEW
from node.protocols.mutex import HOLD, Kept, Phase, Request, RicartAgrawalaCore
from node.protocols.mutex.section import MEMORY, MOST_GRANTS
from node.trace import MutexReport, Notice
from node.wire import Kind, Message
from testbed.fuzz.explore import OverIdealChannels, Scope, explore
from tests.mutants.recorded import Recorded
from tests.node.by_hand import give, multicasts
from tests.node.cluster import MILLISECOND
from tests.node.protocols.test_mutex import (
    acknowledge,
    build,
    check_conditions,
    granted,
    kinds,
    mutex_of,
    release,
    request,
    want,
)

PAIR = frozenset({0, 1})
core = partial(mutex_of, RicartAgrawalaCore)


def reply(origin: int, timestamp: int, grants: int = 0) -> Message:
    return Message(kind=Kind.MUTEX_REPLY, origin=origin, incarnation=1, seq=timestamp, flags=4, words=(grants,))


def replied(effects: list[Any]) -> list[int]:
    """Targets of the REPLY messages."""
    return [effect.target for effect in effects if isinstance(effect, Send)]


# Rules.


def test_a_request_with_a_greater_number_than_all_seen_goes_to_every_other_node() -> None:
    one = core(0)
    give(one, request(1, 7))
    assert want(one) == [Multicast(message=request(0, 10))]
    assert (one.phase, one.is_idle, one.can_submit) == (Phase.WAITING, False, False)


def test_a_node_that_neither_wants_nor_holds_replies_at_once() -> None:
    assert give(core(1), request(0, 7)) == [Send(target=0, message=reply(1, 9))]


def test_it_enters_when_all_others_have_replied() -> None:
    one = core(0, hold_ns=100)
    want(one, b"mine")
    assert granted(give(one, reply(1, 5))) == []
    effects = give(one, reply(2, 6))
    fence = 1 << 32 | 1
    assert effects == [
        Deliver(payload=b"mine", origin=0, incarnation=1, seq=fence),
        Report(code=MutexReport.FENCE, member=0, value=fence),
        SetTimer(timer=HOLD, at_ns=100),
    ]
    assert one.phase is Phase.HOLDING


def test_inside_it_defers_its_replies_until_it_leaves() -> None:
    one = core(0)
    want(one)
    give(one, reply(1, 5), reply(2, 6))
    assert replied(give(one, request(2, 8), request(1, 9))) == []
    effects = one.on_timer(HOLD, 0)
    assert effects[0] == Report(code=Notice.LEFT, member=0, value=1)
    assert replied(effects) == [2, 1], "the earlier request first"
    assert [effect.message.words for effect in effects if isinstance(effect, Send)] == [(1,)] * 2, "one grant is known"
    assert (one.is_idle, one.buffered) == (True, 0)


def test_an_earlier_request_of_its_own_goes_first_and_a_later_one_does_not_defer() -> None:
    lower, higher, later = core(0), core(1), core(0)
    want(lower)
    assert replied(give(lower, request(1, 1))) == [], "of equal numbers the lower node's is earlier"
    give(lower, reply(1, 5), reply(2, 6))
    assert replied(lower.on_timer(HOLD, 0)) == [1]
    want(higher)
    assert replied(give(higher, request(0, 1))) == [0]
    want(later, not_before=10)
    assert replied(give(later, request(1, 10))) == [1]


def test_one_request_waits_and_the_next_may_be_made_inside() -> None:
    one = core(0)
    want(one, b"first")
    assert one.can_submit is False
    give(one, reply(1, 5), reply(2, 6), request(1, 8))
    want(one, b"second")
    give(one, reply(2, 30), request(2, 31))
    effects = one.on_timer(HOLD, 0)
    assert replied(effects) == [1], "8 comes before our second request, 31 after it"
    assert granted(effects) == []
    effects = give(one, reply(1, 40, 2))
    assert granted(effects) == [(1, 3)], "member 1 knew two grants"


def test_initially_the_lowest_node_is_inside() -> None:
    holder, other = (core(member, initially_granted=True, hold_ns=100) for member in (0, 1))
    assert holder.on_start(5) == [Report(code=MutexReport.HOLDS, member=0), SetTimer(timer=HOLD, at_ns=105)]
    assert other.on_start(5) == []
    assert replied(give(holder, request(1, 3))) == []
    left, answer = holder.on_timer(HOLD, 105)
    assert left == Report(code=Notice.LEFT, member=0, value=0)
    assert replied([answer]) == [1]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (request(1, 2), DropReason.MALFORMED),
        (request(1, 0), DropReason.MALFORMED),
        (request(1, MAX_TIMESTAMP + 1), DropReason.MALFORMED),
        (request(1, 9, 1), DropReason.MALFORMED),
        (request(2, 9, 1), DropReason.MALFORMED),
        (request(2, 9, 0), DropReason.MALFORMED),
        (reply(1, 5), DropReason.MALFORMED),
        (reply(2, 9, MOST_GRANTS), DropReason.MALFORMED),
        (Message(kind=Kind.MUTEX_REPLY, origin=2, incarnation=1, seq=9), DropReason.MALFORMED),
        (reply(1, 9), DropReason.UNEXPECTED),
        (acknowledge(2, 9), DropReason.UNEXPECTED),
        (release(1, 9, of=5), DropReason.UNEXPECTED),
    ],
)
def test_what_is_wrong_is_refused_before_anything_changes(message: Message, reason: DropReason) -> None:
    one = core(0)
    want(one)
    give(one, request(1, 2), reply(1, 5))
    before = (one.timestamp, one.buffered, one.phase)
    assert give(one, message) == [Report(code=reason, member=message.origin)]
    assert (one.timestamp, one.buffered, one.phase) == before
    assert give(core(0), reply(1, 5)) == [Report(code=DropReason.UNEXPECTED, member=1)], "it was not asked for"


def test_no_reply_uses_up_the_fences_of_a_view() -> None:
    one = core(0)
    want(one)
    fences = granted(give(one, reply(1, 5, MOST_GRANTS - 1), reply(2, 6, 3)))
    assert fences == [(1, MOST_GRANTS)], "the greatest that the replies name, and one"
    assert not one.can_submit, "the next fence would be one of the next view"


# End of a view.


def test_a_member_that_is_inside_goes_on_and_defers_the_requests_of_the_next_view() -> None:
    kept = Kept()
    one = core(0, kept=kept)
    want(one, b"mine")
    give(one, reply(1, 5), reply(2, 6), request(1, 9))
    closing = one.close({2: [request(2, 20)]}, PAIR, 0)
    assert (closing.effects, closing.handed_back) == ((), ()), "neither delivered nor handed back"
    later = core(0, members=(0, 1), kept=kept, memory=closing.memory, hold_ns=100)
    assert later.on_start(7) == [SetTimer(timer=HOLD, at_ns=107)]
    assert (later.phase, later.timestamp) == (Phase.HOLDING, 20)
    assert replied(give(later, request(1, 21, 9))) == []
    effects = later.on_timer(HOLD, 107)
    assert effects[0] == Report(code=Notice.LEFT, member=0, value=1)
    assert replied(effects) == [1]


def test_a_request_keeps_its_place_and_counts_before_it_is_renewed() -> None:
    kept = Kept()
    one = core(0, kept=kept)
    want(one, b"mine", not_before=3)
    give(one, reply(1, 5))
    closing = one.close({1: [request(1, 9)]}, PAIR, 0)
    assert closing.handed_back == (Submission(payload=b"mine", not_before=3),)
    later = core(0, members=(0, 1), kept=kept, memory=closing.memory)
    assert (later.phase, later.is_idle) == (Phase.RELEASED, False)
    assert replied(give(later, request(1, 10, 9))) == [], "4 comes before 9"
    (renewed,) = multicasts(later.on_submit(closing.handed_back[0], 0))
    assert renewed.words == (4,)
    assert granted(give(later, reply(1, 30))) == [(2, 1)], "replies of the old view are void"
    assert replied(later.on_timer(HOLD, 0)) == [1]


def test_a_request_that_no_host_has_submitted_again_keeps_its_place_over_the_next_end() -> None:
    kept = Kept(wanted=Request(4, 0))
    one = core(0, kept=kept, memory=MEMORY.pack(2, 9))
    closing = one.close({}, PAIR, 0)
    assert closing.handed_back == ()
    assert kept.wanted == Request(4, 0)


def test_the_memory_is_the_same_whatever_was_received_and_wanted() -> None:
    """Also with a refused request, and with replies in the cut, which must not be there."""
    stream = [request(2, 5), request(2, 5), request(2, 9, 1), reply(2, 50), request(2, 20)]
    memories = set()
    for received in range(len(stream) + 1):
        wanting, other = core(0), core(1)
        want(wanting)
        for one, rest in ((wanting, []), (other, [request(0, 1)])):
            give(one, *stream[:received])
            memories.add(one.close({0: rest, 2: stream[received:]}, PAIR, 0).memory)
    assert memories == {MEMORY.pack(2, 20)}


def test_what_is_kept_goes_to_the_next_core_of_one_incarnation_alone() -> None:
    kept = Kept(holding=Request(3, 0), left=4)
    one = core(0, kept=kept, memory=MEMORY.pack(2, 9))
    assert one.on_timer(HOLD, 0) == [Report(code=Notice.LEFT, member=0, value=5)]
    assert kept == Kept(holding=Request(3, 0), left=4), "only the end of the view writes it"
    one.close({}, PAIR, 0)
    assert kept == Kept(left=5)


@pytest.mark.parametrize(
    "memory",
    [
        b"x",
        MEMORY.pack(1, 9),
        MEMORY.pack(MAX_VIEW + 1, 9),
        MEMORY.pack(2, MAX_TIMESTAMP + 1),
        MEMORY.pack(2, 9) + b"x",
    ],
)
def test_a_memory_that_cannot_be_is_refused(memory: bytes) -> None:
    with pytest.raises(RemoteError, match="MALFORMED"):
        core(memory=memory)


def test_every_order_of_a_few_messages_keeps_the_promises() -> None:
    def alone(us: Membership) -> Core:
        return OverIdealChannels(us, core(us.member, members=us.members))

    promises = (Property.MUTUAL_EXCLUSION, Property.GRANT_ORDER, Property.SERVICE)
    for submissions in ((2, 2), (1, 1, 0)):
        explored = explore(alone, scope=Scope(submissions=submissions), promises=promises)
        assert (explored.cut_off, explored.violation) == ("", None)
        assert explored.states > 100


# Over the reliable layer.


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_an_entry_costs_twice_n_minus_1_messages(count: int) -> None:
    """Alone, and when all request at once and repeatedly."""
    cluster = Recorded(count, build(algorithm="ricart_agrawala", hold_ns=MILLISECOND))
    cluster.submit(1)
    check_conditions(cluster)
    assert kinds(cluster) == {Kind.MUTEX_REQUEST: count - 1, Kind.MUTEX_REPLY: count - 1}
    for member in cluster.members:
        cluster.submit(member, 3)
    check_conditions(cluster)
    entries = 1 + 3 * count
    assert kinds(cluster) == dict.fromkeys((Kind.MUTEX_REQUEST, Kind.MUTEX_REPLY), entries * (count - 1))
