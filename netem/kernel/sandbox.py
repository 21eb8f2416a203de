"""A node's sandbox: the files, user and init that its program sees in place of the machine's.

The supervisor's child makes it between fork and exec: a root of its own with the machine's programs, read only, a user
without privileges, and an init that passes signals on and reaps orphans, as in a container.

    /usr /bin /sbin /lib* /etc /opt …   the machine's, read only, without effect of set-user-id and file capabilities
    /sys /proc                          of its own namespaces, read only
    /dev                                null, zero, full, random, urandom, tty and terminals of its own
    /tmp /dev/shm                       its own, in memory
    places                              its own directories, writable
    readable                            other files of the machine, read only
    all else                            not there: homes, /run with the sockets of the machine, other nodes' directories

Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import signal
import socket
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from netem.kernel.agent import libc

NODE_USER = 65534
"""Number of the user and of the group that programs run as: `nobody`, which owns no files."""

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_BIND, _MS_REC = 1, 2, 4, 8, 32, 4096, 1 << 14
_MNT_DETACH = 2
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_CLONE_NEWUSER, _CLONE3, _IO_URING_SETUP = 0x10000000, 435, 425
_AF_ALG, _AF_VSOCK = 38, 40
_CALLS = {
    "x86_64": (0xC000003E, 56, 272, 41, 248, 249, 250, 298, 321, 323),
    "aarch64": (0xC00000B7, 220, 97, 198, 217, 218, 219, 241, 280, 282),
    "riscv64": (0xC00000F3, 220, 97, 198, 217, 218, 219, 241, 280, 282),
}
"""By machine: audit architecture; numbers of clone, unshare, socket, and of the refused calls: add_key, request_key,
keyctl, perf_event_open, bpf, userfaultfd."""
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 24, 38, 47, 4

_SYSTEM = ("bin", "etc", "gnu", "lib", "lib32", "lib64", "libx32", "nix", "opt", "sbin", "usr")
"""Directories of the machine's root that any program may need."""
_DEVICES = ("full", "null", "random", "tty", "urandom", "zero")
_LINKS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/ptmx": "pts/ptmx",
    "/dev/stderr": "/proc/self/fd/2",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/var/run": "../run",
}
_TMP_BYTES = 16 << 20
"""Size of /tmp, as in a container (netem.runtimes.docker)."""
_KERNEL_PATHS = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")
_HOSTS = "/etc/hosts"
_PLACE = "a directory of its own at"
_CONTROL_GROUPS = "/sys/fs/cgroup"
_BUILD = "/tmp"  # noqa: S108  # where the new root is put together: a place that every machine has
_OWN_NETWORK = {
    "/proc/sys/net/ipv4/ping_group_range": f"0 {2**31 - 1}",
    "/proc/sys/net/ipv4/ip_unprivileged_port_start": "0",
}
"""Settings that let programs without privileges use `ping` and listen at any port, as in a container."""

_SIGNAL_EXIT_BASE = 128


def confine(request: Mapping[str, Any]) -> None:
    """Give the calling process, alone in its PID namespace, a root of its own. Raises OSError.

    `groups`: files `cgroup.procs` of control groups to enter.
    `places`: pairs (directory of the node, directory of the machine that is mounted there, writable).
    `readable`: files and directories of the machine that are visible at their own paths.
    `hosts`: a file in place of /etc/hosts; empty: the machine's. It is ignored if the machine has no such file.
    `hostname`: the node's host name; empty: the machine's.
    """
    for procs in request["groups"]:
        Path(procs).write_text("0", encoding="ascii")  # ourselves
    for path, value in _OWN_NETWORK.items():
        with contextlib.suppress(FileNotFoundError):  # a kernel without the setting requires privileges
            Path(path).write_text(value, encoding="ascii")
    os.umask(0o022)
    _check(libc.unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC), "namespaces of its own")
    shown = {path: (_opened(path), _MS_RDONLY) for path in request["readable"]}
    shown |= {place: (_opened(source), 0) for place, source in request["places"]}
    if request["hosts"] and Path(_HOSTS).exists():
        shown[_HOSTS] = _opened(request["hosts"]), _MS_RDONLY
    _mount("tmpfs", _BUILD, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0755,size=1m")
    _mount_system()
    _make_devices()
    _make_temporary("/tmp", f"mode=1777,size={_TMP_BYTES}")  # noqa: S108
    _swap_roots(shown)
    if request["hostname"]:
        socket.sethostname(request["hostname"])


def give_up_rights() -> None:
    """Become a user without privileges, with no capability now or after any exec. Raises OSError."""
    for descriptor in (0, 1, 2):  # a program may open /dev/stdout, so it must own the file behind it
        if stat.S_IFMT(os.fstat(descriptor).st_mode) in (stat.S_IFIFO, stat.S_IFREG):
            os.fchown(descriptor, NODE_USER, NODE_USER)
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text(encoding="ascii"))
    for capability in range(last + 1):
        _check(libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0), "capbset")
    _check(libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "ambient")
    os.setgroups([])
    os.setresgid(NODE_USER, NODE_USER, NODE_USER)
    os.setresuid(NODE_USER, NODE_USER, NODE_USER)  # drops the capabilities, too
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _forbid_calls()


