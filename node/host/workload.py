"""The workload of an application: seeded schedules of submissions, in nanoseconds after the start of the load.

A schedule is a pure function of its configuration and seed. It says when the application *wants* to send; the host
measures whether the protocol keeps up, and reports a lag.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from node.errors import LocalError
from node.parameters import require

NS_PER_S = 10**9
FOREVER_NS = 2**63 - 1


class WorkloadKind(enum.Enum):
    """PERIODIC and POISSON follow a rate; SCHEDULED names each instant; SATURATING sends whenever the protocol takes
    more; SILENT never does.
    """

    PERIODIC = "periodic"
    POISSON = "poisson"
    SCHEDULED = "scheduled"
    SATURATING = "saturating"
    SILENT = "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class RateChange:
    """From `after_ns` on (counted from the start of the load), messages come at `rate_per_s`."""

    after_ns: int
    rate_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """`size_bytes` is the whole payload, stamp included. The load ends `stop_after_ns` after its start.

    `instants_ns` are the instants of SCHEDULED, counted from the start of the load; an instant listed twice sends
    twice.
    """

    kind: WorkloadKind
    rate_per_s: float = 0.0
    size_bytes: int = 64
    stop_after_ns: int = FOREVER_NS
    events: tuple[RateChange, ...] = ()
    instants_ns: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        rates = [self.rate_per_s, *(event.rate_per_s for event in self.events)]
        require(min(rates) >= 0, "a rate must not be negative")
        times = [event.after_ns for event in self.events]
        require(times == sorted(times), "rate changes must come in the order of their times")
        require(list(self.instants_ns) == sorted(self.instants_ns), "scheduled instants must come in order")
        if self.instants_ns and self.kind is not WorkloadKind.SCHEDULED:
            raise LocalError(f"a {self.kind.value} workload has no scheduled instants")

    def rest(self, elapsed_ns: int) -> Workload:
        """The rest of the load after `elapsed_ns`, with times counted from there: passed rate changes are folded into
        the rate, passed instants are left out.
        """
        passed = [event.rate_per_s for event in self.events if event.after_ns <= elapsed_ns]
        return replace(
            self,
            rate_per_s=passed[-1] if passed else self.rate_per_s,
            stop_after_ns=max(0, self.stop_after_ns - elapsed_ns),
            events=tuple(
                replace(event, after_ns=event.after_ns - elapsed_ns)
                for event in self.events
                if event.after_ns > elapsed_ns
            ),
            instants_ns=tuple(at_ns - elapsed_ns for at_ns in self.instants_ns if at_ns >= elapsed_ns),
        )


WINDOWS = 256
"""Fillers cut from one piece of noise."""


class Filler:
    """Iterator over the payloads of a workload behind the stamp: noise drawn from a seed, no two alike, so that the
    check sum shows a payload that was mixed with another, replaced or cut.

    Each filler is a window of the same noise, one byte further on; after WINDOWS fillers the noise is drawn anew. So a
    filler costs one copy.
    """

    def __init__(self, size_bytes: int, rng: Random) -> None:
        self._size_bytes = size_bytes
        self._rng = rng
        self._noise = b""
        self._begin = WINDOWS

    def __next__(self) -> bytes:
        if self._begin == WINDOWS:
            self._begin = 0
            self._noise = self._rng.randbytes(self._size_bytes + WINDOWS)
        self._begin += 1
        return self._noise[self._begin : self._begin + self._size_bytes]


def due_times_ns(workload: Workload, rng: Random) -> Iterator[int]:
    """The time at which each message is due, ascending, in ns after the start of the load; ends with the load.

    A rate change takes effect at its time: the current gap is drawn anew from there, which for Poisson arrivals changes
    only the rate (they have no memory). A rate of 0 is silence until the next change. Periodic senders start at a
    random point of their first period: otherwise all members would send in lock-step.
    """
    if workload.kind is WorkloadKind.SCHEDULED:
        yield from (at_ns for at_ns in workload.instants_ns if at_ns < workload.stop_after_ns)
        return
    if workload.kind not in (WorkloadKind.PERIODIC, WorkloadKind.POISSON):
        return
    changes = [RateChange(after_ns=0, rate_per_s=workload.rate_per_s), *workload.events]
    ends_ns = [change.after_ns for change in changes[1:]] + [workload.stop_after_ns]
    phase = rng.random()
    for change, end_ns in zip(changes, ends_ns, strict=True):
        yield from _at_one_rate(workload.kind, change, min(end_ns, workload.stop_after_ns), phase, rng)


def _at_one_rate(kind: WorkloadKind, change: RateChange, end_ns: int, phase: float, rng: Random) -> Iterator[int]:
    if change.rate_per_s <= 0:
        return
    at_ns = change.after_ns
    count = 0
    while True:
        if kind is WorkloadKind.POISSON:
            at_ns += max(1, round(rng.expovariate(change.rate_per_s) * NS_PER_S))
        else:
            # Computed from the start of this rate each time, so that rounding errors do not add up.
            at_ns = change.after_ns + round((count + phase) * NS_PER_S / change.rate_per_s)
            count += 1
        if at_ns >= end_ns:
            return
        yield at_ns
