"""The supervisor: init of the network's own PID, mount and network namespace, parent of all processes in it.

    conductor ──socket──> supervisor (PID 1 in there) ──> guest kernel, collector, one child per node

When the conductor ends, however it ends, the supervisor sees the end of its socket (or of the conductor's pidfd, should
a forked child still hold the socket) and exits; the kernel then kills every process of the PID namespace and frees
namespaces, devices and mounts. The same happens when the supervisor itself is killed. Nothing is left to clean up by
hand.

Standard library only: this process must start fast and must not fail because of a missing package.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from netem.kernel.agent import CLONE_NEWNET, NetlinkAgent, Reply, Request, check, libc
from netem.kernel.framing import ChannelClosedError, receive_frame, send_frame
from netem.kernel.sandbox import (
    CLONE_NEWIPC,
    CLONE_NEWNS,
    CLONE_NEWUTS,
    become_init,
    confine,
    give_up_rights,
    mount_node_files,
)

_CLONE_NEWPID = 0x20000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 2, 4, 8, 1 << 14, 1 << 18
_PR_SET_PDEATHSIG = 1
_FREEZE_TIMEOUT_S = 5.0
_FREEZE_GRAIN_S = 0.0005
_EXEC_FAILED, _KILLED = 127, 128
_CONSOLE_MAGIC, _CONSOLE_VERSION, _CONSOLE_TIMEOUT_S = 0xCAFEBABE, 2, 5.0
_CONSOLE_REQUEST, _CONSOLE_ANSWER = struct.Struct("=III512s"), struct.Struct("=III")
_RESET_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGCHLD)

GUEST_MEMORY = Path("/dev/shm")  # noqa: S108  # a file system of its own is mounted there
"""Directory of the guest kernel's memory; it vanishes with the mount."""


def main(control_descriptor: int, conductor: int) -> None:
    """Make the namespaces and start a child in them as init; wait for it. The child is killed with this process."""
    watch = os.pidfd_open(conductor)
    ready, ready_parent = os.pipe()
    check(libc.unshare(CLONE_NEWNS | _CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC), "unshare")
    child = os.fork()
    if child == 0:
        os.close(ready_parent)
        check(libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
        if os.read(ready, 1) != b"x":  # the parent died before its death signal was set
            os._exit(1)
        os.close(ready)
        _keep(socket.socket(fileno=control_descriptor), watch)
    os.close(control_descriptor)
    os.write(ready_parent, b"x")
    _pid, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else _KILLED - code)


