"""Rules of the suite: tests that cannot run are reported, in CI they fail, and quick tests come first."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import guard
from tests.conftest import everything_is_required
from tests.testbed.live.testbeds import processes_with
from tests.testbed.orderbed_command import wait_for

ROOT = Path(__file__).parents[1]

CONFTEST = """
from tests import conftest
from tests.conftest import *
from testbed.cli.doctor import Check
conftest.PROBES = {name: lambda: Check(name="x", ok=True, detail="here") for name in conftest.ORDER}
conftest.PROBES["uml"] = lambda: Check(name="uml", ok=False, detail="no guest", remedy="install it")
"""

SUITE = """
import pytest
@pytest.mark.spark
def test_spark(): pass
@pytest.mark.slow
def test_slow(): pass
@pytest.mark.root
@pytest.mark.uml
def test_guest(): raise AssertionError("it ran")
@pytest.mark.root
def test_root(): pass
def test_plain(): pass
def test_shy(): pytest.skip("not today")
"""

KILLED = """
import os, signal, subprocess
def test_killed():
    subprocess.Popen(["sleep", "4719"], start_new_session=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""

WIRES = """
from tests import proof
def test_wires():
    proof.tell("wires", ["the CPUs were busy"])
    proof.tell("others", ["a neighbour"])
    proof.tell("others", [])
"""


def run_suite(folder: Path, *arguments: str, **environment: str) -> str:
    return perform(SUITE, folder, *arguments, **environment).stdout


def perform(suite: str, folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_suite.py").write_text(suite)
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), f"--rootdir={folder}", *arguments]
    inherited = {name: value for name, value in os.environ.items() if name not in ("CI", "ORDERBED_REQUIRE_ALL")}
    inherited |= {"PYTHONPATH": str(ROOT), "COLUMNS": "200"} | environment
    return subprocess.run([*command, str(folder)], cwd=folder, env=inherited, capture_output=True, text=True)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run_suite(tmp_path_factory.mktemp("suite"), "-v")


def test_needs_are_told_before_the_tests(output: str) -> None:
    assert "NO   uml      no guest" in output


@pytest.mark.parametrize("workers", ["0", "2"])
def test_what_cannot_run_is_told_loudly(workers: str, tmp_path: Path) -> None:
    output = run_suite(tmp_path, "-n", workers)
    assert "NOT EVERYTHING WAS TESTED" in output
    assert "1 tests did not run: needs uml: no guest (install it)" in output
    assert "4 passed, 2 skipped" in output


def test_quick_tests_come_first(output: str) -> None:
    lines = [line for line in output.splitlines() if "test_suite.py::" in line and "%]" in line]
    order = [line.split("::")[1].split()[0] for line in lines]
    assert order == ["test_plain", "test_shy", "test_slow", "test_root", "test_guest", "test_spark"]


def test_in_ci_a_skip_is_a_failure(tmp_path: Path) -> None:
    output = run_suite(tmp_path, CI="true")
    assert "needs uml: no guest (install it); nothing may be skipped here" in output
    assert "skipped, and nothing may be skipped here" in output
    assert "1 failed, 4 passed, 1 error in" in output


def test_only_needs_of_selected_tests_are_probed(tmp_path: Path) -> None:
    output = run_suite(tmp_path, "-k", "spark")
    assert "yes  spark    here" in output
    assert "uml" not in output


def test_no_test_skips_itself() -> None:
    """The needs of a test are markers: probed before, shown in the table, and required in CI."""
    ways = re.compile(r"pytest\.skip\(|skipif|importorskip|SkipTest")
    excused = (Path(__file__), ROOT / "tests" / "conftest.py")
    tests = [path for path in (ROOT / "tests").rglob("*.py") if path not in excused]
    assert [path.name for path in tests if ways.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("name", ["CI", "ORDERBED_REQUIRE_ALL"])
@pytest.mark.parametrize(("value", "required"), [("true", True), ("1", True), ("", False), ("false", False)])
def test_the_wish_for_everything_is_read_as_a_word(name: str, value: str, required: bool) -> None:
    assert everything_is_required({name: value}) is required


def test_a_suite_of_wires_that_proved_nothing_fails_with_the_machines_reason(tmp_path: Path) -> None:
    done = perform(WIRES, tmp_path)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 passed" in done.stdout
    _, partly, nothing = re.split("NOT EVERYTHING WAS TESTED|WIRES THAT PROVED NOTHING", done.stdout)
    assert "others: 1 of 2 attempts count, the last that does not since a neighbour" in partly
    assert "wires: 0 of 1 attempts count, the last that does not since the CPUs were busy" in nothing


def test_a_session_that_is_killed_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(guard.VARIABLE)  # the session is to have a guard of its own
    done = perform(KILLED, tmp_path)
    assert done.returncode == -signal.SIGKILL
    wait_for(lambda: processes_with("sleep 4719") == [], what="the end of what the session started")
