"""Virtual time: what is to happen, in the order of its instants; at one instant in the order in which it was asked for.

Nothing here draws, waits or reads a clock, so the same calls give the same history.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

STANDSTILL_EVENTS = 1_000_000
"""So many events caused at their own instant: whatever runs here goes round in circles without time passing. Those that
were asked for before do not count: a thousand members that all multicast together meet a million arrivals at once."""


class StandstillError(Exception):
    """Time does not go on. The text says at which instant."""


class Engine:
    """`now_ns` is the instant of the event that is being worked off, read-only for everybody else."""

    __slots__ = ("_events", "_order", "now_ns")

    def __init__(self, *, start_ns: int) -> None:
        self.now_ns = start_ns
        self._events: list[tuple[int, int, Callable[[Any], object], Any]] = []
        self._order = 0

    @property
    def worked_off(self) -> int:
        """Events so far."""
        return self._order - len(self._events)

    @property
    def next_ns(self) -> int | None:
        """When the next event is, None without one."""
        return self._events[0][0] if self._events else None

    def read_ns(self) -> int:
        """The clock of the simulated world."""
        return self.now_ns

    def at(self, at_ns: int, act: Callable[[Any], object], argument: Any = None) -> None:
        """Call `act(argument)` at an instant; what lies in the past happens now, after all that is to happen now."""
        if at_ns < self.now_ns:
            at_ns = self.now_ns
        self._order += 1
        heapq.heappush(self._events, (at_ns, self._order, act, argument))

    def run(self, until_ns: int) -> None:
        """Work off every event up to and including `until_ns`, which it is afterwards. Raises StandstillError."""
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
