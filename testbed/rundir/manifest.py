"""The manifest of a run (docs/run-directory.md): the entries that are alike in every world."""

from __future__ import annotations

import dataclasses
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from netem.errors import FabricError
from node.host.workload import WorkloadKind
from node.registry import PROTOCOLS
from testbed.paths import EXPERIMENTS, ROOT
from testbed.rundir.store import RunDirectory
from testbed.spec.program import described
from testbed.spec.raw import World
from testbed.spec.values import Experiment
from topologies.dump import as_json, changed_fields
from topologies.formats.errors import InputError
from topologies.model import Direction, Topology

_CAP_SYS_ADMIN = 21
"""linux/capability.h: needed to make network namespaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldChoice:
    """The world of a run and why."""

    world: World
    why: str


def pick(override: World) -> WorldChoice:
    """`auto` takes Docker when a daemon answers, else network namespaces. The simulated world must be requested.

    Raises FabricError when Docker was requested and no daemon answers.
    """
    if override in (World.NETNS, World.SIM):
        return WorldChoice(world=override, why="asked for")
    from netem.runtimes.daemon import connect

    try:
        connect().close()
    except FabricError:
        if override is World.DOCKER:
            raise
        return WorldChoice(world=World.NETNS, why="no Docker daemon answers")
    return WorldChoice(world=World.DOCKER, why="asked for" if override is World.DOCKER else "a Docker daemon answers")


def require_privilege(world: World, *, can_be_simulated: bool) -> None:
    """Raise InputError, before anything has started, when this process may not make the networks of `world`."""
    if world is World.SIM or _capabilities() >> _CAP_SYS_ADMIN & 1:
        return
    instead = ", or simulate them, without root, with --world sim" if can_be_simulated else ""
    raise InputError(f"real wires need root: run the same command with sudo{instead}")


def _capabilities() -> int:
    """The effective capabilities, one bit each: user id 0 does not imply them in a container."""
    status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    return next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:"))


def first_manifest(experiment: Experiment, world: WorldChoice, directory: RunDirectory) -> dict[str, Any]:
    """The manifest at the start of a run, with status `interrupted`, which stays if the run goes no further."""
    return {
        "format": 1,
        "run": directory.run_id,
        "status": "interrupted",
        "invalid": [],
        "experiment": experiment.name,
        "question": experiment.question,
        "source": source_of(experiment),
        "seed": experiment.seed,
        "group": directory.group,
        "protocol": {"name": experiment.protocol.name, "parameters": dict(experiment.protocol.parameters)},
        "promises": _promises(experiment),
        **_of_programs(experiment),
        **({"absent": list(experiment.absent)} if experiment.absent else {}),
        "dissemination": experiment.dissemination.value,
        "workload": _workload(experiment),
        **({"calls": [dataclasses.asdict(call) for call in experiment.calls]} if experiment.calls else {}),
        "duration_ns": experiment.duration_ns,
        "expect": [str(condition) for condition in experiment.expect],
        "world": world.world.value,
        "phases": {"start_ns": None, "load_end_ns": None, "drained_ns": None, "end_ns": None},
        **ports_of(experiment.topology),
    }


def ports_of(topology: Topology) -> dict[str, Any]:
    """The manifest's `ports`, and `asked`: the topology's impairments of each."""
    return {
        "ports": [{"node": n.name, "index": n.index, "ip": n.ip, "mac": n.mac} for n in topology.nodes()],
        "asked": {
            n.name: {d.value: as_json(changed_fields(n.impairment(d))) for d in Direction} for n in topology.nodes()
        },
    }


def source_of(experiment: Experiment) -> str:
    """The experiment as `orderbed run` takes it: the name of a shipped one, or the path that the user gave."""
    source = experiment.document.source
    return experiment.name if Path(source) == EXPERIMENTS / f"{experiment.name}.yaml" else source


def programs_said(experiment: Experiment) -> str:
    """The programs of the nodes, as text."""
    others: dict[str, int] = {}
    for program in experiment.programs.values():
        others[program.title] = others.get(program.title, 0) + 1
    parts = [f"{title} in {counted(count, 'node')}" for title, count in others.items()]
    if experiment.has_protocol:
        parts.insert(0, f"{experiment.protocol.name}, {experiment.dissemination.value}")
    return ", ".join(parts)


CLOCK_STEP_NS = 1_000_000
"""Least difference that is a step: both clocks of the machine run at one rate and are read within some microseconds."""


def doubts(experiment: Experiment, manifest: Mapping[str, Any]) -> list[str]:
    """Reasons why the numbers of a finished run must not be trusted: its `invalid`."""
    measured, capture = manifest["health"], manifest["capture"]
    found = judge(
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
    step_ns = capture.get("clock_step_ns") or 0
    if abs(step_ns) > CLOCK_STEP_NS:
        found.append(
            f"the machine's clock was set by {step_ns / 1e6:+,.0f} ms during the run: frames have its times, faults "
            "and trace records do not, so neither is known to come before the other"
        )
    return found


def said(totals: Mapping[str, int]) -> str:
    """Progress of the nodes as text, from the sums of `submitted`, `delivered`, `waiting`."""
    waiting = f", {totals['waiting']:,} waiting" if totals["waiting"] else ""
    return f"{totals['submitted']:,} sent, {totals['delivered']:,} delivered{waiting}"


def counted(number: int, noun: str) -> str:
    """`1 fault`, `2 faults`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _promises(experiment: Experiment) -> list[str]:
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


