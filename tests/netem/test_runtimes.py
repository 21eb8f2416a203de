"""The runtimes, `netns` and `docker` alike: crash, restart, pause and end."""

from __future__ import annotations

import json
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from netem.errors import FabricError
from netem.network import EmulatedNetwork
from netem.runtimes.base import LINE_BYTES_MAX, Program, together
from netem.runtimes.cgroups import Limits
from tests.netem.carriers import BOUND_S, Carrier, Incarnation, carrier_of
from tests.netem.wired import topology
from tests.waiting import wait_until
from topologies.model import CLEAR, Direction, Impairment, Node

pytestmark = [pytest.mark.root, pytest.mark.uml]

NODE, OTHER = topology(2).nodes()


def python(code: str) -> Program:
    return Program(argv=("python3", "-c", code))


TALKER = python("""
import socket, sys, threading
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("", 7700))
print("up", flush=True)

def listen():
    while True:
        data, (ip, port) = udp.recvfrom(2048)
        print("heard", data.decode(), "from", ip, flush=True)

threading.Thread(target=listen, daemon=True).start()
for line in sys.stdin:
    word, _, rest = line.strip().partition(" ")
    if word == "say":
        ip, _, text = rest.partition(" ")
        udp.sendto(text.encode(), (ip, 7700))
    elif word == "exit":
        sys.exit(int(rest))
    elif word == "grumble":
        print(rest, file=sys.stderr, flush=True)
""")
"""Carries out commands."""

Start = Callable[..., Incarnation]


@pytest.fixture
def start(runtime: Carrier, tmp_path: Path) -> Iterator[Start]:
    """Starts nodes that carry out commands, unless another program is given; kills those that are left."""
    started: list[Incarnation] = []

    def begin(node: Node = NODE, program: Program = TALKER) -> Incarnation:
        started.append(Incarnation(runtime, node, program, tmp_path / "node.log"))
        if program is TALKER:
            assert started[-1].line() == "up"
        return started[-1]

    yield begin
    for one in started:
        one.handle.kill()


def test_nodes_are_wired_before_their_first_instruction(start: Start) -> None:
    one, other = start(), start(OTHER)
    one.handle.send(f"say {OTHER.ip} grüße")
    assert other.line() == f"heard grüße from {NODE.ip}"


def test_a_node_ends_with_its_own_code_and_its_stderr_is_kept(start: Start) -> None:
    node = start()
    assert node.handle.poll() is None
    node.handle.send("grumble first")
    node.handle.send("exit 3")
    assert node.end() == 3
    with pytest.raises(FabricError, match="p1/n1 has ended"):
        node.handle.send("anything")
    again = start()
    again.handle.send("grumble second")
    again.handle.send("exit 0")
    assert again.end() == 0
    assert node.log.read_text().splitlines() == ["first", "second"]


def test_a_node_that_is_gone_takes_no_input_and_says_so(start: Start) -> None:
    node = start()
    node.handle.kill()
    assert node.handle.poll() == -signal.SIGKILL
    with pytest.raises(FabricError, match="p1/n1 has ended: it cannot be told 'anything'"):
        node.handle.send("anything")
    with pytest.raises(FabricError, match="p1/n1 cannot be paused: it has ended with exit code -9"):
        node.handle.pause()
    assert node.handle.cause() == "", "it ended as it was asked to"


def test_after_a_crash_the_wires_are_back_at_once_and_as_slow(start: Start, network: EmulatedNetwork) -> None:
    delay_ns = 50_000_000
    network.impair(NODE.name, Direction.TO_NODE, Impairment(delay_ns=delay_ns))
    other = start(OTHER)
    for incarnation in range(2):
        node = start()
        began_ns = time.monotonic_ns()
        other.handle.send(f"say {NODE.ip} {incarnation}")
        assert node.line() == f"heard {incarnation} from {OTHER.ip}"
        assert time.monotonic_ns() - began_ns >= delay_ns
        node.handle.kill()
    network.impair(NODE.name, Direction.TO_NODE, CLEAR)
    assert network.infrastructure_drops() == {}


def test_a_paused_node_does_nothing_catches_up_when_resumed_and_can_be_killed(start: Start) -> None:
    one, other = start(), start(OTHER)
    other.handle.pause()
    one.handle.send(f"say {OTHER.ip} in the meantime")
    with pytest.raises(queue.Empty):
        other.lines.get(timeout=0.2)
    assert other.handle.poll() is None
    other.handle.resume()
    assert other.line() == f"heard in the meantime from {NODE.ip}"
    other.handle.pause()
    other.handle.kill()
    assert other.handle.poll() == -signal.SIGKILL


