"""Bugs on record as edits of the group layer and of the streams under it. Each docstring describes the edit; `known`
has the numbers, the worlds and the verdicts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from node.effects import Deliver, Effect, Installed, Multicast, Report, Send
from node.errors import DropReason
from node.group.change import Change, Constraints
from node.group.codec import Decision, StatusFlag, Value
from node.group.core import GroupCore
from node.group.detector import Detector
from node.group.member import WATCH, ViewMember
from node.group.stack import ViewStack
from node.group.view import View
from node.reliable import ReliableCore
from node.reliable.codec import VIEW_SHIFT
from node.reliable.stream import IncomingStream
from node.trace import ViewReason
from node.wire import Kind, Message
from testbed.fuzz.scenario import Cut
from tests.mutants.edits import Shipped, replaces
from tests.mutants.known import (
    COORDINATOR_ENDS,
    MANY_COPIES,
    MS,
    RESTARTED,
    STILL_FETCHING,
    TWO_BALLOTS,
    crash,
    crossing,
    deaf_to,
    departure,
    known,
    leave,
    member,
    pause,
    torn,
    world,
)

DATA = Kind.RELIABLE_DATA


# Duplicates and retransmissions.


@known(8, "integrity", MANY_COPIES)
@replaces(ReliableCore, "on_message")
def forgets_what_is_stable(shipped: Shipped, core: ReliableCore, message: Message, *given: Any) -> list[Effect]:
    """The memory for duplicates ends with the buffered messages: a copy of an earlier one is taken for new."""
    stream = core._streams.get(message.origin)
    is_old = message.kind is DATA and stream is not None and 0 < message.seq <= stream.floor
    effects: list[Effect] = shipped(core, message, *given)
    is_copy = any(isinstance(one, Report) and one.code is DropReason.DUPLICATE for one in effects)
    return [*effects, Deliver.of(message)] if is_old and is_copy else effects


@known(
    5, "rest", world("sequencer", (10,), (12, *[31] * 12), (14,), (15,), faults=(crash(0, 30),), reliable={"window": 4})
)
def hands_over_once_for_each_view(patch: pytest.MonkeyPatch) -> None:
    """Submissions handed back by earlier views are submitted at the begin of a view only; those that do not fit wait
    for ever.
    """
    resubmit = GroupCore._resubmit_what_can
    begun: dict[int, object] = {}

    def once(core: GroupCore, now_ns: int, out: list[Effect]) -> None:
        if begun.get(id(core)) is not core.here:
            begun[id(core)] = core.here
            resubmit(core, now_ns, out)

    patch.setattr(GroupCore, "_resubmit_what_can", once)


@known(
    4,
    "agreement causal total_order virtual_synchrony",
    world(
        "sequencer", (10, 300, 600, 1500), (12, 40, 1500), (14, 300, 600, 1500), (15,), faults=(deaf_to(1, 0, 30, 800),)
    ),
)
@replaces(ViewMember, "on_watch")
def suspicion_makes_a_coordinator(shipped: Shipped, member: ViewMember, now_ns: int, out: list[Effect]) -> None:
    """A member that suspects all members before it by rank takes over without a ballot."""
    shipped(member, now_ns, out)
    view, suspects = member.view, member._detector.suspects
    if suspects and member._leads_next and member.change.decided is None:
        staying = tuple(one for one in view.incarnations if one.member not in suspects)
        gone = frozenset(one for one in view.incarnations if one.member in suspects)
        following = View(number=view.number + 1, incarnations=staying, gone=view.gone | gone)
        member.freeze(now_ns, out)
        cut = member.stack.streams.positions()
        stateful = frozenset(following.members)
        member.change.decide(Value(next=following, reason=ViewReason.SUSPICION, stateful=stateful, cut=cut))
        words = Decision(member.change.decided).to_words() if member.change.decided else ()
        out.append(Multicast(message=member.message(Kind.GROUP_DECIDED, words)))


# Order of views and messages.


@known(
    13, "view_agreement", world("reliable", (10, 400), (12,), (14,), (11,), (12,), faults=(leave(3, 30), leave(4, 200)))
)
def views_newest_first(patch: pytest.MonkeyPatch) -> None:
    """View 2 waits in a queue of its own until view 3 has arrived, and the newest is installed first."""
    install = GroupCore._install
    waiting: dict[int, list[Effect]] = {}

    def queued(core: GroupCore, value: Value, memory: bytes | None, now_ns: int, out: list[Effect]) -> None:
        inner: list[Effect] = []
        install(core, value, memory, now_ns, inner)
        views = [one for one in inner if isinstance(one, Installed)]
        if value.next.number == 2:
            waiting[id(core)] = list(views)
            inner = [one for one in inner if not isinstance(one, Installed)]
        elif value.next.number == 3:
            inner[inner.index(views[0]) + 1 : inner.index(views[0]) + 1] = waiting.pop(id(core), [])
        out += inner

    patch.setattr(GroupCore, "_install", queued)


@known(14, "agreement no_ghost same_view virtual_synchrony", torn("reliable"))
def rest_behind_the_view(patch: pytest.MonkeyPatch) -> None:
    """The rest of the cut is delivered after the view that it comes before."""
    _put_rest_behind(patch, lambda member: True)


@known(29, "agreement no_ghost same_view total_order virtual_synchrony", torn("sequencer"))
def fetched_rest_behind_the_view(patch: pytest.MonkeyPatch) -> None:
    """The same, only at members that had to fetch some of the rest."""
    fetch = ViewMember.fetch
    fetched: set[int] = set()

    def noted(member: ViewMember, now_ns: int, out: list[Effect]) -> None:
        asked: list[Effect] = []
        fetch(member, now_ns, asked)
        if any(isinstance(one, Send | Multicast) for one in asked):
            fetched.add(id(member))
        out += asked

    patch.setattr(ViewMember, "fetch", noted)
    _put_rest_behind(patch, lambda member: id(member) in fetched)


def _put_rest_behind(patch: pytest.MonkeyPatch, when: Any) -> None:
    go_on = GroupCore._go_on

    def late(core: GroupCore, here: ViewMember, value: Value, now_ns: int, out: list[Effect]) -> None:
        inner: list[Effect] = []
        is_late = when(here)
        go_on(core, here, value, now_ns, inner)
        places = [place for place, effect in enumerate(inner) if isinstance(effect, Installed)]
        rest = [one for one in inner[: places[0]] if isinstance(one, Deliver)] if is_late else []
        out += [one for one in inner if not any(one is early for early in rest)]
        out += rest

    patch.setattr(GroupCore, "_go_on", late)


@known(15, "agreement fifo integrity same_view virtual_synchrony", STILL_FETCHING)
@replaces(GroupCore, "_keep_early")
def buffers_switched_before_recovery_ends(
    shipped: Shipped, core: GroupCore, message: Message, source: int, *given: Any
) -> None:
    """A member that still fetches for its view puts messages of the next one into the same buffers."""
    here = core.here
    shipped(core, message, source, *given)
    if here is not None and here.is_frozen and message.kind is DATA:
        words = (message.words[0] - (1 << VIEW_SHIFT), *message.words[1:])
        here.stack.streams.on_message(replace(message, words=words), source, 0)


@known(16, "agreement virtual_synchrony", torn("reliable"))
@replaces(ReliableCore, "rest")
def rest_ends_at_the_first_gap(shipped: Shipped, core: ReliableCore, cut: Mapping[int, int]) -> Any:
    """Messages after a gap, and those that filled it in the recovery, are not delivered at the change."""
    return shipped(core, {origin: min(number, core._frozen[origin]) for origin, number in cut.items()})


# Members that wake, join and leave.


@known(17, "left", world("reliable", (10, 20, 30, 1000), (12,), (14, 1600), faults=(pause(1, 400, 300),)))
def waking_member_leaves_itself_out(patch: pytest.MonkeyPatch) -> None:
    """A paused member counts itself among the silent."""
    look = Detector.look
    late: set[int] = set()

    def counting(detector: Detector, now_ns: int, *, slack_ns: int) -> list[int]:
        if detector.expected_ns is not None and now_ns - detector.expected_ns > slack_ns:
            late.add(id(detector))
        return look(detector, now_ns, slack_ns=slack_ns)

    on_watch = ViewMember.on_watch

    def on_waking(member: ViewMember, now_ns: int, out: list[Effect]) -> None:
        on_watch(member, now_ns, out)
        if id(member._detector) in late:
            member._leavers.add(member._me)
            member.consider(now_ns, out)

    patch.setattr(Detector, "look", counting)
    patch.setattr(ViewMember, "on_watch", on_waking)


@known(
    18,
    "rest",
    world(
        "sequencer", *((10, 20, 900), (12,), (14,), member(15, delay_ms=40)), faults=(crash(3, 30, 200), crash(3, 300))
    ),
)
@replaces(ViewMember, "_watch")
def joiners_are_not_watched(shipped: Shipped, member: ViewMember, now_ns: int, out: list[Effect]) -> None:
    """A member that has not taken the group's state yet is not watched: if it crashes then, it stays in the view."""
    shipped(member, now_ns, out)
    member._detector.watch(sorted(member._detector._since_ns.keys() - member._stateless), now_ns)


