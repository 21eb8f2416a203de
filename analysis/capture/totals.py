"""Totals of a capture from any program: interfaces, times, frames, drops, protocols. One pass, NumPy, no Spark.

Frames of interfaces that are not Ethernet are counted but not decoded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.capture.decode import decode_frames
from analysis.capture.source import LINK_TYPES, sections_of
from analysis.errors import AnalysisError
from collector import index
from collector.blocks import BINARY_RESOLUTION, Interface, InterfaceStatistics
from collector.parse import Counts, frames_in, read_statistics
from collector.records import ETHERNET_LINK_TYPE, CaptureError, Frames, PortDirection
from collector.walk import Buffer

ETHERTYPES = {0x0800: "IPv4", 0x0806: "ARP", 0x86DD: "IPv6", 0x88CC: "LLDP", 0x8847: "MPLS", 0x88B5: "experimental"}
LEAST_ETHERTYPE = 0x0600
"""A smaller value is a length (IEEE 802.3)."""
IP_PROTOCOLS = {1: "ICMP", 2: "IGMP", 6: "TCP", 17: "UDP", 47: "GRE", 50: "ESP", 89: "OSPF", 132: "SCTP"}
UDP = 17
ETHERNET_BYTES = 14

_COLUMNS = ("ethertype", "ip_proto", "udp_src", "udp_dst", "is_protocol", "is_trace", "is_undecodable")


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceTotals:
    """Totals of one interface. `received` and `dropped` are the capturing program's counts; None: not stated."""

    name: str
    link_type: str
    snap_length: int | None
    resolution: str
    inbound: int
    outbound: int
    undirected: int
    bytes: int
    """Lengths on the wire."""
    received: int | None
    dropped: int | None

    @property
    def frames(self) -> int:
        return self.inbound + self.outbound + self.undirected


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolTotals:
    """Totals of the frames of one kind, named by the innermost protocol decoded."""

    name: str
    frames: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureTotals:
    """Totals of a whole capture. `problem` is empty when every block is whole."""

    path: str
    layout: str
    byte_order: str
    sections: int
    application: str
    comment: str
    file_bytes: int
    has_index: bool
    frames: int
    bytes: int
    cut_frames: int
    """Frames of which a snap length kept only a part."""
    damaged: int
    truncated: bool
    problem: str
    first_ns: int | None
    last_ns: int | None
    is_in_order: bool
    """No frame has an earlier time stamp than the one before it."""
    interfaces: tuple[InterfaceTotals, ...]
    protocols: tuple[ProtocolTotals, ...]


def totals(path: Path) -> CaptureTotals:
    """Scan a capture once. Raises AnalysisError when it is no capture or cannot be read."""
    try:
        size = path.stat().st_size
        if path.exists() and not path.is_file() and not path.is_dir():
            raise AnalysisError(f"{path}: is no regular file; write what comes out of it to one first")
        heads = sections_of(path)
        counts, protocols = Counts(heads), _Protocols()
        ports = [port for head in heads for port in head.interfaces.ports]
        is_ethernet = np.array([port.link_type == ETHERNET_LINK_TYPE for port in ports], np.bool_)
        statistics: dict[int, InterfaceStatistics] = {}
        for head in heads:
            for buffer, frames in frames_in(path, head):
                counts.add(frames)
                protocols.add(buffer, frames.select(is_ethernet[frames.interface]))
            statistics |= read_statistics(path, head)
    except CaptureError as error:
        raise AnalysisError(str(error)) from error
    except OSError as error:
        raise AnalysisError(f"{path}: the capture cannot be read ({error.strerror})") from error
    first = heads[0] if heads else None
    return CaptureTotals(
        path=str(path),
        layout="unknown" if first is None else first.interfaces.layout.value,
        byte_order="unknown" if first is None else {"<": "little", ">": "big"}[first.interfaces.byte_order],
        sections=len(heads),
        application="" if first is None else first.section.application,
        comment="" if first is None else first.section.comment,
        file_bytes=size,
        has_index=index.read(path) != index.NO_INDEX,
        frames=counts.frames,
        bytes=int(counts.wire_bytes.sum()),
        cut_frames=counts.cut,
        damaged=counts.damaged,
        truncated=first is None or counts.is_truncated,
        problem="cut off in its head" if first is None else counts.problem,
        first_ns=counts.first_ns,
        last_ns=counts.last_ns,
        is_in_order=counts.is_in_order,
        interfaces=tuple(_interfaces(ports, counts, statistics)),
        protocols=tuple(
            ProtocolTotals(name=name, frames=frames, bytes=protocols.bytes[name])
            for name, frames in protocols.frames.most_common()
        ),
    )


