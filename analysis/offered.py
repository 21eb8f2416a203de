"""What the group put on the wire between start and end of the load: the section `load` of summary.json.

A *message* is what a core handed to its host at once: a multicast is one message, also when it takes a datagram for
each member. Frames do not tell a copy of a multicast from a second message that looks the same, so the trace does: each
message has one SEND record with the number of its first datagram, and the datagrams of that kind which no record names
are copies. Retransmissions are neither messages nor copies here; `traffic` counts them.

What a shared medium carries is reckoned from what was offered to it: a frame takes its share of the medium on which its
sender stands and, when it goes elsewhere, of that on which its target stands; a multicast takes one frame of each.
Queues that drop it come later. The queries return what is small: it is added up here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (the names that everybody knows)

from analysis.conservation import LINK_LOCAL, MULTICAST_BIT, ip_number
from analysis.cost import CLASSES, Requests, ratio
from collector.records import LOCAL_KINDS, Event, Kind
from topologies.model import MULTICAST_GROUP, Direction, PartitionName, Topology

KINDS = {int(kind): kind.name for kind in Kind if kind not in LOCAL_KINDS}
MAX_FLOWS = 100_000
"""More pairs of nodes than any run has; an enemy may make up millions of addresses."""

TO_NODE, FROM_NODE = Direction.TO_NODE.value, Direction.FROM_NODE.value
_GROUP = ip_number(MULTICAST_GROUP)
_DATAGRAM = ("sender", "sender_incarnation", "transmission")


class Flow(NamedTuple):
    """Frames with one destination at one port in one direction; `datagrams`: those of them that are our protocol's."""

    node_index: int
    direction: str
    eth_dst: int
    ip_dst: int
    datagrams: int
    wire_bytes: int


class Sent(NamedTuple):
    """Datagrams of one class and kind; `messages`: those that are the first of a message."""

    frame_class: str
    kind: int
    inner: int
    datagrams: int
    messages: int


class Window(NamedTuple):
    """CLOCK_MONOTONIC; the end does not belong to it."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


class Load(NamedTuple):
    """All that was counted."""

    window: Window
    flows: Sequence[Flow]
    sent: Sequence[Sent]


def measure(frames: DataFrame, trace: DataFrame, window: Window) -> Load:
    """Two queries over tables `frames` and `trace`. The window must not be empty."""
    return Load(window, flows(frames, window), sent(frames, trace, window))


def flows(frames: DataFrame, window: Window) -> list[Flow]:
    """All frames of the window but trace, by port, direction and destination."""
    keys = ["node_index", "direction", "eth_dst", "ip_dst"]
    seen = frames.where(_is_within(window) & F.col("node_index").isNotNull() & (F.col("class") != "trace"))
    counted = seen.groupBy(*keys).agg(
        F.count_if(F.col("class").isin(*CLASSES)).alias("datagrams"), F.sum("length").alias("wire_bytes")
    )
    rows = counted.orderBy(F.desc("wire_bytes")).limit(MAX_FLOWS).collect()
    return [Flow(*row) for row in rows if row["eth_dst"] >> 4 != LINK_LOCAL >> 4]


def sent(frames: DataFrame, trace: DataFrame, window: Window) -> list[Sent]:
    """Our datagrams that nodes put on the wire within the window, by class and kind."""
    is_own = (F.col("direction") == FROM_NODE) & (F.col("node_index") == F.col("sender"))
    own = frames.where(_is_within(window) & is_own & F.col("class").isin(*CLASSES))
    firsts = trace.where(F.col("event") == int(Event.SEND)).select(
        F.col("member").alias("sender"),
        F.col("member_incarnation").alias("sender_incarnation"),
        F.col("value").alias("transmission"),
        F.lit(True).alias("is_first"),
    )
    rows = (
        own.join(firsts, on=list(_DATAGRAM), how="left")
        .groupBy("class", "kind", "inner")
        .agg(F.count("kind").alias("datagrams"), F.count("is_first").alias("messages"))
        .collect()
    )
    return [Sent(*row) for row in rows]


def section(load: Load, topology: Topology, requests: Requests) -> dict[str, Any]:
    """For summary.json. `requests`: of the whole run, for nobody submits anything outside the load."""
    counted, seconds = load.sent, load.window.seconds
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
    """Of each partition with a shared medium: the share of its rate that was offered to it."""
    partition_of = {node.index: node.partition for node in topology.nodes()}
    at_address = {ip_number(node.ip): node.partition for node in topology.nodes()}
    offered: dict[PartitionName, int] = {partition.name: 0 for partition in topology.partitions}
    for flow in flowed:
        if flow.direction != FROM_NODE or flow.node_index not in partition_of:
            continue
        own = partition_of[flow.node_index]
        if flow.eth_dst & MULTICAST_BIT:
            targets = set(offered) if flow.ip_dst == _GROUP else {own}
        else:
            targets = {own, at_address.get(flow.ip_dst, own)}
        for target in targets:
            offered[target] += flow.wire_bytes
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
    """By what the reliable layer carries, where it carries something. Every kind there is: none was sent is 0."""
    totals = dict.fromkeys(KINDS.values(), 0)
    for row, count in rows:
        name = KINDS.get(row.inner) or KINDS.get(row.kind)
        if name is not None:  # else an enemy's
            totals[name] += count
    return totals


def _is_within(window: Window) -> Column:
    return (F.col("time_ns") >= window.start_ns) & (F.col("time_ns") < window.end_ns)
