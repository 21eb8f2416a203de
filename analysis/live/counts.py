"""Figures of a growing capture: rates, latencies, dummies and losses of each node over the last seconds. In NumPy,
without Spark, from rows of the source's table `live`, batch by batch.

Time is that of the capture. The memory is bounded for any capture (docs/analysis.md): datagrams are kept for
`horizon_ns`, submissions and deliveries for MESSAGE_HORIZON_NS, at most MAX_PENDING of a kind. Then a datagram is
*settled*: it counts as lost at each addressed node that has not received it.

Network latency is from the sender's port to a receiver's, by the first copy; delivery latency from SUBMIT to DELIVER at
the highest level seen. Undone deliveries stay counted: these figures are estimates, `orderbed analyze` judges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analysis.capture.decode import CLASSES, class_of
from analysis.checks.synchrony import is_in
from analysis.network.addresses import MULTICAST_BIT
from analysis.network.pairing import reached_by
from collector.records import Event, Level, PortDirection
from topologies.model import Topology

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

SECOND_NS = 10**9
WINDOW_S = 5
HORIZON_NS = 2 * SECOND_NS
MESSAGE_HORIZON_NS = 60 * SECOND_NS
MAX_PENDING = 200_000
MAX_CELLS = 1 << 24
"""Most cells of the table of datagrams by receiving node."""
PER_OCTAVE = 32
BUCKETS = 31 * PER_OCTAVE
"""Buckets of a histogram, from a microsecond to half an hour."""

FIELDS = (
    *("sent", "sent_bytes", "received", "application", "dummy", "control", "retransmission"),
    *("submitted", "delivered", "offered", "lost"),
)
_FIELD = {name: place for place, name in enumerate(FIELDS)}
COLUMNS = (
    *("time_ns", "interface", "direction", "length", "eth_dst", "ip_dst", "is_protocol", "is_trace", "group"),
    *("sender", "sender_incarnation", "transmission", "flags"),
    *("event", "detail", "origin", "incarnation", "number", "at_ns"),
)
"""Columns of the table that are needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Quantiles of latencies in ms; None: there were none."""

    p50_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of one node, or of all together (`name` is empty), over the window. A ratio with denominator 0 is
    None.
    """

    name: str
    sent_per_s: float
    sent_bps: float
    received_per_s: float
    submitted_per_s: float
    delivered_per_s: float
    dummy_rate: float | None
    """Dummies among the datagrams that are neither control nor copies."""
    control_ratio: float | None
    retransmission_ratio: float | None
    loss_ratio: float | None
    """Lost part of the settled datagrams that were addressed to it."""
    network: Quantiles
    delivery: Quantiles
    view: int = 0
    """Number of the newest view that it has installed; 0: it recorded none. For all together: the greatest."""
    is_minority: bool = False
    """Whether it hears no quorum of its view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Figures at one moment. `since_s`: capture time since the first frame; `is_started`: there was a first frame."""

    is_started: bool
    since_s: float
    window_s: float
    frames: int
    """Total of the capture, as are the counts below."""
    records: int
    lost: int
    late: int
    unpaired: int
    total: Figures
    nodes: tuple[Figures, ...]

    def as_dict(self) -> dict[str, Any]:
        """Fields for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Owner of each capture interface."""

    names: tuple[str, ...]
    """Names of the nodes."""
    nodes: tuple[int, ...]
    """Node of each interface; -1: no node."""
    members: tuple[int, ...]
    """Member number of each node; -1: learned from its first datagram."""
    groups: tuple[frozenset[int], ...]
    """Sets of nodes that datagrams can be addressed to."""
    addresses: Mapping[int, int]
    """Index in `groups` of each known IPv4 address."""
    group: int | None = None
    """Protocol group of the run; None: any."""


