"""Total order by agreed timestamps: Skeen's ABCAST, over reliable FIFO channels.

Paper 003, section 4, in our translation: "the receiver returns a message to its sender with a timestamp of its logical
clock; when the sender has the timestamps of all receivers it sends the latest of them to all; by it the receivers
decide the order of delivery". It is Skeen's algorithm, which the early Isis used. The paper calls the two answers
acknowledge and commit.

    initiator             everybody else
    DATA k -------------> clock + 1, and holds it there, tentatively
           <------------- PROPOSAL k: that timestamp
    F = the largest
    FINAL k: F ---------> clock at least F; moves it there; it is final

Whoever's first message is final delivers it. Three messages, two delays at the initiator, three elsewhere. One order
for what is tentative and what is final: (timestamp, place of the initiator, incarnation, number). A proposal grows to
the final timestamp and everything else of the key stays, so nothing ever moves forward in the queue.

Why the order is total. Let p deliver m with F(m), and let m' come there later. The clock is at least F(m) by then (it
jumps at FINAL), p proposes more, and F(m') is not less than any proposal of who is awaited. If m' had come before, its
place in the queue was not before m, nor will it be. It is causal: who has delivered m proposes more for whatever it
sends. It is FIFO: the initiator gives its messages rising timestamps, also when who proposed the largest has ended
before the next message; they become final in their order, as channels are FIFO and who is awaited for one is awaited
for the next.

Deviations. The paper has neither crashes nor joiners. Nothing comes twice, so no proposal is given again: that is the
layer below. FINALs that are ready together travel in one. A sender has at most `outstanding` messages that it has not
delivered, so everybody's queue is bounded.

A member that ends. The reliable layer's news of an end comes when all survivors have received the same of its stream,
and nobody takes more of it. So initiators await it no more; what it has proposed counts or not, as it happens: the
initiator alone decides, and its word is the same for all. And of a message that it has initiated itself all survivors
have the FINAL, or none has, and nobody that lives has delivered it: all drop it (report LOST). There is no take-over
to elect anybody for: the agreed end is the fence. Who crashes after it has proposed nothing, yet acknowledged all, is
missed by nobody below; so whoever sees its queue stand still for a second says FINAL without a timestamp
(`standstill.py`): who does not acknowledge that is missed.

A member that joins (a later life): node/protocols/joining.py, with timestamps for numbers. It proposes from the start,
and holds what it has proposed for. Others await it for what they initiate after its JOIN, and answer with their clock
when all that they initiated before that is final. `start` is the largest answer. It delivers what is later, and sends
later. It has everything later, in the right order:
  - Who initiated m before the JOIN came and lived to answer: its clock was at least F(m) then, so F(m) <= start.
  - Who initiated m after that: the joiner's part of its stream had begun, so it has DATA and FINAL. It was awaited, so
    what it delivered before m came is before m; and what it held then it delivers when its turn has come, as everybody.
    It delivers nothing while it joins.
  - Whose end came before its answer: each answer that counts was given after its giver heard of that end, thus of all
    its FINALs. They are not later than start: the joiner, which may have some of them, delivers none.
  - Who is a later life itself awaits whoever has welcomed it for all that it sends, and others from their JOIN on, as
    above.
The FINAL of something that the joiner was not awaited for may be less than what it has proposed, or come without DATA;
either comes before that initiator's answer, so only while it joins. It begins with a FINAL without a timestamp, so that
nobody welcomes it any more.

Words to one member name the life that they are for: flow control may hold them back until the next one has joined.

Invariants: keys in the queue only grow, outside of joining; finals of one life rise with its numbers; nothing is
delivered before something that is held; what was delivered is a prefix (of a joiner: a middle part) of one sequence,
the same for all who live on.

Memory. Of a life that lies we hold MOST_OUTSTANDING messages that are not final. A joiner also holds what is final
while it waits for welcomes: MOST_WHILE_JOINING of each life. Who sends more is refused from there on.

Not mended: an effect can outlive its cause. FINAL(m) of 0 reaches only 1, which delivers m and sends m'. Then 0 and 1
crash, when all have FINAL(m') and nobody that lives has FINAL(m). The survivors drop m (LOST) and deliver m'. To erase
m' too, each message would have to say what its sender had delivered of whom, as in allack (causes.py).

Delivery is AGREED, not uniform (see the reliable layer). A member that is silent delays what comes after any message
that awaits it (the convoy effect): that is the algorithm. Not here: a clock that has reached MAX_TIMESTAMP stops the
order, safely.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from node.clocks import MAX_TIMESTAMP
from node.core import Core, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report, Send, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.parameters import require
from node.protocols.joining import Joining, Life
from node.protocols.reliable import ReliableParameters
from node.protocols.standstill import PROD, StandStill
from node.protocols.timers import Timers
from node.trace import Notice
from node.wire import LOCAL_KINDS, Flag, Kind, Message

CONTROL = Flag.CONTROL.value
ASK = Timer("ask")
MOST_OUTSTANDING = 512
"""No member has more messages that are not final; who sends more of them is refused."""
MOST_WHILE_JOINING = 1 << 15
"""Messages of one life that a joiner keeps until it begins; who sends more of them is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbcastParameters:
    """Of the order and of the reliable layer under it."""

    outstanding: int = 64
    """Own messages that are not delivered yet."""
    report_costs: bool = False
    """Report with every delivery what the order has cost it (Notice.COST)."""
    reliable: ReliableParameters = field(default_factory=ReliableParameters)

    def __post_init__(self) -> None:
        require(
            1 <= self.outstanding <= MOST_OUTSTANDING,
            f"outstanding must lie between 1 and {MOST_OUTSTANDING} messages, not {self.outstanding}",
        )


