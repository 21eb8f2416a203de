"""A running testbed: state, network, nodes, capture and record together. All of it is used by one thread.

The state computes an event, the network and the processes perform it, the record keeps it; then the state commits it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from analysis.files import replacing
from netem.errors import FabricError
from netem.network import EmulatedNetwork
from netem.runtimes.base import NodeHandle, Runtime, told
from netem.runtimes.cgroups import CpuLimiter
from netem.wiring.steps import KernelOption
from node.registry import PROTOCOLS
from testbed.live import requests as asks
from testbed.live.ending import Stopped, note, write_notes_to
from testbed.live.processes import NodeProcesses
from testbed.live.starter import StartRequest
from testbed.live.state import LiveState, wall_clock
from testbed.live.status import CaptureStatus, Counters, Description
from testbed.run import wires
from testbed.run.program import refusal_of, require_images, write_hosts
from testbed.run.schedule import Performer
from testbed.run.wires import Capture, Effect
from testbed.rundir import store
from testbed.rundir.manifest import pick, ports_of
from testbed.rundir.store import RunDirectory, StoreError, clock_pair
from testbed.spec.faults import Crash, Fault, Leave, NodeFault, NodeState
from testbed.spec.plans import NODE_FAULTS
from testbed.spec.program import require_simulator, require_world
from testbed.spec.raw import RawTargets, World
from topologies.dump import dumps
from topologies.formats.errors import InputError
from topologies.formats.schema import RawBlock
from topologies.load import loads
from topologies.model import Topology

ANSWERED_WITHOUT_NETWORK = frozenset({"describe", "nodes", "links", "capturing", "failure", "log", "stop_capture"})
"""Requests that a testbed answers although its network is gone."""


class Controller:
    """All resources of one testbed; `close` releases them."""

    def __init__(self, request: StartRequest, on_progress: Callable[[str], None]) -> None:
        """Bring it up. Raises InputError and FabricError, after everything was released."""
        self._request = request
        self.topology: Topology = loads(request.topology_text, request.topology_source)
        self._experiment = request.members()
        self._capture: tuple[Capture, CaptureStatus] | None = None
        self._noted: set[str] = set()
        self._unrecorded = ""
        """Why a change is not in the record; empty: all are."""
        with ExitStack() as stack:
            self.record = _create_record(request, self.topology)
            self._captures = 0
            write_notes_to(self.record.path / "server.log")
            stack.push(self._failed)
            self._world = pick(World(request.world))
            on_progress(f"world {self._world.world.value}: {self._world.why}")
            self._require_image()
            self._network = stack.enter_context(self._open_network(on_progress))
            runtime = self._open_runtime(on_progress)
            cpu_limiter = stack.enter_context(CpuLimiter())
            self.processes = self._make_processes(runtime)
            stack.callback(self.processes.close)
            self.processes.start_all(on_progress)
            self._performer = Performer(self._network, self.topology, self.processes.fleet, cpu_limiter)
            self._started_ns = time.monotonic_ns()
            self.record.note({"phases": {"start_ns": self._started_ns, "end_ns": None}})
            self.state = self._make_state()
            self.description = self._describe()
            self._stack = stack.pop_all()

    def perform(self, verb: str, words: RawBlock) -> Any:
        """Carry out one request and return its result, a JSON value. Raises InputError, FabricError, StoreError."""
        if verb not in ANSWERED_WITHOUT_NETWORK:
            self._require_network()
        return _VERBS[verb](self, words)

    def enter(self, node: str) -> tuple[str, NodeHandle]:
        """Name of the node, and handle of its latest incarnation, for a command. Raises InputError, FabricError."""
        self._require_network()
        name = self.state.node(node)
        if self.state.state(name) is NodeState.ABSENT and not self.processes.fleet.has(name):
            raise InputError(f"{name} has not joined yet and runs nothing: `orderbed join {name}`")
        if self._world.world is World.DOCKER:
            state = self.state.state(name)
            if state is NodeState.PAUSED:
                raise InputError(f"{name} is paused and runs nothing: resume it, then enter it")
            if state is NodeState.CRASHED:
                raise InputError(f"{name} has crashed and its container with it: `orderbed restart {name}`")
        return name, self.processes.fleet.member(name).handle

    def _require_network(self) -> None:
        failure = self._network.failure()
        if failure is not None:
            raise FabricError(f"{failure}; `orderbed down {self._request.name}` clears away what is left")

    def notice(self) -> None:
        """Notice nodes, a collector or a network that have ended by themselves. The log gets one line for each."""
        failure = self._network.failure()
        if failure is not None:
            self._note_once(f"the network is gone: {failure}")
            return
        for member in self.processes.members():
            name, code = member.node.name, member.exit_code
            if code is None and self._experiment is not None:
                self.state.heard(name, member.incarnation, member.last)
            elif code is not None and self.state.state(name) not in (NodeState.CRASHED, NodeState.ENDED):
                note(f"{name} has ended by itself ({told(code)})")
                self.state.ended(name, code, wall_clock(), cause=member.handle.cause())
        self._notice_capture()

    def _notice_capture(self) -> None:
        if self._capture is None:
            return
        capture, status = self._capture
        try:
            capture.check()
        except FabricError as error:
            self._capture = capture, dataclasses.replace(status, failure=str(error))
            self._note_once(f"capture into {status.path}: {error}")

    def _note_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            note(text)

    def close(self) -> None:
        """End everything: the capture whole, the record complete, nothing left behind. Raises the first FabricError or
        StoreError after all was released.
        """
        try:
            self.record_end()
        finally:
            self._stack.close()

    def record_end(self) -> None:
        with ExitStack() as last:
            facts: dict[str, Any] = {"status": "complete"}
            if self._unrecorded:
                facts = {"status": "failed", "error": self._unrecorded}
            last.callback(self._close_record, facts)
            try:
                failure = self._network.failure()
                if failure is not None:
                    facts |= {"status": "failed", "error": str(failure)}
                else:
                    facts |= self._counters().as_json()
                if self._capture is not None:
                    self._stop_capture()
            except (FabricError, StoreError) as error:
                facts |= {"status": "failed", "error": str(error)}

    # Bringing up.

    def _open_network(self, on_progress: Callable[[str], None]) -> EmulatedNetwork:
        network, facts = wires.open_network(
            self.topology, KernelOption(self._request.kernel), self.record.path / "network", on_progress
        )
        self.record.note({"world": self._world.world.value, **facts})
        return network

    def _open_runtime(self, on_progress: Callable[[str], None]) -> Runtime:
        runtime, facts = wires.open_runtime(
            self._network,
            self.topology,
            self._world.world,
            run_id=self.record.run_id,
            image=self._request.image,
            on_progress=on_progress,
        )
        self.record.note(facts)
        return runtime

    def _make_processes(self, runtime: Runtime) -> NodeProcesses:
        # A container has its own host name and directories already; a member of a group needs neither.
        is_bare = self._world.world is World.DOCKER and self._request.program is None
        return NodeProcesses(
            runtime,
            self.topology,
            experiment=self._experiment,
            group=self.record.group,
            program=self._request.program,
            log_path=self.record.node_log,
            work_root=None if is_bare or self._experiment is not None else self.record.path / "nodes",
            hosts=self.record.path / "hosts",
        )

    def _make_state(self) -> LiveState:
        if self._experiment is None:
            return LiveState(self.topology, wall_clock())
        has_views = PROTOCOLS[self._experiment.protocol.name].has_views
        return LiveState(self.topology, wall_clock(), has_views=has_views, absent=self._experiment.absent)

    def _require_image(self) -> None:
        programs_image = None if self._request.program is None else self._request.program.image
        image, experiment = self._request.image or programs_image, self._experiment
        world = self._world.world
        refused = require_simulator(world, self.topology) if experiment is None else refusal_of(experiment, world)
        if sentence := refused or require_world(world, {}, image):
            raise InputError(sentence)
        require_images(self._request.image, [programs_image], needs_python=self._experiment is not None)

    def _failed(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Record why the testbed did not come up."""
        if error is not None:
            status = "interrupted" if isinstance(error, Stopped) else "failed"
            _close_record(self.record, {"status": status, "error": str(error)}, {})

    def _describe(self) -> Description:
        return Description(
            name=self._request.name,
            topology=self.topology.name,
            node_count=len(self.topology),
            world=self._world.world.value,
            kernel=self._network.choice.picked.value,
            since=wall_clock(),
            directory=self.record.path,
            server_pid=os.getpid(),
        )

    # Queries.

    def about(self) -> dict[str, Any]:
        """Description and topology, which do not change."""
        return {"description": self.description.as_json(), "topology": dumps(self.topology)}

    def _nodes(self) -> list[dict[str, Any]]:
        self.notice()
        return [one.as_json() for one in self.state.nodes()]

    def _counters(self) -> Counters:
        return Counters(
            ports=self._network.counters(), links=self._network.link_counters(), buses=self._network.bus_counters()
        )

    def _capturing(self) -> dict[str, Any] | None:
        self._notice_capture()
        return None if self._capture is None else self._capture[1].as_json()

    def _failure(self) -> str | None:
        failure = self._network.failure()
        return None if failure is None else str(failure)

    # Changes.

    def _node_fault(self, kind: type[NodeFault], words: RawTargets) -> list[dict[str, Any]]:
        self.notice()
        return self._happen(self.state.node_fault(kind, words.targets, self._now_ns()))

    def _happen(self, events: list[Fault]) -> list[dict[str, Any]]:
        """Perform, record and commit each event. Returns their lines in faults.jsonl."""
        lines = []
        for event in events:
            effect = self._performer.perform(event, [*self.state.cuts, event])
            if isinstance(event, Leave):
                _refuse_refused(effect)
            self.state.commit(event, wall_clock())
            if isinstance(event, Crash):
                for target in event.targets:
                    self.state.crashed_with(target, self.processes.fleet.member(target).exit_code)
            line = effect.line(event)
            try:
                self.record.append_fault(line)
            except StoreError as error:
                self._unrecorded = f"a change by {event.kind} is not in it: {error}"
                raise
            lines.append(line)
        return lines

    def _now_ns(self) -> int:
        return time.monotonic_ns() - self._started_ns

    # Capture.

    def _start_capture(self, words: asks.AskCapture) -> str:
        if self._capture is not None:
            raise InputError(f"a capture runs already, into {self._capture[1].path}; stop it first")
        path = _new_file(words.path) if words.path is not None else self._next_capture()
        log_path = self.record.path / "network" / "collector.log"
        capture = Capture(self._network, self.topology, path, self.record.capture_comment, log_path)
        self._capture = capture, CaptureStatus(path=path, since=wall_clock())
        self._capture_clock = clock_pair()
        return str(path)

    def _end_capture(self) -> dict[str, Any]:
        if self._capture is None:
            raise InputError("no capture runs; start one first")
        return self._stop_capture()

    def _stop_capture(self) -> dict[str, Any]:
        assert self._capture is not None, "the caller has looked"
        capture, status = self._capture
        self._capture = None
        facts: dict[str, Any] = {"path": str(status.path), "clock": self._capture_clock}
        try:
            facts |= capture.stop()
        except FabricError as error:
            facts |= {"complete": False, "error": str(error)}
            raise
        finally:
            self.record.note({"captures": [*self.record.manifest["captures"], dict(facts)]})
        return facts

    def _next_capture(self) -> Path:
        """Path of the next capture in the record: capture-1.pcapng, capture-2.pcapng, …"""
        self._captures += 1
        return self.record.path / f"capture-{self._captures}.pcapng"

    def _close_record(self, facts: Mapping[str, Any]) -> None:
        nodes = [one.as_json() for one in self.state.nodes()]
        end = {"phases": {"start_ns": self._started_ns, "end_ns": time.monotonic_ns()}, "nodes": nodes}
        _close_record(self.record, {**facts, **end}, self.state.until)


