"""After SIGKILL of any process nothing is left: no process, no namespace, no device, no mount, no file."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from tests.netem import holder
from tests.testbed.orderbed_command import command_line, descendants
from tests.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.uml]

ROOT = Path(__file__).parents[2]
GONE_WITHIN_S = 2.0


def surroundings() -> tuple[object, ...]:
    """Devices, mounts and named namespaces of the machine's own namespaces."""
    named = Path("/run/netns")
    return (
        sorted(name for _index, name in socket.if_nameindex()),
        Path("/proc/self/mounts").read_text(),
        sorted(path.name for path in named.iterdir()) if named.is_dir() else [],
    )


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


class Conductor:
    """A process with a network, and all of its descendants, each known by number and start time."""

    def __init__(self, directory: Path) -> None:
        command = [sys.executable, str(Path(holder.__file__)), str(ROOT), str(directory)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        self.family = {pid: started for pid in descendants(self.process.pid) if (started := _started(pid))}

    def pids(self, part: str) -> list[int]:
        """Members whose command lines contain `part`, parents before children: numbers of processes start over."""
        return [pid for pid in self.family if part in command_line(pid)]

    def alive(self) -> set[int]:
        """Processes of the family that still run."""
        return {pid for pid, started in self.family.items() if _started(pid) == started}

    def await_gone(self, *, but: Collection[int] = ()) -> None:
        """Wait until only `but` is left."""
        wait_until(lambda: not self.alive() - set(but), "the end of the others", GONE_WITHIN_S)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def _started(pid: int) -> str:
    """Start time of a process; empty if it has ended, also while it waits for its parent as a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] in "ZX" else fields[19]


@pytest.fixture
def conductor(tmp_path: Path) -> Iterator[Conductor]:
    """After its end the machine is as before."""
    before, files = surroundings(), shared_memory()
    made = Conductor(tmp_path)
    yield made
    made.end()
    made.await_gone()
    assert surroundings() == before
    files = shared_memory() - files
    wait_until(lambda: files.isdisjoint(shared_memory()), "the end of all files, also those of tests beside", 120.0)


def test_nothing_of_a_living_bed_shows_outside_of_it_nor_gets_a_terminals_ctrl_c(conductor: Conductor) -> None:
    """A terminal's Ctrl-C reaches a whole process group; the network must survive it to be closed in order."""
    devices = [name for _index, name in socket.if_nameindex()]
    assert not [name for name in devices if name.startswith(("ob", "br", "wire", "t0", "leg"))]
    namespaces = {Path(f"/proc/{pid}/ns/net").stat().st_ino for pid in conductor.alive()}
    assert len(namespaces) >= 5, "the machine's, the fabric's, three nodes'"
    assert len(conductor.family) >= 6
    inside = {*conductor.pids("netem.kernel.supervisor"), *conductor.pids("linux.uml")}
    assert len(inside) >= 3
    assert os.getpgid(conductor.process.pid) not in {os.getpgid(pid) for pid in inside}


@pytest.mark.parametrize(
    ("part", "place"),
    [
        pytest.param("holder.py", 0, id="the conductor"),
        pytest.param("netem.kernel.supervisor", 0, id="the supervisor's outer process"),
        pytest.param("netem.kernel.supervisor", -1, id="init in the bed"),
    ],
)
def test_sigkill_leaves_nothing(conductor: Conductor, part: str, place: int) -> None:
    os.kill(conductor.pids(part)[place], signal.SIGKILL)
    conductor.await_gone(but=() if part == "holder.py" else {conductor.process.pid})


def test_sigkill_of_the_guest_leaves_the_bed_to_be_closed(conductor: Conductor) -> None:
    guests = conductor.pids("linux.uml")
    os.kill(guests[0], signal.SIGKILL)
    conductor.await_gone(but=set(conductor.family) - set(guests))


def test_an_orderly_end_leaves_nothing(conductor: Conductor) -> None:
    conductor.process.send_signal(signal.SIGINT)
    assert conductor.process.wait(3) != 0
    conductor.await_gone()