class Phase(enum.StrEnum):
    """JOINING until everybody has welcomed us; EXHAUSTED when the clock has no timestamp left."""

    JOINING = "joining"
    RUNNING = "running"
    EXHAUSTED = "exhausted"


class AbcastReport(enum.IntEnum):
    """Codes of our reports."""

    EXHAUSTED = 0xB1
    """The clock has reached its end: this member proposes nothing any more, and the order stops."""
    WELCOMED = 0xB2
    """This later life takes part; `value`: it delivers what is later than this timestamp."""
    LOST = 0xB3
    """`member` has ended, and `value` messages of it were not final: no survivor delivers them."""


class Key(NamedTuple):
    """A place in the order; it differs between any two messages."""

    timestamp: int
    place: int
    incarnation: int
    number: int


@dataclass(slots=True, kw_only=True)
class _Held:
    """A message in the queue, ours or another's."""

    message: Message
    key: Key
    received_ns: int
    is_final: bool = False


@dataclass(slots=True, kw_only=True)
class _Stream:
    """What we have of one life's messages. `first` and `final` are None until we know: of a stream of which we have
    but a part.
    """

    first: int | None
    """The number of its first DATA for us."""
    final: int | None
    """All up to this number are final."""
    last: int = 0
    """The number of its last DATA."""
    timestamp: int = 0
    """Of its last FINAL."""
    open: dict[int, _Held] = field(default_factory=dict)
    """What is not final, by number, ascending."""

    def check_data(self, number: int) -> None:
        """RemoteError MALFORMED when this cannot be its next message."""
        is_next = number > (self.final or 0) if self.first is None else number == self.last + 1
        if not is_next:
            raise RemoteError(DropReason.MALFORMED, f"message {number} after {self.last}")
        if len(self.open) >= MOST_OUTSTANDING:
            raise RemoteError(DropReason.MALFORMED, f"{len(self.open)} of its messages are not final already")

    def check_final(self, number: int, timestamps: tuple[int, ...], *, may_be_less: bool) -> None:
        """RemoteError MALFORMED when messages from `number` on cannot have these final timestamps. `may_be_less`: than
        our proposals.
        """
        if self.final is not None and number > self.final + 1:
            raise RemoteError(DropReason.MALFORMED, f"final is {number} after {self.final}")
        least = self.timestamp
        for at, timestamp in enumerate(timestamps, number):
            held = self.open.get(at)
            if held is None and self.first is not None and at >= self.first:
                raise RemoteError(DropReason.MALFORMED, f"message {at} is final and has not come")
            if held is not None and not may_be_less:
                least = max(least, held.key.timestamp - 1)
            if not least < timestamp <= MAX_TIMESTAMP:
                raise RemoteError(DropReason.MALFORMED, f"message {at} is final at {timestamp}, not after {least}")
            least = timestamp


