"""Bugs on record, each seeded into a history with views, and the properties that it breaks; the numbers are those of
the list in `table`.

Three members a, b and c in view 1 deliver some messages; then follow the events with the bug.
"""

from __future__ import annotations

from collections.abc import Callable

from analysis.checks import properties
from analysis.checks.properties import Incarnation, MessageId
from collector.records import EndReason, Event, Level, Notice
from node.registry import TOTAL_ORDER_PROMISES
from tests.analysis.checks.view_histories import C2, A, B, C, HistoryBuilder
from tests.mutants.table import VIEW_PROMISES, Mutant, Outcome, history_row, of_history

PROMISES = (*TOTAL_ORDER_PROMISES, *VIEW_PROMISES)
ALL = (A, B, C)

Writer = Callable[[HistoryBuilder, bool], None]
"""Writes the events, with or without the bug."""

HISTORY_MUTANTS: list[Mutant] = []


UNDER_THE_ORDER = {kind.value for kind in properties.UNDER_THE_ORDER}


def mutant(
    bug: int | None,
    *breaks: str,
    stops: tuple[Incarnation, ...] = ALL,
    level: Level = Level.AGREED,
    promises: tuple[str, ...] = PROMISES,
) -> Callable[[Writer], Writer]:
    """The decorated writer is a row of the table; `stops`: the incarnations that end in order."""

    def add(write: Writer) -> Writer:
        def outcome(has_bug: bool) -> Outcome:
            builder = HistoryBuilder(*ALL, level=level).install(1, *ALL).deliver(ALL, "a1", "b1", "c1")
            write(builder, has_bug)
            return of_history(builder.stop(*stops), promises)

        is_undecided = bool(UNDER_THE_ORDER & set(breaks))  # the orders in views may be no order of all messages
        unknown = ("total_order",) if is_undecided else ()
        HISTORY_MUTANTS.append(history_row("history", bug, write.__name__, outcome, *breaks, unknown=unknown))
        return write

    return add


# Orders.


@mutant(7)
def numbers_that_do_not_ascend(builder: HistoryBuilder, has_bug: bool) -> None:
    """No bug: numbers are equal everywhere, but not ascending."""
    builder.deliver(ALL, *(("b2", "b3", "a2") if has_bug else ("a2", "b2", "b3")))


@mutant(12, "total_order")
def clock_below_a_final_number(builder: HistoryBuilder, has_bug: bool) -> None:
    """b has delivered b2, and proposes a smaller number for a2, which the others deliver before b2."""
    builder.submit("a2", "b2").deliver((A, C), "a2", "b2")
    builder.deliver(B, *(("b2", "a2") if has_bug else ("a2", "b2")))


@mutant(35, "integrity", promises=("validity", "agreement", "integrity"))
def null_in_the_slot_of_a_message(builder: HistoryBuilder, has_bug: bool) -> None:
    """A null is sent in the slot that the application of a has reserved: all deliver what is not submitted yet."""
    message = MessageId(*A, 2)
    if not has_bug:
        builder.author.note(A, Event.SUBMIT, message)
    for incarnation in ALL:
        builder.author.note(incarnation, Event.DELIVER, message, Level.AGREED)
    if has_bug:
        builder.author.note(A, Event.SUBMIT, message)


@mutant(37)
def deliveries_later_than_they_may_be(builder: HistoryBuilder, has_bug: bool) -> None:
    """No bug: each delivery also waits for the next round of messages, which makes it late."""
    builder.submit("a2", "b2", "c2", *(("a3", "b3", "c3") if has_bug else ()))
    builder.deliver(ALL, "a2", "b2", "c2", "a3", "b3", "c3")


@mutant(None, "clock_monotone", promises=("clock_monotone",))
@mutant(39)
def reported_number_that_decreases(builder: HistoryBuilder, has_bug: bool) -> None:
    """A member reports a smaller number than before: a bug if it is its clock, none if it counts stable messages."""
    for value in (1, 3, 2) if has_bug else (1, 2, 3):
        builder.author.note(A, Event.REPORT, detail=Notice.CLOCK, value=value)


@mutant(40, "total_order")
def looks_at_the_visible_streams(builder: HistoryBuilder, has_bug: bool) -> None:
    """a has heard nothing of the stream of b when it delivers the round of a2, b2 and c2."""
    builder.submit("a2", "b2", "c2").deliver((B, C), "a2", "b2", "c2")
    builder.deliver(A, *(("a2", "c2", "b2") if has_bug else ("a2", "b2", "c2")))


@mutant(41, "total_order")
def delivery_on_lap_1(builder: HistoryBuilder, has_bug: bool) -> None:
    """Of the two trains with a2 and b2, and with c2, each member delivers the load that it sees on the first lap."""
    builder.submit("a2", "b2", "c2")
    for member, first_lap in ((A, ("a2", "c2", "b2")), (B, ("a2", "b2", "c2")), (C, ("c2", "a2", "b2"))):
        builder.deliver(member, *(first_lap if has_bug else ("a2", "b2", "c2")))


@mutant(54, "fifo", "causal")
def content_without_order(builder: HistoryBuilder, has_bug: bool) -> None:
    """Everything arrives everywhere, but a3 before a2."""
    builder.submit("a2", "a3").deliver(ALL, *(("a3", "a2") if has_bug else ("a2", "a3")))


# Views and recovery.


@mutant(13, "view_agreement")
def views_overtake(builder: HistoryBuilder, has_bug: bool) -> None:
    """b installs view 3 before view 2."""
    of_b = [(B, 3), (B, 2)] if has_bug else [(B, 2), (B, 3)]
    for member, number in ((A, 2), (C, 2), *of_b, (A, 3), (C, 3)):
        builder.author.install(member, number, ALL)


