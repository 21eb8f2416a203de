"""Accuracy of each kernel for delay, loss and rate, by the runs' own certificates; and the saturation of `uml`.

The certificate compares frame by frame, from the capture alone (`analysis.network.accuracy`). Saturation: one node of
30 floods its segment, the others are 5 ms away and do not listen; the port deliveries a second grow until the delay
lines do not keep up any more: the median delay leaves its bound. A kernel that this machine does not have is left out.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from analysis.capture.decode import decode_frames
from benchmarks.networks import directory
from benchmarks.rows import Row, Watch, at_most, shown
from collector.parse import frames_in, read_interfaces
from collector.records import PortDirection
from netem.errors import FabricError
from netem.kernel.supervised import Sandbox
from netem.network import EmulatedNetwork, Kernel, KernelOption
from netem.probe import pick, probe, processors_awake
from testbed.console import Console
from testbed.run.perform import Overrides, load_experiment, perform
from testbed.run.wires import Capture
from topologies.model import MULTICAST_GROUP, PROTOCOL_PORT, Impairment, Topology
from topologies.shapes import one_partition, with_ports

QUICK_NS = 2 * 10**9
SPIN_NS, GAP_NS = 5 * 10**9, 10**6
PORTS, QUICK_PORTS = 30, 4
RATES_PER_S, QUICK_RATES_PER_S = (250, 500, 1000, 1500, 2000, 2500, 3000, 4000), (250,)
FLOOD_S = 3.0
ASKED = Impairment(delay_ns=5_000_000)
P50_BOUND_MS, P99_BOUND_MS = 5.3, 6.0
"""Bounds for a delay of 5 ms, as in experiment accuracy-delay."""
KEPT_UP_MS = 6.0
"""Largest median delay with which the delay line keeps up."""


def measure(*, quick: bool) -> Iterator[Row]:
    for kernel in _kernels():
        with directory() as runs:
            yield from _delay(kernel, runs, quick=quick)
            if not quick:
                yield from _loss(kernel, runs)
                yield from _rate(kernel, runs)
        if kernel is Kernel.UML:
            yield from _saturation(quick=quick)


def _kernels() -> tuple[Kernel, ...]:
    found = []
    probes = probe()
    for kernel in Kernel:
        try:
            found.append(pick(KernelOption(kernel.value), probes).picked)
        except FabricError as error:
            print(f"  kernel {kernel.value} is left out: {error}", flush=True)
    return tuple(found)


def _delay(kernel: Kernel, runs: Path, *, quick: bool) -> Iterator[Row]:
    note = _gaps()
    watch = Watch()
    links = _links("accuracy-delay", kernel, runs, duration_ns=QUICK_NS if quick else None)
    for name, bar in (("p50", at_most(P50_BOUND_MS)), ("p99", at_most(P99_BOUND_MS))):
        values = [link[f"delay_{name}_ms"] for link in links if link["asked"].get("delay_ns")]
        what = f"kernel {kernel.value}: 5 ms asked, 18,000 deliveries a second; {name}, worst of {len(values)} ports"
        yield watch.row(f"accuracy.{kernel.value}_delay_{name}", what, "ms", max(values), bar=bar, note=note)


def _gaps() -> str:
    """Text about the times for which the idle machine took the processor from a spinning thread: a frame may be late by
    these.
    """
    began = before = time.monotonic_ns()
    gaps = []
    while before - began < SPIN_NS:
        now = time.monotonic_ns()
        if now - before >= GAP_NS:
            gaps.append(now - before)
        before = now
    longest = f", the longest of {max(gaps) / 1e6:.1f} ms" if gaps else ""
    seen = f"{len(gaps)} times for 1 ms or more in {SPIN_NS // 10**9} s{longest}"
    return f"idle, the machine took the processor away {seen}"


def _loss(kernel: Kernel, runs: Path) -> Iterator[Row]:
    watch = Watch()
    links = [link for link in _links("accuracy-loss", kernel, runs) if link["asked"].get("loss_ratio")]
    for asked in sorted({link["asked"]["loss_ratio"] for link in links}):
        ports = [link for link in links if link["asked"]["loss_ratio"] == asked]
        realised = [100 * link["loss_ratio"] for link in ports]
        covered = sum(link["loss_low"] <= asked <= link["loss_high"] for link in ports)
        note = f"{covered} of {len(ports)} ports have what was asked in their confidence interval"
        what = f"kernel {kernel.value}: {100 * asked:g} % loss asked"
        yield watch.row(f"accuracy.{kernel.value}_loss_{100 * asked:g}", what, "%", realised, note=note)


def _rate(kernel: Kernel, runs: Path) -> Iterator[Row]:
    watch = Watch()
    for link in _links("overrun", kernel, runs):
        asked = link["asked"].get("rate_bps")
        if asked and link["rate_bps"]:
            what = f"kernel {kernel.value}: {asked / 1e6:g} Mbit/s asked of an overrun port; realised / asked"
            yield watch.row(f"accuracy.{kernel.value}_rate", what, "", link["rate_bps"] / asked)


def _links(name: str, kernel: Kernel, runs: Path, *, duration_ns: int | None = None) -> list[dict[str, Any]]:
    """Rows of the certificate of one run of a shipped experiment."""
    overrides = Overrides(world="netns", kernel=kernel.value, runs=runs, name=f"{name}-{kernel.value}")
    experiment = load_experiment(name, overrides)
    if duration_ns is not None:
        experiment = dataclasses.replace(experiment, duration_ns=duration_ns)
    outcome = perform(experiment, overrides, Console(quiet=True))
    assert outcome.summary is not None, "it was asked to be analysed"
    return list(outcome.summary["links"])


# Saturation.


def _saturation(*, quick: bool) -> Iterator[Row]:
    watch = Watch()
    topology = with_ports(one_partition(QUICK_PORTS if quick else PORTS), to_node=ASKED)
    steps = []
    with (
        processors_awake(),
        directory() as logs,
        EmulatedNetwork.open(topology, kernel=KernelOption.UML, log_dir=logs) as network,
    ):
        network.own_namespaces(topology.nodes())
        for rate_per_s in QUICK_RATES_PER_S if quick else RATES_PER_S:
            steps.append(_flood(network, topology, logs / f"{rate_per_s}.pcapng", rate_per_s))
            if steps[-1].p50_ms > KEPT_UP_MS:
                break
    kept = [step.deliveries_per_s for step in steps if step.p50_ms <= KEPT_UP_MS]
    note = "; ".join(
        f"{shown(step.deliveries_per_s)}/s: p50 {step.p50_ms:.2f}, p99 {step.p99_ms:.2f} ms, {step.lost} lost"
        for step in steps
    )
    most = f"most port deliveries a second with a median delay of at most {KEPT_UP_MS:g} ms"
    what = f"kernel uml: {most}, {len(topology)} ports"
    yield watch.row("accuracy.uml_saturation", what, "/s", max(kept, default=0.0), note=note)


class _Step(NamedTuple):
    deliveries_per_s: float
    p50_ms: float
    p99_ms: float
    lost: int
    """Frames that did not arrive."""


def _flood(network: EmulatedNetwork, topology: Topology, capture_path: Path, rate_per_s: float) -> _Step:
    capture = Capture(network, topology, capture_path, {}, capture_path.with_suffix(".log"))
    sender = next(iter(topology.nodes()))
    argv = [
        sys.executable,
        "-m",
        "benchmarks.flood",
        str(rate_per_s),
        str(FLOOD_S),
        MULTICAST_GROUP,
        str(PROTOCOL_PORT),
    ]
    root = Path(__file__).resolve().parent.parent
    environment = {"PYTHONPATH": str(root), "PATH": os.defpath}
    sandbox = Sandbox(readable=[root, Path(sys.prefix), Path(sys.base_prefix)])
    log = capture_path.with_suffix(".sender")
    with log.open("wb") as said, Path(os.devnull).open("rb") as nothing:
        descriptors = [nothing.fileno(), said.fileno(), said.fileno()]
        process = network.spawn(
            argv, environment, descriptors,
            namespace=network.own_namespace(sender), directory=Path("/"), sandbox=sandbox,
        )  # fmt: skip
    if code := process.wait(60 * FLOOD_S):
        raise FabricError(f"the sender ended with exit code {code}: {log.read_text(encoding='utf-8')}")
    capture.stop()
    sent, seconds = (float(word) for word in log.read_text(encoding="utf-8").split())
    delays_ns = _delays_ns(capture_path)
    lost = round(sent) * (len(topology) - 1) - len(delays_ns)
    p50_ms, p99_ms = (float(value) / 1e6 for value in np.percentile(delays_ns, (50, 99)))
    return _Step(len(delays_ns) / seconds, p50_ms, p99_ms, lost)


def _delays_ns(path: Path) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Delay of every frame that reached a port, since its sender sent it."""
    times, directions, numbers = [], [], []
    for buffer, frames in frames_in(path, read_interfaces(path)):
        decoded = decode_frames(buffer, frames, ("is_protocol", "transmission"))
        ours = decoded["is_protocol"].astype(bool)
        times.append(frames.time_ns[ours])
        directions.append(frames.direction[ours])
        numbers.append(decoded["transmission"][ours].astype(np.int64))
    time_ns, direction, number = (np.concatenate(column) for column in (times, directions, numbers))
    is_sent = direction == PortDirection.INBOUND
    sent_ns = np.zeros(int(number.max()) + 1, np.int64)
    sent_ns[number[is_sent]] = time_ns[is_sent]
    found: np.ndarray[tuple[int], np.dtype[np.int64]] = time_ns[~is_sent] - sent_ns[number[~is_sent]]
    return found
