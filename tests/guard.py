"""Guard of a test session: after any end of it, SIGKILL included, it ends what the session has left.

    python guard.py SESSION PID

Every process of a session has its name in the environment, every file system that it mounts has it for its source. The
guard waits for the end of process PID, which has started it, gives the remaining processes a moment to end by
themselves, asks them to end, then ends them, and unmounts the file systems.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

VARIABLE = "ORDERBED_TEST_SESSION"
PATIENCE_S = 5.0
POLL_S = 0.05
STEPS = (None, signal.SIGTERM, signal.SIGKILL)


def start() -> subprocess.Popen[bytes]:
    """Make this process a session, with its guard."""
    os.environ[VARIABLE] = session = uuid.uuid4().hex
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [sys.executable, "-S", __file__, session, str(os.getpid())]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment, start_new_session=True
    )


def main(session: str, pid: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(ProcessLookupError):
        end = os.pidfd_open(pid)
        while os.getppid() == pid:  # else the process has ended, and its number may belong to another
            select.select([end], [], [])
    for step in STEPS:
        deadline = time.monotonic() + PATIENCE_S
        asked: set[int] = set()
        while left := members(session):
            for pid in left - asked if step is not None else ():
                _send(pid, step)
            asked |= left
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
    for place in _mounts(session):
        subprocess.run(["umount", "--lazy", place], check=False)


def members(session: str) -> set[int]:
    """Processes of a session, by the numbers of this machine, without this one."""
    wanted = f"{VARIABLE}={session}".encode()
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                found.add(int(path.parent.name))
        except OSError:
            continue  # it has ended, or belongs to another user
    return found - {os.getpid()}


def _mounts(session: str) -> list[str]:
    lines = [line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    return [place for source, place, *_others in lines if source == session]


def _send(pid: int, number: signal.Signals | None) -> None:
    assert number is not None
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it has ended meanwhile


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
