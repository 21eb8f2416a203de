"""What the order costs, as paper 003 measures it: the section `ordering` of summary.json, from reports of the cores
(node.trace.Notice). Processor time and traffic are another cost: `analysis.metrics.cost`.

    cost of a message at a member = from its receipt until it could be handed over for good, roll-backs included

A report counts when it is made within the load. `cost_per_s` is in ns: what a second of load costs at a member, mean of
the members. Whoever has made any such report in the run is a member here; incarnations of one member are added up.

*Finality* is what users feel of the GVT's lag: from the first optimistic delivery of a message to its final one, at
each member. What is handed over for good at once has none.

Whoever reports may be broken or an enemy. A cost or a loss that is longer than twice the time since the load began (a
node's clock may drift), and an epoch or an estimate beyond 63 bits, cannot be: such reports are left out and counted as
`implausible`.

Pure, for both worlds: a run directory through analysis.summary, a run in memory through testbed.sim.point.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from analysis.metrics.ordering_epochs import (
    by_protocol,
    costs,
    epochs,
    mean,
    milliseconds,
    protocol_names,
    tenures,
    total,
)
from analysis.metrics.ordering_records import INCARNATION_BITS, Ints, Records, Span, Truths
from collector.records import Event, Level, Notice

QUANTILES: Final = {"p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}

BIN_NS: Final = 1_000_000_000
MAX_BINS: Final = 400
"""Of the series: a longer load has wider ones, of whole seconds."""


def section(
    records: Records | None, *, start_ns: int, end_ns: int | None, names: Mapping[int, str], protocol: str
) -> dict[str, Any] | None:
    """For summary.json; None when nothing was reported or the load, from `start_ns` to `end_ns`, did not end.

    `names`: of the members; `protocol`: the run's, which is in force where no report says what is.
    """
    if records is None or end_ns is None or end_ns <= start_ns:
        return None
    load = Span(start_ns, end_ns)
    members = np.unique(records.member[records.of(Event.REPORT)]).tolist()
    is_implausible = _implausible(records, load)
    records = records.where(~is_implausible)
    loaded = records.where(load.holds(records.at_ns))
    finals = finals_of(records)
    still_ns = gvt_still(records, finals, load)
    finals = waited(finals, load)
    found = tenures(records, load, otherwise=protocol)
    listed = epochs(records, found, load, members=len(members))
    return {
        "seconds": load.seconds,
        **_figures(loaded, finals, list(still_ns.values()), load, members=len(members)),
        "switches": sum(epoch["switch_ms"] is not None for epoch in listed),
        "switch_max_ms": _greatest(epoch["switch_ms"] for epoch in listed),
        "pause_max_ms": _greatest(epoch["pause_ms"] for epoch in listed),
        "optimistic": optimistic_order(records),
        "implausible": int(is_implausible.sum()),
        "by_member": [
            {"member": names.get(member, f"member {member}"), **_of_member(member, loaded, finals, still_ns, load)}
            for member in members
        ],
        "epochs": listed,
        "by_protocol": by_protocol(records, found, load, members=len(members)),
        "series": _series(loaded, load, members=len(members)),
    }


def _implausible(records: Records, load: Span) -> Truths:
    """Which rows are reports of what cannot be."""
    is_duration = records.reports(Notice.COST) | records.reports(Notice.REDONE) | records.reports(Notice.ROLLED_BACK)
    longest_ns = 2 * (records.at_ns - load.start_ns)
    is_too_long = is_duration & (records.at_ns >= load.start_ns) & (records.value > longest_ns)
    is_signed = is_duration | records.reports(Notice.IN_FORCE) | records.reports(Notice.ESTIMATE)
    return is_too_long | (is_signed & (records.value < 0))


def _of_member(member: int, loaded: Records, finals: Finals, still_ns: Mapping[int, int], load: Span) -> dict[str, Any]:
    return _figures(
        loaded.where(loaded.member == member),
        finals.where(finals.recorder >> INCARNATION_BITS == member),
        [longest_ns for incarnation, longest_ns in still_ns.items() if incarnation >> INCARNATION_BITS == member],
        load,
        members=1,
    )


def _figures(loaded: Records, finals: Finals, still_ns: list[int], load: Span, *, members: int) -> dict[str, Any]:
    cost_ns = loaded.value[loaded.reports(Notice.COST)]
    redone_ns = loaded.value[loaded.reports(Notice.REDONE)]
    losses = loaded.where(loaded.reports(Notice.ROLLED_BACK))
    return {
        **costs(cost_ns),
        **_quantiles("cost", cost_ns),
        "cost_per_s": total(cost_ns) / load.seconds / members if len(cost_ns) else None,
        "redone": len(redone_ns),
        "redone_mean_ms": milliseconds(mean(redone_ns)),
        "roll_backs": len(losses),
        "roll_backs_per_message": len(losses) / len(cost_ns) if len(cost_ns) else None,
        "undone_per_roll_back": mean(losses.extra),
        "lost_ms": total(losses.value) / 1e6,
        **_quantiles("finality", finals.final_ns - finals.optimistic_ns),
        "gvt_still_max_ms": milliseconds(max(still_ns, default=None)),
    }


def _quantiles(name: str, values_ns: Ints) -> dict[str, float | None]:
    """Exact ones, that interpolate."""
    if not len(values_ns):
        return {f"{name}_{place}": None for place in QUANTILES}
    found = np.quantile(values_ns / 1e6, list(QUANTILES.values()))
    return {f"{name}_{place}": float(value) for place, value in zip(QUANTILES, found, strict=True)}


def _series(loaded: Records, load: Span, *, members: int) -> list[dict[str, Any]]:
    """Over time, by when something is reported. The last bin may be a shorter one."""
    width_ns = BIN_NS * -(-(load.end_ns - load.start_ns) // (MAX_BINS * BIN_NS))
    starts = np.arange(load.start_ns, load.end_ns, width_ns)
    seconds = (np.minimum(starts + width_ns, load.end_ns) - starts) / 1e9
    place = (loaded.at_ns - load.start_ns) // width_ns
    is_cost, is_loss = loaded.reports(Notice.COST), loaded.reports(Notice.ROLLED_BACK)
    cost_ns = np.bincount(place[is_cost], loaded.value[is_cost], len(starts))
    columns = (
        (starts - load.start_ns) / 1e9,
        cost_ns / seconds / members,
        np.bincount(place[is_cost], minlength=len(starts)),
        np.bincount(place[is_loss], minlength=len(starts)),
    )
    keys = ("t_s", "cost_per_s", "messages", "roll_backs")
    rows = [dict(zip(keys, row, strict=True)) for row in zip(*(column.tolist() for column in columns), strict=True)]
    return [row | {"estimates": told} for row, told in zip(rows, _estimates(loaded, place, len(starts)), strict=True)]


def _estimates(loaded: Records, place: Ints, bins: int) -> list[dict[str, float]]:
    """By bin and protocol: the mean of what was estimated then."""
    is_estimate = loaded.reports(Notice.ESTIMATE)
    about, place, per_s = protocol_names(loaded.extra[is_estimate]), place[is_estimate], loaded.value[is_estimate]
    told: list[dict[str, float]] = [{} for _ in range(bins)]
    for name in np.unique(about).tolist():
        rows = about == name
        count = np.bincount(place[rows], minlength=bins)
        total = np.bincount(place[rows], per_s[rows], bins)
        for row in np.flatnonzero(count).tolist():
            told[row][name] = float(total[row] / count[row])
    return told


def _greatest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def optimistic_order(records: Records) -> dict[str, Any] | None:
    """`deliveries`: at all incarnations; `in_order`: the share that were no stragglers; `inversions`: pairs per
    delivery. None: nothing was delivered optimistically that became final.
    """
    shown = _first_of_each(records, OPTIMISTIC)
    final = _first_of_each(records, FOR_GOOD)
    deliveries, stragglers, inverted = 0, 0, 0
    for incarnation in np.unique(records.recorder).tolist():
        order = _order(
            shown.where(shown.recorder == incarnation).message, final.where(final.recorder == incarnation).message
        )
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
    """The first deliveries at these levels, in the order in which each incarnation made them."""
    rows = records.where(records.of(Event.DELIVER) & np.isin(records.detail, levels))
    order = np.lexsort((rows.message, rows.recorder))  # stable
    incarnation, message = rows.recorder[order], rows.message[order]
    is_first = np.append(True, (np.diff(incarnation) != 0) | (np.diff(message) != 0))[: len(order)]
    return rows.where(np.sort(order[is_first]))


def _order(shown: Ints, final: Ints) -> Ints:
    """Of what is in both, in the order in which it was shown: the place in the final order."""
    common, places, _ = np.intersect1d(shown, final, assume_unique=True, return_indices=True)
    final = final[np.isin(final, common)]
    shown = shown[np.sort(places)]
    by_message = np.argsort(final)
    return np.asarray(by_message[np.searchsorted(final, shown, sorter=by_message)], np.int64)


NEVER_NS: Final = np.iinfo(np.int64).max
OPTIMISTIC: Final = (int(Level.OPTIMISTIC),)
FOR_GOOD: Final = (int(Level.AGREED), int(Level.FINAL))
"""Levels of deliveries that are not taken back."""


class Finals(NamedTuple):
    """The first deliveries of each message in each incarnation, at two levels; NEVER_NS: there is none."""

    recorder: Ints
    optimistic_ns: Ints
    final_ns: Ints

    def where(self, rows: Truths) -> Finals:
        return Finals(*(column[rows] for column in self))


def finals_of(records: Records) -> Finals:
    """Of all messages that were delivered optimistically or for good; other levels do not count."""
    rows = records.where(records.of(Event.DELIVER) & np.isin(records.detail, (*OPTIMISTIC, *FOR_GOOD)))
    # Stable: within a message of an incarnation its rows stay in the order of their numbers.
    rows = rows.where(np.lexsort((rows.message, rows.recorder)))
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = (np.diff(rows.recorder) != 0) | (np.diff(rows.message) != 0)
    group = np.cumsum(is_first) - 1
    return Finals(
        rows.recorder[is_first],
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
    """By incarnation that reports its GVT: the longest time within the load in which something delivered was not final
    and the GVT did not move. An incarnation without such a time has no entry. After its last record an incarnation
    waits for nothing.
    """
    told = records.where(records.reports(Notice.GVT))
    longest = dict[int, int]()
    for incarnation in np.unique(told.recorder).tolist():
        rises = told.where(told.recorder == incarnation)
        is_rise = np.ones(len(rises), np.bool_)
        is_rise[1:] = np.diff(rises.value) != 0
        until_ns = min(load.end_ns, int(records.at_ns[records.recorder == incarnation].max()))
        still_ns = _still_ns(
            finals.where(finals.recorder == incarnation), rises.at_ns[is_rise], Span(load.start_ns, until_ns)
        )
        if still_ns is not None:
            longest[incarnation] = still_ns
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
