"""Frames and capture files byte by byte, through `struct` alone: nothing here uses the code under test."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

PROTOCOL_PORT, TRACE_PORT = 7700, 7701
START_NS = 1_700_000_000_123_456_789


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    data += b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def udp_frame(
    payload: bytes,
    *,
    port: int = PROTOCOL_PORT,
    tags: Sequence[int] = (),
    ip_options: bytes = b"",
    fragment: int = 0,
    source: int = 0x0A010001,
    target: int = 0xEF4D0001,
    with_checksum: bool = False,
) -> bytes:
    """Ethernet, any VLAN tags (as their types), IPv4 and UDP around a payload."""
    length = 8 + len(payload)
    udp = struct.pack(">HHHH", PROTOCOL_PORT, port, length, 0)
    if with_checksum:
        pseudo = struct.pack(">IIBBH", source, target, 0, 17, length)
        udp = udp[:6] + struct.pack(">H", checksum(pseudo + udp + payload) or 0xFFFF)
    words = 5 + len(ip_options) // 4
    ip = struct.pack(">BBHHHBBHII", 0x40 | words, 0, 4 * words + length, 7, fragment, 64, 17, 0, source, target)
    ip = ip[:10] + struct.pack(">H", checksum(ip + ip_options)) + ip[12:]
    vlan = b"".join(struct.pack(">HH", kind, 5) for kind in tags)
    return bytes.fromhex("01005e4d0001020b00010001") + vlan + b"\x08\x00" + ip + ip_options + udp + payload


def datagram(number: int = 1, *, payload: bytes = b"hello", sender: int = 3) -> bytes:
    """One RELIABLE_DATA datagram of group 0xdeadbeef with one word."""
    envelope = struct.pack(">HBBIHHI", 0x6F62, 1, 0, 0xDEADBEEF, sender, 1, number)
    message = struct.pack(">BBBBHHHHQ", 0x10, 0, 0, 0, sender, 1, 1, len(payload), number)
    return envelope + message + struct.pack(">Q", 40) + payload


def trace_datagram(first: int, events: Sequence[int] = (1, 2), *, node: int = 3) -> bytes:
    header = struct.pack(">HBBIHHI", 0x6F74, 2, len(events), 0xDEADBEEF, node, 1, first)
    records = (
        struct.pack(">BBHHHQQQQII", event, 0, node, 1, 0, first + place, 10**9 + place, 2 * 10**9, 5, 0, 0)
        for place, event in enumerate(events)
    )
    return header + b"".join(records)


def option(order: str, code: int, value: bytes) -> bytes:
    return struct.pack(order + "HH", code, len(value)) + value + b"\0" * (-len(value) % 4)


def block(order: str, kind: int, body: bytes) -> bytes:
    length = struct.pack(order + "I", 12 + len(body))
    return struct.pack(order + "I", kind) + length + body + length


def section(order: str = "<", comment: str = "") -> bytes:
    options = option(order, 1, comment.encode()) + option(order, 0, b"") if comment else b""
    return block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1) + options)


def interface(
    order: str = "<", name: str = "p1/n1", resolution: int = 9, snap_length: int = 0, offset_s: int | None = None
) -> bytes:
    options = option(order, 2, name.encode()) + option(order, 9, bytes([resolution]))
    if offset_s is not None:
        options += option(order, 14, struct.pack(order + "q", offset_s))
    return block(order, 1, struct.pack(order + "HHI", 1, 0, snap_length) + options + option(order, 0, b""))


def packet(
    data: bytes,
    ticks: int = START_NS,
    *,
    order: str = "<",
    port: int = 0,
    direction: int | None = 1,
    length: int | None = None,
    before_flags: bytes = b"",
) -> bytes:
    """One enhanced packet block. `before_flags`: options before the flags."""
    head = struct.pack(order + "IIIII", port, ticks >> 32, ticks & 0xFFFFFFFF, len(data), length or len(data))
    options = before_flags
    if direction is not None:
        options += option(order, 2, struct.pack(order + "I", direction)) + option(order, 0, b"")
    return block(order, 6, head + data + b"\0" * (-len(data) % 4) + options)


def pcapng(frames: Iterable[bytes], *, order: str = "<", ports: int = 2) -> bytes:
    """A capture in the format of the collector: named ports, nanoseconds, directions."""
    head = section(order, '{"run": "test"}') + b"".join(interface(order, f"p1/n{n + 1}") for n in range(ports))
    return head + b"".join(
        packet(frame, START_NS + 1000 * n, order=order, port=n % ports, direction=1 + n % 2)
        for n, frame in enumerate(frames)
    )


def pcap(frames: Iterable[bytes], *, order: str = "<", nanoseconds: bool = True) -> bytes:
    """A classic capture file."""
    magic = 0xA1B23C4D if nanoseconds else 0xA1B2C3D4
    head = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 262144, 1)
    scale = 1 if nanoseconds else 1000
    records = []
    for n, frame in enumerate(frames):
        time_ns = START_NS + 1000 * n
        fraction = time_ns % 10**9 // scale
        records.append(struct.pack(order + "IIII", time_ns // 10**9, fraction, len(frame), len(frame)) + frame)
    return head + b"".join(records)


def traffic(count: int) -> list[bytes]:
    """Protocol and trace datagrams, raw and short frames, sizes of every remainder modulo 4."""
    frames = []
    for number in range(count):
        if number % 7 == 3:
            frames.append(udp_frame(trace_datagram(number), port=TRACE_PORT))
        elif number % 11 == 5:
            frames.append(bytes.fromhex("0180c200000e020b0001000188b5") + bytes(number % 50))
        else:
            frames.append(udp_frame(datagram(number, payload=bytes(number % 61))))
    return frames


def tshark(path: Path, *fields: str, lua: Path | None = None) -> list[list[str]]:
    """One list per frame, one text per field; occurrences are joined by `|`. `lua`: a dissector to load."""
    words = [word for name in fields for word in ("-e", name)]
    script = [] if lua is None else ["-X", f"lua_script:{lua}"]
    command = ["tshark", "-n", *script, "-r", str(path), "-T", "fields", "-E", "aggregator=|", *words]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "Lua" not in result.stderr
    return [line.split("\t") for line in result.stdout.splitlines()]
