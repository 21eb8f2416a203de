"""Images that a user names, looked at before anything starts: a wrong one is a wrong input."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

from netem.errors import FabricError
from topologies.formats.errors import InputError


def require_images(world: str | None, programs: Iterable[str | None], *, needs_python: bool) -> None:
    """Pull what is missing. `world`: that of all nodes, which must have Python where a node runs our program.

    Raises InputError for an image that is not there or lacks what a node needs, FabricError when no daemon answers.
    """
    named = sorted({image for image in programs if image is not None})
    if world is None and not named:
        return
    from netem.runtimes.daemon import connect
    from netem.runtimes.image import provide_image, require_python, require_shell

    with closing(connect()) as client:
        for key, image in [("image", world), *(("program.image", name) for name in named)]:
            if image is None:
                continue
            require = require_python if key == "image" and needs_python else require_shell
            try:
                provide_image(client, image)
                require(client, image)
            except FabricError as error:
                raise InputError(f"{key}: {error}") from error
