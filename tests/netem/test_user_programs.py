"""Foreign programs in a node of either runtime: their directories, their init, their signals, their limits."""

from __future__ import annotations

import errno
import queue
import signal
from pathlib import Path

import pytest

from netem.errors import FabricError
from netem.network import EmulatedNetwork
from netem.runtimes.base import Program
from netem.runtimes.cgroups import PREFIX, Limits, find_mount
from netem.runtimes.netns import NetnsRuntime
from tests.netem.carriers import Carrier, Incarnation
from tests.netem.wired import topology
from tests.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.uml]

NODE = topology(2).node("p1/n1")


IN_NETNS = pytest.mark.parametrize("world", ["netns"], indirect=True)
"""In a container Docker itself does this."""


class Running(Incarnation):
    """A shell script in a node, with directories of its own."""

    def __init__(
        self, runtime: Carrier, tmp_path: Path, script: str, *, private: tuple[str, ...] = (),
        limits: Limits | None = None,
    ) -> None:  # fmt: skip
        name = NODE.name.replace("/", ".")
        self.work = tmp_path / name
        places = {place: tmp_path / f"{name}.private" / place.strip("/") for place in private}
        for directory in (self.work, *places.values()):
            directory.mkdir(parents=True, exist_ok=True)
        program = Program(argv=("bash", "-c", script), work=self.work, private=places, limits=limits)
        super().__init__(runtime, NODE, program, tmp_path / f"{name}.log")


def test_its_directory_is_where_it_stands_and_outlives_it(runtime: Carrier, tmp_path: Path) -> None:
    node = Running(runtime, tmp_path, "pwd; hostname; echo $HOME; echo kept > state; exit 255")
    assert [node.line() for _ in range(3)] == [str(node.work), "p1-n1", str(node.work)]
    assert node.end() == 255, "its own exit code comes through its init, also if it is no signal's"
    assert (node.work / "state").read_text() == "kept\n"


def test_private_directories_may_hide_the_one_of_the_working_directory(runtime: Carrier, tmp_path: Path) -> None:
    hiding = "/" + tmp_path.parts[1]
    script = (
        f"echo mine > {hiding}/mine; ls -d {hiding}/m* {tmp_path}; echo > /dev/shm/word; ls -A /dev/shm; pwd; : > here"
    )
    node = Running(runtime, tmp_path, script, private=(hiding,))
    said = [node.line() for _ in range(4)]
    assert node.end() == 0
    assert said == [f"{hiding}/mine", str(tmp_path), "word", str(node.work)]
    assert (node.work / "here").exists()
    assert not Path(hiding, "mine").exists()
    assert (tmp_path / "p1.n1.private" / hiding.strip("/") / "mine").read_text() == "mine\n"


def test_it_is_not_process_one_so_that_signals_end_it_and_orphans_are_collected(
    runtime: Carrier, tmp_path: Path
) -> None:
    orphan = "(sleep 0.05 & ) ; echo $$; exec sleep 60"
    node = Running(runtime, tmp_path, orphan)
    assert int(node.line()) > 1
    assert node.handle.pid() > 1
    assert Path(f"/proc/{node.handle.pid()}/net/tcp").exists()
    node.handle.signal(signal.SIGTERM)
    assert node.end() == -signal.SIGTERM
    assert node.handle.pid() == 0


