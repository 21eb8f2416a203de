"""Total order by a sequence server, over reliable FIFO channels.

Paper 002, the first of its four protocols: "the sender asks a sequence server for a number, then multicasts with it;
delivery by number". The sequence server is the member with the lowest index; for its own messages it asks itself,
without a message.

    sender            server              everybody
    REQUEST r ------>
              <------ NUMBER r: N
    DATA N ------------------------------> held until all numbers below N are delivered or void

Three messages for a multicast, one and a half round trips plus what lower numbers take.

Order. Numbers are given once, by one member in one life, so two members never deliver different messages under one
number. A sender asks after what it delivered and in the order of its submissions (the channel to the server is FIFO):
so the order is causal and FIFO, too. Delivery is AGREED, not uniform: who delivers and crashes together with the
sender may be the only one who did.

A sender that crashes between asking and multicasting leaves a number without a message, and all would wait for it. The
server must not void it alone: others may have received the message that the server lacks. The reliable layer answers
that. Its news that an incarnation has ended comes when all survivors have received the same of its stream, and nobody
takes more. So at that news the server knows of each number it gave to that incarnation: either it has the message,
then all get it; or nobody has it, nobody will, and the server multicasts in its own stream that the number is void
(ORDER). A sender that was expelled alive, or crashed, may have delivered such a number itself: the order is that of
the members that live on, and who is expelled counts as crashed.

A restarted member joins where the order stands: when the reliable layer says that it is a member, it asks the server
(REQUEST 0), whose answer N means "from N on". All who send with a number from N on have been asked for their stream
before that number was given, so the joiner gets their messages.

The server's own crash stops the order, as in the paper. What has a number and reached a survivor is still delivered as
far as no number below is missing, by all the same; nothing new gets a number, `can_submit` stays false, a report says
so. A restarted server does not resume: it does not know what it gave.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from node.core import Core, Membership, Submission
from node.effects import Deliver, Effect, Multicast, Report, Send, Timer
from node.errors import DropReason, LocalError, RemoteError
from node.parameters import require
from node.protocols.reliable import ReliableParameters
from node.wire import Flag, Kind, Message

CONTROL = Flag.CONTROL.value
VOID_PER_ORDER = 128
POSITION = 0
"""The request number that asks where the order stands, and takes no number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencerParameters:
    """Of the sequencer and of the reliable layer under it."""

    outstanding: int = 64
    """Requests without an answer; more submissions wait in the host."""
    reliable: ReliableParameters = field(default_factory=ReliableParameters)

    def __post_init__(self) -> None:
        require(1 <= self.outstanding <= 65536, f"outstanding must lie between 1 and 65536, not {self.outstanding}")


class Phase(enum.StrEnum):
    """JOINING until we know from which number on we deliver; STOPPED when the server is gone."""

    JOINING = "joining"
    RUNNING = "running"
    STOPPED = "stopped"


class SequencerReport(enum.IntEnum):
    """Codes of our reports."""

    STOPPED = 0x21
    """The server, `member`, is gone: nothing gets a number any more."""
    VOID = 0x22
    """Number `value` stays without a message."""


