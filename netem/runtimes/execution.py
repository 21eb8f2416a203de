"""A command of the operator's in a container, through the daemon's exec: streams both ways, exit code, signals.

It runs as root of the container, but without capabilities (netem.runtimes.docker.BOUNDING_CAPABILITIES): it may use
root's files and ping, but neither capture nor change devices. The daemon cannot signal such a command; it gives its
pid, and runs on this machine (`find_pid` has made sure), so the signal is sent directly, through a descriptor that
stays valid for this process alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import threading
import time
import tty
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import docker
from docker.errors import DockerException

from netem.errors import CannotStartError, FabricError
from netem.kernel.framing import readable
from netem.kernel.supervised import ExecRequest
from netem.runtimes.base import code_of
from netem.runtimes.daemon import CHUNK_BYTES, STDERR_STREAM, connect, explained, frames, plain, upgraded
from topologies.model import NodeName

OPERATOR = "0:0"
START_BOUND_S = 30.0
POLL_S = 0.01
_NOT_THERE = re.compile("not found|no such file")
"""The daemon's words for a missing program; it gives no error code."""


class DockerCommand:
    """A command in a container (netem.runtimes.base.Command), with its own threads and its own client of the daemon."""

    def __init__(
        self,
        client: docker.DockerClient,
        command_id: str,
        name: NodeName,
        connection: socket.socket,
        request: ExecRequest,
    ) -> None:
        self._client = client
        self._api = client.api
        self._id = command_id
        self._name = name
        self._connection = connection
        self._is_terminal = request.is_terminal
        self._descriptors = [os.dup(descriptor) for descriptor in request.descriptors]
        self._code: int | None = None
        self._failure: Exception | None = None
        self._ended = threading.Event()
        self._quit_read, self._quit = os.pipe2(os.O_CLOEXEC)
        self._process: list[int] = []
        """Descriptor of its process; empty before its start."""
        self._carriers: list[threading.Thread] = []

    @classmethod
    def start(cls, container_id: str, name: NodeName, request: ExecRequest) -> DockerCommand:
        """Start it. Raises CannotStartError for a missing program, FabricError for a paused container."""
        with ExitStack() as undo:
            client = undo.enter_context(closing(connect()))
            with explained(f"{name} cannot be entered"):
                created = client.api.exec_create(
                    container_id, list(request.argv), stdin=True, tty=request.is_terminal,
                    environment=dict(request.environment), user=OPERATOR,
                )  # fmt: skip
                path = f"exec/{created['Id']}/start"
                asked = {"Detach": False, "Tty": request.is_terminal}
                connection = undo.enter_context(upgraded(client.api, path, json=asked))
            made = cls(client, created["Id"], name, connection, request)
            undo.callback(made.close)
            made.begin(request.argv[0])
            undo.pop_all()
        return made

    def begin(self, program: str) -> None:
        """Wait until it runs (or has ended already), then carry its streams. Raises FabricError if it never ran."""
        deadline = time.monotonic() + START_BOUND_S
        while (found := self._inspect())["Pid"] == 0 and found["ExitCode"] is None:
            if time.monotonic() > deadline:
                raise FabricError(f"{self._name}: Docker has not started {program} after {START_BOUND_S:.0f} s")
            time.sleep(POLL_S)
        if found["Pid"] == 0:
            said = b"".join(chunk for _stream, chunk in self._said())
            reason = _reason(said)
            raise CannotStartError(
                f"{self._name}: cannot start {program}: {reason}", is_there=not _NOT_THERE.search(reason)
            )
        with contextlib.suppress(ProcessLookupError):
            self._process = [os.pidfd_open(found["Pid"])]
        if self._is_terminal:
            tty.setraw(self._descriptors[0])  # the container's own terminal echoes and edits
        for carry in (self._carry_in, self._carry_out):
            carrier = threading.Thread(target=carry, name=f"streams of {self._name}", daemon=True)
            self._carriers.append(carrier)
            carrier.start()

    def poll(self) -> int | None:
        """Exit code after its end, when all its output is written. Raises FabricError when its streams broke."""
        if self._failure is not None:
            raise FabricError(f"lost a command in {self._name}: {self._failure}") from self._failure
        return self._code

    def wait(self, timeout_s: float | None = None) -> int:
        if not self._ended.wait(timeout_s):
            raise TimeoutError(f"a command in {self._name} is still running after {timeout_s} s")
        code = self.poll()
        assert code is not None, "it has ended"
        return code

    def signal(self, number: signal.Signals) -> None:
        """Signal its process group, which it leads; its descriptor shows whether it still lives."""
        if not self._process or self._ended.is_set():
            return
        pid = int(self._inspect()["Pid"])
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process[0], 0)  # its pid was not reused
            if os.getpgid(pid) == pid:
                os.killpg(pid, number)
            else:
                signal.pidfd_send_signal(self._process[0], number)

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the container's terminal."""
        with contextlib.suppress(DockerException, OSError):  # it may have ended meanwhile
            self._api.exec_resize(self._id, height=rows, width=columns)

    def close(self) -> None:
        """Release its resources; a command that still runs goes on without streams."""
        os.write(self._quit, b"x")
        with contextlib.suppress(OSError):  # the daemon may have closed it
            self._connection.shutdown(socket.SHUT_RDWR)
        for carrier in self._carriers:
            carrier.join()
        for descriptor in (*self._descriptors, self._quit_read, self._quit, *self._process):
            os.close(descriptor)
        self._connection.close()
        self._client.close()

    def _inspect(self) -> dict[str, Any]:
        with explained(f"Docker does not tell about a command in {self._name}"):
            found: dict[str, Any] = self._api.exec_inspect(self._id)
        return found

    def _said(self) -> Iterator[tuple[int, bytes]]:
        return plain(self._connection) if self._is_terminal else frames(self._connection)

    def _carry_in(self) -> None:
        """Copy input to the command until the end of either; pass the end of the input on."""
        source = self._descriptors[0]
        with contextlib.suppress(OSError):  # the command reads no more
            while readable([source, self._quit_read]) == [source]:
                if not (piece := os.read(source, CHUNK_BYTES)):
                    self._connection.shutdown(socket.SHUT_WR)
                    return
                self._connection.sendall(piece)

    def _carry_out(self) -> None:
        """Copy output of the command, then get its exit code."""
        try:
            for stream, chunk in self._said():
                _write_all(self._descriptors[2 if stream == STDERR_STREAM else 1], chunk)
            while (found := self._inspect())["Running"]:
                time.sleep(POLL_S)
            self._code = code_of(int(found["ExitCode"]))
        except Exception as error:
            # Kept and raised by `poll`: an exception in this thread would go unnoticed.
            self._failure = error
        finally:
            self._ended.set()


def _write_all(descriptor: int, piece: bytes) -> None:
    """Write all of a piece; if the reader has gone, the rest is dropped, as with any pipe."""
    rest = memoryview(piece)
    with contextlib.suppress(BrokenPipeError):
        while rest:
            rest = rest[os.write(descriptor, rest) :]


def _reason(said: bytes) -> str:
    """The daemon's message without its prefixes: `OCI runtime exec failed: exec failed: …: exec: "x": …`."""
    text = said.decode("utf-8", errors="replace").strip()
    return text.rpartition("exec: ")[2].removesuffix(": unknown") or "no reason given"
