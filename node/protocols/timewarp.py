"""Total order by the timestamps of the senders, acted upon before it is certain: Time Warp over reliable FIFO channels.

Paper 003, 3.1 (after Jefferson 1985): the sender stamps a message with its logical time; "the receivers process at
once", in the order of the timestamps that have come; a straggler, which comes with a timestamp below one that has been
processed, rolls the receiver back; what was undone is done again, and what it had sent is cancelled by anti-messages.
What is not later than the global virtual time (GVT) is final.

    sender             everybody else
    DATA T ----------> executes it in its place, handed over as OPTIMISTIC: others are undone, and done again
    FOLLOW_UP -------> what executing a message of ours has sent; one more message of the order, not of the application
    ANTI ------------> these follow-ups do not exist: they are taken out, what was executed after them is done again
    REPORT <---------> rounds, among all; all up to GVT is delivered as FINAL

The order is (timestamp, place of the origin among the members, incarnation, number); the core's epoch stands in front
of it for users who have several (node/protocols/adaptive.py). A submission's timestamp is one more than the local
virtual time, the greatest timestamp whose execution has begun here, and than all that we have sent; so it is later than
all that the application has been given when it submits, also optimistically: the order is causal and FIFO. The clock is
the paper's: it moves when processing begins, not at receipt. A follow-up is one later than its cause.

The processor (queue, saved states, roll-backs) is node/protocols/execution.py; rounds, GVT and why it is right,
node/protocols/virtual_time.py. Here is what lies between: messages, anti-messages, floors.

Cancellation. When the execution of a message of ours is undone, what it had sent is in doubt. `aggressive`: it is
cancelled at once and sent anew when the message is executed again. `lazy`: it stays; when the message has been executed
again, what it sends now and had sent before stays, the rest is cancelled then. A message that is itself cancelled takes
what it had sent with it, in both cases. Anti-messages name the numbers of what they cancel and travel in the stream of
their sender, so they cannot come before that.

Echoes. Members whose follow-ups depend on each other's can cancel and send faster than the group settles anything: each
anti-message undoes many, which cancel more. So a message of ours whose sending was undone `most_tries` times, counting
those of what had sent it, sends only when it is final: what it sends then is certain. That bounds what is sent in vain.

Rounds. Who has something that is not final begins a round `gvt_every_ns` after its last; who hears of a round answers
at once. One round after everybody has everything, it is final; a group at rest is silent. Who crashes owing nothing but
a report is missed by nobody: who stands still for a second repeats its last (`standstill.py`).

A member that ends. All survivors get the same of its stream, and order it by the same keys. A follow-up that it would
have cancelled stands: its cancellation was never sent, for all alike.

A member that joins (a later life): node/protocols/joining.py, with timestamps for numbers. A welcome says a timestamp
that is not before anything that its sender has sent, received, or told as floor; the number of its last item, all of
which the joiner has or will never have; and its last round. The joiner keeps what comes, forgets what is not later than
its start, and begins with a report. Its application begins in the initial state, without what was before.

Flow. Submissions wait while `most_open` messages are not final here, and a message sends only when it is final while
MOST_OPEN of ours are not. So an honest life has at most MOST_OPEN open where it lives, and twice as many elsewhere: who
has judged a round has the reports of all that had judged the one before. Who has MOST_OPEN_ELSEWHERE is refused, by a
joiner for what it keeps. So memory is bounded by what all may have open, also among members that lie.

FINAL is uniform among those who take part: a round is valid only if everybody has received what it makes final, so it
survives while any of them does. OPTIMISTIC promises nothing.

Invariants: nothing at or before GVT comes, is undone, or is cancelled; per life, numbers come without a gap; what is
open is in the execution, and what waits for its cause to be executed again is open.

Deviations. The paper has a GVT manager and does not say how it reckons. Its members exchange point-to-point messages of
a simulation; here all messages are multicasts, and follow-ups stand for what a simulation would send. Not here: a clock
that has reached its end takes no submission any more; what is under way becomes final.
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from node.core import Core, Membership, Submission
from node.effects import Effect, Multicast, Report, Send, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.parameters import require
from node.protocols.execution import Command, Execution, Key, Outcome, ServiceParameters, Undone
from node.protocols.joining import Joining, Life
from node.protocols.reliable import ReliableParameters
from node.protocols.standstill import PROD, StandStill
from node.protocols.timers import Timers
from node.protocols.virtual_time import ENDLESS, MOST_KEPT, MOST_ROUND, RoundReport, Rounds
from node.protocols.words import MAX_NUMBER
from node.trace import Notice
from node.wire import Flag, Kind, Message

MILLISECOND = 1_000_000
CONTROL = Flag.CONTROL.value
PROCESS = Timer("process")
ROUND = Timer("round")
ASK = Timer("ask")
LAST_TIMESTAMP = ENDLESS - 1
"""Of a message."""
LAST_NUMBER = MAX_NUMBER // 2
"""Of a submission; the rest is for follow-ups and anti-messages."""
MOST_OPEN = 4096
"""No member has more of its own that is not final, follow-ups included."""
MOST_OPEN_ELSEWHERE = 4 * MOST_OPEN
"""Of one life, where somebody else lives."""
MOST_CANCELLED = 64
"""Numbers in one anti-message; it fits an Ethernet frame."""


class Cancellation(enum.StrEnum):
    """When what an undone execution had sent is cancelled."""

    AGGRESSIVE = "aggressive"
    LAZY = "lazy"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWarpParameters:
    """Of the order, the processor, and the reliable layer below. Times in ns."""

    cancellation: str = "aggressive"
    """`aggressive` or `lazy`."""
    most_tries: int = 3
    """How often a message may have sent in vain before what it sends waits until it is final."""
    gvt_every_ns: int = 20 * MILLISECOND
    """How long after its last report a member with something that is not final begins the next round."""
    most_open: int = 256
    """How many messages may be not final here before a submission has to wait."""
    service: ServiceParameters = field(default_factory=ServiceParameters)
    reliable: ReliableParameters = field(default_factory=ReliableParameters)

    def __post_init__(self) -> None:
        known = tuple(Cancellation)
        require(
            self.cancellation in known, f"cancellation must be one of {', '.join(known)}, not {self.cancellation!r}"
        )
        require(
            MILLISECOND <= self.gvt_every_ns <= 2**62,
            f"gvt_every_ns must be a millisecond at least, not {self.gvt_every_ns}",
        )
        require(0 <= self.most_tries <= 1 << 20, f"most_tries must lie between 0 and {1 << 20}, not {self.most_tries}")
        require(1 <= self.most_open <= MOST_OPEN, f"most_open must lie between 1 and {MOST_OPEN}, not {self.most_open}")


class Phase(enum.StrEnum):
    """JOINING until everybody has welcomed us; EXHAUSTED when no timestamp or number is left; CLOSED when our user says
    that nothing will be submitted any more.
    """

    JOINING = "joining"
    RUNNING = "running"
    EXHAUSTED = "exhausted"
    CLOSED = "closed"


class TimeWarpReport(enum.IntEnum):
    """Codes of our reports."""

    EXHAUSTED = 0xC1
    """The clock or the numbers have reached their end: this member submits nothing any more; `value`: the clock."""
    WELCOMED = 0xC2
    """This later life takes part; `value`: it delivers what is later than this timestamp."""
    CANCELLED = 0xC3
    """This member has sent an anti-message; `value`: for how many follow-ups."""


class _Sent(NamedTuple):
    """A follow-up of ours that is not final."""

    key: Key
    payload: bytes


class TimeWarpCore(Core):
    """See the module's text.

    `execution` None: the core owns its processor, drawn from `seed`, and the timer `process` that drives it. Given: the
    owner calls `execution.advance` after each call of this core and at its `due_ns`, and hands what has ended to
    `take_outcomes`, until nothing ends any more.
    """

    def __init__(
        self,
        *,
        membership: Membership,
        parameters: TimeWarpParameters,
        execution: Execution | None = None,
        epoch: int = 0,
        seed: int = 0,
    ) -> None:
        self._us = membership
        self._life: Life = (membership.member, membership.incarnation)
        self._places = {member: place for place, member in enumerate(membership.members)}
        self._parameters = parameters
        self._is_lazy = parameters.cancellation == Cancellation.LAZY
        self._is_owner = execution is None
        self._execution = execution or Execution(membership=membership, parameters=parameters.service, seed=seed)
        self._epoch = epoch
        self._timers = Timers()
        self._standstill = StandStill(self._timers)
        self._joining = Joining(membership)
        self._rounds = Rounds(self._life, self._joining.lives)
        self._phase = Phase.JOINING if self._joining.is_joining else Phase.RUNNING
        self._is_closed = False
        self._early: dict[tuple[int, int, int], tuple[Message, int]] = {}
        """Messages that came before our beginning and are not cancelled, and when; by origin, incarnation, number."""
        self._received: dict[Life, int | None] = {self._life: 0, **dict.fromkeys(self._joining.lives, 0)}
        """The number of the last item of each; None: our part of that stream begins somewhere."""
        self._open: dict[Key, None] = {}
        """All that is not final; ..."""
        self._counts: Counter[tuple[int, ...]] = Counter()
        """... how many that are, and of what is kept until we begin, by place and incarnation; ..."""
        self._follow_ups: dict[tuple[int, int, int], Key] = {}
        """... and the follow-ups among it, by member, incarnation and number."""
        self._sent: dict[Key, list[_Sent]] = {}
        """By message of ours that has been executed: what that has sent, ..."""
        self._doubtful: dict[Key, list[_Sent]] = {}
        """... and of those that wait to be executed again, with lazy cancellation."""
        self._certain: dict[Key, list[bytes]] = {}
        """By message of ours that has been executed: what it will send when it is final."""
        self._tries: dict[Key, int] = {}
        """How often open messages of ours, or what had sent them, have sent in vain; 0 is left out."""
        self._undone: set[Key] = set()
        """Since the outcomes came that are just being taken."""
        self._transit: deque[tuple[int, int]] = deque()
        """Number and timestamp of own items that somebody may not have; of an anti-message, what it cancels."""
        self._latest = 0
        """The timestamp of our last message, or where we began."""
        self._seen = 0
        """The greatest timestamp sent, received, or told as floor."""
        self._gvt = 0
        """As told to the execution."""
        self._is_round_due = False
        self._process_ns: int | None = None
        """When PROCESS is due."""
        self._last_report: Message | None = None
        self._handlers: dict[Kind, Callable[[Message, int, list[Effect]], None]] = {
            Kind.TIMEWARP_DATA: self._on_item,
            Kind.TIMEWARP_FOLLOW_UP: self._on_item,
            Kind.TIMEWARP_ANTI: self._on_item,
            Kind.TIMEWARP_REPORT: self._on_report,
            Kind.TIMEWARP_JOIN: self._on_join,
            Kind.TIMEWARP_WELCOME: self._on_welcome,
            Kind.RELIABLE_ENDED: self._on_ended,
            Kind.RELIABLE_JOINED: self._on_joined,
        }

    @property
    def can_submit(self) -> bool:
        return self._phase is Phase.RUNNING and len(self._open) < self._parameters.most_open

    @property
    def is_idle(self) -> bool:
        return self._phase is not Phase.JOINING and not self._wants_round

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def held(self) -> int:
        """Messages that are not final here, ours included."""
        return len(self._open) + len(self._early)

    @property
    def gvt(self) -> int:
        """All with timestamps up to it is final. ENDLESS: everybody has closed, and there is nothing more."""
        return self._rounds.gvt

    @property
    def timestamp(self) -> int:
        """What our next message's must exceed."""
        return max(self._execution.clock, self._latest)

    def on_start(self, now_ns: int) -> list[Effect]:
        return []

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        if not self.can_submit:
            raise LocalError(f"member {self._us.member} takes no submission now: ask can_submit before")
        if submission.target is not None:
            raise LocalError("timestamps order multicasts; send to one member through the layer below")
        if not 0 <= submission.not_before < LAST_TIMESTAMP:
            raise LocalError(f"{submission.not_before} is no timestamp that another can follow")
        out: list[Effect] = []
        timestamp = max(self.timestamp, submission.not_before) + 1
        message = self._us.message(
            Kind.TIMEWARP_DATA,
            seq=self._next_number,
            flags=submission.flags,
            inner=submission.inner,
            words=(timestamp,),
            payload=submission.payload,
        )
        self._multicast(message, timestamp, out)
        # Not when it comes back from the layer below: flow control may hold it there while others' messages come.
        self._insert(message, now_ns, now_ns, out)
        self._go_on(now_ns, out)
        return out

    def close(self, now_ns: int) -> list[Effect]:
        """No submission comes any more. When all have closed and nothing is open anywhere, `gvt` is ENDLESS."""
        out: list[Effect] = []
        self._is_closed = True
        if self._phase is not Phase.JOINING:
            self._enter_closed()
            self._go_on(now_ns, out)
        return out

    def take_outcomes(self, outcomes: Iterable[Outcome], now_ns: int, out: list[Effect]) -> None:
        """These executions have ended: what they send goes out. Only those of our epoch and of our own messages count;
        the owner of the execution calls this once after each `advance` that ends something. (Where nothing has ended
        nothing is sent, and no floor is told: each call of this core looks at the execution anew.)
        """
        self._take(outcomes, now_ns, out)
        self._see_to_rounds(now_ns, out)

    def erase(self, life: Life, now_ns: int) -> list[Effect]:
        """Nothing counts that this life, which has ended, has sent: for the owner of an execution who has not given it
        any of that (node/protocols/adaptive_gate.py), at all members alike.
        """
        place = (self._places[life[0]], life[1])
        for key in [key for key in self._open if key[2:4] == place]:
            self._drop(key)
            self._follow_ups.pop((*life, key[-1]), None)
        out: list[Effect] = []
        self._go_on(now_ns, out)
        return out

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        reason = self._ignore(message)
        if reason is not None:
            return [Report(code=reason, member=source, value=len(message.payload))]
        out: list[Effect] = []
        is_ours = message.origin == self._us.member and not _is_news(message)
        if not is_ours:
            self._handlers[message.kind](message, now_ns, out)
            self._go_on(now_ns, out)
        return out

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        if timer not in (PROCESS, ROUND, ASK, PROD):
            raise LocalError(f"{timer} is no timer of this core")
        out: list[Effect] = []
        self._timers.fired(timer)
        if timer == ASK and self._joining.is_joining:
            self._ask(now_ns, out)
        elif timer == PROCESS:
            self._process_ns = None
        elif timer == ROUND:
            self._is_round_due = True
        elif timer == PROD and self._standstill.is_due(self._place) and self._last_report is not None:
            out.append(Multicast(message=self._last_report))
        self._go_on(now_ns, out)
        return out

    def _ignore(self, message: Message) -> DropReason | None:
        if message.kind not in self._handlers:
            return DropReason.UNEXPECTED
        if _is_news(message) or message.origin == self._us.member:
            return None
        return None if (message.origin, message.incarnation) in self._joining else DropReason.UNEXPECTED

    # Items: messages and anti-messages.

    def _on_item(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        life = (message.origin, message.incarnation)
        before = self._received[life]
        if not 1 <= message.seq <= MAX_NUMBER or (before is not None and message.seq != before + 1):
            raise RemoteError(DropReason.MALFORMED, f"item {message.seq} of {life} after {before}")
        if message.kind is Kind.TIMEWARP_ANTI:
            self._require_numbers(message)
        else:
            self._require_place(message)
            self._require_room(message)
        self._received[life] = message.seq
        self._joining.spoke(life)
        if message.kind is Kind.TIMEWARP_ANTI:
            cancelled = self._cancelled_by(message)
            if cancelled:
                self._rounds.came(life, message.seq, min(cancelled))
        else:
            self._seen = max(self._seen, message.words[0])
            self._rounds.came(life, message.seq, message.words[0])
        if self._phase is Phase.JOINING:
            self._keep_until_we_begin(message, now_ns)
        else:
            self._take_item(message, now_ns, now_ns, out)

    def _cancelled_by(self, message: Message) -> list[int]:
        """The timestamps of what an anti-message cancels here."""
        names = [(message.origin, message.incarnation, number) for number in message.words]
        early = [self._early[name][0].words[0] for name in names if name in self._early]
        return early + [self._follow_ups[name][1] for name in names if name in self._follow_ups]

    def _keep_until_we_begin(self, message: Message, now_ns: int) -> None:
        life = (message.origin, message.incarnation)
        place = (self._places[message.origin], message.incarnation)
        if message.kind is not Kind.TIMEWARP_ANTI:
            self._early[*life, message.seq] = (message, now_ns)
            self._counts[place] += 1
            return
        for number in message.words:
            self._counts[place] -= self._early.pop((*life, number), None) is not None

    def _require_room(self, message: Message) -> None:
        """RemoteError when its origin has more that is not final than an honest life can have."""
        if self._counts[self._places[message.origin], message.incarnation] >= MOST_OPEN_ELSEWHERE:
            raise RemoteError(DropReason.MALFORMED, f"{MOST_OPEN_ELSEWHERE} of its messages are not final already")

    def _require_place(self, message: Message) -> None:
        """RemoteError unless the message can stand where it wants to."""
        is_follow_up = message.kind is Kind.TIMEWARP_FOLLOW_UP
        if len(message.words) != 1 + is_follow_up or not 1 <= message.words[0] <= LAST_TIMESTAMP:
            raise RemoteError(DropReason.MALFORMED, f"a message with the words {message.words[:4]}")
        if is_follow_up and not 1 <= message.words[1] < message.seq:
            raise RemoteError(DropReason.MALFORMED, f"message {message.seq} as what {message.words[1]} has sent")
        floor = self._rounds.told_floor((message.origin, message.incarnation))
        if not is_follow_up and message.words[0] <= floor:
            raise RemoteError(DropReason.MALFORMED, f"timestamp {message.words[0]} of who has told the floor {floor}")
        is_final = self._joining.start < message.words[0] <= self._rounds.gvt
        if is_final and self._phase is not Phase.JOINING:
            raise RemoteError(
                DropReason.MALFORMED, f"timestamp {message.words[0]}: all up to {self._rounds.gvt} is final"
            )

    def _require_numbers(self, message: Message) -> None:
        """RemoteError unless the anti-message names follow-ups of its origin that are not final. A joiner knows no
        better about those that came before it.
        """
        numbers = message.words
        is_ascending = all(one < other for one, other in pairwise(numbers))
        if not 1 <= len(numbers) <= MOST_CANCELLED or not is_ascending or numbers[-1] >= message.seq:
            raise RemoteError(DropReason.MALFORMED, f"an anti-message, item {message.seq}, for {numbers[:4]}")
        is_known = all((message.origin, message.incarnation, number) in self._follow_ups for number in numbers)
        if self._us.incarnation == 1 and not is_known:
            raise RemoteError(DropReason.MALFORMED, f"an anti-message for what is final or never was: {numbers[:4]}")

    def _take_item(self, message: Message, received_ns: int, now_ns: int, out: list[Effect]) -> None:
        if message.kind is not Kind.TIMEWARP_ANTI:
            if message.words[0] > self._joining.start:
                self._insert(message, received_ns, now_ns, out)
            return
        for number in message.words:
            key = self._follow_ups.pop((message.origin, message.incarnation, number), None)
            if key is not None:
                self._drop(key)
                undone = self._execution.remove(key, now_ns, out)
                self._cancel(self._doubted(undone), now_ns, out)

    def _insert(self, message: Message, received_ns: int, now_ns: int, out: list[Effect]) -> None:
        """It gets its place; what stands after it is undone."""
        place = self._places[message.origin]
        key = (self._epoch, message.words[0], place, message.incarnation, message.seq)
        is_follow_up = message.kind is Kind.TIMEWARP_FOLLOW_UP
        if is_follow_up:
            self._follow_ups[message.origin, message.incarnation, message.seq] = key
        self._open[key] = None
        self._counts[key[2:4]] += 1
        undone = self._execution.insert(Command(key, message, received_ns, is_follow_up), now_ns, out)
        self._cancel(self._doubted(undone), now_ns, out)

    def _drop(self, key: Key) -> None:
        """It is open no more."""
        del self._open[key]
        self._counts[key[2:4]] -= 1
        if not self._counts[key[2:4]]:
            del self._counts[key[2:4]]

    # What executing our messages sends.

    def _take(self, outcomes: Iterable[Outcome], now_ns: int, out: list[Effect]) -> None:
        self._undone.clear()
        for outcome in outcomes:
            # What an earlier one of them sends may undo a later one: that will end anew.
            if outcome.key in self._open and outcome.key not in self._undone:
                self._take_outputs(outcome, now_ns, out)

    def _take_outputs(self, outcome: Outcome, now_ns: int, out: list[Effect]) -> None:
        """Of what it had sent, what it sends again stays and the rest is cancelled; what is new goes out."""
        old = self._doubtful.pop(outcome.key, [])
        kept: list[_Sent] = []
        new: list[bytes] = []
        for payload in outcome.outputs if outcome.key[1] < LAST_TIMESTAMP else ():
            same = next((one for one in old if one.payload == payload), None)
            if same is None:
                new.append(payload)
            else:
                old.remove(same)
                kept.append(same)
        self._cancel(old, now_ns, out)
        is_too_much = self._counts[outcome.key[2:4]] >= MOST_OPEN
        if new and (is_too_much or self._tries.get(outcome.key, 0) >= self._parameters.most_tries):
            self._certain[outcome.key] = new
        else:
            kept += [self._follow_up(outcome.key, payload, now_ns, out) for payload in new]
        if kept:
            self._sent[outcome.key] = kept

    def _follow_up(self, cause: Key, payload: bytes, now_ns: int, out: list[Effect]) -> _Sent:
        timestamp, number = cause[1] + 1, self._next_number
        words = (timestamp, cause[-1])
        message = self._us.message(Kind.TIMEWARP_FOLLOW_UP, seq=number, words=words, payload=payload)
        self._multicast(message, timestamp, out)
        self._insert(message, now_ns, now_ns, out)
        key = self._follow_ups[self._us.member, self._us.incarnation, number]
        if cause in self._tries:
            self._tries[key] = self._tries[cause]
        return _Sent(key, payload)

    def _doubted(self, undone: list[Undone]) -> list[_Sent]:
        """These executions of ours do not count any more. Returns what is to be cancelled of what they had sent."""
        doomed: list[_Sent] = []
        for one in undone:
            self._undone.add(one.key)
            self._certain.pop(one.key, None)
            sent = self._sent.pop(one.key, [])
            if sent:
                self._tries[one.key] = self._tries.get(one.key, 0) + 1
            if sent and self._is_lazy:
                self._doubtful[one.key] = sent
            else:
                doomed += sent
        return doomed

    def _cancel(self, doomed: list[_Sent], now_ns: int, out: list[Effect]) -> None:
        """These, and what they had sent, and, not lazily, what those had sent that they undo."""
        work = list(doomed)
        keys: list[Key] = []
        while work:
            key = work.pop().key
            keys.append(key)
            self._drop(key)
            del self._follow_ups[self._us.member, self._us.incarnation, key[-1]]
            work += self._doubted(self._execution.remove(key, now_ns, out))
            work += self._doubtful.pop(key, [])
            self._tries.pop(key, None)
        keys.sort(key=itemgetter(-1))
        for start in range(0, len(keys), MOST_CANCELLED):
            self._send_anti(keys[start : start + MOST_CANCELLED], out)

    def _send_anti(self, keys: list[Key], out: list[Effect]) -> None:
        numbers = tuple(key[-1] for key in keys)
        message = self._us.message(Kind.TIMEWARP_ANTI, seq=self._next_number, flags=CONTROL, words=numbers)
        self._multicast(message, min(key[1] for key in keys), out)
        out.append(Report(code=TimeWarpReport.CANCELLED, member=self._us.member, value=len(keys)))

    @property
    def _next_number(self) -> int:
        return (self._received[self._life] or 0) + 1

    def _multicast(self, message: Message, timestamp: int, out: list[Effect]) -> None:
        """An item of ours; `timestamp`: its own, or the least of what it cancels."""
        self._received[self._life] = message.seq
        self._transit.append((message.seq, timestamp))
        if message.kind is not Kind.TIMEWARP_ANTI:
            self._latest = max(self._latest, timestamp)
            self._seen = max(self._seen, timestamp)
        out.append(Multicast(message=message))

    # The processor and the rounds.

    def _go_on(self, now_ns: int, out: list[Effect]) -> None:
        """To be called after everything that may have changed something."""
        self._process(now_ns, out)
        self._see_to_rounds(now_ns, out)

    def _process(self, now_ns: int, out: list[Effect]) -> None:
        if not self._is_owner or self._phase is Phase.JOINING:
            return
        while outcomes := self._execution.advance(now_ns, out):
            self._take(outcomes, now_ns, out)
        if self._execution.due_ns != self._process_ns:
            self._process_ns = self._execution.due_ns
            self._timers.disarm(PROCESS, out)
            if self._process_ns is not None:
                self._timers.arm(PROCESS, self._process_ns, out)

    def _see_to_rounds(self, now_ns: int, out: list[Effect]) -> None:
        if self._phase is Phase.JOINING:
            return
        self._commit(now_ns, out)
        # No honest life is further ahead.
        for _ in range(MOST_KEPT):
            is_due = self._rounds.is_behind or (self._is_round_due and self._wants_round)
            if not is_due or not self._rounds.may_report:
                break
            self._report(out)
            self._commit(now_ns, out)
        if not self._wants_round:
            self._is_round_due = False
            self._timers.disarm(ROUND, out)
        elif not self._is_round_due:
            self._timers.arm(ROUND, now_ns + self._parameters.gvt_every_ns, out)
        if self._phase is Phase.RUNNING and self._is_at_end:
            self._enter_exhausted(out)
        self._standstill.watch(self._place, now_ns, out)

    @property
    def _wants_round(self) -> bool:
        if self._open or self._rounds.is_behind:
            return True
        return self._phase is Phase.CLOSED and self._rounds.gvt < ENDLESS

    @property
    def _place(self) -> tuple[int, ...] | None:
        """Where the rounds stand while we wait for them."""
        return (self._rounds.number, self._rounds.gvt) if self._wants_round else None

    @property
    def _is_at_end(self) -> bool:
        return self.timestamp >= LAST_TIMESTAMP or self._next_number >= LAST_NUMBER

    def _report(self, out: list[Effect]) -> None:
        received = {life: self._received[life] or 0 for life in (self._life, *self._joining.lives)}
        floor = self._floor()
        self._seen = max(self._seen, floor)
        report = self._rounds.report(floor, received)
        words = report.to_words()
        self._last_report = self._us.message(Kind.TIMEWARP_REPORT, seq=report.number, flags=CONTROL, words=words)
        self._is_round_due = False
        self._timers.disarm(ROUND, out)
        out.append(Multicast(message=self._last_report))

    def _floor(self) -> int:
        """See virtual_time.py. What waits for its cause to be executed again is later than that, which is open."""
        acknowledged = self._rounds.acknowledged
        while self._transit and self._transit[0][0] <= acknowledged:
            self._transit.popleft()
        floor = ENDLESS if self._phase is Phase.CLOSED else self.timestamp
        least_open = self._least_open()
        timestamps = [timestamp for _, timestamp in self._transit]
        # One later than that is what they will send.
        timestamps += [key[1] + 1 for key in self._certain]
        if least_open is not None:
            timestamps.append(least_open)
        return min([floor, *(timestamp - 1 for timestamp in timestamps)])

    def _least_open(self) -> int | None:
        """The least timestamp that has not been executed to its end."""
        first = self._execution.first_open
        if first is None or first in self._open:
            return None if first is None else first[1]
        # Of another epoch, in an execution that is not ours alone.
        return min((key[1] for key in self._open if key > first), default=None)

    def _commit(self, now_ns: int, out: list[Effect]) -> None:
        """Everything up to GVT is final."""
        if self._rounds.gvt <= self._gvt:
            return
        self._gvt = self._rounds.gvt
        if self._parameters.service.report_costs:
            out.append(Report(code=Notice.GVT, member=self._us.member, value=self._gvt))
        below = (self._epoch, self._gvt + 1)
        self._execution.commit(below, out)
        certain = sorted((key, payloads) for key, payloads in self._certain.items() if key < below)
        for key, payloads in certain:
            del self._certain[key]
            for payload in payloads:
                self._follow_up(key, payload, now_ns, out)
        self._forget(below)
        if certain:
            self._process(now_ns, out)

    def _forget(self, below: Key) -> None:
        """What is final can be neither undone nor cancelled."""
        for key in [key for key in self._open if key < below]:
            self._drop(key)
            self._sent.pop(key, None)
            self._tries.pop(key, None)
        for name in [name for name, key in self._follow_ups.items() if key < below]:
            del self._follow_ups[name]

    def _on_report(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        life = (message.origin, message.incarnation)
        report = RoundReport.from_words(message.seq, message.words)
        self._require_report(life, report)
        self._joining.spoke(life)
        self._seen = max(self._seen, report.floor)
        self._rounds.heard(life, report)

    def _require_report(self, life: Life, report: RoundReport) -> None:
        """RemoteError unless it can be one of `life`."""
        if life not in report.received or any(member not in self._places for member, _ in report.received):
            raise RemoteError(DropReason.MALFORMED, f"a report of {life} that names {sorted(report.received)[:4]}")
        if report.received.get(self._life, 0) >= self._next_number:
            raise RemoteError(DropReason.MALFORMED, f"{life} has received of us what we have not sent")
        if self._phase is not Phase.JOINING and report.number > self._rounds.number + MOST_KEPT:
            raise RemoteError(DropReason.MALFORMED, f"a report of round {report.number} after {self._rounds.number}")

    def _enter_exhausted(self, out: list[Effect]) -> None:
        self._phase = Phase.EXHAUSTED
        out.append(Report(code=TimeWarpReport.EXHAUSTED, member=self._us.member, value=self.timestamp))

    def _enter_closed(self) -> None:
        self._phase = Phase.CLOSED

    # Who ends and who joins.

    def _on_ended(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        life = (message.origin, message.incarnation)
        self._received.pop(life, None)
        self._joining.ended(life)
        self._rounds.ended(life)
        for joiner in sorted(self._joining.waiting):
            self._welcome(joiner, out)
        self._enter_running_if_welcome(now_ns, out)

    def _on_joined(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        life = (message.origin, message.incarnation)
        if self._joining.joined(life):
            self._ask(now_ns, out)
        elif message.origin != self._us.member:
            # If we have been here before it, then from its first item on.
            self._received.setdefault(life, 0 if self._joining.is_member else None)
            self._rounds.joined(life)
        self._enter_running_if_welcome(now_ns, out)

    def _ask(self, now_ns: int, out: list[Effect]) -> None:
        out.append(Multicast(message=self._us.message(Kind.TIMEWARP_JOIN, flags=CONTROL)))
        self._timers.arm(ASK, self._joining.asks(now_ns), out)

    def _on_join(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        joiner = (message.origin, message.incarnation)
        self._joining.asked(joiner)
        self._welcome(joiner, out)

    def _welcome(self, joiner: Life, out: list[Effect]) -> None:
        words = (self._rounds.number, self._next_number - 1, *self._joining.words(joiner))
        number = max(self._seen, self.timestamp)
        message = self._us.message(Kind.TIMEWARP_WELCOME, seq=number, flags=CONTROL, words=words)
        out.append(Send(target=joiner[0], message=message))

    def _on_welcome(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        life = (message.origin, message.incarnation)
        words = message.words
        if len(words) < 2 or words[0] > MOST_ROUND or words[1] > MAX_NUMBER or message.seq > ENDLESS:
            raise RemoteError(DropReason.MALFORMED, f"a welcome with number {message.seq} and words {words[:2]}")
        self._joining.answered(life, message.seq, words[2:])
        if self._phase is Phase.JOINING:
            # All up to there that the joiner gets has come: it stands before the welcome.
            self._received[life] = max(self._received[life] or 0, words[1])
            self._rounds.told(life, words[0])
        self._enter_running_if_welcome(now_ns, out)

    def _enter_running_if_welcome(self, now_ns: int, out: list[Effect]) -> None:
        if not self._joining.has_everything:
            return
        start = self._joining.begin()
        self._phase = Phase.CLOSED if self._is_closed else Phase.RUNNING
        self._timers.disarm(ASK, out)
        out.append(Report(code=TimeWarpReport.WELCOMED, member=self._us.member, value=start))
        self._latest = max(self._latest, start)
        self._seen = max(self._seen, start)
        early, self._early = self._early, {}
        self._counts.clear()
        for message, received_ns in early.values():
            self._take_item(message, received_ns, now_ns, out)
        self._process(now_ns, out)
        self._rounds.begin(start)
        self._report(out)


def _is_news(message: Message) -> bool:
    return message.kind in (Kind.RELIABLE_ENDED, Kind.RELIABLE_JOINED)
