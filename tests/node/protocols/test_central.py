"""Mutual exclusion by a central scheduler: its rules, the paper's counterexample, and what it refuses.

Random histories of views are in tests/node/group/test_close_mutex.py.
"""

from __future__ import annotations

from functools import partial

import pytest

from node.core import Submission
from node.effects import Effect, Multicast, Report, SetTimer
from node.errors import DropReason, RemoteError
from node.protocols.mutex import HOLD, CentralCore, Kept, Phase, Request
from node.protocols.mutex.central import _MEMORY
from node.registry import PROTOCOLS
from node.trace import Notice
from node.wire import Kind, Message
from tests.node.by_hand import give, multicasts, reported
from tests.node.protocols.test_mutex import granted, mutex_of, request, want

core = partial(mutex_of, CentralCore)


def grant(timestamp: int, member: int, origin: int = 0) -> Message:
    return Message(kind=Kind.MUTEX_REPLY, origin=origin, incarnation=1, seq=timestamp, flags=4, words=(member,))


def release(origin: int, timestamp: int) -> Message:
    return Message(kind=Kind.MUTEX_RELEASE, origin=origin, incarnation=1, seq=timestamp, flags=4)


def granted_to(effects: list[Effect]) -> list[int]:
    """The members that GRANTs name."""
    return [message.words[0] for message in multicasts(effects) if message.kind is Kind.MUTEX_REPLY]


def test_a_request_goes_to_all_and_is_granted_by_the_first_member() -> None:
    one = core(1)
    assert want(one, b"mine") == [Multicast(message=request(1, 1))]
    assert (one.phase, one.is_idle, one.buffered) == (Phase.WAITING, False, 1)
    effects = give(one, grant(3, 1))
    assert granted(effects) == [(1, 1)]
    assert isinstance(effects[-1], SetTimer)
    assert one.on_timer(HOLD, 5) == [Report(code=Notice.LEFT, member=1, value=1), Multicast(message=release(1, 5))]
    assert one.is_idle


def test_the_scheduler_grants_the_next_request_when_the_one_before_is_released() -> None:
    one = core(0)
    assert granted_to(give(one, request(1, 1))) == [1]
    assert granted_to(want(one)) == []
    assert granted_to(give(one, request(2, 1))) == []
    effects = give(one, release(1, 9))
    assert (granted_to(effects), granted(effects), one.phase) == ([0], [(1, 2)], Phase.HOLDING)
    assert granted_to(one.on_timer(HOLD, 0)) == [2]


def test_p2_may_be_granted_before_p1_whose_request_it_had_heard_of_which_violates_condition_ii() -> None:
    """ "P_1 sends a request to P_0 and then sends a message to P_2. Upon receiving the latter message, P_2 sends a
    request to P_0. It is possible for P_2's request to reach P_0 before P_1's request does."
    """
    scheduler, first, second = core(0), core(1), core(2)
    (told,) = multicasts(want(first))
    give(second, told)
    (then,) = multicasts(want(second))
    assert then.seq > told.seq
    assert granted_to(give(scheduler, then, told)) == [2]
    entry = PROTOCOLS["mutex"]
    assert set(entry.promised({})) - set(entry.promised({"algorithm": "central"})) == {"grant_order"}


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        pytest.param(grant(2, 1, origin=2), DropReason.UNEXPECTED, id="by another"),
        pytest.param(grant(2, 7), DropReason.UNEXPECTED, id="for a stranger"),
        pytest.param(release(2, 2), DropReason.UNEXPECTED, id="not inside"),
        pytest.param(request(2, 2, 1), DropReason.MALFORMED, id="words"),
        pytest.param(request(2, 0), DropReason.MALFORMED, id="no timestamp"),
    ],
)
def test_what_its_stream_cannot_hold_is_refused(message: Message, reason: DropReason) -> None:
    assert [code for code, _, _ in reported(give(core(1), message))] == [reason]


def test_the_member_inside_by_the_cut_stays_inside_and_the_others_requests_are_handed_back() -> None:
    """The grant is in the rest: its member enters at the end of the view, everywhere it is known to be inside."""
    kept = Kept(left=3)
    inside, other = core(1, kept=kept), core(0)
    want(inside, b"a")
    want(inside, b"b")
    granting = give(other, request(1, 1), request(1, 2))
    assert granted_to(granting) == [1]
    closing = inside.close({0: multicasts(granting)}, frozenset({0, 1}), 0)
    assert granted(closing.effects) == [(2, 1)]
    assert closing.handed_back == (Submission(payload=b"b"),)
    assert closing.memory == other.close({}, frozenset({0, 1}), 0).memory
    later = core(1, kept=kept, memory=closing.memory)
    assert later.phase is Phase.HOLDING
    assert later.on_timer(HOLD, 0)[0] == Report(code=Notice.LEFT, member=1, value=4), "it has left three times before"
    assert kept.holding == Request(1, 1)
    assert granted_to(give(core(0, memory=closing.memory), request(2, 9))) == []
    without = core(0)
    give(without, request(1, 1))
    assert _MEMORY.unpack(without.close({}, frozenset({0, 2}), 0).memory)[2] == 0, "an excluded member is not inside"


@pytest.mark.parametrize("memory", [b"x", _MEMORY.pack(1, 5, 0), _MEMORY.pack(2, 5, 9)])
def test_a_memory_that_no_view_has_ended_with_is_refused(memory: bytes) -> None:
    with pytest.raises(RemoteError):
        core(0, memory=memory)
