"""Causal order by vector clocks, over reliable FIFO channels: the CBCAST of Isis.

Paper: Birman, Schiper and Stephenson, Lightweight Causal and Atomic Group Multicast, ACM TOCS 9(3), 1991. Paper 000
compares itself with it: "CBCAST itself cannot see a loss". Therefore it stands on the reliable layer here, which sees
losses; what CBCAST adds is a vector per message and the delay rule.

A sender counts its messages and puts before each what it has delivered: one entry per member (the member, the life in
which it sent the last message delivered of it, that message's number; its own entry is the message before this one).
It delivers its own message as it sends it. A receiver delivers a message of k when it has delivered all that the vector
says. Deliveries count, not receipts; else messages would wait for what is no cause of theirs. No rounds, no
acknowledgements: one multicast per message, and a delay only for who lacks a cause.

The vector that is sent is `claims`: deliveries and nothing else. The vector it is held against is `passed`: deliveries,
and what counts as delivered because nobody here will ever get it. Both grow in the order (life, number), entry by
entry. Messages of a later life of a member wait until its earlier one has ended here.

A joiner. The reliable layer says after which number its part of each stream begins (RELIABLE_JOINED). What was before
counts as delivered in `passed`, but not in `claims`: others may still wait for it, or erase it. Of a stream that was
over before it came it knows no end, so it must not meet a message whose fate depends on that end. Therefore every
member tells a joiner which lives it has heard no end of (WELCOME, at the news of it; node/protocols/joining.py, without
numbers). Who has waited long asks again (JOIN), each alone: multicasts have to be data, for the reliable layer and this
one number them alike. The joiner neither sends nor delivers while a life is listed in which it has no part. Whoever
does not list a life has taken it as far as all survivors, so what he sends depends on nothing beyond. A life that ends
while we join counts as missed as a whole.

A crash. The reliable layer says that a stream has ended, and all survivors have then received the same of it
(RELIABLE_ENDED). A message of it may wait for a cause that died with *its* sender, received by nobody who lives. It is
erased, with all that follows in its stream, once that is certain: both streams have ended, and the cause lies beyond
the last message delivered of its own (`ends`).
  Erased everywhere, or nowhere: survivors have the same of every ended stream. By induction over the causal order, a
message of an ended stream is delivered by all if each of its causes is sent by somebody who lives (then all get it) or
is in turn delivered by all of an ended stream; else it is delivered by nobody. Nothing in this depends on when who
learns what.
  Nobody who lives depends on what is erased: who delivers a message has received its causes, so if he survives, the
reliable layer takes the ended streams of these causes at least that far. A message that does depend on it is of a
sender that the group is about to end (it was cut off with the dead one). It waits for the end of its stream, too, and
is erased then. That is why an erased message leaves no gap: what came before it is the end of its stream.

Invariants. claims[k] <= passed[k]. Only the lowest life of a member delivers. A message waits if and only if a word of
its vector exceeds `passed`, or points beyond an end, or its life is not the lowest; so nothing waits at rest.

Cost: n words per message, O(n) per receipt (two comparisons of vectors); O(n) more each time a waiting message is
looked at, which happens when the entry that it waits for moves.

Deviations. Isis sends vectors of one view and resets them with the view; here entries name lives, so views may change
under way. Isis erases at the flush; here when both ends are known. Vectors are not compressed.

Not here: a bound on messages that wait for one cause, other than `waiting` per life: senders do not know that a
receiver waits. Beyond it a receiver takes no more of that life, and says so: whoever reaches it with an honest sender
has set it too low.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from operator import ge, le

from node.core import Core, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report, Send, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.parameters import require
from node.protocols.joining import Joining
from node.protocols.reliable import ReliableParameters
from node.protocols.timers import Timers
from node.protocols.words import MAX_NUMBER, pack
from node.wire import Flag, Kind, Message

CONTROL = Flag.CONTROL.value
ASK = Timer("ask")
DOOMED = -1
"""Instead of an entry that a message waits for: no entry will ever satisfy it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CbcastParameters:
    """Of CBCAST and of the reliable layer under it."""

    waiting: int = 65536
    """Messages of one life of one member that may wait for causes, before it is held to be wrong."""
    reliable: ReliableParameters = field(default_factory=ReliableParameters)

    def __post_init__(self) -> None:
        require(1 <= self.waiting <= 1 << 24, f"waiting must lie between 1 and {1 << 24}, not {self.waiting}")


