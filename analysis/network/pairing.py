"""Pairs of each datagram at its sender's port with its arrivals at each addressed receiver. In NumPy.

The key of a pair is the datagram's envelope: 16 bits of sender, 16 of incarnation and 32 of transmission, as one number
of 64 bits. Only the frames of the requested ports are kept, receiver by receiver, so that memory is bounded by their
share of the traffic.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pds

from analysis.capture.decode import CHECKSUM_COLUMNS, checksums_are_good, decode_frames, frames_at
from analysis.network.addresses import ip_number
from analysis.network.realised import DAMAGED, INTACT, NEVER, NOT_KNOWN, STRANGE, Samples
from collector.parse import map_capture
from collector.walk import Buffer
from topologies.model import MULTICAST_GROUP, Direction, Node, Partition, Topology

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_NUMBERS = ("time_ns", "node_index", "sender", "sender_incarnation", "transmission", "ip_dst", "length", "offset")


class _Frames(NamedTuple):
    """Rows of the table as plain columns; `datagram` is the envelope as one number."""

    datagram: Ints
    time_ns: Ints
    sender: Ints
    node: Ints
    """Node of the port; -1: no node."""
    ip_dst: Ints
    length: Ints
    offset: Ints
    """Place in the capture."""

    def select(self, rows: npt.NDArray[np.intp]) -> _Frames:
        return _Frames(*(column[rows] for column in self))


class _Reached(NamedTuple):
    """Addresses of one receiver."""

    unicast: int
    group: int
    near: int
    router: int
    """Of its partition: copies what it is sent for each node."""


def samples(
    frames: Path,
    topology: Topology,
    chosen: Collection[tuple[int, int]],
    members: Sequence[int],
    capture: Path | None = None,
    checked_of: int = 1,
) -> dict[int, Samples]:
    """Samples of both ports of these members (2 * member: towards it; 2 * member + 1: from it), one per datagram and
    receiver, and of STRANGE frames. All count at a receiver's port; at the sender's port those of unicasts count, and
    those of multicasts at its receivers in `chosen`, which holds pairs of sender and receiver. `capture`: its frames
    tell which arrivals are damaged, of a part of 1 / `checked_of`.
    """
    buffer = None if capture is None else map_capture(capture)
    wanted = np.array(members, np.int64)
    reached = {
        node.index: _Reached(*map(ip_number, _addresses(node, partition)))
        for partition in topology.partitions
        for node in partition.nodes
    }
    is_chosen = np.zeros((len(reached) + 1, len(reached) + 1), np.bool_)
    for sender, receiver in chosen:
        is_chosen[sender, receiver] = True
    groups = np.array(sorted({number for one in reached.values() for number in one[1:]}), np.int64)
    monitors = [ip_number(partition.monitor_ip) for partition in topology.partitions]
    owners = {one.unicast: index for index, one in reached.items()}
    sent, arrived, strange = _read(frames, wanted, owners, groups, is_chosen, monitors)
    ports: dict[int, list[Samples]] = defaultdict(list)
    for member in members:
        for place, own in enumerate(strange):
            ports[2 * member + place].append(_strange(own.select(np.flatnonzero(own.node == member)), place == 0))
    for receiver, addresses in reached.items():
        pairs = _pairs(receiver, addresses, sent, arrived, buffer, checked_of)
        if receiver in members:
            ports[2 * receiver].append(pairs)
        counts = is_chosen[np.minimum(pairs.peer, len(reached)), receiver] | ~pairs.is_multicast
        for member in np.intersect1d(pairs.peer[counts], wanted).tolist():
            rows = np.flatnonzero(counts & (pairs.peer == member))
            ports[2 * member + 1].append(
                dataclasses.replace(pairs.select(rows), peer=np.full(len(rows), receiver, np.int64))
            )
    return {port: _joined(ports[port]) for member in members for port in (2 * member, 2 * member + 1)}


def reached_by(topology: Topology) -> Iterator[tuple[int, int]]:
    """Pairs of a destination address and a member that it reaches."""
    for partition in topology.partitions:
        for node in partition.nodes:
            for ip in _addresses(node, partition):
                yield ip_number(ip), node.index


def _addresses(node: Node, partition: Partition) -> tuple[str, str, str, str]:
    """As in _Reached."""
    return node.ip, MULTICAST_GROUP, partition.multicast_group, partition.router_ip


def _strange(own: _Frames, is_to_node: bool) -> Samples:
    count = len(own.time_ns)
    return Samples(
        peer=np.full(count, STRANGE, np.int64),
        sent_ns=own.time_ns,
        arrive_ns=own.time_ns if is_to_node else np.full(count, NEVER, np.int64),
        copies=np.full(count, is_to_node, np.int64),
        length=own.length,
        is_multicast=np.zeros(count, np.bool_),
        is_near=np.zeros(count, np.bool_),
        damage=np.full(count, NOT_KNOWN, np.int8),
    )


def _read(
    frames: Path,
    wanted: Ints,
    owners: dict[int, int],
    groups: Ints,
    is_chosen: npt.NDArray[np.bool_],
    monitors: Sequence[int],
) -> tuple[_Frames, _Frames, tuple[_Frames, _Frames]]:
    """Sent and arrived frames of the ports of the wanted members, and those without a key towards and from them, but
    for traces, which pass no port.
    """
    sent, arrived = [], []
    towards, away = [], []
    addresses = np.array(sorted(owners), np.int64)
    owner = np.array([owners[address] for address in addresses.tolist()], np.int64)
    for every, is_towards in _batches(frames):
        is_strange = (every.sender == STRANGE) & np.isin(every.node, wanted) & ~np.isin(every.ip_dst, monitors)
        towards.append(every.select(np.flatnonzero(is_strange & is_towards)))
        away.append(every.select(np.flatnonzero(is_strange & ~is_towards)))
        has_key = np.flatnonzero(every.sender != STRANGE)
        batch, is_to_node = every.select(has_key), is_towards[has_key]
        is_group = np.isin(batch.ip_dst, groups)
        is_of_wanted = np.isin(batch.sender, wanted)
        place = np.minimum(np.searchsorted(addresses, batch.ip_dst), len(addresses) - 1)
        is_for_wanted = (addresses[place] == batch.ip_dst) & np.isin(owner[place], wanted)
        is_own = ~is_to_node & (batch.node == batch.sender)
        sent.append(batch.select(np.flatnonzero(is_own & (is_group | is_of_wanted | is_for_wanted))))
        last = len(is_chosen) - 1
        is_reference = is_chosen[np.minimum(batch.sender, last), np.clip(batch.node, -1, last)]
        is_seen = np.isin(batch.node, wanted) | (is_of_wanted & (~is_group | is_reference))
        arrived.append(batch.select(np.flatnonzero(is_to_node & is_seen)))
    return _in_order(sent), _in_order(arrived), (_in_order(towards), _in_order(away))


def _batches(frames: Path) -> Iterator[tuple[_Frames, Mask]]:
    """Frames with a known time and direction, and a mask of those towards a node. Of one that is none of the protocol's
    in the run's group, or a later fragment of one, the sender is STRANGE."""
    for batch in pds.dataset(frames, format="parquet").to_batches(columns=[*_NUMBERS, "direction"]):
        if any(batch.column(name).null_count for name in _NEEDED):
            batch = batch.filter(_is_known(batch))
        columns = {name: _plain(batch.column(name)) for name in _NUMBERS}
        is_to_node = pc.equal(batch.column("direction"), Direction.TO_NODE.value).to_numpy(zero_copy_only=False)
        yield (
            _Frames(
                datagram=columns["sender"] << 48 | columns["sender_incarnation"] << 32 | columns["transmission"],
                time_ns=columns["time_ns"],
                sender=columns["sender"],
                node=columns["node_index"],
                ip_dst=columns["ip_dst"],
                length=columns["length"],
                offset=columns["offset"],
            ),
            is_to_node,
        )


