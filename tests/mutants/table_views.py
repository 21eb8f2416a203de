"""Bugs of views and recovery, each seeded into a history with views, and the properties that it breaks. The numbers are
those of the list in `table`: 13 to 34.

Three members a, b and c in view 1 deliver some messages; then follow the events with the bug.
"""

from __future__ import annotations

from collections.abc import Callable

from analysis.checks.properties import VIEW_PROPERTIES, Incarnation
from collector.records import EndReason, Event, Level
from node.registry import TOTAL_ORDER_PROMISES
from tests.analysis.checks.view_histories import C2, A, B, C, HistoryBuilder
from tests.analysis.histories import PlainHistory
from tests.mutants.table import Mutant, of_history

PROMISES = (*TOTAL_ORDER_PROMISES, *(kind.value for kind in VIEW_PROPERTIES))

Writer = Callable[[HistoryBuilder, bool], tuple[Incarnation, ...]]
"""Writes the events, with or without the bug; returns the incarnations that end in order."""


def written(write: Writer, level: Level, *, has_bug: bool) -> PlainHistory:
    builder = HistoryBuilder(A, B, C, level=level).install(1, A, B, C).deliver((A, B, C), "a1", "b1", "c1")
    return builder.stop(*write(builder, has_bug))


def views_overtake(builder: HistoryBuilder, has_bug: bool) -> tuple[Incarnation, ...]:
    """b installs view 3 before view 2."""
    builder.author.install(A, 2, [A, B, C])
    builder.author.install(C, 2, [A, B, C])
    for number in (3, 2) if has_bug else (2, 3):
        builder.author.install(B, number, [A, B, C])
    builder.author.install(A, 3, [A, B, C])
    builder.author.install(C, 3, [A, B, C])
    return A, B, C


def message_behind_its_view(builder: HistoryBuilder, has_bug: bool) -> tuple[Incarnation, ...]:
    """b delivers a message of view 1 after it has installed view 2."""
    builder.deliver((A, C), "a2")
    if has_bug:
        builder.install(2, A, B, C).deliver(B, "a2")
    else:
        builder.deliver(B, "a2").install(2, A, B, C)
    return A, B, C


def buffers_switched_too_early(builder: HistoryBuilder, has_bug: bool) -> tuple[Incarnation, ...]:
    """Messages recovered for b are delivered after the first messages of the next view."""
    builder.deliver((A, C), "a2")
    if not has_bug:
        builder.deliver(B, "a2")
    builder.install(2, A, B, C).deliver((A, B, C), "c2")
    if has_bug:
        builder.deliver(B, "a2")
    return A, B, C


def lost_behind_a_gap(builder: HistoryBuilder, has_bug: bool) -> tuple[Incarnation, ...]:
    """c has crashed; b drops a message of c beyond a gap, which a has delivered."""
    builder.deliver(A, "c2")
    if not has_bug:
        builder.deliver(B, "c2")
    builder.install(2, A, B)
    return A, B


def leaves_itself_out(builder: HistoryBuilder, has_bug: bool) -> tuple[Incarnation, ...]:
    """c was frozen, wakes, and installs a view without c."""
    builder.install(2, A, B)
    if has_bug:
        builder.author.install(C, 2, [A, B])
    builder.note(C, Event.ENDED)
    return A, B


def ghost_of_a_joiner(builder: HistoryBuilder, has_bug: bool) -> tuple[Incarnation, ...]:
    """c comes back and crashes while it takes the state, and a message of c is delivered after its end."""
    builder.note(C, Event.ENDED).install(2, A, B)
    builder.author.note(C2, Event.START)
    builder.install(3, A, B, C2)
    if not has_bug:
        builder.deliver((A, B), "C1")
    builder.install(4, A, B)
    if has_bug:
        builder.deliver((A, B), "C1")
    return A, B


def before_the_state(builder: HistoryBuilder, has_bug: bool) -> tuple[Incarnation, ...]:
    """A joiner delivers a message during the transfer of the state."""
    builder.note(C, Event.ENDED).install(2, A, B)
    builder.author.note(C2, Event.START)
    builder.install(3, A, B, C2).deliver((A, B), "a2")
    if has_bug:
        builder.deliver(C2, "a2").state(C2, 3)
    else:
        builder.state(C2, 3).deliver(C2, "a2")
    return A, B, C2


