"""pcapng and pcap as blocks: the numbers of the formats, and a small strict reader that trusts no length.

The reader goes block by block through `struct`; it is short, slow and meant to be obviously right: `python -m
collector info` and the tests use it. `analysis.capture.parse` is the fast way to the same frames. Formats:
draft-ietf-opsawg-pcapng and -pcap.
"""

from __future__ import annotations

import enum
import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from collector.records import CaptureError, PortDirection

SECTION_HEADER = 0x0A0D0D0A
INTERFACE_DESCRIPTION = 1
OBSOLETE_PACKET = 2
SIMPLE_PACKET = 3
INTERFACE_STATISTICS = 5
ENHANCED_PACKET = 6
PACKET_BLOCKS = (OBSOLETE_PACKET, SIMPLE_PACKET, ENHANCED_PACKET)

BYTE_ORDER_MAGIC = 0x1A2B3C4D
MAX_BLOCK_BYTES = 1 << 24
"""What Wireshark accepts too. A longer block is damage, not data."""
MAX_FRAME_BYTES = 1 << 18
MAX_INTERFACES = 1 << 16

OPTION_END = 0
OPTION_COMMENT = 1
SECTION_HARDWARE, SECTION_OS, SECTION_APPLICATION = 2, 3, 4
INTERFACE_NAME, INTERFACE_DESCRIPTION_TEXT, INTERFACE_MAC = 2, 3, 6
INTERFACE_RESOLUTION, INTERFACE_FILTER, INTERFACE_OFFSET = 9, 11, 14
PACKET_FLAGS = 2
STATISTICS_START, STATISTICS_END, STATISTICS_RECEIVED, STATISTICS_DROPPED, STATISTICS_DELIVERED = 2, 3, 4, 5, 8
DIRECTION_BITS = 0b11

MICROSECONDS = 6
BINARY_RESOLUTION = 0x80

PCAP_MAGICS: dict[bytes, tuple[str, int]] = {
    b"\xa1\xb2\xc3\xd4": (">", 6),
    b"\xd4\xc3\xb2\xa1": ("<", 6),
    b"\xa1\xb2\x3c\x4d": (">", 9),
    b"\x4d\x3c\xb2\xa1": ("<", 9),
}
PCAP_HEADER_BYTES = 24
PCAP_RECORD_BYTES = 16

COMPRESSED: dict[bytes, tuple[str, str]] = {
    b"\x1f\x8b": ("gzip", "gunzip --keep"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd --keep"),
    b"\xfd7zXZ": ("xz", "unxz --keep"),
    b"BZh": ("bzip2", "bunzip2 --keep"),
    b"\x04\x22\x4d\x18": ("lz4", "unlz4 --keep"),
    b"PK\x03\x04": ("zip", "unzip"),
}
"""First bytes of packed files: how they were packed, and what unpacks them."""


class Layout(enum.Enum):
    """Which of the two file formats."""

    PCAPNG = "pcapng"
    PCAP = "pcap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """One interface. `resolution` is the raw `if_tsresol`: n for 10**-n s, with the top bit for 2**-n s."""

    name: str
    link_type: int
    snap_length: int = 0
    """0: not limited."""
    resolution: int = MICROSECONDS
    offset_s: int = 0
    description: str = ""

    def time_ns(self, ticks: int) -> int:
        """Nanoseconds since 1970 of a 64-bit time stamp of this interface."""
        power = self.resolution & ~BINARY_RESOLUTION
        per_second: int = 2**power if self.resolution & BINARY_RESOLUTION else 10**power
        return self.offset_s * 10**9 + ticks * 10**9 // per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class Interfaces:
    """What `analysis.capture.parse` must know of a file to read any part of it: format, byte order and the
    interfaces."""

    layout: Layout
    byte_order: str
    """`<` or `>`, as in `struct`."""
    ports: tuple[Interface, ...]
    first: int = 0
    """Number of the first port in the whole capture: how many there are in the sections before."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(port.name for port in self.ports)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What the section header says; all empty for plain pcap."""

    comment: str = ""
    hardware: str = ""
    operating_system: str = ""
    application: str = ""

    @property
    def metadata(self) -> dict[str, Any]:
        """The comment as the JSON object that our collector writes; empty when it is something else."""
        try:
            value = json.loads(self.comment)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}


class Packet(NamedTuple):
    """One frame, as the strict reader sees it. `block` is the byte of the file at which its block begins."""

    time_ns: int
    interface: int
    direction: PortDirection
    length: int
    data: bytes
    block: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """One interface statistics block; None: not stated."""

    interface: int
    received: int | None
    dropped: int | None
    delivered: int | None
    comment: str


