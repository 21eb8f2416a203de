"""One node's configuration line, made from the experiment."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from typing import Any

from node.host.workload import Workload
from testbed.spec.raw import Dissemination
from testbed.spec.values import Experiment
from topologies.model import MULTICAST_GROUP, PROTOCOL_PORT, TRACE_PORT, Node

MULTICAST_TTL = 32
FIRST_JOINER = 2
"""The first incarnation of a member that is no founder. Those of founders are called 1: whoever judges a run knows by
its number that an incarnation has joined."""


def configuration(
    experiment: Experiment, node: Node, *, incarnation: int, group: int, elapsed_ns: int
) -> dict[str, Any]:
    """The first line on a node's standard input (node/host/driver.py reads it).

    `elapsed_ns` is how long the experiment has run: a restarted node takes its workload up where the plan stands now.
    """
    topology = experiment.topology
    clock = experiment.clocks.get(node.name)
    return {
        "group": group,
        "member": node.index,
        "incarnation": incarnation,
        "name": node.name,
        "members": _members(experiment.members),
        **({"founders": [one.index for one in experiment.founders]} if experiment.absent else {}),
        "ip": node.ip,
        "port": PROTOCOL_PORT,
        "trace": {"ip": topology.partition(node.partition).monitor_ip, "port": TRACE_PORT},
        # That routers copy is no matter of the node: it sends to each member.
        "dissemination": (
            Dissemination.UNICAST if experiment.dissemination is Dissemination.ROUTERS else experiment.dissemination
        ).value,
        "multicast": {
            "group": MULTICAST_GROUP,
            "ttl": MULTICAST_TTL,
            "near": topology.partition(node.partition).multicast_group,
        },
        "protocol": {"name": experiment.protocol.name, "parameters": dict(experiment.protocol.parameters)},
        "clock": {"offset_ns": clock.offset_ns if clock else 0, "drift_ppm": clock.drift_ppm if clock else 0.0},
        "workload": _workload(experiment.workloads.get(node.name), experiment.duration_ns, elapsed_ns),
        "seed": derive_seed(experiment.seed, node.name, incarnation),
        "shared_seed": derive_seed(experiment.seed, "shared"),
        "drain_timeout_ns": experiment.drain_ns,
    }


def derive_seed(seed: int, *words: object) -> int:
    """A seed of its own for each purpose, the same on every machine."""
    text = "/".join(str(word) for word in (seed, *words))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _members(members: Iterable[Node]) -> list[dict[str, Any]]:
    return [
        {"index": node.index, "name": node.name, "ip": node.ip, "partition": node.partition_index} for node in members
    ]


def _workload(workload: Workload | None, duration_ns: int, elapsed_ns: int) -> dict[str, Any]:
    """The workload from `elapsed_ns` on."""
    if workload is None:
        return {"kind": "silent", "rate_per_s": 0.0, "size_bytes": 8, "stop_after_ns": 0, "events": []}
    rest = dataclasses.replace(workload, stop_after_ns=duration_ns).rest(elapsed_ns)
    return {
        "kind": rest.kind.value,
        "rate_per_s": rest.rate_per_s,
        "size_bytes": rest.size_bytes,
        "stop_after_ns": rest.stop_after_ns,
        "events": [{"after_ns": event.after_ns, "rate_per_s": event.rate_per_s} for event in rest.events],
        "instants_ns": list(rest.instants_ns),
    }
