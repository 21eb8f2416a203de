"""A user's program in a node, as a value, and the placeholders for values that differ from node to node.

Placeholders, such as `{ip:p1/n1}`, stand in a command, in environment variables and in files (docs/programs.md).
Pure: nothing here touches a file or a process.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath

from analysis.checks.properties import Property
from netem.runtimes.cgroups import Limits
from testbed.spec.raw import Dissemination, RawExperiment, RawFrom, RawProgram, Ready, Stop, World
from topologies.formats.errors import did_you_mean
from topologies.formats.units import shown
from topologies.formats.yaml_source import Document, KeyPath
from topologies.model import TRACE_PORT, Node, NodeName, SelectError, Topology, select

NODE_WORDS = ("name", "host", "ip", "index", "number", "partition")
"""Placeholders that refer to each node in turn inside {each …}."""
WORDS = (*NODE_WORDS, "dir", "members", "peers", "first", "trace_ip", "trace_port", "group", "incarnation")
LISTS = ("members", "peers", "nodes")

_EACH = re.compile(
    r"(?<![${])\{each (?P<which>[a-z]+)(?: (?P<between>[^{}]*))?\}\n?"
    r"(?P<body>(?:(?!(?<![${])\{each ).)*?)\{end\}",  # not beyond the next one, so that the time is linear
    re.DOTALL,
)
_WORD = re.compile(r"\{\{(?P<literal>[a-z_]+)\}\}|(?<!\$)\{(?P<word>[a-z_]+|ip:[a-z0-9/-]+)\}")
_LOOSE = re.compile(r"(?<![${])\{(each\b[^{}]*|end)\}?")


MAX_FILLED = 1 << 22
"""Most characters of a text with its placeholders filled in."""


class PlaceholderError(ValueError):
    """A text has a placeholder that does not exist, or becomes too long; `str()` is a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramChoice:
    """A user's program, run by nodes in place of the project's. Texts may have placeholders."""

    command: tuple[str, ...]
    """Empty: the image's own."""
    nodes: tuple[NodeName, ...]
    """All nodes that run it, in member order."""
    image: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str | Path] = field(default_factory=dict)
    """Name, relative to the node's directory or absolute within a private one -> its text, or the file to copy."""
    private: tuple[str, ...] = ()
    keep: bool = True
    ready: Ready
    stop: Stop
    cues: bool = False
    may_end: bool = False
    is_member: bool = False
    promises: tuple[str, ...] = ()
    limits: Limits | None = None

    @property
    def title(self) -> str:
        """The program's own name, or the image's."""
        return Path(self.command[0]).name if self.command else str(self.image)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A program in one node: the values of all placeholders."""

    topology: Topology
    node: Node
    program: ProgramChoice
    directory: Path
    group: int = 0
    incarnation: int = 1

    def fill(self, text: str) -> str:
        """`text` with its placeholders filled in. Raises PlaceholderError."""
        return _joined(self._parts(text))

    def _parts(self, text: str) -> Iterator[str]:
        common, numbers = self._of_place(), {name: place for place, name in enumerate(self.program.nodes, start=1)}
        values = ChainMap(_of_node(self.node, numbers), common)
        since = 0
        for found in _EACH.finditer(text):
            yield _words(text[since : found.start()], values)
            yield self._each(found, common, numbers)
            since = found.end()
        yield _words(text[since:], values)

    def environment(self) -> dict[str, str]:
        """Variables of every program: its identity, and the address for trace records."""
        return {
            "ORDERBED_NAME": self.node.name,
            "ORDERBED_IP": self.node.ip,
            "ORDERBED_MEMBER": str(self.node.index),
            "ORDERBED_INCARNATION": str(self.incarnation),
            "ORDERBED_GROUP": str(self.group),
            "ORDERBED_TRACE_IP": self._monitor_ip,
            "ORDERBED_TRACE_PORT": str(TRACE_PORT),
            "ORDERBED_MEMBERS": ",".join(f"{node.index}={node.ip}" for node in self._listed("members")),
        }

    @property
    def _monitor_ip(self) -> str:
        return self.topology.partition(self.node.partition).monitor_ip

    def _each(self, found: re.Match[str], common: dict[str, str], numbers: Mapping[NodeName, int]) -> str:
        which = found["which"]
        if which not in LISTS:
            raise PlaceholderError(f"{{each {which}}} is unknown; there are {', '.join(LISTS)}")
        bodies = (_words(found["body"], ChainMap(_of_node(node, numbers), common)) for node in self._listed(which))
        return _joined(bodies, found["between"] or "")

    def _listed(self, which: str) -> list[Node]:
        if which == "nodes":
            return list(self.topology.nodes())
        chosen = set(self.program.nodes) - (set() if which == "members" else {self.node.name})
        return [node for node in self.topology.nodes() if node.name in chosen]

    def _of_place(self) -> dict[str, str]:
        members = [node.ip for node in self._listed("members")]
        return {
            **{f"ip:{node.name}": node.ip for node in self.topology.nodes()},
            "dir": str(self.directory),
            "members": ",".join(members),
            "peers": ",".join(node.ip for node in self._listed("peers")),
            "first": members[0],
            "trace_ip": self._monitor_ip,
            "trace_port": str(TRACE_PORT),
            "group": str(self.group),
            "incarnation": str(self.incarnation),
        }


def _of_node(node: Node, numbers: Mapping[NodeName, int]) -> dict[str, str]:
    return {
        "name": node.name,
        "host": node.name.replace("/", "-"),
        "ip": node.ip,
        "index": str(node.index),
        "number": str(numbers.get(node.name, node.index + 1)),
        "partition": node.partition,
    }


def _words(text: str, values: Mapping[str, str]) -> str:
    loose = _LOOSE.search(text)
    if loose is not None:
        raise PlaceholderError(
            f"{loose[0]} stands alone: write {{each members ,}}…{{end}}, in quotes where a command has spaces in it"
        )
    return _joined(_filled(text, values))


def _filled(text: str, values: Mapping[str, str]) -> Iterator[str]:
    fill, since = _filler(values), 0
    for found in _WORD.finditer(text):
        yield text[since : found.start()]
        yield fill(found)
        since = found.end()
    yield text[since:]


def _joined(parts: Iterable[str], between: str = "") -> str:
    """Raises PlaceholderError as soon as they are too long."""
    kept, length = [], 0
    for part in parts:
        kept.append(part)
        length += len(part) + len(between)
        if length > MAX_FILLED:
            raise PlaceholderError(f"the text has more than {MAX_FILLED:,} characters with its placeholders filled in")
    return between.join(kept)


def _filler(values: Mapping[str, str]) -> Callable[[re.Match[str]], str]:
    def fill(found: re.Match[str]) -> str:
        if found["literal"] is not None:
            return f"{{{found['literal']}}}"
        word = found["word"]
        if word not in values:
            hint = did_you_mean(word, values) or f"; there are {', '.join(WORDS)} and ip:NODE"
            raise PlaceholderError(f"the placeholder {{{word}}} is unknown{hint} (the text {{{word}}}: {{{{{word}}}}})")
        return values[word]

    return fill


MAX_NAME = 200
"""Longest name of a file."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = ("/", "/proc", "/sys", "/dev", "/dev/shm")  # noqa: S108  # the node has them anyhow


