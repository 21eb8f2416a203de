"""Images that somebody names: they are there or pulled, and what a node needs is in them. Looked at before a run.

What a node needs: `/bin/sh`, which waits for the wires; and for our own program Python of at least 3.11.
"""

from __future__ import annotations

from collections.abc import Callable

import docker
from docker.errors import APIError, DockerException

from netem.errors import FabricError
from netem.owner import Owner
from netem.runtimes.daemon import LABEL, OWNER_LABEL, remove_container, root_cause
from netem.runtimes.image import find_image

PYTHON_LEAST = (3, 11)

_SHELL = ("/bin/sh", "-c", "exit 0")
_NO_PYTHON, _OLD_PYTHON = 41, 42
_PYTHON = ("/bin/sh", "-c", f'command -v python3 >/dev/null || exit {_NO_PYTHON}; exec python3 -c "$0"')
_VERSION = f"""
import sys
print("%d.%d" % sys.version_info[:2])
sys.exit({_OLD_PYTHON} if sys.version_info < {PYTHON_LEAST} else 0)
"""


def provide_image(client: docker.DockerClient, name: str, on_progress: Callable[[str], None] = lambda _: None) -> str:
    """Id of the image that somebody names, pulled where the machine has not got it. Raises FabricError."""
    if (present := _named_image(client, name)) is not None:
        return present
    on_progress(f"pulling {name}")
    try:
        client.images.pull(*name.rsplit("@", 1) if "@" in name else (name,))
    except (DockerException, OSError) as error:
        raise FabricError(f"there is no image {name} here, and it cannot be pulled: {root_cause(error)}") from error
    pulled = _named_image(client, name)
    if pulled is None:
        raise FabricError(f"Docker pulled {name} but does not have it; see the daemon's log")
    return pulled


def _named_image(client: docker.DockerClient, name: str) -> str | None:
    try:
        return find_image(client, name)
    except (DockerException, OSError) as error:
        raise FabricError(f"{name} cannot be the name of an image: {root_cause(error)}") from error


def require_shell(client: docker.DockerClient, name: str) -> None:
    """Raises FabricError when a program could not wait for its wires in this image. Takes half a second."""
    code, said = _try(client, name, _SHELL)
    if code != 0:
        raise FabricError(f"the image {name} has a /bin/sh that does not work ({said or f'exit code {code}'})")


def require_python(client: docker.DockerClient, name: str) -> None:
    """Raises FabricError when our nodes could not run in this image. Takes half a second."""
    least = ".".join(map(str, PYTHON_LEAST))
    code, said = _try(client, name, (*_PYTHON, _VERSION))
    if code == _NO_PYTHON:
        raise FabricError(f"the image {name} has no python3, and our nodes need at least {least}")
    if code != 0:
        found = f"python3 {said}" if code == _OLD_PYTHON else f"a python3 that does not work ({said})"
        raise FabricError(f"the image {name} has {found}, and our nodes need at least {least}")


def _try(client: docker.DockerClient, name: str, command: tuple[str, ...]) -> tuple[int, str]:
    """Run it in the image, as a node runs: exit code, and the last line that it said."""
    api = client.api
    labels = {LABEL: "1", OWNER_LABEL: str(Owner.this_process())}
    host = api.create_host_config(network_mode="none", cap_drop=["ALL"], read_only=True)
    container_id = ""
    try:
        created = api.create_container(name, entrypoint=list(command), labels=labels, host_config=host, user="65534")
        container_id = str(created["Id"])
        api.start(container_id)
        code = int(api.wait(container_id)["StatusCode"])
        lines = api.logs(container_id).decode("utf-8", errors="replace").split("\n")
    except (DockerException, OSError) as error:
        raise FabricError(_why_it_does_not_start(name, error)) from error
    finally:
        if container_id:
            remove_container(client, container_id)
    return code, next((line.strip() for line in reversed(lines) if line.strip()), "")


def _why_it_does_not_start(name: str, error: Exception) -> str:
    said = root_cause(error)
    if isinstance(error, APIError) and "/bin/sh" in said and "no such file" in said:
        return f"the image {name} has no /bin/sh, which a node needs to wait for its wires"
    return f"no container can be made from the image {name}: {said}"
