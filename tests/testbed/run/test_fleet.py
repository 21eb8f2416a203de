"""The fleet waits for its members, takes their reports, and notices their deaths. Real processes, no network."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from netem.errors import FabricError
from netem.runtimes.base import Command, Program
from testbed.run.fleet import Fleet, Member, State
from topologies.model import Node, NodeName
from topologies.shapes import one_partition

NODES = tuple(one_partition(2).nodes())

NODE_PROGRAM = """
import json, sys
config = json.loads(sys.stdin.readline())
incarnation = config["incarnation"]
say = lambda **words: print(json.dumps(words), flush=True)
count = lambda **words: say(submitted=incarnation, delivered=5, lag_max_ns=3, **words)
def return_again(**words):
    global incarnation
    incarnation += 1
    say(event="returned", incarnation=incarnation, submitted=10 * incarnation, ended=True, **words)
say(event="ready")
for line in sys.stdin:
    word = line.split()[0]
    if word == "start": say(event="started")
    if word == "drain": count(event="drained")
    if word == "leave": say(event="changed", at_ns=2, refused="no")
    if word == "clock":
        say(event="changed", at_ns=1)
        return_again()
    if word == "join":
        say(event="changed", at_ns=3)
        return_again(left=True)
    if word == "buffer":
        for _ in range(3): return_again()
        sys.stdin.read()
    if word == "stop":
        count(event="stopped", drained=True, ended=config["member"] == 1)
        sys.exit(0)
