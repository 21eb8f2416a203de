"""Time-outs from measured round trips (RFC 6298 in integers), questions to silent members, armed timers."""

from __future__ import annotations

from collections.abc import Mapping

from node.effects import CancelTimer, Effect, SetTimer, Timer
from node.reliable.parameters import TransportParameters

MOST_DOUBLINGS = 2  # of a time-out: most losses here are chance, not congestion
GRANULARITY_NS = 1_000_000  # RFC 6298 (2.3): a time-out lies at least this much above the smoothed round trip

AMBIGUOUS_IN_A_ROW = 8
"""So many answers without one clear sample mean that the round trip has outgrown the time-out; then the time since the
first question counts, which is never less than the truth (docs/protocols/reliable.md, Time-outs)."""


class RoundTrip:
    """To one member. All times in ns. Karn's rule: the caller samples only what was asked once; the answer to a
    repeated question is `ambiguous`.
    """

    __slots__ = ("_ambiguous", "_least_ns", "_most_ns", "_smoothed_ns", "_timeout_ns", "_variation_ns")

    def __init__(self, parameters: TransportParameters) -> None:
        self._least_ns = parameters.retry_least_ns
        self._most_ns = parameters.retry_most_ns
        self._timeout_ns = parameters.retry_first_ns
        self._smoothed_ns: int | None = None
        self._variation_ns = 0
        self._ambiguous = 0

    def ambiguous(self, since_first_ns: int) -> None:
        """An answer to what was asked more than once, first `since_first_ns` ago."""
        self._ambiguous += 1
        if self._ambiguous >= AMBIGUOUS_IN_A_ROW:
            self.sample(since_first_ns)

    def sample(self, elapsed_ns: int) -> None:
        """One measured round trip."""
        self._ambiguous = 0
        if self._smoothed_ns is None:
            self._smoothed_ns = elapsed_ns
            self._variation_ns = elapsed_ns // 2
        else:
            self._variation_ns += (abs(self._smoothed_ns - elapsed_ns) - self._variation_ns) // 4
            self._smoothed_ns += (elapsed_ns - self._smoothed_ns) // 8
        self._timeout_ns = max(self._least_ns, self._smoothed_ns + max(GRANULARITY_NS, 4 * self._variation_ns))

    def timeout_ns(self, tries: int = 1) -> int:
        """How long to wait after the `tries`-th question."""
        return min(self._most_ns, self._timeout_ns << min(tries - 1, MOST_DOUBLINGS))


class Questions:
    """Which silent members to ask: first after `first_ns` without progress, then with pauses that double."""

    __slots__ = ("_first_ns", "_most_ns", "_silence")

    def __init__(self, *, first_ns: int, most_ns: int) -> None:
        self._first_ns = first_ns
        self._most_ns = most_ns
        self._silence: dict[int, tuple[int, int, int]] = {}
        """Per member: its progress, the time since then or since the last question, the pause until the next one."""

    def due(self, awaited: Mapping[int, int], elapsed_ns: int) -> list[int]:
        """Another `elapsed_ns` have passed. `awaited`: per member whose answer is missing, a number that changes with
        its progress."""
        due: list[int] = []
        silence: dict[int, tuple[int, int, int]] = {}
        for member, progress in sorted(awaited.items()):
            before, waited_ns, pause_ns = self._silence.get(member, (progress, 0, self._first_ns))
            waited_ns += elapsed_ns
            if before != progress:
                waited_ns, pause_ns = 0, self._first_ns
            elif waited_ns >= pause_ns:
                waited_ns, pause_ns = 0, min(2 * pause_ns, self._most_ns)
                due.append(member)
            silence[member] = (progress, waited_ns, pause_ns)
        self._silence = silence
        return due


class Timers:
    """Which timers of a core are armed. An armed timer never moves: its handler finds out whether there is still
    something to do, and when next."""

    __slots__ = ("_armed",)

    def __init__(self) -> None:
        self._armed: set[Timer] = set()

    def __contains__(self, timer: Timer) -> bool:
        return timer in self._armed

    def __bool__(self) -> bool:
        return bool(self._armed)

    def arm(self, timer: Timer, at_ns: int, out: list[Effect]) -> None:
        """Set a timer unless it is set."""
        if timer not in self._armed:
            self._armed.add(timer)
            out.append(SetTimer(timer=timer, at_ns=at_ns))

    def disarm(self, timer: Timer, out: list[Effect]) -> None:
        if timer in self._armed:
            self._armed.discard(timer)
            out.append(CancelTimer(timer=timer))

    def disarm_all(self) -> list[Effect]:
        armed, self._armed = sorted(self._armed), set()
        return [CancelTimer(timer=timer) for timer in armed]

    def fired(self, timer: Timer) -> None:
        """The host says that it is due: it is armed no more."""
        self._armed.discard(timer)