class CutOffError(CaptureError):
    """The file ends inside a block: `byte` is where that block begins, `frames` how many whole ones stand before it."""

    def __init__(self, path: Path, byte: int, frames: int) -> None:
        super().__init__(f"{path}: cut off at byte {byte} after {frames} whole frames")
        self.byte = byte
        self.frames = frames


class Block(NamedTuple):
    """One pcapng block without its frame of type and lengths."""

    kind: int
    body: bytes
    offset: int


class Reader:
    """Strict sequential reader. Iterating gives the packets; `interfaces` and `statistics` grow on the way.

    Raises CutOffError at the place where the file ends inside a block, CaptureError where it contradicts itself.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.section = Section()
        self.statistics: list[Statistics] = []
        self.frames = 0
        self.offset = 0
        """Bytes that were read as whole blocks."""
        self._begin = 0
        """Where the section begins that is being read."""
        self._ports: list[Interface] = []
        self._file: BinaryIO = path.open("rb")
        self._size = os.fstat(self._file.fileno()).st_size
        try:
            self.layout, self.byte_order = self._identify()
        except CaptureError:
            self._file.close()
            raise

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def interfaces(self) -> Interfaces:
        return Interfaces(layout=self.layout, byte_order=self.byte_order, ports=tuple(self._ports))

    def read_head(self) -> int:
        """Read the section header and the interfaces that lead the file; the byte behind the last whole one of them.

        CutOffError when not even the section header is whole.
        """
        while self.layout is Layout.PCAPNG and self._is_head(self._peek_kind()):
            try:
                self._take(next(self._blocks()))
            except CutOffError:
                if self.offset == self._begin:
                    raise
                break
        self._file.seek(self.offset)
        return self.offset

    def enter_section(self, offset: int) -> int:
        """Forget the section before, and read the head of the one whose header begins at this byte; as `read_head`."""
        self._ports, self.section = [], Section()
        self._begin = self.offset = offset
        self._file.seek(offset)
        return self.read_head()

    def _is_head(self, kind: int | None) -> bool:
        """A section header that follows another one opens a section of its own."""
        return kind == INTERFACE_DESCRIPTION or (kind == SECTION_HEADER and self.offset == self._begin)

    def __iter__(self) -> Iterator[Packet]:
        if self.layout is Layout.PCAP:
            yield from self._records()
            return
        for block in self._blocks():
            packet = self._take(block)
            if packet is not None:
                self.frames += 1
                yield packet

    def add_interface(self, block: Block) -> None:
        """Take an interface description that was found elsewhere in the file."""
        self._take(block)

    def read_block(self, offset: int) -> Block:
        """The block at this byte."""
        self._file.seek(offset)
        self.offset = offset
        return next(self._blocks())

    def _peek_kind(self) -> int | None:
        """The kind of the block that comes next; None when the file ends before it says so."""
        self._file.seek(self.offset)
        head = self._file.read(4)
        self._file.seek(self.offset)
        return struct.unpack(self.byte_order + "I", head)[0] if len(head) == 4 else None

    def _identify(self) -> tuple[Layout, str]:
        head = self._file.read(PCAP_HEADER_BYTES)
        self._file.seek(0)
        if not head:
            raise CaptureError(f"{self.path}: is empty; a capture begins with a section header")
        if head[:4] in PCAP_MAGICS:
            return Layout.PCAP, self._read_pcap_header(head)
        if head[:4] != SECTION_HEADER.to_bytes(4, "big"):
            raise CaptureError(f"{self.path}: {_what_else(head, self.path.name)}")
        if len(head) < 12:
            raise CutOffError(self.path, 0, 0)
        return Layout.PCAPNG, self._order(head[8:12], 0)

    def _read_pcap_header(self, head: bytes) -> str:
        byte_order, digits = PCAP_MAGICS[head[:4]]
        if len(head) < PCAP_HEADER_BYTES:
            raise CutOffError(self.path, 0, 0)
        *_, snap_length, link_type = struct.unpack(byte_order + "4xHHiIII", head)
        name = self.path.stem
        self._ports.append(
            Interface(name=name, link_type=link_type & 0xFFFF, snap_length=snap_length, resolution=digits)
        )
        self._file.seek(PCAP_HEADER_BYTES)
        self.offset = PCAP_HEADER_BYTES
        return byte_order

    def _order(self, magic: bytes, offset: int) -> str:
        for byte_order in "<>":
            if struct.unpack(byte_order + "I", magic)[0] == BYTE_ORDER_MAGIC:
                return byte_order
        raise CaptureError(f"{self.path}: section header at byte {offset} has no byte-order magic")

    def _records(self) -> Iterator[Packet]:
        record = struct.Struct(self.byte_order + "IIII")
        port = self._ports[0]
        while self.offset < self._size:
            seconds, fraction, captured, length = record.unpack(self._exactly(PCAP_RECORD_BYTES))
            if captured > MAX_FRAME_BYTES:
                raise CaptureError(f"{self.path}: record at byte {self.offset} claims {captured} bytes")
            data = self._exactly(captured)
            time_ns = seconds * 10**9 + fraction * 10 ** (9 - port.resolution)
            packet = Packet(time_ns, 0, PortDirection.UNKNOWN, length, data, self.offset)
            self.offset += PCAP_RECORD_BYTES + captured
            self.frames += 1
            yield packet

    def _blocks(self) -> Iterator[Block]:
        while self.offset < self._size:
            head = self._exactly(8)
            if head[:4] == SECTION_HEADER.to_bytes(4, "big"):
                head += self._exactly(4)
                self._order_of_section(head[8:12])
            kind, length = struct.unpack(self.byte_order + "II", head[:8])
            if length < 12 or length % 4 or length > MAX_BLOCK_BYTES:
                raise CaptureError(f"{self.path}: block at byte {self.offset} has the impossible length {length}")
            rest = self._exactly(length - len(head))
            if struct.unpack(self.byte_order + "I", rest[-4:])[0] != length:
                raise CaptureError(f"{self.path}: block at byte {self.offset} ends with another length than {length}")
            block = Block(kind, head[8:] + rest[:-4], self.offset)
            self.offset += length
            yield block

    def _order_of_section(self, magic: bytes) -> None:
        if self.offset != self._begin:
            raise CaptureError(
                f"{self.path}: has a second section at byte {self.offset}; "
                f"merge it into one with: mergecap -w new.pcapng {self.path.name}"
            )
        self.byte_order = self._order(magic, self.offset)

    def _exactly(self, count: int) -> bytes:
        """The next bytes of the file; never asks for more than the file has."""
        if count > self._size - self._file.tell():
            raise CutOffError(self.path, self.offset, self.frames)
        data = self._file.read(count)
        if len(data) < count:
            raise CutOffError(self.path, self.offset, self.frames)
        return data

    def _take(self, block: Block) -> Packet | None:
        try:
            if block.kind == SECTION_HEADER:
                self.section = section_of(block.body, self.byte_order)
            elif block.kind == INTERFACE_DESCRIPTION:
                self._add_port(block)
            elif block.kind == INTERFACE_STATISTICS:
                self.statistics.append(statistics_of(block.body, self.byte_order))
            elif block.kind in PACKET_BLOCKS:
                return self._packet(block)
        except (struct.error, IndexError):
            raise CaptureError(f"{self.path}: block at byte {block.offset} is too short for its kind") from None
        return None

    def _add_port(self, block: Block) -> None:
        if len(self._ports) >= MAX_INTERFACES:
            raise CaptureError(f"{self.path}: has more than {MAX_INTERFACES} interfaces")
        self._ports.append(interface_of(block.body, self.byte_order, len(self._ports)))

    def _packet(self, block: Block) -> Packet:
        number, ticks, captured, length, at = self._packet_head(block)
        data = block.body[at : at + captured]
        if len(data) < captured:
            raise CaptureError(f"{self.path}: packet at byte {block.offset} claims more bytes than its block holds")
        direction = PortDirection.UNKNOWN
        if block.kind != SIMPLE_PACKET:
            for code, value in options_of(block.body[at + captured + -captured % 4 :], self.byte_order):
                if code == PACKET_FLAGS and len(value) == 4:
                    direction = _direction(struct.unpack(self.byte_order + "I", value)[0])
                    break
        time_ns = 0 if ticks is None else self._ports[number].time_ns(ticks)
        return Packet(time_ns, number, direction, length, data, block.offset)

    def _packet_head(self, block: Block) -> tuple[int, int | None, int, int, int]:
        """Interface, ticks, captured bytes, original bytes, and where the data begin."""
        order, body = self.byte_order, block.body
        if block.kind == SIMPLE_PACKET:
            (length,) = struct.unpack_from(order + "I", body)
            snap_length = self._ports[0].snap_length or length
            return 0, None, min(length, snap_length, len(body) - 4), length, 4
        number, high, low, captured, length = struct.unpack_from(order + "IIIII", body)
        if block.kind == OBSOLETE_PACKET:
            (number,) = struct.unpack_from(order + "H", body)
        if number >= len(self._ports):
            raise CaptureError(f"{self.path}: packet at byte {block.offset} names interface {number}, which is missing")
        return number, high << 32 | low, captured, length, 20


class Summary(NamedTuple):
    """What `python -m collector info` prints. `problem` is empty for a whole file."""

    layout: Layout
    section: Section
    ports: tuple[Interface, ...]
    frames: int
    data_bytes: int
    first_ns: int | None
    last_ns: int | None
    frames_by_port: dict[tuple[int, PortDirection], int]
    statistics: tuple[Statistics, ...]
    problem: str


def summarise(path: Path) -> Summary:
    """Read a whole capture strictly. A file that is damaged or cut off is summed up to that place, which `problem`
    names.
    """
    counts: dict[tuple[int, PortDirection], int] = {}
    first: int | None = None
    last: int | None = None
    data_bytes, problem = 0, ""
    with Reader(path) as reader:
        try:
            for packet in reader:
                counts[packet.interface, packet.direction] = counts.get((packet.interface, packet.direction), 0) + 1
                first = packet.time_ns if first is None else first
                last = packet.time_ns
                data_bytes += len(packet.data)
        except CaptureError as error:
            problem = str(error)
        return Summary(
            reader.layout,
            reader.section,
            reader.interfaces.ports,
            reader.frames,
            data_bytes,
            first,
            last,
            counts,
            tuple(reader.statistics),
            problem,
        )


def _what_else(head: bytes, name: str) -> str:
    """What a file is that is no capture of ours, and what helps."""
    for magic, (method, remedy) in COMPRESSED.items():
        if head.startswith(magic):
            return f"is compressed ({method}); unpack it first: {remedy} {name}"
    return f"is neither pcapng nor pcap (it begins with {head[:4].hex()})"


def options_of(data: bytes, byte_order: str) -> Iterator[tuple[int, bytes]]:
    """(code, value) of each option; an option that runs past the end closes the list."""
    at = 0
    while at + 4 <= len(data):
        code, length = struct.unpack_from(byte_order + "HH", data, at)
        if code == OPTION_END or at + 4 + length > len(data):
            return
        yield code, data[at + 4 : at + 4 + length]
        at += 4 + length + -length % 4


def section_of(body: bytes, byte_order: str) -> Section:
    """The section header; its section length is not used."""
    texts = {code: value.decode("utf-8", "replace") for code, value in options_of(body[16:], byte_order)}
    return Section(
        comment=texts.get(OPTION_COMMENT, ""),
        hardware=texts.get(SECTION_HARDWARE, ""),
        operating_system=texts.get(SECTION_OS, ""),
        application=texts.get(SECTION_APPLICATION, ""),
    )


def interface_of(body: bytes, byte_order: str, number: int) -> Interface:
    """One interface description; without a name it is called by its number."""
    link_type, snap_length = struct.unpack_from(byte_order + "HxxI", body)
    values = dict(options_of(body[8:], byte_order))
    resolution = values.get(INTERFACE_RESOLUTION, b"")[:1] or bytes([MICROSECONDS])
    offset = values.get(INTERFACE_OFFSET, b"")
    return Interface(
        name=values.get(INTERFACE_NAME, b"").decode("utf-8", "replace") or f"interface {number}",
        link_type=link_type,
        snap_length=snap_length,
        resolution=resolution[0],
        offset_s=struct.unpack(byte_order + "q", offset)[0] if len(offset) == 8 else 0,
        description=values.get(INTERFACE_DESCRIPTION_TEXT, b"").decode("utf-8", "replace"),
    )


def statistics_of(body: bytes, byte_order: str) -> Statistics:
    (number,) = struct.unpack_from(byte_order + "I", body)
    values = dict(options_of(body[12:], byte_order))

    def counter(code: int) -> int | None:
        value = values.get(code, b"")
        return struct.unpack(byte_order + "Q", value)[0] if len(value) == 8 else None

    return Statistics(
        interface=number,
        received=counter(STATISTICS_RECEIVED),
        dropped=counter(STATISTICS_DROPPED),
        delivered=counter(STATISTICS_DELIVERED),
        comment=values.get(OPTION_COMMENT, b"").decode("utf-8", "replace"),
    )


def _direction(flags: int) -> PortDirection:
    bits = flags & DIRECTION_BITS
    return PortDirection(bits) if bits in (PortDirection.INBOUND, PortDirection.OUTBOUND) else PortDirection.UNKNOWN
