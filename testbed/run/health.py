"""Was the machine fit to measure? What is watched during a run, and from where on its numbers are not to be trusted.

No virtual time hides an overload here: a starved CPU delays frames and timers without a sign in the capture. So the
conductor watches the machine's own accounting and how late its nodes run, and a run beyond these bounds is marked
invalid.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

LAG_MAX_NS = 250_000_000
"""A node whose workload fell this far behind its schedule did not offer the load that was asked."""

CPU_BUSY_RATIO_MAX = 0.98
"""Above this share of all CPUs over the loaded phase, latency measures the machine, not the protocol."""

STEAL_RATIO_MAX = 0.10
"""Above this share the hypervisor took the CPU away while somebody wanted to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTimes:
    """Ticks of all CPUs since boot, from /proc/stat."""

    total: int
    idle: int
    steal: int

    @classmethod
    def read(cls, stat: Path = Path("/proc/stat")) -> CpuTimes:
        fields = [int(word) for word in stat.read_text(encoding="ascii").splitlines()[0].split()[1:9]]
        user, nice, system, idle, iowait, irq, softirq, steal = fields
        return cls(total=user + nice + system + idle + iowait + irq + softirq + steal, idle=idle + iowait, steal=steal)

    def busy_ratio_since(self, earlier: CpuTimes) -> float:
        """Share of the CPUs' time that was not idle."""
        return _ratio(self.total - earlier.total - (self.idle - earlier.idle), self.total - earlier.total)

    def steal_ratio_since(self, earlier: CpuTimes) -> float:
        return _ratio(self.steal - earlier.steal, self.total - earlier.total)


def judge(*, cpu_busy_ratio: float, steal_ratio: float, lag_max_ns: int, saturating: bool) -> list[str]:
    """Reasons why the run's numbers must not be trusted.

    A saturating workload is behind, and the CPU busy, on purpose.
    """
    reasons = []
    if steal_ratio > STEAL_RATIO_MAX:
        reasons.append(f"the hypervisor took {steal_ratio:.0%} of the CPU time (bound {STEAL_RATIO_MAX:.0%})")
    if saturating:
        return reasons
    if cpu_busy_ratio > CPU_BUSY_RATIO_MAX:
        reasons.append(f"the CPUs were busy {cpu_busy_ratio:.1%} of the time (bound {CPU_BUSY_RATIO_MAX:.0%})")
    if lag_max_ns > LAG_MAX_NS:
        reasons.append(f"a node fell {lag_max_ns / 1e6:.0f} ms behind its workload (bound {LAG_MAX_NS // 10**6} ms)")
    return reasons


def summarize(before: CpuTimes, after: CpuTimes, lag_max_ns: int) -> dict[str, Any]:
    """The manifest's `health`."""
    return {
        "cpu_busy_ratio": round(after.busy_ratio_since(before), 4),
        "steal_ratio": round(after.steal_ratio_since(before), 4),
        "lag_max_ns": lag_max_ns,
    }


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole > 0 else 0.0
