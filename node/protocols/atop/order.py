"""The deterministic merge of ATOP and ATOP/MBS (the module ATOM): a function of the members' streams alone.

Paper 002, 2.1 and 2.2.4. Under one distribution each member gives out numbers 1, 2, 3 ... A draw selects a source p;
s is its next number.

    p's stream fills s with a message       the message is delivered
    p's stream fills s with a dummy         the draw is used up
    another member filled s with a dummy    the draw is used up (a leftover of the broker or of a requester)
    s is the slot of a brokered message     CBMG: the source is q, the message's sender. q's oldest message up to the
      of q                                  brokered one is delivered; if all of those have gone, the draw is used up
    s went in a forced draw (CBMG)          the draw takes p's next number instead
    p has passed and gave out less than s   p leaves the draws of this distribution, and the draw is repeated
    p gave s away, and s is not filled      when all have passed, the draw is used up, or p leaves if it has no later
                                            number; until then the order waits for all
    none of these                           the order waits for p

*Passed*: the member's stream shows a later distribution. It then says how many numbers it gave out, unless others have
seen the last of them (`Item.final`). When no member is left in the draws, the messages of members of weight 0 follow,
members ascending. When all have passed, the next distribution is in force.

`close` takes the streams as ended: all have passed all distributions, so draws skip missing numbers. Messages under a
distribution whose weights are not in the cut are lost: their senders are excluded.

Invariants: each message is delivered once, those of a member in the order of its stream; `advance` leaves nothing that
can be delivered; no later item revises a decision. A member that fills numbers which it was not given can stop the
order or split it; `check` refuses items that no correct member can send, and by the member's own stream alone.
"""

from __future__ import annotations

import copy
import enum
import heapq
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple, Self

from node.errors import DropReason, RemoteError
from node.protocols.atop.policy import Weights
from node.wire import Message

MAX_NUMBER = 2**48 - 1
"""The last number under one distribution: at a million a second they last for nine years."""
MAX_COUNT = 0xFFFF
"""Most numbers that one dummy, or one range of a leftover, fills: each costs a draw, and an enemy may write it."""


class Numbers(NamedTuple):
    """`size` consecutive numbers of `donor`, from `first` on."""

    donor: int
    first: int
    size: int


@dataclass(frozen=True, slots=True)
class Item:
    """One multicast of a member, as an item of the order.

    It fills the member's own numbers `number` to `number + count - 1` under `distribution`, with `message` (count 1) or
    with nothing. Numbers that are left out before `number` were given away (with a broker only).
    """

    distribution: int
    number: int = 0
    """At least 1, but 0 when the item only publishes `weights`. With count 0 (a leftover) the next number to be
    used."""
    count: int = 0
    message: Message | None = None
    slot: tuple[int, int] | None = None
    """(donor, number): the brokered `message` fills this number of the donor, too."""
    fills: tuple[Numbers, ...] = ()
    """Numbers of donors that stay without a message."""
    final: int = 0
    """In the first item under a later distribution: the number of numbers that the member gave out under the one
    before; 0: as many as its stream showed."""
    weights: Weights | None = None
    """The weights of the distribution that the bookkeeper publishes with this item."""


