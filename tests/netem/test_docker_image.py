"""The source of the base image, and the error when there is none."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from netem.errors import FabricError
from netem.runtimes import image
from netem.runtimes.daemon import LABEL, Remains, connect, down
from netem.runtimes.image import Distribution, apt_sources, bootstrap_image, ensure_image, find_image
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


def test_only_the_distributions_own_archives_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path, "apt-get", f"cat <<'END'\n{TARGETS}\nEND\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert apt_sources(BOOKWORM) == [
        "deb mirror/debian/ bookworm main",
        "deb mirror/debian/ bookworm-updates main",
        "deb mirror/debian-security/ bookworm-security main",
    ]


def test_a_machine_without_sources_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path, "apt-get", "")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(FabricError, match="apt has no sources for bookworm; run `apt-get update`"):
        apt_sources(BOOKWORM)


def test_a_machine_without_apt_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FabricError, match="install mmdebstrap"):
        apt_sources(BOOKWORM)


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
def test_a_missing_mmdebstrap_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(connect()) as client:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(FabricError, match=r"no registry, and mmdebstrap is missing; install mmdebstrap"):
            bootstrap_image(client, BOOKWORM, why="no registry")


@pytest.mark.docker
def test_a_failing_mmdebstrap_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path, "apt-get", f"cat <<'END'\n{TARGETS}\nEND\n")
    _program(tmp_path, "mmdebstrap", "echo E: no space >&2; exit 25")
    with closing(connect()) as client:
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        with pytest.raises(FabricError, match="mmdebstrap could not make the base image: E: no space"):
            bootstrap_image(client, BOOKWORM)


@pytest.mark.docker
@pytest.mark.slow
def test_the_image_is_made_once_and_then_found() -> None:
    with closing(connect()) as client:
        made = ensure_image(client)
        began = time.monotonic()
        assert ensure_image(client) == made
        assert in_time(time.monotonic() - began, 1.0)
        assert find_image(client, "orderbed/node:no-such-tag") is None
        own = find_image(client, Distribution.of_this_machine().tag)
        if own is not None:
            assert client.images.get(own).labels[LABEL] == "1"


@pytest.fixture
def mute_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A daemon that tells its version and does not answer when asked about a registry, as behind a firewall."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "docker.sock"))
    server.listen()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    version = b'{"ApiVersion": "1.41"}'
    reply = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        len(version),
        version,
    )

    def serve() -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            with peer:
                while b"/version" in (request := peer.recv(65536)):
                    peer.sendall(reply)
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


def _program(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
