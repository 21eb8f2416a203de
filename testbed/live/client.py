"""`Testbed`: the client of a testbed that is up, for people, programs and notebooks.

    with Testbed("three-partitions") as testbed:          ends with this block, or with this process
    testbed = Testbed.up("three-partitions", name="lab")  stays up until `down`
    testbed = Testbed.attach("lab")                       a testbed that is up already

All methods may be called from any thread. They raise InputError for an invalid request (before anything has changed)
and FabricError when the network, the kernel or Docker refuses, or the testbed is no longer up.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from netem.errors import FabricError
from netem.kernel.framing import readable
from netem.runtimes.base import Program
from netem.wiring.steps import KernelOption
from node.registry import PROTOCOLS
from testbed import paths
from testbed.live import directory as places
from testbed.live import rpc
from testbed.live.commands import CHUNK_BYTES, Completed, Running, run_on_terminal
from testbed.live.directory import RuntimeDirectory
from testbed.live.starter import StartRequest, start_server
from testbed.live.status import CaptureStatus, Counters, Description, LinkStatus, NodeStatus
from topologies.formats.errors import InputError
from topologies.formats.yaml_source import read
from topologies.load import find, loads, names
from topologies.model import Topology

if TYPE_CHECKING:
    from testbed.spec.values import Experiment

Selectors: TypeAlias = "str | Iterable[str]"
"""One selector such as `p1/*`, or several."""

FaultLine: TypeAlias = Mapping[str, Any]
"""Line of faults.jsonl on a change: asked, issued, effective, and the values read back from the kernel."""

WORLDS = ("auto", "netns", "docker")
KERNELS = tuple(request.value for request in KernelOption)
GONE_TIMEOUT_S = 30.0
STREAM_END_TIMEOUT_S = 1.0
"""Wait for streams after a command's end: processes that it left in the background may hold them open for ever."""


def running() -> list[Description]:
    """All testbeds that are up on this machine, by name."""
    return places.descriptions()