def again_after_the_state(builder: HistoryBuilder, has_bug: bool) -> tuple[Incarnation, ...]:
    """The state was taken at the view, but the joiner also delivers the last message before it."""
    builder.note(C, Event.ENDED).install(2, A, B).deliver((A, B), "a2")
    builder.author.note(C2, Event.START)
    builder.install(3, A, B, C2).state(C2, 3)
    if has_bug:
        builder.deliver(C2, "a2")
    return A, B, C2


def lacks_what_came_during_the_transfer(builder: HistoryBuilder, has_bug: bool) -> tuple[Incarnation, ...]:
    """The joiner drops messages received before the last chunk."""
    builder.note(C, Event.ENDED).install(2, A, B)
    builder.author.note(C2, Event.START)
    builder.install(3, A, B, C2).deliver((A, B), "a2").state(C2, 3)
    if not has_bug:
        builder.deliver(C2, "a2")
    builder.install(4, A, B, C2)
    return A, B, C2


def lost_across_views(builder: HistoryBuilder, has_bug: bool) -> tuple[Incarnation, ...]:
    """A submission that waited for the change is never given to the next core."""
    builder.submit("a2").install(2, A, B)
    if not has_bug:
        builder.deliver((A, B), "a2")
    return A, B


def two_coordinators(builder: HistoryBuilder, has_bug: bool) -> tuple[Incarnation, ...]:
    """The coordinator decides with one member; its successor, which does not know that, decides otherwise."""
    builder.author.install(A, 2, [A, B])
    builder.author.install(B, 2, [B, C] if has_bug else [A, B])
    if has_bug:
        builder.author.install(C, 2, [B, C])
        return A, B, C
    return A, B


def own_order_before_the_exclusion(builder: HistoryBuilder, has_bug: bool) -> tuple[Incarnation, ...]:
    """c delivers alone for some time, in an order that differs from the others'."""
    builder.deliver((A, B), "a2", "b2").deliver(C, *(("b2", "a2") if has_bug else ("a2", "c2")))
    builder.install(2, A, B).note(C, Event.ENDED, EndReason.EXCLUDED)
    return A, B


def final_alone(builder: HistoryBuilder, has_bug: bool) -> tuple[Incarnation, ...]:
    """Uniform delivery that does not wait for the others: c alone delivers a message as final, and is gone."""
    builder.deliver((A, B), "a2")
    builder.deliver(C, "a2", "c2") if has_bug else builder.deliver(C, "a2")
    builder.install(2, A, B).note(C, Event.ENDED, EndReason.EXCLUDED)
    return A, B


def mutant(bug: str, write: Writer, *breaks: str, level: Level = Level.AGREED) -> Mutant:
    (first, *_) = (write.__doc__ or "").split(".")
    return Mutant(
        bug=bug,
        description=first,
        seeded="a history with views",
        right=lambda: of_history(written(write, level, has_bug=False), PROMISES),
        wrong=lambda: of_history(written(write, level, has_bug=True), PROMISES),
        breaks=frozenset(breaks),
    )


VIEW_MUTANTS = (
    mutant("13", views_overtake, "view_agreement"),
    mutant("14", message_behind_its_view, "same_view", "virtual_synchrony"),
    mutant("15", buffers_switched_too_early, "same_view", "virtual_synchrony", "causal"),
    mutant("16", lost_behind_a_gap, "virtual_synchrony", "agreement"),
    mutant("17", leaves_itself_out, "view_agreement"),
    mutant("18", ghost_of_a_joiner, "no_ghost"),
    mutant("31", before_the_state, "state_transfer"),
    mutant("", again_after_the_state, "state_transfer", "same_view"),
    mutant("", lacks_what_came_during_the_transfer, "state_transfer"),
    mutant("33", lost_across_views, "validity"),
    mutant("34", two_coordinators, "view_agreement"),
    mutant("", own_order_before_the_exclusion, "total_order"),
    mutant("", final_alone, "total_order", level=Level.FINAL),
)
