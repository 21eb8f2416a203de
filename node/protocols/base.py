"""Base classes of the ordering cores of one view.

OrderCore checks each input and gives it to the core's tables: `_handlers` by kind of message, `_due` by timer. A
message of a kind without a handler, from a stranger, or refused by `_refusal` is reported with its reason before
anything has changed.

HistoryCore is for orders by communication history (Défago, Schiper, Urbán 2004): the numbers of each stream rise, and a
message is delivered when a message with its number or a later one has come from every awaited member. A member without
data sends NULLs for this.
"""

from __future__ import annotations

import enum
import heapq
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import ClassVar, NamedTuple, TypeAlias

from node.core import Closing, Membership, Submission, ViewCore
from node.effects import Deliver, Effect, Multicast, Report, Timer
from node.errors import DropReason, LocalError
from node.protocols.prefix import Prefix, Walk
from node.transport import Timers
from node.wire import Flag, Kind, Message

MILLISECOND = 1_000_000
CONTROL = Flag.CONTROL.value
DUMMY = Flag.DUMMY.value
NULL = Timer("null")

Handler: TypeAlias = Callable[[Message, int, list[Effect]], None]
"""A function of a message, the time, and the effects so far. It may raise RemoteError before it has changed
anything."""


class Phase(enum.StrEnum):
    """EXHAUSTED: no number is left for our messages in this view."""

    RUNNING = "running"
    EXHAUSTED = "exhausted"