class Phase(enum.StrEnum):
    """JOINING until the reliable layer says that we are a member, and everybody's WELCOME that we have missed nothing
    whose end matters."""

    JOINING = "joining"
    MEMBER = "member"


class CbcastReport(enum.IntEnum):
    """Codes of our reports."""

    ERASED = 0x41
    """Message `value` of `member` and all after it in that life died with a cause of theirs."""


class Life:
    """What has come of one life of one member."""

    __slots__ = ("at", "final", "incarnation", "is_missed", "member", "queue", "received", "start", "waits_for")

    def __init__(self, *, at: int, member: int, incarnation: int, start: int) -> None:
        self.at = at
        """The index of its member in every vector."""
        self.member = member
        self.incarnation = incarnation
        self.start = start
        """Our part begins after this."""
        self.received = pack(member, incarnation, start)
        """The last message that we took in, as an entry."""
        self.queue: deque[Message] = deque()
        """Messages that wait, in the order of their numbers."""
        self.final: int | None = None
        """Once it has ended: its last number, as the reliable layer says."""
        self.is_missed = False
        """It ended and we had no part in it."""
        self.waits_for: int | None = None
        """The index of the entry that the first waiting message waits for."""

    @property
    def name(self) -> tuple[int, int]:
        return self.member, self.incarnation


