"""Which world carries the nodes: picked once, with the reason."""

from __future__ import annotations

from dataclasses import dataclass

from netem.errors import FabricError
from testbed.spec import World

__all__ = ["World", "WorldChoice", "pick"]


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
    from netem.daemon import connect

    try:
        connect().close()
    except FabricError:
        if wish is World.DOCKER:
            raise
        return WorldChoice(world=World.NETNS, why="no Docker daemon answers")
    return WorldChoice(world=World.DOCKER, why="asked for" if wish is World.DOCKER else "a Docker daemon answers")
