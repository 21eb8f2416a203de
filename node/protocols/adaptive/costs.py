"""The present cost of each candidate: estimates from the observations of one member, under any protocol.

Paper 003, 3.2 and 4.1. The cost of a message is the time from its receipt (own ones: their submission) until it can be
handed over for good; an estimate is that per unit time, here ns per second, over a sliding window.

Observed: lambda, the rate of receipts, own submissions included; the service times, whose mean is 1/mu; the position
from the tail at which each message is inserted into the *virtual queue* (figures 4 and 5) of all messages received,
processed or not, in the order of the stamps that Time Warp gives; rounds of probes, which all members echo at once.

Time Warp, by `estimator`:
  histogram   The paper's formulae. rho = lambda / mu (4), L = rho^2 / (1 - rho) (5), and with f(n) the rate of messages
              that are inserted before n others, Cost = T * sum of f(n) over n > L (3). At rho >= 1 nothing is beyond L.
              T is the mean cost of a roll-back: observed while Time Warp is in force; elsewhere, where the paper does
              not say, T = 1/mu + 1/(mu - lambda): the time in the system M/M/1, and the straggler's service.
  graded      Not in the paper. In M/M/1 at least n wait with probability rho^(n+1), so f(n) counts with 1 - rho^(n+1).
  shadow      Not in the paper. A virtual Time Warp over past receipts: node/protocols/adaptive/shadow_execution.py.

The others:
  abcast      lambda * 2d (6); 2d is the slowest echo of a round of probes. `resequence`, not in the paper: see below.
  sequencer   The sender waits for the round trip to the server; the others wait for earlier messages only.
  allack      Messages of all for the round: there and back, 2d, less the delay of the message itself if it is not ours,
              and 3/4 of `null_after_ns`. Members that send on their own need no null.
  atop        Unless the sender is drawn first (1 of n), members drawn before it send a dummy after `dummy_after_ns`:
              there and back, less the delay of the message itself if it is not ours.
The last two are coarse: they assume that all members send at the same rate.

Resequencing. Delivery is in order, so a message that is ready early waits for earlier ones. With each receipt, at t, a
round trip X is drawn from the observed ones; the message is delivered at max(t + X, all before it).

Stamps. Time Warp's clock advances when processing begins, under a pessimistic protocol 2d later: stamps from that clock
would look like stragglers. So a sender under another protocol stamps with `clock`, that of the shadow execution.

None instead of a number: fewer than `least_messages` in the window, no probe answered yet, or no service time known.
How good the estimates are: docs/protocols/adaptive.md.
"""

from __future__ import annotations

import enum
from bisect import bisect_right, insort
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from node.parameters import require, require_one_of
from node.protocols.adaptive.shadow_execution import ShadowExecution, Stamp

MILLISECOND = 1_000_000
PERMILLE = 1000
MOST_SAMPLES = 256

SEQUENCER = 0x2
ALLACK = 0x8
ATOP = 0x9
ABCAST = 0xB
TIMEWARP = 0xC


class Estimator(enum.StrEnum):
    """The estimator of the cost of Time Warp: see the module's docstring."""

    HISTOGRAM = "histogram"
    GRADED = "graded"
    SHADOW = "shadow"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostParameters:
    """Parameters of the estimates. Times in ns."""

    estimator: str = "shadow"
    """Estimator of the cost of Time Warp: `histogram` (the paper's), `graded` or `shadow`."""
    resequence: bool = True
    """Whether estimates of abcast and sequencer count the waiting for earlier messages; false: the formulae."""
    window_ns: int = 2000 * MILLISECOND
    least_messages: int = 8
    """Least number of messages in the window for an estimate."""
    most_history: int = 1024
    """Number of messages that are kept one by one."""

    def __post_init__(self) -> None:
        require_one_of("estimator", self.estimator, Estimator)
        require(SLICES <= self.window_ns <= 2**62, f"window_ns must be at least {SLICES}, not {self.window_ns}")
        require(self.least_messages >= 1, f"least_messages must be at least 1, not {self.least_messages}")
        require(2 <= self.most_history <= 2**20, f"most_history must be 2 to {2**20}, not {self.most_history}")


