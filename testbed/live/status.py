"""Status of a testbed as values: its nodes, links, counters, capture, and description."""

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
        """JSON values; `from_json` is the inverse."""
        kind: Any = type(self)
        plain: dict[str, Any] = _adapter(kind).dump_python(self, mode="json")
        return plain

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The value of `as_json`. Raises ValueError for invalid values."""
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
    """Time at which it came into this state (UTC)."""
    to_node: Impairment
    from_node: Impairment
    cut_off_from: tuple[NodeName, ...]
    """Nodes from which it receives nothing, by cuts between nodes. For cut links see `LinkStatus`."""
    exit_code: int | None = None
    """Exit code of a main process that has ended; negative: the signal."""
    cause: str = ""
    """Other cause of its end: the kernel at its memory limit, or Docker; empty: by itself, or as requested."""
    phase: str = ""
    """Last reported phase of a member of a group with views: joining, member, changing, minority, excluded, over."""
    view: int = 0
    """Number of its view; 0: none yet."""
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
    """Counters of the kernel since the network was made."""

    ports: tuple[PortCounters, ...]
    links: tuple[LinkCounters, ...]
    buses: tuple[BusCounters, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStatus(Plain):
    """A capture that was started and not yet stopped."""

    path: Path
    since: Time
    """Time of its start (UTC)."""
    failure: str | None = None
    """Reason why it has broken off (the collector was killed, the disk is full); None: it goes on."""


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
