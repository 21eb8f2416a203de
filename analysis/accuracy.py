"""The accuracy certificate: what the network was asked to do against what it did, from the capture alone.

A datagram is paired by its envelope (sender, incarnation, transmission) between the frame that its sender put on the
wire and those that reached each receiver that it was addressed to: everybody else for a multicast, the others of its
partition for a near one, one for a unicast.
Spark pairs (one group-by) and hands each port its samples; NumPy measures (`analysis.realised`) and compares
(`analysis.certificate`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (the names that everybody knows)

from analysis import certificate
from analysis.network import Element, Network
from analysis.realised import NEVER, Realised, Samples, measure
from topologies.dump import as_json, changed_fields
from topologies.model import MULTICAST_GROUP, Direction, Topology

DATAGRAM = ("sender", "sender_incarnation", "transmission")
CANDIDATES = 16
"""So many receivers are considered to measure a sender by."""
REFERENCES = 2

TO_NODE, FROM_NODE = Direction.TO_NODE.value, Direction.FROM_NODE.value

_LINK_ARROW = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("node", "direction")),
        *(pa.field(name, pa.int64()) for name in ("from_ns", "until_ns", "frames", "extra_copies")),
        pa.field("asked", pa.string()),
        *(pa.field(name, pa.float64()) for name in ("delay_p50_ms", "delay_p99_ms", "jitter_ms")),
        *(pa.field(name, pa.float64()) for name in ("loss_ratio", "loss_low", "loss_high", "loss_burst_frames")),
        *(pa.field(name, pa.float64()) for name in ("duplicate_ratio", "rate_bps")),
        *(pa.field(name, pa.string()) for name in ("verdict", "reason")),
    ]
)
_SPARK_NAMES = {"string": "string", "int64": "long", "double": "double"}
_LINK_SPARK = ", ".join(f"{field.name} {_SPARK_NAMES[str(field.type)]}" for field in _LINK_ARROW)

LinkRow = dict[str, Any]


def links(frames: DataFrame, network: Network, *, first_ns: int, last_ns: int) -> list[LinkRow]:
    """One row per port, direction and interval of constant impairment (schema.LINKS, with `asked` as JSON text and
    `extra_copies`, the duplicates that arrived there in the whole run), by member, direction and time.
    """
    measured = samples(frames, network.topology, references(network, first_ns=first_ns, last_ns=last_ns))
    rows = [
        row.asDict()
        for row in measured.groupBy("port").applyInArrow(_measurer(network, first_ns, last_ns), _LINK_SPARK).collect()
    ]
    seen = {(row["direction"], row["node"]) for row in rows}
    for node in network.topology.nodes():
        for direction in (TO_NODE, FROM_NODE):
            if (direction, node.name) not in seen:
                rows += _rows(network, (direction, str(node.name)), _no_samples(), first_ns, last_ns)
    index = {str(node.name): node.index for node in network.topology.nodes()}
    return sorted(rows, key=lambda row: (index[row["node"]], row["direction"] != TO_NODE, row["from_ns"]))


def samples(frames: DataFrame, topology: Topology, references: Iterable[tuple[int, int]]) -> DataFrame:
    """One row per datagram and receiver, for the port of the receiver, and for that of the sender where the receiver is
    its reference. `port` is 2 * member (towards it) or 2 * member + 1 (from it).
    """
    spark = frames.sparkSession
    protocol = frames.where(F.col("sender").isNotNull() & F.col("time_ns").isNotNull())
    addresses = spark.createDataFrame(list(reached_by(topology)), _ADDRESSES)
    is_own = (F.col("direction") == FROM_NODE) & (F.col("node_index") == F.col("sender"))
    offered = (
        protocol.where(is_own)
        .join(F.broadcast(addresses), on="ip_dst", how="inner")
        .where(F.col("receiver") != F.col("sender"))
        .select(*DATAGRAM, "receiver", F.col("time_ns").alias("sent_ns"), "length", "is_multicast", "is_near")
    )
    arrived = protocol.where(F.col("direction") == TO_NODE).select(
        *DATAGRAM, F.col("node_index").alias("receiver"), F.col("time_ns").alias("arrive_ns")
    )
    chosen = spark.createDataFrame(sorted(references), "sender int, receiver int").withColumn("is_chosen", F.lit(True))
    paired = (
        offered.unionByName(arrived, allowMissingColumns=True)
        .groupBy(*DATAGRAM, "receiver")
        .agg(
            F.min("sent_ns").alias("sent_ns"),
            F.coalesce(F.min("arrive_ns"), F.lit(NEVER)).alias("arrive_ns"),
            F.count("arrive_ns").alias("copies"),
            F.max("length").cast("long").alias("length"),
            F.max("is_multicast").alias("is_multicast"),
            F.max("is_near").alias("is_near"),
        )
        .where(F.col("sent_ns").isNotNull())
    )
    return paired.join(F.broadcast(chosen), on=["sender", "receiver"], how="left").select(
        F.inline(F.array_compact(_ports())), "sent_ns", "arrive_ns", "copies", "length", "is_multicast", "is_near"
    )


def references(network: Network, *, first_ns: int, last_ns: int) -> list[tuple[int, int]]:
    """For each sender the receivers at which its multicasts are looked at: those with the least else on their way, and
    for its near multicasts those of its own partition.
    """
    chosen: list[tuple[int, int]] = []
    for partition in network.topology.partitions:
        everyone = [*partition.nodes, *(node for node in network.topology.nodes() if node.partition != partition.name)]
        for place, sender in enumerate(partition.nodes):
            others = (*everyone[place + 1 :], *everyone[:place])[:CANDIDATES]
            ranked = sorted(
                (-_clear_ns(network, sender.name, node.name, first_ns, last_ns), node.index, node.partition)
                for node in others
            )
            near = [candidate for candidate in ranked if candidate[2] == partition.name]
            best = dict.fromkeys((*ranked[:REFERENCES], *near[:REFERENCES]))
            chosen += [(sender.index, index) for _, index, _ in best]
    return chosen


def _clear_ns(network: Network, sender: str, receiver: str, first_ns: int, last_ns: int) -> int:
    """For how long nothing but the sender's own port touches what goes to this receiver."""
    return sum(
        max(0, min(span.until_ns, last_ns) - max(span.from_ns, first_ns))
        for span in network.spans(sender, receiver)
        if not span.path.is_cut and not span.path.is_receiver_down and span.path.without((FROM_NODE, sender)).is_clear
    )


