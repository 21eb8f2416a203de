"""Traffic of a run with any program: conversations, silences, TCP's cost, and most frequent ends of services; from the
capture, the topology and the faults alone. Parts of section `traffic` of summary.json (docs/foreign.md).

The pass over the capture makes the counts (analysis.traffic.source). If there are too many conversations, as in a
hostile capture, Spark counts again and keeps the greatest. The remaining data is small: analysis.traffic.flows and
analysis.traffic.faults process it in plain Python. At most MAX_CONVERSATIONS are listed and the rest is counted.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the usual name)

from analysis.capture.source import CaptureState
from analysis.inputs import RunInputs
from analysis.network.addresses import ip_number, mac_number
from analysis.traffic import faults as traffic_faults
from analysis.traffic import flows as traffic_talk
from analysis.traffic import source as traffic_source
from analysis.traffic import tcp as traffic_tcp
from analysis.traffic.flows import PROTOCOLS, Conversation, Count, Rows, Service, Talk
from analysis.traffic.source import KEYS, MAC, NOT_IP, TCP, Plan

MAX_CONVERSATIONS: Final = 100
MAX_MIDDLES: Final = 200
MAX_PHASES: Final = 40
MIDDLE_SERVICES: Final = 4
MAX_ROWS: Final = 200_000
"""Most counts of conversations and spans in this process."""
WIDTH_NS: Final = 100_000_000
"""Least length of a span."""
MAX_SPANS: Final = 1000
MAX_CELLS: Final = 200_000
"""Most spans times ports: a long run of many nodes has longer spans."""
_PAIR: Final = ("low", "high", "protocol", "port", "is_cast")

NOTHING: Final[Mapping[str, Any]] = {
    "span_s": None,
    "nodes": [],
    "conversations": [],
    "conversations_left_out": 0,
    "wire_bytes_left_out": 0,
    "tcp": None,
    "phases": [],
    "middles": [],
    "faults": [],
    "silences": [],
    "sides": [],
}
"""Traffic of a run without frames."""


class PortTraffic(NamedTuple):
    """Frames at one port in one span; unlike a source address, the port cannot be forged."""

    interface: int
    arrived: bool
    span: int
    frames: int
    wire_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Results:
    """Results of the queries. `found`: the conversations that are kept, the greatest first."""

    found: Sequence[Conversation]
    by_node: Sequence[PortTraffic]
    left_out: int
    bytes_left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Traffic of a run. `summary`: the keys of NOTHING. `conversations`, `nodes`: rows of the tables `conversations`
    and `node_series` (analysis.schema).
    """

    summary: dict[str, Any]
    conversations: Rows
    nodes: Rows


