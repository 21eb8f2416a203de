"""What ran: versions for the manifest, so that two runs can be told apart by more than their date."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata

from testbed.paths import ROOT

LIBRARIES = ("pyroute2", "scapy", "pyspark", "numpy", "pyarrow", "docker")


def collect(*, guest_linux: str | None) -> dict[str, str]:
    """Versions of ours, Python, the kernels and the libraries that touch the data; `git` in a checkout only."""
    versions = {
        "orderbed": metadata.version("orderbed"),
        "python": platform.python_version(),
        "linux": platform.release(),
        "machine": platform.machine(),
    }
    if guest_linux:
        versions["guest_linux"] = guest_linux
    for library in LIBRARIES:
        versions[library] = metadata.version(library)
    revision = _git_revision()
    if revision:
        versions["git"] = revision
    return versions


def _git_revision() -> str | None:
    """The checkout's commit, with a mark when files differ from it; None outside a checkout or without git."""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
