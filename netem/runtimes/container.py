"""One node in one container: its streams, its end, its freeze. `netem.runtimes.docker` makes them.

An exit code does not show the cause of an end: the kernel at a memory limit, or a `docker kill` from another terminal.
The daemon's events do, in their order (`EventListener`): `oom` and `kill` come before the `die` that they cause. When
the events end by themselves, the daemon is gone.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
import requests
from docker.errors import DockerException

from netem.errors import FabricError
from netem.kernel.supervised import ExecRequest
from netem.runtimes.base import LineSplitter, code_of
from netem.runtimes.cgroups import Limits, over_its_memory
from netem.runtimes.daemon import (
    RUN_LABEL,
    STDERR_STREAM,
    connect,
    frames,
    is_gone,
    remove_container,
    root_cause,
    upgraded,
)
from netem.runtimes.execution import DockerCommand
from topologies.model import NodeName

END_BOUND_S = 10.0
SEND_BOUND_S = 10
LOSS_BOUND_S = 1.0
"""Time within which the end of the daemon is noticed: it breaks all connections at once."""

DAEMON_GONE = (
    "the Docker daemon has gone in mid-run, and the nodes with it: see its log, and start one with `make docker`"
)


class ContainerHandle:
    """One container of one node (netem.runtimes.base.NodeHandle)."""

    def __init__(
        self,
        client: docker.DockerClient,
        container_id: str,
        name: NodeName,
        *,
        on_line: Callable[[str], None],
        log_path: Path,
        event_listener: EventListener,
        limits: Limits,
    ) -> None:
        self._event_listener = event_listener
        self._limits = limits
        self._asked: list[signal.Signals] = []
        self._cause = ""
        self._process: int | None = None
        """Descriptor of its first process, to end it without the daemon; unlike a pid it is never reused."""
        self._client = client
        self._api = client.api
        self._id = container_id
        self._name = name
        self._on_line = on_line
        self._pid = 0
        self._exit: int | None = None
        self._failure: Exception | None = None
        self._gone = threading.Event()
        with ExitStack() as undo:
            self._log = undo.enter_context(log_path.open("ab", buffering=0))
            self._socket = undo.enter_context(_attach(self._api, container_id))
            self._end = undo.enter_context(closing(_ask_for_the_end(self._api, container_id)))
            undo.pop_all()
        self._reader = threading.Thread(target=self._read_all, name=f"output of {name}", daemon=True)
        self._reader.start()

    def find_pid(self) -> int:
        """Pid of the container's first process on this machine. Raises FabricError if the daemon is on another one."""
        state = self._ask("inspect", lambda: self._api.inspect_container(self._id)["State"])
        self._pid = int(state["Pid"]) if state else 0
        if self._pid == 0:
            raise FabricError(f"the container of {self._name} ended before its program could start")
        with suppress(ProcessLookupError):
            self._process = self._process or os.pidfd_open(self._pid)
        try:
            groups = Path(f"/proc/{self._pid}/cgroup").read_text(encoding="utf-8")
        except FileNotFoundError:
            groups = ""
        if self._id not in groups:
            raise FabricError(
                "the Docker daemon runs its containers on another machine: unset DOCKER_HOST, or use the world netns"
            )
        return self._pid

    def enter(self, request: ExecRequest) -> DockerCommand:
        """See `NodeHandle.enter`. Its working directory is the image's: the caller's is not in the container."""
        if self._gone.is_set():
            raise FabricError(f"{self._name} has ended and its container with it: restart it, then enter it")
        return DockerCommand.start(self._id, self._name, request)

    def send(self, line: str) -> None:
        """See `NodeHandle.send`. Also raises FabricError when the node has not read for SEND_BOUND_S."""
        if self._gone.is_set():
            raise FabricError(f"{self._name} has ended: it cannot be told {line!r}")
        try:
            self._socket.sendall(line.encode() + b"\n")
        except BlockingIOError as error:
            raise FabricError(f"{self._name} does not read its standard input") from error
        except OSError as error:
            raise FabricError(f"{self._name} has ended: it cannot be told {line!r} ({error.strerror})") from error

    def poll(self) -> int | None:
        """See `NodeHandle.poll`. Raises FabricError when the node's output could not be kept (a full disk)."""
        if self._failure is not None:
            if self._event_listener.await_loss(LOSS_BOUND_S):
                raise FabricError(DAEMON_GONE) from self._failure
            raise FabricError(f"lost track of {self._name}: {self._failure}") from self._failure
        return self._exit

    def cause(self) -> str:
        """See `NodeHandle.cause`."""
        return self._cause

    def signal(self, number: signal.Signals) -> None:
        """See `NodeHandle.signal`. Not through the daemon, which would thaw a frozen container."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, number)

    def pid(self) -> int:
        """See `NodeHandle.pid`."""
        return 0 if self._gone.is_set() else self._pid

    def kill(self) -> None:
        """See `NodeHandle.kill`. When it returns, the container and its network namespace are gone."""
        self._asked.append(signal.SIGKILL)
        self._ask("kill", lambda: self._api.kill(self._id, "SIGKILL"))
        if not self._gone.wait(END_BOUND_S):
            raise FabricError(f"the container of {self._name} is still there {END_BOUND_S:.0f} s after SIGKILL")

    def pause(self) -> None:
        """See `NodeHandle.pause`."""
        self._refuse_ended("paused")
        self._ask("pause", lambda: self._api.pause(self._id))
        wait_frozen(self._pid, frozen=True)

    def resume(self) -> None:
        """See `NodeHandle.resume`."""
        self._refuse_ended("resumed")
        self._ask("resume", lambda: self._api.unpause(self._id))
        try:
            wait_frozen(self._pid, frozen=False)
        except FabricError:
            if Path(f"/proc/{self._pid}").exists():
                raise
            # It ran, and ended at once by a pending signal. `poll` reports that.

    def close(self) -> None:
        """Remove the container if it is still there, and wait for the reader.

        Without a daemon its processes are killed; the next run or `orderbed down` removes the daemon's entry.
        """
        self._asked.append(signal.SIGKILL)
        try:
            if self._process is not None and self._event_listener.is_lost:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._process, signal.SIGKILL)
            else:
                remove_container(self._client, self._id)
        finally:
            self._close_process()
        if not self._gone.wait(END_BOUND_S):
            raise FabricError(f"the output of {self._name} does not end although its container is gone")
        self._reader.join()

    def _refuse_ended(self, what: str) -> None:
        code = self.poll()
        if code is not None:
            raise FabricError(f"{self._name} cannot be {what}: it has ended with exit code {code}")

    def _close_process(self) -> None:
        if self._process is not None:
            os.close(self._process)
            self._process = None

    def _ask(self, verb: str, action: Callable[[], Any]) -> Any:
        """Result of `action`; None when the container is not running any more, which `poll` will report."""
        try:
            return action()
        except (DockerException, OSError) as error:
            if is_gone(error):
                return None
            raise FabricError(f"Docker would not {verb} {self._name}: {root_cause(error)}") from error

    def _read_all(self) -> None:
        """Reader thread: output lines to `on_line`, standard error to the log; at last, the exit code."""
        try:
            try:
                with self._socket, self._log:
                    self._read_streams()
            finally:
                with closing(self._end):
                    code = code_of(int(self._end.json()["StatusCode"]))
                self._remove_ended(code)
                self._exit = code
        except Exception as error:
            # Kept and raised by `poll` in the conductor's thread: an exception here would go unnoticed.
            self._failure = error
        finally:
            self._gone.set()

    def _remove_ended(self, code: int) -> None:
        """Remove the container, also if a user has started it again: it would run without its network. Then note the
        cause of its end.
        """
        remove_container(self._client, self._id)
        _await_removal(self._api, self._id)
        seen = self._event_listener.events_of(self._id)
        self._cause = cause_of_end(seen, code, asked=self._asked, memory_bytes=self._limits.memory_bytes)

    def _read_streams(self) -> None:
        lines = LineSplitter()
        for stream, chunk in frames(self._socket):
            if stream == STDERR_STREAM:
                self._log.write(chunk)
                continue
            for line in lines.feed(chunk):
                self._on_line(line)
        for line in lines.close():
            self._on_line(line)


def _attach(api: docker.APIClient, container_id: str) -> socket.socket:
    """The container's three standard streams as one connection; `frames` splits it."""
    connection = upgraded(
        api, f"containers/{container_id}/attach", params={"stream": 1, "stdin": 1, "stdout": 1, "stderr": 1}
    )
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_BOUND_S, 0))
    return connection


