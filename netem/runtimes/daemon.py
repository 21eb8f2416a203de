"""The Docker daemon: connection, the labels of this project's containers, and their removal by exactly these labels.

Clean-up never uses a name pattern, which would also match containers of others.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException

from netem.errors import FabricError
from netem.owner import Owner

LABEL = "orderbed"
"""Label of every container and image of this project, with the value `1`."""

RUN_LABEL = "orderbed.run"
OWNER_LABEL = "orderbed.owner"

DEFAULT_HOST = "unix:///var/run/docker.sock"

REQUEST_TIMEOUT_S = 60
"""Longest wait for one answer: the daemon is slow when the machine is busy."""

REMOVE_BOUND_S = 10.0
SETTLE_S = 1.0
"""Time for further looks: the daemon may still be working on a request of a client that was killed."""

POLL_S = 0.02


def connect(*, timeout_s: int = REQUEST_TIMEOUT_S) -> docker.DockerClient:
    """A client of the daemon that `DOCKER_HOST` or the default socket names; close it after use.

    Raises FabricError when no daemon answers.
    """
    try:
        _require_listener()
        return docker.from_env(timeout=timeout_s)  # requests the daemon's version, so it has answered
    except (DockerException, OSError) as error:
        raise FabricError(
            f"no Docker daemon answers ({root_cause(error)}); start one with `make docker`, or use the world netns"
        ) from error


def require_rights(client: docker.DockerClient) -> None:
    """Raise FabricError for a rootless daemon: its containers' networks and files belong to another user."""
    with explained("Docker does not tell how it is set up"):
        options = client.info().get("SecurityOptions") or []
    if any(option.split(",")[0] == "name=rootless" for option in options):
        raise FabricError(
            "this Docker daemon is rootless and cannot carry nodes: point DOCKER_HOST at one that runs as root "
            "(`make docker` starts one), or use the world netns"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """Names of the containers that a clean-up removed, and of those that it left because their owner lives, or may."""

    removed: tuple[str, ...] = ()
    staying: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Containers left, by the text of their owner (netem.owner.Owner)."""


def down(*, force: bool = False) -> Remains:
    """Remove this project's containers of dead conductors, with `force` those of living ones, too (`orderbed down`).

    Without a daemon there are none. Raises FabricError when a container cannot be removed.
    """
    try:
        client = connect()
    except FabricError:
        return Remains()
    with closing(client):
        removed = remove_containers(client=client) if force else remove_abandoned(client)
        return Remains(removed=tuple(removed), staying=_by_owner(client))


def remove_containers(
    run_id: str | None = None, *, client: docker.DockerClient | None = None, settle: bool = False
) -> list[str]:
    """Remove exactly the containers with the project's label and, if given, this run's. Returns their names.

    `settle` looks again until no new one has appeared for SETTLE_S. Raises FabricError when no daemon answers or a
    container stays.
    """
    wanted = [f"{LABEL}=1"] + ([] if run_id is None else [f"{RUN_LABEL}={run_id}"])
    with ExitStack() as stack:
        client = client or stack.enter_context(closing(connect()))
        removed: set[str] = set()
        quiet_since = time.monotonic()
        deadline = quiet_since + REMOVE_BOUND_S
        while True:
            present = {found["Id"]: _name(found) for found in _list(client, wanted)}
            now = time.monotonic()
            if present:
                quiet_since = now
            elif not settle or now - quiet_since >= SETTLE_S:
                return sorted(removed)
            if now > deadline:
                raise FabricError(f"containers that will not go: {', '.join(present.values())}; see the daemon's log")
            for container_id in present:
                remove_container(client, container_id)
            removed.update(present.values())
            time.sleep(POLL_S)


def remove_abandoned(client: docker.DockerClient) -> list[str]:
    """Remove this project's containers whose conductor has certainly ended. Returns their names."""
    removed = []
    for found in _list(client, [f"{LABEL}=1"]):
        owner = Owner.parse(found["Labels"].get(OWNER_LABEL, ""))
        if owner is not None and owner.is_dead():
            remove_container(client, found["Id"])
            removed.append(_name(found))
    return removed


def remove_container(client: docker.DockerClient, container_id: str) -> None:
    """Remove by force; no error for a container that is already gone or being removed."""
    try:
        client.api.remove_container(container_id, force=True)
    except (DockerException, OSError) as error:
        if not is_gone(error):
            raise FabricError(f"Docker would not remove a container: {root_cause(error)}") from error


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Raise Docker's error as a FabricError that begins with `what`."""
    try:
        yield
    except (DockerException, OSError) as error:
        raise FabricError(f"{what}: {root_cause(error)}") from error


def is_gone(error: Exception) -> bool:
    """Whether the daemon refused because there is no such container, it is not running, or it is being removed."""
    gone = (requests.codes.not_found, requests.codes.conflict)
    return isinstance(error, APIError) and error.response is not None and error.response.status_code in gone


def root_cause(error: BaseException) -> str:
    """The daemon's explanation, or the innermost message: the SDK wraps `No such file or directory` four times."""
    explanation = getattr(error, "explanation", None)
    inner = error.__cause__ or error.__context__
    if explanation:
        return str(explanation)
    if inner is not None:
        return root_cause(inner)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error)


def _require_listener() -> None:
    """Connect to the daemon's socket and close; OSError if none listens. The SDK leaks its socket in that case."""
    scheme, _, path = os.environ.get("DOCKER_HOST", DEFAULT_HOST).partition("://")
    if scheme == "unix":
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)


def _list(client: docker.DockerClient, labels: list[str]) -> list[dict[str, Any]]:
    """All containers with these labels, running or not."""
    with explained("Docker does not list its containers"):
        return list(client.api.containers(all=True, filters={"label": labels}))


def _by_owner(client: docker.DockerClient) -> dict[str, tuple[str, ...]]:
    """Names of all containers of this project, by owner."""
    found: dict[str, list[str]] = {}
    for container in _list(client, [f"{LABEL}=1"]):
        found.setdefault(str(container["Labels"].get(OWNER_LABEL, "")), []).append(_name(container))
    return {owner: tuple(sorted(names)) for owner, names in sorted(found.items())}


def _name(container: Mapping[str, Any]) -> str:
    return str(container["Names"][0]).lstrip("/") if container["Names"] else str(container["Id"])[:12]


# Docker's streams: connections that begin as HTTP and become plain sockets, and the frames on them.

STDOUT_STREAM, STDERR_STREAM = 1, 2
CHUNK_BYTES = 64 * 1024
_FRAME_HEADER = struct.Struct(">BxxxL")


def upgraded(api: docker.APIClient, path: str, **request: Any) -> socket.socket:
    """POST to `path` and take the connection over as a blocking socket. Raises FabricError."""
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
    # The SDK's connection had a time-out, so that the descriptor is non-blocking.
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
    """The same for a terminal, which has one stream without frames."""
    while chunk := connection.recv(CHUNK_BYTES):
        yield STDOUT_STREAM, chunk
