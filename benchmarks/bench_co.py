"""What CO costs against the size of the group: time of a core per received message, header, memory.

    python -m benchmarks.bench_co              all of it, about a minute
    python -m benchmarks.bench_co profile 8    where the time of `on_message` goes in a group of 8

Everybody multicasts in turn, without loss and without delay; only the calls into the cores are timed, the codec of the
host is not. "received us" divides the cores' whole time, timers and submissions too, by the messages that they
received. Paper 000, figure 7 and section 4: the time grows as O(n), the header has 84 bytes at n = 8. Numbers are
microseconds of processor time: compare on a quiet machine all the same.
"""

from __future__ import annotations

import cProfile
import gc
import pstats
import sys
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from node.core import Core, Membership, Submission
from node.effects import CancelTimer, Deliver, Effect, Multicast, Send, SetTimer, Timer
from node.protocols.co.codec import Layout
from node.registry import PROTOCOLS
from node.wire import Message, encode_message

SIZES = (2, 4, 8, 16, 32, 64)
RECEIPTS = 24_000
"""Messages received in each run, all members together."""
PAYLOAD = bytes(512)
PERIOD_NS = 100_000_000
"""Everybody sends once in this time, as in the paper."""
TRIES = 3
MEMORY_MESSAGES = 10_000
BUDGET_US = 25.0
"""Per received message at n = 8."""


class Group:
    """All members in one process. A message arrives at once; time passes from sender to sender."""

    def __init__(self, count: int, protocol: str = "co") -> None:
        members = tuple(range(count))
        build = PROTOCOLS[protocol].build
        self.cores: list[Core] = [
            build(membership=Membership(member=member, members=members), parameters={}, seed=1) for member in members
        ]
        self.timers: list[dict[Timer, int]] = [{} for _ in members]
        self.flying: deque[tuple[int, int, Message]] = deque()
        self.now_ns = 0
        self.received = 0
        self.delivered = 0
        self.submitted = 0
        self.most_held = 0
        self.receive_ns = 0
        self.other_ns = 0

    def run(self, receipts: int) -> None:
        """Until that many messages were received."""
        count = len(self.cores)
        until = self.received + receipts
        while self.received < until:
            for member in range(count):
                self.now_ns += PERIOD_NS // count
                self._due()
                if self.cores[member].can_submit:
                    self.submitted += 1
                    self._other(member, self._submit)
                self._arrive()
            self.most_held = max(self.most_held, *(core.buffered for core in self.cores))

    def _due(self) -> None:
        for member, timers in enumerate(self.timers):
            for timer in [timer for timer, at_ns in timers.items() if at_ns <= self.now_ns]:
                if timers.pop(timer, None) is not None:
                    self._other(member, partial(self._fire, timer))
            self._arrive()

    def _fire(self, timer: Timer, core: Core) -> list[Effect]:
        return core.on_timer(timer, self.now_ns)

    def _submit(self, core: Core) -> list[Effect]:
        return core.on_submit(Submission(payload=PAYLOAD), self.now_ns)

    def _other(self, member: int, call: Callable[[Core], list[Effect]]) -> None:
        began = time.thread_time_ns()
        effects = call(self.cores[member])
        self.other_ns += time.thread_time_ns() - began
        self._carry_out(member, effects)

    def _arrive(self) -> None:
        while self.flying:
            source, target, message = self.flying.popleft()
            core = self.cores[target]
            began = time.thread_time_ns()
            effects = core.on_message(message, source, self.now_ns)
            self.receive_ns += time.thread_time_ns() - began
            self.received += 1
            self._carry_out(target, effects)

    def _carry_out(self, member: int, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Multicast(message=message):
                    peers = (target for target in range(len(self.cores)) if target != member)
                    self.flying.extend((member, target, message) for target in peers)
                case Send(target=target, message=message):
                    self.flying.append((member, target, message))
                case SetTimer(timer=timer, at_ns=at_ns):
                    self.timers[member][timer] = at_ns
                case CancelTimer(timer=timer):
                    self.timers[member].pop(timer, None)
                case Deliver():
                    self.delivered += 1
                case _:
                    raise AssertionError(effect)


def cost_us(count: int, protocol: str = "co", receipts: int = RECEIPTS) -> tuple[float, float, float]:
    """(on_message per received message, all of the cores' time per received message, received per data received)."""
    group = Group(count, protocol)
    group.run(receipts // 10)
    group.receive_ns = group.other_ns = group.received = group.submitted = 0
    group.run(receipts)
    data = group.submitted * (count - 1)
    whole_ns = group.receive_ns + group.other_ns
    return group.receive_ns / group.received / 1e3, whole_ns / group.received / 1e3, group.received / data


def fitted(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float, float]:
    """Least squares: slope, intercept, and the share of the variance that the line explains."""
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / sum((x - mean_x) ** 2 for x in xs)
    intercept = mean_y - slope * mean_x
    unexplained = sum((y - intercept - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    return slope, intercept, 1 - unexplained / sum((y - mean_y) ** 2 for y in ys)


def header_bytes(count: int) -> int:
    """Of a data message: all but the payload and the host's envelope."""
    words = Layout(count).pack_data((1,) * count, 1)
    us = Membership(member=0, members=tuple(range(count)))
    return len(encode_message(us.message(PROTOCOLS["co"].kinds[0], words=words)))


def bench_sizes(protocol: str) -> None:
    titles = ("n", "on_message us", "received us", "messages per data", "header bytes")
    print("\n{:6} {:>4} {:>14} {:>12} {:>18} {:>13}".format(protocol, *titles))
    costs = []
    for count in SIZES:
        on_message, whole, share = min(cost_us(count, protocol) for _ in range(TRIES))
        costs.append(on_message)
        print(f"{'':6} {count:4} {on_message:14.2f} {whole:12.2f} {share:18.2f} {header_bytes(count):13}")
    slope, intercept, explained = fitted(SIZES, costs)
    verdict = "within" if costs[SIZES.index(8)] <= BUDGET_US else "ABOVE"
    print(
        f"{'':6} {intercept:.2f} us + {slope:.3f} us a member, R^2 {explained:.4f}; n = 8 is {verdict} {BUDGET_US} us"
    )


def bench_memory(count: int = 8) -> None:
    """Bytes that all cores keep, and the most messages in one core's buffers, while the load goes on."""
    group = Group(count)
    tracemalloc.start()
    print(f"\nmemory of {count} members under load: data messages, bytes of all cores, most messages in one core")
    for _ in range(5):
        group.most_held = 0
        group.run(MEMORY_MESSAGES * (count - 1) // 5)
        gc.collect()
        print(f"{group.submitted:10} {tracemalloc.get_traced_memory()[0]:10} {group.most_held:6}")
    tracemalloc.stop()


def profile(count: int) -> None:
    group = Group(count)
    group.run(RECEIPTS // 10)
    profiler = cProfile.Profile()
    profiler.runcall(group.run, RECEIPTS)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def main() -> None:
    if sys.argv[1:2] == ["profile"]:
        profile(int(sys.argv[2]))
        return
    for protocol in ("co", "lo"):
        bench_sizes(protocol)
    bench_memory()


if __name__ == "__main__":
    main()
