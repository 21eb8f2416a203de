"""Traffic that the group sent between start and end of the load: section `load` of summary.json
(docs/run-directory.md).

Frames do not distinguish a copy of a multicast from a second equal message, but the trace does: each message has one
SEND record with the number of its first datagram, and the datagrams of that kind without a record are copies.

The load of a shared medium is computed from the offered frames; drops in queues come later. The tables are read batch
by batch; memory holds only a number for each message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pds

from analysis.capture.decode import CLASSES
from analysis.metrics.cost import Requests, ratio
from analysis.metrics.ordering_records import Span
from analysis.network.addresses import Flow, Receivers
from collector.records import LOCAL_KINDS, Event, Kind
from topologies.model import Direction, PartitionName, Topology

KINDS = {int(kind): kind.name for kind in Kind if kind not in LOCAL_KINDS}
TO_NODE, FROM_NODE = Direction.TO_NODE.value, Direction.FROM_NODE.value
_DATAGRAM = ("sender", "sender_incarnation", "transmission")
_KEYS = ["class", "kind", "inner"]

Ints = npt.NDArray[np.int64]


class Sent(NamedTuple):
    """Datagrams of one class and kind; `messages`: number that are the first of a message."""

    frame_class: str
    kind: int
    inner: int
    datagrams: int
    messages: int


class Load(NamedTuple):
    """All counts of the load."""

    span: Span
    flows: Sequence[Flow]
    sent: Sequence[Sent]


def sent(frames: Path, trace: Path, span: Span) -> list[Sent]:
    """Datagrams of the group that nodes sent within the span, by class and kind, from the tables `frames` and
    `trace`.
    """
    firsts, records = np.unique(_first_datagrams(trace), return_counts=True)
    totals: Counter[tuple[str, int, int]] = Counter()
    messages: Counter[tuple[str, int, int]] = Counter()
    for datagram, keys in _own_datagrams(frames, span):
        place = np.minimum(np.searchsorted(firsts, datagram), max(len(firsts) - 1, 0))
        named = np.where(firsts[place] == datagram, records[place], 0) if len(firsts) else np.zeros_like(datagram)
        rows = keys.append_column("named", pa.array(named)).append_column("rows", pa.array(np.maximum(named, 1)))
        for row in rows.group_by(_KEYS).aggregate([("named", "sum"), ("rows", "sum")]).to_pylist():
            key = (row["class"], row["kind"], row["inner"])
            totals[key] += row["rows_sum"]
            messages[key] += row["named_sum"]
    return [Sent(*key, count, messages[key]) for key, count in totals.items()]


def _first_datagrams(trace: Path) -> Ints:
    """First datagram of each message with a SEND record of any node."""
    is_named = (pc.field("event") == int(Event.SEND)) & (pc.field("value") >= 0) & (pc.field("value") < 1 << 32)
    names = ["member", "member_incarnation", "value"]
    parts = [
        _datagrams(*(batch.column(name) for name in names))
        for batch in pds.dataset(trace, format="parquet").to_batches(columns=names, filter=is_named)
    ]
    return np.concatenate([np.empty(0, np.int64), *parts])


def _own_datagrams(frames: Path, span: Span) -> Iterator[tuple[Ints, pa.Table]]:
    """Datagrams that nodes sent, and the columns _KEYS, batch by batch."""
    is_within = (pc.field("time_ns") >= span.start_ns) & (pc.field("time_ns") < span.end_ns)
    is_own = (pc.field("direction") == FROM_NODE) & (pc.field("node_index") == pc.field("sender"))
    wanted = is_within & is_own & pc.field("class").isin(CLASSES)
    table = pds.dataset(frames, format="parquet")
    for batch in table.to_batches(columns=[*_DATAGRAM, *_KEYS], filter=wanted):
        yield _datagrams(*(batch.column(name) for name in _DATAGRAM)), pa.Table.from_batches([batch]).select(_KEYS)


def _datagrams(*columns: Any) -> Ints:
    """16 bits of sender, 16 of incarnation and 32 of transmission as one number."""
    sender, incarnation, transmission = (column.cast(pa.int64()).to_numpy(zero_copy_only=False) for column in columns)
    return np.asarray(sender << 48 | incarnation << 32 | transmission)


def section(load: Load, topology: Topology, requests: Requests) -> dict[str, Any]:
    """Section for summary.json. `requests`: of the whole run, because all submissions are within the load."""
    counted, seconds = load.sent, load.span.seconds
    firsts = [row for row in counted if row.frame_class != "retransmission"]
    by_class = {name: sum(row.messages for row in firsts if row.frame_class == name) for name in CLASSES}
    lans = lan_loads(load.flows, topology, seconds)
    members = _by_member(load.flows, topology)
    return {
        "seconds": seconds,
        "submitted": requests.submitted,
        "rate_per_s": requests.submitted / seconds,
        "dummy_rate": ratio(by_class["dummy"], by_class["application"]),
        "messages": sum(row.messages for row in firsts),
        "datagrams": sum(row.datagrams for row in counted),
        "messages_by_kind": _by_kind((row, row.messages) for row in firsts),
        "copies_by_kind": _by_kind((row, row.datagrams - row.messages) for row in firsts),
        "lan_load": max((row["load"] for row in lans), default=None),
        "lan_loads": lans,
        "server_share": _share_of_busiest(members),
        "by_member": members,
    }


def lan_loads(flowed: Iterable[Flow], topology: Topology, seconds: float) -> list[dict[str, Any]]:
    """Load of each partition with a shared medium: offered share of its rate."""
    partition_of = {node.index: node.partition for node in topology.nodes()}
    receivers = Receivers(topology)
    offered: dict[PartitionName, int] = {partition.name: 0 for partition in topology.partitions}
    for flow in flowed:
        if flow.direction != FROM_NODE or flow.node_index not in partition_of:
            continue
        found = receivers.of(flow.node_index, flow.eth_dst, flow.ip_dst)
        here, copies = partition_of[flow.node_index], len(found) if receivers.is_copied(flow.ip_dst) else 1
        for target in {here, *(node.partition for node in found)}:
            offered[target] += flow.wire_bytes * (1 if target == here else copies)
    return [
        {"partition": str(partition.name), "load": offered[partition.name] * 8 / seconds / partition.bus.rate_bps}
        for partition in topology.partitions
        if partition.bus is not None
    ]


def _by_member(flowed: Iterable[Flow], topology: Topology) -> list[dict[str, Any]]:
    totals = {node.index: {TO_NODE: 0, FROM_NODE: 0} for node in topology.nodes()}
    for flow in flowed:
        if flow.node_index in totals and flow.direction in (TO_NODE, FROM_NODE):
            totals[flow.node_index][flow.direction] += flow.datagrams
    return [
        {"member": str(node.name), "received": totals[node.index][TO_NODE], "sent": totals[node.index][FROM_NODE]}
        for node in topology.nodes()
    ]


def _share_of_busiest(members: Sequence[Mapping[str, Any]]) -> float | None:
    handled = [entry["received"] + entry["sent"] for entry in members]
    return max(handled) * len(handled) / sum(handled) if any(handled) else None


def _by_kind(rows: Iterable[tuple[Sent, int]]) -> dict[str, int]:
    """Counts by the inner kind, else by the kind, for every known kind; 0 if none was sent."""
    totals = dict.fromkeys(KINDS.values(), 0)
    for row, count in rows:
        name = KINDS.get(row.inner) or KINDS.get(row.kind)
        if name is not None:  # else hostile
            totals[name] += count
    return totals
