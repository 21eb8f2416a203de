"""Reliable unicast channels in one view: numbers, acknowledgements, retransmission on time-out.

`Channels` sends, acknowledges and retransmits. The core decides when a unicast is delivered, because a channel and the
multicasts of its sender are one FIFO.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from node.core import Membership, Submission
from node.effects import Effect, Report, Send, Timer
from node.errors import DropReason
from node.reliable.codec import CONTROL, MAX_FENCES, VIEW_SHIFT, acknowledged, entry
from node.reliable.parameters import ReliableParameters
from node.reliable.stream import Receiver
from node.transport import Outbox, RoundTrip, Sent, Timers, retransmission
from node.wire import Kind, Message

RETRY = "retry"
ACKNOWLEDGE = "acknowledge"


class Channels:
    """All channels of one member, in both directions."""

    def __init__(
        self,
        us: Membership,
        view: int,
        parameters: ReliableParameters,
        trips: Mapping[int, RoundTrip],
        timers: Timers,
        tell: Callable[[int, int], int] = lambda _member, _now_ns: 0,
    ) -> None:
        """`tell` (member, now): our position in the multicasts of this member, for a message to it."""
        self._us = us
        self._tell = tell
        self._view_word = view << VIEW_SHIFT
        self._parameters = parameters
        self._timers = timers
        self._outboxes = {peer: Outbox[Message](trip, parameters.window) for peer, trip in trips.items()}
        self.receivers = {peer: Receiver(window=parameters.window) for peer in us.peers}
        self._lacking: set[int] = set()  # targets that have not acknowledged all
        self._ack_due_ns: dict[int, int] = {}  # by source that awaits an acknowledgement: when it is sent by itself

    @property
    def is_settled(self) -> bool:
        """Whether nothing is unacknowledged or undelivered, and no acknowledgement is due."""
        return not self._lacking and not self._ack_due_ns and not any(self.waiting())

    @property
    def can_fence(self) -> bool:
        """Whether the fences of a multicast fit its words."""
        return len(self._lacking) <= MAX_FENCES

    @property
    def buffered(self) -> int:
        """Messages in all buffers."""
        return sum(map(len, self._outboxes.values())) + sum(len(one.buffered) for one in self.receivers.values())

    def lacking(self) -> Iterator[tuple[int, int]]:
        """(target, its cumulative acknowledgement) of every target that has not acknowledged all."""
        return ((target, self._outboxes[target].acknowledged) for target in self._lacking)

    def waiting(self) -> Iterator[tuple[int, int]]:
        """(source, received plus delivered unicasts) of every source of which a unicast waits for something earlier."""
        return ((source, one.position + one.delivered) for source, one in self.receivers.items() if one.buffered)

    def fences(self) -> tuple[int, ...]:
        """One word for each target that has not acknowledged all."""
        return tuple(entry(target, self._outboxes[target].last) for target in sorted(self._lacking))

    def clear(self) -> None:
        """The view ends: all unicasts are void."""
        self._outboxes.clear()
        self.receivers.clear()
        self._lacking.clear()

    def send(self, submission: Submission, target: int, after: int, now_ns: int, out: list[Effect]) -> None:
        """Send to `target`, not to be delivered before our multicast number `after`."""
        outbox = self._outboxes[target]
        words = (self._view_word | after, self._tell(target, now_ns) << 32 | self._acknowledgement(target))
        outbox.add(self._us.carrying(submission, Kind.RELIABLE_UNICAST, seq=outbox.last + 1, words=words))
        self._lacking.add(target)
        self._pump(target, now_ns, out)

    def receive(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        """Take in a unicast for us, its words checked, and the acknowledgement in it."""
        source = message.origin
        self.acknowledge(source, message.words[1] & 0xFFFF_FFFF, now_ns, out)
        receiver = self.receivers[source]
        is_gap_before = message.seq > receiver.position + 1
        reason = receiver.accept(message)
        if reason is not None:
            out.append(Report.refusal(reason, message, source))
        if reason is DropReason.OUT_OF_WINDOW:
            return
        wait_ns, timer = self._parameters.acknowledge_ns, Timer(ACKNOWLEDGE, source)
        if is_gap_before or reason is DropReason.DUPLICATE:  # something was lost: tell the sender at once
            wait_ns = 0
            self._timers.disarm(timer, out)
        self._ack_due_ns[source] = min(self._ack_due_ns.get(source, now_ns + wait_ns), now_ns + wait_ns)
        self._timers.arm(timer, self._ack_due_ns[source], out)

    def acknowledge(self, member: int, position: int, now_ns: int, out: list[Effect]) -> None:
        """`member` has received all our unicasts up to `position`."""
        outbox = self._outboxes[member]
        if outbox.acknowledge(position, now_ns):
            self._timers.disarm(Timer(RETRY, member), out)
            self._pump(member, now_ns, out)
            if not outbox:
                self._lacking.discard(member)
        elif (lost := outbox.lost(position, now_ns)) is not None:
            out.append(self._again(member, lost))

    def on_retry(self, target: int, now_ns: int, out: list[Effect]) -> None:
        """Retransmit unicasts that were not acknowledged in time."""
        outbox, burst = self._outboxes[target], self._parameters.burst
        out.extend(self._again(target, sent) for sent in outbox.late(now_ns, burst))
        if outbox:
            self._timers.arm(Timer(RETRY, target), outbox.next_late_ns(burst), out)

    def on_acknowledge(self, source: int, now_ns: int, out: list[Effect]) -> None:
        """Send the acknowledgement by itself if no message has carried it in time."""
        due_ns = self._ack_due_ns.get(source)
        if due_ns is None:
            return
        if due_ns > now_ns:
            self._timers.arm(Timer(ACKNOWLEDGE, source), due_ns, out)
            return
        seq, words = self._acknowledgement(source), (self._view_word | self._tell(source, now_ns),)
        message = self._us.message(Kind.RELIABLE_ACKNOWLEDGEMENT, seq=seq, flags=CONTROL, words=words)
        out.append(Send(target=source, message=message))

    def take_acknowledgements(self, most: int) -> tuple[int, ...]:
        """One word for each of at most `most` sources that await an acknowledgement: the multicast carries it."""
        sources = sorted(self._ack_due_ns)[:most]
        return tuple(acknowledged(source, self._acknowledgement(source)) for source in sources)

    def _acknowledgement(self, source: int) -> int:
        """Our cumulative acknowledgement to `source`; the message that carries it replaces the acknowledgement due."""
        self._ack_due_ns.pop(source, None)
        return self.receivers[source].position

    def _pump(self, target: int, now_ns: int, out: list[Effect]) -> None:
        outbox = self._outboxes[target]
        out.extend(Send(target=target, message=sent.item) for sent in outbox.start(now_ns))
        if outbox:
            self._timers.arm(Timer(RETRY, target), now_ns + outbox.round_trip.timeout_ns(), out)

    def _again(self, target: int, sent: Sent[Message]) -> Send:
        return Send(target=target, message=retransmission(sent.item))