class Measurement:
    """Measurement of the traffic: `plan` is the input of the counting (traffic_source.Sums) in the pass over the
    capture; `of` makes the results from the counts.
    """

    def __init__(
        self,
        inputs: RunInputs,
        capture: CaptureState,
        *,
        start_ns: int,
        spark: SparkSession | None = None,
        max_rows: int = MAX_ROWS,
    ) -> None:
        """`start_ns`: of the workload, on the monotonic clock. `spark`: for TCP, and for more than `max_rows`
        conversations and spans.
        """
        self._spark = spark
        self.inputs = inputs
        self.max_rows = max_rows
        self.start_ns = start_ns
        self.offset_ns = inputs.manifest.clock_offset_ns
        self.first_ns, self.last_ns = (capture.first_ns or 0) - self.offset_ns, (capture.last_ns or 0) - self.offset_ns
        self.names = _names(inputs)
        nodes = {str(node.name): node for node in inputs.topology.nodes()}
        self.owners = [nodes.get(name) for name in capture.interface_names]
        self.width_ns = _width_ns(self.last_ns - self.first_ns, len(self.owners))
        self.lasting_faults = traffic_faults.lasting_faults(inputs.faults)
        self.edges_ns = self._edges()

    @cached_property
    def plan(self) -> Plan:
        return Plan(
            edges_ns=tuple(_clamped(edge + self.offset_ns) for edge in self.edges_ns),
            ports=tuple((0, 0) if node is None else (ip_number(node.ip), mac_number(node.mac)) for node in self.owners),
        )

    def of(self, counted: pa.Table) -> Traffic:
        """Traffic from counts. `counted`: SPANS with one row for each key, or more than `max_rows`. For TCP the capture
        is read again.
        """
        # Nearly every run has few conversations, which all fit here. Spark adds up those of a hostile capture.
        results = self._few(counted.to_pylist()) if counted.num_rows <= self.max_rows else self._many(self._counted())
        tcp = self._tcp(results.found)
        return Traffic(
            summary=self._summary(results, tcp),
            conversations=self._conversation_rows(results.found),
            nodes=self._node_rows(results.by_node),
        )

    def _few(self, rows: Rows) -> _Results:
        totals: Counter[tuple[Any, ...]] = Counter()
        by_node: dict[tuple[int, bool, int], list[int]] = defaultdict(lambda: [0, 0])
        for row in rows:
            seen = by_node[row["interface"], row["arrived"], row["span"]]
            seen[0] += row["frames"]
            seen[1] += row["wire_bytes"]
            if row["arrived"]:
                totals[_pair(row)] += row["wire_bytes"]
        kept = sorted(totals, key=lambda pair: (-totals[pair], pair))[:MAX_CONVERSATIONS]
        wanted = set(kept)
        counts = [self._count(row) for row in rows if _pair(row) in wanted]
        return _Results(
            found=traffic_talk.conversations(counts),
            by_node=[PortTraffic(*key, *seen) for key, seen in by_node.items()],
            left_out=len(totals) - len(kept),
            bytes_left_out=sum(totals.values()) - sum(totals[pair] for pair in kept),
        )

    def _many(self, counted: DataFrame) -> _Results:
        kept, left_out, bytes_left_out = self._totals(counted)
        return _Results(
            found=traffic_talk.conversations(self._counts(counted, kept)),
            by_node=self._by_node(counted),
            left_out=left_out,
            bytes_left_out=bytes_left_out,
        )

    # --- spans

    def _edges(self) -> tuple[int, ...]:
        """Beginnings of spans: a regular grid from the start of the workload, and each beginning and end of a fault."""
        first = (self.first_ns - self.start_ns) // self.width_ns
        last = (self.last_ns - self.start_ns) // self.width_ns
        grid = {self.start_ns + place * self.width_ns for place in range(first, min(last, first + 2 * MAX_SPANS) + 1)}
        return tuple(sorted(grid | {at for at in self._struck() if self.first_ns <= at <= self.last_ns}))

    def _begin_ns(self, span: int) -> int:
        """Beginning of the grid's span that contains this one, on the monotonic clock."""
        edge_ns = self.edges_ns[max(0, min(span, len(self.edges_ns)) - 1)]
        return self.start_ns + (edge_ns - self.start_ns) // self.width_ns * self.width_ns

    # --- queries

    @property
    def spark(self) -> SparkSession:
        assert self._spark is not None, "TCP and very many conversations are counted by Spark"
        return self._spark

    def _read(self, table: str) -> DataFrame:
        self.spark.dataSource.register(traffic_source.TrafficSource)
        plan = self.plan.encoded()
        reader = self.spark.read.format(traffic_source.FORMAT).option("table", table).option("plan", plan)
        parts = self.spark.sparkContext.defaultParallelism
        return reader.option("parts", parts).load(str(self.inputs.capture_path))

    def _counted(self) -> DataFrame:
        return (
            self._read("spans")
            .groupBy(*KEYS)
            .agg(*_added())
            .withColumns({"low": F.least("source", "target"), "high": F.greatest("source", "target")})
        )

    def _totals(self, counted: DataFrame) -> tuple[list[Row], int, int]:
        """The greatest conversations, and the number and bytes of those left out."""
        seen = Observation("conversations")
        totals = (
            counted.where("arrived")
            .groupBy(*_PAIR)
            .agg(F.sum("wire_bytes").alias("total_bytes"))
            .observe(seen, F.count("*").alias("count"), F.sum("total_bytes").alias("wire_bytes"))
        )
        kept = totals.orderBy(F.desc("total_bytes"), *_PAIR).limit(MAX_CONVERSATIONS).collect()
        kept_bytes = sum(row["total_bytes"] for row in kept)
        return kept, seen.get["count"] - len(kept), (seen.get["wire_bytes"] or 0) - kept_bytes

    def _counts(self, counted: DataFrame, kept: Sequence[Row]) -> list[Count]:
        if not kept:
            return []
        wanted = self.spark.createDataFrame([tuple(row[name] for name in _PAIR) for row in kept], _PAIR_SCHEMA)
        columns = ("arrived", "source", "target", "protocol", "port", "is_cast", "is_answer", "span")
        rows = (
            counted.join(F.broadcast(wanted), on=list(_PAIR), how="left_semi")
            .groupBy(*columns)
            .agg(*_added())
            .toArrow()
        )
        return [self._count(row) for row in rows.to_pylist()]

    def _count(self, row: Mapping[str, Any]) -> Count:
        source = self.name(row["source"])
        a, b = sorted((source, self.name(row["target"])))
        return Count(
            talk=Talk(a, b, service_of(row["protocol"], row["port"]), row["is_cast"]),
            source=source,
            arrived=row["arrived"],
            is_answer=row["is_answer"],
            span=row["span"],
            frames=row["frames"],
            wire_bytes=row["wire_bytes"],
            first_ns=row["first_ns"] - self.offset_ns,
            last_ns=row["last_ns"] - self.offset_ns,
        )

    def _by_node(self, counted: DataFrame) -> list[PortTraffic]:
        figures = [F.sum(name).alias(name) for name in ("frames", "wire_bytes")]
        return [PortTraffic(*row) for row in counted.groupBy("interface", "arrived", "span").agg(*figures).collect()]

    def _tcp(self, found: Sequence[Conversation]) -> traffic_tcp.Measured | None:
        if not any(one.talk.service.protocol == PROTOCOLS[TCP] for one in found):
            return None
        edges = [_clamped(edge + self.offset_ns) for edge in self._phase_edges()]
        return traffic_tcp.measure(self._read("segments"), edges)

    def _phase_edges(self) -> list[int]:
        """Times at which the first faults began and ended."""
        return sorted(self._struck())[:MAX_PHASES]

    def _struck(self) -> set[int]:
        """Beginnings and ends of lasting faults."""
        return {at for fault in self.lasting_faults for at in (fault.from_ns, fault.until_ns) if at is not None}

    # --- results

    def name(self, address: int) -> str:
        """Name of the node with this address, else the address itself."""
        return self.names.get(address) or address_text(address)

    def _summary(
        self,
        results: _Results,
        tcp: traffic_tcp.Measured | None,
    ) -> dict[str, Any]:
        found = results.found
        end_ns = min(self.last_ns, self.inputs.manifest.phases.load_end_ns or self.last_ns)
        seconds_s = max(0, self.last_ns - self.first_ns) / 1e9
        entries = traffic_talk.entries(found, start_ns=self.start_ns, seconds_s=seconds_s, width_ns=self.width_ns)
        by_pair = {} if tcp is None else {self._ends(pair): one for pair, one in tcp.pairs.items()}
        for entry in entries:
            is_tcp = entry["protocol"] == PROTOCOLS[TCP]
            entry["tcp"] = _tcp_entry(by_pair.get((entry["a"], entry["b"], entry["port"])) if is_tcp else None)
        inputs = traffic_faults.FaultInputs(
            network=self.inputs.network,
            nodes=self._talkers(found),
            start_ns=self.start_ns,
            end_ns=end_ns,
            least_ns=self.width_ns,
        )
        return {
            "span_s": self.width_ns / 1e9,
            "nodes": self._nodes(results.by_node),
            "conversations": entries,
            "conversations_left_out": results.left_out,
            "wire_bytes_left_out": results.bytes_left_out,
            "tcp": None if tcp is None else _tcp_entry(tcp.whole),
            "phases": [] if tcp is None else self._phases(tcp),
            "middles": self._most_frequent_ends(found),
            **traffic_faults.section(found, self.inputs.faults, inputs),
        }

    def _ends(self, pair: tuple[int, int, int]) -> tuple[str, str, int]:
        a, b = sorted(map(self.name, pair[:2]))
        return a, b, pair[2]

    def _phases(self, tcp: traffic_tcp.Measured) -> Rows:
        """TCP's cost between one change of the network and the next, with the faults in force."""
        edges = [self.first_ns, *self._phase_edges(), self.last_ns]
        rows: Rows = []
        for place, (from_ns, until_ns) in enumerate(pairwise(edges)):
            in_force = [
                fault.number
                for fault in self.lasting_faults
                if fault.from_ns <= from_ns and (fault.until_ns is None or fault.until_ns >= until_ns)
            ]
            span = {"from_s": (from_ns - self.start_ns) / 1e9, "until_s": (until_ns - self.start_ns) / 1e9}
            rows.append({**span, "faults": in_force, "tcp": _tcp_entry(tcp.phases.get(place))})
        return rows

    def _talkers(self, found: Sequence[Conversation]) -> list[str]:
        """Nodes among the ends of the listed conversations, in the topology's order."""
        ends = {end for one in found for end in (one.talk.a, one.talk.b)}
        return [str(node.name) for node in self.inputs.topology.nodes() if str(node.name) in ends]

    def _nodes(self, by_node: Sequence[PortTraffic]) -> Rows:
        totals: dict[str, dict[str, Any]] = {}
        for row in by_node:
            node = self._owner(row.interface)
            if node is not None:
                _add(row, totals.setdefault(node, dict.fromkeys(_NODE_FIGURES, 0)))
        names = (str(node.name) for node in self.inputs.topology.nodes())
        return [{"node": name, **totals[name]} for name in names if name in totals]

    def _owner(self, interface: int) -> str | None:
        node = self.owners[interface] if 0 <= interface < len(self.owners) else None
        return None if node is None else str(node.name)

    def _most_frequent_ends(self, found: Sequence[Conversation]) -> Rows:
        def time_of(span: int) -> int:
            return self._begin_ns(span) - self.start_ns

        stretches = traffic_talk.most_frequent_ends(found, time_of, MIDDLE_SERVICES)[:MAX_MIDDLES]
        return [
            {
                "protocol": one.service.protocol,
                "port": one.service.port,
                "node": one.node,
                "from_s": one.from_ns / 1e9,
                "until_s": one.until_ns / 1e9,
                "share": one.share,
                "peers": one.peers,
            }
            for one in stretches
        ]

    def _t_s(self, span: int) -> float:
        return round((self._begin_ns(span) - self.start_ns) / 1e9, 6)

    def _conversation_rows(self, found: Sequence[Conversation]) -> Rows:
        rows: dict[tuple[Talk, float], dict[str, Any]] = {}
        for one in found:
            for span, (frames, wire_bytes) in sorted(one.spans.items()):
                t_s = self._t_s(span)
                about = {"t_s": t_s, **traffic_talk.named(one.talk), "frames": 0, "wire_bytes": 0}
                row = rows.setdefault((one.talk, t_s), about)
                row["frames"] += frames
                row["wire_bytes"] += wire_bytes
        return list(rows.values())

    def _node_rows(self, by_node: Sequence[PortTraffic]) -> Rows:
        rows: dict[tuple[str, float], dict[str, Any]] = {}
        for row in sorted(by_node, key=lambda row: (row.interface, row.span)):
            node, t_s = self._owner(row.interface), self._t_s(row.span)
            if node is not None:
                nothing = {"t_s": t_s, "node": node, **dict.fromkeys(_NODE_FIGURES, 0)}
                _add(row, rows.setdefault((node, t_s), nothing))
        return list(rows.values())


