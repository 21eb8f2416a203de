"""Frames of JSON between the conductor and the agents, over a Unix socket or a serial line.

    frame = length (4 bytes, big-endian)  zlib(JSON)

On the Unix socket, file descriptors travel with the first byte of a frame. The serial line is a raw tty of the guest
with a buffer of 4 KiB and no flow control that survives an overrun (measured: the line hangs), so a request goes over
it in pieces of at most LINE_PIECE bytes, and the guest acknowledges each with one byte.

Standard library only, and little of it: supervisor and guest import this file, the guest at 50 us for each page fault.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import zlib
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

LENGTH = struct.Struct("!I")
_MAX_FRAME = 64 << 20
"""Most bytes of a frame, packed or not."""
_MAX_DESCRIPTORS = 16
LINE_PIECE = 1024
"""Bytes of a piece; beyond about 1,000 the tty takes its slow path (measured: 0.8 ms for 1,000, 12 ms for 4,000)."""
ACKNOWLEDGED = b"."
_FASTEST = 1
"""zlib level; batches of netlink messages still shrink tenfold."""


class ChannelClosedError(Exception):
    """The other end is gone."""


def pack(values: dict[str, Any]) -> bytes:
    """One frame."""
    body = zlib.compress(json.dumps(values, separators=(",", ":")).encode("utf-8"), _FASTEST)
    return LENGTH.pack(len(body)) + body


def unpack(body: bytes) -> dict[str, Any]:
    """The values of a frame's body. Raises ValueError for an invalid body."""
    inflator = zlib.decompressobj()
    try:
        plain = inflator.decompress(body, _MAX_FRAME)
        values = json.loads(plain) if inflator.eof else None
    except (zlib.error, RecursionError) as error:
        raise ValueError(f"a frame that cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise ValueError("a frame holds one JSON object")
    return values


def send_frame(connection: socket.socket, values: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one frame over a Unix socket. Raises ChannelClosedError."""
    data = pack(values)
    try:
        sent = socket.send_fds(connection, [data], list(descriptors)) if descriptors else connection.send(data)
        if sent < len(data):  # an empty send would fail if the other side has answered and closed already
            connection.sendall(data[sent:])
    except (BrokenPipeError, ConnectionResetError) as error:
        raise ChannelClosedError(str(error)) from error


def receive_frame(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Receive one frame and its descriptors from a Unix socket. Raises ChannelClosedError."""
    try:
        head, descriptors, _flags, _address = socket.recv_fds(
            connection, LENGTH.size, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        head += receive_exactly(connection, LENGTH.size - len(head)) if head else b""
        if not head:
            raise ChannelClosedError("end of file")
        return unpack(receive_exactly(connection, checked_length(head))), descriptors
    except ConnectionResetError as error:
        raise ChannelClosedError(str(error)) from error


def receive_exactly(connection: socket.socket, count: int) -> bytes:
    """Read `count` bytes. Raises ChannelClosedError at the end of file, TimeoutError after the socket's time-out."""
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(min(count - len(data), 1 << 18))
        if not piece:
            raise ChannelClosedError("end of file")
        data += piece
    return bytes(data)


class LineServer:
    """Server side of a serial line, in the guest, on a tty in raw mode."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, values: dict[str, Any]) -> None:
        data = memoryview(pack(values))
        while data:
            data = data[os.write(self._descriptor, data) :]

    def receive(self) -> dict[str, Any]:
        """The next request, received in pieces that are each acknowledged."""
        frame = self._piece(LENGTH.size)
        total = LENGTH.size + checked_length(frame[: LENGTH.size])
        while True:
            piece_end = min(total, (len(frame) // LINE_PIECE + 1) * LINE_PIECE)
            frame += self._piece(piece_end - len(frame))
            os.write(self._descriptor, ACKNOWLEDGED)
            if len(frame) == total:
                return unpack(frame[LENGTH.size :])

    def _piece(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = os.read(self._descriptor, count - len(data))
            if not piece:
                raise ChannelClosedError("end of file")
            data += piece
        return data


def checked_length(head: bytes) -> int:
    """The length in a frame's head. Raises ValueError for an impossible one."""
    length: int = LENGTH.unpack(head)[0]
    if length > _MAX_FRAME:
        raise ValueError(f"a frame of {length} bytes is longer than {_MAX_FRAME}: the channel is out of step")
    return length


# Readable descriptors: poll, because select refuses numbers above 1023.


class HasDescriptor(Protocol):
    """A socket, a pipe, a process's handle."""

    def fileno(self) -> int: ...


Source = TypeVar("Source", bound=HasDescriptor | int)


def readable(sources: Sequence[Source], timeout_s: float | None = None) -> list[Source]:
    """Sources that can be read now or are at their end, in the order given; empty after the time-out (None: never)."""
    poller = select.poll()
    numbers = [source if isinstance(source, int) else source.fileno() for source in sources]
    for number in numbers:
        poller.register(number, select.POLLIN)
    found = {number for number, _event in poller.poll(None if timeout_s is None else timeout_s * 1000)}
    return [source for source, number in zip(sources, numbers, strict=True) if number in found]
