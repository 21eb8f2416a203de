"""Reliable channels from one member to another: numbers, acknowledgements, retransmission on time-out.

A channel belongs to one incarnation on either side; when one of them ends, so does the channel. `Channels` is the part
of the reliable core that sends, acknowledges and retransmits; when something is delivered is the core's to decide,
because a channel and the multicasts of its sender are one FIFO.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from node.core import Membership, Submission
from node.effects import Effect, Report, Send, Timer
from node.errors import DropReason
from node.protocols.roundtrip import RoundTrip, RoundTrips
from node.protocols.timers import Timers
from node.protocols.words import MAX_FENCES, pack
from node.wire import Flag, Kind, Message

RETRY = "retry"
ACKNOWLEDGE = "acknowledge"
RETRANSMISSION = Flag.RETRANSMISSION.value


def again(message: Message) -> Message:
    """The same message, marked as transmitted before."""
    return Message(
        kind=message.kind,
        origin=message.origin,
        incarnation=message.incarnation,
        seq=message.seq,
        flags=message.flags | RETRANSMISSION,
        inner=message.inner,
        words=message.words,
        payload=message.payload,
    )


class Sent:
    """A unicast under way."""

    __slots__ = ("first_ns", "message", "sent_ns", "tries")

    def __init__(self, message: Message, sent_ns: int) -> None:
        self.message = message
        self.first_ns = sent_ns
        self.sent_ns = sent_ns
        self.tries = 1


class OutgoingChannel:
    """What we have sent to one member and it has not acknowledged; beyond the window it waits here."""

    __slots__ = ("acked", "incarnation", "last", "queue", "round_trip", "unacked", "window")

    def __init__(self, *, incarnation: int, window: int, round_trip: RoundTrip) -> None:
        self.incarnation = incarnation
        """Of the target."""
        self.window = window
        self.round_trip = round_trip
        self.last = 0
        self.acked = 0
        self.unacked: dict[int, Sent] = {}
        self.queue: deque[Message] = deque()

    @property
    def is_settled(self) -> bool:
        return not self.unacked and not self.queue

    def send_next(self, now_ns: int) -> Message | None:
        """The first waiting message, if the window is open."""
        if not self.queue or len(self.unacked) >= self.window:
            return None
        message = self.queue.popleft()
        self.unacked[message.seq] = Sent(message, now_ns)
        return message

    def acknowledge(self, position: int, now_ns: int) -> bool:
        """All up to `position` have come; True when that is news. Nobody can have received what we have not sent."""
        if not self.acked < position or position not in self.unacked:
            return False
        sent = self.unacked[position]
        if sent.tries == 1:
            self.round_trip.sample(now_ns - sent.sent_ns)
        else:
            self.round_trip.ambiguous(now_ns - sent.first_ns)
        for number in range(self.acked + 1, position + 1):
            del self.unacked[number]
        self.acked = position
        return True

    def lost_before_others(self, position: int) -> Sent | None:
        """`position` was told again while later ones are under way: the one after it is lost, if it was sent once."""
        first = self.unacked.get(self.acked + 1)
        is_lost = position == self.acked and first is not None and first.tries == 1 and len(self.unacked) > 1
        return first if is_lost else None


class IncomingChannel:
    """What has come to us from one member, and whether we still have to acknowledge it."""

    __slots__ = ("delivered", "held", "incarnation", "is_ack_due", "position", "window")

    def __init__(self, *, incarnation: int, window: int) -> None:
        self.incarnation = incarnation
        """Of the sender."""
        self.window = window
        self.position = 0
        self.delivered = 0
        self.held: dict[int, Message] = {}
        self.is_ack_due = False

    def accept(self, message: Message) -> DropReason | None:
        """Take a message in, or say why not."""
        seq = message.seq
        if seq <= self.position or seq in self.held:
            return DropReason.DUPLICATE
        # Twice: what waits for an earlier multicast is received, acknowledged and still held.
        if seq > self.position + self.window or len(self.held) >= 2 * self.window:
            return DropReason.OUT_OF_WINDOW
        self.held[seq] = message
        while self.position + 1 in self.held:
            self.position += 1
        return None

    def next_to_deliver(self) -> Message | None:
        """The next message in order; it stays held until `take`."""
        return self.held.get(self.delivered + 1)

    def take(self) -> Message:
        self.delivered += 1
        return self.held.pop(self.delivered)


class Channels:
    """All channels of one member."""

    def __init__(
        self,
        *,
        membership: Membership,
        window: int,
        burst: int,
        acknowledge_ns: int,
        round_trips: RoundTrips,
        timers: Timers,
    ) -> None:
        self._us = membership
        self._window = window
        self._burst = burst
        self._acknowledge_ns = acknowledge_ns
        self._round_trips = round_trips
        self._timers = timers
        self._outgoing: dict[int, OutgoingChannel] = {}
        self._incoming: dict[int, IncomingChannel] = {}
        self._unsettled: set[int] = set()
        """Targets that have not acknowledged all."""

    @property
    def is_settled(self) -> bool:
        """Nothing unacknowledged, nothing undelivered, no acknowledgement due."""
        return not self._unsettled and not any(
            channel.held or channel.is_ack_due for channel in self._incoming.values()
        )

    @property
    def can_fence(self) -> bool:
        """Whether the fences of a multicast fit its words."""
        return len(self._unsettled) <= MAX_FENCES

    @property
    def held(self) -> int:
        """Messages in all buffers."""
        outgoing = sum(len(channel.unacked) + len(channel.queue) for channel in self._outgoing.values())
        return outgoing + sum(len(channel.held) for channel in self._incoming.values())

    def incoming(self, source: int) -> IncomingChannel | None:
        return self._incoming.get(source)

    def lacking(self) -> Iterator[tuple[int, int]]:
        """(target, what it has acknowledged) of everybody who has not acknowledged all."""
        return ((target, self._outgoing[target].acked) for target in self._unsettled)

    def holding(self) -> Iterator[tuple[int, int]]:
        """(source, how much of its unicasts we have received and delivered) of everybody of whom we hold something that
        waits for something earlier."""
        incoming = sorted(self._incoming.items())
        return ((source, channel.position + channel.delivered) for source, channel in incoming if channel.held)

    def fences(self) -> tuple[int, ...]:
        """One word for each target that may not have received all yet."""
        if not self._unsettled:
            return ()
        channels = ((target, self._outgoing[target]) for target in sorted(self._unsettled))
        return tuple(pack(target, channel.incarnation, channel.last) for target, channel in channels)

    def send(
        self, submission: Submission, target: int, incarnation: int, after: int, now_ns: int, out: list[Effect]
    ) -> None:
        """To this incarnation of `target`, not to be delivered before our multicast number `after`."""
        channel = self._outgoing.get(target)
        if channel is None:
            channel = OutgoingChannel(
                incarnation=incarnation, window=self._window, round_trip=self._round_trips.of(target)
            )
            self._outgoing[target] = channel
        channel.last += 1
        message = self._us.message(
            Kind.RELIABLE_UNICAST,
            seq=channel.last,
            flags=submission.flags,
            words=(incarnation, after, self._acknowledged(target)),
            inner=submission.inner,
            payload=submission.payload,
        )
        channel.queue.append(message)
        self._unsettled.add(target)
        self._pump(target, channel, now_ns, out)

    def forget(self, member: int, out: list[Effect]) -> None:
        """Its life is over."""
        self._unsettled.discard(member)
        if self._outgoing.pop(member, None) is not None:
            self._timers.disarm(Timer(RETRY, member), out)
        if self._incoming.pop(member, None) is not None:
            self._timers.disarm(Timer(ACKNOWLEDGE, member), out)

    def receive(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        """A unicast for us, its words checked: acknowledge what it acknowledges, and take it in."""
        source = message.origin
        self.acknowledge(source, message.words[2], now_ns, out)
        channel = self._incoming.get(source)
        if channel is None:
            channel = IncomingChannel(incarnation=message.incarnation, window=self._window)
            self._incoming[source] = channel
        is_gap_before = message.seq > channel.position + 1
        reason = channel.accept(message)
        if reason is not None:
            out.append(Report(code=reason, member=source, value=len(message.payload)))
        if reason is not DropReason.OUT_OF_WINDOW:
            channel.is_ack_due = True
            # A gap or a second copy means that the sender misses something: tell it at once.
            is_urgent = is_gap_before or reason is DropReason.DUPLICATE
            if is_urgent:
                self._timers.disarm(Timer(ACKNOWLEDGE, source), out)
            self._timers.arm(Timer(ACKNOWLEDGE, source), now_ns + (0 if is_urgent else self._acknowledge_ns), out)

    def acknowledge(self, member: int, position: int, now_ns: int, out: list[Effect]) -> None:
        """`member` has received all up to `position` of what we sent it."""
        channel = self._outgoing.get(member)
        if channel is None:
            return
        if channel.acknowledge(position, now_ns):
            self._timers.disarm(Timer(RETRY, member), out)
            self._pump(member, channel, now_ns, out)
            if channel.is_settled:
                self._unsettled.discard(member)
            return
        lost = channel.lost_before_others(position)
        if lost is not None:
            lost.tries += 1
            lost.sent_ns = now_ns
            out.append(Send(target=member, message=again(lost.message)))

    def on_retry(self, target: int, now_ns: int, out: list[Effect]) -> None:
        """Transmit again what was not acknowledged in time."""
        channel = self._outgoing.get(target)
        if channel is None or not channel.unacked:
            return
        due: list[int] = []
        for sent in list(channel.unacked.values())[: self._burst]:
            if sent.sent_ns + channel.round_trip.timeout_ns(sent.tries) <= now_ns:
                sent.tries += 1
                sent.sent_ns = now_ns
                out.append(Send(target=target, message=again(sent.message)))
            due.append(sent.sent_ns + channel.round_trip.timeout_ns(sent.tries))
        self._timers.arm(Timer(RETRY, target), min(due), out)

    def on_acknowledge(self, source: int, out: list[Effect]) -> None:
        """No message took the acknowledgement along: send it by itself."""
        channel = self._incoming.get(source)
        if channel is not None and channel.is_ack_due:
            message = self._us.message(
                Kind.RELIABLE_ACKNOWLEDGEMENT,
                seq=self._acknowledged(source),
                flags=Flag.CONTROL.value,
                words=(channel.incarnation,),
            )
            out.append(Send(target=source, message=message))

    def _acknowledged(self, member: int) -> int:
        """How far we have received from `member`; whoever is told so needs no other acknowledgement."""
        channel = self._incoming.get(member)
        if channel is None:
            return 0
        channel.is_ack_due = False
        return channel.position

    def _pump(self, target: int, channel: OutgoingChannel, now_ns: int, out: list[Effect]) -> None:
        while (message := channel.send_next(now_ns)) is not None:
            out.append(Send(target=target, message=message))
        if channel.unacked:
            self._timers.arm(Timer(RETRY, target), now_ns + channel.round_trip.timeout_ns(), out)
