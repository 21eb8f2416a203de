"""Frames that met each fault: those sent over the affected paths while it was in force. A fault that met none tests
nothing, whatever the verdict; nor does one whose end was due before it took effect.

A frame meets a fault when its sender and one of its receivers are a pair that the fault acts on:

    impair      the port of the receiver (to-node) or sender (from-node), or a link on the way, in that direction
    cut         the two are cut off from each other, or a cut link lies on the way
    crash, pause, slow, deaf    the receiver is down, frozen, slow or deaf
    clock       either of them has a wrong clock

Frames are counted where they were sent, before any impairment: frames that a cut or a loss dropped count, too. Trace
frames do not count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import pyarrow.dataset as pds

from analysis import formatting as words
from analysis.inputs import RunInputs
from analysis.network.addresses import LINK_LOCAL, Receivers
from analysis.requested_network import RecordedFault, acts_on

MAX_WARNED = 20
"""Most faults with a warning of their own."""

MAX_TIMED = 200
"""Most faults for which latency is measured before, during and after."""


class Sent(NamedTuple):
    """Frames of one sender to one destination between two moments at which faults changed."""

    interval: int
    sender: int
    eth_dst: int
    ip_dst: int
    frames: int


class Around(NamedTuple):
    """Times of a fault, of the change of faults before it, and of the change after it."""

    before_ns: int
    from_ns: int
    until_ns: int
    after_ns: int


def around(inputs: RunInputs) -> dict[int, Around]:
    """Times of the first MAX_TIMED lasting faults, by id, from the change of faults before each (or the start of the
    load) to the change after it (or the end of the load). Empty if the load did not end.
    """
    phases = inputs.manifest.phases
    start_ns, end_ns = phases.start_ns, phases.load_end_ns
    if start_ns is None or end_ns is None:
        return {}
    faults = inputs.faults
    asked = {line.get("id"): words.number(line.get("asked_ns")) or 0 for line in inputs.fault_lines}
    # Faults requested for one time take effect one after the other, but are one change.
    changes = [(asked.get(fault.id, 0), fault.effective_ns) for fault in faults]
    effective = {fault.id: fault.effective_ns for fault in faults}
    found = {}
    for fault in [one for one in faults if one.kind in words.LASTING and not one.is_end][:MAX_TIMED]:
        until = -1 if fault.until_id is None else fault.until_id
        at, to = asked.get(fault.id, 0), asked.get(until, float("inf"))
        before_ns = max((effective_ns for one, effective_ns in changes if one < at), default=start_ns)
        after_ns = min((effective_ns for one, effective_ns in changes if one > to), default=end_ns)
        until_ns = effective.get(until, end_ns)
        found[fault.id] = Around(before_ns, fault.effective_ns, until_ns, max(until_ns, after_ns))
    return found


def section(
    inputs: RunInputs, frames: Path | None, latency: Mapping[int, Mapping[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """Section `faults` of summary.json: one entry for each fault in the order of faults.jsonl, without those that only
    end another one. `frames`: the table; None: there is no capture, so the frames that met a fault are not known.
    `latency`: by fault, for those from `around`.
    """
    effective = {fault.id: fault.effective_ns for fault in inputs.faults}
    asked = {line.get("id"): words.number(line.get("asked_ns")) for line in inputs.fault_lines}
    met = {} if frames is None else _met(inputs, frames, effective)
    start_ns = inputs.manifest.phases.start_ns or 0
    begun = [pair for pair in zip(inputs.fault_lines, inputs.faults, strict=True) if not pair[1].is_end]
    return [
        {
            **_entry(place, line, fault, start_ns, effective, asked, met),
            "latency": None if latency is None else latency.get(fault.id),
        }
        for place, (line, fault) in enumerate(begun)
    ]


def warnings(faults: Sequence[Mapping[str, Any]]) -> list[str]:
    """Warnings for a user: a sentence for each fault, and one for all beyond MAX_WARNED."""
    found = [words.clean(fault.get("warning"), 300) for fault in faults if fault.get("warning")]
    more = len(found) - MAX_WARNED
    return found[:MAX_WARNED] + ([f"{more} more faults met no traffic or were over too early"] if more > 0 else [])


def _entry(
    place: int,
    line: Mapping[str, Any],
    fault: RecordedFault,
    start_ns: int,
    effective: Mapping[int, int],
    asked: Mapping[Any, float | None],
    met: Mapping[int, int],
) -> dict[str, Any]:
    asked_ns, until_ns = asked.get(fault.id), effective.get(-1 if fault.until_id is None else fault.until_id)
    lag_ns = None if asked_ns is None else fault.effective_ns - start_ns - asked_ns
    entry = {
        "id": fault.id,
        "kind": fault.kind,
        "what": words.fault(line),
        "asked_s": None if asked_ns is None else asked_ns / 1e9,
        "issued_s": (fault.issued_ns - start_ns) / 1e9,
        "effective_s": (fault.effective_ns - start_ns) / 1e9,
        "lag_ms": None if lag_ns is None else lag_ns / 1e6,
        "until_s": None if until_ns is None else (until_ns - start_ns) / 1e9,
        "frames": met.get(fault.id),
    }
    asked_end_ns = None if fault.until_id is None else asked.get(fault.until_id)
    lasts = fault.kind in words.LASTING
    return entry | {"warning": _warning(place, entry, line, asked_ns, asked_end_ns, lag_ns) if lasts else ""}


def _warning(
    place: int,
    entry: Mapping[str, Any],
    line: Mapping[str, Any],
    asked_ns: float | None,
    asked_end_ns: float | None,
    lag_ns: float | None,
) -> str:
    """Reason why this fault tests nothing; empty if it tests something, or if this is not known."""
    until = "the end" if asked_end_ns is None else f"{asked_end_ns / 1e9:g} s"
    when = "" if asked_ns is None else f", {asked_ns / 1e9:g} s to {until}"
    what = words.fault(line)
    where = "" if what.startswith("cut ") else " " + words.listed(words.texts(line.get("targets"), 60))
    fault = f"fault {place} ({what}{where.rstrip()}{when})"
    if asked_ns is not None and asked_end_ns is not None and lag_ns is not None and asked_ns + lag_ns >= asked_end_ns:
        return f"{fault} was to be over before it took effect, {lag_ns / 1e6:.0f} ms late: give it more time"
    return f"{fault} met no traffic" if entry["frames"] == 0 else ""


# Frames that were sent.


def _met(inputs: RunInputs, table: Path, effective: Mapping[int, int]) -> dict[int, int]:
    """Number of frames that met each lasting fault, by id."""
    end_ns = inputs.manifest.phases.end_ns or 2**62
    lasting = [fault for fault in inputs.faults if fault.kind in words.LASTING and not fault.is_end]
    if not lasting:
        return {}
    windows = {
        fault.id: (fault.effective_ns, end_ns if fault.until_id is None else effective.get(fault.until_id, end_ns))
        for fault in lasting
    }
    edges = np.unique(np.array([edge for window in windows.values() for edge in window], np.int64))
    counted: dict[int, list[Sent]] = defaultdict(list)
    for sent in _sent(table, edges):
        counted[sent.interval].append(sent)
    receivers = Receivers(inputs.topology)
    names = [str(node.name) for node in inputs.topology.nodes()]
    return {
        fault.id: _count(counted, edges, windows[fault.id], acts_on(fault, inputs.network), receivers, names)
        for fault in lasting
    }


def _count(
    counted: Mapping[int, Sequence[Sent]],
    edges: npt.NDArray[np.int64],
    window: tuple[int, int],
    meets: Callable[[str, str], bool],
    receivers: Receivers,
    names: Sequence[str],
) -> int:
    first, last = (int(np.searchsorted(edges, edge, side="right")) for edge in window)
    total = 0
    for interval in range(first, last):
        for sent in counted.get(interval, ()):
            found = receivers.of(sent.sender, sent.eth_dst, sent.ip_dst)
            if any(meets(names[sent.sender], receiver.name) for receiver in found):
                total += sent.frames
    return total


def _sent(table: Path, edges: npt.NDArray[np.int64]) -> Iterator[Sent]:
    """Counts of sent frames by interval and destination; read batch by batch, so that a capture of any length fits."""
    totals: dict[tuple[int, int, int, int], int] = defaultdict(int)
    names = ["time_ns", "node_index", "eth_dst", "ip_dst"]
    is_sent = (pc.field("direction") == "from-node") & pc.is_valid(pc.field("node_index"))
    for batch in pds.dataset(table, format="parquet").to_batches(columns=names, filter=is_sent):
        at_ns, node, eth_dst, ip_dst = (
            batch.column(name).to_numpy(zero_copy_only=False).astype(np.int64) for name in names
        )
        keys = np.stack((np.searchsorted(edges, at_ns, side="right"), node, eth_dst, ip_dst))
        keys = keys[:, eth_dst >> 4 != LINK_LOCAL >> 4]
        found, counts = np.unique(keys, axis=1, return_counts=True)
        for key, count in zip(found.T.tolist(), counts.tolist(), strict=True):
            totals[tuple(key)] += count
    for (interval, node_index, mac, ip), frames in totals.items():
        yield Sent(interval, node_index, mac, ip, frames)
