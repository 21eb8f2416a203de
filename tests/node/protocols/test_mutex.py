"""Mutual exclusion by Lamport's five rules in one view: paper 001 sentence by sentence, its conditions over long runs.

The end of a view, and random histories of views, are in tests/node/group/test_close_mutex.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.clocks import MAX_TIMESTAMP
from node.core import Membership, ViewCore
from node.effects import Deliver, Effect, Multicast, Report, Send, SetTimer
from node.errors import DropReason, LocalError
from node.protocols.mutex import HOLD, MutexCore, MutexParameters, MutexReport, Phase
from node.trace import Notice
from node.wire import Kind, Message
from tests.node.by_hand import give, submit
from tests.node.cluster import (
    MILLISECOND,
    SECOND,
    Build,
    Cluster,
    Host,
    Identity,
    Network,
    check_silence,
    kinds_above,
    stack,
)
from tests.node.protocols.drifting import any_clock, behind_clocks

MEMBERS = (0, 1, 2)
CLOCKS = ("logical", "physical", "synchronised")
ACKNOWLEDGE = ("always", "when_needed")
# Core alone.


def core(member: int = 0, *, members: tuple[int, ...] = MEMBERS, memory: bytes = b"", **parameters: Any) -> MutexCore:
    membership = Membership(member=member, members=members)
    return MutexCore(membership=membership, parameters=MutexParameters(**parameters), memory=memory)


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
@pytest.mark.parametrize("mode", ACKNOWLEDGE)
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
    assert holder.on_start(5) == [SetTimer(timer=HOLD, at_ns=105)]
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


class Watched(Cluster):
    """Cluster that records entries, exits, and the causes of each request."""

    def __init__(self, count: int, build: Build, **more: Any) -> None:
        self.sections: list[tuple[int, int, Identity]] = []
        """(entered, left, request) in the order of entry; left -1: still inside."""
        self.asked_ns: dict[Identity, int] = {}
        super().__init__(count, build, **more)

    def _push(self, host: Host) -> None:
        """Push submissions; those that wait in the host are no requests yet."""
        super()._push(host)
        us = host.membership
        for number in range(1, host.submitted - len(host.queue) + 1):
            self.asked_ns.setdefault((us.member, us.incarnation, number), self.now_ns)

    def _carry_out(self, host: Host, effect: Effect) -> None:
        super()._carry_out(host, effect)
        if isinstance(effect, Deliver) and effect.inner is Kind.APPLICATION:
            self.sections.append((self.now_ns, -1, host.delivered[-1]))
        # The paper's beginning is left without having been entered: value 0.
        if isinstance(effect, Report) and effect.code == Notice.LEFT and effect.value:
            entered_ns, left_ns, identity = self.sections[-1]
            assert (left_ns, identity[0]) == (-1, host.membership.member), f"seed {self.seed}"
            self.sections[-1] = (entered_ns, self.now_ns, identity)


def build(*, drift_ppm: float = 0.0, offset_ns: int = 0, **parameters: Any) -> Build:
    return behind_clocks(stack("mutex", **parameters), any_clock(offset_ns=offset_ns, drift_ppm=drift_ppm))


def kinds(cluster: Cluster) -> Counter[Kind]:
    """Count of the paper's messages by kind: a multicast is one to each other member."""
    multicasts = (Kind.MUTEX_REQUEST, Kind.MUTEX_RELEASE)
    others = len(cluster.members) - 1
    return Counter(
        {kind: number * (others if kind in multicasts else 1) for kind, number in kinds_above(cluster).items()}
    )


def check_conditions(cluster: Watched, *, ordered: bool = True) -> None:
    """I, III, and if `ordered` II (for requests of one member, and for those that follow an earlier entry)."""
    check_silence(cluster)
    for (_, left_ns, _), (entered_ns, _, _) in pairwise(cluster.sections):
        assert 0 <= left_ns <= entered_ns, f"I: two were inside at {entered_ns} (seed {cluster.seed})"
    order = [identity for _, _, identity in cluster.sections]
    assert sorted(order) == sorted(cluster.submissions), f"III (seed {cluster.seed})"
    position = {identity: place for place, identity in enumerate(order)}
    for host in cluster.hosts.values():
        assert host.delivered == sorted(host.delivered), f"II within one member (seed {cluster.seed})"
    if not ordered:
        return
    # Each grant follows the release before it, and so all requests of its member before that.
    told = -1
    for entered_ns, left_ns, (member, _, _) in cluster.sections:
        own = [(at_ns, position[one]) for one, at_ns in cluster.asked_ns.items() if one[0] == member]
        assert all(place > told for at_ns, place in own if at_ns > entered_ns), f"II (seed {cluster.seed})"
        told = max(told, *(place for at_ns, place in own if at_ns < left_ns))


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_a_request_costs_three_times_n_minus_1_messages_and_the_notes_save_half_of_the_acknowledgements(
    count: int,
) -> None:
    """All request at timestamp 1, before they receive other requests. A lower member needs only the request of a higher
    one (note 6); a higher one needs a later message of each lower one: half of the acknowledgements.
    """
    others = count * (count - 1)
    for mode, acknowledgements in (("always", others), ("when_needed", others // 2)):
        cluster = Watched(count, build(acknowledge=mode))
        for member in range(count):
            cluster.submit(member)
        check_conditions(cluster)
        assert kinds(cluster) == {
            Kind.MUTEX_REQUEST: others,
            Kind.MUTEX_ACKNOWLEDGE: acknowledgements,
            Kind.MUTEX_RELEASE: others,
        }


@pytest.mark.parametrize("algorithm", ["lamport", "ricart_agrawala", "maekawa"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_conditions_hold_in_random_histories(algorithm: str, seed: int) -> None:
    rng = Random(seed)
    make = build(
        algorithm=algorithm,
        clock=rng.choice(CLOCKS),
        acknowledge=rng.choice(ACKNOWLEDGE),
        tie=rng.choice(("member", "fair")),
        mu_ns=MILLISECOND,
        hold_ns=rng.choice((0, MILLISECOND, 20 * MILLISECOND)),
        initially_granted=rng.random() < 0.3,
        drift_ppm=10_000,
        offset_ns=SECOND,
    )
    network = Network(
        jitter_ns=rng.choice((0, 20)) * MILLISECOND,
        loss_ratio=rng.choice((0.0, 0.1, 0.2)),
        duplicate_ratio=rng.choice((0.0, 0.1)),
    )
    cluster = Watched(rng.randint(2, 5), make, seed=seed, network=network)
    for _ in range(rng.randint(1, 60)):
        cluster.submit_later(rng.choice(cluster.members), rng.randint(0, 2 * SECOND))
    if rng.random() < 0.5:
        one, at_ns = rng.choice(cluster.members), rng.randint(0, SECOND)
        cluster.at(at_ns, lambda: cluster.pause(one))
        cluster.at(at_ns + SECOND, lambda: cluster.resume(one))
    if rng.random() < 0.5:
        side = [member for member in cluster.members if rng.random() < 0.5]
        rest = [member for member in cluster.members if member not in side]
        cluster.at(rng.randint(0, SECOND), lambda: cluster.cut(side, rest))
        cluster.at(2 * SECOND, cluster.heal)
    check_conditions(cluster, ordered=algorithm != "maekawa")