def programs(
    raw: RawExperiment, topology: Topology, document: Document, folder: Path | None
) -> Mapping[NodeName, ProgramChoice]:
    """The program of each node that runs a user's one, in member order."""
    chosen: dict[NodeName, tuple[RawProgram, KeyPath]] = {}
    for position, block in enumerate(raw.program):
        at = document.item(("program",), position)
        for name in selected(topology, block.nodes, document, (*at, "nodes")):
            if name in chosen:
                raise document.error((*at, "nodes"), f"{name} stands in two programs; a node can run one")
            chosen[name] = (block, at)
    blocks = {at: block for block, at in chosen.values()}
    made = {at: _choice(block, topology, document, at, folder) for at, block in blocks.items()}
    found = {node.name: made[chosen[node.name][1]] for node in topology.nodes() if node.name in chosen}
    if raw.image is not None and not raw.image.strip():
        raise document.error(("image",), "expected the name of an image")
    tells_timestamp = any(block.call is not None and block.call.tells_timestamp for block in raw.workload)
    sentence = require_simulator(raw.world, topology, raw.dissemination, tells_timestamp=tells_timestamp)
    if sentence := sentence or require_world(raw.world, found, raw.image):
        raise document.error(("world",), sentence)
    return found


def require_simulator(
    world: World,
    topology: Topology,
    dissemination: Dissemination = Dissemination.MULTICAST,
    *,
    tells_timestamp: bool = False,
) -> str:
    """Sentence why this network, these multicasts or these telephone calls cannot be had in this world; empty: they
    can. Only the simulator has routers that copy, collisions, and calls that tell a timestamp."""
    if world not in (World.NETNS, World.DOCKER):
        return ""
    if dissemination is Dissemination.ROUTERS:
        return (
            f"dissemination: routers needs the world sim: in {world.value} routers are kernels, which copy no unicast"
        )
    if topology.has_collisions:
        return f"a bus with CSMA/CD needs the world sim: in {world.value} a bus is a queue without collisions"
    if tells_timestamp:
        return f"tells-timestamp needs the world sim: in {world.value} only the network leads from caller to callee"
    return ""


