"""Which world carries the nodes: picked once, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from netem.errors import FabricError
from testbed.spec.experiment import World
from topologies.formats.errors import InputError

__all__ = ["World", "WorldChoice", "pick", "require_privilege"]

_CAP_SYS_ADMIN = 21
"""linux/capability.h: without it there is no network namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldChoice:
    """The world of a run and why."""

    world: World
    why: str


def pick(wish: World) -> WorldChoice:
    """`auto` takes Docker when a daemon answers, else network namespaces. The simulated world must be asked for.

    Raises FabricError when Docker was asked for and no daemon answers.
    """
    if wish in (World.NETNS, World.SIM):
        return WorldChoice(world=wish, why="asked for")
    from netem.runtimes.daemon import connect

    try:
        connect().close()
    except FabricError:
        if wish is World.DOCKER:
            raise
        return WorldChoice(world=World.NETNS, why="no Docker daemon answers")
    return WorldChoice(world=World.DOCKER, why="asked for" if wish is World.DOCKER else "a Docker daemon answers")


def require_privilege(world: World, *, can_be_simulated: bool) -> None:
    """Raise InputError before anything has started when this process may not make the networks of `world`."""
    if world is World.SIM or _capabilities() >> _CAP_SYS_ADMIN & 1:
        return
    instead = ", or simulate them, without root, with --world sim" if can_be_simulated else ""
    raise InputError(f"real wires need root: run the same command with sudo{instead}")


def _capabilities() -> int:
    """The effective ones of this process, one bit each: user id 0 alone says little in a container."""
    status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    return next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:"))
