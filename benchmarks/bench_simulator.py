"""Speed of the simulator on one core: message events a second, a thousand members, memory over a million messages.

    python -m benchmarks.bench_simulator           speed and a thousand members, half a minute
    python -m benchmarks.bench_simulator memory    and a million messages, some minutes

A message event is a send, an arrival of a datagram, or a delivery. Speeds are per second of processor time of this
process, which depends less on other load of the machine than wall-clock time; the best of several runs is shown.
"""

from __future__ import annotations

import gc
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.core import Core, Membership
from node.registry import PROTOCOLS
from node.trace import Event
from testbed.sim.simulation import START_NS, Simulation, simulate
from testbed.spec import experiment as spec
from testbed.spec.values import Experiment

NS_PER_S = 10**9
SIZE_BYTES = 500
RATE_PER_S = 500.0
GOAL_PER_S = 150_000
REPEATS = 3
MILLION = 1_000_000


def main() -> None:
    print(f"{'what':64} value")
    for protocol in ("reliable", "sequencer"):
        bench_speed(protocol)
    bench_thousand()
    if "memory" in sys.argv[1:]:
        bench_memory()


def line(what: str, value: str, note: str = "") -> None:
    print(f"{what:64} {value}  {note}".rstrip(), flush=True)


def bench_speed(protocol: str, *, members: int = 8, duration_s: int = 4) -> None:
    experiment = made(members, protocol=protocol, duration_s=duration_s)
    runs = [measured(experiment) for _ in range(REPEATS)]
    best = max(runs, key=lambda run: run.message_events / run.cpu_s)
    name = f"{protocol}, n={members}, {SIZE_BYTES} bytes, 1 ms wires"
    goal = f"goal {GOAL_PER_S:,}" if protocol == "reliable" else ""
    line(f"{name}: message events/s", f"{best.message_events / best.cpu_s:,.0f}", goal)
    line(f"{name}: arrivals/s", f"{best.arrivals / best.cpu_s:,.0f}")
    line(f"{name}: deliveries/s", f"{best.deliveries / best.cpu_s:,.0f}")
    line(f"{name}: events of the engine/s", f"{best.result.events / best.cpu_s:,.0f}")
    core_s = sum(incarnation.core_ns for incarnation in best.result.incarnations) / NS_PER_S
    line(f"{name}: core, us per arrival", f"{core_s / best.arrivals * 1e6:.2f}")
    line(f"{name}: host and network, us per arrival", f"{(best.cpu_s - core_s) / best.arrivals * 1e6:.2f}")


def bench_thousand() -> None:
    before_mib = peak_mib()
    run = measured(made(1000, protocol="reliable", duration_s=1, rate_per_s=2.0, senders=5))
    delivered = {incarnation.delivered for incarnation in run.result.incarnations}
    quiet_ns = run.result.phases.drained_ns
    assert quiet_ns is not None, "a thousand members did not become quiet"
    assert delivered == {sum(incarnation.submitted for incarnation in run.result.incarnations)}, (
        "not everybody delivered everything"
    )
    line("reliable, n=1000, 10 multicasts: seconds", f"{run.cpu_s:.1f}", f"{run.arrivals:,} arrivals")
    line("reliable, n=1000: virtual seconds until quiet", f"{(quiet_ns - START_NS) / NS_PER_S:.2f}")
    line("reliable, n=1000: MiB", f"{peak_mib() - before_mib:,.0f}", "more than before")


def bench_memory(*, members: int = 4) -> None:
    """Memory over a million multicasts; records are not kept, so that only the members' own memory is measured."""
    cores: list[Core] = []
    samples: list[tuple[int, float, int]] = []
    duration_s = round(MILLION / (members * RATE_PER_S))

    def build(membership: Membership, seed: int) -> Core:
        cores.append(PROTOCOLS["reliable"].build(membership=membership, parameters={}, seed=seed))
        return cores[-1]

    def look(now_ns: int) -> None:
        samples.append((now_ns, resident_mib(), max(core.buffered for core in cores)))

    experiment = made(members, protocol="reliable", duration_s=duration_s)
    run = measured(experiment, keeps_records=False, build=build, on_progress=look)
    sent = sum(incarnation.submitted for incarnation in run.result.incarnations)
    line(f"reliable, n={members}, {sent:,} multicasts: seconds", f"{run.cpu_s:.0f}")
    for percent in (10, 25, 50, 75, 100):
        _, mib, held = samples[percent - 1]
        line(
            f"  after {percent} %: MiB of the whole process", f"{mib:.1f}", f"at most {held} messages held by a member"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    result: Simulation
    cpu_s: float
    message_events: int
    arrivals: int
    deliveries: int


def measured(experiment: Experiment, **options: Any) -> Run:
    gc.collect()
    began_s = time.process_time()
    result = simulate(experiment, group=1, **options)
    cpu_s = time.process_time() - began_s
    arrivals = sum(incarnation.received for incarnation in result.incarnations)
    deliveries = sum(incarnation.delivered for incarnation in result.incarnations)
    handed = sum(1 for incarnation in result.incarnations for row in incarnation.records if row[0] == Event.SEND)
    return Run(
        result=result, cpu_s=cpu_s, message_events=handed + arrivals + deliveries, arrivals=arrivals,
        deliveries=deliveries,
    )  # fmt: skip


def made(
    members: int, *, protocol: str, duration_s: int, rate_per_s: float = RATE_PER_S, senders: int | None = None
) -> Experiment:
    """One segment; the first `senders` (or all) send periodically."""
    workload: dict[str, Any] = {"kind": "periodic", "rate": f"{rate_per_s} /s", "size": f"{SIZE_BYTES} B"}
    if senders is not None:
        workload["senders"] = [f"p1/n{number}" for number in range(1, senders + 1)]
    block: dict[str, Any] = {
        "name": "benchmark",
        "question": "How fast is the simulator?",
        "topology": {"partitions": {"p1": {"nodes": members}}, "impairments": {"*": {"to-node": {"delay": "1 ms"}}}},
        "protocol": {"name": protocol},
        "workload": workload,
        "duration": f"{duration_s} s",
        "drain": "60 s",
        "seed": 1,
        "world": "sim",
    }
    return spec.from_block(block, "benchmark", protocols=PROTOCOLS)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


if __name__ == "__main__":
    main()
