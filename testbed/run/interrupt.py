"""Ctrl-C where nothing is half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether somebody has pressed Ctrl-C; raised where it is heeded."""

    def __init__(self) -> None:
        self.is_asked = False

    def heed(self) -> None:
        """Raises KeyboardInterrupt if it was asked for."""
        if self.is_asked:
            self.is_asked = False
            raise KeyboardInterrupt

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.is_asked = True


@contextmanager
def held_back() -> Iterator[Interrupt]:
    """Keep SIGINT from breaking into the middle of something; at the end at the latest it is heeded. Python lets only
    the main thread have it; elsewhere nothing has to be done.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
    interrupt.heed()