class Order:
    """See the module's docstring. `weights`: of all members, ascending, under distribution 0; at least one is above
    0."""

    def __init__(self, weights: Weights, *, bookkeeper: int, brokered: bool, draws: Draws, lag: int = 1) -> None:
        self._bookkeeper = bookkeeper
        self._is_brokered = brokered
        self._draws = draws
        self._lag = lag
        self.published = weights
        """The weights of the latest distribution in the bookkeeper's stream."""
        self.buffered = 0
        """Messages that have come and have not been delivered."""
        self._weights: dict[int, Weights] = {}
        """By distribution that has been published and is not in force yet."""
        self._sending = dict.fromkeys(weights, 0)
        """By member: the distribution of its latest item ..."""
        self._shown = dict.fromkeys(weights, 0)
        """... and its last number under that."""
        self._backlogs: dict[int, _Backlog] = {}
        self._is_closed = False
        self._begin(0, weights)

    def _begin(self, distribution: int, weights: Weights) -> None:
        self.current = distribution
        """ordDistID: the distribution in force."""
        self._now = self._backlog(distribution)
        self._now.draws = self._draws.under(distribution, weights, self._lag)
        speaking = (member for member, latest in self._sending.items() if latest == distribution)
        self._unpassed = set() if self._is_closed else set(speaking)
        self._weightless = deque(member for member, weight in weights.items() if not weight)
        """Members of weight 0, whose messages are left for the end."""

    def _backlog(self, distribution: int) -> _Backlog:
        return self._backlogs.setdefault(distribution, _Backlog())

    # Receipts.

    def check(self, member: int, item: Item) -> None:
        """RemoteError unless `item` can be the next one in the stream of `member`; to be called before `take`."""
        latest, shown = self._sending[member], self._shown[member]
        is_later = item.distribution > latest
        if item.weights is not None:
            is_possible = member == self._bookkeeper and item.distribution == latest + 1
        else:
            is_possible = item.distribution == latest or (is_later and member != self._bookkeeper)
        last = 0 if is_later else shown
        if item.weights is None:
            is_next = item.number == last + 1 or (self._is_brokered and last < item.number <= MAX_NUMBER)
            is_possible = is_possible and is_next and 0 <= item.count <= MAX_COUNT
        if item.final:
            is_possible = is_possible and is_later and self._is_brokered and shown < item.final <= MAX_NUMBER
        if not is_possible:
            where = f"after {shown} under {latest}"
            raise RemoteError(DropReason.MALFORMED, f"number {item.number} under {item.distribution} {where}")

    def take(self, member: int, item: Item) -> None:
        """Take the next item of that member's stream, or of our own."""
        distribution = item.distribution
        if item.weights is not None:
            self.published = self._weights[distribution] = item.weights
        if distribution > self._sending[member]:
            self._backlog(self._sending[member]).lane(member).final = item.final
            self._sending[member] = distribution
            self._shown[member] = 0
            self._unpassed.discard(member)
        if not item.number:
            return
        backlog = self._backlog(distribution)
        lane = backlog.lane(member)
        lane.shown = self._shown[member] = item.number + item.count - 1
        if item.message is not None:
            lane.messages.append((item.number, item.message))
            self.buffered += 1
        elif item.count:
            lane.fill(_Fill(item.number, lane.shown, None, 0))
        if item.slot is not None:
            donor, number = item.slot
            backlog.lane(donor).fill(_Fill(number, number, member, item.number))
        for donor, first, size in item.fills:
            backlog.lane(donor).fill(_Fill(first, first + size - 1, None, 0))

    def has_spoken(self, member: int, distribution: int) -> bool:
        """Whether the stream of `member` shows that distribution, or a later one."""
        return self._sending[member] >= distribution

    def shown(self, member: int) -> int:
        """The last number of `member` under the distribution of its latest item."""
        return self._shown[member]

    # Deliveries.

    def advance(self) -> list[Message]:
        """The messages that can be delivered now, in order."""
        out: list[Message] = []
        while True:
            lane = self._now.run(out)
            if not (self._finish(out) if lane is None else self._settle(lane)):
                break
        self.buffered -= len(out)
        return out

    def close(self) -> list[Message]:
        """All messages that are left, in order, when the streams end here."""
        self._is_closed = True
        self._unpassed.clear()
        return self.advance()

    def lost(self) -> list[tuple[int, int]]:
        """After `close`: sender and number of the messages under distributions whose weights are not in the cut. Only
        excluded members had adopted these, and only they know the order of the messages under them.
        """
        later = (backlog for distribution, backlog in sorted(self._backlogs.items()) if distribution != self.current)
        return [place for backlog in later for place in backlog.places()]

    def _settle(self, lane: _Lane) -> bool:
        """Settle a draw whose number is not known to be filled. False: the order waits."""
        if lane.member in self._unpassed:
            return False
        if lane.next <= max(lane.shown, lane.final):
            if self._unpassed:
                return False
            # Given away, and no member can fill it any more. The draw is used up, as by a dummy: an excluded member may
            # have received one. Only an enemy gives away more numbers than MAX_COUNT: no draw is used for these.
            following = lane.following
            if following is not None:
                lane.next = max(lane.next, following - MAX_COUNT)
                self._now.use(lane)
                return True
        self._now.draws.leave()
        return True

    def _finish(self, out: list[Message]) -> bool:
        """No member is left in the draws: put the next distribution in force. False: the order waits."""
        while self._weightless and self._weightless[0] not in self._unpassed:
            out.extend(message for _, message in self._now.lane(self._weightless.popleft()).messages)
        following = self.current + 1
        # The bookkeeper publishes each number and has passed: these weights are known. At a close they may be lost.
        if self._unpassed or following not in self._weights:
            return False
        del self._backlogs[self.current]
        self._begin(following, self._weights.pop(following))
        return True

    # Missing numbers, as of the last `advance`.

    def awaits(self, member: int) -> bool:
        """Whether the order waits for an item of `member`: it is drawn, or all must pass and it has not."""
        lane = self._now.drawn
        is_drawn = lane is None or lane.member == member or lane.member not in self._unpassed or lane.next <= lane.shown
        return member in self._unpassed and is_drawn

    def draws_ahead(self, member: int, *, after: int, most: int) -> int:
        """The number of numbers of `member` beyond `after` that are drawn until all messages held under the
        distribution in force are ordered, if each missing number is filled with nothing. At most `most` missing numbers
        are examined. Messages that no draw can reach (of a member of weight 0) do not count.
        """
        walk = self._now.copy()
        goal = walk.reachable(self._weightless)
        out: list[Message] = []
        count = 0
        for _ in range(most):
            lane = walk.run(out) if len(out) < goal else None
            if lane is None or len(out) >= goal:
                break
            count += lane.member == member and lane.next > after
            if lane.member not in self._unpassed and lane.next > max(lane.shown, lane.final):
                walk.draws.leave()
            else:
                walk.use(lane)
        return count