def _forbid_calls() -> None:
    """Refuse system calls by which a user without privileges reaches large parts of the kernel: user namespaces, in
    which it is root, and calls that no program of a node needs. Refuse two families of sockets that no network
    namespace confines: to the hypervisor (AF_VSOCK) and to the kernel's ciphers (AF_ALG), through which programs have
    written to files that they may only read (CVE-2026-31431). io_uring would open both unseen. On a machine that is not
    in `_CALLS`, none is refused.
    """
    machine = os.uname().machine
    if machine not in _CALLS:
        return
    architecture, clone, unshare, open_socket, *refused = _CALLS[machine]
    refused.append(_IO_URING_SETUP)
    end = len(refused) + 17
    """Index of the refusal; a jump counts from the instruction after it."""
    checks = [
        (_LOAD, 0, 0, 4),
        (_IF_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _REFUSE | errno.EPERM),  # calls of another architecture, which have other numbers
        (_LOAD, 0, 0, 0),
        (_IF_AT_LEAST, end - 5, 0, 0x40000000),
        (_IF_EQUAL, end - 5, 0, _CLONE3),
        *((_IF_EQUAL, end - position, 0, number) for position, number in enumerate(refused, start=7)),
        (_IF_EQUAL, 3, 0, clone),
        (_IF_EQUAL, 2, 0, unshare),
        (_IF_EQUAL, 4, 0, open_socket),
        (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, 16),  # the flags
        (_IF_ANY, 5, 0, _CLONE_NEWUSER),
        (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, 16),  # the family
        (_IF_EQUAL, 2, 0, _AF_ALG),
        (_IF_EQUAL, 1, 0, _AF_VSOCK),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE | errno.EPERM),
        (_RETURN, 0, 0, _REFUSE | errno.ENOSYS),  # its flags are in memory, invisible to filters; libraries use clone
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *check) for check in checks))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(checks), ctypes.addressof(code)))
    _check(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0), "a filter of system calls")


def mount_node_files(hosts: str) -> None:
    """Give the calling process, in the PID namespace of a node, the machine's files with the node's /proc and
    /etc/hosts. Raises OSError.
    """
    _check(libc.unshare(CLONE_NEWNS), "a mount namespace of its own")
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    if hosts and Path(_HOSTS).exists():
        _mount(hosts, _HOSTS, None, _MS_BIND)
        _remount(_HOSTS, _MS_RDONLY | _MS_NOSUID | _MS_NODEV)


def become_init(report: int) -> None:
    """Fork: the child returns and becomes the program; the caller stays as init of its PID namespace until the program
    has ended, and ends with its exit code (128 + the signal that ended it).

    Without it the program would be process 1, to which the kernel delivers no signal without a handler.
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
    waited = every - {signal.SIGCONT}  # the supervisor sends that to each process itself
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
    """Reap every dead child; the program's exit code if it is among them."""
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


