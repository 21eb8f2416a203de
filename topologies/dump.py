"""Topologies and impairments as text: a file that loads to the same network, and impairments in the syntax of files."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import yaml

from topologies.formats import units
from topologies.formats.units import UNLIMITED, QueueLimit
from topologies.model import CLEAR, Access, Direction, Impairment, Link, Node, Partition, Topology


def dumps(topology: Topology) -> str:
    """A topology file that loads to an equal topology."""
    text: str = yaml.safe_dump(as_block(topology), sort_keys=False, allow_unicode=True, width=120)
    return text


def as_block(topology: Topology) -> dict[str, Any]:
    """Plain value of a topology file."""
    network: dict[str, Any] = {"name": topology.name}
    if topology.description:
        network["description"] = topology.description
    network["partitions"] = {str(partition.name): _partition_block(partition) for partition in topology.partitions}
    if topology.links:
        network["links"] = [_link_block(link) for link in topology.links]
    ports = _port_blocks(topology)
    if ports:
        network["impairments"] = ports
    return network


def changed_fields(impairment: Impairment) -> dict[str, Any]:
    """Fields that differ from a clear wire, with their values."""
    values = {one.name: getattr(impairment, one.name) for one in fields(Impairment)}
    return {name: value for name, value in values.items() if value != getattr(CLEAR, name)}


def as_json(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of Impairment in the form of the manifest and faults.jsonl."""
    return {name: value.value if isinstance(value, enum.Enum) else value for name, value in changes.items()}


def spelled(changes: Mapping[str, Any]) -> dict[str, str]:
    """Fields of Impairment in the syntax of files: `{"delay_ns": 5_000_000}` -> `{"delay": "5 ms"}`."""
    block = {key: write(changes[name]) for name, (key, write) in _SPELLING.items() if name in changes}
    if "queue_frames" in changes or "queue_bytes" in changes:
        queue = QueueLimit(frames=changes.get("queue_frames"), size_bytes=changes.get("queue_bytes"))
        block["queue"] = units.format_queue(queue)
    return block


def _format_rate_limit(rate_bps: int | None) -> str:
    return UNLIMITED if rate_bps is None else units.format_rate(rate_bps)


_SPELLING: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "delay_ns": ("delay", units.format_duration),
    "jitter_ns": ("jitter", units.format_duration),
    "distribution": ("distribution", lambda distribution: str(distribution.value)),
    "loss_ratio": ("loss", units.format_ratio),
    "loss_burst_frames": ("burst", units.format_frames),
    "duplicate_ratio": ("duplicate", units.format_ratio),
    "reorder_ratio": ("reorder", units.format_ratio),
    "corrupt_ratio": ("corrupt", units.format_ratio),
    "rate_bps": ("rate", _format_rate_limit),
}


def _partition_block(partition: Partition) -> dict[str, Any]:
    names = [node.name.partition("/")[2] for node in partition.nodes]
    counted = [f"n{number}" for number in range(1, len(names) + 1)]
    block: dict[str, Any] = {"nodes": len(names) if names == counted else names}
    if partition.bus is not None:
        queue = units.format_frames(partition.bus.queue_frames)
        block["bus"] = {"rate": units.format_rate(partition.bus.rate_bps), "queue": queue}
        if partition.bus.access is not Access.QUEUE:
            block["bus"]["access"] = partition.bus.access.value
    return block


def _link_block(link: Link) -> dict[str, Any]:
    block: dict[str, Any] = {"between": [link.a, link.b]}
    there, back = spelled(changed_fields(link.a_to_b)), spelled(changed_fields(link.b_to_a))
    if there == back:
        return block | there
    return block | {key: part for key, part in (("there", there), ("back", back)) if part}


def _port_blocks(topology: Topology) -> dict[str, Any]:
    """Ports by selector; one entry for all nodes, or for a partition, if they are equal."""
    blocks = {node.name: _port_block(node) for node in topology.nodes()}
    first = next(iter(blocks.values()))
    if all(block == first for block in blocks.values()):
        return {"*": first} if first else {}
    found: dict[str, Any] = {}
    for partition in topology.partitions:
        own: dict[str, Any] = {node.name: blocks[node.name] for node in partition.nodes}
        first = next(iter(own.values()))
        alike = all(block == first for block in own.values())
        found |= {f"{partition.name}/*": first} if alike else own
    return {selector: block for selector, block in found.items() if block}


def _port_block(node: Node) -> dict[str, Any]:
    parts = ((direction.value, spelled(changed_fields(node.impairment(direction)))) for direction in Direction)
    return {key: part for key, part in parts if part}
