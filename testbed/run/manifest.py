"""The manifest of a run (docs/run-directory.md): what every world writes into it in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from node.registry import PROTOCOLS
from testbed.run import health
from testbed.run.program import described
from testbed.run.store import RunDirectory
from testbed.run.worlds import WorldChoice
from testbed.spec.experiment import Experiment, WorkloadKind
from topologies.dump import as_json, changed_fields
from topologies.model import Direction


def first_manifest(experiment: Experiment, world: WorldChoice, directory: RunDirectory) -> dict[str, Any]:
    """The manifest before anything has happened: a run that goes no further is `interrupted`."""
    return {
        "format": 1,
        "run": directory.run_id,
        "status": "interrupted",
        "invalid": [],
        "experiment": experiment.name,
        "question": experiment.question,
        "seed": experiment.seed,
        "group": directory.group,
        "protocol": {"name": experiment.protocol.name, "parameters": dict(experiment.protocol.parameters)},
        "promises": _promises(experiment),
        **_of_programs(experiment),
        **({"absent": list(experiment.absent)} if experiment.absent else {}),
        "dissemination": experiment.dissemination.value,
        "workload": _workload(experiment),
        "duration_ns": experiment.duration_ns,
        "expect": [str(condition) for condition in experiment.expect],
        "world": world.world.value,
        "phases": {"start_ns": None, "load_end_ns": None, "drained_ns": None, "end_ns": None},
        "ports": [{"node": n.name, "index": n.index, "ip": n.ip, "mac": n.mac} for n in experiment.topology.nodes()],
        "asked": {
            n.name: {d.value: as_json(changed_fields(n.impairment(d))) for d in Direction}
            for n in experiment.topology.nodes()
        },
    }


def programs_said(experiment: Experiment) -> str:
    """What the nodes run, for people."""
    others: dict[str, int] = {}
    for program in experiment.programs.values():
        others[program.title] = others.get(program.title, 0) + 1
    parts = [f"{title} in {counted(count, 'node')}" for title, count in others.items()]
    if experiment.has_protocol:
        parts.insert(0, f"{experiment.protocol.name}, {experiment.dissemination.value}")
    return ", ".join(parts)


def doubts(experiment: Experiment, manifest: Mapping[str, Any]) -> list[str]:
    """Reasons why the numbers of a finished run must not be trusted: its `invalid`."""
    measured, capture = manifest["health"], manifest["capture"]
    found = health.judge(
        cpu_busy_ratio=measured["cpu_busy_ratio"] or 0.0,
        steal_ratio=measured["steal_ratio"] or 0.0,
        lag_max_ns=measured["lag_max_ns"],
        saturating=any(w.kind is WorkloadKind.SATURATING for w in experiment.workloads.values()),
    )
    if capture["kernel_dropped_frames"]:
        found.append(f"the collector lost {capture['kernel_dropped_frames']} frames")
    drops = manifest["infrastructure_drops"]
    if drops:
        where = ", ".join(f"{count} at {device}" for device, count in sorted(drops.items()))
        found.append(f"frames were lost where the emulated network loses none ({where})")
    if not capture["complete"]:
        found.append("the capture is not complete")
    return found


def said(totals: Mapping[str, int]) -> str:
    """What nodes have done so far, for people: sums of `submitted`, `delivered`, `waiting`."""
    waiting = f", {totals['waiting']:,} waiting" if totals["waiting"] else ""
    return f"{totals['submitted']:,} sent, {totals['delivered']:,} delivered{waiting}"


def counted(number: int, noun: str) -> str:
    """`1 fault`, `2 faults`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _promises(experiment: Experiment) -> list[str]:
    """Of our protocol, where a node runs it, and of the programs of others."""
    name, parameters = experiment.protocol.name, experiment.protocol.parameters
    found = list(PROTOCOLS[name].promised(parameters)) if experiment.has_protocol else []
    found += [promise for program in experiment.programs.values() for promise in program.promises]
    return list(dict.fromkeys(found))


def _of_programs(experiment: Experiment) -> dict[str, Any]:
    if not experiment.programs:
        return {}
    return {
        "members": [node.name for node in experiment.members],
        "programs": described(experiment.programs),
    }


def _workload(experiment: Experiment) -> dict[str, Any]:
    """The first sender's workload stands for all in the manifest."""
    active = {name: w for name, w in experiment.workloads.items() if w.kind is not WorkloadKind.SILENT}
    if not active:
        return {"kind": "silent", "rate_per_s": 0.0, "size_bytes": 0, "senders": []}
    first = next(iter(active.values()))
    return {
        "kind": first.kind.value,
        "rate_per_s": first.rate_per_s,
        "size_bytes": first.size_bytes,
        "senders": sorted(active),
    }
