"""Reports of the cores, from the trace table of one run: sections, clocks, states, stages, buffers. Parts of
summary.json.

The table is read with Arrow in this process. Most runs have no such reports, and then it is not read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analysis.checks import call_orders, sections
from analysis.checks.calls import Calls, read_calls
from analysis.checks.properties import (
    CALL_PROPERTIES,
    REPORT_PROPERTIES,
    Evidence,
    Finding,
    Incarnation,
    Incarnations,
    Property,
    Raw,
    Tally,
    judge,
)
from analysis.checks.stages import by_view, out_of_order
from analysis.metrics.anomalies import Served
from analysis.metrics.cost import is_judged_delivery
from analysis.metrics.figures import quantiles
from analysis.metrics.skew import Jump, Reading
from collector.records import RECORD, Event, Notice

COUNTED = (
    *(Notice.LEFT, Notice.CLOCK, Notice.TIMESTAMP, Notice.STATE),
    *(Notice.ACCEPTED, Notice.PREACKNOWLEDGED, Notice.ACKNOWLEDGED, Notice.RESIDENT, Notice.ADDRESSED),
)
"""Reports that this module reads."""

STAGES = {"preacknowledged": Notice.PREACKNOWLEDGED, "acknowledged": Notice.ACKNOWLEDGED}
QUANTILES = {"p50_ms": 0.5, "p90_ms": 0.9, "max_ms": 1.0}

_TOLD_BY = {
    Property.MUTUAL_EXCLUSION: Notice.LEFT,
    Property.FENCE_ORDER: Notice.LEFT,
    Property.GRANT_ORDER: Notice.LEFT,
    Property.SERVICE: Notice.LEFT,
    Property.CLOCK_CONDITION: Notice.TIMESTAMP,
    Property.CLOCK_MONOTONE: Notice.CLOCK,
    Property.STATE: Notice.STATE,
    **dict.fromkeys(CALL_PROPERTIES, Notice.ADDRESSED),
}


def findings(
    trace: Path,
    counts: Mapping[Notice, int],
    promises: Collection[str],
    *,
    full: Collection[Incarnation],
    present: Collection[Incarnation],
    evidence: Evidence,
) -> dict[Property, Finding]:
    """Findings on the properties judged from reports, if they were promised or anything was reported. `present`:
    incarnations that are present at the end.

    `trace`: the table; `counts`: number of reports of each code.
    """
    wanted = [kind for kind in REPORT_PROPERTIES if kind.value in promises or counts.get(_TOLD_BY[kind])]
    if not wanted:
        return {}
    incarnations = incarnations_of(trace)
    checks = {
        Property.MUTUAL_EXCLUSION: lambda: sections.mutual_exclusion(incarnations),
        Property.FENCE_ORDER: lambda: sections.fence_order(incarnations),
        Property.GRANT_ORDER: lambda: sections.grant_order(incarnations),
        Property.SERVICE: lambda: sections.service(incarnations, {*full, *present}),
        Property.CLOCK_CONDITION: lambda: sections.clock_condition(incarnations),
        Property.CLOCK_MONOTONE: lambda: sections.clock_monotone(incarnations),
        Property.STATE: lambda: sections.state(incarnations, full, has_drained=not evidence.undrained),
    }
    found = {kind: judge(kind, checks[kind](), evidence) for kind in wanted if kind in checks}
    return found | _of_calls([kind for kind in wanted if kind not in checks], incarnations, full, evidence)


def _of_calls(
    wanted: Collection[Property], incarnations: Incarnations, full: Collection[Incarnation], evidence: Evidence
) -> dict[Property, Finding]:
    calls = read_calls(incarnations) if wanted else Calls()
    return {kind: judge(kind, call_orders.CHECKS[kind](calls, full), evidence) for kind in wanted}


def nothing_found(promises: Collection[str], evidence: Evidence) -> dict[Property, Finding]:
    """Findings of a run without any record."""
    return {kind: judge(kind, Tally(0, 0), evidence) for kind in REPORT_PROPERTIES if kind.value in promises}


def incarnations_of(trace: Path) -> Incarnations:
    """All records of each incarnation, by number."""
    return _by_incarnation(pq.read_table(trace))


def _by_incarnation(rows: pa.Table) -> Incarnations:
    rows = rows.sort_by([("member", "ascending"), ("member_incarnation", "ascending"), ("record", "ascending")])
    # The table holds 64 signed bits, the wire 64 unsigned ones.
    rows = rows.set_column(rows.column_names.index("value"), "value", pa.array(rows["value"].to_numpy().view("u8")))
    incarnations: dict[Incarnation, list[Raw]] = defaultdict(list)
    named = zip(rows["member"].to_pylist(), rows["member_incarnation"].to_pylist(), strict=True)
    for incarnation, record in zip(named, zip(*(rows[name].to_pylist() for name in _RAW), strict=True), strict=True):
        incarnations[Incarnation(*incarnation)].append(record)
    return incarnations


_RAW = tuple(field.name for field in RECORD)


def readings(trace: Path) -> dict[str, list[Reading]]:
    """Readings of the synchronised clock of each incarnation, in order."""
    found: dict[str, list[Reading]] = defaultdict(list)
    rows = _reports(trace, (Notice.CLOCK,)).sort_by("record")
    columns = (rows[name].to_pylist() for name in ("member", "member_incarnation", "at_ns", "clock_ns", "value"))
    for member, incarnation, at_ns, clock_ns, value in zip(*columns, strict=True):
        found[f"{member}/{incarnation}"].append(Reading(at_ns=at_ns, own_ns=clock_ns, shown_ns=value))
    return found


def jumps(trace: Path) -> dict[str, list[Jump]]:
    """Changes of the own clock of each incarnation by faults, in order."""
    found: dict[str, list[Jump]] = defaultdict(list)
    rows = pq.read_table(trace, filters=pc.field("event") == int(Event.CLOCK)).sort_by("record")
    columns = (rows[name].to_pylist() for name in ("member", "member_incarnation", "at_ns", "number", "clock_ns"))
    for member, incarnation, at_ns, before_ns, after_ns in zip(*columns, strict=True):
        found[f"{member}/{incarnation}"].append(Jump(at_ns=at_ns, before_ns=before_ns, after_ns=after_ns))
    return found


def stages(trace: Path, names: Mapping[int, str]) -> dict[str, Any]:
    """Times from a member's acceptance of a message to its pre-acknowledgement and acknowledgement there; number of
    times that a member acknowledged a message before another that its sender had accepted when it sent it, and the
    first of them.
    """
    is_report = _is_report((Notice.ACCEPTED, *STAGES.values()))
    records = pq.read_table(trace, filters=is_report | (pc.field("event") == int(Event.VIEW)))
    rows = records.filter(is_report)
    key = ["member", "member_incarnation", "extra", "value"]
    first = rows.group_by([*key, "detail"]).aggregate([("at_ns", "min")])
    accepted = first.filter(pc.field("detail") == int(Notice.ACCEPTED)).select([*key, "at_ns_min"])
    accepted = accepted.rename_columns([*key, "accepted_ns"])
    late = [one for view in by_view(_by_incarnation(records)) for one in out_of_order(view)]
    named = {"out_of_order": len(late), "first_out_of_order": late[0].sentence(names) if late else None}
    return {"accepted": accepted.num_rows, **named} | {
        name: _stage(first.filter(pc.field("detail") == int(code)).join(accepted, key, join_type="inner"))
        for name, code in STAGES.items()
    }


def _stage(rows: pa.Table) -> dict[str, Any]:
    took_ns = rows["at_ns_min"].to_numpy() - rows["accepted_ns"].to_numpy()
    return {"count": len(took_ns), **quantiles(took_ns, QUANTILES)}


def residents(trace: Path, names: Mapping[int, str]) -> dict[str, Any]:
    """Most messages in a member's buffers at once."""
    rows = _reports(trace, (Notice.RESIDENT,)).group_by("member").aggregate([("value", "max")]).sort_by("member")
    columns = zip(rows["member"].to_pylist(), rows["value_max"].to_pylist(), strict=True)
    by_member = [{"member": names.get(member, f"member {member}"), "messages": most} for member, most in columns]
    return {"max": max((entry["messages"] for entry in by_member), default=None), "by_member": by_member}


