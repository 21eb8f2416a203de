"""The image of node containers: any Linux with /bin/sh and a Python of at least 3.11.

When a registry answers, it is the official slim Python image with the operator's tools (ping, ip, ps) on top. If none
can be reached (closed networks, CI), the image is bootstrapped from the distribution's own packages with mmdebstrap,
with the archives of the machine's apt, so that no address appears here. The result is kept under a tag made from its
recipe and found at once next time.
"""

from __future__ import annotations

import hashlib
import io
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import docker
from docker.errors import APIError, DockerException, ImageNotFound

from netem.errors import FabricError
from netem.owner import Owner
from netem.runtimes.daemon import LABEL, OWNER_LABEL, connect, explained, remove_container, root_cause

REGISTRY_IMAGE = "python:3.11-slim"
REPOSITORY = "orderbed/node"

REGISTRY_PROBE_S = 5
"""Longest wait for a registry; after it the image is bootstrapped, which takes 20 s, once."""

PULL_S = 300
BOOTSTRAP_S = 600
IMPORT_S = 120

TOOLS = ("iputils-ping", "iproute2", "procps")
"""Packages of the operator's tools in a node."""

RECIPE = ("2", "essential", ",".join(("python3", *TOOLS)))
"""Version of this recipe, mmdebstrap's variant, packages. A change makes a new tag."""

DOCKERFILE = f"""\
FROM {REGISTRY_IMAGE}
RUN apt-get update && apt-get install -y --no-install-recommends {" ".join(TOOLS)} && rm -rf /var/lib/apt/lists/*
LABEL {LABEL}=1
"""
"""The same recipe on a base from the registry."""

SLIMMING = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The distribution whose packages make the image: the machine's own."""

    identifier: str
    """`debian`, `ubuntu`, …"""
    codename: str

    @classmethod
    def of_this_machine(cls) -> Distribution:
        try:
            release = platform.freedesktop_os_release()
        except OSError as error:
            raise FabricError(f"cannot tell which distribution this is ({error}); {_by_hand()}") from error
        return cls(identifier=release.get("ID", ""), codename=release.get("VERSION_CODENAME", ""))

    @property
    def tag(self) -> str:
        """Content tag of the image that the recipe makes from this distribution."""
        ingredients = "\n".join((*RECIPE, *SLIMMING, self.identifier, self.codename, platform.machine()))
        return f"{REPOSITORY}:{self.codename}-{hashlib.sha256(ingredients.encode()).hexdigest()[:12]}"


def ensure_image(client: docker.DockerClient, on_progress: Callable[[str], None] = lambda _: None) -> str:
    """Id of an image for nodes; made once and then found.

    Takes milliseconds when it is there, a pull if a registry answers within REGISTRY_PROBE_S, else about 20 s.
    Raises FabricError that names the missing package when neither way works.
    """
    distribution = Distribution.of_this_machine()
    for tag in ready_tags(distribution):
        if (present := find_image(client, tag)) is not None:
            return present
    refusal = _refusal_of_base(client, on_progress)
    if refusal is None:
        on_progress(f"installing {', '.join(TOOLS)} in {REGISTRY_IMAGE}, once")
        refusal = _refusal_of_build()
        if refusal is None and (built := find_image(client, layered_tag())) is not None:
            return built
        refusal = refusal or f"Docker built {layered_tag()} but does not have it"
    on_progress(f"{refusal}: building the base image from {distribution.identifier} packages, once")
    try:
        return bootstrap_image(client, distribution, why=refusal)
    except FabricError:
        if (plain := find_image(client, REGISTRY_IMAGE)) is None:
            raise
        client.images.get(plain).tag(*plain_tag().rsplit(":", 1))
        on_progress(f"taking {REGISTRY_IMAGE} as it is, without {', '.join(TOOLS)}")
        return plain


def ready_tags(distribution: Distribution) -> tuple[str, ...]:
    """Tags of images that `ensure_image` makes, the best first."""
    return (distribution.tag, layered_tag(), plain_tag())


