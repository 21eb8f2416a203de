"""Total order by rounds, over reliable FIFO channels: All-Ack.

Paper 002 compares itself with it: "1) a member waits until it has received at least one message from each other member.
2) Then it delivers the received messages of each member, one by one, in an order of members decided beforehand." It is
the AllAck of Transis (Amir, Dolev, Kramer and Malki). No server, no timestamps: a member's k-th message belongs to its
round k, and a round is delivered, in ascending order of members, when the round's message of every member is known.

    round       1         2         3
    member 0    a         (null)    e
    member 1    b         d         (null)
    member 2    c         (null)    ...          a b c d: round 3 waits for member 2

The order is (round, member, incarnation). A round number of a life rises; one that jumps says that the rounds between
are empty. So "the least of the last rounds of all, ours included, is at least r" is the test for round r: channels are
FIFO, and who sent round r sends nothing at or before r any more.

The order is causal. Let a member send m in round r after it delivered x of round s. It delivered x when it had sent
its own round s; so s < r, and x stands before m everywhere. What it has sent before m stands in an earlier round.
Causes of causes follow, for the order is transitive. (Transis passes over a message that acknowledges another of the
same set: there, receipts are causes. Here deliveries are, and none of the same round can be.)

Nulls. Who has not sent the last round in which others have data blocks them. If that lasts for `null_after_ns` (at
random between half and all of it; 0: at once) it multicasts a NULL (flag DUMMY). With `ahead` one null has the number
of that last round: all its rounds up to there are empty, and a lone message costs n - 1 nulls. Without, it is the
classical form: one null a round, and each waits anew. Nulls ask for no nulls: a group at rest is silent.

Prods. Who crashes owing nothing but a null is missed by nobody: see `standstill.py`. The prod is a NULL.

The paper's weakness stays: "when a member sends more often, the delivery of its messages is delayed"; its k-th message
waits for the k-th of the slowest, or for nulls. A sender has at most `outstanding` of its own undelivered, so what the
others hold of it is bounded, and a fast one is slowed down to the pace of the nulls.

A member that ends. RELIABLE_ENDED stands at the same place of its stream everywhere: all survivors have the same rounds
of it. It is not awaited any more: its life is passed over in all rounds after its last one.

  Members that crash together may take causes with them: who delivers what only he has received, sends, and dies with
its sender, has sent what nobody may deliver. So every message says up to which round its sender had delivered, and who
took part for it; all survivors erase it if something of an ended life is lost there, and all after it in its stream:
node/protocols/causes.py.

A member that joins (a later life): node/protocols/joining.py, with rounds for numbers. A WELCOME has the highest round
that its sender has heard of, in whatever stream. The joiner begins after the greatest of these, `start`: it delivers
what is later than `start`, and its first round is later. Its first word is a NULL, for those who await it.
  Members may await it from different rounds, and order alike. A member awaits it in rounds beyond the highest it has
heard of when the layer below says that it takes part; another has heard of more by then, or less. Both numbers are at
most what these members answer later, so at most `start`. In the rounds up to `start` the joiner has nothing; whoever
awaits it there learns that from its first word, whose number exceeds `start`; whoever does not has nothing to miss. In
all rounds beyond `start` all await it: nobody can have passed over one of them. (A member that has joined after it
awaits it from the beginning on.) So each round has the same messages everywhere, whatever when was waited for.
  A WELCOME says its sender's own last round, too: if that is all that ever comes of it, the joiner knows its end; and
how those ended that were before the joiner.
  The joiner misses nothing beyond `start`, though a slow sender goes on in rounds that others have left behind: a
sender's own last round is among those that it has heard of, so what is beyond `start` was sent after its answer.

Invariants: the queue holds nothing of a delivered round; rounds of one life rise; our own last round is at least every
round that we have delivered; what was delivered is a prefix (of a joiner: a middle part) of one sequence, the same for
all who live on.

Deviations. Rounds are counted by number, not by what happens to be held, so that nulls can be left out. A round is
delivered as a whole, as in the paper; the messages before the first missing one could go before.

Delivery is AGREED, not uniform (see the reliable layer). While one member is silent, nothing is delivered. Not here: a
round beyond MAX_ROUND; who reaches it sends nothing any more, and the order stops, safely.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from node.core import Core, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report, Send, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.parameters import require
from node.protocols.causes import Causes
from node.protocols.joining import Joining, Life
from node.protocols.reliable import ReliableParameters
from node.protocols.standstill import PROD, StandStill
from node.protocols.timers import Timers
from node.wire import Flag, Kind, Message

MILLISECOND = 1_000_000
MAX_ROUND = 2**63 - 1
CONTROL = Flag.CONTROL.value
DUMMY = Flag.DUMMY.value
NULL = Timer("null")
ASK = Timer("ask")
NEWS = (Kind.RELIABLE_ENDED, Kind.RELIABLE_JOINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllAckParameters:
    """Of the order and of the reliable layer under it. Times in ns."""

    null_after_ns: int = 2 * MILLISECOND
    """How long who blocks others waits for a message of his own that makes the null needless; 0: not at all."""
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
    """JOINING until everybody has welcomed us; EXHAUSTED when no round is left."""

    JOINING = "joining"
    RUNNING = "running"
    EXHAUSTED = "exhausted"


class AllAckReport(enum.IntEnum):
    """Codes of our reports."""

    EXHAUSTED = 0x81
    """The rounds have reached their end: this member sends nothing any more, and the order stops."""
    WELCOMED = 0x82
    """This later life takes part; `value`: it delivers what is later than this round."""
    ERASED = 0x83
    """The message of `member` in round `value`, and all after it in that life, may have died with a cause of theirs."""


class _Held(NamedTuple):
    """One message in the queue; the first three fields are its place in the order and differ between any two."""

    round: int
    member: int
    incarnation: int
    message: Message


class AllAckCore(Core):
    """See the module's text."""

    def __init__(self, *, membership: Membership, parameters: AllAckParameters, rng: Random) -> None:
        self._us = membership
        self._me: Life = (membership.member, membership.incarnation)
        self._null_after_ns = parameters.null_after_ns
        self._is_ahead = parameters.ahead
        self._most_outstanding = parameters.outstanding
        self._rng = rng
        self._timers = Timers()
        self._joining = Joining(membership)
        self._causes = Causes(membership)
        self._phase = Phase.JOINING if self._joining.is_joining else Phase.RUNNING
        self._reached: dict[Life, int] = dict.fromkeys(self._joining.lives, 0)
        """Whom we await, and ourselves: the round up to which we have everything of it."""
        self._reached[self._me] = 0
        self._queue: list[_Held] = []
        """A heap of what is not delivered, ours included."""
        self._outstanding = 0
        """Of these, ours."""
        self._delivered = 0
        """The last round of which we have delivered something."""
        self._erased: set[Life] = set()
        """Lives of which nothing more is delivered."""
        self._standstill = StandStill(self._timers)
        self._heard = 0
        """The highest round that we have heard of."""
        self._wanted = 0
        """The last round in which others have data: they need ours."""
        self._handlers: dict[Kind, Callable[[Message, int, list[Effect]], None]] = {
            Kind.ALLACK_DATA: self._on_data,
            Kind.ALLACK_NULL: self._on_null,
            Kind.ALLACK_JOIN: self._on_join,
            Kind.ALLACK_WELCOME: self._on_welcome,
            Kind.RELIABLE_ENDED: self._on_ended,
            Kind.RELIABLE_JOINED: self._on_joined,
        }

    @property
    def can_submit(self) -> bool:
        return self._phase is Phase.RUNNING and self._outstanding < self._most_outstanding

    @property
    def is_idle(self) -> bool:
        return not self._queue and not self._is_awaited and self._phase is not Phase.JOINING

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def held(self) -> int:
        """Messages that wait for others' messages of their round, ours included."""
        return len(self._queue)

    @property
    def erased(self) -> frozenset[Life]:
        """Lives of which a message may have died with a cause of theirs: that one and all later ones are not
        delivered.
        """
        return frozenset(self._erased)

    @property
    def round(self) -> int:
        """The last round that we have sent."""
        return self._reached[self._me]

    def on_start(self, now_ns: int) -> list[Effect]:
        return []

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        if not self.can_submit:
            raise LocalError(f"member {self._us.member} takes no submission now: ask can_submit before")
        if submission.target is not None:
            raise LocalError("rounds order multicasts; send to one member through the layer below")
        out: list[Effect] = []
        message = self._us.message(
            Kind.ALLACK_DATA,
            seq=self.round + 1,
            flags=submission.flags,
            words=self._causes.words(self._delivered),
            inner=submission.inner,
            payload=submission.payload,
        )
        # Not when it comes back from the layer below: flow control may hold it there while we deliver what is later.
        self._hold(message)
        self._outstanding += 1
        self._multicast(message, out)
        self._see_to_prod(now_ns, out)
        return out

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        reason = self._ignore(message)
        if reason is not None:
            return [Report(code=reason, member=source, value=len(message.payload))]
        out: list[Effect] = []
        is_ours = message.origin == self._us.member and message.kind not in NEWS
        if not is_ours:
            self._handlers[message.kind](message, now_ns, out)
            self._see_to_prod(now_ns, out)
        return out

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        if timer not in (NULL, ASK, PROD):
            raise LocalError(f"{timer} is no timer of this core")
        out: list[Effect] = []
        self._timers.fired(timer)
        if timer == ASK and self._joining.is_joining:
            self._ask(now_ns, out)
        elif timer == PROD:
            self._prod(now_ns, out)
        elif timer == NULL and self._is_awaited:
            self._send_null(now_ns, out)
        self._see_to_prod(now_ns, out)
        return out

    def _ignore(self, message: Message) -> DropReason | None:
        if message.kind not in self._handlers:
            return DropReason.UNEXPECTED
        if message.kind in NEWS or message.origin == self._us.member:
            return None
        reached = self._reached.get((message.origin, message.incarnation))
        if reached is None:
            return DropReason.UNEXPECTED
        least = reached + 1 if message.kind in (Kind.ALLACK_DATA, Kind.ALLACK_NULL) else 0
        most = 0 if message.kind is Kind.ALLACK_JOIN else MAX_ROUND
        return None if least <= message.seq <= most else DropReason.MALFORMED

    # What comes.

    def _on_data(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._causes.check(message.seq, message.words)
        # A joiner gets some that are before its beginning, some of them late.
        if message.seq > self._joining.start:
            self._hold(message)
        self._wanted = max(self._wanted, message.seq)
        self._take(message, out)
        self._see_to_null(now_ns, out)

    def _on_null(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._take(message, out)

    def _take(self, message: Message, out: list[Effect]) -> None:
        life = (message.origin, message.incarnation)
        before = self._reached[life]
        self._reached[life] = message.seq
        self._heard = max(self._heard, message.seq)
        self._joining.spoke(life)
        self._causes.spoke(life, message.seq)
        # If it did not block the head, then whoever does still does.
        if self._queue and before < self._queue[0].round:
            self._deliver(out)

    def _hold(self, message: Message) -> None:
        heapq.heappush(self._queue, _Held(message.seq, message.origin, message.incarnation, message))

    def _deliver(self, out: list[Effect]) -> None:
        """All of the rounds that everybody has sent."""
        if self._phase is Phase.JOINING:
            return
        complete = min(self._reached.values())
        while self._queue and self._queue[0].round <= complete:
            held = heapq.heappop(self._queue)
            life = (held.member, held.incarnation)
            self._outstanding -= life == self._me
            if not self._is_erased(life, held, out):
                self._delivered = held.round
                out.append(Deliver.of(held.message))

    def _is_erased(self, life: Life, held: _Held, out: list[Effect]) -> bool:
        if life not in self._erased and self._causes.is_lost(life, held.message.words):
            self._erased.add(life)
            out.append(Report(code=AllAckReport.ERASED, member=held.member, value=held.round))
        return life in self._erased

    # What we say.

    @property
    def _is_awaited(self) -> bool:
        return self._phase is Phase.RUNNING and self._wanted > self.round

    def _see_to_null(self, now_ns: int, out: list[Effect]) -> None:
        """The timer stays where it is while a message of ours does not reach the round that is wanted."""
        if not self._is_awaited or NULL in self._timers:
            return
        if self._null_after_ns == 0:
            self._send_null(now_ns, out)
        else:
            self._arm(now_ns, out)

    def _arm(self, now_ns: int, out: list[Effect]) -> None:
        wait_ns = self._rng.randint(self._null_after_ns // 2, self._null_after_ns)
        self._timers.arm(NULL, now_ns + wait_ns, out)

    def _send_null(self, now_ns: int, out: list[Effect]) -> None:
        following = self.round + 1
        last = max(following, self._wanted) if self._is_ahead else following
        self._multicast(self._us.message(Kind.ALLACK_NULL, seq=last, flags=DUMMY), out)
        # One null in one call, also in the classical form: what comes decides how many rounds we lack.
        if self._is_awaited:
            self._arm(now_ns, out)

    def _see_to_prod(self, now_ns: int, out: list[Effect]) -> None:
        self._standstill.watch(self._first, now_ns, out)

    def _prod(self, now_ns: int, out: list[Effect]) -> None:
        if self._standstill.is_due(self._first):
            self._send_null(now_ns, out)

    @property
    def _first(self) -> tuple[int, ...] | None:
        """The place of the first message that waits."""
        return self._queue[0][:3] if self._queue and self._phase is Phase.RUNNING else None

    def _multicast(self, message: Message, out: list[Effect]) -> None:
        self._reached[self._me] = message.seq
        self._heard = max(self._heard, message.seq)
        out.append(Multicast(message=message))
        if not self._is_awaited:
            self._timers.disarm(NULL, out)
        self._deliver(out)
        if message.seq >= MAX_ROUND:
            self._enter_exhausted(out)

    def _enter_exhausted(self, out: list[Effect]) -> None:
        self._phase = Phase.EXHAUSTED
        out.append(Report(code=AllAckReport.EXHAUSTED, member=self._us.member, value=self.round))

    # Who ends and who joins.

    def _on_ended(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        life = (message.origin, message.incarnation)
        last = self._reached.pop(life, 0)
        self._causes.ended(life, last)
        self._joining.ended(life)
        for joiner in self._joining.waiting:
            self._welcome(joiner, out)
        self._deliver(out)
        self._enter_running_if_welcome(now_ns, out)

    def _on_joined(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        life = (message.origin, message.incarnation)
        if self._joining.joined(life):
            self._ask(now_ns, out)
        elif message.origin != self._us.member:
            # If we have been here before it: it will begin later than our answer, and that is not earlier than now.
            self._reached.setdefault(life, self._heard if self._joining.is_member else 0)
            self._causes.joined(life)
        self._enter_running_if_welcome(now_ns, out)

    def _ask(self, now_ns: int, out: list[Effect]) -> None:
        out.append(Multicast(message=self._us.message(Kind.ALLACK_JOIN, flags=CONTROL)))
        self._timers.arm(ASK, self._joining.asks(now_ns), out)

    def _on_join(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        joiner = (message.origin, message.incarnation)
        self._joining.asked(joiner)
        self._welcome(joiner, out)

    def _welcome(self, joiner: Life, out: list[Effect]) -> None:
        # Who joins himself does not know yet how those ended that were before him.
        view = () if self._joining.is_joining else self._causes.view(self._delivered)
        words = (self.round, len(view), *view, *self._joining.words(joiner))
        message = self._us.message(Kind.ALLACK_WELCOME, seq=self._heard, flags=CONTROL, words=words)
        out.append(Send(target=joiner[0], message=message))

    def _on_welcome(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        life = (message.origin, message.incarnation)
        last, view, lives = _welcome_words(message)
        self._causes.check_view(view)
        self._joining.answered(life, message.seq, lives)
        if self._phase is Phase.JOINING:
            self._causes.learned(life, view)
        if self._phase is Phase.JOINING and last:
            self._reached[life] = max(self._reached[life], last)
            self._causes.spoke(life, last)
        self._enter_running_if_welcome(now_ns, out)

    def _enter_running_if_welcome(self, now_ns: int, out: list[Effect]) -> None:
        if not self._joining.has_everything:
            return
        start = self._joining.begin()
        self._timers.disarm(ASK, out)
        self._causes.begin(self._joining.lives)
        self._queue = [held for held in self._queue if held.round > start]
        heapq.heapify(self._queue)
        self._reached[self._me] = start
        out.append(Report(code=AllAckReport.WELCOMED, member=self._us.member, value=start))
        if start == MAX_ROUND:
            self._enter_exhausted(out)
            return
        self._phase = Phase.RUNNING
        self._send_null(now_ns, out)


def _welcome_words(message: Message) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Of a WELCOME: its sender's own last round, its view of the members, the lives that it awaits."""
    words = message.words
    if len(words) < 2 or words[0] > message.seq or words[1] > len(words) - 2:
        raise RemoteError(
            DropReason.MALFORMED, "a welcome without its sender's last round, or with less than it counts"
        )
    end = 2 + words[1]
    return words[0], words[2:end], words[end:]
