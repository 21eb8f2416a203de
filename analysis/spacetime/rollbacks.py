"""What optimism did in a diagram: deliveries that were taken back and came again, stragglers and anti-messages.

A roll-back happens while its core is given a message, so its straggler is the last message of Time Warp that came
before the report of it. Where a host is given several datagrams in one moment it may be the one before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from analysis.checks.properties import Incarnation
from analysis.spacetime.model import Arrow, Mark, Role, Step, What
from collector.records import Event

OPTIMISTIC_KINDS: Final = ("TIMEWARP_DATA", "TIMEWARP_FOLLOW_UP", "TIMEWARP_ANTI")
"""Innermost messages that may bring a roll-back."""

_BEFORE: Final = -1
"""No record has this number: of a delivery before what is known."""


def taken_back(steps: Sequence[Step]) -> tuple[set[tuple[Incarnation, int]], set[tuple[Incarnation, int]]]:
    """Life and record of the deliveries that were taken back, and of those that came again afterwards."""
    latest: dict[tuple[Any, ...], int] = {}
    undone: set[tuple[Incarnation, int]] = set()
    again: set[tuple[Incarnation, int]] = set()
    for step in sorted(steps, key=lambda step: (step.life, step.record)):
        of = (step.life, step.message, step.detail)
        if step.event == Event.DELIVER:
            if of in latest:
                again.add((step.life, step.record))
            latest[of] = step.record
        elif step.event == Event.UNDO:
            # Whose delivery lies before what is known was delivered all the same.
            undone.add((step.life, latest.setdefault(of, _BEFORE)))
    return undone, again


def with_roles(arrows: Sequence[Arrow], marks: Sequence[Mark]) -> list[Arrow]:
    """Anti-messages, and for each roll-back its straggler: the last message of Time Warp that came before it."""
    heads: dict[Incarnation, list[int]] = {}
    for arrow in arrows:
        if arrow.head is not None and arrow.kind.startswith(OPTIMISTIC_KINDS):
            heads.setdefault(marks[arrow.head].life, []).append(arrow.head)
    for own in heads.values():
        own.sort()
    brought: dict[int, Mark] = {}
    for mark in marks:
        if mark.what is What.ROLL_BACK:
            own = heads.get(mark.life, [])
            if place := bisect_left(own, mark.number):
                brought.setdefault(own[place - 1], mark)
    return [_with_role(arrow, brought.get(-1 if arrow.head is None else arrow.head)) for arrow in arrows]


def _with_role(arrow: Arrow, rolled_back: Mark | None) -> Arrow:
    is_anti = arrow.kind.startswith("TIMEWARP_ANTI")
    if rolled_back is None and not is_anti:
        return arrow
    said = "" if rolled_back is None else f"; it brings a roll-back, {rolled_back.label}"
    return replace(arrow, role=Role.ANTI if is_anti else Role.STRAGGLER, words=arrow.words + said)
