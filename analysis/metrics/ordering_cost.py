"""What the order costs, as paper 003 measures it: the section `ordering` of summary.json, from reports of the cores
(node.trace.Notice). Processor time and traffic are another cost: `analysis.metrics.cost`.

    cost of a message at a member = from its receipt until it could be handed over for good, roll-backs included

A report counts when it is made within the load. `cost_per_s` is in ns: what a second of load costs at a member, mean of
the members. Whoever has made any such report in the run is a member here; lives of one member are added up.

*Finality* is what users feel of the GVT's lag: from the first optimistic delivery of a message to its final one, at
each member. What is handed over for good at once has none.

Whoever reports may be broken or an enemy. A cost or a loss that is longer than twice the time since the load began (a
node's clock may drift), and an epoch or an estimate beyond 63 bits, cannot be: such reports are left out and counted as
`implausible`.

Pure, for both worlds: a run directory through analysis.summary, a run in memory through testbed.sim.point.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

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
from analysis.metrics.ordering_finality import Finals, finals_of, gvt_still, waited
from analysis.metrics.ordering_inversions import optimistic_order
from analysis.metrics.ordering_records import LIFE_BITS, Ints, Records, Span, Truths
from collector.records import Event, Notice

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
        finals.where(finals.life >> LIFE_BITS == member),
        [longest_ns for life, longest_ns in still_ns.items() if life >> LIFE_BITS == member],
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
