"""End of a testbed's server: requested by a signal, a client or the end of its starter; the first reason is logged.

A signal in bring-up raises `Stopped` in the main thread, wherever that waits; a later one, or a second one, does not: a
release of resources that has begun is not interrupted.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from netem.kernel.framing import readable

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2, signal.SIGALRM, signal.SIGXCPU)
"""Each would end a process without a log line. SIGKILL does; the process that removes the directory then logs it."""

SHOW_THREADS = signal.SIGUSR1
"""Makes the server write the stack of each of its threads to its log."""


class Stopped(BaseException):
    """The server is to end before it is up."""


class Ending:
    """The end of this process. Methods but `listen` may be called from any thread."""

    def __init__(self) -> None:
        self.reason = ""
        """Empty until the end is requested."""
        self._suspicion = ""
        self._begin: Callable[[], None] = self._interrupt

    def listen(self) -> None:
        """Let signals request the end. SIGINT is ignored: it is meant for the process that started this one."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in SIGNALS:
            signal.signal(number, self._signalled)
        faulthandler.enable()
        faulthandler.register(SHOW_THREADS, all_threads=True)

    def follow(self, pid: int, may_go: Callable[[], bool]) -> None:
        """Request the end when process `pid` ends and `may_go` is false. Raises SystemExit if it has ended already."""
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            handle = -1
        if handle < 0 or os.getppid() != pid:
            raise SystemExit(1)

        def wait() -> None:
            readable([handle])
            os.close(handle)
            if not may_go():
                self._suspicion = f"process {pid}, whose it is, has ended"
                os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=wait, name="watch", daemon=True).start()

    def call_on_request(self, begin: Callable[[], None]) -> None:
        """The server is up: a request calls `begin` from now on, at once if the end was requested before."""
        self._begin = begin
        if self.reason:
            begin()

    def ignore_requests(self) -> None:
        """The server is ending already: further requests have no effect."""
        self.reason = self.reason or "it could not come up"

    def ask(self, reason: str) -> None:
        """Request the end; only the first `reason` counts."""
        if not self.reason:
            self.reason = reason
            self._begin()

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        self.ask(self._suspicion or f"it got {signal.Signals(number).name}")

    def _interrupt(self) -> None:
        raise Stopped(f"stopped while it came up: {self.reason}")


def write_notes_to(path: Path) -> None:
    """Redirect standard error of this process and its children to this file: the process that started this one may
    wait until its own standard error is closed.
    """
    with path.open("ab") as log:
        os.dup2(log.fileno(), 2)


def note(text: str) -> None:
    """Write a line to the server's log."""
    sys.stderr.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC  {text}\n")
    sys.stderr.flush()