def ports_of_run(topology: Topology, interfaces: Sequence[str], group: int) -> Ports:
    """Ports of the nodes of a run."""
    names = tuple(str(node.name) for node in topology.nodes())
    index = {name: place for place, name in enumerate(names)}
    meant: dict[int, set[int]] = {}
    for ip, receiver in reached_by(topology):
        meant.setdefault(ip, set()).add(receiver)
    groups = tuple(dict.fromkeys(frozenset(nodes) for nodes in meant.values()))
    place_of = {nodes: place for place, nodes in enumerate(groups)}
    return Ports(
        names=names,
        nodes=tuple(index.get(name, -1) for name in interfaces),
        members=tuple(range(len(names))),
        groups=groups,
        addresses={ip: place_of[frozenset(nodes)] for ip, nodes in meant.items()},
        group=group,
    )


def ports_of_capture(interfaces: Sequence[str]) -> Ports:
    """Ports of a capture without a run: each interface is a node, and multicasts are for all."""
    count = len(interfaces)
    return Ports(
        names=tuple(interfaces),
        nodes=tuple(range(count)),
        members=(-1,) * count,
        groups=(frozenset(range(count)),),
        addresses={},
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Columns of COLUMNS, and the node of each row's interface."""

    columns: Mapping[str, npt.NDArray[Any]]
    node: Ints

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.columns[name]

    def select(self, rows: Mask) -> _Rows:
        return _Rows({name: column[rows] for name, column in self.columns.items()}, self.node[rows])

    @property
    def size(self) -> int:
        return len(self.node)


class _Second:
    """Counts and histograms of one second of capture time."""

    def __init__(self, nodes: int) -> None:
        self.counts = np.zeros((nodes, len(FIELDS)), np.int64)
        self.network = np.zeros((nodes, BUCKETS), np.int32)
        self.delivery = np.zeros((nodes, BUCKETS), np.int32)


class Live:
    """Live figures of one capture: `take` adds new rows, `snapshot` gives the figures."""

    def __init__(self, ports: Ports, *, horizon_ns: int = HORIZON_NS, window_s: int = WINDOW_S) -> None:
        self.ports = ports
        self.horizon_ns = horizon_ns
        self.window_s = window_s
        self.newest_ns: int | None = None
        """The watermark: the latest time stamp so far."""
        self.rows = 0
        self._first_ns: int | None = None
        self._frames = self._records = self._late = self._unpaired = self._lost = 0
        self._level = -1
        self._nodes = np.array([*ports.nodes, -1], np.int64)
        self._members = np.array(ports.members, np.int64)
        self._seconds: dict[int, _Second] = {}
        count = len(ports.names)
        self._meant = np.zeros((len(ports.groups) + 1, count), np.bool_)
        for place, nodes in enumerate(ports.groups):
            self._meant[place, sorted(nodes)] = True
        self._datagrams = _Datagrams(count)
        self._messages = _Messages()
        self._views = np.zeros(count, np.int64)
        self._is_minority = np.zeros(count, np.bool_)

    def take(self, table: pa.Table) -> None:
        """Add new rows of the capture, in its order."""
        columns = {name: table[name].to_numpy() for name in COLUMNS}
        if not len(columns["time_ns"]):
            return
        interface = np.minimum(columns["interface"], len(self._nodes) - 1)
        rows = _Rows(columns, self._nodes[interface])
        self.rows += rows.size
        newest = int(rows["time_ns"].max())
        self.newest_ns = newest if self.newest_ns is None else max(self.newest_ns, newest)
        if self._first_ns is None:
            self._first_ns = int(rows["time_ns"].min())
        is_frame = rows["event"] == 0
        self._frames += int(is_frame.sum())
        self._records += int((~is_frame).sum())
        is_somebodys = rows.node >= 0
        self._take_frames(rows.select(is_frame & is_somebodys & ~rows["is_trace"]))
        is_told = ~is_frame & is_somebodys & self._is_ours(rows) & (rows["direction"] != PortDirection.OUTBOUND)
        self._take_records(rows.select(is_told))
        self._settle(self.newest_ns - self.horizon_ns)
        self._forget()

    def finish(self) -> None:
        """Settle all pending datagrams: no more rows will come."""
        self._settle(1 << 62)

    def snapshot(self, *, idle_ns: int = 0) -> Snapshot:
        """Figures of the window. `idle_ns`: time without new rows; the rates of a silent group fall."""
        now_ns = (self.newest_ns or 0) + idle_ns
        since_ns = now_ns - (self._first_ns or 0)
        window_s = min(max(since_ns / SECOND_NS, 0.001), float(self.window_s))
        # The current second is incomplete; the window ends with the present, so it is counted as it is.
        recent = self._summed(now_ns // SECOND_NS - self.window_s + 1, now_ns // SECOND_NS)
        settled_ns = now_ns - self.horizon_ns
        settled = self._summed(settled_ns // SECOND_NS - self.window_s, now_ns // SECOND_NS)
        elapsed_s = min(window_s, self.window_s - 1 + now_ns % SECOND_NS / SECOND_NS) or window_s
        figures = [
            replace(
                _figures(name, recent, settled.counts, slice(place, place + 1), elapsed_s),
                view=int(self._views[place]),
                is_minority=bool(self._is_minority[place]),
            )
            for place, name in enumerate(self.ports.names)
        ]
        return Snapshot(
            is_started=self._first_ns is not None,
            since_s=since_ns / SECOND_NS,
            window_s=elapsed_s,
            frames=self._frames,
            records=self._records,
            lost=self._lost,
            late=self._late,
            unpaired=self._unpaired + self._messages.fallen,
            total=replace(
                _figures("", recent, settled.counts, slice(None), elapsed_s), view=int(self._views.max(initial=0))
            ),
            nodes=tuple(figures),
        )

    # --- frames

    def _is_ours(self, rows: _Rows) -> Mask:
        group = self.ports.group
        return np.ones(rows.size, np.bool_) if group is None else np.asarray(rows["group"] == group)

    def _take_frames(self, rows: _Rows) -> None:
        is_arrival = rows["direction"] == PortDirection.OUTBOUND
        is_ours = rows["is_protocol"] & self._is_ours(rows)
        sent = rows.select(~is_arrival)
        self._count(sent, "sent")
        self._count(sent, "sent_bytes", weights=sent["length"])
        self._count(rows.select(is_arrival), "received")
        protocol = rows.select(~is_arrival & is_ours)
        codes = class_of(protocol["flags"])
        for code, name in enumerate(CLASSES):
            self._count(protocol.select(codes == code), name)
        self._learn(protocol)
        # Sent and received frames differ only at a port with directions.
        is_own = (protocol["direction"] == PortDirection.INBOUND) & (self._members[protocol.node] == protocol["sender"])
        self._offer(protocol.select(is_own))
        self._arrive(rows.select(is_arrival & is_ours))

    def _learn(self, protocol: _Rows) -> None:
        """Learn the member number of a port that has none: the sender of its first datagram."""
        for node in np.flatnonzero(self._members < 0).tolist():
            own = np.flatnonzero((protocol.node == node) & (protocol["direction"] == PortDirection.INBOUND))
            if len(own):
                self._members[node] = int(protocol["sender"][own[0]])

    def _offer(self, own: _Rows) -> None:
        known = self.ports.addresses
        nobody = len(self.ports.groups)
        addresses_seen, place = np.unique(own["ip_dst"], return_inverse=True)
        meant = np.array([known.get(int(ip), nobody) for ip in addresses_seen], np.int64)[place]
        if not known:
            meant = np.where(own["eth_dst"] & MULTICAST_BIT, 0, nobody)
        self._datagrams.offer(_datagram(own), own["time_ns"], own.node, meant)

    def _arrive(self, rows: _Rows) -> None:
        sent_ns, is_known, is_first = self._datagrams.arrive(_datagram(rows), rows.node)
        self._late += int((~is_known).sum())
        first = rows.select(is_first)
        self._measure(first["time_ns"], first.node, first["time_ns"] - sent_ns[is_first], "network")

    def _settle(self, before_ns: int) -> None:
        node_ns, node, meant, arrived = self._datagrams.settle(before_ns)
        if not len(node):
            return
        wanted = self._meant[meant]
        wanted[np.arange(len(node)), node] = False
        rows, receivers = np.nonzero(wanted)
        is_lost = arrived[rows, receivers] == 0
        self._lost += int(is_lost.sum())
        self._count_at(node_ns[rows], receivers, "offered")
        self._count_at(node_ns[rows[is_lost]], receivers[is_lost], "lost")

    # --- records

    def _take_records(self, rows: _Rows) -> None:
        event = rows["event"]
        installed = rows.select(event == Event.VIEW)
        np.maximum.at(self._views, installed.node, installed["number"])
        standing = rows.select((event == Event.MINORITY) | (event == Event.START))
        for row in np.argsort(standing["at_ns"], kind="stable").tolist():
            is_minority = standing["event"][row] == Event.MINORITY and standing["detail"][row] == 1
            self._is_minority[standing.node[row]] = is_minority
        submitted = rows.select(event == Event.SUBMIT)
        self._count(submitted, "submitted")
        delivered = rows.select(event == Event.DELIVER)
        level = int(delivered["detail"].max(initial=-1))
        if level > self._level and level <= max(Level):
            self._level = level
            self._messages.forget_deliveries()
            for second in self._seconds.values():
                second.delivery[:] = 0
                second.counts[:, _FIELD["delivered"]] = 0
        delivered = delivered.select(delivered["detail"] == self._level)
        self._count(delivered, "delivered")
        self._messages.submit(_message(submitted), submitted["at_ns"], submitted["time_ns"])
        self._messages.deliver(_message(delivered), delivered["at_ns"], delivered["time_ns"], delivered.node)
        time_ns, node, latency_ns = self._messages.pair()
        self._measure(time_ns, node, latency_ns, "delivery")
        assert self.newest_ns is not None
        self._messages.settle(self.newest_ns - MESSAGE_HORIZON_NS)

    # --- windows

    def _count(self, rows: _Rows, field: str, *, weights: npt.NDArray[Any] | None = None) -> None:
        self._count_at(rows["time_ns"], rows.node, field, weights=weights)

    def _count_at(self, time_ns: Ints, node: Ints, field: str, *, weights: npt.NDArray[Any] | None = None) -> None:
        for second, part in self._by_second(time_ns):
            own = None if weights is None else weights[part]
            counted = np.bincount(node[part], weights=own, minlength=len(self.ports.names))
            second.counts[:, _FIELD[field]] += counted.astype(np.int64)

    def _measure(self, time_ns: Ints, node: Ints, latency_ns: Ints, kind: str) -> None:
        octaves = np.log2(np.maximum(latency_ns, 1000) / 1000)
        bucket = np.minimum((octaves * PER_OCTAVE).astype(np.int64), BUCKETS - 1)
        for second, part in self._by_second(time_ns):
            histogram = second.network if kind == "network" else second.delivery
            np.add.at(histogram, (node[part], bucket[part]), 1)

    def _by_second(self, time_ns: Ints) -> list[tuple[_Second, npt.NDArray[np.intp]]]:
        """Rows of each second that is still within the window."""
        if not len(time_ns):
            return []
        numbers = np.asarray(time_ns) // SECOND_NS
        found = []
        for number in np.unique(numbers[numbers >= self._oldest]).tolist():
            second = self._seconds.get(number)
            if second is None:
                second = self._seconds[number] = _Second(len(self.ports.names))
            found.append((second, np.flatnonzero(numbers == number)))
        return found

    @property
    def _oldest(self) -> int:
        assert self.newest_ns is not None
        return (self.newest_ns - self.horizon_ns) // SECOND_NS - self.window_s - 1

    def _forget(self) -> None:
        for number in [number for number in self._seconds if number < self._oldest]:
            del self._seconds[number]

    def _summed(self, first: int, last: int) -> _Second:
        total = _Second(len(self.ports.names))
        for number, second in self._seconds.items():
            if first <= number <= last:
                total.counts += second.counts
                total.network += second.network
                total.delivery += second.delivery
        return total


class _Datagrams:
    """Datagrams in transit, by key (ascending), with a flag for each node that received one."""

    def __init__(self, nodes: int) -> None:
        self.limit = max(1, min(MAX_PENDING, MAX_CELLS // max(nodes, 1)))
        self.key = np.empty(0, np.int64)
        self.sent_ns = np.empty(0, np.int64)
        self.node = np.empty(0, np.int64)
        self.meant = np.empty(0, np.int64)
        self.arrived = np.empty((0, nodes), np.uint8)

    def offer(self, key: Ints, sent_ns: Ints, node: Ints, meant: Ints) -> None:
        """Add new datagrams; one that was added before is its sender's copy and counts once."""
        key, first = np.unique(key, return_index=True)
        is_new = ~is_in(key, self.key)
        key, first = key[is_new], first[is_new]
        order = np.argsort(np.concatenate([self.key, key]), kind="stable")
        self.key = np.concatenate([self.key, key])[order]
        self.sent_ns = np.concatenate([self.sent_ns, sent_ns[first]])[order]
        self.node = np.concatenate([self.node, node[first]])[order]
        self.meant = np.concatenate([self.meant, meant[first]])[order]
        fresh = np.zeros((len(key), self.arrived.shape[1]), np.uint8)
        self.arrived = np.concatenate([self.arrived, fresh])[order]

    def arrive(self, key: Ints, node: Ints) -> tuple[Ints, Mask, Mask]:
        """Time at which each was sent, whether it is known, and whether it is the first copy for that node."""
        is_known = is_in(key, self.key)
        place = np.searchsorted(self.key, key[is_known])
        _, first = np.unique(place * self.arrived.shape[1] + node[is_known], return_index=True)
        is_first_here = np.zeros(len(place), np.bool_)
        is_first_here[first] = True
        is_first_here &= self.arrived[place, node[is_known]] == 0
        self.arrived[place, node[is_known]] = 1
        sent_ns = np.zeros(len(key), np.int64)
        sent_ns[is_known] = self.sent_ns[place]
        is_first = np.zeros(len(key), np.bool_)
        is_first[is_known] = is_first_here
        return sent_ns, is_known, is_first

    def settle(self, before_ns: int) -> tuple[Ints, Ints, Ints, npt.NDArray[np.uint8]]:
        """Remove datagrams sent before `before_ns`, and the oldest beyond the limit: sent_ns, node, meant, arrived."""
        is_old = self.sent_ns < before_ns
        surplus = len(self.key) - int(is_old.sum()) - self.limit
        if surplus > 0:
            is_old |= self.sent_ns <= np.partition(self.sent_ns[~is_old], surplus - 1)[surplus - 1]
        old = self.sent_ns[is_old], self.node[is_old], self.meant[is_old], self.arrived[is_old]
        if is_old.any():
            self.key, self.sent_ns = self.key[~is_old], self.sent_ns[~is_old]
            self.node, self.meant, self.arrived = self.node[~is_old], self.meant[~is_old], self.arrived[~is_old]
        return old


class _Messages:
    """Submissions by key (ascending), and deliveries that wait for their submission: nodes send trace records with any
    delay.
    """

    def __init__(self) -> None:
        self.fallen = 0
        self._submits = np.empty((3, 0), np.int64)
        """Key, at_ns, time_ns."""
        self._delivers = np.empty((4, 0), np.int64)
        """Key, at_ns, time_ns, node."""

    def submit(self, key: Ints, at_ns: Ints, time_ns: Ints) -> None:
        merged = np.concatenate([self._submits, np.stack([key, at_ns, time_ns]).astype(np.int64)], axis=1)
        _, first = np.unique(merged[0], return_index=True)
        self._submits = merged[:, first]

    def deliver(self, key: Ints, at_ns: Ints, time_ns: Ints, node: Ints) -> None:
        fresh = np.stack([key, at_ns, time_ns, node]).astype(np.int64)
        self._delivers = np.concatenate([self._delivers, fresh], axis=1)

    def pair(self) -> tuple[Ints, Ints, Ints]:
        """Time, node and latency of the deliveries whose submission is known."""
        key, at_ns, time_ns, node = self._delivers
        is_known = is_in(key, self._submits[0])
        place = np.searchsorted(self._submits[0], key[is_known])
        latency_ns = at_ns[is_known] - self._submits[1][place]
        self._delivers = self._delivers[:, ~is_known]
        return time_ns[is_known], node[is_known], latency_ns

    def settle(self, before_ns: int) -> None:
        self._submits = _youngest(self._submits, before_ns)
        waiting = self._delivers.shape[1]
        self._delivers = _youngest(self._delivers, before_ns)
        self.fallen += waiting - self._delivers.shape[1]

    def forget_deliveries(self) -> None:
        self._delivers = self._delivers[:, :0]


def _youngest(columns: Ints, from_ns: int) -> Ints:
    """Columns from `from_ns` on, the youngest MAX_PENDING at most, in their order. Row 2 is the time."""
    kept = columns[:, columns[2] >= from_ns]
    surplus = kept.shape[1] - MAX_PENDING
    if surplus > 0:
        kept = kept[:, np.sort(np.argsort(kept[2], kind="stable")[surplus:])]
    return kept


def _datagram(rows: _Rows) -> Ints:
    sender, incarnation = rows["sender"].astype(np.int64), rows["sender_incarnation"].astype(np.int64)
    return np.asarray(sender << 48 | incarnation << 32 | rows["transmission"] & 0xFFFFFFFF)


def _message(rows: _Rows) -> Ints:
    origin, incarnation = rows["origin"].astype(np.int64), rows["incarnation"].astype(np.int64)
    return np.asarray(origin << 48 | incarnation << 32 | rows["number"] & 0xFFFFFFFF)


def _figures(name: str, recent: _Second, settled: Ints, rows: slice, seconds: float) -> Figures:
    counts = recent.counts[rows].sum(axis=0)
    of = {field: int(counts[place]) for field, place in _FIELD.items()}
    lost, offered = (int(settled[rows, _FIELD[field]].sum()) for field in ("lost", "offered"))
    protocol = of["application"] + of["dummy"] + of["control"] + of["retransmission"]
    return Figures(
        name=name,
        sent_per_s=of["sent"] / seconds,
        sent_bps=of["sent_bytes"] * 8 / seconds,
        received_per_s=of["received"] / seconds,
        submitted_per_s=of["submitted"] / seconds,
        delivered_per_s=of["delivered"] / seconds,
        dummy_rate=_ratio(of["dummy"], of["dummy"] + of["application"]),
        control_ratio=_ratio(of["control"], protocol),
        retransmission_ratio=_ratio(of["retransmission"], protocol),
        loss_ratio=_ratio(lost, offered),
        network=_quantiles(recent.network[rows].sum(axis=0)),
        delivery=_quantiles(recent.delivery[rows].sum(axis=0)),
    )


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _quantiles(histogram: npt.NDArray[Any]) -> Quantiles:
    total = np.cumsum(histogram)
    if not total[-1]:
        return Quantiles(p50_ms=None, p99_ms=None)
    p50, p99 = (int(np.searchsorted(total, ratio * int(total[-1]))) for ratio in (0.5, 0.99))
    return Quantiles(p50_ms=_middle_ms(p50), p99_ms=_middle_ms(p99))


def _middle_ms(bucket: int) -> float:
    middle: float = 2.0 ** ((bucket + 0.5) / PER_OCTAVE) / 1000
    return middle
