"""The end of a view in mutual exclusion: random histories of views, each case of `close`, and the agreed memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, TypeAlias

import pytest

from node.clocks import MAX_TIMESTAMP
from node.core import Closing, Membership, Submission, ViewCore
from node.effects import Deliver, Effect, Multicast, Report, Send, SetTimer, Undo
from node.errors import RemoteError
from node.group.view import MAX_VIEW, Incarnation
from node.protocols.mutex import (
    HOLD,
    Kept,
    MaekawaCore,
    MutexCore,
    MutexParameters,
    Phase,
    Request,
    RicartAgrawalaCore,
    begin,
)
from node.protocols.mutex.lamport import _Agreed
from node.trace import MutexReport, Notice
from node.wire import Kind, Message
from tests.mutants.cores import DefersInsideOnly, KeepsItsVotes, RepliesInside, VotesTwice
from tests.node.by_hand import close, give, multicasts
from tests.node.group.views import Group, Make, Place, begun, ends
from tests.node.protocols.test_mutex import acknowledge, core, granted, release, request, want

Rest = Mapping[int, Sequence[Message]]
AnyCore: TypeAlias = MutexCore | RicartAgrawalaCore | MaekawaCore
Begin: TypeAlias = Callable[[MutexParameters], Make]
SURVIVORS = frozenset({0, 1})
"""Member 2 is excluded."""


# Random histories.


class Locks(Group):
    """Group that tracks the holder of the resource and the causes of each request. `reluctant`: hosts delay submissions
    that were handed back."""

    def __init__(self, make: Make, members: int, seed: int, *, first: int | None, ordered: bool, **more: Any) -> None:
        self.is_ordered = ordered
        """Whether condition II holds, too."""
        self.disorder = 0
        """Requests that were granted before one that happened before them."""
        self.inside = first
        """The member that holds the resource."""
        self.fence = 0
        """Greatest fence so far."""
        self.is_reluctant = True
        self.known: dict[int, set[bytes]] = {member: set() for member in range(members)}
        """Requests that happened before the next event of each member."""
        self.told: dict[tuple[int, int, int], set[bytes]] = {}
        """Requests known to the sender of each message of this view (origin, incarnation, timestamp)."""
        self.owner: dict[bytes, Incarnation] = {}
        self.granted: set[bytes] = set()
        self.kept_inside = self.renewed = 0
        """Number of views at whose end a survivor was inside, and of renewed requests."""
        self.gone: set[Incarnation] = set()
        super().__init__(make, members, seed, **more)

    def _open(self) -> None:
        self.told.clear()
        super()._open()

    def may_submit(self) -> bool:
        return not (self.is_reluctant and self.rng.random() < 0.3)

    def causes_of(self, place: Place, payload: bytes) -> frozenset[bytes]:
        causes = frozenset(self.known[place.member])
        self.owner[payload] = Incarnation(place.member, self.view.incarnation_of[place.member])
        self.known[place.member].add(payload)
        return causes

    def take(self, place: Place, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Multicast | Send):
                message = effect.message
                name = (message.origin, message.incarnation, message.seq)
                known = set(self.known[place.member])
                assert self.told.setdefault(name, known) == known, "a timestamp names one event of its member"
                self.renewed += message.kind is Kind.MUTEX_REQUEST and bool(message.words)
        super().take(place, effects)

    def step(self, source: int, target: int) -> bool:
        if self.channels[source, target]:
            message = self.channels[source, target][0]
            self.known[target] |= self.told[message.origin, message.incarnation, message.seq]
        return super().step(source, target)

    def hand_over(self, place: Place, effect: Deliver | Undo | Report) -> None:
        super().hand_over(place, effect)
        if isinstance(effect, Deliver):
            self.enter(place, effect)
        elif isinstance(effect, Report) and effect.code == Notice.LEFT:
            assert self.inside == place.member
            self.inside = None

    def enter(self, place: Place, grant: Deliver) -> None:
        payload = grant.payload
        assert self.inside is None, "I: a process releases before another is granted"
        assert self.origin[payload] == place.member == grant.origin
        assert payload not in self.granted, "each request is granted once"
        earlier = {one for one in self.causes[payload] - self.granted if self.owner[one] not in self.gone}
        self.disorder += bool(earlier)
        assert not self.is_ordered or not earlier, (
            f"II: {payload!r} is granted before {sorted(earlier)}, which were made before it"
        )
        assert grant.seq > self.fence, "fences rise with every grant"
        self.inside = place.member
        self.fence = grant.seq
        self.granted.add(payload)

    def change(self, survivors: frozenset[int]) -> None:
        """End the view: the survivors are frozen; the others go on for a while, and then count as crashed."""
        others = [member for member in self.view.members if member not in survivors]
        for _ in range(self.rng.randrange(60) if others else 0):
            member = self.rng.choice(others)
            if self.rng.random() < 0.2:
                self.fire(member)
            else:
                self.step(self.rng.choice(self.view.members), member)
        if self.inside in survivors:
            self.kept_inside += 1
        else:
            self.inside = None
        self.gone |= {one for one in self.view.incarnations if one.member not in survivors}
        together = set().union(*(self.known[member] for member in survivors))
        self.known = {member: set(together) for member in self.known}
        super().change(survivors)

    def check_prefixes(self) -> None:
        """No check: each member delivers its own requests."""

    def check_survivors(self, survivors: frozenset[int]) -> None:
        for member in survivors:
            place = self.places[member]
            waiting = {submission.payload for submission in place.waiting}
            granted = set(place.delivered)
            assert not waiting & granted, "what is handed back was not granted"
            assert set(place.submitted) <= waiting | granted, "each request is granted or handed back"


def of_kind(kind: type[AnyCore], *, kept_as: type[Kept] = Kept, **state: Any) -> Begin:
    """As `begin`, with other cores of one algorithm, another memory of incarnations, and a `state` that is overwritten
    at the begin of each view."""

    def begin(parameters: MutexParameters) -> Make:
        more = {} if issubclass(kind, MutexCore) else {"kept": kept_as()}

        def make(us: Membership, _: Random, memory: bytes) -> ViewCore:
            core = kind(membership=us, parameters=parameters, memory=memory, **more)
            for name, value in state.items():
                setattr(core, name, value)
            return core

        return make

    return begin


def run(seed: int, algorithm: str = "lamport", begin: Begin = begin, *, ordered: bool = True) -> Locks:
    rng = Random(f"locks/{seed}")
    parameters = MutexParameters(
        algorithm=algorithm,
        acknowledge=rng.choice(("always", "when_needed")),
        clock=rng.choice(("logical", "physical", "synchronised")),
        hold_ns=rng.choice((0, 1_000_000)),
        outstanding=rng.choice((1, 3)),
        initially_granted=rng.random() < 0.3,
        tie=rng.choice(("member", "fair")),
    )
    first = 0 if parameters.initially_granted else None
    make = begun(begin, parameters)
    locks = Locks(make, rng.randint(2, 5), seed, first=first, ordered=ordered, lags=rng.random() < 0.5)
    for _ in range(5):
        locks.play(rng.randrange(120), load=rng.choice((0.05, 0.2)))
        locks.change(locks.draw_survivors(rng))
    locks.play(60, load=0.1)
    locks.is_reluctant = False
    for member in locks.view.members:
        locks.submit_waiting(locks.places[member])
    locks.settle()
    assert locks.inside is None
    for member in locks.view.members:
        assert set(locks.places[member].submitted) <= locks.granted, "III: every request is granted"
    return locks


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_mutual_exclusion_survives_view_changes(first: int) -> None:
    revoked = granted_at_ends = 0
    for seed in range(first, first + 50):
        reports = [report for place in run(seed).places.values() for report in place.reports]
        revoked += sum(report.code == MutexReport.REVOKED for report in reports)
        fences = [divmod(report.value, 1 << 32) for report in reports if report.code == MutexReport.FENCE]
        granted_at_ends += sum(view > 1 and number == 1 for view, number in fences)
    assert revoked > 50
    assert granted_at_ends > 20


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_mutual_exclusion_by_replies_survives_view_changes(first: int) -> None:
    locks = [run(seed, "ricart_agrawala") for seed in range(first, first + 50)]
    assert sum(one.kept_inside for one in locks) > 20
    assert sum(one.renewed for one in locks) > 50


@pytest.mark.parametrize("algorithm", ["maekawa", "central"])
def test_quorums_and_a_central_scheduler_survive_view_changes_without_an_order(algorithm: str) -> None:
    locks = [run(seed, algorithm, ordered=False) for seed in range(100)]
    assert sum(one.kept_inside for one in locks) > 50
    assert sum(one.disorder for one in locks) > 50


# Rules left out.


class KeepsTheExcluded(MutexCore):
    """Requests of excluded members stay in the queue."""

    def close(self, rest: Rest, survivors: frozenset[int], now_ns: int) -> Closing:
        return super().close(rest, frozenset(self._us.members), now_ns)


class ForgetsPlaces(MutexCore):
    """A submission that was handed back is a new request."""

    def close(self, rest: Rest, survivors: frozenset[int], now_ns: int) -> Closing:
        closing = super().close(rest, survivors, now_ns)
        agreed = _Agreed.decode(closing.memory, self._us.members)
        queue = agreed.queue[: agreed.is_held]
        return replace(closing, memory=replace(agreed, queue=queue).encode())


class ForgetsTheHolder(MutexCore):
    """Begins each view with a free resource."""

    def close(self, rest: Rest, survivors: frozenset[int], now_ns: int) -> Closing:
        closing = super().close(rest, survivors, now_ns)
        agreed = _Agreed.decode(closing.memory, self._us.members)
        queue = agreed.queue[agreed.is_held :]
        return replace(closing, memory=replace(agreed, queue=queue, is_held=False).encode())


class GrantsUnseen(MutexCore):
    """At the end of a view it treats a request submitted in an earlier view as present."""

    def close(self, rest: Rest, survivors: frozenset[int], now_ns: int) -> Closing:
        self._absent.clear()
        return super().close(rest, survivors, now_ns)


class SortsAnew(MutexCore):
    """Orders equal timestamps of earlier views by the precedence of this view."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self._queue.sort(key=self._order)


