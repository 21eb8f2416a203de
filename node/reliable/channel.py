"""Reliable unicast channels in one view: numbers, acknowledgements, retransmission on time-out.

`Channels` sends, acknowledges and retransmits. The core decides when a unicast is delivered, because a channel and the
multicasts of its sender are one FIFO.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from node.core import Membership, Submission
from node.effects import Effect, Report, Send, Timer
from node.errors import DropReason
from node.reliable.codec import CONTROL, MAX_FENCES, VIEW_SHIFT, entry
from node.reliable.parameters import ReliableParameters
from node.reliable.stream import Receiver
from node.transport import RoundTrip, Timers, retransmission
from node.wire import Kind, Message

RETRY = "retry"
ACKNOWLEDGE = "acknowledge"


@dataclass(slots=True)
class _Sent:
    """A unicast under way."""

    message: Message
    first_ns: int
    sent_ns: int
    tries: int = 1

    def again(self, now_ns: int) -> Message:
        """The message for one more transmission, which is counted."""
        self.tries += 1
        self.sent_ns = now_ns
        return retransmission(self.message)


@dataclass(slots=True)
class _Sender:
    """Unacknowledged unicasts to one member: transmitted ones (`under_way`, without a gap), and ones that wait for the
    window."""

    round_trip: RoundTrip
    last: int = 0
    acknowledged: int = 0
    under_way: dict[int, _Sent] = field(default_factory=dict)
    queue: deque[Message] = field(default_factory=deque)

    def due_ns(self, sent: _Sent) -> int:
        return sent.sent_ns + self.round_trip.timeout_ns(sent.tries)


class Channels:
    """All channels of one member, in both directions."""

    def __init__(
        self, us: Membership, view: int, parameters: ReliableParameters, trips: Mapping[int, RoundTrip], timers: Timers
    ) -> None:
        self._us = us
        self._view_word = view << VIEW_SHIFT
        self._parameters = parameters
        self._timers = timers
        self._senders = {peer: _Sender(trip) for peer, trip in trips.items()}
        self.receivers = {peer: Receiver(window=parameters.window) for peer in us.peers}
        self._lacking: set[int] = set()  # targets that have not acknowledged all
        self._ack_due: set[int] = set()  # sources that await an acknowledgement

    @property
    def is_settled(self) -> bool:
        """Whether nothing is unacknowledged or undelivered, and no acknowledgement is due."""
        return not self._lacking and not self._ack_due and not any(self.waiting())

    @property
    def can_fence(self) -> bool:
        """Whether the fences of a multicast fit its words."""
        return len(self._lacking) <= MAX_FENCES

    @property
    def buffered(self) -> int:
        """Messages in all buffers."""
        unacknowledged = sum(len(one.under_way) + len(one.queue) for one in self._senders.values())
        return unacknowledged + sum(len(one.buffered) for one in self.receivers.values())

    def lacking(self) -> Iterator[tuple[int, int]]:
        """(target, its cumulative acknowledgement) of every target that has not acknowledged all."""
        return ((target, self._senders[target].acknowledged) for target in self._lacking)

    def waiting(self) -> Iterator[tuple[int, int]]:
        """(source, received plus delivered unicasts) of every source of which a unicast waits for something earlier."""
        return ((source, one.position + one.delivered) for source, one in self.receivers.items() if one.buffered)

    def fences(self) -> tuple[int, ...]:
        """One word for each target that has not acknowledged all."""
        return tuple(entry(target, self._senders[target].last) for target in sorted(self._lacking))

    def clear(self) -> None:
        """The view ends: all unicasts are void."""
        self._senders.clear()
        self.receivers.clear()
        self._lacking.clear()

    def send(self, submission: Submission, target: int, after: int, now_ns: int, out: list[Effect]) -> None:
        """Send to `target`, not to be delivered before our multicast number `after`."""
        sender = self._senders[target]
        sender.last += 1
        words = (self._view_word | after, self._acknowledgement(target))
        sender.queue.append(self._us.carrying(submission, Kind.RELIABLE_UNICAST, seq=sender.last, words=words))
        self._lacking.add(target)
        self._pump(target, now_ns, out)

    def receive(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        """Take in a unicast for us, its words checked, and the acknowledgement in it."""
        source = message.origin
        self.acknowledge(source, message.words[1], now_ns, out)
        receiver = self.receivers[source]
        is_gap_before = message.seq > receiver.position + 1
        reason = receiver.accept(message)
        if reason is not None:
            out.append(Report.refusal(reason, message, source))
        if reason is DropReason.OUT_OF_WINDOW:
            return
        self._ack_due.add(source)
        wait_ns, timer = self._parameters.acknowledge_ns, Timer(ACKNOWLEDGE, source)
        if is_gap_before or reason is DropReason.DUPLICATE:  # something was lost: tell the sender at once
            wait_ns = 0
            self._timers.disarm(timer, out)
        self._timers.arm(timer, now_ns + wait_ns, out)

    def acknowledge(self, member: int, position: int, now_ns: int, out: list[Effect]) -> None:
        """`member` has received all our unicasts up to `position`."""
        sender = self._senders[member]
        sent = sender.under_way.get(position)  # None: acknowledged before, or never sent
        if sent is not None:
            if sent.tries == 1:
                sender.round_trip.sample(now_ns - sent.sent_ns)
            else:
                sender.round_trip.ambiguous(now_ns - sent.first_ns)
            for number in range(sender.acknowledged + 1, position + 1):
                del sender.under_way[number]
            sender.acknowledged = position
            self._timers.disarm(Timer(RETRY, member), out)
            self._pump(member, now_ns, out)
            if not sender.under_way:
                self._lacking.discard(member)
        elif position == sender.acknowledged and len(sender.under_way) > 1:
            # A repeated acknowledgement while later unicasts are under way: the next unicast is lost if it was sent
            # once.
            following = sender.under_way[position + 1]
            if following.tries == 1:
                out.append(Send(target=member, message=following.again(now_ns)))

    def on_retry(self, target: int, now_ns: int, out: list[Effect]) -> None:
        """Retransmit unicasts that were not acknowledged in time."""
        sender = self._senders[target]
        some = list(sender.under_way.values())[: self._parameters.burst]
        late = [sent for sent in some if sender.due_ns(sent) <= now_ns]
        out.extend(Send(target=target, message=sent.again(now_ns)) for sent in late)
        if some:
            self._timers.arm(Timer(RETRY, target), min(map(sender.due_ns, some)), out)

    def on_acknowledge(self, source: int, out: list[Effect]) -> None:
        """No message carried the acknowledgement: send it by itself."""
        if source in self._ack_due:
            seq, words = self._acknowledgement(source), (self._view_word,)
            message = self._us.message(Kind.RELIABLE_ACKNOWLEDGEMENT, seq=seq, flags=CONTROL, words=words)
            out.append(Send(target=source, message=message))

    def _acknowledgement(self, source: int) -> int:
        """Our cumulative acknowledgement to `source`; the message that carries it replaces the acknowledgement due."""
        self._ack_due.discard(source)
        return self.receivers[source].position

    def _pump(self, target: int, now_ns: int, out: list[Effect]) -> None:
        sender = self._senders[target]
        while sender.queue and len(sender.under_way) < self._parameters.window:
            message = sender.queue.popleft()
            sender.under_way[message.seq] = _Sent(message, now_ns, now_ns)
            out.append(Send(target=target, message=message))
        if sender.under_way:
            self._timers.arm(Timer(RETRY, target), now_ns + sender.round_trip.timeout_ns(), out)