def require_world(world: World, programs: Mapping[NodeName, ProgramChoice], image: str | None = None) -> str:
    """Sentence why these programs, or nodes in this image, cannot be had in this world; empty: they can."""
    if world is World.SIM and programs:
        return "a program of your own cannot run in the simulated world: take netns or docker"
    images = [name for name in (image, *(program.image for program in programs.values())) if name is not None]
    if world is World.NETNS and images:
        return f"the image {images[0]} needs the world docker; netns runs what this machine has"
    if world is World.SIM and images:
        return f"the image {images[0]} needs the world docker; the simulated world has no containers"
    return ""


def _choice(
    block: RawProgram, topology: Topology, document: Document, at: KeyPath, folder: Path | None
) -> ProgramChoice:
    if block.image is not None and not block.image.strip():
        raise document.error((*at, "image"), "expected the name of an image")
    private = _private(block, document, at)
    promises = _promises(block, document, at)
    if block.member is False and promises:
        raise document.error((*at, "member"), "a program that promises something is a member; leave member out")
    choice = ProgramChoice(
        command=_command(block, document, at),
        nodes=tuple(selected(topology, block.nodes, document, (*at, "nodes"))),
        image=block.image,
        environment=_environment(block, document, at),
        files=_files(block, private, document, at, folder),
        private=private,
        keep=block.keep,
        ready=block.ready,
        stop=block.stop,
        cues=block.cues,
        may_end=block.may_end,
        is_member=bool(promises) or (block.member if block.member is not None else False),
        promises=promises,
        limits=_limits(block),
    )
    _try_placeholders(choice, topology, document, at)
    return choice


def selected(topology: Topology, selectors: Sequence[str], document: Document, at: KeyPath) -> list[NodeName]:
    """The nodes that selectors name. InputError at `at` for one that names none."""
    try:
        return [node.name for node in select(topology, selectors)]
    except SelectError as error:
        raise document.error(at, str(error)) from None


def _command(block: RawProgram, document: Document, at: KeyPath) -> tuple[str, ...]:
    if block.command is None:
        if block.image is None:
            raise document.error(at, "the key command is missing: the program and its arguments")
        return ()
    try:
        words = shlex.split(block.command) if isinstance(block.command, str) else list(block.command)
    except ValueError as error:
        raise document.error((*at, "command"), f"cannot be split as a shell does ({error}); give a list") from None
    if not words or not words[0].strip():
        raise document.error((*at, "command"), "expected a program and its arguments, got nothing")
    if any("\0" in word for word in words):
        raise document.error((*at, "command"), "a command cannot have a null character")
    return tuple(words)


def _environment(block: RawProgram, document: Document, at: KeyPath) -> Mapping[str, str]:
    for name in block.environment:
        if not _VARIABLE.fullmatch(name):
            raise document.error((*at, "environment", name), f"{shown(name)} cannot be the name of a variable")
        if name.startswith("ORDERBED_"):
            raise document.error((*at, "environment", name), "variables that begin with ORDERBED_ are ours to set")
    return dict(block.environment)


def _files(
    block: RawProgram, private: tuple[str, ...], document: Document, at: KeyPath, folder: Path | None
) -> Mapping[str, str | Path]:
    found: dict[str, str | Path] = {}
    directories: set[str] = set()
    for name, given in block.files.items():
        key = (*at, "files", name)
        _check_name(name, private, document, key)
        above = _above(name)
        directories |= above
        if name in directories or found.keys() & above:
            raise document.error(key, f"{shown(name)} is a file and a directory at once")
        found[name] = _copied(given, folder, document, (*key, "from")) if isinstance(given, RawFrom) else given
    return found


