"""A shell in a node on a user's terminal: input, output, signals and sizes."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pytest

from testbed.live import Testbed
from testbed.paths import ROOT

pytestmark = [pytest.mark.root, pytest.mark.uml]

SHELL = """
import sys
from testbed.live import Testbed
sys.exit(Testbed.attach("shared").terminal("p1/n1", sys.argv[1:]))
"""
TIMEOUT_S = 20.0


class Screen:
    """A terminal with `orderbed shell` on it."""

    def __init__(self, *argv: str) -> None:
        self.outer, inner = pty.openpty()
        self.resize(24, 80)
        self.process = subprocess.Popen(
            [sys.executable, "-c", SHELL, *argv],
            cwd=ROOT, stdin=inner, stdout=inner, stderr=inner, start_new_session=True,
        )  # fmt: skip
        os.close(inner)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.outer, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.outer, text.encode())

    def read_until(self, wanted: str) -> str:
        """Output until it contains `wanted`."""
        said = ""
        deadline = time.monotonic() + TIMEOUT_S
        while wanted not in said:
            assert select.select([self.outer], [], [], max(0.0, deadline - time.monotonic()))[0], said
            said += os.read(self.outer, 4096).decode()
        return said

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.outer)


@pytest.fixture
def screen(testbed: Testbed) -> Iterator[Screen]:
    made = Screen("sh", "-c", "echo ready; exec sh")
    made.read_until("ready")
    yield made
    made.close()


def test_a_shell_is_in_the_node_and_has_a_terminal_of_its_own(screen: Screen) -> None:
    screen.type("hostname; tty; echo $TERM; ps -o comm= -p $$\n")
    assert "p1-n1" in screen.read_until("/dev/pts/")


def test_its_size_follows(screen: Screen) -> None:
    screen.type("stty size\n")
    screen.read_until("24 80")
    screen.resize(50, 132)
    os.kill(screen.process.pid, signal.SIGWINCH)
    screen.type("sleep 0.2; stty size\n")
    screen.read_until("50 132")


def test_ctrl_c_is_for_what_runs_in_it(screen: Screen) -> None:
    screen.type("sleep 600; echo stopped $?\n")
    screen.read_until("$?")
    beds_wait_for_sleep(screen)
    screen.type("\x03")
    screen.type("echo still $((40 + 2))\n")
    screen.read_until("still 42")


def beds_wait_for_sleep(screen: Screen) -> None:
    """Wait until the foreground process is `sleep`."""
    with Testbed.attach("shared") as testbed:
        deadline = time.monotonic() + TIMEOUT_S
        while testbed.run("p1/n1", ["pgrep", "-x", "sleep"]).code:
            assert time.monotonic() < deadline, screen


def test_its_exit_code_is_ours_and_the_terminal_is_as_before(screen: Screen) -> None:
    before = termios.tcgetattr(screen.outer)
    screen.type("exit 7\n")
    assert screen.process.wait(TIMEOUT_S) == 7
    assert before[3] & termios.ECHO == 0, "it was raw meanwhile"
    assert termios.tcgetattr(screen.outer)[3] & termios.ECHO


def test_without_a_terminal_streams_pass_through(testbed: Testbed) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHELL, "sh", "-c", "cat; echo err >&2; exit 3"],
        cwd=ROOT, input="in\n", capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (3, "in\n", "err\n")