def _ports() -> Column:
    """The ports at which a sample counts, with the node at the other end; null: it does not count at the sender's."""
    counts_for_sender = F.coalesce("is_chosen", F.lit(False)) | ~F.col("is_multicast")
    return F.array(
        F.struct((2 * F.col("receiver")).alias("port"), F.col("sender").alias("peer")),
        F.when(counts_for_sender, F.struct((2 * F.col("sender") + 1).alias("port"), F.col("receiver").alias("peer"))),
    )


_ADDRESSES = "ip_dst long, receiver int, is_multicast boolean, is_near boolean"


def reached_by(topology: Topology) -> Iterator[tuple[int, int, bool, bool]]:
    """Destination addresses of datagrams: whom they reach."""
    for partition in topology.partitions:
        near = _number(partition.multicast_group)
        for node in partition.nodes:
            yield _number(node.ip), node.index, False, False
            yield _number(MULTICAST_GROUP), node.index, True, False
            yield near, node.index, True, True


def _number(ip: str) -> int:
    return int.from_bytes(bytes(int(part) for part in ip.split(".")), "big")


def _measurer(network: Network, first_ns: int, last_ns: int) -> Callable[[tuple[Any, ...], pa.Table], pa.Table]:
    def measure_port(key: tuple[Any, ...], table: pa.Table) -> pa.Table:
        index, is_from = divmod(key[0].as_py(), 2)
        element = (FROM_NODE if is_from else TO_NODE, network.node_name(index))
        return pa.Table.from_pylist(_rows(network, element, _samples(table), first_ns, last_ns), _LINK_ARROW)

    return measure_port


def _samples(table: pa.Table) -> Samples:
    return Samples(
        peer=table["peer"].to_numpy().astype(np.int64),
        sent_ns=table["sent_ns"].to_numpy(),
        arrive_ns=table["arrive_ns"].to_numpy(),
        copies=table["copies"].to_numpy(),
        length=table["length"].to_numpy(),
        is_multicast=table["is_multicast"].to_numpy(),
        is_near=table["is_near"].to_numpy(),
    )


def _no_samples() -> Samples:
    none = np.empty(0, np.int64)
    no = np.empty(0, np.bool_)
    return Samples(peer=none, sent_ns=none, arrive_ns=none, copies=none, length=none, is_multicast=no, is_near=no)


def _rows(network: Network, element: Element, own: Samples, first_ns: int, last_ns: int) -> list[LinkRow]:
    # What a sender's port never duplicated was duplicated further on, and is no copy that this port let through.
    may_copy = element[0] == TO_NODE or any(asked.duplicate_ratio for *_, asked in network.intervals(element))
    extra = _extra_copies(element[0], own) if may_copy else 0
    found = measure(network, element, own, first_ns=first_ns, last_ns=last_ns)
    return [_row(element, realised) | {"extra_copies": extra} for realised in found]


def _extra_copies(direction: str, own: Samples) -> int:
    """Of what a port sent, all receivers of a multicast get the same copies: they count where most of them arrived."""
    extra = np.maximum(own.copies - 1, 0)
    if direction == TO_NODE or not own.is_multicast.any():
        return int(extra.sum())
    by_receiver = np.bincount(own.peer[own.is_multicast], weights=extra[own.is_multicast])
    return int(extra[~own.is_multicast].sum() + by_receiver.max())


def _row(element: Element, realised: Realised) -> LinkRow:
    delays, losses = realised.delays, realised.losses
    remark = certificate.judge(realised)
    return {
        "node": element[1],
        "direction": element[0],
        "from_ns": realised.from_ns,
        "until_ns": realised.until_ns,
        "frames": 0 if losses is None else losses.frames,
        "asked": json.dumps(as_json(changed_fields(realised.asked))),
        "delay_p50_ms": None if delays is None else delays.p50_ns / 1e6,
        "delay_p99_ms": None if delays is None else delays.p99_ns / 1e6,
        "jitter_ms": None if delays is None else delays.jitter_ns / 1e6,
        "loss_ratio": None if losses is None else losses.ratio,
        "loss_low": None if losses is None else losses.low,
        "loss_high": None if losses is None else losses.high,
        "loss_burst_frames": None if losses is None else losses.burst_frames,
        "duplicate_ratio": None if losses is None else losses.duplicated / losses.frames,
        "rate_bps": realised.rate_bps,
        "verdict": remark.verdict.value,
        "reason": remark.text,
    }