def test_output_of_any_size_and_form_is_there_before_the_exit_code(start: Start) -> None:
    node = start(program=python("import sys; sys.stdout.buffer.write(b'x' * 200_000 + b'\\n\\xff\\ntail')"))
    assert node.end() == 0
    assert [node.lines.get_nowait() for _ in range(3)] == ["x" * LINE_BYTES_MAX, "�", "tail"]


def test_any_program_will_do_and_gets_its_environment(start: Start) -> None:
    script = 'echo "$GREETING $$"; cat /proc/1/comm'
    node = start(program=Program(argv=("sh", "-c", script), environment={"GREETING": "good day"}))
    assert [node.line(), node.line()] == ["good day 1", "sh"]
    assert node.end() == 0


INSIDE = """
import ctypes, json, os, sys
import node.wire
def writable(path):
    try:
        open(path, "w").close()
        return True
    except OSError:
        return False
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "devices": sorted(os.listdir("/sys/class/net")), "uid": os.getuid(),
    "processes": [name for name in os.listdir("/proc") if name.isdigit()],
    "capabilities": [int(status[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")],
    "no_new_privileges": status["NoNewPrivs"].strip(),
    "writable": [writable(path) for path in ("/x", node.wire.__file__, "/tmp/x")],
    "a new network namespace": ctypes.CDLL(None).unshare(0x40000000), "magic": node.wire.MAGIC}))
assert sys.version_info >= (3, 11)
"""


def test_a_node_has_its_wire_and_our_package_but_no_rights(start: Start) -> None:
    node = start(program=python(INSIDE))
    assert json.loads(node.line()) == {
        "devices": ["eth0", "lo"], "uid": 65534, "processes": ["1"], "capabilities": [0, 0, 0, 0],
        "no_new_privileges": "1", "writable": [False, False, True], "a new network namespace": -1, "magic": 0x6F62,
    }  # fmt: skip
    assert node.end() == 0


def test_a_program_that_is_not_there_is_told(start: Start, world: str) -> None:
    """In a container only a shell inside it can look for the program: the shell reports that and ends."""
    program = Program(argv=("no-such-program",))
    if world == "netns":
        with pytest.raises(FabricError, match="cannot start no-such-program"):
            start(program=program)
        return
    node = start(program=program)
    assert node.end() == 127
    assert "the image has no program no-such-program: name one that has it" in node.log.read_text()


def test_closing_kills_what_is_left_and_the_last_lines_are_not_lost(
    world: str, network: EmulatedNetwork, tmp_path: Path
) -> None:
    """A second runtime on nodes wired by the first one: it wires them again."""
    script = "import time; [print(n, flush=True) for n in range(100)]; print('end', flush=True); time.sleep(60)"
    lines: list[str] = []
    with carrier_of(world, network) as runtime:
        handle = runtime.start(OTHER, python(script), on_line=lines.append, log_path=tmp_path / "log")
        wait_until(lambda: "end" in lines, "the last line", BOUND_S)
    assert handle.poll() == -signal.SIGKILL
    assert lines == [str(number) for number in range(100)] + ["end"]


HUNGRY = "import sys; print('up', flush=True); sys.stdin.readline(); hoard = 'x' * (1 << 28)"


@pytest.mark.cgroups
def test_a_node_that_takes_more_memory_than_it_may_is_told_as_that(start: Start, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    node = start(program=Program(argv=("python3", "-c", HUNGRY), work=work, limits=Limits(memory_bytes=64 << 20)))
    assert node.line() == "up"
    node.handle.send("go on")
    assert node.end() == -signal.SIGKILL
    assert node.handle.cause() == "the kernel killed it at its memory limit of 64 MiB"


def test_results_come_in_the_order_of_what_was_asked() -> None:
    second_is_done = threading.Event()

    def first() -> str:
        assert second_is_done.wait(10)
        return "first"

    def second() -> str:
        second_is_done.set()
        return "second"

    counts: list[int] = []
    assert together([first, second], at_once=2, on_done=counts.append) == ["first", "second"]
    assert counts == [1, 2]
    assert together([], at_once=3, on_done=lambda _: pytest.fail("nothing was done")) == []


def test_one_at_a_time_is_one_after_the_other() -> None:
    under_way: list[int] = []

    def act() -> int:
        under_way.append(1)
        time.sleep(0.001)
        most = len(under_way)
        under_way.pop()
        return most

    assert together([act] * 20, at_once=1, on_done=lambda _: None) == [1] * 20


def test_after_a_failure_what_was_under_way_has_ended() -> None:
    ended, failing = threading.Event(), threading.Event()

    def fails() -> None:
        failing.set()
        raise OSError("no room")

    def under_way() -> None:
        assert failing.wait(10)
        ended.set()

    with pytest.raises(OSError, match="no room"):
        together([under_way, fails], at_once=2, on_done=lambda _: None)
    assert ended.is_set()
