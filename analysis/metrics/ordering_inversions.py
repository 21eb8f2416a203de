"""How far the optimistic order was the final one. A part of the section `ordering` (analysis.metrics.ordering_cost).

Of each life, the messages that it has delivered optimistically and then for good: in which order it first showed them,
against the order in which they became final. A message that is shown after one that is later in the final order is a
*straggler*; each such pair is an inversion, and each inversion an undoing that was needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from analysis.metrics.ordering_finality import FOR_GOOD, OPTIMISTIC
from analysis.metrics.ordering_records import Ints, Records
from collector.records import Event


def optimistic_order(records: Records) -> dict[str, Any] | None:
    """`deliveries`: at all lives; `in_order`: the share that were no stragglers; `inversions`: pairs per delivery.
    None: nothing was delivered optimistically that became final.
    """
    shown = _first_of_each(records, OPTIMISTIC)
    final = _first_of_each(records, FOR_GOOD)
    deliveries, stragglers, inverted = 0, 0, 0
    for life in np.unique(records.life).tolist():
        order = _order(shown.where(shown.life == life).message, final.where(final.life == life).message)
        deliveries += len(order)
        stragglers += int(np.count_nonzero(order < np.maximum.accumulate(order)))
        inverted += inversions(order)
    if not deliveries:
        return None
    return {
        "deliveries": deliveries,
        "in_order": (deliveries - stragglers) / deliveries,
        "inversions": inverted / deliveries,
    }


def inversions(order: Ints) -> int:
    """How many pairs of a permutation of 0, 1, … stand the other way round. In n log n steps, one bit after the other:
    two numbers are compared at the highest bit in which they differ, among all that agree in the bits above it.
    """
    found = 0
    for bit in range(len(order).bit_length()):
        rows = np.argsort(order >> (bit + 1), kind="stable")
        group, is_one = order[rows] >> (bit + 1), (order[rows] >> bit) & 1
        ones = np.cumsum(is_one)
        is_new = np.append(True, np.diff(group) != 0)[: len(group)]
        before_group = np.maximum.accumulate(np.where(is_new, ones - is_one, 0))
        found += int((ones - before_group)[is_one == 0].sum())
    return found


def _first_of_each(records: Records, levels: tuple[int, ...]) -> Records:
    """The first deliveries at these levels, in the order in which each life made them."""
    rows = records.where(records.of(Event.DELIVER) & np.isin(records.detail, levels))
    order = np.lexsort((rows.message, rows.life))  # stable
    life, message = rows.life[order], rows.message[order]
    is_first = np.append(True, (np.diff(life) != 0) | (np.diff(message) != 0))[: len(order)]
    return rows.where(np.sort(order[is_first]))


def _order(shown: Ints, final: Ints) -> Ints:
    """Of what is in both, in the order in which it was shown: the place in the final order."""
    common, places, _ = np.intersect1d(shown, final, assume_unique=True, return_indices=True)
    final = final[np.isin(final, common)]
    shown = shown[np.sort(places)]
    by_message = np.argsort(final)
    return np.asarray(by_message[np.searchsorted(final, shown, sorter=by_message)], np.int64)
