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
from tests.waiting import in_time
from topologies.model import CLEAR, Direction, NodeName

pytestmark = [pytest.mark.root, pytest.mark.uml]


def test_the_guest_kernel_is_found_with_all_of_its_modules() -> None:
    found = find_guest_kernel()
    assert found.binary.is_file()
    assert found.missing_modules() == ()


def test_a_machine_without_the_package_is_told_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FabricError, match="apt install user-mode-linux"):
        find_guest_kernel()


@pytest.mark.parametrize(("script", "words"), [("exit 3", "does not run"), ("echo not a kernel", "is not a User-Mode")])
def test_something_else_of_that_name_is_no_guest_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, words: str
) -> None:
    impostor = tmp_path / "linux.uml"
    impostor.write_text(f"#!/bin/sh\n{script}\n")
    impostor.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(FabricError, match=words):
        find_guest_kernel()


def test_missing_modules_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(guest, "_MODULES_ROOT", tmp_path)
    with pytest.raises(FabricError, match=r"has no llc\.ko|has no net/llc/llc\.ko: reinstall user-mode-linux"):
        find_guest_kernel()


def test_a_guest_that_does_not_boot_is_reported_with_its_last_words(supervisor: SupervisorLink, tmp_path: Path) -> None:
    script = tmp_path / "kernel"
    script.write_text("#!/bin/sh\necho first word\necho last word\nexit 9\n")
    script.chmod(0o755)
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


def test_what_the_guests_console_refuses_is_reported(tmp_path: Path) -> None:
    with EmulatedNetwork.open(topology(1), kernel=KernelOption.UML, log_dir=tmp_path) as network:
        path = str(guest._CONSOLE)
        with pytest.raises(FabricError, match="config nonsense"):
            network._supervisor.ask("console", path=path, commands=["version", "config nonsense"])


def test_a_guest_that_dies_in_mid_run_is_noticed_and_the_bed_closes(tmp_path: Path) -> None:
    with EmulatedNetwork.open(topology(2), kernel=KernelOption.UML, log_dir=tmp_path) as network:
        assert network.failure() is None
        assert network._guest is not None
        network._supervisor.ask("signal", pid=network._guest.pid_in_guest, signal=int(signal.SIGKILL), group=False)
        deadline = time.monotonic() + 2
        while (failure := network.failure()) is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert "User-Mode Linux guest died (exit code -9)" in str(failure)
        with pytest.raises(FabricError, match="User-Mode Linux guest"):
            network.impair(NodeName("p1/n1"), Direction.TO_NODE, CLEAR)
        started = time.monotonic()
        network.close()
        assert in_time(time.monotonic() - started, 2)
        network.close()
        assert network.failure() is None


@pytest.mark.parametrize("size", [30])
def test_a_network_of_thirty_ports_is_ready_soon(tmp_path: Path, size: int) -> None:
    """The benchmark `worlds` measures the time; a busy machine takes a few times as long as a quiet one."""
    started = time.monotonic()
    said: list[str] = []
    with EmulatedNetwork.open(
        topology(10, 10, 10, links=[(1, 2), (2, 3)]), kernel=KernelOption.UML, log_dir=tmp_path, on_progress=said.append
    ) as network:
        assert in_time(time.monotonic() - started, 20)
        assert len(network.topology) == size
    assert [line.split(" ")[0] for line in said] == ["kernel", "booting", "building", "network"]
    assert (tmp_path / "guest.log").stat().st_size > 0
