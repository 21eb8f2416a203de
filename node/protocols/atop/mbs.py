"""ATOP/MBS: ATOP whose members pass their turns to each other through a message broker server; the core of one view.

Paper 002, 2.2 (Tian, Ideguchi, Yasukawa, Okuda, 2002). ATOP answers a change of rates with dummies until the next
distribution. Here a member that sends less than its weight gives numbers that it will not need to the broker (MBS), and
a member that sends more asks the broker for numbers and sends messages under them. So draws follow the rates within one
sub-window, and dummies only fill numbers that no member wants. Messages, argument, deviations and parameters:
docs/protocols/atop.md. All of ATOP (`core.py`) but for these rules; the order of brokered messages is in `order.py`.

1. [2.2.2, formula 2] At the end of each sub-window a member computes delta (`Shares`). A received item counts for the
   owner of the number. A new distribution sets all counts to 0.
2. [2.2.3 (1)] Int(delta) > 0: p tells the MBS the distribution, its own next seqno n and the count Int(delta), and goes
   on from n + Int(delta).
3. [2.2.3 (2)] Int(delta) < 0: p asks the MBS for -Int(delta) numbers. Until the answer comes it sends ordinary
   messages. Then its next messages are BMG: they carry the donor's number, and p's own.
4. [2.2.3] The MBS gives its numbers to the members that want some, in the order of their wishes. At a new distribution
   grants, wishes and stock are void.
5. [2.2.4] A BMG is split into a CBMG at the donor's number and an ordinary message; a CBMG forces the draw to the
   sender.
6. [2.2.2, 3.1] A number that its holder does not use within dmT (1.5 sbT) after it came goes out under a dummy.
7. [2.2.2, 4] The bookkeeper counts messages without dummies, by their real senders; no dummies keep a weight above 0.

Invariants. Own numbers are used or given away, each once. Offered = granted + in stock + left over. Held numbers belong
to our sending distribution, and while any is held a timer is armed.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from node.core import MakeCore, Membership, Submission
from node.effects import Effect, Report, Send, Timer
from node.errors import DropReason, RemoteError, check
from node.parameters import require
from node.protocols.atop.core import AtopCore, WeightedOrderParameters, split
from node.protocols.atop.order import MAX_COUNT, MAX_NUMBER, Item, Numbers
from node.protocols.base import CONTROL, DUMMY, Handler
from node.wire import Kind, Message

LEFTOVER = Timer("leftover")
MOST_RANGES = 512
"""Most ranges in one message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtopMbsParameters(WeightedOrderParameters):
    """Parameters of ATOP/MBS."""

    dm_ns: int = 0
    """dmT: longest time that a number may stay unused at the broker or at a requester; 0: 1.5 sub-windows, as in the
    paper."""

    def __post_init__(self) -> None:
        WeightedOrderParameters.__post_init__(self)
        require(0 <= self.dm_ns <= 2**62, f"dm_ns must not be negative, not {self.dm_ns}")


class MbsReport(enum.IntEnum):
    """Codes of our reports, besides those of ATOP."""

    OFFERED = 0xA1
    """We gave `value` own numbers to the broker `member`."""
    WISHED = 0xA2
    """We asked the broker `member` for `value` more numbers; 0: we withdrew the wish."""
    GRANTED = 0xA3
    """As the broker we gave `value` numbers to `member`."""
    LEFTOVER = 0xA4
    """`value` held numbers were not used in time: they go out as a dummy."""


