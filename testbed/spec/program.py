"""A program of somebody else's in a node, as a value, and the words that stand for what differs from node to node.

Placeholders stand in a command, in environment variables and in files:

    {name} {host} {ip} {index} {number} {partition}    of the node: p1/n2, p1-n2, 10.1.0.2, 1, 2, p1
    {dir}                                              its own directory, where it starts
    {members} {peers} {first}                          addresses with commas between; without its own; the first one's
    {trace_ip} {trace_port} {group} {incarnation}      where trace records go, and what they say of themselves
    {ip:p1/n1}                                         the address of another node
    {each members ,}{host}=http://{ip}:2380{end}       the same for each one, with the separator between

`number` counts the nodes of one program from 1, `index` all nodes from 0. `{{word}}` is the text {word}; `${word}` and
whatever else has braces stays as it is. Pure: nothing here touches a file or a process.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from netem.runtimes.cgroups import Limits
from topologies.formats.errors import did_you_mean
from topologies.model import TRACE_PORT, Node, NodeName, Topology

NODE_WORDS = ("name", "host", "ip", "index", "number", "partition")
"""Those that mean each one's inside {each …}."""
WORDS = (*NODE_WORDS, "dir", "members", "peers", "first", "trace_ip", "trace_port", "group", "incarnation")
LISTS = ("members", "peers", "nodes")

_EACH = re.compile(r"(?<![${])\{each (?P<which>[a-z]+)(?: (?P<between>[^{}]*))?\}\n?(?P<body>.*?)\{end\}", re.DOTALL)
_WORD = re.compile(r"\{\{(?P<literal>[a-z_]+)\}\}|(?<!\$)\{(?P<word>[a-z_]+|ip:[a-z0-9/-]+)\}")
_LOOSE = re.compile(r"(?<![${])\{(each\b[^{}]*|end)\}?")


class PlaceholderError(ValueError):
    """A text has a placeholder that does not exist; `str()` is a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """When a program counts as ready: it has this port, said such a line, or has run for so long; and how long that may
    take. With none of them it is ready once it has started.
    """

    port: int | None = None
    line: str | None = None
    after_ns: int | None = None
    within_ns: int

    def __str__(self) -> str:
        if self.port is not None:
            return f"port {self.port}"
        if self.line is not None:
            return f"a line with {self.line}"
        return "started" if self.after_ns is None else f"{self.after_ns / 1e9:g} s after its start"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramChoice:
    """What one node runs in place of our program. Texts may have placeholders."""

    command: tuple[str, ...]
    """Empty: what the image says."""
    nodes: tuple[NodeName, ...]
    """All that run it, in member order."""
    image: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str | Path] = field(default_factory=dict)
    """Name, relative to the node's directory or absolute within a private one -> its text, or what is copied."""
    private: tuple[str, ...] = ()
    keep: bool = True
    ready: Ready
    stop_signal: signal.Signals = signal.SIGTERM
    grace_ns: int
    cues: bool = False
    may_end: bool = False
    is_member: bool = False
    promises: tuple[str, ...] = ()
    limits: Limits | None = None

    @property
    def title(self) -> str:
        """For people: the program's own name, or the image's."""
        return Path(self.command[0]).name if self.command else str(self.image)

    def texts(self) -> list[str]:
        """Every text that may have placeholders."""
        written = [text for text in self.files.values() if isinstance(text, str)]
        return [*self.command, *self.environment.values(), *written]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where and as what a program runs: all that placeholders can ask for."""

    topology: Topology
    node: Node
    program: ProgramChoice
    directory: Path
    group: int = 0
    incarnation: int = 1

    def fill(self, text: str) -> str:
        """`text` with its placeholders filled in. Raises PlaceholderError."""
        values = self._of_node(self.node) | self._of_place()
        done, since = "", 0
        for found in _EACH.finditer(text):
            done += _words(text[since : found.start()], values) + self._each(found)
            since = found.end()
        return done + _words(text[since:], values)

    def environment(self) -> dict[str, str]:
        """What every program finds, so that it can tell who it is and where trace records go."""
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

    def _each(self, found: re.Match[str]) -> str:
        which = found["which"]
        if which not in LISTS:
            raise PlaceholderError(f"{{each {which}}} is unknown; there are {', '.join(LISTS)}")
        bodies = (_words(found["body"], self._of_node(node) | self._of_place()) for node in self._listed(which))
        return (found["between"] or "").join(bodies)

    def _listed(self, which: str) -> list[Node]:
        if which == "nodes":
            return list(self.topology.nodes())
        return [
            node
            for node in self.topology.nodes()
            if node.name in self.program.nodes and (which == "members" or node.name != self.node.name)
        ]

    def _of_node(self, node: Node) -> dict[str, str]:
        names = self.program.nodes
        return {
            "name": node.name,
            "host": node.name.replace("/", "-"),
            "ip": node.ip,
            "index": str(node.index),
            "number": str(names.index(node.name) + 1) if node.name in names else str(node.index + 1),
            "partition": node.partition,
        }

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


def _words(text: str, values: Mapping[str, str]) -> str:
    loose = _LOOSE.search(text)
    if loose is not None:
        raise PlaceholderError(
            f"{loose[0]} stands alone: write {{each members ,}}…{{end}}, in quotes where a command has spaces in it"
        )
    return _WORD.sub(_filler(values), text)


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


def by_program(programs: Mapping[NodeName, ProgramChoice]) -> Sequence[ProgramChoice]:
    """Each program once, in the order of its first node."""
    return list({program.nodes: program for program in programs.values()}.values())
