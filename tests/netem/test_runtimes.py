"""The runtimes, `netns` and `docker` alike: crash, restart, pause and end."""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from netem.errors import FabricError
from netem.network import EmulatedNetwork
from netem.runtimes.base import LINE_BYTES_MAX, Program, together
from netem.runtimes.cgroups import Limits
from tests.netem.carriers import BOUND_S, Carrier, Incarnation, carrier_of
from tests.netem.wired import topology
from topologies.model import Node

pytestmark = [pytest.mark.root, pytest.mark.uml]

NODE = topology(2).node("p1/n1")
OTHER = topology(2).node("p1/n2")

ECHO = """
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
    elif word == "long":
        print("x" * int(rest), flush=True)
    elif word == "grumble":
        print(rest, file=sys.stderr, flush=True)
    elif word == "import":
        module = __import__(rest)
        print("imported", module.__name__, flush=True)
"""
TALKER = Program(argv=("python3", "-c", ECHO))


class Talk(Incarnation):
    """A node that carries out commands, unless another program is given."""

    def __init__(self, runtime: Carrier, tmp_path: Path, node: Node = NODE, program: Program = TALKER) -> None:
        super().__init__(runtime, node, program, tmp_path / "node.log")


def test_nodes_are_wired_before_their_first_instruction(runtime: Carrier, tmp_path: Path) -> None:
    one, other = Talk(runtime, tmp_path), Talk(runtime, tmp_path, OTHER)
    assert (one.line(), other.line()) == ("up", "up")
    one.handle.send(f"say {OTHER.ip} hello")
    assert other.line() == f"heard hello from {NODE.ip}"
    one.handle.kill()
    other.handle.kill()


def test_a_node_ends_with_its_own_code_and_its_stderr_is_kept(runtime: Carrier, tmp_path: Path) -> None:
    node = Talk(runtime, tmp_path)
    assert node.line() == "up"
    assert node.handle.poll() is None
    node.handle.send("grumble first")
    node.handle.send("exit 3")
    assert node.end() == 3
    again = Talk(runtime, tmp_path)
    again.line()
    again.handle.send("grumble second")
    again.handle.send("exit 0")
    assert again.end() == 0
    assert node.log.read_text().splitlines() == ["first", "second"]


def test_a_node_that_is_gone_takes_no_input_and_says_so(runtime: Carrier, tmp_path: Path) -> None:
    node = Talk(runtime, tmp_path)
    node.line()
    node.handle.kill()
    assert node.handle.poll() == -signal.SIGKILL
    with pytest.raises(FabricError, match="p1/n1 has ended: it cannot be told 'anything'"):
        node.handle.send("anything")
    with pytest.raises(FabricError, match="p1/n1 cannot be paused: it has ended with exit code -9"):
        node.handle.pause()
    assert node.handle.cause() == "", "it ended as it was asked to"


def test_after_a_crash_the_wires_are_back_at_once(runtime: Carrier, tmp_path: Path) -> None:
    other = Talk(runtime, tmp_path, OTHER)
    other.line()
    for incarnation in range(3):
        node = Talk(runtime, tmp_path)
        assert node.line() == "up"
        node.handle.send(f"say {OTHER.ip} {incarnation}")
        assert other.line() == f"heard {incarnation} from {NODE.ip}"
        node.handle.kill()
        assert node.handle.poll() == -signal.SIGKILL
    other.handle.kill()


def test_a_paused_node_does_nothing_and_catches_up_when_resumed(runtime: Carrier, tmp_path: Path) -> None:
    one, other = Talk(runtime, tmp_path), Talk(runtime, tmp_path, OTHER)
    one.line(), other.line()
    other.handle.pause()
    one.handle.send(f"say {OTHER.ip} in the meantime")
    with pytest.raises(queue.Empty):
        other.lines.get(timeout=0.2)
    assert other.handle.poll() is None
    other.handle.resume()
    assert other.line() == f"heard in the meantime from {NODE.ip}"
    one.handle.kill()
    other.handle.kill()


def test_a_paused_node_can_be_killed(runtime: Carrier, tmp_path: Path) -> None:
    node = Talk(runtime, tmp_path)
    node.line()
    node.handle.pause()
    node.handle.kill()
    assert node.handle.poll() == -signal.SIGKILL