class _Protocols:
    """Frames and bytes by the name of their innermost protocol."""

    def __init__(self) -> None:
        self.frames: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def add(self, buffer: Buffer, frames: Frames) -> None:
        if not len(frames):
            return
        seen = decode_frames(buffer, frames, list(_COLUMNS))
        ours = np.select([seen["is_protocol"], seen["is_trace"], seen["is_undecodable"]], [1, 2, 3], 0)
        is_short = frames.captured < ETHERNET_BYTES
        port = np.minimum(seen["udp_src"], seen["udp_dst"])
        # Each field is shifted to count from 0; together they are the code of one protocol.
        code = np.where(is_short, 4, ours).astype(np.int64)
        code = code << 16 | seen["ethertype"]
        code = code << 9 | (seen["ip_proto"].astype(np.int64) + 1)
        code = code << 17 | (port.astype(np.int64) + 1)
        codes, place = np.unique(code, return_inverse=True)
        counts, lengths = np.bincount(place), np.bincount(place, weights=frames.length)
        for number, one in enumerate(codes.tolist()):
            name = _name(one >> 42, one >> 26 & 0xFFFF, (one >> 17 & 0x1FF) - 1, (one & 0x1FFFF) - 1)
            self.frames[name] += int(counts[number])
            self.bytes[name] += int(lengths[number])


def _name(what: int, ethertype: int, ip_protocol: int, port: int) -> str:
    if what:
        return _OURS[what - 1]
    if ip_protocol < 0:
        if ethertype < LEAST_ETHERTYPE:
            return "IEEE 802.3"
        return ETHERTYPES.get(ethertype, f"ethertype 0x{ethertype:04x}")
    name = IP_PROTOCOLS.get(ip_protocol, f"IP protocol {ip_protocol}")
    return f"{name} {port}" if ip_protocol == UDP and port >= 0 else name


_OURS = ("orderbed messages", "orderbed trace", "to an orderbed port, undecodable", "shorter than Ethernet")


def _interfaces(
    ports: Sequence[Interface], counts: Counts, statistics: dict[int, InterfaceStatistics]
) -> Iterator[InterfaceTotals]:
    for place, port in enumerate(ports):
        stated = statistics.get(place)
        frames = counts.by_direction[place]
        yield InterfaceTotals(
            name=port.name,
            link_type=LINK_TYPES.get(port.link_type, f"link type {port.link_type}"),
            snap_length=port.snap_length or None,
            resolution=_resolution(port.resolution),
            inbound=int(frames[PortDirection.INBOUND]),
            outbound=int(frames[PortDirection.OUTBOUND]),
            undirected=int(frames[PortDirection.UNKNOWN]),
            bytes=int(counts.wire_bytes[place]),
            received=None if stated is None else stated.received,
            dropped=None if stated is None else stated.dropped,
        )


def _resolution(code: int) -> str:
    known = {3: "ms", 6: "µs", 9: "ns"}
    if code & BINARY_RESOLUTION:
        return f"2^-{code & ~BINARY_RESOLUTION} s"
    return known.get(code, f"10^-{code} s")
