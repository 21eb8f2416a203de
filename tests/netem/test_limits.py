"""Control groups: the kernel reports and enforces the requested limits, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netem.errors import FabricError
from netem.owner import Owner
from netem.runtimes import cgroups as limits
from netem.runtimes.cgroups import ControlGroup, Limits
from tests.waiting import wait_until

MEBIBYTE = 1 << 20
MOUNTED_V1 = "30 20 0:1 / {root}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
MOUNTED_V2 = "31 20 0:1 / {root}/unified rw - cgroup2 cgroup2 rw\n"
BUSY = [sys.executable, "-c", "while True: pass"]


@pytest.fixture
def busy() -> Iterator[int]:
    with subprocess.Popen(BUSY) as process:
        yield process.pid
        process.kill()


def cpu_ms(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e6


def mounted(root: Path, lines: str, controllers: str = "") -> Path:
    """A /proc and control-group file systems as a kernel would show them."""
    (root / "cpu" / "ours").mkdir(parents=True)
    (root / "unified").mkdir()
    (root / "unified" / "cgroup.controllers").write_text(controllers, encoding="ascii")
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "self" / "mountinfo").write_text(lines.format(root=root), encoding="ascii")
    (root / "proc" / "self" / "cgroup").write_text("2:cpu,cpuacct:/ours\n0::/x\n", encoding="ascii")
    return root / "proc"


def groups_named(pattern: str) -> list[Path]:
    """Groups of the controller cpu on this machine."""
    mount = limits.find_mount("cpu")
    assert mount is not None
    return list(mount.parent.glob(f"{pattern}*"))


@given(st.floats(limits.CPU_MIN_RATIO, 64))
def test_quota_and_period_are_what_the_kernel_takes_and_make_the_share(ratio: float) -> None:
    quota_us, period_us = limits.cpu_quota_us(ratio)
    assert limits.PERIOD_MIN_US <= period_us <= limits.PERIOD_MAX_US
    assert quota_us >= limits.QUOTA_MIN_US
    assert quota_us / period_us == pytest.approx(ratio, rel=0.02)


@pytest.mark.parametrize("ratio", [0.0, -1.0, float("nan"), limits.CPU_MIN_RATIO / 2])
def test_a_share_that_no_kernel_takes_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match=r"at least 0\.1% of a core"):
        Limits(cpu_ratio=ratio)


def test_version_1_groups_lie_beside_our_own_and_version_2_groups_at_the_root(tmp_path: Path) -> None:
    proc = mounted(tmp_path, MOUNTED_V1 + MOUNTED_V2, "cpu memory")
    cpu, unified = tmp_path / "cpu", tmp_path / "unified"
    assert limits.find_mount("cpu", proc) == limits.Mount(version=1, root=cpu, parent=cpu / "ours")
    assert limits.find_mount("memory", proc) == limits.Mount(version=2, root=unified, parent=unified)


def test_a_controller_that_nobody_mounted_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = mounted(tmp_path, MOUNTED_V2)
    assert limits.find_mount("cpu", empty) is None
    monkeypatch.setattr(limits, "find_mount", lambda _controller: None)
    assert "has no control groups for cpu: run as root" in limits.reason_against({"cpu"})


@pytest.mark.root
@pytest.mark.cgroups
def test_a_tenth_of_a_core_is_about_a_tenth(busy: int) -> None:
    with ControlGroup.make("a tenth/of p1", {"cpu"}) as group:
        group.take_in(busy)
        assert group.set_cpu(0.1) == limits.cpu_of(busy) == 0.1
        before_ms, began = cpu_ms(busy), time.monotonic()
        while (elapsed_s := time.monotonic() - began) < 1.0:
            time.sleep(0.05)
        assert (cpu_ms(busy) - before_ms) / 1000 / elapsed_s < 0.2
        assert group.set_cpu(None) is None
        os.kill(busy, 9)
        os.waitid(os.P_PID, busy, os.WEXITED | os.WNOWAIT)
    assert groups_named(group.name) == []


@pytest.mark.root
@pytest.mark.cgroups
def test_limits_are_read_back_and_lifted_and_refused_without_their_controller() -> None:
    asked = Limits(cpu_ratio=0.5, memory_bytes=64 * MEBIBYTE, processes=10)
    with ControlGroup.make("all", asked.controllers) as group:
        assert group.set(asked) == asked
        assert group.set(Limits(memory_bytes=32 * MEBIBYTE)) == Limits(memory_bytes=32 * MEBIBYTE)
        assert group.set(Limits()) == Limits()
    with ControlGroup.make("cpu only", {"cpu"}) as group, pytest.raises(FabricError, match="made without pids"):
        group.set(Limits(processes=3))


@pytest.mark.root
@pytest.mark.cgroups
def test_what_a_dead_owner_left_is_swept_and_what_a_living_one_has_is_not() -> None:
    with ControlGroup.make("living", {"cpu"}) as group:
        (living,) = groups_named(group.name)
        owner = Owner.this_process()
        dead = f"{limits.PREFIX}-{limits._plain(str(owner).replace(str(owner.started_ticks), '1'))}-x"
        (living.parent / dead).mkdir()
        limits.sweep()
        assert groups_named(dead) == []
        assert groups_named(group.name) == [living]


@pytest.mark.root
@pytest.mark.cgroups
def test_brakes_slow_all_processes_of_a_namespace_and_let_them_go() -> None:
    inner = f"{sys.executable} -c 'while True: pass' & {sys.executable} -c 'while True: pass'"
    command = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", inner]
    with subprocess.Popen(command) as outer:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        wait_until(lambda: children.read_text(encoding="ascii"), "the first process of the namespace")
        first = int(children.read_text(encoding="ascii"))
        wait_until(lambda: len(limits.processes_with(first)) == 3, "all processes of the namespace")
        with limits.CpuLimiter() as cpu_limiter:
            assert cpu_limiter.slow("p1/n1", first, 0.05) == 0.05
            assert [limits.cpu_of(pid) for pid in limits.processes_with(first)] == [0.05, 0.05, 0.05]
            assert cpu_limiter.slow("p1/n1", first, 0.5) == 0.5  # now in the node's existing group
            cpu_limiter.release("p1/n1")
            assert limits.cpu_of(first) is None
            cpu_limiter.release("p1/n9")  # no such node
            outer.kill()
            outer.wait()
            wait_until(lambda: not Path(f"/proc/{first}").exists(), "the end of the namespace")
    assert groups_named(f"{limits.PREFIX}-*p1?n1") == []


def test_a_process_that_has_ended_is_told_in_a_sentence() -> None:
    with pytest.raises(FabricError, match="has ended"):
        limits.processes_with(2**22 + 1)
