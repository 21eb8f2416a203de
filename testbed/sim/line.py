"""One direction of one port: a delay line, then a queue, with the semantics of netem, tbf and pfifo/bfifo.

The fabric builds each port from these qdiscs (netem/wiring/qdisc.py); these are their rules (Linux 6.1: sch_netem.c,
sch_tbf.c, sch_fifo.c), frame by frame, in netem's order of draws: duplicate, loss, corrupt, reorder, jitter.

- Loss, duplication and corruption strike on the way in. A duplicate goes through the line by itself: it may be lost,
  damaged and delayed like any other frame, but not duplicated.
- Bursty loss is netem's Gilbert-Elliott chain with h = 0 and k = 1: the frame's fate is decided by the state in which
  it finds the chain, then the chain moves on.
- Each frame has its own delay; the frame that is due first leaves first: jitter reorders. A reordered frame leaves at
  once, past all frames in the line and in the queue (netem sends it itself, without tbf).
- Frames enter the queue when their delay has passed. The queue's server is tbf's token bucket: `burst_bytes` pass at
  once after an idle time. A frame larger than the bucket (tbf would drop it, but a kernel would not have made it: it
  would have been several fragments) passes when the bucket is full, and its debt is paid before the next one.
- A change of the impairment: frames in the line keep their time, frames in the queue stay and drain at the new rate
  (the bucket is full then); if the queue's unit changes, frames or bytes, it is another queue and the frames in it are
  lost. The loss chain starts again, in its good state.

Not here: correlations and slots (the fabric never sets them) and the limit of the delay line (it is never reached).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Generic, Protocol, TypeVar

from testbed.sim.engine import Engine
from topologies.jitter import SCALE, SIZE, table
from topologies.model import Impairment

MIN_BURST_BYTES = 1600
BURST_TIME_NS = 250_000
"""Size of the token bucket: the bytes of this time, at least one full frame, as in netem.wiring.qdisc."""
DEFAULT_QUEUE_FRAMES = 1000
"""Limit of a queue with a rate but no limit."""
NS_PER_S = 10**9


class Sized(Protocol):
    """A frame; a line uses only its size, from the first Ethernet address to the last byte of payload."""

    @property
    def size_bytes(self) -> int: ...


F = TypeVar("F", bound=Sized)


class Line(Generic[F]):
    """Frames enter by `enter` and leave by `forward`, possibly within the same call.

    `damage(frame, bit)` makes a copy of a frame with one bit flipped. Invariant:
    entered + duplicated = sent + delay_line_dropped + queue_dropped + backlog.
    """

    def __init__(
        self,
        engine: Engine,
        impairment: Impairment,
        rng: Random,
        *,
        forward: Callable[[F], object],
        damage: Callable[[F, int], F],
    ) -> None:
        self._engine = engine
        self._at = engine.at
        self._rng = rng
        self._forward = forward
        self._damage = damage
        self._waiting: deque[F] = deque()
        self._waiting_bytes = 0
        self._armed = 0
        """Number of the server's valid alarm: a change makes older ones void."""
        self._is_armed = False
        self._is_counted_in_bytes = False
        self.entered = 0
        self.sent = 0
        self.sent_bytes = 0
        self.delay_line_dropped = 0
        self.queue_dropped = 0
        self.duplicated = 0
        self._take(impairment)

    @property
    def backlog(self) -> int:
        """Frames in the line and in the queue."""
        return self.entered + self.duplicated - self.sent - self.delay_line_dropped - self.queue_dropped

    def counters(self, cut_dropped: int) -> dict[str, Any]:
        """Counters for the manifest; `cut_dropped`: frames that a cut kept from the line."""
        return {
            "sent_frames": self.sent,
            "sent_bytes": self.sent_bytes,
            "delay_line_dropped_frames": self.delay_line_dropped,
            "queue_dropped_frames": self.queue_dropped,
            "cut_dropped_frames": cut_dropped,
            "backlog_frames": self.backlog,
            "duplicated_frames": self.duplicated,
        }

    def change(self, impairment: Impairment) -> None:
        """Set the impairment from now on."""
        was_counted_in_bytes = self._is_counted_in_bytes
        self._take(impairment)
        if self._is_counted_in_bytes is not was_counted_in_bytes:
            self.queue_dropped += len(self._waiting)
            self._waiting.clear()
            self._waiting_bytes = 0
        self._armed += 1
        self._is_armed = False
        self._serve(self._armed)

    def enter(self, frame: F) -> None:
        """Take a frame into the line."""
        self.entered += 1
        if not self._has_chances:
            if self._delay_ns:
                self._at(self._engine.now_ns + self._delay_ns, self._due, frame)
            else:
                self._due(frame)
        elif self._duplicate_ratio and self._rng.random() < self._duplicate_ratio:
            self._enter_twice(frame)
        elif self._is_lost():
            self.delay_line_dropped += 1
        else:
            self._damage_and_delay(frame)

    # The delay line.

    def _take(self, impairment: Impairment) -> None:
        self._delay_ns = impairment.delay_ns
        self._jitter_ns = impairment.jitter_ns
        self._table = table(impairment.distribution) if impairment.jitter_ns else ()
        self._duplicate_ratio = impairment.duplicate_ratio
        self._reorder_ratio = impairment.reorder_ratio
        self._corrupt_ratio = impairment.corrupt_ratio
        self._take_loss(impairment.loss_ratio, impairment.loss_burst_frames)
        self._has_chances = bool(
            self._jitter_ns
            or self._duplicate_ratio
            or self._reorder_ratio
            or self._corrupt_ratio
            or impairment.loss_ratio
        )
        self._take_rate(impairment)

    def _take_loss(self, ratio: float, burst_frames: float) -> None:
        """Set the loss chain: mean burst 1/r, stationary loss p/(p + r)."""
        self._loss_ratio = ratio
        self._is_bursty = ratio > 0 and burst_frames > 1.0
        self._is_bad = False
        self._bad_to_good = 1.0 / burst_frames
        self._good_to_bad = min(1.0, ratio * self._bad_to_good / (1.0 - ratio)) if self._is_bursty else 0.0

    def _is_lost(self) -> bool:
        if self._is_bursty:
            was_bad = self._is_bad
            if self._rng.random() < (self._bad_to_good if was_bad else self._good_to_bad):
                self._is_bad = not was_bad
            return was_bad
        return self._loss_ratio > 0 and self._rng.random() < self._loss_ratio

    def _enter_twice(self, frame: F) -> None:
        """Enter a frame and its duplicate, which replaces a lost original; netem draws the original's loss first."""
        if not self._is_lost():
            self.duplicated += 1
            if self._is_lost():
                self.delay_line_dropped += 1
            else:
                self._damage_and_delay(frame)
        self._damage_and_delay(frame)

    def _damage_and_delay(self, frame: F) -> None:
        random = self._rng.random
        if self._corrupt_ratio and random() < self._corrupt_ratio:
            frame = self._damage(frame, int(random() * 8 * frame.size_bytes))
        if self._reorder_ratio and random() < self._reorder_ratio:
            self._leave(frame)
        elif self._jitter_ns:
            self._delay(frame, delay_ns(self._delay_ns, self._jitter_ns, self._table[int(random() * SIZE)]))
        else:
            self._delay(frame, self._delay_ns)

    def _delay(self, frame: F, for_ns: int) -> None:
        engine = self._engine
        if for_ns > 0:
            engine.at(engine.now_ns + for_ns, self._due, frame)
        else:
            self._due(frame)

    def _leave(self, frame: F) -> None:
        self.sent += 1
        self.sent_bytes += frame.size_bytes
        self._forward(frame)

    # The queue.

    def _take_rate(self, impairment: Impairment) -> None:
        self._bytes_per_s = 0 if impairment.rate_bps is None else max(1, impairment.rate_bps // 8)
        self._is_counted_in_bytes = impairment.rate_bps is not None and impairment.queue_bytes is not None
        self._limit = impairment.queue_bytes or impairment.queue_frames or DEFAULT_QUEUE_FRAMES
        if self._bytes_per_s:
            burst_bytes = max(MIN_BURST_BYTES, self._bytes_per_s * BURST_TIME_NS // NS_PER_S)
            self._bucket_ns = self._time_of(burst_bytes)
        else:
            self._bucket_ns = 0
        self._tokens_ns = self._bucket_ns
        """The bucket's content as the time that filling it takes, at `_filled_ns`."""
        self._filled_ns = self._engine.now_ns

    def _time_of(self, size_bytes: int) -> int:
        return size_bytes * NS_PER_S // self._bytes_per_s

    def _due(self, frame: F) -> None:
        if not self._bytes_per_s:
            self.sent += 1
            self.sent_bytes += frame.size_bytes
            self._forward(frame)
        elif self._is_full_for(frame):
            self.queue_dropped += 1
        else:
            self._waiting.append(frame)
            self._waiting_bytes += frame.size_bytes
            if not self._is_armed:
                self._serve(self._armed)

    def _is_full_for(self, frame: F) -> bool:
        if self._is_counted_in_bytes:
            return self._waiting_bytes + frame.size_bytes > self._limit
        return len(self._waiting) >= self._limit

    def _serve(self, armed: int) -> None:
        """Forward frames as the tokens allow, and set an alarm for the next frame."""
        if armed != self._armed:
            return
        self._is_armed = False
        while self._waiting:
            wait_ns = self._wait_ns(self._waiting[0])
            if wait_ns > 0:
                if not self._is_armed:
                    self._is_armed = True
                    self._engine.at(self._engine.now_ns + wait_ns, self._serve, self._armed)
                return
            frame = self._waiting.popleft()
            self._waiting_bytes -= frame.size_bytes
            self._leave(frame)

    def _wait_ns(self, frame: F) -> int:
        """Time until the tokens suffice for a frame; 0: they do, and are spent."""
        if not self._bytes_per_s:
            return 0
        now_ns = self._engine.now_ns
        tokens_ns = min(self._bucket_ns, self._tokens_ns + now_ns - self._filled_ns)
        cost_ns = self._time_of(frame.size_bytes)
        lacking_ns = min(cost_ns, self._bucket_ns) - tokens_ns
        if lacking_ns > 0:
            return lacking_ns
        self._tokens_ns = tokens_ns - cost_ns
        self._filled_ns = now_ns
        return 0


class Server(Generic[F]):
    """A shared medium: one frame at a time at `rate_bps`, with at most `queue_frames` including the one on the medium;
    netem's own `rate` and `limit`.
    """

    def __init__(self, engine: Engine, *, rate_bps: int, queue_frames: int, forward: Callable[[F], object]) -> None:
        self._engine = engine
        self._bytes_per_s = max(1, rate_bps // 8)
        self._limit = queue_frames
        self._forward = forward
        self._free_ns = 0
        """Time at which the last frame in it will have passed."""
        self.sent = 0
        self.sent_bytes = 0
        self.queue_dropped = 0
        self.backlog = 0

    def enter(self, frame: F) -> None:
        """Take a frame into the queue."""
        if self.backlog >= self._limit:
            self.queue_dropped += 1
            return
        self.backlog += 1
        begin_ns = max(self._engine.now_ns, self._free_ns)
        self._free_ns = begin_ns + frame.size_bytes * NS_PER_S // self._bytes_per_s
        self._engine.at(self._free_ns, self._passed, frame)

    def _passed(self, frame: F) -> None:
        self.backlog -= 1
        self.sent += 1
        self.sent_bytes += frame.size_bytes
        self._forward(frame)


def delay_ns(mean_ns: int, jitter_ns: int, entry: int) -> int:
    """Delay by netem's tabledist(): rounded in two steps, half away from zero. It may be negative."""
    product = (jitter_ns % SCALE) * entry
    rounded = (abs(product) + SCALE // 2) // SCALE
    return (rounded if product >= 0 else -rounded) + (jitter_ns // SCALE) * entry + mean_ns