class CbcastCore(Core):
    """See the module's text."""

    def __init__(self, *, membership: Membership, parameters: CbcastParameters) -> None:
        self._us = membership
        self._most_waiting = parameters.waiting
        self._members = membership.members
        self._me = self._members.index(membership.member)
        self._at = {member: at for at, member in enumerate(self._members)}
        self._joining = Joining(membership, answers_news=True)
        self._timers = Timers()
        self._phase = Phase.JOINING if self._joining.is_joining else Phase.MEMBER
        self._claims = [pack(member, 0, 0) for member in self._members]
        """Per member: the last message of it that we delivered."""
        self._passed = list(self._claims)
        """Per member: the last message that we delivered, or that counts as delivered."""
        self._bases = list(self._claims)
        """Per member: where our part of its current life begins."""
        self._lives: list[deque[Life]] = [deque() for _ in self._members]
        """Per peer: its lives that have not ended here, ascending; only the first one delivers."""
        self._ends: dict[int, int] = {}
        """Per ended life (member 16 bits, incarnation 16): the number of its last message that was delivered."""
        self._blocked: dict[int, list[Life]] = {}
        """Per index: lives whose first waiting message waits for that entry."""
        ours = pack(membership.member, membership.incarnation, 0)
        self._claims[self._me] = self._passed[self._me] = self._bases[self._me] = ours
        if self._phase is Phase.MEMBER:
            for peer in membership.peers:
                self._begin(Life(at=self._at[peer], member=peer, incarnation=1, start=0))

    @property
    def can_submit(self) -> bool:
        return self._phase is Phase.MEMBER and self._passed[self._me] & 0xFFFF_FFFF < MAX_NUMBER

    @property
    def is_idle(self) -> bool:
        return self._phase is Phase.MEMBER and self.held == 0

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def held(self) -> int:
        """Messages that wait for a cause."""
        return sum(len(life.queue) for lives in self._lives for life in lives)

    def on_start(self, now_ns: int) -> list[Effect]:
        return []

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        if not self.can_submit:
            raise LocalError(f"member {self._us.member} takes no submission now: ask can_submit before")
        if submission.target is not None:
            raise LocalError("cbcast orders multicasts; send to one member through the layer below")
        words = tuple(self._claims)
        self._passed[self._me] += 1
        self._claims[self._me] = self._passed[self._me]
        message = self._us.message(
            Kind.CBCAST_DATA,
            seq=self._passed[self._me] & 0xFFFF_FFFF,
            flags=submission.flags,
            words=words,
            inner=submission.inner,
            payload=submission.payload,
        )
        return [Multicast(message=message), Deliver.of(message)]

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        kind = message.kind
        if kind is Kind.CBCAST_DATA:
            return self._on_data(message, source)
        if kind is Kind.CBCAST_WELCOME:
            return self._on_welcome(message, source)
        if kind is Kind.CBCAST_JOIN:
            return self._on_join(message, source)
        if kind is Kind.RELIABLE_ENDED:
            return self._on_ended(message)
        if kind is Kind.RELIABLE_JOINED:
            return self._on_joined(message, now_ns)
        return [Report(code=DropReason.UNEXPECTED, member=source, value=len(message.payload))]

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        if timer != ASK:
            raise LocalError(f"{timer} is no timer of cbcast")
        self._timers.fired(timer)
        if not self._joining.is_joining:
            return []
        join = self._us.message(Kind.CBCAST_JOIN, flags=CONTROL)
        out: list[Effect] = [Send(target=member, message=join) for member, _ in self._joining.lives]
        self._timers.arm(ASK, self._joining.asks(now_ns), out)
        return out

    # Messages.

    def _on_data(self, message: Message, source: int) -> list[Effect]:
        if message.origin == self._us.member and message.incarnation == self._us.incarnation:
            return []  # The layer below hands us our own message, too; it was delivered when it was sent.
        life = self._life(message)
        reason = DropReason.UNEXPECTED if life is None else self._ignore(message, life)
        if life is None or reason is not None:
            return [Report(code=reason or DropReason.UNEXPECTED, member=source, value=len(message.payload))]
        at = life.at
        words = message.words
        # Nearly always all causes are there, and nothing is said about lives that have ended.
        is_plain = all(map(le, words, self._passed)) and all(map(ge, words, self._bases))
        if not is_plain:
            self._check_words(words)
        life.received += 1
        self._joining.spoke(life.name)
        if not is_plain or life.queue or life is not self._lives[at][0] or self._phase is Phase.JOINING:
            life.queue.append(message)
            return self._work([life]) if len(life.queue) == 1 else []
        out: list[Effect] = []
        self._deliver(message, at, out)
        if at in self._blocked:
            out += self._work(self._woken(at))
        return out

    def _life(self, message: Message) -> Life | None:
        lives = self._lives[self._at.get(message.origin, self._me)]
        incarnation = message.incarnation
        if lives and lives[0].incarnation == incarnation:
            return lives[0]
        return next((life for life in lives if life.incarnation == incarnation), None)

    def _ignore(self, message: Message, life: Life) -> DropReason | None:
        """Why a message of a life that we know is refused. Numbers in it have no gaps: the layer below is FIFO."""
        words = message.words
        if len(words) != len(self._members):
            return DropReason.MALFORMED
        if words[life.at] != life.received or message.seq != (life.received & 0xFFFF_FFFF) + 1:
            return DropReason.DUPLICATE if message.seq <= life.received & 0xFFFF_FFFF else DropReason.UNEXPECTED
        if life.final is not None:
            return DropReason.UNEXPECTED
        return DropReason.OUT_OF_WINDOW if len(life.queue) >= self._most_waiting else None

    def _check_words(self, words: tuple[int, ...]) -> None:
        """Each word is its member's, and nobody has delivered what we have not sent."""
        for word, member in zip(words, self._members, strict=True):
            if word >> 48 != member:
                raise RemoteError(DropReason.MALFORMED, f"the entry of member {member} names {word >> 48}")
        if words[self._me] > self._passed[self._me]:
            raise RemoteError(DropReason.MALFORMED, "it claims a message that we have not sent")

    def _deliver(self, message: Message, at: int, out: list[Effect]) -> None:
        self._claims[at] = self._passed[at] = self._passed[at] + 1
        out.append(Deliver.of(message))

    # What waits.

    def _work(self, candidates: list[Life]) -> list[Effect]:
        """Deliver what can be delivered of these lives and of all that wait for what this delivers."""
        out: list[Effect] = []
        work = deque(candidates if self._phase is Phase.MEMBER else ())
        while work:
            life = work.popleft()
            if life is self._current(life.at) and self._advance(life, out):
                work.extend(self._woken(life.at))
                following = self._current(life.at)
                if following is not None and following is not life:
                    work.append(following)
        return out

    def _advance(self, life: Life, out: list[Effect]) -> bool:
        """As far as this life's messages can be delivered now; whether its member's entry means more than before."""
        at = life.at
        before = self._passed[at]
        queue = life.queue
        while queue:
            obstacle = self._obstacle(queue[0].words)
            if obstacle == DOOMED and life.final is not None:
                out.append(Report(code=CbcastReport.ERASED, member=life.member, value=queue[0].seq))
                queue.clear()
            elif obstacle is not None:
                self._wait(life, obstacle)
                break
            else:
                self._deliver(queue.popleft(), at, out)
        if life.final is None or queue:
            return self._passed[at] != before
        self._end(life)
        return True

    def _obstacle(self, words: tuple[int, ...]) -> int | None:
        """The index of an entry that is missing; DOOMED when one is that will never come; None when all are there."""
        missing: int | None = None
        passed, bases = self._passed, self._bases
        for at, word in enumerate(words):
            if bases[at] <= word <= passed[at]:
                continue
            end = self._ends.get(word >> 32)
            if end is None:
                missing = at if word > passed[at] and missing is None else missing
            elif word & 0xFFFF_FFFF > end:
                return DOOMED
        return missing

    def _wait(self, life: Life, obstacle: int) -> None:
        """The doomed wait for the end of their own life, and need no waking."""
        if obstacle not in (DOOMED, life.waits_for):
            self._blocked.setdefault(obstacle, []).append(life)
        life.waits_for = obstacle

    def _woken(self, at: int) -> list[Life]:
        woken = [life for life in self._blocked.pop(at, ()) if life.waits_for == at]
        for life in woken:
            life.waits_for = None
        return woken

    # Lives.

    def _on_joined(self, message: Message, now_ns: int) -> list[Effect]:
        name = (message.origin, message.incarnation)
        out: list[Effect] = []
        if self._joining.joined(name):
            self._timers.arm(ASK, self._joining.asks(now_ns), out)
        if message.origin == self._us.member:
            return out + self._enter_member_if_welcome()
        at = self._at[message.origin]
        out += self._begin(Life(at=at, member=message.origin, incarnation=message.incarnation, start=message.seq))
        if message.incarnation > 1:
            self._joining.asked(name)
            out.append(self._welcome(name))
        return out

    def _on_ended(self, message: Message) -> list[Effect]:
        life = self._life(message)
        self._joining.ended((message.origin, message.incarnation))
        if life is None:
            life = Life(at=self._at[message.origin], member=message.origin, incarnation=message.incarnation, start=0)
            self._miss(life)
            out = self._begin(life)
        elif self._phase is Phase.JOINING:
            self._miss(life)
            out = []
        else:
            life.final = message.seq
            out = self._work([life])
        out.extend(self._welcome(joiner) for joiner in self._joining.waiting)
        return out + self._enter_member_if_welcome()

    def _miss(self, life: Life) -> None:
        """It ended without us. What others have of it, and what was before, counts as delivered."""
        life.is_missed = True
        life.queue.clear()
        life.start = life.final = MAX_NUMBER
        if life is self._current(life.at):
            self._enter_life(life)

    def _current(self, at: int) -> Life | None:
        return self._lives[at][0] if self._lives[at] else None

    def _on_join(self, message: Message, source: int) -> list[Effect]:
        """It lacks answers to the news: perhaps ours, perhaps that of somebody who is gone."""
        life = self._life(message)
        if life is None or life.incarnation == 1:
            return [Report(code=DropReason.UNEXPECTED, member=source)]
        self._joining.asked(life.name)
        return [self._welcome(life.name)]

    def _welcome(self, joiner: tuple[int, int]) -> Effect:
        """What the joiner must have a part in, or wait for the end of."""
        message = self._us.message(Kind.CBCAST_WELCOME, flags=CONTROL, words=self._joining.words(joiner))
        return Send(target=joiner[0], message=message)

    def _on_welcome(self, message: Message, source: int) -> list[Effect]:
        life = self._life(message)
        if life is None:
            return [Report(code=DropReason.UNEXPECTED, member=source)]
        self._joining.answered(life.name, 0, message.words)
        return self._enter_member_if_welcome()

    def _enter_member_if_welcome(self) -> list[Effect]:
        if not self._joining.has_everything:
            return []
        out: list[Effect] = []
        self._phase = Phase.MEMBER
        self._joining.begin()
        self._timers.disarm(ASK, out)
        return out + self._work([life for lives in self._lives for life in lives])

    def _begin(self, life: Life) -> list[Effect]:
        """A life that we knew nothing of. While an earlier one goes on, it waits."""
        lives = self._lives[life.at]
        assert not lives or lives[-1].incarnation < life.incarnation, "the layer below counts lives upwards"
        lives.append(life)
        if len(lives) > 1:
            return []
        self._enter_life(life)
        return self._work([life, *self._woken(life.at)])

    def _enter_life(self, life: Life) -> None:
        """What was before our part of it counts as delivered."""
        self._passed[life.at] = self._bases[life.at] = pack(life.member, life.incarnation, life.start)

    def _end(self, life: Life) -> None:
        """Nothing more comes of it; the next life of its member, if there is one, begins."""
        self._lives[life.at].popleft()
        if not life.is_missed:
            self._ends[life.member << 16 | life.incarnation] = self._passed[life.at] & 0xFFFF_FFFF
        following = self._current(life.at)
        if following is not None:
            self._enter_life(following)
