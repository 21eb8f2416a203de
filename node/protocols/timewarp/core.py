"""Total order by the senders' timestamps, executed before it is certain: Time Warp over reliable FIFO streams.

Paper 003, 3.1 (after Jefferson 1985), for one view. Processor: node/protocols/timewarp/execution.py; GVT:
virtual_time.py there.

    DATA T         a submission; the order is (timestamp, origin, number)
    FOLLOW_UP T    sent by the execution of an own message; a message of the order, not of the application
    ANTI           these follow-ups of its sender do not exist
    REPORT         one word of a round, multicast by every member; all up to GVT is final

1. The sender stamps a submission one later than its local virtual time, which is the greatest timestamp whose execution
   has begun here, and than all its messages. A follow-up is one later than its cause. The clock is the paper's: it
   moves when processing begins, not at receipt. So a submission is later than all messages that the application has
   been given.
2. "The receivers process at once": a message is executed in its place and handed over as OPTIMISTIC. A straggler rolls
   the receiver back; undone messages are executed again, and anti-messages cancel their follow-ups.
3. Cancellation. `aggressive`: follow-ups are cancelled at once, and sent anew when the cause is executed again. `lazy`:
   when the cause has been executed again, follow-ups that it sends again stay, the others are cancelled. The follow-ups
   of a cancelled message are cancelled, too. Anti-messages follow in the stream of their sender the messages that they
   cancel.
4. Echoes [not in the paper]. Follow-ups that depend on each other can be cancelled and sent faster than messages become
   final. So a message whose follow-ups were undone `most_tries` times, counting its causes, sends only when it is
   final.
5. A member with a message that is not final begins a round `gvt_every_ns` after its last; a member that hears of a
   round answers at once. One round after all members have a message, it is final; a group at rest is silent.
6. Close. All of the cut is final, in the order of its keys. A follow-up above the GVT of the cut's rounds is void
   unless the execution of its cause in that order sends it. Follow-ups of our messages that the cut lacks are handed
   back, as submissions whose `inner` is TIMEWARP_FOLLOW_UP. The memory is the machine's state, and the digest of its
   commands.

Bounds. Submissions wait while `most_open` messages are not final here; while MOST_OPEN own messages are not final, a
message sends only when it is final. Further messages of a member with MOST_OPEN_ELSEWHERE that are not final here are
refused.
Invariants: nothing at or before GVT comes, is undone or is cancelled; per member, numbers come without a gap; a message
whose follow-ups are in doubt or wait is not final.
The arguments and deviations are in docs/protocols/timewarp.md.
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, pairwise
from operator import attrgetter, itemgetter
from typing import NamedTuple, TypeAlias

from node.core import Closing, MakeCore, Membership, Submission
from node.effects import Effect, Multicast, Report, Timer
from node.errors import DropReason, RemoteError
from node.packing import MAX_NUMBER
from node.parameters import require, require_one_of, require_range
from node.protocols.base import CONTROL, MILLISECOND, OrderCore, Phase
from node.protocols.timewarp.execution import Command, Execution, Key, Outcome, ServiceParameters
from node.protocols.timewarp.virtual_time import ENDLESS, RoundReport, Rounds
from node.reliable.parameters import ReliableParameters
from node.trace import Notice
from node.wire import Kind, Message

PROCESS = Timer("process")
ROUND = Timer("round")
LAST_TIMESTAMP = ENDLESS - 1
"""The last timestamp of a message."""
PLACED = 1
"""A floor before all timestamps: each own message of the order before ours is final. T is later."""
LAST_NUMBER = MAX_NUMBER // 2
"""The last number of a submission; the rest is for follow-ups and anti-messages."""
MOST_OPEN = 4096
"""Most own messages of a member that are not final, follow-ups included."""
MOST_OPEN_ELSEWHERE = 4 * MOST_OPEN
"""The same bound for another member. An honest one has at most twice MOST_OPEN open here: a member that has judged a
round has the reports of all members, which had judged the round before."""
MOST_CANCELLED = 64
"""Most numbers in one anti-message, so that it fits an Ethernet frame."""

Name: TypeAlias = tuple[int, ...]
"""Origin and number of an item: the last two parts of its key."""


class Cancellation(enum.StrEnum):
    """The time of cancelling the follow-ups of an undone execution."""

    AGGRESSIVE = "aggressive"
    LAZY = "lazy"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWarpParameters:
    """Parameters of the order, the processor, and the reliable layer below. Times in ns."""

    cancellation: str = "aggressive"
    """`aggressive` or `lazy`."""
    most_tries: int = 3
    """Number of times that the follow-ups of a message may be undone before the next ones wait until it is final."""
    gvt_every_ns: int = 20 * MILLISECOND
    """Time from the last round of a member with a message that is not final until it begins the next round."""
    most_open: int = 256
    """Number of messages that are not final here from which on submissions wait."""
    service: ServiceParameters = field(default_factory=ServiceParameters)
    reliable: ReliableParameters = field(default_factory=ReliableParameters)

    def __post_init__(self) -> None:
        require_one_of("cancellation", self.cancellation, Cancellation)
        require(
            MILLISECOND <= self.gvt_every_ns <= 2**62,
            f"gvt_every_ns must be a millisecond at least, not {self.gvt_every_ns}",
        )
        require_range("most_tries", self.most_tries, 0, 1 << 20)
        require_range("most_open", self.most_open, 1, MOST_OPEN)


class TimeWarpReport(enum.IntEnum):
    """Codes of our reports."""

    EXHAUSTED = 0xC1
    """The clock or the numbers have reached their end: this member submits nothing more in this view; `value`: the
    clock."""
    CANCELLED = 0xC3
    """This member has sent an anti-message; `value`: number of cancelled follow-ups."""
    VOID = 0xC4
    """The view has ended; `value`: number of follow-ups that are void."""


class _Sent(NamedTuple):
    """A follow-up of ours that is not final."""

    key: Key
    payload: bytes


class TimeWarpCore(OrderCore):
    """See the module's docstring.

    `execution` None: the core owns its processor, which begins with `memory`, draws from `seed`, and is driven by the
    timer `process`. Given: the owner calls `execution.advance` after each call of this core and at its `due_ns`, and
    passes the outcomes to `take_outcomes`, until there are none. `epoch`: the first part of all keys.
    """

    ordered_by = "timestamps"
    last_timestamp = LAST_TIMESTAMP

    def __init__(
        self,
        *,
        membership: Membership,
        parameters: TimeWarpParameters,
        seed: int = 0,
        memory: bytes = b"",
        execution: Execution | None = None,
        epoch: int = 0,
    ) -> None:
        super().__init__(membership)
        self._parameters = parameters
        self._is_lazy = parameters.cancellation == Cancellation.LAZY
        self._is_owner = execution is None
        if execution is None:
            execution = Execution(membership=membership, parameters=parameters.service, seed=seed, memory=memory)
        elif memory:
            raise RemoteError(DropReason.MALFORMED, f"{len(memory)} bytes of memory where the processor is another's")
        self._execution = execution
        self._epoch = epoch
        self._rounds = Rounds(self._me, membership.members)
        self._phase = Phase.RUNNING
        self._received = dict.fromkeys(membership.members, 0)
        """By member, the number of its last item; ours: of the last item sent."""
        self._open: dict[Name, Command] = {}
        """All messages that are not final, ..."""
        self._counts: Counter[int] = Counter()
        """... and their number by origin."""
        self._sent: dict[Key, list[_Sent]] = {}
        """By own message that has been executed: its follow-ups, ..."""
        self._doubtful: dict[Key, list[_Sent]] = {}
        """... and by own message that waits to be executed again, with lazy cancellation."""
        self._certain: dict[Key, list[bytes]] = {}
        """By own message that has been executed: the follow-ups that it sends when it is final."""
        self._tries: dict[Key, int] = {}
        """By own message that is not final: how often its follow-ups, or those of its causes, were undone; 0 is left
        out."""
        self._undone: set[Key] = set()
        """Executions undone since `_take` began with the current outcomes."""
        self._transit: deque[tuple[int, int]] = deque()
        """(number, timestamp) of own items that another member may not have; of an anti-message: the least timestamp
        that it cancels."""
        self._latest = 0
        """The timestamp of our last message."""
        self._gvt = 0
        """The GVT of the last commit."""
        self._begin = 0
        """The time T from which this order is in force: all its messages are later."""
        self._end = LAST_TIMESTAMP
        """The time T at which it ends: none of its messages is later."""
        self._limit = LAST_TIMESTAMP
        """We send nothing later than this."""
        self._is_held = False
        """Whether an own message of the order before ours is not final."""
        self._is_round_due = False
        self._process_ns: int | None = None
        """The time at which PROCESS is due."""
        self._handlers = {
            Kind.TIMEWARP_DATA: self._on_item,
            Kind.TIMEWARP_FOLLOW_UP: self._on_item,
            Kind.TIMEWARP_ANTI: self._on_item,
            Kind.TIMEWARP_REPORT: self._on_report,
        }
        self._due = {PROCESS: self._on_process_due, ROUND: self._on_round_due}

    @property
    def can_submit(self) -> bool:
        is_open = self._phase is Phase.RUNNING and self.timestamp < self._limit
        return is_open and len(self._open) < self._parameters.most_open

    @property
    def is_idle(self) -> bool:
        return not self._wants_round

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def buffered(self) -> int:
        """Messages that are not final here, ours included."""
        return len(self._open)

    @property
    def gvt(self) -> int:
        """The global virtual time: all messages up to it are final."""
        return self._rounds.gvt

    @property
    def timestamp(self) -> int:
        """The timestamp that our next message must exceed."""
        return max(self._execution.clock, self._latest)

    def _submit(self, submission: Submission, now_ns: int, out: list[Effect]) -> None:
        timestamp = min(max(self.timestamp, submission.not_before) + 1, self._limit)
        message = self._us.carrying(submission, Kind.TIMEWARP_DATA, seq=self._next_number, words=(timestamp,))
        self._multicast(message, timestamp, out)
        # Inserted now, not at its delivery by the layer below: flow control may hold it there while others' messages
        # come.
        self._cancel(self._doubted(self._insert(message, now_ns, out)), now_ns, out)
        self._go_on(now_ns, out)

    # The time T of a change from this order or to it (node/protocols/adaptive/core.py).

    def begin_at(self, time: int) -> None:
        """All messages of this order are later than `time`. Called before all inputs."""
        self._begin = self._latest = time
        self._is_round_due = True

    def limit(self, time: int | None) -> None:
        """Send nothing later than `time`, None: without such a limit. Follow-ups that would be later wait."""
        self._limit = LAST_TIMESTAMP if time is None else time

    def end_at(self, time: int) -> None:
        """Send nothing later than `time`, and begin rounds until GVT has reached it."""
        self._end = self._limit = time
        self._latest = max(self._latest, time)
        self._is_round_due = True

    def hold(self, is_held: bool, now_ns: int, out: list[Effect]) -> None:
        """Keep GVT below T while an own message of the order before is not final."""
        if self._is_held != is_held:
            self._is_held = is_held
            self._is_round_due = not is_held
            self._drive_rounds(now_ns, out)

    def undo(self, undone: list[Key], now_ns: int, out: list[Effect]) -> None:
        """A message of the order before has undone these executions."""
        self._cancel(self._doubted(undone), now_ns, out)

    def take_outcomes(self, outcomes: Iterable[Outcome], now_ns: int, out: list[Effect]) -> None:
        """Send the follow-ups of ended executions of own messages that are not final. The owner of the execution calls
        this once after each `advance` that returns outcomes.
        """
        self._take(outcomes, now_ns, out)
        self._drive_rounds(now_ns, out)

    def _on_process_due(self, now_ns: int, out: list[Effect]) -> None:
        self._process_ns = None
        self._go_on(now_ns, out)

    def _on_round_due(self, now_ns: int, out: list[Effect]) -> None:
        self._is_round_due = True
        self._go_on(now_ns, out)

    def _on_accepted(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        super()._on_accepted(message, now_ns, out)
        self._go_on(now_ns, out)

    # The end of the view.

    def close(self, rest: Mapping[int, Sequence[Message]], survivors: frozenset[int], now_ns: int) -> Closing:
        out: list[Effect] = []
        for message in self._acceptable(rest):
            with suppress(RemoteError):
                # As in `on_message`, but nothing is sent any more.
                if message.kind is Kind.TIMEWARP_REPORT:
                    self._on_report(message, now_ns, out)
                else:
                    self._take_item(message, now_ns, out)
        if self._rounds.gvt < self._begin:
            # The order before is not complete: what an excluded member has sent may depend on a message that is lost.
            for key in sorted(one.key for one in self._open.values() if one.key[2] not in survivors):
                self._drop(key)
                self._execution.remove(key, now_ns, out)
        void, unsent = self._judge_open()
        for key in reversed(void):
            self._drop(key)
            self._execution.remove(key, now_ns, out)
        if void:
            out.append(Report(code=TimeWarpReport.VOID, member=self._me, value=len(void)))
        self._execution.conclude(now_ns, out)
        if self._is_owner:
            self._execution.drain(now_ns, out)
        return Closing(
            effects=tuple(out),
            handed_back=tuple(Submission(payload=payload, inner=Kind.TIMEWARP_FOLLOW_UP) for payload in unsent),
            memory=self._execution.memory if self._is_owner else b"",
        )

    def _judge_open(self) -> tuple[list[Key], list[bytes]]:
        """The void follow-ups, ascending; and the payloads of follow-ups of own messages that have not been sent."""
        below = (self._epoch, self._rounds.gvt + 1)
        void: list[Key] = []
        outputs: dict[Name, bytes] = {}
        """By message above GVT: the follow-up that its origin sends if it sends one, until it is found."""
        certain = sorted((key, payloads) for key, payloads in self._certain.items() if key < below)
        unsent: dict[Name, bytes] = {}
        """By own message above GVT: its follow-up, until it is found as sent."""
        ordered = sorted((one for one in self._open.values() if one.key >= below), key=attrgetter("key"))
        state = self._execution.state_before(ordered[0].key) if ordered else None
        for command in ordered:
            cause = _cause_of(command.message)
            if command.key[1] > self._end:
                void.append(command.key)  # of a malicious member
                continue
            is_judged = cause is not None and cause in self._open and self._open[cause].key >= below
            if cause is not None and is_judged:
                if outputs.get(cause) != command.message.payload:
                    void.append(command.key)
                    continue
                del outputs[cause]
                unsent.pop(cause, None)
            result = self._execution.result(command.key, state)
            state = result.state
            outputs[command.key[2:]] = result.output
            if result.is_sent_by_us:
                unsent[command.key[2:]] = result.output
        return void, [*chain.from_iterable(payloads for _, payloads in certain), *unsent.values()]

    # Items: messages and anti-messages.

    def _on_item(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        undone = self._take_item(message, now_ns, out)
        self._cancel(self._doubted(undone), now_ns, out)

    def _take_item(self, message: Message, now_ns: int, out: list[Effect]) -> list[Key]:
        """Take an item of another member. Returns the executions undone by it. RemoteError: nothing has changed."""
        origin, before = message.origin, self._received[message.origin]
        if message.seq != before + 1 or message.seq > MAX_NUMBER:
            raise RemoteError(DropReason.MALFORMED, f"item {message.seq} of member {origin} after {before}")
        if message.kind is Kind.TIMEWARP_ANTI:
            self._require_numbers(message)
            keys = [self._open[origin, number].key for number in message.words]
            self._rounds.came(origin, message.seq, min(key[1] for key in keys))
        else:
            self._require_place(message)
            self._rounds.came(origin, message.seq, message.words[0])
        self._received[origin] = message.seq
        if message.kind is not Kind.TIMEWARP_ANTI:
            return self._insert(message, now_ns, out)
        undone: list[Key] = []
        for key in keys:
            self._drop(key)
            undone += self._execution.remove(key, now_ns, out)
        return undone

    def _require_place(self, message: Message) -> None:
        """RemoteError unless the message may have its place in the order, and there is room for it."""
        is_follow_up = message.kind is Kind.TIMEWARP_FOLLOW_UP
        if len(message.words) != 1 + is_follow_up or not 1 <= message.words[0] <= LAST_TIMESTAMP:
            raise RemoteError(DropReason.MALFORMED, f"a message with the words {message.words[:4]}")
        if is_follow_up and not 1 <= message.words[1] < message.seq:
            raise RemoteError(DropReason.MALFORMED, f"message {message.seq} as what {message.words[1]} has sent")
        floor = self._rounds.told_floor(message.origin)
        if not is_follow_up and message.words[0] <= floor:
            raise RemoteError(DropReason.MALFORMED, f"timestamp {message.words[0]} after the floor {floor}")
        if message.words[0] <= self._rounds.gvt:
            raise RemoteError(
                DropReason.MALFORMED, f"timestamp {message.words[0]}: all up to {self._rounds.gvt} is final"
            )
        if self._counts[message.origin] >= MOST_OPEN_ELSEWHERE:
            raise RemoteError(DropReason.MALFORMED, f"{MOST_OPEN_ELSEWHERE} of its messages are not final already")

    def _require_numbers(self, message: Message) -> None:
        """RemoteError unless the anti-message names follow-ups of its origin that are not final."""
        numbers = message.words
        is_ascending = all(one < other for one, other in pairwise(numbers))
        if not 1 <= len(numbers) <= MOST_CANCELLED or not is_ascending:
            raise RemoteError(DropReason.MALFORMED, f"an anti-message, item {message.seq}, for {numbers[:4]}")
        victims = [self._open.get((message.origin, number)) for number in numbers]
        if any(one is None or one.message.kind is not Kind.TIMEWARP_FOLLOW_UP for one in victims):
            raise RemoteError(DropReason.MALFORMED, f"an anti-message for what is final or never was: {numbers[:4]}")

    def _insert(self, message: Message, now_ns: int, out: list[Effect]) -> list[Key]:
        """Insert a message at its place. Returns the undone executions after it."""
        key = (self._epoch, message.words[0], message.origin, message.seq)
        is_follow_up = Kind.TIMEWARP_FOLLOW_UP in (message.kind, message.inner)
        command = Command(key, message, now_ns, is_follow_up)
        self._open[key[2:]] = command
        self._counts[message.origin] += 1
        return self._execution.insert(command, now_ns, out)

    def _drop(self, key: Key) -> None:
        """The message is not open any more: final or cancelled."""
        del self._open[key[2:]]
        self._counts[key[2]] -= 1

    # Follow-ups.

    def _take(self, outcomes: Iterable[Outcome], now_ns: int, out: list[Effect]) -> None:
        self._undone.clear()
        for outcome in outcomes:
            known = self._open.get(outcome.key[2:])
            # A follow-up of an earlier outcome may undo a later one, which will then end again.
            if known is not None and known.key == outcome.key and outcome.key not in self._undone:
                self._take_outputs(outcome, now_ns, out)

    def _take_outputs(self, outcome: Outcome, now_ns: int, out: list[Effect]) -> None:
        """Keep the earlier follow-ups that the execution sends again, cancel the others, and send new ones."""
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
        is_too_much = self._counts[outcome.key[2]] >= MOST_OPEN or outcome.key[1] >= self._limit
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
        self._cancel(self._doubted(self._insert(message, now_ns, out)), now_ns, out)
        key = self._open[self._me, number].key
        if cause in self._tries:
            self._tries[key] = self._tries[cause]
        return _Sent(key, payload)

    def _doubted(self, undone: list[Key]) -> list[_Sent]:
        """These executions were undone. Returns their follow-ups that are to be cancelled."""
        doomed: list[_Sent] = []
        for key in undone:
            self._undone.add(key)
            self._certain.pop(key, None)
            sent = self._sent.pop(key, [])
            if sent:
                self._tries[key] = self._tries.get(key, 0) + 1
            if sent and self._is_lazy:
                self._doubtful[key] = sent
            else:
                doomed += sent
        return doomed

    def _cancel(self, doomed: list[_Sent], now_ns: int, out: list[Effect]) -> None:
        """Cancel these follow-ups, the follow-ups of these, and, if not lazy, those of the executions that they
        undo."""
        work = list(doomed)
        keys: list[Key] = []
        while work:
            key = work.pop().key
            keys.append(key)
            self._drop(key)
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
        out.append(Report(code=TimeWarpReport.CANCELLED, member=self._me, value=len(keys)))

    @property
    def _next_number(self) -> int:
        return self._received[self._me] + 1

    def _multicast(self, message: Message, timestamp: int, out: list[Effect]) -> None:
        """Multicast an own item; `timestamp`: its own, or the least that it cancels."""
        self._received[self._me] = message.seq
        self._transit.append((message.seq, timestamp))
        if message.kind is not Kind.TIMEWARP_ANTI:
            self._latest = max(self._latest, timestamp)
        out.append(Multicast(message=message))

    # The processor and the rounds.

    def _go_on(self, now_ns: int, out: list[Effect]) -> None:
        """Process, and drive the rounds, after each input."""
        self._process(now_ns, out)
        self._drive_rounds(now_ns, out)

    def _process(self, now_ns: int, out: list[Effect]) -> None:
        if not self._is_owner:
            return
        while outcomes := self._execution.advance(now_ns, out):
            self._take(outcomes, now_ns, out)
        if self._execution.due_ns != self._process_ns:
            self._process_ns = self._execution.due_ns
            self._timers.disarm(PROCESS, out)
            if self._process_ns is not None:
                self._timers.arm(PROCESS, self._process_ns, out)

    def _drive_rounds(self, now_ns: int, out: list[Effect]) -> None:
        self._commit(now_ns, out)
        while self._rounds.may_report and (self._rounds.is_behind or (self._is_round_due and self._wants_round)):
            self._report(out)
            self._commit(now_ns, out)
        if not self._wants_round:
            self._is_round_due = False
            self._timers.disarm(ROUND, out)
        elif not self._is_round_due:
            self._timers.arm(ROUND, now_ns + self._parameters.gvt_every_ns, out)
        if self._phase is Phase.RUNNING and self._is_at_end:
            self._enter_exhausted(out)

    @property
    def _wants_round(self) -> bool:
        is_short = self._rounds.gvt < self._begin or self._rounds.gvt < self._end < LAST_TIMESTAMP
        return bool(self._open) or is_short or self._rounds.is_behind

    @property
    def _is_at_end(self) -> bool:
        return self.timestamp >= LAST_TIMESTAMP or self._next_number >= LAST_NUMBER

    def _report(self, out: list[Effect]) -> None:
        report = self._rounds.report(self._floor(), self._received)
        words = report.to_words()
        message = self._us.message(Kind.TIMEWARP_REPORT, seq=report.number, flags=CONTROL, words=words)
        self._is_round_due = False
        self._timers.disarm(ROUND, out)
        out.append(Multicast(message=message))

    def _floor(self) -> int:
        """The floor of our next report (virtual_time.py). A follow-up whose cause waits to be executed again is later
        than the cause, which counts itself. While the order before is not complete here, its messages can undo ours."""
        if self._is_held or self._is_before_begin:
            return 0 if self._is_held else PLACED
        acknowledged = self._rounds.acknowledged
        while self._transit and self._transit[0][0] <= acknowledged:
            self._transit.popleft()
        timestamps = [timestamp for _, timestamp in self._transit]
        # Their follow-ups will be one later.
        timestamps += [key[1] + 1 for key in self._certain]
        if self._execution.first_open is not None:
            timestamps.append(self._execution.first_open[1])
        return min([self.timestamp, *(timestamp - 1 for timestamp in timestamps)])

    @property
    def _is_before_begin(self) -> bool:
        """Whether a message of the order before may still come: not all members have reported that theirs are final."""
        told = map(self._rounds.told_floor, self._us.peers)
        return self._rounds.gvt < self._begin and min(told, default=PLACED) < PLACED

    def _commit(self, now_ns: int, out: list[Effect]) -> None:
        """Make everything up to GVT final."""
        gvt = self._rounds.gvt
        has_risen = gvt > self._gvt and gvt >= self._begin
        self._gvt = gvt if has_risen else self._gvt
        below = (self._epoch, self._gvt + 1)
        if has_risen:
            if self._parameters.service.report_costs:
                out.append(Report(code=Notice.GVT, member=self._me, value=self._gvt))
            self._execution.commit(below, out)
        final = [key for key in self._certain if key < below and key[1] < self._limit]
        certain = [(key, self._certain.pop(key)) for key in sorted(final)]
        for key, payloads in certain:
            for payload in payloads:
                self._follow_up(key, payload, now_ns, out)
        if has_risen:
            self._forget(below)
        if certain:
            self._process(now_ns, out)

    def _forget(self, below: Key) -> None:
        """Forget final messages, which can be neither undone nor cancelled."""
        for key in [one.key for one in self._open.values() if one.key < below]:
            self._drop(key)
            self._sent.pop(key, None)
            self._tries.pop(key, None)

    def _on_report(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        """Take a report. RemoteError: it cannot be the next one of its origin."""
        report = RoundReport.from_words(message.seq, message.words, len(self._received))
        ours = report.received[self._us.members.index(self._me)]
        if ours >= self._next_number:
            raise RemoteError(DropReason.MALFORMED, f"a member has received {ours} items of us, and we sent fewer")
        self._rounds.heard(message.origin, report)

    def _enter_exhausted(self, out: list[Effect]) -> None:
        self._phase = Phase.EXHAUSTED
        out.append(Report(code=TimeWarpReport.EXHAUSTED, member=self._me, value=self.timestamp))


def _cause_of(message: Message) -> Name | None:
    """The message whose execution has sent this follow-up; None: it is a submission."""
    return (message.origin, message.words[1]) if message.kind is Kind.TIMEWARP_FOLLOW_UP else None


def begin(parameters: TimeWarpParameters) -> MakeCore:
    """The function that makes the core of each view."""
    return lambda us, rng, memory: TimeWarpCore(
        membership=us, parameters=parameters, seed=rng.getrandbits(64), memory=memory
    )
