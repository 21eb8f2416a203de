"""From optimistic to final: how long a delivery may still be taken back, and how long the global virtual time stood
still meanwhile. Parts of the section `ordering` (analysis.metrics.ordering_cost).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from analysis.metrics.ordering_records import Ints, Records, Span, Truths
from collector.records import Event, Level, Notice

NEVER_NS: Final = np.iinfo(np.int64).max
OPTIMISTIC: Final = (int(Level.OPTIMISTIC),)
FOR_GOOD: Final = (int(Level.AGREED), int(Level.FINAL))
"""Levels of deliveries that are not taken back."""


class Finals(NamedTuple):
    """The first deliveries of each message in each life, at two levels; NEVER_NS: there is none."""

    life: Ints
    optimistic_ns: Ints
    final_ns: Ints

    def where(self, rows: Truths) -> Finals:
        return Finals(*(column[rows] for column in self))


def finals_of(records: Records) -> Finals:
    """Of all messages that were delivered optimistically or for good; other levels do not count."""
    rows = records.where(records.of(Event.DELIVER) & np.isin(records.detail, (*OPTIMISTIC, *FOR_GOOD)))
    # Stable: within a message of a life its rows stay in the order of their numbers.
    rows = rows.where(np.lexsort((rows.message, rows.life)))
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = (np.diff(rows.life) != 0) | (np.diff(rows.message) != 0)
    group = np.cumsum(is_first) - 1
    return Finals(
        rows.life[is_first],
        _first_ns(rows, group, OPTIMISTIC),
        _first_ns(rows, group, FOR_GOOD),
    )


def _first_ns(rows: Records, group: Ints, levels: tuple[int, ...]) -> Ints:
    found = np.full(int(group[-1]) + 1 if len(group) else 0, NEVER_NS, np.int64)
    places = np.flatnonzero(np.isin(rows.detail, levels))[::-1]
    found[group[places]] = rows.at_ns[places]  # of several the one written last stays: the first
    return found


def waited(finals: Finals, load: Span) -> Finals:
    """Those that were optimistic first and became final within the load."""
    return finals.where(load.holds(finals.final_ns) & (finals.optimistic_ns <= finals.final_ns))


def gvt_still(records: Records, finals: Finals, load: Span) -> dict[int, int]:
    """By life that reports its GVT: the longest time within the load in which something delivered was not final and the
    GVT did not move. A life without such a time has no entry. After its last record a life waits for nothing.
    """
    told = records.where(records.reports(Notice.GVT))
    longest = dict[int, int]()
    for life in np.unique(told.life).tolist():
        rises = told.where(told.life == life)
        is_rise = np.ones(len(rises), np.bool_)
        is_rise[1:] = np.diff(rises.value) != 0
        until_ns = min(load.end_ns, int(records.at_ns[records.life == life].max()))
        still_ns = _still_ns(finals.where(finals.life == life), rises.at_ns[is_rise], Span(load.start_ns, until_ns))
        if still_ns is not None:
            longest[life] = still_ns
    return longest


def _still_ns(finals: Finals, rises_ns: Ints, span: Span) -> int | None:
    is_open = (finals.optimistic_ns < finals.final_ns) & (finals.optimistic_ns < span.end_ns)
    is_open &= finals.final_ns > span.start_ns
    opened, closed = finals.optimistic_ns[is_open], finals.final_ns[is_open]
    if span.end_ns <= span.start_ns or not len(opened):
        return None
    rises = np.append(rises_ns[span.holds(rises_ns)], span.end_ns)
    at_ns = span.cut(np.concatenate((opened, rises, closed)))
    change = np.repeat(np.array([1, 0, -1]), [len(opened), len(rises), len(closed)])
    order = np.argsort(at_ns, kind="stable")
    at_ns, change = at_ns[order], change[order]
    waiting = np.cumsum(change)
    # It stands still from a rise, or from when something first waits for one, to the next rise or the last final.
    is_bound = (change == 0) | (waiting == 0) | ((change == 1) & (waiting == 1))
    bounds, is_waited = at_ns[is_bound], waiting[is_bound] > 0
    return int(np.diff(bounds)[is_waited[:-1]].max(initial=0))
