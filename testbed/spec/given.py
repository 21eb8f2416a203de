"""Settings of an experiment as plain numbers in base units: the x of a figure, and the terms of a formula.

A claim over a sweep sees them beside each run's summary (`runs.given.members`, `runs.given.parameters.window`): a
quantity of the file (`20 ms`) is a number here (`delay_ns`), and defaults are included.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from node.parameters import from_mapping
from node.registry import PROTOCOLS
from testbed.spec.values import Experiment
from topologies.model import Access, Impairment, Topology

GREATEST = ("delay_ns", "jitter_ns", "loss_ratio", "duplicate_ratio", "reorder_ratio", "corrupt_ratio")
"""Fields of Impairment that are given by their greatest value at any port."""

UNREST = ("share_ratio", "length_ns", "rise_ratio")


def given(experiment: Experiment) -> dict[str, Any]:
    """Numbers and words of one experiment.

    `delay_ns` … are the greatest on the way to any node; `rate_bps` and `queue_frames` the least of those that have one
    (None without). `rate_per_s` is the offered load of the whole group, `drift_ppm` the greatest of any clock in either
    direction, `offset_ns` between the clock that is ahead of all and the one that is behind all. `unrest_…` are the
    greatest of any workload (0 without rate_churn).
    """
    ports = [node.to_node for node in experiment.topology.nodes()]
    clocks = [experiment.clocks.get(node.name) for node in experiment.topology.nodes()]
    offsets_ns = [clock.offset_ns if clock else 0 for clock in clocks]
    return {
        "members": len(experiment.topology),
        "protocol": experiment.protocol.name,
        "parameters": _parameters(experiment),
        "world": experiment.world.value,
        "dissemination": experiment.dissemination.value,
        "duration_ns": experiment.duration_ns,
        "rate_per_s": sum(workload.rate_per_s for workload in experiment.workloads.values()),
        "size_bytes": max((workload.size_bytes for workload in experiment.workloads.values()), default=0),
        **{f"unrest_{name}": max((getattr(one, name) for one in experiment.rate_churn), default=0) for name in UNREST},
        "drift_ppm": max((abs(clock.drift_ppm) for clock in clocks if clock), default=0.0),
        "offset_ns": max(offsets_ns) - min(offsets_ns),
        **{name: max(getattr(port, name) for port in ports) for name in GREATEST},
        "rate_bps": _least(ports, "rate_bps"),
        "queue_frames": _least(ports, "queue_frames"),
        "bus_access": _bus_access(experiment.topology),
    }


def _bus_access(topology: Topology) -> str | None:
    """Of the partitions that have a bus; with collisions if any has."""
    if all(partition.bus is None for partition in topology.partitions):
        return None
    return str((Access.CSMA_CD if topology.has_collisions else Access.QUEUE).value)


def _parameters(experiment: Experiment) -> dict[str, Any]:
    if not experiment.has_protocol:
        return {}
    entry = PROTOCOLS[experiment.protocol.name]
    return dataclasses.asdict(from_mapping(entry.kind, experiment.protocol.parameters, entry.name))


def _least(ports: list[Impairment], name: str) -> int | None:
    return min((value for port in ports if (value := getattr(port, name)) is not None), default=None)
