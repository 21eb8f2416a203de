"""Run directories made frame by frame, with figures known before the analysis computes them."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from analysis.checks import oracle_views
from analysis.checks.oracle import raw
from analysis.checks.properties import Incarnation, Incarnations
from collector.pcapng import PcapngWriter, Port
from collector.records import PROTOCOL_PORT, TRACE_MAC, TRACE_PORT, Frames, PortDirection
from node.trace import MAX_RECORDS, Event, Level, Record, encode_trace
from node.wire import Flag, Kind, Message, encode_datagram
from tests.collector.captures import checksum
from topologies import load
from topologies.dump import as_json, changed_fields
from topologies.model import MULTICAST_GROUP, Direction, Node, Topology

GROUP = 0xDEADBEEF
START_NS = 1_000_000_000_000
"""CLOCK_MONOTONIC at which the workload starts."""
CLOCK_OFFSET_NS = 1_700_000_000_123_456_789

FOUR_NODES = "name: four\npartitions:\n  p1: {nodes: 4}\n"


@dataclass(frozen=True)
class Sighting:
    """One frame at one switch port. `time_ns`: CLOCK_MONOTONIC."""

    time_ns: int
    port: int
    direction: PortDirection
    data: bytes


@dataclass
class MadeRun:
    """A run that is built call by call and then written. All times are CLOCK_MONOTONIC."""

    topology_text: str = FOUR_NODES
    sightings: list[Sighting] = field(default_factory=list)
    records: dict[tuple[int, int], list[Record]] = field(default_factory=dict)
    faults: list[dict[str, Any]] = field(default_factory=list)
    manifest: dict[str, Any] = field(default_factory=dict)
    transmissions: dict[int, int] = field(default_factory=dict)
    traffic: list[tuple[Kind, int]] = field(default_factory=list)
    """Kind and length of every protocol frame put on the wire."""
    missing_trace: set[tuple[int, int]] = field(default_factory=set)
    """Incarnations whose second trace datagram is lost."""
    trace_after_ns: int = 1000
    """Time from the latest record of a trace datagram until it is on the wire."""

    def __post_init__(self) -> None:
        self.topology = load.loads(self.topology_text)
        self.nodes = list(self.topology.nodes())

    def datagram(
        self,
        sent_ns: int,
        sender: int,
        arrivals: Mapping[int, Sequence[int]],
        *,
        to: int | None = None,
        is_near: bool = False,
        kind: Kind = Kind.RELIABLE_DATA,
        inner: Kind = Kind.APPLICATION,
        flags: int = 0,
        payload: bytes = b"x" * 100,
    ) -> None:
        """One datagram sent at `sent_ns` that arrives at each member of `arrivals` at those times. It is addressed to
        all, to the sender's partition (`is_near`), or to one member (`to`).
        """
        self.transmissions[sender] = self.transmissions.get(sender, 0) + 1
        number = self.transmissions[sender]
        message = Message(
            kind=kind, origin=sender, incarnation=1, seq=number, flags=flags, inner=inner, payload=payload
        )
        body = encode_datagram(group=GROUP, sender=sender, sender_incarnation=1, transmission=number, message=message)
        receiver = None if to is None else self.nodes[to]
        data = udp_frame(self.nodes[sender], receiver, PROTOCOL_PORT, body)
        if is_near:
            data = near_frame(self.nodes[sender], self.topology, PROTOCOL_PORT, body)
        if receiver is not None and receiver.partition != self.nodes[sender].partition:
            data = _mac(self.topology.partition(self.nodes[sender].partition).router_mac) + data[6:]
        self.traffic.append((kind, len(data)))
        self.sightings.append(Sighting(sent_ns, sender, PortDirection.INBOUND, data))
        for member, times in arrivals.items():
            self.sightings += [Sighting(at_ns, member, PortDirection.OUTBOUND, data) for at_ns in times]

    def note(self, member: int, event: Event, at_ns: int, *, recorder: int = 1, **fields: int) -> None:
        """One trace record. A STOP tells the number of submissions on record unless `value` is another."""
        if event is Event.STOP:
            told = sum(r.event is Event.SUBMIT for r in self.records.get((member, recorder), ()))
            fields = {"value": told} | fields
        record = Record(event=event, at_ns=at_ns, clock_ns=at_ns, **fields)
        self.records.setdefault((member, recorder), []).append(record)

    def submit(self, member: int, number: int, at_ns: int, *, size: int = 100) -> None:
        self.note(member, Event.SUBMIT, at_ns, origin=member, incarnation=1, number=number, size_bytes=size)

    def deliver(self, member: int, origin: int, number: int, at_ns: int, *, level: Level = Level.AGREED) -> None:
        delivered = sum(r.event is Event.DELIVER for r in self.records[member, 1])
        submitted = (r for r in self.records.get((origin, 1), ()) if r.event is Event.SUBMIT and r.number == number)
        size = next((r.size_bytes for r in submitted), 100)
        named = {"detail": level, "origin": origin, "incarnation": 1, "number": number}
        self.note(member, Event.DELIVER, at_ns, **named, value=delivered + 1, size_bytes=size)

    def tell(self, history: Mapping[Incarnation, Sequence[oracle_views.Record]]) -> Incarnations:
        """The trace records of this history, from the start of the workload. Returns them as the checks read them."""
        shifted = {one: [r._replace(at_ns=START_NS + r.at_ns) for r in records] for one, records in history.items()}
        for (member, recorder), records in shifted.items():
            for r in records:
                named = {"origin": r.message[0], "incarnation": r.message[1], "number": r.message[2]}
                more = {"detail": r.detail, "extra": r.extra, "value": r.value}
                self.note(member, r.event, r.at_ns, recorder=recorder, **named, **more)
        return raw(shifted)

    def write(self, path: Path, *, change: Callable[[dict[str, Any]], None] | None = None) -> Path:
        """Make the run directory at `path`."""
        path.mkdir(parents=True, exist_ok=True)
        (path / "topology.yaml").write_text(self.topology_text)
        (path / "experiment.yaml").write_text("name: made\n")
        (path / "faults.jsonl").write_text("".join(json.dumps(line) + "\n" for line in self.faults))
        manifest = self._manifest() | self.manifest
        if change is not None:
            change(manifest)
        (path / "manifest.json").write_text(json.dumps(manifest))
        self._write_capture(path / "capture.pcapng")
        return path

    @property
    def frames(self) -> int:
        """Number of frames of the capture."""
        return len(self.sightings) + len(list(self._trace_frames()))

    def _manifest(self) -> dict[str, Any]:
        last_ns = max((s.time_ns for s in self.sightings), default=START_NS)
        last_ns = max([last_ns, *(r.at_ns for records in self.records.values() for r in records)])
        return {
            "format": 1,
            "run": "made/1",
            "status": "complete",
            "invalid": [],
            "group": GROUP,
            "promises": ["validity", "agreement", "integrity", "fifo", "total_order"],
            "expect": [],
            "clock": {"monotonic_ns": 5, "realtime_ns": 5 + CLOCK_OFFSET_NS},
            "phases": {"start_ns": START_NS, "load_end_ns": last_ns, "drained_ns": last_ns, "end_ns": last_ns + 1},
            "asked": {
                str(n.name): {d.value: as_json(changed_fields(n.impairment(d))) for d in Direction} for n in self.nodes
            },
            "capture": {"frames": self.frames, "kernel_dropped_frames": 0, "complete": True},
            "faults": len(self.faults),
            "health": {"cpu_busy_ratio": 0.25, "lag_max_ns": 1_500_000},
        }

    def _write_capture(self, path: Path) -> None:
        ports = [Port(ifindex=n.port_ifindex, name=str(n.name), mac=n.mac) for n in self.nodes]
        sightings = sorted([*self.sightings, *self._trace_frames()], key=lambda s: s.time_ns)
        writer = PcapngWriter(path, ports, comment=json.dumps({"run": "made/1", "group": GROUP}))
        for at in range(0, len(sightings), 1000):
            buffer, frames = _columns(sightings[at : at + 1000])
            writer.write(buffer, frames)
        writer.close()

    def _trace_frames(self) -> Iterable[Sighting]:
        for (member, incarnation), records in self.records.items():
            for place, (at, part) in enumerate(_datagrams(records)):
                if place == 1 and (member, incarnation) in self.missing_trace:
                    continue
                body = encode_trace(group=GROUP, node=member, node_incarnation=incarnation, first=at + 1, records=part)
                data = trace_frame(self.nodes[member], body)
                yield Sighting(max(r.at_ns for r in part) + self.trace_after_ns, member, PortDirection.INBOUND, data)


def _datagrams(records: Sequence[Record]) -> Iterator[tuple[int, Sequence[Record]]]:
    """Records of each trace datagram, and their place: as in nodes, a submission is on the wire at once."""
    begin = 0
    for end, record in enumerate(records, start=1):
        if record.event is Event.SUBMIT or end - begin == MAX_RECORDS or end == len(records):
            yield begin, records[begin:end]
            begin = end


def udp_frame(sender: Node, receiver: Node | None, port: int, body: bytes) -> bytes:
    """A datagram to a node, or to the group."""
    mac = bytes.fromhex("01005e4d0001") if receiver is None else _mac(receiver.mac)
    ip = MULTICAST_GROUP if receiver is None else receiver.ip
    return _frame(mac, _mac(sender.mac), sender.ip, ip, port, body)


def near_frame(sender: Node, topology: Topology, port: int, body: bytes) -> bytes:
    """A datagram to the group of the sender's partition."""
    partition = topology.partition(sender.partition)
    mac = bytes.fromhex("01005e4d01") + bytes([partition.index])
    return _frame(mac, _mac(sender.mac), sender.ip, partition.multicast_group, port, body)


