"""What each candidate would cost here now: estimates from what one member sees, whatever protocol is in force.

Paper 003, 3.2 and 4.1. The cost of a message is the time from its receipt until it can be handed over for good; an
estimate is that per unit time, here ns per second. Everything is counted in a sliding window, so an estimate follows
the load within one window length.

Observed: lambda, the rate of receipts (own submissions included); the service times, whose mean is 1/mu; the position
from the tail at which each message is inserted into the *virtual queue*: all that has been received, processed or not,
in the order of the stamps that Time Warp gives (figures 4 and 5); rounds of probes, which everybody echoes at once.

Time Warp, by `estimator`.
  histogram   The paper's formulae. rho = lambda / mu (4), L = rho^2 / (1 - rho) (5), and with f(n) the number of
              messages per unit time that are inserted before n others, Cost = T * sum of f(n) over n > L (3). When
              rho >= 1 the queue grows without limit: nothing is beyond L. T, the mean time that a roll-back costs, is
              observed while Time Warp is in force. Before that the paper does not say; here: see `_assumed_roll_back`.
  graded      Ours. (3) compares each position with the mean length of the queue. But a queue of mean length 0.3 is
              mostly empty: the same message is a straggler at one time, at another not. In the paper's own model
              (M/M/1) at least n wait with probability rho^(n+1). So f(n) counts with 1 - rho^(n+1).
  rehearsal   Ours. A virtual Time Warp runs over the history of receipts (node/protocols/rehearsal.py).

The others. 2d is the slowest echo of a round of probes, so d is what the paper calls the largest delay (6).
  abcast      lambda * 2d (6): proposals of all, then the number.
  sequencer   lambda * the round trip to the server for what we send; what others send has its number when it comes.
  allack      A message waits for a word of everybody in its round: the way there and back, 2d, and in between either
              a message or, after `null_after_ns` at the latest, a null.
  atop        A message waits until its sender's turn comes: others' messages or their dummies, after `dummy_after_ns`
              of standstill.
The last two are coarse: they know the rates and the parameters, not the shares of the members.

None instead of a number: fewer than `least_messages` in the window, or no probe answered, or no service time known.
Nobody should act on such an estimate.
"""

from __future__ import annotations

import enum
from bisect import bisect_right, insort
from collections import deque
from dataclasses import dataclass

from node.parameters import require
from node.protocols.rehearsal import Rehearsal, Stamp

SECOND = 1_000_000_000
MILLISECOND = 1_000_000
SLICES = 16
"""Of a window: old events leave it in so many steps."""

SEQUENCER = 0x2
ALLACK = 0x8
ATOP = 0x9
ABCAST = 0xB
TIMEWARP = 0xC


class Estimator(enum.StrEnum):
    """How the cost of Time Warp is estimated: see the module's text."""

    HISTOGRAM = "histogram"
    GRADED = "graded"
    REHEARSAL = "rehearsal"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostParameters:
    """Of the estimates. Times in ns."""

    estimator: str = Estimator.REHEARSAL.value
    window_ns: int = 2000 * MILLISECOND
    least_messages: int = 8
    """So many messages in the window before anything is estimated."""
    most_history: int = 1024
    """How many stamps the virtual queue remembers."""
    null_after_ns: int = 2 * MILLISECOND
    """As in the parameters of allack."""
    dummy_after_ns: int = 5 * MILLISECOND
    """As in the parameters of atop."""

    def __post_init__(self) -> None:
        known = tuple(Estimator)
        require(self.estimator in known, f"estimator must be one of {', '.join(known)}, not {self.estimator!r}")
        require(self.window_ns >= SLICES, f"window_ns must be at least {SLICES}, not {self.window_ns}")
        require(self.least_messages >= 1, f"least_messages must be at least 1, not {self.least_messages}")
        require(self.most_history >= 2, f"most_history must be at least 2, not {self.most_history}")
        require(self.null_after_ns >= 0, f"null_after_ns must not be negative, not {self.null_after_ns}")
        require(self.dummy_after_ns >= 0, f"dummy_after_ns must not be negative, not {self.dummy_after_ns}")


