"""What a testbed tells about itself, as values: its nodes, its links, its counters, its capture, and what it is."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from netem.network import BusCounters, LinkCounters, PortCounters
from topologies.model import Direction, Distribution, Impairment, NodeName, PartitionName


class NodeState(enum.Enum):
    """Where the main process of a node stands."""

    RUNNING = "running"
    PAUSED = "paused"
    CRASHED = "crashed"
    """Killed by `crash`."""
    ENDED = "ended"
    """It ended by itself."""
    ABSENT = "absent"
    """No member of the group: it has not joined yet, or has left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One node as it is now."""

    name: NodeName
    state: NodeState
    incarnation: int
    ip: str
    since: datetime
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

    def as_json(self) -> dict[str, Any]:
        """Plain values; `from_json` undoes it."""
        return _by_name(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> NodeStatus:
        return cls(
            name=NodeName(values["name"]),
            state=NodeState(values["state"]),
            incarnation=values["incarnation"],
            ip=values["ip"],
            since=datetime.fromisoformat(values["since"]),
            to_node=_impairment(values["to_node"]),
            from_node=_impairment(values["from_node"]),
            cut_off_from=tuple(NodeName(name) for name in values["cut_off_from"]),
            exit_code=values["exit_code"],
            cause=values["cause"],
            phase=values["phase"],
            view=values["view"],
            view_members=values["view_members"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStatus:
    """One link between routers as it is now; `there` is from partition `a` to `b`."""

    name: str
    a: PartitionName
    b: PartitionName
    there: Impairment
    back: Impairment
    is_cut: bool

    def as_json(self) -> dict[str, Any]:
        """Plain values; `from_json` undoes it."""
        return _by_name(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> LinkStatus:
        return cls(
            name=values["name"],
            a=PartitionName(values["a"]),
            b=PartitionName(values["b"]),
            there=_impairment(values["there"]),
            back=_impairment(values["back"]),
            is_cut=values["is_cut"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What the kernel has counted since the network was made."""

    ports: tuple[PortCounters, ...]
    links: tuple[LinkCounters, ...]
    buses: tuple[BusCounters, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values; `from_json` undoes it."""
        return _by_name(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Counters:
        ports = (PortCounters(**one | {"direction": Direction(one["direction"])}) for one in values["ports"])
        return cls(
            ports=tuple(ports),
            links=tuple(LinkCounters(**one) for one in values["links"]),
            buses=tuple(BusCounters(**one) for one in values["buses"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStatus:
    """A capture that was started and not yet stopped."""

    path: Path
    since: datetime
    """When it was started (UTC)."""
    failure: str | None = None
    """Why nothing is recorded any more (the collector was killed, the disk is full); None: it goes on."""

    def as_json(self) -> dict[str, Any]:
        """Plain values; `from_json` undoes it."""
        return _by_name(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> CaptureStatus:
        return cls(path=Path(values["path"]), since=datetime.fromisoformat(values["since"]), failure=values["failure"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A testbed that is up."""

    name: str
    topology: str
    """Its name."""
    node_count: int
    world: str
    kernel: str
    since: datetime
    directory: Path
    """Its record: topology, faults, captures, logs."""
    server_pid: int

    def as_json(self) -> dict[str, Any]:
        """Plain values; `from_json` undoes it."""
        return _by_name(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Description:
        converted = {"since": datetime.fromisoformat(values["since"]), "directory": Path(values["directory"])}
        return cls(**{one.name: values[one.name] for one in dataclasses.fields(cls)} | converted)


def _by_name(value: Any) -> dict[str, Any]:
    """A dataclass as a block of its fields."""
    return {one.name: _plain(getattr(value, one.name)) for one in dataclasses.fields(value)}


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if dataclasses.is_dataclass(value):
        return _by_name(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value


def _impairment(values: Mapping[str, Any]) -> Impairment:
    return Impairment(**{**values, "distribution": Distribution(values["distribution"])})
