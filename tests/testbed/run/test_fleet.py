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
from typing import Any

import pytest

from netem.errors import FabricError
from netem.runtimes.base import Command, Program
from testbed.run.fleet import Fleet, State
from topologies.model import Node, NodeName, PartitionName

NODES = tuple(
    Node(name=NodeName(f"p1/n{i + 1}"), index=i, partition=PartitionName("p1"), partition_index=1, number=i + 1)
    for i in range(2)
)

OBEDIENT = """
import json, sys
config = json.loads(sys.stdin.readline())
say = lambda **words: print(json.dumps(words), flush=True)
say(event="ready")
for line in sys.stdin:
    word = line.split()[0]
    if word == "start": say(event="started")
    if word == "drain": say(event="drained", submitted=config["incarnation"], delivered=5, lag_max_ns=3)
    if word == "stop":
        over = config["member"] == 1
        say(event="stopped", submitted=config["incarnation"], delivered=5, lag_max_ns=3, drained=True, ended=over)
        sys.exit(0)
"""
RETURNS = """
import json, sys
config = json.loads(sys.stdin.readline())
say = lambda **words: print(json.dumps(words), flush=True)
say(event="ready")
incarnation = config["incarnation"]
for line in sys.stdin:
    word = line.split()[0]
    if word == "start": say(event="started")
    if word == "drain": say(event="drained", submitted=1)
    if word == "clock":
        incarnation += 1
        say(event="changed", at_ns=1)
        say(event="returned", incarnation=incarnation, submitted=10 * incarnation, ended=True)
    if word == "leave": say(event="changed", at_ns=2, refused="no")
    if word == "join":
        incarnation += 1
        say(event="changed", at_ns=3)
        say(event="returned", incarnation=incarnation, submitted=10 * incarnation, ended=True, left=True)
    if word == "buffer":
        for _ in range(3):
            incarnation += 1
            say(event="returned", incarnation=incarnation, submitted=10 * incarnation, ended=True)
        sys.stdin.read()
    if word == "stop":
        say(event="stopped", submitted=incarnation, drained=True, ended=False)
        sys.exit(0)
"""
MUTE = "import sys; print('waiting for nothing', file=sys.stderr, flush=True); sys.stdin.read()"
DIES_AT_ONCE = "import sys; sys.stdin.readline(); sys.exit('the core is broken')"
CANNOT = 'import sys; print(\'{"event": "error", "message": "window must be at least 1"}\', flush=True); sys.exit(2)'
BABBLES = "import sys; print('hello world', flush=True); sys.stdin.read()"


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


def crew_of(script: str, runtime: ProcessRuntime, tmp_path: Path, *, absent: tuple[NodeName, ...] = ()) -> Fleet:
    def configure(node: Node, incarnation: int) -> dict[str, Any]:
        return {"member": node.index, "incarnation": incarnation}

    return Fleet(
        runtime,
        NODES,
        configure=configure,
        log_path=lambda name: tmp_path / f"{name.replace('/', '.')}.log",
        program=Program(argv=("python3", "-c", script)),
        absent=absent,
    )


def test_a_whole_incarnation(runtime: ProcessRuntime, tmp_path: Path) -> None:
    fleet = crew_of(OBEDIENT, runtime, tmp_path)
    fleet.start_all()
    fleet.wait_all((State.READY,), timeout_s=10, doing="ready")
    fleet.broadcast("start {}")
    fleet.wait_all((State.RUNNING,), timeout_s=10, doing="started")
    fleet.broadcast("drain")
    fleet.wait_all((State.DRAINED,), timeout_s=10, doing="drained")
    assert fleet.totals() == {"submitted": 2, "delivered": 10, "waiting": 0, "lag_max_ns": 3}
    members = fleet.alive()
    fleet.broadcast("stop")
    fleet.wait_all((State.STOPPED,), timeout_s=10, doing="stopped", members=members)
    fleet.wait_gone(timeout_s=10)
    entries = [member.manifest() for member in fleet.history]
    assert [entry["exit"] for entry in entries] == [0, 0]
    assert [(entry["drained"], entry["ended"], entry["crashed"]) for entry in entries] == [
        (True, False, False), (True, True, False),
    ]  # fmt: skip


def test_a_node_that_never_becomes_ready(runtime: ProcessRuntime, tmp_path: Path) -> None:
    fleet = crew_of(MUTE, runtime, tmp_path)
    fleet.start_all()
    with pytest.raises(FabricError, match=r"p1/n1, p1/n2 did not become ready within 1 s; its log .* waiting"):
        fleet.wait_all((State.READY,), timeout_s=1, doing="ready")


def test_a_node_that_dies_at_once(runtime: ProcessRuntime, tmp_path: Path) -> None:
    fleet = crew_of(DIES_AT_ONCE, runtime, tmp_path)
    fleet.start_all()
    with pytest.raises(
        FabricError, match=r"p1/n\d ended by itself \(exit code 1\); its log .* ends: the core is broken"
    ):
        fleet.wait_all((State.READY,), timeout_s=10, doing="ready")


