"""Every probe on this machine, and its message where something is missing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.cli import doctor
from testbed.cli.doctor import Check
from tests import probes
from tests.waiting import in_time


def _program(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_all_probes_answer_quickly_and_each_failure_has_a_way_out() -> None:
    began = time.monotonic()
    found = doctor.checks()
    assert in_time(time.monotonic() - began, 10.0), "3 s on an idle machine"
    names = [check.name for check in found]
    assert names[:2] == ["root", "wires"]
    assert {"docker", "java", "cpus", "memory", "disk", "awake", "clock", "tshark", "browser"} <= set(names)
    assert len(set(names)) == len(names)
    for check in found:
        assert check.detail, check.name
        assert check.ok or check.remedy or check.optional, check.name
        assert not (check.ok and check.remedy), check.name


@pytest.mark.parametrize(
    ("probe", "remedy"),
    [
        (doctor.check_tshark, "install tshark and tcpdump"),
        (doctor.check_compilers, "install gcc and golang-go"),
        (doctor.check_browser, "install chromium and chromium-driver"),
        (doctor.check_java, "install openjdk-17-jre-headless"),
        (probes.check_guest, "install user-mode-linux"),
    ],
)
def test_what_is_not_installed_is_named(
    probe: Callable[[], Check], remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    check = probe()
    assert not check.ok
    assert remedy in check.remedy


def test_without_control_groups_the_way_to_get_them_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netem.runtimes.cgroups.find_mount", lambda _controller: None)
    check = probes.check_control_groups()
    assert (check.ok, check.detail) == (False, "this machine has no control groups for cpu")
    assert check.remedy.startswith("run as root on the machine itself")


def test_processors_that_cannot_be_kept_awake_are_told(tmp_path: Path) -> None:
    check = doctor.check_awake(tmp_path / "none")
    assert (check.ok, check.optional) == (False, True)
    assert check.detail.endswith(f"delays come out longer ({tmp_path}/none: No such file or directory)")
    assert "/dev/cpu_dma_latency" in check.remedy


def test_no_docker_daemon_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    check = doctor.check_docker()
    assert (check.ok, check.optional) == (False, True)
    assert check.detail == "no Docker daemon answers (No such file or directory)"
    assert "make docker" in check.remedy


def test_an_old_java_is_not_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path, "java", "#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    check = doctor.check_java()
    assert not check.ok
    assert "11.0.2" in check.detail


def test_a_browser_that_only_starts_a_snap_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim = "#!/bin/sh\nif ! [ -x /snap/bin/chromium ]; then exit 1; fi\nexec snap run chromium\n"
    program = _program(tmp_path, "chromium-browser", shim)
    driver = _program(tmp_path, "chromedriver", "\x7fELF")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.is_snap_shim(program)
    assert doctor.find_browser() is None
    real = _program(tmp_path, "google-chrome", "#!/bin/sh\nexec /opt/google/chrome/chrome\n")
    assert doctor.find_browser() == doctor.Browser(program=real, driver=driver)


def test_too_little_memory_is_told(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  4000000 kB\nMemAvailable:  1048576 kB\n")
    check = doctor.check_memory(meminfo)
    assert not check.ok
    assert check.detail == "1.0 GiB available"
    assert check.remedy.startswith("free 2.0 GiB")


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_disk(tmp_path).ok
    monkeypatch.setattr(doctor, "DISK_BYTES_MIN", 10**18)
    check = doctor.check_disk(tmp_path)
    assert not check.ok
    assert str(tmp_path) in check.remedy
