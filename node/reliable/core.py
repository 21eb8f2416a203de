"""FIFO reliable multicast, and reliable unicast in the same order, among the members of one view.

docs/protocols/reliable.md has the protocol, the argument and the sources. In short: receivers ask for missing messages
(negative acknowledgements), acknowledge cumulatively, and discard stable messages; a unicast names the multicast that
precedes it, a multicast the unicasts (its fences); a settled member is silent.

Invariants: `floor` <= `delivered` <= `position`; a frozen member buffers everything above its floors; it never
acknowledges more than its frozen positions. Numbers have 32 bits. Not here: suspicion, membership, authentication.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random

from node.core import Closing, Membership, Submission, ViewStreams
from node.effects import Deliver, Effect, Multicast, Report, Send, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.packing import MAX_NUMBER, numbers_of, ranges_of, unpack
from node.reliable import codec
from node.reliable.channel import ACKNOWLEDGE, RETRY, Channels
from node.reliable.codec import CONTROL, VIEW_SHIFT, entry
from node.reliable.parameters import ReliableParameters
from node.reliable.stream import IncomingStream, OutgoingStream, Stream
from node.transport import RoundTrip, Timers, retransmission
from node.wire import WORD_SIZE, Kind, Message

ANNOUNCEMENTS = 3
PIGGYBACK_COPIES = 12  # a piggybacked position costs a word in every copy, a heartbeat a frame of a hundred bytes
ROOM_BYTES = 1400  # words and payload of a data message: more would not fit an Ethernet frame with all headers
MAX_CUT_AHEAD = 2**20  # the group layer refuses a cut that exceeds our position by more than this as false

TICK = Timer("tick")
ANNOUNCE = Timer("announce")
REPLY = Timer("reply")
STABILITY = Timer("stability")
NACK = "nack"


class Phase(enum.StrEnum):
    """The phase of the streams in one view at one member."""

    OPEN = "open"
    FROZEN = "frozen"
    STOPPED = "stopped"


LEGAL: Mapping[Phase, frozenset[Kind]] = {
    Phase.OPEN: codec.KINDS,
    Phase.FROZEN: frozenset({Kind.RELIABLE_DATA, Kind.RELIABLE_NACK}),
    Phase.STOPPED: frozenset({Kind.RELIABLE_NACK}),
}
"""The kinds that are legal in each phase; all others are refused as UNEXPECTED."""


class ReliableCore(ViewStreams):
    """`membership`: of the view only; `incarnations`: by member of the view."""

    phase = Phase.OPEN

    def __init__(
        self,
        *,
        membership: Membership,
        incarnations: Mapping[int, int],
        view: int,
        parameters: ReliableParameters,
        rng: Random,
    ) -> None:
        self._us = membership
        self._me = membership.member
        self._incarnations = incarnations
        self._view = view
        self._parameters = parameters
        self._rng = rng
        count = len(membership.members)
        self._fan_out = 1 if membership.has_multicast else max(1, count - 1)  # datagrams of one multicast
        suspect_after_ns = parameters.suspect_after_ns
        interval_ns = max(parameters.heartbeat_ns, count * self._fan_out * parameters.heartbeat_per_member_ns)
        # In a group of any size several questions fit into the time before silence becomes a suspicion.
        self._interval_ns = min(interval_ns, suspect_after_ns // 8)
        self._nack_delay_ns = parameters.nack_delay_ns + count * parameters.nack_per_member_ns
        self._ack_every = max(1, parameters.window // 4 - rng.randrange(parameters.window // 8 + 1))

        self._enter(Phase.OPEN)
        self._own = OutgoingStream(membership.peers)
        self._streams = {peer: IncomingStream(window=parameters.window) for peer in membership.peers}
        self._timers = Timers()
        self._round_trips = {peer: RoundTrip(parameters) for peer in membership.peers}
        self._channels = Channels(membership, view, parameters, self._round_trips, self._timers, self._tell_position)
        self._questions = Questions(
            first_ns=min(3 * self._interval_ns, suspect_after_ns // 4),
            most_ns=max(self._interval_ns, min(parameters.retry_most_ns, suspect_after_ns // 10)),
        )
        self._unacknowledged: set[int] = set()  # origins that do not know our position
        self._acknowledged_ns = 0  # when we last told positions to all members
        self._told_ns: dict[int, int] = {}  # by origin: when a unicast last told it our position
        self._sent_ns = 0  # when we last multicast
        self._ticked_ns = 0
        self._announcements = 0
        self._pending_replies: set[int] = set()  # members that asked us for a heartbeat
        self._acknowledges_soon = False  # uniform delivery waits for stability
        self._is_held = False
        self._frozen: dict[int, int] = {}  # the positions that `freeze` fixed
        self._handlers: dict[Kind, Callable[[Message, int, int, list[Effect]], None]] = {
            Kind.RELIABLE_DATA: self._on_data,
            Kind.RELIABLE_UNICAST: self._on_unicast,
            Kind.RELIABLE_ACKNOWLEDGEMENT: self._on_acknowledgement,
            Kind.RELIABLE_NACK: self._on_nack,
            Kind.RELIABLE_HEARTBEAT: self._on_heartbeat,
        }

    @property
    def can_submit(self) -> bool:
        own = self._own
        is_open = own.position - own.floor < self._parameters.window and own.position < MAX_NUMBER
        return is_open and self.phase is Phase.OPEN and not self._is_held and self._channels.can_fence

    @property
    def is_idle(self) -> bool:
        """Whether nothing is open; in a view that has ended: whether nothing is being fetched."""
        if self.phase is not Phase.OPEN:
            return not self._timers
        return self._is_settled() and not self._pending_replies

    @property
    def buffered(self) -> int:
        """Messages in all our buffers, including, after the view, those that other members may still ask for."""
        return sum(len(stream.buffered) for stream in self._all.values()) + self._channels.buffered

    @property
    def _all(self) -> dict[int, Stream]:
        """The streams of all members, ascending."""
        return {one: self._streams.get(one, self._own) for one in self._us.members}

    def on_start(self, now_ns: int) -> list[Effect]:
        return []

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        if not self.can_submit:
            raise LocalError(f"member {self._me} takes no submission now: ask can_submit before")
        out: list[Effect] = []
        target = submission.target
        if target is None:
            self._multicast(submission, now_ns, out)
        elif target == self._me:
            out.append(Deliver.of(self._us.carrying(submission, Kind.RELIABLE_UNICAST, seq=0)))
        elif target not in self._streams:
            raise LocalError(f"member {target} is not in the view; its members are {self._us.members}")
        else:
            self._channels.send(submission, target, self._own.position, now_ns, out)
            self._arm_tick(now_ns, out)
        return out

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        out: list[Effect] = []
        reason = self._refuse_reason(message, source)
        if reason is None:
            self._handlers[message.kind](message, source, now_ns, out)
        else:
            out.append(Report.refusal(reason, message, source))
        return out

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        out: list[Effect] = []
        self._timers.fired(timer)
        if timer == TICK:
            self._on_tick(now_ns, out)
        elif timer == ANNOUNCE:
            self._on_announce(now_ns, out)
        elif timer == REPLY:
            self._on_reply(out)
        elif timer == STABILITY:
            self._tell_positions([], now_ns, out, is_urgent=True)
        elif timer.name == NACK:
            self._ask(timer.key, now_ns, out)
        elif timer.name == RETRY:
            self._channels.on_retry(timer.key, now_ns, out)
        else:
            assert timer.name == ACKNOWLEDGE, timer
            self._channels.on_acknowledge(timer.key, now_ns, out)
        return out

    # Calls by the group layer.

    def awaited(self) -> dict[int, int]:
        if self.phase is not Phase.OPEN:
            return {}
        awaited: dict[int, int] = {}
        for member, number in (*self._own.lacking(), *self._channels.lacking(), *self._channels.waiting()):
            awaited[member] = awaited.get(member, 0) + number
        for origin, stream in self._streams.items():
            if not stream.is_settled:
                awaited[origin] = awaited.get(origin, 0) + stream.position + stream.delivered + stream.floor
        return awaited

    def received(self) -> dict[int, int]:
        """The current positions, which grow while a frozen member fetches."""
        return {one: stream.position for one, stream in self._all.items()}

    def positions(self) -> dict[int, int]:
        return self.received() if self.phase is Phase.OPEN else dict(self._frozen)

    def acknowledged(self) -> dict[int, int]:
        return {one: stream.stable for one, stream in self._all.items()}

    def acknowledge_soon(self, now_ns: int) -> list[Effect]:
        """Acknowledge within `stability_ns` until this member is settled again."""
        out: list[Effect] = []
        self._acknowledges_soon = self.phase is Phase.OPEN and not self._is_settled()
        self._arm_stability(now_ns, out)
        return out

    def hold(self, is_held: bool, now_ns: int) -> list[Effect]:
        self._is_held = is_held
        out: list[Effect] = []
        if not is_held and self.phase is Phase.OPEN:
            for origin, stream in self._streams.items():
                self._pump(origin, stream, out)
                if not stream.is_settled:
                    self._arm_tick(now_ns, out)
        return out

    # The end of the view.

    def freeze(self, waiting: Iterable[Submission], now_ns: int) -> list[Effect]:
        assert self.phase is Phase.OPEN, self.phase
        self._channels.clear()
        for submission in waiting:
            if submission.target is None:
                self._own.append(self._data(submission, words=codec.pack_data(self._view, 0)), is_sent=False)
        self._frozen = self.received()
        self._enter(Phase.FROZEN)
        return self._timers.disarm_all()

    def has(self, cut: Mapping[int, int]) -> bool:
        received = self.received()
        return all(received[origin] >= number for origin, number in cut.items())

    def fetch(self, cut: Mapping[int, int], holders: Mapping[int, Sequence[int]], now_ns: int) -> list[Effect]:
        assert self.phase is Phase.FROZEN, self.phase
        out = self._timers.disarm_all()
        for origin, stream in self._streams.items():
            stream.fetch(cut.get(origin, 0), [one for one in holders.get(origin, ()) if one != self._me])
            self._ask(origin, now_ns, out)
        return out

    def rest(self, cut: Mapping[int, int]) -> dict[int, list[Message]]:
        # Fences do not count: the unicasts that they name may never come.
        assert self.phase is not Phase.OPEN and self.has(cut), (self.phase, cut)
        return {
            origin: [stream.buffered[number] for number in range(stream.delivered + 1, cut.get(origin, 0) + 1)]
            for origin, stream in self._all.items()
        }

    def close(self, cut: Mapping[int, int], now_ns: int) -> Closing:
        rest = self.rest(cut)
        return Closing(effects=tuple(Deliver.of(message) for messages in rest.values() for message in messages))

    def stop(self, now_ns: int) -> list[Effect]:
        self._enter(Phase.STOPPED)
        return self._timers.disarm_all()

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._legal = LEGAL[phase]

    # Our own multicasts.

    def _data(self, submission: Submission, words: tuple[int, ...]) -> Message:
        return self._us.carrying(submission, Kind.RELIABLE_DATA, seq=self._own.position + 1, words=words)

    def _multicast(self, submission: Submission, now_ns: int, out: list[Effect]) -> None:
        own = self._own
        fences = self._channels.fences()
        positions = self._piggyback(ROOM_BYTES - len(submission.payload) - WORD_SIZE * len(fences), now_ns)
        words = codec.pack_data(self._view, own.position + 1 - own.floor, fences, positions)
        message = self._data(submission, words)
        own.announced = own.floor
        own.append(message, is_sent=True)
        self._sent_ns = now_ns
        self._announcements = 0
        out.append(Multicast(message=message))
        out.append(Deliver.of(message))
        if own.floor < own.position:
            self._timers.arm(ANNOUNCE, now_ns + self._announce_after_ns(), out)
            self._arm_tick(now_ns, out)

    def _piggyback(self, room_bytes: int, now_ns: int) -> tuple[int, ...]:
        """Acknowledgements that are due and our positions that their origins do not know, as many as fit the frame;
        no positions soon after the last ones."""
        most = min(codec.MAX_PIGGYBACK, room_bytes // WORD_SIZE)
        if most <= 0 or self._fan_out > PIGGYBACK_COPIES:
            return ()
        words = self._channels.take_acknowledgements(most)
        is_early = now_ns - self._acknowledged_ns < self._interval_ns // 2 and not self._acknowledges_soon
        if self._unacknowledged and len(words) < most and not is_early:
            self._acknowledged_ns = now_ns
            words += tuple(map(self._position, self._take_unacknowledged(most - len(words))))
        return words

    def _on_announce(self, now_ns: int, out: list[Effect]) -> None:
        """Announce the last number a few times, because a lost tail shows no gap; then the tick asks the silent
        members."""
        own = self._own
        if own.floor == own.position or self._announcements == ANNOUNCEMENTS:
            return
        due_ns = self._sent_ns + self._announce_after_ns()
        if now_ns >= due_ns:
            self._announcements += 1
            due_ns = now_ns + self._announce_after_ns()
            heartbeat = self._heartbeat((self._me,))
            if self._us.has_multicast:
                own.announced = own.floor
                out.append(Multicast(message=heartbeat))
            else:
                out.extend(Send(target=member, message=heartbeat) for member, _ in sorted(own.lacking()))
        self._timers.arm(ANNOUNCE, due_ns, out)

    def _announce_after_ns(self) -> int:
        """Time until the next announcement. The first is early if it is one datagram; others leave all receivers the
        time to acknowledge."""
        early_ns = self._parameters.announce_ns << self._announcements
        is_early = self._us.has_multicast and not self._announcements
        return early_ns if is_early else max(early_ns, self._interval_ns * 3 // 2)

    # Messages of others.

    def _refuse_reason(self, message: Message, source: int) -> DropReason | None:
        """The reason to refuse a message before its content is read; None: it is not. RemoteError MALFORMED: it names
        no view."""
        origin = message.origin
        if message.kind not in self._legal or codec.view_of(message) != self._view:
            return DropReason.UNEXPECTED
        if self._me in (origin, source):
            return DropReason.OWN
        if origin not in self._streams or source not in self._streams:
            return DropReason.UNKNOWN_MEMBER
        if message.incarnation != self._incarnations[origin]:
            return DropReason.STALE_INCARNATION
        if message.seq > MAX_NUMBER:
            return DropReason.MALFORMED
        if source != origin and (message.kind is not Kind.RELIABLE_DATA or self.phase is Phase.OPEN):
            return DropReason.UNEXPECTED
        return None

    def _on_data(self, message: Message, source: int, now_ns: int, out: list[Effect]) -> None:
        lag, _, positions = codec.unpack_data(message)
        stream = self._streams[message.origin]
        if self.phase is Phase.OPEN:
            for told in map(unpack, positions):
                if told.member == self._me and told.incarnation:
                    self._channels.acknowledge(source, told.number, now_ns, out)
                elif told.member == self._me:
                    self._own.acknowledge(source, told.number)
        cut = stream.cut or 0
        is_relay_beyond_cut = source != message.origin and message.seq > cut
        reason = DropReason.UNEXPECTED if is_relay_beyond_cut else stream.accept(message, cut)
        if reason is not None:
            out.append(Report.refusal(reason, message, source))
            return
        stream.requests.answered(message, now_ns, self._round_trips[source])
        if self.phase is Phase.FROZEN:
            if stream.position >= stream.wanted:
                self._timers.disarm(Timer(NACK, message.origin), out)
            return
        self._unacknowledged.add(source)
        self._pump(source, stream, out)
        stream.learn_stable(message.seq - lag if lag else 0)
        self._arm_nack(source, stream, now_ns, out)
        if stream.position - stream.acknowledged >= self._ack_every:
            self._unacknowledged.discard(source)
            out.append(Send(target=source, message=self._heartbeat((source,))))
        self._arm_stability(now_ns, out)
        self._arm_tick(now_ns, out)

    def _on_unicast(self, message: Message, source: int, now_ns: int, out: list[Effect]) -> None:
        if len(message.words) != 2 or message.seq == 0:
            raise RemoteError(DropReason.MALFORMED, f"unicast {message.seq} with {len(message.words)} words")
        self._own.acknowledge(source, message.words[1] >> 32)
        self._channels.receive(message, now_ns, out)
        self._pump(source, self._streams[source], out)
        self._streams[source].release()
        self._arm_stability(now_ns, out)
        if self._channels.receivers[source].buffered:
            # A unicast waits for an earlier message of a sender that may have crashed: the tick reads `awaited`.
            self._arm_tick(now_ns, out)

    def _on_acknowledgement(self, message: Message, source: int, now_ns: int, out: list[Effect]) -> None:
        if len(message.words) != 1:
            raise RemoteError(DropReason.MALFORMED, f"an acknowledgement of {len(message.words)} words")
        self._own.acknowledge(source, message.words[0] & 0xFFFF_FFFF)
        self._channels.acknowledge(source, message.seq, now_ns, out)
        self._arm_stability(now_ns, out)

    def _pump(self, origin: int, stream: IncomingStream, out: list[Effect]) -> None:
        """Deliver multicasts and unicasts of `origin` as far as possible, in the order in which it sent them."""
        if self._is_held:
            return
        unicasts = self._channels.receivers[origin]
        while True:
            while (unicast := unicasts.buffered.get(unicasts.delivered + 1)) is not None:
                if unicast.words[0] & 0xFFFF_FFFF > stream.delivered:
                    break
                unicasts.delivered += 1
                out.append(Deliver.of(unicasts.buffered.pop(unicasts.delivered), is_unicast=True))
            if stream.delivered == stream.position:
                break
            message = stream.buffered[stream.delivered + 1]
            if codec.fence_of(message, self._me) > unicasts.delivered:
                break
            stream.delivered += 1
            out.append(Deliver.of(message))

    # Requests for missing messages, and answers.

    def _arm_nack(self, origin: int, stream: IncomingStream, now_ns: int, out: list[Effect]) -> None:
        if stream.known > stream.position and Timer(NACK, origin) not in self._timers:
            wait_ns = self._rng.randint(self._nack_delay_ns // 2, self._nack_delay_ns)
            self._timers.arm(Timer(NACK, origin), now_ns + wait_ns, out)

    def _ask(self, origin: int, now_ns: int, out: list[Effect]) -> None:
        """Request missing messages of one stream from its origin, or in a frozen view from its holders in turn."""
        stream = self._streams[origin]
        holders = [origin] if stream.cut is None else stream.holders
        if stream.position >= stream.wanted or not holders:
            return
        numbers, next_ns, is_repeated = stream.requests.ask(
            stream.missing(),
            now_ns,
            self._round_trips[holders[0]],
            burst=self._parameters.burst,
            pause_ns=self._nack_delay_ns,
            holders=len(holders),
        )
        if is_repeated:
            holders.append(holders.pop(0))
        if numbers:
            position = stream.position if self.phase is Phase.OPEN else 0  # a frozen member acknowledges nothing
            words = (self._view << VIEW_SHIFT | origin, *ranges_of(numbers))
            message = self._us.message(Kind.RELIABLE_NACK, seq=position, flags=CONTROL, words=words)
            out.append(Send(target=holders[0], message=message))
        self._timers.arm(Timer(NACK, origin), next_ns, out)

    def _on_nack(self, message: Message, source: int, now_ns: int, out: list[Effect]) -> None:
        if len(message.words) < 2:
            raise RemoteError(DropReason.MALFORMED, f"a negative acknowledgement of {len(message.words)} words")
        numbers = numbers_of(message.words[1:], self._parameters.burst)
        origin = message.words[0] & 0xFFFF
        if origin not in self._incarnations or (self.phase is Phase.OPEN and origin != self._me):
            out.append(Report.refusal(DropReason.UNEXPECTED, message, source))
        elif self.phase is not Phase.OPEN:
            buffered = self._streams.get(origin, self._own).buffered
            found = (buffered[number] for number in numbers if number in buffered)
            out.extend(Send(target=source, message=retransmission(one)) for one in found)
        else:
            self._own.acknowledge(source, message.seq)
            # Without multicast each asker gets its own answer, and another one each time that it asks.
            hold_ns = self._parameters.retry_least_ns // 2 if self._us.has_multicast else 0
            answers = (self._own.answer(number, source, now_ns, hold_ns) for number in numbers)
            out.extend(answer for answer in answers if answer is not None)
            self._arm_stability(now_ns, out)

    # Heartbeats: positions, the watermark, questions.

    def _heartbeat(self, origins: Iterable[int], awaited: Iterable[int] = ()) -> Message:
        """A heartbeat with our positions in the streams of `origins` and a question to `awaited`."""
        words = codec.pack_heartbeat(self._view, tuple(map(self._position, origins)), tuple(awaited))
        return self._us.message(Kind.RELIABLE_HEARTBEAT, seq=self._own.floor, flags=CONTROL, words=words)

    def _position(self, member: int) -> int:
        """The entry of our position in the stream of `member`; notes that it is told."""
        stream = self._streams.get(member)
        if stream is None:
            return entry(member, self._own.position)
        stream.acknowledged = stream.position
        return entry(member, stream.position)

    def _tell_position(self, member: int, now_ns: int) -> int:
        """Our position in the stream of `member`, for a unicast to it."""
        self._told_ns[member] = now_ns
        self._unacknowledged.discard(member)
        return unpack(self._position(member)).number

    def _take_unacknowledged(self, most: int) -> list[int]:
        origins = sorted(self._unacknowledged)[:most]
        self._unacknowledged.difference_update(origins)
        return origins

    def _on_heartbeat(self, message: Message, source: int, now_ns: int, out: list[Effect]) -> None:
        positions, awaited = codec.unpack_heartbeat(message.words)
        stream = self._streams[source]
        for told in positions:
            if told.member == source:
                stream.learn(told.number)
            elif told.member == self._me:
                self._own.acknowledge(source, told.number)
        stream.learn_stable(message.seq)
        self._arm_nack(source, stream, now_ns, out)
        self._arm_stability(now_ns, out)
        if not stream.is_settled:
            self._arm_tick(now_ns, out)
        if self._me in awaited:
            self._pending_replies.add(source)
            spread_ns = len(awaited) * self._parameters.heartbeat_per_member_ns // 2
            self._timers.arm(REPLY, now_ns + self._rng.randint(0, min(self._interval_ns, spread_ns)), out)

    def _on_reply(self, out: list[Effect]) -> None:
        """Tell all our positions to the members that asked, in several messages if needed."""
        askers = sorted(self._pending_replies)
        self._pending_replies.clear()
        known = [self._me, *(origin for origin, stream in self._streams.items() if stream.known)]
        size = codec.POSITIONS_PER_HEARTBEAT
        heartbeats = [self._heartbeat(known[start : start + size]) for start in range(0, len(known), size)]
        if self._is_worth_multicast(len(askers)):
            out.extend(Multicast(message=message) for message in heartbeats)
        else:
            out.extend(Send(target=member, message=message) for member in askers for message in heartbeats)

    def _is_worth_multicast(self, count: int) -> bool:
        """Whether a multicast to all is better than a message to each of `count` members: without network multicast it
        costs a datagram per member; with it all members must read it."""
        most = max(1, len(self._streams) // 4) if self._us.has_multicast else self._fan_out - 1
        return count > most

    # The tick: due acknowledgements, and questions to silent members.

    def _arm_tick(self, now_ns: int, out: list[Effect]) -> None:
        if TICK not in self._timers:
            self._ticked_ns = now_ns
            wait_ns = self._rng.randint(self._interval_ns, self._interval_ns * 3 // 2)
            self._timers.arm(TICK, now_ns + wait_ns, out)

    def _on_tick(self, now_ns: int, out: list[Effect]) -> None:
        elapsed_ns = min(now_ns - self._ticked_ns, 2 * self._interval_ns)
        questions = self._questions.due(self.awaited(), elapsed_ns)
        self._tell_positions(questions, now_ns, out)
        if self._is_settled():
            self._acknowledges_soon = False
        else:
            self._arm_tick(now_ns, out)

    def _arm_stability(self, now_ns: int, out: list[Effect]) -> None:
        if self._acknowledges_soon and (self._unacknowledged or self._own.announced < self._own.floor):
            self._timers.arm(STABILITY, now_ns + self._parameters.stability_ns, out)

    def _tell_positions(self, questions: list[int], now_ns: int, out: list[Effect], *, is_urgent: bool = False) -> None:
        """Send due positions, the watermark and `questions`: to all members, or only to those that need them."""
        own = self._own
        is_quiet = own.floor == own.position and now_ns - self._sent_ns >= self._interval_ns // 2
        is_floor_due = own.announced < own.floor and (is_quiet or is_urgent)
        # A member that multicasts piggybacks its positions after half an interval, a unicast tells one: wait for that.
        is_due = is_urgent or now_ns - self._acknowledged_ns >= self._interval_ns
        early_ns = now_ns if is_urgent else now_ns - self._interval_ns
        due = {origin for origin in self._unacknowledged if is_due and self._told_ns.get(origin, 0) <= early_ns}
        recipients = sorted(due.union(questions))
        if is_floor_due or self._is_worth_multicast(len(recipients)):
            self._acknowledged_ns = now_ns
            own.announced = own.floor
            if self._us.has_multicast:
                origins = self._take_unacknowledged(codec.POSITIONS_PER_HEARTBEAT)
                out.append(Multicast(message=self._heartbeat((self._me, *origins), questions)))
                return
            recipients = list(self._us.peers)
        for member in recipients:
            self._unacknowledged.discard(member)
            heartbeat = self._heartbeat((self._me, member), (member,) if member in questions else ())
            out.append(Send(target=member, message=heartbeat))

    def _is_settled(self) -> bool:
        own = self._own
        return (
            own.floor == own.position
            and (own.announced == own.floor or not self._streams)
            and all(stream.is_settled for stream in self._streams.values())
            and self._channels.is_settled
        )


class Questions:
    """Questions to silent members: the first after `first_ns` without progress, then with pauses that double."""

    __slots__ = ("_first_ns", "_most_ns", "_silence")

    def __init__(self, *, first_ns: int, most_ns: int) -> None:
        self._first_ns = first_ns
        self._most_ns = most_ns
        self._silence: dict[int, tuple[int, int, int]] = {}
        """By member: its progress, the time in ns since the progress or the last question, the pause until the next
        question."""

    def due(self, awaited: Mapping[int, int], elapsed_ns: int) -> list[int]:
        """Members to ask now that another `elapsed_ns` have passed. `awaited`: by member whose answer is missing, a
        number that changes with its progress."""
        due: list[int] = []
        silence: dict[int, tuple[int, int, int]] = {}
        for member, progress in sorted(awaited.items()):
            before, waited_ns, pause_ns = self._silence.get(member, (progress, 0, self._first_ns))
            waited_ns += elapsed_ns
            if before != progress:
                waited_ns, pause_ns = 0, self._first_ns
            elif waited_ns >= pause_ns:
                waited_ns, pause_ns = 0, min(2 * pause_ns, self._most_ns)
                due.append(member)
            silence[member] = (progress, waited_ns, pause_ns)
        self._silence = silence
        return due
