"""The conductor's side of the supervisor: start it, send it requests, and hold handles of the processes it starts."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from netem.errors import CannotStartError, FabricError
from netem.kernel.agent import FABRIC
from netem.kernel.channel import Channel
from netem.kernel.framing import ChannelClosedError

_ROOT = Path(__file__).resolve().parents[2]
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from netem.kernel.supervisor import run; run(sys.argv[2:])"
_REQUEST_TIMEOUT_S = 30.0
_CLOSE_TIMEOUT_S = 1.5
_STARTING = "starting a process"
"""Default name of the step in errors."""
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """Environment of an isolated process, which runs without privileges (netem.kernel.sandbox)."""

    hostname: str = ""
    """Its host name; empty: the machine's."""
    places: Mapping[str, Path] = field(default_factory=dict)
    """Its own directories: absolute place -> directory of the machine that is mounted there, writable."""
    readable: Sequence[Path] = ()
    """Absolute paths of the machine that it may read in addition to the system's."""
    hosts: Path | None = None
    """Its /etc/hosts; None: the machine's."""
    groups: Sequence[Path] = ()
    """Files `cgroup.procs` of the control groups that it is in from its first instruction."""
    has_init: bool = False
    """Whether it has an init, which passes signals on and reaps orphans; else it is process 1."""

    def as_json(self) -> dict[str, Any]:
        return {
            "hostname": self.hostname,
            "places": [[place, str(source)] for place, source in self.places.items()],
            "readable": [str(path) for path in self.readable],
            "hosts": str(self.hosts or ""),
            "groups": [str(path) for path in self.groups],
            "has_init": self.has_init,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecRequest:
    """A command of the operator's in a node, beside its program."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    """Variables added to a basic environment."""
    descriptors: Sequence[int]
    """Become its 0, 1 and 2; the caller keeps them."""
    is_terminal: bool
    """Whether descriptor 0 becomes its controlling terminal."""
    directory: Path
    """Its working directory, if there is that directory."""


class SupervisorLink:
    """A running supervisor. All processes that it started end with it; it ends with this process or at close()."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel, log_path: Path) -> None:
        self._process = process
        self._channel = channel
        self._log_path = log_path

    @classmethod
    def start(cls, log_path: Path) -> SupervisorLink:
        """Start a supervisor in namespaces of its own. Raises FabricError, for example without the privileges."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.settimeout(_REQUEST_TIMEOUT_S)
        # -I and -S: no settings of the user, no site packages; the supervisor needs the standard library only.
        command = [sys.executable, "-I", "-S", "-B", "-c", _BOOT, str(_ROOT), str(theirs.fileno()), str(os.getpid())]
        with theirs, log_path.open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[theirs.fileno()],
                start_new_session=True,
            )  # fmt: skip
        link = cls(process, Channel(ours), log_path)
        try:
            link.ask("hello")
        except FabricError:
            link.close()
            raise
        return link

    @property
    def pid(self) -> int:
        """Pid of the outer process in this process's PID namespace."""
        return self._process.pid

    def ask(
        self, do: str, descriptors: Sequence[int] = (), *, step: str = "", **arguments: Any
    ) -> tuple[dict[str, Any], list[int]]:
        """Send one request. Raises FabricError when the supervisor is gone or refuses; `step` names it in the error."""
        try:
            reply, received = self._channel.request(do, descriptors, **arguments)
        except (ChannelClosedError, TimeoutError, OSError) as error:
            raise FabricError(self._failure_text()) from error
        if "error" in reply:
            raise _refusal(step or do, reply["error"])
        return reply, received

    def agent(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send one request to the supervisor's agent; a refusal is in the reply. Raises FabricError when the supervisor
        is gone."""
        try:
            return self._channel.request(do, **arguments)[0]
        except (ChannelClosedError, TimeoutError, OSError) as error:
            raise FabricError(self._failure_text()) from error

    def spawn(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        descriptors: Sequence[int],
        *,
        namespace: str = FABRIC,
        urgent: bool = False,
        directory: Path | None = None,
        sandbox: Sandbox | None = None,
        inside: Process | None = None,
        hosts: Path | None = None,
        is_terminal: bool = False,
        step: str = _STARTING,
    ) -> Process:
        """Start a program in a namespace that the supervisor holds; `descriptors` become its 0, 1, 2, …

        `urgent`: scheduled before ordinary processes. `sandbox`: in a PID and mount namespace of its own, without
        privileges. `inside`: in the PID namespace of that process, with the machine's files, all privileges, and
        `hosts` as /etc/hosts. `is_terminal`: descriptor 0 becomes its controlling terminal. Raises CannotStartError for
        a program that cannot be executed, FabricError for any other failure.
        """
        reply, received = self.ask(
            "spawn", descriptors, step=step, argv=list(argv), environment=dict(environment),
            namespace=namespace, urgent=urgent, directory=str(directory or Path.cwd()),
            sandbox=None if sandbox is None else sandbox.as_json(),
            inside=inside.pid_in_guest if inside else 0, hosts=str(hosts or ""), terminal=is_terminal,
        )  # fmt: skip
        return Process(self, reply["pid"], received[0], argv[0])

    def failure(self) -> FabricError | None:
        """Error if the supervisor is gone, else None."""
        return FabricError(self._failure_text()) if self._process.poll() is not None else None

    def close(self) -> None:
        """End the supervisor and its processes; returns when they are gone. May be called again."""
        self._channel.close()
        try:
            self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _failure_text(self) -> str:
        try:
            code: int | None = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "the supervisor of the emulated network does not answer; end the run and start it again"
        last = _last_line(self._log_path)
        if code == 1 and "Operation not permitted" in last:
            return "making network namespaces needs root: run the same command with sudo, or as root"
        return f"the supervisor of the emulated network ended (exit code {code}): {last or 'no word in its log'}"


class Process:
    """A process inside the network, held by its pidfd."""

    def __init__(self, supervisor: SupervisorLink, pid: int, handle: int, program: str) -> None:
        self._supervisor = supervisor
        self._pid = pid
        self._handle = handle
        self._code: int | None = None
        self._asking = threading.Lock()
        self.program = program

    @property
    def pid(self) -> int:
        """Its pid in this process's PID namespace; 0 after its end."""
        if self._handle < 0:
            return 0
        lines = Path(f"/proc/self/fdinfo/{self._handle}").read_text(encoding="ascii").splitlines()
        return max(0, next(int(line.split()[1]) for line in lines if line.startswith("Pid:")))

    @property
    def pid_in_guest(self) -> int:
        """Its pid in the supervisor's PID namespace."""
        return self._pid

    def poll(self) -> int | None:
        """Exit code after its end (negative: the signal), else None. Raises FabricError when the supervisor is gone."""
        with self._asking:
            if self._code is None and self._has_ended(0):
                self._code = self._supervisor.ask("status", pid=self._pid)[0]["code"]
                self._release()
            return self._code

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for its end and return the exit code. Raises TimeoutError, FabricError."""
        if self._code is None and not self._has_ended(timeout_s):
            raise TimeoutError(f"{self.program} is still running after {timeout_s} s")
        code = self.poll()
        assert code is not None, "the pidfd said that it has ended"
        return code

    @property
    def scheduling(self) -> str:
        """Its scheduling by the host's kernel: `real time` or `nice N`."""
        text: str = self._supervisor.ask("scheduling", step=f"looking at {self.program}", pid=self._pid)[0][
            "scheduling"
        ]
        return text

    def signal(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal to it, or with `group` to its process group; not to a process that has ended."""
        step = f"signalling {self.program}"
        self._supervisor.ask("signal", step=step, pid=self._pid, signal=int(number), group=group)

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL; for an isolated process this ends its whole PID namespace."""
        self.signal(signal.SIGKILL)

    def freeze(self) -> int:
        """Stop its whole PID namespace. Returns the monotonic time (ns) at which all threads were stopped."""
        at_ns: int = self._supervisor.ask("freeze", step=f"pausing {self.program}", pid=self._pid)[0]["at_ns"]
        return at_ns

    def thaw(self) -> int:
        """Undo freeze. Returns the monotonic time (ns) at which no thread was stopped any more."""
        at_ns: int = self._supervisor.ask("thaw", step=f"resuming {self.program}", pid=self._pid)[0]["at_ns"]
        return at_ns

    def _has_ended(self, timeout_s: float | None) -> bool:
        if self._handle < 0:
            return True
        poller = select.poll()
        poller.register(self._handle, select.POLLIN)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_ms = None if deadline is None else max(0.0, (deadline - time.monotonic()) * 1000)
            if poller.poll(left_ms):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False

    def _release(self) -> None:
        os.close(self._handle)
        self._handle = -1


def _refusal(step: str, error: Mapping[str, Any]) -> FabricError:
    """The error for a refusal of the supervisor."""
    if error.get("exec"):
        text = error["text"] if step == _STARTING else f"{step}: {error['text']}"
        return CannotStartError(text, is_there=error["errno"] not in _NOT_THERE)
    return FabricError(f"{step}: {error['text']} (errno {error['errno']})")


def _last_line(path: Path) -> str:
    """The last line of a log, for an error message."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""
