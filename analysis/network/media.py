"""Realised rate and queue of a shared medium, from the capture at the ports of its partition. In NumPy, without Spark.

A frame from a node enters the medium when it has passed the node's port, and is seen when it leaves it: at the first
port of the partition that gets it, less the delay of that port. Frames to other partitions, and frames that no other
node gets, pass the medium unseen: they count when the nearest seen frames of the same partition let them pass. Frames
from a router enter at an unknown time, but are seen when they leave. `analysis.network.accuracy` judges the result.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import pyarrow.dataset as pds

from analysis.network.addresses import ip_number
from analysis.network.realised import (
    ENOUGH_FRAMES,
    FOREVER_NS,
    FROM_NODE,
    NEVER,
    NO_STALLS,
    RATE_TOLERANCE,
    TO_NODE,
    WITNESS_NS,
    Delays,
    Floats,
    Ints,
    Mask,
    Rate,
    ahead_ns,
    delays_of,
    lasting_backlogs,
    longest_wait_ns,
)
from analysis.requested_network import Network
from analysis.requested_network import Path as NetworkPath
from topologies.model import CLEAR, MULTICAST_GROUP, Access, Impairment, Partition

UNSEEN_PART = 0.01
"""Part of the frames that may pass unseen and uncounted."""
UNSEEN_SLACK = 0.1
"""Part of the unseen frames that may have left earlier or later than assumed, while nothing waited."""


class Lateness(NamedTuple):
    """By how much some frames left later than the first port shows, or than they could."""

    of: str
    delays: Delays
    others: Delays | None
    """Of those that no stall of the machine may have met."""


class Passages(NamedTuple):
    """Frames that passed a medium, in the order in which they left it."""

    leave_ns: Ints
    """Of an unseen frame: between those of the frames before and after it."""
    ready_ns: Ints
    """Time from which a frame of the partition's nodes could enter; NEVER: not known."""
    length: Ints
    is_seen: Mask
    is_certain: Mask
    """A frame that is neither seen nor certain may have been lost before the medium, or in its queue."""

    def select(self, rows: Mask) -> Passages:
        return Passages(
            leave_ns=self.leave_ns[rows],
            ready_ns=self.ready_ns[rows],
            length=self.length[rows],
            is_seen=self.is_seen[rows],
            is_certain=self.is_certain[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Medium:
    """Measures of one shared medium over a run."""

    asked: Impairment
    """Its rate and queue."""
    frames: int
    """Frames seen."""
    ahead_ns: float
    """Time by which one frame of a hundred left before the frames seen, at the rate and its tolerance, allow it."""
    rate: Rate | None
    """In backlogs of at least BACKLOG_NS; None: fewer than ENOUGH_FRAMES left in them."""
    delays: Delays | None
    """Waiting and passing, of frames of the partition's nodes."""
    longest_wait_ns: int
    most_waiting: int | None
    """Most frames in it at once, as a frame of the partition's nodes found them, itself included; None: some frames
    entered at an unknown time, and these may be the ones that found it full."""
    dropped: int | None
    """By its queue; None: not counted."""
    unjudged: str
    """Circumstances in which neither the rate that it reaches nor its queue is judged; empty: there are none."""
    late: tuple[Lateness, ...] = ()
    """Of the medium itself, if all frames are seen, and of each port, if the medium passes frames once."""


def measure(
    frames: Path,
    network: Network,
    partition: Partition,
    *,
    first_ns: int,
    last_ns: int,
    stalls: Ints = NO_STALLS,
    dropped: int | None,
) -> Medium:
    """Measures within `first_ns` and `last_ns` of the capture. `frames`: the table; `stalls`: result of
    `stalls_with_backlog`; `dropped`: by the medium's queue, if that is known.
    """
    assert partition.bus is not None
    asked = Impairment(rate_bps=partition.bus.rate_bps, queue_frames=partition.bus.queue_frames)
    found, strange, knows_entries, behind = _passages(
        frames, network, partition, first_ns, last_ns, is_lossless=dropped == 0
    )
    unjudged = _unjudged(network, partition, strange)
    medium = measured(asked, found, stalls=stalls, dropped=dropped, unjudged=unjudged, knows_entries=knows_entries)
    if network.corrupting or any(direction != TO_NODE for direction, _ in network.copying):
        return medium
    ports = [_lateness(f"to {name}", *times, stalls) for name, times in behind.items()]
    return replace(medium, late=(*medium.late, *filter(None, ports)))


def measured(
    asked: Impairment,
    found: Passages,
    *,
    stalls: Ints = NO_STALLS,
    dropped: int | None,
    unjudged: str,
    knows_entries: bool = True,
) -> Medium:
    assert asked.rate_bps is not None
    # The queue dropped the frames that are not seen, unless it may have dropped others: from a router, say.
    own_drops = (dropped or 0) if knows_entries else 0
    is_whole = dropped is not None and int((~found.is_seen).sum()) <= own_drops
    if dropped is not None and int((~found.is_seen).sum()) <= own_drops + UNSEEN_PART * len(found.length):
        found = found.select(found.is_seen)
    seen = np.flatnonzero(found.is_seen)
    leave_ns, ready_ns, length = found.leave_ns[seen], found.ready_ns[seen], found.length[seen]
    is_own = ready_ns != NEVER
    # Each frame that left while this one waited was there before it.
    entered = np.searchsorted(found.leave_ns, ready_ns[is_own], "right")
    return Medium(
        asked=asked,
        frames=len(seen),
        ahead_ns=ahead_ns(leave_ns, ready_ns, length, asked.rate_bps),
        rate=_rate(found, seen, stalls),
        delays=delays_of((leave_ns - ready_ns)[is_own], asked),
        longest_wait_ns=longest_wait_ns(asked, int(found.length.max(initial=1))),
        most_waiting=int((seen[is_own] + 1 - entered).max(initial=0)) if knows_entries else None,
        dropped=dropped,
        unjudged=unjudged,
        late=_idle(asked.rate_bps, leave_ns, ready_ns, length, stalls) if is_whole and not unjudged else (),
    )


def _idle(rate_bps: int, leave_ns: Ints, ready_ns: Ints, length: Ints, stalls: Ints) -> tuple[Lateness, ...]:
    """Time in which the medium passed nothing, though a frame of the partition's nodes had come."""
    begin_ns = np.maximum(ready_ns, np.append(NEVER, leave_ns[:-1]))
    due_ns = begin_ns + (length * 8e9 / ((1 - RATE_TOLERANCE) * rate_bps)).astype(np.int64)
    is_own = ready_ns != NEVER
    found = _lateness("through the medium", due_ns[is_own], leave_ns[is_own], stalls)
    return () if found is None else (found,)


def _lateness(of: str, due_ns: Ints, left_ns: Ints, stalls: Ints) -> Lateness | None:
    is_met = np.zeros(len(due_ns), np.bool_)
    if len(stalls):
        place = np.searchsorted(stalls[:, 0], left_ns + WITNESS_NS, "right") - 1
        is_met = (place >= 0) & (stalls[np.maximum(place, 0), 1] > due_ns)
    late_ns = left_ns - due_ns
    delays = delays_of(late_ns, CLEAR)
    return None if delays is None else Lateness(of, delays, delays_of(late_ns[~is_met], CLEAR))


def _rate(found: Passages, seen: npt.NDArray[np.intp], stalls: Ints) -> Rate | None:
    """Bits over the time between departures, of frames that left while one of the partition's nodes waited."""
    leave_ns = found.leave_ns[seen]
    is_busy = lasting_backlogs(leave_ns, found.ready_ns[seen], stalls)
    time_ns = int(np.diff(leave_ns)[is_busy].sum())
    if int(is_busy.sum()) < ENOUGH_FRAMES or time_ns <= 0:
        return None
    certain, possible = found.is_certain & ~found.is_seen, ~found.is_seen
    own, surely, perhaps = (
        float(np.diff(np.cumsum(np.where(counts, found.length, 0))[seen])[is_busy].sum()) * 8e9 / time_ns
        for counts in (found.is_seen, certain, possible)
    )
    return Rate(own + (1 - UNSEEN_SLACK) * surely, own + (1 + UNSEEN_SLACK) * perhaps)


def _unjudged(network: Network, partition: Partition, strange: float) -> str:
    assert partition.bus is not None
    from_node, to_node = (
        [one for node in partition.nodes for *_, one in network.intervals((direction, str(node.name)))]
        for direction in (FROM_NODE, TO_NODE)
    )
    if partition.bus.access is Access.CSMA_CD:
        return "with collisions"
    if any(one.duplicate_ratio for one in from_node):
        return "with ports that make copies"
    is_joined = len(network.topology.partitions) > 1
    is_silent = bool(network.cuts or network.downs) or any(one.loss_ratio > UNSEEN_PART for one in to_node)
    if is_joined and (is_silent or strange > UNSEEN_PART):
        return "with frames from elsewhere that no port shows"
    return ""


class _Frames(NamedTuple):
    """Rows of the table at the ports of a partition, without trace."""

    time_ns: Ints
    node: Ints
    datagram: Ints
    """Sender, incarnation and transmission as one number; NEVER: not of this run's protocol."""
    sender: Ints
    ip_dst: Ints
    length: Ints

    def select(self, rows: Mask | npt.NDArray[np.intp]) -> _Frames:
        return _Frames(*(column[rows] for column in self))


def _passages(
    frames: Path, network: Network, partition: Partition, first_ns: int, last_ns: int, *, is_lossless: bool
) -> tuple[Passages, float, bool, dict[str, tuple[Ints, Ints]]]:
    """Passages, the part of the bytes of arrived frames that came from elsewhere and are none of them, and whether the
    time from which a frame could enter is known of all: of those that the nodes sent, and none came from a router. And
    when multicasts left towards each node, after when the first port shows that they did. `is_lossless`: the medium's
    queue dropped nothing.
    """
    assert partition.bus is not None
    names = {node.index: str(node.name) for node in partition.nodes}
    sent, arrived = _read(frames, names, first_ns, last_ns)
    ready_ns, keeps = _ready(network, names, sent)
    left_ns = _left(network, names, arrived)
    firsts = _firsts(arrived, left_ns, partition)
    seen, seen_left_ns = arrived.select(firsts), left_ns[firsts]
    is_strange = ~np.isin(arrived.sender, list(names)) & ~np.isin(arrived.datagram, seen.datagram)
    seen_ready_ns = _of_datagrams(seen.datagram, sent.datagram, ready_ns)
    own = np.flatnonzero(ready_ns != NEVER)
    own_left_ns = _of_datagrams(sent.datagram[own], seen.datagram, seen_left_ns)
    byte_ns = 8e9 / partition.bus.rate_bps
    assumed_ns = _between(sent.select(own), ready_ns[own], own_left_ns, byte_ns)
    is_unseen = own_left_ns == NEVER
    is_foreign = seen_ready_ns == NEVER
    late_ns = _past(
        assumed_ns[is_unseen],
        sent.length[own[is_unseen]] * byte_ns,
        seen_left_ns[is_foreign],
        seen.length[is_foreign] * byte_ns,
    )
    # No later than the next one of the nodes.
    others_ns = np.append(np.sort(own_left_ns[~is_unseen]), FOREVER_NS)
    next_ns = others_ns[np.searchsorted(others_ns, assumed_ns[is_unseen])]
    assumed_ns[is_unseen] = np.minimum(late_ns, next_ns)
    unseen = own[own_left_ns == NEVER]
    leave_ns = np.concatenate((seen_left_ns, assumed_ns[own_left_ns == NEVER]))
    is_seen = np.arange(len(leave_ns)) < len(firsts)
    order = np.lexsort((is_seen, leave_ns))
    every = Passages(
        leave_ns=leave_ns[order],
        ready_ns=np.concatenate((seen_ready_ns, ready_ns[unseen]))[order],
        length=np.concatenate((seen.length, sent.length[unseen]))[order],
        is_seen=is_seen[order],
        is_certain=np.concatenate((is_seen[: len(firsts)], keeps[unseen] & is_lossless))[order],
    )
    strange = float(arrived.length[is_strange].sum() / max(1, arrived.length.sum()))
    is_group = np.isin(arrived.ip_dst, _groups(partition)) & (left_ns != NEVER)
    first_ns_of = _of_datagrams(arrived.datagram, seen.datagram, seen_left_ns)
    behind = {}
    for index, name in names.items():
        rows = is_group & (arrived.node == index) & (arrived.datagram != NEVER)
        behind[name] = first_ns_of[rows], left_ns[rows]
    return every, strange, len(own) == len(ready_ns) and NEVER not in seen_ready_ns, behind


def _read(frames: Path, names: Mapping[int, str], first_ns: int, last_ns: int) -> tuple[_Frames, _Frames]:
    """Frames from the nodes and towards them."""
    field = pds.field
    is_wanted = field("node_index").isin(list(names)) & (field("class") != "trace")
    is_wanted &= (field("time_ns") >= first_ns) & (field("time_ns") <= last_ns)
    columns = ["time_ns", "node_index", "sender", "sender_incarnation", "transmission", "ip_dst", "length", "direction"]
    table = pds.dataset(frames, format="parquet").to_table(columns=columns, filter=is_wanted)
    is_to_node = pc.equal(table["direction"], TO_NODE).to_numpy()
    time_ns, node, sender, incarnation, transmission, ip_dst, length = (
        pc.fill_null(table[name], NEVER).to_numpy().astype(np.int64) for name in columns[:-1]
    )
    datagram = np.where(sender == NEVER, NEVER, sender << 48 | incarnation << 32 | transmission)
    every = _Frames(time_ns, node, datagram, sender, ip_dst, length)
    return every.select(~is_to_node), every.select(is_to_node)


def _ready(network: Network, names: Mapping[int, str], sent: _Frames) -> tuple[Ints, Mask]:
    """Time at which each frame has passed its node's port, and whether the port loses none of them. NEVER: not known,
    because of a jitter or a queue there.
    """
    ready_ns, keeps = np.full(len(sent.time_ns), NEVER, np.int64), np.zeros(len(sent.time_ns), np.bool_)
    for index, name in names.items():
        for from_ns, until_ns, one in network.intervals((FROM_NODE, name)):
            rows = (sent.node == index) & (sent.time_ns >= from_ns) & (sent.time_ns < until_ns)
            if _is_steady(one):
                ready_ns[rows] = sent.time_ns[rows] + one.delay_ns
                keeps[rows] = not one.loss_ratio and not one.corrupt_ratio
    return ready_ns, keeps


def _left(network: Network, names: Mapping[int, str], arrived: _Frames) -> Ints:
    """Time at which each frame left the medium: the arrival less the port's delay. NEVER: not known."""
    left_ns = np.full(len(arrived.time_ns), NEVER, np.int64)
    for index, name in names.items():
        settled_ns = 0  # After a change some frames still have the delay of before.
        for from_ns, until_ns, one in network.intervals((TO_NODE, name)):
            after_ns = arrived.time_ns - from_ns
            rows = (arrived.node == index) & (after_ns >= settled_ns) & (arrived.time_ns < until_ns)
            if _is_steady(one):
                left_ns[rows] = arrived.time_ns[rows] - one.delay_ns
            settled_ns = NetworkPath(elements=(((TO_NODE, name), one),)).longest_ns
    return left_ns


def _is_steady(one: Impairment) -> bool:
    """Whether all frames have the same delay."""
    return not (one.jitter_ns or one.reorder_ratio or one.rate_bps)


def _firsts(arrived: _Frames, left_ns: Ints, partition: Partition) -> npt.NDArray[np.intp]:
    """One arrival of each frame that left the medium: a multicast comes out once for all ports, and what a router
    copies once for each.
    """
    port = np.where(np.isin(arrived.ip_dst, _groups(partition)), NEVER, arrived.node)
    rows = np.flatnonzero((left_ns != NEVER) & (arrived.datagram != NEVER))
    rows = rows[np.lexsort((left_ns[rows], port[rows], arrived.datagram[rows]))]
    is_first = (np.diff(arrived.datagram[rows], prepend=NEVER) != 0) | (np.diff(port[rows], prepend=NEVER) != 0)
    return np.asarray(rows[is_first])


def _groups(partition: Partition) -> list[int]:
    return [ip_number(MULTICAST_GROUP), ip_number(partition.multicast_group)]


def _of_datagrams(wanted: Ints, datagram: Ints, values: Ints) -> Ints:
    """Values of these datagrams; NEVER where there is none."""
    if not len(datagram):
        return np.full(len(wanted), NEVER, np.int64)
    order = np.argsort(datagram, kind="stable")
    place = order[np.minimum(np.searchsorted(datagram[order], wanted), len(order) - 1)]
    return np.where(datagram[place] == wanted, values[place], NEVER)


def _between(sent: _Frames, ready_ns: Ints, left_ns: Ints, byte_ns: float) -> Ints:
    """Times at which the frames that have none left: one after another behind those that were ready before, at the rate
    asked for, and before the next one that was seen to leave.
    """
    bits_ns = sent.length * byte_ns
    order = np.lexsort((sent.datagram, ready_ns))
    left, bits = left_ns[order], bits_ns[order]
    begin = np.where(left == NEVER, ready_ns[order], left - bits)
    passed = np.cumsum(bits)
    earliest = passed + np.maximum.accumulate(begin - (passed - bits))
    after = np.minimum.accumulate(np.where(left == NEVER, FOREVER_NS, left)[::-1])[::-1]
    found = np.empty(len(order), np.int64)
    found[order] = np.where(left == NEVER, np.minimum(earliest, after), left)
    return found


def _past(assumed_ns: Ints, bits_ns: Floats, left_ns: Ints, taken_ns: Floats) -> Ints:
    """Times at which frames left that are assumed to have left then, where others, which took the medium before
    `left_ns` each for that time, leave room for them: half of their own time at least.
    """
    order = np.argsort(left_ns)
    ends = left_ns[order].tolist()
    begins = (left_ns - taken_ns)[order].tolist()
    found = assumed_ns.copy()
    for place in np.argsort(assumed_ns, kind="stable").tolist():
        at_ns, own_ns = int(assumed_ns[place]), float(bits_ns[place])
        turn = bisect_left(ends, at_ns - own_ns)
        while turn < len(ends) and begins[turn] < at_ns - own_ns / 2:
            at_ns = int(ends[turn] + own_ns)
            turn += 1
        found[place] = at_ns
    return found
