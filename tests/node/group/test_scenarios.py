"""Scenarios that break a wrong group layer, each by hand, message by message; and the proof that each detects its bug.

Scenarios are functions; `MUTANTS` removes the rule that a scenario tests, and then the scenario must fail.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import pytest

from node.core import Closing, ViewCore
from node.effects import Deliver, Effect, Multicast, Report, Send, Undo
from node.errors import LocalError
from node.group.change import Change
from node.group.codec import StatusFlag, ballot_of
from node.group.core import GroupCore
from node.group.detector import Accusations
from node.group.member import ViewMember
from node.group.stack import ViewStack
from node.group.transfer import Collector
from node.group.view import View
from node.protocols.prefix import Walk
from node.reliable import ReliableCore
from node.wire import Flag, Kind, Message
from tests.mutants.edits import Edit, Shipped, replaces
from tests.mutants.edits_views import nothing_is_forced, what_waits_is_lost_across_views
from tests.node.cluster import MILLISECOND
from tests.node.group.scripted import SUSPECT_AFTER_NS, Scripted, everything, ledger, nothing, of_kind

Scenario: TypeAlias = Callable[[], None]


def setting(kind: type, name: str, value: object) -> Edit:
    """A mutant with another attribute of a class."""

    def mutate(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(kind, name, value)

    mutate.__name__ = name
    return mutate


def both(*mutants: Edit) -> Edit:
    def mutate(patch: pytest.MonkeyPatch) -> None:
        for mutant in mutants:
            mutant(patch)

    mutate.__name__ = mutants[0].__name__
    return mutate


STEP_NS = 5 * MILLISECOND
"""Long enough for some messages in both directions."""
DATA = Kind.RELIABLE_DATA
PREPARE, PROMISE = Kind.GROUP_PREPARE, Kind.GROUP_PROMISE
ACCEPT, ACCEPTED = Kind.GROUP_ACCEPT, Kind.GROUP_ACCEPTED
ORDERS = ("reliable", "lamport", "abcast", "cbcast", "sequencer", "allack", "atop", "amoeba")


def frozen(group: Scripted, *members: int) -> Callable[[], bool]:
    return lambda: all(group.here(member).is_frozen for member in members)


def in_view(group: Scripted, number: int, *members: int) -> Callable[[], bool]:
    return lambda: all(group.number(member) == number for member in members)


def calm(group: Scripted) -> Scripted:
    """Run until the first view is known to be installed everywhere, and nothing is in transit."""
    group.run(STEP_NS)
    return group


# 1. A message arrives between PROMISE and ACCEPT, and after a failed ballot.


def message_between_promise_and_accept() -> None:
    group = calm(Scripted(3))
    group.holds = of_kind(DATA, source=2)
    group.submit(2)
    group.crash(2)
    group.holds = of_kind(DATA, ACCEPT)
    group.until(frozen(group, 0, 1))
    group.release(of_kind(DATA, to=(1,)))
    group.run(STEP_NS)
    group.holds = nothing
    group.release(of_kind(ACCEPT))
    group.until(in_view(group, 2, 0, 1))
    group.release()
    group.settle(2)
    assert group.delivered(1) == group.delivered(0) == []


def message_after_a_failed_ballot() -> None:
    """Member 3 alone has accepted a value whose cut lacks the message; its coordinator ends; the message arrives."""
    group = calm(Scripted(5))
    group.holds = of_kind(DATA, source=4)
    group.submit(4)
    group.crash(4)
    group.lose = lambda source, target, message: (
        (message.kind is ACCEPT and source == 0 and target != 3) or (message.kind is ACCEPTED)
    )
    group.until(lambda: group.here(3).change.accepted is not None)
    group.crash(0)
    group.lose = nothing
    group.until(lambda: 0 in group.here(1)._detector.suspects)
    group.run(MILLISECOND // 2)
    group.release(of_kind(DATA, to=(1,)))
    group.until(in_view(group, 2, 1, 2, 3))
    group.release()
    group.until(in_view(group, 3, 1, 2, 3))
    group.check()
    assert group.delivered(1) == []


@replaces(ReliableCore, "_on_data")
def delivers_after_its_promise(
    on_data: Shipped, core: ReliableCore, message: Message, source: int, now_ns: int, out: list[Effect]
) -> None:
    on_data(core, message, source, now_ns, out)
    stream = core._streams[message.origin]
    while core.phase == "frozen" and stream.delivered < stream.position:
        stream.delivered += 1
        out.append(Deliver.of(stream.buffered[stream.delivered]))


@replaces(ReliableCore, "on_message")
def takes_data_when_frozen(
    on_message: Shipped, core: ReliableCore, message: Message, source: int, now_ns: int
) -> list[Effect]:
    core._handlers[DATA] = core._on_data
    effects: list[Effect] = on_message(core, message, source, now_ns)
    return effects


@replaces(ViewMember, "consider")
def failed_ballot_unfreezes(consider: Shipped, member: ViewMember, now_ns: int, out: list[Effect]) -> None:
    """When the coordinator is gone, members go on as if they had promised nothing."""
    gone = member.is_frozen and member.view.members[member.change.promised & 0xFFFF] in member._gone
    streams = member.stack.streams
    assert isinstance(streams, ReliableCore)
    if gone and streams.phase == "frozen":
        streams._enter(type(streams.phase).OPEN)
        streams._channels.receivers.update({one: _NoUnicasts() for one in member._peers})  # type: ignore[misc]
        member.stack.is_frozen = False
        out += member.stack.hold(False, now_ns)
    consider(member, now_ns, out)


class _NoUnicasts:
    """Replaces the unicasts that ended with the freeze."""

    buffered: dict[int, Message] = {}  # noqa: RUF012 (a constant)
    delivered = 0


# 2. The coordinator ends after each single ACCEPT and ACCEPTED; its successor is left out of the forced value.


def coordinator_ends_in_mid_ballot(accepts: int, votes: int) -> None:
    """Member 1 is cut off. The proposal of member 0 excludes it, and reaches `accepts` of the members 4, 3, 2; their
    votes reach `votes` of them, 2 first, which may decide alone, and then ends. Member 1 leads the next ballot."""
    group = calm(Scripted(5))
    group.cut((0, 2, 3, 4), (1,))
    reached, told = (4, 3, 2)[:accepts], (2, 3, 4)[:votes]
    group.lose = lambda source, target, message: (
        (message.kind is ACCEPT and source == 0 and target not in reached)
        or (message.kind is ACCEPTED and (target == 0 or target not in told))
        or message.kind is Kind.GROUP_DECIDED
    )
    group.until(lambda: 0 in group.here(0).change.voters(group.here(0).change.led))
    group.run(MILLISECOND // 2)
    group.crash(0)
    group.run(4 * MILLISECOND)
    decided = group.number(2) == 2
    group.crash(2)
    group.heal()
    group.lose = nothing
    group.run(12 * SUSPECT_AFTER_NS)
    group.check()
    if decided:
        assert accepts == 3, "three votes decide"
        assert group.view(2, 2) == ((0, 1), (2, 1), (3, 1), (4, 1))
    installed = group.view(3, 2)
    assert installed, f"the ballot ends: {group.where()}"
    is_left_out = (1, 1) not in installed
    assert is_left_out or not (decided or accepts), "a value that a member has accepted is the one"


# 3. The only holder of a message of the cut ends after PROMISE, after ACCEPTED, and is an excluded acceptor.


def holder_ends(after: Kind) -> None:
    group = calm(Scripted(5))
    group.lose = lambda source, target, message: source == 4 and target != 3
    group.submit(4)
    group.run(STEP_NS)
    assert group.delivered(3) == [(4, 1, 1)]
    group.crash(4)
    sent = len(group.kinds(after))
    group.lose = of_kind(DATA, source=3)
    group.until(lambda: any(message.origin == 3 for message in group.kinds(after)[sent:]))
    group.until(lambda: group.here(0).change.proposal is not None)
    proposal = group.here(0).change.proposal
    assert proposal is not None
    assert proposal.value.cut[4] == 1
    group.crash(3)
    group.run(8 * SUSPECT_AFTER_NS)
    group.settle()
    assert group.incarnations_of(0) == ((0, 1), (1, 1), (2, 1)), "without the message, which nobody of them has"
    assert group.delivered(0) == []


@replaces(ViewMember, "accept_if_complete")
def accepts_before_it_has_the_cut(accept: Shipped, member: ViewMember, out: list[Effect]) -> None:
    with pytest.MonkeyPatch.context() as inner:
        inner.setattr(ReliableCore, "has", lambda streams, cut: True)
        accept(member, out)


def only_holder_is_an_excluded_acceptor() -> None:
    """Members 2 and 3 leave; a message of 2 reaches 0, which decides and ends: then only 2 and 3 have it."""
    group = calm(Scripted(4))
    group.lose = of_kind(DATA, to=(1,))
    group.submit(2)
    group.leave(2)
    group.leave(3)
    group.until(in_view(group, 2, 0))
    group.crash(0)
    group.run(STEP_NS)
    assert group.number(1) == 1, "it still lacks the message"
    group.lose = nothing
    group.until(in_view(group, 2, 1), 4 * SUSPECT_AFTER_NS)
    assert group.delivered(1) == group.delivered(0) == [(2, 1, 1)]
    group.check()


excluded_members_end_at_once = setting(
    GroupCore,
    "_exclude",
    lambda core, number, source, now_ns, out: None if core.has_ended else core._end(now_ns, out),
)


# 4. A restarted incarnation within an open ballot; exclusion, return, then a restart by the host.


def restarted_within_an_open_ballot() -> None:
    """Member 2 ends after its vote and restarts: messages of the later incarnation do not count for the earlier."""
    group = calm(Scripted(4))
    group.crash(3)
    group.holds = of_kind(ACCEPTED)
    group.until(lambda: any(message.origin == 2 for message in group.kinds(ACCEPTED)))
    ballot = group.here(0).change.led
    group.release(of_kind(ACCEPTED, source=2, to=(1,)))
    group.restart(2)
    forged = Message(kind=ACCEPTED, origin=2, incarnation=2, seq=1, flags=4, words=(ballot,))
    group.inject(0, forged, 2)
    assert group.here(0).change.voters(ballot) == {0}, "member 2 has lost what it voted for"
    group.release_all()
    group.until(lambda: (2, 2) in group.incarnations_of(0) and group.is_settled())
    group.check()
    assert (2, 1) not in group.incarnations_of(0)


@replaces(GroupCore, "_is_of_view")
def votes_of_a_later_incarnation_count(
    is_of_view: Shipped, core: GroupCore, here: ViewMember, message: Message, now_ns: int, out: list[Effect]
) -> bool:
    is_ours = message.seq == here.view.number and message.origin in here.view.members
    return is_ours or is_of_view(core, here, message, now_ns, out)


def excluded_returned_and_started_again() -> None:
    group = calm(Scripted(3))
    group.cut((0, 1), (2,))
    group.until(in_view(group, 2, 0, 1))
    group.heal()
    group.settle(3)
    assert group.incarnations_of(0) == ((0, 1), (1, 1), (2, 2))
    group.restart(2)
    group.until(lambda: (2, 3) in group.incarnations_of(0))
    group.settle(4)


def joiner_that_was_admitted_unheard_comes_as_its_next_incarnation() -> None:
    """Member 3 never learns that it is in view 2, is excluded from view 3, and asks to join all the time."""
    group = calm(Scripted(4, founders=(0, 1, 2)))
    group.lose = everything(to=(3,))
    group.restart(3)
    group.until(in_view(group, 3, 0, 1, 2))
    assert (3, 2) in group.view(0, 2)
    group.run(2 * SUSPECT_AFTER_NS)
    group.lose = nothing
    group.settle()
    assert (3, 3) in group.incarnations_of(0)


who_was_in_a_view_may_join_again = setting(View, "last_of", property(lambda view: view.incarnation_of))


# 5. The window is full at PROMISE.


def window_is_full_at_promise(order: str) -> None:
    """The multicasts of member 0 have reached no member, and more of them wait."""
    group = calm(Scripted(4, order=order, parameters={"window": 4}))
    group.crash(3)
    group.lose = of_kind(DATA, source=0)
    group.submit_all(30)
    group.until(frozen(group, 0, 1, 2))
    group.lose = nothing
    group.settle()
    assert {len(group.delivered(member)) for member in range(3)} == {90}


def final_waits_for_flow_control() -> None:
    """Member 0 has all proposals for its four messages, and no room for a FINAL."""
    group = calm(Scripted(4, order="abcast", parameters={"window": 4}))
    group.lose = of_kind(Kind.RELIABLE_HEARTBEAT, source=3, to=(0,))
    streams = group.here(3).stack.streams
    assert isinstance(streams, ReliableCore)
    streams._channels._tell = lambda *_: 0  # its proposals do not acknowledge either
    group.submit(0, 4)
    group.run(STEP_NS)
    assert len(group.here(0).stack._waiting) >= 1
    group.crash(3)
    group.until(frozen(group, 0, 1, 2))
    group.settle()
    assert [len(group.delivered(member)) for member in range(3)] == [4, 4, 4]


@replaces(ReliableCore, "freeze")
def own_stream_counts_up_to_what_was_acknowledged(
    freeze: Shipped, core: ReliableCore, waiting: Any, now_ns: int
) -> list[Effect]:
    """Although all of it was delivered here."""
    effects: list[Effect] = freeze(core, waiting, now_ns)
    core._frozen[core._me] = core._own.floor
    return effects


# 6. A core is given the rest of the cut: nothing is sent, nothing is delivered alone.


def rest_of_the_cut_is_given(order: str) -> None:
    """Many messages are in transit when the first member, which is sequencer and bookkeeper, has to close."""
    group = calm(Scripted(4, order=order))
    group.submit_all(8)
    group.run(MILLISECOND)
    group.lose = lambda source, target, message: (
        message.kind is DATA and not message.flags & Flag.RETRANSMISSION and (source + target + message.seq) % 2 == 0
    )
    group.submit_all(8)
    group.leave(3)
    group.until(in_view(group, 2, 0, 1, 2))
    group.lose = nothing
    group.settle(2)


@pytest.fixture(autouse=True)
def closing_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert in all tests here that closing sends nothing."""
    close = ViewStack.close

    def checked(stack: ViewStack, *args: Any) -> Closing:
        closing = close(stack, *args)
        assert all(isinstance(effect, Deliver | Undo | Report) for effect in closing.effects), closing.effects
        return closing

    monkeypatch.setattr(ViewStack, "close", checked)


