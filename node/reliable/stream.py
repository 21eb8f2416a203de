"""Both ends of one member's multicast stream in one view, as values without timers.

    1 ............. floor ............. delivered ..... position ..... known
    stable: all have it |  buffered, may be asked for      |  gaps, and buffered messages beyond them

`floor` is the stability watermark, `position` the cumulative acknowledgement: `floor` <= `delivered` <= `position` <=
`known`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from node.effects import Multicast, Send
from node.errors import DropReason
from node.transport import Requests, Retransmissions
from node.wire import Message


class Stream:
    """The state of one numbered sequence at either end."""

    __slots__ = ("buffered", "delivered", "floor", "position", "stable")

    def __init__(self) -> None:
        self.position = 0
        self.delivered = 0
        self.stable = 0  # the origin knows that all members have received all up to here ...
        self.floor = 0  # ... and up to here the messages were discarded
        self.buffered: dict[int, Message] = {}

    def release(self) -> None:
        """Discard messages that are stable and delivered."""
        floor = min(self.stable, self.delivered)
        for number in range(self.floor + 1, floor + 1):
            del self.buffered[number]
        self.floor = max(self.floor, floor)


class OutgoingStream(Stream):
    """Our multicasts that not every receiver has acknowledged. `delivered`: the last that was transmitted, and so
    delivered to the core above; less than `position`, the last one, only in a frozen view."""

    __slots__ = ("_acknowledged", "_retransmissions", "announced")

    def __init__(self, receivers: Iterable[int]) -> None:
        super().__init__()
        self.announced = 0  # the highest watermark that we have sent to all receivers
        self._acknowledged = dict.fromkeys(receivers, 0)
        self._retransmissions = Retransmissions()

    def append(self, message: Message, *, is_sent: bool) -> None:
        """Append our next message."""
        assert message.seq == self.position + 1
        self.position = message.seq
        self.buffered[message.seq] = message
        if is_sent:
            self.delivered = message.seq
            if not self._acknowledged:
                self._raise_floor()

    def acknowledge(self, member: int, number: int) -> None:
        """`member` has received all up to `number`. A number that is behind, or was never sent, changes nothing."""
        before = self._acknowledged[member]
        if before < number <= self.delivered:
            self._acknowledged[member] = number
            if before == self.floor:
                self._raise_floor()

    def lacking(self) -> Iterator[tuple[int, int]]:
        """(member, its cumulative acknowledgement) of every receiver that has not acknowledged all."""
        return ((member, number) for member, number in self._acknowledged.items() if number < self.position)

    def answer(self, number: int, asker: int, now_ns: int, hold_ns: int) -> Send | Multicast | None:
        """The answer to `asker`, which misses `number`; None: no answer now."""
        message = self.buffered.get(number)
        return self._retransmissions.answer(message, asker, now_ns, hold_ns) if message is not None else None

    def _raise_floor(self) -> None:
        self.stable = min(self._acknowledged.values(), default=self.delivered)
        for number in range(self.floor + 1, self.stable + 1):
            self._retransmissions.forget(number)
        self.release()


class Receiver(Stream):
    """The received part of one numbered sequence; at most a window above `position` and two above `delivered`."""

    __slots__ = ("_window", "known")

    def __init__(self, *, window: int) -> None:
        super().__init__()
        self._window = window
        self.known = 0  # the highest number that is known to exist

    def accept(self, message: Message, cut: int = 0) -> DropReason | None:
        """Take a message in, or return why not. Up to `cut` the window does not count."""
        seq = message.seq
        position = self.position
        buffered = self.buffered
        if seq <= position or seq in buffered:
            return DropReason.DUPLICATE
        if seq > cut and (seq > position + self._window or seq > self.delivered + 2 * self._window):
            return DropReason.OUT_OF_WINDOW
        buffered[seq] = message
        if seq > self.known:
            self.known = seq
        if seq == position + 1:
            while seq + 1 in buffered:
                seq += 1
            self.position = seq
        return None


class IncomingStream(Receiver):
    """The received multicasts of one member; they stay buffered until they are stable."""

    __slots__ = ("acknowledged", "cut", "holders", "requests")

    def __init__(self, *, window: int) -> None:
        super().__init__(window=window)
        self.acknowledged = 0  # the position that we last sent to the origin
        self.cut: int | None = None  # the last number to fetch; None: nothing is fetched
        self.holders: list[int] = []  # the members to ask for it, the next one first
        self.requests = Requests()

    @property
    def wanted(self) -> int:
        """The last number that we have a reason to ask for."""
        return self.known if self.cut is None else self.cut

    @property
    def is_settled(self) -> bool:
        """Whether everything known is received, delivered and stable."""
        return self.floor == self.known

    def learn(self, last: int) -> None:
        """Messages up to `last` exist. No honest origin is a window ahead of us."""
        if self.known < last <= self.position + self._window:
            self.known = last

    def learn_stable(self, number: int) -> None:
        """The origin says that all members have received all up to `number`: never more than we have received."""
        self.stable = max(self.stable, min(number, self.position))
        self.release()

    def fetch(self, cut: int, holders: list[int]) -> None:
        """From now on only the messages up to `cut` are asked for, at other members."""
        self.cut, self.holders, self.requests = cut, holders, Requests()

    def missing(self) -> Iterator[int]:
        """The wanted numbers that have not come, ascending; only those within a window of the position."""
        last = min(self.wanted, self.position + self._window)
        return (number for number in range(self.position + 1, last + 1) if number not in self.buffered)
