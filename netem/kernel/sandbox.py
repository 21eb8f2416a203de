"""A node's own sandbox: what a program finds around it that is not the machine's.

The supervisor's child furnishes them between fork and exec: directories of its own in place of the machine's, a host
name, what belongs to the kernel sealed, and an init that hands signals on and collects orphans, as a container has one.
Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CLONE_NEWUTS, CLONE_NEWIPC = 0x04000000, 0x08000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_BIND = 1, 2, 4, 8, 32, 4096
_KERNEL_FILE_SYSTEMS = frozenset({"sysfs", "cgroup", "cgroup2"})
_KERNEL_PATHS = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")
_OWN_SETTINGS = "/proc/sys/net"
"""Those of the node's own network namespace."""

_HOSTS = "/etc/hosts"

_SIGNAL_EXIT_BASE = 128

libc = ctypes.CDLL(None, use_errno=True)


def furnish(request: Mapping[str, Any]) -> None:
    """Give the calling process, already in a mount namespace of its own, what `request` asks for. Raises OSError.

    `groups`: files `cgroup.procs` of control groups to enter.
    `private`: pairs (directory of the node, directory on the host that stands there; None: an empty one in memory).
    `hosts`: a file that is read in place of /etc/hosts; empty: none. Where the host has no such file, there is no place
    for one.
    A private directory may hide the working directory: that is put back in its place.
    """
    for procs in request["groups"]:
        Path(procs).write_text("0", encoding="ascii")  # ourselves
    directory = os.open(request["directory"], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    sources = [None if source is None else _opened(source) for _target, source in request["private"]]
    if request["hosts"] and Path(_HOSTS).exists():
        _mount(request["hosts"], _HOSTS, None, _MS_BIND)
        _make_read_only(_HOSTS)
    for (target, _source), descriptor in zip(request["private"], sources, strict=True):
        if descriptor is None:
            _mount("tmpfs", target, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=1777")
        else:
            _mount(f"/proc/self/fd/{descriptor}", target, None, _MS_BIND)
    if not _is_there(request["directory"], directory):
        Path(request["directory"]).mkdir(parents=True, exist_ok=True)
        _mount(f"/proc/self/fd/{directory}", request["directory"], None, _MS_BIND)
    _seal()
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
    waited = every - {signal.SIGCONT}  # the supervisor gives that to each process itself
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


def _seal() -> None:
    """What is the machine's kernel's can be read and not written: the user is root, and its files are root's.

    A program without capabilities left its control groups, lifted their limits and made groups below that nobody
    removed; /proc/sys has settings through which the kernel starts programs outside. Raises OSError.
    """
    own = _opened(_OWN_SETTINGS)
    for place in _kernel_mounts():
        _make_read_only(place)
    for path in _KERNEL_PATHS:
        if Path(path).exists():
            _mount(path, path, None, _MS_BIND)
            _make_read_only(path)
    _mount(f"/proc/self/fd/{own}", _OWN_SETTINGS, None, _MS_BIND)


def _kernel_mounts() -> list[str]:
    """Where the kernel's own file systems can be seen; one that lies under another mount cannot."""
    lines = os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).splitlines()
    found = {_plain_path(line.split(" ")[4]) for line in lines if _kind_of(line) in _KERNEL_FILE_SYSTEMS}
    return sorted(place for place in found if os.path.ismount(place))


def _kind_of(line: str) -> str:
    return line.partition(" - ")[2].split(" ")[0]


def _plain_path(escaped: str) -> str:
    """A path as mountinfo writes it: blanks and the like in octal."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), escaped)


def _make_read_only(place: str) -> None:
    _mount("none", place, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


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
