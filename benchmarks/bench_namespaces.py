"""Growth of set-up and removal with 50, 100, 200 and 300 nodes, each in a namespace of its own.

Wires on the host's kernel, no programs, no impairments; segments of 50 nodes, joined in a row. The exponent of growth
is the slope of log(time) over log(n): 1 is linear. A single segment of 300 is measured, too: every node has the address
of every other, so that no ARP is needed, which makes 89,700 static neighbours.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.networks import UpAndDown, directory, partitions_in_a_row, up_and_down
from benchmarks.rows import Row, Watch, at_most, shown, straight_line, take_turns
from topologies.model import Topology
from topologies.shapes import one_partition

SIZES, QUICK_SIZES = (50, 100, 200, 300), (10, 20)
SEGMENT, QUICK_SEGMENT = 50, 10
ROUNDS, QUICK_ROUNDS = 5, 1
LINEAR = at_most(1.1)
"""Bound of the exponent of growth: quadratic growth has 2; a fixed part brings it below 1."""

_ASPECTS: Mapping[str, tuple[str, Callable[[UpAndDown], float]]] = {
    "up": ("up", lambda incarnation: incarnation.up_s),
    "down": ("down, until the kernel has taken everything back", lambda incarnation: incarnation.gone_s),
}


def measure(*, quick: bool) -> Iterator[Row]:
    watch = Watch()
    sizes, segment = (QUICK_SIZES, QUICK_SEGMENT) if quick else (SIZES, SEGMENT)
    incarnations: dict[int, list[UpAndDown]] = {size: [] for size in sizes}
    alone: list[UpAndDown] = []
    with directory() as logs:
        contenders = {
            str(size): _incarnation_into(incarnations[size], partitions_in_a_row(size, size // segment), logs)
            for size in sizes
        }
        contenders["alone"] = _incarnation_into(alone, one_partition(sizes[-1]), logs)
        take_turns(QUICK_ROUNDS if quick else ROUNDS, contenders)
    for aspect, (words, pick) in _ASPECTS.items():
        times = {size: [pick(incarnation) for incarnation in incarnations[size]] for size in sizes}
        for size in sizes:
            yield watch.row(f"namespaces.{aspect}_{size}", f"{size} namespaces: {words}", "s", times[size])
        yield _growth(watch, aspect, times)
        what = f"{sizes[-1]} namespaces in a single segment: {words}"
        yield watch.row(f"namespaces.{aspect}_alone", what, "s", [pick(incarnation) for incarnation in alone])


def _incarnation_into(found: list[UpAndDown], topology: Topology, logs: Path) -> Callable[[], float]:
    def live() -> float:
        found.append(up_and_down(topology, logs))
        return found[-1].up_s

    return live


def _growth(watch: Watch, aspect: str, times: Mapping[int, Sequence[float]]) -> Row:
    """Row of the exponent, with the straight line through the medians in its note."""
    sizes = sorted(times)
    medians = [statistics.median(times[size]) for size in sizes]
    line = straight_line(sizes, medians)
    exponent = straight_line([math.log(size) for size in sizes], [math.log(median) for median in medians])
    note = (
        f"a straight line through the medians: {shown(line.at_zero * 1e3)} ms + {shown(line.slope * 1e3)} ms a "
        f"namespace, R² = {line.explained:.4f}"
    )
    what = f"{aspect}: exponent of growth from {sizes[0]} to {sizes[-1]}"
    return watch.row(f"namespaces.{aspect}_growth", what, "", exponent.slope, bar=LINEAR, note=note)
