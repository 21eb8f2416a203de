"""Requests served in the opposite order of their submission times (paper 001, "Anomalous Behavior"; experiment iii).

The number of pairs of submissions by different members, more than a gap apart, that were ordered the other way round.
It is counted exactly in O(D log D), as inversions among the pairs that are far enough apart. Of a long run every k-th
submission is used.

Where the workload has telephone calls, the pairs that a call connects are counted, all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

GAPS_NS = (0, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000)
MAX_MESSAGES = 20_000


class Served(NamedTuple):
    """One row per message that was submitted and served; the first three columns name it."""

    origin: Ints
    incarnation: Ints
    number: Ints
    submit_ns: Ints
    place: Ints
    """Place in the order of service; any numbers that ascend with it."""

    def select(self, rows: Ints | npt.NDArray[np.bool_]) -> Served:
        return Served(*(column[rows] for column in self))


class Call(NamedTuple):
    """Each `every`-th message of the caller is followed by one of the callee (members)."""

    caller: int
    callee: int
    every: int


def table(served: Served, *, order: str, mu_ns: int = 0, calls: Sequence[Call] = ()) -> dict[str, Any] | None:
    """Section `anomalies` of summary.json. `order`: name of the order; `mu_ns`: the paper's mu, the least time that a
    message takes, is the gap of the figures outside `by_gap`. None when nothing was served.
    """
    total = len(served.place)
    if not total:
        return None
    served = served.select(np.lexsort((served.place, served.submit_ns)))
    called = _called(served, calls) if calls else None
    every = -(-total // MAX_MESSAGES)
    served = served.select(np.arange(0, total, every))
    return {
        "order": order,
        "messages": len(served.place),
        "every": every,
        **_entry(served, mu_ns),
        "by_gap": [_entry(served, gap_ns) for gap_ns in GAPS_NS],
        "calls": called,
    }


def _called(served: Served, calls: Sequence[Call]) -> dict[str, Any]:
    """Pairs of a message and the one that followed from it by telephone, of the first incarnations: a later one has a
    schedule of its own. A callee that sent before its caller did (which fell behind) makes no pair.
    """
    pairs = opposite = 0
    for call in calls:
        first, then = (
            served.select((served.origin == member) & (served.incarnation == 1))
            for member in (call.caller, call.callee)
        )
        _, of_first, of_then = np.intersect1d(first.number, then.number * call.every, return_indices=True)
        first, then = first.select(of_first), then.select(of_then)
        is_pair = first.submit_ns < then.submit_ns
        pairs += int(is_pair.sum())
        opposite += int((is_pair & (then.place < first.place)).sum())
    return {"pairs": pairs, "opposite": opposite, "share": opposite / pairs if pairs else None}


def _entry(served: Served, gap_ns: int) -> dict[str, Any]:
    pairs, opposite = count(served, gap_ns)
    return {
        "gap_ms": gap_ns / 1e6,
        "pairs": pairs,
        "opposite": opposite,
        "share": opposite / pairs if pairs else None,
    }


def count(served: Served, gap_ns: int) -> tuple[int, int]:
    """Numbers of pairs of different members more than `gap_ns` apart, and of those served the other way round. `served`
    is sorted by time of submission.
    """
    pairs, opposite = opposite_pairs(served.submit_ns, served.place, gap_ns)
    for origin in np.unique(served.origin):
        own = served.select(served.origin == origin)
        own_pairs, own_opposite = opposite_pairs(own.submit_ns, own.place, gap_ns)
        pairs, opposite = pairs - own_pairs, opposite - own_opposite
    return pairs, opposite


def opposite_pairs(submit_ns: Ints, place: Ints, gap_ns: int = 0) -> tuple[int, int]:
    """Numbers of pairs of rows more than `gap_ns` apart, and of those whose places are the other way round; `submit_ns`
    ascends. For each row, the earlier rows up to a limit with a later place are counted block by block.
    """
    limit = np.searchsorted(submit_ns, submit_ns - gap_ns, side="left")
    if np.all(place[1:] > place[:-1]):  # as a member's own are, wherever the order is FIFO
        return int(limit.sum()), 0
    rank = np.argsort(np.argsort(place, kind="stable"), kind="stable").astype(np.int64)
    size = len(rank)
    opposite = 0
    width = 1
    while width <= int(limit.max(initial=0)):
        # A limit is a sum of powers of two; each has one block of that width, which is sorted.
        taking = np.flatnonzero(limit & width)
        block = (limit[taking] // (2 * width)) * 2
        keyed = (np.arange(size) // width) * size + rank
        keyed.sort()
        end = np.minimum((block + 1) * width, size)
        at_most = np.searchsorted(keyed, block * size + rank[taking], side="right")
        opposite += int((end - at_most).sum())
        width *= 2
    return int(limit.sum()), opposite
