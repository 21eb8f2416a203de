"""The crew: every node program of a run, what each last said, and the waiting for all of them.

Nodes speak JSON lines (node/driver.py). Reader threads only put lines into one queue; everything else happens in the
thread of the conductor, in `pump`.
"""

from __future__ import annotations

import enum
import json
import queue
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from netem.errors import FabricError
from netem.runtimes.base import NodeHandle, Program, Runtime
from topologies.model import Node, NodeName

LOG_TAIL_LINES = 4
POLL_S = 0.05
RESTART_TIMEOUT_S = 20.0
MANIFEST_COUNTERS = ("submitted", "delivered", "handled", "core_ns", "lag_max_ns", "cpu_ns")
"""Of a node's own counters, those that the manifest keeps."""


class State(enum.Enum):
    """Where one incarnation of a node stands."""

    STARTING = "starting"
    READY = "ready"
    RUNNING = "running"
    DRAINED = "drained"
    STOPPED = "stopped"
    CRASHED = "crashed"
    """Killed by a fault, on purpose."""


@dataclass(slots=True)
class Member:
    """One incarnation of one node."""

    node: Node
    incarnation: int
    handle: NodeHandle
    log_path: Path
    state: State = State.STARTING
    exit_code: int | None = None
    paused: bool = False
    was_paused: bool = False
    """It has been frozen by a fault: it was behind its workload on purpose."""
    last: dict[str, Any] = field(default_factory=dict)
    """The node's own latest counters."""

    def manifest(self) -> dict[str, Any]:
        """This incarnation's entry in the manifest."""
        counters = {name: self.last.get(name, 0) for name in MANIFEST_COUNTERS}
        return {
            "node": self.node.name,
            "incarnation": self.incarnation,
            "exit": self.exit_code,
            "drained": self.last.get("event") in ("drained", "stopped") and bool(self.last.get("drained", True)),
            "crashed": self.state is State.CRASHED,
            "over": bool(self.last.get("over", False)),
            "dropped": self.last.get("dropped", {}),
            **counters,
        }


