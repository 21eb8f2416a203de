"""Requests and replies as JSON frames: over a Unix socket to the keeper, over a serial line to the guest.

    frame = length (4 bytes, big-endian)  zlib(JSON)

On the Unix socket, file descriptors travel with the first byte of a frame. The serial line is a raw tty of the guest
with a buffer of 4 KiB and no flow control that survives an overrun (measured: the line hangs), so a request goes over
it in pieces of at most LINE_PIECE bytes, and the guest acknowledges each with one byte. Standard library only: both
ends use this file.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import zlib
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("!I")
_MAX_FRAME = 64 << 20
_MAX_DESCRIPTORS = 16
LINE_PIECE = 1024
"""Bytes; beyond about 1,000 the tty hands its buffer over on its slow path (measured: 0.8 ms for 1,000, 12 ms for
4,000).
"""
_ACKNOWLEDGED = b"."
_FASTEST = 1
"""zlib level: batches of netlink messages shrink tenfold even so."""


class ChannelClosedError(Exception):
    """The other end is gone."""


def pack(values: dict[str, Any]) -> bytes:
    """One frame."""
    body = zlib.compress(json.dumps(values, separators=(",", ":")).encode("utf-8"), _FASTEST)
    return _LENGTH.pack(len(body)) + body


def unpack(body: bytes) -> dict[str, Any]:
    """The values of a frame's body."""
    values = json.loads(zlib.decompress(body))
    if not isinstance(values, dict):
        raise ValueError("a frame holds one JSON object")
    return values


def send_frame(connection: socket.socket, values: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one frame over a Unix socket. Raises ChannelClosedError."""
    data = pack(values)
    try:
        sent = socket.send_fds(connection, [data], list(descriptors)) if descriptors else connection.send(data)
        connection.sendall(data[sent:])
    except (BrokenPipeError, ConnectionResetError) as error:
        raise ChannelClosedError(str(error)) from error


def receive_frame(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Receive one frame from a Unix socket, with the descriptors that came with it. Raises ChannelClosedError."""
    try:
        head, descriptors, _flags, _address = socket.recv_fds(
            connection, _LENGTH.size, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        head += receive_exactly(connection, _LENGTH.size - len(head)) if head else b""
        if not head:
            raise ChannelClosedError("end of file")
        return unpack(receive_exactly(connection, _checked_length(head))), descriptors
    except ConnectionResetError as error:
        raise ChannelClosedError(str(error)) from error


def receive_exactly(connection: socket.socket, count: int) -> bytes:
    """Read `count` bytes. Raises ChannelClosedError at the end of file, TimeoutError as the socket says."""
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(min(count - len(data), 1 << 18))
        if not piece:
            raise ChannelClosedError("end of file")
        data += piece
    return bytes(data)


class Channel:
    """The asking side over a Unix socket. Any thread may ask; one request is under way at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def request(self, do: str, descriptors: Sequence[int] = (), **arguments: Any) -> tuple[dict[str, Any], list[int]]:
        """Ask and wait for the answer and the descriptors that come with it. Raises ChannelClosedError,
        TimeoutError.
        """
        with self._lock:
            send_frame(self._connection, {"do": do, **arguments}, descriptors)
            return receive_frame(self._connection)

    def close(self) -> None:
        self._connection.close()


class LineChannel:
    """The asking side over the guest's serial line; no descriptors here. Any thread may ask."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def await_hello(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the guest's first word; nothing may be sent before it. Raises ChannelClosedError, TimeoutError."""
        self._connection.settimeout(timeout_s)
        return self._receive()

    def set_timeout(self, timeout_s: float) -> None:
        self._connection.settimeout(timeout_s)

    def request(self, do: str, descriptors: Sequence[int] = (), **arguments: Any) -> tuple[dict[str, Any], list[int]]:
        """Ask and wait for the answer. Raises ChannelClosedError, TimeoutError."""
        assert not descriptors, "descriptors do not travel over a serial line"
        frame = pack({"do": do, **arguments})
        with self._lock:
            try:
                for start in range(0, len(frame), LINE_PIECE):
                    self._connection.sendall(frame[start : start + LINE_PIECE])
                    if receive_exactly(self._connection, 1) != _ACKNOWLEDGED:
                        raise ChannelClosedError("the guest's line is out of step")
            except (BrokenPipeError, ConnectionResetError) as error:
                raise ChannelClosedError(str(error)) from error
            return self._receive(), []

    def close(self) -> None:
        self._connection.close()

    def _receive(self) -> dict[str, Any]:
        try:
            head = receive_exactly(self._connection, _LENGTH.size)
            return unpack(receive_exactly(self._connection, _checked_length(head)))
        except ConnectionResetError as error:
            raise ChannelClosedError(str(error)) from error


class LineServer:
    """The answering side of a serial line, in the guest, on a tty in raw mode."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, values: dict[str, Any]) -> None:
        data = memoryview(pack(values))
        while data:
            data = data[os.write(self._descriptor, data) :]

    def receive(self) -> dict[str, Any]:
        """The next request, piece by piece, each acknowledged."""
        frame = self._piece(_LENGTH.size)
        total = _LENGTH.size + _checked_length(frame[: _LENGTH.size])
        while True:
            piece_end = min(total, (len(frame) // LINE_PIECE + 1) * LINE_PIECE)
            frame += self._piece(piece_end - len(frame))
            os.write(self._descriptor, _ACKNOWLEDGED)
            if len(frame) == total:
                return unpack(frame[_LENGTH.size :])

    def _piece(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = os.read(self._descriptor, count - len(data))
            if not piece:
                raise ChannelClosedError("end of file")
            data += piece
        return data


def _checked_length(head: bytes) -> int:
    length: int = _LENGTH.unpack(head)[0]
    if length > _MAX_FRAME:
        raise ValueError(f"a frame of {length} bytes is longer than {_MAX_FRAME}: the channel is out of step")
    return length
