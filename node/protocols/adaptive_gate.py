"""The processor as the instance of one Time Warp epoch sees it.

All epochs of a member share one processor (execution.py). A Time Warp epoch that begins while an older epoch is
incomplete takes part in everything at once: it sends, receives, and reckons the global virtual time. But its commands
must not be executed before the last one of the older epoch. So they wait here until `open`, and count as not executed:
`first_open` is the least of them, so nothing that waits can become final.

Commands pass with the identity that the host knows: incarnations of the member, not of the epoch, and payloads without
their tails.
"""

from __future__ import annotations

from dataclasses import replace

from node.effects import Effect, Report
from node.protocols.adaptive_words import AdaptiveReport, Arrival, Bases, tail_of
from node.protocols.execution import Command, Execution, Key, Undone
from node.protocols.joining import Life


class Gate:
    """See the module's text. It has the part of Execution that a core uses which does not own it."""

    __slots__ = ("_arrivals", "_bases", "_below", "_execution", "_is_open", "_waiting")

    def __init__(self, execution: Execution, bases: Bases, *, is_open: bool) -> None:
        self._execution = execution
        self._bases = bases
        self._is_open = is_open
        self._waiting: dict[Key, Command] = {}
        self._below: Key = ()
        """What has been committed meanwhile."""
        self._arrivals: list[Arrival] = []

    @property
    def clock(self) -> int:
        return self._execution.clock

    @property
    def first_open(self) -> Key | None:
        return min(self._waiting) if self._waiting else self._execution.first_open

    def insert(self, command: Command, now_ns: int, out: list[Effect]) -> list[Undone]:
        outer = self._outer(command)
        self._arrivals.append(Arrival(_life(outer), outer.key[1]))
        if self._is_open:
            return self._execution.insert(outer, now_ns, out)
        self._waiting[outer.key] = outer
        return []

    def remove(self, key: Key, now_ns: int, out: list[Effect]) -> list[Undone]:
        if self._waiting.pop(key, None) is not None:
            return []
        return self._execution.remove(key, now_ns, out)

    def commit(self, below: Key, out: list[Effect]) -> int:
        if self._is_open:
            return self._execution.commit(below, out)
        self._below = max(self._below, below)
        return 0

    def open(self, erased: frozenset[Life], now_ns: int, out: list[Effect]) -> None:
        """All older epochs are complete: what waits may be executed, but nothing of the lives `erased`, which have
        ended: all of theirs is here.
        """
        self._is_open = True
        for _, command in sorted(self._waiting.items()):
            if _life(command) in erased:
                out.append(Report(code=AdaptiveReport.ERASED, member=command.message.origin, value=command.key[0]))
            else:
                self._execution.insert(command, now_ns, out)
        self._waiting.clear()
        # Last, though GVT does not pass what waits: who makes us believe otherwise shall not end us.
        if self._below:
            self._execution.commit(self._below, out)

    def take_arrivals(self) -> list[Arrival]:
        """What has come since the last call."""
        arrivals, self._arrivals = self._arrivals, []
        return arrivals

    def _outer(self, command: Command) -> Command:
        """Follow-ups that Time Warp itself sends have no tail."""
        message = command.message
        payload, is_follow_up = message.payload, command.is_follow_up
        if not is_follow_up:
            tail, payload = tail_of(payload)
            is_follow_up = tail.is_follow_up
        incarnation = message.incarnation + self._bases[message.origin] - 1
        message = replace(message, payload=payload, incarnation=incarnation)
        return command._replace(message=message, is_follow_up=is_follow_up)


def _life(command: Command) -> Life:
    return command.message.origin, command.message.incarnation
