"""Faults strike: each event of the plan at its time, recorded with what was asked, issued and effective.

`faults.jsonl` gets a line per event the moment it has been performed: a run that ends early has the faults that struck.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from netem.errors import FabricError
from netem.network import Change, EmulatedNetwork
from netem.runtimes import cgroups as limits
from netem.runtimes.cgroups import Brakes
from testbed.run.fleet import Fleet
from testbed.run.store import RunDirectory
from testbed.spec.experiment import Experiment
from testbed.spec.faults import (
    ClockShift,
    Crash,
    Cut,
    Deaf,
    Fault,
    Heal,
    Impair,
    ImpairLink,
    Join,
    Leave,
    LinkDirection,
    Pause,
    Recover,
    Restart,
    Resume,
    Slow,
    blocked_after,
    blocked_links_after,
)
from topologies.model import NodeName

NEVER_NS = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    """When an event was issued and took effect (CLOCK_MONOTONIC), and what the kernel read back."""

    issued_ns: int
    effective_ns: int
    readback: Mapping[str, Any] = field(default_factory=dict)


class Schedule:
    """The faults of one run, from `start_ns` on. `brakes` slow nodes down; whoever made them lets them go."""

    def __init__(
        self,
        experiment: Experiment,
        network: EmulatedNetwork,
        fleet: Fleet,
        directory: RunDirectory,
        brakes: Brakes,
        *,
        start_ns: int,
    ) -> None:
        self._experiment = experiment
        self._topology = experiment.topology
        self._network = network
        self._fleet = fleet
        self._brakes = brakes
        self._directory = directory
        self._start_ns = start_ns
        self._waiting = list(experiment.faults)
        self._in_force: dict[int, Fault] = {}
        self.struck = 0
        self._perform: dict[type[Fault], Callable[[Any], Struck]] = {
            Impair: self._impair,
            ImpairLink: self._impair_link,
            Cut: self._block,
            Heal: self._block,
            Crash: self._crash,
            Restart: self._restart,
            Pause: self._pause,
            Resume: self._resume,
            Join: self._join,
            Leave: self._leave,
            Slow: self._slow,
            Deaf: self._deaf,
            ClockShift: self._shift_clock,
            Recover: self._recover,
        }

    def next_ns(self) -> int:
        """When the next event is due (CLOCK_MONOTONIC)."""
        return self._start_ns + self._waiting[0].at_ns if self._waiting else NEVER_NS

    def strike(self, now_ns: int) -> None:
        """Perform every event that is due. Raises FabricError when the kernel or a runtime refuses."""
        while self.next_ns() <= now_ns:
            fault = self._waiting.pop(0)
            struck = self._perform[type(fault)](fault)
            self.struck += not fault.is_end
            self._note_in_force(fault)
            self._directory.append_fault(
                fault.record()
                | {
                    "issued_ns": struck.issued_ns,
                    "effective_ns": struck.effective_ns,
                    "readback": dict(struck.readback),
                }
            )

    def finish(self) -> None:
        """Perform what is due at the very end of the workload."""
        self.strike(self._start_ns + self._experiment.duration_ns)

    def active(self) -> str:
        """The faults in force now, for people."""
        return ", ".join(str(fault) for fault in self._in_force.values())

    def _note_in_force(self, fault: Fault) -> None:
        self._in_force = {key: old for key, old in self._in_force.items() if old.until_id != fault.id}
        if isinstance(fault, Heal):
            self._in_force = {key: old for key, old in self._in_force.items() if not isinstance(old, Cut)}
        if not fault.is_end and not isinstance(fault, Join):
            self._in_force[fault.id] = fault

    def _impair(self, fault: Impair) -> Struck:
        changes = {
            str(node): self._network.impair(node, fault.direction, impairment) for node, impairment in fault.settings
        }
        return _together(changes)

    def _impair_link(self, fault: ImpairLink) -> Struck:
        ends = {link.name: (link.a, link.b) for link in self._topology.links}
        origin = 0 if fault.direction is LinkDirection.THERE else 1
        changes = {
            link: self._network.impair_link(link, from_partition=ends[link][origin], impairment=impairment)
            for link, impairment in fault.settings
        }
        return _together(changes)

    def _block(self, fault: Cut | Heal) -> Struck:
        plan = self._experiment.faults
        changes = {"pairs": self._network.block(blocked_after(plan, fault))}
        if self._topology.links:
            changes["links"] = self._network.block_links(blocked_links_after(plan, fault))
        return _together(changes)

    def _crash(self, fault: Crash) -> Struck:
        return _each(self._fleet.crash, fault.targets)

    def _restart(self, fault: Restart) -> Struck:
        """Effective when every new incarnation runs."""
        issued_ns = time.monotonic_ns()
        self._fleet.restart(fault.targets)
        return Struck(issued_ns=issued_ns, effective_ns=time.monotonic_ns())

    def _pause(self, fault: Pause) -> Struck:
        return _each(self._fleet.pause, fault.targets)

    def _resume(self, fault: Resume) -> Struck:
        return _each(self._fleet.resume, fault.targets)

    def _join(self, fault: Join) -> Struck:
        """Effective when every process runs as an incarnation that asks to be let in."""
        issued_ns = time.monotonic_ns()
        said = self._fleet.join(fault.targets)
        return Struck(issued_ns=issued_ns, effective_ns=time.monotonic_ns(), readback=_readback(said))

    def _leave(self, fault: Leave) -> Struck:
        return _as_said(lambda: self._fleet.leave(fault.targets))

    def _slow(self, fault: Slow) -> Struck:
        """Effective when the kernel holds all of the targets' processes to it."""
        issued_ns = time.monotonic_ns()
        shares = {}
        for name in fault.targets:
            member = self._fleet.member(name)
            member.was_paused = True
            shares[str(name)] = {"cpu_ratio": self._brakes.slow(str(name), member.handle.pid(), fault.cpu_ratio)}
        return Struck(issued_ns=issued_ns, effective_ns=time.monotonic_ns(), readback=shares)

    def _deaf(self, fault: Deaf) -> Struck:
        return self._change(fault.targets, "buffer", {"bytes": fault.buffer_bytes})

    def _shift_clock(self, fault: ClockShift) -> Struck:
        words = {"fault": fault.id, "step_ns": fault.step_ns, "drift_ppm": fault.drift_ppm}
        return self._change(fault.targets, "clock", words)

    def _recover(self, fault: Recover) -> Struck:
        if fault.what == Deaf.kind:
            return self._change(fault.targets, "buffer", {})
        if fault.what == ClockShift.kind:
            return self._change(fault.targets, "clock", {"right": fault.ends})
        return _each(lambda name: self._brakes.release(str(name)), fault.targets)

    def _change(self, targets: tuple[NodeName, ...], what: str, words: Mapping[str, Any]) -> Struck:
        return _as_said(lambda: self._fleet.change(targets, f"{what} {json.dumps(words)}"))


