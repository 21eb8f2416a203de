"""Mutual exclusion by Lamport's five rules in one view: paper 001 sentence by sentence.

The end of a view, and random histories of views, are in tests/node/group/test_close_mutex.py; long runs of all
algorithms in tests/testbed/fuzz/test_slice.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from analysis.checks.properties import Property, Verdict
from node.clocks import MAX_TIMESTAMP
from node.core import Membership, ViewCore
from node.effects import Deliver, Effect, Multicast, Report, Send, SetTimer
from node.errors import DropReason, LocalError
from node.protocols.mutex import HOLD, Kept, MutexCore, MutexParameters, Phase
from node.registry import PROTOCOLS
from node.trace import MutexReport, Notice
from node.wire import Kind, Message
from tests.analysis.histories import check_linear
from tests.mutants.recorded import Recorded
from tests.node.by_hand import C, core_of, give, submit
from tests.node.cluster import Cluster, check_silence, kinds_above, stack

MEMBERS = (0, 1, 2)


# Core alone.


def mutex_of(
    kind: type[C],
    member: int = 0,
    *,
    members: tuple[int, ...] = MEMBERS,
    kept: Kept | None = None,
    memory: bytes = b"",
    **parameters: Any,
) -> C:
    us = Membership(member=member, members=members)
    return core_of(kind, us, MutexParameters(**parameters), kept=kept, memory=memory)


core = partial(mutex_of, MutexCore)


def request(origin: int, timestamp: int, *words: int) -> Message:
    return Message(kind=Kind.MUTEX_REQUEST, origin=origin, incarnation=1, seq=timestamp, flags=4, words=words)


def acknowledge(origin: int, timestamp: int) -> Message:
    return Message(kind=Kind.MUTEX_ACKNOWLEDGE, origin=origin, incarnation=1, seq=timestamp, flags=4)


def release(origin: int, timestamp: int, of: int) -> Message:
    return Message(kind=Kind.MUTEX_RELEASE, origin=origin, incarnation=1, seq=timestamp, flags=4, words=(of,))


def want(one: ViewCore, payload: bytes = b"", not_before: int = 0) -> list[Effect]:
    return submit(one, payload, not_before=not_before)


def granted(effects: Sequence[Effect]) -> list[tuple[int, int]]:
    """(view, number of the grant in it) of each fence."""
    return [divmod(effect.seq, 1 << 32) for effect in effects if isinstance(effect, Deliver)]


def test_rule_1_a_request_goes_to_every_other_process_and_onto_the_own_queue() -> None:
    one = core(0)
    assert want(one) == [Multicast(message=request(0, 1))]
    assert (one.buffered, one.phase, one.is_idle) == (1, Phase.WAITING, False)


def test_rule_2_a_request_goes_onto_the_queue_and_is_acknowledged_with_a_timestamp() -> None:
    one = core(1)
    assert give(one, request(0, 7)) == [Send(target=0, message=acknowledge(1, 9))]
    assert (one.buffered, one.is_idle) == (1, False)


def test_rule_3_a_release_takes_the_request_away_and_goes_to_every_other_process() -> None:
    one = core(0)
    want(one)
    give(one, acknowledge(1, 5), acknowledge(2, 6))
    left = Report(code=Notice.LEFT, member=0, value=1)
    assert one.on_timer(HOLD, 100) == [left, Multicast(message=release(0, 8, of=1))]
    assert one.is_idle
    with pytest.raises(LocalError, match="no timer"):
        one.on_timer(HOLD, 100)


def test_rule_5_granted_when_first_in_the_queue_and_all_others_have_sent_something_later() -> None:
    one = core(0, hold_ns=100)
    want(one, b"mine")
    assert granted(give(one, acknowledge(1, 5))) == [], "(ii) for member 2"
    fence = 1 << 32 | 1
    assert give(one, acknowledge(2, 6)) == [
        Deliver(payload=b"mine", origin=0, incarnation=1, seq=fence),
        Report(code=MutexReport.FENCE, member=0, value=fence),
        SetTimer(timer=HOLD, at_ns=100),
    ]
    assert one.phase is Phase.HOLDING


def test_rule_5_i_an_earlier_request_goes_first() -> None:
    one = core(1)
    want(one, not_before=10)
    give(one, request(0, 11))
    assert granted(give(one, acknowledge(2, 20), acknowledge(0, 21))) == [], "11 of member 0 before 11 of member 1"
    assert granted(give(one, release(0, 30, of=11))) == [(1, 2)]


def test_rule_5_ii_something_later_not_something_equal() -> None:
    one = core(0)
    want(one)
    assert granted(give(one, request(1, 1), acknowledge(2, 9))) == []
    assert granted(give(one, acknowledge(1, 2))) == [(1, 1)]


def test_note_5_no_acknowledgement_to_whom_something_later_has_been_sent() -> None:
    one = core(1, acknowledge="when_needed")
    want(one, not_before=10)
    assert give(one, request(0, 5)) == [], "our request at 11 has told it"
    assert [type(effect) for effect in give(one, request(2, 12))] == [Send]
    assert give(core(1), request(0, 5)) != [], "without the note it is always sent"


def test_note_5_also_counts_an_acknowledgement() -> None:
    one = core(1, acknowledge="when_needed")
    (first,) = give(one, request(0, 5))
    assert isinstance(first, Send)
    assert give(one, request(0, 6)) == [], f"it has been sent {first.message.seq}"
    assert [type(effect) for effect in give(one, request(2, 6))] == [Send], "but member 2 has not"


@pytest.mark.parametrize(("tie", "first"), [("member", 0), ("fair", 1)])
@pytest.mark.parametrize("mode", ["always", "when_needed"])
def test_note_3_the_precedence_among_equal_timestamps(tie: str, first: int, mode: str) -> None:
    """All request at time 1, which is 1 mod 3: member 1 is the first of a fair order."""
    for member in MEMBERS:
        one, peers = core(member, tie=tie, acknowledge=mode), [peer for peer in MEMBERS if peer != member]
        want(one)
        acknowledgements = [acknowledge(peer, 3) for peer in peers if mode == "always"]
        effects = give(one, *(request(peer, 1) for peer in peers), *acknowledgements)
        assert granted(effects) == ([(1, 1)] if member == first else [])


def test_note_6_if_p_i_precedes_p_j_then_the_same_timestamp_will_do() -> None:
    lower, higher, other = (core(member, acknowledge="when_needed") for member in (0, 1, 1))
    for one in (lower, higher, other):
        want(one)
    assert granted(give(lower, acknowledge(2, 9), request(1, 1))) == [(1, 1)]
    assert give(higher, request(0, 1)) == [], "our request at 1 is all that member 0 needs of us"
    assert granted(give(higher, acknowledge(2, 9), release(0, 12, of=1))) == [(1, 2)]
    assert granted(give(other, acknowledge(0, 1), acknowledge(2, 1))) == [], "not for member 0, which precedes"
    assert granted(give(other, acknowledge(0, 2))) == [(1, 1)]


def test_rule_4_and_note_7_a_release_takes_away_the_request_that_it_names() -> None:
    one = core(1)
    give(one, request(0, 3), request(0, 5), release(0, 9, of=3))
    assert (one.buffered, one.is_idle) == (1, False)
    give(one, release(0, 10, of=5))
    assert (one.buffered, one.is_idle) == (0, True)


def test_several_requests_of_one_member_are_granted_one_after_another() -> None:
    one = core(0)
    want(one, b"first")
    want(one, b"second")
    assert granted(give(one, acknowledge(1, 50), acknowledge(2, 50))) == [(1, 1)]
    effects = one.on_timer(HOLD, 0)
    assert [type(effect).__name__ for effect in effects] == ["Report", "Multicast", "Deliver", "Report", "SetTimer"]
    assert granted(effects) == [(1, 2)]


def test_only_so_many_requests_wait() -> None:
    one = core(0, outstanding=2)
    want(one)
    assert one.can_submit
    want(one)
    assert not one.can_submit


def test_initially_the_resource_is_granted_to_exactly_one_process() -> None:
    holder, other = (core(member, initially_granted=True, hold_ns=100) for member in (0, 1))
    assert holder.on_start(5) == [Report(code=MutexReport.HOLDS, member=0), SetTimer(timer=HOLD, at_ns=105)]
    assert other.on_start(5) == []
    assert (holder.phase, other.buffered) == (Phase.HOLDING, 1)
    want(other)
    assert granted(give(other, acknowledge(0, 8), acknowledge(2, 8))) == []
    assert holder.on_timer(HOLD, 105) == [
        Report(code=Notice.LEFT, member=0, value=0),
        Multicast(message=release(0, 1, of=0)),
    ]
    assert granted(give(other, release(0, 9, of=0))) == [(1, 2)]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (request(1, 5), DropReason.MALFORMED),
        (request(1, 0), DropReason.MALFORMED),
        (request(1, MAX_TIMESTAMP + 1), DropReason.MALFORMED),
        (acknowledge(1, 2**64 - 1), DropReason.MALFORMED),
        (release(1, 9, of=4), DropReason.UNEXPECTED),
        (release(2, 9, of=5), DropReason.UNEXPECTED),
        (Message(kind=Kind.MUTEX_RELEASE, origin=1, incarnation=1, seq=9), DropReason.MALFORMED),
        (request(1, 9, 1), DropReason.UNEXPECTED),
        (request(1, 9, 5), DropReason.UNEXPECTED),
        (request(1, 9, 5, 5), DropReason.MALFORMED),
    ],
)
def test_what_is_wrong_is_refused_before_anything_changes(message: Message, reason: DropReason) -> None:
    one = core(0)
    give(one, request(1, 5))
    before = (one.timestamp, one.buffered, one.phase)
    assert give(one, message) == [Report(code=reason, member=message.origin)]
    assert (one.timestamp, one.buffered, one.phase) == before


# Over the reliable layer.

build = partial(stack, "mutex")


def kinds(cluster: Cluster) -> Counter[Kind]:
    """Count of the paper's messages by kind: a multicast is one to each other member."""
    multicasts = (Kind.MUTEX_REQUEST, Kind.MUTEX_RELEASE)
    others = len(cluster.members) - 1
    return Counter(
        {kind: number * (others if kind in multicasts else 1) for kind, number in kinds_above(cluster).items()}
    )


