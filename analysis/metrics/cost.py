"""Cost of ordering: latency from the request to each delivery, and traffic. Sections of summary.json, whose figures
docs/run-directory.md defines.

Only the columns of the deliveries that latency needs are read, a few tens of bytes each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pds

from analysis.capture.decode import CLASSES
from analysis.checks.properties import is_judged
from analysis.inputs import NodeEnd
from analysis.metrics.figures import Floats, moments, percentiles, to_others
from analysis.network.fault_overlap import Around
from collector.records import Kind

QUANTILES = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999}
BIN_NS = 200_000_000
CDF_POINTS = 200

Rows = list[dict[str, Any]]


class Requests(NamedTuple):
    """Number of submitted messages, and the mean time between two of them (None: fewer than two)."""

    submitted: int
    between_ms: float | None
    size_bytes: float | None = None
    """Mean size of a message."""


def requests(submitted: int, first_ns: int | None, last_ns: int | None, size_bytes: float | None = None) -> Requests:
    """Requests from the number of messages, the times of the first and the last, and their mean size."""
    if submitted < 2 or first_ns is None or last_ns is None:
        return Requests(submitted, None, size_bytes)
    return Requests(submitted, (last_ns - first_ns) / (submitted - 1) / 1e6, size_bytes)


def requests_of(messages: Path) -> Requests:
    """Requests of a run, from the table `messages`."""
    rows = pds.dataset(messages, format="parquet").to_table(columns=["submit_ns", "size_bytes"])
    ends = pc.min_max(rows["submit_ns"]).as_py()
    return requests(rows.num_rows, ends["min"], ends["max"], pc.mean(rows["size_bytes"]).as_py())


def is_judged_delivery(level: int) -> pc.Expression:
    """Filter of the table of deliveries: first deliveries of the judged sequence that are not undone. `level`: the
    highest in the run.
    """
    return is_judged(pc.field("level"), level) & ~pc.field("is_undone") & ~pc.field("is_repeat")


def judged(deliveries: Path, level: int) -> pa.Table:
    """Judged deliveries with a recorded request, from the table `deliveries`."""
    wanted = is_judged_delivery(level) & pc.is_valid(pc.field("latency_ns"))
    names_once = pds.ParquetFileFormat(dictionary_columns={"member_name"})
    return pds.dataset(deliveries, format=names_once).to_table(columns=_OF_LATENCY, filter=wanted)


def latency(rows: pa.Table, *, between_ms: float | None, until_ns: int | None = None) -> tuple[dict[str, Any], Rows]:
    """Latency of the deliveries from `judged`, together and by member; and the rows of schema.LATENCY_CDF.

    `between_ms`: as in Requests. `until_ns`: the `others` are deliveries of earlier requests.
    """
    latency_ms = _plain(rows, "latency_ns") / 1e6
    is_elsewhere = _plain(rows, "member") != _plain(rows, "origin")
    if until_ns is not None:
        is_elsewhere &= _plain(rows, "submit_ns") < until_ns
    names = rows["member_name"].unify_dictionaries().combine_chunks()
    found = [*names.dictionary.to_pylist(), None]
    codes = names.indices.fill_null(len(found) - 1).to_numpy()
    by_name = sorted(np.unique(codes).tolist(), key=lambda code: str(found[code]))
    members = {found[code]: np.sort(latency_ms[codes == code]) for code in by_name}
    figures = {
        **_figures(np.sort(latency_ms)),
        **to_others(latency_ms[is_elsewhere], between_ms),
        "by_member": [{"member": name, **_figures(ordered)} for name, ordered in members.items()],
    }
    points = [place / (CDF_POINTS - 1) for place in range(CDF_POINTS)]
    cdf = [
        {"member_name": name, "latency_ms": value, "ratio": point}
        for name, ordered in members.items()
        for point, value in zip(points, percentiles(ordered, points), strict=True)
    ]
    return figures, cdf


def latency_series(rows: pa.Table, *, start_ns: int) -> Rows:
    """Rows of schema.LATENCY_SERIES: latency over time, by the bin of the request."""
    latency_ms = _plain(rows, "latency_ns") / 1e6
    place = np.floor((_plain(rows, "submit_ns") - start_ns) / BIN_NS).astype(np.int64)
    order = np.lexsort((latency_ms, place))
    bins, first = np.unique(place[order], return_index=True)
    return [
        {
            "t_s": _begin_s(bin_number),
            "count": len(ordered),
            **dict(zip(("p50_ms", "p99_ms"), percentiles(ordered, (0.5, 0.99)), strict=True)),
            "max_ms": float(ordered[-1]),
        }
        for bin_number, ordered in zip(bins.tolist(), np.split(latency_ms[order], first[1:]), strict=False)
    ]


def latency_around(rows: pa.Table, faults: Mapping[int, Around]) -> dict[int, dict[str, Any]]:
    """Latency of the requests before, during and after each fault: `count`, `p50_ms`, `p99_ms` and `max_ms` of each.
    `rows` are those from `judged`.
    """
    order = np.argsort(_plain(rows, "submit_ns"), kind="stable")
    submit_ns, latency_ms = _plain(rows, "submit_ns")[order], _plain(rows, "latency_ns")[order] / 1e6
    found = {}
    for number, around in faults.items():
        places = np.searchsorted(submit_ns, np.array(around, np.int64))
        spans = zip(("before", "during", "after"), pairwise(places.tolist()), strict=True)
        found[number] = {name: _in_short(np.sort(latency_ms[first:last])) for name, (first, last) in spans}
    return found


def _in_short(ordered: Floats) -> dict[str, Any]:
    figures = _figures(ordered)
    return {name: figures[name] for name in ("count", "p50_ms", "p99_ms", "max_ms")}


def traffic_series(counted: Rows) -> Rows:
    """Rows of schema.TRAFFIC_SERIES, from the counts of sent frames by bin, class, kind and inner kind
    (analysis.engine.ingest).
    """
    totals: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0])
    for row in counted:
        if row["bin"] is not None:
            entry = totals[row["bin"], row["class"]]
            entry[0] += row["datagrams"]
            entry[1] += row["wire_bytes"]
    return [
        {"t_s": _begin_s(place), "class": name, "datagrams": datagrams, "wire_bytes": wire_bytes}
        for (place, name), (datagrams, wire_bytes) in sorted(totals.items())
    ]


def traffic_figures(
    counted: Rows, *, submitted: int, deliveries: int, application_bytes: float | None
) -> dict[str, Any]:
    """Datagrams and bytes by class and kind, per message and per delivery.

    `application_bytes`: mean size of an application message; None: no message was submitted.
    """
    ours = [row for row in counted if row["class"] in CLASSES]
    by_class = {name: sum(row["datagrams"] for row in ours if row["class"] == name) for name in CLASSES}
    datagrams, wire_bytes = sum(by_class.values()), sum(row["wire_bytes"] for row in ours)
    return {
        "datagrams": datagrams,
        **by_class,
        "wire_bytes": wire_bytes,
        "dummy_rate": ratio(by_class["dummy"], by_class["dummy"] + by_class["application"]),
        "control_ratio": ratio(by_class["control"], datagrams),
        "retransmission_ratio": ratio(by_class["retransmission"], datagrams),
        "wire_bytes_per_delivery": ratio(wire_bytes, deliveries),
        "datagrams_per_message": ratio(datagrams, submitted),
        "inner_per_message": ratio(_carried(ours), submitted),
        "header_bytes_mean": _header_bytes(ours, application_bytes),
        "by_kind": _by_kind(ours),
        "by_inner": _by_inner(ours),
        "other_frames": sum(row["datagrams"] for row in counted if row["class"] == "other"),
    }


_OF_LATENCY = ["member", "member_name", "origin", "submit_ns", "latency_ns"]


def _plain(rows: pa.Table, name: str) -> npt.NDArray[np.int64]:
    return np.asarray(rows[name].to_numpy().astype(np.int64, copy=False))


def _begin_s(place: int) -> float:
    return round(place * BIN_NS / 1e9, 3)


def _figures(ordered: Floats) -> dict[str, Any]:
    """Figures of latencies in ascending order."""
    found = dict(zip(QUANTILES, percentiles(ordered, QUANTILES.values()), strict=True))
    return {**moments(ordered), **found, "max_ms": float(ordered[-1]) if len(ordered) else None}


NO_LATENCY: dict[str, Any] = {**_figures(np.empty(0)), **to_others(np.empty(0), None), "by_member": []}
"""Section `latency` of a run without deliveries."""


def _by_kind(rows: Rows) -> list[dict[str, Any]]:
    """Kinds by name (unknown ones by number), most frequent first."""
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        entry = totals[_kind_name(row["kind"])]
        entry[0] += row["datagrams"]
        entry[1] += row["wire_bytes"]
    return [
        {"kind": name, "datagrams": datagrams, "wire_bytes": wire_bytes}
        for name, (datagrams, wire_bytes) in sorted(totals.items(), key=lambda item: (-item[1][0], item[0]))
    ]


def _by_inner(rows: Rows) -> list[dict[str, Any]]:
    """Kinds with the inner kind, which a core sends through the one below it: first transmissions, and copies."""
    totals: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        entry = totals[_kind_name(row["kind"]), _kind_name(row["inner"])]
        entry[1 if row["class"] == "retransmission" else 0] += row["datagrams"]
    return [
        {"kind": kind, "inner": inner, "datagrams": first, "copies": copies}
        for (kind, inner), (first, copies) in sorted(totals.items(), key=lambda item: (-item[1][0], item[0]))
    ]


def _carried(rows: Rows) -> int:
    """Number of first transmissions that carry a message of a core above, which that core's paper counts as its
    messages.
    """
    carrying = (row for row in rows if row["inner"] != Kind.APPLICATION and row["class"] != "retransmission")
    return sum(row["datagrams"] for row in carrying)


def _header_bytes(rows: Rows, application_bytes: float | None) -> float | None:
    """Mean header size of a first datagram with application data: its UDP payload without the application's bytes."""
    firsts = [row for row in rows if row["class"] == "application"]
    datagrams = sum(row["datagrams"] for row in firsts)
    if application_bytes is None or not datagrams:
        return None
    return float(sum(row["payload_bytes"] for row in firsts) / datagrams - application_bytes)


