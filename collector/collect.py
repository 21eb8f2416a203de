"""Recorder of the frames at the switch ports: writes the ring's blocks to the capture file until it is stopped.

One thread with one loop waits for a block, a line on standard input, a signal, or the next status line. A stop shuts
the ring first and then drains it, so that the file holds every frame sent before the stop and none sent after it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from collector.pcapng import PcapngWriter, Port
from collector.records import CaptureError, Frames, PortDirection
from collector.ring import BLOCK_BYTES, BLOCKS, MAX_SNAP_LENGTH, PacketRing, RingFrames

STATUS_NS = 10**9
DRAIN_MS = 1000
"""Duration of one wait of the drain. The kernel hands over an open block within its timeout, which is much shorter."""
BLOCKS_PER_TURN = 16
"""Most blocks that are recorded before the loop checks for a stop."""

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Options of a recording."""

    output: Path
    ports: tuple[Port, ...]
    ifindex_base: int
    """Interfaces from this index to the highest port's are captured; lower ones do not belong to the network."""
    comment: Mapping[str, Any]
    """Written to the section header, with a pair of clock readings added."""
    snap_length: int = MAX_SNAP_LENGTH
    blocks: int = BLOCKS
    block_bytes: int = BLOCK_BYTES

    def __post_init__(self) -> None:
        if not self.ports:
            raise CaptureError("there is no port to capture: name at least one")
        indexes = [port.ifindex for port in self.ports]
        if len(set(indexes)) < len(indexes):
            raise CaptureError("two ports have the same interface index")
        if min(indexes) < self.ifindex_base or self.ifindex_base < 1:
            raise CaptureError(f"port {min(indexes)} lies below the interface index base {self.ifindex_base}")

    @property
    def ifindexes(self) -> range:
        return range(self.ifindex_base, max(port.ifindex for port in self.ports) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Readings of CLOCK_MONOTONIC and CLOCK_REALTIME at the same time, to about a microsecond."""

    monotonic_ns: int
    realtime_ns: int

    @property
    def offset_ns(self) -> int:
        return self.realtime_ns - self.monotonic_ns

    def as_dict(self) -> dict[str, int]:
        return {"monotonic_ns": self.monotonic_ns, "realtime_ns": self.realtime_ns}


def read_clock(tries: int = 9) -> Clock:
    """The best of several pairs of readings: that with the shortest time between the monotonic readings before and
    after.
    """
    best, best_width = Clock(monotonic_ns=0, realtime_ns=0), None
    for _ in range(tries):
        before, realtime, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        if best_width is None or after - before < best_width:
            best, best_width = Clock(monotonic_ns=(before + after) // 2, realtime_ns=realtime), after - before
    return best


def record(recording: Recording, *, commands: int, report: Callable[[Event], None]) -> bool:
    """Record until `stop` or the end of file is read from the descriptor `commands`, or SIGTERM or SIGINT arrives.

    Reports `ready` once the ring is live, `status` every second, `error` if recording ends early, and `stopped` at the
    end. Returns True when everything was recorded and written. Raises CaptureError when recording cannot begin.
    """
    with _stop_signals() as signals:
        collector = _Collector(recording)
        try:
            report({"event": "ready", "ports": len(recording.ports), "clock": collector.clock.as_dict()})
            collector.run(_Stop(commands, signals), report)
        except CaptureError as error:
            report({"event": "error", "message": str(error)})
        finally:
            stopped = collector.close()
        report(stopped)
        return bool(stopped["complete"])


class _Stop:
    """Detector of a request to stop: a line `stop`, the end of the command stream, or a signal."""

    def __init__(self, commands: int, signals: socket.socket) -> None:
        self.descriptors = (commands, signals.fileno())
        self._commands = commands
        self._line = b""

    def is_asked(self, readable: Sequence[int]) -> bool:
        if self.descriptors[1] in readable:
            return True
        return self._commands in readable and self._reads_stop()

    def _reads_stop(self) -> bool:
        data = os.read(self._commands, 4096)
        *lines, rest = (self._line + data).split(b"\n")
        self._line = rest[:4096]
        return not data or any(line.strip() == b"stop" for line in lines)


class _Collector:
    """Ring and writer, with the counts of a recording."""

    def __init__(self, recording: Recording) -> None:
        self.clock = read_clock()
        self._step_ns = 0
        """Largest step of CLOCK_REALTIME since the start."""
        self._recording = recording
        self._unlisted = 0
        self._seen = np.zeros(len(recording.ports), np.int64)
        self._position = np.full(len(recording.ifindexes), -1, np.int32)
        for position, port in enumerate(recording.ports):
            self._position[port.ifindex - recording.ifindex_base] = position
        self._ring = PacketRing(
            ifindexes=recording.ifindexes,
            snap_length=recording.snap_length,
            blocks=recording.blocks,
            block_bytes=recording.block_bytes,
        )
        try:
            self._writer = PcapngWriter(
                recording.output,
                recording.ports,
                comment=json.dumps({"clock": self.clock.as_dict()} | dict(recording.comment)),
                capture_filter=f"ifindex >= {recording.ifindex_base}",
            )
        except CaptureError:
            self._ring.close()
            raise

    def run(self, stop: _Stop, report: Callable[[Event], None]) -> None:
        poll = select.poll()
        for descriptor in (self._ring.fileno(), *stop.descriptors):
            poll.register(descriptor, select.POLLIN)
        due_ns = time.monotonic_ns() + STATUS_NS
        while True:
            wait_ms = max(due_ns - time.monotonic_ns(), 0) // 10**6 + 1
            readable = [descriptor for descriptor, _ in poll.poll(wait_ms)]
            if stop.is_asked(readable):
                self._drain()
                return
            for _ in range(BLOCKS_PER_TURN):
                if not self._ring.is_ready():
                    break
                self._record_block()
            if time.monotonic_ns() >= due_ns:
                self._note_step(read_clock())
                report({"event": "status"} | self._counters())
                due_ns += STATUS_NS

    def close(self) -> dict[str, Any]:
        """Complete the file and close the ring; returns the last event."""
        counters = self._ring.statistics()
        is_complete = self._writer.close(received=self._seen, dropped_frames=counters.dropped_frames)
        clock = read_clock()
        self._note_step(clock)
        stopped = (
            {"event": "stopped"}
            | self._counters()
            | {
                "complete": is_complete,
                "problem": self._writer.problem,
                "clock": clock.as_dict(),
                "clock_step_ns": self._step_ns,
            }
        )
        self._ring.close()
        return stopped

    def _note_step(self, clock: Clock) -> None:
        """Record the step of the clock: one that is set and set back would look unchanged at the end."""
        self._step_ns = max(self._step_ns, clock.offset_ns - self.clock.offset_ns, key=abs)

    def _counters(self) -> dict[str, Any]:
        kernel = self._ring.statistics()
        return {
            "frames": self._writer.frames,
            "bytes": self._writer.bytes,
            "kernel_dropped_frames": kernel.dropped_frames,
            "freezes": kernel.freezes,
            "unlisted_frames": self._unlisted,
        }

    def _drain(self) -> None:
        self._ring.shut()
        while not self._ring.is_drained():
            if self._ring.wait(DRAIN_MS):
                self._record_block()

    def _record_block(self) -> None:
        try:
            self._writer.write(self._ring.buffer, self._columns(self._ring.frames()))
        finally:
            self._ring.release()

    def _columns(self, frames: RingFrames) -> Frames:
        """Frames for the writer; those of an interface in the range that is no listed port are only counted."""
        position = self._position[frames.ifindex - self._recording.ifindex_base]
        columns = Frames(
            time_ns=frames.time_ns,
            interface=position,
            direction=np.where(frames.is_outgoing, PortDirection.OUTBOUND, PortDirection.INBOUND).astype(np.int8),
            length=frames.length.astype(np.int32),
            captured=frames.captured.astype(np.int32),
            offset=frames.offset,
            stop=0,
        )
        is_listed = position >= 0
        if not is_listed.all():
            self._unlisted += int((~is_listed).sum())
            columns = columns.select(is_listed)
        self._seen += np.bincount(columns.interface, minlength=len(self._seen))
        return columns


@contextmanager
def _stop_signals() -> Iterator[socket.socket]:
    """A socket that becomes readable when SIGTERM or SIGINT arrives. For the main thread only."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before_wakeup = signal.set_wakeup_fd(writer.fileno())
    before = {number: signal.signal(number, _ignore) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield reader
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before_wakeup)
        reader.close()
        writer.close()


def _ignore(number: int, frame: FrameType | None) -> None:
    """Empty handler: the wake-up descriptor, which informs the loop, needs a Python handler."""
