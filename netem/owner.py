"""Owner of a resource that outlives a process: a label on the resource, read by the clean-up.

A pid alone is not enough (it is reused, and invalid in another namespace or after a reboot), so the label has four
parts: boot, pid namespace, pid, start time of the process.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_NUMBER = re.compile(r"[0-9]{1,20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """One process of one boot of one machine."""

    boot: str
    pid_namespace: str
    pid: int
    started_ticks: int

    @classmethod
    def this_process(cls) -> Owner:
        pid = os.getpid()
        started = _started_ticks(pid)
        assert started is not None, "we live"
        return cls(boot=_boot(), pid_namespace=_pid_namespace(), pid=pid, started_ticks=started)

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """The owner of a text made by `str`; None if the text is invalid."""
        parts = text.split("/")
        if len(parts) != 4 or not all(_NUMBER.fullmatch(part) for part in parts[2:]):
            return None
        return cls(boot=parts[0], pid_namespace=parts[1], pid=int(parts[2]), started_ticks=int(parts[3]))

    def __str__(self) -> str:
        return f"{self.boot}/{self.pid_namespace}/{self.pid}/{self.started_ticks}"

    def is_dead(self) -> bool:
        """Whether it has certainly ended: another boot, or a pid of this namespace that is no longer this process."""
        if self.boot != _boot():
            return True
        return self.pid_namespace == _pid_namespace() and _started_ticks(self.pid) != self.started_ticks


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())


def _started_ticks(pid: int) -> int | None:
    """Start time in clock ticks since boot; None when there is no such process, or only a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The program's name stands in parentheses and may contain anything; field 3 is the state, field 22 the start.
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])
