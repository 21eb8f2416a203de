"""Processors that stay awake while a network is measured.

An idle processor sleeps, and what it is woken for waits until it is up: a timer of a delay line, a frame. Measured here
with a delay of 5 ms: the median is 5.11 ms in place of 5.17 ms, and the hypervisor, which gives a sleeping processor to
others, takes a tenth of the time that it took before. Whoever holds /dev/cpu_dma_latency open with a 0 in it asks the
kernel to idle awake (Documentation/admin-guide/pm/cpuidle.rst); tools that measure latencies all do. The request ends
with the descriptor, so nothing is left behind, whatever ends this process. It costs power, and no time that anything
else wants.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REQUESTS = Path("/dev/cpu_dma_latency")
_NO_LATENCY = (0).to_bytes(4, "little")


@dataclass(frozen=True, slots=True)
class Processors:
    """Whether the processors are kept awake; if not, why."""

    awake: bool
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        """The manifest's `processors`."""
        return {"awake": True} if self.awake else {"awake": False, "why": self.why}


@contextmanager
def processors_awake(requests: Path = REQUESTS) -> Iterator[Processors]:
    """Keep all processors awake inside. A kernel that takes no such request measures as it can: that is said."""
    with ExitStack() as stack:
        try:
            stack.enter_context(requests.open("r+b", buffering=0)).write(_NO_LATENCY)
            processors = Processors(awake=True)
        except OSError as error:
            processors = Processors(awake=False, why=f"{requests}: {error.strerror}")
        yield processors
