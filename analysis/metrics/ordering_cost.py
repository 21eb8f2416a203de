"""Cost of ordering as paper 003 measures it: section `ordering` of summary.json (docs/run-directory.md), from reports
of the cores (node.trace.Notice). For latency, processor time and traffic see `analysis.metrics.cost`.

Incarnations of one member are added up. A message that is delivered for good at once has no finality. A message of the
old epoch that becomes final after the switch counts for the new protocol.

Pure functions for both worlds: a run directory through analysis.summary, a run in memory through testbed.sim.point.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.metrics.anomalies import opposite_pairs
from analysis.metrics.figures import greatest, quantiles
from analysis.metrics.ordering_records import INCARNATION_BITS, LEFT, Ints, Records, Span, Truths, begins
from collector.records import Event, Kind, Level, Notice

QUANTILES: Final = {"p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}

BIN_NS: Final = 1_000_000_000
MAX_BINS: Final = 400
"""Most bins of the series: a longer load has wider bins, of whole seconds."""


def section(
    records: Records | None, *, start_ns: int, end_ns: int | None, names: Mapping[int, str], protocol: str
) -> dict[str, Any] | None:
    """Section for summary.json; None when nothing was reported or the load, from `start_ns` to `end_ns`, did not end.

    `names`: of the members; `protocol`: that of the run, which is in force in a run without reports IN_FORCE.
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
        "switch_max_ms": greatest(epoch["switch_ms"] for epoch in listed),
        "pause_max_ms": greatest(epoch["pause_ms"] for epoch in listed),
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
    """Mask of implausible reports."""
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
    return {f"{name}_{place}": value for place, value in quantiles(values_ns, QUANTILES).items()}


