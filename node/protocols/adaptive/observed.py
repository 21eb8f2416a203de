"""The recent past of one member, in bounded memory: sums, samples, and the virtual queue of paper 003.

All times are ns of one clock that does not go back; nothing here reads one.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter, deque
from collections.abc import Mapping

from node.protocols.adaptive.shadow_execution import Stamp

SECOND = 1_000_000_000
SLICES = 16
"""Of a window: what is old leaves it in so many steps."""


class Sums:
    """How many events, and their sum, in a sliding window: SLICES slices of equal length, the present one included."""

    __slots__ = ("_first_ns", "_slice_ns", "_slices", "count", "total")

    def __init__(self, window_ns: int) -> None:
        self._slice_ns = window_ns // SLICES
        self._slices: deque[tuple[int, int, int]] = deque()
        """(number of the slice, count, total), ascending."""
        self._first_ns: int | None = None
        self.count = 0
        self.total = 0

    def add(self, amount: int, now_ns: int) -> None:
        """One event."""
        self.forget(now_ns)
        if self._first_ns is None:
            self._first_ns = now_ns
        number = now_ns // self._slice_ns
        count = total = 0
        if self._slices and self._slices[-1][0] == number:
            _, count, total = self._slices.pop()
        self._slices.append((number, count + 1, total + amount))
        self.count += 1
        self.total += amount

    def forget(self, now_ns: int) -> None:
        """What has left the window."""
        oldest = now_ns // self._slice_ns - SLICES
        while self._slices and self._slices[0][0] <= oldest:
            _, count, total = self._slices.popleft()
            self.count -= count
            self.total -= total

    def span_ns(self, now_ns: int) -> int:
        """What the window covers, at least 1: less than its length until that has passed since the first event."""
        begin_ns = (now_ns // self._slice_ns - SLICES + 1) * self._slice_ns
        first_ns = now_ns if self._first_ns is None else self._first_ns
        return max(1, now_ns - max(begin_ns, first_ns))

    def per_second(self, now_ns: int) -> int:
        """The sum per second of time."""
        self.forget(now_ns)
        return self.total * SECOND // self.span_ns(now_ns)

    def mean(self, now_ns: int) -> int | None:
        """Of the events in the window; None when there is none."""
        self.forget(now_ns)
        return self.total // self.count if self.count else None


class Samples:
    """The last values of something, handed out in turn: a distribution without a name."""

    __slots__ = ("_next", "_values")

    def __init__(self, most: int) -> None:
        self._values: deque[int] = deque(maxlen=most)
        self._next = 0

    def add(self, value: int) -> None:
        self._values.append(value)

    def draw(self) -> int | None:
        """The next one, round and round; None while there is none."""
        if not self._values:
            return None
        self._next = (self._next + 1) % len(self._values)
        return self._values[self._next]

    def mean(self) -> int | None:
        return sum(self._values) // len(self._values) if self._values else None


class VirtualQueue:
    """All stamps received, executed or not, in order (paper 003, figure 4), and where each was inserted (figure 5)."""

    __slots__ = ("_most", "_positions", "_stamps", "_window_ns")

    def __init__(self, *, window_ns: int, most: int) -> None:
        self._window_ns = window_ns
        self._most = most
        self._stamps: list[Stamp] = []
        self._positions: deque[tuple[int, int]] = deque()
        """(when, position) of each insertion."""

    def insert(self, stamp: Stamp, now_ns: int) -> int:
        """Its position from the tail: how many later stamps have been received before it."""
        position = len(self._stamps) - bisect_right(self._stamps, stamp)
        insort(self._stamps, stamp)
        if len(self._stamps) > self._most:
            del self._stamps[0]
        self._positions.append((now_ns, position))
        if len(self._positions) > self._most:
            self._positions.popleft()
        return position

    def histogram(self, now_ns: int) -> Mapping[int, int]:
        """Position from the tail -> how many messages were inserted there within the window, or of the last ones that
        are remembered if those are fewer."""
        while self._positions and self._positions[0][0] <= now_ns - self._window_ns:
            self._positions.popleft()
        return Counter(position for _, position in self._positions)