class _Fill(NamedTuple):
    """Numbers that are filled with nothing, or one that is a slot: the message of `sender` under its own `number`."""

    first: int
    last: int
    sender: int | None
    number: int


@dataclass(slots=True)
class _Lane:
    """The numbers of one member under one distribution."""

    member: int
    next: int = 1
    """The first number that no draw has used."""
    shown: int = 0
    """The last number that the member's stream has shown ..."""
    final: int = 0
    """... and the last one that it gave away after that, if it has passed and said so."""
    messages: deque[tuple[int, Message]] = field(default_factory=deque)
    gone: deque[int] = field(default_factory=deque)
    """Numbers of messages that forced draws have taken."""
    fills: list[_Fill] = field(default_factory=list)
    """A heap of the fills by other members and dummies."""

    def fill(self, fill: _Fill) -> None:
        heapq.heappush(self.fills, fill)

    @property
    def filled(self) -> _Fill | None:
        """The fill of the next number, other than by an own message; None: there is none."""
        while self.fills and self.fills[0].last < self.next:
            heapq.heappop(self.fills)
        return self.fills[0] if self.fills and self.fills[0].first <= self.next else None

    @property
    def following(self) -> int | None:
        """The first number known to be filled, when the next one is not; None: there is none."""
        known = [self.messages[0][0]] if self.messages else []
        known += [self.gone[0]] if self.gone else []
        known += [self.fills[0].first] if self.fills else []
        return min(known, default=None)

    def copy(self) -> _Lane:
        return replace(self, messages=self.messages.copy(), gone=self.gone.copy(), fills=self.fills.copy())