class Costs:
    """The observations of one member. Stamps are those that Time Warp would give: timestamp first, no two alike.
    `save_every`, `null_after_ns` and `dummy_after_ns`: of the executions, allack and atop."""

    def __init__(
        self,
        *,
        members: int,
        parameters: CostParameters,
        save_every: int = 1,
        null_after_ns: int = 2 * MILLISECOND,
        dummy_after_ns: int = 5 * MILLISECOND,
    ) -> None:
        window_ns, most = parameters.window_ns, parameters.most_history
        self._members = members
        self._parameters = parameters
        self._null_after_ns = null_after_ns
        self._dummy_after_ns = dummy_after_ns
        self._receipts = Sums(window_ns)
        self._own = Sums(window_ns)
        self._services = Samples(MOST_SAMPLES)
        self._queue = VirtualQueue(window_ns=window_ns, most=most)
        self._shadow = ShadowExecution(save_every=save_every, most_history=most, most_waiting=most)
        self._shadow_cost = _Growth(window_ns)
        self._slowest = _Resequenced(window_ns)
        self._each = _Resequenced(window_ns)
        self._to_server = Sums(window_ns)
        self._in_force: int | None = None
        self._finished = Sums(window_ns)
        self._roll_backs = Sums(window_ns)
        self._roll_back_ns: int | None = None

    def received(self, stamp: Stamp, now_ns: int, *, is_own: bool = False, service_ns: int | None = None) -> None:
        """An application message has come, or was submitted here (`is_own`). `service_ns`: its processing time if known
        beforehand; else it is drawn from the recent service times."""
        self._receipts.add(0, now_ns)
        if is_own:
            self._own.add(0, now_ns)
        self._queue.insert(stamp, now_ns)
        self._slowest.receive(now_ns)
        self._each.receive(now_ns)
        if service_ns is None:
            service_ns = self._services.draw() or 0
        self._shadow.receive(stamp, service_ns, now_ns)
        self._shadow_cost.follow(self._shadow.cost_ns, now_ns)

    def executed(self, service_ns: int, now_ns: int) -> None:
        """A command has been executed to its end for the first time, in `service_ns`."""
        self._services.add(service_ns)

    def rolled_back(self, cost_ns: int, now_ns: int) -> None:
        """Time Warp is in force, and a roll-back has come; `cost_ns`: the work that it undid."""
        self._roll_backs.add(cost_ns, now_ns)

    def finished(self, code: int, cost_ns: int, now_ns: int) -> None:
        """A message is final under the protocol with this code, at a cost of `cost_ns`."""
        if code != self._in_force:
            self._in_force = code
            self._finished = Sums(self._parameters.window_ns)
            if code != TIMEWARP:
                self._roll_backs = Sums(self._parameters.window_ns)
        self._finished.add(cost_ns, now_ns)

    def round_trip(
        self, slowest_ns: int, to_server_ns: int | None, now_ns: int, *, echoes_ns: tuple[int, ...] = ()
    ) -> None:
        """A round of probes is complete: its slowest echo, the echo of the sequence server (0: we are the server, None:
        it takes no part), and all echoes (empty: the slowest stands for them)."""
        self._slowest.sample(slowest_ns, now_ns)
        if to_server_ns is not None:
            self._to_server.add(to_server_ns, now_ns)
        for echo_ns in echoes_ns or (slowest_ns,):
            self._each.sample(echo_ns, now_ns)

    def slowest_ns(self, now_ns: int) -> int | None:
        """2d, as probes tell it; None: no round was complete in the window."""
        return self._slowest.trips.mean(now_ns)

    def measured(self, now_ns: int) -> int | None:
        """The cost of the protocol in force, ns per second; None: fewer than `least_messages` of it are final."""
        per_second = self._finished.per_second(now_ns)
        return per_second if self._finished.count >= self._parameters.least_messages else None

    def estimate(self, code: int, now_ns: int) -> int | None:
        """The cost of the protocol with this code, in force or not, ns per second. LocalError for one without a
        model."""
        require(code in _MODELS, f"no model for the cost of the protocol with code {code:#x}")
        self._receipts.forget(now_ns)
        self._own.forget(now_ns)
        if self._receipts.count < self._parameters.least_messages:
            return None
        return _MODELS[code](self, now_ns)

    def clock(self, now_ns: int) -> int:
        """The greatest timestamp of which the shadow execution has begun; 0 before all. A sender under another protocol
        takes the next one, as Time Warp would."""
        self._shadow.advance(now_ns)
        return self._shadow.last_begun[0] if self._shadow.last_begun else 0

    def _of_timewarp(self, now_ns: int) -> int | None:
        service_ns = self._services.mean()
        if service_ns is None:
            return None
        if self._parameters.estimator == Estimator.SHADOW:
            self._shadow.advance(now_ns)
            self._shadow_cost.follow(self._shadow.cost_ns, now_ns)
            return self._shadow_cost.sums.per_second(now_ns)
        return self._of_histogram(service_ns, now_ns)

    def _of_histogram(self, service_ns: int, now_ns: int) -> int:
        """Formulae (3) to (5), or the graded form of (3)."""
        density = PERMILLE * self._receipts.count * service_ns // self._receipts.span_ns(now_ns)
        if density >= PERMILLE:
            return 0
        beyond = beyond_mean if self._parameters.estimator == Estimator.HISTOGRAM else beyond_graded
        histogram = self._queue.histogram(now_ns)
        messages = sum(histogram.values())
        roll_back_ns = self._observed_roll_back_ns(now_ns)
        if roll_back_ns is None:
            roll_back_ns = assumed_roll_back_ns(service_ns, density)
        return self._per_message(beyond(histogram, density) * roll_back_ns // (PERMILLE * max(1, messages)), now_ns)

    def _observed_roll_back_ns(self, now_ns: int) -> int | None:
        """T: the mean cost of a roll-back, now or when Time Warp was last in force; None: not observed."""
        self._roll_backs.forget(now_ns)
        self._finished.forget(now_ns)
        if self._in_force == TIMEWARP and self._roll_backs.count and self._finished.total:
            self._roll_back_ns = self._finished.total // self._roll_backs.count
        return self._roll_back_ns

    def _of_abcast(self, now_ns: int) -> int | None:
        trip_ns = self.slowest_ns(now_ns)
        return None if trip_ns is None else self._per_message(trip_ns + self._waiting_ns(self._slowest, now_ns), now_ns)

    def _of_sequencer(self, now_ns: int) -> int | None:
        trip_ns = self._to_server.mean(now_ns)
        if trip_ns is None:
            return None
        return self._per_message(self._shared(trip_ns, 0) + self._waiting_ns(self._each, now_ns), now_ns)

    def _of_allack(self, now_ns: int) -> int | None:
        slowest_ns, trip_ns = self.slowest_ns(now_ns), self._each.trips.mean(now_ns)
        if slowest_ns is None or trip_ns is None:
            return None
        null_ns = self._null_after_ns * 3 // 4
        cost_ns = self._shared(slowest_ns + null_ns, slowest_ns + null_ns - trip_ns // 2)
        span_ns = self._members * self._receipts.span_ns(now_ns)
        # cost / (1 + lambda/n * t/2)
        cost_ns = cost_ns * 2 * span_ns // (2 * span_ns + self._receipts.count * (trip_ns + null_ns))
        return self._per_message(cost_ns, now_ns)

    def _of_atop(self, now_ns: int) -> int | None:
        trip_ns = self._each.trips.mean(now_ns)
        if trip_ns is None:
            return None
        wait_ns = self._dummy_after_ns + trip_ns
        cost_ns = self._shared(wait_ns, wait_ns - trip_ns // 2)
        return self._per_message(cost_ns * (self._members - 1) // self._members, now_ns)

    def _waiting_ns(self, resequenced: _Resequenced, now_ns: int) -> int:
        return (resequenced.waits.mean(now_ns) or 0) if self._parameters.resequence else 0

    def _shared(self, own_ns: int, others_ns: int) -> int:
        """The mean cost of all messages, from the cost of an own message and of another member's."""
        own, count = self._own.count, self._receipts.count
        return (own * own_ns + (count - own) * others_ns) // max(1, count)

    def _per_message(self, cost_ns: int, now_ns: int) -> int:
        return self._receipts.count * cost_ns * SECOND // self._receipts.span_ns(now_ns)


class _Growth:
    """The growth of a sum that only grows, in a window."""

    def __init__(self, window_ns: int) -> None:
        self.sums = Sums(window_ns)
        self._last = 0

    def follow(self, value: int, now_ns: int) -> None:
        self.sums.add(value - self._last, now_ns)
        self._last = value


class _Resequenced:
    """Round trips, and the wait of a message that is ready after a round trip but must not pass earlier messages."""

    def __init__(self, window_ns: int) -> None:
        self.trips = Sums(window_ns)
        self.waits = Sums(window_ns)
        self._samples = Samples(MOST_SAMPLES)
        self._latest_ns = 0

    def sample(self, trip_ns: int, now_ns: int) -> None:
        self.trips.add(trip_ns, now_ns)
        self._samples.add(trip_ns)

    def receive(self, now_ns: int) -> None:
        ready_ns = now_ns + (self._samples.draw() or 0)
        self._latest_ns = max(self._latest_ns, ready_ns)
        self.waits.add(self._latest_ns - ready_ns, now_ns)


_MODELS: dict[int, Callable[[Costs, int], int | None]] = {
    TIMEWARP: Costs._of_timewarp,
    ABCAST: Costs._of_abcast,
    SEQUENCER: Costs._of_sequencer,
    ALLACK: Costs._of_allack,
    ATOP: Costs._of_atop,
}


def beyond_mean(histogram: Mapping[int, int], density: int) -> int:
    """Formulae (3) and (5): the number of messages beyond L, times 1000. `density`: rho per mille, below 1000."""
    # n > rho^2 / (1 - rho), without a division.
    return PERMILLE * sum(
        count for n, count in histogram.items() if n * PERMILLE * (PERMILLE - density) > density * density
    )


def beyond_graded(histogram: Mapping[int, int], density: int) -> int:
    """The number of messages, times 1000, each at a position n > 0 weighted with 1 - rho^(n+1), the probability that
    fewer than n wait."""
    return sum(count * (PERMILLE - density ** (n + 1) // PERMILLE**n) for n, count in histogram.items() if n)


def assumed_roll_back_ns(service_ns: int, density: int) -> int:
    """T without an observed one: 1/mu + 1/(mu - lambda). `density`: rho per mille, below 1000."""
    return service_ns + service_ns * PERMILLE // (PERMILLE - density)


SECOND = 1_000_000_000
SLICES = 16
"""Slices of a window: old events leave it slice by slice."""


class Sums:
    """The number and sum of events in a sliding window of SLICES slices of equal length, the present one included."""

    __slots__ = ("_first_ns", "_slice_ns", "_slices", "count", "total")

    def __init__(self, window_ns: int) -> None:
        self._slice_ns = window_ns // SLICES
        self._slices: deque[tuple[int, int, int]] = deque()
        """(number of the slice, count, total), ascending."""
        self._first_ns: int | None = None
        self.count = 0
        self.total = 0

    def add(self, amount: int, now_ns: int) -> None:
        """Add one event."""
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
        """Drop events that have left the window."""
        oldest = now_ns // self._slice_ns - SLICES
        while self._slices and self._slices[0][0] <= oldest:
            _, count, total = self._slices.popleft()
            self.count -= count
            self.total -= total

    def span_ns(self, now_ns: int) -> int:
        """The time that the window covers, at least 1: less than its length until that has passed since the first
        event."""
        begin_ns = (now_ns // self._slice_ns - SLICES + 1) * self._slice_ns
        first_ns = now_ns if self._first_ns is None else self._first_ns
        return max(1, now_ns - max(begin_ns, first_ns))

    def per_second(self, now_ns: int) -> int:
        """The sum per second of time."""
        self.forget(now_ns)
        return self.total * SECOND // self.span_ns(now_ns)

    def mean(self, now_ns: int) -> int | None:
        """The mean of the events in the window; None when there is none."""
        self.forget(now_ns)
        return self.total // self.count if self.count else None


class Samples:
    """The last values of a quantity, drawn in turn: an empirical distribution."""

    __slots__ = ("_next", "_values")

    def __init__(self, most: int) -> None:
        self._values: deque[int] = deque(maxlen=most)
        self._next = 0

    def add(self, value: int) -> None:
        self._values.append(value)

    def draw(self) -> int | None:
        """The next value, cyclically; None while there is none."""
        if not self._values:
            return None
        self._next = (self._next + 1) % len(self._values)
        return self._values[self._next]

    def mean(self) -> int | None:
        return sum(self._values) // len(self._values) if self._values else None


class VirtualQueue:
    """All stamps received, executed or not, in order (paper 003, figure 4), and the position of each insertion (figure
    5)."""

    __slots__ = ("_most", "_positions", "_stamps", "_window_ns")

    def __init__(self, *, window_ns: int, most: int) -> None:
        self._window_ns = window_ns
        self._most = most
        self._stamps: list[Stamp] = []
        self._positions: deque[tuple[int, int]] = deque(maxlen=most)
        """(time in ns, position) of each insertion."""

    def insert(self, stamp: Stamp, now_ns: int) -> int:
        """Insert a stamp. Returns its position from the tail: the number of later stamps received before it."""
        position = len(self._stamps) - bisect_right(self._stamps, stamp)
        insort(self._stamps, stamp)
        if len(self._stamps) > self._most:
            del self._stamps[0]
        self._positions.append((now_ns, position))
        return position

    def histogram(self, now_ns: int) -> Mapping[int, int]:
        """By position from the tail, the number of messages inserted there within the window, among the last `most`."""
        while self._positions and self._positions[0][0] <= now_ns - self._window_ns:
            self._positions.popleft()
        return Counter(position for _, position in self._positions)