class Sums:
    """How many events, and their sum, in the last window_ns: SLICES slices of equal length, the present one included.

    `span_ns` is what the window covers: less than its length until it has been full once.
    """

    __slots__ = ("_first_ns", "_slice_ns", "_slices", "count", "total")

    def __init__(self, window_ns: int) -> None:
        self._slice_ns = window_ns // SLICES
        self._slices: deque[tuple[int, int, int]] = deque()
        """(number of the slice, count, total), ascending."""
        self._first_ns: int | None = None
        self.count = 0
        self.total = 0

    def start(self, now_ns: int) -> None:
        """The observation begins now, unless it has begun."""
        if self._first_ns is None:
            self._first_ns = now_ns

    def add(self, amount: int, now_ns: int) -> None:
        self.start(now_ns)
        self.forget(now_ns)
        number = now_ns // self._slice_ns
        count, total = 0, 0
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
        """What the sums cover, at least 1."""
        if self._first_ns is None:
            return 1
        begin_ns = (now_ns // self._slice_ns - SLICES + 1) * self._slice_ns
        return max(1, now_ns - max(begin_ns, self._first_ns))

    def per_second(self, now_ns: int) -> int:
        """The total per second of time."""
        self.forget(now_ns)
        return self.total * SECOND // self.span_ns(now_ns)

    def mean(self, now_ns: int) -> int | None:
        """Of the events in the window; None when there is none."""
        self.forget(now_ns)
        return self.total // self.count if self.count else None


class VirtualQueue:
    """All stamps received, processed or not, in order (figure 4), and the histogram of positions (figure 5)."""

    __slots__ = ("_most", "_positions", "_stamps", "_window_ns")

    def __init__(self, *, window_ns: int, most: int) -> None:
        self._window_ns = window_ns
        self._most = most
        self._stamps: list[Stamp] = []
        self._positions: deque[tuple[int, int]] = deque()

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

    def histogram(self, now_ns: int) -> dict[int, int]:
        """Position from the tail to the number of messages inserted there within the window, ascending."""
        while self._positions and self._positions[0][0] <= now_ns - self._window_ns:
            self._positions.popleft()
        counts: dict[int, int] = {}
        for _, position in self._positions:
            counts[position] = counts.get(position, 0) + 1
        return dict(sorted(counts.items()))

    def span_ns(self, now_ns: int) -> int:
        """What the histogram covers: the window, or less if there were more messages than are remembered."""
        if len(self._positions) < self._most:
            return self._window_ns
        return max(1, now_ns - self._positions[0][0])


class Costs:
    """What one member knows. Times in ns of one clock that does not go back; stamps are those that Time Warp gives."""

    def __init__(self, *, members: int, parameters: CostParameters) -> None:
        self._members = members
        self._parameters = parameters
        window_ns = parameters.window_ns
        self._receipts = Sums(window_ns)
        self._own = Sums(window_ns)
        self._services = Sums(window_ns)
        self._service_ns: int | None = None
        self._recent_services: deque[int] = deque(maxlen=256)
        self._next_service = 0
        self._queue = VirtualQueue(window_ns=window_ns, most=parameters.most_history)
        self._rehearsal = Rehearsal(most_history=parameters.most_history, most_waiting=parameters.most_history)
        self._rehearsed = Sums(window_ns)
        self._rehearsed_ns = 0
        self._roll_backs = Sums(window_ns)
        self._roll_back_ns: int | None = None
        self._slowest = Sums(window_ns)
        self._to_server = Sums(window_ns)
        self._round: tuple[int, int] | None = None
        self._finished = Sums(window_ns)

    def received(self, stamp: Stamp, now_ns: int, *, is_own: bool = False) -> None:
        """An application message has come, or been submitted here (`is_own`)."""
        self._receipts.add(0, now_ns)
        if is_own:
            self._own.add(0, now_ns)
        self._queue.insert(stamp, now_ns)
        self._rehearsal.receive(stamp, self._drawn_service_ns(), now_ns)
        self._take_rehearsed(now_ns)

    def executed(self, service_ns: int, now_ns: int) -> None:
        """A command has been executed to its end, in `service_ns`."""
        self._services.add(service_ns, now_ns)
        self._recent_services.append(service_ns)

    def rolled_back(self, cost_ns: int, now_ns: int) -> None:
        """Time Warp is in force, and a roll-back has cost so much."""
        self._roll_backs.add(cost_ns, now_ns)

    def finished(self, code: int, cost_ns: int, now_ns: int) -> None:
        """A message is final under the protocol in force, and has cost so much."""
        self._finished.add(cost_ns, now_ns)

    def round_trip(self, slowest_ns: int, to_server_ns: int, now_ns: int) -> None:
        """A round of probes is complete: its slowest echo, and that of the sequence server (0: we are it)."""
        self._slowest.add(slowest_ns, now_ns)
        self._to_server.add(to_server_ns, now_ns)
        self._round = (slowest_ns, to_server_ns)

    def measured(self, now_ns: int) -> int | None:
        """What the protocol in force costs: ns per second."""
        per_second = self._finished.per_second(now_ns)
        return per_second if self._finished.count >= self._parameters.least_messages else None

    def estimate(self, code: int, now_ns: int) -> int | None:
        """What the protocol of that code costs or would cost: ns per second. LocalError for another code."""
        require(code in _MODELS, f"no model for the cost of the protocol with code {code:#x}")
        self._receipts.forget(now_ns)
        if self._receipts.count < self._parameters.least_messages:
            return None
        return _MODELS[code](self, now_ns)

    def clock(self, now_ns: int) -> int:
        """The greatest timestamp, the first number of a stamp, whose rehearsed execution has begun; 0 before all.

        The clock that Time Warp would have: who stamps with it while another protocol is in force sees the disorder
        that Time Warp would see.
        """
        self._rehearsal.advance(now_ns)
        return self._rehearsal.last_begun[0] if self._rehearsal.last_begun else 0

    def _drawn_service_ns(self) -> int:
        """The service times seen lately, in turn: what a command takes is known only when it has been executed."""
        if not self._recent_services:
            return 0
        self._next_service = (self._next_service + 1) % len(self._recent_services)
        return self._recent_services[self._next_service]

    def _take_rehearsed(self, now_ns: int) -> None:
        self._rehearsal.advance(now_ns)
        self._rehearsed.add(self._rehearsal.cost_ns - self._rehearsed_ns, now_ns)
        self._rehearsed_ns = self._rehearsal.cost_ns

    def _of_timewarp(self, now_ns: int) -> int | None:
        self._service_ns = self._services.mean(now_ns) or self._service_ns
        if self._service_ns is None:
            return None
        if self._parameters.estimator == Estimator.REHEARSAL:
            self._take_rehearsed(now_ns)
            return self._rehearsed.per_second(now_ns)
        return self._of_histogram(now_ns, self._service_ns)

    def _of_histogram(self, now_ns: int, service_ns: int) -> int:
        self._roll_back_ns = self._roll_backs.mean(now_ns) or self._roll_back_ns
        density = self._receipts.count * service_ns * 1000 // self._receipts.span_ns(now_ns)
        histogram = self._queue.histogram(now_ns)
        beyond = beyond_mean if self._parameters.estimator == Estimator.HISTOGRAM else beyond_graded
        permille = beyond(histogram, density)
        if self._roll_back_ns is None:
            return permille * service_ns * SECOND // (1000 * self._queue.span_ns(now_ns))
        return permille * self._roll_back_ns * SECOND // (1000 * self._queue.span_ns(now_ns))

    def _of_abcast(self, now_ns: int) -> int | None:
        return self._per_message(self._slowest.mean(now_ns), now_ns)

    def _of_sequencer(self, now_ns: int) -> int | None:
        return self._per_message(self._to_server.mean(now_ns), now_ns)

    def _of_allack(self, now_ns: int) -> int | None:
        slowest_ns = self._slowest.mean(now_ns)
        return None if slowest_ns is None else self._per_message(slowest_ns + self._parameters.null_after_ns, now_ns)

    def _of_atop(self, now_ns: int) -> int | None:
        slowest_ns = self._slowest.mean(now_ns)
        return None if slowest_ns is None else self._per_message(slowest_ns + self._parameters.dummy_after_ns, now_ns)

    def _per_message(self, cost_ns: int | None, now_ns: int) -> int | None:
        if cost_ns is None:
            return None
        return self._receipts.count * cost_ns * SECOND // self._receipts.span_ns(now_ns)


_MODELS = {
    TIMEWARP: Costs._of_timewarp,
    ABCAST: Costs._of_abcast,
    SEQUENCER: Costs._of_sequencer,
    ALLACK: Costs._of_allack,
    ATOP: Costs._of_atop,
}


def beyond_mean(histogram: dict[int, int], density: int) -> int:
    """Formulae (3) to (5): thousand times the number of messages at positions beyond L. `density`: rho per mille."""
    if density >= 1000:
        return 0
    # n > rho^2 / (1 - rho), without a division.
    return 1000 * sum(
        count for position, count in histogram.items() if position * 1000 * (1000 - density) > density * density
    )


def beyond_graded(histogram: dict[int, int], density: int) -> int:
    """Each position n > 0 counted with the probability, per mille, that fewer than n wait in M/M/1: 1 - rho^(n+1)."""
    if density >= 1000:
        return 0
    total = 0
    for position, count in histogram.items():
        if position:
            total += count * (1000 - density ** (position + 1) // 1000**position)
    return total
