"""The fleet: every node program of a run, its latest report, and waits for states of all of them.

The project's node program writes JSON lines (node/host/driver.py). Other programs do not; their experiment defines when
they are ready and drained and how they are ended (testbed.run.program). Reader threads only put lines into one queue;
everything else happens in the thread of the conductor, in `pump`.
"""

from __future__ import annotations

import contextlib
import enum
import json
import queue
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from analysis.files import parse_json
from netem.errors import CannotStartError, FabricError
from netem.runtimes.base import NodeHandle, Program, Runtime, together, told
from testbed.run.program import DRAINED_LINE, UserProgram
from testbed.spec.nodes import FIRST_JOINER
from topologies.model import Node, NodeName

LOG_TAIL_LINES = 4
LOG_TAIL_CHARACTERS = 300
"""Most characters of each line."""
LOG_TAIL_BYTES = 64 * 1024
"""Part of a log that is read: a program may have written gigabytes."""
POLL_S = 0.05
LAST_WORD_S = 2.0
"""Longest wait for the last line of a node that has ended with exit code 0."""
RESTART_TIMEOUT_S = 20.0
CHANGE_TIMEOUT_S = 10.0
"""Enough for a node that is limited to a hundredth of a core."""
MANIFEST_COUNTERS = ("submitted", "delivered", "handled", "overrun", "core_ns", "lag_max_ns", "cpu_ns")
"""Counters of a node that the manifest keeps."""


class State(enum.Enum):
    """State of one incarnation of a node."""

    STARTING = "starting"
    READY = "ready"
    RUNNING = "running"
    DRAINED = "drained"
    STOPPED = "stopped"
    CRASHED = "crashed"
    """Killed by a fault."""
    ENDED = "ended"
    """It is no longer a member of the group; its process goes on as the next incarnation."""


@dataclass(slots=True)
class Member:
    """One incarnation of one node."""

    node: Node
    incarnation: int
    handle: NodeHandle
    """Handle of its process, which it may share with incarnations before and after it."""
    log_path: Path
    begun_as: int
    """The incarnation as which its process was started."""
    state: State = State.STARTING
    exit_code: int | None = None
    paused: bool = False
    was_paused: bool = False
    """A fault has paused or slowed it, so that its lag behind the workload does not count."""
    last: dict[str, Any] = field(default_factory=dict)
    """The node's own latest counters."""
    changed: dict[str, Any] = field(default_factory=dict)
    """Its answer to the last requested change; empty: none yet."""
    user_program: UserProgram | None = None
    """The user's program that it runs; None: the project's node program."""
    since_s: float = 0.0
    """Time of its start (time.monotonic)."""
    stop_steps: list[Callable[[], None]] = field(default_factory=list)
    """Remaining steps to end a user's program, the gentlest first."""
    next_stop_step_at_s: float = 0.0
    was_killed: bool = False
    """It did not end within its grace time."""
    cause: str = ""
    """Other cause of its end (`NodeHandle.cause`)."""

    def manifest(self) -> dict[str, Any]:
        """This incarnation's entry in the manifest."""
        counters = {name: self.last.get(name, 0) for name in MANIFEST_COUNTERS}
        return {
            "node": self.node.name,
            "incarnation": self.incarnation,
            "exit": self.exit_code,
            "drained": self.last.get("event") in ("drained", "stopped") and bool(self.last.get("drained", True)),
            "crashed": self.state is State.CRASHED,
            "ended": bool(self.last.get("ended", False)),
            **({"left": True} if self.last.get("left") else {}),
            "dropped": self.last.get("dropped", {}),
            **({"killed": self.was_killed} if self.user_program is not None else {}),
            **({"cause": self.cause} if self.cause else {}),
            **counters,
        }