def _check_name(name: str, private: tuple[str, ...], document: Document, key: KeyPath) -> None:
    """InputError unless a file is in the node's directory, or in one of its private ones."""
    parts = PurePosixPath(name).parts
    if not parts or len(name) > MAX_NAME or "\0" in name or posixpath.normpath(name) != name or name == ".":
        raise document.error(key, f"{shown(name)} cannot be the name of a file, such as conf/etcd.yaml")
    if ".." in parts:
        raise document.error(key, f"{shown(name)} leaves the node's directory; name a file within it")
    if name.startswith("/") and not any(name.startswith(f"{place}/") for place in private):
        within = " or ".join(private) or "none"
        raise document.error(key, f"{shown(name)} is absolute and in no private directory of the program ({within})")


def _copied(given: RawFrom, folder: Path | None, document: Document, key: KeyPath) -> Path:
    """The file, with links resolved. It must lie in the experiment's folder: the program may be of a stranger, and root
    would copy any file for it.
    """
    path = (folder or Path()) / given.from_
    try:
        if not path.resolve().is_relative_to((folder or Path()).resolve()):
            raise document.error(key, f"{path} leaves the folder of the experiment; put a copy beside the experiment")
        # Reading a pipe would block before anything has started, and a device has no end.
        if path.exists() and not path.is_file():
            raise document.error(key, f"{path} is no regular file")
        with path.open("rb"):
            return path.resolve()
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links in a circle
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise document.error(key, f"{path} cannot be read ({reason})") from None


def _private(block: RawProgram, document: Document, at: KeyPath) -> tuple[str, ...]:
    earlier: set[str] = set()
    for position, place in enumerate(block.private):
        key = document.item((*at, "private"), position)
        if not place.startswith("/") or posixpath.normpath(place) != place or place.startswith("//") or ":" in place:
            raise document.error(key, f"expected an absolute directory such as /var/lib/etcd, got {shown(place)}")
        if place in _RESERVED or place.startswith(("/proc/", "/sys/")):
            raise document.error(key, f"{place} cannot be a private directory")
        if earlier & {place, *_above(place)}:
            raise document.error(key, f"{place} lies in another private directory; leave it out")
        earlier.add(place)
    return tuple(block.private)


def _above(name: str) -> set[str]:
    """The directories that a file or directory lies in."""
    return {str(one) for one in PurePosixPath(name).parents}


def _promises(block: RawProgram, document: Document, at: KeyPath) -> tuple[str, ...]:
    known = [kind.value for kind in Property]
    for position, promise in enumerate(block.promises):
        if promise not in known:
            key = document.item((*at, "promises"), position)
            hint = did_you_mean(promise, known) or f"; there are {', '.join(known)}"
            raise document.error(key, f"no property is called {shown(promise)}{hint}")
    return tuple(dict.fromkeys(block.promises))


def _limits(block: RawProgram) -> Limits | None:
    if block.limits is None:
        return None
    return Limits(
        memory_bytes=block.limits.memory, processes=block.limits.processes, cpu_ratio=block.limits.cpus
    )  # fmt: skip


def _try_placeholders(choice: ProgramChoice, topology: Topology, document: Document, at: KeyPath) -> None:
    node = topology.node(choice.nodes[0])
    place = Place(topology=topology, node=node, program=choice, directory=Path("/"))
    parts: list[tuple[KeyPath, str]] = [((*at, "command"), word) for word in choice.command]
    parts += [((*at, "environment", name), value) for name, value in choice.environment.items()]
    parts += [((*at, "files", name), text) for name, text in choice.files.items() if isinstance(text, str)]
    for key, text in parts:
        try:
            place.fill(text)
        except PlaceholderError as error:
            raise document.error(key, str(error)) from None


def described(programs: Mapping[NodeName, ProgramChoice]) -> list[dict[str, object]]:
    """The manifest's `programs`."""
    return [
        {
            "node": name,
            "command": list(program.command),
            "image": program.image,
            "ready": str(program.ready),
            "limits": None if program.limits is None else asdict(program.limits),
            "member": program.is_member,
        }
        for name, program in programs.items()
    ]
