"""A bus with collisions: carrier sense, collision detection and back-off, as IEEE 802.3, clause 4, has them.

- A station begins when its frame is there and it has heard nothing for a gap of 96 bit times.
- All stations are equally far from each other: 200 bit times (4 km of cable), nearly the most with which a frame is
  heard by stations that have backed off for one slot of 512 bit times more, before they begin. So there are about as
  many collisions as on the longest network that the standard allows; a shorter one has fewer.
- Stations that begin before they hear each other collide. Each hears it, sends 32 bit times of jam, and is silent for
  k slots: k is drawn from 0 to 2**min(n, 10) - 1 after the n-th collision of a frame. After the 16th the frame is lost.
- The medium is heard idle later by the others than by the station that has sent: with more frames it begins again as
  early as the others' gap ends, and collides with those that waited. No carrier cuts a gap short: gaps of different
  stations begin within 200 bit times of each other, so the first carrier arrives when the last gap has ended.

The preamble and the check sequence take no time here, as on a bus without collisions. A frame passes when the others
have heard its last bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Generic, Protocol, TypeVar

from testbed.sim.engine import Engine
from testbed.sim.line import NS_PER_S, Sized

SLOT_BITS = 512
GAP_BITS = 96
JAM_BITS = 32
PROPAGATION_BITS = 200
MAX_ATTEMPTS = 16
MAX_DOUBLINGS = 10


class Placed(Sized, Protocol):
    """A frame that knows its station."""

    @property
    def station(self) -> int: ...


F = TypeVar("F", bound=Placed)


class _Station(Generic[F]):
    """One sender on the bus: its queue, and the state of its first frame."""

    __slots__ = ("attempts", "not_before_ns", "number", "waiting")

    def __init__(self, number: int) -> None:
        self.number = number
        self.waiting: deque[tuple[F, int]] = deque()
        """Frames and the instants at which they came."""
        self.attempts = 0
        self.not_before_ns = 0
        """The end of a back-off."""

    @property
    def ready_ns(self) -> int:
        return max(self.waiting[0][1], self.not_before_ns)


class CollisionBus(Generic[F]):
    """The medium and its stations, each with a queue of `queue_frames`, the frame on the medium included.

    Always: entered = sent + queue_dropped + collision_dropped + backlog.
    """

    def __init__(
        self, engine: Engine, rng: Random, *, rate_bps: int, queue_frames: int, forward: Callable[[F], object]
    ) -> None:
        self._engine = engine
        self._rng = rng
        self._limit = queue_frames
        self._forward = forward
        self._bytes_per_s = max(1, rate_bps // 8)
        self._slot_ns, self._gap_ns, self._jam_ns, self._propagation_ns = (
            bits * NS_PER_S // rate_bps for bits in (SLOT_BITS, GAP_BITS, JAM_BITS, PROPAGATION_BITS)
        )
        self._stations: dict[int, _Station[F]] = {}
        self._contenders: dict[int, _Station[F]] = {}
        """Those with frames."""
        self._is_taken = False
        """A frame is on the medium and has it for itself."""
        self._round = 0
        """Which of the alarms counts: an earlier start makes older ones void."""
        self._first_ns = 0
        """When the next station begins, as far as is known."""
        self._idle_ns = engine.now_ns - self._gap_ns
        """Since when all hear nothing, but for one."""
        self._early: _Station[F] | None = None
        self._early_idle_ns = 0
        """That one, and since when."""
        self.sent = 0
        self.sent_bytes = 0
        self.queue_dropped = 0
        self.collisions = 0
        self.collision_dropped = 0
        """Frames after their last attempt."""
        self.backlog = 0

    def enter(self, frame: F) -> None:
        """A station has one more frame to send."""
        station = self._stations.get(frame.station)
        if station is None:
            station = self._stations[frame.station] = _Station(frame.station)
        if len(station.waiting) >= self._limit:
            self.queue_dropped += 1
            return
        self.backlog += 1
        station.waiting.append((frame, self._engine.now_ns))
        if station.number not in self._contenders:
            self._contenders[station.number] = station
            if not self._is_taken and (len(self._contenders) == 1 or self._start_ns(station) < self._first_ns):
                self._arm()

    def _start_ns(self, station: _Station[F]) -> int:
        """When a station begins unless it hears another one first."""
        idle_ns = self._early_idle_ns if station is self._early else self._idle_ns
        return max(station.ready_ns, idle_ns + self._gap_ns)

    def _arm(self) -> None:
        """Come back when the first carrier has reached all stations: only then is known who collides."""
        if self._contenders:
            self._first_ns = min(map(self._start_ns, self._contenders.values()))
            self._round += 1
            self._engine.at(self._first_ns + self._propagation_ns, self._resolve, self._round)

    def _resolve(self, number: int) -> None:
        if number != self._round:
            return
        heard_ns = self._engine.now_ns
        starts = [(self._start_ns(station), station.number) for station in self._contenders.values()]
        starters = [(start_ns, self._stations[number]) for start_ns, number in sorted(starts) if start_ns <= heard_ns]
        if len(starters) > 1:
            self._collide(starters, heard_ns)
            self._arm()
            return
        ((start_ns, station),) = starters
        self._is_taken = True
        frame, _ = station.waiting[0]
        end_ns = start_ns + frame.size_bytes * NS_PER_S // self._bytes_per_s
        self._engine.at(end_ns + self._propagation_ns, self._passed, station)

    def _passed(self, station: _Station[F]) -> None:
        self._is_taken = False
        self._idle_ns = self._engine.now_ns
        self._early, self._early_idle_ns = station, self._idle_ns - self._propagation_ns
        frame = self._take(station)
        self.sent += 1
        self.sent_bytes += frame.size_bytes
        self._arm()
        self._forward(frame)

    def _collide(self, starters: list[tuple[int, _Station[F]]], heard_ns: int) -> None:
        """The first hears the second; all others hear the first, at `heard_ns`."""
        self.collisions += 1
        (_, first), (second_ns, _) = starters[:2]
        for _, station in starters:
            end_ns = (second_ns + self._propagation_ns if station is first else heard_ns) + self._jam_ns
            station.attempts += 1
            if station.attempts == MAX_ATTEMPTS:
                self.collision_dropped += 1
                self._take(station)
            else:
                slots = self._rng.randrange(1 << min(station.attempts, MAX_DOUBLINGS))
                station.not_before_ns = end_ns + slots * self._slot_ns
        self._early, self._early_idle_ns = first, heard_ns + self._jam_ns + self._propagation_ns
        self._idle_ns = second_ns + 2 * self._propagation_ns + self._jam_ns

    def _take(self, station: _Station[F]) -> F:
        """The first frame of a station is done with."""
        frame, _ = station.waiting.popleft()
        station.attempts = station.not_before_ns = 0
        self.backlog -= 1
        if not station.waiting:
            del self._contenders[station.number]
        return frame
