"""Where the project's own files are."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXPERIMENTS = ROOT / "experiments"
TOPOLOGIES = ROOT / "topologies"


def is_file(path: Path) -> bool:
    """Whether there is such a file. Whatever a user typed may be asked: pathlib raises for a name that is too long."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_directory(path: Path) -> bool:
    """The same for a directory."""
    try:
        return path.is_dir()
    except OSError:
        return False
