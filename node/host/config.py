"""A node's configuration: the first line on its standard input, one JSON object, checked before anything starts."""

from __future__ import annotations

import ipaddress
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from node.core import Membership
from node.errors import LocalError
from node.host.node_clock import NodeClock
from node.host.workload import RateChange, Workload, WorkloadKind
from node.parameters import require
from node.trace import STAMP_SIZE

MAX_CONFIG_BYTES = 4 * 2**20
MAX_PORT = 65535
MAX_PAYLOAD_BYTES = 60_000
MAX_PARTITION = 0xFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """An address of UDP datagrams."""

    ip: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Everything a host needs. `peers`: each other member and its address; `multicast` None: unicast to each. `near`:
    the group of our own sub-network; None: unicast to each neighbour. `ttl`: of multicasts to all members.
    """

    name: str
    group: int
    membership: Membership
    address: Address
    peers: Mapping[int, Address]
    trace: Address | None
    multicast: Address | None
    near: Address | None
    ttl: int
    protocol: str
    parameters: Mapping[str, Any]
    clock_offset_ns: int
    clock_drift_ppm: float
    workload: Workload
    seed: int
    """The seed of this process; each incarnation draws anew from it (node.core.random_for)."""
    shared_seed: int
    """The same at all members and in all their incarnations, for draws that must be the same at all."""
    drain_timeout_ns: int

    def clock(self, origin_ns: int) -> NodeClock:
        return NodeClock(origin_ns=origin_ns, offset_ns=self.clock_offset_ns, drift_ppm=self.clock_drift_ppm)


def parse(line: str) -> NodeConfig:
    """The configuration in `line`. Raises LocalError: one sentence that names the key."""
    require(len(line) <= MAX_CONFIG_BYTES, f"the configuration exceeds {MAX_CONFIG_BYTES} bytes")
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LocalError(f"the configuration is not JSON: {error}") from None
    reader = _Reader(raw, "the configuration")
    port = reader.integer("port", 1, MAX_PORT)
    members: dict[int, Address] = {}
    partition_of: dict[int, int] = {}
    for one in reader.blocks("members"):
        index = one.integer("index", 0, 0xFFFE)
        members[index] = Address(ip=one.ip("ip"), port=port)
        partition_of[index] = one.integer("partition", 1, MAX_PARTITION)
    member = reader.integer("member", 0, 0xFFFE)
    require(member in members, f"member {member} is not among the members")
    multicast = reader.block("multicast")
    group, near = multicast.multicast_ip("group"), multicast.multicast_ip("near")
    # With one address for both, every multicast would arrive twice: each group has a socket of its own.
    require(group != near, f"the configuration: multicast: group and near must differ, not be {group} both")
    has_multicast = reader.choice("dissemination", ("multicast", "unicast")) == "multicast"
    clock = reader.block("clock")
    protocol = reader.block("protocol")
    trace = reader.optional_block("trace")
    return NodeConfig(
        name=reader.text("name"),
        group=reader.integer("group", 0, 2**32 - 1),
        membership=Membership(
            member=member,
            members=tuple(sorted(members)),
            incarnation=reader.integer("incarnation", 1, 0xFFFF),
            has_multicast=has_multicast,
            partitions=_partitions(partition_of),
            founders=reader.optional_integers("founders", 0, 0xFFFE),
        ),
        address=Address(ip=reader.ip("ip"), port=port),
        peers={index: address for index, address in members.items() if index != member},
        trace=Address(ip=trace.ip("ip"), port=trace.integer("port", 1, MAX_PORT)) if trace else None,
        multicast=Address(ip=group, port=port) if has_multicast else None,
        near=Address(ip=near, port=port) if has_multicast else None,
        ttl=multicast.integer("ttl", 1, 255),
        protocol=protocol.text("name"),
        parameters=protocol.mapping("parameters"),
        clock_offset_ns=clock.integer("offset_ns", -(2**62), 2**62),
        clock_drift_ppm=clock.number("drift_ppm"),
        workload=_workload(reader.block("workload")),
        seed=reader.integer("seed", 0, 2**64 - 1),
        shared_seed=reader.integer("shared_seed", 0, 2**64 - 1),
        drain_timeout_ns=reader.integer("drain_timeout_ns", 0, 2**62),
    )


def _partitions(partition_of: Mapping[int, int]) -> tuple[tuple[int, ...], ...]:
    """The members of each sub-network, as Membership has them: empty when there is but one."""
    found: dict[int, list[int]] = {}
    for member in sorted(partition_of):
        found.setdefault(partition_of[member], []).append(member)
    return tuple(tuple(found[partition]) for partition in sorted(found)) if len(found) > 1 else ()


def _workload(block: _Reader) -> Workload:
    kind = WorkloadKind(block.choice("kind", tuple(kind.value for kind in WorkloadKind)))
    return Workload(
        kind=kind,
        rate_per_s=block.number("rate_per_s"),
        size_bytes=block.integer("size_bytes", STAMP_SIZE, MAX_PAYLOAD_BYTES),
        stop_after_ns=block.integer("stop_after_ns", 0, 2**63 - 1),
        events=tuple(
            RateChange(after_ns=one.integer("after_ns", 0, 2**62), rate_per_s=one.number("rate_per_s"))
            for one in block.blocks("events")
        ),
        instants_ns=block.integers("instants_ns", 0, 2**62) if kind is WorkloadKind.SCHEDULED else (),
    )


class _Reader:
    """One JSON object whose keys are read with their type and range; every LocalError names the key."""

    def __init__(self, raw: object, where: str) -> None:
        require(isinstance(raw, dict), f"{where} must be a JSON object")
        assert isinstance(raw, dict)
        self._raw: dict[str, Any] = raw
        self._where = where

    def integer(self, key: str, low: int, high: int) -> int:
        value = self._get(key)
        good = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        require(good, f"{self._where}: {key} must be a whole number from {low} to {high}")
        return int(value)

    def integers(self, key: str, low: int, high: int) -> tuple[int, ...]:
        value = self._get(key)
        require(isinstance(value, list), f"{self._where}: {key} must be a list")
        good = all(isinstance(one, int) and not isinstance(one, bool) and low <= one <= high for one in value)
        require(good, f"{self._where}: {key} must hold whole numbers from {low} to {high}")
        return tuple(value)

    def optional_integers(self, key: str, low: int, high: int) -> tuple[int, ...]:
        """The integers of `key`; empty if it is missing."""
        return self.integers(key, low, high) if key in self._raw else ()

    def number(self, key: str) -> float:
        value = self._get(key)
        good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
        require(good, f"{self._where}: {key} must be a number")
        return float(value)

    def text(self, key: str) -> str:
        value = self._get(key)
        require(isinstance(value, str) and 0 < len(value) <= 255, f"{self._where}: {key} must be a short text")
        return str(value)

    def ip(self, key: str) -> str:
        value = self.text(key)
        try:
            return str(ipaddress.IPv4Address(value))
        except ValueError:
            raise LocalError(f"{self._where}: {key} must be an IPv4 address, not {value!r}") from None

    def multicast_ip(self, key: str) -> str:
        value = self.ip(key)
        is_multicast = ipaddress.IPv4Address(value).is_multicast
        require(is_multicast, f"{self._where}: {key} must be a multicast address, not {value}")
        return value

    def choice(self, key: str, allowed: tuple[str, ...]) -> str:
        value = self._get(key)
        require(value in allowed, f"{self._where}: {key} must be one of {', '.join(allowed)}")
        return str(value)

    def mapping(self, key: str) -> Mapping[str, Any]:
        value = self._get(key)
        require(isinstance(value, dict), f"{self._where}: {key} must be a JSON object")
        return dict(value)

    def block(self, key: str) -> _Reader:
        return _Reader(self._get(key), f"{self._where}: {key}")

    def optional_block(self, key: str) -> _Reader | None:
        return None if self._get(key) is None else self.block(key)

    def blocks(self, key: str) -> list[_Reader]:
        value = self._get(key)
        require(isinstance(value, list), f"{self._where}: {key} must be a list")
        return [_Reader(one, f"{self._where}: {key}[{position}]") for position, one in enumerate(value)]

    def _get(self, key: str) -> Any:
        require(key in self._raw, f"{self._where} needs {key!r}")
        return self._raw[key]
