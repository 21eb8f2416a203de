"""A slow reader of captures, one block after the other: the reference for the fast parser."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from collector.blocks import PCAP_MAGICS, Interface, interface_of, options_of


class Packet(NamedTuple):
    """One frame. `block` is the offset in the file at which its block begins."""

    time_ns: int
    interface: int
    direction: int
    length: int
    data: bytes
    block: int


def read(path: Path) -> list[Packet]:
    """All whole packets of a capture with one section."""
    return packets(path.read_bytes())[0]


def packets(data: bytes) -> tuple[list[Packet], int]:
    """All whole packets, and the offset after the last whole block."""
    if data[:4] in PCAP_MAGICS:
        return _records(data, *PCAP_MAGICS[data[:4]])
    order = "<" if data[8:12] == b"\x4d\x3c\x2b\x1a" else ">"
    ports: list[Interface] = []
    found: list[Packet] = []
    at = 0
    while at + 12 <= len(data):
        kind, length = struct.unpack_from(order + "II", data, at)
        if at + length > len(data):
            break
        assert struct.unpack_from(order + "I", data, at + length - 4) == (length,), f"block at byte {at}"
        body = data[at + 8 : at + length - 4]
        if kind == 1:
            ports.append(interface_of(body, order, len(ports)))
        elif kind == 3:
            (size,) = struct.unpack_from(order + "I", body)
            kept = min(size, ports[0].snap_length or size, len(body) - 4)
            found.append(Packet(0, 0, 0, size, body[4 : 4 + kept], at))
        elif kind in (2, 6):
            found.append(_packet(body, order, ports, at, is_obsolete=kind == 2))
        at += length
    return found, at


def _packet(body: bytes, order: str, ports: list[Interface], at: int, *, is_obsolete: bool) -> Packet:
    number, high, low, captured, length = struct.unpack_from(order + "IIIII", body)
    if is_obsolete:
        (number,) = struct.unpack_from(order + "H", body)
    assert 20 + captured <= len(body), f"packet at byte {at}"
    flags = 0
    for code, value in options_of(body[20 + captured + -captured % 4 :], order):
        if code == 2 and len(value) == 4:
            flags = struct.unpack(order + "I", value)[0] & 3
            break
    port, ticks = ports[number], high << 32 | low
    per_second = 2 ** (port.resolution & 127) if port.resolution & 128 else 10**port.resolution
    time_ns = port.offset_s * 10**9 + ticks * 10**9 // per_second
    return Packet(time_ns, number, flags if flags < 3 else 0, length, body[20 : 20 + captured], at)


def _records(data: bytes, order: str, digits: int) -> tuple[list[Packet], int]:
    found: list[Packet] = []
    at = 24
    while at + 16 <= len(data):
        seconds, fraction, captured, length = struct.unpack_from(order + "IIII", data, at)
        if at + 16 + captured > len(data):
            break
        time_ns = seconds * 10**9 + fraction * 10 ** (9 - digits)
        found.append(Packet(time_ns, 0, 0, length, data[at + 16 : at + 16 + captured], at))
        at += 16 + captured
    return found, at
