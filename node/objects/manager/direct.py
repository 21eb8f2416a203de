"""Direct channels: first in, first out, from an incarnation of one machine to an incarnation of any other, in any
sub-network.

Paper 004 sends calls of one object, and replies, past the order ("point-to-point"); managers of different sub-networks
have news, votes and state for each other. The reliable layer reaches neighbours only, so these have channels of their
own. `DirectChannels` is a part of the machine's core, not a core: it takes its messages and timers and gives effects;
`drain` gives the events for its owner.

A *stream* is the sequence of messages from one incarnation to one incarnation of another machine: numbered from 1,
acknowledged cumulatively, retransmitted when the time-out of the round trip passes. A sender numbers its streams to a
machine upwards: their *session*. A receiver knows only the newest stream of the newest incarnation of each machine.

- The target's incarnation may be unknown at first (0: the one that is alive); its first message binds the stream to it.
  A message that one incarnation has acknowledged is never sent to a later one.
- A later incarnation of the target ends the stream: unacknowledged messages have failed (ENDED).
- No new acknowledgement for `patience_ns`: unacknowledged and waiting messages have failed (SILENT), and the next
  message opens the next session, which the receiver begins at 1: failed messages leave no gap. A sender that was paused
  asks once more before it gives up.
- A failed message may have arrived, or may still arrive, but never after a message that was sent later, and never twice
  at one incarnation. Only failed messages may be missing.

Memory. A receiver keeps at most `window` messages of each machine, all of them ahead of a gap; after `patience_ns`
without a message of that stream it forgets them (its sender has ended, or sends them again: they are not acknowledged).
A sender keeps at most MOST_WAITING messages for each incarnation, for at most MOST_INCARNATIONS incarnations of a
machine; further messages fail at once (FULL).

A message with impossible words is refused before anything has changed. Nothing here is signed: an enemy that writes
datagrams in the name of a peer can acknowledge, end or block its streams, but cannot make us keep more than the bounds
above.

Wire. OBJECTS_DIRECT: `seq` number in the stream; words: to (incarnation addressed 16 bits, session 32), back
(incarnation and session of the stream that is acknowledged by this message, 0: none), position acknowledged, after,
heard. OBJECTS_RECEIVED: `seq` position; words: the stream (incarnation of its sender, session). Both name the sender's
incarnation. An incarnation that is addressed as an earlier one answers with an OBJECTS_RECEIVED.

Idle is silent: with everything acknowledged both ways no timer is armed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, TypeAlias

from node.core import MAX_INCARNATION, Membership
from node.effects import Effect, Report, Send, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.group.view import Incarnation
from node.objects.addresses import MAX_TIMESTAMP
from node.reliable.parameters import ReliableParameters
from node.transport import RETRANSMISSION, Outbox, RoundTrip, Sent, Timers
from node.wire import Flag, Kind, Message

RETRY = "direct-retry"
ACKNOWLEDGE = "direct-acknowledge"
GAP = "direct-gap"
TIMERS = frozenset({RETRY, ACKNOWLEDGE, GAP})
"""Names of the timers of this module; the owner passes them on."""

MOST_WAITING = 4096
MOST_INCARNATIONS = 4
MAX_SESSION = 0xFFFF_FFFF


class Failure(enum.Enum):
    """The reasons for which a message will not be acknowledged any more."""

    ENDED = "its target's incarnation is over"
    SILENT = "its target has been silent for too long"
    FULL = "too much waits for its target"


@dataclass(frozen=True, slots=True, kw_only=True)
class Direct:
    """A direct message.

    `after`: to be handled only when the target has everything up to this timestamp (0: at once); `heard`: the highest
    timestamp that its sender knew of. Both are carried, not judged here. `flags` as of any message.
    """

    payload: bytes
    inner: Kind = Kind.APPLICATION
    after: int = 0
    heard: int = 0
    flags: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """`direct` has come from `source`, next in its stream."""

    source: Incarnation
    direct: Direct


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """`target` has received these, by the numbers that `send` gave, and everything of the stream before them."""

    target: Incarnation
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """These messages, with the numbers that `send` gave, in order, will not be acknowledged; they may have arrived."""

    target: Incarnation
    reason: Failure
    messages: tuple[tuple[int, Direct], ...]


Event: TypeAlias = Arrival | Acknowledged | Failed


@dataclass(slots=True)
class _Outgoing:
    """An own stream, of pairs (the number that `send` gave, message). `progress_ns`: when it last waited for nothing,
    or was acknowledged."""

    incarnation: Incarnation
    session: int
    outbox: Outbox[tuple[int, Direct]]
    progress_ns: int = 0

    @property
    def timer(self) -> Timer:
        return Timer(RETRY, self.incarnation.member << 32 | self.session)


@dataclass(slots=True)
class _Incoming:
    """The stream of a peer: everything up to `position` has gone to the owner, `buffered` waits for missing
    messages."""

    stream: tuple[int, int]
    """Incarnation of its sender, session: a later one is greater."""
    position: int = 0
    buffered: dict[int, Message] = field(default_factory=dict)
    is_ack_due: bool = False
    heard_ns: int = 0


class _Words(NamedTuple):
    """The words of an OBJECTS_DIRECT, checked."""

    to: tuple[int, int]
    back: tuple[int, int]
    acked: int
    after: int
    heard: int


class DirectChannels:
    """All direct channels of one incarnation of one machine. Effects are appended to `out`, in order."""

    def __init__(
        self, *, membership: Membership, parameters: ReliableParameters, patience_ns: int, timers: Timers
    ) -> None:
        """`parameters`: the window, burst, acknowledge_ns and retry times of the reliable layer are used here, too."""
        self._us = membership
        self._parameters = parameters
        self._patience_ns = patience_ns
        self._timers = timers
        self._peers = frozenset(membership.peers)
        self._round_trips = {member: RoundTrip(parameters) for member in membership.peers}
        self._incarnations: dict[int, int] = {}
        """By peer, its newest incarnation from which a message has come."""
        self._ended: dict[int, int] = {}
        """By peer, its last incarnation that the owner has reported as ended."""
        self._sessions: dict[int, int] = {}
        """By peer, the last session that we have opened."""
        self._outgoing: dict[int, list[_Outgoing]] = {}
        """By peer, our streams in the order in which they were opened, at most one for each incarnation."""
        self._incoming: dict[int, _Incoming] = {}
        self._number = 0
        self._events: list[Event] = []

    @property
    def is_idle(self) -> bool:
        """Whether nothing is unacknowledged or undelivered, no acknowledgement is due, and no event waits for the
        owner."""
        return (
            not self._events
            and not any(stream.outbox for streams in self._outgoing.values() for stream in streams)
            and not any(stream.buffered or stream.is_ack_due for stream in self._incoming.values())
        )

    @property
    def buffered(self) -> int:
        """Messages in all buffers."""
        outgoing = sum(len(stream.outbox) for streams in self._outgoing.values() for stream in streams)
        return outgoing + sum(len(stream.buffered) for stream in self._incoming.values())

    def first_open(self, member: int) -> int | None:
        """The lowest number of `send` that `member` has not acknowledged and that has not failed; None: there is none.
        A message below it has arrived or failed."""
        outboxes = (stream.outbox for stream in self._outgoing.get(member, ()))
        return min((number for outbox in outboxes for number, _ in islice(outbox, 1)), default=None)

    def drain(self) -> list[Event]:
        """The events since the last call, in order. To be called after every other call."""
        events, self._events = self._events, []
        return events

    def send(self, target: Incarnation, direct: Direct, now_ns: int, out: list[Effect]) -> int:
        """Send a message. Returns its number, higher than all before it (to any target); it is acknowledged or fails,
        perhaps at once. LocalError for a target that is no peer.
        """
        if target.member not in self._peers:
            raise LocalError(f"member {target.member} is no peer of {self._us.member}: direct messages are for others")
        self._number += 1
        stream = self._stream_to(target)
        if not isinstance(stream, _Outgoing):
            self._events.append(Failed(target=target, reason=stream, messages=((self._number, direct),)))
            return self._number
        if not stream.outbox:
            stream.progress_ns = now_ns
        stream.outbox.add((self._number, direct))
        self._pump(stream, now_ns, out)
        return self._number

    def end(self, incarnation: Incarnation, out: list[Effect]) -> None:
        """End the streams of `incarnation`, which the owner knows to be over, and of all earlier ones of this
        machine."""
        self._ended[incarnation.member] = max(incarnation.incarnation, self._ended.get(incarnation.member, 0))
        for stream in list(self._outgoing.get(incarnation.member, ())):
            if 0 < stream.incarnation.incarnation <= incarnation.incarnation:
                self._fail(stream, Failure.ENDED, out)
        incoming = self._incoming.get(incarnation.member)
        if incoming is not None and incoming.stream[0] <= incarnation.incarnation:
            self._forget(incarnation.member, incoming, out)

    def receive(self, message: Message, source: int, now_ns: int, out: list[Effect]) -> None:
        """An OBJECTS_DIRECT or OBJECTS_RECEIVED came. RemoteError before anything has changed."""
        if message.origin != source or source not in self._peers:
            raise RemoteError(DropReason.UNEXPECTED, f"a direct message of {message.origin} from {source}")
        if not 1 <= message.incarnation <= MAX_INCARNATION:
            raise RemoteError(DropReason.MALFORMED, f"incarnation {message.incarnation} cannot be")
        if message.kind is Kind.OBJECTS_DIRECT:
            self._on_direct(message, _words_of(message), now_ns, out)
        elif message.kind is Kind.OBJECTS_RECEIVED:
            self._on_received(message, now_ns, out)
        else:
            raise RemoteError(DropReason.UNEXPECTED, f"{message.kind.name} is not for direct channels")

    def on_timer(self, timer: Timer, now_ns: int, out: list[Effect]) -> None:
        """One of TIMERS is due (the owner has told `timers` that it fired)."""
        if timer.name != RETRY:
            self._on_incoming_timer(timer, now_ns, out)
            return
        member, session = timer.key >> 32, timer.key & MAX_SESSION
        for stream in self._outgoing.get(member, ()):
            if stream.session == session:
                self._retry(stream, now_ns, out)
                return

    # Sending.

    def _stream_to(self, target: Incarnation) -> _Outgoing | Failure:
        """The stream to `target`, opened if needed; or why there is none."""
        known = self._incarnations.get(target.member, 0)
        ended = self._ended.get(target.member, 0)
        if 0 < target.incarnation < known or 0 < target.incarnation <= ended:
            return Failure.ENDED
        incarnation = target.incarnation or (known if known > ended else 0)
        streams = self._outgoing.setdefault(target.member, [])
        for stream in streams:
            if stream.incarnation.incarnation == incarnation or incarnation == 0:
                return stream if len(stream.outbox) < MOST_WAITING else Failure.FULL
            if stream.incarnation.incarnation == 0:
                # No incarnation has answered yet: the earlier messages are for this one, too.
                stream.incarnation = Incarnation(target.member, incarnation)
                return stream if len(stream.outbox) < MOST_WAITING else Failure.FULL
        session = self._sessions.get(target.member, 0) + 1
        if len(streams) >= MOST_INCARNATIONS or session > MAX_SESSION:
            return Failure.FULL
        self._sessions[target.member] = session
        outbox = Outbox[tuple[int, Direct]](self._round_trips[target.member], self._parameters.window)
        opened = _Outgoing(Incarnation(target.member, incarnation), session, outbox)
        streams.append(opened)
        return opened

    def _pump(self, stream: _Outgoing, now_ns: int, out: list[Effect]) -> None:
        """Transmit as many messages as the window allows."""
        for sent in stream.outbox.start(now_ns):
            self._transmit(stream, sent, out)
        if stream.outbox:
            self._timers.arm(stream.timer, now_ns + stream.outbox.round_trip.timeout_ns(), out)

    def _transmit(self, stream: _Outgoing, sent: Sent[tuple[int, Direct]], out: list[Effect]) -> None:
        _, direct = sent.item
        member = stream.incarnation.member
        back, acked = self._taken_along(member, out)
        message = self._us.message(
            Kind.OBJECTS_DIRECT,
            seq=sent.number,
            flags=direct.flags | (RETRANSMISSION if sent.tries > 1 else 0),
            words=(_pack(stream.incarnation.incarnation, stream.session), back, acked, direct.after, direct.heard),
            inner=direct.inner,
            payload=direct.payload,
        )
        out.append(Send(target=member, message=message))

    def _taken_along(self, member: int, out: list[Effect]) -> tuple[int, int]:
        """The words that acknowledge the stream of `member`; no other acknowledgement is due then."""
        incoming = self._incoming.get(member)
        if incoming is None:
            return 0, 0
        if incoming.is_ack_due:
            incoming.is_ack_due = False
            self._timers.disarm(Timer(ACKNOWLEDGE, member), out)
        return _pack(*incoming.stream), incoming.position

    def _retry(self, stream: _Outgoing, now_ns: int, out: list[Effect]) -> None:
        """Retransmit messages that were not acknowledged in time; give the stream up after `patience_ns` without
        progress."""
        outbox, burst = stream.outbox, self._parameters.burst
        if outbox.first is None:
            return
        limit_ns = stream.progress_ns + self._patience_ns
        # We may have been paused, with the answer waiting for us: then ask once more before giving up.
        was_away = now_ns - outbox.first.sent_ns > 2 * self._parameters.retry_most_ns
        if now_ns >= limit_ns and not was_away:
            self._fail(stream, Failure.SILENT, out)
            return
        for sent in outbox.late(now_ns, burst):
            self._transmit(stream, sent, out)
        next_ns = outbox.next_late_ns(burst)
        self._timers.arm(stream.timer, min(limit_ns, next_ns) if now_ns < limit_ns else next_ns, out)

    def _fail(self, stream: _Outgoing, reason: Failure, out: list[Effect]) -> None:
        """The stream is over; the next message to its target opens another."""
        self._outgoing[stream.incarnation.member].remove(stream)
        self._timers.disarm(stream.timer, out)
        if stream.outbox:
            self._events.append(Failed(target=stream.incarnation, reason=reason, messages=tuple(stream.outbox)))

    # Receipts.

    def _on_direct(self, message: Message, words: _Words, now_ns: int, out: list[Effect]) -> None:
        member = message.origin
        acknowledged = self._stream_acknowledged(member, message.incarnation, words.back, words.acked)
        if not self._has_spoken(message, out):
            return
        if acknowledged is not None and words.acked > acknowledged.outbox.acknowledged:
            self._advance(acknowledged, message.incarnation, words.acked, now_ns, out)
        stream = (message.incarnation, words.to[1])
        if words.to[0] not in (0, self._us.incarnation):
            self._drop(DropReason.STALE_INCARNATION, message, out)
            if words.to[0] < self._us.incarnation:
                # It addresses an earlier incarnation of ours: tell it that this is another one, which has received
                # nothing.
                self._acknowledge(member, stream, 0, out)
            return
        incoming = self._incoming.get(member)
        if incoming is None or incoming.stream < stream:
            if incoming is not None:
                # All missing messages of that stream have failed at its sender.
                self._forget(member, incoming, out)
            incoming = self._incoming[member] = _Incoming(stream)
        if incoming.stream > stream:
            self._drop(DropReason.DUPLICATE, message, out)
            return
        self._take(incoming, message, now_ns, out)

    def _take(self, incoming: _Incoming, message: Message, now_ns: int, out: list[Effect]) -> None:
        is_next = message.seq == incoming.position + 1
        if message.seq <= incoming.position or message.seq in incoming.buffered:
            self._drop(DropReason.DUPLICATE, message, out)
        elif message.seq > incoming.position + self._parameters.window:
            self._drop(DropReason.OUT_OF_WINDOW, message, out)
            return
        else:
            incoming.buffered[message.seq] = message
        while (found := incoming.buffered.pop(incoming.position + 1, None)) is not None:
            incoming.position += 1
            self._events.append(_arrival(found))
        self._arm_gap(message.origin, incoming, now_ns, out)
        # A gap or a second copy means that a message or an acknowledgement was lost: tell the sender at once.
        self._owe(message.origin, incoming, now_ns, out, is_urgent=not is_next)

    def _arm_gap(self, member: int, incoming: _Incoming, now_ns: int, out: list[Effect]) -> None:
        incoming.heard_ns = now_ns
        if incoming.buffered:
            self._timers.arm(Timer(GAP, member), now_ns + self._patience_ns, out)
        else:
            self._timers.disarm(Timer(GAP, member), out)

    def _forget(self, member: int, incoming: _Incoming, out: list[Effect]) -> None:
        """Forget a stream: no more of its messages are expected."""
        incoming.buffered.clear()
        incoming.is_ack_due = False
        self._timers.disarm(Timer(GAP, member), out)
        self._timers.disarm(Timer(ACKNOWLEDGE, member), out)

    def _on_incoming_timer(self, timer: Timer, now_ns: int, out: list[Effect]) -> None:
        incoming = self._incoming.get(timer.key)
        if incoming is None:
            return
        if timer.name == ACKNOWLEDGE and incoming.is_ack_due:
            self._acknowledge(timer.key, incoming.stream, incoming.position, out)
            incoming.is_ack_due = False
        elif timer.name == GAP and incoming.buffered:
            due_ns = incoming.heard_ns + self._patience_ns
            if now_ns >= due_ns:
                incoming.buffered.clear()
            else:
                self._timers.arm(timer, due_ns, out)

    def _owe(self, member: int, incoming: _Incoming, now_ns: int, out: list[Effect], *, is_urgent: bool) -> None:
        timer = Timer(ACKNOWLEDGE, member)
        incoming.is_ack_due = True
        if is_urgent:
            self._timers.disarm(timer, out)
        self._timers.arm(timer, now_ns + (0 if is_urgent else self._parameters.acknowledge_ns), out)

    def _acknowledge(self, member: int, stream: tuple[int, int], position: int, out: list[Effect]) -> None:
        message = self._us.message(
            Kind.OBJECTS_RECEIVED, seq=position, flags=Flag.CONTROL.value, words=(_pack(*stream),)
        )
        out.append(Send(target=member, message=message))

    def _on_received(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        if len(message.words) != 1 or message.inner is not Kind.APPLICATION or message.payload:
            raise RemoteError(DropReason.MALFORMED, "an acknowledgement is one word")
        stream = _unpack(message.words[0])
        acknowledged = self._stream_acknowledged(message.origin, message.incarnation, stream, message.seq)
        if not self._has_spoken(message, out) or acknowledged is None:
            return
        if message.seq > acknowledged.outbox.acknowledged:
            self._advance(acknowledged, message.incarnation, message.seq, now_ns, out)
        elif (lost := acknowledged.outbox.lost(message.seq, now_ns)) is not None:
            # In an OBJECTS_DIRECT a repeated acknowledgement means nothing: every message of a burst repeats it.
            self._transmit(acknowledged, lost, out)

    def _stream_acknowledged(
        self, member: int, number: int, stream: tuple[int, int], position: int
    ) -> _Outgoing | None:
        """Our stream that this acknowledges, None if it is over. RemoteError: it acknowledges a message that was never
        sent."""
        incarnation, session = stream
        if incarnation > self._us.incarnation:
            raise RemoteError(
                DropReason.MALFORMED, f"an acknowledgement of our incarnation {incarnation}, which is to come"
            )
        if incarnation == self._us.incarnation and session > self._sessions.get(member, 0):
            raise RemoteError(DropReason.MALFORMED, f"an acknowledgement of session {session}, which is to come")
        for found in self._outgoing.get(member, ()):
            is_it = stream == (self._us.incarnation, found.session) and found.incarnation.incarnation in (0, number)
            if is_it and position > found.outbox.transmitted:
                raise RemoteError(
                    DropReason.MALFORMED, f"{position} acknowledged of {found.outbox.transmitted} messages sent"
                )
            if is_it:
                return found
        return None

    def _has_spoken(self, message: Message, out: list[Effect]) -> bool:
        """Note the sender's incarnation. False: a later one is known. The first message of an incarnation ends its
        predecessors, and binds the stream that was for the incarnation that is alive."""
        member, incarnation = message.origin, message.incarnation
        known = self._incarnations.get(member, 0)
        if incarnation < known:
            self._drop(DropReason.STALE_INCARNATION, message, out)
            return False
        if incarnation > known:
            self._incarnations[member] = incarnation
            self.end(Incarnation(member, incarnation - 1), out)
            for stream in self._outgoing.get(member, ()):
                if stream.incarnation.incarnation == 0:
                    stream.incarnation = Incarnation(member, incarnation)
        return True

    def _advance(self, stream: _Outgoing, incarnation: int, position: int, now_ns: int, out: list[Effect]) -> None:
        """This incarnation has received all up to `position`: the stream is bound to it from here on."""
        stream.incarnation = Incarnation(stream.incarnation.member, incarnation)
        numbers = tuple(number for number, _ in stream.outbox.acknowledge(position, now_ns))
        stream.progress_ns = now_ns
        self._timers.disarm(stream.timer, out)
        self._events.append(Acknowledged(target=stream.incarnation, numbers=numbers))
        self._pump(stream, now_ns, out)

    def _drop(self, reason: DropReason, message: Message, out: list[Effect]) -> None:
        out.append(Report(code=reason, member=message.origin, value=len(message.payload)))


def _pack(incarnation: int, session: int) -> int:
    return incarnation << 32 | session


def _unpack(word: int) -> tuple[int, int]:
    if word >> 48:
        raise RemoteError(DropReason.MALFORMED, f"word {word:#x} names no stream")
    return word >> 32, word & MAX_SESSION


def _words_of(message: Message) -> _Words:
    if len(message.words) != 5 or message.seq < 1:
        raise RemoteError(DropReason.MALFORMED, f"{len(message.words)} words in direct message {message.seq}")
    to, back, acked, after, heard = message.words
    words = _Words(_unpack(to), _unpack(back), acked, after, heard)
    if not words.to[1] or max(after, heard) > MAX_TIMESTAMP or (back == 0 and acked):
        raise RemoteError(DropReason.MALFORMED, "a direct message with words that cannot be")
    return words


def _arrival(message: Message) -> Arrival:
    direct = Direct(
        payload=message.payload,
        inner=message.inner,
        after=message.words[3],
        heard=message.words[4],
        flags=message.flags & ~RETRANSMISSION,
    )
    return Arrival(source=Incarnation(message.origin, message.incarnation), direct=direct)
