"""Total order by rounds (All-Ack): the core of one view, over reliable FIFO streams.

Paper 002, section 1, as one of the protocols that it compares itself with; AllAck of Transis (Amir, Dolev, Kramer,
Malki 1992). No server, no timestamps. Messages, argument and parameters: docs/protocols/allack.md.

    round       1         2         3
    member 0    a         (null)    e
    member 1    b         d         (null)
    member 2    c         (null)    ...          a b c d: round 3 waits for member 2

1. A member's k-th message belongs to its round k. A round number that jumps says that the rounds between are empty.
2. "A member waits until it has received at least one message from each other member": a round is complete when each
   member of the view, the receiver included, has sent that round or a later one.
3. "Then it delivers the received messages of each member, one by one, in an order of members decided beforehand":
   complete rounds are delivered in order, each by ascending members.
4. [not in the paper] A member that has not sent the last round in which others have data multicasts a NULL, within
   `null_after_ns`. With `ahead` the NULL has the number of that last round; without, it is one NULL a round, the
   classical form. A NULL calls for no NULL.
5. [not in the paper] A sender has at most `outstanding` messages of its own undelivered.
6. [not in the paper] `close` delivers all of the cut by (round, member). Of an excluded sender it drops each message
   that may lack a cause, and all later ones of that sender (node/protocols/prefix.py).

Deviations. Rounds are counted by number, not by what a receiver happens to buffer, so that NULLs can be left out. A
round is delivered as a whole, as in the paper; the messages before the first missing one could go before. In Transis a
message may acknowledge another of the same round, because receipts are causes there; here deliveries are. A member
orders its own message from its submission on, because flow control below may return it late.

Invariants. The rounds of one stream rise. The buffer holds nothing of a delivered round. A member has itself sent every
round that it has delivered, so an effect stands in a later round than its causes. What two members of a view deliver
before its end are prefixes of one sequence. The cut holds all that a survivor has multicast, so `close` delivers its
submissions and hands none back. Rounds begin at 1 in each view; nothing outlives it.

Not here. Delivery is agreed, not uniform. Nothing is delivered while a member of the view is silent; the group layer
ends such a view. A member that has sent round MAX_ROUND sends nothing more in this view.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from node.core import Closing, Membership, Submission, ViewCore
from node.effects import Deliver, Effect, Multicast, Report, Timer
from node.errors import DropReason, LocalError
from node.parameters import require
from node.protocols.prefix import Prefix, Walk
from node.reliable.parameters import ReliableParameters
from node.transport import Timers
from node.wire import Flag, Kind, Message

MILLISECOND = 1_000_000
MAX_ROUND = 2**63 - 1
DUMMY = Flag.DUMMY.value
NULL = Timer("null")
WORDS = {Kind.ALLACK_DATA: 1, Kind.ALLACK_NULL: 0}
"""Of each kind of message, how many words it has: data carries its sender's prefix (node/protocols/prefix.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllAckParameters:
    """Of the order and of the reliable layer under it. Times in ns."""

    null_after_ns: int = 2 * MILLISECOND
    """How long a null waits for a message of our own that makes it needless; 0: not at all."""
    ahead: bool = True
    """Whether one null says that all our rounds are empty up to the last in which others have data; else it is one null
    a round."""
    outstanding: int = 64
    """Most messages of ours that are not delivered yet; then submissions wait."""
    reliable: ReliableParameters = field(default_factory=ReliableParameters)

    def __post_init__(self) -> None:
        require(0 <= self.null_after_ns <= 2**62, f"null_after_ns must not be negative, not {self.null_after_ns}")
        require(1 <= self.outstanding <= 65536, f"outstanding must lie between 1 and 65536, not {self.outstanding}")


class Phase(enum.StrEnum):
    """EXHAUSTED: no round is left."""

    RUNNING = "running"
    EXHAUSTED = "exhausted"


class AllAckReport(enum.IntEnum):
    """Codes of our reports."""

    EXHAUSTED = 0x81
    """The rounds have reached their end: this member sends nothing any more in this view, and the order stops."""
    DROPPED = 0x82
    """At the end of the view, the message of excluded member `member` in round `value` may lack a cause: no survivor
    delivers it."""


class _Buffered(NamedTuple):
    """One message; the first two fields are its place in the order and differ between any two."""

    round: int
    member: int
    message: Message


