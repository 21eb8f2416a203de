"""Limits of a node's processes through the kernel's control groups, version 1 and version 2.

    with ControlGroup.make("p1-n3", {"cpu"}) as group:
        group.take_in(pid)
        group.set_cpu(0.1)       # a tenth of one core
        group.set_cpu(None)      # no limit

A group lives in the file system of the controller, in the group of this process (version 1) or at the root (version 2,
where a group with processes may not enable controllers for its children). Its directory bears the name of the process
that made it: a SIGKILL leaves an empty directory, which the next `make` or `sweep` removes.

CPU: the kernel gives a group `quota` of processor time in each `period`. This equals a slower processor only for work
that takes longer than a period. Quotas of 1 ms in 10 ms gave half of the requested share (the kernel allots 5 ms at a
time and checks at each tick); quotas of 5 ms gave 83 to 100 % of it, so the period follows from that quota.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from netem.errors import FabricError
from netem.owner import Owner
from topologies.formats.units import format_size

PREFIX = "orderbed"
CONTROLLERS = frozenset({"cpu", "memory", "pids"})

QUOTA_MIN_US = 1_000
"""Least quota that the kernel accepts."""
QUOTA_US = 5_000
"""Processor time that the kernel allots at a time (kernel.sched_cfs_bandwidth_slice_us)."""
PERIOD_MIN_US = 10_000
PERIOD_MAX_US = 1_000_000
CPU_MIN_RATIO = QUOTA_MIN_US / PERIOD_MAX_US


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a node; None: no limit. `cpu_ratio` is of one core: 0.1, or 2.0 for two of them.

    Raises ValueError for values that no kernel accepts.
    """

    cpu_ratio: float | None = None
    memory_bytes: int | None = None
    processes: int | None = None

    def __post_init__(self) -> None:
        if self.cpu_ratio is not None and not self.cpu_ratio >= CPU_MIN_RATIO:
            raise ValueError(f"a CPU share must be at least {CPU_MIN_RATIO:.1%} of a core")
        for name in ("memory_bytes", "processes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1")

    @property
    def controllers(self) -> frozenset[str]:
        """Controllers of the kernel that these limits need."""
        needs = {"cpu": self.cpu_ratio, "memory": self.memory_bytes, "pids": self.processes}
        return frozenset(name for name, value in needs.items() if value is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """Place of the groups of one controller."""

    version: int
    root: Path
    parent: Path


def cpu_quota_us(ratio: float) -> tuple[int, int]:
    """(quota, period) in microseconds for a share of one core. Raises ValueError below CPU_MIN_RATIO."""
    if not ratio >= CPU_MIN_RATIO:
        raise ValueError(f"a CPU share must be at least {CPU_MIN_RATIO:.1%} of a core")
    period_us = min(PERIOD_MAX_US, max(PERIOD_MIN_US, round(QUOTA_US / ratio)))
    return max(QUOTA_MIN_US, round(ratio * period_us)), period_us


def find_mount(controller: str, proc: Path = Path("/proc")) -> Mount | None:
    """Place for a group of `controller`: version 1 if it is mounted as such, else version 2; None if there is none."""
    try:
        mounts = (proc / "self" / "mountinfo").read_text(encoding="utf-8").splitlines()
        groups = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    unified = None
    for line in mounts:
        before, _, after = line.partition(" - ")
        file_system, _, options = after.split(" ", 2)
        point = Path(before.split(" ")[4])
        if file_system == "cgroup" and controller in options.split(","):
            return Mount(version=1, root=point, parent=_own_place(point, controller, groups))
        if file_system == "cgroup2" and controller in _words(point / "cgroup.controllers"):
            unified = Mount(version=2, root=point, parent=point)
    return unified


def over_its_memory(limit_bytes: int | None) -> str:
    """Sentence on a node that the kernel killed at its memory limit."""
    limit = "" if limit_bytes is None else f" of {format_size(limit_bytes)}"
    return f"the kernel killed it at its memory limit{limit}"


def reason_against(controllers: Collection[str]) -> str:
    """Sentence why no group with these controllers can be made here; empty if one can. Makes one as a probe."""
    try:
        with ControlGroup.make("probe", controllers):
            return ""
    except FabricError as error:
        return str(error)


class ControlGroup:
    """One group of this process: a directory for each controller (version 1), or one for all of them (version 2)."""

    def __init__(self, name: str, mounts: dict[str, Mount]) -> None:
        self.name = name
        self._mounts = mounts

    @classmethod
    def make(cls, name: str, controllers: Collection[str]) -> ControlGroup:
        """Make a group. Raises FabricError, one sentence with the remedy."""
        unknown = set(controllers) - CONTROLLERS
        assert controllers and not unknown, f"{unknown or 'nothing'} is no controller"
        mounts: dict[str, Mount] = {}
        for controller in sorted(controllers):
            mount = find_mount(controller)
            if mount is None:
                raise FabricError(f"this machine has no control groups for {controller}: {_REMEDY}")
            mounts[controller] = mount
        sweep()
        group = cls(f"{PREFIX}-{_plain(str(Owner.this_process()))}-{_plain(name)}", mounts)
        try:
            group._make_directories()
        except OSError as error:
            group.remove()
            raise FabricError(f"cannot make a control group ({error.filename}: {error.strerror}): {_REMEDY}") from error
        return group

    def take_in(self, pid: int) -> None:
        """Move a process (a pid of this process's namespace) into the group; its future children are in it, too."""
        for directory in self._directories():
            _write(directory / "cgroup.procs", str(pid))

    def procs_files(self) -> list[Path]:
        """Files to which a process writes 0 to enter the group."""
        return [directory / "cgroup.procs" for directory in self._directories()]

    def set(self, limits: Limits) -> Limits:
        """Set all limits whose controllers the group has; a limit of None is lifted.

        Returns the limits read back from the kernel. Raises FabricError, also for a limit whose controller is missing.
        """
        missing = limits.controllers - set(self._mounts)
        if missing:
            raise FabricError(f"the control group {self.name} was made without {', '.join(sorted(missing))}")
        done = Limits()
        if "cpu" in self._mounts:
            done = replace(done, cpu_ratio=self.set_cpu(limits.cpu_ratio))
        if "memory" in self._mounts:
            done = replace(done, memory_bytes=self._set_memory(limits.memory_bytes))
        if "pids" in self._mounts:
            done = replace(done, processes=self._set_processes(limits.processes))
        return done

    def set_cpu(self, ratio: float | None) -> float | None:
        """Set a share of one core; None: no limit. Returns the share read back from the kernel."""
        directory, version = self.place("cpu")
        write_cpu(directory, version, ratio)
        return read_cpu(directory, version)

    def memory_kills(self) -> int:
        """Number of its processes that the kernel has killed for lack of memory so far."""
        directory, version = self.place("memory")
        path = directory / ("memory.events" if version == 2 else "memory.oom_control")
        counts = dict(line.split() for line in self._read(path).splitlines())
        return int(counts.get("oom_kill", 0))

    def remove(self) -> None:
        """Remove it. Its processes must have ended; a directory still in use is left to the next `sweep`."""
        for directory in self._directories():
            with suppress(OSError):
                directory.rmdir()

    def __enter__(self) -> ControlGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _make_directories(self) -> None:
        for controller, mount in self._mounts.items():
            if mount.version == 2:
                share = mount.parent / "cgroup.subtree_control"
                if controller not in _words(share):
                    share.write_text(f"+{controller}", encoding="ascii")
        for directory in self._directories():
            directory.mkdir(exist_ok=True)

    def _set_memory(self, limit_bytes: int | None) -> int | None:
        directory, version = self.place("memory")
        limit = directory / ("memory.max" if version == 2 else "memory.limit_in_bytes")
        swap = directory / ("memory.swap.max" if version == 2 else "memory.memsw.limit_in_bytes")
        free = "max" if version == 2 else "-1"
        text = free if limit_bytes is None else str(limit_bytes)
        if not swap.exists():
            _write(limit, text)
        elif version == 2:
            _write(limit, text)
            _write(swap, free if limit_bytes is None else "0")
        else:
            # The limit with swap must never be less than that without: first lift it, then set memory, then both.
            for path, value in ((swap, free), (limit, text), (swap, text)):
                _write(path, value)
        return None if limit_bytes is None else int(self._read(limit))

    def _set_processes(self, limit: int | None) -> int | None:
        directory, _ = self.place("pids")
        _write(directory / "pids.max", "max" if limit is None else str(limit))
        value = self._read(directory / "pids.max").strip()
        return None if value == "max" else int(value)

    def place(self, controller: str) -> tuple[Path, int]:
        """Its directory for this controller, and the version. Raises FabricError if it was made without this one."""
        if controller not in self._mounts:
            raise FabricError(f"the control group {self.name} was made without {controller}")
        mount = self._mounts[controller]
        return mount.parent / self.name, mount.version

    def _directories(self) -> list[Path]:
        return sorted({mount.parent / self.name for mount in self._mounts.values()})

    def _read(self, path: Path) -> str:
        try:
            return path.read_text(encoding="ascii")
        except OSError as error:
            raise FabricError(f"cannot read {path}: {error.strerror}") from error


class CpuLimiter:
    """Limits the CPU share of nodes of any runtime and lifts the limit again; used by one thread.

    A node with a control group of its own (a container, a program with limits) is limited in it, any other is moved
    into a new one. Close it when the nodes have ended: a group that holds a process cannot be removed.
    """

    def __init__(self) -> None:
        self._held: dict[str, _CpuLimit] = {}
        self._made: list[ControlGroup] = []

    def slow(self, name: str, pid: int, ratio: float) -> float | None:
        """Limit the processes of node `name` to this share of one core; `pid` is the first of them. Returns the share
        read back from the kernel. Raises FabricError.
        """
        self.release(name)
        place, version, before = _cpu_place(pid), _cpu_mount().version, cpu_of(pid)
        if place == _cpu_place(os.getpid()):
            group = ControlGroup.make(f"{len(self._made)}-{name}", {"cpu"})
            self._made.append(group)
            for one in processes_with(pid):
                group.take_in(one)
            (place, version), before = group.place("cpu"), None
        self._held[name] = _CpuLimit(place=place, version=version, before=before)
        write_cpu(place, version, ratio)
        return read_cpu(place, version)

    def release(self, name: str) -> None:
        """Restore the earlier share of a node. No effect on a node that is not limited, or has ended."""
        limit = self._held.pop(name, None)
        if limit is not None and limit.place.is_dir():
            write_cpu(limit.place, limit.version, limit.before)

    def release_all(self) -> None:
        for name in list(self._held):
            self.release(name)

    def close(self) -> None:
        self._held.clear()
        for group in self._made:
            group.remove()
        self._made.clear()

    def __enter__(self) -> CpuLimiter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _CpuLimit:
    """The group in which a node is limited, and its earlier share."""

    place: Path
    version: int
    before: float | None


def processes_with(pid: int) -> list[int]:
    """Pids, in this process's namespace, of all processes in that of `pid`. Raises FabricError when it has ended."""
    try:
        wanted = Path(f"/proc/{pid}/ns/pid").stat().st_ino
    except OSError as error:
        raise FabricError(f"process {pid} has ended") from error
    found = []
    for one in Path("/proc").iterdir():
        with suppress(OSError):
            if one.name.isdigit() and (one / "ns" / "pid").stat().st_ino == wanted:
                found.append(int(one.name))
    return found


def cpu_of(pid: int) -> float | None:
    """CPU limit of the control group of `pid` itself; None: no limit. Raises FabricError if unknown."""
    return read_cpu(_cpu_place(pid), _cpu_mount().version)


def _cpu_mount() -> Mount:
    mount = find_mount("cpu")
    if mount is None:
        raise FabricError(f"this machine has no control groups for cpu: {_REMEDY}")
    return mount


def _cpu_place(pid: int) -> Path:
    """The directory of the CPU control group of `pid`."""
    mount = _cpu_mount()
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise FabricError(f"cannot see the control group of process {pid}: {error.strerror}") from error
    return mount.root / _path_of("cpu" if mount.version == 1 else "", groups).lstrip("/")


def write_cpu(directory: Path, version: int, ratio: float | None) -> None:
    """Limit the group in `directory` to this share of one core; None: no limit. Raises FabricError."""
    quota_us, period_us = cpu_quota_us(ratio) if ratio is not None else (-1, 100_000)
    if version == 2:
        _write(directory / "cpu.max", f"{'max' if quota_us < 0 else quota_us} {period_us}")
        return
    # This order avoids refused intermediate pairs: without a quota any period is accepted.
    _write(directory / "cpu.cfs_quota_us", "-1")
    _write(directory / "cpu.cfs_period_us", str(period_us))
    _write(directory / "cpu.cfs_quota_us", str(quota_us))


def read_cpu(directory: Path, version: int) -> float | None:
    """CPU limit of the group in `directory` by the kernel; None: no limit. Raises FabricError."""
    try:
        if version == 2:
            quota, period = (directory / "cpu.max").read_text(encoding="ascii").split()
        else:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            quota, period = ((directory / name).read_text(encoding="ascii").strip() for name in names)
    except OSError as error:
        raise FabricError(f"cannot read the CPU share from {directory}: {error.strerror}") from error
    return None if quota in ("max", "-1") else int(quota) / int(period)


def sweep() -> None:
    """Remove the empty groups of processes that are gone: a SIGKILL leaves directories, never processes."""
    for controller in sorted(CONTROLLERS):
        mount = find_mount(controller)
        if mount is None:
            continue
        for directory in mount.parent.glob(f"{PREFIX}-*"):
            owner = _owner_of(directory.name)
            if owner is not None and owner.is_dead():
                with suppress(OSError):
                    directory.rmdir()


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="ascii")
    except OSError as error:
        raise FabricError(f"the kernel refuses {text!r} for {path}: {error.strerror}") from error


_REMEDY = "run as root on the machine itself, with the control group file system mounted and writable"


def _own_place(point: Path, controller: str, groups: list[str]) -> Path:
    """Directory of this process's group, whose limits thus apply to new groups, too; the mount if it is not visible."""
    own = point / _path_of(controller, groups).lstrip("/")
    return own if own.is_dir() else point


def _path_of(controller: str, groups: list[str]) -> str:
    """The path of a process in the hierarchy that carries `controller`; empty: version 2."""
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return "/"


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []


def _plain(text: str) -> str:
    """The text with characters of a directory's name only; `_owner_of` is the inverse for an owner."""
    return re.sub(r"[^a-zA-Z0-9.+~]", "_", text.replace("/", "+").replace("-", "~"))


def _owner_of(name: str) -> Owner | None:
    _, _, rest = name.partition("-")
    owner, _, _ = rest.partition("-")
    parts = owner.replace("+", "/").replace("~", "-").split("/")
    if len(parts) == 4:
        parts[1] = re.sub(r"^pid__(\d+)_$", r"pid:[\1]", parts[1])
    return Owner.parse("/".join(parts))