def trace_frame(sender: Node, body: bytes) -> bytes:
    return _frame(_mac(TRACE_MAC), _mac(sender.mac), sender.ip, "10.1.255.253", TRACE_PORT, body)


def igmp_frame(sender: Node) -> bytes:
    """The frame that a kernel sends when a socket joins the group."""
    header = struct.pack(">BBHHHBBH4s4s", 0x46, 0, 32, 0, 0, 1, 2, 0, _ip(sender.ip), _ip("224.0.0.22"))
    return (
        bytes.fromhex("01005e000016") + _mac(sender.mac) + b"\x08\x00" + header + b"\x94\x04\0\0" + b"\x22" + b"\0" * 7
    )


def _frame(dst: bytes, src: bytes, src_ip: str, dst_ip: str, port: int, body: bytes) -> bytes:
    length = 28 + len(body)
    header = struct.pack(">BBHHHBBH4s4s", 0x45, 0, length, 0, 0, 8, 17, 0, _ip(src_ip), _ip(dst_ip))
    header = header[:10] + struct.pack(">H", checksum(header)) + header[12:]
    udp = struct.pack(">HHH", port, port, 8 + len(body))
    pseudo = header[12:] + struct.pack(">HH", 17, 8 + len(body))
    return dst + src + b"\x08\x00" + header + udp + struct.pack(">H", checksum(pseudo + udp + body) or 0xFFFF) + body


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def _ip(text: str) -> bytes:
    return bytes(int(part) for part in text.split("."))