class DefersWhatItHasSent(RicartAgrawalaCore):
    """A request of an earlier view does not count until it is sent in this one."""

    def _defers(self, request: Request) -> bool:
        return super()._defers(request) and (self._holding is not None or self._submission is not None)


class RenewsAsNew(RicartAgrawalaCore):
    """A submission that was handed back is a new request."""

    def _submit(self, submission: Submission, now_ns: int, out: list[Effect]) -> None:
        self._wanted = None
        super()._submit(submission, now_ns, out)


class CountsItsOwnGrants(RicartAgrawalaCore):
    """Fences ignore the replies."""

    def _on_reply(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        super()._on_reply(replace(message, words=(0,)), now_ns, out)


class OpensAtOnce(MaekawaCore):
    """Votes before all members of the view are outside."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self._voted = None


class ForgetsOrdinals(MaekawaCore):
    """Fences ignore the releases."""

    def _on_release(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        super()._on_release(replace(message, words=(0,)), now_ns, out)


class KeepsNothing(Kept):
    """Each view begins as if its members were outside."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value if name != "holding" else None)


MUTANTS = (
    KeepsTheExcluded, ForgetsPlaces, ForgetsTheHolder, GrantsUnseen, SortsAnew,
    RepliesInside, DefersInsideOnly, DefersWhatItHasSent, RenewsAsNew, CountsItsOwnGrants,
    VotesTwice, KeepsItsVotes, OpensAtOnce, ForgetsOrdinals,
)  # fmt: skip


def left_out(kind: type[AnyCore], name: str = "", **changes: Any) -> Any:
    return pytest.param(of_kind(kind, **changes), not issubclass(kind, MaekawaCore), id=name or kind.__name__)


@pytest.mark.parametrize(
    ("begin", "ordered"),
    [
        *(left_out(kind) for kind in MUTANTS),
        left_out(RicartAgrawalaCore, "KeepsNothing", kept_as=KeepsNothing),
        left_out(MaekawaCore, "KeepsNothing, by quorums", kept_as=KeepsNothing),
        left_out(MutexCore, "fences ignore views", _view=1),
        left_out(MutexCore, "timestamps restart", _floor=0),
        left_out(RicartAgrawalaCore, "fences ignore views, by replies", _view=1),
        left_out(RicartAgrawalaCore, "timestamps restart, by replies", _floor=0),
        left_out(MaekawaCore, "fences ignore views, by quorums", _view=1),
    ],
)
def test_each_rule_is_missed_by_some_history(begin: Begin, ordered: bool) -> None:
    with pytest.raises((AssertionError, RemoteError)):
        for seed in range(400):
            run(seed, begin=begin, ordered=ordered)


# One end of a view.


def end(one: MutexCore, *rest: Message, survivors: frozenset[int] = SURVIVORS) -> Closing:
    return close(one, *rest, survivors=survivors)


def next_view(member: int, closing: Closing, **parameters: Any) -> MutexCore:
    return core(member, members=(0, 1), memory=closing.memory, **parameters)


def test_a_lock_that_a_survivor_holds_stays_its_own_and_is_not_granted_twice() -> None:
    """Member 0 is inside; 1 and 2 wait."""
    one = core(0)
    want(one, b"mine")
    assert granted(give(one, request(1, 5), request(2, 6), acknowledge(1, 7))) == [(1, 1)]
    closing = end(one)
    assert closing.effects == (Report(code=MutexReport.REVOKED, member=2, value=1),), "it is not delivered again"
    assert closing.handed_back == ()
    later = next_view(0, closing, hold_ns=100)
    assert (later.phase, later.buffered) == (Phase.HOLDING, 2)
    assert later.on_start(7) == [SetTimer(timer=HOLD, at_ns=107)]
    left, *more = later.on_timer(HOLD, 107)
    assert left == Report(code=Notice.LEFT, member=0, value=1)
    assert multicasts(more)[0] == release(0, 7, of=1)


def test_a_lock_that_an_excluded_member_held_is_granted_again_with_a_higher_fence() -> None:
    """Member 2 was granted (1, 1) and may not know that it is excluded."""
    one = core(0)
    give(one, request(2, 1))
    want(one, b"mine")
    assert granted(give(one, acknowledge(1, 9))) == []
    closing = end(one)
    assert granted(closing.effects) == [(2, 1)]
    assert closing.handed_back == ()
    assert next_view(0, closing).phase is Phase.HOLDING


def test_requests_of_excluded_members_leave_the_queue() -> None:
    one = core(0)
    give(one, request(2, 1), request(2, 2), request(1, 3))
    closing = end(one, request(2, 4))
    assert closing.effects == (Report(code=MutexReport.REVOKED, member=2, value=3),)
    assert _Agreed.decode(closing.memory, (0, 1)) == _Agreed(view=2, clock=4, queue=(Request(3, 1),), is_held=True)


def test_requests_keep_their_places_over_the_end_of_a_view() -> None:
    """II: 0 is inside, 1 requested before 0 requested again, and 1 requests again in the next view."""
    one = core(1)
    give(one, request(0, 1))
    want(one, b"first")
    closing = end(one, request(0, 10))
    assert closing.handed_back == (Submission(payload=b"first"),)
    later = next_view(1, closing)
    renewed = multicasts(later.on_submit(closing.handed_back[0], 0))
    assert renewed == [request(1, 11, 4)], "at its old place, with a timestamp of this view"
    want(later, b"second")
    assert later._queue == [Request(1, 0), Request(4, 1), Request(10, 0), Request(12, 1)]
    assert granted(give(later, release(0, 13, of=1))) == [(2, 2)], "all that is earlier is known: nobody is awaited"


def test_a_renewed_request_is_not_acknowledged() -> None:
    agreed = _Agreed(view=2, clock=9, queue=(Request(3, 0), Request(4, 1)), is_held=True)
    one = core(0, members=(0, 1), memory=agreed.encode())
    assert give(one, request(1, 10, 4)) == []
    assert one.buffered == 2


def test_what_has_not_come_back_to_its_member_is_not_granted_at_the_next_end() -> None:
    """The host of 0 still holds the submission: no member may take it as granted, and it keeps its place."""
    agreed = _Agreed(view=2, clock=9, queue=(Request(3, 2), Request(4, 0), Request(5, 1)), is_held=True)
    zero, one = (core(member, memory=agreed.encode()) for member in (0, 1))
    one.on_submit(Submission(payload=b"one"), 0)
    closings = [end(zero, request(1, 10, 5)), end(one)]
    assert [granted(closing.effects) for closing in closings] == [[], []]
    assert closings[0].memory == closings[1].memory
    later = next_view(0, closings[0])
    assert (later.on_start(0), later.phase) == ([], Phase.RELEASED)
    assert granted(later.on_submit(Submission(payload=b"zero"), 0)) == [(3, 1)]


def test_the_initial_holder_keeps_the_resource_or_leaves_it_to_the_next() -> None:
    zero, one = (core(member, initially_granted=True) for member in (0, 1))
    want(one, b"mine")
    stays = end(one)
    assert granted(stays.effects) == []
    assert end(zero, request(1, 1)).memory == stays.memory
    assert next_view(0, stays, initially_granted=True).phase is Phase.HOLDING
    one = core(1, initially_granted=True)
    want(one, b"mine")
    assert granted(end(one, survivors=frozenset({1, 2})).effects) == [(2, 1)]


def test_equal_timestamps_keep_their_order_when_the_group_shrinks() -> None:
    """At time 4 member 1 goes before 0 in a group of three, and after 0 in a group of two."""
    one = core(1, tie="fair")
    want(one, b"mine", not_before=3)
    give(one, request(0, 4))
    closing = end(one)
    assert granted(closing.effects) == [(2, 1)]
    later = next_view(1, closing, tie="fair")
    assert (later._queue, later.phase) == ([Request(4, 1), Request(4, 0)], Phase.HOLDING)


def test_timestamps_and_counts_go_on_from_view_to_view() -> None:
    one = core(0, members=(0,), memory=_Agreed(view=4, clock=70, left={0: 3}).encode())
    assert (one.timestamp, granted(want(one))) == (70, [(4, 1)])
    left, released = one.on_timer(HOLD, 0)
    assert left == Report(code=Notice.LEFT, member=0, value=4)
    assert released == Multicast(message=release(0, 72, of=71))
    later = _Agreed.decode(end(one, survivors=frozenset({0})).memory, (0,))
    assert later == _Agreed(view=5, clock=72, left={0: 4})


# Memory written by an attacker.


@pytest.mark.parametrize(
    "wrong",
    [
        request(2, 4),
        request(2, MAX_TIMESTAMP + 1),
        request(7, 9),
        request(2, 9, 5),
        request(2, 9, 5, 6),
        release(2, 9, of=4),
        acknowledge(2, 40),
        Message(kind=Kind.LAMPORT_DATA, origin=2, incarnation=1, seq=9),
    ],
    ids=lambda message: f"{message.kind.name} {message.origin} {message.seq} {message.words}",
)
def test_what_would_be_refused_is_passed_over_alike_by_those_that_have_received_it_and_others(wrong: Message) -> None:
    def waiting() -> MutexCore:
        one = core(0)
        want(one)
        return one

    stream = [request(2, 5), wrong, request(2, 20), release(2, 30, of=5)]
    ((_, memory),) = ends(waiting, stream, {0, 1, 2})
    assert _Agreed.decode(memory, (0, 1, 2)).queue == (Request(1, 0), Request(20, 2))


def test_nobody_fills_our_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    one = core(0)
    monkeypatch.setattr("node.protocols.mutex.lamport.MOST_OUTSTANDING", 3)
    give(one, *(request(2, timestamp) for timestamp in range(1, 9)))
    assert one.buffered == 3


RIGHT = _Agreed(view=2, clock=9, queue=(Request(3, 0), Request(4, 1)), is_held=True, left={1: 5})
HEAD = _Agreed._HEAD


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            one.encode()
            for one in (
                replace(RIGHT, view=1),
                replace(RIGHT, view=MAX_VIEW + 1),
                replace(RIGHT, clock=3),
                replace(RIGHT, clock=MAX_TIMESTAMP + 1),
                replace(RIGHT, queue=()),
                replace(RIGHT, queue=(Request(4, 1), Request(3, 0))),
                replace(RIGHT, queue=(Request(4, 1), Request(4, 1))),
                replace(RIGHT, queue=(Request(4, 7),)),
                replace(RIGHT, left={7: 1}),
            )
        ),
        b"x",
        RIGHT.encode()[:-1],
        RIGHT.encode() + b"x",
        HEAD.pack(2, 9, 1, 5),
        HEAD.pack(2, 9, 1, 0),
    ],
)
def test_a_memory_that_cannot_be_is_refused(wrong: bytes) -> None:
    assert _Agreed.decode(RIGHT.encode(), (0, 1)) == RIGHT
    with pytest.raises(RemoteError, match="MALFORMED"):
        core(0, members=(0, 1), memory=wrong)
