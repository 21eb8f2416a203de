"""Bounds of a fraction of a millisecond, on a shared machine.

    def attempt() -> str:
        return "" if quantile_ms(unicast(…), 0.5) <= 5.3 else "the median was …"

    shown_on_the_wire(attempt)

A failed attempt proves nothing against a delay line if the hypervisor took the machine away or its timers ran late: a
run would be `unknown` then. A failed attempt on a quiet machine does, unless a later attempt succeeds; three of them
end the search. If no attempt was quiet and none succeeded, the result is unknown; at least one of all such tests has to
succeed (tests/proof.py). The machine is watched during each attempt: the share that the hypervisor took, its load, and
the lateness of the timers of an idle process with the priority of the guest kernel.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from testbed.rundir.manifest import CpuTimes
from tests import proof

STEAL_RATIO, BUSY_RATIO, LATE_MS = 0.01, 0.6, 0.1
"""Above one of these, late frames are caused by the machine and not by the delay line."""

ATTEMPTS, ENOUGH = 8, 3
SUITE = "delay lines"

_WITNESS = """
import os, sys, threading, time
try:
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
except PermissionError:
    pass
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
late = []
print("ready", flush=True)
while not over.is_set():
    due = time.monotonic_ns() + 2_000_000
    time.sleep(0.002)
    late.append(time.monotonic_ns() - due)
print(*late)
"""


@dataclass(frozen=True)
class Machine:
    """Load of the machine during an attempt."""

    steal_ratio: float
    busy_ratio: float
    late_ms: float
    """Median lateness of a timer."""

    @property
    def was_quiet(self) -> bool:
        return self.steal_ratio < STEAL_RATIO and self.busy_ratio < BUSY_RATIO and self.late_ms < LATE_MS


def shown_on_the_wire(attempt: Callable[[], str]) -> None:
    """Attempt until the wire keeps the promise. `attempt` returns the bounds that it exceeded, or an empty text."""
    beyond: list[str] = []
    noisy: list[str] = []
    for _ in range(ATTEMPTS):
        said, machine = _watched(attempt)
        if not said:
            proof.tell(SUITE, ())
            return
        (beyond if machine.was_quiet else noisy).append(f"{said} ({machine})")
        if len(beyond) == ENOUGH:
            break
    assert not beyond, "on a quiet machine: " + "; ".join(beyond)
    proof.tell(SUITE, noisy[-1:])


def _watched(attempt: Callable[[], str]) -> tuple[str, Machine]:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", _WITNESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as witness:
        assert witness.stdout is not None
        assert witness.stdout.readline() == "ready\n"
        before = CpuTimes.read()
        said = attempt()
        after = CpuTimes.read()
        late, _nothing = witness.communicate()
    return said, Machine(
        steal_ratio=after.steal_ratio_since(before),
        busy_ratio=after.busy_ratio_since(before),
        late_ms=statistics.median(int(word) for word in late.split()) / 1e6,
    )
