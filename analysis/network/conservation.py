"""Conservation of frames: every frame sent towards a port arrived there, or a counter of the kernel has its drop.

    to-node:    offered = arrived + dropped before + dropped here (delay line, queue, cut) + backlog + unexplained
    from-node:  offered = arrived + dropped here + backlog + unexplained

Frames of any protocol are counted. `offered` comes from the capture: towards a node the frames that the others sent to
its address or to all, from a node those that it sent. `arrived` towards a node comes from the capture, too; from a node
it is the number of frames that its tree let through, by the kernel's count. Both are without the copies that delay
lines made. A copy may be dropped like any frame, so those that arrived are all only if nothing was dropped in the whole
run; else they are known if the delay lines on the way count them, as simulated ones do. If not, `arrived` is null. It
is null, too, if they are not counted and more arrived than is explained: frames that are none of the protocol's are
copied as well.
`dropped_before`: towards a node, frames lost at the senders' own ports, or still there at the end. It is known if there
is none, or if all frames of these senders were addressed to the node, too; else (and where links or shared media
dropped or held frames) it is null. Where something is null, so is `unexplained`. Damaged frames are not told from
copies, and bridges and routers refuse some of them: where corruption was asked for, `dropped_before` is null, too, and
from a node `arrived` if its port made copies that it does not count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from analysis.inputs import ElsewhereCounters, Manifest, PortCounters
from analysis.network.addresses import Flow, Receivers
from analysis.network.realised import ELSEWHERE
from analysis.requested_network import Element
from topologies.model import Direction, Topology

STAYING = ("netns", "sim")
"""Worlds in which a port outlives the node's processes: what is sent to a node that is down is counted there."""
TO_NODE, FROM_NODE = Direction.TO_NODE.value, Direction.FROM_NODE.value


def balance(
    counted: Sequence[Flow],
    topology: Topology,
    manifest: Manifest,
    extra_copies: Mapping[tuple[str, str], int],
    *,
    copying: Collection[Element] = (),
    down: Collection[str] = (),
    is_corrupting: bool = False,
) -> list[dict[str, Any]]:
    """One entry per port and direction. `extra_copies`: duplicates that arrived, by (direction, node). `copying`:
    elements that were asked to make copies; `down`: nodes that were down or absent for a while; `is_corrupting`:
    corruption was asked for.
    """
    counters = {(str(entry.direction), entry.node): entry for entry in manifest.counters}
    nodes = list(topology.nodes())
    receivers = Receivers(topology)
    offered = dict.fromkeys((node.index for node in nodes), 0)
    reached: dict[int, set[int]] = {}
    """Nodes to which all frames of a sender were addressed."""
    for flow in counted:
        if flow.direction == FROM_NODE:
            targets = {target.index for target in receivers.of(flow.node_index, flow.eth_dst, flow.ip_dst)}
            for target in targets:
                offered[target] += flow.frames
            reached[flow.node_index] = reached.get(flow.node_index, targets) & targets
    seen: dict[tuple[str, int], int] = defaultdict(int)
    for flow in counted:
        seen[flow.direction, flow.node_index] += flow.frames
    elsewhere = sum(entry.kept_frames for entry in (*manifest.link_counters, *manifest.bus_counters))
    is_lossless = not elsewhere and not any(entry.kept_frames for entry in manifest.counters)
    uplinks = {node.index: counters.get((FROM_NODE, str(node.name))) for node in nodes}
    kept = {index: own.kept_frames for index, own in uplinks.items() if own is not None and own.kept_frames}
    made: dict[Element, int | None] = {
        one: None if one not in counters else counters[one].duplicated_frames for one in copying
    }
    made_there = {node.index: made[one] for node in nodes if (one := (FROM_NODE, str(node.name))) in made}
    of_links = [None for direction, _ in made if direction not in (TO_NODE, FROM_NODE)]

    def of_senders(frames: Mapping[int, int | None], target: int) -> Iterator[int | None]:
        """Which of these frames of each sender were for one node; None: not known."""
        for sender, number in frames.items():
            if sender != target:
                yield number if target in reached.get(sender, {target}) else None

    entries: list[dict[str, Any]] = []
    for node in nodes:
        name = str(node.name)
        before = None if elsewhere or is_corrupting else _sum(of_senders(kept, node.index))
        on_way = [
            *of_senders(made_there, node.index),
            *of_links,
            *(made[one] for one in made if one == (TO_NODE, name)),
        ]
        copies = _copies(extra_copies.get((TO_NODE, name), 0), on_way, is_lossless)
        arrived = None if copies is None else seen[TO_NODE, node.index] - copies
        towards = _entry(name, TO_NODE, offered[node.index], arrived, before, counters.get((TO_NODE, name)))
        towards |= _of_copies(towards, on_way)
        was_gone = name in down and manifest.world not in STAYING
        entries.append(towards | {"reason": _WAS_DOWN.format(name=name) if was_gone else ""})
        own = uplinks[node.index]
        here = [made[one] for one in made if one == (FROM_NODE, name)]
        copies = _copies(extra_copies.get((FROM_NODE, name), 0), here, is_lossless and not is_corrupting)
        through = None if own is None or copies is None else own.sent_frames - copies
        entry = _entry(name, FROM_NODE, seen[FROM_NODE, node.index], through, 0, own) | {"reason": ""}
        entries.append(entry | _of_copies(entry, here))
    return entries


def queue_drops(manifest: Manifest, crashed: Collection[str]) -> dict[Element, int]:
    """Frames that the queue of each port dropped in the whole run or still held at its end, by the kernel's count; at
    ELSEWHERE those of all links and shared media. A container that crashed may have lost its counts with its port.
    """
    if not manifest.counters:
        return {}
    elsewhere = (*manifest.link_counters, *manifest.bus_counters)
    return {ELSEWHERE: sum(map(_lost_in_queue, elsewhere))} | {
        (str(entry.direction), entry.node): _lost_in_queue(entry)
        for entry in manifest.counters
        if entry.node not in crashed or manifest.world in STAYING
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


def _of_copies(entry: Mapping[str, Any], made: Sequence[int | None]) -> dict[str, Any]:
    """The numbers that become null where more arrived than is explained, and copies are not counted: copies that are
    seen are those of the protocol's frames alone, and any frame may be copied.
    """
    is_more = None in made and entry["unexplained"] is not None and entry["unexplained"] < 0
    return {"arrived": None, "unexplained": None} if is_more else {}


def _copies(seen: int, made: Sequence[int | None], is_lossless: bool) -> int | None:
    """Copies among the frames that arrived or were dropped: those made on the way; if they are not counted, those seen,
    which are fewer where frames are lost.
    """
    counted = _sum(made) if made else seen
    return seen if counted is None and is_lossless else counted


def _sum(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total
