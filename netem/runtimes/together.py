"""Several things at a time, where each of them mostly waits for somebody else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

T = TypeVar("T")


def together(acts: Sequence[Callable[[], T]], *, at_once: int, on_done: Callable[[int], None]) -> list[T]:
    """What each gives, in their order; at most `at_once` are under way. `on_done` hears in our thread how many are
    done. What the first that fails raises is raised when those under way have ended; others are not begun then.
    """
    pool = ThreadPoolExecutor(at_once, thread_name_prefix="together")
    try:
        futures = [pool.submit(act) for act in acts]
        for count, future in enumerate(as_completed(futures), start=1):
            future.result()
            on_done(count)
        return [future.result() for future in futures]
    finally:
        pool.shutdown(cancel_futures=True)
