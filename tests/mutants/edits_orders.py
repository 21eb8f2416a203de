"""Bugs as edits of the shipped orders: those on record, and others for cores with few. Each docstring describes the
edit; `known` has the worlds and the verdicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from node.core import Closing, ViewCore
from node.effects import Deliver, Effect, Report
from node.errors import DropReason
from node.protocols.abcast import AbcastCore
from node.protocols.adaptive.core import AdaptiveCore
from node.protocols.allack import AllAckCore
from node.protocols.amoeba import AmoebaCore, _delivery
from node.protocols.atop.core import AtopCore
from node.protocols.atop.order import Order, RandomDraws, _Backlog
from node.protocols.base import HistoryCore
from node.protocols.cbcast import CbcastCore
from node.protocols.co.core import CoCore
from node.protocols.co.state import CoState, Matrix, Pdu
from node.protocols.lamport import LamportCore
from node.protocols.mutex.ricart_agrawala import RicartAgrawalaCore
from node.protocols.mutex.section import Request, SectionCore
from node.protocols.sequencer import SequencerCore
from node.protocols.timewarp.core import TimeWarpCore
from node.protocols.timewarp.entry import Entry
from node.protocols.timewarp.execution import Execution
from node.trace import Notice
from node.wire import Kind, Message
from tests.mutants.edits import Edit, Shipped, replaces
from tests.mutants.known import (
    LEAVES_WHILE_SWITCHING,
    MS,
    TIMES,
    crash,
    crossing,
    deaf_to,
    known,
    lossy,
    member,
    torn,
    world,
)

Rest = Mapping[int, Sequence[Message]]


# The sequencer.


@known(47, "causal fifo", world("sequencer", (10,), (12, 12, 12), (14,)))
@replaces(SequencerCore, "_on_number")
def number_for_the_last_request(shipped: Shipped, core: SequencerCore, message: Message, *given: Any) -> None:
    """A number is given to the latest request, not to the request that it answers."""
    last = max(core._unnumbered)
    core._unnumbered[message.seq], core._unnumbered[last] = core._unnumbered[last], core._unnumbered[message.seq]
    shipped(core, message, *given)


@known(48, "rest", world("sequencer", (10,), (12,), (14, 3000), faults=(crash(0, 30),)))
@replaces(SequencerCore, "_on_request")
def first_number_at_member_0_only(shipped: Shipped, core: SequencerCore, *given: Any) -> None:
    """Only member 0 gives the first number."""
    if core._last_given or core._me == 0:
        shipped(core, *given)


# Orders by history.


@known(40, "total_order", crossing("allack"), crossing("lamport"))
def looks_at_the_visible_only(patch: pytest.MonkeyPatch) -> None:
    """Delivery waits for the members heard in this view, not for all members."""
    deliver = HistoryCore._deliver

    def hasty(core: HistoryCore, out: list[Effect]) -> None:
        awaited, begin = core._awaited, getattr(core, "_begin", 0)
        core._awaited = tuple(member for member in awaited if core._latest[member] > begin)
        deliver(core, out)
        core._awaited = awaited

    patch.setattr(HistoryCore, "_deliver", hasty)
    patch.setattr(HistoryCore, "_deliver_after", lambda core, before, out: hasty(core, out))


@known(41, "total_order", crossing("allack"))
def delivers_on_the_first_lap(patch: pytest.MonkeyPatch) -> None:
    """A round is delivered when its first message has arrived at this member."""
    shipped = HistoryCore._deliver

    def deliver(core: HistoryCore, out: list[Effect]) -> None:
        latest = core._latest
        core._latest = dict.fromkeys(latest, max(latest.values()))
        shipped(core, out)
        core._latest = latest

    patch.setattr(HistoryCore, "_deliver", deliver)
    patch.setattr(HistoryCore, "_deliver_after", lambda core, before, out: deliver(core, out))


@known(35, "rest", world("allack", (10, 20), (11, 21), (40,)))
@replaces(AllAckCore, "_send_null")
def null_in_the_reserved_round(shipped: Shipped, core: AllAckCore, *given: Any) -> None:
    """A null is sent with the round that stays reserved for the application's next message."""
    before = core._latest[core._me]
    shipped(core, *given)
    core._latest[core._me] = before


@known(None, "rest", world("allack", (10, 20), (11, 21), (40,)), world("lamport", (10, 20), (11, 21), (40,)))
def nobody_sends_nulls(patch: pytest.MonkeyPatch) -> None:
    """A member without messages sends no nulls."""
    patch.setattr(HistoryCore, "_arrange_null", lambda core, now_ns, out: None)