def test_what_others_say_while_a_dead_node_is_heard_out_is_not_lost(
    runtime: ProcessRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = running(OBEDIENT, runtime, tmp_path)
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


def test_of_a_log_without_end_only_the_end_is_quoted(runtime: ProcessRuntime, tmp_path: Path) -> None:
    fleet = crew_of(
        "import sys; sys.stderr.write('x' * 3_000_000 + '\\n' + 'y' * 5000); sys.exit(1)", runtime, tmp_path
    )
    with pytest.raises(FabricError, match=r"ends: x+… \| y+…$") as told:
        fleet.start_all()
        fleet.wait_all((State.READY,), timeout_s=10, doing="ready")
    assert len(str(told.value)) < 1500


def test_a_node_that_says_why_is_quoted(runtime: ProcessRuntime, tmp_path: Path) -> None:
    fleet = crew_of(CANNOT, runtime, tmp_path)
    with pytest.raises(FabricError, match="cannot run: window must be at least 1"):
        fleet.start_all()
        fleet.wait_all((State.READY,), timeout_s=10, doing="ready")


def test_a_node_that_babbles_is_not_ours(runtime: ProcessRuntime, tmp_path: Path) -> None:
    fleet = crew_of(BABBLES, runtime, tmp_path)
    fleet.start_all()
    with pytest.raises(FabricError, match="wrote a line that is not one of ours: 'hello world'"):
        fleet.wait_all((State.READY,), timeout_s=10, doing="ready")


def test_a_crash_is_no_surprise_and_a_restart_is_a_new_incarnation(runtime: ProcessRuntime, tmp_path: Path) -> None:
    fleet = crew_of(OBEDIENT, runtime, tmp_path)
    fleet.start_all()
    fleet.wait_all((State.READY,), timeout_s=10, doing="ready")
    fleet.pause(NODES[0].name)
    fleet.crash(NODES[0].name)
    fleet.pump(time.monotonic() + 0.2)
    assert [m.node.index for m in fleet.alive()] == [1]
    second = fleet.start(NODES[0])
    fleet.wait_all((State.READY,), timeout_s=10, doing="ready")
    assert second.incarnation == 2
    first = fleet.history[0].manifest()
    assert (first["exit"], first["crashed"]) == (-signal.SIGKILL, True)


def running(script: str, runtime: ProcessRuntime, tmp_path: Path) -> Fleet:
    fleet = crew_of(script, runtime, tmp_path)
    fleet.start_all()
    fleet.wait_all((State.READY,), timeout_s=10, doing="ready")
    fleet.broadcast("start {}")
    fleet.wait_all((State.RUNNING,), timeout_s=10, doing="started")
    return fleet


def entries(fleet: Fleet, node: Node) -> list[tuple[int, Any, bool, bool, bool, int]]:
    found = [member.manifest() for member in fleet.history if member.node is node]
    keys = ("incarnation", "exit", "drained", "crashed", "ended", "submitted")
    return [tuple(entry[key] for key in keys) for entry in found]


def test_a_process_that_goes_on_as_the_next_incarnation_has_an_entry_for_each(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    fleet = running(RETURNS, runtime, tmp_path)
    fleet.broadcast("drain")
    fleet.wait_all((State.DRAINED,), timeout_s=10, doing="drained")
    fleet.member(NODES[0].name).was_paused = True
    assert fleet.change([NODES[0].name], "clock {}")[NODES[0].name]["at_ns"] == 1
    members = fleet.alive()
    assert fleet.await_states((State.RUNNING,), timeout_s=10, members=members[:1]), "what it said of itself is old"
    assert (fleet.member(NODES[0].name).incarnation, fleet.member(NODES[0].name).was_paused) == (2, True)
    fleet.broadcast("stop")
    fleet.wait_all((State.STOPPED,), timeout_s=10, doing="stopped", members=members)
    fleet.wait_gone(timeout_s=10)
    assert entries(fleet, NODES[0]) == [(1, 0, False, False, True, 20), (2, 0, True, False, False, 2)]
    assert fleet.totals()["submitted"] == 20 + 2 + 1


def test_a_restart_never_uses_a_number_that_the_killed_process_has_used(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    fleet = running(RETURNS, runtime, tmp_path)
    fleet.member(NODES[0].name).handle.send("buffer {}")
    time.sleep(0.5)  # its lines wait, unread
    fleet.crash(NODES[0].name)
    assert fleet.member(NODES[0].name).incarnation == 4
    fleet.restart([NODES[0].name])
    assert entries(fleet, NODES[0]) == [
        (1, 0, False, False, True, 20),
        (2, 0, False, False, True, 30),
        (3, 0, False, False, True, 40),
        (4, -signal.SIGKILL, False, True, False, 0),
        (5, None, False, False, False, 0),
    ]  # fmt: skip


def test_an_absent_node_is_started_when_it_joins_and_one_that_has_left_goes_on(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    absent = NODES[1].name
    fleet = crew_of(RETURNS, runtime, tmp_path, absent=(absent,))
    fleet.start_all()
    fleet.wait_all((State.READY,), timeout_s=10, doing="ready")
    fleet.broadcast("start {}")
    fleet.wait_all((State.RUNNING,), timeout_s=10, doing="started")
    assert [member.node.name for member in fleet.alive()] == [NODES[0].name]
    assert fleet.leave([NODES[0].name])[NODES[0].name]["refused"] == "no"
    assert fleet.join([NODES[0].name, absent]) == {NODES[0].name: {"event": "changed", "at_ns": 3}}
    fleet.pump(time.monotonic() + 0.2)
    assert [(one.node.name, one.incarnation, one.state) for one in fleet.history] == [
        (NODES[0].name, 1, State.ENDED), (absent, 2, State.RUNNING), (NODES[0].name, 2, State.RUNNING),
    ]  # fmt: skip
    assert fleet.history[0].manifest()["left"] is True
