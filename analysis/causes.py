"""Causal order of one run in NumPy: every delivery against the direct causes of its message.

A message's direct causes are what its member submitted or delivered since its submission before. If every member
delivers the direct causes first, it delivers by induction the whole causal past first; so no vectors are needed, and
no FIFO order is taken for granted (groupcomm 3.4, which also has the proof). Each delivery is a direct cause of at
most one message per member: with n members and D deliveries there are at most n * D pairs to look at, each a few
machine operations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

NEVER = np.iinfo(np.int64).max


class Steps(NamedTuple):
    """What happened in one run, as columns: own submissions, and first deliveries of judged sequences. In any order."""

    life: Ints
    """Dense number of the incarnation that did it."""
    record: Ints
    message: Ints
    """Dense number of the message, 0 … `messages` - 1."""
    is_submission: Mask
    at_ns: Ints
    is_joiner: Mask
    """One per incarnation."""
    origin: Ints
    """One per message: dense number of its origin's incarnation."""
    number: Ints
    """One per message."""


class Early(NamedTuple):
    """A delivery of `message` by `life` before `cause`. All three are dense numbers."""

    at_ns: int
    life: int
    message: int
    cause: int


class Answer(NamedTuple):
    """How many deliveries lack a cause, and the earliest of them."""

    violations: int
    earliest: Early | None


def check(steps: Steps) -> Answer:
    """Count the deliveries that come before a direct cause of their message."""
    cause, effect = direct_causes(steps)
    violations = 0
    earliest: Early | None = None
    for life in range(len(steps.is_joiner)):
        rows = np.flatnonzero((steps.life == life) & ~steps.is_submission)
        found = _early(steps, life, rows, cause, effect)
        violations += len(np.unique(found[:, 1]))
        if len(found):
            at_ns = _times(steps, rows)
            first = found[np.lexsort((found[:, 0], found[:, 1], at_ns[found[:, 1]]))[0]]
            candidate = Early(int(at_ns[first[1]]), life, int(first[1]), int(first[0]))
            earliest = candidate if earliest is None else min(earliest, candidate)
    return Answer(violations, earliest)


def direct_causes(steps: Steps) -> tuple[Ints, Ints]:
    """All pairs (cause, effect) of messages, the effect being the member's next submission after the cause."""
    order = np.lexsort((steps.record, steps.life))
    message, life = steps.message[order], steps.life[order]
    is_submission = steps.is_submission[order] & _is_first(np.where(steps.is_submission[order], message, -1))
    submissions = np.flatnonzero(is_submission)
    if not len(submissions):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    following = np.searchsorted(submissions, np.arange(len(order)), side="right")
    target = submissions[np.minimum(following, len(submissions) - 1)]
    is_cause = (following < len(submissions)) & (life[target] == life)
    is_cause &= is_submission | ~steps.is_submission[order]
    return message[is_cause], message[target[is_cause]]


def dense(*columns: Ints) -> tuple[Ints, Ints]:
    """Number the distinct rows 0, 1, … in sorted order: the number of each row, and one row index for each number."""
    if not len(columns[0]):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    order = np.lexsort(columns[::-1])
    is_new = np.zeros(len(order), np.bool_)
    is_new[0] = True
    for column in columns:
        is_new[1:] |= column[order[1:]] != column[order[:-1]]
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(is_new) - 1
    return numbers, order[is_new]


def _early(steps: Steps, life: int, rows: npt.NDArray[np.intp], cause: Ints, effect: Ints) -> Ints:
    """The pairs (cause, effect) of which this incarnation delivers the effect, but not the cause before it."""
    place = np.full(len(steps.number), NEVER, np.int64)
    place[steps.message[rows]] = steps.record[rows]
    is_early = (place[effect] != NEVER) & (place[cause] >= place[effect])
    if steps.is_joiner[life]:
        is_early &= _is_due(steps, rows)[cause]
    return np.stack((cause[is_early], effect[is_early]), axis=1)


def _is_due(steps: Steps, rows: npt.NDArray[np.intp]) -> Mask:
    """Messages that a joiner cannot have got before its time: not older than the oldest it delivers of the same
    origin.
    """
    oldest = np.full(int(steps.origin.max(initial=-1)) + 1, NEVER, np.int64)
    delivered = steps.message[rows]
    np.minimum.at(oldest, steps.origin[delivered], steps.number[delivered])
    return np.asarray(steps.number >= oldest[steps.origin])


def _times(steps: Steps, rows: npt.NDArray[np.intp]) -> Ints:
    at_ns = np.zeros(len(steps.number), np.int64)
    at_ns[steps.message[rows]] = steps.at_ns[rows]
    return at_ns


def _is_first(values: Ints) -> Mask:
    """True at the first place of each value."""
    first = np.zeros(len(values), np.bool_)
    first[np.unique(values, return_index=True)[1]] = True
    return first
