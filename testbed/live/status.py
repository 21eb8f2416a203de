"""What a testbed tells about itself, as values: its nodes, its links, its counters, its capture, and what it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias

from pydantic import PlainSerializer, TypeAdapter

from netem.network import BusCounters, LinkCounters, PortCounters
from testbed.spec.faults import NodeState
from topologies.model import Impairment, NodeName, PartitionName

Time: TypeAlias = Annotated[datetime, PlainSerializer(datetime.isoformat, when_used="json")]


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


class Plain:
    """Base of dataclasses that cross a process boundary as JSON."""

    __slots__ = ()

    def as_json(self) -> dict[str, Any]:
        """Plain values; `from_json` undoes it."""
        kind: Any = type(self)
        plain: dict[str, Any] = _adapter(kind).dump_python(self, mode="json")
        return plain

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Raises ValueError for what is none."""
        kind: Any = cls
        made: Self = _adapter(kind).validate_python(values)
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus(Plain):
    """One node as it is now."""

    name: NodeName
    state: NodeState
    incarnation: int
    ip: str
    since: Time
    """When it came into this state (UTC)."""
    to_node: Impairment
    from_node: Impairment
    cut_off_from: tuple[NodeName, ...]
    """Nodes of which it hears nothing, by cuts between nodes. Links that are cut are told by `LinkStatus`."""
    exit_code: int | None = None
    """Of a main process that is no more; negative: the signal."""
    cause: str = ""
    """Who else ended it: the kernel at its memory limit, somebody through Docker; empty: itself, or as asked."""
    phase: str = ""
    """Of a member of a group with views, by its own last word: joining, member, changing, minority, excluded, over."""
    view: int = 0
    """The number of its view, 0: none yet."""
    view_members: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStatus(Plain):
    """One link between routers as it is now; `there` is from partition `a` to `b`."""

    name: str
    a: PartitionName
    b: PartitionName
    there: Impairment
    back: Impairment
    is_cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters(Plain):
    """What the kernel has counted since the network was made."""

    ports: tuple[PortCounters, ...]
    links: tuple[LinkCounters, ...]
    buses: tuple[BusCounters, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStatus(Plain):
    """A capture that was started and not yet stopped."""

    path: Path
    since: Time
    """When it was started (UTC)."""
    failure: str | None = None
    """Why nothing is recorded any more (the collector was killed, the disk is full); None: it goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description(Plain):
    """A testbed that is up."""

    name: str
    topology: str
    """Its name."""
    node_count: int
    world: str
    kernel: str
    since: Time
    directory: Path
    """Its record: topology, faults, captures, logs."""
    server_pid: int