@IN_NETNS
def test_one_whose_output_cannot_be_kept_ends_and_says_why(runtime: Carrier, tmp_path: Path) -> None:
    def full(_line: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    program = Program(argv=("bash", "-c", "trap '' PIPE; echo out; exec sleep 60"), work=tmp_path)
    handle = runtime.start(NODE, program, on_line=full, log_path=tmp_path / "log")
    wait_until(lambda: handle.poll() is not None, "its end")
    assert (handle.poll(), handle.cause()) == (-signal.SIGKILL, "its output cannot be kept (No space left on device)")


def test_pause_stops_all_of_it_and_resume_lets_it_go_on(runtime: Carrier, tmp_path: Path) -> None:
    node = Running(runtime, tmp_path, "trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.01; done")
    assert node.line() == "up"
    node.handle.pause()
    node.handle.signal(signal.SIGTERM)
    with pytest.raises(queue.Empty):
        node.lines.get(timeout=0.1)
    node.handle.resume()
    assert node.line() == "asked"
    assert node.end() == 0


@IN_NETNS
@pytest.mark.parametrize(
    ("argv", "place", "sentence"),
    [
        ("no-such-program", "/tmp", "cannot start no-such-program: No such file or directory"),
        ("true", "/usr/no/such", "a directory of its own at /usr/no/such: Read-only file system"),
    ],
)
def test_what_cannot_be_started_is_a_sentence(
    runtime: Carrier, tmp_path: Path, argv: str, place: str, sentence: str
) -> None:
    """In a container its shell reports it, and private directories are made."""
    program = Program(argv=(argv,), work=tmp_path, private={place: tmp_path})
    with pytest.raises(FabricError, match=sentence):
        runtime.start(NODE, program, on_line=lambda _line: None, log_path=tmp_path / "log")
    assert not Path("/usr/no").exists()


ANY_PORT = "import socket; socket.create_server((str(), 80)); print(80)"


@IN_NETNS
def test_without_rights_it_may_ping_and_listen_at_any_port(runtime: Carrier, tmp_path: Path) -> None:
    node = Running(runtime, tmp_path, f"ping -c 1 {NODE.ip} > /dev/null && id -u; exec python3 -c '{ANY_PORT}'")
    assert [node.line(), node.line()] == ["65534", "80"]
    assert node.end() == 0


FORKS = """
import os, time
count = 0
try:
    while count < 100:
        if os.fork() == 0:
            time.sleep(30)
        count += 1
except BlockingIOError:
    print(count, flush=True)
"""


@pytest.mark.cgroups
def test_it_has_no_more_processes_than_it_may(runtime: Carrier, tmp_path: Path) -> None:
    node = Running(runtime, tmp_path, f"exec python3 -c '{FORKS}'", limits=Limits(processes=12))
    assert 5 < int(node.line()) < 12
    node.end()


@pytest.mark.cgroups
@IN_NETNS
def test_its_limits_hold_from_its_first_instruction(network: EmulatedNetwork, tmp_path: Path) -> None:
    limits = Limits(memory_bytes=32 << 20, processes=16, cpu_ratio=0.5)
    script = "cat /proc/self/cgroup; python3 -c 'chr(120) * (1 << 28)'; echo $?"
    with NetnsRuntime(network) as runtime:
        node = Running(runtime, tmp_path, script, limits=limits)
        said = [node.line()]
        while not said[-1].isdigit():
            said.append(node.line())
        assert node.end() == 0
    groups = [line for line in said if "orderbed-" in line]
    assert said[-1] == "137", "what takes more memory than it may is killed"
    assert len(groups) == (1 if any(line.startswith("0::") for line in groups) else 3)
    names = {line.rpartition("/")[2] for line in groups}
    assert not [path for path in Path("/sys/fs/cgroup").glob("**/orderbed-*") if path.name in names]


@pytest.mark.cgroups
@IN_NETNS
def test_it_cannot_leave_its_limits_nor_write_what_is_the_kernels(network: EmulatedNetwork, tmp_path: Path) -> None:
    mount = find_mount("pids")
    assert mount is not None
    script = f"""
        group={mount.root}$(grep -E "^0::|:pids:" /proc/self/cgroup | sort -n | tail -1 | cut -d: -f3)
        for file in {mount.root}/cgroup.procs $group/pids.max /proc/sys/kernel/core_pattern \
                    /proc/sys/net/ipv4/tcp_keepalive_time; do
            ( : >> $file ) 2> /dev/null && echo can write $file
        done
        mkdir $group/below 2> /dev/null && echo made a group
        grep -c {PREFIX} /proc/self/cgroup
    """
    # A runtime of its own: a group is named after its process and node, so runtimes of one process would share it.
    with NetnsRuntime(network) as runtime:
        node = Running(runtime, tmp_path, script, limits=Limits(processes=20))
        assert int(node.line()) >= 1, "it is in its group still"
        assert node.end() == 0