def processing(nodes: Iterable[NodeEnd]) -> dict[str, Any]:
    """Processor time of the cores per handled message, and per delivered message with that of all control messages,
    from the nodes' own counts.
    """
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for end in nodes:
        if end.handled and end.core_ns:
            totals[end.node][0] += end.handled
            totals[end.node][1] += end.core_ns
            totals[end.node][2] += end.delivered or 0
    by_member: Rows = [
        {
            "member": name,
            "handled": handled,
            "per_message_us": core_ns / handled / 1000,
            "per_delivery_us": core_ns / delivered / 1000 if delivered else None,
        }
        for name, (handled, core_ns, delivered) in sorted(totals.items())
    ]
    return {**{name: _mean(by_member, name) for name in ("per_message_us", "per_delivery_us")}, "by_member": by_member}


def _mean(rows: Rows, name: str) -> float | None:
    values = [row[name] for row in rows if row[name] is not None]
    return sum(values) / len(values) if values else None


def _kind_name(kind: int | None) -> str:
    """Name of a kind; the number of an unknown kind."""
    return _KIND_NAMES.get(kind or 0, f"0x{(kind or 0) & 0xFF:02x}")


_KIND_NAMES = {int(kind): kind.name for kind in Kind}


def ratio(part: int, whole: int) -> float | None:
    """Quotient; None for a denominator of 0."""
    return part / whole if whole else None