def check_conditions(cluster: Recorded, algorithm: str = "lamport") -> None:
    """I, III, and II, under Maekawa's algorithm for requests of one member only: by the oracle."""
    check_silence(cluster)
    assert all(host.delivered == sorted(host.delivered) for host in cluster.up()), f"II (seed {cluster.seed})"
    promises = map(Property, PROTOCOLS["mutex"].promised({"algorithm": algorithm}))
    found = check_linear(cluster.history(), members=cluster.members, kinds=tuple(promises))
    assert {finding.verdict for finding in found.values()} == {Verdict.PASS}, f"{found} (seed {cluster.seed})"


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_a_request_costs_three_times_n_minus_1_messages_and_the_notes_save_half_of_the_acknowledgements(
    count: int,
) -> None:
    """All request at timestamp 1, before they receive other requests. A lower member needs only the request of a higher
    one (note 6); a higher one needs a later message of each lower one: half of the acknowledgements.
    """
    others = count * (count - 1)
    for mode, acknowledgements in (("always", others), ("when_needed", others // 2)):
        cluster = Recorded(count, build(acknowledge=mode))
        for member in range(count):
            cluster.submit(member)
        check_conditions(cluster)
        assert kinds(cluster) == {
            Kind.MUTEX_REQUEST: others,
            Kind.MUTEX_ACKNOWLEDGE: acknowledgements,
            Kind.MUTEX_RELEASE: others,
        }
