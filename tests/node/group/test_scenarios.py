"""Scenarios that break a wrong group layer, each by hand, message by message; and the proof that each detects its bug.

Scenarios are functions; `MUTANTS` removes the rule that a scenario tests, and then the scenario must fail.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import pytest

from node.core import Closing, ViewCore
from node.effects import Deliver, Effect, Multicast, Report, Send, Undo
from node.errors import LocalError
from node.group.change import Change, Constraints
from node.group.codec import Proposal, StatusFlag, ballot_of
from node.group.core import GroupCore
from node.group.detector import Accusations
from node.group.member import ViewMember
from node.group.stack import ViewStack
from node.group.transfer import Collector
from node.group.view import View
from node.protocols.prefix import Walk
from node.reliable import ReliableCore
from node.wire import Flag, Kind, Message
from tests.node.cluster import MILLISECOND
from tests.node.group.scripted import SUSPECT_AFTER_NS, Ledger, Scripted, everything, ledger, of_kind

Scenario: TypeAlias = Callable[[], None]
Mutate: TypeAlias = Callable[[pytest.MonkeyPatch], None]

STEP_NS = 5 * MILLISECOND
"""Long enough for some messages in both directions."""
DATA = Kind.RELIABLE_DATA
PREPARE, PROMISE, ACCEPT, ACCEPTED = (
    Kind.GROUP_PREPARE,
    Kind.GROUP_PROMISE,
    Kind.GROUP_ACCEPT,
    Kind.GROUP_ACCEPTED,
)
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
    group.holds = lambda source, target, message: message.kind in (DATA, ACCEPT)
    group.until(frozen(group, 0, 1))
    group.release(of_kind(DATA, to=(1,)))
    group.run(STEP_NS)
    group.holds = lambda source, target, message: False
    group.release(of_kind(ACCEPT))
    group.until(in_view(group, 2, 0, 1))
    group.release()
    group.settle(2)
    assert group.history(1).all_delivered == group.history(0).all_delivered == []


def message_after_a_failed_ballot() -> None:
    """Member 3 alone has accepted a value whose cut lacks the message; its coordinator ends; the message arrives."""
    group = calm(Scripted(5))
    group.holds = of_kind(DATA, source=4)
    group.submit(4)
    group.crash(4)
    held = of_kind(DATA, source=4)
    group.holds = held
    group.lose = lambda source, target, message: (
        (message.kind is ACCEPT and source == 0 and target != 3) or (message.kind is ACCEPTED)
    )
    group.until(lambda: group.here(3).change.accepted is not None)
    group.crash(0)
    group.lose = lambda source, target, message: False
    group.until(lambda: 0 in group.here(1)._detector.suspects)
    group.run(MILLISECOND // 2)
    group.release(of_kind(DATA, to=(1,)))
    group.until(in_view(group, 2, 1, 2, 3))
    group.release()
    group.until(in_view(group, 3, 1, 2, 3))
    group.check()
    assert group.history(1).all_delivered == []


def delivers_after_its_promise(patch: pytest.MonkeyPatch) -> None:
    on_data = ReliableCore._on_data

    def eager(core: ReliableCore, message: Message, source: int, now_ns: int, out: list[Effect]) -> None:
        on_data(core, message, source, now_ns, out)
        stream = core._streams[message.origin]
        while core.phase == "frozen" and stream.delivered < stream.position:
            stream.delivered += 1
            out.append(Deliver.of(stream.buffered[stream.delivered]))

    patch.setattr(ReliableCore, "_on_data", eager)
    handlers = ReliableCore.on_message

    def on_message(core: ReliableCore, message: Message, source: int, now_ns: int) -> list[Effect]:
        core._handlers[DATA] = core._on_data
        return handlers(core, message, source, now_ns)

    patch.setattr(ReliableCore, "on_message", on_message)


def failed_ballot_unfreezes(patch: pytest.MonkeyPatch) -> None:
    """When the coordinator is gone, members go on as if they had promised nothing."""
    consider = ViewMember.consider

    def forgetful(member: ViewMember, now_ns: int, out: list[Effect]) -> None:
        gone = member.is_frozen and member.view.members[member.change.promised & 0xFFFF] in member._gone
        streams = member.stack.streams
        assert isinstance(streams, ReliableCore)
        if gone and streams.phase == "frozen":
            streams._enter(type(streams.phase).OPEN)
            streams._channels.receivers.update({one: _NoUnicasts() for one in member._peers})  # type: ignore[misc]
            member.stack.is_frozen = False
            out += member.stack.hold(False, now_ns)
        consider(member, now_ns, out)

    patch.setattr(ViewMember, "consider", forgetful)


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
    group.lose = lambda source, target, message: False
    group.run(12 * SUSPECT_AFTER_NS)
    group.check()
    if decided:
        assert accepts == 3, "three votes decide"
        assert group.history(2).views[2].incarnations == ((0, 1), (2, 1), (3, 1), (4, 1))
    installed = group.histories[3, 1].views
    assert 2 in installed, f"the ballot ends: {group.where()}"
    is_left_out = (1, 1) not in installed[2].incarnations
    assert is_left_out or not (decided or accepts), "a value that a member has accepted is the one"


def coordinator_ends_after_its_value_was_decided_by_one_member() -> None:
    coordinator_ends_in_mid_ballot(3, 1)


def nothing_is_forced(patch: pytest.MonkeyPatch) -> None:
    """A coordinator ignores accepted values."""
    choose = Change.choose

    def free(change: Change, constraints: Constraints) -> Proposal | None:
        change.promises.update({one: replace(told, accepted=None) for one, told in change.promises.items()})
        return choose(change, constraints)

    patch.setattr(Change, "choose", free)


# 3. The only holder of a message of the cut ends after PROMISE, after ACCEPTED, and is an excluded acceptor.


def holder_ends(after: Kind) -> None:
    group = calm(Scripted(5))
    group.lose = lambda source, target, message: source == 4 and target != 3
    group.submit(4)
    group.run(STEP_NS)
    assert group.history(3).all_delivered == [(4, 1, 1)]
    group.crash(4)
    sent = len(group.kinds(after))
    group.lose = of_kind(DATA, source=3)
    group.until(lambda: any(message.origin == 3 for message in group.kinds(after)[sent:]))
    group.run(2 * MILLISECOND)
    proposal = group.here(0).change.proposal
    assert proposal is not None
    assert proposal.value.cut[4] == 1
    group.crash(3)
    group.run(8 * SUSPECT_AFTER_NS)
    group.settle()
    assert group.incarnations_of(0) == ((0, 1), (1, 1), (2, 1)), "without the message, which nobody of them has"
    assert group.history(0).all_delivered == []


def holder_ends_after_its_promise() -> None:
    holder_ends(PROMISE)


def holder_ends_after_its_vote() -> None:
    holder_ends(ACCEPTED)


def accepts_before_it_has_the_cut(patch: pytest.MonkeyPatch) -> None:
    accept = ViewMember.accept_if_complete

    def hasty(member: ViewMember, out: list[Effect]) -> None:
        patch.setattr(ReliableCore, "has", lambda streams, cut: True)
        try:
            accept(member, out)
        finally:
            patch.setattr(ReliableCore, "has", has)

    has = ReliableCore.has
    patch.setattr(ViewMember, "accept_if_complete", hasty)


def only_holder_is_an_excluded_acceptor() -> None:
    """Members 2 and 3 leave; a message of 2 reaches 0, which decides and ends: then only 2 and 3 have it."""
    group = calm(Scripted(4))
    group.lose = lambda source, target, message: message.kind is DATA and target == 1
    group.submit(2)
    group.leave(2)
    group.leave(3)
    group.until(in_view(group, 2, 0))
    group.crash(0)
    group.run(STEP_NS)
    assert group.number(1) == 1, "it still lacks the message"
    group.lose = lambda source, target, message: False
    group.until(in_view(group, 2, 1), 4 * SUSPECT_AFTER_NS)
    assert group.history(1).all_delivered == group.history(0).all_delivered == [(2, 1, 1)]
    group.check()


def excluded_members_end_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
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
    group.crash(2)
    group.restart(2)
    forged = Message(kind=ACCEPTED, origin=2, incarnation=2, seq=1, flags=4, words=(ballot,))
    group.inject(0, forged, 2)
    assert group.here(0).change.voters(ballot) == {0}, "member 2 has lost what it voted for"
    group.release_all()
    group.until(lambda: (2, 2) in group.incarnations_of(0) and group.is_settled())
    group.check()
    assert (2, 1) not in group.incarnations_of(0)


def votes_of_a_later_incarnation_count(patch: pytest.MonkeyPatch) -> None:
    is_of_view = GroupCore._is_of_view

    def lax(core: GroupCore, here: ViewMember, message: Message, now_ns: int, out: list[Effect]) -> bool:
        is_ours = message.seq == here.view.number and message.origin in here.view.members
        return is_ours or is_of_view(core, here, message, now_ns, out)

    patch.setattr(GroupCore, "_is_of_view", lax)


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
    group.lose = lambda source, target, message: target == 3
    group.begin(3)
    group.until(in_view(group, 3, 0, 1, 2))
    assert (3, 1) in group.history(0).views[2].incarnations
    group.run(2 * SUSPECT_AFTER_NS)
    group.lose = lambda source, target, message: False
    group.settle()
    assert (3, 2) in group.incarnations_of(0)


def who_was_in_a_view_may_join_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(View, "last_of", property(lambda view: view.incarnation_of))


# 5. The window is full at PROMISE.


def window_is_full_at_promise(order: str) -> None:
    """The multicasts of member 0 have reached no member, and more of them wait."""
    group = calm(Scripted(4, order=order, parameters={"window": 4}))
    group.crash(3)
    group.lose = of_kind(DATA, source=0)
    for member in range(3):
        group.submit(member, 30)
    group.until(frozen(group, 0, 1, 2))
    group.lose = lambda source, target, message: False
    group.settle()
    assert {len(group.history(member).all_delivered) for member in range(3)} == {90}


def window_is_full_under_cbcast() -> None:
    window_is_full_at_promise("cbcast")


def final_waits_for_flow_control() -> None:
    """Member 0 has all proposals for its four messages, and no room for a FINAL."""
    group = calm(Scripted(4, order="abcast", parameters={"window": 4}))
    group.lose = of_kind(Kind.RELIABLE_HEARTBEAT, source=3, to=(0,))
    group.submit(0, 4)
    group.run(STEP_NS)
    assert len(group.here(0).stack._waiting) >= 1
    group.crash(3)
    group.until(frozen(group, 0, 1, 2))
    group.settle()
    assert [len(group.history(member).all_delivered) for member in range(3)] == [4, 4, 4]


def what_waits_for_flow_control_is_lost(patch: pytest.MonkeyPatch) -> None:
    """The own stream ends with what was transmitted, and the core is not asked for the rest."""
    freeze, close = ReliableCore.freeze, ViewStack.close
    patch.setattr(ReliableCore, "freeze", lambda core, waiting, now_ns: freeze(core, (), now_ns))

    def forgetful(stack: ViewStack, *args: Any) -> Closing:
        return replace(close(stack, *args), handed_back=())

    patch.setattr(ViewStack, "close", forgetful)


def own_stream_counts_up_to_what_was_acknowledged(patch: pytest.MonkeyPatch) -> None:
    """Although all of it was delivered here."""
    freeze = ReliableCore.freeze

    def modest(core: ReliableCore, waiting: Any, now_ns: int) -> list[Effect]:
        effects = freeze(core, waiting, now_ns)
        core._frozen[core._me] = core._own.floor
        return effects

    patch.setattr(ReliableCore, "freeze", modest)


# 6. A core is given the rest of the cut: nothing is sent, nothing is delivered alone.


def rest_of_the_cut_is_given(order: str) -> None:
    """Many messages are in transit when the first member, which is sequencer and bookkeeper, has to close."""
    group = calm(Scripted(4, order=order))
    for member in range(4):
        group.submit(member, 8)
    group.run(MILLISECOND)
    group.lose = lambda source, target, message: (
        message.kind is DATA and not message.flags & Flag.RETRANSMISSION and (source + target + message.seq) % 2 == 0
    )
    for member in range(4):
        group.submit(member, 8)
    group.leave(3)
    group.until(in_view(group, 2, 0, 1, 2))
    group.lose = lambda source, target, message: False
    group.settle(2)


def rest_is_given_to_amoeba() -> None:
    rest_of_the_cut_is_given("amoeba")


@pytest.fixture(autouse=True)
def closing_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert in all tests here that closing sends nothing."""
    close = ViewStack.close

    def checked(stack: ViewStack, *args: Any) -> Closing:
        closing = close(stack, *args)
        assert all(isinstance(effect, Deliver | Undo | Report) for effect in closing.effects), closing.effects
        return closing

    monkeypatch.setattr(ViewStack, "close", checked)