class OrderCore(ViewCore):
    """See the module's docstring."""

    ordered_by: ClassVar[str]
    """The subject of the error about submissions to one member."""
    last_timestamp: ClassVar[int | None] = None
    """Cores with timestamps: the greatest one. None: `Submission.not_before` means nothing."""
    returning: ClassVar[Collection[Kind]] = ()
    """Kinds of which own messages are handled when the layer below delivers them; others are handled when they are
    sent."""

    def __init__(self, membership: Membership) -> None:
        self._us = membership
        self._me = membership.member
        self._timers = Timers()
        self._prefix = Prefix()
        self._handlers: dict[Kind, Handler] = {}
        self._due: dict[Timer, Callable[[int, list[Effect]], None]] = {}

    def on_start(self, now_ns: int) -> list[Effect]:
        return []

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        if not self.can_submit:
            raise LocalError(f"member {self._me} takes no submission now: ask can_submit before")
        if submission.target is not None:
            raise LocalError(f"{self.ordered_by} order multicasts; send to one member through the layer below")
        if self.last_timestamp is not None and not 0 <= submission.not_before < self.last_timestamp:
            raise LocalError(f"{submission.not_before} is no timestamp that another can follow")
        out: list[Effect] = []
        self._submit(submission, now_ns, out)
        return out

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        reason: DropReason | None = DropReason.UNEXPECTED
        if self._is_possible(message, source):
            if self._was_handled(message):
                return []
            reason = self._refusal(message)
        if reason is not None:
            return [Report.refusal(reason, message, source)]
        out: list[Effect] = []
        self._on_accepted(message, now_ns, out)
        return out

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        if timer not in self._due:
            raise LocalError(f"{timer} is no timer of this core")
        out: list[Effect] = []
        self._timers.fired(timer)
        self._due[timer](now_ns, out)
        return out

    @abstractmethod
    def _submit(self, submission: Submission, now_ns: int, out: list[Effect]) -> None:
        """Send `submission`, which has been checked."""

    def _on_accepted(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        """Handle a message that is not refused."""
        self._handlers[message.kind](message, now_ns, out)

    def _refusal(self, message: Message) -> DropReason | None:
        """The reason to refuse this message, of a known kind and of a member; None: it is taken. For a multicast this
        depends on its stream alone, so all members refuse the same."""
        return None

    def _acceptable(
        self, rest: Mapping[int, Sequence[Message]], refused: list[Effect] | None = None
    ) -> Iterator[Message]:
        """The messages of a cut's rest that `on_message` would take: each is judged when those before it were handled.
        `refused` receives the reports about the others."""
        for source, messages in sorted(rest.items()):
            for message in messages:
                reason: DropReason | None = DropReason.UNEXPECTED
                if self._is_possible(message, source):
                    if self._was_handled(message):
                        continue
                    reason = self._refusal(message)
                if reason is None:
                    yield message
                elif refused is not None:
                    refused.append(Report.refusal(reason, message, source))

    def _is_possible(self, message: Message, source: int) -> bool:
        return message.kind in self._handlers and message.origin == source and source in self._us.members

    def _was_handled(self, message: Message) -> bool:
        """Whether this is an own message that was handled when it was sent."""
        return message.origin == self._me and message.kind not in self.returning

    def _settle(self, ordered: Iterable[Message], survivors: frozenset[int], dropped: int, out: list[Effect]) -> None:
        """At the end of a view: deliver these messages, whose first word is a word of a Prefix, in this order. A
        message that may lack a cause is reported as `dropped`."""
        walk = Walk(self._prefix, survivors)
        for message in ordered:
            if walk.admits(message.origin, message.words[0]):
                walk.delivered(message.origin, message.seq)
                out.append(Deliver.of(message))
            else:
                out.append(Report(code=dropped, member=message.origin, value=message.seq))


class Place(NamedTuple):
    """A message's place in the order; (number, precedence) differs between any two."""

    number: int
    precedence: int
    message: Message


class HistoryCore(OrderCore):
    """See the module's docstring. `begin`: all numbers of this view are later. `awaited`: the members from which a
    message must come before a delivery."""

    data_kind: ClassVar[Kind]
    null_kind: ClassVar[Kind]
    last_number: ClassVar[int]
    exhausted: ClassVar[int]
    dropped: ClassVar[int]
    """Codes of reports."""

    def __init__(
        self, membership: Membership, *, awaited: Iterable[int], begin: int, null_after_ns: int, rng: Random
    ) -> None:
        super().__init__(membership)
        self._phase = Phase.RUNNING
        self._null_after_ns = null_after_ns
        self._rng = rng
        self._latest = dict.fromkeys(membership.members, begin)
        """By member, the number up to which we have everything; ours: the last number sent."""
        self._awaited = tuple(awaited)
        self._buffer: list[Place] = []
        """A heap of undelivered messages, ours included."""
        self._outstanding = 0
        """Number of own messages in `_buffer`."""
        self._wanted = begin
        """The greatest number of others' data: other members wait until we send it or a later one."""
        self._handlers = {self.data_kind: self._on_data, self.null_kind: self._on_null}
        self._due = {NULL: self._on_null_due}

    @property
    def is_idle(self) -> bool:
        return not self._buffer and not self._owes_null

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def buffered(self) -> int:
        """Messages that wait for later numbers of others, ours included."""
        return len(self._buffer)

    def close(self, rest: Mapping[int, Sequence[Message]], survivors: frozenset[int], now_ns: int) -> Closing:
        out: list[Effect] = []
        for message in self._acceptable(rest, out):
            self._take(message)
        self._settle((place.message for place in sorted(self._buffer)), survivors, self.dropped, out)
        self._buffer.clear()
        return Closing(effects=tuple(out), memory=self._memory())

    def _memory(self) -> bytes:
        return b""

    @abstractmethod
    def _on_data(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        """Handle data of another member."""

    def _on_null(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._deliver_after(self._take(message), out)

    @abstractmethod
    def _precedence(self, message: Message) -> int:
        """The precedence of a message among equal numbers, the lowest first."""

    @abstractmethod
    def _send_null(self, now_ns: int, out: list[Effect]) -> None:
        """Send a NULL, which is owed."""

    def _refusal(self, message: Message) -> DropReason | None:
        # Data carries its sender's prefix (node/protocols/prefix.py).
        is_formed = len(message.words) == (message.kind is self.data_kind)
        is_next = self._latest[message.origin] < message.seq <= self.last_number
        return None if is_formed and is_next else DropReason.MALFORMED

    def _take(self, message: Message) -> int:
        """Take the next message of its stream. Returns the stream's number before it."""
        before, self._latest[message.origin] = self._latest[message.origin], message.seq
        if message.kind is self.data_kind:
            self._wanted = max(self._wanted, message.seq)
            self._push(message)
        return before

    def _push(self, message: Message) -> None:
        self._outstanding += message.origin == self._me
        heapq.heappush(self._buffer, Place(message.seq, self._precedence(message), message))

    def _deliver_after(self, before: int, out: list[Effect]) -> None:
        """Deliver after a stream has moved on from `before`, unless another stream still blocks the head of the
        buffer."""
        if self._buffer and before < self._buffer[0].number:
            self._deliver(out)

    def _deliver(self, out: list[Effect]) -> None:
        complete = min((self._latest[member] for member in self._awaited), default=self.last_number)
        while self._buffer and self._buffer[0].number <= complete:
            message = heapq.heappop(self._buffer).message
            self._outstanding -= message.origin == self._me
            self._prefix.delivered(message.origin, message.seq)
            out.append(Deliver.of(message))

    # Nulls.

    @property
    def _owes_null(self) -> bool:
        return self._phase is Phase.RUNNING and self._wanted > self._latest[self._me]

    def _arrange_null(self, now_ns: int, out: list[Effect]) -> None:
        """Send a NULL, or arm its timer, unless none is owed or one is arranged."""
        if not self._owes_null or NULL in self._timers:
            return
        if self._null_after_ns == 0:
            self._send_null(now_ns, out)
        else:
            self._arm_null(now_ns, out)

    def _arm_null(self, now_ns: int, out: list[Effect]) -> None:
        """Arm the timer; a random part of the wait keeps members from answering all at once."""
        wait_ns = self._rng.randint(self._null_after_ns // 2, self._null_after_ns)
        self._timers.arm(NULL, now_ns + wait_ns, out)

    def _on_null_due(self, now_ns: int, out: list[Effect]) -> None:
        if self._owes_null:
            self._send_null(now_ns, out)

    def _multicast(self, message: Message, out: list[Effect]) -> None:
        self._latest[self._me] = message.seq
        out.append(Multicast(message=message))
        if not self._owes_null:
            self._timers.disarm(NULL, out)

    def _enter_exhausted(self, number: int, out: list[Effect]) -> None:
        self._phase = Phase.EXHAUSTED
        out.append(Report(code=self.exhausted, member=self._me, value=number))
