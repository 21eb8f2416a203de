"""Message rates of a group: three members send 1000 bytes whenever the protocol accepts more.

Processes on the loopback interface of one machine. All three share its processors, so there are two numbers: deliveries
a second and node, which grow with the number of processors, and the processor time of a delivery, which does not. For
comparison, from the literature and not measured here: JGroups delivers 181,000 messages/s a node over its reliable
channel and 72,000 in total order (Java, a LAN of real machines); Spread took 19,000 messages/s on the loopback
interface of the reference machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.rows import Row, Watch
from tests.node.processes import nodes

MEMBERS = 3
PAYLOAD_BYTES = 1000
SECONDS = 3
PROTOCOLS_MEASURED = ("reliable", "sequencer")
SCALE = {
    "reliable": "JGroups, reliable, LAN, literature: 181,000",
    "sequencer": "JGroups, total order, LAN, literature: 72,000; Spread on loopback, literature: 19,000",
}
SATURATING: dict[str, Any] = {
    "kind": "saturating",
    "rate_per_s": 0.0,
    "size_bytes": PAYLOAD_BYTES,
    "stop_after_ns": 60 * 10**9,
    "events": [],
}


class Rate(NamedTuple):
    """Figures of one round."""

    deliveries_per_s: float
    cpu_us: float
    """Processor time of a delivery."""
    busy: float
    """Mean number of processors that the three processes used."""


def measure(*, quick: bool) -> Iterator[Row]:
    for protocol in PROTOCOLS_MEASURED:
        watch = Watch()
        rounds = [_round(protocol) for _ in range(1 if quick else 3)]
        busy = max(one.busy for one in rounds)
        what = f"{protocol}: {MEMBERS} saturating members, {PAYLOAD_BYTES} bytes, deliveries of a node"
        note = f"the {MEMBERS} processes had {busy:.1f} processors at most; {SCALE[protocol]}"
        per_s = [one.deliveries_per_s for one in rounds]
        yield watch.row(f"rates.{protocol}", what, "1/s", per_s, note=note)
        what = f"{protocol}: processor time of a delivery there"
        yield watch.row(f"rates.{protocol}.cpu", what, "us", [one.cpu_us for one in rounds])


def _round(protocol: str) -> Rate:
    with nodes(
        MEMBERS, workload=SATURATING, dissemination="multicast", protocol={"name": protocol, "parameters": {}}
    ) as group:
        group.start_all()
        group.wait_all("status")
        before, began = group.wait_all("status"), time.monotonic()
        for _ in range(SECONDS):
            after = group.wait_all("status")
        seconds = time.monotonic() - began
        group.tell_all("stop")
    delivered, cpu_ns = (
        sum(last[name] - first[name] for first, last in zip(before, after, strict=True))
        for name in ("delivered", "cpu_ns")
    )
    return Rate(delivered / MEMBERS / seconds, cpu_ns / delivered / 1e3, cpu_ns / 1e9 / seconds)
