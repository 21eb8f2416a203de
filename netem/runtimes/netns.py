"""Runtime `netns`: each node a process in network, PID and mount namespaces of its own, inside the network.

The network holds the network namespace, which outlives a crash and is there at once for the node's next incarnation. A
node runs as a user without privileges and cannot gain any; of the machine's files it sees the system's, read only
(netem.kernel.sandbox).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

from netem.errors import FabricError
from netem.kernel.sandbox import NODE_USER
from netem.kernel.supervised import ExecRequest, Process, Sandbox
from netem.network import EmulatedNetwork
from netem.runtimes.base import FOREIGN_PATH, LineSplitter, Program, code_of, hand_over, node_code
from netem.runtimes.cgroups import ControlGroup, Limits, over_its_memory
from topologies.model import Node, NodeName

_CHUNK_BYTES = 65536
_KILL_TIMEOUT_S = 5.0
_ROOT = Path(__file__).resolve().parent.parent.parent
_PYTHON = sorted({Path(sys.prefix), Path(sys.exec_prefix), Path(sys.base_prefix), Path(sys.base_exec_prefix)})
"""Directories of the interpreter and its libraries."""


class NetnsRuntime:
    """Runs the nodes of one run inside a network. Used by one thread."""

    at_once = 1
    """One, because the supervisor starts one process after the other, in a few milliseconds each."""

    def gathered(self) -> AbstractContextManager[None]:
        """See `Runtime.gathered`: nothing to do, because the network holds the namespaces of its nodes."""
        return nullcontext()

    def __init__(self, network: EmulatedNetwork) -> None:
        self._network = network
        self._handles: list[NetnsNode] = []
        self._groups: dict[NodeName, ControlGroup] = {}
        self._python = (*_PYTHON, node_code())
        """Paths that the project's node program reads."""

    def __enter__(self) -> NetnsRuntime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, node: Node, program: Program, *, on_line: Callable[[str], None], log_path: Path) -> NetnsNode:
        """Start one incarnation of a node, connected to the network. Raises FabricError when it cannot be started."""
        namespace = self._network.own_namespace(node)
        group = self._group(node, program)
        input_read, input_write = os.pipe()
        output_read, output_write = os.pipe()
        try:
            with log_path.open("ab") as log:
                process = self._network.spawn(
                    _command(program), _environment(program), [input_read, output_write, log.fileno()],
                    namespace=namespace, directory=program.work or Path("/"),
                    sandbox=self._sandbox(node, program, group),
                )  # fmt: skip
        except BaseException:
            os.close(input_write)
            os.close(output_read)
            raise
        finally:
            os.close(input_read)
            os.close(output_write)
        handle = NetnsNode(
            self._network, node, process, os.fdopen(input_write, "wb", 0), os.fdopen(output_read, "rb", 0), on_line,
            hosts=program.hosts, has_init=program.work is not None, group=group, limits=program.limits,
        )  # fmt: skip
        self._handles.append(handle)
        return handle

    def close(self) -> None:
        """Kill every node that is left and wait for it; the network holds their namespaces until it closes."""
        for handle in self._handles:
            if handle.poll_quietly() is None:
                handle.kill()
            handle.release()
        self._handles.clear()
        for group in self._groups.values():
            group.remove()
        self._groups.clear()

    def _sandbox(self, node: Node, program: Program, group: ControlGroup | None) -> Sandbox:
        hand_over(program, NODE_USER)
        work = {} if program.work is None else {str(program.work): program.work}
        return Sandbox(
            hostname="" if program.work is None else node.name.replace("/", "-"),
            places={**program.private, **work},
            readable=[*self._python, *program.readable],
            hosts=program.hosts,
            groups=[] if group is None else group.procs_files(),
            has_init=program.work is not None,
        )

    def _group(self, node: Node, program: Program) -> ControlGroup | None:
        """Control group of all incarnations of a node, with the limits of this one. Raises FabricError."""
        if program.work is None or program.limits is None or not program.limits.controllers:
            return None
        if node.name not in self._groups:
            self._groups[node.name] = ControlGroup.make(node.name, program.limits.controllers)
        self._groups[node.name].set(program.limits)
        return self._groups[node.name]


