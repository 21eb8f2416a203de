"""Mutual exclusion by Maekawa's quorums in one view: quorums, rules, the opening of a view, and the count of messages.

Random histories of views are in tests/node/group/test_close_mutex.py.
"""

from __future__ import annotations

from functools import partial
from itertools import combinations
from math import isqrt
from typing import Any

import pytest

from analysis.checks.properties import Property
from node.clocks import MAX_TIMESTAMP
from node.core import Core, Membership, Submission
from node.effects import Effect, Multicast, Report, Send, SetTimer
from node.errors import DropReason, RemoteError
from node.protocols.mutex import HOLD, Kept, MaekawaCore, Phase, Request
from node.protocols.mutex.maekawa import quorum_of
from node.protocols.mutex.section import MEMORY, MOST_GRANTS
from node.registry import PROTOCOLS
from node.trace import MutexReport, Notice
from node.wire import Kind, Message
from testbed.fuzz.explore import Exploration, OverIdealChannels, Scope, explore
from tests.mutants.recorded import Recorded
from tests.node.by_hand import give
from tests.node.cluster import MILLISECOND, kinds_above
from tests.node.protocols.test_mutex import build, check_conditions, granted, mutex_of, request, want

MEMBERS = (0, 1, 2, 3)
"""Two rows of two: 0 and 3 have the arbiters 1 and 2 in common."""
REPLY, FAILED, INQUIRE = Kind.MUTEX_REPLY, Kind.MUTEX_FAILED, Kind.MUTEX_INQUIRE
RELINQUISH, RELEASE, OUTSIDE = Kind.MUTEX_RELINQUISH, Kind.MUTEX_RELEASE, Kind.MUTEX_OUTSIDE
LATER = MEMORY.pack(2, 9)
"""The memory of a second view: its timestamps begin after 9."""
core = partial(mutex_of, MaekawaCore, members=MEMBERS)


def said(kind: Kind, origin: int, timestamp: int, *words: int) -> Message:
    return Message(kind=kind, origin=origin, incarnation=1, seq=timestamp, flags=4, words=words)


def told(effects: list[Effect]) -> list[tuple[Kind, int]]:
    """(kind, target) of each unicast."""
    return [(effect.message.kind, effect.target) for effect in effects if isinstance(effect, Send)]


def holder() -> MaekawaCore:
    one = core(0)
    want(one, b"mine")
    give(one, said(REPLY, 1, 5, 0), said(REPLY, 2, 6, 0))
    assert one.phase is Phase.HOLDING
    return one


@pytest.mark.parametrize("count", [*range(1, 31), 100])
def test_every_two_quorums_intersect_and_hold_about_two_roots_of_n(count: int) -> None:
    members = tuple(range(3, 3 + 2 * count, 2))
    quorums = {member: set(quorum_of(member, members)) for member in members}
    assert all(one & other for one, other in combinations(quorums.values(), 2))
    assert all(member in quorum for member, quorum in quorums.items())
    assert all((a in quorums[b]) == (b in quorums[a]) for a, b in combinations(members, 2)), "arbiters of each other"
    width = isqrt(count - 1) + 1
    assert max(map(len, quorums.values())) <= 2 * width - 1
    if width**2 == count:
        assert {len(quorum) for quorum in quorums.values()} == {2 * width - 1}


# Rules.


def test_a_request_goes_to_the_quorum_with_one_number_greater_than_all_seen() -> None:
    one = core(0)
    give(one, request(1, 7), said(RELEASE, 1, 8, 1))
    assert want(one) == [Send(target=target, message=request(0, 11)) for target in (1, 2)]
    assert (one.phase, one.is_idle, one.can_submit) == (Phase.WAITING, False, False)


def test_it_enters_with_all_votes_and_its_release_names_the_ordinal_of_its_grant() -> None:
    one = core(0, hold_ns=100)
    want(one, b"mine")
    assert granted(give(one, said(REPLY, 2, 5, 3))) == []
    effects = give(one, said(REPLY, 1, 6, 7))
    assert (granted(effects), effects[-1]) == ([(1, 8)], SetTimer(timer=HOLD, at_ns=100))
    left, *releases = one.on_timer(HOLD, 100)
    assert left == Report(code=Notice.LEFT, member=0, value=1)
    assert told(releases) == [(RELEASE, 1), (RELEASE, 2)]
    assert [effect.message.words for effect in releases if isinstance(effect, Send)] == [(8,), (8,)]
    assert one.is_idle


