"""One node's configuration line, made from the experiment."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterable
from typing import Any

from node.core import Membership, random_for
from node.host.workload import Workload, due_times_ns
from testbed.spec.raw import Dissemination
from testbed.spec.values import Experiment
from topologies.model import MULTICAST_GROUP, PROTOCOL_PORT, TRACE_PORT, Node

MULTICAST_TTL = 32
FIRST_JOINER = 2
"""Number of the first incarnation of a member that is no founder. A founder's is 1: the number shows the analysis that
an incarnation has joined."""


def configuration(
    experiment: Experiment, node: Node, *, incarnation: int, group: int, elapsed_ns: int
) -> dict[str, Any]:
    """The first line on a node's standard input (node/host/driver.py reads it).

    `elapsed_ns`: time since the start of the load; a restarted node continues its workload at this point.
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
        "workload": _workload(_of_calls(experiment, node), experiment.duration_ns, elapsed_ns),
        "seed": derive_seed(experiment.seed, node.name, incarnation),
        "shared_seed": derive_seed(experiment.seed, "shared"),
        "drain_timeout_ns": experiment.drain_ns,
    }


def _of_calls(experiment: Experiment, node: Node) -> Workload | None:
    """The node's workload, that of a callee with its instants: the caller's first incarnation will draw the same
    schedule, so no message needs to tell the callee of it."""
    workload = experiment.workloads.get(node.name)
    call = next((one for one in experiment.calls if one.callee == node.name), None)
    if workload is None or call is None:
        return workload
    index = experiment.topology.node(call.caller).index
    caller = Membership(member=index, members=(index,))
    rng = random_for(derive_seed(experiment.seed, call.caller, caller.incarnation), caller, "workload")
    calling = dataclasses.replace(experiment.workloads[call.caller], stop_after_ns=experiment.duration_ns)
    followed = itertools.islice(due_times_ns(calling, rng), call.every - 1, None, call.every)
    return dataclasses.replace(workload, instants_ns=tuple(at_ns + call.after_ns for at_ns in followed))


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
