"""Paths of the project's own files and of testbeds that are up. Light to import: the shell's completion uses it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from topologies.formats.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
EXPERIMENTS = ROOT / "experiments"
TOPOLOGIES = ROOT / "topologies"

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def live_root() -> Path:
    """Directory above those of all testbeds that are up (testbed.live.directory). Raises InputError when another user
    could write there, or put another directory in its place: a socket in it could then be of any process, and what is
    swept there be any files.
    """
    path = Path(os.path.realpath(os.environ.get("XDG_RUNTIME_DIR") or "/run")) / "orderbed"
    for place in (path, *path.parents):
        try:
            found = place.lstat()
        except OSError:
            continue  # not there yet, or out of reach: its use reports the error
        is_ours = found.st_uid in (0, os.geteuid()) and stat.S_ISDIR(found.st_mode)
        is_shared = found.st_mode & _WRITABLE_BY_OTHERS and (place == path or not found.st_mode & stat.S_ISVTX)
        if not is_ours or is_shared:
            raise InputError(
                f"{place}: others may write there; make it yours alone (chmod 700), or set XDG_RUNTIME_DIR"
            )
    return path


def is_file(path: Path) -> bool:
    """Whether there is such a file. False for a name that is too long, for which pathlib raises."""
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
