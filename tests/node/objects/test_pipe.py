"""The pipe between a machine and an address space."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from node.objects.pipe import Pipe, Tag, pair

PACKETS = 2000
CONTENT = bytes(1000)


class End:
    """One end, which notes its inputs."""

    def __init__(self, end: socket.socket) -> None:
        self.packets: list[tuple[int, bytes]] = []
        self.ended = 0
        self._changed = asyncio.Event()
        self.pipe = Pipe(
            end,
            asyncio.get_running_loop(),
            on_packet=lambda tag, content: self.packets.append((tag, content)),
            on_turn=self._changed.set,
            on_end=self._note_end,
        )

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not is_so():
                self._changed.clear()
                await self._changed.wait()

    def _note_end(self) -> None:
        self.ended += 1
        self._changed.set()


def with_a_pipe(scene: Callable[[End, End], Awaitable[None]]) -> Callable[[], None]:
    """Make a test of a scene with the two ends of a pipe, which are closed at its end."""

    async def play() -> None:
        one, other = map(End, pair())
        await scene(one, other)
        one.pipe.close()
        other.pipe.close()

    return lambda: asyncio.run(play())


@with_a_pipe
async def test_what_the_kernel_does_not_take_waits_and_comes_in_order(one: End, other: End) -> None:
    other.pipe.rest()
    for number in range(PACKETS):
        one.pipe.send(Tag.MESSAGE, number.to_bytes(4) + CONTENT)
    await asyncio.sleep(0)
    assert one.pipe.waited > 0
    assert one.pipe.waiting_bytes == one.pipe.waited * (len(CONTENT) + 5)
    assert other.packets == []
    other.pipe.read()
    await other.until(lambda: len(other.packets) == PACKETS)
    assert [int.from_bytes(content[:4]) for _, content in other.packets] == list(range(PACKETS))
    await one.until(lambda: one.pipe.waiting_bytes == 0)


@with_a_pipe
async def test_the_largest_message_fits(one: End, other: End) -> None:
    content = bytes(65_507)
    one.pipe.send(Tag.MESSAGE, content)
    await other.until(lambda: bool(other.packets))
    assert other.packets == [(Tag.MESSAGE, content)]


@with_a_pipe
async def test_an_end_is_told_once_and_after_everything_that_was_said(one: End, other: End) -> None:
    for number in range(100):
        one.pipe.send(Tag.STATUS, bytes((number,)))
    one.pipe.close()
    await other.until(lambda: bool(other.ended))
    assert (len(other.packets), other.ended) == (100, 1)
    other.pipe.send(Tag.STATUS, b"to nobody")
    assert other.pipe.waiting_bytes == 0


@with_a_pipe
async def test_who_speaks_to_a_pipe_that_breaks_still_hears_what_was_said(one: End, other: End) -> None:
    one.pipe.send(Tag.STATUS, b"last words")
    one.pipe.close()
    other.pipe.send(Tag.COMMAND, b"too late")
    await other.until(lambda: bool(other.ended))
    assert other.packets == [(Tag.STATUS, b"last words")]


def test_at_the_end_what_waits_is_said() -> None:
    async def scene() -> None:
        ours, theirs = pair()
        one = End(ours)
        theirs.setblocking(True)
        theirs.settimeout(5)
        for number in range(PACKETS):
            one.pipe.send(Tag.MESSAGE, number.to_bytes(4) + CONTENT)
        assert one.pipe.waiting_bytes
        reading = asyncio.get_running_loop().run_in_executor(
            None, lambda: [int.from_bytes(theirs.recv(2000)[1:5]) for _ in range(PACKETS)]
        )
        one.pipe.flush_blocking(5.0)
        assert await reading == list(range(PACKETS))
        one.pipe.close()
        theirs.close()

    asyncio.run(scene())
