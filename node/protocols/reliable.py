"""FIFO reliable multicast, and reliable unicast in the same order.

Paper: none of the five; all of them assume it ("messages of one sender arrive in the order sent, and none is lost").
The mechanisms are the field's: sequence numbers and negative acknowledgements (Chang and Maxemchuk 1984, Amoeba),
stability vectors and flow window (Isis), randomised requests (SRM), time-outs of RFC 6298, and a flush among survivors
as in virtual synchrony.

What it promises, while more than half of the members neither crash within `suspect_after_ns` of each other nor are cut
off for that long:
  validity         a member that lives on delivers what it multicasts, and so do all others that live on;
  agreement        what one survivor delivers, every survivor delivers, also when the sender crashed half-way;
  integrity        at most once, and only what was sent;
  fifo             from one member to another all messages, multicast and unicast, arrive in the order sent, per
  incarnation.
Delivery is not uniform: a member may deliver and crash, and nobody else delivers (its own multicast, above all).

The parts.

Streams. Every incarnation of a member multicasts one stream, numbered from 1. A receiver delivers in order and asks
the origin for what is missing: by a gap, by the sender's announcement of its last number (the loss of a tail shows no
gap), or by a survivor's position. Who is asked twice for one number within a short time answers the second time by
multicast: then many miss it. Every receiver tells the origin its position now and then: after `heartbeat_ns` (longer
in large groups), at the latest after a quarter of the window, for free on a multicast of its own. The least position
is the *floor*; all up to there is *stable* and forgotten. The origin puts its floor onto every message, so receivers
forget, too. Unstable messages of one sender: at most `window`.

Without multicast a word to everybody is a datagram for each, so less is said that way: positions go to their origins
alone, gaps are answered to who asks, and a sender announces its tail only to those who have not told that they have it,
after the time that all have to do so. Intervals grow with what a multicast takes.

Channels. A unicast has a number in the channel from its sender to its target, is acknowledged (if possible on a
message in the other direction) and retransmitted on time-out. It waits at the target for the multicasts sent before
it; a multicast carries a *fence* for each target with unacknowledged unicasts and waits there for them. So each pair
of members sees one FIFO channel.

Silence. A member is *settled* when all it knows is received, delivered and stable, and everybody could know that. It
then arms no timer. Until then it asks those whose word it misses, more and more rarely; who is asked answers, settled
or not. So idle traffic falls to zero.

The end of an incarnation. Who is awaited and silent for `suspect_after_ns` is suspected; who hears of a suspicion
looks for himself for a quarter of that time. When more than half of the other live members suspect an incarnation, or
when a higher one of the same member is heard, it is *over*, for good; members tell each other. The set of what is over
is the *view*. The stream of an incarnation that is over is *ending*: nobody takes more of it from its origin; all live
members tell their positions in it, under one and the same view; the highest is the final one; who lacks something asks
those who have it; at the final position the end is delivered as news to the core above (RELIABLE_ENDED). All survivors
have then delivered the same. If the view changes meanwhile, positions are told anew. A multicast carries the digest of
its sender's view and is delivered only by members who know that view: so a member that was cut off and expelled cannot
go on as if nothing had happened. It learns of its end, reports it, and is mute. Without a majority nothing ends: the
window fills and the minority waits. That is on purpose.

Restart. An incarnation above 1 joins: it multicasts JOIN until every live member has answered WELCOME with the last
number of its own stream: there the joiner's part of that stream starts. Only then may it submit, so everybody counts
from its first message on. Streams between two first incarnations start at 1. The core above hears of every other start
(RELIABLE_JOINED with the number before it); a joiner hears of all at once, of itself last.

Deviations. Numbers in words have 32 bits: 2^32 multicasts per incarnation. A pair of members that cannot hear each
other while both hear all others is not healed by relays: their streams wait.

Not here: membership beyond the initial group, authentication (who can send datagrams of this group can stop it).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from random import Random

from node.core import Core, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report, Send, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.protocols.channel import ACKNOWLEDGE, RETRY, Channels, IncomingChannel, again
from node.protocols.ending import Ending
from node.protocols.roundtrip import RoundTrips
from node.protocols.stream import Answer, IncomingStream, OutgoingStream
from node.protocols.suspicion import Patience, Suspicion
from node.protocols.timers import Timers
from node.protocols.view import View
from node.protocols.words import (
    MAX_FENCES,
    MAX_NUMBER,
    MAX_PIGGYBACK,
    Entry,
    Heartbeat,
    numbers_of,
    pack,
    pack_data,
    ranges_of,
    unpack,
    unpack_data,
)
from node.reliable.parameters import ReliableParameters
from node.wire import WORD_SIZE, Flag, Kind, Message

__all__ = ["ReliableCore", "ReliableParameters", "ReliableReport"]

POSITIONS_PER_HEARTBEAT = 150
"""So that a heartbeat fits an Ethernet frame."""
TOMBSTONES_PER_MEMBER = 8
ANNOUNCEMENTS = 3
PIGGYBACK_COPIES = 12
"""A position on a multicast costs a word in every copy, by itself a frame of about a hundred bytes."""
ROOM_BYTES = 1400
"""Of words and payload of a data message: more would not fit an Ethernet frame with all headers."""
CONTROL = Flag.CONTROL.value
RETRANSMISSION = Flag.RETRANSMISSION.value

TICK = Timer("tick")
ANNOUNCE = Timer("announce")
REPLY = Timer("reply")
NACK = "nack"


class Phase(enum.StrEnum):
    """Where this incarnation stands."""

    JOINING = "joining"
    MEMBER = "member"
    EXPELLED = "expelled"


class ReliableReport(enum.IntEnum):
    """Codes of our reports; `member` and `value` as said."""

    JOINED = 0x11
    """We are a member; `value`: our incarnation."""
    SUSPECTED = 0x12
    """`member` was silent for too long; `value`: its incarnation."""
    OVER = 0x13
    """`value`: incarnation of `member` that is over."""
    EXPELLED = 0x14
    """The others have ended us; `member`: who told us."""


class ReliableCore(Core):
    """See the module's text."""

    def __init__(self, *, membership: Membership, parameters: ReliableParameters, rng: Random) -> None:
        self._us = membership
        self._me = membership.member
        self._parameters = parameters
        self._rng = rng
        count = len(membership.members)
        self._fan_out = 1 if membership.has_multicast else max(1, count - 1)
        """Datagrams of one multicast."""
        suspect_after_ns = parameters.suspect_after_ns
        interval_ns = max(parameters.heartbeat_ns, count * self._fan_out * parameters.heartbeat_per_member_ns)
        # However large the group, there is time for several questions before silence becomes a suspicion.
        self._interval_ns = min(interval_ns, suspect_after_ns // 8)
        self._all_told_ns = self._interval_ns * 3 // 2
        """So long after a message all who have it have had the time to tell."""
        self._nack_delay_ns = parameters.nack_delay_ns + count * parameters.nack_per_member_ns
        self._ack_every = max(1, parameters.window // 4 - rng.randrange(parameters.window // 8 + 1))
        first_ns = min(3 * self._interval_ns, suspect_after_ns // 4)
        most_ns = max(self._interval_ns, min(parameters.retry_most_ns, suspect_after_ns // 10))

        is_first = membership.incarnation == 1 or not membership.peers
        self._phase = Phase.MEMBER if is_first else Phase.JOINING
        self._view = View(membership)
        self._suspicion = Suspicion(me=self._me, first_ns=first_ns, most_ns=most_ns, suspect_after_ns=suspect_after_ns)
        self._strangers: set[int] = set() if is_first else set(membership.peers)
        """Live members whose stream we do not take part in yet, or not safely."""
        self._own = OutgoingStream()
        self._streams: dict[int, IncomingStream] = {}
        self._endings: dict[tuple[int, int], Ending] = {}
        self._timers = Timers()
        self._round_trips = RoundTrips(
            first_ns=parameters.retry_first_ns, least_ns=parameters.retry_least_ns, most_ns=parameters.retry_most_ns
        )
        self._channels = Channels(
            membership=membership,
            window=parameters.window,
            burst=parameters.burst,
            acknowledge_ns=parameters.acknowledge_ns,
            round_trips=self._round_trips,
            timers=self._timers,
        )
        self._untold: set[int] = set()
        """Origins that do not know our position."""
        self._told_ns = 0
        """When we last told positions to everybody."""
        self._sent_ns = 0
        """When we last multicast."""
        self._announcements = 0
        self._owed: set[int] = set()
        """Members that asked us."""
        self._warned_ns: dict[int, int] = {}
        self._asked_view = self._view.digest
        self._ticked_ns = 0
        self._news = Patience(first_ns=self._interval_ns, most_ns=most_ns)
        """Paces what everybody must hear while somebody is suspected or a stream is ending."""
        self._handlers: dict[Kind, Callable[[Message, int, int, list[Effect]], None]] = {
            Kind.RELIABLE_DATA: self._on_data,
            Kind.RELIABLE_UNICAST: self._on_unicast,
            Kind.RELIABLE_ACKNOWLEDGEMENT: self._on_acknowledgement,
            Kind.RELIABLE_NACK: self._on_nack,
            Kind.RELIABLE_HEARTBEAT: self._on_heartbeat,
            Kind.RELIABLE_JOIN: self._on_join,
            Kind.RELIABLE_WELCOME: self._on_welcome,
        }
        if is_first:
            for peer in membership.peers:
                self._streams[peer] = IncomingStream(start=0, window=parameters.window)
                self._own.register(peer)

    @property
    def can_submit(self) -> bool:
        own = self._own
        is_open = own.last - own.floor < self._parameters.window and own.last < MAX_NUMBER
        return is_open and self._phase is Phase.MEMBER and self._channels.can_fence

    @property
    def is_idle(self) -> bool:
        return self._phase is Phase.EXPELLED or (self._is_settled() and not self._owed)

    @property
    def is_over(self) -> bool:
        return self._phase is Phase.EXPELLED

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def held(self) -> int:
        """Messages in all our buffers, for those who watch memory. What an expelled life has left is waste."""
        if self._phase is Phase.EXPELLED:
            return 0
        streams = sum(len(stream.held) for stream in self._streams.values())
        endings = sum(len(ending.stream.held) for ending in self._endings.values() if ending.stream is not None)
        return len(self._own.held) + streams + endings + self._channels.held

    def on_start(self, now_ns: int) -> list[Effect]:
        out: list[Effect] = []
        if self._phase is Phase.JOINING:
            out.append(Multicast(message=self._join()))
            self._arm_tick(now_ns, out)
        return out

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        if not self.can_submit:
            raise LocalError(f"member {self._me} takes no submission now: ask can_submit before")
        out: list[Effect] = []
        target = submission.target
        if target is None:
            self._multicast(submission, now_ns, out)
        elif target == self._me:
            out.append(
                Deliver.of(self._us.message(Kind.RELIABLE_UNICAST, inner=submission.inner, payload=submission.payload))
            )
        elif target not in self._view.incarnations:
            raise LocalError(f"member {target} does not exist; the members are {self._us.members}")
        elif target in self._view.live:
            # Whoever is over gets nothing; the core above hears of its end, if it has not yet.
            incarnation = self._view.incarnations[target]
            self._channels.send(submission, target, incarnation, self._own.last, now_ns, out)
            self._arm_tick(now_ns, out)
        return out

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        out: list[Effect] = []
        reason = self._ignore(message, source, now_ns, out)
        if reason is not None:
            _refuse(message, source, reason, out)
        else:
            self._handlers[message.kind](message, source, now_ns, out)
        return out

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        out: list[Effect] = []
        self._timers.fired(timer)
        if self._phase is Phase.EXPELLED:
            return out
        if timer == TICK:
            self._on_tick(now_ns, out)
        elif timer == ANNOUNCE:
            self._on_announce(now_ns, out)
        elif timer == REPLY:
            self._on_reply(out)
        elif timer.name == NACK:
            self._on_nack_timer(timer, now_ns, out)
        elif timer.name == RETRY:
            self._channels.on_retry(timer.key, now_ns, out)
        else:
            assert timer.name == ACKNOWLEDGE, timer
            self._channels.on_acknowledge(timer.key, out)
        return out

    # Multicasts of ours.

    def _multicast(self, submission: Submission, now_ns: int, out: list[Effect]) -> None:
        own = self._own
        fences = self._channels.fences()
        positions = self._piggyback(ROOM_BYTES - len(submission.payload) - WORD_SIZE * len(fences), now_ns)
        message = self._us.message(
            Kind.RELIABLE_DATA,
            seq=own.last + 1,
            flags=submission.flags,
            words=pack_data(self._view.digest, own.floor, fences, positions),
            inner=submission.inner,
            payload=submission.payload,
        )
        own.announced = own.floor
        own.append(message)
        self._sent_ns = now_ns
        self._announcements = 0
        out.append(Multicast(message=message))
        out.append(Deliver.of(message))
        if own.floor < own.last:
            self._timers.arm(ANNOUNCE, now_ns + self._announce_after_ns(), out)
            self._arm_tick(now_ns, out)

    def _piggyback(self, room_bytes: int, now_ns: int) -> tuple[int, ...]:
        """Our positions, if others do not know them and have not heard of any for a while: as many as fit the frame."""
        most = min(MAX_PIGGYBACK, room_bytes // WORD_SIZE)
        if (
            not self._untold
            or most <= 0
            or self._fan_out > PIGGYBACK_COPIES
            or now_ns - self._told_ns < self._interval_ns // 2
        ):
            return ()
        self._told_ns = now_ns
        return tuple(pack(*entry) for entry in self._tell_untold(most))

    def _on_announce(self, now_ns: int, out: list[Effect]) -> None:
        """The loss of the last messages shows no gap: say which is the last, a few times; then the tick asks the
        silent."""
        own = self._own
        if own.floor == own.last or self._announcements == ANNOUNCEMENTS:
            return
        due_ns = self._sent_ns + self._announce_after_ns()
        if now_ns >= due_ns:
            self._announcements += 1
            due_ns = now_ns + self._announce_after_ns()
            lacking = [member for member, _ in own.lacking()]
            heartbeat = self._heartbeat(positions=(self._own_position(),))
            if self._us.has_multicast:
                own.announced = own.floor
                out.append(Multicast(message=heartbeat))
            else:
                out.extend(Send(target=member, message=heartbeat) for member in sorted(lacking))
        self._timers.arm(ANNOUNCE, due_ns, out)

    def _announce_after_ns(self) -> int:
        """The first announcement is early, where it is one datagram; later ones wait until silence says something."""
        early_ns = self._parameters.announce_ns << self._announcements
        is_early = self._us.has_multicast and not self._announcements
        return early_ns if is_early else max(early_ns, self._all_told_ns)

    # Messages of others.

    def _ignore(self, message: Message, source: int, now_ns: int, out: list[Effect]) -> DropReason | None:
        """Why a message is refused before anybody looks into it."""
        origin = message.origin
        if message.kind not in self._handlers or self._phase is Phase.EXPELLED:
            return DropReason.UNEXPECTED
        if origin == self._me:
            return DropReason.OWN
        if origin not in self._view.incarnations or source not in self._view.incarnations:
            return DropReason.UNKNOWN_MEMBER
        if message.incarnation == 0 or message.seq > MAX_NUMBER:
            return DropReason.MALFORMED
        if source != origin:
            return None if message.kind is Kind.RELIABLE_DATA else DropReason.UNEXPECTED
        if self._view.is_stale(origin, message.incarnation):
            self._warn(origin, now_ns, out)
            return DropReason.STALE_INCARNATION
        return None

    def _warn(self, member: int, now_ns: int, out: list[Effect]) -> None:
        """Tell an incarnation that is over, and does not know it."""
        if now_ns >= self._warned_ns.get(member, now_ns):
            self._warned_ns[member] = now_ns + self._interval_ns
            out.append(Send(target=member, message=self._heartbeat()))

    def _hear(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        """The origin lives, in this incarnation."""
        if self._suspicion.hear(message.origin):
            self._broadcast((), now_ns, out)
        if message.incarnation > self._view.incarnations[message.origin]:
            self._meet(message.origin, message.incarnation, now_ns, out)

    def _on_data(self, message: Message, source: int, now_ns: int, out: list[Effect]) -> None:
        head = unpack_data(message.words)
        if not head.floor < message.seq:
            raise RemoteError(DropReason.MALFORMED, f"message {message.seq} says that {head.floor} is stable")
        if source != message.origin:
            self._on_relayed(message, source, now_ns, out)
            return
        self._hear(message, now_ns, out)
        for word in head.positions:
            self._take_position(unpack(word), source)
        stream = self._streams.get(source)
        reason = DropReason.UNEXPECTED if stream is None else stream.accept(message)
        if stream is None or reason is not None:
            _refuse(message, source, reason or DropReason.UNEXPECTED, out)
            return
        self._untold.add(source)
        self._answer_came(stream, message, source, now_ns)
        self._take_floor(source, stream, head.floor, out)
        self._pump(source, stream, out)
        stream.raise_floor(head.floor)
        self._see_to_gaps(source, message.incarnation, stream, now_ns, out)
        if stream.position - stream.told >= self._ack_every:
            self._untold.discard(source)
            out.append(Send(target=source, message=self._heartbeat(positions=(self._position(source),))))
        if head.view != self._asked_view and not self._view.knows(head.view):
            self._asked_view = head.view
            out.append(Send(target=source, message=self._heartbeat(awaited=(source,))))
        self._arm_tick(now_ns, out)

    def _on_relayed(self, message: Message, source: int, now_ns: int, out: list[Effect]) -> None:
        """A survivor hands on what an origin that is over has sent."""
        key = (message.origin, message.incarnation)
        ending = self._endings.get(key)
        if ending is None or ending.stream is None or ending.final is None or message.seq > ending.final:
            _refuse(message, source, DropReason.UNEXPECTED, out)
            return
        reason = ending.stream.accept(message)
        if reason is not None:
            _refuse(message, source, reason, out)
            return
        self._answer_came(ending.stream, message, source, now_ns)
        self._review(key, ending, now_ns, out)

    def _answer_came(self, stream: IncomingStream, message: Message, source: int, now_ns: int) -> None:
        elapsed_ns = stream.answered(message.seq, now_ns)
        if elapsed_ns is not None and message.flags & RETRANSMISSION:
            self._round_trips.of(source).sample(elapsed_ns)

    def _on_unicast(self, message: Message, source: int, now_ns: int, out: list[Effect]) -> None:
        if len(message.words) != 3 or message.seq == 0:
            raise RemoteError(DropReason.MALFORMED, f"unicast {message.seq} with {len(message.words)} words")
        if message.words[0] != self._us.incarnation:
            # For an earlier life of ours. Its sender will hear our JOIN.
            _refuse(message, source, DropReason.STALE_INCARNATION, out)
            return
        self._hear(message, now_ns, out)
        self._channels.receive(message, now_ns, out)
        stream = self._streams.get(source)
        if stream is not None:
            self._pump(source, stream, out)
        channel = self._channels.incoming(source)
        if channel is not None and channel.held:
            # What waits for an earlier one may wait for a sender that is dead: then somebody must find that out.
            self._arm_tick(now_ns, out)

    def _on_acknowledgement(self, message: Message, source: int, now_ns: int, out: list[Effect]) -> None:
        if len(message.words) != 1:
            raise RemoteError(DropReason.MALFORMED, "an acknowledgement without the incarnation it is for")
        if message.words[0] != self._us.incarnation:
            _refuse(message, source, DropReason.STALE_INCARNATION, out)
            return
        self._hear(message, now_ns, out)
        self._channels.acknowledge(source, message.seq, now_ns, out)

    def _pump(self, origin: int, stream: IncomingStream, out: list[Effect]) -> None:
        """Deliver what is next, multicasts and unicasts in the order in which `origin` sent them."""
        if self._phase is not Phase.MEMBER or origin in self._strangers:
            return
        channel = self._channels.incoming(origin)
        while True:
            if channel is not None:
                self._pump_channel(channel, stream.delivered, out)
            if stream.delivered == stream.position:
                return
            message = stream.held[stream.delivered + 1]
            if not self._may_deliver(message, stream, channel):
                return
            stream.delivered += 1
            out.append(Deliver.of(message))

    def _pump_channel(self, channel: IncomingChannel, delivered: int, out: list[Effect]) -> None:
        """Unicasts that were sent before the next multicast."""
        while (unicast := channel.next_to_deliver()) is not None and unicast.words[1] <= delivered:
            out.append(Deliver.of(channel.take()))

    def _may_deliver(self, message: Message, stream: IncomingStream, channel: IncomingChannel | None) -> bool:
        head = message.words[0]
        if message.seq > stream.viewed and not self._view.knows(head >> 48):
            return False
        for word in message.words[1 : 1 + (head >> 38 & MAX_FENCES)]:
            target, incarnation, number = unpack(word)
            if target == self._me and incarnation == self._us.incarnation:
                return channel is not None and channel.delivered >= number
        return True

    # Asking for what is missing, and answering.

    def _see_to_gaps(
        self, origin: int, incarnation: int, stream: IncomingStream, now_ns: int, out: list[Effect]
    ) -> None:
        if stream.has_gap and not stream.is_asking:
            stream.is_asking = True
            wait_ns = self._rng.randint(self._nack_delay_ns // 2, self._nack_delay_ns)
            self._timers.arm(Timer(NACK, origin << 16 | incarnation), now_ns + wait_ns, out)

    def _on_nack_timer(self, timer: Timer, now_ns: int, out: list[Effect]) -> None:
        origin, incarnation = timer.key >> 16, timer.key & 0xFFFF
        ending = self._endings.get((origin, incarnation))
        is_live = self._view.incarnations[origin] == incarnation
        stream = ending.stream if ending is not None else self._streams.get(origin) if is_live else None
        if stream is None:
            return
        stream.is_asking = False
        # While an ending stream has no final number, and so no gap, nobody is asked.
        holders = [origin] if ending is None else ending.holders(self._view.live)
        if not stream.has_gap or not holders:
            return
        target = self._rng.choice(holders)
        wanted, next_ns = stream.ask(
            now_ns, self._round_trips.of(target), burst=self._parameters.burst, pause_ns=self._nack_delay_ns
        )
        if wanted:
            words = (pack(origin, incarnation, stream.position), *ranges_of(wanted))
            out.append(Send(target=target, message=self._us.message(Kind.RELIABLE_NACK, flags=CONTROL, words=words)))
        stream.is_asking = True
        self._timers.arm(timer, next_ns, out)

    def _on_nack(self, message: Message, source: int, now_ns: int, out: list[Effect]) -> None:
        if len(message.words) < 2:
            raise RemoteError(DropReason.MALFORMED, f"a negative acknowledgement of {len(message.words)} words")
        numbers = numbers_of(message.words[1:], self._parameters.burst)
        self._hear(message, now_ns, out)
        entry = unpack(message.words[0])
        if entry.member == self._me and entry.incarnation == self._us.incarnation:
            self._own.acknowledge(source, entry.number)
            for number in numbers:
                self._answer(number, source, now_ns, out)
            return
        ending = self._endings.get((entry.member, entry.incarnation))
        if ending is None or ending.stream is None:
            _refuse(message, source, DropReason.UNEXPECTED, out)
            return
        held = (ending.stream.held.get(number) for number in numbers if number <= ending.stream.position)
        out.extend(Send(target=source, message=again(found)) for found in held if found is not None)

    def _answer(self, number: int, asker: int, now_ns: int, out: list[Effect]) -> None:
        # Without multicast each asker is answered by itself, and when it asks again, again.
        hold_ns = self._parameters.retry_least_ns // 2 if self._us.has_multicast else 0
        answer = self._own.answer(number, asker, now_ns, hold_ns)
        if answer is Answer.ONE:
            out.append(Send(target=asker, message=again(self._own.held[number])))
        elif answer is Answer.ALL:
            out.append(Multicast(message=again(self._own.held[number])))

    # Telling where we stand.

    def _heartbeat(
        self,
        *,
        positions: tuple[Entry, ...] = (),
        closed: tuple[Entry, ...] = (),
        awaited: tuple[int, ...] = (),
    ) -> Message:
        """Every heartbeat carries our floor, our whole view and all our suspicions."""
        heartbeat = Heartbeat(
            positions=positions,
            closed=closed,
            awaited=awaited,
            suspects=tuple(Entry(member, self._view.incarnations[member], 0) for member in self._suspicion.suspects()),
            over=self._view.entries(),
        )
        words = heartbeat.to_words()
        return self._us.message(Kind.RELIABLE_HEARTBEAT, seq=self._own.floor, flags=CONTROL, words=words)

    def _own_position(self) -> Entry:
        return Entry(self._me, self._us.incarnation, self._own.last)

    def _position(self, origin: int) -> Entry:
        """Our position in a live stream; whoever asks for it, tells it."""
        stream = self._streams[origin]
        stream.told = stream.position
        return Entry(origin, self._view.incarnations[origin], stream.position)

    def _tell_untold(self, most: int) -> list[Entry]:
        told = sorted(self._untold)[:most]
        self._untold.difference_update(told)
        return [self._position(origin) for origin in told]

    def _on_heartbeat(self, message: Message, source: int, now_ns: int, out: list[Effect]) -> None:
        heartbeat = Heartbeat.from_words(message.words)
        self._hear(message, now_ns, out)
        if not self._take_over(heartbeat.over, source, now_ns, out):
            return
        self._take_suspects(heartbeat.suspects, source, now_ns, out)
        stream = self._streams.get(source)
        for entry in heartbeat.positions:
            if stream is not None and entry[:2] == (source, message.incarnation):
                stream.learn(entry.number)
            else:
                self._take_position(entry, source)
        if stream is not None:
            self._take_floor(source, stream, message.seq, out)
            self._pump(source, stream, out)
            stream.raise_floor(message.seq)
            self._see_to_gaps(source, message.incarnation, stream, now_ns, out)
            if not stream.is_settled:
                self._arm_tick(now_ns, out)
        self._take_closed(heartbeat, source, now_ns, out)
        if self._me in heartbeat.awaited:
            self._owed.add(source)
            spread_ns = len(heartbeat.awaited) * self._parameters.heartbeat_per_member_ns // 2
            self._timers.arm(REPLY, now_ns + self._rng.randint(0, min(self._interval_ns, spread_ns)), out)

    def _take_position(self, entry: Entry, source: int) -> None:
        if entry.member == self._me and entry.incarnation == self._us.incarnation:
            self._own.acknowledge(source, entry.number)

    def _take_floor(self, source: int, stream: IncomingStream, floor: int, out: list[Effect]) -> None:
        """A joiner's part of a stream begins in earnest when all before it is stable: until then the origin may crash
        and take with it what nobody else has received.
        """
        if source in self._strangers and floor >= stream.start:
            self._strangers.discard(source)
            if self._phase is Phase.MEMBER:
                out.append(_news(Kind.RELIABLE_JOINED, source, self._view.incarnations[source], stream.start))
            self._enter_member_if_welcome(out)

    def _on_reply(self, out: list[Effect]) -> None:
        owed = sorted(self._owed.intersection(self._view.live))
        self._owed.clear()
        if not owed:
            return
        heartbeats = self._full_heartbeats()
        if self._is_worth_multicast(len(owed)):
            out.extend(Multicast(message=message) for message in heartbeats)
        else:
            out.extend(Send(target=member, message=message) for member in owed for message in heartbeats)

    def _is_worth_multicast(self, count: int) -> bool:
        """Whether so many are better told by a word to everybody: a datagram that all must read, or one for each."""
        most = max(1, len(self._view.live) // 4) if self._us.has_multicast else self._fan_out - 1
        return count > most

    def _full_heartbeats(self) -> list[Message]:
        """All we know; in several messages if it does not fit one."""
        known = (self._position(origin) for origin, stream in sorted(self._streams.items()) if stream.known)
        positions = (self._own_position(), *known)
        closed = tuple(Entry(*key, ending.position) for key, ending in sorted(self._endings.items()))
        size = POSITIONS_PER_HEARTBEAT
        chunks = [positions[start : start + size] for start in range(0, len(positions), size)]
        return [self._heartbeat(positions=chunk, closed=() if index else closed) for index, chunk in enumerate(chunks)]

    # The tick: positions that are due, questions to the silent, suspicions.

    def _arm_tick(self, now_ns: int, out: list[Effect]) -> None:
        if TICK not in self._timers:
            self._ticked_ns = now_ns
            wait_ns = self._rng.randint(self._interval_ns, self._interval_ns * 3 // 2)
            self._timers.arm(TICK, now_ns + wait_ns, out)

    def _on_tick(self, now_ns: int, out: list[Effect]) -> None:
        elapsed_ns = min(now_ns - self._ticked_ns, 2 * self._interval_ns)
        questions, suspects = self._suspicion.tick(self._awaited(), elapsed_ns)
        for member in suspects:
            self._news.restart()
            incarnation = self._view.incarnations[member]
            out.append(Report(code=ReliableReport.SUSPECTED, member=member, value=incarnation))
        self._end_convicted(now_ns, out)
        questions = [member for member in questions if member in self._view.live]
        self._greet(questions, out)
        self._tell_positions(questions, elapsed_ns, now_ns, out)
        if self._is_settled():
            self._suspicion.rest()
        else:
            self._arm_tick(now_ns, out)

    def _awaited(self) -> dict[int, int]:
        """Live members whose word we miss, each with a number that changes whenever it gives some of it."""
        awaited = dict.fromkeys((*self._strangers, *self._suspicion.doubts), 0)
        for member, acked in (*self._own.lacking(), *self._channels.lacking()):
            awaited[member] = awaited.get(member, 0) + acked
        for source, received in self._channels.holding():
            awaited[source] = awaited.get(source, 0) + received
        for origin, stream in self._streams.items():
            if not stream.is_settled:
                awaited[origin] = awaited.get(origin, 0) + stream.position + stream.delivered + stream.floor
        for ending in self._endings.values():
            for member in () if ending.is_settled else self._view.live:
                progress = ending.progress(member)
                if progress is not None:
                    awaited[member] = awaited.get(member, 0) + progress
        return {member: progress for member, progress in awaited.items() if member in self._view.live}

    def _greet(self, questions: list[int], out: list[Effect]) -> None:
        """Ask strangers for their WELCOME."""
        due = self._strangers.intersection(questions)
        if due and self._phase is Phase.JOINING:
            out.append(Multicast(message=self._join()))
        else:
            out.extend(Send(target=member, message=self._join()) for member in sorted(due))

    def _tell_positions(self, questions: list[int], elapsed_ns: int, now_ns: int, out: list[Effect]) -> None:
        own = self._own
        is_quiet = now_ns - self._sent_ns >= self._interval_ns // 2
        is_floor_due = own.announced < own.floor == own.last and is_quiet
        has_news = bool(self._suspicion.suspects()) or not all(map(_is_settled, self._endings.values()))
        is_news_due = has_news and self._news.is_due(elapsed_ns)
        if is_news_due:
            # Traffic counts as progress and so puts off the questions of the tick; an ending must not wait for silence.
            questions = sorted({*questions, *self._silent_about_endings()})
        # Who multicasts tells them on the way, after half an interval: leave it that chance.
        untold = self._untold if now_ns - self._told_ns >= self._interval_ns else frozenset[int]()
        recipients = sorted(untold.union(questions))
        if is_floor_due or is_news_due or self._is_worth_multicast(len(recipients)):
            self._broadcast(tuple(questions), now_ns, out)
        else:
            for member in recipients:
                self._tell(member, member in questions, out)

    def _silent_about_endings(self) -> set[int]:
        """Live members that have not told us that they have all of what is ending."""
        open_endings = [ending for ending in self._endings.values() if not ending.is_settled]
        return {member for member in self._view.live for ending in open_endings if ending.progress(member) is not None}

    def _tell(self, member: int, is_question: bool, out: list[Effect]) -> None:
        """A heartbeat for one: its position, and ours."""
        self._untold.discard(member)
        positions = (self._own_position(), *((self._position(member),) if member in self._streams else ()))
        heartbeat = self._heartbeat(
            positions=positions, closed=self._unsettled(), awaited=(member,) if is_question else ()
        )
        out.append(Send(target=member, message=heartbeat))

    def _broadcast(self, questions: tuple[int, ...], now_ns: int, out: list[Effect]) -> None:
        """A heartbeat for all: our positions that are not known, and all news."""
        self._told_ns = now_ns
        self._own.announced = self._own.floor
        if not self._us.has_multicast:
            # Also to those who are over: they may not know it.
            for member in self._us.peers:
                self._tell(member, member in questions, out)
            return
        positions = (self._own_position(), *self._tell_untold(POSITIONS_PER_HEARTBEAT))
        heartbeat = self._heartbeat(positions=positions, closed=self._unsettled(), awaited=questions)
        out.append(Multicast(message=heartbeat))

    def _unsettled(self) -> tuple[Entry, ...]:
        endings = sorted(self._endings.items())
        return tuple(Entry(*key, ending.position) for key, ending in endings if not ending.is_settled)

    def _is_settled(self) -> bool:
        own = self._own
        return (
            own.floor == own.last
            and (own.announced == own.floor or not self._view.live)
            and all(stream.is_settled for stream in self._streams.values())
            and all(map(_is_settled, self._endings.values()))
            and self._channels.is_settled
            and not self._strangers
            and not self._suspicion.doubts
        )

    # The end of an incarnation.

    def _take_suspects(self, entries: tuple[Entry, ...], source: int, now_ns: int, out: list[Effect]) -> None:
        live = ((entry.member, entry.incarnation) for entry in entries if entry.member in self._view.live)
        named = [member for member, incarnation in live if incarnation == self._view.incarnations[member]]
        self._suspicion.take(named, source)
        self._end_convicted(now_ns, out)
        if named:
            self._arm_tick(now_ns, out)

    def _end_convicted(self, now_ns: int, out: list[Effect]) -> None:
        for member in self._suspicion.convicted(self._view.live):
            self._end(member, self._view.incarnations[member], now_ns, out)

    def _take_over(self, entries: tuple[Entry, ...], source: int, now_ns: int, out: list[Effect]) -> bool:
        """Believe what others know to be over. False when it is we."""
        for member, over, known in entries:
            if member == self._me:
                if over >= self._us.incarnation:
                    self._enter_expelled(source, out)
                    return False
            elif member in self._view.incarnations:
                if known > max(over, self._view.incarnations[member]):
                    self._meet(member, known, now_ns, out)
                else:
                    self._end(member, over, now_ns, out)
        return True

    def _end(self, member: int, incarnation: int, now_ns: int, out: list[Effect]) -> None:
        """All lives of `member` up to `incarnation` are over: its stream is ending, and nobody waits for it any
        more."""
        if not self._view.is_stale(member, incarnation):
            self._close(member, incarnation, out)
            self._change_view(now_ns, out)

    def _close(self, member: int, incarnation: int, out: list[Effect]) -> None:
        """What of `_end` comes before anybody hears of the new view."""
        last = self._view.incarnations[member]
        if self._view.end(member, incarnation):
            out.append(Report(code=ReliableReport.OVER, member=member, value=incarnation))
            self._own.forget(member)
            self._channels.forget(member, out)
            self._suspicion.forget(member)
            self._untold.discard(member)
            self._owed.discard(member)
            stream = self._streams.pop(member, None)
            # Who has not joined has no part in it, though it may have received some of it.
            is_party = self._phase is Phase.MEMBER and member not in self._strangers
            self._strangers.discard(member)
            self._bury(member, last, stream if is_party else None)
            if self._phase is Phase.MEMBER and (stream is None or not is_party):
                out.append(_news(Kind.RELIABLE_ENDED, member, last))

    def _bury(self, member: int, incarnation: int, stream: IncomingStream | None) -> Ending:
        """The record of an ending stream; of each member only the last few, whatever we are told."""
        ending = self._endings[member, incarnation] = Ending(stream)
        settled = [key for key in sorted(self._endings) if key[0] == member and self._endings[key].is_settled]
        for key in settled[:-TOMBSTONES_PER_MEMBER]:
            del self._endings[key]
        return ending

    def _change_view(self, now_ns: int, out: list[Effect]) -> None:
        """What was told under the old view no longer counts; what waited for this one may be delivered; all must
        know."""
        for key, ending in sorted(self._endings.items()):
            ending.restart()
            self._review(key, ending, now_ns, out)
        for origin, stream in sorted(self._streams.items()):
            self._pump(origin, stream, out)
        self._enter_member_if_welcome(out)
        if self._phase is Phase.MEMBER:
            self._news.restart()
            self._broadcast((), now_ns, out)
        self._arm_tick(now_ns, out)

    def _take_closed(self, heartbeat: Heartbeat, source: int, now_ns: int, out: list[Effect]) -> None:
        is_same_view = self._view.is_same(heartbeat.over)
        for member, incarnation, number in heartbeat.closed:
            if not self._view.is_stale(member, incarnation):
                continue
            ending = self._endings.get((member, incarnation)) or self._bury(member, incarnation, None)
            if is_same_view and source in self._view.live:
                ending.report(source, number)
                self._review((member, incarnation), ending, now_ns, out)

    def _review(self, key: tuple[int, int], ending: Ending, now_ns: int, out: list[Effect]) -> None:
        """Take an ending stream as far as what we have been told allows."""
        stream = ending.stream
        if stream is None or ending.is_settled:
            return
        ending.decide(self._view.live)
        self._see_to_gaps(*key, stream, now_ns, out)
        if stream.position == ending.final and not ending.has_ended:
            self._deliver_end(key, stream, out)
            ending.has_ended = True
            self._news.restart()
        ending.settle(self._view.live)

    def _deliver_end(self, key: tuple[int, int], stream: IncomingStream, out: list[Effect]) -> None:
        """What all survivors have, whether or not its fences (unicasts that nobody can send again) are satisfied; then
        the news.
        """
        while stream.delivered < stream.position:
            stream.delivered += 1
            out.append(Deliver.of(stream.held[stream.delivered]))
        out.append(_news(Kind.RELIABLE_ENDED, *key, seq=stream.position))

    def _enter_expelled(self, source: int, out: list[Effect]) -> None:
        self._phase = Phase.EXPELLED
        out.append(Report(code=ReliableReport.EXPELLED, member=source, value=self._us.incarnation))
        self._timers.disarm_all(out)

    # The beginning of an incarnation, ours or another's.

    def _join(self) -> Message:
        words = (1 if self._phase is Phase.JOINING else 0,)
        return self._us.message(Kind.RELIABLE_JOIN, flags=CONTROL, words=words)

    def _meet(self, member: int, incarnation: int, now_ns: int, out: list[Effect]) -> None:
        """A higher incarnation than we knew: the earlier ones are over, and this one is a stranger."""
        if not self._view.is_stale(member, incarnation - 1):
            self._close(member, incarnation - 1, out)
        self._view.meet(member, incarnation)
        # Before the view counts: a joiner that misses no other WELCOME would be a member now, without this life.
        self._strangers.add(member)
        self._change_view(now_ns, out)

    def _on_join(self, message: Message, source: int, now_ns: int, out: list[Effect]) -> None:
        if message.words not in ((0,), (1,)):
            raise RemoteError(DropReason.MALFORMED, f"a join with the words {message.words}")
        self._hear(message, now_ns, out)
        start = self._own.register(source)
        over = (pack(*entry) for entry in self._view.entries())
        words = (message.incarnation, self._own.floor, *over)
        welcome = self._us.message(Kind.RELIABLE_WELCOME, seq=start, flags=CONTROL, words=words)
        out.append(Send(target=source, message=welcome))
        # It starts and waits for us, so it has sent nothing yet: its stream begins at 1 for us. If we are starting,
        # too, it may have begun without us, and only its own WELCOME says where.
        if message.words == (1,) and self._phase is Phase.MEMBER and source not in self._streams:
            self._establish(source, start=0, floor=0, out=out)

    def _on_welcome(self, message: Message, source: int, now_ns: int, out: list[Effect]) -> None:
        if len(message.words) < 2:
            raise RemoteError(DropReason.MALFORMED, f"a welcome of {len(message.words)} words")
        if message.words[0] != self._us.incarnation:
            _refuse(message, source, DropReason.STALE_INCARNATION, out)
            return
        self._hear(message, now_ns, out)
        if not self._take_over(tuple(map(unpack, message.words[2:])), source, now_ns, out):
            return
        if self._phase is Phase.JOINING:
            # Whoever answers before our first multicast counts from that one on.
            self._own.register(source)
        self._establish(source, start=message.seq, floor=message.words[1], out=out)

    def _establish(self, member: int, *, start: int, floor: int, out: list[Effect]) -> None:
        """We take part in the stream of `member`, from the message after `start` on if we do not yet."""
        stream = self._streams.get(member)
        if stream is None:
            stream = self._streams[member] = IncomingStream(start=start, window=self._parameters.window)
        self._take_floor(member, stream, floor, out)
        self._pump(member, stream, out)

    def _enter_member_if_welcome(self, out: list[Effect]) -> None:
        if self._phase is not Phase.JOINING or self._strangers:
            return
        self._phase = Phase.MEMBER
        out.append(Report(code=ReliableReport.JOINED, member=self._me, value=self._us.incarnation))
        gone = (member for member in self._us.peers if member not in self._view.live)
        out.extend(_news(Kind.RELIABLE_ENDED, member, self._view.over[member]) for member in gone)
        for origin, stream in sorted(self._streams.items()):
            out.append(_news(Kind.RELIABLE_JOINED, origin, self._view.incarnations[origin], stream.start))
        out.append(_news(Kind.RELIABLE_JOINED, self._me, self._us.incarnation))
        for origin, stream in sorted(self._streams.items()):
            self._pump(origin, stream, out)


def _news(kind: Kind, member: int, incarnation: int, seq: int = 0) -> Deliver:
    return Deliver(payload=b"", origin=member, incarnation=incarnation, seq=seq, inner=kind)


def _refuse(message: Message, source: int, reason: DropReason, out: list[Effect]) -> None:
    out.append(Report(code=reason, member=source, value=len(message.payload)))


def _is_settled(ending: Ending) -> bool:
    return ending.is_settled
