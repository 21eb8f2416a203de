"""What a machine gives its objects next: ordered calls as the log gives them, direct messages as they come.

A direct message carries the highest timestamp that its sender's machine knew of (`after`). The argument:
docs/protocols/objects.md.

    direct message   waits until the log is complete up to `after`, for earlier ones of its source, and for calls up to
                     `after` that wait here; at most `patience_ns`
    ordered call     waits until the log is complete up to its timestamp, for direct messages for one of its objects
                     that came before it and have an earlier `after`, and for earlier calls that wait here
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from node.objects.addresses import Reference
from node.objects.log.entries import Call
from node.objects.manager.direct import Incarnation

IsComplete = Callable[[int], bool]
"""Whether nothing up to this timestamp can come out of the log any more for this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """`call` is for `objects` of ours. `timestamp`: of an ordered call; of a direct message what it comes after.
    `source`: the sender of a direct message; None: the log."""

    call: Call
    objects: tuple[Reference, ...]
    timestamp: int
    source: Incarnation | None = None


@dataclass(frozen=True, slots=True)
class _Waiting:
    item: Item
    until_ns: int


class Agenda:
    """Of one machine."""

    def __init__(self, *, patience_ns: int) -> None:
        self._patience_ns = patience_ns
        self._waiting: list[_Waiting] = []

    def __len__(self) -> int:
        """Items that wait."""
        return len(self._waiting)

    @property
    def next_ns(self) -> int | None:
        """When patience ends for the first of them."""
        return min((one.until_ns for one in self._waiting if one.item.source is not None), default=None)

    @property
    def awaited(self) -> int:
        """The highest timestamp that a direct message waits for; 0: none waits."""
        return max((one.item.timestamp for one in self._waiting if one.item.source is not None), default=0)

    def put(self, item: Item, now_ns: int) -> None:
        """It is next. The log may give more at this moment: `take` when it has given all."""
        self._waiting.append(_Waiting(item, now_ns + self._patience_ns))

    def add(self, item: Item, is_complete: IsComplete, now_ns: int) -> list[Item]:
        """It is next, and nothing else comes now. Returns what can be handed out, in order."""
        self.put(item, now_ns)
        return self.take(is_complete, now_ns)

    def take(self, is_complete: IsComplete, now_ns: int) -> list[Item]:
        """What can be handed out now, in order."""
        found: list[Item] = []
        while self._waiting:
            left: list[_Waiting] = []
            before = len(found)
            for place, one in enumerate(self._waiting, start=1):
                if self._can_go(one, left, self._waiting[place:], is_complete, now_ns):
                    found.append(one.item)
                else:
                    left.append(one)
            self._waiting = left
            if len(found) == before:
                break
        return found

    def _can_go(
        self,
        one: _Waiting,
        earlier: list[_Waiting],
        later: list[_Waiting],
        is_complete: IsComplete,
        now_ns: int,
    ) -> bool:
        item = one.item
        if item.source is None:
            is_first = not any(_precedes(other.item, item) for other in (*earlier, *later))
            is_free = not any(_is_overtaken(other.item, item) for other in earlier)
            return is_first and is_free and is_complete(item.timestamp)
        if any(other.item.source == item.source for other in earlier):
            return False
        if one.until_ns <= now_ns:
            return True
        # The log may have given a call that comes before it just now: behind it here, before it in the order.
        is_blocked = any(
            other.item.source is None and other.item.timestamp <= item.timestamp for other in (*earlier, *later)
        )
        return not is_blocked and is_complete(item.timestamp)


def _precedes(other: Item, call: Item) -> bool:
    """Whether both are ordered calls, `other` the earlier one."""
    return other.source is None and (other.timestamp, other.call.id) < (call.timestamp, call.call.id)


def _is_overtaken(other: Item, call: Item) -> bool:
    """Whether `other` is a direct message that waits and must be handed out before this ordered call."""
    is_direct = other.source is not None and other.timestamp < call.timestamp
    return is_direct and not set(other.objects).isdisjoint(call.objects)