def rest_is_handled_like_any_message(patch: pytest.MonkeyPatch) -> None:
    """Instead of `close`, the core gets each message as usual, in the order of this member."""

    def close(stack: ViewStack, cut: Any, survivors: frozenset[int], now_ns: int) -> Closing:
        core: ViewCore = stack.core  # type: ignore[assignment]
        out: list[Effect] = []
        for messages in stack.streams.rest(cut).values():
            for message in messages:
                out += stack._raise_to_core(Deliver.of(message), now_ns)
        rest = core.close({}, survivors, now_ns)
        effects = (*out, *rest.effects)
        assert not [one for one in effects if isinstance(one, Send | Multicast)], "nothing is sent"
        kept = tuple(one for one in effects if isinstance(one, Deliver | Report))
        return Closing(effects=kept, handed_back=rest.handed_back, memory=rest.memory)

    patch.setattr(ViewStack, "close", close)


# 7. An initiator's FINAL reaches one member, which delivers and sends; both end.


def effect_without_its_cause() -> None:
    group = calm(Scripted(5, order="abcast"))
    group.lose = lambda source, target, message: (
        source == 4 and target in (0, 1, 2) and message.kind is DATA and message.inner is Kind.ABCAST_FINAL
    )
    group.submit(4)
    group.until(lambda: (4, 1, 1) in group.history(3).all_delivered)
    group.submit(3)
    group.until(lambda: any(one.origin == 3 and one.inner is Kind.ABCAST_FINAL for one in group.kinds(DATA)))
    group.run(2 * MILLISECOND)
    assert group.history(0).all_delivered == []
    group.crash(3)
    group.crash(4)
    group.lose = lambda source, target, message: False
    group.settle()
    for member in range(3):
        told = group.history(member).all_delivered
        assert (3, 1, 1) not in told or (4, 1, 1) in told, "an effect without its cause"