def deliveries_of(deliveries: Path, level: int, full: Collection[Incarnation]) -> int:
    """Number of judged deliveries at these members."""
    key = ["member", "member_incarnation"]
    counted = _judged(deliveries, level, key).group_by(key).aggregate([([], "count_all")])
    rows = zip(*(counted[name].to_pylist() for name in (*key, "count_all")), strict=True)
    return sum(count for member, incarnation, count in rows if (member, incarnation) in full)


def served(deliveries: Path, level: int, full: Collection[Incarnation] | None) -> Served:
    """Order of service: that of the deliveries at the first of the full members, or, with None, that of the grants,
    each of which is a delivery at the requester.
    """
    named = ["origin", "incarnation", "number"]
    columns = ["member", "member_incarnation", *named, "submit_ns", "deliver_ns", "position"]
    rows = _judged(deliveries, level, columns).filter(pc.field("submit_ns").is_valid())
    if full is None:
        is_wanted = (pc.field("member") == pc.field("origin")) & (
            pc.field("member_incarnation") == pc.field("incarnation")
        )
        place = "deliver_ns"
    else:
        member, incarnation = min(full, default=Incarnation(-1, 0))
        is_wanted = (pc.field("member") == member) & (pc.field("member_incarnation") == incarnation)
        place = "position"
    rows = rows.filter(is_wanted)
    return Served(*(rows[name].to_numpy().astype(np.int64) for name in (*named, "submit_ns", place)))


def _judged(deliveries: Path, level: int, columns: list[str]) -> pa.Table:
    """Judged deliveries, with or without a recorded request."""
    return pq.read_table(deliveries, columns=columns, filters=is_judged_delivery(level))


def _reports(trace: Path, codes: Collection[Notice]) -> pa.Table:
    return pq.read_table(trace, filters=_is_report(codes))


def _is_report(codes: Collection[Notice]) -> pc.Expression:
    return (pc.field("event") == int(Event.REPORT)) & pc.field("detail").isin([int(code) for code in codes])
