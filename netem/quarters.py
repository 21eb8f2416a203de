"""A node's own quarters: what a program finds around it that is not the machine's.

The keeper's child furnishes them between fork and exec: directories of its own in place of the machine's, a host name,
and an init that hands signals on and collects orphans, as a container has one. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CLONE_NEWUTS, CLONE_NEWIPC = 0x04000000, 0x08000000
_MS_NOSUID, _MS_NODEV, _MS_BIND = 2, 4, 4096
_SIGNAL_EXIT_BASE = 128

libc = ctypes.CDLL(None, use_errno=True)


def furnish(request: Mapping[str, Any]) -> None:
    """Give the calling process, already in a mount namespace of its own, what `request` asks for. Raises OSError.

    `groups`: files `cgroup.procs` of control groups to enter.
    `private`: pairs (directory of the node, directory on the host that stands there; None: an empty one in memory).
    A private directory may hide the working directory: that is put back in its place.
    """
    for procs in request["groups"]:
        Path(procs).write_text("0", encoding="ascii")  # ourselves
    directory = os.open(request["directory"], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    sources = [None if source is None else _opened(source) for _target, source in request["private"]]
    for (target, _source), descriptor in zip(request["private"], sources, strict=True):
        if descriptor is None:
            _mount("tmpfs", target, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=1777")
        else:
            _mount(f"/proc/self/fd/{descriptor}", target, None, _MS_BIND)
    if not _is_there(request["directory"], directory):
        Path(request["directory"]).mkdir(parents=True, exist_ok=True)
        _mount(f"/proc/self/fd/{directory}", request["directory"], None, _MS_BIND)
    if request["hostname"]:
        _check(libc.unshare(CLONE_NEWUTS | CLONE_NEWIPC), "a host name of its own")
        socket.sethostname(request["hostname"])


def become_init(report: int) -> None:
    """Fork: the child returns and becomes the program; the caller stays as init of its PID namespace until the program
    has ended, and ends with its exit code (128 + the signal that ended it).

    Without it the program would be process 1, to which the kernel passes no signal that it has no handler for.
    """
    every = signal.valid_signals()
    signal.pthread_sigmask(signal.SIG_BLOCK, every)
    program = os.fork()
    if program == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, every)
        return
    os.close(report)
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    waited = every - {signal.SIGCONT}  # the keeper gives that to each process itself
    try:
        while (code := _ended(program)) is None:
            number = signal.sigwait(waited)
            if number != signal.SIGCHLD:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(program, number)
        os._exit(code)
    finally:
        os._exit(_SIGNAL_EXIT_BASE - 1)


def _ended(program: int) -> int | None:
    """Collect every dead child; the program's exit code once it is among them."""
    found: int | None = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == program:
            code = os.waitstatus_to_exitcode(status)
            found = code if code >= 0 else _SIGNAL_EXIT_BASE - code


def _opened(source: str) -> int:
    return os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _is_there(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(Path(path).stat(), os.fstat(descriptor))
    except OSError:
        return False


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    words = [text.encode() if text is not None else None for text in (source, target, kind, data)]
    _check(libc.mount(words[0], words[1], words[2], flags, words[3]), f"a directory of its own at {target}")


def _check(result: int, what: str) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
