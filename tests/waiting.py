"""Waiting for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(holds: Callable[[], object], what: str, within_s: float = 20.0, *, every_s: float = 0.02) -> None:
    """Wait until `holds` is true. Raises AssertionError after `within_s`."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(every_s)
