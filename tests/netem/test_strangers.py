"""A hostile program: in either world it gets nothing of the machine, and the machine is unchanged."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import pwd
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from netem.runtimes.base import Program
from netem.runtimes.docker import DockerRuntime
from tests.netem import hostile
from tests.netem.carriers import Carrier, Incarnation
from tests.netem.wired import topology
from topologies.model import Node

pytestmark = [pytest.mark.root, pytest.mark.uml]

VICTIM, HOSTILE = topology(2).node("p1/n1"), topology(2).node("p1/n2")
LET_BY_DOCKER = {"the hypervisor", "the kernel's ciphers", "sockets unseen"}
"""A daemon's own filter decides; that of Debian 12 lets all three by."""
GUARDED = ("/etc/cron.d", "/etc/passwd", "/etc/shadow", "/etc/ld.so.preload", "/usr/bin", "/root", "/var/spool/cron")


@pytest.fixture
def sockets() -> Iterator[list[str]]:
    """Sockets of the machine that every user may connect to, in the folders where Docker and testbeds have theirs."""
    with ExitStack() as stack:
        paths = []
        for folder in ("/run", "/tmp"):
            path = Path(folder, f"orderbed-test-{os.getpid()}.sock")
            one = stack.enter_context(socket.socket(socket.AF_UNIX))
            one.bind(str(path))
            stack.callback(path.unlink)
            path.chmod(0o777)
            one.listen()
            paths.append(str(path))
        yield paths


def test_a_hostile_program_gets_nothing_of_the_machine(runtime: Carrier, sockets: list[str], tmp_path: Path) -> None:
    victim = started(runtime, tmp_path, VICTIM, "import time; print('up', flush=True); time.sleep(60)")
    assert victim.line() == "up"
    (work_of(tmp_path, VICTIM) / "diary").write_text("mine", encoding="utf-8")
    secret = tmp_path / "secret"
    secret.write_text("of the machine", encoding="utf-8")
    secret.chmod(0o644)
    before = fingerprint(tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        asked = {
            "sockets": [*sockets, "/run/docker.sock", "/var/run/docker.sock"],
            "write": [*GUARDED, str(tmp_path), str(work_of(tmp_path, VICTIM)), str(Path(__file__).parent)],
            "read": [
                "/etc/shadow",
                str(secret),
                str(work_of(tmp_path, VICTIM) / "diary"),
                str(Path(pwd.getpwuid(0).pw_dir) / ".bashrc"),
            ],
            "kill": [bystander.pid, victim.handle.pid(), os.getpid()],
        }
        attacker = started(runtime, tmp_path, HOSTILE, f"{inspect.getsource(hostile)}\nmain({asked!r})")
        said = json.loads(attacker.line())
        assert attacker.end() == 0
        assert bystander.poll() is None
    open_by_limits = LET_BY_DOCKER if isinstance(runtime, DockerRuntime) else set()
    assert set(said["got"]) <= open_by_limits
    assert len(said["refused"]) > 20, "it has tried"
    assert said["own"] == "written"
    assert victim.handle.poll() is None
    assert fingerprint(tmp_path) == before
    victim.handle.kill()


def started(runtime: Carrier, tmp_path: Path, node: Node, code: str) -> Incarnation:
    """A program in Python with a directory of its own."""
    work = work_of(tmp_path, node)
    work.mkdir()
    return Incarnation(runtime, node, Program(argv=("python3", "-c", code), work=work), tmp_path / f"{work.name}.log")


def work_of(tmp_path: Path, node: Node) -> Path:
    return tmp_path / node.name.replace("/", ".")


def fingerprint(tmp_path: Path) -> str:
    """Digest of possible targets of a hostile program: names, modes, owners, sizes and times."""
    found = hashlib.sha256()
    for root in (*GUARDED, str(work_of(tmp_path, VICTIM)), str(tmp_path / "secret")):
        path = Path(root)
        for one in sorted([path, *path.glob("*")] if path.is_dir() else [path]):
            status = one.lstat() if os.path.lexists(one) else None
            found.update(repr((str(one), status and (*status[:6], status.st_size, status.st_mtime_ns))).encode())
    return found.hexdigest()