class Crew:
    """All members of a run. `configure(node, incarnation)` makes a member's configuration line."""

    def __init__(
        self,
        runtime: Runtime,
        nodes: Iterable[Node],
        *,
        configure: Callable[[Node, int], dict[str, Any]],
        log_path: Callable[[str], Path],
        program: Program,
    ) -> None:
        self._runtime = runtime
        self._nodes = tuple(nodes)
        self._configure = configure
        self._log_path = log_path
        self._program = program
        self._inbox: queue.SimpleQueue[tuple[NodeName, int, str]] = queue.SimpleQueue()
        self._current: dict[NodeName, Member] = {}
        self.history: list[Member] = []
        """Every incarnation there was, in the order of their starts."""

    def member(self, name: NodeName) -> Member:
        return self._current[name]

    def alive(self) -> list[Member]:
        """Members that should be running, by member index."""
        gone = (State.CRASHED, State.STOPPED)
        return [m for m in (self._current[n.name] for n in self._nodes) if m.state not in gone]

    def start(self, node: Node) -> Member:
        """Start the next incarnation of `node` and configure it; it will say `ready` by itself."""
        member = self._begin(node)
        self._configure_now(member)
        return member

    def start_all(self, on_progress: Callable[[int], None] = lambda _: None) -> None:
        """Start every node; none is configured before all are wired.

        A node that joins the group says so on the wire (IGMP): towards a port whose node is not there yet, that frame
        would be lost without a cause that anybody counts.
        """
        members = []
        for count, node in enumerate(self._nodes, start=1):
            members.append(self._begin(node))
            on_progress(count)
        for member in members:
            self._configure_now(member)

    def crash(self, name: NodeName) -> None:
        member = self._current[name]
        if member.paused:
            member.handle.resume()
            member.paused = False
        member.state = State.CRASHED
        member.handle.kill()
        member.exit_code = member.handle.poll()

    def restart(self, names: Iterable[NodeName]) -> None:
        """Start the next incarnation of crashed nodes and set them to work; returns when all of them run."""
        by_name = {node.name: node for node in self._nodes}
        members = [self.start(by_name[name]) for name in names]
        self.wait_all((State.READY,), timeout_s=RESTART_TIMEOUT_S, doing="ready again", members=members)
        for member in members:
            member.handle.send(f'start {{"at_ns": {time.monotonic_ns()}}}')
        self.wait_all((State.RUNNING,), timeout_s=RESTART_TIMEOUT_S, doing="running again", members=members)

    def pause(self, name: NodeName) -> None:
        self._current[name].handle.pause()
        self._current[name].paused = self._current[name].was_paused = True

    def resume(self, name: NodeName) -> None:
        self._current[name].handle.resume()
        self._current[name].paused = False

    def resume_all(self) -> None:
        """Thaw what a fault left frozen, so that it can end in order."""
        for member in self.alive():
            if member.paused:
                self.resume(member.node.name)

    def broadcast(self, line: str) -> None:
        for member in self.alive():
            member.handle.send(line)

    def pump(self, until_s: float) -> None:
        """Take in what nodes say until `until_s` (time.monotonic), and notice the dead.

        Raises FabricError when a node ends that was not asked to, or says that it cannot go on.
        """
        while True:
            remaining = until_s - time.monotonic()
            try:
                name, incarnation, line = self._inbox.get(timeout=max(0.0, min(remaining, POLL_S)))
            except queue.Empty:
                self._notice_the_dead()
                if remaining <= 0:
                    return
                continue
            self._take(name, incarnation, line)

    def wait_all(
        self, states: tuple[State, ...], *, timeout_s: float, doing: str, members: list[Member] | None = None
    ) -> None:
        """Pump until every living member is in one of `states`.

        Raises FabricError naming those that are not, when the time is up.
        """
        if not self.reach(states, timeout_s=timeout_s, members=members):
            late = [m for m in (members or self.alive()) if m.state not in states]
            names = ", ".join(m.node.name for m in late[:5]) + (" …" if len(late) > 5 else "")
            raise FabricError(f"{names} did not become {doing} within {timeout_s:.0f} s{_tail(late[0])}")

    def reach(self, states: tuple[State, ...], *, timeout_s: float, members: list[Member] | None = None) -> bool:
        """Like `wait_all`, but says whether it came about."""
        deadline = time.monotonic() + timeout_s
        while any(m.state not in states for m in (self.alive() if members is None else members)):
            now = time.monotonic()
            if now >= deadline:
                return False
            self.pump(min(now + POLL_S, deadline))
        return True

    def wait_gone(self, *, timeout_s: float) -> None:
        """Pump until every process has ended; FabricError when one does not."""
        deadline = time.monotonic() + timeout_s
        while any(m.exit_code is None for m in self.history):
            if time.monotonic() >= deadline:
                late = next(m for m in self.history if m.exit_code is None)
                raise FabricError(f"{late.node.name} did not end within {timeout_s:.0f} s{_tail(late)}")
            self.pump(time.monotonic() + POLL_S)

    def totals(self) -> dict[str, int]:
        """Sums over all incarnations' latest counters: submitted, delivered, waiting; and the largest lag of those that
        were never paused.
        """
        lasts = [m.last for m in self.history]
        sums = {name: sum(int(last.get(name, 0)) for last in lasts) for name in ("submitted", "delivered", "waiting")}
        lags = [int(m.last.get("lag_max_ns", 0)) for m in self.history if not m.was_paused]
        sums["lag_max_ns"] = max(lags, default=0)
        return sums

    def _begin(self, node: Node) -> Member:
        earlier = self._current.get(node.name)
        incarnation = earlier.incarnation + 1 if earlier else 1
        log_path = self._log_path(node.name)

        def on_line(line: str) -> None:
            self._inbox.put((node.name, incarnation, line))

        handle = self._runtime.start(node, self._program, on_line=on_line, log_path=log_path)
        member = Member(node=node, incarnation=incarnation, handle=handle, log_path=log_path)
        self._current[node.name] = member
        self.history.append(member)
        return member

    def _configure_now(self, member: Member) -> None:
        line = json.dumps(self._configure(member.node, member.incarnation), separators=(",", ":"))
        member.handle.send(line)

    def _take(self, name: NodeName, incarnation: int, line: str) -> None:
        member = self._current[name]
        if member.incarnation != incarnation or member.state is State.CRASHED:
            return
        try:
            said = json.loads(line)
            event = said["event"]
        except (ValueError, TypeError, KeyError):
            raise FabricError(f"{name} wrote a line that is not one of ours: {line[:120]!r}") from None
        if event == "error":
            raise FabricError(f"{name} cannot run: {said.get('message', 'no reason given')}")
        states = {
            "ready": State.READY,
            "started": State.RUNNING,
            "drained": State.DRAINED,
            "stopped": State.STOPPED,
        }
        if event in states:
            member.state = states[event]
        if "submitted" in said:
            member.last = said

    def _notice_the_dead(self) -> None:
        for member in self.history:
            if member.exit_code is not None:
                continue
            member.exit_code = member.handle.poll()
            if member.exit_code is not None and member.state not in (State.STOPPED, State.CRASHED):
                self._last_words(member)
                how = f"signal {-member.exit_code}" if member.exit_code < 0 else f"exit code {member.exit_code}"
                raise FabricError(f"{member.node.name} ended by itself ({how}){_tail(member)}")

    def _last_words(self, member: Member) -> None:
        """What a dead node said before it ended explains more than its exit code."""
        while True:
            try:
                name, incarnation, line = self._inbox.get(timeout=POLL_S)
            except queue.Empty:
                return
            if name == member.node.name and incarnation == member.incarnation:
                self._take(name, incarnation, line)
                if member.state is State.STOPPED:
                    return


def _tail(member: Member) -> str:
    """The end of the node's log, for an error message."""
    try:
        lines = member.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    if not lines:
        return f"; its log {member.log_path} is empty"
    return f"; its log {member.log_path} ends: " + " | ".join(line.strip() for line in lines[-LOG_TAIL_LINES:])
