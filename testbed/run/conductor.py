"""One experiment on the emulated network; nothing of it is left on the machine afterwards.

The phases, in order; each is noted in the manifest, so that a run that ends early shows how far it came:

    network   namespaces, bridges, queues, the kernel under them              netem.network
    capture   the collector sees every switch port                            testbed.run.wires
    nodes     every node is up, wired and ready                               testbed.run.fleet
    load      workloads run, faults strike                                    testbed.run.schedule
    drain     workloads have ended; messages in transit are delivered
    stop      nodes end, the capture is closed, the kernel's counters read

`analysis` judges the run later, from its files alone.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

from netem.network import EmulatedNetwork
from netem.probe import processors_awake
from netem.runtimes.base import Program
from netem.runtimes.cgroups import CpuLimiter
from testbed.console import Console, Stage
from testbed.run import wires
from testbed.run.fleet import Fleet, State
from testbed.run.program import user_programs
from testbed.run.schedule import Performer, Schedule
from testbed.run.stalls import stalls_watched
from testbed.run.wires import Capture
from testbed.rundir.manifest import CpuTimes, WorldChoice, counted, doubts, health_of, programs_said, said
from testbed.rundir.store import RunDirectory, clock_pair
from testbed.spec.nodes import configuration
from testbed.spec.values import Experiment
from topologies.model import Node, shortened

NODE_PROGRAM = Program(argv=("python3", "-S", "-P", "-m", "node"))
"""A node needs the standard library and the package `node`, no site packages: to search those takes as long as to start
Python without them."""

READY_TIMEOUT_S = 30.0
READY_TIMEOUT_PER_NODE_S = 1.0
START_LEAD_NS = 300_000_000
"""Lead of the common start instant: the start command reaches all nodes before it."""

QUIET = (State.DRAINED, State.STOPPED)

STOP_TIMEOUT_S = 10.0
TICK_S = 0.1


class Conductor:
    """Performs one experiment into one run directory."""

    def __init__(self, experiment: Experiment, world: WorldChoice, directory: RunDirectory, console: Console) -> None:
        self._experiment = experiment
        self._topology = experiment.topology
        self._world = world
        self._directory = directory
        self._console = console
        self._manifest = directory.manifest
        self._start_ns: int | None = None

    def perform(self) -> None:
        """Run it. Raises FabricError and KeyboardInterrupt after everything was released."""
        with ExitStack() as stack:
            self._manifest["processors"] = stack.enter_context(processors_awake()).as_json()
            network = stack.enter_context(self._open_network())
            capture = self._start_capture(network)
            stack.callback(self._close_capture, capture)
            cpu_limiter = stack.enter_context(CpuLimiter())
            fleet = self._start_nodes(network, stack)
            stack.callback(self._record_nodes, fleet)
            told_stalls = stack.enter_context(stalls_watched())
            self._load(network, fleet, capture, cpu_limiter)
            self._drain(fleet)
            cpu_limiter.release_all()
            self._manifest["stalls"] = told_stalls()
            self._stop(network, fleet, capture)

    # --- phases, in order

    def _open_network(self) -> EmulatedNetwork:
        count = len(self._topology)
        with self._console.stage("network", "starting") as stage:
            network, facts = wires.open_network(
                self._topology,
                self._experiment.kernel,
                self._directory.path / "network",
                stage.say,
                seed=self._experiment.seed,
            )
            choice = network.choice
            stage.result = (
                f"{count} ports on {counted(len(self._topology.partitions), 'partition')}, "
                f"kernel {choice.picked.value} ({choice.why})"
            )
        self._directory.note(facts)
        return network

    def _start_capture(self, network: EmulatedNetwork) -> Capture:
        capture = Capture(
            network,
            self._topology,
            self._directory.capture_path,
            self._directory.capture_comment,
            self._directory.path / "network" / "collector.log",
        )
        self._manifest["clock"] = clock_pair()
        return capture

    def _start_nodes(self, network: EmulatedNetwork, stack: ExitStack) -> Fleet:
        count = len(self._topology) - len(self._experiment.absent)
        with self._console.stage("nodes", "starting") as stage:
            runtime, facts = wires.open_runtime(
                network,
                self._topology,
                self._world.world,
                run_id=self._directory.run_id,
                image=self._experiment.image,
                on_progress=stage.say,
            )
            self._manifest |= facts
            stack.callback(runtime.close)
            fleet = Fleet(
                runtime,
                self._topology.nodes(),
                configure=self._configure,
                log_path=self._directory.node_log,
                program=NODE_PROGRAM,
                user_programs=user_programs(
                    self._experiment, self._directory.path / "nodes", group=self._directory.group
                ),
                absent=self._experiment.absent,
            )
            fleet.start_all(lambda started: stage.say(f"{started} of {count} started"))
            stage.say("waiting until all are ready")
            timeout_s = max(READY_TIMEOUT_S, fleet.patience_s) + READY_TIMEOUT_PER_NODE_S * count
            fleet.wait_all((State.READY,), timeout_s=timeout_s, doing="ready")
            stage.result = (
                f"{count} ready in world {self._world.world.value} ({self._world.why}), "
                f"{programs_said(self._experiment)}"
            )
        return fleet

    def _load(self, network: EmulatedNetwork, fleet: Fleet, capture: Capture, cpu_limiter: CpuLimiter) -> None:
        before = CpuTimes.read()
        self._start_ns = time.monotonic_ns() + START_LEAD_NS
        fleet.broadcast(f'start {{"at_ns": {self._start_ns}}}')
        self._phase("start_ns", self._start_ns)
        performer = Performer(network, self._topology, fleet, cpu_limiter)
        schedule = Schedule(self._experiment, performer, self._directory, start_ns=self._start_ns)
        duration_s = self._experiment.duration_ns / 1e9
        with self._console.bar("load", "", total_s=duration_s) as stage:
            end_ns = self._start_ns + self._experiment.duration_ns
            while (now_ns := time.monotonic_ns()) < end_ns:
                wake_ns = min(end_ns, now_ns + int(TICK_S * 1e9), schedule.next_ns())
                fleet.pump(wake_ns / 1e9)
                schedule.strike(time.monotonic_ns())
                self._check_machinery(network, capture)
                self._show_load(stage, fleet, schedule)
            schedule.finish()
            stage.result = f"{duration_s:g} s, {self._said(fleet)}, {counted(schedule.struck, 'fault')}"
        self._phase("load_end_ns", time.monotonic_ns())
        after = CpuTimes.read()
        self._manifest["health"] = health_of(before, after, fleet.totals()["lag_max_ns"])

    def _drain(self, fleet: Fleet) -> None:
        drain_s = self._experiment.drain_ns / 1e9
        with self._console.stage("drain", f"at most {drain_s:g} s") as stage:
            fleet.broadcast("drain")
            if fleet.await_states(QUIET, timeout_s=drain_s):
                self._phase("drained_ns", time.monotonic_ns())
                stage.result = f"every node is quiet, {self._said(fleet)}"
            else:
                stage.is_doubtful = True
                late = {member.node.name for member in fleet.alive() if member.state not in QUIET}
                who = shortened(late, self._topology)
                stage.result = f"not quiet within {drain_s:g} s: {who}; {self._said(fleet)}"

    def _stop(self, network: EmulatedNetwork, fleet: Fleet, capture: Capture) -> None:
        with self._console.stage("stop", "ending") as stage:
            fleet.resume_all()
            members = fleet.alive()
            fleet.broadcast("stop")
            fleet.wait_all((State.STOPPED,), timeout_s=STOP_TIMEOUT_S, doing="stopped", members=members)
            fleet.wait_gone(timeout_s=STOP_TIMEOUT_S)
            closing = self._close_capture(capture)
            self._read_counters(network)
            self._judge(fleet)
            stage.result = (
                f"{closing['frames']:,} frames captured, "
                f"{closing['kernel_dropped_frames'] or 'none'} lost by the collector"
            )
        self._phase("end_ns", time.monotonic_ns())
        self._manifest["status"] = "complete"

    # --- helpers

    def _said(self, fleet: Fleet) -> str:
        """Progress of the project's own nodes; that of other programs is found by the analysis."""
        return said(fleet.totals()) if self._experiment.has_protocol else programs_said(self._experiment)

    @staticmethod
    def _check_machinery(network: EmulatedNetwork, capture: Capture) -> None:
        failure = network.failure()
        if failure is not None:
            raise failure
        capture.check()

    def _configure(self, node: Node, incarnation: int) -> dict[str, Any]:
        elapsed_ns = 0 if self._start_ns is None else max(0, time.monotonic_ns() - self._start_ns)
        return configuration(
            self._experiment, node, incarnation=incarnation, group=self._directory.group, elapsed_ns=elapsed_ns
        )

    def _phase(self, name: str, now_ns: int) -> None:
        self._manifest["phases"][name] = now_ns
        self._directory.save()

    def _close_capture(self, capture: Capture) -> dict[str, Any]:
        """Close the capture whole and return its counts. Idempotent: it is also called when a run ends early."""
        if "capture" not in self._manifest:
            self._manifest["capture"] = capture.stop()
            self._directory.save()
        recorded: dict[str, Any] = self._manifest["capture"]
        return recorded

    def _record_nodes(self, fleet: Fleet) -> None:
        self._manifest["nodes"] = [member.manifest() for member in fleet.history]
        self._directory.save()

    def _read_counters(self, network: EmulatedNetwork) -> None:
        self._manifest["counters"] = [wires.plain(entry) for entry in network.counters()]
        self._manifest["link_counters"] = [wires.plain(entry) for entry in network.link_counters()]
        self._manifest["bus_counters"] = [wires.plain(entry) for entry in network.bus_counters()]
        self._manifest["infrastructure_drops"] = network.infrastructure_drops()

    def _judge(self, fleet: Fleet) -> None:
        self._manifest["health"]["lag_max_ns"] = fleet.totals()["lag_max_ns"]
        self._manifest["invalid"] = doubts(self._experiment, self._manifest)
        for reason in self._manifest["invalid"]:
            self._console.warn("invalid", reason)

    def _show_load(self, stage: Stage, fleet: Fleet, schedule: Schedule) -> None:
        assert self._start_ns is not None
        elapsed_s = max(0.0, (time.monotonic_ns() - self._start_ns) / 1e9)
        active = f"  ⚡ {schedule.active()}" if schedule.active() else ""
        stage.advance_to(elapsed_s, f"{self._said(fleet)}{active}")
