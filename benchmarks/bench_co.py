"""Cost of CO by size of the group: time of a core per received message, header, memory.

    python -m benchmarks.bench_co              all of it, about a minute
    python -m benchmarks.bench_co profile 8    profile of `on_message` in a group of 8

All members multicast in turn, without loss and without delay; only the calls into the cores are timed, not the host's
codec. "received us" divides the cores' whole time, timers and submissions too, by the messages that they received.
Paper 000, figure 7 and section 4: the time grows as O(n), the header has 84 bytes at n = 8. Numbers are microseconds of
processor time; compare them only on a quiet machine.
"""

from __future__ import annotations

import cProfile
import gc
import pstats
import sys
import tracemalloc

from benchmarks.bench_node import Bench
from benchmarks.rows import straight_line
from node.core import Membership
from node.protocols.co.codec import Layout
from node.registry import PROTOCOLS
from node.wire import encode_message

SIZES = (2, 4, 8, 16, 32, 64)
RECEIPTS = 24_000
"""Messages received in each run, all members together."""
PERIOD_NS = 100_000_000
"""Every member sends once in this time, as in the paper."""
TRIES = 3
MEMORY_MESSAGES = 10_000
BUDGET_US = 25.0
"""Bound per received message at n = 8."""


class Group(Bench):
    """A group whose members send in turn; time advances from sender to sender."""

    def __init__(self, count: int, protocol: str = "co") -> None:
        super().__init__(protocol, count)
        self.submitted = 0
        self.most_held = 0

    def run_until(self, receipts: int) -> None:
        """Run until `receipts` more messages are received."""
        until = self.received + receipts
        while self.received < until:
            for member, core in enumerate(self.cores):
                self.now_ns += PERIOD_NS // len(self.cores)
                self.fire_timers()
                if core.can_submit:
                    self.submitted += 1
                    self.submit(member)
                self.arrive()
            self.most_held = max(self.most_held, *(core.buffered for core in self.cores))


def cost_us(count: int, protocol: str = "co", receipts: int = RECEIPTS) -> tuple[float, float, float]:
    """(on_message per received message, all of the cores' time per received message, messages received per data message
    received).
    """
    group = Group(count, protocol)
    group.run_until(receipts // 10)
    group.receive_ns = group.other_ns = group.received = group.submitted = 0
    group.run_until(receipts)
    data = group.submitted * (count - 1)
    whole_ns = group.receive_ns + group.other_ns
    return group.receive_ns / group.received / 1e3, whole_ns / group.received / 1e3, group.received / data


def header_bytes(count: int) -> int:
    """Size of a data message without the payload and the host's envelope."""
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
    line = straight_line(SIZES, costs)
    verdict = "within" if costs[SIZES.index(8)] <= BUDGET_US else "ABOVE"
    print(
        f"{'':6} {line.at_zero:.2f} us + {line.slope:.3f} us a member, R^2 {line.explained:.4f}; "
        f"n = 8 is {verdict} {BUDGET_US} us"
    )


def bench_memory(count: int = 8) -> None:
    """Print the bytes of all cores, and the most messages in one core's buffers, under load."""
    group = Group(count)
    tracemalloc.start()
    print(f"\nmemory of {count} members under load: data messages, bytes of all cores, most messages in one core")
    for _ in range(5):
        group.most_held = 0
        group.run_until(MEMORY_MESSAGES * (count - 1) // 5)
        gc.collect()
        print(f"{group.submitted:10} {tracemalloc.get_traced_memory()[0]:10} {group.most_held:6}")
    tracemalloc.stop()


def profile(count: int) -> None:
    group = Group(count)
    group.run_until(RECEIPTS // 10)
    profiler = cProfile.Profile()
    profiler.runcall(group.run_until, RECEIPTS)
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