def test_an_arbiter_has_one_vote_and_tells_each_request_that_is_not_first() -> None:
    """The third case of a request is Sanders': without it the first of the queue would not know that it is not first
    any more."""
    one = core(1, members=(0, 1, 2, 3, 4, 5, 6, 7, 8))
    assert told(give(one, request(0, 20))) == [(REPLY, 0)]
    assert told(give(one, request(2, 30))) == [(FAILED, 2)], "later than the one with the vote"
    assert told(give(one, request(4, 15))) == [(INQUIRE, 0)]
    assert told(give(one, request(7, 10))) == [(FAILED, 4)], "overtaken, and one INQUIRE is enough"
    assert told(give(one, said(RELINQUISH, 0, 40))) == [(REPLY, 7)]
    assert told(give(one, said(RELEASE, 7, 41, 1))) == [(REPLY, 4)]
    assert told(give(one, said(RELEASE, 4, 42, 2))) == [(REPLY, 0)], "20 comes before 30"
    assert told(give(one, said(RELEASE, 0, 43, 3))) == [(REPLY, 2)]
    assert (one.buffered, one.is_idle) == (0, True)


@pytest.mark.parametrize("first", [FAILED, INQUIRE])
def test_a_request_that_cannot_succeed_gives_back_the_votes_that_are_asked_for(first: Kind) -> None:
    one = core(0)
    want(one)
    give(one, said(REPLY, 1, 5, 0))
    early, late = ((FAILED, 2), (INQUIRE, 1)) if first is FAILED else ((INQUIRE, 1), (FAILED, 2))
    assert told(give(one, said(*early, 6))) == []
    assert told(give(one, said(*late, 7))) == [(RELINQUISH, 1)]
    assert granted(give(one, said(REPLY, 2, 8, 0))) == [], "the vote of 1 is away"
    assert granted(give(one, said(REPLY, 1, 9, 1))) == [(1, 2)]


def test_inside_it_keeps_its_votes_and_afterwards_an_inquiry_is_void() -> None:
    one = holder()
    assert told(give(one, said(INQUIRE, 1, 8))) == []
    one.on_timer(HOLD, 0)
    want(one)
    assert told(give(one, said(FAILED, 2, 9), said(INQUIRE, 1, 10))) == [], "about the request that was released"
    assert granted(give(one, said(REPLY, 1, 11, 1), said(REPLY, 2, 12, 1))) == [(1, 2)]


def test_an_arbiter_that_has_heard_of_a_later_grant_takes_the_release_of_an_earlier_one() -> None:
    """The release of grant 1 is under way to 0 alone while another arbiter already votes for 0 after grant 2."""
    one = core(0)
    assert told(give(one, request(1, 2))) == [(REPLY, 1)]
    want(one)
    give(one, said(REPLY, 2, 8, 2), said(REPLY, 1, 9, 1))
    assert granted(give(one, said(RELEASE, 1, 10, 1))) == [(1, 3)]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (request(1, 5), DropReason.MALFORMED),
        (request(2, MAX_TIMESTAMP + 1), DropReason.MALFORMED),
        (request(2, 9, 1), DropReason.MALFORMED),
        (said(REPLY, 2, 9), DropReason.MALFORMED),
        (said(RELEASE, 1, 9), DropReason.MALFORMED),
        (request(1, 9), DropReason.UNEXPECTED),
        (request(3, 9), DropReason.UNEXPECTED),
        (said(REPLY, 3, 9, 0), DropReason.UNEXPECTED),
        (said(REPLY, 1, 9, 0), DropReason.UNEXPECTED),
        (said(REPLY, 2, 9, MOST_GRANTS), DropReason.UNEXPECTED),
        (said(FAILED, 1, 9), DropReason.UNEXPECTED),
        (said(RELEASE, 2, 9, 1), DropReason.UNEXPECTED),
        (said(RELEASE, 1, 9, 0), DropReason.UNEXPECTED),
        (said(RELEASE, 1, 9, MOST_GRANTS + 1), DropReason.UNEXPECTED),
        (said(RELINQUISH, 1, 9), DropReason.UNEXPECTED),
        (said(OUTSIDE, 1, 9), DropReason.UNEXPECTED),
        (said(Kind.MUTEX_ACKNOWLEDGE, 1, 9), DropReason.UNEXPECTED),
    ],
)
def test_what_is_wrong_is_refused_before_anything_changes(message: Message, reason: DropReason) -> None:
    """1 has our vote, and we have its vote."""
    one = core(0)
    give(one, request(1, 4))
    want(one)
    give(one, said(REPLY, 1, 5, 0))
    before = (one.timestamp, one.buffered, one.phase)
    assert give(one, message) == [Report(code=reason, member=message.origin)]
    assert (one.timestamp, one.buffered, one.phase) == before


