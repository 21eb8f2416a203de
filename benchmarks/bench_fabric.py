"""Set-up and removal of a network of 30 hosts on 4 bridges without programs, beside Mininet's LinuxBridge.

Both use the host's kernel, without impairments. Orderbed creates more: two cables and four filters for each node,
static neighbours, and a router in each partition where Mininet joins its bridges; `up` ends when every port carries
frames. `down` of Mininet is its `stop()`; after Orderbed's `close()` the kernel still removes namespaces and devices,
and that time is counted, too.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.networks import UpAndDown, directory, partitions_in_a_row, up_and_down
from benchmarks.rows import Compared, Row, Watch, at_most, take_turns

PROGRAMS = ("mn", "brctl")
SYSTEM_PYTHON = "/usr/bin/python3"
HOSTS, BRIDGES = 30, 4
ROUNDS, QUICK_ROUNDS = 11, 2
_PEER = Path(__file__).parent / "peers" / "mininet_bridges.py"
_MININET = "Mininet"


def measure(*, quick: bool) -> Iterator[Row]:
    watch = Watch()
    ours: list[UpAndDown] = []
    theirs: list[tuple[float, float]] = []
    with directory() as logs:
        rounds = QUICK_ROUNDS if quick else ROUNDS
        take_turns(rounds, {"ours": _ours_into(ours, logs), _MININET: _mininet_into(theirs)})
    up, down = zip(*theirs, strict=True)
    size = f"{HOSTS} hosts, {BRIDGES} bridges"
    yield watch.row(
        "fabric.up", f"{size}: up", "s", [one.up_s for one in ours],
        peer=(_MININET, up), bar=at_most(1.0, of=Compared.RATIO),
    )  # fmt: skip
    yield watch.row(
        "fabric.down", f"{size}: down, until the kernel has taken everything back", "s", [one.gone_s for one in ours],
        peer=(_MININET, down), bar=at_most(0.5, of=Compared.RATIO),
        note="close() itself returns after "
        f"{min(one.closed_s for one in ours) * 1e3:.0f} to {max(one.closed_s for one in ours) * 1e3:.0f} ms",
    )  # fmt: skip


def _ours_into(found: list[UpAndDown], logs: Path) -> Callable[[], float]:
    topology = partitions_in_a_row(HOSTS, BRIDGES)

    def live() -> float:
        found.append(up_and_down(topology, logs))
        return found[-1].up_s

    return live


def _mininet_into(found: list[tuple[float, float]]) -> Callable[[], float]:
    command = [SYSTEM_PYTHON, str(_PEER), str(HOSTS), str(BRIDGES)]

    def live() -> float:
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        up, down = (float(word) for word in said.split())
        found.append((up, down))
        return up

    return live