"""


class ProcessHandle:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def poll(self) -> int | None:
        return self.process.poll()

    def cause(self) -> str:
        return ""

    def enter(self, *_what: object, **_how: object) -> Command:
        raise FabricError("a plain process has no namespaces to enter")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


class ProcessRuntime:
    """Runtime of plain processes, to test the fleet without root."""

    at_once = 3
    gathered = nullcontext

    def __init__(self) -> None:
        self.handles: list[ProcessHandle] = []
        self.said: list[str] = []

    def start(self, node: Node, program: Program, *, on_line: Callable[[str], None], log_path: Path) -> ProcessHandle:
        with log_path.open("a") as log:
            process = subprocess.Popen(
                [sys.executable, *program.argv[1:]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        threading.Thread(target=self._read, args=(process, on_line), daemon=True).start()
        self.handles.append(ProcessHandle(process))
        return self.handles[-1]

    def close(self) -> None:
        for handle in self.handles:
            handle.kill()
            assert handle.process.stdin is not None
            handle.process.stdin.close()

    def _read(self, process: subprocess.Popen[str], on_line: Callable[[str], None]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                on_line(line.rstrip("\n"))
                self.said.append(line)


@pytest.fixture
def runtime() -> Iterator[ProcessRuntime]:
    made = ProcessRuntime()
    yield made
    made.close()


MakeFleet: TypeAlias = Callable[..., Fleet]


@pytest.fixture
def fleet_of(runtime: ProcessRuntime, tmp_path: Path) -> MakeFleet:
    def make(script: str = NODE_PROGRAM, *, absent: tuple[NodeName, ...] = ()) -> Fleet:
        return Fleet(
            runtime,
            NODES,
            configure=lambda node, incarnation: {"member": node.index, "incarnation": incarnation},
            log_path=lambda name: tmp_path / f"{name.replace('/', '.')}.log",
            program=Program(argv=("python3", "-c", script)),
            absent=absent,
        )

    return make


def wait(fleet: Fleet, state: State, *, members: list[Member] | None = None) -> None:
    fleet.wait_all((state,), timeout_s=10, doing=state.value, members=members)


def started(fleet: Fleet) -> Fleet:
    """The fleet when all members run."""
    fleet.start_all()
    wait(fleet, State.READY)
    fleet.broadcast("start {}")
    wait(fleet, State.RUNNING)
    return fleet


def test_a_whole_incarnation(fleet_of: MakeFleet) -> None:
    fleet = started(fleet_of())
    fleet.broadcast("drain")
    wait(fleet, State.DRAINED)
    assert fleet.totals() == {"submitted": 2, "delivered": 10, "waiting": 0, "lag_max_ns": 3}
    members = fleet.alive()
    fleet.broadcast("stop")
    wait(fleet, State.STOPPED, members=members)
    fleet.wait_gone(timeout_s=10)
    assert [entries(fleet, node) for node in NODES] == [
        [(1, 0, True, False, False, 1)], [(1, 0, True, False, True, 1)],
    ]  # fmt: skip


MUTE = "import sys; print('waiting for nothing', file=sys.stderr, flush=True); sys.stdin.read()"
DIES_AT_ONCE = "import sys; sys.stdin.readline(); sys.exit('the core is broken')"
ENDLESS_LOG = "import sys; sys.stdin.readline(); sys.stderr.write('x' * 3_000_000 + '\\n' + 'y' * 5000); sys.exit(1)"
CANNOT = """
import sys
sys.stdin.readline()
print('{"event": "error", "message": "window must be at least 1"}', flush=True)
sys.exit(2)
"""
BABBLES = "import sys; print('hello world', flush=True); sys.stdin.read()"


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (MUTE, r"p1/n1, p1/n2 did not become ready within 1 s; its log .* waiting"),
        (DIES_AT_ONCE, r"p1/n\d ended by itself \(exit code 1\); its log .* ends: the core is broken"),
        (ENDLESS_LOG, r"ends: x+… \| y+…$"),
        (CANNOT, "cannot run: window must be at least 1"),
        (BABBLES, "wrote a line that is not one of ours: 'hello world'"),
    ],
    ids=["is mute", "dies at once", "dies with a long log", "says why it cannot", "babbles"],
)
def test_a_node_that_does_not_come_up(script: str, sentence: str, fleet_of: MakeFleet) -> None:
    fleet = fleet_of(script)
    with pytest.raises(FabricError, match=sentence) as told:
        fleet.start_all()
        fleet.wait_all((State.READY,), timeout_s=1 if script is MUTE else 10, doing="ready")
    assert len(str(told.value)) < 1500


STOPS_BEFORE_IT_SAYS_SO = NODE_PROGRAM.replace(
    'if word == "stop":',
    """if word == "stop":
        import os
        parent = os.getpid()
        if os.fork(): os._exit(0)
        while os.path.exists(f"/proc/{parent}"): os.sched_yield()""",
)


def test_a_node_that_ends_in_order_may_say_so_after_its_end_is_seen(fleet_of: MakeFleet) -> None:
    fleet = started(fleet_of(STOPS_BEFORE_IT_SAYS_SO))
    fleet.broadcast("stop")
    fleet.wait_gone(timeout_s=10)
    assert [(member.state, member.exit_code) for member in fleet.history] == [(State.STOPPED, 0)] * 2


def test_what_others_say_while_a_dead_node_is_heard_out_is_not_lost(
    fleet_of: MakeFleet, runtime: ProcessRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = started(fleet_of())
    dead, other = (fleet.member(node.name).handle for node in NODES)
    assert isinstance(dead, ProcessHandle)
    found_dead = dead.poll

    def poll() -> int | None:
        code = found_dead()
        if code is not None:
            other.send("drain")
            while not any("drained" in line for line in runtime.said):
                time.sleep(0.01)
        return code

    monkeypatch.setattr(dead, "poll", poll)
    dead.process.kill()
    with pytest.raises(FabricError, match=r"p1/n1 ended by itself \(signal 9\)"):
        fleet.pump(time.monotonic() + 10)
    assert fleet.member(NODES[1].name).state is State.DRAINED


def test_a_crash_is_no_surprise_and_a_restart_is_a_new_incarnation(fleet_of: MakeFleet) -> None:
    fleet = started(fleet_of())
    fleet.pause(NODES[0].name)
    fleet.crash(NODES[0].name)
    fleet.pump(time.monotonic() + 0.2)
    assert [m.node.index for m in fleet.alive()] == [1]
    second = fleet.start(NODES[0])
    wait(fleet, State.READY, members=[second])
    assert [entry[:4] for entry in entries(fleet, NODES[0])] == [
        (1, -signal.SIGKILL, False, True), (2, None, False, False),
    ]  # fmt: skip


def entries(fleet: Fleet, node: Node) -> list[tuple[int, Any, bool, bool, bool, int]]:
    found = [member.manifest() for member in fleet.history if member.node is node]
    keys = ("incarnation", "exit", "drained", "crashed", "ended", "submitted")
    return [tuple(entry[key] for key in keys) for entry in found]


def test_a_process_that_goes_on_as_the_next_incarnation_has_an_entry_for_each(fleet_of: MakeFleet) -> None:
    fleet = started(fleet_of())
    first = NODES[0].name
    fleet.broadcast("drain")
    wait(fleet, State.DRAINED)
    fleet.member(first).was_paused = True
    assert fleet.change([first], "clock {}")[first]["at_ns"] == 1
    members = fleet.alive()
    assert fleet.await_states((State.RUNNING,), timeout_s=10, members=members[:1]), "what it said of itself is old"
    assert (fleet.member(first).incarnation, fleet.member(first).was_paused) == (2, True)
    fleet.broadcast("stop")
    wait(fleet, State.STOPPED, members=members)
    fleet.wait_gone(timeout_s=10)
    assert entries(fleet, NODES[0]) == [(1, 0, False, False, True, 20), (2, 0, True, False, False, 2)]
    assert fleet.totals()["submitted"] == 20 + 2 + 1


def test_a_restart_never_uses_a_number_that_the_killed_process_has_used(fleet_of: MakeFleet) -> None:
    fleet = started(fleet_of())
    first = NODES[0].name
    fleet.member(first).handle.send("buffer {}")
    time.sleep(0.5)  # its lines wait, unread
    fleet.crash(first)
    assert fleet.member(first).incarnation == 4
    fleet.restart([first])
    assert entries(fleet, NODES[0]) == [
        *((number, 0, False, False, True, 10 * number + 10) for number in (1, 2, 3)),
        (4, -signal.SIGKILL, False, True, False, 0),
        (5, None, False, False, False, 0),
    ]


def test_an_absent_node_is_started_when_it_joins_and_one_that_has_left_goes_on(fleet_of: MakeFleet) -> None:
    first, absent = (node.name for node in NODES)
    fleet = started(fleet_of(absent=(absent,)))
    assert [member.node.name for member in fleet.alive()] == [first]
    assert fleet.leave([first])[first]["refused"] == "no"
    assert fleet.join([first, absent]) == {first: {"event": "changed", "at_ns": 3}}
    fleet.pump(time.monotonic() + 0.2)
    assert [(one.node.name, one.incarnation, one.state) for one in fleet.history] == [
        (first, 1, State.ENDED), (absent, 2, State.RUNNING), (first, 2, State.RUNNING),
    ]  # fmt: skip
    assert fleet.history[0].manifest()["left"] is True
