"""A user's program in one node, through all incarnations: its directories, its readiness, and its output.

In a run directory, each node has

    nodes/p1.n2.log         both outputs of all incarnations
    nodes/p1.n2/            its working directory, with its files
    nodes/p1.n2.private/    its private directories
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from netem.errors import FabricError
from netem.runtimes.base import FOREIGN_PATH, NodeHandle, Program
from netem.runtimes.cgroups import reason_against
from testbed.spec.program import Place, ProgramChoice, require_simulator, require_world
from testbed.spec.raw import World, has_match
from testbed.spec.values import Experiment
from topologies.formats.errors import InputError
from topologies.model import Node, NodeName, Topology

DRAINED_LINE = "drained"
"""Line that a program with cues writes when it has nothing more to do."""

_SOCKETS = ("tcp", "tcp6", "udp", "udp6")
_LISTENING, _UDP_OPEN = 0x0A, 0x07
"""States of a listening TCP socket and of an unconnected UDP socket (include/net/tcp_states.h)."""


class UserProgram:
    """The user's program of one node, through all its incarnations."""

    def __init__(self, place: Place, log_path: Path, hosts: Path) -> None:
        """`hosts`: its /etc/hosts."""
        self.place = place
        self._hosts = hosts
        self.choice: ProgramChoice = place.program
        self._log_path = log_path

    def prepare(self, incarnation: int) -> Program:
        """Make the directories and the program of an incarnation. Raises FabricError."""
        place = replace(self.place, incarnation=incarnation)
        private = {name: self._private(name) for name in self.choice.private}
        directories = [place.directory, *private.values()]
        try:
            if not self.choice.keep:
                for directory in directories:
                    shutil.rmtree(directory, ignore_errors=not directory.exists())
            if not place.directory.exists():
                for directory in directories:
                    directory.mkdir(parents=True)
                self._write_files(place)
        except (OSError, RecursionError) as error:  # a program may have made a million nested directories
            raise FabricError(f"the directory of {place.node.name} cannot be made: {error}") from error
        return Program(
            argv=tuple(place.fill(word) for word in self.choice.command),
            environment={name: place.fill(text) for name, text in self.choice.environment.items()}
            | place.environment()
            | {"ORDERBED_REALTIME_OFFSET_NS": str(time.time_ns() - time.monotonic_ns())},
            work=place.directory,
            private=private,
            readable=where(self.choice.command[0] if self.choice.command else "", self.choice.environment),
            hosts=self._hosts,
            image=self.choice.image,
            limits=self.choice.limits,
        )

    def listener(self, tell: Callable[[str], None]) -> Callable[[str], None]:
        """Handler of the lines of an incarnation, called in a thread of the runtime: all go to the log, reports also to
        `tell`.
        """
        awaited = self.choice.ready.line

        def on_line(line: str) -> None:
            with self._log_path.open("a", encoding="utf-8", errors="replace") as log:
                log.write(line + "\n")
            nonlocal awaited
            if awaited is not None and has_match(awaited, line):
                awaited = None
                tell("ready")
            if self.choice.cues and line.strip() == DRAINED_LINE:
                tell(DRAINED_LINE)

        return on_line

    def is_ready(self, handle: NodeHandle, since_s: float) -> bool:
        """Whether it is ready by its port or the time since its start; `listener` reports a ready line."""
        ready = self.choice.ready
        if ready.port is not None:
            return has_port(handle.pid(), ready.port)
        if ready.line is not None:
            return False
        return time.monotonic() >= since_s + (ready.after_ns or 0) / 1e9

    def _write_files(self, place: Place) -> None:
        for name, given in self.choice.files.items():
            path = self._file(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(given, Path):
                shutil.copy(given, path)
                continue
            path.write_text(place.fill(given), encoding="utf-8")
            path.chmod(0o755 if given.startswith("#!") else 0o644)

    def _file(self, name: str) -> Path:
        within = next((one for one in self.choice.private if name.startswith(f"{one}/")), None)
        return self.place.directory / name if within is None else self._private(within) / name[len(within) + 1 :]

    def _private(self, name: str) -> Path:
        own = self.place.directory
        return own.with_name(f"{own.name}.private") / name.strip("/")


def user_programs(experiment: Experiment, nodes: Path, *, group: int) -> dict[NodeName, UserProgram]:
    """The program of every node that runs a user's one; `nodes` is the folder `nodes` of the run directory."""
    if not experiment.programs:
        return {}
    hosts = nodes.resolve() / "hosts"
    hosts.parent.mkdir(parents=True, exist_ok=True)
    write_hosts(hosts, experiment.topology)
    return {
        node.name: UserProgram(
            _place(experiment, node, nodes.resolve(), group), nodes / f"{_plain(node.name)}.log", hosts
        )
        for node in experiment.topology.nodes()
        if node.name in experiment.programs
    }


def refusal_of(experiment: Experiment, world: World) -> str:
    """Sentence why this world cannot run the experiment; empty: it can."""
    tells_timestamp = any(call.tells_timestamp for call in experiment.calls)
    sentence = require_simulator(world, experiment.topology, experiment.dissemination, tells_timestamp=tells_timestamp)
    return sentence or require_world(world, experiment.programs, experiment.image)


def require_runnable(experiment: Experiment, world: World) -> None:
    """Raise InputError, before anything has started, when this machine or this world cannot run the experiment."""
    if sentence := refusal_of(experiment, world):
        raise InputError(sentence)
    if sentence := _beyond_programs(experiment):
        raise InputError(sentence)
    if world is World.DOCKER:
        require_images(
            experiment.image,
            (program.image for program in experiment.programs.values()),
            needs_python=experiment.has_protocol,
        )
        return
    for name, program in experiment.programs.items():
        place = _place(experiment, experiment.topology.node(name), Path("/"), 0)
        word = place.fill(program.command[0])
        if not _is_found(word, program, place):
            raise InputError(f"{name}: this machine has no program {word}: install it, or give its path")


def unlimited(experiment: Experiment, world: World) -> str:
    """Sentence why the requested limits cannot be enforced here; empty: they can."""
    asked = [program.limits for program in experiment.programs.values() if program.limits is not None]
    wanted = frozenset(name for limits in asked for name in limits.controllers)
    if world is not World.NETNS or not wanted:
        return ""
    reason = reason_against(wanted)
    return f"programs run without their limits: {reason}" if reason else ""


def without_limits(experiment: Experiment) -> Experiment:
    """The same experiment, its programs unlimited."""
    programs = {name: replace(program, limits=None) for name, program in experiment.programs.items()}
    return replace(experiment, programs=programs)


def has_port(pid: int, port: int) -> bool:
    """Whether a TCP socket listens at this port, or a UDP socket has it, in the network namespace of a process."""
    for kind in _SOCKETS:
        with contextlib.suppress(OSError):  # the process has ended; the fleet notices that
            lines = Path(f"/proc/{pid}/net/{kind}").read_text(encoding="ascii").splitlines()[1:]
            wanted = _LISTENING if kind.startswith("tcp") else _UDP_OPEN
            for line in lines:
                words = line.split()
                if int(words[1].rpartition(":")[2], 16) == port and int(words[3], 16) == wanted:
                    return True
    return False


def _beyond_programs(experiment: Experiment) -> str:
    """Sentence on a setting that only the project's node program supports; else empty."""
    for name in experiment.clocks:
        if name in experiment.programs:
            return f"clocks: {name} runs a program of its own, which reads the machine's clock; leave it out"
    return ""


def where(word: str, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Path of a program on the machine, and the path with links resolved; empty: it is not there."""
    path = environment.get("PATH", FOREIGN_PATH)
    found = shutil.which(word, path=path) if "/" not in word or word.startswith("/") else None
    return () if found is None else tuple({Path(found): None, Path(found).resolve(): None})


def _is_found(word: str, program: ProgramChoice, place: Place) -> bool:
    """Whether a program exists; one in the node's own directory does when it is among the files."""
    if word == "python3" or where(word, program.environment):
        return True
    if "/" not in word:
        return False
    relative = str(Path(word).relative_to(place.directory)) if word.startswith(f"{place.directory}/") else word
    return relative.removeprefix("./") in program.files or word in program.files


def _place(experiment: Experiment, node: Node, nodes: Path, group: int) -> Place:
    return Place(
        topology=experiment.topology,
        node=node,
        program=experiment.programs[node.name],
        directory=nodes / _plain(node.name),
        group=group,
    )


def _plain(name: str) -> str:
    return name.replace("/", ".")


LOCAL = "127.0.0.1 localhost"
"""IPv4 only: nodes have no IPv6 addresses."""


def write_hosts(path: Path, topology: Topology) -> None:
    """Write `hosts_file`, readable by nodes that are not root."""
    path.write_text(hosts_file(topology), encoding="ascii")
    path.chmod(0o644)


def hosts_file(topology: Topology) -> str:
    """A line for each node. p1/n2 is called `n2.p1`, `p1-n2` (its host name) and `n2`; ambiguous names are left out."""
    names = {node.ip: _names(node) for node in topology.nodes()}
    count = Counter([*LOCAL.split(), *(name for each in names.values() for name in each)])
    lines = [" ".join([ip, *(name for name in each if count[name] == 1)]) for ip, each in names.items()]
    return "\n".join([LOCAL, *lines, ""])


def _names(node: Node) -> tuple[str, ...]:
    """Names of a node. The first is shown for its address; it is unique, because names have no dots."""
    own = node.name.removeprefix(f"{node.partition}/")
    return f"{own}.{node.partition}", f"{node.partition}-{own}", own


def require_images(world: str | None, programs: Iterable[str | None], *, needs_python: bool) -> None:
    """Pull missing images. `world`: image of all nodes, which must have Python if a node runs the project's program.

    Raises InputError for an image that is not there or lacks what a node needs, FabricError when no daemon answers.
    """
    named = sorted({image for image in programs if image is not None})
    if world is None and not named:
        return
    from netem.runtimes.daemon import connect
    from netem.runtimes.image import provide_image, require_python, require_shell

    with closing(connect()) as client:
        for key, image in [("image", world), *(("program.image", name) for name in named)]:
            if image is None:
                continue
            require = require_python if key == "image" and needs_python else require_shell
            try:
                provide_image(client, image)
                require(client, image)
            except FabricError as error:
                raise InputError(f"{key}: {error}") from error
