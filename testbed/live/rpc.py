"""The door of a testbed: a Unix socket, frames of JSON with descriptors, and refusals that arrive as what they were.

One connection carries one request. A verb is answered once; a command that was started keeps its connection, over
which signals and sizes of the terminal go in, and its exit code comes out. Whoever reads a frame here assumes that an
enemy wrote it: lengths are bounded before and after decompression, and descriptors that nobody asked for are closed.
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
"""Of one frame. The largest honest one describes 10,000 nodes in 5 MiB."""

MAX_DESCRIPTORS = 3

_KINDS: dict[str, Callable[[str], Exception]] = {
    "input": InputError,
    "absent": partial(CannotStartError, is_there=False),
    "not executable": partial(CannotStartError, is_there=True),
    "fabric": FabricError,
    "store": StoreError,
}


class BadFrameError(Exception):
    """What came is not a frame of ours."""


def refusal(error: Exception) -> dict[str, Any]:
    """The frame that tells of an error. One that is not of our kinds is a mistake of the server: it tells its class."""
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
    """The reply, unless it tells of an error: then that, as the server had it."""
    if "error" in reply:
        raise _KINDS.get(reply["error"]["kind"], FabricError)(reply["error"]["text"])
    return reply


def connect(directory: RuntimeDirectory) -> socket.socket:
    """The client's side: a connection to a testbed. Raises FabricError when nobody answers."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with directory.socket_path() as path:
            connection.connect(path)
    except OSError:
        connection.close()
        raise _gone(directory.name) from None
    return connection


def ask(directory: RuntimeDirectory, request: dict[str, Any]) -> Any:
    """One verb and its answer. Raises InputError, FabricError or StoreError as the server did."""
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
    except (ChannelClosedError, BadFrameError, OSError):
        raise _gone() from None
    return values


def receive(
    connection: socket.socket, *, max_descriptors: int = MAX_DESCRIPTORS
) -> tuple[dict[str, Any], tuple[int, ...]]:
    """One frame and its descriptors, which are the caller's to close. Raises ChannelClosedError at the end,
    BadFrameError for what is none.
    """
    head, descriptors, flags, _address = socket.recv_fds(
        connection, LENGTH.size, max(1, max_descriptors), socket.MSG_CMSG_CLOEXEC
    )
    try:
        if not head:
            raise ChannelClosedError("end of file")
        if len(descriptors) > max_descriptors or flags & socket.MSG_CTRUNC:
            raise BadFrameError(f"it carries more than {max_descriptors} descriptors")
        head += receive_exactly(connection, LENGTH.size - len(head))
        (length,) = LENGTH.unpack(head)
        if length > MAX_PACKED_BYTES:
            raise BadFrameError(f"it has {length} bytes, at most {MAX_PACKED_BYTES} are allowed")
        return unpacked(receive_exactly(connection, length)), tuple(descriptors)
    except BaseException:
        close_all(descriptors)
        raise


def unpacked(body: bytes) -> dict[str, Any]:
    """The values of a frame's body. Raises BadFrameError."""
    inflator = zlib.decompressobj()
    try:
        plain = inflator.decompress(body, MAX_PLAIN_BYTES)
        if not inflator.eof:
            raise BadFrameError(f"it is cut off, or has more than {MAX_PLAIN_BYTES} bytes")
        values = json.loads(plain)
    except (zlib.error, ValueError, RecursionError) as error:
        raise BadFrameError(f"it is no JSON in zlib ({error})") from None
    if not isinstance(values, dict):
        raise BadFrameError("it holds no JSON object")
    return values


def answer(connection: socket.socket, values: dict[str, Any]) -> None:
    """The server's side: send a frame to a client that may be gone."""
    with contextlib.suppress(OSError):
        connection.sendall(pack(values))


def close_all(descriptors: Sequence[int]) -> None:
    """Close each."""
    for descriptor in descriptors:
        os.close(descriptor)


def _gone(name: str | None = None) -> FabricError:
    which = f"the testbed {name}" if name else "the testbed"
    return FabricError(f"{which} is no longer up: its server has ended; `orderbed up` makes a new one")
