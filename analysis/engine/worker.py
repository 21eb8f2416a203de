"""What a worker of Spark's does once in its life."""

from __future__ import annotations

import gc
from functools import cache


@cache
def keep_imports() -> None:
    """What this process has imported is not looked at any more by the full collection that a worker runs after each
    task: 40 % of what a small task takes. Once: whatever is garbage at that moment, and its open files, stays for ever.
    """
    gc.collect()
    gc.freeze()