_NODE_FIGURES: Final = ("sent_frames", "sent_bytes", "received_frames", "received_bytes")
_PAIR_SCHEMA: Final = "low long, high long, protocol int, port int, is_cast boolean"


def _add(row: PortTraffic, figures: dict[str, Any]) -> None:
    """Add the frames of a port to the figures of its node."""
    way = "received" if row.arrived else "sent"
    figures[f"{way}_frames"] += row.frames
    figures[f"{way}_bytes"] += row.wire_bytes


def _added() -> list[Column]:
    sums = [F.sum(name).alias(name) for name in ("frames", "wire_bytes")]
    return [*sums, F.min("first_ns").alias("first_ns"), F.max("last_ns").alias("last_ns")]


def _pair(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Values of the columns _PAIR."""
    low, high = sorted((row["source"], row["target"]))
    return low, high, row["protocol"], row["port"], row["is_cast"]


def service_of(protocol: int, port: int) -> Service:
    """Service of the protocol and port numbers of traffic_source.SPANS."""
    if protocol in PROTOCOLS:
        return Service(PROTOCOLS[protocol], port if port >= 0 else None)
    return Service(f"0x{protocol & 0xFFFF:04x}" if protocol & NOT_IP else f"ip {protocol}", port if port >= 0 else None)


def address_text(address: int) -> str:
    """Usual text of an address of traffic_source."""
    if address & MAC:
        text = f"{address & (MAC - 1):012x}"
        return ":".join(text[at : at + 2] for at in range(0, 12, 2))
    return str(ipaddress.IPv4Address(address & 0xFFFFFFFF))


def _tcp_entry(tcp: traffic_tcp.Tcp | None) -> dict[str, Any] | None:
    if tcp is None:
        return None
    ratio = tcp.retransmissions / tcp.segments if tcp.segments else None
    return {**tcp._asdict(), "retransmission_ratio": ratio}


def _names(inputs: RunInputs) -> dict[int, str]:
    """Names of nodes, by their IPv4 and their MAC addresses."""
    names: dict[int, str] = {}
    for node in inputs.topology.nodes():
        names[ip_number(node.ip)] = names[mac_number(node.mac) | MAC] = str(node.name)
    return names


def _width_ns(length_ns: int, ports: int) -> int:
    """Length of a span: whole tenths of a second, long enough that a table of all ports and spans stays small."""
    most = max(50, min(MAX_SPANS, MAX_CELLS // max(1, ports)))
    return WIDTH_NS * max(1, -(-max(0, length_ns) // (most * WIDTH_NS)))


def _clamped(time_ns: int) -> int:
    """A time within 64 bits: a hostile time stamp may have any value."""
    return max(-(2**63), min(2**63 - 1, time_ns))
