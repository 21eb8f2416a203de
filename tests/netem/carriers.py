"""The runtimes of both worlds, for tests that ask the same of each."""

from __future__ import annotations

import os
import uuid
from typing import TypeAlias

from netem.bed import Bed
from netem.runtimes.docker import DockerRuntime
from netem.runtimes.netns import NetnsRuntime

BOUND_S = 15.0
"""A container takes its time on a machine that has much to do."""

Carrier: TypeAlias = NetnsRuntime | DockerRuntime


def carrier_of(world: str, bed: Bed) -> Carrier:
    """Opened; close it by `with`."""
    if world == "netns":
        return NetnsRuntime(bed)
    return DockerRuntime(bed, run_id=f"test/{os.getpid()}-{uuid.uuid4().hex[:8]}")
