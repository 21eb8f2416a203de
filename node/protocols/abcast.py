"""Total order by agreed timestamps: Skeen's ABCAST, a core of one view over reliable FIFO streams.

Paper 003, section 4 (Isis used the algorithm first; the paper calls the two answers acknowledge and commit). Its rules,
in our translation, and their methods:
  1. "The receiver attaches a timestamp of its logical clock to the message and returns it."              _on_data
  2. "When the sender has them from all receivers, it sends the latest of these timestamps to all."  _finish_rounds
  3. "By the time of this timestamp the receivers decide the order of delivery."                          _deliver

    initiator             every other member
    DATA k -------------> clock + 1, and buffers the message there, tentatively
           <------------- PROPOSAL k: that timestamp
    F = the largest
    FINAL k: F ---------> clock at least F; moves the message there; it is final

The first message of the queue is delivered when it is final. The key of a message, tentative and final alike, is
(timestamp, initiator, number): a proposal grows to the final timestamp, so no message moves forward in the queue.

At the end of the view (`close`) a message is delivered, in the order of the keys, if it and its FINAL are in the cut.
No survivor has delivered a message without FINAL: it is handed back at its initiator, or delivered last
(`hands_back`), or dropped if the initiator is excluded.
Timestamps begin anew in each view: the core has no memory.

Invariants. Keys in the queue only grow. Final timestamps of one initiator rise with its numbers. The deliveries of any
two members are prefixes of one sequence. The refusal of a multicast depends on its stream alone, so all members refuse
the same.

Messages, argument and deviations: docs/protocols/abcast.md.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from node.clocks import MAX_TIMESTAMP
from node.core import Closing, MakeCore, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report, Send
from node.errors import DropReason
from node.parameters import require
from node.protocols.base import CONTROL, OrderCore
from node.protocols.prefix import Walk
from node.reliable.parameters import ReliableParameters
from node.trace import Notice
from node.wire import Kind, Message

MOST_OUTSTANDING = 512
"""Most messages of one member that are not final; more of them are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbcastParameters:
    """Parameters of the order and of the reliable layer below it."""

    outstanding: int = 64
    """Most own messages that are not delivered yet."""
    report_costs: bool = False
    """Report the cost of the order with every delivery (Notice.COST)."""
    reliable: ReliableParameters = field(default_factory=ReliableParameters)

    def __post_init__(self) -> None:
        require(
            1 <= self.outstanding <= MOST_OUTSTANDING,
            f"outstanding must lie between 1 and {MOST_OUTSTANDING} messages, not {self.outstanding}",
        )


class AbcastReport(enum.IntEnum):
    """Codes of our reports."""

    EXHAUSTED = 0xB1
    """The clock has reached its end: this member proposes no timestamp any more, and the order stops."""
    LOST = 0xB3
    """The view has ended without `member`: `value` messages of it are dropped, because they were not final or may
    depend on a message that no survivor has."""


class Key(NamedTuple):
    """A message's place in the order; it differs between any two messages."""

    timestamp: int
    initiator: int
    number: int


@dataclass(slots=True, kw_only=True)
class _Buffered:
    """A message in the queue, ours or another's."""

    message: Message
    key: Key
    received_ns: int
    is_final: bool = False


@dataclass(slots=True, kw_only=True)
class _Stream:
    """The received multicasts of one member."""

    last: int = 0
    """The number of its last DATA."""
    final: int = 0
    """The number up to which all its messages are final."""
    timestamp: int = 0
    """The last timestamp of its last FINAL."""
    open: dict[int, _Buffered] = field(default_factory=dict)
    """The messages that are not final, by number, ascending."""

    def refuses(self, message: Message) -> DropReason | None:
        """The reason to refuse this DATA or FINAL as the next one of the stream; None: it is the next one."""
        if message.seq <= (self.last if message.kind is Kind.ABCAST_DATA else self.final):
            return DropReason.DUPLICATE
        if message.kind is Kind.ABCAST_DATA:
            is_next = message.seq == self.last + 1 and len(message.words) == 1
            return None if is_next and len(self.open) < MOST_OUTSTANDING else DropReason.MALFORMED
        has_come = message.seq == self.final + 1 and self.final + len(message.words) <= self.last
        rises = all(earlier < later for earlier, later in pairwise((self.timestamp, *message.words, MAX_TIMESTAMP + 1)))
        return None if message.words and has_come and rises else DropReason.MALFORMED


