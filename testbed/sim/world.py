"""One experiment in the simulated world: virtual time, seeded random numbers, and the same run directory as a real run.

The phases are those of the conductor (testbed.run.conductor), and each is noted in the manifest. There is no kernel, no
process and no clock here except the one that measures the run's duration. Load, faults and drain are one call of
`simulate`, which passes every frame to the capture and every fault to its file at once; the rest is known when it
returns. So an interrupted run keeps its capture and its faults.
"""

from __future__ import annotations

import dataclasses
import time
import traceback
from contextlib import ExitStack
from typing import Any

from collector.records import CaptureError
from netem.errors import FabricError
from node.errors import LocalError
from testbed.console import Console, Interrupt, Stage, held_back
from testbed.rundir.manifest import collect as collect_versions
from testbed.rundir.manifest import counted, doubts, said
from testbed.rundir.store import RunDirectory, StoreError
from testbed.sim.capture import EPOCH_NS, SimulatedCapture
from testbed.sim.simulation import START_NS, Datagram, Ending, IncarnationRun, Simulation, simulate
from testbed.spec.values import Experiment
from topologies.model import Node, Topology

KERNEL = {"picked": "none", "why": "the simulated world has no kernel", "probes": []}
EXIT_KILLED = -9
"""Exit code that the conductor notes for a node killed by a fault."""


class SimulatedWorld:
    """Performs one experiment into one run directory."""

    def __init__(self, experiment: Experiment, directory: RunDirectory, console: Console) -> None:
        self._experiment = experiment
        self._topology = experiment.topology
        self._directory = directory
        self._console = console
        self._manifest = directory.manifest

    def perform(self) -> None:
        """Run it. All that was recorded is kept whole, however it ends.

        Raises StoreError when the disk is full, FabricError when a core fails, KeyboardInterrupt.
        """
        with ExitStack() as stack:
            capture = self._start()
            stack.callback(self._close_capture, capture)
            simulation = self._load(capture)
            self._drain(simulation)
            self._stop(simulation, capture)

    # --- phases, in order

    def _start(self) -> SimulatedCapture:
        with self._console.stage("network", "") as stage:
            self._manifest["kernel"] = KERNEL
            self._manifest["versions"] = collect_versions(guest_linux=None)
            self._manifest["readback"] = {}
            self._manifest["clock"] = {"monotonic_ns": 0, "realtime_ns": EPOCH_NS}
            self._manifest["phases"]["start_ns"] = START_NS
            self._directory.save()
            comment = {"experiment": self._experiment.name, "seed": self._experiment.seed}
            comment |= {"group": self._directory.group, "world": "sim"}
            capture = SimulatedCapture(self._directory.capture_path, self._topology, comment)
            partitions = counted(len(self._topology.partitions), "partition")
            stage.result = f"{len(self._topology)} ports on {partitions}, simulated: no kernel"
        return capture

    def _load(self, capture: SimulatedCapture) -> Simulation:
        duration_s = self._experiment.duration_ns / 1e9
        with self._console.bar("load", "", total_s=duration_s) as stage, held_back() as interrupt:
            tap = _Tap(capture, interrupt)
            progress = _Progress(stage, capture, interrupt)
            simulation = self._simulate(tap, progress)
            speed = progress.speed(simulation.phases.load_end_ns)
            begun = sum(not fault.is_end for fault in self._experiment.faults)
            stage.result = (
                f"{duration_s:g} s of virtual time, {speed:.1f} times as fast as real time, "
                f"{said(totals(simulation))}, {counted(begun, 'fault')}"
            )
        return simulation

    def _simulate(self, tap: _Tap, progress: _Progress) -> Simulation:
        try:
            return simulate(
                self._experiment,
                group=self._directory.group,
                tap=tap,
                on_progress=progress.show,
                on_fault=self._directory.append_fault,
                keeps_records=False,
            )
        except CaptureError as error:
            raise StoreError(str(error)) from error
        except (StoreError, LocalError):
            raise
        except Exception as error:
            # As for a real node that ends by itself: the traceback goes to a log, the sentence to the user.
            log = self._directory.node_log("simulation")
            log.write_text(traceback.format_exc(), encoding="utf-8")
            raise FabricError(f"the simulation ended by itself ({error!r}); its log is {log}") from error

    def _drain(self, simulation: Simulation) -> None:
        phases = simulation.phases
        self._manifest["phases"] = dataclasses.asdict(phases)
        if phases.drained_ns is None:
            drain_s = self._experiment.drain_ns / 1e9
            self._console.warn("drain", f"not every node became quiet within {drain_s:g} s")
        else:
            later_s = (phases.drained_ns - phases.load_end_ns) / 1e9
            self._console.done("drain", f"every node is quiet {later_s:.2f} s of virtual time later")

    def _stop(self, simulation: Simulation, capture: SimulatedCapture) -> None:
        with self._console.stage("stop", "ending") as stage:
            closing = self._close_capture(capture)
            self._manifest["nodes"] = [
                node_entry(incarnation, self._topology) for incarnation in simulation.incarnations
            ]
            self._manifest["counters"] = simulation.counters
            self._manifest["link_counters"] = simulation.link_counters
            self._manifest["bus_counters"] = simulation.bus_counters
            self._manifest["infrastructure_drops"] = {}
            # The load of this machine cannot affect virtual time: nothing is measured (null).
            lag_max_ns = totals(simulation)["lag_max_ns"]
            self._manifest["health"] = {"cpu_busy_ratio": None, "steal_ratio": None, "lag_max_ns": lag_max_ns}
            self._manifest["invalid"] = doubts(self._experiment, self._manifest)
            stage.result = f"{closing['frames']:,} frames captured, {simulation.events:,} events simulated"
        for reason in self._manifest["invalid"]:
            self._console.warn("invalid", reason)
        self._manifest["status"] = "complete"

    def _close_capture(self, capture: SimulatedCapture) -> dict[str, Any]:
        """Close the capture. Idempotent: also called when a run ends early. The run directory saves the manifest."""
        try:
            closing = self._manifest["capture"] = capture.close()
        except CaptureError as error:
            raise StoreError(str(error)) from error
        return closing