def _keep(control: socket.socket, watch: int) -> NoReturn:
    """Run as init: prepare the mounts, then serve until the conductor is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    if GUEST_MEMORY.is_dir():
        _mount("tmpfs", str(GUEST_MEMORY), "tmpfs", _MS_NOSUID | _MS_NODEV)
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    Supervisor(control, watch).serve()
    os._exit(0)


class _ExecError(OSError):
    """The program itself could not be executed; the steps before it succeeded."""


class Supervisor:
    """Serves the conductor's requests: those of the agent, and those on processes."""

    def __init__(self, control: socket.socket, watch: int) -> None:
        self._control = control
        self._watch = watch
        self._agent = NetlinkAgent()
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._exit_codes: dict[int, int | None] = {}
        self._agent.operations |= {
            "signal": self._signal,
            "status": self._status,
            "freeze": self._freeze,
            "thaw": self._thaw,
            "scheduling": self._scheduling,
            "console": self._console,
        }

    def serve(self) -> None:
        """Answer requests until the conductor closes its end or dies."""
        poller = select.poll()
        children, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for descriptor in (self._control.fileno(), self._watch, children):
            poller.register(descriptor, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _event in poller.poll()}
            if self._watch in ready:
                return
            if children in ready:
                os.read(children, 4096)
                self._reap()
            if self._control.fileno() in ready and not self._serve_one():
                return

    def _serve_one(self) -> bool:
        try:
            request, descriptors = receive_frame(self._control)
            if request["do"] == "spawn":
                self._spawn_and_answer(request, descriptors)
            elif request["do"] == "lend":
                send_frame(self._control, {}, [self._agent.namespace(request["name"])])
            else:
                send_frame(self._control, self._agent.perform(request, descriptors))
        except ChannelClosedError:
            return False
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _reap(self) -> None:
        """Reap every dead child; as init it also gets orphans that it did not start."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            if ended.si_pid in self._exit_codes:
                # Before its pid can be reused: helpers of a guest kernel that died would hold its line open.
                _kill_group_quietly(ended.si_pid)
            _pid, status = os.waitpid(ended.si_pid, 0)
            if ended.si_pid in self._exit_codes:
                self._exit_codes[ended.si_pid] = os.waitstatus_to_exitcode(status)

    # Processes.

    def _spawn_and_answer(self, request: Request, descriptors: Sequence[int]) -> None:
        try:
            pid = self._spawn(request, descriptors)
        except OSError as error:
            told = {"errno": error.errno or 0, "text": f"{error.strerror or error}"}
            send_frame(self._control, {"error": told | {"exec": isinstance(error, _ExecError)}})
            return
        self._exit_codes[pid] = None
        handle = os.pidfd_open(pid)
        send_frame(self._control, {"pid": pid}, [handle])
        os.close(handle)

    def _spawn(self, request: Request, descriptors: Sequence[int]) -> int:
        """Start a child with the given descriptors as its 0, 1, 2, …; returns after exec. Raises OSError."""
        if not self._namespace_exists(request["namespace"]):
            raise OSError(errno.ENOENT, f"no namespace named {request['namespace']!r} is held here")
        host = self._host_of(request)
        outcome, report = os.pipe2(os.O_CLOEXEC)
        isolated = request["sandbox"] is not None
        if isolated:
            check(libc.unshare(_CLONE_NEWPID), "unshare")  # of the next child, not of this process
        elif host is not None:
            check(libc.setns(host["pid"], _CLONE_NEWPID), "setns")
        try:
            pid = os.fork()
            if pid == 0:
                self._become(request, descriptors, report, host)
        finally:
            if isolated or host is not None:
                check(libc.setns(self._own_pids, _CLONE_NEWPID), "setns")
            for descriptor in (host or {}).values():
                os.close(descriptor)
        os.close(report)
        with os.fdopen(outcome, "rb") as pipe:
            failure = pipe.read()
        if failure:
            os.waitpid(pid, 0)
            code, text, is_exec = json.loads(failure)
            raise (_ExecError if is_exec else OSError)(code, text)
        return pid

    def _host_of(self, request: Request) -> dict[str, int] | None:
        """The namespaces of the child that a command is to join; None if it only joins a network namespace."""
        pid = request["inside"]
        if not pid:
            return None
        if self._exit_codes.get(pid, 0) is not None:
            raise OSError(errno.ESRCH, f"no child {pid} runs here")
        return {name: os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in ("pid", "uts", "ipc")}

    def _namespace_exists(self, name: str) -> bool:
        try:
            self._agent.namespace(name)
        except OSError:
            return False
        return True

    def _become(
        self, request: Request, descriptors: Sequence[int], report: int, host: Mapping[str, int] | None
    ) -> NoReturn:
        """In the child: execute the program, or report the error."""
        step, sandbox = "prepare", request["sandbox"]
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in _RESET_SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            step = "enter the network namespace of"
            self._agent.enter(request["namespace"])
            if host is not None:
                step = "join the node for"
                check(libc.setns(host["uts"], CLONE_NEWUTS), "setns")
                check(libc.setns(host["ipc"], CLONE_NEWIPC), "setns")
                mount_node_files(request["hosts"])
            if sandbox is not None:
                step = "make room for"
                confine(sandbox)
            step = "pass descriptors to"
            _arrange(descriptors, report)
            if request["terminal"]:
                step = "give a terminal to"
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            if request["urgent"]:
                _raise_priority()
            if sandbox is not None:
                step = "take the rights from"
                give_up_rights()
            step = "enter the directory of"
            os.chdir(request["directory"])
            if sandbox is not None and sandbox["has_init"]:
                step = "give an init to"
                become_init(report)
            step = "start"
            _execute(request["argv"], request["environment"])
        except OSError as error:
            text = f"cannot {step} {request['argv'][0]}: {error.strerror or error}"
            os.write(report, json.dumps([error.errno or 0, text, step == "start"]).encode("utf-8"))
        finally:
            os._exit(_EXEC_FAILED)

    def _status(self, request: Request, _descriptors: Sequence[int]) -> Reply:
        self._reap()
        if request["pid"] not in self._exit_codes:
            raise OSError(errno.ESRCH, f"no child {request['pid']} was started here")
        return {"code": self._exit_codes[request["pid"]]}

    def _signal(self, request: Request, _descriptors: Sequence[int]) -> Reply:
        """Send a signal to a child that was not reaped, or to its process group; not to one that has ended."""
        if self._exit_codes.get(request["pid"], 0) is None:
            send = os.killpg if request["group"] else os.kill
            send(request["pid"], request["signal"])
        return {}

    def _freeze(self, request: Request, _descriptors: Sequence[int]) -> Reply:
        """Send SIGSTOP to a whole PID namespace, repeatedly until every thread of it is stopped."""
        return self._drive(request["pid"], signal.SIGSTOP, "T")

    def _thaw(self, request: Request, _descriptors: Sequence[int]) -> Reply:
        return self._drive(request["pid"], signal.SIGCONT, "RSDI")

    def _scheduling(self, request: Request, _descriptors: Sequence[int]) -> Reply:
        """Scheduling of a child: `real time` or `nice N`."""
        if os.sched_getscheduler(request["pid"]) == os.SCHED_RR:
            return {"scheduling": "real time"}
        return {"scheduling": f"nice {os.getpriority(os.PRIO_PROCESS, request['pid'])}"}

    def _console(self, request: Request, _descriptors: Sequence[int]) -> Reply:
        """Send commands to a guest kernel's management console (mconsole), one by one, up to the first refusal."""
        own = GUEST_MEMORY / "asker"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as console:
            own.unlink(missing_ok=True)
            console.bind(str(own))
            console.settimeout(_CONSOLE_TIMEOUT_S)
            console.connect(request["path"])
            for command in request["commands"]:
                words = command.encode("ascii")
                console.send(_CONSOLE_REQUEST.pack(_CONSOLE_MAGIC, _CONSOLE_VERSION, len(words), words))
                refused, text = _console_answer(console)
                if refused:
                    raise OSError(errno.EINVAL, f"{command}: {text}")
        return {}

    def _drive(self, pid: int, number: signal.Signals, wanted: str) -> Reply:
        inside = _pid_namespace(pid)
        deadline = time.monotonic() + _FREEZE_TIMEOUT_S
        while True:
            astray = [member for member in _members(inside) if _thread_states(member) - set(wanted) - set("ZX")]
            if not astray:
                return {"at_ns": time.monotonic_ns()}
            if time.monotonic() > deadline:
                raise OSError(errno.ETIMEDOUT, f"processes {astray} did not follow {number.name}")
            for member in astray:
                _kill_quietly(member, number)
            time.sleep(_FREEZE_GRAIN_S)


