"""Stands where the machine's manager has a local manager, and passes on what it is told: the true one lives in a
process of its own (node/objects/processes.py). What that one says comes back as messages from SPACE_BASE + its number.
"""

from __future__ import annotations

from node.core import Core, Submission
from node.effects import Effect, Send, Timer
from node.errors import LocalError
from node.objects.local import SPACE_BASE
from node.wire import Message


class DistantCore(Core):
    """Of one address space. It is idle: whoever holds the processes knows whether they are."""

    can_submit = True
    is_idle = True

    def __init__(self, *, space: int) -> None:
        self._space = space

    def on_start(self, now_ns: int) -> list[Effect]:
        return []

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        raise LocalError(f"objects of space {self._space} ask their manager in their own process")

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        return [Send(target=SPACE_BASE + self._space, message=message)]

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        raise LocalError(f"{timer} is no timer of a manager that is elsewhere")
