"""Classes of objects for several tests, and calls of them; a type checker reads this file, too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar, assert_type

from node.objects.alone import alone
from node.objects.api.export import BoundMethod, Method, Remote, export
from node.objects.api.loop import VirtualLoop
from node.objects.api.replies import Answer, Call, ReplyHandler
from node.objects.api.space import Space

T = TypeVar("T")


def run(main: Callable[[Space], Awaitable[T]]) -> T:
    """Run a program in virtual time; the loop must report no unhandled problem."""
    loop = VirtualLoop()
    result = loop.run_until_complete(alone(main))
    assert loop.problems == []
    return result


def in_space(main: Callable[[Space], Awaitable[None]]) -> Callable[[], None]:
    """Make a test of a program: it runs in a space of its own."""

    def test() -> None:
        run(main)

    return test


class Counter(Remote):
    """Adds up. `seen`: the amounts in the order of the calls."""

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self.seen: list[int] = []

    @export
    async def add(self, amount: int) -> int:
        """The sum."""
        self.seen.append(amount)
        self.count += amount
        return self.count

    @export
    def plain(self, amount: int = 1) -> int:
        self.seen.append(amount)
        self.count += amount
        return self.count

    @export
    async def slowly(self, amount: int, *, seconds: float = 1.0) -> int:
        before = self.count
        await asyncio.sleep(seconds)
        self.seen.append(amount)
        self.count = before + amount
        return self.count

    @export
    async def twice(self, amount: int) -> int:
        await self.add(amount)
        return await self.add(amount)

    @export
    def fail(self, text: str) -> None:
        raise ValueError(text)

    @export
    async def append_to(self, values: list[int]) -> list[int]:
        values.append(self.count)
        return values

    @export
    def as_set(self) -> object:
        return {1, 2}

    @export
    def itself(self) -> Counter:
        return self

    @export
    async def ask(self, other: Counter, amount: int) -> int:
        return await other.add(amount)

    @export
    async def ask_all(self, others: Counter, amount: int) -> list[int]:
        return await others.add.all(amount)

    @export
    def show(self, other: Counter) -> str:
        return repr(other)

    def get_state(self) -> object:
        return self.count

    def set_state(self, state: int) -> None:
        self.count = state


async def typed(counter: Counter) -> None:
    """Types of each kind of call; `# type: ignore` marks the errors that a type checker must find."""
    assert_type(await counter.add(2), int)
    assert_type(await counter.add(amount=2), int)
    assert_type(await counter.plain(), int)
    assert_type(counter.add.send(2), Call[int])
    assert_type(await counter.add.send(2), int)
    assert_type(await counter.add.all(2), list[int])
    assert_type(await counter.add.first(1, 2), list[int])
    assert_type(await counter.add.answers(2), list[Answer[int]])
    assert_type(counter.add.handler(2), ReplyHandler[int])
    assert_type(await counter.add.handler(2).receive(), int)
    assert_type(await counter.add.options(timeout=1.0, atomic=True)(2), int)
    assert_type(await (await counter.itself()).add(2), int)
    async for answer in counter.add.arrival(2):
        assert_type(answer.value, int)
    results = await asyncio.gather(counter.add(1), counter.fail("no"))
    assert_type(results, tuple[int, None])


async def mistyped(counter: Counter) -> None:
    """Never run: each line is a mistake that a type checker finds (mypy complains about an ignore without need)."""
    await counter.add("2")  # type: ignore[arg-type]
    await counter.add()  # type: ignore[call-arg]
    await counter.add.all(1, 2)  # type: ignore[call-arg]
    await counter.subtract(2)  # type: ignore[attr-defined]
    await counter.add.first("1", 2)  # type: ignore[arg-type]


def methods() -> tuple[BoundMethod[[int], int], Method[[int], int]]:
    """Methods as values."""
    return Counter().add, Counter.add