@known(19, "rest", TWO_BALLOTS)
@replaces(Change, "promise")
def accepted_value_takes_each_ballot(shipped: Shipped, change: Change, ballot: int) -> Any:
    """Each promise overwrites the ballot under which the member has accepted a value."""
    is_promised = shipped(change, ballot)
    if is_promised and change.accepted is not None:
        change.accepted = (ballot, change.accepted[1])
    return is_promised


@known(20, "view_agreement", departure("reliable"))
@replaces(GroupCore, "_on_decided")
def decision_heard_twice_begins_anew(
    shipped: Shipped, core: GroupCore, message: Message, source: int, now_ns: int, out: list[Effect]
) -> None:
    """A copy of the decision that began the view begins it once more."""
    value = Decision.from_words(message.words, message.seq).value
    here = core.here
    shipped(core, message, source, now_ns, out)
    is_copy = here is not None and value.next.number == here.view.number and not here.is_frozen
    if is_copy and value.next.incarnation_of.get(core._me) == core._us.incarnation and not core._is_excluded:
        core._install(value, core._memory, now_ns, out)


@known(22, "rest", departure("reliable"))
@replaces(ViewMember, "status")
def leave_without_its_mark(shipped: Shipped, *given: Any, **named: Any) -> Message:
    """The STATUS of a leaving member does not say that it leaves."""
    message: Message = shipped(*given, **named)
    return replace(message, words=(message.words[0] & ~(StatusFlag.LEAVING << 32), *message.words[1:]))


