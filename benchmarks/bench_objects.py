"""Cost of a call of an object in one address space, beside plain asyncio calls of the same kind.

    python -m benchmarks.bench_objects              all of it, some seconds
    python -m benchmarks.bench_objects profile      where the time of a local call goes

A call of an object is a message: it is handled after all earlier ones of that object, its arguments are copied, it may
be cancelled or time out, and its reply is a message. The plain peer of the same kind is an asyncio task with a queue of
calls, each with a future for its reply (the usual Python code for an object that handles one call after another); a
task per call and a bare await are measured, too. Numbers are calls per second of processor time, the best of several
tries.
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import pstats
import sys
import time
from collections.abc import Awaitable, Callable

from node.objects.addresses import Reference
from node.objects.alone import alone
from node.objects.api.calls import CallBody, CallId, decode_body, encode_body
from node.objects.api.export import Remote, export
from node.objects.api.groups import ObjectList
from node.objects.api.loop import VirtualLoop
from node.objects.api.space import Space
from node.objects.api.values import copy_value

CALLS = 10_000
TRIES = 3
MEMBERS = 10
BUDGET_PER_S = 20_000
"""Least number of local calls per second in one address space."""

THOUSAND = list(range(1000))
ASKED = "object, async method, one call after another"
PEER = "plain asyncio, queue and future (the peer)"

Measure = Callable[[], Awaitable[None]]


class Counter(Remote):
    """The callee."""

    def __init__(self) -> None:
        self.count = 0

    @export
    async def add(self, amount: int) -> int:
        self.count += amount
        return self.count

    @export
    def plain(self, amount: int) -> int:
        self.count += amount
        return self.count

    @export
    async def length(self, values: list[int]) -> int:
        return len(values)


class Actor:
    """The peer: one task, a queue of calls, a future for each reply."""

    def __init__(self) -> None:
        self.count = 0
        self.queue: asyncio.Queue[tuple[int, asyncio.Future[int]]] = asyncio.Queue()

    async def add(self, amount: int) -> int:
        self.count += amount
        return self.count

    async def serve(self) -> None:
        while True:
            amount, reply = await self.queue.get()
            reply.set_result(await self.add(amount))

    async def call(self, amount: int) -> int:
        reply: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.queue.put_nowait((amount, reply))
        return await reply


async def rate(calls: int, work: Measure) -> float:
    """Calls per second of processor time, the best of TRIES."""
    best = 0.0
    for _ in range(TRIES):
        gc.collect()
        began = time.process_time()
        await work()
        best = max(best, calls / (time.process_time() - began))
    return best


class Work:
    """Workloads over a space's objects."""

    def __init__(self, space: Space) -> None:
        self.counter = space.create(Counter())
        self.members = [space.create(Counter()) for _ in range(MEMBERS)]
        self.all = ObjectList(self.members)

    async def one_after_another(self) -> None:
        for _ in range(CALLS):
            await self.counter.add(1)

    async def plain(self) -> None:
        for _ in range(CALLS):
            await self.counter.plain(1)

    async def at_once(self) -> None:
        for _ in range(CALLS // 100):
            await asyncio.gather(*[self.counter.add(1) for _ in range(100)])

    async def to_a_list(self) -> None:
        for _ in range(CALLS // MEMBERS):
            await self.all.add.all(1)

    async def to_each(self) -> None:
        for _ in range(CALLS // MEMBERS):
            await asyncio.gather(*[member.add(1) for member in self.members])

    async def with_a_thousand(self) -> None:
        for _ in range(CALLS // 20):
            await self.counter.length(THOUSAND)


async def of_objects(space: Space) -> dict[str, float]:
    """Calls per second of a space's objects."""
    work = Work(space)
    return {
        ASKED: await rate(CALLS, work.one_after_another),
        "object, plain method, one call after another": await rate(CALLS, work.plain),
        "object, 100 calls at once": await rate(CALLS, work.at_once),
        f"list of {MEMBERS} objects, all replies (per member)": await rate(CALLS, work.to_a_list),
        f"{MEMBERS} objects, one call each (per member)": await rate(CALLS, work.to_each),
        "object, a list of 1000 ints as argument": await rate(CALLS // 20, work.with_a_thousand),
    }


async def of_plain_asyncio() -> dict[str, float]:
    """The same work without objects."""
    actor = Actor()
    serving = asyncio.create_task(actor.serve())

    async def by_queue() -> None:
        for _ in range(CALLS):
            await actor.call(1)

    async def by_task() -> None:
        for _ in range(CALLS):
            await asyncio.create_task(actor.add(1))

    async def directly() -> None:
        for _ in range(CALLS):
            await actor.add(1)

    found = {
        PEER: await rate(CALLS, by_queue),
        "plain asyncio, a task for each call": await rate(CALLS, by_task),
        "plain asyncio, await alone": await rate(CALLS, directly),
    }
    serving.cancel()
    return found


def copying() -> None:
    """Print the cost of copying values, beside encoding and decoding them."""
    print(f"\n{'values':<34}{'copied':>12}{'through bytes':>16}   (us)")
    for name, value in (
        ("one int", (1,)),
        ("three small texts", ("a", "bc", "def")),
        ("a list of 10 ints", (list(range(10)),)),
        ("a list of 1000 ints", (list(range(1000)),)),
        ("a dict of 100 texts to lists", ({str(number): [number] for number in range(100)},)),
    ):
        body = CallBody(call=_CALL, name="add", arguments=value)
        copied = each_us(lambda value=value: copy_value(value))  # type: ignore[misc]
        coded = each_us(lambda body=body: decode_body(encode_body(body), lambda pointer: pointer))  # type: ignore[misc]
        print(f"{name:<34}{copied:>12.2f}{coded:>16.2f}")


def each_us(work: Callable[[], object]) -> float:
    """Microseconds of processor time per call of `work`, the best of TRIES."""
    best = float("inf")
    for _ in range(TRIES):
        began, count = time.process_time(), 0
        while time.process_time() - began < 0.02:
            for _ in range(20):
                work()
            count += 20
        best = min(best, (time.process_time() - began) / count)
    return best * 1e6


def profile() -> None:
    """Print a profile of local calls."""

    async def main(space: Space) -> None:
        counter = space.create(Counter())
        profiler = cProfile.Profile()
        profiler.enable()
        for _ in range(CALLS):
            await counter.add(1)
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)

    asyncio.run(alone(main))


def main() -> None:
    rates = {**asyncio.run(alone(of_objects)), **asyncio.run(of_plain_asyncio())}
    virtual = VirtualLoop().run_until_complete(alone(of_objects))
    print(f"{'local calls in one address space':<54}{'per second':>12}{'virtual loop':>16}")
    for name, found in rates.items():
        beside = f"{virtual[name]:>16,.0f}" if name in virtual else ""
        print(f"{name:<54}{found:>12,.0f}{beside}")
    copying()
    slowest = min(rates[ASKED], virtual[ASKED])
    print(f"\na call of an object costs {rates[PEER] / slowest:.1f} times the peer's call")
    if slowest < BUDGET_PER_S:
        raise SystemExit(f"{slowest:,.0f} calls per second are fewer than {BUDGET_PER_S:,}")


_CALL = CallId(Reference(0, 1, 1), 1)

if __name__ == "__main__":
    if sys.argv[1:] == ["profile"]:
        profile()
    else:
        main()
