"""Images of nodes: the source of the base image, what an image must have, and the error when there is none."""

from __future__ import annotations

import io
import os
import socket
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from netem.errors import FabricError
from netem.owner import Owner
from netem.runtimes import image
from netem.runtimes.daemon import LABEL, OWNER_LABEL, Remains, connect, down
from netem.runtimes.image import Distribution, ensure_image
from tests.waiting import in_time

BOOKWORM = Distribution(identifier="debian", codename="bookworm")

TARGETS = """\
mirror/debian/|bookworm|main|Debian
mirror/debian/|bookworm|main|Debian
mirror/debian/|bookworm-updates|main|Debian
mirror/debian-security/|bookworm-security|main|$(ORIGIN)
elsewhere/docker/|bookworm|stable|Docker
elsewhere/node/|nodistro|main|. nodistro
mirror/debian/|trixie|main|Debian
a line of another form"""


Toolbox = Callable[[str, str], None]


@pytest.fixture
def toolbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toolbox:
    """Puts shell scripts in front of this machine's programs of the same name."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def add(name: str, body: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)

    return add


def test_only_the_distributions_own_archives_are_used(toolbox: Toolbox) -> None:
    toolbox("apt-get", f"cat <<'END'\n{TARGETS}\nEND\n")
    assert image.apt_sources(BOOKWORM) == [
        "deb mirror/debian/ bookworm main",
        "deb mirror/debian/ bookworm-updates main",
        "deb mirror/debian-security/ bookworm-security main",
    ]


def test_a_machine_without_sources_or_without_apt_is_told_what_to_do(
    toolbox: Toolbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolbox("apt-get", "")
    with pytest.raises(FabricError, match="apt has no sources for bookworm; run `apt-get update`"):
        image.apt_sources(BOOKWORM)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(FabricError, match="install mmdebstrap"):
        image.apt_sources(BOOKWORM)


def test_the_tag_follows_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    before = BOOKWORM.tag
    assert before.startswith("orderbed/node:bookworm-")
    assert Distribution(identifier="debian", codename="trixie").tag != before
    monkeypatch.setattr(image, "RECIPE", ("2", "essential", "python3"))
    assert before != BOOKWORM.tag


def test_a_built_image_that_docker_does_not_have_is_the_reason_for_a_bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = None
    progress: list[str] = []
    monkeypatch.setattr(Distribution, "of_this_machine", lambda: BOOKWORM)
    monkeypatch.setattr(image, "find_image", lambda _client, _tag: None)
    monkeypatch.setattr(image, "_refusal_of_base", lambda _client, _on_progress: None)
    monkeypatch.setattr(image, "_refusal_of_build", lambda: None)
    monkeypatch.setattr(image, "bootstrap_image", lambda _client, _distribution, *, why: f"image, because {why}")
    why = f"Docker built {image.layered_tag()} but does not have it"
    assert ensure_image(client, progress.append) == f"image, because {why}"
    assert progress[-1] == f"{why}: building the base image from debian packages, once"


@pytest.mark.docker
def test_a_missing_mmdebstrap_is_named_and_a_failing_one_is_quoted(
    client: docker.DockerClient, toolbox: Toolbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolbox("apt-get", f"cat <<'END'\n{TARGETS}\nEND\n")
    toolbox("mmdebstrap", "echo E: no space >&2; exit 25")
    with pytest.raises(FabricError, match="mmdebstrap could not make the base image: E: no space"):
        image.bootstrap_image(client, BOOKWORM)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(FabricError, match=r"no registry, and mmdebstrap is missing; install mmdebstrap"):
        image.bootstrap_image(client, BOOKWORM, why="no registry")


@pytest.mark.docker
@pytest.mark.slow
def test_the_image_is_made_once_and_then_found(client: docker.DockerClient) -> None:
    made = ensure_image(client)
    began = time.monotonic()
    assert ensure_image(client) == made
    assert in_time(time.monotonic() - began, 1.0)
    assert image.find_image(client, "orderbed/node:no-such-tag") is None
    own = image.find_image(client, Distribution.of_this_machine().tag)
    if own is not None:
        assert client.images.get(own).labels[LABEL] == "1"


@pytest.fixture
def made(client: docker.DockerClient) -> Iterator[Callable[[str], str]]:
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


@pytest.mark.docker
def test_an_image_has_what_a_node_needs_or_is_refused(client: docker.DockerClient, made: Callable[[str], str]) -> None:
    image.require_python(client, ensure_image(client))
    mine: dict[str, Any] = {"label": f"{OWNER_LABEL}={Owner.this_process()}"}
    assert client.containers.list(all=True, filters=mine) == [], "what looked into it is gone"
    bare = made("rm /usr/bin/python3")
    image.require_shell(client, bare)
    with pytest.raises(FabricError, match=f"the image {bare} has no python3, and our nodes need at least 3.11"):
        image.require_python(client, bare)
    old = made("printf '#!/bin/sh\\necho 3.9; exit 42\\n' > /usr/bin/python3.11")
    with pytest.raises(FabricError, match=r"has python3 3\.9, and our nodes need at least 3\.11"):
        image.require_python(client, old)


@pytest.mark.docker
def test_an_image_without_a_shell_is_refused(client: docker.DockerClient, tmp_path: Path) -> None:
    archive = tmp_path / "empty.tar"
    with tarfile.open(archive, "w") as tar:
        tar.addfile(tarfile.TarInfo("nothing"))
    client.api.import_image_from_file(str(archive), repository="orderbed-test/empty", tag=str(os.getpid()))
    name = f"orderbed-test/empty:{os.getpid()}"
    try:
        with pytest.raises(FabricError, match=f"the image {name} has no /bin/sh, which a node needs"):
            image.require_shell(client, name)
    finally:
        client.images.remove(name)


@pytest.fixture
def mute_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A daemon that tells its version and does not answer when asked about a registry, as behind a firewall."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "docker.sock"))
    server.listen()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    version = b'{"ApiVersion": "1.41"}'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(version)

    def serve() -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            with peer:
                while b"/version" in (request := peer.recv(65536)):
                    peer.sendall(head + version)
                while request:
                    request = peer.recv(65536)

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


@pytest.mark.usefixtures("mute_daemon")
def test_a_silent_registry_costs_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "REGISTRY_PROBE_S", 1)
    began = time.monotonic()
    refusal = image._refusal_of_registry()
    assert refusal is not None
    assert "timed out" in refusal
    assert in_time(time.monotonic() - began, 3.0)


def test_no_daemon_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(FabricError, match=r"no Docker daemon answers \(No such file or directory\).*make docker"):
        connect()
    assert down(force=True) == Remains(), "without a daemon nothing can have been left"
