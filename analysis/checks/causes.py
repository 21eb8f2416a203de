"""Causal order of one run in NumPy: every delivery against the direct causes of its message.

A message's direct causes are the messages that its member submitted or delivered since its previous submission. A
member that delivers all direct causes first delivers, by induction, the whole causal past first. So no vectors are
needed, and no FIFO order is assumed (groupcomm 3.4, which also has the proof). Each delivery is a direct cause of at
most one message per member: with n members and D deliveries there are at most n * D pairs to check, each in a few
machine operations.

The whole run is in memory: 25 bytes a row (`Chunk`), 17 when the rows are in order, 8 for each pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Shorts = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

NEVER = np.iinfo(np.int64).max
NO_PLACE = np.iinfo(np.int32).max
PAIRS_AT_ONCE = 1 << 20


class Chunk(NamedTuple):
    """Rows of one incarnation, in any order: its submissions, and the first deliveries of its judged sequence."""

    record: Ints
    message: Ints
    """Code of the message: its origin's incarnation in the upper half, its number in the lower one."""
    is_submission: Mask
    at_ns: Ints


class IncarnationSteps(NamedTuple):
    """Submissions and deliveries of one incarnation, in its order."""

    place: Shorts
    """Ascending; rows of one record share a place."""
    message: Shorts
    """Dense number of the message, 0 …"""
    is_submission: Mask
    at_ns: Ints


class History(NamedTuple):
    """Submissions and deliveries of one run."""

    incarnations: Sequence[IncarnationSteps]
    codes: Ints
    """Code of each incarnation, ascending."""
    messages: Ints
    """Code of each message, ascending."""


class Early(NamedTuple):
    """A delivery of `message` by `incarnation` before `cause`. All three are dense numbers."""

    at_ns: int
    incarnation: int
    message: int
    cause: int


class Answer(NamedTuple):
    """Number of deliveries that lack a cause, and the earliest of them."""

    violations: int
    earliest: Early | None


def in_order(chunk: Chunk, messages: Ints) -> IncarnationSteps:
    """Steps of one incarnation in order. `messages`: codes of the run's messages, ascending."""
    order = np.argsort(chunk.record, kind="stable")
    record = chunk.record[order]
    place = np.zeros(len(record), np.int32)
    np.cumsum(record[1:] != record[:-1], out=place[1:])
    return IncarnationSteps(
        place=place,
        message=np.searchsorted(messages, chunk.message[order]).astype(np.int32),
        is_submission=chunk.is_submission[order],
        at_ns=chunk.at_ns[order],
    )


def check(history: History, joiners: Iterable[int] = ()) -> Answer:
    """Count the deliveries that come before a direct cause of their message. `joiners`: codes of the incarnations that
    need not have messages from before they joined.
    """
    cause, effect = direct_causes(history.incarnations)
    late = set(joiners)
    violations = 0
    earliest: Early | None = None
    approved: Shorts | None = None
    for number, incarnation in enumerate(history.incarnations):
        rows = np.flatnonzero(~incarnation.is_submission)
        sequence = incarnation.message[rows]
        # In a total order all members deliver one sequence, which need be checked only once.
        if approved is not None and _is_begin(sequence, incarnation.place[rows], approved):
            continue
        place = np.full(len(history.messages), NO_PLACE, np.int32)
        place[incarnation.message[rows]] = incarnation.place[rows]
        is_due = _is_due(history.messages, incarnation.message[rows]) if int(history.codes[number]) in late else None
        is_early = np.zeros(len(history.messages), np.bool_)
        for part in _slices(len(cause)):
            is_early[effect[part][_are_early(place, is_due, cause[part], effect[part])]] = True
        if is_early.any():
            violations += int(is_early.sum())
            at_ns, message = _first(incarnation, rows, is_early)
            causes = cause[effect == message]
            first = int(causes[_are_early(place, is_due, causes, np.full_like(causes, message))].min())
            candidate = Early(at_ns, number, message, first)
            earliest = candidate if earliest is None else min(earliest, candidate)
        elif int(history.codes[number]) not in late and (approved is None or len(approved) < len(sequence)):
            approved = sequence
    return Answer(violations, earliest)


def direct_causes(incarnations: Sequence[IncarnationSteps]) -> tuple[Shorts, Shorts]:
    """All pairs (cause, effect) of messages. The effect is the member's next submission after the cause."""
    pairs = [_direct_causes(incarnation) for incarnation in incarnations]
    empty = np.empty(0, np.int32)
    return (
        np.concatenate([empty, *(cause for cause, _ in pairs)]),
        np.concatenate([empty, *(effect for _, effect in pairs)]),
    )


def _direct_causes(incarnation: IncarnationSteps) -> tuple[Shorts, Shorts]:
    submissions = np.flatnonzero(incarnation.is_submission)
    # A second record of a submission is not another one.
    submissions = submissions[np.sort(np.unique(incarnation.message[submissions], return_index=True)[1])]
    is_first = np.zeros(len(incarnation.message), np.bool_)
    is_first[submissions] = True
    following = np.cumsum(is_first, dtype=np.int32)
    is_cause = (following < len(submissions)) & (is_first | ~incarnation.is_submission)
    return incarnation.message[is_cause], incarnation.message[submissions[following[is_cause]]]


def _slices(length: int) -> Iterator[slice]:
    return (slice(begin, begin + PAIRS_AT_ONCE) for begin in range(0, length, PAIRS_AT_ONCE))


def _are_early(place: Shorts, is_due: Mask | None, cause: Shorts, effect: Shorts) -> Mask:
    """True for the pairs whose effect an incarnation delivers without the cause before it."""
    place_of_effect = place[effect]
    is_early = (place_of_effect != NO_PLACE) & (place[cause] >= place_of_effect)
    if is_due is not None:
        is_early &= is_due[cause]
    return np.asarray(is_early)


def _is_begin(sequence: Shorts, place: Shorts, approved: Shorts) -> bool:
    """Whether a sequence, one delivery a record, is a prefix of the approved one."""
    is_one_by_one = bool(np.all(place[1:] > place[:-1]))
    return is_one_by_one and np.array_equal(sequence, approved[: len(sequence)])


def _is_due(messages: Ints, delivered: Shorts) -> Mask:
    """Messages that a joiner must deliver: those not older than the oldest that it delivers of the same origin."""
    origin, number = np.unique(messages >> 32, return_inverse=True)[1], messages & 0xFFFFFFFF
    oldest = np.full(int(origin.max(initial=-1)) + 1, NEVER, np.int64)
    np.minimum.at(oldest, origin[delivered], number[delivered])
    return np.asarray(number >= oldest[origin])


def _first(incarnation: IncarnationSteps, rows: npt.NDArray[np.intp], is_early: Mask) -> tuple[int, int]:
    """Time and message of the earliest delivery of an early message."""
    wrong = rows[is_early[incarnation.message[rows]]]
    first = wrong[np.lexsort((incarnation.message[wrong], incarnation.at_ns[wrong]))[0]]
    return int(incarnation.at_ns[first]), int(incarnation.message[first])
