"""The User-Mode Linux guest: a Linux kernel as a process, with the netem that the host's kernel lacks.

It boots from the host's own file system in 1.5 to 2 s, opens one tap per node port, and holds bridges, routers and
qdiscs. Only its kernel runs while frames flow; its user space is one small process (`netem.kernel.uml_init`),
because a system call in the guest costs some 50 us. It is a child of the supervisor: it cannot outlive it.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netem.errors import FabricError
from netem.kernel.channel import LineChannel
from netem.kernel.framing import ChannelClosedError
from netem.kernel.supervised import Process, SupervisorLink
from netem.kernel.supervisor import GUEST_MEMORY

PACKAGE = "user-mode-linux"
"""Debian and Ubuntu package with the kernel and its modules."""

MODULES = (
    "net/llc/llc", "net/802/stp", "lib/crc-ccitt", "net/ipv6/ipv6", "net/bridge/bridge", "drivers/net/veth",
    "drivers/net/ifb", "net/sched/sch_netem", "net/sched/sch_tbf", "net/sched/sch_ingress", "net/sched/cls_bpf",
    "net/sched/act_mirred",
)  # fmt: skip
"""Modules in the order of their dependencies. The fifo qdiscs are built in."""

_BINARIES = ("linux.uml", "linux")
_MODULES_ROOT = Path("/usr/lib/uml/modules")
_MEMORY_MIB = 768
"""Memory of the guest. It holds the frames in delay lines: 100,000 full frames are 230 MB. The host allocates only
pages that are used."""

_NAME = "guest"
_CONSOLE = GUEST_MEMORY / ".uml" / _NAME / "mconsole"

_BOOT_TIMEOUT_S = 30.0
_REQUEST_TIMEOUT_S = 30.0
_SHOWN_LINES = 8
_METRONOME = """
import os, sys, time
guest = int(sys.argv[1])
try:
    while True:
        os.kill(guest, 29)
        time.sleep(0.001)
except ProcessLookupError:
    sys.exit()
"""
"""Sends SIGIO to the guest every millisecond. The host's tun driver sends SIGIO before it marks the tap readable, so a
guest that polls quickly finds nothing, and the frame waits for the next SIGIO: measured, 1 lone frame in 20,000 waited
for the next one, however long that took. Costs 3 % of a processor, and as much in the guest.
"""

_INIT = Path(__file__).resolve().with_name("uml_init.py")
_START = Path(__file__).resolve().with_name("uml_start.py")
_NOT_NEEDED = ("initcall_blacklist=raid6_select_algo,init_zswap", "pty.legacy_count=0")
"""Parts of the kernel that would take most of its start: 0.9 s for choosing the fastest sums of a RAID, 0.4 s for 512
terminals. Nothing in the guest has either."""
_SSE_ONLY = (
    "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX_Fast_Unaligned_Load,-AVX,-AVX2,-AVX512F,-AVX512VL,-AVX512BW,-XSAVE,-XSAVEC",
    "OPENSSL_ia32cap=~0x1000000000000000:0x0",
)
"""Environment of a guest that cannot save wider vector registers: it keeps libraries from using them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestKernel:
    """A guest kernel that can be booted here."""

    binary: Path
    release: str
    modules: Path

    def missing_modules(self) -> tuple[str, ...]:
        return tuple(name for name in MODULES if not (self.modules / f"{name}.ko").is_file())


def find_guest_kernel() -> GuestKernel:
    """The installed guest kernel and its modules. Raises FabricError that names the package to install."""
    binary = next((found for name in _BINARIES if (found := shutil.which(name)) is not None), None)
    if binary is None:
        raise FabricError(f"no User-Mode Linux kernel found: apt install {PACKAGE}")
    try:
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise FabricError(f"{binary} does not run ({error}): reinstall {PACKAGE}") from error
    release = said.strip()
    if not re.fullmatch(r"[0-9][0-9A-Za-z.+~_-]*", release):
        raise FabricError(f"{binary} is not a User-Mode Linux kernel: apt install {PACKAGE}")
    kernel = GuestKernel(binary=Path(binary), release=release, modules=_MODULES_ROOT / release / "kernel")
    missing = kernel.missing_modules()
    if missing:
        raise FabricError(f"{kernel.modules} has no {missing[0]}.ko: reinstall {PACKAGE}")
    return kernel


def tap_name(port: int) -> str:
    """The tap of port number `port`, in the fabric namespace."""
    return f"t{port}"


def device_name(port: int) -> str:
    """The same port's device in the guest."""
    return f"vec{port}"