def _console_answer(console: socket.socket) -> tuple[bool, str]:
    """Whether a console command failed, and its output; an answer may come in pieces."""
    said = b""
    while True:
        piece = console.recv(4096)
        refused, more, length = _CONSOLE_ANSWER.unpack_from(piece)
        said += piece[_CONSOLE_ANSWER.size : _CONSOLE_ANSWER.size + length]
        if not more:
            return bool(refused), said.rstrip(b"\0").decode("utf-8", "replace")


def _mount(source: str | None, target: str, kind: str | None, flags: int) -> None:
    def encode(text: str | None) -> bytes | None:
        return None if text is None else text.encode()

    check(libc.mount(encode(source), encode(target), encode(kind), flags, None), target)


def _arrange(descriptors: Sequence[int], report: int) -> None:
    """Make `descriptors` the process's 0, 1, 2, … and close all others but the report pipe (which exec closes)."""
    floor = len(descriptors) + 1
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, floor) for descriptor in descriptors]
    for target, descriptor in enumerate(moved):
        os.dup2(descriptor, target)
    assert report >= floor, "the supervisor's own descriptors come first"
    os.closerange(len(descriptors), report)
    os.closerange(report + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _raise_priority() -> None:
    """Schedule this process before ordinary ones, as a real kernel is: in real time, or at the best niceness if a
    container forbids that, or as before if it forbids both. The network's read-back shows the result.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    except PermissionError:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, -20)


def _execute(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    if "/" in argv[0]:
        os.execve(argv[0], list(argv), dict(environment))  # noqa: S606  # the purpose of this process
    os.execvpe(argv[0], list(argv), dict(environment))  # noqa: S606


def _pid_namespace(pid: int) -> int:
    return Path(f"/proc/{pid}/ns/pid").stat().st_ino


def _members(namespace: int) -> list[int]:
    """Every process in a PID namespace, by pid in this process's namespace."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if _pid_namespace(int(entry.name)) == namespace:
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
    return found


def _thread_states(pid: int) -> set[str]:
    """One letter per thread, as in /proc/PID/stat: the letter follows the last closing bracket."""
    states = set()
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            stat = (thread / "stat").read_bytes()
            states.add(stat.rpartition(b")")[2].split()[0].decode("ascii"))
    except (FileNotFoundError, ProcessLookupError):
        return states  # it ended meanwhile
    return states


def _kill_quietly(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it ended meanwhile


def _kill_group_quietly(leader: int) -> None:
    """Kill the rest of a dead child's process group (each child leads one of its own)."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # the group is empty


def run(arguments: Sequence[str]) -> None:
    """Entry point; arguments: control descriptor, pid of the conductor."""
    try:
        main(int(arguments[0]), int(arguments[1]))
    except OSError as error:
        sys.stderr.write(f"{error.strerror}: {error.filename}\n")
        os._exit(error.errno or 1)
