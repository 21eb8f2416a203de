"""Nodes in Docker containers, through the SDK: no Docker network, no privileges, and nothing left behind.

Order of a start, so that a node never runs without its network:

    create -> attach its streams -> start: a shell waits for a line -> connect its network namespace
           -> the line is sent when all that start together are connected -> the shell becomes the node program

No output is lost: the streams are attached before the program writes. A container removes itself when its program ends,
and the program ends when its standard input does; the guard process removes containers that cannot end by themselves,
and the next start or `orderbed down` those that are left after a SIGKILL of all processes.
"""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

from docker.types import LogConfig

from netem.errors import FabricError
from netem.kernel.sandbox import NODE_USER
from netem.owner import Owner
from netem.runtimes.base import Program, hand_over, node_code
from netem.runtimes.cgroups import Limits, cpu_quota_us
from netem.runtimes.container import ContainerHandle, EventListener
from netem.runtimes.daemon import (
    LABEL,
    OWNER_LABEL,
    RUN_LABEL,
    connect,
    explained,
    remove_abandoned,
    remove_container,
    remove_containers,
    require_rights,
)
from netem.runtimes.image import ensure_image, provide_image
from topologies.model import Node

BOUNDING_CAPABILITIES = ["NET_RAW"]
"""Capabilities in the bounding set only: without NET_RAW there the kernel refuses to start `ping`, whose file requests
it. No process has or gains them. The node's user is not root, so the daemon leaves the permitted set empty, also for a
command of the operator's, which runs as root; `no-new-privileges` keeps both from gaining anything by an exec."""

NODE_MEMORY_BYTES = 256 * 1024 * 1024
NODE_PIDS = 64
TMP = "/tmp"  # noqa: S108 (a file system of the container's own)
NODE_TMP_BYTES = 16 * 1024 * 1024
FOREIGN_MEMORY_BYTES = 512 * 1024 * 1024
FOREIGN_PIDS = 256
"""Most processes of a user's program without a limit of its own."""

CODE_PATH = "/orderbed"
"""Mount point in a container of the project's packages that a node may import."""

START_ON_LINE = (
    "/bin/sh",
    "-c",
    'read -r _ || exit; command -v "$1" >/dev/null && exec "$@"; '
    'echo "the image has no program $1: name one that has it (image), or take this machine\'s (--world netns)" >&2; '
    "exit 127",
    "start-on-line",
)
"""Waits for one line, then becomes the program. `read` takes no byte beyond the newline; end of input ends it, too.
It reports a missing program to the node's log, because the files of an image are only visible inside."""


class Wires(Protocol):
    """The network as this runtime uses it: attaches a node's port to the network namespace of a descriptor."""

    def attach(self, node: Node, netns_fd: int) -> None: ...


