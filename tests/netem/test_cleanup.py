"""After SIGKILL of any process nothing is left: no process, no namespace, no device, no mount, no file."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.netem import holder

pytestmark = [pytest.mark.root, pytest.mark.uml]

ROOT = Path(__file__).parents[2]
GONE_WITHIN_S = 2.0


@dataclass(frozen=True)
class Surroundings:
    """Devices, mounts, namespaces and shared memory in the machine's own namespaces."""

    devices: tuple[str, ...]
    mounts: str
    named_namespaces: tuple[str, ...]
    shared_memory: tuple[str, ...]

    @classmethod
    def now(cls) -> Surroundings:
        named = Path("/run/netns")
        return cls(
            devices=tuple(sorted(name for _index, name in socket.if_nameindex())),
            mounts=Path("/proc/self/mounts").read_text(),
            named_namespaces=tuple(sorted(path.name for path in named.iterdir())) if named.is_dir() else (),
            shared_memory=tuple(sorted(path.name for path in Path("/dev/shm").iterdir())),
        )


class Conductor:
    """A process with a network, and all of its descendants, each known by number and start time."""

    def __init__(self, directory: Path) -> None:
        command = [sys.executable, str(Path(holder.__file__)), str(ROOT), str(directory)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        self.family = self._family()

    def _family(self) -> dict[int, str]:
        parents = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (fields := _stat(int(entry.name))):
                parents[int(entry.name)] = int(fields[1])
        found, waiting = {}, [self.process.pid]
        while waiting:
            pid = waiting.pop()
            found[pid] = _started(pid)
            waiting += [child for child, parent in parents.items() if parent == pid]
        return found

    def pid(self, part: str) -> int:
        """The first descendant whose command line contains `part`: parents come before their children."""
        return next(pid for pid in self.family if part in _command(pid))

    def alive(self) -> set[int]:
        """Processes of the family that still run (a zombie that waits for its parent does not)."""
        return {
            pid
            for pid, started in self.family.items()
            if started and _started(pid) == started and (_stat(pid) or ["Z"])[0] not in "ZX"
        }

    def await_gone(self, *, but: set[int] = frozenset()) -> float:  # type: ignore[assignment]
        """Seconds until only `but` is left."""
        began = time.monotonic()
        while self.alive() - but:
            assert time.monotonic() - began < GONE_WITHIN_S, {pid: _command(pid) for pid in self.alive()}
            time.sleep(0.01)
        return time.monotonic() - began

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state letter on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _started(pid: int) -> str:
    fields = _stat(pid)
    return fields[19] if fields else ""


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.fixture
def conductor(tmp_path: Path) -> Iterator[Conductor]:
    made = Conductor(tmp_path)
    yield made
    made.end()
    made.await_gone()


def test_nothing_of_a_living_bed_shows_outside_of_it(conductor: Conductor) -> None:
    outside = Surroundings.now()
    assert not [name for name in outside.devices if name.startswith(("ob", "br", "wire", "t0", "leg"))]
    assert (
        len({Path(f"/proc/{pid}/ns/net").stat().st_ino for pid in conductor.alive()}) >= 5
    )  # the machine's, the fabric's, three nodes'
    assert len(conductor.family) >= 6


@pytest.mark.parametrize(
    "victim",
    [
        pytest.param("holder.py", id="the conductor"),
        pytest.param("netem.kernel.supervisor", id="the supervisor's outer process"),
    ],
)
def test_sigkill_leaves_nothing(tmp_path: Path, victim: str) -> None:
    before = Surroundings.now()
    conductor = Conductor(tmp_path)
    killed = conductor.pid(victim)
    os.kill(killed, signal.SIGKILL)
    survivors = set() if victim == "holder.py" else {conductor.process.pid}
    conductor.await_gone(but=survivors)
    conductor.end()
    assert Surroundings.now() == before


def test_sigkill_of_init_in_the_bed_leaves_nothing(tmp_path: Path) -> None:
    before = Surroundings.now()
    conductor = Conductor(tmp_path)
    inner = max(pid for pid in conductor.family if "netem.kernel.supervisor" in _command(pid))
    os.kill(inner, signal.SIGKILL)
    conductor.await_gone(but={conductor.process.pid})
    conductor.end()
    assert Surroundings.now() == before


def test_sigkill_of_the_guest_leaves_the_bed_to_be_closed(conductor: Conductor) -> None:
    guests = {pid for pid in conductor.family if "linux.uml" in _command(pid)}
    os.kill(min(guests), signal.SIGKILL)
    conductor.await_gone(but=set(conductor.family) - guests)
    conductor.end()
    conductor.await_gone()


def test_ctrl_c_does_not_reach_the_bed(conductor: Conductor) -> None:
    """A terminal's Ctrl-C reaches a whole process group; the network must survive it to be closed in order."""
    group = os.getpgid(conductor.process.pid)
    inside = {
        pid for pid in conductor.family if "netem.kernel.supervisor" in _command(pid) or "linux.uml" in _command(pid)
    }
    assert len(inside) >= 3
    assert group not in {os.getpgid(pid) for pid in inside}


def test_an_orderly_end_leaves_nothing(tmp_path: Path) -> None:
    before = Surroundings.now()
    conductor = Conductor(tmp_path)
    conductor.process.send_signal(signal.SIGINT)
    assert conductor.process.wait(3) != 0
    conductor.await_gone()
    conductor.end()
    assert Surroundings.now() == before
