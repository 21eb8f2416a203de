"""Protocol between a testbed and its clients: a Unix socket, frames of JSON with descriptors, and errors that cross it.

One connection carries one request and its answer; a started command keeps its connection, on which signals and terminal
sizes go in and its exit code comes out. A frame is read as if an attacker had written it: lengths are bounded before
and after decompression, and unexpected descriptors are closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from netem.errors import CannotStartError, FabricError
from netem.kernel.framing import LENGTH, ChannelClosedError, pack, receive_exactly, send_frame
from testbed.live.directory import RuntimeDirectory
from testbed.rundir.store import StoreError
from topologies.formats.errors import InputError

MAX_PACKED_BYTES = 8 << 20
MAX_PLAIN_BYTES = 32 << 20
"""Largest frame after decompression. The largest legitimate one describes 10,000 nodes in 5 MiB."""

MAX_DESCRIPTORS = 3

_KINDS: dict[str, Callable[[str], Exception]] = {
    "input": InputError,
    "absent": partial(CannotStartError, is_there=False),
    "not executable": partial(CannotStartError, is_there=True),
    "fabric": FabricError,
    "store": StoreError,
}


class MalformedFrameError(Exception):
    """The bytes received are no valid frame."""


def refusal(error: Exception) -> dict[str, Any]:
    """The frame that reports an error. An error of no known kind is a bug of the server: it is sent with its class."""
    match error:
        case InputError():
            kind = "input"
        case CannotStartError():
            kind = "not executable" if error.is_there else "absent"
        case FabricError():
            kind = "fabric"
        case StoreError():
            kind = "store"
        case _:
            return refusal(FabricError(f"the testbed's server failed ({type(error).__name__}: {error})"))
    return {"error": {"kind": kind, "text": str(error)}}


def raise_refusal(reply: dict[str, Any]) -> dict[str, Any]:
    """Return the reply; if it reports an error, raise that error."""
    if "error" in reply:
        raise _KINDS.get(reply["error"]["kind"], FabricError)(reply["error"]["text"])
    return reply


def connect(directory: RuntimeDirectory) -> socket.socket:
    """Client: connect to a testbed. Raises FabricError when no server answers."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with directory.socket_path() as path:
            connection.connect(path)
    except OSError:
        connection.close()
        raise _gone(directory.name) from None
    return connection


def ask(directory: RuntimeDirectory, request: dict[str, Any]) -> Any:
    """Client: send one request, return its result. Raises InputError, FabricError or StoreError as the server did."""
    with connect(directory) as connection:
        tell(connection, request)
        return raise_refusal(hear(connection)).get("result")


def tell(connection: socket.socket, values: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one frame. Raises FabricError when the server is gone."""
    try:
        send_frame(connection, values, descriptors)
    except (ChannelClosedError, OSError):
        raise _gone() from None


def hear(connection: socket.socket) -> dict[str, Any]:
    """The next frame. Raises FabricError when the server is gone."""
    try:
        values, _descriptors = receive(connection, max_descriptors=0)
    except (ChannelClosedError, MalformedFrameError, OSError):
        raise _gone() from None
    return values


def receive(
    connection: socket.socket, *, max_descriptors: int = MAX_DESCRIPTORS
) -> tuple[dict[str, Any], tuple[int, ...]]:
    """One frame and its descriptors, which the caller must close. Raises ChannelClosedError at end of file and
    MalformedFrameError for an invalid frame.
    """
    head, descriptors, flags, _address = socket.recv_fds(
        connection, LENGTH.size, max(1, max_descriptors), socket.MSG_CMSG_CLOEXEC
    )
    try:
        if not head:
            raise ChannelClosedError("end of file")
        if len(descriptors) > max_descriptors or flags & socket.MSG_CTRUNC:
            raise MalformedFrameError(f"it carries more than {max_descriptors} descriptors")
        head += receive_exactly(connection, LENGTH.size - len(head))
        (length,) = LENGTH.unpack(head)
        if length > MAX_PACKED_BYTES:
            raise MalformedFrameError(f"it has {length} bytes, at most {MAX_PACKED_BYTES} are allowed")
        return unpacked(receive_exactly(connection, length)), tuple(descriptors)
    except BaseException:
        close_all(descriptors)
        raise


def unpacked(body: bytes) -> dict[str, Any]:
    """The values of a frame's body. Raises MalformedFrameError."""
    inflator = zlib.decompressobj()
    try:
        plain = inflator.decompress(body, MAX_PLAIN_BYTES)
        if not inflator.eof:
            raise MalformedFrameError(f"it is cut off, or has more than {MAX_PLAIN_BYTES} bytes")
        values = json.loads(plain)
    except (zlib.error, ValueError, RecursionError) as error:
        raise MalformedFrameError(f"it is no JSON in zlib ({error})") from None
    if not isinstance(values, dict):
        raise MalformedFrameError("it holds no JSON object")
    return values


def answer(connection: socket.socket, values: dict[str, Any]) -> None:
    """Server: send a frame to a client that may be gone."""
    with contextlib.suppress(OSError):
        connection.sendall(pack(values))


def close_all(descriptors: Sequence[int]) -> None:
    """Close each descriptor."""
    for descriptor in descriptors:
        os.close(descriptor)


def _gone(name: str | None = None) -> FabricError:
    which = f"the testbed {name}" if name else "the testbed"
    return FabricError(f"{which} is no longer up: its server has ended; `orderbed up` makes a new one")
