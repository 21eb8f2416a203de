"""Whether a process is frozen, seen from the kernel's own control-group files (both versions).

`docker pause` has been seen to return before the freeze took effect (ClickHouse PR 104167): a fault that counts from
then would start too early. So whoever pauses waits until the kernel says that it is so.
"""

from __future__ import annotations

import time
from pathlib import Path

from netem.errors import FabricError

FREEZE_BOUND_S = 5.0
POLL_S = 0.001


def wait_frozen(pid: int, *, frozen: bool) -> None:
    """Return once the control group of `pid` is frozen (or thawed).

    Raises FabricError when that has not come about within FREEZE_BOUND_S, or cannot be seen.
    """
    state = freezer_file(pid)
    deadline = time.monotonic() + FREEZE_BOUND_S
    while is_frozen(state) is not frozen:
        if time.monotonic() > deadline:
            raise FabricError(f"{state} does not say {'frozen' if frozen else 'thawed'} after {FREEZE_BOUND_S:.0f} s")
        time.sleep(POLL_S)


def is_frozen(state: Path) -> bool:
    """What a `freezer.state` (version 1) or `cgroup.events` (version 2) file says."""
    try:
        text = state.read_text(encoding="ascii")
    except OSError as error:
        raise FabricError(f"cannot see whether the node is frozen: {error}") from error
    if state.name == "freezer.state":
        return text.strip() == "FROZEN"
    return "frozen 1" in text.splitlines()


def freezer_file(pid: int, proc: Path = Path("/proc")) -> Path:
    """The file that tells about `pid`: version 1 where the freezer is mounted as such, else version 2."""
    try:
        groups = (proc / str(pid) / "cgroup").read_text(encoding="utf-8").splitlines()
        mounts = (proc / "self" / "mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise FabricError(f"cannot see whether the node is frozen: {error}") from error
    paths = {tuple(controllers.split(",")): path for _, controllers, path in (line.split(":", 2) for line in groups)}
    for kind, controller, name in (("cgroup", "freezer", "freezer.state"), ("cgroup2", "", "cgroup.events")):
        path = next((path for controllers, path in paths.items() if controller in controllers), None)
        mount = _mount_point(mounts, kind, controller)
        if path is not None and mount is not None and (mount / path.lstrip("/") / name).exists():
            return mount / path.lstrip("/") / name
    raise FabricError("cannot see whether the node is frozen: no control group file system with a freezer is mounted")


def _mount_point(mounts: list[str], kind: str, controller: str) -> Path | None:
    """Mount point of the control-group file system `kind` that carries `controller` (version 2: any)."""
    for line in mounts:
        before, _, after = line.partition(" - ")
        file_system, _, options = after.split(" ", 2)
        if file_system == kind and (not controller or controller in options.split(",")):
            return Path(before.split(" ")[4])
    return None
