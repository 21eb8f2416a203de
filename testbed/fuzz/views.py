"""What the views of a run met: how many took the place of another one, for which reason, and with what under way.

A view is struck when the first of its survivors freezes (the core's phase is `changing`), or, where no input came in
that phase, when the first of them installs the next view. A survivor is an incarnation that installs the next view
after this one. What was under way then among the survivors:

- *held*: a core held messages in its buffers, such as ones that are not stable yet;
- *undelivered*: one had not delivered a message of its own;
- *partly delivered*: one had delivered, in this view, what another one had not;
- *unsettled*: one had not installed this view yet, or was a joiner without the group's state.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from node.trace import Event, ViewReason
from testbed.sim.simulation import IncarnationRun

FIRST_VIEW = 1

MessageId = tuple[int, int, int]
IncarnationId = tuple[int, int]
"""(member, incarnation)"""

Views = Counter[tuple[str, str]]
"""By (reason, what): how many views. `Met.VIEWS` counts all of a reason, the others those that met something."""


class Met(enum.StrEnum):
    """What a view met when it was struck."""

    VIEWS = "views"
    HELD = "held"
    UNDELIVERED = "undelivered"
    PARTLY_DELIVERED = "partly delivered"
    UNSETTLED = "unsettled"
    NOTHING = "nothing"


class Freeze(NamedTuple):
    """A core was seen frozen for the first time since it was not; `buffered`: messages in its buffers then."""

    at_ns: int
    buffered: int


def views_met(
    incarnations: Iterable[IncarnationRun],
    freezes: Mapping[IncarnationId, Sequence[Freeze]],
    *,
    promises_agreement: bool,
) -> Views:
    """Of one run. Without `promises_agreement` a message may be for one member alone: it never is partly delivered."""
    histories = [_History.of(incarnation) for incarnation in incarnations]
    found: Views = Counter()
    for number, reason in sorted({pair for history in histories for pair in history.reasons.items()}):
        if number == FIRST_VIEW:
            continue
        survivors = [one for one in histories if number in one.installed_ns and one.began_before(number)]
        what = _met(survivors, number - 1, freezes) if survivors else set()
        if not promises_agreement:
            what.discard(Met.PARTLY_DELIVERED)
        found[reason, Met.VIEWS] += 1
        found.update((reason, one) for one in what or {Met.NOTHING})
    return found


def _met(survivors: Sequence[_History], view: int, freezes: Mapping[IncarnationId, Sequence[Freeze]]) -> set[Met]:
    """Of `view`, which these have left for the next one."""
    frozen = [one for history in survivors if (one := _freeze_of(history, view, freezes)) is not None]
    struck_ns = min([one.at_ns for one in frozen] or [history.installed_ns[view + 1] for history in survivors])
    found: set[Met] = set()
    if any(one.buffered for one in frozen):
        found.add(Met.HELD)
    if any(history.lacks_own(struck_ns) for history in survivors):
        found.add(Met.UNDELIVERED)
    if any(not history.is_settled(view, struck_ns) for history in survivors):
        found.add(Met.UNSETTLED)
    settled = [history for history in survivors if history.is_settled(view, struck_ns)]
    delivered = [history.delivered(struck_ns) for history in settled]
    fresh = set[MessageId]().union(*(history.delivered_in(view, struck_ns) for history in settled))
    if any(fresh - one for one in delivered):
        found.add(Met.PARTLY_DELIVERED)
    return found


def _freeze_of(history: _History, view: int, freezes: Mapping[IncarnationId, Sequence[Freeze]]) -> Freeze | None:
    """The first while it was in this view."""
    from_ns, until_ns = history.installed_ns.get(view, 0), history.installed_ns[view + 1]
    return next((one for one in freezes.get(history.incarnation, ()) if from_ns <= one.at_ns <= until_ns), None)


@dataclass(slots=True)
class _History:
    """What one incarnation recorded of views and messages."""

    incarnation: IncarnationId
    installed_ns: dict[int, int] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    state_ns: int | None = None
    submitted_ns: dict[MessageId, int] = field(default_factory=dict)
    delivered_ns: dict[MessageId, int] = field(default_factory=dict)

    @classmethod
    def of(cls, incarnation: IncarnationRun) -> _History:
        found = cls((incarnation.member, incarnation.incarnation))
        for event, detail, origin, start, _, number, at_ns, _, _ in incarnation.records:
            if event == Event.SUBMIT:
                found.submitted_ns[origin, start, number] = at_ns
            elif event == Event.DELIVER:
                found.delivered_ns[origin, start, number] = at_ns
            elif event == Event.VIEW:
                found.installed_ns.setdefault(number, at_ns)
                found.reasons[number] = ViewReason(detail).name.lower().replace("_", " ")
            elif event == Event.STATE:
                found.state_ns = at_ns
        return found

    def began_before(self, view: int) -> bool:
        """Whether it was a member of an earlier view: no joiner of this one."""
        return min(self.installed_ns) < view

    def is_settled(self, view: int, at_ns: int) -> bool:
        has_state = FIRST_VIEW in self.installed_ns or (self.state_ns is not None and self.state_ns <= at_ns)
        return has_state and self.installed_ns.get(view, at_ns + 1) <= at_ns

    def lacks_own(self, at_ns: int) -> bool:
        return any(
            submitted_ns <= at_ns < self.delivered_ns.get(message, at_ns + 1)
            for message, submitted_ns in self.submitted_ns.items()
        )

    def delivered(self, at_ns: int) -> set[MessageId]:
        return {message for message, delivered_ns in self.delivered_ns.items() if delivered_ns <= at_ns}

    def delivered_in(self, view: int, at_ns: int) -> set[MessageId]:
        from_ns = self.installed_ns[view]
        return {message for message, delivered_ns in self.delivered_ns.items() if from_ns <= delivered_ns <= at_ns}
