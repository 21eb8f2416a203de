"""Which timers of a core are armed."""

from __future__ import annotations

from node.effects import CancelTimer, Effect, SetTimer, Timer


class Timers:
    """A timer that is armed stays where it is: when it is due, its handler looks whether there is still something to
    do, and when next. So a busy core does not move timers with every message.
    """

    __slots__ = ("_armed",)

    def __init__(self) -> None:
        self._armed: set[Timer] = set()

    def __contains__(self, timer: Timer) -> bool:
        return timer in self._armed

    def arm(self, timer: Timer, at_ns: int, out: list[Effect]) -> None:
        """Set a timer unless it is set."""
        if timer not in self._armed:
            self._armed.add(timer)
            out.append(SetTimer(timer=timer, at_ns=at_ns))

    def disarm(self, timer: Timer, out: list[Effect]) -> None:
        if timer in self._armed:
            self._armed.discard(timer)
            out.append(CancelTimer(timer=timer))

    def disarm_all(self, out: list[Effect]) -> None:
        out.extend(CancelTimer(timer=timer) for timer in sorted(self._armed))
        self._armed.clear()

    def fired(self, timer: Timer) -> None:
        """The host says that it is due: it is armed no more."""
        self._armed.discard(timer)