LIBRARIES = ("pyroute2", "scapy", "pyspark", "numpy", "pyarrow", "docker")


def collect(*, guest_linux: str | None) -> dict[str, str]:
    """Versions of orderbed, Python, the kernels and the libraries that process the data; `git` in a checkout only."""
    versions = {
        "orderbed": metadata.version("orderbed"),
        "python": platform.python_version(),
        "linux": platform.release(),
        "machine": platform.machine(),
    }
    if guest_linux:
        versions["guest_linux"] = guest_linux
    for library in LIBRARIES:
        versions[library] = metadata.version(library)
    revision = git_revision()
    if revision:
        versions["git"] = revision
    return versions


def git_revision() -> str | None:
    """The checkout's commit, with a mark when files differ from it; None outside a checkout or without git. `docs` does
    not count: its pages change no run, and the records of claims and campaigns grow while they are measured.
    """
    described = _git("describe", "--always", "--abbrev=12")
    if described is None or described.returncode != 0:
        return None
    changed = _git("diff", "--quiet", "HEAD", "--", ".", ":(exclude)docs")
    is_clean = changed is not None and changed.returncode == 0
    return described.stdout.strip() + ("" if is_clean else "-dirty")


def _git(*words: str) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None


# Health of the machine during the measurement.

LAG_MAX_NS = 250_000_000
"""A node whose workload fell further behind its schedule did not offer the requested load."""

CPU_BUSY_RATIO_MAX = 0.98
"""Above this share of all CPUs over the loaded phase, latency measures the machine, not the protocol."""

STEAL_RATIO_MAX = 0.10
"""Above this share of stolen time, the hypervisor delays processes that are ready to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTimes:
    """Ticks of all CPUs since boot, from /proc/stat."""

    total: int
    idle: int
    """Ticks of processes that give way to all others (`nice`) count as idle."""
    steal: int

    @classmethod
    def read(cls, stat: Path = Path("/proc/stat")) -> CpuTimes:
        fields = [int(word) for word in stat.read_text(encoding="ascii").splitlines()[0].split()[1:9]]
        user, nice, system, idle, iowait, irq, softirq, steal = fields
        total = user + nice + system + idle + iowait + irq + softirq + steal
        return cls(total=total, idle=idle + iowait + nice, steal=steal)

    def busy_ratio_since(self, earlier: CpuTimes) -> float:
        """Share of the CPUs' time that was not idle."""
        return _ratio(self.total - earlier.total - (self.idle - earlier.idle), self.total - earlier.total)

    def steal_ratio_since(self, earlier: CpuTimes) -> float:
        return _ratio(self.steal - earlier.steal, self.total - earlier.total)


def judge(*, cpu_busy_ratio: float, steal_ratio: float, lag_max_ns: int, saturating: bool) -> list[str]:
    """Reasons why the run's numbers must not be trusted. In real time a starved CPU delays frames and timers without a
    sign in the capture. With a saturating workload a busy CPU is intended; the lag is that of the other senders.
    """
    reasons = []
    if steal_ratio > STEAL_RATIO_MAX:
        reasons.append(f"the hypervisor took {steal_ratio:.0%} of the CPU time (bound {STEAL_RATIO_MAX:.0%})")
    if not saturating and cpu_busy_ratio > CPU_BUSY_RATIO_MAX:
        reasons.append(f"the CPUs were busy {cpu_busy_ratio:.1%} of the time (bound {CPU_BUSY_RATIO_MAX:.0%})")
    if lag_max_ns > LAG_MAX_NS:
        reasons.append(f"a node fell {lag_max_ns / 1e6:.0f} ms behind its workload (bound {LAG_MAX_NS // 10**6} ms)")
    return reasons


def health_of(before: CpuTimes, after: CpuTimes, lag_max_ns: int) -> dict[str, Any]:
    """The manifest's `health`."""
    return {
        "cpu_busy_ratio": round(after.busy_ratio_since(before), 4),
        "steal_ratio": round(after.steal_ratio_since(before), 4),
        "lag_max_ns": lag_max_ns,
    }


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole > 0 else 0.0