class DockerRuntime:
    """The nodes of one run as containers (netem.runtimes.base.Runtime). Needs a daemon on this very machine.

    `image` is an image id or a name (`provide_image`); None: `ensure_image` finds or makes one and calls `on_progress`.
    Raises FabricError when no daemon answers, or one that cannot run nodes.
    """

    at_once = 4
    """Several, because the daemon mostly waits, above all for file systems."""

    def __init__(
        self,
        network: Wires,
        *,
        run_id: str,
        image: str | None = None,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._network = network
        self._run_id = run_id
        self._handles: list[ContainerHandle] = []
        self._gathered_handles: list[ContainerHandle] | None = None
        """Containers that wait for others; None: containers do not wait."""
        self._wiring = threading.Lock()
        with ExitStack() as undo:
            self._client = undo.enter_context(closing(connect()))
            require_rights(self._client)
            remove_abandoned(self._client)
            self._code = node_code()
            self.image = (
                ensure_image(self._client, on_progress)
                if image is None
                else provide_image(self._client, image, on_progress)
            )
            self._event_listener = undo.enter_context(closing(EventListener(run_id)))
            self._guard = Guard(run_id)
            undo.pop_all()

    def start(self, node: Node, program: Program, *, on_line: Callable[[str], None], log_path: Path) -> ContainerHandle:
        """See `Runtime.start`; any thread may call. Takes about 0.25 s. After a failure the container is gone when
        FabricError is raised.
        """
        image = self.image if program.image is None else provide_image(self._client, program.image)
        with explained(f"Docker would not create a container for {node.name}"):
            container_id = self._create(node, program, image)
        with ExitStack() as undo:
            undo.callback(remove_container, self._client, container_id)
            with explained(f"Docker would not start {node.name}"):
                handle = ContainerHandle(
                    self._client, container_id, node.name, on_line=on_line, log_path=log_path,
                    event_listener=self._event_listener, limits=limits_of(program),
                )  # fmt: skip
                undo.callback(handle.close)
                self._client.api.start(container_id)
            self._wire(node, handle)
            if self._gathered_handles is None:
                handle.send("")
            else:
                self._gathered_handles.append(handle)
            undo.pop_all()
        self._handles.append(handle)
        return handle

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """See `Runtime.gathered`: all containers get their line at the end."""
        self._gathered_handles = []
        try:
            yield
            for handle in self._gathered_handles:
                handle.send("")
        finally:
            self._gathered_handles = None

    def close(self) -> None:
        """End and remove all containers of this run. Calling it again does nothing."""
        with ExitStack() as last:
            last.callback(self._client.close)
            last.callback(self._guard.close)
            last.callback(self._event_listener.close)
            for handle in self._handles:
                last.callback(handle.close)
            self._handles.clear()
            if not self._event_listener.is_lost:
                remove_containers(self._run_id, client=self._client)

    def __enter__(self) -> DockerRuntime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def facts(self) -> dict[str, Any]:
        """Entries of the manifest: the image, and the default limits of a node. Raises FabricError."""
        with explained("Docker does not tell about the image of the nodes"):
            image = self._client.images.get(self.image)
        ours = {"memory_bytes": NODE_MEMORY_BYTES, "processes": NODE_PIDS}
        foreign = {"memory_bytes": FOREIGN_MEMORY_BYTES, "processes": FOREIGN_PIDS}
        return {
            "image": {"id": image.id, "names": sorted(image.tags)},
            "limits": {"node": ours, "program": foreign},
        }

    def _create(self, node: Node, program: Program, image: str) -> str:
        api = self._client.api
        own_places = _own_places(program)
        limits = limits_of(program)
        quota_us, period_us = cpu_quota_us(limits.cpu_ratio) if limits.cpu_ratio is not None else (None, None)
        host = api.create_host_config(
            network_mode="none",
            cap_drop=["ALL"],
            cap_add=BOUNDING_CAPABILITIES,
            security_opt=["no-new-privileges"],
            read_only=True,
            tmpfs={} if TMP in program.private else {TMP: f"size={NODE_TMP_BYTES},mode=1777"},
            binds={
                str(self._code): {"bind": f"{CODE_PATH}/node", "mode": "ro"},
                **({} if program.hosts is None else {str(program.hosts): {"bind": "/etc/hosts", "mode": "ro"}}),
                **own_places,
            },
            auto_remove=True,
            init=program.work is not None,
            mem_limit=limits.memory_bytes,
            memswap_limit=limits.memory_bytes,
            pids_limit=limits.processes,
            cpu_quota=quota_us,
            cpu_period=period_us,
            log_config=LogConfig(type=LogConfig.types.NONE),
        )
        created = api.create_container(
            image,
            entrypoint=list(START_ON_LINE),
            command=list(program.argv) or self._command_of(image),
            working_dir=None if program.work is None else str(program.work),
            name=f"orderbed-{_plain(self._run_id)}-{_plain(node.name)}-{time.monotonic_ns():x}",
            hostname=_plain(node.name)[:63],
            user=f"{NODE_USER}:{NODE_USER}",
            stdin_open=True,
            environment={"PYTHONPATH": CODE_PATH, "PYTHONUNBUFFERED": "1", **_home(program), **program.environment},
            labels={LABEL: "1", RUN_LABEL: self._run_id, OWNER_LABEL: str(Owner.this_process())},
            host_config=host,
        )
        return str(created["Id"])

    def _command_of(self, image: str) -> list[str]:
        """Default command of the image."""
        own = self._client.images.get(image).attrs["Config"]
        return [*(own.get("Entrypoint") or []), *(own.get("Cmd") or [])]

    def _wire(self, node: Node, handle: ContainerHandle) -> None:
        """Give the container's network namespace to the network, as a descriptor, because a pid could be reused."""
        try:
            namespace = os.open(f"/proc/{handle.find_pid()}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise FabricError(f"cannot reach the network namespace of {node.name}: {error}; run as root") from error
        try:
            with self._wiring:
                self._network.attach(node, namespace)
        finally:
            os.close(namespace)


def _own_places(program: Program) -> dict[str, dict[str, str]]:
    """Docker's mounts of the node's directories on the host, which are made writable for the user inside."""
    if program.work is None:
        return {}
    hand_over(program, NODE_USER)
    places = {str(program.work): program.work, **program.private}
    return {str(source): {"bind": place, "mode": "rw"} for place, source in places.items()}


def _home(program: Program) -> dict[str, str]:
    return {} if program.work is None else {"HOME": str(program.work)}


def limits_of(program: Program) -> Limits:
    """Limits of a node: the requested ones, else the defaults of its kind."""
    is_ours = program.work is None
    given = program.limits or Limits()
    return Limits(
        cpu_ratio=given.cpu_ratio,
        memory_bytes=given.memory_bytes or (NODE_MEMORY_BYTES if is_ours else FOREIGN_MEMORY_BYTES),
        processes=given.processes or (NODE_PIDS if is_ours else FOREIGN_PIDS),
    )


def _plain(text: str) -> str:
    """The text with characters of a container's name and a host name only."""
    return re.sub(r"[^a-zA-Z0-9-]+", "-", text)


END_BOUND_S = 5.0


class Guard:
    """The guard process of one run. Close it after the containers were removed in order."""

    def __init__(self, run_id: str) -> None:
        command = [sys.executable, "-m", "netem.runtimes.docker", str(os.getpid()), run_id]
        root = Path(__file__).parents[2]
        # A session of its own: Ctrl-C and a closed terminal do not reach the guard.
        self._process = subprocess.Popen(
            command, cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        self._process.kill()
        self._process.wait(timeout=END_BOUND_S)


def main(conductor_pid: int, run_id: str) -> None:
    """Wait for the end of the conductor, then remove the containers of `run_id`."""
    _wait_for_the_end(conductor_pid)
    remove_containers(run_id, settle=True)


def _wait_for_the_end(pid: int) -> None:
    try:
        conductor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # The conductor started this process: if it is no longer the parent, its pid may be reused.
        if os.getppid() == pid:
            poll = select.poll()
            poll.register(conductor, select.POLLIN)
            poll.poll()
    finally:
        os.close(conductor)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