def _ask_for_the_end(api: docker.APIClient, container_id: str) -> requests.Response:
    """Request for the container's end, sent before its start, so that no end is missed; answered at the end."""
    response = _wait(api, container_id, "next-exit")
    response.raise_for_status()
    return response


def _await_removal(api: docker.APIClient, container_id: str) -> None:
    with closing(_wait(api, container_id, "removed")) as response:
        if response.status_code != requests.codes.not_found:  # not found: it is gone already
            response.raise_for_status()
            response.json()


def _wait(api: docker.APIClient, container_id: str, condition: str) -> requests.Response:
    return api.post(
        f"{api.base_url}/v{api.api_version}/containers/{container_id}/wait",
        params={"condition": condition},
        stream=True,
        timeout=None,
    )


FREEZE_BOUND_S = 5.0
POLL_S = 0.001


def wait_frozen(pid: int, *, frozen: bool) -> None:
    """Return once the control group of `pid` is frozen (or thawed).

    Raises FabricError when that has not happened within FREEZE_BOUND_S, or cannot be read.
    """
    state = freezer_file(pid)
    deadline = time.monotonic() + FREEZE_BOUND_S
    while is_frozen(state) is not frozen:
        if time.monotonic() > deadline:
            raise FabricError(f"{state} does not say {'frozen' if frozen else 'thawed'} after {FREEZE_BOUND_S:.0f} s")
        time.sleep(POLL_S)