def _node_verb(kind: type[NodeFault]) -> Callable[[Controller, RawTargets], Any]:
    return lambda one, words: one._node_fault(kind, words)


_VERBS: dict[str, Callable[[Controller, Any], Any]] = {
    "describe": lambda one, _: one.about(),
    "nodes": lambda one, _: one._nodes(),
    "links": lambda one, _: [link.as_json() for link in one.state.links()],
    "counters": lambda one, _: one._counters().as_json(),
    "capturing": lambda one, _: one._capturing(),
    "failure": lambda one, _: one._failure(),
    "log": lambda one, words: str(one.processes.log_path(one.state.node(words.node))),
    "impair": lambda one, words: one._happen(one.state.impair(words.impair, one._now_ns())),
    "restore": lambda one, words: one._happen(one.state.restore(words.restore, one._now_ns())),
    "cut": lambda one, words: one._happen(one.state.cut(words.cut, one._now_ns())),
    "heal": lambda one, _: one._happen(one.state.heal(one._now_ns())),
    **{name: _node_verb(kind) for name, kind in NODE_FAULTS.items()},
    "start_capture": Controller._start_capture,
    "stop_capture": lambda one, _: one._end_capture(),
}
"""Handlers of requests by verb; the server handles `exec` and `down`."""


def _create_record(request: StartRequest, topology: Topology) -> RunDirectory:
    """Record of the testbed: runs/up/NAME-STAMP with topology, manifest, faults, captures and logs, as in a run. Two
    records of one second and name get two directories. Raises InputError when it cannot be made.
    """
    first = f"{request.name}-{store.stamp()}"
    leaf, number = first, 1
    while (request.runs / store.UP / leaf).exists():
        number += 1
        leaf = f"{first}-{number}"
    record = store.create(request.runs, store.UP, 0, name=leaf)
    (record.path / "topology.yaml").write_text(request.topology_text, encoding="utf-8")
    if request.experiment_text is not None:
        (record.path / "experiment.yaml").write_text(request.experiment_text, encoding="utf-8")
    write_hosts(record.path / "hosts", topology)
    for node in topology.nodes():  # also of those that are absent
        record.node_log(node.name).touch()
    record.note(
        {
            "format": store.MANIFEST_FORMAT,
            "run": record.run_id,
            "kind": store.UP,
            "status": "interrupted",
            "name": request.name,
            "topology": topology.name,
            "group": record.group,
            "clock": clock_pair(),
            "phases": {"start_ns": None, "end_ns": None},
            **ports_of(topology),
            "captures": [],
        }
    )
    return record


