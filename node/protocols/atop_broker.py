"""Numbers that were given away, and who wants some: what the message broker server of paper 002 holds.

"The MBS does nothing but hand out the empty numbers that it holds, by the wishes for them" (paper 002, 2.2.3). Pure
values: no messages, no timers, no clock; an instant is what the caller says.

    Stock    ranges of numbers, oldest first: at the broker what is on offer, at a requester what it was granted
    Broker   a stock and the open wishes; gives grants

Wishes are served in the order in which they came. A member has one wish at most: a later one replaces it and keeps its
place. A wish is a total: how many numbers its sender wants to have been granted in all since the last `reset`. So what
is granted and still on its way counts, and nobody gets twice what he asked for once.

Invariant, for every donor: offered = granted + in stock + left over + forgotten at a reset. No number is in two of
them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple


class Numbers(NamedTuple):
    """`size` consecutive numbers of `donor`, from `first` on."""

    donor: int
    first: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """These numbers go to `member`, which wanted at least as many."""

    member: int
    numbers: tuple[Numbers, ...]

    @property
    def count(self) -> int:
        return sum(numbers.size for numbers in self.numbers)


class Stock:
    """Ranges of numbers with the instant at which they came, oldest first."""

    __slots__ = ("_count", "_ranges")

    def __init__(self) -> None:
        self._ranges: deque[tuple[int, Numbers]] = deque()
        self._count = 0

    def __len__(self) -> int:
        """How many numbers, not ranges."""
        return self._count

    @property
    def oldest_ns(self) -> int | None:
        """When the oldest number came; None when there is none."""
        return self._ranges[0][0] if self._ranges else None

    def put(self, numbers: Numbers, now_ns: int) -> None:
        """`now_ns` must not decrease from call to call."""
        if numbers.size:
            self._ranges.append((now_ns, numbers))
            self._count += numbers.size

    def take(self, count: int) -> tuple[Numbers, ...]:
        """The oldest `count` numbers, or all if there are fewer."""
        taken: list[Numbers] = []
        left = min(count, self._count)
        self._count -= left
        while left:
            came_ns, (donor, first, there) = self._ranges.popleft()
            used = min(left, there)
            taken.append(Numbers(donor, first, used))
            left -= used
            if used < there:
                self._ranges.appendleft((came_ns, Numbers(donor, first + used, there - used)))
        return tuple(taken)

    def take_until(self, came_ns: int) -> tuple[Numbers, ...]:
        """All that came at `came_ns` or before."""
        taken: list[Numbers] = []
        while self._ranges and self._ranges[0][0] <= came_ns:
            taken.append(self._ranges.popleft()[1])
        self._count -= sum(numbers.size for numbers in taken)
        return tuple(taken)

    def clear(self) -> int:
        """Forget all. Returns how many numbers that were."""
        count = self._count
        self._ranges.clear()
        self._count = 0
        return count


class Broker:
    """See the module's text. `offer` and `wish` return the grants that follow, at once."""

    __slots__ = ("_granted", "_offered", "_stock", "_wishes")

    def __init__(self) -> None:
        self._stock = Stock()
        self._offered: dict[int, int] = {}
        """The last number of each that was offered."""
        self._wishes: dict[int, int] = {}
        """How many numbers each wants beyond what it was granted: above 0; in the order in which they are served."""
        self._granted: dict[int, int] = {}
        """Granted to each, in all."""

    @property
    def in_stock(self) -> int:
        """Numbers on offer that nobody wants. While there are some, no wish is open."""
        return len(self._stock)

    @property
    def wished(self) -> int:
        """Numbers wanted that are not there."""
        return sum(self._wishes.values())

    @property
    def oldest_ns(self) -> int | None:
        """When the oldest number in stock came."""
        return self._stock.oldest_ns

    def reset(self) -> int:
        """A new distribution: all is forgotten. Returns how many numbers were in stock."""
        self._offered.clear()
        self._wishes.clear()
        self._granted.clear()
        return self._stock.clear()

    def has_been_offered(self, numbers: Numbers) -> bool:
        """Whether some of these, or later ones of the same donor, were offered before: donors give away ascending."""
        return numbers.first <= self._offered.get(numbers.donor, 0)

    def offer(self, numbers: Numbers, now_ns: int) -> tuple[Grant, ...]:
        """A donor gives these away: for the first time, ask `has_been_offered` before."""
        assert not self.has_been_offered(numbers), "a number is given away once"
        self._offered[numbers.donor] = numbers.first + numbers.size - 1
        self._stock.put(numbers, now_ns)
        return self._match()

    def wish(self, member: int, total: int) -> tuple[Grant, ...]:
        """`member` wants to have been granted `total` numbers in all; no more than it has been: nothing."""
        wanted = total - self._granted.get(member, 0)
        if wanted > 0:
            self._wishes[member] = wanted
        else:
            self._wishes.pop(member, None)
        return self._match()

    def forget(self, member: int) -> None:
        """It has ended: it wants nothing any more. What it offered stays good."""
        self._wishes.pop(member, None)
        self._granted.pop(member, None)

    def leftovers(self, came_ns: int) -> tuple[Numbers, ...]:
        """What came at `came_ns` or before and nobody wants, for good."""
        return self._stock.take_until(came_ns)

    def _match(self) -> tuple[Grant, ...]:
        grants: list[Grant] = []
        while self._wishes and len(self._stock):
            member, wanted = next(iter(self._wishes.items()))
            grant = Grant(member=member, numbers=self._stock.take(wanted))
            if grant.count == wanted:
                del self._wishes[member]
            else:
                self._wishes[member] = wanted - grant.count
            self._granted[member] = self._granted.get(member, 0) + grant.count
            grants.append(grant)
        return tuple(grants)