class Fleet:
    """All members of a run. `configure(node, incarnation)` makes a member's configuration line; None: the program sends
    no reports, and all its output goes to its log. `prepare` adapts `program` to a node. `absent`: nodes that are not
    started before they join.
    """

    def __init__(
        self,
        runtime: Runtime,
        nodes: Iterable[Node],
        *,
        configure: Callable[[Node, int], dict[str, Any]] | None,
        log_path: Callable[[str], Path],
        program: Program,
        prepare: Callable[[Node, Program], Program] = lambda _node, program: program,
        user_programs: Mapping[NodeName, UserProgram] = MappingProxyType({}),
        absent: Collection[NodeName] = (),
    ) -> None:
        self._user_programs = user_programs
        self._absent = absent
        self._runtime = runtime
        self._nodes = tuple(nodes)
        self._configure = configure
        self._log_path = log_path
        self._program = program
        self._prepare = prepare
        self._inbox: queue.SimpleQueue[tuple[NodeName, int, str]] = queue.SimpleQueue()
        self._current: dict[NodeName, Member] = {}
        self.history: list[Member] = []
        """Every incarnation, in the order of their starts."""

    def member(self, name: NodeName) -> Member:
        return self._current[name]

    def has(self, name: NodeName) -> bool:
        """Whether the node was ever started."""
        return name in self._current

    def alive(self) -> list[Member]:
        """Members that should be running, by member index."""
        gone = (State.CRASHED, State.STOPPED)
        there = (self._current[node.name] for node in self._nodes if node.name in self._current)
        return [member for member in there if member.state not in gone]

    def start(self, node: Node) -> Member:
        """Start the next incarnation of `node` and configure it; it will report `ready` by itself."""
        member = self._begin(node)
        self._enter(member)
        self._configure_now(member)
        return member

    def start_all(self, on_progress: Callable[[int], None] = lambda _: None) -> None:
        """Start every node that is not absent; none begins before all are connected to the network."""
        begin = [partial(self._begin, node) for node in self._nodes if node.name not in self._absent]
        with self._runtime.gathered():
            members = together(begin, at_once=self._runtime.at_once, on_done=on_progress)
        for member in members:
            self._enter(member)
        for member in members:
            self._configure_now(member)

    def crash(self, name: NodeName) -> None:
        member = self._current[name]
        if member.paused:
            member.handle.resume()
            member.paused = False
        member.state = State.CRASHED
        member.handle.kill()
        # Before it was killed, it may have gone on as another incarnation and reported that.
        self._hear_what_was_said()
        self._current[name].exit_code = member.handle.poll()

    def restart(self, names: Iterable[NodeName]) -> None:
        """Start the next incarnation of nodes that do not run, and their work; returns when all of them run."""
        by_name = {node.name: node for node in self._nodes}
        members = [self.start(by_name[name]) for name in names]
        if self._configure is None:
            return
        patience_s = max(RESTART_TIMEOUT_S, self.patience_s)
        self.wait_all((State.READY,), timeout_s=patience_s, doing="ready again", members=members)
        for member in members:
            self._tell(member, f'start {{"at_ns": {time.monotonic_ns()}}}')
        self.wait_all((State.RUNNING,), timeout_s=RESTART_TIMEOUT_S, doing="running again", members=members)

    def join(self, names: Iterable[NodeName]) -> dict[NodeName, dict[str, Any]]:
        """Start absent nodes, and let nodes that have left go on as their next incarnations. Returns the reports of the
        latter when all of them run.
        """
        targets = tuple(names)
        left = [name for name in targets if name in self._current]
        self.restart(name for name in targets if name not in left)
        return self.change(left, "join")

    def leave(self, names: Iterable[NodeName]) -> dict[NodeName, dict[str, Any]]:
        """Tell nodes to leave the group. Returns the report of each, sent when it has asked the other members."""
        return self.change(names, "leave")

    def pause(self, name: NodeName) -> None:
        self._current[name].handle.pause()
        self._current[name].paused = self._current[name].was_paused = True

    def resume(self, name: NodeName) -> None:
        self._current[name].handle.resume()
        self._current[name].paused = False

    def resume_all(self) -> None:
        """Resume members that a fault left paused, so that they can end in order."""
        for member in self.alive():
            if member.paused:
                self.resume(member.node.name)

    def change(self, names: Iterable[NodeName], line: str) -> dict[NodeName, dict[str, Any]]:
        """Send nodes a command (`clock`, `buffer`, `join`, `leave` of node/host/driver.py). Returns the report of each,
        sent when it is done. Raises FabricError when one is missing.
        """
        targets = tuple(names)
        for name in targets:
            self._current[name].changed = {}
            self._tell(self._current[name], line)
        deadline = time.monotonic() + CHANGE_TIMEOUT_S
        while late := [name for name in targets if not self._current[name].changed]:
            if time.monotonic() >= deadline:
                raise FabricError(f"{late[0]} did not obey {line!r} within {CHANGE_TIMEOUT_S:.0f} s")
            self.pump(min(time.monotonic() + POLL_S / 10, deadline))
        return {name: self._current[name].changed for name in targets}

    def broadcast(self, line: str) -> None:
        for member in self.alive():
            self._tell(member, line)

    def pump(self, until_s: float) -> None:
        """Process the lines of nodes until `until_s` (time.monotonic), and notice processes that have ended.

        Raises FabricError when a node ends unasked, or reports that it cannot go on.
        """
        while True:
            remaining = until_s - time.monotonic()
            try:
                name, begun_as, line = self._inbox.get(timeout=max(0.0, min(remaining, POLL_S)))
            except queue.Empty:
                self._notice_the_dead()
                self._notice_the_ready()
                if remaining <= 0:
                    return
                continue
            self._take(name, begun_as, line)

    def wait_all(
        self, states: tuple[State, ...], *, timeout_s: float, doing: str, members: list[Member] | None = None
    ) -> None:
        """Pump until every living member is in one of `states`.

        Raises FabricError naming those that are not, when the time is up.
        """
        if not self.await_states(states, timeout_s=timeout_s, members=members):
            late = [m for m in self._latest(members) if m.state not in states]
            names = ", ".join(m.node.name for m in late[:5]) + (" …" if len(late) > 5 else "")
            raise FabricError(f"{names} did not become {doing} within {timeout_s:.0f} s{_tail(late[0])}")

    @property
    def patience_s(self) -> float:
        """Longest time that a user's program may take to become ready."""
        return max((one.choice.ready.within_ns / 1e9 for one in self._user_programs.values()), default=0.0)

    def await_states(self, states: tuple[State, ...], *, timeout_s: float, members: list[Member] | None = None) -> bool:
        """Like `wait_all`, but returns whether the states were reached in time."""
        deadline = time.monotonic() + timeout_s
        while any(m.state not in states for m in self._latest(members)):
            now = time.monotonic()
            if now >= deadline:
                return False
            self.pump(min(now + POLL_S, deadline))
        return True

    def _latest(self, members: list[Member] | None) -> list[Member]:
        """The latest incarnations of these members; None: of those that should be running."""
        return self.alive() if members is None else [self._current[member.node.name] for member in members]

    def wait_gone(self, *, timeout_s: float) -> None:
        """Pump until every process has ended; FabricError when one does not."""
        presses = [
            len(m.stop_steps) * m.user_program.choice.stop.grace_ns / 1e9
            for m in self.history
            if m.user_program is not None
        ]
        deadline = time.monotonic() + timeout_s + max(presses, default=0.0)
        while any(m.exit_code is None for m in self.history):
            self._take_stop_steps()
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
        """Start the next incarnation of a node, in any thread; the fleet is not changed."""
        earlier = self._current.get(node.name)
        first = FIRST_JOINER if node.name in self._absent else 1
        incarnation = earlier.incarnation + 1 if earlier else first
        log_path = self._log_path(node.name)

        def on_line(line: str) -> None:
            if self._configure is not None:
                self._inbox.put((node.name, incarnation, line))
                return
            with log_path.open("a", encoding="utf-8", errors="replace") as log:
                log.write(line + "\n")

        user_program = self._user_programs.get(node.name)
        program = self._prepare(node, self._program) if user_program is None else user_program.prepare(incarnation)
        heard = on_line if user_program is None else user_program.listener(on_line)
        try:
            handle = self._runtime.start(node, program, on_line=heard, log_path=log_path)
        except FabricError as error:
            if user_program is not None:
                raise FabricError(f"the program of {node.name} cannot be started: {error}") from error
            if isinstance(error, CannotStartError):
                raise CannotStartError(f"{node.name}: {error}", is_there=error.is_there) from error
            raise
        return Member(
            node=node,
            incarnation=incarnation,
            handle=handle,
            log_path=log_path,
            begun_as=incarnation,
            user_program=user_program,
        )

    def _enter(self, member: Member) -> None:
        member.since_s = time.monotonic()
        self._current[member.node.name] = member
        self.history.append(member)

    def _tell(self, member: Member, line: str) -> None:
        """Send a line; a user's program gets only the lines that it asked for."""
        if member.user_program is None:
            member.handle.send(line)
            return
        verb, choice = line.split()[0], member.user_program.choice
        if choice.cues and verb != "stop":
            _cue(member, line)
        if verb == "start":
            member.state = State.RUNNING
        elif verb == "drain" and not choice.cues:
            member.state = State.DRAINED
        elif verb == "stop":
            member.state = State.STOPPED
            asks = [lambda: _cue(member, line)] if choice.cues else []
            member.stop_steps = [*asks, lambda: member.handle.signal(choice.stop.number), lambda: _kill(member)]
            self._take_stop_steps()

    def _take_stop_steps(self) -> None:
        """Take the next step to end each user's program that was told to end and has not."""
        for member in self.history:
            if member.stop_steps and member.exit_code is None and time.monotonic() >= member.next_stop_step_at_s:
                assert member.user_program is not None
                member.stop_steps.pop(0)()
                member.next_stop_step_at_s = time.monotonic() + member.user_program.choice.stop.grace_ns / 1e9

    def _configure_now(self, member: Member) -> None:
        if member.user_program is not None or self._configure is None:
            return
        line = json.dumps(self._configure(member.node, member.incarnation), separators=(",", ":"))
        member.handle.send(line)

    def _hear_what_was_said(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._take(*self._inbox.get_nowait())

    def _take(self, name: NodeName, begun_as: int, line: str) -> None:
        member = self._current[name]
        if member.begun_as != begun_as:
            return
        if member.state is State.CRASHED:
            self._take_last_words(member, line)
        elif member.user_program is not None:
            self._take_from_user_program(member, line)
        else:
            self._take_from_node_program(member, line)

    def _take_last_words(self, member: Member, line: str) -> None:
        """Process a line of a killed node, which may be cut off: only the report of a new incarnation counts."""
        with contextlib.suppress(ValueError):
            said = said_in(line)
            if said["event"] == "returned":
                self._follow(member, said)

    def _follow(self, member: Member, said: dict[str, Any]) -> None:
        """End this incarnation; its process goes on as the next one."""
        state = State.CRASHED if member.state is State.CRASHED else State.RUNNING
        following = replace(member, incarnation=said["incarnation"], state=state, last={})
        member.state, member.last, member.exit_code = State.ENDED, said, 0
        self._enter(following)

    def _take_from_node_program(self, member: Member, line: str) -> None:
        try:
            said = said_in(line)
        except ValueError:
            raise FabricError(f"{member.node.name} wrote a line that is not one of ours: {line[:120]!r}") from None
        event = said["event"]
        if event == "error":
            raise FabricError(f"{member.node.name} cannot run: {said.get('message', 'no reason given')}")
        if event == "returned":
            self._follow(member, said)
            return
        states = {
            "ready": State.READY,
            "started": State.RUNNING,
            "drained": State.DRAINED,
            "busy": State.RUNNING,
            "stopped": State.STOPPED,
        }
        if event in states:
            member.state = states[event]
        if event == "changed":
            member.changed = said
        if "submitted" in said:
            member.last = said

    @staticmethod
    def _take_from_user_program(member: Member, line: str) -> None:
        if line == DRAINED_LINE:
            if member.state is State.RUNNING:
                member.state = State.DRAINED
        elif member.state is State.STARTING:
            member.state = State.READY

    def _notice_the_ready(self) -> None:
        """Check whether users' programs are ready. Raises FabricError when one is not ready in time."""
        for member in self._current.values():
            if member.user_program is None or member.state is not State.STARTING:
                continue
            ready = member.user_program.choice.ready
            if member.user_program.is_ready(member.handle, member.since_s):
                member.state = State.READY
            elif time.monotonic() > member.since_s + ready.within_ns / 1e9:
                waited = f"{ready.within_ns / 1e9:g} s (waited for {ready})"
                raise FabricError(f"the program of {member.node.name} is not ready after {waited}{_tail(member)}")

    def _notice_the_dead(self) -> None:
        for member in self.history:
            if member.exit_code is not None:
                continue
            member.exit_code = member.handle.poll()
            if member.exit_code == 0 and member.user_program is not None and member.user_program.choice.may_end:
                member.state = State.STOPPED
            if member.exit_code is not None and member.state not in (State.STOPPED, State.CRASHED):
                self._last_words(member)
                latest = self._current[member.node.name]
                if latest.state is State.STOPPED:
                    continue
                latest.cause = latest.handle.cause()
                raise FabricError(f"{_end_sentence(latest)}{_tail(latest)}")

    def _last_words(self, member: Member) -> None:
        """Process lines until an ended node has been silent for POLL_S: its last lines explain more than its exit code.
        A node that ended in order has said so, and that line may still be on its way. Lines of other nodes are
        processed as usual.
        """
        until_s = time.monotonic() + (LAST_WORD_S if member.exit_code == 0 else POLL_S)
        while member.state is not State.STOPPED and (left_s := until_s - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                name, begun_as, line = self._inbox.get(timeout=left_s)
                if (name, begun_as) == (member.node.name, member.begun_as):
                    until_s = max(until_s, time.monotonic() + POLL_S)
                self._take(name, begun_as, line)


_NUMBERS = (*MANIFEST_COUNTERS, "waiting", "incarnation", "at_ns", "view", "view_members")


def said_in(line: str) -> dict[str, Any]:
    """A line of the project's node program: an `event`, and its counters, if any, as numbers. Raises ValueError for any
    other line: objects of the user run in the same process and may write there, too.
    """
    said = parse_json(line)
    if not isinstance(said, dict) or not isinstance(said.get("event"), str):
        raise ValueError("it names no event")
    if not all(type(said.get(name, 0)) is int for name in _NUMBERS):
        raise ValueError("a counter that is no number")
    if said["event"] == "returned" and "incarnation" not in said:
        raise ValueError("an incarnation without its number")
    return said


def _cue(member: Member, line: str) -> None:
    """Send a line to a program that may have ended or closed its input; `pump` notices its end."""
    with contextlib.suppress(FabricError):
        member.handle.send(line)


def _kill(member: Member) -> None:
    member.was_killed = True
    member.handle.kill()


def _end_sentence(member: Member) -> str:
    assert member.exit_code is not None, "it has ended"
    if member.cause:
        return f"{member.node.name} has ended: {member.cause}"
    return f"{member.node.name} ended by itself ({told(member.exit_code)})"


def _tail(member: Member) -> str:
    try:
        with member.log_path.open("rb") as log:
            log.seek(max(0, member.log_path.stat().st_size - LOG_TAIL_BYTES))
            lines = log.read(LOG_TAIL_BYTES).decode("utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    if not lines:
        return f"; its log {member.log_path} is empty"
    ends = " | ".join(_shortened(line.strip()) for line in lines[-LOG_TAIL_LINES:])
    return f"; its log {member.log_path} ends: {ends}"


def _shortened(line: str) -> str:
    return line if len(line) <= LOG_TAIL_CHARACTERS else f"{line[: LOG_TAIL_CHARACTERS - 1]}…"