def layered_tag() -> str:
    """Tag of the registry's image with the tools."""
    return f"{REPOSITORY}:registry-{hashlib.sha256(DOCKERFILE.encode()).hexdigest()[:12]}"


def plain_tag() -> str:
    """Tag of the registry's image as it is, used if neither a build nor mmdebstrap works."""
    return f"{layered_tag()}-plain"


def find_image(client: docker.DockerClient, tag: str) -> str | None:
    """Id of a local image, or None."""
    try:
        return client.images.get(tag).id
    except ImageNotFound:
        return None


def bootstrap_image(client: docker.DockerClient, distribution: Distribution, *, why: str = "") -> str:
    """Make the image from the distribution's packages. Returns its id. `why` opens the error if that is not
    possible."""
    reason = f"{why}, and " if why else ""
    if shutil.which("mmdebstrap") is None:
        raise FabricError(f"no base image for containers: {reason}mmdebstrap is missing; {_by_hand()}")
    with tempfile.TemporaryDirectory(prefix="orderbed-image-") as scratch:
        archive = Path(scratch, "base.tar")
        _run_mmdebstrap(distribution, apt_sources(distribution), archive)
        _import_image(archive, distribution.tag)
    made = find_image(client, distribution.tag)
    if made is None:
        raise FabricError(f"Docker took the image {distribution.tag} but does not have it; see the daemon's log")
    return made


def apt_sources(distribution: Distribution) -> list[str]:
    """The machine's own apt sources of this distribution, one `deb` line each; archives of others are left out.

    Raises FabricError when apt is not there or has none.
    """
    fields = ("REPO_URI", "RELEASE", "COMPONENT", "ORIGIN")
    command = ["apt-get", "indextargets", "--format", "|".join(f"$({name})" for name in fields), "Created-By: Packages"]
    try:
        listing = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise FabricError(
            f"no base image for containers: apt does not tell its sources ({error}); {_by_hand()}"
        ) from error
    lines = _deb_lines((line.split("|") for line in listing.splitlines()), distribution)
    if not lines:
        raise FabricError(
            f"no base image for containers: apt has no sources for {distribution.codename}; "
            f"run `apt-get update`, or {_by_hand()}"
        )
    return lines


def _deb_lines(targets: Iterable[list[str]], distribution: Distribution) -> list[str]:
    """`deb` lines without duplicates, in apt's order. apt leaves a field that it does not know as it is:
    `$(ORIGIN)`."""
    lines: dict[str, None] = {}
    for target in targets:
        if len(target) != 4:
            continue
        uri, release, component, origin = target
        is_ours = origin.lower() == distribution.identifier or origin == "$(ORIGIN)"
        if is_ours and release.startswith(distribution.codename):
            lines[f"deb {uri} {release} {component}"] = None
    return list(lines)