@mutant(14, "same_view", "virtual_synchrony", "agreement")
def message_behind_its_view(builder: HistoryBuilder, has_bug: bool) -> None:
    """b delivers a message of view 1 after it has installed view 2."""
    builder.deliver((A, C), "a2")
    if has_bug:
        builder.install(2, *ALL).deliver(B, "a2")
    else:
        builder.deliver(B, "a2").install(2, *ALL)


@mutant(15, "same_view", "virtual_synchrony", "causal", "agreement")
def buffers_switched_too_early(builder: HistoryBuilder, has_bug: bool) -> None:
    """Messages recovered for b are delivered after the first messages of the next view."""
    builder.deliver((A, C), "a2")
    if not has_bug:
        builder.deliver(B, "a2")
    builder.install(2, *ALL).deliver(ALL, "c2")
    if has_bug:
        builder.deliver(B, "a2")


@mutant(16, "virtual_synchrony", "agreement", stops=(A, B))
def lost_behind_a_gap(builder: HistoryBuilder, has_bug: bool) -> None:
    """c has crashed; b drops a message of c beyond a gap, which a has delivered."""
    builder.deliver((A,) if has_bug else (A, B), "c2").install(2, A, B)


@mutant(17, "view_agreement", stops=(A, B))
def leaves_itself_out(builder: HistoryBuilder, has_bug: bool) -> None:
    """c was frozen, wakes, and installs a view without c."""
    builder.install(2, A, B)
    if has_bug:
        builder.author.install(C, 2, [A, B])
    builder.note(C, Event.ENDED)


def _joined_again(builder: HistoryBuilder) -> HistoryBuilder:
    """c has ended, and its next incarnation joins."""
    return builder.note(C, Event.ENDED).install(2, A, B).note(C2, Event.START).install(3, A, B, C2)


@mutant(18, "no_ghost", stops=(A, B))
def ghost_of_a_joiner(builder: HistoryBuilder, has_bug: bool) -> None:
    """c comes back and crashes while it takes the state, and a message of c is delivered after its end."""
    _joined_again(builder)
    if has_bug:
        builder.install(4, A, B).deliver((A, B), "C1")
    else:
        builder.deliver((A, B), "C1").install(4, A, B)


@mutant(31, "state_transfer", stops=(A, B, C2))
def before_the_state(builder: HistoryBuilder, has_bug: bool) -> None:
    """A joiner delivers a message during the transfer of the state."""
    _joined_again(builder).deliver((A, B), "a2")
    if has_bug:
        builder.deliver(C2, "a2").state(C2, 3)
    else:
        builder.state(C2, 3).deliver(C2, "a2")


@mutant(None, "state_transfer", "same_view", "agreement", stops=(A, B, C2))
def again_after_the_state(builder: HistoryBuilder, has_bug: bool) -> None:
    """The state was taken at the view, but the joiner also delivers the last message before it."""
    builder.deliver((A, B), "a2")
    _joined_again(builder).state(C2, 3)
    if has_bug:
        builder.deliver(C2, "a2")


@mutant(None, "state_transfer", stops=(A, B, C2))
def lacks_what_came_during_the_transfer(builder: HistoryBuilder, has_bug: bool) -> None:
    """The joiner drops messages received before the last chunk."""
    _joined_again(builder).deliver((A, B), "a2").state(C2, 3)
    if not has_bug:
        builder.deliver(C2, "a2")
    builder.install(4, A, B, C2)


@mutant(33, "validity", stops=(A, B))
def lost_across_views(builder: HistoryBuilder, has_bug: bool) -> None:
    """A submission that waited for the change is never given to the next core."""
    builder.submit("a2").install(2, A, B)
    if not has_bug:
        builder.deliver((A, B), "a2")


@mutant(34, "view_agreement", stops=(A, B))
def two_coordinators(builder: HistoryBuilder, has_bug: bool) -> None:
    """The coordinator decides with one member; its successor, which does not know that, decides otherwise."""
    builder.author.install(A, 2, [A, B])
    builder.author.install(B, 2, [B, C] if has_bug else [A, B])
    if has_bug:
        builder.author.install(C, 2, [B, C])


@mutant(None, "total_order", stops=(A, B))
def own_order_before_the_exclusion(builder: HistoryBuilder, has_bug: bool) -> None:
    """c delivers alone for some time, in an order that differs from the others'."""
    builder.deliver((A, B), "a2", "b2").deliver(C, *(("b2", "a2") if has_bug else ("a2", "c2")))
    builder.install(2, A, B).note(C, Event.ENDED, EndReason.EXCLUDED)


@mutant(None, "total_order", level=Level.FINAL, stops=(A, B))
def final_alone(builder: HistoryBuilder, has_bug: bool) -> None:
    """Uniform delivery that does not wait for the others: c alone delivers a message as final, and is gone."""
    builder.deliver((A, B), "a2").deliver(C, *(("a2", "c2") if has_bug else ("a2",)))
    builder.install(2, A, B).note(C, Event.ENDED, EndReason.EXCLUDED)


# A record is lost.


def log_with_a_hole(has_bug: bool) -> Outcome:
    history = HistoryBuilder(*ALL).deliver(ALL, "a1", "b1", "c1").stop(*ALL)
    if has_bug:
        del history[B][3]
    return of_history(history, TOTAL_ORDER_PROMISES)


HISTORY_MUTANTS.append(history_row("history", 45, "log_with_a_hole", log_with_a_hole, unknown=TOTAL_ORDER_PROMISES))