def totals(simulation: Simulation) -> dict[str, int]:
    """Sums over all incarnations, and the largest lag of those that were never paused."""
    incarnations = simulation.incarnations
    sums = {
        name: sum(getattr(incarnation, name) for incarnation in incarnations)
        for name in ("submitted", "delivered", "waiting")
    }
    sums["lag_max_ns"] = max(
        (incarnation.lag_max_ns for incarnation in incarnations if not incarnation.was_paused), default=0
    )
    return sums


def node_entry(incarnation: IncarnationRun, topology: Topology) -> dict[str, Any]:
    """Manifest entry of one incarnation. The CPU time of a simulated node is that of its core."""
    is_crashed = incarnation.ending is Ending.CRASHED
    (node,) = (node for node in topology.nodes() if node.index == incarnation.member)
    return {
        "node": node.name,
        "incarnation": incarnation.incarnation,
        "exit": EXIT_KILLED if is_crashed else 0,
        "drained": incarnation.ending is Ending.DRAINED,
        "crashed": is_crashed,
        "ended": incarnation.has_ended,
        **({"left": True} if incarnation.has_left else {}),
        "dropped": dict(incarnation.dropped),
        "overrun": incarnation.overrun,
        "submitted": incarnation.submitted,
        "delivered": incarnation.delivered,
        "handled": incarnation.handled,
        "core_ns": incarnation.core_ns,
        "lag_max_ns": incarnation.lag_max_ns,
        "cpu_ns": incarnation.core_ns,
    }


class _Tap:
    """Tap that passes every frame to the capture and heeds Ctrl-C."""

    def __init__(self, capture: SimulatedCapture, interrupt: Interrupt) -> None:
        self._record = capture.frame
        self._interrupt = interrupt

    def frame(self, port: Node, inbound: bool, at_ns: int, datagram: Datagram) -> None:
        self._record(port, inbound, at_ns, datagram)
        if self._interrupt.is_asked:
            self._interrupt.heed()


class _Progress:
    """Progress bar of virtual time, with its speed."""

    def __init__(self, stage: Stage, capture: SimulatedCapture, interrupt: Interrupt) -> None:
        self._stage = stage
        self._capture = capture
        self._interrupt = interrupt
        self._began_s = time.monotonic()

    def show(self, now_ns: int) -> None:
        self._interrupt.heed()
        text = f"{self._capture.frames:,} frames, {self.speed(now_ns):.1f} times as fast as real time"
        self._stage.advance_to((now_ns - START_NS) / 1e9, text)

    def speed(self, now_ns: int) -> float:
        """Virtual seconds per real second."""
        return (now_ns - START_NS) / 1e9 / max(time.monotonic() - self._began_s, 1e-9)
