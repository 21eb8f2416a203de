"""Logical and physical clocks as small objects. Physical time is an argument.

Lamport, "Time, Clocks, and the Ordering of Events in a Distributed System", 1978: IR1 and IR2 (LamportClock), IR1' and
IR2' (PhysicalClock). The clock condition: if a happened before b then C(a) < C(b).

All numbers are integers; physical readings are ns.
"""

from __future__ import annotations

import enum
from typing import Protocol

from node.errors import LocalError

MAX_TIMESTAMP = 2**63 - 1
"""The last timestamp that may be given or accepted: half of the range of a word, so that a clock that has seen it can
still count on. At one event per nanosecond it is 292 years away."""


class EventClock(Protocol):
    """The source of the timestamps of one process's events."""

    __slots__ = ()

    value: int
    """The timestamp of the last event."""

    def tick(self, now_ns: int, after: int = 0) -> int:
        """The timestamp of a local or send event, later than all before and later than `after`."""

    def receive(self, timestamp: int, now_ns: int) -> int:
        """The timestamp of the receipt of a message with `timestamp`, later than `timestamp` and all before."""


class ClockKind(enum.StrEnum):
    """The source of timestamps."""

    LOGICAL = "logical"
    """A counter."""
    PHYSICAL = "physical"
    """The node's clock, with its error; moved on only as far as the clock condition needs."""
    SYNCHRONISED = "synchronised"
    """The node's clock, set forward by IR1' and IR2' with the timestamps of the messages themselves."""


class Tie(enum.StrEnum):
    """The precedence among equal timestamps."""

    MEMBER = "member"
    """The lower member first."""
    FAIR = "fair"
    """Note 3 of paper 001: at time C the member at place C mod n first, then the following places, cyclically."""

    def precedence(self, timestamp: int, place: int, count: int) -> int:
        """The precedence of the member at this place of `count`; the least goes first."""
        return (place - timestamp) % count if self is Tie.FAIR else place


def clock_of(kind: ClockKind, *, minimum_delay_ns: int) -> EventClock:
    """A new clock; the delay (IR2's mu) counts for SYNCHRONISED only."""
    match kind:
        case ClockKind.LOGICAL:
            return LamportClock()
        case ClockKind.PHYSICAL:
            return PhysicalClock()
        case ClockKind.SYNCHRONISED:
            return PhysicalClock(minimum_delay_ns=minimum_delay_ns)


class LamportClock(EventClock):
    """A counter, independent of the physical time."""

    __slots__ = ("value",)

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def tick(self, now_ns: int = 0, after: int = 0) -> int:  # noqa: ARG002 (the time does not matter to it)
        """IR1: between any two successive events the clock is incremented."""
        self.value = max(self.value, after) + 1
        return self.value

    def receive(self, timestamp: int, now_ns: int = 0) -> int:  # noqa: ARG002 (the time does not matter to it)
        """IR2 (b): not less than the present value and greater than the timestamp; the receipt is an event itself."""
        self.value = max(self.value, timestamp) + 1
        return self.value


class PhysicalClock(EventClock):
    """The node's clock and a correction that only grows, so that the reading is never set backwards.

    `read` never decreases, and is not negative. `tick` and `receive` give events timestamps, and no two events of one
    process have the same: equal readings are moved on by a nanosecond ("the only concern is that the ticks are frequent
    enough for C1").

    `minimum_delay_ns` is IR2's mu_m, the minimum delay of each message. None: receipts do not correct the clock at all;
    then only the timestamps of events obey the clock condition.
    """

    __slots__ = ("_correction_ns", "_minimum_delay_ns", "_shown_ns", "value")

    def __init__(self, *, minimum_delay_ns: int | None = None) -> None:
        if minimum_delay_ns is not None and minimum_delay_ns < 0:
            raise LocalError(f"a message takes at least 0 ns, not {minimum_delay_ns}")
        self._minimum_delay_ns = minimum_delay_ns
        self._correction_ns = 0
        self._shown_ns = 0
        self.value = 0

    def read(self, now_ns: int) -> int:
        """IR1': the reading when the node's clock shows `now_ns`; between messages it runs like that clock."""
        self._shown_ns = max(self._shown_ns, now_ns + self._correction_ns)
        return self._shown_ns

    def adjust(self, timestamp: int, now_ns: int) -> bool:
        """IR2' (b): set the clock to max(C(t' - 0), T_m + mu_m). Returns whether that moved it."""
        if self._minimum_delay_ns is None:
            return False
        ahead_ns = timestamp + self._minimum_delay_ns - self.read(now_ns)
        if ahead_ns <= 0:
            return False
        # Corrected from the reading, not from `now_ns`: a clock that began below zero reads 0.
        self._correction_ns += self._shown_ns + ahead_ns - (now_ns + self._correction_ns)
        self.read(now_ns)
        return True

    def tick(self, now_ns: int, after: int = 0) -> int:
        """IR2' (a): T_m = C_i(t), and later than all events before (C1)."""
        self.value = max(self.value + 1, after + 1, self.read(now_ns))
        return self.value

    def receive(self, timestamp: int, now_ns: int) -> int:
        """IR2' (b), and C2 also where mu_m is 0 or no correction is made."""
        self.adjust(timestamp, now_ns)
        self.value = max(self.value + 1, timestamp + 1, self.read(now_ns))
        return self.value