def _mount_system() -> None:
    """Mount the machine's system directories, read only: mount points that are missing in them cannot be made."""
    for name in _SYSTEM:
        source, target = Path("/", name), Path(_BUILD, name)
        if source.is_symlink():
            target.symlink_to(source.readlink())
        elif source.is_dir():
            target.mkdir()
            _mount(str(source), str(target), None, _MS_BIND | _MS_REC)
    for name in ("proc", "run", "sys", "var"):
        Path(_BUILD, name).mkdir()
    for kind in ("proc", "sysfs"):
        _mount(kind, f"{_BUILD}/{kind.removesuffix('fs')}", kind, _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    if Path(_CONTROL_GROUPS).is_dir():
        _mount(_CONTROL_GROUPS, _BUILD + _CONTROL_GROUPS, None, _MS_BIND | _MS_REC)
    for path in _KERNEL_PATHS:
        if Path(path).exists():
            _mount(_BUILD + path, _BUILD + path, None, _MS_BIND)
    for place in _mounts_below(_BUILD):
        if place != f"{_BUILD}/proc":
            _forbid_writing(place)


def _forbid_writing(place: str) -> None:
    """Make the mount at a place read only; a mount hidden by another one cannot be reached and is skipped."""
    try:
        noexec = _MS_NOEXEC if os.statvfs(place).f_flag & os.ST_NOEXEC else 0
        _remount(place, _MS_RDONLY | _MS_NOSUID | _MS_NODEV | noexec)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOENT):
            raise


def _mounts_below(root: str) -> list[str]:
    lines = os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).splitlines()
    places = {_plain_path(line.split(" ")[4]) for line in lines}
    return sorted(place for place in places if place.startswith(f"{root}/"))


def _make_devices() -> None:
    _make_temporary("/dev", "mode=0755,size=64k")
    for name in _DEVICES:
        Path(f"{_BUILD}/dev/{name}").touch()
        _mount(f"/dev/{name}", f"{_BUILD}/dev/{name}", None, _MS_BIND)
    _make_temporary("/dev/shm", "mode=1777")  # noqa: S108
    Path(f"{_BUILD}/dev/pts").mkdir()
    options = "newinstance,ptmxmode=0666,mode=0620"
    _mount("devpts", f"{_BUILD}/dev/pts", "devpts", _MS_NOSUID | _MS_NOEXEC, options)
    for path, target in _LINKS.items():
        Path(_BUILD + path).symlink_to(target)


def _make_temporary(place: str, options: str) -> None:
    Path(_BUILD + place).mkdir()
    _mount("tmpfs", _BUILD + place, "tmpfs", _MS_NOSUID | _MS_NODEV, options)


def _swap_roots(shown: Mapping[str, tuple[int, int]]) -> None:
    """Make the built tree the root, mount `shown` (place: descriptor, flags of its mount) in it, and detach the
    machine's root. Places are made after the switch, so that a symbolic link cannot lead out of the new root.
    """
    machine = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    os.chdir(_BUILD)
    _check(libc.pivot_root(b".", b"."), "a root of its own")  # the machine's root is stacked on it now
    for place, (descriptor, flags) in sorted(shown.items()):
        _show(place, descriptor, flags)
    os.fchdir(machine)
    _check(libc.umount2(b".", _MNT_DETACH), "leaving the machine's root")
    os.chdir("/")
    for place in ("/dev", "/"):
        _remount(place, _MS_RDONLY | _MS_NOSUID | _MS_NODEV)


def _show(place: str, descriptor: int, flags: int) -> None:
    if place != os.path.normpath(place):
        raise OSError(errno.EINVAL, f"{place} is no plain path")
    target = Path(place)
    if flags and _is_there(place, descriptor):
        return
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            target.mkdir(parents=True, exist_ok=True)
        elif not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
    except OSError as error:
        raise OSError(error.errno, f"{_PLACE} {place}: {error.strerror}") from error
    _mount(f"/proc/self/fd/{descriptor}", place, None, _MS_BIND)
    _remount(place, flags | _MS_NOSUID | _MS_NODEV)


def _is_there(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(Path(path).stat(), os.fstat(descriptor))
    except OSError:
        return False


def _plain_path(escaped: str) -> str:
    """The path of a field of mountinfo, where blanks and the like are in octal."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), escaped)


def _opened(source: str) -> int:
    return os.open(source, os.O_PATH | os.O_CLOEXEC)


def _remount(place: str, flags: int) -> None:
    _mount("none", place, None, _MS_REMOUNT | _MS_BIND | flags)


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    words = [text.encode() if text is not None else None for text in (source, target, kind, data)]
    _check(libc.mount(words[0], words[1], words[2], flags, words[3]), f"{_PLACE} {target}")


def _check(result: int, what: str) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