def every_message_of_the_dead_is_admitted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Walk, "admits", lambda walk, origin, word: True)


# 8. Exactly half; pauses; heals in mid-ballot; duels.


def equal_halves(count: int) -> None:
    """The half with the first-ranked member goes on, the other one waits and returns."""
    group = calm(Scripted(count))
    first, second = tuple(range(count // 2)), tuple(range(count // 2, count))
    group.cut(first, second)
    for member in group.members:
        group.submit(member, 2)
    group.run(5 * SUSPECT_AFTER_NS)
    assert all(group.is_minority(member) for member in second)
    assert group.incarnations_of(0) == tuple((member, 1) for member in first)
    group.submit(0, 2)
    before = {member: list(group.history(member).all_delivered) for member in second}
    group.run(SUSPECT_AFTER_NS)
    assert {member: group.history(member).all_delivered for member in second} == before, "nothing new in a minority"
    group.check()
    group.heal()
    group.settle()
    assert group.incarnations_of(0) == (*((member, 1) for member in first), *((member, 2) for member in second))


def equal_halves_of_four() -> None:
    equal_halves(4)


def equal_halves_of_two() -> None:
    equal_halves(2)


def any_half_is_a_quorum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        View, "is_quorum", lambda view, members: 2 * sum(one in members for one in view.members) >= len(view.members)
    )


def first_ranked_is_dead(count: int) -> None:
    """Half of the members, without the first: a minority for ever, whichever member restarts."""
    group = calm(Scripted(count))
    dead = tuple(range(count // 2))
    for member in dead:
        group.crash(member)
    group.run(5 * SUSPECT_AFTER_NS)
    for member in dead:
        group.restart(member)
    group.run(20 * SUSPECT_AFTER_NS)
    assert all(group.is_minority(member) and group.number(member) == 1 for member in group.members[count // 2 :])
    assert not any(group.number(member) for member in dead)
    assert not any(host.core.can_submit for host in group.up())
    group.check()


def first_ranked_of_two_is_dead() -> None:
    first_ranked_is_dead(2)


def first_ranked_is_paused(for_ns: int) -> None:
    """Member 0 of two is paused: the other one is a minority, and the same view goes on."""
    group = calm(Scripted(2, order="lamport"))
    group.pause(0)
    group.submit(1, 3)
    group.run(for_ns)
    assert group.is_minority(1)
    group.resume(0)
    group.settle(1)
    assert not group.history(0).minorities, "the member that was paused suspects nobody for that"
    assert [one.begins for one in group.history(1).minorities] == [True, False]


def duelling_coordinators() -> None:
    """Members 2 and 3 have promised a ballot of member 1 when the proposal of member 0 arrives."""
    group = calm(Scripted(5))
    group.crash(4)
    group.holds = lambda source, target, message: message.kind is ACCEPT
    group.until(lambda: group.here(0).change.has_chosen)
    group.lose = lambda source, target, message: 0 in (source, target)
    group.until(lambda: any(source == 1 for source, *_ in group.kept))
    group.lose = lambda source, target, message: source == 1 and message.kind is Kind.GROUP_DECIDED
    group.release(of_kind(ACCEPT, source=0, to=(2, 3)))
    group.run(STEP_NS)
    group.release_all()
    group.run(STEP_NS)
    group.lose = lambda source, target, message: False
    group.settle()
    assert group.history(1).views[2].incarnations == ((1, 1), (2, 1), (3, 1))


def lower_ballots_are_taken(patch: pytest.MonkeyPatch) -> None:
    def promise(change: Change, ballot: int) -> bool:
        change.see(ballot)
        change.promised = ballot
        return True

    patch.setattr(Change, "promise", promise)


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
    group.lose = lambda source, target, message: message.kind is DATA and target == 2
    group.until(in_view(group, 2, 0, 1, 3))
    group.run(STEP_NS)
    assert group.number(2) == 1
    return group


def member_still_fetches_when_the_next_view_begins() -> None:
    """The others have installed view 2 while member 2 lacks a message of view 1."""
    group = late_member()
    group.lose = lambda source, target, message: False
    group.settle(2)
    assert {tuple(group.history(member).all_delivered) for member in range(4)} == {((4, 1, 1),)}


def former_streams_are_dropped(patch: pytest.MonkeyPatch) -> None:
    go_on = GroupCore._go_on

    def forgetful(core: GroupCore, *args: Any) -> None:
        go_on(core, *args)
        core._former = None

    patch.setattr(GroupCore, "_go_on", forgetful)


def member_fetches_for_longer_than_a_limit() -> None:
    """Its messages of view 1 show that it is alive."""
    group = late_member()
    group.run(2 * SUSPECT_AFTER_NS)
    assert group.number(2) == 1
    group.lose = lambda source, target, message: False
    group.settle(2)
    assert (2, 1) in group.incarnations_of(0)


def only_messages_of_the_view_show_life(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ViewMember, "hear_in_former", lambda *_: None)


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
    group.lose = lambda source, target, message: False
    group.settle()
    assert group.incarnations_of(0) == ((0, 1), (1, 1), (2, 2))


def joiner_ends_inside() -> None:
    group = calm(Scripted(4, founders=(0, 1, 2), make=ledger(100_000)))
    group.submit(0, 3)
    group.run(STEP_NS)
    group.begin(3)
    group.until(lambda: (3, 1) in group.incarnations_of(0))
    group.crash(3)
    group.submit(1, 3)
    group.settle()
    assert group.incarnations_of(0) == ((0, 1), (1, 1), (2, 1))


def donor_ends_in_mid_transfer() -> None:
    group = calm(Scripted(5, founders=(0, 1, 2), make=ledger(300_000)))
    group.submit(1, 4)
    group.run(STEP_NS)
    group.begin(3)
    group.until(lambda: len(group.kinds(Kind.GROUP_STATE)) > 40)
    group.crash(0)
    group.submit(2, 4)
    group.settle()
    assert group.incarnations_of(1) == ((1, 1), (2, 1), (3, 1))
    check_joiner(group, 3, 8)


def donor_does_not_answer() -> None:
    group = calm(Scripted(4, founders=(0, 1, 2), make=ledger(100_000)))
    group.submit(1, 4)
    group.run(STEP_NS)
    group.lose = of_kind(Kind.GROUP_STATE, source=0)
    group.begin(3)
    group.until(lambda: group.history(3).state is not None, SUSPECT_AFTER_NS)
    group.settle(2)
    check_joiner(group, 3, 4)


def check_joiner(group: Scripted, member: int, known: int) -> None:
    """Its state and its deliveries together are all messages, each once."""
    core = group.here(member).stack.core
    assert isinstance(core, Ledger)
    assert core.known == known
    state = group.history(member).state
    assert state is not None


def the_first_donor_is_asked_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Collector, "donor", property(lambda collector: collector._donors[0]))


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


def the_next_view_has_no_window(patch: pytest.MonkeyPatch) -> None:
    def keep(core: GroupCore, message: Message, source: int, number: int, out: list[Effect]) -> None:
        del number, out
        core._early.setdefault(source, []).append(message)

    patch.setattr(GroupCore, "_keep_early", keep)


# 10. Uniform delivery at a member that is being excluded.


def uniform_delivery_at_a_member_that_is_being_excluded() -> None:
    """Its multicasts have reached no other member: it must not deliver them, although its core does."""
    for order in ("reliable", "lamport", "sequencer"):
        group = calm(Scripted(3, order=order, parameters={"uniform": True}))
        group.submit(0, 2)
        group.run(200 * MILLISECOND)
        group.lose = lambda source, target, message: source == 0 and message.kind is DATA
        group.submit(0, 3)
        group.run(STEP_NS)
        group.lose = lambda source, target, message: 0 in (source, target)
        group.until(in_view(group, 2, 1, 2))
        survivors = group.history(1).all_delivered
        assert survivors == [(0, 1, 1), (0, 1, 2)]
        assert set(group.history(0).all_delivered) <= set(survivors)
        group.lose = lambda source, target, message: False
        group.settle()
        assert set(group.history(0).all_delivered) <= set(survivors)


def uniform_delivery_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ViewStack, "_hand_over", lambda stack, delivery, out: out.append(delivery))


# Beyond the ten.


def two_members_suspect_different_ones() -> None:
    """Of five members, 1 does not hear 3 and 2 does not hear 4: each of 1 and 2 hears the other's suspect."""
    group = calm(Scripted(5))
    group.cut_path(3, 1)
    group.cut_path(4, 2)
    for member in group.members:
        group.submit(member, 3)
    group.run(3 * SUSPECT_AFTER_NS // 2)
    before = len(group.kinds(Kind.GROUP_STATUS))
    group.run(SUSPECT_AFTER_NS // 4)
    assert len(group.kinds(Kind.GROUP_STATUS)) - before < 200, "an answer is not answered"
    group.heal()
    group.settle()


def answers_are_answered(patch: pytest.MonkeyPatch) -> None:
    status = ViewMember.status

    def without_mark(member: ViewMember, flags: int = 0, heard: tuple[int, ...] = ()) -> Message:
        return status(member, flags & ~StatusFlag.ANSWER, heard)

    patch.setattr(ViewMember, "status", without_mark)


def members_join_while_the_state_takes_long() -> None:
    """One member has a large state; three more begin, one after the other."""
    group = Scripted(4, founders=(0,), make=ledger(300_000))
    for member in (1, 2, 3):
        group.run(5 * MILLISECOND)
        group.begin(member)
    group.settle()


def joiners_do_not_wait_for_the_state(patch: pytest.MonkeyPatch) -> None:
    status = ViewMember.status

    def without_mark(member: ViewMember, flags: int = 0, heard: tuple[int, ...] = ()) -> Message:
        message = status(member, flags, heard)
        words = (message.words[0] & ~(StatusFlag.STATELESS << 32), *message.words[1:])
        return replace(message, words=words)

    patch.setattr(ViewMember, "status", without_mark)
    settle = ViewMember._settle

    def settled_when_installed(member: ViewMember, now_ns: int, out: list[Effect]) -> None:
        member._stateless.clear()
        settle(member, now_ns, out)

    patch.setattr(ViewMember, "_settle", settled_when_installed)


def deaf(group: Scripted, member: int) -> None:
    """From now on it receives nothing, and all others receive its messages."""
    for other in group.members:
        if other != member:
            group.cut_path(other, member)


def a_deaf_member_goes_and_no_other_does() -> None:
    group = calm(Scripted(5))
    deaf(group, 2)
    for member in group.members:
        group.submit(member, 3)
    group.run(2 * SUSPECT_AFTER_NS)
    group.heal()
    group.settle()
    assert [group.hosts[member].membership.incarnation for member in (0, 1, 3, 4)] == [1, 1, 1, 1]


def the_accused_of_a_pair_goes(patch: pytest.MonkeyPatch) -> None:
    """And a member that is back counts as before: each of the two rules alone saves the group here."""
    old_accusations_count_against_the_returned(patch)

    def victims(
        accusations: Accusations, ranks: Mapping[int, int], alive: Collection[int], before_ns: int, *_: object
    ) -> frozenset[int]:
        found = (pair for pair, since_ns in accusations._since_ns.items() if since_ns <= before_ns)
        return frozenset(accused for _, accused in found)

    patch.setattr(Accusations, "victims", victims)


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


def deaf_members_are_asked_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Accusations, "accuses", lambda *_: False)


def a_deaf_member_takes_no_other_with_it() -> None:
    """At rest it suspects its neighbour first; the others receive its messages, which must not count as answers."""
    for quarters in range(4, 17):
        group = calm(Scripted(5))
        deaf(group, 3)
        group.run(quarters * SUSPECT_AFTER_NS // 4)
        group.heal()
        group.settle()
        assert [group.hosts[member].membership.incarnation for member in (0, 1, 2, 4)] == [1, 1, 1, 1], quarters


def young_pairs_do_not_count(patch: pytest.MonkeyPatch) -> None:
    """And a member that is back counts as before: each of the two rules alone saves the group here."""
    old_accusations_count_against_the_returned(patch)
    victims = Accusations.victims

    def of_old_pairs(
        accusations: Accusations, ranks: Mapping[int, int], alive: Collection[int], before_ns: int, said_ns: int
    ) -> frozenset[int]:
        old = Accusations()
        old._since_ns = {pair: since_ns for pair, since_ns in accusations._since_ns.items() if since_ns <= before_ns}
        old._said_ns = accusations._said_ns
        return victims(old, ranks, alive, before_ns, said_ns)

    patch.setattr(Accusations, "victims", of_old_pairs)


def a_member_that_the_coordinator_did_not_reach_is_asked() -> None:
    """It receives no PREPARE and sends nothing; the coordinator ends, and the others wait half a limit and more."""
    group = calm(Scripted(5, parameters={"heartbeat_at_rest": False}))
    group.holds = everything(source=0, to=(4,))
    group.leave(3)
    group.until(frozen(group, 1, 2))
    group.crash(0)
    group.run(4 * SUSPECT_AFTER_NS)
    assert group.incarnations_of(1) == ((1, 1), (2, 1), (4, 1))


def nobody_is_asked_whether_it_hears_the_suspects(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ViewMember, "_unheard_witnesses", lambda *_: [])


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


def whoever_promised_is_a_witness(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ViewMember, "_witnesses", property(lambda member: member.change.promises.keys()))


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


def old_accusations_count_against_the_returned(patch: pytest.MonkeyPatch) -> None:
    def tell(accusations: Accusations, accuser: int, accused: Collection[int], now_ns: int) -> None:
        since_ns = accusations._since_ns
        for pair in [pair for pair in since_ns if pair[0] == accuser and pair[1] not in accused]:
            del since_ns[pair]
        for member in accused:
            since_ns.setdefault((accuser, member), now_ns)
        accusations._said_ns[accuser] = now_ns

    patch.setattr(Accusations, "tell", tell)


# All of them.

MUTANTS: tuple[tuple[Scenario, Mutate], ...] = (
    (message_between_promise_and_accept, delivers_after_its_promise),
    (message_after_a_failed_ballot, failed_ballot_unfreezes),
    (coordinator_ends_after_its_value_was_decided_by_one_member, nothing_is_forced),
    (holder_ends_after_its_promise, accepts_before_it_has_the_cut),
    (holder_ends_after_its_vote, accepts_before_it_has_the_cut),
    (only_holder_is_an_excluded_acceptor, excluded_members_end_at_once),
    (restarted_within_an_open_ballot, votes_of_a_later_incarnation_count),
    (joiner_that_was_admitted_unheard_comes_as_its_next_incarnation, who_was_in_a_view_may_join_again),
    (final_waits_for_flow_control, what_waits_for_flow_control_is_lost),
    (window_is_full_under_cbcast, own_stream_counts_up_to_what_was_acknowledged),
    (rest_is_given_to_amoeba, rest_is_handled_like_any_message),
    (effect_without_its_cause, every_message_of_the_dead_is_admitted),
    (equal_halves_of_two, any_half_is_a_quorum),
    (equal_halves_of_four, any_half_is_a_quorum),
    (first_ranked_of_two_is_dead, any_half_is_a_quorum),
    (duelling_coordinators, lower_ballots_are_taken),
    (member_still_fetches_when_the_next_view_begins, former_streams_are_dropped),
    (member_fetches_for_longer_than_a_limit, only_messages_of_the_view_show_life),
    (member_never_gets_what_it_fetches, messages_of_the_former_view_show_life_for_ever),
    (donor_does_not_answer, the_first_donor_is_asked_for_ever),
    (flood_of_the_next_view, the_next_view_has_no_window),
    (uniform_delivery_at_a_member_that_is_being_excluded, uniform_delivery_does_not_wait),
    (two_members_suspect_different_ones, answers_are_answered),
    (members_join_while_the_state_takes_long, joiners_do_not_wait_for_the_state),
    (a_deaf_member_goes_and_no_other_does, the_accused_of_a_pair_goes),
    (a_deaf_member_holds_up_no_change, deaf_members_are_asked_for_ever),
    (a_deaf_member_takes_no_other_with_it, young_pairs_do_not_count),
    (a_member_that_the_coordinator_did_not_reach_is_asked, nobody_is_asked_whether_it_hears_the_suspects),
    (a_promiser_ends_before_the_choice, whoever_promised_is_a_witness),
    (a_member_that_is_back_makes_no_bad_pair_at_once, old_accusations_count_against_the_returned),
)

SCENARIOS: tuple[Scenario, ...] = (
    *dict.fromkeys(scenario for scenario, _ in MUTANTS),
    excluded_returned_and_started_again,
    heal_in_mid_ballot,
    next_change_comes_while_a_member_still_fetches,
    joiner_ends_inside,
    donor_ends_in_mid_transfer,
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
def test_scenario(scenario: Scenario) -> None:
    scenario()


@pytest.mark.parametrize(("scenario", "mutate"), MUTANTS, ids=lambda one: one.__name__)
def test_a_group_without_the_rule_fails_its_scenario(
    scenario: Scenario, mutate: Mutate, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        scenario()


@pytest.mark.parametrize("accepts", range(4))
@pytest.mark.parametrize("votes", range(3))
def test_the_coordinator_ends_after_each_single_accept_and_vote(accepts: int, votes: int) -> None:
    coordinator_ends_in_mid_ballot(accepts, votes)


@pytest.mark.parametrize("order", ["cbcast", "atop", "abcast", "lamport", "sequencer", "allack", "amoeba"])
def test_the_window_is_full_at_promise(order: str) -> None:
    window_is_full_at_promise(order)


@pytest.mark.parametrize("order", ORDERS)
def test_a_core_that_is_given_the_rest_of_the_cut_sends_nothing(order: str) -> None:
    rest_of_the_cut_is_given(order)


def test_of_four_half_without_the_first_ranked_is_a_minority_for_ever() -> None:
    first_ranked_is_dead(4)


@pytest.mark.parametrize("times", [1.5, 5])
def test_a_first_ranked_member_that_is_paused_for_longer_than_patience_goes_on_in_the_same_view(times: float) -> None:
    first_ranked_is_paused(int(times * SUSPECT_AFTER_NS))


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
    assert group.history(2, 1).all_delivered == []


@pytest.mark.parametrize("order", ["abcast", "lamport"])
def test_a_bad_pair_of_five_ends_with_one_of_them_left_out_until_all_hear_it(order: str) -> None:
    group = calm(Scripted(5, order=order))
    group.cut_path(3, 4)
    group.cut_path(4, 3)
    for member in group.members:
        group.submit(member, 3)
    group.until(in_view(group, 2, 0, 1, 2, 3), 6 * SUSPECT_AFTER_NS)
    assert group.incarnations_of(0) == ((0, 1), (1, 1), (2, 1), (3, 1)), "of equals the later in rank"
    for member in range(4):
        group.submit(member, 3)
    group.run(3 * SUSPECT_AFTER_NS)
    assert {len(group.history(member).all_delivered) for member in range(4)} == {len(group.history(0).all_delivered)}
    assert all(group.hosts[member].is_idle for member in range(4)), "progress resumes"
    assert group.number(0) == 2, "it is not admitted while member 3 does not hear it"
    group.heal()
    group.settle()
    assert (4, 2) in group.incarnations_of(0)


def test_two_members_end_at_once() -> None:
    group = calm(Scripted(5, order="lamport"))
    for member in group.members:
        group.submit(member, 5)
    group.run(MILLISECOND // 2)
    group.crash(0)
    group.crash(3)
    group.settle()
    assert group.incarnations_of(1) == ((1, 1), (2, 1), (4, 1))


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
    assert [one for one in group.history(0).all_delivered if one[0] == 2] == [(2, 1, number) for number in range(1, 5)]


@pytest.mark.parametrize("order", ORDERS)
def test_a_member_joins_at_run_time(order: str) -> None:
    group = calm(Scripted(4, order=order, founders=(0, 1, 2)))
    group.submit(0, 3)
    group.run(STEP_NS)
    group.begin(3)
    group.submit(1, 3)
    group.until(lambda: group.number(3) == 2 and group.hosts[3].core.can_submit)
    for member in group.members:
        group.submit(member, 2)
    group.settle(2)
    told = [history.delivered[2] for incarnation, history in group.histories.items()]
    assert set(told[3]) == set(told[0]), "a joiner counts from its view on"


def test_a_group_that_has_lost_its_quorum_to_crashes_stays_in_minority() -> None:
    group = calm(Scripted(3))
    group.crash(0)
    group.crash(1)
    group.run(4 * SUSPECT_AFTER_NS)
    group.restart(0)
    group.restart(1)
    group.run(30 * SUSPECT_AFTER_NS)
    assert group.is_minority(2)
    assert [group.number(member) for member in (0, 1)] == [0, 0]
    group.check()


def test_founders_are_members_and_the_last_member_does_not_leave() -> None:
    with pytest.raises(LocalError, match="founders"):
        Scripted(3, founders=(1, 7))
    group = calm(Scripted(2))
    group.leave(1)
    group.until(in_view(group, 2, 0))
    with pytest.raises(LocalError, match="last one"):
        group.group(0).leave(group.now_ns)
    assert group.group(0).can_submit


def strangers_words() -> list[tuple[Message, int]]:
    """Messages from the far future, of strangers, of incarnations that do not exist, about other views."""
    ballot, far = ballot_of(2**30, 1), ballot_of(1, 1)

    def said(kind: Kind, seq: int = 1, words: tuple[int, ...] = (), payload: bytes = b"") -> Message:
        return Message(kind=kind, origin=1, incarnation=1, seq=seq, words=words, payload=payload)

    return [
        (said(PREPARE, seq=1, words=(ballot,)), 1),
        (said(ACCEPTED, seq=1, words=(ballot,)), 1),
        (said(Kind.GROUP_STATUS, seq=1, words=(0, ballot)), 1),
        (said(Kind.GROUP_STATUS, seq=1, words=(1 << 12, 0, 77 << 48)), 1),
        (said(PREPARE, seq=1, words=(ballot_of(1, 2),)), 1),
        (Message(kind=PREPARE, origin=77, incarnation=1, seq=1, words=(far,)), 77),
        (Message(kind=PREPARE, origin=77, incarnation=1, seq=1, words=(far,)), 1),
        (Message(kind=PREPARE, origin=1, incarnation=1, seq=1, words=(far,)), 77),
        (Message(kind=PREPARE, origin=1, incarnation=2, seq=1, words=(far,)), 1),
        (said(PREPARE, seq=0, words=(far,)), 1),
        (said(PREPARE, seq=2**63, words=(far,)), 1),
        (Message(kind=Kind.GROUP_JOIN, origin=77, incarnation=1), 77),
        (Message(kind=Kind.GROUP_JOIN, origin=1, incarnation=1), 1),
        (said(Kind.GROUP_STATE_REQUEST, seq=1, words=(2**63,)), 1),
        (said(Kind.GROUP_STATE, seq=1, words=(1, 1, 0), payload=b"x"), 1),
        (Message(kind=DATA, origin=77, incarnation=1, seq=1, words=(1 << 33,)), 77),
        (Message(kind=DATA, origin=1, incarnation=9, seq=1, words=(1 << 33,)), 1),
        (said(DATA, seq=1, words=(2**30 << 33,)), 1),
        (said(DATA, seq=2**32, words=(1 << 33,)), 1),
        (said(DATA, seq=1 << 20, words=(1 << 33,)), 1),
    ]


@pytest.mark.parametrize("which", range(len(strangers_words())))
def test_words_of_strangers_and_from_the_far_future_leave_everything_as_it_was(which: int) -> None:
    group = calm(Scripted(3))
    before = (group.group(0).view, group.group(0).buffered, group.here(0).is_frozen)
    message, source = strangers_words()[which]
    for _ in range(50):
        group.inject(0, message, source)
    assert (group.group(0).view, group.group(0).buffered, group.here(0).is_frozen) == before
    group.run(3 * SUSPECT_AFTER_NS)
    group.submit(1, 2)
    group.settle(1)
