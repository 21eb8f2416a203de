"""Bugs as edits of the shipped orders: those on record, and others for cores with few. Each docstring describes the
edit; `known` has the worlds and the verdicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from node.core import Closing
from node.effects import Deliver, Effect
from node.errors import DropReason
from node.protocols.abcast import AbcastCore
from node.protocols.adaptive.core import AdaptiveCore
from node.protocols.allack import AllAckCore
from node.protocols.amoeba import AmoebaCore, _delivery
from node.protocols.atop.core import AtopCore
from node.protocols.atop.order import Order, RandomDraws, _Backlog, _Lane
from node.protocols.base import HistoryCore
from node.protocols.cbcast import CbcastCore
from node.protocols.co.core import CoCore
from node.protocols.co.state import CoState, Matrix, Pdu
from node.protocols.lamport import LamportCore
from node.protocols.mutex.ricart_agrawala import RicartAgrawalaCore
from node.protocols.mutex.section import Request
from node.protocols.sequencer import SequencerCore
from node.wire import Kind, Message

Rest = Mapping[int, Sequence[Message]]


# The sequencer.


def number_for_the_last_request(patch: pytest.MonkeyPatch) -> None:
    """A number is given to the latest request, not to the request that it answers."""
    on_number = SequencerCore._on_number

    def misplaced(core: SequencerCore, message: Message, now_ns: int, out: list[Effect]) -> None:
        last = max(core._unnumbered)
        core._unnumbered[message.seq], core._unnumbered[last] = core._unnumbered[last], core._unnumbered[message.seq]
        on_number(core, message, now_ns, out)

    patch.setattr(SequencerCore, "_on_number", misplaced)


def first_number_at_member_0_only(patch: pytest.MonkeyPatch) -> None:
    """Only member 0 gives the first number."""
    on_request = SequencerCore._on_request

    def on_first(core: SequencerCore, message: Message, now_ns: int, out: list[Effect]) -> None:
        if core._last_given or core._me == 0:
            on_request(core, message, now_ns, out)

    patch.setattr(SequencerCore, "_on_request", on_first)


# Orders by history.


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


def delivers_on_the_first_lap(patch: pytest.MonkeyPatch) -> None:
    """A round is delivered when its first message has arrived at this member."""

    def deliver(core: HistoryCore, out: list[Effect]) -> None:
        latest = core._latest
        most = max(latest.values())
        core._latest = dict.fromkeys(latest, most)
        shipped(core, out)
        core._latest = latest

    shipped = HistoryCore._deliver
    patch.setattr(HistoryCore, "_deliver", deliver)
    patch.setattr(HistoryCore, "_deliver_after", lambda core, before, out: deliver(core, out))


def null_in_the_reserved_round(patch: pytest.MonkeyPatch) -> None:
    """A null is sent with the round that stays reserved for the application's next message."""
    send_null = AllAckCore._send_null

    def unreserved(core: AllAckCore, now_ns: int, out: list[Effect]) -> None:
        before = core._latest[core._me]
        send_null(core, now_ns, out)
        core._latest[core._me] = before

    patch.setattr(AllAckCore, "_send_null", unreserved)


def nobody_sends_nulls(patch: pytest.MonkeyPatch) -> None:
    """A member without messages sends no nulls."""
    patch.setattr(HistoryCore, "_arrange_null", lambda core, now_ns, out: None)


def ties_by_arrival(patch: pytest.MonkeyPatch) -> None:
    """Messages with the same number are ordered by arrival."""
    count = iter(range(1_000_000))
    patch.setattr(AllAckCore, "_precedence", lambda core, message: next(count))
    patch.setattr(LamportCore, "_precedence", lambda core, message: next(count))


# Skeen's order.


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


def equal_timestamps_compare_as_later(patch: pytest.MonkeyPatch) -> None:
    """Of two requests with the same timestamp, each is taken for later than the other."""

    def defers(core: RicartAgrawalaCore, request: Request) -> bool:
        wanted = core._wanted
        return core._holding is not None or (wanted is not None and wanted.timestamp <= request.timestamp)

    patch.setattr(RicartAgrawalaCore, "_defers", defers)


# ATOP.


def draws_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """Each member seeds its draws differently."""
    init = AtopCore.__init__

    def seeded(core: AtopCore, **given: Any) -> None:
        init(core, **given)
        draws = core._order._now.draws
        if isinstance(draws, RandomDraws):
            draws._state += core._me
            draws.use()

    patch.setattr(AtopCore, "__init__", seeded)


def waits_for_no_number(patch: pytest.MonkeyPatch) -> None:
    """A draw of a source without its next number goes to a source that has one."""
    run = _Backlog.run

    def hasty(backlog: _Backlog, out: list[Message]) -> _Lane | None:
        lane = run(backlog, out)
        waiting = [one for one in backlog._lanes.values() if one.messages and one.messages[0][0] == one.next]
        if lane is None or not waiting:
            return lane
        out.append(waiting[0].messages.popleft()[1])
        waiting[0].next += 1
        return lane

    patch.setattr(_Backlog, "run", hasty)


def nobody_fills_its_turn(patch: pytest.MonkeyPatch) -> None:
    """A drawn member without messages sends no dummy."""
    patch.setattr(AtopCore, "_on_turn_due", lambda core, now_ns, out: None)


def distribution_before_all_have_passed(patch: pytest.MonkeyPatch) -> None:
    """The next distribution is in force as soon as its weights are known."""
    finish = Order._finish
    settle = Order._settle

    def hasty(order: Order, out: list[Message]) -> bool:
        if order.current + 1 in order._weights:
            order._unpassed.clear()
        return finish(order, out)

    def leaves(order: Order, lane: _Lane) -> bool:
        if order.current + 1 in order._weights:
            order._unpassed.clear()
        return settle(order, lane)

    patch.setattr(Order, "_finish", hasty)
    patch.setattr(Order, "_settle", leaves)


