"""A minimal core with near multicasts only."""

from __future__ import annotations

from node.core import Core, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Timer
from node.wire import Kind, Message


class NearCore(Core):
    """Multicasts each submission to its neighbours only."""

    def __init__(self, membership: Membership) -> None:
        self._us = membership
        self._last = 0

    @property
    def can_submit(self) -> bool:
        return True

    @property
    def is_idle(self) -> bool:
        return True

    def on_start(self, now_ns: int) -> list[Effect]:
        return []

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        self._last += 1
        message = self._us.message(Kind.RELIABLE_DATA, seq=self._last, payload=submission.payload)
        return [Multicast(message=message, is_near=True), Deliver.of(message)]

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        return [Deliver.of(message)]

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        raise AssertionError(f"{timer} was never set")
