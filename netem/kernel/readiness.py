"""Which of some descriptors can be read: `poll`, since `select` refuses numbers above 1023, and a notebook or a test
suite may well have that many open.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Protocol, TypeVar


class HasDescriptor(Protocol):
    """A socket, a pipe, a process's handle."""

    def fileno(self) -> int: ...


Source = TypeVar("Source", bound=HasDescriptor | int)


def readable(sources: Sequence[Source], timeout_s: float | None = None) -> list[Source]:
    """Those that can be read now, or are at their end, in the order given; empty when the time is up (None: never)."""
    poller = select.poll()
    numbers = [source if isinstance(source, int) else source.fileno() for source in sources]
    for number in numbers:
        poller.register(number, select.POLLIN)
    found = {number for number, _event in poller.poll(None if timeout_s is None else timeout_s * 1000)}
    return [source for source, number in zip(sources, numbers, strict=True) if number in found]
