"""The contract between capture and analysis: names of the ports in a capture, and columns of a frame.

A capture is pcapng: one interface block per switch port, `if_name` = the node's name (`p1/n3`), `if_tsresol` 9. Each
frame's flags give its direction *seen from the switch port*: INBOUND (1) is a frame sent by the node, before any
impairment; OUTBOUND (2) is one that reaches the node, after it. The section header's comment is one JSON object: run
id, group, clock.

`collector.parse` turns a capture into columns. FRAME_ROW (fields of a frame in the capture), DECODED_ROW (fields of the
frame's bytes) and TRACE_ROW (one row per trace record) define their names, types and meaning; a test checks the parser
against them. The analysis need not import `node`: its enums and constants are exported again here.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from node.errors import DropReason
from node.trace import (
    APPLICATION_STAMP,
    MAX_RECORDS,
    RECORD,
    TRACE_DELAY_NS,
    TRACE_HEADER,
    TRACE_MAGIC,
    TRACE_VERSION,
    CallReport,
    EndReason,
    Event,
    GroupReport,
    Level,
    MutexReport,
    Notice,
    Timed,
    ViewReason,
)
from node.wire import ENVELOPE, LOCAL_KINDS, MESSAGE, WORD_SIZE, Field, Flag, Kind
from node.wire import MAGIC as PROTOCOL_MAGIC
from node.wire import VERSION as PROTOCOL_VERSION

__all__ = [
    "LOCAL_KINDS",
    "MAX_RECORDS",
    "PROTOCOL_MAGIC",
    "PROTOCOL_VERSION",
    "RECORD",
    "TRACE_DELAY_NS",
    "TRACE_MAGIC",
    "TRACE_VERSION",
    "WORD_SIZE",
    "CallReport",
    "DropReason",
    "EndReason",
    "Event",
    "Flag",
    "GroupReport",
    "Kind",
    "Level",
    "MutexReport",
    "Notice",
    "Timed",
    "ViewReason",
]
"""Names of `node` that others import from here."""

PROTOCOL_PORT = 7700
TRACE_PORT = 7701
TRACE_MAC = "01:80:c2:00:00:0e"
"""These three repeat values of `topologies.model`, which the collector does not import; a test checks that they are
equal.
"""

ETHERNET_LINK_TYPE = 1
NANOSECOND_RESOLUTION = 9
INDEX_SUFFIX = ".index"
"""Suffix of the index: that of `capture.pcapng` is `capture.pcapng.index`."""


class CaptureError(Exception):
    """A capture cannot be read or written; the text is one sentence for the user."""


class PortDirection(enum.IntEnum):
    """Values of the direction bits in the packet flags of pcapng."""

    UNKNOWN = 0
    """Direction in a capture that does not state it."""
    INBOUND = 1
    OUTBOUND = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frames:
    """Frames of one buffer as columns of equal length (FRAME_ROW), in the order of the capture.

    `stop` is the byte of the buffer after the last whole block, where reading can continue. `problem` is empty when all
    blocks of the range were whole, else it describes what is wrong with the block at `stop`; `truncated` is true when
    the buffer only ends inside that block (a capture that was cut off, or is still being written). `damaged` counts
    packet blocks left out because they contradict themselves.
    """

    time_ns: npt.NDArray[np.int64]
    interface: npt.NDArray[np.int32]
    direction: npt.NDArray[np.int8]
    length: npt.NDArray[np.int32]
    captured: npt.NDArray[np.int32]
    offset: npt.NDArray[np.int64]
    stop: int
    problem: str = ""
    truncated: bool = False
    damaged: int = 0

    def __len__(self) -> int:
        return len(self.offset)

    def select(self, rows: slice | npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Frames:
        """These rows only."""
        columns: dict[str, Any] = {column.name: getattr(self, column.name)[rows] for column in FRAME_ROW}
        return replace(self, **columns)


class Column(NamedTuple):
    """One column: its NumPy type (always signed or bool, because Spark has no unsigned types) and its meaning."""

    name: str
    dtype: type[np.generic]
    meaning: str


_SIGNED: dict[int, type[np.generic]] = {1: np.int16, 2: np.int32, 4: np.int64, 8: np.int64}


def _columns(fields: Sequence[Field], names: dict[str, str]) -> tuple[Column, ...]:
    """Columns of the wire fields that `names` renames or keeps, in wire order."""
    return tuple(Column(names[f.name], _SIGNED[f.size], f.label) for f in fields if f.name in names)


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


FRAME_ROW: tuple[Column, ...] = (
    Column("time_ns", np.int64, "kernel time stamp, CLOCK_REALTIME; 0 when the capture has none"),
    Column("interface", np.int32, "index into the capture's interfaces"),
    Column("direction", np.int8, "PortDirection, seen from the switch port"),
    Column("length", np.int32, "bytes on the wire, without the frame check sequence"),
    Column("captured", np.int32, "bytes in the capture, less than `length` when a snap length cut the frame"),
    Column("offset", np.int64, "byte of the buffer at which the frame begins"),
)

ENVELOPE_COLUMNS = _columns(ENVELOPE, _same("group", "sender", "sender_incarnation", "transmission"))
MESSAGE_COLUMNS = _columns(
    MESSAGE,
    _same("kind", "flags", "inner", "origin", "incarnation", "words", "seq") | {"length": "message_length"},
)

DECODED_ROW: tuple[Column, ...] = (
    Column("eth_dst", np.int64, "destination MAC as a number"),
    Column("eth_src", np.int64, "source MAC as a number"),
    Column("ethertype", np.int32, "EtherType after up to two VLAN tags"),
    Column("ip_src", np.int64, "source IPv4 address as a number; 0 when not IPv4"),
    Column("ip_dst", np.int64, "destination IPv4 address as a number; 0 when not IPv4"),
    Column("ip_proto", np.int16, "IP protocol number; -1 when not IPv4"),
    Column("udp_src", np.int32, "source UDP port; -1 when not UDP or not the first fragment"),
    Column("udp_dst", np.int32, "destination UDP port; -1 when not UDP or not the first fragment"),
    Column("payload_offset", np.int64, "byte of the buffer at which the UDP payload begins; 0 when not UDP"),
    Column(
        "payload_length",
        np.int32,
        "bytes of UDP payload on the wire; 0 when not UDP or when the lengths in the headers contradict each other",
    ),
    Column("is_protocol", np.bool_, "datagram to PROTOCOL_PORT, with an envelope and a message whose lengths add up"),
    Column("is_trace", np.bool_, "datagram to TRACE_PORT, with a whole header and records whose length adds up"),
    Column("is_undecodable", np.bool_, "datagram to one of our ports that is neither of the two"),
    *ENVELOPE_COLUMNS,
    *MESSAGE_COLUMNS,
)
"""Envelope and message columns are 0 where `is_protocol` is false. A `seq` above 2**63 - 1 appears as a negative
number.
"""

TRACE_ROW: tuple[Column, ...] = (
    Column("frame", np.int64, "row of the datagram in the given frames"),
    Column("group", np.int64, "group of the member"),
    Column("node", np.int32, "member that recorded it"),
    Column("node_incarnation", np.int32, "incarnation of the member"),
    Column("record", np.int64, "number of the record in that incarnation, without a gap"),
    *_columns(RECORD, _same(*(f.name for f in RECORD))),
)


def dtype_of(fields: Sequence[Field]) -> np.dtype[np.void]:
    """Type of a table on the wire: unsigned, big-endian, without padding."""
    return np.dtype([(f.name, f">u{f.size}") for f in fields])


ENVELOPE_DTYPE = dtype_of(ENVELOPE)
MESSAGE_DTYPE = dtype_of(MESSAGE)
TRACE_HEADER_DTYPE = dtype_of(TRACE_HEADER)
RECORD_DTYPE = dtype_of(RECORD)
APPLICATION_STAMP_DTYPE = dtype_of(APPLICATION_STAMP)

ETHERNET_DTYPE = np.dtype(
    [("dst_high", ">u2"), ("dst_low", ">u4"), ("src_high", ">u2"), ("src_low", ">u4"), ("ethertype", ">u2")]
)
IPV4_DTYPE = np.dtype(
    [
        ("version_ihl", "u1"),
        ("tos", "u1"),
        ("total_length", ">u2"),
        ("identification", ">u2"),
        ("fragment", ">u2"),
        ("ttl", "u1"),
        ("proto", "u1"),
        ("checksum", ">u2"),
        ("src", ">u4"),
        ("dst", ">u4"),
    ]
)
UDP_DTYPE = np.dtype([("src", ">u2"), ("dst", ">u2"), ("length", ">u2"), ("checksum", ">u2")])

WINDOW_DTYPE = np.dtype(
    [
        ("ethernet", ETHERNET_DTYPE),
        ("ip", IPV4_DTYPE),
        ("udp", UDP_DTYPE),
        ("envelope", ENVELOPE_DTYPE),
        ("message", MESSAGE_DTYPE),
    ]
)
"""Window of 78 bytes that the decoder copies from the beginning of every frame."""