class Guest:
    """A guest that has booted, or is booting."""

    def __init__(
        self, supervisor: SupervisorLink, process: Process, line: LineChannel, log_path: Path, kernel: GuestKernel
    ) -> None:
        self._supervisor = supervisor
        self._process = process
        self._metronome: Process | None = None
        self._line = line
        self._log_path = log_path
        self.kernel = kernel

    @classmethod
    def boot(cls, supervisor: SupervisorLink, kernel: GuestKernel, log_path: Path) -> Guest:
        """Start the guest; the taps may be made while it boots. Raises FabricError when it cannot be started."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs, log_path.open("wb") as log, Path(os.devnull).open("rb") as nothing:
            descriptors = [nothing.fileno(), log.fileno(), log.fileno(), theirs.fileno()]
            try:
                environment = {"HOME": str(GUEST_MEMORY)}
                # urgent: measured under load, 99 of 100 frames are late by 0.2 ms instead of 8 to 20 ms
                process = supervisor.spawn(_command_line(kernel), environment, descriptors, urgent=True)
            except FabricError:
                ours.close()
                raise
        return cls(supervisor, process, LineChannel(ours), log_path, kernel)

    @property
    def pid_in_guest(self) -> int:
        return self._process.pid_in_guest

    @property
    def scheduling(self) -> str:
        """Scheduling of the guest by the host's kernel: `real time` or `nice N`."""
        return self._process.scheduling

    def await_ready(self, ports: int) -> None:
        """Wait until its init answers, then load the modules and give it its ports. Raises FabricError, with the last
        lines of its console when it did not boot.
        """
        try:
            self._line.await_hello(_BOOT_TIMEOUT_S)
        except (ChannelClosedError, TimeoutError, OSError, ValueError) as error:
            raise FabricError(self._failure_text("did not boot")) from error
        self._line.set_timeout(_REQUEST_TIMEOUT_S)
        paths = [str(self.kernel.modules / f"{name}.ko") for name in MODULES]
        reply = self.agent("modules", paths=paths)
        if "error" in reply:
            raise FabricError(f"the guest kernel cannot load its modules: {reply['error']['text']}")
        # Through its management console, because the command line has room for only some 100 ports.
        devices = [f"config {device_name(port)}:transport=tap,ifname={tap_name(port)}" for port in range(ports)]
        self._supervisor.ask("console", step="giving the guest its ports", path=str(_CONSOLE), commands=devices)
        self._start_metronome()

    def agent(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send one request to the agent in the guest; a refusal is in the reply. Raises FabricError if it is gone."""
        try:
            return self._line.request(do, **arguments)
        except (ChannelClosedError, TimeoutError, OSError, ValueError) as error:
            raise FabricError(self._failure_text("stopped answering")) from error

    def failure(self) -> FabricError | None:
        """Error if the guest has died, else None."""
        if self._process.poll() is not None:
            return FabricError(self._failure_text("died"))
        if self._metronome is not None and self._metronome.poll() is not None:
            return FabricError("the metronome of the User-Mode Linux guest died: frames may wait in its taps")
        return None

    def close(self) -> None:
        """End it. Its taps and namespaces go with the supervisor."""
        self._line.close()

    def _start_metronome(self) -> None:
        """Start the process that sends SIGIO; its end at that of the guest is visible in `guest.log`."""
        with self._log_path.open("ab") as log, Path(os.devnull).open("rb") as nothing:
            self._metronome = self._supervisor.spawn(
                [sys.executable, "-ISc", _METRONOME, str(self._process.pid_in_guest)],
                {}, [nothing.fileno(), log.fileno(), log.fileno()], urgent=True,
            )  # fmt: skip

    def _failure_text(self, what: str) -> str:
        code = self._process.poll()
        ended = "it still runs" if code is None else f"exit code {code}"
        console = self._log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-_SHOWN_LINES:]
        return f"the User-Mode Linux guest {what} ({ended}); its console, {self._log_path}, ends with: " + " | ".join(
            console
        )


def prelude() -> tuple[list[str], list[str]]:
    """Words before the name of the guest's kernel, and variables for the environment of its programs, that this
    machine's processor requires. Both are empty if the guest can save all registers (uml_start.py explains it)."""
    if " amx_tile" not in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace"):
        return [], []
    return [sys.executable, "-ISB", str(_START)], list(_SSE_ONLY)


def _command_line(kernel: GuestKernel) -> list[str]:
    """Command line of the guest: console on descriptor 1, the line to the conductor on descriptor 3."""
    start, environment = prelude()
    return [
        *start, str(kernel.binary), "root=/dev/root", "rootfstype=hostfs", "rootflags=/", f"mem={_MEMORY_MIB}M",
        "con=null", "con0=null,fd:1", "ssl0=fd:3,fd:3", "quiet", "panic=-1", f"umid={_NAME}", *environment,
        *_NOT_NEEDED, f"init={Path(sys.executable).resolve()}", "--", "-ISB", str(_INIT), str(_INIT.parents[2]),
    ]  # fmt: skip