class _Backlog:
    """All items under one distribution that have not been ordered yet; once it is in force, its draws."""

    __slots__ = ("_lanes", "draws")

    draws: RandomDraws | TimedDraws

    def __init__(self) -> None:
        self._lanes: dict[int, _Lane] = {}

    def lane(self, member: int) -> _Lane:
        lane = self._lanes.get(member)
        if lane is None:
            lane = self._lanes[member] = _Lane(member)
        return lane

    def places(self) -> list[tuple[int, int]]:
        """Sender and number of the messages that no draw has taken."""
        return [(member, number) for member, lane in sorted(self._lanes.items()) for number, _ in lane.messages]

    @property
    def drawn(self) -> _Lane | None:
        """The lane of the drawn source; None: no member is left."""
        return None if self.draws.first is None else self.lane(self.draws.first)

    def run(self, out: list[Message]) -> _Lane | None:
        """Draw up to a source whose number is not known to be filled, and return its lane; None: no member is left."""
        while (lane := self.drawn) is not None:
            if lane.messages and lane.messages[0][0] == lane.next:
                out.append(lane.messages.popleft()[1])
            elif lane.gone and lane.gone[0] == lane.next:
                lane.gone.popleft()
                lane.next += 1
                continue
            else:
                fill = lane.filled
                if fill is None:
                    return lane
                if fill.sender is not None:
                    self._force(fill.sender, fill.number, out)
            self.use(lane)
        return None

    def _force(self, sender: int, number: int, out: list[Message]) -> None:
        """Rule CBMG: the sender's oldest message up to `number`, if it has not gone."""
        lane = self.lane(sender)
        if lane.messages and lane.messages[0][0] <= number:
            gone, message = lane.messages.popleft()
            lane.gone.append(gone)
            out.append(message)

    def use(self, lane: _Lane) -> None:
        """The draw uses the next number of `lane`, which belongs to the drawn source."""
        lane.next += 1
        self.draws.use()

    def reachable(self, weightless: Container[int]) -> int:
        """The number of messages here that draws can reach. `weightless`: the members that are never drawn."""
        drawn = [lane for member, lane in self._lanes.items() if member not in weightless]
        slots = [fill for lane in drawn for fill in lane.fills if fill.sender is not None and fill.last >= lane.next]
        return sum(len(lane.messages) for lane in drawn) + sum(slot.sender in weightless for slot in slots)

    def copy(self) -> _Backlog:
        other = _Backlog()
        other._lanes = {member: lane.copy() for member, lane in self._lanes.items()}
        other.draws = self.draws.copy()
        return other


# Draws.


class Draws(enum.StrEnum):
    """The choice of the next source, the same at every member and on every platform.

    All have `first` (the drawn source; None when no member is left), `use` (the next draw), `leave` (the drawn source
    is left out from now on, and the draw is repeated) and `copy`.
    """

    RANDOM = "random"
    BOUNDED = "bounded"
    SMOOTH = "smooth"

    def under(self, distribution: int, weights: Weights, lag: int) -> RandomDraws | TimedDraws:
        """`lag`: see BoundedDraws; the others have none."""
        if self is Draws.RANDOM:
            return RandomDraws(distribution, weights)
        return SmoothDraws(weights) if self is Draws.SMOOTH else BoundedDraws(weights, distribution, lag)