@known(23, "rest", torn("reliable"))
@replaces(ViewMember, "on_watch")
def watch_waits_for_rest(shipped: Shipped, member: ViewMember, now_ns: int, out: list[Effect]) -> None:
    """Silent members are looked for only when nothing else is due: not while their acknowledgements are missing."""
    if member.stack.is_idle:
        shipped(member, now_ns, out)
    else:
        member._timers.arm(WATCH, now_ns + member._beat_ns, out)


@known(25, "expelled", torn("reliable"))
@replaces(ReliableCore, "_on_data")
def fragments_under_the_wrong_sender(
    shipped: Shipped, core: ReliableCore, message: Message, source: int, *given: Any
) -> None:
    """A message relayed by a holder is stored in the holder's stream instead of its origin's."""
    with pytest.MonkeyPatch.context() as patch:
        if core.phase == "frozen" and source != message.origin:
            patch.setitem(core._streams, message.origin, core._streams[source])
        shipped(core, message, source, *given)


# Watermarks.


@known(28, "rest", world("reliable", (10, 20, 30, 2000), (12,), (14,), (11,), faults=(crash(3, 300),)))
@replaces(GroupCore, "_new_streams")
def watermarks_outlive_their_view(shipped: Shipped, core: GroupCore, view: View) -> Any:
    """The streams of the next view begin with the acknowledgements of the view before."""
    before = core.here.stack.streams if core.here is not None else None
    streams = shipped(core, view)
    if isinstance(before, ReliableCore) and isinstance(streams, ReliableCore):
        told = before._own._acknowledged
        streams._own._acknowledged.update({one: told[one] for one in streams._own._acknowledged if one in told})
    return streams


