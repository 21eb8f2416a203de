"""The User-Mode Linux guest: errors when it is missing, does not boot, or dies."""

from __future__ import annotations

import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from netem.errors import FabricError
from netem.kernel import uml as guest
from netem.kernel.supervised import SupervisorLink
from netem.kernel.uml import Guest, find_guest_kernel
from netem.network import EmulatedNetwork, KernelOption
from tests.netem.wired import topology
from tests.waiting import in_time, wait_until
from topologies.model import CLEAR, Direction, NodeName

pytestmark = [pytest.mark.root, pytest.mark.uml]


def test_a_machine_without_the_package_is_told_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FabricError, match="apt install user-mode-linux"):
        find_guest_kernel()


def impostor(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("script", "words"), [("exit 3", "does not run"), ("echo not a kernel", "is not a User-Mode")])
def test_something_else_of_that_name_is_no_guest_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, words: str
) -> None:
    impostor(tmp_path / "linux.uml", script)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(FabricError, match=words):
        find_guest_kernel()


def test_missing_modules_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(guest, "_MODULES_ROOT", tmp_path)
    with pytest.raises(FabricError, match=r"has no llc\.ko|has no net/llc/llc\.ko: reinstall user-mode-linux"):
        find_guest_kernel()


def test_a_guest_that_does_not_boot_is_reported_with_its_last_words(supervisor: SupervisorLink, tmp_path: Path) -> None:
    script = impostor(tmp_path / "kernel", "echo first word\necho last word\nexit 9")
    booting = Guest.boot(supervisor, replace(find_guest_kernel(), binary=script), tmp_path / "guest.log")
    with pytest.raises(FabricError, match=r"did not boot \(exit code 9\).*first word \| last word"):
        booting.await_ready(1)
    booting.close()


def test_a_guest_that_hangs_is_given_up_in_time(
    supervisor: SupervisorLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest, "_BOOT_TIMEOUT_S", 0.3)
    sleeper = replace(find_guest_kernel(), binary=Path(shutil.which("tail") or ""))
    monkeypatch.setattr(guest, "_command_line", lambda _kernel: [str(sleeper.binary), "-f", "/dev/null"])
    booting = Guest.boot(supervisor, sleeper, tmp_path / "guest.log")
    with pytest.raises(FabricError, match=r"did not boot \(it still runs\)"):
        booting.await_ready(1)
    booting.close()


def test_a_guest_that_dies_in_mid_run_is_noticed_and_the_bed_closes(tmp_path: Path) -> None:
    with EmulatedNetwork.open(topology(2), kernel=KernelOption.UML, log_dir=tmp_path) as network:
        with pytest.raises(FabricError, match="config nonsense"):  # refused by its console
            network._supervisor.ask("console", path=str(guest._CONSOLE), commands=["version", "config nonsense"])
        assert network.failure() is None
        assert network._guest is not None
        network._supervisor.ask("signal", pid=network._guest.pid_in_guest, signal=int(signal.SIGKILL), group=False)
        wait_until(lambda: network.failure() is not None, "the notice of its end", 2)
        assert "User-Mode Linux guest died (exit code -9)" in str(network.failure())
        with pytest.raises(FabricError, match="User-Mode Linux guest"):
            network.impair(NodeName("p1/n1"), Direction.TO_NODE, CLEAR)
        started = time.monotonic()
        network.close()
        assert in_time(time.monotonic() - started, 2)
        network.close()
        assert network.failure() is None