def _close_record(record: RunDirectory, facts: Mapping[str, Any], until: Mapping[int, int]) -> None:
    """Write the manifest, and add to each fault the event that ended it (`until`: fault id to event id), which is known
    only now. Raises StoreError.
    """
    record.manifest |= facts
    path = record.path / "faults.jsonl"
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        told = [line | {"until_id": until.get(line["id"])} for line in lines]
        with replacing(path) as file:
            file.write("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in told).encode("utf-8"))
    except OSError as error:
        raise StoreError(f"{record.path}: {error.strerror or error}; what was recorded is kept") from error
    finally:
        record.close()


def _refuse_refused(effect: Effect) -> None:
    """Raise InputError when a node has refused to leave."""
    for name, said in effect.readback.items():
        if "refused" in said:
            raise InputError(f"{name} cannot leave: {said['refused']}")


def _new_file(given: str) -> Path:
    """Path of a new file for a capture, as given by the user. Raises InputError."""
    path = Path(given)
    if not path.is_absolute():
        raise InputError(f"{given[:200]}: give the whole path of the capture")
    try:
        if path.exists():
            raise InputError(f"{path}: this file exists and is not written over; give another")
        if not path.parent.is_dir():
            raise InputError(f"{path}: the directory {path.parent} does not exist; make it first")
    except OSError as error:
        raise InputError(f"{given[:200]}: this cannot be a capture ({error.strerror}); give another") from None
    return path