@replaces(ViewStack, "close")
def rest_is_handled_like_any_message(
    _: Shipped, stack: ViewStack, cut: Any, survivors: frozenset[int], now_ns: int
) -> Closing:
    """Instead of `close`, the core gets each message as usual, in the order of this member."""
    core: ViewCore = stack.core  # type: ignore[assignment]
    rest = [message for messages in stack.streams.rest(cut).values() for message in messages]
    early = [effect for message in rest for effect in stack._raise_to_core(Deliver.of(message), now_ns)]
    closing = core.close({}, survivors, now_ns)
    effects = (*early, *closing.effects)
    assert not [one for one in effects if isinstance(one, Send | Multicast)], "nothing is sent"
    return replace(closing, effects=tuple(one for one in effects if isinstance(one, Deliver | Report)))


# 7. An initiator's FINAL reaches one member, which delivers and sends; both end.


def effect_without_its_cause() -> None:
    group = calm(Scripted(5, order="abcast"))
    group.lose = lambda source, target, message: (
        source == 4 and target in (0, 1, 2) and message.kind is DATA and message.inner is Kind.ABCAST_FINAL
    )
    group.submit(4)
    group.until(lambda: (4, 1, 1) in group.delivered(3))
    group.submit(3)
    group.until(lambda: any(one.origin == 3 and one.inner is Kind.ABCAST_FINAL for one in group.kinds(DATA)))
    group.run(2 * MILLISECOND)
    assert group.delivered(0) == []
    group.crash(3)
    group.crash(4)
    group.lose = nothing
    group.settle()
    for member in range(3):
        told = group.delivered(member)
        assert (3, 1, 1) not in told or (4, 1, 1) in told, "an effect without its cause"


