"""Which world carries the nodes: picked once, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from netem.bed import Bed
from netem.daemon import connect
from netem.errors import FabricError
from netem.runtimes.base import Runtime
from netem.runtimes.docker import DockerRuntime
from netem.runtimes.netns import NetnsRuntime
from testbed.spec import World
from topologies.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldChoice:
    """The world of a run and why."""

    world: World
    why: str


def pick(wish: World) -> WorldChoice:
    """`auto` takes Docker when a daemon answers, else network namespaces.

    Raises FabricError when Docker was asked for and no daemon answers, InputError for a world that cannot run yet.
    """
    if wish is World.SIM:
        raise InputError("the simulated world cannot run experiments yet; take world netns or docker")
    if wish is World.NETNS:
        return WorldChoice(world=World.NETNS, why="asked for")
    try:
        connect().close()
    except FabricError:
        if wish is World.DOCKER:
            raise
        return WorldChoice(world=World.NETNS, why="no Docker daemon answers")
    return WorldChoice(world=World.DOCKER, why="asked for" if wish is World.DOCKER else "a Docker daemon answers")


def open_runtime(choice: WorldChoice, bed: Bed, run_id: str, on_progress: Callable[[str], None]) -> Runtime:
    """The runtime of the chosen world, on `bed`. A Docker world makes its image first when it is missing."""
    if choice.world is World.NETNS:
        return NetnsRuntime(bed)
    return DockerRuntime(bed, run_id=run_id, on_progress=on_progress)