_NEEDED = ("time_ns", "direction")


def _is_known(batch: pa.RecordBatch) -> pa.BooleanArray:
    is_time, is_direction = (pc.is_valid(batch.column(name)) for name in _NEEDED)
    return pc.and_(is_time, is_direction)


def _plain(column: Any) -> Ints:
    known = column.fill_null(-1) if column.null_count else column
    return np.asarray(known.to_numpy(zero_copy_only=False).astype(np.int64, copy=False))


def _in_order(parts: list[_Frames]) -> _Frames:
    """Frames by datagram, then by time."""
    empty = np.empty(0, np.int64)
    if not parts:
        return _Frames(*([empty] * len(_Frames._fields)))
    whole = _Frames(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    return whole.select(np.lexsort((whole.time_ns, whole.datagram)))


def _pairs(
    receiver: int, addresses: _Reached, sent: _Frames, arrived: _Frames, buffer: Buffer | None, checked_of: int
) -> Samples:
    """One sample for each datagram of another node that was addressed to this receiver. A damaged arrival counts only
    if no intact one has the same key: its key may be that of another datagram.
    """
    is_far, is_near = sent.ip_dst == addresses.group, sent.ip_dst == addresses.near
    is_copied = sent.ip_dst == addresses.router
    is_addressed = ((sent.ip_dst == addresses.unicast) | is_far | is_near | is_copied) & (sent.sender != receiver)
    rows = np.flatnonzero(is_addressed)
    asked = sent.select(rows)
    first = _firsts(asked.datagram)
    here = arrived.select(arrived.node == receiver)
    damages = np.full(len(here.datagram), NOT_KNOWN, np.int8)
    if buffer is not None:
        checked = np.flatnonzero(_is_checked(here.offset, checked_of))
        damages[checked] = _damages(buffer, here.offset[checked], here.length[checked])
    if (damages == DAMAGED).any():
        order = np.lexsort((here.time_ns, damages, here.datagram))
        here, damages = here.select(order), damages[order]
    begin = np.searchsorted(here.datagram, asked.datagram[first], "left")
    end = np.searchsorted(here.datagram, asked.datagram[first], "right")
    has_arrived = end > begin
    intact = np.concatenate(([0], np.cumsum(damages != DAMAGED)))
    copies = np.where(has_arrived, np.maximum(1, intact[end] - intact[begin]), 0)
    arrive_ns = np.full(len(first), NEVER, np.int64)
    arrive_ns[has_arrived] = here.time_ns[begin[has_arrived]]
    damage = np.full(len(first), NOT_KNOWN, np.int8)
    damage[has_arrived] = damages[begin[has_arrived]]
    return Samples(
        peer=asked.sender[first],
        sent_ns=asked.time_ns[first],
        arrive_ns=arrive_ns,
        copies=copies,
        length=_reduced(np.maximum, asked.length, first),
        is_multicast=_reduced(np.logical_or, (is_far | is_near | is_copied)[rows], first),
        is_near=_reduced(np.logical_or, is_near[rows], first),
        damage=damage,
    )


def _is_checked(offset: Ints, of: int) -> Mask:
    """Frames in one block of so many of the capture, spread evenly: the others are never read from the file."""
    block = (offset >> _BLOCK_BITS).astype(np.uint64)
    return np.asarray((block * _GOLDEN) >> np.uint64(32) < np.uint64(2**32 // of))


_BLOCK_BITS = 16
"""Blocks of 64 KiB, some hundred frames: Linux maps as much of a file at once."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: multiples of any step fall evenly over the range."""


def _damages(buffer: Buffer, offset: Ints, length: Ints) -> npt.NDArray[np.int8]:
    """INTACT or DAMAGED, by the checksums of each frame. Those of one that is not in the buffer are wrong."""
    is_there = offset + length <= len(buffer)
    found = frames_at(buffer, offset, np.where(is_there, length, 0).astype(np.int32))
    is_good = checksums_are_good(buffer, decode_frames(buffer, found, CHECKSUM_COLUMNS))
    return np.where(is_good, INTACT, DAMAGED).astype(np.int8)


def _firsts(ordered: Ints) -> npt.NDArray[np.intp]:
    """Index of the first of each value in an ascending column."""
    return np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1)) if len(ordered) else np.empty(0, np.intp)


def _reduced(how: np.ufunc, values: npt.NDArray[Any], first: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    return np.asarray(how.reduceat(values, first)) if len(first) else values[:0]


def _joined(parts: Sequence[Samples]) -> Samples:
    columns = {
        column.name: np.concatenate([getattr(part, column.name) for part in (_NOTHING, *parts)])
        for column in dataclasses.fields(Samples)
    }
    return Samples(**columns)


_INTS, _MASK = np.empty(0, np.int64), np.empty(0, np.bool_)
_NOTHING = Samples(
    peer=_INTS,
    sent_ns=_INTS,
    arrive_ns=_INTS,
    copies=_INTS,
    length=_INTS,
    is_multicast=_MASK,
    is_near=_MASK,
    damage=np.empty(0, np.int8),
)
