"""Parts of the container runtime: lines, freezer files, owners."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netem.errors import FabricError
from netem.owner import Owner
from netem.runtimes.base import LINE_BYTES_MAX, LineSplitter
from netem.runtimes.container import freezer_file, is_frozen
from testbed.paths import ROOT


@given(st.lists(st.binary(max_size=40)))
def test_lines_do_not_depend_on_how_bytes_arrive(chunks: list[bytes]) -> None:
    splitter = LineSplitter()
    lines = [line for chunk in chunks for line in splitter.feed(chunk)] + list(splitter.close())
    whole = b"".join(chunks)
    expected = whole.split(b"\n") if whole.endswith(b"\n") else (whole + b"\n").split(b"\n")
    assert lines == [line.decode("utf-8", errors="replace") for line in (expected[:-1] if whole else [])]


def test_an_endless_line_takes_bounded_memory() -> None:
    splitter = LineSplitter()
    for _ in range(1000):
        assert list(splitter.feed(b"x" * 10_000)) == []
    assert list(splitter.feed(b"\nnext\n")) == ["x" * LINE_BYTES_MAX, "next"]


def _system(tmp_path: Path, *, groups: str, mounts: str) -> Path:
    (tmp_path / "7").mkdir()
    (tmp_path / "self").mkdir()
    (tmp_path / "7" / "cgroup").write_text(groups)
    (tmp_path / "self" / "mountinfo").write_text(mounts)
    return tmp_path


MOUNTED_V2 = "31 20 0:2 / {root}/v2 rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = "30 20 0:1 / {root}/v1 rw - cgroup cgroup rw,freezer\n" + MOUNTED_V2
V1_GROUPS = "7:freezer:/docker/x\n3:cpu,cpuacct:/docker/x\n0::/docker/x\n"
V2_GROUP = "0::/system.slice/docker-x.scope\n"
V2_STATE = "v2/system.slice/docker-x.scope/cgroup.events"


@pytest.mark.parametrize(("groups", "mounts", "path", "before", "after"), [
    pytest.param(V1_GROUPS, HYBRID, "v1/docker/x/freezer.state", "FREEZING\n", "FROZEN\n", id="1 before 2"),
    pytest.param(V2_GROUP, MOUNTED_V2, V2_STATE, "populated 1\nfrozen 0\n", "populated 1\nfrozen 1\n", id="2"),
])  # fmt: skip
def test_a_freezer_of_either_version_tells_when_it_has_frozen(
    tmp_path: Path, groups: str, mounts: str, path: str, before: str, after: str
) -> None:
    state = tmp_path / path
    state.parent.mkdir(parents=True)
    state.write_text(before)
    found = freezer_file(7, _system(tmp_path, groups=groups, mounts=mounts.format(root=tmp_path)))
    assert found == state
    assert not is_frozen(found), "freezing is not frozen"
    state.write_text(after)
    assert is_frozen(found)


def test_a_freeze_that_cannot_be_seen_is_an_error(tmp_path: Path) -> None:
    system = _system(tmp_path, groups="0::/x\n", mounts="30 20 0:1 / /proc rw - proc proc rw\n")
    for pid in (7, 8):
        with pytest.raises(FabricError, match="cannot see whether the node is frozen"):
            freezer_file(pid, system)


def test_an_owner_reads_back_and_lives() -> None:
    me = Owner.this_process()
    assert me.pid == os.getpid()
    assert Owner.parse(str(me)) == me
    assert not me.is_dead()


def test_an_ended_process_is_dead_even_if_its_pid_is_used_again() -> None:
    script = "from netem.owner import Owner; print(Owner.this_process())"
    text = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    gone = Owner.parse(text.strip())
    assert gone is not None
    assert gone.is_dead()
    me = Owner.this_process()
    earlier = Owner(boot=me.boot, pid_namespace=me.pid_namespace, pid=me.pid, started_ticks=me.started_ticks - 1)
    assert earlier.is_dead()


def test_what_cannot_be_judged_is_not_called_dead() -> None:
    me = Owner.this_process()
    elsewhere = Owner(boot=me.boot, pid_namespace="pid:[1]", pid=4_000_000, started_ticks=1)
    assert not elsewhere.is_dead()
    assert Owner(boot="another", pid_namespace="pid:[1]", pid=1, started_ticks=1).is_dead()


@pytest.mark.parametrize("text", ["", "a/b/c/d", "a/b/1", "x", "a/b/1/-2"])
def test_a_label_that_is_not_an_owner_is_none(text: str) -> None:
    assert Owner.parse(text) is None