class RandomDraws:
    """As in the paper: the generator's number in [0, 1) is mapped through the distribution to a source. A draw of a
    member that has left is repeated. The map stays: members that know of different ends of a stream draw the other
    members in the same order. Weights below 1/4096 of the sum are raised to that, so that a repeated draw ends soon.

    The generator is SplitMix64 (Steele, Lea, Flood 2014), seeded with the distribution's number.
    """

    __slots__ = ("_bounds", "_members", "_state", "_weights", "first")

    first: int | None

    def __init__(self, distribution: int, weights: Weights) -> None:
        self._state = distribution
        least = sum(weights.values()) >> 12
        self._weights = {member: max(weight, least) for member, weight in weights.items() if weight}
        """The weights of the members that are left."""
        self._members = list(self._weights)
        self._bounds = list(accumulate(self._weights.values()))
        self.use()

    def use(self) -> None:
        self.first = None
        while self._weights and self.first not in self._weights:
            self._state = (self._state + _GAMMA) & _MASK
            drawn = _mixed(self._state) * self._bounds[-1] >> 64
            self.first = self._members[bisect_right(self._bounds, drawn)]

    def leave(self) -> None:
        assert self.first is not None, "nobody is left"
        del self._weights[self.first]
        self.use()

    def copy(self) -> RandomDraws:
        other = copy.copy(self)
        other._weights = self._weights.copy()
        return other


class TimedDraws(ABC):
    """Not in the paper: each turn of a member has a place on the member's own axis, its `_position`. The place over the
    member's weight is the turn's time, and the earliest turn is next. `use` and `leave` cost O(log n). The times stay
    when other members leave.
    """

    __slots__ = ("_heap", "_size")

    def __init__(self, weights: Weights) -> None:
        self._size = len(weights)
        self._heap = [
            (self._position(place, 0) // weight, member, place, 0, weight)
            for place, (member, weight) in enumerate(weights.items())
            if weight
        ]
        heapq.heapify(self._heap)

    @abstractmethod
    def _position(self, place: int, turn: int) -> int:
        """The position of turn 0, 1, 2, … of the member at this place of the weights, in turns * 2**64: any two weights
        of 32 bits give different times. Called once per turn, in rising order."""

    @property
    def first(self) -> int | None:
        return self._heap[0][1] if self._heap else None

    def use(self) -> None:
        _, member, place, turn, weight = self._heap[0]
        turn += 1
        heapq.heapreplace(self._heap, (self._position(place, turn) // weight, member, place, turn, weight))

    def leave(self) -> None:
        heapq.heappop(self._heap)

    def copy(self) -> Self:
        other = copy.copy(self)
        other._heap = self._heap.copy()
        return other


class SmoothDraws(TimedDraws):
    """Deterministic draws: turn k of the member at place i of n is at k + i/n. Every member is within one turn of its
    share at any time; equal weights make a round.
    """

    __slots__ = ()

    def _position(self, place: int, turn: int) -> int:
        return ((turn * self._size + place) << 64) // self._size


class BoundedDraws(TimedDraws):
    """A lottery that is drawn anew for every `lag` turns of a member: they are anywhere among the places of these
    turns. So every member is within `lag` turns of its share at any time; the paper's lottery has no such bound.
    """

    __slots__ = ("_distribution", "_lag", "_places")

    def __init__(self, weights: Weights, distribution: int, lag: int) -> None:
        self._distribution = distribution
        self._lag = lag
        self._places: dict[int, list[int]] = {}
        """By place of the member: the positions of the turns of its block that are not drawn yet, latest first, in
        1/2**64 of the block."""
        super().__init__(weights)

    def _position(self, place: int, turn: int) -> int:
        block, inside = divmod(turn, self._lag)
        if not inside:
            seed = _mixed(_mixed(self._distribution) ^ place)
            self._places[place] = sorted(
                (_mixed(seed + (turn + later) * _GAMMA & _MASK) for later in range(self._lag)), reverse=True
            )
        return self._lag * ((block << 64) + self._places[place].pop())

    def copy(self) -> Self:
        other = super().copy()
        other._places = {place: left.copy() for place, left in self._places.items()}
        return other


_MASK = 2**64 - 1
_GAMMA = 0x9E37_79B9_7F4A_7C15


def _mixed(state: int) -> int:
    """The output of SplitMix64 in this state: 64 bits."""
    mixed = (state ^ state >> 30) * 0xBF58_476D_1CE4_E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D0_49BB_1331_11EB & _MASK
    return mixed ^ mixed >> 31