def is_frozen(state: Path) -> bool:
    """Whether a `freezer.state` (version 1) or `cgroup.events` (version 2) file reports a frozen group."""
    try:
        text = state.read_text(encoding="ascii")
    except OSError as error:
        raise FabricError(f"cannot see whether the node is frozen: {error}") from error
    if state.name == "freezer.state":
        return text.strip() == "FROZEN"
    return "frozen 1" in text.splitlines()


def freezer_file(pid: int, proc: Path = Path("/proc")) -> Path:
    """File with the freezer state of `pid`: version 1 if the freezer is mounted as such, else version 2."""
    try:
        groups = (proc / str(pid) / "cgroup").read_text(encoding="utf-8").splitlines()
        mounts = (proc / "self" / "mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise FabricError(f"cannot see whether the node is frozen: {error}") from error
    paths = {tuple(controllers.split(",")): path for _, controllers, path in (line.split(":", 2) for line in groups)}
    for kind, controller, name in (("cgroup", "freezer", "freezer.state"), ("cgroup2", "", "cgroup.events")):
        path = next((path for controllers, path in paths.items() if controller in controllers), None)
        mount = _mount_point(mounts, kind, controller)
        if path is not None and mount is not None and (mount / path.lstrip("/") / name).exists():
            return mount / path.lstrip("/") / name
    raise FabricError("cannot see whether the node is frozen: no control group file system with a freezer is mounted")


def _mount_point(mounts: list[str], kind: str, controller: str) -> Path | None:
    """Mount point of the control-group file system `kind` that carries `controller` (version 2: any)."""
    for line in mounts:
        before, _, after = line.partition(" - ")
        file_system, _, options = after.split(" ", 2)
        if file_system == kind and (not controller or controller in options.split(",")):
            return Path(before.split(" ")[4])
    return None


EVENT_BOUND_S = 5.0
"""Longest wait for the event of a known end, which comes within milliseconds."""

EVENTS = ["oom", "kill", "die"]


@dataclass(slots=True)
class ContainerEvents:
    """Events of one container until its death."""

    memory_ran_out: bool = False
    signals: list[int] = field(default_factory=list)
    """Signals that any client sent through the daemon."""
    deaths: int = 0


class EventListener:
    """Listener for the daemon's events on the containers of a run. Any thread may use it."""

    def __init__(self, run_id: str) -> None:
        """Raises FabricError when the daemon sends no events."""
        self._seen: defaultdict[str, ContainerEvents] = defaultdict(ContainerEvents)
        self._news = threading.Condition()
        self._is_closed = False
        self._is_lost = False
        self._client = connect()
        try:
            filters = {"type": ["container"], "event": EVENTS, "label": [f"{RUN_LABEL}={run_id}"]}
            self._events = self._client.api.events(since=int(time.time()), filters=filters, decode=True)
        except (DockerException, OSError) as error:
            self._client.close()
            raise FabricError(f"Docker does not tell what becomes of containers: {root_cause(error)}") from error
        self._listener = threading.Thread(target=self._listen, name="events of Docker", daemon=True)
        self._listener.start()

    @property
    def is_lost(self) -> bool:
        """Whether the daemon is gone, so that no more events of this run's containers arrive."""
        return self._is_lost

    def events_of(self, container_id: str) -> ContainerEvents:
        """Events of a container that has died. Waits for the event of its death, or for the end of the daemon."""
        with self._news:
            self._news.wait_for(lambda: self._seen[container_id].deaths > 0 or self._is_lost, EVENT_BOUND_S)
            return self._seen[container_id]

    def await_loss(self, timeout_s: float) -> bool:
        """Whether the end of the daemon is noticed within this time."""
        with self._news:
            return self._news.wait_for(lambda: self._is_lost, timeout_s)

    def close(self) -> None:
        self._is_closed = True
        with suppress(DockerException, OSError, requests.RequestException):  # it may have closed already
            self._events.close()
        self._listener.join(EVENT_BOUND_S)
        self._client.close()

    def _listen(self) -> None:
        # If the stream ends in any way but `close`, no more events arrive: `is_lost` becomes true.
        with suppress(Exception), closing(self._events):
            for event in self._events:
                with self._news:
                    self._take(event)
                    self._news.notify_all()
        with self._news:
            self._is_lost = not self._is_closed
            self._news.notify_all()

    def _take(self, event: dict[str, Any]) -> None:
        seen = self._seen[event["Actor"]["ID"]]
        match event["Action"]:
            case "oom":
                seen.memory_ran_out = True
            case "kill":
                number = event["Actor"]["Attributes"].get("signal", "")
                seen.signals.append(int(number) if number.isdigit() else 0)
            case "die":
                seen.deaths += 1


def cause_of_end(seen: ContainerEvents, code: int, *, asked: Sequence[signal.Signals], memory_bytes: int | None) -> str:
    """Other cause of a container's end; empty: it ended by itself, or as requested."""
    if seen.memory_ran_out and code == -signal.SIGKILL:
        return over_its_memory(memory_bytes)
    others = list(seen.signals)
    for number in asked:
        if number in others:
            others.remove(number)
    if others:
        return f"somebody else ended its container through Docker (kill, stop or restart: signal {others[-1]})"
    return ""
