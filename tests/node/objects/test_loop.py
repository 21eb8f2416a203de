"""The virtual loop: asyncio runs on it, in virtual time, the same in every run, without access to the system."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from node.errors import LocalError
from node.objects.api import loop as module
from node.objects.api.loop import MAX_PROBLEMS, MOST_CANCELLED, VirtualLoop

SECOND = 1_000_000_000


async def after(seconds: float, value: int) -> int:
    await asyncio.sleep(seconds)
    return value


def run(main: Callable[[], Any]) -> Any:
    loop = VirtualLoop()
    result = loop.run_until_complete(main())
    assert loop.problems == []
    return result


def test_time_is_what_the_host_says() -> None:
    loop = VirtualLoop()
    task = loop.create_task(after(2.5, 7))
    assert loop.next_timer_ns() == 0
    loop.run_ready(5)
    assert loop.next_timer_ns() == 5 + 2 * SECOND + SECOND // 2
    loop.run_ready(2 * SECOND)
    assert not task.done()
    loop.run_ready(SECOND)
    assert loop.now_ns == 2 * SECOND
    loop.run_ready(3 * SECOND)
    assert task.result() == 7
    assert loop.next_timer_ns() is None


def test_what_asyncio_offers_works() -> None:
    async def main() -> list[object]:
        found: list[object] = [await asyncio.gather(after(2, 1), after(1, 2))]
        queue: asyncio.Queue[int] = asyncio.Queue(1)
        event, condition = asyncio.Event(), asyncio.Condition()

        async def produce() -> None:
            for number in range(3):
                await queue.put(number)
            event.set()
            async with condition:
                condition.notify_all()

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            found.append([await queue.get() for _ in range(3)])
        await event.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await queue.get()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(after(9, 1)), 1)
        done, _ = await asyncio.wait([asyncio.create_task(after(k, k)) for k in (3, 1, 2)])
        found.append(sorted(task.result() for task in done))
        async with asyncio.Semaphore(1):
            found.append(asyncio.get_running_loop().time())
        return found

    assert run(main) == [[1, 2], [0, 1, 2], [1, 2, 3], 7.0]


def test_timers_go_off_in_the_order_of_their_times_then_of_their_setting() -> None:
    loop = VirtualLoop()
    seen: list[str] = []
    for name, delay in (("b", 2.0), ("a", 1.0), ("c", 2.0), ("now", 0.0), ("past", -1.0)):
        loop.call_later(delay, seen.append, name)
    cancelled = loop.call_later(1.5, seen.append, "never")
    loop.call_soon(seen.append, "soon")
    cancelled.cancel()
    loop.run_ready(10 * SECOND)
    assert seen == ["soon", "past", "now", "a", "b", "c"]


def test_cancelled_timers_are_dropped_when_they_are_most() -> None:
    loop = VirtualLoop()
    handles = [loop.call_later(1 + number, print) for number in range(3 * MOST_CANCELLED)]
    for handle in handles[:-1]:
        handle.cancel()
    assert len(loop._timers) <= 2 * MOST_CANCELLED
    handles[-1].cancel()
    assert loop.next_timer_ns() is None
    loop.run_ready(0)


def test_it_runs_within_another_loop_whose_task_rests_meanwhile() -> None:
    async def inner() -> asyncio.AbstractEventLoop:
        assert asyncio.current_task() is not None
        await asyncio.sleep(1)
        return asyncio.get_running_loop()

    async def outer() -> None:
        ours, me = asyncio.get_running_loop(), asyncio.current_task()
        loop = VirtualLoop()
        assert loop.run_until_complete(inner()) is loop
        assert asyncio.get_running_loop() is ours
        assert asyncio.current_task() is me

    asyncio.run(outer())


def test_a_runner_can_use_it() -> None:
    async def main() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(main()) == 3600.0


@pytest.mark.parametrize(
    "outside",
    [
        lambda: asyncio.to_thread(print),
        lambda: asyncio.open_connection("localhost", 1),
        lambda: asyncio.create_subprocess_exec("true"),
        lambda: asyncio.start_server(lambda *_: None),
    ],
)
def test_the_outside_world_is_refused(outside: Callable[[], Any]) -> None:
    async def main() -> None:
        with pytest.raises(LocalError, match="a program of objects has no"):
            await outside()
        asyncio.get_running_loop().set_debug(False)
        with pytest.raises(LocalError, match="debug mode"):
            asyncio.get_running_loop().set_debug(True)

    run(main)


def test_nothing_that_an_event_loop_has_is_missing() -> None:
    for name in vars(asyncio.AbstractEventLoop):
        if not name.startswith("_"):
            assert getattr(VirtualLoop, name) is not getattr(asyncio.AbstractEventLoop, name), name


def test_a_program_that_never_waits_or_waits_for_nothing_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_AT_ONCE", 100)
    loop = VirtualLoop()

    def again() -> None:
        loop.call_soon(again)

    again()
    with pytest.raises(LocalError, match="100 steps without waiting"):
        loop.run_ready(0)
    loop = VirtualLoop()
    with pytest.raises(LocalError, match="never comes"):
        loop.run_until_complete(loop.create_future())


def test_problems_that_nobody_awaits_are_kept() -> None:
    loop = VirtualLoop()

    async def fails() -> None:
        raise ValueError("forgotten")

    for _ in range(MAX_PROBLEMS + 1):
        loop.call_soon(int, "x")
    loop.run_ready(0)
    assert len(loop.problems) == MAX_PROBLEMS
    assert "ValueError: invalid literal" in loop.problems[0]
    loop.problems.clear()
    heard: list[str] = []
    loop.create_task(fails())
    loop.run_ready(0)
    assert loop.problems == ["NumberedTask exception was never retrieved: ValueError: forgotten"]
    loop.set_exception_handler(lambda _, context: heard.append(context["message"]))
    loop.call_soon(int, "x")
    loop.run_ready(0)
    assert len(heard) == 1


def test_a_generator_that_is_dropped_is_closed() -> None:
    closed: list[bool] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    async def main() -> None:
        async for _ in numbers():
            break
        await asyncio.sleep(1)

    run(main)
    assert closed == [True]


def test_a_closed_or_running_loop_takes_nothing() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        for call in (loop.close, lambda: loop.run_ready(0)):
            with pytest.raises(LocalError, match="running"):
                call()

    loop.run_until_complete(main())
    loop.close()
    with pytest.raises(LocalError, match="closed"):
        loop.call_soon(print)
    with pytest.raises(LocalError, match="closed"):
        loop.run_ready(0)


def test_contexts_are_kept_apart() -> None:
    variable = contextvars.ContextVar("variable", default=0)

    async def main() -> tuple[int, int]:
        context = contextvars.copy_context()
        context.run(variable.set, 5)

        async def read() -> int:
            return variable.get()

        return await asyncio.create_task(read(), context=context), await asyncio.create_task(read())

    assert run(main) == (5, 0)


PROGRAM = """
import asyncio
from node.objects.alone import alone
from node.objects.api.loop import VirtualLoop
from tests.node.objects.samples import Counter

async def main(space):
    seen = []
    counters = [space.create(Counter()) for _ in range(20)]
    async def one(number):
        await asyncio.sleep(number % 3)
        seen.append((number, asyncio.get_running_loop().time(), await counters[number % 7].add(number)))
    tasks = {asyncio.create_task(one(number)) for number in range(50)}
    seen.append([task.get_name() for task in tasks])
    await asyncio.wait(tasks)
    calls = {counter.add.send(1) for counter in counters}
    for call in asyncio.as_completed(calls):
        seen.append(await call)
    return seen

print([VirtualLoop().run_until_complete(alone(main)) for _ in range(2)])
"""


def test_every_run_is_the_same() -> None:
    found = set()
    for seed in ("0", "1"):
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}
        found.add(subprocess.check_output([sys.executable, "-c", PROGRAM], text=True, env=environment))
    assert len(found) == 1
    first, second = eval(found.pop())
    assert first == second
