"""The timers of one core, as a host keeps them: pure, so that every host has the same."""

from __future__ import annotations

import heapq

from node.effects import Timer


class Schedule:
    """Instants are whatever clock the core reads, in ns. Timers due at one instant fire in the order in which they
    were set."""

    __slots__ = ("_armed", "_heap", "_order")

    def __init__(self) -> None:
        self._armed: dict[Timer, tuple[int, int]] = {}
        self._heap: list[tuple[int, int, Timer]] = []
        self._order = 0

    def set(self, timer: Timer, at_ns: int) -> None:
        """Arm a timer, or move it."""
        self._order += 1
        self._armed[timer] = (at_ns, self._order)
        heapq.heappush(self._heap, (at_ns, self._order, timer))

    def cancel(self, timer: Timer) -> None:
        """Disarm a timer; one that is not armed: nothing happens."""
        self._armed.pop(timer, None)

    def next_ns(self) -> int | None:
        """When the first timer is due, None without one."""
        # A moved or cancelled timer leaves its old entry behind; it goes when it comes to the top.
        while self._heap and self._armed.get(self._heap[0][2]) != self._heap[0][:2]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ns: int) -> Timer | None:
        """Disarm and return the first timer that is due, None when none is."""
        at_ns = self.next_ns()
        if at_ns is None or at_ns > now_ns:
            return None
        timer = heapq.heappop(self._heap)[2]
        del self._armed[timer]
        return timer