class AllAckCore(ViewCore):
    """See the module's text."""

    def __init__(self, *, membership: Membership, parameters: AllAckParameters, rng: Random) -> None:
        self._us = membership
        self._me = membership.member
        self._null_after_ns = parameters.null_after_ns
        self._is_ahead = parameters.ahead
        self._most_outstanding = parameters.outstanding
        self._rng = rng
        self._timers = Timers()
        self._prefix = Prefix()
        self._phase = Phase.RUNNING
        self._reached = dict.fromkeys(membership.members, 0)
        """Of each member, ourselves included: the round up to which we have everything."""
        self._buffer: list[_Buffered] = []
        """A heap of what is not delivered, ours included."""
        self._outstanding = 0
        """Of these, ours."""
        self._wanted = 0
        """The last round in which others have data: they need ours."""

    @property
    def can_submit(self) -> bool:
        return self._phase is Phase.RUNNING and self._outstanding < self._most_outstanding

    @property
    def is_idle(self) -> bool:
        return not self._buffer and not self._owes_null

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def buffered(self) -> int:
        """Messages that wait for others' messages of their round, ours included."""
        return len(self._buffer)

    @property
    def round(self) -> int:
        """The last round that we have sent."""
        return self._reached[self._me]

    def on_start(self, now_ns: int) -> list[Effect]:
        return []

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        if not self.can_submit:
            raise LocalError(f"member {self._me} takes no submission now: ask can_submit before")
        if submission.target is not None:
            raise LocalError("rounds order multicasts; send to one member through the layer below")
        out: list[Effect] = []
        message = self._us.message(
            Kind.ALLACK_DATA,
            seq=self.round + 1,
            flags=submission.flags,
            words=(self._prefix.word,),
            inner=submission.inner,
            payload=submission.payload,
        )
        self._buffer_data(message)
        self._outstanding += 1
        self._multicast(message, out)
        return out

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        out: list[Effect] = []
        if source == self._me:
            return out
        before = self._receive(message, source, out)
        if before is None:
            return out
        if message.kind is Kind.ALLACK_DATA:
            self._wanted = max(self._wanted, message.seq)
        # If this stream did not block the head of the buffer, another one does, and still blocks it.
        if self._buffer and before < self._buffer[0].round:
            self._deliver(out)
        self._arrange_null(now_ns, out)
        return out

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        if timer != NULL:
            raise LocalError(f"{timer} is no timer of this core")
        out: list[Effect] = []
        self._timers.fired(timer)
        if self._owes_null:
            self._send_null(now_ns, out)
        return out

    def close(self, rest: Mapping[int, Sequence[Message]], survivors: frozenset[int], now_ns: int) -> Closing:
        out: list[Effect] = []
        for origin in self._us.peers:
            for message in rest.get(origin, ()):
                self._receive(message, origin, out)
        walk = Walk(self._prefix, survivors)
        while self._buffer:
            message = heapq.heappop(self._buffer).message
            if walk.admits(message.origin, message.words[0]):
                walk.delivered(message.origin, message.seq)
                out.append(Deliver.of(message))
            else:
                out.append(Report(code=AllAckReport.DROPPED, member=message.origin, value=message.seq))
        return Closing(effects=tuple(out))

    # Receiving and delivering.

    def _receive(self, message: Message, source: int, out: list[Effect]) -> int | None:
        """Take the next message of the stream of `source`: returns the round before it. None: refused, which depends on
        the stream alone.
        """
        reason = self._refusal(message, source)
        if reason is not None:
            out.append(Report(code=reason, member=source, value=len(message.payload)))
            return None
        before = self._reached[source]
        self._reached[source] = message.seq
        if message.kind is Kind.ALLACK_DATA:
            self._buffer_data(message)
        return before

    def _refusal(self, message: Message, source: int) -> DropReason | None:
        if message.kind not in WORDS or message.origin != source or source not in self._reached:
            return DropReason.UNEXPECTED
        if len(message.words) != WORDS[message.kind] or not self._reached[source] < message.seq <= MAX_ROUND:
            return DropReason.MALFORMED
        return None

    def _buffer_data(self, message: Message) -> None:
        heapq.heappush(self._buffer, _Buffered(message.seq, message.origin, message))

    def _deliver(self, out: list[Effect]) -> None:
        """Rules 2 and 3."""
        complete = min(self._reached.values())
        while self._buffer and self._buffer[0].round <= complete:
            message = heapq.heappop(self._buffer).message
            self._outstanding -= message.origin == self._me
            self._prefix.delivered(message.origin, message.seq)
            out.append(Deliver.of(message))

    # Sending.

    @property
    def _owes_null(self) -> bool:
        return self._phase is Phase.RUNNING and self._wanted > self.round

    def _arrange_null(self, now_ns: int, out: list[Effect]) -> None:
        """Rule 4. The timer stays armed while our own messages do not reach the round that is wanted."""
        if not self._owes_null or NULL in self._timers:
            return
        if self._null_after_ns == 0:
            self._send_null(now_ns, out)
        else:
            self._arm(now_ns, out)

    def _send_null(self, now_ns: int, out: list[Effect]) -> None:
        last = self._wanted if self._is_ahead else self.round + 1
        self._multicast(self._us.message(Kind.ALLACK_NULL, seq=last, flags=DUMMY), out)
        # At most one null in one call, in the classical form too: a peer decides how many rounds we lack.
        if self._owes_null:
            self._arm(now_ns, out)

    def _arm(self, now_ns: int, out: list[Effect]) -> None:
        """A random part of the wait keeps members from answering all at once."""
        wait_ns = self._rng.randint(self._null_after_ns // 2, self._null_after_ns)
        self._timers.arm(NULL, now_ns + wait_ns, out)

    def _multicast(self, message: Message, out: list[Effect]) -> None:
        self._reached[self._me] = message.seq
        out.append(Multicast(message=message))
        if not self._owes_null:
            self._timers.disarm(NULL, out)
        self._deliver(out)
        if message.seq >= MAX_ROUND:
            self._enter_exhausted(out)

    def _enter_exhausted(self, out: list[Effect]) -> None:
        self._phase = Phase.EXHAUSTED
        out.append(Report(code=AllAckReport.EXHAUSTED, member=self._me, value=self.round))
