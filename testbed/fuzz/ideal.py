"""The ideal lower layer: what it is given arrives once, in order, at everybody it is for.

It stands in for `reliable` where only the core above is under examination: every order of deliveries that first-in,
first-out channels allow can then be tried out, and nothing else. The channels themselves are the explorer's.
"""

from __future__ import annotations

from node.core import Core, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Send, Timer
from node.errors import LocalError
from node.wire import Kind, Message


class IdealCore(Core):
    """Hands each submission to the network and each message to the core above. A multicast is delivered here at once,
    as `reliable` does.
    """

    def __init__(self, membership: Membership) -> None:
        self._us = membership
        self._number = 0

    @property
    def can_submit(self) -> bool:
        return True

    @property
    def is_idle(self) -> bool:
        return True

    def on_start(self, now_ns: int) -> list[Effect]:
        return []

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        self._number += 1
        kind = Kind.RELIABLE_DATA if submission.target is None else Kind.RELIABLE_UNICAST
        message = self._us.message(
            kind, seq=self._number, flags=submission.flags, inner=submission.inner, payload=submission.payload
        )
        if submission.target is None:
            return [Multicast(message=message), Deliver.of(message)]
        if submission.target == self._us.member:
            return [Deliver.of(message)]
        return [Send(target=submission.target, message=message)]

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        return [Deliver.of(message)]

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        raise LocalError(f"{timer} is no timer of the ideal layer: it has none")
