"""Waiting for processes and threads, and bounds of durations on machines that are slow at the moment."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

USUAL_S = 0.03
"""Duration of the reference work on the machine for which the bounds of the tests were chosen."""


def slowness(clock: Callable[[], float] = time.monotonic) -> float:
    """How many times longer the reference work takes now than usual, in this clock's time; at least 1."""
    begun_s = clock()
    words = {str(number): number for number in range(150_000)}
    assert len(words) == 150_000
    return max(1.0, (clock() - begun_s) / USUAL_S)


def in_time(took_s: float, bound_s: float) -> bool:
    """Whether the time is in the bound, which grows with the slowness of the machine: CI's may be shared."""
    return took_s <= bound_s or took_s <= bound_s * slowness()


def wait_until(holds: Callable[[], object], what: str, within_s: float = 20.0, *, every_s: float = 0.02) -> None:
    """Wait until `holds` is true. Raises AssertionError after `within_s`, later on a slow machine."""
    begun_s = time.monotonic()
    while not holds():
        took_s = time.monotonic() - begun_s
        assert in_time(took_s, within_s), f"not within {took_s:.1f} s: {what}"
        time.sleep(every_s)


@contextmanager
def repeated(act: Callable[[int], None]) -> Iterator[None]:
    """Calls `act` with 0, 1, … from another thread meanwhile."""
    done = threading.Event()

    def go_on() -> None:
        for number in itertools.count():
            if done.is_set():
                return
            act(number)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
