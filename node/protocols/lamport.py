"""Total order by Lamport's timestamps: the core of one view, over reliable FIFO streams.

Lamport, "Time, Clocks, and the Ordering of Events in a Distributed System", CACM 21(7), 1978 (paper 001). Sections in
brackets. Messages, argument, deviations and parameters: docs/protocols/lamport.md.

1. [Logical Clocks, IR1 and IR2(a)] A sender increments its clock and puts the new value T on the message.
2. [Logical Clocks, IR2(b)] A receiver sets its clock beyond T.
3. [Ordering the Events Totally] Messages are ordered by (timestamp, precedence among members). `tie` chooses the
   precedence: `member` is the lower member first, `fair` is the order of note 3, which rotates with the timestamp.
4. [the same section, state machines] "A process can execute a command timestamped T when it has learned of all commands
   issued by all other processes with timestamps less than or equal to T": a member delivers a message when a message at
   T or later has come from each other member (note 6, which holds for all members here).
5. [the same section, rule 2 and note 5] A member that receives data at T and has sent nothing at T or later multicasts
   a NULL, within `null_after_ns`. A NULL causes no NULL.
6. [Anomalous Behavior] `Submission.not_before` is a timestamp that the user learned outside the system: the message
   gets a later one. `clock` chooses the source of timestamps: `logical` (a counter), `physical` (the node's clock, with
   its error), or `synchronised` [Physical Clocks, IR1' and IR2'].
7. [not in the paper] `close` delivers all of the cut in the order of rule 3. Of an excluded sender it drops each
   message that may lack a cause, and all later ones of that sender (node/protocols/prefix.py).

Invariants. The timestamps of one stream rise. The buffer holds nothing at or before the last delivered place. The
deliveries of any two members of a view before its end are prefixes of one sequence. The cut holds all multicasts of a
survivor, so `close` delivers its submissions and hands none back. Timestamps rise from view to view: `memory` is the
greatest timestamp of all cuts so far.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from random import Random
from struct import Struct

from node.clocks import MAX_TIMESTAMP, ClockKind, EventClock, Tie, clock_of
from node.core import MakeCore, Membership, Submission
from node.effects import Effect, Report
from node.errors import check
from node.parameters import require, require_one_of
from node.protocols.base import DUMMY, MILLISECOND, HistoryCore, Phase
from node.reliable.parameters import ReliableParameters
from node.trace import Notice
from node.wire import Kind, Message

_MEMORY = Struct(">Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class LamportParameters:
    """Parameters of the order and of the reliable layer below it. Times in ns."""

    tie: str = "member"
    """`member` or `fair`: the precedence among equal timestamps."""
    clock: str = "logical"
    """`logical`, `physical` or `synchronised`."""
    mu_ns: int = 0
    """The least delay of a message, for `synchronised`."""
    null_after_ns: int = 2 * MILLISECOND
    """Time that a NULL waits for an own message that makes it needless; 0: it does not wait."""
    report_clock: bool = False
    """Report the clock after every submission and receipt (Notice.TIMESTAMP)."""
    reliable: ReliableParameters = field(default_factory=ReliableParameters)

    def __post_init__(self) -> None:
        require_one_of("tie", self.tie, Tie)
        require_one_of("clock", self.clock, ClockKind)
        require(self.mu_ns >= 0, f"mu_ns must not be negative, not {self.mu_ns}")
        require(0 <= self.null_after_ns <= 2**62, f"null_after_ns must not be negative, not {self.null_after_ns}")

    def new_clock(self) -> EventClock:
        """A clock for one incarnation of a member."""
        return clock_of(ClockKind(self.clock), minimum_delay_ns=self.mu_ns)


class LamportReport(enum.IntEnum):
    """Codes of our reports."""

    EXHAUSTED = 0x51
    """The clock has reached its end: this member sends nothing any more, and the order stops."""
    DROPPED = 0x52
    """At the end of the view, the message of excluded member `member` with timestamp `value` may lack a cause: no
    survivor delivers it."""


class LamportCore(HistoryCore):
    """See the module's docstring. `clock`: the clock of this incarnation, which outlives its views; None: a new one.
    RemoteError: `memory` holds no timestamp.
    """

    ordered_by = "timestamps"
    last_timestamp = last_number = MAX_TIMESTAMP
    data_kind = Kind.LAMPORT_DATA
    null_kind = Kind.LAMPORT_NULL
    exhausted = LamportReport.EXHAUSTED
    dropped = LamportReport.DROPPED

    def __init__(
        self,
        *,
        membership: Membership,
        parameters: LamportParameters,
        rng: Random,
        memory: bytes = b"",
        clock: EventClock | None = None,
    ) -> None:
        self._begin = _timestamp_in(memory)
        super().__init__(
            membership,
            awaited=membership.peers,
            begin=self._begin,
            null_after_ns=parameters.null_after_ns,
            rng=rng,
        )
        self._places = {member: place for place, member in enumerate(membership.members)}
        self._tie = Tie(parameters.tie)
        self.clock = parameters.new_clock() if clock is None else clock
        self._reports_clock = parameters.report_clock

    @property
    def can_submit(self) -> bool:
        return self._phase is Phase.RUNNING and self.clock.value < MAX_TIMESTAMP

    @property
    def timestamp(self) -> int:
        return self.clock.value

    def on_start(self, now_ns: int) -> list[Effect]:
        out: list[Effect] = []
        if self._begin:
            self.clock.tick(now_ns, self._begin)
        if not self.can_submit:
            self._enter_exhausted(self.clock.value, out)
        return out

    def _submit(self, submission: Submission, now_ns: int, out: list[Effect]) -> None:
        """Rule 1."""
        timestamp = self.clock.tick(now_ns, submission.not_before)
        message = self._us.carrying(submission, Kind.LAMPORT_DATA, seq=timestamp, words=(self._prefix.word,))
        self._push(message)
        self._multicast(message, out)
        self._deliver(out)

    def _on_data(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        """Rules 2, 5 and 4."""
        before = self._take(message)
        self._move_clock(message, now_ns, out)
        self._arrange_null(now_ns, out)
        self._deliver_after(before, out)

    def _on_null(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        before = self._take(message)
        self._move_clock(message, now_ns, out)
        self._deliver_after(before, out)

    def _memory(self) -> bytes:
        return _MEMORY.pack(max(self._latest.values()))

    def _precedence(self, message: Message) -> int:
        """Rule 3."""
        return self._tie.precedence(message.seq, self._places[message.origin], len(self._places))

    def _move_clock(self, message: Message, now_ns: int, out: list[Effect]) -> None:
        self.clock.receive(message.seq, now_ns)
        self._tell_clock(out)

    def _send_null(self, now_ns: int, out: list[Effect]) -> None:
        if self.clock.value >= MAX_TIMESTAMP:
            self._enter_exhausted(self.clock.value, out)
            return
        self._multicast(self._us.message(Kind.LAMPORT_NULL, seq=self.clock.tick(now_ns), flags=DUMMY), out)

    def _multicast(self, message: Message, out: list[Effect]) -> None:
        super()._multicast(message, out)
        self._tell_clock(out)

    def _tell_clock(self, out: list[Effect]) -> None:
        if self._reports_clock:
            out.append(Report(code=Notice.TIMESTAMP, member=1, value=self.clock.value))


def _timestamp_in(memory: bytes) -> int:
    """The timestamp in `memory`; 0 when it is empty."""
    if not memory:
        return 0
    timestamp: int = _MEMORY.unpack(memory)[0] if len(memory) == _MEMORY.size else MAX_TIMESTAMP + 1
    check(timestamp <= MAX_TIMESTAMP, f"{len(memory)} bytes of memory hold no timestamp")
    return timestamp


def begin(parameters: LamportParameters) -> MakeCore:
    """The function that makes the core of each view. All these cores have one clock, which never goes back."""
    clock = parameters.new_clock()
    return lambda us, rng, memory: LamportCore(
        membership=us, parameters=parameters, rng=rng, memory=memory, clock=clock
    )
