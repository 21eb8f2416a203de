"""Execution of faults: each event of the plan at its time, recorded with its requested, issued and effective times. A
testbed that stays up performs its events in the same way.

`faults.jsonl` gets a line as soon as an event was performed: a run that ends early has the faults that struck.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from netem.errors import FabricError
from netem.network import EmulatedNetwork
from netem.runtimes import cgroups as limits
from netem.runtimes.cgroups import CpuLimiter
from testbed.run import wires
from testbed.run.fleet import Fleet
from testbed.run.wires import Effect
from testbed.rundir.store import RunDirectory
from testbed.spec import faults
from testbed.spec.faults import Cut, Fault, Heal, blocked_after, blocked_links_after
from testbed.spec.values import Experiment
from topologies.model import NodeName, Topology

NEVER_NS = 2**63 - 1


class Performer:
    """Performs events on the network and the nodes. The maker of `cpu_limiter` closes it."""

    def __init__(self, network: EmulatedNetwork, topology: Topology, fleet: Fleet, cpu_limiter: CpuLimiter) -> None:
        self._network = network
        self._topology = topology
        self._fleet = fleet
        self._cpu_limiter = cpu_limiter
        self._acts: dict[type[Fault], Callable[[Any], Effect]] = {
            faults.Impair: lambda fault: wires.impair(network, topology, fault),
            faults.ImpairLink: lambda fault: wires.impair(network, topology, fault),
            faults.Crash: lambda fault: Effect.of_each(fleet.crash, fault.targets),
            faults.Restart: self._restart,
            faults.Pause: lambda fault: Effect.of_each(fleet.pause, fault.targets),
            faults.Resume: lambda fault: Effect.of_each(fleet.resume, fault.targets),
            faults.Join: self._join,
            faults.Leave: lambda fault: _as_said(lambda: fleet.leave(fault.targets)),
            faults.Slow: self._slow,
            faults.Deaf: lambda fault: self._change(fault.targets, "buffer", {"bytes": fault.buffer_bytes}),
            faults.ClockShift: self._shift_clock,
            faults.Recover: self._recover,
        }

    def perform(self, fault: Fault, plan: Sequence[Fault]) -> Effect:
        """Perform a fault; returns when it has taken effect. `plan` has the cuts in force. Raises FabricError when the
        kernel or a runtime refuses.
        """
        if isinstance(fault, Cut | Heal):
            pairs, links = blocked_after(plan, fault), blocked_links_after(plan, fault)
            return wires.block(self._network, self._topology, pairs, links)
        return self._acts[type(fault)](fault)

    def _restart(self, fault: faults.Restart) -> Effect:
        """Restart nodes; effective when every new incarnation runs."""
        issued_ns = time.monotonic_ns()
        self._fleet.restart(fault.targets)
        return Effect(issued_ns=issued_ns, effective_ns=time.monotonic_ns())

    def _join(self, fault: faults.Join) -> Effect:
        """Let nodes join; effective when every process runs as an incarnation that asks to be admitted."""
        issued_ns = time.monotonic_ns()
        said = self._fleet.join(fault.targets)
        return Effect(issued_ns=issued_ns, effective_ns=time.monotonic_ns(), readback=_readback(said))

    def _slow(self, fault: faults.Slow) -> Effect:
        """Limit the CPU share of nodes; effective when the kernel limits all processes of the targets."""
        issued_ns = time.monotonic_ns()
        shares = {}
        for name in fault.targets:
            member = self._fleet.member(name)
            member.was_paused = True
            shares[str(name)] = {"cpu_ratio": self._cpu_limiter.slow(str(name), member.handle.pid(), fault.cpu_ratio)}
        return Effect(issued_ns=issued_ns, effective_ns=time.monotonic_ns(), readback=shares)

    def _shift_clock(self, fault: faults.ClockShift) -> Effect:
        words = {"fault": fault.id, "step_ns": fault.step_ns, "drift_ppm": fault.drift_ppm}
        return self._change(fault.targets, "clock", words)

    def _recover(self, fault: faults.Recover) -> Effect:
        if fault.what == faults.Deaf.kind:
            return self._change(fault.targets, "buffer", {})
        if fault.what == faults.ClockShift.kind:
            return self._change(fault.targets, "clock", {"right": fault.ends})
        return Effect.of_each(lambda name: self._cpu_limiter.release(str(name)), fault.targets)

    def _change(self, targets: tuple[NodeName, ...], what: str, words: Mapping[str, Any]) -> Effect:
        return _as_said(lambda: self._fleet.change(targets, f"{what} {json.dumps(words)}"))


class Schedule:
    """The faults of one run, from `start_ns` on."""

    def __init__(self, experiment: Experiment, performer: Performer, directory: RunDirectory, *, start_ns: int) -> None:
        self._experiment = experiment
        self._performer = performer
        self._directory = directory
        self._start_ns = start_ns
        self._waiting = list(experiment.faults)
        self._in_force: dict[int, Fault] = {}
        self.struck = 0

    def next_ns(self) -> int:
        """Time of the next event (CLOCK_MONOTONIC)."""
        return self._start_ns + self._waiting[0].at_ns if self._waiting else NEVER_NS

    def strike(self, now_ns: int) -> None:
        """Perform every event that is due. Raises FabricError when the kernel or a runtime refuses."""
        while self.next_ns() <= now_ns:
            fault = self._waiting.pop(0)
            effect = self._performer.perform(fault, self._experiment.faults)
            self.struck += not fault.is_end
            self._note_in_force(fault)
            self._directory.append_fault(effect.line(fault))

    def finish(self) -> None:
        """Perform the events that are due at the end of the workload."""
        self.strike(self._start_ns + self._experiment.duration_ns)

    def active(self) -> str:
        """The faults in force now, as text."""
        return ", ".join(str(fault) for fault in self._in_force.values())

    def _note_in_force(self, fault: Fault) -> None:
        self._in_force = {key: old for key, old in self._in_force.items() if old.until_id != fault.id}
        if isinstance(fault, Heal):
            self._in_force = {key: old for key, old in self._in_force.items() if not isinstance(old, Cut)}
        if not fault.is_end and not isinstance(fault, faults.Join):
            self._in_force[fault.id] = fault


def require(experiment: Experiment, *, several_processes: bool) -> None:
    """Raise FabricError when this machine or this protocol does not support the experiment's faults outside the
    simulation.

    `several_processes`: a node of this protocol consists of several processes.
    """
    kinds = {type(fault) for fault in experiment.faults}
    if faults.Slow in kinds:
        why = limits.reason_against({"cpu"})
        if why:
            raise FabricError(f"no node can be slowed here: {why}; or use --world sim")
    if faults.ClockShift in kinds and several_processes:
        raise FabricError(
            f"the nodes of {experiment.protocol.name} consist of several processes, whose clock cannot be changed "
            "while they run: use --world sim, or clocks: for clocks that are wrong from the start"
        )


def _as_said(change: Callable[[], dict[NodeName, dict[str, Any]]]) -> Effect:
    """Effect of a change that nodes report; effective when the last of them has done it."""
    issued_ns = time.monotonic_ns()
    said = change()
    effective_ns = max(issued_ns, *(int(one["at_ns"]) for one in said.values()))
    return Effect(issued_ns=issued_ns, effective_ns=effective_ns, readback=_readback(said))


def _readback(said: Mapping[NodeName, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        str(name): {key: value for key, value in one.items() if key not in ("event", "what")}
        for name, one in said.items()
    }