every_message_of_the_dead_is_admitted = setting(Walk, "admits", lambda walk, origin, word: True)


# 8. Exactly half; pauses; heals in mid-ballot; duels.


def equal_halves(count: int) -> None:
    """The half with the first-ranked member goes on, the other one waits and returns."""
    group = calm(Scripted(count))
    first, second = tuple(range(count // 2)), tuple(range(count // 2, count))
    group.cut(first, second)
    group.submit_all(2)
    group.run(5 * SUSPECT_AFTER_NS)
    assert all(group.is_minority(member) for member in second)
    assert group.incarnations_of(0) == tuple((member, 1) for member in first)
    group.submit(0, 2)
    before = {member: list(group.delivered(member)) for member in second}
    group.run(SUSPECT_AFTER_NS)
    assert {member: group.delivered(member) for member in second} == before, "nothing new in a minority"
    group.check()
    group.heal()
    group.settle()
    assert group.incarnations_of(0) == (*((member, 1) for member in first), *((member, 2) for member in second))


any_half_is_a_quorum = setting(
    View, "is_quorum", lambda view, members: 2 * sum(one in members for one in view.members) >= len(view.members)
)


def no_quorum_is_left(count: int, *dead: int) -> None:
    """A minority for ever, whichever member restarts."""
    group = calm(Scripted(count))
    for member in dead:
        group.crash(member)
    group.run(5 * SUSPECT_AFTER_NS)
    for member in dead:
        group.restart(member)
    group.run(20 * SUSPECT_AFTER_NS)
    others = set(group.members) - set(dead)
    assert all(group.is_minority(member) and group.number(member) == 1 for member in others)
    assert not any(group.number(member) for member in dead)
    assert not any(host.core.can_submit for host in group.up())
    group.check()


def first_ranked_is_paused(for_ns: int) -> None:
    """Member 0 of two is paused: the other one is a minority, and the same view goes on."""
    group = calm(Scripted(2, order="lamport"))
    group.pause(0)
    group.submit(1, 3)
    group.run(for_ns)
    assert group.is_minority(1)
    group.resume(0)
    group.settle(1)
    assert group.minorities == [(1, True), (1, False)], "the member that was paused suspects nobody for that"


def duelling_coordinators() -> None:
    """Members 2 and 3 have promised a ballot of member 1 when the proposal of member 0 arrives."""
    group = calm(Scripted(5))
    group.crash(4)
    group.holds = of_kind(ACCEPT)
    group.until(lambda: group.here(0).change.has_chosen)
    group.lose = lambda source, target, message: 0 in (source, target)
    group.until(lambda: any(source == 1 for source, *_ in group.kept))
    group.lose = of_kind(Kind.GROUP_DECIDED, source=1)
    group.release(of_kind(ACCEPT, source=0, to=(2, 3)))
    group.run(STEP_NS)
    group.release_all()
    group.run(STEP_NS)
    group.lose = nothing
    group.settle()
    assert group.view(1, 2) == ((1, 1), (2, 1), (3, 1))


@replaces(Change, "promise")
def lower_ballots_are_taken(_: Shipped, change: Change, ballot: int) -> bool:
    change.see(ballot)
    change.promised = ballot
    return True


def heal_in_mid_ballot() -> None:
    """Members 0 and 1 have begun a ballot without 2 and 3, and the cut heals before they have proposed."""
    group = calm(Scripted(4))
    group.cut((0, 1), (2, 3))
    group.holds = of_kind(PROMISE)
    group.until(frozen(group, 0, 1))
    group.heal()
    group.run(STEP_NS)
    group.release_all()
    group.run(5 * SUSPECT_AFTER_NS)
    group.settle()


# 9. Changes back to back; joiners and donors that end; a flood.


def late_member() -> Scripted:
    """View 2 of 0, 1, 2 and 3: member 2 cannot fetch a message of view 1, and so has not installed it."""
    group = calm(Scripted(5))
    group.lose = lambda source, target, message: source == 4 and target != 3
    group.submit(4)
    group.run(STEP_NS)
    group.crash(4)
    group.lose = of_kind(DATA, to=(2,))
    group.until(in_view(group, 2, 0, 1, 3))
    group.run(STEP_NS)
    assert group.number(2) == 1
    return group


def member_still_fetches_when_the_next_view_begins() -> None:
    """The others have installed view 2 while member 2 lacks a message of view 1."""
    group = late_member()
    group.lose = nothing
    group.settle(2)
    assert {tuple(group.delivered(member)) for member in range(4)} == {((4, 1, 1),)}


@replaces(GroupCore, "_go_on")
def former_streams_are_dropped(go_on: Shipped, core: GroupCore, *args: Any) -> None:
    go_on(core, *args)
    core._former = None


def member_fetches_for_longer_than_a_limit() -> None:
    """Its messages of view 1 show that it is alive."""
    group = late_member()
    group.run(2 * SUSPECT_AFTER_NS)
    assert group.number(2) == 1
    group.lose = nothing
    group.settle(2)
    assert (2, 1) in group.incarnations_of(0)


only_messages_of_the_view_show_life = setting(ViewMember, "hear_in_former", lambda *_: None)


def member_never_gets_what_it_fetches() -> None:
    """Its messages of view 1 show that it is alive for four limits, not for ever."""
    group = late_member()
    group.until(in_view(group, 3, 0, 1, 3), 6 * SUSPECT_AFTER_NS)
    assert 2 not in dict(group.incarnations_of(0))


def messages_of_the_former_view_show_life_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("node.group.member.FETCH_LIMITS", 1_000)


def next_change_comes_while_a_member_still_fetches() -> None:
    """Member 3 ends: view 3 is decided without member 2, which comes back as its next incarnation."""
    group = late_member()
    group.crash(3)
    group.until(in_view(group, 3, 0, 1))
    group.lose = nothing
    group.settle()
    assert group.incarnations_of(0) == ((0, 1), (1, 1), (2, 2))


def joiner_ends_inside() -> None:
    group = calm(Scripted(4, founders=(0, 1, 2), make=ledger(100_000)))
    group.submit(0, 3)
    group.run(STEP_NS)
    group.restart(3)
    group.until(lambda: (3, 2) in group.incarnations_of(0))
    group.crash(3)
    group.submit(1, 3)
    group.settle()
    assert group.incarnations_of(0) == ((0, 1), (1, 1), (2, 1))


def donor_ends_in_mid_transfer() -> None:
    group = calm(Scripted(5, founders=(0, 1, 2), make=ledger(300_000)))
    group.submit(1, 4)
    group.run(STEP_NS)
    group.restart(3)
    group.until(lambda: len(group.kinds(Kind.GROUP_STATE)) > 40)
    group.crash(0)
    group.submit(2, 4)
    group.settle()
    assert group.incarnations_of(1) == ((1, 1), (2, 1), (3, 2))
    assert group.has_state(3) and group.known(3) == 8, "its state and its deliveries are all messages, each once"


def donor_does_not_answer() -> None:
    group = calm(Scripted(4, founders=(0, 1, 2), make=ledger(100_000)))
    group.submit(1, 4)
    group.run(STEP_NS)
    group.lose = of_kind(Kind.GROUP_STATE, source=0)
    group.restart(3)
    group.until(lambda: group.has_state(3), SUSPECT_AFTER_NS)
    group.settle(2)
    assert group.known(3) == 4


the_first_donor_is_asked_for_ever = setting(Collector, "donor", property(lambda collector: collector._donors[0]))


def flood_of_the_next_view() -> None:
    group = calm(Scripted(3, parameters={"window": 8}))
    for seq in range(1000, 3000):
        words = (2 << 33,)
        group.inject(0, Message(kind=DATA, origin=1, incarnation=1, seq=seq, words=words), 1)
        group.inject(0, Message(kind=DATA, origin=1, incarnation=1, seq=seq, words=(9 << 33,)), 2)
    assert group.group(0).buffered <= 8
    group.crash(2)
    group.submit(1, 3)
    group.settle(2)


@replaces(GroupCore, "_keep_early")
def the_next_view_has_no_window(_: Shipped, core: GroupCore, message: Message, source: int, *__: object) -> None:
    core._early.setdefault(source, []).append(message)


# 10. Uniform delivery at a member that is being excluded.


def uniform_delivery_at_a_member_that_is_being_excluded() -> None:
    """Its multicasts have reached no other member: it must not deliver them, although its core does."""
    for order in ("reliable", "lamport", "sequencer"):
        group = calm(Scripted(3, order=order, parameters={"uniform": True}))
        group.submit(0, 2)
        group.run(200 * MILLISECOND)
        group.lose = of_kind(DATA, source=0)
        group.submit(0, 3)
        group.run(STEP_NS)
        group.lose = lambda source, target, message: 0 in (source, target)
        group.until(in_view(group, 2, 1, 2))
        survivors = group.delivered(1)
        assert survivors == [(0, 1, 1), (0, 1, 2)]
        assert set(group.delivered(0)) <= set(survivors)
        group.lose = nothing
        group.settle()
        assert set(group.delivered(0)) <= set(survivors)


uniform_delivery_does_not_wait = setting(ViewStack, "_hand_over", lambda stack, delivery, out: out.append(delivery))


# Beyond the ten.


def two_members_suspect_different_ones() -> None:
    """Of five members, 1 does not hear 3 and 2 does not hear 4: each of 1 and 2 hears the other's suspect."""
    group = calm(Scripted(5))
    group.cut_path(3, 1)
    group.cut_path(4, 2)
    group.submit_all(3)
    group.run(3 * SUSPECT_AFTER_NS // 2)
    before = len(group.kinds(Kind.GROUP_STATUS))
    group.run(SUSPECT_AFTER_NS // 4)
    assert len(group.kinds(Kind.GROUP_STATUS)) - before < 200, "an answer is not answered"
    group.heal()
    group.settle()


@replaces(ViewMember, "status")
def answers_are_answered(status: Shipped, member: ViewMember, flags: int = 0, heard: tuple[int, ...] = ()) -> Message:
    message: Message = status(member, flags & ~StatusFlag.ANSWER, heard)
    return message


def members_join_while_the_state_takes_long() -> None:
    """One member has a large state; three more begin, one after the other."""
    group = Scripted(4, founders=(0,), make=ledger(300_000))
    for member in (1, 2, 3):
        group.run(5 * MILLISECOND)
        group.restart(member)
    group.settle(within_ns=SUSPECT_AFTER_NS)


@replaces(ViewMember, "status")
def joiners_do_not_say_that_they_wait(status: Shipped, *args: Any, **more: Any) -> Message:
    message: Message = status(*args, **more)
    words = (message.words[0] & ~(StatusFlag.STATELESS << 32), *message.words[1:])
    return replace(message, words=words)


@replaces(ViewMember, "_settle")
def joiners_are_settled_when_installed(settle: Shipped, member: ViewMember, now_ns: int, out: list[Effect]) -> None:
    member._stateless.clear()
    settle(member, now_ns, out)


def deaf(group: Scripted, member: int) -> None:
    """From now on it receives nothing, and all others receive its messages."""
    for other in group.members:
        if other != member:
            group.cut_path(other, member)


def a_deaf_member_goes_and_no_other_does() -> None:
    group = calm(Scripted(5))
    deaf(group, 2)
    group.submit_all(3)
    group.run(2 * SUSPECT_AFTER_NS)
    group.heal()
    group.settle()
    assert [group.hosts[member].membership.incarnation for member in (0, 1, 3, 4)] == [1, 1, 1, 1]


@replaces(Accusations, "victims")
def the_accused_of_a_pair_goes(_: Shipped, accusations: Accusations, *args: Any) -> frozenset[int]:
    before_ns = args[2]
    found = (pair for pair, since_ns in accusations._since_ns.items() if since_ns <= before_ns)
    return frozenset(accused for _, accused in found)


def a_deaf_member_holds_up_no_change() -> None:
    """One member receives nothing when another one crashes: the other three go on without both."""
    group = calm(Scripted(5))
    deaf(group, 2)
    group.crash(4)
    group.submit(0, 3)
    group.run(4 * SUSPECT_AFTER_NS)
    assert group.incarnations_of(0) == ((0, 1), (1, 1), (3, 1))
    group.heal()
    group.settle()


deaf_members_are_asked_for_ever = setting(Accusations, "accuses", lambda *_: False)


def a_deaf_member_takes_no_other_with_it() -> None:
    """At rest it suspects its neighbour first; the others receive its messages, which must not count as answers."""
    for quarters in range(4, 17):
        group = calm(Scripted(5))
        deaf(group, 3)
        group.run(quarters * SUSPECT_AFTER_NS // 4)
        group.heal()
        group.settle()
        assert [group.hosts[member].membership.incarnation for member in (0, 1, 2, 4)] == [1, 1, 1, 1], quarters


@replaces(Accusations, "victims")
def young_pairs_do_not_count(victims: Shipped, accusations: Accusations, *args: Any) -> frozenset[int]:
    old, before_ns = Accusations(), args[2]
    old._since_ns = {pair: since_ns for pair, since_ns in accusations._since_ns.items() if since_ns <= before_ns}
    old._said_ns = accusations._said_ns
    found: frozenset[int] = victims(old, *args)
    return found


def a_member_that_the_coordinator_did_not_reach_is_asked() -> None:
    """It receives no PREPARE and sends nothing; the coordinator ends, and the others wait half a limit and more."""
    group = calm(Scripted(5, parameters={"heartbeat_at_rest": False}))
    group.holds = everything(source=0, to=(4,))
    group.leave(3)
    group.until(frozen(group, 1, 2))
    group.crash(0)
    group.run(4 * SUSPECT_AFTER_NS)
    assert group.incarnations_of(1) == ((1, 1), (2, 1), (4, 1))


nobody_is_asked_whether_it_hears_the_suspects = setting(ViewMember, "_unheard_witnesses", lambda *_: [])


def a_promiser_ends_before_the_choice() -> None:
    """It can no longer report whether it hears the member that ended first; the leader asks living members."""
    group = calm(Scripted(5))
    group.crash(4)
    group.holds = of_kind(PROMISE, source=3)
    group.until(lambda: 1 in group.here(0).change.promises)
    group.crash(1)
    group.until(lambda: 1 in group.here(0).present, within_ns=STEP_NS)
    group.until(lambda: 1 not in group.here(0).present)
    group.release_all()
    group.until(in_view(group, 2, 0, 2, 3), within_ns=SUSPECT_AFTER_NS // 2)
    group.until(lambda: group.incarnations_of(0) == ((0, 1), (2, 1), (3, 1)))


whoever_promised_is_a_witness = setting(
    ViewMember, "_witnesses", property(lambda member: member.change.promises.keys())
)


def a_member_that_is_back_makes_no_bad_pair_at_once() -> None:
    """Members 1 and 3 are a minority while 0 returns and 2 is paused; 2 then reads what 0 said before its crash."""
    group = calm(Scripted(4))
    group.pause(2)
    group.submit(0)
    group.run(STEP_NS)
    group.restart(0)
    group.run(2 * SUSPECT_AFTER_NS)
    group.resume(2)
    group.settle()
    assert group.incarnations_of(1) == ((1, 1), (2, 1), (3, 1), (0, 2))


@replaces(Accusations, "tell")
def old_accusations_count_against_the_returned(
    _: Shipped, accusations: Accusations, accuser: int, accused: Collection[int], now_ns: int
) -> None:
    since_ns = accusations._since_ns
    for pair in [pair for pair in since_ns if pair[0] == accuser and pair[1] not in accused]:
        del since_ns[pair]
    for member in accused:
        since_ns.setdefault((accuser, member), now_ns)
    accusations._said_ns[accuser] = now_ns


DEATHS = {
    "before it has the view": {0, 2, 3},
    "before others join": {1, 2, 3},
    "before another leaves": {2},
}
"""When a member of a silent group dies, and the members of the view after it."""


def a_member_dies_in_a_silent_group(when: str) -> None:
    """No member watches another one at rest, and nobody submits; the group changes all the same."""
    group = calm(Scripted(4, founders=(0, 1, 2), parameters={"heartbeat_at_rest": False}))
    if when == "before it has the view":
        group.restart(3)
        group.until(frozen(group, 0, 1))
        group.crash(1)
    elif when == "before others join":
        group.crash(0)
        group.restart(3)
    else:
        group.crash(0)
        group.leave(1)
        group.until(lambda: not group.hosts[1].is_up)
    group.settle()
    assert {member for member, _ in group.incarnations_of(2)} == DEATHS[when]


nobody_is_needed_at_rest = setting(ViewMember, "_needs_all", lambda *_: False)


def the_first_of_two_leaves_unheard() -> None:
    """It is a quorum by itself, and nothing that it says of its decision arrives."""
    group = calm(Scripted(2))
    group.holds = of_kind(ACCEPT, Kind.GROUP_DECIDED, source=0)
    group.leave(0)
    group.run(STEP_NS)
    group.holds = nothing
    group.until(in_view(group, 2, 1), within_ns=SUSPECT_AFTER_NS)
    group.settle(2)


@replaces(GroupCore, "_tell_decision")
def excluded_members_tell_no_decision(
    tell: Shipped, core: GroupCore, here: ViewMember, member: int, now_ns: int, out: list[Effect]
) -> None:
    if not core.is_excluded:
        tell(core, here, member, now_ns, out)


# All of them.

MUTANTS: tuple[tuple[Scenario, Edit], ...] = (
    (message_between_promise_and_accept, both(delivers_after_its_promise, takes_data_when_frozen)),
    (message_after_a_failed_ballot, failed_ballot_unfreezes),
    (partial(coordinator_ends_in_mid_ballot, 3, 1), nothing_is_forced),
    (partial(holder_ends, PROMISE), accepts_before_it_has_the_cut),
    (partial(holder_ends, ACCEPTED), accepts_before_it_has_the_cut),
    (only_holder_is_an_excluded_acceptor, excluded_members_end_at_once),
    (restarted_within_an_open_ballot, votes_of_a_later_incarnation_count),
    (joiner_that_was_admitted_unheard_comes_as_its_next_incarnation, who_was_in_a_view_may_join_again),
    (final_waits_for_flow_control, what_waits_is_lost_across_views),
    (partial(window_is_full_at_promise, "cbcast"), own_stream_counts_up_to_what_was_acknowledged),
    (partial(rest_of_the_cut_is_given, "amoeba"), rest_is_handled_like_any_message),
    (effect_without_its_cause, every_message_of_the_dead_is_admitted),
    (partial(equal_halves, 2), any_half_is_a_quorum),
    (partial(equal_halves, 4), any_half_is_a_quorum),
    (partial(no_quorum_is_left, 2, 0), any_half_is_a_quorum),
    (duelling_coordinators, lower_ballots_are_taken),
    (member_still_fetches_when_the_next_view_begins, former_streams_are_dropped),
    (member_fetches_for_longer_than_a_limit, only_messages_of_the_view_show_life),
    (member_never_gets_what_it_fetches, messages_of_the_former_view_show_life_for_ever),
    (donor_does_not_answer, the_first_donor_is_asked_for_ever),
    (flood_of_the_next_view, the_next_view_has_no_window),
    (uniform_delivery_at_a_member_that_is_being_excluded, uniform_delivery_does_not_wait),
    (two_members_suspect_different_ones, answers_are_answered),
    (
        members_join_while_the_state_takes_long,
        both(joiners_do_not_say_that_they_wait, joiners_are_settled_when_installed),
    ),
    # Each of the two rules alone saves the group here.
    (
        a_deaf_member_goes_and_no_other_does,
        both(the_accused_of_a_pair_goes, old_accusations_count_against_the_returned),
    ),
    (a_deaf_member_holds_up_no_change, deaf_members_are_asked_for_ever),
    (a_deaf_member_takes_no_other_with_it, both(young_pairs_do_not_count, old_accusations_count_against_the_returned)),
    (a_member_that_the_coordinator_did_not_reach_is_asked, nobody_is_asked_whether_it_hears_the_suspects),
    (a_promiser_ends_before_the_choice, whoever_promised_is_a_witness),
    (a_member_that_is_back_makes_no_bad_pair_at_once, old_accusations_count_against_the_returned),
    *((partial(a_member_dies_in_a_silent_group, when), nobody_is_needed_at_rest) for when in DEATHS),
    (the_first_of_two_leaves_unheard, excluded_members_tell_no_decision),
)

SCENARIOS: tuple[Scenario, ...] = (
    *dict.fromkeys(scenario for scenario, _ in MUTANTS if not isinstance(scenario, partial)),
    *(partial(coordinator_ends_in_mid_ballot, accepts, votes) for accepts in range(4) for votes in range(3)),
    *(partial(holder_ends, after) for after in (PROMISE, ACCEPTED)),
    *(partial(window_is_full_at_promise, order) for order in ORDERS if order != "reliable"),
    *(partial(rest_of_the_cut_is_given, order) for order in ORDERS),
    *(partial(equal_halves, count) for count in (2, 4)),
    *(partial(no_quorum_is_left, count, *dead) for count, dead in ((2, (0,)), (3, (0, 1)), (4, (0, 1)))),
    *(partial(a_member_dies_in_a_silent_group, when) for when in DEATHS),
    *(partial(first_ranked_is_paused, for_ns) for for_ns in (SUSPECT_AFTER_NS * 3 // 2, 5 * SUSPECT_AFTER_NS)),
    excluded_returned_and_started_again,
    heal_in_mid_ballot,
    next_change_comes_while_a_member_still_fetches,
    joiner_ends_inside,
    donor_ends_in_mid_transfer,
)


def name_of(what: Scenario | Edit) -> str:
    return f"{what.func.__name__}{what.args}" if isinstance(what, partial) else what.__name__


@pytest.mark.parametrize("scenario", SCENARIOS, ids=name_of)
def test_scenario(scenario: Scenario) -> None:
    scenario()


@pytest.mark.parametrize(("scenario", "mutate"), MUTANTS, ids=name_of)
def test_a_group_without_the_rule_fails_its_scenario(
    scenario: Scenario, mutate: Edit, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        scenario()


# Further ones.


def test_a_minority_returns_to_its_view_when_nobody_has_promised_anything() -> None:
    group = calm(Scripted(3))
    group.cut((0,), (1,), (2,))
    group.run(4 * SUSPECT_AFTER_NS)
    assert all(group.is_minority(member) for member in group.members)
    group.heal()
    group.holds = of_kind(*Kind, source=2, to=(0,))
    group.run(SUSPECT_AFTER_NS // 4)
    group.release_all()
    group.submit(1, 2)
    group.settle(1)
    assert group.incarnations_of(2) == ((0, 1), (1, 1), (2, 1))


def test_an_excluded_member_learns_it_at_rest() -> None:
    """No member sends a message, before or after."""
    group = calm(Scripted(3))
    group.pause(2)
    group.until(in_view(group, 2, 0, 1))
    group.run(3 * SUSPECT_AFTER_NS)
    group.resume(2)
    group.until(lambda: (2, 2) in group.incarnations_of(0), 4 * SUSPECT_AFTER_NS)
    group.settle(3)
    assert group.delivered(2, 1) == []


@pytest.mark.parametrize("order", ["abcast", "lamport"])
def test_a_bad_pair_of_five_ends_with_one_of_them_left_out_until_all_hear_it(order: str) -> None:
    group = calm(Scripted(5, order=order))
    group.cut_path(3, 4)
    group.cut_path(4, 3)
    group.submit_all(3)
    group.until(in_view(group, 2, 0, 1, 2, 3), 6 * SUSPECT_AFTER_NS)
    assert group.incarnations_of(0) == ((0, 1), (1, 1), (2, 1), (3, 1)), "of equals the later in rank"
    for member in range(4):
        group.submit(member, 3)
    group.run(3 * SUSPECT_AFTER_NS)
    assert {len(group.delivered(member)) for member in range(4)} == {len(group.delivered(0))}
    assert all(group.hosts[member].is_idle for member in range(4)), "progress resumes"
    assert group.number(0) == 2, "it is not admitted while member 3 does not hear it"
    group.heal()
    group.settle()
    assert (4, 2) in group.incarnations_of(0)


def test_a_member_leaves_and_is_over_only_when_the_others_have_the_next_view() -> None:
    group = calm(Scripted(3, order="lamport"))
    group.submit(2, 4)
    group.leave(2)
    assert not group.hosts[2].core.can_submit
    group.until(lambda: group.hosts[2].core.has_ended)
    assert group.hosts[2].core.has_left
    assert in_view(group, 2, 0, 1)()
    assert not group.hosts[2].is_up
    group.run(2 * SUSPECT_AFTER_NS)
    group.settle(2)
    assert [one for one in group.delivered(0) if one[0] == 2] == [(2, 1, number) for number in range(1, 5)]


@pytest.mark.parametrize("order", ORDERS)
def test_a_member_joins_at_run_time(order: str) -> None:
    group = calm(Scripted(4, order=order, founders=(0, 1, 2)))
    group.submit(0, 3)
    group.run(STEP_NS)
    group.restart(3)
    group.submit(1, 3)
    group.until(lambda: group.number(3) == 2 and group.hosts[3].core.can_submit)
    group.submit_all(2)
    group.settle(2)
    first, joiner = group.hosts[0], group.hosts[3]
    told = set(first.delivered[first.views[-1][1] :])
    assert told == set(joiner.delivered), "a joiner counts from its view on"


def test_founders_are_members_and_the_last_member_does_not_leave() -> None:
    with pytest.raises(LocalError, match="founders"):
        Scripted(3, founders=(1, 7))
    group = calm(Scripted(2))
    group.leave(1)
    group.until(in_view(group, 2, 0))
    with pytest.raises(LocalError, match="last one"):
        group.group(0).leave(group.now_ns)
    assert group.group(0).can_submit


def said(kind: Kind, seq: int, *words: int, payload: bytes = b"", origin: int = 1, incarnation: int = 1) -> Message:
    return Message(kind=kind, origin=origin, incarnation=incarnation, seq=seq, words=words, payload=payload)


STATUS, FIRST, FAR, OTHERS = Kind.GROUP_STATUS, ballot_of(1, 1), ballot_of(2**30, 1), ballot_of(1, 2)
STRANGERS_WORDS: tuple[tuple[Message, int], ...] = (
    (said(PREPARE, 1, FAR), 1),
    (said(ACCEPTED, 1, FAR), 1),
    (said(STATUS, 1, 0, FAR), 1),
    (said(STATUS, 1, 1 << 12, 0, 77 << 48), 1),
    (said(PREPARE, 1, OTHERS), 1),
    (said(PREPARE, 1, FIRST, origin=77), 77),
    (said(PREPARE, 1, FIRST, origin=77), 1),
    (said(PREPARE, 1, FIRST), 77),
    (said(PREPARE, 1, FIRST, incarnation=2), 1),
    (said(PREPARE, 0, FIRST), 1),
    (said(PREPARE, 2**63, FIRST), 1),
    (said(Kind.GROUP_JOIN, 0, origin=77), 77),
    (said(Kind.GROUP_JOIN, 0), 1),
    (said(Kind.GROUP_STATE_REQUEST, 1, 2**63), 1),
    (said(Kind.GROUP_STATE, 1, 1, 1, 0, payload=b"x"), 1),
    (said(DATA, 1, 1 << 33, origin=77), 77),
    (said(DATA, 1, 1 << 33, incarnation=9), 1),
    (said(DATA, 1, 2**30 << 33), 1),
    (said(DATA, 2**32, 1 << 33), 1),
    (said(DATA, 1 << 20, 1 << 33), 1),
)
"""Messages from the far future, of strangers, of incarnations that do not exist, about other views; their sources."""


@pytest.mark.parametrize(("message", "source"), STRANGERS_WORDS)
def test_words_of_strangers_and_from_the_far_future_leave_everything_as_it_was(message: Message, source: int) -> None:
    group = calm(Scripted(3))
    before = (group.group(0).view, group.group(0).buffered, group.here(0).is_frozen)
    for _ in range(50):
        group.inject(0, message, source)
    assert (group.group(0).view, group.group(0).buffered, group.here(0).is_frozen) == before
    group.run(3 * SUSPECT_AFTER_NS)
    group.submit(1, 2)
    group.settle(1)