@known(None, "total_order", crossing("allack"), crossing("lamport"))
def ties_by_arrival(patch: pytest.MonkeyPatch) -> None:
    """Messages with the same number are ordered by arrival."""
    count = iter(range(1_000_000))
    patch.setattr(AllAckCore, "_precedence", lambda core, message: next(count))
    patch.setattr(LamportCore, "_precedence", lambda core, message: next(count))


# Skeen's order.


@known(9, "total_order", world("abcast", TIMES, *(member(*TIMES, delay_ms=delay) for delay in (12, 5, 1))))
def first_proposal_is_final(patch: pytest.MonkeyPatch) -> None:
    """The initiator waits for one proposal instead of all."""
    on_proposal = AbcastCore._on_proposal

    def hasty(core: AbcastCore, message: Message, now_ns: int, out: list[Effect]) -> None:
        core._rounds[message.seq].missing.clear()
        on_proposal(core, message, now_ns, out)

    refusal = AbcastCore._refusal

    def lax(core: AbcastCore, message: Message) -> DropReason | None:
        is_late = message.kind is Kind.ABCAST_PROPOSAL and message.seq not in core._rounds
        return DropReason.DUPLICATE if is_late else refusal(core, message)

    patch.setattr(AbcastCore, "_on_proposal", hasty)
    patch.setattr(AbcastCore, "_refusal", lax)


# Mutual exclusion.


@known(21, "rest", world("mutex", (10,), (10,), (10,), algorithm="ricart_agrawala"))
@replaces(RicartAgrawalaCore, "_defers")
def equal_timestamps_compare_as_later(_: Shipped, core: RicartAgrawalaCore, request: Request) -> bool:
    """Of two requests with the same timestamp, each is taken for later than the other."""
    wanted = core._wanted
    return core._holding is not None or (wanted is not None and wanted.timestamp <= request.timestamp)


@known(None, "fence_order", *(world("mutex", (10,), (12,), (14,), algorithm=name) for name in ("lamport", "maekawa")))
@replaces(SectionCore, "_deliver")
def fences_without_their_ordinals(shipped: Shipped, core: SectionCore, submission: Any, fence: int, out: Any) -> None:
    """All grants of a view have the same fence."""
    shipped(core, submission, fence >> 32 << 32, out)


# ATOP.


@known(None, "causal rest total_order", crossing("atop"), crossing("atop_mbs"))
@replaces(AtopCore, "__init__")
def draws_of_its_own(shipped: Shipped, core: AtopCore, **given: Any) -> None:
    """Each member seeds its draws differently."""
    shipped(core, **given)
    draws = core._order._now.draws
    if isinstance(draws, RandomDraws):
        draws._state += core._me
        draws.use()


@known(None, "total_order", crossing("atop"), crossing("atop_mbs"))
@replaces(_Backlog, "run")
def waits_for_no_number(shipped: Shipped, backlog: _Backlog, out: list[Message]) -> Any:
    """A draw of a source without its next number goes to a source that has one."""
    lane = shipped(backlog, out)
    waiting = [one for one in backlog._lanes.values() if one.messages and one.messages[0][0] == one.next]
    if lane is not None and waiting:
        out.append(waiting[0].messages.popleft()[1])
        waiting[0].next += 1
    return lane


@known(None, "rest", crossing("atop"), crossing("atop_mbs"))
def nobody_fills_its_turn(patch: pytest.MonkeyPatch) -> None:
    """A drawn member without messages sends no dummy."""
    patch.setattr(AtopCore, "_on_turn_due", lambda core, now_ns, out: None)


@known(None, "rest total_order", crossing("atop", window_ns=20 * MS, threshold=0))
def distribution_before_all_have_passed(patch: pytest.MonkeyPatch) -> None:
    """The next distribution is in force as soon as its weights are known."""
    for name in ("_finish", "_settle"):
        _with_nothing_to_pass(name)(patch)


def _with_nothing_to_pass(name: str) -> Edit:
    @replaces(Order, name)
    def hasty(shipped: Shipped, order: Order, given: object) -> Any:
        if order.current + 1 in order._weights:
            order._unpassed.clear()
        return shipped(order, given)

    return hasty


@known(None, "agreement causal virtual_synchrony", torn("atop"), torn("atop_mbs"))
@replaces(AtopCore, "close")
def atop_takes_nothing_of_the_rest(shipped: Shipped, core: AtopCore, rest: Rest, *given: Any) -> Any:
    """At the end of a view the rest of the cut is ignored."""
    return shipped(core, {}, *given)


# Amoeba.