class AtopMbsCore(AtopCore):
    """See the module's docstring. RemoteError: `memory` is malformed."""

    is_brokered = True

    def __init__(self, *, membership: Membership, parameters: AtopMbsParameters, memory: bytes = b"") -> None:
        super().__init__(membership=membership, parameters=parameters, memory=memory)
        self._dm_ns = parameters.dm_ns or parameters.sub_window_ns * 3 // 2
        self._forget()
        self._readers |= {Kind.MBS_BROKERED: self._brokered, Kind.MBS_FILL: self._leftover}
        self._handlers |= dict.fromkeys(self._readers, self._on_item)
        self._requests: dict[Kind, Handler] = {
            Kind.MBS_OFFER: self._on_offer,
            Kind.MBS_WISH: self._on_wish,
            Kind.MBS_GRANT: self._on_grant,
        }
        """By kind of unicast. None of them has a place in the order."""
        self._handlers |= dict.fromkeys(self._requests, self._on_request)
        self._due |= {LEFTOVER: self._on_leftover_due}

    def _forget(self) -> None:
        """Reset the state of offers, wishes and grants for a new sending distribution."""
        self._offered = 0
        """Own numbers given away ..."""
        self._filled = 0
        """... and the number of those that we have seen filled, by a message or by a dummy."""
        self._grants = Stock()
        """Numbers of others that we may use."""
        self._granted = 0
        """Number of numbers granted to us in all ..."""
        self._wished = 0
        """... and number that we have asked for in all."""
        self._broker = Broker()
        """Our state as the broker."""

    @property
    def granted(self) -> int:
        """Number of numbers of others that we hold."""
        return len(self._grants)

    # Methods that differ from ATOP.

    def _refusal(self, message: Message) -> DropReason | None:
        if message.kind not in self._requests:
            return None
        is_from_broker = message.origin == self._us.first
        if not (is_from_broker if message.kind is Kind.MBS_GRANT else self.is_bookkeeper):
            return DropReason.UNEXPECTED
        is_possible = bool(message.words) and message.words[0] <= self.distribution
        return None if is_possible else DropReason.MALFORMED

    def _on_request(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        """Handle a request under our distribution; under an older one it is too late."""
        if message.words[0] == self.distribution:
            self._requests[message.kind](message, now_ns, out)

    def _compose(self, submission: Submission) -> Message:
        """Rule 3: a BMG if we hold a granted number."""
        slots = self._grants.take(1)
        if not slots:
            return super()._compose(submission)
        return self._data_message(Kind.MBS_BROKERED, submission, slots[0].donor, slots[0].first)

    def _count(self, member: int, item: Item, now_ns: int, out: list[Effect]) -> None:
        super()._count(member, item, now_ns, out)
        if item.distribution == self.distribution:
            self._filled += item.slot is not None and item.slot[0] == self._me
            self._filled += sum(size for donor, _, size in item.fills if donor == self._me)

    def _on_sub_window(self, whole: int, now_ns: int, out: list[Effect]) -> None:
        """Rules 2 and 3."""
        on_offer = self._offered - self._filled
        if whole > on_offer and self._has_spoken:
            self._offer(whole - on_offer, now_ns, out)
        self._wish(max(0, -whole - self.granted), now_ns, out)

    def _on_adopted(self, now_ns: int, out: list[Effect]) -> None:
        self._forget()
        self._timers.disarm(LEFTOVER, out)

    # Donor and requester.

    def _offer(self, count: int, now_ns: int, out: list[Effect]) -> None:
        self._offered += count
        out.append(Report(code=MbsReport.OFFERED, member=self._us.first, value=count))
        self._ask(Kind.MBS_OFFER, self._take_numbers(count), (count,), now_ns, out)

    def _wish(self, count: int, now_ns: int, out: list[Effect]) -> None:
        """Tell the broker our wish, unless it knows it."""
        total = self._granted + count
        if total != self._wished:
            self._wished = total
            out.append(Report(code=MbsReport.WISHED, member=self._us.first, value=count))
            self._ask(Kind.MBS_WISH, total, (), now_ns, out)

    def _ask(self, kind: Kind, seq: int, words: tuple[int, ...], now_ns: int, out: list[Effect]) -> None:
        message = self._us.message(kind, seq=seq, flags=CONTROL, words=(self.distribution, *words))
        if self.is_bookkeeper:
            self._requests[kind](message, now_ns, out)
        else:
            out.append(Send(target=self._us.first, message=message))

    def _on_grant(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        ranges = self._unpack(message.words[1:])
        check(not message.seq, f"a grant with number {message.seq}")
        self._hold(ranges, now_ns, out)

    def _hold(self, ranges: Iterable[Numbers], now_ns: int, out: list[Effect]) -> None:
        for numbers in ranges:
            self._grants.put(numbers, now_ns)
            self._granted += numbers.size
        self._arm_leftover(out)

    # Broker.

    def _on_offer(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        counts = message.words[1:]
        numbers = Numbers(message.origin, message.seq, *counts[:1]) if counts else None
        if numbers is None or len(counts) > 1 or not is_possible(numbers) or self._broker.knows(numbers):
            raise RemoteError(DropReason.MALFORMED, f"an offer of {counts} numbers from {message.seq} on")
        self._grant(self._broker.offer(numbers, now_ns), now_ns, out)
        self._arm_leftover(out)

    def _on_wish(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        check(len(message.words) <= 1, f"a wish with words {message.words}")
        self._grant(self._broker.wish(message.origin, message.seq), now_ns, out)

    def _grant(self, grants: list[tuple[int, tuple[Numbers, ...]]], now_ns: int, out: list[Effect]) -> None:
        """Rule 4."""
        for member, ranges in grants:
            count = sum(numbers.size for numbers in ranges)
            out.append(Report(code=MbsReport.GRANTED, member=member, value=count))
            if member == self._me:
                self._hold(ranges, now_ns, out)
                continue
            for words in pack_ranges(ranges):
                message = self._us.message(Kind.MBS_GRANT, flags=CONTROL, words=(self.distribution, *words))
                out.append(Send(target=member, message=message))

    # Leftovers.

    def _arm_leftover(self, out: list[Effect]) -> None:
        """Arm the timer for when we will have held the oldest number for dmT."""
        came = [stock.oldest_ns for stock in (self._broker.stock, self._grants) if stock.oldest_ns is not None]
        if came:
            self._timers.arm(LEFTOVER, min(came) + self._dm_ns, out)

    def _on_leftover_due(self, now_ns: int, out: list[Effect]) -> None:
        """Rule 6."""
        came_ns = now_ns - self._dm_ns
        for words in pack_ranges((*self._broker.stock.take_until(came_ns), *self._grants.take_until(came_ns))):
            message = self._us.message(
                Kind.MBS_FILL,
                seq=self._given + 1,
                flags=DUMMY,
                words=(self.distribution, *words, *self._take_final()),
            )
            count = sum(numbers.size for numbers in self._leftover(message).fills)
            out.append(Report(code=MbsReport.LEFTOVER, member=self._me, value=count))
            self._say(message, now_ns, out)
        self._arm_leftover(out)

    # Words.

    def _brokered(self, message: Message) -> Item:
        (distribution, _, donor, number), final = split(message, 4)
        if donor not in self.weights or not is_possible(Numbers(donor, number, 1)):
            raise RemoteError(DropReason.MALFORMED, f"a brokered message for number {number} of {donor}")
        return Item(distribution, message.seq, 1, message, (donor, number), final=final)

    def _leftover(self, message: Message) -> Item:
        (distribution, *words), final = split(message, max(0, len(message.words) - 1) | 1)
        return Item(distribution, message.seq, fills=self._unpack(words), final=final)

    def _unpack(self, words: Iterable[int]) -> tuple[Numbers, ...]:
        """RemoteError unless these are ranges: at least one, two words each (donor and count, first number)."""
        flat = tuple(words)
        ranges = tuple(Numbers(one >> 16, first, one & MAX_COUNT) for one, first in zip(flat[::2], flat[1::2]))  # noqa: B905
        if not ranges or len(flat) % 2 or not all(one.donor in self.weights and is_possible(one) for one in ranges):
            raise RemoteError(DropReason.MALFORMED, f"{len(flat)} words for ranges {ranges}")
        return ranges


def pack_ranges(ranges: Iterable[Numbers]) -> list[tuple[int, ...]]:
    """The words of as many messages as are needed. A range that is too long is split."""
    pieces = [
        (donor << 16 | min(MAX_COUNT, count - done), first + done)
        for donor, first, count in ranges
        for done in range(0, count, MAX_COUNT)
    ]
    return [
        tuple(word for piece in pieces[start : start + MOST_RANGES] for word in piece)
        for start in range(0, len(pieces), MOST_RANGES)
    ]


def is_possible(numbers: Numbers) -> bool:
    """Whether there are such numbers."""
    return numbers.first >= 1 and numbers.size >= 1 and numbers.first + numbers.size - 1 <= MAX_NUMBER


class Stock:
    """Numbers with the instant at which they came, oldest first: on offer at the broker, or granted at a requester."""

    __slots__ = ("_count", "_ranges")

    def __init__(self) -> None:
        self._ranges: deque[tuple[int, Numbers]] = deque()
        self._count = 0

    def __len__(self) -> int:
        """Number of numbers, not of ranges."""
        return self._count

    @property
    def oldest_ns(self) -> int | None:
        """The time at which the oldest number came; None when there is none."""
        return self._ranges[0][0] if self._ranges else None

    def put(self, numbers: Numbers, now_ns: int) -> None:
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
        return self.take(sum(numbers.size for came, numbers in self._ranges if came <= came_ns))


class Broker:
    """ "The MBS does nothing but hand out the empty numbers that it holds, by the wishes for them" (2.2.3).

    Wishes are served in the order in which they came. A member has one at most: a later one replaces it and keeps its
    place. A wish is a total under the distribution, so grants in transit count. `offer` and `wish` return the grants
    that follow at once: (member, ranges).
    """

    __slots__ = ("_granted", "_offered", "_wishes", "stock")

    def __init__(self) -> None:
        self.stock = Stock()
        """Numbers on offer that no member wants. While there are some, no wish is open."""
        self._offered: dict[int, int] = {}
        """By donor: the last number that was offered."""
        self._wishes: dict[int, int] = {}
        """By member: the number of numbers that it wants beyond its grants, above 0; in the order in which they are
        served."""
        self._granted: dict[int, int] = {}
        """By member: the number of numbers granted in all."""

    def knows(self, numbers: Numbers) -> bool:
        """Whether some of these, or later ones of the same donor, were offered before: donors give away in ascending
        order."""
        return numbers.first <= self._offered.get(numbers.donor, 0)

    def offer(self, numbers: Numbers, now_ns: int) -> list[tuple[int, tuple[Numbers, ...]]]:
        assert not self.knows(numbers), "a number is given away once"
        self._offered[numbers.donor] = numbers.first + numbers.size - 1
        self.stock.put(numbers, now_ns)
        return self._match()

    def wish(self, member: int, total: int) -> list[tuple[int, tuple[Numbers, ...]]]:
        wanted = total - self._granted.get(member, 0)
        if wanted > 0:
            self._wishes[member] = wanted
        else:
            self._wishes.pop(member, None)
        return self._match()

    def _match(self) -> list[tuple[int, tuple[Numbers, ...]]]:
        grants = []
        while self._wishes and len(self.stock):
            member, wanted = next(iter(self._wishes.items()))
            ranges = self.stock.take(wanted)
            count = sum(numbers.size for numbers in ranges)
            self._granted[member] = self._granted.get(member, 0) + count
            if count == wanted:
                del self._wishes[member]
            else:
                self._wishes[member] = wanted - count
            grants.append((member, ranges))
        return grants


def begin(parameters: AtopMbsParameters) -> MakeCore:
    """The function that makes the core of each view."""
    return lambda us, _, memory: AtopMbsCore(membership=us, parameters=parameters, memory=memory)
