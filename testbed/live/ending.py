"""Why a testbed's server ends: asked for once, by whoever is first, and always told.

A signal in bring-up raises `Stopped` in the main thread, wherever that waits; one later, or a second one, does not: the
giving back, once begun, is not interrupted.
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
"""Each would end a process without a word. SIGKILL does; then whoever sweeps the place says it."""

SHOW_THREADS = signal.SIGUSR1
"""Makes the server write to its log where each of its threads is."""


class Stopped(BaseException):
    """It is to end, and is not up yet."""


class Ending:
    """The end of this process. Methods but `listen` may be called from any thread."""

    def __init__(self) -> None:
        self.reason = ""
        """Empty while nobody has asked."""
        self._suspicion = ""
        self._begin: Callable[[], None] = self._interrupt

    def listen(self) -> None:
        """From now on signals ask for the end. SIGINT is not for us: whoever starts us has his own."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in SIGNALS:
            signal.signal(number, self._signalled)
        faulthandler.enable()
        faulthandler.register(SHOW_THREADS, all_threads=True)

    def follow(self, pid: int, may_go: Callable[[], bool]) -> None:
        """End when that process ends, unless it may go. Raises SystemExit when it has ended already."""
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

    def calmly(self, begin: Callable[[], None]) -> None:
        """It is up: from now on `begin` is called, at once if the end was asked for before."""
        self._begin = begin
        if self.reason:
            begin()

    def no_more(self) -> None:
        """It is ending as it is: nobody's request changes anything any more."""
        self.reason = self.reason or "it could not come up"

    def ask(self, reason: str) -> None:
        """End, because of `reason` if it is the first."""
        if not self.reason:
            self.reason = reason
            self._begin()

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        self.ask(self._suspicion or f"it got {signal.Signals(number).name}")

    def _interrupt(self) -> None:
        raise Stopped(f"stopped while it came up: {self.reason}")


def write_notes_to(path: Path) -> None:
    """From now on this process's standard error, and that of all it starts, is this file: whoever started us may wait
    for the end of his own.
    """
    with path.open("ab") as log:
        os.dup2(log.fileno(), 2)


def note(text: str) -> None:
    """A line for the server's log."""
    sys.stderr.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC  {text}\n")
    sys.stderr.flush()
