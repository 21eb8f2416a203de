"""The formats pcapng and pcap: their constants, and blocks other than packets as values.

Formats: draft-ietf-opsawg-pcapng and -pcap. `collector.parse` reads packets.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collector.records import CaptureError

SECTION_HEADER = 0x0A0D0D0A
INTERFACE_DESCRIPTION = 1
OBSOLETE_PACKET = 2
SIMPLE_PACKET = 3
INTERFACE_STATISTICS = 5
ENHANCED_PACKET = 6

BYTE_ORDER_MAGIC = 0x1A2B3C4D
MAX_BLOCK_BYTES = 1 << 24
"""Longest block, as in Wireshark. A longer one is damage, not data."""
MAX_FRAME_BYTES = 1 << 18
MAX_INTERFACES = 1 << 16

OPTION_END = 0
OPTION_COMMENT = 1
SECTION_HARDWARE, SECTION_OS, SECTION_APPLICATION = 2, 3, 4
INTERFACE_NAME, INTERFACE_MAC = 2, 6
INTERFACE_RESOLUTION, INTERFACE_FILTER, INTERFACE_OFFSET = 9, 11, 14
PACKET_FLAGS = 2
STATISTICS_START, STATISTICS_END, STATISTICS_RECEIVED, STATISTICS_DROPPED, STATISTICS_DELIVERED = 2, 3, 4, 5, 8

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
"""First bytes of compressed files, with the method and the command that unpacks them."""


class Layout(enum.Enum):
    """File format of a capture."""

    PCAPNG = "pcapng"
    PCAP = "pcap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """One interface. `resolution` is the raw `if_tsresol`: n for 10**-n s, with the top bit for 2**-n s."""

    name: str
    link_type: int
    snap_length: int = 0
    """0: unlimited."""
    resolution: int = MICROSECONDS
    offset_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Interfaces:
    """Facts of a file that `collector.parse` needs to read any part of it: format, byte order and interfaces."""

    layout: Layout
    byte_order: str
    """`<` or `>`, as in `struct`."""
    ports: tuple[Interface, ...]
    first: int = 0
    """Number of the first port in the whole capture, the number of ports in the sections before."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(port.name for port in self.ports)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Fields of the section header that are read; all empty for plain pcap."""

    comment: str = ""
    application: str = ""

    @property
    def metadata(self) -> dict[str, Any]:
        """Comment as the JSON object that the collector writes; empty for any other comment."""
        try:
            value = json.loads(self.comment)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceStatistics:
    """One interface statistics block; None: not stated."""

    interface: int
    received: int | None
    dropped: int | None
    delivered: int | None


class CutOffError(CaptureError):
    """The file ends inside the head of a section."""

    def __init__(self, path: Path, byte: int) -> None:
        super().__init__(f"{path}: cut off at byte {byte} after 0 whole frames")


def what_else(head: bytes, name: str) -> str:
    """Text about a file that is neither pcapng nor pcap, with a remedy."""
    for magic, (method, remedy) in COMPRESSED.items():
        if head.startswith(magic):
            return f"is compressed ({method}); unpack it first: {remedy} {name}"
    return f"is neither pcapng nor pcap (it begins with {head[:4].hex()})"


def options_of(data: bytes, byte_order: str) -> Iterator[tuple[int, bytes]]:
    """(code, value) of each option; an option that runs past the end ends the list."""
    at = 0
    while at + 4 <= len(data):
        code, length = struct.unpack_from(byte_order + "HH", data, at)
        if code == OPTION_END or at + 4 + length > len(data):
            return
        yield code, data[at + 4 : at + 4 + length]
        at += 4 + length + -length % 4


def section_of(body: bytes, byte_order: str) -> Section:
    """Section header; its section length is not used."""
    texts = {code: value.decode("utf-8", "replace") for code, value in options_of(body[16:], byte_order)}
    return Section(
        comment=texts.get(OPTION_COMMENT, ""),
        application=texts.get(SECTION_APPLICATION, ""),
    )


def interface_of(body: bytes, byte_order: str, number: int) -> Interface:
    """One interface description; one without a name is called by its number."""
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
    )


def statistics_of(body: bytes, byte_order: str) -> InterfaceStatistics:
    (number,) = struct.unpack_from(byte_order + "I", body)
    values = dict(options_of(body[12:], byte_order))

    def counter(code: int) -> int | None:
        value = values.get(code, b"")
        return struct.unpack(byte_order + "Q", value)[0] if len(value) == 8 else None

    return InterfaceStatistics(
        interface=number,
        received=counter(STATISTICS_RECEIVED),
        dropped=counter(STATISTICS_DROPPED),
        delivered=counter(STATISTICS_DELIVERED),
    )
