"""Images named by a user are checked before a run; a daemon that cannot carry nodes, or ends, is reported."""

from __future__ import annotations

import io
import os
import queue
import select
import signal
import socket
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker
import pytest

from netem.errors import FabricError
from netem.owner import Owner
from netem.runtimes.base import Program
from netem.runtimes.daemon import OWNER_LABEL, connect, remove_abandoned, require_rights
from netem.runtimes.docker import DockerRuntime
from netem.runtimes.image import ensure_image, require_python, require_shell
from tests.netem.carriers import BOUND_S
from tests.netem.test_docker import NODE, SLEEP, OneWire
from tests.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.docker]


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    with closing(connect()) as client:
        yield client


@pytest.fixture
def made(client: docker.DockerClient) -> Iterator[Any]:
    """Makes images from the project's own by one command each, and removes them."""
    names: list[str] = []

    def make(command: str) -> str:
        name = f"orderbed-test/image:{os.getpid()}-{len(names)}"
        text = f"FROM {ensure_image(client)}\nRUN {command}\n"
        client.images.build(fileobj=io.BytesIO(text.encode()), tag=name, network_mode="none", rm=True, forcerm=True)
        names.append(name)
        return name

    yield make
    for name in names:
        client.images.remove(name)


def test_an_image_with_all_that_a_node_needs(client: docker.DockerClient) -> None:
    require_python(client, ensure_image(client))
    mine: dict[str, Any] = {"label": f"{OWNER_LABEL}={Owner.this_process()}"}
    assert client.containers.list(all=True, filters=mine) == [], "what looked into it is gone"


def test_an_image_without_python_or_with_an_old_one(client: docker.DockerClient, made: Any) -> None:
    bare = made("rm /usr/bin/python3")
    require_shell(client, bare)
    with pytest.raises(FabricError, match=f"the image {bare} has no python3, and our nodes need at least 3.11"):
        require_python(client, bare)
    old = made("printf '#!/bin/sh\\necho 3.9; exit 42\\n' > /usr/bin/python3.11")
    with pytest.raises(FabricError, match=r"has python3 3\.9, and our nodes need at least 3\.11"):
        require_python(client, old)


def test_an_image_without_a_shell(client: docker.DockerClient, tmp_path: Path) -> None:
    archive = tmp_path / "empty.tar"
    with tarfile.open(archive, "w") as tar:
        tar.addfile(tarfile.TarInfo("nothing"))
    name = f"orderbed-test/empty:{os.getpid()}"
    client.api.import_image_from_file(str(archive), repository=name.split(":")[0], tag=name.split(":")[1])
    try:
        with pytest.raises(FabricError, match=f"the image {name} has no /bin/sh, which a node needs"):
            require_shell(client, name)
    finally:
        client.images.remove(name)


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
    client: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = ensure_image(client)
    relay = Relay(tmp_path / "docker.sock")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    program = Program(argv=["python3", "-c", "print('up', flush=True)\n" + SLEEP])
    with DockerRuntime(OneWire(), run_id=f"test/gone-{os.getpid()}", image=image) as runtime:
        handle = runtime.start(NODE, program, on_line=lines.put, log_path=tmp_path / "log")
        assert lines.get(timeout=BOUND_S) == "up"
        pid = handle.pid()
        relay.break_off()
        with pytest.raises(FabricError, match="the Docker daemon has gone in mid-run, and the nodes with it"):
            poll_until(handle)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the end of the process", BOUND_S)
    monkeypatch.delenv("DOCKER_HOST")
    assert handle.pid() == 0
    remove_abandoned(client)


def poll_until(handle: Any) -> None:
    deadline = time.monotonic() + BOUND_S
    while handle.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert handle.poll() != -signal.SIGKILL
