"""The run store: one directory per run, written once, readable at every moment.

`runs/<experiment>/<seed>-<stamp>/` (docs/run-directory.md). The manifest is there from the first moment with the status
`interrupted` and is replaced when the run ends, so that a run whose conductor was killed is still a marked run.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analysis.files import is_of, read_json, replace_json
from testbed.paths import is_directory, is_file
from topologies.formats.errors import InputError

MANIFEST_FORMAT = 1
RESERVE_BYTES = 1 << 20
"""Space reserved at the start, so that the last manifest fits on a disk that the run has filled."""

UP = "up"
"""Kind, and folder among the runs, of the records of live testbeds, which are not judged."""


class StoreError(Exception):
    """A run directory cannot be written any more. Its contents stay."""


def stamp(now: datetime | None = None) -> str:
    """UTC stamp of a run directory, sortable: `20260131T235959Z`."""
    return (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")


def clock_pair() -> dict[str, int]:
    """CLOCK_MONOTONIC and CLOCK_REALTIME read together (best of nine, so that no preemption lies between)."""
    best: tuple[int, int, int] | None = None
    for _ in range(9):
        before = time.monotonic_ns()
        realtime = time.time_ns()
        after = time.monotonic_ns()
        if best is None or after - before < best[0]:
            best = (after - before, (before + after) // 2, realtime)
    assert best is not None
    return {"monotonic_ns": best[1], "realtime_ns": best[2]}


@dataclass(slots=True)
class RunDirectory:
    """One run on disk. `manifest` is the growing manifest; `save` writes what is known now."""

    path: Path
    run_id: str
    group: int
    """32-bit number in every datagram of the run, so that datagrams of another run are ignored."""
    manifest: dict[str, Any] = field(default_factory=dict)
    fault_count: int = 0
    """Lines of faults.jsonl."""

    @property
    def capture_path(self) -> Path:
        return self.path / "capture.pcapng"

    @property
    def capture_comment(self) -> dict[str, Any]:
        """Comment in the section header of a capture."""
        return {"run": self.run_id, "group": self.group, "clock": "CLOCK_REALTIME"}

    def node_log(self, node: str) -> Path:
        return self.path / "nodes" / f"{node.replace('/', '.')}.log"

    def save(self) -> None:
        """Write the manifest as it stands. Raises StoreError."""
        try:
            replace_json(self.path / "manifest.json", self.manifest)
        except OSError as error:
            raise StoreError(_unwritable(self.path, error)) from error

    def note(self, facts: Mapping[str, Any]) -> None:
        """Add facts to the manifest; they are on disk when this returns. Raises StoreError."""
        self.manifest |= facts
        self.save()

    def close(self) -> None:
        """Write the manifest for the last time, into the reserved space, with the number of faults."""
        self._reserve.unlink(missing_ok=True)
        self.note({"faults": self.fault_count})

    @property
    def _reserve(self) -> Path:
        return self.path / ".reserve"

    def append_fault(self, line: Mapping[str, Any]) -> None:
        """Append a line to faults.jsonl; it is on disk when this returns."""
        try:
            with (self.path / "faults.jsonl").open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StoreError(_unwritable(self.path, error)) from error
        self.fault_count += 1


def create(
    runs: Path, experiment: str, seed: int, *, name: str | None = None, is_repeatable: bool = False
) -> RunDirectory:
    """Make the directory of a new run. A repeatable run has the same group each time, whatever its name.

    Raises InputError if it exists (a run is written once), cannot be made, or `name` is invalid.
    """
    if name is not None and (name in ("", ".", "..") or "/" in name or not name.isprintable()):
        raise InputError(f"--name {name!r}: a run's name is that of one directory, such as first-try")
    leaf = name or f"{seed}-{stamp()}"
    path = runs / experiment / leaf
    try:
        path.mkdir(parents=True)
        (path / "nodes").mkdir()
        (path / "faults.jsonl").touch()
        (path / ".reserve").write_bytes(bytes(RESERVE_BYTES))
    except FileExistsError:
        raise InputError(
            f"{path}: this run directory exists and a run is written once; give another --name or remove it"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: the run directory cannot be made ({error.strerror}); give another --runs") from error
    run_id = f"{experiment}/{leaf}"
    group_of = f"{experiment}/{seed}" if is_repeatable else run_id
    return RunDirectory(path=path, run_id=run_id, group=zlib.crc32(group_of.encode()))


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a run. Raises InputError when it is no manifest."""
    path = directory / "manifest.json"
    try:
        manifest = read_json(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a manifest ({error}); the run cannot be read") from None
    if not isinstance(manifest, dict):
        raise InputError(f"{path}: not a manifest; the run cannot be read")
    return manifest


def find(runs: Path, name: str | None) -> Path:
    """The run directory that `name` selects.

    A path, `<experiment>/<leaf>`, an experiment (its newest run), or None (the newest run of all).

    Records of live testbeds are no runs. Raises InputError when there is no such run.
    """
    if name is None:
        found = newest(runs, 1)
        if not found:
            raise InputError(f"{runs}: no run yet; make one with `orderbed run quickstart`")
        return found[0]
    candidates = [path for path in (Path(name), runs / name) if is_file(path / "manifest.json")]
    if not candidates and is_directory(runs / name):
        candidates = [path.parent for path in sorted(_manifests(runs / name, "*"), key=_age)[-1:]]
    if not candidates:
        raise InputError(f"{name}: no such run; a run is a directory with a manifest.json, or a name under {runs}")
    directory = candidates[0]
    if read_manifest(directory).get("kind") == UP:
        raise InputError(
            f"{directory}: the record of a testbed, not the run of an experiment; `orderbed info` and `orderbed watch` "
            "read its captures"
        )
    return directory


def newest(runs: Path, count: int) -> list[Path]:
    """The directories of the newest runs, newest first, without records of live testbeds."""
    found = [path for path in _manifests(runs, "*/*") if path.parts[-3] != UP]
    return [path.parent for path in sorted(found, key=_age, reverse=True)[:count]]


def read_summary(directory: Path) -> dict[str, Any]:
    """The summary of a run. Raises InputError, with the remedy, when there is none, or it is no summary or that of
    another run.
    """
    path = directory / "summary.json"
    again = f"`orderbed analyze {directory}`"
    try:
        loaded = read_json(path)
    except FileNotFoundError:
        raise InputError(f"{directory}: this run was not analysed; do it with {again}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a summary ({error}); make it again with {again}") from None
    if not isinstance(loaded, dict) or loaded.get("verdict") not in ("pass", "fail", "unknown"):
        raise InputError(f"{path}: not a summary; make it again with {again}")
    if not is_of(loaded, directory, read_manifest(directory)):
        raise InputError(f"{path}: not made of the manifest beside it; make it again with {again}")
    return loaded


def require_space(path: Path, needed_bytes: int) -> None:
    """Raise InputError when the file system of `path` has less than `needed_bytes` left."""
    existing = path
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < needed_bytes:
        raise InputError(
            f"{existing}: {free // 2**20} MiB are free and this run may need {needed_bytes // 2**20} MiB; "
            "make room or give another --runs"
        )


def _unwritable(path: Path, error: OSError) -> str:
    return f"{path}: {error.strerror or error}; the run ends here, what was recorded is kept"


def _manifests(folder: Path, directories: str) -> list[Path]:
    """Manifests in directories of a pattern. Links that lead nowhere, pipes and the like are none."""
    # Not Path.glob, which raises for a link to a name that is too long.
    found = glob.glob(f"{directories}/manifest.json", root_dir=folder, include_hidden=True)  # noqa: PTH207
    return [path for path in (folder / name for name in found) if is_file(path)]


def _age(manifest: Path) -> tuple[int, str]:
    return manifest.stat().st_mtime_ns, str(manifest)
