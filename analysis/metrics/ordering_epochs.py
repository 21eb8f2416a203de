"""Which protocol was in force when, and what each cost and was said to cost: the parts `epochs` and `by_protocol` of
the section `ordering` (analysis.metrics.ordering_cost).

In force at a member is what its last report IN_FORCE says, and in a run without such reports the run's own protocol
from beginning to end. An epoch begins with the first member that sends in it and lasts until one sends in the next.

A report counts for what is in force where and when it is made. A message of the old epoch that becomes final after the
switch is therefore the new protocol's.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.metrics.ordering_records import LEFT, Ints, Records, Span
from collector.records import Kind, Notice

MAX_EPOCHS: Final = 1000
"""The first ones; a broken core may count as fast as it can."""

UNKNOWN: Final = "unknown"
"""Whoever says so names a protocol that does not exist."""

_NAMES: Final = {kind >> 4: kind.name.partition("_")[0].lower() for kind in Kind if kind >> 4}

Texts = npt.NDArray[np.str_]


def protocol_names(codes: Ints) -> Texts:
    """Of protocols, by the high half-byte of their kinds."""
    return np.array([_NAMES.get(code, UNKNOWN) for code in codes.tolist()], np.str_)


class Tenures(NamedTuple):
    """From which row on what is in force in the incarnation of that row; ascending. Times in ns, cut to the load."""

    row: Ints
    recorder: Ints
    number: Ints
    """Of the epoch; 0 where none is reported."""
    protocol: Texts
    begun_ns: Ints
    """Not cut."""
    from_ns: Ints
    until_ns: Ints

    def in_force(self, records: Records, rows: Ints) -> Texts:
        """The protocol at each of these rows; an empty text: none yet."""
        place = self.place(records, rows)
        return np.where(place >= 0, self.protocol[place], "") if len(self.row) else np.full(len(rows), "")

    def place(self, records: Records, rows: Ints) -> Ints:
        """The tenure of each of these rows; -1: none yet."""
        place = np.searchsorted(self.row, rows, side="right") - 1
        is_same = (place >= 0) & (self.recorder[place] == records.recorder[rows])
        return np.where(is_same, place, -1)


def tenures(records: Records, load: Span, *, otherwise: str) -> Tenures:
    """Of all incarnations. `otherwise`: the protocol in force when nobody says which is. There must be a record."""
    is_first = np.append(True, np.diff(records.recorder) != 0)
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
    """Of all protocols that were in force or estimated, by name."""
    is_within = load.holds(records.at_ns)
    cost, loss, told = (
        np.flatnonzero(records.reports(code) & is_within) for code in (Notice.COST, Notice.ROLLED_BACK, Notice.ESTIMATE)
    )
    cost_by, loss_by, told_by = (found.in_force(records, rows) for rows in (cost, loss, told))
    about = protocol_names(records.extra[told])
    entries = dict[str, dict[str, Any]]()
    for name in sorted({*found.protocol.tolist(), *about.tolist()}):
        is_own = found.protocol == name
        incarnation_s = float((found.until_ns - found.from_ns)[is_own].sum()) / 1e9
        cost_ns = records.value[cost[cost_by == name]]
        standing = records.value[told[(about == name) & (told_by == name)]]
        otherwise = records.value[told[(about == name) & (told_by != name)]]
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
    """In the order of their beginnings, those that reach into the load; none where nobody reports one."""
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
    """From the first member's report to the last's, of those that had been in another epoch; None: there are none."""


def _begun(found: Tenures) -> list[_Epoch]:
    """The first MAX_EPOCHS of them. Members that contradict each other about a protocol are outvoted."""
    _, first_rows = np.unique(np.column_stack((found.recorder, found.number)), axis=0, return_index=True)
    is_later = np.append(False, np.diff(found.recorder) == 0)
    told: dict[int, list[int]] = {}
    for row in first_rows.tolist():
        told.setdefault(int(found.number[row]), []).append(row)
    begun = []
    for number, rows in told.items():
        at_ns = found.begun_ns[rows]
        switched_ns = at_ns[is_later[rows]]
        votes = Counter(sorted(found.protocol[rows].tolist()))
        switch_ns = int(switched_ns.max() - switched_ns.min()) if len(switched_ns) else None
        begun.append(_Epoch(number, votes.most_common(1)[0][0], int(at_ns.min()), switch_ns))
    return sorted(begun, key=lambda epoch: (epoch.first_ns, epoch.number))[:MAX_EPOCHS]


def _pauses(records: Records) -> dict[int, int]:
    """For each epoch: the longest time, in ns, from a member's LEFT of the epoch before to its own report of this one.
    In this time the member submits nothing. An epoch that begins with a view has none."""
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
    """How many messages, and their mean cost."""
    return {"messages": len(cost_ns), "cost_mean_ms": milliseconds(mean(cost_ns))}


def mean(values: Ints) -> float | None:
    return total(values) / len(values) if len(values) else None


def total(values: Ints) -> float:
    """In floats: a sum of many large values does not fit 64 bits."""
    return float(values.astype(np.float64).sum())


def milliseconds(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / 1e6