def _run_mmdebstrap(distribution: Distribution, sources: list[str], archive: Path) -> None:
    _, variant, packages = RECIPE
    options = [f"--variant={variant}", f"--include={packages}"]
    options += [f"--dpkgopt=path-exclude={pattern}" for pattern in SLIMMING]
    command = ["mmdebstrap", "--quiet", *options, distribution.codename, str(archive), "-"]
    environment = os.environ | {"TMPDIR": str(archive.parent)}
    try:
        done = subprocess.run(
            command,
            input="\n".join(sources) + "\n",
            capture_output=True,
            text=True,
            timeout=BOOTSTRAP_S,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise FabricError(f"mmdebstrap did not finish the base image within {BOOTSTRAP_S} s; {_by_hand()}") from None
    if done.returncode != 0:
        raise FabricError(f"mmdebstrap could not make the base image: {done.stderr.strip()[-300:]}; {_by_hand()}")


def _import_image(archive: Path, tag: str) -> None:
    repository, _, version = tag.rpartition(":")
    with closing(connect(timeout_s=IMPORT_S)) as patient, explained("Docker would not import the base image"):
        patient.api.import_image_from_file(
            str(archive), repository=repository, tag=version, changes=[f"LABEL {LABEL}=1"]
        )


def _refusal_of_base(client: docker.DockerClient, on_progress: Callable[[str], None]) -> str | None:
    """Reason why the registry's image is not available, or None."""
    if find_image(client, REGISTRY_IMAGE) is not None:
        return None
    on_progress(f"asking for {REGISTRY_IMAGE}")
    if (refusal := _refusal_of_registry()) is None:
        on_progress(f"pulling {REGISTRY_IMAGE}")
        refusal = _refusal_of_pull()
    return None if refusal is None else f"no registry answers ({refusal})"


def _refusal_of_build() -> str | None:
    """Reason why the tools cannot be installed in the registry's image, or None. The packages come over the host's
    network: a daemon without a bridge has no other.
    """
    with closing(connect(timeout_s=PULL_S)) as patient:
        try:
            patient.images.build(
                fileobj=io.BytesIO(DOCKERFILE.encode()), tag=layered_tag(), network_mode="host", rm=True, forcerm=True
            )
        except (DockerException, OSError) as error:
            return f"the tools cannot be installed in {REGISTRY_IMAGE} ({root_cause(error)})"
    return None


def _refusal_of_registry() -> str | None:
    """Reason why the registry cannot be used, or None. The daemon sends the request, with its proxies and mirrors."""
    with closing(connect(timeout_s=REGISTRY_PROBE_S)) as impatient:
        try:
            impatient.images.get_registry_data(REGISTRY_IMAGE)
        except (DockerException, OSError) as error:
            return root_cause(error)
    return None


def _refusal_of_pull() -> str | None:
    with closing(connect(timeout_s=PULL_S)) as patient:
        try:
            patient.images.pull(REGISTRY_IMAGE)
        except (DockerException, OSError) as error:
            return root_cause(error)
    return None


def _by_hand() -> str:
    return f"install mmdebstrap (apt-get install mmdebstrap), or load {REGISTRY_IMAGE} with `docker load`"


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
    """Id of the image called `name`, pulled if it is not on the machine. Raises FabricError."""
    if (present := _named_image(client, name)) is not None:
        return present
    on_progress(f"pulling {name}")
    with explained(f"there is no image {name} here, and it cannot be pulled"):
        client.images.pull(*name.rsplit("@", 1) if "@" in name else (name,))
    pulled = _named_image(client, name)
    if pulled is None:
        raise FabricError(f"Docker pulled {name} but does not have it; see the daemon's log")
    return pulled


def _named_image(client: docker.DockerClient, name: str) -> str | None:
    with explained(f"{name} cannot be the name of an image"):
        return find_image(client, name)


def require_shell(client: docker.DockerClient, name: str) -> None:
    """Raise FabricError when this image has no working shell, which waits for the network. Takes half a second."""
    code, said = _try(client, name, _SHELL)
    if code != 0:
        raise FabricError(f"the image {name} has a /bin/sh that does not work ({said or f'exit code {code}'})")


def require_python(client: docker.DockerClient, name: str) -> None:
    """Raise FabricError when the project's node program cannot run in this image. Takes half a second."""
    least = ".".join(map(str, PYTHON_LEAST))
    code, said = _try(client, name, (*_PYTHON, _VERSION))
    if code == _NO_PYTHON:
        raise FabricError(f"the image {name} has no python3, and our nodes need at least {least}")
    if code != 0:
        found = f"python3 {said}" if code == _OLD_PYTHON else f"a python3 that does not work ({said})"
        raise FabricError(f"the image {name} has {found}, and our nodes need at least {least}")


def _try(client: docker.DockerClient, name: str, command: tuple[str, ...]) -> tuple[int, str]:
    """Run a command in the image, as a node runs. Returns exit code and last line of output."""
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
