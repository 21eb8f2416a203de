"""How long to wait for an answer: RFC 6298 in integers.

Jacobson's smoothed round trip and variation, and Karn's rule: who calls `sample` must not do so for what was asked
twice, because nobody knows which of the two was answered. Such an answer is `ambiguous`.
"""

from __future__ import annotations

MOST_DOUBLINGS = 2
"""Of a time-out: most losses here are chance, not congestion, and somebody waits for every message that comes late."""

GRANULARITY_NS = 1_000_000
"""RFC 6298 (2.3): a time-out lies at least this much above the smoothed round trip. On a network whose round trip never
varies, the variation vanishes and the time-out would be the round trip itself: every message would be sent twice, and
what was sent twice gives no sample by which to learn better.
"""

AMBIGUOUS_IN_A_ROW = 8
"""So many answers without one clear sample mean that the round trip has outgrown the time-out: everything is asked
twice, for ever. RFC 6298 (5.5) backs the time-out off until a sample comes; here losses are chance and waiting longer
after a cut would cost those who wait. So the time since the first asking counts instead: never less than the truth."""


class RoundTrip:
    """To one member. All times in ns."""

    __slots__ = ("_ambiguous", "_least_ns", "_most_ns", "_smoothed_ns", "_timeout_ns", "_variation_ns")

    def __init__(self, *, first_ns: int, least_ns: int, most_ns: int) -> None:
        self._least_ns = least_ns
        self._most_ns = most_ns
        self._timeout_ns = first_ns
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
        """How long to wait after the `tries`-th time of asking."""
        return min(self._most_ns, self._timeout_ns << min(tries - 1, MOST_DOUBLINGS))


class RoundTrips:
    """To everybody."""

    __slots__ = ("_by_member", "_first_ns", "_least_ns", "_most_ns")

    def __init__(self, *, first_ns: int, least_ns: int, most_ns: int) -> None:
        self._first_ns = first_ns
        self._least_ns = least_ns
        self._most_ns = most_ns
        self._by_member: dict[int, RoundTrip] = {}

    def of(self, member: int) -> RoundTrip:
        found = self._by_member.get(member)
        if found is None:
            found = RoundTrip(first_ns=self._first_ns, least_ns=self._least_ns, most_ns=self._most_ns)
            self._by_member[member] = found
        return found