@known(
    None,
    "causal total_order",
    world("amoeba", (10, 20, 30), (10, 20, 30), (11, 12, 13), faults=(deaf_to(1, 2, 10, 5),), large_bytes=0),
)
def passes_over_missing_bodies(patch: pytest.MonkeyPatch) -> None:
    """A number without a body is skipped; the body is delivered when it arrives."""

    def complete(core: AmoebaCore) -> None:
        for index, entry in list(core._log.items()):
            if entry.content is None and not core._fill(entry):
                continue
            core._forget_asked(entry)
            core._log.pop(index)
            out.append((index, entry))
            core._complete = core._delivered = core._accepted = core._numbered

    out: list[tuple[int, Any]] = []

    def deliver(core: AmoebaCore, effects: list[Effect]) -> None:
        for index, entry in out:
            core._prefix.delivered(entry.origin, index)
            effects.append(_delivery(index, entry))
        out.clear()

    patch.setattr(AmoebaCore, "_complete_log", complete)
    patch.setattr(AmoebaCore, "_deliver", deliver)


@known(None, "rest", crossing("amoeba"))
def stored_is_not_told(patch: pytest.MonkeyPatch) -> None:
    """The members that have stored a message do not acknowledge it."""
    patch.setattr(AmoebaCore, "_tell_stored", lambda core, out: None)


@known(None, "agreement uniform_agreement causal virtual_synchrony", torn("amoeba", large_bytes=0))
@replaces(AmoebaCore, "close")
def log_of_the_rest_is_dropped(shipped: Shipped, core: AmoebaCore, rest: Rest, *given: Any) -> Any:
    """At the end of a view the rest of the cut is not delivered."""
    return shipped(core, {}, *given)


@known(None, "validity", world("amoeba", (10,), (12, 30), (14, 3000), faults=(crash(0, 30),)))
@replaces(AmoebaCore, "close")
def amoeba_hands_nothing_back(shipped: Shipped, *given: Any) -> Closing:
    """A sender forgets its messages without a number at the end of a view."""
    closing: Closing = shipped(*given)
    return replace(closing, handed_back=())


@known(None, "integrity", crossing("amoeba"))
def numbers_without_gaps_are_not_asked_for(patch: pytest.MonkeyPatch) -> None:
    """The sequencer numbers a message without its predecessors of the same sender, and a duplicate a second time."""

    def give(core: AmoebaCore, message: Message, out: list[Effect]) -> None:
        core._given_of[message.origin] = message.seq - 1
        shipped(core, message, out)
        if message.seq == 1:
            core._given_of[message.origin] = 0
            shipped(core, message, out)

    shipped = AmoebaCore._give_number
    well_formed = AmoebaCore._is_well_formed

    def lax(core: AmoebaCore, message: Message) -> bool:
        if message.kind in (Kind.AMOEBA_DATA, Kind.AMOEBA_ACCEPT) and message.words:
            return message.seq == core._numbered + 1
        return well_formed(core, message)

    patch.setattr(AmoebaCore, "_give_number", give)
    patch.setattr(AmoebaCore, "_is_well_formed", lax)


# CO and LO.


@known(None, "agreement fifo causal", lossy("co"))
@known(None, "agreement fifo", lossy("lo"))
def accepts_out_of_turn(patch: pytest.MonkeyPatch) -> None:
    """A message is accepted without its predecessors, which are then duplicates."""
    accept = CoState.accept

    def skipping(state: CoState, p: Pdu) -> list[int]:
        state.req[p.src] = p.seq
        return accept(state, p)

    patch.setattr(CoState, "lacks", lambda state, p: None)
    patch.setattr(CoState, "accept", skipping)


@known(None, "causal integrity", lossy("co"))
def looks_at_the_source_alone(patch: pytest.MonkeyPatch) -> None:
    """A message is accepted when it is the next of its source, and delivered when it is accepted."""
    take_in = CoCore._take_in

    def hasty(core: CoCore, p: Pdu, out: list[Effect]) -> None:
        inner: list[Effect] = []
        take_in(core, p, inner)
        if core._is_co:
            out.append(Deliver.of(p.message))
            inner = [one for one in inner if not isinstance(one, Deliver)]
        out += inner

    patch.setattr(CoCore, "_take_in", hasty)
    patch.setattr(CoState, "lacks", lambda state, p: (p.src, p.seq - 1) if p.seq != state.req[p.src] else None)


@known(None, "rest", lossy("co"), lossy("lo"))
@replaces(Matrix, "learn")
def acknowledges_what_it_has_heard_of(shipped: Shipped, matrix: Matrix, _: int, vector: tuple[int, ...]) -> list[int]:
    """A member reports messages as accepted that it only knows of."""
    return sorted({risen for k in range(len(matrix.rows)) for risen in shipped(matrix, k, vector)})


