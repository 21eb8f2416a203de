"""Docker's streams: connections that begin as HTTP and become plain sockets, and the frames that go over them."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import docker
import requests

from netem.errors import FabricError

STDOUT_STREAM, STDERR_STREAM = 1, 2
CHUNK_BYTES = 64 * 1024
_FRAME_HEADER = struct.Struct(">BxxxL")


def upgraded(api: docker.APIClient, path: str, **request: Any) -> socket.socket:
    """POST to `path` and take the connection over, as a blocking socket of our own. Raises FabricError."""
    response = api.post(
        f"{api.base_url}/v{api.api_version}/{path}",
        headers={"Connection": "Upgrade", "Upgrade": "tcp"},
        stream=True,
        timeout=None,
        **request,
    )
    with closing(response):
        if response.status_code != requests.codes.switching_protocols:
            raise FabricError(f"Docker would not attach to a container: {response.text.strip()}")
        connection = socket.socket(fileno=os.dup(response.raw.fileno()))
    # The SDK's connection had a timeout: the descriptor is non-blocking until told otherwise.
    connection.setblocking(True)
    return connection


def frames(connection: socket.socket) -> Iterator[tuple[int, bytes]]:
    """(stream, bytes) until the connection ends; each frame comes in pieces of at most 64 KiB."""
    with connection.makefile("rb") as file:
        while header := file.read(_FRAME_HEADER.size):
            if len(header) < _FRAME_HEADER.size:
                return
            stream, remaining = _FRAME_HEADER.unpack(header)
            while remaining > 0 and (chunk := file.read1(min(remaining, CHUNK_BYTES))):
                remaining -= len(chunk)
                yield stream, chunk


def plain(connection: socket.socket) -> Iterator[tuple[int, bytes]]:
    """The same of a terminal, which has one stream without frames."""
    while chunk := connection.recv(CHUNK_BYTES):
        yield STDOUT_STREAM, chunk
