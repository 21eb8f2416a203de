"""What the order of ATOP costs: a draw, a message, a call that delivers nothing.

    python -m benchmarks.bench_atop              all of it, about half a minute
    python -m benchmarks.bench_atop profile 10   where the time of one order of 10 members goes

A draw must cost O(log n), and so must leaving: compare the rows of 10, 100 and 1000 members. "message" is all that an
order does with one: `check`, `take`, `advance`; all members send in turn, so that many come out of turn. "waiting" is
`advance` while the order waits for a member. "switch" is a new distribution, divided by the members: table, each
member's word, and each member's leaving of the old one. Numbers are microseconds of processor time, the least of
several; compare on a quiet machine all the same.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import time
from collections.abc import Callable

from node.protocols.atop.order import Draws, Item, Order
from node.wire import Kind, Message

SIZES = (10, 100, 1000)
DRAWS = 50_000
MESSAGES = 20_000
REPEAT = 5


def main() -> None:
    if sys.argv[1:2] == ["profile"]:
        profile(int(sys.argv[2]) if len(sys.argv) > 2 else 10)
        return
    rows: dict[str, Callable[[int], float]] = {
        "draw, random": lambda count: draw_us(Draws.RANDOM, count),
        "draw, smooth": lambda count: draw_us(Draws.SMOOTH, count),
        "leave, random": lambda count: leave_us(Draws.RANDOM, count),
        "begin, per member": lambda count: begin_us(Draws.RANDOM, count),
        "message, random": lambda count: message_us(Draws.RANDOM, count),
        "message, smooth": lambda count: message_us(Draws.SMOOTH, count),
        "waiting": waiting_us,
        "switch": switch_us,
    }
    print(f"{'us of':20}" + "".join(f"{f'n = {count}':>12}" for count in SIZES))
    for name, measure in rows.items():
        print(f"{name:20}" + "".join(f"{min(measure(count) for _ in range(REPEAT)):12.2f}" for count in SIZES))


def draw_us(draws: Draws, count: int) -> float:
    turns = draws.under(1, weights_of(count))
    begin_ns = time.process_time_ns()
    for _ in range(DRAWS):
        turns.use()
    return (time.process_time_ns() - begin_ns) / DRAWS / 1000


def leave_us(draws: Draws, count: int) -> float:
    races = [draws.under(1, weights_of(count)) for _ in range(max(1, 2000 // count))]
    begin_ns = time.process_time_ns()
    for turns in races:
        while turns.first is not None:
            turns.leave()
    return (time.process_time_ns() - begin_ns) / len(races) / count / 1000


def begin_us(draws: Draws, count: int) -> float:
    weights = weights_of(count)
    races = max(1, 2000 // count)
    begin_ns = time.process_time_ns()
    for seed in range(races):
        draws.under(seed, weights)
    return (time.process_time_ns() - begin_ns) / races / count / 1000


def message_us(draws: Draws, count: int) -> float:
    order = order_of(count, draws)
    messages = max(MESSAGES, 100 * count)
    items = stream(count, messages)
    begin_ns = time.process_time_ns()
    take_all(order, items)
    spent_ns = time.process_time_ns() - begin_ns
    assert order.buffered < messages // 2
    return spent_ns / len(items) / 1000


def waiting_us(count: int) -> float:
    order = order_of(count)
    order.advance()
    begin_ns = time.process_time_ns()
    for _ in range(MESSAGES):
        order.advance()
    return (time.process_time_ns() - begin_ns) / MESSAGES / 1000


def switch_us(count: int) -> float:
    switches = max(3, 1000 // count)
    order = order_of(count)
    begin_ns = time.process_time_ns()
    for number in range(1, switches + 1):
        order.take(0, Item(number, weights=dict.fromkeys(range(count), 1)))
        for member in range(1, count):
            order.take(member, Item(number, 1, 1))
        order.advance()
        assert order.current == number
    return (time.process_time_ns() - begin_ns) / switches / count / 1000


def weights_of(count: int) -> dict[int, int]:
    return {member: member + 1 for member in range(count)}


def order_of(count: int, draws: Draws = Draws.RANDOM) -> Order:
    return Order(dict.fromkeys(range(count), 1), bookkeeper=0, brokered=False, draws=draws)


def take_all(order: Order, items: list[tuple[int, Item]]) -> None:
    for member, item in items:
        order.check(member, item)
        order.take(member, item)
        order.advance()


def stream(count: int, messages: int) -> list[tuple[int, Item]]:
    message = Message(kind=Kind.ATOP_DATA, origin=0, incarnation=1)
    return [
        (member, Item(0, number, 1, message)) for number in range(1, messages // count + 1) for member in range(count)
    ]


def profile(count: int) -> None:
    order = order_of(count)
    items = stream(count, 10 * MESSAGES)
    profiler = cProfile.Profile()
    profiler.runcall(take_all, order, items)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(14)


if __name__ == "__main__":
    main()
