"""Runtime directories of testbeds: a name belongs to one testbed at a time, and those of dead owners are removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from netem.owner import Owner
from testbed.live import directory as places
from testbed.live.directory import RuntimeDirectory
from testbed.paths import ROOT, live_root
from topologies.formats.errors import InputError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


TAKE = (
    "from testbed.live.directory import RuntimeDirectory; RuntimeDirectory.of('lab').take(); print('taken', flush=True)"
)


def dead_owner() -> str:
    code = "from netem.owner import Owner; print(Owner.this_process())"
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_a_place_is_private_and_has_one_owner() -> None:
    place = RuntimeDirectory.of("lab")
    place.take()
    assert place.path.stat().st_mode & 0o777 == 0o700
    assert not place.is_dead()
    with pytest.raises(InputError, match="a testbed called lab is up already"):
        place.take()
    place.release()
    assert [path.name for path in place.path.parent.iterdir()] == []
    place.take()


def test_what_a_dead_owner_left_is_swept_aside() -> None:
    place = RuntimeDirectory.of("lab")
    place.take()
    (place.path / "owner").write_text(dead_owner())
    (place.path / "about.json").write_text("{}")
    assert place.is_dead()
    assert places.descriptions() == []
    assert not place.path.exists()
    subprocess.run([sys.executable, "-c", TAKE], cwd=ROOT, check=True)
    place.take()
    assert Owner.parse((place.path / "owner").read_text()) == Owner.this_process()


def test_of_many_that_come_at_once_one_wins() -> None:
    code = TAKE + "; import sys; sys.stdin.read()"
    taking = [
        subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )
        for _ in range(4)
    ]  # fmt: skip
    said = [process.stdout.readline() for process in taking if process.stdout is not None]
    for process in taking:
        process.communicate("")
    assert sorted(said) == ["", "", "", "taken\n"]


@pytest.mark.parametrize("name", ["", "..", "a/b", "Lab", "x" * 41, "a b", "."])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(InputError, match="the name of a testbed: expected a name of"):
        RuntimeDirectory.of(name)


def test_without_any_the_sentence_says_how_to_make_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(InputError, match="no testbed is up; make one with"):
        places.the_directory(None)


def test_who_is_not_root_is_not_told_that_nothing_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(InputError, match="root's are seen by root alone: run the same command with sudo"):
        places.the_directory(None)


def test_a_socket_may_be_deep_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("x" * 200)))
    place = RuntimeDirectory.of("lab")
    place.take()
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        with place.socket_path() as path:
            listener.bind(path)
        listener.listen()
        with place.socket_path() as path:
            client.connect(path)
    assert (place.path / "control").is_socket()


def test_a_directory_where_others_may_write_is_no_place() -> None:
    RuntimeDirectory.of("lab").take()
    directory = live_root()
    directory.chmod(0o777)
    with pytest.raises(InputError, match="others may write there"):
        RuntimeDirectory.of("lab")
    with pytest.raises(InputError, match="others may write there"):
        places.descriptions()
    directory.chmod(0o700)
    assert not RuntimeDirectory.of("lab").is_dead()


def test_a_link_in_its_place_is_not_followed_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    of_another = tmp_path / "home" / "alice"
    of_another.mkdir(parents=True)
    (tmp_path / "orderbed").symlink_to(of_another.parent)
    with pytest.raises(InputError, match=r"orderbed: others may write there"):
        places.descriptions()
    assert of_another.is_dir()


@pytest.mark.parametrize(("mode", "is_safe"), [(0o777, False), (0o775, False), (0o1777, True), (0o755, True)])
def test_others_must_not_be_able_to_put_another_directory_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, mode: int, is_safe: bool
) -> None:
    shared = tmp_path / "shared"
    (shared / "mine").mkdir(parents=True)
    shared.chmod(mode)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(shared / "mine"))
    if is_safe:
        assert live_root() == shared / "mine" / "orderbed"
    else:
        with pytest.raises(InputError, match="shared: others may write there"):
            live_root()


@pytest.mark.root
def test_a_place_below_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 54321, -1)
    with pytest.raises(InputError, match="others may write there"):
        live_root()