def require(experiment: Experiment, *, several_processes: bool) -> None:
    """FabricError, one sentence, when this machine or this protocol cannot have the experiment's faults on real wires.

    `several_processes`: a node of this protocol consists of them.
    """
    kinds = {type(fault) for fault in experiment.faults}
    if Slow in kinds:
        why = limits.reason_against({"cpu"})
        if why:
            raise FabricError(f"no node can be slowed here: {why}; or use --world sim")
    if ClockShift in kinds and several_processes:
        raise FabricError(
            f"the nodes of {experiment.protocol.name} consist of several processes, whose clock cannot be changed "
            "while they run: use --world sim, or clocks: for clocks that are wrong from the start"
        )


def _together(changes: Mapping[str, Change]) -> Struck:
    """One event of several kernel changes: from the first that was issued to the last that took effect."""
    return Struck(
        issued_ns=min(change.issued_ns for change in changes.values()),
        effective_ns=max(change.effective_ns for change in changes.values()),
        readback={target: change.readback for target, change in changes.items()},
    )


def _as_said(change: Callable[[], dict[NodeName, dict[str, Any]]]) -> Struck:
    """Effective when the last of the nodes has done it, by its own word."""
    issued_ns = time.monotonic_ns()
    said = change()
    effective_ns = max(issued_ns, *(int(one["at_ns"]) for one in said.values()))
    return Struck(issued_ns=issued_ns, effective_ns=effective_ns, readback=_readback(said))


def _readback(said: Mapping[NodeName, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        str(name): {key: value for key, value in one.items() if key not in ("event", "what")}
        for name, one in said.items()
    }


def _each(action: Callable[[NodeName], None], targets: tuple[NodeName, ...]) -> Struck:
    """Do something to each target; each returns when it has taken effect."""
    issued_ns = time.monotonic_ns()
    for target in targets:
        action(target)
    return Struck(issued_ns=issued_ns, effective_ns=time.monotonic_ns())
