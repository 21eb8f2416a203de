"""Virtual time: events in the order of their instants; at one instant in the order in which they were scheduled.

Nothing here draws, waits or reads a clock, so the same calls give the same history.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

STANDSTILL_EVENTS = 1_000_000
"""Number of events scheduled at their own instant that indicates a loop without progress of time. Events scheduled
earlier do not count: a thousand members that all multicast together cause a million arrivals at once."""


class StandstillError(Exception):
    """Time makes no progress. The text names the instant."""


class Engine:
    """Queue of events. `now_ns`: instant of the present event, read-only for callers."""

    __slots__ = ("_events", "_order", "now_ns")

    def __init__(self, *, start_ns: int) -> None:
        self.now_ns = start_ns
        self._events: list[tuple[int, int, Callable[[Any], object], Any]] = []
        self._order = 0

    @property
    def worked_off(self) -> int:
        """Number of events executed so far."""
        return self._order - len(self._events)

    @property
    def next_ns(self) -> int | None:
        """Instant of the next event, None without one."""
        return self._events[0][0] if self._events else None

    def read_ns(self) -> int:
        """The clock of the simulated world."""
        return self.now_ns

    def at(self, at_ns: int, act: Callable[[Any], object], argument: Any = None) -> None:
        """Call `act(argument)` at an instant; one in the past counts as now, after all events scheduled for now."""
        if at_ns < self.now_ns:
            at_ns = self.now_ns
        self._order += 1
        heapq.heappush(self._events, (at_ns, self._order, act, argument))

    def run(self, until_ns: int) -> None:
        """Execute every event up to and including `until_ns`, which is the time afterwards. Raises StandstillError."""
        events, pop = self._events, heapq.heappop
        now_ns, asked, here = self.now_ns, self._order, 0
        while events and events[0][0] <= until_ns:
            at_ns, order, act, argument = pop(events)
            if at_ns != now_ns:
                self.now_ns = now_ns = at_ns
                asked, here = self._order, 0
            elif order > asked:
                here += 1
                if here > STANDSTILL_EVENTS:
                    raise StandstillError(f"more than {STANDSTILL_EVENTS} events at {now_ns} ns: time does not go on")
            act(argument)
        self.now_ns = max(self.now_ns, until_ns)