# The opening of a view.


def test_no_vote_is_given_until_all_members_have_told_the_first_that_they_are_outside() -> None:
    first, other = core(0, memory=LATER), core(3, memory=LATER)
    assert first.on_start(0) == []
    assert told(other.on_start(0)) == [(OUTSIDE, 0)]
    assert told(give(first, request(1, 10))) == [(FAILED, 1)], "T_0 of the first member is earlier than all"
    assert told(give(other, request(1, 10))) == [(FAILED, 1)]
    assert give(first, said(OUTSIDE, 1, 11), said(OUTSIDE, 2, 10)) == []
    opening, *votes = give(first, said(OUTSIDE, 3, 10))
    assert isinstance(opening, Multicast)
    assert (opening.message.kind, told(votes)) == (OUTSIDE, [(REPLY, 1)])
    assert told(give(other, opening.message)) == [(REPLY, 1)]
    assert reasons(give(other, said(OUTSIDE, 0, 90))) == [DropReason.UNEXPECTED], "a view is opened once"
    assert reasons(give(core(3), said(OUTSIDE, 0, 90))) == [DropReason.UNEXPECTED], "the first one begins open"


def reasons(effects: list[Effect]) -> list[int]:
    return [effect.code for effect in effects if isinstance(effect, Report)]


def test_a_member_that_is_inside_goes_on_and_tells_that_it_is_outside_when_it_leaves() -> None:
    kept = Kept(left=4)
    one = core(1, kept=kept)
    want(one, b"mine")
    give(one, said(REPLY, 0, 5, 0), said(REPLY, 3, 6, 0))
    closing = one.close({}, frozenset({0, 1}), 0)
    assert (closing.effects, closing.handed_back) == ((), ()), "neither delivered nor handed back"
    later = core(1, members=(0, 1), kept=kept, memory=closing.memory, hold_ns=100)
    assert later.on_start(7) == [SetTimer(timer=HOLD, at_ns=107)]
    left, *more = later.on_timer(HOLD, 107)
    assert left == Report(code=Notice.LEFT, member=1, value=5)
    assert told(more) == [(OUTSIDE, 0)]
    assert kept.holding == Request(1, 1)
    later.close({}, frozenset({0, 1}), 0)
    assert kept == Kept(left=5)


def test_an_open_request_is_handed_back_and_the_memory_depends_on_the_cut_alone() -> None:
    """The stream of the first member: its opening, and messages that it must not multicast."""
    stream = [said(OUTSIDE, 0, 12), said(OUTSIDE, 0, 15), request(0, 20), said(REPLY, 0, 30, 0)]
    memories = set()
    for received in range(len(stream) + 1):
        one = core(1, memory=LATER)
        one.on_start(0)
        want(one, b"mine")
        give(one, *stream[:received])
        closing = one.close({0: stream[received:], 2: [said(OUTSIDE, 2, 90)]}, frozenset({0, 1}), 0)
        assert closing.handed_back == (Submission(payload=b"mine"),)
        memories.add(closing.memory)
    assert memories == {MEMORY.pack(3, 12)}


def test_initially_the_lowest_member_is_inside_and_opens_the_view_when_it_leaves() -> None:
    one, other = (core(member, members=(0, 1), initially_granted=True, hold_ns=100) for member in (0, 1))
    assert one.on_start(5) == [Report(code=MutexReport.HOLDS, member=0), SetTimer(timer=HOLD, at_ns=105)]
    assert told(other.on_start(5)) == [(OUTSIDE, 0)]
    give(one, said(OUTSIDE, 1, 1))
    left, opening = one.on_timer(HOLD, 105)
    assert left == Report(code=Notice.LEFT, member=0, value=0)
    assert isinstance(opening, Multicast)