def test_over_long_lines_are_cut(runtime: Carrier, tmp_path: Path) -> None:
    node = Talk(runtime, tmp_path)
    node.line()
    node.handle.send("long 200000")
    node.handle.send("long 10")
    assert len(node.line()) == LINE_BYTES_MAX
    assert node.line() == "x" * 10
    node.handle.kill()


def test_our_packages_can_be_imported_by_python3(runtime: Carrier, tmp_path: Path) -> None:
    node = Talk(runtime, tmp_path)
    node.line()
    node.handle.send("import node.wire")
    assert node.line() == "imported node"
    node.handle.kill()


def test_any_program_will_do_and_gets_its_environment(runtime: Carrier, tmp_path: Path) -> None:
    program = Program(argv=("sh", "-c", 'echo "$GREETING $$"; cat /proc/1/comm'), environment={"GREETING": "good day"})
    node = Talk(runtime, tmp_path, program=program)
    assert node.line() == "good day 1"
    assert node.line() == "sh"
    assert node.end() == 0


def test_a_program_that_is_not_there_is_told(runtime: Carrier, world: str, tmp_path: Path) -> None:
    """In a container only a shell inside it can look for the program: the shell reports that and ends."""
    program = Program(argv=("no-such-program",))
    if world == "netns":
        with pytest.raises(FabricError, match="cannot start no-such-program"):
            Talk(runtime, tmp_path, program=program)
        return
    node = Talk(runtime, tmp_path, program=program)
    assert node.end() == 127
    assert "the image has no program no-such-program" in node.log.read_text()


def test_a_node_sees_no_other_process_and_cannot_leave_its_namespaces(runtime: Carrier, tmp_path: Path) -> None:
    script = (
        "import os, ctypes; print(len([p for p in os.listdir('/proc') if p.isdigit()]), flush=True);"
        "print(ctypes.CDLL(None).unshare(0x40000000), flush=True)"
    )
    node = Talk(runtime, tmp_path, program=Program(argv=("python3", "-c", script)))
    assert node.line() == "1"
    assert node.line() == "-1"
    assert node.end() == 0


def test_closing_kills_what_is_left_and_the_last_lines_are_not_lost(
    world: str, network: EmulatedNetwork, tmp_path: Path
) -> None:
    """A second runtime on nodes wired by the first one: it wires them again."""
    lines: list[str] = []
    script = "import sys, time; [print(n, flush=True) for n in range(100)]; print('end', flush=True); time.sleep(60)"
    with carrier_of(world, network) as runtime:
        handle = runtime.start(
            OTHER, Program(argv=("python3", "-c", script)), on_line=lines.append, log_path=tmp_path / "log"
        )
        deadline = time.monotonic() + BOUND_S
        while "end" not in lines:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert handle.poll() == -signal.SIGKILL
    assert lines == [str(number) for number in range(100)] + ["end"]


HUNGRY = "import sys; print('up', flush=True); sys.stdin.readline(); hoard = 'x' * (1 << 28)"


@pytest.mark.cgroups
def test_a_node_that_takes_more_memory_than_it_may_is_told_as_that(runtime: Carrier, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    program = Program(argv=("python3", "-c", HUNGRY), work=work, limits=Limits(memory_bytes=64 << 20))
    node = Talk(runtime, tmp_path, program=program)
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


def test_one_at_a_time_is_one_after_the_other() -> None:
    under_way: list[int] = []
    most: list[int] = []

    def act(number: int) -> Callable[[], int]:
        def acting() -> int:
            under_way.append(number)
            most.append(len(under_way))
            under_way.remove(number)
            return number

        return acting

    assert together([act(number) for number in range(20)], at_once=1, on_done=lambda _: None) == list(range(20))
    assert most == [1] * 20


def test_after_a_failure_what_was_under_way_has_ended() -> None:
    ended = threading.Event()
    failing = threading.Event()

    def fails() -> None:
        failing.set()
        raise OSError("no room")

    def under_way() -> None:
        assert failing.wait(10)
        ended.set()

    with pytest.raises(OSError, match="no room"):
        together([under_way, fails], at_once=2, on_done=lambda _: None)
    assert ended.is_set()


def test_nothing_to_do_gives_nothing() -> None:
    assert together([], at_once=3, on_done=lambda _: pytest.fail("nothing was done")) == []