@known(None, "rest", lossy("co"), lossy("lo"))
def nobody_asks_for_gaps(patch: pytest.MonkeyPatch) -> None:
    """A gap is detected, but the missing messages are not requested."""
    patch.setattr(CoCore, "_ask_for_gaps", lambda core, now_ns, out: None)
    patch.setattr(CoCore, "_resend", lambda core, silent, now_ns, out: None)


@known(None, "agreement virtual_synchrony causal", torn("co"))
@known(None, "agreement virtual_synchrony", torn("lo"))
@replaces(CoCore, "close")
def close_keeps_the_rest(shipped: Shipped, core: CoCore, cut: Mapping[int, int], now_ns: int) -> Any:
    """At the end of a view messages that were not accepted before are not delivered."""
    return shipped(core, {member: min(number, core._frozen[member]) for member, number in cut.items()}, now_ns)


@known(None, "rest", lossy("co"), lossy("lo"))
def tells_nobody_what_it_has(patch: pytest.MonkeyPatch) -> None:
    """A member without messages of its own never reports its accepted messages."""
    for name in ("_on_state_due", "_on_round", "_on_reply"):
        patch.setattr(CoCore, name, lambda core, now_ns, out: None)


@known(None, "integrity causal fifo", lossy("co"))
@known(None, "integrity", lossy("lo"))
@replaces(CoCore, "_on_data")
def delivers_copies(shipped: Shipped, core: CoCore, message: Message, src: int, now_ns: int, out: list[Effect]) -> None:
    """A message that arrives a second time is delivered a second time."""
    if core._ignore_data(core._pdu(message, src)) is DropReason.DUPLICATE:
        out.append(Deliver.of(message))
    else:
        shipped(core, message, src, now_ns, out)


# The adaptive selection.


@known(49, "agreement causal fifo virtual_synchrony", LEAVES_WHILE_SWITCHING)
@replaces(AdaptiveCore, "close")
def switch_is_lost_at_the_end_of_the_view(shipped: Shipped, core: AdaptiveCore, *given: Any) -> Any:
    """A view that ends during a switch closes the old epoch, and drops the received messages of the new one."""
    open_next = AdaptiveCore._open_next
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AdaptiveCore, "_open_next", lambda core: open_next(core) and [])
        return shipped(core, *given)


@known(None, "agreement total_order virtual_synchrony", LEAVES_WHILE_SWITCHING)
@replaces(AdaptiveCore, "close")
def epoch_begins_anew_in_each_view(shipped: Shipped, core: AdaptiveCore, *given: Any) -> Any:
    """After a view that ended during a switch each member goes on with its own protocol."""
    core._next = None
    return shipped(core, *given)


# Time Warp.


@known(None, "state", world("timewarp", (10,), (), (), service={"follow_up_permille": 900, "report_state": True}))
@replaces(Execution, "_make_final")
def commits_no_follow_ups(shipped: Shipped, execution: Execution, entry: Entry, out: list[Effect]) -> None:
    """The last member drops final follow-ups. They are the last commands, so that no later digest shows it."""
    if execution._us.member == 2 and entry.command.message.kind is Kind.TIMEWARP_FOLLOW_UP:
        entry.deliver(out, reports_costs=False)
    else:
        shipped(execution, entry, out)


@known(
    None,
    "untold",
    world("lamport", (10,), (12,), (14,), report_clock=True),
    world("timewarp", (10,), (12,), (14,), service={"report_state": True}),
)
def nobody_reports(patch: pytest.MonkeyPatch) -> None:
    """The reports that a promise needs are never made."""
    for core in (LamportCore, TimeWarpCore):
        for name in ("on_submit", "on_message", "on_timer"):
            _without_reports(core, name)(patch)


def _without_reports(core: type[ViewCore], name: str) -> Edit:
    @replaces(core, name)
    def silent(shipped: Shipped, *given: Any) -> list[Effect]:
        codes = (Notice.TIMESTAMP, Notice.STATE)
        return [one for one in shipped(*given) if not (isinstance(one, Report) and one.code in codes)]

    return silent


# Causal order.


@known(46, "rest", world("cbcast", (10,), member(11.5, 13), (20,), faults=(deaf_to(2, 0, 9, 3),)))
@replaces(CbcastCore, "_release")
def release_looks_at_one_member(_: Shipped, core: CbcastCore, index: int, out: list[Effect]) -> None:
    """A delivery releases the messages that waited for it, but not those that waited for these."""
    released, core._blocked[index] = core._blocked[index], []
    for one in released:
        waiting = core._waiting[one]
        if waiting and (obstacle := core._obstacle(waiting[0])) >= 0:
            core._blocked[obstacle].append(one)
        elif waiting:
            core._deliver(waiting.popleft(), one, out)
