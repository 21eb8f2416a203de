"""A testbed that stays up, for people, programs and notebooks: enter nodes, and impair, cut or crash while it runs.

with Testbed("three-partitions") as testbed:
    testbed.impair("p1/*", loss="10 %", delay="20 ms")
    print(testbed.run("p1/n1", ["ping", "-c", "3", "10.1.0.2"]).stdout)
"""

from testbed.live.client import Testbed, running
from testbed.live.commands import Completed, Running
from testbed.live.status import CaptureStatus, Counters, Description, LinkStatus, NodeStatus
from testbed.spec.faults import NodeState

__all__ = [
    "CaptureStatus",
    "Completed",
    "Counters",
    "Description",
    "LinkStatus",
    "NodeState",
    "NodeStatus",
    "Running",
    "Testbed",
    "running",
]