@dataclass(slots=True, kw_only=True)
class _Round:
    """A message of ours that is not final: the largest proposal so far, and whose we miss."""

    timestamp: int
    missing: set[Life]


class AbcastCore(Core):
    """See the module's text."""

    def __init__(self, *, membership: Membership, parameters: AbcastParameters) -> None:
        self._us = membership
        self._me = membership.member
        self._life: Life = (membership.member, membership.incarnation)
        self._places = {member: place for place, member in enumerate(membership.members)}
        self._outstanding = parameters.outstanding
        self._reports_costs = parameters.report_costs
        self._timers = Timers()
        self._standstill = StandStill(self._timers)
        self._joining = Joining(membership)
        self._phase = Phase.JOINING if self._joining.is_joining else Phase.RUNNING
        self._clock = 0
        self._own = _Stream(first=1, final=0)
        self._own_undelivered = 0
        self._rounds: dict[int, _Round] = {}
        """Of what is open of ours, by number, ascending."""
        self._awaited: dict[Life, int] = dict.fromkeys(self._joining.lives, 0)
        """Who must propose for each message of ours with a higher number than this."""
        self._streams: dict[Life, _Stream] = {life: _Stream(first=1, final=0) for life in self._joining.lives}
        self._owed: dict[Life, None] = {}
        """Joiners whom we answer as soon as enough of ours is final."""
        self._held: dict[tuple[int, int, int], _Held] = {}
        """All that is not delivered, by origin, incarnation, number."""
        self._queue: list[tuple[Key, tuple[int, int, int]]] = []
        """A heap of their keys, and of keys that they have left behind."""
        self._handlers: dict[Kind, Callable[[Message, int, list[Effect]], None]] = {
            Kind.ABCAST_DATA: self._on_data,
            Kind.ABCAST_PROPOSAL: self._on_proposal,
            Kind.ABCAST_FINAL: self._on_final,
            Kind.ABCAST_JOIN: self._on_join,
            Kind.ABCAST_WELCOME: self._on_welcome,
            Kind.RELIABLE_ENDED: self._on_ended,
            Kind.RELIABLE_JOINED: self._on_joined,
        }

    @property
    def can_submit(self) -> bool:
        is_open = self._phase is Phase.RUNNING and self._clock < MAX_TIMESTAMP
        return is_open and self._own_undelivered < self._outstanding

    @property
    def is_idle(self) -> bool:
        return not self._held and self._phase is not Phase.JOINING

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def held(self) -> int:
        """Messages that are not delivered, ours included."""
        return len(self._held)

    @property
    def timestamp(self) -> int:
        """The largest that has been proposed or final here."""
        return self._clock

    def on_start(self, now_ns: int) -> list[Effect]:
        return []

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        if not self.can_submit:
            raise LocalError(f"member {self._me} takes no submission now: ask can_submit before")
        if submission.target is not None:
            raise LocalError("timestamps order multicasts; send to one member through the layer below")
        if not 0 <= submission.not_before < MAX_TIMESTAMP:
            raise LocalError(f"{submission.not_before} is no timestamp that another can follow")
        out: list[Effect] = []
        message = self._us.message(
            Kind.ABCAST_DATA,
            seq=self._own.last + 1,
            flags=submission.flags,
            inner=submission.inner,
            payload=submission.payload,
        )
        out.append(Multicast(message=message))
        self._clock = max(self._clock, submission.not_before)
        # Not when it comes back from the layer below: flow control may hold it there while we propose for others.
        held = self._hold(message, self._own, now_ns)
        self._own_undelivered += 1
        self._rounds[message.seq] = _Round(timestamp=held.key.timestamp, missing=set(self._awaited))
        self._finish_rounds(now_ns, out)
        self._see_to_prod(now_ns, out)
        return out

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        reason = self._ignore(message)
        if reason is not None:
            return [Report(code=reason, member=source, value=len(message.payload))]
        out: list[Effect] = []
        if message.origin != self._me or message.kind in LOCAL_KINDS:
            self._handlers[message.kind](message, now_ns, out)
            self._see_to_prod(now_ns, out)
        return out

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        if timer not in (ASK, PROD):
            raise LocalError(f"{timer} is no timer of this core")
        out: list[Effect] = []
        self._timers.fired(timer)
        if timer == ASK and self._phase is Phase.JOINING:
            self._ask(now_ns, out)
        elif timer == PROD and self._standstill.is_due(self._first):
            out.append(self._sign_of_life())
        self._see_to_prod(now_ns, out)
        return out

    def _ignore(self, message: Message) -> DropReason | None:
        if message.kind not in self._handlers:
            return DropReason.UNEXPECTED
        if message.kind in LOCAL_KINDS or message.origin == self._me:
            return None
        life = (message.origin, message.incarnation)
        if life not in self._streams:
            return DropReason.UNEXPECTED
        if message.kind is Kind.ABCAST_DATA and self._phase is Phase.EXHAUSTED:
            return DropReason.UNEXPECTED
        if message.kind is Kind.ABCAST_PROPOSAL:
            return self._ignore_proposal(message, life)
        if message.kind is Kind.ABCAST_FINAL and message.seq <= (self._streams[life].final or 0):
            return DropReason.DUPLICATE
        return None

    def _ignore_proposal(self, message: Message, life: Life) -> DropReason | None:
        if len(message.words) != 2 or not 0 < message.words[0] <= MAX_TIMESTAMP:
            return DropReason.MALFORMED
        if message.words[1] != self._us.incarnation:
            return DropReason.STALE_INCARNATION
        number = message.seq
        if not 1 <= number <= self._own.last or life not in self._awaited:
            return DropReason.UNEXPECTED
        if number <= self._awaited[life]:
            # An honest joiner cannot know that we do not await it yet.
            return None
        is_missed = number in self._rounds and life in self._rounds[number].missing
        return None if is_missed else DropReason.DUPLICATE

    # The rounds.

    def _on_data(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        life = (message.origin, message.incarnation)
        stream = self._streams[life]
        stream.check_data(message.seq)
        kept = message.seq - (stream.first or message.seq)
        if self._phase is Phase.JOINING and kept >= MOST_WHILE_JOINING:
            raise RemoteError(DropReason.MALFORMED, f"we join, and keep {kept} of its messages already")
        if self._clock >= MAX_TIMESTAMP:
            self._enter_exhausted(out)
            return
        self._joining.spoke(life)
        held = self._hold(message, stream, now_ns)
        proposal = self._us.message(
            Kind.ABCAST_PROPOSAL,
            seq=message.seq,
            flags=CONTROL,
            words=(held.key.timestamp, message.incarnation),
        )
        out.append(Send(target=message.origin, message=proposal))

    def _on_proposal(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        life = (message.origin, message.incarnation)
        if message.seq <= self._awaited[life]:
            return
        round_ = self._rounds[message.seq]
        round_.missing.discard(life)
        round_.timestamp = max(round_.timestamp, message.words[0])
        self._finish_rounds(now_ns, out)

    def _finish_rounds(self, now_ns: int, out: list[Effect]) -> None:
        """All that have every proposal, in their order, in one message."""
        timestamps = self._take_finished()
        if not timestamps:
            return
        assert self._own.final is not None
        number = self._own.final + 1
        out.append(Multicast(message=self._final(number, timestamps)))
        self._make_final(self._own, number, timestamps)
        for joiner in list(self._owed):
            self._welcome(joiner, out)
        self._deliver(now_ns, out)
        if self._clock >= MAX_TIMESTAMP and self._rounds:
            self._enter_exhausted(out)

    def _take_finished(self) -> tuple[int, ...]:
        found: list[int] = []
        least = self._own.timestamp + 1
        for round_ in self._rounds.values():
            timestamp = max(round_.timestamp, least)
            if round_.missing or timestamp > MAX_TIMESTAMP:
                break
            found.append(timestamp)
            least = timestamp + 1
        for number in list(self._rounds)[: len(found)]:
            del self._rounds[number]
        return tuple(found)

    def _on_final(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        life = (message.origin, message.incarnation)
        stream = self._streams[life]
        stream.check_final(message.seq, message.words, may_be_less=self._phase is Phase.JOINING)
        self._joining.spoke(life)
        self._make_final(stream, message.seq, message.words)
        self._deliver(now_ns, out)

    def _make_final(self, stream: _Stream, number: int, timestamps: tuple[int, ...]) -> None:
        stream.final = number + len(timestamps) - 1
        for at, timestamp in enumerate(timestamps, number):
            stream.timestamp = timestamp
            held = stream.open.pop(at, None)
            if held is not None:
                held.is_final = True
                self._place(held, timestamp)
        # Or what comes next would be proposed for earlier than what is delivered by now.
        self._clock = max(self._clock, stream.timestamp)

    def _final(self, number: int, timestamps: tuple[int, ...] = ()) -> Message:
        return self._us.message(Kind.ABCAST_FINAL, seq=number, flags=CONTROL, words=timestamps)

    def _sign_of_life(self) -> Effect:
        assert self._own.final is not None
        return Multicast(message=self._final(self._own.final + 1))

    # The queue.

    def _hold(self, message: Message, stream: _Stream, now_ns: int) -> _Held:
        """At the next timestamp, tentatively."""
        self._clock += 1
        key = Key(self._clock, self._places[message.origin], message.incarnation, message.seq)
        held = _Held(message=message, key=key, received_ns=now_ns)
        if stream.first is None:
            stream.first = message.seq
        stream.last = message.seq
        stream.open[message.seq] = held
        self._held[_name(message)] = held
        heapq.heappush(self._queue, (key, _name(message)))
        return held

    def _place(self, held: _Held, timestamp: int) -> None:
        if timestamp != held.key.timestamp:
            held.key = held.key._replace(timestamp=timestamp)
            heapq.heappush(self._queue, (held.key, _name(held.message)))

    def _head(self) -> _Held | None:
        """The first of all that is held."""
        while self._queue:
            key, name = self._queue[0]
            held = self._held.get(name)
            if held is not None and held.key == key:
                return held
            heapq.heappop(self._queue)
        return None

    def _deliver(self, now_ns: int, out: list[Effect]) -> None:
        """While the first is final."""
        if self._phase is Phase.JOINING:
            return
        while (held := self._head()) is not None and held.is_final:
            heapq.heappop(self._queue)
            del self._held[_name(held.message)]
            self._own_undelivered -= held.message.origin == self._me
            if held.key.timestamp > self._joining.start:
                self._hand_over(held, now_ns, out)

    def _hand_over(self, held: _Held, now_ns: int, out: list[Effect]) -> None:
        out.append(Deliver.of(held.message))
        if self._reports_costs:
            cost_ns = now_ns - held.received_ns
            out.append(Report(code=Notice.COST, member=held.message.origin, value=cost_ns))

    def _drop_open(self, life: Life, out: list[Effect]) -> None:
        """Nobody will ever say where the rest of it belongs."""
        stream = self._streams.pop(life, None)
        if stream is not None and stream.open:
            for held in stream.open.values():
                del self._held[_name(held.message)]
            out.append(Report(code=AbcastReport.LOST, member=life[0], value=len(stream.open)))

    def _see_to_prod(self, now_ns: int, out: list[Effect]) -> None:
        self._standstill.watch(self._first, now_ns, out)

    @property
    def _first(self) -> Key | None:
        """The place of the first message that waits."""
        held = self._head() if self._phase is Phase.RUNNING else None
        return held.key if held is not None else None

    def _enter_exhausted(self, out: list[Effect]) -> None:
        if self._phase is Phase.EXHAUSTED:
            return
        self._phase = Phase.EXHAUSTED
        self._timers.disarm(ASK, out)
        out.append(Report(code=AbcastReport.EXHAUSTED, member=self._me, value=self._clock))

    # Who ends and who joins.

    def _on_ended(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        life = (message.origin, message.incarnation)
        self._joining.ended(life)
        self._awaited.pop(life, None)
        self._owed.pop(life, None)
        self._drop_open(life, out)
        for round_ in self._rounds.values():
            round_.missing.discard(life)
        self._finish_rounds(now_ns, out)
        for joiner in self._joining.waiting:
            self._welcome(joiner, out)
        self._deliver(now_ns, out)
        self._enter_running_if_welcome(now_ns, out)

    def _on_joined(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        life = (message.origin, message.incarnation)
        if self._joining.joined(life):
            self._ask(now_ns, out)
        elif life != self._life:
            # Who has been here before it has all that it sends.
            begin = (1, 0) if self._joining.is_member else (None, None)
            self._streams.setdefault(life, _Stream(first=begin[0], final=begin[1]))
        self._enter_running_if_welcome(now_ns, out)

    def _ask(self, now_ns: int, out: list[Effect]) -> None:
        out.append(Multicast(message=self._us.message(Kind.ABCAST_JOIN, flags=CONTROL)))
        self._timers.arm(ASK, self._joining.asks(now_ns), out)

    def _on_join(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        joiner = (message.origin, message.incarnation)
        self._joining.asked(joiner)
        self._awaited.setdefault(joiner, self._own.last)
        self._welcome(joiner, out)

    def _welcome(self, joiner: Life, out: list[Effect]) -> None:
        """If all that was initiated without it is final; else as soon as it is."""
        assert self._own.final is not None
        if self._own.final < self._awaited[joiner]:
            self._owed[joiner] = None
            return
        self._owed.pop(joiner, None)
        words = self._joining.words(joiner)
        message = self._us.message(Kind.ABCAST_WELCOME, seq=self._clock, flags=CONTROL, words=words)
        out.append(Send(target=joiner[0], message=message))

    def _on_welcome(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        if message.seq > MAX_TIMESTAMP:
            raise RemoteError(DropReason.MALFORMED, f"a welcome at {message.seq}, which is no timestamp")
        life = (message.origin, message.incarnation)
        self._joining.answered(life, message.seq, message.words)
        if self._phase is not Phase.JOINING:
            return
        self._awaited.setdefault(life, 0)
        self._clock = max(self._clock, message.seq)
        self._enter_running_if_welcome(now_ns, out)

    def _enter_running_if_welcome(self, now_ns: int, out: list[Effect]) -> None:
        if self._phase is not Phase.JOINING or not self._joining.has_everything:
            return
        self._phase = Phase.RUNNING
        start = self._joining.begin()
        self._timers.disarm(ASK, out)
        out.append(Report(code=AbcastReport.WELCOMED, member=self._me, value=start))
        out.append(self._sign_of_life())
        self._deliver(now_ns, out)


def _name(message: Message) -> tuple[int, int, int]:
    return message.origin, message.incarnation, message.seq
