"""Total order by a sequence server.

Paper 002, section 1: the sender applies to a sequence server for a number, the server gives consecutive numbers, and
the sender multicasts the message with its number. The server is the view's first member; for its own messages it takes
a number without a request.

    sender            server              members
    REQUEST r ------>
              <------ NUMBER r: N
    DATA N ------------------------------> buffered until all numbers below N are delivered

Rules, each with its method:

1. The sender asks the server for a number, once for each submission, in the order of submission (`on_submit`).
2. The server gives consecutive numbers, from 1 in each view, in the order in which requests arrive (`_on_request`).
3. The sender multicasts the message with its number (`_on_number`).
4. Every member delivers by number (`_on_data`).
5. At the end of the view every survivor delivers the messages of the cut by number. It skips a number without a
   message. It drops a message of an excluded sender that depends on a message outside the cut, and all later messages
   of that sender. A submission without a number is handed back (`close`).

Invariants: before `close` a member has delivered exactly the numbers below `_next`; nothing below `_next` is buffered;
a number belongs to one message. Messages, argument and the server's crash: docs/protocols/sequencer.md.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from node.core import MAX_MEMBER, Closing, MakeCore, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report, Send
from node.errors import DropReason, check
from node.parameters import require_range
from node.protocols.base import CONTROL, OrderCore
from node.reliable.parameters import ReliableParameters
from node.wire import Kind, Message

MEMORY_SIZE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencerParameters:
    """Parameters of the sequencer and of the reliable layer below it."""

    outstanding: int = 64
    """Requests without an answer; more submissions wait in the host."""
    replace_server: bool = True
    """The first member of the next view replaces an excluded server. False: the order stops while the first view's
    server is not a member."""
    reliable: ReliableParameters = field(default_factory=ReliableParameters)

    def __post_init__(self) -> None:
        require_range("outstanding", self.outstanding, 1, 65536)


class Phase(enum.StrEnum):
    """The phase, fixed for the view. STOPPED: the view does not contain the server."""

    RUNNING = "running"
    STOPPED = "stopped"


class SequencerReport(enum.IntEnum):
    """Codes of our reports."""

    STOPPED = 0x21
    """This view has no server: no member takes a submission. `member`: the missing server."""
    VOID = 0x22
    """At the end of a view: number `value` and those after it, up to the next message, have no message in the cut.
    `member`: the server."""
    DROPPED = 0x23
    """At the end of a view: the message with number `value` depends on a message that is not in the cut. `member`: its
    sender, which is excluded."""


class Unnumbered(NamedTuple):
    """A submission that waits for its number, and the word of `Prefix` for it."""

    submission: Submission
    word: int


class SequencerCore(OrderCore):
    """See the module's docstring. `memory`: from `close` of the view before."""

    ordered_by = "numbers"
    returning = (Kind.SEQUENCER_REQUEST, Kind.SEQUENCER_NUMBER, Kind.SEQUENCER_DATA)

    def __init__(self, *, membership: Membership, parameters: SequencerParameters, memory: bytes = b"") -> None:
        """RemoteError MALFORMED: no `close` has made this memory."""
        super().__init__(membership)
        self._parameters = parameters
        self._server = membership.first
        if not parameters.replace_server and memory:
            self._server = _server_in(memory)
        self._is_server = membership.member == self._server
        self._phase = Phase.RUNNING if self._server in membership.members else Phase.STOPPED

        self._requests = 0
        self._unnumbered: dict[int, Unnumbered] = {}
        """Submissions without a number, by the number of their request, ascending."""
        self._last_given = 0
        """At the server: the last number that it has given."""
        self._next = 1
        """The number to deliver next."""
        self._buffered: dict[int, Message] = {}
        self._handlers = {
            Kind.SEQUENCER_REQUEST: self._on_request,
            Kind.SEQUENCER_NUMBER: self._on_number,
            Kind.SEQUENCER_DATA: self._on_data,
        }

    @property
    def can_submit(self) -> bool:
        return self._phase is Phase.RUNNING and len(self._unnumbered) < self._parameters.outstanding

    @property
    def is_idle(self) -> bool:
        """A server is idle only when the messages with all numbers that it has given are delivered."""
        return not self._unnumbered and not self._buffered and self._last_given < self._next

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def buffered(self) -> int:
        """Messages that wait for a lower number, and submissions that wait for one."""
        return len(self._buffered) + len(self._unnumbered)

    def on_start(self, now_ns: int) -> list[Effect]:
        if self._phase is Phase.STOPPED:
            return [Report(code=SequencerReport.STOPPED, member=self._server)]
        return []

    def _submit(self, submission: Submission, now_ns: int, out: list[Effect]) -> None:
        unnumbered = Unnumbered(submission, self._prefix.word)
        if self._is_server:
            out.append(self._numbered(self._give(), unnumbered))
            return
        self._requests += 1
        self._unnumbered[self._requests] = unnumbered
        request = self._us.message(Kind.SEQUENCER_REQUEST, seq=self._requests, flags=CONTROL)
        out.append(Send(target=self._server, message=request))

    def close(self, rest: Mapping[int, Sequence[Message]], survivors: frozenset[int], now_ns: int) -> Closing:
        for message in self._acceptable(rest):
            if message.kind is Kind.SEQUENCER_DATA:
                self._buffered[message.seq] = message
        out: list[Effect] = []
        self._settle(self._numbers(out), survivors, SequencerReport.DROPPED, out)
        self._buffered.clear()
        handed_back = tuple(unnumbered.submission for unnumbered in self._unnumbered.values())
        memory = b"" if self._parameters.replace_server else self._server.to_bytes(MEMORY_SIZE, "big")
        return Closing(effects=tuple(out), handed_back=handed_back, memory=memory)

    def _numbers(self, out: list[Effect]) -> Iterator[Message]:
        """The buffered messages by number; numbers without a message are reported and skipped."""
        for number, message in sorted(self._buffered.items()):
            if number > self._next:
                out.append(Report(code=SequencerReport.VOID, member=self._server, value=self._next))
            self._next = number + 1
            yield message

    def _refusal(self, message: Message) -> DropReason | None:
        is_from_server = message.origin == self._server
        match message.kind:
            case _ if self._phase is Phase.STOPPED:
                return DropReason.UNEXPECTED
            case Kind.SEQUENCER_REQUEST:
                is_expected, is_formed = self._is_server and not is_from_server, message.seq > 0 and not message.words
            case Kind.SEQUENCER_NUMBER:
                is_expected = is_from_server and not self._is_server
                is_formed = len(message.words) == 1 and message.words[0] > 0
                if is_expected and is_formed and message.seq not in self._unnumbered:
                    return DropReason.UNEXPECTED
            case _:
                is_expected, is_formed = True, message.seq > 0 and len(message.words) == 1
                # The first message with a number counts; the sender of the second is wrong.
                if is_formed and (message.seq < self._next or message.seq in self._buffered):
                    return DropReason.DUPLICATE
        if not is_expected:
            return DropReason.UNEXPECTED
        return None if is_formed else DropReason.MALFORMED

    # At the server.

    def _on_request(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        answer = self._us.message(Kind.SEQUENCER_NUMBER, seq=message.seq, flags=CONTROL, words=(self._give(),))
        out.append(Send(target=message.origin, message=answer))

    def _give(self) -> int:
        self._last_given += 1
        return self._last_given

    # At the sender.

    def _on_number(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        out.append(self._numbered(message.words[0], self._unnumbered.pop(message.seq)))

    def _numbered(self, number: int, unnumbered: Unnumbered) -> Multicast:
        return Multicast(
            message=self._us.carrying(unnumbered.submission, Kind.SEQUENCER_DATA, seq=number, words=(unnumbered.word,))
        )

    # At every member.

    def _on_data(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self._buffered[message.seq] = message
        while self._next in self._buffered:
            following = self._buffered.pop(self._next)
            self._prefix.delivered(following.origin, self._next)
            self._next += 1
            out.append(Deliver.of(following))


def _server_in(memory: bytes) -> int:
    server = int.from_bytes(memory, "big")
    check(len(memory) == MEMORY_SIZE and server <= MAX_MEMBER, f"the memory {memory!r} names no server")
    return server


def begin(parameters: SequencerParameters) -> MakeCore:
    """The function that makes the core of each view."""
    return lambda us, _, memory: SequencerCore(membership=us, parameters=parameters, memory=memory)