@dataclass(slots=True, kw_only=True)
class _Round:
    """An own message that is not final: the largest proposal so far, and the members whose proposal is missing."""

    submission: Submission
    timestamp: int
    missing: set[int]


class AbcastCore(OrderCore):
    """See the module's docstring."""

    ordered_by = "timestamps"
    last_timestamp = MAX_TIMESTAMP

    def __init__(self, *, membership: Membership, parameters: AbcastParameters) -> None:
        super().__init__(membership)
        self._outstanding = parameters.outstanding
        self._reports_costs = parameters.report_costs
        self._clock = 0
        self._streams = {member: _Stream() for member in membership.members}
        self._own = self._streams[self._me]
        self._own_undelivered = 0
        self.hands_back = True
        """Whether `close` hands back own messages that are not final. Else it delivers those of all survivors, behind
        the others."""
        self._rounds: dict[int, _Round] = {}
        """Own messages that are not final, by number, ascending."""
        self._buffered: dict[tuple[int, int], _Buffered] = {}
        """All messages that are not delivered, by initiator and number."""
        self._queue: list[Key] = []
        """A heap of the keys of `_buffered`, and of earlier keys of the same messages."""
        self._handlers = {
            Kind.ABCAST_DATA: self._on_data,
            Kind.ABCAST_PROPOSAL: self._on_proposal,
            Kind.ABCAST_FINAL: self._on_final,
        }

    @property
    def can_submit(self) -> bool:
        return self._clock < MAX_TIMESTAMP and self._own_undelivered < self._outstanding

    @property
    def is_idle(self) -> bool:
        return not self._buffered

    @property
    def buffered(self) -> int:
        """Messages that are not delivered, ours included."""
        return len(self._buffered)

    @property
    def is_waiting(self) -> bool:
        """Whether an own message is not final."""
        return bool(self._rounds)

    def begin_at(self, time: int) -> None:
        """All timestamps are later than `time`. Called before all inputs."""
        self._clock = time

    @property
    def timestamp(self) -> int:
        """The largest timestamp that has been proposed or final here."""
        return self._clock

    def _submit(self, submission: Submission, now_ns: int, out: list[Effect]) -> None:
        message = self._us.carrying(submission, Kind.ABCAST_DATA, seq=self._own.last + 1, words=(self._prefix.word,))
        out.append(Multicast(message=message))
        self._clock = max(self._clock, submission.not_before)
        # Buffered now, not at its delivery by the layer below: flow control may hold it there while we propose for
        # others.
        timestamp = self._buffer(message, now_ns)
        self._own_undelivered += 1
        self._rounds[message.seq] = _Round(submission=submission, timestamp=timestamp, missing=set(self._us.peers))
        self._finish_rounds(now_ns, out)

    def close(self, rest: Mapping[int, Sequence[Message]], survivors: frozenset[int], now_ns: int) -> Closing:
        """Deliver in the order of the final timestamps; a message without one is handed back, or dropped with an
        excluded initiator."""
        out: list[Effect] = []
        for message in self._acceptable(rest):
            if message.kind is Kind.ABCAST_DATA:
                self._buffer(message, now_ns)
            elif message.kind is Kind.ABCAST_FINAL:
                self._make_final(self._streams[message.origin], message.words, out)
        walk = Walk(self._prefix, survivors)
        lost = {member: len(stream.open) for member, stream in self._streams.items() if member not in survivors}
        for buffered in sorted((one for one in self._buffered.values() if one.is_final), key=attrgetter("key")):
            message = buffered.message
            if walk.admits(message.origin, message.words[0]):
                walk.delivered(message.origin, message.seq)
                self._hand_over(buffered, now_ns, out)
            else:
                lost[message.origin] += 1
        out.extend(Report(code=AbcastReport.LOST, member=one, value=lost[one]) for one in sorted(lost) if lost[one])
        if not self.hands_back:
            # A survivor's own stream is in the cut as a whole: no member has delivered one of these.
            for buffered in [one for _, one in sorted(self._buffered.items()) if one.message.origin in survivors]:
                self._hand_over(buffered, now_ns, out)
            return Closing(effects=tuple(out))
        handed_back = tuple(round_.submission for round_ in self._rounds.values())
        return Closing(effects=tuple(out), handed_back=handed_back)

    def _refusal(self, message: Message) -> DropReason | None:
        if message.kind is not Kind.ABCAST_PROPOSAL:
            return self._streams[message.origin].refuses(message)
        if len(message.words) != 1 or not 0 < message.words[0] <= MAX_TIMESTAMP:
            return DropReason.MALFORMED
        round_ = self._rounds.get(message.seq)
        if round_ is None:
            return DropReason.DUPLICATE if 1 <= message.seq <= self._own.last else DropReason.UNEXPECTED
        return None if message.origin in round_.missing else DropReason.DUPLICATE

    # The rounds.

    def _on_data(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        timestamp = self._buffer(message, now_ns)
        if timestamp <= MAX_TIMESTAMP:
            proposal = self._us.message(Kind.ABCAST_PROPOSAL, seq=message.seq, flags=CONTROL, words=(timestamp,))
            out.append(Send(target=message.origin, message=proposal))

    def _on_proposal(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        round_ = self._rounds[message.seq]
        round_.missing.discard(message.origin)
        round_.timestamp = max(round_.timestamp, message.words[0])
        self._finish_rounds(now_ns, out)

    def _finish_rounds(self, now_ns: int, out: list[Effect]) -> None:
        """Multicast the final timestamps of the first messages that have every proposal, in order, in one FINAL."""
        timestamps = self._take_finished()
        if timestamps:
            number = self._own.final + 1
            out.append(
                Multicast(message=self._us.message(Kind.ABCAST_FINAL, seq=number, flags=CONTROL, words=timestamps))
            )
            self._make_final(self._own, timestamps, out)
            self._deliver(now_ns, out)

    def _take_finished(self) -> tuple[int, ...]:
        found: list[int] = []
        least = self._own.timestamp + 1
        for round_ in self._rounds.values():
            # A false member may propose less for a message than for the one before it.
            timestamp = max(round_.timestamp, least)
            if round_.missing or timestamp > MAX_TIMESTAMP:
                break
            found.append(timestamp)
            least = timestamp + 1
        for number in list(self._rounds)[: len(found)]:
            del self._rounds[number]
        return tuple(found)

    def _on_final(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._make_final(self._streams[message.origin], message.words, out)
        self._deliver(now_ns, out)

    def _make_final(self, stream: _Stream, timestamps: tuple[int, ...], out: list[Effect]) -> None:
        for stream.timestamp in timestamps:
            stream.final += 1
            buffered = stream.open.pop(stream.final)
            buffered.is_final = True
            buffered.key = buffered.key._replace(timestamp=stream.timestamp)
            heapq.heappush(self._queue, buffered.key)
        # Else the next proposal could be earlier than a message that is delivered by now.
        self._clock = max(self._clock, stream.timestamp)
        if self._clock >= MAX_TIMESTAMP:
            out.append(Report(code=AbcastReport.EXHAUSTED, member=self._me, value=MAX_TIMESTAMP))

    # The queue.

    def _buffer(self, message: Message, now_ns: int) -> int:
        """Buffer a message tentatively at the next timestamp. Returns the timestamp."""
        self._clock += 1
        key = Key(self._clock, message.origin, message.seq)
        buffered = _Buffered(message=message, key=key, received_ns=now_ns)
        stream = self._streams[message.origin]
        stream.last = message.seq
        stream.open[message.seq] = self._buffered[message.origin, message.seq] = buffered
        heapq.heappush(self._queue, key)
        return self._clock

    def _deliver(self, now_ns: int, out: list[Effect]) -> None:
        """Deliver from the head of the queue while the first message is final."""
        while self._queue:
            key = self._queue[0]
            buffered = self._buffered.get((key.initiator, key.number))
            if buffered is not None and buffered.key == key:
                if not buffered.is_final:
                    return
                self._prefix.delivered(key.initiator, key.number)
                self._hand_over(buffered, now_ns, out)
            heapq.heappop(self._queue)

    def _hand_over(self, buffered: _Buffered, now_ns: int, out: list[Effect]) -> None:
        message = buffered.message
        del self._buffered[message.origin, message.seq]
        self._own_undelivered -= message.origin == self._me
        out.append(Deliver.of(message))
        if self._reports_costs:
            out.append(Report(code=Notice.COST, member=message.origin, value=now_ns - buffered.received_ns))


def begin(parameters: AbcastParameters) -> MakeCore:
    """The function that makes the core of each view."""
    return lambda us, _, __: AbcastCore(membership=us, parameters=parameters)