@pytest.mark.parametrize("memory", [b"x", MEMORY.pack(1, 9), MEMORY.pack(2, MAX_TIMESTAMP + 1)])
def test_a_memory_that_cannot_be_is_refused(memory: bytes) -> None:
    with pytest.raises(RemoteError, match="MALFORMED"):
        core(memory=memory)


# All orders of a few messages; counts over the reliable layer.


class TellsNothingToTheOvertaken(MaekawaCore):
    """FAILED does not go to a request that is the first of the queue no longer."""

    def _on_request(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        has_inquired, effects = self._has_inquired, list[Effect]()
        super()._on_request(message, now_ns, effects)
        is_first = self._queue[:1] == [Request(message.seq, message.origin)]
        out += [] if has_inquired and is_first else effects


def explored(*submissions: int, kind: type[MaekawaCore] = MaekawaCore, **more: Any) -> Exploration:
    def alone(us: Membership) -> Core:
        return OverIdealChannels(us, mutex_of(kind, us.member, members=us.members, **more))

    promises = (Property.MUTUAL_EXCLUSION, Property.SERVICE)
    return explore(alone, scope=Scope(submissions=submissions), promises=promises)


@pytest.mark.parametrize(
    ("submissions", "is_held"),
    [((2, 2), False), ((1, 1, 1), False), ((1, 0, 0, 1), False), ((0, 1, 1, 1), False), ((0, 1, 1), True)],
)
def test_every_order_of_a_few_messages_keeps_the_promises(submissions: tuple[int, ...], is_held: bool) -> None:
    found = explored(*submissions, initially_granted=is_held)
    assert (found.cut_off, found.violation) == ("", None)
    assert found.states > 300


def test_a_request_that_is_not_told_that_it_was_overtaken_is_in_a_deadlock() -> None:
    """Sanders 1987."""
    violation = explored(0, 1, 1, 1, kind=TellsNothingToTheOvertaken).violation
    assert violation is not None
    assert violation.kind == "rest"


def test_the_order_of_grants_is_not_promised() -> None:
    entry = PROTOCOLS["mutex"]
    assert set(entry.promised({})) - set(entry.promised({"algorithm": "maekawa"})) == {"grant_order"}


def test_one_request_may_cost_six_messages_at_an_arbiter() -> None:
    """REQUEST, REPLY, INQUIRE, RELINQUISH, REPLY, RELEASE: the paper counts five, without the second vote."""
    one = core(0, members=tuple(range(9)))
    sent = [*give(one, request(6, 9)), *give(one, request(3, 8)), *give(one, said(RELINQUISH, 6, 20))]
    sent += [*give(one, request(2, 7)), *give(one, said(RELINQUISH, 3, 21)), *give(one, said(RELEASE, 2, 22, 1))]
    sent += [*give(one, said(RELEASE, 3, 23, 2)), *give(one, said(RELEASE, 6, 24, 3))]
    received = {6: 3, 3: 3, 2: 2}
    counts = {member: received[member] + sum(target == member for _, target in told(sent)) for member in received}
    assert counts == {6: 6, 3: 6, 2: 3}


@pytest.mark.parametrize("count", [2, 3, 4, 9])
def test_an_entry_costs_three_messages_for_each_arbiter_alone_and_at_most_six_under_contention(count: int) -> None:
    cluster = Recorded(count, build(algorithm="maekawa", hold_ns=MILLISECOND))
    others = [len(quorum_of(member, cluster.members)) - 1 for member in cluster.members]
    cluster.submit(1)
    check_conditions(cluster, "maekawa")
    assert kinds_above(cluster) == dict.fromkeys((Kind.MUTEX_REQUEST, REPLY, RELEASE), others[1])
    for member in cluster.members:
        cluster.submit(member, 3)
    check_conditions(cluster, "maekawa")
    found = kinds_above(cluster)
    assert found[Kind.MUTEX_REQUEST] == found[RELEASE] == others[1] + 3 * sum(others)
    assert found[REPLY] == found[RELEASE] + found[RELINQUISH]
    assert found[RELINQUISH] <= found[INQUIRE]
    assert 3 * found[RELEASE] < found.total() <= 6 * found[RELEASE]