class NetnsNode:
    """One incarnation of one node."""

    def __init__(
        self,
        network: EmulatedNetwork,
        node: Node,
        process: Process,
        standard_input: IO[bytes],
        standard_output: IO[bytes],
        on_line: Callable[[str], None],
        *,
        hosts: Path | None = None,
        has_init: bool = False,
        group: ControlGroup | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.name = node.name
        self._network = network
        self._node = node
        self._hosts = hosts
        self._has_init = has_init
        self._group = group if limits is not None and limits.memory_bytes is not None else None
        self._limits = limits
        self._kills_before = 0 if self._group is None else self._group.memory_kills()
        self._was_killed = False
        self._unheard: OSError | None = None
        """Reason why its output could not be kept."""
        self._process = process
        self._input = standard_input
        self._output = standard_output
        self._on_line = on_line
        self._reader = threading.Thread(target=self._read, name=f"output of {self.name}", daemon=True)
        self._reader.start()

    def enter(self, request: ExecRequest) -> NetnsCommand:
        """See `NodeHandle.enter`. Of a node that has ended, only the network namespace is left to enter."""
        host = self._process if self._process.poll() is None else None
        environment = _operators_environment() | dict(request.environment)
        request = replace(request, environment=environment)
        return NetnsCommand(self._network.enter(self._node, host, request, hosts=self._hosts))

    def send(self, line: str) -> None:
        """Write one line to its standard input. Raises FabricError when the node is gone."""
        try:
            self._input.write(line.encode("utf-8") + b"\n")
        except (OSError, ValueError) as error:
            raise FabricError(f"{self.name} has ended: it cannot be told {line!r} ({error})") from error

    def poll(self) -> int | None:
        """Exit code after its end (negative: the signal), else None."""
        code = self._process.poll()
        return code_of(code) if code is not None and self._has_init else code

    def poll_quietly(self) -> int | None:
        """The same; a node ends with its network, so FabricError counts as its end."""
        try:
            return self.poll()
        except FabricError:
            return -9

    def cause(self) -> str:
        """See `NodeHandle.cause`."""
        if self._unheard is not None:
            return f"its output cannot be kept ({self._unheard.strerror})"
        if self._group is None or self._was_killed or self.poll() != -signal.SIGKILL:
            return ""
        assert self._limits is not None
        was_hungry = self._group.memory_kills() > self._kills_before
        return over_its_memory(self._limits.memory_bytes) if was_hungry else ""

    def signal(self, number: signal.Signals) -> None:
        """Signal its program, through its init if it has one."""
        self._process.signal(number)

    def pid(self) -> int:
        """Pid of its first process on this machine; 0 after its end."""
        return self._process.pid

    def kill(self) -> None:
        """See `NodeHandle.kill`: SIGKILL to its whole PID namespace."""
        self._was_killed = True
        self._process.kill()
        self._process.wait(_KILL_TIMEOUT_S)
        self._reader.join(_KILL_TIMEOUT_S)

    def pause(self) -> None:
        """Stop all of its processes; returns when every thread is stopped."""
        self._refuse_ended("paused")
        self._process.freeze()

    def resume(self) -> None:
        """Let them run again; returns when none is stopped."""
        self._refuse_ended("resumed")
        self._process.thaw()

    def release(self) -> None:
        """Close the pipes, after the last line has been read."""
        self._input.close()
        self._reader.join(_KILL_TIMEOUT_S)

    def _refuse_ended(self, what: str) -> None:
        code = self._process.poll()
        if code is not None:
            raise FabricError(f"{self.name} cannot be {what}: it has ended with exit code {code}")

    def _read(self) -> None:
        lines = LineSplitter()
        with self._output as output:
            try:
                while chunk := output.read(_CHUNK_BYTES):
                    for line in lines.feed(chunk):
                        self._on_line(line)
                for line in lines.close():
                    self._on_line(line)
            except OSError as error:  # a full disk; a program that went on unheard could not be judged
                self._unheard = error
                with suppress(FabricError):
                    self._process.kill()


class NetnsCommand:
    """A command of the operator's in a node (netem.runtimes.base.Command)."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout_s: float | None = None) -> int:
        return self._process.wait(timeout_s)

    def signal(self, number: signal.Signals) -> None:
        self._process.signal(number, group=True)

    def resize(self, rows: int, columns: int) -> None:
        """No effect: the caller resizes its own terminal, and the kernel notifies the command."""

    def close(self) -> None:
        """No effect: a command that has ended holds no resources."""


def _command(program: Program) -> list[str]:
    first, *others = program.argv
    return [sys.executable if first == "python3" else first, *others]


def _environment(program: Program) -> dict[str, str]:
    """Environment of a node: nothing of this process's, and the same in each run."""
    base = {"PATH": os.defpath, "HOME": "/", "LANG": "C.UTF-8", "PYTHONPATH": str(_ROOT)}
    if program.work is not None:
        base |= {"PATH": FOREIGN_PATH, "HOME": str(program.work), "TMPDIR": str(program.work)}
    return base | dict(program.environment)


def _operators_environment() -> dict[str, str]:
    """Basic environment of a command of the operator's."""
    inherited = {name: os.environ[name] for name in ("HOME", "USER", "SHELL") if name in os.environ}
    return {"PATH": FOREIGN_PATH, "HOME": "/", "LANG": "C.UTF-8"} | inherited