@known(28, "rest", RESTARTED)
@replaces(GroupCore, "_on_stream_message")
def words_of_another_view_count(shipped: Shipped, core: GroupCore, message: Message, *given: Any) -> None:
    """Stream messages of an earlier view are taken for messages of the installed view."""
    here = core.here
    if here is not None and message.words and message.words[0] >> VIEW_SHIFT < here.view.number:
        rest = message.words[0] & (1 << VIEW_SHIFT) - 1
        message = replace(message, words=(here.view.number << VIEW_SHIFT | rest, *message.words[1:]))
    shipped(core, message, *given)


@known(30, "rest", crossing("reliable"))
@replaces(ReliableCore, "_on_heartbeat")
def watermark_is_told_and_not_taken(shipped: Shipped, *given: Any) -> None:
    """Heartbeats are sent, but the watermark in them has no effect."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IncomingStream, "learn_stable", lambda stream, number: None)
        shipped(*given)


@known(27, "rest", world("reliable", (10,) * 30, (12,), (14,), faults=(deaf_to(1, 0, 9, 2),), window=4))
def sender_waits_for_nobody(patch: pytest.MonkeyPatch) -> None:
    """The sender ignores flow control: its receivers are overrun."""

    def can_submit(core: ReliableCore) -> bool:
        return core.phase == "open" and not core._is_held

    patch.setattr(ReliableCore, "can_submit", property(can_submit))


@known(32, "exception", world("reliable", *[(10,)] * 24, faults=(leave(23, 20),)))
def twenty_two_members_at_most(patch: pytest.MonkeyPatch) -> None:
    """A view is read into a table of 22 places."""
    from_words = Decision.from_words

    def narrow(words: tuple[int, ...], view: int) -> Decision:
        decision = from_words(words, view)
        table = [0] * 22
        for rank, one in enumerate(decision.value.next.members):
            table[rank] = one
        return decision

    patch.setattr(Decision, "from_words", staticmethod(narrow))


@known(33, "validity", world("sequencer", (10,), (12, *[31] * 3), (14,), (15,), faults=(crash(0, 30),)))
def what_waits_is_lost_across_views(patch: pytest.MonkeyPatch) -> None:
    """The own stream ends with the transmitted messages; waiting submissions are lost."""
    freeze, close = ReliableCore.freeze, ViewStack.close
    patch.setattr(ReliableCore, "freeze", lambda core, waiting, now_ns: freeze(core, (), now_ns))
    patch.setattr(ViewStack, "close", lambda stack, *given: replace(close(stack, *given), handed_back=()))


@known(31, "state_transfer", departure("sequencer"))
@replaces(GroupCore, "_install")
def joiners_begin_without_the_state(
    shipped: Shipped, core: GroupCore, value: Value, memory: bytes | None, *given: Any
) -> None:
    """A joiner counts itself among those that have the group's state."""
    shipped(core, replace(value, stateful=value.stateful | {core._me}), memory or b"", *given)


# Ballots.


@known(34, "view_agreement", COORDINATOR_ENDS)
@replaces(Change, "choose")
def nothing_is_forced(shipped: Shipped, change: Change, constraints: Constraints) -> Any:
    """A coordinator ignores values accepted under the one before it."""
    change.promises.update({one: replace(told, accepted=None) for one, told in change.promises.items()})
    return shipped(change, constraints)


@known(
    None,
    "agreement quorum view_agreement",
    world("reliable", (10, 2500), (12, 2500), faults=(deaf_to(1, 0, 30, 1500), deaf_to(0, 1, 30, 1500))),
)
@replaces(View, "is_quorum")
def any_member_count_is_a_quorum(_: Shipped, view: View, members: Collection[int]) -> bool:
    """Each side of a cut goes on."""
    return bool(members)


@known(
    None,
    "quorum",
    world(
        "reliable",
        (10,),
        (12,),
        (14,),
        member(16, delay_ms=40),
        tuple(range(400, 700, 5)),
        faults=(Cut(at_ns=20 * MS, for_ns=3000 * MS, sides=((0, 1, 2), (3, 4))),),
    ),
)
@replaces(ViewStack, "hold")
def a_minority_delivers(shipped: Shipped, stack: ViewStack, is_held: bool, now_ns: int) -> Any:
    """The core of a member without a quorum goes on with the messages that arrive."""
    return [] if is_held and stack._is_open else shipped(stack, is_held, now_ns)
