"""`orderbed watch`: figures of a run, or of a capture, while it is being written.

It begins with the beginning of the capture and ends when its index is closed and all of it was counted, when the run is
over, or when nothing was written for a while (captures of other programs have no end mark). It only reads: the run is
not affected.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.capture import source
from analysis.engine import session
from analysis.errors import AnalysisError
from analysis.inputs import read_run
from analysis.live.counts import Live, Ports, Snapshot, ports_of_capture, ports_of_run
from analysis.live.query import Following, follow
from collector import index
from collector.blocks import CutOffError
from collector.parse import map_capture, read_head
from collector.records import CaptureError
from netem.errors import FabricError
from testbed.console import Console
from testbed.paths import is_file
from testbed.rundir import store
from topologies.formats.errors import InputError

EVERY_S = 0.5
LONGEST_IDLE_S = 30.0
POLL_S = 0.1
BATCH_GOAL_S = 0.5
END_S = 15.0
"""Longest time from the end of a capture to that of its run; a conductor that was killed does not end its run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The watched capture. `run`: the directory of its run; None: a capture alone."""

    name: str
    capture: Path
    run: Path | None

    @property
    def has_ended(self) -> bool:
        """Whether the run's conductor has ended it; False for a capture alone, which has no conductor."""
        return self.run is not None and not (self.run / ".reserve").exists()

    def require_whole(self) -> None:
        """Raise FabricError when the run is over, or its capture is closed, and the run is not complete."""
        if self.run is None or not (self.has_ended or index.read(self.capture).end):
            return
        deadline = time.monotonic() + END_S
        while not self.has_ended and time.monotonic() < deadline:
            time.sleep(POLL_S)
        manifest = store.read_manifest(self.run)
        if (status := manifest.get("status")) != "complete":
            raise FabricError(f"{self.name}: this run is {status} ({manifest.get('error') or 'before its end'})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Figures at one moment, and their distance in bytes from the end of the file."""

    snapshot: Snapshot
    behind_bytes: int
    batch_s: float | None
    has_ended: bool

    def as_dict(self) -> dict[str, Any]:
        """One line of `--json`."""
        return {
            **self.snapshot.as_dict(),
            "behind_bytes": self.behind_bytes,
            "batch_s": self.batch_s,
            "has_ended": self.has_ended,
        }


def find(runs: Path, name: str | None) -> Target:
    """The target that `name` selects: the file of a capture, else a run as in `store.find`. Raises InputError."""
    if name is not None and is_file(path := Path(name)):
        return Target(name=name, capture=path, run=None)
    if name is not None and Path(name).suffix in source.SUFFIXES:
        raise InputError(f"{name}: there is no such capture")
    directory = store.find(runs, name)
    return Target(name=str(directory), capture=directory / "capture.pcapng", run=directory)


def watch(
    target: Target, show: Callable[[Update], None], console: Console, *, idle_s: float = LONGEST_IDLE_S
) -> Update:
    """Call `show` twice a second until the capture ends. Returns the last update.

    Raises AnalysisError when it cannot be read, or Spark cannot be started.
    """
    session.require_java()
    with console.stage("watch", "waiting for the first frames") as stage:
        ports = _ports(target, idle_s)
        stage.say("starting Spark")
        with contextlib.ExitStack() as stack:
            spark = stack.enter_context(session.open_session())
            following = stack.enter_context(follow(spark, target.capture, Live(ports)))
            stage.result = target.name
            opened = stack.pop_all()
    with opened:
        for update in _updates(target, following, idle_s):
            show(update)
            last = update
    return last


def _updates(target: Target, following: Following, idle_s: float) -> Iterator[Update]:
    end = _End(target, idle_s)
    while True:
        due_s = time.monotonic() + EVERY_S
        has_ended = end.is_reached(following)
        behind = max(end.size - following.byte, 0)
        yield Update(
            snapshot=following.snapshot(has_ended=has_ended),
            behind_bytes=behind,
            batch_s=following.batch_s,
            has_ended=has_ended,
        )
        if has_ended:
            return
        while time.monotonic() < due_s and not end.is_reached(following):
            time.sleep(POLL_S)


class _End:
    """Decides whether everything that will ever be written was counted."""

    def __init__(self, target: Target, idle_s: float) -> None:
        self._target = target
        self._idle_s = idle_s
        self._byte = self.size = 0
        self._changed_s = time.monotonic()

    def is_reached(self, following: Following) -> bool:
        following.check()
        # The order matters: the size is read after `has_ended`, so that it includes all that the run wrote.
        has_ended = self._target.has_ended
        end = index.read(self._target.capture).end
        size, byte = self._target.capture.stat().st_size, following.byte
        if (size, byte) != (self.size, self._byte):
            self.size, self._byte, self._changed_s = size, byte, time.monotonic()
        idle_s = time.monotonic() - self._changed_s
        if end is not None:
            return byte >= end.offset
        # A capture that was cut off ends inside a block, which is never counted.
        return idle_s > self._idle_s or (has_ended and (byte >= size or idle_s > 2 * EVERY_S + BATCH_GOAL_S))


def _ports(target: Target, idle_s: float) -> Ports:
    """Names of the ports of a capture; waits until its head is written."""
    deadline = time.monotonic() + idle_s
    while (names := _interfaces(target.capture)) is None:
        if target.has_ended or time.monotonic() > deadline:
            raise AnalysisError(f"{target.capture}: there is no capture yet, and nobody is writing one")
        time.sleep(POLL_S)
    if target.run is None:
        return ports_of_capture(names)
    inputs = read_run(target.run)
    return ports_of_run(inputs.topology, names, inputs.manifest.group)


def _interfaces(path: Path) -> tuple[str, ...] | None:
    """Names of the interfaces in the head of a capture; None when its head is not whole yet."""
    try:
        if path.stat().st_size < source.MAGIC_BYTES:
            return None
        interfaces = read_head(path, map_capture(path)).interfaces
        source.require_ethernet(path, interfaces)
        return interfaces.names or None
    except (FileNotFoundError, CutOffError):
        return None
    except CaptureError as error:
        raise AnalysisError(str(error)) from error
    except OSError as error:
        raise AnalysisError(f"{path}: the capture cannot be read ({error.strerror})") from error


def json_line(update: Update) -> None:
    """Write one update as one line to standard output, without buffering."""
    sys.stdout.write(json.dumps(update.as_dict()) + "\n")
    sys.stdout.flush()