def _series(loaded: Records, load: Span, *, members: int) -> list[dict[str, Any]]:
    """Figures over time, by the time of the report. The last bin may be shorter. The cost is None if none was reported
    in the whole load.
    """
    width_ns = BIN_NS * -(-(load.end_ns - load.start_ns) // (MAX_BINS * BIN_NS))
    starts = np.arange(load.start_ns, load.end_ns, width_ns)
    seconds = (np.minimum(starts + width_ns, load.end_ns) - starts) / 1e9
    place = (loaded.at_ns - load.start_ns) // width_ns
    is_cost, is_loss = loaded.reports(Notice.COST), loaded.reports(Notice.ROLLED_BACK)
    cost_ns = np.bincount(place[is_cost], loaded.value[is_cost], len(starts))
    columns = (
        (starts - load.start_ns) / 1e9,
        cost_ns / seconds / members if is_cost.any() else np.full(len(starts), None),
        np.bincount(place[is_cost], minlength=len(starts)),
        np.bincount(place[is_loss], minlength=len(starts)),
    )
    keys = ("t_s", "cost_per_s", "messages", "roll_backs")
    rows = [dict(zip(keys, row, strict=True)) for row in zip(*(column.tolist() for column in columns), strict=True)]
    return [
        row | {"estimates": estimates}
        for row, estimates in zip(rows, _estimates(loaded, place, len(starts)), strict=True)
    ]


def _estimates(loaded: Records, place: Ints, bins: int) -> list[dict[str, float]]:
    """Mean estimate of each protocol in each bin."""
    is_estimate = loaded.reports(Notice.ESTIMATE)
    about, place, per_s = protocol_names(loaded.extra[is_estimate]), place[is_estimate], loaded.value[is_estimate]
    estimates: list[dict[str, float]] = [{} for _ in range(bins)]
    for name in np.unique(about).tolist():
        rows = about == name
        count = np.bincount(place[rows], minlength=bins)
        total = np.bincount(place[rows], per_s[rows], bins)
        for row in np.flatnonzero(count).tolist():
            estimates[row][name] = float(total[row] / count[row])
    return estimates


def optimistic_order(records: Records) -> dict[str, Any] | None:
    """Order of the optimistic deliveries against the final order. `deliveries`: at all incarnations; `in_order`: share
    that were no stragglers; `inversions`: pairs per delivery. None: no message was delivered both optimistically and
    for good.
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
        inverted += opposite_pairs(np.arange(len(order)), order)[1]
    if not deliveries:
        return None
    return {
        "deliveries": deliveries,
        "in_order": (deliveries - stragglers) / deliveries,
        "inversions": inverted / deliveries,
    }


def _first_of_each(records: Records, levels: tuple[int, ...]) -> Records:
    """First deliveries at these levels, in each incarnation's order."""
    rows = records.where(records.of(Event.DELIVER) & np.isin(records.detail, levels))
    order = np.lexsort((rows.message, rows.recorder))  # stable
    return rows.where(np.sort(order[begins(rows.recorder[order], rows.message[order])]))


def _order(shown: Ints, final: Ints) -> Ints:
    """Places in the final order of the messages in both, in the order of their optimistic delivery."""
    common, places, _ = np.intersect1d(shown, final, assume_unique=True, return_indices=True)
    final = final[np.isin(final, common)]
    shown = shown[np.sort(places)]
    by_message = np.argsort(final)
    return np.asarray(by_message[np.searchsorted(final, shown, sorter=by_message)], np.int64)


NEVER_NS: Final = np.iinfo(np.int64).max
OPTIMISTIC: Final = (int(Level.OPTIMISTIC),)
FOR_GOOD: Final = (int(Level.AGREED), int(Level.FINAL))
"""Levels of deliveries that are not undone."""


class Finals(NamedTuple):
    """Times of the first optimistic and first final delivery of each message in each incarnation; NEVER_NS: there is
    none.
    """

    recorder: Ints
    optimistic_ns: Ints
    final_ns: Ints

    def where(self, rows: Truths) -> Finals:
        return Finals(*(column[rows] for column in self))


def finals_of(records: Records) -> Finals:
    """Finals of all messages that were delivered optimistically or for good; other levels do not count."""
    rows = records.where(records.of(Event.DELIVER) & np.isin(records.detail, (*OPTIMISTIC, *FOR_GOOD)))
    # Stable: within a message of an incarnation its rows stay in the order of their numbers.
    rows = rows.where(np.lexsort((rows.message, rows.recorder)))
    is_first = begins(rows.recorder, rows.message)
    group = np.cumsum(is_first) - 1
    return Finals(
        rows.recorder[is_first],
        _first_ns(rows, group, OPTIMISTIC),
        _first_ns(rows, group, FOR_GOOD),
    )


def _first_ns(rows: Records, group: Ints, levels: tuple[int, ...]) -> Ints:
    found = np.full(int(group[-1]) + 1 if len(group) else 0, NEVER_NS, np.int64)
    places = np.flatnonzero(np.isin(rows.detail, levels))[::-1]
    found[group[places]] = rows.at_ns[places]  # rows are reversed, so the first delivery is written last and stays
    return found


def waited(finals: Finals, load: Span) -> Finals:
    """Messages that were optimistic first and became final within the load."""
    return finals.where(load.holds(finals.final_ns) & (finals.optimistic_ns <= finals.final_ns))


def gvt_still(records: Records, finals: Finals, load: Span) -> dict[int, int]:
    """Longest time within the load, by incarnation that reports its GVT, in which a delivered message was not final and
    the GVT did not move. An incarnation without such a time has no entry. Time after its last record does not count.
    """
    reports = records.where(records.reports(Notice.GVT))
    longest = dict[int, int]()
    for incarnation in np.unique(reports.recorder).tolist():
        rises = reports.where(reports.recorder == incarnation)
        until_ns = min(load.end_ns, int(records.at_ns[records.recorder == incarnation].max()))
        still_ns = _still_ns(
            finals.where(finals.recorder == incarnation),
            rises.at_ns[begins(rises.value)],
            Span(load.start_ns, until_ns),
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
    # The GVT stands still from a rise, or from the first waiting message, to the next rise or the last final delivery.
    is_bound = (change == 0) | (waiting == 0) | ((change == 1) & (waiting == 1))
    bounds, is_waited = at_ns[is_bound], waiting[is_bound] > 0
    return int(np.diff(bounds)[is_waited[:-1]].max(initial=0))


# Protocols in force over time, with the measured and estimated cost of each.

MAX_EPOCHS: Final = 1000
"""Most epochs that are listed, the first ones: a faulty core may report any number."""

UNKNOWN: Final = "unknown"
"""Name of a protocol in a report that does not exist."""

_NAMES: Final = {kind >> 4: kind.name.partition("_")[0].lower() for kind in Kind if kind >> 4}

Texts = npt.NDArray[np.str_]


def protocol_names(codes: Ints) -> Texts:
    """Names of protocols, by the high half-byte of their kinds."""
    return np.array([_NAMES.get(code, UNKNOWN) for code in codes.tolist()], np.str_)


class Tenures(NamedTuple):
    """Protocols in force: each from a row on, in the incarnation of that row; rows ascend. Times in ns, cut to the
    load.
    """

    row: Ints
    recorder: Ints
    number: Ints
    """Number of the epoch; 0 where none is reported."""
    protocol: Texts
    begun_ns: Ints
    """Time of the report, not cut."""
    from_ns: Ints
    until_ns: Ints

    def in_force(self, records: Records, rows: Ints) -> Texts:
        """Protocol in force at each of these rows; empty: none yet."""
        place = self.place(records, rows)
        return np.where(place >= 0, self.protocol[place], "") if len(self.row) else np.full(len(rows), "")

    def place(self, records: Records, rows: Ints) -> Ints:
        """Index of the tenure of each of these rows; -1: none yet."""
        place = np.searchsorted(self.row, rows, side="right") - 1
        is_same = (place >= 0) & (self.recorder[place] == records.recorder[rows])
        return np.where(is_same, place, -1)


def tenures(records: Records, load: Span, *, otherwise: str) -> Tenures:
    """Tenures of all incarnations. `otherwise`: protocol in force in a run without reports IN_FORCE. `records` is not
    empty.
    """
    is_first = begins(records.recorder)
    is_last = np.append(is_first[1:], True)
    rows = np.flatnonzero(records.reports(Notice.IN_FORCE))
    protocol, number = protocol_names(records.extra[rows]), records.value[rows]
    if not len(rows):
        rows = np.flatnonzero(is_first)
        protocol, number = np.full(len(rows), otherwise), np.zeros(len(rows), np.int64)
    incarnation, begun_ns = records.recorder[rows], records.at_ns[rows]
    incarnation_ends_ns = records.at_ns[is_last][(np.cumsum(is_first) - 1)[rows]]
    is_followed = np.append(np.diff(incarnation) == 0, False)
    ended_ns = np.where(is_followed, np.roll(begun_ns, -1), incarnation_ends_ns)
    from_ns = load.cut(begun_ns)
    return Tenures(rows, incarnation, number, protocol, begun_ns, from_ns, np.maximum(from_ns, load.cut(ended_ns)))


def by_protocol(records: Records, found: Tenures, load: Span, *, members: int) -> dict[str, dict[str, Any]]:
    """Figures of all protocols that were in force or estimated, by name."""
    is_within = load.holds(records.at_ns)
    cost, loss, shadow = (
        np.flatnonzero(records.reports(code) & is_within) for code in (Notice.COST, Notice.ROLLED_BACK, Notice.ESTIMATE)
    )
    cost_by, loss_by, shadow_by = (found.in_force(records, rows) for rows in (cost, loss, shadow))
    about = protocol_names(records.extra[shadow])
    entries = dict[str, dict[str, Any]]()
    for name in sorted({*found.protocol.tolist(), *about.tolist()}):
        is_own = found.protocol == name
        incarnation_s = float((found.until_ns - found.from_ns)[is_own].sum()) / 1e9
        cost_ns = records.value[cost[cost_by == name]]
        standing = records.value[shadow[(about == name) & (shadow_by == name)]]
        otherwise = records.value[shadow[(about == name) & (shadow_by != name)]]
        per_s = total(cost_ns) / incarnation_s if len(cost_ns) and incarnation_s else None
        estimate = mean(standing)
        entries[name] = {
            "seconds": incarnation_s / members,
            **costs(cost_ns),
            "cost_per_s": per_s,
            "roll_backs": int((loss_by == name).sum()),
            "estimates": len(standing),
            "estimate_per_s": estimate,
            "estimate_ratio": estimate / per_s if estimate is not None and per_s else None,
            "estimates_otherwise": len(otherwise),
            "estimate_otherwise_per_s": mean(otherwise),
        }
    return entries


def epochs(records: Records, found: Tenures, load: Span, *, members: int) -> list[dict[str, Any]]:
    """Epochs that reach into the load, by beginning; none in a run without reports IN_FORCE."""
    if not records.reports(Notice.IN_FORCE).any():
        return []
    begun = _begun(found)
    pauses = _pauses(records)
    cost, loss = (
        records.where(records.reports(code) & load.holds(records.at_ns)) for code in (Notice.COST, Notice.ROLLED_BACK)
    )
    entries = []
    for place, epoch in enumerate(begun):
        until_ns = begun[place + 1].first_ns if place + 1 < len(begun) else load.end_ns
        span = Span(max(epoch.first_ns, load.start_ns), min(until_ns, load.end_ns))
        if span.start_ns >= span.end_ns:
            continue
        cost_ns = cost.value[span.holds(cost.at_ns)]
        entries.append(
            {
                "number": epoch.number,
                "protocol": epoch.protocol,
                "from_ms": (span.start_ns - load.start_ns) / 1e6,
                "to_ms": (span.end_ns - load.start_ns) / 1e6,
                "switch_ms": milliseconds(epoch.switch_ns),
                "pause_ms": milliseconds(pauses.get(epoch.number)),
                **costs(cost_ns),
                "cost_per_s": total(cost_ns) / span.seconds / members if len(cost_ns) else None,
                "roll_backs": int(span.holds(loss.at_ns).sum()),
            }
        )
    return entries


class _Epoch(NamedTuple):
    number: int
    protocol: str
    first_ns: int
    switch_ns: int | None
    """Time from the first report of the epoch to the last, among members that were in another epoch before; None: there
    are none.
    """


def _begun(found: Tenures) -> list[_Epoch]:
    """First MAX_EPOCHS epochs. If members contradict each other about the protocol, the majority counts."""
    _, first_rows = np.unique(np.column_stack((found.recorder, found.number)), axis=0, return_index=True)
    is_later = np.append(False, np.diff(found.recorder) == 0)
    rows_of: dict[int, list[int]] = {}
    for row in first_rows.tolist():
        rows_of.setdefault(int(found.number[row]), []).append(row)
    begun = []
    for number, rows in rows_of.items():
        at_ns = found.begun_ns[rows]
        switched_ns = at_ns[is_later[rows]]
        votes = Counter(sorted(found.protocol[rows].tolist()))
        switch_ns = int(switched_ns.max() - switched_ns.min()) if len(switched_ns) else None
        begun.append(_Epoch(number, votes.most_common(1)[0][0], int(at_ns.min()), switch_ns))
    return sorted(begun, key=lambda epoch: (epoch.first_ns, epoch.number))[:MAX_EPOCHS]


def _pauses(records: Records) -> dict[int, int]:
    """Longest time, in ns, from a member's LEFT of the previous epoch to its report of each epoch. The member submits
    nothing in this time. An epoch that begins with a view has none.
    """
    rows = np.flatnonzero(records.reports(LEFT) | records.reports(Notice.IN_FORCE))
    is_left = records.detail[rows] == LEFT
    before, after = rows[:-1], rows[1:]
    is_pause = is_left[:-1] & ~is_left[1:] & (records.recorder[before] == records.recorder[after])
    pauses: dict[int, int] = {}
    for left, begun in zip(before[is_pause].tolist(), after[is_pause].tolist(), strict=True):
        number = int(records.value[begun])
        pause_ns = int(records.at_ns[begun] - records.at_ns[left])
        pauses[number] = max(pauses.get(number, 0), pause_ns)
    return pauses


def costs(cost_ns: Ints) -> dict[str, Any]:
    """Number of messages, and their mean cost."""
    return {"messages": len(cost_ns), "cost_mean_ms": milliseconds(mean(cost_ns))}


def mean(values: Ints) -> float | None:
    return total(values) / len(values) if len(values) else None


def total(values: Ints) -> float:
    """Sum in floats: that of many large values does not fit 64 bits."""
    return float(values.astype(np.float64).sum())


def milliseconds(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / 1e6
