"""Causal order by vectors: the CBCAST of Isis, a core of one view over reliable FIFO streams.

Paper: Birman, Schiper and Stephenson, Lightweight Causal and Atomic Group Multicast, ACM TOCS 9(3), 1991, section 5.1.
Paper 000 compares its protocol with it: "CBCAST itself cannot see a loss". Its rules and their methods:
  1. A sender counts its messages, and puts on each the vector of its deliveries of each member.             on_submit
  2. A receiver delays a message of j until it has delivered the message of j before that one, and all that
     the vector names of other members.                                                           _on_data, _obstacle
  3. When it delivers a message of j it counts on j's entry; that may end the delay of others.        _deliver, _release

The vector has one word for each member of the view, ascending: the number of its messages, all delivered. The sender's
own entry is the message before this one. A sender delivers its own message as it sends it.

At the end of the view (`close`) a member takes in the rest of the cut by the same rules. A message that still waits
lacks a cause that is not in the cut, or that lacks one itself. Its sender is excluded: the message is dropped, with all
that follow in its stream. The core has no memory, and hands nothing back: its own messages are all delivered.

Invariants. A vector names deliveries, not receipts: else a message would wait for messages that are no causes of it. A
message waits if and only if an entry of its vector exceeds ours; so nothing waits when all messages have come. The
refusal of a message depends on its stream alone (but for `waiting`), so all members refuse the same.

Cost, argument and deviations: docs/protocols/cbcast.md.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import le

from node.core import Closing, MakeCore, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report
from node.errors import DropReason
from node.parameters import require_range
from node.protocols.base import OrderCore
from node.reliable.parameters import ReliableParameters
from node.wire import Kind, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class CbcastParameters:
    """Parameters of CBCAST and of the reliable layer below it."""

    waiting: int = 65536
    """Most messages of one member that may wait for causes; beyond it the receiver takes no more of that member in the
    view. It is too low if an honest sender reaches it."""
    reliable: ReliableParameters = field(default_factory=ReliableParameters)

    def __post_init__(self) -> None:
        require_range("waiting", self.waiting, 1, 1 << 24)


class CbcastReport(enum.IntEnum):
    """Codes of our reports."""

    ERASED = 0x41
    """At the end of a view: message `value` of `member` lacks a cause that no survivor has; it and all later ones are
    dropped."""


class CbcastCore(OrderCore):
    """See the module's docstring. Members are named by their index in the vectors."""

    ordered_by = "vectors"

    def __init__(self, *, membership: Membership, parameters: CbcastParameters) -> None:
        super().__init__(membership)
        self._handlers = {Kind.CBCAST_DATA: self._on_data}
        self._most_waiting = parameters.waiting
        self._index = {member: index for index, member in enumerate(membership.members)}
        self._own = self._index[self._me]
        self._delivered = [0] * len(self._index)
        """The vector: by member, the number of its messages that we have delivered."""
        self._waiting: list[deque[Message]] = [deque() for _ in self._index]
        """By member, its messages that wait for a cause, in the order of their numbers."""
        self._blocked: list[list[int]] = [[] for _ in self._index]
        """By entry of the vector, the members whose first waiting message waits for it."""

    @property
    def can_submit(self) -> bool:
        return True

    @property
    def is_idle(self) -> bool:
        return self.buffered == 0

    @property
    def buffered(self) -> int:
        """Messages that wait for a cause."""
        return sum(map(len, self._waiting))

    def _submit(self, submission: Submission, now_ns: int, out: list[Effect]) -> None:
        number = self._delivered[self._own] + 1
        message = self._us.carrying(submission, Kind.CBCAST_DATA, seq=number, words=tuple(self._delivered))
        out.append(Multicast(message=message))
        self._deliver(message, self._own, out)
        self._release(self._own, out)

    def close(self, rest: Mapping[int, Sequence[Message]], survivors: frozenset[int], now_ns: int) -> Closing:
        """Take in the rest by the same rules; messages that still wait are dropped. The result does not depend on the
        survivors."""
        out: list[Effect] = []
        for message in self._acceptable(rest):
            self._on_data(message, now_ns, out)
        for member, waiting in zip(self._us.members, self._waiting, strict=True):
            if waiting:
                out.append(Report(code=CbcastReport.ERASED, member=member, value=waiting[0].seq))
        return Closing(effects=tuple(out))

    def _refusal(self, message: Message) -> DropReason | None:
        index = self._index[message.origin]
        received = self._delivered[index] + len(self._waiting[index])
        if message.seq != received + 1:
            return DropReason.DUPLICATE if message.seq <= received else DropReason.UNEXPECTED
        if len(message.words) != len(self._index) or message.words[index] != received:
            return DropReason.MALFORMED
        return DropReason.OUT_OF_WINDOW if len(self._waiting[index]) >= self._most_waiting else None

    def _on_data(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        index = self._index[message.origin]
        # The frequent case: all causes are delivered.
        if all(map(le, message.words, self._delivered)):
            self._deliver(message, index, out)
            self._release(index, out)
            return
        self._waiting[index].append(message)
        if len(self._waiting[index]) == 1:
            self._blocked[self._obstacle(message)].append(index)

    def _deliver(self, message: Message, index: int, out: list[Effect]) -> None:
        self._delivered[index] += 1
        out.append(Deliver.of(message))

    def _obstacle(self, message: Message) -> int:
        """The first entry of the vector that this message waits for; -1: none."""
        pairs = zip(message.words, self._delivered, strict=True)
        return next((index for index, (cause, delivered) in enumerate(pairs) if cause > delivered), -1)

    def _release(self, index: int, out: list[Effect]) -> None:
        """The entry of this member has moved: deliver messages that waited for it, and those that waited for these."""
        moved = deque([index])
        while moved:
            entry = moved.popleft()
            released, self._blocked[entry] = self._blocked[entry], []
            for member in released:
                waiting = self._waiting[member]
                while waiting and (obstacle := self._obstacle(waiting[0])) < 0:
                    self._deliver(waiting.popleft(), member, out)
                    moved.append(member)
                if waiting:
                    self._blocked[obstacle].append(member)


def begin(parameters: CbcastParameters) -> MakeCore:
    """The function that makes the core of each view."""
    return lambda us, _, __: CbcastCore(membership=us, parameters=parameters)