class Testbed:
    """One testbed. If made here, it ends with `close`, its `with` block, or this process, however that ends."""

    __test__ = False  # its name looks like a test to pytest

    def __init__(
        self,
        topology: str | Path | None = None,
        *,
        experiment: str | Path | None = None,
        name: str | None = None,
        world: str = "auto",
        kernel: str = "auto",
        image: str | None = None,
        program: Program | None = None,
        runs: str | Path = "runs",
        stays: bool = False,
        on_progress: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """Bring up `topology` (a shipped name or a file); returns when every node is there.

        `experiment`, in its directory: a shipped name or a file; the nodes are the members of its group, and its faults
        and its end are left out. `name`: the topology's when not given. `image`: of the containers, in world docker.
        `program`: the main process of each node; without one a node idles. `stays`: as by `up`.
        Raises InputError and FabricError; nothing is left behind then.
        """
        if (topology is None) == (experiment is None):
            raise InputError("expected either a topology or an experiment")
        members = None if experiment is None else _members(experiment)
        if members is not None:
            if program is not None:
                raise InputError("the nodes run the protocol of the experiment; leave the program out")
            network, text, source = members.topology, members.topology_text, str(experiment)
        else:
            assert topology is not None
            _refuse_experiment(topology)
            document = read(find(topology))
            network, text, source = loads(document.text, document.source), document.text, document.source
        for option, given, allowed in (("world", world, WORLDS), ("kernel", kernel, KERNELS)):
            if given not in allowed:
                raise InputError(f"--{option}: {given!r} is none of {', '.join(allowed)}")
        directory = RuntimeDirectory.of(network.name if name is None else name)
        directory.refuse_taken()  # an early answer; the server checks again
        request = StartRequest(
            name=directory.name,
            topology_text=text,
            topology_source=source,
            world=world,
            kernel=kernel,
            image=image,
            program=program,
            runs=Path(runs).absolute(),
            stays=stays,
            experiment_text=None if members is None else members.text,
            experiment_folder=None if members is None or members.folder is None else members.folder.absolute(),
        )
        self._join(directory, start_server(request, on_progress), owns=not stays)

    @classmethod
    def up(cls, topology: str | Path | None = None, **options: Any) -> Testbed:
        """A testbed that stays up after this process, until `down`. Options as of `Testbed`."""
        return cls(topology, stays=True, **options)

    @classmethod
    def attach(cls, name: str | None = None) -> Testbed:
        """The testbed called `name`, or the only one that is up. Raises InputError when there is none."""
        directory = places.the_directory(name)
        made = cls.__new__(cls)
        made._join(directory, rpc.ask(directory, {"do": "describe"}), owns=False)
        return made

    def _join(self, directory: RuntimeDirectory, about: Mapping[str, Any], *, owns: bool) -> None:
        self._directory = directory
        self._owns = owns
        self.description = Description.from_json(about["description"])
        self.topology: Topology = loads(about["topology"], directory.name)

    def __enter__(self) -> Testbed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        return self._directory.name

    @property
    def directory(self) -> Path:
        """Its record: topology.yaml, manifest.json, faults.jsonl, captures, nodes/*.log."""
        return self.description.directory

    # Status.

    def nodes(self) -> tuple[NodeStatus, ...]:
        """Every node as it is now, in the topology's order."""
        return tuple(NodeStatus.from_json(one) for one in self._ask("nodes"))

    def links(self) -> tuple[LinkStatus, ...]:
        """Every link between routers as it is now."""
        return tuple(LinkStatus.from_json(one) for one in self._ask("links"))

    def counters(self) -> Counters:
        """The kernel's counters of every port, link and bus."""
        return Counters.from_json(self._ask("counters"))

    def capturing(self) -> CaptureStatus | None:
        """The running capture, if there is one."""
        found = self._ask("capturing")
        return None if found is None else CaptureStatus.from_json(found)

    def logs(self, node: str) -> str:
        """Output of a node's main process so far, both streams, all incarnations; of an absent node it is empty."""
        return self.log_path(node).read_bytes().decode("utf-8", errors="replace")

    def log_path(self, node: str) -> Path:
        """The file that `logs` reads."""
        return Path(self._ask("log", node=node))

    def failure(self) -> str | None:
        """Reason why the network is gone although the testbed is up (a killed kernel), or None."""
        failure: str | None = self._ask("failure")
        return failure

    # Commands in nodes.

    def run(
        self,
        node: str,
        argv: Sequence[str],
        *,
        input: bytes = b"",  # noqa: A002  # as subprocess.run calls it
        timeout_s: float | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Completed:
        """Run a command in a node and wait for it. Raises TimeoutError, after it was killed.

        It runs in the network, PID and mount namespaces of the node's main process, with the rights of the testbed's
        owner and not those of the node's program. In a node that has crashed (world netns) it has the network only.
        """
        with self.start(node, argv, environment=environment) as command:
            return _communicate(command, input, timeout_s)

    def start(
        self,
        node: str,
        argv: Sequence[str],
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        environment: Mapping[str, str] | None = None,
        is_terminal: bool = False,
    ) -> Running:
        """Start a command in a node. Streams that are None become pipes, on `Running`; others are descriptors.

        `is_terminal`: the descriptors are a terminal that becomes the command's controlling one. Raises InputError and
        FabricError, also when there is no such program.
        """
        with ExitStack() as undo:
            ends: list[tuple[int, IO[bytes] | None]] = [
                _end(given, is_input=number == 0, undo=undo) for number, given in enumerate((stdin, stdout, stderr))
            ]
            keep = undo.enter_context(ExitStack())
            for _descriptor, pipe in ends:
                if pipe is not None:
                    keep.callback(pipe.close)
            connection = keep.enter_context(rpc.connect(self._directory))
            request = {
                "do": "exec",
                "node": node,
                "argv": list(argv),
                "environment": dict(environment or {}),
                "terminal": is_terminal,
                "directory": str(Path.cwd()),
            }
            rpc.tell(connection, request, [descriptor for descriptor, _pipe in ends])
            rpc.raise_refusal(rpc.hear(connection))
            keep.pop_all()
            pipes = [pipe for _descriptor, pipe in ends]
            return Running(connection, argv, stdin=pipes[0], stdout=pipes[1], stderr=pipes[2])

    def terminal(
        self,
        node: str,
        argv: Sequence[str],
        stdin: int = 0,
        stdout: int = 1,
        stderr: int = 2,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Run a command on the given streams of this process and return its exit code.

        If `stdin` and `stdout` are a terminal, the command gets a pseudo-terminal of the same size; this terminal is
        raw meanwhile. Ctrl-C and a closed terminal then reach the command as from any shell.
        """
        return run_on_terminal(self.start, node, argv, (stdin, stdout, stderr), dict(environment or {}))

    # Changes.

    def impair(self, targets: Selectors, *, direction: str = "to-node", **changes: Any) -> tuple[FaultLine, ...]:
        """Change ports of nodes, in the words of experiment files: loss="10 %", delay="20 ms", rate="10 Mbit/s", …

        Parameters that are not named keep their values. `direction`: to-node, from-node or both.
        """
        return self._change("impair", impair={"targets": _list(targets), "direction": direction, **changes})

    def impair_link(self, link: Selectors, *, direction: str = "both", **changes: Any) -> tuple[FaultLine, ...]:
        """Change links between routers. `direction`: there (from the first partition of its name), back or both."""
        return self._change("impair", impair={"links": _list(link), "direction": direction, **changes})

    def restore(self, targets: Selectors | None = None, *, links: Selectors | None = None) -> tuple[FaultLine, ...]:
        """Reset ports, or links, to the topology's impairments; without arguments, all of both."""
        given = {"targets": targets, "links": links}
        return self._change("restore", restore={key: _list(one) for key, one in given.items() if one is not None})

    def cut(self, *groups: Selectors, links: Selectors | None = None) -> tuple[FaultLine, ...]:
        """Cut nodes in different groups off from each other, both ways, or cut links between routers."""
        if links is not None:
            return self._change("cut", cut={"links": _list(links)} | ({"groups": []} if groups else {}))
        return self._change("cut", cut={"groups": [_list(group) for group in groups]})

    def cut_one_way(self, senders: Selectors, receivers: Selectors) -> tuple[FaultLine, ...]:
        """Drop frames from `senders` to `receivers`; the way back is open."""
        return self._change("cut", cut={"from": _list(senders), "to": _list(receivers)})

    def heal(self) -> tuple[FaultLine, ...]:
        """End all cuts. Without a cut, nothing happens and there is no line."""
        return self._change("heal")

    def crash(self, targets: Selectors) -> tuple[FaultLine, ...]:
        """SIGKILL to all processes of these nodes; data that they had not sent is lost."""
        return self._change("crash", targets=_list(targets))

    def restart(self, targets: Selectors) -> tuple[FaultLine, ...]:
        """Start the next incarnation of nodes that crashed or ended, with the present impairments of their ports."""
        return self._change("restart", targets=_list(targets))

    def pause(self, targets: Selectors) -> tuple[FaultLine, ...]:
        """Freeze all processes of these nodes; their kernels go on receiving."""
        return self._change("pause", targets=_list(targets))

    def resume(self, targets: Selectors) -> tuple[FaultLine, ...]:
        """Let paused nodes go on."""
        return self._change("resume", targets=_list(targets))

    def join(self, targets: Selectors) -> tuple[FaultLine, ...]:
        """Let absent members, and members that have left, join the group."""
        return self._change("join", targets=_list(targets))

    def leave(self, targets: Selectors) -> tuple[FaultLine, ...]:
        """Let members leave the group; their processes idle. Raises InputError for the first that cannot."""
        return self._change("leave", targets=_list(targets))

    # Capture.

    def start_capture(self, path: str | Path | None = None) -> Path:
        """Record every frame at every switch port, both ways. Returns the file, by default one in the record."""
        return Path(self._ask("start_capture", **({} if path is None else {"path": str(Path(path).absolute())})))

    def stop_capture(self) -> dict[str, Any]:
        """End the capture; `path`, `frames`, `bytes`, `kernel_dropped_frames` and `complete` of the whole file."""
        counts: dict[str, Any] = self._ask("stop_capture")
        return counts

    # End.

    def down(self) -> None:
        """End the testbed, also one of another process; returns when nothing is left. Its capture is closed whole."""
        server = _hold(self.description.server_pid)
        try:
            self._ask("down")
        finally:
            _wait_gone(server, self.name)
            if self._directory.is_dead():
                self._directory.sweep()

    def close(self) -> None:
        """Take down a testbed that was made here; an attached one stays up. May be called again."""
        if self._owns:
            self._owns = False
            try:
                self.down()
            except FabricError:
                if not self._directory.is_dead():
                    raise

    def _change(self, do: str, **arguments: Any) -> tuple[FaultLine, ...]:
        return tuple(self._ask(do, **arguments))

    def _ask(self, do: str, **arguments: Any) -> Any:
        return rpc.ask(self._directory, {"do": do, **arguments})


def _members(given: str | Path) -> Experiment:
    from testbed.spec import experiment as spec  # here: it brings pydantic in

    experiment = spec.load(spec.find(given), protocols=PROTOCOLS)
    if experiment.programs:
        raise InputError(f"{given}: some of its nodes run programs of their own, which only `orderbed run` starts")
    if experiment.calls:
        raise InputError(f"{given}: the calls of its workload are drawn for its duration, and a testbed has no end")
    return experiment


def _refuse_experiment(given: str | Path) -> None:
    """Raise InputError for the name or the file of a shipped experiment, given as a topology."""
    path = Path(given)
    is_name = "/" not in str(given) and not path.suffix
    experiment = paths.EXPERIMENTS / f"{given}.yaml" if is_name else path
    if paths.is_file(experiment) and experiment.resolve().parent == paths.EXPERIMENTS and str(given) not in names():
        raise InputError(
            f"{given} is an experiment, not a topology: `orderbed run {given}` runs it; "
            f"topologies that stay up are {', '.join(names())}, or a file of your own"
        )


def _list(given: Selectors) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _end(given: int | None, *, is_input: bool, undo: ExitStack) -> tuple[int, IO[bytes] | None]:
    """The command's end of one stream, and this process's end if it is a pipe. `undo` closes the command's end."""
    if given is not None:
        return given, None
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    theirs, ours = (read_end, write_end) if is_input else (write_end, read_end)
    undo.callback(os.close, theirs)
    return theirs, os.fdopen(ours, "wb" if is_input else "rb", 0 if is_input else -1)


def _communicate(command: Running, given: bytes, timeout_s: float | None) -> Completed:
    """Write its input, read both streams to their ends, and wait. Raises TimeoutError after it was killed."""
    output, errors = bytearray(), bytearray()
    readers = [
        threading.Thread(target=_collect, args=one, daemon=True)
        for one in ((command.stdout, output), (command.stderr, errors))
    ]
    readers.append(threading.Thread(target=_feed, args=(command.stdin, given), daemon=True))
    for reader in readers:
        reader.start()
    try:
        code = command.wait(timeout_s)
    except TimeoutError:
        command.kill()
        command.wait()
        raise
    finally:
        for reader in readers:
            reader.join(STREAM_END_TIMEOUT_S)
    return Completed(argv=command.argv, code=code, stdout=bytes(output), stderr=bytes(errors))


def _collect(pipe: IO[bytes] | None, collected: bytearray) -> None:
    assert pipe is not None, "no descriptor was given for it"
    while piece := os.read(pipe.fileno(), CHUNK_BYTES):
        collected += piece


def _feed(pipe: IO[bytes] | None, given: bytes) -> None:
    assert pipe is not None, "no descriptor was given for it"
    with contextlib.suppress(BrokenPipeError), pipe:  # a command need not read all its input
        pipe.write(given)


def _hold(pid: int) -> int | None:
    """A descriptor that becomes readable at the end of a process; None when it has ended."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _wait_gone(server: int | None, name: str) -> None:
    if server is None:
        return
    try:
        if not readable([server], GONE_TIMEOUT_S):
            raise FabricError(f"the server of the testbed {name} has not ended after {GONE_TIMEOUT_S:.0f} s")
    finally:
        os.close(server)
