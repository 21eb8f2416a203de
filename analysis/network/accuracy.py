"""The accuracy certificate: what the network was asked to do against what it did, from the capture alone.

A datagram is paired by its envelope (sender, incarnation, transmission) between the frame that its sender put on the
wire and those that reached each receiver that it was addressed to: everybody else for a multicast, the others of its
partition for a near one, one for a unicast.
Each Spark task takes some of the ports, reads from the table of frames what concerns them, pairs
(`analysis.network.pairing`),
measures (`analysis.network.realised`) and compares (`analysis.network.certificate`), all in NumPy: a shuffle of all
frames through the Java machine took most of the time that an analysis had.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from analysis.engine.tasks import OfSpark
from analysis.network import certificate, pairing
from analysis.network.asked import Element, Network
from analysis.network.realised import Realised, Samples, measure
from topologies.dump import as_json, changed_fields
from topologies.model import Direction

CANDIDATES = 16
"""So many receivers are considered to measure a sender by."""
REFERENCES = 2
FRAMES_PER_TASK = 4_000_000
"""About what a task may have in memory at once: some hundred MB."""

TO_NODE, FROM_NODE = Direction.TO_NODE.value, Direction.FROM_NODE.value

LinkRow = dict[str, Any]


def links(
    spark: SparkSession, frames: Path, network: Network, *, first_ns: int, last_ns: int, count: int = 0
) -> list[LinkRow]:
    """One row per port, direction and interval of constant impairment (schema.LINKS, with `asked` as JSON text and
    `extra_copies`, the duplicates that arrived there in the whole run), by member, direction and time.

    `frames`: the table; `count`: about how many rows it has.
    """
    chosen = references(network, first_ns=first_ns, last_ns=last_ns)
    members = [node.index for node in network.topology.nodes()]
    tasks = min(len(members), max(spark.sparkContext.defaultParallelism, -(-count // FRAMES_PER_TASK)))
    groups = [members[place::tasks] for place in range(tasks)]
    told = OfSpark(spark).run(lambda group: measured(frames, network, chosen, group, first_ns, last_ns), groups)
    return [row for _, rows in sorted((index, rows) for task in told for index, rows in task.items()) for row in rows]


def measured(
    frames: Path,
    network: Network,
    chosen: Sequence[tuple[int, int]],
    members: Sequence[int],
    first_ns: int,
    last_ns: int,
) -> dict[int, list[LinkRow]]:
    """The rows of both ports of these members. `chosen`: as `references` gives it."""
    ports = pairing.samples(frames, network.topology, chosen, members)
    found: dict[int, list[LinkRow]] = {}
    for member in members:
        name = network.node_name(member)
        towards = _rows(network, (TO_NODE, name), ports[2 * member], first_ns, last_ns)
        found[member] = towards + _rows(network, (FROM_NODE, name), ports[2 * member + 1], first_ns, last_ns)
    return found


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