def _columns(sightings: Sequence[Sighting]) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], Frames]:
    lengths = np.array([len(s.data) for s in sightings], np.int32)
    buffer = np.frombuffer(b"".join(s.data for s in sightings), np.uint8)
    return buffer, Frames(
        time_ns=np.array([s.time_ns + CLOCK_OFFSET_NS for s in sightings], np.int64),
        interface=np.array([s.port for s in sightings], np.int32),
        direction=np.array([int(s.direction) for s in sightings], np.int8),
        length=lengths,
        captured=lengths,
        offset=np.concatenate(([0], np.cumsum(lengths)[:-1])).astype(np.int64),
        stop=len(buffer),
    )


@dataclass(frozen=True)
class Truth:
    """True latencies, arrivals and losses of a run made by `ordered`."""

    latency_ns: dict[tuple[int, int, int], int]
    """By member, origin and number."""
    arrivals: dict[int, int]
    """Datagrams that reached each member."""
    lost: dict[int, int]


def ordered(
    run: MadeRun,
    *,
    messages: int = 200,
    every_ns: int = 5_000_000,
    delay_ns: Callable[[int, int], int] = lambda sender, receiver: 100_000,
    loss: Mapping[int, float] | None = None,
    seed: int = 1,
) -> Truth:
    """A workload in total order: members take turns, every member delivers every message in the order of submission.

    `delay_ns` of each pair; `loss`: part of the datagrams lost on the way to each member (delivered all the same, as
    after a retransmission, which is not recorded).
    """
    rng = random.Random(seed)
    members = range(len(run.nodes))
    for member in members:
        run.note(member, Event.START, START_NS - 1_000_000)
    truth = Truth({}, dict.fromkeys(members, 0), dict.fromkeys(members, 0))
    for turn in range(messages):
        origin, number = turn % len(run.nodes), turn // len(run.nodes) + 1
        at_ns = START_NS + turn * every_ns
        run.submit(origin, number, at_ns)
        arrivals: dict[int, list[int]] = {}
        for member in members:
            arrive_ns = at_ns + 20_000 + (0 if member == origin else delay_ns(origin, member))
            latency_ns = arrive_ns - at_ns + rng.randrange(1000, 50_000)
            truth.latency_ns[member, origin, number] = latency_ns
            run.deliver(member, origin, number, at_ns + latency_ns)
            if member == origin:
                continue
            if rng.random() < (loss or {}).get(member, 0.0):
                truth.lost[member] += 1
            else:
                truth.arrivals[member] += 1
                arrivals[member] = [arrive_ns]
        run.datagram(at_ns + 20_000, origin, arrivals)
    end_ns = START_NS + messages * every_ns + 1_000_000_000
    for member in members:
        run.note(member, Event.DRAIN, end_ns)
        run.note(member, Event.STOP, end_ns + 1_000_000, detail=1, value=messages // len(run.nodes))
    return truth


__all__ = ["Direction", "Flag", "Kind", "MadeRun", "Sighting", "Truth", "igmp_frame", "ordered", "udp_frame"]