class SequencerCore(Core):
    """See the module's text."""

    def __init__(self, *, membership: Membership, parameters: SequencerParameters) -> None:
        self._us = membership
        self._server = membership.members[0]
        self._is_server = membership.member == self._server
        self._outstanding = parameters.outstanding
        self._phase = Phase.RUNNING if membership.incarnation == 1 else Phase.JOINING
        self._requests = 0
        self._asked: dict[int, Submission] = {}
        """Per request: what is to be multicast with the number."""
        self._next = 1
        """The next number to deliver."""
        self._held: dict[int, Message | None] = {}
        """Per number from `_next` on: its message, None for a void one."""
        self._last_given = 0
        self._unused: dict[tuple[int, int], set[int]] = {}
        """At the server, per incarnation: numbers given whose message has not come."""
        self._handlers: dict[Kind, Callable[[Message, list[Effect]], None]] = {
            Kind.SEQUENCER_REQUEST: self._on_request,
            Kind.SEQUENCER_NUMBER: self._on_number,
            Kind.SEQUENCER_DATA: self._on_data,
            Kind.SEQUENCER_ORDER: self._on_order,
            Kind.RELIABLE_ENDED: self._on_ended,
            Kind.RELIABLE_JOINED: self._on_joined,
        }

    @property
    def can_submit(self) -> bool:
        return self._phase is Phase.RUNNING and len(self._asked) < self._outstanding

    @property
    def is_idle(self) -> bool:
        is_waiting = self._asked or self._held or any(self._unused.values())
        return self._phase is not Phase.JOINING and not is_waiting

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def held(self) -> int:
        """Messages that wait for a lower number, and submissions that wait for one."""
        return len(self._held) + len(self._asked)

    def on_start(self, now_ns: int) -> list[Effect]:
        out: list[Effect] = []
        if self._is_server and self._phase is Phase.JOINING:
            self._enter_stopped(out)
        return out

    def on_submit(self, submission: Submission, now_ns: int) -> list[Effect]:
        if not self.can_submit:
            raise LocalError(f"member {self._us.member} takes no submission now: ask can_submit before")
        if submission.target is not None:
            raise LocalError("the sequencer orders multicasts; send to one member through the layer below")
        if self._is_server:
            return [Multicast(message=self._data(self._give(self._us.member, self._us.incarnation), submission))]
        self._requests += 1
        self._asked[self._requests] = submission
        return [self._request(self._requests)]

    def on_message(self, message: Message, source: int, now_ns: int) -> list[Effect]:
        reason = self._ignore(message)
        if reason is not None:
            return [Report(code=reason, member=source, value=len(message.payload))]
        out: list[Effect] = []
        self._handlers[message.kind](message, out)
        return out

    def on_timer(self, timer: Timer, now_ns: int) -> list[Effect]:
        raise LocalError(f"{timer} is no timer of the sequencer: it has none")

    def _ignore(self, message: Message) -> DropReason | None:
        if message.kind not in self._handlers:
            return DropReason.UNEXPECTED
        if message.kind is Kind.SEQUENCER_REQUEST and (not self._is_server or self._phase is not Phase.RUNNING):
            return DropReason.UNEXPECTED
        is_from_server = message.origin == self._server and message.incarnation == 1
        if message.kind in (Kind.SEQUENCER_NUMBER, Kind.SEQUENCER_ORDER) and not is_from_server:
            return DropReason.UNEXPECTED
        return None

    # At the server.

    def _on_request(self, message: Message, out: list[Effect]) -> None:
        is_question = message.seq == POSITION
        number = self._last_given + 1 if is_question else self._give(message.origin, message.incarnation)
        answer = self._us.message(Kind.SEQUENCER_NUMBER, seq=message.seq, flags=CONTROL, words=(number,))
        out.append(Send(target=message.origin, message=answer))

    def _give(self, member: int, incarnation: int) -> int:
        self._last_given += 1
        self._unused.setdefault((member, incarnation), set()).add(self._last_given)
        return self._last_given

    def _on_ended(self, message: Message, out: list[Effect]) -> None:
        """All survivors have the same of this stream: what has not come with a given number will come to nobody."""
        if message.origin == self._server:
            self._enter_stopped(out)
        void = sorted(self._unused.pop((message.origin, message.incarnation), set()))
        for start in range(0, len(void), VOID_PER_ORDER):
            words = tuple(void[start : start + VOID_PER_ORDER])
            out.append(Multicast(message=self._us.message(Kind.SEQUENCER_ORDER, flags=CONTROL, words=words)))

    # At the sender.

    def _request(self, request: int) -> Effect:
        message = self._us.message(Kind.SEQUENCER_REQUEST, seq=request, flags=CONTROL)
        return Send(target=self._server, message=message)

    def _on_number(self, message: Message, out: list[Effect]) -> None:
        if len(message.words) != 1 or message.words[0] == 0:
            raise RemoteError(DropReason.MALFORMED, f"an answer with the words {message.words}")
        number = message.words[0]
        if message.seq == POSITION and self._phase is Phase.JOINING:
            self._enter_running(number, out)
            return
        submission = self._asked.pop(message.seq, None)
        if submission is None:
            out.append(Report(code=DropReason.UNEXPECTED, member=message.origin))
            return
        out.append(Multicast(message=self._data(number, submission)))

    def _data(self, number: int, submission: Submission) -> Message:
        return self._us.message(
            Kind.SEQUENCER_DATA,
            seq=number,
            flags=submission.flags,
            inner=submission.inner,
            payload=submission.payload,
        )

    def _on_joined(self, message: Message, out: list[Effect]) -> None:
        if message.origin == self._us.member and self._phase is Phase.JOINING:
            out.append(self._request(POSITION))

    # At everybody.

    def _on_data(self, message: Message, out: list[Effect]) -> None:
        number = message.seq
        if number == 0:
            raise RemoteError(DropReason.MALFORMED, "data without a number")
        unused = self._unused.get((message.origin, message.incarnation))
        if unused is not None:
            unused.discard(number)
        if self._hold(number, message):
            self._deliver_next(out)
        elif self._phase is not Phase.JOINING:
            out.append(Report(code=DropReason.DUPLICATE, member=message.origin, value=len(message.payload)))

    def _on_order(self, message: Message, out: list[Effect]) -> None:
        void = [number for number in message.words if self._hold(number, None)]
        out.extend(Report(code=SequencerReport.VOID, member=message.origin, value=number) for number in void)
        self._deliver_next(out)

    def _hold(self, number: int, message: Message | None) -> bool:
        """False when something has that number already: the first one counts, and whoever sent the second is wrong."""
        if number < self._next or number in self._held:
            return False
        self._held[number] = message
        return True

    def _deliver_next(self, out: list[Effect]) -> None:
        if self._phase is Phase.JOINING:
            return
        while self._next in self._held:
            message = self._held.pop(self._next)
            self._next += 1
            if message is not None:
                out.append(Deliver.of(message))

    def _enter_running(self, first: int, out: list[Effect]) -> None:
        self._phase = Phase.RUNNING
        self._next = first
        for number in [number for number in self._held if number < first]:
            del self._held[number]
        self._deliver_next(out)

    def _enter_stopped(self, out: list[Effect]) -> None:
        self._phase = Phase.STOPPED
        out.append(Report(code=SequencerReport.STOPPED, member=self._server))
