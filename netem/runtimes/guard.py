"""A guard process: when the conductor is gone, however it went, the containers of its run go, too.

A node ends by itself when its standard input ends, and its container is removed then. That is not enough: a container
that is frozen, or was created and not yet started, or runs a program that ignores its input would stay after a SIGKILL
of the conductor. The guard waits for the end of the conductor (a pidfd: no signal and no inherited descriptor can fool
it) and then removes what carries the run's label. At rest it is one sleeping interpreter of about 10 MiB: the Docker
SDK is imported only when there is something to do.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

END_BOUND_S = 5.0


class Guard:
    """The guard of one run. Close it once the containers have been removed in good order."""

    def __init__(self, run_id: str) -> None:
        command = [sys.executable, "-m", "netem.runtimes.guard", str(os.getpid()), run_id]
        root = Path(__file__).parents[2]
        # A session of its own: Ctrl-C and a closed terminal are not for the guard.
        self._process = subprocess.Popen(
            command, cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        self._process.kill()
        self._process.wait(timeout=END_BOUND_S)


def main(conductor_pid: int, run_id: str) -> None:
    """Wait for the end of the conductor, then remove the containers of `run_id`."""
    _wait_for_the_end(conductor_pid)
    from netem.runtimes.daemon import remove_containers  # here, so that a guard at rest stays small

    remove_containers(run_id, settle=True)


def _wait_for_the_end(pid: int) -> None:
    try:
        conductor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # The conductor started us: if it is no longer our parent, the pid may be somebody else's by now.
        if os.getppid() == pid:
            poll = select.poll()
            poll.register(conductor, select.POLLIN)
            poll.poll()
    finally:
        os.close(conductor)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
