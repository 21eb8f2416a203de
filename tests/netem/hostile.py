"""A hostile program: it attempts to get at the machine. It runs in a node, from its source: standard library only.

An attempt that does not raise has succeeded. The argument is a dictionary of attempts: `sockets` to connect to, `write`
(files, and directories to make a file in), `read`, and `kill`: processes by the machine's numbers.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import platform
import resource
import signal
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECRETS = ("/proc/1/root/etc/shadow", "/proc/kcore")
NAMESPACES = {"mnt": 0x20000, "net": 0x40000000, "pid": 0x20000000, "user": 0x10000000, "uts": 0x04000000}
PTRACE_ATTACH = 16
MS_REMOUNT, MS_BIND = 32, 4096
IO_URING_SETUP = 425
INIT_MODULE = {"x86_64": 175, "aarch64": 105, "riscv64": 105}
MACHINE_FILES = (
    "/proc/sys/kernel/core_pattern", "/proc/sys/net/ipv4/ip_forward", "/proc/sysrq-trigger",
    "/sys/kernel/uevent_helper", "/sys/fs/cgroup/cgroup.procs",
)  # fmt: skip
DEVICES = (
    "/dev/kmsg", "/dev/mem", "/dev/kvm", "/dev/net/tun", "/dev/fuse", "/dev/vda", "/dev/sda", "/dev/loop-control",
)  # fmt: skip
LIBC = ctypes.CDLL(None, use_errno=True)


def main(asked: dict[str, Any]) -> None:
    got, refused = [], []
    for name, attempt in attempts(asked):
        try:
            attempt()
        except (OSError, ValueError) as error:
            refused.append(f"{name}: {error}")
        else:
            got.append(name)
    own = Path("own")
    own.write_text("written", encoding="utf-8")
    sys.stdout.write(json.dumps({"got": got, "refused": refused, "own": own.read_text(encoding="utf-8")}) + "\n")


def attempts(asked: dict[str, Any]) -> list[tuple[str, Callable[[], object]]]:
    writes, reads = [*asked["write"], *MACHINE_FILES, *DEVICES], [*asked["read"], *SECRETS]
    return [
        *((f"speak to {path}", functools.partial(speak, path)) for path in asked["sockets"]),
        *((f"write {path}", functools.partial(write, path)) for path in writes),
        *((f"read {path}", functools.partial(Path(path).read_bytes)) for path in reads),
        *((f"kill {pid}", functools.partial(os.kill, pid, signal.SIGKILL)) for pid in asked["kill"]),
        *((f"trace {pid}", functools.partial(call, "ptrace", PTRACE_ATTACH, pid, 0, 0)) for pid in asked["kill"]),
        *((f"a new {name} namespace", functools.partial(call, "unshare", flag)) for name, flag in NAMESPACES.items()),
        *((f"the {name} namespace of 1", functools.partial(join, name, flag)) for name, flag in NAMESPACES.items()),
        ("mount over /etc", functools.partial(call, "mount", b"x", b"/etc", b"tmpfs", 0, None)),
        ("mount a proc", functools.partial(call, "mount", b"proc", b"/tmp", b"proc", 0, None)),
        ("write again to /usr", functools.partial(call, "mount", b"", b"/usr", None, MS_REMOUNT | MS_BIND, None)),
        ("lift /usr", functools.partial(call, "umount2", b"/usr", 2)),
        ("chroot", functools.partial(os.chroot, "/tmp")),
        ("a module", functools.partial(call, "syscall", INIT_MODULE.get(platform.machine(), -1), b"", 0, b"")),
        ("a device", functools.partial(os.mknod, "/tmp/disk", stat.S_IFBLK | 0o666, os.makedev(8, 0))),
        ("root", functools.partial(os.setresuid, 0, 0, 0)),
        ("the group root", functools.partial(os.setresgid, 0, 0, 0)),
        ("shadow's group", functools.partial(os.setgroups, [42])),
        ("another name", functools.partial(socket.sethostname, "mine")),
        ("raw frames", functools.partial(socket.socket, socket.AF_PACKET, socket.SOCK_RAW, 0x300)),
        ("the kernel's ciphers", functools.partial(socket.socket, socket.AF_ALG, socket.SOCK_SEQPACKET)),
        ("the hypervisor", functools.partial(socket.socket, socket.AF_VSOCK, socket.SOCK_STREAM)),
        ("sockets unseen", functools.partial(call, "syscall", IO_URING_SETUP, 1, ctypes.create_string_buffer(256))),
        ("real time", functools.partial(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))),
        ("a better niceness", functools.partial(os.setpriority, os.PRIO_PROCESS, 0, -10)),
        ("more memory that is never swapped", functools.partial(more, resource.RLIMIT_MEMLOCK)),
        ("rights by a file", functools.partial(rights_by_a_file)),
    ]


def call(name: str, *arguments: object) -> None:
    if getattr(LIBC, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def speak(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(2)
        one.connect(path)


def write(path: str) -> None:
    target = Path(path, "orderbed-was-here") if Path(path).is_dir() else Path(path)
    with target.open("ab"):
        pass


def join(name: str, flag: int) -> None:
    descriptor = os.open(f"/proc/1/ns/{name}", os.O_RDONLY)
    try:
        call("setns", descriptor, flag)
    finally:
        os.close(descriptor)


def more(limit: int) -> None:
    hard = resource.getrlimit(limit)[1]
    if hard == resource.RLIM_INFINITY:
        raise OSError("there is no limit")
    resource.setrlimit(limit, (hard + 1, hard + 1))


def rights_by_a_file() -> None:
    """A set-user-ID program, which gives root to each user that starts it."""
    if "NoNewPrivs:\t1" in Path("/proc/self/status").read_text(encoding="ascii"):
        raise OSError("the kernel heeds no such file here")
