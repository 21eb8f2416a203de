"""Conservation of frames: every frame sent towards a port arrived there, or a counter of the kernel has its drop.

    to-node:    offered = arrived + dropped before + dropped here (delay line, queue, cut) + backlog + unexplained
    from-node:  offered = arrived + dropped here + backlog + unexplained

Frames of any protocol are counted. `offered` comes from the capture: towards a node the frames that the others sent to
its address or to all, from a node those that it sent. `arrived` towards a node comes from the capture, too, without the
copies that a delay line made; from a node it is the number of frames that its tree let through, by the kernel's count.
`dropped_before`: towards a node, frames lost at the senders' own ports. It is known if none was lost there, or if all
frames of these senders were addressed to the node, too; else (and where links or shared media dropped) it is null, and
so is `unexplained`. Damaged frames are not told from copies, and bridges and routers refuse some of them: where
corruption was asked for, `dropped_before` is null, too, and from a node `arrived` if its port made copies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from analysis.inputs import ElsewhereCounters, Manifest, PortCounters
from analysis.network.addresses import Flow, Receivers
from analysis.network.realised import ELSEWHERE
from analysis.requested_network import Element
from topologies.model import Direction, Node, Topology

TO_NODE, FROM_NODE = Direction.TO_NODE.value, Direction.FROM_NODE.value


def balance(
    counted: Sequence[Flow],
    topology: Topology,
    manifest: Manifest,
    extra_copies: Mapping[tuple[str, str], int],
    *,
    down: Collection[str] = (),
    is_corrupting: bool = False,
) -> list[dict[str, Any]]:
    """One entry per port and direction. `extra_copies`: duplicates that arrived, by (direction, node). `down`: nodes
    that were down or absent for a while, and their ports with them; `is_corrupting`: corruption was asked for.
    """
    counters = {(str(entry.direction), entry.node): entry for entry in manifest.counters}
    nodes = list(topology.nodes())
    receivers = Receivers(topology)
    offered = dict.fromkeys((node.index for node in nodes), 0)
    for flow in counted:
        if flow.direction == FROM_NODE:
            for target in receivers.of(flow.node_index, flow.eth_dst, flow.ip_dst):
                offered[target.index] += flow.frames
    seen: dict[tuple[str, int], int] = defaultdict(int)
    for flow in counted:
        seen[flow.direction, flow.node_index] += flow.frames
    elsewhere = sum(entry.dropped_frames for entry in (*manifest.link_counters, *manifest.bus_counters))
    lossy = {
        node.index: entry.dropped_frames
        for node in nodes
        if (entry := counters.get((FROM_NODE, str(node.name)))) is not None and entry.dropped_frames
    }
    entries: list[dict[str, Any]] = []
    for node in nodes:
        name = str(node.name)
        before = None if elsewhere or is_corrupting else _dropped_before(counted, lossy, node, receivers)
        arrived = seen[TO_NODE, node.index] - extra_copies.get((TO_NODE, name), 0)
        towards = _entry(name, TO_NODE, offered[node.index], arrived, before, counters.get((TO_NODE, name)))
        entries.append(towards | {"reason": _WAS_DOWN.format(name=name) if name in down else ""})
        own = counters.get((FROM_NODE, name))
        copies = extra_copies.get((FROM_NODE, name), 0)
        through = None if own is None or (is_corrupting and copies) else own.sent_frames - copies
        entries.append(_entry(name, FROM_NODE, seen[FROM_NODE, node.index], through, 0, own) | {"reason": ""})
    return entries


def queue_drops(manifest: Manifest, crashed: Collection[str]) -> dict[Element, int]:
    """Frames that the queue of each port dropped in the whole run or still held at its end, by the kernel's count; at
    ELSEWHERE those of all links and shared media. A node that crashed may have lost its counts with its port.
    """
    if not manifest.counters:
        return {}
    elsewhere = (*manifest.link_counters, *manifest.bus_counters)
    return {ELSEWHERE: sum(map(_lost_in_queue, elsewhere))} | {
        (str(entry.direction), entry.node): _lost_in_queue(entry)
        for entry in manifest.counters
        if entry.node not in crashed
    }


def _lost_in_queue(entry: ElsewhereCounters) -> int:
    return entry.queue_dropped_frames + entry.collision_dropped_frames + entry.backlog_frames


_WAS_DOWN = "{name} was down for a while, and what was sent to it meanwhile is counted by nobody"


def _entry(
    name: str, direction: str, offered: int, arrived: int | None, before: int | None, counters: PortCounters | None
) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "node": name,
        "direction": direction,
        "offered": offered,
        "arrived": arrived,
        "dropped_before": before,
        "dropped_delay_line": None if counters is None else counters.delay_line_dropped_frames,
        "dropped_queue": None if counters is None else counters.queue_dropped_frames,
        "dropped_cut": None if counters is None else counters.cut_dropped_frames,
        "backlog": None if counters is None else counters.backlog_frames,
        "unexplained": None,
    }
    if arrived is not None and before is not None and counters is not None:
        entry["unexplained"] = offered - arrived - before - counters.dropped_frames - counters.backlog_frames
    return entry


def _dropped_before(counted: Sequence[Flow], lossy: Mapping[int, int], node: Node, receivers: Receivers) -> int | None:
    """Frames for this node that were lost at the senders' own ports; None when this is not known."""
    total = 0
    for sender, dropped in lossy.items():
        if sender == node.index:
            continue
        sent = [flow for flow in counted if flow.node_index == sender and flow.direction == FROM_NODE]
        if not all(node in receivers.of(sender, flow.eth_dst, flow.ip_dst) for flow in sent):
            return None
        total += dropped
    return total
