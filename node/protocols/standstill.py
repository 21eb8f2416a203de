"""Who stands still for long says something that nobody asked for, so that who does not answer is missed.

Cores over `reliable` that wait for words of everybody share it. A member that has acknowledged everything and then
crashes, owing a word that only the order waits for, is missed by nobody: the layer below awaits nothing of it. So
whoever holds something undelivered, and has seen the order stand still for `PROD_AFTER_NS`, multicasts a message, then
more and more rarely: whoever does not acknowledge that is missed.
"""

from __future__ import annotations

from node.effects import Effect, Timer
from node.protocols.timers import Timers

MILLISECOND = 1_000_000
PROD = Timer("prod")
PROD_AFTER_NS = 1000 * MILLISECOND
MOST_DOUBLINGS = 20

Place = tuple[int, ...]
"""Of the first message that waits; it differs between any two."""


class StandStill:
    """Watches the first message that waits, with the timer PROD of the core."""

    __slots__ = ("_at", "_prods", "_timers")

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._at: Place = ()
        """The place when PROD was armed."""
        self._prods = 0

    def watch(self, first: Place | None, now_ns: int, out: list[Effect]) -> None:
        """To be called after everything that may have moved the order; `first` None: nothing waits."""
        if first is None:
            self._prods = 0
            self._timers.disarm(PROD, out)
        elif PROD not in self._timers:
            self._at = first
            self._timers.arm(PROD, now_ns + (PROD_AFTER_NS << min(self._prods, MOST_DOUBLINGS)), out)

    def is_due(self, first: Place | None) -> bool:
        """PROD has fired: whether the order has not moved meanwhile, and it is time to say something. `watch` next."""
        is_still = first is not None and first == self._at
        self._prods = self._prods + 1 if is_still else 0
        return is_still