def atop_takes_nothing_of_the_rest(patch: pytest.MonkeyPatch) -> None:
    """At the end of a view the rest of the cut is ignored."""
    close = AtopCore.close
    patch.setattr(AtopCore, "close", lambda core, rest, survivors, now_ns: close(core, {}, survivors, now_ns))


# Amoeba.


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


def stored_is_not_told(patch: pytest.MonkeyPatch) -> None:
    """The members that have stored a message do not acknowledge it."""
    patch.setattr(AmoebaCore, "_tell_stored", lambda core, out: None)


def log_of_the_rest_is_dropped(patch: pytest.MonkeyPatch) -> None:
    """At the end of a view the rest of the cut is not delivered."""
    close = AmoebaCore.close
    patch.setattr(AmoebaCore, "close", lambda core, rest, survivors, now_ns: close(core, {}, survivors, now_ns))


def amoeba_hands_nothing_back(patch: pytest.MonkeyPatch) -> None:
    """A sender forgets its messages without a number at the end of a view."""
    close = AmoebaCore.close

    def forgetful(core: AmoebaCore, *given: Any) -> Closing:
        return replace(close(core, *given), handed_back=())

    patch.setattr(AmoebaCore, "close", forgetful)


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


def accepts_out_of_turn(patch: pytest.MonkeyPatch) -> None:
    """A message is accepted without its predecessors, which are then duplicates."""
    patch.setattr(CoState, "lacks", lambda state, p: None)
    accept = CoState.accept

    def skipping(state: CoState, p: Pdu) -> list[int]:
        state.req[p.src] = p.seq
        return accept(state, p)

    patch.setattr(CoState, "accept", skipping)


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


def acknowledges_what_it_has_heard_of(patch: pytest.MonkeyPatch) -> None:
    """A member reports messages as accepted that it only knows of."""
    learn = Matrix.learn

    def generous(matrix: Matrix, j: int, vector: tuple[int, ...]) -> list[int]:
        risen: list[int] = []
        for k in range(len(matrix.rows)):
            risen += learn(matrix, k, vector)
        return sorted(set(risen))

    patch.setattr(Matrix, "learn", generous)


def nobody_asks_for_gaps(patch: pytest.MonkeyPatch) -> None:
    """A gap is detected, but the missing messages are not requested."""
    patch.setattr(CoCore, "_ask_for_gaps", lambda core, now_ns, out: None)
    patch.setattr(CoCore, "_resend", lambda core, silent, now_ns, out: None)


def close_keeps_the_rest(patch: pytest.MonkeyPatch) -> None:
    """At the end of a view messages that were not accepted before are not delivered."""
    close = CoCore.close

    def short(core: CoCore, cut: Mapping[int, int], now_ns: int) -> Closing:
        frozen = core._frozen
        return close(core, {member: min(number, frozen[member]) for member, number in cut.items()}, now_ns)

    patch.setattr(CoCore, "close", short)


def tells_nobody_what_it_has(patch: pytest.MonkeyPatch) -> None:
    """A member without messages of its own never reports its accepted messages."""
    patch.setattr(CoCore, "_on_state_due", lambda core, now_ns, out: None)
    patch.setattr(CoCore, "_on_round", lambda core, now_ns, out: None)
    patch.setattr(CoCore, "_on_reply", lambda core, now_ns, out: None)


def delivers_copies(patch: pytest.MonkeyPatch) -> None:
    """A message that arrives a second time is delivered a second time."""
    ignore = CoCore._ignore_data
    on_data = CoCore._on_data

    def doubling(core: CoCore, message: Message, src: int, now_ns: int, out: list[Effect]) -> None:
        if ignore(core, core._pdu(message, src)) is DropReason.DUPLICATE:
            out.append(Deliver.of(message))
        else:
            on_data(core, message, src, now_ns, out)

    patch.setattr(CoCore, "_on_data", doubling)


# The adaptive selection.


def switch_is_lost_at_the_end_of_the_view(patch: pytest.MonkeyPatch) -> None:
    """A view that ends during a switch closes the old epoch, and drops the received messages of the new one."""
    open_next = AdaptiveCore._open_next
    close = AdaptiveCore.close

    def forgetting(core: AdaptiveCore, *given: Any) -> Closing:
        patch.setattr(AdaptiveCore, "_open_next", lambda core: open_next(core) and [])
        try:
            return close(core, *given)
        finally:
            patch.setattr(AdaptiveCore, "_open_next", open_next)

    patch.setattr(AdaptiveCore, "close", forgetting)


def epoch_begins_anew_in_each_view(patch: pytest.MonkeyPatch) -> None:
    """After a view that ended during a switch each member goes on with its own protocol."""
    close = AdaptiveCore.close

    def unswitched(core: AdaptiveCore, *given: Any) -> Closing:
        before, core._next = core._next, None
        del before
        return close(core, *given)

    patch.setattr(AdaptiveCore, "close", unswitched)


# Causal order.


def release_looks_at_one_member(patch: pytest.MonkeyPatch) -> None:
    """A delivery releases the messages that waited for it, but not those that waited for these."""

    def release(core: CbcastCore, index: int, out: list[Effect]) -> None:
        released, core._blocked[index] = core._blocked[index], []
        for member in released:
            waiting = core._waiting[member]
            if waiting and (obstacle := core._obstacle(waiting[0])) >= 0:
                core._blocked[obstacle].append(member)
            elif waiting:
                core._deliver(waiting.popleft(), member, out)

    patch.setattr(CbcastCore, "_release", release)
