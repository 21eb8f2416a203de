"""Real containers, as far as they differ from the nodes of both worlds (test_runtimes): start, freeze and end by a
daemon, and that nothing is left when any process is killed.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import docker
import pytest

from netem.errors import FabricError
from netem.runtimes.base import Program
from netem.runtimes.container import freezer_file, is_frozen
from netem.runtimes.daemon import LABEL, RUN_LABEL, remove_abandoned, remove_containers, require_rights
from netem.runtimes.docker import DockerRuntime
from netem.runtimes.image import ensure_image
from tests.netem.carriers import BOUND_S, Incarnation
from tests.netem.wired import topology
from tests.testbed.orderbed_command import alive
from tests.waiting import wait_until
from topologies.model import Node

pytestmark = [pytest.mark.root, pytest.mark.docker]

ROOT = Path(__file__).parents[2]
NODE = topology(1).node("p1/n1")
ECHO = "import sys\nfor line in sys.stdin: print('got', line, end='', flush=True)"
SLEEP = "import time\nwhile True: time.sleep(3600)"


class NoWires:
    """A network that attaches nothing."""

    def attach(self, node: Node, netns_fd: int) -> None:
        pass


class BrokenBed:
    """A network that fails half-way through a start."""

    def attach(self, node: Node, netns_fd: int) -> None:
        raise FabricError(f"no wire for {node.name}: the drum is empty")


@pytest.fixture(scope="module")
def image(client: docker.DockerClient) -> str:
    return ensure_image(client)


@pytest.fixture
def run_id(request: pytest.FixtureRequest) -> str:
    return f"test/{request.node.name}-{os.getpid()}"


@pytest.fixture
def runtime(image: str, run_id: str) -> Iterator[DockerRuntime]:
    with DockerRuntime(NoWires(), run_id=run_id, image=image) as runtime:
        yield runtime


def start(runtime: DockerRuntime, log: Path, code: str) -> Incarnation:
    """A node that runs a piece of Python."""
    return Incarnation(runtime, NODE, Program(argv=["python3", "-c", code]), log)


def containers(client: docker.DockerClient, run_id: str) -> list[str]:
    found = client.api.containers(all=True, filters={"label": [f"{LABEL}=1", f"{RUN_LABEL}={run_id}"]})
    return [container["Id"] for container in found]


def test_kill_returns_when_container_and_namespace_are_gone(
    runtime: DockerRuntime, client: docker.DockerClient, run_id: str, tmp_path: Path
) -> None:
    node = start(runtime, tmp_path / "log", SLEEP)
    pid = node.handle.pid()
    node.handle.kill()
    assert containers(client, run_id) == []
    assert not Path(f"/proc/{pid}").exists()
    assert node.handle.poll() == -signal.SIGKILL
    node.handle.kill()


def test_pause_returns_frozen_and_resume_running(runtime: DockerRuntime, tmp_path: Path) -> None:
    node = start(runtime, tmp_path / "log", ECHO)
    state = freezer_file(node.handle.pid())
    node.handle.pause()
    assert is_frozen(state)
    node.handle.send("kept")
    node.handle.resume()
    assert not is_frozen(state)
    assert node.line() == "got kept"


def test_a_log_that_cannot_be_written_is_told_and_not_lost_in_a_thread(runtime: DockerRuntime) -> None:
    node = start(runtime, Path("/dev/full"), "import sys; print('oh', file=sys.stderr, flush=True); sys.stdin.read()")
    with pytest.raises(FabricError, match=r"lost track of p1/n1: .*No space left"):
        node.end()


def test_a_start_that_fails_half_way_leaves_no_container(
    image: str, run_id: str, tmp_path: Path, client: docker.DockerClient
) -> None:
    with DockerRuntime(BrokenBed(), run_id=run_id, image=image) as runtime:
        with pytest.raises(FabricError, match="the drum is empty"):
            start(runtime, tmp_path / "log", ECHO)
        assert containers(client, run_id) == []
        with pytest.raises(FabricError, match=r"would not start p1/n1: .*no-such-folder"):
            start(runtime, tmp_path / "no-such-folder" / "log", ECHO)
        assert containers(client, run_id) == []


def test_an_image_that_is_not_there_is_a_sentence(run_id: str) -> None:
    with pytest.raises(FabricError, match="there is no image orderbed/none:such here, and it cannot be pulled"):
        DockerRuntime(NoWires(), run_id=run_id, image="orderbed/none:such")


def test_down_removes_exactly_what_carries_the_label(
    runtime: DockerRuntime, image: str, run_id: str, tmp_path: Path, client: docker.DockerClient
) -> None:
    foreign = client.api.create_container(image, command=["true"], name=f"orderbed-foreign-{os.getpid()}")["Id"]
    try:
        with DockerRuntime(NoWires(), run_id=run_id + "-other", image=image) as other:
            start(runtime, tmp_path / "log", SLEEP)
            theirs = start(other, tmp_path / "log", SLEEP)
            assert len(remove_containers(run_id, client=client)) == 1
            assert containers(client, run_id) == []
            assert theirs.handle.poll() is None
        assert containers(client, run_id + "-other") == []
        assert client.api.inspect_container(foreign)["State"]["Status"] == "created"
    finally:
        client.api.remove_container(foreign)


Begin = Callable[[str], tuple[subprocess.Popen[str], int]]

CONDUCTOR = """
import time
from pathlib import Path
from netem.runtimes.docker import DockerRuntime
from tests.netem.test_docker import NoWires, start
runtime = DockerRuntime(NoWires(), run_id={run_id!r}, image={image!r})
nodes = [start(runtime, Path({log!r}), {code!r}) for _ in range(3)]
nodes[0].handle.pause()
print("guard", runtime._guard.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def conductor(image: str, run_id: str, tmp_path: Path) -> Iterator[Begin]:
    """Starts a conductor of its own with three nodes, one of them frozen; returns it and the pid of its guard."""
    started: list[subprocess.Popen[str]] = []

    def begin(code: str) -> tuple[subprocess.Popen[str], int]:
        script = CONDUCTOR.format(run_id=run_id, image=image, code=code, log=str(tmp_path / "log"))
        process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        return process, int(process.stdout.readline().split()[1])

    yield begin
    for process in started:
        with process:
            process.kill()
    remove_containers(run_id)


def test_sigkill_of_the_conductor_leaves_no_container(
    conductor: Begin, run_id: str, client: docker.DockerClient
) -> None:
    process, guard = conductor(SLEEP)
    assert len(containers(client, run_id)) == 3
    process.kill()
    process.wait()
    wait_until(lambda: containers(client, run_id) == [], "the removal of all containers", BOUND_S)
    wait_until(lambda: not alive(guard), "the end of the guard", BOUND_S)


def test_sigkill_of_everything_leaves_only_what_the_next_start_removes(
    conductor: Begin, run_id: str, client: docker.DockerClient
) -> None:
    process, guard = conductor(ECHO)
    os.kill(guard, signal.SIGKILL)
    process.kill()
    process.wait()
    # Two have read the end of their input; one is frozen.
    wait_until(lambda: len(containers(client, run_id)) == 1, "the end of two", BOUND_S)
    wait_until(lambda: len(remove_abandoned(client)) == 1, "an abandoned container", BOUND_S)
    assert containers(client, run_id) == []


def test_a_rootless_daemon_is_refused() -> None:
    told = SimpleNamespace(info=lambda: {"SecurityOptions": ["name=seccomp,profile=default", "name=rootless"]})
    with pytest.raises(FabricError, match="this Docker daemon is rootless and cannot carry nodes: point DOCKER_HOST"):
        require_rights(told)  # type: ignore[arg-type]  # only that question is asked


class Relay:
    """A relay to the daemon; when it is broken off, the daemon is gone for its clients."""

    def __init__(self, path: Path) -> None:
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(path))
        self._door.listen(64)
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def break_off(self) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._door.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect("/var/run/docker.sock")
                self._ends += [near, far]
                threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    @staticmethod
    def _carry(near: socket.socket, far: socket.socket) -> None:
        others = {near: far, far: near}
        with suppress(OSError), near, far:
            while True:
                for one in select.select(list(others), [], [])[0]:
                    piece = one.recv(65536)
                    if not piece:
                        return
                    others[one].sendall(piece)


def test_a_daemon_that_goes_in_mid_run_is_told_and_nothing_runs_on(
    client: docker.DockerClient, image: str, run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = Relay(tmp_path / "docker.sock")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    with DockerRuntime(NoWires(), run_id=run_id, image=image) as runtime:
        node = start(runtime, tmp_path / "log", "print('up', flush=True)\n" + SLEEP)
        assert node.line() == "up"
        pid = node.handle.pid()
        relay.break_off()
        with pytest.raises(FabricError, match="the Docker daemon has gone in mid-run, and the nodes with it"):
            node.end()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the end of the process", BOUND_S)
    assert node.handle.pid() == 0
    monkeypatch.delenv("DOCKER_HOST")
    remove_abandoned(client)
