"""What was sent under one stamp, and the turns through it.

A part of `atop_order.py`, which says what the rules are, and decides what is not known here: what becomes of a turn
whose number nobody is known to have filled.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Container
from typing import NamedTuple

from node.protocols.atop_draw import Turns
from node.wire import Message

MAX_COUNT = 0xFFFF
"""Of numbers that one item fills or passes over: each costs a turn, and an enemy may write what he likes."""
NOBODY = -1


class Fill(NamedTuple):
    """Numbers of a donor that somebody else has filled: in a heap, the lowest first."""

    first: int
    last: int
    place: int
    """Of whom a message is to be delivered, or NOBODY."""
    number: int
    """The number of that message."""


class Lane:
    """The numbers of one member under one stamp."""

    __slots__ = ("dummies", "fills", "gone", "messages", "next", "place", "shown")

    def __init__(self, place: int) -> None:
        self.place = place
        self.next = 1
        self.shown = 0
        """The last number that its stream has shown."""
        self.messages: deque[tuple[int, Message]] = deque()
        self.dummies: deque[tuple[int, int]] = deque()
        """(first, last)."""
        self.gone: deque[int] = deque()
        """Numbers of messages that have been delivered in somebody else's turn."""
        self.fills: list[Fill] = []

    def fill(self, fill: Fill) -> None:
        heapq.heappush(self.fills, fill)

    def filled(self) -> Fill | None:
        """What another has filled the next number with; it counts as used."""
        fills, number = self.fills, self.next
        while fills and fills[0].last < number:
            heapq.heappop(fills)
        if not fills or fills[0].first > number:
            return None
        return heapq.heappop(fills) if fills[0].last == number else fills[0]

    @property
    def goes_on(self) -> bool:
        """Whether a later number is known to be filled. What others say of numbers far beyond any other is not true."""
        if self.messages or self.dummies or self.gone:
            return True
        return bool(self.fills) and self.fills[0].first <= self.next + MAX_COUNT

    def copy(self) -> Lane:
        other = Lane(self.place)
        other.next, other.shown = self.next, self.shown
        other.messages = self.messages.copy()
        other.dummies = self.dummies.copy()
        other.gone = self.gone.copy()
        other.fills = self.fills.copy()
        return other


class Book:
    """All that was sent under one stamp and has not been ordered yet."""

    __slots__ = ("lanes", "turn", "turns")

    turns: Turns

    def __init__(self) -> None:
        self.lanes: dict[int, Lane] = {}
        self.turn: Lane | None = None
        """Whose turn it is, drawn already."""

    def lane(self, place: int) -> Lane:
        lane = self.lanes.get(place)
        if lane is None:
            lane = self.lanes[place] = Lane(place)
        return lane

    def run(self, out: list[Message]) -> Lane | None:
        """Turn by turn, up to one whose number nobody is known to have filled; None: no turn is left."""
        turns = self.turns
        while True:
            lane = self.turn
            if lane is None:
                if turns.is_over:
                    return None
                lane = self.turn = self.lane(turns.first)
            number = lane.next
            if lane.messages and lane.messages[0][0] == number:
                out.append(lane.messages.popleft()[1])
            elif lane.dummies and lane.dummies[0][0] <= number:
                if lane.dummies[0][1] == number:
                    lane.dummies.popleft()
            elif lane.gone and lane.gone[0] == number:
                # Same turn, next number.
                lane.gone.popleft()
                lane.next = number + 1
                continue
            else:
                fill = lane.filled()
                if fill is None:
                    return lane
                if fill.place != NOBODY:
                    self._forced(fill, out)
            lane.next = number + 1
            turns.use()
            self.turn = None

    def _forced(self, fill: Fill, out: list[Message]) -> None:
        """The sender's next message up to the one with the slot; that one may have gone in a turn of its own."""
        lane = self.lane(fill.place)
        if lane.messages and lane.messages[0][0] <= fill.number:
            number, message = lane.messages.popleft()
            lane.gone.append(number)
            out.append(message)

    def exhausted(self) -> None:
        """Who has this turn has none any more."""
        self.turns.leave()
        self.turn = None

    def pass_over(self, lane: Lane) -> None:
        """Its turn, with a number that is filled with nothing."""
        lane.next += 1
        self.turns.use()
        self.turn = None

    def copy(self) -> Book:
        other = Book()
        other.lanes = {place: lane.copy() for place, lane in self.lanes.items()}
        other.turn = None if self.turn is None else other.lanes[self.turn.place]
        other.turns = self.turns.copy()
        return other

    def reachable(self, weightless: Container[int]) -> int:
        """How many of the messages here turns can bring. `weightless`: who has none."""
        drawn = [lane for place, lane in self.lanes.items() if place not in weightless]
        brokered = sum(fill.place in weightless for lane in drawn for fill in lane.fills)
        return sum(len(lane.messages) for lane in drawn) + brokered
