"""A testbed that is up, through its Python interface, on an emulated network."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from netem.errors import FabricError
from netem.runtimes.base import Program
from netem.runtimes.daemon import LABEL, connect
from testbed.live import NodeState, Testbed, running
from testbed.paths import ROOT
from tests.testbed.live import testbeds
from tests.testbed.live.testbeds import faults, ping, read_until, received, round_trips_ms, status
from tests.worlds import WORLDS
from topologies.formats.errors import InputError
from topologies.model import Direction

pytestmark = [pytest.mark.root, pytest.mark.uml]

IN_NETNS = pytest.mark.parametrize("world", ["netns"], indirect=True)
IN_DOCKER = pytest.mark.parametrize("world", [pytest.param("docker", marks=pytest.mark.docker)], indirect=True)


@pytest.fixture(scope="module", params=WORLDS)
def world(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def testbed(world: str, places: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """One testbed for all tests, in each world."""
    folder = tmp_path_factory.mktemp(f"live-{world}")
    with Testbed(testbeds.written("shared", folder), world=world, runs=folder / "runs") as opened:
        yield opened
        assert opened.failure() is None


# Status.


def test_nodes_tell_what_they_are(clear: Testbed) -> None:
    found = clear.nodes()
    assert [(one.name, one.state, one.ip) for one in found] == [
        ("p1/n1", NodeState.RUNNING, "10.1.0.1"),
        ("p1/n2", NodeState.RUNNING, "10.1.0.2"),
        ("p1/n3", NodeState.RUNNING, "10.1.0.3"),
        ("p2/n1", NodeState.RUNNING, "10.2.0.1"),
    ]
    assert found[2].to_node.delay_ns == 5_000_000
    assert found[0].cut_off_from == ()
    assert datetime.now(UTC) - found[0].since < timedelta(hours=1)


def test_links_and_counters_tell_theirs(clear: Testbed) -> None:
    (link,) = clear.links()
    assert (link.name, link.there.delay_ns, link.is_cut) == ("p1--p2", 1_000_000, False)
    before = {one.node: one.sent_frames for one in clear.counters().ports if one.direction is Direction.FROM_NODE}
    assert received(ping(clear, "p1/n1", "p1/n2")) == 3
    after = {one.node: one.sent_frames for one in clear.counters().ports if one.direction is Direction.FROM_NODE}
    assert {name: after[name] - before[name] for name in after} == {"p1/n1": 3, "p1/n2": 3, "p1/n3": 0, "p2/n1": 0}


def test_it_is_found_by_its_name_or_alone(testbed: Testbed, world: str) -> None:
    assert [(one.name, one.node_count, one.world) for one in running()] == [("shared", 4, world)]
    for other in (Testbed.attach(), Testbed.attach("shared")):
        with other:  # an attached testbed stays up
            assert other.topology == testbed.topology
    assert [one.name for one in running()] == ["shared"]


def test_a_second_one_of_the_same_name_is_refused(testbed: Testbed, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a testbed called shared is up already: take it down with"):
        Testbed(testbeds.written("shared", tmp_path), runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_an_unknown_name_is_told_with_those_that_are(testbed: Testbed) -> None:
    with pytest.raises(InputError, match="no testbed called sharde is up; did you mean shared"):
        Testbed.attach("sharde")


# Commands.


def test_a_command_is_in_its_node(testbed: Testbed) -> None:
    done = testbed.run(
        "p1/n2", ["sh", "-c", "hostname; ip -4 -o addr show eth0; cat /proc/1/comm; ls /proc | grep -c ^[0-9]"]
    )
    assert done.code == 0
    hostname, address, _init, processes = done.text.splitlines()
    assert hostname == "p1-n2"
    assert "10.1.0.2/16" in address
    assert int(processes) < 10, "it sees processes of other nodes"


def test_a_command_has_streams_and_an_exit_code(testbed: Testbed) -> None:
    done = testbed.run("p1/n1", ["sh", "-c", "cat; echo $GREETING $ORDERBED_NODE >&2; exit 7"],
                   input=b"to and fro\n" * 50_000, environment={"GREETING": "hello"})  # fmt: skip
    assert (done.code, done.stdout, done.stderr) == (7, b"to and fro\n" * 50_000, b"hello p1/n1\n")


@IN_NETNS
def test_a_command_has_the_operators_rights_and_directory(
    testbed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert testbed.run("p1/n1", ["ip", "link", "set", "lo", "mtu", "60000"]).code == 0
    assert "mtu 60000" in testbed.run("p1/n1", ["ip", "link", "show", "lo"]).text
    monkeypatch.chdir(tmp_path)
    assert testbed.run("p1/n1", ["pwd"]).text.strip() == str(tmp_path)


def test_a_command_that_takes_too_long_is_killed(testbed: Testbed) -> None:
    with pytest.raises(TimeoutError, match=r"sleep is still running after 0\.2 s"):
        testbed.run("p1/n1", ["sleep", "4711"], timeout_s=0.2)
    assert testbed.run("p1/n1", ["pgrep", "-f", "sleep 4711"]).code == 1


def test_a_command_in_the_background_blocks_nothing_and_takes_signals(testbed: Testbed) -> None:
    with testbed.start("p1/n1", ["sleep", "600"]) as command:
        assert command.poll() is None
        began = time.monotonic()
        assert received(ping(testbed, "p1/n1", "p1/n2")) == 3
        assert time.monotonic() - began < 5
        command.signal(signal.SIGUSR1)
        assert command.wait(5) == -signal.SIGUSR1
        assert command.poll() == -signal.SIGUSR1


def test_a_signal_reaches_the_whole_group(testbed: Testbed) -> None:
    with testbed.start("p1/n1", ["sh", "-c", "sleep 4712 & echo up; wait"]) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == b"up\n"
        command.terminate()
        assert command.wait(5) == -signal.SIGTERM
    assert testbed.run("p1/n1", ["pgrep", "-f", "sleep 4712"]).code == 1


CLIENT = """
from testbed.live import Testbed
command = Testbed.attach("shared").start("p1/n1", ["sleep", "4713"])
print("up", flush=True)
command.wait()
"""


def test_a_command_ends_with_its_client(testbed: Testbed) -> None:
    with subprocess.Popen([sys.executable, "-c", CLIENT], cwd=ROOT, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "up\n"
        assert testbed.run("p1/n1", ["pgrep", "-f", "sleep 4713"]).code == 0
        client.kill()
    testbeds.wait_until(lambda: testbed.run("p1/n1", ["pgrep", "-f", "sleep 4713"]).code == 1, "the command has ended")


def test_many_commands_at_once(testbed: Testbed) -> None:
    commands = [["sh", "-c", f"exit {number}"] for number in range(20)]
    with ThreadPoolExecutor(20) as pool:
        done = pool.map(lambda command: testbed.run("p1/n1", command, timeout_s=20), commands)
        assert [one.code for one in done] == list(range(20))


@IN_NETNS
@pytest.mark.parametrize(
    ("node", "argv", "error", "sentence"),
    [
        ("p1/n9", ["true"], InputError, "'p1/n9' names no node of shared"),
        ("p1/*", ["true"], InputError, r"p1/\* names 3 nodes; give one, such as p1/n1"),
        ("p1/n1", [], InputError, "argv: expected a command of 1 to 4096 words"),
        ("p1/n1", [""], InputError, "expected a program as the first word"),
        ("p1/n1", ["a\0b"], InputError, "without null"),
        ("p1/n1", ["no-such-program"], FabricError, "p1/n1: cannot start no-such-program: No such file or directory"),
        ("p1/n1", ["/etc/passwd"], FabricError, "p1/n1: cannot start /etc/passwd: Permission denied"),
    ],
)
def test_a_command_that_cannot_be(
    testbed: Testbed, node: str, argv: list[str], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        testbed.run(node, argv)


# Changes.


def test_an_impairment_is_felt_recorded_and_taken_back(clear: Testbed) -> None:
    assert max(round_trips_ms(ping(clear, "p1/n1", "p1/n2"))) < 10
    (line,) = clear.impair("p1/n1", delay="30 ms", rate="10 Mbit/s")
    assert min(round_trips_ms(ping(clear, "p1/n1", "p1/n2"))) > 29.9
    assert line == faults(clear)[-1]
    assert line["asked"] == {"p1/n1": {"delay_ns": 30_000_000, "rate_bps": 10_000_000}}
    assert line["issued_ns"] <= line["effective_ns"]
    assert line["readback"]["p1/n1"]["netem"]["latency_ns"] == 30_000_000
    clear.restore("p1/n1")
    assert max(round_trips_ms(ping(clear, "p1/n1", "p1/n2"))) < 10


def test_links_are_impaired_cut_and_healed(clear: Testbed) -> None:
    clear.impair_link("p1--p2", direction="there", delay="40 ms")
    assert (clear.links()[0].there.delay_ns, clear.links()[0].back.delay_ns) == (40_000_000, 1_000_000)
    assert min(round_trips_ms(ping(clear, "p1/n1", "p2/n1"))) > 40.9
    clear.cut(links="p1--p2")
    assert clear.links()[0].is_cut
    assert received(ping(clear, "p1/n1", "p2/n1")) == 0
    clear.heal()
    assert received(ping(clear, "p1/n1", "p2/n1")) == 3


def test_cuts_separate_groups_and_ways(clear: Testbed) -> None:
    clear.cut("p1/n1", ["p1/n2", "p2/*"])
    assert received(ping(clear, "p1/n1", "p1/n2")) == 0
    assert received(ping(clear, "p1/n1", "p1/n3")) == 3
    assert status(clear, "p1/n1").cut_off_from == ("p1/n2", "p2/n1")
    clear.heal()
    clear.cut_one_way("p1/n1", "p1/n2")
    assert (status(clear, "p1/n2").cut_off_from, status(clear, "p1/n1").cut_off_from) == (("p1/n1",), ())
    clear.cut_one_way("p1/n3", "p1/n2")
    assert status(clear, "p1/n2").cut_off_from == ("p1/n1", "p1/n3")
    clear.heal()
    assert received(ping(clear, "p1/n1", "p1/n2")) == 3


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"targets": "p9/*", "loss": "1 %"}, r"'p9/\*' names no node of shared"),
        ({"targets": "p1/*", "loss": "101 %"}, "loss: expected a ratio between 0 % and 100 %"),
        ({"targets": "p1/*", "los": "1 %"}, "los: unknown key; did you mean loss?"),
        ({"targets": "p1/*"}, "nothing is changed; name what"),
        ({"targets": "p1/*", "jitter": "1 ms"}, "p1/n1 to-node: jitter must not exceed the delay"),
        ({"targets": "p1/*", "direction": "there", "loss": "1 %"}, "expected to-node, from-node or both, got there"),
        ({"targets": [], "loss": "1 %"}, "expected at least one node"),
    ],
)
def test_an_impairment_that_cannot_be_changes_nothing(clear: Testbed, words: dict[str, Any], sentence: str) -> None:
    before, lines = clear.nodes(), faults(clear)
    with pytest.raises(InputError, match=sentence):
        clear.impair(**words)
    assert (clear.nodes(), faults(clear)) == (before, lines)


def test_a_node_lives_through_crash_and_restart_with_its_wires(clear: Testbed) -> None:
    clear.crash("p1/n1")
    found = status(clear, "p1/n1")
    assert (found.state, found.exit_code, found.incarnation) == (NodeState.CRASHED, -signal.SIGKILL, 1)
    with pytest.raises(InputError, match="p1/n1 cannot crash: it must be running and is crashed since"):
        clear.crash("p1/n1")
    clear.restart("p1/n1")
    found = status(clear, "p1/n1")
    assert (found.state, found.exit_code, found.incarnation) == (NodeState.RUNNING, None, 2)
    assert received(ping(clear, "p1/n1", "p1/n2")) == 3


LISTENER = """
import socket
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("239.192.7.7", 9000))
udp.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton("239.192.7.7") + bytes(4))
udp.settimeout(5)
print("up", flush=True)
print(udp.recv(100).decode(), flush=True)
"""
SPEAKER = """
import socket
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.sendto(b"hello all", ("239.192.7.7", 9000))
"""


def wires(testbed: Testbed, node: str) -> str:
    """MAC, address, neighbours and routes of a node."""
    mac, address = "ip -o link show eth0 | grep -o 'ether [0-9a-f:]*'", "ip -4 -o addr show eth0 | cut -d' ' -f7"
    show = f"{mac}; {address}; ip neigh | sort; ip route"
    return testbed.run(node, ["sh", "-c", show]).text


def test_a_restarted_node_has_all_of_its_wires_again(clear: Testbed) -> None:
    before = wires(clear, "p1/n2")
    assert before.startswith("ether 02:0b:00:01:00:02\n10.1.0.2/16\n")
    clear.impair("p1/n2", delay="30 ms")
    clear.cut("p1/n2", "p1/n3")
    clear.start_capture()
    clear.crash("p1/n2")
    clear.restart("p1/n2")
    assert wires(clear, "p1/n2") == before
    assert min(round_trips_ms(ping(clear, "p1/n2", "p1/n1"))) > 29.9, "impairments"
    assert received(ping(clear, "p1/n3", "p1/n2")) == 0, "cuts"
    with clear.start("p1/n2", ["python3", "-c", LISTENER]) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == b"up\n"
        assert clear.run("p1/n1", ["python3", "-c", SPEAKER]).code == 0
        assert listener.stdout.readline() == b"hello all\n", "multicast"
    # Both ways at both ports of three pings, three that were cut, a datagram to all; and the IGMP reports.
    assert clear.stop_capture()["frames"] >= 12 + 3 + 2, "capture"


def test_nodes_know_each_other_by_name_also_after_a_restart(clear: Testbed) -> None:
    for name in ("n3.p1", "p1-n3", "n3"):
        said = clear.run("p1/n1", ["ping", "-c", "1", "-W", "2", name], timeout_s=20).text
        assert "(10.1.0.3)" in said
        assert received(said) == 1
    clear.crash("p1/n2")
    clear.restart("p1/n2")
    assert received(clear.run("p1/n2", ["ping", "-c", "1", "-W", "2", "n1.p2"], timeout_s=20).text) == 1


def test_names_of_nodes_are_theirs_alone_and_cannot_be_changed(clear: Testbed) -> None:
    before = Path("/etc/hosts").read_bytes()
    assert clear.run("p1/n1", ["cat", "/etc/hosts"]).text == (clear.directory / "hosts").read_text()
    assert clear.run("p1/n1", ["sh", "-c", "echo 10.1.0.9 n9 >> /etc/hosts"]).code != 0
    assert Path("/etc/hosts").read_bytes() == before


def test_a_command_ends_with_the_crash_of_its_node(clear: Testbed) -> None:
    with clear.start("p1/n2", ["sleep", "600"]) as command:
        clear.crash("p1/n2")
        assert command.wait(5) == -signal.SIGKILL
    clear.restart("p1/n2")


@IN_NETNS
def test_a_pause_freezes_and_a_resume_thaws(clear: Testbed) -> None:
    ticks = ["sh", "-c", "while :; do echo tick; sleep 0.02; done"]
    with clear.start("p1/n1", ticks) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == b"tick\n"
        clear.pause("p1/n1")
        with pytest.raises(InputError, match="p1/n1 cannot pause: it must be running and is paused since"):
            clear.pause(["p1/n1", "p1/n2"])
        assert status(clear, "p1/n2").state is NodeState.RUNNING
        assert clear.run("p1/n1", ["echo", "I run"]).text == "I run\n"
        clear.resume("p1/n1")
        with pytest.raises(InputError, match="p1/n1 cannot resume: it must be paused and is running since"):
            clear.resume("p1/n1")
        assert command.stdout.readline() == b"tick\n"


@IN_NETNS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGRTMIN + 1])  # the latter has no name in Python
def test_a_node_that_ends_by_itself_is_told_and_can_be_started_again(clear: Testbed, number: int) -> None:
    clear.run("p1/n3", ["pkill", f"-{int(number)}", "cat"])
    testbeds.wait_until(lambda: status(clear, "p1/n3").state is NodeState.ENDED, "the node has ended")
    assert status(clear, "p1/n3").exit_code == -number
    before = status(clear, "p1/n3").incarnation
    clear.restart("p1/n3")
    assert status(clear, "p1/n3").incarnation == before + 1
    assert received(ping(clear, "p1/n3", "p1/n1")) == 3


# Containers.


@IN_DOCKER
def test_a_crashed_or_paused_container_says_so(clear: Testbed) -> None:
    clear.crash("p1/n2")
    clear.pause("p1/n3")
    with pytest.raises(InputError, match="p1/n2 has crashed and its container with it: `orderbed restart p1/n2`"):
        clear.run("p1/n2", ["true"])
    with pytest.raises(InputError, match="p1/n3 is paused and runs nothing: resume it, then enter it"):
        clear.run("p1/n3", ["true"])
    clear.restart("p1/n2")
    clear.resume("p1/n3")
    assert [clear.run(name, ["true"]).code for name in ("p1/n2", "p1/n3")] == [0, 0]
    with pytest.raises(FabricError, match=r'p1/n1: cannot start no-such-program: .*"no-such-program": .* not found'):
        clear.run("p1/n1", ["no-such-program"])


@IN_DOCKER
@pytest.mark.parametrize("verb", ["kill", "restart"])
def test_a_container_that_somebody_else_ends_is_told_removed_and_comes_back_with_its_wires(
    clear: Testbed, verb: str
) -> None:
    with closing(connect()) as client:
        (found,) = (one["Id"] for one in client.api.containers() if re.search("shared.*p2-n1", one["Names"][0]))
        client.api.kill(found) if verb == "kill" else client.api.restart(found, timeout=0)
        testbeds.wait_until(lambda: status(clear, "p2/n1").state is NodeState.ENDED, "its end is noticed")
        sentence = "somebody else ended its container through Docker (kill, stop or restart"
        assert status(clear, "p2/n1").cause.startswith(sentence)
        assert found not in [one["Id"] for one in client.api.containers(all=True)]
    clear.restart("p2/n1")
    assert received(ping(clear, "p1/n1", "p2/n1", count=1)) == 1


@pytest.mark.docker
def test_a_killed_server_leaves_no_container(places: Path, tmp_path: Path) -> None:
    def left() -> list[str]:
        with closing(connect()) as client:
            found = client.api.containers(all=True, filters={"label": [f"{LABEL}=1"]})
        return [one["Names"][0] for one in found if "crates" in one["Names"][0]]

    with Testbed(testbeds.written("crates", tmp_path), world="docker", runs=tmp_path / "runs") as testbed:
        assert len(left()) == 4
        os.kill(testbed.description.server_pid, signal.SIGKILL)
        testbeds.wait_until(lambda: not left(), "the containers are removed")


# A shell on a user's terminal.

SHELL = """
import sys
from testbed.live import Testbed
sys.exit(Testbed.attach("shared").terminal("p1/n1", sys.argv[1:]))
"""
TIMEOUT_S = 20.0


class Screen:
    """A terminal with a shell in a node on it."""

    def __init__(self) -> None:
        self.outer, inner = pty.openpty()
        self.resize(24, 80)
        self.process = subprocess.Popen(
            [sys.executable, "-c", SHELL, "sh", "-c", "echo ready; exec sh"],
            cwd=ROOT, stdin=inner, stdout=inner, stderr=inner, start_new_session=True,
        )  # fmt: skip
        os.close(inner)
        self.read_until("ready")

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.outer, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.outer, text.encode())

    def read_until(self, wanted: str) -> str:
        return read_until(self.outer, wanted, TIMEOUT_S)


@pytest.fixture
def screen(testbed: Testbed) -> Iterator[Screen]:
    made = Screen()
    yield made
    made.process.kill()
    made.process.wait()
    os.close(made.outer)


def test_a_shell_is_in_the_node_and_has_a_terminal_whose_size_follows(screen: Screen) -> None:
    """Sizes and typed input use different channels. The patterns do not match their own echo."""
    screen.type("hostname; tty\n")
    assert "p1-n1" in screen.read_until("/dev/pts/")
    screen.type("until stty size | grep '24 8[0]'; do sleep 0.02; done\n")
    screen.read_until("24 80")
    screen.resize(50, 132)
    os.kill(screen.process.pid, signal.SIGWINCH)
    screen.type("until stty size | grep '50 13[2]'; do sleep 0.02; done\n")
    screen.read_until("50 132")


def test_ctrl_c_is_for_what_runs_in_it(testbed: Testbed, screen: Screen) -> None:
    screen.type("sleep 600; echo stopped $?\n")
    testbeds.wait_until(lambda: testbed.run("p1/n1", ["pgrep", "-x", "sleep"]).code == 0, "sleep runs in front")
    screen.type("\x03")
    screen.type("echo still $((40 + 2))\n")
    screen.read_until("still 42")


def test_its_exit_code_is_ours_and_the_terminal_is_as_before(screen: Screen) -> None:
    assert termios.tcgetattr(screen.outer)[3] & termios.ECHO == 0, "it is raw meanwhile"
    screen.type("exit 7\n")
    assert screen.process.wait(TIMEOUT_S) == 7
    assert termios.tcgetattr(screen.outer)[3] & termios.ECHO


def test_without_a_terminal_streams_pass_through(testbed: Testbed) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHELL, "sh", "-c", "cat; echo err >&2; exit 3"],
        cwd=ROOT, input="in\n", capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (3, "in\n", "err\n")


# Capture.


def test_captures_start_and_stop_as_often_as_one_likes(clear: Testbed, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no capture runs; start one first"):
        clear.stop_capture()
    assert clear.capturing() is None
    first = clear.start_capture()
    runs = clear.capturing()
    assert runs is not None
    assert (runs.path, runs.failure) == (first, None)
    assert abs(datetime.now(UTC) - runs.since) < timedelta(seconds=30)
    with pytest.raises(InputError, match=r"a capture runs already, into .*capture-\d\.pcapng; stop it first"):
        clear.start_capture()
    ping(clear, "p1/n1", "p1/n2")
    counts = clear.stop_capture()
    assert first.match("up/shared-*/capture-*.pcapng")
    assert (counts["frames"], counts["kernel_dropped_frames"], counts["complete"]) == (12, 0, True)
    assert clear.capturing() is None
    assert clear.start_capture(tmp_path / "mine.pcapng") == tmp_path / "mine.pcapng"
    ping(clear, "p1/n1", "p1/n3", count=1)
    assert clear.stop_capture()["frames"] == 4
    with pytest.raises(InputError, match="this file exists and is not written over"):
        clear.start_capture(tmp_path / "mine.pcapng")
    with pytest.raises(InputError, match="does not exist; make it first"):
        clear.start_capture(tmp_path / "nowhere" / "mine.pcapng")


@pytest.mark.tshark
def test_others_read_a_capture(clear: Testbed) -> None:
    path = clear.start_capture()
    ping(clear, "p1/n1", "p1/n2", count=5)
    clear.stop_capture()
    command = ["tshark", "-r", str(path), "-T", "fields", "-e", "ip.src", "-e", "frame.interface_name"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(lines) == 20
    assert set(lines) == {f"10.1.0.{source}\tp1/n{port}" for source in (1, 2) for port in (1, 2)}


# Record.


def test_the_record_is_a_runs(testbed: Testbed, world: str) -> None:
    manifest = json.loads((testbed.directory / "manifest.json").read_text())
    assert (manifest["kind"], manifest["status"], manifest["world"]) == ("up", "interrupted", world)
    assert (testbed.directory / "topology.yaml").read_text().startswith("\nname: shared")
    assert testbed.directory.parent.name == "up"


def test_a_large_output_is_collected_without_copying_it_again_and_again(testbed: Testbed) -> None:
    before_s = time.process_time()
    assert len(testbed.run("p1/n1", ["head", "-c", "64M", "/dev/zero"]).stdout) == 64 << 20
    assert time.process_time() - before_s < 1


def test_what_a_node_says_is_in_its_log(places: Path, tmp_path: Path) -> None:
    talk = Program(argv=("sh", "-c", "echo out; echo err >&2; exec cat"))
    with Testbed(testbeds.written("talk", tmp_path), world="netns", program=talk, runs=tmp_path) as testbed:
        testbeds.wait_until(lambda: len(testbed.logs("p1/n1").splitlines()) == 2, "both lines are in the log")
        assert sorted(testbed.logs("p1/n1").split()) == ["err", "out"]
        testbed.crash("p1/*")
        testbed.impair("p1/n1", loss="1 %")
        testbed.restore("p1/n1")
        testbed.start_capture()
        assert os.path.commonpath([testbed.directory, tmp_path]) == str(tmp_path)
    manifest = json.loads((testbed.directory / "manifest.json").read_text())
    assert manifest["status"] == "complete"
    assert [one["complete"] for one in manifest["captures"]] == [True], "a capture that stands at down is closed whole"
    assert [one["state"] for one in manifest["nodes"]] == ["crashed"] * 3 + ["running"]
    assert [one["until_id"] for one in faults(testbed)] == [None, 2, None, None]
